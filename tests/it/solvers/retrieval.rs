//! Solvers of the retrieval and tracing tasks.

use std::collections::HashMap;

use kvgauge::sample::{FaultKind, Gold, Item, Language};
use regex::Regex;

use super::{Solver, Wrong, text_and_question};

pub(super) static SOLVERS: &[Solver] = &[
    Solver { task: "needle", solve: needle, wrong: value_wrong },
    Solver { task: "lookalike", solve: lookalike, wrong: value_wrong },
    Solver { task: "multivalue", solve: multivalue, wrong: ordered_wrong },
    Solver { task: "multiquery", solve: multiquery, wrong: multiquery_wrong },
    Solver { task: "latest_value", solve: latest_value, wrong: latest_value_wrong },
    Solver { task: "absent", solve: absent, wrong: absent_wrong },
    Solver { task: "chain", solve: chain, wrong: chain_wrong },
    Solver { task: "relation", solve: relation, wrong: relation_wrong },
    Solver { task: "frequent_codes", solve: frequent_codes, wrong: ordered_wrong },
];

/// All matches of the pattern of the item's language, as their groups; `{}` in it stands for `name`.
fn all(item: &Item, english: &str, chinese: &str, name: &str) -> Vec<Vec<String>> {
    let pattern = if item.language == Language::En { english } else { chinese };
    let pattern = Regex::new(&pattern.replace("{}", &regex::escape(name))).expect("a valid pattern");
    let groups = |found: regex::Captures| {
        found.iter().skip(1).map(|group| group.map_or("", |group| group.as_str()).to_owned()).collect()
    };
    pattern.captures_iter(text_and_question(item).0).map(groups).collect()
}

/// The groups that matched of the first of these patterns that the question fits.
fn asked(item: &Item, patterns: &[&str]) -> Vec<String> {
    let question = text_and_question(item).1;
    let found = patterns.iter().find_map(|pattern| Regex::new(pattern).expect("a valid pattern").captures(question));
    let found = found.unwrap_or_else(|| panic!("the question names nothing: {question}"));
    found.iter().skip(1).flatten().map(|group| group.as_str().to_owned()).collect()
}

/// The only value of a key that is called `name`.
fn value_of(item: &Item, name: &str, key: &str) -> Option<String> {
    let english = format!(r"The {} for the {{}} is (\w+)\.", regex::escape(name));
    let chinese = format!(r"[。\n始]{{}}的{}是([0-9a-f]+)", regex::escape(name));
    let values = all(item, &english, &chinese, key);
    assert!(values.len() <= 1, "{key}: {values:?}");
    values.into_iter().next().map(|groups| groups[0].clone())
}

fn needle(item: &Item) -> Vec<String> {
    let asked = asked(item, &[r"What is the (.+?) for the (.+?)\?", r"^(?P<key>.+)的(?P<name>.+?)是什么"]);
    let (name, key) = if item.language == Language::En { (&asked[0], &asked[1]) } else { (&asked[1], &asked[0]) };
    vec![value_of(item, name, key).expect("the needle")]
}

fn lookalike(item: &Item) -> Vec<String> {
    let key = &asked(item, &[r"key ([a-z]{6})", r"键为?([a-z]{6})"])[0];
    let pattern = format!(r"\n{key}: (\w+)");
    vec![all(item, &pattern, &pattern, "")[0][0].clone()]
}

/// As many digits, all of them wrong, and not to be had from the right ones by a few changes.
fn other_value(value: &str) -> String {
    let turned = |by: u32| -> String {
        let turn = |c: char| match c.to_digit(10) {
            Some(digit) => char::from_digit((digit + by) % 10, 10).expect("a digit"),
            None if c.is_ascii_hexdigit() => '0',
            None => c,
        };
        value.chars().map(turn).collect()
    };
    // Up to a fifth of the characters, and two in any case, is near.
    let is_far = |other: &String| strsim::damerau_levenshtein(value, other) > (value.len() / 5).max(2);
    // A number that began with a zero would be another kind of value.
    let is_alike = |other: &String| !other.starts_with('0') || value.bytes().any(|byte| byte.is_ascii_alphabetic());
    (1..10).map(turned).find(|other| is_alike(other) && is_far(other)).expect("one of nine is far")
}

