//! The command line. Names are frozen: scripts and continuous integration depend on them.
//!
//! Every option that can stand in `kvgauge.toml` is an `Option` here, so that `settings.rs` can tell "not given" from a value;
//! the environment fallback (`KVGAUGE_*`) is clap's.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use kvgauge::sample::Bin;
use kvgauge::suite::Shard;

use crate::against::AgainstArgs;
use crate::baseline::options::BaselineCommand;
use crate::bench::options::BenchArgs;
use crate::engine_settings::EngineArgs;
use crate::exit_code;
use crate::plan::options::PlanArgs;
use crate::selftest::options::SelftestArgs;
use crate::suite::Seeds;

/// Finds out, per context-length bin, what a quantized KV cache does to a language model's answers.
#[derive(Debug, Parser)]
#[command(name = "kvgauge", version, max_term_width = 110, after_help = exit_code::table())]
pub(crate) struct Cli {
    /// Configuration file [default: kvgauge.toml, where there is one]
    #[arg(long, global = true, value_name = "FILE", env = "KVGAUGE_CONFIG", hide_env_values = true)]
    pub(crate) config: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the arms that are missing, compare, judge and report: the main job
    Check(CheckArgs),
    /// Run one suite on one or more arms and write run records
    Run(RunArgs),
    /// Put the shards of a run together; no model needed
    Merge(MergeArgs),
    /// Keep the baseline of a run under a name, so that `check --against` need not measure it again
    #[command(subcommand)]
    Baseline(BaselineCommand),
    /// Compare records with their baseline; no model needed
    Compare(CompareArgs),
    /// Compare records and judge them; no model needed
    Gate(GateArgs),
    /// Write the report again from records on disk; no model needed
    Report(ReportArgs),
    /// List, check and show suites
    #[command(subcommand)]
    Suite(SuiteCommand),
    /// List what is built in
    List(ListArgs),
    /// Look for symptoms of degradation in outputs on file; no model needed
    Detect(DetectArgs),
    /// What a server's start-up log says: KV dtype, backend, capacity, silent replacements
    InspectLog(InspectLogArgs),
    /// What a running server says of itself: model, KV dtype, backend, capacity, each with its source
    Probe(ProbeArgs),
    /// Teacher-forced log-probabilities of given text under a model and a KV cache
    Logprobs(LogprobsArgs),
    /// Measure speed and memory of the embedded engine on this machine
    Bench(BenchArgs),
    /// What fits on a GPU, per KV dtype and length, and how many pairs a gate needs
    Plan(Box<PlanArgs>),
    /// Prove the instrument on this machine: planted damage must be found
    ///
    /// Runs the baseline twice and a ladder of planted damage through the ordinary pipeline, and shows the smallest damage that the
    /// suite finds in each bin. Exit code 0: the clean arm is not REGRESSED, and the strongest damage of each kind is found in at
    /// least one bin. 100: one of the two is not so. 6: it could not be shown, as arms are INVALID or the model has too few right
    /// answers to lose.
    Selftest(SelftestArgs),
    /// Print the completion script of a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    Man,
}

