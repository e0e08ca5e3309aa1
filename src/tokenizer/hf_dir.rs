//! A tokenizer out of a Hugging Face model folder.
//!
//! Read are `tokenizer.json` and, where they exist, `tokenizer_config.json` (BOS, EOS, template), `chat_template.jinja` (takes
//! precedence, as in transformers), `generation_config.json` and `config.json` (every id that ends an answer).

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use crate::tokenizer::chat_template::MAX_TEMPLATE_BYTES;
use crate::tokenizer::model_tokenizer::{Parts, SpecialToken};
use crate::tokenizer::{ChatTemplate, Tokenizer, TokenizerError};

/// The largest tokenizer.json known has 33 MB (Gemma 3).
const MAX_TOKENIZER_BYTES: u64 = 64 << 20;
/// Configurations have a few kB; tokenizer_config.json with thousands of added tokens up to 2 MB.
const MAX_CONFIG_BYTES: u64 = 8 << 20;

impl Tokenizer {
    /// Reads the tokenizer of the model folder `dir`.
    ///
    /// # Errors
    /// [`TokenizerError::Read`], [`TokenizerError::TooLarge`], [`TokenizerError::Malformed`], and those of
    /// [`ChatTemplate::new`].
    pub fn from_hf_dir(dir: &Path) -> Result<Self, TokenizerError> {
        let path = dir.join("tokenizer.json");
        let bytes = read_capped(&path, MAX_TOKENIZER_BYTES)?;
        let malformed = |reason: String| TokenizerError::Malformed { path: path.clone(), what: "tokenizer", reason };
        check_merges(&bytes).map_err(malformed)?;
        let tokenizer = tokenizers::Tokenizer::from_bytes(&bytes).map_err(|error| malformed(error.to_string()))?;

        let config: TokenizerConfig = read_json(&dir.join("tokenizer_config.json"))?.unwrap_or_default();
        let token = |named: Option<TokenName>| {
            let text = named?.into_text();
            Some(SpecialToken { id: tokenizer.token_to_id(&text)?, text })
        };
        let bos = token(config.bos_token);
        let eos = token(config.eos_token);
        let mut eos_ids: Vec<u32> = eos.iter().map(|eos| eos.id).collect();
        for name in ["generation_config.json", "config.json"] {
            let ends: Option<EndTokens> = read_json(&dir.join(name))?;
            eos_ids.extend(ends.and_then(|ends| ends.eos_token_id).map(OneOrMany::into_vec).unwrap_or_default());
        }
        let template = match read_optional(&dir.join("chat_template.jinja"), MAX_TEMPLATE_BYTES as u64)? {
            Some(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
            None => config.chat_template.and_then(Templates::into_default),
        };
        let adds_bos = match config.add_bos_token {
            Some(stated) => stated,
            None => bos.as_ref().is_some_and(|bos| post_processor_adds(&tokenizer, bos.id)),
        };
        Self::assemble(Parts {
            template: template.as_deref().map(ChatTemplate::new).transpose()?,
            tokenizer,
            bos,
            eos_text: eos.map(|eos| eos.text).unwrap_or_default(),
            eos_ids,
            adds_bos,
        })
    }
}

/// The fields of tokenizer_config.json that matter here.
#[derive(Default, Deserialize)]
struct TokenizerConfig {
    bos_token: Option<TokenName>,
    eos_token: Option<TokenName>,
    add_bos_token: Option<bool>,
    chat_template: Option<Templates>,
}

/// A token as plain text, or with its properties.
#[derive(Deserialize)]
#[serde(untagged)]
enum TokenName {
    Plain(String),
    Described { content: String },
}

impl TokenName {
    fn into_text(self) -> String {
        match self {
            Self::Plain(text) | Self::Described { content: text } => text,
        }
    }
}

/// One template, or several by purpose (`default`, `tool_use`, `rag`).
#[derive(Deserialize)]
#[serde(untagged)]
enum Templates {
    One(String),
    Named(Vec<NamedTemplate>),
}

#[derive(Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

impl Templates {
    fn into_default(self) -> Option<String> {
        match self {
            Self::One(template) => Some(template),
            Self::Named(list) => list.into_iter().find(|entry| entry.name == "default").map(|entry| entry.template),
        }
    }
}

#[derive(Deserialize)]
struct EndTokens {
    eos_token_id: Option<OneOrMany>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(u32),
    Many(Vec<u32>),
}

impl OneOrMany {
    fn into_vec(self) -> Vec<u32> {
        match self {
            Self::One(id) => vec![id],
            Self::Many(ids) => ids,
        }
    }
}

fn post_processor_adds(tokenizer: &tokenizers::Tokenizer, bos_id: u32) -> bool {
    tokenizer.encode_fast("", true).is_ok_and(|encoding| encoding.get_ids().first() == Some(&bos_id))
}

/// The loader trusts that a merge's result is in the vocabulary and reads out of bounds (a panic) if it is not.
fn check_merges(bytes: &[u8]) -> Result<(), String> {
    #[derive(Deserialize)]
    struct File {
        model: Model,
    }
    #[derive(Deserialize)]
    struct Model {
        #[serde(rename = "type")]
        kind: Option<String>,
        vocab: Option<Value>,
        #[serde(default)]
        merges: Vec<Merge>,
        continuing_subword_prefix: Option<String>,
    }
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Merge {
        Spaced(String),
        Pair(String, String),
    }
    let Model { kind, vocab, merges, continuing_subword_prefix } =
        serde_json::from_slice::<File>(bytes).map_err(|error| error.to_string())?.model;
    if kind.is_some_and(|kind| kind != "BPE") {
        return Ok(());
    }
    let ids: HashMap<String, u32> = match vocab {
        Some(vocab @ Value::Object(_)) => serde_json::from_value(vocab).map_err(|error| error.to_string())?,
        _ => return Ok(()),
    };
    let distinct: HashSet<u32> = ids.values().copied().collect();
    if distinct.len() != ids.len() {
        return Err(format!("{} tokens share {} ids", ids.len(), distinct.len()));
    }
    let prefix = continuing_subword_prefix.unwrap_or_default();
    for (index, merge) in merges.iter().enumerate() {
        let sides = match merge {
            Merge::Spaced(text) => text.split_once(' '),
            Merge::Pair(left, right) => Some((left.as_str(), right.as_str())),
        };
        let (left, right) = sides.ok_or_else(|| format!("merge {index} is not a pair"))?;
        let tail =
            right.strip_prefix(prefix.as_str()).ok_or_else(|| format!("merge {index} lacks the subword prefix"))?;
        if [left, right, &format!("{left}{tail}")].iter().any(|token| !ids.contains_key(*token)) {
            return Err(format!("merge {index} (`{left}` + `{right}`) names a token that is not in the vocabulary"));
        }
    }
    Ok(())
}

fn read_capped(path: &Path, limit: u64) -> Result<Vec<u8>, TokenizerError> {
    let failed = |source| TokenizerError::Read { path: PathBuf::from(path), source };
    let file = File::open(path).map_err(failed)?;
    let got = file.metadata().map_err(failed)?.len();
    let mut bytes = Vec::new();
    // The length may be a lie (a pipe, a growing file), so the cap is on what is read.
    file.take(limit + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > limit {
        return Err(TokenizerError::TooLarge { path: path.into(), got: got.max(bytes.len() as u64), limit });
    }
    Ok(bytes)
}

fn read_optional(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, TokenizerError> {
    match read_capped(path, limit) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(TokenizerError::Read { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn read_json<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<Option<T>, TokenizerError> {
    let Some(bytes) = read_optional(path, MAX_CONFIG_BYTES)? else { return Ok(None) };
    let parsed = serde_json::from_slice(&bytes).map_err(|error| TokenizerError::Malformed {
        path: path.into(),
        what: "configuration",
        reason: error.to_string(),
    })?;
    Ok(Some(parsed))
}
