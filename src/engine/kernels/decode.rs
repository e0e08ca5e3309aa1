//! Rows of 8-bit codes to BF16: the part of decoding a KV cache that is worth vector instructions. Every path gives the same
//! bits, so which one a machine takes is not part of a record.

use super::rounding::{bf16_to_f32, f32_to_bf16};

/// `out[i] = table[codes[i]]`: any 8-bit code, its table built once by the codec.
///
/// # Panics
/// If the slices differ in length.
pub fn lut8_to_bf16(codes: &[u8], table: &[u16; 256], out: &mut [u16]) {
    assert_eq!(codes.len(), out.len(), "one output per code");
    #[cfg(target_arch = "x86_64")]
    let done = super::x86_64::lut8_to_bf16(codes, table, out);
    #[cfg(not(target_arch = "x86_64"))]
    let done = 0;
    lut8_portable(&codes[done..], table, &mut out[done..]);
}

/// `out[i] = bf16(codes[i] as i8 · scale)`: the product in f32, then rounded to nearest even.
///
/// # Panics
/// If the slices differ in length.
pub fn i8_scaled_to_bf16(codes: &[u8], scale: f32, out: &mut [u16]) {
    assert_eq!(codes.len(), out.len(), "one output per code");
    #[cfg(target_arch = "x86_64")]
    let done = super::x86_64::Avx512::detect().map_or(0, |token| token.i8_scaled_to_bf16(codes, scale, out));
    #[cfg(not(target_arch = "x86_64"))]
    let done = 0;
    i8_scaled_portable(&codes[done..], scale, &mut out[done..]);
}

/// `values[i] = bf16(values[i] · scale)`: the product in f32, then rounded to nearest even.
pub fn bf16_scaled(values: &mut [u16], scale: f32) {
    #[cfg(target_arch = "x86_64")]
    let done = super::x86_64::Avx512::detect().map_or(0, |token| token.bf16_scaled(values, scale));
    #[cfg(not(target_arch = "x86_64"))]
    let done = 0;
    bf16_scaled_portable(&mut values[done..], scale);
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

fn bf16_scaled_portable(values: &mut [u16], scale: f32) {
    for value in values {
        *value = f32_to_bf16(bf16_to_f32(*value) * scale);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All codes in several orders, in lengths on both sides of every vector step.
    fn code_rows() -> Vec<Vec<u8>> {
        let lengths = [0, 1, 15, 16, 17, 31, 32, 33, 64, 80, 256, 300];
        lengths.iter().map(|n| (0..*n).map(|i| (i as u8).wrapping_mul(37).wrapping_add(*n as u8)).collect()).collect()
    }

    #[test]
    fn every_code_is_looked_up() {
        let table: [u16; 256] = std::array::from_fn(|code| (code as u16).wrapping_mul(25_173));
        for codes in code_rows() {
            let mut out = vec![0xDEAD; codes.len()];
            lut8_to_bf16(&codes, &table, &mut out);
            let expected: Vec<u16> = codes.iter().map(|code| u16::from(*code).wrapping_mul(25_173)).collect();
            assert_eq!(out, expected, "{} codes", codes.len());
        }
    }

    #[test]
    fn scaled_codes_have_the_bits_of_the_portable_loop() {
        for scale in [1.0, 0.007_874_016, 1e-6, -0.3, 1e-40, 3e38, 0.0, f32::INFINITY, f32::NAN] {
            for codes in code_rows() {
                let (mut out, mut expected) = (vec![0xDEAD; codes.len()], vec![0xBEEF; codes.len()]);
                i8_scaled_to_bf16(&codes, scale, &mut out);
                i8_scaled_portable(&codes, scale, &mut expected);
                assert_eq!(out, expected, "{} codes, scale {scale}", codes.len());
            }
        }
        for scale in [1.0, 0.007_874_016, -0.3, 1e-40, 3e38, 0.0, f32::INFINITY] {
            let mut values: Vec<u16> = (0..1000).map(|i| f32_to_bf16((i as f32 - 500.0) * 0.37)).collect();
            let mut expected = values.clone();
            bf16_scaled(&mut values, scale);
            bf16_scaled_portable(&mut expected, scale);
            let is_same = |(a, b): (&u16, &u16)| a == b || (bf16_to_f32(*a).is_nan() && bf16_to_f32(*b).is_nan());
            assert!(values.iter().zip(&expected).all(is_same), "scale {scale}");
        }
        let mut one = [0];
        i8_scaled_to_bf16(&[0x81], 0.5, &mut one);
        assert_eq!(one, [f32_to_bf16(-63.5)], "codes are signed");
    }
}
