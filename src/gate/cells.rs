//! The judged cells: bin × task group, one family over all arms.

use std::collections::BTreeMap;

use crate::compare::{ArmComparison, Comparison, Delta, PairedTest};
use crate::gate::{
    CellVerdict, Ruling,
    policy::{self, CellRules},
    replicas,
};
use crate::sample::Bin;
use crate::stats::{
    adjust::holm,
    sample_size::{exclude_drop, exclude_drop_without_change},
};
use crate::suite::{GatePolicy, TaskGroup, Tier};
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
            let rules = policy::of_cell(policy, *group, *bin);
            if let (Some(p), true) = (delta.p_worse, obstacles(&rules, delta).is_empty()) {
                judged.push(((arm, cell), p, rules.is_judged()));
            }
        }
    }
    let adjust = |family: Vec<((usize, usize), f64)>| {
        let p_values: Vec<f64> = family.iter().map(|(_, p)| *p).collect();
        family.into_iter().map(|(place, _)| place).zip(holm(&p_values)).collect::<BTreeMap<_, _>>()
    };
    let mut adjusted = adjust(judged.iter().map(|(place, p, _)| (*place, *p)).collect());
    adjusted.extend(adjust(judged.iter().filter(|(_, _, is_judged)| *is_judged).map(|it| (it.0, it.1)).collect()));
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
pub(super) fn obstacles(rules: &CellRules, delta: &Delta) -> Vec<String> {
    if delta.items == 0 {
        return vec!["MISSING: nothing was compared here".into()];
    }
    let mut reasons = Vec::new();
    if delta.pairs < u64::from(rules.min_pairs) {
        let pairs = counted(delta.pairs, "pair");
        reasons.push(format!("{pairs}, at least {} are needed to judge", rules.min_pairs));
    }
    if delta.test == PairedTest::ClusterSignFlip && delta.haystacks < u64::from(rules.min_haystacks) {
        let haystacks = counted(delta.haystacks, "haystack");
        reasons.push(format!("{haystacks}, at least {} are needed to judge", rules.min_haystacks));
    }
    reasons
}

/// Why a cell cannot PASS, whatever its interval. A proven drop is a drop all the same.
fn obstacles_to_pass(rules: &CellRules, delta: &Delta) -> Vec<String> {
    let mut reasons = Vec::new();
    let answered = delta.pairs + delta.censored;
    if delta.censored as f64 > MOST_CENSORED * answered as f64 {
        reasons.push(format!("{}; at most {} may be for a PASS", censored(delta), format_percent(MOST_CENSORED)));
    }
    let valid = delta.items - delta.broken;
    if (valid as f64) < rules.min_valid_share * delta.items as f64 {
        reasons.push(format!(
            "{} of the items are valid on both arms ({} of {} are errors, invalid or missing), {} are required for a PASS",
            format_percent(valid as f64 / delta.items as f64),
            delta.broken,
            delta.items,
            format_percent(rules.min_valid_share)
        ));
    }
    if delta.items > 0 && !has_power(rules, delta) {
        // Only where losing every right answer would still be a drop within the margin.
        let right = delta.baseline_answered.share().unwrap_or(0.0);
        let why = if right < rules.margin { ": it has too little to lose to show damage" } else { "" };
        reasons.push(format!(
            "baseline accuracy {} is below the {} that a PASS takes{why}",
            format_percent(right),
            format_percent(rules.baseline_floor)
        ));
    }
    reasons
}

