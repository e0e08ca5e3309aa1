//! Paired difference in one cell.

use std::collections::BTreeMap;

use crate::compare::pairing::{Arm, Pair, Scored};
use crate::compare::summary::{cell_key, mean};
use crate::compare::{Delta, GroupDelta, NllDelta, PairedTest};
use crate::record::samples::SampleRecord;
use crate::sample::Bin;
use crate::setup::ArmRole;
use crate::stats::{
    paired::{Cluster, clustered_95, clustered_standard_error, tango_95},
    permutation::{sign_flip, sign_flip_whole},
    proportion::wilson_95,
};
use crate::suite::TaskGroup;

/// Seed of the tests that draw at random; any fixed number will do, so that the same records give the same p.
pub(super) const SEED: u64 = 0x6b76_6761_7567;

impl Delta {
    /// A cell in which nothing was compared.
    pub fn empty(label: &str, bin: Option<Bin>) -> Self {
        delta(label, bin, &[])
    }
}

/// Task × bin: every cell in which either arm has a sample, also those without a pair.
pub(super) fn task_deltas(base: &Arm<'_>, arm: &Arm<'_>, pairs: &[Pair<'_>]) -> Vec<Delta> {
    let mut cells: BTreeMap<_, Vec<&Pair<'_>>> =
        cells_of(base, arm).map(|sample| (cell_key(sample), Vec::new())).collect();
    for pair in pairs {
        cells.entry(cell_key(pair.base)).or_default().push(pair);
    }
    cells.into_iter().map(|((_, task, bin), pairs)| delta(task, Some(bin), &pairs)).collect()
}

/// Task group × bin: the judged cells.
pub(super) fn group_deltas(base: &Arm<'_>, arm: &Arm<'_>, pairs: &[Pair<'_>]) -> Vec<GroupDelta> {
    let key = |task: &str, bin: Bin| (bin, TaskGroup::of_task(task));
    let mut cells: BTreeMap<_, Vec<&Pair<'_>>> =
        cells_of(base, arm).map(|sample| (key(&sample.task, sample.bin), Vec::new())).collect();
    for pair in pairs {
        cells.entry(key(&pair.base.task, pair.base.bin)).or_default().push(pair);
    }
    cells
        .into_iter()
        .map(|((bin, group), pairs)| GroupDelta { group, delta: delta(group.name(), Some(bin), &pairs) })
        .collect()
}

/// A control is asked in some of the baseline's cells only: cells it never planned are not holes in it.
fn cells_of<'a>(base: &Arm<'a>, arm: &Arm<'a>) -> impl Iterator<Item = &'a SampleRecord> {
    let is_control = arm.manifest.arm.role == ArmRole::Control;
    let base: Vec<_> = if is_control { Vec::new() } else { base.samples.values().copied().collect() };
    let arm: Vec<_> = arm.samples.values().copied().collect();
    base.into_iter().chain(arm)
}

/// All numbers of one cell.
pub(super) fn delta(label: &str, bin: Option<Bin>, pairs: &[&Pair<'_>]) -> Delta {
    let scored: Vec<(&Pair<'_>, Scored)> = pairs.iter().filter_map(|pair| Some((*pair, pair.scored?))).collect();
    let n = scored.len() as u64;
    let count = |test: fn(&Scored) -> bool| scored.iter().filter(|(_, scored)| test(scored)).count() as u64;
    let baseline_right = count(|scored| scored.base_right);
    let candidate_right = count(|scored| scored.arm_right);
    let (b, c) = (count(|it| it.base_right && !it.arm_right), count(|it| !it.base_right && it.arm_right));
    let drops = by_haystack(scored.iter().map(|(pair, scored)| (*pair, scored.drop() as f64)));
    let is_clustered = (drops.len() as u64) < n;
    let limits = if is_clustered { clustered_95(&drops, b, c) } else { tango_95(n as f64, b as f64, c as f64) };
    let graded = by_haystack(scored.iter().map(|(pair, scored)| (*pair, scored.base_score - scored.arm_score)));
    Delta {
        label: label.into(),
        bin,
        pairs: n,
        haystacks: drops.len() as u64,
        baseline_right,
        candidate_right,
        baseline_wilson: wilson_95(baseline_right, n),
        candidate_wilson: wilson_95(candidate_right, n),
        baseline_mean: mean(scored.iter().map(|(_, scored)| scored.base_score)),
        candidate_mean: mean(scored.iter().map(|(_, scored)| scored.arm_score)),
        delta: (n > 0).then(|| (candidate_right as f64 - baseline_right as f64) / n as f64),
        interval: limits.map(|limits| (-limits.high, -limits.low)),
        drop_upper: limits.map(|limits| limits.upper),
        regressions: b,
        fixes: c,
        wrong_but_different: scored
            .iter()
            .filter(|(pair, it)| !it.base_right && !it.arm_right && pair.same_text() == Some(false))
            .count() as u64,
        p_worse: (n > 0).then(|| sign_flip_whole(&whole_sums(&drops), SEED)),
        test: if is_clustered { PairedTest::ClusterSignFlip } else { PairedTest::ExactMcnemar },
        p_graded: (n > 0).then(|| sign_flip(&graded.iter().map(|cluster| cluster.sum).collect::<Vec<_>>(), SEED)),
        nll: nll_delta(pairs),
        output_ratio: mean(pairs.iter().filter_map(|pair| output_ratio(pair))),
        first_divergence: first_divergence(pairs),
    }
}

/// One cluster per haystack, in the order of the haystacks' ids.
pub(super) fn by_haystack<'a>(values: impl Iterator<Item = (&'a Pair<'a>, f64)>) -> Vec<Cluster> {
    let mut clusters: BTreeMap<&str, Cluster> = BTreeMap::new();
    for (pair, value) in values {
        let cluster = clusters.entry(&pair.base.haystack_id).or_insert(Cluster { sum: 0.0, size: 0 });
        cluster.sum += value;
        cluster.size += 1;
    }
    clusters.into_values().collect()
}

/// Sums of −1, 0 and +1 are whole numbers.
pub(super) fn whole_sums(clusters: &[Cluster]) -> Vec<i64> {
    clusters.iter().map(|cluster| cluster.sum as i64).collect()
}

fn nll_delta(pairs: &[&Pair<'_>]) -> Option<NllDelta> {
    let both: Vec<(&Pair<'_>, f64, f64)> = pairs
        .iter()
        .filter_map(|pair| {
            let (base, arm) = pair.completions()?;
            Some((*pair, base.answer_nll?, arm.answer_nll?))
        })
        .collect();
    let clusters = by_haystack(both.iter().map(|(pair, base, arm)| (*pair, arm - base)));
    Some(NllDelta {
        pairs: both.len() as u64,
        baseline: mean(both.iter().map(|(_, base, _)| *base))?,
        delta: mean(both.iter().map(|(_, base, arm)| arm - base))?,
        standard_error: clustered_standard_error(&clusters)?,
    })
}

fn output_ratio(pair: &Pair<'_>) -> Option<f64> {
    let (base, arm) = pair.completions()?;
    (base.output_tokens > 0).then(|| f64::from(arm.output_tokens) / f64::from(base.output_tokens))
}

/// The lower median, so that it is the index of a real pair.
fn first_divergence(pairs: &[&Pair<'_>]) -> Option<u64> {
    let mut places: Vec<u64> = pairs
        .iter()
        .filter(|pair| pair.same_text() == Some(false))
        .filter_map(|pair| {
            let (base, arm) = pair.completions()?;
            let same = base.text.chars().zip(arm.text.chars()).take_while(|(left, right)| left == right).count();
            Some(same as u64)
        })
        .collect();
    places.sort_unstable();
    places.get(places.len().checked_sub(1)? / 2).copied()
}
