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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{Expected, Gold, Language, Timing};
    use crate::setup::Arm;
    use crate::targets::scripted::{DamageKind, Scripted};
    use crate::targets::{CancelFlag, TargetEvent};
    use crate::tokenizer::WordTokenizer;

    fn item(index: u32) -> Item {
        let gold = Gold::Value { value: "4829173".into(), distractors: Vec::new() };
        Item {
            item_id: format!("item {index}"),
            task: "needle".into(),
            language: Language::En,
            bin: Bin(if index.is_multiple_of(2) { 512 } else { 2048 }),
            slot_percent: 0,
            index,
            haystack_id: "h".into(),
            messages: Vec::new(),
            prompt_tokens: 500,
            max_output_tokens: 16,
            depth_percent: None,
            expected: Expected { answer: "4829173".into(), gold },
            scorer: "exact_value".into(),
            excerpt: String::new(),
            follow_ups: Vec::new(),
            answer_prefix: String::new(),
            variant_of: None,
        }
    }

    fn recorded() -> Completion {
        Completion {
            text: "It is 4829173.".into(),
            prompt_tokens: 500,
            output_tokens: 4,
            finish_reason: FinishReason::Stop,
            timing: Timing { ttft_ms: 3.0, latency_ms: 9.0 },
            answer_nll: Some(0.25),
            reasoning: None,
            later_answers: Vec::new(),
            answer_tokens: Vec::new(),
        }
    }

    fn planted(damage: Damage, items: &[Item]) -> Planted {
        let origin = Scripted::new(&Arm::baseline("bfloat16"), &[], Arc::new(WordTokenizer));
        let answers = items.iter().map(|item| (item.item_id.clone(), recorded())).collect();
        Planted::new(Box::new(origin), damage, answers)
    }

    #[test]
    fn a_share_of_the_answers_is_damaged_and_more_of_them_at_a_higher_rate() {
        let items: Vec<Item> = (0..200).map(item).collect();
        let hit = |rate: f64| -> Vec<bool> {
            let target = planted(Damage { kind: DamageKind::EarlyStop, bin: None, rate }, &items);
            let answers = items.iter().map(|item| target.answer(item).unwrap());
            answers.map(|answer| answer != recorded()).collect()
        };
        let (few, many) = (hit(0.25), hit(0.5));
        let count = |hits: &[bool]| hits.iter().filter(|hit| **hit).count();
        assert!(
            (30..70).contains(&count(&few)) && (75..125).contains(&count(&many)),
            "{} {}",
            count(&few),
            count(&many)
        );
        assert!(
            few.iter().zip(&many).all(|(few, many)| !few || *many),
            "a stronger damage hits what a weaker one hits"
        );
        assert_eq!((count(&hit(0.0)), count(&hit(1.0))), (0, 200));
    }

    #[test]
    fn only_the_text_changes_and_only_where_it_was_asked_for() {
        let items = [item(0), item(1)];
        let target = planted(Damage { kind: DamageKind::Loop, bin: Some(Bin(512)), rate: 1.0 }, &items);
        let looping = target.answer(&items[0]).unwrap();
        assert_eq!((looping.finish_reason, looping.output_tokens), (FinishReason::Length, 16));
        assert!(looping.text.starts_with("It is 4829173. It is 4829173.") && looping.answer_nll == Some(0.25));
        assert_eq!(target.answer(&items[1]), Ok(recorded()));
        assert!(matches!(target.answer(&item(2)), Err(TargetError::Engine(_))), "nothing is on record");
    }

    #[tokio::test]
    async fn a_stop_leaves_the_items_open() {
        let items = vec![item(0)];
        let target = planted(Damage { kind: DamageKind::Swap, bin: None, rate: 1.0 }, &items);
        let cancel = Arc::new(CancelFlag::default());
        cancel.cancel();
        let on_event = |_: TargetEvent| ();
        let watch = Watch { on_event: &on_event, cancel };
        assert_eq!(target.complete(items, &watch).await, [Err(TargetError::Cancelled)]);
    }

    #[test]
    fn the_engine_says_that_answers_were_scripted_and_keeps_its_name() {
        struct Real(Scripted);
        impl Target for Real {
            fn model(&self) -> &ModelIdentity {
                self.0.model()
            }
            fn resolved(&self) -> Resolved {
                let engine = Evidence::known("kvgauge embedded 0.1.0".into(), "embedded engine");
                Resolved { engine, ..self.0.resolved() }
            }
            fn counter(&self) -> Arc<dyn TokenCounter> {
                self.0.counter()
            }
            fn decoding(&self) -> Vec<(&'static str, String)> {
                self.0.decoding()
            }
            fn accept_bins(&self, bins: &[Bin]) -> Result<(), TargetError> {
                self.0.accept_bins(bins)
            }
            fn complete<'a>(&'a self, items: Vec<Item>, watch: &'a Watch<'a>) -> CompletionFuture<'a> {
                self.0.complete(items, watch)
            }
        }
        let engine = |origin: Box<dyn Target>| {
            let damage = Damage { kind: DamageKind::Swap, bin: None, rate: 1.0 };
            Planted::new(origin, damage, Answers::new()).resolved().engine.value.unwrap()
        };
        let scripted = || Scripted::new(&Arm::baseline("bfloat16"), &[], Arc::new(WordTokenizer));
        assert_eq!(engine(Box::new(Real(scripted()))), "kvgauge embedded 0.1.0 with scripted damage to its answers");
        assert_eq!(engine(Box::new(scripted())), "scripted");
    }
}
