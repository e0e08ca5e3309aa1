//! What a cache shall store: one codec and its static scales per layer, out of the model and the options.

use crate::engine::config::ModelConfig;
use crate::engine::kv_cache::codec::{self, KvCodec, KvRounding, UnknownDtype};
use crate::engine::kv_cache::paged::BLOCK_TOKENS;
use crate::engine::kv_cache::scales::LayerScales;
use crate::engine::options::{EngineOptions, Fault, Mechanism, StoredLayer};

/// The dtype of layers that are skipped: that of the model.
const MODEL_DTYPE: &str = "bfloat16";
/// The word for all layers that see only the last positions.
const SLIDING_WINDOW: &str = "sliding_window";

/// How one layer is stored.
#[derive(Clone)]
pub struct LayerPlan {
    /// Its codec.
    pub codec: &'static dyn KvCodec,
    /// Static scales; 1.0 where the codec takes none.
    pub scales: LayerScales,
}

/// How a cache is laid out and written.
#[derive(Clone)]
pub struct CachePlan {
    /// All layers.
    pub layers: Vec<LayerPlan>,
    /// KV heads per layer.
    pub n_kv_head: usize,
    /// Values per head.
    pub head_dim: usize,
    /// Tokens per block, a multiple of 16.
    pub block_tokens: usize,
    /// How 8-bit floats are cast.
    pub rounding: KvRounding,
    /// Planted Gaussian noise on K and V: its standard deviation as a share of each row's root mean square.
    pub noise: [f32; 2],
}

/// An option of the cache that does not fit the model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KvOptionError {
    /// An index past the last layer.
    #[error("kv_cache_dtype_skip_layers: layer {layer} does not exist, the model has layers 0 to {}", n_layer - 1)]
    NoSuchLayer {
        /// As asked for; digits, of any length.
        layer: String,
        /// Layers of the model.
        n_layer: usize,
    },
    /// No layer has a window.
    #[error("kv_cache_dtype_skip_layers: `sliding_window` names no layer, all {n_layer} attend to every position")]
    NoWindow {
        /// Layers of the model.
        n_layer: usize,
    },
    /// A codec that is not an 8-bit float has no mantissa to cut.
    #[error("truncating_codec changes nothing in a cache of `{dtype}`: only 8-bit floats are cut")]
    NothingToCut {
        /// The cache's dtype.
        dtype: String,
    },
    /// Something else.
    #[error("kv_cache_dtype_skip_layers: `{entry}` is neither the index of a layer nor `sliding_window`")]
    NotALayer {
        /// As asked for.
        entry: String,
    },
}

impl CachePlan {
    /// The layers that `options` ask for, at scale 1 in blocks of 16.
    pub fn new(config: &ModelConfig, options: &EngineOptions) -> Result<Self, PlanError> {
        let codec = codec::codec_with(&options.kv_cache_dtype, options.int4_rotation)?;
        let model_codec = codec::codec(MODEL_DTYPE)?;
        let is_skipped = skipped_layers(config, &options.kv_cache_dtype_skip_layers)?;
        let layer = |is_skipped: bool| {
            let codec = if is_skipped { model_codec } else { codec };
            LayerPlan { codec, scales: LayerScales::unit() }
        };
        let is_cut = options.mechanisms.contains(&Mechanism::TruncatingCodec);
        if is_cut && !codec.name().starts_with("fp8") {
            return Err(KvOptionError::NothingToCut { dtype: codec.name().into() }.into());
        }
        Ok(Self {
            layers: is_skipped.into_iter().map(layer).collect(),
            n_kv_head: config.n_kv_head,
            head_dim: config.head_dim,
            block_tokens: BLOCK_TOKENS,
            rounding: if is_cut { KvRounding::TowardZero } else { KvRounding::NearestEven },
            noise: noise_shares(&options.faults),
        })
    }

    /// Largest value of the layer's codec, if that takes a static scale.
    pub fn static_scale_range(&self, layer: usize) -> Option<f32> {
        self.layers[layer].codec.static_scale_range()
    }

