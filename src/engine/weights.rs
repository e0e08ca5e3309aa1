//! Weight files mapped into memory: a GGUF file, or a Hugging Face folder with one or several safetensors files.
//!
//! Both are seen through Hugging Face's tensor names and row order; what a format does differently is undone here.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};

use crate::engine::config::{ConfigError, Family, GgufTensorFacts, ModelConfig};
use crate::engine::dequant::TensorType;
use crate::engine::gguf::{self, GgufError, GgufMetadata};
use crate::engine::kernels::{bf16_to_f32, f32_to_bf16};

/// Real ones are a few KiB.
const MAX_CONFIG_BYTES: u64 = 1 << 20;
/// An index names every tensor once; 65,536 tensors of 100 bytes stay below this.
const MAX_INDEX_BYTES: u64 = 16 << 20;
/// The largest published checkpoints have under 200 shards.
const MAX_SHARDS: usize = 1024;

/// What is wrong with a model's files.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// The operating system said no.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Neither a `.gguf` file nor a folder with `config.json`.
    #[error("{}: {problem}", path.display())]
    NotAModel {
        /// Which path.
        path: PathBuf,
        /// What was expected.
        problem: String,
    },
    /// A damaged or hostile GGUF file.
    #[error("{}: {source}", path.display())]
    Gguf {
        /// Which file.
        path: PathBuf,
        /// What about it.
        source: GgufError,
    },
    /// A damaged or hostile safetensors file or index.
    #[error("{}: {problem}", path.display())]
    Safetensors {
        /// Which file.
        path: PathBuf,
        /// What about it.
        problem: String,
    },
    /// A description that cannot be used.
    #[error("{}: {source}", path.display())]
    Config {
        /// Which file.
        path: PathBuf,
        /// What about it.
        source: ConfigError,
    },
    /// A tensor that the architecture needs is not there.
    #[error("{}: tensor `{tensor}` is missing", path.display())]
    MissingTensor {
        /// Which file or folder.
        path: PathBuf,
        /// As this format names it.
        tensor: String,
    },
    /// A tensor whose dimensions contradict the configuration.
    #[error("{}: tensor `{tensor}` has shape {found:?}, the configuration needs {expected:?}", path.display())]
    Shape {
        /// Which file or folder.
        path: PathBuf,
        /// As this format names it.
        tensor: String,
        /// As stored.
        found: Vec<usize>,
        /// As needed.
        expected: Vec<usize>,
    },
    /// A tensor that the configuration has no place for: the model would be computed without it.
    #[error("{}: tensor `{tensor}` is there, but the configuration describes a model without it", path.display())]
    Unexpected {
        /// Which file or folder.
        path: PathBuf,
        /// As this format names it.
        tensor: String,
    },
    /// A weight that is NaN or infinite.
    #[error("{}: tensor `{tensor}` holds a value that is not finite", path.display())]
    NotFinite {
        /// Which file or folder.
        path: PathBuf,
        /// As this format names it.
        tensor: String,
    },
}

/// How a tensor's rows are ordered in a GGUF file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum RowOrder {
    /// As in the checkpoint.
    Plain,
    /// Q and K where the family does so: inside each head the two halves are interleaved, for a RoPE that turns neighbours.
    InterleavedHeads {
        /// Rows per head.
        head_dim: usize,
    },
}

/// How a format and its writer name tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NameScheme {
    /// `model.layers.0...`.
    HuggingFace,
    /// A model that also sees images: `language_model.model.layers.0...`.
    LanguageModelFirst,
    /// The same, newer: `model.language_model.layers.0...`.
    LanguageModelInside,
    /// `blk.0...`.
    Gguf,
}

struct StoredTensor {
    file: usize,
    shape: Vec<usize>,
    tensor_type: TensorType,
    bytes: Range<usize>,
}

/// All tensors of a model, and what came with them.
pub(in crate::engine) struct Weights {
    path: PathBuf,
    files: Vec<memmap2::Mmap>,
    tensors: BTreeMap<String, StoredTensor>,
    names: NameScheme,
    /// Only a GGUF file has it.
    pub(in crate::engine) metadata: Option<GgufMetadata>,
    pub(in crate::engine) config: ModelConfig,
}

