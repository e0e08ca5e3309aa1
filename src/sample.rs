//! The nouns of one measurement: [`Bin`], [`Item`], [`Completion`], [`Outcome`], [`Score`], [`Finding`]. No I/O, no logic.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::units;

/// A context-length bin: the **whole** budget of a request in tokens (template + prompt + output reserve).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Bin(pub u32);

impl Bin {
    /// The budget in tokens.
    pub fn tokens(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Bin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&units::format_token_count(self.0))
    }
}

impl FromStr for Bin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match units::parse_token_count(text) {
            Some(tokens) if tokens > 0 => Ok(Self(tokens)),
            _ => Err(format!("`{text}` is not a context length such as 512, 2K or 131072")),
        }
    }
}

/// The language an item is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    /// English.
    En,
    /// Simplified Chinese.
    Zh,
}

impl Language {
    /// The tag used in suites and records.
    pub fn tag(self) -> &'static str {
        match self {
            Self::En => "en",
            Self::Zh => "zh",
        }
    }
}

/// Who speaks in a chat message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions of the operator.
    System,
    /// The question.
    User,
    /// An earlier answer.
    Assistant,
}

impl Role {
    /// The name chat templates and the OpenAI protocol use.
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }
}

/// One chat message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said.
    pub content: String,
}

/// One question, complete: what is sent, what is expected, how it is scored.
///
/// An item exists once and runs on every arm; `item_id` pairs the runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Item {
    /// `blake3(suite_version, task, language, bin, slot, index, seed)`, 32 hex digits.
    pub item_id: String,
    /// Task id, for example `needle`.
    pub task: String,
    /// Language of the text.
    pub language: Language,
    /// The context-length bin.
    pub bin: Bin,
    /// Depth slot asked for, in percent of the haystack (a design factor, not drawn).
    pub slot_percent: u8,
    /// Counts the items of one task × bin × slot.
    pub index: u32,
    /// Items with the same haystack share it: the cluster of all statistics, and the prefix that is prefilled once.
    pub haystack_id: String,
    /// What is sent. Items of one haystack start with the same text and differ in the question at the end.
    pub messages: Vec<Message>,
    /// Tokens of the rendered prompt, chat template, BOS and generation prompt included.
    pub prompt_tokens: u32,
    /// Limit for the answer.
    pub max_output_tokens: u32,
    /// Realised depth of the (first) needle in percent of the prompt's tokens; `None` where the task has no needle.
    pub depth_percent: Option<f64>,
    /// What a right answer says.
    pub expected: Expected,
    /// Name of the scorer.
    pub scorer: String,
    /// About ±200 tokens around the needle, for the report; prompts themselves are regenerated, not stored.
    pub excerpt: String,
    /// Questions asked after the first answer, in the same conversation and from the same cache.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub follow_ups: Vec<FollowUp>,
    /// Text that the answer is made to begin with; it stands after the generation prompt and is not part of the answer.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub answer_prefix: String,
    /// The item that this one repeats with another wording; `None` for every item of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant_of: Option<VariantOf>,
}

/// One more question of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FollowUp {
    /// What is asked.
    pub question: String,
    /// What a right answer says.
    pub expected: Expected,
}

/// What an item repeats, and how its question is worded differently. It is not judged: its answer is compared with the same
/// arm's answer to the original.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VariantOf {
    /// Id of the original.
    pub item_id: String,
    /// The change.
    pub perturbation: Perturbation,
}

/// A change of a question that leaves its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Perturbation {
    /// Letters of ordinary words swapped, doubled or left out.
    Typos,
    /// Capital letters where there were small ones, or the other way round.
    Case,
    /// Punctuation left out or doubled.
    Punctuation,
    /// Another wording of the same question.
    Paraphrase,
}

impl Perturbation {
    /// All, in declaration order.
    pub const ALL: [Self; 4] = [Self::Typos, Self::Case, Self::Punctuation, Self::Paraphrase];

