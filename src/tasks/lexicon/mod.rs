//! Words and sentence patterns of the haystack, one pair of text files per language.
//!
//! A pattern is cut where a token can never cross: every fragment starts with its space and ends in something visible, so
//! its count can be remembered and added up. To add a language, add its two files and an arm in [`Lexicon::of`].

mod sentence;

use std::collections::BTreeMap;
use std::sync::LazyLock;

pub(super) use sentence::{Reserved, Sentence};

use crate::sample::Language;

/// One step of a sentence pattern. `suffix` is the punctuation that clings to the word.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    /// Fixed words, starting with a space.
    Text(String),
    /// An entry of a word class.
    Word { class: String, suffix: String },
    /// A number from [`NUMBERS`].
    Number { suffix: String },
}

/// Numbers of the filler: two digits at most, so none of them is a value (four digits and more) or contains one.
const NUMBERS: std::ops::RangeInclusive<u32> = 2..=99;

/// The words of one language.
#[derive(Debug)]
pub(super) struct Lexicon {
    classes: BTreeMap<String, Vec<String>>,
    patterns: Vec<Vec<Part>>,
    version: String,
}

static ENGLISH: LazyLock<Lexicon> =
    LazyLock::new(|| Lexicon::parse(include_str!("en_words.txt"), include_str!("en_grammar.txt")));

impl Lexicon {
    /// The lexicon of a language; `None` where there is none yet.
    pub(super) fn of(language: Language) -> Option<&'static Self> {
        match language {
            Language::En => Some(&ENGLISH),
            Language::Zh => None,
        }
    }

    /// The entries of a word class.
    ///
    /// # Panics
    /// When the class is missing from the language's file; a test asks for every class the tasks use.
    pub(super) fn class(&self, name: &str) -> &[String] {
        self.classes.get(name).unwrap_or_else(|| panic!("the lexicon has no class `{name}`"))
    }

    /// Changes with every change of a word or a pattern.
    pub(super) fn version(&self) -> &str {
        &self.version
    }

    fn parse(words: &str, grammar: &str) -> Self {
        let mut classes: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut class = String::new();
        for line in content_lines(words) {
            match line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                Some(name) => class = name.to_owned(),
                None => {
                    let entries = line.split(',').map(str::trim).filter(|entry| !entry.is_empty());
                    classes.entry(class.clone()).or_default().extend(entries.map(str::to_owned));
                }
            }
        }
        let hash = crate::rng::hash_name(&[words, grammar]).to_hex();
        let patterns = content_lines(grammar).map(parse_pattern).collect();
        Self { classes, patterns, version: hash[..16].to_owned() }
    }
}

fn content_lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// `The {noun}, was` → ` The`, noun + `,`, ` was.`: the space before a slot belongs to its word, punctuation behind it too.
fn parse_pattern(line: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    let text = format!(" {line}.");
    let mut rest = text.as_str();
    while let Some((before, behind)) = rest.split_once('{') {
        let fixed = before.strip_suffix(' ').unwrap_or_else(|| panic!("`{line}`: a slot needs a space before it"));
        if !fixed.is_empty() {
            parts.push(Part::Text(fixed.to_owned()));
        }
        let (class, behind) = behind.split_once('}').unwrap_or_else(|| panic!("`{line}`: a slot is not closed"));
        let (suffix, behind) = behind.split_at(behind.find(' ').unwrap_or(behind.len()));
        let suffix = suffix.to_owned();
        parts.push(match class {
            "number" => Part::Number { suffix },
            _ => Part::Word { class: class.to_owned(), suffix },
        });
        rest = behind;
    }
    if !rest.is_empty() {
        parts.push(Part::Text(rest.to_owned()));
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn english_is_large_clean_and_free_of_digits() {
        let lexicon = Lexicon::of(Language::En).unwrap();
        let entries: Vec<&String> = lexicon.classes.values().flatten().collect();
        assert!(entries.len() >= 1500, "{}", entries.len());
        for entry in entries {
            assert!(entry.is_ascii() && !entry.bytes().any(|byte| byte.is_ascii_digit()), "{entry}");
            assert!(!entry.contains("  ") && !entry.ends_with(['.', ',', ':']), "{entry}");
        }
        for (class, words) in &lexicon.classes {
            let mut sorted = words.clone();
            sorted.sort();
            sorted.dedup();
            assert_eq!(sorted.len(), words.len(), "duplicates in {class}");
        }
    }

    #[test]
    fn every_slot_of_every_pattern_has_its_class_and_every_class_is_used() {
        let lexicon = Lexicon::of(Language::En).unwrap();
        assert!(lexicon.patterns.len() >= 30);
        let mut used: Vec<&str> = Vec::new();
        for part in lexicon.patterns.iter().flatten() {
            if let Part::Word { class, .. } = part {
                assert!(!lexicon.class(class).is_empty());
                used.push(class);
            }
        }
        for class in lexicon.classes.keys() {
            assert!(used.contains(&class.as_str()), "no pattern uses {class}");
        }
    }

    #[test]
    fn a_pattern_is_cut_before_spaces_only() {
        let word = |class: &str, suffix: &str| Part::Word { class: class.into(), suffix: suffix.into() };
        assert_eq!(
            parse_pattern("{link}, the {noun} was {state}"),
            [
                word("link", ","),
                Part::Text(" the".into()),
                word("noun", ""),
                Part::Text(" was".into()),
                word("state", ".")
            ]
        );
        assert_eq!(
            parse_pattern("Room {number} is here"),
            [Part::Text(" Room".into()), Part::Number { suffix: String::new() }, Part::Text(" is here.".into())]
        );
    }
}
