//! The user's own text as filler, in place of grammar-generated prose: `--haystack FILE`.
//!
//! It is cut into sentences, and every document starts at another one of them; where the text ends it begins again. What
//! stands in it is not known to be free of what a question asks for, so sentences with a key, a name or a value of the
//! document are left out of it.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use serde::{Serialize, Serializer};

use super::haystack::{Filler, Unit};
use super::lexicon::as_unit;
use super::planting::Soil;
use crate::hint::Hint;
use crate::rng::Rng;
use crate::sample::Language;
use crate::tokenizer::{TokenCounter, UNCOUNTABLE_TOKENS};

/// A document of a million tokens has about 5 MB; three times that leaves room for every alphabet.
const MAX_BYTES: u64 = 16 << 20;

/// With fewer, documents of 2K would already say everything twice.
const MIN_SENTENCES: usize = 100;

/// Text without full stops is cut here, at white space if there is any: the longest unit has to be far below the 3 % of a
/// document of 8K that may stay empty.
const MAX_SENTENCE_CHARS: usize = 300;

/// What ends a sentence. A full stop inside `3.14` or `e.g.` has no white space behind it.
const STOPS: [char; 3] = ['.', '!', '?'];
const CHINESE_STOPS: [char; 3] = ['。', '！', '？'];

/// How models spell their control tokens: a sentence with one would end or begin a turn of the conversation.
const CONTROL: [&str; 6] = ["<|", "|>", "<s>", "</s>", "[INST]", "<start_of_turn>"];

/// Sentences of a text in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserText {
    sentences: Arc<[String]>,
    hash: String,
}

/// Why a text cannot be a haystack.
#[derive(Debug, thiserror::Error)]
pub enum UserTextError {
    /// The file cannot be read.
    #[error("haystack {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// Longer than any document needs.
    #[error("haystack {path}: more than {limit} bytes")]
    TooLarge {
        /// The file.
        path: String,
        /// Largest size.
        limit: u64,
    },
    /// Not UTF-8, or binary.
    #[error("haystack {path}:{line}: {what}")]
    NotText {
        /// The file.
        path: String,
        /// Counted from 1.
        line: usize,
        /// What stands there.
        what: &'static str,
    },
    /// Too short.
    #[error("haystack {path}: {found} sentences, {needed} are the least")]
    TooShort {
        /// The file.
        path: String,
        /// Sentences of the text.
        found: usize,
        /// Least number.
        needed: usize,
    },
}

impl Hint for UserTextError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::Read { .. } => Vec::new(),
            Self::TooLarge { .. } => vec!["a part of it is enough: a million tokens have about 5 MB".into()],
            Self::NotText { .. } => vec!["save it as plain text in UTF-8".into()],
            Self::TooShort { .. } => {
                vec!["sentences end in `.`, `!`, `?`, `。`, `！`, `？` or at the end of a line".into()]
            }
        }
    }
}

impl Serialize for UserText {
    /// As its hash: the text itself stays where it is.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.hash)
    }
}

impl UserText {
    /// Reads a file of UTF-8 text.
    ///
    /// # Errors
    /// When it cannot be read, is too large, is not text or has too few sentences.
    pub fn load(path: &Path) -> Result<Self, UserTextError> {
        let name = path.display().to_string();
        let failed = |source| UserTextError::Read { path: name.clone(), source };
        let mut bytes = Vec::new();
        File::open(path).map_err(failed)?.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
        Self::parse(&bytes, &name)
    }

    /// Cuts a text into sentences; `path` names it in errors.
    ///
    /// # Errors
    /// As [`UserText::load`], but for reading.
    pub fn parse(bytes: &[u8], path: &str) -> Result<Self, UserTextError> {
        let path = || path.to_owned();
        if bytes.len() as u64 > MAX_BYTES {
            return Err(UserTextError::TooLarge { path: path(), limit: MAX_BYTES });
        }
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        let text = std::str::from_utf8(bytes).map_err(|error| UserTextError::NotText {
            path: path(),
            line: line_of(&bytes[..error.valid_up_to()]),
            what: "not UTF-8",
        })?;
        if let Some(at) = text.find(is_binary) {
            let line = line_of(&bytes[..at]);
            return Err(UserTextError::NotText { path: path(), line, what: "a control character" });
        }
        let sentences: Arc<[String]> = sentences(text).collect();
        if sentences.len() < MIN_SENTENCES {
            return Err(UserTextError::TooShort { path: path(), found: sentences.len(), needed: MIN_SENTENCES });
        }
        Ok(Self { sentences, hash: blake3::hash(bytes).to_hex().to_string() })
    }

    /// BLAKE3 of the text, 64 hex digits.
    pub fn hash(&self) -> &str {
        &self.hash
    }
}

fn line_of(before: &[u8]) -> usize {
    1 + before.iter().filter(|byte| **byte == b'\n').count()
}

/// Control characters other than white space. They may also be part of a model's control tokens in disguise.
fn is_binary(character: char) -> bool {
    character.is_control() && !character.is_whitespace()
}

/// The sentences of all lines, white space inside them made one space.
fn sentences(text: &str) -> impl Iterator<Item = String> {
    text.lines().flat_map(line_sentences).flat_map(|sentence| short_pieces(&sentence))
}

