//! Pure functions `(Item, Completion) → Score`, one file per scorer.
//!
//! A score is exactly 1 when the answer is right and strictly less otherwise; the canonical answer of an item is always
//! right. Faults are named by kind, at most one per kind, the most telling first. Judged is the text alone: why it ended and
//! what it looks like is the detectors' matter.
//!
//! To add one: a file with `score`, its tests, and a line in [`SCORERS`]. `answer_text` and `answer_json` hold how answers are read.

mod absent;
mod answer_json;
mod answer_text;
mod answer_values;
mod bindings;
mod citations;
mod contains;
mod edit;
mod exact_value;
mod format_rules;
mod history;
mod json_records;
mod json_schema;
mod label;
mod ordered_values;
mod record_matching;
mod regex_match;
mod ruler;
mod sequence;
mod set;
mod similarity;
mod span;
mod survival;
mod table_rows;
mod tool_call;
mod turns;

pub use json_schema::check_schema;
pub use regex_match::check_pattern;

use crate::hint::{Hint, did_you_mean};
use crate::sample::{Completion, Fault, FaultKind, Item, Score};

/// One way to judge an answer.
pub struct Scorer {
    /// The name items and suites use.
    pub name: &'static str,
    /// Raised when any answer may score differently; part of a run's identity.
    pub version: u32,
    /// One line for people.
    pub summary: &'static str,
    /// Judges an answer. Where the item's gold is of another kind, the facts are read from its expected answer.
    pub score: fn(&Item, &Completion) -> Score,
}

/// All scorers, by name.
pub static SCORERS: &[Scorer] = &[
    Scorer {
        name: "absent",
        version: 1,
        summary: "the word that says that the text has no such value; else where the value was taken from",
        score: absent::score,
    },
    Scorer {
        name: "bindings",
        version: 1,
        summary: "`key=value` lines: share of keys with exactly their value; swapped values counted",
        score: bindings::score,
    },
    Scorer {
        name: "citations",
        version: 1,
        summary: "`key: value [source]` lines: citation precision and recall, right values with wrong sources",
        score: citations::score,
    },
    Scorer {
        name: "contains",
        version: 1,
        summary: "every expected text occurs in the answer, letter for letter",
        score: contains::score,
    },
    Scorer {
        name: "edit",
        version: 1,
        summary: "a row of words with one replaced: word edit similarity, the change at its place, length",
        score: edit::score,
    },
    Scorer {
        name: "exact_value",
        version: 1,
        summary: "one value from the first answer line, exact; near misses and values of other keys named",
        score: exact_value::score,
    },
    Scorer {
        name: "format_rules",
        version: 1,
        summary: "lines under rules of form: every rule on every line, with the drift over the answer",
        score: format_rules::score,
    },
    Scorer {
        name: "history",
        version: 1,
        summary: "one version of a value that was set several times; how old or early another one is",
        score: history::score,
    },
    Scorer {
        name: "json_records",
        version: 2,
        summary: "a JSON array of flat objects: syntax, schema, fields, order, missing and extra records",
        score: json_records::score,
    },
    Scorer {
        name: "json_schema",
        version: 1,
        summary: "JSON under a JSON Schema, with or without one right value",
        score: json_schema::score,
    },
    Scorer { name: "label", version: 1, summary: "one label of a closed set and no other", score: label::score },
    Scorer {
        name: "ordered_values",
        version: 1,
        summary: "values in a known order: recall, precision, order, duplicates",
        score: ordered_values::score,
    },
    Scorer {
        name: "regex_match",
        version: 1,
        summary: "every expected pattern matches somewhere in the answer (linear-time regular expressions)",
        score: regex_match::score,
    },
    Scorer {
        name: "ruler_all",
        version: 1,
        summary: "RULER's string_match_all: share of the references that occur, letters of either case",
        score: ruler::score_all,
    },
    Scorer {
        name: "ruler_part",
        version: 1,
        summary: "RULER's string_match_part: 1 where any reference occurs, letters of either case",
        score: ruler::score_part,
    },
    Scorer {
        name: "sequence",
        version: 1,
        summary: "lines in a known order: completion, order, duplicates, extra lines",
        score: sequence::score,
    },
    Scorer {
        name: "set",
        version: 1,
        summary: "members of a set in any order: recall and precision",
        score: set::score,
    },
    Scorer {
        name: "similarity",
        version: 1,
        summary: "edit similarity with the nearest expected text; right where they are the same but for whitespace",
        score: similarity::score,
    },
    Scorer {
        name: "span",
        version: 1,
        summary: "a passage reproduced: exact but for whitespace, else edit similarity and first divergence",
        score: span::score,
    },
    Scorer {
        name: "survival",
        version: 1,
        summary: "steps that follow from each other: share before the first wrong one",
        score: survival::score,
    },
    Scorer {
        name: "table_rows",
        version: 1,
        summary: "table rows as JSON objects, one a line: F1 of the exact rows, first bad row",
        score: table_rows::score,
    },
    Scorer {
        name: "tool_call",
        version: 1,
        summary: "one tool call: name, argument names, JSON types and values, text around it",
        score: tool_call::score,
    },
    Scorer {
        name: "turns",
        version: 1,
        summary: "a conversation: share of turns whose answer is exactly their value, and the turns with each fault",
        score: turns::score,
    },
];

