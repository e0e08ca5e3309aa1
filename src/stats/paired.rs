//! Paired difference of two shares, `(b − c) / n`, and of two means, with and without clusters.

use crate::stats::normal::{Z_ONE_SIDED_95, Z_TWO_SIDED_95, t_quantile};

/// Two-sided 95 % interval and one-sided upper 95 % limit of a drop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DropLimits {
    /// Lower end of the two-sided interval.
    pub low: f64,
    /// Upper end of the two-sided interval.
    pub high: f64,
    /// One-sided upper limit.
    pub upper: f64,
}

/// Tango's score interval (Tango 1998) for the drop of `n` pairs of which `b` got worse and `c` better. Counts may be
/// fractional (effective sample sizes). `None` without pairs or with more changes than pairs.
pub fn tango_95(n: f64, b: f64, c: f64) -> Option<DropLimits> {
    let possible = n > 0.0 && b >= 0.0 && c >= 0.0 && b + c <= n * (1.0 + 1e-12) && n.is_finite();
    possible.then(|| DropLimits {
        low: tango_limit(n, b, c, Z_TWO_SIDED_95),
        high: -tango_limit(n, c, b, Z_TWO_SIDED_95),
        upper: -tango_limit(n, c, b, Z_ONE_SIDED_95),
    })
}

/// The lower limit: where the score statistic falls to `z` on [−1, (b − c)/n]. It decreases in the difference and has
/// a pole or a zero at −1, so halving the bracket cannot fail where Newton steps would.
fn tango_limit(n: f64, b: f64, c: f64, z: f64) -> f64 {
    let (mut low, mut high) = (-1.0, ((b - c) / n).clamp(-1.0, 1.0));
    if high <= -1.0 {
        return -1.0;
    }
    for _ in 0..100 {
        let middle = 0.5 * (low + high);
        if tango_score(n, b, c, middle) > z {
            low = middle;
        } else {
            high = middle;
        }
    }
    0.5 * (low + high)
}

/// (b − c − nΔ) / √(n(2q + Δ(1 − Δ))) with q the restricted maximum-likelihood estimate under a difference of Δ.
fn tango_score(n: f64, b: f64, c: f64, difference: f64) -> f64 {
    let a2 = 2.0 * n;
    let a1 = -b - c + (2.0 * n - b + c) * difference;
    let a0 = -c * difference * (1.0 - difference);
    let root = (a1 * a1 - 4.0 * a2 * a0).max(0.0).sqrt();
    // The two forms of the same root: each where it does not subtract nearly equal numbers.
    let q = if a1 <= 0.0 {
        (root - a1) / (2.0 * a2)
    } else if root + a1 > 0.0 {
        -2.0 * a0 / (root + a1)
    } else {
        0.0
    };
    let variance = n * (2.0 * q + difference * (1.0 - difference));
    let numerator = b - c - n * difference;
    if variance > 0.0 {
        numerator / variance.sqrt()
    } else if numerator == 0.0 {
        0.0
    } else {
        numerator.signum() * f64::INFINITY
    }
}

/// √[(ψ − δ²)/n]: standard error of the difference of paired yes/no outcomes (Miller 2024). 0 without pairs.
pub fn binary_standard_error(n: u64, b: u64, c: u64) -> f64 {
    if n == 0 {
        return 0.0;
    }
    let n = n as f64;
    let (psi, delta) = ((b + c) as f64 / n, (b as f64 - c as f64) / n);
    ((psi - delta * delta).max(0.0) / n).sqrt()
}

/// √(Σ(dᵢ − d̄)² / (n(n − 1))). `None` for fewer than two values.
pub fn standard_error(differences: &[f64]) -> Option<f64> {
    let n = differences.len() as f64;
    (differences.len() >= 2).then(|| {
        let mean = differences.iter().sum::<f64>() / n;
        (differences.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / (n * (n - 1.0))).sqrt()
    })
}

/// One cluster: the sum of its differences and how many there are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cluster {
    /// Σ dᵢ.
    pub sum: f64,
    /// Number of observations.
    pub size: u64,
}

/// (1/n)·√(Σ_c (Σ_{i∈c} (dᵢ − d̄))²): standard error of the mean when whole clusters vary together (Miller 2024).
/// `None` without observations.
pub fn clustered_standard_error(clusters: &[Cluster]) -> Option<f64> {
    let n = clusters.iter().map(|cluster| cluster.size).sum::<u64>() as f64;
    (n > 0.0).then(|| {
        let mean = clusters.iter().map(|cluster| cluster.sum).sum::<f64>() / n;
        clusters.iter().map(|cluster| (cluster.sum - mean * cluster.size as f64).powi(2)).sum::<f64>().sqrt() / n
    })
}

/// How many changes outweigh the assumption that a cluster changes as a whole, see [`clustered_95`].
const CHANGES_THAT_OUTWEIGH_THE_ASSUMPTION: f64 = 5.0;

