//! Quantiles of the normal and Student's t distribution (from `statrs`).

use statrs::distribution::{ContinuousCDF, Normal, StudentsT};

/// 97.5 % quantile of the standard normal: two-sided 95 % intervals.
pub const Z_TWO_SIDED_95: f64 = 1.959_963_984_540_054;

/// 95 % quantile of the standard normal: one-sided 95 % limits.
pub const Z_ONE_SIDED_95: f64 = 1.644_853_626_951_472_2;

/// Quantile of the standard normal. `probability` is kept inside (0, 1).
pub fn z_quantile(probability: f64) -> f64 {
    let probability = inside_unit(probability);
    Normal::new(0.0, 1.0).map_or(0.0, |normal| normal.inverse_cdf(probability))
}

/// Quantile of Student's t with `degrees` of freedom (at least 1).
pub fn t_quantile(probability: f64, degrees: u64) -> f64 {
    let probability = inside_unit(probability);
    let degrees = degrees.max(1) as f64;
    // Beyond this the two differ by less than 1e-5, and the incomplete beta function behind t loses digits.
    if degrees > 100_000.0 {
        return z_quantile(probability);
    }
    StudentsT::new(0.0, 1.0, degrees).map_or_else(|_| z_quantile(probability), |t| t.inverse_cdf(probability))
}

fn inside_unit(probability: f64) -> f64 {
    if probability.is_nan() { 0.5 } else { probability.clamp(1e-12, 1.0 - 1e-12) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_equal_the_tables() {
        assert!((z_quantile(0.95) - Z_ONE_SIDED_95).abs() < 1e-9);
        assert!((z_quantile(0.975) - Z_TWO_SIDED_95).abs() < 1e-9);
        assert!((z_quantile(0.8) - 0.841_621_233_6).abs() < 1e-8);
        for (degrees, at_95, at_975) in
            [(1, 6.313_751_5, 12.706_204_7), (9, 1.833_112_9, 2.262_157_2), (49, 1.676_550_9, 2.009_575_2)]
        {
            assert!((t_quantile(0.95, degrees) - at_95).abs() < 1e-5, "{degrees}: {}", t_quantile(0.95, degrees));
            assert!((t_quantile(0.975, degrees) - at_975).abs() < 1e-5, "{degrees}");
        }
        assert!((t_quantile(0.95, 1_000_000) - Z_ONE_SIDED_95).abs() < 1e-5);
    }

    #[test]
    fn nonsense_is_finite() {
        for probability in [f64::NAN, -1.0, 0.0, 1.0, 2.0] {
            assert!(z_quantile(probability).is_finite());
            assert!(t_quantile(probability, 0).is_finite());
        }
    }
}
