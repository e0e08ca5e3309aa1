//! Which values an answer gives: those that are known of the text, and others that look like them.

use std::collections::{BTreeMap, HashMap};

use crate::scorers::answer_text::{
    ascii_digits, bare, content_lines, is_announcement, is_code, is_code_char, is_decimal, joined_thousands, nearness,
    stands_alone, without_marker,
};
use crate::scorers::seen;

/// A value that an answer gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// One that is known, by its index.
    Known(usize),
    /// One that looks like those that are known.
    Other(String),
}

/// Most values read from an answer: ten times what the largest task asks for; a loop repeats what was seen.
const MAX_SAID: usize = 4096;

/// Unknown values that are compared with the missing ones for near misses; the cost is the product of both numbers.
const MAX_NEAR_VALUES: usize = 64;

/// The values of an answer, in order. Where all that is known are numbers, codes or words in capitals, every such word of
/// the answer that is about as long is a value and the prose around it is not. Otherwise the parts between line ends and
/// commas are looked through.
pub(super) fn values_in(text: &str, known: &[&str]) -> Vec<Said> {
    let look = Look::of(known);
    let mut said = if look == Look::Phrase { phrases_in(text, known) } else { words_in(text, known, look) };
    said.truncate(MAX_SAID);
    said
}

/// What the known values have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    /// Digits only; a word with at least so many of them looks alike.
    Number { least: usize },
    /// One word with a digit in it; such a word of at least so many characters looks alike.
    Code { least: usize },
    /// One word in capitals; such a word looks alike when it is one letter shorter or longer at most.
    Capitals { shortest: usize, longest: usize },
    /// Anything else.
    Phrase,
}

impl Look {
    fn of(known: &[&str]) -> Self {
        let lengths = || known.iter().map(|value| value.len());
        let (Some(shortest), Some(longest)) = (lengths().min(), lengths().max()) else { return Self::Phrase };
        if shortest == 0 || !known.iter().all(|value| value.chars().all(is_code_char)) {
            return Self::Phrase;
        }
        let all = |test: fn(u8) -> bool| known.iter().all(|value| value.bytes().all(test));
        if all(|byte| byte.is_ascii_digit()) {
            Self::Number { least: shortest / 2 + 1 }
        } else if known.iter().all(|value| is_code(value)) {
            Self::Code { least: shortest / 2 + 1 }
        } else if all(|byte| byte.is_ascii_uppercase()) && shortest >= 3 {
            Self::Capitals { shortest, longest }
        } else {
            Self::Phrase
        }
    }

    fn has(self, word: &str) -> bool {
        let digits = word.bytes().filter(u8::is_ascii_digit).count();
        match self {
            Self::Number { least } => digits >= least,
            Self::Code { least } => digits > 0 && word.len() >= least,
            Self::Capitals { shortest, longest } => {
                (shortest - 1..=longest + 1).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_uppercase())
            }
            Self::Phrase => false,
        }
    }
}

fn words_in(text: &str, known: &[&str], look: Look) -> Vec<Said> {
    let mut text = ascii_digits(text);
    // Groups of three digits are whole values where values are that short.
    if matches!(look, Look::Number { .. }) && known.iter().all(|value| value.len() > 3) {
        text = joined_thousands(&text);
    }
    let index = first_index(known);
    let is_capitals = matches!(look, Look::Capitals { .. });
    let mut said = Vec::new();
    for line in content_lines(&text) {
        for word in without_marker(line).split(|c: char| !(is_code_char(c) || c == '.')) {
            let word = word.trim_matches(['-', '_', '.']);
            let parts: Vec<&str> = if is_decimal(word) { vec![word] } else { word.split('.').collect() };
            for part in parts.into_iter().map(|part| part.trim_matches(['-', '_'])) {
                if let Some(&place) = index.get(part) {
                    said.push(Said::Known(place));
                } else if look.has(part) || (is_capitals && index.contains_key(part.to_ascii_uppercase().as_str())) {
                    said.push(Said::Other(part.to_owned()));
                }
            }
        }
        if said.len() >= MAX_SAID {
            break;
        }
    }
    said
}

fn first_index<'a>(known: &[&'a str]) -> HashMap<&'a str, usize> {
    known.iter().enumerate().rev().map(|(place, value)| (*value, place)).collect()
}

const SEPARATORS: [char; 5] = [',', ';', '，', '；', '、'];

