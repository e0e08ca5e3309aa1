//! Accuracy over length in single figures, and the single cells that they hide.
//!
//! *Recovery* is the candidate's accuracy as a share of the baseline's on the same pairs, and the *area* is that under the accuracy
//! over log₂ length, divided by the range of log₂ length: validations of FP8 caches report both ("recovers 97 % of the area"). A
//! collapse in the longest of five bins costs the area an eighth at most, which is why nothing here is judged.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::compare::pairing::Pair;
use crate::sample::Bin;

/// Worst cells that are kept of an arm: enough to see a pattern over depth or task.
pub const MAX_WORST_CELLS: usize = 10;

/// Both arms over the lengths, on the same pairs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LengthCurve {
    /// One per bin with pairs, ascending; all tasks together.
    pub points: Vec<LengthPoint>,
    /// Mean accuracy of the baseline over log₂ length: the area under the straight lines between the points, divided by their
    /// range. With one bin its accuracy.
    pub baseline_area: f64,
    /// The same of the arm.
    pub candidate_area: f64,
    /// `candidate_area` / `baseline_area`; `None` where the baseline has nothing right.
    pub recovery: Option<f64>,
}

/// One bin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LengthPoint {
    /// The bin.
    pub bin: Bin,
    /// Scored pairs.
    pub pairs: u64,
    /// Share of them that is right in the baseline.
    pub baseline: f64,
    /// Share that is right in the arm.
    pub candidate: f64,
    /// `candidate` / `baseline`; `None` where the baseline has nothing right.
    pub recovery: Option<f64>,
}

/// One task at one length and depth, on the same pairs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorstCell {
    /// Task id.
    pub task: String,
    /// Bin.
    pub bin: Bin,
    /// Depth slot.
    pub slot_percent: u8,
    /// Scored pairs.
    pub pairs: u64,
    /// Right in the baseline.
    pub baseline_right: u64,
    /// Right in the arm: fewer than in the baseline.
    pub candidate_right: u64,
}

impl WorstCell {
    /// Difference of the shares, candidate − baseline: negative.
    pub fn delta(&self) -> f64 {
        (self.candidate_right as f64 - self.baseline_right as f64) / self.pairs.max(1) as f64
    }
}

/// Pairs, right in the baseline, right in the arm.
type Counts = (u64, u64, u64);

fn counted<'a, K: Ord>(pairs: &'a [Pair<'a>], key: impl Fn(&'a Pair<'a>) -> K) -> BTreeMap<K, Counts> {
    let mut counts: BTreeMap<K, Counts> = BTreeMap::new();
    for pair in pairs {
        let Some(scored) = pair.scored else { continue };
        let (n, base, arm) = counts.entry(key(pair)).or_default();
        *n += 1;
        *base += u64::from(scored.base_right);
        *arm += u64::from(scored.arm_right);
    }
    counts
}

/// `None` without a scored pair.
pub(super) fn curve(pairs: &[Pair<'_>]) -> Option<LengthCurve> {
    let ratio = |arm: f64, base: f64| (base > 0.0).then(|| arm / base);
    let points: Vec<LengthPoint> = counted(pairs, |pair| pair.base.bin)
        .into_iter()
        .map(|(bin, (pairs, base, arm))| {
            let (baseline, candidate) = (base as f64 / pairs as f64, arm as f64 / pairs as f64);
            LengthPoint { bin, pairs, baseline, candidate, recovery: ratio(candidate, baseline) }
        })
        .collect();
    let over = |read: fn(&LengthPoint) -> f64| {
        area(&points.iter().map(|point| (f64::from(point.bin.tokens().max(1)).log2(), read(point))).collect::<Vec<_>>())
    };
    let (baseline_area, candidate_area) = (over(|point| point.baseline)?, over(|point| point.candidate)?);
    let recovery = ratio(candidate_area, baseline_area);
    Some(LengthCurve { points, baseline_area, candidate_area, recovery })
}

/// Area under the straight lines between points of ascending x, divided by the range of x; the height of a single point. `None` without
/// a point.
fn area(points: &[(f64, f64)]) -> Option<f64> {
    let (first, last) = (points.first()?, points.last()?);
    if points.len() == 1 {
        return Some(first.1);
    }
    let sum: f64 = points.windows(2).map(|pair| (pair[1].0 - pair[0].0) * (pair[0].1 + pair[1].1) / 2.0).sum();
    Some(sum / (last.0 - first.0))
}

/// The cells that lost most of their share; of equals the one with more pairs, then the longer.
pub(super) fn worst_cells(pairs: &[Pair<'_>]) -> Vec<WorstCell> {
    let cells = counted(pairs, |pair| (pair.base.bin, pair.base.task.as_str(), pair.base.slot_percent));
    let mut worst: Vec<WorstCell> = cells
        .into_iter()
        .filter(|(_, (_, base, arm))| arm < base)
        .map(|((bin, task, slot_percent), (pairs, baseline_right, candidate_right))| WorstCell {
            task: task.into(),
            bin,
            slot_percent,
            pairs,
            baseline_right,
            candidate_right,
        })
        .collect();
    worst.sort_by(|left, right| {
        let later = (right.pairs, right.bin).cmp(&(left.pairs, left.bin));
        left.delta().total_cmp(&right.delta()).then(later)
    });
    worst.truncate(MAX_WORST_CELLS);
    worst
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::compare;
    use crate::compare::fixtures::{manifest, sample};
    use crate::record::Record;
    use crate::setup::Arm;

    #[test]
    fn the_area_is_the_mean_over_the_doublings() {
        assert_eq!(area(&[]), None);
        assert_eq!(area(&[(9.0, 0.4)]), Some(0.4));
        // Full for two doublings, then down to nothing over two more.
        assert_eq!(area(&[(9.0, 1.0), (11.0, 1.0), (13.0, 0.0)]), Some(0.75));
    }

    #[test]
    fn a_collapse_in_the_longest_bin_costs_little_of_the_area_and_leads_the_worst_cells() {
        let record = |arm: Arm, right_of_last: u32| {
            let bins = [512, 2048, 8192, 32_768, 131_072];
            let of_bin = |bin: u32| {
                let right = if bin == 131_072 { right_of_last } else { 20 };
                (0..20).map(move |index| sample("needle", bin, index, index < right))
            };
            Record { manifest: manifest(arm, 100), samples: bins.into_iter().flat_map(of_bin).collect() }
        };
        let (base, arm) = (record(Arm::baseline("bfloat16"), 20), record(Arm::candidate("fp8_e4m3"), 0));
        let arm = compare(&base, None, &[arm]).unwrap().candidates.remove(0);
        let curve = arm.curve.unwrap();
        assert_eq!((curve.baseline_area, curve.candidate_area, curve.recovery), (1.0, 0.875, Some(0.875)));
        assert_eq!(
            curve.points.iter().map(|point| point.recovery.unwrap()).collect::<Vec<_>>(),
            [1.0, 1.0, 1.0, 1.0, 0.0]
        );
        assert_eq!(arm.worst_cells.len(), 5);
        assert!(arm.worst_cells.iter().all(|cell| cell.bin == Bin(131_072) && cell.delta() == -1.0 && cell.pairs == 4));
        // Nothing right in the baseline, nothing to recover.
        let none = record(Arm::baseline("bfloat16"), 0);
        let better = compare(&none, None, &[record(Arm::candidate("fp8_e4m3"), 20)]).unwrap().candidates.remove(0);
        assert_eq!(better.curve.unwrap().points[4].recovery, None);
        assert!(better.worst_cells.is_empty());
    }
}
