//! Arms that servers answer, one server at a time: started where that is asked for, looked at, asked, stopped.
//!
//! Every arm is asked of its own server and all of them in turn, because they share the machine's accelerators. A finished
//! arm is read from its record, and its server is not started again.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kvgauge::record::manifest::{Manifest, RunStatus};
use kvgauge::record::run::GateChoice;
use kvgauge::record::{Record, RunFile};
use kvgauge::runner::{ArmOutcome, ArmRun, identity};
use kvgauge::sample::Outcome;
use kvgauge::serving::checkpoint::Checkpoint;
use kvgauge::serving::evidence::{self, Asked, Weighed, Witness};
use kvgauge::serving::launch::Launched;
use kvgauge::serving::probe::probe;
use kvgauge::serving::startup_log::{self, LogError};
use kvgauge::setup::{Arm, ModelIdentity, Resolved};
use kvgauge::suite::{Plan, Suite};
use kvgauge::targets::CancelFlag;
use kvgauge::targets::embedded::open_tokenizer;
use kvgauge::targets::openai::{Endpoint, TokenAgreement};
use kvgauge::tokenizer::{TokenCounter, Tokenizer};
use tokio::runtime::Runtime;

use crate::against::Against;
use crate::config::ConfigFile;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::measure::{self, Measured, MeasuredArm};
use crate::model;
use crate::output::note;
use crate::probe::ProbeError;
use crate::progress::Progress;
use crate::server_arms::{ServerArm, ServerArms};
use crate::settings::{Measurement, ModelSettings};

/// How often a server's start looks whether it was interrupted.
const CANCEL_INTERVAL: Duration = Duration::from_millis(100);

/// File with what a started server printed, in the arm's folder.
const LOG_FILE: &str = "server.log";

/// The arms that servers answer, those that `--kv-cache-dtype` keeps; `None` where the embedded engine answers.
pub(crate) fn selected(measurement: &Measurement, config: &ConfigFile) -> Result<Option<ServerArms>, Failure> {
    let Some(mut servers) = config.servers()? else { return Ok(None) };
    if let Some(wanted) = &measurement.kv_cache_dtypes {
        servers.select(wanted).map_err(|(name, known)| Failure::NoArm { name, known })?;
    }
    Ok(Some(servers))
}

/// Asks every open item of every arm.
pub(crate) fn measure(
    measurement: &Measurement,
    suite: &Suite,
    servers: &ServerArms,
    gate: GateChoice,
    against: Option<&Against>,
) -> Result<Measured, Failure> {
    let interrupt = Interrupt::watch().map_err(Failure::Runtime)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::Runtime)?;
    let name = servers.tokenizer.clone().unwrap_or_else(|| measurement.model.name.clone());
    let model_path = model::find(&ModelSettings { name, ..measurement.model.clone() })?.path;
    let tokenizer = Arc::new(open_tokenizer(&model_path)?);
    let suite = &suite.bind(tokenizer.as_ref())?;
    let plan = suite.plan();
    let arms = servers.recorded();
    let run_dir = measurement.run_dir.clone().unwrap_or_else(|| {
        let dir = default_run_dir(measurement, suite, &arms);
        against.map_or(dir.clone(), |against| against.run_dir(&dir))
    });
    let asked = RunFile::new(suite, &arms).of_shard(measurement.shard);
    let other_arms = measure::plan_folder(&run_dir, &asked, &plan, gate)?;
    let part = measurement.part_of(&plan);
    let is_asked = |arm: &&Arm| against.is_none_or(|against| against.record(arm).is_none());
    let shown: Vec<(&str, &Plan)> = arms.iter().filter(is_asked).map(|arm| (arm.name.as_str(), &part)).collect();
    let progress = Progress::new(&shown);
    // From here on a signal must not leave a server behind.
    interrupt.ask_first();
    let session = Session {
        measurement,
        servers,
        suite,
        plan: &plan,
        part: &part,
        run_dir: &run_dir,
        model_path,
        tokenizer,
        progress: &progress,
        against,
    };
    let mut measured = Vec::new();
    let asked = servers.arms.iter().filter(|server| is_asked(&&server.arm));
    for server in asked {
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
    measured.splice(0..0, session.adopted(&arms)?);
    Ok(Measured { run_dir, arms: measured, other_arms })
}

/// `reports/<suite>-servers-<8 hex>`: the same arms of the same suite find their folder again.
fn default_run_dir(measurement: &Measurement, suite: &Suite, arms: &[Arm]) -> PathBuf {
    let arms = serde_json::to_string(arms).expect("names and settings are strings");
    let hash = blake3::hash(format!("{}\n{arms}", suite.fingerprint()).as_bytes()).to_hex();
    Path::new("reports").join(measurement.named(format!("{}-servers-{}", suite.name, &hash[..8])))
}

