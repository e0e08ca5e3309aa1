//! Writing a record: open (or resume), append, finish.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::record::journal::{self, End};
use crate::record::manifest::{self, FORMAT, Manifest, RunStatus};
use crate::record::samples::{self, MAX_NOTE_BYTES, MAX_TEXT_BYTES, SampleRecord};
use crate::record::storage::{self, Disk, Lock, Output, Storage};
use crate::record::{EVENTS_FILE, LOCK_FILE, MANIFEST_FILE, RecordError, SAMPLES_FILE};
use crate::sample::Outcome;
use crate::setup::{Check, Resolved};

/// Records that may be lost to a power cut (never to a killed process), at most …
const SYNC_EVERY_RECORDS: u32 = 16;
/// … and for how long.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// Longest event text: one line for people.
const MAX_EVENT_BYTES: usize = 8 * 1024;

/// Items recorded twice that are named one by one: a journal written twice over repeats itself.
pub(crate) const MAX_NAMED_DUPLICATES: usize = 5;

/// Damaged journals set aside in one folder; more means that the disk is broken.
const MAX_SET_ASIDE: u32 = 1000;

/// What is known of an item from an earlier start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// What became of it.
    pub outcome: Outcome,
    /// Its latest attempt, counted from 1.
    pub attempt: u32,
}

/// An opened record.
pub struct Opened {
    /// Takes the open items' results.
    pub writer: RecordWriter,
    /// Items that have a result, by `item_id`.
    pub done: BTreeMap<String, Done>,
    /// What had to be repaired, one line each.
    pub warnings: Vec<String>,
}

/// The only writer of a record. Dropping it lets go of the lock; what was appended stays.
pub struct RecordWriter {
    storage: Box<dyn Storage>,
    dir: PathBuf,
    manifest: Manifest,
    samples: Box<dyn Output>,
    /// `None` when the log cannot be written: events are for people and never stop a run.
    events: Option<Box<dyn Output>>,
    done: BTreeMap<String, Done>,
    unsynced: u32,
    last_sync: Instant,
    closed: bool,
    _lock: Lock,
}

impl RecordWriter {
    /// Opens the record in `dir` for `manifest`, creating it, or resuming it when it holds the same plan.
    /// The manifest on disk stays as the first start wrote it.
    ///
    /// # Errors
    /// [`RecordError::Locked`], [`RecordError::PlanDiffers`] (suite, plan, arm, model, or another engine, dtype, backend,
    /// kernel or scales in effect), [`RecordError::Format`], [`RecordError::Malformed`] and [`RecordError::Storage`].
    pub fn open(dir: &Path, manifest: &Manifest) -> Result<Opened, RecordError> {
        Self::open_on(Box::new(Disk), dir, manifest)
    }

