//! Flash-style attention on 16 lanes of f32: scores and sums of a block of query rows stay in registers.
//!
//! Per key block K is transposed and V unpacked to f32 once for all rows of the query tile; both fit in L1. A row that sees
//! no key of a block is not touched at all, so its state depends only on the blocks it sees.
#![expect(unsafe_code, reason = "calls of functions that a token proves to be executable")]

use std::arch::x86_64::*;
use std::cell::Cell;
use std::ops::Range;

use super::Avx512;
use super::avx512::round_row;
use super::avx512_blocks::{BLOCK_ROWS, BLOCK_TILES, Line, dot_block, dot_keys, dot_values};
use super::key_block::{KEY_TILES, RowState, all_finite, finish_row, pack_keys, weigh, without_hidden};
use super::lanes::{first_of_pairs, load, load_line, load_widened, second_of_pairs, store};
use crate::engine::kernels::geometry::{QueryTile, n_position, positions_per_task};
use crate::engine::kernels::{AttentionJob, KEY_BLOCK, TILE_OUT, TileLine};

thread_local! {
    /// Kept from call to call because fresh memory costs page faults.
    static SCRATCH: Cell<Scratch> = const { Cell::new(Scratch::EMPTY) };
}

/// Working memory of one query tile.
struct Scratch {
    /// Rounded queries `[row][head_dim padded]`.
    q: Vec<f32>,
    /// Decoded block `[key][head_dim]`.
    k: Vec<u16>,
    /// Decoded block `[key][head_dim]`.
    v: Vec<u16>,
    /// K as pairs of dimensions `[key tile][pair]`.
    k_pairs: Vec<TileLine>,
    /// K `[key tile][head_dim padded]`.
    k_lines: Vec<Line>,
    /// V `[dim tile][key]`.
    v_lines: Vec<Line>,
    /// Weighted sums of values `[row][dim tile]`.
    out: Vec<[f32; TILE_OUT]>,
    /// Softmax state per row.
    states: Vec<RowState>,
}

impl Scratch {
    const EMPTY: Scratch = Scratch {
        q: Vec::new(),
        k: Vec::new(),
        v: Vec::new(),
        k_pairs: Vec::new(),
        k_lines: Vec::new(),
        v_lines: Vec::new(),
        out: Vec::new(),
        states: Vec::new(),
    };
}

impl Default for Scratch {
    fn default() -> Scratch {
        Scratch::EMPTY
    }
}

/// Sizes that all row blocks of a query tile share.
struct TileShape {
    head_dim: usize,
    /// Inputs of the score product: `head_dim` padded to whole pairs.
    n_in: usize,
    n_dim_tile: usize,
    /// Softmax scale times log2 e.
    scale: f32,
}

/// Attention of one job.
pub(super) fn attend(token: Avx512, job: &mut AttentionJob<'_>) {
    let Avx512 { .. } = token;
    let n_position = n_position(job);
    let step = positions_per_task(job.group);
    let mut scratch = SCRATCH.take();
    for first in (0..n_position).step_by(step) {
        let tile = QueryTile::new(job, first, step.min(n_position - first));
        // SAFETY: an `Avx512` exists, so `detect` saw the features that `attend_tile` enables.
        unsafe { attend_tile(job, &tile, first, &mut scratch) }
    }
    SCRATCH.set(scratch);
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn attend_tile(job: &mut AttentionJob<'_>, tile: &QueryTile, first: usize, scratch: &mut Scratch) {
    let (group, head_dim) = (job.group, job.head_dim);
    let n_row = tile.n_position * group;
    let span = first * group * head_dim..(first * group + n_row) * head_dim;
    let shape = TileShape {
        head_dim,
        n_in: head_dim.next_multiple_of(2),
        n_dim_tile: head_dim.div_ceil(TILE_OUT),
        scale: job.scale * std::f32::consts::LOG2_E,
    };
    prepare(scratch, &job.q[span.clone()], &shape);
    let mut blocks = tile.blocks().peekable();
    while let Some(block) = blocks.next() {
        if let Some(next) = blocks.peek() {
            job.kv.prefetch(next.start, next.n_key);
        }
        let n_decoded = block.n_key * head_dim;
        job.kv.decode_bf16(block.start, block.n_key, &mut scratch.k[..n_decoded], &mut scratch.v[..n_decoded]);
        pack_keys(&scratch.k[..n_decoded], head_dim, shape.n_in / 2, &mut scratch.k_pairs);
        let whole = tile.sees_all(&block);
        let finite = whole || all_finite(&scratch.v[..n_decoded]);
        if finite && n_row <= BLOCK_ROWS {
            scratch.v[n_decoded..].fill(0);
            let rows = block.positions.start * group..block.positions.end * group;
            let mut masks = [0; BLOCK_ROWS];
            for (mask, row) in masks.iter_mut().zip(rows.clone()) {
                *mask = tile.mask(&block, row / group);
            }
            attend_rows(scratch, &shape, rows, &masks, Operands::Packed);
            continue;
        }
        unpack_keys(scratch);
        if finite {
            unpack_values(&scratch.v[..n_decoded], &shape, &mut scratch.v_lines);
            let rows = block.positions.start * group..block.positions.end * group;
            for first in rows.clone().step_by(BLOCK_ROWS) {
                let n_row = BLOCK_ROWS.min(rows.end - first);
                let mut masks = [u64::MAX; BLOCK_ROWS];
                if !whole {
                    for (row, mask) in masks[..n_row].iter_mut().enumerate() {
                        *mask = tile.mask(&block, (first + row) / group);
                    }
                }
                attend_rows(scratch, &shape, first..first + n_row, &masks, Operands::Unpacked);
            }
            continue;
        }
        for position in block.positions.clone() {
            let mask = tile.mask(&block, position);
            let seen = without_hidden(&scratch.v[..n_decoded], head_dim, mask);
            unpack_values(&seen, &shape, &mut scratch.v_lines);
            for row in position * group..(position + 1) * group {
                attend_rows(scratch, &shape, row..row + 1, &[mask; BLOCK_ROWS], Operands::Unpacked);
            }
        }
    }
    for (row, out) in job.out[span].chunks_exact_mut(head_dim).enumerate() {
        finish_row(&scratch.states[row], &scratch.out[row * shape.n_dim_tile..][..shape.n_dim_tile], out);
    }
}

/// Rounds the queries and resets sums and states.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn prepare(scratch: &mut Scratch, q: &[f32], shape: &TileShape) {
    let n_row = q.len() / shape.head_dim;
    scratch.q.resize(n_row * shape.n_in, 0.0);
    for (q, rounded) in q.chunks_exact(shape.head_dim).zip(scratch.q.chunks_exact_mut(shape.n_in)) {
        round_row(q, rounded);
    }
    scratch.states.clear();
    scratch.states.resize(n_row, RowState::NEW);
    scratch.out.clear();
    scratch.out.resize(n_row * shape.n_dim_tile, [0.0; TILE_OUT]);
    scratch.k.resize(KEY_BLOCK * shape.head_dim, 0);
    scratch.v.resize(KEY_BLOCK * shape.head_dim, 0);
    scratch.k_pairs.resize(KEY_TILES * shape.n_in / 2, TileLine::ZERO);
    scratch.k_lines.resize(KEY_TILES * shape.n_in, Line::ZERO);
    scratch.v_lines.resize(shape.n_dim_tile * KEY_BLOCK, Line::ZERO);
}

