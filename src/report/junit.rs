//! `junit.xml`: the verdict for a build server's view of tests.
//!
//! One suite per candidate × task group with a case per bin, one per candidate for its symptoms. REGRESSED is a failure, INVALID an
//! error, INCONCLUSIVE a skipped case with its message: a build server counts neither as passed. Where no case carries the ruling of
//! the arm (there is no cell, or something else decided), a case of its own does, so that the file is never greener than the verdict.
//! There are no times in it: the same bytes for the same input.

use std::collections::BTreeMap;

use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};

use crate::gate::{ArmVerdict, CellVerdict, Ruling, SymptomVerdict};
use crate::report::cell_text::{cell_text, symptom_text};
use crate::report::page::ReportInput;
use crate::report::text::{clip, visible};
use crate::report::{ReportError, figures};
use crate::sample::Bin;
use crate::suite::{TaskGroup, Tier};

/// Characters of one message or name: viewers show a line of it.
const MAX_TEXT_CHARS: usize = 2000;

/// Renders the verdict in the JUnit dialect of Jenkins, which GitLab, Azure and Buildkite read, too.
///
/// # Errors
/// [`ReportError::ArmsDiffer`] when comparison and verdict do not belong together.
pub fn render_junit(input: &ReportInput) -> Result<String, ReportError> {
    input.check()?;
    let mut report = Report::new(text(&format!("kvgauge · {}", input.title)));
    for arm in &input.verdict.arms {
        for suite in arm_suites(arm) {
            report.add_test_suite(suite);
        }
    }
    if input.verdict.arms.is_empty() {
        report.add_test_suite(verdict_suite("kvgauge", input.verdict.ruling, &input.verdict.sentence));
    }
    report.to_string().map_err(|error| ReportError::Xml { message: error.to_string() })
}

/// Visible, short text; what XML cannot hold is spelled out.
fn text(text: &str) -> String {
    visible(&clip(text, MAX_TEXT_CHARS))
}

fn arm_suites(arm: &ArmVerdict) -> Vec<TestSuite> {
    let mut suites = Vec::new();
    let mut worst = None;
    let mut add = |name: &str, cases: Vec<(Bin, Ruling, String)>| {
        if cases.is_empty() {
            return;
        }
        worst = worst.max(cases.iter().map(|(_, ruling, _)| *ruling).max());
        let name = format!("{}.{name}", arm.arm);
        let cases = cases.iter().map(|(bin, ruling, message)| case(&name, &bin.to_string(), *ruling, message));
        suites.push(suite(&name, cases));
    };
    for group in TaskGroup::ALL {
        let mut cells: Vec<&CellVerdict> = arm.cells.iter().filter(|cell| cell.group == group).collect();
        cells.sort_by_key(|cell| cell.bin);
        add(group.name(), cells.into_iter().map(|cell| cell_case(arm, cell)).collect());
    }
    add("symptoms", symptom_cases(arm));
    if worst < Some(arm.ruling) {
        let reasons: String = arm.invalid.iter().map(|reason| format!("; {reason}")).collect();
        suites.push(verdict_suite(&arm.arm, arm.ruling, &format!("{}{reasons}", arm.sentence)));
    }
    suites
}

fn cell_case(arm: &ArmVerdict, cell: &CellVerdict) -> (Bin, Ruling, String) {
    let told = cell_text(cell);
    if arm.ruling == Ruling::Invalid {
        return (cell.bin, Ruling::Invalid, format!("{}; {told}", arm.invalid.join("; ")));
    }
    if cell.tier == Tier::Critical || cell.ruling == Ruling::Pass {
        return (cell.bin, cell.ruling, told);
    }
    // Never failing the run: neither a failure nor a pass.
    let found = figures::mark(cell.ruling).word;
    (cell.bin, Ruling::Inconclusive, format!("{found}, in a cell that does not fail the run; {told}"))
}

/// One case per bin in which symptoms were judged.
fn symptom_cases(arm: &ArmVerdict) -> Vec<(Bin, Ruling, String)> {
    let mut bins: BTreeMap<Bin, Vec<&SymptomVerdict>> = BTreeMap::new();
    for judged in &arm.symptoms {
        bins.entry(judged.symptom.bin).or_default().push(judged);
    }
    let cases = bins.into_iter().map(|(bin, judged)| {
        let rising: Vec<String> = judged.iter().filter(|it| it.regressed).map(|it| symptom_text(it)).collect();
        if arm.ruling == Ruling::Invalid {
            (bin, Ruling::Invalid, arm.invalid.join("; "))
        } else if rising.is_empty() {
            (bin, Ruling::Pass, String::new())
        } else {
            (bin, Ruling::Regressed, rising.join("; "))
        }
    });
    cases.collect()
}

fn verdict_suite(name: &str, ruling: Ruling, message: &str) -> TestSuite {
    let name = format!("{name}.verdict");
    suite(&name, [case(&name, "verdict", ruling, message)])
}

fn suite(name: &str, cases: impl IntoIterator<Item = TestCase>) -> TestSuite {
    let mut suite = TestSuite::new(text(name));
    suite.add_test_cases(cases);
    suite
}

fn case(suite: &str, name: &str, ruling: Ruling, message: &str) -> TestCase {
    let mut status = match ruling {
        Ruling::Pass => TestCaseStatus::success(),
        Ruling::Inconclusive => TestCaseStatus::skipped(),
        Ruling::Invalid => TestCaseStatus::non_success(NonSuccessKind::Error),
        Ruling::Regressed => TestCaseStatus::non_success(NonSuccessKind::Failure),
    };
    if ruling != Ruling::Pass {
        status.set_message(text(message)).set_type(figures::mark(ruling).word);
    }
    let mut case = TestCase::new(text(name), status);
    case.set_classname(text(suite));
    case
}
