//! `key=value` lines: the share of keys that have exactly their value.
//!
//! `value = right keys / (keys asked + pairs not asked for + repeated pairs)`; right means that nothing is missing, wrong,
//! repeated or too much. The order of the lines is free. Tolerated: `:` for `=`, spaces, list markers, quotes, braces of a
//! JSON object, several pairs in one line, prose without a separator.

use std::collections::{BTreeMap, BTreeSet};

use crate::sample::{Binding, Completion, Fault, FaultKind, Gold, Item, Score};
use crate::scorers::answer_text::{bare, content_lines, is_announcement, nearness, without_marker};
use crate::scorers::{empty, fault, right, seen, wrong};

/// Most pairs read from an answer: sixteen times the largest task; a loop repeats what was seen.
const MAX_PAIRS: usize = 4096;

pub(super) fn score(item: &Item, completion: &Completion) -> Score {
    let text = completion.text.trim();
    let gold = match &item.expected.gold {
        Gold::Bindings { pairs } => pairs.clone(),
        _ => pairs_in(&item.expected.answer, &[]).into_iter().map(|(key, value)| Binding { key, value }).collect(),
    };
    if text == item.expected.answer.trim() {
        return right(text);
    }
    if text.is_empty() {
        return empty();
    }
    let answer = Answer::read(text, &gold);
    let faults = answer.faults(&gold);
    let extracted = answer.extracted();
    if faults.is_empty() {
        return right(&extracted);
    }
    let right_keys = gold.iter().filter(|pair| answer.is_right(pair)).count();
    let judged = gold.len() + answer.extra.len() + answer.repeated;
    wrong(right_keys as f64 / judged.max(1) as f64, &extracted, faults)
}

/// What an answer says, by key asked.
struct Answer {
    /// Distinct values given for each key asked.
    given: BTreeMap<String, Vec<String>>,
    extra: BTreeSet<(String, String)>,
    repeated: usize,
}

impl Answer {
    fn read(text: &str, gold: &[Binding]) -> Self {
        let mut answer = Self { given: BTreeMap::new(), extra: BTreeSet::new(), repeated: 0 };
        let most_words = gold.iter().map(|pair| pair.key.split_whitespace().count()).max().unwrap_or(1);
        let keys: Vec<&str> = gold.iter().map(|pair| pair.key.as_str()).collect();
        for (key, value) in pairs_in(text, &keys) {
            let asked = keys
                .iter()
                .find(|asked| **asked == key)
                .or_else(|| keys.iter().find(|asked| asked.to_lowercase() == key.to_lowercase()));
            match asked {
                Some(asked) => {
                    let values = answer.given.entry((*asked).to_string()).or_default();
                    if values.contains(&value) {
                        answer.repeated += 1;
                    } else {
                        values.push(value);
                    }
                }
                // A sentence with a colon is prose, not a pair.
                None if key.split_whitespace().count() <= most_words => {
                    let is_new = answer.extra.insert((key, value));
                    answer.repeated += usize::from(!is_new);
                }
                None => {}
            }
        }
        answer
    }

    fn is_right(&self, pair: &Binding) -> bool {
        self.given.get(&pair.key).is_some_and(|values| values.len() == 1 && values[0] == bare(&pair.value))
    }

    fn extracted(&self) -> String {
        let given = self.given.iter().flat_map(|(key, values)| values.iter().map(move |value| (key, value)));
        let extra = self.extra.iter().map(|(key, value)| (key, value));
        given.chain(extra).map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join("\n")
    }

    fn faults(&self, gold: &[Binding]) -> Vec<Fault> {
        let mut swapped = Vec::new();
        let mut near = Vec::new();
        let mut other = Vec::new();
        let mut missing = Vec::new();
        let mut conflicting = Vec::new();
        for pair in gold.iter().filter(|pair| !self.is_right(pair)) {
            let values = match self.given.get(&pair.key).map(Vec::as_slice) {
                None | Some([]) => {
                    missing.push(pair.key.clone());
                    continue;
                }
                Some(values) => values,
            };
            if values.len() > 1 {
                conflicting.push(format!("{} has {} values", pair.key, values.len()));
                continue;
            }
            let (value, wanted) = (&values[0], bare(&pair.value));
            let owner = gold.iter().find(|owner| owner.key != pair.key && bare(&owner.value) == value);
            if let Some(owner) = owner {
                swapped.push(format!("{} has {}, the value of {}", pair.key, seen(value), owner.key));
            } else if let Some(how) = nearness(wanted, value) {
                near.push(format!("{}: {} for {}: {how}", pair.key, seen(value), seen(wanted)));
            } else {
                other.push(format!("{}: {} for {}", pair.key, seen(value), seen(wanted)));
            }
        }
        if conflicting.is_empty() && self.repeated > 0 {
            conflicting.push(format!("{} pairs given again", self.repeated));
        }
        let extra = self.extra.iter().map(|(key, value)| format!("{}={}", seen(key), seen(value))).collect();
        [
            (FaultKind::SwappedBindings, swapped),
            (FaultKind::NearMiss, near),
            (FaultKind::WrongValue, other),
            (FaultKind::Missing, missing),
            (FaultKind::Extra, extra),
            (FaultKind::Duplicated, conflicting),
        ]
        .into_iter()
        .filter_map(|(kind, notes): (FaultKind, Vec<String>)| {
            let first = notes.first()?;
            Some(fault(kind, format!("{} of {}: {first}", notes.len(), gold.len())))
        })
        .collect()
    }
}

