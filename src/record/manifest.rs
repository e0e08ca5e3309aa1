//! `manifest.json`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::setup::{Arm, ModelIdentity, Resolved};

/// Version of the record's format. Readers refuse another major, accept an older minor, and read but never append to a newer one.
///
/// Changelog: 1.0 first version.
pub const FORMAT: FormatVersion = FormatVersion { major: 1, minor: 0 };

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
    /// Machine and build, shown and never compared: CPU, threads, operating system.
    pub environment: BTreeMap<String, String>,
    /// Items of the plan.
    pub planned_items: u64,
    /// Where the run stands.
    pub status: RunStatus,
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
