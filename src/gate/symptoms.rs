//! Symptoms: does the arm loop, stop early or garble more often than the baseline on the same prompts?

use crate::compare::{Comparison, SymptomDelta};
use crate::gate::{SymptomVerdict, replicas};
use crate::stats::adjust::holm;
use crate::suite::GatePolicy;

/// Verdicts per candidate, in the comparison's order. The family is symptoms × bins × arms, without the places where no pair
/// differs: given that, they cannot reject whatever the arm does, so they need no share of α (Tarone 1990).
///
/// Questions of one haystack are not independent, and McNemar takes them for it. So a rise also has to be significant over the
/// haystacks' sums: a few unlucky texts with many questions never fail the gate. That second p is not adjusted: the first
/// already holds α over the family, and a condition more can only make alarms rarer.
pub(super) fn judge_symptoms(comparison: &Comparison, policy: &GatePolicy) -> Vec<Vec<SymptomVerdict>> {
    let mut verdicts: Vec<Vec<SymptomVerdict>> = comparison
        .candidates
        .iter()
        .map(|arm| {
            let judged = arm.symptoms.iter().filter(|symptom| {
                symptom.pairs >= u64::from(policy.min_pairs) && symptom.appeared + symptom.vanished > 0
            });
            judged
                .map(|symptom| SymptomVerdict {
                    symptom: symptom.clone(),
                    adjusted_p: 1.0,
                    regressed: false,
                    confirmation: None,
                })
                .collect()
        })
        .collect();
    let originals = replicas::originals(comparison);
    let is_original = |arm: usize| originals[arm] == arm;
    let tested = verdicts.iter().enumerate().filter(|(arm, _)| is_original(*arm)).flat_map(|(_, verdicts)| verdicts);
    let p_values: Vec<f64> = tested.map(|verdict| verdict.symptom.p_rise).collect();
    let of_originals =
        verdicts.iter_mut().enumerate().filter(|(arm, _)| is_original(*arm)).flat_map(|(_, verdicts)| verdicts);
    for (verdict, adjusted_p) in of_originals.zip(holm(&p_values)) {
        verdict.adjusted_p = adjusted_p;
        verdict.regressed = rises(policy, &verdict.symptom, adjusted_p);
    }
    for (arm, original) in originals.into_iter().enumerate().filter(|(arm, original)| arm != original) {
        verdicts[arm] = verdicts[original].clone();
    }
    verdicts
}

/// Whether a symptom rises significantly and by enough items.
pub(super) fn rises(policy: &GatePolicy, symptom: &SymptomDelta, adjusted_p: f64) -> bool {
    let rise = symptom.candidate.saturating_sub(symptom.baseline);
    adjusted_p < policy.alpha
        && symptom.p_rise_by_haystack < policy.alpha
        && rise >= u64::from(policy.symptom_min_items)
        && rise as f64 >= policy.symptom_min_rise * symptom.pairs as f64
}
