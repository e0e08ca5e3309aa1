//! A running server that speaks OpenAI's protocol, as a target.
//!
//! Requests go out one after the other within a group and concurrently across groups, so that what is in flight is what the
//! arm asks for. Every group runs as a task of its own: the runner is woken when a group is answered, and not for every token.
//!
//! | file | what |
//! | --- | --- |
//! | `settings` | what is asked of an endpoint |
//! | `dialect` | what differs between engines: one more engine is one more variant there |
//! | `served` | what a server says of itself before anything is asked |
//! | `connection`, `retry` | replicas, time limits, retries; what a failure means |
//! | `sse`, `wire`, `answer` | bytes → events → chunks → an answer |
//! | `identity`, `counted` | whether it is still the same server, and what it counted meanwhile |
//! | `dialogue` | an item with its follow-ups → a completion |
//! | `server_tokenizer`, `token_check` | the server's own counts, and what a difference means |

mod answer;
mod connection;
mod counted;
mod dialect;
mod dialogue;
mod error;
mod identity;
mod retry;
mod secret;
mod served;
mod server_tokenizer;
mod settings;
mod sse;
mod token_check;
mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::sample::{Bin, Completion, Item};
use crate::serving;
use crate::setup::{Arm, Check, Evidence, ModelIdentity, Resolved};
use crate::targets::openai::connection::Connection;
use crate::targets::openai::dialogue::Dialogue;
use crate::targets::openai::identity::Identity;
use crate::targets::openai::served::Served;
use crate::targets::{ChecksFuture, CompletionFuture, Target, TargetError, TargetEvent, Watch};
use crate::tokenizer::TokenCounter;

pub use dialect::Dialect;
pub use error::{EndpointError, Partial};
pub use secret::Secret;
pub use server_tokenizer::ServerTokenizer;
pub use settings::{Api, BaseUrl, EndpointSettings, PrefixCache};
pub use token_check::{TokenAgreement, compare_counts};

/// How often progress is told and a stop looked for.
const TICK: Duration = Duration::from_millis(250);

/// A running server, of one arm.
pub struct Endpoint {
    inner: Arc<Inner>,
    model: ModelIdentity,
    resolved: Resolved,
    checks: Vec<Check>,
}

/// What the tasks of all groups share.
struct Inner {
    settings: Arc<EndpointSettings>,
    connection: Connection,
    served: Served,
    prefix_cache: PrefixCache,
    identity: Identity,
    /// By replica, before anything was asked.
    counted_before: Vec<Option<serving::metrics::Counters>>,
    counter: Arc<dyn TokenCounter>,
    /// Differs between runs, so that no run reads what another left in the server's cache.
    nonce: String,
    traffic: Counters,
}

/// What went over the wire so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Answers received.
    pub answers: usize,
    /// Attempts beyond the first.
    pub retries: usize,
    /// Prompt tokens as the server counts them.
    pub prompt_tokens: usize,
    /// Of these, read from the prefix cache, as far as the server tells.
    pub cached_tokens: usize,
    /// Tokens generated.
    pub output_tokens: usize,
}

#[derive(Default)]
struct Counters {
    answers: AtomicUsize,
    retries: AtomicUsize,
    prompt_tokens: AtomicUsize,
    cached_tokens: AtomicUsize,
    output_tokens: AtomicUsize,
}

/// How far a group is, told by its task.
#[derive(Default)]
struct Reached {
    prompt_tokens: AtomicUsize,
    tokens: AtomicUsize,
}

impl Endpoint {
    /// Connects to the server of `arm`: it must answer and serve the model. `resolved` is what is known of it from elsewhere;
    /// `counter` counts tokens as its model does. Secrets are read from the environment.
    ///
    /// # Errors
    /// [`TargetError::Endpoint`] for settings that cannot be meant, a server that does not answer, a model it does not serve.
    pub async fn connect(
        settings: EndpointSettings,
        arm: &Arm,
        model: ModelIdentity,
        resolved: Resolved,
        counter: Arc<dyn TokenCounter>,
    ) -> Result<Self, TargetError> {
        Self::connect_with(settings, arm, model, resolved, counter, &|name| std::env::var(name).ok()).await
    }

