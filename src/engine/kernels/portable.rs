//! Blocked f32 loops in safe Rust that the compiler vectorises. The bodies are generic over [`MulAdd`], so that a file of
//! [`super::x86_64`] can compile the same loops for a wider instruction set.
//!
//! No call into libm: `exp2` is a polynomial, so the bits are the same on every machine.

use std::ops::Range;
use std::sync::Arc;

use super::geometry::{KeyBlock, QueryTile, n_position, positions_per_task};
use super::packed::unpack_pair;
use super::{AttentionJob, KEY_BLOCK, Kernel, KernelEntry, PackedMatrix, TILE_OUT};

/// Always available.
pub(super) const ENTRY: KernelEntry = KernelEntry { name: NAME, probe: || Ok(Arc::new(Portable)) };

const NAME: &str = "portable";

/// Rows of x that share one pass over a weight tile.
const ROWS: usize = 4;

/// Sums of attention that run side by side: enough to hide the latency of an addition, few enough for 16 registers.
const LANES: usize = 32;

/// a · b + c, with one rounding or with two.
pub(super) trait MulAdd {
    /// a · b + c.
    fn mul_add(a: f32, b: f32, c: f32) -> f32;
}

/// Two roundings: fast on every machine, because it does not need a fused instruction.
pub(super) struct Unfused;

impl MulAdd for Unfused {
    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        a * b + c
    }
}

struct Portable;

impl Kernel for Portable {
    fn name(&self) -> &'static str {
        NAME
    }

    fn gemm(&self, x: &[f32], n_row: usize, w: &PackedMatrix, tiles: Range<usize>, y: &mut [f32]) {
        gemm::<Unfused>(x, n_row, w, tiles, y);
    }

    fn attend(&self, job: &mut AttentionJob<'_>) {
        attend::<Unfused>(job);
    }
}

/// [`Kernel::gemm`] in f32.
#[inline(always)]
pub(super) fn gemm<M: MulAdd>(x: &[f32], n_row: usize, w: &PackedMatrix, tiles: Range<usize>, y: &mut [f32]) {
    let n_column = w.n_column(&tiles);
    assert_eq!(x.len(), n_row * w.n_in, "x [n_row, n_in]");
    assert_eq!(y.len(), n_row * n_column, "y [n_row, n_column]");
    for (index, tile) in tiles.enumerate() {
        let first = index * TILE_OUT;
        let width = TILE_OUT.min(n_column - first);
        let mut row = 0;
        while row < n_row {
            let n = if n_row - row >= ROWS { ROWS } else { 1 };
            let x = &x[row * w.n_in..][..n * w.n_in];
            let mut sums = [[0.0; TILE_OUT]; ROWS];
            if n == ROWS {
                sums = dot_tile::<M, ROWS>(x, w, tile);
            } else {
                sums[..1].copy_from_slice(&dot_tile::<M, 1>(x, w, tile));
            }
            for (i, sums) in sums[..n].iter().enumerate() {
                y[(row + i) * n_column + first..][..width].copy_from_slice(&sums[..width]);
            }
            row += n;
        }
    }
}

/// Sums over the inputs in ascending order: x `[N, n_in]` times one weight tile.
#[inline(always)]
fn dot_tile<M: MulAdd, const N: usize>(x: &[f32], w: &PackedMatrix, tile: usize) -> [[f32; TILE_OUT]; N] {
    let rows: [&[f32]; N] = std::array::from_fn(|row| &x[row * w.n_in..][..w.n_in]);
    let lines = w.tile(tile);
    let mut sums = [[0.0; TILE_OUT]; N];
    let whole = w.n_in / 2;
    for (pair, line) in lines[..whole].iter().enumerate() {
        let even = line.0.map(|pair| unpack_pair(pair)[0]);
        let odd = line.0.map(|pair| unpack_pair(pair)[1]);
        for (sums, x) in sums.iter_mut().zip(&rows) {
            let (first, second) = (x[2 * pair], x[2 * pair + 1]);
            for lane in 0..TILE_OUT {
                sums[lane] = M::mul_add(first, even[lane], sums[lane]);
            }
            for lane in 0..TILE_OUT {
                sums[lane] = M::mul_add(second, odd[lane], sums[lane]);
            }
        }
    }
    if w.n_in % 2 == 1 {
        for (sums, x) in sums.iter_mut().zip(&rows) {
            for (sum, pair) in sums.iter_mut().zip(lines[whole].0) {
                *sum = M::mul_add(x[w.n_in - 1], unpack_pair(pair)[0], *sum);
            }
        }
    }
    sums
}

