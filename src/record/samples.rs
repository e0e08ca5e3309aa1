//! One line of `samples.jsonl`.

use serde::{Deserialize, Serialize};

use crate::sample::{Bin, Completion, Finding, Language, Message, Outcome, Score, VariantOf};

/// One item's result on one arm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SampleRecord {
    /// Pairs the arms.
    pub item_id: String,
    /// Task id.
    pub task: String,
    /// Language.
    pub language: Language,
    /// Bin.
    pub bin: Bin,
    /// Depth slot asked for.
    pub slot_percent: u8,
    /// Counts items of one task × bin × slot.
    pub index: u32,
    /// The cluster.
    pub haystack_id: String,
    /// Realised depth.
    pub depth_percent: Option<f64>,
    /// Tokens of the prompt as generated.
    pub prompt_tokens: u32,
    /// BLAKE3 of the rendered messages: equal in every arm.
    pub prompt_hash: String,
    /// The canonical right answer; those of a conversation under one another.
    pub expected_answer: String,
    /// ±200 tokens around the needle.
    pub excerpt: String,
    /// What became of it.
    pub outcome: Outcome,
    /// Present for the two valid outcomes.
    pub score: Option<Score>,
    /// Symptoms.
    pub findings: Vec<Finding>,
    /// The answer, clipped to [`MAX_TEXT_BYTES`]; `None` when there was an error.
    pub completion: Option<Completion>,
    /// BLAKE3 of the whole answer, see [`answers_hash`].
    pub text_hash: String,
    /// Whether an answer of `completion` was clipped.
    pub truncated: bool,
    /// The error, where there was one.
    pub error: Option<String>,
    /// Counts from 1; a later attempt supersedes an earlier one.
    pub attempt: u32,
    /// The item that this one repeats with another wording; such samples are compared with their original, not judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant_of: Option<VariantOf>,
}

/// Longest answer text kept in a record: a 2,048-token answer is about 8 KiB, so this loses only runaway output.
pub const MAX_TEXT_BYTES: usize = 256 * 1024;

/// Most bytes kept of each of the other texts (extracted answer, note, evidence, excerpt, error): shown, never judged again.
pub const MAX_NOTE_BYTES: usize = 32 * 1024;

/// Faults and findings kept per sample: more of them say nothing new.
const MAX_NOTES: usize = 64;

/// Fields of a sample that this version knows; a newer minor format may have more.
pub(crate) const FIELDS: &[&str] = &[
    "item_id",
    "task",
    "language",
    "bin",
    "slot_percent",
    "index",
    "haystack_id",
    "depth_percent",
    "prompt_tokens",
    "prompt_hash",
    "expected_answer",
    "excerpt",
    "outcome",
    "score",
    "findings",
    "completion",
    "text_hash",
    "truncated",
    "error",
    "attempt",
    "variant_of",
];

/// The longest prefix of `text` with at most `max_bytes` bytes that ends between two characters.
pub fn clip(text: &str, max_bytes: usize) -> &str {
    &text[..text.floor_char_boundary(max_bytes)]
}

/// BLAKE3 of an answer, 64 hex digits. Take it before clipping.
pub fn text_hash(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex().to_string()
}

/// [`text_hash`] of an answer, and where there are later ones of all of them, each with its length.
pub fn answers_hash(completion: &Completion) -> String {
    if completion.later_answers.is_empty() {
        return text_hash(&completion.text);
    }
    let mut hasher = blake3::Hasher::new();
    for text in std::iter::once(&completion.text).chain(&completion.later_answers) {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    }
    hasher.finalize().to_hex().to_string()
}

/// BLAKE3 over role and content of every message, each with its length, so that no two prompts share an encoding.
pub fn prompt_hash(messages: &[Message]) -> String {
    let mut hasher = blake3::Hasher::new();
    for message in messages {
        for part in [message.role.name(), &message.content] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
    }
    hasher.finalize().to_hex().to_string()
}

impl SampleRecord {
    /// Cuts every text to its limit and sets `truncated` when the answer itself was cut.
    /// Places of findings keep counting in the whole answer.
    pub fn clip_texts(&mut self, max_text_bytes: usize, max_note_bytes: usize) {
        let cut = |text: &mut String, limit: usize| {
            let kept = clip(text, limit).len();
            let shorter = kept < text.len();
            text.truncate(kept);
            shorter
        };
        if let Some(completion) = &mut self.completion {
            self.truncated |= cut(&mut completion.text, max_text_bytes);
            // All later answers together may take as much as the first.
            let each = max_text_bytes / completion.later_answers.len().max(1);
            for answer in &mut completion.later_answers {
                self.truncated |= cut(answer, each);
            }
            if let Some(reasoning) = &mut completion.reasoning {
                cut(reasoning, max_text_bytes);
            }
        }
        cut(&mut self.excerpt, max_note_bytes);
        if let Some(error) = &mut self.error {
            cut(error, max_note_bytes);
        }
        if let Some(score) = &mut self.score {
            score.faults.truncate(MAX_NOTES);
            cut(&mut score.extracted, max_note_bytes);
            for fault in &mut score.faults {
                cut(&mut fault.note, max_note_bytes / MAX_NOTES);
            }
        }
        self.findings.truncate(MAX_NOTES);
        for finding in &mut self.findings {
            cut(&mut finding.evidence, max_note_bytes / MAX_NOTES);
        }
    }
}

