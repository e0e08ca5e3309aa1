//! At which boundaries between two texts token counts are proven to add up.
//!
//! A byte-level BPE tokenizer first cuts text into pre-tokens with a regular expression and then merges inside each one. So
//! counts add up at a boundary where (a) every text that contains it is cut there, and (b) the cuts on either side do not
//! depend on what lies beyond it. For the expressions in [`crate::tokenizer::pre_tokenizer`]:
//!
//! 1. *Visible character, then white space.* No alternative of any of them matches white space after a visible character,
//!    except that the Llama 3 family lets a run of punctuation swallow the line breaks behind it (`[\r\n]*`); with that case
//!    left out, (a) holds. The only look-around is `\s+(?!\S)`, which looks one character past a run of white space; left of
//!    such a boundary every run ends before a visible character of the left text, so (b) holds. Matching scans left to
//!    right without looking back, so the right text is cut as if it stood alone.
//! 2. *Letter or digit, then CJK sentence mark*, all families: a mark is neither letter, digit nor white space, and every
//!    alternative that takes one begins with it or has only white space or such characters before it; runs of letters and
//!    digits end at it, whether it is there or the text ends.
//! 3. *CJK sentence mark, then CJK character*, GPT-2 family only: runs of letters and runs of punctuation are separate
//!    alternatives and contractions start with an ASCII apostrophe. (In the Llama 3 family one mark may lead a word.)
//!
//! 4. *Before and after an ASCII digit*, where a first stage of its own cuts off single digits, as SmolLM2's does: what lies
//!    between two digits is cut by itself, as if it stood alone.
//!
//! Cutting off single digits first only adds cuts to the others. NFC composes nothing across such a boundary, because
//! neither white space nor a digit nor a CJK character is the second half of any composition, nor a digit the first. Special tokens are cut out before
//! everything else; they respect such a boundary unless one of them contains it or strips white space around itself, which
//! is checked. Any other component (a prefix space, dropout, an unknown expression) means that nothing is claimed.

use serde_json::Value;
use tokenizers::models::ModelWrapper;

use crate::tokenizer::pre_tokenizer::{Family, SINGLE_DIGITS, family_of_regex};

/// Which boundaries are proven for one tokenizer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Boundaries {
    /// `None`: nothing is claimed.
    family: Option<Family>,
    /// Whether a first stage cuts off single digits.
    single_digits: bool,
}

impl Boundaries {
    /// Reads the proof's premises off a tokenizer's components.
    pub(crate) fn of(tokenizer: &tokenizers::Tokenizer) -> Self {
        let holds =
            model_is_plain_bpe(tokenizer) && normalizer_keeps_boundaries(tokenizer) && special_tokens_fit(tokenizer);
        let stage = if holds { serde_json::to_value(tokenizer.get_pre_tokenizer()).ok() } else { None };
        let claims = stage.as_ref().map(Self::of_pre_tokenizer).unwrap_or_default();
        let is_digit = |c: char| c.is_ascii_digit();
        let has_digit = tokenizer.get_added_tokens_decoder().values().any(|token| token.content.contains(is_digit));
        Self { single_digits: claims.single_digits && !has_digit, ..claims }
    }

    fn of_pre_tokenizer(stage: &Value) -> Self {
        let family = family_of_pre_tokenizer(stage);
        let first = stage["pretokenizers"].as_array().and_then(|stages| stages.first());
        Self { family, single_digits: family.is_some() && first.is_some_and(cuts_single_digits) }
    }

    /// Whether counts add up between a text that ends in `last` and one that begins with `first`.
    pub(crate) fn are_additive(self, last: char, first: char) -> bool {
        let Some(family) = self.family else { return false };
        is_space_boundary(last, first) && (family == Family::Gpt2 || !is_line_break(first) || is_plain_letter(last))
            || is_plain_letter(last) && is_cjk_sentence_mark(first)
            || family == Family::Gpt2 && is_cjk_sentence_boundary(last, first)
            || self.single_digits && (last.is_ascii_digit() || first.is_ascii_digit())
    }

