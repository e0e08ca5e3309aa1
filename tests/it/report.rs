//! The report as a reader, a bot and a hostile model would meet it.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up its input has failed")]

mod browser;
mod fixture;
mod history;
mod hostile;
mod machine;
mod many;

use std::collections::BTreeSet;

use kvgauge::gate::Ruling;
use kvgauge::report::{
    HTML_MAX_BYTES, HTML_WARN_BYTES, KvStatus, MARKDOWN_MAX_CHARS, MARKER, ReportError, comparison_json,
    kv_record_json, kv_records, render_html, render_junit, render_markdown, timings_json,
};

use fixture::{Fixture, NASTY, fixture};

/// Elements the page may consist of; anything else came out of an answer.
const ELEMENTS: &[&str] = &[
    "a",
    "body",
    "caption",
    "circle",
    "code",
    "dd",
    "del",
    "desc",
    "details",
    "div",
    "dl",
    "dt",
    "figcaption",
    "figure",
    "footer",
    "g",
    "h1",
    "h2",
    "h3",
    "head",
    "header",
    "html",
    "ins",
    "li",
    "line",
    "main",
    "mark",
    "meta",
    "nav",
    "p",
    "path",
    "polygon",
    "polyline",
    "pre",
    "rect",
    "section",
    "span",
    "strong",
    "style",
    "summary",
    "svg",
    "table",
    "tbody",
    "td",
    "text",
    "th",
    "thead",
    "title",
    "tr",
    "ul",
];

fn html() -> String {
    render_html(&fixture(1.0).input()).expect("the fixture is a sound comparison")
}

/// Every tag of the page as (name, attributes), closing tags left out.
fn tags(html: &str) -> Vec<(String, String)> {
    let mut tags = Vec::new();
    let mut rest = html;
    while let Some(start) = rest.find('<') {
        rest = &rest[start + 1..];
        let end = rest.find('>').expect("every tag is closed");
        let inside = &rest[..end];
        if !inside.starts_with('/') && !inside.starts_with('!') {
            let (name, attributes) =
                inside.split_once(char::is_whitespace).unwrap_or((inside.trim_end_matches('/'), ""));
            tags.push((name.to_owned(), attributes.to_owned()));
        }
        rest = &rest[end..];
    }
    tags
}

/// What is left of the page without its tags.
fn text_of(html: &str) -> String {
    html.split('<').map(|piece| piece.split_once('>').map_or(piece, |(_, text)| text)).collect()
}

/// The page without its section on speed.
fn without_timing(html: &str) -> String {
    without(html, "timing")
}

/// The page without one of its sections.
fn without(html: &str, section: &str) -> String {
    let (before, rest) = html.split_once(&format!("<section id=\"{section}\"")).expect("the page has the section");
    let (_, after) = rest.split_once("</section>").expect("sections are closed");
    format!("{before}{after}")
}

#[test]
fn sections_are_in_reading_order_and_the_verdict_is_first() {
    let html = html();
    let ids = [
        "verdict",
        "confirmation",
        "in-effect",
        "kv-record",
        "quality",
        "averages",
        "tasks",
        "likelihood",
        "flips",
        "control",
        "timing",
        "comparability",
        "run",
    ];
    let places: Vec<usize> = ids.iter().map(|id| html.find(&format!("<section id=\"{id}\"")).expect(id)).collect();
    assert!(places.is_sorted());
    let verdict = &html[places[0]..places[1]];
    assert!(verdict.contains("✗ REGRESSED") && verdict.contains("fp8_e5m2 regresses from 8K on"));
    assert_eq!(verdict.matches("class=\"value\"").count(), 4);
    assert!(verdict.contains("128K · retrieval · fp8_e5m2"), "{verdict}");
}

