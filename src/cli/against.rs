//! `check --against`: an accepted baseline stands in for the arm that would be measured.
//!
//! Its answers are copied into the run folder, so that `gate` and `report` need nothing else, but only after it is clear that they
//! answer what this run asks: every field that decides numbers is equal, and every item, generated again, has the prompt it was asked
//! with and is judged as it was. On the embedded engine the A/A arm is still asked in this run: it shows on the two shortest bins that
//! this machine gives the accepted answers. On servers it is part of what was accepted, because their noise is.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use clap::Args;
use kvgauge::baseline::{
    self, Baseline, BaselineError, DEFAULT_DIR, FieldDifference, Store, adopted_manifest, differences,
};
use kvgauge::record::Record;
use kvgauge::record::manifest::{Manifest, RunStatus};
use kvgauge::record::samples::SampleRecord;
use kvgauge::runner::{ArmOutcome, judged_again};
use kvgauge::setup::{Arm, ArmRole};
use kvgauge::suite::{Plan, Suite};
use kvgauge::tokenizer::TokenCounter;

use crate::baseline::{Place, check_age, remote};
use crate::config::ConfigFile;
use crate::failure::Failure;
use crate::machine;
use crate::measure::{MeasuredArm, OPTIONS_KEY, quoted};
use crate::output::note;

/// Digits of the content's hash in the name of a run folder.
const DIR_DIGITS: usize = 8;

#[derive(Args, Debug, Default)]
pub(crate) struct AgainstArgs {
    /// Accepted baseline that is compared with, instead of measuring one: its name in `baselines`, or its folder
    #[arg(long, value_name = "NAME", env = "KVGAUGE_AGAINST", hide_env_values = true)]
    against: Option<String>,
    /// Refuse an accepted baseline that is older [default: a warning after 30 days]
    #[arg(long, value_name = "DAYS", env = "KVGAUGE_MAX_AGE", hide_env_values = true)]
    max_age: Option<u32>,
}

/// The accepted baseline of a run.
pub(crate) struct Against {
    /// As it was asked for.
    reference: String,
    accepted: Baseline,
    /// Whether the A/A arm is taken from it, too.
    takes_control: bool,
}

impl Against {
    /// The baseline that options or configuration name, every byte of it checked.
    pub(crate) fn load(args: &AgainstArgs, config: &ConfigFile, takes_control: bool) -> Result<Option<Self>, Failure> {
        let Some(reference) = args.against.clone().or_else(|| config.baseline.against.clone()) else { return Ok(None) };
        let accepted = if remote::is_address(&reference) {
            let (place, name) = remote::split_name(&reference)?;
            Place::open(place, &[name.to_owned()], true)?.store.load(name)?
        } else {
            Store::new(Path::new(DEFAULT_DIR)).load(&reference)?
        };
        check_age(&accepted.pointer, args.max_age.or(config.baseline.max_age))?;
        if takes_control && accepted.control.is_none() {
            return Err(BaselineError::NoControl { name: accepted.pointer.name }.into());
        }
        note(&accepted.pointer.accepted_from().to_string());
        let here = machine::facts().remove("cpu");
        let there = accepted.baseline.manifest.environment.get("cpu");
        if !takes_control && there != here.as_ref() {
            let there = there.map_or("a machine that is not known", String::as_str);
            note(&format!(
                "it was measured on another machine ({there}): the A/A arm shows whether the answers are the same here"
            ));
        }
        Ok(Some(Self { reference, accepted, takes_control }))
    }

    /// The record that stands in for `arm`.
    pub(crate) fn record(&self, arm: &Arm) -> Option<&Record> {
        match arm.role {
            ArmRole::Baseline => Some(&self.accepted.baseline),
            ArmRole::Control if self.takes_control => self.accepted.control.as_ref(),
            ArmRole::Control | ArmRole::Candidate => None,
        }
    }

    /// A run folder of its own for each content: a folder in which the baseline was measured is never continued with copied answers.
    pub(crate) fn run_dir(&self, dir: &Path) -> PathBuf {
        let hash = &self.accepted.pointer.hash;
        PathBuf::from(format!("{}-against-{}", dir.display(), hash.get(..DIR_DIGITS).unwrap_or(hash)))
    }

