//! From a baseline to an arm of a run: is it of the same measurement, and if so, its answers in the run folder.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use serde::Serialize;

use crate::record::manifest::{AcceptedFrom, Manifest, RunStatus, plan_hash};
use crate::record::{Record, RecordError, RecordWriter};
use crate::setup::Resolved;

/// Fields of a plan that select items: whether the baseline has all of them is seen by the items themselves.
const SELECTION_FIELDS: [&str; 2] = ["suite", "items"];

/// Faults planted in the candidates of a dry run: no part of a baseline.
const DAMAGE_FIELD: &str = "damage";

/// Fields by task or language: a run may ask fewer of them than the baseline has.
const PER_TASK: [&str; 3] = ["generator.", "file.", "lexicon."];

/// A field in which baseline and run differ, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FieldDifference {
    /// The field: `seed`, `scorer.exact_value`, `model.weights`, `resolved.kernel`.
    pub field: String,
    /// The baseline's value; `None` where it has none.
    pub baseline: Option<String>,
    /// This run's value.
    pub run: Option<String>,
    /// What makes them agree.
    pub remedy: String,
}

impl FieldDifference {
    /// A difference with the remedy that its field has.
    pub fn new(field: &str, baseline: Option<&str>, run: Option<&str>) -> Self {
        let remedy = remedy(field, baseline);
        Self { field: field.into(), baseline: baseline.map(str::to_owned), run: run.map(str::to_owned), remedy }
    }
}

impl fmt::Display for FieldDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |value: &Option<String>| value.as_ref().map_or("nothing".into(), |text| format!("`{text}`"));
        let (baseline, run) = (shown(&self.baseline), shown(&self.run));
        write!(f, "{}: {baseline} in the baseline, {run} in this run: {}", self.field, self.remedy)
    }
}

fn remedy(field: &str, baseline: Option<&str>) -> String {
    let value = baseline.unwrap_or_default();
    match field {
        "seed" => format!("`--seed {value}`, or a baseline with this seed"),
        "suite name" => format!("`--suite {value}`, or a baseline of this suite"),
        "items" => "ask only items that it has (`--bins`, `--tasks`), or a baseline of this suite".into(),
        "model" | "weights" | "model.trained_context" => {
            "the model it was measured with, or a baseline of this model".into()
        }
        "tokenizer" => "the tokenizer it was measured with, or a baseline of this model".into(),
        "chat_template" => "the chat template it was measured with, or a baseline with this one".into(),
        "rope" => "the same `--rope-scaling`, or a baseline with this one".into(),
        "arm.kv_cache_dtype" => format!("`--baseline {value}`, or a baseline of this dtype"),
        "resolved.kernel" => format!("`--kernel {value}`, or a baseline of this kernel"),
        "resolved.engine" => "the engine it was measured on, or a baseline of this one".into(),
        _ if field.starts_with("scorer.") || PER_TASK.iter().any(|prefix| field.starts_with(prefix)) => {
            "it was made by another version: a new baseline".into()
        }
        _ if field.starts_with("arm.") || field.starts_with("resolved.") => {
            "the options it was measured with, or a baseline with these".into()
        }
        _ => "the settings it was measured with, or a baseline with these".into(),
    }
}

