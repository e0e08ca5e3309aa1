//! How many pairs a gate needs: to find a drop, and to exclude one.
//!
//! A cell is REGRESSED by McNemar's test at the level that Holm's procedure leaves it in the worst case, alpha ÷ cells. It is PASS
//! when the upper limit of its drop is below the margin, at 5 % for each cell by itself. With damage, items change by the flip
//! rate and by the drop on top of it.

use std::path::Path;

use kvgauge::compare::compare;
use kvgauge::gate::{CellVerdict, judge, margin_of_cell};
use kvgauge::stats::sample_size::{detect_drop, exclude_drop, exclude_drop_without_change};
use kvgauge::suite::GatePolicy;
use kvgauge::units::{format_percent, format_points};
use serde::Serialize;

use crate::failure::Failure;
use crate::plan::options::PowerArgs;
use crate::records::Records;
use crate::table;

/// The levels of statistical practice, as in the tables of sample sizes.
const POWERS: [f64; 3] = [0.80, 0.90, 0.95];

/// Level of the one-sided limit that a PASS rests on.
const LIMIT_ALPHA: f64 = 0.05;

/// Pairs per cell, and from what they follow.
#[derive(Debug, Serialize)]
pub(super) struct PowerPlan {
    alpha: f64,
    cells: usize,
    min_pairs: u32,
    /// Drop to be found.
    drop: f64,
    rows: Vec<CellPlan>,
}

/// One cell, or all of them where nothing was measured.
#[derive(Debug, Serialize)]
struct CellPlan {
    arm: Option<String>,
    bin: Option<String>,
    group: Option<String>,
    /// Pairs that the rate was measured on.
    measured_pairs: Option<u64>,
    /// Share of pairs that change in either direction; `None` where no pair was measured.
    flip_rate: Option<f64>,
    margin: f64,
    needs: Vec<Need>,
}

/// Pairs at one power; `None` where no number suffices.
#[derive(Debug, Serialize)]
struct Need {
    power: f64,
    to_find_the_drop: Option<u64>,
    to_pass_without_a_drop: Option<u64>,
}

pub(super) fn plan(args: &PowerArgs) -> Result<PowerPlan, Failure> {
    match &args.from {
        None => {
            let cells = args.bins as usize * args.groups as usize * args.arms as usize;
            let policy = GatePolicy { margin: args.margin, ..GatePolicy::default() };
            let needs = needs(&policy, cells, args.flip_rate, args.drop, args.margin);
            let row = CellPlan {
                arm: None,
                bin: None,
                group: None,
                measured_pairs: None,
                flip_rate: Some(args.flip_rate),
                margin: args.margin,
                needs,
            };
            let (alpha, min_pairs) = (policy.alpha, policy.min_pairs);
            Ok(PowerPlan { alpha, cells, min_pairs, drop: args.drop, rows: vec![row] })
        }
        Some(run_dir) => of_run(run_dir, args.drop),
    }
}

/// Every judged cell of a recorded run, with the flips that were seen in it and the margin of its own gate.
fn of_run(run_dir: &Path, drop: f64) -> Result<PowerPlan, Failure> {
    let records = Records::load(&[run_dir.to_path_buf()])?;
    let comparison = compare(&records.baseline, records.control.as_ref(), &records.candidates)?;
    let policy = records.gates.first().map(|(_, policy)| policy.clone()).unwrap_or_default();
    let verdict = judge(&comparison, &policy)?;
    let cells = verdict.arms.iter().map(|arm| arm.cells.len()).sum::<usize>().max(1);
    let of_cell = |arm: &str, cell: &CellVerdict| {
        let delta = &cell.delta;
        let flips = delta.regressions + delta.fixes;
        let flip_rate = if delta.pairs == 0 { None } else { Some(flips as f64 / delta.pairs as f64) };
        let margin = margin_of_cell(&policy, cell.group, cell.bin);
        CellPlan {
            arm: Some(arm.into()),
            bin: Some(cell.bin.to_string()),
            group: Some(cell.group.name().into()),
            measured_pairs: Some(delta.pairs),
            flip_rate,
            margin,
            needs: flip_rate.map_or_else(Vec::new, |rate| needs(&policy, cells, rate, drop, margin)),
        }
    };
    let rows = verdict
        .arms
        .iter()
        .zip(&comparison.candidates)
        .flat_map(|(verdict, arm)| verdict.cells.iter().map(move |cell| of_cell(&arm.summary.arm.name, cell)))
        .collect();
    Ok(PowerPlan { alpha: policy.alpha, cells, min_pairs: policy.min_pairs, drop, rows })
}

