//! One arm by itself.

use std::collections::BTreeMap;

use crate::compare::pairing::{Arm, graded_value, is_answered};
use crate::compare::turns::turns;
use crate::compare::{ArmSummary, CellSummary, DepthCell};
use crate::record::samples::SampleRecord;
use crate::sample::{Bin, FaultKind, FindingKind, Outcome};
use crate::stats::proportion::wilson_95;
use crate::suite::TaskGroup;

/// Every outcome, in declaration order.
const OUTCOMES: [Outcome; 5] =
    [Outcome::ValidRight, Outcome::ValidWrong, Outcome::Censored, Outcome::Invalid, Outcome::Error];

/// Task × bin in the order of the tables.
pub(super) type CellKey<'a> = (TaskGroup, &'a str, Bin);

pub(super) fn cell_key(sample: &SampleRecord) -> CellKey<'_> {
    (TaskGroup::of_task(&sample.task), &sample.task, sample.bin)
}

pub(super) fn summarize(arm: &Arm<'_>) -> ArmSummary {
    let mut cells: BTreeMap<CellKey<'_>, Vec<&SampleRecord>> = BTreeMap::new();
    let mut depths: BTreeMap<(CellKey<'_>, u8), (u64, u64)> = BTreeMap::new();
    for sample in arm.samples.values() {
        cells.entry(cell_key(sample)).or_default().push(sample);
        let (n, right) = depths.entry((cell_key(sample), sample.slot_percent)).or_default();
        *n += u64::from(is_answered(sample));
        *right += u64::from(sample.outcome == Outcome::ValidRight);
    }
    let count = |outcome: Outcome| arm.samples.values().filter(|sample| sample.outcome == outcome).count() as u64;
    ArmSummary {
        arm: arm.manifest.arm.clone(),
        resolved: arm.manifest.resolved.clone(),
        accepted: arm.manifest.accepted.clone(),
        checks: arm.manifest.checks.clone(),
        planned_items: arm.manifest.planned_items,
        complete: arm.item_count() >= arm.manifest.planned_items,
        outcomes: OUTCOMES.map(|outcome| (outcome, count(outcome))).to_vec(),
        cells: cells.iter().map(|((_, task, bin), samples)| cell(task, *bin, samples)).collect(),
        depth_cells: depths
            .into_iter()
            .map(|(((_, task, bin), slot_percent), (n, right))| DepthCell {
                task: task.into(),
                bin,
                slot_percent,
                n,
                right,
            })
            .collect(),
        turns: turns(arm),
    }
}

fn cell(task: &str, bin: Bin, samples: &[&SampleRecord]) -> CellSummary {
    let valid: Vec<&SampleRecord> = samples.iter().copied().filter(|sample| is_answered(sample)).collect();
    let right = valid.iter().filter(|sample| sample.outcome == Outcome::ValidRight).count() as u64;
    let n = valid.len() as u64;
    CellSummary {
        task: task.into(),
        bin,
        n,
        right,
        mean_score: mean(valid.iter().map(|sample| graded_value(sample))),
        wilson: wilson_95(right, n),
        answer_nll: mean(samples.iter().filter_map(|sample| sample.completion.as_ref()?.answer_nll)),
        output_tokens: mean(
            valid.iter().filter_map(|sample| sample.completion.as_ref()).map(|it| f64::from(it.output_tokens)),
        ),
        symptoms: FindingKind::ALL
            .into_iter()
            .map(|kind| (kind, samples.iter().filter(|sample| has_symptom(sample, kind)).count() as u64))
            .filter(|(_, count)| *count > 0)
            .collect(),
        faults: FaultKind::ALL
            .into_iter()
            .map(|kind| (kind, valid.iter().filter(|sample| has_fault(sample, kind)).count() as u64))
            .filter(|(_, count)| *count > 0)
            .collect(),
        not_valid: samples.len() as u64 - n,
    }
}

pub(super) fn has_symptom(sample: &SampleRecord, kind: FindingKind) -> bool {
    sample.findings.iter().any(|finding| finding.kind == kind)
}

fn has_fault(sample: &SampleRecord, kind: FaultKind) -> bool {
    sample.score.as_ref().is_some_and(|score| score.faults.iter().any(|fault| fault.kind == kind))
}

/// Mean of what there is; `None` of nothing. The callers' order is that of the item ids, so sums are reproducible.
pub(super) fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0u64), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / count as f64)
}
