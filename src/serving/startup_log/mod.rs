//! What a server said of itself while it started: from its log to [`ServerFacts`], each fact with its line.
//!
//! A log is evidence of a special kind: it shows the request and, on other lines or none at all, what became of it. A dump of the
//! configuration is a request. A dtype counts as in effect only where a line proves it; where the server is known to override
//! without a word, the answer is "unknown" with a note.
//!
//! One file per engine, each a [`Dialect`] of [`DIALECTS`]: the phrases that its lines are found by, the phrases that only it uses,
//! and a function from those lines to facts. All phrases of all dialects are looked for in one pass over the file, so the time is
//! linear in its length. To add an engine: a file here, a line in [`DIALECTS`], logs with their expected facts under
//! `tests/fixtures/logs`.

mod draft;
mod lines;
mod llama_cpp;
mod lmdeploy;
mod ollama;
mod sglang;
mod tensorrt_llm;
mod tgi;
mod vllm;

use std::collections::BTreeMap;
use std::io::BufRead;
use std::sync::LazyLock;

use regex::Regex;

use self::draft::Draft;
use self::lines::Phrases;
pub use self::lines::{LogError, LogLine, MAX_LOG_BYTES};
use crate::serving::facts::ServerFacts;

/// An engine's way of logging.
pub struct Dialect {
    /// Value of [`ServerFacts::engine`].
    pub engine: &'static str,
    /// Phrases that no other engine prints; the engine with most lines of its own is the one that wrote the log.
    signatures: &'static [&'static str],
    /// Words of nearly all lines of this engine: they tell whose log it is, and a few lines are enough for that.
    marks: &'static [&'static str],
    /// Further phrases of lines that are read.
    phrases: &'static [&'static str],
    read: fn(&[LogLine]) -> Draft,
}

/// Every dialect. Of two with as many lines of their own the earlier wins: Ollama passes on the lines of the llama.cpp inside it.
pub static DIALECTS: &[Dialect] = &[
    ollama::DIALECT,
    vllm::DIALECT,
    sglang::DIALECT,
    tensorrt_llm::DIALECT,
    llama_cpp::DIALECT,
    lmdeploy::DIALECT,
    tgi::DIALECT,
];

static PHRASES: LazyLock<Phrases> = LazyLock::new(|| {
    let read = DIALECTS.iter().flat_map(|dialect| dialect.signatures.iter().chain(dialect.phrases)).copied();
    Phrases::new(read, DIALECTS.iter().flat_map(|dialect| dialect.marks).copied())
});

/// What a log says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// The facts.
    pub facts: ServerFacts,
    /// Name of a field of [`ServerFacts`] → number of the line that its value was read from, counted from 1.
    pub lines: BTreeMap<&'static str, u64>,
}

impl Reading {
    /// Where `field` was read, as the source of an evidence: `start-up log line 41`.
    pub fn source(&self, field: &str) -> String {
        match self.lines.get(field) {
            Some(line) => format!("start-up log line {line}"),
            None => "start-up log".into(),
        }
    }
}

/// Reads a log of any engine. A log of no known engine gives facts without a value and a note.
///
/// # Errors
/// Where the input fails, is longer than [`MAX_LOG_BYTES`], or is no text.
pub fn read(input: impl BufRead) -> Result<Reading, LogError> {
    let (lines, dropped) = lines::with_phrases(input, &PHRASES)?;
    let mut draft = match dialect_of(&lines) {
        Some(dialect) => {
            let mut draft = (dialect.read)(&lines);
            draft.facts.engine = Some(dialect.engine.into());
            if let Some(line) = lines.iter().find(|line| is_signed(dialect, line)) {
                draft.at("engine", line.number);
            }
            draft
        }
        None => {
            let mut draft = Draft::default();
            draft.note("no line of a known engine was found");
            draft
        }
    };
    if dropped {
        draft.note("the log repeats itself; the newest lines of each kind were read");
    }
    Ok(Reading { facts: draft.facts, lines: draft.sources })
}

/// [`read`] of a text in memory.
///
/// # Errors
/// As [`read`].
pub fn read_text(log: &str) -> Result<Reading, LogError> {
    read(log.as_bytes())
}

fn is_signed(dialect: &Dialect, line: &LogLine) -> bool {
    dialect.signatures.iter().chain(dialect.marks).any(|signature| line.text.contains(signature))
}

fn dialect_of(lines: &[LogLine]) -> Option<&'static Dialect> {
    let signed = |dialect: &&Dialect| lines.iter().filter(|line| is_signed(dialect, line)).count();
    if signed(&&DIALECTS[0]) > 0 {
        return Some(&DIALECTS[0]);
    }
    // `max_by_key` takes the last of equals.
    DIALECTS.iter().rev().max_by_key(signed).filter(|dialect| signed(dialect) > 0)
}

/// A pattern that is part of the program.
fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("patterns of the program are valid")
}

/// The first group of `pattern` in `text`.
fn group<'a>(pattern: &Regex, text: &'a str) -> Option<&'a str> {
    Some(pattern.captures(text)?.get(1)?.as_str())
}

/// A number as servers print it, with or without separators of thousands.
fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.replace(',', "").parse().ok()
}

/// The value of `--name value` or `--name=value` in a command line.
fn option<'a>(command: &'a str, names: &[&str]) -> Option<&'a str> {
    let mut words = command.split(|it: char| it.is_whitespace() || matches!(it, '"' | '\'' | ',' | '[' | ']'));
    while let Some(word) = words.next() {
        for name in names {
            match word.strip_prefix(name) {
                Some("") => return words.find(|word| !word.is_empty()).filter(|value| !value.starts_with('-')),
                Some(rest) if rest.starts_with('=') => return Some(&rest[1..]),
                _ => {}
            }
        }
    }
    None
}

/// Lines from the last start on, and the number of starts. `is_start` says whether a line begins a start, `is_end` whether it shows
/// that one has come far.
fn last_start(
    lines: &[LogLine],
    is_start: impl Fn(&str) -> bool,
    is_end: impl Fn(&str) -> bool,
) -> (&[LogLine], usize) {
    let (mut first, mut starts, mut ended) = (0, 1, false);
    for (index, line) in lines.iter().enumerate() {
        if ended && is_start(&line.text) {
            (first, starts, ended) = (index, starts + 1, false);
        }
        ended |= is_end(&line.text);
    }
    (&lines[first..], starts)
}

/// The note about more than one start.
fn note_starts(draft: &mut Draft, starts: usize) {
    if starts > 1 {
        draft.note(&format!("the log holds {starts} starts; the last one is reported"));
    }
}
