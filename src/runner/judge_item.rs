//! One answer → one [`SampleRecord`]: outcome, score and symptoms.

use crate::detectors;
use crate::record::samples::{self, SampleRecord};
use crate::sample::{Completion, Finding, Item, Outcome, Score};
use crate::scorers;
use crate::targets::TargetError;

/// A target may count a prompt this much differently before the item is INVALID: one template token or two …
const TOKEN_TOLERANCE: u32 = 16;

/// … or this share of the prompt.
const TOKEN_TOLERANCE_SHARE: f64 = 0.01;

/// The record of `item` on its `attempt`.
pub(super) fn record_of(item: &Item, result: Result<Completion, TargetError>, attempt: u32) -> SampleRecord {
    match result {
        Err(error) => {
            let is_broken = matches!(error, TargetError::NotFinite(_));
            let outcome = if is_broken { Outcome::Invalid } else { Outcome::Error };
            record(item, attempt, Judged { outcome, error: Some(error.to_string()), ..Judged::default() })
        }
        Ok(completion) => {
            let judged = judge(item, &completion);
            record(item, attempt, Judged { completion: Some(completion), ..judged })
        }
    }
}

struct Judged {
    outcome: Outcome,
    score: Option<Score>,
    findings: Vec<Finding>,
    completion: Option<Completion>,
    error: Option<String>,
}

impl Default for Judged {
    fn default() -> Self {
        Self { outcome: Outcome::Error, score: None, findings: Vec::new(), completion: None, error: None }
    }
}

fn judge(item: &Item, completion: &Completion) -> Judged {
    let tolerance = TOKEN_TOLERANCE.max((f64::from(item.prompt_tokens) * TOKEN_TOLERANCE_SHARE) as u32);
    if completion.prompt_tokens.abs_diff(item.prompt_tokens) > tolerance {
        let error =
            format!("{} prompt tokens were planned, {} were counted", item.prompt_tokens, completion.prompt_tokens);
        return Judged { outcome: Outcome::Invalid, error: Some(error), ..Judged::default() };
    }
    let score = match scorers::score(item, completion) {
        Ok(score) => score,
        Err(error) => return Judged { outcome: Outcome::Invalid, error: Some(error.to_string()), ..Judged::default() },
    };
    let findings = detectors::detect_all(&detectors::Context {
        output: &completion.text,
        expected: &[&item.expected.answer],
        task: Some(&item.task),
        language: Some(item.language),
        language_code: None,
        prompt: item.messages.last().map(|message| message.content.as_str()),
        finish_reason: completion.finish_reason,
        output_tokens: Some(completion.output_tokens),
        max_output_tokens: Some(item.max_output_tokens),
        baseline: None,
    });
    let outcome = if score.is_right() { Outcome::ValidRight } else { Outcome::ValidWrong };
    Judged { outcome, score: Some(score), findings, ..Judged::default() }
}

fn record(item: &Item, attempt: u32, judged: Judged) -> SampleRecord {
    let text = judged.completion.as_ref().map_or("", |completion| completion.text.as_str());
    let text_hash = samples::text_hash(text);
    SampleRecord {
        item_id: item.item_id.clone(),
        task: item.task.clone(),
        language: item.language,
        bin: item.bin,
        slot_percent: item.slot_percent,
        index: item.index,
        haystack_id: item.haystack_id.clone(),
        depth_percent: item.depth_percent,
        prompt_tokens: item.prompt_tokens,
        prompt_hash: samples::prompt_hash(&item.messages),
        expected_answer: item.expected.answer.clone(),
        excerpt: item.excerpt.clone(),
        outcome: judged.outcome,
        score: judged.score,
        findings: judged.findings,
        completion: judged.completion,
        text_hash,
        truncated: false,
        error: judged.error,
        attempt,
        variant_of: item.variant_of.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{Bin, Expected, Gold, Language};

    #[test]
    fn values_that_are_no_numbers_make_an_item_invalid_and_a_failed_engine_an_error() {
        let item = Item {
            item_id: "needle-1".into(),
            task: "needle".into(),
            language: Language::En,
            bin: Bin(512),
            slot_percent: 0,
            index: 0,
            haystack_id: "h".into(),
            messages: Vec::new(),
            prompt_tokens: 500,
            max_output_tokens: 8,
            depth_percent: None,
            expected: Expected { answer: "7".into(), gold: Gold::Value { value: "7".into(), distractors: Vec::new() } },
            scorer: "exact_value".into(),
            excerpt: String::new(),
            follow_ups: Vec::new(),
            answer_prefix: String::new(),
            variant_of: None,
        };
        let record = |error| record_of(&item, Err(error), 1);
        let broken = record(TargetError::NotFinite("layer 3 is not finite".into()));
        assert_eq!(
            (broken.outcome, broken.error.as_deref()),
            (Outcome::Invalid, Some("engine: layer 3 is not finite"))
        );
        assert_eq!(record(TargetError::Engine("cache full".into())).outcome, Outcome::Error);
    }
}
