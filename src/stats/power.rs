//! Exact error rates of the one-sided McNemar test: how often `n` pairs find a drop, and how often they alarm without one.
//!
//! The number of changes is Binomial(n, ψ), and of `d` changes Binomial(d, (ψ + δ)/(2ψ)) are for the worse; so the power is a sum over
//! `d` of the probability to reach the smallest count that is significant among `d` (Duffy 1984).

use statrs::function::gamma::ln_gamma;

use crate::stats::{mcnemar, sample_size::detect_drop};

/// Numbers of pairs are rounded up to steps of this size: power rises in saw teeth, and a smaller step would chase them.
pub const GRID: u64 = 20;

/// Most pairs for which the exact sum is worth its time; beyond it the normal approximation is right to a per cent.
const MOST_EXACT: u64 = 20_000;

/// Counts further from their mean than so many standard deviations have no weight: 1e-15 and less.
const TAIL: f64 = 8.0;

/// Probability that a true drop of `delta` is significant at `alpha` in `n` pairs of which `psi` change. With `delta` 0 it is the
/// actual size of the test. `None` for impossible shares (|δ| > ψ).
pub fn mcnemar_power(n: u64, psi: f64, delta: f64, alpha: f64) -> Option<f64> {
    let possible = (0.0..=1.0).contains(&psi) && delta.abs() <= psi && alpha > 0.0 && alpha < 1.0;
    possible.then_some(())?;
    let worse = if psi > 0.0 { ((psi + delta) / (2.0 * psi)).clamp(0.0, 1.0) } else { 0.5 };
    let changes = likely(n, psi);
    let mut critical = 0;
    let mut power = 0.0;
    for changed in changes {
        // The smallest significant count never falls when there are more changes.
        while critical <= changed && mcnemar::one_sided(critical, changed - critical) >= alpha {
            critical += 1;
        }
        power += point(n, psi, changed) * upper_tail(changed, worse, critical);
    }
    Some(power.clamp(0.0, 1.0))
}

/// Fewest pairs, in steps of [`GRID`], with at least `power` to find a true drop of `delta`. Beyond 20,000 pairs the normal
/// approximation. `None` when no such sample exists.
pub fn pairs_for_power(psi: f64, delta: f64, alpha: f64, power: f64) -> Option<u64> {
    let about = detect_drop(psi, delta, alpha, power)?;
    if about > MOST_EXACT {
        return Some(about.div_ceil(GRID) * GRID);
    }
    // The exact test is conservative, so it never does with fewer pairs than the approximation by this much.
    let mut pairs = (about * 3 / 4 / GRID).max(1) * GRID;
    while pairs < 2 * MOST_EXACT {
        if mcnemar_power(pairs, psi, delta, alpha)? >= power {
            return Some(pairs);
        }
        pairs += GRID;
    }
    None
}

/// Probability that `n` pairs of which `psi` change in either direction alike show a drop of at least `threshold`: how often a rule
/// without a test alarms in one cell.
pub fn chance_drop(n: u64, psi: f64, threshold: f64) -> Option<f64> {
    let possible = (0.0..=1.0).contains(&psi) && threshold > 0.0 && n > 0;
    possible.then_some(())?;
    // Rounding must not turn five of a hundred into more than five points.
    let least = (n as f64 * threshold - 1e-9).ceil() as u64;
    let reached = |changed: u64| upper_tail(changed, 0.5, (changed + least).div_ceil(2));
    Some(likely(n, psi).map(|changed| point(n, psi, changed) * reached(changed)).sum::<f64>().clamp(0.0, 1.0))
}

/// The counts of Binomial(n, p) that have weight.
fn likely(n: u64, p: f64) -> std::ops::RangeInclusive<u64> {
    let mean = n as f64 * p;
    // The margin of a few counts is for small means, where the distribution is skewed.
    let reach = TAIL * (mean * (1.0 - p)).sqrt() + TAIL * TAIL;
    let (least, most) = ((mean - reach).max(0.0) as u64, (mean + reach).ceil() as u64);
    least..=most.min(n)
}

/// P[Binomial(n, p) = k].
fn point(n: u64, p: f64, k: u64) -> f64 {
    if p <= 0.0 || p >= 1.0 {
        return f64::from(u8::from(k == if p <= 0.0 { 0 } else { n }));
    }
    let (count, of) = (k as f64, n as f64);
    let ln_choose = ln_gamma(of + 1.0) - ln_gamma(count + 1.0) - ln_gamma(of - count + 1.0);
    (ln_choose + count * p.ln() + (of - count) * (1.0 - p).ln()).exp()
}

