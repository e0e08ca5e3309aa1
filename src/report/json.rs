//! `comparison.json`: everything found and judged, without times.

use serde::Serialize;

use crate::compare::Comparison;
use crate::gate::Verdict;

#[derive(Serialize)]
struct Document<'a> {
    comparison: &'a Comparison,
    verdict: &'a Verdict,
}

/// `comparison.json`: the comparison and its verdict, the same bytes for the same input.
///
/// Lists are in the order of the comparison, maps are sorted; a number that is not finite is written as `null`.
pub fn comparison_json(comparison: &Comparison, verdict: &Verdict) -> String {
    let document = Document { comparison, verdict };
    let mut text = serde_json::to_string_pretty(&document).expect("string keys and plain numbers always serialize");
    text.push('\n');
    text
}
