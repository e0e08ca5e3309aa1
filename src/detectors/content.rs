//! What a text is about: its content words, numbers and ideograph pairs, without function words and endings.

use std::collections::HashSet;
use std::hash::BuildHasherDefault;

use crate::detectors::reading::Reference;
use crate::detectors::tokens::{Kind, Token};
use crate::detectors::tongue::{Spread, function_word};

/// Tokens read of one text; what a longer one is about has shown by then.
const MAX_TOKENS: usize = 20_000;

/// Hashes of content words.
pub(super) type Content = HashSet<u64, BuildHasherDefault<Spread>>;

/// Of a text with its tokens.
pub(super) fn content_of(text: &str, tokens: &[Token]) -> Content {
    let mut content = Content::default();
    add_content(&mut content, text, &tokens[..tokens.len().min(MAX_TOKENS)]);
    content
}

pub(super) fn content_of_reference(reference: &Reference<'_>) -> Content {
    content_of(reference.text, &reference.tokens)
}

/// Adds what `tokens` say to `content`.
pub(super) fn add_content(content: &mut Content, text: &str, tokens: &[Token]) {
    for (at, token) in tokens.iter().enumerate() {
        match token.kind {
            Kind::Word => {
                if let Some(hash) = word(text, token) {
                    content.insert(hash);
                }
            }
            Kind::Number if token.end - token.start >= 2 => {
                content.insert(token.hash);
            }
            // A pair says what a word does; single ideographs stand in every text.
            Kind::Ideograph => {
                if let Some(next) = tokens.get(at + 1)
                    && next.kind == Kind::Ideograph
                    && next.start == token.end
                {
                    content.insert(token.hash.rotate_left(17) ^ next.hash);
                }
            }
            _ => {}
        }
    }
}

/// Hash of a content word without its ending; `None` for function words and single letters.
fn word(text: &str, token: &Token) -> Option<u64> {
    if token.end - token.start < 3 || function_word(token) != 0 {
        return None;
    }
    let word = token.text(text);
    Some(stem_hash(word))
}

/// Small letters only, without the commonest English endings: `closed`, `closing` and `closes` are one word.
fn stem_hash(word: &str) -> u64 {
    let mut bytes = word.as_bytes();
    for ending in [&b"ing"[..], b"ed", b"es", b"s", b"ly", b"e"] {
        if bytes.len() >= ending.len() + 3 && bytes.ends_with(ending) {
            bytes = &bytes[..bytes.len() - ending.len()];
            break;
        }
    }
    let mix = |hash: u64, byte: &u8| {
        (hash ^ u64::from(byte.to_ascii_lowercase())).wrapping_mul(0x0100_0000_01b3).rotate_left(23)
    };
    bytes.iter().fold(0x9e37_79b9_7f4a_7c15, mix)
}

/// Share of `of` that stands in `others` too; 0 for nothing.
pub(super) fn share_in(of: &Content, others: &Content) -> f64 {
    if of.is_empty() {
        return 0.0;
    }
    of.iter().filter(|word| others.contains(word)).count() as f64 / of.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detectors::tokens::tokens;

    fn content(text: &str) -> Content {
        content_of(text, &tokens(text))
    }

    #[test]
    fn forms_of_a_word_are_one_and_function_words_none() {
        assert_eq!(content("The office closed."), content("closing of offices"));
        assert!(content("it was of the").is_empty());
        assert!((share_in(&content("harbour 4829173"), &content("The harbour")) - 0.5).abs() < 1e-9);
        assert!(share_in(&content("港口关门"), &content("港口很早")) > 0.0);
        assert_eq!(share_in(&content("港口"), &content("天气")), 0.0);
    }
}
