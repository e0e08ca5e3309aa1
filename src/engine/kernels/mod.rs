//! Every SIMD instruction and nearly every `unsafe` of the crate: GEMM and attention, one file per instruction set.
//!
//! All kernels share one packed weight layout and one contract: **the value of an output element depends only on its own
//! row and column**, never on how many rows or tiles are computed together, nor on the number of threads. Sums run over the
//! inner dimension in one fixed order per kernel, and attention walks the keys in blocks of [`KEY_BLOCK`] aligned to
//! absolute positions. So results are bit-identical for any batch, prefill chunk and thread count.

/// Keys per attention block, aligned to absolute positions.
pub const KEY_BLOCK: usize = 64;

/// Output columns per weight tile.
pub const TILE_OUT: usize = 16;

/// Weights of one linear layer in BF16, packed once at load: `[n_out/16][n_in/2][16][2]` bit patterns, both dimensions
/// padded with zeros (`n_out` to 16, `n_in` to 32). The layout of AMX and AVX-512 BF16 (VNNI) operands; the others read it too.
pub struct PackedMatrix {
    /// Rows of the weight (output features).
    pub n_out: usize,
    /// Columns of the weight (input features).
    pub n_in: usize,
    /// `n_in` padded to 32.
    pub n_in_padded: usize,
    /// The tiles.
    pub data: Vec<u16>,
}

/// K and V rows of one sequence, layer and KV head, as attention reads them: always out of the quantized cache.
pub trait KvRows: Sync {
    /// Decodes positions `start..start + n` to exact f32 values: k, v `[n, head_dim]`.
    fn decode_f32(&self, start: usize, n: usize, k: &mut [f32], v: &mut [f32]);

    /// Decodes positions `start..start + n` to BF16 bit patterns: k, v `[n, head_dim]`.
    fn decode_bf16(&self, start: usize, n: usize, k: &mut [u16], v: &mut [u16]);
}

/// Attention of consecutive query positions of one sequence over one KV head.
pub struct AttentionJob<'a> {
    /// Keys and values; at least `first_position + n_position` of them are stored.
    pub kv: &'a dyn KvRows,
    /// Queries `[n_position, group, head_dim]`, RoPE applied, not scaled.
    pub q: &'a [f32],
    /// Output, same shape.
    pub out: &'a mut [f32],
    /// Absolute position of the first query; query i attends to keys `0..=first_position + i` (inside `window`).
    pub first_position: usize,
    /// Query heads per KV head.
    pub group: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Softmax scale, usually `1/√head_dim`.
    pub scale: f32,
    /// Sliding window: only the last `window` keys, the query's own included.
    pub window: Option<usize>,
}

/// A set of compute routines with one arithmetic.
///
/// `f32` kernels (`reference`, `portable`, `x86_64-f32-avx2`): activations, decoded K/V, Q and P stay f32, weights are exact BF16.
/// `bf16` kernels: activations are rounded to BF16 before a product; in attention decoded K/V, Q (after scaling by 1) and P
/// are BF16; sums are f32 everywhere.
pub trait Kernel: Send + Sync {
    /// `{arch}-{dtype}-{variant}`, for example `x86_64-bf16-avx512`; stored in the record.
    fn name(&self) -> &'static str;

    /// y = x · Wᵀ for the weight tiles `tiles` (of 16 outputs each): x `[n_row, n_in]` → y `[tiles.len()][n_row][16]`.
    fn gemm(&self, x: &[f32], n_row: usize, w: &PackedMatrix, tiles: std::ops::Range<usize>, y: &mut [f32]);

    /// Flash-style attention of one job with online softmax over key blocks.
    fn attend(&self, job: &mut AttentionJob<'_>);
}
