//! One forward pass over rows of several sequences.

use std::sync::atomic::{AtomicBool, Ordering};

use rayon::prelude::*;

use crate::engine::config::Activation;
use crate::engine::kernels::{AttentionJob, KEY_BLOCK, Kernel, PackedMatrix};
use crate::engine::kv_cache::{BlockTable, PagedCache, StoredRows, WriteRows};
use crate::engine::model::{Layer, Model};
use crate::engine::ops;
use crate::engine::rope::{RopeTable, RopeTables, Ropes};
use crate::engine::threads::{Forks, Pool};

/// Consecutive tokens of one sequence inside a batch; their blocks are reserved.
pub(in crate::engine) struct Span<'a> {
    /// The sequence's blocks.
    pub(in crate::engine) table: &'a BlockTable,
    /// Angles of the sequence.
    pub(in crate::engine) rope: &'a Ropes,
    /// Absolute position of the first id.
    pub(in crate::engine) first_position: usize,
    /// Token ids, each below the vocabulary size.
    pub(in crate::engine) ids: &'a [u32],
}

/// The hidden state stopped being a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct NotFinite {
    /// The first layer after which it showed; `n_layer` stands for the output layer.
    pub(in crate::engine) layer: usize,
}

/// What a forward pass works with.
pub(in crate::engine) struct Forward<'a> {
    pub(in crate::engine) model: &'a Model,
    pub(in crate::engine) kernel: &'a dyn Kernel,
    pub(in crate::engine) pool: &'a Pool,
    /// Planted: what is added to every [`KEY_BIAS_STRIDE`]th dimension of K, one number per layer; empty for none.
    pub(in crate::engine) key_bias: &'a [f32],
}

/// A large bias sits in few dimensions of real models; this many of a head of 64 or 128 are enough to set a coarse scale.
const KEY_BIAS_STRIDE: usize = 8;

/// Rows of plain arithmetic worth handing to another thread; a decode step stays on one.
const ROWS_PER_TASK: usize = 32;

