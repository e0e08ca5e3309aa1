//! `badge.json`: the verdict for a README, in the schema of shields' endpoint badges.

use serde::Serialize;

use crate::gate::Ruling;
use crate::report::figures;
use crate::report::page::ReportInput;
use crate::report::sections::verdict::worst_cell;
use crate::report::text::{clip, visible};

/// Version of the endpoint schema; the only one there is.
const SCHEMA_VERSION: u32 = 1;
/// Characters of label and message: a badge is one short line.
const MAX_TEXT_CHARS: usize = 60;

/// Keys as the schema spells them.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Badge {
    schema_version: u32,
    label: &'static str,
    message: String,
    color: &'static str,
    /// Keeps a query of the link from painting a failure green.
    is_error: bool,
}

/// `badge.json`: the ruling, and for a regression its worst bin. Without times: the same bytes for the same input.
pub fn badge_json(input: &ReportInput) -> String {
    let ruling = input.verdict.ruling;
    let color = match ruling {
        Ruling::Pass => "brightgreen",
        Ruling::Inconclusive => "yellow",
        Ruling::Invalid => "lightgrey",
        Ruling::Regressed => "red",
    };
    let word = ruling.name().to_lowercase();
    let message = match worst_cell(input.verdict) {
        Some((arm, cell)) if cell.ruling == Ruling::Regressed && ruling == Ruling::Regressed => {
            format!("{word} · {arm} {} at {}", figures::points(cell.delta.delta), cell.bin)
        }
        _ => format!("{word} · {}", figures::counted(input.verdict.arms.len() as u64, "KV dtype")),
    };
    let badge = Badge {
        schema_version: SCHEMA_VERSION,
        label: "KV cache quality",
        message: visible(&clip(&message, MAX_TEXT_CHARS)).replace(['\n', '\t'], " "),
        color,
        is_error: matches!(ruling, Ruling::Invalid | Ruling::Regressed),
    };
    let mut text = serde_json::to_string_pretty(&badge).expect("strings and numbers always serialize");
    text.push('\n');
    text
}
