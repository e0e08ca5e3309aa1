//! `fp8_e4m3` and `fp8_e5m2`: one sign bit, then exponent, then mantissa. OCP "8-bit floating point specification", rev. 1.0.
//!
//! `fp8_e4m3` (4 exponent, 3 mantissa bits) ends at 448 and has no infinity, so saturation is what keeps large keys usable;
//! `fp8_e5m2` (5 and 2) ends at 57,344 and has infinities.
//!
//! A cast rounds to nearest even and saturates to the largest finite value; NaN stays NaN. That is what
//! `__nv_cvt_float_to_fp8` does with `__NV_SATFINITE`, and so what CUDA serving engines store. vLLM's CPU kernels cut the
//! payload toward zero instead.

use crate::engine::kernels::decode::lut8_to_bf16;
use crate::engine::kernels::f32_to_bf16;
use crate::engine::kv_cache::codec::KvCodec;

/// 1 byte a value, with the mantissa bits as the parameter so that every constant of a format is known to the compiler.
pub(in crate::engine) struct Float8<const MANTISSA_BITS: u32>;

/// 4 exponent bits, 3 mantissa bits.
pub(in crate::engine) type Fp8E4m3 = Float8<3>;
/// 5 exponent bits, 2 mantissa bits.
pub(in crate::engine) type Fp8E5m2 = Float8<2>;

/// `fp8_e4m3` and `fp8_e5m2` as codecs.
pub(in crate::engine) static FP8_E4M3: Fp8E4m3 = Float8;
pub(in crate::engine) static FP8_E5M2: Fp8E5m2 = Float8;

/// Canonical NaN of both formats, without its sign.
const NAN_CODE: u8 = 0x7F;

impl<const MANTISSA_BITS: u32> Float8<MANTISSA_BITS> {
    /// Subtracted from the stored exponent.
    const BIAS: u32 = (1 << (6 - MANTISSA_BITS)) - 1;
    /// Code of infinity, where the format has one: with 5 exponent bits.
    const INFINITY_CODE: Option<u8> = if MANTISSA_BITS == 2 { Some(0x7C) } else { None };
    /// Code of the largest finite value.
    const MAX_CODE: u8 = if MANTISSA_BITS == 2 { 0x7B } else { 0x7E };
    /// Smallest magnitude with a leading one, as f32 bits.
    const SMALLEST_NORMAL: u32 = (128 - Self::BIAS) << 23;
    /// The largest finite value.
    pub(in crate::engine) const LARGEST: f32 = Self::decode(Self::MAX_CODE);
    /// Values of all codes.
    const VALUES: [f32; 256] = Self::table();
    /// The same as BF16 bit patterns, in which they are exact.
    pub(in crate::engine::kv_cache) const BF16_VALUES: [u16; 256] = Self::scaled_table(1.0);

    /// The nearest code. Free of branches that depend on neighbours, so that loops over it become vector code.
    #[inline(always)]
    pub(in crate::engine) const fn encode(value: f32) -> u8 {
        let bits = value.to_bits();
        let magnitude = bits & 0x7FFF_FFFF;
        let sign = ((bits >> 24) & 0x80) as u8;

        // Normal results: add half a unit less one, plus the bit that decides ties, then cut; carries grow the exponent.
        let shift = 23 - MANTISSA_BITS;
        let half_unit_below = (1 << (shift - 1)) - 1;
        let rounded = (magnitude.wrapping_add(half_unit_below + ((magnitude >> shift) & 1))) >> shift;
        let normal = rounded.wrapping_sub((127 - Self::BIAS) << MANTISSA_BITS) as u8;

        // Subnormal results are multiples of one unit: adding 2²³ units makes the adder round to it, ties to even.
        let units_to_one = Self::BIAS - 1 + MANTISSA_BITS;
        let magic = f32::from_bits((127 + 23 - units_to_one) << 23);
        let subnormal = ((f32::from_bits(magnitude) + magic).to_bits().wrapping_sub(magic.to_bits())) as u8;

        let code = if magnitude < Self::SMALLEST_NORMAL { subnormal } else { normal };
        let saturated = if magnitude >= Self::LARGEST.to_bits() { Self::MAX_CODE } else { code };
        sign | if magnitude > 0x7F80_0000 { NAN_CODE } else { saturated }
    }

    /// The code of the largest magnitude that is not above `value`'s: the payload's lower bits are cut.
    #[inline(always)]
    pub(in crate::engine) const fn encode_toward_zero(value: f32) -> u8 {
        let bits = value.to_bits();
        let magnitude = bits & 0x7FFF_FFFF;
        let sign = ((bits >> 24) & 0x80) as u8;
        let normal = (magnitude >> (23 - MANTISSA_BITS)).wrapping_sub((127 - Self::BIAS) << MANTISSA_BITS) as u8;
        // Units of the subnormals; the product is exact and the cast cuts.
        let units_per_one = f32::from_bits((127 + Self::BIAS - 1 + MANTISSA_BITS) << 23);
        let subnormal = (f32::from_bits(magnitude) * units_per_one) as u8;
        let code = if magnitude < Self::SMALLEST_NORMAL { subnormal } else { normal };
        let saturated = if magnitude >= Self::LARGEST.to_bits() { Self::MAX_CODE } else { code };
        sign | if magnitude > 0x7F80_0000 { NAN_CODE } else { saturated }
    }

