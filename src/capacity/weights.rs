//! Bytes of the weights: what the checkpoint says of itself, or parameters times bits.

use serde::Serialize;
use serde_json::Value;

use crate::capacity::parameters::Parameters;
use crate::capacity::{CapacityError, ModelShape};

/// Bits of everything that a quantization leaves alone: embeddings, output layer, norms, routers.
const UNQUANTIZED_BITS: f64 = 16.0;

/// Which weights a format covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Every tensor.
    All,
    /// Matrices of attention, MLP and experts; embeddings, output layer and norms stay at 16 bits.
    Linear,
    /// Experts where there are any, else as [`Self::Linear`].
    Experts,
}

/// How weights are stored.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WeightFormat {
    /// `bfloat16`, `fp8`, `awq`, ...
    pub name: &'static str,
    /// Bits per weight, scales and zero points included.
    pub bits: f64,
    /// What is stored so.
    pub scope: Scope,
}

/// Formats to be asked for by name. Groups of 128 share a 16-bit scale and a zero point in `int4`; blocks of 16 and 32 share an
/// 8-bit scale in `nvfp4` and `mxfp4`.
pub static WEIGHT_FORMATS: &[WeightFormat] = &[
    WeightFormat { name: "bfloat16", bits: 16.0, scope: Scope::All },
    WeightFormat { name: "float16", bits: 16.0, scope: Scope::All },
    WeightFormat { name: "float32", bits: 32.0, scope: Scope::All },
    WeightFormat { name: "fp8", bits: 8.0, scope: Scope::Linear },
    WeightFormat { name: "int8", bits: 8.0, scope: Scope::Linear },
    WeightFormat { name: "int4", bits: 4.0 + (16.0 + 4.0) / 128.0, scope: Scope::Linear },
    WeightFormat { name: "nvfp4", bits: 4.5, scope: Scope::Linear },
    WeightFormat { name: "mxfp4", bits: 4.25, scope: Scope::Experts },
];

/// The format of that name.
pub fn weight_format(name: &str) -> Result<WeightFormat, CapacityError> {
    let found = WEIGHT_FORMATS.iter().copied().find(|format| format.name == name);
    found.ok_or_else(|| CapacityError::UnknownWeights { name: name.into() })
}

impl WeightFormat {
    /// Bytes of all weights in this format.
    pub fn bytes(&self, parameters: &Parameters) -> u64 {
        let covers_linear = match self.scope {
            Scope::All | Scope::Linear => true,
            Scope::Experts => parameters.experts == 0,
        };
        let rest = if self.scope == Scope::All { self.bits } else { UNQUANTIZED_BITS };
        let linear = if covers_linear { self.bits } else { UNQUANTIZED_BITS };
        let bits = parameters.experts as f64 * self.bits
            + parameters.linear as f64 * linear
            + (parameters.embedding + parameters.other) as f64 * rest;
        (bits / 8.0).ceil() as u64
    }
}

/// Weights of a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Weights {
    /// How they are stored.
    pub format: WeightFormat,
    /// Parameters in all.
    pub parameters: u64,
    /// Bytes in all.
    pub bytes: u64,
    /// Bytes on each of the ranks they are split over; norms and routers, which every rank has, are too small to count.
    pub bytes_per_rank: u64,
    /// Where the bytes are from.
    pub source: String,
}

impl Weights {
    /// Of the checkpoint, or in another `format`.
    pub fn of(shape: &ModelShape, format: Option<WeightFormat>, n_rank: u32) -> Self {
        let parameters = shape.parameters.total();
        let used = format.unwrap_or(shape.weight_format);
        let (bytes, source) = match (&shape.stored_weights, format) {
            (Some((bytes, source)), None) => (*bytes, source.clone()),
            _ => (used.bytes(&shape.parameters), "parameters × bits".into()),
        };
        Self { format: used, parameters, bytes, bytes_per_rank: bytes.div_ceil(n_rank.max(1).into()), source }
    }
}

