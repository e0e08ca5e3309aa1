//! The tokenizer of a real model, whatever file it came from.

use std::sync::OnceLock;

use crate::tokenizer::boundary::Boundaries;
use crate::tokenizer::text_cache::TextCache;
use crate::tokenizer::{ChatTemplate, TokenCounter, TokenizerError};

/// What a text counts as that cannot be encoded, or a conversation that the template refuses: more than any context holds, so
/// that it fits no budget. [`Tokenizer::encode`] and [`Tokenizer::render_chat`] tell the reason.
pub const UNCOUNTABLE_TOKENS: usize = u32::MAX as usize;

/// The pre-tokenizer's regular expressions backtrack once per white-space character and give up, silently, at a million.
const MAX_SPACE_RUN_BYTES: usize = 1 << 16;

/// Text to token ids and back, exactly as the model was trained.
pub struct Tokenizer {
    /// Special tokens spelled out in the text become their ids.
    parsing: tokenizers::Tokenizer,
    /// The same, with special tokens taken as plain text; made when first needed.
    literal: OnceLock<tokenizers::Tokenizer>,
    special_tokens: Vec<String>,
    template: Option<ChatTemplate>,
    bos: Option<SpecialToken>,
    eos_text: String,
    eos_ids: Vec<u32>,
    adds_bos: bool,
    vocab_size: usize,
    vocab_hash: String,
    boundaries: Boundaries,
    /// Ids of the pieces between proven boundaries, special tokens parsed.
    pieces: TextCache<Box<[u32]>>,
    fragment_counts: TextCache<usize>,
}

/// A token with a role of its own.
#[derive(Clone, Debug)]
pub(crate) struct SpecialToken {
    pub(crate) id: u32,
    pub(crate) text: String,
}

/// What the readers of the two file formats find out.
pub(crate) struct Parts {
    pub(crate) tokenizer: tokenizers::Tokenizer,
    pub(crate) template: Option<ChatTemplate>,
    pub(crate) bos: Option<SpecialToken>,
    /// What the template may write as `eos_token`; empty if there is none.
    pub(crate) eos_text: String,
    /// Every id that ends an answer.
    pub(crate) eos_ids: Vec<u32>,
    /// Whether the model expects BOS in front of a prompt.
    pub(crate) adds_bos: bool,
}

impl Tokenizer {
    pub(crate) fn assemble(parts: Parts) -> Result<Self, TokenizerError> {
        let Parts { mut tokenizer, template, bos, eos_text, mut eos_ids, adds_bos } = parts;
        // A tokenizer.json may carry the truncation or padding of somebody's training run.
        tokenizer.with_padding(None);
        let invalid = |error: tokenizers::Error| TokenizerError::Vocabulary { reason: error.to_string() };
        tokenizer.with_truncation(None).map_err(invalid)?;
        tokenizer.set_encode_special_tokens(false);
        let serialized = tokenizer.to_string(false).map_err(invalid)?;
        let mut special_tokens: Vec<(u32, String)> = tokenizer
            .get_added_tokens_decoder()
            .into_iter()
            .filter(|(_, token)| token.special)
            .map(|(id, token)| (id, token.content))
            .collect();
        special_tokens.sort_unstable();
        eos_ids.sort_unstable();
        eos_ids.dedup();
        let vocab_size = tokenizer.get_vocab(true).into_values().max().map_or(0, |largest| largest as usize + 1);
        Ok(Self {
            boundaries: Boundaries::of(&tokenizer),
            parsing: tokenizer,
            literal: OnceLock::new(),
            special_tokens: special_tokens.into_iter().map(|(_, text)| text).collect(),
            template,
            adds_bos: adds_bos && bos.is_some(),
            bos,
            eos_text,
            eos_ids,
            vocab_size,
            vocab_hash: blake3::hash(serialized.as_bytes()).to_hex().to_string(),
            pieces: TextCache::new(),
            fragment_counts: TextCache::new(),
        })
    }

