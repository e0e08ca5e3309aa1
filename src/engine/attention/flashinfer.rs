//! `FLASHINFER`: what GPUs fall back to for fp8 caches, and the default of SM100.

use crate::engine::attention::arithmetic::{Accumulator, Arithmetic, KvScaling, Phase};
use crate::engine::attention::guard::{Backend, Setting, Support};
use crate::engine::options::Platform;

/// The default of SM100, and the usual fallback elsewhere.
pub(in crate::engine) static BACKEND: Backend = Backend {
    name: "FLASHINFER",
    about: "16-bit caches in BF16; fp8 caches with Q in BF16 (sm80, sm89, decode on sm90) or Q and P in e4m3",
    block_tokens: 16,
    support,
    refusal: |_| None,
    arithmetic: |setting, _, phase| {
        let is_fp8_query = match setting.platform {
            Some(Platform::Sm100) => true,
            platform => platform == Some(Platform::Sm90) && phase == Phase::Prefill,
        };
        if !setting.is_static_fp8() {
            Arithmetic::BF16
        } else if is_fp8_query {
            Arithmetic { accumulator: Accumulator::F32, ..Arithmetic::FA3_FP8 }
        } else {
            Arithmetic { scaling: KvScaling::Outside, ..Arithmetic::BF16 }
        }
    },
};

/// Largest block of the SM100 kernels; others stop at 64.
const MAX_BLOCK_SM100: usize = 1024;

fn support(setting: &Setting) -> Support {
    let max_block = if setting.platform == Some(Platform::Sm100) { MAX_BLOCK_SM100 } else { 64 };
    let takes_block = |tokens: usize| tokens.is_power_of_two() && (16..=max_block).contains(&tokens);
    Support {
        head_size: [64, 128, 256, 512].contains(&setting.head_dim),
        kv_cache_dtype: setting.is_16_bit() || setting.is_static_fp8(),
        block_size: setting.block_tokens.is_none_or(takes_block),
        per_head_scales: !setting.per_head_scales,
        ..Support::ALL
    }
}
