//! The store: accepting a run, finding a baseline by name or folder, listing and verifying.

use std::fs;
use std::path::{Path, PathBuf};

use crate::baseline::content::{self, CONTENT_FILE, Damage};
use crate::baseline::pointer::{POINTER_FILE, Pointer, check_name, default_name};
use crate::baseline::{BaselineError, HASH_DIGITS, sealed};
use crate::record::manifest::{Manifest, RunStatus, SHARD_FIELD, plan_hash};
use crate::record::{MANIFEST_FILE, Record, RunFile};
use crate::sample::Outcome;
use crate::setup::{Arm, ArmRole, CheckStatus, KV_CACHE_DTYPE, dtype_bits};

/// Most entries looked at in a store: decades of nightly baselines.
const MAX_ENTRIES: usize = 10_000;

/// A folder with baselines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    dir: PathBuf,
}

/// What is to be accepted.
#[derive(Clone, Debug, Default)]
pub struct Acceptance<'a> {
    /// A run folder, or the folder of one arm.
    pub run: PathBuf,
    /// The arm; `None` for the run's baseline.
    pub arm: Option<&'a str>,
    /// The name; `None` for [`default_name`].
    pub name: Option<&'a str>,
    /// A sentence for those who look it up.
    pub note: Option<&'a str>,
    /// Now, in UTC.
    pub accepted_at: String,
    /// Whether the same content again gets this date and note.
    pub renew: bool,
}

/// What an acceptance changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The name is new.
    New,
    /// The name stands for this content already; nothing was written.
    Same,
    /// As `Same`, but with a new date and note.
    Renewed,
    /// The name stood for other content, which is kept.
    Moved {
        /// Hash of the former content.
        from: String,
    },
}

/// A baseline with its records, every byte of them checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Baseline {
    /// What is known of it.
    pub pointer: Pointer,
    /// The arm.
    pub baseline: Record,
    /// Its A/A repeat.
    pub control: Option<Record>,
}

/// What was found of one name, or of content that no name stands for.
#[derive(Clone, Debug, PartialEq)]
pub struct Verified {
    /// The name; `None` for content alone.
    pub name: Option<String>,
    /// The pointer, where it could be read.
    pub pointer: Option<Pointer>,
    /// The folder of the content.
    pub content: Option<String>,
    /// What is wrong; empty where everything is as it was accepted.
    pub damages: Vec<Damage>,
}

