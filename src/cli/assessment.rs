//! The right half of the pipeline: records → comparison → verdict → files. No model, no clock.

use std::fs;
use std::path::{Path, PathBuf};

use kvgauge::compare::{Comparison, compare, table};
use kvgauge::gate::{Ruling, Verdict, confirmed, judge, overview, suspects};
use kvgauge::record::{EVENTS_FILE, LOCK_FILE, MANIFEST_FILE, PLAN_FILE, RUN_FILE, SAMPLES_FILE};
use kvgauge::report::{
    History, ReportInput, Timings, badge_json, comparison_json, kv_record_json, kv_records, render_html, render_junit,
    render_markdown, timings_json,
};
use kvgauge::suite::GatePolicy;

use crate::args::OnInconclusive;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::output::{self, note};
use crate::records::Records;
use crate::{confirm, github, measure, table as terminal};

/// Records with what was found and what is said of it.
pub(crate) struct Assessment {
    pub(crate) comparison: Comparison,
    pub(crate) verdict: Verdict,
    records: Records,
    policy: GatePolicy,
    timings: Timings,
    title: String,
    reproduce: String,
    history: Option<History>,
}

/// Two documents are JSON: under this name `-o` writes the badge.
const BADGE_FILE: &str = "badge.json";

/// A kind of file that `-o` writes.
#[derive(Clone, Copy)]
enum Kind {
    Html,
    Markdown,
    Json,
    Junit,
    Badge,
    Parquet,
}

impl Assessment {
    pub(crate) fn new(records: Records, policy: GatePolicy) -> Result<Self, Failure> {
        let comparison = compare(&records.baseline, records.control.as_ref(), &records.candidates)?;
        let verdict = judge(&comparison, &policy)?;
        Self::confirmed(records, policy, comparison, verdict)
    }

    /// With `verdict` as the records say by themselves. What it fails is looked up among the confirmations on record, where the policy
    /// asks for them.
    pub(crate) fn confirmed(
        records: Records,
        policy: GatePolicy,
        comparison: Comparison,
        mut verdict: Verdict,
    ) -> Result<Self, Failure> {
        if policy.confirm {
            let again = confirm::recorded(&records, &suspects(&verdict))?;
            verdict = confirmed(&comparison, &policy, verdict, &again)?;
        }
        let named: Vec<_> =
            records.all().into_iter().map(|record| (record.manifest.arm.name.as_str(), record)).collect();
        let timings = Timings::from_records(&named);
        let title = format!("{} · {}", comparison.model.name, comparison.suite);
        let arms: Vec<_> = records.candidates.iter().map(|record| &record.manifest.arm).collect();
        let baseline = &records.baseline.manifest;
        let reproduce = measure::reproduce(&baseline.environment, &baseline.arm, &arms);
        Ok(Self { comparison, verdict, records, policy, timings, title, reproduce, history: None })
    }

    /// Shows the run among the earlier ones whose run folders are in `history`.
    pub(crate) fn with_history(mut self, history: Option<&Path>, run_dir: Option<&Path>) -> Result<Self, Failure> {
        if let Some(dir) = history {
            let earlier = History::read(dir, run_dir)?;
            for (name, why) in earlier.skipped() {
                note(&format!("warning: `{name}` is not in the history: {why}"));
            }
            self.history = Some(earlier.with(&self.comparison, &self.verdict, run_dir));
        }
        Ok(self)
    }

