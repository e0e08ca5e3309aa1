//! One answer → one [`SampleRecord`]: outcome, score and symptoms.

use crate::detectors;
use crate::record::samples::{self, SampleRecord};
use crate::sample::{Completion, Finding, FinishReason, Item, Message, Outcome, Role, Score};
use crate::scorers;
use crate::targets::TargetError;

/// A target may count a prompt this much differently before the item is INVALID: one template token or two …
const TOKEN_TOLERANCE: u32 = 16;

/// … or this share of the prompt.
const TOKEN_TOLERANCE_SHARE: f64 = 0.01;

/// Another tokenizer rarely differs by more than a tenth; a prompt of which less than this share is counted was cut.
const CUT_SHARE: f64 = 0.9;

/// The record of `item` on its `attempt`.
pub(super) fn record_of(item: &Item, result: Result<Completion, TargetError>, attempt: u32) -> SampleRecord {
    match result {
        Err(error) => {
            let outcome = if error.is_invalid() { Outcome::Invalid } else { Outcome::Error };
            record(item, attempt, Judged { outcome, error: Some(error.to_string()), ..Judged::default() })
        }
        Ok(completion) => {
            let judged = judge(item, &completion);
            record(item, attempt, Judged { completion: Some(completion), ..judged })
        }
    }
}

/// The record of `item` as it would be written now for the answer in `recorded`: equal to it where the item is still the same one and is
/// still judged alike. An answer that was clipped, or never came, keeps the outcome on record.
pub fn judged_again(item: &Item, recorded: &SampleRecord) -> SampleRecord {
    let whole = recorded.completion.as_ref().filter(|_| !recorded.truncated);
    let mut again = match whole {
        Some(completion) => record_of(item, Ok(completion.clone()), recorded.attempt),
        None => {
            let SampleRecord { outcome, score, findings, completion, text_hash, truncated, error, .. } =
                recorded.clone();
            let asked = record(item, recorded.attempt, Judged::default());
            SampleRecord { outcome, score, findings, completion, text_hash, truncated, error, ..asked }
        }
    };
    again.clip_texts(samples::MAX_TEXT_BYTES, samples::MAX_NOTE_BYTES);
    again
}

struct Judged {
    outcome: Outcome,
    score: Option<Score>,
    findings: Vec<Finding>,
    completion: Option<Completion>,
    error: Option<String>,
}

impl Default for Judged {
    fn default() -> Self {
        Self { outcome: Outcome::Error, score: None, findings: Vec::new(), completion: None, error: None }
    }
}

fn judge(item: &Item, completion: &Completion) -> Judged {
    let tolerance = TOKEN_TOLERANCE.max((f64::from(item.prompt_tokens) * TOKEN_TOLERANCE_SHARE) as u32);
    if completion.prompt_tokens.abs_diff(item.prompt_tokens) > tolerance {
        let (planned, counted) = (item.prompt_tokens, completion.prompt_tokens);
        let is_cut = f64::from(counted) < CUT_SHARE * f64::from(planned);
        let cause = if is_cut { "silent truncation: " } else { "" };
        let error = format!("{cause}{planned} prompt tokens were planned, {counted} were counted");
        return Judged { outcome: Outcome::Invalid, error: Some(error), ..Judged::default() };
    }
    if is_unfinished_thinking(completion) {
        return Judged { outcome: Outcome::Censored, findings: findings(item, completion), ..Judged::default() };
    }
    let score = match scorers::score(item, completion) {
        Ok(score) => score,
        Err(error) => return Judged { outcome: Outcome::Invalid, error: Some(error.to_string()), ..Judged::default() },
    };
    let findings = findings(item, completion);
    let outcome = if score.is_right() { Outcome::ValidRight } else { Outcome::ValidWrong };
    Judged { outcome, score: Some(score), findings, ..Judged::default() }
}

/// Whether the output limit came before an answer did: what was going to be answered is not known.
fn is_unfinished_thinking(completion: &Completion) -> bool {
    completion.reasoning.is_some()
        && completion.finish_reason == FinishReason::Length
        && texts(completion).any(|text| text.trim().is_empty())
}

fn texts(completion: &Completion) -> impl Iterator<Item = &str> {
    std::iter::once(&completion.text).chain(&completion.later_answers).map(String::as_str)
}