    /// [`connect`](Self::connect) with the values of variables from `variable`.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub async fn connect_with(
        settings: EndpointSettings,
        arm: &Arm,
        model: ModelIdentity,
        resolved: Resolved,
        counter: Arc<dyn TokenCounter>,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, TargetError> {
        settings.check()?;
        let settings = Arc::new(settings);
        let connection = Connection::new(Arc::clone(&settings), variable)?;
        let served = Served::ask(&connection, &settings).await?;
        let prefix_cache = prefix_cache(&settings, served.dialect)?;
        let identity = Identity::new(&served, settings.allow_identity_change);
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let nonce = format!("{} {} {}", arm.name, std::process::id(), since_1970.as_nanos());
        let resolved = with_served(resolved, &served);
        let counted_before = counted::read(&connection).await;
        let traffic = Counters::default();
        let inner =
            Inner { settings, connection, served, prefix_cache, identity, counted_before, counter, nonce, traffic };
        Ok(Self { inner: Arc::new(inner), model, resolved, checks: Vec::new() })
    }

    /// With what was asked for, each beside what was observed of it.
    #[must_use]
    pub fn with_checks(self, checks: Vec<Check>) -> Self {
        Self { checks, ..self }
    }

    /// The engine, as it was named or recognised.
    pub fn dialect(&self) -> Dialect {
        self.inner.served.dialect
    }

    /// Name of the model at the server.
    pub fn served_model(&self) -> &str {
        &self.inner.served.model
    }

    /// Version of the engine in its own words, where it tells.
    pub fn version(&self) -> Option<&str> {
        self.inner.served.versions.first().and_then(Option::as_deref)
    }

    /// The server's fingerprint of itself, once an answer has told it.
    pub fn fingerprint(&self) -> Option<String> {
        self.inner.identity.fingerprint()
    }

    /// What went over the wire so far.
    pub fn traffic(&self) -> Traffic {
        let Counters { answers, retries, prompt_tokens, cached_tokens, output_tokens } = &self.inner.traffic;
        let read = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
        Traffic {
            answers: read(answers),
            retries: read(retries),
            prompt_tokens: read(prompt_tokens),
            cached_tokens: read(cached_tokens),
            output_tokens: read(output_tokens),
        }
    }

    /// Sends three short conversations and says whether the server counts their tokens as this endpoint's counter does.
    ///
    /// # Errors
    /// [`TargetError::Endpoint`] where the server does not answer or does not count.
    pub async fn check_tokens(&self) -> Result<TokenAgreement, TargetError> {
        Ok(token_check::check(&self.inner).await?)
    }
}

fn prefix_cache(settings: &EndpointSettings, dialect: Dialect) -> Result<PrefixCache, EndpointError> {
    let can_salt = dialect.cold_cache("").is_some();
    match settings.prefix_cache {
        Some(PrefixCache::Salt) if !can_salt => Err(EndpointError::Unsupported {
            dialect,
            what: "keep a request from the prefix cache (`prefix_cache = \"salt\"`)",
        }),
        Some(choice) => Ok(choice),
        // Its older releases refuse fields that they do not know.
        None if dialect == Dialect::TensorrtLlm => Ok(PrefixCache::Keep),
        None if can_salt => Ok(PrefixCache::Salt),
        None => Ok(PrefixCache::Keep),
    }
}

/// Fills in what the server has told and nobody else knows.
fn with_served(mut resolved: Resolved, served: &Served) -> Resolved {
    if resolved.max_model_len.value.is_none()
        && let Some(tokens) = served.max_model_len
    {
        resolved.max_model_len = Evidence::known(tokens, served.max_model_len_source);
    }
    if resolved.engine.value.is_none() {
        let version = served.versions.first().and_then(Option::as_deref);
        let name =
            version.map_or_else(|| served.dialect.name().to_owned(), |version| format!("{} {version}", served.dialect));
        resolved.engine = Evidence::known(name, "endpoint");
    }
    resolved
}

impl Target for Endpoint {
    fn model(&self) -> &ModelIdentity {
        &self.model
    }

