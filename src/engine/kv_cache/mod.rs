//! The paged KV cache: blocks of 16 tokens with reference counts, so that many questions share one haystack.

pub mod codec;
mod paged;
mod scales;

mod bfloat16;
mod float16;
mod float32;
mod float8;
mod fp8_e4m3;
mod fp8_e5m2;
mod int8_per_token_head;
#[cfg(test)]
mod kernel_tests;

pub use paged::{BLOCK_TOKENS, BlockTable, CacheError, CacheShape, PagedCache, StoredRows, WriteRows};
pub use scales::KvScales;
