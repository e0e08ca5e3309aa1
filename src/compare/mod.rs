//! Baseline record + candidate records → [`Comparison`]: pairs by `item_id`, never averages over lengths.
//!
//! [`compare`] is a pure function of the records: no clock, no randomness but fixed seeds, and the order of samples or
//! arms changes nothing. The rules of what makes a pair are in [`pairing`](self::pairing); statistics are in
//! [`crate::stats`]; nothing here judges.

mod compatibility;
mod curve;
mod delta;
mod divergence;
mod error;
mod findings;
#[cfg(test)]
pub(crate) mod fixtures;
mod flips;
mod pairing;
mod repeats;
mod robustness;
mod summary;
pub mod table;
#[cfg(test)]
mod tests;
mod turns;

use std::collections::BTreeSet;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::record::Record;
use crate::record::manifest::{AcceptedFrom, SHARD_FIELD};
use crate::sample::{Bin, FaultKind, Finding, FindingKind, Outcome};
use crate::setup::{Arm, Check, ModelIdentity, Resolved};
use crate::suite::TaskGroup;

pub use curve::{LengthCurve, LengthPoint, MAX_WORST_CELLS, WorstCell};
pub use divergence::Divergence;
pub use error::CompareError;
pub use repeats::Repeat;
pub use robustness::{Drift, Robustness};

/// Version of [`Comparison`] as a document, and of the verdict beside it. Changelog: 1 first version; 2 `checks` of an arm; 3 `repeats`,
/// `curve`, `worst_cells` and `divergence` of an arm, in the verdict tiers, findings and confirmations; 4 `accepted` of an arm.
pub const COMPARISON_FORMAT: u32 = 4;

/// Pairs every candidate (and the A/A control) with the baseline.
///
/// # Errors
/// When the records are not of the same measurement ([`CompareError::Mismatch`], [`CompareError::Prompts`]) or are
/// damaged (duplicates, scores that are no scores).
pub fn compare(baseline: &Record, control: Option<&Record>, candidates: &[Record]) -> Result<Comparison, CompareError> {
    let mut names = BTreeSet::new();
    for record in std::iter::once(baseline).chain(control).chain(candidates) {
        let name = &record.manifest.arm.name;
        if !names.insert(name) {
            return Err(CompareError::SameName { arm: name.clone() });
        }
        // Fewer items and no other sign of it: a shard must not pass for the run.
        if let Some(shard) = record.manifest.plan.get(SHARD_FIELD) {
            return Err(CompareError::Shard { arm: name.clone(), shard: shard.clone() });
        }
    }
    let base = pairing::Arm::of(baseline)?;
    if base.samples.is_empty() {
        return Err(CompareError::NothingMeasured { arm: base.name().into() });
    }
    let (control, compared) = rayon::join(
        || control.map(|record| compare_arm(&base, record)).transpose(),
        || candidates.par_iter().map(|record| compare_arm(&base, record)).collect::<Vec<_>>(),
    );
    // Collected in order first, so that of several errors it is always the same that is told.
    let (control, compared) = (control?, compared.into_iter().collect::<Result<Vec<_>, _>>()?);
    let everything = std::iter::once(baseline).chain(candidates).flat_map(|record| &record.samples);
    let bins: BTreeSet<Bin> = everything.clone().map(|sample| sample.bin).collect();
    let tasks: BTreeSet<(TaskGroup, &str)> =
        everything.map(|sample| (TaskGroup::of_task(&sample.task), sample.task.as_str())).collect();
    Ok(Comparison {
        format_version: COMPARISON_FORMAT,
        tool_version: env!("CARGO_PKG_VERSION").into(),
        suite: baseline.manifest.suite.clone(),
        plan: compatibility::shared_plan(&baseline.manifest.plan),
        model: baseline.manifest.model.clone(),
        environment: environment(baseline, candidates),
        bins: bins.into_iter().collect(),
        tasks: tasks.into_iter().map(|(_, task)| task.into()).collect(),
        baseline: summary::summarize(&base),
        control,
        repeats: repeats::repeats(candidates)?,
        candidates: compared,
    })
}

/// The machine of this run: an accepted baseline was measured on an earlier day, perhaps elsewhere.
fn environment(baseline: &Record, candidates: &[Record]) -> std::collections::BTreeMap<String, String> {
    let of_run = candidates.first().filter(|_| baseline.manifest.accepted.is_some());
    of_run.unwrap_or(baseline).manifest.environment.clone()
}

