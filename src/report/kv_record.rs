//! The KV quantization record: what engineers keep by hand about a quantized cache, one per candidate.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::gate::{ArmVerdict, Ruling};
use crate::report::page::ReportInput;
use crate::report::timings::BinTimings;
use crate::sample::Bin;
use crate::setup::{Evidence, PassedOver, Resolved};
use crate::suite::TaskGroup;

/// Version of `kv_record.json`. Changelog: 1 first version; 2 `backends_passed_over`, `attention_arithmetic`, `stored_layers`,
/// `settings`, and `blocks` is filled; 3 `baseline_tokens`, `bytes_gain`, `tokens_gain`, and tokens count for the status, too;
/// 4 `baseline_accepted`.
const FORMAT_VERSION: u32 = 4;

/// Names under which a run's environment may say what it ran on, best first.
const HARDWARE_KEYS: [&str; 4] = ["hardware_sku", "gpu", "cpu", "cpu_model"];

/// The fields that hold times; the report shows them in its timing section only.
const TIME_FIELDS: [&str; 3] = ["throughput_before", "throughput_after", "latency_by_bin"];

/// The order of the YAML block: the word that sums it up, what ran, what it gains and what it costs.
const FIELDS: [&str; 22] = [
    "format_version",
    "arm",
    "status",
    "verdict",
    "baseline_accepted",
    "hardware_sku",
    "model_name",
    "kv_cache_dtype",
    "resolved_kv_cache_dtype",
    "attention_backend",
    "resolved_backend",
    "backends_passed_over",
    "attention_arithmetic",
    "settings",
    "scales",
    "stored_layers",
    "context_length_bins",
    "kv_cache_capacity",
    "quality_by_bin",
    "throughput_before",
    "throughput_after",
    "latency_by_bin",
];

/// One candidate's record. `None` is "unknown" and written as `null`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KvRecord {
    /// Version of this document.
    pub format_version: u32,
    /// Arm name.
    pub arm: String,
    /// What it ran on.
    pub hardware_sku: Option<String>,
    /// The model.
    pub model_name: String,
    /// dtype asked for.
    pub kv_cache_dtype: String,
    /// dtype in effect.
    pub resolved_kv_cache_dtype: Option<String>,
    /// Backend asked for; `None` left the choice to the engine.
    pub attention_backend: Option<String>,
    /// Backend in effect.
    pub resolved_backend: Option<String>,
    /// Backends that would have been taken first, with the reasons against them.
    pub backends_passed_over: Option<Vec<PassedOver>>,
    /// What the backend computes.
    pub attention_arithmetic: Option<String>,
    /// What else was asked for.
    pub settings: BTreeMap<String, String>,
    /// What each layer stores.
    pub stored_layers: Option<String>,
    /// Where the baseline is from, where it was not measured in this run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub baseline_accepted: Option<String>,
    /// Bins measured, in tokens.
    pub context_length_bins: Vec<u32>,
    /// Quality, judged per bin.
    pub quality_by_bin: Vec<BinQuality>,
    /// Capacity, apart from quality.
    pub kv_cache_capacity: KvCapacity,
    /// Decode throughput of the baseline, tokens per second.
    pub throughput_before: Vec<BinThroughput>,
    /// Decode throughput of this arm, tokens per second.
    pub throughput_after: Vec<BinThroughput>,
    /// Latencies of this arm.
    pub latency_by_bin: Vec<BinLatency>,
    /// Scales in use.
    pub scales: Option<String>,
    /// The arm's ruling.
    pub verdict: Ruling,
    /// Capacity and quality in one word.
    pub status: KvStatus,
}

/// Quality of one bin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BinQuality {
    /// The bin in tokens.
    pub bin: Bin,
    /// The worst ruling of its groups.
    pub verdict: Ruling,
    /// The judged groups.
    pub groups: Vec<GroupQuality>,
}

