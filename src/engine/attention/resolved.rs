//! From options to the kernels that an engine computes attention with.

use std::sync::Arc;

use crate::engine::attention::arithmetic::{Arithmetic, KvScaling, Phase};
use crate::engine::attention::emulated::{kernel_in, own_arithmetic};
use crate::engine::attention::guard::{Choice, GuardError, Question, Variants, choose};
use crate::engine::kernels::Kernel;
use crate::engine::options::{EngineOptions, KvScaleSource};
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
    /// The backend for `options` and heads of `head_dim`, computing on `kernel`. `per_head_scales` tells of the static
    /// scales in effect, wherever they come from.
    pub(in crate::engine) fn resolve(
        options: &EngineOptions,
        head_dim: usize,
        per_head_scales: bool,
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
            per_head_scales,
        })?;
        let variants = Variants {
            triton_p_scale: options.triton_p_scale,
            fa3_two_level_accumulation: options.fa3_two_level_accumulation,
            own: own_arithmetic(&**kernel),
        };
        let in_phase = |phase| choice.arithmetic(&variants, phase).with(&options.mechanisms);
        let (prefill, decode) = (in_phase(Phase::Prefill)?, in_phase(Phase::Decode)?);
        // Layers that are kept in 16 bits: the platform's 16-bit backends all compute alike. In a cache that is 16-bit as a
        // whole the choice already says it.
        let is_16_bit = ["auto", "bfloat16", "float16"].contains(&options.kv_cache_dtype.as_str());
        let arithmetic_16_bit = match options.emulate {
            Some(_) if !is_16_bit && !["NATIVE", "REFERENCE"].contains(&choice.backend.name) => {
                Arithmetic::BF16.with(&options.mechanisms)?
            }
            _ => prefill,
        };
        let kernel_of = |arithmetic: Arithmetic| {
            let mut arithmetic = arithmetic;
            if options.kv_scales == KvScaleSource::None && arithmetic.scaling == KvScaling::Outside {
                // A factor of 1 is the same wherever it is multiplied in, and the kernel's own path is the fast one.
                arithmetic.scaling = KvScaling::Decoded;
            }
            kernel_in(kernel, arithmetic, arithmetic_16_bit)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::attention::{Accumulator, WeightRounding};
    use crate::engine::kernels;
    use crate::engine::options::{Mechanism, Platform};

    fn attention(options: &EngineOptions) -> Result<Attention, GuardError> {
        Attention::resolve(options, 64, false, &kernels::resolve(Some("portable")).unwrap())
    }

    fn emulated(platform: Platform, kv_cache_dtype: &str, backend: Option<&str>) -> EngineOptions {
        EngineOptions {
            emulate: Some(platform),
            kv_cache_dtype: kv_cache_dtype.into(),
            attention_backend: backend.map(str::to_owned),
            ..EngineOptions::default()
        }
    }

    #[test]
    fn each_backend_computes_as_its_kernels_do() {
        let outside = Arithmetic { scaling: KvScaling::Outside, ..Arithmetic::BF16 };
        let fp8 = Arithmetic { accumulator: Accumulator::F32, ..Arithmetic::FA3_FP8 };
        let per_key = Arithmetic { scaling: KvScaling::PerKey, ..Arithmetic::BF16 };
        let truncating = Arithmetic { truncating_codec: true, ..Arithmetic::BF16 };
        let bf16 = Arithmetic::BF16;
        for (platform, dtype, backend, prefill, decode) in [
            (Platform::Sm80, "auto", None, bf16, bf16),
            (Platform::Sm100, "auto", None, bf16, bf16),
            (Platform::Sm80, "fp8", None, outside, outside),
            (Platform::Sm89, "fp8_e5m2", None, outside, outside),
            (Platform::Sm90, "fp8", None, Arithmetic::FA3_FP8, Arithmetic::FA3_FP8),
            (Platform::Sm90, "fp8", Some("FLASHINFER"), fp8, outside),
            (Platform::Sm90, "fp8_e5m2", None, fp8, outside),
            (Platform::Sm100, "fp8", None, fp8, fp8),
            (Platform::Sm100, "fp8", Some("FLASH_ATTN"), fp8, fp8),
            (Platform::Sm89, "fp8", Some("TRITON_ATTN"), fp8, fp8),
            (Platform::Sm89, "int8_per_token_head", None, per_key, per_key),
            (Platform::Sm90, "auto", Some("FLEX_ATTENTION"), bf16, bf16),
            (Platform::Cpu, "fp8", None, truncating, truncating),
            (Platform::Cpu, "auto", None, bf16, bf16),
            (Platform::Sm90, "fp8", Some("NATIVE"), Arithmetic::F32, Arithmetic::F32),
            (Platform::Sm90, "fp8", Some("REFERENCE"), Arithmetic::REFERENCE, Arithmetic::REFERENCE),
        ] {
            let found = attention(&emulated(platform, dtype, backend)).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!((found.prefill, found.decode), (prefill, decode), "{platform} {dtype} {backend:?}");
        }
    }

    #[test]
    fn options_and_mechanisms_replace_their_part_alone() {
        let triton = emulated(Platform::Sm89, "fp8", Some("TRITON_ATTN"));
        let old = attention(&EngineOptions { triton_p_scale: 1, ..triton.clone() }).unwrap();
        assert_eq!(old.prefill.weights, WeightRounding::Fp8 { scale: 1.0 });
        assert_eq!(
            attention(&EngineOptions { triton_p_scale: 16, ..triton }).err(),
            Some(GuardError::WeightScale { found: 16 })
        );
        let hopper = emulated(Platform::Sm90, "fp8", None);
        let old = attention(&EngineOptions { fa3_two_level_accumulation: false, ..hopper }).unwrap();
        let short = Accumulator::Short { two_level: false };
        assert_eq!(old.prefill, Arithmetic { accumulator: short, ..Arithmetic::FA3_FP8 });

        let native = |mechanisms: &[Mechanism]| {
            attention(&EngineOptions { mechanisms: mechanisms.into(), ..EngineOptions::default() })
        };
        for (mechanism, _) in Mechanism::ALL {
            let found = native(&[mechanism]).unwrap().prefill;
            let own = Arithmetic::F32;
            let changed = [
                found.query != own.query,
                found.weights != own.weights,
                found.accumulator != own.accumulator,
                found.truncating_codec,
            ];
            assert_eq!(changed.iter().filter(|changed| **changed).count(), 1, "{mechanism}: {found}");
            assert_eq!(found.scaling, own.scaling);
        }
        for pair in [
            [Mechanism::ProbabilityFp8, Mechanism::ProbabilityFp8Scaled],
            [Mechanism::TwoLevelAccumulator, Mechanism::ShortAccumulator],
        ] {
            let error = native(&pair).err().unwrap();
            assert!(matches!(error, GuardError::Mechanism(_)), "{error}");
            assert!(error.to_string().contains("contradict") && !error.hints().is_empty());
        }
        let exact = EngineOptions { attention_backend: Some("REFERENCE".into()), ..EngineOptions::default() };
        let with = |mechanism| attention(&EngineOptions { mechanisms: vec![mechanism], ..exact.clone() });
        assert!(with(Mechanism::TruncatingCodec).is_ok());
        assert!(with(Mechanism::QueryFp8).err().unwrap().to_string().contains("query_fp8"));
    }

    #[test]
    fn scales_per_head_are_refused_where_their_backend_takes_none_wherever_they_come_from() {
        let kernel = kernels::resolve(Some("portable")).unwrap();
        for platform in [Platform::Sm80, Platform::Sm89] {
            let options =
                EngineOptions { kv_scales: KvScaleSource::Checkpoint, ..emulated(platform, "fp8", Some("FLASHINFER")) };
            assert!(Attention::resolve(&options, 64, false, &kernel).is_ok(), "{platform}");
            let error = Attention::resolve(&options, 64, true, &kernel).err().unwrap().to_string();
            assert!(error.contains("per-head quant scales not supported"), "{platform}: {error}");
        }
    }

    #[test]
    fn the_record_says_what_is_computed() {
        let words = |options: &EngineOptions| attention(options).unwrap().words();
        assert_eq!(words(&EngineOptions::default()), "Q, K and V in f32, P in f32, sums in f32");
        let hopper = words(&emulated(Platform::Sm90, "fp8", None));
        assert!(hopper.starts_with("Q in e4m3, P · 256 in e4m3, P·V in 13 mantissa bits per block"), "{hopper}");
        let mixed = words(&emulated(Platform::Sm90, "fp8_e5m2", None));
        assert!(mixed.starts_with("prefill: Q in e4m3") && mixed.contains("; decode: Q, K and V in BF16"), "{mixed}");
        let cpu = words(&emulated(Platform::Cpu, "fp8", None));
        assert!(cpu.ends_with("cache cut toward zero"), "{cpu}");
    }

    #[test]
    fn unit_scales_leave_the_fast_path_to_the_kernel() {
        let Ok(kernel) = kernels::resolve(Some("x86_64-bf16-avx512")) else { return };
        let options = emulated(Platform::Sm80, "fp8", None);
        let fast = Attention::resolve(&options, 64, false, &kernel).unwrap();
        assert!(std::ptr::addr_eq(fast.kernel(Phase::Prefill), &*kernel));
        let scaled = EngineOptions { kv_scales: KvScaleSource::Checkpoint, ..options };
        let exact = Attention::resolve(&scaled, 64, false, &kernel).unwrap();
        assert!(!std::ptr::addr_eq(exact.kernel(Phase::Prefill), &*kernel));
    }
}