/// Whether the baseline is good enough for a PASS to mean something. Over all its answers: those that ran into the output limit
/// are not right, and leaving them out would lift any baseline over the floor.
fn has_power(rules: &CellRules, delta: &Delta) -> bool {
    let answered = delta.baseline_answered;
    answered.items > 0 && answered.right as f64 >= rules.baseline_floor * answered.items as f64
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
    let (unjudged, unpassable) = (obstacles(&rules, &delta), obstacles_to_pass(&rules, &delta));
    let is_significant = unjudged.is_empty() && adjusted_p.is_some_and(|p| p < policy.alpha);
    let mut reasons = Vec::new();
    let ruling = if let Some(why) = proven_drop(&rules, &delta).filter(|_| is_significant) {
        reasons.push(why);
        Ruling::Regressed
    } else if unjudged.is_empty() && unpassable.is_empty() && is_excluded(&rules, &delta) {
        Ruling::Pass
    } else {
        let is_open = unjudged.is_empty() && unpassable.is_empty();
        reasons.extend(unjudged.iter().chain(&unpassable).cloned());
        if is_open {
            reasons.push(not_excluded(&rules, &delta));
        }
        if beyond_margin {
            let why = "the observed drop is not below the margin: more pairs would sooner prove it than excuse it";
            reasons.push(why.into());
        }
        if delta.items == 0 && rules.needs_data { Ruling::Invalid } else { Ruling::Inconclusive }
    };
    let more_would_help = ruling == Ruling::Inconclusive && !beyond_margin && unpassable.is_empty();
    let pairs_needed = more_would_help.then(|| pairs_needed(&rules, &delta)).flatten();
    if delta.censored > 0 && !reasons.iter().any(|reason| reason.contains("output limit")) {
        reasons.push(censored(&delta));
    }
    reasons.extend(tier_in_words(rules.tier).map(String::from));
    let has_power = has_power(&rules, &delta);
    CellVerdict {
        group,
        bin,
        tier: rules.tier,
        ruling,
        adjusted_p,
        delta,
        has_power,
        pairs_needed,
        confirmation: None,
        reasons,
    }
}

/// Why a significant drop counts: it is large enough in points, or where the relative guard holds in percent of the baseline.
pub(super) fn proven_drop(rules: &CellRules, delta: &Delta) -> Option<String> {
    let drop = -delta.delta?;
    if drop >= rules.min_effect {
        let least = points(rules.min_effect);
        return Some(format!("the drop is significant and not below the smallest that counts ({least} points)"));
    }
    let limit = rules.relative_limit(delta.baseline_right, delta.pairs)?;
    let lost = relative(drop, delta)?;
    (lost >= limit).then(|| {
        format!(
            "the drop is significant and {} of what the baseline has right; below {} accuracy {} is the limit",
            format_percent(lost),
            format_percent(rules.relative_guard_below),
            format_percent(limit)
        )
    })
}

/// Whether the upper limit of the drop is below the margin, and the relative one below its limit where it holds.
fn is_excluded(rules: &CellRules, delta: &Delta) -> bool {
    let Some(upper) = delta.drop_upper else { return false };
    let limit = rules.relative_limit(delta.baseline_right, delta.pairs);
    upper < rules.margin && limit.is_none_or(|limit| relative(upper, delta).is_some_and(|lost| lost < limit))
}

fn not_excluded(rules: &CellRules, delta: &Delta) -> String {
    let upper = delta.drop_upper.unwrap_or(1.0);
    if upper < rules.margin {
        let lost = relative(upper, delta).map_or_else(|| "everything".into(), |lost| format_percent(lost.min(1.0)));
        let limit = rules.max_relative_drop.unwrap_or(1.0);
        return format!(
            "a loss of {lost} of what the baseline has right cannot be excluded; the limit is {}",
            format_percent(limit)
        );
    }
    format!("a drop of up to {} points cannot be excluded; the margin is {}", points(upper), points(rules.margin))
}

/// A drop as a share of what the baseline has right; `None` where that is nothing.
fn relative(drop: f64, delta: &Delta) -> Option<f64> {
    let right = delta.baseline_right as f64 / delta.pairs.max(1) as f64;
    (right > 0.0).then(|| drop / right)
}

fn tier_in_words(tier: Tier) -> Option<&'static str> {
    match tier {
        Tier::Critical => None,
        Tier::Supporting => Some("supporting: a regression here keeps the run from passing and does not fail it"),
        Tier::Advisory => Some("shown only: advisory by the policy"),
    }
}

/// `1 pair`, `2 pairs`.
fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Pairs for a PASS with [`PLANNED_POWER`] if there is no true drop, at the observed flip rate; never fewer than without any
/// flip. Where that many pairs were asked already, the observed drop is taken for true.
fn pairs_needed(rules: &CellRules, delta: &Delta) -> Option<u64> {
    // Where the relative guard holds, its limit is a drop in points, too.
    let right = delta.baseline_right as f64 / delta.pairs.max(1) as f64;
    let relative = rules.relative_limit(delta.baseline_right, delta.pairs).map(|limit| limit * right);
    let margin = relative.map_or(rules.margin, |relative| relative.min(rules.margin));
    let least = exclude_drop_without_change(margin, LIMIT_ALPHA)?.max(u64::from(rules.min_pairs));
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
