//! `custom`: prompts of the user's own, out of a file of JSON lines; nothing is planted and nothing is drawn.
//!
//! A line is told apart by its keys:
//!
//! | keys | what it is |
//! | --- | --- |
//! | `prompt` or `messages`, with `expected` | our own format; an unknown key is an error |
//! | `input`, `outputs`, `length` | a line of RULER's prepared data; other keys are passed over |
//! | `messages` that end with the assistant | a chat log: the last answer is the expected one; other keys are passed over |
//!
//! This file reads one line. The file, its bins and its scorers are the suite's matter.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::params::{ParamError, parse};
use super::planting::{Planted, Planting};
use super::{Depth, Ground, Task, TaskError, TaskGroup};
use crate::hint::{Hint, did_you_mean, nearest};
use crate::sample::{Bin, Message, Role};

/// The registry's entry.
pub(super) const TASK: Task = Task {
    id: "custom",
    summary: "prompts of your own, from a file of JSON lines",
    group: TaskGroup::Custom,
    scorer: "exact_value",
    generator_version: 1,
    ground: Ground::Given,
    depth: Depth::Spread,
    check,
    plant,
};

/// Parameters of the task.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CustomParams {
    /// The file, from the suite file's folder.
    pub file: String,
    /// Scorer of lines that name none.
    pub scorer: Option<String>,
}

/// Reads the task's parameters.
///
/// # Errors
/// When a key is missing, unknown or of another type.
pub fn custom_params(params: &toml::Table) -> Result<CustomParams, ParamError> {
    parse(params)
}

fn check(params: &toml::Table) -> Result<(), ParamError> {
    custom_params(params).map(|_| ())
}

/// The prompts are given whole: there is no document to plant in.
fn plant(planting: &mut Planting<'_>) -> Result<Planted, TaskError> {
    Err(TaskError::MixedGround { tasks: planting.task.id.into() })
}

/// One prompt of the user's.
#[derive(Clone, Debug, PartialEq)]
pub struct CustomLine {
    /// Line of the file, counted from 1.
    pub number: usize,
    /// The user's name for it.
    pub id: Option<String>,
    /// What is sent; ends with the user.
    pub messages: Vec<Message>,
    /// What a right answer says; may be empty.
    pub expected: Vec<String>,
    /// A right answer written out, where `expected` is a pattern.
    pub answer: Option<String>,
    /// Scorer that the line names, or that its format implies.
    pub scorer: Option<String>,
    /// Bin that the line names.
    pub bin: Option<Bin>,
    /// Whole length in tokens that the line names; the smallest bin of at least this length takes it.
    pub length: Option<u32>,
    /// Whether it is a line of RULER's prepared data.
    pub is_ruler: bool,
    /// Limit for the answer.
    pub max_tokens: Option<u32>,
    /// Text that the answer is made to begin with.
    pub answer_prefix: String,
    /// JSON Schema that the answer has to keep.
    pub schema: Option<Value>,
    /// Lines with the same name share a long text: the cluster of all statistics.
    pub haystack: Option<String>,
}

/// Most of RULER's tasks allow 128 tokens for the answer, the others fewer; its data lines do not say how many.
const RULER_OUTPUT_TOKENS: u32 = 128;

/// Longest answer that can be asked for: the longest bin.
const MAX_OUTPUT_TOKENS: u32 = 1 << 20;

/// Longest name of an item or a haystack: they are keys, not texts.
const MAX_NAME_BYTES: usize = 256;

