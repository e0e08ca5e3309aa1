//! `kvgauge.toml`: the values that a project does not want to type. Every key is optional; an unknown one is an error.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use kvgauge::hint::{Hint, did_you_mean};
use serde::Deserialize;

use crate::args::{OnInconclusive, RopeChoice};
use crate::engine_settings::{ENGINE_KEYS, EngineArgs};
use crate::server_arms::ServerArms;

/// Read from the working directory when no file is named.
pub(crate) const DEFAULT_FILE: &str = "kvgauge.toml";

/// A configuration is a page of text; whatever is larger is another kind of file.
const MAX_CONFIG_BYTES: u64 = 256 * 1024;

/// Sections with their keys. `[gate]` has the keys of a suite's `[gate]` besides these and is checked by the suite's rules.
const SECTIONS: &[(&str, &[&str])] = &[
    ("model", &["name", "kernel", "rope_scaling", "threads", "offline"]),
    ("suite", &["name", "bins", "tasks", "samples", "seed", "haystack"]),
    ("arms", &["baseline", "kv_cache_dtype", "concurrency"]),
    ("engine", ENGINE_KEYS),
    ("gate", &["on_inconclusive"]),
    ("baseline", &["against", "max_age"]),
];

/// What all arms of servers share, and one of them; their keys are checked by [`ServerArms`].
const SERVER_SECTION: &str = "server";
const ARM_SECTION: &str = "arm";

/// The file, as far as it is given.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ConfigFile {
    pub(crate) model: ModelSection,
    pub(crate) suite: SuiteSection,
    pub(crate) arms: ArmsSection,
    pub(crate) baseline: BaselineSection,
    pub(crate) engine: EngineArgs,
    /// What the arms of `arm` share; kept as a table, because part of it belongs to readers of the library.
    pub(crate) server: toml::Table,
    /// Arms that servers answer.
    pub(crate) arm: Vec<toml::Table>,
    /// Kept as a table: the suite's own reader takes it, so both spell policies alike.
    pub(crate) gate: toml::Table,
    #[serde(skip)]
    pub(crate) on_inconclusive: Option<OnInconclusive>,
    /// The file, for messages.
    #[serde(skip)]
    pub(crate) path: PathBuf,
    /// Whether somebody named the file, instead of its lying in the working directory.
    #[serde(skip)]
    pub(crate) is_named: bool,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ModelSection {
    pub(crate) name: Option<String>,
    pub(crate) kernel: Option<String>,
    pub(crate) rope_scaling: Option<RopeChoice>,
    pub(crate) threads: Option<u16>,
    pub(crate) offline: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SuiteSection {
    pub(crate) name: Option<String>,
    pub(crate) bins: Option<Vec<String>>,
    pub(crate) tasks: Option<Vec<String>>,
    pub(crate) samples: Option<u32>,
    pub(crate) seed: Option<u64>,
    pub(crate) haystack: Option<PathBuf>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ArmsSection {
    pub(crate) baseline: Option<String>,
    pub(crate) kv_cache_dtype: Option<Vec<String>>,
    pub(crate) concurrency: Option<Vec<u16>>,
}

/// The accepted baseline that `check` compares with. `[arms] baseline` is the dtype of one that is measured.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct BaselineSection {
    pub(crate) against: Option<String>,
    pub(crate) max_age: Option<u32>,
}

/// Why the configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("configuration `{}`: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("configuration `{}` is larger than {MAX_CONFIG_BYTES} bytes", path.display())]
    TooLarge { path: PathBuf },
    #[error("configuration `{}`: {message}", path.display())]
    Syntax { path: PathBuf, message: String },
    #[error("configuration `{}`: unknown {place} `{key}`", path.display())]
    UnknownKey { path: PathBuf, place: String, key: String, known: &'static [&'static str] },
    #[error("configuration `{}`: {place}: {message}", path.display())]
    Value { path: PathBuf, place: String, message: String },
}

impl Hint for ConfigError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::UnknownKey { key, known, .. } => vec![did_you_mean(key, known)],
            Self::Read { .. } => vec!["name another file with `--config`, or leave the option out".into()],
            Self::TooLarge { .. } | Self::Syntax { .. } | Self::Value { .. } => Vec::new(),
        }
    }
}

impl ConfigFile {
    /// Reads the named file, or `kvgauge.toml` of the working directory where there is one.
    pub(crate) fn load(named: Option<&Path>) -> Result<Self, ConfigError> {
        let path = named.unwrap_or(Path::new(DEFAULT_FILE));
        let read_error = |source| ConfigError::Read { path: path.into(), source };
        let file = match fs::File::open(path) {
            Err(error) if named.is_none() && error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            opened => opened.map_err(read_error)?,
        };
        let mut text = String::new();
        file.take(MAX_CONFIG_BYTES + 1).read_to_string(&mut text).map_err(read_error)?;
        if text.len() as u64 > MAX_CONFIG_BYTES {
            return Err(ConfigError::TooLarge { path: path.into() });
        }
        Ok(Self { is_named: named.is_some(), ..Self::parse(path, &text)? })
    }

    /// Parses the text; `path` is for messages.
    pub(crate) fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let syntax =
            |error: toml::de::Error| ConfigError::Syntax { path: path.into(), message: one_line(&error, text) };
        refuse_unknown_keys(path, &toml::from_str(text).map_err(syntax)?)?;
        let mut file: Self = toml::from_str(text).map_err(syntax)?;
        file.on_inconclusive = take_on_inconclusive(path, &mut file.gate)?;
        file.path = path.into();
        file.servers()?;
        Ok(file)
    }

    /// The arms that servers answer; `None` where the embedded engine answers.
    pub(crate) fn servers(&self) -> Result<Option<ServerArms>, ConfigError> {
        let refuse = |place: &str, message: &str| {
            Err(ConfigError::Value { path: self.path.clone(), place: place.into(), message: message.into() })
        };
        if self.arm.is_empty() {
            return match self.server.is_empty() {
                true => Ok(None),
                false => refuse("[server]", "there is no [[arm]] that it could hold for"),
            };
        }
        if self.arms != ArmsSection::default() || self.engine != EngineArgs::default() {
            return refuse("[[arm]]", "servers and the embedded engine ([arms], [engine]) cannot be mixed in one run");
        }
        ServerArms::parse(&self.path, &self.server, &self.arm).map(Some)
    }
}

