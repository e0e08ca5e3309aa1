//! How one row (the K or V vector of one token and one KV head) is stored: trait [`KvCodec`].
//!
//! # Adding a codec
//! 1. A file in this folder with a unit struct that implements [`KvCodec`].
//! 2. A line in [`CODECS`]. Contract tests, kernels, CLI and records read the registry.

use crate::engine::kv_cache::{
    bfloat16, float8, float16, float32, fp8_per_token_head, int4_per_token_head, int8_per_token_head,
};

/// One way to store a row. Convention: quantize is `cast(x / scale)`, dequantize is `code · scale`.
pub trait KvCodec: Send + Sync {
    /// vLLM's spelling: `fp8_e4m3`.
    fn name(&self) -> &'static str;

    /// Packed bytes of one row of `head_dim` values, an inline scale included.
    fn row_bytes(&self, head_dim: usize) -> usize;

    /// How scales come about: `none (1.0)`, `dynamic per token and head`.
    fn scales(&self) -> &'static str;

    /// The largest value, for codecs that take a static scale: a scale of largest magnitude / range wastes nothing.
    fn static_scale_range(&self) -> Option<f32> {
        None
    }

    /// row `[head_dim]` → packed `[row_bytes]`. `scale` is the static scale; dynamic codecs ignore it.
    fn encode_row(&self, row: &[f32], scale: f32, packed: &mut [u8]);

    /// The same with [`KvRounding::TowardZero`]; only codecs of 8-bit floats differ.
    fn encode_row_toward_zero(&self, row: &[f32], scale: f32, packed: &mut [u8]) {
        self.encode_row(row, scale, packed);
    }

    /// packed `[n_row · row_bytes]` → rows `[n_row, head_dim]`, exact values of the codes.
    fn decode_rows(&self, packed: &[u8], head_dim: usize, scale: f32, rows: &mut [f32]);

    /// The same rounded to BF16 (nearest even), as bit patterns. Codecs override it where a table or SIMD is faster.
    fn decode_rows_bf16(&self, packed: &[u8], head_dim: usize, scale: f32, rows: &mut [u16]);

    /// What [`Self::decode_rows_bf16`] makes of each code at `scale`, where a row is nothing but 8-bit codes. Built once per
    /// scale by whoever decodes many rows.
    fn bf16_table(&self, _scale: f32) -> Option<[u16; 256]> {
        None
    }

    /// Values of the codes without the scale, codes `[n_row, head_dim]`, and the scale of each row, row_scales `[n_row]`;
    /// their product is what [`Self::decode_rows`] gives. Formats without a scale factor have scales of 1.
    fn decode_codes(&self, packed: &[u8], head_dim: usize, scale: f32, codes: &mut [f32], row_scales: &mut [f32]) {
        self.decode_rows(packed, head_dim, scale, codes);
        row_scales.fill(1.0);
    }

    /// Largest |decode(encode(x)) − x| promised for a row of `head_dim` values of which the largest magnitude is
    /// `row_abs_max` (at scale 1).
    fn max_abs_error(&self, row_abs_max: f32, head_dim: usize) -> f32;
}

/// How a cast to an 8-bit float treats what lies between two codes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvRounding {
    /// As on GPUs.
    #[default]
    NearestEven,
    /// As vLLM's CPU kernels: x · (1 / scale), then the lower bits are cut.
    TowardZero,
}

/// Every codec, in the order of bytes per value.
pub static CODECS: &[&dyn KvCodec] = &[
    &float32::Float32,
    &bfloat16::Bfloat16,
    &float16::Float16,
    &float8::FP8_E4M3,
    &float8::FP8_E5M2,
    &int8_per_token_head::Int8PerTokenHead,
    &fp8_per_token_head::Fp8PerTokenHead,
    &int4_per_token_head::Int4PerTokenHead { is_rotated: true },
];

/// `int4_per_token_head` of those who turn the rotation off: the same name, another codec.
static UNROTATED_INT4: &dyn KvCodec = &int4_per_token_head::Int4PerTokenHead { is_rotated: false };

/// Other names and what they stand for, in vLLM's spelling. `auto` is the model dtype, and models are BF16 here.
pub const ALIASES: &[(&str, &str)] = &[("auto", "bfloat16"), ("fp8", "fp8_e4m3")];

