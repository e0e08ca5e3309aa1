//! Capacity against public facts: shapes of published models, figures worked out by hand beside them.

#![expect(clippy::unwrap_used, reason = "a test that cannot read its model has failed")]

use std::fs;
use std::path::Path;

use kvgauge::capacity::{
    CapacityError, DtypeFit, Gpu, LayerCache, ModelShape, PlainShape, Serving, Weights, cache_token_bytes, fit,
    sequence_bytes, weight_format,
};
use kvgauge::engine::ModelConfig;
use kvgauge::hint::Hint as _;
use proptest::prelude::*;
use serde_json::{Value, json};

const GIB: u64 = 1 << 30;
const K: u64 = 1024;
const SERVING: Serving = Serving { n_rank: 1, block_tokens: 16, prefill_chunk_tokens: 8192 };

const LLAMA_31_8B: &str = r#"{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "hidden_act": "silu",
    "rope_scaling": {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "tie_word_embeddings": false,
    "torch_dtype": "bfloat16"}"#;
const LLAMA_33_70B: &str = r#"{"model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672,
    "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 128256, "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
    "hidden_act": "silu", "tie_word_embeddings": false, "torch_dtype": "bfloat16"}"#;
const QWEN25_7B: &str = r#"{"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944,
    "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064,
    "max_position_embeddings": 32768, "max_window_layers": 28, "sliding_window": 131072,
    "use_sliding_window": false, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "hidden_act": "silu",
    "tie_word_embeddings": false, "torch_dtype": "bfloat16"}"#;
const MISTRAL_7B_V01: &str = r#"{"model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000,
    "max_position_embeddings": 32768, "sliding_window": 4096, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
    "hidden_act": "silu", "tie_word_embeddings": false, "torch_dtype": "bfloat16"}"#;
const QWEN3_30B_A3B: &str = r#"{"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144,
    "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
    "vocab_size": 151936, "max_position_embeddings": 40960, "num_experts": 128, "num_experts_per_tok": 8,
    "moe_intermediate_size": 768, "decoder_sparse_step": 1, "mlp_only_layers": [], "sliding_window": null,
    "use_sliding_window": false, "max_window_layers": 48, "attention_bias": false, "tie_word_embeddings": false,
    "torch_dtype": "bfloat16"}"#;
const GEMMA3_27B: &str = r#"{"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"],
    "text_config": {"head_dim": 128, "hidden_size": 5376, "intermediate_size": 21504, "model_type": "gemma3_text",
    "num_attention_heads": 32, "num_hidden_layers": 62, "num_key_value_heads": 16, "query_pre_attn_scalar": 168,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024},
    "vision_config": {"hidden_size": 1152}, "torch_dtype": "bfloat16"}"#;
const DEEPSEEK_V3: &str = r#"{"model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432,
    "num_hidden_layers": 61, "num_nextn_predict_layers": 1, "num_attention_heads": 128, "num_key_value_heads": 128,
    "vocab_size": 129280, "max_position_embeddings": 163840, "kv_lora_rank": 512, "q_lora_rank": 1536,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256,
    "n_shared_experts": 1, "moe_intermediate_size": 2048, "first_k_dense_replace": 3, "moe_layer_freq": 1,
    "attention_bias": false, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "quantization_config":
    {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}}"#;

const QWEN3_8B: &str = r#"{"model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288,
    "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 151936, "max_position_embeddings": 40960, "use_sliding_window": false, "rms_norm_eps": 1e-06,
    "rope_theta": 1000000, "hidden_act": "silu", "tie_word_embeddings": false, "torch_dtype": "bfloat16"}"#;
const MIXTRAL_8X7B: &str = r#"{"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000,
    "max_position_embeddings": 32768, "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": null,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16"}"#;
const SMOLLM3_3B: &str = r#"{"model_type": "smollm3", "hidden_size": 2048, "intermediate_size": 11008,
    "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 128256,
    "max_position_embeddings": 65536, "rms_norm_eps": 1e-06, "rope_theta": 5000000.0, "hidden_act": "silu",
    "use_sliding_window": false, "torch_dtype": "bfloat16"}"#;

