//! Is this a measurement at all? Every reason why not, in words.

use crate::compare::{ArmComparison, ArmSummary, Comparison};
use crate::sample::Outcome;
use crate::suite::GatePolicy;
use crate::units::format_percent;

/// Byte-identical outputs over more long items than this are a sign that the dtype was never changed.
const MOST_IDENTICAL_OUTPUTS: u64 = 20;

/// A quantized row is at most this much larger than its codes alone: scales per token and head cost 4 bytes for 16 and more
/// one-byte codes.
const MOST_SCALE_OVERHEAD: f64 = 1.3;

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

/// Whether the arm is meant to differ from the baseline; a candidate with the baseline's dtype is a second A/A arm.
fn is_treated(baseline: &ArmSummary, arm: &ArmComparison) -> bool {
    let (base, asked) = (&baseline.arm.kv_cache_dtype, &arm.summary.arm.kv_cache_dtype);
    if is_auto(base) || is_auto(asked) {
        effective_dtype(baseline) != effective_dtype(&arm.summary)
    } else {
        canonical(base) != canonical(asked)
    }
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
                "`{name}`: all {} answer log-probabilities equal the baseline's: the cache was not changed",
                signs.nll_pairs
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

fn cache_bytes(baseline: &ArmSummary, arm: &ArmComparison, reasons: &mut Vec<String>) {
    let name = &arm.summary.arm.name;
    let Some((ours, theirs)) = arm.treatment.kv_bytes_per_token else {
        reasons.push(format!("`{name}`: the bytes of the cache are not known"));
        return;
    };
    let Some((base_bits, arm_bits)) = bits(&effective_dtype(baseline)).zip(bits(&effective_dtype(&arm.summary))) else {
        return;
    };
    let expected = ours * arm_bits / base_bits;
    // Half a byte of tolerance: these are whole numbers that went through a division.
    if !(expected - 0.5..=expected * MOST_SCALE_OVERHEAD + 0.5).contains(&theirs) {
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
