//! Attention backends: which one a serving engine takes for a cache and a model, and what that one computes.
//!
//! ```text
//! platform, dtype, head size ─▶ guard ─▶ Backend ─▶ Arithmetic per phase (+ mechanisms) ─▶ a kernel whose attention computes so
//! ```
//!
//! # Adding a backend
//! 1. A file in this folder with a static [`Backend`]: what it supports, what it refuses, its arithmetic.
//! 2. A line in [`BACKENDS`], and its place in the order of its platforms in `guard.rs`.

mod arithmetic;
mod cpu_attn;
mod emulated;
mod flash_attn;
mod flashinfer;
mod flex_attention;
mod guard;
mod native;
mod reference;
mod resolved;
mod stored;
mod triton_attn;
mod turboquant;

pub use arithmetic::{Accumulator, Arithmetic, KvScaling, MechanismError, Phase, QueryRounding, WeightRounding};
pub use emulated::simulate;
pub use guard::{Backend, Choice, GuardError, Question, Setting, Support, Variants, choose};
pub(in crate::engine) use resolved::Attention;
pub use stored::StoredKv;

/// Every backend.
pub static BACKENDS: &[&Backend] = &[
    &native::BACKEND,
    &reference::BACKEND,
    &flash_attn::BACKEND,
    &flashinfer::BACKEND,
    &triton_attn::BACKEND,
    &flex_attention::BACKEND,
    &turboquant::BACKEND,
    &cpu_attn::BACKEND,
];