fn gpt_oss_20b() -> String {
    let types = ["\"sliding_attention\"", "\"full_attention\""].repeat(12).join(", ");
    format!(
        r#"{{"model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088,
        "max_position_embeddings": 131072, "sliding_window": 128, "layer_types": [{types}], "attention_bias": true,
        "num_local_experts": 32, "num_experts_per_tok": 4, "tie_word_embeddings": false,
        "quantization_config": {{"quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router"]}}}}"#
    )
}

fn shape(config: &str) -> ModelShape {
    ModelShape::from_json(config.as_bytes()).unwrap()
}

fn cache(shape: &ModelShape, dtype: &str, tokens: u64) -> u64 {
    sequence_bytes(shape, dtype, SERVING, tokens).unwrap()
}

fn gpu(memory_gib: u64) -> Gpu {
    Gpu { memory_bytes: memory_gib * GIB, utilization: 0.9, overhead_bytes: 3 * GIB / 2 }
}

fn on(n_rank: u32) -> Serving {
    Serving { n_rank, ..SERVING }
}

/// Whether each length fits on one GPU of 24 GiB.
fn fits_on_24(shape: &ModelShape, dtype: &str, weights: &str) -> Vec<bool> {
    let weights = Weights::of(shape, Some(weight_format(weights).unwrap()), 1);
    let lengths = [8192, 32_768, 65_536, 131_072];
    let fitted = fit(shape, dtype, weights.bytes_per_rank, Some(&gpu(24)), SERVING, &lengths).unwrap();
    fitted.lengths.iter().map(|length| length.fits.unwrap()).collect()
}

#[test]
fn llama_31_8b_on_24_gib_takes_an_eight_bit_cache_beyond_32k() {
    let llama = shape(LLAMA_31_8B);
    // 2 × 32 layers × 8 heads × 128 × 2 bytes = 128 KiB a token.
    assert_eq!(cache_token_bytes(&llama, "auto", 1).unwrap(), 128 * K);
    assert_eq!(cache(&llama, "bfloat16", 32 * K), 4 * GIB);
    assert_eq!(cache(&llama, "bfloat16", 128 * K), 16 * GIB);
    assert_eq!(cache(&llama, "fp8_e4m3", 128 * K), 8 * GIB);
    assert_eq!(llama.parameters.total(), 8_030_261_248);
    assert_eq!(Weights::of(&llama, None, 1).bytes, 16_060_522_496);
    assert_eq!(fits_on_24(&llama, "bfloat16", "bfloat16"), [true, true, false, false]);
    assert_eq!(fits_on_24(&llama, "fp8_e4m3", "bfloat16"), [true, true, true, false]);
    assert_eq!(fits_on_24(&llama, "bfloat16", "fp8"), [true, true, true, false]);
    assert_eq!(fits_on_24(&llama, "fp8_e4m3", "fp8"), [true, true, true, true]);
}

