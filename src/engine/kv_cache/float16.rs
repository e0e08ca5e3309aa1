//! `float16`: IEEE half precision; 3 more mantissa bits than bfloat16, but a range of only ±65,504.

use half::f16;

use crate::engine::kernels::f32_to_bf16;
use crate::engine::kv_cache::codec::KvCodec;

/// 2 bytes a value, little endian; round to nearest even, saturating so that a large key never becomes an infinity.
pub(in crate::engine) struct Float16;

impl KvCodec for Float16 {
    fn name(&self) -> &'static str {
        "float16"
    }

    fn row_bytes(&self, head_dim: usize) -> usize {
        head_dim * 2
    }

    fn scales(&self) -> &'static str {
        "none (1.0)"
    }

    fn encode_row(&self, row: &[f32], scale: f32, packed: &mut [u8]) {
        for (value, code) in row.iter().zip(packed.as_chunks_mut::<2>().0) {
            *code = encode(value / scale).to_le_bytes();
        }
    }

    fn decode_rows(&self, packed: &[u8], _head_dim: usize, scale: f32, rows: &mut [f32]) {
        for (code, value) in packed.as_chunks::<2>().0.iter().zip(rows) {
            *value = f16::from_le_bytes(*code).to_f32() * scale;
        }
    }

    fn decode_rows_bf16(&self, packed: &[u8], _head_dim: usize, scale: f32, rows: &mut [u16]) {
        for (code, value) in packed.as_chunks::<2>().0.iter().zip(rows) {
            *value = f32_to_bf16(f16::from_le_bytes(*code).to_f32() * scale);
        }
    }

    fn max_abs_error(&self, row_abs_max: f32, _head_dim: usize) -> f32 {
        // Half a unit in the last of 11 significant bits, at least half of the smallest subnormal 2⁻²⁴.
        (row_abs_max / 2048.0).max(1.0 / 33_554_432.0)
    }
}

/// Comparisons with NaN are false, so `clamp` keeps it.
fn encode(value: f32) -> f16 {
    f16::from_f32(value.clamp(-65_504.0, 65_504.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_finite_code_survives_and_every_midpoint_goes_to_even() {
        for code in 0..0x7C00_u16 {
            let value = f16::from_bits(code).to_f32();
            assert_eq!(encode(value).to_bits(), code);
            assert_eq!(encode(-value).to_bits(), code | 0x8000);
            if code < 0x7BFF {
                let next = f16::from_bits(code + 1).to_f32();
                let midpoint = value.midpoint(next);
                let even = if code.is_multiple_of(2) { code } else { code + 1 };
                assert!(value < next && encode(midpoint).to_bits() == even, "{code:#06x}");
                assert_eq!(encode(midpoint.next_down()).to_bits(), code, "{code:#06x}");
                assert_eq!(encode(midpoint.next_up()).to_bits(), code + 1, "{code:#06x}");
            }
        }
        for code in 0x7C01..=0x7FFF_u16 {
            assert!(encode(f16::from_bits(code).to_f32()).is_nan(), "{code:#06x}");
        }
    }

    #[test]
    fn overflow_saturates() {
        for value in [65_505.0, 65_520.0, 1e30, f32::INFINITY] {
            assert_eq!(encode(value).to_f32(), 65_504.0);
            assert_eq!(encode(-value).to_f32(), -65_504.0);
        }
    }
}
