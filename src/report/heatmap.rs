//! Depth × length heatmaps of one candidate: baseline, candidate, and the difference, with numbers in the cells.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::compare::{ArmComparison, Comparison, DepthCell};
use crate::report::figures;
use crate::sample::Bin;
use crate::suite::TaskGroup;

/// Pixels.
const WIDTH: f64 = 1000.0;
const GAP: f64 = 26.0;
const ROW_LABEL_WIDTH: f64 = 46.0;
const ROW_HEIGHT: f64 = 26.0;
const HEADER_HEIGHT: f64 = 46.0;

/// Text of a cell has the page's text colour, so the fill never gets so strong that the contrast falls below 4.5:1.
const STRONGEST_FILL: f64 = 0.5;
/// Columns up to which three maps stand beside each other and their figures still have room.
const MAX_COLUMNS_ABREAST: usize = 9;
/// Drops told in the description.
const MAX_DESCRIBED: usize = 12;
/// A difference of this much, or more, has the strongest fill.
const FULL_DELTA: f64 = 0.5;

/// What the template `heatmaps` draws.
#[derive(Debug, Serialize)]
pub(crate) struct Heatmaps {
    id: String,
    title: String,
    description: String,
    width: f64,
    height: f64,
    row_label_width: f64,
    /// Which tasks were added up.
    pub(crate) scope: String,
    panels: Vec<Panel>,
}

#[derive(Debug, Serialize)]
struct Panel {
    x: f64,
    y: f64,
    name: String,
    columns: Vec<Label>,
    rows: Vec<Label>,
    cells: Vec<Cell>,
}

#[derive(Debug, Serialize)]
struct Label {
    at: f64,
    text: String,
}

#[derive(Debug, Serialize)]
struct Cell {
    x: f64,
    y: f64,
    width: f64,
    height: f64,
    text_x: f64,
    text_y: f64,
    /// `better`, `worse`, `share` or `unknown`.
    class: &'static str,
    opacity: String,
    text: String,
    tooltip: String,
    anchor: String,
}

/// Right and valid items per slot × bin.
type Counts = BTreeMap<(u8, Bin), (u64, u64)>;

/// Lays the three maps out; `None` where no task has a depth.
pub(crate) fn heatmaps(comparison: &Comparison, arm: &ArmComparison, arm_index: usize) -> Option<Heatmaps> {
    let retrieval = |cell: &DepthCell| TaskGroup::of_task(&cell.task) == TaskGroup::Retrieval;
    let has_retrieval = comparison.baseline.depth_cells.iter().any(retrieval);
    let wanted = |cell: &DepthCell| !has_retrieval || retrieval(cell);
    let baseline = counts(comparison.baseline.depth_cells.iter().filter(|cell| wanted(cell)));
    let candidate = counts(arm.summary.depth_cells.iter().filter(|cell| wanted(cell)));
    let slots: BTreeSet<u8> = baseline.keys().chain(candidate.keys()).map(|(slot, _)| *slot).collect();
    if slots.is_empty() {
        return None;
    }
    let grid = Grid::new(slots.into_iter().collect(), &comparison.bins);
    let share_of = |counts: &Counts, key| counts.get(&key).and_then(|(right, n)| figures::share(*right, *n));
    let share_panel = |place: usize, name: &str, counts: &Counts| {
        grid.panel(place, name, |key| share_cell(share_of(counts, key), counts.get(&key).map_or(0, |(_, n)| *n)))
    };
    let baseline_name = &comparison.baseline.arm.name;
    let name = &arm.summary.arm.name;
    let panels = vec![
        share_panel(0, baseline_name, &baseline),
        share_panel(1, name, &candidate),
        grid.panel(2, "difference, points", |key| {
            delta_cell(share_of(&baseline, key).zip(share_of(&candidate, key)).map(|(before, after)| after - before))
        }),
    ];
    Some(Heatmaps {
        id: format!("heatmaps-{arm_index}"),
        title: format!("{name}: right answers by needle depth and context length"),
        description: describe(&panels),
        width: WIDTH,
        height: if grid.is_stacked { 3.0 * grid.panel_height() + 2.0 * GAP } else { grid.panel_height() },
        row_label_width: ROW_LABEL_WIDTH,
        scope: if has_retrieval { "retrieval tasks".into() } else { "all tasks".into() },
        panels,
    })
}

fn counts<'a>(cells: impl Iterator<Item = &'a DepthCell>) -> Counts {
    let mut counts = Counts::new();
    for cell in cells {
        let sum = counts.entry((cell.slot_percent, cell.bin)).or_default();
        sum.0 += cell.right;
        sum.1 += cell.n;
    }
    counts
}

