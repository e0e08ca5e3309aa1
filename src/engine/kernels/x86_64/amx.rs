//! BF16 products on the AMX unit: one instruction multiplies 16 rows by 32 inputs by 16 columns.
//!
//! The inner dimension runs in ascending blocks of 32 inputs in a single tile of sums, whatever the number of rows, so a value
//! does not depend on its neighbours. A short last block of rows is padded with zero rows that are not stored.

use std::arch::x86_64::*;
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

use super::lanes::{load, pairs_of_rounded, round, store_line};
use super::tiles::{Emulation, Sums, TILE_ROWS, TileOps, TileUnit};
use super::{Amx, Avx512, amx_attention};
use crate::engine::kernels::{AttentionJob, Kernel, KernelEntry, PackedMatrix, TILE_OUT, TileLine};

/// Sapphire Rapids and later server cores.
pub(in crate::engine::kernels) const ENTRY: KernelEntry = KernelEntry { name: Amx::NAME, probe };

/// Pairs of inputs in a tile.
pub(super) const TILE_PAIRS: usize = 16;

/// Row blocks rounded to BF16 at a time: bounds the scratch memory and keeps it in L2.
const CHUNK_ROWS: usize = 192;

thread_local! {
    /// Rounded input rows, kept from call to call because fresh memory costs page faults.
    static INPUT: Cell<Vec<TileLine>> = const { Cell::new(Vec::new()) };
}

fn probe() -> Result<Arc<dyn Kernel>, &'static str> {
    let vectors =
        Avx512::detect().ok_or("this CPU has no AVX-512 F, BW, VL and DQ, which the AMX kernel also needs")?;
    let kernel = AmxKernel { unit: Amx::detect()?, vectors };
    if agrees_with_emulation(&kernel, vectors) {
        Ok(Arc::new(kernel))
    } else {
        Err("the AMX unit computes other products than its manual says")
    }
}

/// The same loops on emulated tile registers.
#[cfg(test)]
pub(in crate::engine::kernels) fn emulated() -> Option<Arc<dyn Kernel>> {
    let vectors = Avx512::detect()?;
    Some(Arc::new(AmxKernel { unit: Emulation(vectors), vectors }))
}

/// Whether a small product comes out as on the emulated unit. The order of additions inside the unit is not checked, only
/// that the result is right to a few roundings.
fn agrees_with_emulation(kernel: &dyn Kernel, vectors: Avx512) -> bool {
    const N_ROW: usize = 19;
    const N_IN: usize = 70;
    const N_OUT: usize = 37;
    let emulated = AmxKernel { unit: Emulation(vectors), vectors };
    // Small odd integers over a power of two: every product and sum is exact in f32, so any difference is a fault.
    let value = |i: usize| (i * 37 % 101) as f32 / 16.0 - 3.0;
    let x: Vec<f32> = (0..N_ROW * N_IN).map(value).collect();
    let rows: Vec<u16> = (0..N_OUT * N_IN).map(|i| crate::engine::kernels::f32_to_bf16(value(i + 7))).collect();
    let w = PackedMatrix::pack(N_OUT, N_IN, &rows);
    let product = |kernel: &dyn Kernel| {
        let mut y = vec![0.0; N_ROW * N_OUT];
        kernel.gemm(&x, N_ROW, &w, 0..w.n_tile(), &mut y);
        y
    };
    product(kernel) == product(&emulated)
}

pub(super) struct AmxKernel<U> {
    unit: U,
    vectors: Avx512,
}

impl<U: TileUnit> Kernel for AmxKernel<U> {
    fn name(&self) -> &'static str {
        U::NAME
    }

    fn gemm(&self, x: &[f32], n_row: usize, w: &PackedMatrix, tiles: Range<usize>, y: &mut [f32]) {
        let n_column = w.n_column(&tiles);
        assert_eq!(x.len(), n_row * w.n_in, "x [n_row, n_in]");
        assert_eq!(y.len(), n_row * n_column, "y [n_row, n_column]");
        if x.is_empty() || y.is_empty() {
            y.fill(0.0);
            return;
        }
        let mut input = INPUT.take();
        let mut registers = self.unit.open();
        for (x, y) in x.chunks(CHUNK_ROWS * w.n_in).zip(y.chunks_mut(CHUNK_ROWS * n_column)) {
            let n_block = w.n_in_padded / (2 * TILE_PAIRS);
            self.vectors.round_to_tiles(x, w.n_in, n_block, &mut input);
            for tile in tiles.clone().step_by(2) {
                let column = (tile - tiles.start) * TILE_OUT;
                let w = w.tiles(&(tile..tiles.end.min(tile + 2)));
                for (x, y) in input.chunks(2 * TILE_ROWS * n_block).zip(y.chunks_mut(2 * TILE_ROWS * n_column)) {
                    let sums = multiply_block(&mut registers, x, w, n_block);
                    for (i, sums) in sums.iter().enumerate() {
                        copy_sums(sums, y, i / 2 * TILE_ROWS, n_column, column + i % 2 * TILE_OUT);
                    }
                }
            }
        }
        drop(registers);
        INPUT.set(input);
    }

    fn attend(&self, job: &mut AttentionJob<'_>) {
        amx_attention::attend(self.unit, self.vectors, job);
    }

    fn attend_forks(&self, jobs: &mut [AttentionJob<'_>], n_shared: usize) {
        amx_attention::attend_forks(self.unit, self.vectors, jobs, n_shared);
    }
}