/// Quality of one judged cell; differences are shares, negative is worse.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupQuality {
    /// Task group.
    pub group: TaskGroup,
    /// Pairs.
    pub pairs: u64,
    /// Candidate − baseline.
    pub delta: Option<f64>,
    /// 95 % interval of it.
    pub interval: Option<(f64, f64)>,
    /// The ruling.
    pub verdict: Ruling,
}

/// Capacity of the cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KvCapacity {
    /// Blocks, where the engine tells.
    pub blocks: Option<u64>,
    /// Tokens that fit.
    pub tokens: Option<u64>,
    /// Tokens that fit for the baseline.
    pub baseline_tokens: Option<u64>,
    /// Bytes per token of this arm.
    pub bytes_per_token: Option<f64>,
    /// Bytes per token of the baseline.
    pub baseline_bytes_per_token: Option<f64>,
    /// Bytes per token of the baseline ÷ those of this arm.
    pub bytes_gain: Option<f64>,
    /// Tokens that fit ÷ those of the baseline. Comparable only where both had the same memory.
    pub tokens_gain: Option<f64>,
    /// Where the figures come from.
    pub source: String,
}

/// Decode throughput of one bin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BinThroughput {
    /// The bin in tokens.
    pub bin: Bin,
    /// Output tokens per second.
    pub tokens_per_s: Option<f64>,
}

/// Latencies of one bin, medians in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BinLatency {
    /// The bin in tokens.
    pub bin: Bin,
    /// Time to first token.
    pub ttft_ms: Option<f64>,
    /// Time per output token.
    pub tpot_ms: Option<f64>,
}

/// Capacity and quality in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvStatus {
    /// More fits, and every judged cell passes.
    CapacityMetQualityMet,
    /// A judged cell regressed.
    CapacityMetQualityRegressed,
    /// Another backend ran than was asked for, or than the baseline's.
    BackendFallback,
    /// No fewer bytes per token than the baseline, or no more tokens.
    CapacityNotMet,
    /// Neither can be said.
    Inconclusive,
    /// The measurement is broken.
    Invalid,
}

impl KvStatus {
    /// The name used in the record.
    pub fn name(self) -> &'static str {
        match self {
            Self::CapacityMetQualityMet => "capacity_met_quality_met",
            Self::CapacityMetQualityRegressed => "capacity_met_quality_regressed",
            Self::BackendFallback => "backend_fallback",
            Self::CapacityNotMet => "capacity_not_met",
            Self::Inconclusive => "inconclusive",
            Self::Invalid => "invalid",
        }
    }
}

/// The records of all candidates, in the comparison's order.
pub fn kv_records(input: &ReportInput) -> Vec<KvRecord> {
    (0..input.comparison.candidates.len()).map(|candidate| kv_record(input, candidate)).collect()
}

