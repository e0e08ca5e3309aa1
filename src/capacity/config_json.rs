//! `config.json` of a Hugging Face folder as far as memory goes: tolerant of what it does not need, strict with what it does.
//!
//! The engine's own reader is asked first: for the architectures that it runs it knows the defaults that files leave out and
//! which layers have a window.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use serde_json::{Map, Value};

use crate::capacity::shape::{MAX_HEADS, MAX_LAYERS, bounded, invalid};
use crate::capacity::weights::{quantized_format, weight_format};
use crate::capacity::{CapacityError, ModelShape, layers, parameters};
use crate::engine::ModelConfig;

/// Files with long lists of layers that are not quantized reach some hundred KiB.
const MAX_CONFIG_BYTES: u64 = 8 << 20;
/// The index of a model with 100,000 tensors is about 10 MiB.
const MAX_INDEX_BYTES: u64 = 64 << 20;
/// The longest published context is 10 million tokens.
const MAX_CONTEXT: u32 = 1 << 28;
/// A petabyte of weights is a thousand times the largest model.
const MAX_WEIGHT_BYTES: u64 = 1 << 50;

const CONFIG_FILE: &str = "config.json";
const INDEX_FILE: &str = "model.safetensors.index.json";
const WEIGHTS_FILE: &str = "model.safetensors";
/// Where ModelOpt says how it quantized.
const MODELOPT_FILE: &str = "hf_quant_config.json";

/// Families that share the embedding with the output layer where a file does not say.
const TIED_BY_DEFAULT: &[&str] = &["gemma", "gemma2", "gemma3n_text", "cohere", "cohere2", "gpt2"];
/// Names of the number of query heads.
pub(super) const HEAD_KEYS: [&str; 3] = ["num_attention_heads", "n_head", "n_heads"];
/// Names of the width of the residual stream.
pub(super) const HIDDEN_KEYS: [&str; 3] = ["hidden_size", "n_embd", "d_model"];
/// Where models that also see or hear keep their decoder.
const DECODER_KEYS: [&str; 4] = ["text_config", "llm_config", "language_config", "thinker_config"];
/// Models that speak as well nest it twice.
const MAX_NESTING: usize = 2;

impl ModelShape {
    /// Reads a model folder, or a `config.json` alone. In a folder the checkpoint's own size is taken, where it says one.
    pub fn read(path: &Path) -> Result<Self, CapacityError> {
        if !path.is_dir() {
            return match path.extension() {
                Some(extension) if extension == "json" => Self::from_json(&read_limited(path, MAX_CONFIG_BYTES)?),
                _ if path.exists() => Err(CapacityError::NotAConfig { path: path.into() }),
                _ => Err(CapacityError::Io { path: path.into(), source: std::io::ErrorKind::NotFound.into() }),
            };
        }
        if !path.join(CONFIG_FILE).exists() {
            return Err(CapacityError::NotAConfig { path: path.into() });
        }
        let mut file = object(CONFIG_FILE, &read_limited(&path.join(CONFIG_FILE), MAX_CONFIG_BYTES)?)?;
        if !file.contains_key("quantization_config") && path.join(MODELOPT_FILE).exists() {
            let text = read_limited(&path.join(MODELOPT_FILE), MAX_CONFIG_BYTES)?;
            if let Some(Value::Object(mut quantization)) = object(MODELOPT_FILE, &text)?.remove("quantization") {
                quantization.entry("quant_method").or_insert_with(|| "modelopt".into());
                file.insert("quantization_config".into(), Value::Object(quantization));
            }
        }
        let mut shape = Self::from_object(&file)?;
        shape.stored_weights = stored_weights(path)?;
        Ok(shape)
    }

    /// From the text of a `config.json`.
    pub fn from_json(text: &[u8]) -> Result<Self, CapacityError> {
        Self::from_object(&object(CONFIG_FILE, text)?)
    }

