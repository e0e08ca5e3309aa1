//! What a step of GitHub Actions is told: annotations in its log and the summary on its page.
//!
//! Nothing here can fail a run: the verdict is in the exit code and in the files.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;

use kvgauge::report::{ReportError, ReportInput, annotations, render_markdown};

use crate::output::{self, note};

/// Set to `true` on every runner.
const ON_A_RUNNER: &str = "GITHUB_ACTIONS";
/// The file whose Markdown becomes the summary of the step.
const STEP_SUMMARY: &str = "GITHUB_STEP_SUMMARY";

/// GitHub drops the whole summary of a step above 1 MiB; this leaves room for what the step appends after us.
const MAX_SUMMARY_BYTES: u64 = 900 * 1024;

/// Prints the worst bins as annotations and appends `summary.md` to the summary of the step; nothing outside of GitHub Actions.
pub(crate) fn tell(input: &ReportInput) {
    if std::env::var_os(ON_A_RUNNER).is_some_and(|value| value == "true") {
        match annotations(input) {
            Ok(commands) => commands.iter().for_each(|command| output::workflow_command(command)),
            Err(error) => note(&format!("warning: no annotations: {error}")),
        }
    }
    let Some(path) = std::env::var_os(STEP_SUMMARY).filter(|path| !path.is_empty()) else { return };
    match render_markdown(input) {
        Ok(summary) => append(Path::new(&path), &summary),
        Err(error) => not_written(&error),
    }
}

fn append(path: &Path, summary: &str) {
    let appended = OpenOptions::new().append(true).create(true).open(path).and_then(|mut file| {
        let there = file.metadata()?.len();
        if there + summary.len() as u64 + 1 > MAX_SUMMARY_BYTES {
            return Ok(false);
        }
        // What is there need not end in a line break, and a heading has to start a line.
        file.write_all(format!("\n{summary}").as_bytes())?;
        Ok(true)
    });
    match appended {
        Ok(true) => {}
        Ok(false) => note("warning: the summary of this step has no room for this report: see summary.md"),
        Err(error) => note(&format!("warning: the summary of this step cannot be written: {error}")),
    }
}

fn not_written(error: &ReportError) {
    note(&format!("warning: no summary of this step: {error}"));
}
