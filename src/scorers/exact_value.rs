//! One value, exact: 1 or 0.
//!
//! The value is looked for in the first line that says something, behind a lead-in such as `The number is`. Any other value
//! of the same kind in that line makes it wrong: an answer that names two numbers has not decided. Later lines are not
//! looked at, because short models tend to go on talking after the answer.

use crate::sample::{Completion, Distractor, Expected, FaultKind, Gold, Item, Score};
use crate::scorers::answer_text::{
    answer_line, ascii_digits, bare, contains_word, is_code, is_code_char, is_decimal, joined_thousands, nearness,
};
use crate::scorers::{clipped, empty, fault, right, seen, wrong};

pub(super) fn score(item: &Item, completion: &Completion) -> Score {
    let prompt = item.messages.last().map_or("", |message| message.content.as_str());
    score_answer(&item.expected, prompt, &completion.text)
}

/// Judges one answer; `prompt` ends in its question.
pub(super) fn score_answer(expected: &Expected, prompt: &str, text: &str) -> Score {
    let (value, distractors) = match &expected.gold {
        Gold::Value { value, distractors } => (value.trim(), distractors.as_slice()),
        _ => (expected.answer.trim(), &[][..]),
    };
    if text.trim() == value || text.trim() == expected.answer.trim() {
        return right(value);
    }
    let Some(line) = answer_line(text) else { return empty() };
    if is_code(value) { score_code(prompt, value, distractors, line) } else { score_phrase(value, distractors, line) }
}

fn score_code(prompt: &str, value: &str, distractors: &[Distractor], line: &str) -> Score {
    let codes = codes_in(line, value, |code| {
        question(prompt).contains(code) && distractors.iter().all(|other| other.value.trim() != code)
    });
    let others: Vec<&String> = codes.iter().filter(|code| *code != value).collect();
    match (codes.len() > others.len(), others.first()) {
        (true, None) if is_denied(line, value) => {
            wrong(0.0, line, vec![fault(FaultKind::WrongValue, format!("denies the value: `{}`", seen(line)))])
        }
        (true, None) => right(value),
        (true, Some(other)) => {
            let whose = owner(distractors, other).map(|owner| format!(", {owner}")).unwrap_or_default();
            wrong(0.0, line, vec![fault(FaultKind::Extra, format!("also says {}{whose}", seen(other)))])
        }
        (false, Some(_)) => name_wrong_value(value, distractors, &others, line),
        (false, None) => wrong(0.0, line, vec![fault(FaultKind::WrongValue, format!("no value in `{}`", seen(line)))]),
    }
}

/// `It is not 4829173`.
fn is_denied(line: &str, value: &str) -> bool {
    let lead_in = line.split(value).next().unwrap_or_default().trim_end().to_lowercase();
    ["not", "isn't", "不是"].iter().any(|word| lead_in.ends_with(word))
}

/// The end of the last message, where the question stands.
fn question(prompt: &str) -> &str {
    const MAX_QUESTION_BYTES: usize = 300;
    let content = prompt.trim_end();
    let line = content.rsplit('\n').next().unwrap_or_default();
    &line[line.ceil_char_boundary(line.len().saturating_sub(MAX_QUESTION_BYTES))..]
}

/// Distinct codes of the line that compete with `value`, in order. A word with letters competes when it has digits and
/// half the length; words of the question are its subject.
fn codes_in(line: &str, value: &str, is_asked: impl Fn(&str) -> bool) -> Vec<String> {
    // One more than the value decides; a few more find the telling one.
    const MAX_CODES: usize = 64;
    let text = joined_thousands(&ascii_digits(line));
    let dotted = value.contains('.');
    let value_is_number = value.bytes().all(|byte| byte.is_ascii_digit());
    let mut codes: Vec<String> = Vec::new();
    for word in text.split(|c: char| !(is_code_char(c) || c == '.')) {
        let word = word.trim_matches(['-', '_', '.']);
        let parts: Vec<&str> = if dotted || is_decimal(word) { vec![word] } else { word.split('.').collect() };
        for part in parts {
            let part = part.trim_matches(['-', '_']);
            let number = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
            // Against a number only digits weigh: `7-digit` is no rival of 4829173, `4829173abc` is.
            let digits = part.bytes().filter(u8::is_ascii_digit).count();
            let weight = if value_is_number { digits } else { part.len() };
            let word_like = digits > 0 && weight * 2 >= value.len();
            if (number || word_like)
                && !codes.iter().any(|code| code == part)
                && (part == value || (codes.len() < MAX_CODES && !is_asked(part)))
            {
                codes.push(part.to_string());
            }
        }
    }
    codes
}

