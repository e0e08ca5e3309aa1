//! Numbers out of indices: the same on every machine, in every order and for any cut of the work.

/// A bijection of 64-bit numbers whose outputs for neighbours look unrelated: the finalizer of SplitMix64 (Steele, Lea and
/// Flood, "Fast splittable pseudorandom number generators", 2014).
pub(in crate::engine) const fn mix(index: u64) -> u64 {
    let mut bits = index.wrapping_add(0x9E37_79B9_7F4A_7C15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

/// A normal deviate for `key`: the sum of twelve uniform 16-bit numbers, shifted to mean 0 and variance 1. Unlike logarithm and
/// cosine it has the same bits on every platform; its tails end at 6.
pub(in crate::engine::kv_cache) fn normal(key: u64) -> f32 {
    let sum = (0..3).fold(0_u32, |sum, part| {
        let bits = mix(key ^ mix(part));
        (0..4).fold(sum, |sum, lane| sum + u32::from((bits >> (16 * lane)) as u16))
    });
    // Twelve times the mean 32,767.5; a unit is 2⁻¹⁶.
    (f64::from(sum) - 393_210.0) as f32 / 65_536.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deviates_are_normal() {
        let n = 200_000;
        let deviates: Vec<f64> = (0..n).map(|key| f64::from(normal(mix(key)))).collect();
        let moment = |power: i32| deviates.iter().map(|value| value.powi(power)).sum::<f64>() / n as f64;
        assert!(moment(1).abs() < 0.01 && (moment(2) - 1.0).abs() < 0.02, "{} {}", moment(1), moment(2));
        let within_one = deviates.iter().filter(|value| value.abs() < 1.0).count() as f64 / n as f64;
        assert!((within_one - 0.6827).abs() < 0.01, "{within_one}");
    }
}
