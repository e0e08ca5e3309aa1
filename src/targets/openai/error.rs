//! What can go wrong between kvgauge and a server. None of it is ever a score.

use crate::hint::{self, Hint};
use crate::sample::Bin;
use crate::targets::openai::Dialect;
use crate::units;

/// Why an endpoint cannot be used, or why a request has no answer. Texts of servers are bounded and without secrets.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum EndpointError {
    /// A setting that cannot be meant.
    #[error("endpoint setting `{key}`: {reason}")]
    Setting {
        /// Name of the setting.
        key: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A variable that was named for a secret is not set.
    #[error("the environment variable `{variable}` named in `{key}` is not set")]
    MissingVariable {
        /// Name of the setting.
        key: &'static str,
        /// Name of the variable.
        variable: String,
    },
    /// No connection, or it broke before an answer began.
    #[error("no answer from the server after {attempts} attempts: {reason}")]
    Transport {
        /// How often it was tried.
        attempts: u32,
        /// What the network says.
        reason: String,
    },
    /// The server does not take the key.
    #[error("the server refuses the key (status {status}): {message}")]
    Unauthorized {
        /// 401 or 403.
        status: u16,
        /// The server's words.
        message: String,
    },
    /// An error by status.
    #[error("status {status} after {attempts} attempts: {message}")]
    Status {
        /// HTTP status.
        status: u16,
        /// How often it was tried.
        attempts: u32,
        /// The server's words.
        message: String,
    },
    /// The server sends elsewhere; it is not followed, because keys would travel along.
    #[error("the server redirects (status {status}), which is not followed")]
    Redirected {
        /// HTTP status.
        status: u16,
    },
    /// The server says that the prompt is too long.
    #[error("context overflow: the server does not take a prompt of {prompt_tokens} tokens in bin {bin}: {message}")]
    ContextOverflow {
        /// The bin.
        bin: Bin,
        /// Tokens of the prompt as planned.
        prompt_tokens: u32,
        /// The server's words.
        message: String,
    },
    /// A later prompt of a conversation is shorter than an earlier one: the server cut it.
    #[error("silent truncation: turn {turn} has {counted} prompt tokens, the turn before it had {before}")]
    ConversationCut {
        /// Counted from 1.
        turn: usize,
        /// Prompt tokens of the turn before.
        before: u32,
        /// Prompt tokens of this turn.
        counted: u32,
    },
    /// The server stopped at a limit of its own.
    #[error("the server stopped at {counted} tokens, though {asked} were allowed")]
    OutputClamped {
        /// Asked for.
        asked: u32,
        /// Generated.
        counted: u32,
    },
    /// The server went on behind the limit it was given, as one does that does not know the field.
    #[error("the server wrote {counted} tokens, though only {asked} were allowed")]
    LimitIgnored {
        /// Asked for.
        asked: u32,
        /// Generated.
        counted: u32,
    },
    /// Nothing came for too long.
    #[error("{waiting_for} did not come within {limit_s} s{partial}")]
    Timeout {
        /// What was waited for.
        waiting_for: &'static str,
        /// The limit in seconds.
        limit_s: u64,
        /// What had come.
        partial: Partial,
    },
    /// The answer broke off or an error came in its middle.
    #[error("the answer broke off: {reason}{partial}")]
    BrokenOff {
        /// Why.
        reason: String,
        /// What had come.
        partial: Partial,
    },
    /// A successful status with something that is no answer.
    #[error("no answer in the reply: {reason}{partial}")]
    NotAnAnswer {
        /// Why.
        reason: String,
        /// What had come.
        partial: Partial,
    },
    /// The reply does not say how many tokens the prompt had, so a cut prompt would go unseen.
    #[error("the server does not count tokens (no `usage`), so that a truncated prompt would go unseen")]
    NoUsage,
    /// It is not the same server, or not the same model, as before.
    #[error("the server changed in the middle of the run: {what} was `{before}` and is `{now}`")]
    IdentityChanged {
        /// What changed: `model`, `system_fingerprint`, `version`.
        what: &'static str,
        /// At first.
        before: String,
        /// Now.
        now: String,
    },
    /// The model asked for is not served.
    #[error("the server has no model `{model}`; it serves {}", served.join(", "))]
    NoSuchModel {
        /// Asked for.
        model: String,
        /// What is there.
        served: Vec<String>,
    },
    /// No model was named and not exactly one is served.
    #[error("no model is named and the server has {}: {}", served.len(), served.join(", "))]
    WhichModel {
        /// What is there.
        served: Vec<String>,
    },
    /// The engine has no way to do this.
    #[error("{dialect} cannot {what}")]
    Unsupported {
        /// The engine.
        dialect: Dialect,
        /// In words.
        what: &'static str,
    },
    /// A bin is longer than the server takes.
    #[error("bin {bin} is longer than the {max_model_len} tokens that the server takes for `{model}`")]
    BinTooLong {
        /// The bin.
        bin: Bin,
        /// The server's limit in tokens.
        max_model_len: u32,
        /// The model.
        model: String,
    },
}