/// A `kv_cache_dtype` that no codec has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown kv_cache_dtype `{name}`; known: {}", known_dtypes().join(", "))]
pub struct UnknownDtype {
    /// As asked for.
    pub name: String,
}

/// The codec of `name`, aliases included. Nothing is chosen silently: an unknown name is an error.
pub fn codec(name: &str) -> Result<&'static dyn KvCodec, UnknownDtype> {
    let resolved = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, codec)| codec);
    let found = CODECS.iter().copied().find(|codec| codec.name() == resolved);
    found.ok_or_else(|| UnknownDtype { name: name.into() })
}

/// The codec of `name`; `int4_rotation` decides between the two codecs called `int4_per_token_head`.
pub fn codec_with(name: &str, int4_rotation: bool) -> Result<&'static dyn KvCodec, UnknownDtype> {
    let codec = codec(name)?;
    Ok(if !int4_rotation && codec.name() == UNROTATED_INT4.name() { UNROTATED_INT4 } else { codec })
}

/// Every legal `kv_cache_dtype`: aliases, then codecs.
pub fn known_dtypes() -> Vec<&'static str> {
    ALIASES.iter().map(|(alias, _)| *alias).chain(CODECS.iter().map(|codec| codec.name())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::kernels::f32_to_bf16;

    /// Rows that codecs get wrong: zeros, tiny, huge, mixed magnitudes, both signs, one outlier.
    fn awkward_rows(head_dim: usize) -> Vec<Vec<f32>> {
        let ramp = |factor: f32| (0..head_dim).map(|i| (i as f32 - head_dim as f32 / 2.0) * factor).collect();
        let wave = (0..head_dim).map(|i| (i as f32 * 0.7).sin() * 10_f32.powi(i as i32 % 7 - 3)).collect();
        let mut outlier = vec![0.01; head_dim];
        outlier[head_dim - 1] = -400.0;
        vec![vec![0.0; head_dim], ramp(1e-6), ramp(0.037), ramp(3.0), wave, outlier]
    }

    /// The registry and the codec that an option adds.
    fn all() -> impl Iterator<Item = &'static dyn KvCodec> {
        CODECS.iter().copied().chain([UNROTATED_INT4])
    }

    fn round_trip(codec: &dyn KvCodec, row: &[f32], scale: f32) -> Vec<f32> {
        let mut packed = vec![0xAA; codec.row_bytes(row.len())];
        let mut decoded = vec![f32::NAN; row.len()];
        codec.encode_row(row, scale, &mut packed);
        codec.decode_rows(&packed, row.len(), scale, &mut decoded);
        decoded
    }

    #[test]
    fn the_promised_error_holds_on_awkward_rows() {
        for codec in all() {
            for head_dim in [2, 32, 64, 80, 128] {
                for row in awkward_rows(head_dim) {
                    let row_abs_max = row.iter().fold(0_f32, |max, value| max.max(value.abs()));
                    let promised = codec.max_abs_error(row_abs_max, head_dim);
                    for (value, decoded) in row.iter().zip(round_trip(codec, &row, 1.0)) {
                        let error = (value - decoded).abs();
                        assert!(error <= promised, "{} {value} -> {decoded}, promised {promised}", codec.name());
                    }
                }
            }
        }
    }

    #[test]
    fn a_decoded_row_encodes_to_itself() {
        for codec in all() {
            for row in awkward_rows(64) {
                let once = round_trip(codec, &row, 1.0);
                let twice = round_trip(codec, &once, 1.0);
                // A dynamic scale is rounded anew, and a rotation rounds its sums: far less than a step of any code.
                let is_exact = !codec.scales().starts_with("dynamic");
                let slack = if is_exact { 0.0 } else { once.iter().fold(0_f32, |max, v| max.max(v.abs())) * 2e-6 };
                for (once, twice) in once.iter().zip(&twice) {
                    assert!((once - twice).abs() <= slack, "{}: {once} {twice}", codec.name());
                }
            }
        }
    }

    #[test]
    fn bf16_decoding_is_the_exact_value_rounded_for_many_rows_and_any_scale() {
        for codec in all() {
            for scale in [1.0, 0.25, 0.013_7, 3.1] {
                let (head_dim, rows) = (64, awkward_rows(64));
                let mut packed = vec![0; rows.len() * codec.row_bytes(head_dim)];
                for (row, packed) in rows.iter().zip(packed.chunks_exact_mut(codec.row_bytes(head_dim))) {
                    codec.encode_row(row, scale, packed);
                }
                let mut exact = vec![f32::NAN; rows.len() * head_dim];
                let mut rounded = vec![0; rows.len() * head_dim];
                codec.decode_rows(&packed, head_dim, scale, &mut exact);
                codec.decode_rows_bf16(&packed, head_dim, scale, &mut rounded);
                for (exact, rounded) in exact.iter().zip(&rounded) {
                    assert_eq!(f32_to_bf16(*exact), *rounded, "{} at scale {scale}", codec.name());
                }
            }
        }
    }

    #[test]
    fn values_far_beyond_the_range_saturate_and_nan_stays_nan() {
        for codec in all() {
            let decoded = round_trip(codec, &[1e9, -1e9, 0.0, 1.0], 1.0);
            let (most, least) = (decoded[0], decoded[1]);
            let asymmetry = if codec.name().starts_with("int4") { codec.max_abs_error(1e9, 4) } else { 0.0 };
            assert!(most.is_finite() && most > 400.0 && least < -400.0, "{}: {most} {least}", codec.name());
            assert!((most + least).abs() <= asymmetry, "{}: {most} {least}", codec.name());
            let decoded = round_trip(codec, &[f32::NAN, 1.0, 2.0, 3.0], 1.0);
            assert!(decoded[0].is_nan(), "{}: a lost NaN hides a broken model", codec.name());
        }
    }

    #[test]
    fn codes_times_row_scales_are_the_decoded_values() {
        for codec in all() {
            let (head_dim, rows) = (64, awkward_rows(64));
            let mut packed = vec![0; rows.len() * codec.row_bytes(head_dim)];
            for (row, packed) in rows.iter().zip(packed.chunks_exact_mut(codec.row_bytes(head_dim))) {
                codec.encode_row(row, 0.013_7, packed);
            }
            let (mut exact, mut codes) = (vec![0.0; rows.len() * head_dim], vec![0.0; rows.len() * head_dim]);
            let mut row_scales = vec![f32::NAN; rows.len()];
            codec.decode_rows(&packed, head_dim, 0.013_7, &mut exact);
            codec.decode_codes(&packed, head_dim, 0.013_7, &mut codes, &mut row_scales);
            for ((exact, codes), scale) in exact.chunks(head_dim).zip(codes.chunks(head_dim)).zip(row_scales) {
                for (exact, code) in exact.iter().zip(codes) {
                    assert_eq!(*exact, code * scale, "{}", codec.name());
                }
            }
            if let Some(table) = codec.bf16_table(0.013_7) {
                let codes: Vec<u8> = (0..=255).collect();
                let mut rounded = vec![0; 256];
                codec.decode_rows_bf16(&codes, 256, 0.013_7, &mut rounded);
                assert_eq!(rounded, table, "{}", codec.name());
            }
        }
    }

    #[test]
    fn static_scales_divide_before_the_cast_and_multiply_after() {
        for codec in all().filter(|codec| codec.scales().starts_with("none")) {
            let row = [3.0, -0.75, 0.062_5, 1.5];
            let scaled: Vec<f32> = row.iter().map(|value| value / 4.0).collect();
            let expected: Vec<f32> = round_trip(codec, &scaled, 1.0).iter().map(|value| value * 4.0).collect();
            assert_eq!(round_trip(codec, &row, 4.0), expected, "{}", codec.name());
        }
    }

    #[test]
    fn names_are_unique_and_aliases_resolve() {
        let mut names = known_dtypes();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CODECS.len() + ALIASES.len());
        assert_eq!(codec("auto").unwrap().name(), "bfloat16");
        assert_eq!(codec("fp8").unwrap().name(), "fp8_e4m3");
        for name in CODECS.iter().map(|codec| codec.name()) {
            assert_eq!(codec(name).unwrap().name(), name);
        }
        let message = codec("fp9").err().unwrap().to_string();
        assert!(message.contains("`fp9`") && message.contains("fp8_e5m2, int8_per_token_head"), "{message}");
        let int4 = |rotation| codec_with("int4_per_token_head", rotation).unwrap().scales();
        assert!(int4(true).contains("Hadamard") && int4(false).contains("without"));
        assert_eq!(codec_with("fp8", false).unwrap().name(), "fp8_e4m3");
        assert!(codec("FP8").is_err() && codec("").is_err());
    }
}
