//! Why a policy cannot be applied.

use crate::hint::{Hint, did_you_mean};
use crate::sample::Bin;

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
    /// The policy asks for a confirmation that is not on record.
    #[error("the gate confirms what fails, but {arm} was not asked again at {bin}")]
    Unconfirmed {
        /// The arm that would fail.
        arm: String,
        /// The first bin that is missing.
        bin: Bin,
    },
    /// The confirmation is of another measurement.
    #[error("the confirmation of {arm} at {bin} is of another measurement: {what} is {again} and was {first}")]
    OtherConfirmation {
        /// The arm.
        arm: String,
        /// The bin.
        bin: Bin,
        /// What differs.
        what: String,
        /// Its value in the run.
        first: String,
        /// Its value in the confirmation.
        again: String,
    },
    /// The confirmation asked the items of the run again.
    #[error("the confirmation of {arm} at {bin} has the seed of the run ({seed}): it is no second sample")]
    SameSeed {
        /// The arm.
        arm: String,
        /// The bin.
        bin: Bin,
        /// The seed.
        seed: String,
    },
}

impl Hint for GateError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::Unknown { name, known, .. } => {
                vec![did_you_mean(name, &known.iter().map(String::as_str).collect::<Vec<_>>())]
            }
            Self::OutOfRange { example, .. } => vec![(*example).into()],
            Self::Unconfirmed { .. } => vec![
                "`kvgauge check` with the same options and run folder asks it again, baseline and candidate".into(),
                "without `confirm` in [gate] this run is judged by itself".into(),
            ],
            Self::OtherConfirmation { .. } | Self::SameSeed { .. } => {
                vec!["remove the run's folder `confirm` and start the same `kvgauge check` again".into()]
            }
        }
    }
}
