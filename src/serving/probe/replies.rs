//! How the reply of each endpoint is read. Tolerant: a field that is missing or of another type is not said.

use serde_json::Value;

use crate::serving::facts::ServerFacts;
use crate::serving::http::Reply;
use crate::serving::metrics;
use crate::serving::probe::ServedModel;

/// `owned_by` in the list of models, and the engine that writes it.
const OWNERS: &[(&str, &str)] = &[
    ("vllm", "vllm"),
    ("sglang", "sglang"),
    ("llamacpp", "llama_cpp"),
    ("tensorrt_llm", "tensorrt_llm"),
    ("lmdeploy", "lmdeploy"),
    ("library", "ollama"),
];

pub(super) fn served_model(entry: &Value) -> Option<ServedModel> {
    let length = [whole(entry, "/max_model_len"), whole(entry, "/meta/n_ctx")].into_iter().flatten().next();
    Some(ServedModel { id: text(entry, "/id")?, root: text(entry, "/root"), max_model_len: length.and_then(narrow) })
}

pub(super) fn models(reply: &Reply) -> Option<ServerFacts> {
    let document = reply.json()?;
    let first = document.pointer("/data/0")?;
    let model = served_model(first)?;
    let owner = text(first, "/owned_by").unwrap_or_default();
    let engine = OWNERS.iter().find(|(name, _)| *name == owner).map(|(_, engine)| (*engine).to_owned());
    let mut facts = ServerFacts { engine, max_model_len: model.max_model_len, ..ServerFacts::default() };
    if let Some(trained) = whole(first, "/meta/n_ctx_train") {
        facts.notes.push(format!("trained for {trained} tokens"));
    }
    Some(facts)
}

/// vLLM, SGLang and TensorRT-LLM all have this; which one it is the other endpoints tell.
pub(super) fn version(reply: &Reply) -> Option<ServerFacts> {
    let version = text(&reply.json()?, "/version")?;
    Some(ServerFacts { engine_version: Some(version), ..ServerFacts::default() })
}

/// The Prometheus text format; TensorRT-LLM has a JSON list of its iterations here.
pub(super) fn metrics(reply: &Reply) -> Option<ServerFacts> {
    match reply.json() {
        Some(iterations) => tensorrt_llm_iterations(&iterations),
        None => metrics::facts(&metrics::parse(&reply.text()?)),
    }
}

fn tensorrt_llm_iterations(iterations: &Value) -> Option<ServerFacts> {
    let last = iterations.as_array()?.iter().rev().find_map(|iteration| iteration.get("kvCacheStats"))?;
    let (blocks, size) = (whole(last, "/maxNumBlocks"), whole(last, "/tokensPerBlock"));
    Some(ServerFacts {
        engine: Some("tensorrt_llm".into()),
        kv_blocks: blocks,
        block_size: size.and_then(narrow),
        kv_tokens: blocks.zip(size).and_then(|(blocks, size)| blocks.checked_mul(size)),
        ..ServerFacts::default()
    })
}

/// SGLang's holds what is in effect; vLLM's (in developer mode only) what was asked for.
pub(super) fn server_info(reply: &Reply) -> Option<ServerFacts> {
    let document = reply.json()?;
    match document.get("vllm_config") {
        Some(Value::String(configuration)) => Some(vllm_text(configuration)),
        Some(configuration) => Some(vllm_config(configuration)),
        None => sglang(&document),
    }
}

fn vllm_config(configuration: &Value) -> ServerFacts {
    ServerFacts {
        engine: Some("vllm".into()),
        requested_kv_cache_dtype: text(configuration, "/cache_config/cache_dtype"),
        requested_backend: text(configuration, "/attention_config/backend").map(|name| backend(&name)),
        kv_blocks: whole(configuration, "/cache_config/num_gpu_blocks"),
        block_size: whole(configuration, "/cache_config/block_size").and_then(narrow),
        max_model_len: whole(configuration, "/model_config/max_model_len").and_then(narrow),
        ..ServerFacts::default()
    }
}

/// The same as Python prints it: `..., kv_cache_dtype=fp8, ...`.
fn vllm_text(configuration: &str) -> ServerFacts {
    let value = |name: &str| {
        let behind = configuration.split(&format!("{name}=")).nth(1)?;
        let value = behind.split([',', ')', ' ']).next()?.trim_matches(['\'', '"']);
        (!value.is_empty() && value != "None").then(|| value.to_owned())
    };
    ServerFacts {
        engine: Some("vllm".into()),
        requested_kv_cache_dtype: value("kv_cache_dtype"),
        max_model_len: value("max_seq_len").and_then(|length| length.parse().ok()),
        ..ServerFacts::default()
    }
}

