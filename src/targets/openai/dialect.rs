//! Which engine answers, and what it takes beyond the common protocol.
//!
//! One more engine is one more variant with a line in each table below.

use std::fmt;

use serde::Deserialize;
use serde_json::{Map, Value, json};

/// The engine behind an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dialect {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// TensorRT-LLM's `trtllm-serve`.
    #[serde(rename = "tensorrt_llm")]
    TensorrtLlm,
    /// llama.cpp's server.
    LlamaCpp,
    /// LMDeploy's API server.
    Lmdeploy,
    /// Text Generation Inference.
    Tgi,
    /// Ollama.
    Ollama,
    /// Anything that speaks the protocol.
    Openai,
}

impl Dialect {
    /// All, in declaration order.
    pub const ALL: [Self; 8] = [
        Self::Vllm,
        Self::Sglang,
        Self::TensorrtLlm,
        Self::LlamaCpp,
        Self::Lmdeploy,
        Self::Tgi,
        Self::Ollama,
        Self::Openai,
    ];

    /// The name used in settings and records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::TensorrtLlm => "tensorrt_llm",
            Self::LlamaCpp => "llama_cpp",
            Self::Lmdeploy => "lmdeploy",
            Self::Tgi => "tgi",
            Self::Ollama => "ollama",
            Self::Openai => "openai",
        }
    }

    /// By `owned_by` of the model list.
    pub(super) fn by_owner(owner: &str) -> Option<Self> {
        match owner {
            "vllm" => Some(Self::Vllm),
            "sglang" => Some(Self::Sglang),
            "tensorrt_llm" => Some(Self::TensorrtLlm),
            "llamacpp" => Some(Self::LlamaCpp),
            "lmdeploy" => Some(Self::Lmdeploy),
            // Ollama's own library of models.
            "library" => Some(Self::Ollama),
            _ => None,
        }
    }

    /// Field that limits the answer. OpenAI's newer models refuse `max_tokens`; not every engine knows its successor.
    pub(super) fn max_tokens_field(self, is_chat: bool) -> &'static str {
        if self == Self::Openai && is_chat { "max_completion_tokens" } else { "max_tokens" }
    }

    /// Neutral values for what the engine would otherwise take from the model's own generation defaults: a repetition penalty
    /// changes greedy answers, and differently in each arm once the answers differ.
    pub(super) fn neutral_sampling(self) -> &'static [(&'static str, f64)] {
        match self {
            Self::Vllm | Self::Sglang | Self::TensorrtLlm | Self::Lmdeploy => {
                &[("top_p", 1.0), ("repetition_penalty", 1.0)]
            }
            Self::LlamaCpp => &[("top_p", 1.0), ("repeat_penalty", 1.0)],
            // TGI refuses `top_p` of 1.
            Self::Tgi => &[],
            Self::Ollama | Self::Openai => &[("top_p", 1.0)],
        }
    }

    /// Fields that keep a request from reading what an earlier one left in the prefix cache; `None` where there is no way.
    pub(super) fn cold_cache(self, salt: &str) -> Option<(&'static str, Value)> {
        match self {
            Self::Vllm | Self::Sglang | Self::TensorrtLlm => Some(("cache_salt", salt.into())),
            Self::LlamaCpp => Some(("cache_prompt", false.into())),
            Self::Lmdeploy | Self::Tgi | Self::Ollama | Self::Openai => None,
        }
    }

    /// Fields that make the model go on with the last message; `None` where there is no way.
    pub(super) fn continue_last_message(self) -> Option<Map<String, Value>> {
        match self {
            Self::Vllm => Some(Map::from_iter([
                ("add_generation_prompt".into(), false.into()),
                ("continue_final_message".into(), true.into()),
            ])),
            Self::Sglang => Some(Map::from_iter([("continue_final_message".into(), true.into())])),
            // It goes on with an assistant's message by itself.
            Self::LlamaCpp => Some(Map::new()),
            Self::TensorrtLlm | Self::Lmdeploy | Self::Tgi | Self::Ollama | Self::Openai => None,
        }
    }

    /// Where the engine tells its version: path below the root, and the field.
    pub(super) fn version_source(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Vllm | Self::TensorrtLlm => Some(("/version", "version")),
            Self::Sglang => Some(("/server_info", "version")),
            Self::LlamaCpp => Some(("/props", "build_info")),
            Self::Tgi => Some(("/info", "version")),
            Self::Ollama => Some(("/api/version", "version")),
            Self::Lmdeploy | Self::Openai => None,
        }
    }

    /// What a request for the expected answer's likelihood adds; `None` where the engine cannot say it.
    pub(super) fn prompt_logprobs(self) -> Option<Value> {
        match self {
            // Zero alternatives: the prompt's own tokens only.
            Self::Vllm => Some(json!(0)),
            _ => None,
        }
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_the_setting_of_its_dialect() {
        for dialect in Dialect::ALL {
            let read: Dialect = serde_json::from_value(json!(dialect.name())).unwrap();
            assert_eq!(read, dialect);
        }
    }
}