/// A variable that is set to nothing is not set: scripts clear one with `KVGAUGE_BINS=`.
pub(crate) fn without_empty_variables(command: clap::Command) -> clap::Command {
    let is_empty = |arg: &clap::Arg| {
        let value = arg.get_env().and_then(std::env::var_os);
        value.is_some_and(|value| value.is_empty())
    };
    let command = command.mut_args(|arg| if is_empty(&arg) { arg.env(None::<&'static str>) } else { arg });
    command.mut_subcommands(without_empty_variables)
}

/// What is measured: shared by `check` and `run`.
#[derive(Args, Debug, Default)]
pub(crate) struct MeasureArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) suite: SuiteArgs,
    /// KV dtype that the others are compared with [default: bfloat16]
    #[arg(long, value_name = "DTYPE", env = "KVGAUGE_BASELINE", hide_env_values = true)]
    pub(crate) baseline: Option<String>,
    /// KV dtypes, a comma list; `DTYPE@BACKEND` asks for a backend in that arm alone; see `kvgauge list dtypes`
    #[arg(
        long,
        value_name = "DTYPE,...",
        value_delimiter = ',',
        env = "KVGAUGE_KV_CACHE_DTYPE",
        hide_env_values = true
    )]
    pub(crate) kv_cache_dtype: Option<Vec<String>>,
    /// Haystacks asked at once, a comma list; every further level is an arm of its own for each dtype [default: 1]
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        env = "KVGAUGE_CONCURRENCY",
        hide_env_values = true,
        value_parser = clap::value_parser!(u16).range(1..=64)
    )]
    pub(crate) concurrency: Option<Vec<u16>>,
    /// Folder of the run, one subfolder per arm [default: reports/SUITE-MODEL-HASH]
    #[arg(long, value_name = "DIR", env = "KVGAUGE_RUN_DIR", hide_env_values = true)]
    pub(crate) run_dir: Option<PathBuf>,
    /// Ask only the haystacks of shard M of N, for `kvgauge merge`; `check` then stops before judging
    // No variable: one that is left over would keep a check from judging.
    #[arg(long, value_name = "M/N")]
    pub(crate) shard: Option<Shard>,
    /// Answer from a script instead of a model: tries suite, gate and report out
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Faults planted in the candidates of a dry run: KIND@BIN=SHARE, a comma list
    #[arg(long, value_name = "KIND@BIN=SHARE,...", value_delimiter = ',', requires = "dry_run")]
    pub(crate) damage: Vec<String>,
    /// Print one JSON document on standard output, everything else on standard error
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which model, computed how.
#[derive(Args, Debug, Default)]
pub(crate) struct ModelArgs {
    /// Built-in name, .gguf file, model folder or hub id [default: smollm2-135m]
    #[arg(long, value_name = "MODEL", env = "KVGAUGE_MODEL", hide_env_values = true)]
    pub(crate) model: Option<String>,
    /// Compute kernel; see `kvgauge list kernels` [default: auto]
    #[arg(long, value_name = "KERNEL", env = "KVGAUGE_KERNEL", hide_env_values = true)]
    pub(crate) kernel: Option<String>,
    /// How positions beyond the trained length are encoded [default: ntk for the built-in model, none for others]
    #[arg(long, value_enum, value_name = "KIND", env = "KVGAUGE_ROPE_SCALING", hide_env_values = true)]
    pub(crate) rope_scaling: Option<RopeChoice>,
    /// Threads of the engine; results do not depend on it [default: all cores]
    #[arg(long, value_name = "N", env = "KVGAUGE_THREADS", hide_env_values = true, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Never touch the network: the model must be on this machine
    #[arg(
        long,
        value_name = "YES",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        value_parser = clap::builder::BoolishValueParser::new(),
        env = "KVGAUGE_OFFLINE",
        hide_env_values = true
    )]
    pub(crate) offline: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RopeChoice {
    /// Refuse bins beyond the trained length
    None,
    /// Divide positions by bin / trained length
    Linear,
    /// Raise the base (NTK-aware) by bin / trained length
    Ntk,
}