    fn from_object(file: &Map<String, Value>) -> Result<Self, CapacityError> {
        let text = serde_json::to_vec(file).expect("JSON that was read can be written");
        let known = ModelConfig::from_json(&text, false).ok();
        let keys = Keys { inner: decoder(file), outer: file, known: known.as_ref() };
        let mut notes = Vec::new();
        let layers = layers::layers(&keys, &mut notes)?;
        let parameters = parameters::count(&keys, &layers)?;
        if !std::ptr::eq(keys.inner, file) {
            notes.push("only the language model is counted: encoders of images or sound come on top".into());
        }
        if !parameters::CHECKED_FAMILIES.contains(&keys.model_type()) {
            notes.push(
                "parameters are those of a usual decoder of this shape: no published count of this family was checked"
                    .into(),
            );
        }
        if keys.nonzero(&["num_nextn_predict_layers", "mtp_num_hidden_layers"], MAX_LAYERS)?.is_some() {
            notes.push("layers that predict further tokens (MTP) are not counted".into());
        }
        let dtype = ["torch_dtype", "dtype"].iter().find_map(|key| keys.value(key)).and_then(Value::as_str);
        let quantization = keys.value("quantization_config");
        let unquantized = if dtype == Some("float32") { "float32" } else { "bfloat16" };
        let unquantized = weight_format(unquantized).expect("both are in the list");
        let weight_format = quantization.map_or(Some(unquantized), quantized_format).unwrap_or_else(|| {
            notes.push("the checkpoint's quantization is not known: weights are counted at 16 bits".into());
            unquantized
        });
        let scheme = quantization.and_then(cache_scheme);
        if let Some(scheme) = scheme {
            notes.push(format!(
                "the checkpoint brings scales for {scheme}: newer engines store that under `auto`, older ones the model dtype"
            ));
        }
        let context = ["max_position_embeddings", "max_sequence_length", "seq_length", "n_positions"];
        Ok(Self {
            name: shown(keys.model_type()),
            n_head: keys.optional(&HEAD_KEYS, MAX_HEADS)?,
            layers,
            parameters,
            weight_format,
            stored_weights: None,
            trained_context: keys.nonzero(&context, MAX_CONTEXT)?,
            auto_dtype: scheme.unwrap_or(if dtype == Some("float16") { "float16" } else { "bfloat16" }),
            notes,
        })
    }
}

/// What the checkpoint brings scales for.
fn cache_scheme(quantization: &Value) -> Option<&'static str> {
    let scheme = ["kv_cache_scheme", "kv_cache_quant_algo"].iter().find_map(|key| quantization.get(key))?;
    if let Some(name) = scheme.as_str() {
        return match name.to_ascii_lowercase().as_str() {
            "fp8" => Some("fp8"),
            "nvfp4" => Some("nvfp4"),
            _ => None,
        };
    }
    let is_float = scheme.get("type").and_then(Value::as_str) == Some("float");
    match scheme.get("num_bits").and_then(Value::as_u64) {
        Some(8) if is_float => Some("fp8"),
        Some(4) if is_float => Some("nvfp4"),
        _ => None,
    }
}

/// The object of the decoder: the whole file, or what is nested in it, a level deeper where need be.
fn decoder(file: &Map<String, Value>) -> &Map<String, Value> {
    let mut object = file;
    for _ in 0..MAX_NESTING {
        if object.get("num_hidden_layers").is_some_and(|value| !value.is_null()) {
            break;
        }
        match DECODER_KEYS.iter().find_map(|key| object.get(*key)?.as_object()) {
            Some(inner) => object = inner,
            None => break,
        }
    }
    object
}

/// Bytes of the tensors: of an index, else of the one file.
fn stored_weights(folder: &Path) -> Result<Option<(u64, String)>, CapacityError> {
    let index = folder.join(INDEX_FILE);
    if index.exists() {
        let index = object(INDEX_FILE, &read_limited(&index, MAX_INDEX_BYTES)?)?;
        let size = index.get("metadata").and_then(|metadata| metadata.get("total_size")).and_then(Value::as_f64);
        return match size {
            None => Ok(None),
            Some(size) if size >= 1.0 && size <= MAX_WEIGHT_BYTES as f64 => {
                Ok(Some((size as u64, format!("{INDEX_FILE}, metadata.total_size"))))
            }
            Some(size) => {
                let problem = format!("must be between 1 and {MAX_WEIGHT_BYTES} bytes");
                Err(invalid(&format!("{INDEX_FILE}: metadata.total_size"), &size.to_string(), &problem))
            }
        };
    }
    let weights = folder.join(WEIGHTS_FILE);
    Ok(weights.metadata().ok().filter(|found| found.is_file()).map(|found| (found.len(), WEIGHTS_FILE.into())))
}

fn read_limited(path: &Path, limit_bytes: u64) -> Result<Vec<u8>, CapacityError> {
    let failed = |source| CapacityError::Io { path: path.into(), source };
    // A pipe would wait for ever.
    if !path.metadata().map_err(failed)?.is_file() {
        return Err(CapacityError::NotAConfig { path: path.into() });
    }
    let mut text = Vec::new();
    File::open(path).and_then(|file| file.take(limit_bytes + 1).read_to_end(&mut text)).map_err(failed)?;
    if text.len() as u64 > limit_bytes {
        return Err(CapacityError::TooLarge { path: path.into(), limit_bytes });
    }
    Ok(text)
}

