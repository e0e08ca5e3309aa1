//! The embedded engine as a target: text in, greedy answers out, everything deterministic.
//!
//! The questions of one haystack share one prefill: their common token prefix is prefilled once and forked. Answers do not
//! depend on how many questions are asked together, nor on how many groups are in flight, because the engine's results do
//! not depend on batch or chunk. A conversation goes on in the cache that its first question filled.

mod conversation;
mod group;
mod question;
mod scheduler;

use std::path::Path;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use crate::engine::{self, Engine, EngineError, EngineOptions, GgufMetadata, Model, RopeScaling, StoredLayer};
use crate::hint::Hint;
use crate::sample::{Bin, Item};
use crate::setup::{Evidence, ModelIdentity, PassedOver, Resolved};
use crate::targets::embedded::group::Job;
use crate::targets::embedded::scheduler::Scheduler;
use crate::targets::{CompletionFuture, Target, TargetError, Watch};
use crate::tokenizer::{GgufVocab, TokenCounter, Tokenizer, TokenizerError};
use crate::units;

/// A model with its tokenizer, loaded once and shared by all arms.
pub struct LoadedModel {
    engine: Arc<Model>,
    tokenizer: Arc<Tokenizer>,
    identity: ModelIdentity,
    rope: RopePolicy,
}

/// What happens in bins longer than the model was trained for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePolicy {
    /// They are refused.
    None,
    /// Positions are divided by `bin / trained_context`.
    Linear,
    /// RoPE's base is stretched by the factor `max(1, bin / trained_context)`, the same in every arm.
    Ntk,
}

impl RopePolicy {
    /// The name used on the command line and in records.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Linear => "linear",
            Self::Ntk => "ntk",
        }
    }
}

/// Why a model cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Weights or configuration.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Vocabulary or chat template.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The tokenizer makes ids that the model has no embedding for.
    #[error("the tokenizer has {tokenizer} tokens but the model only {model}")]
    VocabularyTooLarge {
        /// Tokens of the tokenizer.
        tokenizer: usize,
        /// Rows of the embedding.
        model: usize,
    },
}

impl Hint for OpenError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::Engine(error) => engine_hints(error),
            Self::Tokenizer(error) => error.hints(),
            Self::VocabularyTooLarge { .. } => vec!["tokenizer and weights belong to different models".into()],
        }
    }
}

impl LoadedModel {
    /// Opens a GGUF file or a Hugging Face folder under the name `name`.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(name: &str, path: &Path, rope: RopePolicy) -> Result<Self, OpenError> {
        let engine = Model::load(path)?;
        let tokenizer = tokenizer_of(engine.metadata(), path)?;
        let config = engine.config();
        if tokenizer.vocab_size() > config.vocab_size {
            return Err(OpenError::VocabularyTooLarge { tokenizer: tokenizer.vocab_size(), model: config.vocab_size });
        }
        let identity = ModelIdentity {
            name: name.into(),
            weights: engine.weights_hash(),
            tokenizer: tokenizer.fingerprint(),
            chat_template: tokenizer.template_hash().unwrap_or("none").into(),
            rope: format!("{}; longer bins: {}", config.rope_scaling, rope.name()),
            trained_context: config.trained_context as u32,
        };
        Ok(Self { engine: Arc::new(engine), tokenizer: Arc::new(tokenizer), identity, rope })
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The engine's model.
    pub fn engine(&self) -> &Arc<Model> {
        &self.engine
    }

    /// The RoPE scaling of a bin.
    fn scaling(&self, bin: Bin) -> RopeScaling {
        let factor = f64::from(bin.tokens()) / f64::from(self.identity.trained_context);
        match self.rope {
            RopePolicy::Ntk if factor > 1.0 => RopeScaling::Ntk { factor },
            RopePolicy::Linear if factor > 1.0 => RopeScaling::Linear { factor },
            _ => self.engine.config().rope_scaling,
        }
    }
}

/// The tokenizer of a model's files alone, for models that a server runs: a folder needs no weights.
///
/// # Errors
/// [`OpenError::Engine`] for a GGUF file that cannot be read, [`OpenError::Tokenizer`] for a vocabulary that cannot be used.
pub fn open_tokenizer(path: &Path) -> Result<Tokenizer, OpenError> {
    if path.is_dir() {
        return Ok(Tokenizer::from_hf_dir(path)?);
    }
    let metadata = Model::read_metadata(path)?;
    Ok(tokenizer_of(metadata.as_ref(), path)?)
}

