//! The command line from outside: help, messages with hints, exit codes, and `check --dry-run` from start to verdict.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up its desk has failed")]

#[cfg(unix)]
mod action;
mod baseline;
mod bench;
mod confirm;
mod detect;
mod dump;
mod engine_options;
mod github;
mod history;
mod inspect_log;
mod plan;
mod probe;
mod robustness;
mod run_folder;
mod selftest;
mod served_baseline;
mod servers;
mod shards;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// A place of its own for each test: no configuration, no cache and no variable of the machine gets in.
struct Desk {
    folder: TempDir,
}

/// What a command said.
struct Said {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Desk {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("kvgauge"));
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("KVGAUGE_")) {
            command.env_remove(name);
        }
        command.env_remove("GITHUB_ACTIONS").env_remove("GITHUB_STEP_SUMMARY");
        command.env("CI", "1").env("KVGAUGE_CACHE_DIR", self.path("cache")).env("KVGAUGE_OFFLINE", "1");
        command.env_remove("HF_HOME").env("XDG_CACHE_HOME", self.path("xdg")).env("HOME", self.path("home"));
        command.current_dir(self.folder.path()).args(args);
        command
    }

    fn run(&self, args: &[&str]) -> Said {
        Said::of(self.command(args).output().unwrap())
    }

    fn dry_run(&self, args: &[&str]) -> Said {
        self.run(&[&["check", "--dry-run", "--suite", "smoke", "--run-dir", "run"], args].concat())
    }
}

impl Said {
    fn of(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    /// Exit code, and one `error:` line with each of `parts` in it or in a `hint:` line.
    fn expect_error(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, Some(code), "{}\n{}", self.stdout, self.stderr);
        let told: String =
            self.stderr.lines().filter(|it| it.starts_with("error: ") || it.starts_with("hint: ")).collect();
        assert!(told.starts_with("error: "), "{}", self.stderr);
        for part in parts {
            assert!(told.contains(part), "no `{part}` in:\n{}", self.stderr);
        }
    }
}

#[test]
fn help_with_the_exit_codes_is_stable() {
    let desk = Desk::new();
    let mut text = String::new();
    for args in [&["--help"][..], &["check", "-h"], &["gate", "-h"], &["logprobs", "-h"]] {
        let said = desk.run(args);
        assert_eq!(said.code, Some(0));
        text += &format!("$ kvgauge {}\n{}\n", args.join(" "), said.stdout);
    }
    insta::assert_snapshot!(text);
}

#[test]
fn every_wrong_name_is_named_with_what_was_meant() {
    let desk = Desk::new();
    desk.write("bad_key.toml", "schema_version = 1\nname = \"x\"\ndescripton = \"y\"\nbins = []\ntasks = []\n");
    desk.write("config.toml", "[modle]\nname = \"x\"\n");
    let cases: &[(&[&str], i32, &[&str])] = &[
        (&["check", "--dry-run", "--kv-cache-dtype", "fp8_e4m4"], 2, &["`fp8_e4m4`", "did you mean `fp8_e4m3`?"]),
        (&["check", "--dry-run", "--tasks", "needel"], 4, &["`needel`", "did you mean `needle`?"]),
        (&["check", "--dry-run", "--bins", "4K"], 4, &["4K", "known: 512"]),
        (&["check", "--dry-run", "--suite", "quikc"], 2, &["`quikc`", "did you mean `quick`?"]),
        (&["check", "--dry-run", "--suite", "bad_key.toml"], 2, &["descripton", "did you mean `description`?"]),
        (&["check", "--dry-run", "--suite", "absent.toml"], 2, &["absent.toml"]),
        (&["check", "--dry-run", "--config", "config.toml"], 2, &["`modle`", "did you mean `model`?"]),
        (&["check", "--dry-run", "--config", "absent.toml"], 2, &["absent.toml"]),
        (&["check", "--dry-run", "--kv-cache-dtype", "bfloat16"], 4, &["no candidate"]),
        (&["check", "--dry-run", "--damage", "lop@2K"], 2, &["`lop@2K`", "loop"]),
        (&["check", "--dry-run", "-o", "report.pdf"], 2, &["report.pdf", ".html"]),
        (&["check", "--dry-run", "--damage", "loop@4K"], 4, &["`loop@4K`", "no bin 4K", "did you mean", "K`?"]),
        (&["run", "--dry-run", "--damage", "swap,loop@64=0.5"], 4, &["no bin 64"]),
        (&["check", "--kernel", "x86_64-bf16-amxx"], 2, &["`x86_64-bf16-amxx`", "known: auto, ", "portable"]),
        (&["check", "--dry-run", "-o", "some/run.json"], 2, &["some/run.json", "run records"]),
        (&["check", "--dry-run", "-o", "Manifest.json"], 2, &["Manifest.json", "run records"]),
        (&["check", "--model", "smollm-135m"], 2, &["`smollm-135m`", "did you mean `smollm2-135m`?"]),
        (&["check", "--model", "./absent.gguf"], 2, &["absent.gguf"]),
        (&["suite", "check", "bad_key.toml"], 2, &["descripton"]),
        (&["suite", "show", "--dry-run", "--suite", "smoke", "--item", "zz"], 4, &["`zz`"]),
        (&["compare", "absent"], 2, &["absent"]),
        (&["gate", "absent", "absent2"], 3, &["baseline", "absent"]),
    ];
    for (args, code, parts) in cases {
        let said = desk.run(args);
        println!("{args:?}: {}", said.stderr.trim_end());
        said.expect_error(*code, parts);
    }
    assert_eq!(fs::read_dir(desk.path("reports")).map_or(0, Iterator::count), 0, "a refused start left a folder");
    for args in [
        &["check", "--bins", "eight"][..],
        &["check", "--damage", "loop"],
        &["check", "--threads", "0"],
        &["list", "things"],
        &["chek"],
        &[],
    ] {
        assert_eq!(desk.run(args).code, Some(2), "{args:?}");
    }
}