fn needs(policy: &GatePolicy, cells: usize, flip_rate: f64, drop: f64, margin: f64) -> Vec<Need> {
    let at_least = |pairs: u64| pairs.max(u64::from(policy.min_pairs));
    let least = exclude_drop_without_change(margin, LIMIT_ALPHA);
    let need = |power: f64| Need {
        power,
        to_find_the_drop: detect_drop(flip_rate + drop, drop, policy.alpha / cells as f64, power).map(at_least),
        to_pass_without_a_drop: exclude_drop(flip_rate, 0.0, margin, LIMIT_ALPHA, power)
            .zip(least)
            .map(|(pairs, least)| at_least(pairs.max(least))),
    };
    Vec::from(POWERS.map(need))
}

impl PowerPlan {
    /// For a terminal.
    pub(super) fn in_words(&self) -> String {
        let cells = if self.cells == 1 { "1 cell".into() } else { format!("{} cells", self.cells) };
        let mut text = format!(
            "pairs per cell, for a drop of {} points, {cells}, alpha {} in all, at least {} pairs\n",
            points(self.drop),
            self.alpha,
            self.min_pairs
        );
        let header = [
            "arm",
            "bin",
            "group",
            "measured on",
            "flip rate",
            "margin",
            "power",
            "to find the drop",
            "to pass without one",
        ];
        let mut table = table::empty(header.map(String::from).to_vec());
        for row in &self.rows {
            for cells in row.in_words() {
                table.add_row(cells);
            }
        }
        text += &table::finished(table);
        text += "Pairs that share a haystack say less: up to as many times the pairs as there are questions to a haystack.\n";
        text
    }
}

impl CellPlan {
    /// One row per power; the cell is named in the first.
    fn in_words(&self) -> Vec<Vec<String>> {
        let of = |text: &Option<String>, otherwise: &str| text.clone().unwrap_or_else(|| otherwise.into());
        let named = vec![
            of(&self.arm, "each"),
            of(&self.bin, "each"),
            of(&self.group, "each"),
            self.measured_pairs.map_or_else(|| "assumed".into(), |pairs| format!("{pairs} pairs")),
            self.flip_rate.map_or_else(|| "–".into(), format_percent),
            points(self.margin),
        ];
        let pairs = |pairs: Option<u64>| pairs.map_or_else(|| "–".into(), |pairs| pairs.to_string());
        let mut rows: Vec<Vec<String>> = Vec::new();
        for need in &self.needs {
            let mut row = if rows.is_empty() { named.clone() } else { vec![String::new(); named.len()] };
            row.push(format!("{:.0} %", need.power * 100.0));
            row.extend([pairs(need.to_find_the_drop), pairs(need.to_pass_without_a_drop)]);
            rows.push(row);
        }
        if rows.is_empty() {
            rows.push([named, vec!["–".into(); 3]].concat());
        }
        rows
    }
}

/// Points without a sign: `5.0`.
fn points(share: f64) -> String {
    format_points(share).trim_start_matches('+').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_cell_needs_what_the_tables_of_sample_sizes_say_and_more_cells_need_more_to_find_a_drop() {
        let policy = GatePolicy::default();
        let pairs = |cells: usize, flip_rate: f64| {
            let needs = needs(&policy, cells, flip_rate, 0.05, 0.05);
            needs
                .iter()
                .map(|need| (need.to_find_the_drop.unwrap(), need.to_pass_without_a_drop.unwrap()))
                .collect::<Vec<_>>()
        };
        // 5 % of flips and a drop of 5 points: one pair in ten changes. To exclude it takes the 5 % alone.
        assert_eq!(pairs(1, 0.05), [(246, 124), (339, 172), (428, 217)]);
        // Without any flip a PASS still takes 52, and every change is for the worse.
        assert_eq!(pairs(1, 0.0), [(122, 52), (168, 52), (211, 52)]);
        let (one, many) = (pairs(1, 0.02), pairs(30, 0.02));
        assert!(one.iter().zip(&many).all(|(one, many)| many.0 > one.0 && many.1 == one.1), "{one:?} {many:?}");
    }
}
