//! `kvgauge probe` against a played server: what it prints, and how it ends where there is none.

use std::net::TcpListener;

use serde_json::Value;

use super::Desk;
use crate::serving::played::{json, plain, play, play_engine};

const MODELS: &str = r#"{"data":[{"id":"m","owned_by":"vllm","max_model_len":8192}]}"#;
const METRICS: &str = "vllm:cache_config_info{block_size=\"16\",cache_dtype=\"auto\",num_gpu_blocks=\"1000\"} 1.0\n";
const CONFIG: &str = r#"{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072, "torch_dtype": "bfloat16", "quantization_config":
    {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}}"#;

#[test]
fn a_server_is_told_with_its_sources_and_the_model_settles_auto() {
    let server = play_engine(&[
        ("/v1/models", json(MODELS)),
        ("/version", json(r#"{"version":"0.33.0"}"#)),
        ("/metrics", plain(METRICS)),
    ]);
    let desk = Desk::new();
    desk.write("config.json", CONFIG);
    let document = |args: &[&str]| -> Value {
        let said = desk.run(&[&["probe", &server.url, "--json"], args].concat());
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        serde_json::from_str(&said.stdout).unwrap()
    };
    let alone = document(&[]);
    assert_eq!((alone["dialect"].as_str(), alone["models"][0]["id"].as_str()), (Some("vllm"), Some("m")));
    assert_eq!(alone["resolved"]["kv_cache_dtype"]["value"], Value::Null);
    assert_eq!(alone["resolved"]["kv_cache_tokens"]["value"], 16_000);
    let with_model = document(&["--model", "config.json"]);
    assert_eq!(with_model["resolved"]["kv_cache_dtype"]["value"], "fp8_e4m3");
    let said = desk.run(&["probe", &server.url]);
    assert!(said.stdout.contains("vllm 0.33.0") && said.stdout.contains("/metrics"), "{}", said.stdout);
}

#[test]
fn no_server_no_access_and_no_key_have_their_codes() {
    let desk = Desk::new();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let locked = play(&[], (403, "application/json", "{}".into()));
    for (args, code, words) in [
        (vec!["probe", free.as_str()], 6, "cannot be reached"),
        (vec!["probe", locked.url.as_str()], 6, "refuses access with status 403"),
        (vec!["probe", "ftp://h"], 2, "only http and https"),
        (vec!["probe", free.as_str(), "--api-key-env", "KVGAUGE_NO_SUCH_KEY"], 2, "KVGAUGE_NO_SUCH_KEY"),
    ] {
        let said = desk.run(&args);
        assert_eq!(said.code, Some(code), "{args:?}: {}", said.stderr);
        assert!(said.stderr.contains(words) && said.stderr.contains("hint: "), "{}", said.stderr);
    }
}
