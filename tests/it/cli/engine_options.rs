//! Options of the embedded engine from outside: bad ones, and a planted fault that the gate has to find in a real model.

use std::path::{Path, PathBuf};

use super::Desk;

/// The default model, where an earlier command has fetched it.
fn default_model() -> Option<PathBuf> {
    let cached = || {
        let home = std::env::var_os("HOME")?;
        Some(Path::new(&home).join(".cache/kvgauge/models/SmolLM2-135M-Instruct.Q4_1.gguf"))
    };
    std::env::var_os("KVGAUGE_TEST_MODEL").map(PathBuf::from).or_else(cached).filter(|path| path.exists())
}

#[test]
fn what_an_option_does_not_know_is_an_error_with_what_there_is() {
    let desk = Desk::new();
    desk.write("no_text.jsonl", "{\"n\": 1}\n");
    let cases: [(&[&str], &[&str]); 8] = [
        (&["--emulate", "sm70"], &["unknown platform `sm70`", "sm80, sm89, sm90, sm100, cpu"]),
        (&["--mechanisms", "p_fp4"], &["unknown mechanism `p_fp4`", "short_accumulator"]),
        (&["--kv-fault", "k_noise"], &["unknown fault `k_noise`", "k_noise=DB"]),
        (&["--kv-scales", "magic"], &["`magic` is no source of scales", "calibrate:FILE.jsonl"]),
        (&["--kv-scales", "calibrate:none.jsonl"], &["`none.jsonl`", "one JSON value per line"]),
        (&["--kv-scales", "calibrate:no_text.jsonl"], &["line 1 holds no text", "`messages`"]),
        (&["--kv-cache-memory", "much"], &["`much` is no size", "4GiB"]),
        (&["--kv-cache-dtype", "fp9@FLASHINFER"], &["unknown kv_cache_dtype `fp9`"]),
    ];
    for (options, parts) in cases {
        desk.run(&[&["check"], options].concat()).expect_error(2, parts);
    }
}

#[test]
fn noise_on_the_keys_of_a_real_model_fails_the_gate_and_a_copy_of_the_baseline_does_not() {
    let Some(model) = default_model() else { return };
    let desk = Desk::new();
    let model = model.to_str().unwrap();
    let check = |fault: &[&str], dtypes: &str| {
        // Six more than a cell needs: answers that both arms leave unfinished are not scored.
        let arms = ["--bins", "512", "--tasks", "needle", "--samples", "26", "--kv-cache-dtype", dtypes];
        desk.run(&[&["check", "--model", model, "--run-dir", "run"], &arms[..], fault].concat())
    };
    let said = check(&["--kv-fault", "k_noise=0"], "float16");
    assert_eq!(said.code, Some(100), "{}\n{}", said.stdout, said.stderr);
    assert!(said.stdout.contains("float16+k_noise=0") && said.stdout.contains("REGRESSED"), "{}", said.stdout);
    assert!(said.stdout.contains("512") && said.stdout.contains("retrieval"), "{}", said.stdout);
    let said = check(&[], "float16");
    assert_eq!(said.code, Some(0), "{}\n{}", said.stdout, said.stderr);
}