    /// Cuts `text` at every proven boundary; the pieces may be counted one by one.
    pub(crate) fn pieces(self, text: &str) -> impl Iterator<Item = &str> {
        let mut rest = text;
        std::iter::from_fn(move || {
            let mut characters = rest.char_indices();
            let (_, mut last) = characters.next()?;
            let end = characters
                .find_map(|(index, character)| {
                    let cut = self.are_additive(last, character);
                    last = character;
                    cut.then_some(index)
                })
                .unwrap_or(rest.len());
            let (piece, after) = rest.split_at(end);
            rest = after;
            Some(piece)
        })
    }

    /// Whether nothing is claimed, so that [`Boundaries::pieces`] is the text itself.
    pub(crate) fn are_unknown(self) -> bool {
        self.family.is_none()
    }
}

fn is_space_boundary(last: char, first: char) -> bool {
    !last.is_whitespace() && first.is_whitespace()
}

fn is_line_break(character: char) -> bool {
    matches!(character, '\r' | '\n')
}

/// Certainly `\p{L}` or `\p{N}`, in every version of the Unicode tables.
fn is_plain_letter(character: char) -> bool {
    character.is_ascii_alphanumeric() || is_cjk_character(character)
}

fn is_cjk_sentence_mark(character: char) -> bool {
    matches!(character, '。' | '！' | '？' | '；' | '：' | '，' | '、')
}

fn is_cjk_sentence_boundary(last: char, first: char) -> bool {
    is_cjk_sentence_mark(last) && is_cjk_character(first)
}

/// Han, Hiragana, Katakana and Hangul syllables: all of them letters (`\p{Lo}`), none part of a canonical composition's tail.
pub(crate) fn is_cjk_character(character: char) -> bool {
    matches!(character,
        '\u{4e00}'..='\u{9fff}' | '\u{3400}'..='\u{4dbf}' | '\u{3041}'..='\u{3096}' | '\u{30a1}'..='\u{30fa}'
        | '\u{ac00}'..='\u{d7a3}')
}

fn model_is_plain_bpe(tokenizer: &tokenizers::Tokenizer) -> bool {
    let is_empty = |affix: &Option<String>| affix.as_deref().is_none_or(str::is_empty);
    match tokenizer.get_model() {
        ModelWrapper::BPE(bpe) => {
            bpe.dropout.is_none_or(|rate| rate == 0.0)
                && is_empty(&bpe.continuing_subword_prefix)
                && is_empty(&bpe.end_of_word_suffix)
        }
        _ => false,
    }
}

fn normalizer_keeps_boundaries(tokenizer: &tokenizers::Tokenizer) -> bool {
    match tokenizer.get_normalizer().map(serde_json::to_value) {
        None => true,
        Some(normalizer) => normalizer.is_ok_and(|normalizer| normalizer["type"] == "NFC"),
    }
}

fn special_tokens_fit(tokenizer: &tokenizers::Tokenizer) -> bool {
    tokenizer.get_added_tokens_decoder().values().all(|token| {
        let characters = token.content.chars();
        let holds_a_boundary = characters.clone().zip(characters.skip(1)).any(|(last, first)| {
            is_space_boundary(last, first) || is_cjk_sentence_mark(first) || is_cjk_sentence_boundary(last, first)
        });
        !token.lstrip && !token.rstrip && !token.single_word && !holds_a_boundary
    })
}

fn family_of_pre_tokenizer(stage: &Value) -> Option<Family> {
    match stage["type"].as_str()? {
        "ByteLevel" => {
            let is_plain = stage["add_prefix_space"] == false && stage["use_regex"] == true;
            is_plain.then_some(Family::Gpt2)
        }
        "Sequence" => {
            let (byte_level, splits) = stage["pretokenizers"].as_array()?.split_last()?;
            if byte_level["type"] != "ByteLevel" || byte_level["add_prefix_space"] != false {
                return None;
            }
            let mut families: Vec<Family> = splits.iter().filter_map(family_of_split).collect();
            if families.len() != splits.len() {
                return None;
            }
            if byte_level["use_regex"] == true {
                families.push(Family::Gpt2);
            }
            // Every stage must hold; Llama 3 claims less, so one such stage decides.
            match families.contains(&Family::Llama3) {
                true => Some(Family::Llama3),
                false => families.first().copied(),
            }
        }
        _ => None,
    }
}

fn family_of_split(split: &Value) -> Option<Family> {
    match split["type"].as_str()? {
        "Digits" => Some(Family::Gpt2),
        "Split" if split["behavior"] == "Isolated" && split["invert"] == false => {
            family_of_regex(split["pattern"]["Regex"].as_str()?)
        }
        _ => None,
    }
}

