//! The file of a `custom` task: read within limits, checked line by line, and laid into the bins of its suite.
//!
//! A line that names its bin, or its length, is laid when it is read. For the others the prompt has to be counted, so they
//! are laid by [`Suite::bind`], once the tokenizer of the target is known: into the smallest bin that holds prompt and answer.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use super::plan::{haystack_id, id_of};
use super::{BinPlan, GroupSpec, ItemSpec, Suite, SuiteError, TaskPlan};
use crate::hint::Hint;
use crate::rng::hash_name;
use crate::sample::{Bin, Expected, Gold, Item, Role};
use crate::scorers;
use crate::tasks::{self, CustomLine, LineFault, TaskError};
use crate::tokenizer::{TokenCounter, UNCOUNTABLE_TOKENS};

/// A prompt of the longest bin, every character escaped as JSON may have it: a million tokens of up to 16 bytes.
const MAX_LINE_BYTES: usize = 16 << 20;
/// All prompts are kept in memory until they are asked.
const MAX_FILE_BYTES: u64 = 512 << 20;
/// As many items as a suite may have.
const MAX_LINES: usize = 200_000;
/// How RULER judges its own files, but for its question-answering tasks.
const RULER_SCORER: &str = "ruler_all";

/// Questions of one haystack that are asked from one prefill; more of them come in further groups of the same cluster.
const MAX_GROUP: usize = 64;
/// Bytes of a prompt's start and end in the item's excerpt, where it is not shown whole.
const EXCERPT_BYTES: (usize, usize) = (400, 1200);

/// The scorer that takes a schema, and needs nothing else.
const SCHEMA_SCORER: &str = "json_schema";
/// Scorers that compare with one text; the others take several.
const ONE_TEXT: &[&str] =
    &["absent", "exact_value", "history", "json_records", "json_schema", "label", "span", "tool_call"];
/// Scorers that are content with any of several texts: the first is the canonical one.
const ANY_TEXT: &[&str] = &["ruler_part", "similarity"];

/// Prompts of the user's with the bins they belong to.
#[derive(Clone, Debug, PartialEq)]
pub struct CustomFile {
    path: String,
    /// BLAKE3 of the whole file.
    hash: String,
    lines: Arc<[Line]>,
    /// Bins of the task, ascending, whatever is selected of the suite later.
    windows: Vec<BinPlan>,
    /// The bin of each line; `None` until it is counted.
    bins: Vec<Option<Bin>>,
}

#[derive(Clone, Debug, PartialEq)]
struct Line {
    line: CustomLine,
    /// BLAKE3 of the line, and of how many equal ones stand before it.
    hash: String,
    scorer: String,
    expected: Expected,
}

impl CustomFile {
    /// Reads and checks a file. `scorer` is that of lines that name none.
    pub(super) fn load(path: &Path, scorer: Option<&str>, windows: Vec<BinPlan>) -> Result<Self, SuiteError> {
        let shown = path.display().to_string();
        let failed = |source| SuiteError::Read { path: shown.clone(), source };
        let file = File::open(path).map_err(failed)?;
        if !file.metadata().map_err(failed)?.is_file() {
            return Err(failed(std::io::Error::other("not a regular file")));
        }
        let mut reader = BufReader::new(file.take(MAX_FILE_BYTES + 1));
        let mut state = Reading { path: &shown, scorer, windows: &windows, lines: Vec::new(), seen: HashMap::new() };
        let mut hasher = blake3::Hasher::new();
        let mut buffer = Vec::new();
        let (mut number, mut total) = (0, 0);
        loop {
            buffer.clear();
            let read = reader.by_ref().take(MAX_LINE_BYTES as u64 + 1).read_until(b'\n', &mut buffer);
            let read = read.map_err(failed)?;
            if read == 0 {
                break;
            }
            number += 1;
            total += read as u64;
            if total > MAX_FILE_BYTES {
                return Err(state.limit("bytes", total, MAX_FILE_BYTES));
            }
            hasher.update(&buffer);
            state.take(number, &buffer)?;
        }
        if state.lines.is_empty() {
            return Err(failed(std::io::Error::other("no line has a prompt")));
        }
        let bins = state.lines.iter().map(|line| stated_bin(&line.line, &windows)).collect();
        let (lines, hash) = (state.lines.into(), hasher.finalize().to_hex().to_string());
        Ok(Self { path: shown, hash, lines, windows, bins })
    }

