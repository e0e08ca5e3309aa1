//! What a model is, from `config.json` or GGUF metadata: dimensions, RoPE, and what each layer has of its own.

use std::fmt;

use serde::Deserialize;

use crate::engine::gguf::GgufMetadata;

/// Architectures that can be run: `model_type` of `config.json`, `general.architecture` of a GGUF file.
pub const ARCHITECTURES: &[&str] = &["llama", "mistral"];
/// RoPE types that can be run.
pub const ROPE_TYPES: &[&str] = &["default", "linear", "ntk"];

/// Far above every dense model that fits a CPU; keeps products of dimensions inside `usize` and allocations sane.
const MAX_LAYERS: usize = 1024;
const MAX_HEADS: usize = 1024;
const MAX_HEAD_DIM: usize = 1024;
const MAX_WIDTH: usize = 1 << 18;
const MAX_VOCAB: usize = 1 << 22;
/// Token positions are exact in the arithmetic of RoPE and in every index far beyond this.
pub const MAX_CONTEXT: usize = 1 << 24;
/// Scaling by more than this turns every angle into noise.
const MAX_ROPE_FACTOR: f64 = 4096.0;

/// Why a model's description cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// Not JSON, or a field of the wrong kind.
    #[error("config.json: {0}")]
    Json(String),
    /// A key without which nothing can be computed.
    #[error("`{key}` is missing")]
    Missing {
        /// Its name.
        key: String,
    },
    /// A value that is not legal.
    #[error("`{key}` is {found}: {problem}")]
    Invalid {
        /// Its name.
        key: String,
        /// As stored.
        found: String,
        /// What about it.
        problem: String,
    },
    /// Legal, but not built here.
    #[error("{what} `{found}` is not supported; supported: {supported}")]
    Unsupported {
        /// `architecture`, `rope type`, ...
        what: &'static str,
        /// As stored.
        found: String,
        /// What is.
        supported: String,
    },
}

/// How rotary angles are stretched for contexts longer than trained.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    Default,
    /// Positions are divided by `factor`.
    Linear {
        /// New length over trained length.
        factor: f64,
    },
    /// The base becomes `theta · factor^(d/(d−2))`: slow dimensions stretch, fast ones stay ("NTK-aware" scaling).
    Ntk {
        /// New length over trained length.
        factor: f64,
    },
}

impl RopeScaling {
    /// Reads a type's name; `factor` matters to all but `default`.
    pub fn new(rope_type: &str, factor: Option<f64>) -> Result<Self, ConfigError> {
        let checked = || match factor {
            Some(factor) if factor > 0.0 && factor <= MAX_ROPE_FACTOR => Ok(factor),
            Some(factor) => {
                let problem = format!("must be above 0 and at most {MAX_ROPE_FACTOR}");
                Err(ConfigError::Invalid { key: "rope factor".into(), found: factor.to_string(), problem })
            }
            None => Err(ConfigError::Missing { key: "rope factor".into() }),
        };
        match rope_type {
            "default" | "none" => Ok(Self::Default),
            "linear" => Ok(Self::Linear { factor: checked()? }),
            "ntk" => Ok(Self::Ntk { factor: checked()? }),
            other => Err(unsupported("rope type", other, ROPE_TYPES)),
        }
    }

    /// Whether its numbers are usable; callers may build a value themselves.
    pub fn validate(self) -> Result<(), ConfigError> {
        match self {
            Self::Default => Ok(()),
            Self::Linear { factor } => Self::new("linear", Some(factor)).map(|_| ()),
            Self::Ntk { factor } => Self::new("ntk", Some(factor)).map(|_| ()),
        }
    }
}

impl fmt::Display for RopeScaling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => write!(f, "default"),
            Self::Linear { factor } => write!(f, "linear, factor {factor}"),
            Self::Ntk { factor } => write!(f, "ntk, factor {factor}"),
        }
    }
}

/// What one layer has of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerConfig {
    /// Attention sees only the last `window` positions, the query's own included.
    pub window: Option<usize>,
}

