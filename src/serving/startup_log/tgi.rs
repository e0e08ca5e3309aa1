//! Text Generation Inference 3.3: lines of the launcher, which passes on those of its server.

use std::sync::LazyLock;

use regex::Regex;

use super::draft::Draft;
use super::{Dialect, LogLine, group, last_start, note_starts, number, option, pattern};

pub(super) const DIALECT: Dialect = Dialect {
    engine: "tgi",
    signatures: &["text-generation-launcher", "KV-cache blocks: ", "Using Attention = ", "Using attention "],
    marks: &["text_generation_launcher", "text_generation_router"],
    phrases: &[
        "Forcing attention to ",
        "isabling prefix caching",
        "Using prefix caching",
        "Using FP8 KV cache scales",
        "Ignoring FP8 KV cache scales",
        "FP8 KV cache is currently only supported",
        "kv_cache_dtype",
        "kv-cache-dtype",
        "Fp8E",
        "max_total_tokens",
        "Setting max batch total tokens",
        "Args {",
        "Shard",
        "RuntimeError: ",
        "ValueError: ",
    ],
    read,
};

static ATTENTION: LazyLock<Regex> = LazyLock::new(|| pattern(r"Using [Aa]ttention(?: =)? (\w+)"));
static FORCED: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"Forcing attention to '(\w+)' because [^.]*?(?:flashinfer|flashdecoding|paged)?[^.]*"));
static REFUSED_BY: LazyLock<Regex> = LazyLock::new(|| pattern(r"not supported by (\w+)"));
static NO_PREFIX_CACHE: LazyLock<Regex> = LazyLock::new(|| pattern(r"Disabling prefix caching because .*"));
static PREFIX_CACHE: LazyLock<Regex> = LazyLock::new(|| pattern(r"Using prefix caching = (?:True|False)"));
static BLOCKS: LazyLock<Regex> = LazyLock::new(|| pattern(r"KV-cache blocks: (\d+), size: (\d+)"));
static TOTAL: LazyLock<Regex> = LazyLock::new(|| pattern(r"Setting max batch total tokens to (\d+)"));
static LENGTH: LazyLock<Regex> = LazyLock::new(|| {
    pattern(r"max_total_tokens: Some\((\d+)\)|Default `max_total_tokens` to (\d+)|max_total_tokens=(\d+)")
});
static SCALES: LazyLock<Regex> = LazyLock::new(|| pattern(r"Using FP8 KV cache scales"));
static IGNORED_SCALES: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"Ignoring FP8 KV cache scales, supported only for .*"));
static ARGUMENT: LazyLock<Regex> = LazyLock::new(|| {
    pattern(r"kv_cache_dtype: (?:Some\(\s*)?(Fp8[A-Za-z0-9]+)|kv_cache_dtype[=:] ?'?(fp8\w+)|^\s*(Fp8E\w+),?$")
});
static VERSION: LazyLock<Regex> = LazyLock::new(|| {
    pattern(r"(?:text-generation-(?:inference|launcher|router)|TGI)[: /]+(?:version )?v?(\d+\.\d+\.\d+\S*)")
});
static FAILURE: LazyLock<Regex> = LazyLock::new(|| {
    pattern(r"FP8 KV cache is currently only supported .*|(?:RuntimeError|ValueError): .*|Shard 0 failed to start.*")
});

fn read(lines: &[LogLine]) -> Draft {
    let mut draft = Draft::default();
    let (lines, starts) =
        last_start(lines, |text| text.contains("Args {"), |text| BLOCKS.is_match(text) || FAILURE.is_match(text));
    note_starts(&mut draft, starts);
    for line in lines {
        asked(line, &mut draft);
        attention(line, &mut draft);
        capacity(line, &mut draft);
        scales(line, &mut draft);
    }
    in_effect(lines, &mut draft);
    draft.settle();
    draft
}

