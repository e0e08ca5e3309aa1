//! llama.cpp's server, from the forms of 2024 to b11549. Lines on the cache need verbosity 4 in newer builds.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use regex::Regex;

use super::draft::Draft;
use super::{Dialect, LogLine, group, last_start, note_starts, number, option, pattern};

pub(super) const DIALECT: Dialect = Dialect {
    engine: "llama_cpp",
    signatures: &[
        "llama_kv_cache",
        "llama_context: ",
        "llama_init_from_model",
        "llama_new_context_with_model",
        "resolve_fused_ops",
        "sched_reserve: ",
        "llama-server ",
        "n_ctx_slot",
    ],
    marks: &["llama_model_loader", "slot print_timing", "srv  "],
    phrases: &[
        "build: ",
        "build_info",
        "system_info",
        "Flash Attention",
        "attn_rot",
        "attention rotation",
        "n_ctx  ",
        "n_ctx_seq",
        "n_ctx_per_seq",
    ],
    read,
};

static BUILD: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"build_info: *(b?\d+-[0-9a-f]+)|\bbuild(?: =|:) (\d+) \([0-9a-z]+\)"));
static SIZE: LazyLock<Regex> = LazyLock::new(|| {
    pattern(concat!(
        r"(?:size|KV self size) += +([\d.]+) MiB(?: \( *(\d+) cells, *(\d+) layers, *(\d+)(?:/ *(\d+))? seqs\))?,",
        r" K \((\w+)\): +([\d.]+) MiB, V \((\w+)\): +([\d.]+) MiB"
    ))
});
static FLASH: LazyLock<Regex> = LazyLock::new(|| pattern(r"\bflash_attn += (\w+)"));
static FLASH_RESOLVED: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"Flash Attention (?:was auto, set to )?(enabled|disabled)"));
static FLASH_REFUSED: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"Flash Attention.*not supported,? ?.*set to disabled"));
static FLASH_FORCED: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"enabling flash_attn since it is required for quantized V cache"));
static CONTEXT: LazyLock<Regex> = LazyLock::new(|| pattern(r"\bn_ctx += (\d+)"));
static PER_SEQUENCE: LazyLock<Regex> = LazyLock::new(|| pattern(r"\bn_ctx_(?:seq|per_seq|slot) += (\d+)"));
static ROTATION: LazyLock<Regex> = LazyLock::new(|| pattern(r"\b(?:attn|n)_rot_([kv]) = (\d+)"));
static NO_ROTATION: LazyLock<Regex> = LazyLock::new(|| pattern(r"attention rotation force disabled"));
static FAILURE: LazyLock<Regex> = LazyLock::new(|| {
    pattern(concat!(
        r"(?:quantized V cache requires flash_attn|V cache quantization requires flash_attn).*",
        r"|[KV] cache type \w+ with block size \d+ does not divide.*|failed to (?:create|initialize|load) [^.]*"
    ))
});
static REJECTED_TYPE: LazyLock<Regex> = LazyLock::new(|| pattern(r"[KV] cache type (\w+) with block size"));

fn read(lines: &[LogLine]) -> Draft {
    let mut draft = Draft::default();
    let (lines, starts) =
        last_start(lines, |text| BUILD.is_match(text), |text| SIZE.is_match(text) || FAILURE.is_match(text));
    note_starts(&mut draft, starts);
    read_into(lines, &mut draft);
    draft
}

/// The part that Ollama shares, whose runner is a llama.cpp.
pub(super) fn read_into(lines: &[LogLine], draft: &mut Draft) {
    for line in lines {
        if let Some(found) = BUILD.captures(&line.text)
            && let Some(build) = found.get(1).or(found.get(2))
        {
            draft.version(&format!("b{}", build.as_str().trim_start_matches('b')), line.number);
        }
        if line.text.contains("llama-server ") {
            asked(line, draft);
        }
    }
    cache(lines, draft);
    flash_attention(lines, draft);
    length(lines, draft);
    for line in lines {
        if let Some(found) = FAILURE.find(&line.text).filter(|_| draft.facts.kv_cache_dtype.is_none()) {
            draft.note(&format!("the start failed: {}", found.as_str()));
            if let Some(asked) = group(&REJECTED_TYPE, &line.text)
                && draft.facts.requested_kv_cache_dtype.is_none()
            {
                draft.requested(asked, line.number);
            }
        }
    }
    draft.settle();
}

fn asked(line: &LogLine, draft: &mut Draft) {
    let key = option(&line.text, &["--cache-type-k", "-ctk"]);
    let value = option(&line.text, &["--cache-type-v", "-ctv"]);
    if key.is_some() || value.is_some() {
        draft.requested(pair(key.unwrap_or("f16"), value.unwrap_or("f16")), line.number);
    }
    match option(&line.text, &["--flash-attn", "-fa"]) {
        Some("on" | "1" | "true" | "enabled") => draft.requested_backend(ENABLED, line.number),
        Some("off" | "0" | "false" | "disabled") => draft.requested_backend(DISABLED, line.number),
        _ => {}
    }
}

