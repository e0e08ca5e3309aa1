//! Are two records of the same measurement, but for what the arm is meant to differ in?

use std::collections::{BTreeMap, BTreeSet};

use crate::compare::pairing::Arm;
use crate::compare::{CompareError, Mismatch};
use crate::record::manifest::Manifest;
use crate::setup::{ArmRole, Evidence};

/// Fields of a plan that name the arm: they are the experiment.
const ARM_FIELDS: [&str; 6] = ["arm", "arm_name", "arm_role", "kv_cache_dtype", "attention_backend", "kv_scales"];

/// Fields of a plan that select items. An A/A control may be a part of the baseline's plan; its items still have to
/// have the baseline's prompts.
const SELECTION_FIELDS: [&str; 5] = ["bins", "tasks", "samples", "items", "planned_items"];

/// The plan without what names the arm.
pub(super) fn shared_plan(plan: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    plan.iter()
        .filter(|(field, _)| !ARM_FIELDS.contains(&field.as_str()))
        .map(|(field, value)| (field.clone(), value.clone()))
        .collect()
}

/// Refuses records that differ in suite, plan, model, or the embedded engine's kernel.
pub(super) fn refuse_mismatch(base: &Manifest, arm: &Manifest) -> Result<(), CompareError> {
    let is_control = arm.arm.role == ArmRole::Control;
    let mut ours = shared_plan(&base.plan);
    let mut theirs = shared_plan(&arm.plan);
    if is_control {
        for field in SELECTION_FIELDS {
            ours.remove(field);
            theirs.remove(field);
        }
    }
    let mut fields = differing_fields(&ours, &theirs);
    // The plan holds most of the identity already: what it has told is not told twice.
    let identity = differing_fields(&identity(base), &identity(arm));
    let is_told =
        |it: &Mismatch| fields.iter().any(|told| told.baseline == it.baseline && told.candidate == it.candidate);
    let untold: Vec<Mismatch> = identity.into_iter().filter(|it| !is_told(it)).collect();
    fields.extend(untold);
    if fields.is_empty() {
        return Ok(());
    }
    Err(CompareError::Mismatch { arm: arm.arm.name.clone(), baseline: base.arm.name.clone(), fields })
}

fn differing_fields(ours: &BTreeMap<String, String>, theirs: &BTreeMap<String, String>) -> Vec<Mismatch> {
    let value = |fields: &BTreeMap<String, String>, name| fields.get(name).cloned().unwrap_or_else(|| "absent".into());
    let names: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
    names
        .into_iter()
        .filter(|name| ours.get(*name) != theirs.get(*name))
        .map(|name| Mismatch { field: name.clone(), baseline: value(ours, name), candidate: value(theirs, name) })
        .collect()
}

fn identity(manifest: &Manifest) -> BTreeMap<String, String> {
    let model = &manifest.model;
    let mut fields: BTreeMap<String, String> = [
        ("suite name", manifest.suite.clone()),
        ("record format", manifest.format.major.to_string()),
        ("model.weights", model.weights.clone()),
        ("model.tokenizer", model.tokenizer.clone()),
        ("model.chat_template", model.chat_template.clone()),
        ("model.rope", model.rope.clone()),
        ("model.trained_context", model.trained_context.to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    // The embedded engine's results are the same bit for bit on one kernel, and only there.
    fields.extend(manifest.resolved.kernel.value.iter().map(|kernel| ("resolved kernel".to_owned(), kernel.clone())));
    fields
}

/// Differences that do not forbid to look, but to judge.
pub(super) fn soft_mismatches(base: &Arm<'_>, arm: &Arm<'_>) -> Vec<Mismatch> {
    let (ours, theirs) = (&base.manifest.resolved, &arm.manifest.resolved);
    let mut fields: Vec<Mismatch> = Vec::new();
    fields.extend(differing("engine", &ours.engine, &theirs.engine, |engine| engine_name(engine)));
    fields.extend(differing("max_model_len", &ours.max_model_len, &theirs.max_model_len, u32::to_string));
    let is_control = arm.manifest.arm.role == ArmRole::Control;
    if !is_control && base.manifest.planned_items != arm.manifest.planned_items {
        fields.push(Mismatch {
            field: "planned items".into(),
            baseline: base.manifest.planned_items.to_string(),
            candidate: arm.manifest.planned_items.to_string(),
        });
    }
    if is_overfull(base) || is_overfull(arm) {
        let counted = |it: &Arm<'_>| format!("{} of {} planned", it.item_count(), it.manifest.planned_items);
        let (baseline, candidate) = (counted(base), counted(arm));
        fields.push(Mismatch { field: "recorded items".into(), baseline, candidate });
    }
    let strangers = arm.samples.keys().filter(|id| !base.samples.contains_key(*id)).count();
    if strangers > 0 && base.item_count() >= base.manifest.planned_items {
        fields.push(Mismatch {
            field: "items".into(),
            baseline: "all planned".into(),
            candidate: format!("{strangers} items that the baseline does not have"),
        });
    }
    fields
}

/// More items than were planned: the plan in the manifest is not the one that was run.
fn is_overfull(arm: &Arm<'_>) -> bool {
    arm.item_count() > arm.manifest.planned_items
}

/// The name without its version: an engine of another version is another build, an engine of another name another program.
fn engine_name(engine: &str) -> String {
    let words: Vec<&str> = engine
        .split_whitespace()
        .take_while(|word| !word.trim_start_matches('v').starts_with(char::is_numeric))
        .collect();
    words.join(" ")
}

fn differing<T>(field: &str, base: &Evidence<T>, arm: &Evidence<T>, read: impl Fn(&T) -> String) -> Option<Mismatch> {
    let (ours, theirs) = (read(base.value.as_ref()?), read(arm.value.as_ref()?));
    (ours != theirs).then(|| Mismatch { field: field.into(), baseline: ours, candidate: theirs })
}

/// Says so when the two arms ran on different attention backends.
pub(super) fn confounded(base: &Manifest, arm: &Manifest) -> Option<String> {
    let (ours, theirs) = (&base.resolved.attention_backend, &arm.resolved.attention_backend);
    let difference = differing("attention backend", ours, theirs, Clone::clone)?;
    // The baseline's cache on the candidate's backend is itself the arm that tells the two apart.
    let third_arm = if base.arm.kv_cache_dtype == arm.arm.kv_cache_dtype {
        String::new()
    } else {
        format!("; the arm {}@{} tells them apart", base.arm.kv_cache_dtype, difference.candidate)
    };
    Some(format!(
        "the attention backend is {} ({}) against {} ({}): a difference in quality may be the backend's and not \
         the cache's{third_arm}",
        difference.candidate, theirs.source, difference.baseline, ours.source
    ))
}