/// A scorer that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no scorer `{name}`")]
pub struct UnknownScorer {
    /// The name asked for.
    pub name: String,
}

impl Hint for UnknownScorer {
    fn hints(&self) -> Vec<String> {
        let names: Vec<&str> = SCORERS.iter().map(|scorer| scorer.name).collect();
        vec![did_you_mean(&self.name, &names)]
    }
}

/// The scorer of that name.
///
/// # Errors
/// [`UnknownScorer`].
pub fn find(name: &str) -> Result<&'static Scorer, UnknownScorer> {
    SCORERS.iter().find(|scorer| scorer.name == name).ok_or_else(|| UnknownScorer { name: name.into() })
}

/// Judges an answer by the item's own scorer.
///
/// # Errors
/// [`UnknownScorer`].
pub fn score(item: &Item, completion: &Completion) -> Result<Score, UnknownScorer> {
    find(&item.scorer).map(|scorer| (scorer.score)(item, completion))
}

/// The highest value of a wrong answer: however small the fault, it must not round up to right.
const HIGHEST_WRONG: f64 = 0.999;

/// Most bytes of `extracted` and most characters of a seen text in a note; the whole answer is in the record.
const MAX_EXTRACTED_BYTES: usize = 4096;
const MAX_SEEN_CHARS: usize = 60;

fn right(extracted: &str) -> Score {
    Score { value: 1.0, extracted: clipped(extracted), faults: Vec::new(), turn_scores: Vec::new() }
}

/// A wrong answer; `value` is its graded share.
fn wrong(value: f64, extracted: &str, faults: Vec<Fault>) -> Score {
    let value = if value.is_finite() { value.clamp(0.0, HIGHEST_WRONG) } else { 0.0 };
    Score { value, extracted: clipped(extracted), faults, turn_scores: Vec::new() }
}

fn empty() -> Score {
    wrong(0.0, "", vec![fault(FaultKind::Empty, "nothing was answered")])
}

fn fault(kind: FaultKind, note: impl Into<String>) -> Fault {
    Fault { kind, note: note.into() }
}

fn clipped(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_EXTRACTED_BYTES)].to_string()
}