fn compare_arm(base: &pairing::Arm<'_>, record: &Record) -> Result<ArmComparison, CompareError> {
    compatibility::refuse_mismatch(base.manifest, &record.manifest)?;
    let arm = pairing::Arm::of(record)?;
    let pairs = pairing::pair(base, &arm)?;
    Ok(ArmComparison {
        summary: summary::summarize(&arm),
        mismatches: compatibility::soft_mismatches(base, &arm),
        confounded: compatibility::confounded(base.manifest, arm.manifest),
        treatment: findings::treatment(base.manifest, arm.manifest, &pairs),
        tasks: delta::task_deltas(base, &arm, &pairs),
        groups: delta::group_deltas(base, &arm, &pairs),
        pooled: (!pairs.is_empty()).then(|| delta::pooled_delta(base, &arm, &pairs)),
        symptoms: findings::symptoms(&pairs),
        flips: flips::flips(&pairs),
        slope: findings::slope(&pairs),
        same_sign: findings::same_sign(&pairs),
        curve: curve::curve(&pairs),
        worst_cells: curve::worst_cells(&pairs),
        robustness: robustness::robustness(base, &arm),
        divergence: divergence::divergences(&pairs),
    })
}

/// Everything that was found, without a judgement. `comparison.json` is this, and holds no times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Version of this document.
    pub format_version: u32,
    /// Version of kvgauge.
    pub tool_version: String,
    /// Suite name.
    pub suite: String,
    /// The comparability fields of the baseline's manifest.
    pub plan: std::collections::BTreeMap<String, String>,
    /// The model.
    pub model: ModelIdentity,
    /// Machine facts of the baseline's run; of the first candidate's where the baseline was accepted in an earlier one.
    pub environment: std::collections::BTreeMap<String, String>,
    /// Bins, ascending.
    pub bins: Vec<Bin>,
    /// Tasks by group, then by name: the suite's own order is not in a record.
    pub tasks: Vec<String>,
    /// The baseline alone.
    pub baseline: ArmSummary,
    /// The A/A arm against the baseline, where there is one.
    pub control: Option<ArmComparison>,
    /// Candidates that are one another's A/A arms, because they were asked for the same cache under two names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub repeats: Vec<Repeat>,
    /// Every candidate against the baseline.
    pub candidates: Vec<ArmComparison>,
}

/// One arm by itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArmSummary {
    /// What was asked.
    pub arm: Arm,
    /// What is in effect.
    pub resolved: Resolved,
    /// The accepted baseline that the answers are from; `None` for answers of this run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted: Option<AcceptedFrom>,
    /// What was asked for against what each source says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Check>,
    /// Items planned.
    pub planned_items: u64,
    /// Whether every planned item has a record.
    pub complete: bool,
    /// Counts per outcome, in [`Outcome`] order.
    pub outcomes: Vec<(Outcome, u64)>,
    /// Task × bin, in the order of [`Comparison::tasks`], then bins ascending.
    pub cells: Vec<CellSummary>,
    /// Task × bin × depth slot.
    pub depth_cells: Vec<DepthCell>,
    /// Task × bin × turn of conversations; empty where there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub turns: Vec<TurnCell>,
}

/// One arm in one task × bin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CellSummary {
    /// Task id.
    pub task: String,
    /// Bin.
    pub bin: Bin,
    /// Valid items: those with an answer, neither error nor invalid. An answer that never came to its end is among them
    /// and is not right: leaving it out would raise the share.
    pub n: u64,
    /// Right items.
    pub right: u64,
    /// Mean score; an answer that never came to its end has 0.
    pub mean_score: Option<f64>,
    /// Wilson 95 % interval of the share of right items.
    pub wilson: Option<(f64, f64)>,
    /// Mean answer NLL in nats per token.
    pub answer_nll: Option<f64>,
    /// Mean output tokens.
    pub output_tokens: Option<f64>,
    /// Items per symptom (leading finding of each kind counts once per item).
    pub symptoms: Vec<(FindingKind, u64)>,
    /// Items per fault.
    pub faults: Vec<(FaultKind, u64)>,
    /// Items that are not valid: invalid, error.
    pub not_valid: u64,
}

/// One arm in one task × bin × depth slot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DepthCell {
    /// Task id.
    pub task: String,
    /// Bin.
    pub bin: Bin,
    /// Depth slot.
    pub slot_percent: u8,
    /// Valid items, as in [`CellSummary::n`].
    pub n: u64,
    /// Right items.
    pub right: u64,
}

/// One arm in one turn of the conversations of a task × bin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TurnCell {
    /// Task id.
    pub task: String,
    /// Bin.
    pub bin: Bin,
    /// Counts from 1, the first question.
    pub turn: u32,
    /// Valid items, as in [`CellSummary::n`].
    pub n: u64,
    /// Items that are right in this turn.
    pub right: u64,
}

