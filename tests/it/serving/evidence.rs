use std::path::{Path, PathBuf};

use kvgauge::serving::ServerFacts;
use kvgauge::serving::checkpoint::Checkpoint;
use kvgauge::serving::evidence::{Asked, Weighed, Witness, n_rank, weigh};
use kvgauge::serving::startup_log;
use kvgauge::setup::CheckStatus::{Confirmed, Contradicted, Unknown};
use kvgauge::setup::{Arm, CheckStatus};

const COMPRESSED: &str = r#","quantization_config":{"quant_method":"compressed-tensors","kv_cache_scheme":{"num_bits":8,"type":"float","strategy":"tensor","dynamic":false,"symmetric":true}}"#;
const MODELOPT: &str = r#","quantization_config":{"quant_method":"modelopt","kv_cache_quant_algo":"FP8"}"#;

/// Llama-3.1-8B: 131,072 bytes per token at 16 bits.
fn checkpoint(more: &str) -> Checkpoint {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.json");
    let text = r#"{"model_type":"llama","vocab_size":128256,"hidden_size":4096,"intermediate_size":14336,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,"rms_norm_eps":1e-5,"rope_theta":500000.0,"max_position_embeddings":131072,"torch_dtype":"bfloat16""#;
    std::fs::write(&path, format!("{text}{more}}}")).unwrap();
    Checkpoint::read(&path).unwrap()
}

fn log(name: &str) -> Witness {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/logs").join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    Witness::log(startup_log::read_text(&text).unwrap())
}

fn asked(arm: &Arm) -> Asked<'_> {
    Asked { arm, context_tokens: None, n_rank: Some(1) }
}

fn status(weighed: &Weighed, fact: &str) -> CheckStatus {
    weighed.checks.iter().find(|check| check.fact == fact).unwrap_or_else(|| panic!("no {fact}")).status
}

