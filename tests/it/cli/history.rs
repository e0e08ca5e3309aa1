//! `--history`: nights in one folder, in order, with damage named; and `-o` for the documents of machines.

use std::fs;

use super::{Desk, contents};

fn night(desk: &Desk, name: &str, more: &[&str]) -> super::Said {
    let run_dir = format!("nights/{name}");
    let args = ["check", "--dry-run", "--suite", "smoke", "--samples", "24", "--run-dir", &run_dir];
    desk.run(&[&args[..], more].concat())
}

#[test]
fn a_night_is_shown_among_the_earlier_ones_and_damage_is_named() {
    let desk = Desk::new();
    // Later names first: the order is that of the starts.
    for name in ["z", "y"] {
        assert_eq!(night(&desk, name, &[]).code, Some(0));
    }
    desk.write("nights/notes.txt", "x");
    fs::create_dir(desk.path("nights/other")).unwrap();
    let said = night(&desk, "a", &["--damage", "loop@2K", "--history", "nights"]);
    assert_eq!(said.code, Some(100), "{}", said.stderr);
    assert!(
        said.stderr.contains("warning: `other` is not in the history: it has no comparison.json"),
        "{}",
        said.stderr
    );
    assert!(!said.stderr.contains("notes.txt"));
    let page = fs::read_to_string(desk.path("nights/a/report.html")).unwrap();
    let (_, history) = page.split_once("<section id=\"history\"").unwrap();
    let place = |name: &str| history.find(&format!("<td>{name}")).unwrap();
    assert!(history.contains("3 runs of this suite and model") && place("z") < place("y") && place("y") < place("a"));
    // Again from records: the same bytes, and without the option no section.
    let before = contents(&desk.path("nights/a"));
    assert_eq!(desk.run(&["report", "nights/a", "--history", "nights"]).code, Some(0));
    assert!(contents(&desk.path("nights/a")) == before, "`report` changed a file");
    assert_eq!(desk.run(&["report", "nights/a", "-o", "plain.html"]).code, Some(0));
    assert!(!fs::read_to_string(desk.path("plain.html")).unwrap().contains("<section id=\"history\""));
    desk.run(&["report", "nights/a", "--history", "missing"])
        .expect_error(2, &["missing", "run folders of earlier nights"]);
}

#[test]
fn the_documents_of_machines_are_written_by_name() {
    let desk = Desk::new();
    assert_eq!(desk.dry_run(&[]).code, Some(0));
    let said = desk.run(&["report", "run", "-o", "a/tests.xml", "-o", "b/badge.json", "-o", "b/all.json"]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let same = |copy: &str, original: &str| {
        assert!(fs::read(desk.path(copy)).unwrap() == fs::read(desk.path("run").join(original)).unwrap(), "{copy}");
    };
    same("a/tests.xml", "junit.xml");
    same("b/badge.json", "badge.json");
    same("b/all.json", "comparison.json");
    desk.run(&["report", "run", "-o", "x.csv"]).expect_error(2, &["x.csv", ".xml"]);
}