    fn input(&self) -> ReportInput<'_> {
        ReportInput {
            title: &self.title,
            comparison: &self.comparison,
            verdict: &self.verdict,
            policy: &self.policy,
            timings: &self.timings,
            reproduce: &self.reproduce,
            history: self.history.as_ref(),
        }
    }

    /// Everything derived, beside the records. Returns the report's path.
    pub(crate) fn write_run_folder(&self, dir: &Path) -> Result<PathBuf, Failure> {
        let report = dir.join("report.html");
        for (name, kind) in [
            ("report.html", Kind::Html),
            ("summary.md", Kind::Markdown),
            ("comparison.json", Kind::Json),
            ("junit.xml", Kind::Junit),
            (BADGE_FILE, Kind::Badge),
        ] {
            self.write(&dir.join(name), kind)?;
        }
        self.write(&dir.join("samples.parquet"), Kind::Parquet)?;
        output::write_file(&dir.join("timings.json"), timings_json(&self.timings).as_bytes())?;
        output::write_file(&dir.join("kv_record.json"), kv_record_json(&self.input()).as_bytes())?;
        for record in kv_records(&self.input()) {
            let mut text = serde_json::to_string_pretty(&record).map_err(Failure::Json)?;
            text.push('\n');
            let arm_dir = dir.join(&record.arm);
            if arm_dir.is_dir() {
                output::write_file(&arm_dir.join("kv_record.json"), text.as_bytes())?;
            }
        }
        Ok(report)
    }

    /// The files of `-o`.
    pub(crate) fn write_outputs(&self, paths: &[PathBuf]) -> Result<(), Failure> {
        paths.iter().try_for_each(|path| self.write(path, kind_of(path)?))
    }

    /// How a command ends that judges and then delivers: a verdict that fails the run is said by the exit code even where it
    /// could not be written down, and what could not be written is said in any case.
    pub(crate) fn conclude(
        &self,
        on_inconclusive: OnInconclusive,
        delivered: impl IntoIterator<Item = Result<(), Failure>>,
    ) -> Result<Exit, Failure> {
        let exit = self.exit(on_inconclusive);
        let mut failures: Vec<Failure> = delivered.into_iter().filter_map(Result::err).collect();
        let last = if exit == Exit::Success { failures.pop() } else { None };
        failures.iter().for_each(crate::tell);
        last.map_or(Ok(exit), Err)
    }

    fn write(&self, path: &Path, kind: Kind) -> Result<(), Failure> {
        match kind {
            Kind::Html => output::write_file(path, render_html(&self.input())?.as_bytes()),
            Kind::Markdown => output::write_file(path, render_markdown(&self.input())?.as_bytes()),
            Kind::Json => output::write_file(path, self.json().as_bytes()),
            Kind::Junit => output::write_file(path, render_junit(&self.input())?.as_bytes()),
            Kind::Badge => output::write_file(path, badge_json(&self.input()).as_bytes()),
            Kind::Parquet => self.write_parquet(path),
        }
    }

    /// The table library writes to a path; the bytes then take the same way as every other file.
    fn write_parquet(&self, path: &Path) -> Result<(), Failure> {
        let failed = |source| Failure::Write { path: path.into(), source };
        let folder = tempfile::tempdir().map_err(failed)?;
        let temporary = folder.path().join("samples.parquet");
        table::write_parquet(&self.records.all(), &temporary)?;
        output::write_file(path, &fs::read(&temporary).map_err(failed)?)
    }

    /// Annotations and summary of a step of GitHub Actions, where this is one.
    pub(crate) fn tell_github(&self) {
        github::tell(&self.input());
    }

    /// `comparison.json`.
    pub(crate) fn json(&self) -> String {
        comparison_json(&self.comparison, &self.verdict)
    }

    /// Table, sentence and reasons, for people.
    pub(crate) fn text(&self) -> String {
        let mut text = terminal::overview(&overview(&self.comparison, &self.verdict));
        text += &format!("\n{}\n\n", headline(self.verdict.ruling, &self.verdict.sentence));
        if let Some(accepted) = &self.comparison.baseline.accepted {
            text += &format!("{accepted}\n\n");
        }
        for arm in &self.verdict.arms {
            text += &format!("{} {}: {}\n", arm.ruling.symbol(), arm.ruling.name(), arm.sentence);
            for reason in &arm.invalid {
                text += &format!("  {reason}\n");
            }
        }
        text
    }

    /// The verdict as an exit code.
    fn exit(&self, on_inconclusive: OnInconclusive) -> Exit {
        let exit = exit_of(self.verdict.ruling, on_inconclusive);
        if self.verdict.ruling == Ruling::Inconclusive && on_inconclusive == OnInconclusive::Warn {
            note("warning: INCONCLUSIVE is no pass; `--on-inconclusive fail` makes it exit 5");
        }
        exit
    }
}

/// The word that decides, then why; sentences that begin with the word do not say it twice.
fn headline(ruling: Ruling, sentence: &str) -> String {
    let word = ruling.name();
    let rest = match sentence.split_once(": ") {
        Some((first, rest)) if first.eq_ignore_ascii_case(word) => rest,
        _ => sentence,
    };
    format!("{word}: {rest}")
}

/// 0, 5, 6 or 100.
fn exit_of(ruling: Ruling, on_inconclusive: OnInconclusive) -> Exit {
    match ruling {
        Ruling::Pass => Exit::Success,
        Ruling::Regressed => Exit::Regressed,
        Ruling::Invalid => Exit::NotMeasured,
        Ruling::Inconclusive => match on_inconclusive {
            OnInconclusive::Pass | OnInconclusive::Warn => Exit::Success,
            OnInconclusive::Fail => Exit::Inconclusive,
        },
    }
}

/// Says what is wrong with `-o` before anything is measured.
pub(crate) fn check_outputs(paths: &[PathBuf]) -> Result<(), Failure> {
    paths.iter().try_for_each(|path| kind_of(path).map(|_| ()))
}

fn kind_of(path: &Path) -> Result<Kind, Failure> {
    let is_named = |name: &str| path.file_name().is_some_and(|found| found.eq_ignore_ascii_case(name));
    if [MANIFEST_FILE, SAMPLES_FILE, EVENTS_FILE, RUN_FILE, PLAN_FILE, LOCK_FILE].into_iter().any(is_named) {
        return Err(Failure::OutputIsRecord { path: path.into() });
    }
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("html") => Ok(Kind::Html),
        Some("md") => Ok(Kind::Markdown),
        Some("json") if is_named(BADGE_FILE) => Ok(Kind::Badge),
        Some("json") => Ok(Kind::Json),
        Some("xml") => Ok(Kind::Junit),
        Some("parquet") => Ok(Kind::Parquet),
        _ => Err(Failure::OutputKind { path: path.into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_headline_says_its_word_once() {
        assert_eq!(
            headline(Ruling::Inconclusive, "Inconclusive: too few pairs: 4."),
            "INCONCLUSIVE: too few pairs: 4."
        );
        assert_eq!(headline(Ruling::Regressed, "fp8: fell."), "REGRESSED: fp8: fell.");
    }

    #[test]
    fn only_a_pass_and_a_tolerated_doubt_exit_with_zero() {
        use OnInconclusive::{Fail, Pass, Warn};
        let table = [
            (Ruling::Pass, [0, 0, 0]),
            (Ruling::Inconclusive, [0, 0, 5]),
            (Ruling::Invalid, [6, 6, 6]),
            (Ruling::Regressed, [100, 100, 100]),
        ];
        for (ruling, codes) in table {
            assert_eq!([Pass, Warn, Fail].map(|policy| exit_of(ruling, policy).code()), codes, "{ruling:?}");
        }
    }
}