/// The record of one candidate, by its place in the comparison.
fn kv_record(input: &ReportInput, candidate: usize) -> KvRecord {
    let comparison = input.comparison;
    let arm = &comparison.candidates[candidate];
    let summary = &arm.summary;
    let verdict = &input.verdict.arms[candidate];
    let asked = &summary.arm;
    let capacity = capacity(&comparison.baseline.resolved, &summary.resolved);
    let fell_back = arm.confounded.is_some()
        || matches!((&asked.attention_backend, &summary.resolved.attention_backend.value),
            (Some(asked), Some(resolved)) if asked != resolved);
    let timing = |arm: &str| -> Vec<(Bin, Option<BinTimings>)> {
        comparison.bins.iter().map(|bin| (*bin, input.timings.get(arm, *bin).cloned())).collect()
    };
    let throughput = |arm: &str| -> Vec<BinThroughput> {
        let rate = |timings: Option<BinTimings>| timings.and_then(|timings| timings.decode_tokens_per_s);
        timing(arm).into_iter().map(|(bin, timings)| BinThroughput { bin, tokens_per_s: rate(timings) }).collect()
    };
    let status = status(verdict.ruling, fell_back, capacity.is_met());
    KvRecord {
        format_version: FORMAT_VERSION,
        arm: asked.name.clone(),
        hardware_sku: HARDWARE_KEYS.iter().find_map(|key| comparison.environment.get(*key)).cloned(),
        model_name: comparison.model.name.clone(),
        kv_cache_dtype: asked.kv_cache_dtype.clone(),
        resolved_kv_cache_dtype: summary.resolved.kv_cache_dtype.value.clone(),
        attention_backend: asked.attention_backend.clone(),
        resolved_backend: summary.resolved.attention_backend.value.clone(),
        backends_passed_over: summary.resolved.backends_passed_over.value.clone(),
        attention_arithmetic: summary.resolved.attention_arithmetic.value.clone(),
        settings: asked.settings.clone(),
        stored_layers: summary.resolved.kv_layers.value.clone(),
        baseline_accepted: comparison.baseline.accepted.as_ref().map(ToString::to_string),
        context_length_bins: comparison.bins.iter().map(|bin| bin.tokens()).collect(),
        quality_by_bin: quality_by_bin(&comparison.bins, verdict),
        kv_cache_capacity: capacity,
        throughput_before: throughput(&comparison.baseline.arm.name),
        throughput_after: throughput(&asked.name),
        latency_by_bin: timing(&asked.name)
            .into_iter()
            .map(|(bin, timings)| BinLatency {
                bin,
                ttft_ms: timings.as_ref().and_then(|timings| timings.ttft_median_ms),
                tpot_ms: timings.as_ref().and_then(|timings| timings.tpot_median_ms),
            })
            .collect(),
        scales: summary.resolved.kv_scales.value.clone(),
        verdict: verdict.ruling,
        status,
    }
}

fn quality_by_bin(bins: &[Bin], verdict: &ArmVerdict) -> Vec<BinQuality> {
    let of_bin = |bin: Bin| {
        let cells: Vec<_> = verdict.cells.iter().filter(|cell| cell.bin == bin).collect();
        let worst = cells.iter().map(|cell| cell.ruling).max()?;
        let groups = cells
            .into_iter()
            .map(|cell| GroupQuality {
                group: cell.group,
                pairs: cell.delta.pairs,
                delta: cell.delta.delta,
                interval: cell.delta.interval,
                verdict: cell.ruling,
            })
            .collect();
        Some(BinQuality { bin, verdict: worst, groups })
    };
    bins.iter().filter_map(|bin| of_bin(*bin)).collect()
}

fn sources(bytes: &Evidence<f64>, tokens: &Evidence<u64>) -> String {
    if bytes.source == tokens.source { bytes.source.clone() } else { format!("{}; {}", bytes.source, tokens.source) }
}

/// The candidate's capacity beside the baseline's.
fn capacity(baseline: &Resolved, candidate: &Resolved) -> KvCapacity {
    let (bytes, tokens) = (&candidate.kv_bytes_per_token, &candidate.kv_cache_tokens);
    let (baseline_bytes, baseline_tokens) = (baseline.kv_bytes_per_token.value, baseline.kv_cache_tokens.value);
    let ratio = |above: Option<f64>, below: Option<f64>| {
        above.zip(below).filter(|(_, below)| *below > 0.0).map(|(above, below)| above / below)
    };
    let count = |tokens: Option<u64>| tokens.map(|tokens| tokens as f64);
    KvCapacity {
        blocks: candidate.kv_cache_blocks.value,
        tokens: tokens.value,
        baseline_tokens,
        bytes_per_token: bytes.value,
        baseline_bytes_per_token: baseline_bytes,
        bytes_gain: ratio(baseline_bytes, bytes.value),
        tokens_gain: ratio(count(tokens.value), count(baseline_tokens)),
        source: sources(bytes, tokens),
    }
}

