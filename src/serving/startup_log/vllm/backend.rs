//! Attention backends: asked for, in effect, ruled out and why.

use std::sync::LazyLock;

use regex::Regex;

use super::{Start, Version};
use crate::serving::facts::ServerFacts;
use crate::serving::startup_log::draft::Draft;
use crate::serving::startup_log::pattern;

/// Names as versions before 0.11.2 print them, longest first where one begins another.
const TITLES: &[(&str, &str)] = &[
    ("Aiter Flash Attention", "ROCM_AITER_FA"),
    ("Aiter Unified Attention", "ROCM_AITER_UNIFIED_ATTN"),
    ("AITER Triton MLA", "ROCM_AITER_TRITON_MLA"),
    ("AITER MLA", "ROCM_AITER_MLA"),
    ("Rocm Attention", "ROCM_ATTN"),
    ("ROCmFlashAttention", "ROCM_FLASH"),
    ("DualChunkFlashAttention", "DUAL_CHUNK_FLASH_ATTN"),
    ("FlashAttention MLA", "FLASH_ATTN_MLA"),
    ("Flash Attention MLA", "FLASH_ATTN_MLA"),
    ("FlashAttnMLA", "FLASH_ATTN_MLA"),
    ("FlashAttention-2", "FLASH_ATTN"),
    ("FlashAttention", "FLASH_ATTN"),
    ("Flash Attention", "FLASH_ATTN"),
    ("FlashInfer MLA", "FLASHINFER_MLA"),
    ("FlashInfer", "FLASHINFER"),
    ("Flashinfer", "FLASHINFER"),
    ("FlashMLA", "FLASHMLA"),
    ("FlexAttention", "FLEX_ATTENTION"),
    ("Sparse MLA", "FLASHMLA_SPARSE"),
    ("Cutlass MLA", "CUTLASS_MLA"),
    ("CUTLASS MLA", "CUTLASS_MLA"),
    ("Triton MLA", "TRITON_MLA"),
    ("Triton Attention", "TRITON_ATTN"),
    ("Triton", "TRITON_ATTN"),
    ("Tree Attention", "TREE_ATTN"),
    ("Torch SDPA", "TORCH_SDPA"),
    ("XFormers", "XFORMERS"),
    ("Pallas V1", "PALLAS"),
    ("Pallas", "PALLAS"),
    ("IPEX attention", "IPEX"),
];

/// Reasons of one piece; everything else in a list of reasons is free text, which may hold commas itself.
const REASONS: &[&str] = &[
    "head_size not supported",
    "dtype not supported",
    "kv_cache_dtype not supported",
    "block_size not supported",
    "partial multimodal token full attention not supported",
    "MLA not supported",
    "non-MLA not supported",
    "attention sinks not supported",
    "sparse not supported",
    "non-sparse not supported",
    "per-head quant scales not supported",
    "compute capability not supported",
    "sliding window not supported",
    "R-SWA not supported",
    "non-causal attention not supported",
    "non-causal MLA attention with DCP not supported",
    "batch invariance not supported",
    "KV connector not supported",
    "PCP not supported",
    "DCP not supported",
    "ImportError",
];

/// Order of automatic choice on every GPU but SM 10.x.
const PREFERENCE: [&str; 4] = ["FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION"];
/// The same for models with latent attention.
const PREFERENCE_MLA: [&str; 4] = ["FLASH_ATTN_MLA", "FLASHMLA", "FLASHINFER_MLA", "TRITON_MLA"];