#[test]
fn without_the_model_and_the_network_the_place_for_the_file_is_named() {
    let desk = Desk::new();
    let said = desk.run(&["check", "--offline"]);
    said.expect_error(6, &["smollm2-135m", "SmolLM2-135M-Instruct.Q4_1.gguf"]);
}

#[test]
fn a_model_file_cut_short_is_refused_in_one_line() {
    let desk = Desk::new();
    desk.write("short.gguf", "GGUF\u{3}\0\0\0");
    desk.write("text.gguf", "this is no model at all");
    for file in ["short.gguf", "text.gguf"] {
        desk.run(&["check", "--model", file]).expect_error(2, &[]);
    }
}

#[test]
fn log_probabilities_need_ids_of_the_vocabulary_only() {
    let desk = Desk::new();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny_models/llama");
    desk.write("ids.json", "[1, 2, 3, 4]");
    let said = desk.run(&["logprobs", "--model", model.to_str().unwrap(), "--ids", "ids.json", "--json"]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let document: serde_json::Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!(document["next_token_logprob"].as_array().unwrap().len(), 3);
    assert_eq!(document["top5"][3].as_array().unwrap().len(), 5);
    desk.write("ids.json", "[1, 2, 99999]");
    let said = desk.run(&["logprobs", "--model", model.to_str().unwrap(), "--ids", "ids.json"]);
    said.expect_error(2, &["99999", "position 2"]);
}

#[test]
fn a_clean_dry_run_ends_in_a_table_and_all_files() {
    let desk = Desk::new();
    let said = desk.dry_run(&[]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    for part in ["bfloat16 (baseline)", "int8_per_token_head", "512", "2K", "report: run/report.html"] {
        assert!(said.stdout.contains(part), "no `{part}` in:\n{}", said.stdout);
    }
    let files = [
        "report.html",
        "summary.md",
        "comparison.json",
        "junit.xml",
        "badge.json",
        "samples.parquet",
        "timings.json",
        "kv_record.json",
        "fp8_e4m3/kv_record.json",
        "run.json",
        "bfloat16/manifest.json",
        "bfloat16.aa/samples.jsonl",
    ];
    for file in files {
        assert!(fs::metadata(desk.path("run").join(file)).is_ok_and(|it| it.len() > 100), "{file}");
    }
}

/// Every file of a folder with its bytes.
fn contents(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(contents(&path));
        } else {
            found.push((path.clone(), fs::read(&path).unwrap()));
        }
    }
    found.sort();
    found
}

