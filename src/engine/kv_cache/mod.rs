//! The paged KV cache.

pub mod codec;
