//! [`ServerFacts`]: one reading of a server, whatever it was read from.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize, Serializer};

/// What one source (a log, an endpoint) says of a server. `None` is "not said"; nothing is guessed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerFacts {
    /// `vllm`, `sglang`, `tensorrt_llm`, `llama_cpp`, `lmdeploy`, `tgi`, `ollama`.
    pub engine: Option<String>,
    /// Its version, as it spells it.
    pub engine_version: Option<String>,
    /// KV dtype in effect.
    pub kv_cache_dtype: Option<String>,
    /// KV dtype asked for.
    pub requested_kv_cache_dtype: Option<String>,
    /// Attention backends in effect; more than one where layers or phases differ. In JSON `null`, a string, or a list.
    #[serde(serialize_with = "set_or_one", deserialize_with = "one_or_set")]
    pub resolved_backend: BTreeSet<String>,
    /// Attention backend asked for.
    pub requested_backend: Option<String>,
    /// Backends that could not be taken, with the reasons.
    pub disqualified: BTreeMap<String, Vec<String>>,
    /// Capacity of the cache in tokens.
    pub kv_tokens: Option<u64>,
    /// Capacity of the cache in blocks.
    pub kv_blocks: Option<u64>,
    /// Tokens per block.
    pub block_size: Option<u32>,
    /// Requests of the longest length that fit at once.
    pub max_concurrency: Option<f64>,
    /// Longest context accepted, in tokens.
    pub max_model_len: Option<u32>,
    /// Memory for the cache in GiB.
    pub kv_memory_gib: Option<f64>,
    /// Whether the server warned that it has no scales for a quantized cache.
    pub scale_warning: Option<bool>,
    /// Whether something else than what was asked for is in effect.
    pub fallback: Option<bool>,
    /// Why, in the server's words.
    pub fallback_reasons: Vec<String>,
    /// Anything else that a reader of the measurement should know.
    pub notes: Vec<String>,
}

fn set_or_one<S: Serializer>(set: &BTreeSet<String>, serializer: S) -> Result<S::Ok, S::Error> {
    match (set.len(), set.first()) {
        (1, Some(one)) => serializer.serialize_some(one),
        (0, _) => serializer.serialize_none(),
        _ => set.serialize(serializer),
    }
}

fn one_or_set<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<BTreeSet<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum OneOrSet {
        One(String),
        Set(BTreeSet<String>),
    }
    Ok(match Option::<OneOrSet>::deserialize(deserializer)? {
        None => BTreeSet::new(),
        Some(OneOrSet::One(one)) => BTreeSet::from([one]),
        Some(OneOrSet::Set(set)) => set,
    })
}
