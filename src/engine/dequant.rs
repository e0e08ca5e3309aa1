//! Tensor types of weight files and their exact values.
//!
//! Quantized types store blocks of 32 or 256 values with scales; the layouts are those of ggml's `ggml-quants`. Products
//! are taken in f32 in the order in which ggml takes them, so values agree bit for bit before the rounding to BF16.

use half::f16;
use rayon::prelude::*;

use crate::engine::kernels::{bf16_to_f32, f32_to_bf16};

/// How a tensor's values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(non_camel_case_types, reason = "these are the names that the format gives them")]
pub enum TensorType {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    BF16,
    /// 32 signed bytes with a scale.
    Q8_0,
    /// 32 × 4 bits around 8 with a scale.
    Q4_0,
    /// 32 × 4 bits with scale and minimum.
    Q4_1,
    /// 32 × 5 bits around 16 with a scale.
    Q5_0,
    /// 32 × 5 bits with scale and minimum.
    Q5_1,
    /// 256 × 4 bits, 8 groups with 6-bit scales and minimums.
    Q4_K,
    /// 256 × 5 bits, 8 groups with 6-bit scales and minimums.
    Q5_K,
    /// 256 × 6 bits around 32, 16 groups with 8-bit scales.
    Q6_K,
}

/// Type, its name, ggml's number, values per block, bytes per block.
const TYPES: [(TensorType, &str, u32, usize, usize); 11] = [
    (TensorType::F32, "F32", 0, 1, 4),
    (TensorType::F16, "F16", 1, 1, 2),
    (TensorType::BF16, "BF16", 30, 1, 2),
    (TensorType::Q8_0, "Q8_0", 8, 32, 34),
    (TensorType::Q4_0, "Q4_0", 2, 32, 18),
    (TensorType::Q4_1, "Q4_1", 3, 32, 20),
    (TensorType::Q5_0, "Q5_0", 6, 32, 22),
    (TensorType::Q5_1, "Q5_1", 7, 32, 24),
    (TensorType::Q4_K, "Q4_K", 12, 256, 144),
    (TensorType::Q5_K, "Q5_K", 13, 256, 176),
    (TensorType::Q6_K, "Q6_K", 14, 256, 210),
];

impl TensorType {
    /// The type with ggml's number `type_id`.
    pub fn from_ggml(type_id: u32) -> Option<Self> {
        TYPES.iter().find(|(_, _, id, _, _)| *id == type_id).map(|(tensor_type, ..)| *tensor_type)
    }

    /// All names, for messages.
    pub fn names() -> String {
        TYPES.map(|(_, name, ..)| name).join(", ")
    }

    /// Values and bytes of one block.
    fn block(self) -> (usize, usize) {
        let (.., values, bytes) = TYPES.iter().find(|row| row.0 == self).expect("every type has a row in the table");
        (*values, *bytes)
    }

    /// Bytes of a row of `n` values; `None` if that is not a whole number of blocks or overflows.
    pub fn row_bytes(self, n: u64) -> Option<u64> {
        let (values, bytes) = self.block();
        if n.is_multiple_of(values as u64) { (n / values as u64).checked_mul(bytes as u64) } else { None }
    }

    /// Exact values: bytes of whole blocks → values.
    pub fn decode(self, bytes: &[u8], values: &mut [f32]) {
        let (block_values, block_bytes) = self.block();
        let decode_block = match self {
            Self::F32 => decode_f32,
            Self::F16 => decode_f16,
            Self::BF16 => decode_bf16,
            Self::Q8_0 => decode_q8_0,
            Self::Q4_0 => decode_q4_0,
            Self::Q4_1 => decode_q4_1,
            Self::Q5_0 => decode_q5_0,
            Self::Q5_1 => decode_q5_1,
            Self::Q4_K => decode_q4_k,
            Self::Q5_K => decode_q5_k,
            Self::Q6_K => decode_q6_k,
        };
        for (block, values) in bytes.chunks_exact(block_bytes).zip(values.chunks_exact_mut(block_values)) {
            decode_block(block, values);
        }
    }

