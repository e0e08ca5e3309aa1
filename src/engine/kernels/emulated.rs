//! Attention in another machine's arithmetic: the loops of the f32 kernels with a rounding wherever that machine rounds.
//!
//! The same bits on every machine, for any kernel, thread count and prefill chunk: products are not fused with sums, and
//! sums run in one fixed order. The body is compiled once for the build's baseline and again for wider instruction sets.

use std::ops::Range;

use super::geometry::{KeyBlock, QueryTile, n_position, positions_per_task};
use super::portable::{self, Unfused};
use super::rounding::{bf16_to_f32, f32_to_bf16};
use super::{AttentionJob, KEY_BLOCK, TILE_OUT};
use crate::engine::attention::{Accumulator, Arithmetic, KvScaling, QueryRounding, WeightRounding};

/// Dimensions whose sums run side by side; rows of V are padded to a multiple of it.
const STRIP: usize = 32;

/// Keys per step of an fp8 tensor-core product: the inner size of Hopper's fp8 matrix instruction.
const STEP: usize = 32;

/// Bits of a f32 mantissa that the short register does not have: it keeps 13 of 23.
const CUT_BITS: u32 = 23 - 13;

/// Attention of one job in `arithmetic`.
///
/// # Panics
/// If `q` and `out` are not both `[n_position, group, head_dim]`, or if the accumulator is the oracle's f64, which is the
/// `reference` kernel's.
pub fn attend(job: &mut AttentionJob<'_>, arithmetic: &Arithmetic) {
    assert_ne!(arithmetic.accumulator, Accumulator::F64, "the reference kernel computes this");
    #[cfg(target_arch = "x86_64")]
    if super::x86_64::attend_emulated(job, arithmetic) {
        return;
    }
    attend_tiles(job, arithmetic);
}

/// The body of [`attend`].
#[inline(always)]
pub(super) fn attend_tiles(job: &mut AttentionJob<'_>, arithmetic: &Arithmetic) {
    let n_position = n_position(job);
    let step = positions_per_task(job.group);
    for first in (0..n_position).step_by(step) {
        let n = step.min(n_position - first);
        attend_tile(job, arithmetic, &QueryTile::new(job, first, n), first);
    }
}

#[inline(always)]
fn attend_tile(job: &mut AttentionJob<'_>, arithmetic: &Arithmetic, tile: &QueryTile, first: usize) {
    let (group, head_dim) = (job.group, job.head_dim);
    let n_row = tile.n_position * group;
    let span = first * group * head_dim..(first * group + n_row) * head_dim;
    let width = head_dim.next_multiple_of(STRIP);
    let mut q = job.q[span.clone()].to_vec();
    // The exponential is taken to base 2, so the change of base rides on the softmax scale.
    let scale = job.scale * std::f32::consts::LOG2_E * round_queries(&mut q, arithmetic.query);
    let mut rows =
        Rows { max: vec![f32::NEG_INFINITY; n_row], sum: vec![0.0; n_row], values: vec![0.0; n_row * width] };
    let mut operands = Operands::new(head_dim, width);
    for block in tile.blocks() {
        operands.load(job, &block, arithmetic);
        for position in block.positions.clone() {
            let mask = tile.mask(&block, position);
            let keys = mask.trailing_zeros() as usize..KEY_BLOCK - mask.leading_zeros() as usize;
            for row in position * group..(position + 1) * group {
                let mut scores = portable::scores::<Unfused>(&q[row * head_dim..][..head_dim], &operands.k_by_dim);
                for (score, k_scale) in scores.iter_mut().zip(&operands.k_scales) {
                    *score *= scale * k_scale;
                }
                let correction = weigh(&mut scores, mask, &mut rows.max[row], &mut rows.sum[row]);
                if arithmetic.scaling == KvScaling::PerKey {
                    scores.iter_mut().zip(&operands.v_scales).for_each(|(weight, v_scale)| *weight *= v_scale);
                }
                round_weights(&mut scores, arithmetic.weights);
                let sums = &mut rows.values[row * width..][..width];
                add_values(&scores, keys.clone(), &operands.v, correction, arithmetic.accumulator, sums);
            }
        }
    }
    let weight_scale = if let WeightRounding::Fp8 { scale } = arithmetic.weights { scale } else { 1.0 };
    // One scale for all keys, so that of the last block speaks for every block.
    let v_scale = if arithmetic.scaling == KvScaling::Outside { operands.v_scales[0] } else { 1.0 };
    for (row, out) in job.out[span].chunks_exact_mut(head_dim).enumerate() {
        for (out, value) in out.iter_mut().zip(&rows.values[row * width..]) {
            *out = *value / (rows.sum[row] * weight_scale) * v_scale;
        }
    }
}