/// What all servers of a run have in common.
struct Session<'a> {
    measurement: &'a Measurement,
    servers: &'a ServerArms,
    suite: &'a Suite,
    plan: &'a Plan,
    /// What of it is asked here.
    part: &'a Plan,
    run_dir: &'a Path,
    /// File or folder that the tokenizer is from.
    model_path: PathBuf,
    tokenizer: Arc<Tokenizer>,
    progress: &'a Progress,
    /// Stands in for the baseline and its A/A arm.
    against: Option<&'a Against>,
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
        if finished.iter().all(Option::is_some) {
            self.adopt(&Manifest::read(&self.run_dir.join(&server.arm.name))?)?;
        }
        let outcomes = match finished.iter().cloned().collect::<Option<Vec<ArmOutcome>>>() {
            Some(outcomes) => outcomes,
            None => runtime.block_on(self.ask_server(server, arms, interrupt))?,
        };
        let measured = arms.iter().zip(outcomes).map(|(arm, outcome)| MeasuredArm {
            arm: arm.clone(),
            dir: self.run_dir.join(&arm.name),
            planned: self.part.item_count(),
            outcome,
        });
        Ok(measured.collect())
    }

    /// Copies the accepted baseline into the run folder, once a candidate's manifest tells what this run asks and which engine answers:
    /// its own server is not started.
    fn adopt(&self, candidate: &Manifest) -> Result<(), Failure> {
        let Some(against) = self.against else { return Ok(()) };
        for arm in self.servers.recorded() {
            let Some(record) = against.record(&arm) else { continue };
            let mut resolved = Resolved::unknown("its server was not started");
            resolved.engine.clone_from(&candidate.resolved.engine);
            let asked = Manifest { resolved, arm: arm.clone(), ..candidate.clone() };
            let manifest = against.manifest(record, &asked)?;
            let dir = self.run_dir.join(&arm.name);
            against.check_items(record, self.suite, self.plan, self.tokenizer.as_ref(), &dir)?;
            against.adopt(record, &manifest, self.plan, dir)?;
        }
        Ok(())
    }

    /// The arms that [`Self::adopt`] wrote.
    fn adopted(&self, arms: &[Arm]) -> Result<Vec<MeasuredArm>, Failure> {
        let Some(against) = self.against else { return Ok(Vec::new()) };
        let adopted = arms.iter().filter_map(|arm| Some((arm, against.record(arm)?)));
        let of_disk = |(arm, record): (&Arm, &Record)| {
            let dir = self.run_dir.join(&arm.name);
            against.adopt(record, &Manifest::read(&dir)?, self.plan, dir)
        };
        adopted.map(of_disk).collect()
    }

    /// The outcome of an arm that is on record as a whole, without an error that could be asked again.
    fn finished(&self, arm: &Arm) -> Option<ArmOutcome> {
        let dir = self.run_dir.join(&arm.name);
        let manifest = Manifest::read(&dir).ok()?;
        // That it is of this shard is said by the folder's run.json, which was planned before.
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
            () = cancelled(&interrupt.cancel) => {
                let exit = interrupt.exit().unwrap_or(Exit::Interrupted);
                let (arm, planned) = (server.arm.name.clone(), self.part.item_count());
                return Err(Failure::Interrupted { exit, arm, done: 0, planned });
            }
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
            launched.stop().await;
        }
        result.map(|()| outcomes)
    }

    /// The server of an arm, ready to be asked: started or found running, and looked at.
    async fn start(&self, server: &ServerArm) -> Result<Started, Failure> {
        let dir = self.run_dir.join(&server.arm.name);
        let launched = match &server.launch {
            Some(settings) => {
                // The program alone: an argument may be a key.
                note(&format!("{}: starting its server with `{}`", server.arm.name, settings.launch[0]));
                std::fs::create_dir_all(&dir).map_err(|source| Failure::Write { path: dir.clone(), source })?;
                Some(Launched::start(settings, &self.variables(server)?, &dir.join(LOG_FILE)).await?)
            }
            None => None,
        };
        let url = match &launched {
            Some(launched) => launched.base_url().to_owned(),
            None => server.urls().first().cloned().unwrap_or_default(),
        };
        let weighed = self.weigh(server, launched.as_ref(), &url).await?;
        for line in &weighed.notes {
            note(&format!("{}: {line}", server.arm.name));
        }
        Ok(Started { launched, url, weighed })
    }

    /// What fills the placeholders of a command.
    fn variables(&self, server: &ServerArm) -> Result<BTreeMap<String, String>, Failure> {
        let mut variables = BTreeMap::from([("kv_cache_dtype".to_owned(), server.arm.kv_cache_dtype.clone())]);
        let model = server.model().unwrap_or(&self.measurement.model.name).to_owned();
        variables.insert("model".into(), model);
        variables.insert("model_file".into(), self.model_path.display().to_string());
        if let Some(backend) = &server.arm.attention_backend {
            variables.insert("attention_backend".into(), backend.clone());
        }
        Ok(variables)
    }

    async fn ask_arm(
        &self,
        server: &ServerArm,
        started: &Started,
        arm: &Arm,
        interrupt: &Interrupt,
    ) -> Result<ArmOutcome, Failure> {
        let target = self.connect(server, started, arm).await?;
        let mut manifest = measure::header(self.measurement, self.suite, self.plan, arm, &target);
        manifest.environment.insert(measure::OPTIONS_KEY.into(), self.options());
        self.adopt(&manifest)?;
        let dir = self.run_dir.join(&arm.name);
        let run = ArmRun { suite: self.suite, plan: self.part, manifest, dir: &dir };
        measure::run_one(run, &target, self.progress, interrupt).await
    }

    /// The endpoint of an arm, with what is in effect there.
    async fn connect(&self, server: &ServerArm, started: &Started, arm: &Arm) -> Result<Endpoint, Failure> {
        let settings = server.endpoint(&started.url)?;
        let Weighed { resolved, checks, .. } = started.weighed.clone();
        let name = self.measurement.model.name.clone();
        let model = ModelIdentity {
            weights: format!("as the server has `{}`", settings.model.as_deref().unwrap_or("its only model")),
            name,
            tokenizer: self.tokenizer.fingerprint(),
            chat_template: self.tokenizer.template_hash().unwrap_or("none").into(),
            rope: "the server's".into(),
            trained_context: resolved.max_model_len.value.unwrap_or(0),
        };
        let counter = Arc::clone(&self.tokenizer) as Arc<dyn TokenCounter>;
        let endpoint = Endpoint::connect(settings, arm, model, resolved, counter).await?.with_checks(checks);
        let agreement = endpoint.check_tokens().await?;
        if agreement != TokenAgreement::Same {
            note(&format!("{}: {agreement}", arm.name));
        }
        Ok(endpoint)
    }

    /// What is in effect on the server of an arm: out of its log, its endpoints, and the model's files where they are here.
    async fn weigh(&self, server: &ServerArm, launched: Option<&Launched>, url: &str) -> Result<Weighed, Failure> {
        let settings = server.endpoint(url)?;
        let mut witnesses = Vec::new();
        if let Some(launched) = launched {
            let path = launched.log_path().to_path_buf();
            let failed = |source| ProbeError::Log { path: path.clone(), source };
            let log = File::open(&path).map_err(|error| failed(LogError::from(error)))?;
            witnesses.push(Witness::log(startup_log::read(BufReader::new(log)).map_err(failed)?));
        }
        // The endpoint itself says what is wrong with an address; here only what it tells of itself counts.
        let key = std::env::var(settings.key_variable().0).ok();
        if let Ok(probe) = probe(url, key.as_deref()).await {
            witnesses.extend(probe.sources.iter().map(|(path, facts)| Witness::endpoint(path, facts.clone())));
        }
        let checkpoint = match self.model_path.is_dir() {
            true => Checkpoint::read(&self.model_path).ok(),
            false => None,
        };
        let n_rank = server.launch.as_ref().and_then(|launch| evidence::n_rank(&launch.launch));
        let context_tokens = self.suite.bins.iter().map(|bin| bin.bin.tokens()).max();
        let asked = Asked { arm: &server.arm, context_tokens, n_rank };
        Ok(evidence::weigh(&asked, &witnesses, checkpoint.as_ref()))
    }

    /// The options that shaped the run, for `reproduce`.
    fn options(&self) -> String {
        let mut text = format!("--config {}", measure::quoted(&self.servers.path.display().to_string()));
        text += " ";
        text += &measure::options(self.measurement);
        text
    }
}

/// A server that can be asked.
struct Started {
    launched: Option<Launched>,
    /// Its address.
    url: String,
    /// What is in effect on it, for every arm that it answers: its log grows with the questions.
    weighed: Weighed,
}

async fn cancelled(cancel: &CancelFlag) {
    while !cancel.is_cancelled() {
        tokio::time::sleep(CANCEL_INTERVAL).await;
    }
}
