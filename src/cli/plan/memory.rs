//! Weights, cache and overhead against a GPU: as a table and as JSON.

use std::fmt::Write as _;

use kvgauge::capacity::{
    DtypeFit, Gpu, LayerCache, LengthFit, ModelShape, Parameters, PlainShape, Serving, Weights, fit, weight_format,
};
use kvgauge::units::{format_bytes, format_token_count};
use serde::Serialize;

use crate::failure::Failure;
use crate::plan::PlanError;
use crate::plan::options::{MemoryArgs, PlannedModel};
use crate::table;

/// The dtypes that most engines and GPUs have.
const USUAL_DTYPES: [&str; 3] = ["bfloat16", "fp8", "int8_per_token_head"];
/// The same for models that keep latents.
const USUAL_LATENT_DTYPES: [&str; 3] = ["bfloat16", "fp8", "fp8_ds_mla"];

/// What was computed, and from what. Bytes are per GPU.
#[derive(Debug, Serialize)]
pub(super) struct MemoryPlan {
    model: PlannedShape,
    weights: Weights,
    gpu: Option<Gpu>,
    serving: Serving,
    dtypes: Vec<DtypeFit>,
    notes: Vec<String>,
}

/// The model as it was understood.
#[derive(Debug, Serialize)]
struct PlannedShape {
    name: String,
    trained_context: Option<u32>,
    parameters: Parameters,
    /// Runs of equal layers.
    layers: Vec<LayerRun>,
}

#[derive(Debug, Serialize)]
struct LayerRun {
    count: usize,
    #[serde(flatten)]
    cache: LayerCache,
}

/// `None` where no model is given.
pub(super) fn plan(model: &PlannedModel, args: &MemoryArgs) -> Result<Option<MemoryPlan>, Failure> {
    let Some(shape) = shape(model)? else { return Ok(None) };
    let format = args.weights_dtype.as_deref().map(weight_format).transpose().map_err(PlanError::from)?;
    let gpu = args.gpu_memory.map(|memory_bytes| Gpu {
        memory_bytes,
        utilization: args.gpu_memory_utilization,
        overhead_bytes: args.overhead,
    });
    let serving = Serving {
        n_rank: args.tensor_parallel,
        block_tokens: args.block_size,
        prefill_chunk_tokens: args.max_num_batched_tokens,
    };
    let weights = Weights::of(&shape, format, serving.n_rank);
    let mut lengths = args.lengths.clone();
    lengths.sort_unstable();
    lengths.dedup();
    let dtypes = dtypes(&shape, args)
        .iter()
        .map(|dtype| fit(&shape, dtype, weights.bytes_per_rank, gpu.as_ref(), serving, &lengths))
        .collect::<Result<Vec<_>, _>>()
        .map_err(PlanError::from)?;
    let mut notes = shape.notes.clone();
    if let (Some(trained), Some(longest)) = (shape.trained_context, lengths.last())
        && *longest > trained
    {
        notes.push(format!(
            "the model is made for {} tokens; longer contexts need its RoPE scaled",
            format_token_count(trained)
        ));
    }
    let model = PlannedShape {
        name: shape.name.clone(),
        trained_context: shape.trained_context,
        parameters: shape.parameters,
        layers: runs(&shape.layers),
    };
    Ok(Some(MemoryPlan { model, weights, gpu, serving, dtypes, notes }))
}

fn shape(model: &PlannedModel) -> Result<Option<ModelShape>, PlanError> {
    if let Some(path) = &model.model {
        return Ok(Some(ModelShape::read(path)?));
    }
    let Some(n_layer) = model.layers else { return Ok(None) };
    let needed = |value: Option<u32>, needed| value.ok_or(PlanError::Incomplete { given: "--layers", needed });
    let latent = model.kv_lora_rank.zip(model.rope_head_dim);
    let (n_kv_head, head_dim) = match latent {
        Some(_) => (1, 1),
        None => (needed(model.kv_heads, "--kv-heads")?, needed(model.head_dim, "--head-dim")?),
    };
    let parameters = model.parameters.ok_or(PlanError::Incomplete { given: "--layers", needed: "--parameters" })?;
    let window = model.sliding_window.zip(model.sliding_layers);
    Ok(Some(ModelShape::plain(PlainShape {
        n_layer,
        n_head: model.heads,
        n_kv_head,
        head_dim,
        latent,
        window,
        parameters,
    })?))
}

