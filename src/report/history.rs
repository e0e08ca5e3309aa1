//! Earlier runs beside this one: what the nightlies say of each bin, and what changed between them.
//!
//! Read from the `comparison.json` of each run folder: it is small to parse, has the judged numbers, and a run that was judged has one.
//! Only what the page shows is taken out of it, so documents of other versions are read as far as they agree. When a run started is
//! in the event log of its arms; the times of files are never used, since copies and caches change them. Nothing is judged by this.

mod past;

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::compare::Comparison;
use crate::gate::{Ruling, Verdict};
use crate::hint::Hint;
use crate::sample::Bin;

/// Folders looked at: ten years of nightlies.
const MAX_FOLDERS: usize = 4096;
/// Runs shown, the latest: two months of nightlies, and as many points as a small plot can hold.
pub(crate) const MAX_RUNS: usize = 60;

/// Earlier runs and this one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// In the order of their starts; the one that is reported is the last.
    pub(crate) runs: Vec<PastRun>,
    /// Folders that are not shown, each with the reason.
    pub(crate) skipped: Vec<(String, String)>,
    /// Runs before the ones shown.
    pub(crate) older: usize,
}

/// One run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PastRun {
    /// Name of its folder.
    pub(crate) name: String,
    /// When its first candidate was started.
    pub(crate) started_unix_ms: Option<u64>,
    /// Suite and model: another one is another history.
    pub(crate) subject: (String, String),
    /// What may change from night to night: versions and hashes by name.
    pub(crate) facts: BTreeMap<&'static str, String>,
    /// The candidates.
    pub(crate) arms: Vec<PastArm>,
}

/// One candidate of a run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PastArm {
    /// Its name, which makes it the same arm in every run.
    pub(crate) name: String,
    /// Its ruling.
    pub(crate) ruling: Ruling,
    /// What may change from night to night in this arm alone.
    pub(crate) facts: BTreeMap<&'static str, String>,
    /// Bins, ascending.
    pub(crate) bins: Vec<PastBin>,
}

/// One candidate in one bin, all task groups together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PastBin {
    /// The bin.
    pub(crate) bin: Bin,
    /// Scored pairs.
    pub(crate) pairs: u64,
    /// Candidate − baseline.
    pub(crate) delta: f64,
    /// 95 % interval of `delta`.
    pub(crate) interval: Option<(f64, f64)>,
    /// The worst ruling of the bin's cells and symptoms; INVALID when the arm is.
    pub(crate) ruling: Ruling,
}

/// Why there is no history.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The folder cannot be listed.
    #[error("the history {} cannot be read: {source}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// More folders than a history has.
    #[error("the history {} has more than {limit} folders", path.display())]
    TooMany {
        /// The folder.
        path: PathBuf,
        /// The limit.
        limit: usize,
    },
}

impl Hint for HistoryError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::Folder { .. } => vec!["name the folder that holds the run folders of earlier nights".into()],
            Self::TooMany { .. } => vec!["move old runs to another folder".into()],
        }
    }
}

impl History {
    /// The run folders in `dir`, but for `this_run`, which is added by [`History::with`]. A folder that is damaged or no run is named
    /// among those skipped.
    ///
    /// # Errors
    /// When `dir` cannot be listed or has more than 4096 folders.
    pub fn read(dir: &Path, this_run: Option<&Path>) -> Result<Self, HistoryError> {
        let unreadable = |source| HistoryError::Folder { path: dir.into(), source };
        let this_run = this_run.and_then(|path| fs::canonicalize(path).ok());
        let mut folders = Vec::new();
        for entry in fs::read_dir(dir).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            if path.is_dir() {
                folders.push(path);
            }
            if folders.len() > MAX_FOLDERS {
                return Err(HistoryError::TooMany { path: dir.into(), limit: MAX_FOLDERS });
            }
        }
        folders.sort();
        let mut history = Self::default();
        for folder in folders {
            if this_run.is_some() && fs::canonicalize(&folder).ok() == this_run {
                continue;
            }
            match past::read(&folder) {
                Ok(run) => history.runs.push(run),
                Err(reason) => history.skipped.push((folder_name(&folder), reason)),
            }
        }
        Ok(history)
    }

    /// Folders that are no runs of this history, each with the reason.
    pub fn skipped(&self) -> impl Iterator<Item = (&str, &str)> {
        self.skipped.iter().map(|(name, why)| (name.as_str(), why.as_str()))
    }

    /// Adds the run that is reported, the last one, and keeps those of the same suite and model that come before it.
    #[must_use]
    pub fn with(mut self, comparison: &Comparison, verdict: &Verdict, run_dir: Option<&Path>) -> Self {
        let this = past::of_comparison(comparison, verdict, run_dir);
        let (mut runs, others): (Vec<PastRun>, Vec<PastRun>) =
            self.runs.into_iter().partition(|run| run.subject == this.subject);
        for run in others {
            let (suite, model) = run.subject;
            self.skipped.push((run.name, format!("it is of suite {suite} and model {model}")));
        }
        let is_later = |run: &PastRun| this.started_unix_ms.is_some_and(|started| run.started_unix_ms > Some(started));
        let later: Vec<String> = runs.iter().filter(|run| is_later(run)).map(|run| run.name.clone()).collect();
        runs.retain(|run| !is_later(run));
        self.skipped.extend(later.into_iter().map(|name| (name, "it is later than this run".to_owned())));
        self.skipped.sort();
        runs.sort_by(by_start);
        runs.push(this);
        self.older = runs.len().saturating_sub(MAX_RUNS);
        runs.drain(..self.older);
        self.runs = runs;
        self
    }
}

fn by_start(a: &PastRun, b: &PastRun) -> Ordering {
    (a.started_unix_ms, &a.name).cmp(&(b.started_unix_ms, &b.name))
}

fn folder_name(folder: &Path) -> String {
    folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// What differs between two runs: `engine: vLLM 0.11 → vLLM 0.12`. A fact that only one of them has is no change.
pub(crate) fn changes(
    before: &BTreeMap<&'static str, String>,
    after: &BTreeMap<&'static str, String>,
) -> Vec<(&'static str, String, String)> {
    let both = after.iter().filter_map(|(name, after)| Some((*name, before.get(name)?, after)));
    both.filter(|(_, before, after)| before != after)
        .map(|(name, before, after)| (name, before.clone(), after.clone()))
        .collect()
}
