//! How one row (the K or V vector of one token and one KV head) is stored: trait [`KvCodec`].
//!
//! # Adding a codec
//! 1. A file in this folder with a unit struct that implements [`KvCodec`].
//! 2. A line in [`CODECS`]. Contract tests, kernels, CLI and records read the registry.

/// One way to store a row. Convention: quantize is `cast(x / scale)`, dequantize is `code · scale`.
pub trait KvCodec: Send + Sync {
    /// vLLM's spelling: `fp8_e4m3`.
    fn name(&self) -> &'static str;

    /// Packed bytes of one row of `head_dim` values, an inline scale included.
    fn row_bytes(&self, head_dim: usize) -> usize;

    /// How scales come about: `none (1.0)`, `dynamic per token and head`.
    fn scales(&self) -> &'static str;

    /// row `[head_dim]` → packed `[row_bytes]`. `scale` is the per-tensor scale; dynamic codecs ignore it.
    fn encode_row(&self, row: &[f32], scale: f32, packed: &mut [u8]);

    /// packed `[n_row · row_bytes]` → rows `[n_row, head_dim]`, exact values of the codes.
    fn decode_rows(&self, packed: &[u8], head_dim: usize, scale: f32, rows: &mut [f32]);

    /// The same rounded to BF16 (nearest even), as bit patterns. Codecs override it where a table or SIMD is faster.
    fn decode_rows_bf16(&self, packed: &[u8], head_dim: usize, scale: f32, rows: &mut [u16]);

    /// Largest |decode(encode(x)) − x| promised for a row whose largest magnitude is `row_abs_max` (at scale 1).
    fn max_abs_error(&self, row_abs_max: f32) -> f32;
}
