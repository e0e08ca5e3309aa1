//! What the attention kernels of this folder share: reading a key block, laying it out, and the softmax of a row.
//!
//! Scores are f32; weights are `2^(s·scale·log2 e − max)`; their sum is taken in f32 before they are rounded to BF16 for the
//! product with V.

use std::arch::x86_64::*;

use super::lanes::{
    exp2, load, load_some, load_widened, max_of_lanes, round, store, store_line, store_some, transpose,
};
use crate::engine::kernels::{KEY_BLOCK, TILE_OUT, TileLine};

/// Tiles of 16 keys in a block.
pub(super) const KEY_TILES: usize = KEY_BLOCK / TILE_OUT;

/// Pairs of keys in a block.
pub(super) const KEY_PAIRS: usize = KEY_BLOCK / 2;

/// Online-softmax state of one query row.
#[derive(Clone, Copy)]
pub(super) struct RowState {
    /// Largest scaled score so far.
    pub(super) max: f32,
    /// Sum of weights in 16 lanes: lane i holds keys i, i + 16, … of every block.
    pub(super) sums: [f32; TILE_OUT],
}

impl RowState {
    /// Before the first block.
    pub(super) const NEW: RowState = RowState { max: f32::NEG_INFINITY, sums: [0.0; TILE_OUT] };
}

/// Turns the raw scores of one row (not all of them masked) into weights rounded to BF16, relative to the new maximum; also
/// returns the factor by which what the row has summed so far must shrink.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn weigh(
    scores: &[__m512; KEY_TILES],
    mask: u64,
    scale: f32,
    state: &mut RowState,
) -> ([__m512; KEY_TILES], f32) {
    let lowest = _mm512_set1_ps(f32::NEG_INFINITY);
    let mut block_max = lowest;
    for (tile, scores) in scores.iter().enumerate() {
        block_max = _mm512_mask_max_ps(block_max, (mask >> (tile * TILE_OUT)) as u16, block_max, *scores);
    }
    let scales = _mm512_set1_ps(scale);
    let max = _mm512_max_ps(_mm512_mul_ps(max_of_lanes(block_max), scales), _mm512_set1_ps(state.max));
    let mut weights = [lowest; KEY_TILES];
    for tile in 0..KEY_TILES {
        weights[tile] = exp2(_mm512_fmsub_ps(scores[tile], scales, max), (mask >> (tile * TILE_OUT)) as u16);
    }
    let new_max = _mm512_cvtss_f32(max);
    // 2⁰ is exactly 1, so leaving the exponential out changes no bit.
    let correction = if new_max == state.max {
        1.0
    } else {
        _mm512_cvtss_f32(exp2(_mm512_sub_ps(_mm512_set1_ps(state.max), max), u16::MAX))
    };
    state.max = new_max;
    let block_sum = _mm512_add_ps(_mm512_add_ps(weights[0], weights[1]), _mm512_add_ps(weights[2], weights[3]));
    let sums = _mm512_fmadd_ps(load(&state.sums), _mm512_set1_ps(correction), block_sum);
    store(&mut state.sums, sums);
    for weights in &mut weights {
        *weights = round(*weights);
    }
    (weights, correction)
}

/// Divides the sums of a row `[dim tile][16]` by its total weight.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn finish_row(state: &RowState, sums: &[[f32; TILE_OUT]], out: &mut [f32]) {
    let total = _mm512_set1_ps(state.sums.iter().sum());
    for (out, sums) in out.chunks_mut(TILE_OUT).zip(sums) {
        store_some(out, _mm512_div_ps(load(sums), total));
    }
}

/// K `[n_key, head_dim]` → `[KEY_TILES][n_pair]` lines with the keys as columns; keys and pairs beyond are zero.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn pack_keys(k: &[u16], head_dim: usize, n_pair: usize, lines: &mut [TileLine]) {
    for (tile, lines) in lines.chunks_exact_mut(n_pair).enumerate() {
        for (part, lines) in lines.chunks_mut(TILE_OUT).enumerate() {
            let from = (part * 2 * TILE_OUT).min(head_dim);
            let width = (2 * TILE_OUT).min(head_dim - from);
            let mut block = [_mm512_setzero_si512(); 16];
            for (register, row) in block.iter_mut().zip(k.chunks_exact(head_dim).skip(tile * TILE_OUT)) {
                *register = load_some(&row[from..from + width]);
            }
            let block = transpose(block);
            for (line, register) in lines.iter_mut().zip(block) {
                store_line(line, register);
            }
        }
    }
}

/// V `[n_key, head_dim]` → `[dim tile][KEY_PAIRS]` lines, a pair is two consecutive keys; keys and dimensions beyond are zero.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn pack_values(v: &[u16], head_dim: usize, lines: &mut [TileLine]) {
    for pair in 0..KEY_PAIRS {
        let even = v.get(2 * pair * head_dim..(2 * pair + 1) * head_dim).unwrap_or_default();
        let odd = v.get((2 * pair + 1) * head_dim..(2 * pair + 2) * head_dim).unwrap_or_default();
        for (tile, lines) in lines.chunks_exact_mut(KEY_PAIRS).enumerate() {
            let first = load_widened(even.get(tile * TILE_OUT..).unwrap_or_default());
            let second = load_widened(odd.get(tile * TILE_OUT..).unwrap_or_default());
            store_line(&mut lines[pair], _mm512_or_si512(first, _mm512_slli_epi32::<16>(second)));
        }
    }
}

/// Whether no BF16 value is infinite or NaN.
pub(super) fn all_finite(values: &[u16]) -> bool {
    values.iter().fold(true, |finite, bits| finite & (bits & 0x7F80 != 0x7F80))
}

/// `v` with zeros in the rows of keys that are not in `mask`. A weight of 0 does not hide a NaN, because 0 · NaN is NaN.
pub(super) fn without_hidden(v: &[u16], head_dim: usize, mask: u64) -> Vec<u16> {
    let mut seen = v.to_vec();
    for (key, row) in seen.chunks_exact_mut(head_dim).enumerate() {
        if mask >> key & 1 == 0 {
            row.fill(0);
        }
    }
    seen
}
