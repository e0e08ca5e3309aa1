//! The judged cells: bin × task group, one family over all arms.

use std::collections::BTreeMap;

use crate::compare::{ArmComparison, Comparison, Delta, PairedTest};
use crate::gate::{CellVerdict, Ruling, policy, replicas};
use crate::sample::Bin;
use crate::stats::{
    adjust::holm,
    sample_size::{exclude_drop, exclude_drop_without_change},
};
use crate::suite::{GatePolicy, TaskGroup};
use crate::units::{format_percent, format_points};

/// Probability of a PASS, if nothing changed, for which `pairs_needed` is meant.
const PLANNED_POWER: f64 = 0.80;

/// Level of the one-sided limit that a PASS rests on (`Delta::drop_upper`).
const LIMIT_ALPHA: f64 = 0.05;

/// Censored pairs can hide a drop as large as their share: at a tenth already twice the usual margin of 5 points.
const MOST_CENSORED: f64 = 0.10;

/// Verdicts per candidate, in the comparison's order; bins ascending, then groups.
pub(super) fn judge_cells(comparison: &Comparison, policy: &GatePolicy) -> Vec<Vec<CellVerdict>> {
    let deltas: Vec<Vec<(TaskGroup, Bin, Delta)>> =
        comparison.candidates.iter().map(|arm| cells_of(arm, policy)).collect();
    let adjusted = adjusted_p(policy, &deltas, &replicas::originals(comparison));
    deltas
        .into_iter()
        .enumerate()
        .map(|(arm, cells)| {
            cells
                .into_iter()
                .enumerate()
                .map(|(cell, (group, bin, delta))| {
                    judge_cell(policy, group, bin, delta, adjusted.get(&(arm, cell)).copied())
                })
                .collect()
        })
        .collect()
}

/// The arm's cells and those that the policy names although nothing was measured in them.
fn cells_of(arm: &ArmComparison, policy: &GatePolicy) -> Vec<(TaskGroup, Bin, Delta)> {
    let mut cells: BTreeMap<(Bin, TaskGroup), Delta> = policy::named_cells(policy)
        .into_iter()
        .map(|(bin, group)| ((bin, group), Delta::empty(group.name(), Some(bin))))
        .collect();
    for cell in &arm.groups {
        if let Some(bin) = cell.delta.bin {
            cells.insert((bin, cell.group), cell.delta.clone());
        }
    }
    cells.into_iter().map(|((bin, group), delta)| (group, bin, delta)).collect()
}

/// Holm over every judged cell of the run. An arm that repeats another one (see [`replicas`]) adds no test, only another name
/// for its results, so it has the values of the original. Cells that are shown only do not make it harder for the others: they get the
/// value they would have in the family with everything.
fn adjusted_p(
    policy: &GatePolicy,
    deltas: &[Vec<(TaskGroup, Bin, Delta)>],
    originals: &[usize],
) -> BTreeMap<(usize, usize), f64> {
    let mut judged: Vec<((usize, usize), f64, bool)> = Vec::new();
    for (arm, cells) in deltas.iter().enumerate().filter(|(arm, _)| originals[*arm] == *arm) {
        for (cell, (group, bin, delta)) in cells.iter().enumerate() {
            if let (Some(p), true) = (delta.p_worse, obstacles(policy, delta).is_empty()) {
                judged.push(((arm, cell), p, policy::of_cell(policy, *group, *bin).required));
            }
        }
    }
    let adjust = |family: Vec<((usize, usize), f64)>| {
        let p_values: Vec<f64> = family.iter().map(|(_, p)| *p).collect();
        family.into_iter().map(|(place, _)| place).zip(holm(&p_values)).collect::<BTreeMap<_, _>>()
    };
    let mut adjusted = adjust(judged.iter().map(|(place, p, _)| (*place, *p)).collect());
    adjusted.extend(adjust(judged.iter().filter(|(_, _, required)| *required).map(|it| (it.0, it.1)).collect()));
    for (arm, original) in originals.iter().enumerate().filter(|(arm, original)| arm != *original) {
        for cell in 0..deltas[arm].len() {
            if let Some(p) = adjusted.get(&(*original, cell)).copied() {
                adjusted.insert((arm, cell), p);
            }
        }
    }
    adjusted
}

/// Why a cell cannot be judged at all; empty when it can.
fn obstacles(policy: &GatePolicy, delta: &Delta) -> Vec<String> {
    if delta.items == 0 {
        return vec!["MISSING: nothing was compared here".into()];
    }
    let mut reasons = Vec::new();
    if delta.pairs < u64::from(policy.min_pairs) {
        let pairs = counted(delta.pairs, "pair");
        reasons.push(format!("{pairs}, at least {} are needed to judge", policy.min_pairs));
    }
    if delta.test == PairedTest::ClusterSignFlip && delta.haystacks < u64::from(policy.min_haystacks) {
        let haystacks = counted(delta.haystacks, "haystack");
        reasons.push(format!("{haystacks}, at least {} are needed to judge", policy.min_haystacks));
    }
    reasons
}

