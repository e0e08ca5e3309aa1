//! Requests and replies: replicas, time limits, retries, and what each failure means.
//!
//! Only what failed before an answer began is asked again: a stream that broke off is an error of its item, which the next
//! start of the run asks again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, RequestBuilder, Response};
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use crate::sample::Bin;
use crate::targets::openai::answer::{Answer, Fault};
use crate::targets::openai::error::{FIRST_TOKEN, NEXT_TOKEN};
use crate::targets::openai::retry::{self, Pace};
use crate::targets::openai::secret::{Redactor, Secret};
use crate::targets::openai::settings::EndpointSettings;
use crate::targets::openai::sse::{Event, MAX_STREAM_BYTES, SseParser};
use crate::targets::openai::{EndpointError, Partial, wire};
use crate::transport;

/// A reply that is no stream: an answer, or the log-probabilities of 128K prompt tokens at some 100 bytes each.
const MAX_BODY_BYTES: usize = MAX_STREAM_BYTES;
/// Error bodies are quoted in part only.
const MAX_ERROR_BYTES: usize = 64 << 10;
/// Model lists and what servers tell of themselves.
const MAX_FACTS_BYTES: usize = 4 << 20;
/// Counters are a convenience: a server that is slow with them is measured without.
const PAGE_TIMEOUT: Duration = Duration::from_secs(5);
/// What a server tells of itself it knows by heart.
const FACTS_TIMEOUT: Duration = Duration::from_secs(20);
/// The count of tokens may come after the end of the answer, and some servers then leave the connection open.
const AFTER_END_TIMEOUT: Duration = Duration::from_secs(5);
/// For the last bytes of a stream after `[DONE]`, without which a connection cannot be used again.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(50);

/// What a request is about, for its errors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject {
    pub(super) bin: Bin,
    pub(super) prompt_tokens: u32,
}

/// An answer and how it was got.
pub(super) struct Answered {
    pub(super) answer: Answer,
    pub(super) replica: usize,
    /// 1 where the first attempt was answered.
    pub(super) attempts: u32,
}

struct Replica {
    client: Client,
    root: String,
    in_flight: AtomicUsize,
}

/// All replicas of one endpoint.
pub(super) struct Connection {
    replicas: Vec<Replica>,
    next: AtomicUsize,
    pace: Option<Pace>,
    redactor: Redactor,
    settings: Arc<EndpointSettings>,
}

/// A failed attempt.
struct Failure {
    error: EndpointError,
    /// `None`: another attempt would not help; else the least delay before it.
    retry_after: Option<Duration>,
}

impl Failure {
    fn last(error: EndpointError) -> Self {
        Self { error, retry_after: None }
    }
}