    /// BLAKE3 of the file, 64 hex digits.
    pub(super) fn hash(&self) -> &str {
        &self.hash
    }

    /// Number of prompts.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Whether there is none; a file without any is refused when it is read.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Prompts whose bin is not known before they are counted.
    pub fn unbound(&self) -> usize {
        self.bins.iter().filter(|bin| bin.is_none()).count()
    }

    /// Prompts in a bin, as far as it is known.
    pub(super) fn lines_in(&self, bin: Bin) -> u32 {
        self.bins.iter().filter(|other| **other == Some(bin)).count() as u32
    }

    fn fault(&self, line: &CustomLine, fault: LineFault) -> SuiteError {
        at(&self.path, line.number, fault)
    }

    /// Counts every prompt, checks that it fits, and lays it into its bin.
    fn bound(&self, counter: &dyn TokenCounter) -> Result<Self, SuiteError> {
        let mut bins = Vec::with_capacity(self.bins.len());
        for (entry, stated) in self.lines.iter().zip(&self.bins) {
            let line = &entry.line;
            // Not so an answer's beginning, where `<think></think>` may be meant.
            if let Some(token) = line.messages.iter().find_map(|message| counter.find_special(&message.content)) {
                return Err(self.fault(line, LineFault::SpecialToken { token }));
            }
            let prompt_tokens = prompt_tokens(line, counter);
            if prompt_tokens >= UNCOUNTABLE_TOKENS {
                return Err(self.fault(line, LineFault::Uncountable));
            }
            let fits = |window: &&BinPlan| {
                prompt_tokens as u64 + u64::from(reserved_tokens(line, window)) <= u64::from(window.bin.tokens())
            };
            let mut candidates = self.windows.iter().filter(|window| stated.is_none_or(|stated| stated == window.bin));
            let longest =
                candidates.clone().next_back().expect("a suite has a bin, and a stated bin was looked up in it");
            let Some(window) = candidates.find(fits) else {
                let (prompt_tokens, output_tokens) = (prompt_tokens as u64, reserved_tokens(line, longest));
                let window = longest.bin;
                return Err(self.fault(line, LineFault::OverWindow { prompt_tokens, output_tokens, window }));
            };
            let (answer_tokens, output_tokens) =
                (counter.count(&entry.expected.answer) + 1, output_tokens(line, window));
            if answer_tokens > output_tokens as usize {
                return Err(self.fault(line, LineFault::AnswerTooLong { answer_tokens, output_tokens }));
            }
            bins.push(Some(window.bin));
        }
        Ok(Self { bins, ..self.clone() })
    }
}

/// A file while it is read.
struct Reading<'a> {
    path: &'a str,
    scorer: Option<&'a str>,
    windows: &'a [BinPlan],
    lines: Vec<Line>,
    /// Content → how often.
    seen: HashMap<blake3::Hash, u32>,
}

