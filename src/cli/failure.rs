//! Everything a command can fail with. The library has one error type per stage; here they meet, so that each gets an exit code.
//!
//! The matches are exhaustive on purpose: a new error has to decide.

use std::io;
use std::path::PathBuf;

use kvgauge::baseline::BaselineError;
use kvgauge::compare::CompareError;
use kvgauge::compare::table::TableError;
use kvgauge::engine::known_dtypes;
use kvgauge::engine::kv_cache::codec::UnknownDtype;
use kvgauge::engine::{EngineError, OptionError};
use kvgauge::gate::GateError;
use kvgauge::hint::{Hint, did_you_mean};
use kvgauge::model_store::StoreError;
use kvgauge::record::RecordError;
use kvgauge::record::merge::MergeError;
use kvgauge::report::{HistoryError, ReportError};
use kvgauge::runner::RunError;
use kvgauge::serving::launch::LaunchError;
use kvgauge::suite::{Shard, SuiteError};
use kvgauge::targets::TargetError;
use kvgauge::targets::embedded::OpenError;
use kvgauge::tasks::{TaskError, UserTextError};
use kvgauge::tokenizer::TokenizerError;

use crate::baseline::remote::RemoteError;
use crate::bench::BenchError;
use crate::config::ConfigError;
use crate::detect::DetectError;
use crate::engine_settings::EngineOptionError;
use crate::exit_code::Exit;
use crate::inspect_log::InspectLogError;
use crate::logprobs::InputError;
use crate::plan::PlanError;
use crate::probe::ProbeError;