    /// The exact value of a code.
    pub(in crate::engine) const fn decode(code: u8) -> f32 {
        let magnitude = code & 0x7F;
        let sign = ((code & 0x80) as u32) << 24;
        let is_infinity = matches!(Self::INFINITY_CODE, Some(infinity) if magnitude == infinity);
        let bits = if is_infinity {
            0x7F80_0000
        } else if magnitude > Self::MAX_CODE {
            0x7FC0_0000
        } else if magnitude >> MANTISSA_BITS == 0 {
            let unit = f32::from_bits((128 - Self::BIAS - MANTISSA_BITS) << 23);
            (magnitude as f32 * unit).to_bits()
        } else {
            ((magnitude as u32) << (23 - MANTISSA_BITS)) + ((127 - Self::BIAS) << 23)
        };
        f32::from_bits(bits | sign)
    }

    const fn table() -> [f32; 256] {
        let mut table = [0.0; 256];
        let mut code = 0;
        while code < 256 {
            table[code] = Self::decode(code as u8);
            code += 1;
        }
        table
    }

    /// All values times `scale`, rounded to BF16: 256 products instead of one per stored value.
    const fn scaled_table(scale: f32) -> [u16; 256] {
        let mut table = [0; 256];
        let mut code = 0;
        while code < 256 {
            table[code] = f32_to_bf16(Self::decode(code as u8) * scale);
            code += 1;
        }
        table
    }
}