/// What is wrong with a line of the user's file.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LineFault {
    /// Longer than is accepted.
    #[error("the line is longer than {limit} bytes")]
    TooLong {
        /// In bytes.
        limit: usize,
    },
    /// Bytes that are no text.
    #[error("byte {byte} of the line is not UTF-8")]
    NotUtf8 {
        /// Counted from 1.
        byte: usize,
    },
    /// Not JSON, or a key with a value of another type.
    #[error("column {column}: {message}")]
    Malformed {
        /// Counted from 1.
        column: usize,
        /// What is wrong.
        message: String,
    },
    /// A key that means nothing.
    #[error("unknown key `{key}`")]
    UnknownKey {
        /// The key.
        key: String,
    },
    /// Keys that do not make a question.
    #[error("{message}")]
    Shape {
        /// What is wrong.
        message: String,
        /// A key that may be a typing error.
        suspect: Option<String>,
    },
    /// A value that is not legal.
    #[error("`{key}`: {message}")]
    Invalid {
        /// The key.
        key: &'static str,
        /// What is wrong.
        message: String,
    },
    /// Neither the line nor the suite names a scorer.
    #[error("no scorer is named, here or in the suite")]
    NoScorer,
    /// A scorer that does not exist.
    #[error("there is no scorer `{name}`")]
    UnknownScorer {
        /// The name.
        name: String,
        /// What exists.
        known: Vec<&'static str>,
    },
    /// The scorer has nothing to compare with.
    #[error("scorer `{scorer}` needs `expected`")]
    MissingExpected {
        /// The scorer.
        scorer: String,
    },
    /// The scorer compares with one text.
    #[error("scorer `{scorer}` compares with one expected text, {count} are given")]
    ManyExpected {
        /// The scorer.
        scorer: String,
        /// How many there are.
        count: usize,
    },
    /// A bin that the suite does not have.
    #[error("the suite has no bin {bin} for this task")]
    UnknownBin {
        /// The bin.
        bin: Bin,
        /// What it has.
        known: Vec<Bin>,
    },
    /// The whole item does not fit.
    #[error("prompt of {prompt_tokens} tokens and {output_tokens} for the answer exceed the window of {window}")]
    OverWindow {
        /// Chat template included.
        prompt_tokens: u64,
        /// Kept free.
        output_tokens: u32,
        /// The bin.
        window: Bin,
    },
    /// The expected answer does not fit the limit of the answer.
    #[error("the expected answer has {answer_tokens} tokens with its end, {output_tokens} are allowed")]
    AnswerTooLong {
        /// Tokens of the expected answer and its end token.
        answer_tokens: usize,
        /// The limit.
        output_tokens: u32,
    },
    /// Text that the model would take for an end of its turn, or another one's beginning.
    #[error("the prompt spells out the special token `{token}` of this model")]
    SpecialToken {
        /// The token.
        token: String,
    },
    /// The chat template does not take the messages.
    #[error("the model's chat template does not take these messages")]
    Uncountable,
}

impl Hint for LineFault {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::UnknownKey { key } => vec![did_you_mean(key, KEYS)],
            Self::Shape { suspect: Some(key), .. } => vec![did_you_mean(key, KEYS)],
            Self::Shape { suspect: None, .. } => {
                vec!["a line has `prompt` or `messages`, and `expected`; or `input` and `outputs`".into()]
            }
            Self::NoScorer => vec!["name one for the file: `params = { file = \"…\", scorer = \"contains\" }`".into()],
            Self::UnknownScorer { name, known } => vec![did_you_mean(name, known)],
            Self::ManyExpected { .. } => {
                vec!["`contains` and `ruler_all` want all of several texts, `ruler_part` any of them".into()]
            }
            Self::UnknownBin { known, .. } => {
                vec![format!("known: {}", known.iter().map(Bin::to_string).collect::<Vec<_>>().join(", "))]
            }
            Self::OverWindow { .. } => vec![
                "add a longer bin to the suite, or lower `max_tokens` of the line or `output_reserve` of the bin"
                    .into(),
            ],
            Self::AnswerTooLong { .. } => vec!["raise `max_tokens` of the line or `output_reserve` of the bin".into()],
            Self::SpecialToken { .. } => vec![
                "a rendered prompt is split into `messages`; the model's own template puts the tokens between them"
                    .into(),
            ],
            Self::Uncountable => vec!["some templates refuse a system message, or two users in a row".into()],
            Self::TooLong { .. }
            | Self::NotUtf8 { .. }
            | Self::Malformed { .. }
            | Self::Invalid { .. }
            | Self::MissingExpected { .. } => Vec::new(),
        }
    }
}

