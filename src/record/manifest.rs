//! `manifest.json`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::record::{MANIFEST_FILE, RecordError, journal, samples};
use crate::setup::{Arm, Check, ModelIdentity, Resolved};

/// Version of the record's format. Readers refuse another major, accept an older minor, and read but never append to a newer one.
///
/// Changelog: 1.0 first version; 1.1 `arm.settings`, and in `resolved` what was passed over, arithmetic, layers and blocks;
/// 1.2 `variant_of` of a sample, `reasoning` and `later_answers` of its completion, `turn_scores` of its score;
/// 1.3 `checks` of the manifest; 1.4 `answer_tokens` of a sample's completion; 1.5 `accepted` of the manifest.
pub const FORMAT: FormatVersion = FormatVersion { major: 1, minor: 5 };

/// Field of a plan: [`crate::suite::Plan::items_hash`] of all items of the arm, also in a record of a shard.
pub const ITEMS_FIELD: &str = "items";

/// Field of a plan: the shard that a record is of. A record without it is of a whole run.
pub const SHARD_FIELD: &str = "shard";

/// Field of the environment with the options that shaped the run, by which it is made again.
pub const OPTIONS_FIELD: &str = "options";

/// A format version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormatVersion {
    /// Incompatible change.
    pub major: u32,
    /// Something was added.
    pub minor: u32,
}

/// The header of a run record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Format of manifest and journal.
    pub format: FormatVersion,
    /// Version of kvgauge that wrote it.
    pub tool_version: String,
    /// Name of the suite.
    pub suite: String,
    /// Everything that makes two runs comparable, by name: suite hash, generator and scorer versions, seed, decoding, … .
    /// Resume needs all fields equal; comparison needs them equal but for what the arm is.
    pub plan: BTreeMap<String, String>,
    /// Hash over `plan` and the arm.
    pub plan_hash: String,
    /// What was asked for.
    pub arm: Arm,
    /// The model.
    pub model: ModelIdentity,
    /// What is in effect.
    pub resolved: Resolved,
    /// What was asked for against what each source says; empty where the engine is part of this program.
    #[serde(default)]
    pub checks: Vec<Check>,
    /// Machine and build, shown and never compared: CPU, threads, operating system.
    pub environment: BTreeMap<String, String>,
    /// Items of the plan.
    pub planned_items: u64,
    /// Where the run stands.
    pub status: RunStatus,
    /// The accepted baseline that the answers were copied from; `None` for answers of this run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted: Option<AcceptedFrom>,
}

/// Which accepted baseline the answers of an arm are from, where they were not asked for in its run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcceptedFrom {
    /// Name of the baseline.
    pub name: String,
    /// Hash of its content, 64 hex digits.
    pub hash: String,
    /// When it was accepted, in UTC: `2026-11-30T20:01:22Z`.
    pub accepted_at: String,
}

impl AcceptedFrom {
    /// The day it was accepted: `2026-11-30`.
    pub fn day(&self) -> &str {
        samples::clip(&self.accepted_at, 10)
    }
}

/// `baseline accepted on 2026-11-30 (nightly, 0123456789abcdef), not measured in this run`.
impl fmt::Display for AcceptedFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hash = samples::clip(&self.hash, 16);
        write!(f, "baseline accepted on {} ({}, {hash}), not measured in this run", self.day(), self.name)
    }
}

/// Where a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// Being written, or was killed.
    Started,
    /// Stopped cleanly before the end; resumes.
    Interrupted,
    /// Every item has a record.
    Complete,
}

/// Fields of the manifest that this version knows; a newer minor format may have more.
pub(crate) const FIELDS: &[&str] = &[
    "format",
    "tool_version",
    "suite",
    "plan",
    "plan_hash",
    "arm",
    "model",
    "resolved",
    "checks",
    "environment",
    "planned_items",
    "status",
    "accepted",
];

/// Largest manifest read: a real one has about 4 KiB.
pub(crate) const MAX_MANIFEST_BYTES: u64 = 1024 * 1024;

impl FormatVersion {
    /// Same major, more fields than this version knows.
    pub(crate) fn is_newer_minor(self) -> bool {
        self.major == FORMAT.major && self.minor > FORMAT.minor
    }
}

