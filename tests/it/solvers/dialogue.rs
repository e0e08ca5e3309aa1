//! Solver of the conversation.

use kvgauge::sample::{Expected, FaultKind, Gold, Item};

use super::{Solver, Wrong, text_and_question};

pub(super) static SOLVERS: &[Solver] = &[Solver { task: "multi_turn", solve, wrong }];

/// What a question asks for in each language: the end of `… is the NAME for the KEY?`, or `KEY的NAME是多少？`.
fn value_asked(text: &str, question: &str) -> String {
    let (asked, end) = match question.rsplit_once("what is ").or_else(|| question.rsplit_once("What is ")) {
        Some((_, rest)) => {
            let (asked, _) = rest.split_once('?').expect("a question mark");
            (format!("The {} is ", asked.trim_start_matches("the ")), '.')
        }
        None => {
            let (before, _) = question.split_once("是多少").expect("a question");
            let asked = before.rsplit(['：', '。']).next().expect("a key");
            (format!("{}是", asked.trim_start_matches("那么")), '。')
        }
    };
    let (_, behind) = text.split_once(&asked).unwrap_or_else(|| panic!("`{asked}` is not in the text"));
    behind.split_once(end).expect("the end of the sentence").0.to_owned()
}

fn solve(item: &Item) -> Vec<String> {
    let (text, question) = text_and_question(item);
    let later = item.follow_ups.iter().map(|turn| turn.question.as_str());
    std::iter::once(question).chain(later).map(|question| value_asked(text, question)).collect()
}

/// The second turn is the wrong one, so that the first is no alibi.
fn wrong(item: &Item) -> Vec<Wrong> {
    let right = solve(item);
    let expected: &Expected = &item.follow_ups[0].expected;
    let value = &expected.answer;
    let Gold::Value { distractors, .. } = &expected.gold else { panic!("a value") };
    let other = &distractors.first().expect("another fact in the text").value;
    let answers = [
        (FaultKind::Empty, String::new()),
        (FaultKind::NearMiss, value[..value.len() - 1].to_owned()),
        (FaultKind::OtherKey, other.clone()),
        (FaultKind::Extra, format!("{value} {other}")),
        (FaultKind::WrongValue, "I do not know.".to_owned()),
    ];
    let with = |answer: String| {
        let mut answers = right.clone();
        answers[1] = answer;
        answers
    };
    answers.into_iter().map(|(kind, answer)| (kind, with(answer))).collect()
}