/// Online-softmax state of a tile's rows.
struct Rows {
    /// Largest score so far, to base 2.
    max: Vec<f32>,
    /// Sum of the unrounded weights.
    sum: Vec<f32>,
    /// Weighted sums of values `[n_row, width]`.
    values: Vec<f32>,
}

/// K and V of one key block as the products take them.
struct Operands {
    k: Vec<f32>,
    /// `[head_dim][KEY_BLOCK]`
    k_by_dim: Vec<[f32; KEY_BLOCK]>,
    decoded_v: Vec<f32>,
    /// `[KEY_BLOCK, width]`, zero beyond `head_dim`.
    v: Vec<f32>,
    k_scales: [f32; KEY_BLOCK],
    v_scales: [f32; KEY_BLOCK],
    width: usize,
}

impl Operands {
    fn new(head_dim: usize, width: usize) -> Self {
        Self {
            k: vec![0.0; KEY_BLOCK * head_dim],
            k_by_dim: vec![[0.0; KEY_BLOCK]; head_dim],
            decoded_v: vec![0.0; KEY_BLOCK * head_dim],
            v: vec![0.0; KEY_BLOCK * width],
            k_scales: [1.0; KEY_BLOCK],
            v_scales: [1.0; KEY_BLOCK],
            width,
        }
    }

    #[inline(always)]
    fn load(&mut self, job: &AttentionJob<'_>, block: &KeyBlock, arithmetic: &Arithmetic) {
        let (head_dim, n_key) = (job.head_dim, block.n_key);
        let (k, v) = (&mut self.k[..n_key * head_dim], &mut self.decoded_v[..n_key * head_dim]);
        if arithmetic.scaling == KvScaling::Decoded {
            job.kv.decode_f32(block.start, n_key, k, v);
        } else {
            let (k_scales, v_scales) = (&mut self.k_scales[..n_key], &mut self.v_scales[..n_key]);
            job.kv.decode_codes_f32(block.start, n_key, k, v, k_scales, v_scales);
        }
        if arithmetic.query != QueryRounding::F32 {
            k.iter_mut().chain(v.iter_mut()).for_each(|value| *value = bf16_to_f32(f32_to_bf16(*value)));
        }
        for (key, row) in k.chunks_exact(head_dim).enumerate() {
            for (by_key, value) in self.k_by_dim.iter_mut().zip(row) {
                by_key[key] = *value;
            }
        }
        for (padded, row) in self.v.chunks_exact_mut(self.width).zip(v.chunks_exact(head_dim)) {
            padded[..head_dim].copy_from_slice(row);
        }
    }
}

/// Rounds queries in place and returns the factor that their scores need.
#[inline(always)]
fn round_queries(q: &mut [f32], rounding: QueryRounding) -> f32 {
    match rounding {
        QueryRounding::F32 => 1.0,
        QueryRounding::Bf16 => {
            q.iter_mut().for_each(|value| *value = bf16_to_f32(f32_to_bf16(*value)));
            1.0
        }
        QueryRounding::Fp8 { scale } => {
            q.iter_mut().for_each(|value| *value = to_e4m3(*value / scale));
            scale
        }
    }
}

#[inline(always)]
fn round_weights(weights: &mut [f32; KEY_BLOCK], rounding: WeightRounding) {
    match rounding {
        WeightRounding::F32 => {}
        WeightRounding::Bf16 => weights.iter_mut().for_each(|weight| *weight = bf16_to_f32(f32_to_bf16(*weight))),
        WeightRounding::Fp8 { scale } => weights.iter_mut().for_each(|weight| *weight = to_e4m3(*weight * scale)),
    }
}

/// The nearest e4m3 value (ties to even), ±448 beyond the range, NaN for NaN; without branches, so that loops over it become
/// vector code.
#[inline(always)]
fn to_e4m3(value: f32) -> f32 {
    const MAX: f32 = 448.0;
    const EXPONENT: u32 = 0x7F80_0000;
    // 2⁻⁶, the smallest normal value: below it the unit no longer shrinks.
    const SMALLEST_NORMAL: u32 = (127 - 6) << 23;
    let magnitude = value.abs();
    let magnitude = if magnitude > MAX { MAX } else { magnitude };
    let exponent = (magnitude.to_bits() & EXPONENT).max(SMALLEST_NORMAL);
    // 2²³ units of the last of 3 mantissa bits: adding them makes the adder round to whole units.
    let units = f32::from_bits(exponent.wrapping_add((23 - 3) << 23));
    ((magnitude + units) - units).copysign(value)
}