impl Store {
    /// The store in `dir`, which need not be there yet.
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.into() }
    }

    /// Its folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The name that an acceptance gives.
    ///
    /// # Errors
    /// When the run has no such arm, or the name is none.
    pub fn name_of(&self, asked: &Acceptance<'_>) -> Result<String, BaselineError> {
        let name = match asked.name {
            Some(name) => name.to_owned(),
            None => default_name(&find_arm(&asked.run, asked.arm)?.0.manifest),
        };
        self.check_name(&name)?;
        Ok(name)
    }

    /// Refuses what cannot be a name.
    ///
    /// # Errors
    /// [`BaselineError::Name`].
    pub fn check_name(&self, name: &str) -> Result<(), BaselineError> {
        check_name(name)
    }

    /// Accepts an arm of a finished run.
    ///
    /// # Errors
    /// When the run has no such arm, is not finished, is damaged, or has no 16-bit cache; when the name is none; and what the file
    /// system says.
    pub fn accept(&self, asked: &Acceptance<'_>) -> Result<(Pointer, Change), BaselineError> {
        let (mut baseline, control) = find_arm(&asked.run, asked.arm)?;
        check_acceptable(&baseline, true)?;
        if let Some(control) = &control {
            check_acceptable(control, false)?;
        }
        if baseline.manifest.arm.role != ArmRole::Baseline {
            baseline.manifest.arm.role = ArmRole::Baseline;
            baseline.manifest.plan_hash = plan_hash(&baseline.manifest.plan, &baseline.manifest.arm);
        }
        let name = asked.name.map_or_else(|| default_name(&baseline.manifest), str::to_owned);
        check_name(&name)?;
        let former = self.pointer_at(&self.dir.join(&name))?;
        let hash = self.keep(&baseline, control.as_ref())?;
        let is_same = former.as_ref().is_some_and(|former| former.hash == hash);
        if let Some(former) = former.clone().filter(|_| is_same && !asked.renew) {
            return Ok((former, Change::Same));
        }
        let change = match &former {
            None => Change::New,
            Some(_) if is_same => Change::Renewed,
            Some(former) => Change::Moved { from: former.hash.clone() },
        };
        let mut pointer = Pointer::new(&name, &hash, &asked.accepted_at, asked.note, &baseline);
        pointer.has_control = control.is_some();
        let pointer = match former {
            Some(former) => pointer.after(former),
            None => pointer,
        };
        let folder = self.dir.join(&name);
        fs::create_dir_all(&folder).map_err(BaselineError::storage(&folder))?;
        let path = folder.join(POINTER_FILE);
        sealed::replace(&path, &sealed::seal(&pointer))?;
        // As it stands on disk, with its checksum.
        Ok((sealed::unseal(&path)?.unwrap_or(pointer), change))
    }

    /// Writes the content where it is not there yet, in one step, and returns its hash.
    fn keep(&self, baseline: &Record, control: Option<&Record>) -> Result<String, BaselineError> {
        fs::create_dir_all(&self.dir).map_err(BaselineError::storage(&self.dir))?;
        let temporary = tempfile::Builder::new().prefix(".accept-").tempdir_in(&self.dir);
        let temporary = temporary.map_err(BaselineError::storage(&self.dir))?;
        // The folder inside has the rights that folders here have; that of a temporary one is its maker's alone.
        let written = temporary.path().join("content");
        fs::create_dir(&written).map_err(BaselineError::storage(&written))?;
        let hash = content::write(&written, baseline, control)?;
        let kept = self.dir.join(content::folder_name(&hash));
        if !kept.exists() {
            fs::rename(&written, &kept).map_err(BaselineError::storage(&kept))?;
        }
        // Also content that was there before has to be whole: it is what the name will stand for.
        let name = content::folder_name(&hash).to_owned();
        let found = content::read(&kept).map_err(|damages| BaselineError::Damaged { name: name.clone(), damages })?;
        if found.hash != hash {
            let what = format!("holds the content {}", found.hash);
            return Err(BaselineError::Damaged { name, damages: vec![Damage { path: kept, what }] });
        }
        Ok(hash)
    }

    /// The names, in order.
    ///
    /// # Errors
    /// When the store cannot be read. One that is not there holds nothing.
    pub fn names(&self) -> Result<Vec<String>, BaselineError> {
        let names = self.folders()?.into_iter().filter(|name| self.dir.join(name).join(POINTER_FILE).exists());
        Ok(names.collect())
    }

    fn folders(&self) -> Result<Vec<String>, BaselineError> {
        let failed = BaselineError::storage(&self.dir);
        let entries = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(&failed)?,
        };
        let mut folders = Vec::new();
        for (count, entry) in entries.enumerate() {
            if count >= MAX_ENTRIES {
                return Err(BaselineError::TooMany { dir: self.dir.clone(), limit: MAX_ENTRIES });
            }
            let entry = entry.map_err(&failed)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if !name.starts_with('.') && entry.path().is_dir() {
                folders.push(name);
            }
        }
        folders.sort();
        Ok(folders)
    }

    /// The pointer of a name.
    ///
    /// # Errors
    /// [`BaselineError::Unknown`] with the names there are, and what is wrong with the file.
    pub fn pointer(&self, name: &str) -> Result<Pointer, BaselineError> {
        check_name(name)?;
        match self.pointer_at(&self.dir.join(name))? {
            Some(pointer) => Ok(pointer),
            None => Err(BaselineError::Unknown { name: name.into(), dir: self.dir.clone(), known: self.names()? }),
        }
    }

    fn pointer_at(&self, folder: &Path) -> Result<Option<Pointer>, BaselineError> {
        let path = folder.join(POINTER_FILE);
        let Some(pointer) = sealed::unseal::<Pointer>(&path)? else { return Ok(None) };
        if folder.file_name().is_none_or(|name| name != pointer.name.as_str()) {
            let reason = format!("is the pointer of `{}`", pointer.name);
            return Err(BaselineError::Unsealed { path, reason });
        }
        Ok(Some(pointer))
    }

    /// The baseline of a name, or of the folder of a name in any store (`shared/baselines/nightly`), with all its records checked.
    ///
    /// # Errors
    /// Those of [`Store::pointer`]; [`BaselineError::Damaged`].
    pub fn load(&self, reference: &str) -> Result<Baseline, BaselineError> {
        let as_path = Path::new(reference);
        let (store, name) = match (as_path.parent(), as_path.file_name()) {
            (Some(parent), Some(name)) if reference.contains(['/', '\\']) => {
                let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
                (Self::new(parent), name.to_string_lossy().into_owned())
            }
            _ => (self.clone(), reference.to_owned()),
        };
        let pointer = store.pointer(&name)?;
        let damaged = |damages| BaselineError::Damaged { name: name.clone(), damages };
        let content::Records { baseline, control, .. } = store.content_of(&pointer).map_err(damaged)?;
        Ok(Baseline { pointer, baseline, control })
    }

    fn content_of(&self, pointer: &Pointer) -> Result<content::Records, Vec<Damage>> {
        let dir = self.dir.join(content::folder_name(&pointer.hash));
        let records = content::read(&dir)?;
        if records.hash == pointer.hash && records.control.is_some() == pointer.has_control {
            return Ok(records);
        }
        let what = format!("is not the content that `{}` stands for", pointer.name);
        Err(vec![Damage { path: dir, what }])
    }

    /// Checks every byte of the baselines with these names, or of everything in the store where no name is given.
    ///
    /// # Errors
    /// When a name does not exist or the store cannot be read; damage is no error here.
    pub fn verify(&self, names: &[String]) -> Result<Vec<Verified>, BaselineError> {
        let wanted = if names.is_empty() { self.names()? } else { names.to_vec() };
        let mut found: Vec<Verified> = Vec::new();
        for name in wanted {
            found.push(self.verify_name(&name)?);
        }
        if names.is_empty() {
            let is_known = |folder: &str| found.iter().any(|it| it.content.as_deref() == Some(folder));
            let is_content = |name: &String| {
                let is_hash = name.len() == HASH_DIGITS && name.chars().all(|c| c.is_ascii_hexdigit());
                is_hash || self.dir.join(name).join(CONTENT_FILE).exists()
            };
            let others: Vec<String> =
                self.folders()?.into_iter().filter(is_content).filter(|it| !is_known(it)).collect();
            for folder in others {
                let damages = content::read(&self.dir.join(&folder)).err().unwrap_or_default();
                found.push(Verified { name: None, pointer: None, content: Some(folder), damages });
            }
        }
        Ok(found)
    }

    fn verify_name(&self, name: &str) -> Result<Verified, BaselineError> {
        let path = self.dir.join(name).join(POINTER_FILE);
        let damaged = |pointer: Option<Pointer>, damages| Verified {
            name: Some(name.into()),
            content: pointer.as_ref().map(|pointer| pointer.short_hash().to_owned()),
            pointer,
            damages,
        };
        match self.pointer(name) {
            Ok(pointer) => {
                let damages = self.content_of(&pointer).err().unwrap_or_default();
                Ok(damaged(Some(pointer), damages))
            }
            Err(error @ (BaselineError::Unknown { .. } | BaselineError::Name { .. })) => Err(error),
            Err(error) => Ok(damaged(None, vec![Damage { path, what: error.reason() }])),
        }
    }
}