impl Weights {
    /// Opens a `.gguf` file or a Hugging Face folder.
    pub(in crate::engine) fn open(path: &Path) -> Result<Self, WeightsError> {
        let kind = std::fs::metadata(path).map_err(|source| WeightsError::Io { path: path.into(), source })?;
        if kind.is_dir() { Self::open_folder(path) } else { Self::open_gguf(path) }
    }

    fn open_gguf(path: &Path) -> Result<Self, WeightsError> {
        let file = map(path)?;
        let header = gguf::parse(&file).map_err(|source| WeightsError::Gguf { path: path.into(), source })?;
        let missing = |tensor: &str| WeightsError::MissingTensor { path: path.into(), tensor: tensor.into() };
        let embedding = header.tensors.get("token_embd.weight").ok_or_else(|| missing("token_embd.weight"))?;
        let factors = header.tensors.get("rope_freqs.weight").map(|tensor| {
            let mut factors = vec![0.0; tensor.shape.iter().product()];
            tensor.tensor_type.decode(&file[tensor.bytes.clone()], &mut factors);
            factors
        });
        let facts = GgufTensorFacts {
            vocab_size: embedding.shape[0],
            tied_embeddings: !header.tensors.contains_key("output.weight"),
            qkv_bias: header.tensors.contains_key("blk.0.attn_q.bias"),
            out_bias: header.tensors.contains_key("blk.0.attn_output.bias"),
            rope_factors: factors.unwrap_or_default(),
        };
        let config = ModelConfig::from_gguf(&header.metadata, facts);
        let config = config.map_err(|source| WeightsError::Config { path: path.into(), source })?;
        let tensors = header.tensors.into_iter().map(|(name, tensor)| {
            let stored =
                StoredTensor { file: 0, shape: tensor.shape, tensor_type: tensor.tensor_type, bytes: tensor.bytes };
            (name, stored)
        });
        let tensors = tensors.collect();
        let (metadata, names) = (Some(header.metadata), NameScheme::Gguf);
        Self { path: path.into(), files: vec![file], tensors, names, metadata, config }.without_unexpected_tensors()
    }

    fn open_folder(path: &Path) -> Result<Self, WeightsError> {
        let config_path = path.join("config.json");
        let config = read_capped(&config_path, MAX_CONFIG_BYTES)?;
        let (mut files, mut tensors) = (Vec::new(), BTreeMap::new());
        for name in shard_names(path)? {
            let file_path = path.join(name);
            let file = map(&file_path)?;
            for (tensor, stored) in safetensors_entries(&file_path, &file, files.len())? {
                if tensors.contains_key(&tensor) {
                    let problem = format!("tensor `{tensor}` is in two files");
                    return Err(WeightsError::Safetensors { path: file_path, problem });
                }
                tensors.insert(tensor, stored);
            }
            files.push(file);
        }
        let has = |name: &str| tensors.contains_key(name);
        let names = if has("language_model.model.embed_tokens.weight") {
            NameScheme::LanguageModelFirst
        } else if has("model.language_model.embed_tokens.weight") {
            NameScheme::LanguageModelInside
        } else {
            NameScheme::HuggingFace
        };
        let config = ModelConfig::from_json(&config, has("lm_head.weight") || has("language_model.lm_head.weight"));
        let config = config.map_err(|source| WeightsError::Config { path: config_path, source })?;
        Self { path: path.into(), files, tensors, names, metadata: None, config }.without_unexpected_tensors()
    }

    /// A tensor left over would be a model computed wrong, so every part that some family has is looked for in vain, and
    /// so is a layer beyond the last.
    fn without_unexpected_tensors(self) -> Result<Self, WeightsError> {
        let config = &self.config;
        let parts = [
            ("self_attn.q_proj.bias", config.qkv_bias),
            ("self_attn.k_proj.bias", config.qkv_bias),
            ("self_attn.v_proj.bias", config.qkv_bias),
            ("self_attn.o_proj.bias", config.out_bias),
            ("self_attn.q_norm.weight", config.qk_norm),
            ("self_attn.k_norm.weight", config.qk_norm),
            ("post_feedforward_layernorm.weight", config.post_norms),
            ("mlp.gate_proj.bias", false),
            ("mlp.up_proj.bias", false),
            ("mlp.down_proj.bias", false),
        ];
        let unexpected = parts.into_iter().filter(|(_, expected)| !expected);
        let in_layers = unexpected.flat_map(|(part, _)| (0..config.n_layer()).map(move |layer| (layer, part)));
        let beyond = (config.n_layer(), "self_attn.q_proj.weight");
        for (layer, part) in in_layers.chain([beyond]) {
            let tensor = self.stored_name(&format!("model.layers.{layer}.{part}"));
            if self.tensors.contains_key(&tensor) {
                return Err(WeightsError::Unexpected { path: self.path.clone(), tensor });
            }
        }
        Ok(self)
    }

