//! Solvers of the structure tasks.

use super::Solver;

pub(super) static SOLVERS: &[Solver] = &[];
