//! Small documents that no byte can be changed of unseen: each has exactly one spelling, and the last field is the hash of the rest.
//!
//! This guards against broken disks, line endings and careless edits, not against someone who computes the hash again; who may change
//! files of a repository is for its reviews.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::baseline::BaselineError;
use crate::record::journal::read_small;
use crate::record::manifest::FormatVersion;

/// Largest sealed document: a pointer with its whole history takes some 50 KiB.
pub(super) const MAX_SEALED_BYTES: u64 = 1024 * 1024;

/// A document with a checksum.
pub(super) trait Sealed: Clone + Serialize + DeserializeOwned {
    /// The newest format this version reads.
    const FORMAT: FormatVersion;
    /// Its field with the checksum.
    fn checksum(&mut self) -> &mut String;
}

/// The bytes of `document` with its checksum in place.
pub(super) fn seal<T: Sealed>(document: &T) -> Vec<u8> {
    let mut sealed = document.clone();
    *sealed.checksum() = checksum_of(document);
    bytes_of(&sealed)
}

fn checksum_of<T: Sealed>(document: &T) -> String {
    let mut open = document.clone();
    open.checksum().clear();
    blake3::hash(&bytes_of(&open)).to_hex().to_string()
}

fn bytes_of<T: Sealed>(document: &T) -> Vec<u8> {
    let mut json = serde_json::to_vec_pretty(document).expect("strings, numbers and lists of them always serialise");
    json.push(b'\n');
    json
}

/// Reads a sealed document; `None` where there is no file.
///
/// # Errors
/// [`BaselineError::Format`] for a newer format, [`BaselineError::Unsealed`] where a byte is not as it was written, and what the file
/// system says.
pub(super) fn unseal<T: Sealed>(path: &Path) -> Result<Option<T>, BaselineError> {
    let Some(bytes) = read_small(path, MAX_SEALED_BYTES)? else { return Ok(None) };
    let damaged = |reason: String| BaselineError::Unsealed { path: path.into(), reason };
    let FormatOnly { format } = serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
    if format.major != T::FORMAT.major || format.minor > T::FORMAT.minor {
        return Err(BaselineError::Format { path: path.into(), found: format, known: T::FORMAT });
    }
    let mut document: T = serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
    let expected = checksum_of(&document);
    if *document.checksum() != expected || bytes_of(&document) != bytes {
        return Err(damaged("its checksum is not that of its content".into()));
    }
    Ok(Some(document))
}

/// All that is looked at before the version is known to be readable.
#[derive(Deserialize)]
struct FormatOnly {
    format: FormatVersion,
}

/// Replaces a file in one step: a reader sees the old bytes or the new ones.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> Result<(), BaselineError> {
    let failed = BaselineError::storage(path);
    let folder = path.parent().unwrap_or(Path::new("."));
    let write = || {
        let mut file = tempfile::Builder::new().prefix(".kvgauge-").tempfile_in(folder)?;
        file.write_all(bytes)?;
        make_readable(file.as_file())?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)?;
        Ok(())
    };
    write().map_err(failed)
}

/// Temporary files are private to the user; a baseline is made to be shared.
#[cfg(unix)]
fn make_readable(file: &fs::File) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    file.set_permissions(fs::Permissions::from_mode(0o644))
}

#[cfg(not(unix))]
fn make_readable(_: &fs::File) -> std::io::Result<()> {
    Ok(())
}
