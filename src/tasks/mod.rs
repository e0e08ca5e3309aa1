//! Generators: `(bin, seed, token counter) → Item`s, one file per task.
//!
//! A document carries the plants of one or several questions, and [`generate`] turns the recipe of a document into items
//! whose prompts are equal up to the question. A task states what it plants, what it asks and what is right; where things
//! stand, how long the text is and how tokens are counted is decided once, for all tasks, in `group.rs` and `haystack.rs`.
//!
//! To add a task: one file with a `TASK`, one line in [`TASKS`].

mod absent;
mod chain;
mod cite;
mod custom;
mod enumerate;
mod error;
mod format_lock;
mod frequent_codes;
mod group;
mod haystack;
mod json_extract;
mod latest_value;
mod ledger;
mod lexicon;
mod lookalike;
mod multi_turn;
mod multiquery;
mod multivalue;
mod needle;
mod params;
mod path_walk;
mod perturb;
mod planting;
mod relation;
mod repeat_edit;
mod table;
mod tool_call;
mod user_text;
mod verbatim;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use custom::{CustomLine, CustomParams, LineFault, custom_params};
pub use error::TaskError;
pub use group::{GroupRequest, QuestionRequest, generate};
pub(crate) use params::PerBin;
pub use params::{ParamError, default_output_reserve};
pub(crate) use perturb::perturbations;
pub use planting::{Planted, Planting};
pub use user_text::{UserText, UserTextError};

use crate::sample::Language;

/// A generator with what has to be known of it without generating.
pub struct Task {
    /// Frozen id.
    pub id: &'static str,
    /// One line for lists.
    pub summary: &'static str,
    /// The group it is judged in.
    pub group: TaskGroup,
    /// Name of its scorer.
    pub scorer: &'static str,
    /// Counts up with every change that makes other items.
    pub generator_version: u32,
    /// The document it needs.
    pub ground: Ground,
    /// What its depth slot means.
    pub depth: Depth,
    /// Checks a suite's parameters.
    pub check: fn(&toml::Table) -> Result<(), ParamError>,
    /// Plants one question.
    pub plant: fn(&mut Planting<'_>) -> Result<Planted, TaskError>,
}

/// The kind of document a task asks about. Questions share a document only with questions of the same kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ground {
    /// Grammar-generated prose with planted sentences.
    Prose,
    /// Lines of look-alike keys with values, nothing else.
    Pairs,
    /// Prompts that the user gives whole; see [`CustomLine`].
    Given,
}

/// What a depth slot means for a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// The (first) needle stands at the slot.
    AtSlot,
    /// The plants are spread over the whole text; items have no depth and their slot is 0.
    Spread,
}

/// All tasks, in the order they are listed.
pub static TASKS: &[Task] = &[
    needle::TASK,
    lookalike::TASK,
    multivalue::TASK,
    multiquery::TASK,
    latest_value::TASK,
    absent::TASK,
    chain::TASK,
    relation::TASK,
    frequent_codes::TASK,
    json_extract::TASK,
    tool_call::TASK,
    table::TASK,
    format_lock::TASK,
    cite::TASK,
    verbatim::TASK,
    ledger::TASK,
    path_walk::TASK,
    enumerate::TASK,
    repeat_edit::TASK,
    multi_turn::TASK,
    custom::TASK,
];

/// The task with this id.
pub fn find(id: &str) -> Option<&'static Task> {
    TASKS.iter().find(|task| task.id == id)
}

/// The ids of all tasks.
pub fn ids() -> Vec<&'static str> {
    TASKS.iter().map(|task| task.id).collect()
}

/// The version of a language's words and sentence patterns: they decide the items as much as a generator does.
pub fn lexicon_version(language: Language) -> &'static str {
    lexicon::Lexicon::of(language).version()
}

/// The judged groups of tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskGroup {
    /// needle, lookalike, multivalue, multiquery, latest_value, absent
    Retrieval,
    /// chain, relation, frequent_codes
    Tracing,
    /// json_extract, tool_call, table, format_lock
    Structure,
    /// cite
    Sources,
    /// verbatim, ledger, path_walk, enumerate, repeat_edit
    LongOutput,
    /// multi_turn
    Dialogue,
    /// the user's own
    Custom,
}

impl TaskGroup {
    /// All groups.
    pub const ALL: [Self; 7] = [
        Self::Retrieval,
        Self::Tracing,
        Self::Structure,
        Self::Sources,
        Self::LongOutput,
        Self::Dialogue,
        Self::Custom,
    ];

    /// The name used in policies and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Retrieval => "retrieval",
            Self::Tracing => "tracing",
            Self::Structure => "structure",
            Self::Sources => "sources",
            Self::LongOutput => "long_output",
            Self::Dialogue => "dialogue",
            Self::Custom => "custom",
        }
    }

    /// The group a task belongs to.
    pub fn of_task(task: &str) -> Self {
        match task {
            "needle" | "lookalike" | "multivalue" | "multiquery" | "latest_value" | "absent" => Self::Retrieval,
            "chain" | "relation" | "frequent_codes" => Self::Tracing,
            "json_extract" | "tool_call" | "table" | "format_lock" => Self::Structure,
            "cite" => Self::Sources,
            "verbatim" | "ledger" | "path_walk" | "enumerate" | "repeat_edit" => Self::LongOutput,
            "multi_turn" => Self::Dialogue,
            _ => Self::Custom,
        }
    }
}
