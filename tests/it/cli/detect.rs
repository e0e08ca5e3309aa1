//! `kvgauge detect` on files that are not what it wants, and on more lines than are judged at once.

use std::fmt::Write as _;
use std::fs;

use serde_json::Value;

use super::Desk;

#[test]
fn bad_lines_are_named_by_number_and_the_others_judged() {
    let desk = Desk::new();
    let mut bytes = b"{\"id\": \"a\", \"output\": \"4829173\"}\n\n{\"id\": \"b\", \"output\": \n".to_vec();
    bytes.extend(b"{\"output\": \"\xff\"}\n[1]\n{\"id\": \"c\"}\n{\"id\": \"d\", \"output\": \"4829173<|im_end|>\"}");
    fs::write(desk.path("outputs.jsonl"), bytes).unwrap();
    let said = desk.run(&["detect", "outputs.jsonl"]);
    assert!(said.stdout.contains("a: ok\n") && said.stdout.contains("d: garbage\n"), "{}", said.stdout);
    for place in
        ["outputs.jsonl:3: ", "outputs.jsonl:4: no UTF-8 from byte 12", "outputs.jsonl:5: ", "outputs.jsonl:6: "]
    {
        assert!(said.stderr.contains(place), "no `{place}` in:\n{}", said.stderr);
    }
    assert!(said.stderr.contains("4 of 6 lines could not be judged"), "{}", said.stderr);
    assert_ne!(said.code, Some(0));
}

#[test]
fn what_has_no_lines_is_told() {
    let desk = Desk::new();
    desk.write("empty.jsonl", "");
    let said = desk.run(&["detect", "empty.jsonl"]);
    assert!(said.code == Some(0) && said.stdout.is_empty() && said.stderr.contains("no outputs"), "{}", said.stderr);
    fs::create_dir(desk.path("folder")).unwrap();
    for name in ["folder", "missing.jsonl"] {
        let said = desk.run(&["detect", name]);
        assert!(said.code != Some(0) && said.stderr.contains(name), "{name}: {}", said.stderr);
    }
}

#[test]
fn a_line_over_the_limit_is_refused_and_the_next_one_judged() {
    let desk = Desk::new();
    let long = "x".repeat(100_000_000);
    desk.write("outputs.jsonl", &format!("{{\"output\": \"{long}\"}}\n{{\"id\": \"after\", \"output\": \"7\"}}\n"));
    let said = desk.run(&["detect", "outputs.jsonl"]);
    assert!(said.stderr.contains("outputs.jsonl:1: the line is longer than 67108864 bytes"), "{}", said.stderr);
    assert_eq!(said.stdout, "after: ok\n");
}

#[test]
fn many_lines_are_told_in_their_order() {
    const LINES: usize = 3000;
    let desk = Desk::new();
    let mut lines = String::new();
    for number in 0..LINES {
        // Every seventh is a loop, and takes longer than the others.
        let output = if number % 7 == 0 { "and so on ".repeat(200) } else { format!("The code is {number}.") };
        writeln!(lines, "{{\"id\": {number}, \"output\": \"{output}\"}}").unwrap();
    }
    desk.write("outputs.jsonl", &lines);
    let said = desk.run(&["detect", "--json", "outputs.jsonl"]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let told: Vec<Value> = said.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(told.len(), LINES);
    for (number, judgement) in told.iter().enumerate() {
        assert_eq!(judgement["id"], number);
        assert_eq!(judgement["verdict"], if number % 7 == 0 { "repetition" } else { "ok" });
    }
}
