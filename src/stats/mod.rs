//! Slices of numbers in, numbers out; no domain words.
//!
//! Every p-value is in (0, 1] and nothing here ever returns NaN: where a number does not exist (no observations) the
//! answer is `None` or, for a test, 1. In the paired functions `b` counts the pairs that got worse and `c` those that got
//! better, so a positive difference `(b − c) / n` is a *drop*; "one-sided" always means "is there a drop?".
//!
//! To add a method: one function with its source in the doc comment, golden values from an independent implementation
//! in its tests.

pub mod adjust;
pub mod divergence;
pub mod mcnemar;
pub mod normal;
pub mod paired;
pub mod permutation;
pub mod power;
pub mod proportion;
pub mod resample;
pub mod sample_size;

/// Puts a computed p-value into (0, 1]: rounding may leave that range by a hair, underflow may reach 0.
fn legal_p(p: f64) -> f64 {
    if p.is_nan() { 1.0 } else { p.clamp(f64::MIN_POSITIVE, 1.0) }
}
