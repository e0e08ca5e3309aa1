//! What is asked of an endpoint. Secrets are named, never written.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use reqwest::Url;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::targets::openai::{Dialect, EndpointError};

/// Variable that most software of this protocol reads its key from.
const DEFAULT_KEY_VARIABLE: &str = "OPENAI_API_KEY";

/// Prompts of 150K tokens have been seen to take ten minutes until their first token.
const FIRST_BYTE_TIMEOUT_S: u64 = 1800;
/// A preempted request is read again from its beginning in the middle of its answer.
const BETWEEN_TOKENS_TIMEOUT_S: u64 = 300;
const CONNECT_TIMEOUT_S: u64 = 10;
const MAX_RETRIES: u32 = 6;
/// A replica that is being restarted by its supervisor is back within this.
const RETRY_DEADLINE_S: u64 = 600;

/// More replicas are a cluster behind one address.
const MAX_URLS: usize = 64;

/// Fields that decide what is measured or how the reply is read: not for `extra_body`.
const RESERVED_FIELDS: [&str; 10] = [
    "model",
    "messages",
    "prompt",
    "stream",
    "stream_options",
    "n",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "seed",
];

/// An endpoint as a file describes it. Only `url` must be given.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndpointSettings {
    /// Base address, with or without `/v1`; several are replicas of one arm.
    #[serde(deserialize_with = "one_or_many")]
    pub url: Vec<BaseUrl>,
    /// Model to ask; default: the only one served.
    #[serde(default)]
    pub model: Option<String>,
    /// The engine; default: what the server looks like.
    #[serde(default)]
    pub dialect: Option<Dialect>,
    /// Chat or plain completions.
    #[serde(default)]
    pub api: Api,
    /// Name of the environment variable that holds the key; default `OPENAI_API_KEY`, where it is set.
    #[serde(default)]
    pub api_key_env: Option<String>,
    /// Header name → name of the environment variable that holds its value.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// File of certificate authorities (PEM) that are trusted besides the built-in ones.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// Requests started per minute at most.
    #[serde(default)]
    pub max_requests_per_minute: Option<u32>,
    /// Longest wait for the first token, prefill included.
    #[serde(default = "first_byte_timeout_s")]
    pub first_byte_timeout_s: u64,
    /// Longest wait between tokens.
    #[serde(default = "between_tokens_timeout_s")]
    pub between_tokens_timeout_s: u64,
    /// Longest wait for a connection.
    #[serde(default = "connect_timeout_s")]
    pub connect_timeout_s: u64,
    /// Attempts after the first, where another one may help.
    #[serde(default = "max_retries")]
    pub max_retries: u32,
    /// No attempt starts later than this after the first.
    #[serde(default = "retry_deadline_s")]
    pub retry_deadline_s: u64,
    /// Sent with every request.
    #[serde(default)]
    pub seed: u64,
    /// Sent with every request; 0 is greedy.
    #[serde(default)]
    pub temperature: f64,
    /// Whether answers are streamed; without it there is no time to first token.
    #[serde(default = "stream")]
    pub stream: bool,
    /// Fields added to every request as they are: `response_format`, `structured_outputs`, ...
    #[serde(default)]
    pub extra_body: Map<String, Value>,
    /// Handed to the chat template: `enable_thinking = false`.
    #[serde(default)]
    pub chat_template_kwargs: Map<String, Value>,
    /// Measure although the server does not count tokens: a truncated prompt then goes unseen.
    #[serde(default)]
    pub ignore_usage: bool,
    /// Measure on although `system_fingerprint` or version change in the middle of the run.
    #[serde(default)]
    pub allow_identity_change: bool,
    /// Whether requests may read each other's prefix cache; default: not, where the engine has a way.
    #[serde(default)]
    pub prefix_cache: Option<PrefixCache>,
    /// Ask for the likelihood of the expected answer too, in a second request (vLLM).
    #[serde(default)]
    pub answer_nll: bool,
}