#[test]
fn cache_bytes_of_published_models_are_those_worked_out_by_hand() {
    // Per token: layers × KV heads × head width × 2 (K and V) × 2 bytes.
    for (config, bytes_per_token) in [
        (QWEN25_7B, 28 * 4 * 128 * 4),
        (LLAMA_33_70B, 80 * 8 * 128 * 4),
        (QWEN3_30B_A3B, 48 * 4 * 128 * 4),
        (MISTRAL_7B_V01, 32 * 8 * 128 * 4),
        (GEMMA3_27B, 62 * 16 * 128 * 4),
        (DEEPSEEK_V3, 61 * (512 + 64) * 2),
        (&gpt_oss_20b(), 24 * 8 * 64 * 4),
    ] {
        assert_eq!(cache_token_bytes(&shape(config), "bfloat16", 1).unwrap(), bytes_per_token, "{config}");
    }
    assert_eq!(cache(&shape(QWEN25_7B), "bfloat16", 128 * K), 7 * GIB);
    assert_eq!(cache(&shape(LLAMA_33_70B), "bfloat16", 128 * K), 40 * GIB);
    assert_eq!(cache(&shape(QWEN3_30B_A3B), "bfloat16", 128 * K), 12 * GIB);
    // DeepSeek-V3: 656 bytes a token and layer in the layout of sparse MLA.
    assert_eq!(cache_token_bytes(&shape(DEEPSEEK_V3), "fp8_ds_mla", 1).unwrap(), 61 * 656);
    // A scale of 4 bytes for each of K and V, token, head and layer.
    assert_eq!(cache_token_bytes(&shape(LLAMA_31_8B), "int8_per_token_head", 1).unwrap(), 32 * 8 * 2 * (128 + 4));
}

#[test]
fn parameters_from_shapes_are_the_published_counts() {
    for (name, config, parameters) in [
        ("Llama-3.3-70B", LLAMA_33_70B, 70_553_706_496_u64),
        ("Qwen2.5-7B", QWEN25_7B, 7_615_616_512),
        ("Mistral-7B-v0.1", MISTRAL_7B_V01, 7_241_732_096),
        ("Qwen3-30B-A3B", QWEN3_30B_A3B, 30_532_122_624),
        // Without the vision tower and its projection.
        ("Gemma-3-27B", GEMMA3_27B, 27_009_346_304),
        // Without the layer that predicts the token after the next.
        ("DeepSeek-V3", DEEPSEEK_V3, 671_026_419_200),
        ("gpt-oss-20b", &gpt_oss_20b(), 20_914_757_184),
        ("Qwen3-8B", QWEN3_8B, 8_190_735_360),
        ("Mixtral-8x7B", MIXTRAL_8X7B, 46_702_792_704),
        ("SmolLM3-3B", SMOLLM3_3B, 3_075_098_624),
    ] {
        let shape = shape(config);
        assert_eq!(shape.parameters.total(), parameters, "{name}");
        assert!(shape.notes.iter().all(|note| !note.contains("published count")), "{name}: {:?}", shape.notes);
    }
}

#[test]
fn layers_with_a_window_stop_growing() {
    // Mistral v0.1: every layer sees 4,096 tokens; a step of 8,192 holds 4,095 + 8,192 of them in whole blocks, and one more.
    let mistral = shape(MISTRAL_7B_V01);
    let kept = (4095_u64 + 8192).div_ceil(16) * 16 + 16;
    assert_eq!(cache(&mistral, "bfloat16", 8 * K), 8 * K * 128 * K);
    assert_eq!(cache(&mistral, "bfloat16", 32 * K), kept * 128 * K);
    assert_eq!(cache(&mistral, "bfloat16", 128 * K), kept * 128 * K);
    // Gemma 3 27B: every sixth of 62 layers sees everything, so 10; the other 52 see 1,024 tokens.
    let gemma = shape(GEMMA3_27B);
    assert_eq!(gemma.unbounded_layers(), 10);
    let row = 16 * 128 * 4;
    let kept = (1023_u64 + 8192).div_ceil(16) * 16 + 16;
    assert_eq!(cache(&gemma, "bfloat16", 128 * K), row * (10 * 128 * K + 52 * kept));
    assert!(gemma.notes.iter().any(|note| note.contains("images")), "{:?}", gemma.notes);
    // gpt-oss: every other layer sees 128 tokens.
    let gpt_oss = shape(&gpt_oss_20b());
    assert_eq!(gpt_oss.unbounded_layers(), 12);
    let kept = (127_u64 + 8192).div_ceil(16) * 16 + 16;
    assert_eq!(cache(&gpt_oss, "bfloat16", 128 * K), 8 * 64 * 4 * (12 * 128 * K + 12 * kept));
    // A window that is switched off bounds nothing.
    assert_eq!(shape(QWEN25_7B).unbounded_layers(), 28);
}