/// One arm against the baseline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArmComparison {
    /// The arm by itself.
    pub summary: ArmSummary,
    /// Fields in which it is not comparable beyond what it is meant to differ in; the gate makes it INVALID.
    pub mismatches: Vec<Mismatch>,
    /// Baseline and arm resolved to different backends: quality differences may not be the cache's.
    pub confounded: Option<String>,
    /// Signs that the treatment was applied.
    pub treatment: Treatment,
    /// Task × bin.
    pub tasks: Vec<Delta>,
    /// Task group × bin: the judged cells.
    pub groups: Vec<GroupDelta>,
    /// All pairs pooled over all lengths: shown beside the bins to say what the average hides.
    pub pooled: Option<Delta>,
    /// Symptom rates per bin, all tasks together.
    pub symptoms: Vec<SymptomDelta>,
    /// Pairs whose outcome changed, regressions first, then by bin and task.
    pub flips: Vec<Flip>,
    /// One-sided permutation test: does the delta fall with log₂ length?
    pub slope: Option<Slope>,
    /// Bins with a negative delta out of bins with pairs, and the one-sided sign test over bins.
    pub same_sign: Option<SameSign>,
    /// Accuracy over length in single figures, as validations of quantized caches report it. Never judged: they hide single bins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub curve: Option<LengthCurve>,
    /// The largest drops of single task × bin × depth cells, worst first, at most [`MAX_WORST_CELLS`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub worst_cells: Vec<WorstCell>,
    /// Drift of baseline and arm from themselves under other wordings, where the suite asks for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub robustness: Vec<Robustness>,
    /// Distributions of the next token, per bin and task × bin, where the records hold them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub divergence: Vec<Divergence>,
}

/// A comparability field that differs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mismatch {
    /// Field name.
    pub field: String,
    /// Baseline's value.
    pub baseline: String,
    /// The arm's value.
    pub candidate: String,
}

/// Signs that the arm really ran what was asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Treatment {
    /// dtype asked for.
    pub requested_dtype: String,
    /// dtype in effect, where known.
    pub resolved_dtype: Option<String>,
    /// Cache bytes per token of baseline and arm, where known.
    pub kv_bytes_per_token: Option<(f64, f64)>,
    /// Pairs of long items (8K tokens and more) whose outputs are the same text.
    pub identical_outputs: u64,
    /// Pairs of long items compared for that: short answers to short prompts are rightly the same.
    pub compared_outputs: u64,
    /// Pairs with an answer NLL in both arms, and how many of them differ at all.
    pub nll_pairs: u64,
    /// See `nll_pairs`.
    pub nll_different: u64,
    /// Pairs of any length with two answers that are not the same text, scored or not.
    pub different_outputs: u64,
}

/// One side of a cell by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answered {
    /// Items with an answer: neither error nor invalid.
    pub items: u64,
    /// Right ones. An answer that never came to its end is not right.
    pub right: u64,
}

/// Paired difference in one cell. Differences are candidate − baseline: negative is worse.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Delta {
    /// Task id, group name or `all`.
    pub label: String,
    /// `None` for pooled rows.
    pub bin: Option<Bin>,
    /// Items of the cell in either record; `items = pairs + censored + broken`. A control's own items only.
    pub items: u64,
    /// Pairs that are scored.
    pub pairs: u64,
    /// Pairs not scored because both answers ran into the output limit without being right: the limit hides what the
    /// cache did to them.
    pub censored: u64,
    /// Items not scored because a side is an error, invalid or missing.
    pub broken: u64,
    /// The baseline over all its items of the cell, also those that are in no scored pair.
    pub baseline_answered: Answered,
    /// The same of the arm.
    pub candidate_answered: Answered,
    /// Different haystacks among them.
    pub haystacks: u64,
    /// Right in the baseline, among the scored pairs.
    pub baseline_right: u64,
    /// Right in the arm, among the scored pairs.
    pub candidate_right: u64,
    /// Wilson interval of the baseline.
    pub baseline_wilson: Option<(f64, f64)>,
    /// Wilson interval of the arm.
    pub candidate_wilson: Option<(f64, f64)>,
    /// Mean graded scores.
    pub baseline_mean: Option<f64>,
    /// Mean graded scores.
    pub candidate_mean: Option<f64>,
    /// (candidate_right − baseline_right) / pairs.
    pub delta: Option<f64>,
    /// Two-sided 95 % interval of `delta`: Tango, or where haystacks are shared the wider of t × clustered standard
    /// error and Tango at the effective sample size ([`crate::stats::paired::clustered_95`]).
    pub interval: Option<(f64, f64)>,
    /// One-sided upper 95 % limit of the *drop* (−delta), by the same method.
    pub drop_upper: Option<f64>,
    /// right → wrong.
    pub regressions: u64,
    /// wrong → right.
    pub fixes: u64,
    /// Wrong in both arms with different texts.
    pub wrong_but_different: u64,
    /// One-sided p for "the arm is worse": exact McNemar, or the sign-flip permutation over cluster sums.
    pub p_worse: Option<f64>,
    /// Which test `p_worse` is.
    pub test: PairedTest,
    /// One-sided sign-flip permutation p on graded scores.
    pub p_graded: Option<f64>,
    /// Answer NLL.
    pub nll: Option<NllDelta>,
    /// Mean ratio of output tokens, candidate / baseline.
    pub output_ratio: Option<f64>,
    /// Median index of the first different character among scored pairs that differ.
    pub first_divergence: Option<u64>,
}