/// Which suite, or which part of it.
#[derive(Args, Debug, Default)]
pub(crate) struct SuiteArgs {
    /// Built-in suite, see `kvgauge suite list`, or a suite file [default: quick]
    #[arg(long, visible_alias = "profile", value_name = "SUITE", env = "KVGAUGE_SUITE", hide_env_values = true)]
    pub(crate) suite: Option<String>,
    /// Context-length bins to keep, a comma list: 512,2K,8K
    #[arg(long, value_name = "BIN,...", value_delimiter = ',', env = "KVGAUGE_BINS", hide_env_values = true)]
    pub(crate) bins: Option<Vec<Bin>>,
    /// Tasks to keep, a comma list; see `kvgauge list tasks`
    #[arg(long, value_name = "TASK,...", value_delimiter = ',', env = "KVGAUGE_TASKS", hide_env_values = true)]
    pub(crate) tasks: Option<Vec<String>>,
    /// Items per task and bin, instead of the suite's numbers
    #[arg(long, value_name = "N", env = "KVGAUGE_SAMPLES", hide_env_values = true, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) samples: Option<u32>,
    /// Seed of every item, instead of the suite's
    #[arg(long, value_name = "N", env = "KVGAUGE_SEED", hide_env_values = true)]
    pub(crate) seed: Option<u64>,
    /// Text of your own, UTF-8, as filler of the documents of prose
    #[arg(long, value_name = "FILE", env = "KVGAUGE_HAYSTACK", hide_env_values = true)]
    pub(crate) haystack: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) measure: MeasureArgs,
    #[command(flatten)]
    pub(crate) against: AgainstArgs,
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
    /// Ask what would fail again on fresh seeds, baseline and candidate; only what rejects again fails
    #[arg(long)]
    pub(crate) confirm: bool,
    /// Write another copy; the kind goes by the extension: .html .md .json .xml .parquet, badge.json (repeatable)
    #[arg(short, long, value_name = "FILE", conflicts_with = "shard")]
    pub(crate) output: Vec<PathBuf>,
    /// Folder with the run folders of earlier nights, shown in the report beside this one
    #[arg(long, value_name = "DIR", env = "KVGAUGE_HISTORY", hide_env_values = true)]
    pub(crate) history: Option<PathBuf>,
}

/// What a verdict does to the exit code.
#[derive(Args, Debug, Default)]
pub(crate) struct PolicyArgs {
    /// What an INCONCLUSIVE verdict means [default: warn]
    #[arg(long, value_enum, value_name = "WHAT", env = "KVGAUGE_ON_INCONCLUSIVE", hide_env_values = true)]
    pub(crate) on_inconclusive: Option<OnInconclusive>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OnInconclusive {
    /// Exit 0
    Pass,
    /// Exit 0 and say so
    #[default]
    Warn,
    /// Exit 5
    Fail,
}

#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) measure: MeasureArgs,
}

