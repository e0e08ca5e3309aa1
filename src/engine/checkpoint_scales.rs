//! Scales of the KV cache that a checkpoint brings along: their tensors in all spellings, and what the configuration says.
//!
//! Names are those that vLLM maps to a layer's `attn.k_scale` and `attn.v_scale`: any name with `layers.N.` in it that ends in
//! `.k_scale`, `.v_scale` (of `self_attn.k_proj`, `self_attn.qkv_proj`, `self_attn.qkqkv_proj`, `mixer.k_proj`,
//! `self_attn.attn`, `self_attn`), in `.k_cache.scale` or `.v_cache.scale`, or in the old `.kv_scale`, which counts for both.
//! Scales of Q and zero points are left alone, as there.

use std::path::Path;

use serde_json::Value;

use crate::engine::kv_cache::{KvPart, LayerScales, ScaleError};
use crate::engine::weights::{self, Weights, WeightsError};

/// One scale per KV head is the longest list there is; [`crate::engine::config`] allows 1024 heads.
const MAX_SCALES: usize = 1024;
/// Real ones are a few KiB.
const MAX_JSON_BYTES: u64 = 1 << 20;

/// A tensor of scales, as stored.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaleTensor {
    /// Its name in the checkpoint.
    pub name: String,
    /// `[]`, `[1]`, `[n_kv_head]` or `[n_kv_head, 1, 1]`.
    pub shape: Vec<usize>,
    /// Exact values; empty if there are more than any model has heads.
    pub values: Vec<f32>,
}

/// What a checkpoint says of its KV cache.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CheckpointScales {
    /// All tensors of scales, in order of their names.
    pub tensors: Vec<ScaleTensor>,
    /// Why the scheme in the configuration cannot be followed.
    pub scheme_problem: Option<KvScaleError>,
}

/// Why there are no scales.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum KvScaleError {
    /// Not one in the whole checkpoint.
    #[error(
        "the checkpoint has no KV cache scales: no tensor ends in `k_scale`, `v_scale`, `kv_scale` or `_cache.scale`"
    )]
    NoneInCheckpoint,
    /// One layer has none.
    #[error("the checkpoint has no {part} scale for layer {layer}")]
    Missing {
        /// Which layer.
        layer: usize,
        /// K or V.
        part: KvPart,
    },
    /// Neither one scale nor one per KV head.
    #[error("tensor `{tensor}` has shape {found:?}: expected one scale, or one for each of {n_kv_head} KV heads")]
    Shape {
        /// Its name.
        tensor: String,
        /// As stored.
        found: Vec<usize>,
        /// KV heads of the model.
        n_kv_head: usize,
    },
    /// Two tensors for one scale.
    #[error("the checkpoint has two {part} scales for layer {layer} that differ: `{first}` and `{second}`")]
    Contradiction {
        /// Which layer.
        layer: usize,
        /// K or V.
        part: KvPart,
        /// A tensor.
        first: String,
        /// Another one.
        second: String,
    },
    /// A scale that nothing can be divided by.
    #[error(transparent)]
    Value(#[from] ScaleError),
    /// The configuration asks for something else.
    #[error("{0}")]
    Scheme(String),
    /// Scales made for e4m3.
    #[error("fp8_e5m2 kv-cache is not supported with fp8 checkpoints.")]
    E5m2,
    /// Calibration on nothing.
    #[error("no prompts to calibrate KV cache scales on")]
    NoPrompts,
    /// One scale per head asked for where nothing is calibrated.
    #[error("scales per head are asked for, but only calibrated scales have a granularity to choose")]
    Granularity,
}

impl CheckpointScales {
    /// Reads the tensors, and the configuration files of a folder.
    pub(in crate::engine) fn read(path: &Path, weights: &Weights) -> Result<Self, WeightsError> {
        let stored = weights.small_tensors(|name| scale_of(name).is_some(), MAX_SCALES);
        let tensors = stored.into_iter().map(|(name, shape, values)| ScaleTensor { name, shape, values }).collect();
        let mut scheme_problem = None;
        for file in ["config.json", "hf_quant_config.json"].map(|name| path.join(name)) {
            if path.is_dir() && file.is_file() {
                let json: Value =
                    serde_json::from_slice(&weights::read_capped(&file, MAX_JSON_BYTES)?).map_err(|error| {
                        WeightsError::NotAModel { path: file.clone(), problem: format!("is not JSON: {error}") }
                    })?;
                scheme_problem = scheme_problem.or_else(|| check_scheme(&json).err());
            }
        }
        Ok(Self { tensors, scheme_problem })
    }

