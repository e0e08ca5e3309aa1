//! What a benchmark leaves: text or JSON on standard output, and the files asked for.

use std::path::Path;

use kvgauge::report::{LinePanel, line_panels};
use serde::Serialize;

use super::BenchError;
use super::options::ResultArgs;
use crate::failure::Failure;
use crate::output;

/// The forms of one result.
pub(super) trait Presented: Serialize {
    /// For the terminal.
    fn text(&self) -> String;
    /// The same as a Markdown page.
    fn markdown(&self) -> String;
    /// The picture.
    fn panels(&self) -> Vec<LinePanel>;
}

#[derive(Clone, Copy)]
enum Kind {
    Json,
    Svg,
    Markdown,
}

fn kind(path: &Path) -> Result<Kind, BenchError> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("json") => Ok(Kind::Json),
        Some("svg") => Ok(Kind::Svg),
        Some("md") => Ok(Kind::Markdown),
        _ => Err(BenchError::OutputKind { path: path.into() }),
    }
}

/// A file that cannot be written is refused before minutes are spent on measuring.
pub(super) fn check(args: &ResultArgs) -> Result<(), BenchError> {
    args.output.iter().try_for_each(|path| kind(path).map(drop))
}

/// Prints the result and writes its files.
pub(super) fn deliver(result: &impl Presented, args: &ResultArgs) -> Result<(), Failure> {
    if args.json {
        output::print_json(result)?;
    } else {
        output::print(&result.text())?;
    }
    for path in &args.output {
        let text = match kind(path)? {
            Kind::Json => serde_json::to_string_pretty(result).map_err(Failure::Json)? + "\n",
            Kind::Svg => line_panels(&result.panels())?,
            Kind::Markdown => result.markdown(),
        };
        output::write_file(path, text.as_bytes())?;
    }
    Ok(())
}

/// A Markdown table.
pub(super) fn markdown_table(header: &[String], rows: &[Vec<String>]) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let rule = format!("|{}\n", " --- |".repeat(header.len()));
    line(header) + &rule + &rows.iter().map(|row| line(row)).collect::<String>()
}