    /// The name used in records and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Typos => "typos",
            Self::Case => "case",
            Self::Punctuation => "punctuation",
            Self::Paraphrase => "paraphrase",
        }
    }
}

/// What a right answer says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Expected {
    /// A canonical right answer: it scores exactly 1, and answer NLL is measured on it.
    pub answer: String,
    /// The facts behind it, as its scorer needs them.
    pub gold: Gold,
}

/// The facts behind an expected answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Gold {
    /// One value; `distractors` are the other keys of the text with their values (look-alikes).
    Value {
        /// The right value.
        value: String,
        /// Other keys and values of the same text.
        distractors: Vec<Distractor>,
    },
    /// `key=value` lines.
    Bindings {
        /// In the order asked.
        pairs: Vec<Binding>,
    },
    /// A JSON array of flat objects.
    Records {
        /// In the order asked; every value is a string, number or boolean.
        records: Vec<serde_json::Map<String, serde_json::Value>>,
        /// Property name → JSON type name (`string`, `integer`, `number`, `boolean`), in schema order.
        fields: Vec<(String, String)>,
    },
    /// Lines in a known order.
    Sequence {
        /// The lines, in order.
        lines: Vec<String>,
    },
    /// A passage to be reproduced.
    Span {
        /// The passage.
        text: String,
    },
    /// Values in a known order, one a line; `others` are values of the same text that are not asked for.
    Ordered {
        /// In the order asked.
        values: Vec<String>,
        /// Values that belong to other keys.
        others: Vec<String>,
    },
    /// Members in any order.
    Set {
        /// What belongs.
        members: Vec<String>,
        /// What looks like it and does not.
        decoys: Vec<String>,
    },
    /// One version of a value that was set several times.
    History {
        /// In the order of the text.
        versions: Vec<String>,
        /// Index of the right one.
        asked: usize,
    },
    /// Nothing: the key is not in the text.
    Absent {
        /// The word that says so.
        none: String,
        /// What the text does say, by key.
        present: Vec<Binding>,
    },
    /// One label of a closed set.
    Label {
        /// The right one.
        label: String,
        /// The others of the set.
        others: Vec<String>,
    },
    /// One call of one tool.
    ToolCall {
        /// The tool.
        name: String,
        /// Its arguments; every value is a string, number or boolean.
        arguments: serde_json::Map<String, serde_json::Value>,
        /// All tools on offer.
        tools: Vec<ToolSpec>,
    },
    /// Rows of a table, each to be written as a JSON object on a line of its own.
    Table {
        /// Column names, in order.
        columns: Vec<String>,
        /// Rows, in order; every row has a value for every column.
        rows: Vec<Vec<serde_json::Value>>,
    },
    /// Lines under rules of form.
    Rules {
        /// What the lines have to say, in order.
        values: Vec<String>,
        /// What they have to look like.
        rules: Vec<FormatRule>,
    },
    /// Facts, each with the source it stands in.
    Citations {
        /// In the order asked.
        facts: Vec<CitedFact>,
        /// Names of all sources of the text, in order.
        sources: Vec<String>,
    },
    /// A chain of steps: what comes after a wrong one is lost.
    Steps {
        /// What each line has to say, in order.
        steps: Vec<String>,
    },
    /// Words repeated with one change.
    Edit {
        /// The words as they stand in the text.
        original: Vec<String>,
        /// The words as they have to be written.
        edited: Vec<String>,
        /// Index of the word that differs.
        place: usize,
    },
    /// JSON under a schema.
    Schema {
        /// A JSON Schema.
        schema: serde_json::Value,
        /// The right value, where there is only one.
        expected: Option<serde_json::Value>,
    },
}

/// A tool on offer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolSpec {
    /// The name.
    pub name: String,
    /// Argument name → JSON type name, in order.
    pub arguments: Vec<(String, String)>,
}

/// A fact with its source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CitedFact {
    /// What the value belongs to.
    pub key: String,
    /// The value.
    pub value: String,
    /// Name of the source.
    pub source: String,
}