impl Connection {
    /// Clients for all addresses of `settings`; secrets come from `variable`.
    pub(super) fn new(
        settings: Arc<EndpointSettings>,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, EndpointError> {
        let mut redactor = Redactor::default();
        let headers = secret_headers(&settings, variable, &mut redactor)?;
        let tls = transport::tls_config(settings.ca_file.as_deref());
        let tls = tls.map_err(|reason| EndpointError::Setting { key: "ca_file", reason })?;
        let mut replicas = Vec::new();
        for url in &settings.url {
            let root = url.root()?;
            let mut builder = Client::builder()
                .user_agent(concat!("kvgauge/", env!("CARGO_PKG_VERSION")))
                .default_headers(headers.clone())
                .connect_timeout(Duration::from_secs(settings.connect_timeout_s))
                // Headers with keys would travel along.
                .redirect(reqwest::redirect::Policy::none())
                .tls_backend_preconfigured(tls.clone());
            if transport::is_loopback(&root) {
                builder = builder.no_proxy();
            }
            let client = builder.build().map_err(|error| EndpointError::Setting {
                key: "url",
                reason: redactor.quote(&transport::causes(error)),
            })?;
            let root = root.as_str().trim_end_matches('/').to_owned();
            replicas.push(Replica { client, root, in_flight: AtomicUsize::new(0) });
        }
        let pace = settings.max_requests_per_minute.map(Pace::new);
        Ok(Self { replicas, next: AtomicUsize::new(0), pace, redactor, settings })
    }

    pub(super) fn redactor(&self) -> &Redactor {
        &self.redactor
    }

    pub(super) fn n_replica(&self) -> usize {
        self.replicas.len()
    }

    /// What a replica tells under `path`. Asked again while there is no connection or no service.
    pub(super) async fn facts(&self, replica: usize, path: &str) -> Result<Value, EndpointError> {
        let Replica { client, root, .. } = &self.replicas[replica];
        self.json(|| client.get(format!("{root}{path}"))).await
    }

    /// A page of text of a replica, asked for once; `None` where there is none.
    pub(super) async fn page(&self, replica: usize, path: &str) -> Option<String> {
        let Replica { client, root, .. } = &self.replicas[replica];
        let request = client.get(format!("{root}{path}"));
        let deadline = Instant::now() + PAGE_TIMEOUT;
        let mut response = self.send(request, deadline, PAGE_TIMEOUT, "the page", None).await.ok()?;
        let body = self.body(&mut response, deadline, PAGE_TIMEOUT, MAX_FACTS_BYTES).await.ok()?;
        String::from_utf8(body).ok()
    }

    /// The reply to `body` under `path` of the first replica.
    pub(super) async fn post_for_facts(&self, path: &str, body: &Value) -> Result<Value, EndpointError> {
        let Replica { client, root, .. } = &self.replicas[0];
        let body = body.to_string();
        let request = || client.post(format!("{root}{path}")).header(CONTENT_TYPE, "application/json");
        self.json(|| request().body(body.clone())).await
    }

    async fn json(&self, request: impl Fn() -> RequestBuilder) -> Result<Value, EndpointError> {
        self.with_retries(|_| async {
            let deadline = Instant::now() + FACTS_TIMEOUT;
            let mut response = self.send(request(), deadline, FACTS_TIMEOUT, "the reply", None).await?;
            let body =
                self.body(&mut response, deadline, FACTS_TIMEOUT, MAX_FACTS_BYTES).await.map_err(Failure::last)?;
            serde_json::from_slice(&body).map_err(|error| Failure::last(self.not_an_answer(&error.to_string(), "")))
        })
        .await
        .map(|(value, _)| value)
    }

    /// The answer to `body` under `route`; `on_token` is called for every chunk with text in it.
    pub(super) async fn ask(
        &self,
        route: &str,
        body: &[u8],
        subject: Subject,
        on_token: &(dyn Fn(usize) + Send + Sync),
    ) -> Result<Answered, EndpointError> {
        let mut avoid = None;
        let asked = AtomicUsize::new(usize::MAX);
        let ((answer, replica), attempts) = self
            .with_retries(|_| {
                // After a failure another replica is asked, where there is one.
                avoid = Some(asked.load(Ordering::Relaxed)).filter(|_| self.replicas.len() > 1);
                let replica = self.pick(avoid);
                asked.store(replica, Ordering::Relaxed);
                async move {
                    if let Some(pace) = &self.pace {
                        pace.wait().await;
                    }
                    let _in_flight = InFlight::new(&self.replicas[replica].in_flight);
                    let answer = self.attempt(replica, route, body, subject, on_token).await?;
                    Ok((answer, replica))
                }
            })
            .await?;
        Ok(Answered { answer, replica, attempts })
    }

    async fn with_retries<T, F: Future<Output = Result<T, Failure>>>(
        &self,
        mut attempt: impl FnMut(u32) -> F,
    ) -> Result<(T, u32), EndpointError> {
        let deadline = Instant::now() + Duration::from_secs(self.settings.retry_deadline_s);
        let mut count = 0;
        loop {
            count += 1;
            let failure = match attempt(count).await {
                Ok(value) => return Ok((value, count)),
                Err(failure) => failure,
            };
            let Some(least) = failure.retry_after.filter(|_| count <= self.settings.max_retries) else {
                return Err(failure.error.after(count));
            };
            let again_at = Instant::now() + least.max(retry::back_off(count));
            if again_at > deadline {
                return Err(failure.error.after(count));
            }
            tokio::time::sleep_until(again_at).await;
        }
    }

    /// The replica with the fewest requests; replicas take turns where they are even.
    fn pick(&self, avoid: Option<usize>) -> usize {
        let start = self.next.fetch_add(1, Ordering::Relaxed);
        let order = (0..self.replicas.len()).map(|step| (start + step) % self.replicas.len());
        let load = |place: &usize| self.replicas[*place].in_flight.load(Ordering::Relaxed);
        order.filter(|place| Some(*place) != avoid).min_by_key(load).unwrap_or(0)
    }

    async fn attempt(
        &self,
        replica: usize,
        route: &str,
        body: &[u8],
        subject: Subject,
        on_token: &(dyn Fn(usize) + Send + Sync),
    ) -> Result<Answer, Failure> {
        let Replica { client, root, .. } = &self.replicas[replica];
        let request =
            client.post(format!("{root}{route}")).header(CONTENT_TYPE, "application/json").body(body.to_vec());
        let started = Instant::now();
        let limit = self.settings.first_byte_timeout();
        let deadline = started + limit;
        let mut response = self.send(request, deadline, limit, FIRST_TOKEN, Some(subject)).await?;
        let kind = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let mut answer = Answer::new(started);
        if kind.starts_with("text/event-stream") {
            self.read_stream(&mut response, &mut answer, deadline, subject, on_token).await.map_err(Failure::last)?;
        } else {
            let body = self.body(&mut response, deadline, limit, MAX_BODY_BYTES).await.map_err(Failure::last)?;
            let taken = answer.take_body(&body, Instant::now());
            taken.map_err(|fault| Failure::last(self.failed(fault, &answer, subject)))?;
            on_token(answer.deltas);
        }
        answer.is_whole().map_err(|fault| Failure::last(self.failed(fault, &answer, subject)))?;
        Ok(answer)
    }

    /// Sends, and gives back a response with a good status.
    async fn send(
        &self,
        request: RequestBuilder,
        deadline: Instant,
        limit: Duration,
        waiting_for: &'static str,
        subject: Option<Subject>,
    ) -> Result<Response, Failure> {
        let mut response = match timeout_at(deadline, request.send()).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => {
                let reason = self.redactor.quote(&transport::causes(error));
                let error = EndpointError::Transport { attempts: 1, reason };
                return Err(Failure { error, retry_after: Some(Duration::ZERO) });
            }
            Err(_) => {
                let (limit_s, partial) = (limit.as_secs(), Partial::default());
                return Err(Failure::last(EndpointError::Timeout { waiting_for, limit_s, partial }));
            }
        };
        let status = response.status().as_u16();
        if (200..300).contains(&status) {
            return Ok(response);
        }
        if (300..400).contains(&status) {
            return Err(Failure::last(EndpointError::Redirected { status }));
        }
        let retry_after = retry::retry_after(response.headers(), SystemTime::now());
        let text = wire::error_text(&error_body(&mut response).await);
        let message = self.redactor.quote(&text);
        if let Some(Subject { bin, prompt_tokens }) = subject.filter(|_| wire::is_context_overflow(status, &text)) {
            return Err(Failure::last(EndpointError::ContextOverflow { bin, prompt_tokens, message }));
        }
        if matches!(status, 401 | 403) {
            return Err(Failure::last(EndpointError::Unauthorized { status, message }));
        }
        let retry_after = retry::is_temporary(status).then(|| retry_after.unwrap_or_default());
        Err(Failure { error: EndpointError::Status { status, attempts: 1, message }, retry_after })
    }