    /// What each layer stores, for records.
    pub fn stored_layers(&self) -> Vec<StoredLayer> {
        let stored = |layer: &LayerPlan| {
            let has_scales = layer.codec.static_scale_range().is_some();
            let scales = |list: &[f32]| if has_scales { list.to_vec() } else { Vec::new() };
            let (k_scales, v_scales) = (scales(&layer.scales.k), scales(&layer.scales.v));
            StoredLayer { kv_cache_dtype: layer.codec.name().into(), k_scales, v_scales }
        };
        self.layers.iter().map(stored).collect()
    }
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// No such codec.
    #[error(transparent)]
    Dtype(#[from] UnknownDtype),
    /// An option that does not fit the model.
    #[error(transparent)]
    Option(#[from] KvOptionError),
}

/// For each layer whether `entries` name it.
fn skipped_layers(config: &ModelConfig, entries: &[String]) -> Result<Vec<bool>, KvOptionError> {
    let n_layer = config.n_layer();
    let mut is_skipped = vec![false; n_layer];
    for entry in entries {
        let entry = entry.trim();
        if entry == SLIDING_WINDOW {
            if config.layers.iter().all(|layer| layer.window.is_none()) {
                return Err(KvOptionError::NoWindow { n_layer });
            }
            let windowed = config.layers.iter().map(|layer| layer.window.is_some());
            is_skipped.iter_mut().zip(windowed).for_each(|(skipped, windowed)| *skipped |= windowed);
        } else if !entry.is_empty() && entry.bytes().all(|byte| byte.is_ascii_digit()) {
            let layer = entry.parse().ok().filter(|layer: &usize| *layer < n_layer);
            let layer = layer.ok_or_else(|| KvOptionError::NoSuchLayer { layer: entry.into(), n_layer })?;
            is_skipped[layer] = true;
        } else {
            return Err(KvOptionError::NotALayer { entry: entry.into() });
        }
    }
    Ok(is_skipped)
}

/// Independent noises add as squares.
fn noise_shares(faults: &[Fault]) -> [f32; 2] {
    let mut squares = [0.0; 2];
    for fault in faults {
        if let Fault::Noise { keys, values, snr_db } = *fault {
            let square = 10_f32.powf(-snr_db / 10.0);
            squares[0] += if keys { square } else { 0.0 };
            squares[1] += if values { square } else { 0.0 };
        }
    }
    squares.map(f32::sqrt)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(windows: &[Option<usize>]) -> ModelConfig {
        let json = serde_json::json!({
            "model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 32,
            "num_hidden_layers": windows.len(), "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
            "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
        });
        let mut config = ModelConfig::from_json(json.to_string().as_bytes(), false).unwrap();
        config.layers.iter_mut().zip(windows).for_each(|(layer, window)| layer.window = *window);
        config
    }

    fn dtypes(config: &ModelConfig, entries: &[&str]) -> Result<Vec<&'static str>, PlanError> {
        let options = EngineOptions {
            kv_cache_dtype: "fp8".into(),
            kv_cache_dtype_skip_layers: entries.iter().map(|entry| (*entry).into()).collect(),
            ..EngineOptions::default()
        };
        Ok(CachePlan::new(config, &options)?.layers.iter().map(|layer| layer.codec.name()).collect())
    }

    #[test]
    fn skipped_layers_keep_the_model_dtype() {
        let config = config(&[None, Some(32), None, Some(32)]);
        let (fp8, bf16) = ("fp8_e4m3", "bfloat16");
        assert_eq!(dtypes(&config, &[]), Ok(vec![fp8; 4]));
        assert_eq!(dtypes(&config, &["0", "3", "0"]), Ok(vec![bf16, fp8, fp8, bf16]));
        assert_eq!(dtypes(&config, &["sliding_window"]), Ok(vec![fp8, bf16, fp8, bf16]));
        assert_eq!(dtypes(&config, &[" 2", "sliding_window"]), Ok(vec![fp8, bf16, bf16, bf16]));
    }

    #[test]
    fn layers_that_do_not_exist_are_errors() {
        let config = config(&[None, None]);
        for (entry, expected) in [
            ("2", "layer 2 does not exist, the model has layers 0 to 1"),
            ("99999999999999999999999", "layer 99999999999999999999999 does not exist"),
            ("sliding_window", "names no layer, all 2 attend to every position"),
            ("-1", "`-1` is neither"),
            ("+1", "`+1` is neither"),
            ("", "`` is neither"),
            ("all", "`all` is neither"),
        ] {
            let message = dtypes(&config, &[entry]).unwrap_err().to_string();
            assert!(message.contains(expected), "{entry}: {message}");
        }
    }

    #[test]
    fn noises_add_as_powers() {
        let noise = |text: &str| text.parse::<Fault>().unwrap();
        assert_eq!(noise_shares(&[]), [0.0; 2]);
        let [k, v] = noise_shares(&[noise("k_noise=20"), noise("kv_noise=20"), noise("key_bias=3")]);
        assert!((k - 0.02_f32.sqrt()).abs() < 1e-6 && (v - 0.1).abs() < 1e-6, "{k} {v}");
    }
}
