//! The detectors on a labelled set of outputs: half of them whole, many of these repetitive by nature; the others with every
//! fault in easy and hard forms.

#![expect(clippy::unwrap_used, reason = "a fixture that cannot be read has failed the test")]

use std::collections::BTreeMap;
use std::fmt::Write as _;

use kvgauge::detectors::{Context, detect_all};
use kvgauge::sample::{FinishReason, Language};
use serde_json::Value;

const OUTPUTS: &str = include_str!("../fixtures/outputs.jsonl");

/// Faults found with the right kind first, at least.
const MIN_FOUND: f64 = 0.95;

fn verdict(line: &Value) -> &'static str {
    let text = |name: &str| line.get(name).and_then(Value::as_str);
    let expected: Vec<&str> = text("expected").into_iter().collect();
    let found = detect_all(&Context {
        expected: &expected,
        task: text("task"),
        language: text("lang")
            .and_then(|tag| [Language::En, Language::Zh].into_iter().find(|known| known.tag() == tag)),
        language_code: text("lang"),
        prompt: text("prompt"),
        finish_reason: if text("finish_reason") == Some("length") {
            FinishReason::Length
        } else {
            FinishReason::Unknown
        },
        baseline: text("baseline_output"),
        ..Context::of(text("output").unwrap())
    });
    found.first().map_or("ok", |finding| finding.kind.name())
}

#[test]
fn no_whole_output_is_flagged_and_faults_are_found_by_name() {
    let (mut faults, mut found, mut whole) = (0_u32, 0_u32, 0_u32);
    let mut wrong = String::new();
    let mut alarms = 0;
    let mut confusion: BTreeMap<(String, &str), u32> = BTreeMap::new();
    for line in OUTPUTS.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let label = line["label"].as_str().unwrap();
        let verdict = verdict(&line);
        *confusion.entry((label.to_string(), verdict)).or_default() += 1;
        if label == "ok" {
            whole += 1;
            alarms += u32::from(verdict != "ok");
        } else {
            faults += 1;
            found += u32::from(verdict == label);
        }
        if verdict != label {
            writeln!(wrong, "{} is {verdict}: {}", line["id"], line["output"]).unwrap();
        }
    }
    assert!(faults + whole >= 150 && whole >= 60, "{confusion:?}");
    assert_eq!(alarms, 0, "{wrong}");
    assert!(f64::from(found) >= f64::from(faults) * MIN_FOUND, "{found} of {faults}\n{wrong}");
}
