//! `config.json` of a Hugging Face folder.

use serde::Deserialize;

use crate::engine::config::rope::RopeParameters;
use crate::engine::config::{
    ARCHITECTURES, Activation, ConfigError, Family, LayerConfig, LayerRope, MAX_LAYERS, ModelConfig, RopeBase, bounded,
    gemma_embedding_scale, unsupported,
};

/// The fields that are read; others are ignored, as every release of the writer adds some. What is optional has a
/// default in the writer's own software, for some families only.
#[derive(Deserialize)]
struct HfConfig {
    #[serde(default)]
    model_type: String,
    /// A model that also sees images keeps its decoder's fields in here.
    text_config: Option<Box<HfConfig>>,
    vocab_size: Option<usize>,
    hidden_size: Option<usize>,
    intermediate_size: Option<usize>,
    num_hidden_layers: Option<usize>,
    num_attention_heads: Option<usize>,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    rms_norm_eps: Option<f64>,
    max_position_embeddings: Option<usize>,
    hidden_act: Option<String>,
    /// The name of `hidden_act` in Gemma.
    hidden_activation: Option<String>,
    tie_word_embeddings: Option<bool>,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    query_pre_attn_scalar: Option<f64>,
    attn_logit_softcapping: Option<f64>,
    final_logit_softcapping: Option<f64>,
    #[serde(default)]
    use_bidirectional_attention: bool,
    sliding_window: Option<usize>,
    #[serde(default)]
    use_sliding_window: bool,
    max_window_layers: Option<usize>,
    /// Every how many layers one sees everything.
    #[serde(alias = "_sliding_window_pattern")]
    sliding_window_pattern: Option<usize>,
    layer_types: Option<Vec<String>>,
    /// 1 for a layer that has RoPE, against its name.
    no_rope_layers: Option<Vec<u8>>,
    no_rope_layer_interval: Option<usize>,
    partial_rotary_factor: Option<f64>,
    rope_theta: Option<f64>,
    rope_local_base_freq: Option<f64>,
    /// The older spelling.
    rope_scaling: Option<RopeParameters>,
    /// The newer spelling, which holds the base as well.
    rope_parameters: Option<RopeParameters>,
}

/// What Gemma 3's own software assumes where a file says nothing; published files rely on it.
mod gemma3_default {
    pub(super) const VOCAB_SIZE: usize = 262_208;
    pub(super) const N_HEAD: usize = 8;
    pub(super) const N_KV_HEAD: usize = 4;
    pub(super) const HEAD_DIM: usize = 256;
    pub(super) const CONTEXT: usize = 131_072;
    pub(super) const EPS: f64 = 1e-6;
    pub(super) const QUERY_SCALAR: f64 = 256.0;
    pub(super) const WINDOW: usize = 4096;
    pub(super) const WINDOW_PATTERN: usize = 6;
    pub(super) const WINDOW_THETA: f64 = 10_000.0;
}

/// First layer with a window in Qwen, and its window, where a file says nothing.
const QWEN_FIRST_WINDOW_LAYER: usize = 28;
const QWEN_WINDOW: usize = 4096;
/// Every so many layers of SmolLM3 have no RoPE where a file says nothing.
pub(in crate::engine::config) const NO_ROPE_INTERVAL: usize = 4;

impl ModelConfig {
    /// Reads the text of a Hugging Face `config.json`. `has_output` says whether the tensors have an output layer, which
    /// decides where the file is silent about it.
    pub fn from_json(text: &[u8], has_output: bool) -> Result<Self, ConfigError> {
        let file: HfConfig = serde_json::from_slice(text).map_err(|error| ConfigError::Json(error.to_string()))?;
        let Some(family) = Family::of(&file.model_type) else {
            return Err(unsupported("architecture", &file.model_type, ARCHITECTURES));
        };
        let architecture = file.model_type.clone();
        match file.text_config {
            Some(inner) => {
                let tied = inner.tie_word_embeddings.or(file.tie_word_embeddings);
                HfConfig { tie_word_embeddings: tied, ..*inner }.into_config(architecture, family, has_output)
            }
            None => file.into_config(architecture, family, has_output),
        }
    }
}

