//! Flash-style attention with both products on the AMX unit and the softmax on AVX-512.
//!
//! Query rows are cut into fixed blocks of 16. A row that sees no key of a block keeps its state bit for bit: its sums are not
//! copied back from the unit.
#![expect(unsafe_code, reason = "calls of functions that a token proves to be executable")]

use std::cell::Cell;

use super::Avx512;
use super::amx::TILE_PAIRS;
use super::key_block::{
    KEY_PAIRS, KEY_TILES, RowState, all_finite, finish_row, pack_keys, pack_values, weigh, without_hidden,
};
use super::lanes::{load, pairs_of_rounded, store_line};
use super::tiles::{Sums, TILE_ROWS, TileOps, TileUnit};
use crate::engine::kernels::geometry::{KeyBlock, QueryTile, n_position, positions_per_task};
use crate::engine::kernels::{AttentionJob, KEY_BLOCK, KvRows, TILE_OUT, TileLine};

/// Left operands of a row block's weights: 64 keys are two tiles of 32.
const WEIGHT_TILES: usize = KEY_PAIRS / TILE_PAIRS;

thread_local! {
    /// Kept from call to call because fresh memory costs page faults.
    static SCRATCH: Cell<Scratch> = const { Cell::new(Scratch::EMPTY) };
}

/// Working memory of one query tile.
struct Scratch {
    /// Rounded queries `[row block][dim block of 32][16 rows]`.
    q: Vec<TileLine>,
    /// Decoded block `[key][head_dim]`.
    k: Vec<u16>,
    /// Decoded block `[key][head_dim]`.
    v: Vec<u16>,
    /// K as a right operand `[key tile][pair of dimensions]`.
    k_lines: Vec<TileLine>,
    /// V as a right operand `[dim tile][pair of keys]`.
    v_lines: Vec<TileLine>,
    /// Weighted sums of values `[row block][dim tile]`.
    out: Vec<Sums>,
    /// Softmax state per row.
    states: Vec<RowState>,
}

