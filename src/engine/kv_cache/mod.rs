//! The paged KV cache: blocks of tokens with reference counts, so that many questions share one haystack.

mod capacity;
pub mod codec;
mod hashing;
mod paged;
mod plan;
mod row_scale;
mod scales;

mod bfloat16;
mod float16;
mod float32;
mod float8;
mod fp8_per_token_head;
mod int4_per_token_head;
mod int8_per_token_head;
#[cfg(test)]
mod kernel_tests;

pub use capacity::Capacity;
pub use codec::KvRounding;
pub(in crate::engine) use hashing::mix;
pub use paged::{BLOCK_TOKENS, BlockTable, CacheError, PagedCache, StoredRows, WriteRows};
pub use plan::{CachePlan, KvOptionError, LayerPlan, PlanError};
pub use scales::{KvPart, LayerScales, ScaleError, describe};
