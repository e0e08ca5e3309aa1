//! A suite: tasks × bins × items and the gate policy. `file.rs` mirrors the TOML, [`Suite`] is valid by construction,
//! [`Plan`] is the ordered list of haystack groups that a run has to ask.
//!
//! To add a suite: a file in `suites/` and a line in [`BUILTIN`].

mod custom;
mod error;
mod file;
mod gate_file;
mod plan;
mod policy;
mod select;
mod shard;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use custom::CustomFile;
pub use error::SuiteError;
pub use file::{SCHEMA_VERSION, json_schema};
pub use policy::{CellPolicy, GatePolicy, Tier};
pub use shard::{MAX_SHARDS, Shard};

use crate::rng::hash_name;
use crate::sample::{Bin, Language, VariantOf};
pub use crate::tasks::TaskGroup;
use crate::tasks::{self, UserText};

/// The suites that are part of the binary: name and file.
pub static BUILTIN: &[(&str, &str)] = &[
    ("lite", include_str!("../../suites/lite.toml")),
    ("long", include_str!("../../suites/long.toml")),
    ("nightly", include_str!("../../suites/nightly.toml")),
    ("quick", include_str!("../../suites/quick.toml")),
    ("ruler-compat", include_str!("../../suites/ruler-compat.toml")),
    ("selftest", include_str!("../../suites/selftest.toml")),
    ("smoke", include_str!("../../suites/smoke.toml")),
    ("zh", include_str!("../../suites/zh.toml")),
];

/// A validated suite.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Suite {
    /// A legal folder name.
    pub name: String,
    /// Counts up when its author wants other items under the same name.
    pub version: u32,
    /// One sentence.
    pub description: String,
    /// Seeds every item.
    pub seed: u64,
    /// Language of the items.
    pub language: Language,
    /// Sorted by length, without duplicates.
    pub bins: Vec<BinPlan>,
    /// In file order; ids are unique.
    pub tasks: Vec<TaskPlan>,
    /// The user's own text as filler; `None` for ours. No key of a suite file: see [`Suite::with_haystack`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub haystack: Option<UserText>,
    /// How results are judged.
    pub gate: GatePolicy,
}

impl Suite {
    /// Reads a suite file.
    ///
    /// # Errors
    /// When it cannot be read, is too large, or is not a valid suite; the error names file and key.
    pub fn load(path: &Path) -> Result<Self, SuiteError> {
        let folder = path.parent().unwrap_or(Path::new(""));
        file::parse(&file::read(path)?, &path.display().to_string(), Some(folder))
    }

    /// A suite of [`BUILTIN`].
    ///
    /// # Errors
    /// When there is none of this name.
    pub fn builtin(name: &str) -> Result<Self, SuiteError> {
        let found = BUILTIN.iter().find(|(known, _)| *known == name);
        let (name, text) = found.ok_or_else(|| SuiteError::UnknownSuite { name: name.into() })?;
        file::parse(text, &format!("suites/{name}.toml"), None)
    }

    /// A suite out of the text of a file; `origin` names it in errors. It has no folder, so it cannot name a file of prompts.
    ///
    /// # Errors
    /// As [`Suite::load`].
    pub fn parse(text: &str, origin: &str) -> Result<Self, SuiteError> {
        file::parse(text, origin, None)
    }

    /// The suite with the keys of `gate`, a `[gate]` table as suite files have it, in place of its own; `origin` names it in errors.
    ///
    /// # Errors
    /// When a key or value is not one of a gate, or names a cell that the suite does not have.
    pub fn with_gate(self, gate: &toml::Table, origin: &str) -> Result<Self, SuiteError> {
        Ok(Self { gate: gate_file::gate(gate, origin, &self)?, ..self })
    }

    /// The suite with `text` as the filler of its documents of prose, which makes all its items other ones.
    #[must_use]
    pub fn with_haystack(self, text: UserText) -> Self {
        Self { haystack: Some(text), ..self }
    }

    /// Everything besides the suite's own file that decides its items: generators, words of the haystack.
    pub fn versions(&self) -> BTreeMap<String, String> {
        let mut versions = BTreeMap::from([("suite".to_owned(), format!("{} {}", self.name, self.version))]);
        for task in self.tasks.iter().filter_map(|plan| tasks::find(&plan.task)) {
            versions.insert(format!("generator.{}", task.id), task.generator_version.to_string());
        }
        for (plan, file) in self.tasks.iter().filter_map(|plan| Some((plan, plan.custom.as_ref()?))) {
            versions.insert(format!("file.{}", plan.task), file.hash().to_owned());
        }
        let lexicon = tasks::lexicon_version(self.language).to_owned();
        versions.insert(format!("lexicon.{}", self.language.tag()), lexicon);
        if let Some(text) = &self.haystack {
            versions.insert("haystack".to_owned(), text.hash().to_owned());
        }
        versions
    }

