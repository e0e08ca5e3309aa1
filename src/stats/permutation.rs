//! Tests by re-randomisation: what would the statistic have been if chance alone had labelled the two sides?
//!
//! Exact where that is affordable; otherwise `B` random draws with p = (1 + #{T* ≥ T}) / (B + 1) (Phipson and Smyth 2010),
//! which is never 0. Draws come from ChaCha8 with the seed passed in, so the same numbers give the same p for ever.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng};

use crate::stats::{legal_p, mcnemar};

/// Non-zero values up to which all 2^k sign patterns are tried.
const MAX_ENUMERATED: usize = 16;

/// Draws where enumeration is too long: the smallest p is 1e-4, enough for Holm over hundreds of tests.
const MAX_DRAWS: usize = 9_999;

/// Draws for a slope: it is shown beside the verdict, and a p to three digits will do for that.
const SLOPE_DRAWS: usize = 1_999;

/// Fewest draws, however large the sample.
const MIN_DRAWS: usize = 999;

/// Additions one test may cost (about 20 ms).
const WORK_LIMIT: usize = 20_000_000;

/// One-sided sign-flip test that the sum of `sums` is not above 0: exact for whole numbers, whatever their count, by
/// convolution of the sums' distribution. With all |sums| = 1 it is the exact one-sided McNemar test.
pub fn sign_flip_whole(sums: &[i64], seed: u64) -> f64 {
    let sizes: Vec<usize> = sums.iter().filter(|sum| **sum != 0).map(|sum| sum.unsigned_abs() as usize).collect();
    let observed: i64 = sums.iter().sum();
    let total: usize = sizes.iter().sum();
    if sizes.iter().all(|size| *size == 1) {
        let worse = sums.iter().filter(|sum| **sum > 0).count() as u64;
        return mcnemar::one_sided(worse, sizes.len() as u64 - worse);
    }
    if sizes.len().saturating_mul(total) > WORK_LIMIT {
        let values: Vec<f64> = sums.iter().map(|sum| *sum as f64).collect();
        return sign_flip(&values, seed);
    }
    // probability[s]: the positive values add up to s.
    let mut probability = vec![0.0; total + 1];
    probability[0] = 1.0;
    let mut reached = 0;
    for size in sizes {
        reached += size;
        for sum in (0..=reached).rev() {
            let with = if sum >= size { probability[sum - size] } else { 0.0 };
            probability[sum] = 0.5 * (probability[sum] + with);
        }
    }
    // positive − (total − positive) ≥ observed; both sides are even or both are odd.
    let least = (total as i64 + observed) as usize / 2;
    // Smallest terms first keeps the digits of a small tail.
    legal_p(probability[least..].iter().rev().sum())
}

/// One-sided sign-flip (Fisher–Pitman) test that the mean of `values` is not above 0. 1 when all are 0.
pub fn sign_flip(values: &[f64], seed: u64) -> f64 {
    let values: Vec<f64> = values.iter().copied().filter(|value| *value != 0.0).collect();
    if values.is_empty() {
        return 1.0;
    }
    let observed: f64 = values.iter().sum();
    // Equal sums in another order of additions must count as equal.
    let threshold = observed - 1e-9 * values.iter().map(|value| value.abs()).sum::<f64>();
    if values.len() <= MAX_ENUMERATED {
        let patterns = 1u64 << values.len();
        let hits = (0..patterns).filter(|pattern| signed_sum(&values, *pattern) >= threshold).count();
        return legal_p(hits as f64 / patterns as f64);
    }
    let draws = draws_for(values.len());
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let hits = (0..draws)
        .filter(|_| values.chunks(64).map(|chunk| signed_sum(chunk, rng.next_u64())).sum::<f64>() >= threshold)
        .count();
    legal_p((1 + hits) as f64 / (draws + 1) as f64)
}

/// Sum of at most 64 values with the signs in the bits of `pattern`.
fn signed_sum(values: &[f64], pattern: u64) -> f64 {
    values.iter().enumerate().map(|(bit, value)| if pattern >> bit & 1 == 0 { *value } else { -*value }).sum()
}

/// One group of observations at a place on the x axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Where.
    pub x: f64,
    /// Σ of its observations.
    pub sum: f64,
    /// Number of its observations.
    pub size: u64,
}

/// Least-squares slope over all observations, and the one-sided permutation p for a *falling* line: the groups are
/// dealt anew to the places. `None` when there are fewer than two places.
pub fn falling_slope(points: &[Point], seed: u64) -> Option<(f64, f64)> {
    let slope = slope(points)?;
    let scale = points.iter().map(|point| point.sum.abs()).sum::<f64>();
    let draws = draws_for(points.len()).min(SLOPE_DRAWS);
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut shuffled = points.to_vec();
    let mut hits = 0;
    for _ in 0..draws {
        for last in (1..shuffled.len()).rev() {
            let other = below(&mut rng, last + 1);
            let (left, right) = (shuffled[last], shuffled[other]);
            shuffled[last] = Point { x: left.x, ..right };
            shuffled[other] = Point { x: right.x, ..left };
        }
        // A deal that puts everything into one place has no slope; it counts against significance.
        hits += usize::from(slope_of(&shuffled).is_none_or(|drawn| drawn <= slope + 1e-12 * scale));
    }
    Some((slope, legal_p((1 + hits) as f64 / (draws + 1) as f64)))
}

