//! Servers that are started here: played by shells, and a real one.

#![expect(clippy::print_stderr, reason = "a skipped test says so")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kvgauge::serving::evidence::{Asked, Witness, weigh};
use kvgauge::serving::http::Endpoint;
use kvgauge::serving::launch::{LaunchError, LaunchSettings, Launched};
use kvgauge::serving::metrics::Counters;
use kvgauge::serving::probe::probe;
use kvgauge::serving::startup_log;
use kvgauge::setup::{Arm, CheckStatus};

/// Names the interpreter that has `xllamacpp`.
const PYTHON: &str = "KVGAUGE_XLLAMACPP_PYTHON";

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn settings(launch: &[&str], more: &str) -> LaunchSettings {
    let launch = serde_json::to_string(launch).unwrap();
    toml::from_str(&format!("launch = {launch}\n{more}")).unwrap()
}

fn variables(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn is_alive(pid: u32) -> bool {
    // A process that nobody waited for yet is a zombie: it is in the list, and has ended.
    let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    status.rsplit(')').next().and_then(|rest| rest.trim().chars().next()).is_some_and(|state| state != 'Z')
}

#[test]
fn a_start_that_fails_shows_the_last_lines_and_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("arm/server.log");
    let script = "echo loading {kv_cache_dtype}; echo 'ValueError: no such dtype' >&2; exit 3";
    let settings = settings(&["sh", "-c", script, "{port}"], "start_timeout_s = 20");
    let error = run(Launched::start(&settings, &variables(&[("kv_cache_dtype", "fp9")]), &log)).unwrap_err();
    let LaunchError::Exited { status, said, .. } = &error else { panic!("{error}") };
    assert!(status.contains('3'), "{status}");
    assert_eq!(said.reason.as_deref(), Some("ValueError: no such dtype"));
    assert!(error.to_string().contains("  | loading fp9"), "{error}");
    assert!(fs::read_to_string(&log).unwrap().contains("loading fp9"));
}

#[test]
fn a_server_that_is_never_ready_is_killed_with_its_children() {
    let dir = tempfile::tempdir().unwrap();
    let pids = dir.path().join("pids");
    let script = format!("trap '' TERM; sleep 300 & echo $$ $! > {}; wait", pids.display());
    let settings = settings(&["sh", "-c", &script, "{port}"], "start_timeout_s = 1");
    let started = Instant::now();
    let error = run(Launched::start(&settings, &variables(&[]), &dir.path().join("log"))).unwrap_err();
    assert!(matches!(error, LaunchError::NotReady { limit_s: 1, .. }), "{error}");
    assert!(started.elapsed() < Duration::from_secs(20));
    let text = fs::read_to_string(pids).unwrap();
    let pids: Vec<u32> = text.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
    assert!(pids.len() == 2 && pids.iter().all(|pid| !is_alive(*pid)), "{pids:?}");
}

#[test]
fn what_cannot_be_started_is_a_matter_of_settings() {
    let dir = tempfile::tempdir().unwrap();
    let start = |settings: &LaunchSettings| {
        run(Launched::start(settings, &variables(&[]), &dir.path().join("log"))).unwrap_err()
    };
    let missing = start(&settings(&["no-such-program-here", "{port}"], ""));
    assert!(matches!(missing, LaunchError::Spawn { .. }) && missing.is_usage(), "{missing}");
    let placeholder = start(&settings(&["sh", "{port}", "{modell}"], ""));
    assert!(matches!(placeholder, LaunchError::UnknownPlaceholder { .. }), "{placeholder}");
}