#[test]
fn a_quantized_checkpoint_is_smaller() {
    // gpt-oss-20b: 4.25 bits for 24 × 32 × 3 × 2880² expert weights, 16 bits for the rest.
    let experts = 24_u64 * 32 * 3 * 2880 * 2880;
    let rest = 20_914_757_184 - experts;
    assert_eq!(Weights::of(&shape(&gpt_oss_20b()), None, 1).bytes, experts * 17 / 32 + rest * 2);
    // DeepSeek-V3 in FP8: a byte each but for embeddings, norms and routers.
    let deepseek = shape(DEEPSEEK_V3);
    let bytes = Weights::of(&deepseek, None, 1).bytes;
    assert!(bytes > 671_000_000_000 && bytes < 674_000_000_000, "{bytes}");
    assert_eq!(Weights::of(&deepseek, None, 8).bytes_per_rank, bytes.div_ceil(8));
}

#[test]
fn ranks_share_kv_heads_and_repeat_them_where_there_are_too_few() {
    let qwen = shape(QWEN25_7B);
    let per_rank = |n_rank| sequence_bytes(&qwen, "bfloat16", on(n_rank), 128 * K);
    assert_eq!(per_rank(2).unwrap(), 7 * GIB / 2);
    assert_eq!(per_rank(4).unwrap(), 7 * GIB / 4);
    // 28 query heads on 14 ranks: 4 KV heads do not go into 14.
    let refused = |n_rank| fit(&qwen, "bfloat16", 0, Some(&gpu(24)), on(n_rank), &[8192]).unwrap_err();
    assert!(matches!(refused(14), CapacityError::Ranks { n: 4, .. }));
    assert!(matches!(refused(8), CapacityError::Ranks { n: 28, .. }));
    // 64 query and 8 KV heads on 16 ranks: one KV head on each, the same as on 8.
    let llama = shape(LLAMA_33_70B);
    let per_rank = |n_rank| {
        let fitted = fit(&llama, "fp8", 0, Some(&gpu(80)), on(n_rank), &[131_072]).unwrap();
        fitted.lengths[0].cache_bytes
    };
    assert_eq!((per_rank(8), per_rank(16)), (5 * GIB / 2, 5 * GIB / 2));
}

#[test]
fn what_is_left_says_how_long_and_how_many() {
    let llama = shape(LLAMA_31_8B);
    let weights = Weights::of(&llama, None, 1).bytes_per_rank;
    let of =
        |dtype: &str| -> DtypeFit { fit(&llama, dtype, weights, Some(&gpu(80)), SERVING, &[8192, 131_072]).unwrap() };
    let free = (80.0 * 0.9 * GIB as f64) as u64 - weights - 3 * GIB / 2;
    let wide = of("bfloat16");
    assert_eq!(wide.free_bytes, Some(free));
    assert_eq!(wide.max_context_tokens, Some(free / (128 * K * 16) * 16));
    let concurrency = wide.lengths[1].max_concurrency.unwrap();
    assert!((concurrency - free as f64 / (16 * GIB) as f64).abs() < 1e-9, "{concurrency}");
    let narrow = of("fp8_e4m3");
    assert!((narrow.lengths[0].max_concurrency.unwrap() / wide.lengths[0].max_concurrency.unwrap() - 2.0).abs() < 1e-9);
    // Without a GPU there are sizes and no answer.
    let sizes = fit(&llama, "bfloat16", weights, None, SERVING, &[8192]).unwrap();
    assert_eq!((sizes.lengths[0].fits, sizes.lengths[0].cache_bytes), (None, GIB));
    // Weights that do not fit leave nothing.
    let small = fit(&llama, "fp8", weights, Some(&gpu(16)), SERVING, &[8192]).unwrap();
    assert_eq!((small.free_bytes, small.max_context_tokens), (Some(0), Some(0)));
    assert_eq!(small.lengths[0].fits, Some(false));
}

