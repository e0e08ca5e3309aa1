//! What was asked for beside what was in effect, every fact with its source.

use std::collections::BTreeMap;

use minijinja::value::Value;
use serde::Serialize;

use crate::compare::{ArmComparison, ArmSummary};
use crate::report::figures;
use crate::report::page::Page;
use crate::report::{ReportError, fields};
use crate::setup::{ArmRole, Check, CheckStatus, Evidence, KV_CACHE_DTYPE, PassedOver, Resolved};
use crate::units::{format_bytes, format_token_count};

/// One fact of one arm.
#[derive(Serialize)]
struct Fact {
    text: String,
    /// `✓` as asked, `✗` something else, `?` not known; empty where nothing was asked.
    symbol: &'static str,
    class: &'static str,
}

/// One fact of all arms.
#[derive(Serialize)]
struct Row {
    name: &'static str,
    facts: Vec<Fact>,
    sources: String,
}

pub(crate) fn view(page: &Page) -> Result<Option<Value>, ReportError> {
    let comparison = page.input.comparison;
    let compared = || comparison.control.iter().chain(&comparison.candidates);
    let arms: Vec<&ArmSummary> =
        std::iter::once(&comparison.baseline).chain(compared().map(|arm| &arm.summary)).collect();
    let baseline_bytes = comparison.baseline.resolved.kv_bytes_per_token.value;
    let confounded: Vec<Value> = compared()
        .filter_map(|arm| arm.confounded.as_ref().map(|why| fields! { arm => arm.summary.arm.name, why => why }))
        .collect();
    Ok(Some(fields! {
        arms => arms.iter().map(|arm| fields! { name => arm.arm.name, role => role(arm.arm.role) }).collect::<Vec<_>>(),
        rows => rows(&arms, baseline_bytes),
        confounded => confounded,
        testimony => arms.iter().flat_map(|arm| arm.checks.iter().map(|check| testimony(arm, check))).collect::<Vec<_>>(),
        treatments => comparison.candidates.iter().map(treatment).collect::<Vec<_>>(),
        aliases => aliases(&comparison.candidates),
    }))
}

fn role(role: ArmRole) -> &'static str {
    match role {
        ArmRole::Baseline => "baseline",
        ArmRole::Control => "A/A control",
        ArmRole::Candidate => "candidate",
    }
}

fn rows(arms: &[&ArmSummary], baseline_bytes: Option<f64>) -> Vec<Row> {
    let bytes = |bytes: f64| match baseline_bytes.filter(|baseline| *baseline > 0.0 && bytes > 0.0) {
        Some(baseline) => format!("{} ({:.2}×)", format_bytes(bytes.round() as u64), bytes / baseline),
        None => format_bytes(bytes.round() as u64),
    };
    let tokens = |tokens: u64| format!("{} tokens", figures::count(tokens));
    vec![
        row(arms, "KV dtype asked", |_| None, |arm| plain(&arm.arm.kv_cache_dtype)),
        row(
            arms,
            "KV dtype in effect",
            |arm| Some(&arm.resolved.kv_cache_dtype),
            |arm| {
                let found = arm.resolved.kv_cache_dtype.value.as_deref();
                weighed(arm, KV_CACHE_DTYPE, found).unwrap_or_else(|| checked(&arm.arm.kv_cache_dtype, found))
            },
        ),
        row(arms, "Backend asked", |_| None, |arm| plain(arm.arm.attention_backend.as_deref().unwrap_or("auto"))),
        row(
            arms,
            "Backend in effect",
            |arm| Some(&arm.resolved.attention_backend),
            |arm| {
                let asked = arm.arm.attention_backend.as_deref().unwrap_or("auto");
                let found = arm.resolved.attention_backend.value.as_deref();
                let named = || weighed(arm, "attention_backend", found).filter(|_| asked != "auto");
                named().unwrap_or_else(|| checked(asked, found))
            },
        ),
        known_row(arms, "Backends passed over", |arm| &arm.resolved.backends_passed_over, |all| passed_over(all)),
        known_row(arms, "Attention arithmetic", |arm| &arm.resolved.attention_arithmetic, Clone::clone),
        row(arms, "Asked besides", |_| None, |arm| plain(&settings(&arm.arm.settings))),
        known_row(arms, "Kernel", |arm| &arm.resolved.kernel, Clone::clone),
        known_row(arms, "Stored per layer", |arm| &arm.resolved.kv_layers, Clone::clone),
        known_row(arms, "KV scales", |arm| &arm.resolved.kv_scales, Clone::clone),
        known_row(arms, "Bytes per token", |arm| &arm.resolved.kv_bytes_per_token, |value| bytes(*value)),
        known_row(arms, "Cache capacity", |arm| &arm.resolved.kv_cache_tokens, |value| tokens(*value)),
        row(arms, "Blocks", |arm| Some(&arm.resolved.engine), |arm| blocks(&arm.resolved)),
        row(arms, "Maximum concurrency", |arm| Some(&arm.resolved.engine), |arm| concurrency(&arm.resolved)),
        known_row(arms, "Longest context", |arm| &arm.resolved.max_model_len, |value| format_token_count(*value)),
        known_row(arms, "Engine", |arm| &arm.resolved.engine, Clone::clone),
    ]
}

