//! From options to the kernels that an engine computes attention with.

use std::sync::Arc;

use crate::engine::attention::arithmetic::{Arithmetic, KvScaling, Phase};
use crate::engine::attention::emulated::{kernel_in, own_arithmetic};
use crate::engine::attention::guard::{Choice, GuardError, Question, Variants, choose};
use crate::engine::kernels::Kernel;
use crate::engine::options::{EngineOptions, KvScaleSource, ScaleGranularity};
use crate::engine::recorder::{Recorder, Recording};

impl Choice {
    /// What the backend computes in a phase.
    pub fn arithmetic(&self, variants: &Variants, phase: Phase) -> Arithmetic {
        (self.backend.arithmetic)(&self.setting, variants, phase)
    }
}

/// Attention as an engine was asked to compute it.
pub(in crate::engine) struct Attention {
    /// The backend in effect.
    pub(in crate::engine) choice: Choice,
    /// Of prompts and scored continuations.
    pub(in crate::engine) prefill: Arithmetic,
    /// Of single new tokens.
    pub(in crate::engine) decode: Arithmetic,
    prefill_kernel: Arc<dyn Kernel>,
    decode_kernel: Arc<dyn Kernel>,
}

impl Attention {
    /// The backend for `options` and heads of `head_dim`, computing on `kernel`.
    pub(in crate::engine) fn resolve(
        options: &EngineOptions,
        head_dim: usize,
        kernel: &Arc<dyn Kernel>,
    ) -> Result<Self, GuardError> {
        if ![1, 256].contains(&options.triton_p_scale) {
            return Err(GuardError::WeightScale { found: options.triton_p_scale });
        }
        let choice = choose(&Question {
            emulate: options.emulate,
            asked: options.attention_backend.as_deref(),
            kv_cache_dtype: &options.kv_cache_dtype,
            head_dim,
            block_tokens: None,
            per_head_scales: options.kv_scale_granularity == ScaleGranularity::Head,
        })?;
        let variants = Variants {
            triton_p_scale: options.triton_p_scale,
            fa3_two_level_accumulation: options.fa3_two_level_accumulation,
            own: own_arithmetic(&**kernel),
        };
        let in_phase = |phase| choice.arithmetic(&variants, phase).with(&options.mechanisms);
        let (prefill, decode) = (in_phase(Phase::Prefill)?, in_phase(Phase::Decode)?);
        let kernel_of = |arithmetic: Arithmetic| {
            let mut arithmetic = arithmetic;
            if options.kv_scales == KvScaleSource::None && arithmetic.scaling == KvScaling::Outside {
                // A factor of 1 is the same wherever it is multiplied in, and the kernel's own path is the fast one.
                arithmetic.scaling = KvScaling::Decoded;
            }
            kernel_in(kernel, arithmetic)
        };
        let (prefill_kernel, decode_kernel) = (kernel_of(prefill), kernel_of(decode));
        Ok(Self { choice, prefill, decode, prefill_kernel, decode_kernel })
    }

    /// What computes attention in a phase.
    pub(in crate::engine) fn kernel(&self, phase: Phase) -> &dyn Kernel {
        match phase {
            Phase::Prefill => &*self.prefill_kernel,
            Phase::Decode => &*self.decode_kernel,
        }
    }

    /// Lets `recorder` see what decode steps attend to; the kernel in its place goes back with [`Self::resume_decode`].
    pub(in crate::engine) fn record_decode(&mut self, recorder: &Arc<Recorder>) -> Arc<dyn Kernel> {
        let recording = Recording::new(Arc::clone(&self.decode_kernel), Arc::clone(recorder));
        std::mem::replace(&mut self.decode_kernel, Arc::new(recording))
    }

    /// Ends what [`Self::record_decode`] began.
    pub(in crate::engine) fn resume_decode(&mut self, kernel: Arc<dyn Kernel>) {
        self.decode_kernel = kernel;
    }

    /// The arithmetic in words, for the record.
    pub(in crate::engine) fn words(&self) -> String {
        if self.prefill == self.decode {
            return self.prefill.to_string();
        }
        format!("prefill: {}; decode: {}", self.prefill, self.decode)
    }
}
