//! `REFERENCE`: the oracle's arithmetic, whatever the kernel.

use crate::engine::attention::arithmetic::Arithmetic;
use crate::engine::attention::guard::{Backend, Support};

/// Slow and exact; allowed by name everywhere.
pub(in crate::engine) static BACKEND: Backend = Backend {
    name: "REFERENCE",
    about: "f32 from the decoded cache, sums in f64; slow, allowed everywhere by name",
    block_tokens: 16,
    support: |_| Support::ALL,
    refusal: |_| None,
    arithmetic: |_, _, _| Arithmetic::REFERENCE,
};