/// Keys of our own format.
const KEYS: &[&str] = &[
    "id",
    "prompt",
    "messages",
    "expected",
    "answer",
    "scorer",
    "bin",
    "max_tokens",
    "answer_prefix",
    "schema",
    "haystack",
];

/// Every key that some format knows; what is left over decides whether the line is ours.
#[derive(Deserialize)]
#[serde(expecting = "a JSON object")]
struct RawLine {
    id: Option<Value>,
    prompt: Option<String>,
    messages: Option<Vec<RawMessage>>,
    expected: Option<OneOrMany>,
    answer: Option<String>,
    scorer: Option<String>,
    bin: Option<Length>,
    max_tokens: Option<u32>,
    answer_prefix: Option<String>,
    schema: Option<Value>,
    haystack: Option<String>,
    input: Option<String>,
    outputs: Option<OneOrMany>,
    length: Option<u32>,
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a text or a list of texts")]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    fn into_texts(self) -> Vec<String> {
        match self {
            Self::One(text) => vec![text],
            Self::Many(texts) => texts,
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a context length such as 2048 or \"2K\"")]
enum Length {
    Tokens(u32),
    Text(String),
}

#[derive(Deserialize)]
struct RawMessage {
    role: String,
    content: Content,
}

/// Content as a text, or in parts as some logs have it.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a text, or a list of parts of type `text`")]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Deserialize)]
struct Part {
    text: String,
}

impl CustomLine {
    /// Reads line `number` of a file.
    ///
    /// # Errors
    /// When it is not UTF-8, not JSON, or not one of the formats.
    pub fn parse(number: usize, bytes: &[u8]) -> Result<Self, LineFault> {
        let text = std::str::from_utf8(bytes).map_err(|error| LineFault::NotUtf8 { byte: error.valid_up_to() + 1 })?;
        let raw: RawLine = serde_json::from_str(text).map_err(|error| malformed(&error))?;
        let mut line = match (raw.prompt.is_some(), raw.messages.is_some(), raw.input.is_some()) {
            (true, false, false) => raw.own(number)?,
            (false, true, false) if raw.is_log() => raw.log(number)?,
            (false, true, false) => raw.own(number)?,
            (false, false, true) => raw.ruler(number)?,
            (false, false, false) => return Err(raw.without_question()),
            _ => return Err(shape("more than one of `prompt`, `messages` and `input`")),
        };
        line.check()?;
        for text in &mut line.expected {
            // Ends of lines at the end belong to the file, not to the answer.
            text.truncate(text.trim_end_matches(['\n', '\r']).len());
        }
        Ok(line)
    }

    fn check(&self) -> Result<(), LineFault> {
        let invalid = |key, message: &str| Err(LineFault::Invalid { key, message: message.into() });
        if self.messages.iter().all(|message| message.content.trim().is_empty()) {
            return invalid("prompt", "nothing is asked");
        }
        if self.messages.last().is_none_or(|message| message.role != Role::User) {
            return invalid("messages", "the last one has to be the user's");
        }
        if self.expected.iter().any(|text| text.trim().is_empty()) {
            return invalid("expected", "an empty text would be found in every answer");
        }
        if self.max_tokens.is_some_and(|tokens| !(1..=MAX_OUTPUT_TOKENS).contains(&tokens)) {
            return invalid("max_tokens", "expected 1 to 1048576");
        }
        for (key, name) in [("id", &self.id), ("haystack", &self.haystack)] {
            if name.as_ref().is_some_and(|name| name.is_empty() || name.len() > MAX_NAME_BYTES) {
                return invalid(key, "expected a name of 1 to 256 bytes");
            }
        }
        Ok(())
    }
}

impl RawLine {
    /// The last answer is what is expected.
    fn is_log(&self) -> bool {
        let is_answered = |messages: &Vec<RawMessage>| messages.last().is_some_and(|last| last.role == "assistant");
        self.expected.is_none() && self.schema.is_none() && self.messages.as_ref().is_some_and(is_answered)
    }