    async fn read_stream(
        &self,
        response: &mut Response,
        answer: &mut Answer,
        mut deadline: Instant,
        subject: Subject,
        on_token: &(dyn Fn(usize) + Send + Sync),
    ) -> Result<(), EndpointError> {
        let mut parser = SseParser::default();
        loop {
            let chunk = match timeout_at(deadline, response.chunk()).await {
                Ok(Ok(chunk)) => chunk,
                // The end was said; what is missing is only the end of the connection.
                Ok(Err(_)) | Err(_) if answer.has_ended() => return Ok(()),
                Ok(Err(error)) => {
                    let reason = self.redactor.quote(&transport::causes(error));
                    return Err(EndpointError::BrokenOff { reason, partial: self.partial(answer) });
                }
                Err(_) => return Err(self.stalled(answer)),
            };
            let now = Instant::now();
            let (events, deltas) = (answer.events, answer.deltas);
            let mut take = |event: Event<'_>| answer.take_event(&event, now);
            let taken = match &chunk {
                Some(bytes) => parser.push(bytes, &mut take),
                None => parser.finish(&mut take),
            };
            taken.map_err(|fault: Fault| self.failed(fault, answer, subject))?;
            if answer.deltas > deltas {
                on_token(answer.deltas - deltas);
            }
            if chunk.is_none() {
                return Ok(());
            }
            if answer.is_done {
                // Not waited for long: the answer is there.
                let _ = tokio::time::timeout(DRAIN_TIMEOUT, response.chunk()).await;
                return Ok(());
            }
            // Comments keep a connection alive and are no progress; before the first token nothing moves its limit.
            if answer.events > events && answer.has_ended() {
                deadline = now + AFTER_END_TIMEOUT;
            } else if answer.events > events && answer.has_begun() {
                deadline = now + self.settings.between_tokens_timeout();
            }
        }
    }

