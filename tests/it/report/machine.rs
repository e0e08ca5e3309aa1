//! Outputs for machines: JUnit, annotations and badge say what the verdict says, no more and no less.

use std::collections::BTreeMap;

use kvgauge::gate::{Ruling, Verdict};
use kvgauge::report::{MAX_ANNOTATIONS, annotations, badge_json, render_junit};
use kvgauge::sample::Bin;
use kvgauge::suite::{TaskGroup, Tier};
use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus};

use super::fixture::{BINS, Fixture, fixture};

fn junit(fixture: &Fixture) -> Report {
    Report::deserialize_from_str(&render_junit(&fixture.input()).unwrap()).unwrap()
}

/// The ruling that a build server makes of a case.
fn ruling(case: &TestCase) -> Ruling {
    match &case.status {
        TestCaseStatus::Success { .. } => Ruling::Pass,
        TestCaseStatus::Skipped { .. } => Ruling::Inconclusive,
        TestCaseStatus::NonSuccess { kind: NonSuccessKind::Error, .. } => Ruling::Invalid,
        TestCaseStatus::NonSuccess { kind: NonSuccessKind::Failure, .. } => Ruling::Regressed,
    }
}

fn message(case: &TestCase) -> String {
    match &case.status {
        TestCaseStatus::Skipped { message, .. } | TestCaseStatus::NonSuccess { message, .. } => {
            message.as_ref().map(|text| text.as_str().to_owned()).unwrap_or_default()
        }
        TestCaseStatus::Success { .. } => String::new(),
    }
}

/// The worst ruling of each arm's cases.
fn worst_by_arm(report: &Report) -> BTreeMap<String, Ruling> {
    let mut worst: BTreeMap<String, Ruling> = BTreeMap::new();
    for suite in &report.test_suites {
        let (arm, _) = suite.name.as_str().rsplit_once('.').unwrap();
        for case in &suite.test_cases {
            let entry = worst.entry(arm.to_owned()).or_insert(Ruling::Pass);
            *entry = (*entry).max(ruling(case));
        }
    }
    worst
}

fn by_arm(verdict: &Verdict) -> BTreeMap<String, Ruling> {
    verdict.arms.iter().map(|arm| (arm.arm.clone(), arm.ruling)).collect()
}

#[test]
fn a_suite_per_candidate_and_group_has_a_case_per_bin() {
    let fixture = fixture(1.0);
    let report = junit(&fixture);
    let retrieval = report.test_suites.iter().find(|suite| suite.name.as_str() == "fp8_e5m2.retrieval").unwrap();
    let names: Vec<&str> = retrieval.test_cases.iter().map(|case| case.name.as_str()).collect();
    assert_eq!(names, BINS.map(|bin| bin.to_string()));
    let judged = &fixture.verdict.arms[1];
    for (case, bin) in retrieval.test_cases.iter().zip(BINS) {
        let cell = judged.cells.iter().find(|cell| cell.group.name() == "retrieval" && cell.bin == bin).unwrap();
        assert_eq!(ruling(case), cell.ruling, "{bin}");
        assert_eq!(message(case).is_empty(), cell.ruling == Ruling::Pass);
    }
    let worst = retrieval.test_cases.last().unwrap();
    assert!(message(worst).starts_with("retrieval at 128K: ") && message(worst).contains("points, 95 % interval [−"));
    assert!(report.test_suites.iter().any(|suite| suite.name.as_str() == "fp8_e5m2.symptoms"));
    let text = render_junit(&fixture.input()).unwrap();
    assert!(!text.contains("time=") && !text.contains("timestamp="));
    assert_eq!(text, render_junit(&super::fixture::fixture(1.7).input()).unwrap());
}

/// What is done to a fixture.
type Change<'a> = &'a dyn Fn(&mut Fixture);

