//! A decoder-only transformer: its weights and one forward pass over rows of several sequences.
//!
//! ```text
//! ids ─▶ embedding ─▶ n_layer × [ norm ─▶ q,k,v ─▶ rope ─▶ cache ─▶ attention ─▶ out ─▶ + ─▶ norm ─▶ gate·up ─▶ down ─▶ + ] ─▶ norm ─▶ logits
//! ```

use std::path::Path;

use rayon::prelude::*;

use crate::engine::checkpoint_scales::CheckpointScales;
use crate::engine::config::ModelConfig;
use crate::engine::error::EngineError;
use crate::engine::gguf::GgufMetadata;
use crate::engine::kernels::{AttentionJob, Kernel, PackedMatrix};
use crate::engine::kv_cache::{BlockTable, PagedCache, StoredRows, WriteRows};
use crate::engine::ops::{self, Rope, RopeTable};
use crate::engine::threads::Pool;
use crate::engine::weights::{RowOrder, Weights, WeightsError};

/// A loaded model. Weights are BF16 whatever the file held, so that only the KV cache differs between arms.
pub struct Model {
    config: ModelConfig,
    metadata: Option<GgufMetadata>,
    kv_scales: CheckpointScales,
    weights_hash: String,
    /// `[vocab, hidden]`, the output layer too when tied.
    embedding: PackedMatrix,
    layers: Vec<Layer>,
    /// `[hidden]`.
    final_norm: Vec<f32>,
    /// `[vocab, hidden]`.
    output: Option<PackedMatrix>,
}

struct Layer {
    /// `[hidden]`.
    attention_norm: Vec<f32>,
    /// `[(n_head + 2 · n_kv_head) · head_dim, hidden]`: rows of Q, then K, then V.
    qkv: PackedMatrix,
    /// `[hidden, n_head · head_dim]`.
    attention_out: PackedMatrix,
    /// `[hidden]`.
    mlp_norm: Vec<f32>,
    /// `[2 · intermediate, hidden]`: rows of gate, then up.
    gate_up: PackedMatrix,
    /// `[hidden, intermediate]`.
    down: PackedMatrix,
}

impl Model {
    /// Loads a `.gguf` file or a Hugging Face folder.
    pub fn load(path: &Path) -> Result<Self, EngineError> {
        let weights = Weights::open(path)?;
        let (weights_hash, parts) = rayon::join(|| weights.hash(), || Self::pack(&weights));
        let (embedding, layers, final_norm, output) = parts?;
        let kv_scales = CheckpointScales::read(path, &weights)?;
        let Weights { config, metadata, .. } = weights;
        Ok(Self { config, metadata, kv_scales, weights_hash, embedding, layers, final_norm, output })
    }

    #[expect(clippy::type_complexity, reason = "the four parts of a model, named where they are taken apart")]
    fn pack(weights: &Weights) -> Result<(PackedMatrix, Vec<Layer>, Vec<f32>, Option<PackedMatrix>), WeightsError> {
        let config = &weights.config;
        let vocabulary = [config.vocab_size, config.hidden_size];
        let table = |name: &str| -> Result<PackedMatrix, WeightsError> {
            let rows = weights.matrix(name, vocabulary, RowOrder::Plain)?;
            Ok(PackedMatrix::pack(config.vocab_size, config.hidden_size, &rows))
        };
        let embedding = table("model.embed_tokens.weight")?;
        let layers = (0..config.n_layer()).into_par_iter().map(|layer| Layer::pack(weights, layer));
        let layers = layers.collect::<Result<_, _>>()?;
        let final_norm = weights.vector("model.norm.weight", config.hidden_size)?;
        let output = if config.tied_embeddings { None } else { Some(table("lm_head.weight")?) };
        Ok((embedding, layers, final_norm, output))
    }

    /// Dimensions and constants.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Metadata of a GGUF file, tokenizer and chat template included; `None` for a folder.
    pub fn metadata(&self) -> Option<&GgufMetadata> {
        self.metadata.as_ref()
    }

    /// Scales of the KV cache that came with the weights.
    pub fn kv_scale_tensors(&self) -> &CheckpointScales {
        &self.kv_scales
    }

    /// BLAKE3 of the weight files' bytes, in hex.
    pub fn weights_hash(&self) -> String {
        self.weights_hash.clone()
    }
}

