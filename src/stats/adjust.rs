//! p-values of a family of tests, adjusted. Results are in the order of the input; an empty family stays empty.

use crate::stats::legal_p;

/// Holm 1979: controls the family-wise error rate under any dependence. max over j ≤ i of min(1, (m − j + 1) · p₍ⱼ₎).
pub fn holm(p_values: &[f64]) -> Vec<f64> {
    let order = ascending(p_values);
    let mut adjusted = vec![1.0; p_values.len()];
    let mut largest = 0.0_f64;
    for (rank, &index) in order.iter().enumerate() {
        largest = largest.max((p_values.len() - rank) as f64 * p_values[index]);
        adjusted[index] = legal_p(largest);
    }
    adjusted
}

/// Hochberg 1988: as [`holm`] but stepping up; needs independent or positively dependent tests.
pub fn hochberg(p_values: &[f64]) -> Vec<f64> {
    step_up(p_values, |m, rank| (m - rank) as f64)
}

/// Benjamini and Hochberg 1995: controls the false discovery rate. min over j ≥ i of min(1, m · p₍ⱼ₎ / j).
pub fn benjamini_hochberg(p_values: &[f64]) -> Vec<f64> {
    step_up(p_values, |m, rank| m as f64 / (rank + 1) as f64)
}

fn step_up(p_values: &[f64], factor: impl Fn(usize, usize) -> f64) -> Vec<f64> {
    let order = ascending(p_values);
    let mut adjusted = vec![1.0; p_values.len()];
    let mut smallest = 1.0_f64;
    for (rank, &index) in order.iter().enumerate().rev() {
        smallest = smallest.min(factor(p_values.len(), rank) * p_values[index]);
        adjusted[index] = legal_p(smallest);
    }
    adjusted
}

fn ascending(p_values: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|&left, &right| p_values[left].total_cmp(&p_values[right]));
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The fifteen p-values of Benjamini and Hochberg's own example.
    const FIFTEEN: [f64; 15] = [
        0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262, 0.5719, 0.6528, 0.7590,
        1.0,
    ];

    fn near(got: &[f64], wanted: &[f64]) {
        assert_eq!(got.len(), wanted.len());
        for (got, wanted) in got.iter().zip(wanted) {
            assert!((got - wanted).abs() < 1e-6, "{got} instead of {wanted}");
        }
    }

    #[test]
    fn golden_values() {
        let four = [0.01, 0.04, 0.03, 0.005];
        near(&holm(&four), &[0.03, 0.06, 0.06, 0.02]);
        near(&benjamini_hochberg(&four), &[0.02, 0.04, 0.04, 0.02]);
        near(&hochberg(&four), &[0.03, 0.04, 0.04, 0.02]);
        near(
            &holm(&FIFTEEN),
            &[0.0015, 0.0056, 0.0247, 0.114, 0.2211, 0.278, 0.278, 0.278, 0.3213, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
        );
        near(
            &benjamini_hochberg(&FIFTEEN),
            &[
                0.0015, 0.003, 0.0095, 0.035625, 0.0603, 0.0638571, 0.0638571, 0.0645, 0.0765, 0.486, 0.581182,
                0.714875, 0.753231, 0.813214, 1.0,
            ],
        );
        let rejected = |adjusted: Vec<f64>| adjusted.iter().filter(|p| **p < 0.05).count();
        assert_eq!(rejected(holm(&FIFTEEN)), 3);
        assert_eq!(rejected(hochberg(&FIFTEEN)), 3);
        assert_eq!(rejected(benjamini_hochberg(&FIFTEEN)), 4);
        assert!(holm(&[]).is_empty());
    }

    proptest! {
        #[test]
        fn monotone_above_the_raw_value_and_the_same_in_any_order(
            p_values in prop::collection::vec(0.0f64..=1.0, 1..40),
            turn in 0usize..40,
        ) {
            for adjust in [holm, hochberg, benjamini_hochberg] {
                let adjusted = adjust(&p_values);
                for i in 0..p_values.len() {
                    prop_assert!(adjusted[i] >= p_values[i] && adjusted[i] > 0.0 && adjusted[i] <= 1.0);
                    for j in 0..p_values.len() {
                        prop_assert!(p_values[i] > p_values[j] || adjusted[i] <= adjusted[j]);
                    }
                }
                let turn = turn % p_values.len();
                let mut turned = p_values.clone();
                turned.rotate_left(turn);
                let mut again = adjust(&turned);
                again.rotate_right(turn);
                prop_assert_eq!(again, adjusted);
            }
        }
    }
}