impl HfConfig {
    fn into_config(self, architecture: String, family: Family, has_output: bool) -> Result<ModelConfig, ConfigError> {
        self.check_what_is_not_built(family)?;
        let is_gemma = family == Family::Gemma3;
        // A default that only Gemma has.
        let or_gemma = |key: &str, value: Option<usize>, default: usize| {
            let value = value.or(is_gemma.then_some(default));
            value.ok_or_else(|| ConfigError::Missing { key: key.into() })
        };
        let hidden_size = or_missing("hidden_size", self.hidden_size)?;
        let n_head = or_gemma("num_attention_heads", self.num_attention_heads, gemma3_default::N_HEAD)?;
        let gemma_head_dim = is_gemma.then_some(gemma3_default::HEAD_DIM);
        let head_dim = self.head_dim.or(gemma_head_dim).unwrap_or(hidden_size / n_head.max(1));
        let n_kv_head = self.num_key_value_heads.or(is_gemma.then_some(gemma3_default::N_KV_HEAD)).unwrap_or(n_head);
        let trained_context =
            or_gemma("max_position_embeddings", self.max_position_embeddings, gemma3_default::CONTEXT)?;
        let eps = self.rms_norm_eps.or(is_gemma.then_some(gemma3_default::EPS));
        let query_scalar =
            if is_gemma { self.query_pre_attn_scalar.unwrap_or(gemma3_default::QUERY_SCALAR) } else { head_dim as f64 };
        let (rope, window_rope) = self.ropes(family, trained_context)?;
        let config = ModelConfig {
            architecture,
            family,
            vocab_size: or_gemma("vocab_size", self.vocab_size, gemma3_default::VOCAB_SIZE)?,
            hidden_size,
            intermediate_size: or_missing("intermediate_size", self.intermediate_size)?,
            n_head,
            n_kv_head,
            head_dim,
            rms_norm_eps: or_missing("rms_norm_eps", eps)? as f32,
            rope_theta: rope.theta,
            rope_scaling: rope.scaling,
            rope_factors: Vec::new(),
            window_rope,
            attention_scale: (1.0 / query_scalar.sqrt()) as f32,
            qk_norm: family.norms_heads(),
            qkv_bias: family == Family::Qwen2 || self.attention_bias,
            out_bias: family != Family::Qwen2 && self.attention_bias,
            post_norms: is_gemma,
            activation: if is_gemma { Activation::GeluTanh } else { Activation::Silu },
            embedding_scale: is_gemma.then(|| gemma_embedding_scale(hidden_size)),
            trained_context,
            tied_embeddings: self.ties_embeddings(family, has_output),
            layers: self.layers(family, window_rope.is_some())?,
        };
        config.checked()
    }

    fn check_what_is_not_built(&self, family: Family) -> Result<(), ConfigError> {
        let (activation, only) = match family {
            Family::Gemma3 => (&self.hidden_activation, "gelu_pytorch_tanh"),
            _ => (&self.hidden_act, "silu"),
        };
        if let Some(activation) = activation.as_deref().filter(|activation| *activation != only) {
            return Err(unsupported("activation", activation, &[only]));
        }
        for (key, flag) in
            [("mlp_bias", self.mlp_bias), ("use_bidirectional_attention", self.use_bidirectional_attention)]
        {
            if flag {
                return Err(unsupported("value", &format!("{key} = true"), &["false"]));
            }
        }
        for (key, cap) in [
            ("attn_logit_softcapping", self.attn_logit_softcapping),
            ("final_logit_softcapping", self.final_logit_softcapping),
        ] {
            if let Some(cap) = cap {
                return Err(unsupported("value", &format!("{key} = {cap}"), &["null"]));
            }
        }
        match self.partial_rotary_factor {
            Some(share) if share != 1.0 => {
                Err(unsupported("value", &format!("partial_rotary_factor = {share}"), &["1"]))
            }
            _ => Ok(()),
        }
    }

    fn ties_embeddings(&self, family: Family, has_output: bool) -> bool {
        let by_default = matches!(family, Family::Gemma3 | Family::SmolLm3) && !has_output;
        self.tie_word_embeddings.unwrap_or(by_default)
    }

