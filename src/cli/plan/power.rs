//! How many pairs a gate needs: to find a drop, and to exclude one.
//!
//! A cell is REGRESSED by McNemar's test at the level that Holm's procedure leaves it in the worst case, alpha ÷ cells. It is PASS
//! when the upper limit of its drop is below the margin, at 5 % for each cell by itself. With damage, items change by the flip
//! rate and by the drop on top of it.

use std::path::Path;

use kvgauge::compare::compare;
use kvgauge::gate::{CellVerdict, judge, margin_of_cell};
use kvgauge::stats::power::{chance_drop, mcnemar_power, pairs_for_power};
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
    /// What so many pairs are worth, where a number was given or measured.
    with_pairs: Option<Worth>,
}

/// What a number of pairs is worth in one cell.
#[derive(Debug, Serialize)]
struct Worth {
    pairs: u64,
    /// Probability that the drop is found.
    power: Option<f64>,
    /// Probability of an alarm without damage.
    false_alarm: Option<f64>,
    /// The same of a rule that looks at the observed drop alone and alarms from `drop` on, in any cell of the run.
    false_alarm_without_a_test: Option<f64>,
}

/// Pairs at one power; `None` where no number suffices.
#[derive(Debug, Serialize)]
struct Need {
    power: f64,
    /// By the normal approximation.
    to_find_the_drop: Option<u64>,
    /// By the exact test, in steps of 20.
    to_find_the_drop_exactly: Option<u64>,
    to_pass_without_a_drop: Option<u64>,
}

pub(super) fn plan(args: &PowerArgs) -> Result<PowerPlan, Failure> {
    match &args.from {
        None => {
            let cells = args.bins as usize * args.groups as usize * args.arms as usize;
            let policy = GatePolicy { margin: args.margin, ..GatePolicy::default() };
            let needs = needs(&policy, cells, args.flip_rate, args.drop, args.margin);
            let with_pairs = args.pairs.map(|pairs| worth(&policy, cells, args.flip_rate, args.drop, pairs));
            let row = CellPlan {
                arm: None,
                bin: None,
                group: None,
                measured_pairs: None,
                flip_rate: Some(args.flip_rate),
                margin: args.margin,
                needs,
                with_pairs,
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
            with_pairs: flip_rate.map(|rate| worth(&policy, cells, rate, drop, delta.pairs)),
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

fn worth(policy: &GatePolicy, cells: usize, flip_rate: f64, drop: f64, pairs: u64) -> Worth {
    let alpha = policy.alpha / cells as f64;
    let is_judged = pairs >= u64::from(policy.min_pairs);
    let judged = |probability: Option<f64>| if is_judged { probability } else { Some(0.0) };
    Worth {
        pairs,
        power: judged(mcnemar_power(pairs, flip_rate + drop, drop, alpha)),
        false_alarm: judged(mcnemar_power(pairs, flip_rate, 0.0, alpha)),
        false_alarm_without_a_test: chance_drop(pairs, flip_rate, drop).map(|one| 1.0 - (1.0 - one).powf(cells as f64)),
    }
}

fn needs(policy: &GatePolicy, cells: usize, flip_rate: f64, drop: f64, margin: f64) -> Vec<Need> {
    let at_least = |pairs: u64| pairs.max(u64::from(policy.min_pairs));
    let least = exclude_drop_without_change(margin, LIMIT_ALPHA);
    let need = |power: f64| Need {
        power,
        to_find_the_drop: detect_drop(flip_rate + drop, drop, policy.alpha / cells as f64, power).map(at_least),
        to_find_the_drop_exactly: pairs_for_power(flip_rate + drop, drop, policy.alpha / cells as f64, power)
            .map(at_least),
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
            "by the exact test",
            "to pass without one",
        ];
        let mut table = table::empty(header.map(String::from).to_vec());
        for row in &self.rows {
            for cells in row.in_words() {
                table.add_row(cells);
            }
        }
        text += &table::finished(table);
        text += &self.worth_in_words();
        text += "Pairs that share a haystack say less: up to as many times the pairs as there are questions to a haystack.\n";
        text
    }

    /// One row per cell of which the number of pairs is known.
    fn worth_in_words(&self) -> String {
        let known: Vec<(&CellPlan, &Worth)> =
            self.rows.iter().filter_map(|row| Some((row, row.with_pairs.as_ref()?))).collect();
        if known.is_empty() {
            return String::new();
        }
        let header = ["arm", "bin", "group", "pairs", "finds the drop", "false alarm", "without a test, any cell"];
        let mut table = table::empty(header.map(String::from).to_vec());
        let percent = |share: Option<f64>| share.map_or_else(|| "–".into(), format_percent);
        for (row, worth) in known {
            let mut cells = row.named()[..3].to_vec();
            cells.push(worth.pairs.to_string());
            cells.extend([worth.power, worth.false_alarm, worth.false_alarm_without_a_test].map(percent));
            table.add_row(cells);
        }
        format!("\nwhat the pairs are worth, per cell by the exact test\n{}", table::finished(table))
    }
}

impl CellPlan {
    /// Arm, bin and group, and on what the figures rest.
    fn named(&self) -> Vec<String> {
        let of = |text: &Option<String>| text.clone().unwrap_or_else(|| "each".into());
        vec![
            of(&self.arm),
            of(&self.bin),
            of(&self.group),
            self.measured_pairs.map_or_else(|| "assumed".into(), |pairs| format!("{pairs} pairs")),
            self.flip_rate.map_or_else(|| "–".into(), format_percent),
            points(self.margin),
        ]
    }

    /// One row per power; the cell is named in the first.
    fn in_words(&self) -> Vec<Vec<String>> {
        let named = self.named();
        let pairs = |pairs: Option<u64>| pairs.map_or_else(|| "–".into(), |pairs| pairs.to_string());
        let mut rows: Vec<Vec<String>> = Vec::new();
        for need in &self.needs {
            let mut row = if rows.is_empty() { named.clone() } else { vec![String::new(); named.len()] };
            row.push(format!("{:.0} %", need.power * 100.0));
            let (about, exactly) = (need.to_find_the_drop, need.to_find_the_drop_exactly);
            row.extend([about, exactly, need.to_pass_without_a_drop].map(pairs));
            rows.push(row);
        }
        if rows.is_empty() {
            rows.push([named, vec!["–".into(); 4]].concat());
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

    #[test]
    fn the_exact_test_needs_what_its_table_says_and_pairs_are_worth_what_theirs_does() {
        let policy = GatePolicy::default();
        // Flips without damage, and the table's share of all changes with a drop of 5 points.
        for (flip_rate, cells, at_80, at_95) in [(0.0, 1, 140, 200), (0.05, 5, 420, 640), (0.15, 15, 1040, 1540)] {
            let needs = needs(&policy, cells, flip_rate, 0.05, 0.05);
            let exactly = |need: &Need| need.to_find_the_drop_exactly.unwrap();
            assert_eq!((exactly(&needs[0]), exactly(&needs[2])), (at_80, at_95), "{flip_rate} {cells}");
        }
        let worth = worth(&policy, 1, 0.05, 0.05, 200);
        assert!((worth.power.unwrap() - 0.674).abs() < 0.0006 && (worth.false_alarm.unwrap() - 0.023).abs() < 0.0006);
        let few = super::worth(&policy, 15, 0.05, 0.05, 19);
        assert_eq!((few.power, few.false_alarm), (Some(0.0), Some(0.0)), "too few to be judged");
        assert!(few.false_alarm_without_a_test.unwrap() > 0.9);
    }
}
