//! Files whose contents are known by hash: copied with the check, and checked again only when they change.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::model_store::StoreError;

const CHUNK_BYTES: usize = 1 << 18;
/// A sidecar has some 200 bytes.
const MAX_SIDECAR_BYTES: u64 = 1 << 14;
/// 1: bytes, modified_ns, sha256.
const SIDECAR_VERSION: u32 = 1;

/// What a file must be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity<'a> {
    pub(crate) bytes: u64,
    /// SHA-256 in lower-case hex.
    pub(crate) sha256: &'a str,
}

/// The result of a hash over a whole file, valid as long as length and time of change stay the same.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
struct Sidecar {
    version: u32,
    bytes: u64,
    /// Nanoseconds since 1970.
    modified_ns: u128,
    sha256: String,
}

/// Length and SHA-256 of what went through [`copy_hashed`].
#[derive(Debug)]
pub(crate) struct Copied {
    pub(crate) bytes: u64,
    pub(crate) sha256: String,
}

/// Copies at most `limit + 1` bytes (one more shows that there is more) and reports progress in bytes done.
pub(crate) fn copy_hashed(
    reader: impl Read,
    writer: &mut impl Write,
    limit: u64,
    on_progress: &dyn Fn(u64),
) -> Result<Copied, CopyError> {
    let mut reader = reader.take(limit.saturating_add(1));
    let mut hasher = Sha256::new();
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut bytes = 0;
    loop {
        let read = match reader.read(&mut chunk) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(CopyError::Read(error)),
        };
        hasher.update(&chunk[..read]);
        writer.write_all(&chunk[..read]).map_err(CopyError::Write)?;
        bytes += read as u64;
        on_progress(bytes);
    }
    writer.flush().map_err(CopyError::Write)?;
    Ok(Copied { bytes, sha256: hex(&hasher.finalize()) })
}

/// Which side of a copy failed.
#[derive(Debug)]
pub(crate) enum CopyError {
    Read(io::Error),
    Write(io::Error),
}

/// Compares what was copied with what it must be; `path` is for the message.
pub(crate) fn check_identity(copied: &Copied, expected: Identity<'_>, path: &Path) -> Result<(), StoreError> {
    if copied.bytes != expected.bytes {
        return Err(StoreError::WrongSize { path: path.into(), expected: expected.bytes, got: copied.bytes });
    }
    if copied.sha256 != expected.sha256 {
        let (expected, got) = (expected.sha256.to_owned(), copied.sha256.clone());
        return Err(StoreError::WrongHash { path: path.into(), expected, got });
    }
    Ok(())
}

/// Makes sure that the file at `path` is what it must be. The hash is computed on the first call (`on_hash` is told) and after
/// every change; otherwise the sidecar beside the file vouches for it. A change that keeps length and time is not seen.
pub(crate) fn verify(path: &Path, expected: Identity<'_>, on_hash: &dyn Fn()) -> Result<(), StoreError> {
    let failed = |source| StoreError::Io { action: "read", path: path.into(), source };
    let state = State::of(path).map_err(failed)?;
    if state.bytes != expected.bytes {
        return Err(StoreError::WrongSize { path: path.into(), expected: expected.bytes, got: state.bytes });
    }
    let vouched = state.sidecar(expected.sha256);
    if read_sidecar(path).is_some_and(|sidecar| sidecar == vouched) {
        return Ok(());
    }
    on_hash();
    let file = File::open(path).map_err(failed)?;
    let copied = copy_hashed(file, &mut io::sink(), expected.bytes, &|_| ()).map_err(|error| match error {
        CopyError::Read(source) | CopyError::Write(source) => failed(source),
    })?;
    check_identity(&copied, expected, path)?;
    // If it changed while it was read, the state from before does not fit and the next start hashes again.
    remember(path, &vouched);
    Ok(())
}

/// Writes the sidecar of a file that has just been checked.
pub(crate) fn vouch(path: &Path, sha256: &str) {
    if let Ok(state) = State::of(path) {
        remember(path, &state.sidecar(sha256));
    }
}

struct State {
    bytes: u64,
    modified_ns: u128,
}

impl State {
    fn of(path: &Path) -> io::Result<Self> {
        let metadata = fs::metadata(path)?;
        let modified_ns = metadata.modified()?.duration_since(UNIX_EPOCH).map_or(0, |age| age.as_nanos());
        Ok(Self { bytes: metadata.len(), modified_ns })
    }

    fn sidecar(&self, sha256: &str) -> Sidecar {
        Sidecar {
            version: SIDECAR_VERSION,
            bytes: self.bytes,
            modified_ns: self.modified_ns,
            sha256: sha256.to_owned(),
        }
    }
}

fn sidecar_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".verified.json");
    name.into()
}

/// A missing or broken sidecar only costs a hash.
fn read_sidecar(path: &Path) -> Option<Sidecar> {
    let mut text = String::new();
    File::open(sidecar_path(path)).ok()?.take(MAX_SIDECAR_BYTES).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

/// Best effort: in a folder that cannot be written the hash is computed at every start.
fn remember(path: &Path, sidecar: &Sidecar) {
    let target = sidecar_path(path);
    let Some(dir) = target.parent() else { return };
    let written = tempfile::NamedTempFile::new_in(dir).and_then(|mut file| {
        file.write_all(serde_json::to_string(sidecar)?.as_bytes())?;
        Ok(file)
    });
    if let Ok(file) = written {
        let _ = file.persist(target);
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn a_file_is_hashed_once_and_again_after_a_change() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model");
        fs::write(&path, "abc").unwrap();
        let expected = Identity { bytes: 3, sha256: ABC };
        let hashes = Cell::new(0);
        let count = || hashes.set(hashes.get() + 1);
        verify(&path, expected, &count).unwrap();
        verify(&path, expected, &count).unwrap();
        assert_eq!(hashes.get(), 1);

        fs::write(&path, "abd").unwrap();
        let later = UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
        File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
        let error = verify(&path, expected, &count).unwrap_err();
        assert!(matches!(&error, StoreError::WrongHash { expected, .. } if expected == ABC), "{error}");
        fs::write(&path, "ab").unwrap();
        assert!(matches!(verify(&path, expected, &count), Err(StoreError::WrongSize { got: 2, .. })));
    }

    #[test]
    fn a_sidecar_for_another_hash_or_a_broken_one_vouches_for_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model");
        fs::write(&path, "abd").unwrap();
        vouch(&path, "00");
        let expected = Identity { bytes: 3, sha256: ABC };
        assert!(matches!(verify(&path, expected, &|| ()), Err(StoreError::WrongHash { .. })));
        fs::write(sidecar_path(&path), "{").unwrap();
        assert!(matches!(verify(&path, expected, &|| ()), Err(StoreError::WrongHash { .. })));
    }

    #[test]
    fn copying_stops_one_byte_after_the_limit() {
        let mut written = Vec::new();
        let copied = copy_hashed(io::repeat(7), &mut written, 1_000_000, &|_| ()).unwrap();
        assert_eq!((copied.bytes, written.len()), (1_000_001, 1_000_001));
        let exact = copy_hashed(&b"abc"[..], &mut io::sink(), 3, &|_| ()).unwrap();
        assert_eq!((exact.bytes, exact.sha256.as_str()), (3, ABC));
    }
}