    /// Angles of layers that see everything, and of those with a window where these have their own.
    fn ropes(&self, family: Family, trained_context: usize) -> Result<(RopeBase, Option<RopeBase>), ConfigError> {
        let none = RopeParameters::default();
        // A converter writes the same facts under the older and the newer name. Software disagrees on which of two that
        // differ holds, so neither does.
        if let (Some(parameters), Some(scaling)) = (&self.rope_parameters, &self.rope_scaling)
            && parameters.global().scaling(trained_context)? != scaling.global().scaling(trained_context)?
        {
            return Err(ConfigError::Invalid {
                key: "rope_scaling".into(),
                found: "given beside `rope_parameters`".into(),
                problem: "the two ask for different RoPE scalings".into(),
            });
        }
        let given = self.rope_parameters.as_ref().or(self.rope_scaling.as_ref()).unwrap_or(&none);
        let global = given.global();
        let default_theta = match family {
            Family::Gemma3 => 1e6,
            Family::SmolLm3 => 2e6,
            _ => 10_000.0,
        };
        let theta = global.rope_theta.or(self.rope_theta).unwrap_or(default_theta);
        let rope = RopeBase { theta, scaling: global.scaling(trained_context)? };
        let window = match given.sliding_attention.as_deref() {
            Some(window) => {
                let local_theta = self.rope_local_base_freq.or((family != Family::Gemma3).then_some(theta));
                let theta = window.rope_theta.or(local_theta).unwrap_or(gemma3_default::WINDOW_THETA);
                Some(RopeBase { theta, scaling: window.scaling(trained_context)? })
            }
            None if family == Family::Gemma3 => {
                let theta = self.rope_local_base_freq.unwrap_or(gemma3_default::WINDOW_THETA);
                Some(RopeBase { theta, scaling: none.scaling(trained_context)? })
            }
            None => None,
        };
        Ok((rope, window))
    }

    fn layers(&self, family: Family, windows_have_a_rope: bool) -> Result<Vec<LayerConfig>, ConfigError> {
        let n_layer =
            bounded("num_hidden_layers", or_missing("num_hidden_layers", self.num_hidden_layers)?, MAX_LAYERS)?;
        let has_rope = self.layers_with_rope(family, n_layer)?;
        let window = match family {
            Family::Llama => None,
            Family::Mistral => self.sliding_window,
            Family::Gemma3 => Some(self.sliding_window.unwrap_or(gemma3_default::WINDOW)),
            Family::Qwen2 | Family::Qwen3 if self.use_sliding_window => {
                Some(self.sliding_window.unwrap_or(QWEN_WINDOW))
            }
            Family::SmolLm3 if self.use_sliding_window => Some(or_missing("sliding_window", self.sliding_window)?),
            _ => None,
        };
        let Some(window) = window else {
            let layer = |has_rope| LayerConfig { window: None, rope: global_or_none(has_rope) };
            return Ok(has_rope.into_iter().map(layer).collect());
        };
        let slides = self.layers_with_window(family, &has_rope)?;
        let layer = |(slides, has_rope)| LayerConfig {
            window: if slides { Some(window) } else { None },
            rope: if slides && has_rope && windows_have_a_rope { LayerRope::Window } else { global_or_none(has_rope) },
        };
        Ok(slides.into_iter().zip(has_rope).map(layer).collect())
    }

    fn layers_with_rope(&self, family: Family, n_layer: usize) -> Result<Vec<bool>, ConfigError> {
        if family != Family::SmolLm3 {
            return Ok(vec![true; n_layer]);
        }
        if let Some(flags) = &self.no_rope_layers {
            one_per_layer("no_rope_layers", flags.len(), n_layer)?;
            return Ok(flags.iter().map(|flag| *flag != 0).collect());
        }
        let interval = self.no_rope_layer_interval.unwrap_or(NO_ROPE_INTERVAL);
        let interval = bounded("no_rope_layer_interval", interval, usize::MAX)?;
        Ok((1..=n_layer).map(|i| !i.is_multiple_of(interval)).collect())
    }

    fn layers_with_window(&self, family: Family, has_rope: &[bool]) -> Result<Vec<bool>, ConfigError> {
        let n_layer = has_rope.len();
        if let Some(types) = &self.layer_types {
            one_per_layer("layer_types", types.len(), n_layer)?;
            let slides = |kind: &String| match kind.as_str() {
                "sliding_attention" => Ok(true),
                "full_attention" => Ok(false),
                other => Err(unsupported("layer type", other, &["full_attention", "sliding_attention"])),
            };
            return types.iter().map(slides).collect();
        }
        let pattern = self.sliding_window_pattern.unwrap_or(gemma3_default::WINDOW_PATTERN);
        let pattern = bounded("sliding_window_pattern", pattern, usize::MAX)?;
        let first = self.max_window_layers.unwrap_or(QWEN_FIRST_WINDOW_LAYER);
        let slides = |i: usize| match family {
            Family::Gemma3 => !(i + 1).is_multiple_of(pattern),
            Family::Qwen2 | Family::Qwen3 => i >= first,
            Family::SmolLm3 => !has_rope[i],
            Family::Llama | Family::Mistral => true,
        };
        Ok((0..n_layer).map(slides).collect())
    }
}

