//! A tokenizer without any file, for dry runs: deterministic, about as dense as a real one, and additive nearly everywhere.
//!
//! One token is: up to six letters of a word, a digit, a CJK character, any other visible character (each of these together
//! with one space in front of it), or a white-space character that stands before no visible one. There are no ids, only counts.

use crate::tokenizer::{TokenCounter, is_cjk_character};

/// Longest run of letters in one token; English averages 4.7 letters a word and 1.3 tokens a word in real vocabularies.
const MAX_LETTERS: usize = 6;
/// ChatML writes `<|im_start|>`, the role, a newline, the content, `<|im_end|>` and a newline.
const TOKENS_PER_MESSAGE: usize = 4;
/// `<|im_start|>`, the role and a newline open the answer.
const GENERATION_PROMPT: (&str, usize) = ("assistant", 2);

/// Counts words instead of looking them up.
#[derive(Clone, Copy, Debug, Default)]
pub struct WordTokenizer;

impl WordTokenizer {
    /// The tokens of `text`, in order; their concatenation is `text`.
    pub fn pieces<'t>(&self, text: &'t str) -> impl Iterator<Item = &'t str> {
        let mut rest = text;
        std::iter::from_fn(move || {
            let (piece, after) = rest.split_at(first_piece_bytes(rest));
            rest = after;
            (!piece.is_empty()).then_some(piece)
        })
    }
}

impl TokenCounter for WordTokenizer {
    fn count(&self, text: &str) -> usize {
        self.pieces(text).count()
    }

    fn count_chat(&self, messages: &[(&str, &str)]) -> usize {
        let written: usize =
            messages.iter().map(|(role, content)| TOKENS_PER_MESSAGE + self.count(role) + self.count(content)).sum();
        let (role, overhead) = GENERATION_PROMPT;
        written + overhead + self.count(role)
    }

    fn fingerprint(&self) -> String {
        // A name, not a hash: the rules above are the whole definition. Change it when they change.
        format!("words-{MAX_LETTERS}-v1")
    }

    fn is_additive_at(&self, left: &str, right: &str) -> bool {
        let (Some(last), Some(first)) = (left.chars().next_back(), right.chars().next()) else { return true };
        let joins_space = last == ' ' && !first.is_whitespace();
        let joins_word = is_letter(last) && is_letter(first);
        !joins_space && !joins_word
    }
}

fn is_letter(character: char) -> bool {
    character.is_alphabetic() && !is_cjk_character(character)
}

/// Bytes of the first token of `text`; 0 only when it is empty.
fn first_piece_bytes(text: &str) -> usize {
    let mut characters = text.char_indices().peekable();
    let Some((_, mut character)) = characters.next() else { return 0 };
    if character == ' ' {
        match characters.peek().copied() {
            Some((_, next)) if !next.is_whitespace() => {
                character = next;
                characters.next();
            }
            _ => return 1,
        }
    }
    let more_letters = if is_letter(character) { MAX_LETTERS - 1 } else { 0 };
    for _ in 0..more_letters {
        if characters.next_if(|(_, next)| is_letter(*next)).is_none() {
            break;
        }
    }
    characters.peek().map_or(text.len(), |(index, _)| *index)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pieces_are_what_the_definition_says() {
        let text = " The extraordinary bill: 407\n\n  你好。";
        let pieces: Vec<&str> = WordTokenizer.pieces(text).collect();
        assert_eq!(
            pieces,
            [" The", " extrao", "rdinar", "y", " bill", ":", " 4", "0", "7", "\n", "\n", " ", " 你", "好", "。"]
        );
    }

    #[test]
    fn a_chat_has_a_fixed_overhead_per_message() {
        let empty = WordTokenizer.count_chat(&[]);
        let one = WordTokenizer.count_chat(&[("user", "Hello there")]);
        assert_eq!(one - empty, 4 + 1 + 2);
        let two = WordTokenizer.count_chat(&[("user", "Hello there"), ("assistant", "Hi.")]);
        assert_eq!(two - one, 4 + 2 + 2);
    }

    proptest! {
        #[test]
        fn counts_add_up_exactly_where_it_says_so(left in "[a-z 0-9.\n你]{0,9}", right in "[a-z 0-9.\n你]{0,9}") {
            let joined = format!("{left}{right}");
            prop_assert_eq!(WordTokenizer.pieces(&joined).collect::<String>(), joined.clone());
            if WordTokenizer.is_additive_at(&left, &right) {
                prop_assert_eq!(WordTokenizer.count(&joined), WordTokenizer.count(&left) + WordTokenizer.count(&right));
            }
            let thirds = [left.as_str(), right.as_str(), left.as_str()];
            prop_assert_eq!(WordTokenizer.count_joined(&thirds), WordTokenizer.count(&thirds.concat()));
        }
    }
}
