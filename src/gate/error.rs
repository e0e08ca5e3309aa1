//! Why a policy cannot be applied.

use crate::hint::{Hint, did_you_mean};

/// Why a policy cannot be applied.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GateError {
    /// A group or bin that the run does not have.
    #[error("the gate names `{key}`, but the run has no {what} `{name}`")]
    Unknown {
        /// Key of the policy.
        key: String,
        /// `task group` or `bin`.
        what: &'static str,
        /// The part of the key that is not known.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
    /// A number that no gate can have.
    #[error("the gate's `{key}` is {value}; it has to be {range}")]
    OutOfRange {
        /// Key of the policy.
        key: String,
        /// Its value, in the unit of suite files.
        value: f64,
        /// What is legal, in that unit.
        range: &'static str,
        /// How the key is written.
        example: &'static str,
    },
}

impl Hint for GateError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::Unknown { name, known, .. } => {
                vec![did_you_mean(name, &known.iter().map(String::as_str).collect::<Vec<_>>())]
            }
            Self::OutOfRange { example, .. } => vec![(*example).into()],
        }
    }
}