fn score_phrase(value: &str, distractors: &[Distractor], line: &str) -> Score {
    let answer = bare(line);
    let folded = answer.to_lowercase();
    let wanted = bare(value).to_lowercase();
    if wanted.is_empty() {
        return wrong(0.0, answer, vec![fault(FaultKind::WrongValue, "another text")]);
    }
    let lead_in = folded.strip_suffix(&wanted).map(|rest| rest.trim_end_matches(['"', '\'', '`', '*', '“', '「']));
    if lead_in.is_some_and(|lead_in| lead_in.is_empty() || (ends_a_lead_in(lead_in) && !denies(lead_in))) {
        let named = distractors.iter().find(|other| {
            let other = other.value.to_lowercase();
            !other.is_empty() && !wanted.contains(&other) && lead_in.is_some_and(|text| contains_word(text, &other))
        });
        return match named {
            None => right(value),
            Some(other) => {
                wrong(0.0, answer, vec![fault(FaultKind::Extra, format!("also says {}", seen(&other.value)))])
            }
        };
    }
    if contains_word(&folded, &wanted) {
        let note = format!("says more than the value: `{}`", seen(answer));
        return wrong(0.0, answer, vec![fault(FaultKind::Extra, note)]);
    }
    let last = answer.rsplit([':', '：', '=']).next().map_or(answer, bare);
    let other = distractors
        .iter()
        .filter(|other| other.value.trim() != value && contains_word(&folded, &other.value.to_lowercase()))
        .map(|other| &other.value)
        .max_by_key(|value| value.len());
    match other {
        Some(other) => name_wrong_value(value, distractors, &[other], line),
        None => name_wrong_value(value, distractors, &[&last.to_string()], line),
    }
}

/// Words that lead to a value: `The colour is`, `Answer:`, `答案是`.
fn ends_a_lead_in(text: &str) -> bool {
    let text = text.trim_end();
    text.ends_with([':', '：', '=', '→', '是', '为'])
        || [" is", " was", " to", " in", " at", " the", " a"].iter().any(|word| text.ends_with(word))
}

/// `It is not` leads to a value that is denied.
fn denies(text: &str) -> bool {
    ["not", "never", "n't", "不", "没"].iter().any(|word| text.contains(word))
}

fn owner(distractors: &[Distractor], answer: &str) -> Option<String> {
    let other = distractors.iter().find(|other| other.value.trim() == answer)?;
    let entries = if other.distance.abs() == 1 { "entry" } else { "entries" };
    let side = if other.distance < 0 { "before" } else { "after" };
    Some(format!("the value of key {}, {} {entries} {side}", seen(&other.key), other.distance.abs()))
}