/// Whether a sample agrees with itself: a score exactly where the outcome is one, *right* only at 1, every number a number.
///
/// JSON has no NaN: it would come back as nothing, and a broken measurement as a missing one.
pub(crate) fn check(sample: &SampleRecord) -> Result<(), String> {
    let is_score = matches!(sample.outcome, Outcome::ValidRight | Outcome::ValidWrong);
    match &sample.score {
        Some(_) if !is_score => return Err(format!("outcome {:?} with a score", sample.outcome)),
        None if is_score => return Err(format!("outcome {:?} without a score", sample.outcome)),
        Some(score) if !(0.0..=1.0).contains(&score.value) => return Err(format!("a score of {}", score.value)),
        Some(score) if sample.outcome == Outcome::ValidRight && !score.is_right() => {
            return Err(format!("right with a score of {}", score.value));
        }
        _ => {}
    }
    if is_score && sample.completion.is_none() {
        return Err("a score without an answer".into());
    }
    if sample.attempt == 0 {
        return Err("attempt 0, they count from 1".into());
    }
    let timing = sample.completion.as_ref().map(|completion| completion.timing).unwrap_or_default();
    let answer_nll = sample.completion.as_ref().and_then(|completion| completion.answer_nll);
    let numbers = [
        ("ttft_ms", Some(timing.ttft_ms)),
        ("latency_ms", Some(timing.latency_ms)),
        ("answer_nll", answer_nll),
        ("depth_percent", sample.depth_percent),
    ];
    let severities = sample.findings.iter().map(|finding| ("severity", Some(finding.severity)));
    for (name, value) in numbers.into_iter().chain(severities) {
        if value.is_some_and(|value| !value.is_finite()) {
            return Err(format!("{name} is not a number"));
        }
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::sample::{FinishReason, Role, Timing};

    pub(crate) fn sample(index: u32, text: &str) -> SampleRecord {
        SampleRecord {
            item_id: format!("{:032x}", u128::from(index) * 0x9e37_79b9_7f4a_7c15),
            task: "needle".into(),
            language: Language::En,
            bin: Bin(512),
            slot_percent: 50,
            index,
            haystack_id: "h".into(),
            depth_percent: Some(49.7),
            prompt_tokens: 470,
            prompt_hash: "p".into(),
            expected_answer: "4829173".into(),
            excerpt: "…".into(),
            outcome: Outcome::ValidRight,
            score: Some(Score { value: 1.0, extracted: "4829173".into(), faults: vec![], turn_scores: vec![] }),
            findings: vec![],
            completion: Some(Completion {
                text: text.into(),
                prompt_tokens: 470,
                output_tokens: 8,
                finish_reason: FinishReason::Stop,
                timing: Timing { ttft_ms: 12.5, latency_ms: 40.0 },
                answer_nll: Some(0.125),
                reasoning: None,
                later_answers: Vec::new(),
                answer_tokens: Vec::new(),
            }),
            text_hash: text_hash(text),
            truncated: false,
            error: None,
            attempt: 1,
            variant_of: Some(crate::sample::VariantOf {
                item_id: "o".into(),
                perturbation: crate::sample::Perturbation::Typos,
            }),
        }
    }

    #[test]
    fn the_known_fields_are_those_of_the_struct() {
        let value = serde_json::to_value(sample(1, "x")).unwrap();
        let mut names: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
        let mut known = FIELDS.to_vec();
        names.sort_unstable();
        known.sort_unstable();
        assert_eq!(names, known);
    }

    #[test]
    fn clipping_never_cuts_a_character() {
        assert_eq!(clip("上下文", 7), "上下");
        assert_eq!(clip("abc", 3), "abc");
        assert_eq!(clip("上", 2), "");
        let mut long = sample(1, &"文".repeat(10));
        long.clip_texts(10, 1024);
        assert_eq!(long.completion.as_ref().unwrap().text, "文文文");
        assert!(long.truncated);
        assert_eq!(long.text_hash, text_hash(&"文".repeat(10)));
        let mut turns = sample(1, "文");
        let completion = turns.completion.as_mut().unwrap();
        completion.later_answers = vec!["文".repeat(10), "x".into()];
        completion.reasoning = Some("文".repeat(10));
        turns.clip_texts(20, 1024);
        let completion = turns.completion.unwrap();
        assert_eq!((completion.later_answers, turns.truncated), (vec!["文文文".into(), "x".into()], true));
        assert_eq!(completion.reasoning.map(|text| text.chars().count()), Some(6));
    }

    #[test]
    fn prompts_that_join_to_the_same_text_have_different_hashes() {
        let message = |content: &str| Message { role: Role::User, content: content.into() };
        assert_ne!(prompt_hash(&[message("ab"), message("c")]), prompt_hash(&[message("a"), message("bc")]));
    }

    #[test]
    fn contradictions_are_named() {
        let good = sample(1, "4829173");
        assert_eq!(check(&good), Ok(()));
        type Break = fn(&mut SampleRecord);
        let broken: [(&str, Break); 8] = [
            ("right with a score of 0.5", |s| s.score.as_mut().unwrap().value = 0.5),
            ("a score of NaN", |s| s.score.as_mut().unwrap().value = f64::NAN),
            ("outcome Error with a score", |s| s.outcome = Outcome::Error),
            ("outcome ValidRight without a score", |s| s.score = None),
            ("a score without an answer", |s| s.completion = None),
            ("attempt 0, they count from 1", |s| s.attempt = 0),
            ("answer_nll is not a number", |s| s.completion.as_mut().unwrap().answer_nll = Some(f64::INFINITY)),
            ("ttft_ms is not a number", |s| s.completion.as_mut().unwrap().timing.ttft_ms = f64::NAN),
        ];
        for (reason, break_it) in broken {
            let mut sample = good.clone();
            break_it(&mut sample);
            assert_eq!(check(&sample), Err(reason.to_string()));
        }
    }
}
