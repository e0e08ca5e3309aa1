//! `kvgauge bench` on a tiny model: every form of the result, and what is refused before anything is measured.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::Desk;

fn tiny_model() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny_models/llama");
    folder.to_string_lossy().into_owned()
}

#[test]
fn speed_comes_as_table_json_picture_and_page() {
    let desk = Desk::new();
    let model = tiny_model();
    let args = [
        "bench",
        "--model",
        &model,
        "--kernel",
        "portable",
        "--threads",
        "1",
        "--lengths",
        "128,64",
        "--batch",
        "2",
        "--decode-tokens",
        "2",
        "--repeats",
        "2",
        "--kv-cache-dtype",
        "bfloat16,fp8,fp8_e4m3",
        "-o",
        "out/speed.json",
        "-o",
        "speed.svg",
        "-o",
        "speed.md",
    ];
    let said = desk.run(&args);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    for part in ["prefill tok/s", "decode ×2 tok/s", "of peak", "fp8_e4m3", "portable on 1 threads"] {
        assert!(said.stdout.contains(part), "no `{part}` in:\n{}", said.stdout);
    }
    assert!(said.stderr.contains("8/8 "), "{}", said.stderr);
    let document: Value = serde_json::from_str(&fs::read_to_string(desk.path("out/speed.json")).unwrap()).unwrap();
    let cells = document["cells"].as_array().unwrap();
    // `fp8` is another name for `fp8_e4m3`, which is measured once.
    assert_eq!(cells.len(), 4);
    for cell in cells {
        assert_eq!(cell["prefill"]["all"].as_array().unwrap().len(), 2);
        let share = cell["share_of_peak"].as_f64().unwrap();
        assert!(share > 0.0 && cell["decode"][0]["rate"]["best"].as_f64().unwrap() > 0.0, "{cell}");
        assert!(cell["prefill"]["best"].as_f64() >= cell["prefill"]["median"].as_f64());
    }
    let bytes = |dtype: &str| {
        cells.iter().find(|cell| cell["kv_cache_dtype"] == dtype).unwrap()["cache_bytes_per_token"].as_f64().unwrap()
    };
    assert_eq!(bytes("bfloat16"), 2.0 * bytes("fp8_e4m3"));
    assert!(fs::read_to_string(desk.path("speed.svg")).unwrap().starts_with("<svg"));
    assert!(fs::read_to_string(desk.path("speed.md")).unwrap().contains("| length | KV dtype |"));
}

#[test]
fn attention_error_shows_that_one_short_register_gets_worse_and_takes_a_models_heads() {
    let desk = Desk::new();
    let model = tiny_model();
    let args = ["bench", "attention-error", "--lengths", "8K,512", "--heads", "1", "--json"];
    let said = desk.run(&args);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let document: Value = serde_json::from_str(&said.stdout).unwrap();
    let errors = |name: &str| -> Vec<f64> {
        let rows = document["rows"].as_array().unwrap();
        let row = rows.iter().find(|row| row["name"] == name && row["attention"] == "diffuse").unwrap();
        row["errors"].as_array().unwrap().iter().map(|error| error.as_f64().unwrap()).collect()
    };
    let (one, two) = (errors("short_accumulator"), errors("two_level_accumulator"));
    assert!(one[1] > 5.0 * one[0] && one[1] > 10.0 * two[1], "{one:?} {two:?}");

    let args = [
        "bench",
        "attention-error",
        "--lengths",
        "64,512",
        "--heads",
        "1",
        "--with-model",
        "--model",
        &model,
        "--kernel",
        "portable",
        "--layers",
        "1",
    ];
    let said = desk.run(&args);
    // The tiny model has no tokenizer, and its text would be none.
    said.expect_error(2, &["tokenizer"]);
}

#[test]
fn what_cannot_be_measured_is_refused_at_once() {
    let desk = Desk::new();
    let model = tiny_model();
    let cases: &[(&[&str], &[&str])] = &[
        (&["bench", "--kv-cache-dtype", "fp8_e4m4"], &["`fp8_e4m4`", "did you mean `fp8_e4m3`?"]),
        (&["bench", "--kernel", "abacus", "--lengths", "128", "--model", &model], &["`abacus`", "known: auto, "]),
        (&["bench", "-o", "speed.pdf"], &["speed.pdf", ".json, .svg, .md"]),
        (
            &["bench", "--model", &model, "--rope-scaling", "none", "--lengths", "256K"],
            &["256K tokens are more than the", "--rope-scaling ntk"],
        ),
        (&["bench", "attention-error", "-o", "error.html"], &["error.html", ".json, .svg, .md"]),
    ];
    for (args, parts) in cases {
        desk.run(args).expect_error(2, parts);
    }
    for (args, part) in [
        (&["bench", "--lengths", "257K"][..], "the longest is 256K tokens"),
        (&["bench", "--lengths", "0"], "at least one token"),
        (&["bench", "--lengths", "many"], "a number of tokens"),
        (&["bench", "--repeats", "0"], "repeats"),
        (&["bench", "--batch", "0"], "batch"),
        (&["bench", "--decode-tokens", "0"], "decode-tokens"),
        (&["bench", "attention-error", "--heads", "0"], "heads"),
        (&["bench", "attention-error", "--layers", "1"], "--with-model"),
    ] {
        let said = desk.run(args);
        assert!(said.code == Some(2) && said.stderr.contains(part), "{args:?}: {}", said.stderr);
    }
}
