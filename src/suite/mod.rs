//! A suite: tasks × bins × items and the gate policy. `file.rs` mirrors the TOML, [`Suite`] is valid by construction,
//! [`Plan`] is the ordered list of haystack groups that a run has to ask.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::sample::{Bin, Language};
pub use crate::tasks::TaskGroup;

/// A validated suite.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Suite {
    /// A legal folder name.
    pub name: String,
    /// One sentence.
    pub description: String,
    /// Seeds every item.
    pub seed: u64,
    /// Language of the items.
    pub language: Language,
    /// Sorted by length, without duplicates.
    pub bins: Vec<BinPlan>,
    /// In file order; ids are unique.
    pub tasks: Vec<TaskPlan>,
    /// How results are judged.
    pub gate: GatePolicy,
}

/// What a suite asks in one bin.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BinPlan {
    /// The bin.
    pub bin: Bin,
    /// Items per task.
    pub samples: u32,
    /// Tokens of the budget kept free for the answer.
    pub output_reserve: u32,
    /// Questions per haystack.
    pub shared_prefix: u32,
    /// Whether different tasks may share one haystack.
    pub mixed: bool,
    /// Depth slots in percent.
    pub depth_slots: Vec<u8>,
}

/// One task of a suite with its parameters.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TaskPlan {
    /// Task id.
    pub task: String,
    /// Bins it is asked in.
    pub bins: Vec<Bin>,
    /// Items per bin where it differs from the bin's own number.
    pub samples: Option<u32>,
    /// The task's parameters as given (validated by the task).
    pub params: toml::Table,
}

/// How a comparison is judged. Percentages of the file are shares here: 5 points = 0.05.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GatePolicy {
    /// Family-wise error rate over all cells of the run.
    pub alpha: f64,
    /// A smaller net drop never fails.
    pub min_effect: f64,
    /// PASS needs the upper limit of the drop below this.
    pub margin: f64,
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
    /// Exceptions per judged cell: key `group` or `group/bin`, for example `retrieval/32K`.
    pub cells: BTreeMap<String, CellPolicy>,
}

impl Default for GatePolicy {
    fn default() -> Self {
        Self {
            alpha: 0.05,
            min_effect: 0.02,
            margin: 0.05,
            min_pairs: 20,
            min_haystacks: 10,
            baseline_floor: 0.60,
            min_valid_share: 0.98,
            symptom_min_rise: 0.02,
            symptom_min_items: 3,
            cells: BTreeMap::new(),
        }
    }
}

/// Exceptions for one judged cell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CellPolicy {
    /// Replaces `margin` (share).
    pub max_drop: Option<f64>,
    /// Replaces `min_effect` (share).
    pub min_effect: Option<f64>,
    /// `false`: shown, never fails the run.
    pub required: Option<bool>,
}

/// Everything a run has to ask, in order: shortest bin first.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// Items of one group share a haystack and are asked from one prefill.
    pub groups: Vec<GroupSpec>,
}

impl Plan {
    /// Number of items.
    pub fn item_count(&self) -> usize {
        self.groups.iter().map(|group| group.items.len()).sum()
    }
}

/// The recipe of one haystack and its questions; cheap, without text.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GroupSpec {
    /// Identifies the haystack.
    pub haystack_id: String,
    /// The bin.
    pub bin: Bin,
    /// The questions.
    pub items: Vec<ItemSpec>,
}

/// The recipe of one item.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ItemSpec {
    /// See [`crate::sample::Item::item_id`].
    pub item_id: String,
    /// Task id.
    pub task: String,
    /// Depth slot in percent.
    pub slot_percent: u8,
    /// Counts items of one task × bin × slot.
    pub index: u32,
}