impl Manifest {
    /// Reads `manifest.json` of a record's folder.
    ///
    /// # Errors
    /// [`RecordError::NotFound`] without one, [`RecordError::Format`] for another major version,
    /// [`RecordError::Malformed`] when it cannot be parsed or its hash does not belong to its plan.
    pub fn read(dir: &Path) -> Result<Self, RecordError> {
        let path = dir.join(MANIFEST_FILE);
        let Some(bytes) = journal::read_small(&path, MAX_MANIFEST_BYTES)? else {
            return Err(RecordError::NotFound { path: dir.to_path_buf() });
        };
        let malformed = |error: serde_json::Error| RecordError::malformed(&path, error.to_string());
        let FormatOnly { format } = serde_json::from_slice(&bytes).map_err(malformed)?;
        if format.major != FORMAT.major {
            return Err(RecordError::Format { path, found: format, known: FORMAT, appending: false });
        }
        let manifest: Self = journal::parse_known(&bytes, format, FIELDS).map_err(malformed)?;
        manifest.check_hash(&path)?;
        Ok(manifest)
    }

    pub(crate) fn check_hash(&self, path: &Path) -> Result<(), RecordError> {
        if self.plan_hash == plan_hash(&self.plan, &self.arm) {
            return Ok(());
        }
        Err(RecordError::malformed(path, "plan_hash is not the hash of plan and arm"))
    }

    /// The bytes of `manifest.json`.
    pub(crate) fn to_json(&self) -> Vec<u8> {
        let mut json =
            serde_json::to_vec_pretty(self).expect("strings, numbers and maps with string keys always serialise");
        json.push(b'\n');
        json
    }
}

/// All that is looked at before the version is known to be readable.
#[derive(Deserialize)]
struct FormatOnly {
    format: FormatVersion,
}

/// Hash over everything that has to be equal for a run to be resumed: 64 hex digits of BLAKE3.
pub fn plan_hash(plan: &BTreeMap<String, String>, arm: &Arm) -> String {
    let identity = serde_json::to_vec(&(plan, arm)).expect("strings and maps with string keys always serialise");
    blake3::hash(&identity).to_hex().to_string()
}

/// A field in which two manifests differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// `suite`, or a name under `plan.`, `arm.`, `model.`.
    pub field: String,
    /// What the one on disk (or the baseline) says; `None` when it lacks the field.
    pub recorded: Option<String>,
    /// What the other one says.
    pub asked: Option<String>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |value: &Option<String>| value.as_ref().map_or("nothing".into(), |text| format!("`{text}`"));
        write!(f, "{} is {} in the record and {} now", self.field, shown(&self.recorded), shown(&self.asked))
    }
}

/// Compares what identifies two runs, field by field in name order: suite, plan, arm and model.
///
/// Resume needs an empty answer. For a comparison of two arms leave out the fields that start with `arm.`.
pub fn diff(recorded: &Manifest, asked: &Manifest) -> Vec<Difference> {
    differences(&identity(recorded), &identity(asked))
}

/// Facts about the engine that must not change in the middle of a run: its answers would be of two kinds.
/// Unknown on either side is no difference.
pub(crate) fn engine_diff(recorded: &Resolved, asked: &Resolved) -> Vec<Difference> {
    let facts = |resolved: &Resolved| {
        [
            ("resolved.engine", resolved.engine.value.clone()),
            ("resolved.kv_cache_dtype", resolved.kv_cache_dtype.value.clone()),
            ("resolved.attention_backend", resolved.attention_backend.value.clone()),
            ("resolved.kernel", resolved.kernel.value.clone()),
            ("resolved.kv_scales", resolved.kv_scales.value.clone()),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_string(), value?)))
        .collect::<BTreeMap<_, _>>()
    };
    let mut found = differences(&facts(recorded), &facts(asked));
    found.retain(|difference| difference.recorded.is_some() && difference.asked.is_some());
    found
}

/// A record of answers that were asked for is never continued with copied ones, nor the other way round.
pub(crate) fn accepted_diff(recorded: &Manifest, asked: &Manifest) -> Option<Difference> {
    let hash = |manifest: &Manifest| manifest.accepted.as_ref().map(|accepted| accepted.hash.clone());
    let (recorded, asked) = (hash(recorded), hash(asked));
    (recorded != asked).then(|| Difference { field: "accepted baseline".into(), recorded, asked })
}

fn identity(manifest: &Manifest) -> BTreeMap<String, String> {
    let mut fields = BTreeMap::from([("suite".to_string(), manifest.suite.clone())]);
    fields.extend(manifest.plan.iter().map(|(name, value)| (format!("plan.{name}"), value.clone())));
    flatten("arm", &manifest.arm, &mut fields);
    flatten("model", &manifest.model, &mut fields);
    fields
}

