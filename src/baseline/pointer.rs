//! `<name>/baseline.json`: which content stands under a name, since when, and what it is a baseline of.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::baseline::sealed::Sealed;
use crate::baseline::{BaselineError, HASH_DIGITS};
use crate::record::Record;
use crate::record::manifest::{AcceptedFrom, FormatVersion, Manifest};
use crate::record::samples::clip;

/// Name of the pointer in the folder of a baseline's name.
pub const POINTER_FILE: &str = "baseline.json";

/// Version of `baseline.json`. Changelog: 1.0 first version.
pub(super) const POINTER_FORMAT: FormatVersion = FormatVersion { major: 1, minor: 0 };

/// Longest name: a folder name that a table still shows.
const MAX_NAME_BYTES: usize = 96;

/// Longest note: a few sentences.
const MAX_NOTE_BYTES: usize = 2 * 1024;

/// Former contents remembered under a name: two years of a baseline that moves every day; older ones are dropped.
const MAX_HISTORY: usize = 730;

/// A named baseline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pointer {
    /// Format of this file.
    pub format: FormatVersion,
    /// Version of kvgauge that wrote it.
    pub tool_version: String,
    /// Its name, also that of its folder.
    pub name: String,
    /// Hash of its content, 64 hex digits.
    pub hash: String,
    /// When it was accepted, in UTC.
    pub accepted_at: String,
    /// What whoever accepted it said of it.
    pub note: Option<String>,
    /// Name of the suite.
    pub suite: String,
    /// Hash of all that decides the suite's items.
    pub suite_fingerprint: String,
    /// Name of the model.
    pub model: String,
    /// Hash of its weights and configuration.
    pub weights: String,
    /// Hash of its tokenizer.
    pub tokenizer: String,
    /// dtype of the cache as asked for.
    pub kv_cache_dtype: String,
    /// Engine or server that answered, with its version where that is known.
    pub engine: Option<String>,
    /// Compute kernel of the embedded engine.
    pub kernel: Option<String>,
    /// Version of every scorer.
    pub scorers: BTreeMap<String, String>,
    /// Items per bin, ascending.
    pub items: Vec<BinItems>,
    /// Whether the A/A repeat of the arm is part of it.
    pub has_control: bool,
    /// What stood under the name before, the latest first.
    pub history: Vec<Past>,
    /// Hash of this document without its checksum.
    pub(super) checksum: String,
}

/// Items of one bin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BinItems {
    /// The bin in tokens.
    pub bin: u32,
    /// Items.
    pub items: u64,
}

/// A content that stood under the name before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Past {
    /// Its hash.
    pub hash: String,
    /// When it was accepted.
    pub accepted_at: String,
    /// What was said of it.
    pub note: Option<String>,
}

impl Sealed for Pointer {
    const FORMAT: FormatVersion = POINTER_FORMAT;

    fn checksum(&mut self) -> &mut String {
        &mut self.checksum
    }
}

impl Pointer {
    /// A pointer to the content with `hash`, without a history.
    pub(super) fn new(name: &str, hash: &str, accepted_at: &str, note: Option<&str>, baseline: &Record) -> Self {
        let manifest = &baseline.manifest;
        let field = |name: &str| manifest.plan.get(name).cloned().unwrap_or_default();
        let scorers = manifest.plan.iter().filter_map(|(field, version)| {
            field.strip_prefix("scorer.").map(|scorer| (scorer.to_owned(), version.clone()))
        });
        let mut items: BTreeMap<u32, u64> = BTreeMap::new();
        for sample in &baseline.samples {
            *items.entry(sample.bin.tokens()).or_default() += 1;
        }
        Self {
            format: POINTER_FORMAT,
            tool_version: env!("CARGO_PKG_VERSION").into(),
            name: name.into(),
            hash: hash.into(),
            accepted_at: accepted_at.into(),
            note: note.map(|note| clip(note, MAX_NOTE_BYTES).to_owned()),
            suite: manifest.suite.clone(),
            suite_fingerprint: field("suite"),
            model: manifest.model.name.clone(),
            weights: manifest.model.weights.clone(),
            tokenizer: manifest.model.tokenizer.clone(),
            kv_cache_dtype: manifest.arm.kv_cache_dtype.clone(),
            engine: manifest.resolved.engine.value.clone(),
            kernel: manifest.resolved.kernel.value.clone(),
            scorers: scorers.collect(),
            items: items.into_iter().map(|(bin, items)| BinItems { bin, items }).collect(),
            has_control: false,
            history: Vec::new(),
            checksum: String::new(),
        }
    }

    /// With what stood under the name before: `former` and its own history.
    pub(super) fn after(mut self, former: Pointer) -> Self {
        if former.hash == self.hash {
            self.history = former.history;
            return self;
        }
        let Pointer { hash, accepted_at, note, history, .. } = former;
        self.history = std::iter::once(Past { hash, accepted_at, note }).chain(history).take(MAX_HISTORY).collect();
        self
    }

    /// As the records of a run name it that are copied from it.
    pub fn accepted_from(&self) -> AcceptedFrom {
        AcceptedFrom { name: self.name.clone(), hash: self.hash.clone(), accepted_at: self.accepted_at.clone() }
    }

    /// The first digits of the hash, the name of the content's folder.
    pub fn short_hash(&self) -> &str {
        clip(&self.hash, HASH_DIGITS)
    }
}

/// The name of a baseline where none was given: suite, model and dtype.
pub fn default_name(manifest: &Manifest) -> String {
    let text = format!("{}-{}-{}", manifest.suite, manifest.model.name, manifest.arm.kv_cache_dtype);
    let legal = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c.to_ascii_lowercase() } else { '-' };
    let name: String = text.chars().map(legal).take(MAX_NAME_BYTES).collect();
    name.trim_start_matches('.').to_owned()
}

/// A name becomes a folder beside the contents, so it leads nowhere else and looks like no hash.
pub(super) fn check_name(name: &str) -> Result<(), BaselineError> {
    let is_legal = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let is_hash = name.len() == HASH_DIGITS && name.chars().all(|c| c.is_ascii_hexdigit());
    if name.is_empty() || name.starts_with('.') || is_hash || name.len() > MAX_NAME_BYTES || !name.chars().all(is_legal)
    {
        return Err(BaselineError::Name { name: name.into() });
    }
    Ok(())
}