fn name_wrong_value(value: &str, distractors: &[Distractor], answers: &[&String], line: &str) -> Score {
    let extracted = answers.first().map_or(line, |answer| answer.as_str());
    let of_other = answers.iter().find_map(|answer| Some((answer, owner(distractors, answer)?)));
    let near = || answers.iter().find_map(|answer| Some((answer, nearness(value, answer)?)));
    let found = if let Some((answer, owner)) = of_other {
        fault(FaultKind::OtherKey, format!("{} is {owner}", seen(answer)))
    } else if let Some((answer, how)) = near() {
        fault(FaultKind::NearMiss, format!("{} for {}: {how}", seen(answer), seen(value)))
    } else {
        fault(FaultKind::WrongValue, format!("{} for {}", seen(extracted), seen(value)))
    };
    wrong(0.0, &clipped(extracted), vec![found])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scorers::tests::{check_table, completion, item};

    fn number() -> Item {
        let distractors = vec![
            Distractor { key: "ar-28".into(), value: "1150264".into(), distance: -3 },
            Distractor { key: "ar-92".into(), value: "4829174".into(), distance: 1 },
        ];
        item("exact_value", "4829173", Gold::Value { value: "4829173".into(), distractors })
    }

    #[test]
    fn a_number_is_right_wherever_it_stands_alone() {
        let answers = [
            "4829173",
            "The number is 4829173.",
            "The number of ar-29 is **4829173**.",
            "\n\n```\n4829173\n```",
            "The 7-digit number is: 4829173",
            "The number is:\n4829173",
            "1. 4829173",
            "4,829,173",
            "答案是４８２９１７３。",
            "号码是4829173。",
            "4829173\n\nLet me also say 1234567.",
            "\"4829173\"",
        ];
        for answer in answers {
            check_table(&number(), &[(answer, &[])]);
        }
    }

    #[test]
    fn each_wrong_number_gets_its_name() {
        use FaultKind::{Empty, Extra, NearMiss, OtherKey, WrongValue};
        check_table(
            &number(),
            &[
                ("", &[Empty]),
                (" \n\n ", &[Empty]),
                ("...", &[Empty]),
                ("I do not know.", &[WrongValue]),
                ("The number is not 4829173.", &[WrongValue]),
                ("9999999", &[WrongValue]),
                ("4829713", &[NearMiss]),
                ("48291730", &[NearMiss]),
                ("482917", &[NearMiss]),
                ("4829173.5", &[NearMiss]),
                ("4829173abc", &[NearMiss]),
                ("1150264", &[OtherKey]),
                ("4829174", &[OtherKey]),
                ("The number is 1150264.", &[OtherKey]),
                ("4829173 or 1150264", &[Extra]),
                ("4829173, 5550000", &[Extra]),
                ("482 9173", &[NearMiss]),
            ],
        );
    }

    #[test]
    fn the_note_names_key_and_distance() {
        let score = score(&number(), &completion("1150264"));
        assert_eq!(score.faults[0].note, "1150264 is the value of key ar-28, 3 entries before");
        assert_eq!(score.extracted, "1150264");
    }

    #[test]
    fn hexadecimal_strings_are_compared_whole() {
        use FaultKind::NearMiss;
        let hex = "9f86d081884c7d659a2feaa0c55ad015";
        let item = item("exact_value", hex, Gold::Value { value: hex.into(), distractors: vec![] });
        check_table(
            &item,
            &[
                ("The code is `9f86d081884c7d659a2feaa0c55ad015`.", &[]),
                ("9F86D081884C7D659A2FEAA0C55AD015", &[NearMiss]),
                ("9f86d081884c7d659a2feaa0c55ad01", &[NearMiss]),
                ("9f86d081884c7d659a2fea0c55ad015", &[NearMiss]),
                ("00000000000000000000000000000000", &[FaultKind::WrongValue]),
            ],
        );
    }

    #[test]
    fn words_are_judged_as_words() {
        use FaultKind::{Extra, NearMiss, OtherKey, WrongValue};
        let distractors = vec![Distractor { key: "Mira".into(), value: "kitchen".into(), distance: 4 }];
        let place = item("exact_value", "north cellar", Gold::Value { value: "north cellar".into(), distractors });
        check_table(
            &place,
            &[
                ("North cellar.", &[]),
                ("The lamp is in the \"north cellar\".", &[]),
                ("The lamp is not in the north cellar.", &[Extra]),
                ("It is north cellar", &[]),
                ("Answer: north cellar", &[]),
                ("It is not north cellar but the kitchen", &[Extra]),
                ("It is in the kitchen.", &[OtherKey]),
                ("nort cellar", &[NearMiss]),
                ("garden", &[WrongValue]),
            ],
        );
        let zh = item("exact_value", "北仓", Gold::Value { value: "北仓".into(), distractors: vec![] });
        check_table(&zh, &[("答案是“北仓”。", &[]), ("南仓", &[WrongValue]), ("北仓和南仓", &[Extra])]);
    }

    #[test]
    fn a_runaway_line_is_bounded() {
        let text = "4829174 ".repeat(1_000_000);
        assert_eq!(score(&number(), &completion(&text)).faults[0].kind, FaultKind::OtherKey);
    }
}
