//! What was asked for ([`Arm`]) kept apart from what is in effect ([`Resolved`], each fact an [`Evidence`] with its source).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Key of the setting, and its word in an arm's name.
const CONCURRENCY: &str = "concurrency";

/// One side of a comparison, as asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arm {
    /// Unique in a run and a legal folder name: `bfloat16`, `bfloat16.aa`, `fp8_e4m3`.
    pub name: String,
    /// What part it plays.
    pub role: ArmRole,
    /// vLLM's spelling, or an engine's own name: any string is legal here, the target decides.
    pub kv_cache_dtype: String,
    /// Backend asked for; `None` leaves the choice to the engine.
    pub attention_backend: Option<String>,
    /// Everything else asked of this arm that is not the default, by the name of its option: `kv_scales`, `emulate`, ...
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
}

/// The part an arm plays in a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArmRole {
    /// The 16-bit cache that everything is compared with.
    Baseline,
    /// The baseline once more (A/A): measures the noise.
    Control,
    /// A quantized cache under judgement.
    Candidate,
}

impl Arm {
    /// The baseline with `kv_cache_dtype`.
    pub fn baseline(kv_cache_dtype: &str) -> Self {
        Self::of(kv_cache_dtype.into(), ArmRole::Baseline, kv_cache_dtype)
    }

    /// The A/A control of the baseline.
    pub fn control(kv_cache_dtype: &str) -> Self {
        Self::of(format!("{kv_cache_dtype}.aa"), ArmRole::Control, kv_cache_dtype)
    }

    /// A candidate.
    pub fn candidate(kv_cache_dtype: &str) -> Self {
        Self::of(kv_cache_dtype.into(), ArmRole::Candidate, kv_cache_dtype)
    }

    /// The arm with `concurrency` groups in flight; at another than 1 its name says so.
    #[must_use]
    pub fn at_concurrency(mut self, concurrency: usize) -> Self {
        if concurrency > 1 {
            self.name = format!("{}+{CONCURRENCY}={concurrency}", self.name);
            self.settings.insert(CONCURRENCY.into(), concurrency.to_string());
        }
        self
    }

    /// Groups of items that are asked at once; one where nothing else was asked for.
    pub fn concurrency(&self) -> usize {
        self.settings.get(CONCURRENCY).and_then(|value| value.parse().ok()).filter(|level| *level > 0).unwrap_or(1)
    }

    fn of(name: String, role: ArmRole, kv_cache_dtype: &str) -> Self {
        Self { name, role, kv_cache_dtype: kv_cache_dtype.into(), attention_backend: None, settings: BTreeMap::new() }
    }
}

/// A fact together with where it comes from. "Unknown" is a value: `value` is then `None`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evidence<T> {
    /// The fact; `None` when unknown.
    pub value: Option<T>,
    /// Where it comes from: `embedded engine`, `start-up log line 41`, `/metrics`.
    pub source: String,
}

impl<T> Evidence<T> {
    /// A known fact.
    pub fn known(value: T, source: impl Into<String>) -> Self {
        Self { value: Some(value), source: source.into() }
    }

    /// Not known; `source` says where was looked.
    pub fn unknown(source: impl Into<String>) -> Self {
        Self { value: None, source: source.into() }
    }
}

impl<T> Default for Evidence<T> {
    /// A fact that an older record does not have.
    fn default() -> Self {
        Self::unknown("not recorded")
    }
}

/// An attention backend that was not taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassedOver {
    /// Its name.
    pub backend: String,
    /// Why, in the engine's words: `kv_cache_dtype not supported`.
    pub reasons: Vec<String>,
}