fn passed_over(backends: &[PassedOver]) -> String {
    if backends.is_empty() {
        return "none".into();
    }
    let one = |it: &PassedOver| format!("{}: {}", it.backend, it.reasons.join(", "));
    backends.iter().map(one).collect::<Vec<_>>().join("; ")
}

fn settings(settings: &BTreeMap<String, String>) -> String {
    if settings.is_empty() {
        return "nothing".into();
    }
    settings.iter().map(|(name, value)| format!("{name} = {value}")).collect::<Vec<_>>().join("; ")
}

fn blocks(resolved: &Resolved) -> Fact {
    match (resolved.kv_cache_blocks.value, resolved.kv_block_tokens.value) {
        (Some(blocks), Some(tokens)) => plain(&format!("{} of {tokens} tokens", figures::count(blocks))),
        _ => unknown(),
    }
}

/// Requests of the longest accepted length that fit at once, as serving engines put it.
fn concurrency(resolved: &Resolved) -> Fact {
    match (resolved.kv_cache_tokens.value, resolved.max_model_len.value) {
        (Some(tokens), Some(length)) if length > 0 => {
            let length_text = figures::count(u64::from(length));
            plain(&format!("{:.2}x for {length_text} tokens per request", tokens as f64 / f64::from(length)))
        }
        _ => unknown(),
    }
}

