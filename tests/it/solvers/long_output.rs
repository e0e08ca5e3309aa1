//! Solvers of the long output tasks.

use super::Solver;

pub(super) static SOLVERS: &[Solver] = &[];
