//! The oracle: naive loops in the order of the formulas with f64 sums. Kept naive for ever, never optimised; every other
//! kernel is tested against it.

use std::ops::Range;
use std::sync::Arc;

use super::geometry::{n_position, visible_keys};
use super::packed::unpack_pair;
use super::{AttentionJob, Kernel, KernelEntry, PackedMatrix, TILE_OUT};

/// Always available.
pub(super) const ENTRY: KernelEntry = KernelEntry { name: NAME, probe: || Ok(Arc::new(Reference)) };

const NAME: &str = "reference";

struct Reference;

impl Kernel for Reference {
    fn name(&self) -> &'static str {
        NAME
    }

    fn gemm(&self, x: &[f32], n_row: usize, w: &PackedMatrix, tiles: Range<usize>, y: &mut [f32]) {
        let n_column = w.n_column(&tiles);
        assert_eq!(x.len(), n_row * w.n_in, "x [n_row, n_in]");
        assert_eq!(y.len(), n_row * n_column, "y [n_row, n_column]");
        for row in 0..n_row {
            for column in 0..n_column {
                let tile = w.tile(tiles.start + column / TILE_OUT);
                let mut sum = 0.0f64;
                for input in 0..w.n_in {
                    let weight = unpack_pair(tile[input / 2].0[column % TILE_OUT])[input % 2];
                    sum += f64::from(x[row * w.n_in + input]) * f64::from(weight);
                }
                y[row * n_column + column] = sum as f32;
            }
        }
    }

    fn attend(&self, job: &mut AttentionJob<'_>) {
        let n_position = n_position(job);
        let head_dim = job.head_dim;
        let n_key = job.first_position + n_position;
        let mut k = vec![0.0; n_key * head_dim];
        let mut v = vec![0.0; n_key * head_dim];
        job.kv.decode_f32(0, n_key, &mut k, &mut v);
        for row in 0..n_position * job.group {
            let visible = visible_keys(job.first_position + row / job.group, job.window);
            let q = &job.q[row * head_dim..][..head_dim];
            let scores: Vec<f64> =
                visible.clone().map(|key| dot(q, &k[key * head_dim..][..head_dim]) * f64::from(job.scale)).collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
            let total: f64 = weights.iter().sum();
            for dim in 0..head_dim {
                let values = visible.clone().map(|key| f64::from(v[key * head_dim + dim]));
                let sum: f64 = values.zip(&weights).map(|(value, weight)| value * weight).sum();
                job.out[row * head_dim + dim] = (sum / total) as f32;
            }
        }
    }
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}
