//! SGLang 0.3.6 … 0.5.23. From 0.5.15 on the allocation line names the torch dtype: the strongest evidence of any engine.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use regex::{Captures, Regex};

use super::draft::{Draft, of_torch};
use super::{Dialect, LogLine, group, last_start, note_starts, number, option, pattern};

pub(super) const DIALECT: Dialect = Dialect {
    engine: "sglang",
    signatures: &[
        "server_args=ServerArgs(",
        "KV Cache is allocated.",
        "KV Cache VA upper bound.",
        "max_total_num_tokens=",
        "Attention backend not s",
        "Setting attention backend to ",
        "Using hybrid attention backend",
        "sglang.launch_server",
        "Load weight end.",
        "Load weight begin.",
        "Truncating the input.",
        "Using FP8 KV cache but no scaling factors provided",
        "sglang serve",
    ],
    marks: &["Memory pool end."],
    phrases: &[
        "Loaded KV cache scaling factors",
        "KV Cache might lead to an accuracy drop",
        "is only supported",
        "attention backend",
        "Using KV cache dtype",
        "sglang version",
        "SGLang version",
        "not supported on CPU",
        "Scheduler hit an exception",
        "ValueError: ",
        "RuntimeError: ",
        "OutOfMemoryError",
    ],
    read,
};

static ALLOCATED: LazyLock<Regex> = LazyLock::new(|| {
    pattern(concat!(
        r"KV Cache (?:is allocated|VA upper bound)\. (?:dtype: (?P<dtype>torch\.\w+|\w+), )?#tokens: (?P<tokens>[\d,]*\d)",
        r"(?:, K(?: size:)? (?P<k>[\d.]+) GB, V(?: size:)? (?P<v>[\d.]+) GB|, KV(?: size:)? (?P<kv>[\d.]+) GB)?"
    ))
});
static POOL: LazyLock<Regex> = LazyLock::new(|| pattern(r"max_total_num_tokens=(\d+)"));
static CONTEXT: LazyLock<Regex> = LazyLock::new(|| pattern(r"\bcontext_len=(\d+)"));
static DEFAULT_BACKEND: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"Attention backend not (?:specified|set)\. Use (\w+) backend by default"));
static REPLACED: LazyLock<Regex> = LazyLock::new(|| {
    pattern(r"([^\[\];:]*?(?:only supports?|not support|is not)[^;]*); ?Setting attention backend to (\w+)\.?")
});
static SET_BACKEND: LazyLock<Regex> = LazyLock::new(|| pattern(r"[Ss]etting attention backend to (\w+)"));
static HYBRID: LazyLock<Regex> = LazyLock::new(|| {
    pattern(r"Using hybrid attention backend for decode and prefill: decode_backend=(\w+), prefill_backend=(\w+)")
});
static UNIT_SCALES: LazyLock<Regex> = LazyLock::new(|| pattern("Using FP8 KV cache but no scaling factors provided"));
static LOADED_SCALES: LazyLock<Regex> = LazyLock::new(|| pattern(r"Loaded KV cache scaling factors from \S+"));
static ACCURACY: LazyLock<Regex> = LazyLock::new(|| pattern(r"\w+ KV Cache might lead to an accuracy drop!?"));
static TRUNCATED: LazyLock<Regex> = LazyLock::new(|| {
    pattern(
        r"The input \(\d+ tokens\) is longer than the model's context length \((\d+) tokens\)\. Truncating the input\.?",
    )
});
static ARGUMENT_DTYPE: LazyLock<Regex> = LazyLock::new(|| pattern(r"\bkv_cache_dtype='([^']+)'"));
static ARGUMENT_BACKEND: LazyLock<Regex> = LazyLock::new(|| pattern(r"[(\s]attention_backend='([^']+)'"));
static ARGUMENT_PAGE: LazyLock<Regex> = LazyLock::new(|| pattern(r"[(\s]page_size=(\d+)"));
static VERSION: LazyLock<Regex> = LazyLock::new(|| pattern(r"(?i)sglang (?:version|v)[:= ]*v?(\d[0-9A-Za-z.+-]*)"));
static RANK: LazyLock<Regex> = LazyLock::new(|| pattern(r"\[[^\]]*?((?:(?:DP|PP|TP|EP|CP|ATTN_DP)\d+ ?)+)\]"));
static FAILURE: LazyLock<Regex> = LazyLock::new(|| {
    pattern(
        r"(?:ValueError|RuntimeError|[A-Za-z.]*OutOfMemoryError): .*|Scheduler hit an exception.*|--kv-cache-dtype \S+ is not supported on CPU.*",
    )
});

