//! Is this a measurement at all? Every reason why not, in words.

use crate::compare::{ArmComparison, ArmSummary, Comparison};
use crate::sample::Outcome;
use crate::suite::GatePolicy;
use crate::units::format_percent;

/// Byte-identical outputs over more long items than this are a sign that the dtype was never changed.
const MOST_IDENTICAL_OUTPUTS: u64 = 20;

/// Most bits that a scale adds to each code of a quantized row: 4 bytes per token and head, which has 16 codes and more.
/// Four-bit codes have a zero point of the same size beside it.
const MOST_SCALE_BITS: f64 = 2.0;

/// Settings of an arm that change what a candidate stores or computes; the others are the machine's or hold for all arms.
const TREATMENTS: &[&str] =
    &["kv_scales", "kv_scale_granularity", "kv_cache_dtype_skip_layers", "int4_rotation", "mechanisms", "kv_fault"];

/// What the resolved `engine` says of the built-in targets; any other name is a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EngineKind {
    /// Deterministic, with its own view into the cache.
    Embedded,
    /// Deterministic answers by rule: there is no cache that could show a treatment.
    Scripted,
    Server,
}

fn engine_kind(summary: &ArmSummary) -> EngineKind {
    let engine = summary.resolved.engine.value.as_deref().unwrap_or_default();
    if engine.contains("scripted") {
        EngineKind::Scripted
    } else if engine.starts_with("kvgauge embedded") {
        EngineKind::Embedded
    } else {
        EngineKind::Server
    }
}

/// Whether the same questions get the same answers every time.
pub(super) fn is_deterministic(summary: &ArmSummary) -> bool {
    engine_kind(summary) != EngineKind::Server
}

pub(super) fn reasons(comparison: &Comparison, policy: &GatePolicy, arm: &ArmComparison) -> Vec<String> {
    let mut reasons: Vec<String> = arm
        .mismatches
        .iter()
        .map(|it| format!("not comparable: {} is {} against the baseline's {}", it.field, it.candidate, it.baseline))
        .collect();
    for summary in [&comparison.baseline, &arm.summary] {
        completeness(policy, summary, &mut reasons);
    }
    baseline_dtype(&comparison.baseline, &mut reasons);
    let is_treated = is_treated(&comparison.baseline, arm);
    if is_treated {
        dtype_in_effect(&arm.summary, &mut reasons);
        treatment(&comparison.baseline, arm, &mut reasons);
    } else {
        untreated(&comparison.baseline, arm, &mut reasons);
    }
    noise(comparison, &mut reasons);
    reasons
}

fn completeness(policy: &GatePolicy, summary: &ArmSummary, reasons: &mut Vec<String>) {
    let name = &summary.arm.name;
    let recorded: u64 = summary.outcomes.iter().map(|(_, count)| count).sum();
    if !summary.complete {
        reasons.push(format!("`{name}` is not complete: {recorded} of {} items", summary.planned_items));
    }
    // An answer that never came to its end is a result (see the pairing rules), not a broken measurement.
    let broken: u64 = summary
        .outcomes
        .iter()
        .filter(|(outcome, _)| matches!(outcome, Outcome::Invalid | Outcome::Error))
        .map(|(_, count)| count)
        .sum();
    let valid_share = if recorded == 0 { 0.0 } else { (recorded - broken) as f64 / recorded as f64 };
    if valid_share < policy.min_valid_share {
        reasons.push(format!(
            "`{name}`: {} of the items are valid ({broken} of {recorded} are errors or invalid), {} are required",
            format_percent(valid_share),
            format_percent(policy.min_valid_share)
        ));
    }
}

/// One spelling for one dtype. vLLM's `fp8` is `fp8_e4m3`.
fn canonical(dtype: &str) -> String {
    let lower = dtype.trim().to_ascii_lowercase().replace('-', "_");
    let name = match lower.as_str() {
        "fp8" | "fp8_e4m3fn" => "fp8_e4m3",
        "bf16" => "bfloat16",
        "fp16" | "f16" | "half" => "float16",
        "fp32" | "f32" | "float" => "float32",
        other => other,
    };
    name.to_owned()
}

/// Bits per code, where the name says so.
fn bits(dtype: &str) -> Option<f64> {
    let dtype = canonical(dtype);
    match dtype.as_str() {
        "float32" => Some(32.0),
        "bfloat16" | "float16" => Some(16.0),
        _ if dtype.starts_with("fp8") || dtype.starts_with("int8") => Some(8.0),
        _ if dtype.starts_with("int4") => Some(4.0),
        _ => None,
    }
}

