//! Why a baseline cannot be accepted, found or used.

use std::io;
use std::path::{Path, PathBuf};

use crate::baseline::{Damage, FieldDifference};
use crate::hint::{Hint, did_you_mean};
use crate::record::RecordError;
use crate::record::manifest::FormatVersion;

/// Damaged files listed in one message.
const MAX_LISTED: usize = 8;

/// Why a baseline cannot be accepted, found or used.
#[derive(Debug, thiserror::Error)]
pub enum BaselineError {
    /// The name is no folder name, or looks like a hash.
    #[error("`{name}` is no name of a baseline")]
    Name {
        /// The name.
        name: String,
    },
    /// There is no baseline of this name.
    #[error("`{}` holds no baseline `{name}`", dir.display())]
    Unknown {
        /// The name.
        name: String,
        /// The store.
        dir: PathBuf,
        /// Names there are.
        known: Vec<String>,
    },
    /// The run has no arm of this name, or none that is a baseline.
    #[error("`{}` has no arm {}", run.display(), arm.as_ref().map_or("with the role of the baseline".into(), |arm| format!("`{arm}`")))]
    NoArm {
        /// The run folder.
        run: PathBuf,
        /// The arm asked for.
        arm: Option<String>,
        /// Arms there are.
        known: Vec<String>,
    },
    /// The record is not that of the run's plan.
    #[error("the record of arm `{arm}` in `{}` is not the one that its run.json plans", run.display())]
    NotOfPlan {
        /// The run folder.
        run: PathBuf,
        /// The arm.
        arm: String,
    },
    /// An arm is not finished, or has items that ended in an error.
    #[error("arm `{arm}` is not finished: {why}")]
    Unfinished {
        /// The arm.
        arm: String,
        /// What is missing.
        why: String,
    },
    /// The cache is not known to have 16 bits.
    #[error("arm `{arm}` cannot be a baseline: {why}")]
    NotSixteenBits {
        /// The arm.
        arm: String,
        /// What is in effect.
        why: String,
    },
    /// The arm is itself a copy of an accepted baseline.
    #[error("arm `{arm}` was not measured in this run: {accepted}")]
    Copied {
        /// The arm.
        arm: String,
        /// Where its answers are from.
        accepted: String,
    },
    /// Files are not as they were accepted.
    #[error("baseline `{name}` is damaged: {}", listed(damages))]
    Damaged {
        /// The name.
        name: String,
        /// Every file with what is wrong.
        damages: Vec<Damage>,
    },
    /// A sealed document has other bytes than were written.
    #[error("{}: {reason}", path.display())]
    Unsealed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A document is of another version.
    #[error("{} has format {}.{}, this version reads {}.{}", path.display(), found.major, found.minor, known.major, known.minor)]
    Format {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: FormatVersion,
        /// The newest that is read.
        known: FormatVersion,
    },
    /// The baseline is of another measurement.
    #[error(
        "baseline `{name}` ({accepted_at}) is not of the measurement that is asked for:{}",
        one_a_line(differences)
    )]
    Differs {
        /// The name.
        name: String,
        /// When it was accepted.
        accepted_at: String,
        /// Field by field.
        differences: Vec<FieldDifference>,
    },
    /// The run needs the noise of its server, and the baseline does not hold it.
    #[error("baseline `{name}` has no A/A arm, so the noise of its server is not known")]
    NoControl {
        /// The name.
        name: String,
    },
    /// The baseline is older than it may be.
    #[error("baseline `{name}` was accepted {age_days} days ago ({accepted_at}), at most {max_days} are allowed")]
    TooOld {
        /// The name.
        name: String,
        /// When it was accepted.
        accepted_at: String,
        /// Whole days since then.
        age_days: u64,
        /// The limit.
        max_days: u32,
    },
    /// A folder of the store has more entries than are looked at.
    #[error("`{}` has more than {limit} entries", dir.display())]
    TooMany {
        /// The store.
        dir: PathBuf,
        /// The limit.
        limit: usize,
    },
    /// A record cannot be read or written.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The file system failed.
    #[error("{}: {source}", path.display())]
    Storage {
        /// What was being read or written.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
}

impl BaselineError {
    pub(super) fn storage(path: &Path) -> impl Fn(io::Error) -> Self + use<> {
        let path = path.to_path_buf();
        move |source| Self::Storage { path: path.clone(), source }
    }

    /// What is wrong, without the file's name.
    pub(super) fn reason(&self) -> String {
        match self {
            Self::Unsealed { reason, .. } => reason.clone(),
            Self::Storage { source, .. } => source.to_string(),
            other => other.to_string(),
        }
    }
}

fn listed(damages: &[Damage]) -> String {
    let mut text = damages.iter().take(MAX_LISTED).map(ToString::to_string).collect::<Vec<_>>().join("; ");
    if damages.len() > MAX_LISTED {
        text.push_str(&format!("; and {} more", damages.len() - MAX_LISTED));
    }
    text
}

fn one_a_line(differences: &[FieldDifference]) -> String {
    differences.iter().map(|difference| format!("\n  {difference}")).collect()
}

impl Hint for BaselineError {
    fn hints(&self) -> Vec<String> {
        let hint = match self {
            Self::Name { .. } => "letters, digits, `.`, `_` and `-`, at most 96, and not like the 16 digits of a hash",
            Self::Unknown { name, known, .. } if !known.is_empty() => {
                return vec![did_you_mean(name, &known.iter().map(String::as_str).collect::<Vec<_>>())];
            }
            Self::Unknown { .. } => "`kvgauge baseline accept RUN` makes one of the run in that folder",
            Self::NoArm { known, arm: Some(arm), .. } if !known.is_empty() => {
                return vec![did_you_mean(arm, &known.iter().map(String::as_str).collect::<Vec<_>>())];
            }
            Self::NoArm { .. } => {
                "give a run folder (with run.json) or the folder of one arm, or name the arm with `--arm`"
            }
            Self::NotOfPlan { .. } => "measure the arm in a run folder of its own",
            Self::Unfinished { .. } => "the same `kvgauge check` or `run` with this folder asks what is missing",
            Self::NotSixteenBits { .. } => {
                "a baseline has a 16-bit cache that is confirmed: bfloat16, float16, or the engine's own name of it"
            }
            Self::Copied { .. } => "measure it again without `--against`, then accept that run",
            Self::Damaged { .. } | Self::Unsealed { .. } => {
                "restore the files from version control (as bytes: `baselines/** -text` in .gitattributes), or accept a run again"
            }
            Self::Format { .. } => "use the version of kvgauge that wrote it",
            Self::Differs { .. } => {
                "or measure the baseline of this measurement: `kvgauge check` without `--against`, then `kvgauge baseline accept`"
            }
            Self::NoControl { .. } => {
                "accept a run that has an A/A arm, or set `control = false` in [server] and have another A/A arm"
            }
            Self::TooOld { .. } => {
                "measure it again: `kvgauge check` without `--against`, then `kvgauge baseline accept RUN --renew`"
            }
            Self::TooMany { .. } => "remove contents that no name needs any more",
            Self::Record(error) => return error.hints(),
            Self::Storage { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                "a part of the path is missing: name another folder"
            }
            Self::Storage { .. } => "check the disk and who may write there, then start again",
        };
        vec![hint.into()]
    }
}
