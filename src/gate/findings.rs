//! What no single cell shows: told beside the verdict, and never a ruling by itself.

use crate::compare::{ArmComparison, Comparison};
use crate::gate::{replicas, sentence};
use crate::stats::adjust::holm;
use crate::suite::GatePolicy;
use crate::units::format_points;

/// Bins that have to fall, and none rise, before a drop is called consistent: two of one sign are a coin's quarter.
const FEWEST_FALLING_BINS: u64 = 3;

/// Sentences per candidate. Each of the two tests is adjusted over the arms of the run; an arm that repeats another one adds no test.
pub(super) fn findings(comparison: &Comparison, policy: &GatePolicy) -> Vec<Vec<String>> {
    let same_sign = adjusted(comparison, |arm| arm.same_sign.as_ref().map(|sign| sign.p_pooled));
    let slope = adjusted(comparison, |arm| arm.slope.as_ref().map(|slope| slope.p_falling));
    let told = |(arm, (same_sign, slope)): (&ArmComparison, (f64, f64))| {
        let found = [
            creeping(arm, same_sign).filter(|_| same_sign < policy.alpha),
            growing(arm, slope).filter(|_| slope < policy.alpha),
        ];
        found.into_iter().flatten().collect()
    };
    comparison.candidates.iter().zip(same_sign.into_iter().zip(slope)).map(told).collect()
}

/// Holm over the arms; 1 where there is no test.
fn adjusted(comparison: &Comparison, p: impl Fn(&ArmComparison) -> Option<f64>) -> Vec<f64> {
    let originals = replicas::originals(comparison);
    let tested: Vec<(usize, f64)> = comparison
        .candidates
        .iter()
        .enumerate()
        .filter(|(arm, _)| originals[*arm] == *arm)
        .filter_map(|(arm, candidate)| Some((arm, p(candidate)?)))
        .collect();
    let p_values = holm(&tested.iter().map(|(_, p)| *p).collect::<Vec<_>>());
    let of = |arm: usize| tested.iter().zip(&p_values).find(|((tested, _), _)| *tested == arm).map_or(1.0, |(_, p)| *p);
    originals.iter().map(|original| of(*original)).collect()
}

/// Every bin falls a little, and together that is more than chance.
fn creeping(arm: &ArmComparison, adjusted_p: f64) -> Option<String> {
    let sign = arm.same_sign.as_ref().filter(|sign| sign.positive == 0 && sign.negative >= FEWEST_FALLING_BINS)?;
    let pooled = arm.pooled.as_ref()?;
    Some(format!(
        "Small but consistent: {} bins fall and none rises, by {} points over all lengths ({} right → wrong against {} back, \
         adjusted p {})",
        sign.negative,
        format_points(pooled.delta?),
        pooled.regressions,
        pooled.fixes,
        sentence::p_value(adjusted_p)
    ))
}

/// The drop grows with the length of the context.
fn growing(arm: &ArmComparison, adjusted_p: f64) -> Option<String> {
    let slope = arm.slope.as_ref().filter(|slope| slope.per_doubling < 0.0)?;
    Some(format!(
        "Worse with length: {} points per doubling of the context (adjusted p {})",
        format_points(slope.per_doubling),
        sentence::p_value(adjusted_p)
    ))
}
