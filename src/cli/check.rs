//! `kvgauge check`: run the arms that are missing, compare, judge, report.

use kvgauge::compare::compare;
use kvgauge::gate::{judge, suspects};
use kvgauge::record::run::GateChoice;
use kvgauge::setup::Arm;

use crate::against::Against;
use crate::args::CheckArgs;
use crate::assessment::{self, Assessment};
use crate::config::ConfigFile;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::output::{self, note};
use crate::records::Records;
use crate::settings::{self, DEFAULT_CANDIDATES, Measurement};
use crate::{confirm, measure, policy, run, serve};

pub(crate) fn execute(args: &CheckArgs, config: &ConfigFile) -> Result<Exit, Failure> {
    assessment::check_outputs(&args.output)?;
    let measurement = settings::measurement(&args.measure, config)?;
    let mut suite = policy::with_gate(measure::load_suite(&measurement.suite)?, config)?;
    suite.gate.confirm |= args.confirm;
    let servers = serve::selected(&measurement, config)?;
    let takes_control = servers.as_ref().is_some_and(|servers| servers.has_control);
    let against = Against::load(&args.against, config, takes_control)?;
    if measurement.shard.is_some() && against.is_some() {
        return Err(Failure::ShardAgainst);
    }
    let measured = match &servers {
        Some(servers) if servers.arms.len() < 2 => {
            return Err(Failure::NoCandidate { baseline: servers.arms[0].arm.name.clone() });
        }
        Some(servers) if measurement.dry_run => {
            measure::measure(&measurement, &suite, &servers.recorded(), GateChoice::Asked, against.as_ref())?
        }
        Some(servers) => serve::measure(&measurement, &suite, servers, GateChoice::Asked, against.as_ref())?,
        None => {
            measure::measure(&measurement, &suite, &embedded_arms(&measurement)?, GateChoice::Asked, against.as_ref())?
        }
    };
    if measurement.shard.is_some() {
        if args.history.is_some() {
            note("a shard is not judged, so there is nothing to show beside earlier nights");
        }
        run::tell(&measured, measurement.shard, args.measure.json)?;
        return Ok(Exit::Success);
    }
    let dirs: Vec<_> = measured.arms.iter().map(|arm| arm.dir.clone()).collect();
    let mut records = Records::of_folders(&dirs[0], &dirs[1..])?;
    records.run_dir = Some(measured.run_dir.clone());
    let comparison = compare(&records.baseline, records.control.as_ref(), &records.candidates)?;
    let verdict = judge(&comparison, &suite.gate)?;
    let mut asked: usize = measured.arms.iter().map(|arm| arm.outcome.asked).sum();
    if suite.gate.confirm {
        asked += confirm::ask(&measurement, &suite, servers.as_ref(), &measured, &suspects(&verdict))?;
    }
    let assessment = Assessment::confirmed(records, suite.gate, comparison, verdict)?;
    let assessment = assessment.with_history(args.history.as_deref(), Some(&measured.run_dir))?;
    let report = assessment.write_run_folder(&measured.run_dir);
    let outputs = assessment.write_outputs(&args.output);

    let mut text = assessment.text();
    if let Ok(report) = &report {
        text += &format!("\nreport: {}\n", report.display());
    }
    let printed = if args.measure.json {
        note(&text);
        output::print_document(&assessment.json())
    } else {
        output::print(&text)
    };
    assessment.tell_github();
    if asked == 0 {
        note("every answer was on record: no prompt was run");
    }
    if !measured.other_arms.is_empty() {
        let names = measured.other_arms.join(", ");
        note(&format!("not judged here, but part of the run folder, which `kvgauge gate` judges as a whole: {names}"));
    }
    let on_inconclusive = settings::on_inconclusive(&args.policy, config);
    assessment.conclude(on_inconclusive, [report.map(drop), outputs, printed])
}

/// The baseline, its repetition and the candidates of the embedded engine.
fn embedded_arms(measurement: &Measurement) -> Result<Vec<Arm>, Failure> {
    let dtypes = measurement.kv_cache_dtypes.clone().unwrap_or_else(|| DEFAULT_CANDIDATES.map(String::from).to_vec());
    let baseline = measure::baseline(measurement)?;
    let candidates = measure::candidates(measurement, &dtypes, &baseline)?;
    if candidates.is_empty() {
        return Err(Failure::NoCandidate { baseline: measurement.baseline.clone() });
    }
    let mut arms = vec![baseline, measure::control(measurement)];
    arms.extend(candidates);
    Ok(arms)
}
