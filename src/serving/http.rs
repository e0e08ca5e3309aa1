//! Asking a server about itself: short replies, no redirects, a limit on everything, and the key in no text.

use std::time::Duration;

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use reqwest::{Client, RequestBuilder, Url};

use crate::hint::Hint;
use crate::transport;

/// A server that is up takes a connection at once, also across an ocean.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Replies about itself are computed from what is in memory; a server in the middle of a long prefill may still be slow.
const REPLY_TIMEOUT: Duration = Duration::from_secs(20);
/// Largest reply read: a `/metrics` page with the histograms of many engines has about 1 MB.
pub(crate) const MAX_REPLY_BYTES: usize = 8 << 20;
/// Longest address taken; browsers and proxies stop at about as much.
const MAX_ADDRESS_BYTES: usize = 2048;

/// A server by its address, with the key for it.
#[derive(Debug)]
pub struct Endpoint {
    client: Client,
    base: Url,
    /// Marked as sensitive, so that it shows up nowhere.
    authorization: Option<HeaderValue>,
}

/// What came back, whatever its status.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// Lower case, without parameters: `text/html`.
    content_type: String,
    pub(crate) body: Vec<u8>,
}

/// Why a server could not be asked. Addresses in here carry no credentials.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The address is of no use.
    #[error("`{address}` is not the address of a server: {reason}")]
    Address {
        /// As given, cut to a readable length, without a password.
        address: String,
        /// Why.
        reason: &'static str,
    },
    /// The key cannot be sent.
    #[error("the API key has characters that no header can carry")]
    Key,
    /// The connection cannot be set up on this side.
    #[error("TLS: {reason}")]
    Tls {
        /// What the library says.
        reason: String,
    },
    /// No connection, or it broke.
    #[error("{url} cannot be reached: {reason}")]
    Unreachable {
        /// The address asked.
        url: String,
        /// What the system says.
        reason: String,
    },
    /// No reply in time.
    #[error("{url} did not reply within {seconds} s")]
    Silent {
        /// The address asked.
        url: String,
        /// The limit.
        seconds: u64,
    },
    /// The reply is longer than is read.
    #[error("{url} sent more than {limit} bytes")]
    TooLong {
        /// The address asked.
        url: String,
        /// The limit.
        limit: usize,
    },
    /// 401 or 403.
    #[error("{url} refuses access with status {status}")]
    Denied {
        /// The address asked.
        url: String,
        /// The status.
        status: u16,
    },
    /// A page for people, not an inference server.
    #[error("{url} answers with a web page (status {status}), not as an inference server")]
    WebPage {
        /// The address asked.
        url: String,
        /// The status.
        status: u16,
    },
    /// It sends elsewhere, which is not followed: the key would go along.
    #[error("{url} redirects with status {status}")]
    Redirect {
        /// The address asked.
        url: String,
        /// The status.
        status: u16,
    },
    /// It replies, but to nothing that an inference server replies to.
    #[error("{url} replies, but like no inference server: {replies}")]
    Unknown {
        /// The address asked.
        url: String,
        /// Path and what came of it.
        replies: String,
    },
}

impl EndpointError {
    /// Whether the address or key as given is at fault, not the server.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Address { .. } | Self::Key)
    }
}

impl Hint for EndpointError {
    fn hints(&self) -> Vec<String> {
        let one = |hint: &str| vec![hint.to_owned()];
        match self {
            Self::Address { .. } => one("for example `http://localhost:8000`; a key goes by `--api-key-env NAME`"),
            Self::Key => one("look for a line break or quotes in the variable that holds it"),
            Self::Tls { .. } => Vec::new(),
            Self::Unreachable { url, .. } => vec![
                format!("is the server up? `curl {url}` from this machine must answer"),
                "engines say so in their log when they are ready; loading a large model takes minutes".into(),
            ],
            Self::Silent { .. } => one("a server that loads a model or works on a long prompt may be slow: try again"),
            Self::TooLong { .. } => one("does the address belong to an inference server?"),
            Self::Denied { .. } => one("name the variable that holds the key: `--api-key-env NAME`"),
            Self::WebPage { .. } | Self::Unknown { .. } => vec![
                "give the root of the server, without a path: `http://localhost:8000`".into(),
                "a gateway or login page may stand in between: ask the engine directly".into(),
            ],
            Self::Redirect { .. } => one("give the address that it redirects to, with `https` where it wants that"),
        }
    }
}

