//! Paired difference in one cell.

use std::collections::BTreeMap;

use crate::compare::pairing::{Arm, Pair, Scored, is_answered};
use crate::compare::summary::{cell_key, mean};
use crate::compare::{Answered, Delta, GroupDelta, NllDelta, PairedTest};
use crate::record::samples::SampleRecord;
use crate::sample::{Bin, Outcome};
use crate::setup::ArmRole;
use crate::stats::{
    paired::{Cluster, clustered_95, clustered_mean_95, tango_95},
    permutation::{sign_flip, sign_flip_whole},
    proportion::wilson_95,
};
use crate::suite::TaskGroup;

/// Seed of the tests that draw at random; any fixed number will do, so that the same records give the same p.
pub(super) const SEED: u64 = 0x6b76_6761_7567;

impl Delta {
    /// A cell in which nothing was compared.
    pub fn empty(label: &str, bin: Option<Bin>) -> Self {
        delta(label, bin, &Members::default())
    }
}

/// What belongs to one cell.
#[derive(Default)]
struct Members<'a, 'p> {
    base: Vec<&'a SampleRecord>,
    arm: Vec<&'a SampleRecord>,
    /// The items that both have.
    pairs: Vec<&'p Pair<'a>>,
}

/// Every cell in which either arm has a sample, also those without a pair. A control is asked a part of the baseline's
/// items only: what it never planned is no hole in it.
fn cells<'a, 'p, K: Ord>(
    base: &Arm<'a>,
    arm: &Arm<'a>,
    pairs: &'p [Pair<'a>],
    key: impl Fn(&'a SampleRecord) -> K,
) -> BTreeMap<K, Members<'a, 'p>> {
    let is_control = arm.manifest.arm.role == ArmRole::Control;
    let mut cells: BTreeMap<K, Members<'a, 'p>> = BTreeMap::new();
    for (id, &sample) in &base.samples {
        if !is_control || arm.samples.contains_key(id) {
            cells.entry(key(sample)).or_default().base.push(sample);
        }
    }
    for &sample in arm.samples.values() {
        cells.entry(key(sample)).or_default().arm.push(sample);
    }
    for pair in pairs {
        cells.entry(key(pair.base)).or_default().pairs.push(pair);
    }
    cells
}

/// Task × bin.
pub(super) fn task_deltas<'a>(base: &Arm<'a>, arm: &Arm<'a>, pairs: &[Pair<'a>]) -> Vec<Delta> {
    let cells = cells(base, arm, pairs, cell_key);
    cells.into_iter().map(|((_, task, bin), members)| delta(task, Some(bin), &members)).collect()
}

/// Task group × bin: the judged cells.
pub(super) fn group_deltas<'a>(base: &Arm<'a>, arm: &Arm<'a>, pairs: &[Pair<'a>]) -> Vec<GroupDelta> {
    cells(base, arm, pairs, |sample| (sample.bin, TaskGroup::of_task(&sample.task)))
        .into_iter()
        .map(|((bin, group), members)| GroupDelta { group, delta: delta(group.name(), Some(bin), &members) })
        .collect()
}

/// Everything in one.
pub(super) fn pooled_delta<'a>(base: &Arm<'a>, arm: &Arm<'a>, pairs: &[Pair<'a>]) -> Delta {
    delta("all", None, &cells(base, arm, pairs, |_| ()).remove(&()).unwrap_or_default())
}

fn answered(samples: &[&SampleRecord]) -> Answered {
    Answered {
        items: samples.iter().filter(|sample| is_answered(sample)).count() as u64,
        right: samples.iter().filter(|sample| sample.outcome == Outcome::ValidRight).count() as u64,
    }
}

/// All numbers of one cell.
fn delta(label: &str, bin: Option<Bin>, members: &Members<'_, '_>) -> Delta {
    let pairs = &members.pairs;
    let scored: Vec<(&Pair<'_>, Scored)> = pairs.iter().filter_map(|pair| Some((*pair, pair.scored?))).collect();
    let n = scored.len() as u64;
    // Every pair is an item of both sides.
    let items = (members.base.len() + members.arm.len() - pairs.len()) as u64;
    let censored = pairs.iter().filter(|pair| pair.is_censored()).count() as u64;
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
        items,
        pairs: n,
        censored,
        broken: items - n - censored,
        baseline_answered: answered(&members.base),
        candidate_answered: answered(&members.arm),
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
        first_divergence: first_divergence(&scored),
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
        interval: clustered_mean_95(&clusters),
    })
}

fn output_ratio(pair: &Pair<'_>) -> Option<f64> {
    let (base, arm) = pair.completions()?;
    (base.output_tokens > 0).then(|| f64::from(arm.output_tokens) / f64::from(base.output_tokens))
}

/// The lower median, so that it is the index of a real pair.
fn first_divergence(scored: &[(&Pair<'_>, Scored)]) -> Option<u64> {
    let mut places: Vec<u64> = scored
        .iter()
        .filter(|(pair, _)| pair.same_text() == Some(false))
        .filter_map(|(pair, _)| {
            let (base, arm) = pair.completions()?;
            let same = base.text.chars().zip(arm.text.chars()).take_while(|(left, right)| left == right).count();
            Some(same as u64)
        })
        .collect();
    places.sort_unstable();
    places.get(places.len().checked_sub(1)? / 2).copied()
}
