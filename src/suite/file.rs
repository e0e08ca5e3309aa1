//! The TOML of a suite and its translation into a [`Suite`] that is valid by construction.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;

use super::custom::{check_scorer, of_params};
use super::gate_file::GateFile;
use super::{BinPlan, CustomFile, GatePolicy, Suite, SuiteError, TaskPlan};
use crate::sample::{Bin, Language};
use crate::scorers::SCORERS;
use crate::tasks::{self, Ground, PerBin, perturbations};

/// Version of the file format.
pub const SCHEMA_VERSION: u32 = 1;

/// A suite is a page of text; a file of this size is something else.
const MAX_FILE_BYTES: u64 = 256 * 1024;
/// More lengths than a report can show side by side.
const MAX_BINS: usize = 16;
/// Twice the tasks there will be.
const MAX_TASKS: usize = 64;
/// Per task and bin; the exact tests are of no use beyond it.
pub(super) const MAX_SAMPLES: u32 = 10_000;
/// Over all tasks and bins. Their recipes are kept in memory, and at one a second this is more than two days.
const MAX_ITEMS: u64 = 200_000;
/// Shorter than any prompt with its answer.
const MIN_BIN_TOKENS: u32 = 256;
/// The longest windows on offer.
const MAX_BIN_TOKENS: u32 = 1 << 20;
/// One haystack is one cluster: more questions on it add next to no evidence.
const MAX_SHARED_PREFIX: u32 = 64;
/// Slots in steps of one percent.
const MAX_DEPTH_SLOTS: usize = 101;
/// A legal folder name is at most this long, with room for an arm's name behind it.
const MAX_NAME_BYTES: usize = 64;

/// Depth slots where a bin does not say.
const DEPTH_SLOTS: [u8; 7] = [0, 10, 25, 50, 75, 90, 100];

/// A suite of kvgauge: which tasks are asked in which context lengths, how often, and how results are judged.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "kvgauge suite")]
struct SuiteFile {
    /// Version of the file format: 1.
    #[expect(
        dead_code,
        reason = "checked before the rest is read, so that a newer file is called newer and not wrong"
    )]
    #[schemars(schema_with = "format_version")]
    schema_version: u32,
    /// 1 to 64 of a-z, 0-9, - and _; the same as the file's.
    #[schemars(regex(pattern = "^[a-z0-9_-]{1,64}$"))]
    name: String,
    /// Counts up when other items are wanted under the same name. Default 1.
    version: Option<u32>,
    /// One sentence.
    description: String,
    /// Seeds every item. Default 0.
    seed: Option<u64>,
    /// Language of the items. Default `en`.
    #[serde(default)]
    #[schemars(schema_with = "languages")]
    language: Option<Language>,
    /// Context lengths.
    bins: Vec<BinFile>,
    /// What is asked.
    tasks: Vec<TaskFile>,
    /// How results are judged.
    #[serde(default)]
    gate: GateFile,
}

/// A context length.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct BinFile {
    /// The whole budget of a request in tokens: template, text, question and answer.
    context: Length,
    /// Items of each task that does not say otherwise.
    samples: u32,
    /// Tokens of the budget kept free for the answer. Default by length: 96, 256, 512, 1024, 2048.
    output_reserve: Option<u32>,
    /// Tokens of the budget kept free for thinking before the answer. Default 0.
    thinking_reserve: Option<u32>,
    /// Questions asked of one text. Default 1.
    shared_prefix: Option<u32>,
    /// Whether the questions of one text are of different tasks. Default false.
    mixed: Option<bool>,
    /// Depths of the needles in percent, asked in turn. Default 0, 10, 25, 50, 75, 90, 100.
    depth_slots: Option<Vec<u8>>,
}

