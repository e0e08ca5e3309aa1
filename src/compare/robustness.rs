//! How far an arm drifts from itself when the same question is worded differently.
//!
//! The answer to every variant is compared with the same arm's answer to the original: similarity is
//! `1 − word edit distance / longer length` (a Chinese character counts as a word). Nothing here is judged: an arm that
//! drifts more than the baseline has answers that hang by a thinner thread.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::compare::delta::SEED;
use crate::compare::pairing::{Arm, is_answered};
use crate::compare::summary::mean;
use crate::record::samples::SampleRecord;
use crate::sample::{Bin, Outcome, Perturbation};
use crate::stats::paired::{Cluster, clustered_mean_95};
use crate::stats::permutation::sign_flip;
use crate::suite::TaskGroup;

/// Words compared of an answer: more than 2,048 tokens hold, and the cost is quadratic. The rest counts as different.
const MAX_WORDS: usize = 2048;

/// Drift of the baseline and of an arm in one task group and bin, over the variants that both have answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Robustness {
    /// Task group.
    pub group: TaskGroup,
    /// Bin.
    pub bin: Bin,
    /// Variants with an answer, and an answered original, on both sides.
    pub variants: u64,
    /// Haystacks they stand in.
    pub haystacks: u64,
    /// The baseline from itself.
    pub baseline: Drift,
    /// The arm from itself.
    pub candidate: Drift,
    /// Mean of candidate − baseline; positive: the arm drifts further.
    pub difference: f64,
    /// Two-sided 95 % interval of it, clustered by haystack ([`crate::stats::paired::clustered_mean_95`]); `None` with one.
    pub interval: Option<(f64, f64)>,
    /// One-sided sign-flip p over haystack sums for "the arm drifts further". Shown, never judged.
    pub p_further: f64,
    /// The two drifts by kind of change, where there are variants of it.
    pub by_perturbation: Vec<(Perturbation, f64, f64)>,
}

/// How far answers to variants are from those to their originals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Drift {
    /// Mean of 1 − similarity, 0 to 1.
    pub distance: f64,
    /// Variants whose answer is right where the original's is wrong, or the other way round.
    pub changed: u64,
}

/// One variant on both sides.
struct Drifted {
    perturbation: Perturbation,
    haystack: String,
    baseline: (f64, bool),
    candidate: (f64, bool),
}

/// Every task group and bin with variants, bins ascending.
pub(super) fn robustness(base: &Arm<'_>, arm: &Arm<'_>) -> Vec<Robustness> {
    let mut cells: BTreeMap<(Bin, TaskGroup), Vec<Drifted>> = BTreeMap::new();
    for (id, sample) in &arm.variants {
        let Some(variant) = &sample.variant_of else { continue };
        let (Some(baseline), Some(candidate)) = (drift(base, id), drift(arm, id)) else { continue };
        cells.entry((sample.bin, TaskGroup::of_task(&sample.task))).or_default().push(Drifted {
            perturbation: variant.perturbation,
            haystack: sample.haystack_id.clone(),
            baseline,
            candidate,
        });
    }
    cells.into_iter().map(|((bin, group), drifted)| cell(group, bin, &drifted)).collect()
}

/// Distance of an arm's answer from its answer to the original, and whether one of them alone is right.
fn drift(arm: &Arm<'_>, id: &str) -> Option<(f64, bool)> {
    let variant = *arm.variants.get(id)?;
    let original = *arm.samples.get(variant.variant_of.as_ref()?.item_id.as_str())?;
    if !is_answered(variant) || !is_answered(original) {
        return None;
    }
    let is_right = |sample: &SampleRecord| sample.outcome == Outcome::ValidRight;
    let text = |sample: &'_ SampleRecord| sample.completion.as_ref().map(|it| it.text.clone());
    Some((distance(&text(original)?, &text(variant)?), is_right(variant) != is_right(original)))
}

fn cell(group: TaskGroup, bin: Bin, drifted: &[Drifted]) -> Robustness {
    let side = |pick: fn(&Drifted) -> (f64, bool)| Drift {
        distance: mean(drifted.iter().map(|it| pick(it).0)).unwrap_or(0.0),
        changed: drifted.iter().filter(|it| pick(it).1).count() as u64,
    };
    let mut clusters: BTreeMap<&str, Cluster> = BTreeMap::new();
    for it in drifted {
        let cluster = clusters.entry(&it.haystack).or_insert(Cluster { sum: 0.0, size: 0 });
        cluster.sum += it.candidate.0 - it.baseline.0;
        cluster.size += 1;
    }
    let clusters: Vec<Cluster> = clusters.into_values().collect();
    let by_perturbation = Perturbation::ALL.into_iter().filter_map(|perturbation| {
        let of_kind = || drifted.iter().filter(|it| it.perturbation == perturbation);
        Some((perturbation, mean(of_kind().map(|it| it.baseline.0))?, mean(of_kind().map(|it| it.candidate.0))?))
    });
    Robustness {
        group,
        bin,
        variants: drifted.len() as u64,
        haystacks: clusters.len() as u64,
        baseline: side(|it| it.baseline),
        candidate: side(|it| it.candidate),
        difference: mean(drifted.iter().map(|it| it.candidate.0 - it.baseline.0)).unwrap_or(0.0),
        interval: clustered_mean_95(&clusters),
        p_further: sign_flip(&clusters.iter().map(|cluster| cluster.sum).collect::<Vec<_>>(), SEED),
        by_perturbation: by_perturbation.collect(),
    }
}

