//! How small a damage does the gate find? Planted damage of known strength, each judged against the same baseline, becomes
//! the sensitivity of the instrument per bin.
//!
//! Damage comes in kinds (noise on K, answers that stop early, …), and a kind in rungs from weak to strong. Every rung is
//! judged as the only candidate of a run, the way a nightly judges a new dtype: a correction over all rungs would make the
//! instrument look duller than it is. What was measured and how it was judged is the ordinary comparison and verdict; here
//! they are only read.

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::compare::{ArmComparison, Comparison, Delta};
use crate::gate::{ArmVerdict, CellVerdict, Ruling, Verdict, min_effect_of_cell};
use crate::sample::{Bin, FindingKind};
use crate::suite::GatePolicy;

/// Version of [`SelfTest`] as a document. Changelog: 1 first version.
pub const SELFTEST_FORMAT: u32 = 1;

/// One damage of one strength.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rung {
    /// What is damaged: `k_noise`, `early_stop`.
    pub kind: String,
    /// How much, with its unit: `10 dB`, `25 %`.
    pub strength: String,
    /// Name of the arm that has it.
    pub arm: String,
    /// Whether an instrument that works has to find the strongest rung of this kind. What a real codec does to a model is
    /// the model's business, and nothing that has to be found.
    pub must_be_found: bool,
}

/// What became of a rung in one bin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Detection {
    /// The gate says REGRESSED of a cell of the bin.
    Found,
    /// The scores do not show it, but a symptom rises so that the gate fails.
    FoundAsSymptom,
    /// Neither, although more damage would have been found.
    NotFound,
    /// Not even the loss of every right answer could have been proven.
    NoPower,
    /// The gate refuses the arm: INVALID.
    Invalid,
}

/// A rung in one bin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RungCell {
    /// The bin.
    pub bin: Bin,
    /// What became of it.
    pub detection: Detection,
    /// Judged pairs of the group that dropped most, which the next four are of.
    pub pairs: u64,
    /// Candidate − baseline as a share: negative is worse.
    pub delta: Option<f64>,
    /// The damaged arm's share of right answers.
    pub right: Option<f64>,
    /// Wilson interval of it.
    pub right_interval: Option<(f64, f64)>,
    /// Holm-adjusted p.
    pub adjusted_p: Option<f64>,
    /// Symptoms whose rise fails the gate.
    pub symptoms: Vec<FindingKind>,
    /// Mean lower bound of the divergence of the answer's tokens from the baseline's, in nats, where the records hold it. It tells
    /// damage to the cache long before answers change, and is never judged.
    pub kld_mean: Option<f64>,
}

/// A rung with what became of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RungResult {
    /// The rung.
    #[serde(flatten)]
    pub rung: Rung,
    /// What the gate says of the arm as a whole.
    pub ruling: Ruling,
    /// Why it is INVALID, where it is.
    pub invalid: Vec<String>,
    /// Per bin, ascending.
    pub cells: Vec<RungCell>,
}

/// The baseline once more, without damage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Clean {
    /// Name of the arm.
    pub arm: String,
    /// Pairs compared.
    pub pairs: u64,
    /// Pairs whose outcome, text or likelihood differs although nothing was changed.
    pub different: u64,
    /// Whether the gate would have failed it.
    pub is_regressed: bool,
    /// Why the measurement is broken, where it is.
    pub invalid: Vec<String>,
    /// Per bin, ascending: the baseline's share of right answers, where the ladder begins.
    pub cells: Vec<RungCell>,
}

/// The smallest damage of one kind that is found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sensitivity {
    /// The kind.
    pub kind: String,
    /// Per bin the weakest strength from which on every stronger one is found, too; `None` where even the strongest is not.
    pub smallest: Vec<(Bin, Option<String>)>,
}

/// What the selftest as a whole says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Proof {
    /// The clean arm is not REGRESSED, and the strongest damage of each kind is found in at least one bin.
    Passed,
    /// The instrument cries wolf, or it sleeps.
    Failed,
    /// It could not have shown either: arms that are INVALID, or no bin with enough right answers to lose.
    NotMeasured,
}

/// The result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SelfTest {
    /// Version of this document.
    pub format_version: u32,
    /// Version of kvgauge.
    pub tool_version: String,
    /// Suite name.
    pub suite: String,
    /// Model name.
    pub model: String,
    /// Bins, ascending.
    pub bins: Vec<Bin>,
    /// What it proves.
    pub proof: Proof,
    /// Why it is not [`Proof::Passed`].
    pub reasons: Vec<String>,
    /// The arm without damage.
    pub clean: Clean,
    /// In the order of the ladder: kinds together, weak before strong.
    pub rungs: Vec<RungResult>,
    /// Per kind, in the same order.
    pub sensitivity: Vec<Sensitivity>,
}

