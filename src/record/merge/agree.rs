//! What shards of one run have to agree in, and what is said where they rightly differ.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;

use crate::record::RunFile;
use crate::record::manifest::{self, Difference, Manifest, OPTIONS_FIELD, SHARD_FIELD};
use crate::setup::{Check, CheckStatus, Resolved};
use crate::suite::Shard;

/// Facts of `resolved` that follow from the memory that was free when a server started.
const CAPACITY: [&str; 2] = ["kv_cache_tokens", "kv_cache_blocks"];

/// Values told of one fact that differs: a list of a thousand machines tells no more.
const MAX_TOLD: usize = 8;

/// Differences between the plans of two shards of one run. The order of the arms is none.
pub(super) fn run_differences(first: &RunFile, second: &RunFile) -> Vec<Difference> {
    let mut all = differences("", &run_fields(first), &run_fields(second));
    all.extend(differences("gate.", &fields(&first.gate), &fields(&second.gate)));
    let arms = |run: &RunFile| run.arms.iter().map(|arm| (format!("arm {}", arm.name), text_of(arm))).collect();
    all.extend(differences("", &arms(first), &arms(second)));
    all
}

fn run_fields(run: &RunFile) -> BTreeMap<String, String> {
    let shards = run.shard.map_or(0, Shard::of).to_string();
    [
        ("tool_version", run.tool_version.clone()),
        ("suite", run.suite.clone()),
        ("suite_fingerprint", run.suite_fingerprint.clone()),
        ("number of shards", shards),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// Differences between what identifies one arm in two shards, but for the shard.
pub(super) fn identity_differences(first: &Manifest, second: &Manifest) -> Vec<Difference> {
    let mut all = manifest::diff(first, second);
    all.retain(|it| it.field != format!("plan.{SHARD_FIELD}"));
    let versions = [first, second].map(|it| BTreeMap::from([("tool_version".to_owned(), it.tool_version.clone())]));
    all.extend(differences("", &versions[0], &versions[1]));
    all
}

/// The first fact that two shards know differently, with their places. What one of them does not know is no difference.
pub(super) fn fact_in_conflict(manifests: &[&Manifest]) -> Option<(usize, usize, Difference)> {
    let mut known: BTreeMap<String, (usize, String)> = BTreeMap::new();
    for (at, manifest) in manifests.iter().enumerate() {
        for (field, value) in known_facts(manifest) {
            let (first, recorded) = known.entry(field.clone()).or_insert_with(|| (at, value.clone()));
            if *recorded != value {
                let recorded = Some(recorded.clone());
                return Some((*first, at, Difference { field, recorded, asked: Some(value) }));
            }
        }
    }
    None
}

/// What is known to be in effect, and was asked for, and must not differ.
fn known_facts(manifest: &Manifest) -> Vec<(String, String)> {
    let facts = facts_of(&manifest.resolved).into_iter().filter(|(name, _)| !CAPACITY.contains(&name.as_str()));
    let known = facts.filter(|(_, fact)| !fact["value"].is_null());
    let resolved = known.map(|(name, fact)| (format!("resolved.{name}"), told(&fact["value"])));
    let asked = manifest.checks.iter().filter_map(|it| Some((format!("checks.{}", it.fact), it.asked.clone()?)));
    resolved.chain(asked).collect()
}

fn told(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn facts_of(resolved: &Resolved) -> serde_json::Map<String, Value> {
    match serde_json::to_value(resolved).expect("plain structs of strings and numbers always serialise") {
        Value::Object(facts) => facts,
        _ => serde_json::Map::new(),
    }
}

/// What is in effect in all shards. A fact that one of them does not know is not known: what was asked there may have run without it.
/// A capacity that differs is told with its values.
pub(super) fn resolved(parts: &[(Shard, &Manifest)]) -> Resolved {
    let all: Vec<_> = parts.iter().map(|(shard, it)| (shard, facts_of(&it.resolved))).collect();
    let mut merged = all[0].1.clone();
    for (name, fact) in &mut merged {
        let value_in = |facts: &serde_json::Map<String, Value>| facts[name]["value"].clone();
        let is_same = all.iter().all(|(_, facts)| value_in(facts) == fact["value"]);
        if is_same {
            continue;
        }
        let of_shards = all.iter().take(MAX_TOLD).map(|(shard, facts)| match &facts[name]["value"] {
            Value::Null => format!("not known in shard {shard}"),
            value => format!("{} in shard {shard}", told(value)),
        });
        let mut source = of_shards.collect::<Vec<_>>().join(", ");
        if all.len() > MAX_TOLD {
            source += &format!(" and so on in {} shards", all.len());
        }
        *fact = serde_json::json!({ "value": null, "source": source });
    }
    serde_json::from_value(Value::Object(merged)).expect("every fact is one of a shard, or unknown")
}

/// What every shard saw. Each had a server of its own or a start of its own, so an observation that is not the same everywhere is
/// told with its shard, and a fact that one shard saw nothing of is not confirmed.
pub(super) fn checks(parts: &[(Shard, &Manifest)]) -> Vec<Check> {
    let mut names: Vec<&str> = Vec::new();
    for check in parts.iter().flat_map(|(_, it)| &it.checks) {
        if !names.contains(&check.fact.as_str()) {
            names.push(&check.fact);
        }
    }
    names.into_iter().filter_map(|fact| check_of(fact, parts)).collect()
}

fn check_of(fact: &str, parts: &[(Shard, &Manifest)]) -> Option<Check> {
    let of = |it: &Manifest| it.checks.iter().find(|check| check.fact == fact).cloned();
    // Who was asked nothing has nothing to see.
    let seen: Vec<(Shard, Option<Check>)> = parts
        .iter()
        .map(|(shard, it)| (*shard, of(it), it.planned_items))
        .filter(|(_, check, planned)| *planned > 0 || check.is_some())
        .map(|(shard, check, _)| (shard, check))
        .collect();
    let first = seen.iter().find_map(|(_, check)| check.clone())?;
    let is_same = seen.iter().all(|(_, check)| check.as_ref().is_some_and(|it| it.observed == first.observed));
    let unseen = Check { observed: Vec::new(), status: CheckStatus::Unknown, ..first.clone() };
    let mut all = seen.into_iter().map(|(shard, check)| {
        let mut check = check.unwrap_or_else(|| unseen.clone());
        for observation in check.observed.iter_mut().filter(|_| !is_same) {
            observation.source += &format!(", shard {shard}");
        }
        check
    });
    let mut merged = all.next()?;
    all.for_each(|check| merged.extend(check));
    Some(merged)
}

/// Facts of all machines. The options are those of the first shard: they make the whole run again.
pub(super) fn environment(parts: &[(Shard, &Manifest)]) -> BTreeMap<String, String> {
    let names: BTreeSet<&String> = parts.iter().flat_map(|(_, it)| it.environment.keys()).collect();
    let merged = names.into_iter().map(|name| {
        let mut values: Vec<&str> = Vec::new();
        for value in parts.iter().filter_map(|(_, it)| it.environment.get(name)) {
            if !values.contains(&value.as_str()) {
                values.push(value);
            }
        }
        let kept = if name == OPTIONS_FIELD { 1 } else { MAX_TOLD };
        let mut text = values.iter().take(kept).copied().collect::<Vec<_>>().join(" | ");
        if name != OPTIONS_FIELD && values.len() > kept {
            text += &format!(" | {} more", values.len() - kept);
        }
        (name.clone(), text)
    });
    merged.collect()
}

fn fields(value: &impl Serialize) -> BTreeMap<String, String> {
    let value = serde_json::to_value(value).expect("plain structs of strings and numbers always serialise");
    value.as_object().into_iter().flatten().map(|(name, value)| (name.clone(), value.to_string())).collect()
}

fn text_of(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain structs of strings and numbers always serialise")
}

fn differences(prefix: &str, first: &BTreeMap<String, String>, second: &BTreeMap<String, String>) -> Vec<Difference> {
    let mut all = manifest::differences(first, second);
    for difference in &mut all {
        difference.field.insert_str(0, prefix);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::manifest::tests::manifest;
    use crate::setup::{Evidence, Observation, SAME_SERVER};

    fn two(change: impl Fn(&mut Manifest)) -> [Manifest; 2] {
        let first = manifest(4);
        let mut second = first.clone();
        change(&mut second);
        [first, second]
    }

    fn parts(of: &[Manifest; 2]) -> [(Shard, &Manifest); 2] {
        [(Shard::new(1, 2).unwrap(), &of[0]), (Shard::new(2, 2).unwrap(), &of[1])]
    }

    fn differing(change: impl Fn(&mut Manifest)) -> Vec<String> {
        let [first, second] = two(change);
        let mut all = identity_differences(&first, &second);
        all.extend(fact_in_conflict(&[&first, &second]).map(|(_, _, fact)| fact));
        all.into_iter().map(|it| it.field).collect()
    }

    #[test]
    fn what_decides_the_answers_must_agree_and_what_follows_from_the_machine_need_not() {
        let known = |value: &str| Evidence::known(value.to_owned(), "log");
        assert_eq!(differing(|it| it.tool_version = "9".into()), ["tool_version"]);
        assert_eq!(differing(|it| it.model.weights = "other".into()), ["model.weights"]);
        assert_eq!(differing(|it| it.model.tokenizer = "other".into()), ["model.tokenizer"]);
        assert_eq!(differing(|it| drop(it.plan.insert("seed".into(), "8".into()))), ["plan.seed"]);
        assert_eq!(differing(|it| it.resolved.kv_cache_dtype = known("auto")), ["resolved.kv_cache_dtype"]);
        assert_eq!(differing(|it| it.resolved.engine = known("other 1")), ["resolved.engine"]);
        assert_eq!(differing(|it| it.resolved.kernel = known("avx512")), ["resolved.kernel"]);
        assert_eq!(differing(|it| it.resolved.kv_bytes_per_token = Evidence::known(1.0, "log")).len(), 1);
        assert!(differing(|it| drop(it.plan.insert(SHARD_FIELD.into(), "2/2".into()))).is_empty());
        assert!(differing(|it| drop(it.environment.insert("cpu".into(), "other".into()))).is_empty());
        assert!(differing(|it| it.resolved.kv_cache_tokens = Evidence::known(7, "log")).is_empty());
        assert!(differing(|it| it.resolved.kernel = Evidence::unknown("not said")).is_empty());
        // Also where the first does not know it.
        let [mut first, second] = two(|it| it.resolved.kernel = known("avx512"));
        let third = first.clone();
        first.resolved.kernel = Evidence::unknown("not said");
        let (ours, theirs, fact) = fact_in_conflict(&[&first, &second, &third]).unwrap();
        assert_eq!((ours, theirs, fact.field.as_str()), (1, 2, "resolved.kernel"));
        assert_eq!((fact.recorded.as_deref(), fact.asked.as_deref()), (Some("avx512"), Some("portable")));
    }

    #[test]
    fn a_fact_that_one_shard_does_not_know_is_not_known() {
        let same = two(|_| ());
        assert_eq!(resolved(&parts(&same)), same[0].resolved);
        let of = two(|it| it.resolved.kv_cache_dtype = Evidence::unknown("not said"));
        let merged = resolved(&parts(&of));
        assert_eq!(merged.kv_cache_dtype.value, None);
        assert_eq!(merged.kv_cache_dtype.source, "fp8_e4m3 in shard 1/2, not known in shard 2/2");
        let mut of = two(|it| it.resolved.kv_cache_tokens = Evidence::known(7, "log"));
        of[0].resolved.kv_cache_tokens = Evidence::known(9, "log");
        assert_eq!(resolved(&parts(&of)).kv_cache_tokens, Evidence::unknown("9 in shard 1/2, 7 in shard 2/2"));
    }

    #[test]
    fn every_shard_keeps_what_it_saw_and_the_worst_status_stands() {
        let seen = |value: &str, status| Check {
            fact: SAME_SERVER.into(),
            asked: None,
            observed: vec![Observation { value: value.into(), source: "/metrics".into() }],
            status,
        };
        let mut of = two(|it| it.checks = vec![seen("rose", CheckStatus::Confirmed)]);
        let merged = checks(&parts(&of));
        assert_eq!((merged.len(), merged[0].status), (1, CheckStatus::Unknown), "shard 1 saw nothing");
        of[0].checks = vec![seen("rose", CheckStatus::Confirmed)];
        assert_eq!(checks(&parts(&of)), of[0].checks);
        of[1].checks = vec![seen("began anew", CheckStatus::Contradicted)];
        let merged = checks(&parts(&of));
        assert!(merged[0].is_contradicted());
        assert_eq!(merged[0].observed_in_words(), "rose (/metrics, shard 1/2), began anew (/metrics, shard 2/2)");
        // A shard without questions of this arm has nothing to see.
        of[1].checks.clear();
        of[1].planned_items = 0;
        assert_eq!(checks(&parts(&of)), of[0].checks);
    }

    #[test]
    fn machines_are_told_side_by_side_and_options_once() {
        let of = two(|it| {
            it.environment.insert("cpu".into(), "other".into());
            it.environment.insert(OPTIONS_FIELD.into(), "--suite b".into());
        });
        let mut first = of[0].clone();
        first.environment.insert(OPTIONS_FIELD.into(), "--suite a".into());
        let merged = environment(&parts(&[first, of[1].clone()]));
        assert_eq!((merged["cpu"].as_str(), merged[OPTIONS_FIELD].as_str()), ("test | other", "--suite a"));
    }
}
