//! An item → a completion: its question, its follow-ups in the same conversation, and the likelihood of the expected answer.

use std::sync::atomic::Ordering;

use serde_json::{Map, Value};

use crate::sample::{Completion, FinishReason, Item, Message, Role, Timing};
use crate::targets::openai::answer::Answer;
use crate::targets::openai::connection::Subject;
use crate::targets::openai::wire::{Ask, RequestForm};
use crate::targets::openai::{Api, EndpointError, Inner, Reached, served};
use crate::targets::thinking;

/// Characters of a salt; vLLM takes 128 at most.
const SALT_CHARACTERS: usize = 32;

/// One item on its way.
pub(super) struct Dialogue<'a> {
    inner: &'a Inner,
    item: &'a Item,
    reached: &'a Reached,
}

/// One turn, answered.
struct Turn {
    text: String,
    reasoning: Option<String>,
    prompt_tokens: u32,
    output_tokens: u32,
    finish_reason: FinishReason,
    ttft_ms: f64,
    latency_ms: f64,
}

impl<'a> Dialogue<'a> {
    pub(super) fn new(inner: &'a Inner, item: &'a Item, reached: &'a Reached) -> Self {
        Self { inner, item, reached }
    }

    /// Asks everything.
    pub(super) async fn complete(&self) -> Result<Completion, EndpointError> {
        self.inner.identity.check()?;
        let item = self.item;
        let mut messages = item.messages.clone();
        let first = self.turn(&messages, &item.answer_prefix, 1).await?;
        let mut completion = Completion {
            text: first.text.clone(),
            prompt_tokens: first.prompt_tokens,
            output_tokens: first.output_tokens,
            finish_reason: first.finish_reason,
            timing: Timing { ttft_ms: first.ttft_ms, latency_ms: first.latency_ms },
            answer_nll: None,
            reasoning: first.reasoning,
            later_answers: Vec::with_capacity(item.follow_ups.len()),
            answer_tokens: Vec::new(),
        };
        if self.inner.settings.answer_nll {
            completion.answer_nll = self.answer_nll(first.prompt_tokens).await?;
        }
        let (mut said, mut before) = (format!("{}{}", item.answer_prefix, first.text), first.prompt_tokens);
        for (place, follow_up) in item.follow_ups.iter().enumerate() {
            messages.push(Message { role: Role::Assistant, content: said });
            messages.push(Message { role: Role::User, content: follow_up.question.clone() });
            let turn = self.turn(&messages, "", place + 2).await?;
            // Every prompt holds the one before it, but for thinking that templates leave out of the history.
            if turn.prompt_tokens < before && !self.inner.settings.ignore_usage {
                let (turn, counted) = (place + 2, turn.prompt_tokens);
                return Err(EndpointError::ConversationCut { turn, before, counted });
            }
            completion.output_tokens += turn.output_tokens;
            completion.timing.latency_ms += turn.latency_ms;
            if turn.finish_reason != FinishReason::Stop {
                completion.finish_reason = turn.finish_reason;
            }
            completion.reasoning = completion.reasoning.take().or(turn.reasoning);
            completion.later_answers.push(turn.text.clone());
            (said, before) = (turn.text, turn.prompt_tokens);
        }
        Ok(completion)
    }

