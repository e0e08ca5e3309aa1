//! `int4_per_token_head`: 4-bit codes with a scale and a zero point per token and head, after a randomized Hadamard rotation.
//!
//! A row is turned by the orthonormal `H · diag(signs) / √n`, which spreads an outlier over all values, and is turned back
//! when it is decoded. Code 0 stands for the row's smallest value, code 15 for its largest. The dtype, the rotation and the
//! zero point are vLLM's; ours are the layout `[scale: f32][zero point: f32][two codes a byte, low half first]` with the zero
//! point kept as a value, the signs (a hash of the dimension, equal for all layers), and the blocks: a head whose width is not
//! a power of two is turned in blocks of its largest power-of-two divisor.

use crate::engine::kernels::f32_to_bf16;
use crate::engine::kv_cache::codec::KvCodec;
use crate::engine::kv_cache::hashing::mix;
use crate::engine::kv_cache::row_scale::MIN_SCALE;

/// Half a byte a value plus 8 bytes a row.
pub(in crate::engine) struct Int4PerTokenHead {
    /// Turned by the Hadamard rotation.
    pub(in crate::engine) is_rotated: bool,
}

const LARGEST_CODE: f32 = 15.0;
/// Scale and zero point, f32 each.
const HEADER_BYTES: usize = 8;
/// Widest head of any model that can be loaded.
const MAX_HEAD_DIM: usize = 1024;
/// Any constant will do; this one is √2's fraction.
const SIGN_SEED: u64 = 0x6A09_E667_F3BC_C908;

/// +1 or −1 for each dimension.
static SIGNS: [f32; MAX_HEAD_DIM] = {
    let mut signs = [1.0; MAX_HEAD_DIM];
    let mut dimension = 0;
    while dimension < MAX_HEAD_DIM {
        if mix(SIGN_SEED ^ dimension as u64) >> 63 == 1 {
            signs[dimension] = -1.0;
        }
        dimension += 1;
    }
    signs
};

/// Largest power of two that divides `head_dim`.
fn rotation_block(head_dim: usize) -> usize {
    1 << head_dim.trailing_zeros()
}