/// [`Kernel::attend`] in f32.
#[inline(always)]
pub(super) fn attend<M: MulAdd>(job: &mut AttentionJob<'_>) {
    let n_position = n_position(job);
    let step = positions_per_task(job.group);
    for first in (0..n_position).step_by(step) {
        let n = step.min(n_position - first);
        attend_tile::<M>(job, &QueryTile::new(job, first, n), first);
    }
}

/// Online-softmax state of one query row; its weighted sum of values lives in the job's output.
#[derive(Clone, Copy)]
struct RowState {
    max: f32,
    sum: f32,
}

#[inline(always)]
fn attend_tile<M: MulAdd>(job: &mut AttentionJob<'_>, tile: &QueryTile, first: usize) {
    let (group, head_dim) = (job.group, job.head_dim);
    let n_row = tile.n_position * group;
    let span = first * group * head_dim..(first * group + n_row) * head_dim;
    let (q, out) = (&job.q[span.clone()], &mut job.out[span]);
    out.fill(0.0);
    let mut states = vec![RowState { max: f32::NEG_INFINITY, sum: 0.0 }; n_row];
    let mut k = vec![0.0; KEY_BLOCK * head_dim];
    let mut v = vec![0.0; KEY_BLOCK * head_dim];
    let mut k_by_dim = vec![[0.0; KEY_BLOCK]; head_dim];
    // The exponential is taken to base 2, so the change of base rides on the softmax scale.
    let scale = job.scale * std::f32::consts::LOG2_E;
    for block in tile.blocks() {
        let KeyBlock { start, n_key, .. } = block;
        job.kv.decode_f32(start, n_key, &mut k[..n_key * head_dim], &mut v[..n_key * head_dim]);
        for (key, row) in k[..n_key * head_dim].chunks_exact(head_dim).enumerate() {
            for (by_key, value) in k_by_dim.iter_mut().zip(row) {
                by_key[key] = *value;
            }
        }
        for position in block.positions.clone() {
            let mask = tile.mask(&block, position);
            for row in position * group..(position + 1) * group {
                let q = &q[row * head_dim..][..head_dim];
                let out = &mut out[row * head_dim..][..head_dim];
                let mut scores = scores::<M>(q, &k_by_dim);
                weigh::<M>(&mut scores, mask, scale, &mut states[row], out);
                let keys = mask.trailing_zeros() as usize..KEY_BLOCK - mask.leading_zeros() as usize;
                add_values::<M>(&scores, keys, &v, out);
            }
        }
    }
    for (out, state) in out.chunks_exact_mut(head_dim).zip(&states) {
        out.iter_mut().for_each(|value| *value /= state.sum);
    }
}

/// q · k for all keys of a block, summed over the dimensions in ascending order.
#[inline(always)]
pub(super) fn scores<M: MulAdd>(q: &[f32], k_by_dim: &[[f32; KEY_BLOCK]]) -> [f32; KEY_BLOCK] {
    let mut scores = [0.0; KEY_BLOCK];
    for (lanes, first) in scores.as_chunks_mut::<LANES>().0.iter_mut().zip((0..).step_by(LANES)) {
        for (q, keys) in q.iter().zip(k_by_dim) {
            for lane in 0..LANES {
                lanes[lane] = M::mul_add(*q, keys[first + lane], lanes[lane]);
            }
        }
    }
    scores
}

/// out `[head_dim]` += weights · v over the keys in ascending order, a strip of dimensions at a time so that its sums stay in
/// registers.
#[inline(always)]
fn add_values<M: MulAdd>(weights: &[f32; KEY_BLOCK], keys: Range<usize>, v: &[f32], out: &mut [f32]) {
    let head_dim = out.len();
    let (strips, rest) = out.as_chunks_mut::<LANES>();
    let first_of_rest = strips.len() * LANES;
    for (sums, first) in strips.iter_mut().zip((0..).step_by(LANES)) {
        let mut lanes = *sums;
        for key in keys.clone() {
            let values: &[f32; LANES] = v[key * head_dim + first..].first_chunk().expect("a strip lies inside its row");
            for lane in 0..LANES {
                lanes[lane] = M::mul_add(weights[key], values[lane], lanes[lane]);
            }
        }
        *sums = lanes;
    }
    for key in keys {
        for (sum, value) in rest.iter_mut().zip(&v[key * head_dim + first_of_rest..]) {
            *sum = M::mul_add(weights[key], *value, *sum);
        }
    }
}

