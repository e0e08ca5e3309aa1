//! Flash-style attention on `vdpbf16ps`: scores, weights and sums of a row block stay in registers.
//!
//! Per key block K is transposed into the layout of a weight (keys are the columns) and V is interleaved by pairs of keys, once
//! for all rows of the query tile. A row that sees no key of a block is not touched at all, so its state depends only on
//! the blocks it sees. Scores are f32; weights are `2^(s·scale·log2 e − max)`; their sum is taken in f32 before they are rounded
//! to BF16 for the product with V.
#![expect(unsafe_code, reason = "vector loads and stores, and calls of functions that a token proves to be executable")]

use std::arch::x86_64::*;
use std::cell::Cell;
use std::ops::Range;

use super::Avx512;
use super::avx512::{BLOCK_ROWS, BLOCK_TILES, dot_block, load, round_pairs, round_row, store, store_some};
use crate::engine::kernels::geometry::{KeyBlock, QueryTile, n_position, positions_per_task};
use crate::engine::kernels::portable::EXP2_TAYLOR;
use crate::engine::kernels::{AttentionJob, KEY_BLOCK, TILE_OUT, TileLine};

/// BF16 pairs of a row of weights.
pub(super) const KEY_PAIRS: usize = KEY_BLOCK / 2;

/// Weight tiles of a key block; the scores of a row fill exactly the tiles of one register block.
pub(super) const KEY_TILES: usize = KEY_BLOCK / TILE_OUT;
const _: () = assert!(KEY_TILES == BLOCK_TILES);

thread_local! {
    /// Kept from call to call because fresh memory costs page faults.
    static SCRATCH: Cell<Scratch> = const { Cell::new(Scratch::EMPTY) };
}

/// Working memory of one query tile.
pub(super) struct Scratch {
    /// Queries `[row][pair]`.
    pub(super) q: Vec<u32>,
    /// Decoded block `[key][head_dim]`.
    pub(super) k: Vec<u16>,
    /// Decoded block `[key][head_dim]`.
    pub(super) v: Vec<u16>,
    /// K as a weight `[KEY_TILES][pair]`.
    pub(super) k_lines: Vec<TileLine>,
    /// V as a weight `[dim tile][KEY_PAIRS]`.
    pub(super) v_lines: Vec<TileLine>,
    /// Weighted sums of values `[row][dim tile]`.
    pub(super) out: Vec<[f32; TILE_OUT]>,
    /// Softmax state per row.
    pub(super) states: Vec<RowState>,
}