fn tokenizer_of(metadata: Option<&GgufMetadata>, path: &Path) -> Result<Tokenizer, TokenizerError> {
    match metadata {
        Some(metadata) => Tokenizer::from_gguf_vocab(gguf_vocab(metadata)),
        None => Tokenizer::from_hf_dir(path),
    }
}

/// The tokenizer's fields of a GGUF file; what is missing stays empty and is judged by the tokenizer.
fn gguf_vocab(metadata: &GgufMetadata) -> GgufVocab {
    let text = |key: &str| metadata.string(key).unwrap_or_default().to_owned();
    let texts = |key: &str| metadata.strings(key).unwrap_or_default().to_vec();
    let id = |key: &str| metadata.unsigned(key).and_then(|id| u32::try_from(id).ok());
    let token_types = metadata.integers("tokenizer.ggml.token_type").unwrap_or_default();
    GgufVocab {
        model: text("tokenizer.ggml.model"),
        pre: text("tokenizer.ggml.pre"),
        tokens: texts("tokenizer.ggml.tokens"),
        token_types: token_types.iter().map(|kind| i32::try_from(*kind).unwrap_or_default()).collect(),
        merges: texts("tokenizer.ggml.merges"),
        scores: metadata.floats("tokenizer.ggml.scores").map(|scores| scores.iter().map(|s| *s as f32).collect()),
        bos_id: id("tokenizer.ggml.bos_token_id"),
        eos_id: id("tokenizer.ggml.eos_token_id"),
        add_bos: metadata.bool("tokenizer.ggml.add_bos_token"),
        chat_template: metadata.string("tokenizer.chat_template").map(str::to_owned),
    }
}

/// Advice on the engine's errors stands here because the engine knows no flags.
fn engine_hints(error: &EngineError) -> Vec<String> {
    match error {
        EngineError::Dtype(_) => vec!["`kvgauge list dtypes` shows what this engine stores".into()],
        EngineError::Kernel(_) => {
            vec!["`kvgauge list kernels` shows what this machine can run; `auto` takes the best".into()]
        }
        EngineError::BudgetTooSmall { needed, .. } => {
            vec![format!("`--kv-cache-memory` of {} would do", units::format_bytes(*needed))]
        }
        EngineError::CacheFull(_) => vec!["raise `--kv-cache-memory`, or leave long bins out".into()],
        _ => error.hints(),
    }
}

/// The embedded engine of one arm.
pub struct Embedded {
    model: Arc<LoadedModel>,
    scheduler: Arc<Scheduler>,
    resolved: Resolved,
    kernel: String,
}

impl Embedded {
    /// An engine over `model` with its own cache.
    ///
    /// # Errors
    /// Unknown dtype or kernel, or a cache budget that is too small.
    pub fn new(model: Arc<LoadedModel>, options: &EngineOptions) -> Result<Self, OpenError> {
        let engine = Engine::new(Arc::clone(&model.engine), options)?;
        let facts = engine.resolved();
        const SOURCE: &str = "embedded engine";
        let resolved = Resolved {
            engine: Evidence::known(format!("kvgauge embedded {}", env!("CARGO_PKG_VERSION")), SOURCE),
            kv_cache_dtype: Evidence::known(facts.kv_cache_dtype.clone(), SOURCE),
            attention_backend: Evidence::known(facts.attention_backend.clone(), SOURCE),
            kernel: Evidence::known(facts.kernel.clone(), SOURCE),
            kv_bytes_per_token: Evidence::known(facts.bytes_per_token, SOURCE),
            kv_cache_tokens: Evidence::known(facts.n_token as u64, SOURCE),
            kv_scales: Evidence::known(facts.scales.clone(), SOURCE),
            max_model_len: Evidence::known(model.identity.trained_context, "model configuration"),
            backends_passed_over: Evidence::known(facts.passed_over.iter().map(passed_over).collect(), SOURCE),
            attention_arithmetic: Evidence::known(facts.arithmetic.clone(), SOURCE),
            kv_layers: Evidence::known(layers_in_words(&facts.layers), SOURCE),
            kv_cache_blocks: Evidence::known(facts.n_block as u64, SOURCE),
            kv_block_tokens: Evidence::known(facts.block_tokens as u32, SOURCE),
        };
        let kernel = facts.kernel.clone();
        let scheduler = Arc::new(Scheduler::new(Arc::clone(&model), engine));
        Ok(Self { model, scheduler, resolved, kernel })
    }
}

