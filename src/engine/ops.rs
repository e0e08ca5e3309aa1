//! The arithmetic between matrix products: each function treats every row by itself, so results do not depend on what is
//! computed together.

/// Partial sums of a row; a fixed number, so that the order of additions is fixed and vector code can use it.
const LANES: usize = 16;

/// Sum of squares in a fixed order.
fn sum_of_squares(row: &[f32]) -> f32 {
    let (blocks, rest) = row.as_chunks::<LANES>();
    let mut sums = [0_f32; LANES];
    for block in blocks {
        for (sum, value) in sums.iter_mut().zip(block) {
            *sum += value * value;
        }
    }
    sums.iter().sum::<f32>() + rest.iter().map(|value| value * value).sum::<f32>()
}

/// `x / √(mean(x²) + eps) · weight`, row by row: x, out `[n_row, weight.len()]`. Zhang & Sennrich 2019.
pub(in crate::engine) fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let width = weight.len();
    for (row, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        let factor = 1.0 / (sum_of_squares(row) / width as f32 + eps).sqrt();
        for ((out, value), weight) in out.iter_mut().zip(row).zip(weight) {
            *out = value * factor * weight;
        }
    }
}

/// eˣ with a relative error under 3·10⁻⁷, without branches so that loops over it become vector code.
/// Range reduction by powers of two and a polynomial of degree 6 (Cody & Waite 1980); below −87 the result is 0.
#[inline(always)]
fn exp(x: f32) -> f32 {
    const ROUNDER: f32 = 12_582_912.0; // 1.5 · 2²³: adding it leaves the nearest integer in the low bits.
    let clamped = x.clamp(-87.0, 88.0);
    let shifted = clamped * std::f32::consts::LOG2_E + ROUNDER;
    let power = shifted - ROUNDER;
    // ln 2 in two parts, the first with so few bits that its product with `power` is exact.
    let rest = clamped - power * 0.693_359_4 - power * -2.121_944_4e-4;
    let polynomial = 1.0 / 720.0;
    let polynomial = polynomial * rest + 1.0 / 120.0;
    let polynomial = polynomial * rest + 1.0 / 24.0;
    let polynomial = polynomial * rest + 1.0 / 6.0;
    let polynomial = polynomial * rest + 0.5;
    let polynomial = polynomial * rest + 1.0;
    let polynomial = polynomial * rest + 1.0;
    let scale = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    let scaled = polynomial * scale;
    if x < -87.0 { 0.0 } else { scaled }
}

/// `silu(gate) · up`: gate_up `[n_row, 2, width]` → out `[n_row, width]`, silu(x) = x / (1 + e⁻ˣ).
pub(in crate::engine) fn silu_gate(gate_up: &[f32], width: usize, out: &mut [f32]) {
    gate(gate_up, width, out, |gate| gate / (1.0 + exp(-gate)));
}

/// `gelu(gate) · up`, shapes as in [`silu_gate`], gelu(x) = x/2 · (1 + tanh u) with u = √(2/π) · (x + 0.044715 x³).
/// Hendrycks & Gimpel 2016. As (1 + tanh u)/2 = 1 / (1 + e⁻²ᵘ), it needs one exponential.
pub(in crate::engine) fn gelu_gate(gate_up: &[f32], width: usize, out: &mut [f32]) {
    const TWICE_ROOT: f32 = 1.595_769;
    gate(gate_up, width, out, |gate| gate / (1.0 + exp(-TWICE_ROOT * (gate + 0.044_715 * gate * gate * gate))));
}

#[inline(always)]
fn gate(gate_up: &[f32], width: usize, out: &mut [f32], activation: impl Fn(f32) -> f32) {
    for (pair, out) in gate_up.chunks_exact(2 * width).zip(out.chunks_exact_mut(width)) {
        let (gate, up) = pair.split_at(width);
        for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
            *out = activation(*gate) * up;
        }
    }
}

/// [`rms_norm`] of every head of one row, in place: heads `[n_head, weight.len()]`.
pub(in crate::engine) fn rms_norm_heads(heads: &mut [f32], weight: &[f32], eps: f32) {
    for head in heads.chunks_exact_mut(weight.len()) {
        let factor = 1.0 / (sum_of_squares(head) / weight.len() as f32 + eps).sqrt();
        head.iter_mut().zip(weight).for_each(|(value, weight)| *value = *value * factor * weight);
    }
}

/// `x += y`.
pub(in crate::engine) fn add(x: &mut [f32], y: &[f32]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

/// `ln Σ e^logit`, so that `logits[i] − log_sum_exp` is a log-probability. Sums in f64.
pub fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sums = [0_f64; LANES];
    let (blocks, rest) = logits.as_chunks::<LANES>();
    for block in blocks {
        for (sum, logit) in sums.iter_mut().zip(block) {
            *sum += f64::from(exp(logit - max));
        }
    }
    let rest: f64 = rest.iter().map(|logit| f64::from(exp(logit - max))).sum();
    f64::from(max) + (sums.iter().sum::<f64>() + rest).ln()
}