/// Fixture, KV dtype and backend asked for, context; then the status of dtype, backend and context.
type Row = (&'static str, &'static str, Option<&'static str>, u32, [CheckStatus; 3]);

const ROWS: &[Row] = &[
    ("f01_vllm_cpu_0.9.2_cast_to_e5m2.log", "fp8_e4m3", None, 4096, [Contradicted, Confirmed, Confirmed]),
    ("f01_vllm_cpu_0.9.2_cast_to_e5m2.log", "fp8_e5m2", None, 4096, [Confirmed, Confirmed, Confirmed]),
    ("f02_vllm_cpu_0.12.0_fallback_to_auto.log", "fp8_e5m2", None, 4096, [Contradicted, Unknown, Confirmed]),
    ("f02_vllm_cpu_0.20.2.log", "fp8", None, 4096, [Contradicted, Unknown, Confirmed]),
    ("f03_vllm_0.20.2_debug_shows_fp8.log", "bfloat16", None, 131_072, [Contradicted, Confirmed, Confirmed]),
    ("f04_vllm_0.30.0_debug_shows_fp8.log", "fp8", None, 131_072, [Confirmed, Confirmed, Confirmed]),
    ("f05_vllm_0.9.2_flashmla_block_size.log", "auto", Some("FLASHMLA"), 32_768, [Confirmed, Contradicted, Confirmed]),
    ("f06_vllm_0.8.5_v1_to_v0.log", "fp8", Some("FLASH_ATTN"), 131_072, [Confirmed, Contradicted, Confirmed]),
    ("f07_vllm_0.17.0_variable_ignored.log", "auto", Some("FLASHINFER"), 131_072, [Confirmed, Contradicted, Confirmed]),
    (
        "f08_vllm_cpu_0.33.0_flash_attn_asked.log",
        "auto",
        Some("FLASH_ATTN"),
        8192,
        [Confirmed, Contradicted, Confirmed],
    ),
    ("f09_vllm_xpu_mla.log", "fp8", Some("FLASH_ATTN_MLA"), 32_768, [Confirmed, Contradicted, Confirmed]),
    ("f10_vllm_0.33.0_debug_reasons.log", "fp8", None, 131_072, [Confirmed, Confirmed, Confirmed]),
    ("f11_vllm_0.33.0_fa_version.log", "auto", Some("FLASH_ATTN"), 131_072, [Confirmed, Confirmed, Confirmed]),
    ("f12_sglang_fa3_to_triton.log", "fp8_e5m2", Some("fa3"), 131_072, [Confirmed, Contradicted, Confirmed]),
    ("f13_sglang_rocm_e5m2_to_e4m3.log", "fp8_e5m2", None, 131_072, [Contradicted, Confirmed, Confirmed]),
    ("f14_tensorrt_llm_classic_backend.log", "fp8", None, 16_384, [Unknown, Unknown, Confirmed]),
    (
        "f15_llama_cpp_flash_attention_off.log",
        "q4_0/f16",
        Some("flash_attn"),
        4096,
        [Confirmed, Contradicted, Confirmed],
    ),
    ("f16_ollama_truncates.log", "q8_0", None, 4096, [Unknown, Unknown, Contradicted]),
    ("f16_ollama_clamps_context.log", "q8_0", None, 262_144, [Unknown, Unknown, Contradicted]),
    ("f17_sglang_truncates.log", "bfloat16", None, 8192, [Confirmed, Unknown, Contradicted]),
    ("f18_tensorrt_llm_adjusted.log", "fp8", None, 131_072, [Unknown, Unknown, Contradicted]),
    ("f19_vllm_0.33.0_auto_fit.log", "auto", None, 131_072, [Confirmed, Confirmed, Contradicted]),
    ("llama_cpp_b11549_q8_0.log", "q8_0", None, 1024, [Confirmed, Confirmed, Confirmed]),
];

#[test]
fn every_silent_fallback_has_the_status_it_deserves() {
    let mut wrong = Vec::new();
    for (fixture, dtype, backend, context, expected) in ROWS {
        let mut arm = Arm::candidate(dtype);
        arm.attention_backend = backend.map(str::to_owned);
        let weighed = weigh(&Asked { context_tokens: Some(*context), ..asked(&arm) }, &[log(fixture)], None);
        let found = ["kv_cache_dtype", "attention_backend", "max_model_len"].map(|fact| status(&weighed, fact));
        if found != *expected {
            wrong.push(format!("{fixture} asked {dtype}: {found:?}, expected {expected:?}\n  {:?}", weighed.checks));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_baseline_that_the_checkpoint_quantizes_is_contradicted_by_prediction_and_by_arithmetic() {
    for (fixture, dtype) in [
        ("f03_vllm_0.15.1_scheme_over_bfloat16.log", "bfloat16"),
        ("f03_vllm_0.21.0_scheme_over_bfloat16.log", "bfloat16"),
        ("f04_vllm_0.33.0_scheme_under_auto.log", "auto"),
    ] {
        let arm = Arm::baseline(dtype);
        let alone = weigh(&asked(&arm), &[log(fixture)], None);
        assert_eq!(status(&alone, "kv_cache_dtype"), Unknown, "{fixture}");
        assert_eq!(alone.resolved.kv_cache_dtype.value, None);

        let predicted = weigh(&Asked { n_rank: None, ..asked(&arm) }, &[log(fixture)], Some(&checkpoint(COMPRESSED)));
        assert_eq!(status(&predicted, "kv_cache_dtype"), Contradicted, "{fixture}");
        assert_eq!(predicted.resolved.kv_cache_dtype.value.as_deref(), Some("fp8_e4m3"));
        assert!(predicted.resolved.kv_cache_dtype.source.contains("config.json"));

        // The shape alone is enough: 54.93 GiB hold twice the tokens.
        let measured = weigh(&asked(&arm), &[log(fixture)], Some(&checkpoint("")));
        assert_eq!(status(&measured, "kv_cache_dtype"), Contradicted, "{fixture}: {:?}", measured.checks[0]);
        let bytes = measured.resolved.kv_bytes_per_token.value.unwrap();
        assert!((bytes / 65_536.0 - 1.0).abs() < 0.01, "{bytes}");
    }
}

fn vllm(version: &str, configured: &str) -> Vec<Witness> {
    let engine = || Some("vllm".to_owned());
    let version = ServerFacts { engine: engine(), engine_version: Some(version.into()), ..ServerFacts::default() };
    let metrics = ServerFacts {
        engine: engine(),
        requested_kv_cache_dtype: Some(configured.into()),
        kv_tokens: Some(449_952),
        ..ServerFacts::default()
    };
    vec![Witness::endpoint("/version", version), Witness::endpoint("/metrics", metrics)]
}

#[test]
fn a_configuration_settles_only_what_the_engine_keeps_to() {
    let plain = checkpoint("");
    let compressed = checkpoint(COMPRESSED);
    let modelopt = checkpoint(MODELOPT);
    for (version, configured, arm, files, expected) in [
        // An explicit dtype is kept to before 0.15 and from 0.22.1 on; in between only where the checkpoint is plain.
        ("0.12.0", "bfloat16", Arm::baseline("bfloat16"), None, Confirmed),
        ("0.20.2", "bfloat16", Arm::baseline("bfloat16"), None, Unknown),
        ("0.20.2", "bfloat16", Arm::baseline("bfloat16"), Some(&plain), Confirmed),
        ("0.20.2", "bfloat16", Arm::baseline("bfloat16"), Some(&compressed), Contradicted),
        ("0.33.0", "bfloat16", Arm::baseline("bfloat16"), Some(&compressed), Confirmed),
        ("0.33.0", "bfloat16", Arm::baseline("bfloat16"), None, Confirmed),
        ("0.20.2", "fp8", Arm::candidate("fp8_e4m3"), None, Confirmed),
        ("0.20.2", "fp8_e5m2", Arm::candidate("fp8_e5m2"), None, Unknown),
        // `auto` is what the checkpoint makes of it.
        ("0.33.0", "auto", Arm::baseline("auto"), None, Unknown),
        ("0.33.0", "auto", Arm::baseline("auto"), Some(&plain), Confirmed),
        ("0.33.0", "auto", Arm::baseline("auto"), Some(&compressed), Contradicted),
        ("0.12.0", "auto", Arm::baseline("auto"), Some(&compressed), Unknown),
        ("0.33.0", "auto", Arm::baseline("auto"), Some(&modelopt), Contradicted),
        ("0.33.0", "auto", Arm::candidate("fp8"), Some(&modelopt), Confirmed),
        // The server was started with something else than the arm says.
        ("0.33.0", "auto", Arm::candidate("fp8"), None, Contradicted),
        ("0.33.0", "auto", Arm::baseline("bfloat16"), None, Unknown),
        ("0.33.0", "auto", Arm::baseline("bfloat16"), Some(&plain), Confirmed),
        ("0.33.0", "fp8", Arm::baseline("bfloat16"), None, Contradicted),
        ("0.33.0", "fp8_e5m2", Arm::candidate("fp8_e4m3"), None, Contradicted),
    ] {
        let weighed = weigh(&Asked { n_rank: None, ..asked(&arm) }, &vllm(version, configured), files);
        let found = status(&weighed, "kv_cache_dtype");
        assert_eq!(found, expected, "{version} {configured} {arm:?} {files:?}: {:?}", weighed.checks[0]);
        assert_eq!(weighed.resolved.kv_cache_dtype.value.is_none(), expected == Unknown);
    }
}

#[test]
fn sources_that_disagree_contradict_and_each_is_kept() {
    let arm = Arm::candidate("fp8_e5m2");
    let server_info = ServerFacts {
        engine: Some("sglang".into()),
        kv_cache_dtype: Some("fp8_e5m2".into()),
        kv_tokens: Some(899_904),
        ..ServerFacts::default()
    };
    let endpoint = Witness::endpoint("/server_info", server_info);
    // Alone it cannot know: on ROCm the pool takes another format.
    let alone = weigh(&asked(&arm), std::slice::from_ref(&endpoint), None);
    assert_eq!(status(&alone, "kv_cache_dtype"), Unknown);
    let both = weigh(&asked(&arm), &[endpoint, log("f13_sglang_rocm_e5m2_to_e4m3.log")], None);
    let check = &both.checks[0];
    assert_eq!(check.status, Contradicted);
    assert_eq!(check.observed.len(), 2, "{check:?}");
    assert!(check.observed[0].source.starts_with("start-up log line"), "{check:?}");
    assert_eq!(both.resolved.kv_cache_dtype.value.as_deref(), Some("fp8_e4m3"));
    assert_eq!(status(&both, "kv_cache_tokens"), Confirmed);
}

#[test]
fn without_any_source_everything_is_unknown() {
    let arm = Arm::baseline("auto");
    let weighed = weigh(&asked(&arm), &[], Some(&checkpoint("")));
    assert!(weighed.checks.iter().all(|check| check.status == Unknown), "{:?}", weighed.checks);
    assert_eq!(weighed.resolved.kv_cache_dtype.source, "the server was not asked");
}

#[test]
fn ranks_are_read_from_the_command_line_or_left_open() {
    let rank = |line: &str| n_rank(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
    assert_eq!(rank("vllm serve m"), Some(1));
    assert_eq!(rank("vllm serve m --tensor-parallel-size 4"), Some(4));
    assert_eq!(rank("sglang --tp=2"), Some(2));
    for open in ["-tp many", "--tensor-parallel-size", "-tp 2 -pp 2", "-dcp=2", "--num-gpu-blocks-override 512"] {
        assert_eq!(rank(&format!("vllm serve m {open}")), None, "{open}");
    }
}