fn flatten(prefix: &str, value: &impl Serialize, into: &mut BTreeMap<String, String>) {
    let value = serde_json::to_value(value).expect("plain structs of strings and numbers always serialise");
    for (name, value) in value.as_object().into_iter().flatten() {
        let text = match value {
            serde_json::Value::Null => continue,
            serde_json::Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        into.insert(format!("{prefix}.{name}"), text);
    }
}

pub(crate) fn differences(recorded: &BTreeMap<String, String>, asked: &BTreeMap<String, String>) -> Vec<Difference> {
    let names: BTreeSet<&String> = recorded.keys().chain(asked.keys()).collect();
    names
        .into_iter()
        .filter(|name| recorded.get(*name) != asked.get(*name))
        .map(|name| Difference {
            field: name.clone(),
            recorded: recorded.get(name).cloned(),
            asked: asked.get(name).cloned(),
        })
        .collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::setup::Evidence;

    pub(crate) fn manifest(planned_items: u64) -> Manifest {
        let plan = BTreeMap::from([("seed".to_string(), "7".to_string()), ("suite_hash".into(), "ab12".into())]);
        let arm = Arm::candidate("fp8_e4m3");
        Manifest {
            format: FORMAT,
            tool_version: "0.1.0".into(),
            suite: "quick".into(),
            plan_hash: plan_hash(&plan, &arm),
            plan,
            arm,
            model: ModelIdentity {
                name: "tiny".into(),
                weights: "w".into(),
                tokenizer: "t".into(),
                chat_template: "c".into(),
                rope: "default".into(),
                trained_context: 8192,
            },
            resolved: Resolved {
                engine: Evidence::known("kvgauge embedded 0.1.0".into(), "embedded engine"),
                kv_cache_dtype: Evidence::known("fp8_e4m3".into(), "embedded engine"),
                attention_backend: Evidence::unknown("not said"),
                kernel: Evidence::known("portable".into(), "embedded engine"),
                kv_bytes_per_token: Evidence::known(960.0, "embedded engine"),
                kv_cache_tokens: Evidence::unknown("not said"),
                kv_scales: Evidence::known("none (1.0)".into(), "embedded engine"),
                max_model_len: Evidence::known(8192, "model file"),
                ..Resolved::unknown("not said")
            },
            checks: Vec::new(),
            environment: BTreeMap::from([("cpu".to_string(), "test".to_string())]),
            planned_items,
            status: RunStatus::Started,
            accepted: None,
        }
    }

    #[test]
    fn the_known_fields_are_those_of_the_struct() {
        let accepted = AcceptedFrom { name: "n".into(), hash: "h".into(), accepted_at: "2026".into() };
        let value = serde_json::to_value(Manifest { accepted: Some(accepted), ..manifest(1) }).unwrap();
        let mut names: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
        let mut known = FIELDS.to_vec();
        names.sort_unstable();
        known.sort_unstable();
        assert_eq!(names, known);
    }

    #[test]
    fn the_hash_covers_plan_and_arm() {
        let first = manifest(1);
        let mut plan = first.plan.clone();
        plan.insert("seed".into(), "8".into());
        assert_ne!(plan_hash(&plan, &first.arm), first.plan_hash);
        assert_ne!(plan_hash(&first.plan, &Arm::control("fp8_e4m3")), first.plan_hash);
        assert_eq!(first.plan_hash.len(), 64);
    }

    #[test]
    fn differences_are_named_field_by_field() {
        let recorded = manifest(1);
        let mut asked = recorded.clone();
        asked.plan.insert("seed".into(), "8".into());
        asked.plan.insert("new".into(), "x".into());
        asked.arm.attention_backend = Some("FLASHINFER".into());
        asked.model.weights = "other".into();
        let found = diff(&recorded, &asked);
        let fields: Vec<&str> = found.iter().map(|difference| difference.field.as_str()).collect();
        assert_eq!(fields, ["arm.attention_backend", "model.weights", "plan.new", "plan.seed"]);
        assert_eq!(found[3].to_string(), "plan.seed is `7` in the record and `8` now");
        assert_eq!(found[0].recorded, None);
        assert!(diff(&recorded, &recorded).is_empty());
    }

    #[test]
    fn an_unknown_engine_fact_is_no_difference() {
        let recorded = manifest(1).resolved;
        let mut asked = recorded.clone();
        asked.attention_backend = Evidence::known("TRITON_ATTN".into(), "log");
        asked.kv_cache_tokens = Evidence::known(1000, "log");
        assert!(engine_diff(&recorded, &asked).is_empty());
        asked.kernel = Evidence::known("x86_64-avx512".into(), "embedded engine");
        assert_eq!(engine_diff(&recorded, &asked).len(), 1);
    }
}