/// Dimensions and constants of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// One of [`ARCHITECTURES`].
    pub architecture: String,
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width inside the MLP.
    pub intermediate_size: usize,
    /// Query heads.
    pub n_head: usize,
    /// Key and value heads; divides `n_head`.
    pub n_kv_head: usize,
    /// Width of a head; even.
    pub head_dim: usize,
    /// Added to the mean square in RMSNorm.
    pub rms_norm_eps: f32,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// The model's own scaling.
    pub rope_scaling: RopeScaling,
    /// Context length the model was trained for.
    pub trained_context: usize,
    /// Whether the output layer is the embedding.
    pub tied_embeddings: bool,
    /// One entry per layer.
    pub layers: Vec<LayerConfig>,
}

impl ModelConfig {
    /// Layers.
    pub fn n_layer(&self) -> usize {
        self.layers.len()
    }

    /// Query heads per KV head.
    pub fn group(&self) -> usize {
        self.n_head / self.n_kv_head
    }

    /// Reads the text of a Hugging Face `config.json`.
    pub fn from_json(text: &[u8]) -> Result<Self, ConfigError> {
        let file: HfConfig = serde_json::from_slice(text).map_err(|error| ConfigError::Json(error.to_string()))?;
        file.into_config()
    }

    /// Reads GGUF metadata; `vocab_size` and `tied_embeddings` come from the tensors.
    pub fn from_gguf(metadata: &GgufMetadata, vocab_size: usize, tied_embeddings: bool) -> Result<Self, ConfigError> {
        let missing = |key: String| ConfigError::Missing { key };
        let key = "general.architecture";
        let architecture = metadata.string(key).ok_or_else(|| missing(key.into()))?.to_owned();
        if architecture != "llama" {
            return Err(unsupported("architecture", &architecture, &["llama"]));
        }
        let optional = |suffix: &str| -> Option<usize> {
            metadata.unsigned(&format!("{architecture}.{suffix}")).and_then(|number| usize::try_from(number).ok())
        };
        let required = |suffix: &str| optional(suffix).ok_or_else(|| missing(format!("{architecture}.{suffix}")));
        let float = |suffix: &str| metadata.float(&format!("{architecture}.{suffix}"));

        let (hidden_size, n_head) = (required("embedding_length")?, required("attention.head_count")?);
        let head_dim = optional("attention.key_length").unwrap_or(hidden_size / n_head.max(1));
        for (suffix, expected) in
            [("rope.dimension_count", head_dim), ("attention.value_length", head_dim), ("expert_count", 0)]
        {
            if let Some(found) = optional(suffix).filter(|found| *found != expected) {
                let supported = expected.to_string();
                return Err(unsupported("value", &format!("{architecture}.{suffix} = {found}"), &[&supported]));
            }
        }
        let rope_type = metadata.string(&format!("{architecture}.rope.scaling.type")).unwrap_or("default");
        let eps = "attention.layer_norm_rms_epsilon";
        let layer = LayerConfig { window: optional("attention.sliding_window") };
        let config = Self {
            vocab_size,
            hidden_size,
            intermediate_size: required("feed_forward_length")?,
            n_head,
            n_kv_head: optional("attention.head_count_kv").unwrap_or(n_head),
            head_dim,
            rms_norm_eps: float(eps).ok_or_else(|| missing(format!("{architecture}.{eps}")))? as f32,
            rope_theta: float("rope.freq_base").unwrap_or(10_000.0),
            rope_scaling: RopeScaling::new(rope_type, float("rope.scaling.factor"))?,
            trained_context: required("context_length")?,
            tied_embeddings,
            layers: vec![layer; bounded("block_count", required("block_count")?, MAX_LAYERS)?],
            architecture,
        };
        config.checked()
    }

