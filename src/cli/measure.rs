//! The left half of the pipeline: arms are asked and recorded, one after the other, in one run folder.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvgauge::engine::EngineOptions;
use kvgauge::engine::kv_cache::codec::codec;
use kvgauge::record::manifest::{self, Manifest};
use kvgauge::record::run::GateChoice;
use kvgauge::record::{self, RecordWriter, RunFile};
use kvgauge::runner::{self, ArmOutcome, ArmRun, RunError, identity};
use kvgauge::sample::Bin;
use kvgauge::setup::{Arm, ArmRole};
use kvgauge::suite::{Plan, Suite};
use kvgauge::targets::Target;
use kvgauge::targets::embedded::{Embedded, LoadedModel};
use kvgauge::targets::scripted::{Damage, Scripted};
use kvgauge::tasks::UserText;
use kvgauge::tokenizer::{TokenCounter, WordTokenizer};

use crate::against::Against;
use crate::args::RopeChoice;
use crate::engine_settings::EngineSettings;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::output::note;
use crate::progress::Progress;
use crate::settings::{DEFAULT_MODEL, Measurement, SuiteSettings, default_rope};
use crate::{machine, model};

/// Bins that the A/A arm runs on: the engine is deterministic, so more would cost time and say the same.
const CONTROL_BINS: usize = 2;

/// Key of the manifest's environment under which the options that shaped the run are kept, for `reproduce`.
pub(crate) const OPTIONS_KEY: &str = manifest::OPTIONS_FIELD;

/// What was recorded.
pub(crate) struct Measured {
    pub(crate) run_dir: PathBuf,
    pub(crate) arms: Vec<MeasuredArm>,
    /// Names of arms that an earlier start planned in the same folder.
    pub(crate) other_arms: Vec<String>,
}

/// One arm of it.
pub(crate) struct MeasuredArm {
    pub(crate) arm: Arm,
    pub(crate) dir: PathBuf,
    pub(crate) planned: usize,
    pub(crate) outcome: ArmOutcome,
}

/// The suite as selected.
pub(crate) fn load_suite(settings: &SuiteSettings) -> Result<Suite, Failure> {
    let suite = suite_by_name(&settings.name)?;
    let (bins, tasks) = (settings.bins.as_deref(), settings.tasks.as_deref());
    let suite = suite.select(bins, tasks, settings.samples, settings.seed)?;
    Ok(match &settings.haystack {
        Some(path) => suite.with_haystack(UserText::load(path)?),
        None => suite,
    })
}

/// A built-in suite, or a file where the name looks like one.
pub(crate) fn suite_by_name(name: &str) -> Result<Suite, Failure> {
    let is_path = name.contains(['/', '\\']) || Path::new(name).extension().is_some_and(|it| it == "toml");
    Ok(if is_path { Suite::load(Path::new(name))? } else { Suite::builtin(name)? })
}

/// The baseline as an arm.
pub(crate) fn baseline(measurement: &Measurement) -> Result<Arm, Failure> {
    codec(&measurement.baseline)?;
    let arm = measurement.engine.applied_to(Arm::baseline(&measurement.baseline));
    Ok(arm.at_concurrency(measurement.concurrency[0]))
}

/// The A/A arm, at the baseline's concurrency.
pub(crate) fn control(measurement: &Measurement) -> Arm {
    let arm = measurement.engine.applied_to(Arm::control(&measurement.baseline));
    arm.at_concurrency(measurement.concurrency[0])
}

/// Every dtype at every level of concurrency, level by level. At a level that is not the baseline's own, the baseline's
/// dtype is a candidate too: what many sequences at once do to the cache is not the dtype's doing.
pub(crate) fn candidates(measurement: &Measurement, dtypes: &[String], baseline: &Arm) -> Result<Vec<Arm>, Failure> {
    let plain = measurement.engine.applied_to(Arm::baseline(&measurement.baseline));
    let at_first = measurement.engine.candidates(dtypes, &plain)?;
    let mut arms: Vec<Arm> = Vec::new();
    for level in &measurement.concurrency {
        if *level == measurement.concurrency[0] {
            arms.extend(at_first.iter().map(|arm| arm.clone().at_concurrency(*level)));
            continue;
        }
        let same_dtype = Arm { role: ArmRole::Candidate, ..plain.clone() };
        let all = std::iter::once(&same_dtype).chain(&at_first);
        arms.extend(all.map(|arm| arm.clone().at_concurrency(*level)));
    }
    arms.retain(|arm| arm.name != baseline.name);
    Ok(arms)
}

