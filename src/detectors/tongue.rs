//! Which language a sentence is in: by script, among languages that share one by their function words, and for prose without
//! any known ones by trigrams (`whatlang`, which is weak below some words and slow, so it is asked last).

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use whatlang::Lang;

use crate::detectors::tokens::{Kind, Token};

/// A language, or a script where only that can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tongue {
    Latin(Lang),
    Chinese,
    Japanese,
    Korean,
    Cyrillic,
    Greek,
    Arabic,
    Hebrew,
    Indic,
    Thai,
}

impl Tongue {
    pub(super) const ENGLISH: Self = Self::Latin(Lang::Eng);

    /// Of an ISO 639-1 code, with or without a region.
    pub(super) fn of_code(code: &str) -> Option<Self> {
        let language = code.split(['-', '_']).next().unwrap_or_default().to_ascii_lowercase();
        Some(match language.as_str() {
            "en" => Self::Latin(Lang::Eng),
            "fr" => Self::Latin(Lang::Fra),
            "es" => Self::Latin(Lang::Spa),
            "de" => Self::Latin(Lang::Deu),
            "it" => Self::Latin(Lang::Ita),
            "pt" => Self::Latin(Lang::Por),
            "nl" => Self::Latin(Lang::Nld),
            "sv" => Self::Latin(Lang::Swe),
            "pl" => Self::Latin(Lang::Pol),
            "tr" => Self::Latin(Lang::Tur),
            "vi" => Self::Latin(Lang::Vie),
            "id" => Self::Latin(Lang::Ind),
            "zh" => Self::Chinese,
            "ja" => Self::Japanese,
            "ko" => Self::Korean,
            "ru" | "uk" | "bg" => Self::Cyrillic,
            "el" => Self::Greek,
            "ar" | "fa" | "ur" => Self::Arabic,
            "he" => Self::Hebrew,
            "hi" | "bn" | "ta" => Self::Indic,
            "th" => Self::Thai,
            _ => return None,
        })
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Latin(language) => language.eng_name(),
            Self::Chinese => "Chinese",
            Self::Japanese => "Japanese",
            Self::Korean => "Korean",
            Self::Cyrillic => "Cyrillic",
            Self::Greek => "Greek",
            Self::Arabic => "Arabic",
            Self::Hebrew => "Hebrew",
            Self::Indic => "Indic",
            Self::Thai => "Thai",
        }
    }

    /// The script's one, of a letter; `None` for marks and digits.
    pub(super) fn of_letter(c: char) -> Option<Self> {
        Some(match c {
            'a'..='z' | 'A'..='Z' | '\u{c0}'..='\u{24f}' | '\u{1e00}'..='\u{1eff}' => Self::Latin(Lang::Eng),
            '\u{370}'..='\u{3ff}' => Self::Greek,
            '\u{400}'..='\u{52f}' => Self::Cyrillic,
            '\u{590}'..='\u{5ff}' => Self::Hebrew,
            '\u{600}'..='\u{6ff}' | '\u{750}'..='\u{77f}' => Self::Arabic,
            '\u{900}'..='\u{dff}' => Self::Indic,
            '\u{e00}'..='\u{e7f}' => Self::Thai,
            '\u{3041}'..='\u{3096}' | '\u{30a1}'..='\u{30fa}' | '\u{30fc}' => Self::Japanese,
            '\u{1100}'..='\u{11ff}' | '\u{ac00}'..='\u{d7af}' => Self::Korean,
            '\u{3400}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}' => Self::Chinese,
            _ => return None,
        })
    }
}

/// Languages whose function words are known, in the order of [`Counts::hits`].
const KNOWN: [Lang; 7] = [Lang::Eng, Lang::Fra, Lang::Spa, Lang::Deu, Lang::Ita, Lang::Por, Lang::Nld];

/// Hashes of tokens are spread already.
#[derive(Default)]
pub(super) struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// A map keyed by hashes of tokens.
pub(super) type HashKeyed<V> = HashMap<u64, V, BuildHasherDefault<Spread>>;

/// The languages that a token is a function word of, as bits in the order of [`KNOWN`].
pub(super) fn function_word(token: &Token) -> u8 {
    token.known.languages()
}

