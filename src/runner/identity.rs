//! What makes two runs comparable: the manifest of an arm.

use std::collections::BTreeMap;

use crate::record::manifest::{self, FORMAT, Manifest, RunStatus};
use crate::scorers;
use crate::setup::Arm;
use crate::suite::{Plan, Suite};
use crate::targets::Target;

/// The header of the record of `arm` on `target`. `environment` holds machine facts, which are shown and never compared.
pub fn manifest(
    suite: &Suite,
    plan: &Plan,
    arm: &Arm,
    target: &dyn Target,
    environment: BTreeMap<String, String>,
) -> Manifest {
    let plan_fields = plan_fields(suite, plan, target);
    Manifest {
        format: FORMAT,
        tool_version: env!("CARGO_PKG_VERSION").into(),
        suite: suite.name.clone(),
        plan_hash: manifest::plan_hash(&plan_fields, arm),
        plan: plan_fields,
        arm: arm.clone(),
        model: target.model().clone(),
        resolved: target.resolved(),
        checks: target.checks(),
        environment,
        planned_items: plan.item_count() as u64,
        status: RunStatus::Started,
        accepted: None,
    }
}

/// Whether a record is of these items, as far as that can be told without its target.
pub fn is_of_plan(manifest: &Manifest, suite: &Suite, plan: &Plan) -> bool {
    question_fields(suite, plan).iter().all(|(name, value)| manifest.plan.get(name) == Some(value))
}

/// The comparability fields: equal in every arm of a comparison, but for `items` of an A/A arm that runs on fewer bins.
fn plan_fields(suite: &Suite, plan: &Plan, target: &dyn Target) -> BTreeMap<String, String> {
    let model = target.model();
    let mut fields = question_fields(suite, plan);
    fields.insert("model".into(), model.name.clone());
    fields.insert("weights".into(), model.weights.clone());
    fields.insert("tokenizer".into(), model.tokenizer.clone());
    fields.insert("chat_template".into(), model.chat_template.clone());
    fields.insert("rope".into(), model.rope.clone());
    for (name, value) in target.decoding() {
        fields.insert(name.into(), value);
    }
    fields
}

/// The part of it that does not depend on who answers.
fn question_fields(suite: &Suite, plan: &Plan) -> BTreeMap<String, String> {
    let mut fields = suite.versions();
    fields.insert("suite".into(), suite.fingerprint());
    fields.insert(manifest::ITEMS_FIELD.into(), plan.items_hash());
    fields.insert("seed".into(), suite.seed.to_string());
    for scorer in scorers::SCORERS {
        fields.insert(format!("scorer.{}", scorer.name), scorer.version.to_string());
    }
    fields
}
