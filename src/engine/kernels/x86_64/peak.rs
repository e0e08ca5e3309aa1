//! Loops of register-only arithmetic, one per instruction set; see [`crate::engine::kernels::peak_flops`].
#![expect(unsafe_code, reason = "calls of functions that a token proves to be executable")]

use std::arch::x86_64::*;
use std::hint::black_box;

use super::tiles::{TILE_ROWS, TileOps, TileUnit};
use super::{Amx, Avx2, Avx512};
use crate::engine::kernels::{TILE_OUT, TileLine};

/// Sums side by side: two units with a latency of four to five cycles need ten.
const N_SUM: usize = 12;

/// Four tile products. `None` where there is no unit.
pub(in crate::engine::kernels) fn amx(n_round: u64) -> Option<u64> {
    const N_PRODUCT: u64 = 4;
    const INPUTS: u64 = 32;
    let mut registers = Amx::detect().ok()?.open();
    registers.zero::<0>();
    registers.zero::<1>();
    registers.zero::<2>();
    registers.zero::<3>();
    // Zeros, so that the sums stay finite however long the loop is: the unit's speed does not depend on values.
    let operand = [TileLine::ZERO; TILE_ROWS];
    registers.load::<4>(&operand);
    registers.load::<5>(&operand);
    registers.load::<6>(&operand);
    registers.load::<7>(&operand);
    for _ in 0..n_round {
        registers.multiply::<0, 4, 6>();
        registers.multiply::<1, 4, 7>();
        registers.multiply::<2, 5, 6>();
        registers.multiply::<3, 5, 7>();
    }
    Some(N_PRODUCT * 2 * INPUTS * (TILE_ROWS * TILE_OUT) as u64)
}

/// Fused multiply-adds of 16 lanes. `None` where there are none.
pub(in crate::engine::kernels) fn avx512(n_round: u64) -> Option<u64> {
    let Avx512 { .. } = Avx512::detect()?;
    // SAFETY: the token says that `detect` saw the features that the function enables.
    unsafe { avx512_rounds(n_round) }
    Some(2 * 16 * N_SUM as u64)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn avx512_rounds(n_round: u64) {
    let (factor, term) = (_mm512_set1_ps(black_box(0.5)), _mm512_set1_ps(black_box(1.0)));
    let mut sums = [_mm512_setzero_ps(); N_SUM];
    for _ in 0..n_round {
        for sum in &mut sums {
            *sum = _mm512_fmadd_ps(*sum, factor, term);
        }
    }
    black_box(sums);
}

/// Fused multiply-adds of 8 lanes. `None` where there are none.
pub(in crate::engine::kernels) fn avx2(n_round: u64) -> Option<u64> {
    let Avx2 { .. } = Avx2::detect()?;
    // SAFETY: the token says that `detect` saw the features that the function enables.
    unsafe { avx2_rounds(n_round) }
    Some(2 * 8 * N_SUM as u64)
}

#[target_feature(enable = "avx2,fma")]
fn avx2_rounds(n_round: u64) {
    let (factor, term) = (_mm256_set1_ps(black_box(0.5)), _mm256_set1_ps(black_box(1.0)));
    let mut sums = [_mm256_setzero_ps(); N_SUM];
    for _ in 0..n_round {
        for sum in &mut sums {
            *sum = _mm256_fmadd_ps(*sum, factor, term);
        }
    }
    black_box(sums);
}
