//! What a server prints, on disk: whole lines, without secrets, up to a limit.
//!
//! The server writes into a pipe and not into the file, because some engines print their own arguments with the API key in it.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Largest log kept: days of a busy server that prints a line every ten seconds. What comes later is dropped.
const MAX_LOG_BYTES: usize = 64 << 20;
/// Longest line kept whole; the configuration that vLLM prints has about 5 KB.
const MAX_LINE_BYTES: usize = 64 * 1024;
/// Shown when a start fails: a Python traceback with its message.
const LAST_LINES: usize = 20;
/// Longest line shown.
const MAX_SHOWN_CHARS: usize = 400;
/// Shorter values occur in ordinary text.
const MIN_SECRET_CHARS: usize = 8;
/// Words in the names of variables that hold a secret.
const SECRET_NAMES: &[&str] = &["KEY", "TOKEN", "SECRET", "PASSWORD"];

#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    /// Values that must not get into the file, longest first.
    secrets: Vec<String>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    file: File,
    written: usize,
    last: VecDeque<String>,
}

impl LogFile {
    /// Begins the file anew. Secrets are looked for in the environment that is inherited and in `own`, what is added to it.
    pub(super) fn create(path: &Path, own: &BTreeMap<String, String>) -> io::Result<Self> {
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            fs::create_dir_all(folder)?;
        }
        let state = State { file: File::create(path)?, written: 0, last: VecDeque::new() };
        let own = own.iter().map(|(name, value)| (name.into(), value.into()));
        Ok(Self {
            path: path.to_path_buf(),
            secrets: secrets(std::env::vars_os().chain(own)),
            state: Mutex::new(state),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn last_lines(&self) -> Vec<String> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.last.iter().cloned().collect()
    }

    /// One line, with or without its end. A disk that is full costs the log, not the measurement.
    fn write(&self, line: &[u8]) {
        let mut text = String::from_utf8_lossy(line).trim_end_matches(['\n', '\r']).to_owned();
        for secret in &self.secrets {
            if text.contains(secret.as_str()) {
                text = text.replace(secret.as_str(), "[secret]");
            }
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.written < MAX_LOG_BYTES {
            let is_last = state.written + text.len() + 1 >= MAX_LOG_BYTES;
            let end = if is_last { "\n[the log ends here: it has reached its limit]\n" } else { "\n" };
            state.written += text.len() + 1;
            drop(state.file.write_all(text.as_bytes()).and_then(|()| state.file.write_all(end.as_bytes())));
        }
        if state.last.len() == LAST_LINES {
            state.last.pop_front();
        }
        state.last.push_back(text.chars().take(MAX_SHOWN_CHARS).collect());
    }
}

/// Copies until the other end is closed; keeps reading beyond the limit, because a full pipe would stop the server.
pub(super) async fn copy(mut from: impl AsyncRead + Unpin, log: Arc<LogFile>) {
    let mut pending: Vec<u8> = Vec::new();
    let mut chunk = [0_u8; 8192];
    while let Ok(count @ 1..) = from.read(&mut chunk).await {
        pending.extend_from_slice(&chunk[..count]);
        let mut start = 0;
        while let Some(length) = pending[start..].iter().position(|&byte| byte == b'\n') {
            log.write(&pending[start..=start + length]);
            start += length + 1;
        }
        pending.drain(..start);
        if pending.len() > MAX_LINE_BYTES {
            log.write(&pending);
            pending.clear();
        }
    }
    if !pending.is_empty() {
        log.write(&pending);
    }
}

/// Values of the variables whose names say that they are secret.
fn secrets(variables: impl Iterator<Item = (std::ffi::OsString, std::ffi::OsString)>) -> Vec<String> {
    let is_secret = |name: &str| {
        let name = name.to_ascii_uppercase();
        name.split('_').any(|word| SECRET_NAMES.contains(&word))
    };
    let mut found: Vec<String> = variables
        .filter(|(name, _)| name.to_str().is_some_and(is_secret))
        .filter_map(|(_, value)| value.into_string().ok())
        .filter(|value| value.chars().count() >= MIN_SECRET_CHARS)
        .collect();
    found.sort_unstable_by_key(|value| std::cmp::Reverse(value.len()));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(dir: &Path, secrets: &[&str]) -> LogFile {
        let log = LogFile::create(&dir.join("deep/server.log"), &BTreeMap::new()).unwrap();
        LogFile { secrets: secrets.iter().map(|secret| (*secret).to_owned()).collect(), ..log }
    }

    #[test]
    fn secrets_are_taken_out_and_the_last_lines_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let log = log(dir.path(), &["sk-canary-1"]);
        for index in 0..30 {
            log.write(format!("line {index} with sk-canary-1\r\n").as_bytes());
        }
        let text = fs::read_to_string(log.path()).unwrap();
        assert_eq!(text.lines().count(), 30);
        assert!(!text.contains("canary") && text.starts_with("line 0 with [secret]\n"));
        assert_eq!(log.last_lines().len(), LAST_LINES);
        assert_eq!(log.last_lines()[LAST_LINES - 1], "line 29 with [secret]");
    }

    #[tokio::test]
    async fn a_stream_without_line_ends_is_cut_and_a_long_one_is_capped() {
        let dir = tempfile::tempdir().unwrap();
        let log = Arc::new(log(dir.path(), &[]));
        copy(&vec![b'x'; 3 * MAX_LINE_BYTES][..], Arc::clone(&log)).await;
        let whole = fs::metadata(log.path()).unwrap().len();
        assert!(whole >= 3 * MAX_LINE_BYTES as u64, "{whole}");
        log.state.lock().unwrap().written = MAX_LOG_BYTES - 1;
        copy(&b"a\nb\nc\n"[..], Arc::clone(&log)).await;
        let text = fs::read_to_string(log.path()).unwrap();
        assert!(text.contains("has reached its limit") && !text.ends_with("c\n"));
        assert_eq!(log.last_lines().last().unwrap(), "c");
    }

    #[test]
    fn only_variables_named_like_secrets_are_secret() {
        let variables = [("OPENAI_API_KEY", "sk-long-enough"), ("KEYBOARD", "qwertz-layout"), ("HF_TOKEN", "short")];
        let found = secrets(variables.map(|(name, value)| (name.into(), value.into())).into_iter());
        assert_eq!(found, ["sk-long-enough"]);
    }
}
