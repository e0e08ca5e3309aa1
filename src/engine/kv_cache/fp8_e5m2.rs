//! `fp8_e5m2`: 1 sign, 5 exponent and 2 mantissa bits. More range (57,344) for one bit of mantissa less; the codes of infinity exist but a cast never produces them.

use crate::engine::kernels::decode::lut8_to_bf16;
use crate::engine::kv_cache::codec::KvCodec;
use crate::engine::kv_cache::float8::{self, Float8};

/// 1 byte a value.
pub(in crate::engine) struct Fp8E5m2;

const FORMAT: Float8 = Float8 { mantissa_bits: 2, bias: 15, max_code: 0x7B, infinity_code: Some(0x7C) };
static VALUES: [f32; 256] = FORMAT.table();

impl KvCodec for Fp8E5m2 {
    fn name(&self) -> &'static str {
        "fp8_e5m2"
    }

    fn row_bytes(&self, head_dim: usize) -> usize {
        head_dim
    }

    fn scales(&self) -> &'static str {
        "none (1.0)"
    }

    fn encode_row(&self, row: &[f32], scale: f32, packed: &mut [u8]) {
        for (value, code) in row.iter().zip(packed) {
            *code = FORMAT.encode(value / scale);
        }
    }

    fn decode_rows(&self, packed: &[u8], _head_dim: usize, scale: f32, rows: &mut [f32]) {
        for (code, value) in packed.iter().zip(rows) {
            *value = VALUES[usize::from(*code)] * scale;
        }
    }

    fn decode_rows_bf16(&self, packed: &[u8], _head_dim: usize, scale: f32, rows: &mut [u16]) {
        lut8_to_bf16(packed, &float8::bf16_table(&VALUES, scale), rows);
    }

    fn max_abs_error(&self, row_abs_max: f32) -> f32 {
        // Half a unit in the last of 3 significant bits, at least half a subnormal unit; beyond 57,344 all is lost.
        (row_abs_max / 8.0).max(1.0 / 131_072.0).max(row_abs_max - 57_344.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_256_codes_decode_encode_order_round_and_saturate() {
        float8::check_all_codes(&FORMAT, 57_344.0, 1.0 / 65_536.0);
    }

    #[test]
    fn known_codes_have_their_published_values() {
        let known =
            [(0x3C, 1.0), (0x3E, 1.5), (0x04, 6.103_515_6e-5), (0x01, 1.525_878_9e-5), (0xBC, -1.0), (0x7B, 57_344.0)];
        for (code, value) in known {
            assert_eq!(FORMAT.decode(code), value, "{code:#04x}");
        }
    }
}