fn read(lines: &[LogLine]) -> Draft {
    let mut draft = Draft::default();
    let (lines, starts) = last_start(
        lines,
        |text| text.contains("server_args=ServerArgs(") || text.contains("Attention backend not s"),
        |text| POOL.is_match(text) && !text.contains("server_args") || FAILURE.is_match(text),
    );
    note_starts(&mut draft, starts);
    for line in lines {
        asked(line, &mut draft);
        backends(line, &mut draft);
        remarks(line, &mut draft);
    }
    allocation(lines, &mut draft);
    failure(lines, &mut draft);
    draft.settle();
    // Scales are loaded after the backend is chosen; where that is not shown the warning may be in what is missing.
    let is_covered = draft.facts.requested_kv_cache_dtype.is_some() || !draft.facts.resolved_backend.is_empty();
    if draft.facts.scale_warning.is_none() && draft.facts.kv_tokens.is_some() && is_covered {
        let line = draft.sources.get("kv_tokens").copied().unwrap_or_default();
        draft.scale_warning(false, line);
    }
    draft
}

fn asked(line: &LogLine, draft: &mut Draft) {
    let text = &line.text;
    if let Some(version) = group(&VERSION, text) {
        draft.version(version, line.number);
    }
    if text.contains("ServerArgs(") {
        if let Some(dtype) = group(&ARGUMENT_DTYPE, text) {
            draft.requested(dtype, line.number);
        }
        // Where the arguments are printed after the choice they hold the choice.
        let asked = group(&ARGUMENT_BACKEND, text).filter(|name| !draft.facts.resolved_backend.contains(*name));
        if let Some(backend) = asked {
            draft.requested_backend(backend, line.number);
        }
        if let Some(size) = group(&ARGUMENT_PAGE, text).and_then(|it| it.parse().ok()) {
            draft.block_size(size, line.number);
        }
    } else if text.contains("sglang.launch_server") || text.contains("sglang serve") {
        if let Some(dtype) = option(text, &["--kv-cache-dtype"]) {
            draft.requested(dtype, line.number);
        }
        if let Some(backend) = option(text, &["--attention-backend"]) {
            draft.requested_backend(backend, line.number);
        }
    }
}

fn backends(line: &LogLine, draft: &mut Draft) {
    let text = &line.text;
    if let Some(name) = group(&DEFAULT_BACKEND, text) {
        draft.resolved(name, line.number);
    }
    if let Some(found) = HYBRID.captures(text) {
        draft.facts.resolved_backend.clear();
        draft.resolved(&found[1], line.number);
        draft.resolved(&found[2], line.number);
        draft.note(&format!("decode on {}, prefill on {}", &found[1], &found[2]));
    }
    if let Some(name) = group(&SET_BACKEND, text) {
        let before = draft.facts.requested_backend.clone();
        draft.facts.resolved_backend.clear();
        draft.resolved(name, line.number);
        if let Some(found) = REPLACED.captures(text) {
            let reason = body(&found[1]);
            let words = body(found.get(0).map_or("", |it| it.as_str()));
            draft.fallback(words, line.number);
            let refused = before.filter(|it| it != name).or_else(|| flash_attention_3(reason));
            if let Some(refused) = refused {
                if draft.facts.requested_backend.is_none() {
                    draft.requested_backend(refused.as_str(), line.number);
                }
                draft.disqualified(refused, vec![reason.to_string()], line.number);
            }
        }
    }
}

