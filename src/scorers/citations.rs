//! Facts with the source each stands in: lines `key: value [source]`.
//!
//! Citation precision is the share of the sources given that are right for a right value, recall the share of facts with
//! the right value and the right source alone. The order of the lines is free.
//!
//! `value = (facts right in value and source + half of those right in one) / (facts + lines too much)`; 1 only when every
//! fact has its value and exactly its source.

use std::collections::BTreeMap;

use crate::sample::{CitedFact, Completion, Fault, FaultKind, Gold, Item, Score};
use crate::scorers::answer_text::{bare, content_lines, is_announcement, nearness};
use crate::scorers::bindings::pair_in;
use crate::scorers::{empty, fault, right, seen, wrong};

/// Lines read from an answer: many times the largest task; a loop repeats what was seen.
const MAX_LINES: usize = 4096;

/// Brackets around a source.
const BRACKETS: [(char, char); 3] = [('[', ']'), ('【', '】'), ('［', '］')];

pub(super) fn score(item: &Item, completion: &Completion) -> Score {
    let text = completion.text.trim();
    if text == item.expected.answer.trim() {
        return right(text);
    }
    if text.is_empty() {
        return empty();
    }
    let (facts, sources) = match &item.expected.gold {
        Gold::Citations { facts, sources } => (facts.clone(), sources.clone()),
        _ => (inferred(&item.expected.answer), Vec::new()),
    };
    let answer = Answer::read(text, &facts);
    let judged: Vec<Judged> = facts.iter().map(|fact| answer.judge(fact, &facts, &sources)).collect();
    let mut faults = answer.faults(&judged);
    if faults.is_empty() {
        return right(text);
    }
    let full = judged.iter().filter(|fact| fact.value_right && fact.source_right).count();
    let half = judged.iter().filter(|fact| fact.value_right != fact.source_right).count();
    let precision = full as f64 / answer.citations.max(1) as f64;
    let recall = full as f64 / facts.len().max(1) as f64;
    faults[0].note.push_str(&format!("; citation precision {precision:.2}, recall {recall:.2}"));
    let all = facts.len() + answer.extra.len() + answer.repeated;
    wrong((full as f64 + half as f64 / 2.0) / all.max(1) as f64, text, faults)
}

/// Facts of an expected answer without typed gold.
fn inferred(answer: &str) -> Vec<CitedFact> {
    let lines = content_lines(answer).filter_map(|line| {
        let (rest, mut sources) = sources_of(line);
        let (key, value) = pair_in(&rest, &[])?;
        Some(CitedFact { key, value, source: sources.pop()? })
    });
    lines.collect()
}

/// A line of an answer: a value with the sources behind it.
#[derive(PartialEq, Eq)]
struct Given {
    value: String,
    sources: Vec<String>,
}

struct Answer {
    /// By key asked, each distinct line once.
    given: BTreeMap<String, Vec<Given>>,
    /// Lines on keys not asked for.
    extra: Vec<String>,
    repeated: usize,
    /// All sources named.
    citations: usize,
}

/// One fact as answered.
#[derive(Default)]
struct Judged {
    value_right: bool,
    source_right: bool,
    faults: Vec<(FaultKind, String)>,
}

impl Answer {
    fn read(text: &str, facts: &[CitedFact]) -> Self {
        let mut answer = Self { given: BTreeMap::new(), extra: Vec::new(), repeated: 0, citations: 0 };
        let keys: Vec<&str> = facts.iter().map(|fact| fact.key.as_str()).collect();
        let lines = content_lines(text).take(MAX_LINES).enumerate();
        for (_, line) in lines.filter(|(number, line)| *number > 0 || !is_announcement(line)) {
            let (rest, sources) = sources_of(line);
            let Some((key, value)) = pair_in(&rest, &keys) else {
                continue;
            };
            let asked = keys.iter().find(|asked| **asked == key || asked.to_lowercase() == key.to_lowercase());
            let Some(asked) = asked else {
                // A sentence without a source is prose, not a fact.
                if !sources.is_empty() {
                    answer.citations += sources.len();
                    answer.extra.push(seen(line));
                }
                continue;
            };
            let lines = answer.given.entry((*asked).to_owned()).or_default();
            let given = Given { value, sources };
            if lines.contains(&given) {
                answer.repeated += 1;
            } else {
                answer.citations += given.sources.len();
                lines.push(given);
            }
        }
        answer
    }

