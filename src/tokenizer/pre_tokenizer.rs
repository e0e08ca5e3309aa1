//! How text is cut before merging, by the names that GGUF files use (`tokenizer.ggml.pre`).
//!
//! To add one: a line in [`PRE_TOKENIZERS`] with the expressions of the model's own tokenizer.json, applied one after the
//! other, each cutting what the one before left. If they are of a new kind, first extend the proof in
//! [`crate::tokenizer::boundary`], or leave them out of [`family_of_regex`] (counting is then exact and slower).

/// What the proof of additive counts knows about an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// No pre-token has white space behind a visible character.
    Gpt2,
    /// As `Gpt2`, except that line breaks stick to the punctuation before them.
    Llama3,
}

/// How to cut text for one kind of byte-level BPE model.
#[derive(Debug)]
pub(crate) struct PreTokenizer {
    /// Values of `tokenizer.ggml.pre` that mean it.
    pub(crate) names: &'static [&'static str],
    /// Applied in this order.
    pub(crate) regexes: &'static [&'static str],
    /// A pre-token that is itself in the vocabulary is one token, whatever the merges say.
    pub(crate) ignore_merges: bool,
    /// Text is brought into Unicode form NFC first.
    pub(crate) nfc: bool,
}

/// GPT-2 (Radford et al. 2019, `encoder.py`).
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// Llama 3's tokenizer.json, derived from tiktoken's `cl100k_base`.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Qwen 2's tokenizer.json: as Llama 3 with single digits.
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// SmolLM2's first stage.
pub(crate) const SINGLE_DIGITS: &str = r"\p{N}";
/// What llama.cpp applies to files whose converter did not know the model: punctuation apart, digits by three.
const LLAMA_CPP_DEFAULT: [&str; 4] = [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"];

/// The known pre-tokenizers.
pub(crate) static PRE_TOKENIZERS: &[PreTokenizer] = &[
    PreTokenizer { names: &["gpt-2"], regexes: &[GPT2], ignore_merges: false, nfc: false },
    PreTokenizer { names: &["smollm"], regexes: &[SINGLE_DIGITS, GPT2], ignore_merges: false, nfc: false },
    PreTokenizer { names: &["llama-bpe", "llama3", "llama-v3"], regexes: &[LLAMA3], ignore_merges: true, nfc: false },
    PreTokenizer { names: &["qwen2"], regexes: &[QWEN2], ignore_merges: false, nfc: true },
    PreTokenizer { names: &["default"], regexes: &LLAMA_CPP_DEFAULT, ignore_merges: false, nfc: false },
];

/// The pre-tokenizer that GGUF files call `name`.
pub(crate) fn pre_tokenizer_named(name: &str) -> Option<&'static PreTokenizer> {
    PRE_TOKENIZERS.iter().find(|entry| entry.names.contains(&name))
}

/// Every known name.
pub(crate) fn known_names() -> Vec<&'static str> {
    PRE_TOKENIZERS.iter().flat_map(|entry| entry.names).copied().collect()
}

/// What is proven about a regular expression; `None` for one that is not in the table.
pub(crate) fn family_of_regex(regex: &str) -> Option<Family> {
    match regex {
        LLAMA3 | QWEN2 => Some(Family::Llama3),
        GPT2 | SINGLE_DIGITS => Some(Family::Gpt2),
        _ if LLAMA_CPP_DEFAULT.contains(&regex) => Some(Family::Gpt2),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_every_expression_has_a_family() {
        let mut names = known_names();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
        for regex in PRE_TOKENIZERS.iter().flat_map(|entry| entry.regexes) {
            assert!(family_of_regex(regex).is_some(), "{regex}");
        }
        assert!(pre_tokenizer_named("smollm").is_some() && pre_tokenizer_named("bloom").is_none());
    }
}
