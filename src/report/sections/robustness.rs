//! How far every arm drifts from itself when a question is worded differently. Shown, never judged.

use minijinja::value::Value;

use crate::compare::{ArmComparison, Robustness};
use crate::report::page::Page;
use crate::report::{ReportError, fields, figures};

pub(crate) fn view(page: &Page) -> Result<Option<Value>, ReportError> {
    let comparison = page.input.comparison;
    let arms = || comparison.control.iter().chain(&comparison.candidates);
    let rows: Vec<Value> = arms().flat_map(|arm| arm.robustness.iter().map(move |cell| row(arm, cell))).collect();
    let sentences: Vec<String> = arms().filter_map(sentence).collect();
    Ok((!rows.is_empty()).then_some(fields! { rows => rows, sentences => sentences }))
}

fn row(arm: &ArmComparison, cell: &Robustness) -> Value {
    let kinds = cell.by_perturbation.iter().map(|(perturbation, baseline, candidate)| {
        format!("{} {} → {}", perturbation.name(), percent(*baseline), percent(*candidate))
    });
    fields! {
        arm => arm.summary.arm.name,
        bin => cell.bin.to_string(),
        group => cell.group.name(),
        variants => figures::count(cell.variants),
        baseline => percent(cell.baseline.distance),
        candidate => percent(cell.candidate.distance),
        difference => difference(cell),
        p => figures::p_value(Some(cell.p_further)),
        changed => format!("{} / {}", figures::count(cell.baseline.changed), figures::count(cell.candidate.changed)),
        kinds => kinds.collect::<Vec<_>>().join(", "),
        is_further => is_further(cell),
    }
}

fn percent(share: f64) -> String {
    figures::percent(Some(share))
}

/// Points with half their 95 % interval; alone where one haystack allows none.
fn difference(cell: &Robustness) -> String {
    let points = figures::points(Some(cell.difference));
    match cell.interval {
        Some((low, high)) => format!("{points} ± {:.1}", 50.0 * (high - low)),
        None => points,
    }
}

/// Beyond what chance would do to the same variants.
fn is_further(cell: &Robustness) -> bool {
    cell.interval.is_some_and(|(low, _)| low > 0.0)
}

fn sentence(arm: &ArmComparison) -> Option<String> {
    let cells = arm.robustness.len();
    let further: Vec<String> = arm
        .robustness
        .iter()
        .filter(|cell| is_further(cell))
        .map(|cell| format!("{} at {}", cell.group.name(), cell.bin))
        .collect();
    let name = &arm.summary.arm.name;
    (cells > 0).then(|| match further.len() {
        0 => format!("{name}: nothing shows that other wordings move its answers further than the baseline's"),
        count => format!(
            "{name}: its answers move further than the baseline's in {count} of {cells} cells ({})",
            further.join(", ")
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::Drift;
    use crate::sample::{Bin, Perturbation};
    use crate::suite::TaskGroup;

    #[test]
    fn a_difference_is_told_with_its_interval() {
        let mut cell = Robustness {
            group: TaskGroup::Retrieval,
            bin: Bin(2048),
            variants: 40,
            haystacks: 10,
            baseline: Drift { distance: 0.05, changed: 1 },
            candidate: Drift { distance: 0.09, changed: 3 },
            difference: 0.04,
            interval: Some((0.01, 0.07)),
            p_further: 0.01,
            by_perturbation: vec![(Perturbation::Typos, 0.05, 0.09)],
        };
        assert_eq!(difference(&cell), format!("{} ± 3.0", figures::points(Some(0.04))));
        assert!(is_further(&cell));
        cell.interval = None;
        assert!(!is_further(&cell), "one haystack proves nothing");
        assert_eq!(difference(&cell), figures::points(Some(0.04)));
    }
}
