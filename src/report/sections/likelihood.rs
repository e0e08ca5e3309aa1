//! How much less likely the right answer became, and how far the distributions of its tokens are from the baseline's, beside
//! the noise of the A/A arm. Shown, never judged.

use minijinja::value::Value;

use crate::compare::{ArmComparison, Divergence, NllDelta};
use crate::report::page::Page;
use crate::report::{ReportError, fields, figures};
use crate::sample::Bin;
use crate::suite::TaskGroup;

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
    let divergence: Vec<Value> = comparison.bins.iter().filter_map(|bin| divergence_of(&arms, *bin)).collect();
    Ok((!bins.is_empty() || !divergence.is_empty()).then_some(fields! {
        arms => names, bins => bins, baseline => comparison.baseline.arm.name, has_control => comparison.control.is_some(),
        divergence => divergence,
    }))
}

/// One row per arm of the bin, all tasks together.
fn divergence_of(arms: &[&ArmComparison], bin: Bin) -> Option<Value> {
    let rows: Vec<Value> = arms
        .iter()
        .filter_map(|arm| {
            let row = arm.divergence.iter().find(|row| row.bin == bin && row.task.is_none())?;
            Some(divergence_row(&arm.summary.arm.name, row))
        })
        .collect();
    (!rows.is_empty()).then(|| fields! { bin => bin.to_string(), rows => rows })
}

fn divergence_row(arm: &str, row: &Divergence) -> Value {
    fields! {
        arm => arm,
        pairs => figures::count(row.pairs),
        positions => figures::count(row.positions),
        mean => figures::nats(row.kld_mean),
        p99 => figures::nats(row.kld_p99),
        max => figures::nats(row.kld_max),
        agreement => figures::percent(Some(row.top1_agreement)),
        nll => row.nll_delta.map_or_else(|| figures::UNKNOWN.into(), |delta| figures::signed(delta, 4)),
    }
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
                text => difference(nll),
                is_high => nll.interval.is_some_and(|(low, _)| low > 0.0),
            },
        })
        .collect();
    Some(fields! { group => group.name(), baseline => format!("{baseline:.4}"), cells => cells })
}

/// `+0.0123 ± 0.0061`; the difference alone where one haystack or one pair allows no interval.
fn difference(nll: &NllDelta) -> String {
    let delta = figures::signed(nll.delta, 4);
    match nll.interval {
        Some((low, high)) => format!("{delta} ± {:.4}", (high - low) / 2.0),
        None => delta,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_without_an_interval_stands_alone() {
        let mut nll = NllDelta { pairs: 5, baseline: 0.2, delta: 0.0123, interval: Some((0.0062, 0.0184)) };
        assert_eq!(difference(&nll), "+0.0123 ± 0.0061");
        nll.interval = None;
        assert_eq!(difference(&nll), "+0.0123");
    }
}
