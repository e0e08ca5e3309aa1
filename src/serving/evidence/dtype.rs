//! The KV dtype: who can know it, release by release.

use crate::capacity::cache_token_bytes;
use crate::serving::checkpoint::{Checkpoint, SchemeFormat};
use crate::serving::evidence::{Case, Witness, measured_bytes};
use crate::setup::{ArmRole, Check, CheckStatus, Evidence, KV_CACHE_DTYPE, Observation, canonical_dtype, dtype_bits};

/// Releases of vLLM in which a checkpoint of llm-compressor overrides every request inside the workers: from the first on, until
/// before the second (0.15.0 was not looked at, so it counts). From the second on it overrides `auto` only.
const SCHEME_WINS_SINCE: [u32; 3] = [0, 15, 0];
const SCHEME_UNDER_AUTO_SINCE: [u32; 3] = [0, 22, 1];
/// First release of vLLM that takes ModelOpt's scheme under `auto`.
const MODELOPT_UNDER_AUTO_SINCE: [u32; 3] = [0, 14, 1];

/// Half-way between two widths: scales and rounding to blocks add to the bits of a value and never take any away.
const LEAST_BITS_OF_16: f64 = 14.0;
const MOST_BITS_OF_16: f64 = 20.0;
const LEAST_BITS_OF_8: f64 = 7.0;
const MOST_BITS_OF_8: f64 = 11.0;
const LEAST_BITS_OF_4: f64 = 3.0;
const MOST_BITS_OF_4: f64 = 6.5;

/// How far a source can know the dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weight {
    /// It is printed by what stores the cache, or settled by what is known of the engine.
    Stored,
    /// The engine will take this from the checkpoint.
    Predicted,
    /// Only the width of a value is known.
    Width,
    /// It was configured; something else may be stored.
    Configured,
}

struct Seen {
    value: String,
    source: String,
    weight: Weight,
}

/// The check, and the dtype in effect where it is known.
pub(super) fn check(case: &Case<'_>) -> (Check, Evidence<String>) {
    let asked = &case.asked.arm.kv_cache_dtype;
    let mut seen: Vec<Seen> = case.witnesses.iter().filter_map(|witness| seen_by(case, witness)).collect();
    seen.extend(predicted(case, &seen));
    seen.extend(case.witnesses.iter().filter_map(|witness| width(case, witness)));
    let status = status(case, &seen);
    let in_effect = in_effect(case, &seen, status);
    let observed = seen.into_iter().map(|it| Observation { value: it.value, source: it.source }).collect();
    (Check { fact: KV_CACHE_DTYPE.into(), asked: Some(asked.clone()), observed, status }, in_effect)
}

/// The dtype that one source names, in effect before configured.
fn seen_by(case: &Case<'_>, witness: &Witness) -> Option<Seen> {
    let facts = &witness.facts;
    if let Some(dtype) = &facts.kv_cache_dtype {
        // On ROCm e5m2 becomes e4m3 in the pool, which only the log's line about the pool shows.
        let may_differ = !witness.is_log && case.engine() == Some("sglang") && canonical_dtype(dtype) == "fp8_e5m2";
        let weight = if may_differ { Weight::Configured } else { Weight::Stored };
        return Some(Seen { value: dtype.clone(), source: witness.source("kv_cache_dtype"), weight });
    }
    let dtype = facts.requested_kv_cache_dtype.as_ref()?;
    let is_settled = !witness.is_log && settles(case, dtype);
    let weight = if is_settled { Weight::Stored } else { Weight::Configured };
    Some(Seen {
        value: dtype.clone(),
        source: format!("{}, configured", witness.source("requested_kv_cache_dtype")),
        weight,
    })
}

/// Whether vLLM is known to store what its configuration says. A log was read with the same knowledge and more.
fn settles(case: &Case<'_>, dtype: &str) -> bool {
    if case.engine() != Some("vllm") || is_auto(dtype) {
        return false;
    }
    // A checkpoint's scheme means fp8, so it cannot contradict fp8.
    if canonical_dtype(dtype) == "fp8_e4m3" {
        return true;
    }
    let is_plain = case.checkpoint.is_some_and(|checkpoint| !brings_compressed_scheme(checkpoint));
    let keeps = release(case.version()).is_some_and(|own| own < SCHEME_WINS_SINCE || own >= SCHEME_UNDER_AUTO_SINCE);
    is_plain || keeps
}

