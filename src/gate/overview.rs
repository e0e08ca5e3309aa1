//! The table at the end of a run: rows are bins, columns are arms. Terminal and Markdown print the same one.

use crate::compare::Comparison;
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
    /// Pairs.
    pub pairs: u64,
    /// Share of right answers.
    pub accuracy: Option<f64>,
    /// Candidate − baseline on the same pairs.
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
    let pairs = cells.iter().map(|cell| cell.delta.pairs).sum();
    let baseline_right: u64 = cells.iter().map(|cell| cell.delta.baseline_right).sum();
    let right: u64 = cells.iter().map(|cell| cell.delta.candidate_right).sum();
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
        pairs,
        accuracy: share(right, pairs),
        delta: share(right, pairs).zip(share(baseline_right, pairs)).map(|(arm, base)| arm - base),
        ruling,
        symptoms,
    }
}

fn share(right: u64, n: u64) -> Option<f64> {
    (n > 0).then(|| right as f64 / n as f64)
}

impl OverviewCell {
    /// `58.3 % (−33.3) ✗ repetition`; `– ?` without a pair.
    pub fn text(&self) -> String {
        let numbers = match (self.accuracy, self.delta) {
            (Some(accuracy), Some(delta)) => format!("{} ({})", format_percent(accuracy), format_points(delta)),
            _ => "–".into(),
        };
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