    fn judge(&self, fact: &CitedFact, facts: &[CitedFact], sources: &[String]) -> Judged {
        let lines = self.given.get(&fact.key).map_or(&[][..], Vec::as_slice);
        let mut judged = Judged::default();
        let given = match lines {
            [] => {
                judged.faults.push((FaultKind::Missing, fact.key.clone()));
                return judged;
            }
            [given] => given,
            several => {
                let note = format!("{} has {} lines that differ", fact.key, several.len());
                judged.faults.push((FaultKind::Duplicated, note));
                return judged;
            }
        };
        judged.value_right = given.value == bare(&fact.value);
        judged.source_right = given.sources.len() == 1 && given.sources[0] == fact.source;
        if !judged.value_right {
            judged.faults.push(value_fault(fact, facts, &given.value));
        }
        if given.sources.is_empty() {
            judged.faults.push((FaultKind::Missing, format!("the source of {}", fact.key)));
        } else if !judged.source_right {
            let note = source_note(fact, facts, sources, &given.sources);
            judged.faults.push((FaultKind::WrongSource, note));
        }
        judged
    }

    fn faults(&self, judged: &[Judged]) -> Vec<Fault> {
        let mut all: Vec<(FaultKind, Vec<String>)> = [
            FaultKind::WrongSource,
            FaultKind::SwappedBindings,
            FaultKind::NearMiss,
            FaultKind::WrongValue,
            FaultKind::Missing,
            FaultKind::Duplicated,
        ]
        .into_iter()
        .map(|kind| {
            let notes = judged.iter().flat_map(|fact| &fact.faults).filter(|(found, _)| *found == kind);
            (kind, notes.map(|(_, note)| note.clone()).collect())
        })
        .collect();
        if self.repeated > 0
            && let Some((_, notes)) = all.last_mut()
        {
            notes.push(format!("{} lines again", self.repeated));
        }
        all.push((FaultKind::Extra, self.extra.clone()));
        let faults = all.into_iter().filter_map(|(kind, notes)| {
            let first = notes.first()?;
            Some(fault(kind, format!("{} of {}: {first}", notes.len(), judged.len())))
        });
        faults.collect()
    }
}

fn value_fault(fact: &CitedFact, facts: &[CitedFact], value: &str) -> (FaultKind, String) {
    let wanted = bare(&fact.value);
    let owner = facts.iter().find(|other| other.key != fact.key && bare(&other.value) == value);
    if let Some(owner) = owner {
        (FaultKind::SwappedBindings, format!("{} has {}, the value of {}", fact.key, seen(value), owner.key))
    } else if let Some(how) = nearness(wanted, value) {
        (FaultKind::NearMiss, format!("{}: {} for {}: {how}", fact.key, seen(value), seen(wanted)))
    } else {
        (FaultKind::WrongValue, format!("{}: {} for {}", fact.key, seen(value), seen(wanted)))
    }
}

fn source_note(fact: &CitedFact, facts: &[CitedFact], sources: &[String], given: &[String]) -> String {
    let key = &fact.key;
    if given.len() > 1 {
        return format!("{key}: {} sources for one", given.len());
    }
    let name = &given[0];
    let place = |name: &String| sources.iter().position(|source| source == name);
    let whose = facts.iter().find(|other| other.source == *name).map(|other| format!(", that of {}", other.key));
    let how = match (place(name), place(&fact.source)) {
        _ if sources.is_empty() => String::new(),
        (None, _) => ", which is no source of the text".into(),
        (Some(at), Some(wanted)) => format!(", {} sources away", at.abs_diff(wanted)),
        (Some(_), None) => String::new(),
    };
    format!("{key}: [{}] for [{}]{how}{}", seen(name), fact.source, whose.unwrap_or_default())
}

