//! Rule-based solvers: each reads the prompt alone, as a perfect reader would, and writes the answer. That an item is solved
//! proves that it can be solved and that its scorer takes a right answer; a solver that is wrong in a named way proves that
//! the fault gets its name.

mod dialogue;
mod long_output;
mod retrieval;
mod structure;

use kvgauge::sample::{FaultKind, Item};

/// A way of being wrong, and the answers of all turns that are wrong in it.
pub(crate) type Wrong = (FaultKind, Vec<String>);

/// How one task is solved.
pub(crate) struct Solver {
    /// Task id.
    pub(crate) task: &'static str,
    /// The answers to the question and its follow-ups, out of the item's messages and follow-up questions alone.
    pub(crate) solve: fn(&Item) -> Vec<String>,
    /// Answers that are wrong in one way each, with the name of that way; they may look at what is expected.
    pub(crate) wrong: fn(&Item) -> Vec<Wrong>,
}

/// All solvers, one per task.
pub(crate) fn solvers() -> impl Iterator<Item = &'static Solver> {
    [retrieval::SOLVERS, structure::SOLVERS, long_output::SOLVERS, dialogue::SOLVERS].into_iter().flatten()
}

/// The document and the question of a prompt.
pub(crate) fn text_and_question(item: &Item) -> (&str, &str) {
    let content = &item.messages.last().expect("a prompt").content;
    content.rsplit_once("\n\nQuestion: ").or_else(|| content.rsplit_once("\n\n问题：")).expect("a question")
}