impl Scratch {
    pub(super) const EMPTY: Scratch = Scratch {
        q: Vec::new(),
        k: Vec::new(),
        v: Vec::new(),
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

/// Online-softmax state of one query row.
#[derive(Clone, Copy)]
pub(super) struct RowState {
    /// Largest scaled score so far.
    pub(super) max: f32,
    /// Sum of weights in 16 lanes: lane i holds keys i, i + 16, … of every block.
    pub(super) sums: [f32; TILE_OUT],
}

impl RowState {
    pub(super) const NEW: RowState = RowState { max: f32::NEG_INFINITY, sums: [0.0; TILE_OUT] };
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

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
fn attend_tile(job: &mut AttentionJob<'_>, tile: &QueryTile, first: usize, scratch: &mut Scratch) {
    let (group, head_dim) = (job.group, job.head_dim);
    let n_row = tile.n_position * group;
    let span = first * group * head_dim..(first * group + n_row) * head_dim;
    let n_pair = head_dim.div_ceil(2);
    prepare(scratch, &job.q[span.clone()], head_dim, n_pair);
    let shape =
        TileShape { n_pair, n_dim_tile: head_dim.div_ceil(TILE_OUT), scale: job.scale * std::f32::consts::LOG2_E };
    for block in tile.blocks() {
        decode_block(job, &block, scratch);
        pack_keys(&scratch.k[..block.n_key * head_dim], head_dim, n_pair, &mut scratch.k_lines);
        let whole = block.positions.clone().all(|position| tile.mask(&block, position) == u64::MAX);
        if whole || all_finite(&scratch.v[..block.n_key * head_dim]) {
            pack_values(&scratch.v[..block.n_key * head_dim], head_dim, &mut scratch.v_lines);
            attend_rows(scratch, &shape, block.positions.start * group..block.positions.end * group, |row| {
                tile.mask(&block, row / group)
            });
            continue;
        }
        // 0 · NaN is NaN: a value that some queries must not see would reach them through a weight of 0.
        for position in block.positions.clone() {
            let mask = tile.mask(&block, position);
            hide_values(&scratch.v[..block.n_key * head_dim], head_dim, mask, &mut scratch.v_lines);
            attend_rows(scratch, &shape, position * group..(position + 1) * group, |_| mask);
        }
    }
    for (row, out) in job.out[span].chunks_exact_mut(head_dim).enumerate() {
        finish_row(&scratch.states[row], &scratch.out[row * shape.n_dim_tile..][..shape.n_dim_tile], out);
    }
}

/// Sizes that all row blocks of a query tile share.
struct TileShape {
    n_pair: usize,
    n_dim_tile: usize,
    /// Softmax scale times log2 e.
    scale: f32,
}

/// Rounds the queries and resets sums and states.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(super) fn prepare(scratch: &mut Scratch, q: &[f32], head_dim: usize, n_pair: usize) {
    let n_row = q.len() / head_dim;
    let n_dim_tile = head_dim.div_ceil(TILE_OUT);
    scratch.q.resize(n_row * n_pair, 0);
    for (q, pairs) in q.chunks_exact(head_dim).zip(scratch.q.chunks_exact_mut(n_pair)) {
        round_row(q, pairs);
    }
    scratch.states.clear();
    scratch.states.resize(n_row, RowState::NEW);
    scratch.out.clear();
    scratch.out.resize(n_row * n_dim_tile, [0.0; TILE_OUT]);
    scratch.k.resize(KEY_BLOCK * head_dim, 0);
    scratch.v.resize(KEY_BLOCK * head_dim, 0);
    scratch.k_lines.resize(KEY_TILES * n_pair, TileLine::ZERO);
    scratch.v_lines.resize(n_dim_tile * KEY_PAIRS, TileLine::ZERO);
}

/// Reads the block's keys and values out of the cache.
pub(super) fn decode_block(job: &AttentionJob<'_>, block: &KeyBlock, scratch: &mut Scratch) {
    let n = block.n_key * job.head_dim;
    job.kv.decode_bf16(block.start, block.n_key, &mut scratch.k[..n], &mut scratch.v[..n]);
}

/// Whether no BF16 value is infinite or NaN.
pub(super) fn all_finite(values: &[u16]) -> bool {
    values.iter().fold(true, |finite, bits| finite & (bits & 0x7F80 != 0x7F80))
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
fn attend_rows(scratch: &mut Scratch, shape: &TileShape, rows: Range<usize>, mask: impl Fn(usize) -> u64) {
    let &TileShape { n_pair, n_dim_tile, scale } = shape;
    for first in rows.clone().step_by(BLOCK_ROWS) {
        let n_row = BLOCK_ROWS.min(rows.end - first);
        let mut scores = [[_mm512_setzero_ps(); BLOCK_TILES]; BLOCK_ROWS];
        dot_block(
            &scratch.q[first * n_pair..][..n_row * n_pair],
            n_row,
            &scratch.k_lines,
            KEY_TILES,
            n_pair,
            &mut scores,
        );
        let mut weights = [0; BLOCK_ROWS * KEY_PAIRS];
        let mut corrections = [0.0; BLOCK_ROWS];
        for row in 0..n_row {
            let pairs = weights[row * KEY_PAIRS..].first_chunk_mut().expect("one row of weights per row");
            corrections[row] = weigh(scores[row], mask(first + row), scale, &mut scratch.states[first + row], pairs);
        }
        for dim_tile in (0..n_dim_tile).step_by(BLOCK_TILES) {
            let n_tile = BLOCK_TILES.min(n_dim_tile - dim_tile);
            let mut sums = [[_mm512_setzero_ps(); BLOCK_TILES]; BLOCK_ROWS];
            for (row, sums) in sums[..n_row].iter_mut().enumerate() {
                let out = &scratch.out[(first + row) * n_dim_tile + dim_tile..][..n_tile];
                for (sum, out) in sums.iter_mut().zip(out) {
                    *sum = _mm512_mul_ps(load(out), _mm512_set1_ps(corrections[row]));
                }
            }
            let v_lines = &scratch.v_lines[dim_tile * KEY_PAIRS..][..n_tile * KEY_PAIRS];
            dot_block(&weights, n_row, v_lines, n_tile, KEY_PAIRS, &mut sums);
            for (row, sums) in sums[..n_row].iter().enumerate() {
                let out = &mut scratch.out[(first + row) * n_dim_tile + dim_tile..][..n_tile];
                out.iter_mut().zip(sums).for_each(|(out, sum)| store(out, *sum));
            }
        }
    }
}

/// Turns the raw scores of one row (not all of them masked) into BF16 weights `[KEY_PAIRS]` relative to the new maximum;
/// returns the factor by which what the row has summed so far must shrink.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(super) fn weigh(
    scores: [__m512; KEY_TILES],
    mask: u64,
    scale: f32,
    state: &mut RowState,
    pairs: &mut [u32; KEY_PAIRS],
) -> f32 {
    let masks: [__mmask16; KEY_TILES] = std::array::from_fn(|tile| (mask >> (tile * TILE_OUT)) as u16);
    let lowest = _mm512_set1_ps(f32::NEG_INFINITY);
    let seen: [__m512; KEY_TILES] = std::array::from_fn(|tile| _mm512_mask_mov_ps(lowest, masks[tile], scores[tile]));
    let block_max = max_of_lanes(_mm512_max_ps(_mm512_max_ps(seen[0], seen[1]), _mm512_max_ps(seen[2], seen[3])));
    let scales = _mm512_set1_ps(scale);
    let max = _mm512_max_ps(_mm512_mul_ps(block_max, scales), _mm512_set1_ps(state.max));
    let weights: [__m512; KEY_TILES] =
        std::array::from_fn(|tile| exp2(_mm512_fmsub_ps(scores[tile], scales, max), masks[tile]));
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
    let (low, high) = pairs.split_at_mut(TILE_OUT);
    low.copy_from_slice(&round_pairs(weights[0], weights[1]));
    high.copy_from_slice(&round_pairs(weights[2], weights[3]));
    correction
}

/// 2^x for x ≤ 0 in the lanes of `mask`, 0 elsewhere; results under 2⁻¹²⁶ are 0, NaN stays NaN, 2⁰ is exactly 1.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
fn exp2(x: __m512, mask: __mmask16) -> __m512 {
    let whole = _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x);
    let rest = _mm512_sub_ps(x, whole);
    let mut power = _mm512_set1_ps(EXP2_TAYLOR[0]);
    for coefficient in &EXP2_TAYLOR[1..] {
        power = _mm512_fmadd_ps(power, rest, _mm512_set1_ps(*coefficient));
    }
    let representable = _mm512_mask_cmp_ps_mask::<_CMP_NLT_UQ>(mask, x, _mm512_set1_ps(-126.0));
    _mm512_maskz_scalef_ps(representable, power, whole)
}

/// The largest lane, in every lane.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
fn max_of_lanes(x: __m512) -> __m512 {
    let x = _mm512_max_ps(x, _mm512_shuffle_f32x4::<0b01_00_11_10>(x, x));
    let x = _mm512_max_ps(x, _mm512_shuffle_f32x4::<0b10_11_00_01>(x, x));
    let x = _mm512_max_ps(x, _mm512_permute_ps::<0b01_00_11_10>(x));
    _mm512_max_ps(x, _mm512_permute_ps::<0b10_11_00_01>(x))
}

/// Divides the sums by the total weight.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(super) fn finish_row(state: &RowState, sums: &[[f32; TILE_OUT]], out: &mut [f32]) {
    let total = _mm512_set1_ps(state.sums.iter().sum());
    for (out, sums) in out.chunks_mut(TILE_OUT).zip(sums) {
        store_some(out, _mm512_div_ps(load(sums), total));
    }
}

