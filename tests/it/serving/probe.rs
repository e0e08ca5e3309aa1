use std::net::TcpListener;

use kvgauge::hint::Hint as _;
use kvgauge::serving::ServerFacts;
use kvgauge::serving::http::{Endpoint, EndpointError};
use kvgauge::serving::metrics::Counters;
use kvgauge::serving::probe::{Probe, probe};

use super::played::{json, plain, play, play_engine};

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn said<'a>(probe: &'a Probe, source: &str) -> &'a ServerFacts {
    let found = probe.sources.iter().find(|(name, _)| name == source);
    &found.unwrap_or_else(|| panic!("nothing from {source}: {probe:?}")).1
}

#[test]
fn vllm_says_what_was_configured_and_never_what_is_stored() {
    let server = play_engine(&[
        (
            "/v1/models",
            json(
                r#"{"object":"list","data":[{"id":"m","object":"model","owned_by":"vllm","root":"/models/m","max_model_len":131072}]}"#,
            ),
        ),
        ("/version", json(r#"{"version":"0.33.0"}"#)),
        (
            "/metrics",
            plain(
                "# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{block_size=\"16\",cache_dtype=\"auto\",engine=\"0\",kv_cache_size_tokens=\"899904\",num_gpu_blocks=\"56244\"} 1.0\nvllm:num_preemptions_total{engine=\"0\"} 0.0\n",
            ),
        ),
        (
            "/server_info",
            json(
                r#"{"vllm_config":{"cache_config":{"cache_dtype":"auto","block_size":16},"attention_config":{"backend":"AttentionBackendEnum.FLASHINFER"},"model_config":{"max_model_len":131072}},"vllm_env":{},"system_env":{}}"#,
            ),
        ),
    ]);
    let probe = run(probe(&format!("{}/v1", server.url), Some("canary-key"))).unwrap();
    assert_eq!(probe.dialect.as_deref(), Some("vllm"));
    assert_eq!((probe.models[0].id.as_str(), probe.models[0].max_model_len), ("m", Some(131_072)));
    assert_eq!(said(&probe, "/version").engine_version.as_deref(), Some("0.33.0"));
    assert_eq!(said(&probe, "/version").engine.as_deref(), Some("vllm"));
    assert_eq!(said(&probe, "/metrics").kv_tokens, Some(899_904));
    assert_eq!(said(&probe, "/server_info").requested_backend.as_deref(), Some("FLASHINFER"));
    assert!(probe.sources.iter().all(|(_, facts)| facts.kv_cache_dtype.is_none()), "{probe:?}");
    assert!(server.asked.lock().unwrap().iter().all(|line| line.ends_with("Bearer canary-key")));
    assert!(!serde_json::to_string(&probe).unwrap().contains("canary"));
}

#[test]
fn vllm_prints_its_configuration_in_two_ways() {
    let text = r#"{"vllm_config":"model='m', dtype=torch.bfloat16, max_seq_len=8192, kv_cache_dtype=fp8_e5m2, device_config=cuda"}"#;
    let models = r#"{"data":[{"id":"m","owned_by":"vllm"}]}"#;
    let server = play_engine(&[("/v1/models", json(models)), ("/server_info", json(text))]);
    let probe = run(probe(&server.url, None)).unwrap();
    let facts = said(&probe, "/server_info");
    assert_eq!((facts.requested_kv_cache_dtype.as_deref(), facts.max_model_len), (Some("fp8_e5m2"), Some(8192)));
}

#[test]
fn sglang_says_what_is_in_effect() {
    let info = r#"{"model_path":"m","kv_cache_dtype":"fp8_e4m3","attention_backend":"fa3","prefill_attention_backend":null,"decode_attention_backend":"flashinfer","max_total_num_tokens":899904,"page_size":1,"context_length":131072,"version":"0.5.23","launch_command":"python -m sglang.launch_server --kv-cache-dtype=fp8_e5m2 --attention-backend fa3","internal_states":[{"memory_usage":{"kvcache":54.9}}]}"#;
    let server = play_engine(&[
        ("/v1/models", json(r#"{"data":[{"id":"m","owned_by":"sglang","max_model_len":131072}]}"#)),
        ("/server_info", json(info)),
    ]);
    let probe = run(probe(&server.url, None)).unwrap();
    let facts = said(&probe, "/server_info");
    assert_eq!(facts.kv_cache_dtype.as_deref(), Some("fp8_e4m3"));
    assert_eq!(facts.requested_kv_cache_dtype.as_deref(), Some("fp8_e5m2"));
    assert_eq!(facts.resolved_backend.iter().map(String::as_str).collect::<Vec<_>>(), ["fa3", "flashinfer"]);
    assert_eq!((facts.kv_tokens, facts.kv_memory_gib), (Some(899_904), Some(54.9)));
}

#[test]
fn the_other_engines_are_told_apart() {
    let tensorrt = play_engine(&[
        ("/v1/models", json(r#"{"data":[{"id":"m","owned_by":"tensorrt_llm"}]}"#)),
        ("/version", json(r#"{"version":"1.2.1"}"#)),
        ("/metrics", json(r#"[{"iter":1},{"iter":2,"kvCacheStats":{"maxNumBlocks":100,"tokensPerBlock":64}}]"#)),
    ]);
    let found = run(probe(&tensorrt.url, None)).unwrap();
    assert_eq!(found.dialect.as_deref(), Some("tensorrt_llm"));
    assert_eq!(said(&found, "/metrics").kv_tokens, Some(6400));

    let lmdeploy = play_engine(&[
        ("/v1/models", json(r#"{"data":[{"id":"m","owned_by":"lmdeploy"}]}"#)),
        ("/metrics", plain("lmdeploy:num_requests_running 0\n")),
    ]);
    assert_eq!(run(probe(&lmdeploy.url, None)).unwrap().dialect.as_deref(), Some("lmdeploy"));

    let tgi = play_engine(&[
        ("/v1/models", json(r#"{"data":[{"id":"m","owned_by":"m"}]}"#)),
        (
            "/info",
            json(
                r#"{"model_id":"m","router":"text-generation-router","version":"3.3.7","max_total_tokens":8192,"max_input_tokens":8191}"#,
            ),
        ),
        ("/metrics", plain("tgi_queue_size 0\n")),
    ]);
    let found = run(probe(&tgi.url, None)).unwrap();
    assert_eq!((found.dialect.as_deref(), said(&found, "/info").max_model_len), (Some("tgi"), Some(8192)));

    let ollama = play_engine(&[
        ("/v1/models", json(r#"{"data":[{"id":"llama3:8b","owned_by":"library"}]}"#)),
        ("/api/version", json(r#"{"version":"0.12.0"}"#)),
        ("/api/ps", json(r#"{"models":[{"name":"llama3:8b","context_length":4096}]}"#)),
        (
            "/api/show",
            json(
                r#"{"parameters":"num_ctx 8192\nstop \"x\"","model_info":{"general.architecture":"llama","llama.context_length":131072}}"#,
            ),
        ),
    ]);
    let found = run(probe(&ollama.url, None)).unwrap();
    assert_eq!(found.dialect.as_deref(), Some("ollama"));
    assert_eq!(said(&found, "/api/ps").max_model_len, Some(4096));
    assert_eq!(said(&found, "/api/show").notes, ["trained for 131072 tokens"]);
    assert!(ollama.asked.lock().unwrap().contains(&"POST /api/show".to_owned()));
}

#[test]
fn an_unknown_engine_with_models_is_a_server_and_anything_else_is_not() {
    let plain_openai = play_engine(&[("/v1/models", json(r#"{"data":[{"id":"gpt","owned_by":"somebody"}]}"#))]);
    let found = run(probe(&plain_openai.url, None)).unwrap();
    assert_eq!((found.dialect, found.models.len()), (None, 1));

    let empty = play_engine(&[]);
    let error = run(probe(&empty.url, None)).unwrap_err();
    assert!(
        matches!(&error, EndpointError::Unknown { replies, .. } if replies.contains("/v1/models status 404")),
        "{error}"
    );

    let portal = play(&[], (200, "text/html; charset=utf-8", "<!DOCTYPE html><html>Log in".into()));
    let error = run(probe(&portal.url, None)).unwrap_err();
    assert!(matches!(error, EndpointError::WebPage { status: 200, .. }), "{error}");

    let elsewhere = play(&[], (307, "text/plain", String::new()));
    assert!(matches!(run(probe(&elsewhere.url, None)), Err(EndpointError::Redirect { status: 307, .. })));
}

#[test]
fn no_access_and_no_server_are_told_with_what_to_do() {
    let locked = play(&[], (401, "application/json", r#"{"error":"Unauthorized"}"#.into()));
    let error = run(probe(&locked.url, Some("canary-key"))).unwrap_err();
    assert!(matches!(error, EndpointError::Denied { status: 401, .. }));
    assert!(error.hints()[0].contains("--api-key-env") && !format!("{error} {error:?}").contains("canary"));

    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = run(probe(&free.to_string(), None)).unwrap_err();
    assert!(matches!(error, EndpointError::Unreachable { .. }) && !error.is_usage(), "{error}");
    assert!(!error.hints().is_empty());
}

#[test]
fn a_reply_without_end_is_cut_off() {
    let flood = play(&[], (200, "application/json", "x".repeat(9 << 20)));
    let error = run(probe(&flood.url, None)).unwrap_err();
    assert!(matches!(error, EndpointError::TooLong { .. }), "{error}");
}

#[test]
fn counters_are_read_and_missing_ones_are_unknown() {
    let page = "vllm:num_preemptions_total{engine=\"0\"} 2\nvllm:prefix_cache_queries_total 10\nvllm:prefix_cache_hits_total 1\n";
    let server = play_engine(&[("/metrics", plain(page))]);
    let counters = run(Counters::read(&Endpoint::new(&server.url, None).unwrap())).unwrap();
    assert_eq!((counters.preemptions, counters.hit_share()), (Some(2.0), Some(0.1)));
    let none = run(Counters::read(&Endpoint::new(&play_engine(&[]).url, None).unwrap())).unwrap();
    assert_eq!(none, Counters::default());
}
