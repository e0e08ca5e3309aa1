//! A row of bytes behind its own f32 scale: how the codecs with dynamic scales lay out a row.

/// vLLM's floor: a row of zeros must not divide by zero.
pub(in crate::engine::kv_cache) const MIN_SCALE: f32 = 1e-6;
/// An f32 in front of the codes.
pub(in crate::engine::kv_cache) const SCALE_BYTES: usize = 4;

/// Scale and codes of each row of packed `[n_row, SCALE_BYTES + n_code]`.
pub(in crate::engine::kv_cache) fn stored_rows(packed: &[u8], n_code: usize) -> impl Iterator<Item = (f32, &[u8])> {
    packed.chunks_exact(n_code + SCALE_BYTES).map(|stored| {
        let (scale, codes) = stored.split_first_chunk().expect("a stored row begins with its scale");
        (f32::from_le_bytes(*scale), codes)
    })
}

/// The largest magnitude; NaN is passed over, infinity is not.
pub(in crate::engine::kv_cache) fn abs_max(row: &[f32]) -> f32 {
    row.iter().fold(0_f32, |max, value| max.max(value.abs()))
}