    fn checked(self) -> Result<Self, ConfigError> {
        for (key, found, limit) in [
            ("layers", self.layers.len(), MAX_LAYERS),
            ("attention heads", self.n_head, MAX_HEADS),
            ("key-value heads", self.n_kv_head, MAX_HEADS),
            ("head dimension", self.head_dim, MAX_HEAD_DIM),
            ("hidden size", self.hidden_size, MAX_WIDTH),
            ("intermediate size", self.intermediate_size, MAX_WIDTH),
            ("vocabulary size", self.vocab_size, MAX_VOCAB),
            ("trained context", self.trained_context, MAX_CONTEXT),
        ] {
            bounded(key, found, limit)?;
        }
        let invalid = |key: &str, found: String, problem: &str| {
            Err(ConfigError::Invalid { key: key.into(), found, problem: problem.into() })
        };
        if !self.n_head.is_multiple_of(self.n_kv_head) {
            return invalid("key-value heads", self.n_kv_head.to_string(), "must divide the attention heads");
        }
        if !self.head_dim.is_multiple_of(2) || self.head_dim < 4 {
            return invalid("head dimension", self.head_dim.to_string(), "must be even and at least 4");
        }
        if !(self.rms_norm_eps > 0.0 && self.rms_norm_eps < 1.0) {
            return invalid("rms_norm_eps", self.rms_norm_eps.to_string(), "must be between 0 and 1");
        }
        if !(self.rope_theta > 1.0 && self.rope_theta < 1e15) {
            return invalid("rope_theta", self.rope_theta.to_string(), "must be between 1 and 1e15");
        }
        if self.layers.iter().any(|layer| layer.window == Some(0)) {
            return invalid("sliding_window", "0".into(), "must be at least 1");
        }
        Ok(self)
    }
}

fn bounded(key: &str, found: usize, limit: usize) -> Result<usize, ConfigError> {
    if (1..=limit).contains(&found) {
        return Ok(found);
    }
    let problem = format!("must be between 1 and {limit}");
    Err(ConfigError::Invalid { key: key.into(), found: found.to_string(), problem })
}

fn unsupported(what: &'static str, found: &str, supported: &[&str]) -> ConfigError {
    ConfigError::Unsupported { what, found: found.into(), supported: supported.join(", ") }
}

/// The fields of `config.json` that are read; others are ignored, as every release of the writer adds some.
#[derive(Deserialize)]
struct HfConfig {
    model_type: String,
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    rms_norm_eps: f64,
    max_position_embeddings: usize,
    hidden_act: Option<String>,
    #[serde(default)]
    tie_word_embeddings: bool,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    sliding_window: Option<usize>,
    rope_theta: Option<f64>,
    /// The older spelling.
    rope_scaling: Option<HfRope>,
    /// The newer spelling, which holds the base as well.
    rope_parameters: Option<HfRope>,
}

#[derive(Default, Deserialize)]
struct HfRope {
    rope_theta: Option<f64>,
    rope_type: Option<String>,
    #[serde(rename = "type")]
    older_type: Option<String>,
    factor: Option<f64>,
    partial_rotary_factor: Option<f64>,
}

impl HfConfig {
    fn into_config(self) -> Result<ModelConfig, ConfigError> {
        if !ARCHITECTURES.contains(&self.model_type.as_str()) {
            return Err(unsupported("architecture", &self.model_type, ARCHITECTURES));
        }
        let activation = self.hidden_act.as_deref().unwrap_or("silu");
        if activation != "silu" {
            return Err(unsupported("activation", activation, &["silu"]));
        }
        for (key, flag) in [("attention_bias = true", self.attention_bias), ("mlp_bias = true", self.mlp_bias)] {
            if flag {
                return Err(unsupported("value", key, &["false"]));
            }
        }
        let rope = self.rope_parameters.or(self.rope_scaling).unwrap_or_default();
        if let Some(share) = rope.partial_rotary_factor.filter(|share| *share != 1.0) {
            return Err(unsupported("value", &format!("partial_rotary_factor = {share}"), &["1"]));
        }
        let rope_type = rope.rope_type.or(rope.older_type).unwrap_or_else(|| "default".into());
        let n_layer = bounded("num_hidden_layers", self.num_hidden_layers, MAX_LAYERS)?;
        let window = self.sliding_window.filter(|_| self.model_type == "mistral");
        let config = ModelConfig {
            architecture: self.model_type,
            vocab_size: self.vocab_size,
            hidden_size: self.hidden_size,
            intermediate_size: self.intermediate_size,
            n_head: self.num_attention_heads,
            n_kv_head: self.num_key_value_heads.unwrap_or(self.num_attention_heads),
            head_dim: self.head_dim.unwrap_or(self.hidden_size / self.num_attention_heads.max(1)),
            rms_norm_eps: self.rms_norm_eps as f32,
            rope_theta: rope.rope_theta.or(self.rope_theta).unwrap_or(10_000.0),
            rope_scaling: RopeScaling::new(&rope_type, rope.factor)?,
            trained_context: self.max_position_embeddings,
            tied_embeddings: self.tie_word_embeddings,
            layers: vec![LayerConfig { window }; n_layer],
        };
        config.checked()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn base() -> serde_json::Value {
        json!({
            "model_type": "llama", "vocab_size": 256, "hidden_size": 128, "intermediate_size": 192,
            "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
            "rms_norm_eps": 1e-5, "max_position_embeddings": 512, "rope_theta": 5e5
        })
    }

    fn read(change: serde_json::Value) -> Result<ModelConfig, ConfigError> {
        let mut file = base();
        for (key, value) in change.as_object().unwrap() {
            file[key] = value.clone();
        }
        ModelConfig::from_json(file.to_string().as_bytes())
    }

    #[test]
    fn both_spellings_of_rope_are_read() {
        let older = read(json!({"rope_scaling": {"type": "linear", "factor": 4.0}})).unwrap();
        let newer =
            read(json!({"rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": 4.0}})).unwrap();
        assert_eq!(older, newer);
        assert_eq!((older.rope_theta, older.rope_scaling), (5e5, RopeScaling::Linear { factor: 4.0 }));
        assert_eq!(read(json!({"rope_scaling": null})).unwrap().rope_scaling, RopeScaling::Default);
        let ntk = read(json!({"rope_scaling": {"rope_type": "ntk", "factor": 2}})).unwrap();
        assert_eq!(ntk.rope_scaling, RopeScaling::Ntk { factor: 2.0 });
    }

