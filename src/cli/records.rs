//! From folders on the command line to records with their parts in a comparison.
//!
//! In a run folder `run.json` says which arms belong to it. An arm that was planned and is not there is an error: left out in
//! silence it would make a run pass that nobody has measured.

use std::fs;
use std::path::{Path, PathBuf};

use kvgauge::record::manifest::{Difference, Manifest};
use kvgauge::record::run::MAX_ARMS;
use kvgauge::record::{LOCK_FILE, MANIFEST_FILE, Record, RecordError, RunFile, SAMPLES_FILE};
use kvgauge::setup::{Arm, ArmRole};
use kvgauge::suite::GatePolicy;
use rayon::prelude::*;

use crate::failure::Failure;
use crate::output::note;

/// What is compared with what.
pub(crate) struct Records {
    pub(crate) baseline: Record,
    pub(crate) control: Option<Record>,
    pub(crate) candidates: Vec<Record>,
    /// The folder they are in, where one was named.
    pub(crate) run_dir: Option<PathBuf>,
    /// The gates stored with them, each with the run folder it is from.
    pub(crate) gates: Vec<(PathBuf, GatePolicy)>,
}

impl Records {
    /// A run folder, or the baseline's record followed by the others.
    pub(crate) fn load(paths: &[PathBuf]) -> Result<Self, Failure> {
        match paths {
            [dir] => match RunFile::read(dir)? {
                Some(RunFile { shard: Some(shard), .. }) => Err(Failure::ShardAlone { dir: dir.clone(), shard }),
                Some(run) => Self::of_plan(dir, run),
                None if dir.join(MANIFEST_FILE).is_file() => Self::of_folders(dir, &[]),
                None => Self::of_unplanned(dir),
            },
            [baseline, others @ ..] => Self::of_folders(baseline, others),
            [] => Err(Failure::NoBaseline { dir: PathBuf::new() }),
        }
    }

    /// The first folder is the baseline, whatever its record says.
    pub(crate) fn of_folders(baseline: &Path, others: &[PathBuf]) -> Result<Self, Failure> {
        let (record, read_others) = rayon::join(
            || read(baseline).map_err(Failure::BaselineRecord),
            || others.par_iter().map(|dir| read_beside(dir)).collect::<Vec<_>>(),
        );
        let record = record?;
        let mut gates: Vec<_> = gate_of_folder(baseline, &record)?.into_iter().collect();
        let read_others = read_others.into_iter().collect::<Result<Vec<_>, _>>()?;
        for (dir, other) in others.iter().zip(&read_others) {
            gates.extend(gate_of_folder(dir, other)?);
        }
        Self::with_parts(record, read_others, None, gates)
    }

    fn with_parts(
        baseline: Record,
        others: Vec<Record>,
        run_dir: Option<PathBuf>,
        gates: Vec<(PathBuf, GatePolicy)>,
    ) -> Result<Self, Failure> {
        let (mut control, mut candidates) = (None, Vec::new());
        for record in others {
            if record.manifest.arm.role == ArmRole::Control && control.is_none() {
                control = Some(record);
            } else {
                candidates.push(record);
            }
        }
        if candidates.is_empty() {
            return Err(Failure::NoCandidate { baseline: baseline.manifest.arm.name });
        }
        Ok(Self { baseline, control, candidates, run_dir, gates })
    }

    /// Every arm of the plan, and nothing besides.
    fn of_plan(dir: &Path, run: RunFile) -> Result<Self, Failure> {
        let (baselines, others): (Vec<&Arm>, Vec<&Arm>) =
            run.arms.iter().partition(|arm| arm.role == ArmRole::Baseline);
        let baseline = match baselines.as_slice() {
            [] => return Err(Failure::NoBaseline { dir: dir.into() }),
            [baseline] => baseline,
            _ => {
                let names = baselines.iter().map(|arm| arm.name.clone()).collect();
                return Err(Failure::ManyBaselines { dir: dir.into(), names });
            }
        };
        let (baseline, read_others) = rayon::join(
            || read_planned(dir, &run, baseline, read).map_err(Failure::BaselineRecord),
            || others.par_iter().map(|arm| read_planned(dir, &run, arm, read_beside)).collect::<Vec<_>>(),
        );
        let baseline = baseline?;
        let mut records = Vec::new();
        for (arm, record) in others.into_iter().zip(read_others) {
            let missing = |source| Failure::ArmMissing { arm: arm.name.clone(), dir: dir.into(), source };
            let record = record.map_err(missing)?;
            // An unfinished candidate is ruled INVALID; nothing of a verdict would show an unfinished control.
            if (record.samples.len() as u64) < record.manifest.planned_items {
                if arm.role == ArmRole::Control {
                    return Err(Failure::ArmUnfinished { arm: arm.name.clone(), dir: dir.into() });
                }
                note(&format!("warning: arm `{}` is not finished: the same `kvgauge check` goes on with it", arm.name));
            }
            records.push(record);
        }
        refuse_strangers(dir, &run)?;
        Self::with_parts(baseline, records, Some(dir.into()), vec![(dir.into(), run.gate)])
    }

