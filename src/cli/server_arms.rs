//! `[[arm]]` of `kvgauge.toml`: arms that servers answer, each an endpoint that runs already or a command that starts one.
//!
//! `[server]` holds what all of them share; a key of an `[[arm]]` stands above it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kvgauge::hint::did_you_mean;
use kvgauge::serving::launch::LaunchSettings;
use kvgauge::setup::{Arm, ArmRole};
use kvgauge::targets::openai::EndpointSettings;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::config::ConfigError;

/// Keys of the arm itself. Those of an endpoint and of a launch are known to their own readers.
const ARM_KEYS: &[&str] = &["name", "role", "kv_cache_dtype", "attention_backend", "concurrency"];

/// Keys that hold for all arms or for none.
const SHARED_KEYS: &[&str] = &["tokenizer", "control"];

/// Keys that say how a server is started.
const LAUNCH_KEYS: &[&str] = &["launch", "env", "cwd", "health", "start_timeout_s", "stop_timeout_s", "port"];

/// Requests in flight where nothing else is asked for: enough to fill a server's batch, few enough to keep its latency.
const DEFAULT_CONCURRENCY: u16 = 8;

/// As the range of `--concurrency`.
const MAX_CONCURRENCY: u16 = 64;

/// Stands for the address of a server that is not started yet, while its settings are checked.
const ANY_URL: &str = "http://127.0.0.1:1";

/// All arms that servers answer.
#[derive(Clone, Debug)]
pub(crate) struct ServerArms {
    /// In the order of the file, but the baseline first.
    pub(crate) arms: Vec<ServerArm>,
    /// Model whose tokenizer counts; `None` leaves that to the server.
    pub(crate) tokenizer: Option<String>,
    /// Whether the baseline is asked twice.
    pub(crate) has_control: bool,
    /// The configuration they are from.
    pub(crate) path: PathBuf,
}

/// One of them.
#[derive(Clone, Debug)]
pub(crate) struct ServerArm {
    pub(crate) arm: Arm,
    /// How its server is started; `None` for one that runs already.
    pub(crate) launch: Option<LaunchSettings>,
    endpoint: toml::Table,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ArmSection {
    name: Option<String>,
    role: Option<RoleWord>,
    kv_cache_dtype: String,
    attention_backend: Option<String>,
    concurrency: Option<u16>,
}

#[derive(Clone, Copy, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum RoleWord {
    Baseline,
    Candidate,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SharedSection {
    tokenizer: Option<String>,
    #[serde(default = "yes")]
    control: bool,
}

fn yes() -> bool {
    true
}

impl ServerArms {
    /// Reads `[server]` and all `[[arm]]`; `path` is for messages.
    ///
    /// # Errors
    /// An unknown key, a value of another type, more or less than one baseline, two arms of one name.
    pub(crate) fn parse(path: &Path, shared: &toml::Table, arms: &[toml::Table]) -> Result<Self, ConfigError> {
        let (of_all, shared) = split(shared, SHARED_KEYS);
        let SharedSection { tokenizer, control } = read(path, "[server]", of_all)?;
        let mut roles = Vec::new();
        let mut read_arms: Vec<ServerArm> = Vec::new();
        for (index, own) in arms.iter().enumerate() {
            let place = format!("[[arm]] {}", index + 1);
            if let Some(key) = own.keys().find(|key| SHARED_KEYS.contains(&key.as_str())) {
                return Err(value_error(path, &place, format!("`{key}` holds for all arms and stands in [server]")));
            }
            let mut table = shared.clone();
            // An arm that starts its server has no use for the address that the others share, and the other way round.
            for (key, other) in [("url", "launch"), ("launch", "url")] {
                if own.contains_key(key) {
                    table.remove(other);
                }
            }
            table.extend(own.clone());
            let (role, arm) = ServerArm::parse(path, &place, &table)?;
            if read_arms.iter().any(|known| known.arm.name == arm.arm.name) {
                let message = format!("two arms are named `{}`: give one of them another `name`", arm.arm.name);
                return Err(value_error(path, &place, message));
            }
            roles.push(role);
            read_arms.push(arm);
        }
        let baselines = roles.iter().filter(|role| **role == Some(RoleWord::Baseline)).count();
        if baselines > 1 || (baselines == 0 && roles.iter().all(Option::is_some)) {
            let message = format!("{baselines} arms have `role = \"baseline\"`: one has to be");
            return Err(value_error(path, "[[arm]]", message));
        }
        // Where nobody says, the first that does not call itself a candidate is what the others are compared with.
        let first = roles.iter().position(|role| *role == Some(RoleWord::Baseline));
        let first =
            first.or_else(|| roles.iter().position(Option::is_none)).expect("one has no role or is the baseline");
        let mut baseline = read_arms.remove(first);
        baseline.arm.role = ArmRole::Baseline;
        read_arms.insert(0, baseline);
        Ok(Self { arms: read_arms, tokenizer, has_control: control, path: path.into() })
    }

