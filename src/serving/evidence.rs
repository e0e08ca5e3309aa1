//! From what several sources say to what is in effect: [`weigh`].
//!
//! A request is not a fact. Each source is taken for what it can know: a line printed by the code that allocates the cache knows
//! what is stored; a configuration knows what was asked for, and settles the matter only where the engine is known to keep to it;
//! bytes per token know how wide a value is; the checkpoint's files know what an engine will take from them without a word. One
//! source that says otherwise is enough for "contradicted", and "unknown" is an ordinary result.

mod dtype;

use std::collections::{BTreeMap, BTreeSet};

use crate::capacity::cache_token_bytes;
use crate::serving::checkpoint::Checkpoint;
use crate::serving::facts::ServerFacts;
use crate::serving::startup_log::Reading;
use crate::setup::{Arm, Check, CheckStatus, Evidence, Observation, PassedOver, Resolved};

/// Two sources agree on a capacity that differs by less: engines round to blocks, and some print a product of rounded figures.
const CAPACITY_TOLERANCE: f64 = 0.01;
const GIB: f64 = (1_u64 << 30) as f64;

/// What is asked of a server.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The arm.
    pub arm: &'a Arm,
    /// The longest context that will be sent, answer included, in tokens.
    pub context_tokens: Option<u32>,
    /// Tensor-parallel ranks; each holds a part of the cache and tells of its own only. `None` where not known: bytes per token
    /// then prove nothing.
    pub n_rank: Option<u32>,
}

/// A source and what it says.
#[derive(Clone, Debug, PartialEq)]
pub struct Witness {
    name: String,
    facts: ServerFacts,
    /// Field → line; empty for an endpoint.
    lines: BTreeMap<&'static str, u64>,
    is_log: bool,
}

impl Witness {
    /// A server's start-up log.
    pub fn log(reading: Reading) -> Self {
        Self { name: "start-up log".into(), facts: reading.facts, lines: reading.lines, is_log: true }
    }

    /// An endpoint by its path, as a [probe](crate::serving::probe::Probe) has it.
    pub fn endpoint(path: &str, facts: ServerFacts) -> Self {
        Self { name: path.into(), facts, lines: BTreeMap::new(), is_log: false }
    }

    fn source(&self, field: &str) -> String {
        match self.lines.get(field) {
            Some(line) => format!("{} line {line}", self.name),
            None => self.name.clone(),
        }
    }
}

/// What is in effect, and how far that is what was asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Weighed {
    /// Each fact with its best source.
    pub resolved: Resolved,
    /// Each fact with all its sources.
    pub checks: Vec<Check>,
    /// What a reader should know besides, each once.
    pub notes: Vec<String>,
}

/// Weighs what all sources say. Logs count before endpoints, otherwise the order given decides which source is named first.
pub fn weigh(asked: &Asked<'_>, witnesses: &[Witness], checkpoint: Option<&Checkpoint>) -> Weighed {
    let mut ordered: Vec<&Witness> = witnesses.iter().collect();
    ordered.sort_by_key(|witness| !witness.is_log);
    let case = Case { asked, witnesses: ordered, checkpoint };
    let (dtype, kv_cache_dtype) = dtype::check(&case);
    let checks = vec![dtype, case.backend(), case.context(), case.capacity(), case.fallback()];
    let resolved = case.resolved(kv_cache_dtype);
    let notes: BTreeSet<String> =
        case.witnesses.iter().flat_map(|witness| witness.facts.notes.iter().cloned()).collect();
    Weighed { resolved, checks, notes: notes.into_iter().collect() }
}

/// Everything there is to go by.
struct Case<'a> {
    asked: &'a Asked<'a>,
    /// Logs first.
    witnesses: Vec<&'a Witness>,
    checkpoint: Option<&'a Checkpoint>,
}

