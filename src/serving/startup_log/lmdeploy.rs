//! LMDeploy 0.18: the notice of the cache's dtype and the configuration of its cache engine.

use std::sync::LazyLock;

use regex::Regex;

use super::draft::Draft;
use super::{Dialect, LogLine, group, note_starts, number, option, pattern};

pub(super) const DIALECT: Dialect = Dialect {
    engine: "lmdeploy",
    signatures: &["Building CacheEngine with config", "CacheConfig(max_batches=", "quant_policy="],
    marks: &["lmdeploy", "TurboMind"],
    phrases: &[
        "CacheConfig(",
        " KV cache.",
        "invalid quant_policy",
        "please install FlashAttention-3",
        "session_len=",
        "No enough gpu memory",
        "ValueError: ",
        "RuntimeError: ",
        "AssertionError: ",
    ],
    read,
};

static NOTICE: LazyLock<Regex> = LazyLock::new(|| pattern(r"Using ([a-z][a-z0-9_]*) KV cache\."));
static CACHE: LazyLock<Regex> = LazyLock::new(|| pattern(r"\bCacheConfig\((.*)"));
static BLOCK_SIZE: LazyLock<Regex> = LazyLock::new(|| pattern(r"\bblock_size=(\d+)"));
static BLOCKS: LazyLock<Regex> = LazyLock::new(|| pattern(r"\bnum_gpu_blocks=(\d+)"));
static POLICY: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"\bquant_policy=(?:<QuantPolicy\.(\w+): (\d+)>|(\d+)|'?(\w+)'?)"));
static SESSION: LazyLock<Regex> = LazyLock::new(|| pattern(r"\bsession_len=(\d+)"));
static VERSION: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"(?i)lmdeploy(?: version|==| v)[:= ]*(\d+\.\d+[0-9A-Za-z.]*)"));
static FLASH_3: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"For higher performance, please install FlashAttention-3.*"));
static FAILURE: LazyLock<Regex> = LazyLock::new(|| {
    pattern(
        r"(?:ValueError|RuntimeError|AssertionError): .*|invalid quant_policy for TurboMind.*|No enough gpu memory.*",
    )
});

/// Number, name in the enumeration, dtype.
const POLICIES: [(u32, &str, &str); 6] = [
    (0, "NONE", "auto"),
    (4, "INT4", "int4"),
    (8, "INT8", "int8"),
    (16, "FP8", "fp8"),
    (17, "FP8_E5M2", "fp8_e5m2"),
    (42, "TURBO_QUANT", "turbo_quant"),
];

fn policy(text: &str) -> Option<&'static str> {
    let found = POLICY.captures(text)?;
    let number = found.get(2).or(found.get(3)).and_then(|it| it.as_str().parse::<u32>().ok());
    let name = found.get(4).map_or("", |it| it.as_str());
    let known = |(own, title, dtype): &&(u32, &str, &str)| match number {
        Some(number) => *own == number,
        None => title.eq_ignore_ascii_case(name) || *dtype == name,
    };
    POLICIES.iter().find(known).map(|(_, _, dtype)| *dtype)
}

fn read(lines: &[LogLine]) -> Draft {
    let mut draft = Draft::default();
    let mut configurations = 0;
    for line in lines {
        let text = &line.text;
        if let Some(version) = group(&VERSION, text) {
            draft.version(version, line.number);
        }
        if text.contains("--quant-policy")
            && let Some(asked) = option(text, &["--quant-policy"])
        {
            draft.requested(named(asked), line.number);
        }
        if let Some(dtype) = group(&NOTICE, text) {
            draft.effective(dtype, line.number);
        }
        if let Some(config) = group(&CACHE, text) {
            configurations += usize::from(config.contains("num_gpu_blocks="));
            cache(config, line, &mut draft);
        } else if let Some(asked) = policy(text) {
            draft.requested(asked, line.number);
        }
        if let Some(length) = group(&SESSION, text).and_then(number) {
            draft.max_model_len(length, line.number);
        }
        if let Some(found) = FLASH_3.find(text) {
            draft.note(found.as_str());
        }
    }
    if draft.facts.kv_blocks.is_none()
        && let Some((line, found)) = lines.iter().find_map(|line| Some((line, FAILURE.find(&line.text)?)))
    {
        draft.note(&format!("the start failed: {}", found.as_str()));
        if found.as_str().contains("quant_policy") {
            draft.disqualified("turbomind", vec![found.as_str().to_string()], line.number);
        }
    }
    if configurations > 1 {
        draft.note(&format!("{configurations} cache configurations are printed; the last one is reported"));
        note_starts(&mut draft, 1);
    }
    draft.settle();
    draft
}

/// `fp8` for `16`: numbers and names mean the same.
fn named(asked: &str) -> String {
    let number = asked.parse::<u32>().ok();
    let known = POLICIES.iter().find(|(own, _, _)| Some(*own) == number);
    known.map_or_else(|| asked.to_string(), |(_, _, dtype)| (*dtype).to_string())
}

fn cache(config: &str, line: &LogLine, draft: &mut Draft) {
    let size = group(&BLOCK_SIZE, config).and_then(number::<u32>);
    let blocks = group(&BLOCKS, config).and_then(number::<u64>);
    if let Some(size) = size {
        draft.block_size(size, line.number);
    }
    if let Some(blocks) = blocks {
        draft.blocks(blocks, line.number);
    }
    if let (Some(size), Some(blocks)) = (size, blocks) {
        draft.tokens(blocks * u64::from(size), line.number);
    }
    match policy(config) {
        Some("auto") => {
            if draft.facts.requested_kv_cache_dtype.is_none() {
                draft.requested("auto", line.number);
            }
            draft.note("the cache is not quantized: the dtype of the model is in effect, which the log does not name");
        }
        Some(dtype) => {
            if draft.facts.requested_kv_cache_dtype.is_none() {
                draft.requested(dtype, line.number);
            }
            if draft.facts.kv_cache_dtype.is_none() {
                draft.effective(dtype, line.number);
            }
        }
        None => {}
    }
}