/// A line without the sources it names, and their names.
fn sources_of(line: &str) -> (String, Vec<String>) {
    let mut rest = String::with_capacity(line.len());
    let mut sources = Vec::new();
    let mut left = line;
    while let Some(start) = left.find(BRACKETS.map(|(open, _)| open)) {
        let (before, behind) = left.split_at(start);
        let mut inside = behind.chars();
        let open = inside.next().unwrap_or('[');
        let close = BRACKETS.iter().find(|(bracket, _)| *bracket == open).map_or(']', |(_, close)| *close);
        let Some((names, after)) = inside.as_str().split_once(close) else {
            break;
        };
        rest.push_str(before);
        sources.extend(names.split([',', ';', '，', '、']).map(|name| name.trim().to_uppercase()));
        left = after;
    }
    rest.push_str(left);
    sources.retain(|name| !name.is_empty());
    (rest.trim().to_owned(), sources)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scorers::tests::{check_table, check_that_every_character_counts, completion, item};

    const ANSWER: &str = "copper lantern: 4829173 [A-4]\noak chest: 1150264 [A-17]\nsilver bell: 7733915 [A-9]";

    fn cited() -> Item {
        let facts =
            [("copper lantern", "4829173", "A-4"), ("oak chest", "1150264", "A-17"), ("silver bell", "7733915", "A-9")]
                .map(|(key, value, source)| CitedFact { key: key.into(), value: value.into(), source: source.into() });
        let sources = (1..=20).map(|number| format!("A-{number}")).collect();
        item("citations", ANSWER, Gold::Citations { facts: facts.to_vec(), sources })
    }

    #[test]
    fn the_ways_to_write_a_citation_are_read() {
        let answers = [
            ANSWER.replace(": ", " = "),
            ANSWER.replace("copper", "- Copper").replace("oak", "- **oak").replace("chest", "chest**"),
            ANSWER.replace(" [", "["),
            ANSWER.replace('[', "【").replace(']', "】."),
            format!("The values are:\n{}", ANSWER.replace("A-", "a-")),
        ];
        for answer in answers {
            check_table(&cited(), &[(&answer, &[])]);
        }
    }

    #[test]
    fn each_wrong_answer_gets_its_name() {
        use FaultKind::{Duplicated, Empty, Extra, Missing, NearMiss, SwappedBindings, WrongSource, WrongValue};
        check_table(
            &cited(),
            &[
                ("", &[Empty]),
                ("nothing to see", &[Missing]),
                (&ANSWER.replace("A-4", "A-5"), &[WrongSource]),
                (&ANSWER.replace("A-4", "A-99"), &[WrongSource]),
                (&ANSWER.replace("[A-4]", "[A-4, A-5]"), &[WrongSource]),
                (&ANSWER.replace("[A-4]", "[A-4] [A-5]"), &[WrongSource]),
                (&ANSWER.replace(" [A-4]", ""), &[Missing]),
                (&ANSWER.replace("4829173", "4829713"), &[NearMiss]),
                (&ANSWER.replace("4829173", "5550000"), &[WrongValue]),
                (&ANSWER.replace("4829173", "1150264"), &[SwappedBindings]),
                (&ANSWER.replace("oak chest: 1150264 [A-17]\n", ""), &[Missing]),
                (&format!("{ANSWER}\ntin drum: 5550000 [A-2]"), &[Extra]),
                (&format!("{ANSWER}\noak chest: 1150264 [A-17]"), &[Duplicated]),
                (&format!("{ANSWER}\noak chest: 1150264 [A-18]"), &[Duplicated]),
            ],
        );
    }

    #[test]
    fn precision_and_recall_are_told() {
        let found = score(&cited(), &completion(&ANSWER.replace("A-4", "A-9")));
        assert!((found.value - 2.5 / 3.0).abs() < 1e-12);
        assert_eq!(
            found.faults[0].note,
            "1 of 3: copper lantern: [A-9] for [A-4], 5 sources away, that of silver bell; citation precision 0.67, recall 0.67"
        );
        let outside = score(&cited(), &completion(&ANSWER.replace("A-4", "B-4")));
        assert!(outside.faults[0].note.contains("which is no source of the text"), "{outside:?}");
        assert!(score(&cited(), &completion(&"oak chest: 1 [A-2]\n".repeat(9000))).value < 0.01);
    }

    #[test]
    fn every_character_of_the_answer_counts() {
        check_that_every_character_counts(&cited());
    }
}