/// Symptoms of every turn's answer. In a conversation the evidence names the turn that the place counts in, and how an
/// answer ended is not known of each.
fn findings(item: &Item, completion: &Completion) -> Vec<Finding> {
    let expected = std::iter::once(&item.expected).chain(item.follow_ups.iter().map(|turn| &turn.expected));
    let first = item.messages.last().map_or("", |message| last_paragraph(&message.content));
    let questions = std::iter::once(first).chain(item.follow_ups.iter().map(|turn| turn.question.as_str()));
    let is_conversation = !item.follow_ups.is_empty();
    let mut findings = Vec::new();
    for (turn, ((text, expected), question)) in texts(completion).zip(expected).zip(questions).enumerate() {
        let answers = [expected.answer.as_str()];
        let mut context = detectors::Context {
            output: text,
            expected: &answers,
            task: Some(&item.task),
            language: Some(item.language),
            language_code: None,
            prompt: Some(question),
            finish_reason: completion.finish_reason,
            output_tokens: Some(completion.output_tokens),
            max_output_tokens: Some(item.max_output_tokens),
            baseline: None,
        };
        if is_conversation {
            context.output_tokens = None;
            if completion.finish_reason == FinishReason::Length {
                context.finish_reason = FinishReason::Unknown;
            }
        }
        let found = detectors::detect_all(&context).into_iter().map(|finding| match is_conversation {
            true => Finding { evidence: format!("turn {}: {}", turn + 1, finding.evidence), ..finding },
            false => finding,
        });
        findings.extend(found);
    }
    // The leading symptom of all turns comes first.
    findings.sort_by_key(|finding| finding.kind);
    findings
}

/// The question of a prompt, without its text: an answer may well say a sentence of the text again, and a text of 128K tokens
/// is not to be searched for every answer.
fn last_paragraph(prompt: &str) -> &str {
    prompt.trim_end().rsplit("\n\n").next().unwrap_or_default()
}

/// Everything that is asked, as messages: later questions, and the text the answer is made to begin with.
fn asked(item: &Item) -> Vec<Message> {
    let message = |role, content: &String| Message { role, content: content.clone() };
    let mut messages = item.messages.clone();
    if !item.answer_prefix.is_empty() {
        messages.push(message(Role::Assistant, &item.answer_prefix));
    }
    messages.extend(item.follow_ups.iter().map(|turn| message(Role::User, &turn.question)));
    messages
}

/// The right answer, or those of all turns under one another.
fn expected_answers(item: &Item) -> String {
    let later = item.follow_ups.iter().map(|turn| turn.expected.answer.as_str());
    std::iter::once(item.expected.answer.as_str()).chain(later).collect::<Vec<_>>().join("\n")
}

