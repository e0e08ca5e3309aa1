//! Register blocks of the AVX-512 attention: sums of a few query rows times a few tiles stay in registers.
//!
//! All of them add the products of an element in ascending order of the inner dimension, one multiply-add each, so a row has
//! the same bits whichever block it is computed in.

use std::arch::x86_64::*;

use super::key_block::KEY_TILES;
use super::lanes::{first_of_pairs, load, load_line, load_widened, second_of_pairs};
use crate::engine::kernels::{KEY_BLOCK, TILE_OUT, TileLine};

/// Query rows of a register block: with 4 tiles 24 accumulators, and room for 4 lines and a broadcast value.
pub(super) const BLOCK_ROWS: usize = 6;

/// Tiles of a register block; the scores of a row fill exactly one.
pub(super) const BLOCK_TILES: usize = KEY_TILES;

/// 16 columns of one input, f32.
///
/// Aligned to a cache line: the inner loops load four of them per step, and a load across two lines costs two.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [f32; TILE_OUT]);

impl Line {
    /// What operands are padded with.
    pub(super) const ZERO: Line = Line([0.0; TILE_OUT]);
}

/// sums += x · w for x `[n_row, n_in]` and w `[n_tile][n_in]`, at most [`BLOCK_ROWS`] and [`BLOCK_TILES`] of them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn dot_block(
    x: &[f32],
    n_row: usize,
    w: &[Line],
    n_tile: usize,
    n_in: usize,
    sums: &mut [[__m512; BLOCK_TILES]; BLOCK_ROWS],
) {
    macro_rules! by_size {
        ($($rows:literal)*) => {
            match (n_row, n_tile) {
                $(($rows, 1) => dot::<$rows, 1>(x, w, n_in, sums),
                ($rows, 2) => dot::<$rows, 2>(x, w, n_in, sums),
                ($rows, 3) => dot::<$rows, 3>(x, w, n_in, sums),
                ($rows, 4) => dot::<$rows, 4>(x, w, n_in, sums),)*
                _ => unreachable!("{n_row} rows and {n_tile} tiles are no register block"),
            }
        };
    }
    by_size!(1 2 3 4 5 6);
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn dot<const ROWS: usize, const TILES: usize>(
    x: &[f32],
    w: &[Line],
    n_in: usize,
    sums: &mut [[__m512; BLOCK_TILES]; BLOCK_ROWS],
) {
    let mut rows: [&[f32]; ROWS] = [&[]; ROWS];
    for row in 0..ROWS {
        rows[row] = &x[row * n_in..][..n_in];
    }
    let mut columns: [&[Line]; TILES] = [&[]; TILES];
    for tile in 0..TILES {
        columns[tile] = &w[tile * n_in..][..n_in];
    }
    let mut block = [[_mm512_setzero_ps(); TILES]; ROWS];
    for row in 0..ROWS {
        for tile in 0..TILES {
            block[row][tile] = sums[row][tile];
        }
    }
    for input in 0..n_in {
        let mut lines = [_mm512_setzero_ps(); TILES];
        for tile in 0..TILES {
            lines[tile] = load(&columns[tile][input].0);
        }
        for row in 0..ROWS {
            let value = _mm512_set1_ps(rows[row][input]);
            for tile in 0..TILES {
                block[row][tile] = _mm512_fmadd_ps(value, lines[tile], block[row][tile]);
            }
        }
    }
    for row in 0..ROWS {
        for tile in 0..TILES {
            sums[row][tile] = block[row][tile];
        }
    }
}

/// scores += q `[n_row, 2 · n_pair]` · k_pairs `[KEY_TILES][n_pair]`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn dot_keys(
    q: &[f32],
    n_row: usize,
    k_pairs: &[TileLine],
    scores: &mut [[__m512; BLOCK_TILES]; BLOCK_ROWS],
) {
    match n_row {
        1 => dot_keys_of::<1>(q, k_pairs, scores),
        2 => dot_keys_of::<2>(q, k_pairs, scores),
        3 => dot_keys_of::<3>(q, k_pairs, scores),
        4 => dot_keys_of::<4>(q, k_pairs, scores),
        5 => dot_keys_of::<5>(q, k_pairs, scores),
        6 => dot_keys_of::<6>(q, k_pairs, scores),
        _ => unreachable!("{n_row} rows are no register block"),
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn dot_keys_of<const ROWS: usize>(q: &[f32], k_pairs: &[TileLine], scores: &mut [[__m512; BLOCK_TILES]; BLOCK_ROWS]) {
    let n_pair = k_pairs.len() / KEY_TILES;
    let mut rows: [&[[f32; 2]]; ROWS] = [&[]; ROWS];
    for row in 0..ROWS {
        rows[row] = &q[row * 2 * n_pair..][..2 * n_pair].as_chunks().0[..n_pair];
    }
    let mut columns: [&[TileLine]; KEY_TILES] = [&[]; KEY_TILES];
    for tile in 0..KEY_TILES {
        columns[tile] = &k_pairs[tile * n_pair..][..n_pair];
    }
    let mut block = [[_mm512_setzero_ps(); KEY_TILES]; ROWS];
    for pair in 0..n_pair {
        for tile in 0..KEY_TILES {
            let keys = load_line(&columns[tile][pair]);
            for row in 0..ROWS {
                let [first, second] = rows[row][pair];
                let sum = _mm512_fmadd_ps(_mm512_set1_ps(first), first_of_pairs(keys), block[row][tile]);
                block[row][tile] = _mm512_fmadd_ps(_mm512_set1_ps(second), second_of_pairs(keys), sum);
            }
        }
    }
    scores[..ROWS].copy_from_slice(&block);
}

/// sums += weights `[n_row, KEY_BLOCK]` · v `[KEY_BLOCK, head_dim]`, for up to [`BLOCK_TILES`] tiles of dimensions from `dim`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn dot_values(
    weights: &[f32],
    n_row: usize,
    v: &[u16],
    head_dim: usize,
    dim: usize,
    sums: &mut [[__m512; BLOCK_TILES]; BLOCK_ROWS],
) {
    match n_row {
        1 => dot_values_of::<1>(weights, v, head_dim, dim, sums),
        2 => dot_values_of::<2>(weights, v, head_dim, dim, sums),
        3 => dot_values_of::<3>(weights, v, head_dim, dim, sums),
        4 => dot_values_of::<4>(weights, v, head_dim, dim, sums),
        5 => dot_values_of::<5>(weights, v, head_dim, dim, sums),
        6 => dot_values_of::<6>(weights, v, head_dim, dim, sums),
        _ => unreachable!("{n_row} rows are no register block"),
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn dot_values_of<const ROWS: usize>(
    weights: &[f32],
    v: &[u16],
    head_dim: usize,
    dim: usize,
    sums: &mut [[__m512; BLOCK_TILES]; BLOCK_ROWS],
) {
    let rows: &[[f32; KEY_BLOCK]; ROWS] = weights.as_chunks().0.first_chunk().expect("a row of weights per query row");
    let mut block = [[_mm512_setzero_ps(); BLOCK_TILES]; ROWS];
    block.copy_from_slice(&sums[..ROWS]);
    let width = (BLOCK_TILES * TILE_OUT).min(head_dim - dim);
    for (key, v) in v.chunks_exact(head_dim).enumerate() {
        let v = &v[dim..dim + width];
        let mut values = [_mm512_setzero_ps(); BLOCK_TILES];
        for (tile, values) in values.iter_mut().enumerate() {
            // Tiles beyond the width add zeros to sums that nobody reads.
            *values = first_of_pairs(load_widened(v.get(tile * TILE_OUT..).unwrap_or_default()));
        }
        for row in 0..ROWS {
            let weight = _mm512_set1_ps(rows[row][key]);
            for tile in 0..BLOCK_TILES {
                block[row][tile] = _mm512_fmadd_ps(weight, values[tile], block[row][tile]);
            }
        }
    }
    sums[..ROWS].copy_from_slice(&block);
}
