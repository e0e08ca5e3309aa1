//! The answers of a conversation, each judged as one exact value: share of right turns.
//!
//! A kind of fault is named once, with the turns that have it and what was seen in the first of them; `extracted` has a line
//! per turn. An answer that is missing is empty.

use crate::sample::{Completion, Expected, Fault, FaultKind, Item, Score};
use crate::scorers::exact_value::score_answer;
use crate::scorers::{right, wrong};

/// Most bytes of one turn in `extracted`: what is judged is a short value.
const MAX_TURN_BYTES: usize = 120;

pub(super) fn score(item: &Item, completion: &Completion) -> Score {
    let prompt = item.messages.last().map_or("", |message| message.content.as_str());
    let first = (prompt, &item.expected);
    let later = item.follow_ups.iter().map(|turn| (turn.question.as_str(), &turn.expected));
    let answers = std::iter::once(&completion.text).chain(&completion.later_answers).map(String::as_str);
    let questions: Vec<(&str, &Expected)> = std::iter::once(first).chain(later).collect();
    let turns: Vec<Score> = questions
        .iter()
        .zip(answers.chain(std::iter::repeat("")))
        .map(|((prompt, expected), answer)| score_answer(expected, prompt, answer))
        .collect();
    let lines: Vec<String> = turns.iter().map(extracted_line).collect();
    let n_right = turns.iter().filter(|turn| turn.is_right()).count();
    let score = if n_right == turns.len() {
        right(&lines.join("\n"))
    } else {
        wrong(n_right as f64 / turns.len() as f64, &lines.join("\n"), faults(&turns))
    };
    Score { turn_scores: turns.iter().map(|turn| turn.value).collect(), ..score }
}

/// One line, so that the lines of `extracted` are the turns.
fn extracted_line(turn: &Score) -> String {
    let line = turn.extracted.replace(['\n', '\r'], " ");
    line[..line.floor_char_boundary(MAX_TURN_BYTES)].to_owned()
}

/// Each kind once, those of the most turns first.
fn faults(turns: &[Score]) -> Vec<Fault> {
    let mut kinds: Vec<(FaultKind, Vec<usize>, &str)> = Vec::new();
    for (index, turn) in turns.iter().enumerate() {
        for fault in &turn.faults {
            match kinds.iter_mut().find(|(kind, ..)| *kind == fault.kind) {
                Some((_, places, _)) => places.push(index + 1),
                None => kinds.push((fault.kind, vec![index + 1], &fault.note)),
            }
        }
    }
    kinds.sort_by_key(|(_, places, _)| std::cmp::Reverse(places.len()));
    kinds
        .into_iter()
        .map(|(kind, places, note)| Fault { kind, note: format!("turn {}: {note}", list(&places)) })
        .collect()
}

fn list(places: &[usize]) -> String {
    places.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{Distractor, FollowUp, Gold};
    use crate::scorers::tests::{completion, item};

    fn value(value: &str, distractors: Vec<Distractor>) -> Expected {
        Expected { answer: value.into(), gold: Gold::Value { value: value.into(), distractors } }
    }

    /// Three turns; the third asks for the first value again.
    fn conversation() -> Item {
        let other = |key: &str, value: &str| Distractor { key: key.into(), value: value.into(), distance: 1 };
        let follow_up = |question: &str, expected| FollowUp { question: question.into(), expected };
        let first = value("4829173", vec![other("dark pond", "1150264")]);
        let mut item = item("turns", "4829173", first.gold.clone());
        item.follow_ups = vec![
            follow_up("And for the dark pond?", value("1150264", vec![other("old mill", "4829173")])),
            follow_up("Once more: the old mill?", first),
        ];
        item
    }

    fn judged(answers: [&str; 3]) -> Score {
        let mut answer = completion(answers[0]);
        answer.later_answers = answers[1..].iter().map(|text| (*text).to_owned()).collect();
        score(&conversation(), &answer)
    }

    #[test]
    fn every_turn_counts_the_same() {
        let all = judged(["4829173", "It is 1150264.", "4829173"]);
        assert!(all.is_right() && all.turn_scores == [1.0, 1.0, 1.0], "{all:?}");
        assert_eq!(all.extracted, "4829173\n1150264\n4829173");
        let two = judged(["4829173", "1150264", "no\nidea"]);
        assert_eq!((two.value, two.turn_scores), (2.0 / 3.0, vec![1.0, 1.0, 0.0]));
        assert_eq!(two.extracted.lines().count(), 3);
    }

    #[test]
    fn a_fault_is_named_once_with_its_turns() {
        let swapped = judged(["1150264", "4829173", "4829713"]);
        let notes: Vec<(FaultKind, &str)> = swapped.faults.iter().map(|it| (it.kind, it.note.as_str())).collect();
        assert_eq!(
            notes,
            [
                (FaultKind::OtherKey, "turn 1, 2: 1150264 is the value of key dark pond, 1 entry after"),
                (FaultKind::NearMiss, "turn 3: 4829713 for 4829173: characters transposed"),
            ]
        );
    }

    #[test]
    fn an_answer_that_is_not_there_is_empty() {
        let mut cut = completion("4829173");
        cut.later_answers = vec!["1150264".into()];
        let score = score(&conversation(), &cut);
        assert_eq!((score.faults.len(), score.faults[0].kind), (1, FaultKind::Empty));
        assert_eq!(score.turn_scores, [1.0, 1.0, 0.0]);
    }

    #[test]
    fn runaway_answers_leave_a_line_for_every_turn() {
        let long = "4829174 ".repeat(10_000);
        let score = judged([&long, &long, &long]);
        assert_eq!(score.extracted.lines().count(), 3);
        assert!(score.extracted.len() <= 3 * (MAX_TURN_BYTES + 1));
    }
}