/// What had come of an answer when it failed: for diagnosis only, bounded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Partial(pub(super) String);

impl std::fmt::Display for Partial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "; until then: {:?}", self.0) }
    }
}

impl EndpointError {
    /// Whether the measurement itself is broken for this item (INVALID), and not only the infrastructure.
    pub fn is_invalid(&self) -> bool {
        matches!(
            self,
            Self::ContextOverflow { .. }
                | Self::ConversationCut { .. }
                | Self::OutputClamped { .. }
                | Self::LimitIgnored { .. }
                | Self::IdentityChanged { .. }
        )
    }

    /// Whether every other request would fail the same way, so that the run stops at once.
    pub fn stops_run(&self) -> bool {
        matches!(self, Self::Unauthorized { .. } | Self::Redirected { .. } | Self::Unsupported { .. })
    }

    /// Whether the user's settings are at fault, and not the server.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::Setting { .. }
                | Self::MissingVariable { .. }
                | Self::NoSuchModel { .. }
                | Self::WhichModel { .. }
                | Self::Unsupported { .. }
                | Self::BinTooLong { .. }
        )
    }

    /// The same error, of the `attempts`-th attempt.
    pub(super) fn after(mut self, count: u32) -> Self {
        if let Self::Transport { attempts, .. } | Self::Status { attempts, .. } = &mut self {
            *attempts = count;
        }
        self
    }
}

impl Hint for EndpointError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::MissingVariable { variable, .. } => {
                vec![format!("`export {variable}=...`, or name another variable")]
            }
            Self::Transport { .. } => vec!["is the server up? `kvgauge probe URL` asks it".into()],
            Self::Unauthorized { .. } => vec!["`api_key_env` names the environment variable that holds the key".into()],
            Self::Redirected { .. } => vec!["give the address it redirects to as `url`".into()],
            Self::ContextOverflow { .. } | Self::OutputClamped { .. } | Self::ConversationCut { .. } => {
                vec!["leave the bin out, or start the server with a longer context".into()]
            }
            Self::Timeout { waiting_for, .. } => {
                let key = if *waiting_for == FIRST_TOKEN { "first_byte_timeout_s" } else { "between_tokens_timeout_s" };
                vec![format!("raise `{key}`; proxies in between have limits of their own")]
            }
            Self::LimitIgnored { .. } => {
                vec!["`dialect` decides the name of the field: `openai` has one of its own".into()]
            }
            Self::NoUsage => vec!["`ignore_usage = true` measures without this check".into()],
            Self::IdentityChanged { what: "system_fingerprint", .. } => {
                vec!["one arm needs one server from start to end; `allow_identity_change = true` gives this up".into()]
            }
            Self::IdentityChanged { .. } => vec!["one arm needs one server from start to end".into()],
            Self::NoSuchModel { model, served } => {
                let served: Vec<&str> = served.iter().map(String::as_str).collect();
                vec![hint::did_you_mean(model, &served)]
            }
            Self::WhichModel { .. } => vec!["name one as `model`".into()],
            Self::Unsupported { .. } => vec!["`dialect` says which engine it is, where it was not recognised".into()],
            Self::BinTooLong { max_model_len, .. } => {
                vec![format!("leave the bin out: `--bins` up to {}", units::format_token_count(*max_model_len))]
            }
            Self::Setting { .. } | Self::Status { .. } | Self::BrokenOff { .. } | Self::NotAnAnswer { .. } => {
                Vec::new()
            }
        }
    }
}

/// What is waited for until the first token.
pub(super) const FIRST_TOKEN: &str = "the first token";
/// What is waited for after that.
pub(super) const NEXT_TOKEN: &str = "the next token";
