//! Plain downloads from the hub: which addresses are allowed, where the token goes, and how progress is told.

use std::cell::Cell;
use std::time::Duration;

use reqwest::Url;
use reqwest::blocking::{Client, Response};
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue, LOCATION};

use crate::model_store::{OnEvent, StoreError, StoreEvent, StoreOptions};
use crate::transport;

/// The public model hub.
const DEFAULT_ENDPOINT: &str = "https://huggingface.co";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest silence, while waiting for an answer or for more of it.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// The hub sends to its storage in one step, mirrors in two or three.
const MAX_REDIRECTS: usize = 5;
const PROGRESS_STEP_BYTES: u64 = 1 << 20;

/// A connection to one hub.
#[derive(Debug)]
pub(crate) struct HubClient {
    client: Client,
    endpoint: Url,
    /// Marked as sensitive, so that it shows up nowhere.
    authorization: Option<HeaderValue>,
}

/// An answer, after redirects.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) response: Response,
    /// Of all the answers on the way: the commit that a branch name stood for.
    pub(crate) commit: Option<String>,
    /// Of all the answers on the way: the SHA-256 of the file, where the hub knows it.
    pub(crate) sha256: Option<String>,
}

impl HubClient {
    pub(crate) fn new(options: &StoreOptions) -> Result<Self, StoreError> {
        let endpoint = options.hf_endpoint.as_deref().unwrap_or(DEFAULT_ENDPOINT);
        let bad = |reason| StoreError::BadEndpoint { endpoint: without_credentials(endpoint), reason };
        let url = Url::parse(endpoint).map_err(|_| bad("it is not an address"))?;
        if !is_allowed_start(&url) {
            return Err(bad("it must be https (http is allowed on this machine only)"));
        }
        let authorization = options
            .hf_token
            .as_deref()
            .map(|token| HeaderValue::from_str(&format!("Bearer {}", token.trim())).map_err(|_| StoreError::BadToken));
        let mut authorization = authorization.transpose()?;
        if let Some(value) = &mut authorization {
            value.set_sensitive(true);
        }
        let tls = transport::tls_config(options.ca_file.as_deref()).map_err(|reason| StoreError::Tls { reason })?;
        let mut builder = Client::builder()
            .user_agent(concat!("kvgauge/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(STALL_TIMEOUT)
            // Followed by hand, because the token and the headers on the way need care.
            .redirect(reqwest::redirect::Policy::none())
            .tls_backend_preconfigured(tls);
        if transport::is_loopback(&url) {
            builder = builder.no_proxy();
        }
        let client = builder.build().map_err(|error| StoreError::Tls { reason: transport::causes(error) })?;
        Ok(Self { client, endpoint: url, authorization })
    }

    /// Whether a token is sent.
    pub(crate) fn has_token(&self) -> bool {
        self.authorization.is_some()
    }

    /// Requests `path` below the endpoint and follows redirects; the reason is told without any address.
    pub(crate) fn get(&self, path: &str) -> Result<Reply, String> {
        let base = self.endpoint.as_str().trim_end_matches('/');
        let mut url = Url::parse(&format!("{base}/{path}")).map_err(|error| error.to_string())?;
        let (mut commit, mut sha256) = (None, None);
        for _ in 0..=MAX_REDIRECTS {
            let mut request = self.client.get(url.clone());
            if let Some(value) = self.authorization.as_ref().filter(|_| url.origin() == self.endpoint.origin()) {
                request = request.header(AUTHORIZATION, value.clone());
            }
            let response = request.send().map_err(transport::causes)?;
            commit = commit.or_else(|| hex_header(response.headers(), "x-repo-commit", 40));
            sha256 = sha256.or_else(|| hex_header(response.headers(), "x-linked-etag", 64));
            if !response.status().is_redirection() {
                return Ok(Reply { response, commit, sha256 });
            }
            let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
            let next = location.and_then(|location| url.join(location).ok()).ok_or("a redirect without an address")?;
            if !may_follow(&url, &next) {
                return Err(format!("it redirects from {} to {}", url.scheme(), next.scheme()));
            }
            url = next;
        }
        Err(format!("more than {MAX_REDIRECTS} redirects"))
    }
}

fn is_allowed_start(url: &Url) -> bool {
    url.scheme() == "https" || url.scheme() == "http" && transport::is_loopback(url)
}

/// Never from https to anything else; http may stay http on this machine.
fn may_follow(from: &Url, to: &Url) -> bool {
    to.scheme() == "https" || from.scheme() == "http" && is_allowed_start(to)
}

/// A header (with or without quotes) that is a hash of `digits` hex digits.
fn hex_header(headers: &HeaderMap, name: &str, digits: usize) -> Option<String> {
    let value = headers.get(name)?.to_str().ok()?.trim_matches('"').to_ascii_lowercase();
    (value.len() == digits && value.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(value)
}

/// `text` with `user:password@` in addresses replaced by `…@`.
pub(crate) fn without_credentials(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("://") {
        let (before, after) = rest.split_at(start + 3);
        result.push_str(before);
        let end =
            after.find(|c: char| c.is_whitespace() || matches!(c, '/' | '?' | '#' | '"' | '\'')).unwrap_or(after.len());
        let host = after[..end].rfind('@').map_or(0, |at| at);
        if host > 0 {
            result.push('…');
        }
        rest = &after[host..];
    }
    result.push_str(rest);
    result
}

/// Tells how far a download is, not more often than is useful.
pub(crate) struct ProgressReport<'a> {
    what: String,
    total_bytes: Option<u64>,
    told_bytes: Cell<u64>,
    on_event: OnEvent<'a>,
}

impl<'a> ProgressReport<'a> {
    pub(crate) fn new(what: &str, total_bytes: Option<u64>, on_event: OnEvent<'a>) -> Self {
        Self { what: what.to_owned(), total_bytes, told_bytes: Cell::new(0), on_event }
    }

    pub(crate) fn tell(&self, done_bytes: u64) {
        if done_bytes - self.told_bytes.get() >= PROGRESS_STEP_BYTES {
            self.told_bytes.set(done_bytes);
            let (what, total_bytes) = (self.what.clone(), self.total_bytes);
            (self.on_event)(StoreEvent::Progress { what, done_bytes, total_bytes });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_lose_their_passwords() {
        let line = "Looking in https://me:s3cret@index.example/simple, http://a@b/ and https://plain.example/x@y";
        assert_eq!(
            without_credentials(line),
            "Looking in https://…@index.example/simple, http://…@b/ and https://plain.example/x@y"
        );
        assert_eq!(without_credentials("https://u:p@q"), "https://…@q");
    }

    #[test]
    fn redirects_never_leave_https() {
        let url = |text: &str| Url::parse(text).unwrap();
        assert!(may_follow(&url("https://a.example"), &url("https://b.example")));
        assert!(!may_follow(&url("https://a.example"), &url("http://a.example")));
        assert!(!may_follow(&url("https://a.example"), &url("http://127.0.0.1")));
        assert!(!may_follow(&url("https://a.example"), &url("file:///etc/passwd")));
        assert!(may_follow(&url("http://127.0.0.1:1"), &url("http://127.0.0.1:2")));
        assert!(!may_follow(&url("http://127.0.0.1:1"), &url("http://b.example")));
    }

    #[test]
    fn only_hashes_are_taken_from_headers() {
        let mut headers = HeaderMap::new();
        headers.insert("x-repo-commit", HeaderValue::from_static("0123456789ABCDEF0123456789abcdef01234567"));
        headers.insert("x-linked-etag", HeaderValue::from_static("\"../../etc\""));
        assert!(hex_header(&headers, "x-repo-commit", 40).is_some_and(|commit| commit.starts_with("0123456789abcdef")));
        assert_eq!(hex_header(&headers, "x-linked-etag", 64), None);
    }
}