/// Asks every open item of every arm. A finished arm costs the reading of its journal. Nothing is written before it is clear
/// that every arm can be asked, resumed or taken from the accepted baseline `against`.
pub(crate) fn measure(
    measurement: &Measurement,
    suite: &Suite,
    arms: &[Arm],
    gate: GateChoice,
    against: Option<&Against>,
) -> Result<Measured, Failure> {
    let interrupt = Interrupt::watch().map_err(Failure::Runtime)?;
    let source = Source::open(measurement, suite)?;
    // The target's own tokenizer decides into which bin a user's prompt goes.
    let suite = &suite.bind(source.counter().as_ref())?;
    let whole = suite.plan();
    let plans: Vec<(&Arm, Plan)> = arms.iter().map(|arm| (arm, plan_of(arm, &whole))).collect();
    let run_dir = match &measurement.run_dir {
        Some(dir) => dir.clone(),
        None => {
            let dir = default_run_dir(measurement, suite, &whole, &source)?;
            against.map_or(dir.clone(), |against| against.run_dir(&dir))
        }
    };
    let copied = |arm: &Arm| against.and_then(|against| Some((against, against.record(arm)?)));
    let manifest_of = |arm: &Arm, plan: &Plan, target: &dyn Target| {
        let asked = header(measurement, suite, plan, arm, target);
        copied(arm).map_or(Ok(asked.clone()), |(against, record)| against.manifest(record, &asked))
    };
    for (arm, plan) in &plans {
        let target = source.target(arm)?;
        target.accept_bins(&suite.bins.iter().map(|bin| bin.bin).collect::<Vec<_>>())?;
        let dir = run_dir.join(&arm.name);
        RecordWriter::check_resumable(&dir, &manifest_of(arm, plan, target.as_ref())?)?;
        if let Some((against, record)) = copied(arm) {
            against.check_items(record, suite, plan, source.counter().as_ref(), &dir)?;
        }
    }
    let other_arms = plan_folder(&run_dir, &RunFile::new(suite, arms).of_shard(measurement.shard), &whole, gate)?;
    let parts: Vec<Plan> = plans.iter().map(|(_, plan)| measurement.part_of(plan)).collect();
    let asked = plans.iter().zip(&parts).filter(|((arm, _), _)| copied(arm).is_none());
    let shown: Vec<(&str, &Plan)> = asked.map(|((arm, _), part)| (arm.name.as_str(), part)).collect();
    let progress = Progress::new(&shown);
    let mut measured = Vec::new();
    interrupt.ask_first();
    for ((arm, plan), part) in plans.iter().zip(&parts) {
        let target = source.target(arm)?;
        let manifest = manifest_of(arm, plan, target.as_ref())?;
        let dir = run_dir.join(&arm.name);
        if let Some((against, record)) = copied(arm) {
            measured.push(against.adopt(record, &manifest, plan, dir)?);
            continue;
        }
        let run = ArmRun { suite, plan: part, manifest, dir: &dir };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::Runtime)?;
        let result = runtime.block_on(run_one(run, target.as_ref(), &progress, &interrupt));
        if result.is_err() {
            progress.finish();
        }
        measured.push(MeasuredArm { arm: (*arm).clone(), dir, planned: part.item_count(), outcome: result? });
    }
    progress.finish();
    Ok(Measured { run_dir, arms: measured, other_arms })
}

/// Writes `run.json`, and for a shard the plan of the whole. Returns the names of the arms that are in it and were not asked for now.
pub(crate) fn plan_folder(
    run_dir: &Path,
    asked: &RunFile,
    whole: &Plan,
    gate: GateChoice,
) -> Result<Vec<String>, Failure> {
    let planned = RunFile::plan(run_dir, asked, gate)?;
    if asked.shard.is_some() {
        record::write_plan(run_dir, whole)?;
    }
    if planned.gate_before.is_some_and(|before| before != asked.gate) {
        note(match gate {
            GateChoice::Asked => "the run folder was planned with another gate; from now on it is judged by this one",
            GateChoice::Recorded => "the run folder was planned with another gate, and keeps it",
        });
    }
    let is_other = |arm: &&Arm| asked.arms.iter().all(|asked| asked.name != arm.name);
    Ok(planned.run.arms.iter().filter(is_other).map(|arm| arm.name.clone()).collect())
}

