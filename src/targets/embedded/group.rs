//! The questions of one haystack, answered from one prefill.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use crate::engine::{Engine, EngineError, SequenceId, argmax};
use crate::sample::{Completion, Item, LikelyTokens, MAX_ANSWER_POSITIONS, MAX_LIKELY_TOKENS};
use crate::targets::embedded::LoadedModel;
use crate::targets::embedded::conversation::Bridge;
use crate::targets::embedded::question::{Asked, Ended};
use crate::targets::{CancelFlag, TargetError, TargetEvent};

/// Blocks of a question beside those of its own text: the shared block it is forked from is copied when it writes, once for
/// itself, once for the fork that measures its likelihood and once for the one that keeps its history, and each may begin
/// another.
const FORK_BLOCKS: usize = 6;

/// What comes back for an item.
pub(super) type Answer = Result<Completion, TargetError>;

/// A group of items with the channels to who asked.
pub(super) struct Job {
    pub(super) items: Vec<Item>,
    pub(super) cancel: Arc<CancelFlag>,
    pub(super) events: UnboundedSender<TargetEvent>,
    pub(super) reply: oneshot::Sender<Vec<Answer>>,
}

/// One group at work.
pub(super) struct Group<'m> {
    model: &'m LoadedModel,
    job: Job,
    /// Place of an item and the ids of its prompt, where they fit the bin.
    prompts: Vec<(usize, Vec<u32>)>,
    answers: Vec<Option<Answer>>,
    asked: Vec<Asked>,
    /// Generated so far.
    tokens: usize,
    decode_started: Option<Instant>,
}

impl<'m> Group<'m> {
    /// Encodes the prompts; nothing is computed yet.
    pub(super) fn new(model: &'m LoadedModel, job: Job) -> Self {
        let mut answers: Vec<Option<Answer>> = vec![None; job.items.len()];
        let mut prompts = Vec::new();
        for (place, item) in job.items.iter().enumerate() {
            match prompt(model, item) {
                Ok(ids) => prompts.push((place, ids)),
                Err(error) => answers[place] = Some(Err(error)),
            }
        }
        Self { model, job, prompts, answers, asked: Vec::new(), tokens: 0, decode_started: None }
    }

    /// The most blocks of the cache that the group can hold at once.
    pub(super) fn most_blocks(&self, block_tokens: usize) -> usize {
        let shared = common_prefix(&self.prompts);
        let own = self.prompts.iter().map(|(place, _)| {
            let longest = self.job.items[*place].bin.tokens() as usize;
            longest.saturating_sub(shared).div_ceil(block_tokens) + FORK_BLOCKS
        });
        shared.div_ceil(block_tokens) + own.sum::<usize>()
    }

    /// Whether nobody waits for the answers any more.
    pub(super) fn is_abandoned(&self) -> bool {
        self.job.reply.is_closed()
    }

    /// Whether every item has its answer.
    pub(super) fn is_done(&self) -> bool {
        self.answers.iter().all(Option::is_some)
    }

    /// Hands the answers over, one per item, in order.
    pub(super) fn reply(self) {
        let answers =
            self.answers.into_iter().map(|answer| answer.expect("a group is over when every place is filled"));
        // Who asked may be gone: then nobody misses the answers.
        let _ = self.job.reply.send(answers.collect());
    }

    /// Prefills the prompts. On an error nothing of the group is left in the cache.
    pub(super) fn start(&mut self, engine: &mut Engine) {
        let Some((first, _)) = self.prompts.first() else { return };
        let scaling = self.model.scaling(self.job.items[*first].bin);
        let result = engine.start(scaling).map_err(engine_error).and_then(|trunk| {
            let asked = self.ask(engine, trunk);
            engine.release(trunk);
            asked
        });
        if let Err(error) = result {
            self.fail(engine, &error);
        }
    }

    /// Forgets what was computed, to be started again.
    pub(super) fn reset(&mut self, engine: &mut Engine) {
        self.release(engine);
        for (place, _) in &self.prompts {
            self.answers[*place] = None;
        }
        self.tokens = 0;
        self.decode_started = None;
    }

    /// Every open item fails with `error`.
    pub(super) fn fail(&mut self, engine: &mut Engine, error: &TargetError) {
        self.release(engine);
        for answer in self.answers.iter_mut().filter(|answer| answer.is_none()) {
            *answer = Some(Err(error.clone()));
        }
    }

    fn release(&mut self, engine: &mut Engine) {
        for question in self.asked.drain(..) {
            engine.release(question.sequence);
            question.history.into_iter().for_each(|history| engine.release(history));
        }
    }

    /// Prefills the common prefix once, then each question's rest on a fork of it.
    fn ask(&mut self, engine: &mut Engine, trunk: SequenceId) -> Result<(), TargetError> {
        let prompts = std::mem::take(&mut self.prompts);
        let result = self.ask_prompts(engine, trunk, &prompts);
        self.prompts = prompts;
        result
    }

