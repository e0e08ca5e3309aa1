//! AVX-512 building blocks: loads and stores through references, rounding to BF16, transposition, exponential.
#![expect(unsafe_code, reason = "vector loads and stores")]

use std::arch::x86_64::*;

use crate::engine::kernels::TileLine;
use crate::engine::kernels::portable::EXP2_TAYLOR;

/// 16 values.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn load(values: &[f32; 16]) -> __m512 {
    // SAFETY: the reference makes 64 bytes readable; `loadu` needs no alignment.
    unsafe { _mm512_loadu_ps(values.as_ptr()) }
}

/// 16 values.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn store(values: &mut [f32; 16], register: __m512) {
    // SAFETY: the reference makes 64 bytes writable; `storeu` needs no alignment.
    unsafe { _mm512_storeu_ps(values.as_mut_ptr(), register) }
}

/// The first lanes, as many as `values` (at most 16) holds.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn store_some(values: &mut [f32], register: __m512) {
    if let Some(values) = values.as_mut_array::<16>() {
        store(values, register);
    } else {
        let mut lanes = [0.0; 16];
        store(&mut lanes, register);
        values.copy_from_slice(&lanes[..values.len()]);
    }
}

/// The 16 pairs of a line.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn load_line(line: &TileLine) -> __m512i {
    // SAFETY: a line is 64 readable bytes, aligned to 64.
    unsafe { _mm512_load_si512(line.0.as_ptr().cast()) }
}

/// The 16 pairs of a line.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn store_line(line: &mut TileLine, register: __m512i) {
    // SAFETY: a line is 64 writable bytes, aligned to 64.
    unsafe { _mm512_store_si512(line.0.as_mut_ptr().cast(), register) }
}

/// Up to 32 values of 16 bits; the lanes beyond are zero.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn load_some(values: &[u16]) -> __m512i {
    let mask = u32::MAX.checked_shr(32 - values.len().min(32) as u32).unwrap_or(0);
    // SAFETY: the mask selects at most `values.len()` lanes, and lanes that are not selected are not read.
    unsafe { _mm512_maskz_loadu_epi16(mask, values.as_ptr().cast()) }
}

/// Up to 16 values of 16 bits, each in the lower half of its lane; the lanes beyond are zero.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn load_widened(values: &[u16]) -> __m512i {
    let mask = (u32::from(u16::MAX) >> (16 - values.len().min(16) as u32)) as u16;
    // SAFETY: the mask selects at most `values.len()` lanes, and lanes that are not selected are not read.
    _mm512_cvtepu16_epi32(unsafe { _mm256_maskz_loadu_epi16(mask, values.as_ptr().cast()) })
}

/// The first value of every pair.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn first_of_pairs(pairs: __m512i) -> __m512 {
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs))
}

/// The second value of every pair.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn second_of_pairs(pairs: __m512i) -> __m512 {
    _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(0xFFFF_0000_u32.cast_signed())))
}

/// Rounds to values that BF16 holds, nearest even; the same bits as [`crate::engine::kernels::f32_to_bf16`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn round(x: __m512) -> __m512 {
    let bits = _mm512_castps_si512(x);
    let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
    let carried = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
    let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
    let rounded = _mm512_mask_or_epi32(carried, nan, bits, _mm512_set1_epi32(0x40_0000));
    _mm512_castsi512_ps(_mm512_and_si512(rounded, _mm512_set1_epi32(0xFFFF_0000_u32.cast_signed())))
}

/// The BF16 pairs of 32 consecutive values that [`round`] has rounded.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn pairs_of_rounded(low: __m512, high: __m512) -> __m512i {
    let halves = |x: __m512| _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(_mm512_castps_si512(x)));
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(halves(low)), halves(high))
}

/// 2^x for x ≤ 0 in the lanes of `mask`, 0 elsewhere; results under 2⁻¹²⁶ are 0, NaN stays NaN, 2⁰ is exactly 1.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn exp2(x: __m512, mask: __mmask16) -> __m512 {
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
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn max_of_lanes(x: __m512) -> __m512 {
    let x = _mm512_max_ps(x, _mm512_shuffle_f32x4::<0b01_00_11_10>(x, x));
    let x = _mm512_max_ps(x, _mm512_shuffle_f32x4::<0b10_11_00_01>(x, x));
    let x = _mm512_max_ps(x, _mm512_permute_ps::<0b01_00_11_10>(x));
    _mm512_max_ps(x, _mm512_permute_ps::<0b10_11_00_01>(x))
}

/// Transposes 16 × 16 lanes of 32 bits: pairs of rows, then pairs of those, then quarters of registers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn transpose(rows: [__m512i; 16]) -> [__m512i; 16] {
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
