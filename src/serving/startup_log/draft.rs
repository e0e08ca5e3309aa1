//! [`Draft`]: facts in the making, each with the line that it was found on.

use std::collections::BTreeMap;

use crate::serving::facts::ServerFacts;

/// Lists of a record are for people; a log that repeats itself does not fill them.
const MAX_ENTRIES: usize = 64;
/// A quoted message is cut here.
const MAX_QUOTED_CHARS: usize = 600;

/// Facts found so far.
#[derive(Debug, Default)]
pub(super) struct Draft {
    pub(super) facts: ServerFacts,
    /// Name of the field → number of the line.
    pub(super) sources: BTreeMap<&'static str, u64>,
}

impl Draft {
    /// `field` was found on `line`; a later line replaces an earlier one.
    pub(super) fn at(&mut self, field: &'static str, line: u64) {
        self.sources.insert(field, line);
    }

    pub(super) fn version(&mut self, version: &str, line: u64) {
        self.facts.engine_version = Some(version.to_string());
        self.at("engine_version", line);
    }

    /// The KV dtype in effect.
    pub(super) fn effective(&mut self, dtype: impl Into<String>, line: u64) {
        self.facts.kv_cache_dtype = Some(dtype.into());
        self.at("kv_cache_dtype", line);
    }

    pub(super) fn requested(&mut self, dtype: impl Into<String>, line: u64) {
        self.facts.requested_kv_cache_dtype = Some(dtype.into());
        self.at("requested_kv_cache_dtype", line);
    }

    pub(super) fn resolved(&mut self, backend: impl Into<String>, line: u64) {
        self.facts.resolved_backend.insert(backend.into());
        self.at("resolved_backend", line);
    }

    pub(super) fn requested_backend(&mut self, backend: impl Into<String>, line: u64) {
        self.facts.requested_backend = Some(backend.into());
        self.at("requested_backend", line);
    }

    pub(super) fn disqualified(&mut self, backend: impl Into<String>, reasons: Vec<String>, line: u64) {
        if self.facts.disqualified.len() >= MAX_ENTRIES {
            return;
        }
        let known = self.facts.disqualified.entry(backend.into()).or_default();
        for reason in reasons {
            push(known, &reason);
        }
        self.at("disqualified", line);
    }

    pub(super) fn tokens(&mut self, tokens: u64, line: u64) {
        self.facts.kv_tokens = Some(tokens);
        self.at("kv_tokens", line);
    }

    pub(super) fn blocks(&mut self, blocks: u64, line: u64) {
        self.facts.kv_blocks = Some(blocks);
        self.at("kv_blocks", line);
    }

    pub(super) fn block_size(&mut self, tokens: u32, line: u64) {
        self.facts.block_size = Some(tokens);
        self.at("block_size", line);
    }

    pub(super) fn max_concurrency(&mut self, requests: f64, line: u64) {
        self.facts.max_concurrency = Some(requests);
        self.at("max_concurrency", line);
    }

    pub(super) fn max_model_len(&mut self, tokens: u32, line: u64) {
        self.facts.max_model_len = Some(tokens);
        self.at("max_model_len", line);
    }

    pub(super) fn memory_gib(&mut self, gib: f64, line: u64) {
        self.facts.kv_memory_gib = Some(gib);
        self.at("kv_memory_gib", line);
    }

    pub(super) fn scale_warning(&mut self, warned: bool, line: u64) {
        self.facts.scale_warning = Some(warned);
        self.at("scale_warning", line);
    }

    /// Something else than what was asked for is in effect, in the server's words.
    pub(super) fn fallback(&mut self, words: &str, line: u64) {
        if self.facts.fallback != Some(true) {
            self.facts.fallback = Some(true);
            self.at("fallback", line);
        }
        push(&mut self.facts.fallback_reasons, words);
    }

    pub(super) fn note(&mut self, text: &str) {
        push(&mut self.facts.notes, text);
    }