impl Endpoint {
    /// The server at `address`: `http://host:8000`, with or without `/v1` at the end; without a scheme it is `http`.
    ///
    /// # Errors
    /// [`EndpointError::Address`], [`EndpointError::Key`] or [`EndpointError::Tls`]; nothing is asked yet.
    pub fn new(address: &str, key: Option<&str>) -> Result<Self, EndpointError> {
        let base = base_of(address)?;
        let authorization = key
            .map(str::trim)
            .filter(|key| !key.is_empty())
            .map(|key| HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| EndpointError::Key));
        let mut authorization = authorization.transpose()?;
        if let Some(value) = &mut authorization {
            value.set_sensitive(true);
        }
        let tls = transport::tls_config(None).map_err(|reason| EndpointError::Tls { reason })?;
        let mut builder = Client::builder()
            .user_agent(concat!("kvgauge/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(REPLY_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .tls_backend_preconfigured(tls);
        if transport::is_loopback(&base) {
            builder = builder.no_proxy();
        }
        let client = builder.build().map_err(|error| EndpointError::Tls { reason: transport::causes(error) })?;
        Ok(Self { client, base, authorization })
    }

    /// The address without `/v1` and without a slash at the end.
    pub fn address(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    /// `GET` of a path that starts with `/`.
    pub(crate) async fn get(&self, path: &str) -> Result<Reply, EndpointError> {
        self.send(path, self.client.get(self.url(path))).await
    }

    /// `POST` of a JSON document.
    pub(crate) async fn post(&self, path: &str, document: &serde_json::Value) -> Result<Reply, EndpointError> {
        let request = self.client.post(self.url(path)).header(CONTENT_TYPE, "application/json");
        self.send(path, request.body(document.to_string())).await
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.address())
    }

    async fn send(&self, path: &str, mut request: RequestBuilder) -> Result<Reply, EndpointError> {
        if let Some(value) = &self.authorization {
            request = request.header(AUTHORIZATION, value.clone());
        }
        let url = self.url(path);
        let failed = |error: reqwest::Error| match error.is_timeout() {
            true => EndpointError::Silent { url: url.clone(), seconds: REPLY_TIMEOUT.as_secs() },
            false => EndpointError::Unreachable { url: url.clone(), reason: transport::causes(error) },
        };
        let mut response = request.send().await.map_err(failed)?;
        let status = response.status().as_u16();
        let content_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
        let content_type = content_type.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            if body.len() + chunk.len() > MAX_REPLY_BYTES {
                return Err(EndpointError::TooLong { url, limit: MAX_REPLY_BYTES });
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Reply { status, content_type, body })
    }
}

impl Reply {
    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    pub(crate) fn is_redirect(&self) -> bool {
        (300..400).contains(&self.status)
    }

    pub(crate) fn is_denied(&self) -> bool {
        matches!(self.status, 401 | 403)
    }

    /// A page for people, by its type or, where that is missing, by how it starts.
    pub(crate) fn is_web_page(&self) -> bool {
        let start: Vec<u8> = self.body.iter().skip_while(|byte| byte.is_ascii_whitespace()).take(15).copied().collect();
        let start = start.to_ascii_lowercase();
        self.content_type == "text/html" || start.starts_with(b"<!doctype html") || start.starts_with(b"<html")
    }

    /// The JSON document in a successful reply.
    pub(crate) fn json(&self) -> Option<serde_json::Value> {
        if self.is_success() { serde_json::from_slice(&self.body).ok() } else { None }
    }

    /// The text of a successful reply; what is not UTF-8 is replaced.
    pub(crate) fn text(&self) -> Option<String> {
        self.is_success().then(|| String::from_utf8_lossy(&self.body).into_owned())
    }
}

/// The root that every path is put behind. `/v1`, as clients of the OpenAI interface write it, is not part of it.
fn base_of(address: &str) -> Result<Url, EndpointError> {
    let bad = |reason| EndpointError::Address { address: shown(address), reason };
    if address.len() > MAX_ADDRESS_BYTES {
        return Err(bad("it is too long"));
    }
    let trimmed = address.trim();
    let with_scheme = if trimmed.contains("://") { trimmed.to_owned() } else { format!("http://{trimmed}") };
    let mut url = Url::parse(&with_scheme).map_err(|_| bad("it cannot be read"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(bad("only http and https are spoken"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(bad("it holds a name or password, which would end up in files"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(bad("it has a query or fragment"));
    }
    let path = url.path().trim_end_matches('/').to_owned();
    url.set_path(path.strip_suffix("/v1").unwrap_or(&path));
    Ok(url)
}

/// For messages: short, and nothing before an `@`.
fn shown(address: &str) -> String {
    const MOST_SHOWN: usize = 80;
    let without_user = match address.rfind('@') {
        Some(at) => format!("…{}", &address[at..]),
        None => address.to_owned(),
    };
    match without_user.char_indices().nth(MOST_SHOWN) {
        Some((end, _)) => format!("{}…", &without_user[..end]),
        None => without_user,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_taken_with_and_without_v1() {
        for address in ["http://h:8000", "http://h:8000/", "h:8000", " http://h:8000/v1 ", "http://h:8000/v1/"] {
            assert_eq!(Endpoint::new(address, None).unwrap().address(), "http://h:8000", "{address}");
        }
        let behind_a_path = Endpoint::new("https://gateway.example/team/v1", None).unwrap();
        assert_eq!(behind_a_path.url("/metrics"), "https://gateway.example/team/metrics");
    }

    #[test]
    fn a_useless_address_is_named_without_its_password() {
        for (address, reason) in [
            ("ftp://h", "only http"),
            ("http://me:s3cret@h:1", "password"),
            ("http://h/?key=1", "query"),
            ("http://", "cannot be read"),
            ("", "cannot be read"),
        ] {
            let error = Endpoint::new(address, None).unwrap_err();
            let text = error.to_string();
            assert!(error.is_usage() && text.contains(reason) && !text.contains("s3cret"), "{text}");
        }
    }

    #[test]
    fn a_key_shows_up_in_no_debug_text() {
        let endpoint = Endpoint::new("http://h", Some("canary-key\n")).unwrap();
        assert!(!format!("{endpoint:?}").contains("canary"));
        assert!(matches!(Endpoint::new("http://h", Some("a\nb")), Err(EndpointError::Key)));
    }
}
