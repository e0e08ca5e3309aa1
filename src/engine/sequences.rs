//! The engine as its callers see it: sequences that are started, forked, extended and released.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use crate::engine::attention::{Attention, Phase};
use crate::engine::calibration::{apply_scales, are_scales_per_head};
use crate::engine::config::{MAX_CONTEXT, RopeScaling};
use crate::engine::error::EngineError;
use crate::engine::kernels::{self, KEY_BLOCK};
use crate::engine::kv_cache::codec::KvRounding;
use crate::engine::kv_cache::{BlockTable, CachePlan, Capacity, PagedCache, codec};
use crate::engine::model::{Forward, Model, NotFinite, Span};
use crate::engine::ops;
use crate::engine::options::{EngineOptions, Fault, ResolvedEngine};
use crate::engine::recorder::{HeadInputs, Recorder};
use crate::engine::rope::Ropes;
use crate::engine::threads::Pool;

/// Activations of a chunk take about 30 KiB per token of a small model; more rows bring no speed.
const MAX_PREFILL_CHUNK: usize = 1 << 14;
/// Rows whose vocabulary-sized logits exist at once: 32 × 262,144 logits are 32 MiB.
const LOGIT_ROWS: usize = 32;
/// Without a budget the cache may grow to this share of the machine's memory: the rest is for weights and everyone else.
const MEMORY_SHARE: u64 = 2;
/// Where the machine's memory is not known.
const ASSUMED_MEMORY_BYTES: u64 = 8 << 30;

/// A sequence of one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(u64);

/// Log-probability of one given token, and what the model would have said next.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// ln p(this id | everything before); `None` for the first token of an empty sequence.
    pub logprob: Option<f32>,
    /// Likeliest ids after this one with their log-probabilities, likeliest first.
    pub top: Vec<(u32, f32)>,
}

struct Sequence {
    table: BlockTable,
    position: usize,
    rope: Arc<Ropes>,
    /// Hidden state after the last id `[hidden]`; empty before the first.
    last_hidden: Vec<f32>,
}

/// A model with a KV cache.
pub struct Engine {
    model: Arc<Model>,
    attention: Attention,
    pool: Pool,
    cache: PagedCache,
    prefill_chunk: usize,
    /// Added to K, per layer; empty when nothing is planted.
    key_bias: Vec<f32>,
    resolved: ResolvedEngine,
    sequences: BTreeMap<SequenceId, Sequence>,
    n_started: u64,
}

