//! Solvers of the retrieval tasks.

use super::Solver;

pub(super) static SOLVERS: &[Solver] = &[];
