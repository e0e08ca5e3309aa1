//! `fp8_per_token_head`: e4m3 codes with one f32 scale per token and head, stored in front of the row.
//!
//! The scale is the row's largest magnitude over 448, so nothing saturates and large keys need no calibration.

use crate::engine::kernels::decode::{bf16_scaled, lut8_to_bf16};
use crate::engine::kv_cache::codec::KvCodec;
use crate::engine::kv_cache::float8::{Float8, Fp8E4m3};
use crate::engine::kv_cache::row_scale::{MIN_SCALE, SCALE_BYTES, abs_max, stored_rows};

/// 1 byte a value plus 4 bytes a row.
pub(in crate::engine) struct Fp8PerTokenHead;

/// What follows the scale is a row of `fp8_e4m3`.
const CODES: Fp8E4m3 = Float8::<3>;

impl Fp8PerTokenHead {
    /// Stores the scale in front; returns it and the place of the codes.
    fn start_row<'a>(row: &[f32], packed: &'a mut [u8]) -> (f32, &'a mut [u8]) {
        // An infinite scale turns the whole row into NaN, so that a broken row stays visibly broken.
        let scale = (abs_max(row) / Fp8E4m3::LARGEST).max(MIN_SCALE);
        let (stored_scale, codes) = packed.split_at_mut(SCALE_BYTES);
        stored_scale.copy_from_slice(&scale.to_le_bytes());
        (scale, codes)
    }
}

impl KvCodec for Fp8PerTokenHead {
    fn name(&self) -> &'static str {
        "fp8_per_token_head"
    }

    fn row_bytes(&self, head_dim: usize) -> usize {
        head_dim + SCALE_BYTES
    }

    fn scales(&self) -> &'static str {
        "dynamic per token and head"
    }

    fn encode_row(&self, row: &[f32], _scale: f32, packed: &mut [u8]) {
        let (scale, codes) = Self::start_row(row, packed);
        CODES.encode_row(row, scale, codes);
    }

    fn encode_row_toward_zero(&self, row: &[f32], _scale: f32, packed: &mut [u8]) {
        let (scale, codes) = Self::start_row(row, packed);
        CODES.encode_row_toward_zero(row, scale, codes);
    }

    fn decode_rows(&self, packed: &[u8], head_dim: usize, _scale: f32, rows: &mut [f32]) {
        for ((scale, codes), row) in stored_rows(packed, head_dim).zip(rows.chunks_exact_mut(head_dim)) {
            CODES.decode_rows(codes, head_dim, scale, row);
        }
    }

    fn decode_rows_bf16(&self, packed: &[u8], head_dim: usize, _scale: f32, rows: &mut [u16]) {
        for ((scale, codes), row) in stored_rows(packed, head_dim).zip(rows.chunks_exact_mut(head_dim)) {
            // Every code is exact in BF16, so only the product rounds.
            lut8_to_bf16(codes, &Fp8E4m3::BF16_VALUES, row);
            bf16_scaled(row, scale);
        }
    }

    fn decode_codes(&self, packed: &[u8], head_dim: usize, _scale: f32, codes: &mut [f32], row_scales: &mut [f32]) {
        let rows = stored_rows(packed, head_dim).zip(codes.chunks_exact_mut(head_dim)).zip(row_scales);
        for (((scale, packed), row), row_scale) in rows {
            CODES.decode_rows(packed, head_dim, 1.0, row);
            *row_scale = scale;
        }
    }

    fn max_abs_error(&self, row_abs_max: f32, _head_dim: usize) -> f32 {
        // Half a unit in the last of 4 significant bits, or half a subnormal unit at the scale's floor, and the rounding of
        // scale, quotient and product.
        (row_abs_max / 16.0).max(MIN_SCALE / 1024.0) + row_abs_max * 4.0 * f32::EPSILON
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes_and_scale(row: &[f32]) -> (Vec<u8>, f32) {
        let mut packed = vec![0; Fp8PerTokenHead.row_bytes(row.len())];
        Fp8PerTokenHead.encode_row(row, 1.0, &mut packed);
        (packed[4..].to_vec(), f32::from_le_bytes(packed[..4].try_into().unwrap()))
    }

    #[test]
    fn the_largest_value_gets_the_largest_code_and_the_scale_has_a_floor() {
        assert_eq!(codes_and_scale(&[448.0, -448.0, 1.0]), (vec![0x7E, 0xFE, 0x38], 1.0));
        assert_eq!(codes_and_scale(&[-7000.0, 15.625]), (vec![0xFE, 0x38], 15.625));
        assert_eq!(codes_and_scale(&[0.0; 3]), (vec![0; 3], MIN_SCALE));
        assert_eq!(codes_and_scale(&[1e-6, 0.0]), (vec![0x38, 0], MIN_SCALE));
    }

    #[test]
    fn cutting_never_grows_a_magnitude() {
        let row: Vec<f32> = (0..64).map(|i| (i as f32 * 0.37).sin() * 5.0).collect();
        let mut packed = vec![0; Fp8PerTokenHead.row_bytes(64)];
        Fp8PerTokenHead.encode_row_toward_zero(&row, 1.0, &mut packed);
        let mut decoded = vec![0.0; 64];
        Fp8PerTokenHead.decode_rows(&packed, 64, 1.0, &mut decoded);
        let mut n_smaller = 0;
        for (value, decoded) in row.iter().zip(&decoded) {
            assert!(decoded.abs() <= value.abs() * (1.0 + 1e-6) && decoded * value >= 0.0, "{value} -> {decoded}");
            n_smaller += usize::from(decoded.abs() < value.abs() * 0.999);
        }
        assert!(n_smaller > 40, "{n_smaller}");
    }
}