fn object(file: &str, text: &[u8]) -> Result<Map<String, Value>, CapacityError> {
    let bad = |problem: String| CapacityError::Json { file: file.into(), problem };
    match serde_json::from_slice(text).map_err(|error| bad(error.to_string()))? {
        Value::Object(object) => Ok(object),
        _ => Err(bad("an object is expected".into())),
    }
}

/// Text of a file, short and without what a terminal obeys.
fn shown(text: &str) -> String {
    let text: String = text.chars().filter(|c| !c.is_control()).take(60).collect();
    if text.is_empty() { "unnamed".into() } else { text }
}

/// Fields of a `config.json` by any of their names.
pub(super) struct Keys<'a> {
    inner: &'a Map<String, Value>,
    outer: &'a Map<String, Value>,
    /// The engine's reading, where it knows the architecture.
    pub(super) known: Option<&'a ModelConfig>,
}

impl Keys<'_> {
    /// The value, of the decoder before that of the whole; `null` counts as absent.
    pub(super) fn value(&self, key: &str) -> Option<&Value> {
        [self.inner, self.outer].iter().find_map(|object| object.get(key)).filter(|value| !value.is_null())
    }

    /// `model_type` of the decoder.
    pub(super) fn model_type(&self) -> &str {
        self.value("model_type").and_then(Value::as_str).unwrap_or_default()
    }

    /// A flag; absent is `false`.
    pub(super) fn flag(&self, key: &str) -> bool {
        self.value(key).and_then(Value::as_bool).unwrap_or(false)
    }

    /// Whether the output layer is the embedding. Not tied is the larger model.
    pub(super) fn is_tied(&self) -> bool {
        let said = self.value("tie_word_embeddings").and_then(Value::as_bool);
        said.unwrap_or_else(|| match self.known {
            Some(known) => known.tied_embeddings,
            None => TIED_BY_DEFAULT.contains(&self.model_type()),
        })
    }

    /// A count of at least 1, or what the engine's reader knows instead.
    pub(super) fn optional(&self, names: &[&str], limit: u32) -> Result<Option<u32>, CapacityError> {
        match self.number(names)? {
            // Above 32 bits is above every limit.
            Some((key, found)) => bounded(key, u32::try_from(found).unwrap_or(u32::MAX), limit).map(Some),
            None => Ok(self.known_count(names[0]).and_then(|count| u32::try_from(count).ok())),
        }
    }

    /// The same where 0 means "none".
    pub(super) fn nonzero(&self, names: &[&str], limit: u32) -> Result<Option<u32>, CapacityError> {
        match self.number(names)? {
            Some((_, 0)) => Ok(None),
            _ => self.optional(names, limit),
        }
    }

    /// The same where it has to be there.
    pub(super) fn required(&self, names: &[&str], limit: u32) -> Result<u32, CapacityError> {
        self.optional(names, limit)?.ok_or_else(|| CapacityError::Missing { key: names[0].into() })
    }

    /// A step between layers; 1 where the file has none. Some files give a list with one flag per layer instead, which is then
    /// taken as every layer: the larger model.
    pub(super) fn step(&self, names: &[&str]) -> Result<usize, CapacityError> {
        let is_list = names.iter().any(|name| self.value(name).is_some_and(Value::is_array));
        if is_list {
            return Ok(1);
        }
        Ok(self.nonzero(names, MAX_LAYERS)?.unwrap_or(1) as usize)
    }

    /// Layer numbers of a list; what is no number is left out.
    pub(super) fn indices(&self, key: &str) -> Vec<usize> {
        let list = self.value(key).and_then(Value::as_array);
        let index = |value: &Value| value.as_u64().and_then(|index| usize::try_from(index).ok());
        list.map_or_else(Vec::new, |list| list.iter().filter_map(index).take(MAX_LAYERS as usize).collect())
    }

    fn number<'k>(&self, names: &[&'k str]) -> Result<Option<(&'k str, u64)>, CapacityError> {
        let Some((key, value)) = names.iter().find_map(|key| Some((*key, self.value(key)?))) else { return Ok(None) };
        let number = value.as_u64().ok_or_else(|| {
            let found: String = value.to_string().chars().filter(|c| !c.is_control()).take(40).collect();
            invalid(key, &found, "must be a whole number of at least 0")
        })?;
        Ok(Some((key, number)))
    }

    fn known_count(&self, key: &str) -> Option<usize> {
        let known = self.known?;
        Some(match key {
            "num_hidden_layers" => known.n_layer(),
            "num_attention_heads" => known.n_head,
            "num_key_value_heads" => known.n_kv_head,
            "head_dim" => known.head_dim,
            "hidden_size" => known.hidden_size,
            "intermediate_size" => known.intermediate_size,
            "vocab_size" => known.vocab_size,
            "max_position_embeddings" => known.trained_context,
            _ => return None,
        })
    }
}
