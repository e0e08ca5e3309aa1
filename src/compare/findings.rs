//! What is found beyond the single cells: treatment, symptoms, trend over length, consistency over bins.

use std::collections::{BTreeMap, BTreeSet};

use crate::compare::delta::{SEED, by_haystack, whole_sums};
use crate::compare::pairing::Pair;
use crate::compare::summary::has_symptom;
use crate::compare::{SameSign, Slope, SymptomDelta, Treatment};
use crate::record::manifest::Manifest;
use crate::sample::{Bin, FindingKind};
use crate::stats::mcnemar::one_sided;
use crate::stats::permutation::{Point, falling_slope, sign_flip_whole};

/// A prompt of this length reads thousands of cached entries per output token: with another dtype not all answers stay
/// the same, byte for byte.
pub(super) const LONG_ITEM_TOKENS: u32 = 8192;

pub(super) fn treatment(base: &Manifest, arm: &Manifest, pairs: &[Pair<'_>]) -> Treatment {
    let (ours, theirs) = (&base.resolved, &arm.resolved);
    let long: Vec<bool> =
        pairs.iter().filter(|pair| pair.base.bin.tokens() >= LONG_ITEM_TOKENS).filter_map(Pair::same_text).collect();
    let nlls: Vec<(f64, f64)> = pairs
        .iter()
        .filter_map(|pair| {
            let (base, arm) = pair.completions()?;
            Some((base.answer_nll?, arm.answer_nll?))
        })
        .collect();
    Treatment {
        requested_dtype: arm.arm.kv_cache_dtype.clone(),
        resolved_dtype: theirs.kv_cache_dtype.value.clone(),
        kv_bytes_per_token: ours.kv_bytes_per_token.value.zip(theirs.kv_bytes_per_token.value),
        identical_outputs: long.iter().filter(|same| **same).count() as u64,
        compared_outputs: long.len() as u64,
        nll_pairs: nlls.len() as u64,
        nll_different: nlls.iter().filter(|(base, arm)| base != arm).count() as u64,
        different_outputs: pairs.iter().filter(|pair| pair.same_text() == Some(false)).count() as u64,
    }
}

/// Every symptom that either arm shows anywhere, in every bin.
pub(super) fn symptoms(pairs: &[Pair<'_>]) -> Vec<SymptomDelta> {
    let answered: Vec<&Pair<'_>> = pairs.iter().filter(|pair| pair.completions().is_some()).collect();
    let bins: BTreeSet<Bin> = answered.iter().map(|pair| pair.base.bin).collect();
    let seen = |kind| answered.iter().any(|pair| has_symptom(pair.base, kind) || has_symptom(pair.arm, kind));
    let kinds: Vec<FindingKind> = FindingKind::ALL.into_iter().filter(|kind| seen(*kind)).collect();
    let mut rows = Vec::new();
    for bin in bins {
        let in_bin: Vec<&Pair<'_>> = answered.iter().copied().filter(|pair| pair.base.bin == bin).collect();
        rows.extend(kinds.iter().map(|kind| symptom(*kind, bin, &in_bin)));
    }
    rows
}

fn symptom(kind: FindingKind, bin: Bin, pairs: &[&Pair<'_>]) -> SymptomDelta {
    let flags = |pair: &Pair<'_>| (has_symptom(pair.base, kind), has_symptom(pair.arm, kind));
    let count = |test: fn((bool, bool)) -> bool| pairs.iter().filter(|pair| test(flags(pair))).count() as u64;
    let rises = by_haystack(pairs.iter().map(|pair| {
        let (base, arm) = flags(pair);
        (*pair, f64::from(i8::from(arm) - i8::from(base)))
    }));
    let (appeared, vanished) = (count(|(base, arm)| arm && !base), count(|(base, arm)| base && !arm));
    SymptomDelta {
        kind,
        bin,
        pairs: pairs.len() as u64,
        baseline: count(|(base, _)| base),
        candidate: count(|(_, arm)| arm),
        appeared,
        vanished,
        p_rise: one_sided(appeared, vanished),
        p_rise_by_haystack: sign_flip_whole(&whole_sums(&rises), SEED),
    }
}

/// Slope of (candidate − baseline) on log₂ length; haystacks are dealt anew to the lengths.
pub(super) fn slope(pairs: &[Pair<'_>]) -> Option<Slope> {
    let mut points: BTreeMap<(Bin, &str), Point> = BTreeMap::new();
    for pair in pairs {
        let Some(scored) = pair.scored else { continue };
        let x = f64::from(pair.base.bin.tokens().max(1)).log2();
        let place = points.entry((pair.base.bin, &pair.base.haystack_id)).or_insert(Point { x, sum: 0.0, size: 0 });
        place.sum -= scored.drop() as f64;
        place.size += 1;
    }
    let points: Vec<Point> = points.into_values().collect();
    falling_slope(&points, SEED).map(|(per_doubling, p_falling)| Slope { per_doubling, p_falling })
}

/// Net direction per bin, and one test over everything.
pub(super) fn same_sign(pairs: &[Pair<'_>]) -> Option<SameSign> {
    let mut drops: BTreeMap<Bin, i64> = BTreeMap::new();
    let scored: Vec<_> = pairs.iter().filter_map(|pair| Some((pair, pair.scored?.drop()))).collect();
    for (pair, drop) in &scored {
        *drops.entry(pair.base.bin).or_default() += drop;
    }
    let clusters = by_haystack(scored.iter().map(|(pair, drop)| (*pair, *drop as f64)));
    (!drops.is_empty()).then(|| SameSign {
        negative: drops.values().filter(|drop| **drop > 0).count() as u64,
        positive: drops.values().filter(|drop| **drop < 0).count() as u64,
        p_pooled: sign_flip_whole(&whole_sums(&clusters), SEED),
    })
}
