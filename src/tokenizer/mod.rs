//! Text ↔ token ids, the chat template, and exact token counts for context budgets.
//!
//! Token truth is the engine's: what counts is the number of ids the model receives, chat template included.
//!
//! [`Tokenizer`] belongs to a model and comes out of a Hugging Face folder or of GGUF metadata; [`WordTokenizer`] needs no file.
//! Both are [`TokenCounter`]s, which is all that item generators see.

mod boundary;
mod chat_template;
mod error;
mod gguf;
mod hf_dir;
mod model_tokenizer;
mod pre_tokenizer;
mod text_cache;
mod words;

pub(crate) use boundary::is_cjk_character;
pub use chat_template::{ChatTemplate, TEMPLATE_DATE};
pub use error::TokenizerError;
pub use gguf::GgufVocab;
pub use model_tokenizer::{Tokenizer, UNCOUNTABLE_TOKENS};
pub use words::WordTokenizer;

/// Counts tokens exactly as the target will.
///
/// # Which fragments may be counted one by one
///
/// `count(left + right) == count(left) + count(right)` holds only at a *proven* boundary, and
/// [`is_additive_at`](TokenCounter::is_additive_at) says which those are. It looks at the last character of `left` and the
/// first of `right`, nothing else, so the answer also holds for everything that ends and begins like them.
///
/// | boundary | GPT-2, SmolLM2 | Llama 3, Qwen 2 | SentencePiece | words |
/// | --- | --- | --- | --- | --- |
/// | `care.` + ` The painter` (anything visible, then a space) | yes | yes | no | yes |
/// | `value` + `\nkey` (letter or digit, then a newline) | yes | yes | no | yes |
/// | `value.` + `\nkey` (punctuation, then a newline) | yes | **no** | no | yes |
/// | `值` + `。键` (letter or digit, then a CJK sentence mark) | yes | yes | no | yes |
/// | `4` + `8`, `x` + `4` (before and after a digit) | SmolLM2 | no | no | no |
/// | `line\n` + `key` (left ends in white space) | no | no | no | no |
/// | `pain` + `ter` | no | no | no | no |
///
/// [`count_joined`](TokenCounter::count_joined) is exact whatever the boundaries are: it adds where that is proven and joins
/// the neighbours where it is not.
pub trait TokenCounter: Send + Sync {
    /// Tokens of plain text, without BOS or any other special token added. Special tokens spelled out in the text count
    /// as one token, because that is what happens to them inside a rendered prompt.
    fn count(&self, text: &str) -> usize;

    /// Tokens of the rendered chat prompt (BOS, template and generation prompt included); `messages` are `(role, content)`.
    fn count_chat(&self, messages: &[(&str, &str)]) -> usize;

    /// Hash of everything that decides counts and where an answer ends: vocabulary, merges, pre-tokenizer, chat template, BOS
    /// and the tokens that end an answer.
    fn fingerprint(&self) -> String;

    /// A special token that `text` spells out, so that inside a prompt it would act on the model instead of being read;
    /// `None` also where that is not known.
    fn find_special(&self, _text: &str) -> Option<String> {
        None
    }

    /// `count(text)`, remembered: for fragments that come back thousands of times while items are generated.
    fn count_fragment(&self, text: &str) -> usize {
        self.count(text)
    }

    /// Whether `count(left + right) == count(left) + count(right)` is proven; `false` means "not proven", not "differs".
    /// An empty side is always additive.
    fn is_additive_at(&self, left: &str, right: &str) -> bool {
        left.is_empty() || right.is_empty()
    }

    /// `count(fragments.concat())`, exactly: the remembered counts of the fragments are added at proven boundaries, and
    /// fragments that meet at any other are joined before they are counted.
    fn count_joined(&self, fragments: &[&str]) -> usize {
        let mut total = 0;
        let mut start = 0;
        for end in 1..=fragments.len() {
            // An empty neighbour hides the boundary behind it, so it never ends a group.
            let is_boundary = fragments.get(end).is_none_or(|right| {
                let left = fragments[end - 1];
                !left.is_empty() && !right.is_empty() && self.is_additive_at(left, right)
            });
            if is_boundary {
                total += match &fragments[start..end] {
                    [fragment] => self.count_fragment(fragment),
                    group => self.count(&group.concat()),
                };
                start = end;
            }
        }
        total
    }
}
