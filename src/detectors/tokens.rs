//! How detectors read text: words, digit runs, single CJK characters, single marks. Whitespace separates.
//!
//! A text is read once, and a token keeps what every detector asks of it: script, capital, what is known of the word.

use crate::detectors::tongue::Tongue;
use crate::detectors::words::{Known, Table};

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// Letters of a script that separates words.
    Word,
    /// One character of a script that does not.
    Ideograph,
    /// Digits.
    Number,
    /// One punctuation mark or symbol.
    Mark,
}

/// A token: its place in the text, a hash of it, and what it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token {
    pub(super) hash: u64,
    pub(super) start: usize,
    pub(super) end: usize,
    /// What the table says of it; nothing of what is no word.
    pub(super) known: Known,
    pub(super) kind: Kind,
    /// Of the first letter, where it is a word or an ideograph of a script that is told.
    pub(super) script: Option<Tongue>,
    /// Whether it is a word with a capital.
    pub(super) is_capital: bool,
    /// Whether a line ended between it and the token before it.
    pub(super) is_after_line: bool,
}

impl Token {
    fn of(kind: Kind, text: &[u8], start: usize, end: usize) -> Self {
        Self {
            hash: hash_at(kind, text, start, end),
            start,
            end,
            known: Known::default(),
            kind,
            script: None,
            is_capital: false,
            is_after_line: false,
        }
    }

    pub(super) fn text<'a>(&self, of: &'a str) -> &'a str {
        &of[self.start..self.end]
    }

    /// Whether it carries meaning by itself.
    pub(super) fn is_wordlike(&self) -> bool {
        matches!(self.kind, Kind::Word | Kind::Ideograph)
    }
}

/// Of a character beyond ASCII; `None` for whitespace.
fn kind_of(c: char) -> Option<Kind> {
    match c {
        // Most of what is not ASCII.
        '\u{4e00}'..='\u{9fff}' => Some(Kind::Ideograph),
        _ if c.is_whitespace() => None,
        // Kana, Han with its extensions and compatibility forms; Hangul separates words.
        '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}' => {
            Some(Kind::Ideograph)
        }
        // Thai, Lao, Myanmar and Khmer write words together.
        '\u{0e00}'..='\u{0eff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}' => Some(Kind::Ideograph),
        _ if c.is_numeric() => Some(Kind::Number),
        _ if c.is_alphabetic() => Some(Kind::Word),
        // Combining marks belong to the word before them; by themselves they are marks.
        _ => Some(Kind::Mark),
    }
}

/// What a byte begins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lead {
    Blank,
    Letter,
    Digit,
    Mark,
    /// A character of several bytes.
    Wide,
}

static LEADS: [Lead; 256] = {
    let mut leads = [Lead::Wide; 256];
    let mut byte = 0_u8;
    while byte < 0x80 {
        leads[byte as usize] = match byte {
            b'a'..=b'z' | b'A'..=b'Z' => Lead::Letter,
            b'0'..=b'9' => Lead::Digit,
            _ if byte.is_ascii_whitespace() => Lead::Blank,
            _ => Lead::Mark,
        };
        byte += 1;
    }
    leads
};

/// Splits a text. Linear.
pub(super) fn tokens(text: &str) -> Vec<Token> {
    let bytes = text.as_bytes();
    let table = Table::get();
    // Prose has a token in five bytes, Chinese one in three, data one in two to three.
    let mut tokens: Vec<Token> = Vec::with_capacity(text.len() / 3 + 8);
    let (mut start, mut is_after_line) = (0, false);
    while let Some(&byte) = bytes.get(start) {
        let lead = LEADS[usize::from(byte)];
        let mut token = match lead {
            Lead::Blank => {
                is_after_line |= byte == b'\n';
                start += 1;
                continue;
            }
            Lead::Mark => Token::of(Kind::Mark, bytes, start, start + 1),
            Lead::Digit => Token::of(Kind::Number, bytes, start, end_of_run(text, start + 1, Kind::Number)),
            Lead::Letter => {
                let end = end_of_run(text, start + 1, Kind::Word);
                let token = Token::of(Kind::Word, bytes, start, end);
                let known = table.known(token.hash, end - start);
                Token { known, script: Some(Tongue::ENGLISH), is_capital: byte.is_ascii_uppercase(), ..token }
            }
            Lead::Wide => match wide(text, start, table) {
                Ok(token) => token,
                Err(end) => {
                    start = end;
                    continue;
                }
            },
        };
        token.is_after_line = std::mem::take(&mut is_after_line);
        start = token.end;
        tokens.push(token);
    }
    tokens
}

