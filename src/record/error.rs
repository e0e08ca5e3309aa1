//! What can be wrong with a run record.

use std::io;
use std::path::{Path, PathBuf};

use crate::hint::Hint;
use crate::record::manifest::{Difference, FormatVersion};

/// Differences listed in one message: more do not help to find the wrong flag.
const MAX_LISTED_DIFFERENCES: usize = 8;

/// Why a run record cannot be opened, written or read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Another process writes this record.
    #[error("{} is being written by another process", path.display())]
    Locked {
        /// The record's folder.
        path: PathBuf,
    },
    /// The folder holds a run of something else.
    #[error("{} belongs to another plan: {}", path.display(), listed(differences))]
    PlanDiffers {
        /// The record's folder.
        path: PathBuf,
        /// Field by field.
        differences: Vec<Difference>,
    },
    /// There is no record in the folder.
    #[error("{} holds no run record (no manifest.json)", path.display())]
    NotFound {
        /// The folder.
        path: PathBuf,
    },
    /// The record has a format this version cannot read, or not append to.
    #[error("{} has format {}.{}, this version {} {}.{}", path.display(), found.major, found.minor,
        if *appending { "appends to" } else { "reads" }, known.major, known.minor)]
    Format {
        /// The manifest, or the run folder's plan.
        path: PathBuf,
        /// Its format.
        found: FormatVersion,
        /// The format of this version.
        known: FormatVersion,
        /// Whether it was to be appended to.
        appending: bool,
    },
    /// A file of the record does not say what it must.
    #[error("{}: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The journal is damaged before its end.
    #[error("{} is damaged at line {line} (byte {offset}): {reason}", path.display())]
    Damaged {
        /// The journal.
        path: PathBuf,
        /// First bad line, counted from 1.
        line: u64,
        /// Where that line starts.
        offset: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// The status says complete, and items are missing.
    #[error("{} says complete with {planned} items, but the journal holds {found}", path.display())]
    Incomplete {
        /// The record's folder.
        path: PathBuf,
        /// Items of the plan.
        planned: u64,
        /// Items with a record.
        found: u64,
    },
    /// A sample that must not be written: it contradicts itself or holds a number that is none.
    #[error("sample {item_id} is inconsistent: {reason}")]
    Inconsistent {
        /// The item.
        item_id: String,
        /// What contradicts what.
        reason: String,
    },
    /// A sample that stays too long for a journal line after its texts were clipped.
    #[error("sample {item_id} takes {bytes} bytes, a journal line at most {limit}")]
    LineTooLong {
        /// The item.
        item_id: String,
        /// Its size after clipping.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The file system failed: full, read-only, or a write that could not be made durable.
    #[error("{}: {source}", path.display())]
    Storage {
        /// What was being read or written.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// An earlier write failed; nothing more is written, so that no line can follow a broken one.
    #[error("{} is closed after an earlier write error", path.display())]
    Closed {
        /// The journal.
        path: PathBuf,
    },
}

impl RecordError {
    pub(crate) fn storage(path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_path_buf();
        move |source| Self::Storage { path, source }
    }

    pub(crate) fn malformed(path: &Path, reason: impl Into<String>) -> Self {
        Self::Malformed { path: path.to_path_buf(), reason: reason.into() }
    }

    /// Whether the disk (or a quota) is full.
    pub fn is_disk_full(&self) -> bool {
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        matches!(self, Self::Storage { source, .. } if matches!(source.kind(), StorageFull | QuotaExceeded | FileTooLarge))
    }
}

fn listed(differences: &[Difference]) -> String {
    let mut text =
        differences.iter().take(MAX_LISTED_DIFFERENCES).map(ToString::to_string).collect::<Vec<_>>().join("; ");
    if differences.len() > MAX_LISTED_DIFFERENCES {
        text.push_str(&format!("; and {} more", differences.len() - MAX_LISTED_DIFFERENCES));
    }
    text
}

impl Hint for RecordError {
    fn hints(&self) -> Vec<String> {
        let hints: &[&str] = match self {
            Self::Locked { .. } => &["wait for the other process, or choose another folder with --run-dir"],
            Self::PlanDiffers { .. } => {
                &["choose another folder with --run-dir, or run with the suite, model and flags of this record"]
            }
            Self::NotFound { .. } => &["give the folder of one arm: the one that holds manifest.json"],
            Self::Format { .. } => &["use the version of kvgauge that wrote it"],
            Self::Malformed { .. } => {
                &["restore the file from a copy, or start again in another folder with --run-dir"]
            }
            Self::Damaged { .. } => &[
                "run again with this folder: everything before the damage is kept, the rest is set aside and asked again",
            ],
            Self::Incomplete { .. } => &["run again with this folder: the missing items are asked"],
            Self::Inconsistent { .. } | Self::LineTooLong { .. } => &[],
            Self::Storage { source, .. } => match source.kind() {
                _ if self.is_disk_full() => &["free some space and start again: what is recorded is kept and resumes"],
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                    &["the folder must be writable: choose another with --run-dir"]
                }
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                    &["a part of the path is missing or not a folder: choose another with --run-dir"]
                }
                _ => &["check the disk, then start again: what is recorded is kept and resumes"],
            },
            Self::Closed { .. } => &["start again: what is recorded is kept and resumes"],
        };
        hints.iter().map(ToString::to_string).collect()
    }
}