/// Interval of a drop over clusters (`sum` = worse − better of the cluster), with `b` and `c` over all of them.
///
/// The clustered standard error alone is zero when nothing changed and far too small after one change, which would turn
/// absence of data into confidence. So the limits are the wider of
/// - mean ± t(H − 1)·SE·√(H/(H − 1)) over H clusters, and
/// - Tango's interval with the counts divided by the design effect. That effect is the ratio of the clustered to the
///   unclustered variance, mixed with the mean cluster size (the effect if clusters change as a whole) at the weight
///   of five changes: without any change, H clusters count as H pairs.
///
/// `None` without observations.
pub fn clustered_95(clusters: &[Cluster], b: u64, c: u64) -> Option<DropLimits> {
    let n = clusters.iter().map(|cluster| cluster.size).sum::<u64>();
    let effect = cluster_effect(clusters, b, c)?;
    let mut limits = tango_95(n as f64 / effect, b as f64 / effect, c as f64 / effect)?;
    if let Some((error, degrees)) = corrected_error(clusters) {
        let drop = (b as f64 - c as f64) / n as f64;
        let two_sided = t_quantile(0.975, degrees) * error;
        limits.low = limits.low.min(drop - two_sided).max(-1.0);
        limits.high = limits.high.max(drop + two_sided).min(1.0);
        limits.upper = limits.upper.max(drop + t_quantile(0.95, degrees) * error).min(1.0);
    }
    Some(limits)
}

/// Two-sided 95 % interval of the mean over clusters: mean ± t(H − 1)·SE·√(H/(H − 1)) over H clusters. With clusters of one
/// it is Student's interval. `None` for fewer than two clusters: one of them says nothing of how much they differ.
pub fn clustered_mean_95(clusters: &[Cluster]) -> Option<(f64, f64)> {
    let (error, degrees) = corrected_error(clusters)?;
    let n = clusters.iter().map(|cluster| cluster.size).sum::<u64>() as f64;
    let mean = clusters.iter().map(|cluster| cluster.sum).sum::<f64>() / n;
    let half = t_quantile(0.975, degrees) * error;
    Some((mean - half, mean + half))
}

/// SE·√(H/(H − 1)) and H − 1 over the H clusters that have observations; `None` for fewer than two.
fn corrected_error(clusters: &[Cluster]) -> Option<(f64, u64)> {
    let count = clusters.iter().filter(|cluster| cluster.size > 0).count() as u64;
    let degrees = count.checked_sub(1).filter(|degrees| *degrees > 0)?;
    Some((clustered_standard_error(clusters)? * (count as f64 / degrees as f64).sqrt(), degrees))
}