/// Turns scores into weights (0 where masked) relative to the new maximum, adds them to the row's sum, and returns the factor
/// on what the row has summed so far. Maximum and sum run in 16 lanes, which are then folded in ascending order.
#[inline(always)]
fn weigh(scores: &mut [f32; KEY_BLOCK], mask: u64, row_max: &mut f32, row_sum: &mut f32) -> f32 {
    if mask != u64::MAX {
        portable::hide(scores, mask, f32::NEG_INFINITY);
    }
    let mut maxima = [*row_max; TILE_OUT];
    for lanes in scores.as_chunks::<TILE_OUT>().0 {
        for (max, score) in maxima.iter_mut().zip(lanes) {
            *max = if *score > *max { *score } else { *max };
        }
    }
    let max = maxima.iter().copied().fold(*row_max, f32::max);
    scores.iter_mut().for_each(|score| *score = portable::exp2::<Unfused>(*score - max));
    if mask != u64::MAX {
        // Not left to exp2: where every score is −∞ the difference above is NaN, also for masked keys.
        portable::hide(scores, mask, 0.0);
    }
    let mut sums = [0.0; TILE_OUT];
    for lanes in scores.as_chunks::<TILE_OUT>().0 {
        for (sum, weight) in sums.iter_mut().zip(lanes) {
            *sum += weight;
        }
    }
    let correction = if *row_max == f32::NEG_INFINITY { 0.0 } else { portable::exp2::<Unfused>(*row_max - max) };
    *row_max = max;
    *row_sum = *row_sum * correction + sums.iter().sum::<f32>();
    correction
}

/// sums `[width]` · correction + weights · v over `keys`, in the given register.
#[inline(always)]
fn add_values(
    weights: &[f32; KEY_BLOCK],
    keys: Range<usize>,
    v: &[f32],
    correction: f32,
    accumulator: Accumulator,
    sums: &mut [f32],
) {
    let width = sums.len();
    for (strip, first) in sums.as_chunks_mut::<STRIP>().0.iter_mut().zip((0..).step_by(STRIP)) {
        let product = |keys: Range<usize>, lanes: &mut [f32; STRIP]| {
            for key in keys {
                let values: &[f32; STRIP] = v[key * width + first..].first_chunk().expect("rows are padded to strips");
                for lane in 0..STRIP {
                    lanes[lane] += weights[key] * values[lane];
                }
            }
        };
        let Accumulator::Short { two_level } = accumulator else {
            strip.iter_mut().for_each(|sum| *sum *= correction);
            product(keys.clone(), strip);
            continue;
        };
        let mut register = if two_level { [0.0; STRIP] } else { strip.map(|sum| cut(sum * correction)) };
        for start in (0..KEY_BLOCK).step_by(STEP) {
            let mut step = [0.0; STRIP];
            product(keys.start.max(start)..keys.end.min(start + STEP), &mut step);
            for lane in 0..STRIP {
                register[lane] = cut(register[lane] + step[lane]);
            }
        }
        for (sum, register) in strip.iter_mut().zip(register) {
            *sum = if two_level { *sum * correction + register } else { register };
        }
    }
}

