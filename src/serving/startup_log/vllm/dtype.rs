//! The KV dtype: asked for, and in effect where a line proves it.
//!
//! Between 0.15 and 0.22.0 a checkpoint in llm-compressor's format overrides any request inside the workers, from 0.22.1 on it
//! overrides `auto`; no line above DEBUG tells. So a request counts as in effect only where such a checkpoint is ruled out.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use regex::Regex;

use super::start::Failure;
use super::{Dump, Quantization, Start, Version};
use crate::serving::startup_log::draft::{Draft, is_float, is_same_dtype};
use crate::serving::startup_log::pattern;

/// First release in which a checkpoint's scheme acts by itself (0.15.0 was not looked at, so it counts).
const SCHEME_WINS_SINCE: Version = Version(0, 15, 0);
/// First release in which it acts under `auto` only.
const SCHEME_UNDER_AUTO_ONLY_SINCE: Version = Version(0, 22, 1);
/// First release whose notice names the dtype; those before print `fp8` for every fp8.
const NOTICE_NAMES_SINCE: Version = Version(0, 20, 0);

static NOTICE: LazyLock<Regex> = LazyLock::new(|| pattern(r"Using ([A-Za-z0-9_]+) data type to store kv cache"));
static CAST: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"CPU backend doesn't support ([A-Za-z0-9_]+) KV cache type, cast to ([A-Za-z0-9_]+)\.?"));
static CPU_AUTO: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"CPU backend doesn't support KV cache quantization,? fallback to auto\.?"));
static UNKNOWN_ALGORITHM: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"Unknown kv_cache_quant_algo .*?Falling back to 'auto'\.?"));
static MODEL_CHOICE: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"Using (?:custom )?([a-z0-9_]+) (?:kv-cache|KV cache)(?: format)? for [A-Z]"));
static SELECTOR: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"AttentionSelectorConfig\([^)]*?\bkv_cache_dtype='?([A-Za-z0-9_]+)"));
static LAYER: LazyLock<Regex> = LazyLock::new(|| pattern(r"Layer (\S+): kv_cache_dtype=([A-Za-z0-9_]+)"));
static UNIT_SCALES: LazyLock<Regex> = LazyLock::new(|| {
    pattern(
        r"Using KV cache scaling factor 1\.0 for (\w+)|Using uncalibrated q_scale 1\.0|not provide a q scaling factor",
    )
});
static SCALE_NOTES: LazyLock<Regex> = LazyLock::new(|| {
    pattern(concat!(
        r"Disabling calculate_kv_scales .*|The `--calculate-kv-scales` option is deprecated.*|TQ hybrid: .*",
        r"|Found \S+ in the checkpoint .*is not loaded\."
    ))
});

pub(super) fn read(start: &Start<'_>, failure: Option<Failure>, draft: &mut Draft) {
    requested(start, draft);
    if failure != Some(Failure::Rejected) {
        in_effect(start, draft);
    }
    scales(start, draft);
    overridden(start, draft);
}

fn requested(start: &Start<'_>, draft: &mut Draft) {
    if draft.facts.requested_kv_cache_dtype.is_some() {
        return;
    }
    if let Some(typed) = &start.typed {
        if let Some(dtype) = &typed.kv_cache_dtype {
            return draft.requested(dtype.as_str(), typed.line);
        }
        if typed.is_complete {
            return draft.requested("auto", typed.line);
        }
    }
    if let Some((line, found)) = start.all(&CAST).next() {
        return draft.requested(&found[1], line.number);
    }
    if start.all(&CPU_AUTO).next().is_some() {
        // The dump comes after the fallback; only the notice may still tell what was asked for.
        if let Some((line, found)) = start.all(&NOTICE).next() {
            draft.requested(&found[1], line.number);
        }
        return;
    }
    if let Some(Dump { line, kv_cache_dtype: Some(dtype), .. }) = &start.dump {
        return draft.requested(dtype.as_str(), *line);
    }
    if let Some((line, found)) = start.all(&NOTICE).last() {
        draft.requested(&found[1], line.number);
    }
}

