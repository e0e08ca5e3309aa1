//! The shards of a run put together: one ordinary run folder, as if one machine had asked everything.
//!
//! Nothing is believed because of a folder's name. Every shard says in `run.json` which one it is, all say which items the whole has,
//! and the manifest of every arm holds the hash of them. So what is missing, twice or of another run is known by name.

mod agree;
mod arm;
mod error;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::record::manifest::Manifest;
use crate::record::run::GateChoice;
use crate::record::storage::{Disk, Storage as _};
use crate::record::{MANIFEST_FILE, RecordError, RunFile, SAMPLES_FILE, read_plan};
use crate::suite::{Plan, Shard};

pub use error::MergeError;

/// A merged run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merged {
    /// Name of the suite.
    pub suite: String,
    /// The shards that are in it, in order.
    pub shards: Vec<Shard>,
    /// Its arms, in the order of the plan.
    pub arms: Vec<MergedArm>,
    /// What was noted on the way, one line each.
    pub notes: Vec<String>,
}

/// An arm of a merged run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergedArm {
    /// Its name.
    pub name: String,
    /// Items of the plan; `None` where no shard has a record of it.
    pub planned: Option<usize>,
    /// Items with a record.
    pub done: usize,
}

/// The run folder of a shard.
struct ShardFolder {
    dir: PathBuf,
    shard: Shard,
    run: RunFile,
}

/// Writes the run whose shards are in `dirs` to `out`, which must not exist or be empty. It is there as a whole or not at all.
///
/// With `partial` shards, arms and items may be missing. They stay open in the merged run: the gate counts it as unfinished, and a
/// start in its folder goes on with it.
///
/// # Errors
/// [`MergeError`] for shards that are not of one run, for what is missing, twice or in the wrong place, and for damaged records.
pub fn merge(out: &Path, dirs: &[PathBuf], partial: bool) -> Result<Merged, MergeError> {
    refuse_existing(out)?;
    let (folders, plan) = open(dirs)?;
    let missing = missing_shards(&folders);
    if !missing.is_empty() && !partial {
        return Err(MergeError::ShardsMissing { of: folders[0].shard.of(), shards: missing });
    }
    let run = folders[0].run.clone().of_shard(None);
    let parent = match out.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    Disk.create_dir_all(parent).map_err(RecordError::storage(parent))?;
    // The temporary folder is private and goes away with an error; the run inside it has the rights of any other run folder.
    let temporary = tempfile::Builder::new().prefix(".kvgauge-merge-").tempdir_in(parent);
    let temporary = temporary.map_err(RecordError::storage(parent))?;
    let new = temporary.path().join("run");
    let mut merged = Merged {
        suite: run.suite.clone(),
        shards: folders.iter().map(|folder| folder.shard).collect(),
        arms: Vec::new(),
        notes: Vec::new(),
    };
    RunFile::plan(&new, &run, GateChoice::Asked)?;
    for planned in &run.arms {
        let arm = arm::read(&folders, &plan, planned, partial, &mut merged.notes)?;
        merged.arms.push(MergedArm {
            name: planned.name.clone(),
            planned: arm.as_ref().map(|arm| arm.plan.item_count()),
            done: arm.as_ref().map_or(0, |arm| arm.samples.len()),
        });
        if let Some(arm) = arm {
            arm.write(&new.join(&planned.name))?;
        }
    }
    publish(&new, out, parent)?;
    Ok(merged)
}

fn refuse_existing(out: &Path) -> Result<(), MergeError> {
    let is_free = match fs::read_dir(out) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    };
    if is_free { Ok(()) } else { Err(MergeError::OutExists { path: out.into() }) }
}

/// Gives the finished folder its name.
fn publish(new: &Path, out: &Path, parent: &Path) -> Result<(), MergeError> {
    // Fails where something was put there in the meantime, which stays.
    if fs::remove_dir(out).is_err_and(|error| error.kind() != io::ErrorKind::NotFound) {
        return Err(MergeError::OutExists { path: out.into() });
    }
    Disk.sync_dir(new).map_err(RecordError::storage(new))?;
    Disk.rename(new, out).map_err(RecordError::storage(out))?;
    Ok(Disk.sync_dir(parent).map_err(RecordError::storage(parent))?)
}

/// The folders in the order of their shards, which are of one run and each there once, and the plan of the whole.
fn open(dirs: &[PathBuf]) -> Result<(Vec<ShardFolder>, Plan), MergeError> {
    let mut folders: Vec<ShardFolder> = Vec::new();
    let mut whole: Option<Plan> = None;
    for dir in dirs {
        let folder = ShardFolder::open(dir)?;
        if let Some(first) = folders.first() {
            first.refuse_other_run(&folder)?;
        }
        if let Some(twin) = folders.iter().find(|known| known.shard == folder.shard) {
            let (first, second) = (twin.dir.clone(), dir.clone());
            return Err(MergeError::Twice { shard: folder.shard, first, second });
        }
        let plan = read_plan(dir)?;
        match &whole {
            Some(known) if *known != plan => {
                let reason = "its plan.json is not that of the other shards";
                return Err(MergeError::NotAShard { dir: dir.clone(), reason });
            }
            _ => whole = Some(plan),
        }
        folders.push(folder);
    }
    folders.sort_by_key(|folder| folder.shard);
    Ok((folders, whole.ok_or(MergeError::Nothing)?))
}

fn missing_shards(folders: &[ShardFolder]) -> Vec<Shard> {
    let of = folders.first().map_or(0, |folder| folder.shard.of());
    let all = (1..=of).filter_map(|number| Shard::new(number, of).ok());
    all.filter(|shard| folders.iter().all(|folder| folder.shard != *shard)).collect()
}

impl ShardFolder {
    fn open(dir: &Path) -> Result<Self, MergeError> {
        let not_a_shard = |reason| MergeError::NotAShard { dir: dir.into(), reason };
        let run = RunFile::read(dir)?.ok_or_else(|| not_a_shard("it holds no run.json"))?;
        let shard = run.shard.ok_or_else(|| not_a_shard("its run.json is of a whole run"))?;
        let folder = Self { dir: dir.into(), shard, run };
        folder.refuse_strangers()?;
        Ok(folder)
    }

    /// A fingerprint says that something differs and not what, so the records of the first arm are looked at, too.
    fn refuse_other_run(&self, other: &Self) -> Result<(), MergeError> {
        let mut differences = agree::run_differences(&self.run, &other.run);
        if differences.is_empty() {
            return Ok(());
        }
        if let (Some(ours), Some(theirs)) = (self.first_manifest(), other.first_manifest()) {
            differences.extend(agree::identity_differences(&ours, &theirs));
        }
        Err(MergeError::Differs { first: self.dir.clone(), second: other.dir.clone(), differences })
    }

    fn first_manifest(&self) -> Option<Manifest> {
        Manifest::read(&self.dir.join(&self.run.arms.first()?.name)).ok()
    }

    fn refuse_strangers(&self) -> Result<(), MergeError> {
        for entry in fs::read_dir(&self.dir).map_err(RecordError::storage(&self.dir))? {
            let path = entry.map_err(RecordError::storage(&self.dir))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let is_record = [MANIFEST_FILE, SAMPLES_FILE].iter().any(|file| path.join(file).exists());
            if is_record && self.run.arms.iter().all(|arm| arm.name != name) {
                return Err(MergeError::Stranger { dir: self.dir.clone(), name });
            }
        }
        Ok(())
    }
}
