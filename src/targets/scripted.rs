//! A target without a model: deterministic answers by rule, with damage knobs and a virtual clock.
//!
//! It is the `--dry-run` of the product and proves the gate: without damage it must not be REGRESSED, with a planted fault
//! it must be, and the bin and the symptom named must be the damaged ones. Ability is a property of the item alone, so all
//! arms answer alike until damage is planted, and damage touches candidates only.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::sample::{Bin, Completion, Expected, FinishReason, Gold, Item, Timing};
use crate::setup::{Arm, ArmRole, Evidence, ModelIdentity, Resolved};
use crate::targets::{CompletionFuture, Target, TargetError, TargetEvent, Watch};
use crate::tokenizer::TokenCounter;

/// Share of items the scripted model answers right without damage.
const ABILITY: f64 = 0.97;

/// Virtual speed: prompt tokens per millisecond.
const PREFILL_TOKENS_PER_MS: f64 = 10.0;

/// Virtual speed: milliseconds per output token.
const MS_PER_OUTPUT_TOKEN: f64 = 20.0;

/// What is broken, where and how often.
#[derive(Clone, Debug, PartialEq)]
pub struct Damage {
    /// What happens to an answer.
    pub kind: DamageKind,
    /// Only in this bin; `None` means in all.
    pub bin: Option<Bin>,
    /// Share of items hit, 0 to 1.
    pub rate: f64,
}

/// The planted faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DamageKind {
    /// The answer runs into a loop up to the output limit.
    Loop,
    /// The answer stops in the middle.
    EarlyStop,
    /// Values, lines or words change places.
    Swap,
    /// A value that is not in the text.
    Wrong,
}

impl DamageKind {
    /// The word in options, records and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Loop => "loop",
            Self::EarlyStop => "early_stop",
            Self::Swap => "swap",
            Self::Wrong => "wrong",
        }
    }
}

impl fmt::Display for Damage {
    /// Writes what [`Damage::from_str`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.name())?;
        if let Some(bin) = self.bin {
            write!(f, "@{bin}")?;
        }
        write!(f, "={}", self.rate)
    }
}

impl Damage {
    /// Whether this item is one of those hit; `knob` tells several damages of one run apart.
    pub(super) fn hits(&self, item: &Item, knob: usize) -> bool {
        self.bin.is_none_or(|bin| bin == item.bin) && chance(&item.item_id, &format!("damage {knob}")) < self.rate
    }
}

impl FromStr for Damage {
    type Err = TargetError;

    /// Reads `KIND[@BIN][=RATE]`, for example `loop@2K=0.5`.
    fn from_str(text: &str) -> Result<Self, TargetError> {
        let malformed = || TargetError::Damage(text.into());
        let (what, rate) = match text.split_once('=') {
            Some((what, rate)) => (what, rate.parse::<f64>().map_err(|_| malformed())?),
            None => (text, 1.0),
        };
        let (kind, bin) = match what.split_once('@') {
            Some((kind, bin)) => (kind, Some(bin.parse::<Bin>().map_err(|_| malformed())?)),
            None => (what, None),
        };
        let kind = match kind {
            "loop" => DamageKind::Loop,
            "early_stop" => DamageKind::EarlyStop,
            "swap" => DamageKind::Swap,
            "wrong" => DamageKind::Wrong,
            _ => return Err(malformed()),
        };
        if !(0.0..=1.0).contains(&rate) {
            return Err(malformed());
        }
        Ok(Self { kind, bin, rate })
    }
}

/// The scripted target of one arm.
pub struct Scripted {
    arm: Arm,
    damage: Vec<Damage>,
    counter: Arc<dyn TokenCounter>,
    model: ModelIdentity,
}

impl Scripted {
    /// A target for `arm` that counts tokens with `counter`.
    pub fn new(arm: &Arm, damage: &[Damage], counter: Arc<dyn TokenCounter>) -> Self {
        let model = ModelIdentity {
            name: "scripted".into(),
            weights: "none".into(),
            tokenizer: counter.fingerprint(),
            chat_template: "built in".into(),
            rope: "none".into(),
            trained_context: u32::MAX,
        };
        Self { arm: arm.clone(), damage: damage.to_vec(), counter, model }
    }

    fn is_candidate(&self) -> bool {
        self.arm.role == ArmRole::Candidate
    }