static AUTOMATIC: LazyLock<Regex> = LazyLock::new(|| {
    pattern(concat!(
        r"(?:Using|Overriding with) (?:AttentionBackendEnum\.|_Backend\.)?([A-Z][A-Z0-9_]*)",
        r"(?: attention)?(?: backend)? out of potential backends(?:: [\[(]([^\])]*))?"
    ))
});
/// 0.11.2 alone prints the list on a line of its own.
static VALID: LazyLock<Regex> = LazyLock::new(|| pattern(r"Valid backends: \[([^\]]*)\]"));
static EXPLICIT: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"Using <?(?:AttentionBackendEnum|_Backend)\.([A-Z0-9_]+)[^ ]*(?: attention)? backend\b"));
static NAMED: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"Using ([A-Z][A-Z0-9_]{2,}) (?:attention )?backend(?:\.|$| on V1)"));
static TITLED: LazyLock<Regex> = LazyLock::new(|| {
    let titles: Vec<String> = TITLES.iter().map(|(title, _)| regex::escape(title)).collect();
    pattern(&format!("Using ({}) backend((?: for [^ ]+)?)", titles.join("|")))
});
static VISION: LazyLock<Regex> = LazyLock::new(|| {
    pattern(r"Using backend <?(?:AttentionBackendEnum\.|_Backend\.)?([A-Z0-9_]+)[^ ]* for vit attention")
});
static REASON_MAP: LazyLock<Regex> = LazyLock::new(|| pattern(r"Reasons: \{(.*)"));
static REASON_ENTRY: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"(?:^|, )'?(?:AttentionBackendEnum\.|_Backend\.)?([A-Z][A-Z0-9_]*)'?: \["));
static SELECTED: LazyLock<Regex> = LazyLock::new(|| {
    pattern(concat!(
        r"Selected backend <?(?:AttentionBackendEnum\.|_Backend\.)?([A-Z0-9_]+)[^ ]* is not valid for this configuration\.",
        r" Reasons?: \[(.*)\]"
    ))
});
static CANNOT_ON: LazyLock<Regex> = LazyLock::new(|| {
    pattern(r"Cannot use <?(?:AttentionBackendEnum\.|_Backend\.)?([A-Z0-9_]+)[^ ]* backend on (CPU|XPU|TPU|HPU)\.?")
});
static CANNOT_V0: LazyLock<Regex> = LazyLock::new(|| {
    pattern(
        r"Cannot use (FlashAttention-2|FlashAttention|Flash Attention) backend ((?:for|because|due)[^.]*(?:\.\d[^.]*)*)\.?",
    )
});
static FLASH_MLA_REFUSED: LazyLock<Regex> = LazyLock::new(|| {
    pattern(
        r"(FlashMLA|Cutlass MLA|CUTLASS MLA|FlashInfer MLA) backend is not supported ((?:for block size \d+(?: \([^)]*\))?|due to [^.]*)\.?)",
    )
});
static XPU_MLA: LazyLock<Regex> = LazyLock::new(|| {
    pattern(
        r"(FlashAttnMLA) on XPU is not valid for this configuration \((.*?)\); falling back to ([A-Za-z ]+?) backend\.?",
    )
});
static FA_REFUSED: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"Cannot use FA version \d+ .*?defaulting to FA version \d+\.?"));
static FA_VERSION: LazyLock<Regex> = LazyLock::new(|| pattern(r"Using FlashAttention version (\d+)"));
static PRECLUDED: LazyLock<Regex> = LazyLock::new(|| {
    pattern(r"--block-size (\d+) precluded higher-priority backend\(s\) ([A-Z0-9_, ]+)\. Using ([A-Z0-9_]+) instead")
});
static INCOMPATIBLE: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"Found (incompatible backend)\(s\) \[([^\]]*)\] with ([\w-]+)"));
static V0_ENGINE: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"(?:--)?[\w-]+ is not supported by the V1 Engine\. Falling back to V0\.?"));
static DROPPED_VARIABLE: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"Unknown vLLM environment variable detected: VLLM_ATTENTION_BACKEND"));
static PREFILL: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"Using (?:TRTLLM (?:prefill|decode) attention \([^)]*\)|[\w -]+ prefill for MLA)"));

/// `FLASH_ATTN` from `AttentionBackendEnum.FLASH_ATTN`, `_Backend.FLASH_ATTN_VLLM_V1`, `flash_attn`.
pub(super) fn plain(name: &str) -> String {
    let name = name.trim_matches(['\'', '"', '<', '>', ' ']).rsplit('.').next().unwrap_or(name);
    let name = name.to_ascii_uppercase();
    name.strip_suffix("_VLLM_V1").map_or(name.clone(), String::from)
}

