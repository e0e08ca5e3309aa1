//! Is this a measurement at all? Every reason why not, in words.

use crate::compare::{ArmComparison, ArmSummary, Comparison};
use crate::sample::Outcome;
use crate::setup::{Check, KV_CACHE_DTYPE, SAME_SERVER, canonical_dtype, dtype_bits};
use crate::stats::proportion::wilson_95;
use crate::suite::GatePolicy;
use crate::units::format_percent;

/// Byte-identical outputs over more long items than this are a sign that the dtype was never changed.
const MOST_IDENTICAL_OUTPUTS: u64 = 20;

/// Most bits that a scale adds to each code of a quantized row: 4 bytes per token and head, which has 16 codes and more.
/// Four-bit codes have a zero point of the same size beside it.
const MOST_SCALE_BITS: f64 = 2.0;

/// Settings of an arm that change what a candidate stores or computes; the others are the machine's or hold for all arms.
const TREATMENTS: &[&str] = &[
    "kv_scales",
    "kv_scale_granularity",
    "kv_cache_dtype_skip_layers",
    "int4_rotation",
    "mechanisms",
    "kv_fault",
    "output_damage",
];

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
        same_server(summary, &mut reasons);
    }
    baseline_dtype(&comparison.baseline, &mut reasons);
    let is_treated = is_treated(&comparison.baseline, arm);
    if is_treated {
        dtype_in_effect(&arm.summary, &mut reasons);
        treatment(&comparison.baseline, arm, &mut reasons);
        shown_by_answers(comparison, arm, &mut reasons);
    } else {
        untreated(&comparison.baseline, arm, &mut reasons);
    }
    noise(comparison, &mut reasons);
    repeats(comparison, &arm.summary, &mut reasons);
    reasons
}

