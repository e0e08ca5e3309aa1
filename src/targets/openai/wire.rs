//! The protocol's JSON: what is sent, and what comes back, read tolerantly where servers differ and strictly where a mistake
//! would change a measurement.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::sample::{FinishReason, Message, Role};
use crate::targets::openai::settings::PrefixCache;
use crate::targets::openai::{Api, Dialect, EndpointError, EndpointSettings};

/// One request, before it is written down.
pub(super) struct Ask<'a> {
    pub(super) messages: &'a [Message],
    /// Text the answer begins with.
    pub(super) answer_prefix: &'a str,
    pub(super) max_tokens: u32,
    /// Differs from that of every other request.
    pub(super) salt: &'a str,
}

/// What all requests of an endpoint have in common.
pub(super) struct RequestForm<'a> {
    pub(super) settings: &'a EndpointSettings,
    pub(super) dialect: Dialect,
    pub(super) model: &'a str,
    pub(super) prefix_cache: PrefixCache,
}

impl RequestForm<'_> {
    /// The route below `/v1`.
    pub(super) fn route(&self) -> &'static str {
        match self.settings.api {
            Api::Chat => "/v1/chat/completions",
            Api::Completions => "/v1/completions",
        }
    }

    /// The body of a request for an answer.
    pub(super) fn body(&self, ask: &Ask<'_>) -> Result<Map<String, Value>, EndpointError> {
        let is_chat = self.settings.api == Api::Chat;
        let mut body = Map::new();
        body.insert("model".into(), self.model.into());
        self.insert_prompt(&mut body, ask)?;
        body.insert(self.dialect.max_tokens_field(is_chat).into(), ask.max_tokens.into());
        // Never left out: the default is the model's own, not the protocol's.
        body.insert("temperature".into(), self.settings.temperature.into());
        body.insert("seed".into(), self.settings.seed.into());
        for (name, value) in self.dialect.neutral_sampling() {
            body.insert((*name).into(), json!(value));
        }
        body.insert("stream".into(), self.settings.stream.into());
        if self.settings.stream {
            body.insert("stream_options".into(), json!({"include_usage": true}));
        }
        if self.prefix_cache == PrefixCache::Salt
            && let Some((name, value)) = self.dialect.cold_cache(ask.salt)
        {
            body.insert(name.into(), value);
        }
        if is_chat && !self.settings.chat_template_kwargs.is_empty() {
            body.insert("chat_template_kwargs".into(), self.settings.chat_template_kwargs.clone().into());
        }
        for (name, value) in &self.settings.extra_body {
            body.insert(name.clone(), value.clone());
        }
        Ok(body)
    }

    fn insert_prompt(&self, body: &mut Map<String, Value>, ask: &Ask<'_>) -> Result<(), EndpointError> {
        match self.settings.api {
            Api::Chat => {
                let mut messages: Vec<Value> = ask.messages.iter().map(message).collect();
                if !ask.answer_prefix.is_empty() {
                    let what = "begin an answer with a given text";
                    let continuation = self.dialect.continue_last_message();
                    body.extend(continuation.ok_or(EndpointError::Unsupported { dialect: self.dialect, what })?);
                    messages.push(json!({"role": Role::Assistant.name(), "content": ask.answer_prefix}));
                }
                body.insert("messages".into(), messages.into());
            }
            Api::Completions => {
                let mut parts: Vec<&str> = ask.messages.iter().map(|message| message.content.as_str()).collect();
                if !ask.answer_prefix.is_empty() {
                    parts.push(ask.answer_prefix);
                }
                body.insert("prompt".into(), parts.join("\n\n").into());
            }
        }
        Ok(())
    }
}

fn message(message: &Message) -> Value {
    json!({"role": message.role.name(), "content": message.content})
}