/// `auto` leaves the choice to the engine, so nothing can contradict it.
fn is_auto(dtype: &str) -> bool {
    canonical(dtype) == "auto"
}

fn baseline_dtype(baseline: &ArmSummary, reasons: &mut Vec<String>) {
    if engine_kind(baseline) == EngineKind::Scripted {
        return;
    }
    dtype_in_effect(baseline, reasons);
    if let Some(dtype) = &baseline.resolved.kv_cache_dtype.value
        && bits(dtype).is_some_and(|bits| bits < 16.0)
    {
        reasons.push(format!("the baseline `{}` runs with a quantized cache ({dtype})", baseline.arm.name));
    }
}

fn dtype_in_effect(summary: &ArmSummary, reasons: &mut Vec<String>) {
    if engine_kind(summary) == EngineKind::Scripted {
        return;
    }
    let (name, asked) = (&summary.arm.name, &summary.arm.kv_cache_dtype);
    let evidence = &summary.resolved.kv_cache_dtype;
    match &evidence.value {
        None => reasons.push(format!(
            "`{name}`: {asked} was asked for, but what is in effect is not known (looked at: {})",
            evidence.source
        )),
        Some(dtype) if !is_auto(asked) && canonical(dtype) != canonical(asked) => {
            reasons.push(format!("`{name}`: {asked} was asked for, but {dtype} is in effect ({})", evidence.source));
        }
        Some(_) => {}
    }
}

/// The dtype that counts: in effect, else as asked for.
fn effective_dtype(summary: &ArmSummary) -> String {
    canonical(summary.resolved.kv_cache_dtype.value.as_deref().unwrap_or(&summary.arm.kv_cache_dtype))
}

/// Whether the arm is meant to differ from the baseline: by its dtype, by a setting of its own, or by another backend or
/// arithmetic. Any other candidate is a second A/A arm.
fn is_treated(baseline: &ArmSummary, arm: &ArmComparison) -> bool {
    has_other_dtype(baseline, &arm.summary)
        || treatments(&arm.summary).next().is_some()
        || {
            let differs = |ours: &Option<String>, theirs: &Option<String>| matches!((ours, theirs), (Some(ours), Some(theirs)) if ours != theirs);
            let (ours, theirs) = (&baseline.resolved, &arm.summary.resolved);
            differs(&ours.attention_backend.value, &theirs.attention_backend.value)
                || differs(&ours.attention_arithmetic.value, &theirs.attention_arithmetic.value)
        }
}

fn has_other_dtype(baseline: &ArmSummary, arm: &ArmSummary) -> bool {
    let (base, asked) = (&baseline.arm.kv_cache_dtype, &arm.arm.kv_cache_dtype);
    if is_auto(base) || is_auto(asked) {
        effective_dtype(baseline) != effective_dtype(arm)
    } else {
        canonical(base) != canonical(asked)
    }
}

/// What was asked of the arm beyond its dtype.
fn treatments(arm: &ArmSummary) -> impl Iterator<Item = String> {
    let settings = arm.arm.settings.iter().filter(|(key, _)| TREATMENTS.contains(&key.as_str()));
    settings.map(|(key, value)| format!("{key} {value}"))
}

fn untreated(baseline: &ArmSummary, arm: &ArmComparison, reasons: &mut Vec<String>) {
    dtype_in_effect(&arm.summary, reasons);
    if engine_kind(baseline) != EngineKind::Server && differs_at_all(arm) {
        reasons.push(format!(
            "`{}` has the baseline's dtype on a deterministic engine, and yet its results differ",
            arm.summary.arm.name
        ));
    }
}

fn treatment(baseline: &ArmSummary, arm: &ArmComparison, reasons: &mut Vec<String>) {
    let kind = engine_kind(&arm.summary);
    if kind == EngineKind::Scripted {
        return;
    }
    let (name, signs) = (&arm.summary.arm.name, &arm.treatment);
    if kind == EngineKind::Embedded {
        cache_bytes(baseline, arm, reasons);
        if signs.nll_pairs == 0 {
            reasons.push(format!("`{name}`: no log-probabilities that would show the effect of the cache"));
        } else if signs.nll_different == 0 {
            reasons.push(format!(
                "`{name}`: all {} answer log-probabilities equal the baseline's: {}",
                signs.nll_pairs,
                no_effect(baseline, arm)
            ));
        }
    }
    let all_identical = signs.identical_outputs == signs.compared_outputs;
    if signs.compared_outputs > MOST_IDENTICAL_OUTPUTS && all_identical && signs.nll_different == 0 {
        reasons.push(format!(
            "`{name}`: all {} outputs of 8K tokens and more equal the baseline's byte for byte: the cache was not changed",
            signs.compared_outputs
        ));
    }
}

