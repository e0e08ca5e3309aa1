//! Bootstrap over clusters (Davison and Hinkley 1997, 3.8): whole clusters are drawn, so what varies together stays together.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use crate::stats::paired::Cluster;
use crate::stats::permutation::below;

/// Resamples; the percentiles of 2,000 are stable to a few per cent of the interval's width.
const RESAMPLES: usize = 2_000;

/// 95 % percentile interval of the mean Σ sum / Σ size. `None` for fewer than two clusters with observations.
pub fn cluster_bootstrap_95(clusters: &[Cluster], seed: u64) -> Option<(f64, f64)> {
    let clusters: Vec<Cluster> = clusters.iter().copied().filter(|cluster| cluster.size > 0).collect();
    if clusters.len() < 2 {
        return None;
    }
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut means: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let (mut sum, mut size) = (0.0, 0);
            for _ in 0..clusters.len() {
                let drawn = clusters[below(&mut rng, clusters.len())];
                sum += drawn.sum;
                size += drawn.size;
            }
            sum / size as f64
        })
        .collect();
    means.sort_by(f64::total_cmp);
    let at = |share: f64| means[((RESAMPLES - 1) as f64 * share).round() as usize];
    Some((at(0.025), at(0.975)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_interval() {
        let mut clusters = vec![Cluster { sum: 1.0, size: 1 }; 9];
        clusters.push(Cluster { sum: -1.0, size: 1 });
        clusters.extend([Cluster { sum: 0.0, size: 1 }; 90]);
        let (low, high) = cluster_bootstrap_95(&clusters, 11).unwrap();
        assert!((low - 0.02).abs() < 0.0101 && (high - 0.14).abs() < 0.0101, "{low} {high}");
        assert_eq!(cluster_bootstrap_95(&clusters, 11), Some((low, high)));
    }

    #[test]
    fn clusters_widen_the_interval() {
        let width = |(low, high): (f64, f64)| high - low;
        let singles: Vec<Cluster> = (0..200).map(|i| Cluster { sum: f64::from(i % 10 / 9), size: 1 }).collect();
        let tens: Vec<Cluster> =
            (0..20).map(|i| Cluster { sum: if i % 10 == 0 { 10.0 } else { 0.0 }, size: 10 }).collect();
        let single = width(cluster_bootstrap_95(&singles, 1).unwrap());
        let clustered = width(cluster_bootstrap_95(&tens, 1).unwrap());
        assert!(clustered > 2.0 * single, "{clustered} {single}");
        assert_eq!(cluster_bootstrap_95(&tens[..1], 1), None);
    }
}