/// The first two different neighbours change places.
fn transposed(value: &str) -> String {
    let mut chars: Vec<char> = value.chars().collect();
    let at = (1..chars.len()).find(|&at| chars[at] != chars[at - 1]).expect("two different digits");
    chars.swap(at - 1, at);
    chars.into_iter().collect()
}

fn value_wrong(item: &Item) -> Vec<Wrong> {
    let Gold::Value { value, distractors } = &item.expected.gold else { panic!("a value") };
    let is_free = |other: &String| distractors.iter().all(|distractor| distractor.value != *other);
    let mut wrong = vec![(FaultKind::Empty, String::new())];
    wrong.extend([transposed(value)].into_iter().filter(is_free).map(|answer| (FaultKind::NearMiss, answer)));
    wrong.extend([other_value(value)].into_iter().filter(is_free).map(|answer| (FaultKind::WrongValue, answer)));
    if let Some(other) = distractors.first() {
        wrong.push((FaultKind::OtherKey, other.value.clone()));
        wrong.push((FaultKind::Extra, format!("{value} {}", other.value)));
    }
    one_each(wrong)
}

fn one_each(wrong: Vec<(FaultKind, String)>) -> Vec<Wrong> {
    wrong.into_iter().map(|(kind, answer)| (kind, vec![answer])).collect()
}

fn multivalue(item: &Item) -> Vec<String> {
    let key = &asked(
        item,
        &[
            r"special \w+s for the (.+?)\?",
            r"special \w+s for the (.+?)\.",
            r"^文中给出了(.+?)的\d+个特别",
            r"^(.+?)的\d+个特别",
        ],
    )[0];
    let values = all(item, r"One special \w+ for the {} is (\w+)\.", r"[。\n始]{}的特别..当中有一个是([0-9a-f]+)", key);
    vec![values.into_iter().map(|groups| groups[0].clone()).collect::<Vec<_>>().join("\n")]
}

fn ordered_wrong(item: &Item) -> Vec<Wrong> {
    let Gold::Ordered { values, others } = &item.expected.gold else { panic!("values in order") };
    let with_last = |last: &str| [&values[..values.len() - 1], &[last.to_owned()]].concat().join("\n");
    let with_more = |more: &str| [values.as_slice(), &[more.to_owned()]].concat().join("\n");
    let (mut swapped, last) = (values.clone(), &values[values.len() - 1]);
    swapped.swap(0, 1);
    let is_free = |other: &String| !values.contains(other) && !others.contains(other);
    let mut wrong = vec![
        (FaultKind::Empty, String::new()),
        (FaultKind::Missing, values[..values.len() - 1].join("\n")),
        (FaultKind::OutOfOrder, swapped.join("\n")),
        (FaultKind::Duplicated, with_more(&values[0])),
    ];
    if let Some(other) = others.first() {
        wrong.extend([(FaultKind::OtherKey, with_last(other)), (FaultKind::Extra, with_more(other))]);
    }
    wrong.extend([transposed(last)].iter().filter(|it| is_free(it)).map(|it| (FaultKind::NearMiss, with_last(it))));
    wrong.extend([other_value(last)].iter().filter(|it| is_free(it)).map(|it| (FaultKind::WrongValue, with_last(it))));
    one_each(wrong)
}