    /// Values rounded to BF16: bytes of rows of `n_column` → `[n_row, n_column]` bit patterns, rows in parallel.
    pub fn decode_to_bf16(self, bytes: &[u8], n_column: usize) -> Vec<u16> {
        let (block_values, block_bytes) = self.block();
        let row_bytes = n_column / block_values * block_bytes;
        let mut rounded = vec![0; bytes.len() / row_bytes * n_column];
        let rows = rounded.par_chunks_exact_mut(n_column).zip(bytes.par_chunks_exact(row_bytes));
        rows.for_each_init(
            || vec![0_f32; n_column],
            |exact, (rounded, bytes)| {
                if self == Self::BF16 {
                    let codes = bytes.as_chunks().0.iter().map(|code| u16::from_le_bytes(*code));
                    rounded.iter_mut().zip(codes).for_each(|(value, code)| *value = code);
                } else {
                    self.decode(bytes, exact);
                    rounded.iter_mut().zip(exact).for_each(|(code, value)| *code = f32_to_bf16(*value));
                }
            },
        );
        rounded
    }
}

fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

fn decode_f32(block: &[u8], values: &mut [f32]) {
    values[0] = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
}

fn decode_f16(block: &[u8], values: &mut [f32]) {
    values[0] = half_at(block, 0);
}

fn decode_bf16(block: &[u8], values: &mut [f32]) {
    values[0] = bf16_to_f32(u16::from_le_bytes([block[0], block[1]]));
}

/// `scale f16, 32 × i8`.
fn decode_q8_0(block: &[u8], values: &mut [f32]) {
    let scale = half_at(block, 0);
    for (value, code) in values.iter_mut().zip(&block[2..]) {
        *value = f32::from(code.cast_signed()) * scale;
    }
}

/// `scale f16, 16 bytes`; low nibbles are the first half.
fn decode_q4_0(block: &[u8], values: &mut [f32]) {
    let scale = half_at(block, 0);
    for (i, byte) in block[2..].iter().enumerate() {
        values[i] = (f32::from(byte & 0x0F) - 8.0) * scale;
        values[i + 16] = (f32::from(byte >> 4) - 8.0) * scale;
    }
}

/// `scale f16, minimum f16, 16 bytes`.
fn decode_q4_1(block: &[u8], values: &mut [f32]) {
    let (scale, minimum) = (half_at(block, 0), half_at(block, 2));
    for (i, byte) in block[4..].iter().enumerate() {
        values[i] = f32::from(byte & 0x0F) * scale + minimum;
        values[i + 16] = f32::from(byte >> 4) * scale + minimum;
    }
}

/// The 5-bit codes of 16 bytes: the fifth bit of value i is bit i of `high`.
fn five_bit_codes(high: &[u8], low: &[u8], mut each: impl FnMut(usize, f32)) {
    let high = u32::from_le_bytes([high[0], high[1], high[2], high[3]]);
    let fifth = |i: usize| ((high >> i & 1) << 4) as u8;
    for (i, byte) in low.iter().enumerate() {
        each(i, f32::from(byte & 0x0F | fifth(i)));
        each(i + 16, f32::from(byte >> 4 | fifth(i + 16)));
    }
}

/// `scale f16, fifth bits u32, 16 bytes`.
fn decode_q5_0(block: &[u8], values: &mut [f32]) {
    let scale = half_at(block, 0);
    five_bit_codes(&block[2..6], &block[6..], |i, code| values[i] = (code - 16.0) * scale);
}

/// `scale f16, minimum f16, fifth bits u32, 16 bytes`.
fn decode_q5_1(block: &[u8], values: &mut [f32]) {
    let (scale, minimum) = (half_at(block, 0), half_at(block, 2));
    five_bit_codes(&block[4..8], &block[8..], |i, code| values[i] = code * scale + minimum);
}

