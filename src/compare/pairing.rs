//! What makes a pair, and what of it counts.
//!
//! | baseline | arm | the pair |
//! | --- | --- | --- |
//! | error, invalid or missing | any | broken, not scored but counted |
//! | finished | unfinished | scored; the unfinished side is wrong: running on is what a damaged cache does |
//! | unfinished | unfinished | censored, not scored but counted: the limit ended both, so neither says anything of the other |
//!
//! (and the same with the sides exchanged). *Unfinished* is an answer that was cut by the output limit and is not right, or
//! one the scorer could not judge because it never came to its end ([`Outcome::Censored`]). An answer that is right although
//! the limit cut what followed it counts as right.

use std::collections::BTreeMap;

use crate::compare::CompareError;
use crate::record::{Record, manifest::Manifest, samples::SampleRecord};
use crate::sample::{Completion, FinishReason, Outcome};

/// An arm's samples, one per item. Variants are apart: nothing that is judged may see them.
pub(super) struct Arm<'a> {
    pub(super) manifest: &'a Manifest,
    /// By item id, so that the order in the record does not matter.
    pub(super) samples: BTreeMap<&'a str, &'a SampleRecord>,
    /// Questions asked again in other words, by item id.
    pub(super) variants: BTreeMap<&'a str, &'a SampleRecord>,
}

impl<'a> Arm<'a> {
    /// Takes the last attempt of every item.
    pub(super) fn of(record: &'a Record) -> Result<Self, CompareError> {
        let mut samples: BTreeMap<&str, &SampleRecord> = BTreeMap::new();
        for sample in &record.samples {
            check_numbers(record, sample)?;
            let known = samples.entry(&sample.item_id).or_insert(sample);
            if known.attempt == sample.attempt && *known != sample {
                return Err(CompareError::Duplicate {
                    arm: record.manifest.arm.name.clone(),
                    item_id: sample.item_id.clone(),
                    attempt: sample.attempt,
                });
            }
            if sample.attempt > known.attempt {
                *known = sample;
            }
        }
        let (variants, samples) = samples.into_iter().partition(|(_, sample)| sample.variant_of.is_some());
        Ok(Self { manifest: &record.manifest, samples, variants })
    }

    /// Items with a record, variants among them: what a manifest plans.
    pub(super) fn item_count(&self) -> u64 {
        (self.samples.len() + self.variants.len()) as u64
    }

    pub(super) fn name(&self) -> &'a str {
        &self.manifest.arm.name
    }
}

fn check_numbers(record: &Record, sample: &SampleRecord) -> Result<(), CompareError> {
    let score = sample.score.as_ref().map(|score| score.value).filter(|value| !(0.0..=1.0).contains(value));
    let nll = sample.completion.as_ref().and_then(|completion| completion.answer_nll).filter(|nll| !nll.is_finite());
    let scored = matches!(sample.outcome, Outcome::ValidRight | Outcome::ValidWrong);
    let right = sample.score.as_ref().map(|score| score.is_right());
    let consistent = !scored || right == Some(sample.outcome == Outcome::ValidRight);
    let (what, value) = match (score, nll, consistent) {
        (Some(value), _, _) => ("the score", value.to_string()),
        (_, Some(value), _) => ("the answer NLL", value.to_string()),
        (_, _, false) => ("the outcome", format!("{:?} with score {right:?}", sample.outcome)),
        _ => return Ok(()),
    };
    Err(CompareError::BadNumber { arm: record.manifest.arm.name.clone(), item_id: sample.item_id.clone(), what, value })
}

/// The same item on both arms.
pub(super) struct Pair<'a> {
    pub(super) base: &'a SampleRecord,
    pub(super) arm: &'a SampleRecord,
    /// `None`: does not count (a broken side, or censored).
    pub(super) scored: Option<Scored>,
}

/// The two sides of a pair that counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scored {
    pub(super) base_right: bool,
    pub(super) arm_right: bool,
    pub(super) base_score: f64,
    pub(super) arm_score: f64,
}

