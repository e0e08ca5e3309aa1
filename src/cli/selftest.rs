//! `kvgauge selftest`: does the gate find planted damage on this machine, and how small a damage?
//!
//! The ladder runs through the ordinary pipeline: every rung is an arm with a record of its own in the run folder, compared
//! and judged as any candidate is. `kvgauge report` and `gate` read the same folder.

mod ladder;
pub(crate) mod options;

use std::path::{Path, PathBuf};

use kvgauge::compare::compare;
use kvgauge::gate::judge;
use kvgauge::record::run::GateChoice;
use kvgauge::record::{Record, RecordWriter, RunFile};
use kvgauge::report::{SelfTestPage, render_selftest};
use kvgauge::runner::ArmRun;
use kvgauge::selftest::{JudgedRung, Proof, SelfTest, Sensitivity};
use kvgauge::setup::Arm;
use kvgauge::suite::{Plan, Suite};
use kvgauge::targets::Target;
use kvgauge::targets::planted::{Answers, Planted};
use kvgauge::units::format_points;

use crate::config::ConfigFile;
use crate::engine_settings::{EngineArgs, EngineSettings};
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::measure::{self, Source};
use crate::output::{self, note};
use crate::progress::Progress;
use crate::settings::{self, DEFAULT_BASELINE, Measurement, SuiteSettings};
use crate::table as terminal;
use ladder::{Step, Treatment};
use options::SelftestArgs;

/// The built-in suite, and what default run folders begin with.
const NAME: &str = "selftest";

pub(crate) fn execute(args: &SelftestArgs, config: &ConfigFile) -> Result<Exit, Failure> {
    let measurement = measurement(args, config)?;
    let suite = measure::load_suite(&measurement.suite)?;
    let steps = ladder::ladder(!measurement.dry_run)?;
    let run_dir = ask(&measurement, &suite, &steps)?;
    let result = judged(&run_dir, &suite, &steps)?;
    let command = command(&measurement);
    let page = render_selftest(&SelfTestPage { result: &result, reproduce: &command })?;
    let path = run_dir.join("selftest.html");
    output::write_file(&path, page.as_bytes())?;
    let mut json = serde_json::to_string_pretty(&result).map_err(Failure::Json)?;
    json.push('\n');
    output::write_file(&run_dir.join("selftest.json"), json.as_bytes())?;
    let text = format!("{}\npage: {}\n", text(&result), path.display());
    if args.json {
        note(&text);
        output::print(&json)?;
    } else {
        output::print(&text)?;
    }
    Ok(exit_of(result.proof))
}

/// A failed proof is a sound statement about a measurement that was made, as a regression is.
fn exit_of(proof: Proof) -> Exit {
    match proof {
        Proof::Passed => Exit::Success,
        Proof::Failed => Exit::Regressed,
        Proof::NotMeasured => Exit::NotMeasured,
    }
}

fn measurement(args: &SelftestArgs, config: &ConfigFile) -> Result<Measurement, Failure> {
    let suite = SuiteSettings {
        name: args.suite.clone(),
        bins: args.bins.clone(),
        tasks: None,
        samples: None,
        seed: None,
        haystack: None,
    };
    Ok(Measurement {
        model: settings::model(&args.model, config),
        engine: EngineSettings::new(&EngineArgs::default(), &EngineArgs::default())?,
        suite,
        baseline: DEFAULT_BASELINE.into(),
        kv_cache_dtypes: None,
        concurrency: vec![1],
        run_dir: args.run_dir.clone(),
        shard: None,
        dry_run: args.dry_run,
        damage: Vec::new(),
    })
}

/// The options as they are recorded and shown; `selftest` in front tells them from those of `check`.
fn command(measurement: &Measurement) -> String {
    format!("{NAME} {}", measure::options(measurement))
}

/// Baseline, its repetition, and every rung.
fn arms(steps: &[Step]) -> Vec<Arm> {
    let mut arms = vec![Arm::baseline(DEFAULT_BASELINE), Arm::control(DEFAULT_BASELINE)];
    arms.extend(steps.iter().map(|step| step.arm.clone()));
    arms
}

/// Asks every open item of every arm. Returns the run folder.
fn ask(measurement: &Measurement, suite: &Suite, steps: &[Step]) -> Result<PathBuf, Failure> {
    let interrupt = Interrupt::watch().map_err(Failure::Runtime)?;
    let source = Source::open(measurement, suite)?;
    let suite = &suite.bind(source.counter().as_ref())?;
    let plan = suite.plan();
    let run_dir = match &measurement.run_dir {
        Some(dir) => dir.clone(),
        None => default_run_dir(measurement, suite, &plan, &source)?,
    };
    let session = Session { measurement, suite, plan: &plan, source: &source, run_dir: &run_dir };
    let arms = arms(steps);
    let treatment = |at: usize| at.checked_sub(arms.len() - steps.len()).map(|step| &steps[step].treatment);
    for (at, arm) in arms.iter().enumerate() {
        session.check(arm, treatment(at))?;
    }
    measure::plan_folder(&run_dir, &RunFile::new(suite, &arms), &plan, GateChoice::Asked)?;
    let shown: Vec<(&str, &Plan)> = arms.iter().map(|arm| (arm.name.as_str(), &plan)).collect();
    let progress = Progress::new(&shown);
    interrupt.ask_first();
    for (at, arm) in arms.iter().enumerate() {
        let asked = session.run(arm, treatment(at), &progress, &interrupt);
        if asked.is_err() {
            progress.finish();
        }
        asked?;
    }
    progress.finish();
    Ok(run_dir)
}

