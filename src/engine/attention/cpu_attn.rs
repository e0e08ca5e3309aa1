//! `CPU_ATTN`: vLLM on a CPU, whose fp8 codec cuts toward zero.

use crate::engine::attention::arithmetic::Arithmetic;
use crate::engine::attention::guard::{Backend, Setting, Support};
use crate::engine::options::Platform;

/// The only backend of a CPU.
pub(in crate::engine) static BACKEND: Backend = Backend {
    name: "CPU_ATTN",
    about: "Q, K, V and P in BF16; fp8 caches are cut toward zero instead of rounded",
    block_tokens: 32,
    support: |setting| Support {
        head_size: [32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512].contains(&setting.head_dim),
        kv_cache_dtype: setting.is_16_bit() || setting.is_static_fp8(),
        block_size: setting.block_is_multiple_of(32),
        compute_capability: setting.platform == Some(Platform::Cpu),
        ..Support::ALL
    },
    refusal,
    arithmetic: |setting, _, _| Arithmetic { truncating_codec: setting.is_static_fp8(), ..Arithmetic::BF16 },
};

fn refusal(setting: &Setting) -> Option<String> {
    let dtype = setting.kv_cache_dtype;
    if !setting.is_16_bit() && !setting.is_static_fp8() {
        return Some(format!("--kv-cache-dtype {dtype} is not supported by the CPU attention backend on this host."));
    }
    let is_refused = setting.is_static_fp8() && !setting.head_dim.is_multiple_of(32);
    is_refused.then(|| "FP8 KV cache requires head_size divisible by 32 on CPU.".into())
}
