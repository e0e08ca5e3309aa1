//! What a whole engine stores: scales of a checkpoint or a calibration, layers that are skipped, capacity, planted noise.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up its input has failed")]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvgauge::engine::{
    Engine, EngineError, EngineOptions, Fault, KvOptionError, KvScaleError, KvScaleSource, Mechanism, Model,
    RopeScaling, ScaleGranularity,
};
use safetensors::tensor::{Dtype, TensorView};

const N_LAYER: usize = 4;
const N_KV_HEAD: usize = 2;

fn tiny(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny_models").join(family)
}

fn llama() -> Arc<Model> {
    Arc::new(Model::load(&tiny("llama")).unwrap())
}

fn options(kv_cache_dtype: &str) -> EngineOptions {
    let (kernel, kv_cache_dtype) = (Some("portable".into()), kv_cache_dtype.into());
    EngineOptions { kernel, kv_cache_dtype, threads: 1, ..EngineOptions::default() }
}

fn prompt(n: u32) -> Vec<u32> {
    (0..n).map(|i| i * 37 % 256).collect()
}

fn logits(model: &Arc<Model>, options: &EngineOptions, n: u32) -> Vec<f32> {
    let mut engine = Engine::new(model.clone(), options).unwrap();
    let sequence = engine.start(RopeScaling::Default).unwrap();
    engine.prefill(sequence, &prompt(n), &mut |_| ControlFlow::Continue(())).unwrap()
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    let squares = a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f32>();
    (squares / a.len() as f32).sqrt()
}

fn error(model: &Arc<Model>, options: &EngineOptions) -> EngineError {
    Engine::new(model.clone(), options).err().expect("these options must be refused")
}

/// The tiny model with more tensors and, if given, a scheme in its configuration.
struct Checkpoint {
    folder: tempfile::TempDir,
}

