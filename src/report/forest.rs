//! Forest plot of one candidate: a row per judged cell with the paired difference, its interval and the margin.
//!
//! Drawn here and not by plotters because every row is a link with a tooltip.

use serde::Serialize;

use crate::gate::{ArmVerdict, CellVerdict, Ruling, margin_of_cell};
use crate::report::figures::{self, Mark};
use crate::suite::GatePolicy;

/// Pixels; the page is at most 1,100 wide, so the text is about as large as the page's.
const WIDTH: f64 = 1000.0;
const LABEL_WIDTH: f64 = 170.0;
const FIGURE_WIDTH: f64 = 330.0;
const ROW_HEIGHT: f64 = 24.0;
const AXIS_HEIGHT: f64 = 44.0;
const TOP: f64 = 8.0;
/// Rows told in the description of a plot.
const MAX_DESCRIBED: usize = 24;

/// What the template `forest` draws.
#[derive(Debug, Serialize)]
pub(crate) struct Forest {
    id: String,
    title: String,
    description: String,
    width: f64,
    height: f64,
    axis_y: f64,
    left_x: f64,
    right_x: f64,
    figure_x: f64,
    zero_x: f64,
    margin_label: String,
    margin_label_x: f64,
    ink: String,
    ticks: Vec<Tick>,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Tick {
    x: f64,
    label: String,
}

#[derive(Debug, Serialize)]
struct Row {
    y: f64,
    top: f64,
    bottom: f64,
    bin: String,
    starts_bin: bool,
    group: &'static str,
    x: Option<f64>,
    /// The interval with its two ends, as one path.
    whisker: Option<String>,
    margin_x: f64,
    figure: String,
    mark: Mark,
    anchor: String,
    tooltip: String,
}

/// The range of an axis in points, wide enough for every candidate: rows of different plots can be compared.
pub(crate) fn shared_range<'a>(arms: impl Iterator<Item = &'a ArmVerdict>, policy: &GatePolicy) -> (f64, f64) {
    let cells = arms.flat_map(|arm| &arm.cells);
    let ends = cells.filter_map(|cell| cell.delta.interval.or(cell.delta.delta.map(|delta| (delta, delta))));
    let finite = ends.filter(|(low, high)| low.is_finite() && high.is_finite());
    let (low, high) =
        finite.fold((-policy.margin * 1.5, policy.margin), |(low, high), (a, b)| (low.min(a), high.max(b)));
    let step = tick_step(high - low);
    ((low / step).floor() * step, (high / step).ceil() * step)
}

fn tick_step(span: f64) -> f64 {
    [0.01, 0.02, 0.05, 0.1, 0.2].into_iter().find(|step| span / step <= 10.0).unwrap_or(0.5)
}

/// Lays the plot out. `anchor` names the table row of a cell by its place in the verdict.
pub(crate) fn forest(
    arm_index: usize,
    verdict: &ArmVerdict,
    policy: &GatePolicy,
    (from, to): (f64, f64),
    ink: String,
) -> Forest {
    let (left_x, right_x) = (LABEL_WIDTH, WIDTH - FIGURE_WIDTH);
    let place = |value: f64| round(left_x + (value.clamp(from, to) - from) / (to - from) * (right_x - left_x));
    let mut cells: Vec<(usize, &CellVerdict)> = verdict.cells.iter().enumerate().collect();
    cells.sort_by_key(|(_, cell)| (cell.bin, cell.group));
    let mut rows = Vec::with_capacity(cells.len());
    let mut previous = None;
    for (line, (index, cell)) in cells.into_iter().enumerate() {
        let top = TOP + line as f64 * ROW_HEIGHT;
        let interval = cell.delta.interval.filter(|(low, high)| low.is_finite() && high.is_finite());
        let figure = format!("{} {}", figures::points(cell.delta.delta), figures::interval_points(interval));
        let mark = figures::mark(cell.ruling);
        rows.push(Row {
            y: top + ROW_HEIGHT / 2.0,
            top,
            bottom: top + ROW_HEIGHT,
            bin: cell.bin.to_string(),
            starts_bin: previous != Some(cell.bin),
            group: cell.group.name(),
            x: cell.delta.delta.filter(|delta| delta.is_finite()).map(place),
            whisker: interval.map(|(low, high)| {
                let (low, high, end_y) = (place(low), place(high), top + ROW_HEIGHT / 2.0 - 4.0);
                format!("M{low} {end_y}v8m0-4H{high}m0-4v8")
            }),
            margin_x: place(-margin_of_cell(policy, cell.group, cell.bin)),
            tooltip: format!(
                "{} {}: {figure} points, {} pairs, {}",
                cell.bin,
                cell.group.name(),
                cell.delta.pairs,
                mark.word
            ),
            figure,
            mark,
            anchor: format!("cell-{arm_index}-{index}"),
        });
        previous = Some(cell.bin);
    }
    let axis_y = TOP + rows.len() as f64 * ROW_HEIGHT;
    Forest {
        id: format!("forest-{arm_index}"),
        title: format!("{}: difference to the baseline in points, per bin and task group", verdict.arm),
        description: describe(&rows),
        width: WIDTH,
        height: axis_y + AXIS_HEIGHT,
        axis_y,
        left_x,
        right_x,
        figure_x: right_x + 16.0,
        zero_x: place(0.0),
        margin_label: format!("margin {}", figures::points(Some(-policy.margin))),
        margin_label_x: place(-policy.margin),
        ink,
        ticks: ticks(from, to).map(|value| Tick { x: place(value), label: tick_label(value) }).collect(),
        rows,
    }
}

/// The rows in words, of many only those that regressed: the table below the plot has all of them.
fn describe(rows: &[Row]) -> String {
    let worst = figures::mark(Ruling::Regressed);
    let is_told = |row: &&Row| rows.len() <= MAX_DESCRIBED || row.mark == worst;
    let mut told: Vec<&str> = rows.iter().filter(is_told).map(|row| row.tooltip.as_str()).collect();
    let hidden = rows.len() - told.len().min(MAX_DESCRIBED);
    told.truncate(MAX_DESCRIBED);
    let more = if hidden > 0 { format!("; {hidden} more rows are in the table below") } else { String::new() };
    format!("{}{more}", told.join("; "))
}

fn ticks(from: f64, to: f64) -> impl Iterator<Item = f64> {
    let step = tick_step(to - from);
    let (first, last) = ((from / step - 1e-9).ceil() as i64, (to / step + 1e-9).floor() as i64);
    (first..=last).map(move |tick| tick as f64 * step)
}

fn tick_label(value: f64) -> String {
    figures::signed((value * 100.0).round(), 0)
}

/// Tenths of a pixel are finer than any screen.
fn round(pixels: f64) -> f64 {
    (pixels * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_holds_margin_and_zero_with_a_readable_number_of_ticks() {
        let policy = GatePolicy::default();
        let (from, to) = shared_range(std::iter::empty(), &policy);
        assert!(from <= -policy.margin && to >= 0.0);
        let labels: Vec<String> = ticks(from, to).map(tick_label).collect();
        assert!(labels.len() <= 12 && labels.contains(&"0".to_owned()), "{labels:?}");
        let wide: Vec<String> = ticks(-0.9, 0.3).map(tick_label).collect();
        assert!(wide.len() <= 12 && wide.contains(&"0".to_owned()), "{wide:?}");
    }
}
