//! A passage to be reproduced: exact after whitespace normalisation, else edit similarity.
//!
//! `value = 1 − Levenshtein / longer length` in characters (in words where the passage is too long for that), under 1.
//! The work is bounded by size, not by time: a score must not depend on the machine.

use crate::sample::{Completion, Fault, FaultKind, Gold, Item, Score};
use crate::scorers::answer_text::normalised;
use crate::scorers::{HIGHEST_WRONG, empty, fault, right, seen, wrong};

/// Largest table of the edit distance: 4,000 × 4,000 characters, about 30 ms.
const MAX_CELLS: usize = 16_000_000;

/// An answer longer than this many times the passage is compared up to there; the rest counts as inserted.
const COMPARED_LENGTHS: usize = 2;

pub(super) fn score(item: &Item, completion: &Completion) -> Score {
    let passage = match &item.expected.gold {
        Gold::Span { text } => normalised(text),
        _ => normalised(&item.expected.answer),
    };
    let text = completion.text.trim();
    if text == item.expected.answer.trim() {
        return right(text);
    }
    let answer = without_outer_quotes(&normalised(text), &passage).to_string();
    if answer == passage {
        return right(&answer);
    }
    if answer.is_empty() {
        return empty();
    }
    wrong(similarity(&passage, &answer).min(HIGHEST_WRONG), &answer, vec![departure(&passage, &answer)])
}

/// Quotes around the whole answer are taken off where the passage has none.
fn without_outer_quotes<'a>(answer: &'a str, passage: &str) -> &'a str {
    for (open, close) in [('"', '"'), ('“', '”'), ('\'', '\''), ('「', '」'), ('`', '`')] {
        if let Some(inner) = answer.strip_prefix(open).and_then(|rest| rest.strip_suffix(close))
            && !passage.starts_with(open)
        {
            return inner.trim();
        }
    }
    answer
}

/// The one fault: how the answer leaves the passage first.
pub(super) fn departure(passage: &str, answer: &str) -> Fault {
    let words = passage.split(' ').count();
    let common = passage.chars().zip(answer.chars()).take_while(|(a, b)| a == b).count();
    let rest_of = |text: &str| text.chars().skip(common).collect::<String>();
    let (passage_rest, answer_rest) = (rest_of(passage), rest_of(answer));
    if answer_rest.is_empty() {
        let kept = answer.split(' ').count();
        return fault(FaultKind::Missing, format!("ends in word {kept} of {words}, character {common}"));
    }
    if passage_rest.is_empty() {
        return fault(FaultKind::Extra, format!("goes on after the end: {}", seen(answer_rest.trim_start())));
    }
    if answer.len() > passage.len() && answer.contains(passage) {
        return fault(FaultKind::ExtraText, format!("text before the passage: {}", seen(answer)));
    }
    let word = passage.chars().take(common).filter(|c| *c == ' ').count() + 1;
    let note = format!(
        "at character {common}, word {word} of {words}: `{}` for `{}`",
        seen(answer_rest.split(' ').find(|word| !word.is_empty()).unwrap_or_default()),
        seen(passage_rest.split(' ').find(|word| !word.is_empty()).unwrap_or_default()),
    );
    fault(FaultKind::Diverged, note)
}

/// 0 to 1.
pub(super) fn similarity(passage: &str, answer: &str) -> f64 {
    let a: Vec<char> = passage.chars().collect();
    let limit = a.len() * COMPARED_LENGTHS + 64;
    let b: Vec<char> = answer.chars().take(limit).collect();
    let uncompared = answer.chars().count() - b.len();
    let longer = a.len().max(b.len() + uncompared);
    if a.len() * b.len() <= MAX_CELLS {
        return share(distance(&a, &b) + uncompared, longer);
    }
    let (a, b): (Vec<&str>, Vec<&str>) = (passage.split(' ').collect(), answer.split(' ').collect());
    let longer = a.len().max(b.len());
    let (a, b) = without_common_ends(&a, &b);
    // What does not fit the table counts as different: the similarity is then a lower bound.
    let fit_a = a.len().min(MAX_CELLS.isqrt());
    let fit_b = b.len().min(MAX_CELLS / fit_a.max(1));
    let uncompared = (a.len() - fit_a).max(b.len() - fit_b);
    share(distance(&a[..fit_a], &b[..fit_b]) + uncompared, longer)
}

fn share(distance: usize, longer: usize) -> f64 {
    (1.0 - distance as f64 / longer.max(1) as f64).max(0.0)
}

fn without_common_ends<'a, T: PartialEq>(a: &'a [T], b: &'a [T]) -> (&'a [T], &'a [T]) {
    let start = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let (a, b) = (&a[start..], &b[start..]);
    let end = a.iter().rev().zip(b.iter().rev()).take_while(|(a, b)| a == b).count();
    (&a[..a.len() - end], &b[..b.len() - end])
}

/// Levenshtein distance, two rows, common ends left out.
fn distance<T: PartialEq>(a: &[T], b: &[T]) -> usize {
    let (a, b) = without_common_ends(a, b);
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scorers::tests::{check_table, completion, item};

    const PASSAGE: &str = "The ferry left the north pier at 06:40 with 118 crates of glass and came back empty.";

    fn passage() -> Item {
        item("span", PASSAGE, Gold::Span { text: PASSAGE.into() })
    }

    #[test]
    fn whitespace_and_outer_quotes_are_free() {
        let wrapped = PASSAGE.replace(" with ", "\n   with ");
        for answer in [wrapped.as_str(), &format!("\"{PASSAGE}\""), &format!("“{PASSAGE}”")] {
            check_table(&passage(), &[(answer, &[])]);
        }
    }

    #[test]
    fn each_departure_gets_its_name() {
        use FaultKind::{Diverged, Empty, Extra, ExtraText, Missing};
        check_table(
            &passage(),
            &[
                ("", &[Empty]),
                (&PASSAGE.replace("118", "181"), &[Diverged]),
                (&PASSAGE.replace("north ", ""), &[Diverged]),
                (&PASSAGE[..40], &[Missing]),
                (&format!("{PASSAGE} And so on."), &[Extra]),
                (&format!("Here it is: {PASSAGE}"), &[ExtraText]),
                ("something else", &[Diverged]),
            ],
        );
    }

    #[test]
    fn the_note_says_where_it_departs() {
        let score = score(&passage(), &completion(&PASSAGE.replace("118", "181")));
        assert_eq!(score.faults[0].note, "at character 45, word 10 of 17: `81` for `18`");
        assert!(score.value > 0.97 && score.value < 1.0);
    }

    #[test]
    fn similarity_is_the_edit_distance_and_bounded() {
        assert!((similarity("kitten", "sitting") - (1.0 - 3.0 / 7.0)).abs() < 1e-12);
        assert_eq!(similarity("上下文", "上下"), 1.0 - 1.0 / 3.0);
        let loops = "the ferry left ".repeat(500_000);
        assert!(similarity(PASSAGE, &loops) < 0.01);
        let long = (0..20_000).map(|n| format!("w{n}")).collect::<Vec<_>>().join(" ");
        let cut = &long[..long.len() / 2];
        let value = similarity(&long, cut);
        assert!(value > 0.3 && value < 0.6, "{value}");
    }
}