fn in_effect(start: &Start<'_>, draft: &mut Draft) {
    if let Some((line, found)) = start.all(&CAST).last() {
        draft.effective(&found[2], line.number);
        return draft.fallback(&found[0], line.number);
    }
    for refused in [&CPU_AUTO, &UNKNOWN_ALGORITHM] {
        if let Some((line, found)) = start.all(refused).last() {
            draft.fallback(&found[0], line.number);
            match start.model_dtype() {
                Some(dtype) => draft.effective(dtype, line.number),
                None => draft.note("the dtype of the model is in effect; the log does not name it"),
            }
            return;
        }
    }
    if let Some((line, found)) = start.all(&MODEL_CHOICE).last() {
        let is_packed = found[0].starts_with("Using custom fp8");
        return draft.effective(if is_packed { "fp8_ds_mla" } else { &found[1] }, line.number);
    }
    if of_layers(start, draft) {
        return;
    }
    by_configuration(start, draft);
}

/// What the layers themselves print at DEBUG.
fn of_layers(start: &Start<'_>, draft: &mut Draft) -> bool {
    let mut stored = BTreeSet::new();
    let mut last = 0;
    let per_layer = start.all(&LAYER).map(|(line, found)| (line.number, found[2].to_string()));
    let selected = start.all(&SELECTOR).map(|(line, found)| (line.number, found[1].to_string()));
    for (line, dtype) in per_layer.chain(selected).filter(|(_, dtype)| dtype != "None") {
        stored.insert(dtype);
        last = line;
    }
    let quantized: Vec<&String> = stored.iter().filter(|dtype| *dtype != "auto" && !is_float(dtype)).collect();
    match (quantized.as_slice(), stored.len()) {
        (_, 0) => return false,
        ([], _) => {
            let explicit = stored.iter().find(|dtype| *dtype != "auto").map(String::as_str);
            match explicit.or_else(|| start.model_dtype()) {
                Some(dtype) => draft.effective(dtype, last),
                None => return false,
            }
        }
        ([dtype], _) => draft.effective(dtype.as_str(), last),
        (many, _) => {
            let names: Vec<&str> = many.iter().map(|it| it.as_str()).collect();
            draft.note(&format!("layers store different dtypes: {}", names.join(", ")));
            return true;
        }
    }
    if stored.len() > 1 {
        draft.note("some layers keep the dtype of the model");
    }
    true
}

/// From notice and dump, where nothing is known to override them without a word.
fn by_configuration(start: &Start<'_>, draft: &mut Draft) {
    let notice = start.all(&NOTICE).last().map(|(line, found)| (line.number, found[1].to_string()));
    let dumped = start.dump.as_ref().and_then(|dump| Some((dump.line, dump.kv_cache_dtype.clone()?)));
    let has_worked = draft.facts.kv_tokens.is_some()
        || draft.facts.kv_blocks.is_some()
        || draft.facts.kv_memory_gib.is_some()
        || !draft.facts.resolved_backend.is_empty();
    let (line, dtype) = match (notice, dumped) {
        (Some((line, named)), Some((_, dumped))) if is_same_dtype(&named, &dumped) => (line, dumped),
        // The notice of older versions says `fp8` whatever fp8 it is.
        (Some((line, named)), Some((_, dumped))) if named == "fp8" && dumped.starts_with("fp8") => (line, dumped),
        (Some((line, named)), Some((_, dumped))) => {
            draft.note(&format!("notice (line {line}) and configuration disagree: {named}, {dumped}"));
            return;
        }
        (Some((line, named)), None) => match typed_fp8(start, &named) {
            Some(typed) => (line, typed),
            None => (line, named),
        },
        (None, Some((line, dumped))) if has_worked => (line, dumped),
        (None, Some(_)) => return draft.note("only the request is in the log: it ends before the cache is made"),
        (None, None) => return,
    };
    if start.dump.is_none() && dtype == "fp8" && start.version.is_none_or(|own| own < NOTICE_NAMES_SINCE) {
        draft.note("up to 0.19.1 the notice says fp8 for fp8_e5m2 as well");
    }
    if let Some(doubt) = doubt(start, &dtype) {
        return draft.note(doubt);
    }
    if dtype != "auto" {
        return draft.effective(dtype, line);
    }
    match start.model_dtype() {
        Some(dtype) => draft.effective(dtype, line),
        None => draft.note("`auto` is the dtype of the model, which the log does not name"),
    }
}

