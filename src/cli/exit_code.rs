//! Exit codes: a promise to scripts. The table is printed by `--help`, and every error has its code in one exhaustive match.
//!
//! 100 comes from a completed comparison only, so that a regression is never confused with a crash (1) or a typing error (2).

use std::fmt::Write as _;

/// What the process says when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Success,
    Internal,
    Usage,
    Baseline,
    NothingSelected,
    Inconclusive,
    NotMeasured,
    Regressed,
    Interrupted,
    Terminated,
}

impl Exit {
    const ALL: [Self; 10] = [
        Self::Success,
        Self::Internal,
        Self::Usage,
        Self::Baseline,
        Self::NothingSelected,
        Self::Inconclusive,
        Self::NotMeasured,
        Self::Regressed,
        Self::Interrupted,
        Self::Terminated,
    ];

    /// The number. 130 and 143 are the shell's 128 + signal.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Internal => 1,
            Self::Usage => 2,
            Self::Baseline => 3,
            Self::NothingSelected => 4,
            Self::Inconclusive => 5,
            Self::NotMeasured => 6,
            Self::Regressed => 100,
            Self::Interrupted => 130,
            Self::Terminated => 143,
        }
    }

    fn meaning(self) -> &'static str {
        match self {
            Self::Success => "the gate passed, or the command did its work",
            Self::Internal => "unexpected internal error",
            Self::Usage => "usage or config error, bad model file, run folder locked or of another plan",
            Self::Baseline => "the baseline is missing, incompatible or damaged",
            Self::NothingSelected => "nothing selected, or a gate names a task or bin that does not exist",
            Self::Inconclusive => "INCONCLUSIVE, where --on-inconclusive is `fail`",
            Self::NotMeasured => "could not measure, or INVALID; what is done is kept and resumes",
            Self::Regressed => "REGRESSED",
            Self::Interrupted => "interrupted, after a clean flush",
            Self::Terminated => "terminated, after a clean flush",
        }
    }
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// The table as `--help` prints it.
pub(crate) fn table() -> String {
    let mut table = String::from("Exit codes:\n");
    for exit in Exit::ALL {
        writeln!(table, "  {:>3}  {}", exit.code(), exit.meaning()).expect("writing to a String does not fail");
    }
    table
}