/// Records on disk: shared by `compare`, `gate` and `report`.
#[derive(Args, Debug, Default)]
pub(crate) struct RecordArgs {
    /// A run folder, or the baseline's record folder followed by those of the candidates
    #[arg(required = true, value_name = "DIR")]
    pub(crate) records: Vec<PathBuf>,
    /// Write a file; the kind goes by the extension: .html .md .json .xml .parquet, badge.json (repeatable)
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Vec<PathBuf>,
    /// Judge by the gate of this suite [default: the gate stored with the run]
    #[arg(long, value_name = "SUITE")]
    pub(crate) suite: Option<String>,
    /// Print one JSON document on standard output, everything else on standard error
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct CompareArgs {
    #[command(flatten)]
    pub(crate) records: RecordArgs,
}

#[derive(Args, Debug)]
pub(crate) struct GateArgs {
    #[command(flatten)]
    pub(crate) records: RecordArgs,
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
}

#[derive(Args, Debug)]
pub(crate) struct ReportArgs {
    #[command(flatten)]
    pub(crate) records: RecordArgs,
    /// Folder with the run folders of earlier nights, shown in the report beside this one
    #[arg(long, value_name = "DIR", env = "KVGAUGE_HISTORY", hide_env_values = true)]
    pub(crate) history: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct MergeArgs {
    /// Folder to write the run to; must not exist or be empty
    #[arg(value_name = "OUT")]
    pub(crate) out: PathBuf,
    /// The run folders of all shards, in any order
    #[arg(required = true, value_name = "SHARD_DIR")]
    pub(crate) shards: Vec<PathBuf>,
    /// Leave open what is missing: the run counts as unfinished, and a start in its folder goes on with it
    #[arg(long)]
    pub(crate) partial: bool,
    /// Print one JSON document on standard output, everything else on standard error
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SuiteCommand {
    /// The built-in suites
    List {
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Read suites and say what is wrong with them
    Check {
        /// Suite files or built-in names
        #[arg(required = true, value_name = "SUITE")]
        suites: Vec<String>,
    },
    /// Print one rendered item with its token count
    Show(Box<ShowArgs>),
    /// Print every item with its right answer, one JSON document a line
    Dump(Box<DumpArgs>),
}

#[derive(Args, Debug)]
pub(crate) struct DumpArgs {
    #[command(flatten)]
    pub(crate) suite: SuiteArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Seeds, both ends included: 7 or 1..200; each makes the whole suite anew [default: the suite's]
    #[arg(long, value_name = "SEEDS", conflicts_with = "seed")]
    pub(crate) seeds: Option<Seeds>,
    /// Count tokens with the tokenizer of this model folder, without its weights
    #[arg(long, value_name = "DIR")]
    pub(crate) tokenizer: Option<PathBuf>,
    /// Count tokens as a dry run does, without a model
    #[arg(long, conflicts_with = "tokenizer")]
    pub(crate) dry_run: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    pub(crate) suite: SuiteArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// The item by its id, or the start of it [default: the first]
    #[arg(long, value_name = "ID")]
    pub(crate) item: Option<String>,
    /// The first item of this task
    #[arg(long, value_name = "TASK")]
    pub(crate) task: Option<String>,
    /// The first item of this bin
    #[arg(long, value_name = "BIN")]
    pub(crate) bin: Option<Bin>,
    /// Count tokens as a dry run does, without a model
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print the whole item as one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    /// Which registry
    #[arg(value_enum)]
    pub(crate) what: Listing,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Listing {
    /// Generators of items
    Tasks,
    /// What judges answers
    Scorers,
    /// What finds symptoms of degradation
    Detectors,
    /// KV cache dtypes
    Dtypes,
    /// Attention backends of the embedded engine
    Backends,
    /// Compute kernels and whether they run here
    Kernels,
}

#[derive(Args, Debug)]
pub(crate) struct DetectArgs {
    /// JSONL of {id, output, expected?, task?, lang?, finish_reason?, max_tokens?, baseline_output?, prompt?}; `-` is standard input
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Print one JSON object per line of input: {id, verdict, findings}
    #[arg(long)]
    pub(crate) json: bool,
    /// Print a table of verdicts by the lines' own field `label` at the end
    #[arg(long)]
    pub(crate) confusion: bool,
}

#[derive(Args, Debug)]
pub(crate) struct InspectLogArgs {
    /// Logs of vLLM, SGLang, TensorRT-LLM, llama.cpp, LMDeploy, TGI or Ollama; `-` is standard input
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Print one JSON object (an array for several files) on standard output; what is not known is null
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ProbeArgs {
    /// Address of the server: http://localhost:8000, with or without /v1
    #[arg(value_name = "URL")]
    pub(crate) url: String,
    /// Name of the variable that holds the API key
    #[arg(long, value_name = "NAME")]
    pub(crate) api_key_env: Option<String>,
    /// Model folder, or its config.json: tells what the checkpoint makes of the KV dtype `auto`
    #[arg(long, value_name = "PATH")]
    pub(crate) model: Option<PathBuf>,
    /// The server's start-up log, which tells what no endpoint does
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
    /// Tensor-parallel ranks of the server: with --model and --log the bytes per token tell the width of the cache
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) tensor_parallel: Option<u32>,
    /// Print one JSON document on standard output; what is not known is null
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct LogprobsArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// KV dtype [default: bfloat16]
    #[arg(long, value_name = "DTYPE")]
    pub(crate) kv_cache_dtype: Option<String>,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) input: LogprobsInput,
    /// Print {token_ids, next_token_logprob, top5}
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct LogprobsInput {
    /// A JSON file with an array of token ids; needs no tokenizer
    #[arg(long, value_name = "FILE")]
    pub(crate) ids: Option<PathBuf>,
    /// Text, tokenized by the model's tokenizer
    #[arg(long, value_name = "TEXT")]
    pub(crate) text: Option<String>,
}
