//! Conversations turn by turn: shown, not judged; the cell of the task is.

use std::collections::BTreeSet;

use minijinja::value::Value;

use crate::compare::{ArmSummary, TurnCell};
use crate::report::page::Page;
use crate::report::{ReportError, fields, figures};
use crate::sample::Bin;

pub(crate) fn view(page: &Page) -> Result<Option<Value>, ReportError> {
    let comparison = page.input.comparison;
    let others = comparison.control.iter().chain(&comparison.candidates).map(|arm| &arm.summary);
    let arms: Vec<&ArmSummary> = std::iter::once(&comparison.baseline).chain(others).collect();
    let places: BTreeSet<(Bin, &str)> =
        arms.iter().flat_map(|arm| &arm.turns).map(|cell| (cell.bin, cell.task.as_str())).collect();
    let last_turn = arms.iter().flat_map(|arm| &arm.turns).map(|cell| cell.turn).max();
    let Some(last_turn) = last_turn else { return Ok(None) };
    let mut rows = Vec::new();
    for (bin, task) in places {
        for (number, arm) in arms.iter().enumerate() {
            let cells: Vec<&TurnCell> = arm.turns.iter().filter(|it| it.bin == bin && it.task == task).collect();
            if cells.is_empty() {
                continue;
            }
            let shares: Vec<String> = (1..=last_turn).map(|turn| share(&cells, turn)).collect();
            let items = cells.iter().map(|cell| cell.n).max().unwrap_or(0);
            rows.push(fields! {
                bin => bin.to_string(), task => task, arm => arm.arm.name, items => figures::count(items),
                shares => shares, is_first => number == 0,
            });
        }
    }
    Ok(Some(fields! { turns => (1..=last_turn).collect::<Vec<u32>>(), rows => rows }))
}

/// Right among the conversations that came to this turn; nothing where none is that long.
fn share(cells: &[&TurnCell], turn: u32) -> String {
    let cell = cells.iter().find(|cell| cell.turn == turn);
    cell.map_or_else(String::new, |cell| figures::percent(figures::share(cell.right, cell.n)))
}
