//! TensorRT-LLM 1.2: lines of the C++ cache manager and of the Python front. No line names an attention backend.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use regex::Regex;

use super::draft::Draft;
use super::{Dialect, LogLine, group, last_start, note_starts, number, option, pattern};

pub(super) const DIALECT: Dialect = Dialect {
    engine: "tensorrt_llm",
    signatures: &["TensorRT-LLM version", "TensorRT LLM version", "trtllm-serve"],
    marks: &["[TensorRT-LLM]", "[TRT-LLM]"],
    phrases: &[
        "max tokens in paged KV cache",
        "KV cache quantization",
        "tokens per block",
        "Number of tokens per block",
        "Adjusted max_seq_len",
        "max_seq_len=",
        "KvCacheConfig(",
        "attn_backend",
        "ValueError: ",
        "RuntimeError: ",
        "OutOfMemoryError",
    ],
    read,
};

static VERSION: LazyLock<Regex> = LazyLock::new(|| pattern(r"TensorRT[- ]LLM version:? *v?([0-9][0-9A-Za-z.+-]*)"));
static BLOCKS: LazyLock<Regex> = LazyLock::new(|| {
    pattern(concat!(
        r"Max KV cache (?:blocks|pages) per sequence: \d+(?: \[window size=(\d+)\])?, tokens per block=(\d+),",
        r" primary blocks=(\d+)(?:, secondary blocks=(\d+))?(?:, max sequence length=(\d+))?"
    ))
});
static TOKENS_PER_BLOCK: LazyLock<Regex> = LazyLock::new(|| pattern(r"Number of tokens per block: (\d+)"));
static ALLOCATED: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"Allocated ([\d.]+) (GiB|MiB|GB|MB) for max tokens in paged KV cache \((\d+)\)"));
static QUANTIZATION: LazyLock<Regex> = LazyLock::new(|| pattern(r#"KV cache quantization set to "([^"]+)""#));
static OVERRIDING: LazyLock<Regex> = LazyLock::new(|| {
    pattern(r#"Overriding checkpoint KV cache quantization "([^"]*)" with llm_args\.KvCacheConfig\.dtype="([^"]+)""#)
});
static ADJUSTED: LazyLock<Regex> = LazyLock::new(|| pattern(r"Adjusted max_seq_len to (\d+)"));
static LENGTH: LazyLock<Regex> = LazyLock::new(|| pattern(r"\bmax_seq_len=(\d+)"));
static ARGUMENT_DTYPE: LazyLock<Regex> = LazyLock::new(|| pattern(r#"KvCacheConfig\([^)]*?\bdtype=['"]([^'"]+)['"]"#));
static ARGUMENT_BACKEND: LazyLock<Regex> =
    LazyLock::new(|| pattern(r#"\battn_backend['"]?[=:] ?['"]([A-Za-z_]+)['"]"#));
static FAILURE: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"(?:ValueError|RuntimeError|[A-Za-z.]*OutOfMemoryError): .*|\[(?:E|ERROR)\] .*"));

fn read(lines: &[LogLine]) -> Draft {
    let mut draft = Draft::default();
    let (lines, starts) =
        last_start(lines, |text| VERSION.is_match(text), |text| ALLOCATED.is_match(text) || FAILURE.is_match(text));
    note_starts(&mut draft, starts);
    for line in lines {
        asked(line, &mut draft);
    }
    capacity(lines, &mut draft);
    length(lines, &mut draft);
    if draft.facts.kv_tokens.is_none()
        && let Some(found) = lines.iter().find_map(|line| FAILURE.find(&line.text))
    {
        draft.note(&format!("the start failed: {}", found.as_str()));
    }
    let classic = lines.iter().any(|line| line.text.contains("TensorRT backend"));
    if classic && draft.facts.kv_cache_dtype.is_none() {
        draft.note("the TensorRT backend ignores KvCacheConfig.dtype: the engine's own dtype is in effect");
    }
    draft.settle();
    draft
}

fn asked(line: &LogLine, draft: &mut Draft) {
    let text = &line.text;
    if let Some(version) = group(&VERSION, text) {
        draft.version(version, line.number);
    }
    if let Some(dtype) = group(&ARGUMENT_DTYPE, text) {
        draft.requested(dtype, line.number);
    }
    if let Some(backend) =
        group(&ARGUMENT_BACKEND, text).or_else(|| option(text, &["--attn_backend", "--attn-backend"]))
    {
        draft.requested_backend(backend, line.number);
    }
    if text.contains("trtllm-serve")
        && let Some(dtype) = option(text, &["--kv_cache_dtype", "--kv-cache-dtype"])
    {
        draft.requested(dtype, line.number);
    }
    if let Some(name) = group(&QUANTIZATION, text) {
        draft.requested(name, line.number);
        match name {
            "auto" => draft.note("KV quantization is the checkpoint's own; the log does not name it"),
            name => draft.effective(name, line.number),
        }
    }
    if let Some(found) = OVERRIDING.captures(text) {
        draft.requested(&found[2], line.number);
        draft.effective(&found[2], line.number);
        draft.note(&found[0]);
    }
}

/// Memory is estimated first and allocated afterwards with the same words: the last lines count.
fn capacity(lines: &[LogLine], draft: &mut Draft) {
    let mut windows = BTreeSet::new();
    let mut derived = None;
    for line in lines {
        if let Some(found) = BLOCKS.captures(&line.text) {
            windows.insert(found.get(1).map(|it| it.as_str().to_string()));
            let (size, blocks) = (number::<u32>(&found[2]), number::<u64>(&found[3]));
            if let (Some(size), Some(blocks)) = (size, blocks) {
                draft.block_size(size, line.number);
                draft.blocks(blocks, line.number);
                derived = Some((blocks * u64::from(size), line.number));
            }
            if let Some(length) = found.get(5).and_then(|it| number(it.as_str())) {
                draft.max_model_len(length, line.number);
            }
            if found.get(4).is_some_and(|it| it.as_str() != "0") {
                draft.note(&format!("{} secondary blocks are in host memory", &found[4]));
            }
        }
        if let Some(size) = group(&TOKENS_PER_BLOCK, &line.text).and_then(number) {
            draft.block_size(size, line.number);
        }
        if let Some(found) = ALLOCATED.captures(&line.text) {
            let unit = if found[2].starts_with('M') { 1024.0 } else { 1.0 };
            if let Some(memory) = number::<f64>(&found[1]) {
                draft.memory_gib(memory / unit, line.number);
            }
            if let Some(tokens) = number(&found[3]) {
                draft.tokens(tokens, line.number);
            }
        }
    }
    if windows.len() > 1 {
        draft.note(&format!("{} windows have pools of their own; the last one's blocks are given", windows.len()));
    } else if draft.facts.kv_tokens.is_none()
        && let Some((tokens, line)) = derived
    {
        draft.tokens(tokens, line);
    }
}

fn length(lines: &[LogLine], draft: &mut Draft) {
    let mut adjusted = None;
    for line in lines {
        if let Some(found) = ADJUSTED.captures(&line.text) {
            draft.fallback(&found[0], line.number);
            adjusted = number(&found[1]).map(|length: u32| (length, line.number)).or(adjusted);
        } else if let Some(length) = group(&LENGTH, &line.text).and_then(number) {
            draft.max_model_len(length, line.number);
        }
    }
    if let Some((length, line)) = adjusted {
        draft.max_model_len(length, line);
    }
}
