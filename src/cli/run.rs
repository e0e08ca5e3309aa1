//! `kvgauge run`: the left half alone. The dtypes asked for are the arms; the baseline's dtype among them is the baseline.

use kvgauge::record::run::GateChoice;
use kvgauge::setup::Arm;
use kvgauge::suite::Shard;
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
    tell(&measured, measurement.shard, args.measure.json)?;
    Ok(Exit::Success)
}

/// What was recorded, for a command that does not judge it.
pub(crate) fn tell(measured: &Measured, shard: Option<Shard>, json: bool) -> Result<(), Failure> {
    if json {
        return output::print_json(&document(measured, shard));
    }
    for arm in &measured.arms {
        let (done, errors) = (arm.outcome.done, arm.outcome.errors);
        output::print(&format!("{}: {done} of {} items, errors: {errors}\n", arm.dir.display(), arm.planned))?;
    }
    if let Some(shard) = shard {
        let (number, of) = (shard.number(), shard.of());
        output::print(&format!("shard {number} of {of} recorded; merge all of them with `kvgauge merge`\n"))?;
    }
    Ok(())
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

fn document(measured: &Measured, shard: Option<Shard>) -> serde_json::Value {
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
    let mut document = json!({ "run_dir": measured.run_dir, "arms": arms });
    if let Some(shard) = shard {
        document["shard"] = json!(shard);
    }
    document
}
