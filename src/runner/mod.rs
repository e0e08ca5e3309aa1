//! Asks every open item of a plan of a target and writes the record. tokio lives here.
//!
//! Groups of items (one haystack each) are asked in plan order, as many at once as the arm's concurrency says, and are
//! journalled in that order as they land, so memory does not grow with the plan and a kill loses at most what is in flight.

pub mod event;
mod flight;
pub mod identity;
mod judge_item;

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;

use crate::hint::Hint;
use crate::record::manifest::{Manifest, RunStatus};
use crate::record::{Done, Opened, RecordError, RecordWriter};
use crate::runner::event::RunEvent;
use crate::runner::flight::{Flight, Gauge, Results};
pub use crate::runner::judge_item::judged_again;
use crate::sample::{Bin, Completion, Item, Outcome};
use crate::suite::{GroupSpec, Plan, Suite};
use crate::targets::{CancelFlag, Target, TargetError};
use crate::tasks::TaskError;
use crate::tokenizer::TokenCounter;

/// Items in a row that may fail before a run gives up: a broken target fails at once, not after hours.
const MAX_ERRORS_IN_A_ROW: usize = 8;

/// What to run, and where to write.
pub struct ArmRun<'a> {
    /// The suite the plan comes from; it generates the items.
    pub suite: &'a Suite,
    /// The items.
    pub plan: &'a Plan,
    /// Header of the record, made by [`identity::manifest`].
    pub manifest: Manifest,
    /// Folder of this arm's record.
    pub dir: &'a Path,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArmOutcome {
    /// Items with a record.
    pub done: usize,
    /// Items that were asked in this start.
    pub asked: usize,
    /// Items whose latest record is an error.
    pub errors: usize,
}

/// Why a run could not be finished. What is done is kept.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The record cannot be opened or written.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// An item cannot be generated.
    #[error(transparent)]
    Task(#[from] TaskError),
    /// The target refused.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// Ctrl-C or a deadline.
    #[error("interrupted after {done} of {planned} items of arm `{arm}`")]
    Interrupted {
        /// Arm name.
        arm: String,
        /// Items with a record.
        done: usize,
        /// Items of the plan.
        planned: usize,
    },
    /// The target fails on everything.
    #[error("{count} items in a row failed on arm `{arm}`; the last: {last}")]
    KeepsFailing {
        /// Arm name.
        arm: String,
        /// How many.
        count: usize,
        /// The last error.
        last: String,
    },
    /// A generated item is not the planned one: the generator is not deterministic.
    #[error("item {item_id} was planned but {found} was generated")]
    Generator {
        /// Planned.
        item_id: String,
        /// Generated.
        found: String,
    },
}

impl Hint for RunError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::Record(error) => error.hints(),
            Self::Task(error) => error.hints(),
            Self::Target(error) => error.hints(),
            Self::Interrupted { .. } => vec!["the same command continues where it stopped".into()],
            Self::KeepsFailing { .. } => {
                vec!["what is done is kept; the same command asks the failed items again".into()]
            }
            Self::Generator { .. } => vec!["this is a fault of kvgauge: please report it with the suite file".into()],
        }
    }
}

/// Runs one arm to the end, or until cancelled. Items that already have a valid record are not asked again; items whose
/// latest record is an error are.
///
/// # Errors
/// See [`RunError`]; the record is flushed and marked in every case.
pub async fn run_arm(
    run: ArmRun<'_>,
    target: &dyn Target,
    on_event: &(dyn Fn(RunEvent) + Send + Sync),
    cancel: &Arc<CancelFlag>,
) -> Result<ArmOutcome, RunError> {
    let bins: Vec<Bin> = run.suite.bins.iter().map(|bin| bin.bin).collect();
    target.accept_bins(&bins)?;
    let opened = RecordWriter::open(run.dir, &run.manifest)?;
    run_opened(run, opened, target, on_event, cancel).await
}