/// Up to 2 × 2 tiles of a product: x `[1 or 2 row blocks][n_block][16 rows]`, w `[1 or 2 tiles][n_block · 16 pairs]` →
/// sums `[row block][tile]`; those of an absent row block or tile are zero.
fn multiply_block(registers: &mut impl TileOps, x: &[TileLine], w: &[TileLine], n_block: usize) -> [Sums; 4] {
    let (x, w) = (x.as_chunks::<TILE_ROWS>().0, w.as_chunks::<TILE_PAIRS>().0);
    let (x0, x1) = x.split_at(n_block);
    let (w0, w1) = w.split_at(n_block);
    registers.zero::<0>();
    registers.zero::<1>();
    registers.zero::<2>();
    registers.zero::<3>();
    for block in 0..n_block {
        registers.load::<4>(&x0[block]);
        registers.load::<6>(&w0[block]);
        registers.multiply::<0, 4, 6>();
        if let Some(w1) = w1.get(block) {
            registers.load::<7>(w1);
            registers.multiply::<1, 4, 7>();
        }
        if let Some(x1) = x1.get(block) {
            registers.load::<5>(x1);
            registers.multiply::<2, 5, 6>();
            if !w1.is_empty() {
                registers.multiply::<3, 5, 7>();
            }
        }
    }
    let mut sums = [Sums::ZERO; 4];
    registers.store_sums::<0>(&mut sums[0]);
    registers.store_sums::<1>(&mut sums[1]);
    registers.store_sums::<2>(&mut sums[2]);
    registers.store_sums::<3>(&mut sums[3]);
    sums
}

/// Copies the part of a tile that lies inside y `[n_row, n_column]`.
fn copy_sums(sums: &Sums, y: &mut [f32], row: usize, n_column: usize, column: usize) {
    let columns = column.min(n_column)..(column + TILE_OUT).min(n_column);
    for (y, sums) in y.chunks_exact_mut(n_column).skip(row).zip(&sums.0) {
        let y = &mut y[columns.clone()];
        y.copy_from_slice(&sums[..y.len()]);
    }
}

impl Avx512 {
    /// Rounds rows `[n_row, n_in]` to BF16 pairs in the layout of left operands: `[row block][n_block][16 rows]` lines. Rows and
    /// inputs beyond are zero.
    pub(super) fn round_to_tiles(self, rows: &[f32], n_in: usize, n_block: usize, lines: &mut Vec<TileLine>) {
        let n_row = rows.len() / n_in;
        lines.clear();
        lines.resize(n_row.next_multiple_of(TILE_ROWS) * n_block, TileLine::ZERO);
        for (index, row) in rows.chunks_exact(n_in).enumerate() {
            let first = index / TILE_ROWS * n_block * TILE_ROWS + index % TILE_ROWS;
            for (values, line) in row.chunks(2 * TILE_PAIRS).zip(lines[first..].iter_mut().step_by(TILE_ROWS)) {
                self.round_line(values, line);
            }
        }
    }

    /// Up to 32 values as one line of BF16 pairs.
    fn round_line(self, values: &[f32], line: &mut TileLine) {
        let mut padded = [0.0; 32];
        padded[..values.len()].copy_from_slice(values);
        #[expect(unsafe_code, reason = "a call that the token proves to be executable")]
        // SAFETY: `self` exists, so `detect` saw the features that `round_32` enables.
        unsafe {
            round_32(&padded, line);
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn round_32(values: &[f32; 32], line: &mut TileLine) {
    let [low, high] = values.as_chunks::<16>().0 else { unreachable!("32 values are two registers") };
    let (low, high): (__m512, __m512) = (round(load(low)), round(load(high)));
    store_line(line, pairs_of_rounded(low, high));
}