    /// Scales of the layers for which `is_wanted`.
    ///
    /// # Errors
    /// A scheme other than static 8-bit floats; a scale that is missing, of a wrong shape, there twice with two values, or not
    /// above 0.
    pub fn resolve(&self, is_wanted: &[bool], n_kv_head: usize) -> Result<Vec<Option<LayerScales>>, KvScaleError> {
        if let Some(problem) = &self.scheme_problem {
            return Err(problem.clone());
        }
        if self.tensors.is_empty() {
            return Err(KvScaleError::NoneInCheckpoint);
        }
        let layers = is_wanted.iter().enumerate().map(|(layer, is_wanted)| {
            if !is_wanted {
                return Ok(None);
            }
            let (k, v) = (self.part(layer, KvPart::K, n_kv_head)?, self.part(layer, KvPart::V, n_kv_head)?);
            let scales = LayerScales { k, v };
            scales.check(layer)?;
            Ok(Some(scales))
        });
        layers.collect()
    }

    fn part(&self, layer: usize, part: KvPart, n_kv_head: usize) -> Result<Vec<f32>, KvScaleError> {
        let is_it = |tensor: &&ScaleTensor| {
            scale_of(&tensor.name).is_some_and(|(of, parts)| of == layer && parts.contains(&part))
        };
        let mut tensors = self.tensors.iter().filter(is_it);
        let first = tensors.next().ok_or(KvScaleError::Missing { layer, part })?;
        if let Some(second) = tensors.find(|second| second.values != first.values) {
            let (first, second) = (first.name.clone(), second.name.clone());
            return Err(KvScaleError::Contradiction { layer, part, first, second });
        }
        let is_list = matches!(first.shape[..], [] | [_] | [_, 1, 1]);
        if is_list && [1, n_kv_head].contains(&first.values.len()) {
            return Ok(first.values.clone());
        }
        Err(KvScaleError::Shape { tensor: first.name.clone(), found: first.shape.clone(), n_kv_head })
    }
}

/// Layer and parts that a tensor of this name scales; nothing for all other tensors.
fn scale_of(name: &str) -> Option<(usize, &'static [KvPart])> {
    const SUFFIXES: [(&str, &[KvPart]); 5] = [
        (".k_scale", &[KvPart::K]),
        (".v_scale", &[KvPart::V]),
        (".kv_scale", &[KvPart::K, KvPart::V]),
        (".k_cache.scale", &[KvPart::K]),
        (".v_cache.scale", &[KvPart::V]),
    ];
    let (_, parts) = SUFFIXES.iter().find(|(suffix, _)| name.ends_with(suffix))?;
    let (_, rest) = name.split_once("layers.")?;
    let layer = rest.split_once('.')?.0.parse().ok()?;
    Some((layer, parts))
}

