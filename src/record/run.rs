//! `run.json`: what a run folder was meant to hold and how it is judged, written before the first arm is asked.
//!
//! The records of the arms cannot say this themselves: an arm that was never started leaves nothing behind, and the gate is
//! no part of what an answer depends on. Without this file a missing arm would look like one that nobody wanted, and a
//! strict gate would be forgotten.

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::record::journal;
use crate::record::manifest::{Difference, FormatVersion, SHARD_FIELD};
use crate::record::storage::{self, Disk, Lock, Storage};
use crate::record::{CONFIRM_DIR, LOCK_FILE, RUN_FILE, RecordError};
use crate::setup::Arm;
use crate::suite::{GatePolicy, Shard, Suite};

/// Version of `run.json`. Readers accept an older one and refuse a newer one, minor or major: it may hold a rule of the gate
/// that this version would leave out.
///
/// Changelog: 1.0 first version; 1.1 `settings` of an arm; 1.2 `confirm`, the relative guard and, for single cells,
/// tiers and all thresholds of the gate; 1.3 `shard`.
pub const RUN_FORMAT: FormatVersion = FormatVersion { major: 1, minor: 3 };

/// Most arms of one run: more than a report can show side by side.
pub const MAX_ARMS: usize = 64;

/// Longest name of an arm: a folder name with room for suffixes.
const MAX_ARM_NAME_BYTES: usize = 128;

/// Largest `run.json` read: 64 arms and a page of exceptions take some 50 KiB.
const MAX_RUN_BYTES: u64 = 1024 * 1024;

/// Another process holds the lock for one read and one write of a small file: this often …
const LOCK_TRIES: u32 = 250;
/// … in this distance is five seconds.
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// The plan of a run folder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunFile {
    /// Format of this file.
    pub format: FormatVersion,
    /// Version of kvgauge that wrote it last.
    pub tool_version: String,
    /// Name of the suite.
    pub suite: String,
    /// [`Suite::fingerprint`]: equal to `plan.suite` in every arm's manifest.
    pub suite_fingerprint: String,
    /// Every arm asked for so far, in the order of asking; each has (or will have) the subfolder of its name.
    pub arms: Vec<Arm>,
    /// The gate in effect: the suite's with the configuration's values on top.
    pub gate: GatePolicy,
    /// The part of the plan that is asked in this folder; `None` for all of it. The items of the whole are in
    /// [`crate::record::PLAN_FILE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<Shard>,
}

/// Which gate stands after [`RunFile::plan`] when the file and the asking one differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateChoice {
    /// The one asked for: who judges by it stores it.
    Asked,
    /// The one in the file: adding an arm is no reason to judge the others differently.
    Recorded,
}

/// What [`RunFile::plan`] did.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// The file as it stands now.
    pub run: RunFile,
    /// The gate it had before.
    pub gate_before: Option<GatePolicy>,
}

impl RunFile {
    /// The plan of a first start: `suite` with its gate in effect, asked of `arms`.
    pub fn new(suite: &Suite, arms: &[Arm]) -> Self {
        Self {
            format: RUN_FORMAT,
            tool_version: env!("CARGO_PKG_VERSION").into(),
            suite: suite.name.clone(),
            suite_fingerprint: suite.fingerprint(),
            arms: arms.to_vec(),
            gate: suite.gate.clone(),
            shard: None,
        }
    }

    /// The same of which only `shard` is asked here.
    #[must_use]
    pub fn of_shard(self, shard: Option<Shard>) -> Self {
        Self { shard, ..self }
    }

    /// Reads `run.json` of a run folder; `None` where there is none.
    ///
    /// # Errors
    /// [`RecordError::Format`] for a newer version, [`RecordError::Malformed`] when it cannot be parsed or names arms that
    /// are no folder names.
    pub fn read(dir: &Path) -> Result<Option<Self>, RecordError> {
        let path = dir.join(RUN_FILE);
        let Some(bytes) = journal::read_small(&path, MAX_RUN_BYTES)? else { return Ok(None) };
        let malformed = |error: serde_json::Error| RecordError::malformed(&path, error.to_string());
        let FormatOnly { format } = serde_json::from_slice(&bytes).map_err(malformed)?;
        if format.major != RUN_FORMAT.major || format.minor > RUN_FORMAT.minor {
            return Err(RecordError::Format { path, found: format, known: RUN_FORMAT, appending: false });
        }
        let run: Self = serde_json::from_slice(&bytes).map_err(malformed)?;
        check_arms(&run.arms).map_err(|reason| RecordError::malformed(&path, reason))?;
        Ok(Some(run))
    }

    /// Makes `run.json` of `dir` hold what is asked for besides what it holds, in one step; the same question again leaves
    /// the file alone.
    ///
    /// # Errors
    /// [`RecordError::PlanDiffers`] for another suite, or an arm of the same name that is another one; [`RecordError::Locked`]
    /// when another process keeps the file for seconds; those of [`RunFile::read`]; [`RecordError::Storage`].
    pub fn plan(dir: &Path, asked: &Self, choice: GateChoice) -> Result<Planned, RecordError> {
        Self::plan_on(&Disk, dir, asked, choice)
    }

