//! `judge(&Comparison, &GatePolicy) → Verdict`: per bin and task group, three-valued and honest.
//!
//! 1. [`validity`]: is this a measurement at all? Else INVALID, and nothing more is said of the arm.
//! 2. [`cells`]: REGRESSED needs a Holm-adjusted p below α over all judged cells of the run *and* a net drop of at least
//!    `min_effect`; PASS needs the upper 95 % limit of the drop below the margin; anything else is INCONCLUSIVE. A cell
//!    without data, or with too few pairs or haystacks, can be neither. A cell with a baseline below the floor, too few
//!    valid items or too many censored pairs cannot PASS, but a drop that is proven in it counts.
//! 3. [`symptoms`]: a symptom that rises significantly, item by item and haystack by haystack, fails the arm whatever its
//!    scores are.
//!
//! 4. [`confirmed`], where the policy asks for it: what would fail the run fails only when it rejects again on fresh seeds.
//! 5. [`findings`]: what no single cell shows, small drops of one sign in every bin and drops that grow with length, is told beside
//!    the verdict and never fails a run by itself.
//!
//! An arm passes only when every critical cell passes, so no correction is needed on that side: one cell that wrongly
//! passes is not enough.

mod cells;
mod confirm;
mod error;
mod findings;
mod overview;
mod policy;
mod replicas;
mod sentence;
mod symptoms;
#[cfg(test)]
mod tests;
mod validity;

use serde::{Deserialize, Serialize};

use crate::compare::{ArmComparison, Comparison, Delta};
use crate::sample::Bin;
use crate::suite::{GatePolicy, TaskGroup, Tier};

pub use confirm::{Confirmation, Suspect, SymptomConfirmation, confirmed, suspects};
pub use error::GateError;
pub use overview::{Overview, OverviewArm, OverviewCell, OverviewRow, overview};
pub use policy::{margin_of_cell, min_effect_of_cell};

/// Judges every candidate.
///
/// # Errors
/// When the policy names a group or bin that the run does not have, or holds a number out of range.
pub fn judge(comparison: &Comparison, policy: &GatePolicy) -> Result<Verdict, GateError> {
    policy::check(comparison, policy)?;
    let cells = cells::judge_cells(comparison, policy);
    let symptoms = symptoms::judge_symptoms(comparison, policy);
    let parts = comparison
        .candidates
        .iter()
        .zip(cells.into_iter().zip(symptoms))
        .map(|(arm, (cells, symptoms))| Parts { invalid: validity::reasons(comparison, policy, arm), cells, symptoms });
    Ok(conclude(comparison, policy, parts.collect()))
}

/// What an arm's ruling follows from.
struct Parts {
    invalid: Vec<String>,
    cells: Vec<CellVerdict>,
    symptoms: Vec<SymptomVerdict>,
}

fn conclude(comparison: &Comparison, policy: &GatePolicy, parts: Vec<Parts>) -> Verdict {
    let findings = findings::findings(comparison, policy);
    let arms: Vec<ArmVerdict> = comparison
        .candidates
        .iter()
        .zip(parts.into_iter().zip(findings))
        .map(|(arm, (parts, findings))| judge_arm(arm, parts, findings))
        .collect();
    let ruling = arms.iter().map(|arm| arm.ruling).max().unwrap_or(Ruling::Inconclusive);
    let sentence = sentence::of_run(comparison, policy, ruling, &arms);
    Verdict { ruling, sentence, arms }
}

fn judge_arm(arm: &ArmComparison, parts: Parts, findings: Vec<String>) -> ArmVerdict {
    let Parts { mut invalid, cells, symptoms } = parts;
    let critical = cells.iter().filter(|cell| cell.tier == Tier::Critical).map(|cell| cell.ruling).max();
    // Nothing to judge is not a pass.
    let judged = critical.unwrap_or(Ruling::Inconclusive);
    let supporting = cells.iter().filter(|cell| cell.tier == Tier::Supporting).map(|cell| match cell.ruling {
        Ruling::Regressed => Ruling::Inconclusive,
        Ruling::Inconclusive => Ruling::Pass,
        ruling => ruling,
    });
    let ruling = if !invalid.is_empty() {
        Ruling::Invalid
    } else if symptoms.iter().any(|symptom| symptom.regressed) {
        Ruling::Regressed
    } else {
        supporting.fold(judged, Ruling::max)
    };
    if ruling == Ruling::Invalid && invalid.is_empty() {
        invalid.extend(cells.iter().filter(|cell| cell.ruling == Ruling::Invalid).map(sentence::missing));
    }
    // A regression is larger than what these find, and would be found again.
    let findings = if ruling == Ruling::Regressed { Vec::new() } else { findings };
    let name = arm.summary.arm.name.clone();
    let mut verdict = ArmVerdict { arm: name, ruling, sentence: String::new(), invalid, cells, symptoms, findings };
    verdict.sentence = sentence::of_arm(arm, &verdict);
    verdict
}

/// What is said of a cell, an arm or a run; the greater the worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Ruling {
    /// The drop is smaller than the margin, with confidence.
    Pass,
    /// Too few pairs to say.
    Inconclusive,
    /// The measurement itself is broken.
    Invalid,
    /// Worse, with confidence. Outranks INVALID: it is a sound statement about an arm that was measured.
    Regressed,
}

/// The judgement of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The worst of the arms: REGRESSED, INVALID, INCONCLUSIVE, PASS.
    pub ruling: Ruling,
    /// One plain sentence with the worst bin and its numbers.
    pub sentence: String,
    /// Per candidate, in the comparison's order.
    pub arms: Vec<ArmVerdict>,
}

/// The judgement of one candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArmVerdict {
    /// Arm name.
    pub arm: String,
    /// The worst of its cells, or INVALID.
    pub ruling: Ruling,
    /// One plain sentence.
    pub sentence: String,
    /// Why the measurement is broken, where it is.
    pub invalid: Vec<String>,
    /// Judged cells.
    pub cells: Vec<CellVerdict>,
    /// Judged symptoms.
    pub symptoms: Vec<SymptomVerdict>,
    /// What no single cell shows, in words: it never fails a run by itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<String>,
}

/// The judgement of one bin × task group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CellVerdict {
    /// Task group.
    pub group: TaskGroup,
    /// Bin.
    pub bin: Bin,
    /// What the ruling does to the run.
    #[serde(default)]
    pub tier: Tier,
    /// The ruling. INVALID where data are required and there are none.
    pub ruling: Ruling,
    /// Holm-adjusted p over the family.
    pub adjusted_p: Option<f64>,
    /// The numbers judged.
    pub delta: Delta,
    /// Baseline accuracy over all its answers is high enough for a PASS to mean something.
    pub has_power: bool,
    /// Pairs that would be needed to say PASS with 80 % probability at the observed flip rate, when INCONCLUSIVE and more
    /// pairs would help.
    pub pairs_needed: Option<u64>,
    /// The cell on fresh seeds, where it was asked again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirmation: Option<Box<Confirmation>>,
    /// Why, in words.
    pub reasons: Vec<String>,
}

/// The judgement of one symptom in one bin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SymptomVerdict {
    /// The symptom and its numbers.
    pub symptom: crate::compare::SymptomDelta,
    /// Holm-adjusted p over all symptoms × bins × arms.
    pub adjusted_p: f64,
    /// Whether it fails the gate.
    pub regressed: bool,
    /// The symptom on fresh seeds, where it was asked again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirmation: Option<Box<SymptomConfirmation>>,
}