fn multiquery(item: &Item) -> Vec<String> {
    let list = &asked(
        item,
        &[
            r"these things: (.+?)\? Write",
            r"of the following: (.+?)\. Answer",
            r"分别是什么：(.+?)？",
            r"的特别..：(.+?)。",
        ],
    )[0];
    let name = if item.language == Language::En { "special number" } else { "特别号码" };
    let lines = list.split([',', '、']).map(str::trim).map(|key| {
        let value = value_of(item, name, key).unwrap_or_else(|| panic!("no value of {key}"));
        format!("{key}={value}")
    });
    vec![lines.collect::<Vec<_>>().join("\n")]
}

fn multiquery_wrong(item: &Item) -> Vec<Wrong> {
    let Gold::Bindings { pairs } = &item.expected.gold else { panic!("pairs") };
    let written = |values: &[String]| -> String {
        let lines = pairs.iter().zip(values).map(|(pair, value)| format!("{}={value}", pair.key));
        lines.collect::<Vec<_>>().join("\n")
    };
    let values: Vec<String> = pairs.iter().map(|pair| pair.value.clone()).collect();
    let (mut swapped, mut near) = (values.clone(), values.clone());
    swapped.swap(0, 1);
    near[0] = transposed(&values[0]);
    vec![
        (FaultKind::Empty, vec![String::new()]),
        (FaultKind::Missing, vec![written(&values[..values.len() - 1])]),
        (FaultKind::SwappedBindings, vec![written(&swapped)]),
        (FaultKind::NearMiss, vec![written(&near)]),
    ]
}

fn latest_value(item: &Item) -> Vec<String> {
    let question = text_and_question(item).1;
    let key = &asked(
        item,
        &[
            r"The current \w+ for the (.+?) was updated",
            r"What is the current \w+ for the (.+?) at the end",
            r"set for the (.+?)\?",
            r"所有更新完成以后，(.+?)的现行",
            r"次更新把(.+?)的现行",
            r"^(.+?)的现行..更新过多次",
        ],
    )[0];
    let updates = all(
        item,
        r"(?:Since|With) update (\d+), the current \w+ for the {} is (\w+)\.",
        r"第(\d+)次更新(?:以后)?，{}的现行..是([0-9a-f]+)",
        key,
    );
    let number = Regex::new(r"update (\d+)|第(\d+)次").expect("a valid pattern").captures(question);
    let wanted = number.map(|found| found.get(1).or(found.get(2)).expect("a number").as_str().to_owned());
    let update = match wanted {
        Some(wanted) => updates.iter().find(|update| update[0] == wanted),
        None => updates.last(),
    };
    vec![update.expect("the update")[1].clone()]
}

fn latest_value_wrong(item: &Item) -> Vec<Wrong> {
    let Gold::History { versions, asked } = &item.expected.gold else { panic!("versions") };
    let value = &versions[*asked];
    let mut wrong = vec![
        (FaultKind::Empty, String::new()),
        (FaultKind::Stale, versions[(asked + 1) % versions.len()].clone()),
        (FaultKind::Extra, versions.join(", ")),
    ];
    let free = [(FaultKind::NearMiss, transposed(value)), (FaultKind::WrongValue, other_value(value))];
    wrong.extend(free.into_iter().filter(|(_, answer)| !versions.contains(answer)));
    one_each(wrong)
}

fn absent(item: &Item) -> Vec<String> {
    let key = &asked(item, &[r"special \w+ for the (.+?)\?", r"给出(.+?)的特别", r"^(.+?)的特别"])[0];
    let name = if item.language == Language::En { "special number" } else { "特别号码" };
    assert!(!text_and_question(item).0.contains(key.as_str()), "{key} is in the text");
    let none = asked(item, &[r"answer ([A-Z]+)\.", r"请回答“(.+?)”"]).remove(0);
    vec![value_of(item, name, key).unwrap_or(none)]
}