impl Checkpoint {
    fn new(tensors: &[(String, Dtype, Vec<usize>, Vec<u8>)], scheme: Option<serde_json::Value>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = std::fs::read(tiny("llama").join("model.safetensors")).unwrap();
        let weights = safetensors::SafeTensors::deserialize(&file).unwrap();
        let added = tensors
            .iter()
            .map(|(name, dtype, shape, bytes)| (name.clone(), TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
        let all: Vec<(String, TensorView<'_>)> = weights.tensors().into_iter().chain(added).collect();
        std::fs::write(folder.path().join("model.safetensors"), safetensors::serialize(all, None).unwrap()).unwrap();
        let config = std::fs::read(tiny("llama").join("config.json")).unwrap();
        let mut config: serde_json::Value = serde_json::from_slice(&config).unwrap();
        if let Some(scheme) = scheme {
            config["quantization_config"] = serde_json::json!({"kv_cache_scheme": scheme});
        }
        std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        Self { folder }
    }

    fn model(&self) -> Arc<Model> {
        Arc::new(Model::load(self.folder.path()).unwrap())
    }
}

/// A tensor of f32 scales.
fn scales(name: &str, shape: &[usize], values: &[f32]) -> (String, Dtype, Vec<usize>, Vec<u8>) {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    (name.into(), Dtype::F32, shape.to_vec(), bytes)
}

#[test]
fn a_checkpoint_brings_scales_in_every_spelling_and_dtype() {
    let place = |layer: usize, name: &str| format!("model.layers.{layer}.self_attn.{name}");
    let half = (place(1, "qkv_proj.k_scale"), Dtype::F16, vec![1], vec![0x00, 0x38]);
    let bf16 = (place(1, "qkv_proj.v_scale"), Dtype::BF16, vec![], vec![0x80, 0x3E]);
    let checkpoint = Checkpoint::new(
        &[
            scales(&place(0, "k_proj.k_scale"), &[], &[0.125]),
            scales(&place(0, "v_proj.v_scale"), &[1], &[0.25]),
            half,
            bf16,
            scales(&place(2, "kv_scale"), &[], &[0.0625]),
            scales(&place(3, "k_cache.scale"), &[2, 1, 1], &[0.5, 1.5]),
            scales(&place(3, "attn.v_scale"), &[2], &[0.75, 0.375]),
            scales(&place(3, "q_scale"), &[], &[9.0]),
        ],
        Some(serde_json::json!({"num_bits": 8, "type": "float", "strategy": "attn_head", "symmetric": true})),
    );
    let model = checkpoint.model();
    let asked = EngineOptions { kv_scales: KvScaleSource::Checkpoint, ..options("fp8") };
    let engine = Engine::new(model.clone(), &asked).unwrap();
    let resolved = engine.resolved();
    assert_eq!(resolved.scales, "checkpoint, per head, K 0.0625…1.5, V 0.0625…0.75");
    let stored = resolved.layers.iter().map(|layer| (layer.k_scales.clone(), layer.v_scales.clone()));
    let expected = [
        (vec![0.125], vec![0.25]),
        (vec![0.5], vec![0.25]),
        (vec![0.0625], vec![0.0625]),
        (vec![0.5, 1.5], vec![0.75, 0.375]),
    ];
    assert_eq!(stored.collect::<Vec<_>>(), expected);
    // Powers of two only move the exponent of an e4m3 code, so what is far inside the range decodes to the same values.
    assert_ne!(logits(&model, &asked, 100), logits(&model, &options("fp8"), 100));

    let baseline = EngineOptions { kv_scales: KvScaleSource::Checkpoint, ..options("bfloat16") };
    let engine = Engine::new(model.clone(), &baseline).unwrap();
    assert_eq!(engine.resolved().scales, "none (1.0); checkpoint scales do not apply");
    assert!(engine.resolved().layers.iter().all(|layer| layer.k_scales.is_empty() && layer.v_scales.is_empty()));
    let e5m2 = EngineOptions { kv_scales: KvScaleSource::Checkpoint, ..options("fp8_e5m2") };
    assert!(matches!(error(&model, &e5m2), EngineError::KvScale(KvScaleError::E5m2)));
}

#[test]
fn scales_that_cannot_be_used_are_errors_of_the_checkpoint_alone() {
    let all = |value: f32| -> Vec<_> {
        (0..N_LAYER).map(|layer| scales(&format!("model.layers.{layer}.self_attn.kv_scale"), &[], &[value])).collect()
    };
    let asked = EngineOptions { kv_scales: KvScaleSource::Checkpoint, ..options("fp8") };
    let refused = |checkpoint: &Checkpoint| error(&checkpoint.model(), &asked).to_string();
    for value in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let message = refused(&Checkpoint::new(&all(value), None));
        assert_eq!(message, format!("K scale of layer 0 is {value}: a scale must be finite and above 0"));
    }
    assert!(refused(&Checkpoint::new(&[], None)).contains("has no KV cache scales"));
    let first = Checkpoint::new(&all(0.5)[..3], None);
    assert_eq!(refused(&first), "the checkpoint has no K scale for layer 3");
    let skipping = EngineOptions { kv_cache_dtype_skip_layers: vec!["3".into()], ..asked.clone() };
    assert!(Engine::new(first.model(), &skipping).is_ok(), "a skipped layer needs none");
    let four_bits = serde_json::json!({"num_bits": 4, "type": "float"});
    let checkpoint = Checkpoint::new(&all(0.5), Some(four_bits));
    assert!(refused(&checkpoint).ends_with("however received num_bits=4, type=float"));
    assert!(Engine::new(checkpoint.model(), &options("fp8")).is_ok(), "nobody asked for the checkpoint's scales");
}

#[test]
fn calibration_finds_scales_that_use_the_range() {
    let model = llama();
    let asked =
        |kv_scales, granularity| EngineOptions { kv_scales, kv_scale_granularity: granularity, ..options("fp8_e4m3") };
    let prompts = KvScaleSource::Calibrate(vec![prompt(100), prompt(300)]);
    let engine = Engine::new(model.clone(), &asked(prompts.clone(), ScaleGranularity::Tensor)).unwrap();
    let tensor = engine.resolved().clone();
    assert!(tensor.scales.starts_with("calibrated on 2 prompts, per tensor, K "), "{}", tensor.scales);
    let per_head = Engine::new(model.clone(), &asked(prompts.clone(), ScaleGranularity::Head)).unwrap();
    for (tensor, head) in tensor.layers.iter().zip(&per_head.resolved().layers) {
        for (one, both) in [(&tensor.k_scales, &head.k_scales), (&tensor.v_scales, &head.v_scales)] {
            assert_eq!((one.len(), both.len()), (1, N_KV_HEAD));
            assert_eq!(one[0], both.iter().fold(0.0, |max, scale| scale.max(max)));
        }
        assert_ne!(head.k_scales[0], head.k_scales[1]);
    }
    let wide = EngineOptions { kv_scales: prompts.clone(), ..options("fp8_e5m2") };
    let wide = Engine::new(model.clone(), &wide).unwrap();
    let ratio = tensor.layers[0].k_scales[0] / wide.resolved().layers[0].k_scales[0];
    assert!((ratio - 128.0).abs() < 1e-3, "57,344 is 128 times 448: {ratio}");

    let random = || Engine::new(model.clone(), &asked(KvScaleSource::Random, ScaleGranularity::Tensor)).unwrap();
    let (first, second) = (random(), random());
    assert_eq!(first.resolved(), second.resolved());
    assert!(first.resolved().scales.starts_with("calibrated on 512 random tokens, per tensor"));
    assert_eq!(first.n_free_block(), first.resolved().n_block, "calibration leaves nothing behind");

    let noisy = EngineOptions {
        faults: vec!["kv_noise=3".parse::<Fault>().unwrap()],
        ..asked(prompts, ScaleGranularity::Tensor)
    };
    assert_eq!(Engine::new(model, &noisy).unwrap().resolved().layers, tensor.layers, "noise is planted later");
}

#[test]
fn calibrated_scales_help_where_values_are_too_large_for_the_format() {
    // Keys of all layers reach beyond 448: saturated at scale 1, saved by a scale.
    let model = llama();
    let biased = |dtype: &str| EngineOptions {
        faults: vec![Fault::KeyBias { layer: None, magnitude: 1000.0 }],
        ..options(dtype)
    };
    let exact = logits(&model, &biased("bfloat16"), 200);
    let saturated = distance(&exact, &logits(&model, &biased("fp8"), 200));
    let calibrate = KvScaleSource::Calibrate(vec![prompt(200)]);
    let calibrated = EngineOptions { kv_scales: calibrate, ..biased("fp8") };
    let saved = distance(&exact, &logits(&model, &calibrated, 200));
    assert!(saved > 0.0 && saved < saturated, "{saved} against {saturated}");
    let cut = EngineOptions { mechanisms: vec![Mechanism::TruncatingCodec], ..options("int8_per_token_head") };
    assert!(error(&model, &cut).to_string().contains("only 8-bit floats are cut"));
}

#[test]
fn calibration_on_nothing_or_on_bad_ids_is_an_error() {
    let model = llama();
    let calibrate = |prompts| EngineOptions { kv_scales: KvScaleSource::Calibrate(prompts), ..options("fp8") };
    assert!(matches!(error(&model, &calibrate(vec![])), EngineError::KvScale(KvScaleError::NoPrompts)));
    assert!(matches!(error(&model, &calibrate(vec![vec![]])), EngineError::NoTokens));
    assert!(matches!(error(&model, &calibrate(vec![vec![1, 256]])), EngineError::UnknownToken { id: 256, .. }));
}

#[test]
fn skipped_layers_are_stored_in_the_model_dtype() {
    let model = llama();
    let skipping = |layers: &[&str]| EngineOptions {
        kv_cache_dtype_skip_layers: layers.iter().map(|layer| (*layer).into()).collect(),
        ..options("fp8")
    };
    let engine = Engine::new(model.clone(), &skipping(&["0", "2"])).unwrap();
    let resolved = engine.resolved();
    let dtypes: Vec<&str> = resolved.layers.iter().map(|layer| layer.kv_cache_dtype.as_str()).collect();
    assert_eq!(dtypes, ["bfloat16", "fp8_e4m3", "bfloat16", "fp8_e4m3"]);
    assert_eq!(resolved.kv_cache_dtype, "fp8_e4m3");
    assert_eq!(resolved.bytes_per_token, f64::from(2 * 2 * 32 * (2 + 1 + 2 + 1)));
    assert_eq!(engine.capacity().per_layer_bytes, [256.0, 128.0, 256.0, 128.0]);
    assert_eq!((&resolved.layers[0].k_scales[..], &resolved.layers[1].k_scales[..]), (&[][..], &[1.0][..]));
    let all = logits(&model, &skipping(&["0", "1", "2", "3"]), 100);
    assert_eq!(all, logits(&model, &options("bfloat16"), 100));
    let half = logits(&model, &skipping(&["0", "2"]), 100);
    assert!(half != all && half != logits(&model, &options("fp8"), 100));

    let no_window = error(&model, &skipping(&["sliding_window"]));
    assert!(matches!(no_window, EngineError::KvOption(KvOptionError::NoWindow { n_layer: 4 })), "{no_window}");
    assert!(!no_window.hints().is_empty());
    assert!(matches!(error(&model, &skipping(&["4"])), EngineError::KvOption(KvOptionError::NoSuchLayer { .. })));
    let mistral = Arc::new(Model::load(&tiny("mistral_sliding")).unwrap());
    let windowed = Engine::new(mistral, &skipping(&["sliding_window"])).unwrap();
    assert!(windowed.resolved().layers.iter().all(|layer| layer.kv_cache_dtype == "bfloat16"));
}

#[test]
fn capacity_is_in_whole_blocks_and_a_full_cache_refuses_and_goes_on() {
    let model = llama();
    let bytes_per_token = 2 * 2 * 32 * 4;
    let small = EngineOptions { kv_cache_memory: Some(40 * 16 * bytes_per_token + 100), ..options("fp8") };
    let mut engine = Engine::new(model, &small).unwrap();
    let capacity = engine.capacity();
    assert_eq!((capacity.n_block, capacity.n_token, capacity.block_tokens), (40, 640, 16));
    assert_eq!((capacity.bytes_per_token, capacity.budget_bytes), (512.0, 40 * 16 * 512 + 100));
    assert_eq!(capacity.max_concurrency(300), 40.0 / 19.0);
    let words = "CPU KV cache size: 640 tokens, Maximum concurrency for 512 tokens per request: 1.25x";
    assert_eq!(capacity.in_words(512), words);

    let mut go_on = |_| ControlFlow::Continue(());
    let first = engine.start(RopeScaling::Default).unwrap();
    let expected = engine.prefill(first, &prompt(512), &mut go_on).unwrap();
    let second = engine.start(RopeScaling::Default).unwrap();
    let full = engine.prefill(second, &prompt(512), &mut go_on).unwrap_err();
    assert!(matches!(full, EngineError::CacheFull(_)));
    assert_eq!(full.to_string(), "KV cache full: 32 more blocks of 16 tokens needed, 8 of 40 free");
    engine.prefill(second, &prompt(100), &mut go_on).unwrap();
    engine.decode(&[(second, 3)]).unwrap();
    engine.release(first);
    let third = engine.start(RopeScaling::Default).unwrap();
    assert_eq!(engine.prefill(third, &prompt(512), &mut go_on).unwrap(), expected, "as if nothing had happened");
}

#[test]
fn mechanisms_faults_and_formats_do_the_damage_they_are_named_after() {
    let model = llama();
    let exact = logits(&model, &options("float32"), 300);
    let damage = |options: &EngineOptions| distance(&exact, &logits(&model, options, 300));
    let rounding = damage(&options("fp8"));
    let cutting = damage(&EngineOptions { mechanisms: vec![Mechanism::TruncatingCodec], ..options("fp8") });
    assert!(cutting > rounding, "{cutting} {rounding}");
    let noise = |snr: &str| EngineOptions { faults: vec![snr.parse().unwrap()], ..options("float32") };
    let noises = ["kv_noise=40", "kv_noise=20", "kv_noise=5"].map(|snr| damage(&noise(snr)));
    assert!(noises[0] > 0.0 && noises.is_sorted(), "{noises:?}");
    let int4 = damage(&options("int4_per_token_head"));
    let int8 = damage(&options("int8_per_token_head"));
    assert!(int4 > int8 * 3.0, "{int4} {int8}");
    let unrotated = EngineOptions { int4_rotation: false, ..options("int4_per_token_head") };
    assert_ne!(damage(&unrotated), int4);
    let engine = Engine::new(model.clone(), &unrotated).unwrap();
    assert!(engine.resolved().scales.ends_with("without rotation"), "{}", engine.resolved().scales);
    let per_token = damage(&options("fp8_per_token_head"));
    assert!(per_token > 0.0 && per_token < rounding * 2.0, "{per_token} {rounding}");
}

#[test]
fn noise_depends_neither_on_chunks_nor_on_threads() {
    let model = llama();
    let run = |threads, prefill_chunk| {
        let faults = vec!["kv_noise=10".parse().unwrap()];
        logits(&model, &EngineOptions { threads, prefill_chunk, faults, ..options("fp8") }, 300)
    };
    let expected = run(1, 64);
    assert_eq!(run(2, 64), expected);
    assert_eq!(run(2, 512), expected);
}