fn slope(points: &[Point]) -> Option<f64> {
    points.iter().all(|point| point.x.is_finite() && point.sum.is_finite()).then(|| slope_of(points))?
}

fn slope_of(points: &[Point]) -> Option<f64> {
    let n = points.iter().map(|point| point.size).sum::<u64>() as f64;
    if n == 0.0 {
        return None;
    }
    let centre = points.iter().map(|point| point.x * point.size as f64).sum::<f64>() / n;
    let spread = points.iter().map(|point| point.size as f64 * (point.x - centre).powi(2)).sum::<f64>();
    (spread > 1e-12).then(|| points.iter().map(|point| (point.x - centre) * point.sum).sum::<f64>() / spread)
}

fn draws_for(values: usize) -> usize {
    (WORK_LIMIT / values.max(1)).clamp(MIN_DRAWS, MAX_DRAWS)
}

/// Nearly uniform in `0..bound`: the bias of multiply-shift is below bound / 2^64.
pub(super) fn below(rng: &mut ChaCha8Rng, bound: usize) -> usize {
    ((u128::from(rng.next_u64()) * bound as u128) >> 64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_sign_flip() {
        let values = [1.5, -0.5, 2.0, 3.0, 0.25, -1.0, 0.75, 4.0];
        assert_eq!(sign_flip(&values, 1), 0.046875);
        assert_eq!(sign_flip(&[], 1), 1.0);
        assert_eq!(sign_flip(&[0.0, 0.0], 1), 1.0);
        assert_eq!(sign_flip(&[1.0], 1), 0.5);
        assert_eq!(sign_flip_whole(&[], 1), 1.0);
    }

    #[test]
    fn random_draws_agree_with_the_exact_distribution() {
        let sums: Vec<i64> = (0..60).map(|i| [1, 2, 0, -1, 3, -2, 1][i % 7]).collect();
        let exact = sign_flip_whole(&sums, 0);
        let values: Vec<f64> = sums.iter().map(|sum| *sum as f64).collect();
        let drawn = sign_flip(&values, 7);
        assert!((exact - drawn).abs() < 3.0 * (exact * (1.0 - exact) / MAX_DRAWS as f64).sqrt(), "{exact} {drawn}");
        assert_eq!(drawn, sign_flip(&values, 7), "the same seed gives the same p");
        assert!(sign_flip(&vec![1.0; 5000], 3) > 0.0);
    }

    #[test]
    fn falling_slope_is_found_and_flat_is_not() {
        let at = |x: f64, sum: f64| Point { x, sum, size: 2 };
        let falling: Vec<Point> = (0..60).map(|i| at(f64::from(9 + i % 4), -0.5 * f64::from(i % 4))).collect();
        let (slope, p) = falling_slope(&falling, 1).unwrap();
        assert!((slope + 0.25).abs() < 1e-9 && p < 0.001, "{slope} {p}");
        let flat: Vec<Point> = (0..60).map(|i| at(f64::from(9 + i % 4), -1.0)).collect();
        let (slope, p) = falling_slope(&flat, 1).unwrap();
        assert!(slope.abs() < 1e-9 && p > 0.9, "a constant drop has no slope: {slope} {p}");
        assert_eq!(falling_slope(&[at(9.0, 1.0), at(9.0, 0.0)], 1), None);
        assert_eq!(falling_slope(&[], 1), None);
    }

    proptest! {
        #[test]
        fn whole_sums_equal_enumeration(sums in prop::collection::vec(-4i64..=4, 0..12)) {
            let values: Vec<f64> = sums.iter().map(|sum| *sum as f64).collect();
            prop_assert!((sign_flip_whole(&sums, 0) - sign_flip(&values, 0)).abs() < 1e-12);
        }

        #[test]
        fn single_observations_are_mcnemar(b in 0usize..60, c in 0usize..60) {
            let mut sums = vec![1i64; b];
            sums.extend(vec![-1; c]);
            sums.extend([0, 0, 0]);
            prop_assert_eq!(sign_flip_whole(&sums, 0), mcnemar::one_sided(b as u64, c as u64));
            // The convolution itself, forced by one pair of clusters of two that cancel in neither direction.
            let mut doubled: Vec<i64> = sums.iter().map(|sum| 2 * sum).collect();
            doubled.push(0);
            prop_assert!((sign_flip_whole(&doubled, 0) - mcnemar::one_sided(b as u64, c as u64)).abs() < 1e-10);
        }
    }
}
