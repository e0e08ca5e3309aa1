//! What would have failed the run, and what became of it on fresh seeds.

use minijinja::value::Value;

use crate::gate::{ArmVerdict, CellVerdict, SymptomVerdict};
use crate::report::page::Page;
use crate::report::{ReportError, fields, figures};

pub(crate) fn view(page: &Page) -> Result<Option<Value>, ReportError> {
    let arms = &page.input.verdict.arms;
    let cells: Vec<Value> =
        arms.iter().flat_map(|arm| arm.cells.iter().filter_map(|cell| cell_row(arm, cell))).collect();
    let symptoms: Vec<Value> =
        arms.iter().flat_map(|arm| arm.symptoms.iter().filter_map(|it| symptom_row(arm, it))).collect();
    let is_empty = cells.is_empty() && symptoms.is_empty();
    Ok((!is_empty).then_some(fields! { cells => cells, symptoms => symptoms }))
}

fn cell_row(arm: &ArmVerdict, cell: &CellVerdict) -> Option<Value> {
    let again = cell.confirmation.as_ref()?;
    Some(fields! {
        arm => arm.arm,
        bin => cell.bin.to_string(),
        group => cell.group.name(),
        first => figures::points(cell.delta.delta),
        first_pairs => figures::count(cell.delta.pairs),
        first_p => figures::p_value(cell.adjusted_p),
        again => figures::points(again.delta.delta),
        interval => figures::interval_points(again.delta.interval),
        again_pairs => figures::count(again.delta.pairs),
        again_p => figures::p_value(again.adjusted_p),
        rejects => again.rejects,
    })
}

fn symptom_row(arm: &ArmVerdict, verdict: &SymptomVerdict) -> Option<Value> {
    let confirmation = verdict.confirmation.as_ref()?;
    let rise = |baseline: u64, candidate: u64, pairs: u64| {
        format!("{} → {} of {}", figures::count(baseline), figures::count(candidate), figures::count(pairs))
    };
    let first = &verdict.symptom;
    let again = confirmation.symptom.as_ref();
    Some(fields! {
        arm => arm.arm,
        bin => first.bin.to_string(),
        kind => first.kind.name(),
        first => rise(first.baseline, first.candidate, first.pairs),
        first_p => figures::p_value(Some(verdict.adjusted_p)),
        again => again.map_or_else(|| "not seen".to_owned(), |it| rise(it.baseline, it.candidate, it.pairs)),
        again_p => figures::p_value(Some(confirmation.adjusted_p)),
        rejects => confirmation.rejects,
    })
}
