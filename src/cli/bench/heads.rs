//! Attention heads to measure on, and the exact answer.

use kvgauge::rng::Rng;

/// Width of a synthetic head: that of most models of the supported families.
pub(super) const HEAD_DIM: usize = 64;
/// 1/√[`HEAD_DIM`].
const SOFTMAX_SCALE: f32 = 0.125;

/// How a head spreads its weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spread {
    /// Over all keys: independent scores with a standard deviation of 1.
    Diffuse,
    /// One key holds half of the weight, the rest is spread over all others: a needle.
    Peaked,
}

impl Spread {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Diffuse => "diffuse",
            Self::Peaked => "peaked",
        }
    }
}

/// Unquantized queries, keys and values of one KV head.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Head {
    pub(super) head_dim: usize,
    /// Factor on the scores, usually `1/√head_dim`.
    pub(super) softmax_scale: f32,
    /// `[n_query, head_dim]`, all at the last position.
    pub(super) q: Vec<f32>,
    /// `[n_key, head_dim]`.
    pub(super) k: Vec<f32>,
    /// `[n_key, head_dim]`.
    pub(super) v: Vec<f32>,
}

impl Head {
    /// One query over `n_key` keys. Queries and keys are standard normal, values too, around a mean of their own in each
    /// dimension, as those of real models have: a mean of zero would average away with the errors. Fewer keys of the same seed
    /// are the first ones of more.
    pub(super) fn synthetic(spread: Spread, seed: u64, n_key: usize) -> Self {
        let stream = |part: &str| Normal::new(&["attention-error", &seed.to_string(), part]);
        let q = stream("q").values(HEAD_DIM);
        let mut k = stream("k").values(n_key * HEAD_DIM);
        let mut v = stream("v").values(n_key * HEAD_DIM);
        let mean = stream("mean").values(HEAD_DIM);
        for row in v.chunks_exact_mut(HEAD_DIM) {
            row.iter_mut().zip(&mean).for_each(|(value, mean)| *value += mean);
        }
        if spread == Spread::Peaked && n_key > 1 {
            plant_needle(&q, &mut k);
        }
        Self { head_dim: HEAD_DIM, softmax_scale: SOFTMAX_SCALE, q, k, v }
    }

    /// Attention of the queries in f64, `[n_query, head_dim]`.
    pub(super) fn exact(&self) -> Vec<f64> {
        let mut out = Vec::with_capacity(self.q.len());
        for q in self.q.chunks_exact(self.head_dim) {
            let scores = scores(q, &self.k, self.softmax_scale);
            let highest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let mut sum = 0.0;
            let mut values = vec![0.0; self.head_dim];
            for (score, v) in scores.iter().zip(self.v.chunks_exact(self.head_dim)) {
                let weight = (score - highest).exp();
                sum += weight;
                values.iter_mut().zip(v).for_each(|(value, v)| *value += weight * f64::from(*v));
            }
            out.extend(values.iter().map(|value| value / sum));
        }
        out
    }
}

/// Distance to `exact` over its length, in the L2 norm.
pub(super) fn relative_error(found: &[f32], exact: &[f64]) -> f64 {
    let distance = found.iter().zip(exact).map(|(found, exact)| (f64::from(*found) - exact).powi(2)).sum::<f64>();
    let length = exact.iter().map(|exact| exact * exact).sum::<f64>();
    if distance == 0.0 { 0.0 } else { (distance / length).sqrt() }
}

/// q · k times the scale for every key.
fn scores(q: &[f32], k: &[f32], softmax_scale: f32) -> Vec<f64> {
    let dot = |k: &[f32]| q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>();
    let dot = |k: &[f32]| dot(k) * f64::from(softmax_scale);
    k.chunks_exact(q.len()).map(dot).collect()
}

/// Replaces the key in the middle by a multiple of the query that outweighs all others together.
fn plant_needle(q: &[f32], k: &mut [f32]) {
    let n_key = k.len() / HEAD_DIM;
    let needle = n_key / 2;
    let others = scores(q, k, SOFTMAX_SCALE).into_iter().enumerate().filter(|(index, _)| *index != needle);
    let score = others.map(|(_, score)| score.exp()).sum::<f64>().ln();
    let square = q.iter().map(|q| f64::from(*q).powi(2)).sum::<f64>();
    let factor = score / (f64::from(SOFTMAX_SCALE) * square);
    let row = &mut k[needle * HEAD_DIM..(needle + 1) * HEAD_DIM];
    row.iter_mut().zip(q).for_each(|(k, q)| *k = (f64::from(*q) * factor) as f32);
}

/// Standard normal numbers (Box and Muller 1958).
struct Normal(Rng);

impl Normal {
    fn new(name: &[&str]) -> Self {
        Self(Rng::from_name(name))
    }

    /// `n` values; `n` is even, so that more values begin with the same ones.
    fn values(&mut self, n: usize) -> Vec<f32> {
        let mut values = Vec::with_capacity(n + 1);
        while values.len() < n {
            // 1 − u is in (0, 1], where the logarithm is finite.
            let radius = (-2.0 * (1.0 - self.0.unit()).ln()).sqrt();
            let (sine, cosine) = (std::f64::consts::TAU * self.0.unit()).sin_cos();
            values.extend([(radius * cosine) as f32, (radius * sine) as f32]);
        }
        values.truncate(n);
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_needle_holds_half_of_the_weight_at_every_length() {
        for n_key in [2, 64, 4096] {
            let head = Head::synthetic(Spread::Peaked, 1, n_key);
            let weights: Vec<f64> = scores(&head.q, &head.k, SOFTMAX_SCALE).into_iter().map(f64::exp).collect();
            let share = weights[n_key / 2] / weights.iter().sum::<f64>();
            assert!((share - 0.5).abs() < 1e-5, "{n_key}: {share}");
        }
    }

    #[test]
    fn numbers_are_standard_normal_and_a_shorter_head_is_the_start_of_a_longer_one() {
        let (short, long) = (Head::synthetic(Spread::Diffuse, 3, 512), Head::synthetic(Spread::Diffuse, 3, 2048));
        assert_eq!((&short.q, &short.k[..], &short.v[..]), (&long.q, &long.k[..512 * 64], &long.v[..512 * 64]));
        let n = long.k.len() as f64;
        let mean = long.k.iter().map(|k| f64::from(*k)).sum::<f64>() / n;
        let variance = long.k.iter().map(|k| (f64::from(*k) - mean).powi(2)).sum::<f64>() / n;
        assert!(mean.abs() < 0.01 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
        assert_ne!(long.k, Head::synthetic(Spread::Diffuse, 4, 2048).k);
    }

    #[test]
    fn exact_attention_is_the_weighted_mean_of_the_values() {
        let head =
            Head { head_dim: 1, softmax_scale: 1.0, q: vec![2.0], k: vec![0.0, 3_f32.ln() / 2.0], v: vec![1.0, 5.0] };
        assert!((head.exact()[0] - 4.0).abs() < 1e-6, "weights 1 and 3: {:?}", head.exact());
        assert!((relative_error(&[4.4], &head.exact()) - 0.1).abs() < 1e-6);
    }
}
