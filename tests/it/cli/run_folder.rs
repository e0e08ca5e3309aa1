//! What a run folder promises: no planned arm goes missing in silence, and the gate it was measured for is the gate it is
//! judged by.

use std::fs;

use serde_json::Value;

use super::{Desk, Said, contents};

/// A suite of two bins with room for one exception; named like a built-in one on purpose.
fn strict_suite(margin: u32) -> String {
    format!(
        "schema_version = 1\nname = \"smoke\"\ndescription = \"x\"\n\
         bins = [{{ context = \"512\", samples = 60 }}]\n\
         tasks = [{{ kind = \"needle\" }}]\n[gate]\nmargin = {margin}\n"
    )
}

fn margin_of(desk: &Desk) -> f64 {
    let run: Value = serde_json::from_str(&fs::read_to_string(desk.path("run/run.json")).unwrap()).unwrap();
    run["gate"]["margin"].as_f64().unwrap()
}

fn check(desk: &Desk, suite: &str, more: &[&str]) -> Said {
    desk.run(&[&["check", "--dry-run", "--suite", suite, "--run-dir", "run"], more].concat())
}

fn verdict(said: &Said) -> &str {
    said.stdout.lines().find(|line| line.split(':').next().is_some_and(|word| word == word.to_uppercase())).unwrap()
}

#[test]
fn a_suite_file_with_the_name_of_a_built_in_one_keeps_its_own_gate() {
    let desk = Desk::new();
    // 60 pairs without a flip pass a margin of 5 points and not one of 1 point.
    desk.write("strict.toml", &strict_suite(1));
    desk.write("loose.toml", &strict_suite(5));
    let one = ["--kv-cache-dtype", "fp8_e4m3", "--on-inconclusive", "fail"];
    let strict = check(&desk, "strict.toml", &one);
    assert_eq!(strict.code, Some(5), "{}\n{}", strict.stdout, strict.stderr);
    let gate = |args: &[&str]| desk.run(&[&["gate", "--on-inconclusive", "fail"], args].concat());
    for args in [&["run"][..], &["run/bfloat16", "run/fp8_e4m3"]] {
        let again = gate(args);
        assert_eq!((again.code, verdict(&again)), (Some(5), verdict(&strict)), "{}", again.stderr);
    }
    let loose = gate(&["run", "--suite", "loose.toml"]);
    assert_eq!(loose.code, Some(0), "{}\n{}", loose.stdout, loose.stderr);
    assert!(loose.stderr.contains("judged by the gate of suite `loose.toml`"), "{}", loose.stderr);
    // Without a plan the name alone proves nothing.
    fs::remove_file(desk.path("run/run.json")).unwrap();
    for args in [&["run"][..], &["run/bfloat16", "run/fp8_e4m3"]] {
        gate(args).expect_error(2, &["not of the built-in suites", "`smoke`", "--suite FILE"]);
    }
    assert_eq!(gate(&["run", "--suite", "strict.toml"]).code, Some(5));
}

#[test]
fn records_of_a_built_in_suite_need_no_plan_however_they_were_selected() {
    for more in [&[][..], &["--samples", "24"], &["--bins", "512", "--seed", "7"], &["--tasks", "needle"]] {
        let desk = Desk::new();
        let checked = check(&desk, "smoke", more);
        let with_plan = desk.run(&["gate", "run", "--json"]);
        fs::remove_file(desk.path("run/run.json")).unwrap();
        let without = desk.run(&["gate", "run", "--json"]);
        assert_eq!((without.code, without.stdout), (checked.code, with_plan.stdout), "{more:?}: {}", without.stderr);
    }
}

#[test]
fn a_configuration_judges_recorded_runs_only_when_it_is_named() {
    let desk = Desk::new();
    desk.write("strict.toml", &strict_suite(1));
    check(&desk, "strict.toml", &["--kv-cache-dtype", "fp8_e4m3"]);
    desk.write("kvgauge.toml", "[gate]\nmargin = 20\n");
    let gate = |args: &[&str]| desk.run(&[&["gate", "run", "--on-inconclusive", "fail"], args].concat());
    let stored = gate(&[]);
    assert_eq!(stored.code, Some(5), "{}", stored.stderr);
    assert!(stored.stderr.contains("judged by the gate stored with the run"), "{}", stored.stderr);
    let named = gate(&["--config", "kvgauge.toml"]);
    assert_eq!(named.code, Some(0), "{}\n{}", named.stdout, named.stderr);
    assert!(named.stderr.contains("judged by the gate of the configuration"), "{}", named.stderr);
    desk.write("wrong.toml", "[gate.cells.\"retrieval/2K\"]\nmax_drop = 3\n");
    gate(&["--config", "wrong.toml"]).expect_error(4, &["2K"]);
    // `run` adds an arm and leaves the gate; `check` judges and sets it.
    let add = ["run", "--dry-run", "--suite", "strict.toml", "--run-dir", "run", "--kv-cache-dtype", "fp8_e5m2"];
    let added = desk.run(&add);
    assert!(added.code == Some(0) && added.stderr.contains("keeps it"), "{}", added.stderr);
    assert_eq!(margin_of(&desk), 0.01);
    let checked = check(&desk, "strict.toml", &["--kv-cache-dtype", "fp8_e4m3"]);
    assert!(checked.stderr.contains("from now on") && checked.stderr.contains("fp8_e5m2"), "{}", checked.stderr);
    assert_eq!(margin_of(&desk), 0.2);
}

