//! Tables on the terminal.

use comfy_table::{CellAlignment, ContentArrangement, LineStyle, Table, TableStyle};
use kvgauge::compare::{ArmComparison, Comparison, Delta};
use kvgauge::gate::Overview;
use kvgauge::units::{format_percent, format_points};

/// One line under the header: the eye follows rows by itself.
const STYLE: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// Rows are bins, columns are arms.
pub(crate) fn overview(overview: &Overview) -> String {
    let mut header = vec!["bin".to_string(), format!("{} (baseline)", overview.baseline)];
    header.extend(overview.arms.iter().map(|arm| arm.name.clone()));
    let mut table = empty(header);
    for row in &overview.rows {
        let mut cells = vec![row.bin.to_string(), row.baseline_text()];
        cells.extend(row.cells.iter().map(kvgauge::gate::OverviewCell::text));
        table.add_row(cells);
    }
    let mut rulings = vec!["verdict".to_string(), String::new()];
    rulings.extend(overview.arms.iter().map(|arm| format!("{} {}", arm.ruling.symbol(), arm.ruling.name())));
    table.add_row(rulings);
    finished(table)
}

/// Every judged cell of every candidate, without a judgement.
pub(crate) fn deltas(comparison: &Comparison) -> String {
    let header = ["arm", "bin", "group", "pairs", "baseline", "arm", "delta", "95 % interval", "worse", "better", "p"];
    let mut table = empty(header.map(String::from).to_vec());
    for arm in comparison.candidates.iter().chain(&comparison.control) {
        for row in rows(arm) {
            table.add_row(row);
        }
    }
    finished(table)
}

fn rows(arm: &ArmComparison) -> Vec<Vec<String>> {
    let name = &arm.summary.arm.name;
    arm.groups
        .iter()
        .map(|cell| {
            let mut row = vec![name.clone(), cell.delta.bin.map_or_else(|| "all".into(), |bin| bin.to_string())];
            row.push(cell.group.name().into());
            row.extend(numbers(&cell.delta));
            row
        })
        .collect()
}

fn numbers(delta: &Delta) -> Vec<String> {
    let share = |right: u64| match delta.pairs {
        0 => "–".into(),
        pairs => format_percent(right as f64 / pairs as f64),
    };
    let points = |value: Option<f64>| value.map_or_else(|| "–".into(), format_points);
    vec![
        delta.pairs.to_string(),
        share(delta.baseline_right),
        share(delta.candidate_right),
        points(delta.delta),
        delta
            .interval
            .map_or_else(|| "–".into(), |(low, high)| format!("{} … {}", format_points(low), format_points(high))),
        delta.regressions.to_string(),
        delta.fixes.to_string(),
        delta.p_worse.map_or_else(|| "–".into(), p_value),
    ]
}

fn p_value(p: f64) -> String {
    if p < 0.001 { "< 0.001".into() } else { format!("{p:.3}") }
}

/// A table with a header; names to the left, figures to the right.
pub(crate) fn empty(header: Vec<String>) -> Table {
    let mut table = Table::new();
    table.load_style(STYLE).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header);
    table
}

/// The table as text with a final newline.
pub(crate) fn finished(mut table: Table) -> String {
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!("{}\n", trimmed(&table.to_string()))
}

/// Names only: everything to the left.
pub(crate) fn finished_left(table: &Table) -> String {
    format!("{}\n", trimmed(&table.to_string()))
}

fn trimmed(text: &str) -> String {
    text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}
