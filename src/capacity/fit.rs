//! Weights, cache and the rest against a GPU's memory.

use serde::Serialize;

use crate::capacity::{CapacityError, LayerCache, ModelShape, layer_token_bytes};

/// Longest context searched for; beyond every model and every memory.
const MAX_TOKENS: u64 = 1 << 28;

/// One of the GPUs of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Gpu {
    /// Its memory.
    pub memory_bytes: u64,
    /// Share of it that the engine may take.
    pub utilization: f64,
    /// Activations, graphs and libraries on it.
    pub overhead_bytes: u64,
}

impl Gpu {
    /// Bytes that the engine may take.
    pub fn budget_bytes(&self) -> u64 {
        (self.memory_bytes as f64 * self.utilization) as u64
    }
}

/// How the engine deals with model and cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Serving {
    /// GPUs that share the model by tensor parallelism.
    pub n_rank: u32,
    /// Tokens per block; a sequence takes whole blocks.
    pub block_tokens: u32,
    /// Most tokens prefilled in one step. Layers with a window keep window − 1 + this many until the step is over.
    pub prefill_chunk_tokens: u32,
}

/// What one dtype of the cache takes and allows. Bytes are per GPU.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DtypeFit {
    /// As asked for.
    pub kv_cache_dtype: String,
    /// What that stores: differs for `auto`.
    pub stored_as: String,
    /// Bytes of a token in all layers.
    pub bytes_per_token: u64,
    /// Of these, bytes in layers that keep every token.
    pub bytes_per_token_beyond_windows: u64,
    /// Bytes left for the cache; `None` without a GPU.
    pub free_bytes: Option<u64>,
    /// Longest single context that fits, in whole blocks; `None` without a GPU or where no layer grows without bound.
    pub max_context_tokens: Option<u64>,
    /// One entry per length asked for.
    pub lengths: Vec<LengthFit>,
}

/// One dtype at one length. Bytes are per GPU.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LengthFit {
    /// Tokens of the context, answer included.
    pub context_tokens: u32,
    /// Cache of one such context.
    pub cache_bytes: u64,
    /// Weights, this cache and overhead; without a GPU weights and cache.
    pub total_bytes: u64,
    /// Whether that is within the budget; `None` without a GPU.
    pub fits: Option<bool>,
    /// How many such contexts fit at once; `None` without a GPU.
    pub max_concurrency: Option<f64>,
}

/// Computes one dtype at all `lengths`. `weight_bytes` is per GPU.
pub fn fit(
    shape: &ModelShape,
    dtype: &str,
    weight_bytes: u64,
    gpu: Option<&Gpu>,
    serving: Serving,
    lengths: &[u32],
) -> Result<DtypeFit, CapacityError> {
    shape.check_ranks(serving.n_rank)?;
    let stored_as = if dtype == "auto" { shape.auto_dtype } else { dtype };
    let layers = layer_bytes(shape, stored_as, serving.n_rank)?;
    let overhead_bytes = gpu.map_or(0, |gpu| gpu.overhead_bytes);
    let free_bytes = gpu.map(|gpu| gpu.budget_bytes().saturating_sub(weight_bytes.saturating_add(overhead_bytes)));
    let lengths = lengths.iter().map(|&context_tokens| {
        let cache_bytes = cache_bytes(&layers, serving, context_tokens.into());
        let total_bytes = weight_bytes.saturating_add(overhead_bytes).saturating_add(cache_bytes);
        LengthFit {
            context_tokens,
            cache_bytes,
            total_bytes,
            fits: gpu.map(|gpu| total_bytes <= gpu.budget_bytes()),
            max_concurrency: free_bytes.filter(|_| cache_bytes > 0).map(|free| free as f64 / cache_bytes as f64),
        }
    });
    Ok(DtypeFit {
        kv_cache_dtype: dtype.into(),
        stored_as: stored_as.into(),
        bytes_per_token: layers.iter().map(|layer| layer.token_bytes).sum(),
        bytes_per_token_beyond_windows: unbounded_token_bytes(&layers),
        free_bytes,
        max_context_tokens: free_bytes.and_then(|free| longest(&layers, serving, free)),
        lengths: lengths.collect(),
    })
}

/// Bytes of one token in all layers on each rank.
pub fn cache_token_bytes(shape: &ModelShape, dtype: &str, n_rank: u32) -> Result<u64, CapacityError> {
    Ok(layer_bytes(shape, dtype, n_rank)?.iter().map(|layer| layer.token_bytes).sum())
}

/// Bytes of the cache of one context of that length on each rank.
pub fn sequence_bytes(
    shape: &ModelShape,
    dtype: &str,
    serving: Serving,
    context_tokens: u64,
) -> Result<u64, CapacityError> {
    Ok(cache_bytes(&layer_bytes(shape, dtype, serving.n_rank)?, serving, context_tokens))
}

struct LayerBytes {
    token_bytes: u64,
    window: Option<u32>,
}

fn layer_bytes(shape: &ModelShape, dtype: &str, n_rank: u32) -> Result<Vec<LayerBytes>, CapacityError> {
    let of_layer = |layer: &LayerCache| {
        let window = match layer {
            LayerCache::Heads { window, .. } => *window,
            _ => None,
        };
        Ok(LayerBytes { token_bytes: layer_token_bytes(layer, dtype, n_rank)?, window })
    };
    shape.layers.iter().map(of_layer).collect()
}

fn unbounded_token_bytes(layers: &[LayerBytes]) -> u64 {
    layers.iter().filter(|layer| layer.window.is_none()).map(|layer| layer.token_bytes).sum()
}

/// A layer with a window keeps what the step in progress can see, in whole blocks and one more, as the window need not begin at
/// the start of a block.
fn cache_bytes(layers: &[LayerBytes], serving: Serving, context_tokens: u64) -> u64 {
    let block = u64::from(serving.block_tokens.max(1));
    let whole_blocks = |tokens: u64| tokens.div_ceil(block) * block;
    let all = whole_blocks(context_tokens);
    let kept = |layer: &LayerBytes| match layer.window {
        None => all,
        Some(window) => {
            let seen = u64::from(window.saturating_sub(1)) + u64::from(serving.prefill_chunk_tokens);
            all.min(whole_blocks(seen) + block)
        }
    };
    layers.iter().map(|layer| layer.token_bytes.saturating_mul(kept(layer))).fold(0, u64::saturating_add)
}

/// The most whole blocks whose cache is within `free` bytes, in tokens.
fn longest(layers: &[LayerBytes], serving: Serving, free: u64) -> Option<u64> {
    if unbounded_token_bytes(layers) == 0 && cache_bytes(layers, serving, MAX_TOKENS) <= free {
        return None;
    }
    let block = u64::from(serving.block_tokens.max(1));
    let (mut fits, mut too_many) = (0, MAX_TOKENS / block + 1);
    while too_many - fits > 1 {
        let middle = fits + (too_many - fits) / 2;
        if cache_bytes(layers, serving, middle * block) <= free {
            fits = middle;
        } else {
            too_many = middle;
        }
    }
    Some(fits * block)
}