fn sglang(document: &Value) -> Option<ServerFacts> {
    let dtype = text(document, "/kv_cache_dtype")?;
    let states = [document, document.pointer("/internal_states/0").unwrap_or(&Value::Null)];
    let number = |path: &str| states.iter().find_map(|state| whole(state, path));
    let phases = ["/prefill_attention_backend", "/decode_attention_backend"].map(|path| text(document, path));
    let mut facts = ServerFacts {
        engine: Some("sglang".into()),
        engine_version: text(document, "/version"),
        kv_tokens: number("/max_total_num_tokens").or_else(|| number("/memory_usage/token_capacity")),
        block_size: whole(document, "/page_size").and_then(narrow),
        max_model_len: whole(document, "/context_length").and_then(narrow),
        kv_memory_gib: document.pointer("/internal_states/0/memory_usage/kvcache").and_then(Value::as_f64),
        ..ServerFacts::default()
    };
    let whole_backend = text(document, "/attention_backend").filter(|_| phases.iter().any(Option::is_none));
    facts.resolved_backend = phases.into_iter().flatten().chain(whole_backend).collect();
    if let Some(command) = text(document, "/launch_command") {
        facts.requested_kv_cache_dtype = flag(&command, "--kv-cache-dtype");
        facts.requested_backend = flag(&command, "--attention-backend");
    }
    if dtype == "auto" {
        facts.requested_kv_cache_dtype.get_or_insert(dtype);
    } else {
        facts.kv_cache_dtype = Some(dtype);
    }
    Some(facts)
}

/// The value of `--name VALUE` or `--name=VALUE` in a command line.
fn flag(command: &str, name: &str) -> Option<String> {
    let mut words = command.split_whitespace();
    while let Some(word) = words.next() {
        if word == name {
            return words.next().map(str::to_owned);
        }
        if let Some(value) = word.strip_prefix(name).and_then(|rest| rest.strip_prefix('=')) {
            return Some(value.to_owned());
        }
    }
    None
}

pub(super) fn props(reply: &Reply) -> Option<ServerFacts> {
    let document = reply.json()?;
    let slots = whole(&document, "/total_slots")?;
    Some(ServerFacts {
        engine: Some("llama_cpp".into()),
        engine_version: text(&document, "/build_info"),
        max_model_len: whole(&document, "/default_generation_settings/n_ctx").and_then(narrow),
        notes: vec![format!("{slots} requests at a time")],
        ..ServerFacts::default()
    })
}

pub(super) fn slots(reply: &Reply) -> Option<ServerFacts> {
    let document = reply.json()?;
    let length = document.as_array()?.iter().filter_map(|slot| whole(slot, "/n_ctx")).min()?;
    Some(ServerFacts { engine: Some("llama_cpp".into()), max_model_len: narrow(length), ..ServerFacts::default() })
}

pub(super) fn info(reply: &Reply) -> Option<ServerFacts> {
    let document = reply.json()?;
    let is_tgi = text(&document, "/router").is_some_and(|router| router == "text-generation-router");
    if !is_tgi && document.get("max_input_tokens").is_none() {
        return None;
    }
    Some(ServerFacts {
        engine: Some("tgi".into()),
        engine_version: text(&document, "/version"),
        max_model_len: whole(&document, "/max_total_tokens").and_then(narrow),
        notes: whole(&document, "/max_input_tokens")
            .map(|most| format!("prompts up to {most} tokens"))
            .into_iter()
            .collect(),
        ..ServerFacts::default()
    })
}

pub(super) fn ollama_version(reply: &Reply) -> Option<ServerFacts> {
    let version = text(&reply.json()?, "/version")?;
    Some(ServerFacts { engine: Some("ollama".into()), engine_version: Some(version), ..ServerFacts::default() })
}

/// Models in memory, with the context that each was loaded with.
pub(super) fn ollama_running(reply: &Reply) -> Option<ServerFacts> {
    let document = reply.json()?;
    let lengths = document.get("models")?.as_array()?.iter().filter_map(|model| whole(model, "/context_length"));
    let max_model_len = lengths.min().and_then(narrow);
    Some(ServerFacts { engine: Some("ollama".into()), max_model_len, ..ServerFacts::default() })
}

pub(super) fn ollama_model(reply: &Reply) -> Option<ServerFacts> {
    let document = reply.json()?;
    let parameters = text(&document, "/parameters").unwrap_or_default();
    let asked = parameters.lines().find_map(|line| line.trim().strip_prefix("num_ctx")?.trim().parse().ok());
    let info = document.get("model_info").and_then(Value::as_object).into_iter().flatten();
    let trained = info.filter(|(name, _)| name.ends_with(".context_length")).find_map(|(_, value)| value.as_u64());
    Some(ServerFacts {
        engine: Some("ollama".into()),
        max_model_len: asked,
        notes: trained.map(|length| format!("trained for {length} tokens")).into_iter().collect(),
        ..ServerFacts::default()
    })
}

/// `AttentionBackendEnum.FLASHINFER` is how some releases write `FLASHINFER`.
fn backend(name: &str) -> String {
    name.rsplit('.').next().unwrap_or(name).to_owned()
}

fn text(document: &Value, path: &str) -> Option<String> {
    document.pointer(path)?.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

fn whole(document: &Value, path: &str) -> Option<u64> {
    document.pointer(path)?.as_u64()
}

fn narrow(number: u64) -> Option<u32> {
    u32::try_from(number).ok()
}