impl KvCapacity {
    /// Whether more fits than with the baseline; `None` where nothing is known. Fewer bytes per token are a gain unless fewer
    /// tokens fit all the same; a number of blocks that was set by hand gives equal tokens, which then say nothing.
    fn is_met(&self) -> Option<bool> {
        match (self.bytes_gain, self.tokens_gain) {
            (Some(bytes), Some(tokens)) => Some(bytes > 1.0 && tokens >= 1.0),
            (Some(bytes), None) => Some(bytes > 1.0),
            (None, Some(tokens)) => Some(tokens > 1.0),
            (None, None) => None,
        }
    }
}

/// A regression stands even where the capacity is unknown; a good word needs both halves known.
fn status(ruling: Ruling, fell_back: bool, is_capacity_met: Option<bool>) -> KvStatus {
    match (ruling, is_capacity_met) {
        (Ruling::Invalid, _) => KvStatus::Invalid,
        _ if fell_back => KvStatus::BackendFallback,
        (_, Some(false)) => KvStatus::CapacityNotMet,
        (Ruling::Regressed, _) => KvStatus::CapacityMetQualityRegressed,
        (Ruling::Pass, Some(true)) => KvStatus::CapacityMetQualityMet,
        (Ruling::Pass, None) | (Ruling::Inconclusive, _) => KvStatus::Inconclusive,
    }
}

/// `kv_record.json`: the records of all candidates in one list.
pub fn kv_record_json(input: &ReportInput) -> String {
    let mut text =
        serde_json::to_string_pretty(&kv_records(input)).expect("string keys and plain numbers always serialize");
    text.push('\n');
    text
}

/// A record as YAML; `with_times` chooses between the fields that depend on a clock and all others.
pub(crate) fn yaml(record: &KvRecord, with_times: bool) -> String {
    let mut lines = String::new();
    if let Ok(Value::Object(fields)) = serde_json::to_value(record) {
        let wanted = |name: &str| name == "arm" || TIME_FIELDS.contains(&name) == with_times;
        for name in FIELDS.into_iter().filter(|name| wanted(name)) {
            // What is unknown is there as null; what is not there does not apply.
            if let Some(value) = fields.get(name) {
                write_entry(&mut lines, "", name, value);
            }
        }
    }
    lines
}

/// One entry of a mapping; lists of mappings go down to the last level that fits on a line.
fn write_entry(lines: &mut String, indent: &str, name: &str, value: &Value) {
    match value {
        Value::Object(fields) => {
            lines.push_str(&format!("{indent}{name}:\n"));
            for (name, value) in fields {
                write_entry(lines, &format!("{indent}  "), name, value);
            }
        }
        Value::Array(items) if items.iter().any(Value::is_object) => {
            lines.push_str(&format!("{indent}{name}:\n"));
            for item in items {
                write_item(lines, &format!("{indent}  "), item);
            }
        }
        _ => lines.push_str(&format!("{indent}{name}: {}\n", flow(value))),
    }
}

fn write_item(lines: &mut String, indent: &str, item: &Value) {
    match item {
        Value::Object(fields) if fields.values().any(Value::is_array) && fields.contains_key("groups") => {
            let mut inner = String::new();
            for (name, value) in fields {
                write_entry(&mut inner, &format!("{indent}  "), name, value);
            }
            lines.push_str(&format!("{indent}- {}", inner.trim_start()));
        }
        _ => lines.push_str(&format!("{indent}- {}\n", flow(item))),
    }
}

/// One line of YAML; a string that YAML could read as something else is quoted as in JSON.
fn flow(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let inner: Vec<_> = fields.iter().map(|(name, value)| format!("{name}: {}", flow(value))).collect();
            format!("{{{}}}", inner.join(", "))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(flow).collect::<Vec<_>>().join(", ")),
        Value::String(text) if is_plain(text) => text.clone(),
        Value::Number(number) => number.as_f64().filter(|_| !number.is_u64()).map_or(number.to_string(), short),
        other => other.to_string(),
    }
}

/// Six decimals are finer than any figure here means, and readable.
fn short(number: f64) -> String {
    let rounded = (number * 1e6).round() / 1e6;
    format!("{rounded:?}")
}