/// What is in effect on a target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resolved {
    /// Engine and version: `kvgauge embedded 0.1.0`.
    pub engine: Evidence<String>,
    /// KV dtype really stored.
    pub kv_cache_dtype: Evidence<String>,
    /// Attention backend really used.
    pub attention_backend: Evidence<String>,
    /// Kernel of the embedded engine, for example `x86_64-bf16-avx512`.
    pub kernel: Evidence<String>,
    /// Bytes of cache per token.
    pub kv_bytes_per_token: Evidence<f64>,
    /// Capacity of the cache in tokens.
    pub kv_cache_tokens: Evidence<u64>,
    /// Scales in use: `none (1.0)`, `dynamic per token and head`.
    pub kv_scales: Evidence<String>,
    /// Longest context the target accepts.
    pub max_model_len: Evidence<u32>,
    /// Backends that would have been taken first, each with the reasons against it.
    #[serde(default)]
    pub backends_passed_over: Evidence<Vec<PassedOver>>,
    /// What the backend computes, in words.
    #[serde(default)]
    pub attention_arithmetic: Evidence<String>,
    /// What each layer stores, in words: `0: bfloat16; 1-29: fp8_e4m3`.
    #[serde(default)]
    pub kv_layers: Evidence<String>,
    /// Blocks of the cache.
    #[serde(default)]
    pub kv_cache_blocks: Evidence<u64>,
    /// Tokens per block.
    #[serde(default)]
    pub kv_block_tokens: Evidence<u32>,
}

impl Resolved {
    /// Nothing is known; `source` says where was looked.
    pub fn unknown(source: &str) -> Self {
        Self {
            engine: Evidence::unknown(source),
            kv_cache_dtype: Evidence::unknown(source),
            attention_backend: Evidence::unknown(source),
            kernel: Evidence::unknown(source),
            kv_bytes_per_token: Evidence::unknown(source),
            kv_cache_tokens: Evidence::unknown(source),
            kv_scales: Evidence::unknown(source),
            max_model_len: Evidence::unknown(source),
            backends_passed_over: Evidence::unknown(source),
            attention_arithmetic: Evidence::unknown(source),
            kv_layers: Evidence::unknown(source),
            kv_cache_blocks: Evidence::unknown(source),
            kv_block_tokens: Evidence::unknown(source),
        }
    }
}

/// Name of the fact that decides whether an arm was treated at all.
pub const KV_CACHE_DTYPE: &str = "kv_cache_dtype";

/// Name of the fact that one process answered a whole arm. Contradicted where the server was started again in between.
pub const SAME_SERVER: &str = "same_server";

/// A fact that was asked for, or that matters without having been asked for, and what was seen of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// `kv_cache_dtype`, `attention_backend`, `max_model_len`, ...
    pub fact: String,
    /// What was asked for; `None` where nothing was.
    pub asked: Option<String>,
    /// What was seen, one entry per source. Sources may disagree.
    pub observed: Vec<Observation>,
    /// What follows.
    pub status: CheckStatus,
}

/// What one source says of a fact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Observation {
    /// The value as the source has it.
    pub value: String,
    /// `start-up log line 41`, `/metrics`, `config.json`, `memory / tokens (start-up log line 41)`.
    pub source: String,
}

/// Whether what was asked for is in effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckStatus {
    /// A source that can know says so, and none says otherwise.
    Confirmed,
    /// A source says otherwise.
    Contradicted,
    /// No source can tell.
    Unknown,
}

impl CheckStatus {
    /// The word in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Confirmed => "confirmed",
            Self::Contradicted => "contradicted",
            Self::Unknown => "unknown",
        }
    }
}

impl Check {
    /// Whether a source says otherwise than was asked for.
    pub fn is_contradicted(&self) -> bool {
        self.status == CheckStatus::Contradicted
    }

    /// With what `later` saw of the same fact: every observation once, and the status that leaves the least to rely on.
    pub fn extend(&mut self, later: Self) {
        for observation in later.observed {
            if !self.observed.contains(&observation) {
                self.observed.push(observation);
            }
        }
        self.status = match (self.status, later.status) {
            (CheckStatus::Contradicted, _) | (_, CheckStatus::Contradicted) => CheckStatus::Contradicted,
            (CheckStatus::Unknown, _) | (_, CheckStatus::Unknown) => CheckStatus::Unknown,
            (CheckStatus::Confirmed, CheckStatus::Confirmed) => CheckStatus::Confirmed,
        };
    }

