//! An answer put together from the chunks of a stream, or from a whole reply.

use std::time::Duration;

use serde_json::{Map, Value};
use tokio::time::Instant;

use crate::sample::FinishReason;
use crate::targets::openai::sse::{Event, Overlong};
use crate::targets::openai::wire::{self, Choice, Reply, Usage};

/// What an answer said before it failed is kept up to here, in bytes: enough to see a loop or a broken template.
const MAX_PARTIAL_BYTES: usize = 200;

/// Why what came is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The server says so, in its words.
    Reported(String),
    /// It cannot be read as an answer.
    Malformed(String),
}

impl From<Overlong> for Fault {
    fn from(overlong: Overlong) -> Self {
        Self::Malformed(overlong.reason())
    }
}

/// One answer as it comes.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) text: String,
    pub(super) thinking: String,
    finish: Option<FinishReason>,
    pub(super) usage: Usage,
    pub(super) model: Option<String>,
    pub(super) fingerprint: Option<String>,
    pub(super) prompt_logprobs: Option<Vec<Option<Map<String, Value>>>>,
    /// `[DONE]` came.
    pub(super) is_done: bool,
    /// Events with data so far.
    pub(super) events: usize,
    /// Chunks with text or thinking so far.
    pub(super) deltas: usize,
    has_choices: bool,
    started: Instant,
    first_at: Option<Instant>,
    last_at: Instant,
}

impl Answer {
    /// Nothing yet of a request that was sent at `started`.
    pub(super) fn new(started: Instant) -> Self {
        Self {
            text: String::new(),
            thinking: String::new(),
            finish: None,
            usage: Usage::default(),
            model: None,
            fingerprint: None,
            prompt_logprobs: None,
            is_done: false,
            events: 0,
            deltas: 0,
            has_choices: false,
            started,
            first_at: None,
            last_at: started,
        }
    }

    /// Takes an event whose bytes arrived at `now`.
    pub(super) fn take_event(&mut self, event: &Event<'_>, now: Instant) -> Result<(), Fault> {
        self.events += 1;
        match event {
            Event::Data(b"[DONE]") => {
                self.is_done = true;
                Ok(())
            }
            Event::Data(data) if data.trim_ascii().is_empty() => Ok(()),
            Event::Data(data) => self.take_reply(read(data)?, now),
            Event::Error(data) => Err(Fault::Reported(wire::error_text(data))),
            Event::Bare(line) => match read(line)?.error_text() {
                Some(text) => Err(Fault::Reported(text)),
                None => Err(Fault::Malformed("a line of JSON that is no event".into())),
            },
        }
    }

    /// Takes a whole reply that arrived at `now`.
    pub(super) fn take_body(&mut self, body: &[u8], now: Instant) -> Result<(), Fault> {
        let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
        if body.trim_ascii().is_empty() {
            return Err(Fault::Malformed("an empty body".into()));
        }
        self.is_done = true;
        self.take_reply(read(body)?, now)
    }

    fn take_reply(&mut self, reply: Reply, now: Instant) -> Result<(), Fault> {
        if let Some(text) = reply.error_text() {
            return Err(Fault::Reported(text));
        }
        if self.model.is_none() {
            self.model = reply.model.filter(|model| !model.is_empty());
        }
        if self.fingerprint.is_none() {
            self.fingerprint = reply.system_fingerprint.filter(|fingerprint| !fingerprint.is_empty());
        }
        // Some servers write zeros into every chunk and the truth into the last.
        if let Some(usage) = reply.usage.filter(|usage| usage.prompt_tokens.unwrap_or(0) > 0) {
            self.usage = usage;
        }
        if reply.prompt_logprobs.is_some() {
            self.prompt_logprobs = reply.prompt_logprobs;
        }
        for choice in reply.choices.unwrap_or_default() {
            self.take_choice(choice, now)?;
        }
        Ok(())
    }

    fn take_choice(&mut self, choice: Choice, now: Instant) -> Result<(), Fault> {
        if choice.index.is_some_and(|index| index != 0) {
            return Err(Fault::Malformed("a second choice, though one was asked for".into()));
        }
        self.has_choices = true;
        self.last_at = now;
        if choice.prompt_logprobs.is_some() {
            self.prompt_logprobs = choice.prompt_logprobs;
        }
        let mut is_token = self.append(choice.text.as_deref(), None);
        for said in [choice.delta, choice.message].into_iter().flatten() {
            if said.tool_calls.as_ref().is_some_and(|calls| !calls.is_empty()) {
                return Err(Fault::Malformed("a tool call, though no tools were offered".into()));
            }
            is_token |= self.append(said.content.as_deref(), said.thinking());
        }
        if is_token {
            self.deltas += 1;
            self.first_at.get_or_insert(now);
        }
        if let Some(word) = choice.finish_reason.filter(|word| !word.is_empty()) {
            let reason = wire::finish_reason(&word);
            self.finish = Some(reason.ok_or_else(|| Fault::Reported(format!("finish_reason `{word}`")))?);
        }
        Ok(())
    }