/// P[Binomial(n, p) ≥ k], summed upwards from its first term, or as the rest of the terms below where those are fewer.
fn upper_tail(n: u64, p: f64, k: u64) -> f64 {
    if k == 0 {
        return 1.0;
    }
    if k > n || p <= 0.0 {
        return 0.0;
    }
    if p >= 1.0 {
        return 1.0;
    }
    let mean = n as f64 * p;
    if (k as f64) < mean {
        return (1.0 - upper_tail(n, 1.0 - p, n - k + 1)).max(0.0);
    }
    let odds = p / (1.0 - p);
    let mut term = point(n, p, k);
    let mut sum = term;
    for next in k + 1..=n {
        term *= odds * (n - next + 1) as f64 / next as f64;
        sum += term;
        if term < sum * 1e-17 {
            break;
        }
    }
    sum.min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn power_and_actual_size_equal_the_table() {
        let table = [
            (0.05, [(100, 0.564), (200, 0.974), (500, 1.0)], [(100, 0.012), (200, 0.023)]),
            (0.10, [(100, 0.348), (200, 0.674), (500, 0.970)], [(100, 0.023), (200, 0.032)]),
            (0.20, [(100, 0.232), (200, 0.420), (500, 0.780)], [(100, 0.033), (200, 0.037)]),
        ];
        for (psi, powers, sizes) in table {
            for (n, wanted) in powers {
                let got = mcnemar_power(n, psi, 0.05, 0.05).unwrap();
                assert!((got - wanted).abs() < 0.0006, "ψ {psi}, n {n}: {got} instead of {wanted}");
            }
            for (n, wanted) in sizes {
                let got = mcnemar_power(n, psi, 0.0, 0.05).unwrap();
                assert!((got - wanted).abs() < 0.0006, "ψ {psi}, n {n}: {got} instead of {wanted}");
            }
        }
    }

    #[test]
    fn pairs_on_the_grid_equal_the_table_also_in_holms_first_step() {
        let table = [
            (1.0, [(0.05, 140, 200), (0.10, 280, 440), (0.20, 540, 900)]),
            (5.0, [(0.05, 180, 240), (0.10, 420, 640), (0.20, 840, 1300)]),
            (15.0, [(0.05, 240, 300), (0.10, 520, 760), (0.20, 1040, 1540)]),
        ];
        for (cells, rows) in table {
            for (psi, at_80, at_95) in rows {
                let pairs = |power| pairs_for_power(psi, 0.05, 0.05 / cells, power);
                assert_eq!((pairs(0.80), pairs(0.95)), (Some(at_80), Some(at_95)), "ψ {psi}, {cells} cells");
            }
        }
    }

    #[test]
    fn a_rule_without_a_test_alarms_as_often_as_the_table_says() {
        let table = [
            (20, [(0.02, 0.153, 0.917), (0.05, 0.271, 0.991), (0.10, 0.350, 0.998), (0.20, 0.399, 1.0)]),
            (50, [(0.02, 0.009, 0.128), (0.05, 0.054, 0.563), (0.10, 0.127, 0.870), (0.20, 0.213, 0.972)]),
            (100, [(0.02, 0.0015, 0.023), (0.05, 0.022, 0.285), (0.10, 0.076, 0.694), (0.20, 0.156, 0.922)]),
            (200, [(0.02, 0.0, 0.0), (0.05, 0.0015, 0.023), (0.10, 0.017, 0.225), (0.20, 0.066, 0.643)]),
        ];
        for (n, row) in table {
            for (psi, one, any_of_15) in row {
                let got = chance_drop(n, psi, 0.05).unwrap();
                assert!((got - one).abs() < 0.0006, "ψ {psi}, n {n}: {got} instead of {one}");
                let any = 1.0 - (1.0 - got).powi(15);
                assert!((any - any_of_15).abs() < 0.0006, "ψ {psi}, n {n}: {any} instead of {any_of_15}");
            }
        }
        // Uncorrected tests at 5 % on 15 bins alarm on more than half of the nights, on 75 cells on nearly all.
        assert!((1.0 - 0.95_f64.powi(15) - 0.537).abs() < 0.0005 && (1.0 - 0.95_f64.powi(75) - 0.979).abs() < 0.0005);
    }

    #[test]
    fn impossible_questions_have_no_answer_and_edges_have_one() {
        assert_eq!(mcnemar_power(100, 0.05, 0.06, 0.05), None);
        assert_eq!(mcnemar_power(100, 0.0, 0.0, 0.05), Some(0.0));
        assert_eq!(mcnemar_power(0, 0.5, 0.1, 0.05), Some(0.0));
        assert_eq!(mcnemar_power(5, 1.0, 1.0, 0.05), Some(1.0));
        assert_eq!(mcnemar_power(4, 1.0, 1.0, 0.05), Some(0.0));
        assert_eq!(pairs_for_power(0.05, 0.0, 0.05, 0.8), None);
        assert_eq!(chance_drop(0, 0.1, 0.05), None);
        let far = pairs_for_power(0.1, 0.002, 0.05, 0.8).unwrap();
        assert!(far > MOST_EXACT && far.is_multiple_of(GRID));
    }

    proptest! {
        #[test]
        fn size_never_exceeds_alpha(n in 0u64..400, psi in 0.0f64..=1.0, alpha in 0.001f64..0.4) {
            prop_assert!(mcnemar_power(n, psi, 0.0, alpha).unwrap() <= alpha + 1e-9);
        }

        #[test]
        fn both_tails_add_up(n in 1u64..300, p in 0.001f64..0.999, k in 0u64..300) {
            let k = k.min(n);
            let sum = upper_tail(n, p, k) + upper_tail(n, 1.0 - p, n - k + 1);
            prop_assert!((sum - 1.0).abs() < 1e-9, "{sum}");
        }
    }
}