impl Reading<'_> {
    fn limit(&self, what: &str, found: u64, limit: u64) -> SuiteError {
        SuiteError::Limit { origin: self.path.into(), what: what.into(), found, limit }
    }

    fn take(&mut self, number: usize, bytes: &[u8]) -> Result<(), SuiteError> {
        // Some editors mark the start of a file.
        let bytes = if number == 1 { bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes) } else { bytes };
        let bytes = bytes.trim_ascii();
        if bytes.is_empty() {
            return Ok(());
        }
        if bytes.len() > MAX_LINE_BYTES {
            return Err(at(self.path, number, LineFault::TooLong { limit: MAX_LINE_BYTES }));
        }
        if self.lines.len() == MAX_LINES {
            return Err(self.limit("lines", MAX_LINES as u64 + 1, MAX_LINES as u64));
        }
        let content = blake3::hash(bytes);
        let occurrence = self.seen.entry(content).or_default();
        let hash = hash_name(&[&content.to_hex(), &occurrence.to_string()]).to_hex().to_string();
        *occurrence += 1;
        let line = CustomLine::parse(number, bytes).and_then(|line| self.checked(line, hash));
        self.lines.push(line.map_err(|fault| at(self.path, number, fault))?);
        Ok(())
    }

    fn checked(&self, line: CustomLine, hash: String) -> Result<Line, LineFault> {
        let known = || self.windows.iter().map(|window| window.bin).collect::<Vec<_>>();
        if let Some(bin) = line.bin.filter(|bin| !known().contains(bin)) {
            return Err(LineFault::UnknownBin { bin, known: known() });
        }
        if let Some(length) = line.length.filter(|length| known().iter().all(|bin| bin.tokens() < *length)) {
            return Err(LineFault::UnknownBin { bin: Bin(length), known: known() });
        }
        let default = line.is_ruler.then_some(RULER_SCORER);
        let scorer = line.scorer.as_deref().or(self.scorer).or(default).ok_or(LineFault::NoScorer)?.to_owned();
        let expected = expected(&line, &scorer)?;
        Ok(Line { line, hash, scorer, expected })
    }
}

fn at(path: &str, line: usize, fault: LineFault) -> SuiteError {
    SuiteError::Line { path: path.into(), line, fault: Box::new(fault) }
}

/// What the scorer is to compare with.
fn expected(line: &CustomLine, scorer: &str) -> Result<Expected, LineFault> {
    if let Err(unknown) = scorers::find(scorer) {
        let known = scorers::SCORERS.iter().map(|scorer| scorer.name).collect();
        return Err(LineFault::UnknownScorer { name: unknown.name, known });
    }
    let texts = &line.expected;
    match &line.schema {
        Some(schema) if scorer == SCHEMA_SCORER => return under_schema(schema, texts),
        Some(_) => {
            let message = format!("scorer `{scorer}` does not look at it, `{SCHEMA_SCORER}` does");
            return Err(LineFault::Invalid { key: "schema", message });
        }
        None => {}
    }
    let Some(first) = texts.first() else { return Err(LineFault::MissingExpected { scorer: scorer.into() }) };
    if texts.len() > 1 && ONE_TEXT.contains(&scorer) {
        return Err(LineFault::ManyExpected { scorer: scorer.into(), count: texts.len() });
    }
    if line.answer.is_some() && scorer != "regex_match" {
        let message = "only patterns need an answer written out besides `expected`".into();
        return Err(LineFault::Invalid { key: "answer", message });
    }
    let members = Gold::Set { members: texts.clone(), decoys: Vec::new() };
    if scorer == "regex_match" {
        for pattern in texts {
            scorers::check_pattern(pattern).map_err(|message| LineFault::Invalid { key: "expected", message })?;
        }
        return Ok(Expected { answer: line.answer.clone().unwrap_or_default(), gold: members });
    }
    let answer = if ANY_TEXT.contains(&scorer) { first.clone() } else { texts.join("\n") };
    let gold = match texts.len() {
        1 => Gold::Value { value: first.clone(), distractors: Vec::new() },
        _ => members,
    };
    Ok(Expected { answer, gold })
}