    /// Ids of `text`, without BOS or anything else added. With `allow_special`, a special token spelled out in the text
    /// becomes its id; without, it is cut up like any other text (user-defined tokens are matched in both cases).
    ///
    /// # Errors
    /// [`TokenizerError::Encode`], e.g. for a run of white space that the pre-tokenizer cannot take.
    pub fn encode(&self, text: &str, allow_special: bool) -> Result<Vec<u32>, TokenizerError> {
        if !allow_special {
            return encode_whole(self.literal(), text);
        }
        let mut ids = Vec::new();
        self.for_each_piece(text, |piece| ids.extend_from_slice(piece))?;
        Ok(ids)
    }

    /// Shows `visit` the ids of `text` in pieces. At a proven boundary not only the counts add up but the cuts are the same,
    /// hence the ids; and the words of a haystack come back so often that remembering them is several times faster.
    fn for_each_piece(&self, text: &str, mut visit: impl FnMut(&[u32])) -> Result<(), TokenizerError> {
        if self.boundaries.are_unknown() {
            return encode_whole(&self.parsing, text).map(|ids| visit(&ids));
        }
        let encode_piece = |piece| encode_whole(&self.parsing, piece).map(Vec::into_boxed_slice);
        self.boundaries
            .pieces(text)
            .try_for_each(|piece| self.pieces.read(piece, || encode_piece(piece), |ids| visit(ids)))
    }

    fn literal(&self) -> &tokenizers::Tokenizer {
        self.literal.get_or_init(|| {
            let mut literal = self.parsing.clone();
            literal.set_encode_special_tokens(true);
            literal
        })
    }

    /// Text of `ids`; bytes that are not UTF-8 become U+FFFD, ids beyond the vocabulary nothing.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        // No decoder of a supported model fails; should one, the raw tokens are better than nothing.
        self.parsing
            .decode(ids, skip_special)
            .unwrap_or_else(|_| ids.iter().filter_map(|id| self.parsing.id_to_token(*id)).collect::<Vec<_>>().concat())
    }

    /// Every id that ends an answer, ascending.
    pub fn eos_ids(&self) -> &[u32] {
        &self.eos_ids
    }

    /// The id that begins a prompt, if the model has one.
    pub fn bos_id(&self) -> Option<u32> {
        self.bos.as_ref().map(|bos| bos.id)
    }

    /// Whether the model expects [`Tokenizer::bos_id`] in front of every prompt.
    pub fn adds_bos(&self) -> bool {
        self.adds_bos
    }

    /// One more than the largest id.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The id of a token given as the vocabulary spells it.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.parsing.token_to_id(token)
    }

    /// The prompt for `messages` (`(role, content)`) as text.
    ///
    /// Special tokens in a message's content are indistinguishable from the template's own, as in Hugging Face
    /// transformers: refuse such content with [`Tokenizer::find_special`] where it comes from outside.
    ///
    /// # Errors
    /// [`TokenizerError::NoChatTemplate`], [`TokenizerError::Render`].
    pub fn render_chat(
        &self,
        messages: &[(&str, &str)],
        add_generation_prompt: bool,
    ) -> Result<String, TokenizerError> {
        let template = self.template.as_ref().ok_or(TokenizerError::NoChatTemplate)?;
        let bos = self.bos.as_ref().map_or("", |bos| bos.text.as_str());
        template.render(messages, add_generation_prompt, bos, &self.eos_text)
    }

    /// The ids of the rendered prompt. If the model expects BOS it stands in front exactly once, whether or not the
    /// template writes it.
    ///
    /// # Errors
    /// As [`Tokenizer::render_chat`] and [`Tokenizer::encode`].
    pub fn encode_chat(
        &self,
        messages: &[(&str, &str)],
        add_generation_prompt: bool,
    ) -> Result<Vec<u32>, TokenizerError> {
        let prompt = self.render_chat(messages, add_generation_prompt)?;
        let mut ids = self.encode(&prompt, true)?;
        if let Some(bos) = self.missing_bos(&prompt) {
            ids.insert(0, bos.id);
        }
        Ok(ids)
    }

    /// BOS, if the model wants it and `prompt` does not begin with it.
    fn missing_bos(&self, prompt: &str) -> Option<&SpecialToken> {
        self.bos.as_ref().filter(|bos| self.adds_bos && !prompt.starts_with(&bos.text))
    }

    /// Whether the model brings a chat template.
    pub fn has_chat_template(&self) -> bool {
        self.template.is_some()
    }

    /// The first special token of the vocabulary that `text` spells out.
    pub fn find_special(&self, text: &str) -> Option<&str> {
        self.special_tokens.iter().map(String::as_str).find(|token| text.contains(token))
    }

    /// Whether `text` spells out a special token, so that it would act on the model inside a prompt.
    pub fn contains_special(&self, text: &str) -> bool {
        self.find_special(text).is_some()
    }

    /// BLAKE3 of the chat template's source in hex; `None` without a template.
    pub fn template_hash(&self) -> Option<&str> {
        self.template.as_ref().map(ChatTemplate::hash)
    }

    /// BLAKE3 of vocabulary, merges, special tokens and pre-tokenizer, in hex.
    pub fn vocab_hash(&self) -> &str {
        &self.vocab_hash
    }

    fn try_count(&self, text: &str) -> Result<usize, TokenizerError> {
        let mut count = 0;
        self.for_each_piece(text, |ids| count += ids.len())?;
        Ok(count)
    }
}