/// The token that begins with a character beyond ASCII, or where the whitespace ends that is there.
fn wide(text: &str, start: usize, table: &Table) -> Result<Token, usize> {
    let c = char_at(text, start);
    let end = start + c.len_utf8();
    let kind = kind_of(c).ok_or(end)?;
    let end = if matches!(kind, Kind::Word | Kind::Number) { end_of_run(text, end, kind) } else { end };
    let token = Token::of(kind, text.as_bytes(), start, end);
    Ok(match kind {
        Kind::Word => Token {
            known: table.known(token.hash, end - start),
            script: Tongue::of_letter(c),
            is_capital: c.is_uppercase(),
            ..token
        },
        Kind::Ideograph => Token { script: Tongue::of_letter(c), ..token },
        Kind::Number | Kind::Mark => token,
    })
}

fn char_at(text: &str, at: usize) -> char {
    text[at..].chars().next().expect("a character begins there")
}

/// Where a word or number that goes on at `at` ends.
fn end_of_run(text: &str, mut at: usize, kind: Kind) -> usize {
    let bytes = text.as_bytes();
    let going_on = if kind == Kind::Word { Lead::Letter } else { Lead::Digit };
    loop {
        at += bytes[at..].iter().take_while(|byte| LEADS[usize::from(**byte)] == going_on).count();
        if bytes.get(at).is_none_or(u8::is_ascii) {
            break;
        }
        let c = char_at(text, at);
        if kind_of(c) != Some(kind) {
            break;
        }
        at += c.len_utf8();
    }
    at
}

/// Of the bytes, eight at a time, and their number; short tokens of one kind have different hashes.
fn hash_of(kind: Kind, bytes: &[u8]) -> u64 {
    let word = |eight: &[u8]| eight.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    bytes.chunks(8).fold(seed(kind, bytes.len()), |hash, eight| mix(hash, word(eight)))
}

/// The same of a token in a text.
fn hash_at(kind: Kind, text: &[u8], start: usize, end: usize) -> u64 {
    // Most tokens are short and have eight bytes before the end of the text: one load, and the rest of it masked.
    let length = end - start;
    match text[start..].first_chunk::<8>() {
        Some(eight) if length <= 8 => {
            mix(seed(kind, length), u64::from_le_bytes(*eight) & u64::MAX >> (u64::BITS - 8 * length as u32))
        }
        _ => hash_of(kind, &text[start..end]),
    }
}

fn seed(kind: Kind, bytes: usize) -> u64 {
    (kind as u64 + 1) << 56 ^ bytes as u64
}

/// Of a word by itself.
pub(super) fn word_hash(word: &str) -> u64 {
    hash_of(Kind::Word, word.as_bytes())
}

/// A multiplication with a 64-bit odd constant spreads upwards, the shift brings it down again.
pub(super) fn mix(hash: u64, word: u64) -> u64 {
    let spread = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    spread ^ spread >> 32
}

/// Hashes with every number alike.
pub(super) fn digit_masked(tokens: &[Token]) -> Vec<u64> {
    tokens.iter().map(masked).collect()
}

/// The hash of a token, with every number alike.
pub(super) fn masked(token: &Token) -> u64 {
    if token.kind == Kind::Number { 0 } else { token.hash | 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_numbers_ideographs_and_marks_are_told_apart() {
        let text = "Item42: 上下文, ok!\nnaïve 3.5";
        let found = tokens(text);
        let words: Vec<&str> = found.iter().map(|token| token.text(text)).collect();
        assert_eq!(words, ["Item", "42", ":", "上", "下", "文", ",", "ok", "!", "naïve", "3", ".", "5"]);
        assert_eq!(found[9].kind, Kind::Word);
    }

    #[test]
    fn letters_digits_and_marks_of_one_byte_have_hashes_of_their_own() {
        let bytes: String = (b'!'..=b'~').map(|byte| format!("{} ", char::from(byte))).collect();
        let mut hashes: Vec<u64> = tokens(&bytes).iter().map(|token| token.hash).collect();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), usize::from(b'~' - b'!') + 1);
    }

    #[test]
    fn a_hash_does_not_depend_on_what_follows() {
        for word in ["a", "ledger", "harbours", "internationalisation", "港", "naïve", "1234567890123"] {
            let alone = tokens(word)[0].hash;
            for text in [format!("{word} "), format!("{word}, and so on for some time"), format!("x {word}\n")] {
                assert!(tokens(&text).iter().any(|token| token.hash == alone), "{text}");
            }
        }
    }

    #[test]
    fn equal_words_have_equal_hashes_and_masked_numbers_are_alike() {
        let found = tokens("row 17 row 18 wor 17");
        assert_eq!(found[0].hash, found[2].hash);
        assert_ne!(found[0].hash, found[4].hash);
        assert_ne!(found[1].hash, found[3].hash);
        let masked = digit_masked(&found);
        assert_eq!(masked[1], masked[3]);
        assert_ne!(masked[0], masked[1]);
    }
}
