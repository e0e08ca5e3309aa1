//! Table look-up of 8-bit codes with AVX-512 VBMI, 64 codes at a time: two byte permutations per half of the table, where 16-bit
//! permutations take four for half as many codes.
#![expect(unsafe_code, reason = "vector loads and stores, and calls of functions that a token proves to be executable")]

use std::arch::x86_64::*;

use super::Vbmi;

/// Codes of one step.
const STEP: usize = 64;

impl Vbmi {
    /// Looks up whole steps of codes; returns how many are done.
    pub(in crate::engine::kernels) fn lut8_to_bf16(self, codes: &[u8], table: &[u16; 256], out: &mut [u16]) -> usize {
        let (codes, out) = (codes.as_chunks::<STEP>().0, out.as_chunks_mut::<STEP>().0);
        // SAFETY: `self` exists, so `detect` saw the features that `look_up` enables.
        unsafe { look_up(codes, table, out) }
        codes.len() * STEP
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn look_up(codes: &[[u8; STEP]], table: &[u16; 256], out: &mut [[u16; STEP]]) {
    // Lower and upper bytes of the entries, 64 in a register.
    let mut low = [_mm512_setzero_si512(); 4];
    let mut high = [_mm512_setzero_si512(); 4];
    for (register, part) in table.as_chunks::<STEP>().0.iter().enumerate() {
        let halves = [0, 32].map(|first| {
            // SAFETY: `part` has 64 entries, of which 32 from `first` on are 64 readable bytes; `loadu` needs no alignment.
            unsafe { _mm512_loadu_si512(part.as_ptr().add(first).cast()) }
        });
        low[register] = join(_mm512_cvtepi16_epi8(halves[0]), _mm512_cvtepi16_epi8(halves[1]));
        let upper = halves.map(|half| _mm512_cvtepi16_epi8(_mm512_srli_epi16::<8>(half)));
        high[register] = join(upper[0], upper[1]);
    }
    // Interleaving works on quarters of registers; in this order of eighths its results are in the order of the codes.
    let order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    for (codes, out) in codes.iter().zip(out) {
        // SAFETY: `codes` is 64 readable bytes; `loadu` needs no alignment.
        let codes = unsafe { _mm512_loadu_si512(codes.as_ptr().cast()) };
        let codes = _mm512_permutexvar_epi64(order, codes);
        let is_upper = _mm512_movepi8_mask(codes);
        let [low, high] = [&low, &high].map(|entries| {
            let lower = _mm512_permutex2var_epi8(entries[0], codes, entries[1]);
            _mm512_mask_mov_epi8(lower, is_upper, _mm512_permutex2var_epi8(entries[2], codes, entries[3]))
        });
        let values = [_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)];
        for (out, values) in out.as_chunks_mut::<32>().0.iter_mut().zip(values) {
            // SAFETY: `out` is 64 writable bytes; `storeu` needs no alignment.
            unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), values) }
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn join(low: __m256i, high: __m256i) -> __m512i {
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
}
