//! Parameters from shapes, by the role that decides how a quantization stores them.
//!
//! ```text
//! embedding  V·H, twice unless tied
//! linear     per layer: attention  H·(n_head + n_kv)·d_k + H·n_kv·d_v + n_head·d_v·H
//!                       or MLA     [H·r_q + r_q·n_head·(d_nope + d_rope)] + H·(r_kv + d_rope) + r_kv·n_head·(d_nope + d_v) + n_head·d_v·H
//!                       MLP        3·H·I (2·H·I without a gate), shared experts likewise
//! experts    per layer: n_expert·3·H·I_expert
//! other      norms, biases, routers, sinks
//! ```

use serde::Serialize;

use crate::capacity::CapacityError;
use crate::capacity::LayerCache;
use crate::capacity::config_json::{HEAD_KEYS, HIDDEN_KEYS, Keys};
use crate::capacity::shape::{MAX_HEAD_DIM, MAX_HEADS, MAX_LATENT, MAX_PARAMETERS, invalid};

/// Wider than every published model; products stay inside 128 bits by far.
const MAX_WIDTH: u32 = 1 << 20;
const MAX_VOCAB: u32 = 1 << 24;
const MAX_EXPERTS: u32 = 1 << 14;

/// Model types whose MLP is two matrices, without a gate.
const WITHOUT_GATE: &[&str] =
    &["gpt2", "gpt_neox", "gptj", "gpt_bigcode", "starcoder2", "falcon", "opt", "bloom", "phi", "mpt", "nemotron"];

/// Model types for which this gives the published count (tested).
pub(super) const CHECKED_FAMILIES: &[&str] = &[
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "gemma3",
    "gemma3_text",
    "smollm3",
    "deepseek_v3",
    "gpt_oss",
];

/// Counts of parameters by role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Parameters {
    /// Embedding and output layer.
    pub embedding: u64,
    /// Matrices of attention and MLP, shared experts included.
    pub linear: u64,
    /// Matrices of routed experts.
    pub experts: u64,
    /// Norms, biases, routers.
    pub other: u64,
}

impl Parameters {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.embedding + self.linear + self.experts + self.other
    }
}

/// Sums in 128 bits: limits on single dimensions do not limit their products to 64.
#[derive(Default)]
struct Sum {
    linear: u128,
    experts: u128,
    other: u128,
}

/// What every layer is computed from.
struct Widths {
    hidden: u128,
    n_head: u128,
    has_qkv_bias: bool,
    has_out_bias: bool,
    has_qk_norm: bool,
    norms: u128,
    has_sinks: bool,
    mlp_matrices: u128,
    intermediate: u128,
}

/// Counts the parameters of a decoder with these layers.
pub(super) fn count(keys: &Keys<'_>, layers: &[LayerCache]) -> Result<Parameters, CapacityError> {
    let hidden = u128::from(keys.required(&HIDDEN_KEYS, MAX_WIDTH)?);
    let vocab = u128::from(keys.required(&["vocab_size"], MAX_VOCAB)?);
    let model_type = keys.model_type();
    let attention_bias = keys.flag("attention_bias");
    let is_gemma = matches!(model_type, "gemma2" | "gemma3" | "gemma3_text");
    let intermediate = keys.optional(&["intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"], MAX_WIDTH)?;
    let widths = Widths {
        hidden,
        n_head: keys.required(&HEAD_KEYS, MAX_HEADS)?.into(),
        has_qkv_bias: attention_bias || matches!(model_type, "qwen2" | "qwen2_moe"),
        has_out_bias: attention_bias,
        has_qk_norm: matches!(model_type, "qwen3" | "qwen3_moe" | "gemma3" | "gemma3_text"),
        norms: if is_gemma { 4 * hidden } else { 2 * hidden },
        has_sinks: model_type == "gpt_oss",
        mlp_matrices: if WITHOUT_GATE.contains(&model_type) { 2 } else { 3 },
        intermediate: intermediate.map_or(4 * hidden, u128::from),
    };
    let mixture = Mixture::of(keys, &widths)?;
    let mut sum = Sum::default();
    for (index, layer) in layers.iter().enumerate() {
        attention(keys, &widths, layer, &mut sum)?;
        match mixture.as_ref().filter(|mixture| mixture.is_in(index)) {
            Some(mixture) => mixture.add(&widths, &mut sum),
            None => sum.linear += widths.mlp_matrices * hidden * widths.intermediate,
        }
        sum.other += widths.norms;
    }
    sum.other += hidden;
    let embedding = vocab * hidden * if keys.is_tied() { 1 } else { 2 };
    let total = embedding + sum.linear + sum.experts + sum.other;
    if total > u128::from(MAX_PARAMETERS) {
        return Err(invalid("the number of parameters", &total.to_string(), "no model is that large"));
    }
    let narrow = |count: u128| u64::try_from(count).expect("a part is at most the total, which is checked");
    Ok(Parameters {
        embedding: narrow(embedding),
        linear: narrow(sum.linear),
        experts: narrow(sum.experts),
        other: narrow(sum.other),
    })
}

