//! Metadata of a GGUF file. What its format leaves implicit is written down in llama.cpp's loader of each architecture.

use crate::engine::config::hugging_face::NO_ROPE_INTERVAL;
use crate::engine::config::rope::RopeParameters;
use crate::engine::config::{
    Activation, ConfigError, Family, GGUF_ARCHITECTURES, LayerConfig, LayerRope, MAX_LAYERS, ModelConfig, RopeBase,
    RopeScaling, bounded, gemma_embedding_scale, unsupported,
};
use crate::engine::gguf::{GgufArray, GgufMetadata, GgufValue};

/// Every so many layers of Gemma 3 see everything, where the file does not say.
const GEMMA3_WINDOW_PATTERN: usize = 6;
/// Base of the layers with a window, where the file does not say.
const GEMMA3_WINDOW_THETA: f64 = 10_000.0;
/// Gemma 3 with 27 billion parameters is the only one that scales queries by its width per head, and has this many layers.
const GEMMA3_27B_LAYERS: usize = 62;

/// What only a file's tensors tell.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GgufTensorFacts {
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Whether there is no output layer.
    pub tied_embeddings: bool,
    /// Whether the first layer has a bias on Q.
    pub qkv_bias: bool,
    /// Whether the first layer has a bias after attention.
    pub out_bias: bool,
    /// `rope_freqs.weight`, `[head_dim / 2]`; empty where there is none.
    pub rope_factors: Vec<f32>,
}

struct Keys<'a> {
    metadata: &'a GgufMetadata,
    architecture: &'a str,
}

impl Keys<'_> {
    fn key(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.architecture)
    }

    fn value(&self, suffix: &str) -> Option<&GgufValue> {
        self.metadata.get(&self.key(suffix))
    }

    fn wrong_kind(&self, suffix: &str, needed: &str) -> ConfigError {
        let problem = format!("must be {needed}");
        ConfigError::Invalid { key: self.key(suffix), found: "of another kind".into(), problem }
    }

    fn optional(&self, suffix: &str) -> Result<Option<usize>, ConfigError> {
        if self.value(suffix).is_none() {
            return Ok(None);
        }
        let number = self.metadata.unsigned(&self.key(suffix)).and_then(|number| usize::try_from(number).ok());
        number.map(Some).ok_or_else(|| self.wrong_kind(suffix, "an unsigned number"))
    }

    fn required(&self, suffix: &str) -> Result<usize, ConfigError> {
        self.optional(suffix)?.ok_or_else(|| ConfigError::Missing { key: self.key(suffix) })
    }

    fn float(&self, suffix: &str) -> Result<Option<f64>, ConfigError> {
        if self.value(suffix).is_none() {
            return Ok(None);
        }
        self.metadata.float(&self.key(suffix)).map(Some).ok_or_else(|| self.wrong_kind(suffix, "a number"))
    }

    /// Refuses values that would change the arithmetic in a way that is not built.
    fn only(&self, suffix: &str, supported: f64) -> Result<(), ConfigError> {
        match self.float(suffix)? {
            Some(found) if found != supported => {
                let found = format!("{} = {found}", self.key(suffix));
                Err(unsupported("value", &found, &[&supported.to_string()]))
            }
            _ => Ok(()),
        }
    }
}

impl ModelConfig {
    /// Reads GGUF metadata.
    pub fn from_gguf(metadata: &GgufMetadata, facts: GgufTensorFacts) -> Result<Self, ConfigError> {
        let key = "general.architecture";
        let architecture = metadata.string(key).ok_or_else(|| ConfigError::Missing { key: key.into() })?;
        let family = Family::of(architecture).filter(|_| GGUF_ARCHITECTURES.contains(&architecture));
        let family = family.ok_or_else(|| unsupported("architecture", architecture, GGUF_ARCHITECTURES))?;
        let keys = Keys { metadata, architecture };
        let (hidden_size, n_head) = (keys.required("embedding_length")?, keys.required("attention.head_count")?);
        let head_dim = keys.optional("attention.key_length")?.unwrap_or(hidden_size / n_head.max(1));
        keys.only("rope.dimension_count", head_dim as f64)?;
        keys.only("attention.value_length", head_dim as f64)?;
        for suffix in ["expert_count", "attn_logit_softcapping", "final_logit_softcapping"] {
            keys.only(suffix, 0.0)?;
        }
        let eps = "attention.layer_norm_rms_epsilon";
        let eps = keys.float(eps)?.ok_or_else(|| ConfigError::Missing { key: keys.key(eps) })?;
        let n_layer = bounded("block_count", keys.required("block_count")?, MAX_LAYERS)?;
        let trained_context = keys.required("context_length")?;
        let is_gemma = family == Family::Gemma3;
        let scale_width = if is_gemma && n_layer == GEMMA3_27B_LAYERS { hidden_size / n_head.max(1) } else { head_dim };
        let own_scaling = scaling(&keys, trained_context)?;
        let rope_scaling = match (facts.rope_factors.is_empty(), own_scaling) {
            (true, scaling) => scaling,
            (false, RopeScaling::Default) => RopeScaling::PerDimension,
            (false, other) => {
                return Err(unsupported("rope_freqs.weight together with rope scaling", &other.to_string(), &["none"]));
            }
        };
        let config = Self {
            architecture: architecture.into(),
            family,
            vocab_size: facts.vocab_size,
            hidden_size,
            intermediate_size: keys.required("feed_forward_length")?,
            n_head,
            n_kv_head: keys.optional("attention.head_count_kv")?.unwrap_or(n_head),
            head_dim,
            rms_norm_eps: eps as f32,
            rope_theta: keys.float("rope.freq_base")?.unwrap_or(10_000.0),
            rope_scaling,
            rope_factors: facts.rope_factors,
            window_rope: window_rope(&keys, family)?,
            attention_scale: (1.0 / (scale_width as f64).sqrt()) as f32,
            qk_norm: family.norms_heads(),
            qkv_bias: family == Family::Qwen2 || facts.qkv_bias,
            out_bias: facts.out_bias,
            post_norms: is_gemma,
            activation: if is_gemma { Activation::GeluTanh } else { Activation::Silu },
            embedding_scale: is_gemma.then(|| gemma_embedding_scale(hidden_size)),
            trained_context,
            tied_embeddings: facts.tied_embeddings,
            layers: layers(&keys, family, n_layer)?,
        };
        config.checked()
    }
}

