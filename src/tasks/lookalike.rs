//! `lookalike`: a document that is nothing but keys with values, every key one or two letters from others.

use std::collections::HashSet;

use serde::Deserialize;

use super::haystack::{Filler, Plant, Unit};
use super::params::{ParamError, PerBin, ValueKind, parse};
use super::planting::{Planted, Planting, Soil, Wordings, draw_value, value};
use super::{Depth, Ground, Task, TaskError, TaskGroup};
use crate::rng::Rng;
use crate::sample::{Bin, Binding, Expected, Gold};
use crate::tokenizer::TokenCounter;

/// The registry's entry.
pub(super) const TASK: Task = Task {
    id: "lookalike",
    summary: "the value of one key among keys that differ in one or two letters",
    group: TaskGroup::Retrieval,
    scorer: "exact_value",
    generator_version: 1,
    ground: Ground::Pairs,
    depth: Depth::AtSlot,
    check,
    plant,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    /// `digits` (default below 8K) or `hex` (default from 8K on).
    value_kind: Option<PerBin<ValueKind>>,
}

/// Questions; `{0}` is the key.
const QUESTIONS: Wordings = Wordings {
    en: &[
        "What is the value of the key {0}? Answer with the value only.",
        "Find the line with the key {0} in the list. Which value stands there? Write the value and nothing else.",
        "Which value belongs to the key {0}? Answer with the value only.",
    ],
    zh: &[
        "键{0}的值是什么？只回答这个值。",
        "请在列表中找到键为{0}的那一行。那里写的值是什么？只写这个值，不要写别的内容。",
        "与键{0}对应的值是哪一个？只回答这个值。",
    ],
};

/// From this length on, values are hexadecimal where the suite does not say.
const HEX_FROM_TOKENS: u32 = 8192;

const CONSONANTS: &[u8] = b"bdfgklmnprstvz";
const VOWELS: &[u8] = b"aeiou";

/// Letters of a key, consonant and vowel in turn: 343,000 keys, six times the lines of a bin of a million tokens.
const KEY_LETTERS: usize = 6;

/// One line in this many starts a new family of keys.
const FAMILY_SIZE: usize = 8;

/// Look-alikes that every key asked for is sure to have.
const SURE_LOOKALIKES: usize = 3;

/// Draws of a key that may be in use before a new family is started. Ten one-letter neighbours of a key may all be taken,
/// the two-letter ones of a small family never are.
const MAX_KEY_DRAWS: usize = 64;

/// The lines of a document of pairs.
#[derive(Debug)]
pub(super) struct PairLines {
    keys: Vec<String>,
    used: HashSet<String>,
    kind: ValueKind,
    /// Keys that still need a look-alike.
    wanting: Vec<String>,
}

impl Default for PairLines {
    fn default() -> Self {
        Self { keys: Vec::new(), used: HashSet::new(), kind: ValueKind::Digits, wanting: Vec::new() }
    }
}

impl PairLines {
    fn fresh_family(&mut self, rng: &mut Rng) -> Option<String> {
        (0..MAX_KEY_DRAWS).find_map(|_| {
            let letter = |place| *rng.choose(letters_at(place)) as char;
            self.take((0..KEY_LETTERS).map(letter).collect())
        })
    }

    /// One or two letters away from `key`.
    fn fresh_lookalike(&mut self, rng: &mut Rng, key: &str) -> Option<String> {
        (0..MAX_KEY_DRAWS).find_map(|_| {
            let mut letters = key.as_bytes().to_vec();
            let changes = 1 + rng.below(2);
            for place in rng.distinct(changes, KEY_LETTERS) {
                letters[place] = *rng.choose(letters_at(place));
            }
            self.take(letters.into_iter().map(char::from).collect())
        })
    }

    fn take(&mut self, key: String) -> Option<String> {
        self.used.insert(key.clone()).then(|| {
            self.keys.push(key.clone());
            key
        })
    }

    fn next_key(&mut self, rng: &mut Rng) -> Option<String> {
        if let Some(key) = self.wanting.pop()
            && let Some(lookalike) = self.fresh_lookalike(rng, &key)
        {
            return Some(lookalike);
        }
        if self.keys.is_empty() || rng.below(FAMILY_SIZE) == 0 {
            return self.fresh_family(rng);
        }
        let key = rng.choose(&self.keys).clone();
        self.fresh_lookalike(rng, &key).or_else(|| self.fresh_family(rng))
    }
}

fn letters_at(place: usize) -> &'static [u8] {
    if place.is_multiple_of(2) { CONSONANTS } else { VOWELS }
}

fn line(key: String, value: String, counter: &dyn TokenCounter) -> Unit {
    let text = format!("\n{key}: {value}");
    Unit { tokens: counter.count(&text), text, entry: Some(Binding { key, value }) }
}

/// More lines of the same kind.
pub(super) struct PairFiller<'a> {
    pub(super) soil: &'a mut Soil,
    pub(super) rng: Rng,
}

impl Filler for PairFiller<'_> {
    fn next_unit(&mut self, counter: &dyn TokenCounter) -> Unit {
        let Self { soil, rng } = self;
        let key = soil.pairs.next_key(rng).expect("the longest bin uses a sixth of the keys");
        let kind = soil.pairs.kind;
        let value = draw_value(&mut soil.values, || value(rng, kind)).expect("millions of values are unused");
        line(key, value, counter)
    }

    /// Lines differ by a token or two in length, so a few tries tell.
    fn last_fits(&self) -> usize {
        3
    }

    /// Look-alikes are drawn right after what they look like; in the text they stand anywhere.
    fn order(&mut self, units: &mut [Unit]) {
        self.rng.shuffle(units);
    }
}

fn default_kind(bin: Bin) -> ValueKind {
    if bin.tokens() < HEX_FROM_TOKENS { ValueKind::Digits } else { ValueKind::Hex }
}

fn check(params: &toml::Table) -> Result<(), ParamError> {
    let params: Params = parse(params)?;
    PerBin::check_bins(params.value_kind.as_ref(), "value_kind")
}

fn plant(planting: &mut Planting<'_>) -> Result<Planted, TaskError> {
    let params: Params = planting.params()?;
    let bin = planting.bin;
    let kind = params.value_kind.and_then(|given| given.get(bin)).unwrap_or_else(|| default_kind(bin));
    let pairs = &mut planting.soil.pairs;
    pairs.kind = kind;
    let key =
        pairs.fresh_family(&mut planting.rng).ok_or(TaskError::Exhausted { task: TASK.id.into(), what: "key" })?;
    pairs.wanting.extend(std::iter::repeat_n(key.clone(), SURE_LOOKALIKES));
    let value = planting.fresh_value(kind)?;
    let question = planting.ask(&QUESTIONS, &[&key]);
    let unit = line(key, value.clone(), planting.counter);
    let plants = vec![Plant { unit, place: planting.slot, question: planting.question, number: 0 }];
    Ok(Planted::new(
        plants,
        question,
        Expected { answer: value.clone(), gold: Gold::Value { value, distractors: Vec::new() } },
    ))
}
