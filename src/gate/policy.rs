//! The policy of one cell, and whether the policy fits the run.

use std::collections::BTreeSet;

use crate::compare::Comparison;
use crate::gate::GateError;
use crate::sample::Bin;
use crate::suite::{CellPolicy, GatePolicy, TaskGroup, Tier};

/// What applies to one cell after the exceptions: `group/bin` before `group` before the defaults, value by value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CellRules {
    pub(super) margin: f64,
    pub(super) max_relative_drop: Option<f64>,
    pub(super) relative_guard_below: f64,
    pub(super) min_effect: f64,
    pub(super) min_pairs: u32,
    pub(super) min_haystacks: u32,
    pub(super) baseline_floor: f64,
    pub(super) min_valid_share: f64,
    pub(super) tier: Tier,
    /// Whether the run is INVALID without data here.
    pub(super) needs_data: bool,
}

impl CellRules {
    /// Whether the ruling has a say in the run's.
    pub(super) fn is_judged(&self) -> bool {
        self.tier != Tier::Advisory
    }

    /// The relative limit, where the baseline is so low that it holds: with `right` of `pairs`.
    pub(super) fn relative_limit(&self, right: u64, pairs: u64) -> Option<f64> {
        self.max_relative_drop.filter(|_| (right as f64) < self.relative_guard_below * pairs as f64)
    }
}

pub(super) fn of_cell(policy: &GatePolicy, group: TaskGroup, bin: Bin) -> CellRules {
    let mut merged = CellPolicy::default();
    // Keys are compared by what they mean (`8k`, `8192`); the general ones first, so that the particular ones win.
    for particular in [false, true] {
        for (key, exception) in &policy.cells {
            let (name, key_bin) = split(key);
            let same_bin = key_bin.is_none_or(|text| text.parse::<Bin>() == Ok(bin));
            if name == group.name() && key_bin.is_some() == particular && same_bin {
                merged = over(exception, &merged);
            }
        }
    }
    let usual_tier = if merged.required == Some(false) { Tier::Advisory } else { Tier::Critical };
    let tier = merged.tier.unwrap_or(usual_tier);
    CellRules {
        margin: merged.max_drop.unwrap_or(policy.margin),
        max_relative_drop: merged.max_relative_drop.or(policy.max_relative_drop),
        relative_guard_below: merged.relative_guard_below.unwrap_or(policy.relative_guard_below),
        min_effect: merged.min_effect.unwrap_or(policy.min_effect),
        min_pairs: merged.min_pairs.unwrap_or(policy.min_pairs),
        min_haystacks: merged.min_haystacks.unwrap_or(policy.min_haystacks),
        baseline_floor: merged.baseline_floor.unwrap_or(policy.baseline_floor),
        min_valid_share: merged.min_valid_share.unwrap_or(policy.min_valid_share),
        tier,
        needs_data: tier != Tier::Advisory && merged.required != Some(false),
    }
}

/// What `first` says, and where it says nothing what `second` does.
fn over(first: &CellPolicy, second: &CellPolicy) -> CellPolicy {
    CellPolicy {
        tier: first.tier.or(second.tier),
        max_drop: first.max_drop.or(second.max_drop),
        max_relative_drop: first.max_relative_drop.or(second.max_relative_drop),
        relative_guard_below: first.relative_guard_below.or(second.relative_guard_below),
        min_effect: first.min_effect.or(second.min_effect),
        min_pairs: first.min_pairs.or(second.min_pairs),
        min_haystacks: first.min_haystacks.or(second.min_haystacks),
        baseline_floor: first.baseline_floor.or(second.baseline_floor),
        min_valid_share: first.min_valid_share.or(second.min_valid_share),
        required: first.required.or(second.required),
    }
}

/// The drop that a PASS of this cell excludes.
pub fn margin_of_cell(policy: &GatePolicy, group: TaskGroup, bin: Bin) -> f64 {
    of_cell(policy, group, bin).margin
}

/// The smallest drop of this cell that counts.
pub fn min_effect_of_cell(policy: &GatePolicy, group: TaskGroup, bin: Bin) -> f64 {
    of_cell(policy, group, bin).min_effect
}

/// Cells that the policy names with both group and bin.
pub(super) fn named_cells(policy: &GatePolicy) -> BTreeSet<(Bin, TaskGroup)> {
    policy
        .cells
        .keys()
        .filter_map(|key| {
            let (name, bin) = split(key);
            let group = TaskGroup::ALL.into_iter().find(|group| group.name() == name)?;
            Some((bin?.parse().ok()?, group))
        })
        .collect()
}

fn split(key: &str) -> (&str, Option<&str>) {
    match key.split_once('/') {
        Some((group, bin)) => (group.trim(), Some(bin.trim())),
        None => (key.trim(), None),
    }
}

