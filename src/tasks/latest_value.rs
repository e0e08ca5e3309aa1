//! `latest_value`: a value that is updated again and again; asked for is the last one or that of one update. Updates are
//! numbered in the order of the text, so that which one counts needs no interpretation.

use serde::Deserialize;

use super::params::{ParamError, PerBin, ValueKind, parse};
use super::planting::{Planted, Planting, Wordings};
use super::{Depth, Ground, Task, TaskError, TaskGroup};
use crate::sample::{Expected, Gold};

/// The registry's entry.
pub(super) const TASK: Task = Task {
    id: "latest_value",
    summary: "the last value of a key that is updated many times, or the value of one update",
    group: TaskGroup::Retrieval,
    scorer: "history",
    generator_version: 1,
    ground: Ground::Prose,
    depth: Depth::Spread,
    check,
    plant,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    /// Number of updates.
    updates: Option<PerBin<u32>>,
    /// Which one is asked for.
    #[serde(default)]
    ask: Ask,
    /// `digits` (default) or `hex`.
    value_kind: Option<PerBin<ValueKind>>,
}

/// Which update is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Ask {
    /// The last.
    Last,
    /// Any other.
    Nth,
    /// Each of the two in half of the items.
    #[default]
    Both,
}

/// Updates by length of the bin.
const UPDATES: [u32; 5] = [3, 8, 16, 32, 64];

/// `{0}` is the number of the update, `{1}` the noun of the value, `{2}` the key, `{3}` the value.
const SENTENCES: Wordings = Wordings {
    en: &[
        "Since update {0}, the current {1} for the {2} is {3}.",
        "With update {0}, the current {1} for the {2} is {3}.",
    ],
    zh: &["第{0}次更新以后，{2}的现行{1}是{3}。", "经过第{0}次更新，{2}的现行{1}是{3}。"],
};

/// Questions for the last value; `{0}` is the noun of the value, `{1}` the key.
const LAST_QUESTIONS: Wordings = Wordings {
    en: &[
        "The current {0} for the {1} was updated several times, and each update replaces the one before. What is it after the last update? Answer with the {0} only.",
        "What is the current {0} for the {1} at the end, when all updates have been made? Answer with the {0} only.",
    ],
    zh: &[
        "{1}的现行{0}更新过多次，每次更新都取代前一次。最后一次更新以后，它是什么？只回答{0}。",
        "所有更新完成以后，{1}的现行{0}最终是什么？只回答{0}。",
    ],
};

/// Questions for the value of one update; `{0}` is the noun of the value, `{1}` the key, `{2}` the number of the update.
const NTH_QUESTIONS: Wordings = Wordings {
    en: &[
        "The current {0} for the {1} was updated several times. What was it right after update {2}? Answer with the {0} only.",
        "Which {0} did update {2} set for the {1}? Answer with the {0} only.",
    ],
    zh: &[
        "{1}的现行{0}更新过多次。第{2}次更新以后，它是什么？只回答{0}。",
        "第{2}次更新把{1}的现行{0}定为什么？只回答{0}。",
    ],
};

fn check(params: &toml::Table) -> Result<(), ParamError> {
    let params: Params = parse(params)?;
    PerBin::check(params.updates.as_ref(), "updates", 2..=1000)?;
    PerBin::check_bins(params.value_kind.as_ref(), "value_kind")
}

fn plant(planting: &mut Planting<'_>) -> Result<Planted, TaskError> {
    let params: Params = planting.params()?;
    let count = PerBin::resolve(params.updates.as_ref(), planting.bin, UPDATES);
    let kind = params.value_kind.and_then(|given| given.get(planting.bin)).unwrap_or(ValueKind::Digits);
    let noun = kind.noun(planting.language);
    let is_last = match params.ask {
        Ask::Last => true,
        Ask::Nth => false,
        Ask::Both => planting.rng.below(2) == 0,
    };
    let asked = if is_last { count - 1 } else { planting.rng.below(count - 1) };
    let key = planting.fresh_key()?;
    let places = planting.spread(count);
    let (mut versions, mut plants) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for (index, place) in places.into_iter().enumerate() {
        let value = planting.fresh_value(kind)?;
        let sentence = planting.say_alike(&SENTENCES, &[&(index + 1).to_string(), noun, &key, &value]);
        // The update asked for is the needle; the others are numbered as they follow it, going round.
        let number = (index + count - asked) % count;
        plants.push(planting.plant(number, place, &sentence, None));
        versions.push(value);
    }
    let question = if is_last {
        planting.ask(&LAST_QUESTIONS, &[noun, &key])
    } else {
        planting.ask(&NTH_QUESTIONS, &[noun, &key, &(asked + 1).to_string()])
    };
    let answer = versions[asked].clone();
    Ok(Planted::new(plants, question, Expected { answer, gold: Gold::History { versions, asked } }))
}
