//! Solvers of the long output tasks.

use std::collections::BTreeMap;

use kvgauge::sample::{FaultKind, Item, Language};
use regex::Regex;

use super::{Solver, Wrong, text_and_question};

pub(super) static SOLVERS: &[Solver] = &[
    Solver { task: "enumerate", solve: enumerate, wrong: enumerate_wrong },
    Solver { task: "verbatim", solve: verbatim, wrong: verbatim_wrong },
    Solver { task: "ledger", solve: ledger, wrong: steps_wrong },
    Solver { task: "path_walk", solve: path_walk, wrong: steps_wrong },
    Solver { task: "repeat_edit", solve: repeat_edit, wrong: repeat_edit_wrong },
];

/// The pattern of the item's language; `{}` stands for `name`.
fn pattern(item: &Item, english: &str, chinese: &str, name: &str) -> Regex {
    let pattern = if item.language == Language::En { english } else { chinese };
    Regex::new(&pattern.replace("{}", &regex::escape(name))).expect("a valid pattern")
}

/// The first group of the first of these patterns that the question fits.
fn asked(question: &str, patterns: &[&str]) -> String {
    let found = patterns.iter().find_map(|pattern| Regex::new(pattern).expect("a valid pattern").captures(question));
    found.unwrap_or_else(|| panic!("the question names nothing: {question}"))[1].to_owned()
}

/// Numbered codes or lines of the list, by number.
fn numbered(captures: impl Iterator<Item = (usize, String)>) -> Vec<String> {
    captures.collect::<BTreeMap<_, _>>().into_values().collect()
}

fn enumerate(item: &Item) -> Vec<String> {
    let (text, question) = text_and_question(item);
    let label = asked(question, &[r"the (\S+) list", r"(?:写出|列出)(.+?)清单"]);
    let codes = pattern(
        item,
        r"Code number (?<number>\d+) of the {} list is (?<code>\d+)\.",
        r"代码(?<code>\d+)记在{}清单的第(?<number>\d+)项里",
        &label,
    );
    let lines = codes.captures_iter(text).map(|found| {
        let number: usize = found["number"].parse().expect("a number");
        (number, format!("{number}: {}", &found["code"]))
    });
    vec![numbered(lines).join("\n")]
}

fn enumerate_wrong(item: &Item) -> Vec<Wrong> {
    let lines = lines(item);
    let last = lines.len() - 1;
    let (mut swapped, mut repeated) = (lines.clone(), lines.clone());
    swapped.swap(0, 1);
    repeated.insert(1, lines[0].clone());
    vec![
        (FaultKind::Empty, vec![String::new()]),
        (FaultKind::Missing, vec![lines[..last].join("\n")]),
        (FaultKind::Missing, vec![[&lines[..1], &lines[2..]].concat().join("\n")]),
        (FaultKind::OutOfOrder, vec![swapped.join("\n")]),
        (FaultKind::Duplicated, vec![repeated.join("\n")]),
        (FaultKind::Extra, vec![format!("{}\n{}: 31-17", item.expected.answer, lines.len() + 1)]),
    ]
}

fn verbatim(item: &Item) -> Vec<String> {
    let (text, question) = text_and_question(item);
    let label = asked(question, &[r"Here begins the (\S+) passage", r"“(.+?)段落从这里开始"]);
    let passage = pattern(
        item,
        r"Here begins the {} passage: ([\s\S]+?) Here ends the {} passage\.",
        r"{}段落从这里开始：\s*([\s\S]+?)\s*{}段落到这里结束",
        &label,
    );
    vec![passage.captures(text).expect("the passage")[1].to_owned()]
}

fn verbatim_wrong(item: &Item) -> Vec<Wrong> {
    let passage = &item.expected.answer;
    let characters: Vec<char> = passage.chars().collect();
    let half: String = characters[..characters.len() / 2].iter().collect();
    let mut changed = characters.clone();
    changed[characters.len() / 3] = '#';
    vec![
        (FaultKind::Empty, vec![String::new()]),
        (FaultKind::Missing, vec![half]),
        (FaultKind::Diverged, vec![changed.into_iter().collect()]),
        (FaultKind::Extra, vec![format!("{passage} {passage}")]),
        (FaultKind::ExtraText, vec![format!("** {passage}")]),
    ]
}

fn ledger(item: &Item) -> Vec<String> {
    let (text, question) = text_and_question(item);
    let account = asked(question, &[r"[Tt]he (\S+) account", r"(?:^|，|。)([^，。]+?)账户"]);
    let start = asked(question, &[r"(\d+) crowns", r"(\d+)元"]);
    let entries = pattern(
        item,
        r"Entry number (\d+) of the {} account is (\d+) crowns paid (in|out)\.",
        r"{}账户的第(\d+)笔账是(?:存入|支出)(\d+)元()。",
        &account,
    );
    let changes = entries.captures_iter(text).map(|found| {
        let amount: i64 = found[2].parse().expect("an amount");
        let is_paid_in = &found[3] == "in" || found[0].contains("存入");
        (found[1].parse::<usize>().expect("a number"), if is_paid_in { amount } else { -amount })
    });
    let mut balance: i64 = start.parse().expect("a balance");
    let lines = changes.collect::<BTreeMap<_, _>>().into_iter().map(|(number, change)| {
        balance += change;
        format!("{number}: {balance}")
    });
    vec![lines.collect::<Vec<_>>().join("\n")]
}

