//! A decoder-only transformer: its weights and one forward pass over rows of several sequences.
//!
//! ```text
//! ids ─▶ embedding ─▶ n_layer × [ norm ─▶ q,k,v ─▶ rope ─▶ cache ─▶ attention ─▶ out ─▶ + ─▶ norm ─▶ gate·up ─▶ down ─▶ + ] ─▶ norm ─▶ logits
//! ```

mod forward;
mod load;

use crate::engine::checkpoint_scales::CheckpointScales;
use crate::engine::config::ModelConfig;
use crate::engine::gguf::GgufMetadata;
use crate::engine::kernels::PackedMatrix;

pub(in crate::engine) use forward::{Forward, NotFinite, Span};

/// A loaded model. Weights are BF16 whatever the file held, so that only the KV cache differs between arms.
pub struct Model {
    config: ModelConfig,
    metadata: Option<GgufMetadata>,
    kv_scales: CheckpointScales,
    weights_hash: String,
    /// `[vocab, hidden]`, the output layer too when tied.
    embedding: PackedMatrix,
    layers: Vec<Layer>,
    /// `[hidden]`.
    final_norm: Vec<f32>,
    /// `[vocab, hidden]`.
    output: Option<PackedMatrix>,
}

struct Layer {
    /// `[hidden]`.
    attention_norm: Vec<f32>,
    /// `[(n_head + 2 · n_kv_head) · head_dim, hidden]`: rows of Q, then K, then V.
    qkv: PackedMatrix,
    /// `[(n_head + 2 · n_kv_head) · head_dim]`.
    qkv_bias: Option<Vec<f32>>,
    /// `[head_dim]` of Q and of K.
    head_norms: Option<[Vec<f32>; 2]>,
    /// `[hidden, n_head · head_dim]`.
    attention_out: PackedMatrix,
    /// `[hidden]`.
    out_bias: Option<Vec<f32>>,
    /// `[hidden]`, on what attention adds to the residual stream.
    post_attention_norm: Option<Vec<f32>>,
    /// `[hidden]`.
    mlp_norm: Vec<f32>,
    /// `[2 · intermediate, hidden]`: rows of gate, then up.
    gate_up: PackedMatrix,
    /// `[hidden, intermediate]`.
    down: PackedMatrix,
    /// `[hidden]`, on what the MLP adds to the residual stream.
    post_mlp_norm: Option<Vec<f32>>,
}

impl Model {
    /// Dimensions and constants.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Metadata of a GGUF file, tokenizer and chat template included; `None` for a folder.
    pub fn metadata(&self) -> Option<&GgufMetadata> {
        self.metadata.as_ref()
    }

    /// Scales of the KV cache that came with the weights.
    pub fn kv_scale_tensors(&self) -> &CheckpointScales {
        &self.kv_scales
    }

    /// BLAKE3 of the weight files' bytes and of the configuration that is computed with, in hex.
    pub fn weights_hash(&self) -> String {
        self.weights_hash.clone()
    }
}