/// A task with its parameters.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TaskFile {
    /// The task's id; `custom` asks prompts of your own.
    #[schemars(schema_with = "task_ids")]
    kind: String,
    /// Bins it is asked in. Default all.
    bins: Option<Vec<Length>>,
    /// Items per bin, once for all bins or bin by bin. Default the bin's `samples`; of `custom` the whole file.
    #[serde(default)]
    #[schemars(schema_with = "count_by_bin")]
    samples: Option<PerBin<u32>>,
    /// Judges instead of the task's own scorer.
    #[serde(default)]
    #[schemars(schema_with = "scorer_names")]
    scorer: Option<String>,
    /// Asks every item again in other words, to see how far an arm drifts from itself. Default false.
    #[serde(default)]
    robustness: bool,
    /// Parameters of the task; see its page.
    #[serde(default)]
    #[schemars(with = "std::collections::BTreeMap<String, serde_json::Value>")]
    params: toml::Table,
}

/// A context length: 512, "2K", "128K".
#[derive(Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a context length such as 512, \"2K\" or \"128K\"")]
enum Length {
    Tokens(u32),
    Text(String),
}

fn format_version(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "const": SCHEMA_VERSION })
}

fn languages(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "enum": [Language::En.tag(), Language::Zh.tag()] })
}

fn task_ids(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "enum": tasks::ids() })
}

fn scorer_names(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "enum": SCORERS.iter().map(|scorer| scorer.name).collect::<Vec<_>>() })
}

fn count_by_bin(_: &mut SchemaGenerator) -> Schema {
    let count = serde_json::json!({ "type": "integer", "minimum": 1, "maximum": MAX_SAMPLES });
    json_schema!({ "anyOf": [count, { "type": "object", "additionalProperties": count }] })
}

/// The JSON Schema of suite files, for editors: the first line `#:schema PATH` of a file names it.
pub fn json_schema() -> serde_json::Value {
    schemars::schema_for!(SuiteFile).into()
}

/// The text of a suite file, up to the limit.
pub(super) fn read(path: &Path) -> Result<String, SuiteError> {
    let origin = path.display().to_string();
    let failed = |source| SuiteError::Read { path: origin.clone(), source };
    let mut text = String::new();
    File::open(path).map_err(failed)?.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

/// Parses and checks everything that can be checked without a tokenizer; files that it names are looked for from `folder`.
pub(super) fn parse(text: &str, origin: &str, folder: Option<&Path>) -> Result<Suite, SuiteError> {
    let check = Checker { origin, folder };
    check.limit("bytes", text.len() as u64, MAX_FILE_BYTES)?;
    check.schema_version(text)?;
    let file: SuiteFile = toml::from_str(text).map_err(|error| check.syntax(text, &error))?;
    check.name(&file.name)?;
    let language = file.language.unwrap_or(Language::En);
    check.limit("bins", file.bins.len() as u64, MAX_BINS as u64)?;
    check.limit("tasks", file.tasks.len() as u64, MAX_TASKS as u64)?;
    let mut bins = Vec::new();
    for (number, bin) in file.bins.into_iter().enumerate() {
        bins.push(check.bin(number, bin)?);
    }
    bins.sort_by_key(|plan: &BinPlan| plan.bin);
    if let Some(pair) = bins.windows(2).find(|pair| pair[0].bin == pair[1].bin) {
        return Err(check.invalid("bins", format!("{} is given twice", pair[0].bin)));
    }
    let mut plans: Vec<TaskPlan> = Vec::new();
    for (number, task) in file.tasks.into_iter().enumerate() {
        let plan = check.task(number, task, &bins)?;
        if plans.iter().any(|other| other.task == plan.task) {
            return Err(check.invalid(&format!("tasks[{number}].kind"), format!("`{}` is given twice", plan.task)));
        }
        plans.push(plan);
    }
    if plans.iter().all(|plan| plan.bins.is_empty()) || bins.is_empty() {
        return Err(SuiteError::NothingSelected { origin: origin.into() });
    }
    let gate = check.gate(file.gate, &bins, &plans, &GatePolicy::default())?;
    let suite = Suite {
        name: file.name,
        version: file.version.unwrap_or(1),
        description: file.description,
        seed: file.seed.unwrap_or(0),
        language,
        bins,
        tasks: plans,
        haystack: None,
        gate,
    };
    check_items(&suite, origin)?;
    Ok(suite)
}

/// Checks the number of items before any of them is planned.
pub(super) fn check_items(suite: &Suite, origin: &str) -> Result<(), SuiteError> {
    let of_bin = |bin: &BinPlan| -> u64 {
        let asked = suite.tasks.iter().filter(|plan| plan.bins.contains(&bin.bin));
        let with_variants =
            |plan: &TaskPlan| if plan.robustness { perturbations(suite.language).count() as u64 + 1 } else { 1 };
        asked.map(|plan| u64::from(plan.samples_in(bin)) * with_variants(plan)).sum()
    };
    Checker { origin, folder: None }.limit("items", suite.bins.iter().map(of_bin).sum(), MAX_ITEMS)
}

/// Checks what a file says; `origin` is the file.
pub(super) struct Checker<'a> {
    pub(super) origin: &'a str,
    pub(super) folder: Option<&'a Path>,
}