    fn stored_name(&self, name: &str) -> String {
        match self.names {
            NameScheme::HuggingFace => name.into(),
            NameScheme::LanguageModelFirst => format!("language_model.{name}"),
            NameScheme::LanguageModelInside => match name.strip_prefix("model.") {
                Some(inner) => format!("model.language_model.{inner}"),
                None => name.into(),
            },
            NameScheme::Gguf => gguf_name(name, self.config.family),
        }
    }

    /// BLAKE3 of the bytes of all weight files in their order and of the configuration, in hex.
    pub(in crate::engine) fn hash(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        self.files.iter().for_each(|file| {
            hasher.update(file);
        });
        // What is computed with the weights stands in `config.json`, which is none of the files.
        hasher.update(self.config.fingerprint().as_bytes());
        hasher.finalize().to_hex().to_string()
    }

    /// A matrix `[n_out, n_in]` in BF16 by its Hugging Face name.
    pub(in crate::engine) fn matrix(
        &self,
        name: &str,
        [n_out, n_in]: [usize; 2],
        order: RowOrder,
    ) -> Result<Vec<u16>, WeightsError> {
        let (stored_name, values) = self.rounded(name, &[n_out, n_in])?;
        // All bits of the exponent set: infinity or NaN.
        if values.iter().any(|bits| bits & 0x7F80 == 0x7F80) {
            return Err(self.not_finite(stored_name));
        }
        match order {
            RowOrder::InterleavedHeads { head_dim } if self.interleaves_heads() => {
                Ok(separate_halves(&values, n_in, head_dim))
            }
            _ => Ok(values),
        }
    }

    /// A vector of `n` values, rounded to BF16 like everything else, by its Hugging Face name.
    pub(in crate::engine) fn vector(&self, name: &str, n: usize) -> Result<Vec<f32>, WeightsError> {
        let (stored_name, values) = self.rounded(name, &[n])?;
        self.finite(stored_name, values.into_iter().map(bf16_to_f32).collect())
    }

    /// The same for values that belong to the rows of Q or K.
    pub(in crate::engine) fn head_vector(
        &self,
        name: &str,
        n: usize,
        head_dim: usize,
    ) -> Result<Vec<f32>, WeightsError> {
        let (stored_name, mut values) = self.rounded(name, &[n])?;
        if self.interleaves_heads() {
            values = separate_halves(&values, 1, head_dim);
        }
        self.finite(stored_name, values.into_iter().map(bf16_to_f32).collect())
    }

    /// What a norm multiplies with. Where checkpoints store that minus one, GGUF files store it whole in f32; the offset is
    /// what gets rounded to BF16, so that both formats give the same numbers.
    pub(in crate::engine) fn norm(&self, name: &str, n: usize) -> Result<Vec<f32>, WeightsError> {
        if !self.config.family.norms_are_offsets() {
            return self.vector(name, n);
        }
        let (stored_name, tensor) = self.stored(name, &[n])?;
        let mut offsets = vec![0.0; n];
        tensor.tensor_type.decode(self.bytes(tensor), &mut offsets);
        if self.names == NameScheme::Gguf {
            offsets.iter_mut().for_each(|value| *value -= 1.0);
        }
        let weights = offsets.into_iter().map(|offset| 1.0 + bf16_to_f32(f32_to_bf16(offset))).collect();
        self.finite(stored_name, weights)
    }

    fn interleaves_heads(&self) -> bool {
        self.names == NameScheme::Gguf && self.config.family.interleaves_heads_in_gguf()
    }

    fn not_finite(&self, tensor: String) -> WeightsError {
        WeightsError::NotFinite { path: self.path.clone(), tensor }
    }