/// Which paired test was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PairedTest {
    /// Exact one-sided McNemar.
    ExactMcnemar,
    /// Sign-flip permutation over haystack sums.
    ClusterSignFlip,
}

/// Answer NLL of both arms on the same pairs, nats per token; positive delta is worse.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NllDelta {
    /// Pairs with both values.
    pub pairs: u64,
    /// Baseline's mean.
    pub baseline: f64,
    /// Candidate − baseline.
    pub delta: f64,
    /// Two-sided 95 % interval of `delta`: t × standard error, clustered where haystacks are shared
    /// ([`crate::stats::paired::clustered_mean_95`]). `None` with one pair or one haystack.
    pub interval: Option<(f64, f64)>,
}

/// A judged cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupDelta {
    /// Task group.
    pub group: TaskGroup,
    /// The numbers.
    #[serde(flatten)]
    pub delta: Delta,
}

/// A symptom's rate in one bin, paired.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SymptomDelta {
    /// The symptom.
    pub kind: FindingKind,
    /// The bin.
    pub bin: Bin,
    /// Pairs looked at.
    pub pairs: u64,
    /// Items with it in the baseline.
    pub baseline: u64,
    /// Items with it in the arm.
    pub candidate: u64,
    /// Only in the arm.
    pub appeared: u64,
    /// Only in the baseline.
    pub vanished: u64,
    /// One-sided exact McNemar p for a rise, item by item.
    pub p_rise: f64,
    /// One-sided sign-flip p for a rise over the haystacks' sums: questions of one haystack are not independent.
    pub p_rise_by_haystack: f64,
}

impl Answered {
    /// Share of right answers; `None` without an answer.
    pub fn share(&self) -> Option<f64> {
        (self.items > 0).then(|| self.right as f64 / self.items as f64)
    }
}

impl Delta {
    /// Items of the cell that say nothing of the difference: censored pairs and broken items.
    pub fn not_scored(&self) -> u64 {
        self.censored + self.broken
    }
}

/// A pair whose outcome changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Flip {
    /// The item.
    pub item_id: String,
    /// Task id.
    pub task: String,
    /// Bin.
    pub bin: Bin,
    /// Depth slot.
    pub slot_percent: u8,
    /// Realised depth.
    pub depth_percent: Option<f64>,
    /// Which way.
    pub direction: FlipDirection,
    /// Why, for grouping: the leading symptom or fault of the wrong side, in words.
    pub cause: String,
    /// Fault notes and evidence of the wrong side.
    pub notes: Vec<String>,
    /// Right answer.
    pub expected: String,
    /// Baseline's text.
    pub baseline_text: String,
    /// The arm's text.
    pub candidate_text: String,
    /// Symptoms of the arm's text.
    pub findings: Vec<Finding>,
    /// ±200 tokens around the needle.
    pub excerpt: String,
}

/// Which way a pair changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlipDirection {
    /// right → wrong
    Regression,
    /// wrong → right
    Fix,
}

/// Slope of the paired difference on log₂ length.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slope {
    /// Points (as a share) per doubling of the length.
    pub per_doubling: f64,
    /// One-sided permutation p for a falling slope.
    pub p_falling: f64,
}

/// Small but consistent: the same sign in every bin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SameSign {
    /// Bins with a negative delta.
    pub negative: u64,
    /// Bins with a positive delta.
    pub positive: u64,
    /// One-sided exact McNemar p over all bins' flips (sign flips of haystack sums where haystacks are shared).
    pub p_pooled: f64,
}
