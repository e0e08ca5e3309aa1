//! kvgauge finds out, per context-length bin, what a quantized KV cache does to a language model's answers.
//!
//! ```text
//! suites/*.toml ─▶ suite ─▶ Plan ─▶ tasks ─▶ Item ─▶ targets ─▶ Completion ─▶ scorers, detectors ─▶ record
//!                                                                                                     │ the waist
//!                                       report ◀─ gate (Verdict) ◀─ compare (Comparison) ◀────────────┘
//! ```
//!
//! Left of the record everything is slow, random or remote; right of it are pure functions of files on disk.

pub mod hint;
pub mod rng;
mod transport;
pub mod units;

pub mod engine;
pub mod tokenizer;

pub mod model_store;
pub mod sample;
pub mod setup;

pub mod capacity;
pub mod detectors;
pub mod scorers;
pub mod tasks;

pub mod serving;
pub mod suite;
pub mod targets;

pub mod record;

pub mod baseline;

pub mod compare;
pub mod runner;
pub mod stats;

pub mod gate;
pub mod selftest;

pub mod report;
