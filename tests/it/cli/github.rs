//! In a step of GitHub Actions: annotations beside the document, the summary of the step, and no text of others that gives orders.

use std::fs;

use super::{Desk, Said};

const CHECK: [&str; 8] = ["check", "--dry-run", "--suite", "smoke", "--run-dir", "run", "--samples", "24"];

fn on_a_runner(desk: &Desk, args: &[&str]) -> Said {
    let mut command = desk.command(args);
    command.env("GITHUB_ACTIONS", "true").env("GITHUB_STEP_SUMMARY", desk.path("step.md"));
    Said::of(command.output().unwrap())
}

#[test]
fn a_regression_is_annotated_and_summed_up_and_json_stays_one_document() {
    let desk = Desk::new();
    desk.write("step.md", "what an earlier command said");
    let said = on_a_runner(&desk, &[&CHECK[..], &["--damage", "loop@2K", "--json"]].concat());
    assert_eq!(said.code, Some(100), "{}", said.stderr);
    serde_json::from_str::<serde_json::Value>(&said.stdout).unwrap();
    let commands: Vec<&str> = said.stderr.lines().filter(|line| line.starts_with("::")).collect();
    assert!(!commands.is_empty() && commands.len() <= 10, "{}", said.stderr);
    assert!(commands.iter().all(|line| line.starts_with("::error title=REGRESSED%3A ") && line.contains(" at 2K::")));
    let step = fs::read_to_string(desk.path("step.md")).unwrap();
    let summary = fs::read_to_string(desk.path("run/summary.md")).unwrap();
    assert_eq!(step, format!("what an earlier command said\n{summary}"));
    // `gate` tells the same; nothing is said outside of a runner.
    let gate = on_a_runner(&desk, &["gate", "run"]);
    assert_eq!(gate.stderr.lines().filter(|line| line.starts_with("::")).collect::<Vec<_>>(), commands);
    let quiet = desk.run(&["gate", "run"]);
    assert!(!quiet.stderr.contains("::error"), "{}", quiet.stderr);
}

#[test]
fn a_full_or_forbidden_step_summary_costs_a_warning_and_not_the_verdict() {
    let desk = Desk::new();
    assert_eq!(on_a_runner(&desk, &CHECK).code, Some(0));
    let full = "x".repeat(900 * 1024 - 100);
    desk.write("step.md", &full);
    let said = on_a_runner(&desk, &["gate", "run"]);
    assert!(said.code == Some(0) && said.stderr.contains("no room for this report"), "{}", said.stderr);
    assert_eq!(fs::read_to_string(desk.path("step.md")).unwrap(), full);
    fs::remove_file(desk.path("step.md")).unwrap();
    fs::create_dir(desk.path("step.md")).unwrap();
    let said = on_a_runner(&desk, &["gate", "run"]);
    assert!(said.code == Some(0) && said.stderr.contains("cannot be written"), "{}", said.stderr);
}

#[test]
fn no_text_of_others_is_a_command_of_the_runner_or_of_a_terminal() {
    let desk = Desk::new();
    let hostile = "::error::owned\\n  ::add-mask::x\\n##[error]owned\\u001b[31m\\u202e\\r::set-output::";
    let line = format!("{{\"id\": \"{hostile}\", \"output\": \"{hostile}\", \"label\": \"{hostile}\"}}\n");
    desk.write("outputs.jsonl", &line);
    for args in [
        &["detect", "outputs.jsonl"][..],
        &["detect", "--json", "outputs.jsonl"],
        &["detect", "--confusion", "outputs.jsonl"],
    ] {
        let said = desk.run(args);
        for text in [&said.stdout, &said.stderr] {
            assert!(!text.chars().any(|it| it.is_control() && it != '\n' || it == '\u{202e}'), "{args:?}: {text:?}");
            let is_command = |line: &str| line.trim_start().starts_with("::") || line.contains("##[");
            assert!(!text.lines().any(is_command), "{args:?}: {text}");
        }
        assert!(said.stdout.contains("owned"), "{args:?}: {}", said.stderr);
    }
    // A log with the same in it, and a file name.
    let name = "::error::name.log";
    desk.write(
        name,
        "INFO 11-30 10:00:00 [core.py:1] ::error::owned\n\u{1b}[2J##[error]owned vLLM API server version 0.11.0\n",
    );
    let said = desk.run(&["inspect-log", name]);
    for text in [&said.stdout, &said.stderr] {
        assert!(!text.lines().any(|line| line.trim_start().starts_with("::") || line.contains("##[")), "{text}");
        assert!(!text.contains('\u{1b}'));
    }
    // A lone surrogate is no text: the line is named, and the others are judged.
    desk.write("surrogate.jsonl", "{\"id\": 1, \"output\": \"a\\ud800b\"}\n{\"id\": 2, \"output\": \"whole\"}\n");
    let said = desk.run(&["detect", "surrogate.jsonl"]);
    assert!(
        said.code != Some(0) && said.stdout.contains("2: ") && said.stderr.contains("surrogate"),
        "{}",
        said.stderr
    );
}
