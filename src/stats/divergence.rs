//! Kullback–Leibler divergence of two distributions of which only the largest shares are known.

/// How sure shares are: sums that differ from 1 by less are rounding, not a rest.
pub const SHARE_RESOLUTION: f64 = 1e-5;

/// One outcome's share in both distributions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// In the first, 0 to 1.
    pub p: f64,
    /// In the second.
    pub q: Other,
}

/// A share of the second distribution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Other {
    /// It is this.
    Known(f64),
    /// It is not known, but not more than this.
    AtMost(f64),
}

/// A lower bound of KL(p ‖ q) in nats, never below 0. Outcomes that are not in `shares` are one bucket on either side.
///
/// Two bounds hold, and the larger is taken. Joining outcomes never raises the divergence (the log sum inequality; Cover and
/// Thomas, Elements of Information Theory, 2.7), so everything that is not known of both sides may be joined with the rest. And as
/// every term falls with its q, outcomes may stand alone with the most that their q can be.
pub fn kl_lower_bound(shares: &[Share]) -> f64 {
    let (mut known, mut alone, mut unknown_p, mut p_sum, mut q_sum) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for share in shares.iter().filter(|share| share.p > 0.0) {
        p_sum += share.p;
        match share.q {
            Other::Known(q) => {
                known += term(share.p, q);
                q_sum += q;
            }
            Other::AtMost(most) => {
                alone += term(share.p, most);
                unknown_p += share.p;
            }
        }
    }
    let (p_rest, q_rest) = ((1.0 - p_sum).max(0.0), (1.0 - q_sum).max(0.0));
    let joined = known + term(p_rest + unknown_p, q_rest);
    let apart = known + alone + term(p_rest, q_rest);
    joined.max(apart).max(0.0)
}

/// `p ln(p / q)`; shares below the resolution are as large as it.
fn term(p: f64, q: f64) -> f64 {
    let (p, q) = (p.max(SHARE_RESOLUTION), q.max(SHARE_RESOLUTION));
    p * (p / q).ln()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn known(p: f64, q: f64) -> Share {
        Share { p, q: Other::Known(q) }
    }

    #[test]
    fn all_shares_known_give_the_divergence_itself() {
        // 0.5 ln 2 + 0.25 ln 1 + 0.25 ln 0.5 and the same the other way round.
        let shares = [known(0.5, 0.25), known(0.25, 0.25), known(0.25, 0.5)];
        let exact = 0.25 * 2_f64.ln();
        assert!((kl_lower_bound(&shares) - exact).abs() < 1e-4);
        assert_eq!(kl_lower_bound(&[known(0.5, 0.5), known(0.5, 0.5)]), 0.0);
        // The rest is a bucket of its own: {0.9, 0.1} against {0.5, 0.5}.
        let exact = 0.9 * 1.8_f64.ln() + 0.1 * 0.2_f64.ln();
        assert!((kl_lower_bound(&[known(0.9, 0.5)]) - exact).abs() < 1e-12);
    }

    #[test]
    fn an_outcome_that_the_second_side_hardly_has_is_not_hidden_in_the_rest() {
        // 0.99 of it on one outcome, of which the other side has at most a thousandth.
        let far = kl_lower_bound(&[Share { p: 0.99, q: Other::AtMost(0.001) }]);
        assert!(far > 6.7, "{far}");
    }

    proptest! {
        #[test]
        fn the_bound_is_below_the_divergence_and_never_negative(
            raw in proptest::collection::vec((0.001_f64..1.0, 0.001_f64..1.0), 2..40),
            kept in 1_usize..20,
        ) {
            let (p_sum, q_sum) = raw.iter().fold((0.0, 0.0), |(p, q), raw| (p + raw.0, q + raw.1));
            let all: Vec<(f64, f64)> = raw.iter().map(|raw| (raw.0 / p_sum, raw.1 / q_sum)).collect();
            let exact: f64 = all.iter().map(|(p, q)| p * (p / q).ln()).sum();
            // Each side lists its `kept` largest, as two top-k lists do.
            let least = |pick: fn(&(f64, f64)) -> f64| {
                let mut sorted: Vec<f64> = all.iter().map(pick).collect();
                sorted.sort_by(|a, b| b.total_cmp(a));
                sorted[kept.min(sorted.len()) - 1]
            };
            let (p_least, q_least) = (least(|pair| pair.0), least(|pair| pair.1));
            let shares: Vec<Share> = all
                .iter()
                .filter(|(p, _)| *p >= p_least)
                .map(|&(p, q)| Share { p, q: if q >= q_least { Other::Known(q) } else { Other::AtMost(q_least) } })
                .collect();
            let bound = kl_lower_bound(&shares);
            prop_assert!(bound >= 0.0 && bound <= exact + 20.0 * SHARE_RESOLUTION, "{bound} > {exact}");
        }
    }
}