fn brings_compressed_scheme(checkpoint: &Checkpoint) -> bool {
    checkpoint.scheme.as_ref().is_some_and(|scheme| scheme.format == SchemeFormat::CompressedTensors)
}

/// What the engine takes from the checkpoint's files, where that is known.
fn predicted(case: &Case<'_>, seen: &[Seen]) -> Option<Seen> {
    let checkpoint = case.checkpoint?;
    let configured = seen.iter().find(|it| it.weight == Weight::Configured).map(|it| it.value.as_str());
    let configured = configured.unwrap_or(&case.asked.arm.kv_cache_dtype);
    let own = release(case.version());
    let scheme = checkpoint.scheme.as_ref();
    let takes = |since: [u32; 3]| own.map(|own| own >= since);
    let (value, why) = match (case.engine()?, scheme.map(|scheme| scheme.format)) {
        ("vllm", Some(SchemeFormat::CompressedTensors)) => match (is_auto(configured), own) {
            (_, Some(own)) if (SCHEME_WINS_SINCE..SCHEME_UNDER_AUTO_SINCE).contains(&own) => (scheme?.dtype, "scheme"),
            (true, Some(own)) if own >= SCHEME_UNDER_AUTO_SINCE => (scheme?.dtype, "scheme"),
            (true, Some(_)) => (model_dtype(checkpoint)?, "dtype"),
            _ => return None,
        },
        ("vllm", Some(SchemeFormat::ModelOpt)) if is_auto(configured) => match takes(MODELOPT_UNDER_AUTO_SINCE)? {
            true => (scheme?.dtype, "scheme"),
            false => (model_dtype(checkpoint)?, "dtype"),
        },
        ("sglang", Some(SchemeFormat::ModelOpt)) if is_auto(configured) => (scheme?.dtype, "scheme"),
        ("vllm" | "sglang", None) if is_auto(configured) => (model_dtype(checkpoint)?, "dtype"),
        _ => return None,
    };
    Some(Seen {
        value: value.to_owned(),
        source: format!("config.json, {why} of the checkpoint"),
        weight: Weight::Predicted,
    })
}

/// The dtype of the model: what `auto` means where no scheme is taken. A file with a scheme does not keep the other one apart.
fn model_dtype(checkpoint: &Checkpoint) -> Option<&'static str> {
    checkpoint.scheme.is_none().then_some(checkpoint.shape.auto_dtype)
}

/// How wide a value is, from memory over tokens. Only where every layer keeps every token of whole heads; else they are no plain
/// product.
fn width(case: &Case<'_>, witness: &Witness) -> Option<Seen> {
    let shape = &case.checkpoint?.shape;
    let n_rank = if case.engine() == Some("llama_cpp") { 1 } else { case.asked.n_rank? };
    if shape.is_latent() || shape.unbounded_layers() != shape.layers.len() {
        return None;
    }
    let measured = measured_bytes(witness)?;
    let at_16_bits = cache_token_bytes(shape, "bfloat16", n_rank).ok().filter(|bytes| *bytes > 0)?;
    let bits = measured.value? * 16.0 / at_16_bits as f64;
    Some(Seen { value: format!("{bits:.1} bits per value"), source: measured.source, weight: Weight::Width })
}

/// The nominal width that measured bits stand for.
fn nominal_bits(seen: &Seen) -> Option<f64> {
    let bits: f64 = seen.value.split(' ').next()?.parse().ok()?;
    match bits {
        LEAST_BITS_OF_16..=MOST_BITS_OF_16 => Some(16.0),
        LEAST_BITS_OF_8..=MOST_BITS_OF_8 => Some(8.0),
        LEAST_BITS_OF_4..=MOST_BITS_OF_4 => Some(4.0),
        _ => None,
    }
}

