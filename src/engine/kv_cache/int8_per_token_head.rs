//! `int8_per_token_head`: signed bytes with one f32 scale per token and head, stored in front of the row.

use crate::engine::kernels::decode::i8_scaled_to_bf16;
use crate::engine::kv_cache::codec::KvCodec;
use crate::engine::kv_cache::row_scale::{MIN_SCALE, SCALE_BYTES, abs_max, stored_rows};

/// 1 byte a value plus 4 bytes a row.
pub(in crate::engine) struct Int8PerTokenHead;

const LARGEST_CODE: f32 = 127.0;

impl KvCodec for Int8PerTokenHead {
    fn name(&self) -> &'static str {
        "int8_per_token_head"
    }

    fn row_bytes(&self, head_dim: usize) -> usize {
        head_dim + SCALE_BYTES
    }

    fn scales(&self) -> &'static str {
        "dynamic per token and head"
    }

    fn encode_row(&self, row: &[f32], _scale: f32, packed: &mut [u8]) {
        // A byte cannot be NaN, but the scale can: a broken row stays visibly broken.
        let is_broken = row.iter().any(|value| !value.is_finite());
        let scale = if is_broken { f32::NAN } else { (abs_max(row) / LARGEST_CODE).max(MIN_SCALE) };
        let (stored_scale, codes) = packed.split_at_mut(SCALE_BYTES);
        stored_scale.copy_from_slice(&scale.to_le_bytes());
        for (value, code) in row.iter().zip(codes) {
            // `round` takes halves away from zero, as the format asks.
            *code = ((value / scale).round().clamp(-LARGEST_CODE, LARGEST_CODE) as i8).cast_unsigned();
        }
    }

    fn decode_rows(&self, packed: &[u8], head_dim: usize, _scale: f32, rows: &mut [f32]) {
        for ((scale, codes), row) in stored_rows(packed, head_dim).zip(rows.chunks_exact_mut(head_dim)) {
            for (code, value) in codes.iter().zip(row) {
                *value = f32::from(code.cast_signed()) * scale;
            }
        }
    }

    fn decode_rows_bf16(&self, packed: &[u8], head_dim: usize, _scale: f32, rows: &mut [u16]) {
        for ((scale, codes), row) in stored_rows(packed, head_dim).zip(rows.chunks_exact_mut(head_dim)) {
            i8_scaled_to_bf16(codes, scale, row);
        }
    }

    fn decode_codes(&self, packed: &[u8], head_dim: usize, _scale: f32, codes: &mut [f32], row_scales: &mut [f32]) {
        let rows = stored_rows(packed, head_dim).zip(codes.chunks_exact_mut(head_dim)).zip(row_scales);
        for (((scale, packed), row), row_scale) in rows {
            row.iter_mut().zip(packed).for_each(|(value, code)| *value = f32::from(code.cast_signed()));
            *row_scale = scale;
        }
    }

    fn max_abs_error(&self, row_abs_max: f32, _head_dim: usize) -> f32 {
        // Half a step, and the rounding of the scale, the quotient and the product.
        0.5 * (row_abs_max / LARGEST_CODE).max(MIN_SCALE) + row_abs_max * 4.0 * f32::EPSILON
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes_and_scale(row: &[f32]) -> (Vec<i8>, f32) {
        let mut packed = vec![0; Int8PerTokenHead.row_bytes(row.len())];
        Int8PerTokenHead.encode_row(row, 1.0, &mut packed);
        let scale = f32::from_le_bytes(packed[..4].try_into().unwrap());
        (packed[4..].iter().map(|code| code.cast_signed()).collect(), scale)
    }

    #[test]
    fn halves_round_away_from_zero_and_the_largest_value_gets_127() {
        let (codes, scale) = codes_and_scale(&[127.0, 0.5, -0.5, 1.5, -2.5, 2.49, -127.0]);
        assert_eq!(scale, 1.0);
        assert_eq!(codes, [127, 1, -1, 2, -3, 2, -127]);
    }

    #[test]
    fn the_scale_has_a_floor_and_follows_each_row() {
        assert_eq!(codes_and_scale(&[0.0; 4]), (vec![0; 4], MIN_SCALE));
        assert_eq!(codes_and_scale(&[1e-7, 0.0]), (vec![0, 0], MIN_SCALE));
        assert_eq!(codes_and_scale(&[254.0, -1.0]), (vec![127, -1], 2.0));
    }

    #[test]
    fn all_255_codes_come_back() {
        let row: Vec<f32> = (-127..=127).map(|code| code as f32 * 0.5).collect();
        let (codes, scale) = codes_and_scale(&row);
        assert_eq!(scale, 0.5);
        assert_eq!(codes, (-127..=127).collect::<Vec<i8>>());
    }
}
