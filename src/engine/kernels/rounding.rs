//! BF16 is the upper half of an f32, so one direction is a shift and the other a rounding.

/// The exact value of a BF16 bit pattern.
#[inline]
pub const fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// Rounds to the nearest BF16, ties to even; NaN stays NaN, overflow becomes infinity, denormals are kept.
#[inline]
pub const fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        // The quiet bit, so that a NaN whose payload sits in the lower half does not turn into infinity.
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bf16_survives_and_every_midpoint_rounds_to_even() {
        for bits in 0..=u16::MAX {
            let value = bf16_to_f32(bits);
            if value.is_nan() {
                assert!(bf16_to_f32(f32_to_bf16(value)).is_nan());
                continue;
            }
            assert_eq!(f32_to_bf16(value), bits);
            if value.is_infinite() {
                continue;
            }
            let wide = u32::from(bits) << 16;
            assert_eq!(f32_to_bf16(f32::from_bits(wide + 0x7FFF)), bits, "below the midpoint");
            assert_eq!(f32_to_bf16(f32::from_bits(wide + 0x8001)), bits + 1, "above the midpoint");
            assert_eq!(f32_to_bf16(f32::from_bits(wide + 0x8000)), bits + (bits & 1), "midpoint");
        }
    }

    #[test]
    fn a_nan_with_a_low_payload_stays_nan() {
        assert!(bf16_to_f32(f32_to_bf16(f32::from_bits(0x7F80_0001))).is_nan());
    }
}
