//! McNemar's test on paired yes/no outcomes, exact (McNemar 1947; mid-p: Fagerland, Lydersen and Laake 2013).
//!
//! Only the discordant pairs count: given `b + c` of them, `b` is Binomial(b + c, ½) when the two sides do not differ.

use statrs::function::gamma::ln_gamma;

use crate::stats::legal_p;

/// P[Binomial(b + c, ½) ≥ b]: small when there are more changes for the worse than chance allows. 1 without changes.
pub fn one_sided(b: u64, c: u64) -> f64 {
    legal_p(upper_tail(b + c, b))
}

/// min(1, 2 · P[Binomial(b + c, ½) ≤ min(b, c)]).
pub fn two_sided(b: u64, c: u64) -> f64 {
    legal_p(2.0 * upper_tail(b + c, b.max(c)))
}

/// [`one_sided`] less half the probability of exactly `b`. Not conservative, therefore not used where a verdict depends on it.
pub fn mid_p(b: u64, c: u64) -> f64 {
    if b + c == 0 { 1.0 } else { legal_p(upper_tail(b + c, b) - 0.5 * point(b + c, b)) }
}

/// E-value for "more worse than better": 2^(n+1) · B(b+1, c+1) · [1 − I_½(b+1, c+1)] with n = b + c, the mixture over a
/// uniform prior on (½, 1). May be looked at after every pair; evidence of 1/α rejects at α whenever it is reached.
pub fn e_value(b: u64, c: u64) -> f64 {
    let n = b + c;
    // 1 − I_½(b+1, c+1) = P[Binomial(n+1, ½) ≤ b] = P[Binomial(n+1, ½) ≥ n+1−b].
    let below = upper_tail(n + 1, n + 1 - b);
    let ln_beta = ln_gamma(b as f64 + 1.0) + ln_gamma(c as f64 + 1.0) - ln_gamma(n as f64 + 2.0);
    ((n as f64 + 1.0) * std::f64::consts::LN_2 + ln_beta + below.max(f64::MIN_POSITIVE).ln()).exp().min(f64::MAX)
}

/// Below this, binomial coefficients and powers of ½ are ordinary floats, and up to 2^53 exact.
const COUNTABLE: u64 = 1000;

/// P[Binomial(n, ½) = k].
fn point(n: u64, k: u64) -> f64 {
    if n <= COUNTABLE {
        return scaled(choose(n, k), n);
    }
    let (n, k) = (n as f64, k as f64);
    let ln_choose = ln_gamma(n + 1.0) - ln_gamma(k + 1.0) - ln_gamma(n - k + 1.0);
    (ln_choose - n * std::f64::consts::LN_2).exp()
}

/// P[Binomial(n, ½) ≥ k], summed from its largest term so that small tails keep all their digits.
fn upper_tail(n: u64, k: u64) -> f64 {
    if k == 0 {
        return 1.0;
    }
    if 2 * k <= n {
        return 1.0 - upper_tail(n, n - k + 1);
    }
    let first = if n <= COUNTABLE { choose(n, k) } else { 1.0 };
    let (mut term, mut sum) = (first, first);
    for next in k + 1..=n {
        term = term * (n - next + 1) as f64 / next as f64;
        sum += term;
        if term < sum * 1e-18 {
            break;
        }
    }
    if n <= COUNTABLE { scaled(sum, n) } else { point(n, k) * sum }
}

fn choose(n: u64, k: u64) -> f64 {
    (1..=k.min(n - k)).fold(1.0, |product, i| product * (n + 1 - i) as f64 / i as f64)
}

/// `count` out of 2^n.
fn scaled(count: f64, n: u64) -> f64 {
    count * 0.5_f64.powi(n as i32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_values() {
        // (b, c, one-sided, two-sided, mid-p, e-value), from SciPy and statsmodels.
        let table = [
            (0, 0, 1.0, 1.0, 1.0, 1.0),
            (5, 0, 0.03125, 0.0625, 0.015625, 10.5),
            (6, 0, 0.015625, 0.03125, 0.0078125, 18.142857),
            (7, 0, 0.0078125, 0.015625, 0.00390625, 31.875),
            (9, 0, 0.001953125, 0.00390625, 0.0009765625, 102.3),
            (10, 2, 0.01928710938, 0.03857421875, 0.01123046875, 9.440559),
            (12, 4, 0.03840637207, 0.07681274414, 0.02452087402, 4.132450),
            (15, 5, 0.02069473267, 0.04138946533, 0.01330184937, 6.355521),
            (20, 10, 0.04936857335, 0.09873714671, 0.03537777299, 2.224093),
            (30, 15, 0.01784890178, 0.03569780356, 0.0129480409, 4.378343),
            (121, 59, 2.217224632e-06, 4.434449264e-06, 1.633323398e-06, 9461.964683),
        ];
        for (b, c, one, two, mid, e) in table {
            for (got, wanted, digits) in [
                (one_sided(b, c), one, 1e-9),
                (two_sided(b, c), two, 1e-9),
                (mid_p(b, c), mid, 1e-9),
                (e_value(b, c), e, 1e-6),
            ] {
                assert!((got - wanted).abs() <= digits * wanted, "{b}, {c}: {got} instead of {wanted}");
            }
        }
    }

    #[test]
    fn fewest_flips_that_can_be_significant() {
        for (alpha, fewest) in [(0.05, 5), (0.01, 7), (0.05 / 15.0, 9), (0.05 / 45.0, 10), (0.05 / 75.0, 11)] {
            assert!(one_sided(fewest, 0) < alpha && one_sided(fewest - 1, 0) >= alpha, "{alpha}");
        }
        assert!((one_sided(8, 0) - 0.0039).abs() < 1e-5 && (one_sided(16, 0) - 1.5e-5).abs() < 1e-6);
        assert!((one_sided(22, 7) - 0.004065).abs() < 1e-6, "small drops in five bins, pooled");
    }

    #[test]
    fn huge_counts_stay_legal() {
        for (b, c) in [(100_000, 0), (0, 100_000), (60_000, 50_000), (1 << 20, 1 << 20)] {
            for p in [one_sided(b, c), two_sided(b, c), mid_p(b, c)] {
                assert!(p > 0.0 && p <= 1.0, "{b}, {c}: {p}");
            }
            assert!(e_value(b, c).is_finite());
        }
    }

    proptest! {
        #[test]
        fn both_tails_add_up(b in 0u64..300, c in 0u64..300) {
            // P[X ≥ b] + P[X ≥ c] = 1 + P[X = b] because X and n − X have the same distribution.
            prop_assert!((one_sided(b, c) + one_sided(c, b) - 1.0 - point(b + c, b)).abs() < 1e-10);
            prop_assert_eq!(two_sided(b, c), two_sided(c, b));
        }

        #[test]
        fn one_more_change_for_the_worse_never_raises_p(b in 0u64..200, c in 0u64..200) {
            prop_assert!(one_sided(b + 1, c) <= one_sided(b, c) + 1e-12);
        }
    }
}
