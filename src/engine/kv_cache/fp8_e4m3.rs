//! `fp8_e4m3`: 1 sign, 4 exponent and 3 mantissa bits. The largest value is 448 and there is no infinity, so saturation is what keeps large keys usable.

use crate::engine::kernels::decode::lut8_to_bf16;
use crate::engine::kv_cache::codec::KvCodec;
use crate::engine::kv_cache::float8::{self, Float8};

/// 1 byte a value.
pub(in crate::engine) struct Fp8E4m3;

const FORMAT: Float8 = Float8 { mantissa_bits: 3, bias: 7, max_code: 0x7E, infinity_code: None };
static VALUES: [f32; 256] = FORMAT.table();

impl KvCodec for Fp8E4m3 {
    fn name(&self) -> &'static str {
        "fp8_e4m3"
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
        // Half a unit in the last of 4 significant bits, at least half a subnormal unit; beyond 448 all is lost.
        (row_abs_max / 16.0).max(1.0 / 1024.0).max(row_abs_max - 448.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_256_codes_decode_encode_order_round_and_saturate() {
        float8::check_all_codes(&FORMAT, 448.0, 1.0 / 512.0);
    }

    #[test]
    fn known_codes_have_their_published_values() {
        let known = [(0x38, 1.0), (0x3C, 1.5), (0x08, 0.015_625), (0x01, 0.001_953_125), (0xB8, -1.0), (0x7E, 448.0)];
        for (code, value) in known {
            assert_eq!(FORMAT.decode(code), value, "{code:#04x}");
        }
    }
}
