//! Comparison + verdict → one self-contained HTML file, and the other documents for people and CI.
//!
//! The page has no script, loads nothing, and is the same byte for byte for the same input; times are in its section `timing` only.
//! A new section is one file in `sections/`, one template in `templates/` and one line in [`SECTIONS`].

mod annotations;
mod badge;
mod cell_text;
mod csp;
mod diff;
mod figures;
mod forest;
mod heatmap;
mod history;
mod ink;
mod json;
mod junit;
mod kv_record;
mod markdown;
mod page;
mod plot;
mod sections;
mod selftest;
mod small_multiple;
mod text;
mod timings;

use minijinja::value::Value;

use crate::hint::Hint;

/// A template's view: names and anything that serializes, borrowed.
macro_rules! fields {
    ($($name:ident => $value:expr),* $(,)?) => {
        minijinja::context! { $($name => minijinja::value::Value::from(minijinja::value::Serde(&$value))),* }
    };
}
use fields;

pub use annotations::{MAX_ANNOTATIONS, annotations};
pub use badge::badge_json;
pub use history::{History, HistoryError};
pub use json::comparison_json;
pub use junit::render_junit;
pub use kv_record::{
    BinLatency, BinQuality, BinThroughput, GroupQuality, KvCapacity, KvRecord, KvStatus, kv_record_json, kv_records,
};
pub use markdown::{MARKDOWN_MAX_CHARS, MARKER, render_markdown};
pub use page::{HTML_MAX_BYTES, HTML_WARN_BYTES, ReportInput, render_html};
pub use plot::{LinePanel, PlotLine, PlotScale, line_panels};
pub use selftest::{SelfTestPage, render_selftest};
pub use text::{terminal_json, terminal_text};
pub use timings::{ArmTimings, BinTimings, Timings, timings_json};

use page::Page;

/// One section of the page.
struct Section {
    /// Anchor, and name of its template.
    id: &'static str,
    /// Heading.
    title: &'static str,
    /// Source of its template.
    template: &'static str,
    /// What the template is rendered from; `None` leaves the section out.
    view: fn(&Page) -> Result<Option<Value>, ReportError>,
}

macro_rules! section {
    ($module:ident, $id:literal, $title:literal) => {
        Section {
            id: $id,
            title: $title,
            template: include_str!(concat!("templates/", stringify!($module), ".html")),
            view: sections::$module::view,
        }
    };
}

/// All sections, in reading order: the verdict first, what it rests on after it, how to make it again last.
static SECTIONS: &[Section] = &[
    section!(verdict, "verdict", "Verdict"),
    section!(confirmation, "confirmation", "Asked again on fresh seeds"),
    section!(in_effect, "in-effect", "Requested against in effect"),
    section!(kv_record, "kv-record", "KV quantization record"),
    section!(quality, "quality", "Quality per bin"),
    section!(averages, "averages", "What the average hides"),
    section!(tasks, "tasks", "Task by task"),
    section!(turns, "turns", "Turn by turn"),
    section!(likelihood, "likelihood", "Likelihood of the right answer"),
    section!(robustness, "robustness", "Other wordings of the same question"),
    section!(flips, "flips", "Answers that changed"),
    section!(control, "control", "Noise: the baseline against itself"),
    section!(timing, "timing", "Speed and memory"),
    section!(history, "history", "History"),
    section!(comparability, "comparability", "Comparability"),
    section!(run, "run", "Run details"),
];

/// Why a report could not be written.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// Comparison and verdict speak of different arms.
    #[error("the verdict judges the arms [{judged}], the comparison holds [{compared}]")]
    ArmsDiffer {
        /// Arms of the comparison.
        compared: String,
        /// Arms of the verdict.
        judged: String,
    },
    /// A template failed.
    #[error("template `{name}`: {source}")]
    Template {
        /// The template.
        name: &'static str,
        /// What the engine says.
        source: minijinja::Error,
    },
    /// A plot could not be drawn.
    #[error("plot of {plot}: {message}")]
    Plot {
        /// Which plot.
        plot: &'static str,
        /// What the plotting library says.
        message: String,
    },
    /// The XML could not be written.
    #[error("junit.xml: {message}")]
    Xml {
        /// What the XML library says.
        message: String,
    },
    /// Too many tasks, bins or arms for one page.
    #[error("the page has {bytes} bytes even without examples, more than {limit}")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
}

impl Hint for ReportError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::ArmsDiffer { .. } => vec!["judge this comparison again: the verdict belongs to another one".into()],
            Self::TooLarge { .. } => vec!["report fewer candidates or tasks at a time".into()],
            Self::Template { .. } | Self::Plot { .. } | Self::Xml { .. } => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_section_file_is_registered_and_no_template_bypasses_escaping() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/report");
        let names = |folder: &Path, extension: &str| -> BTreeSet<String> {
            let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
            let wanted = files.filter(|path| path.extension().is_some_and(|found| found == extension));
            wanted.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).collect()
        };
        let registered: BTreeSet<String> = SECTIONS.iter().map(|section| section.id.replace('-', "_")).collect();
        let mut files = names(&folder.join("sections"), "rs");
        files.remove("mod");
        assert_eq!(files, registered);
        for name in names(&folder.join("templates"), "html") {
            let source = std::fs::read_to_string(folder.join("templates").join(format!("{name}.html"))).unwrap();
            for bypass in ["safe", "autoescape", "style=", "<script"] {
                assert!(!source.contains(bypass), "{name} has `{bypass}`");
            }
        }
    }
}
