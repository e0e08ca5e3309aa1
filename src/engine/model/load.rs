//! From tensors to packed matrices.

use std::path::Path;

use rayon::prelude::*;

use crate::engine::checkpoint_scales::CheckpointScales;
use crate::engine::config::ModelConfig;
use crate::engine::error::EngineError;
use crate::engine::gguf::GgufMetadata;
use crate::engine::kernels::PackedMatrix;
use crate::engine::model::{Layer, Model};
use crate::engine::weights::{RowOrder, Weights, WeightsError};

impl Model {
    /// Loads a `.gguf` file or a Hugging Face folder.
    pub fn load(path: &Path) -> Result<Self, EngineError> {
        let weights = Weights::open(path)?;
        let (weights_hash, parts) = rayon::join(|| weights.hash(), || Self::pack(&weights));
        let (embedding, layers, final_norm, output) = parts?;
        let kv_scales = CheckpointScales::read(path, &weights)?;
        let Weights { config, metadata, .. } = weights;
        Ok(Self { config, metadata, kv_scales, weights_hash, embedding, layers, final_norm, output })
    }

    /// Reads the metadata of a `.gguf` file without its tensors; `None` for a Hugging Face folder.
    ///
    /// # Errors
    /// As [`Model::load`], as far as the header and the model's configuration go.
    pub fn read_metadata(path: &Path) -> Result<Option<GgufMetadata>, EngineError> {
        Ok(Weights::open(path)?.metadata)
    }

    #[expect(clippy::type_complexity, reason = "the four parts of a model, named where they are taken apart")]
    fn pack(weights: &Weights) -> Result<(PackedMatrix, Vec<Layer>, Vec<f32>, Option<PackedMatrix>), WeightsError> {
        let config = &weights.config;
        let vocabulary = [config.vocab_size, config.hidden_size];
        let table = |name: &str| -> Result<PackedMatrix, WeightsError> {
            let rows = weights.matrix(name, vocabulary, RowOrder::Plain)?;
            Ok(PackedMatrix::pack(config.vocab_size, config.hidden_size, &rows))
        };
        let embedding = table("model.embed_tokens.weight")?;
        let layers = (0..config.n_layer()).into_par_iter().map(|layer| Layer::pack(weights, layer));
        let layers = layers.collect::<Result<_, _>>()?;
        let final_norm = weights.norm("model.norm.weight", config.hidden_size)?;
        let output = if config.tied_embeddings { None } else { Some(table("lm_head.weight")?) };
        Ok((embedding, layers, final_norm, output))
    }
}

impl Layer {
    fn pack(weights: &Weights, layer: usize) -> Result<Self, WeightsError> {
        let config = &weights.config;
        let (hidden, inner, head_dim) = (config.hidden_size, config.intermediate_size, config.head_dim);
        let (q_width, kv_width) = (config.n_head * head_dim, config.n_kv_head * head_dim);
        let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
        let matrix = |part: &str, n_out, n_in| weights.matrix(&name(part), [n_out, n_in], RowOrder::Plain);
        let heads =
            |part: &str, n_out| weights.matrix(&name(part), [n_out, hidden], RowOrder::InterleavedHeads { head_dim });
        let norm = |part: &str, n| weights.norm(&name(part), n);
        let norm_if = |wanted: bool, part: &str| wanted.then(|| norm(part, hidden)).transpose();

        let mut qkv = heads("self_attn.q_proj", q_width)?;
        qkv.extend(heads("self_attn.k_proj", kv_width)?);
        qkv.extend(matrix("self_attn.v_proj", kv_width, hidden)?);
        let mut gate_up = matrix("mlp.gate_proj", inner, hidden)?;
        gate_up.extend(matrix("mlp.up_proj", inner, hidden)?);
        let attention_out = matrix("self_attn.o_proj", hidden, q_width)?;
        let down = matrix("mlp.down_proj", hidden, inner)?;
        let head_norms = || Ok([norm("self_attn.q_norm", head_dim)?, norm("self_attn.k_norm", head_dim)?]);
        let out_bias = || weights.vector(&format!("model.layers.{layer}.self_attn.o_proj.bias"), hidden);
        // With norms on both sides, "post_attention" is on attention's way out and the MLP's own has another name.
        let mlp_norm = if config.post_norms { "pre_feedforward_layernorm" } else { "post_attention_layernorm" };
        Ok(Self {
            attention_norm: norm("input_layernorm", hidden)?,
            qkv: PackedMatrix::pack(q_width + 2 * kv_width, hidden, &qkv),
            qkv_bias: config.qkv_bias.then(|| Self::qkv_bias(weights, layer)).transpose()?,
            head_norms: config.qk_norm.then(head_norms).transpose()?,
            attention_out: PackedMatrix::pack(hidden, q_width, &attention_out),
            out_bias: config.out_bias.then(out_bias).transpose()?,
            post_attention_norm: norm_if(config.post_norms, "post_attention_layernorm")?,
            mlp_norm: norm(mlp_norm, hidden)?,
            gate_up: PackedMatrix::pack(2 * inner, hidden, &gate_up),
            down: PackedMatrix::pack(hidden, inner, &down),
            post_mlp_norm: norm_if(config.post_norms, "post_feedforward_layernorm")?,
        })
    }

    fn qkv_bias(weights: &Weights, layer: usize) -> Result<Vec<f32>, WeightsError> {
        let ModelConfig { n_head, n_kv_head, head_dim, .. } = weights.config;
        let name = |part: &str| format!("model.layers.{layer}.self_attn.{part}.bias");
        let mut bias = weights.head_vector(&name("q_proj"), n_head * head_dim, head_dim)?;
        bias.extend(weights.head_vector(&name("k_proj"), n_kv_head * head_dim, head_dim)?);
        bias.extend(weights.vector(&name("v_proj"), n_kv_head * head_dim)?);
        Ok(bias)
    }
}
