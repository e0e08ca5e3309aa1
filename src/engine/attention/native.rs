//! `NATIVE`: the engine's own arithmetic, so that a plain comparison isolates the codec.

use crate::engine::attention::guard::{Backend, Support};

/// The default without emulation; allowed by name everywhere.
pub(in crate::engine) static BACKEND: Backend = Backend {
    name: "NATIVE",
    about: "K and V decoded to BF16, Q and P in BF16, sums in f32; on f32 kernels all of it in f32",
    block_tokens: 16,
    support: |_| Support::ALL,
    refusal: |_| None,
    arithmetic: |_, variants, _| variants.own,
};