/// Turns scores into weights (0 where masked) relative to the new maximum, and rescales what the row has summed so far.
/// Maximum and sum run in 16 lanes, which are then folded in ascending order.
#[inline(always)]
fn weigh<M: MulAdd>(scores: &mut [f32; KEY_BLOCK], mask: u64, scale: f32, state: &mut RowState, out: &mut [f32]) {
    scores.iter_mut().for_each(|score| *score *= scale);
    if mask != u64::MAX {
        hide(scores, mask, f32::NEG_INFINITY);
    }
    let mut maxima = [state.max; TILE_OUT];
    for lanes in scores.as_chunks::<TILE_OUT>().0 {
        for (max, score) in maxima.iter_mut().zip(lanes) {
            *max = if *score > *max { *score } else { *max };
        }
    }
    let max = maxima.iter().copied().fold(state.max, f32::max);
    scores.iter_mut().for_each(|score| *score = exp2::<M>(*score - max));
    if mask != u64::MAX {
        // Not left to exp2: where every score is −∞ the difference above is NaN, also for masked keys.
        hide(scores, mask, 0.0);
    }
    let mut sums = [0.0; TILE_OUT];
    for lanes in scores.as_chunks::<TILE_OUT>().0 {
        for (sum, weight) in sums.iter_mut().zip(lanes) {
            *sum += weight;
        }
    }
    let correction = if state.max == f32::NEG_INFINITY { 0.0 } else { exp2::<M>(state.max - max) };
    state.max = max;
    state.sum = state.sum * correction + sums.iter().sum::<f32>();
    out.iter_mut().for_each(|value| *value *= correction);
}

/// Overwrites the keys whose bit is not set.
#[inline(always)]
pub(super) fn hide(scores: &mut [f32; KEY_BLOCK], mask: u64, with: f32) {
    for (key, score) in scores.iter_mut().enumerate() {
        *score = if mask >> key & 1 == 1 { *score } else { with };
    }
}

/// 2^x for x ≤ 0, relative error under 3e-7; results under 2⁻¹²⁶ are 0, NaN stays NaN, 2⁰ is exactly 1.
///
/// x is split into an integer, which goes into the exponent bits, and a remainder in [−½, ½], whose power is the Taylor
/// polynomial of degree 6 (truncation error ln(2)⁷/(2⁷·7!) = 1.2e-7).
#[inline(always)]
pub(super) fn exp2<M: MulAdd>(x: f32) -> f32 {
    // 1.5·2²³: adding it moves the rounded integer into the lowest bits of the mantissa.
    const SHIFT: f32 = 12_582_912.0;
    let shifted = x + SHIFT;
    let rest = x - (shifted - SHIFT);
    let mut power = EXP2_TAYLOR[0];
    for coefficient in &EXP2_TAYLOR[1..] {
        power = M::mul_add(power, rest, *coefficient);
    }
    let exponent = f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0f32.to_bits()));
    if x < -126.0 { 0.0 } else { power * exponent }
}

/// ln(2)^k / k! for k = 6 … 0.
pub(super) const EXP2_TAYLOR: [f32; 7] =
    [1.540_353e-4, 1.333_355_8e-3, 9.618_129e-3, 5.550_411e-2, 2.402_265e-1, std::f32::consts::LN_2, 1.0];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp2_is_exact_at_integers_and_close_between() {
        for x in 0..=126 {
            assert_eq!(exp2::<Unfused>(-x as f32), (-f64::from(x)).exp2() as f32);
        }
        for i in 0..100_000 {
            let x = -126.0 * i as f32 / 100_000.0;
            let exact = f64::from(x).exp2();
            assert!((f64::from(exp2::<Unfused>(x)) / exact - 1.0).abs() < 3e-7, "{x}");
        }
    }

    #[test]
    fn exp2_handles_the_ends() {
        assert_eq!(exp2::<Unfused>(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp2::<Unfused>(-126.5), 0.0);
        assert_eq!(exp2::<Unfused>(f32::MIN), 0.0);
        assert!(exp2::<Unfused>(f32::NAN).is_nan());
    }
}