/// The route of the protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Api {
    /// `/v1/chat/completions`.
    #[default]
    Chat,
    /// `/v1/completions`: messages are joined by blank lines, for base models.
    Completions,
}

/// What happens to the server's prefix cache between requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PrefixCache {
    /// Every request has a salt of its own, or the engine's equivalent: all are read from their beginning.
    Salt,
    /// The server's own behaviour.
    Keep,
}

fn first_byte_timeout_s() -> u64 {
    FIRST_BYTE_TIMEOUT_S
}
fn between_tokens_timeout_s() -> u64 {
    BETWEEN_TOKENS_TIMEOUT_S
}
fn connect_timeout_s() -> u64 {
    CONNECT_TIMEOUT_S
}
fn max_retries() -> u32 {
    MAX_RETRIES
}
fn retry_deadline_s() -> u64 {
    RETRY_DEADLINE_S
}
fn stream() -> bool {
    true
}

fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<BaseUrl>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum OneOrMany {
        One(BaseUrl),
        Many(Vec<BaseUrl>),
    }
    Ok(match OneOrMany::deserialize(deserializer)? {
        OneOrMany::One(url) => vec![url],
        OneOrMany::Many(urls) => urls,
    })
}

/// An address as given. Its debug form hides a password, which is refused only when it is used.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct BaseUrl(String);

impl BaseUrl {
    /// Takes `url` unchecked.
    pub fn new(url: impl Into<String>) -> Self {
        Self(url.into())
    }

    /// The root of the server, without `/v1` and without a slash at its end.
    pub(super) fn root(&self) -> Result<Url, EndpointError> {
        let bad = |reason: &str| EndpointError::Setting { key: "url", reason: reason.into() };
        let mut url = Url::parse(&self.0).map_err(|_| bad("it is not an address such as http://localhost:8000"))?;
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
            return Err(bad("it is neither http nor https"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(bad("it holds a name or password; `api_key_env` names a variable for keys"));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(bad("it has a query or fragment"));
        }
        if is_link_local(&url) {
            return Err(bad("link-local addresses hold the secrets of cloud machines and are refused"));
        }
        let path = url.path().trim_end_matches('/');
        let path = path.strip_suffix("/v1").unwrap_or(path).trim_end_matches('/').to_owned();
        url.set_path(&path);
        Ok(url)
    }
}

impl fmt::Debug for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = self.0.rsplit_once('@').map_or(self.0.as_str(), |(_, host)| host);
        write!(f, "{host:?}")
    }
}

fn is_link_local(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    match host.parse::<std::net::IpAddr>() {
        Ok(std::net::IpAddr::V4(v4)) => v4.is_link_local(),
        Ok(std::net::IpAddr::V6(v6)) => {
            v6.is_unicast_link_local() || v6.to_ipv4_mapped().is_some_and(|v4| v4.is_link_local())
        }
        Err(_) => false,
    }
}