#[test]
fn a_server_answers_and_ends_with_all_its_processes() {
    let Some(python) = find_program("python3") else {
        eprintln!("skipped: no python3");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let script = "import http.server, sys\nprint('serving', flush=True)\nhttp.server.test(http.server.SimpleHTTPRequestHandler, port=int(sys.argv[1]), bind='127.0.0.1')";
    let settings =
        settings(&[python.to_str().unwrap(), "-c", script, "{port}"], "health = \"/\"\nstart_timeout_s = 60");
    let (pid, address) = run(async {
        let mut launched = Launched::start(&settings, &variables(&[]), &log).await.unwrap();
        assert_eq!(launched.exit_status(), None);
        let running = (launched.pid(), launched.base_url().to_owned());
        assert!(is_alive(running.0));
        launched.stop().await;
        running
    });
    assert!(!is_alive(pid));
    assert!(fs::read_to_string(&log).unwrap().contains("serving"));
    assert!(
        run(Endpoint::new(&address, None).map(|endpoint| async move { Counters::read(&endpoint).await }).unwrap())
            .is_err()
    );

    // Dropped without a stop, as when the harness fails in the middle of an arm.
    let pid = run(async { Launched::start(&settings, &variables(&[]), &log).await.unwrap().pid() });
    let deadline = Instant::now() + Duration::from_secs(10);
    while is_alive(pid) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!is_alive(pid));
}

fn find_program(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Interpreter and model for a real server, or a note on what is missing.
fn real_server() -> Option<(String, PathBuf)> {
    let python = std::env::var(PYTHON).ok().filter(|python| !python.is_empty());
    let home = std::env::home_dir().unwrap_or_default();
    let model = home.join(".cache/kvgauge/models/SmolLM2-135M-Instruct.Q4_1.gguf");
    match (python, model.is_file()) {
        (Some(python), true) => Some((python, model)),
        (None, _) => {
            eprintln!("skipped: {PYTHON} names no Python with xllamacpp");
            None
        }
        (_, false) => {
            eprintln!("skipped: no model at {}", model.display());
            None
        }
    }
}

#[test]
fn a_real_llama_cpp_server_starts_answers_and_stops() {
    let Some((python, model)) = real_server() else { return };
    let dir = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/serve_llama_cpp.py");
    let script = script.to_str().unwrap();
    let launch = |more: &[&str]| {
        let mut arguments =
            vec![python.as_str(), script, "{model}", "--port", "{port}", "--cache-type", "{kv_cache_dtype}"];
        arguments.extend(["--context", "2048", "--threads", "1"]);
        arguments.extend(more);
        settings(&arguments, "start_timeout_s = 120")
    };
    let variables = variables(&[("model", model.to_str().unwrap()), ("kv_cache_dtype", "q8_0")]);
    let log = dir.path().join("server.log");
    let (found, counters) = run(async {
        let launched = Launched::start(&launch(&[]), &variables, &log).await.unwrap();
        let found = probe(launched.base_url(), None).await.unwrap();
        let counters = Counters::read(&Endpoint::new(launched.base_url(), None).unwrap()).await.unwrap();
        launched.stop().await;
        (found, counters)
    });
    assert_eq!(found.dialect.as_deref(), Some("llama_cpp"));
    assert_eq!(found.models[0].max_model_len, Some(2048));
    assert_eq!(counters.prompt_tokens, Some(0.0));
    let reading = startup_log::read_text(&fs::read_to_string(&log).unwrap()).unwrap();
    let endpoints = found.sources.iter().map(|(path, facts)| Witness::endpoint(path, facts.clone()));
    let witnesses: Vec<Witness> = endpoints.chain([Witness::log(reading)]).collect();
    for (dtype, expected) in [("q8_0", CheckStatus::Confirmed), ("q4_0", CheckStatus::Contradicted)] {
        let arm = Arm::candidate(dtype);
        let asked = Asked { arm: &arm, context_tokens: Some(2048), n_rank: Some(1) };
        let weighed = weigh(&asked, &witnesses, None);
        assert_eq!(weighed.checks[0].status, expected, "{:?}", weighed.checks[0]);
        assert_eq!(weighed.resolved.kv_cache_dtype.value.as_deref(), Some("q8_0"));
        // 30 layers, 3 heads of 64, keys and values, 34 bytes per 32 values.
        let bytes = weighed.resolved.kv_bytes_per_token.value.unwrap();
        assert!((bytes / 12_240.0 - 1.0).abs() < 0.01, "{bytes}");
    }

    let error = run(Launched::start(&launch(&["--flash-attn", "off"]), &variables, &log)).unwrap_err();
    let LaunchError::Exited { said, .. } = &error else { panic!("{error}") };
    let reason = said.reason.as_deref().unwrap_or_default();
    assert!(reason.contains("quantized V cache requires flash_attn"), "{said}");
}