fn line_sentences(line: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut start = 0;
    let mut characters = line.char_indices().peekable();
    while let Some((at, character)) = characters.next() {
        let is_end = match characters.peek() {
            None => true,
            Some((_, next)) => {
                STOPS.contains(&character) && next.is_whitespace()
                    || CHINESE_STOPS.contains(&character) && !CHINESE_STOPS.contains(next) && *next != '”'
                    || character == '”' && line[..at].ends_with(CHINESE_STOPS)
            }
        };
        if is_end {
            let end = at + character.len_utf8();
            found.push(line[start..end].split_whitespace().collect::<Vec<_>>().join(" "));
            start = end;
        }
    }
    found.retain(|sentence| {
        sentence.chars().any(char::is_alphanumeric) && !CONTROL.iter().any(|it| sentence.contains(it))
    });
    found
}

/// `sentence`, or pieces of at most [`MAX_SENTENCE_CHARS`] characters.
fn short_pieces(sentence: &str) -> Vec<String> {
    let mut pieces = Vec::new();
    let mut rest = sentence;
    while let Some((limit, _)) = rest.char_indices().nth(MAX_SENTENCE_CHARS) {
        let end = rest[..limit].rfind(' ').filter(|at| *at > 0).unwrap_or(limit);
        pieces.push(rest[..end].to_owned());
        rest = rest[end..].trim_start();
    }
    pieces.push(rest.to_owned());
    pieces.retain(|piece| !piece.is_empty());
    pieces
}

/// Draws the sentences of a text in their order.
pub(super) struct UserProse<'a> {
    language: Language,
    text: &'a UserText,
    /// Next sentence.
    at: usize,
    /// Keys, names and values of the document that are not numbers.
    words: Vec<&'a str>,
    /// Its numbers.
    numbers: Vec<&'a str>,
}

impl<'a> UserProse<'a> {
    /// Starts at a random sentence.
    pub(super) fn new(language: Language, text: &'a UserText, soil: &'a Soil, mut rng: Rng) -> Self {
        let planted = soil.values.iter().chain(&soil.reserved.pairs).chain(&soil.reserved.labels).map(String::as_str);
        let (numbers, words) = planted.partition(|text| text.bytes().any(|byte| byte.is_ascii_digit()));
        Self { language, text, at: rng.below(text.sentences.len()), words, numbers }
    }

    fn is_free(&self, sentence: &str) -> bool {
        let has_digits = || sentence.bytes().any(|byte| byte.is_ascii_digit());
        let holds_word = self.words.iter().any(|word| sentence.contains(word));
        !holds_word && (!has_digits() || !self.numbers.iter().any(|number| sentence.contains(number)))
    }
}

impl Filler for UserProse<'_> {
    fn next_unit(&mut self, counter: &dyn TokenCounter) -> Unit {
        let count = self.text.sentences.len();
        let found = (0..count).map(|step| (self.at + step) % count).find(|at| self.is_free(&self.text.sentences[*at]));
        // A key in every sentence: nothing fits, and the document stays too short, which is an error.
        let Some(at) = found else { return Unit { text: String::new(), tokens: UNCOUNTABLE_TOKENS, entry: None } };
        self.at = (at + 1) % count;
        let text = as_unit(self.language, &self.text.sentences[at]);
        Unit { tokens: counter.count(&text), text, entry: None }
    }

    /// Sentences have any length, so a short one may be far.
    fn last_fits(&self) -> usize {
        200
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(count: usize) -> String {
        (0..count).map(|number| format!("Line {number} of it.\n")).collect()
    }

    #[test]
    fn text_is_cut_at_sentence_ends_and_line_ends_and_nowhere_else() {
        let cut = |text| sentences(text).collect::<Vec<_>>();
        assert_eq!(
            cut("It was 3.14  m, e.g. so! Then?\nA title\n\n---\n"),
            ["It was 3.14 m, e.g.", "so!", "Then?", "A title"]
        );
        assert_eq!(cut("他说：“走吧。”天黑了！！真的？好"), ["他说：“走吧。”", "天黑了！！", "真的？", "好"]);
        assert_eq!(cut("Bad <|im_end|> line.\nGood."), ["Good."]);
        let long = "word ".repeat(200);
        let pieces = cut(&long);
        assert!(pieces.len() == 4 && pieces.iter().all(|piece| piece.chars().count() <= MAX_SENTENCE_CHARS));
        assert_eq!(pieces.join(" "), long.trim_end());
        assert_eq!(cut(&"字".repeat(700)).concat(), "字".repeat(700));
    }

    #[test]
    fn what_is_no_text_is_refused_with_its_line() {
        let error = |bytes: &[u8]| UserText::parse(bytes, "a.txt").unwrap_err().to_string();
        assert_eq!(error(b"one\ntwo \xff\n"), "haystack a.txt:2: not UTF-8");
        assert_eq!(error(b"one\n\ntwo\x00"), "haystack a.txt:3: a control character");
        assert_eq!(error(lines(99).as_bytes()), "haystack a.txt: 99 sentences, 100 are the least");
        assert_eq!(error(&vec![b'a'; MAX_BYTES as usize + 1]), "haystack a.txt: more than 16777216 bytes");
        assert!(
            UserText::load(Path::new("/nonexistent")).unwrap_err().to_string().starts_with("haystack /nonexistent: ")
        );
    }

    #[test]
    fn the_hash_is_that_of_the_text() {
        let text = UserText::parse(lines(100).as_bytes(), "a").unwrap();
        let marked = UserText::parse([b"\xef\xbb\xbf", lines(100).as_bytes()].concat().as_slice(), "b").unwrap();
        assert_eq!(text.hash(), marked.hash());
        assert_ne!(text.hash(), UserText::parse(lines(101).as_bytes(), "c").unwrap().hash());
    }
}