fn record(item: &Item, attempt: u32, judged: Judged) -> SampleRecord {
    let text_hash = judged.completion.as_ref().map_or_else(|| samples::text_hash(""), samples::answers_hash);
    SampleRecord {
        item_id: item.item_id.clone(),
        task: item.task.clone(),
        language: item.language,
        bin: item.bin,
        slot_percent: item.slot_percent,
        index: item.index,
        haystack_id: item.haystack_id.clone(),
        depth_percent: item.depth_percent,
        prompt_tokens: item.prompt_tokens,
        prompt_hash: samples::prompt_hash(&asked(item)),
        expected_answer: expected_answers(item),
        excerpt: item.excerpt.clone(),
        outcome: judged.outcome,
        score: judged.score,
        findings: judged.findings,
        completion: judged.completion,
        text_hash,
        truncated: false,
        error: judged.error,
        attempt,
        variant_of: item.variant_of.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::sample::{Bin, Expected, FollowUp, Gold, Language, Timing};

    fn item() -> Item {
        Item {
            item_id: "needle-1".into(),
            task: "needle".into(),
            language: Language::En,
            bin: Bin(512),
            slot_percent: 0,
            index: 0,
            haystack_id: "h".into(),
            messages: Vec::new(),
            prompt_tokens: 500,
            max_output_tokens: 8,
            depth_percent: None,
            expected: expected("7"),
            scorer: "exact_value".into(),
            excerpt: String::new(),
            follow_ups: Vec::new(),
            answer_prefix: String::new(),
            variant_of: None,
        }
    }

    fn expected(value: &str) -> Expected {
        Expected { answer: value.into(), gold: Gold::Value { value: value.into(), distractors: Vec::new() } }
    }

    fn completion(text: &str, finish_reason: FinishReason) -> Completion {
        Completion {
            text: text.into(),
            prompt_tokens: 500,
            output_tokens: 8,
            finish_reason,
            timing: Timing::default(),
            answer_nll: None,
            reasoning: None,
            later_answers: Vec::new(),
            answer_tokens: Vec::new(),
        }
    }

    #[test]
    fn values_that_are_no_numbers_make_an_item_invalid_and_a_failed_engine_an_error() {
        let record = |error| record_of(&item(), Err(error), 1);
        let broken = record(TargetError::NotFinite("layer 3 is not finite".into()));
        assert_eq!(
            (broken.outcome, broken.error.as_deref()),
            (Outcome::Invalid, Some("engine: layer 3 is not finite"))
        );
        assert_eq!(record(TargetError::Engine("cache full".into())).outcome, Outcome::Error);
        let cut = Completion { prompt_tokens: 300, ..completion("7", FinishReason::Stop) };
        let cut = record_of(&item(), Ok(cut), 1);
        assert_eq!(cut.outcome, Outcome::Invalid);
        assert!(cut.error.unwrap().starts_with("silent truncation: 500 prompt tokens"));
    }

    #[test]
    fn thinking_that_the_limit_cut_is_censored_and_an_answer_behind_it_is_scored() {
        let outcome = |text: &str, reasoning: Option<&str>, finish_reason| {
            let completion = Completion { reasoning: reasoning.map(str::to_owned), ..completion(text, finish_reason) };
            record_of(&item(), Ok(completion), 1).outcome
        };
        let thought = Some("Seven, I think. 7 7 7");
        assert_eq!(outcome("", thought, FinishReason::Length), Outcome::Censored);
        assert_eq!(outcome("7", thought, FinishReason::Length), Outcome::ValidRight);
        // An end that the model chose is its answer, and so is one without a thought.
        assert_eq!(outcome("", thought, FinishReason::Stop), Outcome::ValidWrong);
        assert_eq!(outcome("", None, FinishReason::Length), Outcome::ValidWrong);
    }

    #[test]
    fn every_turn_is_looked_at_and_named_in_the_evidence() {
        let mut item = item();
        item.scorer = "turns".into();
        item.follow_ups = vec![FollowUp { question: "And?".into(), expected: expected("8") }];
        let mut answers = completion("7", FinishReason::Length);
        answers.later_answers = vec!["and so on ".repeat(60)];
        let record = record_of(&item, Ok(answers.clone()), 1);
        assert_eq!(record.outcome, Outcome::ValidWrong);
        assert!(!record.findings.is_empty());
        assert!(record.findings.iter().all(|it| it.evidence.starts_with("turn 2: ")), "{:?}", record.findings);
        answers.later_answers = vec!["8".into()];
        let right = record_of(&item, Ok(answers), 1);
        assert_eq!((right.outcome, right.findings.len()), (Outcome::ValidRight, 0));
        assert_ne!(right.text_hash, record.text_hash, "the hash is of all answers");
        item.follow_ups[0].question = "And then?".into();
        assert_ne!(record_of(&item, Err(TargetError::Cancelled), 1).prompt_hash, right.prompt_hash);
    }

    #[test]
    fn a_sentence_of_the_text_is_no_echo_and_the_question_is_one() {
        let sentence = "The special number for the copper lantern in the old mill is 4829173.";
        let question =
            "Question: What is the special number for the copper lantern in the old mill? Answer with the number only.";
        let mut item = Item { max_output_tokens: 64, ..item() };
        item.messages = vec![Message { role: Role::User, content: format!("Text: {sentence}\n\n{question}") }];
        let kinds = |text: &str| {
            let answer = completion(text, FinishReason::Stop);
            findings(&item, &answer).iter().map(|finding| finding.kind).collect::<Vec<_>>()
        };
        assert_eq!(kinds(sentence), []);
        assert_eq!(kinds(question), [crate::sample::FindingKind::PromptEcho]);
    }
}
