//! Bytes of one row of the cache by dtype. Codecs of the embedded engine answer for themselves; layouts that it does not
//! compute with are listed here.

use crate::capacity::{CapacityError, LayerCache};
use crate::engine::known_dtypes;
use crate::engine::kv_cache::codec::codec;

/// How another engine stores a row of `width` values.
struct Layout {
    names: &'static [&'static str],
    row_bytes: fn(usize) -> usize,
}

/// Values per block of llama.cpp's block formats; a block holds its own scale.
const GGML_BLOCK: usize = 32;

/// Values per 8-bit scale of NVFP4.
const NVFP4_BLOCK: usize = 16;

/// vLLM's remaining layouts that are published, then llama.cpp's with ggml's block sizes (scale and codes).
static LAYOUTS: &[Layout] = &[
    Layout { names: &["fp8_inc"], row_bytes: |width| width },
    Layout { names: &["nvfp4", "nvfp4_4over6"], row_bytes: |width| width.div_ceil(2) + width.div_ceil(NVFP4_BLOCK) },
    Layout { names: &["f32"], row_bytes: |width| 4 * width },
    Layout { names: &["f16", "bf16"], row_bytes: |width| 2 * width },
    Layout { names: &["q8_0"], row_bytes: |width| width.div_ceil(GGML_BLOCK) * 34 },
    Layout { names: &["q5_1"], row_bytes: |width| width.div_ceil(GGML_BLOCK) * 24 },
    Layout { names: &["q5_0"], row_bytes: |width| width.div_ceil(GGML_BLOCK) * 22 },
    Layout { names: &["q4_1"], row_bytes: |width| width.div_ceil(GGML_BLOCK) * 20 },
    Layout { names: &["q4_0", "iq4_nl"], row_bytes: |width| width.div_ceil(GGML_BLOCK) * 18 },
];

/// vLLM's layout for sparse MLA: 8-bit latent, one 32-bit scale per 128 values of it, rotary part in 16 bits.
const FP8_DS_MLA: &str = "fp8_ds_mla";
const FP8_DS_MLA_GROUP: u64 = 128;

/// Row formats with a scale per token and head, which MLA has no heads for, and NVFP4, which no MLA kernel reads.
const NOT_FOR_LATENTS: &[&str] = &["per_token_head", "nvfp4"];

/// Every dtype whose bytes are known.
pub fn known_cache_dtypes() -> Vec<&'static str> {
    let mut names = known_dtypes();
    names.extend(LAYOUTS.iter().flat_map(|layout| layout.names.iter().copied()));
    names.push(FP8_DS_MLA);
    names
}

/// Bytes of one row (K or V of one token and head) of `width` values, scales stored with it included.
pub fn row_bytes(dtype: &str, width: u32) -> Result<u64, CapacityError> {
    let width = width as usize;
    if let Some(layout) = LAYOUTS.iter().find(|layout| layout.names.contains(&dtype)) {
        return Ok((layout.row_bytes)(width) as u64);
    }
    match codec(dtype) {
        Ok(codec) => Ok(codec.row_bytes(width) as u64),
        Err(_) if dtype == FP8_DS_MLA => Err(CapacityError::WrongDtype {
            dtype: dtype.into(),
            layers: "K and V of every head",
            instead: "bfloat16, fp8_e4m3, int8_per_token_head",
        }),
        Err(error) => Err(CapacityError::UnknownDtype { name: error.name }),
    }
}

