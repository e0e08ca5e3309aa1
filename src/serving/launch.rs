//! A server that kvgauge starts itself: no shell, a process group of its own, a log on disk, and an end in every case.
//!
//! The group is what is stopped, because inference servers consist of many processes and a worker left behind keeps its memory
//! on the accelerator. A server counts as started when it answers, its process lives, and the port was free before: an
//! answer from somebody else's server would be measured as if it were this arm's.

mod error;
mod log;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

pub use self::error::LaunchError;
use self::log::LogFile;
use crate::serving::http::{Endpoint, EndpointError};

/// Loading a large model from a network disk and capturing graphs takes this long on real machines.
const DEFAULT_START_TIMEOUT_S: u64 = 1800;
/// Servers finish requests and free memory when asked to stop; there are no requests left then.
const DEFAULT_STOP_TIMEOUT_S: u64 = 60;
/// Between two looks at a starting server.
const POLL: Duration = Duration::from_millis(100);
/// One look; a server that is busy loading may accept a connection and not answer.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(5);
/// After a kill, for the system to take the processes away.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// Tried in this order where no path is named; the second for servers without the first.
const HEALTH_PATHS: &[&str] = &["/health", "/v1/models"];
/// Name of the placeholder that the port goes into.
const PORT: &str = "port";

/// How to start a server, as an arm of `kvgauge.toml` says it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchSettings {
    /// Program and arguments, with `{port}`, `{kv_cache_dtype}`, `{model}`; no shell reads it. A brace around anything but
    /// a word is left alone, so that JSON can be an argument.
    pub launch: Vec<String>,
    /// Added to the environment that is inherited; values may have placeholders.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Folder to start in; the current one where not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<PathBuf>,
    /// Path that answers 200 when the server is ready; `/health`, then `/v1/models` where not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<String>,
    /// Longest wait for the server to be ready, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_timeout_s: Option<u64>,
    /// Longest wait for it to stop before it is killed, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_timeout_s: Option<u64>,
    /// Port; a free one where not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

impl LaunchSettings {
    /// Program and arguments with their placeholders filled in.
    ///
    /// # Errors
    /// [`LaunchError::Empty`], or [`LaunchError::UnknownPlaceholder`] with the names there are.
    pub fn command_line(&self, variables: &BTreeMap<String, String>) -> Result<Vec<String>, LaunchError> {
        if self.launch.first().is_none_or(String::is_empty) {
            return Err(LaunchError::Empty);
        }
        self.launch.iter().map(|argument| filled(argument, variables)).collect()
    }

    fn mentions_port(&self) -> bool {
        let placeholder = format!("{{{PORT}}}");
        self.launch.iter().chain(self.env.values()).any(|text| text.contains(&placeholder))
    }
}

/// A running server, stopped at the latest when this is dropped.
#[derive(Debug)]
pub struct Launched {
    child: Child,
    pid: u32,
    base_url: String,
    log: Arc<LogFile>,
    /// Copy what the server prints into the log.
    copying: Vec<JoinHandle<()>>,
    stop_timeout: Duration,
    is_stopped: bool,
}

impl Launched {
    /// Starts the server and waits until it is ready. `variables` fill the placeholders besides `{port}`; whatever the
    /// server prints goes into the file at `log_path`, which is begun anew. Needs a tokio runtime with time and I/O.
    ///
    /// # Errors
    /// See [`LaunchError`]. Whatever was started is gone by then; the log stays.
    pub async fn start(
        settings: &LaunchSettings,
        variables: &BTreeMap<String, String>,
        log_path: &Path,
    ) -> Result<Self, LaunchError> {
        let port = port(settings)?;
        let mut variables = variables.clone();
        variables.insert(PORT.into(), port.to_string());
        let command_line = settings.command_line(&variables)?;
        let mut launched = Self::spawn(settings, &variables, &command_line, port, log_path)?;
        match launched.wait_until_ready(settings).await {
            Ok(()) => Ok(launched),
            Err(error) => {
                launched.end(Duration::ZERO).await;
                Err(error)
            }
        }
    }