/// The record of the arm, and that of its A/A repeat.
fn find_arm(run: &Path, arm: Option<&str>) -> Result<(Record, Option<Record>), BaselineError> {
    let no_arm = |known: Vec<String>| BaselineError::NoArm { run: run.into(), arm: arm.map(str::to_owned), known };
    let Some(plan) = RunFile::read(run)? else {
        if !run.join(MANIFEST_FILE).exists() {
            return Err(no_arm(Vec::new()));
        }
        let record = Record::read(run)?;
        if arm.is_some_and(|name| name != record.manifest.arm.name) {
            return Err(no_arm(vec![record.manifest.arm.name]));
        }
        return Ok((record, None));
    };
    let is_wanted = |it: &&Arm| arm.map_or(it.role == ArmRole::Baseline, |name| it.name == name);
    let Some(planned) = plan.arms.iter().find(is_wanted) else {
        return Err(no_arm(plan.arms.iter().map(|arm| arm.name.clone()).collect()));
    };
    let read = |planned: &Arm| {
        let record = Record::read(&run.join(&planned.name))?;
        let is_of_suite = record.manifest.plan.get("suite") == Some(&plan.suite_fingerprint);
        if record.manifest.arm != *planned || !is_of_suite {
            return Err(BaselineError::NotOfPlan { run: run.into(), arm: planned.name.clone() });
        }
        Ok(record)
    };
    let is_repeat = |it: &&Arm| {
        it.role == ArmRole::Control
            && (&it.kv_cache_dtype, &it.attention_backend, &it.settings)
                == (&planned.kv_cache_dtype, &planned.attention_backend, &planned.settings)
    };
    let control = plan.arms.iter().find(is_repeat).map(read).transpose()?;
    Ok((read(planned)?, control))
}