#[test]
fn records_of_runs_with_different_gates_are_not_judged_by_one_of_them() {
    let desk = Desk::new();
    for (margin, run_dir) in [(1, "one"), (5, "five")] {
        desk.write("suite.toml", &strict_suite(margin));
        let args =
            ["check", "--dry-run", "--suite", "suite.toml", "--run-dir", run_dir, "--kv-cache-dtype", "fp8_e4m3"];
        assert_eq!(desk.run(&args).code, Some(0));
    }
    desk.run(&["gate", "five/bfloat16", "one/fp8_e4m3"]).expect_error(2, &["different gates", "--suite FILE"]);
    assert_eq!(desk.run(&["gate", "five/bfloat16", "one/fp8_e4m3", "--suite", "suite.toml"]).code, Some(0));
}

#[test]
fn a_planned_arm_that_is_missing_or_broken_never_passes() {
    type Harm = fn(&std::path::Path);
    let gone: Harm = |arm| fs::remove_dir_all(arm).unwrap();
    let headless: Harm = |arm| fs::remove_file(arm.join("manifest.json")).unwrap();
    let truncated: Harm = |arm| fs::write(arm.join("manifest.json"), "{\"format\": {").unwrap();
    let emptied: Harm = |arm| fs::write(arm.join("samples.jsonl"), "").unwrap();
    for (arm, code) in [("bfloat16", 3), ("bfloat16.aa", 6), ("fp8_e5m2", 6)] {
        for (harm, name) in [(gone, "gone"), (headless, "headless"), (truncated, "truncated"), (emptied, "emptied")] {
            let desk = Desk::new();
            assert_eq!(desk.dry_run(&["--samples", "24"]).code, Some(0));
            harm(&desk.path("run").join(arm));
            for command in ["gate", "report", "compare"] {
                println!("{arm} {name} {command}");
                desk.run(&[command, "run"]).expect_error(code, &[arm]);
            }
            // Without the plan, what is left of a record still shows that something is missing.
            fs::remove_file(desk.path("run/run.json")).unwrap();
            if name == "headless" || name == "truncated" {
                desk.run(&["gate", "run"]).expect_error(code, &[arm]);
            }
        }
    }
    // What is left out is left out by name.
    let desk = Desk::new();
    desk.dry_run(&["--samples", "24"]);
    fs::remove_dir_all(desk.path("run/fp8_e5m2")).unwrap();
    assert_eq!(desk.run(&["gate", "run/bfloat16", "run/fp8_e4m3"]).code, Some(0));
    // And the same check measures it again.
    assert_eq!(desk.dry_run(&["--samples", "24"]).code, Some(0));
    assert_eq!(desk.run(&["gate", "run"]).code, Some(0));
}

#[test]
fn an_unfinished_or_strange_arm_never_passes() {
    let desk = Desk::new();
    desk.dry_run(&["--samples", "24"]);
    // As an interrupt leaves it: ten answers on record, and a status that says so.
    let unfinish = |arm: &str| {
        let paths = ["manifest.json", "samples.jsonl"].map(|file| desk.path("run").join(arm).join(file));
        let whole = paths.clone().map(|path| fs::read_to_string(path).unwrap());
        fs::write(&paths[0], whole[0].replace("\"complete\"", "\"interrupted\"")).unwrap();
        fs::write(&paths[1], whole[1].split_inclusive('\n').take(10).collect::<String>()).unwrap();
        move || paths.iter().zip(&whole).for_each(|(path, text)| fs::write(path, text).unwrap())
    };
    let finish = unfinish("fp8_e5m2");
    let said = desk.run(&["gate", "run"]);
    assert_eq!(said.code, Some(6), "{}", said.stdout);
    assert!(said.stdout.contains("`fp8_e5m2` is not complete") && said.stderr.contains("goes on with it"));
    finish();
    let finish = unfinish("bfloat16.aa");
    desk.run(&["gate", "run"]).expect_error(6, &["bfloat16.aa", "not finished"]);
    finish();
    assert_eq!(desk.run(&["gate", "run"]).code, Some(0));
    // A record in another's place, and one that nobody planned.
    fs::rename(desk.path("run/fp8_e5m2"), desk.path("run/float16")).unwrap();
    desk.run(&["gate", "run"]).expect_error(6, &["fp8_e5m2"]);
    fs::rename(desk.path("run/float16"), desk.path("run/fp8_e5m2")).unwrap();
    fs::create_dir(desk.path("run/copy")).unwrap();
    for file in ["manifest.json", "samples.jsonl"] {
        fs::copy(desk.path("run/fp8_e4m3").join(file), desk.path("run/copy").join(file)).unwrap();
    }
    desk.run(&["gate", "run"]).expect_error(2, &["`copy`", "run.json"]);
    fs::copy(desk.path("run/copy/manifest.json"), desk.path("run/fp8_e5m2/manifest.json")).unwrap();
    desk.run(&["gate", "run"]).expect_error(6, &["fp8_e5m2", "another plan"]);
}

