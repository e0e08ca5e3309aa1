//! Task × bin: shown, not judged.

use minijinja::value::Value;

use crate::compare::{ArmComparison, Comparison, Delta};
use crate::report::page::Page;
use crate::report::{ReportError, fields, figures};
use crate::sample::Bin;

pub(crate) fn view(page: &Page) -> Result<Option<Value>, ReportError> {
    let comparison = page.input.comparison;
    let bins: Vec<Value> = comparison
        .bins
        .iter()
        .map(|bin| {
            let rows: Vec<Value> = comparison.tasks.iter().filter_map(|task| row(comparison, task, *bin)).collect();
            fields! { anchor => format!("bin-{}", bin.tokens()), bin => bin.to_string(), rows => rows }
        })
        .collect();
    let names: Vec<&str> = comparison.candidates.iter().map(|arm| arm.summary.arm.name.as_str()).collect();
    Ok(Some(fields! { bins => bins, arms => names, baseline => comparison.baseline.arm.name }))
}

fn find<'a>(arm: &'a ArmComparison, task: &str, bin: Bin) -> Option<&'a Delta> {
    arm.tasks.iter().find(|delta| delta.label == task && delta.bin == Some(bin))
}

fn row(comparison: &Comparison, task: &str, bin: Bin) -> Option<Value> {
    let baseline = comparison.baseline.cells.iter().find(|cell| cell.task == task && cell.bin == bin)?;
    let arms: Vec<Value> = comparison
        .candidates
        .iter()
        .map(|arm| match find(arm, task, bin) {
            None => fields! { delta => figures::UNKNOWN, flips => "", graded => "", not_scored => 0, is_low => false },
            Some(delta) => fields! {
                delta => figures::points(delta.delta),
                flips => format!("{} / {}", delta.regressions, delta.fixes),
                graded => graded(delta),
                not_scored => delta.not_scored(),
                is_low => delta.interval.is_some_and(|(_, high)| high < 0.0),
            },
        })
        .collect();
    Some(fields! {
        task => task,
        n => figures::count(baseline.n),
        share => figures::percent(figures::share(baseline.right, baseline.n)),
        wilson => figures::interval_percent(baseline.wilson),
        not_valid => baseline.not_valid,
        arms => arms,
    })
}

/// The graded means where they say more than right and wrong.
fn graded(delta: &Delta) -> String {
    match (delta.baseline_mean, delta.candidate_mean) {
        (Some(before), Some(after)) if delta.pairs > 0 => {
            let right = |count: u64| count as f64 / delta.pairs as f64;
            let says_more = (before - right(delta.baseline_right)).abs() > 5e-4
                || (after - right(delta.candidate_right)).abs() > 5e-4;
            if says_more { format!("score {before:.3} → {after:.3}") } else { String::new() }
        }
        _ => String::new(),
    }
}
