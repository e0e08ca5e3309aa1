//! `kvgauge inspect-log`: what is in effect on a server, out of the log of its start.
//!
//! A log that cannot be read never hides the others: it is named on standard error and the exit code says so at the end.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use kvgauge::hint::Hint;
use kvgauge::serving::ServerFacts;
use kvgauge::serving::startup_log::{self, LogError, Reading};
use serde::Serialize;
use serde_json::Value;

use crate::args::InspectLogArgs;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::{output, table};

/// What a table shows where the log says nothing.
const UNKNOWN: &str = "–";

/// A log that was not read.
#[derive(Debug, thiserror::Error)]
#[error("`{}`: {source}", path.display())]
pub(crate) struct InspectLogError {
    path: PathBuf,
    source: LogError,
}

impl Hint for InspectLogError {
    fn hints(&self) -> Vec<String> {
        self.source.hints()
    }
}

/// One log's facts, as JSON shows them.
#[derive(Serialize)]
struct Inspected<'a> {
    file: String,
    #[serde(flatten)]
    facts: &'a ServerFacts,
    /// Name of a field → number of the line it was read from.
    lines: &'a BTreeMap<&'static str, u64>,
}

pub(crate) fn execute(args: &InspectLogArgs) -> Result<Exit, Failure> {
    let mut readings = Vec::new();
    let mut failed = None;
    for path in &args.files {
        match read(path) {
            Ok(reading) => readings.push((path, reading)),
            Err(source) => {
                let error = InspectLogError { path: path.clone(), source };
                // The first one is the command's own error; the others are told here.
                match failed {
                    None => failed = Some(error),
                    Some(_) => output::note(&format!("error: {error}")),
                }
            }
        }
    }
    if args.json {
        print_json(args, &readings)?;
    } else {
        for (path, reading) in &readings {
            output::print(&shown(path, reading))?;
        }
    }
    match failed {
        Some(error) => Err(error.into()),
        None => Ok(Exit::Success),
    }
}

fn read(path: &Path) -> Result<Reading, LogError> {
    if path == Path::new("-") {
        return startup_log::read(io::stdin().lock());
    }
    startup_log::read(BufReader::with_capacity(1 << 16, File::open(path)?))
}

/// One file gives an object, several give an array; a file that was not read is in neither.
fn print_json(args: &InspectLogArgs, readings: &[(&PathBuf, Reading)]) -> Result<(), Failure> {
    let mut documents = readings.iter().map(|(path, reading)| Inspected {
        file: path.display().to_string(),
        facts: &reading.facts,
        lines: &reading.lines,
    });
    if args.files.len() > 1 {
        return output::print_json(&documents.collect::<Vec<_>>());
    }
    documents.next().map_or(Ok(()), |document| output::print_json(&document))
}

/// Field, value and line, one row each; lists go on in rows of their own.
fn shown(path: &Path, reading: &Reading) -> String {
    let mut rows = table::empty(["fact", "value", "line"].map(String::from).to_vec());
    let Ok(Value::Object(fields)) = serde_json::to_value(&reading.facts) else { return String::new() };
    // In the order of the record, which the document does not keep.
    for name in FIELDS {
        let line = reading.lines.get(name).map_or_else(String::new, u64::to_string);
        let values = fields.get(name).map(texts).unwrap_or_default();
        if values.is_empty() {
            rows.add_row(vec![name.to_string(), UNKNOWN.into(), line]);
            continue;
        }
        for (index, value) in values.into_iter().enumerate() {
            let (name, line) = if index == 0 { (name, line.clone()) } else { ("", String::new()) };
            rows.add_row(vec![name.to_string(), value, line]);
        }
    }
    format!("{}\n{}\n", path.display(), table::finished_left(&rows))
}

/// Fields in the order that they are shown in.
const FIELDS: [&str; 17] = [
    "engine",
    "engine_version",
    "kv_cache_dtype",
    "requested_kv_cache_dtype",
    "resolved_backend",
    "requested_backend",
    "disqualified",
    "kv_tokens",
    "kv_blocks",
    "block_size",
    "max_concurrency",
    "max_model_len",
    "kv_memory_gib",
    "scale_warning",
    "fallback",
    "fallback_reasons",
    "notes",
];

/// The value as lines of text; none where it is not known.
fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::Null => Vec::new(),
        Value::String(text) => vec![text.clone()],
        Value::Array(values) => values.iter().flat_map(texts).collect(),
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| format!("{name}: {}", texts(value).join("; "))).collect()
        }
        Value::Bool(true) => vec!["yes".into()],
        Value::Bool(false) => vec!["no".into()],
        Value::Number(number) => vec![number.to_string()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fact_has_its_row() {
        let Ok(Value::Object(fields)) = serde_json::to_value(ServerFacts::default()) else {
            panic!("facts are an object")
        };
        let mut shown: Vec<&str> = FIELDS.to_vec();
        shown.sort_unstable();
        let mut known: Vec<&str> = fields.keys().map(String::as_str).collect();
        known.sort_unstable();
        assert_eq!(shown, known);
    }
}