/// Pairs of an answer in order. `keys` are looked for first, so that a key may hold a separator.
fn pairs_in(text: &str, keys: &[&str]) -> Vec<(String, String)> {
    let mut lines = content_lines(text).peekable();
    if lines.peek().is_some_and(|line| is_announcement(line)) {
        lines.next();
    }
    let mut pairs = Vec::new();
    for line in lines {
        let line = line.trim_matches(['{', '}', '[', ']']);
        let parts: Vec<&str> = line.split([',', ';', '，', '；']).filter(|part| !part.trim().is_empty()).collect();
        let several: Option<Vec<_>> = parts.iter().map(|part| pair_in(part, keys)).collect();
        match several {
            Some(several) if several.len() > 1 => pairs.extend(several),
            _ => pairs.extend(pair_in(line, keys)),
        }
        if pairs.len() >= MAX_PAIRS {
            break;
        }
    }
    pairs
}

pub(super) fn pair_in(line: &str, keys: &[&str]) -> Option<(String, String)> {
    let line = without_marker(line);
    let opened = line.trim_start_matches(['"', '\'', '`', '*', '“', ' ']);
    let known = keys.iter().filter(|key| opened.starts_with(**key)).max_by_key(|key| key.len()).and_then(|key| {
        let rest = opened[key.len()..].trim_start_matches(['"', '\'', '`', '*', '”', ' ']);
        Some((*key, after_separator(rest)?))
    });
    let (key, value) = match known {
        Some(found) => found,
        None => {
            let at = line.find(['=', ':', '：', '＝', '→', '\t']).or_else(|| line.find("->"))?;
            (&line[..at], after_separator(&line[at..])?)
        }
    };
    let (key, value) = (bare(key), bare(value));
    (!key.is_empty() && !value.is_empty()).then(|| (key.to_string(), value.to_string()))
}

fn after_separator(text: &str) -> Option<&str> {
    ["=>", "->", "=", ":", "：", "＝", "→", "\t", "is "].iter().find_map(|separator| text.strip_prefix(separator))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scorers::tests::{check_table, completion, item};

    fn three() -> Item {
        let pairs = [("ar-29", "4829173"), ("bx-07", "1150264"), ("copper lantern", "7733915")]
            .map(|(key, value)| Binding { key: key.into(), value: value.into() });
        item(
            "bindings",
            "ar-29=4829173\nbx-07=1150264\ncopper lantern=7733915",
            Gold::Bindings { pairs: pairs.to_vec() },
        )
    }

    #[test]
    fn the_ways_to_write_a_pair_are_read() {
        let answers = [
            "copper lantern=7733915\nar-29=4829173\nbx-07=1150264",
            "- ar-29: 4829173\n- bx-07 : 1150264.\n- copper lantern: 7733915",
            "1. **ar-29** = 4829173\n2. **bx-07** = 1150264\n3. **Copper Lantern** = 7733915",
            "Here are the values:\n\"ar-29\": \"4829173\",\n\"bx-07\": \"1150264\",\n\"copper lantern\": \"7733915\"",
            "ar-29=4829173, bx-07=1150264, copper lantern=7733915",
            "{\"ar-29\": 4829173, \"bx-07\": 1150264, \"copper lantern\": 7733915}",
            "```\nar-29=4829173\nbx-07=1150264\ncopper lantern=7733915\n```",
            "ar-29：4829173\nbx-07：1150264\ncopper lantern is 7733915",
        ];
        for answer in answers {
            check_table(&three(), &[(answer, &[])]);
        }
    }

    #[test]
    fn each_wrong_answer_gets_its_name() {
        use FaultKind::{Duplicated, Empty, Extra, Missing, NearMiss, SwappedBindings, WrongValue};
        check_table(
            &three(),
            &[
                ("", &[Empty]),
                ("nothing to see", &[Missing]),
                ("ar-29=4829173\nbx-07=1150264", &[Missing]),
                ("ar-29=1150264\nbx-07=4829173\ncopper lantern=7733915", &[SwappedBindings]),
                ("ar-29=4829713\nbx-07=1150264\ncopper lantern=7733915", &[NearMiss]),
                ("ar-29=5550000\nbx-07=1150264\ncopper lantern=7733915", &[WrongValue]),
                ("ar-29=4829173\nbx-07=1150264\ncopper lantern=7733915\nzz-11=3", &[Extra]),
                ("ar-29=4829173\nbx-07=1150264\ncopper lantern=7733915\nar-29=4829173", &[Duplicated]),
                ("ar-29=4829173\nar-29=1\nbx-07=1150264\ncopper lantern=7733915", &[Duplicated]),
                ("ar-28=4829173\nbx-07=1150264\ncopper lantern=7733915", &[Missing, Extra]),
            ],
        );
    }

    #[test]
    fn the_value_is_the_share_of_right_keys() {
        let swapped = score(&three(), &completion("ar-29=1150264\nbx-07=4829173\ncopper lantern=7733915"));
        assert!((swapped.value - 1.0 / 3.0).abs() < 1e-12);
        assert_eq!(swapped.faults[0].note, "2 of 3: ar-29 has 1150264, the value of bx-07");
        let extra = score(&three(), &completion("ar-29=4829173\nbx-07=1150264\ncopper lantern=7733915\nzz-11=3"));
        assert!((extra.value - 0.75).abs() < 1e-12);
    }
}