/// Whether what was seen is what was asked for; `None` where it does not say.
fn holds(case: &Case<'_>, seen: &Seen) -> Option<bool> {
    let arm = case.asked.arm;
    let asked = &arm.kv_cache_dtype;
    let is_reference = arm.role != ArmRole::Candidate;
    let bits = if seen.weight == Weight::Width { nominal_bits(seen) } else { dtype_bits(&seen.value) };
    if is_auto(asked) {
        // The reference is 16 bits whatever `auto` means for this model; any other arm takes what it gets.
        return match is_reference {
            true => bits.map(|bits| bits >= 16.0),
            false => (seen.weight != Weight::Width && !is_auto(&seen.value)).then_some(true),
        };
    }
    if seen.weight == Weight::Width {
        return Some((bits? - dtype_bits(asked)?).abs() <= 1.0);
    }
    if is_auto(&seen.value) {
        // `auto` may well be the 16 bits that were asked for; a quantized cache it is only by the checkpoint's doing.
        let may_be =
            dtype_bits(asked).is_none_or(|bits| bits >= 16.0) || case.checkpoint.is_some_and(|it| it.scheme.is_some());
        return if may_be { None } else { Some(false) };
    }
    Some(canonical_dtype(&seen.value) == canonical_dtype(asked))
}

fn status(case: &Case<'_>, seen: &[Seen]) -> CheckStatus {
    let answers: Vec<(Weight, Option<bool>)> = seen.iter().map(|it| (it.weight, holds(case, it))).collect();
    let says = |weight: Weight| answers.contains(&(weight, Some(true)));
    if answers.iter().any(|(_, holds)| *holds == Some(false)) {
        return CheckStatus::Contradicted;
    }
    let is_configured = seen.iter().any(|it| it.weight == Weight::Configured);
    let asked = &case.asked.arm.kv_cache_dtype;
    let width_is_enough = says(Weight::Configured) || is_auto(asked) || dtype_bits(asked) == Some(16.0);
    let is_confirmed =
        says(Weight::Stored) || says(Weight::Predicted) && is_configured || says(Weight::Width) && width_is_enough;
    if is_confirmed { CheckStatus::Confirmed } else { CheckStatus::Unknown }
}

/// The dtype that counts: where sources disagree the one that was not asked for.
fn in_effect(case: &Case<'_>, seen: &[Seen], status: CheckStatus) -> Evidence<String> {
    let wanted = match status {
        CheckStatus::Unknown => return Evidence::unknown(case.looked_at()),
        CheckStatus::Confirmed => true,
        CheckStatus::Contradicted => false,
    };
    let order = [Weight::Stored, Weight::Predicted, Weight::Width, Weight::Configured];
    let ranked = order.iter().flat_map(|weight| seen.iter().filter(move |it| it.weight == *weight));
    let Some(best) = ranked.into_iter().find(|it| holds(case, it) == Some(wanted)) else {
        return Evidence::unknown(case.looked_at());
    };
    let asked = &case.asked.arm.kv_cache_dtype;
    // A confirmed width is that of the dtype asked for; under `auto` the name stays open.
    let value = match best.weight {
        Weight::Width if wanted && !is_auto(asked) => canonical_dtype(asked),
        Weight::Width => best.value.clone(),
        _ => canonical_dtype(&best.value),
    };
    Evidence::known(value, best.source.clone())
}

fn is_auto(dtype: &str) -> bool {
    canonical_dtype(dtype) == "auto"
}

/// `0.22.1`, `0.6.6.post1`, `v0.33.0+cpu`: the first three numbers.
fn release(version: Option<&str>) -> Option<[u32; 3]> {
    let version = version?.trim_start_matches('v');
    let mut numbers = version.split(['.', '+', '-', ' ']);
    let mut next = || {
        let digits: String = numbers.next()?.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u32>().ok()
    };
    Some([next()?, next()?, next().unwrap_or(0)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_ordered_by_their_numbers() {
        assert_eq!(release(Some("v0.6.6.post1")), Some([0, 6, 6]));
        assert_eq!(release(Some("0.33.0+cpu")), Some([0, 33, 0]));
        assert_eq!(release(Some("0.15")), Some([0, 15, 0]));
        assert_eq!((release(Some("b11549")), release(None)), (None, None));
        assert!(release(Some("0.9.2")) < release(Some("0.15.0")));
    }
}