fn is_plain(text: &str) -> bool {
    const KEYWORDS: [&str; 8] = ["null", "true", "false", "yes", "no", "on", "off", "y"];
    let lower = text.to_ascii_lowercase();
    text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/'))
        && !KEYWORDS.contains(&lower.as_str())
        && lower != "n"
        && lower != "nan"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_good_status_needs_both_halves_known() {
        let met = Some(true);
        assert_eq!(status(Ruling::Pass, false, met), KvStatus::CapacityMetQualityMet);
        assert_eq!(status(Ruling::Pass, false, None), KvStatus::Inconclusive);
        assert_eq!(status(Ruling::Pass, false, Some(false)), KvStatus::CapacityNotMet);
        assert_eq!(status(Ruling::Pass, true, met), KvStatus::BackendFallback);
        assert_eq!(status(Ruling::Regressed, false, None), KvStatus::CapacityMetQualityRegressed);
        assert_eq!(status(Ruling::Regressed, false, Some(false)), KvStatus::CapacityNotMet);
        assert_eq!(status(Ruling::Invalid, true, met), KvStatus::Invalid);
        assert_eq!(status(Ruling::Inconclusive, false, met), KvStatus::Inconclusive);
    }

    #[test]
    fn capacity_is_gained_by_bytes_and_tokens_together_or_by_the_one_that_is_known() {
        let resolved = |bytes: Option<f64>, tokens: Option<u64>| Resolved {
            kv_bytes_per_token: Evidence { value: bytes, source: "arithmetic".into() },
            kv_cache_tokens: Evidence { value: tokens, source: "start-up log".into() },
            ..Resolved::unknown("nowhere")
        };
        let baseline = resolved(Some(16.0), Some(1000));
        for (bytes, tokens, gains, met) in [
            (Some(8.0), Some(2000), (Some(2.0), Some(2.0)), Some(true)),
            (Some(8.0), Some(1000), (Some(2.0), Some(1.0)), Some(true)),
            // Asked for half the bytes, and yet less fits: not what was asked for is in effect.
            (Some(8.0), Some(990), (Some(2.0), Some(0.99)), Some(false)),
            (Some(16.0), Some(2000), (Some(1.0), Some(2.0)), Some(false)),
            (Some(8.0), None, (Some(2.0), None), Some(true)),
            (None, Some(2000), (None, Some(2.0)), Some(true)),
            (None, Some(1000), (None, Some(1.0)), Some(false)),
            (None, None, (None, None), None),
            (Some(0.0), None, (None, None), None),
        ] {
            let found = capacity(&baseline, &resolved(bytes, tokens));
            assert_eq!(((found.bytes_gain, found.tokens_gain), found.is_met()), (gains, met), "{bytes:?} {tokens:?}");
        }
        assert_eq!(capacity(&resolved(None, Some(0)), &baseline).tokens_gain, None);
    }

    #[test]
    fn lists_of_mappings_are_written_one_mapping_a_line() {
        let mut lines = String::new();
        let bins = serde_json::json!([{"bin": 512, "groups": [{"group": "retrieval", "pairs": 120}]}]);
        write_entry(&mut lines, "", "quality_by_bin", &bins);
        let expected = "quality_by_bin:\n  - bin: 512\n    groups:\n      - {group: retrieval, pairs: 120}\n";
        assert_eq!(lines, expected);
    }

    #[test]
    fn yaml_quotes_what_it_could_read_as_something_else() {
        for (text, written) in [
            ("fp8_e4m3", "fp8_e4m3"),
            ("no", "\"no\""),
            ("1.0", "\"1.0\""),
            ("a: b", "\"a: b\""),
            ("- x", "\"- x\""),
            ("", "\"\""),
            ("x\ny", "\"x\\ny\""),
        ] {
            assert_eq!(flow(&Value::from(text)), written);
        }
        assert_eq!(flow(&Value::from(-0.123_456_78)), "-0.123457");
        assert_eq!(flow(&Value::Null), "null");
    }
}