/// Beside the folder of a `check` with the same suite, whose gate must not judge these arms.
fn default_run_dir(measurement: &Measurement, suite: &Suite, plan: &Plan, source: &Source) -> Result<PathBuf, Failure> {
    let usual = measure::default_run_dir(measurement, suite, plan, source)?;
    let name = usual.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let name = if name.starts_with(NAME) { name } else { format!("{NAME}-{name}") };
    Ok(usual.with_file_name(name))
}

/// What all arms have in common.
struct Session<'a> {
    measurement: &'a Measurement,
    suite: &'a Suite,
    plan: &'a Plan,
    source: &'a Source,
    run_dir: &'a Path,
}

impl Session<'_> {
    /// Whether the arm can be asked, or gone on with, before anything is written.
    fn check(&self, arm: &Arm, treatment: Option<&Treatment>) -> Result<(), Failure> {
        let target = self.target(arm, treatment, Answers::new())?;
        target.accept_bins(&self.suite.bins.iter().map(|bin| bin.bin).collect::<Vec<_>>())?;
        let manifest = measure::header(self.measurement, self.suite, self.plan, arm, target.as_ref());
        Ok(RecordWriter::check_resumable(&self.run_dir.join(&arm.name), &manifest)?)
    }

    fn run(
        &self,
        arm: &Arm,
        treatment: Option<&Treatment>,
        progress: &Progress,
        interrupt: &Interrupt,
    ) -> Result<(), Failure> {
        let answers = match treatment {
            Some(Treatment::Output(_)) => self.baseline_answers()?,
            _ => Answers::new(),
        };
        let target = self.target(arm, treatment, answers)?;
        let mut manifest = measure::header(self.measurement, self.suite, self.plan, arm, target.as_ref());
        manifest.environment.insert(measure::OPTIONS_KEY.into(), command(self.measurement));
        let dir = self.run_dir.join(&arm.name);
        let run = ArmRun { suite: self.suite, plan: self.plan, manifest, dir: &dir };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::Runtime)?;
        runtime.block_on(measure::run_one(run, target.as_ref(), progress, interrupt)).map(drop)
    }

    fn target(&self, arm: &Arm, treatment: Option<&Treatment>, answers: Answers) -> Result<Box<dyn Target>, Failure> {
        Ok(match treatment {
            None => self.source.target(arm)?,
            Some(Treatment::Cache(settings)) => self.source.target_with(arm, settings)?,
            Some(Treatment::Output(damage)) => {
                let origin = self.source.target(&Arm::baseline(DEFAULT_BASELINE))?;
                Box::new(Planted::new(origin, damage.clone(), answers))
            }
        })
    }

    /// What the baseline answered, whole: a text that the record cut is no answer to damage.
    fn baseline_answers(&self) -> Result<Answers, Failure> {
        let record = Record::read(&self.run_dir.join(DEFAULT_BASELINE))?;
        let whole = record.samples.into_iter().filter(|sample| !sample.truncated);
        Ok(whole.filter_map(|sample| Some((sample.item_id, sample.completion?))).collect())
    }
}

/// Compares and judges every arm from its record.
fn judged(run_dir: &Path, suite: &Suite, steps: &[Step]) -> Result<SelfTest, Failure> {
    let read = |arm: &Arm| Record::read(&run_dir.join(&arm.name));
    let baseline = read(&Arm::baseline(DEFAULT_BASELINE)).map_err(Failure::BaselineRecord)?;
    let control = read(&Arm::control(DEFAULT_BASELINE))?;
    let comparison = compare(&baseline, None, std::slice::from_ref(&control))?;
    let verdict = judge(&comparison, &suite.gate)?;
    let clean = (comparison, verdict);
    let mut rungs = Vec::with_capacity(steps.len());
    for step in steps {
        let record = read(&step.arm)?;
        let comparison = compare(&baseline, Some(&control), std::slice::from_ref(&record))?;
        let verdict = judge(&comparison, &suite.gate)?;
        rungs.push(JudgedRung { rung: step.rung.clone(), comparison, verdict });
    }
    Ok(SelfTest::new(&clean, &rungs, &suite.gate))
}

/// Both tables and what they prove, for people.
fn text(result: &SelfTest) -> String {
    let mut text = detections(result);
    text.push('\n');
    text += &smallest(&result.sensitivity);
    text += &format!("\n{}\n", result.headline());
    for reason in &result.reasons {
        text += &format!("  {reason}\n");
    }
    text
}

fn detections(result: &SelfTest) -> String {
    let mut header = vec!["damage".to_owned(), "strength".to_owned()];
    header.extend(result.bins.iter().map(ToString::to_string));
    let mut table = terminal::empty(header);
    for rung in &result.rungs {
        let mut row = vec![rung.rung.kind.clone(), rung.rung.strength.clone()];
        row.extend(rung.cells.iter().map(|cell| {
            let symptoms: Vec<&str> = cell.symptoms.iter().map(|kind| kind.name()).collect();
            let delta = cell.delta.map_or_else(|| "–".into(), format_points);
            format!("{delta} {} {}", cell.detection.words(), symptoms.join(" ")).trim_end().to_owned()
        }));
        table.add_row(row);
    }
    terminal::finished(table)
}

fn smallest(sensitivity: &[Sensitivity]) -> String {
    let Some(first) = sensitivity.first() else { return String::new() };
    let mut header = vec!["smallest found".to_owned()];
    header.extend(first.smallest.iter().map(|(bin, _)| bin.to_string()));
    let mut table = terminal::empty(header);
    for kind in sensitivity {
        let mut row = vec![kind.kind.clone()];
        row.extend(kind.smallest.iter().map(|(_, strength)| strength.clone().unwrap_or_else(|| "–".into())));
        table.add_row(row);
    }
    terminal::finished(table)
}
