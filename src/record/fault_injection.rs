//! Lets the N-th file operation of a run fail, for every N, and checks that the record holds what was acknowledged.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::hint::Hint;
use crate::record::manifest::RunStatus;
use crate::record::manifest::tests::manifest;
use crate::record::samples::SampleRecord;
use crate::record::samples::tests::sample;
use crate::record::storage::{Disk, Lock, Output, Storage};
use crate::record::{Opened, Record, RecordError, RecordWriter, SAMPLES_FILE};

/// What goes wrong at the chosen operation.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// The operation fails with this error.
    Fails(ErrorKind),
    /// A write takes half of the bytes, the next one fails; other operations fail at once.
    ShortThenFails(ErrorKind),
}

#[derive(Clone)]
struct Faulty {
    countdown: Arc<AtomicU32>,
    fault: Fault,
}

impl Faulty {
    fn new(at: u32, fault: Fault) -> Self {
        Self { countdown: Arc::new(AtomicU32::new(at)), fault }
    }

    fn happened(&self) -> bool {
        self.countdown.load(Ordering::Relaxed) == 0
    }

    /// Counts an operation; true for the one that has to fail.
    fn is_due(&self) -> bool {
        let left = self.countdown.load(Ordering::Relaxed);
        self.countdown.store(left.saturating_sub(1), Ordering::Relaxed);
        left == 1
    }

    fn step(&self) -> io::Result<()> {
        let (Fault::Fails(kind) | Fault::ShortThenFails(kind)) = self.fault;
        if self.is_due() { Err(kind.into()) } else { Ok(()) }
    }
}

impl Storage for Faulty {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        Disk.create_dir_all(path)
    }

    fn open_append(&self, path: &Path) -> io::Result<Box<dyn Output>> {
        self.step()?;
        Ok(Box::new(FaultyOutput { inner: Disk.open_append(path)?, faults: self.clone(), fail_next: false }))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn Output>> {
        self.step()?;
        Ok(Box::new(FaultyOutput { inner: Disk.create(path)?, faults: self.clone(), fail_next: false }))
    }

    fn truncate(&self, path: &Path, len: u64) -> io::Result<()> {
        self.step()?;
        Disk.truncate(path, len)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step()?;
        Disk.rename(from, to)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        Disk.sync_dir(path)
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Lock>> {
        self.step()?;
        Disk.lock(path)
    }
}

struct FaultyOutput {
    inner: Box<dyn Output>,
    faults: Faulty,
    fail_next: bool,
}

impl Output for FaultyOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (Fault::Fails(kind) | Fault::ShortThenFails(kind)) = self.faults.fault;
        if self.fail_next {
            return Err(kind.into());
        }
        if !self.faults.is_due() {
            return self.inner.write(bytes);
        }
        if matches!(self.faults.fault, Fault::Fails(_)) {
            return Err(kind.into());
        }
        self.fail_next = true;
        self.inner.write(&bytes[..bytes.len() / 2])
    }

    fn sync(&mut self) -> io::Result<()> {
        self.faults.step()?;
        self.inner.sync()
    }
}

const ITEMS: u32 = 20;

fn answers() -> Vec<SampleRecord> {
    (0..ITEMS).map(|index| sample(index, &format!("answer {index} 上"))).collect()
}

/// Runs the plan to its end on `storage`; returns how many samples were acknowledged before it stopped, and why.
fn run(storage: Box<dyn Storage>, dir: &Path) -> (usize, Result<(), RecordError>) {
    let Opened { mut writer, done, .. } = match RecordWriter::open_on(storage, dir, &manifest(u64::from(ITEMS))) {
        Ok(opened) => opened,
        Err(error) => return (0, Err(error)),
    };
    let mut acknowledged = done.len();
    for answer in answers().iter().filter(|answer| !done.contains_key(&answer.item_id)) {
        writer.event("item", &answer.item_id);
        if let Err(error) = writer.append(answer) {
            assert!(matches!(writer.append(answer), Err(RecordError::Closed { .. })), "nothing follows a broken line");
            assert!(writer.finish(RunStatus::Complete).is_err());
            return (acknowledged, Err(error));
        }
        acknowledged += 1;
    }
    (acknowledged, writer.finish(RunStatus::Complete))
}

