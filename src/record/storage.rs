//! The file operations of the record's writer behind a trait, so that tests can let the N-th one fail.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::Path;

use crate::record::RecordError;

/// What the writer asks of a file system. Reading is not part of it: it changes nothing.
pub(crate) trait Storage: Send {
    /// Creates a folder and those above it; it may exist.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;
    /// Opens for appending, creating it if needed.
    fn open_append(&self, path: &Path) -> io::Result<Box<dyn Output>>;
    /// Opens an empty file for writing, replacing what is there.
    fn create(&self, path: &Path) -> io::Result<Box<dyn Output>>;
    /// Cuts a file to `len` bytes, durably.
    fn truncate(&self, path: &Path, len: u64) -> io::Result<()>;
    /// Renames within one folder; replaces the target.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Makes a folder's entries durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// Opens and locks `path` for this process; `None` when another holds it. The kernel lets go on death.
    fn lock(&self, path: &Path) -> io::Result<Option<Lock>>;
}

/// A lock that is let go when this is dropped. To close the file would not be enough: a child process that is just being
/// started elsewhere holds all files until it executes its program, and with them the lock.
#[derive(Debug)]
pub(crate) struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // Where this fails, closing the file is what is left.
        let _ = self.0.unlock();
    }
}

/// An open file.
pub(crate) trait Output: Send {
    /// Writes some of the bytes: may be short.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;
    /// Makes what was written durable.
    fn sync(&mut self) -> io::Result<()>;
}

/// Writes all of `bytes`; interruptions are repeated, everything else is an error.
pub(crate) fn write_whole(output: &mut dyn Output, bytes: &[u8]) -> io::Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        match output.write(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => rest = &rest[written.min(rest.len())..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Replaces `name` in `dir` by way of a temporary file, a sync and a rename: readers see the old bytes or the new ones. The
/// caller holds a lock, so nobody else uses the temporary name.
pub(crate) fn replace_file(storage: &dyn Storage, dir: &Path, name: &str, bytes: &[u8]) -> Result<(), RecordError> {
    let path = dir.join(name);
    let temporary = dir.join(format!("{name}.tmp"));
    let replace = || {
        let mut file = storage.create(&temporary)?;
        write_whole(file.as_mut(), bytes)?;
        file.sync()?;
        drop(file);
        storage.rename(&temporary, &path)?;
        storage.sync_dir(dir)
    };
    replace().map_err(RecordError::storage(&path))
}

/// The real file system.
pub(crate) struct Disk;

impl Storage for Disk {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    fn open_append(&self, path: &Path) -> io::Result<Box<dyn Output>> {
        Ok(Box::new(OpenOptions::new().append(true).create(true).open(path)?))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn Output>> {
        Ok(Box::new(File::create(path)?))
    }

    fn truncate(&self, path: &Path, len: u64) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(path)?;
        file.set_len(len)?;
        file.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    #[cfg(unix)]
    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    // Other systems cannot open a folder as a file; their rename is as durable as they make it.
    #[cfg(not(unix))]
    fn sync_dir(&self, _path: &Path) -> io::Result<()> {
        Ok(())
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Lock>> {
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Lock(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

impl Output for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Write::write(self, bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_let_go_although_a_child_has_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let lock = Disk.lock(&path).unwrap().unwrap();
        assert!(Disk.lock(&path).unwrap().is_none());
        // What a fork makes: another descriptor of the same opened file.
        let inherited = lock.0.try_clone().unwrap();
        drop(lock);
        assert!(Disk.lock(&path).unwrap().is_some());
        drop(inherited);
    }
}