fn of_title(title: &str) -> &'static str {
    TITLES.iter().find(|(known, _)| *known == title).map_or("CUSTOM", |(_, name)| name)
}

/// Whether an all-capitals word before "backend" can be an attention backend: other parts of the server use the same words.
fn is_attention(name: &str) -> bool {
    const PARTS: [&str; 14] = [
        "ATTN",
        "ATTENTION",
        "MLA",
        "FLASHINFER",
        "SDPA",
        "XFORMERS",
        "PALLAS",
        "TURBOQUANT",
        "ULTRAQUANT",
        "OCTAVE",
        "B12X",
        "ROCM_FLASH",
        "MSA",
        "DSA",
    ];
    PARTS.iter().any(|part| name.contains(part))
}

pub(super) fn read(start: &Start<'_>, draft: &mut Draft) {
    if let Some(typed) = &start.typed
        && let Some(backend) = &typed.backend
    {
        draft.requested_backend(backend.as_str(), typed.line);
    }
    resolved(start, draft);
    ruled_out(start, draft);
    replaced(start, draft);
    if let (Some(asked), true) = (draft.facts.requested_backend.clone(), draft.facts.resolved_backend.len() == 1)
        && draft.facts.resolved_backend.contains("FLASH_ATTN")
        && asked == "ROCM_AITER_FA"
    {
        // This backend calls itself by the other's name.
        draft.facts.resolved_backend.clear();
        let line = draft.sources.get("resolved_backend").copied().unwrap_or_default();
        draft.resolved(asked, line);
    }
}

fn resolved(start: &Start<'_>, draft: &mut Draft) {
    for (line, found) in start.all(&AUTOMATIC) {
        draft.resolved(plain(&found[1]), line.number);
    }
    for (line, found) in start.all(&EXPLICIT) {
        let name = plain(&found[1]);
        if draft.facts.requested_backend.is_none() {
            draft.requested_backend(name.as_str(), line.number);
        }
        draft.resolved(name, line.number);
    }
    for (line, found) in start.all(&NAMED).filter(|(_, found)| is_attention(&found[1])) {
        draft.resolved(plain(&found[1]), line.number);
    }
    for (line, found) in start.all(&TITLED) {
        let purpose = &found[2];
        let is_other = !purpose.is_empty() && !["torch.", "head_size", "dtype"].iter().any(|it| purpose.contains(it));
        if !is_other {
            draft.resolved(of_title(&found[1]), line.number);
        }
    }
    for (line, found) in start.all(&VISION) {
        let name = plain(&found[1]);
        draft.note(&format!("{name} is the backend of vision attention"));
        draft.resolved(name, line.number);
    }
    for (_, found) in start.all(&PREFILL).chain(start.all(&FA_VERSION)) {
        draft.note(&found[0]);
    }
}

fn ruled_out(start: &Start<'_>, draft: &mut Draft) {
    for (line, found) in start.all(&REASON_MAP) {
        for (backend, reasons) in reason_map(&found[1]) {
            draft.disqualified(backend, reasons, line.number);
        }
    }
    for (line, found) in start.all(&SELECTED) {
        let reasons = quoted_list(&found[2]);
        let name = plain(&found[1]);
        draft.requested_backend(name.as_str(), line.number);
        draft.disqualified(name, reasons, line.number);
    }
    for (line, found) in start.all(&INCOMPATIBLE) {
        for name in found[2].split(", ").filter(|name| !name.is_empty()) {
            let reason = format!("{} with {}", &found[1], &found[3]);
            draft.disqualified(plain(name), vec![reason], line.number);
        }
    }
    for (line, found) in start.all(&CANNOT_V0) {
        draft.disqualified(of_title(&found[1]), vec![found[0].to_string()], line.number);
        if found[2].contains("KV cache") || found[2].contains("block size") {
            draft.fallback(&found[0], line.number);
        }
    }
    displaced(start, draft);
}