#[test]
fn a_second_start_asks_nothing_and_leaves_identical_files() {
    let desk = Desk::new();
    let first = desk.dry_run(&[]);
    let before = contents(&desk.path("run"));
    let second = desk.dry_run(&[]);
    assert_eq!((second.code, &second.stdout), (first.code, &first.stdout));
    assert!(second.stderr.contains("no prompt was run"), "{}", second.stderr);
    let after = contents(&desk.path("run"));
    for ((path, old), (_, new)) in before.iter().zip(&after) {
        assert!(old == new, "{} changed", path.display());
    }
    assert_eq!(before.len(), after.len());
    // And the right half alone says the same from the records.
    let report = desk.run(&["report", "run"]);
    assert_eq!(report.code, Some(0), "{}", report.stderr);
    assert!(contents(&desk.path("run")) == before, "`report` changed a file");
    let gate = desk.run(&["gate", "run", "--json"]);
    assert_eq!(gate.stdout, fs::read_to_string(desk.path("run/comparison.json")).unwrap());
}

#[test]
fn a_planted_fault_exits_100_and_names_bin_and_symptom() {
    for (damage, bin, words) in
        [("loop@2K", "2K", "repetition"), ("early_stop@512", "512", "truncation"), ("swap@2K", "2K", "2K")]
    {
        let desk = Desk::new();
        let args = ["--samples", "24", "--kv-cache-dtype", "fp8_e4m3", "--damage", damage];
        let said = desk.dry_run(&args);
        assert_eq!(said.code, Some(100), "{damage}: {}\n{}", said.stdout, said.stderr);
        let verdict = said.stdout.lines().rfind(|line| line.starts_with("REGRESSED")).unwrap();
        assert!(verdict.contains(bin), "{damage}: {verdict}");
        assert!(said.stdout.contains(words), "{damage}: {}", said.stdout);
    }
}

#[test]
fn without_a_fault_nothing_regresses_and_doubt_fails_only_where_asked() {
    let desk = Desk::new();
    assert_eq!(desk.dry_run(&["--samples", "24"]).code, Some(0));
    // Two items per cell are too few to pass.
    let desk = Desk::new();
    assert_eq!(desk.dry_run(&["--on-inconclusive", "fail"]).code, Some(5));
    desk.write("kvgauge.toml", "[gate]\non_inconclusive = \"fail\"\n");
    assert_eq!(desk.run(&["gate", "run"]).code, Some(5));
    assert_eq!(desk.run(&["gate", "run", "--on-inconclusive", "pass"]).code, Some(0), "the option beats the file");
    let by_environment = desk.command(&["gate", "run"]).env("KVGAUGE_ON_INCONCLUSIVE", "warn").output().unwrap();
    assert_eq!(by_environment.status.code(), Some(0), "the environment beats the file");
}

#[test]
fn json_is_one_document_on_standard_output() {
    let desk = Desk::new();
    let said = desk.dry_run(&["--json"]);
    let document: serde_json::Value = serde_json::from_str(&said.stdout).unwrap();
    assert!(document.is_object());
    for args in [
        &["list", "tasks", "--json"][..],
        &["list", "kernels", "--json"],
        &["suite", "list", "--json"],
        &["suite", "show", "--suite", "smoke", "--dry-run", "--json"],
        &["compare", "run", "--json"],
        &["run", "--dry-run", "--suite", "smoke", "--run-dir", "run", "--json"],
    ] {
        let said = desk.run(args);
        let parsed = serde_json::from_str::<serde_json::Value>(&said.stdout);
        assert!(parsed.is_ok() && said.code == Some(0), "{args:?}: {}\n{}", said.stdout, said.stderr);
    }
}

#[test]
fn a_record_of_another_plan_is_left_alone() {
    let desk = Desk::new();
    desk.dry_run(&[]);
    let before = contents(&desk.path("run"));
    desk.dry_run(&["--seed", "99"]).expect_error(2, &["another plan", "seed"]);
    desk.dry_run(&["--damage", "loop"]).expect_error(2, &["another plan", "damage"]);
    assert!(contents(&desk.path("run")) == before, "a refused start changed a file");
}

#[test]
fn a_second_process_on_the_same_run_is_refused() {
    let desk = Desk::new();
    desk.dry_run(&[]);
    let lock = fs::File::options().write(true).open(desk.path("run/bfloat16/run.lock")).unwrap();
    lock.try_lock().unwrap();
    desk.dry_run(&[]).expect_error(2, &["another process", "--run-dir"]);
    drop(lock);
    assert_eq!(desk.dry_run(&[]).code, Some(0));
}

#[test]
fn a_run_folder_that_cannot_be_written_is_named() {
    let desk = Desk::new();
    // A file in the way stops even a superuser, whom permissions do not.
    desk.write("run", "in the way");
    desk.dry_run(&[]).expect_error(2, &["run"]);
}

