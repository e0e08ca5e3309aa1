//! `multi_turn`: a conversation about one text. Every turn asks for another fact, every third one for a fact that was asked
//! for before, so that a cache that goes wrong only when it is used again shows, and whether it forgets what it has said.
//!
//! The later questions and all answers are paid out of the output reserve; the first prompt is as long as any other.

use serde::Deserialize;

use super::needle::{NAMES, SENTENCES};
use super::params::{ParamError, PerBin, ValueKind, parse};
use super::planting::{Planted, Planting, Wordings};
use super::{Depth, Ground, Task, TaskError, TaskGroup};
use crate::sample::{Binding, Expected, FollowUp, Gold};

/// The registry's entry.
pub(super) const TASK: Task = Task {
    id: "multi_turn",
    summary: "facts of one text asked for turn by turn in one conversation, from the same cache",
    group: TaskGroup::Dialogue,
    scorer: "turns",
    generator_version: 1,
    ground: Ground::Prose,
    depth: Depth::AtSlot,
    check,
    plant,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    /// Questions, the first included.
    turns: Option<PerBin<u32>>,
    /// `digits` (default) or `hex`.
    value_kind: Option<PerBin<ValueKind>>,
}

/// Turns by length of the bin.
const TURNS: [u32; 5] = [2, 3, 4, 6, 8];

/// Every turn whose number is a multiple of this asks again.
const REPEAT_EVERY: usize = 3;

/// The first question; `{0}` is the name, `{1}` the key, `{2}` the noun.
const FIRST: Wordings = Wordings {
    en: &[
        "What is the {0} for the {1}? Answer with the {2} only. More questions will follow.",
        "I have several questions, one after the other. First: what is the {0} for the {1}? Answer with the {2} only.",
    ],
    zh: &["{1}的{0}是多少？只回答{2}。之后还有别的问题。", "我要依次问几个问题。第一个：{1}的{0}是多少？只回答{2}。"],
};

/// A question for something new.
const NEXT: Wordings = Wordings {
    en: &["And what is the {0} for the {1}? Answer with the {2} only.", "What is the {0} for the {1}?"],
    zh: &["那么{1}的{0}是多少？只回答{2}。", "{1}的{0}是多少？"],
};

/// A question that was asked before.
const AGAIN: Wordings = Wordings {
    en: &["Once more: what is the {0} for the {1}?", "Please tell me again: what is the {0} for the {1}?"],
    zh: &["再问一次：{1}的{0}是多少？", "请再说一遍：{1}的{0}是多少？"],
};

fn check(params: &toml::Table) -> Result<(), ParamError> {
    let params: Params = parse(params)?;
    PerBin::check(params.turns.as_ref(), "turns", 2..=16)?;
    PerBin::check_bins(params.value_kind.as_ref(), "value_kind")
}

/// The fact asked for first stands at the slot, the others at equal distances behind it, going round at the end. One fact is
/// never asked for.
fn plant(planting: &mut Planting<'_>) -> Result<Planted, TaskError> {
    let params: Params = planting.params()?;
    let turns = PerBin::resolve(params.turns.as_ref(), planting.bin, TURNS);
    let kind = params.value_kind.and_then(|given| given.get(planting.bin)).unwrap_or(ValueKind::Digits);
    let noun = kind.noun(planting.language);
    let name = planting.say(&NAMES, &[noun]);
    let count = turns - turns / REPEAT_EVERY + 1;
    let mut facts = Vec::with_capacity(count);
    for _ in 0..count {
        facts.push(Binding { key: planting.fresh_key()?, value: planting.fresh_value(kind)? });
    }
    let mut steps: Vec<usize> = (1..count).collect();
    planting.rng.shuffle(&mut steps);
    steps.insert(0, 0);
    let mut plants = Vec::with_capacity(count);
    for (number, (fact, step)) in facts.iter().zip(steps).enumerate() {
        let place = if step == 0 { planting.slot } else { (planting.slot + step as f64 / count as f64) % 1.0 };
        let sentence = planting.say(&SENTENCES, &[&name, &fact.key, &fact.value]);
        plants.push(planting.plant(number, place, &sentence, Some(fact.clone())));
    }
    let question = planting.ask(&FIRST, &[&name, &facts[0].key, noun]);
    let mut follow_ups = Vec::with_capacity(turns - 1);
    for (turn, asked) in asked_facts(planting, turns).into_iter().enumerate().skip(1) {
        let wordings = if is_repeat(turn) { &AGAIN } else { &NEXT };
        let fact = &facts[asked];
        let question = planting.say(wordings, &[&name, &fact.key, noun]);
        follow_ups.push(FollowUp { question, expected: expected(fact) });
    }
    Ok(Planted { follow_ups, ..Planted::new(plants, question, expected(&facts[0])) })
}

fn is_repeat(turn: usize) -> bool {
    (turn + 1).is_multiple_of(REPEAT_EVERY)
}

/// The fact of each turn: the next one, or where the turn asks again any earlier one but the last.
fn asked_facts(planting: &mut Planting<'_>, turns: usize) -> Vec<usize> {
    let mut asked: Vec<usize> = Vec::with_capacity(turns);
    let mut known = 0;
    for turn in 0..turns {
        if is_repeat(turn) {
            let last = asked[turn - 1];
            let earlier: Vec<usize> = (0..known).filter(|fact| *fact != last).collect();
            asked.push(*planting.rng.choose(&earlier));
        } else {
            asked.push(known);
            known += 1;
        }
    }
    asked
}

/// The other entries of the text are filled in when the document stands.
fn expected(fact: &Binding) -> Expected {
    let value = fact.value.clone();
    Expected { answer: value.clone(), gold: Gold::Value { value, distractors: Vec::new() } }
}