fn row<'a>(
    arms: &[&'a ArmSummary],
    name: &'static str,
    evidence: impl Fn(&'a ArmSummary) -> Option<&'a Evidence<String>>,
    fact: impl Fn(&ArmSummary) -> Fact,
) -> Row {
    let sources = arms.iter().filter_map(|arm| evidence(arm).map(|evidence| evidence.source.as_str()));
    let sources = distinct(sources);
    let sources = if sources.is_empty() { "command line or suite".into() } else { sources };
    Row { name, facts: arms.iter().map(|arm| fact(arm)).collect(), sources }
}

fn known_row<'a, T: 'a>(
    arms: &[&'a ArmSummary],
    name: &'static str,
    evidence: impl Fn(&'a ArmSummary) -> &'a Evidence<T>,
    write: impl Fn(&T) -> String,
) -> Row {
    let fact = |arm: &&'a ArmSummary| evidence(arm).value.as_ref().map_or_else(unknown, |value| plain(&write(value)));
    let sources = distinct(arms.iter().map(|arm| evidence(arm).source.as_str()));
    Row { name, facts: arms.iter().map(fact).collect(), sources }
}

fn distinct<'a>(sources: impl Iterator<Item = &'a str>) -> String {
    let mut seen: Vec<&str> = Vec::new();
    for source in sources {
        if !seen.contains(&source) {
            seen.push(source);
        }
    }
    seen.join("; ")
}

fn plain(text: &str) -> Fact {
    Fact { text: text.to_owned(), symbol: "", class: "" }
}

fn unknown() -> Fact {
    Fact { text: "unknown".into(), symbol: "?", class: "inconclusive" }
}

/// vLLM's `fp8` is `fp8_e4m3`; `auto` asks for nothing in particular.
fn checked(asked: &str, in_effect: Option<&str>) -> Fact {
    let canonical = |name: &str| if name == "fp8" { "fp8_e4m3".to_owned() } else { name.to_owned() };
    match in_effect {
        None => unknown(),
        Some(found) if asked == "auto" => plain(found),
        Some(found) if canonical(found) == canonical(asked) => {
            Fact { text: found.into(), symbol: "✓", class: "pass" }
        }
        Some(found) => Fact { text: found.into(), symbol: "✗", class: "regressed" },
    }
}

/// The fact as all sources together say it, where they were weighed.
fn weighed(arm: &ArmSummary, fact: &str, found: Option<&str>) -> Option<Fact> {
    let check = arm.checks.iter().find(|check| check.fact == fact)?;
    let (symbol, class) = mark(check.status);
    Some(Fact { text: found.unwrap_or("unknown").into(), symbol, class })
}

fn mark(status: CheckStatus) -> (&'static str, &'static str) {
    match status {
        CheckStatus::Confirmed => ("✓", "pass"),
        CheckStatus::Contradicted => ("✗", "regressed"),
        CheckStatus::Unknown => ("?", "inconclusive"),
    }
}

/// What each source says of one fact of one arm.
fn testimony(arm: &ArmSummary, check: &Check) -> Value {
    let (symbol, class) = mark(check.status);
    let observed = if check.observed.is_empty() { "no source says".to_owned() } else { check.observed_in_words() };
    fields! {
        arm => arm.arm.name, fact => check.fact, asked => check.asked.as_deref().unwrap_or("nothing"),
        observed => observed, status => check.status.name(), symbol => symbol, class => class,
    }
}

/// In words: is there a sign that the cache really was another one?
fn treatment(arm: &ArmComparison) -> Value {
    let signs = &arm.treatment;
    let nll = if signs.nll_pairs == 0 {
        "no likelihoods were measured".into()
    } else {
        format!(
            "likelihoods differ in {} of {} pairs",
            figures::count(signs.nll_different),
            figures::count(signs.nll_pairs)
        )
    };
    let texts = if signs.compared_outputs == 0 {
        "no answers to long prompts to compare".to_owned()
    } else {
        format!(
            "{} of {} answers to long prompts are the same text as the baseline's",
            figures::count(signs.identical_outputs),
            figures::count(signs.compared_outputs)
        )
    };
    let was_looked_for = signs.nll_pairs > 0 || signs.compared_outputs > 0;
    let differs = signs.nll_different > 0 || signs.identical_outputs < signs.compared_outputs;
    let (symbol, class) = match (was_looked_for, differs) {
        (false, _) => ("?", "inconclusive"),
        (true, true) => ("✓", "pass"),
        (true, false) => ("!", "invalid"),
    };
    fields! { arm => arm.summary.arm.name, symbol => symbol, class => class, text => format!("{texts}; {nll}") }
}

/// Two candidates that store the same format are a control of each other.
fn aliases(candidates: &[ArmComparison]) -> Option<String> {
    let named = |dtype: &str| candidates.iter().find(|arm| arm.summary.arm.kv_cache_dtype == dtype);
    let (short, long) = (named("fp8")?, named("fp8_e4m3")?);
    let is_same = |arm: &ArmComparison| arm.summary.resolved.kv_cache_dtype.value.as_deref() == Some("fp8_e4m3");
    (is_same(short) && is_same(long)).then(|| {
        format!(
            "{} and {} store the same format here: differences between these two arms are noise.",
            short.summary.arm.name, long.summary.arm.name
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_confirmed_contradicted_or_unknown() {
        assert_eq!(checked("fp8", Some("fp8_e4m3")).symbol, "✓");
        assert_eq!(checked("fp8_e5m2", Some("fp8_e4m3")).symbol, "✗");
        assert_eq!(checked("fp8_e5m2", None).symbol, "?");
        assert_eq!(checked("auto", Some("bfloat16")).symbol, "");
    }
}
