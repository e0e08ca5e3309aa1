//! `kvgauge check`: run the arms that are missing, compare, judge, report.

use kvgauge::record::run::GateChoice;

use crate::args::CheckArgs;
use crate::assessment::{self, Assessment};
use crate::config::ConfigFile;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::output::{self, note};
use crate::records::Records;
use crate::settings::{self, DEFAULT_CANDIDATES};
use crate::{measure, policy};

pub(crate) fn execute(args: &CheckArgs, config: &ConfigFile) -> Result<Exit, Failure> {
    assessment::check_outputs(&args.output)?;
    let measurement = settings::measurement(&args.measure, config)?;
    let suite = policy::with_gate(measure::load_suite(&measurement.suite)?, config)?;
    let dtypes = measurement.kv_cache_dtypes.clone().unwrap_or_else(|| DEFAULT_CANDIDATES.map(String::from).to_vec());
    let baseline = &measurement.baseline;
    let baseline_arm = measure::baseline(&measurement)?;
    let candidates = measure::candidates(&measurement, &dtypes, &baseline_arm)?;
    if candidates.is_empty() {
        return Err(Failure::NoCandidate { baseline: baseline.clone() });
    }
    let mut arms = vec![baseline_arm, measure::control(&measurement)];
    arms.extend(candidates);

    let measured = measure::measure(&measurement, &suite, &arms, GateChoice::Asked)?;
    let dirs: Vec<_> = measured.arms.iter().map(|arm| arm.dir.clone()).collect();
    let records = Records::of_folders(&dirs[0], &dirs[1..])?;
    let assessment = Assessment::new(records, suite.gate)?;
    let report = assessment.write_run_folder(&measured.run_dir);
    let outputs = assessment.write_outputs(&args.output);

    let mut text = assessment.text();
    if let Ok(report) = &report {
        text += &format!("\nreport: {}\n", report.display());
    }
    let printed = if args.measure.json {
        note(&text);
        output::print(&assessment.json())
    } else {
        output::print(&text)
    };
    let asked: usize = measured.arms.iter().map(|arm| arm.outcome.asked).sum();
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