    fn resolved(&self) -> Resolved {
        self.resolved.clone()
    }

    fn checks(&self) -> Vec<Check> {
        self.checks.clone()
    }

    fn watched(&self) -> ChecksFuture<'_> {
        Box::pin(async move {
            let Inner { settings, connection, counted_before, .. } = self.inner.as_ref();
            counted::checks(counted_before, &counted::read(connection).await, settings.allow_identity_change)
        })
    }

    fn counter(&self) -> Arc<dyn TokenCounter> {
        Arc::clone(&self.inner.counter)
    }

    fn decoding(&self) -> Vec<(&'static str, String)> {
        let settings = &self.inner.settings;
        let api = match settings.api {
            Api::Chat => "chat",
            Api::Completions => "completions",
        };
        let prefix_cache = match self.inner.prefix_cache {
            PrefixCache::Salt => "salt",
            PrefixCache::Keep => "keep",
        };
        let mut fields = vec![
            ("decoding", format!("temperature {}, seed {}", settings.temperature, settings.seed)),
            ("api", api.to_owned()),
            ("prefix_cache", prefix_cache.to_owned()),
        ];
        for (name, table) in
            [("extra_body", &settings.extra_body), ("chat_template_kwargs", &settings.chat_template_kwargs)]
        {
            if !table.is_empty() {
                let text = serde_json::Value::from(table.clone()).to_string();
                fields.push((name, self.inner.connection.redactor().clean_answer(text)));
            }
        }
        if settings.ignore_usage {
            fields.push(("ignore_usage", "true".into()));
        }
        fields
    }

    fn accept_bins(&self, bins: &[Bin]) -> Result<(), TargetError> {
        let Some(max_model_len) = self.resolved.max_model_len.value else { return Ok(()) };
        match bins.iter().find(|bin| bin.tokens() > max_model_len) {
            Some(&bin) => {
                let model = self.inner.served.model.clone();
                Err(EndpointError::BinTooLong { bin, max_model_len, model }.into())
            }
            None => Ok(()),
        }
    }

    fn complete<'a>(&'a self, items: Vec<Item>, watch: &'a Watch<'a>) -> CompletionFuture<'a> {
        Box::pin(async move {
            let n_item = items.len();
            let total = items.iter().map(|item| item.prompt_tokens as usize).sum();
            let reached = Arc::new(Reached::default());
            let (results, mut landed) = mpsc::unbounded_channel();
            // Dropped with this future, and the requests with it.
            let mut tasks = JoinSet::new();
            let (inner, task_reached) = (Arc::clone(&self.inner), Arc::clone(&reached));
            tasks.spawn(async move {
                for item in items {
                    let result = Dialogue::new(&inner, &item, &task_reached).complete().await;
                    task_reached.prompt_tokens.fetch_add(item.prompt_tokens as usize, Ordering::Relaxed);
                    if results.send(result).is_err() {
                        break;
                    }
                }
            });
            let mut completions: Vec<Result<Completion, TargetError>> = Vec::with_capacity(n_item);
            let mut clock = tokio::time::interval(TICK);
            while completions.len() < n_item && !watch.cancel.is_cancelled() {
                tokio::select! {
                    result = landed.recv() => match result {
                        Some(result) => completions.push(result.map_err(TargetError::from)),
                        None => break,
                    },
                    _ = clock.tick() => {
                        let done = reached.prompt_tokens.load(Ordering::Relaxed);
                        (watch.on_event)(TargetEvent::Prefill { done, total });
                        (watch.on_event)(TargetEvent::Decode { tokens: reached.tokens.load(Ordering::Relaxed) });
                    }
                }
            }
            if completions.len() < n_item {
                let missing =
                    if watch.cancel.is_cancelled() { TargetError::Cancelled } else { stopped(&mut tasks).await };
                completions.resize(n_item, Err(missing));
            }
            completions
        })
    }
}

/// Why a group's task ended early: it panicked.
async fn stopped(tasks: &mut JoinSet<()>) -> TargetError {
    let panic = tasks.join_next().await.and_then(Result::err);
    TargetError::Engine(panic.map_or_else(|| "the client stopped".into(), |panic| panic.to_string()))
}