/// A schema, and the right value where one is given.
fn under_schema(schema: &serde_json::Value, texts: &[String]) -> Result<Expected, LineFault> {
    scorers::check_schema(schema).map_err(|message| LineFault::Invalid { key: "schema", message })?;
    if texts.len() > 1 {
        return Err(LineFault::ManyExpected { scorer: SCHEMA_SCORER.into(), count: texts.len() });
    }
    let read = |text: &String| {
        serde_json::from_str(text).map_err(|error| LineFault::Invalid { key: "expected", message: error.to_string() })
    };
    let value = texts.first().map(read).transpose()?;
    let answer = texts.first().cloned().unwrap_or_default();
    Ok(Expected { answer, gold: Gold::Schema { schema: schema.clone(), expected: value } })
}

/// The bin that a line names, or the smallest one of its length.
fn stated_bin(line: &CustomLine, windows: &[BinPlan]) -> Option<Bin> {
    let of_length = |length| windows.iter().map(|window| window.bin).find(|bin| bin.tokens() >= length);
    line.bin.or_else(|| line.length.and_then(of_length))
}

/// Chat template and the start of the answer included.
fn prompt_tokens(line: &CustomLine, counter: &dyn TokenCounter) -> usize {
    let messages: Vec<(&str, &str)> = line.messages.iter().map(|it| (it.role.name(), it.content.as_str())).collect();
    counter.count_chat(&messages).saturating_add(counter.count(&line.answer_prefix))
}

/// Tokens that the answer may take in a bin.
fn output_tokens(line: &CustomLine, window: &BinPlan) -> u32 {
    line.max_tokens.unwrap_or(window.output_reserve)
}

/// Tokens that have to be free behind the prompt: thinking and answer.
fn reserved_tokens(line: &CustomLine, window: &BinPlan) -> u32 {
    output_tokens(line, window).saturating_add(window.thinking_reserve)
}

impl Suite {
    /// The suite with every prompt of a user's file in its bin, counted as the target counts. A suite without such a file is
    /// itself. What [`Suite::plan`] gives before that leaves out the prompts whose bin is not known.
    ///
    /// # Errors
    /// When a prompt with its answer is longer than its bin, or than the longest one; the error names line and tokens.
    pub fn bind(&self, counter: &dyn TokenCounter) -> Result<Self, SuiteError> {
        let mut bound = self.clone();
        for plan in &mut bound.tasks {
            if let Some(file) = &plan.custom {
                plan.custom = Some(Arc::new(file.bound(counter)?));
            }
        }
        Ok(bound)
    }

    /// The prompts of one bin: each a document of its own, but for those that share a haystack.
    pub(super) fn custom_groups(&self, bin: &BinPlan, plan: &TaskPlan) -> Vec<GroupSpec> {
        let Some(file) = &plan.custom else { return Vec::new() };
        let limit = plan.samples.get(&bin.bin).map_or(usize::MAX, |samples| *samples as usize);
        let of_bin = file.lines.iter().enumerate().filter(|(index, _)| file.bins[*index] == Some(bin.bin));
        let mut documents: Vec<Vec<ItemSpec>> = Vec::new();
        let mut shared: HashMap<&str, usize> = HashMap::new();
        for (index, line) in of_bin.take(limit) {
            let spec = ItemSpec {
                item_id: self.custom_item_id(bin.bin, line),
                task: plan.task.clone(),
                slot_percent: 0,
                index: index as u32,
                variant_of: None,
            };
            let place = line.line.haystack.as_deref().and_then(|name| shared.get(name).copied());
            match place {
                Some(place) => documents[place].push(spec),
                None => {
                    if let Some(name) = line.line.haystack.as_deref() {
                        shared.insert(name, documents.len());
                    }
                    documents.push(vec![spec]);
                }
            }
        }
        let groups = documents.iter().flat_map(|items| items.chunks(MAX_GROUP));
        groups
            .map(|items| GroupSpec { haystack_id: haystack_id(bin.bin, items), bin: bin.bin, items: items.to_vec() })
            .collect()
    }

