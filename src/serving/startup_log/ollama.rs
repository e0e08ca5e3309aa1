//! Ollama: its own lines in `key=value` form around those of the llama.cpp that it runs.

use std::sync::LazyLock;

use regex::Regex;

use super::draft::Draft;
use super::{Dialect, LogLine, group, last_start, llama_cpp, note_starts, number, option, pattern};

pub(super) const DIALECT: Dialect = Dialect {
    engine: "ollama",
    signatures: &[
        "OLLAMA_",
        "truncating input prompt",
        "requested context size too large for model",
        "starting ollama",
        "ollama runner",
        "starting runner",
        "starting llama server",
        "starting llama-server",
        "quantized kv cache requested but flash attention",
        "kv cache type not supported by model",
    ],
    marks: &["Ollama", "source=routes.go", "source=sched.go"],
    phrases: &[
        "(version ",
        "--cache-type-k",
        "--kv-cache-type",
        "flash attention",
        "KvSize",
        "KvCacheType",
        "--ctx-size",
    ],
    read,
};

static VERSION: LazyLock<Regex> = LazyLock::new(|| pattern(r"Listening on \S+ \(version ([^)]+)\)"));
static VARIABLE_DTYPE: LazyLock<Regex> = LazyLock::new(|| pattern(r"OLLAMA_KV_CACHE_TYPE[:=]([A-Za-z0-9_]+)"));
static VARIABLE_FLASH: LazyLock<Regex> = LazyLock::new(|| pattern(r"OLLAMA_FLASH_ATTENTION[:=](\w+)"));
static TRUNCATING: LazyLock<Regex> =
    LazyLock::new(|| pattern(r#"truncating input prompt"? limit=(\d+) prompt=(\d+) keep=(\d+) new=(\d+)"#));
static CLAMPED: LazyLock<Regex> =
    LazyLock::new(|| pattern(r#"requested context size too large for model"? num_ctx=(\d+) n_ctx_train=(\d+)"#));
static REFUSED_DTYPE: LazyLock<Regex> = LazyLock::new(|| {
    pattern(
        r#"(?:quantized kv cache requested but flash attention disabled|kv cache type not supported by model|unsupported OLLAMA_KV_CACHE_TYPE)"? type="?(\w*)"#,
    )
});
static REFUSED_FLASH: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"flash attention (?:enabled but )?not supported by (?:gpu|model)"));
static RUNNER_DTYPE: LazyLock<Regex> = LazyLock::new(|| pattern(r"KvCacheType:(\w+)"));
static RUNNER_FLASH: LazyLock<Regex> = LazyLock::new(|| pattern(r"FlashAttention:(\w+)"));
static RUNNER_LENGTH: LazyLock<Regex> = LazyLock::new(|| pattern(r"KvSize:(\d+)"));

fn read(lines: &[LogLine]) -> Draft {
    let mut draft = Draft::default();
    let is_service = |text: &str| text.contains("OLLAMA_") && text.contains("server config");
    let (lines, starts) = last_start(lines, is_service, |text| text.contains("Listening on"));
    note_starts(&mut draft, starts);
    for line in lines {
        asked(line, &mut draft);
        replaced(line, &mut draft);
    }
    // Each model that is loaded gets a runner of its own.
    let is_runner = |text: &str| text.contains("starting ") && (text.contains("runner") || text.contains("llama"));
    let (runner, loads) = last_start(lines, is_runner, is_runner);
    if loads > 1 {
        draft.note(&format!("{loads} models were loaded; the last one is reported"));
    }
    let version = draft.facts.engine_version.take();
    llama_cpp::read_into(runner, &mut draft);
    // The version of the runner is not Ollama's.
    if let Some(build) = draft.facts.engine_version.take() {
        draft.note(&format!("the runner is llama.cpp {build}"));
        draft.sources.remove("engine_version");
    }
    if let Some((line, version)) =
        version.and_then(|version| Some((lines.iter().find(|line| VERSION.is_match(&line.text))?, version)))
    {
        draft.version(&version, line.number);
    }
    for line in lines {
        lengths(line, &mut draft);
    }
    draft
}

fn asked(line: &LogLine, draft: &mut Draft) {
    let text = &line.text;
    if let Some(version) = group(&VERSION, text) {
        draft.version(version, line.number);
    }
    if let Some(dtype) = group(&VARIABLE_DTYPE, text).filter(|name| !name.starts_with("OLLAMA")) {
        draft.requested(dtype, line.number);
    } else if draft.facts.requested_kv_cache_dtype.is_none()
        && let Some(dtype) = option(text, &["--cache-type-k", "--kv-cache-type"]).or_else(|| group(&RUNNER_DTYPE, text))
    {
        draft.requested(dtype, line.number);
    }
    let flash =
        group(&VARIABLE_FLASH, text).or_else(|| option(text, &["--flash-attn"])).or_else(|| group(&RUNNER_FLASH, text));
    if matches!(flash, Some("true" | "1" | "on" | "Enabled")) {
        draft.requested_backend("flash_attn", line.number);
    }
}

fn replaced(line: &LogLine, draft: &mut Draft) {
    let text = &line.text;
    if let Some(found) = REFUSED_DTYPE.captures(text) {
        if draft.facts.requested_kv_cache_dtype.is_none() && !found[1].is_empty() {
            draft.requested(&found[1], line.number);
        }
        draft.fallback(&found[0].replace('"', ""), line.number);
    }
    if let Some(found) = REFUSED_FLASH.find(text) {
        draft.disqualified("flash_attn", vec![found.as_str().to_string()], line.number);
        draft.fallback(found.as_str(), line.number);
    }
    if let Some(found) = CLAMPED.find(text).or_else(|| TRUNCATING.find(text)) {
        draft.fallback(&found.as_str().replace('"', ""), line.number);
    }
}

fn lengths(line: &LogLine, draft: &mut Draft) {
    let text = &line.text;
    if draft.facts.max_model_len.is_none()
        && let Some(length) = group(&RUNNER_LENGTH, text).or_else(|| option(text, &["--ctx-size"])).and_then(number)
    {
        draft.max_model_len(length, line.number);
    }
    if let Some(found) = CLAMPED.captures(text)
        && let Some(length) = number(&found[2])
    {
        draft.max_model_len(length, line.number);
    }
    if let Some(limit) = group(&TRUNCATING, text).and_then(number)
        && draft.facts.max_model_len.is_none()
    {
        draft.max_model_len(limit, line.number);
    }
}