#[test]
fn a_baseline_that_is_missing_or_of_another_suite_exits_with_3() {
    let desk = Desk::new();
    desk.dry_run(&[]);
    let other = ["check", "--dry-run", "--suite", "smoke", "--seed", "99", "--run-dir", "other"];
    assert_eq!(desk.run(&other).code, Some(0));
    desk.run(&["gate", "other/bfloat16", "run/fp8_e4m3"]).expect_error(3, &["seed"]);
    fs::remove_dir_all(desk.path("run/bfloat16")).unwrap();
    desk.run(&["gate", "run"]).expect_error(3, &["baseline"]);
}

#[test]
fn a_gate_that_names_what_does_not_exist_exits_with_4() {
    let desk = Desk::new();
    desk.write("kvgauge.toml", "[gate.cells.\"retreival/512\"]\nmax_drop = 3\n");
    desk.dry_run(&[]).expect_error(4, &["retreival", "did you mean `retrieval`?"]);
    desk.write("kvgauge.toml", "[gate]\nmargn = 3\n");
    desk.dry_run(&[]).expect_error(2, &["margn", "did you mean `margin`?"]);
}

#[cfg(unix)]
#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    use std::process::Stdio;
    let desk = Desk::new();
    let mut child = desk.command(&["man"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0));
}

/// Derived files of a run folder: what must not depend on how often the run was killed.
fn derived(run: &Path) -> Vec<(String, Vec<u8>)> {
    let names =
        ["comparison.json", "report.html", "summary.md", "junit.xml", "badge.json", "timings.json", "kv_record.json"];
    names.map(|name| (name.to_string(), fs::read(run.join(name)).unwrap())).to_vec()
}

#[cfg(unix)]
#[test]
fn killed_and_interrupted_again_and_again_the_result_is_the_same() {
    use std::process::Stdio;
    use std::time::{Duration, Instant};
    const ARGS: [&str; 8] =
        ["check", "--dry-run", "--suite", "smoke", "--samples", "60", "--kv-cache-dtype", "fp8_e4m3"];
    let straight = Desk::new();
    let started = Instant::now();
    let whole = straight.run(&[&ARGS[..], &["--run-dir", "run"]].concat());
    assert_eq!(whole.code, Some(0), "{}", whole.stderr);
    let duration = started.elapsed();

    let desk = Desk::new();
    let start = || {
        let mut command = desk.command(&[&ARGS[..], &["--run-dir", "run"]].concat());
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    for twentieth in 1..=12 {
        let mut child = start();
        std::thread::sleep(duration * twentieth / 40);
        child.kill().unwrap();
        child.wait().unwrap();
    }
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        let mut child = start();
        std::thread::sleep(duration / 20);
        let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        assert!(sent.success());
        let limit = Instant::now() + Duration::from_secs(60);
        let ended = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status.code();
            }
            assert!(Instant::now() < limit, "{signal} was not obeyed");
            std::thread::sleep(Duration::from_millis(10));
        };
        // Finished before the signal came, ended by it before the handler stood, or a clean stop.
        assert!(matches!(ended, Some(0) | None) || ended == Some(code), "{signal}: {ended:?}");
    }
    let said = desk.run(&[&ARGS[..], &["--run-dir", "run"]].concat());
    assert_eq!((said.code, said.stdout), (whole.code, whole.stdout));
    for ((name, straight), (_, resumed)) in derived(&straight.path("run")).iter().zip(derived(&desk.path("run"))) {
        assert!(*straight == resumed, "{name} depends on interruptions");
    }
}

#[cfg(unix)]
#[test]
fn an_interrupt_flushes_marks_and_exits_with_130() {
    use std::process::Stdio;
    let desk = Desk::new();
    let args = ["run", "--dry-run", "--suite", "smoke", "--samples", "3000", "--run-dir", "run"];
    let child = desk.command(&args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let journal = desk.path("run/bfloat16/samples.jsonl");
    while !fs::metadata(&journal).is_ok_and(|it| it.len() > 1000) {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let said = Said::of(child.wait_with_output().unwrap());
    said.expect_error(130, &["interrupted after", "bfloat16"]);
    let manifest = fs::read_to_string(desk.path("run/bfloat16/manifest.json")).unwrap();
    assert!(manifest.contains("\"interrupted\""), "{manifest}");
    assert!(fs::read_to_string(&journal).unwrap().ends_with('\n'));
}
