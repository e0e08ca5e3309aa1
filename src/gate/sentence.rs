//! Verdicts in plain words.

use std::collections::BTreeMap;

use crate::compare::{ArmComparison, Comparison, FlipDirection};
use crate::gate::{ArmVerdict, CellVerdict, Ruling, SymptomVerdict, policy};
use crate::suite::{GatePolicy, TaskGroup, Tier};
use crate::units::{format_percent, format_points};

/// One sentence over all arms.
pub(super) fn of_run(comparison: &Comparison, policy: &GatePolicy, ruling: Ruling, arms: &[ArmVerdict]) -> String {
    if arms.is_empty() {
        return "Nothing was compared: there is no candidate.".into();
    }
    let noise = noise(comparison);
    let of_ruling: Vec<&ArmVerdict> = arms.iter().filter(|arm| arm.ruling == ruling).collect();
    let count = if of_ruling.len() == arms.len() && arms.len() > 1 {
        format!("All {} arms", arms.len())
    } else {
        format!("{} of {} {}", of_ruling.len(), arms.len(), plural(arms.len(), "arm"))
    };
    let Some(worst) = of_ruling.iter().copied().min_by(|left, right| severity(left).total_cmp(&severity(right))) else {
        return noise;
    };
    let all_open = if ruling == Ruling::Inconclusive { all_inconclusive(policy, arms) } else { None };
    // Whose own sentence is told; what is found of the others is told after it.
    let told = if all_open.is_some() { None } else { Some(worst.arm.as_str()) };
    let lead = all_open.unwrap_or_else(|| {
        let word = match ruling {
            Ruling::Regressed => "regressed",
            Ruling::Invalid => "could not be measured",
            Ruling::Inconclusive => "inconclusive",
            Ruling::Pass => "passed",
        };
        format!("{count} {word}; {}", worst.sentence)
    });
    let found = arms.iter().filter(|arm| Some(arm.arm.as_str()) != told).flat_map(|arm| {
        let name = &arm.arm;
        arm.findings.iter().map(move |finding| format!(" {name}: {finding}."))
    });
    let found: String = found.collect();
    format!("{lead}{found}{noise}")
}

/// The A/A flip rate, where one was measured: of the control, else of a cache that ran under two names.
fn noise(comparison: &Comparison) -> String {
    let told = |whose: &str, flips: u64, pairs: u64| {
        let rate = format_percent(flips as f64 / pairs as f64);
        format!(" A/A flip rate{whose}: {rate} ({flips} of {pairs} pairs).")
    };
    let pooled = comparison.control.as_ref().and_then(|control| control.pooled.as_ref()).filter(|it| it.pairs > 0);
    if let Some(pooled) = pooled {
        return told("", pooled.regressions + pooled.fixes, pooled.pairs);
    }
    comparison.repeats.iter().find(|repeat| repeat.pairs > 0).map_or_else(String::new, |repeat| {
        let whose = format!(" of {} against {}", repeat.second, repeat.first);
        told(&whose, repeat.regressions + repeat.fixes, repeat.pairs)
    })
}

/// The less the worse: the largest drop decides which arm is told of.
fn severity(arm: &ArmVerdict) -> f64 {
    let of_ruling = arm.cells.iter().filter(|cell| cell.ruling == arm.ruling);
    of_ruling.filter_map(|cell| cell.delta.delta).fold(0.0, f64::min)
}

fn all_inconclusive(policy: &GatePolicy, arms: &[ArmVerdict]) -> Option<String> {
    let required: Vec<&CellVerdict> = arms.iter().flat_map(judged_cells).collect();
    let all = !required.is_empty() && required.iter().all(|cell| cell.ruling == Ruling::Inconclusive);
    let needed = required.iter().filter_map(|cell| cell.pairs_needed).max().filter(|_| all)?;
    let most = required.iter().map(|cell| cell.delta.pairs).max().unwrap_or(0);
    // Neither a larger drop than the margin nor too few pairs: a low baseline, lost items or the output limit.
    let is_stuck = |cell: &&&CellVerdict| {
        let margin = policy::of_cell(policy, cell.group, cell.bin).margin;
        cell.pairs_needed.is_none() && cell.delta.delta.is_none_or(|delta| -delta < margin)
    };
    let stuck = match required.iter().filter(is_stuck).count() {
        0 => String::new(),
        stuck => format!("; in {stuck} of them more pairs alone would not do"),
    };
    let suspicion = worst_suspicion(policy, arms).unwrap_or_else(|| "no regression was found".into());
    Some(format!(
        "Inconclusive: {suspicion}, but none of the {} cells has enough evidence for a PASS; that would take about {needed} \
         pairs per cell (at most {most} were measured){stuck}.",
        required.len()
    ))
}