    fn plan_on(storage: &dyn Storage, dir: &Path, asked: &Self, choice: GateChoice) -> Result<Planned, RecordError> {
        storage.create_dir_all(dir).map_err(RecordError::storage(dir))?;
        let _lock = lock(storage, dir)?;
        let recorded = Self::read(dir)?;
        let mut run = match &recorded {
            Some(recorded) => recorded.joined(dir, asked, choice)?,
            None => asked.clone(),
        };
        check_arms(&run.arms).map_err(|reason| RecordError::malformed(&dir.join(RUN_FILE), reason))?;
        if recorded.as_ref() != Some(&run) {
            run.tool_version.clone_from(&asked.tool_version);
            run.format = RUN_FORMAT;
            run.replace(storage, dir)?;
        }
        Ok(Planned { run, gate_before: recorded.map(|recorded| recorded.gate) })
    }

    /// The recorded plan with the arms asked for.
    fn joined(&self, dir: &Path, asked: &Self, choice: GateChoice) -> Result<Self, RecordError> {
        let differing = |field: &str, recorded: &str, asked: &str| Difference {
            field: field.into(),
            recorded: Some(recorded.into()),
            asked: Some(asked.into()),
        };
        let mut differences = Vec::new();
        if self.suite != asked.suite {
            differences.push(differing("suite", &self.suite, &asked.suite));
        }
        if self.suite_fingerprint != asked.suite_fingerprint {
            differences.push(differing("suite_fingerprint", &self.suite_fingerprint, &asked.suite_fingerprint));
        }
        if self.shard != asked.shard {
            let shown = |shard: Option<Shard>| shard.map(|shard| shard.to_string());
            let (recorded, asked) = (shown(self.shard), shown(asked.shard));
            differences.push(Difference { field: SHARD_FIELD.into(), recorded, asked });
        }
        let mut joined = self.clone();
        for arm in &asked.arms {
            match self.arms.iter().find(|known| known.name == arm.name) {
                None => joined.arms.push(arm.clone()),
                Some(known) if known == arm => {}
                Some(known) => {
                    let field = format!("arm `{}`", arm.name);
                    differences.push(differing(&field, &described(known), &described(arm)));
                }
            }
        }
        if choice == GateChoice::Asked {
            joined.gate.clone_from(&asked.gate);
        }
        if differences.is_empty() {
            return Ok(joined);
        }
        Err(RecordError::PlanDiffers { path: dir.to_path_buf(), differences })
    }

    fn replace(&self, storage: &dyn Storage, dir: &Path) -> Result<(), RecordError> {
        let mut json = serde_json::to_vec_pretty(self).expect("strings and numbers always serialise");
        json.push(b'\n');
        storage::replace_file(storage, dir, RUN_FILE, &json)
    }
}

/// All that is looked at before the version is known to be readable.
#[derive(Deserialize)]
struct FormatOnly {
    format: FormatVersion,
}

fn described(arm: &Arm) -> String {
    let role = format!("{:?}", arm.role).to_lowercase();
    let backend = arm.attention_backend.as_ref().map_or(String::new(), |backend| format!(" on {backend}"));
    format!("{role} {}{backend}", arm.kv_cache_dtype)
}

/// Two starts in one folder may plan at the same moment, and none may lose the other's arm.
pub(super) fn lock(storage: &dyn Storage, dir: &Path) -> Result<Lock, RecordError> {
    let path = dir.join(LOCK_FILE);
    for _ in 0..LOCK_TRIES {
        if let Some(lock) = storage.lock(&path).map_err(RecordError::storage(&path))? {
            return Ok(lock);
        }
        std::thread::sleep(LOCK_PAUSE);
    }
    Err(RecordError::Locked { path: dir.to_path_buf() })
}