fn asked(line: &LogLine, draft: &mut Draft) {
    let text = &line.text;
    if let Some(version) = group(&VERSION, text) {
        draft.version(version, line.number);
    }
    if let Some(found) = ARGUMENT.captures(text) {
        let name = found.iter().skip(1).flatten().next().map_or("", |it| it.as_str());
        draft.requested(
            if name.starts_with("Fp8E4") {
                "fp8_e4m3fn"
            } else if name.starts_with("Fp8E5") {
                "fp8_e5m2"
            } else {
                name
            },
            line.number,
        );
    }
    if let Some(dtype) = option(text, &["--kv-cache-dtype"]) {
        draft.requested(dtype, line.number);
    }
    if let Some(backend) = text.split("ATTENTION=").nth(1).and_then(|rest| rest.split_whitespace().next()) {
        draft.requested_backend(backend, line.number);
    }
}

fn attention(line: &LogLine, draft: &mut Draft) {
    let text = &line.text;
    if let Some(name) = group(&ATTENTION, text) {
        draft.facts.resolved_backend.clear();
        draft.resolved(name, line.number);
    }
    if let Some(found) = FORCED.captures(text) {
        draft.facts.resolved_backend.clear();
        draft.resolved(&found[1], line.number);
        draft.fallback(&found[0], line.number);
        if let Some(refused) = group(&REFUSED_BY, &found[0]) {
            let reason = found[0].split("because ").nth(1).unwrap_or_default().to_string();
            draft.disqualified(refused, vec![reason], line.number);
        }
    }
    if let Some(found) = NO_PREFIX_CACHE.find(text).or_else(|| PREFIX_CACHE.find(text)) {
        draft.note(found.as_str());
    }
}

fn capacity(line: &LogLine, draft: &mut Draft) {
    let text = &line.text;
    if let Some(found) = BLOCKS.captures(text) {
        let (blocks, size) = (number::<u64>(&found[1]), number::<u32>(&found[2]));
        if let (Some(blocks), Some(size)) = (blocks, size)
            && draft.facts.kv_blocks.is_none_or(|known| blocks <= known)
        {
            draft.blocks(blocks, line.number);
            draft.block_size(size, line.number);
            draft.tokens(blocks * u64::from(size), line.number);
        }
    }
    if let Some(total) = group(&TOTAL, text) {
        draft.note(&format!("a batch holds {total} tokens at most"));
    }
    if let Some(found) = LENGTH.captures(text)
        && let Some(length) = found.iter().skip(1).flatten().find_map(|it| number(it.as_str()))
    {
        draft.max_model_len(length, line.number);
    }
}

fn scales(line: &LogLine, draft: &mut Draft) {
    if SCALES.is_match(&line.text) {
        draft.scale_warning(false, line.number);
        draft.note("scales of the checkpoint are used");
    }
    if let Some(found) = IGNORED_SCALES.find(&line.text) {
        draft.scale_warning(true, line.number);
        draft.note(found.as_str());
    }
}

/// An fp8 dtype that cannot be had is an error, so one that was asked for is in effect once the blocks are there. Without a request a
/// checkpoint's scheme may choose, without a line.
fn in_effect(lines: &[LogLine], draft: &mut Draft) {
    let is_serving = draft.facts.kv_blocks.is_some();
    let failure = lines.iter().find_map(|line| FAILURE.find(&line.text));
    if let Some(found) = failure.filter(|_| !is_serving) {
        return draft.note(&format!("the start failed: {}", found.as_str()));
    }
    match draft.facts.requested_kv_cache_dtype.clone() {
        Some(asked) if is_serving => {
            let line = draft.sources.get("kv_blocks").copied().unwrap_or_default();
            draft.effective(if asked == "fp8_e4m3fn" { "fp8_e4m3" } else { asked.as_str() }, line);
        }
        Some(_) => {}
        None if is_serving => {
            draft.note(
                "no dtype was asked for: a checkpoint's scheme may have chosen e4m3, without a line that says so",
            );
        }
        None => {}
    }
}
