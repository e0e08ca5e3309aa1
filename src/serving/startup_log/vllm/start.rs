//! Where a start begins, and why one failed.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex::Regex;

use super::Start;
use crate::serving::startup_log::draft::Draft;
use crate::serving::startup_log::{LogLine, group, pattern};

static PROCESS: LazyLock<Regex> = LazyLock::new(|| pattern(r"\(([A-Za-z_]+[A-Za-z0-9_]*)(?: rank=\d+)? pid=(\d+)"));
static ENTRY: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"vLLM API server version|non-default args: |args: Namespace\("));
static CONFIGURING: LazyLock<Regex> = LazyLock::new(|| {
    pattern("data type to store kv cache|CPU backend doesn't support|is not supported by the V1 Engine")
});
static CAPACITY: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"KV cache size: [\d,]+ tokens|# \w+ blocks: \d|Maximum concurrency for "));
static FAILURE: LazyLock<Regex> = LazyLock::new(|| {
    pattern(concat!(
        r"(?:ValueError|RuntimeError|AssertionError|NotImplementedError|[A-Za-z.]*OutOfMemoryError|ValidationError): .*",
        r"|error: unrecognized arguments.*|error: argument .*invalid choice.*|Invalid kv_cache_dtype.*",
        r"|Engine core initialization failed.*|To serve at least one request.*|fp8_e5m2 kv-cache is not supported.*"
    ))
});
static REJECTED: LazyLock<Regex> = LazyLock::new(|| {
    pattern(concat!(
        "Selected backend |No valid attention backend|Invalid kv_cache_dtype|invalid choice|is incompatible with dtype",
        "|KV cache is not supported|kv-cache is not supported|does not support .* kv-cache|is not supported by the CPU attention",
        "|FP8 KV cache requires head_size|Currently supported kv cache quantization|Unknown attention backend"
    ))
});

/// Part of the warning about a variable that is not known.
const VARIABLE: &str = "vLLM environment variable";

/// Lines of the last start, and the number of starts. The server's first lines come again with every start; the dump of the
/// configuration does as well, but each of several engines of one start prints its own.
pub(super) fn last(lines: &[LogLine]) -> (&[LogLine], usize) {
    let (mut first, mut starts) = (0, 1);
    let mut seen = Progress::default();
    for (index, line) in lines.iter().enumerate() {
        if seen.is_over_at(&line.text) {
            // Variables are looked at before anything else is printed.
            let early = lines[first + 1..index].iter().rev().take_while(|line| line.text.contains(VARIABLE)).count();
            (first, starts, seen) = (index - early, starts + 1, Progress::default());
        }
        seen.advance(&line.text);
    }
    (&lines[first..], starts)
}

/// How far a start has come.
#[derive(Default)]
struct Progress {
    entered: bool,
    typed: bool,
    /// Engine → its process, for those that have printed their configuration.
    engines: BTreeMap<String, String>,
    /// Capacity was printed, or the start failed.
    ended: bool,
}

impl Progress {
    fn is_over_at(&self, text: &str) -> bool {
        if ENTRY.is_match(text) {
            let is_arguments = !text.contains("API server version");
            return self.ended || !self.engines.is_empty() || if is_arguments { self.typed } else { self.entered };
        }
        if CONFIGURING.is_match(text) {
            return self.ended;
        }
        if text.contains("LLM engine (v") {
            let (name, process) = process_of(text);
            return match self.engines.get(&name) {
                Some(before) => self.ended || *before != process,
                None => self.ended && self.engines.is_empty(),
            };
        }
        false
    }

    fn advance(&mut self, text: &str) {
        if ENTRY.is_match(text) {
            self.entered = true;
            self.typed |= !text.contains("API server version");
        }
        if text.contains("LLM engine (v") {
            let (name, process) = process_of(text);
            self.engines.insert(name, process);
        }
        self.ended |= CAPACITY.is_match(text) || FAILURE.is_match(text);
    }
}

/// Name and number of the process that wrote a line; empty where the prefix has none.
fn process_of(text: &str) -> (String, String) {
    PROCESS.captures(text).map_or_else(Default::default, |found| (found[1].to_string(), found[2].to_string()))
}

/// Name of the process that wrote `text`, if the prefix has one.
pub(super) fn process(text: &str) -> Option<String> {
    PROCESS.captures(text).map(|found| format!("{}/{}", &found[1], &found[2]))
}

/// How a start ended that did not come to serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The dtype or the backend asked for was refused.
    Rejected,
    /// Anything else.
    Other,
}

/// Why the start failed, if it did: an error with no capacity after it.
pub(super) fn failure(start: &Start<'_>, draft: &mut Draft) -> Option<Failure> {
    let last_capacity = start.lines.iter().rposition(|line| CAPACITY.is_match(&line.text));
    let rest = &start.lines[last_capacity.map_or(0, |index| index + 1)..];
    if last_capacity.is_some() {
        return None;
    }
    let mut failure = None;
    for line in rest {
        let Some(words) = FAILURE.find(&line.text) else { continue };
        let rejected = REJECTED.is_match(&line.text);
        if failure.is_none() || (rejected && failure != Some(Failure::Rejected)) {
            draft.note(&format!("the start failed: {}", words.as_str()));
        }
        if rejected {
            failure = Some(Failure::Rejected);
        } else {
            failure = failure.or(Some(Failure::Other));
        }
        if let Some(asked) = group(&INVALID, &line.text)
            && draft.facts.requested_kv_cache_dtype.is_none()
        {
            draft.requested(asked, line.number);
        }
    }
    failure
}

static INVALID: LazyLock<Regex> = LazyLock::new(|| {
    pattern(r#"(?:Invalid kv_cache_dtype: '|argument --kv-cache-dtype: invalid choice: '|kv_cache_dtype=")([^'"]+)"#)
});