/// The sentence without time and level before it.
fn body(text: &str) -> &str {
    let start = text.rfind("] ").map_or(0, |at| at + 2);
    text[start..].trim_start_matches(|it: char| it.is_ascii_digit() || it.is_whitespace())
}

fn flash_attention_3(reason: &str) -> Option<String> {
    reason.starts_with("FlashAttention3").then(|| "fa3".to_string())
}

fn remarks(line: &LogLine, draft: &mut Draft) {
    let text = &line.text;
    if UNIT_SCALES.is_match(text) {
        draft.scale_warning(true, line.number);
    }
    if let Some(found) = LOADED_SCALES.find(text) {
        draft.scale_warning(false, line.number);
        draft.note(found.as_str());
    }
    if let Some(found) = ACCURACY.find(text) {
        draft.note(found.as_str());
    }
    if let Some(found) = TRUNCATED.captures(text) {
        draft.fallback(&found[0], line.number);
        if let Ok(length) = found[1].parse() {
            draft.max_model_len(length, line.number);
        }
    }
}

fn allocation(lines: &[LogLine], draft: &mut Draft) {
    let mut dtypes = BTreeSet::new();
    // A rank with several pools (sliding and full layers, a draft model) prints one line for each.
    let mut memory_by_rank: Vec<(Option<String>, f64)> = Vec::new();
    let mut pools: Option<u64> = None;
    for (line, found) in lines.iter().flat_map(|line| ALLOCATED.captures_iter(&line.text).map(move |it| (line, it))) {
        if let Some(name) = found.name("dtype") {
            dtypes.insert(name.as_str().to_string());
            match of_torch(name.as_str()) {
                Some(dtype) => draft.effective(dtype, line.number),
                None => draft.note(&format!("the cache is stored as {}, which many dtypes are", name.as_str())),
            }
        }
        if let Some(tokens) = number::<u64>(&found["tokens"]).filter(|own| pools.is_none_or(|known| *own < known)) {
            pools = Some(tokens);
            draft.tokens(tokens, line.number);
        }
        if let Some(size) = size_gib(&found) {
            let rank = group(&RANK, &line.text).map(str::to_string);
            match memory_by_rank.iter_mut().find(|(known, _)| *known == rank) {
                Some((_, total)) => *total += size,
                None => memory_by_rank.push((rank, size)),
            }
            let least = memory_by_rank.iter().map(|(_, size)| *size).fold(f64::INFINITY, f64::min);
            draft.memory_gib((least * 100.0).round() / 100.0, line.number);
        }
    }
    if memory_by_rank.len() > 1 {
        draft.note(&format!("{} ranks print their capacity; the smallest is given", memory_by_rank.len()));
    }
    if dtypes.iter().filter_map(|name| of_torch(name)).collect::<BTreeSet<_>>().len() > 1 {
        let names: Vec<&str> = dtypes.iter().map(String::as_str).collect();
        draft.note(&format!("pools store different dtypes: {}", names.join(", ")));
        draft.facts.kv_cache_dtype = None;
        draft.sources.remove("kv_cache_dtype");
    }
    let mut least: Option<u64> = None;
    for line in lines.iter().filter(|line| !line.text.contains("ServerArgs(")) {
        if let Some(tokens) = group(&POOL, &line.text).and_then(number::<u64>)
            && least.is_none_or(|known| tokens < known)
        {
            least = Some(tokens);
            draft.tokens(tokens, line.number);
        }
        if let Some(length) = group(&CONTEXT, &line.text).and_then(number) {
            draft.max_model_len(length, line.number);
        }
    }
}

/// SGLang's GB are GiB.
fn size_gib(found: &Captures<'_>) -> Option<f64> {
    let part = |name| found.name(name).and_then(|it| number::<f64>(it.as_str()));
    part("kv").or_else(|| Some(part("k")? + part("v")?))
}

fn failure(lines: &[LogLine], draft: &mut Draft) {
    if draft.facts.kv_tokens.is_some() {
        return;
    }
    if let Some(found) = lines.iter().find_map(|line| FAILURE.find(&line.text)) {
        draft.note(&format!("the start failed: {}", found.as_str()));
    }
}