/// Names become paths, so none may lead out of the run folder, and two arms may not share a folder.
fn check_arms(arms: &[Arm]) -> Result<(), String> {
    if arms.len() > MAX_ARMS {
        return Err(format!("{} arms, at most {MAX_ARMS} are read", arms.len()));
    }
    for (index, arm) in arms.iter().enumerate() {
        let name = &arm.name;
        let is_dots = name.chars().all(|c| c == '.');
        let is_illegal = |c: char| c.is_control() || "/\\:".contains(c);
        if is_dots || name.len() > MAX_ARM_NAME_BYTES || name == CONFIRM_DIR || name.chars().any(is_illegal) {
            return Err(format!("{name:?} is no name of an arm"));
        }
        if arms[..index].iter().any(|other| other.name == *name) {
            return Err(format!("arm `{name}` is planned twice"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hint::Hint;
    use crate::record::fault_injection::fails_at_every_operation;

    fn asked(dtypes: &[&str]) -> RunFile {
        let mut arms = vec![Arm::baseline("bfloat16")];
        arms.extend(dtypes.iter().map(|dtype| Arm::candidate(dtype)));
        RunFile::new(&Suite::builtin("smoke").unwrap(), &arms)
    }

    #[test]
    fn arms_add_up_and_the_same_question_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(RunFile::read(dir.path()).unwrap(), None);
        RunFile::plan(dir.path(), &asked(&["fp8_e4m3"]), GateChoice::Asked).unwrap();
        let planned = RunFile::plan(dir.path(), &asked(&["fp8_e5m2"]), GateChoice::Recorded).unwrap();
        let names: Vec<&str> = planned.run.arms.iter().map(|arm| arm.name.as_str()).collect();
        assert_eq!(names, ["bfloat16", "fp8_e4m3", "fp8_e5m2"]);
        assert_eq!(RunFile::read(dir.path()).unwrap(), Some(planned.run));
        let path = dir.path().join(RUN_FILE);
        let before = (std::fs::read(&path).unwrap(), std::fs::metadata(&path).unwrap().modified().unwrap());
        RunFile::plan(dir.path(), &asked(&["fp8_e4m3"]), GateChoice::Asked).unwrap();
        assert_eq!((std::fs::read(&path).unwrap(), std::fs::metadata(&path).unwrap().modified().unwrap()), before);
    }

    #[test]
    fn who_adds_an_arm_keeps_the_gate_and_who_judges_sets_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut strict = asked(&[]);
        strict.gate.margin = 0.01;
        RunFile::plan(dir.path(), &strict, GateChoice::Recorded).unwrap();
        let kept = RunFile::plan(dir.path(), &asked(&["fp8_e4m3"]), GateChoice::Recorded).unwrap();
        assert_eq!((kept.run.gate.margin, kept.run.arms.len()), (0.01, 2));
        let set = RunFile::plan(dir.path(), &asked(&[]), GateChoice::Asked).unwrap();
        assert_eq!(set.gate_before.unwrap().margin, 0.01);
        assert_eq!(set.run.gate, asked(&[]).gate);
    }

    #[test]
    fn another_suite_and_another_arm_of_the_name_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        RunFile::plan(dir.path(), &asked(&["fp8_e4m3"]), GateChoice::Asked).unwrap();
        let before = std::fs::read(dir.path().join(RUN_FILE)).unwrap();
        let mut other = asked(&["fp8_e5m2"]);
        other.suite_fingerprint = "another".into();
        other.arms[0] = Arm { name: "bfloat16".into(), ..Arm::candidate("bfloat16") };
        let error = RunFile::plan(dir.path(), &other, GateChoice::Asked).unwrap_err();
        let RecordError::PlanDiffers { differences, .. } = &error else { panic!("{error}") };
        assert_eq!(differences.len(), 2, "{error}");
        assert!(
            error.to_string().contains("`baseline bfloat16` in the record and `candidate bfloat16` now"),
            "{error}"
        );
        assert_eq!(std::fs::read(dir.path().join(RUN_FILE)).unwrap(), before);
    }

    #[test]
    fn hostile_and_newer_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let read = |change: &dyn Fn(&mut serde_json::Value)| {
            let mut value = serde_json::to_value(asked(&["fp8_e4m3"])).unwrap();
            change(&mut value);
            std::fs::write(dir.path().join(RUN_FILE), value.to_string()).unwrap();
            RunFile::read(dir.path())
        };
        assert!(read(&|_| ()).is_ok());
        for name in ["", ".", "..", "confirm", "../x", "a/b", "a\\b", "a\nb", "c:x", "bfloat16", &"x".repeat(200)] {
            let refused = read(&|value| value["arms"][1]["name"] = name.into());
            assert!(matches!(refused, Err(RecordError::Malformed { .. })), "{name:?}");
        }
        for (field, newer) in [("minor", RUN_FORMAT.minor + 1), ("major", 2), ("major", 0)] {
            let error = read(&|value| value["format"][field] = newer.into()).unwrap_err();
            assert!(matches!(error, RecordError::Format { known: RUN_FORMAT, .. }) && !error.hints().is_empty());
        }
        let unknown: [&dyn Fn(&mut serde_json::Value); 3] =
            [&|value| value["extra"] = 1.into(), &|value| value["gate"]["extra"] = 1.into(), &|value| {
                drop(value["gate"].as_object_mut().unwrap().remove("margin"))
            }];
        for change in unknown {
            assert!(matches!(read(change), Err(RecordError::Malformed { .. })));
        }
    }

    #[test]
    fn a_failing_disk_leaves_the_old_plan_or_the_new_one() {
        let (old, new) = (asked(&["fp8_e4m3"]), asked(&["fp8_e5m2"]));
        fails_at_every_operation(6, |storage, dir| {
            RunFile::plan(dir, &old, GateChoice::Asked).unwrap();
            let result = RunFile::plan_on(storage, dir, &new, GateChoice::Asked).map(drop);
            let arms = RunFile::read(dir).unwrap().unwrap().arms.len();
            assert!(arms == 3 || (arms == 2 && result.is_err()), "{arms} arms, {result:?}");
            result
        });
    }
}