    async fn body(
        &self,
        response: &mut Response,
        deadline: Instant,
        limit: Duration,
        max_bytes: usize,
    ) -> Result<Vec<u8>, EndpointError> {
        let mut body = Vec::new();
        loop {
            match timeout_at(deadline, response.chunk()).await {
                Ok(Ok(Some(bytes))) if body.len() + bytes.len() > max_bytes => {
                    return Err(self.not_an_answer(&format!("more than {max_bytes} bytes"), ""));
                }
                Ok(Ok(Some(bytes))) => body.extend_from_slice(&bytes),
                Ok(Ok(None)) => return Ok(body),
                Ok(Err(error)) => {
                    let reason = self.redactor.quote(&transport::causes(error));
                    return Err(EndpointError::BrokenOff { reason, partial: Partial::default() });
                }
                Err(_) => {
                    let (limit_s, partial) = (limit.as_secs(), Partial::default());
                    return Err(EndpointError::Timeout { waiting_for: "the whole reply", limit_s, partial });
                }
            }
        }
    }

    fn stalled(&self, answer: &Answer) -> EndpointError {
        let (waiting_for, limit_s) = match answer.has_begun() {
            true => (NEXT_TOKEN, self.settings.between_tokens_timeout_s),
            false => (FIRST_TOKEN, self.settings.first_byte_timeout_s),
        };
        EndpointError::Timeout { waiting_for, limit_s, partial: self.partial(answer) }
    }

    fn failed(&self, fault: Fault, answer: &Answer, subject: Subject) -> EndpointError {
        match fault {
            Fault::Reported(text) if wire::is_context_overflow(200, &text) => {
                let Subject { bin, prompt_tokens } = subject;
                EndpointError::ContextOverflow { bin, prompt_tokens, message: self.redactor.quote(&text) }
            }
            Fault::Reported(text) => {
                let reason = self.redactor.quote(&text);
                EndpointError::BrokenOff {
                    reason: format!("the server says {reason:?}"),
                    partial: self.partial(answer),
                }
            }
            Fault::Malformed(reason) if answer.has_begun() && !answer.has_ended() => {
                EndpointError::BrokenOff { reason: self.redactor.quote(&reason), partial: self.partial(answer) }
            }
            Fault::Malformed(reason) => self.not_an_answer(&reason, answer.partial()),
        }
    }

    fn not_an_answer(&self, reason: &str, partial: &str) -> EndpointError {
        let partial = Partial(self.redactor.quote(partial));
        EndpointError::NotAnAnswer { reason: self.redactor.quote(reason), partial }
    }

    fn partial(&self, answer: &Answer) -> Partial {
        Partial(self.redactor.quote(answer.partial()))
    }
}

/// What can be had of an error's body, soon; the status alone says enough.
async fn error_body(response: &mut Response) -> Vec<u8> {
    let deadline = Instant::now() + FACTS_TIMEOUT;
    let mut body = Vec::new();
    while body.len() < MAX_ERROR_BYTES
        && let Ok(Ok(Some(bytes))) = timeout_at(deadline, response.chunk()).await
    {
        body.extend_from_slice(&bytes);
    }
    body.truncate(MAX_ERROR_BYTES);
    body
}

/// Counts a request for as long as it lives.
struct InFlight<'a>(&'a AtomicUsize);

impl<'a> InFlight<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn secret_headers(
    settings: &EndpointSettings,
    variable: &dyn Fn(&str) -> Option<String>,
    redactor: &mut Redactor,
) -> Result<HeaderMap, EndpointError> {
    let mut headers = HeaderMap::new();
    let mut insert = |key, name: HeaderName, prefix: &str, secret: &Secret| {
        redactor.add(secret);
        let value = HeaderValue::from_str(&format!("{prefix}{}", secret.expose()));
        let mut value = value
            .map_err(|_| EndpointError::Setting { key, reason: "the value is not one line of plain text".into() })?;
        value.set_sensitive(true);
        headers.insert(name, value);
        Ok(())
    };
    let (name, is_named) = settings.key_variable();
    let found = variable(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
    match found {
        Some(value) => insert("api_key_env", AUTHORIZATION, "Bearer ", &Secret::new(value))?,
        None if is_named => return Err(EndpointError::MissingVariable { key: "api_key_env", variable: name.into() }),
        None => {}
    }
    for (header, name) in &settings.headers {
        let bad = |_| EndpointError::Setting { key: "headers", reason: format!("`{header}` is not a header's name") };
        let header = HeaderName::from_bytes(header.as_bytes()).map_err(bad)?;
        let missing = || EndpointError::MissingVariable { key: "headers", variable: name.clone() };
        insert("headers", header, "", &Secret::new(variable(name).ok_or_else(missing)?.trim()))?;
    }
    Ok(headers)
}