/// Eight 6-bit scales and eight 6-bit minimums in 12 bytes: the low 6 bits of the first eight bytes are the first four of
/// each; the rest take their low nibbles from the last four bytes and their top bits from what the first eight have left.
fn six_bit_pair(packed: &[u8], group: usize) -> (f32, f32) {
    let (scale, minimum) = if group < 4 {
        (packed[group] & 0x3F, packed[group + 4] & 0x3F)
    } else {
        let low = packed[group + 4];
        (low & 0x0F | packed[group - 4] >> 6 << 4, low >> 4 | packed[group] >> 6 << 4)
    };
    (f32::from(scale), f32::from(minimum))
}

/// `scale f16, scale of minimums f16, 12 bytes of pairs, 128 bytes`; 32 bytes hold two groups, one per nibble.
fn decode_q4_k(block: &[u8], values: &mut [f32]) {
    let (scale, minimum_scale) = (half_at(block, 0), half_at(block, 2));
    for (group, values) in values.chunks_exact_mut(32).enumerate() {
        let (factor, minimum) = six_bit_pair(&block[4..16], group);
        let (factor, minimum) = (scale * factor, minimum_scale * minimum);
        let low = &block[16 + group / 2 * 32..][..32];
        for (value, byte) in values.iter_mut().zip(low) {
            let code = byte >> (group % 2 * 4) & 0x0F;
            *value = factor * f32::from(code) - minimum;
        }
    }
}

/// As `Q4_K` with 32 bytes of fifth bits in front of the nibbles: bit g belongs to group g.
fn decode_q5_k(block: &[u8], values: &mut [f32]) {
    let (scale, minimum_scale) = (half_at(block, 0), half_at(block, 2));
    let high = &block[16..48];
    for (group, values) in values.chunks_exact_mut(32).enumerate() {
        let (factor, minimum) = six_bit_pair(&block[4..16], group);
        let (factor, minimum) = (scale * factor, minimum_scale * minimum);
        let low = &block[48 + group / 2 * 32..][..32];
        for (value, (byte, high)) in values.iter_mut().zip(low.iter().zip(high)) {
            let code = byte >> (group % 2 * 4) & 0x0F | (high >> group & 1) << 4;
            *value = factor * f32::from(code) - minimum;
        }
    }
}

