//! Where completions come from: trait [`Target`], one file per kind of target.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::hint::Hint;
use crate::sample::{Bin, Completion, Item};
use crate::setup::{Check, ModelIdentity, Resolved};
use crate::targets::openai::EndpointError;
use crate::tokenizer::TokenCounter;
use crate::units;

pub mod embedded;
pub mod openai;
pub mod planted;
pub mod scripted;
mod thinking;

/// Something that answers items.
pub trait Target: Send + Sync {
    /// The model measured.
    fn model(&self) -> &ModelIdentity;

    /// What is in effect.
    fn resolved(&self) -> Resolved;

    /// What was asked for against what each source says. Nothing where there is one source that always knows.
    fn checks(&self) -> Vec<Check> {
        Vec::new()
    }

    /// What was seen of the target while it was asked. Nothing where nothing can happen to it.
    fn watched(&self) -> ChecksFuture<'_> {
        Box::pin(std::future::ready(Vec::new()))
    }

    /// Counts tokens as this target does.
    fn counter(&self) -> Arc<dyn TokenCounter>;

    /// What decides the answers besides model, items and cache: sampling, kernel, RoPE. Part of a run's identity.
    fn decoding(&self) -> Vec<(&'static str, String)>;

    /// Refuses bins that the target cannot take, before anything runs.
    ///
    /// # Errors
    /// [`TargetError::BinTooLong`] names the first such bin.
    fn accept_bins(&self, bins: &[Bin]) -> Result<(), TargetError>;

    /// Answers the items of one haystack, in their order; one result per item. A group may be a part of a haystack's
    /// questions (the rest was answered before an interruption), and several groups may be in flight at once: the answers
    /// must not depend on either.
    fn complete<'a>(&'a self, items: Vec<Item>, watch: &'a Watch<'a>) -> CompletionFuture<'a>;
}

/// What [`Target::complete`] returns.
pub type CompletionFuture<'a> = Pin<Box<dyn Future<Output = Vec<Result<Completion, TargetError>>> + Send + 'a>>;

/// What [`Target::watched`] returns.
pub type ChecksFuture<'a> = Pin<Box<dyn Future<Output = Vec<Check>> + Send + 'a>>;

/// Progress out, cancellation in.
pub struct Watch<'a> {
    /// Called often; must be cheap.
    pub on_event: &'a (dyn Fn(TargetEvent) + Send + Sync),
    /// Set by Ctrl-C or a deadline.
    pub cancel: Arc<CancelFlag>,
}

/// Progress inside one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetEvent {
    /// Prompt tokens processed of the group's total.
    Prefill {
        /// Done so far.
        done: usize,
        /// Of these.
        total: usize,
    },
    /// Tokens generated so far over all questions of the group.
    Decode {
        /// Done so far.
        tokens: usize,
    },
}

/// Asks a running computation to stop at its next safe point.
#[derive(Debug, Default)]
pub struct CancelFlag(AtomicBool);

impl CancelFlag {
    /// Asks to stop.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether a stop was asked for.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Why a target cannot be used, or why an item has no completion. Never a score.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TargetError {
    /// A stop was asked for; the item stays open.
    #[error("interrupted")]
    Cancelled,
    /// A bin is longer than the model was trained for, and no RoPE scaling was asked for.
    #[error(
        "bin {bin} is longer than the {trained_context} tokens `{model}` was trained for, and no RoPE scaling was asked for"
    )]
    BinTooLong {
        /// The bin.
        bin: Bin,
        /// Trained context length.
        trained_context: u32,
        /// Model name.
        model: String,
    },
    /// The prompt does not fit what the target accepts.
    #[error("prompt of {prompt_tokens} tokens and {output_tokens} for the answer exceed the bin of {bin}")]
    ContextOverflow {
        /// Tokens of the prompt.
        prompt_tokens: u32,
        /// Tokens asked for.
        output_tokens: u32,
        /// The bin.
        bin: Bin,
    },
    /// The model's tokenizer or chat template failed.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// The engine failed on this item.
    #[error("engine: {0}")]
    Engine(String),
    /// The model's arithmetic broke down on this item (NaN or infinity): there is nothing to score.
    #[error("engine: {0}")]
    NotFinite(String),
    /// The chat template does not repeat an earlier turn as it was asked, so that a conversation cannot go on in its cache.
    #[error("the chat template rewrites earlier turns of a conversation")]
    HistoryRewritten,
    /// A damage knob that does not exist or is malformed.
    #[error("damage `{0}` is not KIND[@BIN][=RATE] with a kind of loop, early_stop, swap, wrong")]
    Damage(String),
    /// A server.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
}

impl TargetError {
    /// Whether the measurement of this item is broken, and not only what carries it out.
    pub fn is_invalid(&self) -> bool {
        match self {
            Self::NotFinite(_) => true,
            Self::Endpoint(error) => error.is_invalid(),
            _ => false,
        }
    }

    /// Whether every other item would fail the same way, so that the run stops at once.
    pub fn stops_run(&self) -> bool {
        matches!(self, Self::Endpoint(error) if error.stops_run())
    }
}

impl Hint for TargetError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::BinTooLong { trained_context, .. } => vec![
                format!("leave the bin out: `--bins` up to {}", units::format_token_count(*trained_context)),
                "or ask for scaling: `--rope-scaling ntk` stretches RoPE in longer bins, the same in every arm".into(),
            ],
            Self::Damage(_) => vec!["for example `--damage loop@2K=0.5`".into()],
            Self::HistoryRewritten => {
                vec!["leave `multi_turn` out: this model's conversations cannot keep their cache".into()]
            }
            Self::Endpoint(error) => error.hints(),
            Self::Cancelled => vec!["the same command continues where it stopped".into()],
            Self::ContextOverflow { .. } | Self::Tokenizer(_) | Self::Engine(_) | Self::NotFinite(_) => Vec::new(),
        }
    }
}
