//! Words and sentence patterns of the haystack, one pair of text files per language.
//!
//! An English pattern is cut where a token can never cross: every fragment starts with its space and ends in something
//! visible, so its count can be remembered and added up. Chinese has no spaces; there a token can cross any two characters
//! of a clause, and counts are remembered for nothing smaller.
//!
//! To add a language, add its two files and an arm in [`Lexicon::of`] and in [`as_unit`].

mod sentence;

use std::collections::BTreeMap;
use std::sync::LazyLock;

pub(super) use sentence::{Reserved, Sentence};

use crate::sample::Language;

/// One step of a sentence pattern. `suffix` is the punctuation that clings to the word.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    /// Fixed words, starting with a space where the language has spaces.
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
    language: Language,
    classes: BTreeMap<String, Vec<String>>,
    patterns: Vec<Vec<Part>>,
    version: String,
}

static ENGLISH: LazyLock<Lexicon> =
    LazyLock::new(|| Lexicon::parse(Language::En, include_str!("en_words.txt"), include_str!("en_grammar.txt")));
static CHINESE: LazyLock<Lexicon> =
    LazyLock::new(|| Lexicon::parse(Language::Zh, include_str!("zh_words.txt"), include_str!("zh_grammar.txt")));

/// `sentence`, with its full stop and without space around it, in the form in which sentences follow one another.
///
/// English: a space, then the sentence. Chinese: the full stop of the sentence before, then the sentence without its own.
/// Between a letter and a full stop every tokenizer makes a cut, which between a full stop and a letter some do not.
pub(super) fn as_unit(language: Language, sentence: &str) -> String {
    match language {
        Language::En => format!(" {sentence}"),
        Language::Zh => format!("{CHINESE_STOP}{}", sentence.strip_suffix(CHINESE_STOP).unwrap_or(sentence)),
    }
}

/// What a Chinese sentence ends in.
const CHINESE_STOP: char = '。';

/// What text that is cut out of a document may begin with and a sentence may not.
pub(super) fn trim_separator(text: &str) -> &str {
    text.trim_start_matches(|character: char| character == CHINESE_STOP || character.is_whitespace())
}

impl Lexicon {
    /// The lexicon of a language.
    pub(super) fn of(language: Language) -> &'static Self {
        match language {
            Language::En => &ENGLISH,
            Language::Zh => &CHINESE,
        }
    }

    /// Adjective and noun in one phrase.
    pub(super) fn phrase(&self, adjective: &str, noun: &str) -> String {
        format!("{adjective}{}{noun}", self.phrase_link())
    }

    /// What stands between an adjective and its noun.
    pub(super) fn phrase_link(&self) -> &'static str {
        match self.language {
            Language::En => " ",
            Language::Zh => "的",
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

    fn parse(language: Language, words: &str, grammar: &str) -> Self {
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
        let parse_pattern = match language {
            Language::En => parse_spaced_pattern,
            Language::Zh => parse_chinese_pattern,
        };
        let patterns = content_lines(grammar).map(parse_pattern).collect();
        Self { language, classes, patterns, version: hash[..16].to_owned() }
    }
}

fn content_lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// `The {noun}, was` → ` The`, noun + `,`, ` was.`: the space before a slot belongs to its word, punctuation behind it too.
fn parse_spaced_pattern(line: &str) -> Vec<Part> {
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
        parts.push(slot(class, suffix));
        rest = behind;
    }
    if !rest.is_empty() {
        parts.push(Part::Text(rest.to_owned()));
    }
    parts
}

/// `{noun}在{place}` → noun, `在`, place, `。`.
fn parse_chinese_pattern(line: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    let text = format!("{line}{CHINESE_STOP}");
    let mut rest = text.as_str();
    while let Some((before, behind)) = rest.split_once('{') {
        if !before.is_empty() {
            parts.push(Part::Text(before.to_owned()));
        }
        let (class, behind) = behind.split_once('}').unwrap_or_else(|| panic!("`{line}`: a slot is not closed"));
        parts.push(slot(class, ""));
        rest = behind;
    }
    parts.push(Part::Text(rest.to_owned()));
    parts
}

fn slot(class: &str, suffix: &str) -> Part {
    let suffix = suffix.to_owned();
    match class {
        "number" => Part::Number { suffix },
        _ => Part::Word { class: class.to_owned(), suffix },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn english_is_large_clean_and_free_of_digits() {
        let lexicon = Lexicon::of(Language::En);
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
        for language in [Language::En, Language::Zh] {
            let lexicon = Lexicon::of(language);
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
        let classes = |language| Lexicon::of(language).classes.keys().collect::<Vec<_>>();
        assert_eq!(classes(Language::En), classes(Language::Zh));
    }

    #[test]
    fn chinese_is_free_of_digits_and_no_key_stands_inside_another() {
        let lexicon = Lexicon::of(Language::Zh);
        let adjectives = lexicon.class("adjective");
        for (class, words) in &lexicon.classes {
            for (number, word) in words.iter().enumerate() {
                assert!(word.chars().all(crate::tokenizer::is_cjk_character), "{word}");
                assert!(!words[..number].contains(word), "{word} twice in {class}");
                assert!(!adjectives.iter().any(|adjective| word.contains(&lexicon.phrase(adjective, ""))), "{word}");
            }
        }
        for class in ["noun", "name", "person", "town", "building"] {
            let starts = |word: &String, other: &String| word != other && other.starts_with(word.as_str());
            let words = lexicon.class(class);
            let found = words.iter().find(|word| words.iter().any(|other| starts(word, other)));
            assert_eq!(found, None, "another entry of {class} begins with it");
        }
        let inside = |word: &String, other: &String| word != other && other.contains(word.as_str());
        let found = adjectives.iter().find(|word| adjectives.iter().any(|other| inside(word, other)));
        assert_eq!(found, None, "stands inside another adjective");
    }

    #[test]
    fn a_pattern_is_cut_before_spaces_only() {
        let word = |class: &str, suffix: &str| Part::Word { class: class.into(), suffix: suffix.into() };
        assert_eq!(
            parse_spaced_pattern("{link}, the {noun} was {state}"),
            [
                word("link", ","),
                Part::Text(" the".into()),
                word("noun", ""),
                Part::Text(" was".into()),
                word("state", ".")
            ]
        );
        assert_eq!(
            parse_spaced_pattern("Room {number} is here"),
            [Part::Text(" Room".into()), Part::Number { suffix: String::new() }, Part::Text(" is here.".into())]
        );
    }
}