    /// Nothing contradicts what was asked for, and what was asked for is known to be in effect.
    pub(super) fn as_asked(&mut self) {
        if self.facts.fallback.is_none() {
            self.facts.fallback = Some(false);
            if let Some(line) = self.sources.get("kv_cache_dtype").copied() {
                self.at("fallback", line);
            }
        }
    }

    /// `auto` asks for nothing, so a quantized cache neither fulfils nor contradicts it; but a reader should know.
    fn note_quantized_auto(&mut self) {
        let facts = &self.facts;
        let is_auto = facts.requested_kv_cache_dtype.as_deref() == Some("auto");
        if is_auto && facts.kv_cache_dtype.as_deref().is_some_and(|effect| !is_float(effect)) {
            self.note("`auto` became a quantized cache: the checkpoint or the model asks for it");
        }
    }

    /// Settles `fallback` for an engine whose only questions are the dtype and a named backend.
    pub(super) fn settle(&mut self) {
        let facts = &self.facts;
        let (Some(asked), Some(effect)) = (&facts.requested_kv_cache_dtype, &facts.kv_cache_dtype) else { return };
        if facts.fallback.is_some() || asked == "auto" && !is_float(effect) {
            return self.note_quantized_auto();
        }
        let dtype_kept = asked == "auto" || is_same_dtype(asked, effect);
        let backend_kept = match &facts.requested_backend {
            None => true,
            Some(_) if facts.resolved_backend.is_empty() => return,
            Some(asked) => facts.resolved_backend.contains(asked),
        };
        if dtype_kept && backend_kept {
            self.as_asked();
        } else if !dtype_kept {
            let words = format!("asked for {asked}, in effect {effect}");
            let line = self.sources.get("kv_cache_dtype").copied().unwrap_or_default();
            self.fallback(&words, line);
        } else {
            let resolved: Vec<&str> = facts.resolved_backend.iter().map(String::as_str).collect();
            let asked = facts.requested_backend.clone().unwrap_or_default();
            let words = format!("asked for {asked}, in effect {}", resolved.join(", "));
            let line = self.sources.get("resolved_backend").copied().unwrap_or_default();
            self.fallback(&words, line);
        }
    }
}

fn push(list: &mut Vec<String>, text: &str) {
    let text: String = text.trim().chars().filter(|it| !it.is_control()).take(MAX_QUOTED_CHARS).collect();
    if list.len() < MAX_ENTRIES && !list.contains(&text) {
        list.push(text);
    }
}

/// 16 and 32 bits: nothing is quantized.
pub(super) fn is_float(dtype: &str) -> bool {
    matches!(plain_dtype(dtype), "bfloat16" | "float16" | "float32")
}

/// Whether two spellings name the same storage. `fp8` is e4m3 wherever it is accepted.
pub(super) fn is_same_dtype(one: &str, other: &str) -> bool {
    plain_dtype(one) == plain_dtype(other)
}

fn plain_dtype(name: &str) -> &str {
    match name {
        "fp8" | "fp8_e4m3fn" | "fp8_e4m3fnuz" => "fp8_e4m3",
        "fp8_e5m2fnuz" => "fp8_e5m2",
        "bf16" => "bfloat16",
        "f16" | "fp16" | "half" => "float16",
        "f32" | "fp32" | "float" => "float32",
        _ => name,
    }
}

/// The name of a torch dtype (`torch.float8_e4m3fn`) as servers spell it in `--kv-cache-dtype`. `torch.uint8` says nothing: every
/// packed format is stored in bytes.
pub(super) fn of_torch(name: &str) -> Option<&str> {
    match name.trim_start_matches("torch.") {
        "float8_e4m3fn" | "float8_e4m3fnuz" | "float8_e4m3" => Some("fp8_e4m3"),
        "float8_e5m2" | "float8_e5m2fnuz" => Some("fp8_e5m2"),
        "float4_e2m1fn_x2" => Some("fp4_e2m1"),
        "half" => Some("float16"),
        "uint8" | "int8" => None,
        other => Some(other),
    }
}
