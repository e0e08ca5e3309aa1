//! Static scales of a cache: from the checkpoint, or from what the model writes into a 16-bit cache.
//!
//! Calibration runs the engine itself, without planted noise and with its own attention, and keeps the largest magnitude of
//! each KV head over all positions; a scale is that over the largest value of the format. Serving engines calibrate in the same
//! way on real or random tokens before they quantize.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::engine::checkpoint_scales::KvScaleError;
use crate::engine::config::RopeScaling;
use crate::engine::error::EngineError;
use crate::engine::kv_cache::codec::codec_with;
use crate::engine::kv_cache::{CachePlan, LayerScales, describe, mix};
use crate::engine::model::Model;
use crate::engine::options::{EngineOptions, Fault, KvScaleSource, ScaleGranularity};
use crate::engine::sequences::Engine;

/// Random tokens to calibrate on, if the model is trained for that many: enough that the largest magnitudes settle.
const RANDOM_TOKENS: usize = 2048;
/// Fixed, so that two runs use the same scales.
const RANDOM_SEED: u64 = 0x6B76_5363_616C_6573;

/// Whether the scales that `options` lead to are one per KV head, known before anything is calibrated. A checkpoint's own
/// tensors decide that; to ask for a granularity that nothing can follow is an error.
pub(in crate::engine) fn are_scales_per_head(
    model: &Model,
    options: &EngineOptions,
    plan: &CachePlan,
) -> Result<bool, EngineError> {
    let is_head_asked = options.kv_scale_granularity == ScaleGranularity::Head;
    match options.kv_scales {
        KvScaleSource::Random | KvScaleSource::Calibrate(_) => Ok(is_head_asked),
        KvScaleSource::None | KvScaleSource::Checkpoint if is_head_asked => Err(KvScaleError::Granularity.into()),
        KvScaleSource::None => Ok(false),
        KvScaleSource::Checkpoint => {
            let is_wanted: Vec<bool> = (0..plan.layers.len()).map(|i| plan.static_scale_range(i).is_some()).collect();
            // Formats that no checkpoint has scales for are refused where the scales are applied.
            let is_e5m2 = plan.layers.iter().any(|layer| layer.codec.name() == "fp8_e5m2");
            if is_e5m2 || !is_wanted.contains(&true) {
                return Ok(false);
            }
            let scales = model.kv_scale_tensors().resolve(&is_wanted, plan.n_kv_head)?;
            Ok(scales.iter().flatten().any(|layer| layer.k.len() > 1 || layer.v.len() > 1))
        }
    }
}

/// Puts the scales that `options` ask for into `plan`; says where they come from.
pub(in crate::engine) fn apply_scales(
    model: &Arc<Model>,
    options: &EngineOptions,
    plan: &mut CachePlan,
) -> Result<String, EngineError> {
    let ranges: Vec<Option<f32>> = (0..plan.layers.len()).map(|layer| plan.static_scale_range(layer)).collect();
    let own_words = codec_with(&options.kv_cache_dtype, options.int4_rotation)?.scales();
    let asked = match &options.kv_scales {
        KvScaleSource::None => return Ok(own_words.into()),
        KvScaleSource::Checkpoint => "checkpoint",
        KvScaleSource::Random | KvScaleSource::Calibrate(_) => "calibrated",
    };
    if ranges.iter().all(Option::is_none) {
        // The baseline of a comparison gets the same options as its candidates.
        return Ok(format!("{own_words}; {asked} scales do not apply"));
    }
    let (scales, origin) = match &options.kv_scales {
        KvScaleSource::None | KvScaleSource::Checkpoint => {
            if plan.layers.iter().any(|layer| layer.codec.name() == "fp8_e5m2") {
                return Err(KvScaleError::E5m2.into());
            }
            let is_wanted: Vec<bool> = ranges.iter().map(Option::is_some).collect();
            (model.kv_scale_tensors().resolve(&is_wanted, plan.n_kv_head)?, "checkpoint".into())
        }
        KvScaleSource::Random => {
            let ids = random_ids(model.config().vocab_size, RANDOM_TOKENS.min(model.config().trained_context));
            let origin = format!("calibrated on {} random tokens", ids.len());
            (calibrated(model, options, &ranges, &[ids])?, origin)
        }
        KvScaleSource::Calibrate(prompts) => {
            let plural = if prompts.len() == 1 { "" } else { "s" };
            let origin = format!("calibrated on {} prompt{plural}", prompts.len());
            (calibrated(model, options, &ranges, prompts)?, origin)
        }
    };
    let words = format!("{origin}, {}", describe(scales.iter().flatten()));
    for (layer, scales) in plan.layers.iter_mut().zip(scales) {
        layer.scales = scales.unwrap_or_else(LayerScales::unit);
    }
    Ok(words)
}

/// Scales of the layers that have a range.
fn calibrated(
    model: &Arc<Model>,
    options: &EngineOptions,
    ranges: &[Option<f32>],
    prompts: &[Vec<u32>],
) -> Result<Vec<Option<LayerScales>>, EngineError> {
    if prompts.is_empty() {
        return Err(KvScaleError::NoPrompts.into());
    }
    let is_noise = |fault: &Fault| matches!(fault, Fault::Noise { .. });
    let options_16_bit = EngineOptions {
        kv_cache_dtype: "bfloat16".into(),
        kv_cache_dtype_skip_layers: Vec::new(),
        kv_scales: KvScaleSource::None,
        kv_scale_granularity: ScaleGranularity::Tensor,
        emulate: None,
        attention_backend: None,
        mechanisms: Vec::new(),
        faults: options.faults.iter().copied().filter(|fault| !is_noise(fault)).collect(),
        kv_cache_memory: None,
        ..options.clone()
    };
    let mut engine = Engine::new(model.clone(), &options_16_bit)?;
    let abs_max = engine.observe_abs_max(prompts)?;
    let layers = ranges.iter().zip(abs_max).enumerate().map(|(layer, (range, abs_max))| {
        let Some(range) = *range else { return Ok(None) };
        let scales = LayerScales::from_abs_max(&abs_max, range, options.kv_scale_granularity);
        scales.check(layer).map_err(KvScaleError::from)?;
        Ok(Some(scales))
    });
    layers.collect()
}

fn random_ids(vocab_size: usize, n: usize) -> Vec<u32> {
    (0..n as u64).map(|index| (mix(RANDOM_SEED ^ index) % vocab_size as u64) as u32).collect()
}

impl Engine {
    /// Runs each prompt as a sequence of its own: the largest magnitudes of K and V that were stored, `[layer][kv_head]`.
    fn observe_abs_max(&mut self, prompts: &[Vec<u32>]) -> Result<Vec<Vec<[f32; 2]>>, EngineError> {
        self.cache_mut().observe();
        for ids in prompts {
            let sequence = self.start(RopeScaling::Default)?;
            self.prefill(sequence, ids, &mut |_| ControlFlow::Continue(()))?;
            self.release(sequence);
        }
        Ok(self.cache_mut().observed().to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_ids_are_the_same_each_time_and_spread_over_the_vocabulary() {
        let ids = random_ids(1000, 2048);
        assert_eq!(ids, random_ids(1000, 2048));
        let distinct: std::collections::BTreeSet<u32> = ids.iter().copied().collect();
        assert!(distinct.len() > 800 && distinct.iter().all(|id| *id < 1000), "{}", distinct.len());
    }
}
