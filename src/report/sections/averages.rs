//! What the average hides: the pooled mean beside the bins, the worst cells, and symptoms per bin.

use minijinja::value::Value;

use crate::compare::{ArmComparison, Comparison, MAX_WORST_CELLS, WorstCell};
use crate::gate::ArmVerdict;
use crate::report::ink;
use crate::report::page::Page;
use crate::report::plot::{self, Stack};
use crate::report::{ReportError, fields, figures};
use crate::sample::{Bin, FindingKind};

pub(crate) fn view(page: &Page) -> Result<Option<Value>, ReportError> {
    let comparison = page.input.comparison;
    let judged = comparison.candidates.iter().zip(&page.input.verdict.arms);
    let arms: Vec<Value> = judged.map(|(arm, verdict)| arm_row(arm, &comparison.bins, &verdict.findings)).collect();
    Ok((!arms.is_empty()).then_some(fields! {
        bins => comparison.bins.iter().map(ToString::to_string).collect::<Vec<_>>(),
        arms => arms,
        curves => comparison.candidates.iter().filter_map(|arm| curve_row(arm, &comparison.bins)).collect::<Vec<_>>(),
        worst => worst_cells(comparison),
        legend => legend(comparison),
        charts => charts(page)?,
        symptoms => symptom_rows(comparison, &page.input.verdict.arms),
    }))
}

/// Difference of one bin with all its groups together.
fn bin_delta(arm: &ArmComparison, bin: Bin) -> Option<f64> {
    let cells = || arm.groups.iter().filter(|cell| cell.delta.bin == Some(bin)).map(|cell| &cell.delta);
    let pairs: u64 = cells().map(|delta| delta.pairs).sum();
    let net: f64 = cells().map(|delta| delta.candidate_right as f64 - delta.baseline_right as f64).sum();
    (pairs > 0).then(|| net / pairs as f64)
}

fn arm_row(arm: &ArmComparison, bins: &[Bin], findings: &[String]) -> Value {
    let deltas: Vec<Option<f64>> = bins.iter().map(|bin| bin_delta(arm, *bin)).collect();
    let known = bins.iter().zip(&deltas).filter_map(|(bin, delta)| delta.map(|delta| (*bin, delta)));
    let worst = known.min_by(|(_, a), (_, b)| a.total_cmp(b));
    let pooled = arm.pooled.as_ref().and_then(|pooled| pooled.delta);
    let sentence = match (pooled, worst) {
        (Some(pooled), Some((_, delta))) if delta >= 0.0 => {
            format!("the mean over all lengths moves by {} points, and no bin falls", figures::points(Some(pooled)))
        }
        (Some(pooled), Some((bin, delta))) => format!(
            "the mean over all lengths moves by {} points, the bin {bin} alone by {}",
            figures::points(Some(pooled)),
            figures::points(Some(delta))
        ),
        _ => "too little was measured to say".into(),
    };
    let cells: Vec<Value> = bins
        .iter()
        .zip(&deltas)
        .map(|(bin, delta)| {
            let is_worst = worst.is_some_and(|(worst, delta)| worst == *bin && delta < 0.0);
            fields! { text => figures::points(*delta), is_worst => is_worst }
        })
        .collect();
    fields! {
        name => arm.summary.arm.name,
        sentence => sentence,
        findings => findings,
        pooled => figures::points(pooled),
        cells => cells,
        slope => arm.slope.as_ref().map_or_else(
            || figures::UNKNOWN.to_owned(),
            |slope| format!("{} (p {})", figures::points(Some(slope.per_doubling)), figures::p_value(Some(slope.p_falling))),
        ),
        same_sign => arm.same_sign.as_ref().map_or_else(
            || figures::UNKNOWN.to_owned(),
            |sign| format!("{} / {} (p {})", sign.negative, sign.positive, figures::p_value(Some(sign.p_pooled))),
        ),
    }
}

/// The largest drops of single task × bin × depth cells over all candidates.
fn worst_cells(comparison: &Comparison) -> Vec<Value> {
    let of_arm = |arm: &'_ ArmComparison| {
        arm.worst_cells.iter().map(|cell| (arm.summary.arm.name.clone(), cell.clone())).collect::<Vec<_>>()
    };
    let mut drops: Vec<(String, WorstCell)> = comparison.candidates.iter().flat_map(of_arm).collect();
    // Stable: equal drops stay in the order of the arms.
    drops.sort_by(|(_, a), (_, b)| a.delta().total_cmp(&b.delta()));
    drops.truncate(MAX_WORST_CELLS);
    let share = |right: u64, cell: &WorstCell| figures::percent(figures::share(right, cell.pairs));
    drops
        .into_iter()
        .map(|(arm, cell)| {
            fields! {
                arm => arm,
                bin => cell.bin.to_string(),
                task => cell.task,
                depth => format!("{} %", cell.slot_percent),
                n => figures::count(cell.pairs),
                baseline => share(cell.baseline_right, &cell),
                candidate => share(cell.candidate_right, &cell),
                delta => figures::points(Some(cell.delta())),
            }
        })
        .collect()
}