fn path_walk(item: &Item) -> Vec<String> {
    let (text, question) = text_and_question(item);
    let mut place = asked(
        question,
        &[r"Start at the (\S+ \S+) and", r"begins at the (\S+ \S+) and", r"^从(.+?)出发", r"行走从(.+?)开始"],
    );
    let hops: usize = asked(question, &[r"(\d+) steps", r"(\d+)步"]).parse().expect("a number");
    let patterns = if item.language == Language::En {
        [
            r"The path from the (\S+ \S+) leads to the (\S+ \S+)\.",
            r"From the (\S+ \S+), the path leads to the (\S+ \S+)\.",
        ]
    } else {
        [r"从([^。，]+?)出发的小路通向([^。，]+?)。", r"离开([^。，]+?)以后，小路通向([^。，]+?)。"]
    };
    let mut ways: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for pattern in patterns {
        for found in Regex::new(pattern).expect("a valid pattern").captures_iter(text) {
            ways.entry(found[1].to_owned()).or_default().push(found[2].to_owned());
        }
    }
    let mut lines = Vec::new();
    for step in 1..=hops {
        // The filler has ways of its own; from a place of the walk there is one.
        let [next] = ways.get(&place).map_or(&[][..], Vec::as_slice) else { panic!("not one way on from {place}") };
        place.clone_from(next);
        lines.push(format!("{step}: {place}"));
    }
    vec![lines.join("\n")]
}

fn lines(item: &Item) -> Vec<String> {
    item.expected.answer.lines().map(str::to_owned).collect()
}

/// Wrong answers of the tasks whose lines are steps.
fn steps_wrong(item: &Item) -> Vec<Wrong> {
    let lines = lines(item);
    let last = lines.len() - 1;
    let (mut swapped, mut repeated, mut slipped) = (lines.clone(), lines.clone(), lines.clone());
    swapped.swap(0, 1);
    repeated.insert(1, lines[0].clone());
    slipped[1] = "2: 1".into();
    vec![
        (FaultKind::Empty, vec![String::new()]),
        (FaultKind::WrongStep, vec![slipped.join("\n")]),
        (FaultKind::Missing, vec![lines[..last].join("\n")]),
        (FaultKind::Missing, vec![[&lines[..1], &lines[2..]].concat().join("\n")]),
        (FaultKind::OutOfOrder, vec![swapped.join("\n")]),
        (FaultKind::Duplicated, vec![repeated.join("\n")]),
        (FaultKind::Extra, vec![format!("{}\n{}: 1", item.expected.answer, lines.len() + 1)]),
        (FaultKind::ExtraText, vec![format!("{}\nThat is all there is, as far as I can see.", item.expected.answer)]),
    ]
}

fn repeat_edit(item: &Item) -> Vec<String> {
    let (text, question) = text_and_question(item);
    let label = asked(question, &[r"the (\S+) row of words", r"(?:重复|抄写)(.+?)词表"]);
    let row = pattern(
        item,
        r"Here begins the {} row of words: ([^.]+)\. Here ends the {} row of words\.",
        r"{}词表从这里开始：([^。]+)。\s*{}词表到这里结束",
        &label,
    );
    let quoted: Vec<String> = Regex::new("[\"“]([^\"“”]+)[\"”]")
        .expect("a valid pattern")
        .captures_iter(question)
        .map(|found| found[1].to_owned())
        .collect();
    // One English wording names the replacement first.
    let (from, to) = if question.contains("but write") { (&quoted[1], &quoted[0]) } else { (&quoted[0], &quoted[1]) };
    let words = row.captures(text).expect("the row")[1].to_owned();
    let changed = words.split(' ').map(|word| if word == from { to.as_str() } else { word });
    vec![changed.collect::<Vec<_>>().join(" ")]
}

fn repeat_edit_wrong(item: &Item) -> Vec<Wrong> {
    let kvgauge::sample::Gold::Edit { original, edited, place } = &item.expected.gold else {
        panic!("an edit, not {:?}", item.expected.gold)
    };
    let last = edited.len() - 1;
    let mut other = edited.clone();
    other[(place + 1) % edited.len()] = "###".into();
    let without_first = edited[1..].join(" ");
    vec![
        (FaultKind::Empty, vec![String::new()]),
        (FaultKind::NotEdited, vec![original.join(" ")]),
        (FaultKind::Diverged, vec![other.join(" ")]),
        (FaultKind::Missing, vec![edited[..last].join(" ")]),
        (FaultKind::Missing, vec![without_first]),
        (FaultKind::Extra, vec![format!("{} {}", item.expected.answer, edited[0])]),
        (FaultKind::ExtraText, vec![format!("### {}", item.expected.answer)]),
    ]
}
