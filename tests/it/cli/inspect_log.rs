//! `inspect-log` from outside: one object for one file, an array for several, a table for people, and files that are no logs.

use super::Desk;

const LOG: &str = "\
(APIServer pid=1) INFO 11-29 14:42:02 [cache.py:485] Using fp8_e5m2 data type to store kv cache. It reduces the memory
(EngineCore pid=2) INFO 11-29 14:42:31 [kv_cache_utils.py:1147] GPU KV cache size: 899,904 tokens
";

#[test]
fn one_log_gives_an_object_and_several_give_an_array() {
    let desk = Desk::new();
    desk.write("a.log", LOG);
    desk.write("b.log", "nothing that a server says\n");
    let said = desk.run(&["inspect-log", "a.log", "--json"]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let document: serde_json::Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!(document["file"], "a.log");
    assert_eq!(document["engine"], "vllm");
    assert_eq!(document["kv_cache_dtype"], "fp8_e5m2");
    assert_eq!(document["kv_tokens"], 899_904);
    assert_eq!(document["lines"]["kv_tokens"], 2);
    assert!(document["resolved_backend"].is_null());

    let said = desk.run(&["inspect-log", "a.log", "b.log", "--json"]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let documents: serde_json::Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!(documents.as_array().map(Vec::len), Some(2));
    assert!(documents[1]["engine"].is_null());
}

#[test]
fn a_table_shows_every_fact_and_a_bad_file_does_not_hide_a_good_one() {
    let desk = Desk::new();
    desk.write("a.log", LOG);
    std::fs::write(desk.path("packed.gz"), b"\x1f\x8b\x08\x00").unwrap();
    let said = desk.run(&["inspect-log", "packed.gz", "a.log", "absent.log"]);
    said.expect_error(2, &["packed.gz", "gzip", "unpack it first"]);
    assert!(said.stderr.contains("absent.log"), "{}", said.stderr);
    assert!(said.stdout.contains("fp8_e5m2") && said.stdout.contains("899904"), "{}", said.stdout);
}