/// The format that `quantization_config` describes; `None` where its method is not known here.
pub(super) fn quantized_format(config: &Value) -> Option<WeightFormat> {
    let method = config.get("quant_method").and_then(Value::as_str).unwrap_or_default().to_ascii_lowercase();
    let number = |keys: &[&str]| keys.iter().find_map(|key| config.get(key).and_then(Value::as_f64));
    let flag = |key: &str| config.get(key).and_then(Value::as_bool).unwrap_or(false);
    match method.as_str() {
        "fp8" | "fbgemm_fp8" => weight_format("fp8").ok(),
        "mxfp4" => weight_format("mxfp4").ok(),
        "awq" => grouped("awq", number(&["bits", "w_bit"])?, number(&["group_size", "q_group_size"])?, true),
        "gptq" => grouped("gptq", number(&["bits"])?, number(&["group_size"])?, true),
        // Blocks of 64 share a 32-bit scale.
        "bitsandbytes" if flag("load_in_4bit") => {
            Some(WeightFormat { name: "bitsandbytes", bits: 4.5, scope: Scope::Linear })
        }
        "bitsandbytes" => Some(WeightFormat { name: "bitsandbytes", bits: 8.0, scope: Scope::Linear }),
        "compressed-tensors" => of_groups(config),
        _ if method.starts_with("modelopt") => {
            let algorithm = config.get("quant_algo").and_then(Value::as_str).unwrap_or_default().to_ascii_uppercase();
            match algorithm.as_str() {
                "FP8" => weight_format("fp8").ok(),
                "NVFP4" => weight_format("nvfp4").ok(),
                _ => of_groups(config),
            }
        }
        _ => None,
    }
}

/// The widest of `config_groups`, as the narrower ones may be of a few layers only.
fn of_groups(config: &Value) -> Option<WeightFormat> {
    let groups = config.get("config_groups")?.as_object()?;
    let formats = groups.values().filter_map(|group| {
        let weights = group.get("weights")?;
        let bits = weights.get("num_bits")?.as_f64()?;
        let group_size = weights.get("group_size").and_then(Value::as_f64).unwrap_or(-1.0);
        let symmetric = weights.get("symmetric").and_then(Value::as_bool).unwrap_or(true);
        grouped("compressed-tensors", bits, group_size, !symmetric)
    });
    formats.max_by(|a, b| a.bits.total_cmp(&b.bits))
}

/// `bits` per weight with a 16-bit scale, and maybe a zero point, per group; a group size of −1 is a whole channel.
fn grouped(name: &'static str, bits: f64, group_size: f64, zero_points: bool) -> Option<WeightFormat> {
    if !(1.0..=16.0).contains(&bits) {
        return None;
    }
    let zero_bits = if zero_points { bits } else { 0.0 };
    let shared = if group_size >= 1.0 { (16.0 + zero_bits) / group_size } else { 0.0 };
    Some(WeightFormat { name, bits: bits + shared, scope: Scope::Linear })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_quantization_leaves_embeddings_and_norms_at_sixteen_bits() {
        let dense = Parameters { embedding: 1000, linear: 8000, experts: 0, other: 10 };
        let bytes = |name: &str, parameters: &Parameters| weight_format(name).unwrap().bytes(parameters);
        assert_eq!(bytes("bfloat16", &dense), 2 * 9010);
        assert_eq!(bytes("fp8", &dense), 8000 + 2 * 1010);
        assert_eq!(bytes("float32", &dense), 4 * 9010);
        assert_eq!(bytes("mxfp4", &dense), 8000 * 17 / 32 + 2 * 1010);
        let sparse = Parameters { experts: 3200, ..dense };
        assert_eq!(bytes("mxfp4", &sparse), 3200 * 17 / 32 + 2 * 9010);
        assert!(weight_format("bf16").is_err());
    }

    #[test]
    fn published_quantization_configs_are_understood() {
        let bits = |config: Value| quantized_format(&config).map(|format| format.bits);
        assert_eq!(bits(json!({"quant_method": "fp8", "weight_block_size": [128, 128]})), Some(8.0));
        assert_eq!(bits(json!({"quant_method": "awq", "bits": 4, "group_size": 128})), Some(4.15625));
        assert_eq!(bits(json!({"quant_method": "gptq", "bits": 8, "group_size": -1})), Some(8.0));
        assert_eq!(bits(json!({"quant_method": "modelopt", "quant_algo": "NVFP4"})), Some(4.5));
        assert_eq!(bits(json!({"quant_method": "bitsandbytes", "load_in_4bit": true})), Some(4.5));
        let groups = json!({"quant_method": "compressed-tensors", "config_groups": {
            "group_0": {"weights": {"num_bits": 4, "group_size": 128, "symmetric": true}},
            "group_1": {"weights": {"num_bits": 8, "strategy": "channel", "group_size": null}}}});
        assert_eq!(bits(groups), Some(8.0));
        for config in [json!({}), json!({"quant_method": "aqlm"}), json!({"quant_method": "gptq", "bits": 900})] {
            assert_eq!(bits(config), None);
        }
    }
}
