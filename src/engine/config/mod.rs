//! What a model is, from `config.json` or GGUF metadata: dimensions, RoPE, and what each layer has of its own.

mod gguf;
mod hugging_face;
mod rope;

pub use gguf::GgufTensorFacts;
pub use rope::{ROPE_TYPES, RopeScaling};

/// Architectures that can be run: `model_type` of `config.json`.
pub const ARCHITECTURES: &[&str] = &["llama", "mistral", "qwen2", "qwen3", "gemma3", "gemma3_text", "smollm3"];
/// The same for `general.architecture` of a GGUF file, where Mistral travels as `llama`.
pub const GGUF_ARCHITECTURES: &[&str] = &["llama", "qwen2", "qwen3", "gemma3", "smollm3"];

/// Far above every dense model that fits a CPU; keeps products of dimensions inside `usize` and allocations sane.
const MAX_LAYERS: usize = 1024;
const MAX_HEADS: usize = 1024;
const MAX_HEAD_DIM: usize = 1024;
const MAX_WIDTH: usize = 1 << 18;
const MAX_VOCAB: usize = 1 << 22;
/// Token positions are exact in the arithmetic of RoPE and in every index far beyond this.
pub const MAX_CONTEXT: usize = 1 << 24;

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

/// Which decoder it is. What follows from that is said by the fields of [`ModelConfig`]; the rest is how files store it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Llama 2 and 3, SmolLM2, TinyLlama, ...
    Llama,
    /// Llama with a window on every layer.
    Mistral,
    /// Biases on Q, K and V.
    Qwen2,
    /// A norm on every head of Q and K.
    Qwen3,
    /// Windows with a RoPE of their own, GeGLU, norms before and after attention and MLP.
    Gemma3,
    /// Llama with layers that have no RoPE.
    SmolLm3,
}

impl Family {
    /// By `model_type`, or by `general.architecture`.
    fn of(architecture: &str) -> Option<Self> {
        Some(match architecture {
            "llama" => Self::Llama,
            "mistral" => Self::Mistral,
            "qwen2" => Self::Qwen2,
            "qwen3" => Self::Qwen3,
            "gemma3" | "gemma3_text" => Self::Gemma3,
            "smollm3" => Self::SmolLm3,
            _ => return None,
        })
    }

    /// Whether checkpoints store a norm's weight minus one.
    pub(in crate::engine) fn norms_are_offsets(self) -> bool {
        self == Self::Gemma3
    }

    /// Whether GGUF files interleave the halves of each head of Q and K.
    pub(in crate::engine) fn interleaves_heads_in_gguf(self) -> bool {
        matches!(self, Self::Llama | Self::Mistral | Self::SmolLm3)
    }

    /// Whether Q and K are normed per head.
    fn norms_heads(self) -> bool {
        matches!(self, Self::Qwen3 | Self::Gemma3)
    }
}

/// What the MLP applies to its gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x / (1 + e⁻ˣ)`.
    Silu,
    /// `x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))`.
    GeluTanh,
}

/// Which rotary angles a layer uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerRope {
    /// None: positions are known from the causal mask alone.
    None,
    /// The model's.
    Global,
    /// Those of [`ModelConfig::window_rope`].
    Window,
}

/// What one layer has of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerConfig {
    /// Attention sees only the last `window` positions, the query's own included.
    pub window: Option<usize>,
    /// Its rotary angles.
    pub rope: LayerRope,
}

/// A base and how its angles are stretched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeBase {
    /// Base of the rotary frequencies.
    pub theta: f64,
    /// Their scaling.
    pub scaling: RopeScaling,
}

