//! Accepted baselines: the 16-bit half of a comparison, measured once and kept with its hash.
//!
//! A store is a folder (`baselines/` of a repository) with two kinds of subfolders. `<hash16>/` is content: the records of the baseline
//! arm and of its A/A repeat, never changed once written, named by what they answer. `<name>/baseline.json` is a pointer: which content
//! stands under the name, since when, and what stood there before. So a baseline moves by one small file, and an old one can be looked
//! up for as long as its folder is kept.
//!
//! The hash covers what decides answers (questions, arm, model, what is in effect, every answer) and no times: the same answers are the
//! same content. Times and machine facts are covered by the sums of the files, and those by a checksum of their own, so that no byte can
//! change unseen. [`adopt`](self::adopt) copies content into a run folder, after [`differences`] found that it is of the same measurement.

mod adopt;
mod content;
mod error;
mod pointer;
mod sealed;
mod store;
#[cfg(test)]
mod tests;

pub use adopt::{FieldDifference, adopt, adopted_manifest, differences};
pub use content::{CONTENT_FILE, Damage, content_files};
pub use error::BaselineError;
pub use pointer::{BinItems, POINTER_FILE, Past, Pointer, default_name};
pub use store::{Acceptance, Baseline, Change, Store, Verified};

/// Where baselines are kept unless another folder is named.
pub const DEFAULT_DIR: &str = "baselines";

/// Digits of the hash that name a folder: no two baselines of a project meet in 64 bits, and a name stays readable.
pub const HASH_DIGITS: usize = 16;