    /// What was seen, in words: `fp8 (start-up log line 41), auto (/metrics)`.
    pub fn observed_in_words(&self) -> String {
        let one = |it: &Observation| format!("{} ({})", it.value, it.source);
        self.observed.iter().map(one).collect::<Vec<_>>().join(", ")
    }
}

/// One spelling for one dtype of a cache, in lower case. `fp8` is e4m3 wherever an engine takes it; `fnuz` is the same format with
/// another zero.
pub fn canonical_dtype(name: &str) -> String {
    let lower = name.trim().to_ascii_lowercase().replace('-', "_");
    let plain = lower.trim_start_matches("torch.");
    let name = match plain {
        "fp8" | "fp8_e4m3fn" | "fp8_e4m3fnuz" | "float8_e4m3fn" | "float8_e4m3fnuz" => "fp8_e4m3",
        "fp8_e5m2fnuz" | "float8_e5m2" | "float8_e5m2fnuz" => "fp8_e5m2",
        "bf16" => "bfloat16",
        "fp16" | "f16" | "half" => "float16",
        "fp32" | "f32" | "float" => "float32",
        other => other,
    };
    name.to_owned()
}

/// Bits per value without scales, where the name says so. Of `q8_0/q4_0` (keys and values apart) the smaller.
pub fn dtype_bits(name: &str) -> Option<f64> {
    if let Some((keys, values)) = name.split_once('/') {
        return Some(dtype_bits(keys)?.min(dtype_bits(values)?));
    }
    let name = canonical_dtype(name);
    let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    match name.as_str() {
        "float32" => Some(32.0),
        "bfloat16" | "float16" => Some(16.0),
        _ if starts(&["fp8", "int8", "q8_", "mxfp8"]) => Some(8.0),
        _ if starts(&["q5_"]) => Some(5.0),
        _ if starts(&["int4", "q4_", "iq4_", "nvfp4", "fp4", "mxfp4"]) => Some(4.0),
        _ => None,
    }
}

/// What identifies the model that was measured. Equal in every arm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelIdentity {
    /// For people: `SmolLM2-135M-Instruct`.
    pub name: String,
    /// Hash of the weights and of the model's configuration.
    pub weights: String,
    /// Hash of the tokenizer's vocabulary and merges.
    pub tokenizer: String,
    /// Hash of the chat template.
    pub chat_template: String,
    /// RoPE of the bins up to the trained length, and what is done above it.
    pub rope: String,
    /// Context length the model was trained for.
    pub trained_context: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_dtype_has_one_spelling_and_its_bits() {
        for (name, canonical, bits) in [
            ("fp8", "fp8_e4m3", Some(8.0)),
            ("torch.float8_e4m3fnuz", "fp8_e4m3", Some(8.0)),
            ("torch.float8_e5m2", "fp8_e5m2", Some(8.0)),
            ("BF16", "bfloat16", Some(16.0)),
            ("f16", "float16", Some(16.0)),
            ("Q8_0", "q8_0", Some(8.0)),
            ("f16/q4_0", "f16/q4_0", Some(4.0)),
            ("auto", "auto", None),
        ] {
            assert_eq!((canonical_dtype(name).as_str(), dtype_bits(name)), (canonical, bits), "{name}");
        }
    }

    #[test]
    fn a_check_over_several_starts_tells_each_observation_once_and_its_worst_status() {
        let seen = |value: &str, status| Check {
            fact: SAME_SERVER.into(),
            asked: None,
            observed: vec![Observation { value: value.into(), source: "/metrics".into() }],
            status,
        };
        let mut check = seen("rose", CheckStatus::Confirmed);
        check.extend(seen("rose", CheckStatus::Confirmed));
        assert_eq!((check.observed.len(), check.status), (1, CheckStatus::Confirmed));
        check.extend(seen("began anew", CheckStatus::Contradicted));
        check.extend(seen("rose", CheckStatus::Unknown));
        assert_eq!(check.observed_in_words(), "rose (/metrics), began anew (/metrics)");
        assert!(check.is_contradicted());
    }
}
