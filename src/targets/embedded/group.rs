//! The questions of one haystack, answered from one prefill.

use std::ops::ControlFlow;
use std::time::Instant;

use tokio::sync::mpsc::UnboundedSender;

use crate::engine::{Engine, EngineError, SequenceId, argmax};
use crate::sample::{Completion, FinishReason, Item, Timing};
use crate::targets::embedded::LoadedModel;
use crate::targets::{CancelFlag, TargetError, TargetEvent};

/// Sequences decoded in one batch: more would not speed up a few cores, and each holds its own tail of the cache.
const MAX_DECODE_BATCH: usize = 8;

/// One group at work.
pub(super) struct Group<'a> {
    pub(super) model: &'a LoadedModel,
    pub(super) engine: &'a mut Engine,
    pub(super) cancel: &'a CancelFlag,
    pub(super) events: UnboundedSender<TargetEvent>,
}

/// A question whose prompt is in the cache.
struct Asked {
    place: usize,
    sequence: SequenceId,
    prompt_tokens: u32,
    max_output_tokens: usize,
    next_token: u32,
    output: Vec<u32>,
    finished: Option<FinishReason>,
    ttft_ms: f64,
    latency_ms: f64,
    answer_nll: Option<f64>,
}

type Answer = Result<Completion, TargetError>;

impl Group<'_> {
    /// One result per item, in order. Every sequence is given back, whatever happens.
    pub(super) fn answer(&mut self, items: &[Item]) -> Vec<Answer> {
        let mut answers: Vec<Option<Answer>> = vec![None; items.len()];
        let mut prompts = Vec::new();
        for (place, item) in items.iter().enumerate() {
            match self.prompt(item) {
                Ok(ids) => prompts.push((place, ids)),
                Err(error) => answers[place] = Some(Err(error)),
            }
        }
        if let Err(error) = self.answer_prompts(items, &prompts, &mut answers) {
            for answer in answers.iter_mut().filter(|answer| answer.is_none()) {
                *answer = Some(Err(error.clone()));
            }
        }
        answers.into_iter().map(|answer| answer.expect("every place was filled above")).collect()
    }

    /// The prompt's token ids, if they fit the bin.
    fn prompt(&self, item: &Item) -> Result<Vec<u32>, TargetError> {
        let messages: Vec<(&str, &str)> = item.messages.iter().map(|m| (m.role.name(), m.content.as_str())).collect();
        let ids = self
            .model
            .tokenizer
            .encode_chat(&messages, true)
            .map_err(|error| TargetError::Tokenizer(error.to_string()))?;
        if ids.len() + item.max_output_tokens as usize > item.bin.tokens() as usize {
            return Err(TargetError::ContextOverflow {
                prompt_tokens: ids.len() as u32,
                output_tokens: item.max_output_tokens,
                bin: item.bin,
            });
        }
        Ok(ids)
    }

    fn answer_prompts(
        &mut self,
        items: &[Item],
        prompts: &[(usize, Vec<u32>)],
        answers: &mut [Option<Answer>],
    ) -> Result<(), TargetError> {
        let Some((first, _)) = prompts.first() else { return Ok(()) };
        let trunk = self.engine.start(self.model.scaling(items[*first].bin)).map_err(engine_error)?;
        let mut asked = Vec::new();
        let result = self.ask(items, prompts, trunk, &mut asked).and_then(|()| self.decode(&mut asked));
        self.engine.release(trunk);
        for question in asked {
            self.engine.release(question.sequence);
            if question.finished.is_some() {
                answers[question.place] = Some(Ok(self.completion(&question)));
            }
        }
        result
    }

    /// Prefills the common prefix once, then each question's rest on a fork of it.
    fn ask(
        &mut self,
        items: &[Item],
        prompts: &[(usize, Vec<u32>)],
        trunk: SequenceId,
        asked: &mut Vec<Asked>,
    ) -> Result<(), TargetError> {
        let shared = common_prefix(prompts);
        let total = shared + prompts.iter().map(|(_, ids)| ids.len() - shared).sum::<usize>();
        let mut started = Instant::now();
        let mut done = 0;
        if shared > 0 {
            self.prefill(trunk, &prompts[0].1[..shared], done, total)?;
            done += shared;
        }
        for (place, ids) in prompts {
            let item = &items[*place];
            let sequence = self.engine.fork(trunk).map_err(engine_error)?;
            asked.push(Asked {
                place: *place,
                sequence,
                prompt_tokens: ids.len() as u32,
                max_output_tokens: item.max_output_tokens as usize,
                next_token: 0,
                output: Vec::new(),
                finished: None,
                ttft_ms: 0.0,
                latency_ms: 0.0,
                answer_nll: None,
            });
            let question = asked.last_mut().expect("it was pushed just now");
            let logits = self.prefill(sequence, &ids[shared..], done, total)?;
            question.next_token = likeliest(&logits)?;
            question.ttft_ms = started.elapsed().as_secs_f64() * 1e3;
            question.answer_nll = self.answer_nll(sequence, &item.expected.answer)?;
            done += ids.len() - shared;
            started = Instant::now();
        }
        Ok(())
    }

    fn prefill(
        &mut self,
        sequence: SequenceId,
        ids: &[u32],
        before: usize,
        total: usize,
    ) -> Result<Vec<f32>, TargetError> {
        let (events, cancel) = (&self.events, self.cancel);
        let mut on_progress = |done: usize| {
            // The receiver lives as long as the group's future; a dropped future needs no progress.
            let _ = events.send(TargetEvent::Prefill { done: before + done, total });
            if cancel.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        self.engine.prefill(sequence, ids, &mut on_progress).map_err(engine_error)
    }

    /// Mean negative log-likelihood of the expected answer after the prompt, in nats per token; the prompt's own sequence
    /// stays as it is.
    fn answer_nll(&mut self, sequence: SequenceId, answer: &str) -> Result<Option<f64>, TargetError> {
        let ids =
            self.model.tokenizer.encode(answer, false).map_err(|error| TargetError::Tokenizer(error.to_string()))?;
        if ids.is_empty() {
            return Ok(None);
        }
        let fork = self.engine.fork(sequence).map_err(engine_error)?;
        let logprobs = self.engine.logprobs(fork, &ids, 0).map_err(engine_error);
        self.engine.release(fork);
        let values: Vec<f64> = logprobs?.iter().filter_map(|token| token.logprob).map(f64::from).collect();
        Ok((!values.is_empty()).then(|| -values.iter().sum::<f64>() / values.len() as f64))
    }

    /// Greedy decoding of all questions, in batches.
    fn decode(&mut self, asked: &mut [Asked]) -> Result<(), TargetError> {
        let mut tokens = 0;
        for batch in asked.chunks_mut(MAX_DECODE_BATCH) {
            let started = Instant::now();
            loop {
                for question in batch.iter_mut().filter(|question| question.finished.is_none()) {
                    tokens += 1;
                    question.take_next(self.model.tokenizer.eos_ids());
                    question.latency_ms = question.ttft_ms + started.elapsed().as_secs_f64() * 1e3;
                }
                let _ = self.events.send(TargetEvent::Decode { tokens });
                if self.cancel.is_cancelled() {
                    return Err(TargetError::Cancelled);
                }
                let mut open: Vec<&mut Asked> =
                    batch.iter_mut().filter(|question| question.finished.is_none()).collect();
                if open.is_empty() {
                    break;
                }
                let steps: Vec<(SequenceId, u32)> =
                    open.iter().map(|question| (question.sequence, question.next_token)).collect();
                let logits = self.engine.decode(&steps).map_err(engine_error)?;
                for (question, row) in open.iter_mut().zip(logits.chunks_exact(logits.len() / steps.len())) {
                    question.next_token = likeliest(row)?;
                }
            }
        }
        Ok(())
    }

    fn completion(&self, question: &Asked) -> Completion {
        let finish_reason = question.finished.unwrap_or(FinishReason::Unknown);
        Completion {
            text: self.model.tokenizer.decode(&question.output, true),
            prompt_tokens: question.prompt_tokens,
            output_tokens: question.output.len() as u32,
            finish_reason,
            timing: Timing { ttft_ms: question.ttft_ms, latency_ms: question.latency_ms },
            answer_nll: question.answer_nll,
            reasoning: None,
            later_answers: Vec::new(),
        }
    }
}

