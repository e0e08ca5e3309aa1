//! Memory, tokens, blocks, the longest request.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use regex::Regex;

use super::{Start, start};
use crate::serving::startup_log::draft::Draft;
use crate::serving::startup_log::{number, pattern};

static TOKENS: LazyLock<Regex> = LazyLock::new(|| pattern(r"(\w+(?: \+ host)?) KV cache size: ([\d,]+) tokens"));
static CONCURRENCY: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"Maximum concurrency for ([\d,]+) tokens per request: ([\d.,]+)x"));
static BLOCKS: LazyLock<Regex> = LazyLock::new(|| pattern(r"# (\w+) blocks: (\d+)(?:, # CPU blocks: \d+)?"));
static OVERRIDDEN_BLOCKS: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"Overriding num_gpu_blocks=\d+ with num_gpu_blocks_override=(\d+)"));
static MEMORY: LazyLock<Regex> = LazyLock::new(|| {
    pattern(concat!(
        r"(?:Available KV cache memory: (-?[\d.]+) GiB|reserved for KV Cache is (-?[\d.]+) ?GiB",
        r"|Explicitly set \(([\d.]+)/[\d.]+\) GiB for KV cache|[Rr]eserved ([\d.]+) GiB memory for KV Cache)"
    ))
});
static AUTO_FIT: LazyLock<Regex> = LazyLock::new(|| {
    pattern(r"Auto-fit max_model_len: reduced from \d+ to (\d+) to fit in available KV cache memory(?: \([^)]*\))?")
});
static USING_LENGTH: LazyLock<Regex> = LazyLock::new(|| pattern(r"Using max model len (\d+)"));
static MULTIPLIED: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"Multiplying the \w+ KV cache size by the \w+ \d+(?:\.\d+)?"));
static NEEDED: LazyLock<Regex> = LazyLock::new(|| {
    pattern(r"available KV cache memory \(([\d.]+) GiB\)(?:.*?estimated maximum model length is (\d+))?")
});

pub(super) fn read(start: &Start<'_>, draft: &mut Draft) {
    tokens(start, draft);
    memory(start, draft);
    length(start, draft);
    if let Some(typed) = &start.typed
        && let Some(size) = typed.block_size
    {
        draft.block_size(size, typed.line);
    }
    derive_tokens(start, draft);
    for (_, found) in start.all(&MULTIPLIED) {
        draft.note(&found[0]);
    }
}

/// Ranks and engines each print their own; a request lives on all ranks, so the smallest counts.
fn tokens(start: &Start<'_>, draft: &mut Draft) {
    let mut printed = 0;
    let mut values = BTreeSet::new();
    for (line, found) in start.all(&TOKENS) {
        let Some(value) = number::<u64>(&found[2]) else { continue };
        printed += 1;
        values.insert(value);
        if draft.facts.kv_tokens.is_none_or(|known| value < known) {
            draft.tokens(value, line.number);
        }
        if !matches!(&found[1], "GPU") {
            draft.note(&format!("the cache is in {} memory", &found[1]));
        }
    }
    for (line, found) in start.all(&CONCURRENCY) {
        let Some(value) = number::<f64>(&found[2]) else { continue };
        if draft.facts.max_concurrency.is_none_or(|known| value < known) {
            draft.max_concurrency(value, line.number);
        }
    }
    if printed > 1 {
        let range = match (values.first(), values.last()) {
            (Some(least), Some(most)) if least != most => format!(" ({least} … {most})"),
            _ => String::new(),
        };
        draft.note(&format!("the capacity is printed {printed} times{range}; the smallest is given"));
    }
    for (line, found) in start.all(&BLOCKS) {
        let Some(value) = number::<u64>(&found[2]) else { continue };
        if draft.facts.kv_blocks.is_none_or(|known| value < known) {
            draft.blocks(value, line.number);
        }
    }
    for (line, found) in start.all(&OVERRIDDEN_BLOCKS) {
        if let Some(value) = number(&found[1]) {
            draft.blocks(value, line.number);
            draft.note(&found[0]);
        }
    }
}

fn memory(start: &Start<'_>, draft: &mut Draft) {
    let mut processes = BTreeSet::new();
    for (line, found) in start.all(&MEMORY) {
        let Some(value) = found.iter().skip(1).flatten().find_map(|it| number::<f64>(it.as_str())) else { continue };
        processes.insert(start::process(&line.text));
        if draft.facts.kv_memory_gib.is_none_or(|known| value < known) {
            draft.memory_gib(value, line.number);
        }
    }
    if processes.len() > 1 {
        draft.note(&format!("{} processes report memory for the cache; the smallest is given", processes.len()));
    }
    for (line, found) in start.all(&NEEDED) {
        if draft.facts.kv_memory_gib.is_none()
            && let Some(value) = number(&found[1])
        {
            draft.memory_gib(value, line.number);
        }
        if let Some(length) = found.get(2) {
            draft.note(&format!("estimated maximum model length: {}", length.as_str()));
        }
    }
}

/// What is fitted to memory last is in effect; the dump was printed before that.
fn length(start: &Start<'_>, draft: &mut Draft) {
    for (line, found) in start.all(&USING_LENGTH) {
        if let Some(value) = number(&found[1]) {
            draft.max_model_len(value, line.number);
        }
    }
    if let Some(dump) = &start.dump
        && let Some(value) = dump.max_seq_len
    {
        draft.max_model_len(value, dump.line);
    }
    for (line, found) in start.all(&CONCURRENCY) {
        let value = number::<u32>(&found[1]);
        if let Some(value) = value.filter(|value| draft.facts.max_model_len != Some(*value)) {
            draft.max_model_len(value, line.number);
        }
    }
    let mut least: Option<u32> = None;
    for (line, found) in start.all(&AUTO_FIT) {
        draft.fallback(&found[0], line.number);
        if let Some(value) = number::<u32>(&found[1]).filter(|value| least.is_none_or(|known| *value < known)) {
            least = Some(value);
            draft.max_model_len(value, line.number);
        }
    }
}

/// Where only blocks are printed, concurrency = blocks · block size / length; printed with two decimals it leaves room for one whole
/// block size at most, and where it leaves one, that is it.
fn derive_tokens(start: &Start<'_>, draft: &mut Draft) {
    let facts = &draft.facts;
    let (Some(blocks), None) = (facts.kv_blocks, facts.kv_tokens) else { return };
    let mut block_size = facts.block_size;
    if block_size.is_none()
        && let (Some(requests), Some(length)) = (facts.max_concurrency, facts.max_model_len)
        && let Some((line, _)) = start.all(&CONCURRENCY).last()
    {
        let size_at = |requests: f64| requests * f64::from(length) / blocks as f64;
        let (least, most) = (size_at(requests - 0.005).ceil(), size_at(requests + 0.005).floor());
        if least == most && least >= 1.0 {
            block_size = Some(least as u32);
            draft.block_size(least as u32, line.number);
            draft.note(&format!("block size {least} follows from blocks, concurrency and length"));
        }
    }
    if let Some(size) = block_size {
        let line = draft.sources.get("kv_blocks").copied().unwrap_or_default();
        draft.tokens(blocks * u64::from(size), line);
    }
}