impl<const MANTISSA_BITS: u32> KvCodec for Float8<MANTISSA_BITS> {
    fn name(&self) -> &'static str {
        if MANTISSA_BITS == 2 { "fp8_e5m2" } else { "fp8_e4m3" }
    }

    fn row_bytes(&self, head_dim: usize) -> usize {
        head_dim
    }

    fn scales(&self) -> &'static str {
        "none (1.0)"
    }

    fn static_scale_range(&self) -> Option<f32> {
        Some(Self::LARGEST)
    }

    fn encode_row(&self, row: &[f32], scale: f32, packed: &mut [u8]) {
        for (value, code) in row.iter().zip(packed) {
            *code = Self::encode(value / scale);
        }
    }

    fn encode_row_toward_zero(&self, row: &[f32], scale: f32, packed: &mut [u8]) {
        // The CPU kernels multiply by the reciprocal.
        let factor = 1.0 / scale;
        for (value, code) in row.iter().zip(packed) {
            *code = Self::encode_toward_zero(value * factor);
        }
    }

    fn decode_rows(&self, packed: &[u8], _head_dim: usize, scale: f32, rows: &mut [f32]) {
        for (code, value) in packed.iter().zip(rows) {
            *value = Self::VALUES[usize::from(*code)] * scale;
        }
    }

    fn decode_rows_bf16(&self, packed: &[u8], _head_dim: usize, scale: f32, rows: &mut [u16]) {
        lut8_to_bf16(packed, &Self::scaled_table(scale), rows);
    }

    fn bf16_table(&self, scale: f32) -> Option<[u16; 256]> {
        Some(Self::scaled_table(scale))
    }

    fn decode_codes(&self, packed: &[u8], head_dim: usize, scale: f32, codes: &mut [f32], row_scales: &mut [f32]) {
        self.decode_rows(packed, head_dim, 1.0, codes);
        row_scales.fill(scale);
    }

    fn max_abs_error(&self, row_abs_max: f32, _head_dim: usize) -> f32 {
        // Half a unit in the last significant bit, at least half a subnormal unit; beyond the largest value all is lost.
        let half_unit = row_abs_max / (2 << MANTISSA_BITS) as f32;
        half_unit.max(Self::decode(1) / 2.0).max(row_abs_max - Self::LARGEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Codes of one sign in order of magnitude; the neighbours of every value follow from their list.
    fn check_all_codes<const M: u32>(largest: f32, smallest: f32) {
        let max_code = Float8::<M>::MAX_CODE;
        let (encode, decode) = (Float8::<M>::encode, Float8::<M>::decode);
        for code in 0..=255_u8 {
            let value = decode(code);
            let magnitude = code & 0x7F;
            if magnitude <= max_code {
                assert_eq!(encode(value), code, "{code:#04x} = {value}");
                assert_eq!(Float8::<M>::encode_toward_zero(value), code, "{code:#04x} = {value}");
                assert_eq!(value.is_sign_negative(), code >= 0x80, "{code:#04x}");
            } else if Float8::<M>::INFINITY_CODE == Some(magnitude) {
                assert!(value.is_infinite());
                assert_eq!(encode(value), (code & 0x80) | max_code, "casting infinity saturates");
            } else {
                assert!(value.is_nan(), "{code:#04x}");
                assert_eq!(encode(value) & 0x7F, NAN_CODE, "{code:#04x}");
                assert_eq!(Float8::<M>::encode_toward_zero(value) & 0x7F, NAN_CODE, "{code:#04x}");
            }
        }
        assert_eq!((decode(max_code), decode(1)), (largest, smallest));

        for code in 0..max_code {
            let (low, high) = (decode(code), decode(code + 1));
            let midpoint = low.midpoint(high);
            assert!(low < high, "order at {code:#04x}");
            let even = if code.is_multiple_of(2) { code } else { code + 1 };
            for (sign, factor) in [(0, 1.0), (0x80, -1.0)] {
                assert_eq!(encode(midpoint * factor), even | sign, "tie above {code:#04x}");
                assert_eq!(encode(midpoint.next_down() * factor), code | sign, "below the tie of {code:#04x}");
                assert_eq!(encode(midpoint.next_up() * factor), (code + 1) | sign, "above the tie of {code:#04x}");
                for inside in [low.next_up(), midpoint, high.next_down()] {
                    let cut = Float8::<M>::encode_toward_zero(inside * factor);
                    assert_eq!(cut, code | sign, "{inside} lies above {code:#04x}");
                }
            }
        }
        for value in [largest, largest.next_up(), largest * 1.04, largest * 2.0, f32::MAX, f32::INFINITY] {
            for encode in [encode, Float8::<M>::encode_toward_zero] {
                assert_eq!(encode(value), max_code, "{value}");
                assert_eq!(encode(-value), max_code | 0x80, "{value}");
            }
        }
        for encode in [encode, Float8::<M>::encode_toward_zero] {
            assert_eq!(encode(f32::MIN_POSITIVE), 0);
            assert_eq!(encode(-1e-45), 0x80, "a vanishing value keeps its sign");
        }
    }

    #[test]
    fn all_256_codes_decode_encode_order_round_cut_and_saturate() {
        check_all_codes::<3>(448.0, 1.0 / 512.0);
        check_all_codes::<2>(57_344.0, 1.0 / 65_536.0);
    }

    /// The bit-level rule of the CPU kernels for normal results: rebias the exponent, keep the upper mantissa bits.
    #[test]
    fn cutting_keeps_the_upper_bits_of_the_payload() {
        for upper in 0..1_u32 << 16 {
            for lower in [0, 1, 0x8000, 0xFFFF] {
                let value = f32::from_bits(upper << 16 | lower);
                let (exponent, mantissa) = (value.to_bits() >> 23 & 0xFF, value.to_bits() & 0x7F_FFFF);
                let sign = (value.to_bits() >> 24) as u8 & 0x80;
                if (121..=134).contains(&exponent) {
                    let expected = ((exponent - 120) << 3 | mantissa >> 20) as u8;
                    assert_eq!(Fp8E4m3::encode_toward_zero(value), sign | expected, "{value}");
                }
                if (113..=141).contains(&exponent) {
                    let expected = ((exponent - 112) << 2 | mantissa >> 21) as u8;
                    assert_eq!(Fp8E5m2::encode_toward_zero(value), sign | expected, "{value}");
                }
                let cut = Fp8E4m3::decode(Fp8E4m3::encode_toward_zero(value));
                assert!(value.is_nan() || cut.abs() <= value.abs(), "{value} -> {cut}");
            }
        }
    }

    #[test]
    fn known_codes_have_their_published_values() {
        let e4m3 = [(0x38, 1.0), (0x3C, 1.5), (0x08, 0.015_625), (0x01, 0.001_953_125), (0xB8, -1.0), (0x7E, 448.0)];
        for (code, value) in e4m3 {
            assert_eq!(Fp8E4m3::decode(code), value, "{code:#04x}");
        }
        let e5m2 =
            [(0x3C, 1.0), (0x3E, 1.5), (0x04, 6.103_515_6e-5), (0x01, 1.525_878_9e-5), (0xBC, -1.0), (0x7B, 57_344.0)];
        for (code, value) in e5m2 {
            assert_eq!(Fp8E5m2::decode(code), value, "{code:#04x}");
        }
    }

    #[test]
    fn cutting_multiplies_by_the_reciprocal_of_the_scale() {
        let mut packed = [0; 3];
        Float8::<3>.encode_row_toward_zero(&[3.9, -0.74, 1e9], 0.5, &mut packed);
        assert_eq!(packed.map(Fp8E4m3::decode), [7.5, -1.375, 448.0]);
    }
}