impl Engine {
    /// Builds an engine; nothing is allocated for the cache yet.
    pub fn new(model: Arc<Model>, options: &EngineOptions) -> Result<Self, EngineError> {
        let codec = codec::codec_with(&options.kv_cache_dtype, options.int4_rotation)?;
        let mut plan = CachePlan::new(model.config(), options)?;
        let kernel = kernels::resolve(options.kernel.as_deref())?;
        let chunk = options.prefill_chunk;
        if chunk == 0 || chunk > MAX_PREFILL_CHUNK || !chunk.is_multiple_of(KEY_BLOCK) {
            return Err(EngineError::PrefillChunk { found: chunk, multiple: KEY_BLOCK, most: MAX_PREFILL_CHUNK });
        }
        let config = model.config();
        let per_head_scales = are_scales_per_head(&model, options, &plan)?;
        let attention = Attention::resolve(options, config.head_dim, per_head_scales, &kernel)?;
        plan.block_tokens = attention.choice.backend.block_tokens;
        if attention.prefill.truncating_codec {
            plan.rounding = KvRounding::TowardZero;
        }
        let budget = options.kv_cache_memory.unwrap_or_else(|| machine_memory() / MEMORY_SHARE);
        let scales = apply_scales(&model, options, &mut plan)?;
        let cache = PagedCache::new(&plan, budget);
        let needed_blocks = config.trained_context.div_ceil(cache.block_tokens());
        if options.kv_cache_memory.is_some() && cache.n_block() < needed_blocks {
            let needed = needed_blocks as u64 * cache.block_bytes() as u64;
            let (tokens, dtype) = (config.trained_context, codec.name());
            return Err(EngineError::BudgetTooSmall { budget, needed, tokens, dtype });
        }
        let capacity = cache.capacity();
        let resolved = ResolvedEngine {
            kv_cache_dtype: codec.name().into(),
            attention_backend: attention.choice.backend.name.into(),
            kernel: kernel.name().into(),
            scales,
            arithmetic: attention.words(),
            passed_over: attention.choice.passed_over.clone(),
            layers: plan.stored_layers(),
            block_tokens: capacity.block_tokens,
            bytes_per_token: capacity.bytes_per_token,
            n_block: capacity.n_block,
            n_token: capacity.n_token,
        };
        let key_bias = key_bias(&options.faults, config.n_layer())?;
        let pool = Pool::new(options.threads)?;
        let sequences = BTreeMap::new();
        Ok(Self { model, attention, pool, cache, prefill_chunk: chunk, key_bias, resolved, sequences, n_started: 0 })
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// What is in effect.
    pub fn resolved(&self) -> &ResolvedEngine {
        &self.resolved
    }

    /// What the budget of the cache holds.
    pub fn capacity(&self) -> Capacity {
        self.cache.capacity()
    }

    pub(in crate::engine) fn cache_mut(&mut self) -> &mut PagedCache {
        &mut self.cache
    }

    /// Blocks of the cache that no sequence holds.
    pub fn n_free_block(&self) -> usize {
        self.cache.n_free_block()
    }

    /// An empty sequence. [`RopeScaling::Default`] keeps the model's own scaling, any other replaces it; layers with a
    /// window and angles of their own keep these.
    pub fn start(&mut self, rope: RopeScaling) -> Result<SequenceId, EngineError> {
        let rope = Arc::new(Ropes::new(self.model.config(), rope)?);
        Ok(self.insert(Sequence { table: BlockTable::default(), position: 0, rope, last_hidden: Vec::new() }))
    }

    /// A second sequence with the same past. Blocks are shared until one of them writes.
    pub fn fork(&mut self, id: SequenceId) -> Result<SequenceId, EngineError> {
        let sequence = self.sequences.get(&id).ok_or(EngineError::UnknownSequence { id: id.0 })?;
        let twin = Sequence {
            table: self.cache.fork(&sequence.table),
            position: sequence.position,
            rope: sequence.rope.clone(),
            last_hidden: sequence.last_hidden.clone(),
        };
        Ok(self.insert(twin))
    }

    fn insert(&mut self, sequence: Sequence) -> SequenceId {
        let id = SequenceId(self.n_started);
        self.n_started += 1;
        self.sequences.insert(id, sequence);
        id
    }

    /// Gives the sequence's blocks back. Releasing twice does nothing.
    pub fn release(&mut self, id: SequenceId) {
        if let Some(sequence) = self.sequences.remove(&id) {
            self.cache.release(sequence.table);
        }
    }

    /// Tokens stored so far; 0 for a sequence that does not exist.
    pub fn position(&self, id: SequenceId) -> usize {
        self.sequences.get(&id).map_or(0, |sequence| sequence.position)
    }

    /// Appends `ids`: logits after the last one `[vocab]`. `on_progress` hears the number of ids done after each chunk;
    /// on `Break` the result is [`EngineError::Interrupted`] and the sequence ends with that chunk.
    pub fn prefill(
        &mut self,
        id: SequenceId,
        ids: &[u32],
        on_progress: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<Vec<f32>, EngineError> {
        self.check_append(id, ids)?;
        let mut done = 0;
        for chunk in ids.chunks(self.prefill_chunk) {
            self.append(&[(id, chunk)], Phase::Prefill)?;
            done += chunk.len();
            if on_progress(done).is_break() {
                return Err(EngineError::Interrupted);
            }
        }
        self.logits(id, &self.sequence(id)?.last_hidden)
    }

    /// Appends one id to each of several sequences in one pass: logits `[n, vocab]` in the order of `steps`.
    pub fn decode(&mut self, steps: &[(SequenceId, u32)]) -> Result<Vec<f32>, EngineError> {
        let mut needed_blocks = 0;
        for (index, (id, token)) in steps.iter().enumerate() {
            self.check_append(*id, &[*token])?;
            if steps[..index].iter().any(|(earlier, _)| earlier == id) {
                return Err(EngineError::RepeatedSequence { id: id.0 });
            }
            let sequence = self.sequence(*id)?;
            needed_blocks += self.cache.needed_blocks(&sequence.table, sequence.position, 1);
        }
        self.check_free(needed_blocks)?;
        let Some((first, _)) = steps.first() else { return Err(EngineError::NoTokens) };
        let rows: Vec<(SequenceId, &[u32])> =
            steps.iter().map(|(id, token)| (*id, std::slice::from_ref(token))).collect();
        let hidden = self.append(&rows, Phase::Decode)?;
        self.logits(*first, &hidden)
    }

    /// Appends one id and tells what attention was computed from at its position in the layers named: one entry per KV head,
    /// in ascending order.
    pub fn attention_inputs(
        &mut self,
        id: SequenceId,
        token: u32,
        layers: &[usize],
    ) -> Result<Vec<HeadInputs>, EngineError> {
        let recorder = Arc::new(Recorder::new(layers, self.model.config().n_kv_head));
        let one_thread = Pool::new(1)?;
        let kernel = self.attention.record_decode(&recorder);
        let pool = std::mem::replace(&mut self.pool, one_thread);
        let result = self.decode(&[(id, token)]);
        self.attention.resume_decode(kernel);
        self.pool = pool;
        result.map(|_| recorder.inputs())
    }

    /// The `n` likeliest next ids of a sequence with their log-probabilities, likeliest first; none of an empty sequence.
    pub fn likeliest(&self, id: SequenceId, n: usize) -> Result<Vec<(u32, f32)>, EngineError> {
        let before = &self.sequence(id)?.last_hidden;
        if before.is_empty() {
            return Ok(Vec::new());
        }
        let logits = self.logits(id, before)?;
        let log_sum_exp = ops::log_sum_exp(&logits);
        let logprob = |(id, logit): (u32, f32)| (id, (f64::from(logit) - log_sum_exp) as f32);
        Ok(ops::top(&logits, n).into_iter().map(logprob).collect())
    }

    /// Appends `ids` and tells the log-probability of each, given everything before it.
    pub fn logprobs(&mut self, id: SequenceId, ids: &[u32], top: usize) -> Result<Vec<TokenLogprob>, EngineError> {
        self.check_append(id, ids)?;
        let width = self.model.config().hidden_size;
        let mut logprobs: Vec<TokenLogprob> = Vec::with_capacity(ids.len());
        let before = &self.sequence(id)?.last_hidden;
        let mut next = if before.is_empty() {
            None
        } else {
            let logits = self.logits(id, before)?;
            Some((f64::from(logits[ids[0] as usize]) - ops::log_sum_exp(&logits)) as f32)
        };
        for chunk in ids.chunks(self.prefill_chunk) {
            let hidden = self.append(&[(id, chunk)], Phase::Prefill)?;
            for rows in hidden.chunks(LOGIT_ROWS * width) {
                let logits = self.logits(id, rows)?;
                for logits in logits.chunks_exact(self.model.config().vocab_size) {
                    let log_sum_exp = ops::log_sum_exp(logits);
                    let logprob = |logit: f32| (f64::from(logit) - log_sum_exp) as f32;
                    let likeliest = ops::top(logits, top).into_iter().map(|(id, logit)| (id, logprob(logit)));
                    logprobs.push(TokenLogprob { logprob: next, top: likeliest.collect() });
                    next = ids.get(logprobs.len()).map(|id| logprob(logits[*id as usize]));
                }
            }
        }
        Ok(logprobs)
    }

    fn sequence(&self, id: SequenceId) -> Result<&Sequence, EngineError> {
        self.sequences.get(&id).ok_or(EngineError::UnknownSequence { id: id.0 })
    }

    /// Everything that can be wrong with appending `ids`, before anything is computed.
    fn check_append(&self, id: SequenceId, ids: &[u32]) -> Result<(), EngineError> {
        let sequence = self.sequence(id)?;
        let vocab_size = self.model.config().vocab_size;
        if ids.is_empty() {
            return Err(EngineError::NoTokens);
        }
        if let Some(id) = ids.iter().find(|id| **id as usize >= vocab_size) {
            return Err(EngineError::UnknownToken { id: *id, vocab_size });
        }
        let position = sequence.position + ids.len();
        if position > MAX_CONTEXT {
            return Err(EngineError::TooLong { position, most: MAX_CONTEXT });
        }
        self.check_free(self.cache.needed_blocks(&sequence.table, sequence.position, ids.len()))
    }

    fn check_free(&self, needed_blocks: usize) -> Result<(), EngineError> {
        Ok(self.cache.check_free(needed_blocks)?)
    }

    /// One forward pass: hidden states `[n_row, hidden]` of all ids, in order. Positions advance only if it succeeds.
    fn append(&mut self, rows: &[(SequenceId, &[u32])], phase: Phase) -> Result<Vec<f32>, EngineError> {
        for (id, ids) in rows {
            let sequence = self.sequences.get_mut(id).ok_or(EngineError::UnknownSequence { id: id.0 })?;
            self.cache.reserve(&mut sequence.table, sequence.position, ids.len())?;
        }
        let mut spans = Vec::with_capacity(rows.len());
        for (id, ids) in rows {
            let sequence = self.sequences.get(id).ok_or(EngineError::UnknownSequence { id: id.0 })?;
            let Sequence { table, rope, position, .. } = sequence;
            spans.push(Span { table, rope, first_position: *position, ids });
        }
        let forward = Forward {
            model: &self.model,
            kernel: self.attention.kernel(phase),
            pool: &self.pool,
            key_bias: &self.key_bias,
        };
        let first_position = spans.first().map_or(0, |span| span.first_position);
        let hidden = self.pool.run(|| forward.run(&spans, &mut self.cache));
        let hidden = hidden.map_err(|error| self.not_finite(error, first_position))?;
        let (width, mut end) = (self.model.config().hidden_size, 0);
        for (id, ids) in rows {
            end += ids.len() * width;
            let sequence = self.sequences.get_mut(id).ok_or(EngineError::UnknownSequence { id: id.0 })?;
            sequence.position += ids.len();
            sequence.last_hidden = hidden[end - width..end].to_vec();
        }
        Ok(hidden)
    }

    fn logits(&self, id: SequenceId, hidden: &[f32]) -> Result<Vec<f32>, EngineError> {
        let forward = Forward {
            model: &self.model,
            kernel: self.attention.kernel(Phase::Decode),
            pool: &self.pool,
            key_bias: &self.key_bias,
        };
        let position = self.position(id).saturating_sub(1);
        self.pool.run(|| forward.logits(hidden)).map_err(|error| self.not_finite(error, position))
    }

    fn not_finite(&self, error: NotFinite, position: usize) -> EngineError {
        let is_output = error.layer == self.model.config().n_layer();
        let place = if is_output { "the output layer".into() } else { format!("layer {}", error.layer) };
        EngineError::NotFinite { place, position }
    }
}

/// The sum of all planted key biases of each layer; empty when there are none.
fn key_bias(faults: &[Fault], n_layer: usize) -> Result<Vec<f32>, EngineError> {
    let mut biases = Vec::new();
    for fault in faults {
        let Fault::KeyBias { layer, magnitude } = *fault else { continue };
        biases.resize(n_layer, 0.0);
        match layer {
            None => biases.iter_mut().for_each(|bias| *bias += magnitude),
            Some(layer) => *biases.get_mut(layer).ok_or(EngineError::FaultLayer { layer, n_layer })? += magnitude,
        }
    }
    Ok(biases)
}

/// Bytes of memory of this machine: fixed, unlike what happens to be free, so that two runs report one capacity.
fn machine_memory() -> u64 {
    // Linux; a file that is missing or unlike this means that the size is not known.
    let total = std::fs::read_to_string(Path::new("/proc/meminfo")).ok();
    let kib = total.as_deref().and_then(|text| text.lines().find_map(|line| line.strip_prefix("MemTotal:")));
    let kib = kib.and_then(|value| value.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.and_then(|kib| kib.checked_mul(1024)).unwrap_or(ASSUMED_MEMORY_BYTES)
}