/// A rule that an output can be checked against, line by line or as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "rule", rename_all = "snake_case")]
pub enum FormatRule {
    /// Exactly so many content lines, the end marker not counted.
    LineCount {
        /// How many.
        lines: u32,
    },
    /// Every line begins with this.
    LinePrefix {
        /// The prefix.
        prefix: String,
    },
    /// Every line ends in this.
    LineSuffix {
        /// The suffix.
        suffix: String,
    },
    /// Every line begins with its number, counted from 1, and this separator.
    Numbered {
        /// Between number and text.
        separator: String,
    },
    /// This character stands nowhere.
    Banned {
        /// The character.
        character: char,
    },
    /// The last line is this and nothing else.
    EndMarker {
        /// The marker.
        marker: String,
    },
    /// Letters are of this case: `true` for capitals.
    Capitals {
        /// Capitals or small letters.
        upper: bool,
    },
}

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binding {
    /// The key.
    pub key: String,
    /// The value.
    pub value: String,
}

/// Another key of the text, whose value would be a confusion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Distractor {
    /// The other key.
    pub key: String,
    /// Its value.
    pub value: String,
    /// Entries between it and the right one, negative before.
    pub distance: i64,
}

/// Why generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model ended its answer.
    Stop,
    /// The output limit was reached.
    Length,
    /// A server's filter.
    ContentFilter,
    /// Not said.
    Unknown,
}

/// Times of one request, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// Time to the first token. For items that share a prefill: the whole prefill's time, counted for its first item only
    /// (the others have their own question's share).
    pub ttft_ms: f64,
    /// Whole request.
    pub latency_ms: f64,
}

impl Timing {
    /// Time per output token after the first, vLLM's definition: `(latency − ttft) / (output_tokens − 1)`.
    pub fn tpot_ms(&self, output_tokens: u32) -> Option<f64> {
        (output_tokens > 1).then(|| (self.latency_ms - self.ttft_ms) / f64::from(output_tokens - 1))
    }
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// The text, without special tokens.
    pub text: String,
    /// Prompt tokens as the target counted them.
    pub prompt_tokens: u32,
    /// Tokens generated, the end token included where the target counts it.
    pub output_tokens: u32,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Times.
    pub timing: Timing,
    /// Mean negative log-likelihood of the expected answer (teacher-forced), in nats per token, where the target can tell.
    pub answer_nll: Option<f64>,
    /// What the model thought before it answered, where it thinks aloud; not part of `text`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// Answers to the item's follow-ups, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub later_answers: Vec<String>,
    /// What the target held likely at each of the first [`MAX_ANSWER_POSITIONS`] tokens of the expected answer (teacher-forced),
    /// where it can tell.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub answer_tokens: Vec<LikelyTokens>,
}

/// Positions of the expected answer of which likely tokens are kept: most answers are shorter, and 64 lists take some 10 KB.
pub const MAX_ANSWER_POSITIONS: usize = 64;

/// Tokens kept per position: as many as servers give at most in `top_logprobs`, and nearly all of the mass wherever an answer
/// can be told.
pub const MAX_LIKELY_TOKENS: usize = 20;

/// Tokens less likely than this are not kept: one of them can add no more than 1e-4 nats to a divergence of 1.
const LEAST_LIKELY: f64 = 1e-5;

/// Log-probabilities are kept in steps of this many nats, so that a record is short and the same bytes everywhere.
const NAT_STEP: f64 = 1e-5;

/// The likeliest tokens at one position, likeliest first: id and negative log-probability in steps of 1e-5 nats. What is left
/// of the mass is one bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LikelyTokens(Vec<(u32, u32)>);