fn fails_everywhere(fault: Fault, damage_first: bool) {
    let mut failures = 0;
    for at in 1.. {
        let dir = tempfile::tempdir().unwrap();
        let mut lost = 0;
        if damage_first {
            let (acknowledged, result) = run(Box::new(Disk), dir.path());
            result.unwrap();
            let journal = dir.path().join(SAMPLES_FILE);
            let mut bytes = std::fs::read(&journal).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            std::fs::write(&journal, &bytes).unwrap();
            lost = acknowledged - bytes[..middle].iter().filter(|byte| **byte == b'\n').count();
            assert!(lost > 0);
        }
        let storage = Faulty::new(at, fault);
        let (acknowledged, result) = run(Box::new(storage.clone()), dir.path());
        if let Err(error) = &result {
            failures += 1;
            assert!(!error.hints().is_empty(), "{error}");
            if let Ok(record) = Record::read(dir.path()) {
                assert!(record.samples.len() >= acknowledged, "operation {at}: an acknowledged sample is gone");
            }
        }
        let (all, again) = run(Box::new(Disk), dir.path());
        again.unwrap();
        assert_eq!(all, ITEMS as usize);
        assert_eq!(Record::read(dir.path()).unwrap().samples, answers(), "operation {at}, {lost} lines damaged before");
        if !storage.happened() {
            result.unwrap();
            assert!(failures >= 10, "only {failures} operations were failed");
            return;
        }
    }
}

/// Runs `check` with a storage whose N-th operation fails, for every N until none does; at least `least` have to be failed.
/// `check` gets a new folder each time and returns what the operation under test returned.
pub(crate) fn fails_at_every_operation(least: u32, check: impl Fn(&dyn Storage, &Path) -> Result<(), RecordError>) {
    for fault in [Fault::Fails(ErrorKind::Other), Fault::ShortThenFails(ErrorKind::StorageFull)] {
        let mut failures = 0;
        for at in 1.. {
            let dir = tempfile::tempdir().unwrap();
            let storage = Faulty::new(at, fault);
            let result = check(&storage, dir.path());
            failures += u32::from(result.is_err());
            if !storage.happened() {
                result.unwrap();
                assert!(failures >= least, "only {failures} operations were failed");
                break;
            }
        }
    }
}

#[test]
fn a_failure_of_any_operation_loses_nothing_acknowledged() {
    fails_everywhere(Fault::Fails(ErrorKind::Other), false);
    fails_everywhere(Fault::ShortThenFails(ErrorKind::StorageFull), false);
}

#[test]
fn a_failure_while_damage_is_set_aside_loses_nothing() {
    fails_everywhere(Fault::Fails(ErrorKind::Other), true);
    fails_everywhere(Fault::ShortThenFails(ErrorKind::StorageFull), true);
}

#[test]
fn an_interrupted_write_is_repeated() {
    struct Interrupted(Vec<u8>, bool);
    impl Output for Interrupted {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1 = !self.1;
            if self.1 {
                return Err(ErrorKind::Interrupted.into());
            }
            self.0.push(bytes[0]);
            Ok(1)
        }
        fn sync(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut output = Interrupted(Vec::new(), false);
    crate::record::storage::write_whole(&mut output, b"whole line").unwrap();
    assert_eq!(output.0, b"whole line");
}

/// The journal on a device that is always full; everything else on the disk.
#[cfg(target_os = "linux")]
struct FullJournal;

#[cfg(target_os = "linux")]
impl Storage for FullJournal {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        Disk.create_dir_all(path)
    }
    fn open_append(&self, path: &Path) -> io::Result<Box<dyn Output>> {
        Disk.open_append(if path.ends_with(SAMPLES_FILE) { Path::new("/dev/full") } else { path })
    }
    fn create(&self, path: &Path) -> io::Result<Box<dyn Output>> {
        Disk.create(path)
    }
    fn truncate(&self, path: &Path, len: u64) -> io::Result<()> {
        Disk.truncate(path, len)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        Disk.rename(from, to)
    }
    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        Disk.sync_dir(path)
    }
    fn lock(&self, path: &Path) -> io::Result<Option<Lock>> {
        Disk.lock(path)
    }
}

/// Opens a record whose journal takes nothing.
#[cfg(target_os = "linux")]
pub(crate) fn open_on_full_disk(dir: &Path, manifest: &crate::record::manifest::Manifest) -> Opened {
    RecordWriter::open_on(Box::new(FullJournal), dir, manifest).unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let (acknowledged, result) = run(Box::new(FullJournal), dir.path());
    let error = result.unwrap_err();
    assert_eq!(acknowledged, 0);
    assert!(error.is_disk_full(), "{error}");
    assert!(error.hints()[0].contains("free some space"));
}