/// Dimensions and constants of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// One of [`ARCHITECTURES`] or [`GGUF_ARCHITECTURES`].
    pub architecture: String,
    /// Which decoder that is.
    pub family: Family,
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
    /// `[head_dim / 2]` divisors of [`RopeScaling::PerDimension`]; else empty.
    pub rope_factors: Vec<f32>,
    /// Angles of layers with [`LayerRope::Window`].
    pub window_rope: Option<RopeBase>,
    /// Multiplies Q·K.
    pub attention_scale: f32,
    /// Whether each head of Q and K passes an RMSNorm before RoPE.
    pub qk_norm: bool,
    /// Whether Q, K and V have biases.
    pub qkv_bias: bool,
    /// Whether the projection after attention has one.
    pub out_bias: bool,
    /// Whether what attention and MLP add to the residual stream is normed first.
    pub post_norms: bool,
    /// Of the MLP's gate.
    pub activation: Activation,
    /// Multiplies embeddings on their way in.
    pub embedding_scale: Option<f32>,
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

    /// BLAKE3 over all fields, in hex. The derived `Debug` names every field of every type in here, new ones too, and
    /// writes floats so that different ones differ.
    pub fn fingerprint(&self) -> String {
        blake3::hash(format!("{self:?}").as_bytes()).to_hex().to_string()
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
        for theta in [Some(self.rope_theta), self.window_rope.map(|rope| rope.theta)].into_iter().flatten() {
            if !(theta > 1.0 && theta < 1e15) {
                return invalid("rope_theta", theta.to_string(), "must be between 1 and 1e15");
            }
        }
        if !(self.attention_scale > 0.0 && self.attention_scale <= 1.0) {
            return invalid("attention scale", self.attention_scale.to_string(), "must be above 0 and at most 1");
        }
        let factors = &self.rope_factors;
        let needed = if self.rope_scaling == RopeScaling::PerDimension { self.head_dim / 2 } else { 0 };
        if factors.len() != needed || factors.iter().any(|factor| !(factor.is_finite() && *factor > 0.0)) {
            let problem = format!("must be {needed} numbers above 0");
            return invalid("rope factors", format!("{} numbers", factors.len()), &problem);
        }
        if self.layers.iter().any(|layer| layer.window == Some(0)) {
            return invalid("sliding_window", "0".into(), "must be at least 1");
        }
        Ok(self)
    }
}

/// The square root of the width, rounded to BF16 as the checkpoint's own software does.
fn gemma_embedding_scale(hidden_size: usize) -> f32 {
    half::bf16::from_f32((hidden_size as f32).sqrt()).to_f32()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> ModelConfig {
        let text = br#"{"model_type": "llama", "vocab_size": 32, "hidden_size": 16, "intermediate_size": 32,
            "num_hidden_layers": 2, "num_attention_heads": 2, "rms_norm_eps": 1e-5, "max_position_embeddings": 64,
            "rope_theta": 10000.0, "hidden_act": "silu"}"#;
        ModelConfig::from_json(text, true).unwrap()
    }

    #[test]
    fn every_field_changes_the_fingerprint() {
        let changes: [fn(&mut ModelConfig); 22] = [
            |c| c.architecture.push('x'),
            |c| c.family = Family::Qwen2,
            |c| c.vocab_size += 1,
            |c| c.hidden_size += 1,
            |c| c.intermediate_size += 1,
            |c| c.n_head += 1,
            |c| c.n_kv_head += 1,
            |c| c.head_dim += 2,
            |c| c.rms_norm_eps = c.rms_norm_eps.next_up(),
            |c| c.rope_theta = c.rope_theta.next_up(),
            |c| c.rope_scaling = RopeScaling::Linear { factor: 2.0 },
            |c| c.rope_factors.push(1.0),
            |c| c.window_rope = Some(RopeBase { theta: 10_000.0, scaling: RopeScaling::Default }),
            |c| c.attention_scale = c.attention_scale.next_up(),
            |c| c.qk_norm = !c.qk_norm,
            |c| c.qkv_bias = !c.qkv_bias,
            |c| c.out_bias = !c.out_bias,
            |c| c.post_norms = !c.post_norms,
            |c| c.activation = Activation::GeluTanh,
            |c| c.embedding_scale = Some(1.0),
            |c| c.trained_context += 1,
            |c| c.tied_embeddings = !c.tied_embeddings,
        ];
        let layers: [fn(&mut ModelConfig); 2] =
            [|c| c.layers[1].window = Some(8), |c| c.layers[1].rope = LayerRope::None];
        let mut seen = std::collections::BTreeSet::from([config().fingerprint()]);
        for (i, change) in changes.iter().chain(&layers).enumerate() {
            let mut changed = config();
            change(&mut changed);
            assert!(seen.insert(changed.fingerprint()), "change {i}");
        }
        assert_eq!(config().fingerprint(), config().fingerprint());
    }

    #[test]
    fn the_beta_of_a_stretched_rope_changes_the_fingerprint() {
        let with = |beta_fast: f64| {
            let rope_scaling = RopeScaling::Yarn {
                factor: 4.0,
                original_context: 64,
                beta_fast,
                beta_slow: 1.0,
                attention_factor: 1.0,
                truncate: true,
            };
            ModelConfig { rope_scaling, ..config() }.fingerprint()
        };
        assert_ne!(with(32.0), with(16.0));
    }
}
