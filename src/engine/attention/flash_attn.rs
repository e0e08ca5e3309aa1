//! `FLASH_ATTN`: FA2 up to SM89, FA3 on SM90, FA4 on SM100 and for wide heads on SM90.

use crate::engine::attention::arithmetic::{Accumulator, Arithmetic, KvScaling};
use crate::engine::attention::guard::{Backend, Setting, Support};
use crate::engine::options::Platform;

/// The default of most GPUs.
pub(in crate::engine) static BACKEND: Backend = Backend {
    name: "FLASH_ATTN",
    about: "16-bit caches in BF16; e4m3 caches on sm90 (everything in e4m3, short accumulator) and sm100 (f32 accumulator)",
    block_tokens: 16,
    support,
    refusal: |_| None,
    arithmetic: |setting, variants, _| {
        if !setting.is_static_fp8() {
            Arithmetic::BF16
        } else if setting.platform == Some(Platform::Sm100) {
            Arithmetic { accumulator: Accumulator::F32, ..Arithmetic::FA3_FP8 }
        } else if setting.head_dim > MAX_HEAD {
            // FA4 on SM90: Q stays BF16, K and V are decoded inside the kernel.
            Arithmetic { scaling: KvScaling::Outside, ..Arithmetic::BF16 }
        } else {
            let accumulator = Accumulator::Short { two_level: variants.fa3_two_level_accumulation };
            Arithmetic { accumulator, ..Arithmetic::FA3_FP8 }
        }
    },
};

/// Widest head of FA2 and FA3.
const MAX_HEAD: usize = 256;
/// Widest head of FA4.
const MAX_HEAD_FA4: usize = 512;

fn support(setting: &Setting) -> Support {
    let has_fa4 = matches!(setting.platform, Some(Platform::Sm90 | Platform::Sm100));
    let max_head = if has_fa4 { MAX_HEAD_FA4 } else { MAX_HEAD };
    let takes_fp8 = match setting.platform {
        Some(Platform::Sm90) => setting.head_dim <= MAX_HEAD || setting.head_dim == MAX_HEAD_FA4,
        platform => platform == Some(Platform::Sm100),
    };
    let reason = "FP8 KV cache requires FA3 on SM90, FA4 with head_size=512 on SM90, or FA4 on SM100";
    Support {
        head_size: setting.head_dim.is_multiple_of(8) && setting.head_dim <= max_head,
        kv_cache_dtype: setting.is_16_bit() || takes_fp8 && setting.kv_cache_dtype == "fp8_e4m3",
        block_size: setting.block_is_multiple_of(16),
        per_head_scales: !setting.per_head_scales || has_fa4,
        combination: (setting.is_static_fp8() && !takes_fp8).then_some(reason),
        ..Support::ALL
    }
}
