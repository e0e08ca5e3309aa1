//! `needle`: one fact in prose, asked for by its key.

use serde::Deserialize;

use super::params::{ParamError, PerBin, ValueKind, parse};
use super::planting::{Planted, Planting, Wordings};
use super::{Depth, Ground, Task, TaskError, TaskGroup};
use crate::sample::{Binding, Expected, Gold};

/// The registry's entry.
pub(super) const TASK: Task = Task {
    id: "needle",
    summary: "one fact in a long text, asked for by its key",
    group: TaskGroup::Retrieval,
    scorer: "exact_value",
    generator_version: 2,
    ground: Ground::Prose,
    depth: Depth::AtSlot,
    check,
    plant,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    /// `digits` (default) or `hex`.
    value_kind: Option<PerBin<ValueKind>>,
}

/// What the value is called; needle and question use the same word.
const NAMES: &[&str] = &["special", "secret", "ticket", "serial"];

/// Questions; `{0}` is the name with its noun, `{1}` the key, `{2}` the noun. Plain on purpose: asked what "the text gives",
/// small models deny half the time that there is such a number, and the cell has nothing left to lose.
const QUESTIONS: Wordings = Wordings {
    en: &["What is the {0} for the {1}? Answer with the {2} only.", "What is the {0} for the {1}?"],
    zh: &[],
};

fn check(params: &toml::Table) -> Result<(), ParamError> {
    let params: Params = parse(params)?;
    PerBin::check_bins(params.value_kind.as_ref(), "value_kind")
}

fn plant(planting: &mut Planting<'_>) -> Result<Planted, TaskError> {
    let params: Params = planting.params()?;
    let kind = params.value_kind.and_then(|given| given.get(planting.bin)).unwrap_or(ValueKind::Digits);
    let key = planting.fresh_key()?;
    let value = planting.fresh_value(kind)?;
    let name = format!("{} {}", planting.rng.choose(NAMES), kind.noun());
    let question = planting.ask(&QUESTIONS, &[&name, &key, kind.noun()]);
    let entry = Binding { key: key.clone(), value: value.clone() };
    let needle = planting.plant(0, planting.slot, &format!("The {name} for the {key} is {value}."), Some(entry));
    let plants = vec![needle];
    Ok(Planted::new(
        plants,
        question,
        Expected { answer: value.clone(), gold: Gold::Value { value, distractors: Vec::new() } },
    ))
}
