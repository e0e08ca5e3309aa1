//! Heads of a real model: its own queries, keys and values after a text of planted facts, as the default suites use it.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvgauge::engine::{Engine, EngineOptions, HeadInputs};
use kvgauge::sample::Bin;
use kvgauge::suite::Suite;
use kvgauge::targets::embedded::LoadedModel;
use kvgauge::units::format_token_count;

use super::heads::Head;
use super::{BenchError, speed};
use crate::failure::Failure;
use crate::output::note;
use crate::settings::ModelSettings;

/// Lines about one long prefill come at most this often.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// Heads of one model at several lengths of one text.
pub(super) struct ModelHeads {
    /// `[key count]`, each: one head per KV head of the layers.
    pub(super) heads: Vec<Vec<Head>>,
    pub(super) layers: Vec<usize>,
    pub(super) n_kv_head: usize,
    pub(super) head_dim: usize,
}

/// Runs the text through the model, with a float32 cache, and stops at every key count.
pub(super) fn of_model(
    model: &LoadedModel,
    settings: &ModelSettings,
    layers: &[usize],
    key_counts: &[u32],
) -> Result<ModelHeads, Failure> {
    let config = model.engine().config();
    let layers = layers_or_default(layers, config.n_layer());
    if let Some(&layer) = layers.iter().find(|layer| **layer >= config.n_layer()) {
        return Err(BenchError::NoSuchLayer { layer, n_layer: config.n_layer() }.into());
    }
    let longest = *key_counts.last().expect("the option has at least one value");
    speed::check_trained(settings, config.trained_context, longest)?;
    let ids = text(model, longest)?;
    let options = EngineOptions {
        kv_cache_dtype: "float32".into(),
        kernel: settings.kernel.clone(),
        threads: settings.threads,
        ..EngineOptions::default()
    };
    let mut engine = Engine::new(Arc::clone(model.engine()), &options)?;
    // One scaling for all lengths: they are places in one text.
    let scaling = speed::scaling(settings, config.trained_context, longest);
    let sequence = engine.start(scaling)?;
    let (mut done, mut told, mut heads) = (0, Instant::now(), Vec::new());
    for n_key in key_counts {
        let before = *n_key as usize - 1;
        if before > done {
            engine.prefill(sequence, &ids[done..before], &mut |n| {
                if told.elapsed() >= PROGRESS_INTERVAL {
                    told = Instant::now();
                    note(&format!("{} of {} tokens read by the model", done + n, format_token_count(longest)));
                }
                ControlFlow::Continue(())
            })?;
        }
        let inputs = engine.attention_inputs(sequence, ids[before], &layers)?;
        heads.push(inputs.into_iter().map(head).collect());
        done = before + 1;
    }
    Ok(ModelHeads { heads, layers, n_kv_head: config.n_kv_head, head_dim: config.head_dim })
}

/// First, middle and last.
fn layers_or_default(layers: &[usize], n_layer: usize) -> Vec<usize> {
    let mut layers = if layers.is_empty() { vec![0, n_layer / 2, n_layer - 1] } else { layers.to_vec() };
    layers.sort_unstable();
    layers.dedup();
    layers
}

fn head(inputs: HeadInputs) -> Head {
    let HeadInputs { head_dim, softmax_scale, q, k, v, .. } = inputs;
    Head { head_dim, softmax_scale, q, k, v }
}

/// `n_token` ids of a haystack with needles; from its start again where it is a little shorter.
fn text(model: &LoadedModel, n_token: u32) -> Result<Vec<u32>, Failure> {
    /// The shortest text that has room for a needle and its question.
    const SHORTEST: u32 = 512;
    let context = Bin(n_token.max(SHORTEST)).tokens();
    let suite = format!(
        "schema_version = 1\nname = \"text\"\ndescription = \"one haystack\"\n\
         bins = [{{ context = {context}, samples = 1 }}]\ntasks = [{{ kind = \"needle\" }}]\n"
    );
    let suite = Suite::parse(&suite, "the text of attention-error")?;
    let plan = suite.plan();
    let items = suite.generate(&plan.groups[0], &**model.tokenizer())?;
    let prompt: String = items[0].messages.iter().map(|message| message.content.as_str()).collect();
    let ids = model.tokenizer().encode(&prompt, true)?;
    Ok(ids.iter().copied().cycle().take(n_token as usize).collect())
}