    fn without_question(&self) -> LineFault {
        let suspect = self.others.keys().find(|key| nearest(key, KEYS.iter().copied()).is_some()).cloned();
        LineFault::Shape { message: "none of `prompt`, `messages` and `input` is there".into(), suspect }
    }

    fn own(self, number: usize) -> Result<CustomLine, LineFault> {
        let foreign = [("outputs", self.outputs.is_some()), ("length", self.length.is_some())];
        let foreign = foreign.into_iter().find(|(_, there)| *there).map(|(key, _)| key.to_owned());
        if let Some(key) = self.others.keys().next().cloned().or(foreign) {
            return Err(LineFault::UnknownKey { key });
        }
        let bin = self.bin.as_ref().map(bin_of).transpose()?;
        let messages = match (self.prompt, self.messages) {
            (Some(prompt), _) => vec![Message { role: Role::User, content: prompt }],
            (None, messages) => read_messages(messages.unwrap_or_default())?,
        };
        Ok(CustomLine {
            number,
            id: self.id.as_ref().map(name_of).transpose()?,
            messages,
            expected: self.expected.map(OneOrMany::into_texts).unwrap_or_default(),
            answer: self.answer,
            scorer: self.scorer,
            bin,
            length: None,
            is_ruler: false,
            max_tokens: self.max_tokens,
            answer_prefix: self.answer_prefix.unwrap_or_default(),
            schema: self.schema,
            haystack: self.haystack,
        })
    }

    fn log(self, number: usize) -> Result<CustomLine, LineFault> {
        let mut messages = read_messages(self.messages.unwrap_or_default())?;
        let answer = messages.pop().map(|message| message.content);
        Ok(CustomLine {
            number,
            // A log may call anything its id.
            id: self.id.as_ref().and_then(|id| name_of(id).ok()),
            messages,
            expected: answer.into_iter().collect(),
            answer: None,
            scorer: self.scorer,
            bin: None,
            length: None,
            is_ruler: false,
            max_tokens: None,
            answer_prefix: String::new(),
            schema: None,
            haystack: None,
        })
    }

    fn ruler(self, number: usize) -> Result<CustomLine, LineFault> {
        let Some(outputs) = self.outputs else { return Err(shape("`input` without `outputs`")) };
        let content = self.input.unwrap_or_default();
        Ok(CustomLine {
            number,
            id: None,
            messages: vec![Message { role: Role::User, content }],
            expected: outputs.into_texts(),
            answer: None,
            scorer: self.scorer,
            bin: None,
            length: self.length,
            is_ruler: true,
            max_tokens: Some(RULER_OUTPUT_TOKENS),
            answer_prefix: self.answer_prefix.unwrap_or_default(),
            schema: None,
            haystack: None,
        })
    }
}

fn shape(message: &str) -> LineFault {
    LineFault::Shape { message: message.into(), suspect: None }
}

fn malformed(error: &serde_json::Error) -> LineFault {
    let message = error.to_string();
    let message = message.rsplit_once(" at line ").map_or(message.as_str(), |(message, _)| message).to_owned();
    LineFault::Malformed { column: error.column(), message }
}

fn bin_of(length: &Length) -> Result<Bin, LineFault> {
    match length {
        Length::Tokens(tokens) => Ok(Bin(*tokens)),
        Length::Text(text) => text.parse().map_err(|message| LineFault::Invalid { key: "bin", message }),
    }
}

fn name_of(id: &Value) -> Result<String, LineFault> {
    match id {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        _ => Err(LineFault::Invalid { key: "id", message: "expected a text or a number".into() }),
    }
}

