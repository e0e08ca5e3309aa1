//! GitHub annotations: the worst bins as workflow commands, which the runner turns into marks on the run.

use std::cmp::Ordering;

use crate::gate::{ArmVerdict, CellVerdict, Ruling};
use crate::report::ReportError;
use crate::report::cell_text::{cell_text, symptom_text};
use crate::report::page::ReportInput;
use crate::report::text::{clip, visible};
use crate::sample::Bin;
use crate::suite::Tier;

/// GitHub shows ten annotations of a kind per step and drops the others without a word.
pub const MAX_ANNOTATIONS: usize = 10;

/// Characters of a title; the page cuts longer ones.
const MAX_TITLE_CHARS: usize = 200;
/// Characters of a message: a whole one has to fit into a line of the log that can be read.
const MAX_MESSAGE_CHARS: usize = 1000;

/// One mark.
struct Annotation {
    ruling: Ruling,
    /// Points lost; orders marks of one ruling.
    delta: f64,
    title: String,
    message: String,
}

/// At most [`MAX_ANNOTATIONS`] workflow commands, one per line, the worst first: an error for each bin in which a candidate regressed
/// and for each candidate that could not be measured, a warning for each candidate that is inconclusive. Nothing for a PASS.
///
/// # Errors
/// [`ReportError::ArmsDiffer`] when comparison and verdict do not belong together.
pub fn annotations(input: &ReportInput) -> Result<Vec<String>, ReportError> {
    input.check()?;
    let mut marks: Vec<Annotation> = input.verdict.arms.iter().flat_map(of_arm).collect();
    marks.sort_by(|a, b| b.ruling.cmp(&a.ruling).then(a.delta.total_cmp(&b.delta)));
    Ok(marks.iter().take(MAX_ANNOTATIONS).map(command).collect())
}

fn command(mark: &Annotation) -> String {
    let level = if mark.ruling == Ruling::Inconclusive { "warning" } else { "error" };
    let title = property(&visible(&clip(&mark.title, MAX_TITLE_CHARS)));
    let message = data(&visible(&clip(&mark.message, MAX_MESSAGE_CHARS)));
    format!("::{level} title={title}::{message}")
}

/// What the runner undoes behind the second `::`. The percent sign comes first: it starts the other escapes.
fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// What the runner undoes in a property, which a comma or a colon would end.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

fn of_arm(arm: &ArmVerdict) -> Vec<Annotation> {
    let whole = || Annotation {
        ruling: arm.ruling,
        delta: arm.cells.iter().filter_map(|cell| cell.delta.delta).fold(0.0, f64::min),
        title: format!("{}: {}", arm.ruling.name(), arm.arm),
        message: std::iter::once(&arm.sentence).chain(&arm.invalid).cloned().collect::<Vec<_>>().join("\n"),
    };
    match arm.ruling {
        Ruling::Pass => Vec::new(),
        Ruling::Inconclusive | Ruling::Invalid => vec![whole()],
        Ruling::Regressed => {
            let marks = regressed_bins(arm);
            if marks.is_empty() { vec![whole()] } else { marks }
        }
    }
}

fn regressed_bins(arm: &ArmVerdict) -> Vec<Annotation> {
    let mut bins: Vec<Bin> = arm.cells.iter().map(|cell| cell.bin).collect();
    bins.extend(arm.symptoms.iter().map(|judged| judged.symptom.bin));
    bins.sort_unstable();
    bins.dedup();
    bins.into_iter().filter_map(|bin| regressed_bin(arm, bin)).collect()
}

fn regressed_bin(arm: &ArmVerdict, bin: Bin) -> Option<Annotation> {
    let by_drop = |a: &&CellVerdict, b: &&CellVerdict| -> Ordering {
        let delta = |cell: &CellVerdict| cell.delta.delta.unwrap_or(0.0);
        delta(a).total_cmp(&delta(b))
    };
    let counts =
        |cell: &&CellVerdict| cell.bin == bin && cell.ruling == Ruling::Regressed && cell.tier == Tier::Critical;
    let mut cells: Vec<&CellVerdict> = arm.cells.iter().filter(counts).collect();
    cells.sort_by(by_drop);
    let rising = arm.symptoms.iter().filter(|judged| judged.regressed && judged.symptom.bin == bin);
    let lines: Vec<String> = cells.iter().map(|cell| cell_text(cell)).chain(rising.map(symptom_text)).collect();
    (!lines.is_empty()).then(|| Annotation {
        ruling: Ruling::Regressed,
        delta: cells.first().and_then(|cell| cell.delta.delta).unwrap_or(0.0),
        title: format!("{}: {} at {bin}", Ruling::Regressed.name(), arm.arm),
        message: lines.join("\n"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_text_ends_its_property_its_message_or_its_line() {
        let mark = Annotation {
            ruling: Ruling::Regressed,
            delta: 0.0,
            title: "a:b,c::d%0A".into(),
            message: "100 %\r\n::add-mask::x".into(),
        };
        assert_eq!(command(&mark), "::error title=a%3Ab%2Cc%3A%3Ad%250A::100 %25\\u{d}%0A::add-mask::x");
    }
}