pub(super) fn check(comparison: &Comparison, policy: &GatePolicy) -> Result<(), GateError> {
    check_numbers(policy)?;
    let groups: BTreeSet<&str> = comparison.tasks.iter().map(|task| TaskGroup::of_task(task).name()).collect();
    for key in policy.cells.keys() {
        let (group, bin) = split(key);
        let unknown = |what, name: &str, known: Vec<String>| GateError::Unknown {
            key: key.clone(),
            what,
            name: name.into(),
            known,
        };
        if !groups.contains(group) {
            return Err(unknown("task group", group, groups.iter().map(|&name| name.to_owned()).collect()));
        }
        if let Some(text) = bin
            && !text.parse::<Bin>().is_ok_and(|bin| comparison.bins.contains(&bin))
        {
            return Err(unknown("bin", text, comparison.bins.iter().map(Bin::to_string).collect()));
        }
    }
    Ok(())
}

/// One number of the policy in the unit of suite files, and what it may be.
struct Limits {
    is_legal: fn(f64) -> bool,
    range: &'static str,
    example: &'static str,
}

/// A difference that may be nothing.
const POINTS: Limits = Limits {
    is_legal: |value| (0.0..=100.0).contains(&value),
    range: "from 0 to 100 points",
    example: "differences are written in points: `min_effect = 2`",
};

/// A drop: nothing is below a margin of 0 points, and everything is below 100.
const MARGIN: Limits = Limits {
    is_legal: |value| value > 0.0 && value < 100.0,
    range: "above 0 and below 100 points",
    example: "differences are written in points: `margin = 5`",
};

/// A drop in percent of the baseline: nothing is below 0, and at 100 everything may be lost.
const RELATIVE: Limits = Limits {
    is_legal: |value| value > 0.0 && value < 100.0,
    range: "above 0 and below 100 percent of the baseline",
    example: "relative drops are written in percent: `max_relative_drop = 25`",
};

const FLOOR: Limits = Limits {
    is_legal: |value| (0.0..=100.0).contains(&value),
    range: "from 0 to 100 percent",
    example: "shares are written in percent: `baseline_floor = 60`",
};

/// At 0 a run without a valid answer would be judged.
const VALID_SHARE: Limits = Limits {
    is_legal: |value| value > 0.0 && value <= 100.0,
    range: "above 0 and up to 100 percent",
    example: "shares are written in percent: `min_valid_share = 98`",
};

/// From a half on a coin would raise the alarm.
const ALPHA: Limits = Limits {
    is_legal: |value| value > 0.0 && value < 0.5,
    range: "above 0 and below 0.5",
    example: "alpha is a probability: `alpha = 0.05`",
};

/// At 0 a cell without evidence would be judged.
const COUNT: Limits = Limits {
    is_legal: |value| value >= 1.0,
    range: "at least 1",
    example: "counts are whole numbers: `min_pairs = 20`",
};

fn check_numbers(policy: &GatePolicy) -> Result<(), GateError> {
    let mut numbers = vec![
        ("alpha".to_owned(), policy.alpha, ALPHA),
        ("min_effect".into(), hundredfold(policy.min_effect), POINTS),
        ("margin".into(), hundredfold(policy.margin), MARGIN),
        ("relative_guard_below".into(), hundredfold(policy.relative_guard_below), FLOOR),
        ("min_pairs".into(), policy.min_pairs.into(), COUNT),
        ("min_haystacks".into(), policy.min_haystacks.into(), COUNT),
        ("baseline_floor".into(), hundredfold(policy.baseline_floor), FLOOR),
        ("min_valid_share".into(), hundredfold(policy.min_valid_share), VALID_SHARE),
        ("symptom_min_rise".into(), hundredfold(policy.symptom_min_rise), POINTS),
    ];
    numbers.extend(policy.max_relative_drop.map(|value| ("max_relative_drop".into(), hundredfold(value), RELATIVE)));
    for (key, cell) in &policy.cells {
        let shares = [
            ("min_effect", cell.min_effect, POINTS),
            ("max_drop", cell.max_drop, MARGIN),
            ("max_relative_drop", cell.max_relative_drop, RELATIVE),
            ("relative_guard_below", cell.relative_guard_below, FLOOR),
            ("baseline_floor", cell.baseline_floor, FLOOR),
            ("min_valid_share", cell.min_valid_share, VALID_SHARE),
        ];
        let named = |(name, value, limits): (&str, Option<f64>, Limits)| {
            value.map(|value| (format!("{key}.{name}"), hundredfold(value), limits))
        };
        numbers.extend(shares.into_iter().filter_map(named));
        for (name, count) in [("min_pairs", cell.min_pairs), ("min_haystacks", cell.min_haystacks)] {
            numbers.extend(count.map(|count| (format!("{key}.{name}"), count.into(), COUNT)));
        }
    }
    for (key, value, Limits { is_legal, range, example }) in numbers {
        if !is_legal(value) {
            return Err(GateError::OutOfRange { key, value, range, example });
        }
    }
    Ok(())
}

/// A share as points or percent, without the dust of the multiplication.
fn hundredfold(share: f64) -> f64 {
    (share * 1e8).round() / 1e6
}
