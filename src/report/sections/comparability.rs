//! What has to be equal for the comparison to mean anything, and whether it is.

use minijinja::value::Value;

use crate::compare::ArmComparison;
use crate::report::page::Page;
use crate::report::{ReportError, fields};

pub(crate) fn view(page: &Page) -> Result<Option<Value>, ReportError> {
    let comparison = page.input.comparison;
    let arms: Vec<&ArmComparison> = comparison.control.iter().chain(&comparison.candidates).collect();
    let mismatches: Vec<Value> = arms
        .iter()
        .flat_map(|arm| {
            arm.mismatches.iter().map(|mismatch| {
                fields! {
                    arm => arm.summary.arm.name, field => mismatch.field,
                    baseline => mismatch.baseline, candidate => mismatch.candidate,
                }
            })
        })
        .collect();
    let fields: Vec<Value> = comparison
        .plan
        .iter()
        .map(|(field, value)| {
            let differing: Vec<&str> = arms
                .iter()
                .filter(|arm| arm.mismatches.iter().any(|mismatch| mismatch.field == *field))
                .map(|arm| arm.summary.arm.name.as_str())
                .collect();
            fields! { field => field, value => value, differing => differing.join(", ") }
        })
        .collect();
    Ok(Some(fields! { fields => fields, mismatches => mismatches }))
}