/// The bit of a language in [`function_word`], 0 where its words are not known.
pub(super) fn bit(tongue: Tongue) -> u8 {
    let Tongue::Latin(language) = tongue else { return 0 };
    KNOWN.iter().position(|known| *known == language).map_or(0, |at| 1 << at)
}

/// What stands in a stretch of text.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    /// Words in Latin letters.
    pub(super) latin: usize,
    /// Of these, without capitals.
    pub(super) small: usize,
    /// Of these, no function word of any language.
    pub(super) small_content: usize,
    /// Function words per known language.
    pub(super) hits: [usize; 7],
    /// The last of these, and as bits which languages had another one: `la la la` is one word, and of no language.
    last_hits: [u32; 7],
    varied: u8,
    /// Number of the word before, 0 for any that is none of them.
    previous: u32,
    pub(super) han: usize,
    pub(super) kana: usize,
    /// Words of each other script.
    pub(super) others: Vec<(Tongue, usize)>,
    /// Marks and numbers.
    pub(super) rest: usize,
}

impl Counts {
    pub(super) fn of(tokens: &[Token]) -> Self {
        let mut counts = Self::default();
        for token in tokens {
            counts.add(token);
        }
        counts
    }

    fn add(&mut self, token: &Token) {
        if !token.is_wordlike() {
            self.rest += 1;
            return;
        }
        match token.script {
            Some(Tongue::Latin(_)) => self.add_latin(token),
            Some(Tongue::Chinese) => self.han += 1,
            Some(Tongue::Japanese) => self.kana += 1,
            Some(other) => match self.others.iter_mut().find(|(tongue, _)| *tongue == other) {
                Some((_, count)) => *count += 1,
                None => self.others.push((other, 1)),
            },
            None => self.rest += 1,
        }
    }

    fn add_latin(&mut self, token: &Token) {
        self.latin += 1;
        let (mut languages, number) = (token.known.languages(), token.known.number());
        self.small += usize::from(!token.is_capital);
        self.small_content += usize::from(!token.is_capital && languages == 0);
        let is_again = std::mem::replace(&mut self.previous, number) == number;
        while languages != 0 {
            let language = languages.trailing_zeros() as usize;
            languages &= languages - 1;
            let last = std::mem::replace(&mut self.last_hits[language], number);
            if !is_again {
                self.hits[language] += 1;
                self.varied |= u8::from(last != 0 && last != number) << language;
            }
        }
    }

    /// In words; two ideographs make one.
    pub(super) fn words(&self) -> usize {
        self.latin + (self.han + self.kana).div_ceil(2) + self.others.iter().map(|(_, count)| count).sum::<usize>()
    }

    /// The language of most of it, where that can be told; `text` is what was counted.
    pub(super) fn tongue(&self, text: &str) -> Option<Tongue> {
        let words = self.words();
        let ideographs = self.han + self.kana;
        if ideographs >= 2 && ideographs > words {
            return Some(if self.kana * 10 >= ideographs { Tongue::Japanese } else { Tongue::Chinese });
        }
        if let Some((tongue, count)) = self.others.iter().max_by_key(|(_, count)| *count)
            && count * 2 > words
        {
            return Some(*tongue);
        }
        if self.latin * 2 <= words {
            return None;
        }
        self.latin_tongue().or_else(|| self.by_trigrams(text))
    }

    /// The language with the most function words, two at least, and one more than any other.
    fn latin_tongue(&self) -> Option<Tongue> {
        let best = (0..KNOWN.len()).max_by_key(|&language| (self.hits[language], KNOWN.len() - language))?;
        let second = (0..KNOWN.len()).filter(|&other| other != best).map(|other| self.hits[other]).max()?;
        let is_varied = self.varied >> best & 1 == 1;
        (self.hits[best] >= 2 && is_varied && self.hits[best] > second).then_some(Tongue::Latin(KNOWN[best]))
    }