/// A text as shown in a note.
fn seen(text: &str) -> String {
    let mut shown: String = text.chars().take(MAX_SEEN_CHARS).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sample::{Bin, Binding, Distractor, Expected, FinishReason, Gold, Language, Message, Role, Timing};

    pub(super) fn item(scorer: &str, answer: &str, gold: Gold) -> Item {
        Item {
            item_id: "0".repeat(32),
            task: "needle".into(),
            language: Language::En,
            bin: Bin(512),
            slot_percent: 0,
            index: 0,
            haystack_id: "h".into(),
            messages: vec![Message { role: Role::User, content: "text\nWhat is the number of ar-29?".into() }],
            prompt_tokens: 100,
            max_output_tokens: 64,
            depth_percent: None,
            expected: Expected { answer: answer.into(), gold },
            scorer: scorer.into(),
            excerpt: String::new(),
            follow_ups: Vec::new(),
            answer_prefix: String::new(),
            variant_of: None,
        }
    }

    pub(super) fn completion(text: &str) -> Completion {
        Completion {
            text: text.into(),
            prompt_tokens: 100,
            output_tokens: 10,
            finish_reason: FinishReason::Stop,
            timing: Timing::default(),
            answer_nll: None,
            reasoning: None,
            later_answers: Vec::new(),
            answer_tokens: Vec::new(),
        }
    }

    /// Each answer gets exactly the faults named; none means right.
    pub(super) fn check_table(item: &Item, table: &[(&str, &[FaultKind])]) {
        for (answer, kinds) in table {
            let score = score(item, &completion(answer)).unwrap();
            let found: Vec<FaultKind> = score.faults.iter().map(|fault| fault.kind).collect();
            assert_eq!(found, *kinds, "{answer:?} → {score:?}");
            assert_eq!(score.is_right(), kinds.is_empty(), "{answer:?} → {score:?}");
            assert!((0.0..=1.0).contains(&score.value), "{answer:?} → {score:?}");
        }
    }

    /// No letter or digit of the canonical answer can be changed or left out unnoticed.
    pub(super) fn check_that_every_character_counts(item: &Item) {
        let answer = &item.expected.answer;
        for (at, character) in answer.char_indices().filter(|(_, character)| character.is_alphanumeric()) {
            let (before, behind) = (&answer[..at], &answer[at + character.len_utf8()..]);
            let other = if character.eq_ignore_ascii_case(&'x') { 'y' } else { 'x' };
            let digit = if character == '7' { '8' } else { '7' };
            for changed in
                [format!("{before}{other}{behind}"), format!("{before}{digit}{behind}"), [before, behind].concat()]
            {
                let score = score(item, &completion(&changed)).unwrap();
                assert!(!score.is_right() && !score.faults.is_empty(), "{changed:?} for {answer:?} → {score:?}");
            }
        }
    }

    #[test]
    fn names_are_unique_and_sorted_and_a_typing_error_is_answered() {
        assert!(SCORERS.is_sorted_by(|a, b| a.name < b.name));
        let error = find("exact_valeu").err().unwrap();
        assert_eq!(error.hints(), ["did you mean `exact_value`?"]);
    }

    fn word() -> impl Strategy<Value = String> {
        prop_oneof!["[a-z]{1,8}", "[0-9]{7}", "[0-9a-f]{32}", "[\u{4e00}-\u{4e20}]{1,4}", "[a-z]{2}-[0-9]{2}"]
    }

    fn distinct_words(count: std::ops::Range<usize>) -> impl Strategy<Value = Vec<String>> {
        prop::collection::btree_set(word(), count).prop_map(|set| set.into_iter().collect()).prop_shuffle()
    }

    fn any_item() -> impl Strategy<Value = Item> {
        prop_oneof![
            distinct_words(2..5).prop_map(|words| {
                let distractors = words[1..]
                    .iter()
                    .map(|value| Distractor { key: "other".into(), value: value.clone(), distance: -2 })
                    .collect();
                item("exact_value", &words[0], Gold::Value { value: words[0].clone(), distractors })
            }),
            (distinct_words(1..8), prop::collection::vec(word(), 8)).prop_map(|(keys, values)| {
                let pairs: Vec<Binding> =
                    keys.into_iter().zip(values).map(|(key, value)| Binding { key, value }).collect();
                let lines: Vec<String> = pairs.iter().map(|pair| format!("{}={}", pair.key, pair.value)).collect();
                item("bindings", &lines.join("\n"), Gold::Bindings { pairs })
            }),
            (distinct_words(2..12), 0_usize..12).prop_map(|(words, place)| {
                let asked = place % words.len();
                item("history", &words[asked].clone(), Gold::History { versions: words, asked })
            }),
            distinct_words(2..12).prop_map(|mut words| {
                let others = words.split_off(words.len() / 2);
                item("ordered_values", &words.join("\n"), Gold::Ordered { values: words, others })
            }),
            distinct_words(2..12).prop_map(|mut words| {
                let decoys = words.split_off(words.len() / 2);
                item("set", &words.join(", "), Gold::Set { members: words, decoys })
            }),
            distinct_words(2..5).prop_map(|mut others| {
                let label = others.remove(0);
                item("label", &label.clone(), Gold::Label { label, others })
            }),
            distinct_words(2..5).prop_map(|words| {
                let present = words.into_iter().map(|value| Binding { key: "other".into(), value }).collect();
                item("absent", "NONE", Gold::Absent { none: "NONE".into(), present })
            }),
            distinct_words(1..12).prop_map(|lines| item("sequence", &lines.join("\n"), Gold::Sequence { lines })),
            prop::collection::vec(word(), 1..80).prop_map(|words| {
                let text = words.join(" ");
                item("span", &text.clone(), Gold::Span { text })
            }),
            prop::collection::vec((word(), any::<i32>(), any::<bool>()), 1..8).prop_map(|rows| {
                let fields = [("name", "string"), ("amount", "integer"), ("paid", "boolean")];
                let records: Vec<serde_json::Map<String, serde_json::Value>> = rows
                    .into_iter()
                    .map(|(name, amount, paid)| {
                        let values: [serde_json::Value; 3] = [name.into(), amount.into(), paid.into()];
                        fields.iter().map(|(name, _)| name.to_string()).zip(values).collect()
                    })
                    .collect();
                let answer = serde_json::to_string(&records).unwrap();
                let fields = fields.iter().map(|(name, kind)| (name.to_string(), kind.to_string())).collect();
                item("json_records", &answer, Gold::Records { records, fields })
            }),
        ]
    }

    proptest! {
        #[test]
        fn the_canonical_answer_is_right(item in any_item()) {
            let text = &item.expected.answer;
            prop_assert_eq!(score(&item, &completion(text)).unwrap(), right_of(&item, text));
            let padded = format!("\n  {text}  \n\n");
            prop_assert!(score(&item, &completion(&padded)).unwrap().is_right());
        }

        #[test]
        fn any_text_scores_between_0_and_1_and_is_right_without_faults_only(
            item in any_item(),
            text in ".{0,200}|[\\[\\]{}\":=,0-9a-z\\n ]{0,200}",
        ) {
            for scorer in SCORERS {
                let score = (scorer.score)(&item, &completion(&text));
                prop_assert!((0.0..=1.0).contains(&score.value));
                prop_assert_eq!(score.is_right(), score.faults.is_empty());
            }
        }

        #[test]
        fn every_scorer_takes_the_canonical_answer_of_any_gold(item in any_item()) {
            for scorer in SCORERS {
                let score = (scorer.score)(&item, &completion(&item.expected.answer));
                prop_assert!(score.is_right(), "{}: {:?}", scorer.name, score);
            }
        }
    }

    fn right_of(item: &Item, text: &str) -> Score {
        Score { extracted: score(item, &completion(text)).unwrap().extracted, ..right("") }
    }
}
