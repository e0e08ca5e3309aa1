//! A tokenizer out of GGUF metadata (`tokenizer.ggml.*`), which carries tokens, types and merges but names the pre-tokenizer
//! only.

use tokenizers::decoders::byte_level::ByteLevel;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior};

use crate::tokenizer::model_tokenizer::{Parts, SpecialToken};
use crate::tokenizer::pre_tokenizer::{PreTokenizer, known_names, pre_tokenizer_named};
use crate::tokenizer::{ChatTemplate, Tokenizer, TokenizerError};

/// The largest vocabularies have 262,144 tokens (Gemma 3).
const MAX_TOKENS: usize = 1 << 20;
/// There are about as many merges as tokens; some converters write every pair that makes a token.
const MAX_MERGES: usize = 1 << 22;
/// The longest tokens are runs of a few hundred spaces or dashes.
const MAX_TOKEN_BYTES: usize = 1 << 16;

/// `tokenizer.ggml.token_type` of tokens with a meaning (`<|im_start|>`).
const CONTROL: i32 = 3;
/// `tokenizer.ggml.token_type` of whole strings added to a vocabulary.
const USER_DEFINED: i32 = 4;

const SUPPORTED_MODELS: &[&str] = &["gpt2"];

/// Control tokens that end a turn. A GGUF file names one end token, and instruction-tuned models use another one besides
/// (Llama 3: `<|end_of_text|>` and `<|eot_id|>`); on the hub generation_config.json lists them all.
const END_OF_TURN_TOKENS: &[&str] =
    &["<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>", "</s>"];

/// The fields of a GGUF file that make a tokenizer, as they stand in its metadata.
#[derive(Clone, Debug, Default)]
pub struct GgufVocab {
    /// `tokenizer.ggml.model`: the algorithm; `gpt2` is byte-level BPE.
    pub model: String,
    /// `tokenizer.ggml.pre`: the pre-tokenizer's name; empty if the file has none.
    pub pre: String,
    /// `tokenizer.ggml.tokens`, by id.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.token_type`, by id: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    pub token_types: Vec<i32>,
    /// `tokenizer.ggml.merges`, best first: two tokens with a space between them.
    pub merges: Vec<String>,
    /// `tokenizer.ggml.scores`, by id (SentencePiece only).
    pub scores: Option<Vec<f32>>,
    /// `tokenizer.ggml.bos_token_id`.
    pub bos_id: Option<u32>,
    /// `tokenizer.ggml.eos_token_id`.
    pub eos_id: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`.
    pub add_bos: Option<bool>,
    /// `tokenizer.chat_template`.
    pub chat_template: Option<String>,
}

impl Tokenizer {
    /// Builds the tokenizer that a GGUF file describes.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownModel`] and [`TokenizerError::UnknownPreTokenizer`] for what is not built in,
    /// [`TokenizerError::Vocabulary`] for contradictory metadata, and the errors of [`ChatTemplate::new`].
    pub fn from_gguf_vocab(vocab: GgufVocab) -> Result<Self, TokenizerError> {
        if !SUPPORTED_MODELS.contains(&vocab.model.as_str()) {
            return Err(TokenizerError::UnknownModel { model: vocab.model, known: SUPPORTED_MODELS });
        }
        // Files from before the field existed mean what llama.cpp does without it.
        let name = if vocab.pre.is_empty() { "default" } else { &vocab.pre };
        let Some(pre_tokenizer) = pre_tokenizer_named(name) else {
            return Err(TokenizerError::UnknownPreTokenizer { pre: vocab.pre, known: known_names() });
        };
        check_lengths(&vocab)?;
        let bos = special_token(&vocab.tokens, vocab.bos_id, "bos_token_id")?;
        let eos = special_token(&vocab.tokens, vocab.eos_id, "eos_token_id")?;
        let ids_of_type = |wanted: i32| {
            let types = vocab.token_types.iter().zip(&vocab.tokens);
            types.filter(move |(token_type, _)| **token_type == wanted).map(|(_, token)| token.clone())
        };
        let control: Vec<AddedToken> = ids_of_type(CONTROL).map(|token| added_token(token, true)).collect();
        let user_defined: Vec<AddedToken> = ids_of_type(USER_DEFINED).map(|token| added_token(token, false)).collect();
        let mut eos_ids: Vec<u32> = eos.iter().map(|eos| eos.id).collect();
        let end_of_turn =
            (0u32..).zip(&vocab.tokens).zip(&vocab.token_types).filter_map(|((id, token), token_type)| {
                (*token_type == CONTROL && END_OF_TURN_TOKENS.contains(&token.as_str())).then_some(id)
            });
        eos_ids.extend(end_of_turn);

        let mut tokenizer = tokenizers::Tokenizer::new(byte_level_bpe(&vocab, pre_tokenizer)?);
        if pre_tokenizer.nfc {
            tokenizer.with_normalizer(Some(NFC)).map_err(invalid)?;
        }
        tokenizer.with_pre_tokenizer(Some(splitter(pre_tokenizer)?));
        tokenizer.with_decoder(Some(ByteLevel::default()));
        tokenizer.add_special_tokens(control).map_err(invalid)?;
        tokenizer.add_tokens(user_defined).map_err(invalid)?;
        Self::assemble(Parts {
            tokenizer,
            template: vocab.chat_template.as_deref().map(ChatTemplate::new).transpose()?,
            bos,
            eos_text: eos.map(|eos| eos.text).unwrap_or_default(),
            eos_ids,
            adds_bos: vocab.add_bos.unwrap_or(false),
        })
    }
}

