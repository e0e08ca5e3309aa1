//! 8-bit codes to BF16 on AVX-512, 32 or 16 at a time; the same bits as the portable loops of `decode.rs`.
#![expect(unsafe_code, reason = "vector loads and stores, and calls of functions that a token proves to be executable")]

use std::arch::x86_64::*;

use super::lanes::round;
use super::{Avx512, Vbmi};

/// Codes of one table look-up.
const LUT_STEP: usize = 32;

/// Codes of one scaled conversion.
const SCALE_STEP: usize = 16;

/// Looks up whole steps of codes with the widest instructions there are; returns how many are done.
pub(in crate::engine::kernels) fn lut8_to_bf16(codes: &[u8], table: &[u16; 256], out: &mut [u16]) -> usize {
    let done = Vbmi::detect().map_or(0, |token| token.lut8_to_bf16(codes, table, out));
    done + Avx512::detect().map_or(0, |token| token.lut8_to_bf16(&codes[done..], table, &mut out[done..]))
}

impl Avx512 {
    /// Looks up whole steps of codes; returns how many are done.
    fn lut8_to_bf16(self, codes: &[u8], table: &[u16; 256], out: &mut [u16]) -> usize {
        let (codes, out) = (codes.as_chunks::<LUT_STEP>().0, out.as_chunks_mut::<LUT_STEP>().0);
        // SAFETY: `self` exists, so `detect` saw the features that `look_up` enables.
        unsafe { look_up(codes, table, out) }
        codes.len() * LUT_STEP
    }

    /// Converts whole steps of codes; returns how many are done.
    pub(in crate::engine::kernels) fn i8_scaled_to_bf16(self, codes: &[u8], scale: f32, out: &mut [u16]) -> usize {
        let (codes, out) = (codes.as_chunks::<SCALE_STEP>().0, out.as_chunks_mut::<SCALE_STEP>().0);
        // SAFETY: `self` exists, so `detect` saw the features that `scale_codes` enables.
        unsafe { scale_codes(codes, scale, out) }
        codes.len() * SCALE_STEP
    }

    /// Scales whole steps of BF16 values in place; returns how many are done.
    pub(in crate::engine::kernels) fn bf16_scaled(self, values: &mut [u16], scale: f32) -> usize {
        let values = values.as_chunks_mut::<SCALE_STEP>().0;
        // SAFETY: `self` exists, so `detect` saw the features that `scale_values` enables.
        unsafe { scale_values(values, scale) }
        values.len() * SCALE_STEP
    }
}

/// A permutation reaches 64 entries; the two upper bits of a code choose among four of them.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn look_up(codes: &[[u8; LUT_STEP]], table: &[u16; 256], out: &mut [[u16; LUT_STEP]]) {
    let mut entries = [_mm512_setzero_si512(); 8];
    for (register, part) in entries.iter_mut().zip(table.as_chunks::<32>().0) {
        // SAFETY: `part` is 64 readable bytes; `loadu` needs no alignment.
        *register = unsafe { _mm512_loadu_si512(part.as_ptr().cast()) };
    }
    for (codes, out) in codes.iter().zip(out) {
        // SAFETY: `codes` is 32 readable bytes; `loadu` needs no alignment.
        let codes = _mm512_cvtepu8_epi16(unsafe { _mm256_loadu_si256(codes.as_ptr().cast()) });
        let bit_6 = _mm512_test_epi16_mask(codes, _mm512_set1_epi16(0x40));
        let bit_7 = _mm512_test_epi16_mask(codes, _mm512_set1_epi16(0x80));
        let low = _mm512_mask_mov_epi16(
            _mm512_permutex2var_epi16(entries[0], codes, entries[1]),
            bit_6,
            _mm512_permutex2var_epi16(entries[2], codes, entries[3]),
        );
        let high = _mm512_mask_mov_epi16(
            _mm512_permutex2var_epi16(entries[4], codes, entries[5]),
            bit_6,
            _mm512_permutex2var_epi16(entries[6], codes, entries[7]),
        );
        // SAFETY: `out` is 64 writable bytes; `storeu` needs no alignment.
        unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), _mm512_mask_mov_epi16(low, bit_7, high)) }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn scale_codes(codes: &[[u8; SCALE_STEP]], scale: f32, out: &mut [[u16; SCALE_STEP]]) {
    let scale = _mm512_set1_ps(scale);
    for (codes, out) in codes.iter().zip(out) {
        // SAFETY: `codes` is 16 readable bytes; `loadu` needs no alignment.
        let codes = _mm512_cvtepi8_epi32(unsafe { _mm_loadu_si128(codes.as_ptr().cast()) });
        let rounded = _mm512_castps_si512(round(_mm512_mul_ps(_mm512_cvtepi32_ps(codes), scale)));
        let bits = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(rounded));
        // SAFETY: `out` is 32 writable bytes; `storeu` needs no alignment.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), bits) }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn scale_values(values: &mut [[u16; SCALE_STEP]], scale: f32) {
    let scale = _mm512_set1_ps(scale);
    for values in values {
        // SAFETY: `values` is 32 readable bytes; `loadu` needs no alignment.
        let bits = _mm512_cvtepu16_epi32(unsafe { _mm256_loadu_si256(values.as_ptr().cast()) });
        let exact = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits));
        let rounded = _mm512_castps_si512(round(_mm512_mul_ps(exact, scale)));
        let bits = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(rounded));
        // SAFETY: `values` is 32 writable bytes; `storeu` needs no alignment.
        unsafe { _mm256_storeu_si256(values.as_mut_ptr().cast(), bits) }
    }
}