#[test]
fn arms_of_several_starts_are_one_run_and_a_refused_start_plans_nothing() {
    let desk = Desk::new();
    let start = |dtypes: &str, more: &[&str]| {
        let args = ["run", "--dry-run", "--suite", "smoke", "--run-dir", "run", "--kv-cache-dtype", dtypes];
        desk.run(&[&args[..], more].concat())
    };
    assert_eq!(start("bfloat16", &[]).code, Some(0));
    desk.run(&["gate", "run"]).expect_error(4, &["no candidate"]);
    assert_eq!(start("fp8_e4m3", &[]).code, Some(0));
    assert_eq!(desk.run(&["gate", "run"]).code, Some(0));
    let before = contents(&desk.path("run"));
    start("float16", &["--seed", "9"]).expect_error(2, &["another plan", "suite_fingerprint"]);
    start("float16,bfloat16", &["--damage", "loop"]).expect_error(2, &["another plan", "damage"]);
    start("float16", &["--bins", "512"]).expect_error(2, &["another plan"]);
    assert!(contents(&desk.path("run")) == before, "a refused start changed a file");
}

#[test]
fn a_variable_set_to_nothing_is_not_set() {
    let desk = Desk::new();
    let mut command = desk.command(&["check", "--dry-run", "--suite", "smoke", "--run-dir", "run"]);
    for name in ["BINS", "TASKS", "SAMPLES", "SEED", "KERNEL", "MODEL", "THREADS", "OFFLINE", "CONFIG", "BASELINE"] {
        command.env(format!("KVGAUGE_{name}"), "");
    }
    command.env("KVGAUGE_ON_INCONCLUSIVE", "").env("KVGAUGE_ROPE_SCALING", "");
    let said = Said::of(command.output().unwrap());
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert_eq!(said.stdout, desk.dry_run(&[]).stdout);
}

#[cfg(target_os = "linux")]
#[test]
fn a_verdict_that_cannot_be_written_keeps_its_exit_code() {
    let desk = Desk::new();
    let one = ["--samples", "24", "--kv-cache-dtype", "fp8_e4m3"];
    assert_eq!(desk.dry_run(&[&one[..], &["--damage", "loop@2K"]].concat()).code, Some(100));
    let to_full = |args: &[&str]| {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        Said::of(desk.command(args).stdout(full).output().unwrap())
    };
    to_full(&["gate", "run"]).expect_error(100, &["standard output"]);
    to_full(&["gate", "run", "-o", "absent.md"]).expect_error(100, &["standard output"]);
    assert!(desk.path("absent.md").is_file(), "what can be written is written");
    desk.write("file", "in the way");
    desk.run(&["gate", "run", "-o", "file/report.md"]).expect_error(100, &["file/report.md"]);
    // A pass that nobody can read is none.
    fs::remove_dir_all(desk.path("run")).unwrap();
    assert_eq!(desk.dry_run(&one).code, Some(0));
    to_full(&["gate", "run"]).expect_error(1, &["standard output"]);
    desk.run(&["gate", "run", "-o", "file/report.md"]).expect_error(2, &["file/report.md"]);
}

#[cfg(unix)]
#[test]
fn a_signal_before_the_first_question_ends_with_its_code() {
    use std::io::{BufRead as _, BufReader};
    use std::process::{Command, Stdio};
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        let desk = Desk::new();
        // Another process seems to fetch the model, so this one waits as if it took long to load.
        fs::create_dir_all(desk.path("cache/models")).unwrap();
        let lock = fs::File::create(desk.path("cache/models/.smollm2-135m.lock")).unwrap();
        lock.lock().unwrap();
        let mut command = desk.command(&["check"]);
        command.env_remove("KVGAUGE_OFFLINE").env_remove("HF_HUB_OFFLINE").stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("waiting for another process"), "{line}");
        assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
        assert_eq!(child.wait().unwrap().code(), Some(code), "{signal}");
    }
}