impl Asked {
    /// Accepts the next token, or ends the answer.
    fn take_next(&mut self, eos_ids: &[u32]) {
        self.output.push(self.next_token);
        if eos_ids.contains(&self.next_token) {
            self.finished = Some(FinishReason::Stop);
        } else if self.output.len() >= self.max_output_tokens {
            self.finished = Some(FinishReason::Length);
        }
    }
}

/// Leading ids that all prompts have in common; every prompt keeps at least one id of its own.
fn common_prefix(prompts: &[(usize, Vec<u32>)]) -> usize {
    if prompts.len() < 2 {
        return 0;
    }
    let first = &prompts[0].1;
    let agree = |ids: &[u32]| first.iter().zip(ids).take_while(|(a, b)| a == b).count();
    prompts.iter().map(|(_, ids)| agree(ids).min(ids.len() - 1)).min().unwrap_or(0)
}

/// The greedy choice.
fn likeliest(logits: &[f32]) -> Result<u32, TargetError> {
    argmax(logits).ok_or_else(|| TargetError::Engine("the logits are not numbers".into()))
}

fn engine_error(error: EngineError) -> TargetError {
    match error {
        EngineError::Interrupted => TargetError::Cancelled,
        EngineError::NotFinite { .. } => TargetError::NotFinite(error.to_string()),
        other => TargetError::Engine(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_common_prefix_leaves_every_prompt_a_token_of_its_own() {
        let prompts = |ids: &[&[u32]]| ids.iter().enumerate().map(|(i, ids)| (i, ids.to_vec())).collect::<Vec<_>>();
        assert_eq!(common_prefix(&prompts(&[&[1, 2, 3, 4], &[1, 2, 3, 5]])), 3);
        assert_eq!(common_prefix(&prompts(&[&[1, 2, 3], &[1, 2, 3]])), 2);
        assert_eq!(common_prefix(&prompts(&[&[1, 2], &[1, 2, 3]])), 1);
        assert_eq!(common_prefix(&prompts(&[&[1, 2, 3]])), 0);
    }
}
