//! CPU inference on token ids whose only speciality is the KV cache: K and V are stored exactly as a serving engine would
//! store them, and attention always reads the quantized cache, also for the tokens of the current chunk.
//!
//! Imports nothing from the rest of the crate and knows nothing of text.
//!
//! ```text
//! file ─▶ gguf / weights ─▶ dequant ─▶ Model ─▶ Engine { kernel, threads, kv_cache } ─▶ prefill, decode, logprobs
//! ```

pub mod attention;
mod calibration;
mod checkpoint_scales;
pub mod config;
mod dequant;
mod error;
pub mod gguf;
pub mod kernels;
pub mod kv_cache;
mod model;
mod ops;
mod options;
mod recorder;
mod rope;
mod sequences;
pub mod threads;
mod weights;

pub use attention::BACKENDS;
pub use checkpoint_scales::{CheckpointScales, KvScaleError, ScaleTensor};
pub use config::{LayerConfig, LayerRope, ModelConfig, RopeScaling};
pub use error::EngineError;
pub use gguf::GgufMetadata;
pub use kv_cache::codec::{CODECS, KvCodec, known_dtypes};
pub use kv_cache::{Capacity, KvOptionError, KvRounding};
pub use model::Model;
pub use ops::{argmax, log_sum_exp, top};
pub use options::{
    EngineOptions, Fault, KvScaleSource, Mechanism, OptionError, PassedOver, Platform, ResolvedEngine,
    ScaleGranularity, StoredLayer,
};
pub use recorder::HeadInputs;
pub use sequences::{Engine, SequenceId, TokenLogprob};
pub use weights::WeightsError;

/// The engine's own attention arithmetic, in effect unless another is asked for.
pub const NATIVE: &str = "NATIVE";
