//! How results are judged: the policy in effect, in shares. `gate_file.rs` reads it from a `[gate]` table, in points and percent.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a comparison is judged. Percentages of the file are shares here: 5 points = 0.05.
/// It is stored with a run (`run.json`), so another field here is another version there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatePolicy {
    /// Family-wise error rate over all cells of the run.
    pub alpha: f64,
    /// A smaller net drop never fails.
    pub min_effect: f64,
    /// PASS needs the upper limit of the drop below this.
    pub margin: f64,
    /// Largest drop as a share of what the baseline has right, where that is less than `relative_guard_below`. `None`: no limit
    /// of this kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_relative_drop: Option<f64>,
    /// Baseline accuracy below which `max_relative_drop` holds beside the limits in points.
    #[serde(default = "relative_guard_below", skip_serializing_if = "is_usual_guard")]
    pub relative_guard_below: f64,
    /// Pairs below which a cell is not judged.
    pub min_pairs: u32,
    /// Haystacks below which a clustered cell is not judged.
    pub min_haystacks: u32,
    /// Baseline accuracy below which a cell has no power.
    pub baseline_floor: f64,
    /// Least share of valid items per arm.
    pub min_valid_share: f64,
    /// A detector rate has to rise by this much …
    pub symptom_min_rise: f64,
    /// … and by this many items.
    pub symptom_min_items: u32,
    /// Whether what would fail the run is asked again on fresh seeds first, and fails only when it rejects again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub confirm: bool,
    /// Exceptions per judged cell: key `group` or `group/bin`, for example `retrieval/32K`.
    pub cells: BTreeMap<String, CellPolicy>,
}

impl Default for GatePolicy {
    fn default() -> Self {
        Self {
            alpha: 0.05,
            min_effect: 0.02,
            margin: 0.05,
            max_relative_drop: None,
            relative_guard_below: relative_guard_below(),
            min_pairs: 20,
            min_haystacks: 10,
            baseline_floor: 0.60,
            min_valid_share: 0.98,
            symptom_min_rise: 0.02,
            symptom_min_items: 3,
            confirm: false,
            cells: BTreeMap::new(),
        }
    }
}

/// Below a fifth, the usual margins in points are a quarter of all right answers and more.
fn relative_guard_below() -> f64 {
    0.20
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_usual_guard(share: &f64) -> bool {
    *share == relative_guard_below()
}

/// Exceptions for one judged cell; `None` leaves what holds for the run. Shares, as in [`GatePolicy`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CellPolicy {
    /// What the cell's ruling does to the run. Where none is named: [`Tier::Advisory`] if `required` is false, else
    /// [`Tier::Critical`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<Tier>,
    /// Replaces `margin`.
    pub max_drop: Option<f64>,
    /// Replaces `max_relative_drop`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_relative_drop: Option<f64>,
    /// Replaces `relative_guard_below`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relative_guard_below: Option<f64>,
    /// Replaces `min_effect`.
    pub min_effect: Option<f64>,
    /// Replaces `min_pairs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_pairs: Option<u32>,
    /// Replaces `min_haystacks`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_haystacks: Option<u32>,
    /// Replaces `baseline_floor`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub baseline_floor: Option<f64>,
    /// Replaces `min_valid_share` for the items of the cell; that of the whole arm stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_valid_share: Option<f64>,
    /// Whether a run without data in the cell is INVALID (the default), or does not miss it.
    pub required: Option<bool>,
}

/// What the ruling of a cell does to the run, in the words of NVIDIA NeMo Evaluator's gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// A regression fails the run, and the run passes only when the cell does.
    #[default]
    Critical,
    /// A regression keeps the run from passing and does not fail it; that nothing can be said is not held against the run.
    Supporting,
    /// Shown only.
    Advisory,
}

impl Tier {
    /// As written in a file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Supporting => "supporting",
            Self::Advisory => "advisory",
        }
    }
}
