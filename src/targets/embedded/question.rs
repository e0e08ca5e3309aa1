//! One question whose prompt is in the cache, through all turns of its conversation.

use crate::engine::SequenceId;
use crate::sample::{Completion, FinishReason, Item, LikelyTokens, Timing};
use crate::targets::embedded::conversation::Bridge;
use crate::targets::thinking;
use crate::tokenizer::Tokenizer;

/// Ids at the end of a prompt by which it is known whether the template opened a thinking tag.
const PROMPT_END: usize = 16;

/// A question at work.
pub(super) struct Asked {
    /// Place of its item in the group.
    pub(super) place: usize,
    pub(super) sequence: SequenceId,
    /// Fork in front of what the history will not have, where another turn follows.
    pub(super) history: Option<SequenceId>,
    /// How another turn follows.
    pub(super) bridge: Option<Bridge>,
    pub(super) prompt_tokens: u32,
    /// Limit of the current answer.
    pub(super) limit: usize,
    /// Chosen and not yet in the cache.
    pub(super) next_token: u32,
    /// The current answer.
    output: Vec<u32>,
    /// The last ids read in front of it.
    prompt_end: Vec<u32>,
    /// The answers of all turns so far.
    pub(super) answers: Vec<String>,
    reasoning: Vec<String>,
    finish_reason: FinishReason,
    output_tokens: u32,
    pub(super) ttft_ms: f64,
    pub(super) latency_ms: f64,
    pub(super) answer_nll: Option<f64>,
    pub(super) answer_tokens: Vec<LikelyTokens>,
}

/// How an answer ended.
pub(super) struct Ended {
    /// The last token where it is part of the answer and not yet in the cache.
    pub(super) last_token: Option<u32>,
    /// Whether the model thought aloud.
    pub(super) has_reasoning: bool,
}

impl Asked {
    pub(super) fn new(place: usize, sequence: SequenceId, prompt_tokens: u32) -> Self {
        Self {
            place,
            sequence,
            history: None,
            bridge: None,
            prompt_tokens,
            limit: 0,
            next_token: 0,
            output: Vec::new(),
            prompt_end: Vec::new(),
            answers: Vec::new(),
            reasoning: Vec::new(),
            finish_reason: FinishReason::Stop,
            output_tokens: 0,
            ttft_ms: 0.0,
            latency_ms: 0.0,
            answer_nll: None,
            answer_tokens: Vec::new(),
        }
    }

    /// A new answer begins behind `ids`.
    pub(super) fn begin(&mut self, ids: &[u32], first_token: u32, limit: usize) {
        self.prompt_end = ids[ids.len().saturating_sub(PROMPT_END)..].to_vec();
        self.next_token = first_token;
        self.limit = limit;
        self.output.clear();
    }

    /// Takes the chosen token; says how the answer ended where it did.
    pub(super) fn take_next(&mut self, tokenizer: &Tokenizer) -> Option<Ended> {
        self.output.push(self.next_token);
        self.output_tokens += 1;
        let is_end = tokenizer.eos_ids().contains(&self.next_token);
        if !is_end && self.output.len() < self.limit {
            return None;
        }
        if !is_end {
            self.finish_reason = FinishReason::Length;
        }
        let parted = thinking::part(tokenizer, &self.prompt_end, &self.output);
        let has_reasoning = parted.reasoning.is_some();
        self.reasoning.extend(parted.reasoning);
        self.answers.push(parted.answer);
        Some(Ended { last_token: (!is_end).then_some(self.next_token), has_reasoning })
    }

    /// The conversation so far as `(role, content)`, with the question of the next turn at its end.
    pub(super) fn messages<'a>(&'a self, item: &'a Item) -> Vec<(&'static str, String)> {
        let mut messages: Vec<(&'static str, String)> =
            item.messages.iter().map(|message| (message.role.name(), message.content.clone())).collect();
        for (turn, (answer, follow_up)) in self.answers.iter().zip(&item.follow_ups).enumerate() {
            messages.push(("assistant", self.whole_answer(item, turn, answer)));
            messages.push(("user", follow_up.question.clone()));
        }
        messages
    }

    /// An answer with the text it was made to begin with.
    pub(super) fn whole_answer(&self, item: &Item, turn: usize, answer: &str) -> String {
        if turn == 0 { format!("{}{answer}", item.answer_prefix) } else { answer.to_owned() }
    }

    pub(super) fn completion(mut self) -> Completion {
        let text = if self.answers.is_empty() { String::new() } else { self.answers.remove(0) };
        Completion {
            text,
            prompt_tokens: self.prompt_tokens,
            output_tokens: self.output_tokens,
            finish_reason: self.finish_reason,
            timing: Timing { ttft_ms: self.ttft_ms, latency_ms: self.latency_ms },
            answer_nll: self.answer_nll,
            reasoning: (!self.reasoning.is_empty()).then(|| self.reasoning.join("\n\n")),
            later_answers: self.answers,
            answer_tokens: self.answer_tokens,
        }
    }
}