    fn ask_prompts(
        &mut self,
        engine: &mut Engine,
        trunk: SequenceId,
        prompts: &[(usize, Vec<u32>)],
    ) -> Result<(), TargetError> {
        let shared = common_prefix(prompts);
        let total = shared + prompts.iter().map(|(_, ids)| ids.len() - shared).sum::<usize>();
        let mut started = Instant::now();
        let mut done = 0;
        if shared > 0 {
            self.prefill(engine, trunk, &prompts[0].1[..shared], Some((done, total)))?;
            done += shared;
        }
        for (place, ids) in prompts {
            let sequence = engine.fork(trunk).map_err(engine_error)?;
            self.asked.push(Asked::new(*place, sequence, ids.len() as u32));
            let at = self.asked.len() - 1;
            self.read_turn(engine, at, &ids[shared..], Some((done, total)))?;
            let answer = self.job.items[*place].expected.answer.clone();
            let (answer_nll, answer_tokens) = self.expected_answer(engine, sequence, &answer)?;
            let question = &mut self.asked[at];
            question.ttft_ms = started.elapsed().as_secs_f64() * 1e3;
            question.answer_nll = answer_nll;
            question.answer_tokens = answer_tokens;
            done += ids.len() - shared;
            started = Instant::now();
        }
        Ok(())
    }

    /// Reads `ids` behind the sequence of question `at`, up to the beginning of its next answer.
    fn read_turn(
        &mut self,
        engine: &mut Engine,
        at: usize,
        ids: &[u32],
        progress: Option<(usize, usize)>,
    ) -> Result<(), TargetError> {
        let tokenizer = &self.model.tokenizer;
        let question = &self.asked[at];
        let (sequence, turn) = (question.sequence, question.answers.len());
        let item = &self.job.items[question.place];
        let bridge = match item.follow_ups.get(turn) {
            None => None,
            Some(next) => {
                let messages = question.messages(item);
                let messages: Vec<(&str, &str)> =
                    messages.iter().map(|(role, content)| (*role, content.as_str())).collect();
                Some(Bridge::new(tokenizer, &messages, &next.question)?)
            }
        };
        let prefix = if turn == 0 { self.prefix_ids(item)?.len() } else { 0 };
        let free = (item.bin.tokens() as usize).saturating_sub(engine.position(sequence) + ids.len());
        let limit = free.min(item.max_output_tokens as usize);
        if limit == 0 {
            return Err(overflow(engine.position(sequence) + ids.len(), item));
        }
        let template_ids = &ids[..ids.len().saturating_sub(prefix)];
        let kept = match &bridge {
            Some(bridge) => bridge.kept(tokenizer, template_ids)?,
            None => 0,
        };
        if kept > 0 {
            let logits = self.prefill(engine, sequence, &ids[..kept], progress)?;
            let history = engine.fork(sequence).map_err(engine_error)?;
            self.asked[at].history = Some(history);
            self.asked[at].next_token = likeliest(&logits)?;
        }
        let mut next_token = self.asked[at].next_token;
        if kept < ids.len() {
            let progress = progress.map(|(done, total)| (done + kept, total));
            next_token = likeliest(&self.prefill(engine, sequence, &ids[kept..], progress)?)?;
        }
        let question = &mut self.asked[at];
        question.bridge = bridge;
        question.begin(template_ids, next_token, limit);
        Ok(())
    }

    fn prefix_ids(&self, item: &Item) -> Result<Vec<u32>, TargetError> {
        prefix_ids(self.model, item)
    }