pub(crate) async fn run_one(
    run: ArmRun<'_>,
    target: &dyn Target,
    progress: &Progress,
    interrupt: &Interrupt,
) -> Result<ArmOutcome, Failure> {
    let on_event = |event| progress.on_event(&event);
    runner::run_arm(run, target, &on_event, &interrupt.cancel).await.map_err(|error| match error {
        RunError::Interrupted { arm, done, planned } => {
            let exit = interrupt.exit().unwrap_or(crate::exit_code::Exit::Interrupted);
            Failure::Interrupted { exit, arm, done, planned }
        }
        other => other.into(),
    })
}

/// Where answers come from: opened once, shared by all arms.
pub(crate) enum Source {
    Scripted { damage: Vec<Damage>, counter: Arc<WordTokenizer> },
    Embedded { model: Arc<LoadedModel>, options: EngineOptions, settings: Box<EngineSettings> },
}

impl Source {
    pub(crate) fn open(measurement: &Measurement, suite: &Suite) -> Result<Self, Failure> {
        if measurement.dry_run {
            if !measurement.engine.is_plain() {
                note("a dry run has no engine: options of the engine change nothing but the arms' names");
            }
            let damage = damage(&measurement.damage, suite)?;
            return Ok(Self::Scripted { damage, counter: Arc::new(WordTokenizer) });
        }
        let options = EngineOptions {
            kernel: measurement.model.kernel.clone(),
            threads: measurement.model.threads,
            ..EngineOptions::default()
        };
        // A kernel that is not there is said before a model is fetched.
        kvgauge::engine::kernels::resolve(options.kernel.as_deref()).map_err(kvgauge::engine::EngineError::from)?;
        let settings = Box::new(measurement.engine.clone());
        Ok(Self::Embedded { model: model::open(&measurement.model)?, options, settings })
    }

    pub(crate) fn counter(&self) -> Arc<dyn TokenCounter> {
        match self {
            Self::Scripted { counter, .. } => counter.clone(),
            Self::Embedded { model, .. } => Arc::clone(model.tokenizer()) as _,
        }
    }

    pub(crate) fn target(&self, arm: &Arm) -> Result<Box<dyn Target>, Failure> {
        match self {
            Self::Scripted { damage, counter } => Ok(Box::new(Scripted::new(arm, damage, counter.clone()))),
            Self::Embedded { settings, .. } => self.target_with(arm, settings),
        }
    }

    /// The target of an arm with settings of the engine of its own.
    pub(crate) fn target_with(&self, arm: &Arm, settings: &EngineSettings) -> Result<Box<dyn Target>, Failure> {
        Ok(match self {
            Self::Scripted { damage, counter } => Box::new(Scripted::new(arm, damage, counter.clone())),
            Self::Embedded { model, options, .. } => {
                let options = settings.options(arm, options, Some(model.tokenizer()))?;
                Box::new(Embedded::new(Arc::clone(model), &options)?)
            }
        })
    }
}

/// The planted faults. One in a bin that is not asked would never be planted, and the run would seem to withstand it.
fn damage(texts: &[String], suite: &Suite) -> Result<Vec<Damage>, Failure> {
    let known: Vec<Bin> = suite.bins.iter().map(|plan| plan.bin).collect();
    let parsed = texts.iter().map(|text| {
        let damage: Damage = text.parse()?;
        match damage.bin {
            Some(bin) if !known.contains(&bin) => Err(Failure::DamageBin {
                damage: text.clone(),
                bin: bin.to_string(),
                known: known.iter().map(Bin::to_string).collect(),
            }),
            _ => Ok(damage),
        }
    });
    parsed.collect()
}