#[test]
fn the_page_loads_nothing_runs_nothing_and_styles_by_hash_only() {
    let html = html();
    for (name, attributes) in tags(&html) {
        assert!(ELEMENTS.contains(&name.as_str()), "element {name} {attributes}");
        for word in ["style=", "src=", "onerror=", "onload=", "javascript:", "xlink:", "srcdoc="] {
            assert!(!attributes.contains(word), "{name} {attributes}");
        }
        if let Some((_, target)) = attributes.split_once("href=\"") {
            assert!(target.starts_with('#'), "{attributes}");
        }
    }
    assert!(!html.contains("http://") && !html.contains("@import") && !html.contains("url("));
    assert!(html.contains("default-src &#x27;none&#x27;; style-src &#x27;sha256-"));
    assert_eq!(html.matches("<style>").count(), 1);
}

#[test]
fn answers_are_text_and_what_is_hidden_in_them_is_shown() {
    let html = html();
    assert!(!html.contains("<script") && !html.contains("<img") && !html.contains("<b>") && !html.contains("<i>"));
    assert!(html.contains("&lt;script&gt;alert(1)"));
    assert!(html.contains("\\u{202e}") && html.contains("\\u{1b}") && html.contains("\\u{0}"));
    assert!(text_of(&html).contains("{{ 7 * 7 }} {% raw %}"));
    for hidden in ['\u{202e}', '\u{202c}', '\u{1b}', '\0', '\u{7}'] {
        assert!(!html.contains(hidden), "{hidden:?}");
    }
}

#[test]
fn anchors_exist_once_and_every_link_leads_to_one() {
    let html = html();
    let mut ids = BTreeSet::new();
    let mut links = BTreeSet::new();
    for (_, attributes) in tags(&html) {
        let attributes = format!(" {attributes}");
        if let Some(id) = attributes.split_once(" id=\"").and_then(|(_, rest)| rest.split('"').next()) {
            assert!(ids.insert(id.to_owned()), "{id} twice");
        }
        if let Some(link) = attributes.split_once(" href=\"#").and_then(|(_, rest)| rest.split('"').next()) {
            links.insert(link.to_owned());
        }
        if let Some(labels) = attributes.split_once("aria-labelledby=\"").and_then(|(_, rest)| rest.split('"').next()) {
            links.extend(labels.split(' ').map(str::to_owned));
        }
    }
    assert!(links.len() > 40);
    assert!(links.is_subset(&ids), "{:?}", links.difference(&ids).collect::<Vec<_>>());
}

#[test]
fn tables_plots_and_headings_are_there_for_those_who_cannot_see_them() {
    let html = html();
    let tags = tags(&html);
    let count = |name: &str| tags.iter().filter(|(tag, _)| tag == name).count();
    assert_eq!(count("table"), count("caption"));
    assert!(tags.iter().filter(|(tag, _)| tag == "th").all(|(_, attributes)| attributes.contains("scope=")));
    let plots = tags.iter().filter(|(tag, attributes)| tag == "svg" && attributes.contains("class=\"plot"));
    assert!(plots.clone().count() >= 10);
    assert!(
        plots.clone().all(|(_, attributes)| attributes.contains("role=\"img\"") && attributes.contains("labelledby"))
    );
    let mut level = 0;
    for (tag, _) in &tags {
        if let Some(next) = tag.strip_prefix('h').and_then(|digit| digit.parse::<u32>().ok()) {
            assert!(next <= level + 1, "{tag} after h{level}");
            level = next;
        }
    }
    assert!(html.starts_with("<!DOCTYPE html>\n<html lang=\"en\">"));
}

