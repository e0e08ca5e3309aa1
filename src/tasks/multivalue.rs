//! `multivalue`: all values of one key, to be written in the order of the text, between values of keys that look like it.

use serde::Deserialize;

use super::params::{ParamError, PerBin, ValueKind, parse};
use super::planting::{Planted, Planting, Wordings};
use super::{Depth, Ground, Task, TaskError, TaskGroup};
use crate::sample::{Binding, Expected, Gold};

/// The registry's entry.
pub(super) const TASK: Task = Task {
    id: "multivalue",
    summary: "all values of one key, in the order of the text",
    group: TaskGroup::Retrieval,
    scorer: "ordered_values",
    generator_version: 1,
    ground: Ground::Prose,
    depth: Depth::Spread,
    check,
    plant,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    /// Values of the key asked for.
    values: Option<PerBin<u32>>,
    /// Keys that share a word with it and have two values each.
    other_keys: Option<PerBin<u32>>,
    /// `digits` (default) or `hex`.
    value_kind: Option<PerBin<ValueKind>>,
}

/// Values and other keys by length of the bin.
const VALUES: [u32; 5] = [3, 4, 4, 8, 8];
const OTHER_KEYS: [u32; 5] = [1, 2, 3, 4, 6];

/// Two, so that another key is no needle of its own that a reader could tell by its single value.
const VALUES_OF_OTHERS: usize = 2;

/// `{0}` is the noun of the value, `{1}` the key, `{2}` the value.
const SENTENCES: Wordings =
    Wordings { en: &["One special {0} for the {1} is {2}."], zh: &["{1}的特别{0}当中有一个是{2}。"] };

/// Questions; `{0}` is the noun of the value, `{1}` the key, `{2}` the number of values. The number is given because an
/// answer that ends early shall be an error and not a guess.
const QUESTIONS: Wordings = Wordings {
    en: &[
        "What are the {2} special {0}s for the {1}? Write them in the order of the text, one on each line, and nothing else.",
        "The text gives {2} special {0}s for the {1}. List them in the order in which they stand in the text, one on each line, and write nothing else.",
    ],
    zh: &[
        "{1}的{2}个特别{0}分别是什么？请按照文中出现的先后顺序，每行写一个，不要写别的内容。",
        "文中给出了{1}的{2}个特别{0}。请按照文中的先后顺序列出，每行一个，不要写别的内容。",
    ],
};

fn check(params: &toml::Table) -> Result<(), ParamError> {
    let params: Params = parse(params)?;
    PerBin::check(params.values.as_ref(), "values", 1..=64)?;
    // Keys that share a word with another are as many as there are adjectives or nouns.
    PerBin::check(params.other_keys.as_ref(), "other_keys", 0..=32)?;
    PerBin::check_bins(params.value_kind.as_ref(), "value_kind")
}

fn plant(planting: &mut Planting<'_>) -> Result<Planted, TaskError> {
    let params: Params = planting.params()?;
    let count = PerBin::resolve(params.values.as_ref(), planting.bin, VALUES);
    let other_keys = PerBin::resolve(params.other_keys.as_ref(), planting.bin, OTHER_KEYS);
    let kind = params.value_kind.and_then(|given| given.get(planting.bin)).unwrap_or(ValueKind::Digits);
    let noun = kind.noun(planting.language);
    let keys = planting.fresh_keys_alike(1 + other_keys)?;
    // Which key each sentence is about; the values follow in the order of the text.
    let mut owners: Vec<usize> = vec![0; count];
    owners.extend((1..keys.len()).flat_map(|key| [key; VALUES_OF_OTHERS]));
    planting.rng.shuffle(&mut owners);
    let places = planting.spread(owners.len());
    let (mut values, mut others, mut plants) = (Vec::new(), Vec::new(), Vec::new());
    for (owner, place) in owners.into_iter().zip(places) {
        let value = planting.fresh_value(kind)?;
        let sentence = planting.say_alike(&SENTENCES, &[noun, &keys[owner], &value]);
        let list = if owner == 0 { &mut values } else { &mut others };
        // The first value asked for is the needle; the other sentences of the key come before those of other keys.
        let number = if owner == 0 { list.len() } else { count + list.len() };
        list.push(value.clone());
        plants.push(planting.plant(number, place, &sentence, Some(Binding { key: keys[owner].clone(), value })));
    }
    let question = planting.ask(&QUESTIONS, &[noun, &keys[0], &count.to_string()]);
    Ok(Planted::new(plants, question, Expected { answer: values.join("\n"), gold: Gold::Ordered { values, others } }))
}
