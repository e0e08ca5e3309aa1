//! `TURBOQUANT`: reads only caches of its own formats, which this engine does not store, so that it is never taken. It stands
//! in the order of every GPU and so in the reasons that vLLM prints.

use crate::engine::attention::arithmetic::Arithmetic;
use crate::engine::attention::guard::{Backend, Support};

/// Only ever passed over.
pub(in crate::engine) static BACKEND: Backend = Backend {
    name: "TURBOQUANT",
    about: "caches of its own formats only: never taken here, but named among those passed over",
    block_tokens: 16,
    support: |setting| Support {
        kv_cache_dtype: false,
        block_size: setting.block_tokens.is_none_or(|tokens| [16, 32, 64, 128].contains(&tokens)),
        per_head_scales: !setting.per_head_scales,
        ..Support::ALL
    },
    refusal: |_| None,
    arithmetic: |_, _, _| Arithmetic::BF16,
};