/// 0 (the same words) to 1 (nothing in common).
fn distance(left: &str, right: &str) -> f64 {
    let (left, right) = (words(left), words(right));
    let longer = left.len().max(right.len());
    if longer == 0 {
        return 0.0;
    }
    let compared = |words: &[&str]| -> Vec<String> { words.iter().take(MAX_WORDS).map(|&word| word.into()).collect() };
    let changed = strsim::generic_levenshtein(&compared(&left), &compared(&right));
    let uncompared = longer.saturating_sub(MAX_WORDS);
    let same_tail = left.len() == right.len() && left.iter().zip(&right).skip(MAX_WORDS).all(|(a, b)| a == b);
    let uncompared = if same_tail { 0 } else { uncompared };
    ((changed + uncompared) as f64 / longer as f64).min(1.0)
}

/// Words between spaces; ideographs one by one.
fn words(text: &str) -> Vec<&str> {
    let is_ideograph =
        |c: char| matches!(c, '\u{3400}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}');
    let mut words = Vec::new();
    for mut word in text.split_whitespace() {
        while let Some((place, character)) = word.char_indices().find(|(_, c)| is_ideograph(*c)) {
            if place > 0 {
                words.push(&word[..place]);
            }
            let end = place + character.len_utf8();
            words.push(&word[place..end]);
            word = &word[end..];
        }
        if !word.is_empty() {
            words.push(word);
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::compare;
    use crate::compare::fixtures::{arm, base};
    use crate::record::Record;
    use crate::sample::VariantOf;

    #[test]
    fn distance_counts_words_and_ideographs() {
        assert_eq!(distance("", ""), 0.0);
        assert_eq!(distance("a", ""), 1.0);
        assert_eq!(distance("one two three four", "one two 3 four"), 0.25);
        assert_eq!(distance("金黄的灯笼", "金黄的水壶"), 0.4);
        assert_eq!(words("码: 12号 x"), ["码", ":", "12", "号", "x"]);
        let long = "w ".repeat(5000);
        assert_eq!(distance(&long, &long), 0.0);
        assert!(distance(&long, "w") > 0.99);
    }

    /// A record with one variant of every item, answered with `text`.
    fn with_variants(mut record: Record, text: &str, right: bool) -> Record {
        let variants: Vec<SampleRecord> = record
            .samples
            .iter()
            .map(|original| {
                let mut variant = original.clone();
                let item_id = std::mem::replace(&mut variant.item_id, format!("{} typos", original.item_id));
                variant.variant_of = Some(VariantOf { item_id, perturbation: Perturbation::Typos });
                variant.outcome = if right { Outcome::ValidRight } else { Outcome::ValidWrong };
                variant.score.as_mut().unwrap().value = if right { 1.0 } else { 0.25 };
                variant.completion.as_mut().unwrap().text = text.into();
                variant.prompt_hash = format!("{} typos", original.prompt_hash);
                variant
            })
            .collect();
        record.manifest.planned_items += variants.len() as u64;
        record.samples.extend(variants);
        record
    }

    #[test]
    fn an_arm_that_drifts_further_is_seen_and_nothing_that_is_judged_moves() {
        let right = [true; 30];
        let plain = compare(&base(&right), None, &[arm(&right)]).unwrap();
        let robust = compare(
            &with_variants(base(&right), "right", true),
            None,
            &[with_variants(arm(&right), "something else", false)],
        )
        .unwrap();
        let (before, after) = (&plain.candidates[0], &robust.candidates[0]);
        assert!(before.robustness.is_empty());
        let cell = &after.robustness[0];
        assert_eq!((cell.variants, cell.haystacks), (30, 30));
        assert_eq!((cell.baseline, cell.candidate), (Drift::default(), Drift { distance: 1.0, changed: 30 }));
        assert_eq!(cell.difference, 1.0);
        assert!(cell.p_further < 0.001);
        assert_eq!(cell.by_perturbation, [(Perturbation::Typos, 0.0, 1.0)]);
        assert_eq!((&before.groups, &before.tasks, &before.flips), (&after.groups, &after.tasks, &after.flips));
        assert_eq!((&before.symptoms, &before.treatment), (&after.symptoms, &after.treatment));
        assert_eq!(before.summary.outcomes, after.summary.outcomes);
        assert!(after.summary.complete && robust.baseline.complete);
    }

    #[test]
    fn variants_without_an_answer_or_an_original_are_left_out() {
        let right = [true; 4];
        let mut broken = with_variants(arm(&right), "right", true);
        broken.samples[4].outcome = Outcome::Error;
        broken.samples[4].score = None;
        let robust = compare(&with_variants(base(&right), "right", true), None, &[broken]).unwrap();
        assert_eq!(robust.candidates[0].robustness[0].variants, 3);
    }
}