/// An automatic choice that a reason for the cache kept from the server's first preference.
fn displaced(start: &Start<'_>, draft: &mut Draft) {
    if is_sm10x(start) || start.all(&AUTOMATIC).next().is_none() || draft.facts.requested_backend.is_some() {
        return;
    }
    let facts = &draft.facts;
    let rank = |order: &[&str], name: &str| order.iter().position(|it| *it == name);
    let mut words = Vec::new();
    for order in [PREFERENCE, PREFERENCE_MLA] {
        let Some(taken) = facts.resolved_backend.iter().filter_map(|name| rank(&order, name)).min() else { continue };
        for (name, reasons) in &facts.disqualified {
            let is_preferred = rank(&order, name).is_some_and(|own| own < taken);
            let is_for_cache = |reason: &&String| {
                reason.contains("kv_cache_dtype") || reason.contains("KV cache") || reason.contains("block_size")
            };
            if is_preferred && reasons.iter().any(|reason| is_for_cache(&reason)) {
                words.push(format!("{name}: {}", reasons.join("; ")));
            }
        }
    }
    let line = draft.sources.get("disqualified").copied().unwrap_or_default();
    for words in words {
        draft.fallback(&words, line);
    }
}

/// SM 10.x prefers FLASHINFER, and only there are these lines printed.
fn is_sm10x(start: &Start<'_>) -> bool {
    start.lines.iter().any(|line| line.text.contains("TRTLLM") || line.text.contains("Blackwell (SM 10"))
}

/// What the server itself says that it replaced.
fn replaced(start: &Start<'_>, draft: &mut Draft) {
    for (line, found) in start.all(&CANNOT_ON) {
        let name = plain(&found[1]);
        if name == "NONE" {
            continue;
        }
        if draft.facts.requested_backend.is_none() {
            draft.requested_backend(name.as_str(), line.number);
        }
        draft.fallback(&found[0], line.number);
        draft.disqualified(name, vec![found[0].to_string()], line.number);
        if &found[2] == "CPU" && draft.facts.resolved_backend.is_empty() && !start.is_before(Version(0, 11, 1)) {
            draft.resolved("CPU_ATTN", line.number);
            draft.note("CPU_ATTN prints no line; it is the only backend of CPUs besides those for latent attention");
        }
    }
    for (line, found) in start.all(&FLASH_MLA_REFUSED) {
        let name = of_title(&found[1]);
        draft.disqualified(name, vec![found[0].to_string()], line.number);
        draft.fallback(&found[0], line.number);
    }
    for (line, found) in start.all(&XPU_MLA) {
        draft.requested_backend("FLASH_ATTN_MLA", line.number);
        draft.disqualified("FLASH_ATTN_MLA", vec![found[2].to_string()], line.number);
        draft.resolved(of_title(&found[3]), line.number);
        draft.fallback(&found[0], line.number);
    }
    for (line, found) in start.all(&PRECLUDED) {
        for name in found[2].split(", ") {
            draft.disqualified(plain(name), vec![format!("--block-size {}", &found[1])], line.number);
        }
        draft.resolved(plain(&found[3]), line.number);
        draft.fallback(&found[0], line.number);
    }
    for pattern in [&FA_REFUSED, &V0_ENGINE, &DROPPED_VARIABLE] {
        for (line, found) in start.all(pattern) {
            draft.fallback(&found[0], line.number);
        }
    }
}

/// Whether an automatic choice on a GPU may have lost FLASH_ATTN to the dtype of the cache without a reason in the log.
pub(super) fn may_have_lost_one(start: &Start<'_>, facts: &ServerFacts) -> bool {
    if facts.disqualified.contains_key("FLASH_ATTN") {
        return false;
    }
    let lacks = |list: &str| {
        let mut names = list.split(", ").map(plain).peekable();
        let is_of_cuda = names.peek().is_some_and(|first| PREFERENCE.contains(&first.as_str()));
        is_of_cuda && !names.any(|name| name == "FLASH_ATTN")
    };
    let potential = start.all(&AUTOMATIC).filter_map(|(_, found)| Some(found.get(2)?.as_str()));
    let valid = start.all(&VALID).filter_map(|(_, found)| Some(found.get(1)?.as_str()));
    potential.chain(valid).any(lacks)
}