/// The design effect that [`clustered_95`] uses: 1 for clusters of one, up to the mean cluster size.
pub fn cluster_effect(clusters: &[Cluster], b: u64, c: u64) -> Option<f64> {
    let n = clusters.iter().map(|cluster| cluster.size).sum::<u64>();
    if n == 0 {
        return None;
    }
    // Weighted by size: the size of the cluster that an observation finds itself in.
    let mean_size = clusters.iter().map(|cluster| (cluster.size * cluster.size) as f64).sum::<f64>() / n as f64;
    let plain = binary_standard_error(n, b, c);
    let measured = if plain > 0.0 { (clustered_standard_error(clusters)? / plain).powi(2) } else { mean_size };
    let changes = (b + c) as f64;
    let weight = CHANGES_THAT_OUTWEIGH_THE_ASSUMPTION;
    let mixed = (weight * mean_size + changes * measured.clamp(1.0, mean_size.max(1.0))) / (weight + changes);
    Some(mixed.max(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn tango_golden_values() {
        let table = [
            (200, 10, 2, 0.007216, 0.081059),
            (100, 9, 1, 0.022649, 0.154078),
            (50, 5, 0, 0.021518, 0.213602),
            (100, 0, 0, -0.036993, 0.036993),
            (50, 12, 2, 0.061112, 0.344709),
        ];
        for (n, b, c, low, high) in table {
            let got = tango_95(f64::from(n), f64::from(b), f64::from(c)).unwrap();
            assert!((got.low - low).abs() < 1e-6 && (got.high - high).abs() < 1e-6, "{n} {b} {c}: {got:?}");
            assert!(got.upper < got.high);
        }
    }

    #[test]
    fn without_change_52_pairs_exclude_five_points() {
        assert!(tango_95(52.0, 0.0, 0.0).unwrap().upper < 0.05);
        assert!(tango_95(51.0, 0.0, 0.0).unwrap().upper > 0.05);
    }

    #[test]
    fn every_small_table_has_ordered_finite_limits() {
        assert_eq!(tango_95(0.0, 0.0, 0.0), None);
        for n in 1..=25 {
            for b in 0..=n {
                for c in 0..=n - b {
                    let limits = tango_95(f64::from(n), f64::from(b), f64::from(c)).unwrap();
                    let drop = f64::from(b - c) / f64::from(n);
                    assert!(-1.0 <= limits.low && limits.low <= drop + 1e-9, "{n} {b} {c}: {limits:?}");
                    assert!(drop - 1e-9 <= limits.upper && limits.upper <= limits.high && limits.high <= 1.0);
                }
            }
        }
        assert_eq!(tango_95(5.0, 5.0, 0.0).unwrap().high, 1.0);
    }

    #[test]
    fn the_limits_solve_tangos_equation() {
        for (n, b, c) in [(24.0, 8.0, 0.0), (40.0, 3.0, 2.0), (1000.0, 60.0, 40.0), (7.0, 1.0, 0.0)] {
            let limits = tango_95(n, b, c).unwrap();
            assert!((tango_score(n, b, c, limits.low) - Z_TWO_SIDED_95).abs() < 1e-6, "{n} {b} {c}");
            assert!((tango_score(n, b, c, limits.high) + Z_TWO_SIDED_95).abs() < 1e-6);
            assert!((tango_score(n, b, c, limits.upper) + Z_ONE_SIDED_95).abs() < 1e-6);
        }
    }

    #[test]
    fn standard_errors() {
        // The plain (Wald) intervals of the same golden table give the paired standard error.
        for (n, b, c, low, high) in [(200, 10, 2, 0.006508, 0.073492), (50, 12, 2, 0.064210, 0.335790)] {
            let half = Z_TWO_SIDED_95 * binary_standard_error(n, b, c);
            let drop = (b as f64 - c as f64) / n as f64;
            assert!((drop - half - low).abs() < 1e-6 && (drop + half - high).abs() < 1e-6);
        }
        let mut differences = vec![1.0; 9];
        differences.push(-1.0);
        differences.extend([0.0; 90]);
        let singles: Vec<Cluster> = differences.iter().map(|&sum| Cluster { sum, size: 1 }).collect();
        assert!((clustered_standard_error(&singles).unwrap() - 0.030594).abs() < 1e-6);
        assert!((standard_error(&differences).unwrap() - 0.030594 * (100.0_f64 / 99.0).sqrt()).abs() < 1e-6);
        assert!((binary_standard_error(100, 9, 1) - 0.030594).abs() < 1e-6);
        assert_eq!(standard_error(&[1.0]), None);
        assert_eq!(clustered_standard_error(&[]), None);
        let fives: Vec<Cluster> = (0..20).map(|i| Cluster { sum: if i == 0 { 5.0 } else { 0.0 }, size: 5 }).collect();
        let as_singles = binary_standard_error(100, 5, 0);
        assert!((clustered_standard_error(&fives).unwrap() / as_singles - 5.0_f64.sqrt()).abs() < 1e-9);
    }

    #[test]
    fn clusters_that_never_changed_count_once() {
        let quiet = |clusters: usize| vec![Cluster { sum: 0.0, size: 4 }; clusters];
        assert!(clustered_95(&quiet(51), 0, 0).unwrap().upper > 0.05);
        assert!(clustered_95(&quiet(52), 0, 0).unwrap().upper < 0.05);
        assert_eq!(clustered_95(&[], 0, 0), None);
        assert!(clustered_95(&[Cluster { sum: 1.0, size: 1 }], 1, 0).unwrap().high.is_finite());
    }

    #[test]
    fn means_have_students_interval_and_one_cluster_has_none() {
        let single = |sum: f64| Cluster { sum, size: 1 };
        // Mean 3, standard deviation √2.5, t(4) = 2.776445: 3 ± 2.776445·√0.5.
        let (low, high) = clustered_mean_95(&[1.0, 2.0, 3.0, 4.0, 5.0].map(single)).unwrap();
        assert!((low - 1.036757).abs() < 1e-6 && (high - 4.963243).abs() < 1e-6, "{low} {high}");
        assert_eq!(clustered_mean_95(&[single(1.0)]), None);
        assert_eq!(clustered_mean_95(&[Cluster { sum: 4.0, size: 40 }, Cluster { sum: 0.0, size: 0 }]), None);
        assert_eq!(clustered_mean_95(&[]), None);
    }

    proptest! {
        #[test]
        fn swapping_the_sides_mirrors(n in 1u32..400, b in 0u32..200, c in 0u32..200) {
            prop_assume!(b + c <= n);
            let one = tango_95(n.into(), b.into(), c.into()).unwrap();
            let other = tango_95(n.into(), c.into(), b.into()).unwrap();
            prop_assert!((one.low + other.high).abs() < 1e-12 && (one.high + other.low).abs() < 1e-12);
        }

        #[test]
        fn clusters_never_claim_more_than_their_pairs(sums in prop::collection::vec(-3i32..=3, 1..40)) {
            let clusters: Vec<Cluster> = sums.iter().map(|&s| Cluster { sum: s.into(), size: 3 }).collect();
            let b = sums.iter().filter(|s| **s > 0).sum::<i32>() as u64;
            let c = -sums.iter().filter(|s| **s < 0).sum::<i32>() as u64;
            let clustered = clustered_95(&clusters, b, c).unwrap();
            prop_assert!(clustered.low.is_finite() && clustered.low <= clustered.high);
            prop_assert!(clustered.upper <= 1.0 && clustered.upper <= clustered.high + 1e-12);
            let drop = (b as f64 - c as f64) / (3 * sums.len()) as f64;
            prop_assert!(clustered.low <= drop + 1e-9 && drop <= clustered.upper + 1e-9);
        }
    }
}