impl Scratch {
    const EMPTY: Scratch = Scratch {
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

/// Sizes that all row blocks of a query tile share.
struct TileShape {
    head_dim: usize,
    /// Blocks of 32 dimensions.
    n_block: usize,
    n_dim_tile: usize,
    /// Softmax scale times log2 e.
    scale: f32,
}

impl TileShape {
    fn new(job: &AttentionJob<'_>) -> TileShape {
        TileShape {
            head_dim: job.head_dim,
            n_block: job.head_dim.div_ceil(2 * TILE_PAIRS),
            n_dim_tile: job.head_dim.div_ceil(TILE_OUT),
            scale: job.scale * std::f32::consts::LOG2_E,
        }
    }
}

/// Attention of one job on the tile registers of `unit`.
pub(super) fn attend(unit: impl TileUnit, vectors: Avx512, job: &mut AttentionJob<'_>) {
    let n_position = n_position(job);
    let step = positions_per_task(job.group);
    let mut scratch = SCRATCH.take();
    let mut registers = unit.open();
    for first in (0..n_position).step_by(step) {
        let tile = QueryTile::new(job, first, step.min(n_position - first));
        attend_tile(&mut registers, vectors, job, &tile, first, &mut scratch);
    }
    drop(registers);
    SCRATCH.set(scratch);
}

/// Attention of jobs of one position each, whose first `n_shared` keys are one and the same: every shared block is read once
/// for the queries of all jobs, then each job goes on with its own keys.
pub(super) fn attend_forks(unit: impl TileUnit, vectors: Avx512, jobs: &mut [AttentionJob<'_>], n_shared: usize) {
    let Some(first) = jobs.first() else { return };
    let (group, shape) = (first.group, TileShape::new(first));
    let n_row = jobs.len() * group;
    let q: Vec<f32> = jobs.iter().flat_map(|job| job.q).copied().collect();
    let mut scratch = SCRATCH.take();
    let mut registers = unit.open();
    vectors.round_to_tiles(&q, shape.head_dim, shape.n_block, &mut scratch.q);
    prepare(&mut scratch, n_row, &shape);
    for start in (0..n_shared).step_by(KEY_BLOCK) {
        if start + KEY_BLOCK < n_shared {
            first.kv.prefetch(start + KEY_BLOCK, KEY_BLOCK);
        }
        read_block(vectors, first.kv, start, KEY_BLOCK, &shape, &mut scratch);
        vectors.values_to_tiles(&scratch.v, shape.head_dim, &mut scratch.v_lines);
        let mask = |row| if row < n_row { u64::MAX } else { 0 };
        attend_blocks(&mut registers, vectors, &mut scratch, &shape, mask);
    }
    for (index, job) in jobs.iter_mut().enumerate() {
        let tile = QueryTile::new(job, 0, 1);
        let start = Start { key: n_shared, row: index * group };
        attend_keys(&mut registers, vectors, job, &tile, &start, &shape, &mut scratch);
        finish_rows(vectors, &scratch, start.row, &shape, job.out);
    }
    drop(registers);
    SCRATCH.set(scratch);
}

fn attend_tile(
    registers: &mut impl TileOps,
    vectors: Avx512,
    job: &mut AttentionJob<'_>,
    tile: &QueryTile,
    first: usize,
    scratch: &mut Scratch,
) {
    let (group, head_dim) = (job.group, job.head_dim);
    let n_row = tile.n_position * group;
    let span = first * group * head_dim..(first * group + n_row) * head_dim;
    let shape = TileShape::new(job);
    vectors.round_to_tiles(&job.q[span.clone()], head_dim, shape.n_block, &mut scratch.q);
    prepare(scratch, n_row, &shape);
    attend_keys(registers, vectors, job, tile, &Start { key: 0, row: 0 }, &shape, scratch);
    finish_rows(vectors, scratch, 0, &shape, &mut job.out[span]);
}

/// Where a query tile begins.
struct Start {
    /// Its first key; those before are done.
    key: usize,
    /// The row of its first query.
    row: usize,
}

/// The queries of a tile against its key blocks.
fn attend_keys(
    registers: &mut impl TileOps,
    vectors: Avx512,
    job: &AttentionJob<'_>,
    tile: &QueryTile,
    start: &Start,
    shape: &TileShape,
    scratch: &mut Scratch,
) {
    let head_dim = shape.head_dim;
    let position_of = |row: usize| row.checked_sub(start.row).map(|row| row / job.group);
    let mut blocks = tile.blocks().skip_while(|block| block.start < start.key).peekable();
    while let Some(block) = blocks.next() {
        if let Some(next) = blocks.peek() {
            job.kv.prefetch(next.start, next.n_key);
        }
        let n_decoded = block.n_key * head_dim;
        read_block(vectors, job.kv, block.start, block.n_key, shape, scratch);
        if tile.sees_all(&block) || all_finite(&scratch.v[..n_decoded]) {
            vectors.values_to_tiles(&scratch.v[..n_decoded], head_dim, &mut scratch.v_lines);
            let mask = |row| position_of(row).map_or(0, |position| row_mask(tile, &block, position));
            attend_blocks(registers, vectors, scratch, shape, mask);
            continue;
        }
        for position in block.positions.clone() {
            let mask = tile.mask(&block, position);
            let seen = without_hidden(&scratch.v[..n_decoded], head_dim, mask);
            vectors.values_to_tiles(&seen, head_dim, &mut scratch.v_lines);
            let mask = |row| if position_of(row) == Some(position) { mask } else { 0 };
            attend_blocks(registers, vectors, scratch, shape, mask);
        }
    }
}

/// Decodes a block and lays its keys out in tiles.
fn read_block(vectors: Avx512, kv: &dyn KvRows, start: usize, n_key: usize, shape: &TileShape, scratch: &mut Scratch) {
    let n_decoded = n_key * shape.head_dim;
    kv.decode_bf16(start, n_key, &mut scratch.k[..n_decoded], &mut scratch.v[..n_decoded]);
    vectors.keys_to_tiles(&scratch.k[..n_decoded], shape.head_dim, &mut scratch.k_lines);
}

/// Divides the rows from `first_row` on by their weights: out `[row][head_dim]`.
fn finish_rows(vectors: Avx512, scratch: &Scratch, first_row: usize, shape: &TileShape, out: &mut [f32]) {
    for (out, row) in out.chunks_exact_mut(shape.head_dim).zip(first_row..) {
        let sums = &scratch.out[row / TILE_ROWS * shape.n_dim_tile..][..shape.n_dim_tile];
        for (out, sums) in out.chunks_mut(TILE_OUT).zip(sums) {
            vectors.finish_row(&scratch.states[row], &sums.0[row % TILE_ROWS], out);
        }
    }
}

/// Mask of a position that may lie outside the tile (a padding row) or outside the block.
fn row_mask(tile: &QueryTile, block: &KeyBlock, position: usize) -> u64 {
    if block.positions.contains(&position) { tile.mask(block, position) } else { 0 }
}

/// Resets sums and states.
fn prepare(scratch: &mut Scratch, n_row: usize, shape: &TileShape) {
    let n_row = n_row.next_multiple_of(TILE_ROWS);
    scratch.states.clear();
    scratch.states.resize(n_row, RowState::NEW);
    scratch.out.clear();
    scratch.out.resize(n_row / TILE_ROWS * shape.n_dim_tile, Sums::ZERO);
    scratch.k.resize(KEY_BLOCK * shape.head_dim, 0);
    scratch.v.resize(KEY_BLOCK * shape.head_dim, 0);
    scratch.k_lines.resize(KEY_TILES * shape.n_block * TILE_PAIRS, TileLine::ZERO);
    scratch.v_lines.resize(shape.n_dim_tile * KEY_PAIRS, TileLine::ZERO);
}

/// One key block for all row blocks that have a row which sees some of it.
fn attend_blocks(
    registers: &mut impl TileOps,
    vectors: Avx512,
    scratch: &mut Scratch,
    shape: &TileShape,
    mask: impl Fn(usize) -> u64,
) {
    for row_block in 0..scratch.states.len() / TILE_ROWS {
        let masks: [u64; TILE_ROWS] = std::array::from_fn(|row| mask(row_block * TILE_ROWS + row));
        if masks == [0; TILE_ROWS] {
            continue;
        }
        let scores = multiply_scores(registers, scratch, shape, row_block);
        let states = &mut scratch.states[row_block * TILE_ROWS..][..TILE_ROWS];
        let out = &mut scratch.out[row_block * shape.n_dim_tile..][..shape.n_dim_tile];
        let mut weights = [[TileLine::ZERO; TILE_ROWS]; WEIGHT_TILES];
        for row in (0..TILE_ROWS).filter(|row| masks[*row] != 0) {
            let correction = vectors.weigh_row(&scores, row, masks[row], shape.scale, &mut states[row], &mut weights);
            // Most blocks do not raise the maximum, and a factor of 1 changes nothing.
            if correction != 1.0 {
                out.iter_mut().for_each(|sums| sums.0[row].iter_mut().for_each(|sum| *sum *= correction));
            }
        }
        for (out, v_lines) in out.chunks_mut(4).zip(scratch.v_lines.chunks(4 * KEY_PAIRS)) {
            multiply_values(registers, &weights, v_lines, out, &masks);
        }
    }
}

/// Raw scores of 16 rows against the 64 keys of a block `[key tile]`.
fn multiply_scores(
    registers: &mut impl TileOps,
    scratch: &Scratch,
    shape: &TileShape,
    row_block: usize,
) -> [Sums; KEY_TILES] {
    let q = &scratch.q.as_chunks::<TILE_ROWS>().0[row_block * shape.n_block..][..shape.n_block];
    let k = scratch.k_lines.as_chunks::<TILE_PAIRS>().0;
    registers.zero::<0>();
    registers.zero::<1>();
    registers.zero::<2>();
    registers.zero::<3>();
    for (block, q) in q.iter().enumerate() {
        registers.load::<4>(q);
        registers.load::<5>(&k[block]);
        registers.multiply::<0, 4, 5>();
        registers.load::<6>(&k[shape.n_block + block]);
        registers.multiply::<1, 4, 6>();
        registers.load::<7>(&k[2 * shape.n_block + block]);
        registers.multiply::<2, 4, 7>();
        registers.load::<5>(&k[3 * shape.n_block + block]);
        registers.multiply::<3, 4, 5>();
    }
    let mut scores = [Sums::ZERO; KEY_TILES];
    registers.store_sums::<0>(&mut scores[0]);
    registers.store_sums::<1>(&mut scores[1]);
    registers.store_sums::<2>(&mut scores[2]);
    registers.store_sums::<3>(&mut scores[3]);
    scores
}

/// out `[up to 4 dim tiles]` += weights · V, for the rows with a mask.
fn multiply_values(
    registers: &mut impl TileOps,
    weights: &[[TileLine; TILE_ROWS]; WEIGHT_TILES],
    v_lines: &[TileLine],
    out: &mut [Sums],
    masks: &[u64; TILE_ROWS],
) {
    let v = v_lines.as_chunks::<TILE_PAIRS>().0;
    registers.load::<4>(&weights[0]);
    registers.load::<5>(&weights[1]);
    for (tile, out) in out.iter_mut().enumerate() {
        registers.load_sums::<0>(out);
        registers.load::<6>(&v[tile * WEIGHT_TILES]);
        registers.multiply::<0, 4, 6>();
        registers.load::<7>(&v[tile * WEIGHT_TILES + 1]);
        registers.multiply::<0, 5, 7>();
        if masks.contains(&0) {
            let mut sums = Sums::ZERO;
            registers.store_sums::<0>(&mut sums);
            for row in (0..TILE_ROWS).filter(|row| masks[*row] != 0) {
                out.0[row] = sums.0[row];
            }
        } else {
            registers.store_sums::<0>(out);
        }
    }
}

impl Avx512 {
    fn keys_to_tiles(self, k: &[u16], head_dim: usize, lines: &mut [TileLine]) {
        let n_pair = lines.len() / KEY_TILES;
        // SAFETY: `self` exists, so `detect` saw the features that `pack_keys` enables.
        unsafe { pack_keys(k, head_dim, n_pair, lines) }
    }

    fn values_to_tiles(self, v: &[u16], head_dim: usize, lines: &mut [TileLine]) {
        // SAFETY: `self` exists, so `detect` saw the features that `pack_values` enables.
        unsafe { pack_values(v, head_dim, lines) }
    }

    fn finish_row(self, state: &RowState, sums: &[f32; TILE_OUT], out: &mut [f32]) {
        // SAFETY: `self` exists, so `detect` saw the features that `finish_row` enables.
        unsafe { finish_row(state, std::slice::from_ref(sums), out) }
    }

    /// Softmax of one row: writes its line of each weight tile and returns the factor for its earlier sums.
    fn weigh_row(
        self,
        scores: &[Sums; KEY_TILES],
        row: usize,
        mask: u64,
        scale: f32,
        state: &mut RowState,
        weights: &mut [[TileLine; TILE_ROWS]; WEIGHT_TILES],
    ) -> f32 {
        // SAFETY: `self` exists, so `detect` saw the features that `weigh_row` enables.
        unsafe { weigh_row(scores, row, mask, scale, state, weights) }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn weigh_row(
    scores: &[Sums; KEY_TILES],
    row: usize,
    mask: u64,
    scale: f32,
    state: &mut RowState,
    weights: &mut [[TileLine; TILE_ROWS]; WEIGHT_TILES],
) -> f32 {
    let lanes = [load(&scores[0].0[row]), load(&scores[1].0[row]), load(&scores[2].0[row]), load(&scores[3].0[row])];
    let (lanes, correction) = weigh(&lanes, mask, scale, state);
    store_line(&mut weights[0][row], pairs_of_rounded(lanes[0], lanes[1]));
    store_line(&mut weights[1][row], pairs_of_rounded(lanes[2], lanes[3]));
    correction
}