/// The control asks the shortest bins only.
fn plan_of(arm: &Arm, whole: &Plan) -> Plan {
    if arm.role != ArmRole::Control {
        return whole.clone();
    }
    let mut bins: Vec<Bin> = whole.groups.iter().map(|group| group.bin).collect();
    bins.sort_unstable();
    bins.dedup();
    bins.truncate(CONTROL_BINS);
    Plan { groups: whole.groups.iter().filter(|group| bins.contains(&group.bin)).cloned().collect() }
}

/// The header of an arm's record; `plan` is that of the arm as a whole, also where a shard of it is asked.
pub(crate) fn header(
    measurement: &Measurement,
    suite: &Suite,
    plan: &Plan,
    arm: &Arm,
    target: &dyn Target,
) -> Manifest {
    let mut environment = machine::facts();
    environment.insert("threads".into(), measurement.model.threads.to_string());
    environment.insert(OPTIONS_KEY.into(), options(measurement));
    let mut header = identity::manifest(suite, plan, arm, target, environment);
    if !measurement.damage.is_empty() {
        // Planted faults change the answers, so a record with them must never be taken for one without.
        header.plan.insert("damage".into(), measurement.damage.join(","));
    }
    if let Some(shard) = measurement.shard {
        header.plan.insert(manifest::SHARD_FIELD.into(), shard.to_string());
        header.planned_items = measurement.part_of(plan).item_count() as u64;
    }
    header.plan_hash = manifest::plan_hash(&header.plan, arm);
    header
}

/// `reports/<suite>-<model>-<8 hex of plan>`: the same measurement finds its folder again.
pub(crate) fn default_run_dir(
    measurement: &Measurement,
    suite: &Suite,
    plan: &Plan,
    source: &Source,
) -> Result<PathBuf, Failure> {
    let arm = baseline(measurement)?;
    let target = source.target(&arm)?;
    let unsharded = Measurement { shard: None, ..measurement.clone() };
    let header = header(&unsharded, suite, plan, &arm, target.as_ref());
    let legal = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
    let model: String = header.model.name.chars().map(legal).collect();
    let hash: String = header.plan_hash.chars().take(8).collect();
    Ok(Path::new("reports").join(measurement.named(format!("{}-{model}-{hash}", suite.name))))
}

/// The options that shaped the run in one canonical form: those that differ from the defaults, in a fixed order. Without
/// arms, which the records name themselves, and without threads, which change nothing.
pub(crate) fn options(measurement: &Measurement) -> String {
    let Measurement { model, suite, dry_run, damage, .. } = measurement;
    let mut text = format!("--suite {}", quoted(&suite.name));
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            write!(text, " --{name} {}", quoted(&value)).expect("writing to a String does not fail");
        }
    };
    let joined = |bins: &Vec<Bin>| bins.iter().map(Bin::to_string).collect::<Vec<_>>().join(",");
    add("bins", suite.bins.as_ref().map(joined));
    add("tasks", suite.tasks.as_ref().map(|tasks| tasks.join(",")));
    add("samples", suite.samples.map(|samples| samples.to_string()));
    add("seed", suite.seed.map(|seed| seed.to_string()));
    if *dry_run {
        text += " --dry-run";
        if !damage.is_empty() {
            write!(text, " --damage {}", quoted(&damage.join(","))).expect("writing to a String does not fail");
        }
        return text;
    }
    add("model", (model.name != DEFAULT_MODEL).then(|| model.name.clone()));
    add("kernel", model.kernel.clone());
    let rope = match model.rope_scaling {
        RopeChoice::None => "none",
        RopeChoice::Linear => "linear",
        RopeChoice::Ntk => "ntk",
    };
    add("rope-scaling", (model.rope_scaling != default_rope(&model.name)).then(|| rope.to_owned()));
    text
}