    fn prefill(
        &self,
        engine: &mut Engine,
        sequence: SequenceId,
        ids: &[u32],
        progress: Option<(usize, usize)>,
    ) -> Result<Vec<f32>, TargetError> {
        let mut on_progress = |done: usize| {
            if let Some((before, total)) = progress {
                // The receiver lives as long as the group's future; a dropped future needs no progress.
                let _ = self.job.events.send(TargetEvent::Prefill { done: before + done, total });
            }
            if self.job.cancel.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        engine.prefill(sequence, ids, &mut on_progress).map_err(engine_error)
    }

    /// The expected answer after the prompt, teacher-forced: its mean negative log-likelihood in nats per token, and what was
    /// held likely at each of its tokens. The prompt's own sequence stays as it is.
    fn expected_answer(
        &self,
        engine: &mut Engine,
        sequence: SequenceId,
        answer: &str,
    ) -> Result<(Option<f64>, Vec<LikelyTokens>), TargetError> {
        let ids = self.model.tokenizer.encode(answer, false).map_err(tokenizer_error)?;
        if ids.is_empty() {
            return Ok((None, Vec::new()));
        }
        let first = engine.likeliest(sequence, MAX_LIKELY_TOKENS).map_err(engine_error)?;
        let fork = engine.fork(sequence).map_err(engine_error)?;
        let logprobs = engine.logprobs(fork, &ids, MAX_LIKELY_TOKENS).map_err(engine_error);
        engine.release(fork);
        let logprobs = logprobs?;
        let values: Vec<f64> = logprobs.iter().filter_map(|token| token.logprob).map(f64::from).collect();
        let nll = (!values.is_empty()).then(|| -values.iter().sum::<f64>() / values.len() as f64);
        // What follows the last token is no part of the answer.
        let lists = std::iter::once(first).chain(logprobs.into_iter().map(|token| token.top));
        let positions = ids.len().min(MAX_ANSWER_POSITIONS);
        Ok((nll, lists.take(positions).map(LikelyTokens::new).collect()))
    }

    /// Takes the token chosen for every open question; where that ends an answer, the next turn is read or the item is done.
    pub(super) fn take_tokens(&mut self, engine: &mut Engine) {
        if self.job.cancel.is_cancelled() {
            return self.fail(engine, &TargetError::Cancelled);
        }
        let decode_started = *self.decode_started.get_or_insert_with(Instant::now);
        let mut at = 0;
        while at < self.asked.len() {
            self.tokens += 1;
            let question = &mut self.asked[at];
            let ended = question.take_next(&self.model.tokenizer);
            question.latency_ms = question.ttft_ms + decode_started.elapsed().as_secs_f64() * 1e3;
            let Some(ended) = ended else {
                at += 1;
                continue;
            };
            let item = &self.job.items[question.place];
            if question.answers.len() > item.follow_ups.len() {
                let question = self.asked.remove(at);
                engine.release(question.sequence);
                let place = question.place;
                self.answers[place] = Some(Ok(question.completion()));
            } else if let Err(error) = self.next_turn(engine, at, &ended) {
                return self.fail(engine, &error);
            }
            // Behind a turn that was read the first token of its answer is already chosen: it is taken in the next round of
            // this loop, before anything is decoded.
        }
        let _ = self.job.events.send(TargetEvent::Decode { tokens: self.tokens });
    }

    /// Goes on with the conversation of question `at`.
    fn next_turn(&mut self, engine: &mut Engine, at: usize, ended: &Ended) -> Result<(), TargetError> {
        let tokenizer = &self.model.tokenizer;
        let question = &mut self.asked[at];
        let (Some(bridge), Some(history)) = (question.bridge.take(), question.history.take()) else {
            return Err(TargetError::HistoryRewritten);
        };
        let ids = if bridge.keeps_answer(ended.has_reasoning) {
            engine.release(history);
            let suffix = bridge.suffix_ids(tokenizer)?;
            ended.last_token.into_iter().chain(suffix).collect::<Vec<u32>>()
        } else {
            engine.release(std::mem::replace(&mut question.sequence, history));
            let turn = question.answers.len() - 1;
            let answer = question.whole_answer(&self.job.items[question.place], turn, &question.answers[turn]);
            bridge.ids_with_answer(tokenizer, &answer)?
        };
        self.read_turn(engine, at, &ids, None)
    }

    /// The questions that wait for their next token, each with the one to be decoded.
    pub(super) fn open(&mut self) -> impl Iterator<Item = &mut Asked> {
        self.asked.iter_mut()
    }
}

/// The prompt's token ids, if they fit the bin.
fn prompt(model: &LoadedModel, item: &Item) -> Result<Vec<u32>, TargetError> {
    let messages: Vec<(&str, &str)> = item.messages.iter().map(|m| (m.role.name(), m.content.as_str())).collect();
    let mut ids = model.tokenizer.encode_chat(&messages, true).map_err(tokenizer_error)?;
    if let Some(next) = item.follow_ups.first() {
        // A template that cannot take a conversation is known before anything is read, and fails no other item.
        Bridge::new(&model.tokenizer, &messages, &next.question)?.kept(&model.tokenizer, &ids)?;
    }
    ids.extend(prefix_ids(model, item)?);
    if ids.len() + item.max_output_tokens as usize > item.bin.tokens() as usize {
        return Err(overflow(ids.len(), item));
    }
    Ok(ids)
}

/// What the answer is made to begin with, as the model would have written it: behind the generation prompt, as plain text.
fn prefix_ids(model: &LoadedModel, item: &Item) -> Result<Vec<u32>, TargetError> {
    model.tokenizer.encode(&item.answer_prefix, false).map_err(tokenizer_error)
}

fn overflow(prompt_tokens: usize, item: &Item) -> TargetError {
    TargetError::ContextOverflow {
        prompt_tokens: prompt_tokens as u32,
        output_tokens: item.max_output_tokens,
        bin: item.bin,
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
pub(super) fn likeliest(logits: &[f32]) -> Result<u32, TargetError> {
    argmax(logits).ok_or_else(|| TargetError::Engine("the logits are not numbers".into()))
}

pub(super) fn engine_error(error: EngineError) -> TargetError {
    match error {
        EngineError::Interrupted => TargetError::Cancelled,
        EngineError::NotFinite { .. } => TargetError::NotFinite(error.to_string()),
        other => TargetError::Engine(other.to_string()),
    }
}

fn tokenizer_error(error: crate::tokenizer::TokenizerError) -> TargetError {
    TargetError::Tokenizer(error.to_string())
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
