//! `ledger`: an account whose entries are scattered over the text; its balance after each entry. Every step needs the one
//! before, so a single slip shows in all that follow.
//!
//! Amounts are as small as the numbers of the filler, and balances always have three digits: each of them is a token or
//! three in any tokenizer, and none can be taken for a value of another question.

use serde::Deserialize;

use super::params::{ParamError, PerBin, parse};
use super::planting::{Planted, Planting, Wordings};
use super::{Depth, Ground, Task, TaskError, TaskGroup};
use crate::sample::{Expected, Gold, Language};

/// The registry's entry.
pub(super) const TASK: Task = Task {
    id: "ledger",
    summary: "the running balance of an account whose entries are scattered over the text",
    group: TaskGroup::LongOutput,
    scorer: "survival",
    generator_version: 1,
    ground: Ground::Prose,
    depth: Depth::Spread,
    check,
    plant,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    /// Number of entries.
    steps: Option<PerBin<u32>>,
}

/// Entries by length of the bin.
const STEPS: [u32; 5] = [5, 12, 24, 48, 80];

/// The same in Chinese: a character costs two or three tokens in a tokenizer made for English, so that fewer entries fit the
/// shortest bin.
const CHINESE_STEPS: [u32; 5] = [3, 12, 24, 48, 80];

/// Amounts of single entries, in crowns: the numbers of the filler.
const AMOUNTS: std::ops::RangeInclusive<i64> = 2..=99;

/// Balances, in crowns.
const BALANCES: std::ops::RangeInclusive<i64> = 100..=999;

/// Entries; `{0}` is their number, `{1}` the account, `{2}` the amount.
const PAID_IN: Wordings = Wordings {
    en: &["Entry number {0} of the {1} account is {2} crowns paid in."],
    zh: &["{1}账户的第{0}笔账是存入{2}元。"],
};
const PAID_OUT: Wordings = Wordings {
    en: &["Entry number {0} of the {1} account is {2} crowns paid out."],
    zh: &["{1}账户的第{0}笔账是支出{2}元。"],
};

/// Questions; `{0}` is the account, `{1}` the balance before the first entry, `{2}` the number of entries.
const QUESTIONS: Wordings = Wordings {
    en: &[
        "The {0} account holds {1} crowns before entry number 1. Write down its balance after each of its {2} entries, in the order of their numbers, one on each line in the form number: balance. Write nothing else.",
        "Before its first entry there are {1} crowns in the {0} account. Go through its entries from number 1 to number {2} and give the balance after each, one line for each in the form number: balance, and nothing else.",
        "Keep the books of the {0} account, which starts with {1} crowns: for each of its {2} entries in turn, write one line in the form number: balance, with the balance that the entry leaves. Answer with these lines only.",
    ],
    zh: &[
        "{0}账户在第1笔账之前有{1}元。请按编号顺序写出全部{2}笔账中每一笔之后的余额，每行一个，格式为“编号: 余额”，不要写别的内容。",
        "第1笔账之前，{0}账户里有{1}元。从第1笔到第{2}笔，逐笔算出记账之后的余额，每笔一行，格式为“编号: 余额”，除此之外什么都不要写。",
    ],
};

fn check(params: &toml::Table) -> Result<(), ParamError> {
    let params: Params = parse(params)?;
    // As `enumerate`: a thousand lines are more than any output reserve holds.
    PerBin::check(params.steps.as_ref(), "steps", 2..=1000)
}

fn plant(planting: &mut Planting<'_>) -> Result<Planted, TaskError> {
    let params: Params = planting.params()?;
    let defaults = if planting.language == Language::Zh { CHINESE_STEPS } else { STEPS };
    let count = PerBin::resolve(params.steps.as_ref(), planting.bin, defaults);
    let account = planting.fresh_label()?;
    let start = 300 + planting.rng.below(400) as i64;
    let mut balance = start;
    let mut plants = Vec::with_capacity(count);
    let mut steps = Vec::with_capacity(count);
    let places = planting.spread(count);
    for (index, place) in places.into_iter().enumerate() {
        let change = change(planting, balance);
        balance += change;
        let number = (index + 1).to_string();
        let wording = if change > 0 { &PAID_IN } else { &PAID_OUT };
        let sentence = planting.say(wording, &[&number, &account, &change.abs().to_string()]);
        plants.push(planting.plant(index, place, &sentence, None));
        steps.push(format!("{number}: {balance}"));
    }
    let question = planting.ask(&QUESTIONS, &[&account, &start.to_string(), &count.to_string()]);
    Ok(Planted::new(plants, question, Expected { answer: steps.join("\n"), gold: Gold::Steps { steps } }))
}

/// In or out with equal chance, as long as the balance keeps its three digits.
fn change(planting: &mut Planting<'_>, balance: i64) -> i64 {
    let span = (AMOUNTS.end() - AMOUNTS.start() + 1) as usize;
    let amount = AMOUNTS.start() + planting.rng.below(span) as i64;
    let is_paid_in = planting.rng.below(2) == 0;
    match (is_paid_in, BALANCES.contains(&(balance + amount)), BALANCES.contains(&(balance - amount))) {
        (true, true, _) | (false, true, false) => amount,
        _ => -amount,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_never_leaves_the_balances() {
        for balance in BALANCES {
            for amount in AMOUNTS {
                let fits = |sum: i64| BALANCES.contains(&sum);
                assert!(fits(balance + amount) || fits(balance - amount), "{balance} {amount}");
            }
        }
    }
}
