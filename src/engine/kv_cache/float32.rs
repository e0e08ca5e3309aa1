//! `float32`: not a serving dtype; it keeps everything, for comparison with reference implementations.

use crate::engine::kernels::f32_to_bf16;
use crate::engine::kv_cache::codec::KvCodec;

/// 4 bytes a value, little endian.
pub(in crate::engine) struct Float32;

impl KvCodec for Float32 {
    fn name(&self) -> &'static str {
        "float32"
    }

    fn row_bytes(&self, head_dim: usize) -> usize {
        head_dim * 4
    }

    fn scales(&self) -> &'static str {
        "none (1.0)"
    }

    fn encode_row(&self, row: &[f32], scale: f32, packed: &mut [u8]) {
        for (value, code) in row.iter().zip(packed.as_chunks_mut::<4>().0) {
            *code = (value / scale).to_le_bytes();
        }
    }

    fn decode_rows(&self, packed: &[u8], _head_dim: usize, scale: f32, rows: &mut [f32]) {
        for (code, value) in packed.as_chunks::<4>().0.iter().zip(rows) {
            *value = f32::from_le_bytes(*code) * scale;
        }
    }

    fn decode_rows_bf16(&self, packed: &[u8], _head_dim: usize, scale: f32, rows: &mut [u16]) {
        for (code, value) in packed.as_chunks::<4>().0.iter().zip(rows) {
            *value = f32_to_bf16(f32::from_le_bytes(*code) * scale);
        }
    }

    fn max_abs_error(&self, _row_abs_max: f32, _head_dim: usize) -> f32 {
        0.0
    }
}