fn absent_wrong(item: &Item) -> Vec<Wrong> {
    let Gold::Absent { none, present } = &item.expected.gold else { panic!("nothing") };
    let unsure = if item.language == Language::En { "I cannot tell." } else { "我不知道。" };
    one_each(vec![
        (FaultKind::Empty, String::new()),
        (FaultKind::Missing, unsure.to_owned()),
        (FaultKind::Invented, present[0].value.clone()),
        (FaultKind::Invented, other_value(&present[0].value)),
        (FaultKind::Invented, format!("{none} {}", present[0].value)),
    ])
}

fn chain(item: &Item) -> Vec<String> {
    let value = &asked(item, &[r"(\d{4})"])[0];
    let starts = all(item, r"variable ([A-Z]+) is set to {}\.", r"变量([A-Z]+)的值设为{}。", value);
    let mut members = vec![starts[0][0].clone()];
    let steps =
        all(item, r"variable ([A-Z]+) is set to the value of ([A-Z]+)\.", r"变量([A-Z]+)的值设为([A-Z]+)的值", "");
    for step in steps {
        if members.contains(&step[1]) {
            members.push(step[0].clone());
        }
    }
    vec![members.join(", ")]
}

fn chain_wrong(item: &Item) -> Vec<Wrong> {
    let Gold::Set { members, decoys } = &item.expected.gold else { panic!("a set") };
    let more = |name: &str| [members.as_slice(), &[name.to_owned()]].concat().join(", ");
    let mut near = members.clone();
    near[0] = transposed(&members[0]);
    one_each(vec![
        (FaultKind::Empty, String::new()),
        (FaultKind::Missing, members[1..].join(", ")),
        (FaultKind::Extra, more(&decoys[0])),
        (FaultKind::Duplicated, more(&members[0])),
        (FaultKind::NearMiss, near.join(", ")),
    ])
}

fn relation(item: &Item) -> Vec<String> {
    let thing = &asked(
        item,
        &[r"In which town is the (.+?) at the end", r"carries the (.+?)\.", r"到文章最后，(.+?)在", r"有人带着(.+?)。"],
    )[0];
    let name = &all(item, r"All the time, (\w+) carried the {}\.", r"[。\n始]([^。\n]+?)一直随身带着{}", thing)[0][0];
    let towns = all(item, r"After that, {} travelled to (\w+)\.", r"在那之后，{}去了([^。\n]+)", name);
    vec![towns.last().expect("a journey")[0].clone()]
}

fn relation_wrong(item: &Item) -> Vec<Wrong> {
    let Gold::Label { label, others } = &item.expected.gold else { panic!("a label") };
    let unsure = if item.language == Language::En { "I cannot tell." } else { "我不知道。" };
    one_each(vec![
        (FaultKind::Empty, String::new()),
        (FaultKind::Missing, unsure.to_owned()),
        (FaultKind::WrongValue, others[0].clone()),
        (FaultKind::Extra, format!("{label}, {}", others[0])),
    ])
}

fn frequent_codes(item: &Item) -> Vec<String> {
    let label = &asked(item, &[r"the (\S+) list", r"^关于(.+?)名单", r"提到(.+?)名单"])[0];
    let codes = all(
        item,
        r"Code (\d{4}) is in the {} list\.|The {} list has code (\d{4})\.|In the {} list there is code (\d{4})\.",
        r"[。\n始]{}名单上有代码(\d{4})|代码(\d{4})在{}名单上|[。\n始]{}名单里写着代码(\d{4})",
        label,
    );
    let mut counts: HashMap<String, usize> = HashMap::new();
    for code in codes.into_iter().flatten().filter(|code| !code.is_empty()) {
        *counts.entry(code).or_default() += 1;
    }
    let mut counted: Vec<(usize, String)> = counts.into_iter().map(|(code, count)| (count, code)).collect();
    counted.sort_unstable_by(|left, right| right.cmp(left));
    assert!(counted.len() < 4 || counted[3].0 < counted[2].0, "{counted:?}");
    vec![counted.into_iter().take(3).map(|(_, code)| code).collect::<Vec<_>>().join("\n")]
}