fn cuts_single_digits(stage: &Value) -> bool {
    match stage["type"].as_str() {
        Some("Digits") => stage["individual_digits"] == true,
        Some("Split") => {
            let is_isolated = stage["behavior"] == "Isolated" && stage["invert"] == false;
            is_isolated && stage["pattern"]["Regex"].as_str() == Some(SINGLE_DIGITS)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;
    use tokenizers::pre_tokenizers::sequence::Sequence;
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _};

    use super::*;
    use crate::tokenizer::gguf::splitter;
    use crate::tokenizer::pre_tokenizer::PRE_TOKENIZERS;

    fn cuts(splitter: &Sequence, text: &str) -> Vec<String> {
        let mut pre_tokenized = PreTokenizedString::from(text);
        splitter.pre_tokenize(&mut pre_tokenized).unwrap();
        let splits = pre_tokenized.get_splits(OffsetReferential::Original, OffsetType::Byte);
        splits.into_iter().map(|(split, _, _)| split.to_owned()).filter(|split| !split.is_empty()).collect()
    }

    /// Every known way to cut text, with what is claimed about it. Compiled once: that takes far longer than a case.
    static CLAIMS: LazyLock<Vec<(Sequence, Boundaries)>> = LazyLock::new(|| {
        let claim = |entry| {
            let splitter = splitter(entry).unwrap();
            let boundaries = Boundaries::of_pre_tokenizer(&serde_json::to_value(&splitter).unwrap());
            (splitter, boundaries)
        };
        PRE_TOKENIZERS.iter().map(claim).collect()
    });

    /// Everything that an expression treats differently: letters with and without case or marks, apostrophes, digits of
    /// several scripts, punctuation, symbols, and every kind of white space.
    fn text() -> impl Strategy<Value = String> {
        prop::collection::vec(
            prop_oneof![
                3 => "[a-zA-Z]{1,3}",
                3 => "[ \n\r\t]{1,3}",
                2 => "[.,'!?|<>=+^~$-]{1,2}",
                1 => "['](s|t|re|ve|m|ll|d|S|RE)",
                1 => "[0-9]{1,4}",
                2 => "[你好。，！？、；：ひカ한]{1,2}",
                1 => "[\u{85}\u{a0}\u{2028}\u{3000}\u{1c}\u{180e}\u{200b}]",
                1 => "[éß\u{301}ſ٣Ⅷ½𝟘🙂\u{200d}]{1,2}",
                1 => "\\PC",
            ],
            0..6,
        )
        .prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        #[test]
        fn cuts_do_not_depend_on_what_lies_beyond_a_boundary(left in text(), right in text()) {
            let (Some(last), Some(first)) = (left.chars().next_back(), right.chars().next()) else { return Ok(()) };
            for (entry, (splitter, boundaries)) in PRE_TOKENIZERS.iter().zip(CLAIMS.iter()) {
                prop_assert!(!boundaries.are_unknown());
                if boundaries.are_additive(last, first) {
                    let mut apart = cuts(splitter, &left);
                    apart.extend(cuts(splitter, &right));
                    prop_assert_eq!(cuts(splitter, &format!("{left}{right}")), apart, "{:?}", entry.names);
                }
            }
        }
    }

    #[test]
    fn pieces_are_cut_where_the_family_allows_it_and_nowhere_else() {
        let pieces = |family, text| Boundaries { family, single_digits: false }.pieces(text).collect::<Vec<_>>();
        let text = "One.\nTwo 3\n\n 四。五";
        assert_eq!(pieces(Some(Family::Gpt2), text), ["One.", "\nTwo", " 3", "\n\n 四", "。", "五"]);
        assert_eq!(pieces(Some(Family::Llama3), text), ["One.\nTwo", " 3", "\n\n 四", "。五"]);
        assert_eq!(pieces(None, text), [text]);
        assert_eq!(pieces(Some(Family::Gpt2), ""), Vec::<&str>::new());
        let single = Boundaries { family: Some(Family::Gpt2), single_digits: true };
        assert_eq!(single.pieces("k: 4f07-x٣").collect::<Vec<_>>(), ["k:", " ", "4", "f", "0", "7", "-x٣"]);
    }
}
