//! `frequent_codes`: the three codes that a list names most often. Nothing but counting over the whole text tells them.

use serde::Deserialize;

use super::params::{ParamError, PerBin, parse};
use super::planting::{Planted, Planting, Wordings};
use super::{Depth, Ground, Task, TaskError, TaskGroup};
use crate::sample::{Expected, Gold, Language};

/// The registry's entry.
pub(super) const TASK: Task = Task {
    id: "frequent_codes",
    summary: "the three most frequent codes of a list, the most frequent first",
    group: TaskGroup::Tracing,
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
    /// The three codes occur 6, 4 and 2 times this number, others once, or also twice from 2 on. (In Chinese below 2K: 4, 2
    /// and 1 times where there are no others.)
    scale: Option<PerBin<u32>>,
    /// Other codes.
    other_codes: Option<PerBin<u32>>,
}

/// Scale and other codes by length of the bin.
const SCALE: [u32; 5] = [1, 1, 2, 3, 4];
const OTHER_CODES: [u32; 5] = [1, 3, 6, 12, 20];

/// How often the three occur, times the scale: each a third less than the one before or still less, and twice as often as
/// any other code. A short bin holds no more sentences.
const OCCURRENCES: [usize; 3] = [6, 4, 2];

/// Instead where a Chinese text is short and no other code is named: a sentence takes twice the tokens there.
const FEW_OCCURRENCES: [usize; 3] = [4, 2, 1];

/// Tokens from which on a Chinese text holds as many sentences as an English one.
const CHINESE_FROM_TOKENS: u32 = 2048;

/// `{0}` is the code, `{1}` the list.
const SENTENCES: Wordings = Wordings {
    en: &["Code {0} is in the {1} list.", "The {1} list has code {0}.", "In the {1} list there is code {0}."],
    zh: &["{1}名单上有代码{0}。", "代码{0}在{1}名单上。", "{1}名单里写着代码{0}。"],
};

/// Questions; `{0}` is the list.
const QUESTIONS: Wordings = Wordings {
    en: &[
        "Which three codes does the text name most often for the {0} list? Write them one on each line, the most frequent first, and nothing else.",
        "The text says again and again which codes are in the {0} list. Which three codes occur most often? Write only these three, one on each line, beginning with the most frequent.",
    ],
    zh: &[
        "关于{0}名单，文中提到次数最多的三个代码是什么？每行写一个，次数最多的写在最前面，不要写别的内容。",
        "文中反复提到{0}名单上有哪些代码。出现次数最多的三个代码是哪些？只写这三个，每行一个，从次数最多的开始。",
    ],
};

fn check(params: &toml::Table) -> Result<(), ParamError> {
    let params: Params = parse(params)?;
    PerBin::check(params.scale.as_ref(), "scale", 1..=32)?;
    PerBin::check(params.other_codes.as_ref(), "other_codes", 0..=400)
}

fn plant(planting: &mut Planting<'_>) -> Result<Planted, TaskError> {
    let params: Params = planting.params()?;
    let scale = PerBin::resolve(params.scale.as_ref(), planting.bin, SCALE);
    let is_short = planting.language == Language::Zh && planting.bin.tokens() < CHINESE_FROM_TOKENS;
    let mut defaults = OTHER_CODES;
    if is_short {
        defaults[0] = 0;
    }
    let other_codes = PerBin::resolve(params.other_codes.as_ref(), planting.bin, defaults);
    let occurrences = if is_short && other_codes == 0 { FEW_OCCURRENCES } else { OCCURRENCES };
    let label = planting.fresh_label()?;
    let mut codes = Vec::with_capacity(OCCURRENCES.len() + other_codes);
    for _ in 0..OCCURRENCES.len() + other_codes {
        codes.push(planting.fresh_code()?);
    }
    let mut named: Vec<usize> = Vec::new();
    for code in 0..codes.len() {
        let times = occurrences.get(code).map(|times| times * scale);
        named.extend(std::iter::repeat_n(code, times.unwrap_or_else(|| 1 + planting.rng.below(scale.min(2)))));
    }
    planting.rng.shuffle(&mut named);
    // The first sentence with the most frequent code is the needle.
    let needle = named.iter().position(|code| *code == 0).expect("the first code is named");
    let places = planting.spread(named.len());
    let mut plants = Vec::with_capacity(named.len());
    for (index, (code, place)) in named.into_iter().zip(places).enumerate() {
        let sentence = planting.say(&SENTENCES, &[&codes[code], &label]);
        let number = if index == needle { 0 } else { 1 + index };
        plants.push(planting.plant(number, place, &sentence, None));
    }
    let question = planting.ask(&QUESTIONS, &[&label]);
    let others = codes.split_off(OCCURRENCES.len());
    Ok(Planted::new(
        plants,
        question,
        Expected { answer: codes.join("\n"), gold: Gold::Ordered { values: codes, others } },
    ))
}
