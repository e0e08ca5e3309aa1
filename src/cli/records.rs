//! From folders on the command line to records with their parts in a comparison.

use std::fs;
use std::path::{Path, PathBuf};

use kvgauge::record::{MANIFEST_FILE, Record, RecordError};
use kvgauge::setup::ArmRole;

use crate::failure::Failure;
use crate::output::note;

/// Subfolders looked at in a run folder: more arms than a report can show side by side.
const MAX_SUBFOLDERS: usize = 64;

/// What is compared with what.
pub(crate) struct Records {
    pub(crate) baseline: Record,
    pub(crate) control: Option<Record>,
    pub(crate) candidates: Vec<Record>,
    /// The folder they are in, where one was named.
    pub(crate) run_dir: Option<PathBuf>,
}

impl Records {
    /// A run folder, or the baseline's record followed by the others.
    pub(crate) fn load(paths: &[PathBuf]) -> Result<Self, Failure> {
        match paths {
            [dir] if !dir.join(MANIFEST_FILE).is_file() => Self::of_run_folder(dir),
            [baseline, others @ ..] => Self::of_folders(baseline, others),
            [] => Err(Failure::NoBaseline { dir: PathBuf::new() }),
        }
    }

    /// The first folder is the baseline, whatever its record says.
    pub(crate) fn of_folders(baseline: &Path, others: &[PathBuf]) -> Result<Self, Failure> {
        let baseline = read(baseline).map_err(Failure::BaselineRecord)?;
        let (mut control, mut candidates) = (None, Vec::new());
        for dir in others {
            let record = read(dir)?;
            if record.manifest.arm.role == ArmRole::Control && control.is_none() {
                control = Some(record);
            } else {
                candidates.push(record);
            }
        }
        if candidates.is_empty() {
            return Err(Failure::NoCandidate { baseline: baseline.manifest.arm.name });
        }
        Ok(Self { baseline, control, candidates, run_dir: None })
    }

    fn of_run_folder(dir: &Path) -> Result<Self, Failure> {
        let unreadable = |source| Failure::RunFolder { dir: dir.into(), source };
        let mut folders: Vec<PathBuf> = Vec::new();
        for entry in fs::read_dir(dir).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            if path.join(MANIFEST_FILE).is_file() {
                folders.push(path);
            }
            if folders.len() > MAX_SUBFOLDERS {
                return Err(Failure::ManyFolders { dir: dir.into(), limit: MAX_SUBFOLDERS });
            }
        }
        folders.sort();
        let mut baselines = Vec::new();
        let mut others = Vec::new();
        for folder in folders {
            let manifest = kvgauge::record::manifest::Manifest::read(&folder)?;
            let place = if manifest.arm.role == ArmRole::Baseline { &mut baselines } else { &mut others };
            place.push((folder, manifest.arm.name));
        }
        let others: Vec<PathBuf> = others.into_iter().map(|(folder, _)| folder).collect();
        match baselines.as_slice() {
            [] => Err(Failure::NoBaseline { dir: dir.into() }),
            [(baseline, _)] => Ok(Self { run_dir: Some(dir.into()), ..Self::of_folders(baseline, &others)? }),
            _ => {
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

fn read(dir: &Path) -> Result<Record, RecordError> {
    let (record, notes) = Record::read_noting(dir)?;
    for text in notes {
        note(&format!("warning: {text}"));
    }
    Ok(record)
}
