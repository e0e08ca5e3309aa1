//! `confirm`: what would fail is asked again on fresh seeds, is on record, resumes, and is judged again without a model.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::{Desk, Said, contents};

/// A check of which the bin of 2K tokens fails, by wrong answers and by loops.
fn failing(desk: &Desk, more: &[&str]) -> Said {
    let damage = ["--samples", "24", "--damage", "wrong@2K=0.4,loop@2K=0.4,wrong@512=0", "--kv-cache-dtype"];
    desk.dry_run(&[&damage[..], &["fp8_e4m3,fp8_e5m2"], more].concat())
}

fn comparison(desk: &Desk) -> Value {
    serde_json::from_str(&fs::read_to_string(desk.path("run/comparison.json")).unwrap()).unwrap()
}

fn unfinish(arm: &Path) {
    let [manifest, samples] = ["manifest.json", "samples.jsonl"].map(|file| arm.join(file));
    let text = fs::read_to_string(&manifest).unwrap();
    fs::write(&manifest, text.replace("\"complete\"", "\"interrupted\"")).unwrap();
    let journal = fs::read_to_string(&samples).unwrap();
    // A kill leaves a torn line.
    let mut kept: String = journal.split_inclusive('\n').take(10).collect();
    kept += &journal.lines().nth(10).unwrap()[..40];
    fs::write(&samples, kept).unwrap();
}

#[test]
fn what_fails_is_asked_again_in_its_bin_and_both_are_told() {
    let desk = Desk::new();
    let said = failing(&desk, &["--confirm"]);
    assert_eq!(said.code, Some(100), "{}\n{}", said.stdout, said.stderr);
    assert!(said.stderr.contains("2K would fail the run (fp8_e4m3, fp8_e5m2): asked again on fresh seeds"));
    assert!(said.stdout.contains("confirmed on fresh seeds"), "{}", said.stdout);
    assert!(desk.path("run/confirm/2K/fp8_e5m2/manifest.json").is_file());
    assert!(!desk.path("run/confirm/512").exists() && !desk.path("run/confirm/2K/bfloat16.aa").exists());
    let document = comparison(&desk);
    let arm = &document["verdict"]["arms"][0];
    let of_bin = |list: &Value, bin: &dyn Fn(&Value) -> Value, wanted: u64| -> Vec<Value> {
        list.as_array().unwrap().iter().filter(|it| bin(it) == wanted).cloned().collect()
    };
    for cell in of_bin(&arm["cells"], &|cell| cell["bin"].clone(), 2048) {
        assert_eq!(cell["ruling"] == "REGRESSED", cell["confirmation"]["rejects"] == true, "{cell}");
    }
    let symptoms = of_bin(&arm["symptoms"], &|symptom| symptom["symptom"]["bin"].clone(), 2048);
    assert!(symptoms.iter().any(|symptom| symptom["confirmation"]["rejects"] == true), "{symptoms:?}");
    let page = fs::read_to_string(desk.path("run/report.html")).unwrap();
    assert!(page.contains("Asked again on fresh seeds") && page.contains("✗ CONFIRMED"));
    // The records say the same again: no prompt, the same bytes, and the gate alone.
    let before = contents(&desk.path("run"));
    let again = failing(&desk, &["--confirm"]);
    assert_eq!((again.code, &again.stdout), (said.code, &said.stdout));
    assert!(again.stderr.contains("no prompt was run"), "{}", again.stderr);
    assert!(contents(&desk.path("run")) == before, "a second start changed a file");
    for records in [&["run"][..], &["run/bfloat16", "run/fp8_e4m3", "run/fp8_e5m2"]] {
        let gate = desk.run(&[&["gate"], records].concat());
        assert_eq!(gate.code, Some(100), "{}", gate.stderr);
        assert!(gate.stdout.contains("confirmed on fresh seeds"), "{}", gate.stdout);
    }
    let report = desk.run(&["report", "run"]);
    assert_eq!(report.code, Some(0), "{}", report.stderr);
    assert!(contents(&desk.path("run")) == before, "`report` changed a file");
}

