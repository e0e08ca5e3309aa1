//! Rows of 8-bit codes to BF16: the part of decoding a KV cache that is worth vector instructions.

use super::rounding::f32_to_bf16;

/// `out[i] = table[codes[i]]`: any 8-bit code, its table built once by the codec.
///
/// # Panics
/// If the slices differ in length.
pub fn lut8_to_bf16(codes: &[u8], table: &[u16; 256], out: &mut [u16]) {
    assert_eq!(codes.len(), out.len(), "one output per code");
    lut8_portable(codes, table, out);
}

/// `out[i] = bf16(codes[i] as i8 · scale)`: the product in f32, then rounded to nearest even.
///
/// # Panics
/// If the slices differ in length.
pub fn i8_scaled_to_bf16(codes: &[u8], scale: f32, out: &mut [u16]) {
    assert_eq!(codes.len(), out.len(), "one output per code");
    i8_scaled_portable(codes, scale, out);
}

fn lut8_portable(codes: &[u8], table: &[u16; 256], out: &mut [u16]) {
    for (out, code) in out.iter_mut().zip(codes) {
        *out = table[usize::from(*code)];
    }
}

fn i8_scaled_portable(codes: &[u8], scale: f32, out: &mut [u16]) {
    for (out, code) in out.iter_mut().zip(codes) {
        *out = f32_to_bf16(f32::from(code.cast_signed()) * scale);
    }
}