/// The backend with the fused kernel, and the one without.
const ENABLED: &str = "flash_attn";
const DISABLED: &str = "no_flash_attn";

/// One name where keys and values are stored alike.
fn pair(key: &str, value: &str) -> String {
    if key == value { key.into() } else { format!("{key}/{value}") }
}

/// Models with sliding windows have one cache for each kind of layer; the memory adds up, the longer one holds the context.
fn cache(lines: &[LogLine], draft: &mut Draft) {
    let (mut memory, mut caches) = (0.0, 0);
    let mut cells: Option<u64> = None;
    let mut dtypes = BTreeSet::new();
    for (line, found) in lines.iter().flat_map(|line| SIZE.captures_iter(&line.text).map(move |it| (line, it))) {
        memory += number::<f64>(&found[1]).unwrap_or_default();
        caches += 1;
        draft.memory_gib(memory / 1024.0, line.number);
        let dtype = pair(&found[6], &found[8]);
        draft.effective(dtype.as_str(), line.number);
        dtypes.insert(dtype);
        let streams = found.get(5).and_then(|it| number::<u64>(it.as_str())).unwrap_or(1);
        if let Some(own) = found.get(2).and_then(|it| number::<u64>(it.as_str())).map(|it| it * streams.max(1))
            && cells.is_none_or(|known| own > known)
        {
            cells = Some(own);
            draft.tokens(own, line.number);
        }
    }
    if caches > 1 {
        draft.note(&format!("{caches} caches: memory is their sum, tokens are those of the longest"));
    }
    if dtypes.len() > 1 {
        draft.facts.kv_cache_dtype = None;
        draft.sources.remove("kv_cache_dtype");
        draft.note(&format!("caches store different dtypes: {}", dtypes.into_iter().collect::<Vec<_>>().join(", ")));
    }
    for line in lines {
        for found in ROTATION.captures_iter(&line.text).filter(|found| &found[2] != "0") {
            let side = if &found[1] == "k" { "keys" } else { "values" };
            draft.note(&format!("{side} are rotated before they are stored (n_rot = {})", &found[2]));
        }
        if let Some(found) = NO_ROTATION.find(&line.text) {
            draft.note(found.as_str());
        }
    }
}

fn flash_attention(lines: &[LogLine], draft: &mut Draft) {
    let mut asked_auto = false;
    for line in lines {
        if let Some(found) = FLASH_FORCED.find(&line.text) {
            draft.note(found.as_str());
        }
        if let Some(word) = group(&FLASH, &line.text) {
            match word {
                "enabled" | "1" => set_backend(ENABLED, line, draft),
                "disabled" | "0" => set_backend(DISABLED, line, draft),
                _ => asked_auto = true,
            }
        }
        if let Some(found) = FLASH_REFUSED.find(&line.text) {
            set_backend(DISABLED, line, draft);
            draft.disqualified(ENABLED, vec![found.as_str().to_string()], line.number);
            draft.fallback(found.as_str(), line.number);
        } else if let Some(found) = FLASH_RESOLVED.captures(&line.text) {
            set_backend(if &found[1] == "enabled" { ENABLED } else { DISABLED }, line, draft);
            // Left to choose, the server takes it wherever the device can.
            if &found[1] == "disabled" && found[0].contains("was auto") {
                draft.fallback(&found[0], line.number);
            }
        }
    }
    if asked_auto && draft.facts.resolved_backend.is_empty() {
        draft.note("flash attention was left to the server, which did not say what it chose");
    }
}

fn set_backend(name: &str, line: &LogLine, draft: &mut Draft) {
    draft.facts.resolved_backend.clear();
    draft.resolved(name, line.number);
}

/// A request gets a slot's share of the context, unless the slots share one cache.
fn length(lines: &[LogLine], draft: &mut Draft) {
    let mut whole = None;
    let mut share = None;
    for line in lines {
        if let Some(length) = group(&CONTEXT, &line.text).and_then(number::<u32>) {
            whole = Some((length, line.number));
        }
        if let Some(length) = group(&PER_SEQUENCE, &line.text).and_then(number::<u32>) {
            share = Some((length, line.number));
        }
    }
    if let Some((length, line)) = share.or(whole) {
        draft.max_model_len(length, line);
    }
    // The oldest form names no cells: its one cache holds the context.
    if let (None, Some((length, line)), true) = (draft.facts.kv_tokens, whole, draft.facts.kv_cache_dtype.is_some()) {
        draft.tokens(u64::from(length), line);
    }
}
