//! `multiquery`: several keys at once, to be answered with `key=value` lines, so that right values at wrong keys show.

use serde::Deserialize;

use super::params::{ParamError, PerBin, ValueKind, parse};
use super::planting::{Planted, Planting, Wordings};
use super::{Depth, Ground, Task, TaskError, TaskGroup};
use crate::sample::{Binding, Expected, Gold};

/// The registry's entry.
pub(super) const TASK: Task = Task {
    id: "multiquery",
    summary: "the values of several keys, as key=value lines",
    group: TaskGroup::Retrieval,
    scorer: "bindings",
    generator_version: 1,
    ground: Ground::Prose,
    depth: Depth::AtSlot,
    check,
    plant,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    /// Number of keys asked for.
    keys: Option<PerBin<u32>>,
    /// `digits` (default) or `hex`.
    value_kind: Option<PerBin<ValueKind>>,
}

/// Keys by length of the bin.
const KEYS: [u32; 5] = [3, 4, 4, 8, 8];

/// Questions; `{0}` is the noun of the value, `{1}` the list of keys.
const QUESTIONS: Wordings = Wordings {
    en: &[
        "What are the special {0}s for these things: {1}? Write one line for each in the form key={0}, in this order, and nothing else.",
        "The text gives a special {0} for each of the following: {1}. Answer with one line for each, in this order, in the form key={0}. Write nothing else.",
    ],
    zh: &[
        "下列各物的特别{0}分别是什么：{1}？请按此顺序每行写一项，格式为 名称={0}，不要写别的内容。",
        "文中给出了下列每一物的特别{0}：{1}。请按此顺序回答，每行一项，格式为 名称={0}，不要写别的内容。",
    ],
};

/// `{0}` is the noun of the value, `{1}` the key, `{2}` the value.
const SENTENCES: Wordings =
    Wordings { en: &["The special {0} for the {1} is {2}."], zh: &["{1}的特别{0}是{2}。"] };

/// Between two keys of a question.
const SEPARATORS: Wordings = Wordings { en: &[", "], zh: &["、"] };

fn check(params: &toml::Table) -> Result<(), ParamError> {
    let params: Params = parse(params)?;
    PerBin::check(params.keys.as_ref(), "keys", 1..=64)?;
    PerBin::check_bins(params.value_kind.as_ref(), "value_kind")
}

/// The first key asked for stands at the slot, the others at equal distances behind it, going round at the end: so their
/// order in the text is not the order asked.
fn plant(planting: &mut Planting<'_>) -> Result<Planted, TaskError> {
    let params: Params = planting.params()?;
    let count = PerBin::resolve(params.keys.as_ref(), planting.bin, KEYS);
    let kind = params.value_kind.and_then(|given| given.get(planting.bin)).unwrap_or(ValueKind::Digits);
    let noun = kind.noun(planting.language);
    let mut pairs = Vec::with_capacity(count);
    for _ in 0..count {
        pairs.push(Binding { key: planting.fresh_key()?, value: planting.fresh_value(kind)? });
    }
    let mut steps: Vec<usize> = (1..count).collect();
    planting.rng.shuffle(&mut steps);
    steps.insert(0, 0);
    let mut plants = Vec::with_capacity(count);
    for (number, (pair, step)) in pairs.iter().zip(steps).enumerate() {
        let place = if step == 0 { planting.slot } else { (planting.slot + step as f64 / count as f64) % 1.0 };
        let sentence = planting.say_alike(&SENTENCES, &[noun, &pair.key, &pair.value]);
        plants.push(planting.plant(number, place, &sentence, Some(pair.clone())));
    }
    let keys: Vec<&str> = pairs.iter().map(|pair| pair.key.as_str()).collect();
    let question = planting.ask(&QUESTIONS, &[noun, &keys.join(SEPARATORS.of(planting.language)[0])]);
    let lines: Vec<String> = pairs.iter().map(|pair| format!("{}={}", pair.key, pair.value)).collect();
    Ok(Planted::new(plants, question, Expected { answer: lines.join("\n"), gold: Gold::Bindings { pairs } }))
}
