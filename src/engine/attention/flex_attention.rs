//! `FLEX_ATTENTION`: any head and block size, but only 16-bit caches.

use crate::engine::attention::arithmetic::Arithmetic;
use crate::engine::attention::guard::{Backend, Support};

/// The last resort for unusual shapes.
pub(in crate::engine) static BACKEND: Backend = Backend {
    name: "FLEX_ATTENTION",
    about: "16-bit caches in BF16, any head size",
    block_tokens: 16,
    support: |setting| Support {
        kv_cache_dtype: setting.is_16_bit(),
        block_size: setting.block_is_multiple_of(16),
        per_head_scales: !setting.per_head_scales,
        ..Support::ALL
    },
    refusal: |_| None,
    arithmetic: |_, _, _| Arithmetic::BF16,
};
