//! `kvgauge detect`: the detectors on outputs that anybody wrote down, one JSON object a line.
//!
//! A bad line never hides the good ones: it is named on standard error and the exit code says so at the end.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};

use kvgauge::detectors::{self, Context};
use kvgauge::hint::Hint;
use kvgauge::sample::{Finding, FinishReason, Language};
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::args::DetectArgs;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::{output, table};

/// An output of 128K tokens with its prompt takes less than 4 MiB; this leaves room for both and for escapes.
const MAX_LINE_BYTES: usize = 64 << 20;
/// Lines judged side by side: enough for every core, and no more of them in memory than one long one takes.
const MAX_BATCH_LINES: usize = 1024;
const MAX_BATCH_BYTES: usize = 8 << 20;
/// Labels and verdicts of a confusion table; more columns are no table.
const MAX_LABELS: usize = 64;

/// Why outputs were not judged.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DetectError {
    #[error("`{}` cannot be read: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{bad} of {all} lines could not be judged; the others were")]
    BadLines { bad: usize, all: usize },
}

impl Hint for DetectError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::Read { .. } => Vec::new(),
            Self::BadLines { .. } => {
                vec!["a line is {\"id\": \"a\", \"output\": \"…\", \"expected\": \"…\"}; all but `output` may be left out".into()]
            }
        }
    }
}

/// Names under which tools write the same field, the first that is there counts.
const OUTPUT: &[&str] = &["output", "response", "completion", "generated_text", "prediction", "text", "answer"];
const EXPECTED: &[&str] = &["expected", "reference", "target"];
const LANGUAGE: &[&str] = &["lang", "language"];
const PROMPT: &[&str] = &["prompt", "question", "input"];
const BASELINE: &[&str] = &["baseline_output", "baseline"];

/// A line of input; what it does not name is ignored, and so is `null`.
struct Line {
    id: Value,
    output: String,
    expected: Vec<String>,
    task: Option<String>,
    lang: Option<String>,
    finish_reason: Option<String>,
    max_tokens: Option<u32>,
    output_tokens: Option<u32>,
    baseline_output: Option<String>,
    prompt: Option<String>,
    label: Option<String>,
}

/// A JSON object on its way to a [`Line`].
struct Fields(Map<String, Value>);

impl Fields {
    fn first(&self, names: &[&str]) -> Option<(String, &Value)> {
        let found = |name: &&str| Some((name.to_string(), self.0.get(*name).filter(|value| !value.is_null())?));
        names.iter().find_map(found)
    }

    fn text(&self, names: &[&str]) -> Result<Option<String>, String> {
        self.first(names).map(|(name, value)| text_of(&name, value)).transpose()
    }

    fn texts(&self, names: &[&str]) -> Result<Vec<String>, String> {
        match self.first(names) {
            None => Ok(Vec::new()),
            Some((name, Value::Array(values))) => values.iter().map(|value| text_of(&name, value)).collect(),
            Some((name, value)) => text_of(&name, value).map(|text| vec![text]),
        }
    }

    fn count(&self, name: &str) -> Result<Option<u32>, String> {
        let Some((_, value)) = self.first(&[name]) else { return Ok(None) };
        let count = value.as_u64().and_then(|count| u32::try_from(count).ok());
        count.map(Some).ok_or_else(|| format!("`{name}` is no count: {}", kind_of(value)))
    }
}

/// A text, or a number or truth value as JSON writes it.
fn text_of(name: &str, value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(_) | Value::Bool(_) => Ok(value.to_string()),
        _ if EXPECTED.contains(&name) => Err(format!("`{name}` is {}, no text or array of texts", kind_of(value))),
        _ => Err(format!("`{name}` is {}, no text", kind_of(value))),
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

impl Line {
    fn of(fields: &Fields) -> Result<Self, String> {
        Ok(Self {
            id: fields.0.get("id").cloned().unwrap_or_default(),
            output: fields.text(OUTPUT)?.ok_or("it has no `output`")?,
            expected: fields.texts(EXPECTED)?,
            task: fields.text(&["task"])?,
            lang: fields.text(LANGUAGE)?,
            finish_reason: fields.text(&["finish_reason"])?,
            max_tokens: fields.count("max_tokens")?,
            output_tokens: fields.count("output_tokens")?,
            baseline_output: fields.text(BASELINE)?,
            prompt: fields.text(PROMPT)?,
            label: fields.text(&["label"])?,
        })
    }
}

/// A line of output.
#[derive(Serialize)]
struct Judgement<'a> {
    id: &'a Value,
    verdict: &'static str,
    findings: &'a [Finding],
}