    fn finite(&self, name: String, values: Vec<f32>) -> Result<Vec<f32>, WeightsError> {
        if values.iter().all(|value| value.is_finite()) { Ok(values) } else { Err(self.not_finite(name)) }
    }

    /// Name, shape and exact values of the tensors whose stored name `is_wanted`; values only where there are at most `most`.
    pub(in crate::engine) fn small_tensors(
        &self,
        is_wanted: impl Fn(&str) -> bool,
        most: usize,
    ) -> Vec<(String, Vec<usize>, Vec<f32>)> {
        let wanted = self.tensors.iter().filter(|(name, _)| is_wanted(name));
        let read = |(name, tensor): (&String, &StoredTensor)| {
            let n_value = tensor.shape.iter().product::<usize>();
            let mut values = vec![0.0; if n_value <= most { n_value } else { 0 }];
            tensor.tensor_type.decode(&self.files[tensor.file][tensor.bytes.clone()], &mut values);
            (name.clone(), tensor.shape.clone(), values)
        };
        wanted.map(read).collect()
    }

    fn rounded(&self, name: &str, expected: &[usize]) -> Result<(String, Vec<u16>), WeightsError> {
        let (name, tensor) = self.stored(name, expected)?;
        let n_column = *expected.last().expect("a tensor has a dimension");
        Ok((name, tensor.tensor_type.decode_to_bf16(self.bytes(tensor), n_column)))
    }

    fn stored(&self, name: &str, expected: &[usize]) -> Result<(String, &StoredTensor), WeightsError> {
        let name = self.stored_name(name);
        let Some(tensor) = self.tensors.get(&name) else {
            return Err(WeightsError::MissingTensor { path: self.path.clone(), tensor: name });
        };
        if tensor.shape != expected {
            let (found, expected) = (tensor.shape.clone(), expected.to_vec());
            return Err(WeightsError::Shape { path: self.path.clone(), tensor: name, found, expected });
        }
        Ok((name, tensor))
    }

    fn bytes(&self, tensor: &StoredTensor) -> &[u8] {
        &self.files[tensor.file][tensor.bytes.clone()]
    }
}