/// Packed K → f32 lines with the keys as columns.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn unpack_keys(scratch: &mut Scratch) {
    for (pairs, [even, odd]) in scratch.k_pairs.iter().zip(scratch.k_lines.as_chunks_mut().0) {
        let pairs = load_line(pairs);
        store(&mut even.0, first_of_pairs(pairs));
        store(&mut odd.0, second_of_pairs(pairs));
    }
}

/// Decoded V → f32 lines; keys and dimensions beyond are zero.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn unpack_values(v: &[u16], shape: &TileShape, lines: &mut [Line]) {
    for key in 0..KEY_BLOCK {
        let row = v.get(key * shape.head_dim..(key + 1) * shape.head_dim).unwrap_or_default();
        for (tile, lines) in lines.chunks_exact_mut(KEY_BLOCK).enumerate() {
            store(&mut lines[key].0, first_of_pairs(load_widened(row.get(tile * TILE_OUT..).unwrap_or_default())));
        }
    }
}

/// Which form of a key block to multiply with; both take the same products in the same order.
#[derive(Clone, Copy)]
enum Operands {
    /// `k_pairs` and `v`, unpacked in registers: less work for a single block of rows.
    Packed,
    /// `k_lines` and `v_lines`: less work for many.
    Unpacked,
}

/// One key block for at most [`BLOCK_ROWS`] rows, each with its mask.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn attend_rows(
    scratch: &mut Scratch,
    shape: &TileShape,
    rows: Range<usize>,
    masks: &[u64; BLOCK_ROWS],
    operands: Operands,
) {
    let &TileShape { n_in, n_dim_tile, scale, .. } = shape;
    let n_row = rows.len();
    let mut scores = [[_mm512_setzero_ps(); BLOCK_TILES]; BLOCK_ROWS];
    let q = &scratch.q[rows.start * n_in..rows.end * n_in];
    match operands {
        Operands::Unpacked => dot_block(q, n_row, &scratch.k_lines, KEY_TILES, n_in, &mut scores),
        Operands::Packed => dot_keys(q, n_row, &scratch.k_pairs, &mut scores),
    }
    let mut weights = [[[0.0; TILE_OUT]; KEY_TILES]; BLOCK_ROWS];
    let mut corrections = [0.0; BLOCK_ROWS];
    for row in 0..n_row {
        let (lanes, correction) = weigh(&scores[row], masks[row], scale, &mut scratch.states[rows.start + row]);
        for tile in 0..KEY_TILES {
            store(&mut weights[row][tile], lanes[tile]);
        }
        corrections[row] = correction;
    }
    let weights = weights.as_flattened().as_flattened();
    for dim_tile in (0..n_dim_tile).step_by(BLOCK_TILES) {
        let n_tile = BLOCK_TILES.min(n_dim_tile - dim_tile);
        let mut sums = [[_mm512_setzero_ps(); BLOCK_TILES]; BLOCK_ROWS];
        for row in 0..n_row {
            let out = &scratch.out[(rows.start + row) * n_dim_tile + dim_tile..][..n_tile];
            for tile in 0..n_tile {
                sums[row][tile] = _mm512_mul_ps(load(&out[tile]), _mm512_set1_ps(corrections[row]));
            }
        }
        let weights = &weights[..n_row * KEY_BLOCK];
        match operands {
            Operands::Unpacked => {
                let v_lines = &scratch.v_lines[dim_tile * KEY_BLOCK..][..n_tile * KEY_BLOCK];
                dot_block(weights, n_row, v_lines, n_tile, KEY_BLOCK, &mut sums);
            }
            Operands::Packed => {
                dot_values(weights, n_row, &scratch.v, shape.head_dim, dim_tile * TILE_OUT, &mut sums);
            }
        }
        for (row, sums) in sums[..n_row].iter().enumerate() {
            let out = &mut scratch.out[(rows.start + row) * n_dim_tile + dim_tile..][..n_tile];
            for (out, sum) in out.iter_mut().zip(sums) {
                store(out, *sum);
            }
        }
    }
}