    fn spawn(
        settings: &LaunchSettings,
        variables: &BTreeMap<String, String>,
        command_line: &[String],
        port: u16,
        log_path: &Path,
    ) -> Result<Self, LaunchError> {
        let program = &command_line[0];
        let log = LogFile::create(log_path, &settings.env)
            .map_err(|source| LaunchError::Log { path: log_path.to_path_buf(), source })?;
        let mut command = Command::new(program);
        command.args(&command_line[1..]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.kill_on_drop(true);
        // What Python prints would otherwise arrive in blocks, after the question whether it has said anything.
        command.env("PYTHONUNBUFFERED", "1");
        for (name, value) in &settings.env {
            command.env(name, filled(value, variables)?);
        }
        if let Some(cwd) = &settings.cwd {
            command.current_dir(cwd);
        }
        #[cfg(unix)]
        command.process_group(0);
        let mut child = command.spawn().map_err(|source| LaunchError::Spawn { program: program.clone(), source })?;
        let log = Arc::new(log);
        let mut copying = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            copying.push(tokio::spawn(log::copy(stdout, Arc::clone(&log))));
        }
        if let Some(stderr) = child.stderr.take() {
            copying.push(tokio::spawn(log::copy(stderr, Arc::clone(&log))));
        }
        let stop_timeout = Duration::from_secs(settings.stop_timeout_s.unwrap_or(DEFAULT_STOP_TIMEOUT_S));
        let pid = child.id().expect("a child that was not waited for has an id");
        running().insert(pid);
        let base_url = format!("http://127.0.0.1:{port}");
        Ok(Self { child, pid, base_url, log, copying, stop_timeout, is_stopped: false })
    }

    async fn wait_until_ready(&mut self, settings: &LaunchSettings) -> Result<(), LaunchError> {
        let limit_s = settings.start_timeout_s.unwrap_or(DEFAULT_START_TIMEOUT_S);
        let deadline = Instant::now() + Duration::from_secs(limit_s);
        let endpoint = Endpoint::new(&self.base_url, None)?;
        let paths: Vec<&str> = match &settings.health {
            Some(path) => vec![path.as_str()],
            None => HEALTH_PATHS.to_vec(),
        };
        loop {
            let is_ready = is_ready(&endpoint, &paths).await;
            if let Some(status) = self.exit_status() {
                self.drain().await;
                return Err(LaunchError::exited(&settings.launch[0], status, &self.log));
            }
            if is_ready {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(LaunchError::not_ready(&settings.launch[0], limit_s, &self.log));
            }
            sleep(POLL).await;
        }
    }

    /// Address of the server, without `/v1`.
    pub fn base_url(&self) -> &str {
        &self.base_url
    }

    /// Where its output goes.
    pub fn log_path(&self) -> &Path {
        self.log.path()
    }

    /// Id of the process, which is also that of its group.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// How the server ended, if it has: between two items a look at this tells a crash from a slow answer.
    pub fn exit_status(&mut self) -> Option<String> {
        match self.child.try_wait() {
            Ok(Some(status)) => Some(status.to_string()),
            Ok(None) => None,
            Err(error) => Some(format!("unknown ({error})")),
        }
    }

    /// The last lines that the server printed.
    pub fn last_lines(&self) -> Vec<String> {
        self.log.last_lines()
    }

    /// Asks the group to stop, kills what is left after the limit, and closes the log.
    pub async fn stop(mut self) {
        let patience = self.stop_timeout;
        self.end(patience).await;
    }

    async fn end(&mut self, patience: Duration) {
        if !patience.is_zero() {
            signal_group(self.pid, GroupSignal::Terminate);
            // The limit has passed, or the process has ended: what is left of the group is killed in both cases.
            drop(timeout(patience, self.child.wait()).await);
        }
        signal_group(self.pid, GroupSignal::Kill);
        drop(timeout(KILL_TIMEOUT, self.child.wait()).await);
        let deadline = Instant::now() + KILL_TIMEOUT;
        while is_group_alive(self.pid) && Instant::now() < deadline {
            sleep(POLL).await;
        }
        self.is_stopped = true;
        self.drain().await;
    }

    /// Waits for the rest of the output; a process outside the group may hold the pipe open, so not for ever.
    async fn drain(&mut self) {
        for task in self.copying.drain(..) {
            let abort = task.abort_handle();
            if timeout(KILL_TIMEOUT, task).await.is_err() {
                abort.abort();
            }
        }
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        if !self.is_stopped {
            signal_group(self.pid, GroupSignal::Kill);
        }
        running().remove(&self.pid);
    }
}

/// Groups of servers that were started and not stopped.
static RUNNING: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

fn running() -> MutexGuard<'static, BTreeSet<u32>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kills every server that this process started: for an end that drops nothing.
pub fn kill_all() {
    for group in running().iter() {
        signal_group(*group, GroupSignal::Kill);
    }
}

/// The port asked for if it is free, else any free one.
fn port(settings: &LaunchSettings) -> Result<u16, LaunchError> {
    if settings.port.is_none() && !settings.mentions_port() {
        return Err(LaunchError::NoPort);
    }
    let wanted = settings.port.unwrap_or(0);
    let taken = |source| LaunchError::PortTaken { port: wanted, source };
    let local = TcpListener::bind((Ipv4Addr::LOCALHOST, wanted)).and_then(|listener| listener.local_addr());
    let port = local.map_err(taken)?.port();
    // A server that listens on every address answers here as well.
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).map_err(taken)?;
    Ok(port)
}