/// A whole reply, or one chunk of it.
#[derive(Debug, Deserialize)]
pub(super) struct Reply {
    pub(super) model: Option<String>,
    pub(super) system_fingerprint: Option<String>,
    pub(super) choices: Option<Vec<Choice>>,
    pub(super) usage: Option<Usage>,
    pub(super) error: Option<Value>,
    object: Option<String>,
    message: Option<String>,
    /// vLLM: one entry per prompt token.
    pub(super) prompt_logprobs: Option<Vec<Option<Map<String, Value>>>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Choice {
    pub(super) index: Option<i64>,
    pub(super) delta: Option<Said>,
    pub(super) message: Option<Said>,
    pub(super) text: Option<String>,
    pub(super) finish_reason: Option<String>,
    pub(super) prompt_logprobs: Option<Vec<Option<Map<String, Value>>>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Said {
    pub(super) content: Option<String>,
    /// SGLang, llama.cpp and older vLLM.
    reasoning_content: Option<String>,
    /// Newer vLLM.
    reasoning: Option<String>,
    pub(super) tool_calls: Option<Vec<Value>>,
}

impl Said {
    /// Thinking under either name; servers in between write both with the same text.
    pub(super) fn thinking(&self) -> Option<&str> {
        [&self.reasoning_content, &self.reasoning]
            .into_iter()
            .flatten()
            .map(String::as_str)
            .find(|text| !text.is_empty())
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct Usage {
    pub(super) prompt_tokens: Option<u32>,
    pub(super) completion_tokens: Option<u32>,
    prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
struct PromptDetails {
    cached_tokens: Option<u32>,
}

impl Usage {
    pub(super) fn cached_tokens(&self) -> Option<u32> {
        self.prompt_tokens_details.and_then(|details| details.cached_tokens)
    }
}

impl Reply {
    /// The server's words where this is an error under a good status: `{"error": …}`, or the older flat form.
    pub(super) fn error_text(&self) -> Option<String> {
        if let Some(error) = &self.error {
            return Some(text_of(error));
        }
        let is_flat = self.object.as_deref() == Some("error");
        is_flat.then(|| self.message.clone().unwrap_or_else(|| "an error without a message".into()))
    }
}

/// The words of an error body in any of the shapes in use.
pub(super) fn error_text(body: &[u8]) -> String {
    match serde_json::from_slice::<Value>(body) {
        Ok(value) => match value.get("error") {
            Some(error) => text_of(error),
            None => text_of(&value),
        },
        Err(_) => String::from_utf8_lossy(body).into_owned(),
    }
}

fn text_of(error: &Value) -> String {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    text(error).or_else(|| error.get("message").and_then(text)).unwrap_or_else(|| error.to_string())
}

/// Whether a server says that the prompt is too long. Wordings change with every release and the numbers in them have been
/// wrong, so the pattern is loose and nothing is read out of it.
pub(super) fn is_context_overflow(status: u16, message: &str) -> bool {
    const SIGNS: [&str; 9] = [
        "context length",
        "context size",
        "context window",
        "exceed_context_size",
        "maximum context",
        "input is too long",
        "prompt is too long",
        "must have less than",
        "max_num_tokens",
    ];
    let message = message.to_ascii_lowercase();
    matches!(status, 200 | 400 | 413 | 422 | 500) && SIGNS.iter().any(|sign| message.contains(sign))
}

/// What an engine's word for the end means; `None` where it is not an end but a failure.
pub(super) fn finish_reason(word: &str) -> Option<FinishReason> {
    match word {
        "stop" | "eos_token" | "stop_sequence" => Some(FinishReason::Stop),
        "length" => Some(FinishReason::Length),
        "content_filter" => Some(FinishReason::ContentFilter),
        "abort" | "aborted" | "error" | "cancelled" => None,
        _ => Some(FinishReason::Unknown),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(
        dialect: Dialect,
        change: impl FnOnce(&mut EndpointSettings),
        prefix: &str,
    ) -> Result<Value, EndpointError> {
        let mut settings = EndpointSettings::new("http://a");
        change(&mut settings);
        let form = RequestForm { settings: &settings, dialect, model: "m", prefix_cache: PrefixCache::Salt };
        let messages = [Message { role: Role::User, content: "Q".into() }];
        let ask = Ask { messages: &messages, answer_prefix: prefix, max_tokens: 8, salt: "s1" };
        form.body(&ask).map(Value::Object)
    }

    #[test]
    fn vllm_is_sent_everything_that_would_otherwise_be_the_models_default() {
        let body = body(
            Dialect::Vllm,
            |settings| {
                settings.chat_template_kwargs.insert("enable_thinking".into(), false.into());
                settings.extra_body.insert("response_format".into(), json!({"type": "json_object"}));
            },
            "",
        );
        assert_eq!(
            body.unwrap(),
            json!({
                "model": "m", "messages": [{"role": "user", "content": "Q"}], "max_tokens": 8, "temperature": 0.0, "seed": 0,
                "top_p": 1.0, "repetition_penalty": 1.0, "stream": true, "stream_options": {"include_usage": true},
                "cache_salt": "s1", "chat_template_kwargs": {"enable_thinking": false},
                "response_format": {"type": "json_object"},
            })
        );
    }

    #[test]
    fn every_dialect_has_its_own_names() {
        let llama = body(Dialect::LlamaCpp, |_| (), "The answer is").unwrap();
        assert_eq!((&llama["cache_prompt"], &llama["repeat_penalty"]), (&json!(false), &json!(1.0)));
        assert_eq!(llama["messages"][1], json!({"role": "assistant", "content": "The answer is"}));
        assert_eq!(body(Dialect::Vllm, |_| (), "P").unwrap()["continue_final_message"], true);
        assert_eq!(body(Dialect::Openai, |_| (), "").unwrap()["max_completion_tokens"], 8);
        assert!(matches!(
            body(Dialect::Tgi, |_| (), "P"),
            Err(EndpointError::Unsupported { dialect: Dialect::Tgi, .. })
        ));
        let text = body(Dialect::Tgi, |settings| settings.api = Api::Completions, "P").unwrap();
        assert_eq!((&text["prompt"], text.get("messages")), (&json!("Q\n\nP"), None));
    }

    #[test]
    fn every_wording_of_too_long_is_known_and_other_mistakes_are_not() {
        for message in [
            "This model's maximum context length is 8192 tokens. However, your prompt contains at least 8193 input tokens",
            "This model's maximum context length is 3 tokens. However, you requested 9016 tokens (9000 in the messages)",
            "request (8019 tokens) exceeds the available context size (2048 tokens), try increasing it",
            "The input (9000 tokens) is longer than the model's context length (8192 tokens).",
            "Requested token count exceeds the model's maximum context length of 8192 tokens.",
            "`inputs` must have less than 4096 tokens. Given: 9000",
            "the prompt is longer than the context length currently available to the model",
        ] {
            assert!(is_context_overflow(400, message), "{message}");
        }
        assert!(!is_context_overflow(400, "temperature must be positive"));
        assert!(!is_context_overflow(404, "maximum context length"));
    }

    #[test]
    fn errors_are_read_in_every_shape() {
        for (body, text) in [
            (r#"{"error":{"message":"no","code":400}}"#, "no"),
            (r#"{"object":"error","message":"flat","code":400}"#, "flat"),
            (r#"{"error":"words","error_type":"validation"}"#, "words"),
            (r#"{"error":{"detail":1}}"#, r#"{"detail":1}"#),
            ("<html>", "<html>"),
        ] {
            assert_eq!(error_text(body.as_bytes()), text);
        }
    }
}
