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

/// What the value is called, in needle and question; `{0}` is its noun.
pub(super) const NAMES: Wordings = Wordings {
    en: &["special {0}", "secret {0}", "ticket {0}", "serial {0}"],
    zh: &["特别{0}", "秘密{0}", "登记{0}", "备用{0}"],
};

/// `{0}` is the name with its noun, `{1}` the key, `{2}` the value.
pub(super) const SENTENCES: Wordings = Wordings { en: &["The {0} for the {1} is {2}."], zh: &["{1}的{0}是{2}。"] };

/// Questions; `{0}` is the name with its noun, `{1}` the key, `{2}` the noun. Plain on purpose: asked what "the text gives",
/// small models deny half the time that there is such a number, and the cell has nothing left to lose.
const QUESTIONS: Wordings = Wordings {
    en: &["What is the {0} for the {1}? Answer with the {2} only.", "What is the {0} for the {1}?"],
    zh: &["{1}的{0}是什么？只回答{2}。", "{1}的{0}是什么？"],
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
    let noun = kind.noun(planting.language);
    let name = planting.say(&NAMES, &[noun]);
    let question = planting.ask(&QUESTIONS, &[&name, &key, noun]);
    let sentence = planting.say_alike(&SENTENCES, &[&name, &key, &value]);
    let needle = planting.plant(0, planting.slot, &sentence, Some(Binding { key, value: value.clone() }));
    let plants = vec![needle];
    Ok(Planted::new(
        plants,
        question,
        Expected { answer: value.clone(), gold: Gold::Value { value, distractors: Vec::new() } },
    ))
}