impl LikelyTokens {
    /// Out of ids and log-probabilities in nats, likeliest first; keeps [`MAX_LIKELY_TOKENS`] of them and none that is next to
    /// impossible, but always the first.
    pub fn new(logprobs: impl IntoIterator<Item = (u32, f32)>) -> Self {
        let kept = logprobs
            .into_iter()
            .enumerate()
            .take(MAX_LIKELY_TOKENS)
            .take_while(|(place, (_, logprob))| *place == 0 || f64::from(*logprob) >= LEAST_LIKELY.ln());
        // Rounding in the sum of a softmax may lift a certain token above 0.
        Self(kept.map(|(_, (id, logprob))| (id, (f64::from(-logprob).max(0.0) / NAT_STEP).round() as u32)).collect())
    }

    /// Ids with their probabilities, likeliest first.
    pub fn shares(&self) -> impl Iterator<Item = (u32, f64)> + '_ {
        self.0.iter().map(|(id, steps)| (*id, (-f64::from(*steps) * NAT_STEP).exp()))
    }

    /// The likeliest id.
    pub fn likeliest(&self) -> Option<u32> {
        self.0.first().map(|(id, _)| *id)
    }

    /// Tokens kept.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What became of an item on an arm. Only the first two are scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Scored exactly 1.
    ValidRight,
    /// Scored less.
    ValidWrong,
    /// Cannot be judged: unfinished thinking, or both arms at the output limit.
    Censored,
    /// The measurement is broken (token count differs, truncated prompt).
    Invalid,
    /// Infrastructure failed.
    Error,
}

/// What a scorer says of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// 0 to 1; *right* is exactly 1.
    pub value: f64,
    /// What was taken out of the answer and judged.
    pub extracted: String,
    /// Named faults, most telling first; empty when right.
    pub faults: Vec<Fault>,
    /// Scores of the turns of a conversation, in order; empty for a single question.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub turn_scores: Vec<f64>,
}

impl Score {
    /// Right means exactly 1.
    pub fn is_right(&self) -> bool {
        self.value == 1.0
    }
}

/// A named fault of an answer, with what was seen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// The kind.
    pub kind: FaultKind,
    /// What was seen, short: `4711 belongs to key ar-29, 3 entries away`.
    pub note: String,
}

/// The ways an answer can be wrong. `label()` is what people read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// Nothing was answered.
    Empty,
    /// A value that is not in the text.
    WrongValue,
    /// Some digits differ, are transposed, or a repeat was dropped.
    NearMiss,
    /// The value of another key.
    OtherKey,
    /// Right values bound to the wrong keys.
    SwappedBindings,
    /// Something asked for is not there.
    Missing,
    /// Something not asked for is there.
    Extra,
    /// Out of order.
    OutOfOrder,
    /// Given more than once.
    Duplicated,
    /// Not JSON.
    InvalidJson,
    /// JSON of another shape.
    SchemaViolation,
    /// A field has another value.
    WrongField,
    /// A copy that departs from the original.
    Diverged,
    /// Text around the answer that was asked not to be there.
    ExtraText,
    /// A value that was replaced later, or not yet set.
    Stale,
    /// A value where the text has none.
    Invented,
    /// The right value with the source of another.
    WrongSource,
    /// Another tool.
    WrongTool,
    /// A step that does not follow from the ones before.
    WrongStep,
    /// A rule of form that was not kept.
    BrokenRule,
    /// The change that was asked for is not there.
    NotEdited,
}

impl FaultKind {
    /// All kinds, in declaration order.
    pub const ALL: [Self; 21] = [
        Self::Empty,
        Self::WrongValue,
        Self::NearMiss,
        Self::OtherKey,
        Self::SwappedBindings,
        Self::Missing,
        Self::Extra,
        Self::OutOfOrder,
        Self::Duplicated,
        Self::InvalidJson,
        Self::SchemaViolation,
        Self::WrongField,
        Self::Diverged,
        Self::ExtraText,
        Self::Stale,
        Self::Invented,
        Self::WrongSource,
        Self::WrongTool,
        Self::WrongStep,
        Self::BrokenRule,
        Self::NotEdited,
    ];