    /// A run folder without a plan: whatever is in it, as long as it is whole.
    fn of_unplanned(dir: &Path) -> Result<Self, Failure> {
        let mut baselines = Vec::new();
        let mut others = Vec::new();
        let mut broken = None;
        for folder in record_folders(dir)? {
            match Manifest::read(&folder) {
                Ok(manifest) if manifest.arm.role == ArmRole::Baseline => baselines.push((folder, manifest.arm.name)),
                Ok(_) => others.push(folder),
                Err(source) => broken = Some((folder, source)),
            }
        }
        match (baselines.as_slice(), broken) {
            // The broken one may be the baseline: nothing else is.
            ([], Some((_, source))) => Err(Failure::BaselineRecord(source)),
            ([], None) => Err(Failure::NoBaseline { dir: dir.into() }),
            (_, Some((folder, source))) => Err(Failure::ArmMissing { arm: name_of(&folder), dir: dir.into(), source }),
            ([(baseline, _)], None) => Ok(Self { run_dir: Some(dir.into()), ..Self::of_folders(baseline, &others)? }),
            (_, None) => {
                let names = baselines.into_iter().map(|(_, name)| name).collect();
                Err(Failure::ManyBaselines { dir: dir.into(), names })
            }
        }
    }

    /// Baseline, control, candidates.
    pub(crate) fn all(&self) -> Vec<&Record> {
        [&self.baseline].into_iter().chain(&self.control).chain(&self.candidates).collect()
    }
}

/// Subfolders with a record or a part of one, in name order.
fn record_folders(dir: &Path) -> Result<Vec<PathBuf>, Failure> {
    let unreadable = |source| Failure::RunFolder { dir: dir.into(), source };
    let mut folders: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(dir).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        // `exists` follows links: a manifest that is a dangling one is none, but the journal beside it still shows the record.
        if [MANIFEST_FILE, SAMPLES_FILE, LOCK_FILE].iter().any(|name| path.join(name).exists()) {
            folders.push(path);
        }
        if folders.len() > MAX_ARMS {
            return Err(Failure::ManyFolders { dir: dir.into(), limit: MAX_ARMS });
        }
    }
    folders.sort();
    Ok(folders)
}

fn name_of(folder: &Path) -> String {
    folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Records in the run folder that its plan does not name.
fn refuse_strangers(dir: &Path, run: &RunFile) -> Result<(), Failure> {
    for folder in record_folders(dir)? {
        let name = name_of(&folder);
        if run.arms.iter().all(|arm| arm.name != name) {
            return Err(match Manifest::read(&folder) {
                Ok(_) => Failure::Stranger { dir: dir.into(), name },
                Err(source) => Failure::ArmMissing { arm: name, dir: dir.into(), source },
            });
        }
    }
    Ok(())
}

/// The record of a planned arm, which has to be that arm of that suite.
pub(crate) fn read_planned(
    dir: &Path,
    run: &RunFile,
    arm: &Arm,
    read: fn(&Path) -> Result<Record, RecordError>,
) -> Result<Record, RecordError> {
    let folder = dir.join(&arm.name);
    let record = read(&folder)?;
    let manifest = &record.manifest;
    let mut differences = Vec::new();
    let mut compare = |field: &str, recorded: String, asked: String| {
        if recorded != asked {
            differences.push(Difference { field: field.into(), recorded: Some(recorded), asked: Some(asked) });
        }
    };
    let described = |arm: &Arm| format!("{} ({:?}, {})", arm.name, arm.role, arm.kv_cache_dtype);
    compare("arm", described(&manifest.arm), described(arm));
    compare("suite", fingerprint(manifest).unwrap_or_default().into(), run.suite_fingerprint.clone());
    if differences.is_empty() && manifest.arm == *arm {
        return Ok(record);
    }
    Err(RecordError::PlanDiffers { path: folder, differences })
}

fn fingerprint(manifest: &Manifest) -> Option<&str> {
    manifest.plan.get("suite").map(String::as_str)
}

/// The gate of the run folder around a record that was named by itself, where that folder's plan names it, too.
fn gate_of_folder(folder: &Path, record: &Record) -> Result<Option<(PathBuf, GatePolicy)>, Failure> {
    let Some(run_dir) = fs::canonicalize(folder).ok().and_then(|folder| folder.parent().map(PathBuf::from)) else {
        return Ok(None);
    };
    let Some(run) = RunFile::read(&run_dir)? else { return Ok(None) };
    let is_of_plan =
        run.arms.contains(&record.manifest.arm) && fingerprint(&record.manifest) == Some(&run.suite_fingerprint);
    Ok(is_of_plan.then_some((run_dir, run.gate)))
}

/// A record that a baseline stands beside. The text around a needle is shown as the baseline's record has it, so the copy in
/// this one, a quarter of its size, is not kept.
fn read_beside(dir: &Path) -> Result<Record, RecordError> {
    let mut record = read(dir)?;
    for sample in &mut record.samples {
        sample.excerpt = String::new();
    }
    Ok(record)
}

pub(crate) fn read(dir: &Path) -> Result<Record, RecordError> {
    let (record, notes) = Record::read_noting(dir)?;
    for text in notes {
        note(&format!("warning: {text}"));
    }
    Ok(record)
}
