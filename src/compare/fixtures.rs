//! Records for the tests of comparison and gate.

use std::collections::BTreeMap;

use crate::record::{
    Record,
    manifest::{FORMAT, Manifest, RunStatus},
    samples::SampleRecord,
};
use crate::sample::{Bin, Completion, Fault, FaultKind, FinishReason, Language, Outcome, Score, Timing};
use crate::setup::{Arm, Evidence, ModelIdentity, Resolved};

pub(crate) fn manifest(arm: Arm, planned_items: u64) -> Manifest {
    let dtype = arm.kv_cache_dtype.clone();
    let bytes = if dtype == "bfloat16" { 100.0 } else { 50.0 };
    let mut plan: BTreeMap<String, String> =
        [("suite_hash", "s1"), ("seed", "1")].map(|(k, v)| (k.into(), v.into())).into();
    plan.insert("kv_cache_dtype".into(), dtype.clone());
    Manifest {
        format: FORMAT,
        tool_version: "0.1.0".into(),
        suite: "unit".into(),
        plan,
        plan_hash: format!("hash of {}", arm.name),
        arm,
        model: ModelIdentity {
            name: "model".into(),
            weights: "w".into(),
            tokenizer: "t".into(),
            chat_template: "c".into(),
            rope: "default".into(),
            trained_context: 8192,
        },
        resolved: Resolved {
            engine: Evidence::known("kvgauge embedded 0.1.0".into(), "test"),
            kv_cache_dtype: Evidence::known(dtype, "test"),
            attention_backend: Evidence::known("PAGED".into(), "test"),
            kernel: Evidence::known("portable".into(), "test"),
            kv_bytes_per_token: Evidence::known(bytes, "test"),
            kv_cache_tokens: Evidence::unknown("test"),
            kv_scales: Evidence::unknown("test"),
            max_model_len: Evidence::known(8192, "test"),
            ..Resolved::unknown("test")
        },
        checks: Vec::new(),
        environment: BTreeMap::new(),
        planned_items,
        status: RunStatus::Complete,
        accepted: None,
    }
}

pub(crate) fn sample(task: &str, bin: u32, index: u32, right: bool) -> SampleRecord {
    let answer = if right { "right" } else { "wrong" };
    SampleRecord {
        item_id: format!("{task}-{bin}-{index}"),
        task: task.into(),
        language: Language::En,
        bin: Bin(bin),
        slot_percent: (index % 5 * 25) as u8,
        index,
        haystack_id: format!("hay-{task}-{bin}-{index}"),
        depth_percent: Some(12.5),
        prompt_tokens: bin - 20,
        prompt_hash: format!("prompt-{task}-{bin}-{index}"),
        expected_answer: "right".into(),
        excerpt: "… needle …".into(),
        outcome: if right { Outcome::ValidRight } else { Outcome::ValidWrong },
        score: Some(Score {
            value: if right { 1.0 } else { 0.25 },
            extracted: answer.into(),
            faults: if right { vec![] } else { vec![Fault { kind: FaultKind::NearMiss, note: "one digit".into() }] },
            turn_scores: vec![],
        }),
        findings: vec![],
        completion: Some(Completion {
            text: answer.into(),
            prompt_tokens: bin - 20,
            output_tokens: if right { 2 } else { 4 },
            finish_reason: FinishReason::Stop,
            timing: Timing { ttft_ms: 5.0, latency_ms: 9.0 },
            answer_nll: Some(if right { 0.125 } else { 0.5 }),
            reasoning: None,
            later_answers: Vec::new(),
            answer_tokens: Vec::new(),
        }),
        text_hash: answer.into(),
        truncated: false,
        error: None,
        attempt: 1,
        variant_of: None,
    }
}

/// One record whose item `i` is right where `right[i]`.
pub(crate) fn record(arm: Arm, bin: u32, right: &[bool]) -> Record {
    let samples: Vec<SampleRecord> =
        right.iter().enumerate().map(|(index, right)| sample("needle", bin, index as u32, *right)).collect();
    Record { manifest: manifest(arm, samples.len() as u64), samples }
}

pub(crate) fn base(right: &[bool]) -> Record {
    record(Arm::baseline("bfloat16"), 2048, right)
}

pub(crate) fn arm(right: &[bool]) -> Record {
    record(Arm::candidate("fp8_e4m3"), 2048, right)
}
