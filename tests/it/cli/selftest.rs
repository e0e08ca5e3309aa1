//! `selftest --dry-run`: ladders of damage to scripted answers, from the first arm to the page.

use std::fs;

use serde_json::Value;

use super::{Desk, Said};

/// The built-in suite with another gate.
fn with_gate(desk: &Desk, gate: &str) {
    let text = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/suites/selftest.toml")).unwrap();
    let (items, _) = text.split_once("[gate]").unwrap();
    desk.write("other.toml", &format!("{items}[gate]\n{gate}\n"));
}

fn selftest(desk: &Desk, args: &[&str]) -> Said {
    desk.run(&[&["selftest", "--dry-run", "--run-dir", "run", "--json"], args].concat())
}

/// What became of the rungs of `kind`, weak before strong, in the bin at `place`.
fn detections(document: &Value, kind: &str, place: usize) -> Vec<String> {
    let rungs = document["rungs"].as_array().unwrap().iter().filter(|rung| rung["kind"] == kind);
    rungs.map(|rung| rung["cells"][place]["detection"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn damage_is_found_from_some_strength_on_and_the_same_folder_goes_on() {
    let desk = Desk::new();
    let said = selftest(&desk, &[]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let document: Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!((&document["proof"], &document["clean"]["different"]), (&"passed".into(), &0.into()));
    for (place, bin) in [512, 2048].into_iter().enumerate() {
        assert_eq!(document["bins"][place], bin);
        for kind in ["early_stop", "swap"] {
            assert_eq!(detections(&document, kind, place)[2..], ["found", "found"], "{kind} in {bin}");
        }
        assert_eq!(detections(&document, "loop", place)[2..], ["found_as_symptom", "found_as_symptom"]);
    }
    // A tenth of 40 answers is no proof.
    assert_eq!(detections(&document, "swap", 0)[0], "not_found");
    let smallest = &document["sensitivity"][1];
    assert_eq!((&smallest["kind"], &smallest["smallest"][0][1]), (&"swap".into(), &"25 %".into()));
    assert!(said.stderr.contains("smallest found") && said.stderr.contains("PASSED: "), "{}", said.stderr);

    let page = fs::read_to_string(desk.path("run/selftest.html")).unwrap();
    assert!(page.contains("✓ PASSED") && page.matches("<svg class=\"plot\"").count() == 3);
    assert!(page.contains("kvgauge selftest --suite selftest --dry-run") && !page.contains("<script"));
    let journal = "run/bfloat16+swap=0.5/samples.jsonl";
    let recorded = fs::read_to_string(desk.path(journal)).unwrap();
    let half: String = recorded.split_inclusive('\n').take(33).collect();
    fs::write(desk.path(journal), half).unwrap();
    let again = selftest(&desk, &[]);
    assert_eq!((again.code, again.stdout), (Some(0), said.stdout));
    assert_eq!(fs::read_to_string(desk.path("run/selftest.html")).unwrap(), page);
    // The records are ordinary ones.
    assert_eq!(desk.run(&["gate", "run"]).code, Some(100));
    let report = desk.run(&["report", "run"]);
    assert_eq!(report.code, Some(0), "{}", report.stderr);
}

#[test]
fn an_instrument_that_sleeps_fails_and_one_without_power_has_shown_nothing() {
    let desk = Desk::new();
    // Loops leave the scores alone, and no number of symptoms is enough for this gate.
    with_gate(&desk, "symptom_min_items = 1000");
    let said = selftest(&desk, &["--suite", "other.toml", "--bins", "512"]);
    assert_eq!(said.code, Some(100), "{}", said.stderr);
    assert!(said.stderr.contains("loop of 100 % is the strongest of its kind, and no bin shows it"), "{}", said.stderr);
    let document: Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!((&document["bins"], &document["proof"]), (&serde_json::json!([512]), &"failed".into()));

    let desk = Desk::new();
    with_gate(&desk, "min_pairs = 41");
    let said = selftest(&desk, &["--suite", "other.toml"]);
    assert_eq!(said.code, Some(6), "{}", said.stderr);
    let document: Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!(detections(&document, "swap", 0), ["no_power"; 4]);
    assert!(said.stderr.contains("no bin has enough right answers to lose"), "{}", said.stderr);
}

#[test]
fn a_folder_of_another_measurement_is_refused() {
    let desk = Desk::new();
    assert_eq!(selftest(&desk, &["--bins", "512"]).code, Some(0));
    let said = selftest(&desk, &[]);
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    said.expect_error(2, &["run"]);
    selftest(&desk, &["--bins", "4K"]).expect_error(4, &["4K", "known: 512"]);
}
