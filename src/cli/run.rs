//! `kvgauge run`: the left half alone. The dtypes asked for are the arms; the baseline's dtype among them is the baseline.

use kvgauge::record::run::GateChoice;
use kvgauge::setup::Arm;
use serde_json::json;

use crate::args::RunArgs;
use crate::config::ConfigFile;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::measure::{self, Measured};
use crate::settings::Measurement;
use crate::{output, policy, serve, settings};

pub(crate) fn execute(args: &RunArgs, config: &ConfigFile) -> Result<Exit, Failure> {
    let measurement = settings::measurement(&args.measure, config)?;
    let suite = policy::with_gate(measure::load_suite(&measurement.suite)?, config)?;
    let measured = match serve::selected(&measurement, config)? {
        Some(servers) if measurement.dry_run => {
            measure::measure(&measurement, &suite, &servers.recorded(), GateChoice::Recorded, None)?
        }
        Some(servers) => serve::measure(&measurement, &suite, &servers, GateChoice::Recorded, None)?,
        None => measure::measure(&measurement, &suite, &embedded_arms(&measurement)?, GateChoice::Recorded, None)?,
    };
    if args.measure.json {
        output::print_json(&document(&measured))?;
    } else {
        for arm in &measured.arms {
            let (done, errors) = (arm.outcome.done, arm.outcome.errors);
            output::print(&format!("{}: {done} of {} items, errors: {errors}\n", arm.dir.display(), arm.planned))?;
        }
    }
    Ok(Exit::Success)
}

/// The dtypes asked for; the baseline's among them is the baseline.
fn embedded_arms(measurement: &Measurement) -> Result<Vec<Arm>, Failure> {
    let baseline = &measurement.baseline;
    let dtypes = measurement.kv_cache_dtypes.clone().unwrap_or_else(|| vec![baseline.clone()]);
    let baseline_arm = measure::baseline(measurement)?;
    let mut arms = measure::candidates(measurement, &dtypes, &baseline_arm)?;
    if dtypes.contains(baseline) {
        arms.insert(0, baseline_arm);
    }
    Ok(arms)
}

fn document(measured: &Measured) -> serde_json::Value {
    let arms: Vec<_> = measured
        .arms
        .iter()
        .map(|arm| {
            json!({
                "arm": arm.arm.name,
                "dir": arm.dir,
                "planned": arm.planned,
                "done": arm.outcome.done,
                "asked": arm.outcome.asked,
                "errors": arm.outcome.errors,
            })
        })
        .collect();
    json!({ "run_dir": measured.run_dir, "arms": arms })
}