/// What a server that was started again had in its cache, and under which settings it came back, nobody knows.
fn same_server(summary: &ArmSummary, reasons: &mut Vec<String>) {
    let seen = summary.checks.iter().find(|check| check.fact == SAME_SERVER && check.is_contradicted());
    if let Some(check) = seen {
        reasons.push(format!("`{}`: not one server answered it all: {}", summary.arm.name, check.observed_in_words()));
    }
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

/// `auto` leaves the choice to the engine, so nothing can contradict it.
fn is_auto(dtype: &str) -> bool {
    canonical_dtype(dtype) == "auto"
}

fn baseline_dtype(baseline: &ArmSummary, reasons: &mut Vec<String>) {
    if engine_kind(baseline) == EngineKind::Scripted {
        return;
    }
    dtype_in_effect(baseline, reasons);
    // What a server makes of `auto` may be a quantized cache: nothing that the answers show could tell.
    if engine_kind(baseline) == EngineKind::Server
        && is_auto(&baseline.arm.kv_cache_dtype)
        && is_dtype_unknown(baseline)
    {
        reasons.push(format!(
            "the baseline `{}`: whether its cache has 16 bits is not known (looked at: {})",
            baseline.arm.name, baseline.resolved.kv_cache_dtype.source
        ));
    }
    if !contradicts_dtype(baseline)
        && let Some(dtype) = &baseline.resolved.kv_cache_dtype.value
        && dtype_bits(dtype).is_some_and(|bits| bits < 16.0)
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
    if let Some(check) = dtype_check(summary).filter(|check| check.is_contradicted()) {
        let seen = check.observed_in_words();
        reasons.push(format!("`{name}`: treatment not applied: {asked} was asked for, but seen was {seen}"));
        return;
    }
    match &evidence.value {
        // On a server the answers may show it: see `shown_by_answers`.
        None if engine_kind(summary) == EngineKind::Server => {}
        None => reasons.push(format!(
            "`{name}`: {asked} was asked for, but what is in effect is not known (looked at: {})",
            evidence.source
        )),
        Some(dtype) if !is_auto(asked) && canonical_dtype(dtype) != canonical_dtype(asked) => {
            reasons.push(format!("`{name}`: {asked} was asked for, but {dtype} is in effect ({})", evidence.source));
        }
        Some(_) => {}
    }
}

fn dtype_check(summary: &ArmSummary) -> Option<&Check> {
    summary.checks.iter().find(|check| check.fact == KV_CACHE_DTYPE)
}

fn contradicts_dtype(summary: &ArmSummary) -> bool {
    dtype_check(summary).is_some_and(Check::is_contradicted)
}

fn is_dtype_unknown(summary: &ArmSummary) -> bool {
    engine_kind(summary) == EngineKind::Server
        && summary.resolved.kv_cache_dtype.value.is_none()
        && !contradicts_dtype(summary)
}

/// Where a server does not tell its dtype, the arm's answers have to differ from the baseline's more often than the baseline's own
/// do: with the same cache in both they would not. Answers that merely differ show nothing, because servers' answers always may.
fn shown_by_answers(comparison: &Comparison, arm: &ArmComparison, reasons: &mut Vec<String>) {
    let Some(unknown) = [&comparison.baseline, &arm.summary].into_iter().find(|summary| is_dtype_unknown(summary))
    else {
        return;
    };
    let replica = || comparison.candidates.iter().find(|it| !is_treated(&comparison.baseline, it));
    // With neither the measurement is refused for its noise.
    let Some(control) = comparison.control.as_ref().or_else(replica) else { return };
    let differing = |arm: &ArmComparison| {
        let pairs = arm.pooled.as_ref().map_or(0, |pooled| pooled.pairs);
        (arm.treatment.different_outputs.min(pairs), pairs)
    };
    let ((ours, pairs), (own, own_pairs)) = (differing(arm), differing(control));
    let is_shown = wilson_95(ours, pairs).zip(wilson_95(own, own_pairs)).is_some_and(|(ours, own)| ours.0 > own.1);
    if !is_shown {
        reasons.push(format!(
            "`{}`: {} was asked for, but what is in effect is not known (looked at: {}), and the answers do not show it: {ours} of \
             {pairs} differ from the baseline's, of the baseline's own {own} of {own_pairs}",
            unknown.arm.name, unknown.arm.kv_cache_dtype, unknown.resolved.kv_cache_dtype.source
        ));
    }
}

/// The dtype that counts: in effect, else as asked for.
fn effective_dtype(summary: &ArmSummary) -> String {
    canonical_dtype(summary.resolved.kv_cache_dtype.value.as_deref().unwrap_or(&summary.arm.kv_cache_dtype))
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
        canonical_dtype(base) != canonical_dtype(asked)
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
        let bits = dtype_bits(dtype)?;
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
    let Some((base_bits, (least, most))) = dtype_bits(&effective_dtype(baseline)).zip(expected_bits(&arm.summary))
    else {
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
            // One quantized cache under two names shows the noise of the server, too.
            let is_repeated = comparison.repeats.iter().any(|repeat| repeat.pairs > 0);
            if !is_repeated && !comparison.candidates.iter().any(is_replica) {
                reasons.push("the server's own noise is not known: no A/A arm (the baseline run twice)".into());
            }
        }
        (None, EngineKind::Embedded | EngineKind::Scripted) => {}
    }
}

/// One cache under two names has one result on the embedded engine. A script draws by the arm's name and has no cache.
fn repeats(comparison: &Comparison, arm: &ArmSummary, reasons: &mut Vec<String>) {
    if engine_kind(arm) != EngineKind::Embedded {
        return;
    }
    let name = &arm.arm.name;
    for repeat in comparison.repeats.iter().filter(|it| it.first == *name || it.second == *name) {
        let differing = (repeat.regressions + repeat.fixes).max(repeat.different_outputs).max(repeat.nll_different);
        if differing > 0 {
            reasons.push(format!(
                "`{}` and `{}` are one cache under two names on a deterministic engine, and yet {differing} of their results differ",
                repeat.first, repeat.second
            ));
        }
    }
}

/// Any difference in outcome, text or log-probability.
fn differs_at_all(arm: &ArmComparison) -> bool {
    arm.treatment.different_outputs > 0 || !arm.flips.is_empty() || arm.treatment.nll_different > 0
}