    /// The arms as they are recorded: the baseline, its repetition, the candidates.
    pub(crate) fn recorded(&self) -> Vec<Arm> {
        let mut arms: Vec<Arm> = self.arms.iter().map(|server| server.arm.clone()).collect();
        if self.has_control {
            arms.insert(1, self.control());
        }
        arms
    }

    /// The baseline once more.
    pub(crate) fn control(&self) -> Arm {
        let baseline = &self.arms[0].arm;
        Arm { name: format!("{}.aa", baseline.name), role: ArmRole::Control, ..baseline.clone() }
    }

    /// Keeps the candidates that are named, by name or by dtype.
    ///
    /// # Errors
    /// The name that no arm has, with those there are.
    pub(crate) fn select(&mut self, wanted: &[String]) -> Result<(), (String, Vec<String>)> {
        let is_meant = |arm: &Arm, word: &str| arm.name == word || arm.kv_cache_dtype == word;
        if let Some(unknown) = wanted.iter().find(|word| !self.arms.iter().any(|server| is_meant(&server.arm, word))) {
            let names = self.arms.iter().map(|server| server.arm.name.clone()).collect();
            return Err((unknown.clone(), names));
        }
        self.arms.retain(|server| {
            server.arm.role == ArmRole::Baseline || wanted.iter().any(|word| is_meant(&server.arm, word))
        });
        Ok(())
    }
}

impl ServerArm {
    fn parse(path: &Path, place: &str, table: &toml::Table) -> Result<(Option<RoleWord>, Self), ConfigError> {
        let (arm, rest) = split(table, ARM_KEYS);
        let (launch, endpoint) = split(&rest, LAUNCH_KEYS);
        let has_launch = launch.contains_key("launch");
        let ArmSection { name, role, kv_cache_dtype, attention_backend, concurrency } = read(path, place, arm)?;
        match (has_launch, endpoint.contains_key("url")) {
            (true, true) => {
                let message = "has both `url` and `launch`: a server that is started here gets its address by itself";
                return Err(value_error(path, place, message.into()));
            }
            (false, false) => {
                let message = "has neither `url` (a server that runs) nor `launch` (the command that starts one)";
                return Err(value_error(path, place, message.into()));
            }
            _ => {}
        }
        let launch: Option<LaunchSettings> = match has_launch {
            true => Some(read(path, place, launch)?),
            false => None,
        };
        let name = name.unwrap_or_else(|| kv_cache_dtype.clone());
        let mut settings = BTreeMap::new();
        if let Some(launch) = &launch {
            // Only a fingerprint: a command may hold a key. Limits and ports change no answer, so that a start that took too
            // long may be given more time.
            let LaunchSettings { launch, env, cwd, .. } = launch;
            settings.insert("launch".into(), fingerprint(&format!("{launch:?} {env:?} {cwd:?}")));
        }
        let concurrency = concurrency.unwrap_or(DEFAULT_CONCURRENCY);
        if !(1..=MAX_CONCURRENCY).contains(&concurrency) {
            return Err(value_error(path, place, format!("concurrency {concurrency} is not 1 to {MAX_CONCURRENCY}")));
        }
        settings.insert("concurrency".into(), concurrency.to_string());
        let arm = Arm { name, role: ArmRole::Candidate, kv_cache_dtype, attention_backend, settings };
        let server = Self { arm, launch, endpoint };
        server.endpoint_at(path, place, ANY_URL)?;
        Ok((role, server))
    }

    /// The endpoint's settings; a server that was started here has the address `url`.
    pub(crate) fn endpoint(&self, url: &str) -> Result<EndpointSettings, ConfigError> {
        self.endpoint_at(Path::new("kvgauge.toml"), &format!("[[arm]] {}", self.arm.name), url)
    }

    fn endpoint_at(&self, path: &Path, place: &str, url: &str) -> Result<EndpointSettings, ConfigError> {
        let mut table = self.endpoint.clone();
        table.entry("url").or_insert_with(|| toml::Value::String(url.into()));
        read(path, place, table)
    }

    /// The model that is asked for by name.
    pub(crate) fn model(&self) -> Option<&str> {
        self.endpoint.get("model").and_then(toml::Value::as_str)
    }

