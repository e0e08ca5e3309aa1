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
use crate::engine::kernels::{AttentionJob, KEY_BLOCK, KvRows, TILE_OUT, TileLine};

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

impl TileShape {
    fn new(job: &AttentionJob<'_>) -> TileShape {
        TileShape {
            head_dim: job.head_dim,
            n_in: job.head_dim.next_multiple_of(2),
            n_dim_tile: job.head_dim.div_ceil(TILE_OUT),
            scale: job.scale * std::f32::consts::LOG2_E,
        }
    }
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

/// Attention of jobs of one position each, whose first `n_shared` keys are one and the same.
pub(super) fn attend_forks(token: Avx512, jobs: &mut [AttentionJob<'_>], n_shared: usize) {
    let Avx512 { .. } = token;
    let mut scratch = SCRATCH.take();
    // SAFETY: an `Avx512` exists, so `detect` saw the features that `attend_forked` enables.
    unsafe { attend_forked(jobs, n_shared, &mut scratch) }
    SCRATCH.set(scratch);
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn attend_tile(job: &mut AttentionJob<'_>, tile: &QueryTile, first: usize, scratch: &mut Scratch) {
    let (group, head_dim) = (job.group, job.head_dim);
    let n_row = tile.n_position * group;
    let span = first * group * head_dim..(first * group + n_row) * head_dim;
    let shape = TileShape::new(job);
    prepare(scratch, n_row, &shape);
    round_queries(&job.q[span.clone()], &shape, &mut scratch.q);
    attend_keys(job, tile, 0, 0, &shape, scratch);
    finish_rows(scratch, 0, &shape, &mut job.out[span]);
}

/// Every shared block is read once for the queries of all jobs; then each job goes on with its own keys.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn attend_forked(jobs: &mut [AttentionJob<'_>], n_shared: usize, scratch: &mut Scratch) {
    let Some(first) = jobs.first() else { return };
    let (group, shape) = (first.group, TileShape::new(first));
    let n_row = jobs.len() * group;
    prepare(scratch, n_row, &shape);
    for (job, q) in jobs.iter().zip(scratch.q.chunks_exact_mut(group * shape.n_in)) {
        round_queries(job.q, &shape, q);
    }
    for start in (0..n_shared).step_by(KEY_BLOCK) {
        if start + KEY_BLOCK < n_shared {
            first.kv.prefetch(start + KEY_BLOCK, KEY_BLOCK);
        }
        read_block(first.kv, start, KEY_BLOCK, &shape, scratch);
        attend_block(scratch, &shape, KEY_BLOCK, 0..n_row, |_| u64::MAX);
    }
    for (index, job) in jobs.iter_mut().enumerate() {
        let tile = QueryTile::new(job, 0, 1);
        attend_keys(job, &tile, n_shared, index * group, &shape, scratch);
        finish_rows(scratch, index * group, &shape, job.out);
    }
}

/// The tile's queries, which are the rows from `first_row` on, against its key blocks from `first_key` on.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn attend_keys(
    job: &AttentionJob<'_>,
    tile: &QueryTile,
    first_key: usize,
    first_row: usize,
    shape: &TileShape,
    scratch: &mut Scratch,
) {
    let group = job.group;
    let mut blocks = tile.blocks().skip_while(|block| block.start < first_key).peekable();
    while let Some(block) = blocks.next() {
        if let Some(next) = blocks.peek() {
            job.kv.prefetch(next.start, next.n_key);
        }
        let n_decoded = block.n_key * shape.head_dim;
        read_block(job.kv, block.start, block.n_key, shape, scratch);
        let whole = tile.sees_all(&block);
        if whole || all_finite(&scratch.v[..n_decoded]) {
            let rows = first_row + block.positions.start * group..first_row + block.positions.end * group;
            let mask = |row| if whole { u64::MAX } else { tile.mask(&block, (row - first_row) / group) };
            attend_block(scratch, shape, block.n_key, rows, mask);
            continue;
        }
        unpack_keys(scratch);
        for position in block.positions.clone() {
            let mask = tile.mask(&block, position);
            let seen = without_hidden(&scratch.v[..n_decoded], shape.head_dim, mask);
            unpack_values(&seen, shape, &mut scratch.v_lines);
            for row in first_row + position * group..first_row + (position + 1) * group {
                attend_rows(scratch, shape, row..row + 1, &[mask; BLOCK_ROWS], Operands::Unpacked);
            }
        }
    }
}

/// Decodes a block and lays its keys out in pairs.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn read_block(kv: &dyn KvRows, start: usize, n_key: usize, shape: &TileShape, scratch: &mut Scratch) {
    let n_decoded = n_key * shape.head_dim;
    kv.decode_bf16(start, n_key, &mut scratch.k[..n_decoded], &mut scratch.v[..n_decoded]);
    pack_keys(&scratch.k[..n_decoded], shape.head_dim, shape.n_in / 2, &mut scratch.k_pairs);
}

/// A block that was read, for a run of rows; values of keys that a row does not see are finite.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn attend_block(
    scratch: &mut Scratch,
    shape: &TileShape,
    n_key: usize,
    rows: Range<usize>,
    mask: impl Fn(usize) -> u64,
) {
    let n_decoded = n_key * shape.head_dim;
    let operands = if rows.len() <= BLOCK_ROWS { Operands::Packed } else { Operands::Unpacked };
    match operands {
        Operands::Packed => scratch.v[n_decoded..].fill(0),
        Operands::Unpacked => {
            unpack_keys(scratch);
            unpack_values(&scratch.v[..n_decoded], shape, &mut scratch.v_lines);
        }
    }
    for first in rows.clone().step_by(BLOCK_ROWS) {
        let rows = first..rows.end.min(first + BLOCK_ROWS);
        let mut masks = [0; BLOCK_ROWS];
        masks.iter_mut().zip(rows.clone()).for_each(|(of_row, row)| *of_row = mask(row));
        attend_rows(scratch, shape, rows, &masks, operands);
    }
}

/// Queries `[row][head_dim]`, rounded, into `[row][n_in]`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn round_queries(q: &[f32], shape: &TileShape, rounded: &mut [f32]) {
    for (q, rounded) in q.chunks_exact(shape.head_dim).zip(rounded.chunks_exact_mut(shape.n_in)) {
        round_row(q, rounded);
    }
}

/// Divides the rows from `first_row` on by their weights: out `[row][head_dim]`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn finish_rows(scratch: &Scratch, first_row: usize, shape: &TileShape, out: &mut [f32]) {
    for (out, row) in out.chunks_exact_mut(shape.head_dim).zip(first_row..) {
        finish_row(&scratch.states[row], &scratch.out[row * shape.n_dim_tile..][..shape.n_dim_tile], out);
    }
}

/// Resets sums and states.
fn prepare(scratch: &mut Scratch, n_row: usize, shape: &TileShape) {
    scratch.q.resize(n_row * shape.n_in, 0.0);
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