/// Backend → reasons of `A: [r, r], B: [r]}. …`.
fn reason_map(text: &str) -> Vec<(String, Vec<String>)> {
    let text = text.find("}.").or_else(|| text.rfind('}')).map_or(text, |end| &text[..end]);
    let entries: Vec<_> = REASON_ENTRY.captures_iter(text).collect();
    let mut map = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let whole = entry.get(0).expect("group 0 always exists");
        let end = entries.get(index + 1).and_then(|next| next.get(0)).map_or(text.len(), |next| next.start());
        let list = text[whole.end()..end].trim_end();
        map.push((plain(&entry[1]), reason_list(list.strip_suffix(']').unwrap_or(list))));
    }
    map
}

/// Strings of a Python list: in single quotes, or in double ones where they hold a single one.
fn quoted_list(text: &str) -> Vec<String> {
    let mut strings = Vec::new();
    let mut rest = text.trim();
    while let Some(quote) = rest.chars().next().filter(|it| matches!(it, '\'' | '"')) {
        let body = &rest[1..];
        let end = body.find(&format!("{quote}, ")).unwrap_or_else(|| body.trim_end_matches(quote).len());
        strings.push(body[..end].to_string());
        rest = body[end..].trim_start_matches(quote).trim_start_matches(", ");
    }
    strings
}

/// Reasons are printed without quotes and joined with commas; some hold commas themselves.
fn reason_list(text: &str) -> Vec<String> {
    let is_whole = |piece: &str| {
        REASONS.contains(&piece) || (piece.starts_with("attention type ") && piece.ends_with(" not supported"))
    };
    let begins_anew = |piece: &str| piece.starts_with("ImportError: ") || piece.starts_with("OSError: ");
    let mut reasons: Vec<String> = Vec::new();
    let mut is_free = false;
    for piece in text.split(", ") {
        match reasons.last_mut() {
            Some(last) if is_free && !is_whole(piece) && !begins_anew(piece) => {
                last.push_str(", ");
                last.push_str(piece);
            }
            _ => {
                is_free = !is_whole(piece);
                reasons.push(piece.to_string());
            }
        }
    }
    reasons.retain(|reason| !reason.is_empty());
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_with_commas_stay_whole() {
        let text = "FLASH_ATTN: [kv_cache_dtype not supported, FP8 KV cache requires FA3 on SM90, FA4 with head_size=512 on SM90, or FA4 on SM100], FLEX_ATTENTION: [kv_cache_dtype not supported], X_MLA: [non-MLA not supported, ImportError: no module, found]}. Supported kv_cache_dtype values: [a]";
        let map = reason_map(text);
        assert_eq!(map.len(), 3);
        assert_eq!(map[0].1.len(), 2);
        assert!(map[0].1[1].ends_with("or FA4 on SM100"));
        assert_eq!(map[1], ("FLEX_ATTENTION".into(), vec!["kv_cache_dtype not supported".to_string()]));
        let list = r#"'kv_cache_dtype not supported', "ImportError: No module named 'x'", 'a, b'"#;
        let expected = ["kv_cache_dtype not supported", "ImportError: No module named 'x'", "a, b"];
        assert_eq!(quoted_list(list), expected);
        assert_eq!(map[2].1, ["non-MLA not supported", "ImportError: no module, found"]);
    }

    #[test]
    fn every_spelling_of_a_backend_is_one() {
        for name in ["FLASH_ATTN", "AttentionBackendEnum.FLASH_ATTN", "_Backend.FLASH_ATTN_VLLM_V1", "'flash_attn'"] {
            assert_eq!(plain(name), "FLASH_ATTN");
        }
    }
}