    #[test]
    fn dimensions_that_are_not_given_follow_from_others() {
        let config = read(json!({"num_key_value_heads": null})).unwrap();
        assert_eq!((config.head_dim, config.n_kv_head, config.group(), config.n_layer()), (32, 4, 1, 4));
        assert_eq!(read(json!({"head_dim": 64})).unwrap().head_dim, 64);
    }

    #[test]
    fn a_window_counts_only_where_the_family_uses_it() {
        let window =
            |model_type: &str| read(json!({"model_type": model_type, "sliding_window": 32})).unwrap().layers[3].window;
        assert_eq!((window("mistral"), window("llama")), (Some(32), None));
    }

    #[test]
    fn what_is_not_built_is_named_with_what_is() {
        for (change, found, supported) in [
            (json!({"model_type": "mamba"}), "mamba", "llama, mistral"),
            (json!({"rope_scaling": {"rope_type": "longrope"}}), "longrope", "default, linear, ntk"),
            (json!({"hidden_act": "relu"}), "relu", "silu"),
            (json!({"attention_bias": true}), "attention_bias", "false"),
            (json!({"rope_parameters": {"partial_rotary_factor": 0.5}}), "partial_rotary_factor", "1"),
        ] {
            let error = read(change).unwrap_err();
            assert!(matches!(error, ConfigError::Unsupported { .. }), "{error}");
            let message = error.to_string();
            assert!(message.contains(found) && message.ends_with(supported), "{message}");
        }
    }

    #[test]
    fn absurd_values_are_refused() {
        for change in [
            json!({"num_hidden_layers": 0}),
            json!({"num_hidden_layers": 1u64 << 40}),
            json!({"num_attention_heads": 0}),
            json!({"num_key_value_heads": 3}),
            json!({"num_key_value_heads": 0}),
            json!({"head_dim": 31}),
            json!({"head_dim": 2}),
            json!({"hidden_size": 1u64 << 60}),
            json!({"vocab_size": 1u64 << 40}),
            json!({"max_position_embeddings": u64::MAX}),
            json!({"rms_norm_eps": 0}),
            json!({"rope_theta": -1}),
            json!({"model_type": "mistral", "sliding_window": 0}),
            json!({"rope_scaling": {"type": "linear", "factor": 0}}),
            json!({"rope_scaling": {"type": "linear", "factor": 1e300}}),
        ] {
            let text = change.to_string();
            assert!(matches!(read(change), Err(ConfigError::Invalid { .. })), "{text}");
        }
        let missing = read(json!({"rope_scaling": {"type": "linear"}}));
        assert!(matches!(missing, Err(ConfigError::Missing { .. })));
        for change in [json!({"vocab_size": -1}), json!({"hidden_size": "128"}), json!({"hidden_size": null})] {
            assert!(matches!(read(change), Err(ConfigError::Json(_))));
        }
        assert!(matches!(ModelConfig::from_json(b"{"), Err(ConfigError::Json(_))));
    }
}