/// Label → verdict → lines.
type Confusion = BTreeMap<String, BTreeMap<&'static str, usize>>;

/// A line as it was read, with its number.
type Read = (usize, Result<Vec<u8>, String>);

pub(crate) fn execute(args: &DetectArgs) -> Result<Exit, Failure> {
    let mut confusion = Confusion::new();
    let (mut bad, mut all) = (0, 0);
    for path in &args.files {
        let failed = |source| DetectError::Read { path: path.clone(), source };
        let mut input: Box<dyn BufRead> = if path == Path::new("-") {
            Box::new(io::stdin().lock())
        } else {
            Box::new(BufReader::new(File::open(path).map_err(failed)?))
        };
        let mut number = 0;
        loop {
            let batch = next_batch(&mut input, &mut number).map_err(failed)?;
            if batch.is_empty() {
                break;
            }
            // Judged side by side, told in order.
            for (number, judged) in batch.into_par_iter().map(judged).collect::<Vec<_>>() {
                all += 1;
                let place = format!("{}:{number}", path.display());
                match judged {
                    Ok((line, findings)) => tell(&line, &findings, &place, args, &mut confusion)?,
                    Err(problem) => {
                        bad += 1;
                        output::note(&format!("{place}: {problem}"));
                    }
                }
            }
        }
    }
    if args.confusion {
        output::print(&confusion_table(&confusion))?;
    }
    if all == 0 {
        output::note("no outputs to judge");
    }
    if bad > 0 {
        return Err(DetectError::BadLines { bad, all }.into());
    }
    Ok(Exit::Success)
}

/// The next lines that are not blank; none at the end.
fn next_batch(input: &mut dyn BufRead, number: &mut usize) -> io::Result<Vec<Read>> {
    let mut batch = Vec::new();
    let mut bytes = 0;
    while batch.len() < MAX_BATCH_LINES && bytes < MAX_BATCH_BYTES {
        let Some(line) = next_line(input)? else { break };
        *number += 1;
        if matches!(&line, Ok(line) if line.trim_ascii().is_empty()) {
            continue;
        }
        bytes += line.as_ref().map_or(0, Vec::len);
        batch.push((*number, line));
    }
    Ok(batch)
}

fn judged((number, bytes): Read) -> (usize, Result<(Line, Vec<Finding>), String>) {
    let judged = bytes.and_then(|bytes| parse(&bytes)).map(|line| {
        let findings = judge(&line);
        (line, findings)
    });
    (number, judged)
}

/// The next line without its end, or what is wrong with it; a line over the limit is skipped to its end.
fn next_line(input: &mut dyn BufRead) -> io::Result<Option<Result<Vec<u8>, String>>> {
    let mut bytes = Vec::new();
    let mut limited = (&mut *input).take(MAX_LINE_BYTES as u64 + 1);
    if limited.read_until(b'\n', &mut bytes)? == 0 {
        return Ok(None);
    }
    if bytes.len() <= MAX_LINE_BYTES || bytes.ends_with(b"\n") {
        return Ok(Some(Ok(bytes)));
    }
    input.skip_until(b'\n')?;
    Ok(Some(Err(format!("the line is longer than {MAX_LINE_BYTES} bytes"))))
}

fn parse(bytes: &[u8]) -> Result<Line, String> {
    let text = std::str::from_utf8(bytes).map_err(|error| format!("no UTF-8 from byte {} on", error.valid_up_to()))?;
    let fields =
        serde_json::from_str(text).map_err(|error| format!("column {}: {}", error.column(), reason(&error)))?;
    Line::of(&Fields(fields))
}

/// serde's words without its own line number, which is always 1.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ").next().unwrap_or(&text).to_string()
}

fn judge(line: &Line) -> Vec<Finding> {
    let expected: Vec<&str> = line.expected.iter().map(String::as_str).collect();
    detectors::detect_all(&Context {
        output: &line.output,
        expected: &expected,
        task: line.task.as_deref(),
        language: line.lang.as_deref().and_then(language),
        language_code: line.lang.as_deref(),
        prompt: line.prompt.as_deref(),
        finish_reason: finish_reason(line.finish_reason.as_deref()),
        output_tokens: line.output_tokens,
        max_output_tokens: line.max_tokens,
        baseline: line.baseline_output.as_deref(),
    })
}