/// Ready is 200; a server that wants a key even for this is up.
async fn is_ready(endpoint: &Endpoint, paths: &[&str]) -> bool {
    for path in paths {
        let reply: Result<Result<_, EndpointError>, _> = timeout(HEALTH_TIMEOUT, endpoint.get(path)).await;
        match reply {
            Ok(Ok(reply)) if reply.is_success() || reply.is_denied() => return true,
            // The path does not exist: the next may. Anything else is a server that is not ready.
            Ok(Ok(reply)) if matches!(reply.status, 404 | 405) => {}
            _ => return false,
        }
    }
    false
}

/// `text` with `{name}` replaced. A name is a lower-case word; any other brace is text.
fn filled(text: &str, variables: &BTreeMap<String, String>) -> Result<String, LaunchError> {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('{') {
        result.push_str(&rest[..start]);
        let inner = &rest[start + 1..];
        let is_word =
            |name: &&str| !name.is_empty() && name.bytes().all(|byte| byte == b'_' || byte.is_ascii_lowercase());
        match inner.split_once('}').filter(|(name, _)| is_word(name)) {
            Some((name, behind)) => {
                let known = || variables.keys().cloned().collect();
                let value = variables.get(name);
                let unknown = || LaunchError::UnknownPlaceholder { name: name.to_owned(), known: known() };
                result.push_str(value.ok_or_else(unknown)?);
                rest = behind;
            }
            None => {
                result.push('{');
                rest = inner;
            }
        }
    }
    result.push_str(rest);
    Ok(result)
}

#[derive(Clone, Copy)]
enum GroupSignal {
    Terminate,
    Kill,
}

/// A group that is gone is what was wanted, so that a failure means nothing.
#[cfg(unix)]
fn signal_group(group: u32, signal: GroupSignal) {
    let signal = match signal {
        GroupSignal::Terminate => rustix::process::Signal::TERM,
        GroupSignal::Kill => rustix::process::Signal::KILL,
    };
    if let Some(group) = group_id(group) {
        let _ = rustix::process::kill_process_group(group, signal);
    }
}

#[cfg(unix)]
fn is_group_alive(group: u32) -> bool {
    group_id(group).is_some_and(|group| rustix::process::test_kill_process_group(group).is_ok())
}

#[cfg(unix)]
fn group_id(group: u32) -> Option<rustix::process::Pid> {
    i32::try_from(group).ok().and_then(rustix::process::Pid::from_raw)
}

/// Without process groups the process itself is killed when its handle is dropped.
#[cfg(not(unix))]
fn signal_group(_: u32, _: GroupSignal) {}

#[cfg(not(unix))]
fn is_group_alive(_: u32) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables() -> BTreeMap<String, String> {
        [("kv_cache_dtype", "fp8"), ("model", "m"), ("port", "8000")].map(|(k, v)| (k.into(), v.into())).into()
    }

    #[test]
    fn placeholders_are_filled_and_json_is_left_alone() {
        let fill = |text: &str| filled(text, &variables());
        assert_eq!(fill("--port={port}:{model}").unwrap(), "--port=8000:m");
        assert_eq!(fill("{\"backend\": \"{kv_cache_dtype}\"} {} {").unwrap(), "{\"backend\": \"fp8\"} {} {");
        let error = fill("{prot}").unwrap_err();
        assert!(matches!(&error, LaunchError::UnknownPlaceholder { name, .. } if name == "prot"), "{error}");
    }

    #[test]
    fn settings_are_read_strictly() {
        let settings: LaunchSettings =
            toml::from_str("launch = [\"a\", \"{port}\"]\nenv = { A = \"1\" }\nstart_timeout_s = 5").unwrap();
        assert_eq!(settings.command_line(&variables()).unwrap(), ["a", "8000"]);
        assert!(toml::from_str::<LaunchSettings>("launch = [\"a\"]\nshell = true").is_err());
        let empty: LaunchSettings = toml::from_str("launch = []").unwrap();
        assert!(matches!(empty.command_line(&variables()), Err(LaunchError::Empty)));
        let deaf: LaunchSettings = toml::from_str("launch = [\"a\"]").unwrap();
        assert!(matches!(port(&deaf), Err(LaunchError::NoPort)));
    }

    #[test]
    fn a_port_in_use_is_refused() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let taken = listener.local_addr().unwrap().port();
        let settings: LaunchSettings = toml::from_str(&format!("launch = [\"a\"]\nport = {taken}")).unwrap();
        assert!(matches!(port(&settings), Err(LaunchError::PortTaken { .. })));
    }
}
