//! `/metrics`: the Prometheus text format, what it says of the cache, and the counters that tell whether an arm was disturbed.
//!
//! Engines rename their series; a name is compared without its separator (`vllm:` and `vllm_` are one) and without `_total`. A
//! series that is missing is unknown, never zero.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::serving::facts::ServerFacts;
use crate::serving::http::{Endpoint, EndpointError};

/// Most lines looked at: a server with eight engines and all histograms has about 5,000.
const MAX_LINES: usize = 200_000;
/// Longest line taken: `vllm:cache_config_info` has about 2 KB of labels.
const MAX_LINE_BYTES: usize = 64 * 1024;

/// One value of one series.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Metric {
    /// With `_` for the separator and without `_total`.
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) value: f64,
}

/// Reads a page; lines that are no values are left out.
pub(crate) fn parse(page: &str) -> Vec<Metric> {
    page.lines().take(MAX_LINES).filter(|line| line.len() <= MAX_LINE_BYTES).filter_map(metric).collect()
}

fn metric(line: &str) -> Option<Metric> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    let name_end = line.find(['{', ' ', '\t'])?;
    let (name, rest) = line.split_at(name_end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(inner) => labels(inner)?,
        None => (BTreeMap::new(), rest),
    };
    let value = rest.split_whitespace().next()?.parse::<f64>().ok().filter(|value| value.is_finite())?;
    Some(Metric { name: plain_name(name), labels, value })
}

fn plain_name(name: &str) -> String {
    let name = name.replace(':', "_");
    name.strip_suffix("_total").map(str::to_owned).unwrap_or(name)
}

/// `a="x",b="y\"z"} rest`: the labels and what follows the brace.
fn labels(mut rest: &str) -> Option<(BTreeMap<String, String>, &str)> {
    let mut found = BTreeMap::new();
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(behind) = rest.strip_prefix('}') {
            return Some((found, behind));
        }
        let (name, behind) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut characters = behind.char_indices();
        let end = loop {
            match characters.next()? {
                (at, '"') => break at,
                (_, '\\') => match characters.next()?.1 {
                    'n' => value.push('\n'),
                    other => value.push(other),
                },
                (_, other) => value.push(other),
            }
        };
        found.insert(name.trim().to_owned(), value);
        rest = &behind[end + 1..];
    }
}

/// What a page says of engine and cache; `None` where no known engine wrote it.
pub(crate) fn facts(metrics: &[Metric]) -> Option<ServerFacts> {
    let engine = ENGINES.iter().find(|(prefix, _)| metrics.iter().any(|metric| metric.name.starts_with(prefix)))?.1;
    let mut facts = ServerFacts { engine: Some(engine.to_owned()), ..ServerFacts::default() };
    match engine {
        "vllm" => vllm(metrics, &mut facts),
        "sglang" => sglang(metrics, &mut facts),
        _ => {}
    }
    Some(facts)
}

/// First letters of an engine's series.
const ENGINES: &[(&str, &str)] = &[
    ("vllm_", "vllm"),
    ("sglang_", "sglang"),
    ("llamacpp_", "llama_cpp"),
    ("trtllm_", "tensorrt_llm"),
    ("lmdeploy_", "lmdeploy"),
    ("tgi_", "tgi"),
];

/// The labels of `cache_config_info` are every field of the front process's copy of the configuration, as Python writes
/// them. Its `cache_dtype` is what was configured: the workers may store something else and it does not say so.
fn vllm(metrics: &[Metric], facts: &mut ServerFacts) {
    let Some(info) = metrics.iter().find(|metric| metric.name == "vllm_cache_config_info") else { return };
    let label = |name: &str| info.labels.get(name).map(String::as_str).filter(|value| is_said(value));
    facts.requested_kv_cache_dtype = label("cache_dtype").map(str::to_owned);
    facts.kv_blocks = label("num_gpu_blocks").and_then(|value| value.parse().ok());
    facts.block_size = label("block_size").and_then(|value| value.parse().ok());
    facts.max_concurrency = label("kv_cache_max_concurrency").and_then(|value| value.parse().ok());
    facts.kv_tokens = label("kv_cache_size_tokens").and_then(|value| value.parse().ok());
    let engines = metrics.iter().filter(|metric| metric.name == "vllm_cache_config_info").count();
    if facts.kv_tokens.is_none() && engines == 1 {
        // Not with a sliding window, where layers share blocks; the number of blocks is then no number of tokens.
        let has_window = label("sliding_window").is_some();
        let blocks = facts.kv_blocks.zip(facts.block_size).filter(|_| !has_window);
        facts.kv_tokens = blocks.and_then(|(blocks, size)| blocks.checked_mul(u64::from(size)));
    }
    if let Some(skipped) = label("kv_cache_dtype_skip_layers").filter(|value| *value != "[]" && *value != "()") {
        facts.notes.push(format!("layers kept at the model's dtype: {skipped}"));
    }
    if let Some(caching) = label("enable_prefix_caching") {
        facts.notes.push(format!("prefix caching {}", if caching == "True" { "on" } else { "off" }));
    }
}

