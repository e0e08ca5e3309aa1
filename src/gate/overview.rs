//! The table at the end of a run: rows are bins, columns are arms. Terminal and Markdown print the same one.
//!
//! Every column shows the share of right answers among the arm's own valid items: those that are neither error nor invalid; an
//! answer that ran into the output limit is valid and not right. In brackets is the paired difference, which is over the scored
//! pairs only; where items are not scored, the brackets say how many.

use crate::compare::{Comparison, Delta};
use crate::gate::{ArmVerdict, CellVerdict, Ruling, Verdict};
use crate::sample::{Bin, FindingKind};
use crate::units::{format_percent, format_points};

/// Rows are bins, columns the baseline and the candidates.
#[derive(Clone, Debug, PartialEq)]
pub struct Overview {
    /// Name of the baseline arm.
    pub baseline: String,
    /// The candidates.
    pub arms: Vec<OverviewArm>,
    /// One per bin, ascending.
    pub rows: Vec<OverviewRow>,
}

/// A column.
#[derive(Clone, Debug, PartialEq)]
pub struct OverviewArm {
    /// Arm name.
    pub name: String,
    /// The arm's ruling.
    pub ruling: Ruling,
}

/// A row.
#[derive(Clone, Debug, PartialEq)]
pub struct OverviewRow {
    /// The bin.
    pub bin: Bin,
    /// Valid items of the baseline.
    pub baseline_n: u64,
    /// Share of them that is right.
    pub baseline_accuracy: Option<f64>,
    /// One per candidate, in the order of [`Overview::arms`].
    pub cells: Vec<OverviewCell>,
}

/// One candidate in one bin, over its task groups.
#[derive(Clone, Debug, PartialEq)]
pub struct OverviewCell {
    /// Items of the cells.
    pub items: u64,
    /// Scored pairs among them.
    pub pairs: u64,
    /// Share of right answers among the arm's valid items.
    pub accuracy: Option<f64>,
    /// Candidate − baseline on the scored pairs.
    pub delta: Option<f64>,
    /// The worst ruling of the bin's judged cells and symptoms; INVALID when the arm is.
    pub ruling: Ruling,
    /// Symptoms that fail the gate here.
    pub symptoms: Vec<FindingKind>,
}

impl Ruling {
    /// The word of the verdict: `PASS`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Inconclusive => "INCONCLUSIVE",
            Self::Invalid => "INVALID",
            Self::Regressed => "REGRESSED",
        }
    }

    /// One character, to be read without colour.
    pub fn symbol(self) -> &'static str {
        match self {
            Self::Pass => "✓",
            Self::Inconclusive => "?",
            Self::Invalid => "!",
            Self::Regressed => "✗",
        }
    }
}

/// Builds the table.
pub fn overview(comparison: &Comparison, verdict: &Verdict) -> Overview {
    Overview {
        baseline: comparison.baseline.arm.name.clone(),
        arms: verdict.arms.iter().map(|arm| OverviewArm { name: arm.arm.clone(), ruling: arm.ruling }).collect(),
        rows: comparison.bins.iter().map(|bin| row(comparison, verdict, *bin)).collect(),
    }
}

fn row(comparison: &Comparison, verdict: &Verdict, bin: Bin) -> OverviewRow {
    let cells = comparison.baseline.cells.iter().filter(|cell| cell.bin == bin);
    let (baseline_n, right) = cells.fold((0, 0), |(n, right), cell| (n + cell.n, right + cell.right));
    OverviewRow {
        bin,
        baseline_n,
        baseline_accuracy: share(right, baseline_n),
        cells: verdict.arms.iter().map(|arm| cell(arm, bin)).collect(),
    }
}

fn cell(arm: &ArmVerdict, bin: Bin) -> OverviewCell {
    let cells: Vec<&CellVerdict> = arm.cells.iter().filter(|cell| cell.bin == bin).collect();
    let sum = |read: fn(&Delta) -> u64| -> u64 { cells.iter().map(|cell| read(&cell.delta)).sum() };
    let pairs = sum(|delta| delta.pairs);
    let (baseline_right, right) = (sum(|delta| delta.baseline_right), sum(|delta| delta.candidate_right));
    let symptoms: Vec<FindingKind> =
        arm.symptoms.iter().filter(|it| it.regressed && it.symptom.bin == bin).map(|it| it.symptom.kind).collect();
    let ruling = if arm.ruling == Ruling::Invalid {
        Ruling::Invalid
    } else if !symptoms.is_empty() {
        Ruling::Regressed
    } else {
        cells.iter().map(|cell| cell.ruling).max().unwrap_or(Ruling::Inconclusive)
    };
    OverviewCell {
        items: sum(|delta| delta.items),
        pairs,
        accuracy: share(sum(|delta| delta.candidate_answered.right), sum(|delta| delta.candidate_answered.items)),
        delta: share(right, pairs).zip(share(baseline_right, pairs)).map(|(arm, base)| arm - base),
        ruling,
        symptoms,
    }
}

fn share(right: u64, n: u64) -> Option<f64> {
    (n > 0).then(|| right as f64 / n as f64)
}

impl OverviewCell {
    /// `58.3 % (−33.3) ✗ repetition`, `40.0 % (0.0, 60 of 100 not scored) ?`; `– ?` without an answer.
    pub fn text(&self) -> String {
        let accuracy = self.accuracy.map_or_else(|| "–".into(), format_percent);
        let delta = self.delta.map(format_points);
        let not_scored = self.items.saturating_sub(self.pairs);
        let not_scored = (not_scored > 0).then(|| format!("{not_scored} of {} not scored", self.items));
        let brackets: Vec<String> = delta.into_iter().chain(not_scored).collect();
        let numbers = if brackets.is_empty() { accuracy } else { format!("{accuracy} ({})", brackets.join(", ")) };
        let symptoms: Vec<String> = self.symptoms.iter().map(|kind| format!(" {}", kind.name())).collect();
        format!("{numbers} {}{}", self.ruling.symbol(), symptoms.join(""))
    }
}

impl OverviewRow {
    /// `91.7 % (n 24)`; `–` without an item.
    pub fn baseline_text(&self) -> String {
        self.baseline_accuracy
            .map_or_else(|| "–".into(), |share| format!("{} (n {})", format_percent(share), self.baseline_n))
    }
}

impl Overview {
    /// Header, one row per bin and a last row with each arm's verdict, as text cells.
    pub fn rows_of_text(&self) -> Vec<Vec<String>> {
        let mut header = vec!["bin".to_owned(), format!("{} (baseline)", self.baseline)];
        header.extend(self.arms.iter().map(|arm| arm.name.clone()));
        let mut rows = vec![header];
        for row in &self.rows {
            let mut cells = vec![row.bin.to_string(), row.baseline_text()];
            cells.extend(row.cells.iter().map(OverviewCell::text));
            rows.push(cells);
        }
        let mut last = vec!["verdict".to_owned(), String::new()];
        last.extend(self.arms.iter().map(|arm| format!("{} {}", arm.ruling.symbol(), arm.ruling.name())));
        rows.push(last);
        rows
    }
}