    /// Refuses what [`RecordWriter::open`] would refuse for another plan, and touches nothing: so that a start with several arms
    /// writes nothing at all when one of them cannot be resumed.
    ///
    /// # Errors
    /// Those of [`RecordWriter::open`] but for the lock.
    pub fn check_resumable(dir: &Path, asked: &Manifest) -> Result<(), RecordError> {
        match Manifest::read(dir) {
            Ok(recorded) => resumable(dir, recorded, asked).map(drop),
            Err(RecordError::NotFound { .. }) => refuse_stray_journal(dir),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn open_on(storage: Box<dyn Storage>, dir: &Path, asked: &Manifest) -> Result<Opened, RecordError> {
        asked.check_hash(&dir.join(MANIFEST_FILE))?;
        storage.create_dir_all(dir).map_err(RecordError::storage(dir))?;
        let lock_path = dir.join(LOCK_FILE);
        let Some(lock) = storage.lock(&lock_path).map_err(RecordError::storage(&lock_path))? else {
            return Err(RecordError::Locked { path: dir.to_path_buf() });
        };
        let mut manifest = match Manifest::read(dir) {
            Ok(recorded) => resumable(dir, recorded, asked)?,
            Err(RecordError::NotFound { .. }) => begin(storage.as_ref(), dir, asked)?,
            Err(error) => return Err(error),
        };
        let mut found = Found::default();
        let journal_path = dir.join(SAMPLES_FILE);
        let scan = journal::scan(&journal_path, FORMAT, |sample| found.insert(&sample))?;
        found.warnings.extend(unnamed_duplicates(found.duplicates));
        repair(storage.as_ref(), dir, &scan, &mut found.warnings)?;
        if manifest.status == RunStatus::Complete && (found.done.len() as u64) < manifest.planned_items {
            manifest.status = RunStatus::Started;
            replace_manifest(storage.as_ref(), dir, &manifest)?;
        }
        let samples = storage.open_append(&journal_path).map_err(RecordError::storage(&journal_path))?;
        storage.sync_dir(dir).map_err(RecordError::storage(dir))?;
        let events = storage.open_append(&dir.join(EVENTS_FILE)).ok();
        let writer = Self {
            storage,
            dir: dir.to_path_buf(),
            manifest,
            samples,
            events,
            done: found.done.clone(),
            unsynced: 0,
            last_sync: Instant::now(),
            closed: false,
            _lock: lock,
        };
        Ok(Opened { writer, done: found.done, warnings: found.warnings })
    }

    /// The manifest as it stands.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Items with a result so far.
    pub fn done_items(&self) -> u64 {
        self.done.len() as u64
    }

    /// Appends one result: a whole line or none. Texts over their limits are clipped in the file.
    ///
    /// # Errors
    /// [`RecordError::Inconsistent`] and [`RecordError::LineTooLong`] leave the record usable;
    /// after [`RecordError::Storage`] it is closed.
    pub fn append(&mut self, sample: &SampleRecord) -> Result<(), RecordError> {
        self.check_open()?;
        samples::check(sample)
            .map_err(|reason| RecordError::Inconsistent { item_id: sample.item_id.clone(), reason })?;
        let line = encode_within_limit(sample)?;
        let path = self.dir.join(SAMPLES_FILE);
        let written = storage::write_whole(self.samples.as_mut(), &line);
        self.guard(&path, written)?;
        self.unsynced += 1;
        note_latest(&mut self.done, sample);
        if self.unsynced >= SYNC_EVERY_RECORDS || self.last_sync.elapsed() >= SYNC_EVERY {
            self.sync()?;
        }
        Ok(())
    }

    /// Makes everything appended so far durable.
    ///
    /// # Errors
    /// [`RecordError::Storage`]; the record is then closed: after a failed sync nobody knows what is on the disk.
    pub fn sync(&mut self) -> Result<(), RecordError> {
        self.check_open()?;
        let path = self.dir.join(SAMPLES_FILE);
        let synced = self.samples.sync();
        self.guard(&path, synced)?;
        self.unsynced = 0;
        self.last_sync = Instant::now();
        Ok(())
    }

    /// Writes a line to the event log. Never fails: the log is for people, and nothing that counts is read back from it. A history of
    /// runs orders them by the time of the first line.
    pub fn event(&mut self, name: &str, text: &str) {
        let Some(events) = &mut self.events else { return };
        let unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        let line =
            serde_json::json!({ "unix_ms": unix_ms, "event": name, "text": samples::clip(text, MAX_EVENT_BYTES) });
        if storage::write_whole(events.as_mut(), format!("{line}\n").as_bytes()).is_err() {
            self.events = None;
        }
    }

    /// Replaces what is in effect, for facts that a server tells only while it runs; written by [`Self::finish`].
    pub fn set_resolved(&mut self, resolved: Resolved) {
        self.manifest.resolved = resolved;
    }

    /// Adds what was seen of the arm while it was asked, to what earlier starts saw; written by [`Self::finish`].
    pub fn add_checks(&mut self, checks: Vec<Check>) {
        for check in checks {
            match self.manifest.checks.iter_mut().find(|known| known.fact == check.fact) {
                Some(known) => known.extend(check),
                None => self.manifest.checks.push(check),
            }
        }
    }

    /// Makes the journal durable, then replaces `manifest.json` with one that has this status.
    ///
    /// # Errors
    /// [`RecordError::Incomplete`] for `Complete` without all planned items, else [`RecordError::Storage`].
    pub fn finish(&mut self, status: RunStatus) -> Result<(), RecordError> {
        let found = self.done_items();
        if status == RunStatus::Complete && found < self.manifest.planned_items {
            let planned = self.manifest.planned_items;
            return Err(RecordError::Incomplete { path: self.dir.clone(), planned, found });
        }
        self.sync()?;
        self.manifest.status = status;
        replace_manifest(self.storage.as_ref(), &self.dir, &self.manifest)
    }

    fn check_open(&self) -> Result<(), RecordError> {
        if self.closed { Err(RecordError::Closed { path: self.dir.join(SAMPLES_FILE) }) } else { Ok(()) }
    }

    fn guard(&mut self, path: &Path, result: io::Result<()>) -> Result<(), RecordError> {
        self.closed |= result.is_err();
        result.map_err(RecordError::storage(path))
    }
}

fn resumable(dir: &Path, recorded: Manifest, asked: &Manifest) -> Result<Manifest, RecordError> {
    if recorded.format.is_newer_minor() {
        let (path, found) = (dir.join(MANIFEST_FILE), recorded.format);
        return Err(RecordError::Format { path, found, known: FORMAT, appending: true });
    }
    let mut differences = manifest::diff(&recorded, asked);
    differences.extend(manifest::engine_diff(&recorded.resolved, &asked.resolved));
    differences.extend(manifest::accepted_diff(&recorded, asked));
    if recorded.planned_items != asked.planned_items {
        differences.push(manifest::Difference {
            field: "planned_items".into(),
            recorded: Some(recorded.planned_items.to_string()),
            asked: Some(asked.planned_items.to_string()),
        });
    }
    if differences.is_empty() {
        return Ok(recorded);
    }
    Err(RecordError::PlanDiffers { path: dir.to_path_buf(), differences })
}

/// A journal without a manifest cannot come from a crash (the manifest is durable first), so whatever is in it belongs to
/// something else.
fn refuse_stray_journal(dir: &Path) -> Result<(), RecordError> {
    let journal_path = dir.join(SAMPLES_FILE);
    if std::fs::metadata(&journal_path).is_ok_and(|metadata| metadata.len() > 0) {
        return Err(RecordError::malformed(&journal_path, "a journal without a manifest.json"));
    }
    Ok(())
}

/// Writes the first manifest.
fn begin(storage: &dyn Storage, dir: &Path, asked: &Manifest) -> Result<Manifest, RecordError> {
    refuse_stray_journal(dir)?;
    let manifest = Manifest { format: FORMAT, status: RunStatus::Started, ..asked.clone() };
    replace_manifest(storage, dir, &manifest)?;
    Ok(manifest)
}

fn replace_manifest(storage: &dyn Storage, dir: &Path, manifest: &Manifest) -> Result<(), RecordError> {
    storage::replace_file(storage, dir, MANIFEST_FILE, &manifest.to_json())
}

#[derive(Default)]
struct Found {
    done: BTreeMap<String, Done>,
    duplicates: usize,
    warnings: Vec<String>,
}

impl Found {
    fn insert(&mut self, sample: &SampleRecord) {
        if let Some(done) = self.done.get(&sample.item_id)
            && done.attempt == sample.attempt
        {
            self.duplicates += 1;
            if self.duplicates <= MAX_NAMED_DUPLICATES {
                self.warnings.push(format!("item {} was recorded twice as attempt {}", sample.item_id, sample.attempt));
            }
        }
        note_latest(&mut self.done, sample);
    }
}

/// The line behind the duplicates that are named.
pub(crate) fn unnamed_duplicates(duplicates: usize) -> Option<String> {
    let unnamed = duplicates.saturating_sub(MAX_NAMED_DUPLICATES);
    (unnamed > 0).then(|| format!("and {unnamed} more items were recorded twice"))
}

fn note_latest(done: &mut BTreeMap<String, Done>, sample: &SampleRecord) {
    let latest = Done { outcome: sample.outcome, attempt: sample.attempt };
    let kept = done.entry(sample.item_id.clone()).or_insert(latest);
    if latest.attempt > kept.attempt {
        *kept = latest;
    }
}

/// Leaves only whole, good lines in the journal.
fn repair(
    storage: &dyn Storage,
    dir: &Path,
    scan: &journal::Scan,
    warnings: &mut Vec<String>,
) -> Result<(), RecordError> {
    let path = dir.join(SAMPLES_FILE);
    match &scan.end {
        End::Clean => return Ok(()),
        End::Torn => warnings.push(format!("{}: the last line was cut off in writing and is dropped", path.display())),
        End::Damaged { line, reason } => {
            let aside = set_aside(storage, dir, scan.good_bytes)?;
            warnings.push(format!(
                "{} is damaged at line {line} ({reason}); everything before is kept, the rest was moved to {} \
                 and its items are asked again",
                path.display(),
                aside.display()
            ));
        }
    }
    storage.truncate(&path, scan.good_bytes).map_err(RecordError::storage(&path))
}

/// Copies the journal from `offset` on to the next free `samples.jsonl.corrupt-N`. A crash before the journal is cut leaves
/// a copy too many, never one too few.
fn set_aside(storage: &dyn Storage, dir: &Path, offset: u64) -> Result<PathBuf, RecordError> {
    let path = dir.join(SAMPLES_FILE);
    let aside = (1..=MAX_SET_ASIDE)
        .map(|number| dir.join(format!("{SAMPLES_FILE}.corrupt-{number}")))
        .find(|candidate| !candidate.exists())
        .ok_or_else(|| RecordError::malformed(&path, format!("damaged, as {MAX_SET_ASIDE} times before")))?;
    let mut source = File::open(&path).map_err(RecordError::storage(&path))?;
    source.seek(SeekFrom::Start(offset)).map_err(RecordError::storage(&path))?;
    let mut copy = || -> io::Result<()> {
        let mut target = storage.create(&aside)?;
        let mut buffer = vec![0; 64 * 1024];
        loop {
            match source.read(&mut buffer)? {
                0 => break,
                read => storage::write_whole(target.as_mut(), &buffer[..read])?,
            }
        }
        target.sync()?;
        storage.sync_dir(dir)
    };
    copy().map_err(RecordError::storage(&aside))?;
    Ok(aside)
}

/// The line of a sample, its texts clipped to their limits, and further where escapes make it too long all the same.
fn encode_within_limit(sample: &SampleRecord) -> Result<Vec<u8>, RecordError> {
    // Control characters take six bytes each in JSON: three halvings always bring the texts under the limit.
    const HALVINGS: u32 = 4;
    let mut clipped = sample.clone();
    let mut bytes = 0;
    for halving in 0..HALVINGS {
        clipped.clip_texts(MAX_TEXT_BYTES >> halving, MAX_NOTE_BYTES >> halving);
        let json = serde_json::to_vec(&clipped).map_err(|error| RecordError::Inconsistent {
            item_id: sample.item_id.clone(),
            reason: error.to_string(),
        })?;
        match journal::encode(&json) {
            Ok(line) => return Ok(line),
            Err(too_long) => bytes = too_long,
        }
    }
    Err(RecordError::LineTooLong { item_id: sample.item_id.clone(), bytes, limit: journal::MAX_LINE_BYTES })
}
