//! `kvgauge probe`: what a running server says of itself, each fact with its source.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::PathBuf;

use kvgauge::capacity::CapacityError;
use kvgauge::hint::Hint;
use kvgauge::serving::checkpoint::Checkpoint;
use kvgauge::serving::evidence::{Asked, Weighed, Witness, weigh};
use kvgauge::serving::http::EndpointError;
use kvgauge::serving::probe::{Probe, probe};
use kvgauge::serving::startup_log::{self, LogError};
use kvgauge::setup::{Arm, Check, Evidence, PassedOver, Resolved};
use serde::Serialize;

use crate::args::ProbeArgs;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::{output, table};

/// Version of the JSON document. Changelog: 1 first version.
const FORMAT_VERSION: u32 = 1;

/// What a table shows where nobody says.
const UNKNOWN: &str = "–";

/// Why nothing was found out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProbeError {
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    #[error(transparent)]
    Model(#[from] CapacityError),
    #[error("`{}`: {source}", path.display())]
    Log { path: PathBuf, source: LogError },
    #[error("the variable {name}, which is to hold the API key, is not set")]
    NoKey { name: String },
}

impl ProbeError {
    /// A server that does not answer is no mistake of the command line.
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Endpoint(error) if !error.is_usage() => Exit::NotMeasured,
            Self::Endpoint(_) | Self::Model(_) | Self::Log { .. } | Self::NoKey { .. } => Exit::Usage,
        }
    }
}

impl Hint for ProbeError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::Endpoint(error) => error.hints(),
            Self::Model(error) => error.hints(),
            Self::Log { source, .. } => source.hints(),
            Self::NoKey { .. } => vec!["`--api-key-env` takes the name of a variable, never the key itself".into()],
        }
    }
}

#[derive(Serialize)]
struct Document<'a> {
    format_version: u32,
    #[serde(flatten)]
    probe: &'a Probe,
    resolved: &'a Resolved,
    checks: &'a [Check],
    notes: &'a [String],
}

pub(crate) fn execute(args: &ProbeArgs) -> Result<Exit, Failure> {
    let (probe, weighed) = find_out(args)?;
    if args.json {
        output::print_json(&Document {
            format_version: FORMAT_VERSION,
            probe: &probe,
            resolved: &weighed.resolved,
            checks: &weighed.checks,
            notes: &weighed.notes,
        })?;
    } else {
        output::print(&shown(&probe, &weighed))?;
    }
    Ok(Exit::Success)
}

fn find_out(args: &ProbeArgs) -> Result<(Probe, Weighed), Failure> {
    let key = args.api_key_env.as_deref().map(key).transpose()?;
    let checkpoint = args.model.as_deref().map(Checkpoint::read).transpose().map_err(ProbeError::Model)?;
    let mut witnesses = Vec::new();
    if let Some(path) = &args.log {
        let failed = |source| ProbeError::Log { path: path.clone(), source };
        let file = File::open(path).map_err(|error: io::Error| failed(error.into()))?;
        witnesses.push(Witness::log(startup_log::read(BufReader::new(file)).map_err(failed)?));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::Runtime)?;
    let probe = runtime.block_on(probe(&args.url, key.as_deref())).map_err(ProbeError::Endpoint)?;
    witnesses.extend(probe.sources.iter().map(|(path, facts)| Witness::endpoint(path, facts.clone())));
    // Nothing is asked for here, so `auto` is what it is held against.
    let arm = Arm::candidate("auto");
    let asked = Asked { arm: &arm, context_tokens: None, n_rank: args.tensor_parallel };
    let weighed = weigh(&asked, &witnesses, checkpoint.as_ref());
    Ok((probe, weighed))
}

fn key(name: &str) -> Result<String, ProbeError> {
    let value = std::env::var(name).ok().filter(|value| !value.trim().is_empty());
    value.ok_or_else(|| ProbeError::NoKey { name: name.to_owned() })
}

fn shown(probe: &Probe, weighed: &Weighed) -> String {
    let mut rows = table::empty(["fact", "value", "source"].map(String::from).to_vec());
    let models: Vec<&str> = probe.models.iter().map(|model| model.id.as_str()).collect();
    let models = Evidence { value: (!models.is_empty()).then(|| models.join(", ")), source: "/v1/models".into() };
    let it = &weighed.resolved;
    for (name, (value, source)) in [
        ("engine", cells(&it.engine, Clone::clone)),
        ("model", cells(&models, Clone::clone)),
        ("longest context", cells(&it.max_model_len, u32::to_string)),
        ("KV dtype in effect", cells(&it.kv_cache_dtype, Clone::clone)),
        ("attention backend", cells(&it.attention_backend, Clone::clone)),
        ("backends passed over", cells(&it.backends_passed_over, |all| passed_over(all))),
        ("cache, tokens", cells(&it.kv_cache_tokens, u64::to_string)),
        ("cache, blocks", cells(&it.kv_cache_blocks, u64::to_string)),
        ("tokens per block", cells(&it.kv_block_tokens, u32::to_string)),
        ("bytes per token", cells(&it.kv_bytes_per_token, |bytes| format!("{bytes:.0}"))),
        ("KV scales", cells(&it.kv_scales, Clone::clone)),
    ] {
        rows.add_row(vec![name.to_owned(), value, source]);
    }
    let mut text = format!("{}\n{}", probe.address, table::finished_left(&rows));
    for check in weighed.checks.iter().filter(|check| !check.observed.is_empty() && check.observed.len() > 1) {
        text += &format!("{}: {}: {}\n", check.fact, check.status.name(), check.observed_in_words());
    }
    for note in &weighed.notes {
        text += &format!("note: {note}\n");
    }
    text
}

fn cells<T>(evidence: &Evidence<T>, write: impl Fn(&T) -> String) -> (String, String) {
    match &evidence.value {
        Some(value) => (write(value), evidence.source.clone()),
        None => (UNKNOWN.to_owned(), String::new()),
    }
}

fn passed_over(backends: &[PassedOver]) -> String {
    backends.iter().map(|it| it.backend.as_str()).collect::<Vec<_>>().join(", ")
}