#[test]
fn layers_that_keep_a_state_are_named_and_not_counted() {
    let hybrid = r#"{"model_type": "qwen3_next", "hidden_size": 2048, "intermediate_size": 5120,
        "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
        "vocab_size": 151936, "full_attention_interval": 4, "num_experts": 512, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, "decoder_sparse_step": 1, "mlp_only_layers": []}"#;
    let hybrid = shape(hybrid);
    assert_eq!(hybrid.unbounded_layers(), 12);
    assert_eq!(cache_token_bytes(&hybrid, "bfloat16", 1).unwrap(), 12 * 2 * 256 * 4);
    assert!(hybrid.notes[0].starts_with("36 of 48 layers keep a state"), "{:?}", hybrid.notes);
    assert!(hybrid.notes.iter().any(|note| note.contains("no published count")), "{:?}", hybrid.notes);
    let letters = r#"{"model_type": "nemotron_h", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 100, "hybrid_override_pattern": "M-*M"}"#;
    let kinds = shape(letters).layers;
    assert!(matches!(
        kinds.as_slice(),
        [LayerCache::State, LayerCache::None, LayerCache::Heads { n_kv_head: 2, key_dim: 16, .. }, LayerCache::State]
    ));
}

#[test]
fn the_scheme_of_a_checkpoint_decides_what_auto_stores() {
    let with = |quantization: &str| {
        let config = LLAMA_31_8B
            .replace("\"torch_dtype\"", &format!("\"quantization_config\": {quantization}, \"torch_dtype\""));
        shape(&config)
    };
    let scheme = with(
        r#"{"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": false},
        "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}}"#,
    );
    assert_eq!((scheme.auto_dtype, scheme.weight_format.bits), ("fp8", 8.0));
    assert!(scheme.notes.iter().any(|note| note.contains("`auto`")), "{:?}", scheme.notes);
    let fitted = fit(&scheme, "auto", 0, None, SERVING, &[8192]).unwrap();
    assert_eq!((fitted.stored_as.as_str(), fitted.bytes_per_token), ("fp8", 64 * K));
    let unknown = with(r#"{"quant_method": "vptq"}"#);
    assert_eq!((unknown.auto_dtype, unknown.weight_format.bits), ("bfloat16", 16.0));
    assert!(unknown.notes.iter().any(|note| note.contains("quantization is not known")), "{:?}", unknown.notes);
}

#[test]
fn a_model_in_numbers_is_the_same_as_its_config() {
    let numbers = PlainShape {
        n_layer: 32,
        n_head: Some(32),
        n_kv_head: 8,
        head_dim: 128,
        latent: None,
        window: None,
        parameters: 8_030_261_248,
    };
    let (plain, llama) = (ModelShape::plain(numbers).unwrap(), shape(LLAMA_31_8B));
    assert_eq!(plain.layers, llama.layers);
    assert_eq!(Weights::of(&plain, None, 1).bytes, Weights::of(&llama, None, 1).bytes);
    let latent = PlainShape { n_layer: 61, n_head: Some(128), latent: Some((512, 64)), ..numbers };
    assert_eq!(ModelShape::plain(latent).unwrap().layers, shape(DEEPSEEK_V3).layers);
    for absurd in [
        PlainShape { n_layer: 0, ..numbers },
        PlainShape { n_kv_head: 100_000, ..numbers },
        PlainShape { parameters: 0, ..numbers },
        PlainShape { window: Some((4096, 33)), ..numbers },
    ] {
        assert!(matches!(ModelShape::plain(absurd), Err(CapacityError::Invalid { .. })), "{absurd:?}");
    }
}

#[test]
fn the_engine_and_the_plan_see_the_same_layers_and_a_folder_says_its_own_size() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny_models");
    let mut seen = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let model = entry.unwrap().path();
        let text = fs::read(model.join("config.json")).unwrap();
        let (config, shape) = (ModelConfig::from_json(&text, false).unwrap(), ModelShape::read(&model).unwrap());
        assert_eq!(shape.layers.len(), config.n_layer());
        for (layer, cache) in config.layers.iter().zip(&shape.layers) {
            let LayerCache::Heads { n_kv_head, key_dim, window, .. } = *cache else { panic!("{cache:?}") };
            assert_eq!((n_kv_head as usize, key_dim as usize), (config.n_kv_head, config.head_dim));
            assert_eq!(window.map(|window| window as usize), layer.window, "{}", model.display());
        }
        let bytes = fs::metadata(model.join("model.safetensors")).unwrap().len();
        assert_eq!(Weights::of(&shape, None, 1).bytes, bytes);
        // The header of the file is small; tensors of these files are stored in 16 or 32 bits.
        let parameters = shape.parameters.total();
        assert!((2..=4).contains(&(bytes / parameters)), "{}: {bytes} {parameters}", model.display());
        seen += 1;
    }
    assert!(seen >= 9);
}

