//! Arms that servers answer, from `kvgauge.toml` to the report.

use std::fs;
use std::path::{Path, PathBuf};

use super::Desk;

/// The interpreter with llama.cpp's server in it; without it the tests of a real server have nothing to ask.
const PYTHON: &str = "KVGAUGE_XLLAMACPP_PYTHON";

fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn every_example_is_read_and_its_arms_are_planned() {
    let examples: Vec<PathBuf> = fs::read_dir(project().join("examples"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .collect();
    assert!(examples.len() >= 6, "{examples:?}");
    for example in examples {
        let desk = Desk::new();
        let said = desk.run(&[
            "check",
            "--dry-run",
            "--suite",
            "smoke",
            "--bins",
            "512",
            "--run-dir",
            "run",
            "--config",
            example.to_str().unwrap(),
        ]);
        assert_eq!(said.code, Some(0), "{}: {}", example.display(), said.stderr);
        let run: serde_json::Value = serde_json::from_slice(&fs::read(desk.path("run/run.json")).unwrap()).unwrap();
        let arms = run["arms"].as_array().unwrap();
        let roles: Vec<&str> = arms.iter().map(|arm| arm["role"].as_str().unwrap()).collect();
        assert_eq!(roles[..2], ["baseline", "control"], "{}", example.display());
        assert!(roles.len() >= 3 && roles[2..].iter().all(|role| *role == "candidate"), "{}", example.display());
    }
}

#[test]
fn arms_of_servers_with_a_mistake_are_refused_before_anything_is_started() {
    let desk = Desk::new();
    let cases = [
        ("[server]\ntokenizer = \"x\"\n", 2, "no [[arm]]"),
        ("[[arm]]\nkv_cache_dtype = \"fp8\"\n", 2, "neither `url`"),
        ("arm = 3\n", 2, "[[arm]]"),
        ("[arms]\nbaseline = \"float16\"\n[[arm]]\nurl = \"http://127.0.0.1:1\"\nkv_cache_dtype = \"a\"\n", 2, "mixed"),
        ("[[arm]]\nurl = \"http://127.0.0.1:1\"\nkv_cache_dtype = \"a\"\n", 4, "no candidate"),
        ("[[arm]]\nurl = \"http://127.0.0.1:1\"\nkv_cache_dtype = \"a\"\nurll = 1\n", 2, "urll"),
    ];
    for (text, code, part) in cases {
        desk.write("kvgauge.toml", text);
        desk.run(&["check", "--suite", "smoke"]).expect_error(code, &[part]);
        assert!(!desk.path("reports").exists());
    }
}

/// A model that is on this machine, as the product's own tests of the default model find it.
fn default_model() -> Option<PathBuf> {
    let cache = std::env::var_os("KVGAUGE_CACHE_DIR").map(PathBuf::from).or_else(|| {
        let home = PathBuf::from(std::env::var_os("HOME")?);
        Some(home.join(".cache/kvgauge"))
    })?;
    let model = cache.join("models/SmolLM2-135M-Instruct.Q4_1.gguf");
    model.is_file().then_some(model)
}

#[test]
fn a_real_server_is_started_measured_and_stopped() {
    let (Some(python), Some(model)) = (std::env::var_os(PYTHON), default_model()) else {
        eprintln!("skipped: {PYTHON} is not set, or the default model is not here");
        return;
    };
    let desk = Desk::new();
    let script = project().join("tools/serve_llama_cpp.py");
    let config = format!(
        r#"
        [suite]
        name = "smoke"
        bins = ["512"]
        tasks = ["needle", "lookalike"]
        [model]
        name = '{model}'
        [server]
        dialect = "llama_cpp"
        concurrency = 2
        launch = ['{python}', '{script}', "{{model_file}}", "--port", "{{port}}", "--cache-type", "{{kv_cache_dtype}}",
            "--context", "1024", "--parallel", "2"]
        [[arm]]
        kv_cache_dtype = "f16"
        role = "baseline"
        [[arm]]
        kv_cache_dtype = "q8_0"
        [[arm]]
        kv_cache_dtype = "q4_0"
        "#,
        model = model.display(),
        python = python.to_string_lossy(),
        script = script.display(),
    );
    desk.write("kvgauge.toml", &config);
    let said = desk.run(&["check", "--run-dir", "run"]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    for (arm, dtype) in [("f16", "float16"), ("f16.aa", "float16"), ("q8_0", "q8_0"), ("q4_0", "q4_0")] {
        let manifest = fs::read(desk.path(&format!("run/{arm}/manifest.json"))).unwrap();
        let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
        assert_eq!(manifest["resolved"]["kv_cache_dtype"]["value"], dtype, "{arm}");
        let checks = manifest["checks"].as_array().unwrap();
        let check = checks.iter().find(|check| check["fact"] == "kv_cache_dtype").unwrap();
        assert_eq!(check["status"], "confirmed", "{arm}: {check}");
    }
    assert!(desk.path("run/report.html").is_file());
    let log = fs::read_to_string(desk.path("run/q8_0/server.log")).unwrap();
    assert!(log.contains("q8_0"));

    // A second start finds everything on record and starts no server.
    let begun = fs::metadata(desk.path("run/f16/server.log")).unwrap().modified().unwrap();
    let again = desk.run(&["check", "--run-dir", "run"]);
    assert_eq!(again.code, Some(0), "{}", again.stderr);
    assert!(again.stderr.contains("every answer was on record"), "{}", again.stderr);
    assert_eq!(fs::metadata(desk.path("run/f16/server.log")).unwrap().modified().unwrap(), begun);
}