impl Case<'_> {
    fn engine(&self) -> Option<&str> {
        self.witnesses.iter().find_map(|witness| witness.facts.engine.as_deref())
    }

    fn version(&self) -> Option<&str> {
        self.witnesses.iter().find_map(|witness| witness.facts.engine_version.as_deref())
    }

    /// What every source says that says anything.
    fn observed(&self, field: &str, read: impl Fn(&ServerFacts) -> Option<String>) -> Vec<Observation> {
        let one =
            |witness: &&Witness| Some(Observation { value: read(&witness.facts)?, source: witness.source(field) });
        self.witnesses.iter().filter_map(one).collect()
    }

    /// The first that says anything.
    fn evidence<T>(&self, field: &str, read: impl Fn(&ServerFacts) -> Option<T>) -> Evidence<T> {
        let one = |witness: &&Witness| Some(Evidence::known(read(&witness.facts)?, witness.source(field)));
        self.witnesses.iter().find_map(one).unwrap_or_else(|| Evidence::unknown(self.looked_at()))
    }

    fn looked_at(&self) -> String {
        let names: Vec<&str> = self.witnesses.iter().map(|witness| witness.name.as_str()).collect();
        if names.is_empty() { "the server was not asked".into() } else { names.join(", ") }
    }

    /// A model may use several backends: by kind of layer, or for prefill and decode. The one asked for must be among them.
    fn backend(&self) -> Check {
        let asked = self.asked.arm.attention_backend.as_deref().filter(|name| !name.eq_ignore_ascii_case("auto"));
        let joined = |facts: &ServerFacts| (!facts.resolved_backend.is_empty()).then(|| backends(facts));
        let observed = self.observed("resolved_backend", joined);
        let holds = |witness: &&Witness| {
            let found = &witness.facts.resolved_backend;
            let asked = asked.map(plain_backend);
            (!found.is_empty()).then(|| asked.is_none_or(|asked| found.iter().any(|it| plain_backend(it) == asked)))
        };
        let status = status(self.witnesses.iter().filter_map(holds));
        Check { fact: "attention_backend".into(), asked: asked.map(str::to_owned), observed, status }
    }

    /// The longest context accepted, and whether prompts are cut to fit.
    fn context(&self) -> Check {
        let mut observed = self.observed("max_model_len", |facts| facts.max_model_len.map(|length| length.to_string()));
        let asked = self.asked.context_tokens;
        let lengths = self.witnesses.iter().filter_map(|witness| witness.facts.max_model_len);
        let mut answers: Vec<bool> = lengths.map(|length| asked.is_none_or(|asked| length >= asked)).collect();
        for witness in &self.witnesses {
            let said = witness.facts.fallback_reasons.iter().chain(&witness.facts.notes);
            for cut in said.filter(|line| cuts_prompts(line)) {
                observed.push(Observation { value: cut.clone(), source: witness.name.clone() });
                answers.push(false);
            }
        }
        let asked = asked.map(|tokens| tokens.to_string());
        Check { fact: "max_model_len".into(), asked, observed, status: status(answers.into_iter()) }
    }

    fn capacity(&self) -> Check {
        let observed = self.observed("kv_tokens", |facts| facts.kv_tokens.map(|tokens| tokens.to_string()));
        let tokens: Vec<u64> = self.witnesses.iter().filter_map(|witness| witness.facts.kv_tokens).collect();
        let first = tokens.first().copied().unwrap_or(0) as f64;
        let agrees = |tokens: &u64| (*tokens as f64 - first).abs() <= first * CAPACITY_TOLERANCE;
        Check { fact: "kv_cache_tokens".into(), asked: None, observed, status: status(tokens.iter().map(agrees)) }
    }

    /// Whether the server says of itself that it does something else than it was asked.
    fn fallback(&self) -> Check {
        let read = |facts: &ServerFacts| {
            facts.fallback.map(|is_fallback| match (is_fallback, facts.fallback_reasons.is_empty()) {
                (true, false) => facts.fallback_reasons.join("; "),
                (true, true) => "something else is in effect".to_owned(),
                (false, _) => "as asked".to_owned(),
            })
        };
        let observed = self.observed("fallback", read);
        let kept = self.witnesses.iter().filter_map(|witness| witness.facts.fallback.map(|is_fallback| !is_fallback));
        Check { fact: "no_fallback".into(), asked: None, observed, status: status(kept) }
    }

    fn resolved(&self, kv_cache_dtype: Evidence<String>) -> Resolved {
        let engine = self.evidence("engine", |facts| facts.engine.clone());
        let version = self.version().map(|version| format!(" {version}")).unwrap_or_default();
        let not_one = |set: &BTreeMap<String, Vec<String>>| (!set.is_empty()).then(|| passed_over(set));
        Resolved {
            engine: Evidence { value: engine.value.map(|engine| format!("{engine}{version}")), source: engine.source },
            attention_backend: self
                .evidence("resolved_backend", |facts| (!facts.resolved_backend.is_empty()).then(|| backends(facts))),
            kv_bytes_per_token: self.bytes_per_token(&kv_cache_dtype),
            kv_cache_dtype,
            kv_cache_tokens: self.evidence("kv_tokens", |facts| facts.kv_tokens),
            kv_scales: self.evidence("scale_warning", |facts| {
                (facts.scale_warning == Some(true)).then(|| "1.0 (the server warns that it has no others)".to_owned())
            }),
            max_model_len: self.evidence("max_model_len", |facts| facts.max_model_len),
            backends_passed_over: self.evidence("disqualified", |facts| not_one(&facts.disqualified)),
            kv_cache_blocks: self.evidence("kv_blocks", |facts| facts.kv_blocks),
            kv_block_tokens: self.evidence("block_size", |facts| facts.block_size),
            ..Resolved::unknown(&self.looked_at())
        }
    }

    /// Measured where memory and tokens are known, else computed from the model's shape and the dtype in effect.
    fn bytes_per_token(&self, dtype: &Evidence<String>) -> Evidence<f64> {
        if let Some(measured) = self.witnesses.iter().find_map(|witness| measured_bytes(witness)) {
            return measured;
        }
        let computed = || {
            let (shape, dtype) = (&self.checkpoint?.shape, dtype.value.as_deref()?);
            let bytes = cache_token_bytes(shape, dtype, self.asked.n_rank?).ok()?;
            Some(Evidence::known(bytes as f64, format!("config.json × {dtype}")))
        };
        computed().unwrap_or_else(|| Evidence::unknown(self.looked_at()))
    }
}

