//! BF16 products with f32 sums by `vdpbf16ps`: one instruction multiplies 16 columns by a pair of inputs.
//!
//! Every sum runs over the input pairs in ascending order in a single accumulator, whatever the register block, so the block
//! sizes below are free to differ between prefill and decode.
#![expect(unsafe_code, reason = "vector loads and stores, and calls of functions that a token proves to be executable")]

use std::arch::x86_64::*;
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

use super::{Avx512, avx512_attention};
use crate::engine::kernels::{AttentionJob, Kernel, KernelEntry, PackedMatrix, TILE_OUT, TileLine};

/// Cooper Lake, Sapphire Rapids, Zen 4 and later.
pub(in crate::engine::kernels) const ENTRY: KernelEntry = KernelEntry { name: NAME, probe };

const NAME: &str = "x86_64-bf16-avx512";

/// Rows and tiles of the register block: 24 accumulators leave room for 4 weight registers and a broadcast input.
pub(super) const BLOCK_ROWS: usize = 6;
/// See [`BLOCK_ROWS`].
pub(super) const BLOCK_TILES: usize = 4;

/// Rows rounded to BF16 at a time: bounds the scratch memory and keeps it in L2.
const CHUNK_ROWS: usize = 192;

thread_local! {
    /// BF16 input rows, kept from call to call because fresh memory costs page faults.
    static INPUT: Cell<Vec<u32>> = const { Cell::new(Vec::new()) };
}

fn probe() -> Result<Arc<dyn Kernel>, &'static str> {
    let token = Avx512::detect().ok_or("this CPU has no AVX-512 with BF16 products")?;
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
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
fn gemm(x: &[f32], w: &PackedMatrix, tiles: Range<usize>, y: &mut [f32], input: &mut Vec<u32>) {
    let (n_row, n_pair, n_column) = (x.len() / w.n_in, w.n_in_padded / 2, w.n_column(&tiles));
    input.resize(n_row * n_pair, 0);
    for (row, pairs) in x.chunks_exact(w.n_in).zip(input.chunks_exact_mut(n_pair)) {
        round_row(row, pairs);
    }
    let first_tile = tiles.start;
    for tile in tiles.clone().step_by(BLOCK_TILES) {
        let n_tile = BLOCK_TILES.min(tiles.end - tile);
        let w = w.tiles(&(tile..tile + n_tile));
        let column = (tile - first_tile) * TILE_OUT;
        let width = (n_tile * TILE_OUT).min(n_column - column);
        for (x, y) in input.chunks(BLOCK_ROWS * n_pair).zip(y.chunks_mut(BLOCK_ROWS * n_column)) {
            let n_row = x.len() / n_pair;
            let mut sums = [[_mm512_setzero_ps(); BLOCK_TILES]; BLOCK_ROWS];
            dot_block(x, n_row, w, n_tile, n_pair, &mut sums);
            for (y, sums) in y.chunks_exact_mut(n_column).zip(&sums) {
                for (y, sum) in y[column..column + width].chunks_mut(TILE_OUT).zip(sums) {
                    store_some(y, *sum);
                }
            }
        }
    }
}