fn passed_over(facts: &engine::PassedOver) -> PassedOver {
    PassedOver { backend: facts.backend.clone(), reasons: facts.reasons.clone() }
}

/// `0: bfloat16; 1-29: fp8_e4m3`; one word where all layers store the same.
fn layers_in_words(layers: &[StoredLayer]) -> String {
    let mut runs: Vec<(usize, usize, &str)> = Vec::new();
    for (layer, stored) in layers.iter().enumerate() {
        match runs.last_mut() {
            Some((_, last, dtype)) if *dtype == stored.kv_cache_dtype => *last = layer,
            _ => runs.push((layer, layer, &stored.kv_cache_dtype)),
        }
    }
    let words = |(first, last, dtype): &(usize, usize, &str)| match (runs.len(), first == last) {
        (1, _) => format!("all {}: {dtype}", layers.len()),
        (_, true) => format!("{first}: {dtype}"),
        (_, false) => format!("{first}-{last}: {dtype}"),
    };
    runs.iter().map(words).collect::<Vec<_>>().join("; ")
}

impl Target for Embedded {
    fn model(&self) -> &ModelIdentity {
        &self.model.identity
    }

    fn resolved(&self) -> Resolved {
        self.resolved.clone()
    }

    fn counter(&self) -> Arc<dyn TokenCounter> {
        Arc::clone(&self.model.tokenizer) as Arc<dyn TokenCounter>
    }

    fn decoding(&self) -> Vec<(&'static str, String)> {
        vec![("decoding", "greedy".into()), ("kernel", self.kernel.clone())]
    }

    fn accept_bins(&self, bins: &[Bin]) -> Result<(), TargetError> {
        let trained_context = self.model.identity.trained_context;
        match bins.iter().find(|bin| bin.tokens() > trained_context) {
            Some(&bin) if self.model.rope == RopePolicy::None => {
                Err(TargetError::BinTooLong { bin, trained_context, model: self.model.identity.name.clone() })
            }
            _ => Ok(()),
        }
    }

    fn complete<'a>(&'a self, items: Vec<Item>, watch: &'a Watch<'a>) -> CompletionFuture<'a> {
        let (events, mut incoming) = mpsc::unbounded_channel();
        let (reply, answers) = oneshot::channel();
        let count = items.len();
        self.scheduler.add(Job { items, cancel: Arc::clone(&watch.cancel), events, reply });
        let scheduler = Arc::clone(&self.scheduler);
        let work = tokio::task::spawn_blocking(move || scheduler.run());
        Box::pin(async move {
            while let Some(event) = incoming.recv().await {
                (watch.on_event)(event);
            }
            match answers.await {
                Ok(answers) => answers,
                // The work on the group ended without an answer: it panicked, in this call or in the one it waited for.
                Err(_) => {
                    let reason = work.await.err().map_or("the engine stopped".into(), |panic| panic.to_string());
                    vec![Err(TargetError::Engine(reason)); count]
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_told_in_runs() {
        let stored = |dtypes: &[&str]| -> Vec<StoredLayer> {
            let layer = |dtype: &&str| StoredLayer {
                kv_cache_dtype: (*dtype).into(),
                k_scales: Vec::new(),
                v_scales: Vec::new(),
            };
            dtypes.iter().map(layer).collect()
        };
        assert_eq!(layers_in_words(&stored(&["fp8_e4m3"; 30])), "all 30: fp8_e4m3");
        let mixed = stored(&["bfloat16", "fp8_e4m3", "fp8_e4m3", "bfloat16"]);
        assert_eq!(layers_in_words(&mixed), "0: bfloat16; 1-2: fp8_e4m3; 3: bfloat16");
    }
}
