//! Why a server did not start, with what it printed last.

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use crate::hint::{Hint, did_you_mean};
use crate::serving::http::EndpointError;
use crate::serving::launch::log::LogFile;
use crate::serving::startup_log;

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// `launch` names no program.
    #[error("`launch` is empty: it takes a program and its arguments")]
    Empty,
    /// A placeholder that nothing fills.
    #[error("`launch` has the placeholder {{{name}}}, which nothing fills")]
    UnknownPlaceholder {
        /// Its name.
        name: String,
        /// Those that exist.
        known: Vec<String>,
    },
    /// Neither `{port}` nor `port`.
    #[error("`launch` does not say where the port goes")]
    NoPort,
    /// Somebody else has the port.
    #[error("port {port} is not free: {source}")]
    PortTaken {
        /// The port.
        port: u16,
        /// What the system says.
        source: io::Error,
    },
    /// The log cannot be written.
    #[error("the server's log `{}` cannot be written: {source}", path.display())]
    Log {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The program cannot be started.
    #[error("`{program}` cannot be started: {source}")]
    Spawn {
        /// The program.
        program: String,
        /// What the system says.
        source: io::Error,
    },
    /// It ended before it was ready.
    #[error("`{program}` ended before it was ready ({status}){said}")]
    Exited {
        /// The program.
        program: String,
        /// Exit code or signal.
        status: String,
        /// What it printed last.
        said: LastWords,
    },
    /// It was not ready in time and was killed.
    #[error("`{program}` was not ready within {limit_s} s{said}")]
    NotReady {
        /// The program.
        program: String,
        /// The limit in seconds.
        limit_s: u64,
        /// What it printed last.
        said: LastWords,
    },
    /// It cannot be asked.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
}

/// The end of a server's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastWords {
    /// The line that looks like the reason.
    pub reason: Option<String>,
    /// The last lines.
    pub lines: Vec<String>,
    /// The whole log.
    pub log_path: PathBuf,
}

impl fmt::Display for LastWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(reason) = &self.reason {
            write!(f, ": {reason}")?;
        }
        match self.lines.is_empty() {
            true => write!(f, "\nit printed nothing (log: {})", self.log_path.display()),
            false => write!(f, "\nlast lines of {}:", self.log_path.display()),
        }?;
        self.lines.iter().try_for_each(|line| write!(f, "\n  | {line}"))
    }
}

impl LaunchError {
    pub(super) fn exited(program: &str, status: String, log: &LogFile) -> Self {
        Self::Exited { program: program.to_owned(), status, said: last_words(log) }
    }

    pub(super) fn not_ready(program: &str, limit_s: u64, log: &LogFile) -> Self {
        Self::NotReady { program: program.to_owned(), limit_s, said: last_words(log) }
    }

    /// Whether the settings are at fault, so that nothing was started.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::Empty | Self::UnknownPlaceholder { .. } | Self::NoPort | Self::PortTaken { .. } | Self::Spawn { .. }
        )
    }
}

fn last_words(log: &LogFile) -> LastWords {
    let lines = log.last_lines();
    LastWords { reason: recognised(log.path()).or_else(|| reason(&lines)), lines, log_path: log.path().to_path_buf() }
}

/// The reason as the reader of start-up logs understands it.
fn recognised(log_path: &Path) -> Option<String> {
    let reading = startup_log::read(BufReader::new(File::open(log_path).ok()?)).ok()?;
    reading.facts.notes.iter().find_map(|note| note.strip_prefix("the start failed: ").map(str::to_owned))
}

/// The last line that names an exception or is marked as an error.
fn reason(lines: &[String]) -> Option<String> {
    let names_error = |line: &&String| {
        let has_exception = line.split_whitespace().any(|word| {
            let name = word.strip_suffix(':').unwrap_or("");
            name.ends_with("Error") || name.ends_with("Exception") || name.eq_ignore_ascii_case("error")
        });
        has_exception || line.split_whitespace().take(2).any(|word| word == "E")
    };
    lines.iter().rev().find(names_error).map(|line| line.trim().to_owned())
}

impl Hint for LaunchError {
    fn hints(&self) -> Vec<String> {
        let one = |hint: String| vec![hint];
        match self {
            Self::Empty => {
                one("for example `launch = [\"vllm\", \"serve\", \"{model}\", \"--port\", \"{port}\"]`".into())
            }
            Self::UnknownPlaceholder { name, known } => {
                one(did_you_mean(name, &known.iter().map(String::as_str).collect::<Vec<_>>()))
            }
            Self::NoPort => one("write `{port}` where the port goes, or name it with `port = 8000`".into()),
            Self::PortTaken { .. } => vec![
                "a server of an earlier run may still hold it: stop that one".into(),
                "or leave `port` out and write `{port}` into `launch`: a free one is taken".into(),
            ],
            Self::Log { .. } => one("name a run folder that can be written to".into()),
            Self::Spawn { .. } => {
                one("`launch` takes the program first, by path or as found in PATH; no shell reads it".into())
            }
            Self::Exited { said, .. } => one(format!("the whole log is in {}", said.log_path.display())),
            Self::NotReady { .. } => {
                one("`start_timeout_s` allows more time; `health` names another path to ask".into())
            }
            Self::Endpoint(error) => error.hints(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_the_last_line_that_names_one() {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let python = lines("Traceback (most recent call last):\n  x\nValueError: Selected backend is not valid\nbye");
        assert_eq!(reason(&python).unwrap(), "ValueError: Selected backend is not valid");
        let ggml = lines("0.00.1 I fine\n0.00.2 E llama_init: quantized V cache requires flash_attn\n0.00.3 I bye");
        assert!(reason(&ggml).unwrap().contains("requires flash_attn"));
        assert_eq!(reason(&lines("all is well\nErrors: 0")), None);
    }
}
