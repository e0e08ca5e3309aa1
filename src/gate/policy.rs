//! The policy of one cell, and whether the policy fits the run.

use std::collections::BTreeSet;

use crate::compare::Comparison;
use crate::gate::GateError;
use crate::sample::Bin;
use crate::suite::{GatePolicy, TaskGroup};

/// What applies to one cell after the exceptions: `group/bin` before `group` before the defaults, value by value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CellRules {
    pub(super) margin: f64,
    pub(super) min_effect: f64,
    pub(super) required: bool,
}

pub(super) fn of_cell(policy: &GatePolicy, group: TaskGroup, bin: Bin) -> CellRules {
    let mut rules = CellRules { margin: policy.margin, min_effect: policy.min_effect, required: true };
    // Keys are compared by what they mean (`8k`, `8192`); the general ones first, so that the particular ones win.
    for particular in [false, true] {
        for (key, exception) in &policy.cells {
            let (name, key_bin) = split(key);
            let same_bin = key_bin.is_none_or(|text| text.parse::<Bin>() == Ok(bin));
            if name == group.name() && key_bin.is_some() == particular && same_bin {
                rules.margin = exception.max_drop.unwrap_or(rules.margin);
                rules.min_effect = exception.min_effect.unwrap_or(rules.min_effect);
                rules.required = exception.required.unwrap_or(rules.required);
            }
        }
    }
    rules
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

fn check_numbers(policy: &GatePolicy) -> Result<(), GateError> {
    let mut shares = vec![
        ("min_effect".to_owned(), policy.min_effect),
        ("baseline_floor".into(), policy.baseline_floor),
        ("min_valid_share".into(), policy.min_valid_share),
        ("symptom_min_rise".into(), policy.symptom_min_rise),
    ];
    let mut open = vec![("alpha".to_owned(), policy.alpha), ("margin".into(), policy.margin)];
    for (key, cell) in &policy.cells {
        shares.extend(cell.min_effect.map(|value| (format!("{key}.min_effect"), value)));
        open.extend(cell.max_drop.map(|value| (format!("{key}.max_drop"), value)));
    }
    for (key, value) in shares {
        if !(0.0..=1.0).contains(&value) {
            return Err(GateError::OutOfRange { key, value, range: "from 0 to 1" });
        }
    }
    for (key, value) in open {
        if !(value > 0.0 && value < 1.0) {
            return Err(GateError::OutOfRange { key, value, range: "above 0 and below 1" });
        }
    }
    Ok(())
}
