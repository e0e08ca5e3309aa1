//! What a text is about: its content words, numbers and ideograph pairs, without function words and endings.

use std::collections::HashSet;
use std::hash::BuildHasherDefault;

use crate::detectors::reading::Reference;
use crate::detectors::tokens::{Kind, Token, mix};
use crate::detectors::tongue::{Spread, function_word};

/// Tokens read of one text; what a longer one is about has shown by then.
const MAX_TOKENS: usize = 20_000;

/// Bytes that an ending leaves of a word.
const MIN_STEM: usize = 3;

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
pub(super) fn add_content(content: &mut impl Extend<u64>, text: &str, tokens: &[Token]) {
    let words = tokens.iter().enumerate().filter_map(|(at, token)| said(text, token, tokens.get(at + 1)));
    content.extend(words);
}

/// What a token before another one says.
fn said(text: &str, token: &Token, next: Option<&Token>) -> Option<u64> {
    match token.kind {
        Kind::Word => word(text, token),
        Kind::Number => (token.end - token.start >= 2).then_some(token.hash),
        // A pair says what a word does; single ideographs stand in every text.
        Kind::Ideograph => {
            let next = next.filter(|next| next.kind == Kind::Ideograph && next.start == token.end)?;
            Some(token.hash.rotate_left(17) ^ next.hash)
        }
        Kind::Mark => None,
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
    let bytes = word.as_bytes();
    let ending = match bytes {
        [.., b'i', b'n', b'g'] => 3,
        [.., b'e', b'd'] | [.., b'l', b'y'] => 2,
        [.., b'e', b's'] if bytes.len() >= MIN_STEM + 2 => 2,
        [.., b's' | b'e'] => 1,
        _ => 0,
    };
    let stem = &bytes[..if bytes.len() >= MIN_STEM + ending { bytes.len() - ending } else { bytes.len() }];
    let small = |bytes: &[u8]| bytes.iter().fold(0, |word, byte| word << 8 | u64::from(byte.to_ascii_lowercase()));
    stem.chunks(8).fold(stem.len() as u64, |hash, bytes| mix(hash, small(bytes)))
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