impl Scored {
    /// +1 got worse, −1 got better.
    pub(super) fn drop(self) -> i64 {
        i64::from(self.base_right) - i64::from(self.arm_right)
    }
}

impl<'a> Pair<'a> {
    /// Both answers, where both arms gave one; whether they can be scored does not matter.
    pub(super) fn completions(&self) -> Option<(&'a Completion, &'a Completion)> {
        let usable = |sample: &'a SampleRecord| sample.completion.as_ref().filter(|_| is_answered(sample));
        Some((usable(self.base)?, usable(self.arm)?))
    }

    /// Whether the output limit ended both answers, so that neither says anything of the other.
    pub(super) fn is_censored(&self) -> bool {
        self.scored.is_none() && is_answered(self.base) && is_answered(self.arm)
    }

    /// Whether both arms said the same; `None` without two answers. Clipped texts are compared by the hash of the whole.
    pub(super) fn same_text(&self) -> Option<bool> {
        let (base, arm) = self.completions()?;
        let clipped = self.base.truncated || self.arm.truncated;
        Some(if clipped {
            self.base.text_hash == self.arm.text_hash
        } else {
            (&base.text, &base.later_answers) == (&arm.text, &arm.later_answers)
        })
    }
}

/// All pairs, by bin, task, slot, index and id.
pub(super) fn pair<'a>(base: &Arm<'a>, arm: &Arm<'a>) -> Result<Vec<Pair<'a>>, CompareError> {
    let mut pairs = Vec::new();
    let mut other_prompt = Vec::new();
    for (id, &sample) in &arm.samples {
        let Some(&base_sample) = base.samples.get(id) else { continue };
        if !same_question(base_sample, sample) {
            other_prompt.push(sample);
        }
        pairs.push(Pair { base: base_sample, arm: sample, scored: score(base_sample, sample) });
    }
    if let Some(first) = other_prompt.first() {
        return Err(CompareError::Prompts {
            arm: arm.name().into(),
            count: other_prompt.len(),
            item_id: first.item_id.clone(),
            task: first.task.clone(),
        });
    }
    pairs.sort_by_key(|pair| {
        let sample = pair.base;
        (sample.bin, &sample.task, sample.slot_percent, sample.index, &sample.item_id)
    });
    Ok(pairs)
}

fn same_question(base: &SampleRecord, arm: &SampleRecord) -> bool {
    base.prompt_hash == arm.prompt_hash
        && base.task == arm.task
        && base.bin == arm.bin
        && base.haystack_id == arm.haystack_id
        && base.expected_answer == arm.expected_answer
}

fn score(base: &SampleRecord, arm: &SampleRecord) -> Option<Scored> {
    if !is_answered(base) || !is_answered(arm) || (unfinished(base) && unfinished(arm)) {
        return None;
    }
    let right = |sample: &SampleRecord| sample.outcome == Outcome::ValidRight;
    let (base_score, arm_score) = (graded_value(base), graded_value(arm));
    Some(Scored { base_right: right(base), arm_right: right(arm), base_score, arm_score })
}

/// Whether there is an answer, finished or not.
pub(super) fn is_answered(sample: &SampleRecord) -> bool {
    !matches!(sample.outcome, Outcome::Invalid | Outcome::Error)
}

/// The graded score of an answer; what never came to its end has none of it.
pub(super) fn graded_value(sample: &SampleRecord) -> f64 {
    match sample.outcome {
        Outcome::Censored => 0.0,
        _ => sample.score.as_ref().map_or(0.0, |score| score.value),
    }
}

fn unfinished(sample: &SampleRecord) -> bool {
    let cut = sample.completion.as_ref().is_some_and(|completion| completion.finish_reason == FinishReason::Length);
    sample.outcome == Outcome::Censored || (cut && sample.outcome == Outcome::ValidWrong)
}
