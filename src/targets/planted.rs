//! Answers that another arm gave, some of them damaged afterwards: proves what the gate makes of damage whose size is known.
//!
//! A cache cannot be made to stop an answer early in exactly a quarter of the items; text can. The answers come from the
//! record of the baseline instead of the engine, which would give the same ones again. Everything behind the target (runner,
//! scorers, detectors, record, comparison, gate) does not know the difference.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::sample::{Bin, Completion, FinishReason, Item};
use crate::setup::{Evidence, ModelIdentity, Resolved};
use crate::targets::scripted::{Damage, apply};
use crate::targets::{CompletionFuture, Target, TargetError, TargetEvent, Watch};
use crate::tokenizer::TokenCounter;

/// Setting of an arm that is answered so.
pub const OUTPUT_DAMAGE: &str = "output_damage";

/// Answers by item id, as they were recorded.
pub type Answers = BTreeMap<String, Completion>;

/// A target that repeats recorded answers and damages a share of them.
pub struct Planted {
    /// Whose answers they are.
    origin: Box<dyn Target>,
    damage: Damage,
    answers: Answers,
}

impl Planted {
    /// The `answers` of `origin` with `damage` planted. An item without an answer fails with an error.
    pub fn new(origin: Box<dyn Target>, damage: Damage, answers: Answers) -> Self {
        Self { origin, damage, answers }
    }

    fn answer(&self, item: &Item) -> Result<Completion, TargetError> {
        let Some(recorded) = self.answers.get(&item.item_id) else {
            return Err(TargetError::Engine("no answer to damage is on record for this item".into()));
        };
        let mut completion = recorded.clone();
        if !self.damage.hits(item, 0) {
            return Ok(completion);
        }
        let counter = self.origin.counter();
        let expected = std::iter::once(&item.expected).chain(item.follow_ups.iter().map(|turn| &turn.expected));
        let texts = std::iter::once(&mut completion.text).chain(&mut completion.later_answers);
        let (mut output_tokens, mut finish_reason) = (0, FinishReason::Stop);
        for (expected, text) in expected.zip(texts) {
            (*text, finish_reason) = apply(self.damage.kind, expected, item.max_output_tokens, text);
            // The end token is one more.
            output_tokens += (counter.count(text) as u32 + 1).min(item.max_output_tokens);
        }
        Ok(Completion { output_tokens, finish_reason, ..completion })
    }
}

impl Target for Planted {
    fn model(&self) -> &ModelIdentity {
        self.origin.model()
    }

    /// As the origin, but the engine's name says that answers were scripted: no cache explains them.
    fn resolved(&self) -> Resolved {
        let resolved = self.origin.resolved();
        let engine = match resolved.engine.value {
            Some(engine) if !engine.contains("scripted") => {
                Evidence::known(format!("{engine} with scripted damage to its answers"), resolved.engine.source)
            }
            value => Evidence { value, source: resolved.engine.source },
        };
        Resolved { engine, ..resolved }
    }

    fn counter(&self) -> Arc<dyn TokenCounter> {
        self.origin.counter()
    }

    fn decoding(&self) -> Vec<(&'static str, String)> {
        self.origin.decoding()
    }

    fn accept_bins(&self, bins: &[Bin]) -> Result<(), TargetError> {
        self.origin.accept_bins(bins)
    }

    fn complete<'a>(&'a self, items: Vec<Item>, watch: &'a Watch<'a>) -> CompletionFuture<'a> {
        Box::pin(async move {
            let total: usize = items.iter().map(|item| item.prompt_tokens as usize).sum();
            (watch.on_event)(TargetEvent::Prefill { done: total, total });
            let answer = |item: &Item| match watch.cancel.is_cancelled() {
                true => Err(TargetError::Cancelled),
                false => self.answer(item),
            };
            items.iter().map(answer).collect()
        })
    }
}