fn phrases_in(text: &str, known: &[&str]) -> Vec<Said> {
    let text = text.to_lowercase();
    let folded: Vec<String> = known.iter().map(|value| bare(value).to_lowercase()).collect();
    let known: Vec<&str> = folded.iter().map(String::as_str).collect();
    let most_words = known.iter().map(|value| value.split_whitespace().count()).max().unwrap_or(0);
    let longest = known.iter().map(|value| value.chars().count()).max().unwrap_or(0);
    let is_short = |part: &str| part.split_whitespace().count() <= most_words && part.chars().count() <= 2 * longest;
    let is_divided = !known.iter().any(|value| value.contains(SEPARATORS));
    let mut said = Vec::new();
    for (number, line) in content_lines(&text).enumerate() {
        let line = without_marker(line);
        let parts: Vec<&str> = if is_divided { line.split(SEPARATORS).collect() } else { vec![line] };
        for part in parts.into_iter().map(bare) {
            let found = known_in(part, &known);
            let is_value = found.is_empty() && is_short(part) && part.chars().any(char::is_alphanumeric);
            if is_value && !(number == 0 && is_announcement(line)) {
                said.push(Said::Other(part.to_owned()));
            }
            said.extend(found.into_iter().map(|(_, place)| Said::Known(place)));
        }
        if said.len() >= MAX_SAID {
            break;
        }
    }
    said
}

/// Where the texts of `known` stand in `text` as whole words: byte offset and index, in order. Of two that overlap, the
/// longer one counts.
pub(super) fn known_in(text: &str, known: &[&str]) -> Vec<(usize, usize)> {
    let mut longest_first: Vec<(&str, usize)> = first_index(known).into_iter().collect();
    longest_first.sort_by_key(|(value, place)| (usize::MAX - value.len(), *place));
    // Start → end and index.
    let mut taken: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
    for (value, place) in longest_first.into_iter().filter(|(value, _)| !value.is_empty()) {
        for (start, _) in text.match_indices(value) {
            let end = start + value.len();
            let is_free = taken.range(..end).next_back().is_none_or(|(_, (other_end, _))| *other_end <= start);
            if is_free && stands_alone(text, start, end) {
                taken.insert(start, (end, place));
            }
        }
    }
    taken.into_iter().map(|(start, (_, place))| (start, place)).collect()
}

/// Takes the values off `unknown` that are near one of `missing`, and what they stand for off `missing`; says how near.
pub(super) fn take_near_misses(unknown: &mut Vec<String>, missing: &mut Vec<&str>) -> Vec<String> {
    let mut notes = Vec::new();
    let mut compared = 0;
    unknown.retain(|value| {
        compared += 1;
        if compared > MAX_NEAR_VALUES {
            return true;
        }
        let candidates = missing.iter().take(MAX_NEAR_VALUES).enumerate();
        let twin = candidates.filter_map(|(slot, wanted)| Some((slot, nearness(wanted, value)?))).next();
        let Some((slot, how)) = twin else { return true };
        let wanted = missing.remove(slot);
        notes.push(format!("{} for {}: {how}", seen(value), seen(wanted)));
        false
    });
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn other(text: &str) -> Said {
        Said::Other(text.into())
    }

    #[test]
    fn numbers_are_told_from_markers_counts_and_prose() {
        use Said::Known;
        let known = ["4829173", "1150264"];
        for (text, said) in [
            ("4829173\n1150264", vec![Known(0), Known(1)]),
            ("1. 1150264\n2. 4829173", vec![Known(1), Known(0)]),
            ("There are 2 numbers: 4,829,173 and 1150264.", vec![Known(0), Known(1)]),
            ("号码是４８２９１７３。", vec![Known(0)]),
            ("4829173.5", vec![other("4829173.5")]),
            ("48291, 999", vec![other("48291")]),
            ("nothing", vec![]),
        ] {
            assert_eq!(values_in(text, &known), said, "{text}");
        }
    }

    #[test]
    fn capitals_are_told_from_prose() {
        use Said::Known;
        let said = values_in("The variables are QXVBN, wjklm AND BCDFG.", &["QXVBN", "WJKLM"]);
        assert_eq!(said, [Known(0), other("wjklm"), other("BCDFG")]);
    }

    #[test]
    fn phrases_are_read_part_by_part_and_the_longer_one_counts() {
        use Said::Known;
        let known = ["Ashford", "North Ashford", "Bramley"];
        let said = values_in("The towns are:\n- North Ashford\n- bramley and Ashford; Redcliff", &known);
        assert_eq!(said, [Known(1), Known(2), Known(0), other("redcliff")]);
        assert_eq!(values_in("北仓、南仓", &["南仓"]), [other("北仓"), Known(0)]);
    }

    #[test]
    fn a_near_miss_takes_what_it_stands_for() {
        let mut unknown = vec!["4829713".to_owned(), "5550000".to_owned()];
        let mut missing = vec!["1150264", "4829173"];
        assert_eq!(take_near_misses(&mut unknown, &mut missing), ["4829713 for 4829173: characters transposed"]);
        assert_eq!((unknown, missing), (vec!["5550000".to_owned()], vec!["1150264"]));
    }

    #[test]
    fn a_loop_is_bounded() {
        assert_eq!(values_in(&"4829173 ".repeat(1_000_000), &["4829173"]).len(), MAX_SAID);
        assert!(values_in(&"ashford, ".repeat(100_000), &["ashford", "ash"]).len() <= MAX_SAID);
    }
}