#[test]
fn bad_configs_are_refused_with_the_key_and_what_to_do() {
    let without = |key: &str| LLAMA_31_8B.replace(&format!("\"{key}\""), "\"other\"");
    let with = |key: &str, value: &str| {
        let start = LLAMA_31_8B.find(&format!("\"{key}\"")).unwrap();
        let end = start + LLAMA_31_8B[start..].find(',').unwrap();
        format!("{}\"{key}\": {value}{}", &LLAMA_31_8B[..start], &LLAMA_31_8B[end..])
    };
    let cases = [
        ("not json".to_string(), "config.json: expected"),
        ("[]".into(), "an object is expected"),
        ("{}".into(), "`num_hidden_layers` is missing"),
        (without("num_hidden_layers"), "`num_hidden_layers` is missing"),
        (without("vocab_size"), "`vocab_size` is missing"),
        (with("num_hidden_layers", "0"), "`num_hidden_layers` is 0"),
        (with("num_hidden_layers", "1e30"), "`num_hidden_layers` is 1e+30"),
        (with("num_hidden_layers", "99999999999"), "must be between 1 and 1024"),
        (with("num_key_value_heads", "-8"), "`num_key_value_heads` is -8"),
        (with("num_key_value_heads", "\"8\""), "must be a whole number"),
        (with("num_key_value_heads", "64"), "more than there are attention heads"),
        (with("hidden_size", "31").replace("llama", "other"), "`hidden_size / num_attention_heads` is 0"),
        (with("model_type", "\"t5\", \"is_encoder_decoder\": true"), "an encoder with a decoder"),
        (with("model_type", "\"nemotron-nas\", \"block_configs\": [{}]"), "block_configs"),
        (with("model_type", "\"x\", \"layer_types\": [\"full_attention\"]"), "one entry for each of 32 layers"),
        ("{\"a\":".repeat(500), "config.json: "),
    ];
    for (text, part) in cases {
        let error = ModelShape::from_json(text.as_bytes()).unwrap_err();
        assert!(error.to_string().contains(part), "{error} has no `{part}`");
    }
    let missing = ModelShape::from_json(b"{}").unwrap_err();
    assert!(missing.hints()[0].contains("--layers"), "{:?}", missing.hints());
}

