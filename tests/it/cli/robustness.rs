//! A suite that asks again in other words, from its file to the report.

use std::fs;

use super::Desk;

const SUITE: &str = r#"
schema_version = 1
name = "robust"
description = "Needles and ledgers, asked again in other words"

[[bins]]
context = "2K"
samples = 12
shared_prefix = 4
mixed = true

[[tasks]]
kind = "needle"
robustness = true

[[tasks]]
kind = "ledger"
"#;

#[test]
fn variants_are_asked_and_told_of_and_change_nothing_that_is_judged() {
    let desk = Desk::new();
    desk.write("robust.toml", SUITE);
    desk.write("plain.toml", &SUITE.replace("robustness = true\n", ""));
    let check = |suite: &str, folder: &str| {
        let options = ["--kv-cache-dtype", "fp8_e4m3", "--damage", "wrong=0.3"];
        let said = desk.run(&[&["check", "--dry-run", "--suite", suite, "--run-dir", folder], &options[..]].concat());
        let read = |file: &str| fs::read_to_string(desk.path(folder).join(file)).unwrap();
        (said.code, serde_json::from_str::<serde_json::Value>(&read("comparison.json")).unwrap(), read("report.html"))
    };
    let (plain_code, plain, plain_page) = check("plain.toml", "plain");
    let (code, robust, page) = check("robust.toml", "robust");
    assert_eq!(code, plain_code);
    let (plain_arm, arm) = (&plain["comparison"]["candidates"][0], &robust["comparison"]["candidates"][0]);
    for part in ["pairs", "items", "haystacks", "baseline_right", "candidate_right", "regressions", "fixes"] {
        assert_eq!(plain_arm["pooled"][part], arm["pooled"][part], "{part}");
    }
    assert_eq!(plain_arm["robustness"], serde_json::Value::Null);
    let cell = &arm["robustness"][0];
    assert_eq!((&cell["group"], &cell["variants"]), (&"retrieval".into(), &48.into()));
    assert_eq!(cell["baseline"]["distance"], 0.0, "the scripted baseline answers every wording alike");
    assert!(cell["candidate"]["distance"].as_f64().unwrap() > 0.1, "damage hits some wordings and not others: {cell}");
    assert!(page.contains("<section id=\"robustness\"") && !plain_page.contains("<section id=\"robustness\""));
    let lines = fs::read_to_string(desk.path("robust").join("bfloat16/samples.jsonl")).unwrap();
    assert_eq!(lines.lines().filter(|line| line.contains("\"variant_of\"")).count(), 48);
}