/// What compressed-tensors and ModelOpt write about the KV cache, accepted where vLLM accepts it, refused in its words.
fn check_scheme(config: &Value) -> Result<(), KvScaleError> {
    let refuse = |problem: String| Err(KvScaleError::Scheme(problem));
    let quantization = &config["quantization_config"];
    let algorithms = [
        &quantization["kv_cache_quant_algo"],
        &quantization["kv_cache_scheme"],
        &quantization["quantization"]["kv_cache_quant_algo"],
        &config["quantization"]["kv_cache_quant_algo"],
    ];
    let is_fp8 = |algorithm: &str| ["fp8", "fp8_e4m3"].contains(&algorithm.to_ascii_lowercase().as_str());
    if let Some(algorithm) = algorithms.into_iter().filter_map(Value::as_str).find(|algorithm| !is_fp8(algorithm)) {
        let words =
            format!("Unknown kv_cache_quant_algo '{algorithm}' in model config. Supported values: fp8, fp8_e4m3.");
        return refuse(words);
    }
    let scheme = &quantization["kv_cache_scheme"];
    if scheme.is_null() || scheme.is_string() {
        return Ok(());
    }
    let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let (num_bits, kind) = (&scheme["num_bits"], &scheme["type"]);
    if *num_bits != 8 || kind != "float" {
        return refuse(format!(
            "Currently supported kv cache quantization is num_bits=8, type=float, however received num_bits={}, type={}",
            plain(num_bits),
            plain(kind)
        ));
    }
    let strategy = &scheme["strategy"];
    if !strategy.is_null() && strategy != "tensor" && strategy != "attn_head" {
        return refuse(format!(
            "Only support per-tensor or per-attention-head scaling factor for compressed-tensors KV cache quantization. \
             Expected strategy: tensor or attn_head, found strategy: {}",
            plain(strategy)
        ));
    }
    let symmetric = &scheme["symmetric"];
    if !symmetric.is_null() && *symmetric != true {
        return refuse(format!(
            "Only support symmetric scaling factor for compressed-tensors KV cache quantization. However found symmetric: {}",
            plain(symmetric)
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn checkpoint(tensors: &[(&str, &[usize], &[f32])]) -> CheckpointScales {
        let tensor = |(name, shape, values): &(&str, &[usize], &[f32])| ScaleTensor {
            name: (*name).into(),
            shape: shape.to_vec(),
            values: values.to_vec(),
        };
        CheckpointScales { tensors: tensors.iter().map(tensor).collect(), scheme_problem: None }
    }

    #[test]
    fn every_spelling_finds_its_layer_and_part() {
        const K: &[KvPart] = &[KvPart::K];
        const V: &[KvPart] = &[KvPart::V];
        for (name, expected) in [
            ("model.layers.3.self_attn.k_proj.k_scale", Some((3, K))),
            ("model.layers.3.self_attn.v_proj.v_scale", Some((3, V))),
            ("model.layers.12.self_attn.qkv_proj.k_scale", Some((12, K))),
            ("model.layers.0.self_attn.qkqkv_proj.v_scale", Some((0, V))),
            ("backbone.layers.5.mixer.k_proj.k_scale", Some((5, K))),
            ("model.language_model.layers.7.self_attn.v_cache.scale", Some((7, V))),
            ("model.layers.7.self_attn.k_cache.scale", Some((7, K))),
            ("model.layers.1.self_attn.attn.v_scale", Some((1, V))),
            ("model.layers.1.self_attn.k_scale", Some((1, K))),
            ("model.layers.1.self_attn.kv_scale", Some((1, &[KvPart::K, KvPart::V]))),
            ("model.layers.1.self_attn.q_scale", None),
            ("model.layers.1.self_attn.k_zero_point", None),
            ("model.layers.1.self_attn.k_proj.weight_scale", None),
            ("model.layers.1.self_attn.k_proj.weight", None),
            ("model.layers.x.self_attn.k_scale", None),
            ("k_scale", None),
        ] {
            assert_eq!(scale_of(name), expected, "{name}");
        }
    }

    #[test]
    fn scales_of_wanted_layers_are_resolved_and_everything_else_is_named() {
        let (k0, v0) = ("model.layers.0.self_attn.k_scale", "model.layers.0.self_attn.v_scale");
        let good = checkpoint(&[(k0, &[], &[0.5]), (v0, &[2, 1, 1], &[0.25, 2.0])]);
        let scales = LayerScales { k: vec![0.5], v: vec![0.25, 2.0] };
        assert_eq!(good.resolve(&[true, false], 2), Ok(vec![Some(scales), None]));
        assert_eq!(good.resolve(&[true, true], 2), Err(KvScaleError::Missing { layer: 1, part: KvPart::K }));
        assert!(matches!(good.resolve(&[true], 3), Err(KvScaleError::Shape { n_kv_head: 3, .. })));
        let half = checkpoint(&[(k0, &[1], &[0.5])]);
        assert_eq!(half.resolve(&[true], 2), Err(KvScaleError::Missing { layer: 0, part: KvPart::V }));
        assert_eq!(CheckpointScales::default().resolve(&[true], 2), Err(KvScaleError::NoneInCheckpoint));
        let both = "model.layers.0.self_attn.kv_scale";
        let twice = checkpoint(&[(k0, &[1], &[0.5]), (both, &[1], &[0.5]), (v0, &[1], &[0.7])]);
        assert!(matches!(twice.resolve(&[true], 2), Err(KvScaleError::Contradiction { part: KvPart::V, .. })));
        for value in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            let message = checkpoint(&[(both, &[], &[value])]).resolve(&[true], 2).unwrap_err().to_string();
            assert!(message.contains("K scale of layer 0 is") && message.contains(&value.to_string()), "{message}");
        }
        let matrix = checkpoint(&[(both, &[1, 2], &[1.0, 2.0])]);
        assert!(matches!(matrix.resolve(&[true], 2), Err(KvScaleError::Shape { .. })));
    }

    #[test]
    fn schemes_are_accepted_and_refused_as_vllm_does() {
        let scheme = |scheme: Value| check_scheme(&json!({"quantization_config": {"kv_cache_scheme": scheme}}));
        let good = json!({"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": false, "symmetric": true});
        let with = |key: &str, value: Value| {
            let mut changed = good.clone();
            changed[key] = value;
            scheme(changed).map_err(|error| error.to_string())
        };
        assert_eq!(check_scheme(&json!({})), Ok(()));
        assert_eq!(scheme(Value::Null), Ok(()));
        assert_eq!(scheme(json!("FP8")), Ok(()));
        assert_eq!(with("strategy", json!("attn_head")), Ok(()));
        let four = "Currently supported kv cache quantization is num_bits=8, type=float, however received num_bits=4, type=float";
        assert_eq!(with("num_bits", json!(4)), Err(four.into()));
        assert!(with("type", json!("int")).unwrap_err().ends_with("num_bits=8, type=int"));
        assert!(with("strategy", json!("channel")).unwrap_err().ends_with("found strategy: channel"));
        assert!(with("symmetric", json!(false)).unwrap_err().ends_with("found symmetric: false"));
        assert!(scheme(json!(8)).is_err() && scheme(json!("nvfp4")).is_err());
        let model_opt = |algorithm: Value| check_scheme(&json!({"quantization": {"kv_cache_quant_algo": algorithm}}));
        assert_eq!((model_opt(json!("FP8")), model_opt(Value::Null)), (Ok(()), Ok(())));
        assert!(model_opt(json!("NVFP4")).unwrap_err().to_string().contains("'NVFP4'"));
    }
}
