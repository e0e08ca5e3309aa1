//! What the runner tells the outside: the only channel to progress display.

use crate::sample::{Bin, Outcome};

/// Progress of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum RunEvent {
    /// An arm starts: `done` of `planned` items were found in the journal.
    ArmStarted {
        /// Arm name.
        arm: String,
        /// Items of the plan.
        planned: usize,
        /// Already answered.
        done: usize,
    },
    /// A haystack group starts.
    GroupStarted {
        /// Its bin.
        bin: Bin,
        /// Open items in it.
        items: usize,
        /// Items of this bin in the plan, and how many are done.
        bin_planned: usize,
        /// See `bin_planned`.
        bin_done: usize,
    },
    /// Prompt tokens processed of the current group's total.
    Prefill {
        /// Done so far.
        done: usize,
        /// Of these.
        total: usize,
    },
    /// Tokens generated in the current group.
    Decode {
        /// Done so far.
        tokens: usize,
    },
    /// An item has its record.
    ItemFinished {
        /// Bin.
        bin: Bin,
        /// Task.
        task: String,
        /// What became of it.
        outcome: Outcome,
    },
    /// Something worth a line: a torn journal line was cut off, a duplicate was ignored.
    Warning(String),
    /// The arm ends.
    ArmFinished {
        /// Arm name.
        arm: String,
        /// Items with a record.
        done: usize,
        /// Items that ended in an error.
        errors: usize,
    },
}