fn typed_fp8(start: &Start<'_>, named: &str) -> Option<String> {
    let typed = start.typed.as_ref()?.kv_cache_dtype.clone()?;
    (named == "fp8" && typed.starts_with("fp8")).then_some(typed)
}

/// Why a request may not be in effect although no line says so.
fn doubt(start: &Start<'_>, dtype: &str) -> Option<&'static str> {
    let quantization = start.dump.as_ref().map_or(&Quantization::Unstated, |dump| &dump.quantization);
    // A scheme means fp8, so it cannot contradict fp8.
    if matches!(quantization, Quantization::Absent | Quantization::Other) || is_same_dtype(dtype, "fp8") {
        return None;
    }
    let may_act = match start.version {
        Some(own) if own < SCHEME_WINS_SINCE => false,
        Some(own) if own >= SCHEME_UNDER_AUTO_ONLY_SINCE => dtype == "auto",
        Some(_) => true,
        None => dtype == "auto" || is_float(dtype),
    };
    match quantization {
        _ if !may_act => None,
        Quantization::CompressedTensors => Some(
            "the dtype in effect is not proven: a compressed-tensors checkpoint with a kv_cache_scheme stores fp8 without a line that says so",
        ),
        _ => Some(
            "the dtype in effect is not proven: the log does not say whether the checkpoint is quantized, and a compressed-tensors one may store fp8 without a line that says so",
        ),
    }
}

fn scales(start: &Start<'_>, draft: &mut Draft) {
    for (line, found) in start.all(&UNIT_SCALES) {
        if draft.facts.scale_warning.is_none() {
            draft.scale_warning(true, line.number);
        }
        // The first of the warnings names what the layer stores.
        if let Some(stored) = found.get(1)
            && draft.facts.kv_cache_dtype.as_deref().is_none_or(is_float)
            && draft.facts.requested_kv_cache_dtype.is_some()
            && start.all(&CAST).chain(start.all(&CPU_AUTO)).next().is_none()
        {
            draft.effective(stored.as_str(), line.number);
        }
    }
    for (_, found) in start.all(&SCALE_NOTES) {
        draft.note(&found[0]);
    }
    let facts = &draft.facts;
    // Scales are loaded between the dump and the capacity; without both the warning may be in what is missing.
    let is_covered = start.dump.is_some() && (facts.kv_tokens.is_some() || facts.kv_blocks.is_some());
    if facts.scale_warning.is_none() && is_covered {
        let is_quantized = facts.kv_cache_dtype.as_deref().is_some_and(|dtype| !is_float(dtype));
        let line = draft.sources.get("kv_tokens").or(draft.sources.get("kv_blocks")).copied().unwrap_or_default();
        draft.scale_warning(false, line);
        if is_quantized {
            draft.note(
                "no warning about scales, which proves nothing: an unquantized checkpoint gets scale 1.0 without one",
            );
        }
    }
}

/// A checkpoint that stores fp8 whatever was asked for, while the configuration still shows the request.
fn overridden(start: &Start<'_>, draft: &mut Draft) {
    let facts = &draft.facts;
    if facts.fallback.is_some() || start.all(&MODEL_CHOICE).next().is_some() {
        return;
    }
    let shown = start.dump.as_ref().and_then(|dump| dump.kv_cache_dtype.as_ref());
    let (Some(asked), Some(effect)) = (shown.or(facts.requested_kv_cache_dtype.as_ref()), &facts.kv_cache_dtype) else {
        return;
    };
    let is_hidden = is_float(asked) || (asked == "auto" && shown.is_some());
    if is_hidden && !is_float(effect) {
        let words = format!("asked for {asked}, in effect {effect}");
        let line = draft.sources.get("kv_cache_dtype").copied().unwrap_or_default();
        draft.fallback(&words, line);
    }
}