fn invalid(error: impl std::fmt::Display) -> TokenizerError {
    TokenizerError::Vocabulary { reason: error.to_string() }
}

fn check_lengths(vocab: &GgufVocab) -> Result<(), TokenizerError> {
    let (tokens, types, merges) = (vocab.tokens.len(), vocab.token_types.len(), vocab.merges.len());
    let longest = vocab.tokens.iter().map(String::len).max().unwrap_or(0);
    if tokens == 0 || tokens > MAX_TOKENS {
        return Err(invalid(format!("{tokens} tokens, expected 1 to {MAX_TOKENS}")));
    }
    if types != tokens {
        return Err(invalid(format!("{tokens} tokens and {types} token types")));
    }
    if merges > MAX_MERGES {
        return Err(invalid(format!("{merges} merges, the limit is {MAX_MERGES}")));
    }
    if longest > MAX_TOKEN_BYTES {
        return Err(invalid(format!("a token of {longest} bytes, the limit is {MAX_TOKEN_BYTES}")));
    }
    Ok(())
}

fn special_token(tokens: &[String], id: Option<u32>, field: &str) -> Result<Option<SpecialToken>, TokenizerError> {
    let Some(id) = id else { return Ok(None) };
    match tokens.get(id as usize) {
        Some(text) => Ok(Some(SpecialToken { id, text: text.clone() })),
        None => Err(invalid(format!("{field} is {id}, and there are {} tokens", tokens.len()))),
    }
}

fn added_token(text: String, special: bool) -> AddedToken {
    AddedToken::from(text, special).normalized(false)
}

fn byte_level_bpe(vocab: &GgufVocab, pre_tokenizer: &PreTokenizer) -> Result<BPE, TokenizerError> {
    let ids: Vocab = vocab.tokens.iter().cloned().zip(0..).collect();
    if ids.len() != vocab.tokens.len() {
        return Err(invalid(format!("{} tokens, of them {} different", vocab.tokens.len(), ids.len())));
    }
    let mut merges = Vec::with_capacity(vocab.merges.len());
    for (index, merge) in vocab.merges.iter().enumerate() {
        let sides = merge.split_once(' ').filter(|(left, right)| !left.is_empty() && !right.is_empty());
        let Some((left, right)) = sides else {
            return Err(invalid(format!("merge {index} is not two tokens with a space between them")));
        };
        if !ids.contains_key(left) || !ids.contains_key(right) || !ids.contains_key(format!("{left}{right}").as_str()) {
            return Err(invalid(format!("merge {index} (`{merge}`) names a token that is not in the vocabulary")));
        }
        merges.push((left.to_owned(), right.to_owned()));
    }
    BPE::builder().vocab_and_merges(ids, merges).ignore_merges(pre_tokenizer.ignore_merges).build().map_err(invalid)
}

/// The stages that cut text and spell its bytes.
pub(crate) fn splitter(pre_tokenizer: &PreTokenizer) -> Result<Sequence, TokenizerError> {
    let mut stages: Vec<PreTokenizerWrapper> = Vec::new();
    for regex in pre_tokenizer.regexes {
        let pattern = SplitPattern::Regex((*regex).to_owned());
        let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map_err(invalid)?;
        stages.push(PreTokenizerWrapper::Split(split));
    }
    // Spells bytes with the vocabulary's characters; the cutting is done above.
    stages.push(PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, true, false)));
    Ok(Sequence::new(stages))
}