/// A rung with the comparison of its arm alone with the baseline, and the verdict on it.
#[derive(Clone, Debug)]
pub struct JudgedRung {
    /// The rung.
    pub rung: Rung,
    /// One candidate.
    pub comparison: Comparison,
    /// On that candidate.
    pub verdict: Verdict,
}

impl SelfTest {
    /// What it proves, in one sentence.
    pub fn headline(&self) -> String {
        let what = match self.proof {
            Proof::Passed => {
                "the clean baseline is not REGRESSED, and the strongest damage of every kind that has to be found is found"
            }
            Proof::Failed => "the gate cries wolf, or it sleeps",
            Proof::NotMeasured => "this suite cannot show what the gate finds with this model",
        };
        format!("{}: {what}", self.proof.words())
    }

    /// Reads the verdicts. `clean` compares the repeated baseline as the one candidate; `rungs` have kinds together, weak
    /// before strong.
    pub fn new(clean: &(Comparison, Verdict), rungs: &[JudgedRung], policy: &GatePolicy) -> Self {
        let comparison = &clean.0;
        let bins = comparison.bins.clone();
        let clean = read_clean(comparison, &clean.1, policy);
        let rungs: Vec<RungResult> = rungs.iter().map(|judged| read_rung(judged, &bins, policy)).collect();
        let sensitivity = kinds(&rungs).into_iter().map(|rungs| sensitivity(&rungs, &bins)).collect();
        let (proof, reasons) = conclude(&clean, &rungs);
        Self {
            format_version: SELFTEST_FORMAT,
            tool_version: env!("CARGO_PKG_VERSION").into(),
            suite: comparison.suite.clone(),
            model: comparison.model.name.clone(),
            bins,
            proof,
            reasons,
            clean,
            rungs,
            sensitivity,
        }
    }
}

impl Detection {
    /// The words in tables.
    pub fn words(self) -> &'static str {
        match self {
            Self::Found => "found",
            Self::FoundAsSymptom => "found as symptom",
            Self::NotFound => "not found",
            Self::NoPower => "no power",
            Self::Invalid => "invalid",
        }
    }

    /// One character, to be read without colour.
    pub fn symbol(self) -> &'static str {
        match self {
            Self::Found => "✗",
            Self::FoundAsSymptom => "≈",
            Self::NotFound => "·",
            Self::NoPower => "?",
            Self::Invalid => "!",
        }
    }

    /// Whether the gate fails because of it.
    pub fn is_found(self) -> bool {
        matches!(self, Self::Found | Self::FoundAsSymptom)
    }
}

impl Proof {
    /// The words of the headline.
    pub fn words(self) -> &'static str {
        match self {
            Self::Passed => "PASSED",
            Self::Failed => "FAILED",
            Self::NotMeasured => "NOT MEASURED",
        }
    }
}

fn read_clean(comparison: &Comparison, verdict: &Verdict, policy: &GatePolicy) -> Clean {
    let (arm, judged) = (&comparison.candidates[0], &verdict.arms[0]);
    let signs = &arm.treatment;
    let pairs = arm.pooled.as_ref().map_or(0, |pooled| pooled.pairs);
    Clean {
        arm: arm.summary.arm.name.clone(),
        pairs,
        different: signs.different_outputs.max(signs.nll_different).max(arm.flips.len() as u64),
        is_regressed: judged.cells.iter().any(|cell| cell.ruling == Ruling::Regressed)
            || judged.symptoms.iter().any(|symptom| symptom.regressed),
        invalid: judged.invalid.clone(),
        cells: comparison.bins.iter().map(|bin| cell_of(arm, judged, *bin, policy)).collect(),
    }
}

fn read_rung(judged: &JudgedRung, bins: &[Bin], policy: &GatePolicy) -> RungResult {
    let (arm, verdict) = (&judged.comparison.candidates[0], &judged.verdict.arms[0]);
    RungResult {
        rung: judged.rung.clone(),
        ruling: verdict.ruling,
        invalid: verdict.invalid.clone(),
        cells: bins.iter().map(|bin| cell_of(arm, verdict, *bin, policy)).collect(),
    }
}