/// `128 bytes of low nibbles, 64 bytes of high pairs, 16 × i8 scales, scale f16`. Each half of 128 values is four runs of
/// 32: the runs share 32 bytes of high pairs, runs 0 and 2 share the first 32 bytes of nibbles, runs 1 and 3 the next.
fn decode_q6_k(block: &[u8], values: &mut [f32]) {
    let scale = half_at(block, 208);
    for (run, values) in values.chunks_exact_mut(32).enumerate() {
        let (half, quarter) = (run / 4, run % 4);
        let low = &block[half * 64 + quarter % 2 * 32..][..32];
        let high = &block[128 + half * 32..][..32];
        for (i, value) in values.iter_mut().enumerate() {
            let code = low[i] >> (quarter / 2 * 4) & 0x0F | (high[i] >> (quarter * 2) & 3) << 4;
            let factor = block[192 + half * 8 + quarter * 2 + i / 16].cast_signed();
            *value = scale * f32::from(factor) * (f32::from(code) - 32.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(tensor_type: TensorType, bytes: &[u8]) -> Vec<f32> {
        let (block_values, block_bytes) = tensor_type.block();
        let mut values = vec![f32::NAN; bytes.len() / block_bytes * block_values];
        tensor_type.decode(bytes, &mut values);
        values
    }

    fn half(value: f32) -> [u8; 2] {
        f16::from_f32(value).to_le_bytes()
    }

    /// Random blocks and what the reference implementation of the format makes of them.
    #[test]
    fn random_blocks_have_the_bits_of_the_reference_implementation() {
        #[derive(serde::Deserialize)]
        struct Sample {
            #[serde(rename = "type")]
            name: String,
            bytes: String,
            values: String,
        }
        let bytes = |hex: &str| -> Vec<u8> {
            (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
        };
        let samples: Vec<Sample> = serde_json::from_str(include_str!("../../tests/fixtures/ggml_blocks.json")).unwrap();
        assert_eq!(samples.len(), 8, "every block type");
        for sample in samples {
            let row = TYPES.iter().find(|(_, name, ..)| *name == sample.name).unwrap();
            let expected: Vec<u8> = bytes(&sample.values);
            let found: Vec<u8> =
                decoded(row.0, &bytes(&sample.bytes)).iter().flat_map(|value| value.to_le_bytes()).collect();
            assert!(found == expected, "{}", sample.name);
        }
    }

    #[test]
    fn hand_made_blocks_decode_to_what_the_layout_says() {
        let block = [&half(0.5)[..], &[0x80; 32]].concat();
        assert_eq!(decoded(TensorType::Q8_0, &block), [-64.0; 32]);

        let block = [&half(2.0)[..], &[0xF0; 16]].concat();
        let values = decoded(TensorType::Q4_0, &block);
        assert_eq!((&values[..16], &values[16..]), (&[-16.0; 16][..], &[14.0; 16][..]));

        let block = [&half(2.0)[..], &half(-1.0), &[0x3A; 16]].concat();
        let values = decoded(TensorType::Q4_1, &block);
        assert_eq!((&values[..16], &values[16..]), (&[19.0; 16][..], &[5.0; 16][..]));

        // Fifth bits only for the first and the last value.
        let block = [&half(1.0)[..], &0x8000_0001_u32.to_le_bytes(), &[0x21; 16]].concat();
        let values = decoded(TensorType::Q5_0, &block);
        assert_eq!([values[0], values[1], values[16], values[31]], [1.0, -15.0, -14.0, 2.0]);

        // Scale codes: group 0 has 1, group 7 has 0b11_0101; every minimum is 0.
        let mut pairs = [0; 12];
        (pairs[0], pairs[3], pairs[11]) = (1, 0xC0, 0x05);
        let block = [&half(1.0)[..], &half(1.0), &pairs, &[0x53; 128]].concat();
        let values = decoded(TensorType::Q4_K, &block);
        assert_eq!([values[0], values[32], values[223], values[224], values[255]], [3.0, 0.0, 0.0, 265.0, 265.0]);

        let block = [&[0x0F; 128][..], &[0xFF; 64], &[0xFE; 16], &half(1.0)].concat();
        let values = decoded(TensorType::Q6_K, &block);
        assert_eq!([values[0], values[64], values[255]], [-62.0, -32.0, -32.0]);
    }

    #[test]
    fn plain_types_are_exact_and_round_to_nearest_even() {
        let values = [1.0_f32, -2.5, 0.333_333_34, 3.0e38];
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(decoded(TensorType::F32, &bytes), values);
        assert_eq!(TensorType::F32.decode_to_bf16(&bytes, 2), values.map(f32_to_bf16));
        let bytes: Vec<u8> = values[..3].iter().flat_map(|value| half(*value)).collect();
        assert_eq!(decoded(TensorType::F16, &bytes), [1.0, -2.5, f16::from_f32(values[2]).to_f32()]);
        let codes = [0x3F80_u16, 0xC020, 0x7F80, 0x0001];
        let bytes: Vec<u8> = codes.iter().flat_map(|code| code.to_le_bytes()).collect();
        assert_eq!(TensorType::BF16.decode_to_bf16(&bytes, 4), codes);
        assert_eq!(decoded(TensorType::BF16, &bytes), codes.map(bf16_to_f32));
    }

    #[test]
    fn rows_are_whole_blocks() {
        assert_eq!(TensorType::Q4_K.row_bytes(512), Some(288));
        assert_eq!(TensorType::Q4_K.row_bytes(128), None);
        assert_eq!(TensorType::F32.row_bytes(u64::MAX), None);
        assert_eq!(TensorType::from_ggml(14), Some(TensorType::Q6_K));
        assert_eq!(TensorType::from_ggml(4), None);
    }
}