    /// The manifest of `record` as an arm of this run, which would have `asked` if it were measured.
    ///
    /// # Errors
    /// Every field in which the two are not of one measurement.
    pub(crate) fn manifest(&self, record: &Record, asked: &Manifest) -> Result<Manifest, Failure> {
        self.refuse(differences(&record.manifest, asked))?;
        let options = asked.environment.get(OPTIONS_KEY).map_or("", String::as_str);
        let options = format!("{options} --against {}", quoted(&self.reference)).trim_start().to_owned();
        Ok(adopted_manifest(&record.manifest, asked, self.accepted.pointer.accepted_from(), (OPTIONS_KEY, options)))
    }

    fn refuse(&self, differences: Vec<FieldDifference>) -> Result<(), Failure> {
        if differences.is_empty() {
            return Ok(());
        }
        let pointer = &self.accepted.pointer;
        let (name, accepted_at) = (pointer.name.clone(), pointer.accepted_at.clone());
        Err(BaselineError::Differs { name, accepted_at, differences }.into())
    }

    /// Generates the items of `plan` and refuses a record that does not hold them, holds them with another prompt, or with a score
    /// that would be another one now. A copy that is in the run folder as a whole was checked when it was made.
    pub(crate) fn check_items(
        &self,
        record: &Record,
        suite: &Suite,
        plan: &Plan,
        counter: &dyn TokenCounter,
        dir: &Path,
    ) -> Result<(), Failure> {
        let is_copied = |manifest: Manifest| {
            let hash = manifest.accepted.map(|accepted| accepted.hash);
            manifest.status == RunStatus::Complete && hash.as_ref() == Some(&self.accepted.pointer.hash)
        };
        if Manifest::read(dir).is_ok_and(is_copied) {
            return Ok(());
        }
        self.refuse(item_differences(record, suite, plan, counter)?)
    }

    /// Copies the answers to the items of `plan` into the run folder.
    pub(crate) fn adopt(
        &self,
        record: &Record,
        manifest: &Manifest,
        plan: &Plan,
        dir: PathBuf,
    ) -> Result<MeasuredArm, Failure> {
        let items: BTreeSet<&str> = item_ids(plan).collect();
        let done = baseline::adopt(record, manifest, &items, &dir)? as usize;
        let outcome = ArmOutcome { done, asked: 0, errors: 0 };
        Ok(MeasuredArm { arm: manifest.arm.clone(), dir, planned: plan.item_count(), outcome })
    }
}

fn item_ids(plan: &Plan) -> impl Iterator<Item = &str> {
    plan.groups.iter().flat_map(|group| group.items.iter().map(|item| item.item_id.as_str()))
}

fn item_differences(
    record: &Record,
    suite: &Suite,
    plan: &Plan,
    counter: &dyn TokenCounter,
) -> Result<Vec<FieldDifference>, Failure> {
    let recorded: BTreeMap<&str, &SampleRecord> =
        record.samples.iter().map(|sample| (sample.item_id.as_str(), sample)).collect();
    let planned = plan.item_count();
    let missing = item_ids(plan).filter(|id| !recorded.contains_key(id)).count();
    if missing > 0 {
        let (has, asks) = (format!("{} items", recorded.len()), format!("{planned} items, {missing} of them others"));
        return Ok(vec![FieldDifference::new("items", Some(&has), Some(&asks))]);
    }
    let mut differing: BTreeMap<String, usize> = BTreeMap::new();
    for group in &plan.groups {
        for item in suite.generate(group, counter)? {
            let sample = recorded[item.item_id.as_str()];
            for field in differing_fields(sample, &judged_again(&item, sample))? {
                *differing.entry(field).or_default() += 1;
            }
        }
    }
    let differences = differing.into_iter().map(|(field, count)| {
        FieldDifference::new(
            &format!("item.{field}"),
            Some("as accepted"),
            Some(&format!("another in {count} of {planned} items")),
        )
    });
    Ok(differences.collect())
}

/// Names of the fields in which two samples differ.
fn differing_fields(recorded: &SampleRecord, again: &SampleRecord) -> Result<Vec<String>, Failure> {
    if recorded == again {
        return Ok(Vec::new());
    }
    let fields = |sample| match serde_json::to_value(sample) {
        Ok(serde_json::Value::Object(fields)) => Ok(fields),
        Ok(_) => Ok(serde_json::Map::new()),
        Err(error) => Err(Failure::Json(error)),
    };
    let (recorded, again) = (fields(recorded)?, fields(again)?);
    let names: BTreeSet<&String> = recorded.keys().chain(again.keys()).collect();
    Ok(names.into_iter().filter(|name| recorded.get(*name) != again.get(*name)).cloned().collect())
}
