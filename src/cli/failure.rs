//! Everything a command can fail with. The library has one error type per stage; here they meet, so that each gets an exit code.

use std::io;
use std::path::PathBuf;

use kvgauge::hint::Hint;

use crate::config::ConfigError;
use crate::exit_code::Exit;

/// Why a command ended without its result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("configuration, [suite] bins: {0}")]
    Bins(String),
    #[error("standard output: {0}")]
    Stdout(io::Error),
    #[error("JSON: {0}")]
    Json(serde_json::Error),
    #[error("`{}` cannot be written: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("signal handlers cannot be set: {0}")]
    Signals(io::Error),
    #[error("interrupted")]
    Interrupted(Exit),
}

impl Failure {
    /// The exit code: exhaustive on purpose, a new error has to decide.
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Config(_) | Self::Bins(_) => Exit::Usage,
            Self::Stdout(_) | Self::Json(_) | Self::Signals(_) => Exit::Internal,
            Self::Write { source, .. } => of_write(source),
            Self::Interrupted(exit) => *exit,
        }
    }
}

/// A full disk is no fault of the command line: what is done is kept, and the command resumes. The rest is a wrong path.
fn of_write(error: &io::Error) -> Exit {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => Exit::NotMeasured,
        _ => Exit::Usage,
    }
}

impl Hint for Failure {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::Config(error) => error.hints(),
            Self::Write { source, .. } => match of_write(source) {
                Exit::NotMeasured => {
                    vec!["free some space and start the same command again: it goes on where it stopped".into()]
                }
                _ => vec!["name a place that can be written to".into()],
            },
            Self::Interrupted(_) => vec!["the same command goes on where this one stopped".into()],
            Self::Bins(_) | Self::Stdout(_) | Self::Json(_) | Self::Signals(_) => Vec::new(),
        }
    }
}
