//! By which gate recorded runs are judged: the one stored with them, unless another is named.

use std::collections::{BTreeMap, BTreeSet};

use kvgauge::sample::{Bin, Language};
use kvgauge::suite::{BinPlan, GatePolicy, Suite, TaskPlan};

use crate::config::{ConfigFile, DEFAULT_FILE};
use crate::failure::Failure;
use crate::measure::{self, OPTIONS_KEY};
use crate::output::note;
use crate::records::Records;

/// The suite with the `[gate]` of the configuration on top of its own: what a run is measured and judged with.
pub(crate) fn with_gate(suite: Suite, config: &ConfigFile) -> Result<Suite, Failure> {
    if config.gate.is_empty() { Ok(suite) } else { Ok(suite.with_gate(&config.gate, "configuration")?) }
}

/// The gate of records. `suite` and a configuration that was named replace the stored one and say so; the `kvgauge.toml` that
/// happens to lie in the working directory does not.
pub(crate) fn of_records(records: &Records, suite: Option<&str>, config: &ConfigFile) -> Result<GatePolicy, Failure> {
    let (bins, tasks) = asked(records);
    if let Some(name) = suite {
        let named = measure::suite_by_name(name)?.select(Some(&bins), Some(&tasks), None, None)?;
        note(&format!("judged by the gate of suite `{name}`, whatever gate the run was measured with"));
        return Ok(if config.is_named { with_gate(named, config)? } else { named }.gate);
    }
    let stored = stored(records)?;
    if config.gate.is_empty() {
        return Ok(stored);
    }
    let rejudged = with_gate(as_recorded(records, &bins, &tasks, stored.clone()), config);
    if config.is_named {
        note("judged by the gate of the configuration, on top of the one stored with the run");
        return Ok(rejudged?.gate);
    }
    if !rejudged.is_ok_and(|suite| suite.gate == stored) {
        let file = format!("`--config {DEFAULT_FILE}`");
        note(&format!("judged by the gate stored with the run; {file} would judge by the [gate] of that file"));
    }
    Ok(stored)
}

/// Bins and tasks of the baseline.
fn asked(records: &Records) -> (Vec<Bin>, Vec<String>) {
    let samples = &records.baseline.samples;
    let bins: BTreeSet<Bin> = samples.iter().map(|sample| sample.bin).collect();
    let tasks: BTreeSet<&String> = samples.iter().map(|sample| &sample.task).collect();
    (bins.into_iter().collect(), tasks.into_iter().cloned().collect())
}

/// The gate in the run folders of the records; where there is none, that of the built-in suite they are of.
fn stored(records: &Records) -> Result<GatePolicy, Failure> {
    let Some((first, policy)) = records.gates.first() else { return of_builtin(records) };
    match records.gates.iter().find(|(_, other)| other != policy) {
        Some((second, _)) => Err(Failure::ManyGates { first: first.clone(), second: second.clone() }),
        None => Ok(policy.clone()),
    }
}

/// A name proves nothing, since anyone may call a suite file `quick`: the fingerprint has to be that of the built-in suite,
/// cut down as these records were. It leaves the gate out, so a copy of the built-in file with another gate has it, too: such
/// a record is known by the option that named the file.
fn of_builtin(records: &Records) -> Result<GatePolicy, Failure> {
    let manifest = &records.baseline.manifest;
    let unknown = || Failure::NoPolicy { suite: manifest.suite.clone() };
    let builtin = Suite::builtin(&manifest.suite).map_err(|_| unknown())?;
    let options = manifest.environment.get(OPTIONS_KEY).map(String::as_str).unwrap_or_default();
    let mut words = options.split_whitespace();
    if words.next() == Some("--suite") && words.next() != Some(&manifest.suite) {
        return Err(unknown());
    }
    let (bins, tasks) = asked(records);
    let seed = manifest.plan.get("seed").and_then(|seed| seed.parse().ok());
    let mut counts: BTreeMap<(Bin, &str), u32> = BTreeMap::new();
    for sample in records.baseline.samples.iter().filter(|sample| sample.variant_of.is_none()) {
        *counts.entry((sample.bin, &sample.task)).or_default() += 1;
    }
    [None, counts.values().max().copied()]
        .into_iter()
        .filter_map(|samples| builtin.select(Some(&bins), Some(&tasks), samples, seed).ok())
        .find(|selected| manifest.plan.get("suite") == Some(&selected.fingerprint()))
        .map(|selected| selected.gate)
        .ok_or_else(unknown)
}

/// A suite that asks what the records hold: enough to say whether the keys of a `[gate]` name something of it.
fn as_recorded(records: &Records, bins: &[Bin], tasks: &[String], gate: GatePolicy) -> Suite {
    let of_bin = |&bin: &Bin| BinPlan {
        bin,
        samples: 0,
        output_reserve: 0,
        thinking_reserve: 0,
        shared_prefix: 1,
        mixed: false,
        depth_slots: vec![],
    };
    let of_task = |task: &String| TaskPlan {
        task: task.clone(),
        bins: bins.to_vec(),
        samples: BTreeMap::new(),
        params: toml::Table::new(),
        robustness: false,
        scorer: None,
        custom: None,
    };
    Suite {
        name: records.baseline.manifest.suite.clone(),
        version: 0,
        description: String::new(),
        seed: 0,
        language: Language::En,
        bins: bins.iter().map(of_bin).collect(),
        tasks: tasks.iter().map(of_task).collect(),
        haystack: None,
        gate,
    }
}