/// Why a command ended without its result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("configuration, [suite] bins: {0}")]
    Bins(String),
    #[error(transparent)]
    Suite(#[from] SuiteError),
    #[error(transparent)]
    Task(#[from] TaskError),
    #[error(transparent)]
    Haystack(#[from] UserTextError),
    #[error(transparent)]
    Dtype(#[from] UnknownDtype),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Baseline(#[from] BaselineError),
    #[error(transparent)]
    Remote(#[from] RemoteError),
    #[error("baseline: {0}")]
    BaselineRecord(RecordError),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(transparent)]
    Merge(#[from] MergeError),
    #[error("`{}` holds shard {shard} of a run, not the run", dir.display())]
    ShardAlone { dir: PathBuf, shard: Shard },
    #[error("`--shard` and `--against` do not go together: a shard measures the baseline's part with its own")]
    ShardAgainst,
    #[error(transparent)]
    Compare(#[from] CompareError),
    #[error(transparent)]
    Gate(#[from] GateError),
    #[error(transparent)]
    Report(#[from] ReportError),
    #[error(transparent)]
    Table(#[from] TableError),
    #[error(transparent)]
    History(#[from] HistoryError),
    #[error(transparent)]
    EngineOption(#[from] EngineOptionError),
    #[error(transparent)]
    EngineName(#[from] OptionError),
    #[error(transparent)]
    Input(#[from] InputError),
    #[error(transparent)]
    Bench(#[from] BenchError),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Detect(#[from] DetectError),
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error("no [[arm]] is named `{name}` or has this dtype")]
    NoArm { name: String, known: Vec<String> },
    #[error(transparent)]
    InspectLog(#[from] InspectLogError),
    #[error(transparent)]
    Probe(#[from] ProbeError),
    #[error("no candidate is left besides the baseline `{baseline}`")]
    NoCandidate { baseline: String },
    #[error("`{}` holds no record of a baseline", dir.display())]
    NoBaseline { dir: PathBuf },
    #[error("`{}` holds records of more than one baseline: {}", dir.display(), names.join(", "))]
    ManyBaselines { dir: PathBuf, names: Vec<String> },
    #[error("`{}` cannot be read: {source}", dir.display())]
    RunFolder { dir: PathBuf, source: io::Error },
    #[error("`{}` has more than {limit} subfolders", dir.display())]
    ManyFolders { dir: PathBuf, limit: usize },
    #[error(
        "the records have no run.json beside them and are not of the built-in suites (theirs: `{suite}`): their gate is not known"
    )]
    NoPolicy { suite: String },
    #[error("the records were measured for different gates: those in `{}` and `{}`", first.display(), second.display())]
    ManyGates { first: PathBuf, second: PathBuf },
    #[error("arm `{arm}` belongs to the run in `{}`, but: {source}", dir.display())]
    ArmMissing { arm: String, dir: PathBuf, source: RecordError },
    #[error("arm `{arm}` of the run in `{}` is not finished", dir.display())]
    ArmUnfinished { arm: String, dir: PathBuf },
    #[error("`{}` holds the record of an arm `{name}` that its run.json does not name", dir.display())]
    Stranger { dir: PathBuf, name: String },
    #[error("damage `{damage}`: the run has no bin {bin}")]
    DamageBin { damage: String, bin: String, known: Vec<String> },
    #[error("`{}` has the name of a file of run records, which `-o` never writes", path.display())]
    OutputIsRecord { path: PathBuf },
    #[error("no item of suite `{suite}` has an id that starts with `{id}`")]
    NoItem { suite: String, id: String },
    #[error("the records are in no common run folder, so there is no place for the report")]
    NoOutput,
    #[error("`{}` has no extension that says what to write", path.display())]
    OutputKind { path: PathBuf },
    #[error("standard output: {0}")]
    Stdout(io::Error),
    #[error("JSON: {0}")]
    Json(serde_json::Error),
    #[error("`{}` cannot be written: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("threads and signal handlers cannot be set up: {0}")]
    Runtime(io::Error),
    #[error("interrupted after {done} of {planned} items of arm `{arm}`")]
    Interrupted { exit: Exit, arm: String, done: usize, planned: usize },
}

impl Failure {
    /// The exit code.
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Config(_)
            | Self::Bins(_)
            | Self::Task(_)
            | Self::Dtype(_)
            | Self::Tokenizer(_)
            | Self::EngineOption(_)
            | Self::EngineName(_)
            | Self::Input(_)
            | Self::Bench(_)
            | Self::Plan(_)
            | Self::Detect(_)
            | Self::InspectLog(_)
            | Self::ManyBaselines { .. }
            | Self::RunFolder { .. }
            | Self::ManyFolders { .. }
            | Self::NoPolicy { .. }
            | Self::ManyGates { .. }
            | Self::Stranger { .. }
            | Self::ShardAlone { .. }
            | Self::ShardAgainst
            | Self::NoOutput
            | Self::OutputIsRecord { .. }
            | Self::OutputKind { .. } => Exit::Usage,
            Self::ArmMissing { .. } | Self::ArmUnfinished { .. } => Exit::NotMeasured,
            Self::Launch(error) if error.is_usage() => Exit::Usage,
            Self::Launch(_) => Exit::NotMeasured,
            Self::Probe(error) => error.exit(),
            Self::Suite(error) if error.is_selection() => Exit::NothingSelected,
            Self::Suite(_) | Self::Haystack(_) => Exit::Usage,
            Self::Store(error) => of_store(error),
            Self::Open(OpenError::Engine(error)) | Self::Engine(error) => of_engine(error),
            Self::Open(OpenError::Tokenizer(_) | OpenError::VocabularyTooLarge { .. }) => Exit::Usage,
            Self::Target(error) => of_target(error),
            Self::Run(error) => of_run(error),
            Self::BaselineRecord(_) | Self::NoBaseline { .. } => Exit::Baseline,
            Self::Remote(error) => error.exit(),
            Self::Baseline(error) => of_baseline(error),
            Self::Record(error) => of_record(error),
            Self::Merge(error) => of_merge(error),
            Self::Compare(error) => of_compare(error),
            Self::Gate(GateError::Unknown { .. })
            | Self::NoCandidate { .. }
            | Self::NoArm { .. }
            | Self::NoItem { .. }
            | Self::DamageBin { .. } => Exit::NothingSelected,
            Self::Gate(
                GateError::OutOfRange { .. }
                | GateError::Unconfirmed { .. }
                | GateError::OtherConfirmation { .. }
                | GateError::SameSeed { .. },
            )
            | Self::History(_) => Exit::Usage,
            Self::Table(TableError::Write { source, .. }) | Self::Write { source, .. } => of_write(source),
            Self::Report(_)
            | Self::Table(TableError::Table(_))
            | Self::Stdout(_)
            | Self::Json(_)
            | Self::Runtime(_) => Exit::Internal,
            Self::Interrupted { exit, .. } => *exit,
        }
    }
}

/// A wrong name or file is the command line's fault; a network that does not answer is not.
fn of_store(error: &StoreError) -> Exit {
    match error {
        StoreError::UnknownModel { .. }
        | StoreError::NoSuchPath { .. }
        | StoreError::NotAModel { .. }
        | StoreError::BadName { .. }
        | StoreError::NoCacheDir
        | StoreError::WrongSize { .. }
        | StoreError::WrongHash { .. }
        | StoreError::Package { .. }
        | StoreError::BadEndpoint { .. }
        | StoreError::BadToken
        | StoreError::Tls { .. }
        | StoreError::NotOnHub { .. }
        | StoreError::Denied { .. }
        | StoreError::TooLarge { .. }
        | StoreError::Malformed { .. } => Exit::Usage,
        StoreError::Io { source, .. } => of_write(source),
        StoreError::Offline { .. }
        | StoreError::NoPython { .. }
        | StoreError::Pip { .. }
        | StoreError::PipTimeout { .. }
        | StoreError::HubStatus { .. }
        | StoreError::Transfer { .. } => Exit::NotMeasured,
    }
}

/// Names, options and model files are refused before anything is computed; the rest happens on the way.
fn of_engine(error: &EngineError) -> Exit {
    match error {
        EngineError::Model(_)
        | EngineError::Rope(_)
        | EngineError::Dtype(_)
        | EngineError::Kernel(_)
        | EngineError::Attention(_)
        | EngineError::KvOption(_)
        | EngineError::KvScale(_)
        | EngineError::FaultLayer { .. }
        | EngineError::PrefillChunk { .. }
        | EngineError::BudgetTooSmall { .. } => Exit::Usage,
        _ => Exit::NotMeasured,
    }
}

fn of_target(error: &TargetError) -> Exit {
    match error {
        TargetError::BinTooLong { .. } | TargetError::Damage(_) | TargetError::Tokenizer(_) => Exit::Usage,
        TargetError::Cancelled => Exit::Interrupted,
        TargetError::Endpoint(error) if error.is_usage() => Exit::Usage,
        TargetError::Endpoint(_)
        | TargetError::ContextOverflow { .. }
        | TargetError::HistoryRewritten
        | TargetError::Engine(_)
        | TargetError::NotFinite(_) => Exit::NotMeasured,
    }
}

fn of_run(error: &RunError) -> Exit {
    match error {
        RunError::Record(error) => of_record(error),
        RunError::Task(_) => Exit::Usage,
        RunError::Target(error) => of_target(error),
        RunError::Interrupted { .. } => Exit::Interrupted,
        RunError::KeepsFailing { .. } => Exit::NotMeasured,
        RunError::Generator { .. } => Exit::Internal,
    }
}

fn of_record(error: &RecordError) -> Exit {
    match error {
        RecordError::Locked { .. }
        | RecordError::PlanDiffers { .. }
        | RecordError::NotFound { .. }
        | RecordError::Format { .. } => Exit::Usage,
        RecordError::Storage { source, .. } => of_write(source),
        RecordError::Malformed { .. }
        | RecordError::Damaged { .. }
        | RecordError::Incomplete { .. }
        | RecordError::LineTooLong { .. }
        | RecordError::Closed { .. } => Exit::NotMeasured,
        RecordError::Inconsistent { .. } => Exit::Internal,
    }
}

/// What is missing can still be measured; what contradicts itself was named wrongly.
fn of_merge(error: &MergeError) -> Exit {
    match error {
        MergeError::Record(error) => of_record(error),
        MergeError::Nothing
        | MergeError::NotAShard { .. }
        | MergeError::Twice { .. }
        | MergeError::Differs { .. }
        | MergeError::Stranger { .. }
        | MergeError::OutExists { .. } => Exit::Usage,
        MergeError::ShardsMissing { .. }
        | MergeError::ArmMissing { .. }
        | MergeError::ForeignItem { .. }
        | MergeError::ItemsMissing { .. } => Exit::NotMeasured,
    }
}

/// A baseline that is not there, not whole or not the right one is that; what cannot be accepted is a wrong word or an unfinished run.
fn of_baseline(error: &BaselineError) -> Exit {
    match error {
        BaselineError::Unknown { .. }
        | BaselineError::Damaged { .. }
        | BaselineError::Unsealed { .. }
        | BaselineError::Format { .. }
        | BaselineError::Differs { .. }
        | BaselineError::NoControl { .. }
        | BaselineError::TooOld { .. }
        | BaselineError::NotSixteenBits { .. }
        | BaselineError::Copied { .. } => Exit::Baseline,
        BaselineError::Name { .. } | BaselineError::NotOfPlan { .. } | BaselineError::TooMany { .. } => Exit::Usage,
        BaselineError::NoArm { .. } => Exit::NothingSelected,
        BaselineError::Unfinished { .. } => Exit::NotMeasured,
        BaselineError::Record(error) => of_record(error),
        BaselineError::Storage { source, .. } => of_write(source),
    }
}

fn of_compare(error: &CompareError) -> Exit {
    match error {
        CompareError::Mismatch { .. } | CompareError::Prompts { .. } | CompareError::NothingMeasured { .. } => {
            Exit::Baseline
        }
        CompareError::Duplicate { .. } | CompareError::BadNumber { .. } => Exit::NotMeasured,
        CompareError::SameName { .. } | CompareError::Shard { .. } => Exit::Usage,
    }
}

/// A path that cannot be written to is a wrong path; a disk that fails or is full keeps what is done.
fn of_write(error: &io::Error) -> Exit {
    use io::ErrorKind::{
        AlreadyExists, InvalidFilename, InvalidInput, IsADirectory, NotADirectory, NotFound, PermissionDenied,
        ReadOnlyFilesystem,
    };
    match error.kind() {
        AlreadyExists | InvalidFilename | InvalidInput | IsADirectory | NotADirectory | NotFound | PermissionDenied
        | ReadOnlyFilesystem => Exit::Usage,
        _ => Exit::NotMeasured,
    }
}

fn write_hint(error: &io::Error) -> &'static str {
    match of_write(error) {
        Exit::NotMeasured => "free some space and start the same command again: it goes on where it stopped",
        _ => "name a place that can be written to",
    }
}

impl Hint for Failure {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::Config(error) => error.hints(),
            Self::Suite(error) => error.hints(),
            Self::Haystack(error) => error.hints(),
            Self::Task(error) => error.hints(),
            Self::Dtype(error) => vec![did_you_mean(&error.name, &known_dtypes())],
            Self::Store(error) => error.hints(),
            Self::Open(error) => error.hints(),
            Self::Tokenizer(error) => error.hints(),
            Self::Target(error) => error.hints(),
            Self::Run(error) => error.hints(),
            Self::Record(error) | Self::BaselineRecord(error) => error.hints(),
            Self::Merge(error) => error.hints(),
            Self::ShardAlone { .. } => vec!["merge all shards with `kvgauge merge` and name the merged run".into()],
            Self::Baseline(error) => error.hints(),
            Self::Remote(error) => error.hints(),
            Self::Compare(error) => error.hints(),
            Self::Gate(error) => error.hints(),
            Self::Report(error) => error.hints(),
            Self::History(error) => error.hints(),
            Self::Table(error) => error.hints(),
            Self::EngineOption(error) => error.hints(),
            Self::EngineName(error) => vec![did_you_mean(&error.found, &error.known.split(", ").collect::<Vec<_>>())],
            Self::Input(error) => error.hints(),
            Self::Bench(error) => error.hints(),
            Self::Plan(error) => error.hints(),
            Self::Detect(error) => error.hints(),
            Self::Launch(error) => error.hints(),
            Self::InspectLog(error) => error.hints(),
            Self::Probe(error) => error.hints(),
            Self::NoCandidate { .. } => {
                vec!["name other dtypes with `--kv-cache-dtype`, or another `--baseline`".into()]
            }
            Self::NoBaseline { .. } => {
                vec!["`kvgauge run --run-dir DIR --kv-cache-dtype bfloat16` measures one".into()]
            }
            Self::ManyBaselines { .. } => {
                vec!["name the records: first the baseline's folder, then the candidates'".into()]
            }
            Self::NoPolicy { .. } | Self::ManyGates { .. } => {
                vec!["name the suite whose gate applies with `--suite FILE`".into()]
            }
            Self::ArmMissing { .. } | Self::ArmUnfinished { .. } => vec![
                "the same `kvgauge check` with this folder starts it again".into(),
                "or leave it out by naming the records: first the baseline's folder, then the candidates'".into(),
            ],
            Self::Stranger { .. } => vec![
                "`kvgauge run` with this dtype and folder takes it into the run".into(),
                "or move it elsewhere, or name the records: first the baseline's folder, then the candidates'".into(),
            ],
            Self::DamageBin { bin: asked, known, .. } | Self::NoArm { name: asked, known } => {
                vec![did_you_mean(asked, &known.iter().map(String::as_str).collect::<Vec<_>>())]
            }
            Self::OutputIsRecord { .. } => vec!["choose another name: records cannot be made again".into()],
            Self::NoItem { .. } => vec!["without `--item` the first item is shown".into()],
            Self::NoOutput => vec!["name it with `-o report.html`".into()],
            Self::OutputKind { .. } => vec!["known: .html, .md, .json, .xml, .parquet".into()],
            Self::Write { source, .. } => vec![write_hint(source).into()],
            Self::Interrupted { .. } => vec!["the same command goes on where this one stopped".into()],
            Self::Engine(EngineError::Kernel(error)) => error.hints(),
            Self::Engine(error) => error.hints(),
            Self::Bins(_)
            | Self::RunFolder { .. }
            | Self::ManyFolders { .. }
            | Self::Stdout(_)
            | Self::Json(_)
            | Self::ShardAgainst
            | Self::Runtime(_) => Vec::new(),
        }
    }
}
