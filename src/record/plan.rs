//! `plan.json` in the run folder of a shard: the items of the whole plan.
//!
//! Who puts shards together has neither the suite nor the tokenizer that the plan came from, and has to know which items are
//! missing. The file proves itself: the hash over its items is the one in the manifest of every arm.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::record::manifest::{Difference, FormatVersion, ITEMS_FIELD};
use crate::record::storage::{self, Disk, Storage as _};
use crate::record::{PLAN_FILE, RecordError, journal, run};
use crate::suite::Plan;

/// Version of `plan.json`. Readers refuse every other one. Changelog: 1.0 first version.
const PLAN_FORMAT: FormatVersion = FormatVersion { major: 1, minor: 0 };

/// Largest plan: an item takes some 150 bytes, and a run that is worth several machines has tens of thousands.
const MAX_PLAN_BYTES: u64 = 64 * 1024 * 1024;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanFile {
    format: FormatVersion,
    plan: Plan,
}

/// All that is looked at before the version is known to be readable.
#[derive(Deserialize)]
struct FormatOnly {
    format: FormatVersion,
}

/// Writes the whole plan into the run folder of a shard; the same plan again leaves the file alone.
///
/// # Errors
/// [`RecordError::PlanDiffers`] when there is another one, [`RecordError::Malformed`] when it is too large, those of [`read_plan`],
/// [`RecordError::Locked`] and [`RecordError::Storage`].
pub fn write_plan(dir: &Path, plan: &Plan) -> Result<(), RecordError> {
    let path = dir.join(PLAN_FILE);
    let storage = Disk;
    storage.create_dir_all(dir).map_err(RecordError::storage(dir))?;
    let _lock = run::lock(&storage, dir)?;
    if path.exists() {
        let recorded = read_plan(dir)?;
        if recorded == *plan {
            return Ok(());
        }
        let (field, [recorded, asked]) = (ITEMS_FIELD.into(), [&recorded, plan].map(|it| Some(it.items_hash())));
        let differences = vec![Difference { field, recorded, asked }];
        return Err(RecordError::PlanDiffers { path: dir.to_path_buf(), differences });
    }
    let file = PlanFile { format: PLAN_FORMAT, plan: plan.clone() };
    let mut json = serde_json::to_vec(&file).expect("strings and numbers always serialise");
    json.push(b'\n');
    if json.len() as u64 > MAX_PLAN_BYTES {
        return Err(RecordError::malformed(&path, format!("the plan takes more than {MAX_PLAN_BYTES} bytes")));
    }
    storage::replace_file(&storage, dir, PLAN_FILE, &json)
}

/// Reads the whole plan from the run folder of a shard.
///
/// # Errors
/// [`RecordError::Malformed`] when it is not there or cannot be parsed, [`RecordError::Format`] for another version.
pub fn read_plan(dir: &Path) -> Result<Plan, RecordError> {
    let path = dir.join(PLAN_FILE);
    let bytes = journal::read_small(&path, MAX_PLAN_BYTES)?;
    let bytes =
        bytes.ok_or_else(|| RecordError::malformed(&path, "the run folder of a shard needs it, and it is gone"))?;
    let malformed = |error: serde_json::Error| RecordError::malformed(&path, error.to_string());
    let FormatOnly { format } = serde_json::from_slice(&bytes).map_err(malformed)?;
    if format != PLAN_FORMAT {
        return Err(RecordError::Format { path, found: format, known: PLAN_FORMAT, appending: false });
    }
    let file: PlanFile = serde_json::from_slice(&bytes).map_err(malformed)?;
    Ok(file.plan)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::Suite;

    #[test]
    fn a_plan_comes_back_and_no_other_takes_its_place() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(read_plan(dir.path()), Err(RecordError::Malformed { .. })));
        let plan = Suite::builtin("smoke").unwrap().plan();
        write_plan(dir.path(), &plan).unwrap();
        write_plan(dir.path(), &plan).unwrap();
        assert_eq!(read_plan(dir.path()).unwrap(), plan);
        let other = Suite::builtin("quick").unwrap().plan();
        let error = write_plan(dir.path(), &other).unwrap_err();
        assert!(matches!(error, RecordError::PlanDiffers { .. }) && error.to_string().contains("items is"), "{error}");
        assert_eq!(read_plan(dir.path()).unwrap(), plan);
    }

    #[test]
    fn hostile_and_newer_plans_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(PLAN_FILE);
        let group = r#"{"haystack_id":"h","bin":512,"items":[],"extra":1}"#;
        for text in [
            "",
            "{}",
            r#"{"format":{"major":1,"minor":0},"plan":{"groups":[]},"extra":1}"#,
            &format!(r#"{{"format":{{"major":1,"minor":0}},"plan":{{"groups":[{group}]}}}}"#),
        ] {
            std::fs::write(&path, text).unwrap();
            assert!(matches!(read_plan(dir.path()), Err(RecordError::Malformed { .. })), "{text}");
        }
        std::fs::write(&path, r#"{"format":{"major":1,"minor":1},"plan":{"groups":[]}}"#).unwrap();
        assert!(matches!(read_plan(dir.path()), Err(RecordError::Format { .. })));
    }
}
