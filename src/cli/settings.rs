//! One value per setting: option beats environment (clap has merged those two) beats `kvgauge.toml` beats default.

use std::num::NonZero;
use std::path::PathBuf;

use kvgauge::sample::Bin;
use kvgauge::suite::{Plan, Shard};

use crate::args::{MeasureArgs, ModelArgs, OnInconclusive, PolicyArgs, RopeChoice, SuiteArgs};
use crate::config::ConfigFile;
use crate::engine_settings::EngineSettings;
use crate::failure::Failure;

pub(crate) const DEFAULT_MODEL: &str = "smollm2-135m";
pub(crate) const DEFAULT_SUITE: &str = "quick";
pub(crate) const DEFAULT_BASELINE: &str = "bfloat16";

/// The 8-bit dtypes that serving engines offer first.
pub(crate) const DEFAULT_CANDIDATES: [&str; 3] = ["fp8_e4m3", "fp8_e5m2", "int8_per_token_head"];

/// As the option's own range: more haystacks at once than any server takes from one client here.
const MAX_CONCURRENCY: usize = 64;

/// What is measured.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Measurement {
    pub(crate) model: ModelSettings,
    pub(crate) engine: EngineSettings,
    pub(crate) suite: SuiteSettings,
    pub(crate) baseline: String,
    /// As given; each command has its own default.
    pub(crate) kv_cache_dtypes: Option<Vec<String>>,
    /// Levels, each once; the baseline runs at the first.
    pub(crate) concurrency: Vec<usize>,
    pub(crate) run_dir: Option<PathBuf>,
    /// The part of the plan that is asked; `None` for all of it.
    pub(crate) shard: Option<Shard>,
    pub(crate) dry_run: bool,
    pub(crate) damage: Vec<String>,
}

/// Which model, computed how.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ModelSettings {
    pub(crate) name: String,
    /// `None` leaves the choice to the engine.
    pub(crate) kernel: Option<String>,
    pub(crate) rope_scaling: RopeChoice,
    pub(crate) threads: usize,
    pub(crate) offline: bool,
}

/// Which suite, or which part of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SuiteSettings {
    pub(crate) name: String,
    pub(crate) bins: Option<Vec<Bin>>,
    pub(crate) tasks: Option<Vec<String>>,
    pub(crate) samples: Option<u32>,
    pub(crate) seed: Option<u64>,
    pub(crate) haystack: Option<PathBuf>,
}

impl Measurement {
    /// What of `plan` is asked here.
    pub(crate) fn part_of(&self, plan: &Plan) -> Plan {
        self.shard.map_or_else(|| plan.clone(), |shard| plan.shard(shard))
    }

    /// The name of a run folder, with the shard where there is one.
    pub(crate) fn named(&self, name: String) -> String {
        self.shard.map_or_else(|| name.clone(), |shard| format!("{name}-{}-of-{}", shard.number(), shard.of()))
    }
}

pub(crate) fn measurement(args: &MeasureArgs, file: &ConfigFile) -> Result<Measurement, Failure> {
    Ok(Measurement {
        model: model(&args.model, file),
        engine: EngineSettings::new(&args.engine, &file.engine)?,
        suite: suite(&args.suite, file)?,
        baseline: first([&args.baseline, &file.arms.baseline]).unwrap_or_else(|| DEFAULT_BASELINE.into()),
        kv_cache_dtypes: first([&args.kv_cache_dtype, &file.arms.kv_cache_dtype]),
        concurrency: concurrency(first([&args.concurrency, &file.arms.concurrency])),
        run_dir: args.run_dir.clone(),
        shard: args.shard,
        dry_run: args.dry_run,
        damage: args.damage.clone(),
    })
}

/// The levels in the order given, each once. A zero, which only a file can hold, is the least that can be asked.
fn concurrency(given: Option<Vec<u16>>) -> Vec<usize> {
    let mut levels: Vec<usize> = Vec::new();
    for level in given.unwrap_or_default() {
        let level = usize::from(level).clamp(1, MAX_CONCURRENCY);
        if !levels.contains(&level) {
            levels.push(level);
        }
    }
    if levels.is_empty() { vec![1] } else { levels }
}