impl Checker<'_> {
    pub(super) fn invalid(&self, key: &str, message: impl Into<String>) -> SuiteError {
        SuiteError::Invalid { origin: self.origin.into(), key: key.into(), message: message.into() }
    }

    fn limit(&self, what: &str, found: u64, limit: u64) -> Result<(), SuiteError> {
        if found <= limit {
            return Ok(());
        }
        Err(SuiteError::Limit { origin: self.origin.into(), what: what.into(), found, limit })
    }

    fn syntax(&self, text: &str, error: &toml::de::Error) -> SuiteError {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let line = 1 + before.bytes().filter(|byte| *byte == b'\n').count();
        SuiteError::Syntax { origin: self.origin.into(), line, message: error.message().to_owned() }
    }

    fn schema_version(&self, text: &str) -> Result<(), SuiteError> {
        let table: toml::Table = toml::from_str(text).map_err(|error| self.syntax(text, &error))?;
        match table.get("schema_version") {
            Some(toml::Value::Integer(version)) if *version == i64::from(SCHEMA_VERSION) => Ok(()),
            other => Err(SuiteError::SchemaVersion {
                origin: self.origin.into(),
                found: other.map_or_else(|| "missing".to_owned(), ToString::to_string),
            }),
        }
    }

    fn name(&self, name: &str) -> Result<(), SuiteError> {
        let is_legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
        if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.bytes().all(is_legal) {
            let message = format!("`{name}` is not a name of 1 to {MAX_NAME_BYTES} of a-z, 0-9, - and _");
            return Err(self.invalid("name", message));
        }
        Ok(())
    }

    fn length(&self, key: &str, length: &Length) -> Result<Bin, SuiteError> {
        match length {
            Length::Tokens(tokens) => Ok(Bin(*tokens)),
            Length::Text(text) => text.parse().map_err(|message: String| self.invalid(key, message)),
        }
    }

    fn between(&self, key: &str, value: u32, least: u32, most: u32) -> Result<u32, SuiteError> {
        if (least..=most).contains(&value) {
            return Ok(value);
        }
        Err(self.invalid(key, format!("{value} is not between {least} and {most}")))
    }

    fn bin(&self, number: usize, file: BinFile) -> Result<BinPlan, SuiteError> {
        let key = |field: &str| format!("bins[{number}].{field}");
        let bin = self.length(&key("context"), &file.context)?;
        self.between(&key("context"), bin.tokens(), MIN_BIN_TOKENS, MAX_BIN_TOKENS)?;
        let reserve = file.output_reserve.unwrap_or_else(|| tasks::default_output_reserve(bin));
        let depth_slots = file.depth_slots.unwrap_or_else(|| DEPTH_SLOTS.to_vec());
        self.limit(&key("depth_slots"), depth_slots.len() as u64, MAX_DEPTH_SLOTS as u64)?;
        let mut sorted = depth_slots.clone();
        sorted.sort_unstable();
        sorted.dedup();
        if sorted.is_empty() || sorted.len() < depth_slots.len() || sorted.last() > Some(&100) {
            return Err(self.invalid(&key("depth_slots"), "expected different percentages from 0 to 100"));
        }
        Ok(BinPlan {
            bin,
            samples: self.between(&key("samples"), file.samples, 1, MAX_SAMPLES)?,
            output_reserve: self.between(&key("output_reserve"), reserve, 16, bin.tokens() / 2)?,
            // A bin is the whole budget, so the prompt pays: a quarter of the bin is the least that is left of it.
            thinking_reserve: self.between(
                &key("thinking_reserve"),
                file.thinking_reserve.unwrap_or(0),
                0,
                (bin.tokens() / 4 * 3).saturating_sub(reserve),
            )?,
            shared_prefix: self.between(
                &key("shared_prefix"),
                file.shared_prefix.unwrap_or(1),
                1,
                MAX_SHARED_PREFIX,
            )?,
            mixed: file.mixed.unwrap_or(false),
            depth_slots: sorted,
        })
    }

    fn task(&self, number: usize, file: TaskFile, bins: &[BinPlan]) -> Result<TaskPlan, SuiteError> {
        let task = tasks::find(&file.kind).ok_or_else(|| SuiteError::UnknownTask {
            origin: self.origin.into(),
            task: file.kind.clone(),
            known: tasks::ids().into_iter().map(str::to_owned).collect(),
        })?;
        let all: Vec<Bin> = bins.iter().map(|plan| plan.bin).collect();
        let mut chosen = all.clone();
        if let Some(lengths) = &file.bins {
            chosen.clear();
            for length in lengths {
                let bin = self.length(&format!("tasks[{number}].bins"), length)?;
                if !all.contains(&bin) {
                    let (origin, bin) = (self.origin.into(), bin.to_string());
                    return Err(SuiteError::UnknownBin { origin, bin, known: all });
                }
                chosen.push(bin);
            }
            chosen.sort_unstable();
            chosen.dedup();
        }
        let samples = self.samples(&format!("tasks[{number}].samples"), file.samples.as_ref(), &chosen)?;
        (task.check)(&file.params).map_err(|error| SuiteError::Params {
            origin: self.origin.into(),
            task: task.id.into(),
            message: error.message,
        })?;
        if let Some(name) = &file.scorer {
            check_scorer(self.origin, format!("tasks[{number}].scorer"), name)?;
        }
        let mut plan = TaskPlan {
            task: task.id.into(),
            bins: chosen,
            samples,
            params: file.params,
            robustness: file.robustness,
            scorer: file.scorer,
            custom: None,
        };
        if task.ground == Ground::Given {
            if plan.robustness {
                let message = "a prompt of your own cannot be worded differently";
                return Err(self.invalid(&format!("tasks[{number}].robustness"), message));
            }
            plan.custom = Some(Arc::new(self.custom(number, &plan, bins)?));
        }
        Ok(plan)
    }

    /// The user's prompts.
    fn custom(&self, number: usize, plan: &TaskPlan, bins: &[BinPlan]) -> Result<CustomFile, SuiteError> {
        let Some(folder) = self.folder else {
            let message = "a file of prompts can be asked by a suite file of your own only";
            return Err(self.invalid(&format!("tasks[{number}].params.file"), message));
        };
        let windows = bins.iter().filter(|bin| plan.bins.contains(&bin.bin));
        let windows = windows.cloned().collect();
        of_params(&plan.params, folder, plan.scorer.as_deref(), windows)
    }

    /// A task's own numbers of items, by bin; a bin that the task is not asked in is an error.
    fn samples(&self, key: &str, given: Option<&PerBin<u32>>, bins: &[Bin]) -> Result<BTreeMap<Bin, u32>, SuiteError> {
        let mut samples = BTreeMap::new();
        for (bin, count) in given.map(PerBin::entries).unwrap_or_default() {
            let count = self.between(key, count, 1, MAX_SAMPLES)?;
            let Some(bin) = bin else {
                samples.extend(bins.iter().map(|bin| (*bin, count)));
                continue;
            };
            let known = bins.to_vec();
            match bin.parse::<Bin>() {
                Ok(bin) if bins.contains(&bin) => samples.insert(bin, count),
                _ => return Err(SuiteError::UnknownBin { origin: self.origin.into(), bin: bin.into(), known }),
            };
        }
        Ok(samples)
    }
}