/// K `[n_key, head_dim]` → `[KEY_TILES][n_pair]` lines with the keys as columns; keys and pairs beyond are zero.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
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
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(super) fn pack_values(v: &[u16], head_dim: usize, lines: &mut [TileLine]) {
    let row = |key: usize| v.get(key * head_dim..(key + 1) * head_dim).unwrap_or_default();
    for pair in 0..KEY_PAIRS {
        let (even, odd) = (row(2 * pair), row(2 * pair + 1));
        for (tile, lines) in lines.chunks_exact_mut(KEY_PAIRS).enumerate() {
            let part = |row: &[u16]| widen(row.get(tile * TILE_OUT..).unwrap_or_default());
            let pairs = _mm512_or_si512(part(even), _mm512_slli_epi32::<16>(part(odd)));
            store_line(&mut lines[pair], pairs);
        }
    }
}

/// [`pack_values`] with zeros for the keys that are not in `mask`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(super) fn hide_values(v: &[u16], head_dim: usize, mask: u64, lines: &mut [TileLine]) {
    let mut seen = v.to_vec();
    for (key, row) in seen.chunks_exact_mut(head_dim).enumerate() {
        if mask >> key & 1 == 0 {
            row.fill(0);
        }
    }
    pack_values(&seen, head_dim, lines);
}

