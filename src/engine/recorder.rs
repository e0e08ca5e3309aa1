//! What attention is computed from, taken out of a running model: for experiments with real queries, keys and values.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::engine::kernels::{AttentionJob, Kernel, PackedMatrix};

/// One KV head at one position.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadInputs {
    /// The layer.
    pub layer: usize,
    /// The KV head in it.
    pub kv_head: usize,
    /// Width of the head.
    pub head_dim: usize,
    /// Factor on the scores.
    pub softmax_scale: f32,
    /// Queries at the last position, RoPE applied: `[group, head_dim]`.
    pub q: Vec<f32>,
    /// Keys that the queries see, as the cache holds them: `[n_key, head_dim]`.
    pub k: Vec<f32>,
    /// Values, same shape.
    pub v: Vec<f32>,
}

/// Keeps the inputs of attention in some layers during one decode step of one sequence on one thread: then the jobs come layer
/// by layer, and head by head in each.
pub(in crate::engine) struct Recorder {
    layers: Vec<usize>,
    n_kv_head: usize,
    n_job: AtomicUsize,
    seen: Mutex<Vec<HeadInputs>>,
}

impl Recorder {
    pub(in crate::engine) fn new(layers: &[usize], n_kv_head: usize) -> Self {
        Self { layers: layers.into(), n_kv_head, n_job: AtomicUsize::new(0), seen: Mutex::new(Vec::new()) }
    }

    /// What was seen, in ascending order of layers and heads.
    pub(in crate::engine) fn inputs(&self) -> Vec<HeadInputs> {
        std::mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn see(&self, job: &AttentionJob<'_>) {
        let index = self.n_job.fetch_add(1, Ordering::Relaxed);
        let (layer, kv_head) = (index / self.n_kv_head, index % self.n_kv_head);
        if !self.layers.contains(&layer) {
            return;
        }
        let end = job.first_position + 1;
        let start = job.window.map_or(0, |window| end.saturating_sub(window.max(1)));
        let mut k = vec![0.0; (end - start) * job.head_dim];
        let mut v = k.clone();
        job.kv.decode_f32(start, end - start, &mut k, &mut v);
        let (head_dim, softmax_scale, q) = (job.head_dim, job.scale, job.q.to_vec());
        let inputs = HeadInputs { layer, kv_head, head_dim, softmax_scale, q, k, v };
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).push(inputs);
    }
}

/// A kernel whose attention a [`Recorder`] sees.
pub(in crate::engine) struct Recording {
    inner: Arc<dyn Kernel>,
    recorder: Arc<Recorder>,
}

impl Recording {
    pub(in crate::engine) fn new(inner: Arc<dyn Kernel>, recorder: Arc<Recorder>) -> Self {
        Self { inner, recorder }
    }
}

impl Kernel for Recording {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn gemm(&self, x: &[f32], n_row: usize, w: &PackedMatrix, tiles: Range<usize>, y: &mut [f32]) {
        self.inner.gemm(x, n_row, w, tiles, y);
    }

    fn attend(&self, job: &mut AttentionJob<'_>) {
        self.recorder.see(job);
        self.inner.attend(job);
    }
}
