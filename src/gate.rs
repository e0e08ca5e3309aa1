//! `judge(&Comparison, &GatePolicy) → Verdict`: per bin and task group, three-valued and honest.

use serde::{Deserialize, Serialize};

use crate::compare::Delta;
use crate::sample::Bin;
use crate::suite::TaskGroup;

/// What is said of a cell, an arm or a run.
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
}

/// The judgement of one bin × task group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CellVerdict {
    /// Task group.
    pub group: TaskGroup,
    /// Bin.
    pub bin: Bin,
    /// The ruling.
    pub ruling: Ruling,
    /// Holm-adjusted p over the family.
    pub adjusted_p: Option<f64>,
    /// The numbers judged.
    pub delta: Delta,
    /// Baseline accuracy is high enough for an accuracy gate.
    pub has_power: bool,
    /// Pairs that would be needed to say PASS at the observed flip rate, when INCONCLUSIVE.
    pub pairs_needed: Option<u64>,
    /// Why, in words.
    pub reasons: Vec<String>,
}

/// The judgement of one symptom in one bin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SymptomVerdict {
    /// The symptom and its numbers.
    pub symptom: crate::compare::SymptomDelta,
    /// Holm-adjusted p over all symptoms × bins.
    pub adjusted_p: f64,
    /// Whether it fails the gate.
    pub regressed: bool,
}