    /// The addresses of a server that runs already.
    pub(crate) fn urls(&self) -> Vec<String> {
        match self.endpoint.get("url") {
            Some(toml::Value::String(url)) => vec![url.clone()],
            Some(toml::Value::Array(urls)) => urls.iter().filter_map(toml::Value::as_str).map(str::to_owned).collect(),
            _ => Vec::new(),
        }
    }
}

/// Eight hex digits of a hash.
fn fingerprint(text: &str) -> String {
    let hash = blake3::hash(text.as_bytes()).to_hex();
    hash[..8].to_owned()
}

/// The entries with these keys, and the others.
fn split(table: &toml::Table, keys: &[&str]) -> (toml::Table, toml::Table) {
    table.clone().into_iter().partition(|(key, _)| keys.contains(&key.as_str()))
}

fn read<T: DeserializeOwned>(path: &Path, place: &str, table: toml::Table) -> Result<T, ConfigError> {
    let keys: Vec<String> = table.keys().cloned().collect();
    table.try_into().map_err(|error: toml::de::Error| {
        let mut message = error.message().to_owned();
        let known: Vec<&str> = ARM_KEYS.iter().chain(LAUNCH_KEYS).chain(SHARED_KEYS).copied().collect();
        if let Some(key) = keys.iter().find(|key| message.starts_with(&format!("unknown field `{key}`")))
            && known.iter().any(|known| strsim::damerau_levenshtein(known, key) <= 2)
        {
            message = format!("{message}; {}", did_you_mean(key, &known));
        }
        value_error(path, place, message)
    })
}

fn value_error(path: &Path, place: &str, message: String) -> ConfigError {
    ConfigError::Value { path: path.into(), place: place.to_owned(), message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct File {
        #[serde(default)]
        server: toml::Table,
        arm: Vec<toml::Table>,
    }

    fn parse(text: &str) -> Result<ServerArms, ConfigError> {
        let file: File = toml::from_str(text).unwrap();
        ServerArms::parse(Path::new("kvgauge.toml"), &file.server, &file.arm)
    }

    const TWO: &str = r#"
        [server]
        tokenizer = "smollm2-135m"
        launch = ["serve", "--port", "{port}", "--kv-cache-dtype", "{kv_cache_dtype}"]
        start_timeout_s = 90
        [[arm]]
        kv_cache_dtype = "fp8"
        role = "candidate"
        [[arm]]
        name = "base"
        kv_cache_dtype = "bfloat16"
        attention_backend = "FLASHINFER"
        [[arm]]
        kv_cache_dtype = "fp8_e5m2"
        url = "http://127.0.0.1:9"
        concurrency = 2
    "#;

    #[test]
    fn what_is_shared_is_below_what_an_arm_says() {
        let servers = parse(TWO).unwrap();
        let names: Vec<String> = servers.recorded().iter().map(|arm| arm.name.clone()).collect();
        assert_eq!(names, ["base", "base.aa", "fp8", "fp8_e5m2"]);
        let [base, fp8, running] = &servers.arms[..] else { panic!("three arms") };
        assert_eq!((base.arm.role, base.arm.attention_backend.as_deref()), (ArmRole::Baseline, Some("FLASHINFER")));
        assert!(base.launch.is_some() && fp8.launch.is_some() && running.launch.is_none());
        assert_eq!((base.arm.concurrency(), running.arm.concurrency()), (8, 2));
        assert_eq!((running.urls(), base.urls()), (vec!["http://127.0.0.1:9".to_owned()], vec![]));
        assert_eq!(servers.tokenizer.as_deref(), Some("smollm2-135m"));
    }

    #[test]
    fn candidates_are_selected_by_name_or_dtype() {
        let mut servers = parse(TWO).unwrap();
        servers.select(&["fp8".into()]).unwrap();
        assert_eq!(servers.arms.iter().map(|server| server.arm.name.as_str()).collect::<Vec<_>>(), ["base", "fp8"]);
        assert_eq!(servers.select(&["fp9".into()]).unwrap_err().0, "fp9");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let cases = [
            ("[[arm]]\nkv_cache_dtype = \"fp8\"", "neither `url`"),
            ("[[arm]]\nkv_cache_dtype = \"fp8\"\nurl = \"http://a\"\nlaunch = [\"x\"]", "both `url` and `launch`"),
            ("[[arm]]\nurl = \"http://127.0.0.1:1\"", "missing field `kv_cache_dtype`"),
            ("[[arm]]\nurl = \"http://127.0.0.1:1\"\nkv_cache_dtype = \"a\"\nrole = \"candidate\"", "one has to be"),
            ("[[arm]]\nurl = \"http://127.0.0.1:1\"\nkv_cache_dtype = \"a\"\nconcurrency = 0", "concurrency 0"),
            ("[[arm]]\nurl = \"http://127.0.0.1:1\"\nkv_cache_dtype = \"a\"\ntokenizer = \"x\"", "stands in [server]"),
            (
                "[[arm]]\nurl = \"http://127.0.0.1:1\"\nkv_cache_dtype = \"a\"\nlaunhc = [\"x\"]",
                "did you mean `launch`",
            ),
        ];
        for (text, message) in cases {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
        let twice = "[[arm]]\nurl = \"http://127.0.0.1:1\"\nkv_cache_dtype = \"a\"\n".repeat(2);
        assert!(parse(&twice).unwrap_err().to_string().contains("two arms are named `a`"));
    }

    #[test]
    fn a_command_is_recorded_as_a_fingerprint_alone() {
        let text = "[[arm]]\nkv_cache_dtype = \"a\"\nlaunch = [\"serve\", \"--api-key\", \"sk-canary\"]";
        let arms = parse(text).unwrap().recorded();
        assert!(!format!("{arms:?}").contains("canary"));
        assert_eq!(arms[0].settings["launch"].len(), 8);
        let more_time = parse(&format!("{text}\nstart_timeout_s = 9")).unwrap().recorded();
        assert_eq!(arms, more_time, "more time to start is no other arm");
        let other = parse(&text.replace("canary", "other")).unwrap().recorded();
        assert_ne!(arms, other);
    }
}
