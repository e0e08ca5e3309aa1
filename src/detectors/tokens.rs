//! How detectors read text: words, digit runs, single CJK characters, single marks. Whitespace separates.

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

/// A token: its place in the text and a hash of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token {
    pub(super) kind: Kind,
    pub(super) hash: u64,
    pub(super) start: usize,
    pub(super) end: usize,
}

impl Token {
    pub(super) fn text<'a>(&self, of: &'a str) -> &'a str {
        &of[self.start..self.end]
    }

    /// Whether it carries meaning by itself.
    pub(super) fn is_wordlike(&self) -> bool {
        matches!(self.kind, Kind::Word | Kind::Ideograph)
    }
}

fn kind_of(c: char) -> Option<Kind> {
    if c.is_ascii() {
        return match c {
            'a'..='z' | 'A'..='Z' => Some(Kind::Word),
            '0'..='9' => Some(Kind::Number),
            _ if c.is_ascii_whitespace() => None,
            _ => Some(Kind::Mark),
        };
    }
    match c {
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

/// Splits a text. Linear.
pub(super) fn tokens(text: &str) -> Vec<Token> {
    let mut tokens: Vec<Token> = Vec::with_capacity(text.len() / 5);
    for (start, c) in text.char_indices() {
        let Some(kind) = kind_of(c) else { continue };
        let end = start + c.len_utf8();
        if matches!(kind, Kind::Word | Kind::Number)
            && let Some(last) = tokens.last_mut()
            && last.kind == kind
            && last.end == start
        {
            last.end = end;
            last.hash = mix(last.hash, c);
            continue;
        }
        tokens.push(Token { kind, hash: mix(kind as u64, c), start, end });
    }
    tokens
}

/// One step of FNV-1a over characters, spread by a multiplication with a 64-bit odd constant.
fn mix(hash: u64, c: char) -> u64 {
    (hash ^ u64::from(c)).wrapping_mul(0x0100_0000_01b3).rotate_left(23) ^ 0x9e37_79b9_7f4a_7c15
}

/// Hashes with every number alike.
pub(super) fn digit_masked(tokens: &[Token]) -> Vec<u64> {
    tokens.iter().map(|token| if token.kind == Kind::Number { 0 } else { token.hash | 1 }).collect()
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