proptest! {
    /// Whatever a file says, there is an answer or an error, and an answer has sane figures.
    #[test]
    fn no_config_is_too_strange(
        base in 0_usize..7,
        changes in prop::collection::vec((prop::sample::select(STRANGE_KEYS), strange_value()), 1..5),
    ) {
        let gpt_oss = gpt_oss_20b();
        let bases =
            [LLAMA_31_8B, QWEN25_7B, MISTRAL_7B_V01, QWEN3_30B_A3B, GEMMA3_27B, DEEPSEEK_V3, gpt_oss.as_str()];
        let mut config: Value = serde_json::from_str(bases[base]).unwrap();
        for (key, value) in changes {
            config[key] = value;
        }
        if let Ok(shape) = ModelShape::from_json(config.to_string().as_bytes()) {
            let tokens = cache_token_bytes(&shape, "bfloat16", 1).unwrap();
            let short = cache(&shape, "bfloat16", 8 * K);
            prop_assert!(short <= tokens * 8 * K && short <= cache(&shape, "bfloat16", 1 << 28));
            let weights = Weights::of(&shape, None, 1).bytes;
            prop_assert!(weights > 0 && weights < 1 << 50);
            let fitted = fit(&shape, "fp8", weights, Some(&gpu(1 << 20)), SERVING, &[1, 1 << 24]).unwrap();
            prop_assert!(fitted.lengths.iter().all(|length| length.total_bytes >= weights));
        }
    }
}

const STRANGE_KEYS: &[&str] = &[
    "model_type",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_size",
    "vocab_size",
    "intermediate_size",
    "num_experts",
    "moe_intermediate_size",
    "n_shared_experts",
    "kv_lora_rank",
    "q_lora_rank",
    "qk_rope_head_dim",
    "v_head_dim",
    "sliding_window",
    "use_sliding_window",
    "sliding_window_pattern",
    "layer_types",
    "full_attention_interval",
    "attn_layer_period",
    "attn_layer_indices",
    "hybrid_override_pattern",
    "num_kv_shared_layers",
    "moe_layer_freq",
    "decoder_sparse_step",
    "text_config",
    "quantization_config",
    "torch_dtype",
    "max_position_embeddings",
    "tie_word_embeddings",
    "index_head_dim",
    "mlp_only_layers",
];

fn strange_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0_u64..70).prop_map(Value::from),
        prop::sample::select(vec![0_u64, 1, 1023, 1024, 1 << 14, 1 << 20, 1 << 28, u64::MAX]).prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop::sample::select(vec!["", "llama", "mamba", "gpt_oss", "deepseek_v3", "M*-M", "float32"])
            .prop_map(Value::from),
        Just(json!([])),
        Just(json!([0, -1, 1_u64 << 40, "x", null])),
        Just(json!({"num_hidden_layers": 2, "text_config": {"num_hidden_layers": 1}})),
        Just(json!({"quant_method": "gptq", "bits": 1e300, "group_size": 0})),
        Just(json!({"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"num_bits": -4}}},
            "kv_cache_scheme": {"num_bits": 8, "type": "float"}})),
    ]
}

#[test]
fn bad_paths_are_refused_and_a_hostile_index_is_not_believed() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    assert!(matches!(ModelShape::read(folder.path()), Err(CapacityError::NotAConfig { .. })));
    assert!(matches!(ModelShape::read(&path("absent")), Err(CapacityError::Io { .. })));
    fs::write(path("weights.bin"), "x").unwrap();
    assert!(matches!(ModelShape::read(&path("weights.bin")), Err(CapacityError::NotAConfig { .. })));
    fs::write(path("huge.json"), vec![b' '; 9 << 20]).unwrap();
    assert!(matches!(ModelShape::read(&path("huge.json")), Err(CapacityError::TooLarge { .. })));
    fs::write(path("config.json"), LLAMA_31_8B).unwrap();
    let index = |text: &str| {
        fs::write(path("model.safetensors.index.json"), text).unwrap();
        ModelShape::read(folder.path())
    };
    let stored = index(r#"{"metadata": {"total_size": 16060522496}, "weight_map": {}}"#).unwrap().stored_weights;
    assert_eq!(stored, Some((16_060_522_496, "model.safetensors.index.json, metadata.total_size".into())));
    assert_eq!(index(r#"{"metadata": {}}"#).unwrap().stored_weights, None);
    for size in ["-5", "0", "1e300"] {
        let error = index(&format!(r#"{{"metadata": {{"total_size": {size}}}}}"#)).unwrap_err();
        assert!(error.to_string().contains("total_size"), "{error}");
    }
}
