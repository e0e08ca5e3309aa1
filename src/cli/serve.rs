//! Arms that servers answer, one server at a time: started where that is asked for, looked at, asked, stopped.
//!
//! Every arm is asked of its own server and all of them in turn, because they share the machine's accelerators. A finished
//! arm is read from its record, and its server is not started again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kvgauge::record::manifest::{Manifest, RunStatus};
use kvgauge::record::run::GateChoice;
use kvgauge::record::{Record, RunFile};
use kvgauge::runner::{ArmOutcome, ArmRun, identity};
use kvgauge::sample::{Bin, Outcome};
use kvgauge::serving::launch::Launched;
use kvgauge::setup::Arm;
use kvgauge::suite::{Plan, Suite};
use kvgauge::targets::embedded::open_tokenizer;
use kvgauge::targets::{CancelFlag, Target};
use kvgauge::tokenizer::{TokenCounter, Tokenizer};
use tokio::runtime::Runtime;

use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::measure::{self, Measured, MeasuredArm};
use crate::model;
use crate::output::note;
use crate::progress::Progress;
use crate::server_arms::{ServerArm, ServerArms};
use crate::settings::{Measurement, ModelSettings};

/// How often a server's start looks whether it was interrupted.
const CANCEL_INTERVAL: Duration = Duration::from_millis(100);

/// File with what a started server printed, in the arm's folder.
const LOG_FILE: &str = "server.log";

/// Asks every open item of every arm.
pub(crate) fn measure(
    measurement: &Measurement,
    suite: &Suite,
    servers: &ServerArms,
    gate: GateChoice,
) -> Result<Measured, Failure> {
    let interrupt = Interrupt::watch().map_err(Failure::Runtime)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::Runtime)?;
    let tokenizer = tokenizer(measurement, servers)?;
    let suite = &suite.bind(tokenizer.as_ref())?;
    let plan = suite.plan();
    let arms = servers.recorded();
    let run_dir = measurement.run_dir.clone().unwrap_or_else(|| default_run_dir(suite, &arms));
    let other_arms = measure::plan_folder(&run_dir, &RunFile::new(suite, &arms), gate)?;
    let shown: Vec<(&str, &Plan)> = arms.iter().map(|arm| (arm.name.as_str(), &plan)).collect();
    let progress = Progress::new(&shown);
    // From here on a signal must not leave a server behind.
    interrupt.ask_first();
    let session = Session { measurement, suite, plan: &plan, run_dir: &run_dir, tokenizer, progress: &progress };
    let mut measured = Vec::new();
    for server in &servers.arms {
        let mut arms = vec![server.arm.clone()];
        if server.arm == servers.arms[0].arm && servers.has_control {
            arms.push(servers.control());
        }
        let result = session.ask(&runtime, server, &arms, &interrupt);
        if result.is_err() {
            progress.finish();
        }
        measured.extend(result?);
    }
    progress.finish();
    Ok(Measured { run_dir, arms: measured, other_arms })
}

/// `reports/<suite>-servers-<8 hex>`: the same arms of the same suite find their folder again.
fn default_run_dir(suite: &Suite, arms: &[Arm]) -> PathBuf {
    let arms = serde_json::to_string(arms).expect("names and settings are strings");
    let hash = blake3::hash(format!("{}\n{arms}", suite.fingerprint()).as_bytes()).to_hex();
    Path::new("reports").join(format!("{}-servers-{}", suite.name, &hash[..8]))
}

/// The tokenizer that items are counted with: the one named in `[server]`, else the model's.
fn tokenizer(measurement: &Measurement, servers: &ServerArms) -> Result<Arc<Tokenizer>, Failure> {
    let name = servers.tokenizer.clone().unwrap_or_else(|| measurement.model.name.clone());
    let found = model::find(&ModelSettings { name, ..measurement.model.clone() })?;
    Ok(Arc::new(open_tokenizer(&found.path)?))
}

/// What all servers of a run have in common.
struct Session<'a> {
    measurement: &'a Measurement,
    suite: &'a Suite,
    plan: &'a Plan,
    run_dir: &'a Path,
    tokenizer: Arc<Tokenizer>,
    progress: &'a Progress,
}

impl Session<'_> {
    fn ask(
        &self,
        runtime: &Runtime,
        server: &ServerArm,
        arms: &[Arm],
        interrupt: &Interrupt,
    ) -> Result<Vec<MeasuredArm>, Failure> {
        let finished: Vec<Option<ArmOutcome>> = arms.iter().map(|arm| self.finished(arm)).collect();
        let outcomes = match finished.iter().cloned().collect::<Option<Vec<ArmOutcome>>>() {
            Some(outcomes) => outcomes,
            None => runtime.block_on(self.ask_server(server, arms, interrupt))?,
        };
        let measured = arms.iter().zip(outcomes).map(|(arm, outcome)| MeasuredArm {
            arm: arm.clone(),
            dir: self.run_dir.join(&arm.name),
            planned: self.plan.item_count(),
            outcome,
        });
        Ok(measured.collect())
    }

    /// The outcome of an arm that is on record as a whole, without an error that could be asked again.
    fn finished(&self, arm: &Arm) -> Option<ArmOutcome> {
        let dir = self.run_dir.join(&arm.name);
        let manifest = Manifest::read(&dir).ok()?;
        let is_same = manifest.arm == *arm && identity::is_of_plan(&manifest, self.suite, self.plan);
        if manifest.status != RunStatus::Complete || !is_same {
            return None;
        }
        let record = Record::read(&dir).ok()?;
        let errors = record.samples.iter().filter(|sample| sample.outcome == Outcome::Error).count();
        (errors == 0).then_some(ArmOutcome { done: record.samples.len(), asked: 0, errors })
    }

    async fn ask_server(
        &self,
        server: &ServerArm,
        arms: &[Arm],
        interrupt: &Interrupt,
    ) -> Result<Vec<ArmOutcome>, Failure> {
        let started = tokio::select! {
            started = self.start(server) => started?,
            () = cancelled(&interrupt.cancel) => return Err(self.interrupted(server, interrupt)),
        };
        let mut outcomes = Vec::new();
        let mut result = Ok(());
        for arm in arms {
            match self.ask_arm(server, &started, arm, interrupt).await {
                Ok(outcome) => outcomes.push(outcome),
                Err(failure) => {
                    result = Err(failure);
                    break;
                }
            }
        }
        if let Some(launched) = started.launched {
            note(&format!("{}: stopping its server", server.arm.name));
            launched.stop().await?;
        }
        result.map(|()| outcomes)
    }
}