/// `model.layers.3.self_attn.q_proj.weight` → `blk.3.attn_q.weight`.
fn gguf_name(name: &str, family: Family) -> String {
    const OUTER: [(&str, &str); 3] =
        [("model.embed_tokens", "token_embd"), ("model.norm", "output_norm"), ("lm_head", "output")];
    const INNER: [(&str, &str); 13] = [
        ("input_layernorm", "attn_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("pre_feedforward_layernorm", "ffn_norm"),
        ("post_feedforward_layernorm", "post_ffw_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ];
    let (stem, suffix) = name.rsplit_once('.').expect("tensor names end in `.weight` or `.bias`");
    let translate = |table: &[(&str, &'static str)], stem: &str| {
        table.iter().find(|(hugging_face, _)| *hugging_face == stem).map(|(_, gguf)| *gguf)
    };
    if let Some(outer) = translate(&OUTER, stem) {
        return format!("{outer}.{suffix}");
    }
    let layer_and_part = stem.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
    let (layer, part) = layer_and_part.expect("other tensors belong to a layer");
    // The one name that means another norm where there are four per layer.
    if family == Family::Gemma3 && part == "post_attention_layernorm" {
        return format!("blk.{layer}.post_attention_norm.{suffix}");
    }
    format!("blk.{layer}.{}.{suffix}", translate(&INNER, part).expect("every part of a layer has a GGUF name"))
}

/// Row `2j + p` of each head goes to row `p · head_dim/2 + j`.
fn separate_halves(values: &[u16], n_in: usize, head_dim: usize) -> Vec<u16> {
    let mut separated = vec![0; values.len()];
    for (index, row) in values.chunks_exact(n_in).enumerate() {
        let (head, inside) = (index / head_dim, index % head_dim);
        let target = head * head_dim + inside % 2 * (head_dim / 2) + inside / 2;
        separated[target * n_in..(target + 1) * n_in].copy_from_slice(row);
    }
    separated
}

#[expect(unsafe_code, reason = "a mapped file is the only way to read weights without a second copy")]
fn map(path: &Path) -> Result<memmap2::Mmap, WeightsError> {
    let io = |source| WeightsError::Io { path: path.into(), source };
    let file = File::open(path).map_err(io)?;
    // SAFETY: the map is read-only and private. Another process could change or cut the file while it is mapped, which no
    // program can rule out for any mapped file; model files are written once and moved into place.
    unsafe { memmap2::Mmap::map(&file) }.map_err(io)
}

pub(in crate::engine) fn read_capped(path: &Path, limit: u64) -> Result<Vec<u8>, WeightsError> {
    let io = |source| WeightsError::Io { path: path.into(), source };
    let mut bytes = Vec::new();
    File::open(path).map_err(io)?.take(limit + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > limit {
        let problem = format!("longer than {limit} bytes, which no real file of this name is");
        return Err(WeightsError::NotAModel { path: path.into(), problem });
    }
    Ok(bytes)
}

/// `model.safetensors`, or the shards that the index names. Names only: an index must not reach outside its folder.
fn shard_names(folder: &Path) -> Result<Vec<String>, WeightsError> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let single = "model.safetensors";
    if folder.join(single).is_file() {
        return Ok(vec![single.into()]);
    }
    let path = folder.join("model.safetensors.index.json");
    if !path.is_file() {
        let problem = "has neither model.safetensors nor model.safetensors.index.json".into();
        return Err(WeightsError::NotAModel { path: folder.into(), problem });
    }
    let broken = |problem: String| WeightsError::Safetensors { path: path.clone(), problem };
    let index: Index =
        serde_json::from_slice(&read_capped(&path, MAX_INDEX_BYTES)?).map_err(|e| broken(e.to_string()))?;
    let mut names: Vec<String> = index.weight_map.into_values().collect();
    names.sort_unstable();
    names.dedup();
    if names.is_empty() || names.len() > MAX_SHARDS {
        return Err(broken(format!("names {} files, expected 1 to {MAX_SHARDS}", names.len())));
    }
    match names.iter().find(|name| !is_plain_file_name(name)) {
        Some(name) => Err(broken(format!("`{name}` is not a plain *.safetensors file name"))),
        None => Ok(names),
    }
}

fn is_plain_file_name(name: &str) -> bool {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    name.ends_with(".safetensors") && !name.starts_with('.') && name.chars().all(legal)
}

/// Tensors of one file. The crate checks that offsets are in range, contiguous and of the right size.
fn safetensors_entries(path: &Path, bytes: &[u8], file: usize) -> Result<Vec<(String, StoredTensor)>, WeightsError> {
    let broken = |problem: String| WeightsError::Safetensors { path: path.into(), problem };
    let (header_bytes, metadata) = SafeTensors::read_metadata(bytes).map_err(|error| broken(error.to_string()))?;
    // The crate's map keeps the last of two equal keys; a file that says two things is not to be believed.
    let header = &bytes[8..8 + header_bytes];
    serde_json::from_slice::<UniqueKeys>(header).map_err(|error| broken(error.to_string()))?;
    let mut entries = Vec::new();
    for name in metadata.offset_keys() {
        let info = metadata.info(&name).expect("a listed key has an entry");
        let tensor_type = match info.dtype {
            Dtype::F32 => TensorType::F32,
            Dtype::F16 => TensorType::F16,
            Dtype::BF16 => TensorType::BF16,
            other => return Err(broken(format!("tensor `{name}` is {other:?}; supported: F32, F16, BF16"))),
        };
        let (start, end) = info.data_offsets;
        let start_of_data = 8 + header_bytes;
        let bytes = start_of_data + start..start_of_data + end;
        entries.push((name, StoredTensor { file, shape: info.shape.clone(), tensor_type, bytes }));
    }
    Ok(entries)
}

/// A JSON object whose keys are all different; values are not looked at.
struct UniqueKeys;

impl<'de> serde::Deserialize<'de> for UniqueKeys {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = UniqueKeys;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<UniqueKeys, A::Error> {
                let mut seen = std::collections::BTreeSet::new();
                while let Some(key) = map.next_key::<String>()? {
                    map.next_value::<serde::de::IgnoredAny>()?;
                    if seen.contains(&key) {
                        return Err(serde::de::Error::custom(format!("key `{key}` is given twice")));
                    }
                    seen.insert(key);
                }
                Ok(UniqueKeys)
            }
        }
        deserializer.deserialize_map(Visitor)
    }
}