async fn run_opened(
    run: ArmRun<'_>,
    opened: Opened,
    target: &dyn Target,
    on_event: &(dyn Fn(RunEvent) + Send + Sync),
    cancel: &Arc<CancelFlag>,
) -> Result<ArmOutcome, RunError> {
    for warning in &opened.warnings {
        on_event(RunEvent::Warning(warning.clone()));
    }
    let mut state = Progress::new(&run, opened, on_event);
    // Later starts find answers; the first line of the log is when the arm was started, which a history goes by.
    if state.done.is_empty() {
        state.writer.event("started", &run.manifest.arm.name);
    }
    let result = state.ask_all(&run, target, cancel).await;
    // Also after an interruption: the next start cannot see what happened to the server in this one.
    if state.asked > 0 {
        state.writer.add_checks(target.watched().await);
    }
    let status = if result.is_ok() { RunStatus::Complete } else { RunStatus::Interrupted };
    let finished = state.writer.finish(status);
    match result {
        // A stop that was asked for is no error; a record that could not be closed then is.
        Ok(()) | Err(RunError::Interrupted { .. }) => finished?,
        // After a failed write the record is closed, and to finish it fails too: the first error is the cause.
        Err(_) => {}
    }
    result?;
    let errors = state.done.values().filter(|done| done.outcome == Outcome::Error).count();
    on_event(RunEvent::ArmFinished { arm: run.manifest.arm.name.clone(), done: state.done.len(), errors });
    Ok(ArmOutcome { done: state.done.len(), asked: state.asked, errors })
}

/// The moving parts of one arm's run.
struct Progress<'a> {
    writer: RecordWriter,
    done: BTreeMap<String, Done>,
    asked: usize,
    errors_in_a_row: usize,
    bins: BTreeMap<Bin, BinProgress>,
    on_event: &'a (dyn Fn(RunEvent) + Send + Sync),
}

#[derive(Clone, Copy, Default)]
struct BinProgress {
    planned: usize,
    done: usize,
}

impl<'a> Progress<'a> {
    fn new(run: &ArmRun<'_>, opened: Opened, on_event: &'a (dyn Fn(RunEvent) + Send + Sync)) -> Self {
        let mut state = Self {
            writer: opened.writer,
            done: opened.done,
            asked: 0,
            errors_in_a_row: 0,
            bins: BTreeMap::new(),
            on_event,
        };
        for group in &run.plan.groups {
            let open = state.open_items(group).len();
            let bin = state.bins.entry(group.bin).or_default();
            bin.planned += group.items.len();
            bin.done += group.items.len() - open;
        }
        let done = state.bins.values().map(|bin| bin.done).sum();
        let arm = run.manifest.arm.name.clone();
        on_event(RunEvent::ArmStarted { arm, planned: run.plan.item_count(), done });
        state
    }

