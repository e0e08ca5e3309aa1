//! One fetch of one model at a time, across processes, and no litter from those that were killed.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::model_store::{OnEvent, StoreError, StoreEvent};

/// The right to fetch one model into a folder; the system takes it back when the process ends, however it ends.
#[derive(Debug)]
pub(crate) struct FetchLock {
    dir: PathBuf,
    prefix: String,
    /// Locked as long as it is open. `None` on file systems without locks; moving into place is atomic there, too.
    _file: Option<File>,
}

impl FetchLock {
    /// Creates `dir` and waits until no other process fetches `name` into it. `name` must be a valid file name.
    pub(crate) fn acquire(dir: &Path, name: &str, on_event: OnEvent<'_>) -> Result<Self, StoreError> {
        fs::create_dir_all(dir).map_err(|source| StoreError::Io { action: "create", path: dir.into(), source })?;
        let path = dir.join(format!(".{name}.lock"));
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(|source| StoreError::Io { action: "write", path: path.clone(), source })?;
        let is_locked = match file.try_lock() {
            Ok(()) => true,
            Err(TryLockError::WouldBlock) => {
                on_event(StoreEvent::Waiting { name: name.to_owned() });
                file.lock().is_ok()
            }
            Err(TryLockError::Error(_)) => false,
        };
        let lock = Self { dir: dir.into(), prefix: format!(".{name}.part-"), _file: is_locked.then_some(file) };
        if is_locked {
            lock.remove_litter();
        }
        Ok(lock)
    }

    /// A new folder beside the model's place, removed when it is dropped.
    pub(crate) fn temporary_dir(&self) -> Result<TempDir, StoreError> {
        tempfile::Builder::new().prefix(&self.prefix).tempdir_in(&self.dir).map_err(|source| StoreError::Io {
            action: "write",
            path: self.dir.clone(),
            source,
        })
    }

    /// Whoever holds the lock is the only one who fetches: older temporary folders belong to processes that were killed.
    fn remove_litter(&self) {
        let Ok(entries) = fs::read_dir(&self.dir) else { return };
        for entry in entries.flatten() {
            if entry.file_name().to_string_lossy().starts_with(&self.prefix) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn the_second_one_waits_and_litter_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let litter = dir.path().join(".m.part-old");
        fs::create_dir(&litter).unwrap();
        let first = FetchLock::acquire(dir.path(), "m", &|_| ()).unwrap();
        assert!(!litter.exists());
        let order = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            let (started, waiting) = std::sync::mpsc::channel();
            let (order, dir) = (&order, dir.path());
            scope.spawn(move || {
                let _second = FetchLock::acquire(dir, "m", &|event| {
                    assert_eq!(event, StoreEvent::Waiting { name: "m".into() });
                    started.send(()).unwrap();
                })
                .unwrap();
                order.lock().unwrap().push("second");
            });
            waiting.recv().unwrap();
            order.lock().unwrap().push("first");
            drop(first);
        });
        assert_eq!(*order.lock().unwrap(), ["first", "second"]);
    }
}