fn cell_of(arm: &ArmComparison, verdict: &ArmVerdict, bin: Bin, policy: &GatePolicy) -> RungCell {
    let cells: Vec<&CellVerdict> = verdict.cells.iter().filter(|cell| cell.bin == bin).collect();
    let symptoms: Vec<FindingKind> = verdict
        .symptoms
        .iter()
        .filter(|found| found.regressed && found.symptom.bin == bin)
        .map(|found| found.symptom.kind)
        .collect();
    let detection = if !verdict.invalid.is_empty() {
        Detection::Invalid
    } else if cells.iter().any(|cell| cell.ruling == Ruling::Regressed) {
        Detection::Found
    } else if !symptoms.is_empty() {
        Detection::FoundAsSymptom
    } else if cells.iter().any(|cell| could_be_proven(verdict, cell, policy)) {
        Detection::NotFound
    } else {
        Detection::NoPower
    };
    let worst = cells.iter().min_by(|left, right| {
        let delta = |cell: &CellVerdict| cell.delta.delta.unwrap_or(f64::INFINITY);
        delta(left).total_cmp(&delta(right))
    });
    RungCell {
        bin,
        detection,
        pairs: worst.map_or(0, |cell| cell.delta.pairs),
        delta: worst.and_then(|cell| cell.delta.delta),
        right: worst.and_then(|cell| share(&cell.delta)),
        right_interval: worst.and_then(|cell| cell.delta.candidate_wilson),
        adjusted_p: worst.and_then(|cell| cell.adjusted_p),
        symptoms,
        kld_mean: arm.divergence.iter().find(|row| row.bin == bin && row.task.is_none()).map(|row| row.kld_mean),
    }
}

fn share(delta: &Delta) -> Option<f64> {
    (delta.pairs > 0).then(|| delta.candidate_right as f64 / delta.pairs as f64)
}

/// Whether the loss of every right answer would be REGRESSED in this cell. All flips in one direction have p = 2⁻ⁿ, n being
/// pairs or, where haystacks are shared, at most the haystacks; Holm multiplies it by no more than the cells judged.
fn could_be_proven(verdict: &ArmVerdict, cell: &CellVerdict, policy: &GatePolicy) -> bool {
    let family = verdict.cells.iter().filter(|cell| cell.adjusted_p.is_some()).count();
    let independent = cell.delta.baseline_right.min(cell.delta.haystacks);
    let p = 0.5_f64.powi(i32::try_from(independent).unwrap_or(i32::MAX));
    let most = cell.delta.baseline_right as f64 / cell.delta.pairs.max(1) as f64;
    cell.adjusted_p.is_some()
        && family as f64 * p < policy.alpha
        && most >= min_effect_of_cell(policy, cell.group, cell.bin)
}

/// The rungs of each kind, in the order of the ladder.
fn kinds(rungs: &[RungResult]) -> Vec<Vec<&RungResult>> {
    let mut kinds: Vec<Vec<&RungResult>> = Vec::new();
    for result in rungs {
        match kinds.iter_mut().find(|kind| kind[0].rung.kind == result.rung.kind) {
            Some(kind) => kind.push(result),
            None => kinds.push(vec![result]),
        }
    }
    kinds
}

fn sensitivity(rungs: &[&RungResult], bins: &[Bin]) -> Sensitivity {
    let smallest_in = |bin: &Bin| {
        let is_found =
            |result: &&&RungResult| result.cells.iter().any(|cell| cell.bin == *bin && cell.detection.is_found());
        let weakest = rungs.iter().rev().take_while(is_found).last();
        (*bin, weakest.map(|result| result.rung.strength.clone()))
    };
    Sensitivity { kind: rungs[0].rung.kind.clone(), smallest: bins.iter().map(smallest_in).collect() }
}

fn conclude(clean: &Clean, rungs: &[RungResult]) -> (Proof, Vec<String>) {
    let (mut failures, mut gaps) = (Vec::new(), Vec::new());
    if clean.is_regressed {
        failures.push(format!("`{}` is the baseline itself, and the gate says REGRESSED", clean.arm));
    } else if clean.different > 0 {
        let (different, pairs) = (clean.different, clean.pairs);
        failures.push(format!("`{}` is the baseline itself, and {different} of {pairs} pairs differ", clean.arm));
    } else if !clean.invalid.is_empty() {
        gaps.push(format!("`{}` is INVALID: {}", clean.arm, clean.invalid.join("; ")));
    }
    if clean.pairs == 0 {
        gaps.push(format!("`{}` has no pair with the baseline", clean.arm));
    }
    for kind in kinds(rungs) {
        let Some(strongest) = kind.last().filter(|result| result.rung.must_be_found) else { continue };
        let (kind, strength) = (&strongest.rung.kind, &strongest.rung.strength);
        let has = |wanted: Detection| strongest.cells.iter().any(|cell| cell.detection == wanted);
        if has(Detection::Found) || has(Detection::FoundAsSymptom) {
            continue;
        }
        if has(Detection::NotFound) {
            failures.push(format!("{kind} of {strength} is the strongest of its kind, and no bin shows it"));
        } else if has(Detection::Invalid) {
            gaps.push(format!("{kind} of {strength} is INVALID: {}", strongest.invalid.join("; ")));
        } else {
            gaps.push(format!("{kind} of {strength}: no bin has enough right answers to lose"));
        }
    }
    let proof = match (failures.is_empty(), gaps.is_empty()) {
        (false, _) => Proof::Failed,
        (true, false) => Proof::NotMeasured,
        (true, true) => Proof::Passed,
    };
    failures.extend(gaps);
    (proof, failures)
}
