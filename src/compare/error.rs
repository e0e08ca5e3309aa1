//! Why records cannot be compared.

use crate::compare::Mismatch;
use crate::hint::Hint;

/// Why records cannot be compared.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CompareError {
    /// The records are of different measurements.
    #[error("`{arm}` cannot be compared with the baseline `{baseline}`: {}", list(fields))]
    Mismatch {
        /// The arm.
        arm: String,
        /// The baseline's name.
        baseline: String,
        /// Every field that differs.
        fields: Vec<Mismatch>,
    },
    /// The same item was asked with another prompt.
    #[error(
        "{count} items of `{arm}` were asked with another prompt than the baseline's, for example {item_id} of task {task}"
    )]
    Prompts {
        /// The arm.
        arm: String,
        /// Items concerned.
        count: usize,
        /// The first of them.
        item_id: String,
        /// Its task.
        task: String,
    },
    /// Two records of the same item and attempt disagree.
    #[error("`{arm}` holds two different results of attempt {attempt} of item {item_id}")]
    Duplicate {
        /// The arm.
        arm: String,
        /// The item.
        item_id: String,
        /// The attempt.
        attempt: u32,
    },
    /// A number that cannot be what it is said to be.
    #[error("`{arm}`, item {item_id}: {what} is {value}")]
    BadNumber {
        /// The arm.
        arm: String,
        /// The item.
        item_id: String,
        /// Which number.
        what: &'static str,
        /// Its value.
        value: String,
    },
    /// Two arms have one name.
    #[error("two of the records are called `{arm}`")]
    SameName {
        /// The name.
        arm: String,
    },
    /// The record is of one shard of a run.
    #[error("the record of `{arm}` is of shard {shard} of a run, not of the run")]
    Shard {
        /// The arm.
        arm: String,
        /// The shard.
        shard: String,
    },
    /// The baseline holds no sample.
    #[error("the record of `{arm}` holds no sample")]
    NothingMeasured {
        /// The arm.
        arm: String,
    },
}

impl Hint for CompareError {
    fn hints(&self) -> Vec<String> {
        let hint = match self {
            Self::Mismatch { .. } => {
                "measure both arms with the same suite, model and machine, or accept a new baseline"
            }
            Self::Prompts { .. } => {
                "the items were made by different generators or tokenizers: measure both arms again"
            }
            Self::Duplicate { .. } | Self::BadNumber { .. } => "the record is damaged: measure this arm again",
            Self::SameName { .. } => "give every record once; an A/A arm has its own name, for example `bfloat16.aa`",
            Self::Shard { .. } => "merge all shards with `kvgauge merge`, then judge the merged run",
            Self::NothingMeasured { .. } => "run the arm first",
        };
        vec![hint.into()]
    }
}

fn list(fields: &[Mismatch]) -> String {
    let each: Vec<String> = fields
        .iter()
        .map(|field| format!("{} is {} against {}", field.field, field.candidate, field.baseline))
        .collect();
    each.join("; ")
}
