//! Where completions come from: trait [`Target`], one file per kind of target.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::sample::{Completion, Item};
use crate::setup::{ModelIdentity, Resolved};
use crate::tokenizer::TokenCounter;

/// Something that answers items.
pub trait Target: Send + Sync {
    /// The model measured.
    fn model(&self) -> &ModelIdentity;

    /// What is in effect.
    fn resolved(&self) -> Resolved;

    /// Counts tokens as this target does.
    fn counter(&self) -> Arc<dyn TokenCounter>;

    /// How many groups it takes at once.
    fn concurrency(&self) -> usize;

    /// Answers the items of one haystack, in their order; one result per item. A group may be a part of a haystack's
    /// questions (the rest was answered before an interruption): the answers must not depend on that.
    fn complete<'a>(&'a self, items: &'a [Item], watch: &'a Watch<'a>) -> CompletionFuture<'a>;
}

/// What [`Target::complete`] returns.
pub type CompletionFuture<'a> = Pin<Box<dyn Future<Output = Vec<Result<Completion, TargetError>>> + Send + 'a>>;

/// Progress out, cancellation in.
pub struct Watch<'a> {
    /// Called often; must be cheap.
    pub on_event: &'a (dyn Fn(TargetEvent) + Send + Sync),
    /// Set by Ctrl-C or a deadline.
    pub cancel: &'a CancelFlag,
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

/// Why an item has no completion. Never a score.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TargetError {
    /// A stop was asked for; the item stays open.
    #[error("interrupted")]
    Cancelled,
    /// The prompt does not fit what the target accepts.
    #[error("prompt of {prompt_tokens} tokens and {output_tokens} for the answer exceed the window of {max_model_len}")]
    ContextOverflow {
        /// Tokens of the prompt.
        prompt_tokens: u32,
        /// Tokens asked for.
        output_tokens: u32,
        /// The target's window.
        max_model_len: u32,
    },
    /// The engine failed on this item.
    #[error("engine: {0}")]
    Engine(String),
}