    /// Ids of the items of `group` that have no valid record yet.
    fn open_items<'g>(&self, group: &'g GroupSpec) -> Vec<&'g str> {
        let is_open = |id: &&str| self.done.get(*id).is_none_or(|done| done.outcome == Outcome::Error);
        group.items.iter().map(|item| item.item_id.as_str()).filter(is_open).collect()
    }

    async fn ask_all(
        &mut self,
        run: &ArmRun<'_>,
        target: &dyn Target,
        cancel: &Arc<CancelFlag>,
    ) -> Result<(), RunError> {
        let counter = target.counter();
        let gauge = Gauge::new(self.on_event);
        let mut flight = Flight::new(run.manifest.arm.concurrency(), target, cancel, &gauge);
        let is_open = |group: &&GroupSpec| !self.open_items(group).is_empty();
        let mut waiting: VecDeque<&GroupSpec> = run.plan.groups.iter().filter(is_open).collect();
        let mut is_interrupted = false;
        loop {
            while !is_interrupted && flight.has_room() {
                let Some(group) = waiting.pop_front() else { break };
                if cancel.is_cancelled() {
                    is_interrupted = true;
                    break;
                }
                let items = generate(run.suite, group, &self.open_items(group), counter.as_ref())?;
                let progress = self.bins[&group.bin];
                (self.on_event)(RunEvent::GroupStarted {
                    bin: group.bin,
                    items: flight.items() + items.len(),
                    bin_planned: progress.planned,
                    bin_done: progress.done,
                });
                flight.start(items);
            }
            if flight.is_empty() {
                break;
            }
            flight.wait().await;
            while let Some((items, results)) = flight.land() {
                is_interrupted |= self.write_all(run, &items, results)?;
            }
        }
        if is_interrupted { Err(self.interrupted(run)) } else { Ok(()) }
    }

    /// Writes what was answered; says whether a part was not, because a stop was asked for.
    fn write_all(&mut self, run: &ArmRun<'_>, items: &[Item], results: Results) -> Result<bool, RunError> {
        let mut is_interrupted = false;
        for (item, result) in items.iter().zip(results) {
            if matches!(result, Err(TargetError::Cancelled)) {
                is_interrupted = true;
                continue;
            }
            match result {
                // The item stays open: there is nothing to say of it.
                Err(error) if error.stops_run() => return Err(error.into()),
                result => self.write(run, item, result)?,
            }
        }
        Ok(is_interrupted)
    }

    fn write(
        &mut self,
        run: &ArmRun<'_>,
        item: &Item,
        result: Result<Completion, TargetError>,
    ) -> Result<(), RunError> {
        let attempt = self.done.get(&item.item_id).map_or(1, |done| done.attempt + 1);
        let record = judge_item::record_of(item, result, attempt);
        self.writer.append(&record)?;
        self.asked += 1;
        self.done.insert(item.item_id.clone(), Done { outcome: record.outcome, attempt });
        self.bins.entry(item.bin).or_default().done += 1;
        (self.on_event)(RunEvent::ItemFinished { bin: item.bin, task: item.task.clone(), outcome: record.outcome });
        self.errors_in_a_row = if record.outcome == Outcome::Error { self.errors_in_a_row + 1 } else { 0 };
        if self.errors_in_a_row >= MAX_ERRORS_IN_A_ROW {
            return Err(RunError::KeepsFailing {
                arm: run.manifest.arm.name.clone(),
                count: self.errors_in_a_row,
                last: record.error.unwrap_or_default(),
            });
        }
        Ok(())
    }

    fn interrupted(&self, run: &ArmRun<'_>) -> RunError {
        let done = self.bins.values().map(|bin| bin.done).sum();
        RunError::Interrupted { arm: run.manifest.arm.name.clone(), done, planned: run.plan.item_count() }
    }
}

/// Generates a group and keeps the open items.
fn generate(
    suite: &Suite,
    group: &GroupSpec,
    open: &[&str],
    counter: &dyn TokenCounter,
) -> Result<Vec<Item>, RunError> {
    let items = suite.generate(group, counter)?;
    for (spec, item) in group.items.iter().zip(&items) {
        if spec.item_id != item.item_id {
            return Err(RunError::Generator { item_id: spec.item_id.clone(), found: item.item_id.clone() });
        }
    }
    Ok(items.into_iter().filter(|item| open.contains(&item.item_id.as_str())).collect())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::record::fault_injection::open_on_full_disk;
    use crate::setup::Arm;
    use crate::targets::scripted::Scripted;
    use crate::tokenizer::WordTokenizer;

    #[test]
    fn a_full_disk_is_the_error_and_not_what_follows_from_it() {
        let dir = tempfile::tempdir().unwrap();
        let suite = Suite::builtin("smoke").unwrap();
        let plan = suite.plan();
        let arm = Arm::baseline("bfloat16");
        let target = Scripted::new(&arm, &[], Arc::new(WordTokenizer));
        let manifest = identity::manifest(&suite, &plan, &arm, &target, BTreeMap::new());
        let opened = open_on_full_disk(dir.path(), &manifest);
        let run = ArmRun { suite: &suite, plan: &plan, manifest, dir: dir.path() };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let cancel = Arc::new(CancelFlag::default());
        let error = runtime.block_on(run_opened(run, opened, &target, &|_| (), &cancel)).unwrap_err();
        assert!(matches!(&error, RunError::Record(cause) if cause.is_disk_full()), "{error}");
        assert!(error.hints()[0].contains("free some space"));
    }
}
