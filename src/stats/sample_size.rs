//! How many pairs a question takes. `psi` is the share of pairs that change in either direction.

use crate::stats::normal::z_quantile;

/// Pairs to *detect* a true drop `delta` with a one-sided McNemar test (Connor 1987):
/// [z₁₋α·√ψ + z_power·√(ψ − δ²)]² / δ². `None` when no such sample exists (δ ≤ 0 or δ > ψ).
pub fn detect_drop(psi: f64, delta: f64, alpha: f64, power: f64) -> Option<u64> {
    let possible = delta > 0.0 && delta <= psi && psi <= 1.0;
    possible.then_some(())?;
    let root = z_quantile(1.0 - alpha) * psi.sqrt() + z_quantile(power) * (psi - delta * delta).max(0.0).sqrt();
    whole(root * root / (delta * delta))
}

/// Pairs to *exclude* a drop of `margin` when the true drop is `delta` (0 for "no difference"):
/// (z₁₋α + z_power)²·(ψ − δ²) / (margin − δ)². `None` when δ is not below the margin.
pub fn exclude_drop(psi: f64, delta: f64, margin: f64, alpha: f64, power: f64) -> Option<u64> {
    let possible = margin > delta && (0.0..=1.0).contains(&psi);
    possible.then_some(())?;
    let z = z_quantile(1.0 - alpha) + z_quantile(power);
    whole(z * z * (psi - delta * delta).max(0.0) / ((margin - delta) * (margin - delta)))
}

/// Pairs without any change after which Tango's upper limit z²/(n + z²) is below `margin`: 52 for 5 points at α = 0.05.
pub fn exclude_drop_without_change(margin: f64, alpha: f64) -> Option<u64> {
    let possible = margin > 0.0 && margin < 1.0;
    possible.then_some(())?;
    let z = z_quantile(1.0 - alpha);
    // The limit has to be *below* the margin, so a whole number is not enough.
    let pairs = z * z * (1.0 - margin) / margin;
    whole(pairs.floor() + 1.0)
}

/// Observations without a failure after which the exact upper limit 1 − α^(1/n) is below `share`: 59 for 5 points.
pub fn zero_failures(share: f64, alpha: f64) -> Option<u64> {
    let possible = share > 0.0 && share < 1.0 && alpha > 0.0 && alpha < 1.0;
    possible.then_some(())?;
    whole(alpha.ln() / (1.0 - share).ln())
}

/// Pairs for a two-sided test of a mean difference when each side is sampled several times (Miller 2024, eq. 9):
/// (z₁₋α/₂ + z_power)²·(ω² + σ²_A/K_A + σ²_B/K_B) / δ². `noise` is σ²_A/K_A + σ²_B/K_B, `omega_squared` the variance of
/// the difference between questions.
pub fn mean_difference(omega_squared: f64, noise: f64, delta: f64, alpha: f64, power: f64) -> Option<u64> {
    let z = z_quantile(1.0 - alpha / 2.0) + z_quantile(power);
    whole(z * z * (omega_squared + noise) / (delta * delta))
}

/// 1 + (m − 1)·ICC: by how much clusters of `mean_size` inflate the number of observations needed (Kish 1965).
pub fn design_effect(mean_size: f64, icc: f64) -> f64 {
    (1.0 + (mean_size - 1.0) * icc).max(1.0)
}

fn whole(pairs: f64) -> Option<u64> {
    // Beyond 2^53 a float is no count any more.
    (pairs.is_finite() && (0.0..9e15).contains(&pairs)).then(|| pairs.ceil() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_values() {
        for (psi, at_80, at_90, at_95) in [(0.05, 122, 168, 211), (0.10, 246, 339, 428), (0.20, 493, 682, 861)] {
            for (power, pairs) in [(0.80, at_80), (0.90, at_90), (0.95, at_95)] {
                assert_eq!(detect_drop(psi, 0.05, 0.05, power), Some(pairs), "{psi} {power}");
            }
        }
        for (psi, at_80, at_95) in [(0.05, 124, 217), (0.10, 248, 433), (0.20, 495, 866)] {
            assert_eq!(exclude_drop(psi, 0.0, 0.05, 0.05, 0.80), Some(at_80));
            assert_eq!(exclude_drop(psi, 0.0, 0.05, 0.05, 0.95), Some(at_95));
        }
        for (share, observations) in [(0.05, 59), (0.02, 149), (0.01, 299)] {
            assert_eq!(zero_failures(share, 0.05), Some(observations));
        }
        assert_eq!(exclude_drop_without_change(0.05, 0.05), Some(52));
        let ninth = 1.0 / 9.0;
        assert_eq!(mean_difference(ninth, 0.0, 0.03, 0.05, 0.8), Some(969));
        assert_eq!(mean_difference(ninth, 2.0 / 6.0, 0.03, 0.05, 0.8), Some(3876));
        assert_eq!(mean_difference(ninth, 2.0 / 60.0, 0.03, 0.05, 0.8), Some(1260));
        assert_eq!(mean_difference(ninth, 0.0, 0.05, 0.05, 0.8), Some(349));
        assert!((design_effect(10.0, 0.71) - 7.39).abs() < 1e-12);
    }

    #[test]
    fn impossible_questions_have_no_answer() {
        assert_eq!(detect_drop(0.05, 0.0, 0.05, 0.8), None);
        assert_eq!(detect_drop(0.05, 0.2, 0.05, 0.8), None);
        assert_eq!(exclude_drop(0.05, 0.05, 0.05, 0.05, 0.8), None);
        assert_eq!(exclude_drop_without_change(0.0, 0.05), None);
        assert_eq!(zero_failures(0.0, 0.05), None);
        assert_eq!(mean_difference(0.1, 0.0, 0.0, 0.05, 0.8), None);
    }
}