#[test]
fn a_build_server_sees_the_ruling_of_every_arm_whatever_it_comes_from() {
    let fixture_of = |change: &dyn Fn(&mut Fixture)| {
        let mut fixture = fixture(1.0);
        change(&mut fixture);
        fixture
    };
    let changes: [(&str, Change); 5] = [
        ("as judged", &|fixture| fixture.verdict.arms[0].symptoms.clear()),
        ("invalid", &|fixture| {
            fixture.verdict.arms[1].ruling = Ruling::Invalid;
            fixture.verdict.arms[1].invalid = vec!["the cache is not what was asked for".into()];
        }),
        ("regressed by something that no cell shows", &|fixture| {
            fixture.verdict.arms[2].ruling = Ruling::Regressed;
            fixture.verdict.arms[2].symptoms.clear();
        }),
        ("no cell at all", &|fixture| {
            for arm in &mut fixture.verdict.arms {
                arm.cells.clear();
                arm.symptoms.clear();
            }
        }),
        ("a symptom alone", &|fixture| {
            let arm = &mut fixture.verdict.arms[1];
            arm.cells.retain(|cell| cell.ruling == Ruling::Pass);
            arm.ruling = Ruling::Regressed;
            assert!(arm.symptoms.iter().any(|it| it.regressed));
        }),
    ];
    for (name, change) in changes {
        let fixture = fixture_of(change);
        assert_eq!(worst_by_arm(&junit(&fixture)), by_arm(&fixture.verdict), "{name}");
    }
    let empty = fixture_of(&|fixture| {
        fixture.verdict.arms.clear();
        fixture.comparison.candidates.clear();
        fixture.verdict.ruling = Ruling::Inconclusive;
    });
    let report = junit(&empty);
    assert_eq!((report.tests, report.skipped), (1, 1), "nothing compared is no green file");
}

#[test]
fn a_cell_that_is_not_critical_fails_nothing() {
    for tier in [Tier::Supporting, Tier::Advisory] {
        let mut fixture = fixture(1.0);
        for cell in fixture.verdict.arms.iter_mut().flat_map(|arm| &mut arm.cells) {
            if (cell.group, cell.bin) == (TaskGroup::Retrieval, Bin(131_072)) {
                cell.tier = tier;
            }
        }
        let report = junit(&fixture);
        let retrieval = report.test_suites.iter().find(|suite| suite.name.as_str() == "fp8_e5m2.retrieval").unwrap();
        let longest = retrieval.test_cases.last().unwrap();
        assert_eq!(ruling(longest), Ruling::Inconclusive);
        assert!(message(longest).contains("REGRESSED, in a cell that does not fail the run"), "{}", message(longest));
        assert!(annotations(&fixture.input()).unwrap().iter().all(|line| !line.contains("retrieval at 128K")));
    }
}

#[test]
fn annotations_are_the_worst_bins_first_and_few() {
    let mut fixture = fixture(1.0);
    let lines = annotations(&fixture.input()).unwrap();
    assert!(lines[0].starts_with("::error title=REGRESSED%3A fp8_e5m2 at 128K::retrieval at 128K: "), "{}", lines[0]);
    let last_error = lines.iter().rposition(|line| line.starts_with("::error")).unwrap();
    let first_warning = lines.iter().position(|line| line.starts_with("::warning")).unwrap();
    assert!(last_error < first_warning && lines.len() <= MAX_ANNOTATIONS);
    // Eight candidates that all regress.
    let (arm, judged) = (fixture.comparison.candidates[1].clone(), fixture.verdict.arms[1].clone());
    for index in 0..8 {
        let (mut arm, mut judged) = (arm.clone(), judged.clone());
        judged.arm = format!("extra-{index}");
        arm.summary.arm.name.clone_from(&judged.arm);
        fixture.comparison.candidates.push(arm);
        fixture.verdict.arms.push(judged);
    }
    let lines = annotations(&fixture.input()).unwrap();
    assert_eq!(lines.len(), MAX_ANNOTATIONS);
    assert!(lines.iter().take(8).all(|line| line.contains(" at 128K::")), "{lines:#?}");
    for judged in &mut fixture.verdict.arms {
        judged.ruling = Ruling::Pass;
    }
    assert!(annotations(&fixture.input()).unwrap().is_empty(), "a pass needs no mark");
}

#[test]
fn the_badge_has_the_word_and_a_colour_for_each_ruling() {
    let mut fixture = fixture(1.0);
    let badge = |fixture: &Fixture| serde_json::from_str::<serde_json::Value>(&badge_json(&fixture.input())).unwrap();
    let regressed = badge(&fixture);
    assert_eq!((&regressed["color"], &regressed["isError"]), (&"red".into(), &true.into()));
    let message = regressed["message"].as_str().unwrap();
    assert!(message.starts_with("regressed · fp8_e5m2 −") && message.ends_with(" at 128K"), "{message}");
    for (ruling, color) in
        [(Ruling::Pass, "brightgreen"), (Ruling::Inconclusive, "yellow"), (Ruling::Invalid, "lightgrey")]
    {
        fixture.verdict.ruling = ruling;
        let badge = badge(&fixture);
        assert_eq!(badge["color"], color);
        assert!(badge["message"].as_str().unwrap().starts_with(&ruling.name().to_lowercase()));
    }
}