fn measured_bytes(witness: &Witness) -> Option<Evidence<f64>> {
    let (gib, tokens) = (witness.facts.kv_memory_gib?, witness.facts.kv_tokens.filter(|tokens| *tokens > 0)?);
    let source = format!("memory / tokens ({})", witness.source("kv_memory_gib"));
    (gib > 0.0).then(|| Evidence::known(gib * GIB / tokens as f64, source))
}

/// Options that deal a cache out to ranks by its heads.
const HEAD_RANK_OPTIONS: &[&str] = &["--tensor-parallel-size", "-tp", "--tp", "--tp-size", "--tp_size"];
/// Options after which memory over tokens is no longer bytes per token: layers or contexts are dealt out, or blocks are left unused.
const UNPLAIN_OPTIONS: &[&str] = &[
    "--pipeline-parallel-size",
    "-pp",
    "--pp",
    "--pp-size",
    "--pp_size",
    "--decode-context-parallel-size",
    "-dcp",
    "--dcp-size",
    "--num-gpu-blocks-override",
];

/// Tensor-parallel ranks as a command line asks for them: 1 where it says nothing, `None` where its other options leave open what
/// one rank holds.
pub fn n_rank(command_line: &[String]) -> Option<u32> {
    let mut found = Some(1);
    for (index, argument) in command_line.iter().enumerate() {
        let (name, attached) =
            argument.split_once('=').map_or((argument.as_str(), None), |(name, value)| (name, Some(value)));
        if UNPLAIN_OPTIONS.contains(&name) {
            return None;
        }
        if HEAD_RANK_OPTIONS.contains(&name) {
            let value = attached.or_else(|| command_line.get(index + 1).map(String::as_str));
            found = Some(value?.parse().ok().filter(|ranks| *ranks > 0)?);
        }
    }
    found
}

/// `false` anywhere is a contradiction, `true` a confirmation, nothing is nothing.
fn status(answers: impl Iterator<Item = bool>) -> CheckStatus {
    answers.fold(CheckStatus::Unknown, |status, holds| match (status, holds) {
        (CheckStatus::Contradicted, _) | (_, false) => CheckStatus::Contradicted,
        _ => CheckStatus::Confirmed,
    })
}

fn backends(facts: &ServerFacts) -> String {
    facts.resolved_backend.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

/// `AttentionBackendEnum.FLASHINFER`, `_Backend.FLASHINFER` and `flashinfer` are one.
fn plain_backend(name: &str) -> String {
    name.rsplit('.').next().unwrap_or(name).trim_end_matches("_VLLM_V1").to_ascii_uppercase()
}

fn passed_over(backends: &BTreeMap<String, Vec<String>>) -> Vec<PassedOver> {
    let one =
        |(backend, reasons): (&String, &Vec<String>)| PassedOver { backend: backend.clone(), reasons: reasons.clone() };
    backends.iter().map(one).collect()
}

/// Servers that shorten a prompt say so with this word; the answer is then to another question.
fn cuts_prompts(line: &str) -> bool {
    line.to_ascii_lowercase().contains("truncating")
}
