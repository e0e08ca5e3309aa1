//! The run record: what is on disk, the waist of the pipeline.
//!
//! One directory per arm: `manifest.json` (what was asked, what is in effect, status), `samples.jsonl` (append-only journal,
//! one JSON object + TAB + CRC32C in hex per line) and `events.jsonl`. Everything else is derived and can be made again.

pub mod manifest;
pub mod samples;

/// One arm's run, read back: what it was and every sample of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The header.
    pub manifest: manifest::Manifest,
    /// The samples, in the journal's order.
    pub samples: Vec<samples::SampleRecord>,
}
