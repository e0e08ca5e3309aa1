//! What memory depends on: layers, their caches, parameters.

use serde::Serialize;

use crate::capacity::CapacityError;
use crate::capacity::parameters::Parameters;
use crate::capacity::weights::{WeightFormat, weight_format};

/// Far above every published model; keeps every product of dimensions inside 64 bits.
pub(super) const MAX_LAYERS: u32 = 1024;
pub(super) const MAX_HEADS: u32 = 1024;
pub(super) const MAX_HEAD_DIM: u32 = 4096;
pub(super) const MAX_LATENT: u32 = 1 << 16;
/// A hundred trillion: a hundred times the largest published model.
pub(super) const MAX_PARAMETERS: u64 = 100_000_000_000_000;
/// A window longer than any context bounds nothing.
pub(super) const MAX_WINDOW: u32 = 1 << 28;

/// What one layer keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum LayerCache {
    /// K and V of every KV head (MHA, GQA, MQA).
    Heads {
        /// KV heads.
        n_kv_head: u32,
        /// Width of a key.
        key_dim: u32,
        /// Width of a value.
        value_dim: u32,
        /// Only the last so many positions are seen, and so kept.
        window: Option<u32>,
    },
    /// Multi-head latent attention: one compressed row and one rotary key per token, shared by all heads.
    Latent {
        /// `kv_lora_rank`.
        latent_dim: u32,
        /// `qk_rope_head_dim`.
        rope_dim: u32,
        /// Width of the indexer's keys (sparse attention); 0 where there is none.
        index_dim: u32,
    },
    /// Linear attention, Mamba or a convolution: a state of fixed size per sequence, which is not counted.
    State,
    /// Nothing of its own: no attention, or it reads the cache of an earlier layer.
    None,
}

/// A model as far as memory goes.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelShape {
    /// `model_type`, or `given by numbers`.
    pub name: String,
    /// Query heads, where known: they decide which numbers of ranks are possible.
    pub n_head: Option<u32>,
    /// One entry per layer.
    pub layers: Vec<LayerCache>,
    /// Parameters by role.
    pub parameters: Parameters,
    /// How the checkpoint stores its weights.
    pub weight_format: WeightFormat,
    /// Bytes of the checkpoint's tensors and where that is said, where a file says it.
    pub stored_weights: Option<(u64, String)>,
    /// Longest context the model is made for.
    pub trained_context: Option<u32>,
    /// What `auto` stores: the model dtype, or what the checkpoint brings scales for.
    pub auto_dtype: &'static str,
    /// What was assumed, and what is not counted.
    pub notes: Vec<String>,
}

/// A model in a few numbers, all layers alike but for windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainShape {
    /// Layers.
    pub n_layer: u32,
    /// Query heads, where known.
    pub n_head: Option<u32>,
    /// KV heads; not used with a latent.
    pub n_kv_head: u32,
    /// Width of a head; not used with a latent.
    pub head_dim: u32,
    /// MLA: `(kv_lora_rank, qk_rope_head_dim)`.
    pub latent: Option<(u32, u32)>,
    /// `(window, layers that have it)`.
    pub window: Option<(u32, u32)>,
    /// Parameters in all.
    pub parameters: u64,
}

impl ModelShape {
    /// From numbers. Errors where one of them is absurd.
    pub fn plain(given: PlainShape) -> Result<Self, CapacityError> {
        let n_layer = bounded("--layers", given.n_layer, MAX_LAYERS)?;
        let (window, n_window) = given.window.unwrap_or((1, 0));
        bounded("--sliding-window", window, MAX_WINDOW)?;
        if n_window > n_layer {
            return Err(invalid("--sliding-layers", &n_window.to_string(), "the model has fewer layers"));
        }
        let n_head = given.n_head.map(|n| bounded("--heads", n, MAX_HEADS)).transpose()?;
        let layer = |window: Option<u32>| -> Result<LayerCache, CapacityError> {
            if let Some((latent, rope)) = given.latent {
                let latent_dim = bounded("--kv-lora-rank", latent, MAX_LATENT)?;
                let rope_dim = bounded("--rope-head-dim", rope, MAX_HEAD_DIM)?;
                return Ok(LayerCache::Latent { latent_dim, rope_dim, index_dim: 0 });
            }
            let n_kv_head = bounded("--kv-heads", given.n_kv_head, MAX_HEADS)?;
            let dim = bounded("--head-dim", given.head_dim, MAX_HEAD_DIM)?;
            Ok(LayerCache::Heads { n_kv_head, key_dim: dim, value_dim: dim, window })
        };
        let mut layers = vec![layer(Some(window))?; n_window as usize];
        layers.resize(n_layer as usize, layer(None)?);
        if given.parameters == 0 || given.parameters > MAX_PARAMETERS {
            let problem = format!("must be between 1 and {MAX_PARAMETERS}");
            return Err(invalid("--parameters", &given.parameters.to_string(), &problem));
        }
        let format = weight_format("bfloat16").expect("the most common format is in the list");
        Ok(Self {
            name: "given by numbers".into(),
            n_head,
            layers,
            parameters: Parameters { linear: given.parameters, ..Parameters::default() },
            weight_format: format,
            stored_weights: None,
            trained_context: None,
            auto_dtype: "bfloat16",
            notes: Vec::new(),
        })
    }

    /// Layers whose cache grows with the context without bound.
    pub fn unbounded_layers(&self) -> usize {
        let grows =
            |layer: &&LayerCache| matches!(layer, LayerCache::Heads { window: None, .. } | LayerCache::Latent { .. });
        self.layers.iter().filter(grows).count()
    }

    /// Whether the layers keep latents instead of heads.
    pub fn is_latent(&self) -> bool {
        self.layers.iter().any(|layer| matches!(layer, LayerCache::Latent { .. }))
    }

    /// Whether the heads can be dealt out to that many tensor-parallel ranks.
    pub fn check_ranks(&self, n_rank: u32) -> Result<(), CapacityError> {
        if n_rank == 0 || self.n_head.is_some_and(|n| !n.is_multiple_of(n_rank)) {
            return Err(CapacityError::Ranks { n: self.n_head.unwrap_or(0), what: "attention heads", n_rank });
        }
        for layer in &self.layers {
            if let LayerCache::Heads { n_kv_head, .. } = *layer {
                let is_even = if n_kv_head >= n_rank {
                    n_kv_head.is_multiple_of(n_rank)
                } else {
                    n_rank.is_multiple_of(n_kv_head)
                };
                if !is_even {
                    return Err(CapacityError::Ranks { n: n_kv_head, what: "key-value heads", n_rank });
                }
            }
        }
        Ok(())
    }
}

pub(super) fn bounded(key: &str, found: u32, limit: u32) -> Result<u32, CapacityError> {
    if (1..=limit).contains(&found) {
        return Ok(found);
    }
    Err(invalid(key, &found.to_string(), &format!("must be between 1 and {limit}")))
}

pub(super) fn invalid(key: &str, found: &str, problem: &str) -> CapacityError {
    CapacityError::Invalid { key: key.into(), found: found.into(), problem: problem.into() }
}
