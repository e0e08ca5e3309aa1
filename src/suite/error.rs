//! What is wrong with a suite or a selection out of it.

use crate::hint::{Hint, did_you_mean};
use crate::sample::Bin;
use crate::tasks::{self, LineFault};

/// What is wrong with a suite or a selection out of it. `origin` is the file, or the suite's name.
#[derive(Debug, thiserror::Error)]
pub enum SuiteError {
    /// The file cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// There is no built-in suite of this name.
    #[error("there is no suite `{name}`")]
    UnknownSuite {
        /// The name.
        name: String,
    },
    /// More than is accepted.
    #[error("{origin}: {what}: {found}, the limit is {limit}")]
    Limit {
        /// File or suite.
        origin: String,
        /// Of what.
        what: String,
        /// How much there is.
        found: u64,
        /// How much may be.
        limit: u64,
    },
    /// Not TOML, or not the shape of a suite.
    #[error("{origin}:{line}: {message}")]
    Syntax {
        /// File or suite.
        origin: String,
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// Written for another version of the format.
    #[error("{origin}: schema_version is {found}, this version reads {}", super::SCHEMA_VERSION)]
    SchemaVersion {
        /// File or suite.
        origin: String,
        /// What the file says.
        found: String,
    },
    /// A value that is not legal.
    #[error("{origin}: {key}: {message}")]
    Invalid {
        /// File or suite.
        origin: String,
        /// Where, for example `bins[1].samples`.
        key: String,
        /// What is wrong.
        message: String,
    },
    /// A task's parameters are not legal.
    #[error("{origin}: task `{task}`: {message}")]
    Params {
        /// File or suite.
        origin: String,
        /// The task.
        task: String,
        /// What is wrong, naming the key.
        message: String,
    },
    /// A task that does not exist, or not here.
    #[error("{origin}: there is no task `{task}`")]
    UnknownTask {
        /// File or suite.
        origin: String,
        /// The name given.
        task: String,
        /// What exists here.
        known: Vec<String>,
    },
    /// A scorer that does not exist.
    #[error("{origin}: {key}: there is no scorer `{name}`")]
    UnknownScorer {
        /// File or suite.
        origin: String,
        /// Where, for example `tasks[2].scorer`.
        key: String,
        /// The name given.
        name: String,
        /// What was meant, or what exists.
        hints: Vec<String>,
    },
    /// A line of a user's file of prompts that cannot be asked.
    #[error("{path}:{line}: {fault}")]
    Line {
        /// The file.
        path: String,
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        fault: Box<LineFault>,
    },
    /// A bin that does not exist here.
    #[error("{origin}: there is no bin {bin}")]
    UnknownBin {
        /// File or suite.
        origin: String,
        /// The bin given.
        bin: String,
        /// What exists here.
        known: Vec<Bin>,
    },
    /// The gate names a cell that does not exist.
    #[error("{origin}: gate.cells.\"{cell}\": there is no {what} `{part}`")]
    UnknownCell {
        /// File or suite.
        origin: String,
        /// The key.
        cell: String,
        /// `task group` or `bin`.
        what: &'static str,
        /// The part that is not known.
        part: String,
        /// What exists here.
        known: Vec<String>,
    },
    /// Nothing is left to ask.
    #[error("{origin}: none of the selected tasks is asked in the selected bins")]
    NothingSelected {
        /// File or suite.
        origin: String,
    },
}

impl SuiteError {
    /// Whether something was named that does not exist, or nothing is left: a matter of selection, not of a broken file.
    pub fn is_selection(&self) -> bool {
        matches!(
            self,
            Self::UnknownTask { .. }
                | Self::UnknownBin { .. }
                | Self::UnknownCell { .. }
                | Self::NothingSelected { .. }
        )
    }
}

impl Hint for SuiteError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::UnknownSuite { name } => {
                let names: Vec<&str> = super::BUILTIN.iter().map(|(name, _)| *name).collect();
                vec![did_you_mean(name, &names), "a suite of your own is given by its path, ending in .toml".into()]
            }
            Self::UnknownTask { task, known, .. } => {
                let known: Vec<&str> = known.iter().map(String::as_str).collect();
                let elsewhere =
                    tasks::find(task).is_some().then(|| "the task exists, but this suite does not ask it".into());
                elsewhere.into_iter().chain([did_you_mean(task, &known)]).collect()
            }
            Self::UnknownBin { known, .. } => {
                vec![format!("known: {}", known.iter().map(Bin::to_string).collect::<Vec<_>>().join(", "))]
            }
            Self::UnknownCell { part, known, .. } => {
                vec![did_you_mean(part, &known.iter().map(String::as_str).collect::<Vec<_>>())]
            }
            Self::UnknownScorer { hints, .. } => hints.clone(),
            Self::Line { fault, .. } => fault.hints(),
            Self::Syntax { message, .. } | Self::Params { message, .. } => field_hint(message).into_iter().collect(),
            Self::SchemaVersion { .. } => vec!["start the file with `schema_version = 1`".into()],
            Self::NothingSelected { .. } => vec!["`kvgauge suite show` lists which task is asked in which bin".into()],
            Self::Read { .. } | Self::Limit { .. } | Self::Invalid { .. } => Vec::new(),
        }
    }
}

/// The nearest field, out of a deserializer's ``unknown field `a`, expected one of `b`, `c` ``.
fn field_hint(message: &str) -> Option<String> {
    let rest = &message[message.find("unknown field")?..];
    let mut words = rest.split('`').skip(1).step_by(2);
    let unknown = words.next()?;
    let known: Vec<&str> = words.collect();
    if known.is_empty() { None } else { Some(did_you_mean(unknown, &known)) }
}