    fn form(&self) -> RequestForm<'a> {
        let Inner { settings, served, prefix_cache, .. } = self.inner;
        RequestForm { settings, dialect: served.dialect, model: &served.model, prefix_cache: *prefix_cache }
    }

    /// Differs from that of every other request of this and other runs.
    fn salt(&self, purpose: &str) -> String {
        let hash = blake3::hash(format!("{} {} {purpose}", self.inner.nonce, self.item.item_id).as_bytes());
        hash.to_hex()[..SALT_CHARACTERS].to_owned()
    }

    async fn turn(&self, messages: &[Message], answer_prefix: &str, turn: usize) -> Result<Turn, EndpointError> {
        let salt = self.salt(&format!("turn {turn}"));
        let max_tokens = self.item.max_output_tokens;
        let body = self.form().body(&Ask { messages, answer_prefix, max_tokens, salt: &salt })?;
        let mut answer = self.ask(&body).await?;
        let redactor = self.inner.connection.redactor();
        let (text, reasoning) = parted(&mut answer);
        let (text, reasoning) = (redactor.clean_answer(text), reasoning.map(|text| redactor.clean_answer(text)));
        let counter = &self.inner.counter;
        let prompt_tokens = match answer.usage.prompt_tokens {
            Some(tokens) => tokens,
            // The user knows that nobody counts.
            None if self.inner.settings.ignore_usage => self.item.prompt_tokens,
            None => return Err(EndpointError::NoUsage),
        };
        let estimate = || (counter.count(&text) + reasoning.as_ref().map_or(0, |text| counter.count(text))) as u32;
        let counted = answer.usage.completion_tokens.filter(|tokens| *tokens > 0);
        let finish_reason = answer.finish_reason();
        if let Some(counted) = counted
            // The end token is counted by some and not by others, and so is thinking.
            && finish_reason == FinishReason::Length && counted + 1 < max_tokens && reasoning.is_none()
        {
            return Err(EndpointError::OutputClamped { asked: max_tokens, counted });
        }
        // One more for an end token that is counted and not limited.
        if let Some(counted) = counted.filter(|counted| *counted > max_tokens.saturating_add(1)) {
            return Err(EndpointError::LimitIgnored { asked: max_tokens, counted });
        }
        let (first, whole) = answer.times();
        let output_tokens = counted.unwrap_or_else(estimate);
        self.count(&answer, prompt_tokens, output_tokens);
        Ok(Turn {
            text,
            reasoning,
            prompt_tokens,
            output_tokens,
            finish_reason,
            ttft_ms: first.as_secs_f64() * 1e3,
            latency_ms: whole.as_secs_f64() * 1e3,
        })
    }

    /// Sends one body and makes sure that the same server answers as before.
    async fn ask(&self, body: &Map<String, Value>) -> Result<Answer, EndpointError> {
        let body = serde_json::to_vec(body).expect("a map of JSON values has a text");
        let subject = Subject { bin: self.item.bin, prompt_tokens: self.item.prompt_tokens };
        let inner = self.inner;
        let on_token = |tokens: usize| {
            self.reached.tokens.fetch_add(tokens, Ordering::Relaxed);
        };
        let answered = inner.connection.ask(self.form().route(), &body, subject, &on_token).await?;
        let answer = answered.answer;
        inner.traffic.retries.fetch_add(answered.attempts as usize - 1, Ordering::Relaxed);
        inner.identity.check()?;
        let redactor = inner.connection.redactor();
        let clean = |text: &Option<String>| text.as_deref().map(|text| redactor.quote(text));
        inner.identity.take_reply(clean(&answer.model).as_deref(), clean(&answer.fingerprint).as_deref())?;
        // A server that was away may have come back as another one.
        if answered.attempts > 1
            && let Some(before) = &inner.served.versions[answered.replica]
            && let Some(now) = served::version(&inner.connection, answered.replica, inner.served.dialect).await
        {
            inner.identity.take_version(before, &redactor.quote(&now))?;
        }
        Ok(answer)
    }

    fn count(&self, answer: &Answer, prompt_tokens: u32, output_tokens: u32) {
        let traffic = &self.inner.traffic;
        traffic.answers.fetch_add(1, Ordering::Relaxed);
        traffic.prompt_tokens.fetch_add(prompt_tokens as usize, Ordering::Relaxed);
        traffic.cached_tokens.fetch_add(answer.usage.cached_tokens().unwrap_or(0) as usize, Ordering::Relaxed);
        traffic.output_tokens.fetch_add(output_tokens as usize, Ordering::Relaxed);
    }

    /// Mean negative log-likelihood of the expected answer behind the prompt, in nats per token: a second request that ends in
    /// it and asks for the log-probabilities of its own prompt. `None` where the engine does not tell.
    async fn answer_nll(&self, prompt_tokens: u32) -> Result<Option<f64>, EndpointError> {
        let form = self.form();
        let what = "tell the likelihood of an answer (`answer_nll`)";
        let unsupported = EndpointError::Unsupported { dialect: form.dialect, what };
        let Some(value) = form.dialect.prompt_logprobs().filter(|_| self.inner.settings.api == Api::Chat) else {
            return Err(unsupported);
        };
        let answer = format!("{}{}", self.item.answer_prefix, self.item.expected.answer);
        let salt = self.salt("nll");
        let ask = Ask { messages: &self.item.messages, answer_prefix: &answer, max_tokens: 1, salt: &salt };
        let mut body = form.body(&ask)?;
        // A stream cannot carry them.
        body.remove("stream_options");
        body.insert("stream".into(), false.into());
        body.insert("prompt_logprobs".into(), value);
        let reply = self.ask(&body).await?;
        let Some(logprobs) = &reply.prompt_logprobs else { return Ok(None) };
        Ok(mean_nll(logprobs, prompt_tokens as usize))
    }
}

/// Over the tokens behind the first `skip`.
fn mean_nll(logprobs: &[Option<Map<String, Value>>], skip: usize) -> Option<f64> {
    let answer = logprobs.get(skip..).filter(|answer| !answer.is_empty())?;
    let logprob = |entry: &Option<Map<String, Value>>| entry.as_ref()?.values().next()?["logprob"].as_f64();
    let sum = answer.iter().map(logprob).sum::<Option<f64>>()?;
    Some(-sum / answer.len() as f64)
}

/// Thinking apart from the answer, whether the server parts them or not.
fn parted(answer: &mut Answer) -> (String, Option<String>) {
    let text = std::mem::take(&mut answer.text);
    let thinking = std::mem::take(&mut answer.thinking);
    if thinking.is_empty() {
        let parted = thinking::part_text(&text);
        return (parted.answer, parted.reasoning);
    }
    // What stands between the parts is the template's.
    (text.trim_start().to_owned(), Some(thinking.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_likelihood_is_of_the_tokens_behind_the_prompt() {
        let entry = |logprob: f64| json!({"17": {"logprob": logprob, "rank": 1}}).as_object().cloned();
        let logprobs = [None, entry(-9.0), entry(-1.0), entry(-0.5)];
        assert_eq!(mean_nll(&logprobs, 2), Some(0.75));
        assert_eq!(mean_nll(&logprobs, 4), None);
        assert_eq!(mean_nll(&logprobs, 0), None, "the first token has no probability");
    }
}