/// Why a cell cannot PASS, whatever its interval. A proven drop is a drop all the same.
fn obstacles_to_pass(policy: &GatePolicy, margin: f64, delta: &Delta) -> Vec<String> {
    let mut reasons = Vec::new();
    let answered = delta.pairs + delta.censored;
    if delta.censored as f64 > MOST_CENSORED * answered as f64 {
        reasons.push(format!("{}; at most {} may be for a PASS", censored(delta), format_percent(MOST_CENSORED)));
    }
    let valid = delta.items - delta.broken;
    if (valid as f64) < policy.min_valid_share * delta.items as f64 {
        reasons.push(format!(
            "{} of the items are valid on both arms ({} of {} are errors, invalid or missing), {} are required for a PASS",
            format_percent(valid as f64 / delta.items as f64),
            delta.broken,
            delta.items,
            format_percent(policy.min_valid_share)
        ));
    }
    if delta.items > 0 && !has_power(policy, delta) {
        // Only where losing every right answer would still be a drop within the margin.
        let right = delta.baseline_answered.share().unwrap_or(0.0);
        let why = if right < margin { ": it has too little to lose to show damage" } else { "" };
        reasons.push(format!(
            "baseline accuracy {} is below the {} that a PASS takes{why}",
            format_percent(right),
            format_percent(policy.baseline_floor)
        ));
    }
    reasons
}

/// Whether the baseline is good enough for a PASS to mean something. Over all its answers: those that ran into the output limit
/// are not right, and leaving them out would lift any baseline over the floor.
fn has_power(policy: &GatePolicy, delta: &Delta) -> bool {
    let answered = delta.baseline_answered;
    answered.items > 0 && answered.right as f64 >= policy.baseline_floor * answered.items as f64
}

fn censored(delta: &Delta) -> String {
    format!(
        "{} of {} not scored, because both answers ran into the output limit",
        delta.censored,
        counted(delta.pairs + delta.censored, "pair")
    )
}

fn judge_cell(policy: &GatePolicy, group: TaskGroup, bin: Bin, delta: Delta, adjusted_p: Option<f64>) -> CellVerdict {
    let rules = policy::of_cell(policy, group, bin);
    let drop = delta.delta.map(|delta| -delta);
    let beyond_margin = drop.is_some_and(|drop| drop >= rules.margin);
    let (unjudged, unpassable) = (obstacles(policy, &delta), obstacles_to_pass(policy, rules.margin, &delta));
    let is_proven = adjusted_p.is_some_and(|p| p < policy.alpha) && drop.is_some_and(|drop| drop >= rules.min_effect);
    let mut reasons = Vec::new();
    let ruling = if unjudged.is_empty() && is_proven {
        let least = points(rules.min_effect);
        reasons.push(format!("the drop is significant and not below the smallest that counts ({least} points)"));
        Ruling::Regressed
    } else if unjudged.is_empty() && unpassable.is_empty() && delta.drop_upper.is_some_and(|it| it < rules.margin) {
        Ruling::Pass
    } else {
        let is_open = unjudged.is_empty() && unpassable.is_empty();
        reasons.extend(unjudged.iter().chain(&unpassable).cloned());
        if is_open {
            reasons.push(format!(
                "a drop of up to {} points cannot be excluded; the margin is {}",
                points(delta.drop_upper.unwrap_or(1.0)),
                points(rules.margin)
            ));
        }
        if beyond_margin {
            let why = "the observed drop is not below the margin: more pairs would sooner prove it than excuse it";
            reasons.push(why.into());
        }
        Ruling::Inconclusive
    };
    let more_would_help = ruling == Ruling::Inconclusive && !beyond_margin && unpassable.is_empty();
    let pairs_needed = more_would_help.then(|| pairs_needed(policy, rules.margin, &delta)).flatten();
    if delta.censored > 0 && !reasons.iter().any(|reason| reason.contains("output limit")) {
        reasons.push(censored(&delta));
    }
    if !rules.required {
        reasons.push("shown only: not required by the policy".into());
    }
    let has_power = has_power(policy, &delta);
    CellVerdict { group, bin, ruling, adjusted_p, delta, has_power, pairs_needed, reasons }
}

/// `1 pair`, `2 pairs`.
fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Pairs for a PASS with [`PLANNED_POWER`] if there is no true drop, at the observed flip rate; never fewer than without any
/// flip. Where that many pairs were asked already, the observed drop is taken for true.
fn pairs_needed(policy: &GatePolicy, margin: f64, delta: &Delta) -> Option<u64> {
    let least = exclude_drop_without_change(margin, LIMIT_ALPHA)?.max(u64::from(policy.min_pairs));
    if delta.pairs == 0 {
        return Some(least);
    }
    // Pairs that share haystacks say less, by their mean number per haystack in the worst case.
    let share = delta.pairs as f64 / delta.haystacks.max(1) as f64;
    let inflate = |pairs: u64| (pairs as f64 * share).ceil() as u64;
    let psi = (delta.regressions + delta.fixes) as f64 / delta.pairs as f64;
    let without_drop = inflate(exclude_drop(psi, 0.0, margin, LIMIT_ALPHA, PLANNED_POWER)?.max(least));
    if without_drop > delta.pairs {
        return Some(without_drop);
    }
    let drop = delta.delta.map_or(0.0, |delta| (-delta).max(0.0));
    let with_drop = inflate(exclude_drop(psi, drop, margin, LIMIT_ALPHA, PLANNED_POWER)?);
    // At least one more: what is there was not enough.
    Some(with_drop.max(delta.pairs + 1))
}

/// Points without a sign: `5.0`.
fn points(share: f64) -> String {
    format_points(share).trim_start_matches('+').to_owned()
}