/// The commands that make a comparison again, from what its records say: one for each set of settings, because a setting
/// holds for all candidates of a command. A calibration file is named by its hash, as the record does not know where it lay.
pub(crate) fn reproduce(environment: &BTreeMap<String, String>, baseline: &Arm, candidates: &[&Arm]) -> String {
    let options = environment.get(OPTIONS_KEY).map_or("", String::as_str);
    if options.starts_with("--config ") {
        // Arms of servers are in the file.
        return format!("kvgauge check {options}");
    }
    if options.starts_with("selftest ") {
        // Damage to recorded answers is no option of `check`.
        return format!("kvgauge {options}");
    }
    let mut groups: Vec<(BTreeMap<&str, &str>, Vec<&Arm>)> = Vec::new();
    for arm in candidates {
        let settings: BTreeMap<&str, &str> = arm
            .settings
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .filter(|(key, _)| *key != "concurrency")
            .collect();
        match groups.iter_mut().find(|(known, _)| *known == settings) {
            Some((_, arms)) => arms.push(arm),
            None => groups.push((settings, vec![arm])),
        }
    }
    let commands: Vec<String> =
        groups.iter().map(|(settings, arms)| command(options, baseline, settings, arms)).collect();
    commands.join("\n")
}

fn command(options: &str, baseline: &Arm, settings: &BTreeMap<&str, &str>, candidates: &[&Arm]) -> String {
    let mut text = format!("kvgauge check {options}");
    let mut add = |name: &str, value: &str| {
        write!(text, " --{name} {}", quoted(value)).expect("writing to a String does not fail");
    };
    if baseline.kv_cache_dtype != crate::settings::DEFAULT_BASELINE {
        add("baseline", &baseline.kv_cache_dtype);
    }
    if let Some(backend) = &baseline.attention_backend {
        add("attention-backend", backend);
    }
    let mut levels = vec![baseline.concurrency()];
    levels.extend(candidates.iter().map(|arm| arm.concurrency()));
    let mut known = BTreeSet::new();
    levels.retain(|level| known.insert(*level));
    if levels != [1] {
        add("concurrency", &levels.iter().map(usize::to_string).collect::<Vec<_>>().join(","));
    }
    for (key, value) in settings {
        add(&key.replace('_', "-"), value);
    }
    let spec = |arm: &&Arm| match &arm.attention_backend {
        Some(backend) if arm.attention_backend != baseline.attention_backend => {
            format!("{}@{backend}", arm.kv_cache_dtype)
        }
        _ => arm.kv_cache_dtype.clone(),
    };
    let mut specs: Vec<String> = candidates.iter().map(spec).collect();
    let mut known = BTreeSet::new();
    specs.retain(|spec| known.insert(spec.clone()));
    add("kv-cache-dtype", &specs.join(","));
    text
}

/// A value as a shell takes it: in single quotes where it holds anything that a shell may read.
pub(crate) fn quoted(value: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.,:=@/+%".contains(c);
    if !value.is_empty() && value.chars().all(is_plain) {
        return value.to_owned();
    }
    format!("'{}'", value.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comparison_is_made_again_by_one_command_for_each_set_of_settings() {
        let environment = BTreeMap::from([(OPTIONS_KEY.to_owned(), "--suite quick".to_owned())]);
        let with = |dtype: &str, key: &str, value: &str| {
            let mut arm = Arm::candidate(dtype);
            arm.settings.insert(key.into(), value.into());
            arm
        };
        let arms = [
            Arm::candidate("fp8"),
            with("int8_per_token_head", "kv_fault", "k_noise=0"),
            Arm::candidate("fp8_e5m2"),
            with("fp8", "kv_cache_dtype_skip_layers", "0"),
        ];
        let text = reproduce(&environment, &Arm::baseline("bfloat16"), &arms.iter().collect::<Vec<_>>());
        assert_eq!(
            text.lines().collect::<Vec<_>>(),
            [
                "kvgauge check --suite quick --kv-cache-dtype fp8,fp8_e5m2",
                "kvgauge check --suite quick --kv-fault k_noise=0 --kv-cache-dtype int8_per_token_head",
                "kvgauge check --suite quick --kv-cache-dtype-skip-layers 0 --kv-cache-dtype fp8",
            ]
        );
    }

    #[test]
    fn what_a_shell_would_read_is_quoted() {
        assert_eq!(quoted("fp8@FLASH_ATTN,k_noise=-3.5"), "fp8@FLASH_ATTN,k_noise=-3.5");
        assert_eq!(
            (quoted("a b").as_str(), quoted("it's").as_str(), quoted("").as_str()),
            ("'a b'", "'it'\\''s'", "''")
        );
    }
}
