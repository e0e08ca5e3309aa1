//! The confirmation: what would fail a run is asked again on fresh seeds, baseline and candidate, before it does.
//!
//! Every bin has a run folder of its own, `confirm/BIN` in that of the run, with the baseline and the arms that would fail there. So
//! it is resumed like any other run, and another arm that fails later adds to what is there. An accepted baseline has no answers to fresh
//! questions: here the baseline is measured in any case.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use kvgauge::compare::{Comparison, compare};
use kvgauge::gate::Suspect;
use kvgauge::record::run::GateChoice;
use kvgauge::record::{CONFIRM_DIR, RunFile};
use kvgauge::rng::hash_name;
use kvgauge::sample::Bin;
use kvgauge::setup::{Arm, ArmRole};
use kvgauge::suite::{GatePolicy, Suite};
use kvgauge::targets::scripted::Damage;

use crate::failure::Failure;
use crate::measure::{self, Measured};
use crate::output::note;
use crate::records::{self, Records};
use crate::serve;
use crate::server_arms::ServerArms;
use crate::settings::{Measurement, SuiteSettings};

/// Asks again what `suspects` names. Returns the number of prompts that were run for it.
pub(crate) fn ask(
    measurement: &Measurement,
    suite: &Suite,
    servers: Option<&ServerArms>,
    measured: &Measured,
    suspects: &[Suspect],
) -> Result<usize, Failure> {
    let mut asked = 0;
    for (bin, names) in by_bin(suspects) {
        let list = names.iter().copied().collect::<Vec<_>>().join(", ");
        note(&format!("{bin} would fail the run ({list}): asked again on fresh seeds"));
        let seed = fresh_seed(suite.seed);
        let again = Suite { gate: GatePolicy::default(), ..suite.select(Some(&[bin]), None, None, Some(seed))? };
        let measurement = Measurement {
            suite: SuiteSettings { bins: Some(vec![bin]), seed: Some(seed), ..measurement.suite.clone() },
            run_dir: Some(folder(&measured.run_dir, bin)),
            damage: measurement.damage.iter().filter(|damage| is_planted(damage, bin)).cloned().collect(),
            ..measurement.clone()
        };
        let is_asked = |arm: &Arm| arm.role == ArmRole::Baseline || names.contains(arm.name.as_str());
        let result = match servers {
            Some(servers) if !measurement.dry_run => {
                let arms = servers.arms.iter().filter(|server| is_asked(&server.arm)).cloned().collect();
                let servers = ServerArms { arms, has_control: false, ..servers.clone() };
                serve::measure(&measurement, &again, &servers, GateChoice::Recorded, None)?
            }
            _ => {
                let arms: Vec<Arm> = measured.arms.iter().map(|arm| arm.arm.clone()).filter(is_asked).collect();
                measure::measure(&measurement, &again, &arms, GateChoice::Recorded, None)?
            }
        };
        asked += result.arms.iter().map(|arm| arm.outcome.asked).sum::<usize>();
    }
    Ok(asked)
}

/// The confirmations on record of what `suspects` names, one comparison per bin; a bin that was never asked again is left out.
pub(crate) fn recorded(records: &Records, suspects: &[Suspect]) -> Result<Vec<Comparison>, Failure> {
    let in_plan = records.gates.first().map(|(run_dir, _)| run_dir);
    let Some(run_dir) = records.run_dir.as_ref().or(in_plan) else { return Ok(Vec::new()) };
    let mut comparisons = Vec::new();
    for (bin, names) in by_bin(suspects) {
        let dir = folder(run_dir, bin);
        let Some(run) = RunFile::read(&dir)? else { continue };
        let read = |arm: &Arm| {
            let missing = |source| Failure::ArmMissing { arm: arm.name.clone(), dir: dir.clone(), source };
            records::read_planned(&dir, &run, arm, records::read).map_err(missing)
        };
        let Some(baseline) = run.arms.iter().find(|arm| arm.role == ArmRole::Baseline) else { continue };
        let candidates = run.arms.iter().filter(|arm| names.contains(arm.name.as_str()));
        let candidates = candidates.map(read).collect::<Result<Vec<_>, _>>()?;
        comparisons.push(compare(&read(baseline)?, None, &candidates)?);
    }
    Ok(comparisons)
}

fn by_bin(suspects: &[Suspect]) -> BTreeMap<Bin, BTreeSet<&str>> {
    let mut bins: BTreeMap<Bin, BTreeSet<&str>> = BTreeMap::new();
    for suspect in suspects {
        for bin in &suspect.bins {
            bins.entry(*bin).or_default().insert(&suspect.arm);
        }
    }
    bins
}

fn folder(run_dir: &Path, bin: Bin) -> PathBuf {
    run_dir.join(CONFIRM_DIR).join(bin.to_string())
}

/// Another seed that follows from the suite's, so that a second start asks the same again.
fn fresh_seed(seed: u64) -> u64 {
    let hash = hash_name(&["confirmation", &seed.to_string()]);
    // Six bytes: a whole number in every format that it may pass through.
    hash.as_bytes()[..6].iter().fold(0, |seed, byte| seed << 8 | u64::from(*byte))
}

/// Faults of a dry run that concern this bin; the others would be refused as planted nowhere.
fn is_planted(damage: &str, bin: Bin) -> bool {
    damage.parse::<Damage>().is_ok_and(|damage| damage.bin.is_none_or(|planted| planted == bin))
}
