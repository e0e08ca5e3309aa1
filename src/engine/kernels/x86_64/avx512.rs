//! BF16 operands, f32 products and sums by fused multiply-add on 16 lanes.
//!
//! Why not `vdpbf16ps`: on Intel cores up to Emerald Rapids it starts every second cycle, while two f32 multiply-adds start
//! in each, so unpacking BF16 in registers is twice as fast (measured: 172 against 84 GFLOP/s per core) and needs no BF16
//! instructions. A product of two BF16 values is exact in f32.
//!
//! Every sum runs over the inputs in ascending order in a single accumulator, whatever the register block, so the block
//! sizes below are free to differ between prefill and decode.
#![expect(unsafe_code, reason = "calls of functions that a token proves to be executable")]

use std::arch::x86_64::*;
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

use super::lanes::{first_of_pairs, load, load_line, round, second_of_pairs, store, store_some};
use super::{Avx512, avx512_attention};
use crate::engine::kernels::{AttentionJob, Kernel, KernelEntry, PackedMatrix, TILE_OUT, TileLine};

/// Skylake-X, Ice Lake, Zen 4 and later.
pub(in crate::engine::kernels) const ENTRY: KernelEntry = KernelEntry { name: NAME, probe };

const NAME: &str = "x86_64-bf16-avx512";

/// Rows of the register block: 24 accumulators with 2 tiles, and room for their unpacked weights.
const BLOCK_ROWS: usize = 12;

/// Up to this many rows the block is [`WIDE_TILES`] wide instead, or two accumulators per row would wait for themselves.
const FEW_ROWS: usize = 2;

/// Tiles of the register block for few rows.
const WIDE_TILES: usize = 8;

/// Rows rounded to BF16 at a time: bounds the scratch memory and keeps it in L2.
const CHUNK_ROWS: usize = 192;

thread_local! {
    /// Rounded input rows, kept from call to call because fresh memory costs page faults.
    static INPUT: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

fn probe() -> Result<Arc<dyn Kernel>, &'static str> {
    let token = Avx512::detect().ok_or("this CPU has no AVX-512 F, BW, VL and DQ")?;
    Ok(Arc::new(Avx512Kernel(token)))
}

struct Avx512Kernel(Avx512);