    fn answer(&self, item: &Item) -> Completion {
        let expected = std::iter::once(&item.expected).chain(item.follow_ups.iter().map(|turn| &turn.expected));
        // A question in other words asks for the same ability.
        let original = item.variant_of.as_ref().map_or(&item.item_id, |variant| &variant.item_id);
        let is_able = chance(original, "ability") < ABILITY;
        let (mut texts, mut finish_reason, mut output_tokens) = (Vec::new(), FinishReason::Stop, 0);
        for expected in expected {
            let mut text = if is_able { expected.answer.clone() } else { wrong_answer(expected) };
            for (knob, damage) in self.damage.iter().enumerate() {
                if self.is_candidate() && damage.hits(item, knob) {
                    (text, finish_reason) = apply(damage.kind, expected, item.max_output_tokens, &text);
                }
            }
            output_tokens += (self.counter.count(&text) as u32 + 1).min(item.max_output_tokens);
            texts.push(text);
        }
        let ttft_ms = f64::from(item.prompt_tokens) / PREFILL_TOKENS_PER_MS;
        Completion {
            text: texts.remove(0),
            prompt_tokens: item.prompt_tokens,
            output_tokens,
            finish_reason,
            timing: Timing { ttft_ms, latency_ms: ttft_ms + MS_PER_OUTPUT_TOKEN * f64::from(output_tokens - 1) },
            answer_nll: Some(self.answer_nll(item)),
            reasoning: None,
            later_answers: texts,
            answer_tokens: Vec::new(),
        }
    }

    /// A plausible likelihood: the item decides it, and a quantized cache moves it a little both ways.
    fn answer_nll(&self, item: &Item) -> f64 {
        let base = 0.05 + 0.2 * chance(&item.item_id, "nll");
        if self.is_candidate() && !is_sixteen_bit(&self.arm.kv_cache_dtype) {
            base + 0.004 * (chance(&item.item_id, &self.arm.kv_cache_dtype) - 0.5)
        } else {
            base
        }
    }
}

impl Target for Scripted {
    fn model(&self) -> &ModelIdentity {
        &self.model
    }

    fn resolved(&self) -> Resolved {
        const SOURCE: &str = "scripted";
        let bytes_per_value = if is_sixteen_bit(&self.arm.kv_cache_dtype) { 2.0 } else { 1.0 };
        let stored = match self.arm.kv_cache_dtype.as_str() {
            "auto" => "bfloat16",
            "fp8" => "fp8_e4m3",
            other => other,
        };
        Resolved {
            engine: Evidence::known("scripted".into(), SOURCE),
            kv_cache_dtype: Evidence::known(stored.into(), SOURCE),
            attention_backend: Evidence::known("SCRIPTED".into(), SOURCE),
            kernel: Evidence::known("none".into(), SOURCE),
            kv_bytes_per_token: Evidence::known(1024.0 * bytes_per_value, SOURCE),
            kv_cache_tokens: Evidence::unknown(SOURCE),
            kv_scales: Evidence::known("none (1.0)".into(), SOURCE),
            max_model_len: Evidence::unknown(SOURCE),
            ..Resolved::unknown(SOURCE)
        }
    }

    fn counter(&self) -> Arc<dyn TokenCounter> {
        Arc::clone(&self.counter)
    }

    fn decoding(&self) -> Vec<(&'static str, String)> {
        vec![("decoding", "scripted answers, version 1".into())]
    }

    fn accept_bins(&self, _bins: &[Bin]) -> Result<(), TargetError> {
        Ok(())
    }

    fn complete<'a>(&'a self, items: Vec<Item>, watch: &'a Watch<'a>) -> CompletionFuture<'a> {
        Box::pin(async move {
            let mut completions = Vec::with_capacity(items.len());
            let mut tokens = 0;
            for item in &items {
                if watch.cancel.is_cancelled() {
                    completions.push(Err(TargetError::Cancelled));
                    continue;
                }
                let total = item.prompt_tokens as usize;
                (watch.on_event)(TargetEvent::Prefill { done: total, total });
                let completion = self.answer(item);
                tokens += completion.output_tokens as usize;
                (watch.on_event)(TargetEvent::Decode { tokens });
                completions.push(Ok(completion));
            }
            completions
        })
    }
}

fn is_sixteen_bit(kv_cache_dtype: &str) -> bool {
    matches!(kv_cache_dtype, "auto" | "bfloat16" | "float16" | "float32")
}