fn dtypes(shape: &ModelShape, args: &MemoryArgs) -> Vec<String> {
    let usual = if shape.is_latent() { USUAL_LATENT_DTYPES } else { USUAL_DTYPES };
    let mut dtypes: Vec<String> = Vec::new();
    for dtype in args.kv_cache_dtype.clone().unwrap_or_else(|| usual.map(String::from).to_vec()) {
        if !dtypes.contains(&dtype) {
            dtypes.push(dtype);
        }
    }
    dtypes
}

fn runs(layers: &[LayerCache]) -> Vec<LayerRun> {
    let mut runs: Vec<LayerRun> = Vec::new();
    for layer in layers {
        match runs.last_mut() {
            Some(run) if run.cache == *layer => run.count += 1,
            _ => runs.push(LayerRun { count: 1, cache: *layer }),
        }
    }
    runs
}

impl MemoryPlan {
    /// For a terminal.
    pub(super) fn in_words(&self) -> String {
        let mut text = self.header();
        let header = [
            "kv_cache_dtype",
            "bytes per token",
            "context",
            "weights",
            "cache",
            "overhead",
            "total",
            "fits",
            "at once",
            "longest",
        ];
        let mut table = table::empty(header.map(String::from).to_vec());
        for dtype in &self.dtypes {
            for (index, length) in dtype.lengths.iter().enumerate() {
                table.add_row(self.row(dtype, length, index == 0));
            }
        }
        text += &table::finished(table);
        for note in &self.notes {
            writeln!(text, "note: {note}").expect("writing to a String does not fail");
        }
        text
    }

    fn header(&self) -> String {
        let weights = &self.weights;
        let mut text = format!(
            "{}: {} layers, {:.2} billion parameters, weights {} ({}; {})\n",
            self.model.name,
            self.model.layers.iter().map(|run| run.count).sum::<usize>(),
            weights.parameters as f64 / 1e9,
            format_bytes(weights.bytes),
            weights.format.name,
            weights.source
        );
        if let Some(gpu) = &self.gpu {
            let gpus = match self.serving.n_rank {
                1 => "1 GPU".to_string(),
                n => format!("{n} GPUs, figures of each"),
            };
            text += &format!(
                "{gpus}: {} of {} usable at {}; overhead {} assumed\n",
                format_bytes(gpu.budget_bytes()),
                format_bytes(gpu.memory_bytes),
                gpu.utilization,
                format_bytes(gpu.overhead_bytes)
            );
        }
        text
    }

    fn row(&self, dtype: &DtypeFit, length: &LengthFit, is_first: bool) -> Vec<String> {
        let name = match dtype.kv_cache_dtype == dtype.stored_as {
            true => dtype.kv_cache_dtype.clone(),
            false => format!("{} ({})", dtype.kv_cache_dtype, dtype.stored_as),
        };
        let once = |text: String| if is_first { text } else { String::new() };
        let bytes = match dtype.bytes_per_token_beyond_windows {
            beyond if beyond == dtype.bytes_per_token => beyond.to_string(),
            beyond => format!("{} ({beyond} beyond windows)", dtype.bytes_per_token),
        };
        let longest = match (dtype.max_context_tokens, self.gpu) {
            (Some(tokens), _) => tokens.to_string(),
            (None, Some(_)) => "any".into(),
            (None, None) => "–".into(),
        };
        let overhead = self.gpu.map_or_else(|| "–".into(), |gpu| format_bytes(gpu.overhead_bytes));
        vec![
            once(name),
            once(bytes),
            format_token_count(length.context_tokens),
            format_bytes(self.weights.bytes_per_rank),
            format_bytes(length.cache_bytes),
            overhead,
            format_bytes(length.total_bytes),
            length.fits.map_or("–", |fits| if fits { "✓ yes" } else { "✗ no" }).into(),
            length.max_concurrency.map_or_else(|| "–".into(), |n| format!("{n:.2}×")),
            once(longest),
        ]
    }
}