fn scaling(keys: &Keys<'_>, trained_context: usize) -> Result<RopeScaling, ConfigError> {
    for suffix in ["attn_factor", "yarn_attn_factor", "yarn_ext_factor"] {
        keys.only(&format!("rope.scaling.{suffix}"), 1.0)?;
    }
    keys.only("rope.scaling.yarn_log_multiplier", 0.0)?;
    let factor = keys.float("rope.scaling.factor")?;
    let factor = if factor.is_some() { factor } else { keys.float("rope.scale_linear")? };
    let factor = factor.filter(|factor| *factor != 0.0);
    let key = keys.key("rope.scaling.type");
    let rope_type = match (keys.value("rope.scaling.type"), keys.metadata.string(&key)) {
        (Some(_), None) => return Err(keys.wrong_kind("rope.scaling.type", "text")),
        (None, _) => "linear",
        (Some(_), Some(rope_type)) => rope_type,
    };
    // A linear scaling without a factor is none: so do files say that nothing is stretched.
    let rope_type = if rope_type == "linear" && factor.is_none() { "none" } else { rope_type };
    let parameters = RopeParameters {
        rope_type: Some(rope_type.into()),
        factor,
        original_max_position_embeddings: keys.optional("rope.scaling.original_context_length")?,
        beta_fast: keys.float("rope.scaling.yarn_beta_fast")?,
        beta_slow: keys.float("rope.scaling.yarn_beta_slow")?,
        ..RopeParameters::default()
    };
    parameters.scaling(trained_context)
}

/// Layers with a window are never stretched in Gemma 3.
fn window_rope(keys: &Keys<'_>, family: Family) -> Result<Option<RopeBase>, ConfigError> {
    if family != Family::Gemma3 {
        return Ok(None);
    }
    let theta = keys.float("rope.freq_base_swa")?.unwrap_or(GEMMA3_WINDOW_THETA);
    Ok(Some(RopeBase { theta, scaling: RopeScaling::Default }))
}

fn layers(keys: &Keys<'_>, family: Family, n_layer: usize) -> Result<Vec<LayerConfig>, ConfigError> {
    let window = keys.optional("attention.sliding_window")?;
    let global = |window| LayerConfig { window, rope: LayerRope::Global };
    match family {
        Family::Gemma3 => {
            let window = window.ok_or_else(|| ConfigError::Missing { key: keys.key("attention.sliding_window") })?;
            let slides = gemma_window_layers(keys, n_layer)?;
            let sliding = LayerConfig { window: Some(window), rope: LayerRope::Window };
            Ok(slides.into_iter().map(|slides| if slides { sliding.clone() } else { global(None) }).collect())
        }
        Family::SmolLm3 => {
            let rope = |i: usize| if i.is_multiple_of(NO_ROPE_INTERVAL) { LayerRope::None } else { LayerRope::Global };
            Ok((1..=n_layer).map(|i| LayerConfig { window: None, rope: rope(i) }).collect())
        }
        Family::Llama | Family::Mistral => Ok(vec![global(window); n_layer]),
        Family::Qwen2 | Family::Qwen3 => Ok(vec![global(None); n_layer]),
    }
}

/// A period, or one flag per layer.
fn gemma_window_layers(keys: &Keys<'_>, n_layer: usize) -> Result<Vec<bool>, ConfigError> {
    let suffix = "attention.sliding_window_pattern";
    if let Some(GgufValue::Array(array)) = keys.value(suffix) {
        return match array {
            GgufArray::Bool(flags) if flags.len() == n_layer => Ok(flags.clone()),
            _ => Err(keys.wrong_kind(suffix, &format!("a number or {n_layer} flags"))),
        };
    }
    let pattern = bounded(suffix, keys.optional(suffix)?.unwrap_or(GEMMA3_WINDOW_PATTERN), MAX_LAYERS)?;
    Ok((1..=n_layer).map(|i| !i.is_multiple_of(pattern)).collect())
}
