//! Pairs whose outcome changed, with why.

use crate::compare::pairing::Pair;
use crate::compare::{Flip, FlipDirection};
use crate::record::samples::SampleRecord;
use crate::sample::{Completion, FinishReason};

/// Regressions first, then by bin, task, slot, index and id.
pub(super) fn flips(pairs: &[Pair<'_>]) -> Vec<Flip> {
    let mut flips: Vec<Flip> = pairs.iter().filter_map(flip).collect();
    // Stable: within a direction the order of the pairs stays.
    flips.sort_by_key(|flip| flip.direction);
    flips
}

fn flip(pair: &Pair<'_>) -> Option<Flip> {
    let direction = match pair.scored?.drop() {
        1 => FlipDirection::Regression,
        -1 => FlipDirection::Fix,
        _ => return None,
    };
    let wrong = if direction == FlipDirection::Regression { pair.arm } else { pair.base };
    let text = |sample: &SampleRecord| sample.completion.as_ref().map(all_answers).unwrap_or_default();
    Some(Flip {
        item_id: pair.base.item_id.clone(),
        task: pair.base.task.clone(),
        bin: pair.base.bin,
        slot_percent: pair.base.slot_percent,
        depth_percent: pair.base.depth_percent,
        direction,
        cause: cause(wrong),
        notes: notes(wrong),
        expected: pair.base.expected_answer.clone(),
        baseline_text: text(pair.base),
        candidate_text: text(pair.arm),
        findings: pair.arm.findings.clone(),
        excerpt: pair.base.excerpt.clone(),
    })
}

/// The answer, or those of all turns of a conversation under one another.
fn all_answers(completion: &Completion) -> String {
    let texts: Vec<&str> =
        std::iter::once(&completion.text).chain(&completion.later_answers).map(String::as_str).collect();
    texts.join("\n")
}

fn cause(wrong: &SampleRecord) -> String {
    // Declared in order of precedence, so the least kind is the leading one.
    let symptom = wrong.findings.iter().map(|finding| finding.kind).min().map(|kind| kind.name().replace('_', " "));
    let fault = || Some(wrong.score.as_ref()?.faults.first()?.kind.label().to_owned());
    let cut = wrong.completion.as_ref().is_some_and(|it| it.finish_reason == FinishReason::Length);
    let other = if cut { "ran into the output limit" } else { "other answer" };
    symptom.or_else(fault).unwrap_or_else(|| other.into())
}

fn notes(wrong: &SampleRecord) -> Vec<String> {
    let faults = wrong.score.iter().flat_map(|score| &score.faults).map(|fault| fault.note.clone());
    faults.chain(wrong.findings.iter().map(|finding| finding.evidence.clone())).collect()
}