pub(crate) fn model(args: &ModelArgs, file: &ConfigFile) -> ModelSettings {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let name = first([&args.model, &file.model.name]).unwrap_or_else(|| DEFAULT_MODEL.into());
    let rope_scaling = first([&args.rope_scaling, &file.model.rope_scaling]);
    ModelSettings {
        kernel: first([&args.kernel, &file.model.kernel]).filter(|kernel| kernel != "auto"),
        rope_scaling: rope_scaling.unwrap_or_else(|| default_rope(&name)),
        threads: first([&args.threads, &file.model.threads]).map_or(cores, usize::from),
        offline: first([&args.offline, &file.model.offline]).unwrap_or(false),
        name,
    }
}

/// The built-in model is measured beyond its trained length and known to follow; of another model nobody knows.
pub(crate) fn default_rope(model: &str) -> RopeChoice {
    if model == DEFAULT_MODEL { RopeChoice::Ntk } else { RopeChoice::None }
}

pub(crate) fn suite(args: &SuiteArgs, file: &ConfigFile) -> Result<SuiteSettings, Failure> {
    let bins_of_file = match &file.suite.bins {
        Some(bins) => Some(bins.iter().map(|bin| bin.parse()).collect::<Result<Vec<Bin>, _>>().map_err(Failure::Bins)?),
        None => None,
    };
    Ok(SuiteSettings {
        name: first([&args.suite, &file.suite.name]).unwrap_or_else(|| DEFAULT_SUITE.into()),
        bins: first([&args.bins, &bins_of_file]),
        tasks: first([&args.tasks, &file.suite.tasks]),
        samples: first([&args.samples, &file.suite.samples]),
        seed: first([&args.seed, &file.suite.seed]),
        haystack: first([&args.haystack, &file.suite.haystack]),
    })
}

pub(crate) fn on_inconclusive(args: &PolicyArgs, file: &ConfigFile) -> OnInconclusive {
    first([&args.on_inconclusive, &file.on_inconclusive]).unwrap_or_default()
}

fn first<T: Clone>(sources: [&Option<T>; 2]) -> Option<T> {
    sources.into_iter().flatten().next().cloned()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn file(text: &str) -> ConfigFile {
        ConfigFile::parse(Path::new("kvgauge.toml"), text).unwrap()
    }

    #[test]
    fn option_beats_file_beats_default() {
        let text = "[model]\nname = \"of-file\"\nthreads = 3\n[arms]\nbaseline = \"float16\"\n[suite]\nbins = [\"2K\"]";
        let args = MeasureArgs {
            model: ModelArgs { model: Some("of-option".into()), ..ModelArgs::default() },
            ..MeasureArgs::default()
        };
        let merged = measurement(&args, &file(text)).unwrap();
        assert_eq!((merged.model.name.as_str(), merged.model.threads), ("of-option", 3));
        assert_eq!(merged.baseline, "float16");
        assert_eq!((merged.suite.name.as_str(), merged.suite.bins), (DEFAULT_SUITE, Some(vec![Bin(2048)])));
    }

    #[test]
    fn the_example_file_holds_the_defaults() {
        let example = include_str!("../../kvgauge.toml");
        let args = MeasureArgs::default();
        let mut merged = measurement(&args, &file(example)).unwrap();
        assert_eq!(merged.kv_cache_dtypes.take().unwrap(), DEFAULT_CANDIDATES);
        assert_eq!(merged, measurement(&args, &ConfigFile::default()).unwrap());
        assert_eq!(on_inconclusive(&PolicyArgs::default(), &file(example)), OnInconclusive::Warn);
    }

    #[test]
    fn a_bad_bin_in_the_file_is_named() {
        let failure = suite(&SuiteArgs::default(), &file("[suite]\nbins = [\"eight\"]")).unwrap_err();
        assert!(failure.to_string().contains("`eight` is not a context length"), "{failure}");
    }
}