/// What forbids to compare the arms of a run with the baseline's record, field by field. `asked` is the manifest that the run's own
/// baseline arm would have; what is not known of it yet is no difference.
///
/// Items are not looked at: see [`FieldDifference`] `items` of whoever generates them.
pub fn differences(accepted: &Manifest, asked: &Manifest) -> Vec<FieldDifference> {
    let mut found = Vec::new();
    let mut compare = |field: &str, baseline: Option<&str>, run: Option<&str>| {
        if baseline != run {
            found.push(FieldDifference::new(field, baseline, run));
        }
    };
    compare("suite name", Some(&accepted.suite), Some(&asked.suite));
    let names: BTreeSet<&String> = accepted.plan.keys().chain(asked.plan.keys()).collect();
    for name in names {
        let (baseline, run) = (accepted.plan.get(name), asked.plan.get(name));
        let is_selection = SELECTION_FIELDS.contains(&name.as_str()) || name == DAMAGE_FIELD;
        let is_not_asked = run.is_none() && PER_TASK.iter().any(|prefix| name.starts_with(prefix));
        if !is_selection && !is_not_asked {
            compare(name, baseline.map(String::as_str), run.map(String::as_str));
        }
    }
    let context = |manifest: &Manifest| manifest.model.trained_context.to_string();
    compare("model.trained_context", Some(&context(accepted)), Some(&context(asked)));
    let (ours, theirs) = (arm_fields(accepted), arm_fields(asked));
    let names: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
    for name in names {
        compare(name, ours.get(name).map(String::as_str), theirs.get(name).map(String::as_str));
    }
    let (ours, theirs) = (engine_fields(&accepted.resolved), engine_fields(&asked.resolved));
    for ((name, baseline), (_, run)) in ours.into_iter().zip(theirs) {
        if baseline.is_some() && run.is_some() {
            compare(name, baseline, run);
        }
    }
    found
}

/// What was asked of the arm, but for its name: that says nothing of its answers.
fn arm_fields(manifest: &Manifest) -> BTreeMap<String, String> {
    let arm = &manifest.arm;
    let mut fields = BTreeMap::from([("arm.kv_cache_dtype".to_owned(), arm.kv_cache_dtype.clone())]);
    fields.extend(arm.attention_backend.iter().map(|backend| ("arm.attention_backend".to_owned(), backend.clone())));
    fields.extend(arm.settings.iter().map(|(name, value)| (format!("arm.{name}"), value.clone())));
    fields
}

/// What decides numbers on the engine's side.
fn engine_fields(resolved: &Resolved) -> [(&'static str, Option<&str>); 7] {
    [
        ("resolved.engine", resolved.engine.value.as_deref()),
        ("resolved.kv_cache_dtype", resolved.kv_cache_dtype.value.as_deref()),
        ("resolved.attention_backend", resolved.attention_backend.value.as_deref()),
        ("resolved.attention_arithmetic", resolved.attention_arithmetic.value.as_deref()),
        ("resolved.kernel", resolved.kernel.value.as_deref()),
        ("resolved.kv_scales", resolved.kv_scales.value.as_deref()),
        ("resolved.kv_layers", resolved.kv_layers.value.as_deref()),
    ]
}

/// The manifest of the baseline as an arm of this run: the run's plan and arm, what was in effect when it was measured, and where it is
/// from. `options` is the entry of the environment that says how this run was asked for.
pub fn adopted_manifest(
    accepted: &Manifest,
    asked: &Manifest,
    from: AcceptedFrom,
    options: (&str, String),
) -> Manifest {
    let mut environment = accepted.environment.clone();
    environment.insert(options.0.into(), options.1);
    Manifest {
        plan_hash: plan_hash(&asked.plan, &asked.arm),
        plan: asked.plan.clone(),
        arm: asked.arm.clone(),
        suite: asked.suite.clone(),
        planned_items: asked.planned_items,
        format: asked.format,
        environment,
        status: RunStatus::Started,
        accepted: Some(from),
        ..accepted.clone()
    }
}

/// Copies the answers to `items` into the record in `dir`; what an earlier start copied stays. Returns how many are there now.
///
/// # Errors
/// Those of [`RecordWriter::open`] and of writing; [`RecordError::Incomplete`] where the baseline lacks one of the items.
pub fn adopt(record: &Record, manifest: &Manifest, items: &BTreeSet<&str>, dir: &Path) -> Result<u64, RecordError> {
    let mut opened = RecordWriter::open(dir, manifest)?;
    if opened.done.is_empty()
        && let Some(accepted) = &manifest.accepted
    {
        opened.writer.event("accepted", &accepted.to_string());
    }
    for sample in &record.samples {
        if items.contains(sample.item_id.as_str()) && !opened.done.contains_key(&sample.item_id) {
            opened.writer.append(sample)?;
        }
    }
    opened.writer.finish(RunStatus::Complete)?;
    Ok(opened.writer.done_items())
}