/// Bytes that one token takes in one layer on each of `n_rank` tensor-parallel ranks. KV heads are dealt out, and repeated where
/// there are fewer than ranks; an MLA latent is the same for all heads, so every rank holds all of it.
pub fn layer_token_bytes(layer: &LayerCache, dtype: &str, n_rank: u32) -> Result<u64, CapacityError> {
    match *layer {
        LayerCache::Heads { n_kv_head, key_dim, value_dim, .. } => {
            let heads = u64::from(n_kv_head.div_ceil(n_rank.max(1)));
            Ok(heads * (row_bytes(dtype, key_dim)? + row_bytes(dtype, value_dim)?))
        }
        LayerCache::Latent { latent_dim, rope_dim, index_dim } => {
            let latent = u64::from(latent_dim);
            let row = if dtype == FP8_DS_MLA {
                latent + 4 * latent.div_ceil(FP8_DS_MLA_GROUP) + 2 * u64::from(rope_dim)
            } else if NOT_FOR_LATENTS.iter().any(|part| dtype.contains(part)) {
                return Err(CapacityError::WrongDtype {
                    dtype: dtype.into(),
                    layers: "one latent per token (MLA)",
                    instead: "bfloat16, fp8, fp8_e4m3, fp8_ds_mla",
                });
            } else {
                row_bytes(dtype, latent_dim + rope_dim)?
            };
            Ok(row + index_bytes(index_dim))
        }
        LayerCache::State | LayerCache::None => Ok(0),
    }
}

/// The indexer of sparse attention keeps 8-bit keys with a 32-bit scale per 128, whatever the dtype of the cache.
fn index_bytes(index_dim: u32) -> u64 {
    let width = u64::from(index_dim);
    width + 4 * width.div_ceil(FP8_DS_MLA_GROUP)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATENT: LayerCache = LayerCache::Latent { latent_dim: 512, rope_dim: 64, index_dim: 0 };

    #[test]
    fn rows_have_the_bytes_of_their_engines() {
        // vLLM: 128 values, then what is stored with them.
        for (dtype, bytes) in [
            ("auto", 256),
            ("bfloat16", 256),
            ("fp8", 128),
            ("fp8_e5m2", 128),
            ("fp8_inc", 128),
            ("int8_per_token_head", 132),
            ("fp8_per_token_head", 132),
            ("nvfp4", 72),
        ] {
            assert_eq!(row_bytes(dtype, 128).unwrap(), bytes, "{dtype}");
        }
        // llama.cpp, measured on one model and context: F32, F16, Q8_0, Q5_1 and Q4_0 take 16, 8, 4.25, 3 and 2.25 MiB.
        for (dtype, quarters) in [("f32", 64), ("f16", 32), ("bf16", 32), ("q8_0", 17), ("q5_1", 12), ("q4_0", 9)] {
            assert_eq!(row_bytes(dtype, 128).unwrap() * 32, row_bytes("f16", 128).unwrap() * quarters, "{dtype}");
        }
    }

    #[test]
    fn a_latent_is_stored_once_per_token_and_whole_on_every_rank() {
        for n_rank in [1, 8] {
            for (dtype, bytes) in [("bfloat16", 1152), ("fp8", 576), ("fp8_ds_mla", 656)] {
                assert_eq!(layer_token_bytes(&LATENT, dtype, n_rank).unwrap(), bytes, "{dtype}");
            }
        }
        let indexed = LayerCache::Latent { latent_dim: 512, rope_dim: 64, index_dim: 128 };
        assert_eq!(layer_token_bytes(&indexed, "fp8_ds_mla", 1).unwrap(), 656 + 132);
    }

    #[test]
    fn kv_heads_are_dealt_out_and_repeated_where_there_are_too_few() {
        let layer = LayerCache::Heads { n_kv_head: 8, key_dim: 128, value_dim: 128, window: None };
        for (n_rank, heads) in [(1, 8), (2, 4), (8, 1), (16, 1)] {
            assert_eq!(layer_token_bytes(&layer, "bfloat16", n_rank).unwrap(), heads * 512, "{n_rank}");
        }
    }

    #[test]
    fn a_dtype_that_does_not_exist_or_does_not_go_with_the_layers_is_an_error() {
        use crate::hint::Hint as _;
        let error = row_bytes("fp8_e4m2", 128).unwrap_err();
        assert_eq!(error.hints(), ["did you mean `fp8_e4m3`?"]);
        assert!(matches!(row_bytes("fp8_ds_mla", 128), Err(CapacityError::WrongDtype { .. })));
        for dtype in ["int8_per_token_head", "nvfp4"] {
            assert!(matches!(layer_token_bytes(&LATENT, dtype, 1), Err(CapacityError::WrongDtype { .. })), "{dtype}");
        }
    }
}
