//! How far an arm's distribution of the next token is from the baseline's on the same text: the expected answer, teacher-forced.
//!
//! Both arms read the same prompt and the same answer, so position `i` has the same context in both, whatever they would have
//! said by themselves. The lists hold the likeliest tokens only; the divergence over them and one bucket for all others is a
//! lower bound ([`crate::stats::divergence`]).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::compare::pairing::Pair;
use crate::sample::{Bin, LikelyTokens};
use crate::stats::divergence::{Other, Share, kl_lower_bound};

/// Distributions of the next token of both arms on the same pairs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Divergence {
    /// Task id; `None` for all tasks of the bin.
    pub task: Option<String>,
    /// The bin.
    pub bin: Bin,
    /// Pairs with distributions in both arms.
    pub pairs: u64,
    /// Answer tokens compared.
    pub positions: u64,
    /// Mean lower bound of KL(baseline ‖ arm) in nats over the positions.
    pub kld_mean: f64,
    /// 99th percentile (nearest rank).
    pub kld_p99: f64,
    /// Largest.
    pub kld_max: f64,
    /// Share of positions with the same likeliest token.
    pub top1_agreement: f64,
    /// Mean answer NLL of the arm − the baseline's over the pairs, nats per token.
    pub nll_delta: Option<f64>,
}

/// Per task × bin and, above them, per bin.
pub(super) fn divergences(pairs: &[Pair<'_>]) -> Vec<Divergence> {
    let mut cells: BTreeMap<(Bin, Option<&str>), Vec<&Pair<'_>>> = BTreeMap::new();
    for pair in pairs {
        for task in [None, Some(pair.base.task.as_str())] {
            cells.entry((pair.base.bin, task)).or_default().push(pair);
        }
    }
    cells.into_iter().filter_map(|((bin, task), pairs)| divergence(task, bin, &pairs)).collect()
}

fn divergence(task: Option<&str>, bin: Bin, pairs: &[&Pair<'_>]) -> Option<Divergence> {
    let (mut klds, mut agreeing, mut n_pair, mut nll_deltas) = (Vec::new(), 0_u64, 0_u64, Vec::new());
    for pair in pairs {
        let Some((base, arm)) = pair.completions() else { continue };
        // Answers of different length would be different texts; the shorter list is then cut by nothing but its own limit.
        let positions = base.answer_tokens.len().min(arm.answer_tokens.len());
        if positions == 0 {
            continue;
        }
        n_pair += 1;
        nll_deltas.extend(base.answer_nll.zip(arm.answer_nll).map(|(base, arm)| arm - base));
        for (ours, theirs) in base.answer_tokens.iter().zip(&arm.answer_tokens) {
            klds.push(kld(ours, theirs));
            agreeing += u64::from(ours.likeliest().is_some() && ours.likeliest() == theirs.likeliest());
        }
    }
    klds.sort_by(f64::total_cmp);
    let rank = (klds.len() * 99).div_ceil(100);
    Some(Divergence {
        task: task.map(str::to_owned),
        bin,
        pairs: n_pair,
        positions: klds.len() as u64,
        kld_mean: klds.iter().sum::<f64>() / klds.len() as f64,
        kld_p99: *klds.get(rank.checked_sub(1)?)?,
        kld_max: *klds.last()?,
        top1_agreement: agreeing as f64 / klds.len() as f64,
        nll_delta: (!nll_deltas.is_empty()).then(|| nll_deltas.iter().sum::<f64>() / nll_deltas.len() as f64),
    })
}

/// Lower bound of KL(base ‖ arm) in nats.
fn kld(base: &LikelyTokens, arm: &LikelyTokens) -> f64 {
    let theirs: BTreeMap<u32, f64> = arm.shares().collect();
    // What is not listed is no likelier than the last that is, and no more than what the listed ones leave.
    let left = 1.0 - theirs.values().sum::<f64>();
    let most = arm.shares().last().map_or(1.0, |(_, last)| last.min(left));
    let share = |(id, p)| Share { p, q: theirs.get(&id).map_or(Other::AtMost(most), |q| Other::Known(*q)) };
    kl_lower_bound(&base.shares().map(share).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::compare;
    use crate::compare::fixtures::{manifest, sample};
    use crate::record::Record;
    use crate::setup::Arm;

    fn tokens(shares: &[(u32, f32)]) -> LikelyTokens {
        LikelyTokens::new(shares.iter().map(|(id, share)| (*id, share.ln())))
    }

    fn record(arm: Arm, lists: &[Vec<LikelyTokens>]) -> Record {
        let mut samples: Vec<_> = (0..lists.len() as u32).map(|index| sample("needle", 512, index, true)).collect();
        for (sample, list) in samples.iter_mut().zip(lists) {
            sample.completion.as_mut().unwrap().answer_tokens = list.clone();
        }
        Record { manifest: manifest(arm, lists.len() as u64), samples }
    }

    #[test]
    fn divergence_is_told_per_task_and_over_the_bin_and_is_zero_of_the_same() {
        let (sure, torn) = (tokens(&[(7, 0.9), (8, 0.05)]), tokens(&[(8, 0.5), (7, 0.4)]));
        let base = record(Arm::baseline("bfloat16"), &[vec![sure.clone(), sure.clone()], vec![sure.clone()], vec![]]);
        let other = record(Arm::candidate("fp8_e4m3"), &[vec![sure.clone(), torn.clone()], vec![sure.clone()], vec![]]);
        let comparison = compare(&base, None, &[other]).unwrap();
        let found = &comparison.candidates[0].divergence;
        assert_eq!(found.iter().map(|row| row.task.as_deref()).collect::<Vec<_>>(), [None, Some("needle")]);
        let row = &found[0];
        assert_eq!((row.pairs, row.positions, row.bin), (2, 3, Bin(512)));
        assert!((row.top1_agreement - 2.0 / 3.0).abs() < 1e-12);
        // 0.9 ln(0.9/0.4) + 0.05 ln(0.05/0.5) + 0.05 ln(0.05/0.1), at one of three places.
        let exact = 0.9 * 2.25_f64.ln() + 0.05 * 0.1_f64.ln() + 0.05 * 0.5_f64.ln();
        assert!((row.kld_max - exact).abs() < 1e-4 && (row.kld_mean - exact / 3.0).abs() < 1e-4, "{row:?}");
        assert_eq!((row.kld_p99, row.nll_delta), (row.kld_max, Some(0.0)));
        let same = record(Arm::control("bfloat16"), &[vec![sure.clone(), sure.clone()], vec![sure], vec![torn]]);
        let comparison = compare(&base, None, &[same]).unwrap();
        let row = &comparison.candidates[0].divergence[0];
        assert_eq!((row.pairs, row.kld_max, row.top1_agreement), (2, 0.0, 1.0));
    }

    #[test]
    fn without_lists_there_is_no_row() {
        let base = record(Arm::baseline("bfloat16"), &[vec![], vec![]]);
        let comparison = compare(&base, None, &[record(Arm::candidate("fp8_e4m3"), &[vec![], vec![]])]).unwrap();
        assert!(comparison.candidates[0].divergence.is_empty());
    }
}
