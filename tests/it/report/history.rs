//! The history as a folder of nightlies would give it, whole and damaged.

use std::fs;
use std::path::Path;

use kvgauge::compare::COMPARISON_FORMAT;
use kvgauge::gate::Ruling;
use kvgauge::report::{History, HistoryError, ReportInput, comparison_json, render_html, render_markdown};
use kvgauge::setup::Evidence;
use tempfile::TempDir;

use super::fixture::{Fixture, fixture};
use super::{ELEMENTS, html, tags, without};

/// 2026-11-01, 02:00 UTC.
const FIRST_NIGHT_MS: u64 = 1_793_498_400_000;
const DAY_MS: u64 = 86_400_000;

/// Writes a run folder as `check` leaves it: the comparison, and an event log for each candidate.
fn write_night(folder: &Path, fixture: &Fixture, started_unix_ms: u64) {
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("comparison.json"), comparison_json(&fixture.comparison, &fixture.verdict)).unwrap();
    for (index, arm) in fixture.verdict.arms.iter().enumerate() {
        let arm_dir = folder.join(&arm.arm);
        fs::create_dir_all(&arm_dir).unwrap();
        let started = started_unix_ms + index as u64 * 60_000;
        fs::write(arm_dir.join("events.jsonl"), format!("{{\"unix_ms\":{started},\"event\":\"x\",\"text\":\"\"}}\n{{"))
            .unwrap();
    }
}

/// `nights` runs of the fixture, the last of which has another engine.
pub(super) fn nights(nights: u64) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for night in 0..nights {
        let mut fixture = fixture(1.0);
        if night + 1 == nights {
            fixture.comparison.baseline.resolved.engine = Evidence::known("vLLM 0.13.0".into(), "log");
        }
        for arm in &mut fixture.verdict.arms {
            for cell in &mut arm.cells {
                // Quiet nights before the one that is reported.
                let drop = cell.delta.delta.map_or(0.0, |delta| delta * 0.1 - 0.002 * (night % 3) as f64);
                cell.delta.delta = Some(drop);
                cell.delta.interval = Some((drop - 0.03, drop + 0.03));
                cell.ruling = if night % 4 == 1 { Ruling::Inconclusive } else { Ruling::Pass };
            }
            arm.ruling = if night % 4 == 1 { Ruling::Inconclusive } else { Ruling::Pass };
            arm.symptoms.clear();
        }
        // Names in the other order than the starts: neither names nor the times of files order anything.
        let name = format!("run-{:03}", nights - night);
        write_night(&dir.path().join(name), &fixture, FIRST_NIGHT_MS + night * DAY_MS);
    }
    dir
}

/// The page of the fixture as the night after `nights` in `dir`.
pub(super) fn page_of(dir: &Path, fixture: &Fixture) -> String {
    let history = History::read(dir, None).unwrap().with(&fixture.comparison, &fixture.verdict, None);
    render_html(&ReportInput { history: Some(&history), ..fixture.input() }).unwrap()
}

fn section(page: &str) -> &str {
    let (_, rest) = page.split_once("<section id=\"history\"").unwrap();
    rest.split_once("</section>").unwrap().0
}

#[test]
fn nights_are_in_the_order_they_recorded_and_what_changed_is_marked() {
    let dir = nights(6);
    let page = page_of(dir.path(), &fixture(1.0));
    let history = section(&page);
    assert!(history.contains("7 runs of this suite and model"));
    let days: Vec<usize> = (1..=6).map(|day| history.find(&format!(">2026-11-0{day} 02:00<")).unwrap()).collect();
    assert!(days.is_sorted());
    assert!(history.contains("(this run)") && history.contains("not recorded"));
    assert!(history.contains("baseline engine: kvgauge embedded 0.1.0 → vLLM 0.13.0"));
    // Three candidates in five bins.
    assert_eq!(history.matches("<svg class=\"plot\"").count(), 15);
    // The change before the last night and the one after it are in every panel.
    assert_eq!(history.matches("stroke-dasharray=\"1 3\"").count(), 30);
    assert!(history.contains("class=\"regressed\" d=\"M"), "this run's damage has its mark");
    for (name, attributes) in tags(&page) {
        assert!(ELEMENTS.contains(&name.as_str()), "{name} {attributes}");
    }
}

#[test]
fn a_page_without_a_history_is_the_same_as_before_and_the_same_folder_gives_the_same_bytes() {
    let dir = nights(3);
    let fixture = fixture(1.0);
    let page = page_of(dir.path(), &fixture);
    assert_eq!(page, page_of(dir.path(), &fixture));
    let link = "<li><a href=\"#history\">History</a></li>\n";
    let without_history = without(&page, "history").replace(link, "");
    let squeezed = |page: &str| page.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(squeezed(&without_history), squeezed(&html()), "times of runs are in that section only");
    let summary = render_markdown(&fixture.input()).unwrap();
    assert!(!summary.contains("2026-11"));
}