impl TokenCounter for Tokenizer {
    fn count(&self, text: &str) -> usize {
        self.try_count(text).unwrap_or(UNCOUNTABLE_TOKENS)
    }

    fn count_chat(&self, messages: &[(&str, &str)]) -> usize {
        let count = |prompt: String| {
            self.try_count(&prompt).map(|count| count + usize::from(self.missing_bos(&prompt).is_some()))
        };
        self.render_chat(messages, true).and_then(count).unwrap_or(UNCOUNTABLE_TOKENS)
    }

    fn fingerprint(&self) -> String {
        let eos_ids: Vec<String> = self.eos_ids.iter().map(u32::to_string).collect();
        let parts = [
            self.vocab_hash.as_str(),
            self.template_hash().unwrap_or("no template"),
            if self.adds_bos { "adds BOS" } else { "no BOS" },
            self.bos.as_ref().map_or("", |bos| &bos.text),
            &self.eos_text,
            &eos_ids.join(" "),
        ];
        let mut hasher = blake3::Hasher::new();
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        hasher.finalize().to_hex().to_string()
    }

    fn find_special(&self, text: &str) -> Option<String> {
        Tokenizer::find_special(self, text).map(str::to_owned)
    }

    fn count_fragment(&self, text: &str) -> usize {
        self.fragment_counts.read(text, || self.try_count(text), |count| *count).unwrap_or(UNCOUNTABLE_TOKENS)
    }

    fn is_additive_at(&self, left: &str, right: &str) -> bool {
        match (left.chars().next_back(), right.chars().next()) {
            (Some(last), Some(first)) => self.boundaries.are_additive(last, first),
            _ => true,
        }
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size)
            .field("vocab_hash", &self.vocab_hash)
            .field("template_hash", &self.template_hash())
            .field("eos_ids", &self.eos_ids)
            .finish_non_exhaustive()
    }
}

fn encode_whole(tokenizer: &tokenizers::Tokenizer, text: &str) -> Result<Vec<u32>, TokenizerError> {
    let failed = |reason: String| TokenizerError::Encode { bytes: text.len(), reason };
    let longest_run = longest_space_run_bytes(text);
    if longest_run > MAX_SPACE_RUN_BYTES {
        return Err(failed(format!("{longest_run} bytes of white space in a row, the limit is {MAX_SPACE_RUN_BYTES}")));
    }
    let encoding = tokenizer.encode_fast(text, false).map_err(|error| failed(error.to_string()))?;
    Ok(encoding.get_ids().to_vec())
}

fn longest_space_run_bytes(text: &str) -> usize {
    text.split(|character: char| !character.is_whitespace()).map(str::len).max().unwrap_or(0)
}