    /// By content, so that a line keeps its id when others come or go.
    fn custom_item_id(&self, bin: Bin, line: &Line) -> String {
        id_of(&[
            "custom",
            &self.name,
            &self.version.to_string(),
            self.language.tag(),
            &bin.tokens().to_string(),
            &line.hash,
            &self.seed.to_string(),
        ])
    }

    pub(super) fn custom_items(
        &self,
        group: &GroupSpec,
        file: &CustomFile,
        counter: &dyn TokenCounter,
    ) -> Result<Vec<Item>, TaskError> {
        let foreign = || TaskError::PartialGroup { haystack_id: group.haystack_id.clone() };
        let window = file.windows.iter().find(|window| window.bin == group.bin).ok_or_else(foreign)?;
        let items = group.items.iter().map(|spec| {
            let entry = file.lines.get(spec.index as usize).ok_or_else(foreign)?;
            if self.custom_item_id(group.bin, entry) != spec.item_id {
                return Err(foreign());
            }
            let line = &entry.line;
            let (prompt_tokens, output_tokens) = (prompt_tokens(line, counter), reserved_tokens(line, window));
            let available = group.bin.tokens().saturating_sub(output_tokens) as usize;
            if prompt_tokens > available {
                let tasks = format!("{}:{}", file.path, line.number);
                return Err(TaskError::TooSmall { tasks, bin: group.bin, needed: prompt_tokens, available });
            }
            let haystack_id = match &line.haystack {
                Some(name) => id_of(&["custom haystack", &self.name, &group.bin.tokens().to_string(), name]),
                None => group.haystack_id.clone(),
            };
            Ok(Item {
                item_id: spec.item_id.clone(),
                task: spec.task.clone(),
                language: self.language,
                bin: group.bin,
                slot_percent: 0,
                index: spec.index,
                haystack_id,
                messages: line.messages.clone(),
                prompt_tokens: prompt_tokens as u32,
                max_output_tokens: output_tokens,
                depth_percent: None,
                expected: entry.expected.clone(),
                scorer: entry.scorer.clone(),
                excerpt: excerpt(&file.path, line),
                follow_ups: Vec::new(),
                answer_prefix: line.answer_prefix.clone(),
                variant_of: None,
            })
        });
        items.collect()
    }
}

/// Where the prompt stands in the file, its start and its end: the question is at one of them.
fn excerpt(path: &str, line: &CustomLine) -> String {
    let user = line.messages.iter().rev().find(|message| message.role == Role::User);
    let text = user.map_or("", |message| message.content.as_str());
    let (start, end) = EXCERPT_BYTES;
    let file = Path::new(path).file_name().map_or_else(|| path.into(), |name| name.to_string_lossy());
    let name = line.id.as_ref().map(|id| format!(" ({id})")).unwrap_or_default();
    let place = format!("{file}:{}{name}", line.number);
    if text.len() <= start + end {
        return format!("{place}\n{text}");
    }
    let head = &text[..text.floor_char_boundary(start)];
    let tail = &text[text.ceil_char_boundary(text.len() - end)..];
    format!("{place}\n{head} … {tail}")
}

/// A scorer that a suite names for a task.
pub(super) fn check_scorer(origin: &str, key: String, name: &str) -> Result<(), SuiteError> {
    match scorers::find(name) {
        Ok(_) => Ok(()),
        Err(error) => {
            Err(SuiteError::UnknownScorer { origin: origin.into(), key, name: name.into(), hints: error.hints() })
        }
    }
}

/// Reads the file that a task's parameters name, from the folder of the suite file.
pub(super) fn of_params(
    params: &toml::Table,
    folder: &Path,
    scorer: Option<&str>,
    windows: Vec<BinPlan>,
) -> Result<CustomFile, SuiteError> {
    let params = tasks::custom_params(params).map_err(|error| SuiteError::Params {
        origin: folder.display().to_string(),
        task: "custom".into(),
        message: error.message,
    })?;
    CustomFile::load(&folder.join(&params.file), params.scorer.as_deref().or(scorer), windows)
}