/// Up to 32 values; the lanes beyond are zero.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
fn load_some(values: &[u16]) -> __m512i {
    let mask = u32::MAX.checked_shr(32 - values.len().min(32) as u32).unwrap_or(0);
    // SAFETY: the mask selects at most `values.len()` lanes, and lanes that are not selected are not read.
    unsafe { _mm512_maskz_loadu_epi16(mask, values.as_ptr().cast()) }
}

/// Up to 16 values, each in the lower half of its lane; the lanes beyond are zero.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
fn widen(values: &[u16]) -> __m512i {
    let mask = (u32::from(u16::MAX) >> (16 - values.len().min(16) as u32)) as u16;
    // SAFETY: the mask selects at most `values.len()` lanes, and lanes that are not selected are not read.
    _mm512_cvtepu16_epi32(unsafe { _mm256_maskz_loadu_epi16(mask, values.as_ptr().cast()) })
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
fn store_line(line: &mut TileLine, register: __m512i) {
    // SAFETY: a line is 64 writable bytes, aligned to 64.
    unsafe { _mm512_store_si512(line.0.as_mut_ptr().cast(), register) }
}

/// Transposes 16 × 16 lanes of 32 bits: pairs of rows, then of pairs, then quarters of registers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
fn transpose(rows: [__m512i; 16]) -> [__m512i; 16] {
    let mut pairs = rows;
    for i in (0..16).step_by(2) {
        pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    // quads[4g + c]: column c of each quarter, for rows 4g..4g + 4.
    let mut quads = pairs;
    for g in (0..16).step_by(4) {
        quads[g] = _mm512_unpacklo_epi64(pairs[g], pairs[g + 2]);
        quads[g + 1] = _mm512_unpackhi_epi64(pairs[g], pairs[g + 2]);
        quads[g + 2] = _mm512_unpacklo_epi64(pairs[g + 1], pairs[g + 3]);
        quads[g + 3] = _mm512_unpackhi_epi64(pairs[g + 1], pairs[g + 3]);
    }
    let mut columns = rows;
    for c in 0..4 {
        let low = _mm512_shuffle_i32x4::<0b10_00_10_00>(quads[c], quads[4 + c]);
        let high = _mm512_shuffle_i32x4::<0b11_01_11_01>(quads[c], quads[4 + c]);
        let low2 = _mm512_shuffle_i32x4::<0b10_00_10_00>(quads[8 + c], quads[12 + c]);
        let high2 = _mm512_shuffle_i32x4::<0b11_01_11_01>(quads[8 + c], quads[12 + c]);
        columns[c] = _mm512_shuffle_i32x4::<0b10_00_10_00>(low, low2);
        columns[8 + c] = _mm512_shuffle_i32x4::<0b11_01_11_01>(low, low2);
        columns[4 + c] = _mm512_shuffle_i32x4::<0b10_00_10_00>(high, high2);
        columns[12 + c] = _mm512_shuffle_i32x4::<0b11_01_11_01>(high, high2);
    }
    columns
}
