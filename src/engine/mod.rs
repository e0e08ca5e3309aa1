//! CPU inference on token ids whose only speciality is the KV cache: K and V are stored exactly as a serving engine would
//! store them, and attention always reads the quantized cache, also for the tokens of the current chunk.
//!
//! Imports nothing from the rest of the crate and knows nothing of text.

pub mod kernels;
pub mod kv_cache;
pub mod threads;