#[test]
fn the_same_input_gives_the_same_bytes_and_times_touch_one_section_only() {
    let (one, two) = (html(), render_html(&fixture(1.7).input()).unwrap());
    assert_eq!(one, html());
    assert_ne!(one, two);
    assert_eq!(without_timing(&one), without_timing(&two));
    let summary = |fixture: &Fixture| render_markdown(&fixture.input()).unwrap();
    assert_eq!(summary(&fixture(1.0)), summary(&fixture(1.7)));
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(24))]

    #[test]
    fn whatever_a_model_writes_stays_text(
        answer in "(<[/!]?[a-z]{1,6}[ =\"'>]|-->|```|[&\\PC\\x00-\\x1f\u{202a}-\u{202e}]){0,40}",
        cause in "\\PC{0,20}",
    ) {
        let mut fixture = fixture(1.0);
        fixture.comparison.candidates.truncate(2);
        fixture.verdict.arms.truncate(2);
        for flip in &mut fixture.comparison.candidates[1].flips {
            for text in [&mut flip.candidate_text, &mut flip.expected, &mut flip.excerpt, &mut flip.notes[0]] {
                text.clone_from(&answer);
            }
            flip.cause.clone_from(&cause);
        }
        fixture.verdict.sentence.clone_from(&answer);
        let page = render_html(&fixture.input()).unwrap();
        for (name, _) in tags(&page) {
            proptest::prop_assert!(ELEMENTS.contains(&name.as_str()), "element {}", name);
        }
        proptest::prop_assert!(!page.chars().any(|c| c.is_control() && c != '\n' && c != '\t'));
        let summary = render_markdown(&fixture.input()).unwrap();
        proptest::prop_assert_eq!(summary.matches("<!--").count(), 1);
    }
}

#[test]
fn the_summary_is_short_enough_marked_and_cannot_be_broken_into() {
    let fixture = fixture(1.0);
    let text = render_markdown(&fixture.input()).unwrap();
    assert!(text.starts_with(&format!("{MARKER}\n")) && text.chars().count() <= MARKDOWN_MAX_CHARS);
    assert_eq!(text.matches("<!--").count(), 1);
    assert!(text.contains("✗ REGRESSED") && text.contains("| 128K |"));
    assert!(!text.contains("<script>alert(1)</script>\n\n"));
    let mut fence: Option<usize> = None;
    for line in text.lines() {
        let ticks = line.len() - line.trim_start_matches('`').len();
        fence = match fence {
            None if ticks >= 3 => Some(ticks),
            Some(open) if ticks >= open && line.trim_matches('`').is_empty() => None,
            None => {
                assert!(!line.contains("@everyone") && !line.contains("https://"), "{line}");
                None
            }
            open => open,
        };
    }
    assert_eq!(fence, None, "every fence is closed");
}

#[test]
fn json_documents_are_stable_and_say_what_the_page_says() {
    let fixture = fixture(1.0);
    let text = comparison_json(&fixture.comparison, &fixture.verdict);
    assert_eq!(text, comparison_json(&fixture.comparison, &fixture.verdict));
    assert!(text.ends_with("}\n") && !text.contains("NaN") && !text.contains("ttft"));
    let read: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        serde_json::from_value::<kvgauge::compare::Comparison>(read["comparison"].clone()).unwrap(),
        fixture.comparison
    );
    assert_eq!(read["verdict"]["ruling"], "REGRESSED");

    let records: serde_json::Value = serde_json::from_str(&kv_record_json(&fixture.input())).unwrap();
    let page = render_html(&fixture.input()).unwrap();
    for field in records[0].as_object().unwrap().keys() {
        assert!(
            page.contains(&format!("\n{field}:")) || page.contains(&format!("<pre>{field}:")),
            "{field} is on the page"
        );
    }
    assert_eq!(records[1]["status"], "capacity_met_quality_regressed");
    assert_eq!(records[0]["status"], "backend_fallback");
    assert_eq!(records[2]["kv_cache_capacity"]["blocks"], serde_json::Value::Null);
    assert_eq!(kv_records(&fixture.input())[2].status, KvStatus::CapacityMetQualityMet);
    assert!(
        serde_json::from_str::<kvgauge::report::Timings>(&timings_json(&fixture.timings)).unwrap() == fixture.timings
    );
}

#[test]
fn a_number_that_is_not_finite_never_reaches_a_document() {
    let mut fixture = fixture(1.0);
    let broken = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
    for (cell, value) in fixture.verdict.arms[1].cells.iter_mut().zip(broken) {
        cell.delta.delta = Some(value);
        cell.delta.interval = Some((value, 0.1));
        cell.adjusted_p = Some(value);
    }
    let json = comparison_json(&fixture.comparison, &fixture.verdict);
    serde_json::from_str::<serde_json::Value>(&json).unwrap();
    let page = render_html(&fixture.input()).unwrap();
    assert!(!page.contains("NaN") && !page.contains("inf\""));
}