    /// In words, for tables.
    pub fn label(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::WrongValue => "wrong value",
            Self::NearMiss => "near miss",
            Self::OtherKey => "value of another key",
            Self::SwappedBindings => "swapped values",
            Self::Missing => "missing",
            Self::Extra => "extra",
            Self::OutOfOrder => "out of order",
            Self::Duplicated => "duplicated",
            Self::InvalidJson => "invalid JSON",
            Self::SchemaViolation => "schema violation",
            Self::WrongField => "wrong field",
            Self::Diverged => "diverged",
            Self::ExtraText => "extra text",
            Self::Stale => "outdated value",
            Self::Invented => "invented",
            Self::WrongSource => "wrong source",
            Self::WrongTool => "wrong tool",
            Self::WrongStep => "wrong step",
            Self::BrokenRule => "broken rule",
            Self::NotEdited => "change left out",
        }
    }
}

/// A symptom of degradation, whatever the score. Declared in order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// Loops, doubled tokens, whitespace runs.
    Repetition,
    /// Replacement characters, leaked control tokens, mojibake.
    Garbage,
    /// Stopped before the end.
    Truncation,
    /// Order lost.
    Scrambled,
    /// Another language.
    LanguageDrift,
    /// Another format.
    FormatDrift,
    /// About something else.
    OffTopic,
    /// The prompt again.
    PromptEcho,
}

impl FindingKind {
    /// All kinds in order of precedence.
    pub const ALL: [Self; 8] = [
        Self::Repetition,
        Self::Garbage,
        Self::Truncation,
        Self::Scrambled,
        Self::LanguageDrift,
        Self::FormatDrift,
        Self::OffTopic,
        Self::PromptEcho,
    ];

    /// The name used in records and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Repetition => "repetition",
            Self::Garbage => "garbage",
            Self::Truncation => "truncation",
            Self::Scrambled => "scrambled",
            Self::LanguageDrift => "language_drift",
            Self::FormatDrift => "format_drift",
            Self::OffTopic => "off_topic",
            Self::PromptEcho => "prompt_echo",
        }
    }
}

/// What a detector saw in an output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// The symptom.
    pub kind: FindingKind,
    /// 0 (barely) to 1 (the whole output).
    pub severity: f64,
    /// First byte of the place, in the output.
    pub start: usize,
    /// One past its last byte.
    pub end: usize,
    /// What was seen, for people: `period of 7 tokens, 23 copies, 81 % of the output`.
    pub evidence: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn likely_tokens_are_the_first_twenty_that_are_likely_at_all() {
        let flat = LikelyTokens::new((0..49_152).map(|id| (id, -5.0)));
        assert_eq!((flat.len(), flat.likeliest()), (MAX_LIKELY_TOKENS, Some(0)));
        let sure = LikelyTokens::new([(7, 3e-8), (8, -11.4), (9, -11.6)]);
        assert_eq!(sure.shares().map(|(id, _)| id).collect::<Vec<_>>(), [7, 8], "ln 1e-5 is −11.51");
        assert_eq!(sure.shares().next(), Some((7, 1.0)), "no share is above 1");
        let text = serde_json::to_string(&sure).unwrap();
        assert_eq!(text, "[[7,0],[8,1140000]]");
        assert_eq!(serde_json::from_str::<LikelyTokens>(&text).unwrap(), sure);
        // Even the likeliest of a very large vocabulary may be unlikely.
        assert_eq!(LikelyTokens::new([(1, -12.0), (2, -12.0)]).len(), 1);
    }

    #[test]
    fn bins_read_and_print_as_people_say_them() {
        assert_eq!("8k".parse::<Bin>(), Ok(Bin(8192)));
        assert_eq!(Bin(131_072).to_string(), "128K");
        assert!("0".parse::<Bin>().is_err());
        assert!("eight".parse::<Bin>().is_err());
    }

    #[test]
    fn tpot_needs_two_tokens() {
        let timing = Timing { ttft_ms: 100.0, latency_ms: 190.0 };
        assert_eq!(timing.tpot_ms(10), Some(10.0));
        assert_eq!(timing.tpot_ms(1), None);
    }
}