    /// Hash of all that decides the items, 64 hex digits. Layout and order of keys in the file, the description and the gate
    /// do not change it: a record is as good under another gate.
    pub fn fingerprint(&self) -> String {
        let resolved = serde_json::json!({
            "name": self.name,
            "version": self.version,
            "seed": self.seed,
            "language": self.language,
            "bins": self.bins,
            "tasks": self.tasks,
            "versions": self.versions(),
        });
        hash_name(&["suite fingerprint", &canonical_json(&resolved)]).to_hex().to_string()
    }
}

/// JSON with sorted keys, whatever order the maps keep.
pub(crate) fn canonical_json(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::Object(map) => {
            let sorted: BTreeMap<&String, String> =
                map.iter().map(|(key, value)| (key, canonical_json(value))).collect();
            let fields: Vec<String> = sorted.iter().map(|(key, value)| format!("{key:?}:{value}")).collect();
            format!("{{{}}}", fields.join(","))
        }
        serde_json::Value::Array(values) => {
            format!("[{}]", values.iter().map(canonical_json).collect::<Vec<_>>().join(","))
        }
        other => other.to_string(),
    }
}

/// What a suite asks in one bin.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BinPlan {
    /// The bin.
    pub bin: Bin,
    /// Items per task.
    pub samples: u32,
    /// Tokens of the budget kept free for the answer.
    pub output_reserve: u32,
    /// Tokens of the budget kept free for thinking before the answer, besides the answer's own.
    #[serde(skip_serializing_if = "is_zero")]
    pub thinking_reserve: u32,
    /// Questions per haystack.
    pub shared_prefix: u32,
    /// Whether different tasks may share one haystack.
    pub mixed: bool,
    /// Depth slots in percent.
    pub depth_slots: Vec<u8>,
}

/// A suite without thinking keeps the fingerprint it had before there was any.
fn is_zero(tokens: &u32) -> bool {
    *tokens == 0
}

/// One task of a suite with its parameters.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TaskPlan {
    /// Task id.
    pub task: String,
    /// Bins it is asked in.
    pub bins: Vec<Bin>,
    /// Items in the bins where it differs from the bin's own number.
    pub samples: BTreeMap<Bin, u32>,
    /// The task's parameters as given (validated by the task).
    pub params: toml::Table,
    /// Whether every item is asked again in other words. A suite without keeps the fingerprint it had before there was any.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub robustness: bool,
    /// Judges instead of the task's own scorer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scorer: Option<String>,
    /// The user's prompts, where the task asks those.
    #[serde(skip)]
    pub custom: Option<Arc<CustomFile>>,
}

impl TaskPlan {
    /// Items of this task in `bin`.
    pub(crate) fn samples_in(&self, bin: &BinPlan) -> u32 {
        let own = self.samples.get(&bin.bin).copied();
        match &self.custom {
            Some(file) => own.unwrap_or(u32::MAX).min(file.lines_in(bin.bin)),
            None => own.unwrap_or(bin.samples),
        }
    }
}

/// Everything a run has to ask, in order: shortest bin first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Items of one group share a haystack and are asked from one prefill.
    pub groups: Vec<GroupSpec>,
}

impl Plan {
    /// The part of the plan in `bins`, item for item the same.
    #[must_use]
    pub fn only_bins(&self, bins: &[Bin]) -> Self {
        Self { groups: self.groups.iter().filter(|group| bins.contains(&group.bin)).cloned().collect() }
    }

    /// Number of items.
    pub fn item_count(&self) -> usize {
        self.groups.iter().map(|group| group.items.len()).sum()
    }

    /// Hash over the ids of all items in order, 64 hex digits.
    pub fn items_hash(&self) -> String {
        let items = self.groups.iter().flat_map(|group| &group.items);
        let ids: Vec<&str> = items.map(|item| item.item_id.as_str()).collect();
        hash_name(&ids).to_hex().to_string()
    }
}

/// The recipe of one haystack and its questions; cheap, without text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupSpec {
    /// Identifies the haystack.
    pub haystack_id: String,
    /// The bin.
    pub bin: Bin,
    /// The questions.
    pub items: Vec<ItemSpec>,
}

/// The recipe of one item.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ItemSpec {
    /// See [`crate::sample::Item::item_id`].
    pub item_id: String,
    /// Task id.
    pub task: String,
    /// Depth slot in percent.
    pub slot_percent: u8,
    /// Counts items of one task × bin × slot.
    pub index: u32,
    /// The item that it asks again in other words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant_of: Option<VariantOf>,
}