impl EndpointSettings {
    /// Defaults for `url`.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: vec![BaseUrl::new(url)],
            model: None,
            dialect: None,
            api: Api::default(),
            api_key_env: None,
            headers: BTreeMap::new(),
            ca_file: None,
            max_requests_per_minute: None,
            first_byte_timeout_s: FIRST_BYTE_TIMEOUT_S,
            between_tokens_timeout_s: BETWEEN_TOKENS_TIMEOUT_S,
            connect_timeout_s: CONNECT_TIMEOUT_S,
            max_retries: MAX_RETRIES,
            retry_deadline_s: RETRY_DEADLINE_S,
            seed: 0,
            temperature: 0.0,
            stream: true,
            extra_body: Map::new(),
            chat_template_kwargs: Map::new(),
            ignore_usage: false,
            allow_identity_change: false,
            prefix_cache: None,
            answer_nll: false,
        }
    }

    /// Refuses what cannot be meant.
    pub(super) fn check(&self) -> Result<(), EndpointError> {
        let bad = |key, reason: String| Err(EndpointError::Setting { key, reason });
        if self.url.is_empty() || self.url.len() > MAX_URLS {
            return bad("url", format!("{} addresses; 1 to {MAX_URLS} are possible", self.url.len()));
        }
        if let Some(field) = self.extra_body.keys().find(|field| RESERVED_FIELDS.contains(&field.as_str())) {
            return bad("extra_body", format!("`{field}` is not for this table; kvgauge sets it"));
        }
        if !self.temperature.is_finite() || self.temperature < 0.0 {
            return bad("temperature", format!("{} is not a temperature", self.temperature));
        }
        if self.max_requests_per_minute == Some(0) {
            return bad("max_requests_per_minute", "0 would never ask anything".into());
        }
        let limits = [
            ("first_byte_timeout_s", self.first_byte_timeout_s),
            ("between_tokens_timeout_s", self.between_tokens_timeout_s),
            ("connect_timeout_s", self.connect_timeout_s),
        ];
        match limits.into_iter().find(|(_, seconds)| *seconds == 0) {
            Some((key, _)) => bad(key, "0 seconds would fail everything".into()),
            None => Ok(()),
        }
    }

    /// Variable of the key, and whether it must be set.
    pub fn key_variable(&self) -> (&str, bool) {
        match &self.api_key_env {
            Some(name) => (name, true),
            None => (DEFAULT_KEY_VARIABLE, false),
        }
    }

    pub(super) fn first_byte_timeout(&self) -> Duration {
        Duration::from_secs(self.first_byte_timeout_s)
    }

    pub(super) fn between_tokens_timeout(&self) -> Duration {
        Duration::from_secs(self.between_tokens_timeout_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_lose_their_v1_and_dangerous_ones_are_refused() {
        let root = |url: &str| BaseUrl::new(url).root().map(|url| url.as_str().trim_end_matches('/').to_owned());
        assert_eq!(root("http://localhost:8000/v1/").unwrap(), "http://localhost:8000");
        assert_eq!(root("https://gpu.example/team/v1").unwrap(), "https://gpu.example/team");
        for bad in [
            "localhost:8000",
            "file:///etc/passwd",
            "http://me:pw@host",
            "http://host/?key=1",
            "http://169.254.169.254/",
            "http://[fe80::1]:8000",
            "http://[::ffff:169.254.169.254]/",
            "",
        ] {
            let error = root(bad).unwrap_err();
            assert!(!error.to_string().contains("pw"), "{error}");
        }
        assert_eq!(format!("{:?}", BaseUrl::new("http://me:pw@host")), "\"host\"");
    }

    #[test]
    fn a_file_may_name_one_address_or_several_and_nothing_unknown() {
        let read = |text: &str| toml::from_str::<EndpointSettings>(text);
        assert_eq!(read("url = 'http://a'").unwrap(), EndpointSettings::new("http://a"));
        let several = read("url = ['http://a', 'http://b']\ndialect = 'tensorrt_llm'\nprefix_cache = 'keep'").unwrap();
        assert_eq!((several.url.len(), several.dialect), (2, Some(Dialect::TensorrtLlm)));
        assert!(read("url = 'http://a'\napi_key = 'sk-1'").is_err(), "keys are not for files");
        assert!(read("model = 'm'").is_err());
        let check = |text: &str| read(text).unwrap().check().map_err(|error| error.to_string());
        assert!(check("url = 'http://a'\n[extra_body]\nstream = false").unwrap_err().contains("`stream`"));
        assert!(check("url = []").is_err());
        assert!(check("url = 'http://a'\nconnect_timeout_s = 0").unwrap_err().contains("connect_timeout_s"));
        assert_eq!(check("url = 'http://a'\nextra_body = { response_format = { type = 'json_object' } }"), Ok(()));
    }
}
