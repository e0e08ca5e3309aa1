//! Word diff of two answers.

use serde::Serialize;
use similar::DiffTag;
use similar::algorithms::{Capture, myers};

/// A run of text that is in both answers, or in one only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Piece {
    /// The text.
    pub(crate) text: String,
    /// Not in the other answer.
    pub(crate) changed: bool,
}

/// Both answers, each with what is its own marked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct WordDiff {
    /// The baseline's answer.
    pub(crate) baseline: Vec<Piece>,
    /// The candidate's answer.
    pub(crate) candidate: Vec<Piece>,
}

/// Compares two answers word by word. Quadratic at worst: give it clipped text.
pub(crate) fn word_diff(baseline: &str, candidate: &str) -> WordDiff {
    let (old, new) = (words(baseline), words(candidate));
    // Myers directly: the general entry instantiates every algorithm and is a fifth of this crate's code for one call.
    let mut capture = Capture::new();
    match myers::diff(&mut capture, old.as_slice(), 0..old.len(), new.as_slice(), 0..new.len()) {
        Ok(()) => {}
        Err(never) => match never {},
    }
    let mut sides = WordDiff::default();
    for op in capture.into_ops() {
        let changed = op.tag() != DiffTag::Equal;
        for word in &old[op.old_range()] {
            append(&mut sides.baseline, word, changed);
        }
        for word in &new[op.new_range()] {
            append(&mut sides.candidate, word, changed);
        }
    }
    WordDiff { baseline: smooth(sides.baseline), candidate: smooth(sides.candidate) }
}

/// A blank between two changes belongs to them: marks that stop at every word are hard to read.
fn smooth(mut pieces: Vec<Piece>) -> Vec<Piece> {
    let is_blank = |piece: &Piece| piece.text.chars().all(char::is_whitespace);
    for place in 1..pieces.len().saturating_sub(1) {
        if is_blank(&pieces[place]) && pieces[place - 1].changed && pieces[place + 1].changed {
            pieces[place].changed = true;
        }
    }
    let mut smoothed = Vec::with_capacity(pieces.len());
    for piece in pieces {
        append(&mut smoothed, &piece.text, piece.changed);
    }
    smoothed
}

fn append(pieces: &mut Vec<Piece>, word: &str, changed: bool) {
    match pieces.last_mut() {
        Some(last) if last.changed == changed => last.text.push_str(word),
        _ => pieces.push(Piece { text: word.to_owned(), changed }),
    }
}

/// Runs of letters and digits, runs of blanks, and every other character alone: Chinese is written without blanks, so its characters
/// are the words.
fn words(text: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut start = 0;
    let mut previous = None;
    for (at, character) in text.char_indices() {
        let kind = kind_of(character);
        if at > start && (kind == Kind::Single || previous != Some(kind)) {
            words.push(&text[start..at]);
            start = at;
        }
        previous = Some(kind);
    }
    if start < text.len() {
        words.push(&text[start..]);
    }
    words
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Word,
    Blank,
    Single,
}

fn kind_of(character: char) -> Kind {
    // From U+2E80 on scripts are mostly written without blanks.
    if character.is_whitespace() {
        Kind::Blank
    } else if (character.is_alphanumeric() || character == '_') && character < '\u{2e80}' {
        Kind::Word
    } else {
        Kind::Single
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(pieces: &[Piece]) -> String {
        pieces
            .iter()
            .map(|piece| if piece.changed { format!("[{}]", piece.text) } else { piece.text.clone() })
            .collect()
    }

    #[test]
    fn only_the_differing_words_are_marked() {
        let diff = word_diff("The code is 4711, sir.", "The code is 4171, sir.");
        assert_eq!(joined(&diff.baseline), "The code is [4711], sir.");
        assert_eq!(joined(&diff.candidate), "The code is [4171], sir.");
    }

    #[test]
    fn marks_run_over_the_blanks_between_changed_words() {
        assert_eq!(joined(&word_diff("one two three end", "vier zwei end").baseline), "[one two three] end");
    }

    #[test]
    fn chinese_is_compared_character_by_character() {
        let diff = word_diff("编号是四七一一。", "编号是四一七一。");
        assert!(joined(&diff.baseline).starts_with("编号是四"));
        assert!(joined(&diff.candidate).ends_with("一。"));
    }

    #[test]
    fn nothing_is_lost_whatever_the_text() {
        for (a, b) in [("", "x"), ("a  b\n\nc", "a b\nc"), ("🙂🙂", "🙂"), ("<b>", "</b>")] {
            let diff = word_diff(a, b);
            let text = |pieces: &[Piece]| pieces.iter().map(|piece| piece.text.as_str()).collect::<String>();
            assert_eq!((text(&diff.baseline).as_str(), text(&diff.candidate).as_str()), (a, b));
        }
    }
}