fn one_line(error: &toml::de::Error, text: &str) -> String {
    let message = error.message().lines().collect::<Vec<_>>().join(", ");
    match error.span() {
        Some(span) => format!("line {}: {message}", text[..span.start.min(text.len())].lines().count().max(1)),
        None => message,
    }
}

fn refuse_unknown_keys(path: &Path, table: &toml::Table) -> Result<(), ConfigError> {
    const SECTION_NAMES: [&str; 8] = [
        SECTIONS[0].0,
        SECTIONS[1].0,
        SECTIONS[2].0,
        SECTIONS[3].0,
        SECTIONS[4].0,
        SECTIONS[5].0,
        SERVER_SECTION,
        ARM_SECTION,
    ];
    for (section, value) in table {
        if section == SERVER_SECTION && value.is_table() || section == ARM_SECTION && is_tables(value) {
            continue;
        }
        if let Some(written) =
            [(SERVER_SECTION, "[server]"), (ARM_SECTION, "[[arm]]")].iter().find(|it| it.0 == section)
        {
            let message = format!("is a section: a line `{}` with keys below it", written.1);
            return Err(ConfigError::Value { path: path.into(), place: section.clone(), message });
        }
        let Some((name, known)) = SECTIONS.iter().find(|(name, _)| name == section) else {
            let (place, key) = ("section".into(), section.clone());
            return Err(ConfigError::UnknownKey { path: path.into(), place, key, known: &SECTION_NAMES });
        };
        let Some(keys) = value.as_table() else {
            let message = format!("is a section: a line `[{name}]` with keys below it");
            return Err(ConfigError::Value { path: path.into(), place: (*name).into(), message });
        };
        if let Some(key) = keys.keys().find(|key| *name != "gate" && !known.contains(&key.as_str())) {
            let place = format!("key in [{name}]");
            return Err(ConfigError::UnknownKey { path: path.into(), place, key: key.clone(), known });
        }
    }
    Ok(())
}

fn is_tables(value: &toml::Value) -> bool {
    value.as_array().is_some_and(|entries| entries.iter().all(toml::Value::is_table))
}

fn take_on_inconclusive(path: &Path, gate: &mut toml::Table) -> Result<Option<OnInconclusive>, ConfigError> {
    let Some(value) = gate.remove("on_inconclusive") else { return Ok(None) };
    value.try_into().map(Some).map_err(|error: toml::de::Error| ConfigError::Value {
        path: path.into(),
        place: "[gate] on_inconclusive".into(),
        message: error.message().to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ConfigFile, ConfigError> {
        ConfigFile::parse(Path::new("kvgauge.toml"), text)
    }

    #[test]
    fn every_key_of_the_table_is_read_and_no_other() {
        for (section, keys) in SECTIONS {
            for key in *keys {
                let values = ["\"x\"", "1", "[\"x\"]", "[8]", "true", "\"ntk\"", "\"fail\"", "\"on\"", "\"head\""];
                let accepted = values.iter().any(|value| parse(&format!("[{section}]\n{key} = {value}")).is_ok());
                assert!(accepted, "[{section}] {key} is listed and not read");
            }
        }
        let file = parse("[gate]\non_inconclusive = \"fail\"\nmargin = 3\n[suite]\nbins = [\"2K\"]").unwrap();
        assert_eq!(file.on_inconclusive, Some(OnInconclusive::Fail));
        assert_eq!(file.gate.keys().collect::<Vec<_>>(), ["margin"]);
        assert_eq!(file.suite.bins.as_deref(), Some(&["2K".to_string()][..]));
    }

    #[test]
    fn a_typing_error_is_named_with_the_nearest_key() {
        let cases = [
            ("[modle]\nname = \"x\"", "unknown section `modle`", "did you mean `model`?"),
            ("[model]\nnmae = \"x\"", "unknown key in [model] `nmae`", "did you mean `name`?"),
            ("[arms]\nkv_cache_dtypes = []", "`kv_cache_dtypes`", "did you mean `kv_cache_dtype`?"),
        ];
        for (text, message, hint) in cases {
            let error = parse(text).unwrap_err();
            assert!(error.to_string().contains(message), "{error}");
            assert_eq!(error.hints(), [hint]);
        }
    }

    #[test]
    fn bad_values_say_where() {
        assert!(parse("[model]\nthreads = \"two\"").unwrap_err().to_string().contains("line 2: invalid type"));
        assert!(parse("[gate]\non_inconclusive = \"maybe\"").unwrap_err().to_string().contains("on_inconclusive"));
        assert!(parse("model = \"x\"").unwrap_err().to_string().contains("model: is a section"));
        assert!(parse("[model]\n\nname = ").unwrap_err().to_string().contains("line 3"));
    }

    #[test]
    fn a_missing_file_is_an_error_only_when_named() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("absent.toml");
        assert!(matches!(ConfigFile::load(Some(&missing)), Err(ConfigError::Read { .. })));
        let large = folder.path().join("large.toml");
        fs::write(&large, "#".repeat(300 * 1024)).unwrap();
        assert!(matches!(ConfigFile::load(Some(&large)), Err(ConfigError::TooLarge { .. })));
    }
}