fn is_said(value: &str) -> bool {
    !matches!(value, "None" | "null" | "")
}

fn sglang(metrics: &[Metric], facts: &mut ServerFacts) {
    let value = |name: &str| metrics.iter().find(|metric| metric.name == name).map(|metric| metric.value);
    let whole = |name: &str| value(name).filter(|value| *value >= 1.0).map(|value| value as u64);
    facts.kv_tokens = whole("sglang_max_total_num_tokens");
    facts.block_size = whole("sglang_page_size").and_then(|size| u32::try_from(size).ok());
    facts.max_model_len = whole("sglang_context_len").and_then(|length| u32::try_from(length).ok());
    facts.kv_memory_gib = value("sglang_kv_cache_memory_usage_gb").filter(|value| *value > 0.0);
}

/// Counters of a server at one moment, summed over its engines. `None`: it does not count that.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counters {
    /// Requests that lost their place in the cache and were computed again.
    pub preemptions: Option<f64>,
    /// Prompt tokens looked up in the prefix cache.
    pub prefix_cache_queries: Option<f64>,
    /// Prompt tokens found there, so that their keys and values were not computed again.
    pub prefix_cache_hits: Option<f64>,
    /// Prompt tokens of all requests, found in the cache or not.
    pub prompt_tokens: Option<f64>,
    /// Tokens generated.
    pub generation_tokens: Option<f64>,
}

/// Names of each counter, in [`parse`]'s spelling; a page has those of one engine and one version.
const PREEMPTIONS: &[&str] = &["vllm_num_preemptions", "sglang_num_retracted_reqs", "sglang_num_retracted_requests"];
const QUERIES: &[&str] = &["vllm_prefix_cache_queries", "vllm_gpu_prefix_cache_queries"];
const HITS: &[&str] =
    &["vllm_prefix_cache_hits", "vllm_gpu_prefix_cache_hits", "sglang_cached_tokens", "llamacpp_prompt_tokens_cached"];
const PROMPT_TOKENS: &[&str] = &["vllm_prompt_tokens", "sglang_prompt_tokens", "llamacpp_prompt_tokens"];
const GENERATION_TOKENS: &[&str] = &["vllm_generation_tokens", "sglang_generation_tokens", "llamacpp_tokens_predicted"];

impl Counters {
    /// The counters of the server at `endpoint`; all unknown where it has no page of this kind.
    ///
    /// # Errors
    /// As [`Endpoint`]: the server cannot be reached, is silent or sends too much.
    pub async fn read(endpoint: &Endpoint) -> Result<Self, EndpointError> {
        Ok(Self::of_page(&endpoint.get("/metrics").await?.text().unwrap_or_default()))
    }

    /// The counters on a page.
    pub fn of_page(page: &str) -> Self {
        Self::of(&parse(page))
    }

    fn of(metrics: &[Metric]) -> Self {
        let sum = |names: &[&str]| {
            names.iter().find_map(|name| {
                let values = metrics.iter().filter(|metric| metric.name == *name).map(|metric| metric.value);
                values.reduce(|sum, value| sum + value)
            })
        };
        // llama.cpp counts a prompt token as processed or as found in the cache, the others as both.
        let found_apart = sum(&["llamacpp_prompt_tokens_cached"]).unwrap_or(0.0);
        Self {
            preemptions: sum(PREEMPTIONS),
            prefix_cache_queries: sum(QUERIES),
            prefix_cache_hits: sum(HITS),
            prompt_tokens: sum(PROMPT_TOKENS).map(|tokens| tokens + found_apart),
            generation_tokens: sum(GENERATION_TOKENS),
        }
    }

    /// What was counted since `earlier`; `None` where tokens went back, which means that the server was started again. Only they
    /// are counters in every engine: some of the others are gauges in some releases.
    pub fn since(&self, earlier: &Self) -> Option<Self> {
        let difference = |now: Option<f64>, then: Option<f64>| Some(now? - then?);
        let risen = |now, then| difference(now, then).filter(|difference| *difference >= 0.0);
        let prompt_tokens = difference(self.prompt_tokens, earlier.prompt_tokens);
        let generation_tokens = difference(self.generation_tokens, earlier.generation_tokens);
        let went_back = [prompt_tokens, generation_tokens].into_iter().flatten().any(|difference| difference < 0.0);
        (!went_back).then(|| Self {
            preemptions: risen(self.preemptions, earlier.preemptions),
            prefix_cache_queries: risen(self.prefix_cache_queries, earlier.prefix_cache_queries),
            prefix_cache_hits: risen(self.prefix_cache_hits, earlier.prefix_cache_hits),
            prompt_tokens,
            generation_tokens,
        })
    }