/// The likeliest id; the lowest of equals.
pub fn argmax(logits: &[f32]) -> Option<u32> {
    let best = logits.iter().enumerate().fold(None, |best: Option<(usize, f32)>, (id, logit)| match best {
        Some((_, most)) if *logit <= most => best,
        _ => Some((id, *logit)),
    });
    best.map(|(id, _)| id as u32)
}

/// The `n` likeliest ids with their logits, likeliest first, lowest id first among equals.
pub fn top(logits: &[f32], n: usize) -> Vec<(u32, f32)> {
    let mut best: Vec<(u32, f32)> = Vec::with_capacity(n + 1);
    for (id, logit) in logits.iter().enumerate() {
        if best.len() < n || best.last().is_some_and(|(_, least)| logit > least) {
            let at = best.partition_point(|(_, other)| other >= logit);
            best.insert(at, (id as u32, *logit));
            best.truncate(n);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_accurate_over_its_whole_range() {
        for step in -870_000..880_000 {
            let x = step as f32 / 10_000.0;
            let exact = f64::from(x).exp();
            let relative = (f64::from(exp(x)) - exact).abs() / exact;
            assert!(relative < 3e-7, "e^{x} is off by {relative:e}");
        }
        assert_eq!((exp(0.0), exp(-88.0), exp(f32::NEG_INFINITY)), (1.0, 0.0, 0.0));
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn rms_norm_divides_by_the_root_of_the_mean_square() {
        let x: Vec<f32> = (0..40).map(|i| i as f32 - 20.0).collect();
        let weight = vec![2.0; 20];
        let mut out = vec![0.0; 40];
        rms_norm(&x, &weight, 1e-5, &mut out);
        for (row, out) in x.chunks(20).zip(out.chunks(20)) {
            let mean = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / 20.0;
            for (value, out) in row.iter().zip(out) {
                let expected = 2.0 * f64::from(*value) / (mean + 1e-5).sqrt();
                assert!((f64::from(*out) - expected).abs() < 1e-5, "{out} {expected}");
            }
        }
    }

    #[test]
    fn gates_multiply_by_their_activation() {
        let gate_up: Vec<f32> = (0..400).map(|i| (i as f32 - 200.0) / 17.0).collect();
        let (mut silu, mut gelu) = (vec![0.0; 200], vec![0.0; 200]);
        silu_gate(&gate_up, 100, &mut silu);
        gelu_gate(&gate_up, 100, &mut gelu);
        for (index, (silu, gelu)) in silu.iter().zip(&gelu).enumerate() {
            let at = index / 100 * 200 + index % 100;
            let (x, up) = (f64::from(gate_up[at]), f64::from(gate_up[at + 100]));
            let tanh = ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh();
            assert!((f64::from(*silu) - up * x / (1.0 + (-x).exp())).abs() < 1e-5, "silu({x})");
            assert!((f64::from(*gelu) - up * x / 2.0 * (1.0 + tanh)).abs() < 1e-5, "gelu({x})");
        }
    }

    #[test]
    fn heads_are_normed_one_by_one() {
        let mut heads: Vec<f32> = (0..12).map(|i| i as f32 - 3.5).collect();
        let (weight, mut expected) = ([0.5, 1.0, 2.0, -1.0], vec![0.0; 12]);
        rms_norm(&heads, &weight, 1e-6, &mut expected);
        rms_norm_heads(&mut heads, &weight, 1e-6);
        assert_eq!(heads, expected);
    }

    #[test]
    fn ties_go_to_the_lowest_id() {
        let logits = [1.0, 3.0, -2.0, 3.0, 2.0, 3.0];
        assert_eq!(argmax(&logits), Some(1));
        assert_eq!(top(&logits, 4), [(1, 3.0), (3, 3.0), (5, 3.0), (4, 2.0)]);
        assert_eq!(top(&logits, 0), []);
        assert_eq!(top(&logits, 99).len(), 6);
        assert_eq!(argmax(&[]), None);
    }

    #[test]
    fn log_sum_exp_survives_large_logits() {
        assert!((log_sum_exp(&[1000.0, 1000.0]) - (1000.0 + 2_f64.ln())).abs() < 1e-9);
        let logits: Vec<f32> = (0..100).map(|i| (i as f32 * 0.37).sin() * 9.0).collect();
        let exact = logits.iter().map(|logit| f64::from(*logit).exp()).sum::<f64>().ln();
        assert!((log_sum_exp(&logits) - exact).abs() < 1e-6);
    }
}
