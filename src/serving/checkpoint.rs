//! What a model's own files say of its cache: the scheme that a quantized checkpoint brings along.
//!
//! Engines take it without a line in the log, some even against an explicit request, so that it has to be predicted.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use serde_json::Value;

use crate::capacity::{CapacityError, ModelShape};

/// As for every `config.json`: some hundred KiB are the longest published.
const MAX_CONFIG_BYTES: u64 = 8 << 20;

/// A checkpoint as far as its cache goes.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// Layers, heads, and the dtype of the model or of its scheme.
    pub shape: ModelShape,
    /// The scheme, where there is one.
    pub scheme: Option<CacheScheme>,
}

/// A KV dtype that a checkpoint brings along.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheScheme {
    /// `fp8`, `nvfp4`.
    pub dtype: &'static str,
    /// Who wrote it: engines treat the two formats differently.
    pub format: SchemeFormat,
}

/// Formats of quantized checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchemeFormat {
    /// llm-compressor's: applied by the workers, out of sight of the configuration.
    CompressedTensors,
    /// ModelOpt's: resolved before the engine starts.
    ModelOpt,
    /// Anything else.
    Other,
}

impl Checkpoint {
    /// Reads a model folder, or a `config.json` alone.
    ///
    /// # Errors
    /// As [`ModelShape::read`].
    pub fn read(path: &Path) -> Result<Self, CapacityError> {
        let shape = ModelShape::read(path)?;
        let is_scheme = !matches!(shape.auto_dtype, "bfloat16" | "float16" | "float32");
        let scheme = is_scheme.then(|| CacheScheme { dtype: shape.auto_dtype, format: format_of(path) });
        Ok(Self { shape, scheme })
    }
}

/// `quant_method` of the configuration. A folder whose scheme is in ModelOpt's own file has none there.
fn format_of(path: &Path) -> SchemeFormat {
    let file = if path.is_dir() { path.join("config.json") } else { path.to_path_buf() };
    let mut text = Vec::new();
    let document = File::open(file)
        .and_then(|file| file.take(MAX_CONFIG_BYTES).read_to_end(&mut text))
        .ok()
        .and_then(|_| serde_json::from_slice::<Value>(&text).ok())
        .unwrap_or_default();
    let nested = ["/quantization_config/quant_method", "/text_config/quantization_config/quant_method"];
    let method = nested.iter().find_map(|path| document.pointer(path)?.as_str());
    match method {
        Some("compressed-tensors" | "compressed_tensors") => SchemeFormat::CompressedTensors,
        Some(method) if method.starts_with("modelopt") => SchemeFormat::ModelOpt,
        None => SchemeFormat::ModelOpt,
        Some(_) => SchemeFormat::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheme_is_found_with_its_format() {
        let dir = tempfile::tempdir().unwrap();
        let base = r#""model_type":"llama","vocab_size":32000,"hidden_size":4096,"intermediate_size":14336,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,"rms_norm_eps":1e-5,"max_position_embeddings":131072,"torch_dtype":"bfloat16""#;
        let read = |more: &str| {
            let path = dir.path().join("config.json");
            std::fs::write(&path, format!("{{{base}{more}}}")).unwrap();
            Checkpoint::read(&path).unwrap().scheme
        };
        assert_eq!(read(""), None);
        let compressed = read(
            r#","quantization_config":{"quant_method":"compressed-tensors","kv_cache_scheme":{"num_bits":8,"type":"float","strategy":"tensor"}}"#,
        );
        assert_eq!(compressed, Some(CacheScheme { dtype: "fp8", format: SchemeFormat::CompressedTensors }));
        let modelopt = read(r#","quantization_config":{"quant_method":"modelopt","kv_cache_quant_algo":"FP8"}"#);
        assert_eq!(modelopt, Some(CacheScheme { dtype: "fp8", format: SchemeFormat::ModelOpt }));
    }
}