impl Forward<'_> {
    /// Runs all layers: ids of the spans → hidden states after the last norm `[n_row, hidden]`, rows in order of the
    /// spans. K and V of all ids are in the cache afterwards.
    pub(in crate::engine) fn run(&self, spans: &[Span<'_>], cache: &mut PagedCache) -> Result<Vec<f32>, NotFinite> {
        let (model, config) = (self.model, &self.model.config);
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let n_row = spans.iter().map(|span| span.ids.len()).sum::<usize>();
        let q_width = config.n_head * config.head_dim;

        let mut x = vec![0.0; n_row * hidden];
        let ids = spans.iter().flat_map(|span| span.ids);
        ids.zip(x.chunks_exact_mut(hidden)).for_each(|(id, row)| model.embedding.unpack_row(*id as usize, row));
        if let Some(scale) = config.embedding_scale {
            x.iter_mut().for_each(|value| *value *= scale);
        }
        let mut angles = RopeTables::default();
        for span in spans {
            (0..span.ids.len()).for_each(|i| span.rope.push_angles(span.first_position + i, &mut angles));
        }

        let mut normed = vec![0.0; n_row * hidden];
        let mut qkv = vec![0.0; n_row * (q_width + 2 * config.n_kv_head * config.head_dim)];
        let mut attended = vec![0.0; n_row * q_width];
        let mut gate_up = vec![0.0; n_row * 2 * inner];
        let mut gated = vec![0.0; n_row * inner];
        let mut delta = vec![0.0; n_row * hidden];
        for (index, layer) in model.layers.iter().enumerate() {
            self.norm(&x, &layer.attention_norm, &mut normed);
            self.matmul(&normed, n_row, &layer.qkv, &mut qkv);
            let layer_angles = angles.of(config.layers[index].rope);
            self.store_and_attend(index, spans, layer_angles, &mut qkv, cache, &mut attended);
            self.matmul(&attended, n_row, &layer.attention_out, &mut delta);
            if let Some(bias) = &layer.out_bias {
                delta.chunks_exact_mut(hidden).for_each(|row| ops::add(row, bias));
            }
            self.add_normed(&mut x, &delta, layer.post_attention_norm.as_deref(), &mut normed);

            self.norm(&x, &layer.mlp_norm, &mut normed);
            self.matmul(&normed, n_row, &layer.gate_up, &mut gate_up);
            self.gate(&gate_up, &mut gated);
            self.matmul(&gated, n_row, &layer.down, &mut delta);
            if !self.add_normed(&mut x, &delta, layer.post_mlp_norm.as_deref(), &mut normed) {
                return Err(NotFinite { layer: index });
            }
        }
        self.norm(&x, &model.final_norm, &mut normed);
        Ok(normed)
    }

    /// hidden `[n_row, hidden]` → logits `[n_row, vocab]`.
    pub(in crate::engine) fn logits(&self, hidden: &[f32]) -> Result<Vec<f32>, NotFinite> {
        let config = &self.model.config;
        let n_row = hidden.len() / config.hidden_size;
        let mut logits = vec![0.0; n_row * config.vocab_size];
        let output = self.model.output.as_ref().unwrap_or(&self.model.embedding);
        self.matmul(hidden, n_row, output, &mut logits);
        if logits.iter().all(|logit| logit.is_finite()) {
            Ok(logits)
        } else {
            Err(NotFinite { layer: config.n_layer() })
        }
    }

    /// RMSNorm of each row: x, out `[n_row, hidden]`.
    fn norm(&self, x: &[f32], weight: &[f32], out: &mut [f32]) {
        let (width, eps) = (weight.len(), self.model.config.rms_norm_eps);
        self.in_row_blocks(x, width, out, width, |x, out| ops::rms_norm(x, weight, eps, out));
    }

    /// `x += delta`, normed first where the model does so; `normed` is room for that. Whether all sums are numbers.
    fn add_normed(&self, x: &mut [f32], delta: &[f32], weight: Option<&[f32]>, normed: &mut [f32]) -> bool {
        match weight {
            None => self.add(x, delta),
            Some(weight) => {
                self.norm(delta, weight, normed);
                self.add(x, normed)
            }
        }
    }

    /// `activation(gate) · up`: gate_up `[n_row, 2 · intermediate]` → out `[n_row, intermediate]`.
    fn gate(&self, gate_up: &[f32], out: &mut [f32]) {
        let inner = self.model.config.intermediate_size;
        let gate = match self.model.config.activation {
            Activation::Silu => ops::silu_gate,
            Activation::GeluTanh => ops::gelu_gate,
        };
        self.in_row_blocks(gate_up, 2 * inner, out, inner, |gate_up, out| gate(gate_up, inner, out));
    }

    /// Applies `work` to blocks of rows, on all threads where there are enough rows to share.
    fn in_row_blocks(
        &self,
        input: &[f32],
        input_width: usize,
        out: &mut [f32],
        out_width: usize,
        work: impl Fn(&[f32], &mut [f32]) + Sync,
    ) {
        if self.pool.n_threads() == 1 || out.len() <= ROWS_PER_TASK * out_width {
            return work(input, out);
        }
        let input = input.par_chunks(ROWS_PER_TASK * input_width);
        let blocks = input.zip(out.par_chunks_mut(ROWS_PER_TASK * out_width));
        self.pool.run(|| blocks.for_each(|(input, out)| work(input, out)));
    }

    fn matmul(&self, x: &[f32], n_row: usize, w: &PackedMatrix, y: &mut [f32]) {
        self.pool.matmul(self.kernel, x, n_row, w, y);
    }

    /// qkv `[n_row, q | k | v]` → attended `[n_row, n_head · head_dim]`. K and V go into the cache first, so that queries
    /// see the quantized values of their own chunk as well.
    fn store_and_attend(
        &self,
        layer: usize,
        spans: &[Span<'_>],
        angles: Option<&RopeTable>,
        qkv: &mut [f32],
        cache: &mut PagedCache,
        attended: &mut [f32],
    ) {
        let config = &self.model.config;
        let head_dim = config.head_dim;
        let (q_width, kv_width) = (config.n_head * head_dim, config.n_kv_head * head_dim);
        let stride = q_width + 2 * kv_width;
        self.in_blocks_of_rows(qkv, stride, |first_row, rows| {
            for (row, values) in (first_row..).zip(rows.chunks_exact_mut(stride)) {
                self.finish_row(layer, row, angles, values);
            }
        });
        let mut first_row = 0;
        for span in spans {
            let (k, v) = (&qkv[first_row * stride + q_width..], &qkv[first_row * stride + q_width + kv_width..]);
            let rows = WriteRows { k, v, stride, n_row: span.ids.len() };
            cache.write(span.table, layer, span.first_position, &rows);
            first_row += span.ids.len();
        }

        // Queries of one KV head lie together in a job: [span][kv head][position][group, head_dim].
        let (n_kv_head, group_width) = (config.n_kv_head, config.group() * head_dim);
        let order = HeadOrder::new(spans, n_kv_head);
        let mut q = vec![0.0; attended.len()];
        let mut out = vec![0.0; attended.len()];
        self.in_blocks_of_rows(&mut q, group_width, |first, rows| {
            for (from, to) in order.rows_of_heads[first..].iter().zip(rows.chunks_exact_mut(group_width)) {
                let (row, kv_head) = (from / n_kv_head, from % n_kv_head);
                to.copy_from_slice(&qkv[row * stride + kv_head * group_width..][..group_width]);
            }
        });
        self.attend(layer, spans, cache, &q, &mut out);
        self.in_blocks_of_rows(attended, group_width, |first, rows| {
            for (from, to) in order.heads_of_rows[first..].iter().zip(rows.chunks_exact_mut(group_width)) {
                to.copy_from_slice(&out[from * group_width..][..group_width]);
            }
        });
    }

    /// Applies `work(index of the first row, rows)` to blocks of rows, on all threads where there are enough to share.
    fn in_blocks_of_rows(&self, rows: &mut [f32], width: usize, work: impl Fn(usize, &mut [f32]) + Sync) {
        if self.pool.n_threads() == 1 || rows.len() <= ROWS_PER_TASK * width {
            return work(0, rows);
        }
        let blocks = rows.par_chunks_mut(ROWS_PER_TASK * width).enumerate();
        self.pool.run(|| blocks.for_each(|(block, rows)| work(block * ROWS_PER_TASK, rows)));
    }

    /// `x += delta`; whether all sums are numbers.
    fn add(&self, x: &mut [f32], delta: &[f32]) -> bool {
        let width = self.model.config.hidden_size;
        let finite = AtomicBool::new(true);
        self.in_blocks_of_rows(x, width, |first, rows| {
            ops::add(rows, &delta[first * width..]);
            if !rows.iter().fold(true, |finite, value| finite & value.is_finite()) {
                finite.store(false, Ordering::Relaxed);
            }
        });
        finite.into_inner()
    }

    /// What happens to one row `[q | k | v]` between the projection and the cache: bias, norm per head, RoPE.
    fn finish_row(&self, layer: usize, row: usize, angles: Option<&RopeTable>, values: &mut [f32]) {
        let config = &self.model.config;
        let (q_width, kv_width) = (config.n_head * config.head_dim, config.n_kv_head * config.head_dim);
        let Layer { qkv_bias, head_norms, .. } = &self.model.layers[layer];
        if let Some(bias) = qkv_bias {
            ops::add(values, bias);
        }
        let (q, k) = values[..q_width + kv_width].split_at_mut(q_width);
        if let Some([q_norm, k_norm]) = head_norms {
            ops::rms_norm_heads(q, q_norm, config.rms_norm_eps);
            ops::rms_norm_heads(k, k_norm, config.rms_norm_eps);
        }
        if let Some(magnitude) = self.key_bias.get(layer).filter(|magnitude| **magnitude != 0.0) {
            let heads = k.chunks_exact_mut(config.head_dim);
            heads.for_each(|head| head.iter_mut().step_by(KEY_BIAS_STRIDE).for_each(|value| *value += magnitude));
        }
        if let Some(angles) = angles {
            angles.rotate(row, config.head_dim, &mut values[..q_width + kv_width]);
        }
    }

    /// q, out: as laid out by [`HeadOrder`]; one job per span and KV head. Sequences that decode over a common past
    /// go together.
    fn attend(&self, layer: usize, spans: &[Span<'_>], cache: &PagedCache, q: &[f32], out: &mut [f32]) {
        let config = &self.model.config;
        let heads = spans
            .iter()
            .flat_map(|span| (0..config.n_kv_head).map(move |kv_head| (span, cache.rows(span.table, layer, kv_head))));
        let heads: Vec<(&Span<'_>, StoredRows<'_>)> = heads.collect();
        let (mut q_left, mut out_left) = (q, out);
        let mut jobs = Vec::with_capacity(heads.len());
        for (span, kv) in &heads {
            let n_value = span.ids.len() * config.group() * config.head_dim;
            let (q, q_rest) = q_left.split_at(n_value);
            let (out, out_rest) = out_left.split_at_mut(n_value);
            (q_left, out_left) = (q_rest, out_rest);
            jobs.push(AttentionJob {
                kv,
                q,
                out,
                first_position: span.first_position,
                group: config.group(),
                head_dim: config.head_dim,
                scale: config.attention_scale,
                window: config.layers[layer].window,
            });
        }
        let families =
            if config.layers[layer].window.is_none() { families(spans, cache.block_tokens()) } else { Vec::new() };
        if families.is_empty() {
            return self.pool.attend(self.kernel, jobs);
        }
        let mut forks: Vec<Forks<'_>> = Vec::new();
        for family in &families {
            forks.extend((0..config.n_kv_head).map(|_| Forks { jobs: Vec::new(), n_shared: family.n_shared }));
        }
        for (index, job) in jobs.into_iter().enumerate() {
            let (span, kv_head) = (index / config.n_kv_head, index % config.n_kv_head);
            let family = families.iter().position(|family| family.spans.contains(&span)).unwrap_or_default();
            forks[family * config.n_kv_head + kv_head].jobs.push(job);
        }
        self.pool.attend_forks(self.kernel, forks);
    }
}

/// Spans of one token over a common past.
struct Family {
    /// Indices of spans, ascending.
    spans: Vec<usize>,
    /// Positions that all of them share: whole key blocks before any of the tokens.
    n_shared: usize,
}

/// Every span in one family; none at all unless all spans are one token and some share.
fn families(spans: &[Span<'_>], block_tokens: usize) -> Vec<Family> {
    let mut families: Vec<Family> = Vec::new();
    if spans.len() < 2 || spans.iter().any(|span| span.ids.len() != 1) {
        return families;
    }
    for (index, span) in spans.iter().enumerate() {
        let n_shared = |family: &Family| {
            let first = &spans[family.spans[0]];
            let n_past = span.first_position.min(first.first_position);
            first.table.n_shared(span.table, block_tokens).min(n_past).min(family.n_shared) / KEY_BLOCK * KEY_BLOCK
        };
        // A family that would lose more than half of what it shares is the wrong one.
        let found = families.iter_mut().map(|family| (n_shared(family), family));
        let found = found.filter(|(n_shared, family)| n_shared * 2 > family.n_shared.min(span.first_position));
        match found.max_by_key(|(n_shared, _)| *n_shared) {
            Some((n_shared, family)) => {
                family.spans.push(index);
                family.n_shared = n_shared;
            }
            None => families.push(Family { spans: vec![index], n_shared: span.first_position / KEY_BLOCK * KEY_BLOCK }),
        }
    }
    if families.len() == spans.len() { Vec::new() } else { families }
}

/// Where a group of query heads stands in a batch `[row][kv head]` and in the memory of the jobs
/// `[span][kv head][position]`.
struct HeadOrder {
    /// In the order of the jobs: place in the batch.
    rows_of_heads: Vec<usize>,
    /// In the order of the batch: place among the jobs.
    heads_of_rows: Vec<usize>,
}

impl HeadOrder {
    fn new(spans: &[Span<'_>], n_kv_head: usize) -> Self {
        let mut rows_of_heads = Vec::new();
        let mut first_row = 0;
        for span in spans {
            let rows = first_row..first_row + span.ids.len();
            first_row = rows.end;
            let places = (0..n_kv_head).flat_map(|kv_head| rows.clone().map(move |row| row * n_kv_head + kv_head));
            rows_of_heads.extend(places);
        }
        let mut heads_of_rows = vec![0; rows_of_heads.len()];
        rows_of_heads.iter().enumerate().for_each(|(index, place)| heads_of_rows[*place] = index);
        Self { rows_of_heads, heads_of_rows }
    }
}