    fn append(&mut self, text: Option<&str>, thinking: Option<&str>) -> bool {
        self.text.push_str(text.unwrap_or_default());
        self.thinking.push_str(thinking.unwrap_or_default());
        text.is_some_and(|text| !text.is_empty()) || thinking.is_some()
    }

    /// Whether the first token has come.
    pub(super) fn has_begun(&self) -> bool {
        self.first_at.is_some()
    }

    /// Whether the server said that this is the end.
    pub(super) fn has_ended(&self) -> bool {
        self.is_done || self.finish.is_some()
    }

    /// Whether all that is waited for has come.
    pub(super) fn is_whole(&self) -> Result<(), Fault> {
        if !self.has_choices && self.has_ended() {
            return Err(Fault::Malformed("no choices".into()));
        }
        if !self.has_ended() {
            return Err(Fault::Malformed("the stream ended without `finish_reason` and `[DONE]`".into()));
        }
        Ok(())
    }

    /// Why it ended; without a word for it nothing is assumed.
    pub(super) fn finish_reason(&self) -> FinishReason {
        self.finish.unwrap_or(FinishReason::Unknown)
    }

    /// Time to first token and whole time. An answer of no tokens has its end for both.
    pub(super) fn times(&self) -> (Duration, Duration) {
        let first = self.first_at.unwrap_or(self.last_at);
        (first - self.started, self.last_at - self.started)
    }

    /// The end of what came, for an error.
    pub(super) fn partial(&self) -> &str {
        let text = if self.text.is_empty() { &self.thinking } else { &self.text };
        &text[text.ceil_char_boundary(text.len().saturating_sub(MAX_PARTIAL_BYTES))..]
    }
}

fn read(json: &[u8]) -> Result<Reply, Fault> {
    serde_json::from_slice(json).map_err(|error| {
        let start = String::from_utf8_lossy(&json[..json.len().min(MAX_PARTIAL_BYTES)]).into_owned();
        Fault::Malformed(format!("{error} in {start}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(events: &[&str]) -> (Answer, Result<(), Fault>) {
        let start = Instant::now();
        let mut answer = Answer::new(start);
        for (step, event) in events.iter().enumerate() {
            let now = start + Duration::from_millis(10 * (step as u64 + 1));
            if let Err(fault) = answer.take_event(&Event::Data(event.as_bytes()), now) {
                return (answer, Err(fault));
            }
        }
        let whole = answer.is_whole();
        (answer, whole)
    }

    #[test]
    fn thinking_under_both_names_and_text_in_the_last_chunk_are_kept() {
        let (answer, whole) = answer(&[
            r#"{"model":"m","system_fingerprint":"f","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"reasoning_content":"a","reasoning":"a","content":null}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"reasoning":"b"}}],"usage":{"prompt_tokens":0,"completion_tokens":0}}"#,
            r#"{"choices":[{"index":0,"delta":{"content":"7"},"finish_reason":"length"}]}"#,
            r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4}}}"#,
            "[DONE]",
        ]);
        assert_eq!(whole, Ok(()));
        assert_eq!((answer.thinking.as_str(), answer.text.as_str()), ("ab", "7"));
        assert_eq!(answer.finish_reason(), FinishReason::Length);
        assert_eq!((answer.usage.prompt_tokens, answer.usage.cached_tokens()), (Some(9), Some(4)));
        assert_eq!((answer.model.as_deref(), answer.fingerprint.as_deref()), (Some("m"), Some("f")));
        // The chunk with a role and no text is no token.
        assert_eq!(answer.times(), (Duration::from_millis(20), Duration::from_millis(40)));
    }

    #[test]
    fn what_is_no_answer_is_a_fault() {
        let fault = |events: &[&str]| answer(events).1.unwrap_err();
        let text = r#"{"choices":[{"index":0,"delta":{"content":"7"}}]}"#;
        assert!(matches!(fault(&[text]), Fault::Malformed(_)), "no end");
        assert!(matches!(fault(&["[DONE]"]), Fault::Malformed(_)), "no choices");
        assert_eq!(fault(&[text, r#"{"error":{"message":"dead"}}"#, "[DONE]"]), Fault::Reported("dead".into()));
        assert_eq!(fault(&[r#"{"error":{"message":"m","code":null}}"#]), Fault::Reported("m".into()));
        assert!(matches!(fault(&[r#"{"choices":[{"index":1,"text":"x"}]}"#]), Fault::Malformed(_)));
        assert!(matches!(fault(&[&format!("{text}{text}")]), Fault::Malformed(_)), "two objects in one event");
        let tool = r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"id":"1"}]}}]}"#;
        assert!(matches!(fault(&[tool]), Fault::Malformed(_)));
        assert!(matches!(fault(&[r#"{"choices":[{"finish_reason":"abort"}]}"#]), Fault::Reported(_)));
        assert_eq!(answer(&[text, "[DONE]"]).0.finish_reason(), FinishReason::Unknown);
    }
}
