//! A row of words repeated with one of them replaced.
//!
//! `value = 1 − word edit distance / longer length`, under 1. Words are compared without the punctuation around them and
//! without regard to case; how they are separated does not matter.

use crate::sample::{Completion, Fault, FaultKind, Gold, Item, Score};
use crate::scorers::answer_text::{bare, content_lines, is_announcement};
use crate::scorers::{empty, fault, right, seen, wrong};

/// An answer longer than this many times the row is compared up to there; the rest counts as inserted.
const COMPARED_LENGTHS: usize = 2;

/// Words compared of either side: the cost is the product, 16 million steps at most.
const MAX_WORDS: usize = 4000;

pub(super) fn score(item: &Item, completion: &Completion) -> Score {
    let text = completion.text.trim();
    let (original, edited, place) = match &item.expected.gold {
        Gold::Edit { original, edited, place } => (joined_words(original), joined_words(edited), Some(*place)),
        _ => (Vec::new(), words(&item.expected.answer), None),
    };
    if text == item.expected.answer.trim() {
        return right(text);
    }
    let mut answer = answer_words(text);
    if answer.is_empty() {
        return empty();
    }
    let (mut original, mut edited) = (original, edited);
    if is_unspaced(&answer, &edited) {
        [&mut original, &mut edited, &mut answer].into_iter().for_each(into_characters);
    }
    if answer == edited {
        return right(text);
    }
    let distance = distance(&edited, &answer);
    let mut faults = Vec::new();
    let mut wanted = &edited;
    if let Some(place) = place
        && self::distance(&original, &answer) < distance
    {
        // As near to the unchanged row by one word: the change is what is not there.
        let unchanged = unchanged_word(item, place);
        faults.push(fault(FaultKind::NotEdited, format!("word {} is unchanged: {unchanged}", place + 1)));
        wanted = &original;
    }
    faults.extend(departure(wanted, &answer));
    wrong(1.0 - distance as f64 / edited.len().max(answer.len()) as f64, text, faults)
}

fn unchanged_word(item: &Item, place: usize) -> String {
    match &item.expected.gold {
        Gold::Edit { original, .. } => original.get(place).map(|word| seen(word)).unwrap_or_default(),
        _ => String::new(),
    }
}

fn words(text: &str) -> Vec<String> {
    let is_between = |c: char| c.is_whitespace() || matches!(c, ',' | '，' | '、' | ';' | '；');
    text.split(is_between).map(bare).filter(|word| !word.is_empty()).map(str::to_lowercase).collect()
}

fn joined_words(row: &[String]) -> Vec<String> {
    row.iter().flat_map(|word| words(word)).collect()
}

/// The words of an answer without a first line that announces them.
fn answer_words(text: &str) -> Vec<String> {
    let lines = content_lines(text).count();
    let spoken = content_lines(text).enumerate().filter(|(at, line)| lines == 1 || *at > 0 || !is_announcement(line));
    spoken.flat_map(|(_, line)| words(line)).collect()
}

/// Chinese is often written without spaces: then characters are compared in place of words.
fn is_unspaced(answer: &[String], edited: &[String]) -> bool {
    edited.iter().all(|word| word.chars().all(|c| !c.is_ascii())) && 2 * answer.len() < edited.len()
}

fn into_characters(words: &mut Vec<String>) {
    *words = words.concat().chars().map(String::from).collect();
}

/// How an answer leaves a row; nothing when it is the row.
fn departure(wanted: &[String], answer: &[String]) -> Option<Fault> {
    let same = wanted.iter().zip(answer).take_while(|(left, right)| left == right).count();
    let lengths = format!("{} words for {}", answer.len(), wanted.len());
    if same == wanted.len() && same == answer.len() {
        return None;
    }
    let at =
        |words: &[String]| words.get(same).map_or_else(|| "the end".to_owned(), |word| format!("`{}`", seen(word)));
    if same == answer.len() {
        return Some(fault(FaultKind::Missing, format!("ends after word {same} of {}", wanted.len())));
    }
    if is_within(answer, wanted) {
        return Some(fault(FaultKind::Missing, format!("{lengths}, first {} (word {})", at(wanted), same + 1)));
    }
    if is_within(wanted, answer) {
        let is_around = same < wanted.len() && answer.windows(wanted.len()).any(|window| window == wanted);
        let kind = if is_around { FaultKind::ExtraText } else { FaultKind::Extra };
        return Some(fault(kind, format!("{lengths}, first {} at word {}", at(answer), same + 1)));
    }
    let note = format!("at word {} of {}: {} for {}; {lengths}", same + 1, wanted.len(), at(answer), at(wanted));
    Some(fault(FaultKind::Diverged, note))
}