/// A baseline is compared with for months: it is whole, its own run's, and its cache has 16 bits.
fn check_acceptable(record: &Record, has_bins_of_its_own: bool) -> Result<(), BaselineError> {
    let Manifest { arm, accepted, status, planned_items, .. } = &record.manifest;
    let unfinished = |why: String| BaselineError::Unfinished { arm: arm.name.clone(), why };
    if let Some(accepted) = accepted {
        return Err(BaselineError::Copied { arm: arm.name.clone(), accepted: accepted.to_string() });
    }
    if let Some(shard) = record.manifest.plan.get(SHARD_FIELD) {
        return Err(unfinished(format!("it is shard {shard} of a run; accept the run that `kvgauge merge` makes")));
    }
    if *status != RunStatus::Complete || (record.samples.len() as u64) < *planned_items || record.samples.is_empty() {
        return Err(unfinished(format!("{} of {planned_items} items", record.samples.len())));
    }
    let errors = record.samples.iter().filter(|sample| sample.outcome == Outcome::Error).count();
    if errors > 0 {
        return Err(unfinished(format!("{errors} items ended in an error")));
    }
    if has_bins_of_its_own { check_sixteen_bits(&record.manifest) } else { Ok(()) }
}

fn check_sixteen_bits(manifest: &Manifest) -> Result<(), BaselineError> {
    let refuse = |why: String| Err(BaselineError::NotSixteenBits { arm: manifest.arm.name.clone(), why });
    let asked = &manifest.arm.kv_cache_dtype;
    if let Some(check) = manifest.checks.iter().find(|check| check.fact == KV_CACHE_DTYPE) {
        match check.status {
            CheckStatus::Confirmed => {}
            CheckStatus::Contradicted => {
                return refuse(format!("{asked} was asked for, seen was {}", check.observed_in_words()));
            }
            CheckStatus::Unknown => return refuse(format!("{asked} was asked for, and nothing confirms it")),
        }
    }
    match &manifest.resolved.kv_cache_dtype.value {
        None => refuse(format!("{asked} was asked for, and what is in effect is not known")),
        Some(dtype) if dtype_bits(dtype).is_some_and(|bits| bits < 16.0) => refuse(format!("its cache is {dtype}")),
        Some(_) => Ok(()),
    }
}