#[test]
fn a_verdict_of_another_comparison_is_refused() {
    let mut fixture = fixture(1.0);
    fixture.verdict.arms.swap(0, 1);
    assert!(matches!(render_html(&fixture.input()), Err(ReportError::ArmsDiffer { .. })));
    assert!(matches!(render_markdown(&fixture.input()), Err(ReportError::ArmsDiffer { .. })));
}

#[test]
fn thousands_of_flips_stay_a_small_page_that_says_how_many_are_missing() {
    let mut fixture = fixture(1.0);
    let some = fixture.comparison.candidates[1].flips.clone();
    let long: Vec<_> = some
        .iter()
        .cycle()
        .take(10_000)
        .cloned()
        .map(|mut flip| {
            flip.candidate_text = flip.candidate_text.repeat(60);
            flip
        })
        .collect();
    for arm in &mut fixture.comparison.candidates {
        arm.flips.clone_from(&long);
    }
    let page = render_html(&fixture.input()).unwrap();
    assert!(page.len() < HTML_MAX_BYTES);
    assert!(page.contains("10,000 changed") && page.contains(" more</p>"));
}

#[test]
fn examples_are_dropped_before_the_page_exceeds_its_limit() {
    let mut fixture = fixture(1.0);
    let template = fixture.comparison.candidates[1].clone();
    let judged = fixture.verdict.arms[1].clone();
    for index in 0..24 {
        let mut arm = template.clone();
        arm.summary.arm.name = format!("extra-{index}");
        for flip in &mut arm.flips {
            flip.excerpt = "\u{202e}".repeat(1800);
            flip.baseline_text = "<&> ".repeat(400);
            flip.candidate_text = "\u{202e}'\" ".repeat(400);
        }
        arm.flips = arm.flips.iter().cycle().take(400).cloned().collect();
        let mut verdict = judged.clone();
        verdict.arm.clone_from(&arm.summary.arm.name);
        fixture.comparison.candidates.push(arm);
        fixture.verdict.arms.push(verdict);
    }
    let page = render_html(&fixture.input()).unwrap();
    assert!(page.len() > HTML_WARN_BYTES && page.len() <= HTML_MAX_BYTES, "{}", page.len());
    assert!(page.contains("Examples were left out") && page.contains("larger than 2 MB"));
}

#[test]
fn a_comparison_with_nothing_in_it_still_makes_a_page() {
    let mut fixture = fixture(1.0);
    fixture.comparison.candidates.clear();
    fixture.comparison.control = None;
    fixture.verdict.arms.clear();
    fixture.verdict.ruling = Ruling::Invalid;
    fixture.timings.arms.clear();
    let page = render_html(&fixture.input()).unwrap();
    assert!(page.contains("! INVALID") && page.contains("has no A/A arm"));
    render_markdown(&fixture.input()).unwrap();
}

/// `cargo test --test it -- --ignored write_the_page` writes the documents to the folder of temporary files, to be looked at.
#[test]
#[ignore = "writes files for people to look at"]
fn write_the_page() {
    let fixture = fixture(1.0);
    let folder = std::env::temp_dir().join("kvgauge-report");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("report.html"), html()).unwrap();
    let nights = history::nights(14);
    std::fs::write(folder.join("history.html"), history::page_of(nights.path(), &fixture)).unwrap();
    std::fs::write(folder.join("many.html"), many::page()).unwrap();
    std::fs::write(folder.join("junit.xml"), render_junit(&fixture.input()).unwrap()).unwrap();
    std::fs::write(folder.join("summary.md"), render_markdown(&fixture.input()).unwrap()).unwrap();
    std::fs::write(folder.join("kv_record.json"), kv_record_json(&fixture.input())).unwrap();
    std::fs::write(folder.join("comparison.json"), comparison_json(&fixture.comparison, &fixture.verdict)).unwrap();
    std::fs::write(folder.join("timings.json"), timings_json(&fixture.timings)).unwrap();
    assert!(NASTY.len() > 5);
}