    /// Share of the prompt tokens that came out of the prefix cache.
    pub fn hit_share(&self) -> Option<f64> {
        let all = self.prefix_cache_queries.or(self.prompt_tokens).filter(|all| *all > 0.0)?;
        Some(self.prefix_cache_hits? / all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VLLM: &str = r#"# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="fp8",enable_prefix_caching="True",engine="0",kv_cache_dtype_skip_layers="['0', '2']",kv_cache_max_concurrency="6.87",kv_cache_size_tokens="899904",num_cpu_blocks="None",num_gpu_blocks="56244",sliding_window="None"} 1.0
vllm:num_preemptions_total{engine="0",model_name="m"} 2.0
vllm:num_preemptions_total{engine="1",model_name="m"} 1.0
vllm:prefix_cache_queries_total{engine="0"} 1000.0
vllm:prefix_cache_hits_total{engine="0"} 250.0
vllm:broken{a="b
vllm:nan NaN
"#;

    #[test]
    fn every_field_of_the_cache_is_a_label() {
        let facts = facts(&parse(VLLM)).unwrap();
        assert_eq!(facts.engine.as_deref(), Some("vllm"));
        assert_eq!(facts.requested_kv_cache_dtype.as_deref(), Some("fp8"));
        assert_eq!(facts.kv_cache_dtype, None, "the front process does not know what the workers store");
        assert_eq!((facts.kv_tokens, facts.kv_blocks, facts.block_size), (Some(899_904), Some(56_244), Some(16)));
        assert!(facts.notes.iter().any(|note| note.contains("['0', '2']")));
    }

    #[test]
    fn what_is_none_is_unknown_and_blocks_make_tokens_where_layers_do_not_share_them() {
        let page = |window: &str| {
            format!("vllm_cache_config_info{{block_size=\"16\",num_gpu_blocks=\"10\",sliding_window=\"{window}\"}} 1")
        };
        let with = |window: &str| facts(&parse(&page(window))).unwrap().kv_tokens;
        assert_eq!((with("None"), with("4096")), (Some(160), None));
        let none = "vllm:cache_config_info{cache_dtype=\"None\",num_gpu_blocks=\"None\"} 1.0";
        let none = facts(&parse(none)).unwrap();
        assert_eq!((none.requested_kv_cache_dtype, none.kv_blocks), (None, None));
    }

    #[test]
    fn counters_are_summed_over_engines_and_a_step_back_is_a_restart() {
        let earlier = Counters::of(&parse(VLLM));
        assert_eq!((earlier.preemptions, earlier.prefix_cache_hits), (Some(3.0), Some(250.0)));
        assert_eq!(earlier.prompt_tokens, None);
        let later = Counters::of(&parse(&VLLM.replace("1000.0", "2000.0").replace("250.0", "350.0")));
        let counted = later.since(&earlier).unwrap();
        assert_eq!((counted.preemptions, counted.hit_share()), (Some(0.0), Some(0.1)));
        // Not every release keeps these as counters, so that they prove nothing by themselves.
        assert_eq!(earlier.since(&later).unwrap().prefix_cache_hits, None);
        let tokens =
            |n: u32| Counters::of_page(&format!("vllm:prompt_tokens_total 9\nvllm:generation_tokens_total {n}\n"));
        assert_eq!(tokens(7).since(&tokens(5)).unwrap().generation_tokens, Some(2.0));
        assert_eq!(tokens(5).since(&tokens(7)), None);
    }

    #[test]
    fn older_names_count_the_same() {
        let old = parse("vllm:gpu_prefix_cache_hits_total 5\nvllm:gpu_prefix_cache_queries_total 10\n");
        assert_eq!(Counters::of(&old).hit_share(), Some(0.5));
        let other = parse("sglang:num_retracted_reqs{model_name=\"m\"} 4\n");
        assert_eq!(Counters::of(&other).preemptions, Some(4.0));
        let apart = parse("llamacpp:prompt_tokens_total 30\nllamacpp:prompt_tokens_cached_total 10\n");
        assert_eq!(Counters::of(&apart).hit_share(), Some(0.25));
    }

    #[test]
    fn escapes_in_labels_are_read() {
        let metrics = parse("a_b{x=\"q\\\"uo\\\\te\\n\", y=\"}\"} 3 1700000000\nfree 1\n nonsense\n");
        assert_eq!(metrics.len(), 2);
        assert_eq!((metrics[0].labels["x"].as_str(), metrics[0].labels["y"].as_str()), ("q\"uo\\te\n", "}"));
        assert_eq!(facts(&metrics), None);
    }
}
