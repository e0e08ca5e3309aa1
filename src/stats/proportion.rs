//! Intervals of a single share `k / n`.

use statrs::distribution::{Beta, ContinuousCDF};

use crate::stats::normal::Z_TWO_SIDED_95;

/// Wilson's 95 % score interval (Wilson 1927): (k + z²/2 ± z·√(k(n−k)/n + z²/4)) / (n + z²). `None` without observations.
pub fn wilson_95(k: u64, n: u64) -> Option<(f64, f64)> {
    if n == 0 || k > n {
        return None;
    }
    let (k, n, z) = (k as f64, n as f64, Z_TWO_SIDED_95);
    let centre = k + z * z / 2.0;
    let half = z * (k * (n - k) / n + z * z / 4.0).sqrt();
    let low = if k == 0.0 { 0.0 } else { (centre - half) / (n + z * z) };
    let high = if k == n { 1.0 } else { (centre + half) / (n + z * z) };
    Some((low.clamp(0.0, 1.0), high.clamp(0.0, 1.0)))
}

/// The exact 95 % interval (Clopper and Pearson 1934) from quantiles of the beta distribution. `None` without observations.
pub fn clopper_pearson_95(k: u64, n: u64) -> Option<(f64, f64)> {
    if n == 0 || k > n {
        return None;
    }
    let quantile = |a: u64, b: u64, probability: f64| {
        Beta::new(a as f64, b as f64).ok().map(|beta| beta.inverse_cdf(probability).clamp(0.0, 1.0))
    };
    let low = if k == 0 { 0.0 } else { quantile(k, n - k + 1, 0.025)? };
    let high = if k == n { 1.0 } else { quantile(k + 1, n - k, 0.975)? };
    Some((low, high))
}

/// One-sided upper 95 % limit of a share of which nothing was seen in `n`: 1 − 0.05^(1/n). 1 without observations.
pub fn zero_failure_upper_95(n: u64) -> f64 {
    if n == 0 { 1.0 } else { 1.0 - 0.05_f64.powf(1.0 / n as f64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_values() {
        let table = [
            (0, 20, (0.0, 0.161125), (0.0, 0.168433)),
            (10, 10, (0.722467, 1.0), (0.691503, 1.0)),
            (45, 50, (0.786398, 0.956524), (0.781865, 0.966725)),
            (81, 263, (0.255289, 0.366210), (0.252737, 0.367622)),
            (190, 200, (0.910422, 0.972617), (0.909972, 0.975766)),
        ];
        for (k, n, wilson, exact) in table {
            for (got, wanted) in [(wilson_95(k, n), wilson), (clopper_pearson_95(k, n), exact)] {
                let got = got.unwrap();
                assert!((got.0 - wanted.0).abs() < 1e-6 && (got.1 - wanted.1).abs() < 1e-6, "{k}/{n}: {got:?}");
            }
        }
    }

    #[test]
    fn nothing_seen() {
        for (n, limit) in [(59, 0.05), (149, 0.02), (299, 0.01)] {
            assert!(zero_failure_upper_95(n) < limit && zero_failure_upper_95(n - 1) > limit, "{n}");
        }
        assert_eq!(zero_failure_upper_95(0), 1.0);
    }

    #[test]
    fn every_small_count_is_ordered_and_finite() {
        for n in 0..40 {
            for k in 0..=n {
                for interval in [wilson_95(k, n), clopper_pearson_95(k, n)] {
                    let Some((low, high)) = interval else {
                        assert_eq!(n, 0);
                        continue;
                    };
                    let share = k as f64 / n as f64;
                    assert!(0.0 <= low && low <= share && share <= high && high <= 1.0, "{k}/{n}: {low} {high}");
                }
            }
        }
    }
}