/// Whether all words of `part` stand in `whole` in the same order, with or without others between.
fn is_within(part: &[String], whole: &[String]) -> bool {
    let mut rest = whole.iter();
    part.iter().all(|word| rest.any(|other| other == word))
}

/// Levenshtein distance in words. What is not compared counts as different.
fn distance(row: &[String], answer: &[String]) -> usize {
    let row_end = row.len().min(MAX_WORDS);
    let answer_end = answer.len().min(row_end * COMPARED_LENGTHS + 64).min(MAX_WORDS);
    let uncompared = (row.len() - row_end).max(answer.len() - answer_end);
    let cut = |words: &[String], end: usize| words[..end].to_vec();
    strsim::generic_levenshtein(&cut(row, row_end), &cut(answer, answer_end)) + uncompared
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scorers::tests::{check_table, completion, item};

    fn row(original: &str, edited: &str) -> Item {
        let split = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let (original, edited_words) = (split(original), split(edited));
        let place = original.iter().zip(&edited_words).position(|(left, right)| left != right).unwrap();
        item("edit", edited, Gold::Edit { original, edited: edited_words, place })
    }

    fn eight() -> Item {
        row("axe bell cup drum fan harp cup oar", "axe bell cup mask fan harp cup oar")
    }

    #[test]
    fn separators_case_and_an_announcement_are_free() {
        let answers = [
            "Axe, bell, cup, mask, fan, harp, cup, oar.",
            "Here is the row:\naxe bell cup mask\nfan harp cup oar",
            "\"axe bell cup mask fan harp cup oar\"",
        ];
        for answer in answers {
            check_table(&eight(), &[(answer, &[])]);
        }
        let chinese = row("灯笼 铜铃 木船", "灯笼 茶壶 木船");
        check_table(
            &chinese,
            &[
                ("灯笼、茶壶、木船。", &[]),
                ("灯笼茶壶木船", &[]),
                ("灯笼铜铃木船", &[FaultKind::NotEdited]),
                ("灯笼茶杯木船", &[FaultKind::Diverged]),
            ],
        );
    }

    #[test]
    fn each_wrong_answer_gets_its_name() {
        use FaultKind::{Diverged, Empty, Extra, ExtraText, Missing, NotEdited};
        check_table(
            &eight(),
            &[
                ("", &[Empty]),
                ("axe bell cup drum fan harp cup oar", &[NotEdited]),
                ("axe bell cup drum fan", &[NotEdited, Missing]),
                ("axe bell cup mask fan", &[Missing]),
                ("axe bell", &[Missing]),
                ("axe bell cup mask harp cup oar", &[Missing]),
                ("axe bell cup fan harp cup oar", &[Missing]),
                ("axe bell cup mask fan harp cup oar axe bell", &[Extra]),
                ("axe bell cup cup mask fan harp cup oar", &[Extra]),
                ("sure here it is axe bell cup mask fan harp cup oar", &[ExtraText]),
                ("axe bell cup mask fan harp jug oar", &[Diverged]),
                ("axe bell cup lamp fan harp cup oar", &[Diverged]),
                ("I cannot find it", &[Diverged]),
            ],
        );
    }

    #[test]
    fn the_value_is_the_similarity_in_words() {
        let value = |text: &str| score(&eight(), &completion(text)).value;
        assert!((value("axe bell cup drum fan harp cup oar") - 7.0 / 8.0).abs() < 1e-12);
        assert!((value("axe bell cup mask") - 0.5).abs() < 1e-12);
        assert!(value(&"axe bell cup mask ".repeat(100_000)) < 1e-3);
    }

    #[test]
    fn the_note_says_where_and_how_long() {
        let note = |text: &str| score(&eight(), &completion(text)).faults[0].note.clone();
        assert_eq!(note("axe bell cup mask fan harp jug oar"), "at word 7 of 8: `jug` for `cup`; 8 words for 8");
        assert_eq!(note("axe bell cup drum fan harp cup oar"), "word 4 is unchanged: drum");
        assert_eq!(note("axe bell"), "ends after word 2 of 8");
    }
}