/// The largest drop that is beyond its margin without being proven. "No regression was found" would hide it.
fn worst_suspicion(policy: &GatePolicy, arms: &[ArmVerdict]) -> Option<String> {
    let drop = |cell: &CellVerdict| cell.delta.delta.map_or(0.0, |delta| -delta);
    let suspects = arms.iter().flat_map(|arm| judged_cells(arm).map(move |cell| (arm, cell)));
    let (arm, cell) = suspects
        .filter(|(_, cell)| drop(cell) >= policy::of_cell(policy, cell.group, cell.bin).margin)
        .reduce(|worst, next| if drop(next.1) > drop(worst.1) { next } else { worst })?;
    Some(format!(
        "no regression is proven although {} {} fell from {} in {} pairs",
        arm.arm,
        place(cell),
        shares(cell),
        cell.delta.pairs
    ))
}

fn judged_cells(arm: &ArmVerdict) -> impl Iterator<Item = &CellVerdict> {
    arm.cells.iter().filter(|cell| cell.tier != Tier::Advisory)
}

/// What a cell without data is said to be.
pub(super) fn missing(cell: &CellVerdict) -> String {
    format!("{} is required by the policy and MISSING: nothing was compared there", place(cell))
}

/// One sentence over one arm.
pub(super) fn of_arm(arm: &ArmComparison, verdict: &ArmVerdict) -> String {
    let name = &verdict.arm;
    let told = match verdict.ruling {
        Ruling::Invalid => invalid(verdict),
        Ruling::Regressed => regressed(arm, verdict),
        Ruling::Inconclusive => inconclusive(verdict),
        Ruling::Pass => passed(verdict),
    };
    let confounded = if arm.confounded.is_some() { " Confounded: the attention backend changed, too." } else { "" };
    let findings: String = verdict.findings.iter().map(|finding| format!(" {finding}.")).collect();
    format!("{name}: {told}.{findings}{confounded}")
}

fn invalid(verdict: &ArmVerdict) -> String {
    let more = verdict.invalid.len().saturating_sub(1);
    let first = verdict.invalid.first().map(String::as_str).unwrap_or_default();
    if more > 0 {
        format!("invalid, {first}, and {more} more {}", plural(more, "reason"))
    } else {
        format!("invalid, {first}")
    }
}

fn regressed(arm: &ArmComparison, verdict: &ArmVerdict) -> String {
    let cells: Vec<&CellVerdict> =
        verdict.cells.iter().filter(|cell| cell.tier == Tier::Critical && cell.ruling == Ruling::Regressed).collect();
    let symptoms: Vec<&SymptomVerdict> = verdict.symptoms.iter().filter(|symptom| symptom.regressed).collect();
    let worst_cell = cells.iter().min_by(|left, right| {
        let delta = |cell: &CellVerdict| cell.delta.delta.unwrap_or(0.0);
        delta(left).total_cmp(&delta(right))
    });
    let rise = |it: &SymptomVerdict| {
        (it.symptom.candidate as f64 - it.symptom.baseline as f64) / it.symptom.pairs.max(1) as f64
    };
    let worst_symptom = symptoms.iter().max_by(|left, right| {
        // The first of equals: `max_by` would take the last.
        rise(left).total_cmp(&rise(right)).then(std::cmp::Ordering::Greater)
    });
    let mut told = Vec::new();
    if let Some(cell) = worst_cell {
        told.push(format!("{}{}{}", fall(cell), causes(arm, cell), and_more(cells.len(), "cell")));
    }
    if let Some(it) = worst_symptom {
        let symptom = &it.symptom;
        told.push(format!(
            "{} at {} rose from {} to {} of {} items (adjusted p {}){}{}",
            symptom.kind.name().replace('_', " "),
            symptom.bin,
            symptom.baseline,
            symptom.candidate,
            symptom.pairs,
            p_value(it.adjusted_p),
            if it.confirmation.is_some() { ", confirmed on fresh seeds" } else { "" },
            and_more(symptoms.len(), "symptom")
        ));
    }
    told.join("; ")
}

fn and_more(count: usize, noun: &str) -> String {
    match count {
        0 | 1 => String::new(),
        more => format!(" and {} more {}", more - 1, plural(more - 1, noun)),
    }
}

