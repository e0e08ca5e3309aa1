//! What can go wrong in the engine.

use crate::engine::attention::GuardError;
use crate::engine::checkpoint_scales::KvScaleError;
use crate::engine::config::ConfigError;
use crate::engine::gguf::GgufError;
use crate::engine::kernels::KernelError;
use crate::engine::kv_cache::codec::UnknownDtype;
use crate::engine::kv_cache::{CacheError, KvOptionError, PlanError};
use crate::engine::threads::PoolError;
use crate::engine::weights::WeightsError;

/// Why the engine could not be built or could not go on.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The model's files.
    #[error("model: {0}")]
    Model(#[from] WeightsError),
    /// RoPE scaling asked for a sequence.
    #[error("sequence: {0}")]
    Rope(#[from] ConfigError),
    /// No such codec.
    #[error(transparent)]
    Dtype(#[from] UnknownDtype),
    /// An option of the KV cache that does not fit the model.
    #[error(transparent)]
    KvOption(#[from] KvOptionError),
    /// Scales that are missing or cannot be used.
    #[error(transparent)]
    KvScale(#[from] KvScaleError),
    /// No such kernel, or not on this machine.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// No attention backend that does what is asked.
    #[error(transparent)]
    Attention(#[from] GuardError),
    /// Threads could not be started.
    #[error(transparent)]
    Threads(#[from] PoolError),
    /// A chunk length that would split a key block.
    #[error("prefill chunk of {found} tokens: must be a multiple of {multiple}, from {multiple} to {most}")]
    PrefillChunk {
        /// As asked for.
        found: usize,
        /// Keys per attention block.
        multiple: usize,
        /// The bound.
        most: usize,
    },
    /// A fault planted in a layer that is not there.
    #[error("fault in layer {layer}: the model has {n_layer} layers, counted from 0")]
    FaultLayer {
        /// As asked for.
        layer: usize,
        /// Of the model.
        n_layer: usize,
    },
    /// A budget that does not hold one sequence of the model's trained length.
    #[error(
        "KV cache memory of {budget} bytes is too small for one sequence of {tokens} tokens in {dtype}: {needed} bytes needed"
    )]
    BudgetTooSmall {
        /// As asked for.
        budget: u64,
        /// For one sequence.
        needed: u64,
        /// The model's trained length.
        tokens: usize,
        /// The cache's dtype.
        dtype: &'static str,
    },
    /// No free block; the sequence is as before the call, or at the end of a finished chunk.
    #[error(transparent)]
    CacheFull(CacheError),
    /// The caller asked to stop; the sequence is at the end of a finished chunk.
    #[error("interrupted")]
    Interrupted,
    /// A sequence that was never started, or was released.
    #[error("sequence {id} does not exist")]
    UnknownSequence {
        /// Its number.
        id: u64,
    },
    /// The same sequence twice in one decode step.
    #[error("sequence {id} is twice in one step")]
    RepeatedSequence {
        /// Its number.
        id: u64,
    },
    /// Nothing to compute.
    #[error("no token ids given")]
    NoTokens,
    /// An id outside the vocabulary.
    #[error("token id {id} is outside the vocabulary of {vocab_size}")]
    UnknownToken {
        /// As given.
        id: u32,
        /// Ids of the model.
        vocab_size: usize,
    },
    /// More positions than indices and angles are made for.
    #[error("{position} tokens exceed the engine's bound of {most}")]
    TooLong {
        /// Asked for.
        position: usize,
        /// The bound.
        most: usize,
    },
    /// A hidden state or logit became NaN or infinite: no answer may be drawn from it.
    #[error("{place} produced values that are not finite, at or after position {position}")]
    NotFinite {
        /// `layer 3`, `the output layer`.
        place: String,
        /// First position of the batch.
        position: usize,
    },
}

impl EngineError {
    /// What to do about it, most useful first; one line each.
    pub fn hints(&self) -> Vec<String> {
        let hint = match self {
            Self::Model(WeightsError::Gguf { source: GgufError::Truncated { .. }, .. })
            | Self::Model(WeightsError::Safetensors { .. }) => "the file may be an unfinished download: fetch it again",
            Self::Model(WeightsError::NotAModel { .. } | WeightsError::Io { .. }) => {
                "give a .gguf file, or a folder with config.json and model.safetensors"
            }
            Self::Model(WeightsError::Config { source: ConfigError::Unsupported { .. }, .. }) => {
                "the files are whole, but this engine does not build such a model: use another one"
            }
            Self::Model(WeightsError::Config { .. }) => {
                "compare the description with the one the model was published with"
            }
            Self::Model(_) => "the file may be damaged or incomplete: fetch it again",
            Self::Attention(error) => return error.hints(),
            Self::Kernel(_) => "leave the kernel out to take the best one of this machine",
            Self::KvOption(KvOptionError::NoWindow { .. }) => "this model has no sliding-window layers: name indices",
            Self::KvOption(KvOptionError::NothingToCut { .. }) => {
                "use it with `fp8_e4m3`, `fp8_e5m2` or `fp8_per_token_head`"
            }
            Self::KvOption(_) => "give indices of layers, or `sliding_window`",
            Self::KvScale(KvScaleError::NoPrompts) => "calibrate on at least one prompt, or on random tokens",
            Self::KvScale(KvScaleError::Granularity) => {
                "leave the granularity out (a checkpoint's own scales decide it), or calibrate the scales"
            }
            Self::KvScale(KvScaleError::E5m2) => "use fp8_e4m3, or calibrate",
            Self::KvScale(_) => "calibrate the scales, on prompts or on random tokens, or use none",
            Self::BudgetTooSmall { needed, .. } => return vec![format!("give the KV cache at least {needed} bytes")],
            Self::CacheFull(CacheError::Full { .. }) => "give the KV cache more memory, or run fewer sequences at once",
            Self::CacheFull(CacheError::OutOfMemory { .. }) => "set a KV cache budget below the memory that is free",
            Self::NotFinite { .. } => {
                "run the same prompt with a bfloat16 cache: if that is finite, the quantized cache broke it"
            }
            _ => return Vec::new(),
        };
        vec![hint.into()]
    }
}

impl From<PlanError> for EngineError {
    fn from(error: PlanError) -> Self {
        match error {
            PlanError::Dtype(error) => Self::Dtype(error),
            PlanError::Option(error) => Self::KvOption(error),
        }
    }
}

impl From<CacheError> for EngineError {
    fn from(error: CacheError) -> Self {
        Self::CacheFull(error)
    }
}