#[test]
fn damaged_and_foreign_folders_are_named_and_skipped() {
    let dir = nights(2);
    let write = |name: &str, text: &[u8]| {
        fs::create_dir_all(dir.path().join(name)).unwrap();
        fs::write(dir.path().join(name).join("comparison.json"), text).unwrap();
    };
    let whole = fs::read_to_string(dir.path().join("run-001/comparison.json")).unwrap();
    let newer = format!("\"format_version\": {}", COMPARISON_FORMAT + 1);
    let format = format!("\"format_version\": {COMPARISON_FORMAT}");
    let damaged: [(&str, String, &str); 8] = [
        ("cut", whole[..whole.len() / 2].into(), "is damaged"),
        ("empty", String::new(), "is damaged"),
        ("surrogate", whole.replacen("\"quick\"", "\"\\ud800\"", 1), "is damaged"),
        ("huge-number", whole.replacen(&format, "\"format_version\": 1e999", 1), "is damaged"),
        ("foreign", "{\"comparison\": [], \"verdict\": 7}".into(), "is damaged"),
        ("newer", whole.replacen(&format, &newer, 1), "is of a newer version"),
        ("no-start", whole.clone(), "says when it was started"),
        ("deep", "[".repeat(100_000), "is damaged"),
    ];
    for (name, text, _) in &damaged {
        write(name, text.as_bytes());
    }
    write("latin1", b"{\"comparison\": \"\xff\"}");
    fs::create_dir(dir.path().join("<b>nothing\u{202e}")).unwrap();
    fs::write(dir.path().join("a-file"), "x").unwrap();
    // An arm's name out of a document is never a path.
    let mut climbing = fixture(1.0);
    climbing.comparison.candidates.truncate(1);
    climbing.verdict.arms.truncate(1);
    climbing.comparison.candidates[0].summary.arm.name = "../run-001/fp8_e4m3".into();
    climbing.verdict.arms[0].arm = "../run-001/fp8_e4m3".into();
    write("climbing", comparison_json(&climbing.comparison, &climbing.verdict).as_bytes());

    let history = History::read(dir.path(), None).unwrap();
    let skipped: Vec<(&str, &str)> = history.skipped().collect();
    assert_eq!(skipped.len(), 11, "{skipped:#?}");
    for (name, _, reason) in damaged {
        assert!(skipped.iter().any(|(folder, why)| *folder == name && why.contains(reason)), "{name}: {skipped:#?}");
    }
    let page = page_of(dir.path(), &fixture(1.0));
    let section = section(&page);
    assert!(section.contains("3 runs of this suite") && section.contains("Folders that are not shown"));
    assert!(section.contains("&lt;b&gt;nothing\\u{202e}") && !page.contains('\u{202e}'));
}

#[test]
fn another_suite_or_model_is_another_history_and_later_runs_are_none() {
    let dir = nights(2);
    let mut other = fixture(1.0);
    other.comparison.suite = "full".into();
    write_night(&dir.path().join("other-suite"), &other, FIRST_NIGHT_MS);
    write_night(&dir.path().join("tomorrow"), &fixture(1.0), FIRST_NIGHT_MS + 9 * DAY_MS);
    write_night(&dir.path().join("tonight"), &fixture(1.0), FIRST_NIGHT_MS + 5 * DAY_MS);
    let (tonight, fixture) = (dir.path().join("tonight"), fixture(1.0));
    let history = History::read(dir.path(), Some(&tonight)).unwrap();
    let history = history.with(&fixture.comparison, &fixture.verdict, Some(&tonight));
    let skipped: Vec<(&str, &str)> = history.skipped().collect();
    assert_eq!(skipped.len(), 2, "{skipped:?}");
    assert!(skipped[0] == ("other-suite", "it is of suite full and model SmolLM2-135M-Instruct"));
    assert!(skipped[1] == ("tomorrow", "it is later than this run"));
    let page = render_html(&ReportInput { history: Some(&history), ..fixture.input() }).unwrap();
    assert!(section(&page).contains("3 runs of") && section(&page).contains("2026-11-06 02:00"));
}

#[test]
fn a_folder_that_is_none_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let missing = History::read(&dir.path().join("missing"), None).unwrap_err();
    assert!(matches!(missing, HistoryError::Folder { .. }));
    assert_eq!(History::read(dir.path(), None).unwrap().skipped().count(), 0);
}

#[test]
fn many_nights_of_many_arms_stay_a_small_page() {
    let dir = nights(70);
    let page = page_of(dir.path(), &fixture(1.0));
    let history = section(&page);
    assert!(history.contains("60 runs of this suite and model, 11 older not shown"));
    assert!(history.len() < 200 * 1024, "{} bytes", history.len());
}
