//! Why a model's memory cannot be computed.

use std::io;
use std::path::PathBuf;

use crate::capacity::cache_dtype::known_cache_dtypes;
use crate::capacity::weights::WEIGHT_FORMATS;
use crate::hint::{Hint, did_you_mean};
use crate::units::format_bytes;

/// Why a model's memory cannot be computed.
#[derive(Debug, thiserror::Error)]
pub enum CapacityError {
    /// The file system refused.
    #[error("`{}` cannot be read: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },
    /// Neither a folder with a `config.json` nor such a file.
    #[error("`{}` is neither a model folder nor a config.json", path.display())]
    NotAConfig {
        /// As given.
        path: PathBuf,
    },
    /// Larger than any real one.
    #[error("`{}` is larger than {}, which no such file is", path.display(), format_bytes(*limit_bytes))]
    TooLarge {
        /// Which file.
        path: PathBuf,
        /// What is read at most.
        limit_bytes: u64,
    },
    /// Not JSON, or not an object.
    #[error("{file}: {problem}")]
    Json {
        /// `config.json`, ...
        file: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A key without which nothing can be computed.
    #[error("config.json: `{key}` is missing")]
    Missing {
        /// Its name.
        key: String,
    },
    /// A value that is not legal.
    #[error("`{key}` is {found}: {problem}")]
    Invalid {
        /// Its name.
        key: String,
        /// As stored.
        found: String,
        /// What about it.
        problem: String,
    },
    /// An architecture whose cache follows other rules.
    #[error("config.json describes {what}, whose cache is not computed here")]
    NotCounted {
        /// Which kind.
        what: String,
    },
    /// A KV dtype whose layout is not known.
    #[error("the bytes of kv_cache_dtype `{name}` are not known")]
    UnknownDtype {
        /// As asked for.
        name: String,
    },
    /// A KV dtype that no engine stores this model in.
    #[error("kv_cache_dtype `{dtype}` does not store {layers}")]
    WrongDtype {
        /// As asked for.
        dtype: String,
        /// `one latent per token (MLA)`, ...
        layers: &'static str,
        /// What does.
        instead: &'static str,
    },
    /// A format of weights that is not known.
    #[error("the bytes of weights in `{name}` are not known")]
    UnknownWeights {
        /// As asked for.
        name: String,
    },
    /// Heads that cannot be dealt out evenly.
    #[error("{n} {what} cannot be split over {n_rank} ranks")]
    Ranks {
        /// How many.
        n: u32,
        /// `attention heads`, `key-value heads`.
        what: &'static str,
        /// Over how many.
        n_rank: u32,
    },
}

impl Hint for CapacityError {
    fn hints(&self) -> Vec<String> {
        const BY_NUMBERS: &str = "or give the numbers: `--layers --kv-heads --head-dim --parameters`";
        match self {
            Self::Io { .. } | Self::NotAConfig { .. } | Self::TooLarge { .. } | Self::Json { .. } => {
                vec!["name the folder of the model, or its config.json".into(), BY_NUMBERS.into()]
            }
            Self::Missing { .. } | Self::NotCounted { .. } => vec![BY_NUMBERS.trim_start_matches("or ").into()],
            Self::Invalid { .. } => Vec::new(),
            Self::UnknownDtype { name } => vec![did_you_mean(name, &known_cache_dtypes())],
            Self::WrongDtype { instead, .. } => vec![format!("these do: {instead}")],
            Self::UnknownWeights { name } => {
                vec![did_you_mean(name, &WEIGHT_FORMATS.iter().map(|format| format.name).collect::<Vec<_>>())]
            }
            Self::Ranks { .. } => {
                vec!["`--tensor-parallel` divides the heads, or is a multiple of the KV heads".into()]
            }
        }
    }
}