/// `place` stands for an output that has no id of its own.
fn tell(
    line: &Line,
    findings: &[Finding],
    place: &str,
    args: &DetectArgs,
    confusion: &mut Confusion,
) -> Result<(), Failure> {
    let verdict = findings.first().map_or("ok", |finding| finding.kind.name());
    if let Some(label) =
        line.label.as_ref().filter(|label| confusion.len() < MAX_LABELS || confusion.contains_key(*label))
    {
        *confusion.entry(label.clone()).or_default().entry(verdict).or_default() += 1;
    }
    if args.json || !args.confusion {
        let judgement = Judgement { id: &line.id, verdict, findings };
        if args.json {
            output::print_document(&format!("{}\n", serde_json::to_string(&judgement).map_err(Failure::Json)?))?;
        } else {
            output::print(&shown(&judgement, place))?;
        }
    }
    Ok(())
}

fn language(tag: &str) -> Option<Language> {
    match tag.split(['-', '_']).next()?.to_ascii_lowercase().as_str() {
        "en" | "english" => Some(Language::En),
        "zh" | "chinese" => Some(Language::Zh),
        _ => None,
    }
}

fn finish_reason(name: Option<&str>) -> FinishReason {
    match name {
        Some("stop" | "eos" | "end_turn") => FinishReason::Stop,
        Some("length" | "max_tokens") => FinishReason::Length,
        Some("content_filter") => FinishReason::ContentFilter,
        _ => FinishReason::Unknown,
    }
}

/// One line per output, one more per symptom.
fn shown(judgement: &Judgement<'_>, place: &str) -> String {
    let id = match judgement.id {
        Value::Null => place.to_owned(),
        Value::String(id) => id.clone(),
        other => other.to_string(),
    };
    let mut text = format!("{id}: {}\n", judgement.verdict);
    for finding in judgement.findings {
        text += &format!("  {} at {}..{}: {}\n", finding.kind.name(), finding.start, finding.end, finding.evidence);
    }
    text
}

/// Rows are labels, columns are verdicts.
fn confusion_table(confusion: &Confusion) -> String {
    let mut verdicts: Vec<&str> = confusion.values().flat_map(|row| row.keys().copied()).collect();
    verdicts.sort_unstable();
    verdicts.dedup();
    let mut header = vec!["label".to_string()];
    header.extend(verdicts.iter().map(|verdict| (*verdict).to_string()));
    let mut rows = table::empty(header);
    for (label, counts) in confusion {
        let mut row = vec![label.clone()];
        row.extend(verdicts.iter().map(|verdict| counts.get(verdict).copied().unwrap_or(0).to_string()));
        rows.add_row(row);
    }
    table::finished(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_go_by_several_names_and_unknown_ones_are_ignored() {
        let line =
            parse(br#"{"response": "a", "reference": ["b", 3], "language": "en", "score": {"x": 1}, "lang": null}"#);
        let line = line.expect("a valid line");
        assert_eq!((line.output.as_str(), line.lang.as_deref()), ("a", Some("en")));
        assert_eq!(line.expected, ["b", "3"]);
        let both = parse(br#"{"text": "the prompt's text", "output": "a", "answer": "c"}"#).expect("a valid line");
        assert_eq!(both.output, "a");
        assert_eq!(language("zh-CN"), Some(Language::Zh));
    }

    #[test]
    fn what_is_wrong_with_a_line_is_named() {
        let problem = |line: &[u8]| parse(line).err().unwrap_or_default();
        assert_eq!(problem(br#"{"id": 1}"#), "it has no `output`");
        assert_eq!(problem(br#"{"output": null}"#), "it has no `output`");
        assert_eq!(problem(br#"{"output": ["a"]}"#), "`output` is an array, no text");
        assert_eq!(problem(br#"{"output": "a", "max_tokens": -1}"#), "`max_tokens` is no count: a number");
        assert!(problem(b"{\"output\": \"a").starts_with("column "));
        assert!(problem(b"{\"output\": \"\xff\"}").starts_with("no UTF-8 from byte 12"));
    }
}
