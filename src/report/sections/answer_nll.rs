//! Answer NLL: how much less likely the right answer became, beside the noise of the A/A arm. Shown, never judged alone.

use minijinja::value::Value;

use crate::compare::{ArmComparison, NllDelta};
use crate::report::page::Page;
use crate::report::{ReportError, fields, figures};
use crate::sample::Bin;
use crate::suite::TaskGroup;

/// A difference is marked from this many standard errors on: about 95 %.
const MARKED_ERRORS: f64 = 1.96;

pub(crate) fn view(page: &Page) -> Result<Option<Value>, ReportError> {
    let comparison = page.input.comparison;
    let arms: Vec<&ArmComparison> = comparison.control.iter().chain(&comparison.candidates).collect();
    let mut bins = Vec::new();
    for bin in &comparison.bins {
        let rows: Vec<Value> = TaskGroup::ALL.into_iter().filter_map(|group| row(&arms, group, *bin)).collect();
        if !rows.is_empty() {
            bins.push(fields! { bin => bin.to_string(), rows => rows });
        }
    }
    let names: Vec<&str> = arms.iter().map(|arm| arm.summary.arm.name.as_str()).collect();
    Ok((!bins.is_empty()).then_some(fields! {
        arms => names, bins => bins, baseline => comparison.baseline.arm.name, has_control => comparison.control.is_some(),
    }))
}

fn row(arms: &[&ArmComparison], group: TaskGroup, bin: Bin) -> Option<Value> {
    let find = |arm: &&ArmComparison| -> Option<NllDelta> {
        arm.groups.iter().find(|cell| cell.group == group && cell.delta.bin == Some(bin))?.delta.nll.clone()
    };
    let deltas: Vec<Option<NllDelta>> = arms.iter().map(find).collect();
    let baseline = deltas.iter().flatten().max_by_key(|nll| nll.pairs)?.baseline;
    let cells: Vec<Value> = deltas
        .iter()
        .map(|nll| match nll {
            None => fields! { text => figures::UNKNOWN, is_high => false },
            Some(nll) => fields! {
                text => format!("{} ± {:.4}", figures::signed(nll.delta, 4), nll.standard_error * MARKED_ERRORS),
                is_high => nll.delta > MARKED_ERRORS * nll.standard_error,
            },
        })
        .collect();
    Some(fields! { group => group.name(), baseline => format!("{baseline:.4}"), cells => cells })
}