fn read_messages(messages: Vec<RawMessage>) -> Result<Vec<Message>, LineFault> {
    let read = messages.into_iter().map(|message| {
        let role = match message.role.as_str() {
            "system" | "developer" => Role::System,
            "user" => Role::User,
            "assistant" => Role::Assistant,
            other => {
                let message = format!("role `{other}` is none of system, user, assistant");
                return Err(LineFault::Invalid { key: "messages", message });
            }
        };
        let content = match message.content {
            Content::Text(text) => text,
            Content::Parts(parts) => parts.into_iter().map(|part| part.text).collect(),
        };
        Ok(Message { role, content })
    });
    read.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Result<CustomLine, LineFault> {
        CustomLine::parse(1, text.as_bytes())
    }

    #[test]
    fn the_formats_are_told_apart_by_their_keys() {
        let own = line(r#"{"id": 7, "prompt": "2+2?", "expected": "4\n", "bin": "2K", "max_tokens": 8}"#).unwrap();
        assert_eq!((own.id.as_deref(), own.bin, own.max_tokens), (Some("7"), Some(Bin(2048)), Some(8)));
        assert_eq!(own.expected, ["4"]);
        let ruler =
            line(r#"{"index": 3, "input": "Find x.", "outputs": ["a", "b"], "length": 4090, "answer_prefix": " x:"}"#);
        let ruler = ruler.unwrap();
        assert_eq!((ruler.length, ruler.answer_prefix.as_str()), (Some(4090), " x:"));
        assert_eq!(ruler.expected, ["a", "b"]);
        let log = r#"{"model": "m", "messages": [{"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Capital of France?"}]},
            {"role": "assistant", "content": "Paris."}]}"#;
        let log = line(log).unwrap();
        assert_eq!((log.messages.len(), log.messages[1].content.as_str()), (2, "Capital of France?"));
        assert_eq!(log.expected, ["Paris."]);
        let open = r#"{"messages": [{"role": "user", "content": "Hi"}], "expected": ["a", "b"]}"#;
        assert_eq!(line(open).unwrap().expected, ["a", "b"]);
    }

    #[test]
    fn what_is_wrong_is_said_and_what_was_meant() {
        let cases = [
            ("", "column 0: EOF while parsing a value", ""),
            ("{\"prompt\": \"x\",}", "column 16: trailing comma", ""),
            ("{\"prompt\": 7}", "column 12: invalid type: integer `7`, expected a string", ""),
            ("[1]", "invalid type: sequence, expected a JSON object", ""),
            (r#"{"prompt": "x", "expcted": "y"}"#, "unknown key `expcted`", "did you mean `expected`?"),
            (r#"{"promt": "x"}"#, "none of `prompt`", "did you mean `prompt`?"),
            (r#"{"question": "x"}"#, "none of `prompt`", "a line has"),
            (r#"{"prompt": "x", "length": 12}"#, "unknown key `length`", "known:"),
            (r#"{"prompt": "x", "input": "y"}"#, "more than one of", ""),
            (r#"{"input": "y"}"#, "`input` without `outputs`", ""),
            (r#"{"prompt": " ", "expected": "y"}"#, "`prompt`: nothing is asked", ""),
            (r#"{"prompt": "x", "expected": ["y", " "]}"#, "`expected`: an empty text", ""),
            (r#"{"prompt": "x", "expected": 7}"#, "expected a text or a list of texts", ""),
            (r#"{"prompt": "x", "bin": "2X"}"#, "`bin`: `2X` is not a context length", ""),
            (r#"{"prompt": "x", "max_tokens": 0}"#, "`max_tokens`: expected 1 to", ""),
            (r#"{"prompt": "x", "prompt": "y"}"#, "duplicate field `prompt`", ""),
            (r#"{"messages": [{"role": "tool", "content": "y"}]}"#, "role `tool` is none of", ""),
            (r#"{"messages": [{"role": "assistant", "content": "y"}]}"#, "`prompt`: nothing is asked", ""),
            (
                r#"{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}], "expected": "z"}"#,
                "`messages`: the last one has to be the user's",
                "",
            ),
        ];
        for (text, message, hint) in cases {
            let fault = line(text).unwrap_err();
            assert!(fault.to_string().contains(message), "{text}: {fault}");
            assert!(hint.is_empty() || fault.hints().iter().any(|line| line.contains(hint)), "{:?}", fault.hints());
        }
        assert_eq!(CustomLine::parse(1, b"{\"a\": \"\xff\"}"), Err(LineFault::NotUtf8 { byte: 8 }));
    }
}
