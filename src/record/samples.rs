//! One line of `samples.jsonl`.

use serde::{Deserialize, Serialize};

use crate::sample::{Bin, Completion, Finding, Language, Outcome, Score};

/// One item's result on one arm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SampleRecord {
    /// Pairs the arms.
    pub item_id: String,
    /// Task id.
    pub task: String,
    /// Language.
    pub language: Language,
    /// Bin.
    pub bin: Bin,
    /// Depth slot asked for.
    pub slot_percent: u8,
    /// Counts items of one task × bin × slot.
    pub index: u32,
    /// The cluster.
    pub haystack_id: String,
    /// Realised depth.
    pub depth_percent: Option<f64>,
    /// Tokens of the prompt as generated.
    pub prompt_tokens: u32,
    /// BLAKE3 of the rendered messages: equal in every arm.
    pub prompt_hash: String,
    /// The canonical right answer.
    pub expected_answer: String,
    /// ±200 tokens around the needle.
    pub excerpt: String,
    /// What became of it.
    pub outcome: Outcome,
    /// Present for the two valid outcomes.
    pub score: Option<Score>,
    /// Symptoms.
    pub findings: Vec<Finding>,
    /// The answer, clipped to [`MAX_TEXT_BYTES`]; `None` when there was an error.
    pub completion: Option<Completion>,
    /// BLAKE3 of the whole answer.
    pub text_hash: String,
    /// Whether `completion.text` was clipped.
    pub truncated: bool,
    /// The error, where there was one.
    pub error: Option<String>,
    /// Counts from 1; a later attempt supersedes an earlier one.
    pub attempt: u32,
}

/// Longest answer text kept in a record: a 2,048-token answer is about 8 KiB, so this loses only runaway output.
pub const MAX_TEXT_BYTES: usize = 256 * 1024;