/// sums += x · w for x `[n_row, n_pair]` and w `[n_tile][n_pair]`, at most [`BLOCK_ROWS`] and [`BLOCK_TILES`] of them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(super) fn dot_block(
    x: &[u32],
    n_row: usize,
    w: &[TileLine],
    n_tile: usize,
    n_pair: usize,
    sums: &mut [[__m512; BLOCK_TILES]; BLOCK_ROWS],
) {
    macro_rules! by_size {
        ($($rows:literal)*) => {
            match (n_row, n_tile) {
                $(($rows, 1) => dot::<$rows, 1>(x, w, n_pair, sums),
                ($rows, 2) => dot::<$rows, 2>(x, w, n_pair, sums),
                ($rows, 3) => dot::<$rows, 3>(x, w, n_pair, sums),
                ($rows, 4) => dot::<$rows, 4>(x, w, n_pair, sums),)*
                _ => unreachable!("a register block has 1 to 6 rows and 1 to 4 tiles"),
            }
        };
    }
    by_size!(1 2 3 4 5 6);
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
fn dot<const ROWS: usize, const TILES: usize>(
    x: &[u32],
    w: &[TileLine],
    n_pair: usize,
    sums: &mut [[__m512; BLOCK_TILES]; BLOCK_ROWS],
) {
    let x: [&[u32]; ROWS] = std::array::from_fn(|row| &x[row * n_pair..][..n_pair]);
    let w: [&[TileLine]; TILES] = std::array::from_fn(|tile| &w[tile * n_pair..][..n_pair]);
    let mut block: [[__m512; TILES]; ROWS] = std::array::from_fn(|row| std::array::from_fn(|tile| sums[row][tile]));
    for pair in 0..n_pair {
        let weights: [__m512bh; TILES] = std::array::from_fn(|tile| load_pairs(&w[tile][pair]));
        for (sums, x) in block.iter_mut().zip(&x) {
            let input = as_pairs(_mm512_set1_epi32(x[pair].cast_signed()));
            for (sum, weights) in sums.iter_mut().zip(&weights) {
                *sum = _mm512_dpbf16_ps(*sum, input, *weights);
            }
        }
    }
    for (sums, block) in sums.iter_mut().zip(&block) {
        sums[..TILES].copy_from_slice(block);
    }
}

/// Rounds a row to BF16 pairs (nearest even, denormals to zero); the pairs beyond the row become zero.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(super) fn round_row(row: &[f32], pairs: &mut [u32]) {
    let (whole, rest) = row.as_chunks::<32>();
    let (done, left) = pairs.split_at_mut(whole.len() * 16);
    for (values, pairs) in whole.iter().zip(done.as_chunks_mut::<16>().0) {
        *pairs = round_32(values);
    }
    left.fill(0);
    if !rest.is_empty() {
        let mut values = [0.0; 32];
        values[..rest.len()].copy_from_slice(rest);
        let n_pair = rest.len().div_ceil(2);
        left[..n_pair].copy_from_slice(&round_32(&values)[..n_pair]);
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
fn round_32(values: &[f32; 32]) -> [u32; 16] {
    let [low, high] = values.as_chunks::<16>().0 else { unreachable!("32 values are two registers") };
    round_pairs(load(low), load(high))
}

/// The BF16 pairs of 32 consecutive values.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(super) fn round_pairs(low: __m512, high: __m512) -> [u32; 16] {
    // SAFETY: both types are 64 bytes for which every bit pattern is valid.
    unsafe { std::mem::transmute::<__m512bh, [u32; 16]>(_mm512_cvtne2ps_pbh(high, low)) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load(values: &[f32; 16]) -> __m512 {
    // SAFETY: the reference makes 64 bytes readable; `loadu` needs no alignment.
    unsafe { _mm512_loadu_ps(values.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn store(values: &mut [f32; 16], register: __m512) {
    // SAFETY: the reference makes 64 bytes writable; `storeu` needs no alignment.
    unsafe { _mm512_storeu_ps(values.as_mut_ptr(), register) }
}

/// Stores the first lanes, as many as `values` (at most 16) holds.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn store_some(values: &mut [f32], register: __m512) {
    match values.as_mut_array::<16>() {
        Some(values) => store(values, register),
        None => {
            let mut lanes = [0.0; 16];
            store(&mut lanes, register);
            values.copy_from_slice(&lanes[..values.len()]);
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
fn load_pairs(line: &TileLine) -> __m512bh {
    // SAFETY: a line is 64 readable bytes, aligned to 64.
    as_pairs(unsafe { _mm512_load_si512(line.0.as_ptr().cast()) })
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
fn as_pairs(bits: __m512i) -> __m512bh {
    // SAFETY: both types are 64 bytes for which every bit pattern is valid.
    unsafe { std::mem::transmute::<__m512i, __m512bh>(bits) }
}
