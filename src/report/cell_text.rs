//! One judged cell or symptom in one line of plain text, for outputs that have no tables.

use crate::gate::{CellVerdict, SymptomVerdict};
use crate::report::figures;

/// `retrieval at 128K: 85.8 % → 25.0 % (−60.8 points, 95 % interval [−74.9, −46.8], adjusted p <0.001, 120 pairs, flips 75 / 2)`,
/// then why the ruling is what it is.
pub(crate) fn cell_text(cell: &CellVerdict) -> String {
    let delta = &cell.delta;
    let share = |right: u64| figures::percent(figures::share(right, delta.pairs));
    let mut text = format!(
        "{} at {}: {} → {} ({} points, 95 % interval {}{}, {}, flips {} / {})",
        cell.group.name(),
        cell.bin,
        share(delta.baseline_right),
        share(delta.candidate_right),
        figures::points(delta.delta),
        figures::interval_points(delta.interval),
        cell.adjusted_p.map(|p| format!(", adjusted p {}", figures::p_value(Some(p)))).unwrap_or_default(),
        figures::counted(delta.pairs, "pair"),
        delta.regressions,
        delta.fixes,
    );
    if delta.not_scored() > 0 {
        text += &format!("; {} not scored", figures::count(delta.not_scored()));
    }
    for reason in &cell.reasons {
        text += &format!("; {reason}");
    }
    if let Some(pairs) = cell.pairs_needed {
        text += &format!("; PASS would take about {} pairs", figures::count(pairs));
    }
    text
}

/// `repetition at 128K: 4 → 51 of 240 answers (adjusted p <0.001)`.
pub(crate) fn symptom_text(judged: &SymptomVerdict) -> String {
    let symptom = &judged.symptom;
    format!(
        "{} at {}: {} → {} of {} (adjusted p {})",
        symptom.kind.name(),
        symptom.bin,
        figures::count(symptom.baseline),
        figures::count(symptom.candidate),
        figures::counted(symptom.pairs, "answer"),
        figures::p_value(Some(judged.adjusted_p))
    )
}