    /// Only for prose that is long enough: names, codes and tables have no language.
    fn by_trigrams(&self, text: &str) -> Option<Tongue> {
        const MIN_SMALL_WORDS: usize = 6;
        const MAX_READ: usize = 600;
        const MIN_CONFIDENCE: f64 = 0.9;
        if self.small < MIN_SMALL_WORDS || self.small * 2 < self.latin || self.rest * 3 > self.latin {
            return None;
        }
        if !has_different_words(text) {
            return None;
        }
        let info = whatlang::detect(&text[..text.floor_char_boundary(MAX_READ)])?;
        let is_latin = info.script() == whatlang::Script::Latin;
        (is_latin && info.confidence() >= MIN_CONFIDENCE && info.is_reliable()).then(|| Tongue::Latin(info.lang()))
    }
}

/// What says the same syllables over and over is in no language.
fn has_different_words(text: &str) -> bool {
    const MIN_DIFFERENT: usize = 5;
    let mut seen: Vec<&str> = Vec::new();
    for word in text.split_whitespace() {
        if !seen.contains(&word) {
            seen.push(word);
        }
        if seen.len() >= MIN_DIFFERENT {
            return true;
        }
    }
    false
}

/// The language of a whole text.
pub(super) fn tongue_of(text: &str, tokens: &[Token]) -> Option<Tongue> {
    // A part of a long text says it as well as the whole.
    let tokens = &tokens[..tokens.len().min(4096)];
    let end = tokens.last()?.end;
    Counts::of(tokens).tongue(&text[tokens[0].start..end])
}

/// Sentences as ranges of tokens: cut after sentence marks and at line ends.
pub(super) fn sentences<'t>(text: &'t str, tokens: &'t [Token]) -> impl Iterator<Item = std::ops::Range<usize>> + 't {
    let mut start = 0;
    std::iter::from_fn(move || {
        if start >= tokens.len() {
            return None;
        }
        let begin = start;
        for (at, pair) in tokens[begin..].windows(2).enumerate() {
            let [token, next] = pair else { break };
            let ends = token.kind == Kind::Mark && ends_sentence(text, token, token.end < next.start);
            if next.is_after_line || ends {
                start = begin + at + 1;
                return Some(begin..start);
            }
        }
        start = tokens.len();
        Some(begin..start)
    })
}

/// Whether a mark does. A full stop inside a number or a name is none.
fn ends_sentence(text: &str, token: &Token, before_blank: bool) -> bool {
    match text.as_bytes()[token.start] {
        b'.' | b'!' | b'?' => before_blank,
        byte if byte.is_ascii() => false,
        _ => matches!(token.text(text), "。" | "！" | "？" | "；" | "…" | "।"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detectors::tokens::tokens;

    fn told(text: &str) -> Option<&'static str> {
        tongue_of(text, &tokens(text)).map(Tongue::name)
    }

    #[test]
    fn languages_are_told_apart() {
        let cases = [
            ("The clerk kept the ledger in the office.", Some("English")),
            ("Le greffier tenait le registre dans le bureau.", Some("French")),
            ("El empleado guardaba el libro en la oficina.", Some("Spanish")),
            ("Der Beamte hat das Buch im Amt geführt.", Some("German")),
            ("L'impiegato teneva il registro nell'ufficio della città.", Some("Italian")),
            ("O funcionário não guardava o livro no escritório.", Some("Portuguese")),
            ("De klerk hield het boek bij in het kantoor.", Some("Dutch")),
            ("港务长很早就关上了办公室。", Some("Chinese")),
            ("港長は早く事務所を閉めました。", Some("Japanese")),
            ("항구 사무소는 일찍 문을 닫았다.", Some("Korean")),
            ("Контора порта закрылась рано.", Some("Cyrillic")),
            ("4829173", None),
            ("K7-AMBER Q2-BIRCH Z9-CORAL", None),
            ("amber, birch, coral, delta", None),
        ];
        for (text, expected) in cases {
            assert_eq!(told(text), expected, "{text}");
        }
    }

    #[test]
    fn sentences_end_at_marks_and_lines() {
        let text = "One is 3.5 long. Two!\n- three\n第四句。第五句";
        let found = tokens(text);
        let parts: Vec<&str> =
            sentences(text, &found).map(|part| &text[found[part.start].start..found[part.end - 1].end]).collect();
        assert_eq!(parts, ["One is 3.5 long.", "Two!", "- three", "第四句。", "第五句"]);
    }
}