/// Cut toward zero to the mantissa bits of the short register.
#[inline(always)]
fn cut(value: f32) -> f32 {
    f32::from_bits(value.to_bits() >> CUT_BITS << CUT_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::kernels::tests::{Numbers, Rows};
    use crate::engine::kv_cache::codec::codec;

    #[test]
    fn e4m3_rounding_agrees_with_the_codec_on_every_upper_half_and_around_ties() {
        let codec = codec("fp8_e4m3").unwrap();
        let (mut packed, mut decoded) = ([0], [0.0]);
        for upper in 0..=u16::MAX {
            for lower in [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF] {
                let value = f32::from_bits(u32::from(upper) << 16 | lower);
                codec.encode_row(&[value], 1.0, &mut packed);
                codec.decode_rows(&packed, 1, 1.0, &mut decoded);
                let (expected, found) = (decoded[0], to_e4m3(value));
                assert!(
                    expected.to_bits() == found.to_bits() || expected.is_nan() && found.is_nan(),
                    "{value}: {found}"
                );
            }
        }
    }

    #[test]
    fn the_short_register_cuts_toward_zero_after_13_bits() {
        let unit = 2_f32.powi(-13);
        for (value, expected) in [(1.0 + unit, 1.0 + unit), (1.0 + 1.99 * unit, 1.0 + unit), (-1.0 - 0.99 * unit, -1.0)]
        {
            assert_eq!(cut(value), expected);
        }
        assert_eq!(cut(8192.0 + 0.99), 8192.0, "ulp of 2^13 is 1");
    }

    /// One arithmetic per path through the loops.
    fn arithmetics() -> [Arithmetic; 6] {
        let short = |two_level| Accumulator::Short { two_level };
        [
            Arithmetic::BF16,
            Arithmetic::F32,
            Arithmetic::FA3_FP8,
            Arithmetic { accumulator: short(false), ..Arithmetic::FA3_FP8 },
            Arithmetic { accumulator: short(false), scaling: KvScaling::PerKey, ..Arithmetic::F32 },
            Arithmetic { weights: WeightRounding::Fp8 { scale: 1.0 }, ..Arithmetic::BF16 },
        ]
    }

    /// Attention of positions `first_position..` in parts of `chunk` positions, by `attend`.
    fn in_chunks(
        attend: fn(&mut AttentionJob<'_>, &Arithmetic),
        arithmetic: &Arithmetic,
        kv: &Rows,
        q: &[f32],
        (first_position, group, chunk): (usize, usize, usize),
        window: Option<usize>,
    ) -> Vec<u32> {
        let head_dim = kv.head_dim;
        let mut out = vec![f32::NAN; q.len()];
        let step = chunk * group * head_dim;
        for (part, (q, out)) in q.chunks(step).zip(out.chunks_mut(step)).enumerate() {
            let first_position = first_position + part * chunk;
            let mut job = AttentionJob { kv, q, out, first_position, group, head_dim, scale: 0.2, window };
            attend(&mut job, arithmetic);
        }
        out.into_iter().map(f32::to_bits).collect()
    }

    #[test]
    fn every_cut_of_the_work_and_every_instruction_set_has_the_same_bits() {
        for head_dim in [2, 33, 64, 80] {
            for (first_position, n_position, group) in [(0, 130, 1), (63, 65, 3), (130, 26, 8)] {
                let kv = Rows::new(first_position + n_position, head_dim, 5);
                let q = Numbers::new(1).f32s(n_position * group * head_dim);
                for (arithmetic, window) in arithmetics().iter().flat_map(|each| [(each, None), (each, Some(65))]) {
                    let cut = |chunk| (first_position, group, chunk);
                    let whole = in_chunks(attend, arithmetic, &kv, &q, cut(n_position), window);
                    let baseline = in_chunks(attend_tiles, arithmetic, &kv, &q, cut(n_position), window);
                    assert!(whole == baseline, "{arithmetic}, head {head_dim}");
                    for chunk in [1, 7, 64] {
                        let parts = in_chunks(attend, arithmetic, &kv, &q, cut(chunk), window);
                        assert!(parts == whole, "{arithmetic}, head {head_dim}, chunks of {chunk}");
                    }
                }
            }
        }
    }

    #[test]
    fn only_queries_that_see_a_broken_key_break() {
        let mut kv = Rows::new(140, 64, 4);
        let q = Numbers::new(2).f32s(50 * 64);
        for arithmetic in arithmetics() {
            let clean = in_chunks(attend, &arithmetic, &kv, &q, (90, 1, 50), Some(20));
            let row = 100 * 64..101 * 64;
            let kept = (kv.k[row.clone()].to_vec(), kv.v[row.clone()].to_vec());
            kv.k[row.clone()].fill(f32::NAN);
            kv.v[row.clone()].fill(f32::NAN);
            let broken = in_chunks(attend, &arithmetic, &kv, &q, (90, 1, 50), Some(20));
            kv.k[row.clone()].copy_from_slice(&kept.0);
            kv.v[row].copy_from_slice(&kept.1);
            for (i, (clean, broken)) in clean.iter().zip(&broken).enumerate() {
                let sees = (100..120).contains(&(90 + i / 64));
                assert_eq!(f32::from_bits(*broken).is_nan(), sees, "{arithmetic}: query {}", 90 + i / 64);
                assert!(sees || clean == broken);
            }
        }
    }
}
