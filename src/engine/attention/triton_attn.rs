//! `TRITON_ATTN`: takes nearly every head size and cache, also those with a scale per token and head.

use crate::engine::attention::arithmetic::{Accumulator, Arithmetic, KvScaling, WeightRounding};
use crate::engine::attention::guard::{Backend, Setting, Support};
use crate::engine::options::Platform;

/// The fallback for unusual heads and dynamic scales.
pub(in crate::engine) static BACKEND: Backend = Backend {
    name: "TRITON_ATTN",
    about: "16-bit caches in BF16; fp8 caches with Q and P in e4m3; *_per_token_head caches with Q in BF16",
    block_tokens: 16,
    support,
    refusal,
    arithmetic: |setting, variants, _| match setting.kv_cache_dtype {
        "int8_per_token_head" | "fp8_per_token_head" => Arithmetic { scaling: KvScaling::PerKey, ..Arithmetic::BF16 },
        _ if setting.is_static_fp8() => Arithmetic {
            weights: WeightRounding::Fp8 { scale: variants.triton_p_scale as f32 },
            accumulator: Accumulator::F32,
            ..Arithmetic::FA3_FP8
        },
        // 4-bit codes have zero points, so their values are decoded before the products.
        _ => Arithmetic::BF16,
    },
};

fn support(setting: &Setting) -> Support {
    let takes_dynamic = setting.kv_cache_dtype.ends_with("_per_token_head");
    Support {
        head_size: setting.head_dim >= 32,
        kv_cache_dtype: setting.is_16_bit() || setting.is_static_fp8() || takes_dynamic,
        block_size: setting.block_is_multiple_of(16),
        per_head_scales: !setting.per_head_scales,
        ..Support::ALL
    }
}

/// Triton's e4m3 type needs SM89; the selection does not know that, the backend does.
fn refusal(setting: &Setting) -> Option<String> {
    let is_refused = setting.platform == Some(Platform::Sm80) && setting.kv_cache_dtype.starts_with("fp8");
    is_refused.then(|| {
        "FP8 KV cache is not supported by the Triton attention backend on NVIDIA A100 (compute capability 8.0); \
         native FP8 (fp8e4nv) requires SM89+. Re-run with --kv-cache-dtype bfloat16."
            .into()
    })
}