/// `8K retrieval fell from 91.7 % to 58.3 % (−33.3 points, 95 % CI −49.1…−17.6, adjusted p 0.003)`.
fn fall(cell: &CellVerdict) -> String {
    let p = cell.adjusted_p.map(|p| format!(", adjusted p {}", p_value(p))).unwrap_or_default();
    let again = cell.confirmation.as_ref().map_or_else(String::new, |again| {
        let delta = format_points(again.delta.delta.unwrap_or(0.0));
        format!(", confirmed on fresh seeds ({delta} points in {} pairs)", again.delta.pairs)
    });
    format!("{} fell from {} ({}{p}){again}", place(cell), shares(cell), change(cell))
}

/// The commonest causes of the cell's right → wrong flips: `, by swapped values (8 of 22) and near miss (7)`.
fn causes(arm: &ArmComparison, cell: &CellVerdict) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let here = arm.flips.iter().filter(|flip| {
        flip.direction == FlipDirection::Regression
            && flip.bin == cell.bin
            && TaskGroup::of_task(&flip.task) == cell.group
    });
    for flip in here {
        *counts.entry(&flip.cause).or_default() += 1;
    }
    let total: usize = counts.values().sum();
    let mut ranked: Vec<(&str, usize)> = counts.into_iter().collect();
    ranked.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    match ranked.as_slice() {
        [] => String::new(),
        [(cause, count)] => format!(", by {cause} ({count} of {total})"),
        [(first, count), (second, next), ..] => {
            format!(", by {first} ({count} of {total}) and {second} ({next})")
        }
    }
}

fn place(cell: &CellVerdict) -> String {
    format!("{} {}", cell.bin, cell.group.name().replace('_', " "))
}

fn shares(cell: &CellVerdict) -> String {
    let pairs = cell.delta.pairs.max(1) as f64;
    let share = |right: u64| format_percent(right as f64 / pairs);
    format!("{} to {}", share(cell.delta.baseline_right), share(cell.delta.candidate_right))
}

fn change(cell: &CellVerdict) -> String {
    let delta = format!("{} points", format_points(cell.delta.delta.unwrap_or(0.0)));
    let interval =
        cell.delta.interval.map(|(low, high)| format!(", 95 % CI {}…{}", format_points(low), format_points(high)));
    format!("{delta}{}", interval.unwrap_or_default())
}

fn inconclusive(verdict: &ArmVerdict) -> String {
    let total = judged_cells(verdict).count();
    let holds_back = |cell: &&CellVerdict| match cell.tier {
        Tier::Critical => cell.ruling == Ruling::Inconclusive,
        Tier::Supporting => cell.ruling == Ruling::Regressed,
        Tier::Advisory => false,
    };
    let open: Vec<&CellVerdict> = verdict.cells.iter().filter(holds_back).collect();
    if open.is_empty() && total > 0 {
        return "inconclusive, no critical cell is judged".into();
    }
    let Some(worst) = open.iter().min_by(|left, right| {
        let delta = |cell: &CellVerdict| cell.delta.delta.unwrap_or(0.0);
        delta(left).total_cmp(&delta(right))
    }) else {
        return "inconclusive, no cell is judged".into();
    };
    let reason = worst.reasons.first().map(String::as_str).unwrap_or_default();
    let needed = worst.pairs_needed.map_or_else(String::new, |needed| {
        format!("; a PASS would take about {needed} pairs, there are {}", worst.delta.pairs)
    });
    let measured = if worst.delta.pairs > 0 { format!(" ({})", change(worst)) } else { String::new() };
    format!(
        "inconclusive in {} of {total} {}; {}{measured}: {reason}{needed}",
        open.len(),
        plural(total, "cell"),
        place(worst)
    )
}

fn passed(verdict: &ArmVerdict) -> String {
    let cells: Vec<&CellVerdict> = verdict.cells.iter().filter(|cell| cell.tier == Tier::Critical).collect();
    let upper = |cell: &CellVerdict| cell.delta.drop_upper.unwrap_or(1.0);
    let Some(worst) = cells.iter().copied().reduce(|worst, cell| if upper(cell) > upper(worst) { cell } else { worst })
    else {
        return "passed".into();
    };
    format!(
        "every drop is below its margin in all {} {}; least certain is {}, from {} ({}, a drop of at most {} points with \
         95 % confidence)",
        cells.len(),
        plural(cells.len(), "cell"),
        place(worst),
        shares(worst),
        change(worst),
        format_points(upper(worst)).trim_start_matches('+')
    )
}

fn plural(count: usize, noun: &str) -> String {
    if count == 1 { noun.into() } else { format!("{noun}s") }
}

/// Three decimals, or what is needed to see it at all.
pub(super) fn p_value(p: f64) -> String {
    if p >= 0.0005 { format!("{p:.3}") } else { format!("{p:.0e}") }
}