/// The differences that are some, the largest first: a screen reader gets to the others cell by cell.
fn describe(panels: &[Panel]) -> String {
    let cells = panels.last().map_or(&[][..], |panel| &panel.cells);
    let mut drops: Vec<&Cell> = cells.iter().filter(|cell| cell.class == "worse").collect();
    drops.sort_by(|a, b| b.opacity.cmp(&a.opacity));
    if drops.is_empty() {
        return "no cell is below the baseline".into();
    }
    let told: Vec<&str> = drops.iter().take(MAX_DESCRIBED).map(|cell| cell.tooltip.as_str()).collect();
    format!("{} of {} cells are below the baseline: {}", drops.len(), cells.len(), told.join("; "))
}

/// Fill and text of one cell.
struct Content {
    class: &'static str,
    opacity: f64,
    text: String,
    detail: String,
}

fn unknown() -> Content {
    Content { class: "unknown", opacity: 0.0, text: figures::UNKNOWN.into(), detail: "not measured".into() }
}

fn share_cell(share: Option<f64>, n: u64) -> Content {
    share.map_or_else(unknown, |share| Content {
        class: "share",
        opacity: share * STRONGEST_FILL,
        text: format!("{:.0}", share * 100.0),
        detail: format!("{} right of {n}", figures::percent(Some(share))),
    })
}

fn delta_cell(delta: Option<f64>) -> Content {
    delta.map_or_else(unknown, |delta| Content {
        class: if delta < 0.0 { "worse" } else { "better" },
        opacity: (delta.abs() / FULL_DELTA).min(1.0) * STRONGEST_FILL,
        text: figures::signed(delta * 100.0, 0),
        detail: format!("{} points", figures::points(Some(delta))),
    })
}

struct Grid<'a> {
    slots: Vec<u8>,
    bins: &'a [Bin],
    /// The maps are below each other and not abreast.
    is_stacked: bool,
    panel_width: f64,
    column_width: f64,
}

impl<'a> Grid<'a> {
    fn new(slots: Vec<u8>, bins: &'a [Bin]) -> Self {
        let is_stacked = bins.len() > MAX_COLUMNS_ABREAST;
        let panel_width = if is_stacked { WIDTH } else { (WIDTH - 2.0 * GAP) / 3.0 };
        Self {
            slots,
            bins,
            is_stacked,
            panel_width,
            column_width: (panel_width - ROW_LABEL_WIDTH) / bins.len().max(1) as f64,
        }
    }

    fn panel_height(&self) -> f64 {
        HEADER_HEIGHT + self.slots.len() as f64 * ROW_HEIGHT + 4.0
    }

    /// The map at `place`, counted from 0.
    fn panel(&self, place: usize, name: &str, content: impl Fn((u8, Bin)) -> Content) -> Panel {
        let left = |column: usize| ROW_LABEL_WIDTH + column as f64 * self.column_width;
        let top = |row: usize| HEADER_HEIGHT + row as f64 * ROW_HEIGHT;
        let middle = self.column_width / 2.0;
        let mut cells = Vec::new();
        for (row, slot) in self.slots.iter().enumerate() {
            for (column, bin) in self.bins.iter().enumerate() {
                let content = content((*slot, *bin));
                cells.push(Cell {
                    x: round(left(column) + 1.0),
                    y: top(row) + 1.0,
                    width: round(self.column_width - 2.0),
                    height: ROW_HEIGHT - 2.0,
                    text_x: round(left(column) + middle),
                    text_y: top(row) + ROW_HEIGHT / 2.0,
                    class: content.class,
                    opacity: format!("{:.2}", content.opacity),
                    text: content.text,
                    tooltip: format!("{bin}, depth {slot} %: {}", content.detail),
                    anchor: format!("bin-{}", bin.tokens()),
                });
            }
        }
        let place = place as f64;
        Panel {
            x: if self.is_stacked { 0.0 } else { round(place * (self.panel_width + GAP)) },
            y: if self.is_stacked { place * (self.panel_height() + GAP) } else { 0.0 },
            name: name.to_owned(),
            columns: self
                .bins
                .iter()
                .enumerate()
                .map(|(column, bin)| Label { at: round(left(column) + middle), text: bin.to_string() })
                .collect(),
            rows: self
                .slots
                .iter()
                .enumerate()
                .map(|(row, slot)| Label { at: top(row) + ROW_HEIGHT / 2.0, text: format!("{slot} %") })
                .collect(),
            cells,
        }
    }
}

fn round(pixels: f64) -> f64 {
    (pixels * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_is_not_zero_and_a_drop_is_worse() {
        assert_eq!(share_cell(None, 0).text, figures::UNKNOWN);
        assert_eq!(share_cell(Some(0.0), 8).text, "0");
        let drop = delta_cell(Some(-0.25));
        assert_eq!((drop.class, drop.text.as_str()), ("worse", "−25"));
        assert!(delta_cell(Some(-1.0)).opacity <= STRONGEST_FILL);
    }
}
