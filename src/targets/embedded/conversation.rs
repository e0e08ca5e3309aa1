//! From one turn of a conversation to the next without reading anything twice.
//!
//! What the model reads between its answer and its next answer is found by rendering the conversation once with a mark in
//! place of the answer: what the template writes behind the mark (the end of the turn, the next question, the beginning of
//! the next answer) is appended to the cache, behind the answer's ids as they were generated. What stands in front of the
//! mark must be the prompt that was answered. A template that writes into the prompt what it later leaves out of the history
//! (an opening tag of thinking) rewrites its end, and so does thinking, which no template repeats: then the next turn goes
//! on from a fork that was kept in front of that end, and only what follows is read again.

use crate::targets::TargetError;
use crate::tokenizer::Tokenizer;

/// Stands for an answer. No template treats it as anything but text, and no item says it.
const MARK: &str = "ANSWER-0f9c27d1";

/// What the template makes of a turn that another one follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bridge {
    /// The end of the prompt that the template leaves out of the history.
    dropped: String,
    /// From the end of the answer to the beginning of the next one.
    suffix: String,
}

impl Bridge {
    /// `messages` (`(role, content)`) end in the question that is about to be answered; `next` comes after it.
    pub(super) fn new(tokenizer: &Tokenizer, messages: &[(&str, &str)], next: &str) -> Result<Self, TargetError> {
        let failed = |error: crate::tokenizer::TokenizerError| TargetError::Tokenizer(error.to_string());
        let prompt = tokenizer.render_chat(messages, true).map_err(failed)?;
        let mut conversation = messages.to_vec();
        conversation.extend([("assistant", MARK), ("user", next)]);
        let rendered = tokenizer.render_chat(&conversation, true).map_err(failed)?;
        let (history, suffix) = rendered.split_once(MARK).ok_or(TargetError::HistoryRewritten)?;
        let dropped = prompt.strip_prefix(history).ok_or(TargetError::HistoryRewritten)?;
        if suffix.is_empty() || suffix.contains(MARK) {
            return Err(TargetError::HistoryRewritten);
        }
        Ok(Self { dropped: dropped.to_owned(), suffix: suffix.to_owned() })
    }

    /// How many of the `ids` that were read last stay in the history.
    pub(super) fn kept(&self, tokenizer: &Tokenizer, ids: &[u32]) -> Result<usize, TargetError> {
        let dropped = encode(tokenizer, &self.dropped)?;
        if !ids.ends_with(&dropped) || dropped.len() == ids.len() {
            return Err(TargetError::HistoryRewritten);
        }
        Ok(ids.len() - dropped.len())
    }

    /// Whether the cache can be gone on with as it is.
    pub(super) fn keeps_answer(&self, has_reasoning: bool) -> bool {
        self.dropped.is_empty() && !has_reasoning
    }

    /// Ids behind an answer that stays in the cache.
    pub(super) fn suffix_ids(&self, tokenizer: &Tokenizer) -> Result<Vec<u32>, TargetError> {
        encode(tokenizer, &self.suffix)
    }

    /// Ids behind the history, the answer without its thinking among them.
    pub(super) fn ids_with_answer(&self, tokenizer: &Tokenizer, answer: &str) -> Result<Vec<u32>, TargetError> {
        // What the model wrote is text, even where it spells a token that ends a turn.
        let mut ids = tokenizer.encode(answer, false).map_err(|error| TargetError::Tokenizer(error.to_string()))?;
        ids.extend(encode(tokenizer, &self.suffix)?);
        Ok(ids)
    }
}

fn encode(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>, TargetError> {
    tokenizer.encode(text, true).map_err(|error| TargetError::Tokenizer(error.to_string()))
}
