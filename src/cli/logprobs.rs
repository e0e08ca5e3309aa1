//! `kvgauge logprobs`: teacher-forced log-probabilities of given tokens. The door through which other software is compared.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvgauge::engine::{Engine, EngineOptions, Model, RopeScaling, TokenLogprob};
use kvgauge::hint::Hint;
use kvgauge::setup::Arm;
use serde::{Deserialize, Serialize};

use crate::args::LogprobsArgs;
use crate::config::ConfigFile;
use crate::engine_settings::EngineSettings;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::settings::{self, DEFAULT_BASELINE};
use crate::{model, output};

/// A million ids of seven digits each.
const MAX_IDS_FILE_BYTES: u64 = 8 * 1024 * 1024;

/// Alternatives printed per position.
const TOP: usize = 5;

/// The file of `--ids`: an array, or any object with the array under `token_ids`, such as this command's own output.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected an array of token ids, or an object with it under `token_ids`")]
enum IdsFile {
    Bare(Vec<u32>),
    Named { token_ids: Vec<u32> },
}

/// What `--json` prints.
#[derive(Serialize)]
struct Document {
    token_ids: Vec<u32>,
    /// `[i]` is ln p(token i + 1 | tokens 0 ..= i); one shorter than `token_ids`.
    next_token_logprob: Vec<Option<f32>>,
    /// `[i]`: the likeliest ids after token i, each with its log-probability.
    top5: Vec<Vec<(u32, f32)>>,
}

/// Why there is nothing to compute.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InputError {
    #[error("`{}` cannot be read: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("`{}` is larger than {MAX_IDS_FILE_BYTES} bytes", path.display())]
    TooLarge { path: PathBuf },
    #[error("`{}`: {source}", path.display())]
    Json { path: PathBuf, source: serde_json::Error },
    #[error("two tokens are the least that has a log-probability, {found} given")]
    TooShort { found: usize },
    #[error("token id {id} at position {position} is not below the vocabulary's {vocab_size}")]
    OutOfVocabulary { id: u32, position: usize, vocab_size: usize },
}

impl Hint for InputError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::Json { .. } => {
                vec!["an array such as [504, 2086, 338], or an object with it under `token_ids`".into()]
            }
            Self::OutOfVocabulary { .. } => vec!["ids belong to one tokenizer: is it this model's?".into()],
            Self::Read { .. } | Self::TooLarge { .. } | Self::TooShort { .. } => Vec::new(),
        }
    }
}

pub(crate) fn execute(args: &LogprobsArgs, config: &ConfigFile) -> Result<Exit, Failure> {
    let settings = settings::model(&args.model, config);
    let _interrupt = Interrupt::watch().map_err(Failure::Runtime)?;
    let engine = EngineSettings::new(&args.engine, &config.engine)?;
    let ids_of_file = args.input.ids.as_deref().map(read_ids).transpose()?;
    let (model, ids, tokenizer) = match ids_of_file {
        Some(ids) => (open_weights(&settings)?, ids, None),
        None => {
            let loaded = model::open(&settings)?;
            let ids = loaded.tokenizer().encode(args.input.text.as_deref().unwrap_or_default(), true)?;
            (Arc::clone(loaded.engine()), ids, Some(Arc::clone(loaded.tokenizer())))
        }
    };
    check(&ids, model.config().vocab_size)?;
    let base = EngineOptions { kernel: settings.kernel, threads: settings.threads, ..EngineOptions::default() };
    let dtype = args.kv_cache_dtype.as_deref().unwrap_or(DEFAULT_BASELINE);
    let arm = engine.applied_to(Arm::candidate(dtype));
    let options = engine.options(&arm, &base, tokenizer.as_deref())?;
    let mut engine = Engine::new(model, &options)?;
    let sequence = engine.start(RopeScaling::Default)?;
    let logprobs = engine.logprobs(sequence, &ids, TOP)?;
    let document = document(ids, logprobs);
    if args.json {
        output::print_json(&document)?;
    } else {
        output::print(&lines(&document))?;
    }
    Ok(Exit::Success)
}

/// Token ids need no tokenizer, so a model without one is welcome.
fn open_weights(settings: &settings::ModelSettings) -> Result<Arc<Model>, Failure> {
    let found = model::find(settings)?;
    Ok(Arc::new(Model::load(&found.path)?))
}

fn read_ids(path: &Path) -> Result<Vec<u32>, InputError> {
    let failed = |source| InputError::Read { path: path.into(), source };
    let mut text = String::new();
    File::open(path).map_err(failed)?.take(MAX_IDS_FILE_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > MAX_IDS_FILE_BYTES {
        return Err(InputError::TooLarge { path: path.into() });
    }
    match serde_json::from_str(&text).map_err(|source| InputError::Json { path: path.into(), source })? {
        IdsFile::Bare(ids) | IdsFile::Named { token_ids: ids } => Ok(ids),
    }
}

fn check(ids: &[u32], vocab_size: usize) -> Result<(), InputError> {
    if ids.len() < 2 {
        return Err(InputError::TooShort { found: ids.len() });
    }
    match ids.iter().enumerate().find(|(_, id)| **id as usize >= vocab_size) {
        Some((position, &id)) => Err(InputError::OutOfVocabulary { id, position, vocab_size }),
        None => Ok(()),
    }
}

fn document(token_ids: Vec<u32>, logprobs: Vec<TokenLogprob>) -> Document {
    let next_token_logprob = logprobs.iter().skip(1).map(|token| token.logprob).collect();
    Document { token_ids, next_token_logprob, top5: logprobs.into_iter().map(|token| token.top).collect() }
}

fn lines(document: &Document) -> String {
    let mut text = String::from("position       id  logprob  likeliest next\n");
    for (position, (id, top)) in document.token_ids.iter().zip(&document.top5).enumerate() {
        let logprob = match position.checked_sub(1).and_then(|before| document.next_token_logprob[before]) {
            Some(logprob) => format!("{logprob:8.4}"),
            None => format!("{:>8}", "–"),
        };
        let top: Vec<String> = top.iter().map(|(id, logprob)| format!("{id} {logprob:.3}")).collect();
        text += &format!("{position:8} {id:8} {logprob}  {}\n", top.join("  "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_bare_or_named_and_nonsense_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ids.json");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            read_ids(&path)
        };
        assert_eq!(read("[1, 2, 3]").unwrap(), [1, 2, 3]);
        assert_eq!(read("{\"name\": \"x\", \"token_ids\": [7]}").unwrap(), [7]);
        for bad in ["[1, -2]", "[1.5]", "{\"ids\": [1]}", "[4294967296]", "", "[1"] {
            assert!(matches!(read(bad), Err(InputError::Json { .. })), "{bad}");
        }
        assert!(matches!(check(&[1], 10), Err(InputError::TooShort { found: 1 })));
        assert!(matches!(check(&[1, 10], 10), Err(InputError::OutOfVocabulary { id: 10, position: 1, .. })));
        assert!(check(&[1, 9], 10).is_ok());
    }
}
