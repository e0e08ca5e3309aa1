//! The arithmetic that both 8-bit float formats share: one sign bit, then exponent, then mantissa.
//!
//! A cast rounds to nearest even and saturates to the largest finite value; NaN stays NaN. That is what
//! `__nv_cvt_float_to_fp8` does with `__NV_SATFINITE`, and so what CUDA serving engines store.

use crate::engine::kernels::f32_to_bf16;

/// An 8-bit float format. OCP "8-bit floating point specification", revision 1.0.
pub(in crate::engine::kv_cache) struct Float8 {
    /// Bits of the fraction.
    pub(in crate::engine::kv_cache) mantissa_bits: u32,
    /// Subtracted from the stored exponent.
    pub(in crate::engine::kv_cache) bias: u32,
    /// Code of the largest finite value.
    pub(in crate::engine::kv_cache) max_code: u8,
    /// Code of infinity, where the format has one.
    pub(in crate::engine::kv_cache) infinity_code: Option<u8>,
}

/// Canonical NaN of both formats, without its sign.
const NAN_CODE: u8 = 0x7F;

impl Float8 {
    /// The nearest code. Free of branches that depend on neighbours, so that loops over it become vector code.
    #[inline(always)]
    pub(in crate::engine::kv_cache) const fn encode(&self, value: f32) -> u8 {
        let bits = value.to_bits();
        let magnitude = bits & 0x7FFF_FFFF;
        let sign = ((bits >> 24) & 0x80) as u8;

        // Normal results: add half a unit less one, plus the bit that decides ties, then cut; carries grow the exponent.
        let shift = 23 - self.mantissa_bits;
        let half_unit_below = (1 << (shift - 1)) - 1;
        let rounded = (magnitude.wrapping_add(half_unit_below + ((magnitude >> shift) & 1))) >> shift;
        let normal = rounded.wrapping_sub((127 - self.bias) << self.mantissa_bits) as u8;

        // Subnormal results are multiples of one unit: adding 2²³ units makes the adder round to it, ties to even.
        let units_to_one = self.bias - 1 + self.mantissa_bits;
        let magic = f32::from_bits((127 + 23 - units_to_one) << 23);
        let subnormal = ((f32::from_bits(magnitude) + magic).to_bits().wrapping_sub(magic.to_bits())) as u8;

        let smallest_normal = (128 - self.bias) << 23;
        let code = if magnitude < smallest_normal { subnormal } else { normal };
        let saturated = if magnitude >= self.decode(self.max_code).to_bits() { self.max_code } else { code };
        sign | if magnitude > 0x7F80_0000 { NAN_CODE } else { saturated }
    }

    /// The exact value of a code.
    pub(in crate::engine::kv_cache) const fn decode(&self, code: u8) -> f32 {
        let magnitude = code & 0x7F;
        let sign = ((code & 0x80) as u32) << 24;
        let is_infinity = matches!(self.infinity_code, Some(infinity) if magnitude == infinity);
        let bits = if is_infinity {
            0x7F80_0000
        } else if magnitude > self.max_code {
            0x7FC0_0000
        } else if magnitude >> self.mantissa_bits == 0 {
            let unit = f32::from_bits((128 - self.bias - self.mantissa_bits) << 23);
            (magnitude as f32 * unit).to_bits()
        } else {
            ((magnitude as u32) << (23 - self.mantissa_bits)) + ((127 - self.bias) << 23)
        };
        f32::from_bits(bits | sign)
    }

    /// Values of all codes.
    pub(in crate::engine::kv_cache) const fn table(&self) -> [f32; 256] {
        let mut table = [0.0; 256];
        let mut code = 0;
        while code < 256 {
            table[code] = self.decode(code as u8);
            code += 1;
        }
        table
    }
}

/// The table times `scale`, rounded to BF16: 256 products instead of one per value.
pub(in crate::engine::kv_cache) fn bf16_table(table: &[f32; 256], scale: f32) -> [u16; 256] {
    table.map(|value| f32_to_bf16(value * scale))
}

/// Exhaustive checks over all 256 codes, run by each format's file.
#[cfg(test)]
pub(in crate::engine::kv_cache) fn check_all_codes(format: &Float8, largest: f32, smallest: f32) {
    let max_code = format.max_code;
    for code in 0..=255_u8 {
        let value = format.decode(code);
        let magnitude = code & 0x7F;
        if magnitude <= max_code {
            assert_eq!(format.encode(value), code, "{code:#04x} = {value}");
            assert_eq!(value.is_sign_negative(), code >= 0x80, "{code:#04x}");
        } else if format.infinity_code == Some(magnitude) {
            assert!(value.is_infinite());
            assert_eq!(format.encode(value), (code & 0x80) | max_code, "casting infinity saturates");
        } else {
            assert!(value.is_nan(), "{code:#04x}");
            assert_eq!(format.encode(value) & 0x7F, NAN_CODE, "{code:#04x}");
        }
    }
    assert_eq!((format.decode(max_code), format.decode(1)), (largest, smallest));

    for code in 0..max_code {
        let (low, high) = (format.decode(code), format.decode(code + 1));
        let midpoint = low.midpoint(high);
        assert!(low < high, "order at {code:#04x}");
        let even = if code.is_multiple_of(2) { code } else { code + 1 };
        for (sign, factor) in [(0, 1.0), (0x80, -1.0)] {
            assert_eq!(format.encode(midpoint * factor), even | sign, "tie above {code:#04x}");
            assert_eq!(format.encode(midpoint.next_down() * factor), code | sign, "below the tie of {code:#04x}");
            assert_eq!(format.encode(midpoint.next_up() * factor), (code + 1) | sign, "above the tie of {code:#04x}");
        }
    }
    for value in [largest, largest.next_up(), largest * 1.04, largest * 2.0, f32::MAX, f32::INFINITY] {
        assert_eq!(format.encode(value), max_code, "{value}");
        assert_eq!(format.encode(-value), max_code | 0x80, "{value}");
    }
    assert_eq!(format.encode(f32::MIN_POSITIVE), 0);
    assert_eq!(format.encode(-1e-45), 0x80, "a vanishing value keeps its sign");
}