/// What did nothing, in words.
fn no_effect(baseline: &ArmSummary, arm: &ArmComparison) -> String {
    let asked: Vec<String> = treatments(&arm.summary).collect();
    if asked.is_empty() || has_other_dtype(baseline, &arm.summary) {
        "the cache was not changed".to_owned()
    } else {
        format!("{} had no effect", asked.join(", "))
    }
}

/// Least and most bits per code that the arm's cache may take, over all its layers: `kv_layers` in words such as
/// `0: bfloat16; 1-29: fp8_e4m3` or `all 30: fp8_e4m3`, else the dtype for all. `None` where a dtype's size is not known.
fn expected_bits(summary: &ArmSummary) -> Option<(f64, f64)> {
    let whole = effective_dtype(summary);
    let words = summary.resolved.kv_layers.value.as_deref().filter(|words| !words.starts_with("all "));
    let mut runs: Vec<(f64, &str)> = Vec::new();
    for run in words.into_iter().flat_map(|words| words.split("; ")) {
        let (layers, dtype) = run.split_once(": ")?;
        let (first, last) = layers.split_once('-').unwrap_or((layers, layers));
        runs.push((last.parse::<u32>().ok()?.checked_sub(first.parse().ok()?)?.checked_add(1)?.into(), dtype));
    }
    if runs.is_empty() {
        runs.push((1.0, &whole));
    }
    let layers: f64 = runs.iter().map(|(count, _)| count).sum();
    let (mut least, mut most) = (0.0, 0.0);
    for (count, dtype) in runs {
        let bits = bits(dtype)?;
        least += count * bits / layers;
        let scales = match bits {
            16.0.. => 0.0,
            8.0.. => MOST_SCALE_BITS,
            _ => 2.0 * MOST_SCALE_BITS,
        };
        most += count * (bits + scales) / layers;
    }
    Some((least, most))
}

fn cache_bytes(baseline: &ArmSummary, arm: &ArmComparison, reasons: &mut Vec<String>) {
    let name = &arm.summary.arm.name;
    let Some((ours, theirs)) = arm.treatment.kv_bytes_per_token else {
        reasons.push(format!("`{name}`: the bytes of the cache are not known"));
        return;
    };
    let Some((base_bits, (least, most))) = bits(&effective_dtype(baseline)).zip(expected_bits(&arm.summary)) else {
        return;
    };
    // Half a byte of tolerance: these are whole numbers that went through a division.
    if !(ours * least / base_bits - 0.5..=ours * most / base_bits + 0.5).contains(&theirs) {
        let expected = ours * least / base_bits;
        reasons.push(format!(
            "`{name}`: the cache takes {theirs:.0} bytes per token; {expected:.0} (and a little for scales) were expected \
             from the baseline's {ours:.0}"
        ));
    }
}

/// The A/A flip rate has to be known: measured on servers, zero on deterministic engines.
fn noise(comparison: &Comparison, reasons: &mut Vec<String>) {
    let kind = engine_kind(&comparison.baseline);
    match (&comparison.control, kind) {
        (Some(control), EngineKind::Embedded | EngineKind::Scripted) => {
            if differs_at_all(control) {
                reasons.push(format!(
                    "the A/A arm `{}` differs from the baseline on a deterministic engine ({} of {} pairs changed outcome)",
                    control.summary.arm.name,
                    control.flips.len(),
                    control.pooled.as_ref().map_or(0, |pooled| pooled.pairs)
                ));
            }
        }
        (Some(control), EngineKind::Server) => {
            if control.pooled.as_ref().is_none_or(|pooled| pooled.pairs == 0) {
                reasons.push(format!("the A/A arm `{}` measured nothing", control.summary.arm.name));
            }
        }
        (None, EngineKind::Server) => {
            let is_replica = |arm: &ArmComparison| !is_treated(&comparison.baseline, arm);
            if !comparison.candidates.iter().any(is_replica) {
                reasons.push("the server's own noise is not known: no A/A arm (the baseline run twice)".into());
            }
        }
        (None, EngineKind::Embedded | EngineKind::Scripted) => {}
    }
}

/// Any difference in outcome, text or log-probability.
fn differs_at_all(arm: &ArmComparison) -> bool {
    arm.treatment.different_outputs > 0 || !arm.flips.is_empty() || arm.treatment.nll_different > 0
}
