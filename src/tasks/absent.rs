//! `absent`: a key that is not in the text, among keys that share a word with it. The answer is one word that says so.
//!
//! All items of this task have the same right answer, so a model that always gives it wins here and fails `needle`: the
//! two are to be read together. A mixture within the task would hide which of both went wrong.

use serde::Deserialize;

use super::params::{ParamError, PerBin, ValueKind, parse};
use super::planting::{Planted, Planting, Wordings};
use super::{Depth, Ground, Task, TaskError, TaskGroup};
use crate::sample::{Binding, Expected, Gold, Language};

/// The registry's entry.
pub(super) const TASK: Task = Task {
    id: "absent",
    summary: "a key that is not in the text: the answer has to say so",
    group: TaskGroup::Retrieval,
    scorer: "absent",
    generator_version: 1,
    ground: Ground::Prose,
    depth: Depth::Spread,
    check,
    plant,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    /// Keys of the text that share a word with the one asked for.
    other_keys: Option<PerBin<u32>>,
    /// `digits` (default) or `hex`.
    value_kind: Option<PerBin<ValueKind>>,
}

/// Other keys by length of the bin.
const OTHER_KEYS: [u32; 5] = [3, 4, 6, 8, 8];

/// `{0}` is the noun of the value, `{1}` the key, `{2}` the value: the sentence of a needle.
const SENTENCES: Wordings =
    Wordings { en: &["The special {0} for the {1} is {2}."], zh: &["{1}的特别{0}是{2}。"] };

/// Questions; `{0}` is the noun of the value, `{1}` the key, `{2}` the word for nothing.
const QUESTIONS: Wordings = Wordings {
    en: &[
        "What is the special {0} for the {1}? Answer with the {0} only. If the text does not say it, answer {2}.",
        "Does the text give a special {0} for the {1}? If it does, answer with the {0} only; if it does not, answer {2}.",
    ],
    zh: &[
        "{1}的特别{0}是什么？只回答{0}。如果文中没有提到，请回答“{2}”。",
        "文中有没有给出{1}的特别{0}？如果有，只回答这个{0}；如果没有，请回答“{2}”。",
    ],
};

/// The word for nothing.
fn none(language: Language) -> &'static str {
    match language {
        Language::En => "NONE",
        Language::Zh => "无",
    }
}

fn check(params: &toml::Table) -> Result<(), ParamError> {
    let params: Params = parse(params)?;
    // Without another key there would be no needle to be taken for the missing one.
    PerBin::check(params.other_keys.as_ref(), "other_keys", 1..=32)?;
    PerBin::check_bins(params.value_kind.as_ref(), "value_kind")
}

fn plant(planting: &mut Planting<'_>) -> Result<Planted, TaskError> {
    let params: Params = planting.params()?;
    let count = PerBin::resolve(params.other_keys.as_ref(), planting.bin, OTHER_KEYS);
    let kind = params.value_kind.and_then(|given| given.get(planting.bin)).unwrap_or(ValueKind::Digits);
    let (noun, none) = (kind.noun(planting.language), none(planting.language));
    let keys = planting.fresh_keys_alike(1 + count)?;
    let places = planting.spread(count);
    let (mut present, mut plants) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for (number, (key, place)) in keys[1..].iter().zip(places).enumerate() {
        let pair = Binding { key: key.clone(), value: planting.fresh_value(kind)? };
        let sentence = planting.say_alike(&SENTENCES, &[noun, &pair.key, &pair.value]);
        plants.push(planting.plant(number, place, &sentence, Some(pair.clone())));
        present.push(pair);
    }
    let question = planting.ask(&QUESTIONS, &[noun, &keys[0], none]);
    let gold = Gold::Absent { none: none.to_owned(), present };
    Ok(Planted::new(plants, question, Expected { answer: none.to_owned(), gold }))
}
