//! The run record: what is on disk, the waist of the pipeline.
//!
//! A run folder holds `run.json` (the arms that were asked for, the gate in effect) and one directory per arm: `manifest.json` (what was asked, what is in effect, status), `samples.jsonl` (append-only journal,
//! one JSON object + TAB + CRC32C in hex per line) and `events.jsonl`. `confirm/` holds
//! a run folder of its own for each bin that was asked again on fresh seeds. The run folder of a shard has the items of the whole
//! plan in `plan.json`, and [`merge`](self::merge) makes one run folder of all shards. Everything else is derived and can be made again.
//!
//! The rules of the store: one writer at a time (`run.lock`), a whole line or none (a torn last line is cut off when the
//! run is opened again), damage in the middle is set aside and said, never skipped; requests are asked at least once,
//! results count exactly once.

mod error;
#[cfg(test)]
pub(crate) mod fault_injection;
pub(crate) mod journal;
pub mod manifest;
pub mod merge;
mod plan;
mod reader;
pub mod run;
pub mod samples;
pub(crate) mod storage;
mod writer;

pub use error::RecordError;
pub use plan::{read_plan, write_plan};
pub use reader::Record;
pub use run::RunFile;
pub use writer::{Done, Opened, RecordWriter};

/// Name of the manifest in a record's folder.
pub const MANIFEST_FILE: &str = "manifest.json";
/// Name of the journal in a record's folder.
pub const SAMPLES_FILE: &str = "samples.jsonl";
/// Name of the event log in a record's folder.
pub const EVENTS_FILE: &str = "events.jsonl";
/// Name of the plan in a run folder.
pub const RUN_FILE: &str = "run.json";
/// Name of the file with the items of the whole plan in the run folder of a shard.
pub const PLAN_FILE: &str = "plan.json";
/// Folder in a run folder with one run folder per bin that was asked again, named like the bin.
pub const CONFIRM_DIR: &str = "confirm";
/// Name of the file that the one writer keeps locked.
pub const LOCK_FILE: &str = "run.lock";