impl Kernel for Avx512Kernel {
    fn name(&self) -> &'static str {
        NAME
    }

    fn gemm(&self, x: &[f32], n_row: usize, w: &PackedMatrix, tiles: Range<usize>, y: &mut [f32]) {
        let n_column = w.n_column(&tiles);
        assert_eq!(x.len(), n_row * w.n_in, "x [n_row, n_in]");
        assert_eq!(y.len(), n_row * n_column, "y [n_row, n_column]");
        if x.is_empty() || y.is_empty() {
            y.fill(0.0);
            return;
        }
        let Avx512 { .. } = self.0;
        let mut input = INPUT.take();
        for (x, y) in x.chunks(CHUNK_ROWS * w.n_in).zip(y.chunks_mut(CHUNK_ROWS * n_column)) {
            // SAFETY: `self` holds an `Avx512`, so `detect` saw the features that `gemm` enables.
            unsafe { gemm(x, w, tiles.clone(), y, &mut input) }
        }
        INPUT.set(input);
    }

    fn attend(&self, job: &mut AttentionJob<'_>) {
        avx512_attention::attend(self.0, job);
    }

    fn attend_forks(&self, jobs: &mut [AttentionJob<'_>], n_shared: usize) {
        avx512_attention::attend_forks(self.0, jobs, n_shared);
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn gemm(x: &[f32], w: &PackedMatrix, tiles: Range<usize>, y: &mut [f32], input: &mut Vec<f32>) {
    // Rows are padded like the weights; the padding multiplies weights that are zero.
    let n_in = w.n_in_padded;
    let (n_row, n_column) = (x.len() / w.n_in, w.n_column(&tiles));
    input.resize(n_row * n_in, 0.0);
    for (row, rounded) in x.chunks_exact(w.n_in).zip(input.chunks_exact_mut(n_in)) {
        round_row(row, rounded);
    }
    let first_tile = tiles.start;
    let block_tiles = if n_row <= FEW_ROWS { WIDE_TILES } else { 2 };
    for tile in tiles.clone().step_by(block_tiles) {
        let n_tile = block_tiles.min(tiles.end - tile);
        let w = w.tiles(&(tile..tile + n_tile));
        let column = (tile - first_tile) * TILE_OUT;
        for (x, y) in input.chunks(BLOCK_ROWS * n_in).zip(y.chunks_mut(BLOCK_ROWS * n_column)) {
            dot_block(x, x.len() / n_in, w, n_tile, y, n_column, column);
        }
    }
}

/// One register block: x `[n_row, n_in]` · w `[n_tile][n_in/2]` → columns from `column` of y `[n_row, n_column]`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn dot_block(x: &[f32], n_row: usize, w: &[TileLine], n_tile: usize, y: &mut [f32], n_column: usize, column: usize) {
    macro_rules! by_size {
        ($($rows:literal: $($tiles:literal)*;)*) => {
            match (n_row, n_tile) {
                $($(($rows, $tiles) => dot::<$rows, $tiles>(x, w, y, n_column, column),)*)*
                _ => unreachable!("{n_row} rows and {n_tile} tiles are no register block"),
            }
        };
    }
    by_size!(
        1: 1 2 3 4 5 6 7 8; 2: 1 2 3 4 5 6 7 8; 3: 1 2; 4: 1 2; 5: 1 2; 6: 1 2; 7: 1 2; 8: 1 2; 9: 1 2; 10: 1 2; 11: 1 2; 12: 1 2;
    );
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn dot<const ROWS: usize, const TILES: usize>(
    x: &[f32],
    w: &[TileLine],
    y: &mut [f32],
    n_column: usize,
    column: usize,
) {
    let n_pair = w.len() / TILES;
    let mut rows: [&[[f32; 2]]; ROWS] = [&[]; ROWS];
    for row in 0..ROWS {
        rows[row] = &x[row * 2 * n_pair..][..2 * n_pair].as_chunks().0[..n_pair];
    }
    let mut columns: [&[TileLine]; TILES] = [&[]; TILES];
    for tile in 0..TILES {
        columns[tile] = &w[tile * n_pair..][..n_pair];
    }
    let mut sums = [[_mm512_setzero_ps(); TILES]; ROWS];
    for pair in 0..n_pair {
        let mut weights = [[_mm512_setzero_ps(); TILES]; 2];
        for tile in 0..TILES {
            let pairs = load_line(&columns[tile][pair]);
            weights[0][tile] = first_of_pairs(pairs);
            weights[1][tile] = second_of_pairs(pairs);
        }
        for row in 0..ROWS {
            for half in 0..2 {
                let input = _mm512_set1_ps(rows[row][pair][half]);
                for tile in 0..TILES {
                    sums[row][tile] = _mm512_fmadd_ps(input, weights[half][tile], sums[row][tile]);
                }
            }
        }
    }
    for (y, sums) in y.chunks_exact_mut(n_column).zip(&sums) {
        for (y, sum) in y[column..].chunks_mut(TILE_OUT).zip(sums) {
            store_some(y, *sum);
        }
    }
}

/// Rounds a row to values that BF16 holds; what `rounded` has beyond the row becomes zero.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn round_row(row: &[f32], rounded: &mut [f32]) {
    let (whole, rest) = row.as_chunks::<16>();
    let (done, left) = rounded.split_at_mut(whole.len() * 16);
    for (values, rounded) in whole.iter().zip(done.as_chunks_mut::<16>().0) {
        store(rounded, round(load(values)));
    }
    left.fill(0.0);
    if !rest.is_empty() {
        let mut values = [0.0; 16];
        values[..rest.len()].copy_from_slice(rest);
        store_some(&mut left[..rest.len()], round(load(&values)));
    }
}