impl Layer {
    fn pack(weights: &Weights, layer: usize) -> Result<Self, WeightsError> {
        let config = &weights.config;
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let (q_width, kv_width) = (config.n_head * config.head_dim, config.n_kv_head * config.head_dim);
        let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
        let matrix = |part: &str, n_out, n_in| weights.matrix(&name(part), [n_out, n_in], RowOrder::Plain);
        let heads = |part: &str, n_out| {
            let order = RowOrder::InterleavedHeads { head_dim: config.head_dim };
            weights.matrix(&name(part), [n_out, hidden], order)
        };

        let mut qkv = heads("self_attn.q_proj", q_width)?;
        qkv.extend(heads("self_attn.k_proj", kv_width)?);
        qkv.extend(matrix("self_attn.v_proj", kv_width, hidden)?);
        let mut gate_up = matrix("mlp.gate_proj", inner, hidden)?;
        gate_up.extend(matrix("mlp.up_proj", inner, hidden)?);
        let attention_out = matrix("self_attn.o_proj", hidden, q_width)?;
        let down = matrix("mlp.down_proj", hidden, inner)?;
        Ok(Self {
            attention_norm: weights.vector(&name("input_layernorm"), hidden)?,
            qkv: PackedMatrix::pack(q_width + 2 * kv_width, hidden, &qkv),
            attention_out: PackedMatrix::pack(hidden, q_width, &attention_out),
            mlp_norm: weights.vector(&name("post_attention_layernorm"), hidden)?,
            gate_up: PackedMatrix::pack(2 * inner, hidden, &gate_up),
            down: PackedMatrix::pack(hidden, inner, &down),
        })
    }
}

/// Consecutive tokens of one sequence inside a batch; their blocks are reserved.
pub(in crate::engine) struct Span<'a> {
    /// The sequence's blocks.
    pub(in crate::engine) table: &'a BlockTable,
    /// Angles of the sequence.
    pub(in crate::engine) rope: &'a Rope,
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
}

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
        let mut angles = RopeTable::default();
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
            self.store_and_attend(index, spans, &angles, &mut qkv, cache, &mut attended);
            self.matmul(&attended, n_row, &layer.attention_out, &mut delta);
            ops::add(&mut x, &delta);

            self.norm(&x, &layer.mlp_norm, &mut normed);
            self.matmul(&normed, n_row, &layer.gate_up, &mut gate_up);
            self.gate(&gate_up, &mut gated);
            self.matmul(&gated, n_row, &layer.down, &mut delta);
            ops::add(&mut x, &delta);
            if !x.iter().all(|value| value.is_finite()) {
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

    /// `silu(gate) · up`: gate_up `[n_row, 2 · intermediate]` → out `[n_row, intermediate]`.
    fn gate(&self, gate_up: &[f32], out: &mut [f32]) {
        let inner = self.model.config.intermediate_size;
        self.in_row_blocks(gate_up, 2 * inner, out, inner, |gate_up, out| ops::silu_gate(gate_up, inner, out));
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
        angles: &RopeTable,
        qkv: &mut [f32],
        cache: &mut PagedCache,
        attended: &mut [f32],
    ) {
        let config = &self.model.config;
        let head_dim = config.head_dim;
        let (q_width, kv_width) = (config.n_head * head_dim, config.n_kv_head * head_dim);
        let stride = q_width + 2 * kv_width;
        for (row, values) in qkv.chunks_exact_mut(stride).enumerate() {
            angles.rotate(row, head_dim, &mut values[..q_width + kv_width]);
        }
        let mut first_row = 0;
        for span in spans {
            let (k, v) = (&qkv[first_row * stride + q_width..], &qkv[first_row * stride + q_width + kv_width..]);
            let rows = WriteRows { k, v, stride, n_row: span.ids.len() };
            cache.write(span.table, layer, span.first_position, &rows);
            first_row += span.ids.len();
        }

        // Queries of one KV head lie together in a job: [span][kv head][position][group, head_dim].
        let group_width = config.group() * head_dim;
        let mut q = vec![0.0; attended.len()];
        let mut out = vec![0.0; attended.len()];
        for_each_head_row(spans, config.n_kv_head, |index, row, kv_head| {
            let source = row * stride + kv_head * group_width;
            q[index * group_width..(index + 1) * group_width].copy_from_slice(&qkv[source..source + group_width]);
        });
        self.attend(layer, spans, cache, &q, &mut out);
        for_each_head_row(spans, config.n_kv_head, |index, row, kv_head| {
            let target = row * q_width + kv_head * group_width;
            let result = &out[index * group_width..(index + 1) * group_width];
            attended[target..target + group_width].copy_from_slice(result);
        });
    }

    /// q, out: as laid out by [`for_each_head_row`]; one job per span and KV head.
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
                scale: 1.0 / (config.head_dim as f32).sqrt(),
                window: config.layers[layer].window,
            });
        }
        self.pool.attend(self.kernel, jobs);
    }
}

/// Calls `each(index among all rows of all heads, batch row, kv_head)` in the order of the jobs' memory.
fn for_each_head_row(spans: &[Span<'_>], n_kv_head: usize, mut each: impl FnMut(usize, usize, usize)) {
    let (mut index, mut first_row) = (0, 0);
    for span in spans {
        for kv_head in 0..n_kv_head {
            for row in first_row..first_row + span.ids.len() {
                each(index, row, kv_head);
                index += 1;
            }
        }
        first_row += span.ids.len();
    }
}