fn global_or_none(has_rope: bool) -> LayerRope {
    if has_rope { LayerRope::Global } else { LayerRope::None }
}

fn or_missing<T>(key: &str, value: Option<T>) -> Result<T, ConfigError> {
    value.ok_or_else(|| ConfigError::Missing { key: key.into() })
}

fn one_per_layer(key: &str, found: usize, n_layer: usize) -> Result<(), ConfigError> {
    if found == n_layer {
        return Ok(());
    }
    let problem = format!("must have one entry for each of {n_layer} layers");
    Err(ConfigError::Invalid { key: key.into(), found: format!("{found} long"), problem })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::config::RopeScaling;
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
        ModelConfig::from_json(file.to_string().as_bytes(), true)
    }

    #[test]
    fn both_spellings_of_rope_are_read() {
        let older = read(json!({"rope_scaling": {"type": "linear", "factor": 4.0}})).unwrap();
        let newer =
            read(json!({"rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": 4.0}})).unwrap();
        assert_eq!(older, newer);
        assert_eq!((older.rope_theta, older.rope_scaling), (5e5, RopeScaling::Linear { factor: 4.0 }));
        assert_eq!(read(json!({"rope_scaling": null})).unwrap().rope_scaling, RopeScaling::Default);
        let both = |factor: f64| {
            read(json!({"rope_scaling": {"type": "linear", "factor": 4.0},
                "rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": factor}}))
        };
        assert_eq!(both(4.0).unwrap(), newer);
        assert!(both(8.0).unwrap_err().to_string().contains("beside `rope_parameters`"));
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
        let windows = |change| read(change).unwrap().layers.iter().map(|layer| layer.window).collect::<Vec<_>>();
        let (all, none) = (vec![Some(32); 4], vec![None; 4]);
        for (change, expected) in [
            (json!({"model_type": "mistral"}), &all),
            (json!({"model_type": "llama"}), &none),
            (json!({"model_type": "qwen2"}), &none),
            (json!({"model_type": "qwen3", "use_sliding_window": true}), &none),
            (json!({"model_type": "smollm3", "layer_types": ["sliding_attention"]}), &none),
        ] {
            let mut change = change;
            change["sliding_window"] = 32.into();
            assert_eq!(windows(change.clone()), *expected, "{change}");
        }
        let qwen =
            json!({"model_type": "qwen2", "sliding_window": 32, "use_sliding_window": true, "max_window_layers": 3});
        assert_eq!(windows(qwen), [None, None, None, Some(32)]);
        let smollm3 = json!({"model_type": "smollm3", "sliding_window": 32, "use_sliding_window": true});
        assert_eq!(windows(smollm3), [None, None, None, Some(32)], "layers without RoPE have it by default");
    }

    #[test]
    fn smollm3_names_its_layers_without_rope() {
        let ropes = |change| read(change).unwrap().layers.iter().map(|layer| layer.rope).collect::<Vec<_>>();
        let (global, none) = (LayerRope::Global, LayerRope::None);
        assert_eq!(ropes(json!({"model_type": "smollm3"})), [global, global, global, none]);
        assert_eq!(ropes(json!({"model_type": "smollm3", "no_rope_layer_interval": 2})), [global, none, global, none]);
        let listed = json!({"model_type": "smollm3", "no_rope_layers": [0, 1, 1, 1]});
        assert_eq!(ropes(listed), [none, global, global, global]);
        let short = read(json!({"model_type": "smollm3", "no_rope_layers": [0, 1]})).unwrap_err().to_string();
        assert!(short.contains("no_rope_layers") && short.contains("4 layers"), "{short}");
    }

    #[test]
    fn gemma3_has_two_ropes_and_defaults_for_what_its_files_leave_out() {
        // The shape of a published file with images: nearly everything is left to defaults.
        let text = json!({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "hidden_size": 2560,
            "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}});
        let config = ModelConfig::from_json(text.to_string().as_bytes(), false).unwrap();
        assert_eq!((config.n_head, config.n_kv_head, config.head_dim), (8, 4, 256));
        assert_eq!((config.rope_theta, config.rope_scaling), (1e6, RopeScaling::Linear { factor: 8.0 }));
        assert_eq!(config.window_rope, Some(RopeBase { theta: 1e4, scaling: RopeScaling::Default }));
        assert_eq!((config.attention_scale, config.tied_embeddings), (1.0 / 16.0, true));
        assert_eq!(config.embedding_scale, Some(50.5), "√2560 = 50.596 in BF16");
        for (index, layer) in config.layers.iter().enumerate() {
            let (window, rope) =
                if index % 6 == 5 { (None, LayerRope::Global) } else { (Some(1024), LayerRope::Window) };
            assert_eq!((layer.window, layer.rope), (window, rope), "layer {index}");
        }
        let newer = read(json!({"model_type": "gemma3_text", "query_pre_attn_scalar": 64, "rope_theta": null,
            "rope_parameters": {"full_attention": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2},
                "sliding_attention": {"rope_theta": 2e4, "rope_type": "default"}}}));
        let newer = newer.unwrap();
        assert_eq!((newer.rope_theta, newer.rope_scaling), (5e5, RopeScaling::Linear { factor: 2.0 }));
        assert_eq!(newer.window_rope, Some(RopeBase { theta: 2e4, scaling: RopeScaling::Default }));
        assert_eq!((newer.attention_scale, newer.tied_embeddings), (0.125, false));
        let older =
            read(json!({"model_type": "gemma3_text", "rope_local_base_freq": 3e4, "sliding_window_pattern": 2}));
        let older = older.unwrap();
        assert_eq!(older.window_rope.unwrap().theta, 3e4);
        assert_eq!(
            older.layers.iter().map(|layer| layer.window.is_some()).collect::<Vec<_>>(),
            [true, false, true, false]
        );
    }

    #[test]
    fn what_is_not_built_is_named_with_what_is() {
        for (change, found, supported) in [
            (json!({"model_type": "mamba"}), "mamba", "llama, mistral, qwen2, qwen3, gemma3, gemma3_text, smollm3"),
            (
                json!({"rope_scaling": {"rope_type": "longrope"}}),
                "longrope",
                "default, linear, dynamic, ntk, yarn, llama3",
            ),
            (json!({"hidden_act": "relu"}), "relu", "silu"),
            (json!({"model_type": "gemma3", "hidden_activation": "silu"}), "silu", "gelu_pytorch_tanh"),
            (json!({"mlp_bias": true}), "mlp_bias", "false"),
            (json!({"model_type": "gemma3", "attn_logit_softcapping": 50}), "attn_logit_softcapping", "null"),
            (json!({"model_type": "gemma3", "final_logit_softcapping": 30.0}), "final_logit_softcapping", "null"),
            (json!({"model_type": "gemma3", "use_bidirectional_attention": true}), "use_bidirectional", "false"),
            (
                json!({"model_type": "gemma3", "layer_types": vec!["chunked_attention"; 4]}),
                "chunked",
                "sliding_attention",
            ),
            (json!({"rope_parameters": {"partial_rotary_factor": 0.5}}), "partial_rotary_factor", "1"),
            (json!({"partial_rotary_factor": 0.5}), "partial_rotary_factor", "1"),
        ] {
            let error = read(change).unwrap_err();
            assert!(matches!(error, ConfigError::Unsupported { .. }), "{error}");
            let message = error.to_string();
            assert!(message.contains(found) && message.ends_with(supported), "{message}");
        }
    }

    #[test]
    fn biases_are_where_the_family_or_the_file_says() {
        let biases = |change| {
            let config = read(change).unwrap();
            (config.qkv_bias, config.out_bias)
        };
        assert_eq!(biases(json!({})), (false, false));
        assert_eq!(biases(json!({"attention_bias": true})), (true, true));
        assert_eq!(biases(json!({"model_type": "qwen2"})), (true, false));
        assert_eq!(biases(json!({"model_type": "qwen3", "attention_bias": true})), (true, true));
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
        for change in
            [json!({"rope_scaling": {"type": "linear"}}), json!({"hidden_size": null}), json!({"vocab_size": null})]
        {
            assert!(matches!(read(change), Err(ConfigError::Missing { .. })));
        }
        for change in [json!({"vocab_size": -1}), json!({"hidden_size": "128"})] {
            assert!(matches!(read(change), Err(ConfigError::Json(_))));
        }
        assert!(matches!(ModelConfig::from_json(b"{", true), Err(ConfigError::Json(_))));
    }
}
