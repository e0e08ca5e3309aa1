//! Reading a record from disk, without touching it.

use std::collections::BTreeMap;
use std::path::Path;

use crate::record::journal::{self, End};
use crate::record::manifest::{Manifest, RunStatus};
use crate::record::samples::SampleRecord;
use crate::record::writer::{MAX_NAMED_DUPLICATES, unnamed_duplicates};
use crate::record::{RecordError, SAMPLES_FILE};

/// A run as everything right of the waist sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The header.
    pub manifest: Manifest,
    /// One per item, the latest attempt, sorted by bin, task, slot, index and id.
    pub samples: Vec<SampleRecord>,
}

impl Record {
    /// Reads the record in `dir`. A torn last line of an unfinished run counts as not written.
    ///
    /// # Errors
    /// Those of [`Manifest::read`]; [`RecordError::Damaged`] for a bad line before the end, or a torn one in a run that says
    /// it is complete; [`RecordError::Incomplete`] for such a run without all its items.
    pub fn read(dir: &Path) -> Result<Self, RecordError> {
        Self::read_noting(dir).map(|(record, _)| record)
    }

    /// [`Record::read`] together with what was noted on the way, one line each.
    ///
    /// # Errors
    /// Those of [`Record::read`].
    pub fn read_noting(dir: &Path) -> Result<(Self, Vec<String>), RecordError> {
        let manifest = Manifest::read(dir)?;
        let path = dir.join(SAMPLES_FILE);
        let mut latest = Latest::default();
        let scan = journal::scan(&path, manifest.format, |sample| latest.insert(sample))?;
        latest.warnings.extend(unnamed_duplicates(latest.duplicates));
        let complete = manifest.status == RunStatus::Complete;
        let damaged = |line, reason| RecordError::Damaged { path: path.clone(), line, offset: scan.good_bytes, reason };
        match scan.end {
            End::Damaged { line, reason } => return Err(damaged(line, reason)),
            End::Torn if complete => return Err(damaged(latest.lines + 1, "the last line has no end".into())),
            End::Torn => latest.warnings.push(format!("{}: the last line was cut off in writing", path.display())),
            End::Clean => {}
        }
        let found = latest.samples.len() as u64;
        if complete && found < manifest.planned_items {
            return Err(RecordError::Incomplete { path: dir.to_path_buf(), planned: manifest.planned_items, found });
        }
        let mut samples: Vec<SampleRecord> = latest.samples.into_values().collect();
        samples.sort_by(|a, b| canonical_key(a).cmp(&canonical_key(b)));
        Ok((Self { manifest, samples }, latest.warnings))
    }
}

fn canonical_key(sample: &SampleRecord) -> (u32, &str, u8, u32, &str) {
    (sample.bin.0, &sample.task, sample.slot_percent, sample.index, &sample.item_id)
}

/// Keeps the latest attempt per item; of equal attempts the first.
#[derive(Default)]
struct Latest {
    samples: BTreeMap<String, SampleRecord>,
    lines: u64,
    duplicates: usize,
    warnings: Vec<String>,
}

impl Latest {
    fn insert(&mut self, sample: SampleRecord) {
        self.lines += 1;
        match self.samples.get_mut(&sample.item_id) {
            None => {
                self.samples.insert(sample.item_id.clone(), sample);
            }
            Some(kept) if sample.attempt > kept.attempt => *kept = sample,
            Some(kept) if sample.attempt == kept.attempt => {
                self.duplicates += 1;
                if self.duplicates <= MAX_NAMED_DUPLICATES {
                    self.warnings.push(format!(
                        "line {}: item {} was recorded twice as attempt {}; the first is used",
                        self.lines, sample.item_id, sample.attempt
                    ));
                }
            }
            Some(_) => {}
        }
    }
}