/// Recovery of every bin and of the area, per arm.
fn curve_row(arm: &ArmComparison, bins: &[Bin]) -> Option<Value> {
    let curve = arm.curve.as_ref()?;
    let of_bin = |bin: &Bin| {
        let point = curve.points.iter().find(|point| point.bin == *bin);
        figures::percent(point.and_then(|point| point.recovery))
    };
    let low =
        curve.points.iter().filter_map(|point| Some((point.recovery?, point.bin))).min_by(|a, b| a.0.total_cmp(&b.0));
    let sentence = match (curve.recovery, low) {
        (Some(area), Some((least, bin))) => format!(
            "the area under accuracy over length recovers {} of the baseline's, the bin {bin} {}",
            figures::percent(Some(area)),
            figures::percent(Some(least))
        ),
        _ => "the baseline has nothing right that could be recovered".into(),
    };
    Some(fields! {
        name => arm.summary.arm.name,
        cells => bins.iter().map(of_bin).collect::<Vec<_>>(),
        baseline => figures::percent(Some(curve.baseline_area)),
        candidate => figures::percent(Some(curve.candidate_area)),
        recovery => figures::percent(curve.recovery),
        sentence => sentence,
    })
}

/// Symptoms that were seen at all, in order of precedence.
fn seen(comparison: &Comparison) -> Vec<(usize, FindingKind)> {
    let any = |kind: FindingKind| {
        let rates = comparison.candidates.iter().flat_map(|arm| &arm.symptoms);
        rates.filter(|rate| rate.kind == kind).any(|rate| rate.baseline + rate.candidate > 0)
    };
    FindingKind::ALL.into_iter().enumerate().filter(|(_, kind)| any(*kind)).collect()
}

fn legend(comparison: &Comparison) -> Vec<Value> {
    let entry =
        |(index, kind): (usize, FindingKind)| fields! { name => kind.name(), ink => ink::symptom(index).themed() };
    seen(comparison).into_iter().map(entry).collect()
}

/// Which side of the pairs a chart shows.
#[derive(Clone, Copy)]
enum Side {
    Baseline,
    Candidate,
}

fn stacks(arm: &ArmComparison, bins: &[Bin], kinds: &[(usize, FindingKind)], side: Side) -> Vec<Stack> {
    let rate = |bin: Bin, kind: FindingKind| {
        let found = arm.symptoms.iter().find(|rate| rate.bin == bin && rate.kind == kind);
        let share = found.and_then(|rate| match side {
            Side::Baseline => figures::share(rate.baseline, rate.pairs),
            Side::Candidate => figures::share(rate.candidate, rate.pairs),
        });
        share.unwrap_or(0.0)
    };
    bins.iter()
        .map(|bin| kinds.iter().map(|(index, kind)| (ink::symptom(*index), rate(*bin, *kind))).collect())
        .collect()
}

fn charts(page: &Page) -> Result<Vec<Value>, ReportError> {
    let comparison = page.input.comparison;
    let kinds = seen(comparison);
    let Some(first) = comparison.candidates.first().filter(|_| !kinds.is_empty()) else {
        return Ok(Vec::new());
    };
    let bins = &comparison.bins;
    let mut sides = vec![(comparison.baseline.arm.name.as_str(), stacks(first, bins, &kinds, Side::Baseline))];
    for arm in &comparison.candidates {
        sides.push((arm.summary.arm.name.as_str(), stacks(arm, bins, &kinds, Side::Candidate)));
    }
    let height = |stack: &Stack| stack.iter().map(|(_, share)| share).sum::<f64>();
    let tallest = sides.iter().flat_map(|(_, stacks)| stacks).map(height).fold(0.0, f64::max);
    let top = axis_top(tallest);
    let labels: Vec<String> = bins.iter().map(ToString::to_string).collect();
    let chart = |(index, (name, stacks)): (usize, (&str, Vec<Stack>))| -> Result<Value, ReportError> {
        let heights = labels
            .iter()
            .zip(&stacks)
            .map(|(label, stack)| format!("{label} {}", figures::percent(Some(height(stack)))));
        let plot = page.embed(
            "plot",
            fields! {
                id => format!("symptoms-{index}"),
                title => format!("{name}: symptoms per 100 answers, stacked, per bin"),
                description => heights.collect::<Vec<_>>().join("; "),
                view_box => plot::bars_view_box(),
                inside => Value::from_safe_string(plot::stacked_bars(&labels, &stacks, top)?),
            },
        )?;
        Ok(fields! { name => name, plot => plot })
    };
    sides.into_iter().enumerate().map(chart).collect()
}

/// The next round share that four steps divide into whole percents.
fn axis_top(tallest: f64) -> f64 {
    [0.04, 0.08, 0.12, 0.2, 0.4, 0.6, 0.8, 1.0]
        .into_iter()
        .find(|top| tallest <= *top)
        .unwrap_or_else(|| tallest.ceil())
}

fn symptom_rows(comparison: &Comparison, verdicts: &[ArmVerdict]) -> Vec<Value> {
    let mut rows = Vec::new();
    for (arm, verdict) in comparison.candidates.iter().zip(verdicts) {
        for rate in arm.symptoms.iter().filter(|rate| rate.baseline + rate.candidate > 0) {
            let judged = verdict
                .symptoms
                .iter()
                .find(|judged| judged.symptom.kind == rate.kind && judged.symptom.bin == rate.bin);
            rows.push(fields! {
                arm => arm.summary.arm.name,
                bin => rate.bin.to_string(),
                kind => rate.kind.name(),
                pairs => figures::count(rate.pairs),
                baseline => figures::count(rate.baseline),
                candidate => figures::count(rate.candidate),
                changed => format!("{} / {}", rate.appeared, rate.vanished),
                p => figures::p_value(Some(judged.map_or(rate.p_rise, |judged| judged.adjusted_p))),
                p_by_haystack => figures::p_value(Some(rate.p_rise_by_haystack)),
                is_adjusted => judged.is_some(),
                regressed => judged.is_some_and(|judged| judged.regressed),
            });
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_holds_the_tallest_stack() {
        assert_eq!(axis_top(0.0), 0.04);
        assert_eq!(axis_top(0.21), 0.4);
        assert_eq!(axis_top(1.4), 2.0);
    }
}
