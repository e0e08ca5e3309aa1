//! The embedded engine against reference outputs of another implementation, and against itself.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up its input has failed")]
#![expect(clippy::print_stderr, reason = "a skipped test says so")]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvgauge::engine::kernels::KERNELS;
use kvgauge::engine::{
    CODECS, Engine, EngineError, EngineOptions, Fault, Model, RopeScaling, TokenLogprob, argmax, log_sum_exp,
};
use serde::Deserialize;

#[derive(Deserialize)]
struct Reference {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    #[serde(default)]
    name: String,
    token_ids: Vec<u32>,
    next_token_logprob: Vec<f32>,
    #[serde(default)]
    top5_every_8: Vec<Vec<u32>>,
    #[serde(default)]
    top5_every_16: Vec<Vec<u32>>,
    #[serde(default)]
    last_position_logprobs_first_32: Vec<f32>,
    #[serde(default)]
    greedy_16: Vec<u32>,
    #[serde(default)]
    greedy_token_ids: Vec<u32>,
}

fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(path)
}

fn reference(folder: &str) -> Reference {
    let text = std::fs::read(fixture(folder).join("reference.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

fn tiny(family: &str) -> Arc<Model> {
    Arc::new(Model::load(&fixture("tiny_models").join(family)).unwrap())
}

fn options(kernel: &str, kv_cache_dtype: &str) -> EngineOptions {
    let (kernel, kv_cache_dtype) = (Some(kernel.into()), kv_cache_dtype.into());
    EngineOptions { kernel, kv_cache_dtype, threads: 1, ..EngineOptions::default() }
}

/// Kernels that this machine can run.
fn kernels() -> Vec<&'static str> {
    KERNELS.iter().filter(|entry| (entry.probe)().is_ok()).map(|entry| entry.name).collect()
}

fn go_on(_done: usize) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn greedy(engine: &mut Engine, prompt: &[u32], n: usize) -> Vec<u32> {
    let sequence = engine.start(RopeScaling::Default).unwrap();
    let mut logits = engine.prefill(sequence, prompt, &mut go_on).unwrap();
    let mut answer = Vec::new();
    while answer.len() < n {
        let id = argmax(&logits).unwrap();
        answer.push(id);
        logits = engine.decode(&[(sequence, id)]).unwrap();
    }
    engine.release(sequence);
    answer
}

/// A prompt without a pattern, the same in every run.
fn prompt(n: u64, vocab_size: u64) -> Vec<u32> {
    (0..n).map(|i| ((i * i * 7919 + i * 104_729 + 13) % vocab_size) as u32).collect()
}

/// Families, spellings of RoPE, and windows: each folder holds a random model and what other software makes of it.
const TINY_MODELS: [&str; 10] = [
    "gemma3",
    "llama",
    "llama_linear",
    "llama_tied_llama3rope",
    "llama_yarn",
    "mistral_sliding",
    "qwen2",
    "qwen3",
    "smollm3",
    "smollm3_sliding",
];

/// Bounds on the difference of a next-token log-probability: of each, of their mean.
fn bounds(kernel: &str) -> (f32, f32) {
    if kernel.contains("bf16") { (0.05, 0.01) } else { (1e-3, 1e-3) }
}

fn check_logprobs(engine: &mut Engine, case: &Case, (each, mean): (f32, f32), place: &str) -> Vec<TokenLogprob> {
    let sequence = engine.start(RopeScaling::Default).unwrap();
    let logprobs = engine.logprobs(sequence, &case.token_ids, 5).unwrap();
    engine.release(sequence);
    assert_eq!(logprobs[0].logprob, None, "{place}");
    assert_eq!(case.next_token_logprob.len() + 1, logprobs.len());
    let found = logprobs[1..].iter().map(|token| token.logprob.unwrap());
    let differences: Vec<f32> = case.next_token_logprob.iter().zip(found).map(|(a, b)| (a - b).abs()).collect();
    let most = differences.iter().copied().fold(0.0, f32::max);
    let average = differences.iter().sum::<f32>() / differences.len() as f32;
    eprintln!("{place}: |Δ| at most {most:.2e}, mean {average:.2e}");
    assert!(most < each && average < mean, "{place}: {most} at most, {average} in the mean");
    logprobs
}

#[test]
fn tiny_models_agree_with_the_reference_implementation() {
    for family in TINY_MODELS {
        let model = tiny(family);
        for kernel in kernels() {
            let kv_cache_dtype = if kernel.contains("bf16") { "bfloat16" } else { "float32" };
            for (index, case) in reference(&format!("tiny_models/{family}")).cases.iter().enumerate() {
                let place = format!("{family} {kernel} case {index}");
                let mut engine = Engine::new(model.clone(), &options(kernel, kv_cache_dtype)).unwrap();
                let logprobs = check_logprobs(&mut engine, case, bounds(kernel), &place);
                if kernel.contains("bf16") {
                    continue;
                }
                for (expected, found) in case.top5_every_8.iter().zip(logprobs.iter().step_by(8)) {
                    let found: Vec<u32> = found.top.iter().map(|(id, _)| *id).collect();
                    assert_eq!(*expected, found, "{place}");
                }
                assert_eq!(case.top5_every_8.len(), logprobs.len().div_ceil(8));

                let again = engine.start(RopeScaling::Default).unwrap();
                let logits = engine.prefill(again, &case.token_ids, &mut go_on).unwrap();
                let log_sum_exp = log_sum_exp(&logits) as f32;
                for (expected, logit) in case.last_position_logprobs_first_32.iter().zip(&logits) {
                    assert!((expected - (logit - log_sum_exp)).abs() < 1e-3, "{place}");
                }
                assert_eq!(greedy(&mut engine, &case.token_ids, 16), case.greedy_16, "{place}");
            }
        }
    }
}

fn logits_after(model: &Arc<Model>, options: &EngineOptions, rope: RopeScaling, ids: &[u32]) -> Vec<f32> {
    let mut engine = Engine::new(model.clone(), options).unwrap();
    let sequence = engine.start(rope).unwrap();
    engine.prefill(sequence, ids, &mut go_on).unwrap()
}

#[test]
fn a_scaling_asked_for_replaces_the_models_own() {
    let ids = prompt(150, 256);
    let options = options("portable", "float32");
    let linear = RopeScaling::Linear { factor: 4.0 };
    let own = tiny("llama_linear");
    assert_eq!(own.config().rope_scaling, linear);
    let expected = logits_after(&own, &options, RopeScaling::Default, &ids);
    assert!(bits(&logits_after(&own, &options, linear, &ids)) == bits(&expected));
    assert!(bits(&logits_after(&own, &options, RopeScaling::Ntk { factor: 4.0 }, &ids)) != bits(&expected));
    let mut engine = Engine::new(own, &options).unwrap();
    assert!(matches!(engine.start(RopeScaling::PerDimension), Err(EngineError::Rope(_))), "the file has no factors");
}

#[test]
fn a_key_bias_damages_quantized_keys_and_only_its_layer() {
    let model = tiny("llama");
    let ids = prompt(200, 256);
    let logits = |dtype: &str, faults: &[&str]| {
        let faults = faults.iter().map(|fault| fault.parse::<Fault>().unwrap()).collect();
        let options = EngineOptions { faults, ..options("portable", dtype) };
        logits_after(&model, &options, RopeScaling::Default, &ids)
    };
    let distance = |a: &[f32], b: &[f32]| {
        let squares = a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f32>();
        (squares / a.len() as f32).sqrt()
    };
    let plain = logits("float32", &[]);
    assert!(bits(&logits("float32", &["key_bias=0"])) == bits(&plain), "a fault of size zero is none");
    let one = logits("float32", &["key_bias@2=30"]);
    let parts = logits("float32", &["key_bias@2=10", "key_bias@2=20"]);
    assert!(bits(&one) != bits(&plain) && bits(&one) == bits(&parts), "faults of one layer add up");
    let each = ["key_bias@0=30", "key_bias@1=30", "key_bias@2=30", "key_bias@3=30"];
    assert!(bits(&logits("float32", &each)) == bits(&logits("float32", &["key_bias=30"])));
    let damage = |faults: &[&str]| distance(&logits("int8_per_token_head", faults), &logits("float32", faults));
    let (without, with) = (damage(&[]), damage(&["key_bias=30"]));
    assert!(with > 2.0 * without, "large keys make the scale coarse: {with} against {without}");

    let outside = EngineOptions { faults: vec!["key_bias@4=1".parse().unwrap()], ..options("portable", "auto") };
    let error = Engine::new(model, &outside).err().unwrap();
    assert!(matches!(error, EngineError::FaultLayer { layer: 4, n_layer: 4 }), "{error}");
}

#[test]
fn results_have_the_same_bits_for_any_number_of_threads_and_any_chunk() {
    let model = tiny("llama");
    let ids = prompt(330, 256);
    // `reference` is too slow for this length; its own tests cover cuts of the work.
    for kernel in kernels().into_iter().filter(|kernel| *kernel != "reference") {
        for codec in CODECS {
            let mut expected = None;
            for (threads, prefill_chunk) in [(1, 64), (2, 64), (1, 256), (2, 2048)] {
                let options = EngineOptions { threads, prefill_chunk, ..options(kernel, codec.name()) };
                let mut engine = Engine::new(model.clone(), &options).unwrap();
                let sequence = engine.start(RopeScaling::Default).unwrap();
                let mut logits = bits(&engine.prefill(sequence, &ids, &mut go_on).unwrap());
                logits.extend(bits(&engine.decode(&[(sequence, 5)]).unwrap()));
                let expected = expected.get_or_insert_with(|| logits.clone());
                assert!(*expected == logits, "{kernel} {} {threads} threads, chunk {prefill_chunk}", codec.name());
            }
        }
    }
}

#[test]
fn a_batch_of_forks_has_the_bits_of_straight_sequences() {
    let model = tiny("llama_linear");
    let haystack = prompt(133, 256);
    let questions: Vec<Vec<u32>> = (1..6).map(|n| prompt(n * 9, 200)).collect();
    for kernel in kernels() {
        for codec in CODECS {
            let mut engine = Engine::new(model.clone(), &options(kernel, codec.name())).unwrap();
            let free_blocks = engine.n_free_block();
            let trunk = engine.start(RopeScaling::Default).unwrap();
            engine.prefill(trunk, &haystack, &mut go_on).unwrap();
            let forks: Vec<_> = questions.iter().map(|_| engine.fork(trunk).unwrap()).collect();
            let forked = questions.iter().zip(&forks);
            let mut rows: Vec<Vec<f32>> =
                forked.map(|(ids, fork)| engine.prefill(*fork, ids, &mut go_on).unwrap()).collect();
            let straight = engine.start(RopeScaling::Default).unwrap();
            let whole = [haystack.clone(), questions[3].clone()].concat();
            let logits = engine.prefill(straight, &whole, &mut go_on).unwrap();
            assert!(bits(&logits) == bits(&rows[3]), "{kernel} {}: fork", codec.name());

            for _ in 0..20 {
                let steps: Vec<_> = forks.iter().zip(&rows).map(|(fork, row)| (*fork, argmax(row).unwrap())).collect();
                let alone = engine.decode(&[(straight, steps[3].1)]).unwrap();
                let batch = engine.decode(&steps).unwrap();
                rows = batch.chunks(256).map(<[f32]>::to_vec).collect();
                assert!(bits(&alone) == bits(&rows[3]), "{kernel} {}: batch", codec.name());
            }
            forks.iter().chain([&trunk, &straight]).for_each(|sequence| engine.release(*sequence));
            assert_eq!(engine.n_free_block(), free_blocks, "every block came back");
        }
    }
}

#[test]
fn quantized_caches_differ_from_the_baseline_and_stay_near_it() {
    let model = tiny("llama");
    let ids = prompt(300, 256);
    let logits = |dtype: &str| {
        let mut engine = Engine::new(model.clone(), &options("portable", dtype)).unwrap();
        let sequence = engine.start(RopeScaling::Default).unwrap();
        engine.prefill(sequence, &ids, &mut go_on).unwrap()
    };
    let exact = logits("float32");
    let mut differences = Vec::new();
    for dtype in ["float16", "bfloat16", "int8_per_token_head", "fp8_e4m3", "fp8_e5m2"] {
        let squares = logits(dtype).iter().zip(&exact).map(|(a, b)| (a - b).powi(2)).sum::<f32>();
        differences.push((squares / exact.len() as f32).sqrt());
    }
    assert!(differences.is_sorted_by(|a, b| a < b), "coarser formats do more damage: {differences:?}");
    assert!(differences[0] > 0.0 && differences[4] < 1.0, "{differences:?}");
}

#[test]
fn logprobs_continue_where_a_prompt_ended() {
    let mut engine = Engine::new(tiny("llama"), &options("portable", "bfloat16")).unwrap();
    let ids = prompt(100, 256);
    let whole = engine.start(RopeScaling::Default).unwrap();
    assert!(engine.likeliest(whole, 4).unwrap().is_empty(), "nothing is before the first token");
    let expected = engine.logprobs(whole, &ids, 4).unwrap();
    let split = engine.start(RopeScaling::Default).unwrap();
    engine.prefill(split, &ids[..60], &mut go_on).unwrap();
    assert_eq!(engine.likeliest(split, 4).unwrap(), expected[59].top);
    let found = engine.logprobs(split, &ids[60..], 4).unwrap();
    assert_eq!(found, expected[60..]);
}

#[test]
fn what_cannot_be_done_is_an_error_and_changes_nothing() {
    let model = tiny("llama");
    let bytes_per_token = 4 * 2 * 2 * 32 * 2;
    let small = EngineOptions { kv_cache_memory: Some(512 * bytes_per_token), ..options("portable", "bfloat16") };
    let mut engine = Engine::new(model.clone(), &small).unwrap();
    assert_eq!((engine.resolved().n_block, engine.resolved().n_token), (32, 512));
    let sequence = engine.start(RopeScaling::Default).unwrap();
    assert!(matches!(engine.prefill(sequence, &prompt(513, 256), &mut go_on), Err(EngineError::CacheFull(_))));
    assert_eq!(engine.position(sequence), 0);
    engine.prefill(sequence, &prompt(512, 256), &mut go_on).unwrap();
    let fork = engine.fork(sequence).unwrap();
    for full in [sequence, fork] {
        assert!(matches!(engine.decode(&[(full, 1)]), Err(EngineError::CacheFull(_))));
        assert_eq!(engine.position(full), 512);
    }
    engine.release(fork);
    engine.release(sequence);
    assert_eq!(engine.n_free_block(), 32);
    assert!(matches!(engine.decode(&[(sequence, 1)]), Err(EngineError::UnknownSequence { .. })));

    let sequence = engine.start(RopeScaling::Default).unwrap();
    let unknown = engine.prefill(sequence, &[1, 256], &mut go_on);
    assert!(matches!(unknown, Err(EngineError::UnknownToken { id: 256, .. })));
    assert!(matches!(engine.prefill(sequence, &[], &mut go_on), Err(EngineError::NoTokens)));
    assert!(matches!(engine.decode(&[]), Err(EngineError::NoTokens)));
    assert!(matches!(engine.decode(&[(sequence, 1), (sequence, 2)]), Err(EngineError::RepeatedSequence { .. })));
    assert!(engine.start(RopeScaling::Ntk { factor: f64::NAN }).is_err());

    let too_small = EngineOptions { kv_cache_memory: Some(511 * bytes_per_token), ..small.clone() };
    let error = Engine::new(model.clone(), &too_small).err().unwrap();
    assert!(matches!(error, EngineError::BudgetTooSmall { needed, .. } if needed == 512 * bytes_per_token), "{error}");
    for broken in [
        EngineOptions { kv_cache_dtype: "fp7".into(), ..small.clone() },
        EngineOptions { kernel: Some("abacus".into()), ..small.clone() },
        EngineOptions { prefill_chunk: 100, ..small.clone() },
        EngineOptions { prefill_chunk: 0, ..small },
    ] {
        assert!(Engine::new(model.clone(), &broken).is_err(), "{broken:?}");
    }
}

#[test]
fn an_interrupted_prompt_can_go_on() {
    let chunked = EngineOptions { prefill_chunk: 64, ..options("portable", "fp8_e4m3") };
    let mut engine = Engine::new(tiny("llama"), &chunked).unwrap();
    let ids = prompt(200, 256);
    let straight = engine.start(RopeScaling::Default).unwrap();
    let expected = engine.prefill(straight, &ids, &mut go_on).unwrap();

    let sequence = engine.start(RopeScaling::Default).unwrap();
    let mut heard = Vec::new();
    let interrupted = engine.prefill(sequence, &ids, &mut |done| {
        heard.push(done);
        if done >= 128 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(matches!(interrupted, Err(EngineError::Interrupted)));
    assert_eq!((heard, engine.position(sequence)), (vec![64, 128], 128));
    let found = engine.prefill(sequence, &ids[128..], &mut go_on).unwrap();
    assert!(bits(&found) == bits(&expected));
}

/// Every way of computing attention that a tiny model (heads of 32) can be asked for.
fn emulations() -> Vec<EngineOptions> {
    let emulate = |platform: &str, dtype: &str, backend: Option<&str>| EngineOptions {
        emulate: Some(platform.parse().unwrap()),
        attention_backend: backend.map(str::to_owned),
        ..options("portable", dtype)
    };
    let mechanism =
        |name: &str| EngineOptions { mechanisms: vec![name.parse().unwrap()], ..options("portable", "bfloat16") };
    vec![
        emulate("sm80", "auto", None),
        emulate("sm90", "fp8", None),
        EngineOptions { fa3_two_level_accumulation: false, ..emulate("sm90", "fp8", None) },
        emulate("sm100", "fp8", None),
        emulate("sm89", "fp8", None),
        EngineOptions { triton_p_scale: 1, ..emulate("sm89", "fp8", None) },
        emulate("sm90", "int8_per_token_head", None),
        emulate("cpu", "fp8", None),
        emulate("sm90", "fp8", Some("REFERENCE")),
        mechanism("query_fp8"),
        mechanism("p_fp8"),
        mechanism("short_accumulator"),
    ]
}

#[test]
fn emulated_attention_stays_near_the_baseline_and_has_the_same_bits_for_any_cut() {
    let model = tiny("llama");
    let ids = prompt(200, 256);
    let logprobs = |options: &EngineOptions| {
        let mut engine = Engine::new(model.clone(), options).unwrap();
        let sequence = engine.start(RopeScaling::Default).unwrap();
        let scored = engine.logprobs(sequence, &ids, 0).unwrap();
        let mut values: Vec<f32> = scored[1..].iter().map(|token| token.logprob.unwrap()).collect();
        let logits = engine.decode(&[(sequence, 5)]).unwrap();
        let log_sum_exp = log_sum_exp(&logits) as f32;
        values.extend(logits.iter().map(|logit| logit - log_sum_exp));
        (values, engine.resolved().clone())
    };
    let (exact, resolved) = logprobs(&options("portable", "bfloat16"));
    assert_eq!((resolved.attention_backend.as_str(), resolved.passed_over.len()), ("NATIVE", 0));
    for emulation in emulations() {
        let (found, resolved) = logprobs(&emulation);
        let place = format!("{} on {}: {}", resolved.kv_cache_dtype, resolved.attention_backend, resolved.arithmetic);
        let sum: f32 = found.iter().zip(&exact).map(|(found, exact)| (found - exact).abs()).sum();
        let mean = sum / exact.len() as f32;
        // Cutting toward zero doubles the error of the codec.
        let bound = if resolved.attention_backend == "CPU_ATTN" { 0.1 } else { 0.05 };
        assert!(mean > 0.0 && mean < bound, "{place}: mean difference {mean}");
        let cut = EngineOptions { threads: 2, prefill_chunk: 64, ..emulation };
        assert!(bits(&logprobs(&cut).0) == bits(&found), "{place}");
    }
}

#[test]
fn a_cache_whose_layers_are_all_kept_in_16_bits_is_attended_to_as_a_16_bit_cache() {
    let model = tiny("llama");
    let ids = prompt(200, 256);
    let logprobs = |dtype: &str, skipped: &[&str]| {
        let options = EngineOptions {
            emulate: Some("sm100".parse().unwrap()),
            attention_backend: Some("FLASH_ATTN".into()),
            kv_cache_dtype_skip_layers: skipped.iter().map(|layer| (*layer).to_owned()).collect(),
            ..options("portable", dtype)
        };
        let mut engine = Engine::new(model.clone(), &options).unwrap();
        let sequence = engine.start(RopeScaling::Default).unwrap();
        let scored = engine.logprobs(sequence, &ids, 0).unwrap();
        scored[1..].iter().map(|token| token.logprob.unwrap()).collect::<Vec<f32>>()
    };
    let (whole, kept) = (logprobs("bfloat16", &[]), logprobs("fp8", &["0", "1", "2", "3"]));
    assert_eq!(bits(&kept), bits(&whole), "Q and P stay in BF16 over layers that are not quantized");
    assert_ne!(bits(&logprobs("fp8", &["0", "2"])), bits(&whole));
}

#[test]
fn a_backend_that_cannot_be_taken_is_an_error_with_a_way_out() {
    let model = tiny("llama");
    let asked = |platform: Option<&str>, dtype: &str, backend: &str| {
        let emulate = platform.map(|platform| platform.parse().unwrap());
        let options = EngineOptions { emulate, attention_backend: Some(backend.into()), ..options("portable", dtype) };
        Engine::new(model.clone(), &options)
    };
    for (platform, dtype, backend, words) in [
        (Some("sm89"), "fp8", "FLASH_ATTN", "kv_cache_dtype not supported"),
        (Some("sm90"), "bfloat16", "FLASHINFER", "head_size not supported"),
        (Some("sm80"), "fp8", "TRITON_ATTN", "requires SM89+"),
        (Some("sm90"), "bfloat16", "TURBOQUANT", "kv_cache_dtype not supported"),
        (None, "bfloat16", "FLASH_ATTN", "only on an emulated platform"),
        (None, "bfloat16", "XFORMERS", "unknown attention backend `XFORMERS`"),
    ] {
        let error = asked(platform, dtype, backend).err().unwrap();
        assert!(error.to_string().contains(words) && !error.hints().is_empty(), "{error}");
    }
    let engine = asked(Some("cpu"), "bfloat16", "FLASH_ATTN").unwrap();
    assert_eq!(engine.resolved().attention_backend, "CPU_ATTN");
    assert_eq!(engine.resolved().passed_over[0].backend, "FLASH_ATTN");
}

/// The default model's file, if it is on this machine. Its tests say so and stop when it is not.
fn real_model() -> Option<Arc<Model>> {
    let cached = || {
        let home = std::env::var_os("HOME")?;
        Some(Path::new(&home).join(".cache/kvgauge/models/SmolLM2-135M-Instruct.Q4_1.gguf"))
    };
    let path = std::env::var_os("KVGAUGE_TEST_MODEL").map(PathBuf::from).or_else(cached)?;
    if !path.exists() {
        eprintln!("skipped: no model at {} (set KVGAUGE_TEST_MODEL to its path)", path.display());
        return None;
    }
    Some(Arc::new(Model::load(&path).unwrap()))
}

/// The fastest f32 kernel here.
fn f32_kernel() -> &'static str {
    kernels().into_iter().find(|kernel| !kernel.contains("bf16")).unwrap()
}

/// Log-probabilities of the reference's ids, and the gap between the two likeliest ids after each.
fn measure(engine: &mut Engine, ids: &[u32]) -> (Vec<f32>, Vec<u32>, Vec<f32>) {
    let sequence = engine.start(RopeScaling::Default).unwrap();
    let measured = engine.logprobs(sequence, ids, 2).unwrap();
    engine.release(sequence);
    let logprobs = measured[1..].iter().map(|token| token.logprob.unwrap()).collect();
    let likeliest = measured.iter().map(|token| token.top[0].0).collect();
    let gaps = measured.iter().map(|token| token.top[0].1 - token.top[1].1).collect();
    (logprobs, likeliest, gaps)
}

#[test]
fn the_default_model_agrees_with_the_reference_implementation() {
    let Some(model) = real_model() else { return };
    // Mean differences of another implementation's own bfloat16 run, and the bound for f32 arithmetic.
    let bf16_bounds = [0.034, 0.075, 0.037];
    const F32_BOUND: f32 = 0.02;
    /// Nat between the two likeliest ids below which a 16-bit cache may turn them around.
    const TIE: f32 = 0.05;
    let cases = reference("smollm2_135m_instruct").cases;
    assert_eq!(cases.len(), bf16_bounds.len());
    let f32_options = EngineOptions { threads: 2, ..options(f32_kernel(), "float32") };
    let mut f32_engine = Engine::new(model.clone(), &f32_options).unwrap();
    let f32_gaps: Vec<Vec<f32>> = cases.iter().map(|case| measure(&mut f32_engine, &case.token_ids).2).collect();
    // The slow kernels have been compared with the fast ones on small shapes already.
    let slow = if f32_kernel() == "portable" { &["reference"][..] } else { &["reference", "portable"] };
    for kernel in kernels().into_iter().filter(|kernel| !slow.contains(kernel)) {
        let options = EngineOptions { threads: 2, ..options(kernel, "bfloat16") };
        let mut engine = Engine::new(model.clone(), &options).unwrap();
        for ((case, bf16_bound), gaps) in cases.iter().zip(bf16_bounds).zip(&f32_gaps) {
            let (logprobs, likeliest, _) = measure(&mut engine, &case.token_ids);
            let differences = logprobs.iter().zip(&case.next_token_logprob).map(|(a, b)| (a - b).abs());
            let mean = differences.sum::<f32>() / logprobs.len() as f32;
            let bound = if kernel.contains("bf16") { bf16_bound } else { F32_BOUND };
            println!("{kernel} {}: mean |Δ next-token log-probability| {mean:.4}, bound {bound}", case.name);
            assert!(mean <= bound, "{kernel} {}: {mean}", case.name);

            for (index, top5) in case.top5_every_16.iter().enumerate() {
                let at = index * 16;
                assert!(likeliest[at] == top5[0] || gaps[at] < TIE, "{kernel} {} position {at}", case.name);
            }
            let answer = greedy(&mut engine, &case.token_ids, case.greedy_token_ids.len());
            let first_difference = answer.iter().zip(&case.greedy_token_ids).position(|(a, b)| a != b);
            if let Some(at) = first_difference {
                let past = [&case.token_ids, &case.greedy_token_ids[..at]].concat();
                let gap = *measure(&mut f32_engine, &past).2.last().unwrap();
                assert!(gap < TIE, "{kernel} {}: answer differs at {at}, where the gap is {gap}", case.name);
            }
        }
    }
}