fn attention(keys: &Keys<'_>, widths: &Widths, layer: &LayerCache, sum: &mut Sum) -> Result<(), CapacityError> {
    let (hidden, n_head) = (widths.hidden, widths.n_head);
    match *layer {
        LayerCache::Heads { n_kv_head, key_dim, value_dim, .. } => {
            let (n_kv, key, value) = (u128::from(n_kv_head), u128::from(key_dim), u128::from(value_dim));
            let qkv = (n_head + n_kv) * key + n_kv * value;
            sum.linear += hidden * qkv + n_head * value * hidden;
            sum.other += if widths.has_qkv_bias { qkv } else { 0 };
            sum.other += if widths.has_out_bias { hidden } else { 0 };
            sum.other += if widths.has_qk_norm { 2 * key } else { 0 };
            sum.other += if widths.has_sinks { n_head } else { 0 };
        }
        LayerCache::Latent { latent_dim, rope_dim, .. } => {
            let width = |names: &[&str]| keys.required(names, MAX_HEAD_DIM).map(u128::from);
            let (nope, value) = (width(&["qk_nope_head_dim"])?, width(&["v_head_dim"])?);
            let (latent, rope) = (u128::from(latent_dim), u128::from(rope_dim));
            let query = n_head * (nope + rope);
            match keys.optional(&["q_lora_rank"], MAX_LATENT)?.map(u128::from) {
                Some(rank) => {
                    sum.linear += hidden * rank + rank * query;
                    sum.other += rank;
                }
                None => sum.linear += hidden * query,
            }
            sum.linear += hidden * (latent + rope) + latent * n_head * (nope + value) + n_head * value * hidden;
            sum.other += latent;
        }
        // Mixers with a state have projections of about the size of attention's: Q, K, V and output of full width.
        LayerCache::State => sum.linear += 4 * hidden * hidden,
        // A layer that shares a cache still has its queries and output.
        LayerCache::None => sum.linear += 2 * hidden * hidden,
    }
    Ok(())
}

/// Experts, and which layers have them.
struct Mixture {
    n_expert: u128,
    width: u128,
    shared_width: u128,
    has_shared_gate: bool,
    has_biases: bool,
    has_router_bias: bool,
    first_layer: usize,
    every: usize,
    dense_layers: Vec<usize>,
}

impl Mixture {
    /// `None` for a dense model.
    fn of(keys: &Keys<'_>, widths: &Widths) -> Result<Option<Self>, CapacityError> {
        let names = ["num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"];
        let Some(n_expert) = keys.optional(&names, MAX_EXPERTS)? else { return Ok(None) };
        let model_type = keys.model_type();
        let width = keys.optional(&["moe_intermediate_size"], MAX_WIDTH)?.map_or(widths.intermediate, u128::from);
        let n_shared = keys.optional(&["n_shared_experts", "num_shared_experts"], MAX_EXPERTS)?;
        let shared_width = match keys.optional(&["shared_expert_intermediate_size"], MAX_WIDTH)? {
            Some(shared) => shared.into(),
            None => n_shared.map_or(0, u128::from) * width,
        };
        // A step of 2 puts experts into layers 1, 3, 5, ... counted from 0.
        let steps = ["decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq"];
        Ok(Some(Self {
            n_expert: n_expert.into(),
            width,
            shared_width,
            has_shared_gate: model_type == "qwen2_moe",
            has_biases: model_type == "gpt_oss",
            has_router_bias: matches!(model_type, "gpt_oss" | "deepseek_v3"),
            first_layer: keys.optional(&["first_k_dense_replace"], MAX_WIDTH)?.unwrap_or(0) as usize,
            every: keys.step(&steps)?,
            dense_layers: keys.indices("mlp_only_layers"),
        }))
    }

    fn is_in(&self, layer: usize) -> bool {
        layer >= self.first_layer && (layer + 1).is_multiple_of(self.every) && !self.dense_layers.contains(&layer)
    }

    fn add(&self, widths: &Widths, sum: &mut Sum) {
        let hidden = widths.hidden;
        sum.experts += self.n_expert * widths.mlp_matrices * hidden * self.width;
        sum.linear += widths.mlp_matrices * hidden * self.shared_width;
        sum.other += self.n_expert * hidden;
        sum.other += if self.has_shared_gate { hidden } else { 0 };
        sum.other += if self.has_biases { self.n_expert * (2 * self.width + hidden) } else { 0 };
        sum.other += if self.has_router_bias { self.n_expert } else { 0 };
    }
}
