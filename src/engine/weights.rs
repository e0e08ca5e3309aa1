//! Weight files mapped into memory: a GGUF file, or a Hugging Face folder with one or several safetensors files.
//!
//! Both are seen through Hugging Face's tensor names and row order; what a format does differently is undone here.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};

use crate::engine::config::{ConfigError, ModelConfig};
use crate::engine::dequant::TensorType;
use crate::engine::gguf::{self, GgufError, GgufMetadata};
use crate::engine::kernels::bf16_to_f32;

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
    /// Q and K of `llama` files: inside each head the two halves are interleaved, for a RoPE that turns neighbours.
    InterleavedHeads {
        /// Rows per head.
        head_dim: usize,
    },
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
        let tied = !header.tensors.contains_key("output.weight");
        let config = ModelConfig::from_gguf(&header.metadata, embedding.shape[0], tied);
        let config = config.map_err(|source| WeightsError::Config { path: path.into(), source })?;
        if header.tensors.contains_key("rope_freqs.weight") {
            let problem = "per-dimension RoPE factors (`rope_freqs.weight`) are not supported".into();
            return Err(WeightsError::NotAModel { path: path.into(), problem });
        }
        let tensors = header.tensors.into_iter().map(|(name, tensor)| {
            let stored =
                StoredTensor { file: 0, shape: tensor.shape, tensor_type: tensor.tensor_type, bytes: tensor.bytes };
            (name, stored)
        });
        let tensors = tensors.collect();
        Ok(Self { path: path.into(), files: vec![file], tensors, metadata: Some(header.metadata), config })
    }

    fn open_folder(path: &Path) -> Result<Self, WeightsError> {
        let config_path = path.join("config.json");
        let config = ModelConfig::from_json(&read_capped(&config_path, MAX_CONFIG_BYTES)?);
        let config = config.map_err(|source| WeightsError::Config { path: config_path, source })?;
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
        Ok(Self { path: path.into(), files, tensors, metadata: None, config })
    }

    /// BLAKE3 of the bytes of all weight files in their order, in hex.
    pub(in crate::engine) fn hash(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        self.files.iter().for_each(|file| {
            hasher.update(file);
        });
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
            return Err(WeightsError::NotFinite { path: self.path.clone(), tensor: stored_name });
        }
        match order {
            RowOrder::InterleavedHeads { head_dim } if self.metadata.is_some() => {
                Ok(separate_halves(&values, n_in, head_dim))
            }
            _ => Ok(values),
        }
    }

    /// A vector of `n` values, rounded to BF16 like everything else, by its Hugging Face name.
    pub(in crate::engine) fn vector(&self, name: &str, n: usize) -> Result<Vec<f32>, WeightsError> {
        let (stored_name, values) = self.rounded(name, &[n])?;
        let values: Vec<f32> = values.into_iter().map(bf16_to_f32).collect();
        if values.iter().any(|value| !value.is_finite()) {
            return Err(WeightsError::NotFinite { path: self.path.clone(), tensor: stored_name });
        }
        Ok(values)
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
        let name = if self.metadata.is_some() { gguf_name(name) } else { name.to_owned() };
        let Some(tensor) = self.tensors.get(&name) else {
            return Err(WeightsError::MissingTensor { path: self.path.clone(), tensor: name });
        };
        if tensor.shape != expected {
            let (found, expected) = (tensor.shape.clone(), expected.to_vec());
            return Err(WeightsError::Shape { path: self.path.clone(), tensor: name, found, expected });
        }
        let bytes = &self.files[tensor.file][tensor.bytes.clone()];
        let n_column = *expected.last().expect("a tensor has a dimension");
        Ok((name, tensor.tensor_type.decode_to_bf16(bytes, n_column)))
    }
}

/// `model.layers.3.self_attn.q_proj.weight` → `blk.3.attn_q.weight`.
fn gguf_name(name: &str) -> String {
    const OUTER: [(&str, &str); 3] =
        [("model.embed_tokens", "token_embd"), ("model.norm", "output_norm"), ("lm_head", "output")];
    const INNER: [(&str, &str); 9] = [
        ("input_layernorm", "attn_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
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
