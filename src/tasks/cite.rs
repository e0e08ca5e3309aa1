//! `cite`: facts in numbered sources, each to be given with the source it stands in.
//!
//! A source begins with its mark, `[K-17]`, and goes on to the next mark of the same letter; every question of a document
//! has a letter of its own. The fact stands right behind the mark, and as many sources again hold facts that are not asked
//! for; in the others filler follows. At 128K there are 700 sources, one in about 180 tokens.

use serde::Deserialize;

use super::params::{ParamError, PerBin, ValueKind, parse};
use super::planting::{Planted, Planting, Wordings};
use super::{Depth, Ground, Task, TaskError, TaskGroup};
use crate::sample::{CitedFact, Expected, Gold, Language};

/// The registry's entry.
pub(super) const TASK: Task = Task {
    id: "cite",
    summary: "facts with the numbered source that each stands in",
    group: TaskGroup::Sources,
    scorer: "citations",
    generator_version: 1,
    ground: Ground::Prose,
    depth: Depth::AtSlot,
    check,
    plant,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    /// Number of sources.
    sources: Option<PerBin<u32>>,
    /// Number of facts asked for; at most one in a source.
    facts: Option<PerBin<u32>>,
}

/// Sources and facts asked for by length of the bin. Chinese has fewer sources: their marks need a sentence of their own, and
/// tokenizers made for English take two tokens and more for a character; four questions have to fit in one text.
const SOURCES: [u32; 5] = [6, 20, 60, 200, 700];
const CHINESE_SOURCES: [u32; 5] = [4, 12, 36, 120, 420];
const FACTS: [u32; 5] = [2, 4, 6, 8, 8];

/// A fact; `{0}` is the key, `{1}` the value.
const NEEDLES: Wordings =
    Wordings { en: &["The special number for the {0} is {1}."], zh: &["{0}的专用号码是{1}。"] };

/// Questions; `{0}` is the list of keys, `{1}` the letter of the sources, `{2}` the number of the last one.
const QUESTIONS: Wordings = Wordings {
    en: &[
        "The text has sources that begin with the marks [{1}-1] to [{1}-{2}]. What are the special numbers for these things, and in which source does each stand: {0}? Write one line for each in the form key: number [source], in this order, and nothing else.",
        "Sources in the text begin with a mark from [{1}-1] to [{1}-{2}]. Give the special number for each of the following with the mark of the source it stands in: {0}. Answer with one line for each, in this order, in the form key: number [source]. Write nothing else.",
    ],
    zh: &[
        "文中的资料以[{1}-1]到[{1}-{2}]的标记开头。这些物品的专用号码是多少，出自哪份资料：{0}？按此顺序每行写一个，格式为“物品: 号码 [标记]”，不要写别的内容。",
        "文中各份资料以标记开头，从[{1}-1]到[{1}-{2}]。请写出这些物品的专用号码和所在资料的标记：{0}。按此顺序每行一个，格式为“物品: 号码 [标记]”，不要写别的内容。",
    ],
};

fn check(params: &toml::Table) -> Result<(), ParamError> {
    let params: Params = parse(params)?;
    PerBin::check(params.sources.as_ref(), "sources", 1..=4000)?;
    PerBin::check(params.facts.as_ref(), "facts", 1..=64)
}

fn plant(planting: &mut Planting<'_>) -> Result<Planted, TaskError> {
    let params: Params = planting.params()?;
    let defaults = if planting.language == Language::Zh { CHINESE_SOURCES } else { SOURCES };
    let count = PerBin::resolve(params.sources.as_ref(), planting.bin, defaults);
    let asked = PerBin::resolve(params.facts.as_ref(), planting.bin, FACTS).min(count);
    let letter = letters(planting.soil.variant, planting.question);
    let homes = homes(planting, count, asked);
    let name = |index: usize| format!("{letter}-{}", index + 1);
    // All keys first: the sentences of the other sources keep clear of them.
    let mut facts = Vec::with_capacity(homes.len());
    for home in &homes {
        let (key, value) = (planting.fresh_key()?, planting.fresh_value(ValueKind::Digits)?);
        facts.push(CitedFact { key, value, source: name(*home) });
    }
    let mut plants = Vec::with_capacity(count);
    let mut number = asked;
    for index in 0..count {
        let fact = homes.iter().position(|home| *home == index);
        let mark = format!("[{}]", name(index));
        let text = match (fact, planting.language) {
            (Some(fact), _) => format!("{mark} {}", planting.say(&NEEDLES, &[&facts[fact].key, &facts[fact].value])),
            (None, Language::En) => mark,
            // A Chinese unit is a sentence: its full stop stands at the beginning of the next.
            (None, Language::Zh) => format!("{mark} {}", planting.sentence().text),
        };
        let place = if fact == Some(0) { planting.slot } else { even(index, count) };
        let plant_number = fact.filter(|fact| *fact < asked).unwrap_or_else(|| {
            number += 1;
            number - 1
        });
        plants.push(planting.plant(plant_number, place, &text, None));
    }
    facts.truncate(asked);
    let keys: Vec<&str> = facts.iter().map(|fact| fact.key.as_str()).collect();
    let separator = if planting.language == Language::Zh { "、" } else { ", " };
    let question = planting.ask(&QUESTIONS, &[&keys.join(separator), &letter, &count.to_string()]);
    let lines: Vec<String> =
        facts.iter().map(|fact| format!("{}: {} [{}]", fact.key, fact.value, fact.source)).collect();
    let gold = Gold::Citations { facts, sources: (0..count).map(name).collect() };
    Ok(Planted::new(plants, question, Expected { answer: lines.join("\n"), gold }))
}

/// Place of a source as a share of the text.
fn even(index: usize, count: usize) -> f64 {
    index as f64 / (count - 1).max(1) as f64
}

/// Sources with a fact: that of the first fact is the nearest to the slot, the others asked for are spread from there over
/// the whole text in an order that is not that of the question, and then come those not asked for.
fn homes(planting: &mut Planting<'_>, count: usize, asked: usize) -> Vec<usize> {
    let first = (planting.slot * (count - 1) as f64).round() as usize;
    let mut steps: Vec<usize> = (1..asked).collect();
    planting.rng.shuffle(&mut steps);
    let mut homes = vec![first];
    homes.extend(steps.into_iter().map(|step| (first + step * count / asked) % count));
    let mut others: Vec<usize> = (0..count).filter(|index| !homes.contains(index)).collect();
    planting.rng.shuffle(&mut others);
    others.truncate(asked);
    homes.extend(others);
    homes
}

/// Letters that no other question of the document has.
fn letters(variant: u64, question: usize) -> String {
    const ALPHABET: &[u8; 26] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ";
    let last = char::from(ALPHABET[((variant % 26) as usize + question) % 26]);
    match question / 26 {
        0 => last.to_string(),
        round => format!("{}{last}", letters(0, round - 1)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn questions_of_a_document_have_different_letters() {
        for variant in [0, 7, u64::MAX] {
            let all: HashSet<String> = (0..2000).map(|question| letters(variant, question)).collect();
            assert_eq!(all.len(), 2000);
        }
    }
}