/// In place `H · row / √n` for each block of the row; its own inverse.
fn hadamard(row: &mut [f32]) {
    let n = rotation_block(row.len());
    let norm = 1.0 / (n as f32).sqrt();
    for block in row.chunks_exact_mut(n) {
        let mut half = 1;
        while half < n {
            for pair in block.chunks_exact_mut(2 * half) {
                let (low, high) = pair.split_at_mut(half);
                for (a, b) in low.iter_mut().zip(high) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            half *= 2;
        }
        block.iter_mut().for_each(|value| *value *= norm);
    }
}

fn flip_signs(row: &mut [f32]) {
    row.iter_mut().zip(&SIGNS).for_each(|(value, sign)| *value *= sign);
}

impl Int4PerTokenHead {
    fn decode_row(&self, packed: &[u8], row: &mut [f32]) {
        let (scale, rest) = packed.split_first_chunk().expect("a stored row begins with its scale");
        let (zero, codes) = rest.split_first_chunk().expect("the zero point follows");
        let (scale, zero) = (f32::from_le_bytes(*scale), f32::from_le_bytes(*zero));
        for (code, values) in codes.iter().zip(row.chunks_mut(2)) {
            for (value, code) in values.iter_mut().zip([code & 0x0F, code >> 4]) {
                *value = f32::from(code) * scale + zero;
            }
        }
        if self.is_rotated {
            hadamard(row);
            flip_signs(row);
        }
    }
}

impl KvCodec for Int4PerTokenHead {
    fn name(&self) -> &'static str {
        "int4_per_token_head"
    }

    fn row_bytes(&self, head_dim: usize) -> usize {
        head_dim.div_ceil(2) + HEADER_BYTES
    }

    fn scales(&self) -> &'static str {
        if self.is_rotated {
            "dynamic per token and head, with zero point, after Hadamard rotation"
        } else {
            "dynamic per token and head, with zero point, without rotation"
        }
    }

    fn encode_row(&self, row: &[f32], _scale: f32, packed: &mut [u8]) {
        let mut turned = [0.0; MAX_HEAD_DIM];
        let turned = &mut turned[..row.len()];
        turned.copy_from_slice(row);
        if self.is_rotated {
            flip_signs(turned);
            hadamard(turned);
        }
        let (low, high) =
            turned.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(low, high), v| (low.min(*v), high.max(*v)));
        // Half a byte cannot be NaN, but the scale can: a broken row stays visibly broken.
        let is_broken = turned.iter().any(|value| !value.is_finite());
        // Divided before the difference, which could overflow.
        let step = (high / LARGEST_CODE - low / LARGEST_CODE).max(MIN_SCALE);
        let scale = if is_broken { f32::NAN } else { step };
        packed[..4].copy_from_slice(&scale.to_le_bytes());
        packed[4..HEADER_BYTES].copy_from_slice(&low.to_le_bytes());
        let code_of = |value: f32| ((value - low) / scale).round().clamp(0.0, LARGEST_CODE) as u8;
        for (values, code) in turned.chunks(2).zip(&mut packed[HEADER_BYTES..]) {
            *code = code_of(values[0]) | values.get(1).map_or(0, |value| code_of(*value) << 4);
        }
    }

    fn decode_rows(&self, packed: &[u8], head_dim: usize, _scale: f32, rows: &mut [f32]) {
        let packed_rows = packed.chunks_exact(self.row_bytes(head_dim));
        packed_rows.zip(rows.chunks_exact_mut(head_dim)).for_each(|(packed, row)| self.decode_row(packed, row));
    }

    fn decode_rows_bf16(&self, packed: &[u8], head_dim: usize, _scale: f32, rows: &mut [u16]) {
        let mut exact = [0.0; MAX_HEAD_DIM];
        let exact = &mut exact[..head_dim];
        for (packed, row) in packed.chunks_exact(self.row_bytes(head_dim)).zip(rows.chunks_exact_mut(head_dim)) {
            self.decode_row(packed, exact);
            row.iter_mut().zip(&*exact).for_each(|(rounded, value)| *rounded = f32_to_bf16(*value));
        }
    }

    fn max_abs_error(&self, row_abs_max: f32, head_dim: usize) -> f32 {
        // Half a step of a range of at most 2 · max. Turning a block of n multiplies the range by at most √n, and turning the
        // error back once more by √n. Then the rounding of the sums.
        let n = if self.is_rotated { rotation_block(head_dim) as f32 } else { 1.0 };
        let half_step = 0.5 * (2.0 * n.sqrt() * row_abs_max / LARGEST_CODE).max(MIN_SCALE);
        half_step * n.sqrt() + row_abs_max * n * 8.0 * f32::EPSILON
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Int4PerTokenHead = Int4PerTokenHead { is_rotated: false };
    const ROTATED: Int4PerTokenHead = Int4PerTokenHead { is_rotated: true };

    fn round_trip(codec: &Int4PerTokenHead, row: &[f32]) -> Vec<f32> {
        let mut packed = vec![0; codec.row_bytes(row.len())];
        codec.encode_row(row, 1.0, &mut packed);
        let mut decoded = vec![0.0; row.len()];
        codec.decode_rows(&packed, row.len(), 1.0, &mut decoded);
        decoded
    }

    #[test]
    fn all_16_codes_come_back_also_for_an_odd_width() {
        let row: Vec<f32> = (0..16).map(|code| 3.0 + code as f32 * 0.5).collect();
        assert_eq!(round_trip(&PLAIN, &row), row);
        assert_eq!(round_trip(&PLAIN, &row[..15]).len(), 15);
        assert_eq!(round_trip(&PLAIN, &[-1.0, 14.0, 0.0]), [-1.0, 14.0, 0.0]);
        let mut packed = vec![0; PLAIN.row_bytes(4)];
        PLAIN.encode_row(&[0.0, 15.0, 2.0, 9.0], 1.0, &mut packed);
        assert_eq!((packed.len(), &packed[8..]), (10, &[0xF0, 0x92][..]), "the first of two codes is the low half");
    }

    #[test]
    fn the_rotation_keeps_lengths_and_undoes_itself() {
        for n in [1, 2, 6, 64, 80, 96, 128] {
            let row: Vec<f32> = (0..n).map(|i| (i as f32 * 1.3).sin()).collect();
            let length = |row: &[f32]| row.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>();
            let mut turned = row.clone();
            flip_signs(&mut turned);
            hadamard(&mut turned);
            assert!((length(&turned) - length(&row)).abs() <= 1e-5 * length(&row), "{n}");
            assert!(n < 2 || turned != row, "{n}");
            hadamard(&mut turned);
            flip_signs(&mut turned);
            for (back, value) in turned.iter().zip(&row) {
                assert!((back - value).abs() < 1e-5, "{n}");
            }
        }
        assert_eq!((rotation_block(80), rotation_block(96), rotation_block(7)), (16, 32, 1));
        let n_negative = SIGNS[..64].iter().filter(|sign| **sign < 0.0).count();
        assert!((20..45).contains(&n_negative), "{n_negative} of 64 signs are negative");
    }

    #[test]
    fn the_rotation_saves_the_small_values_beside_an_outlier() {
        let mut row: Vec<f32> = (0..128).map(|i| (i as f32 * 0.9).sin()).collect();
        row[5] = 60.0;
        let error = |codec: &Int4PerTokenHead| {
            let decoded = round_trip(codec, &row);
            row.iter().zip(decoded).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>()
        };
        assert!(error(&ROTATED) * 4.0 < error(&PLAIN), "{} {}", error(&ROTATED), error(&PLAIN));
    }
}
