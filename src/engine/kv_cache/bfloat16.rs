//! `bfloat16`: the model dtype itself, the baseline of every comparison.

use crate::engine::kernels::{bf16_to_f32, f32_to_bf16};
use crate::engine::kv_cache::codec::KvCodec;

/// 2 bytes a value, little endian.
pub(in crate::engine) struct Bfloat16;

impl KvCodec for Bfloat16 {
    fn name(&self) -> &'static str {
        "bfloat16"
    }

    fn row_bytes(&self, head_dim: usize) -> usize {
        head_dim * 2
    }

    fn scales(&self) -> &'static str {
        "none (1.0)"
    }

    fn encode_row(&self, row: &[f32], scale: f32, packed: &mut [u8]) {
        for (value, code) in row.iter().zip(packed.as_chunks_mut::<2>().0) {
            *code = f32_to_bf16(value / scale).to_le_bytes();
        }
    }

    fn decode_rows(&self, packed: &[u8], _head_dim: usize, scale: f32, rows: &mut [f32]) {
        for (code, value) in packed.as_chunks::<2>().0.iter().zip(rows) {
            *value = bf16_to_f32(u16::from_le_bytes(*code)) * scale;
        }
    }

    fn decode_rows_bf16(&self, packed: &[u8], _head_dim: usize, scale: f32, rows: &mut [u16]) {
        let codes = packed.as_chunks::<2>().0.iter().map(|code| u16::from_le_bytes(*code));
        if scale == 1.0 {
            rows.iter_mut().zip(codes).for_each(|(value, code)| *value = code);
        } else {
            rows.iter_mut().zip(codes).for_each(|(value, code)| *value = f32_to_bf16(bf16_to_f32(code) * scale));
        }
    }

    fn max_abs_error(&self, row_abs_max: f32, _head_dim: usize) -> f32 {
        // Half a unit in the last of 8 significant bits; the addend covers subnormals.
        row_abs_max / 256.0 + 1e-38
    }
}