#[test]
fn a_confirmation_cut_short_goes_on_to_the_same_bytes() {
    let (whole, cut) = (Desk::new(), Desk::new());
    assert_eq!(failing(&whole, &["--confirm"]).code, Some(100));
    assert_eq!(failing(&cut, &["--confirm"]).code, Some(100));
    let confirm = cut.path("run/confirm/2K");
    // Killed within the first arm: the others were never started, and nothing was judged.
    unfinish(&confirm.join("bfloat16"));
    for arm in ["fp8_e4m3", "fp8_e5m2"] {
        fs::remove_dir_all(confirm.join(arm)).unwrap();
    }
    cut.run(&["gate", "run"]).expect_error(6, &["fp8_e4m3"]);
    assert_eq!(failing(&cut, &["--confirm"]).code, Some(100));
    let files = |desk: &Desk| -> Vec<(std::path::PathBuf, Vec<u8>)> {
        let run = desk.path("run");
        let told = contents(&run).into_iter().map(|(path, bytes)| (path.strip_prefix(&run).unwrap().to_owned(), bytes));
        // The log of events tells of the interruption.
        told.filter(|(path, _)| !path.ends_with("events.jsonl")).collect()
    };
    let (ours, theirs) = (files(&whole), files(&cut));
    assert_eq!(ours.len(), theirs.len());
    for ((path, ours), (_, theirs)) in ours.iter().zip(&theirs) {
        assert!(ours == theirs, "{} differs", path.display());
    }
}

#[test]
fn a_gate_that_confirms_says_so_where_it_cannot() {
    let desk = Desk::new();
    desk.write("kvgauge.toml", "[gate]\nconfirm = true\n");
    assert_eq!(failing(&desk, &[]).code, Some(100));
    assert!(desk.path("run/confirm/2K/run.json").is_file(), "the configuration asks for it, too");
    fs::rename(desk.path("run/confirm"), desk.path("elsewhere")).unwrap();
    desk.run(&["gate", "run"]).expect_error(2, &["not asked again at 2K", "kvgauge check"]);
    // Records of the same seed are no second sample.
    for arm in ["bfloat16", "fp8_e4m3", "fp8_e5m2"] {
        fs::create_dir_all(desk.path("run/confirm/2K").join(arm)).unwrap();
        for file in ["manifest.json", "samples.jsonl"] {
            let from = desk.path("run").join(arm).join(file);
            fs::copy(from, desk.path("run/confirm/2K").join(arm).join(file)).unwrap();
        }
    }
    fs::copy(desk.path("run/run.json"), desk.path("run/confirm/2K/run.json")).unwrap();
    desk.run(&["gate", "run"]).expect_error(2, &["seed of the run", "confirm"]);
    // A clean run needs no second one.
    fs::remove_dir_all(desk.path("run")).unwrap();
    let clean = desk.dry_run(&["--samples", "24"]);
    assert_eq!(clean.code, Some(0), "{}", clean.stderr);
    assert!(!desk.path("run/confirm").exists());
    assert_eq!(desk.run(&["gate", "run"]).code, Some(0));
}

#[test]
fn cells_of_the_policy_have_to_exist_and_say_what_they_do() {
    let desk = Desk::new();
    let check = |gate: &str| {
        desk.write("kvgauge.toml", gate);
        desk.dry_run(&["--samples", "24", "--damage", "wrong@2K=0.6", "--kv-cache-dtype", "fp8_e4m3"])
    };
    let all = ["retrieval", "structure", "long_output"];
    let tier = |tier: &str| {
        let cells = all.map(|group| format!("[gate.cells.\"{group}/2K\"]\ntier = \"{tier}\"\n")).concat();
        // A symptom holds for the whole arm, whatever the tier of its cells is.
        format!("[gate]\nsymptom_min_items = 50\n{cells}")
    };
    assert_eq!(check(&tier("critical")).code, Some(100));
    let supporting = check(&tier("supporting"));
    assert_eq!(supporting.code, Some(0), "{}", supporting.stdout);
    assert!(supporting.stdout.contains("INCONCLUSIVE"), "{}", supporting.stdout);
    for (gate, code, parts) in [
        ("[gate.cells.\"tracing/2K\"]\ntier = \"critical\"\n", 4, ["`tracing`", "known"]),
        ("[gate.cells.\"retrieval/8K\"]\nrequired = true\n", 4, ["`8K`", "2K"]),
        ("[gate.cells.\"retrieval/2K\"]\ntier = \"vital\"\n", 2, ["vital", "critical"]),
        ("[gate.cells.\"retrieval/2K\"]\nmax_relative_drop = 100\n", 2, ["max_relative_drop", "100"]),
        ("[gate]\nconfirm = 1\n", 2, ["expected a boolean", "[gate]"]),
    ] {
        let said = check(gate);
        assert_eq!(said.code, Some(code), "{gate}");
        assert!(parts.iter().all(|part| said.stderr.contains(part)), "{gate}: {}", said.stderr);
    }
}