/// A number in 0..1 that depends on item and purpose only.
fn chance(item_id: &str, purpose: &str) -> f64 {
    let hash = blake3::hash(format!("{item_id} {purpose}").as_bytes());
    let bits = u64::from_le_bytes(hash.as_bytes()[..8].try_into().expect("a hash has 32 bytes"));
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

fn wrong_answer(expected: &Expected) -> String {
    expected.answer.chars().map(|c| c.to_digit(10).map_or(c, |d| char::from(b'0' + ((d + 5) % 10) as u8))).collect()
}

/// The text with the damage done to it, and how the answer then ends.
pub(super) fn apply(
    kind: DamageKind,
    expected: &Expected,
    max_output_tokens: u32,
    text: &str,
) -> (String, FinishReason) {
    match kind {
        DamageKind::Loop => {
            // At least forty copies, so that a short answer loops as visibly as a long one.
            let phrase = if text.trim().is_empty() { "and so on" } else { text.trim() };
            let copies = 40.max(2 * max_output_tokens as usize / phrase.len().max(1));
            (vec![phrase; copies].join(" "), FinishReason::Length)
        }
        DamageKind::EarlyStop => {
            let keep = text.chars().count() / 3;
            (text.chars().take(keep).collect(), FinishReason::Stop)
        }
        DamageKind::Swap => (swapped(expected, text), FinishReason::Stop),
        DamageKind::Wrong => (wrong_answer(expected), FinishReason::Stop),
    }
}

/// Exchanges neighbours: values of bindings, lines of a sequence, fields of records, words of a passage, the value for a
/// look-alike's, or two digits.
fn swapped(expected: &Expected, text: &str) -> String {
    match &expected.gold {
        Gold::Bindings { pairs } if pairs.len() > 1 => {
            let value_of = |place: usize| &pairs[(place + 1) % pairs.len()].value;
            let lines: Vec<String> =
                pairs.iter().enumerate().map(|(place, pair)| format!("{}={}", pair.key, value_of(place))).collect();
            lines.join("\n")
        }
        Gold::Sequence { lines } if lines.len() > 1 => swap_neighbours(lines).join("\n"),
        Gold::Records { records, .. } if records.len() > 1 => {
            let mut records = records.clone();
            records.rotate_left(1);
            serde_json::to_string(&records).expect("JSON values can always be written")
        }
        Gold::Span { text } => {
            let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
            swap_neighbours(&words).join(" ")
        }
        Gold::Value { distractors, .. } if !distractors.is_empty() => distractors[0].value.clone(),
        _ => {
            let mut characters: Vec<char> = text.chars().collect();
            if let Some(place) = characters.windows(2).position(|pair| pair[0] != pair[1]) {
                characters.swap(place, place + 1);
            }
            characters.into_iter().collect()
        }
    }
}

fn swap_neighbours(parts: &[String]) -> Vec<String> {
    let mut parts = parts.to_vec();
    for pair in parts.chunks_exact_mut(2) {
        pair.swap(0, 1);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_read_and_nonsense_refused() {
        assert_eq!(
            "loop@2K=0.5".parse::<Damage>(),
            Ok(Damage { kind: DamageKind::Loop, bin: Some(Bin(2048)), rate: 0.5 })
        );
        assert_eq!("swap".parse::<Damage>(), Ok(Damage { kind: DamageKind::Swap, bin: None, rate: 1.0 }));
        for text in ["loop@2K=0.5", "early_stop=1", "swap=0.25", "wrong@512=0"] {
            assert_eq!(text.parse::<Damage>().unwrap().to_string(), text);
        }
        for text in ["lop", "loop@x", "loop=2", "loop=", "loop=NaN", ""] {
            assert!(text.parse::<Damage>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_swap_always_changes_the_answer() {
        let pair = |key: &str, value: &str| crate::sample::Binding { key: key.into(), value: value.into() };
        let bindings = Gold::Bindings { pairs: vec![pair("a", "1"), pair("b", "2"), pair("c", "3")] };
        let value = Gold::Value { value: "1123".into(), distractors: Vec::new() };
        for (gold, answer) in [(bindings, "a=1\nb=2\nc=3"), (value, "1123")] {
            let expected = Expected { answer: answer.into(), gold };
            assert_ne!(swapped(&expected, answer), answer);
        }
    }
}
