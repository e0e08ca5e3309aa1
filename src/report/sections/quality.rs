//! Quality per bin: curves of all arms, forest plots of the differences, heatmaps over depth and length, and the judged cells.

use minijinja::value::Value;

use crate::compare::{ArmComparison, Comparison, Delta};
use crate::gate::{ArmVerdict, CellVerdict};
use crate::report::forest::{forest, shared_range};
use crate::report::heatmap::heatmaps;
use crate::report::ink::{self, Ink};
use crate::report::page::Page;
use crate::report::plot::{self, Curve, Point, Shape};
use crate::report::{ReportError, fields, figures};
use crate::sample::Bin;
use crate::suite::TaskGroup;

/// Candidates whose plots are all shown; more would make the page a long way to whatever comes after them.
const MAX_UNFOLDED_ARMS: usize = 4;
/// Of more candidates, those with the worst ruling that are unfolded from the start.
const MAX_OPEN_ARMS: usize = 2;

pub(crate) fn view(page: &Page) -> Result<Option<Value>, ReportError> {
    let input = page.input;
    let comparison = input.comparison;
    let range = shared_range(input.verdict.arms.iter(), input.policy);
    let mut panels = Vec::new();
    for group in TaskGroup::ALL {
        if comparison.candidates.iter().any(|arm| arm.groups.iter().any(|cell| cell.group == group)) {
            panels.push(panel(page, group)?);
        }
    }
    let worst = input.verdict.arms.iter().map(|arm| arm.ruling).max();
    let is_folded = comparison.candidates.len() > MAX_UNFOLDED_ARMS;
    let mut opened = 0;
    let mut arms = Vec::new();
    for (index, (arm, verdict)) in comparison.candidates.iter().zip(&input.verdict.arms).enumerate() {
        let is_open = Some(verdict.ruling) == worst && opened < MAX_OPEN_ARMS;
        opened += usize::from(is_open);
        let maps = heatmaps(comparison, arm, index);
        let scope = maps.as_ref().map(|maps| maps.scope.clone());
        arms.push(fields! {
            name => arm.summary.arm.name,
            mark => figures::mark(verdict.ruling),
            is_open => is_open,
            forest => page.embed("forest", forest(index, verdict, input.policy, range, ink::candidate(index).themed()))?,
            heatmaps => maps.map(|maps| page.embed("heatmaps", maps)).transpose()?,
            scope => scope,
            cells => cells(index, verdict),
        });
    }
    Ok(Some(fields! {
        legend => legend(comparison),
        panels => panels,
        arms => arms,
        is_folded => is_folded,
        margin => figures::points(Some(-input.policy.margin)),
        baseline => comparison.baseline.arm.name,
    }))
}

/// Name, colour and shape of every arm.
fn legend(comparison: &Comparison) -> Vec<Value> {
    let entry = |name: &str, role: &str, shape: Shape, ink: Ink| {
        fields! { name => name, role => role, shape => shape.name(), ink => ink.themed() }
    };
    let mut legend = vec![entry(&comparison.baseline.arm.name, "baseline", Shape::Circle, ink::BASELINE)];
    if let Some(control) = &comparison.control {
        legend.push(entry(&control.summary.arm.name, "A/A control", Shape::Ring, ink::CONTROL));
    }
    for (index, arm) in comparison.candidates.iter().enumerate() {
        legend.push(entry(&arm.summary.arm.name, "", Shape::of_candidate(index), ink::candidate(index)));
    }
    legend
}

fn panel(page: &Page, group: TaskGroup) -> Result<Value, ReportError> {
    let comparison = page.input.comparison;
    let ticks: Vec<(f64, String)> = comparison.bins.iter().map(|bin| (log2(*bin), bin.to_string())).collect();
    let mut curves = vec![curve(ink::BASELINE, Shape::Circle, baseline_points(comparison, group))];
    let mut lines = vec![describe(&comparison.baseline.arm.name, &curves[0])];
    let mut add = |arm: &ArmComparison, ink: Ink, shape: Shape| {
        let deltas = arm.groups.iter().filter(|cell| cell.group == group).map(|cell| &cell.delta);
        let points = deltas.filter_map(|delta| point(delta, delta.candidate_right, delta.candidate_wilson)).collect();
        let curve = curve(ink, shape, points);
        lines.push(describe(&arm.summary.arm.name, &curve));
        curves.push(curve);
    };
    if let Some(control) = &comparison.control {
        add(control, ink::CONTROL, Shape::Ring);
    }
    for (index, arm) in comparison.candidates.iter().enumerate() {
        add(arm, ink::candidate(index), Shape::of_candidate(index));
    }
    let tasks: Vec<&str> =
        comparison.tasks.iter().map(String::as_str).filter(|task| TaskGroup::of_task(task) == group).collect();
    let plot = page.embed(
        "plot",
        fields! {
            id => format!("curves-{}", group.name()),
            title => format!("{}: share of right answers over context length, per arm", group.name()),
            description => lines.join("; "),
            view_box => plot::curves_view_box(),
            inside => Value::from_safe_string(plot::curves(&ticks, &curves)?),
        },
    )?;
    Ok(fields! { group => group.name(), tasks => tasks.join(", "), plot => plot })
}

/// The baseline of every bin from the arm it has most pairs with: arms may differ in a few pairs that are not valid.
fn baseline_points(comparison: &Comparison, group: TaskGroup) -> Vec<Point> {
    let arms = || comparison.candidates.iter().chain(&comparison.control);
    let best = |bin: &Bin| -> Option<Point> {
        let cells = arms().flat_map(|arm| &arm.groups);
        let delta = cells
            .filter(|cell| cell.group == group && cell.delta.bin == Some(*bin))
            .map(|cell| &cell.delta)
            .max_by_key(|delta| delta.pairs)?;
        point(delta, delta.baseline_right, delta.baseline_wilson)
    };
    comparison.bins.iter().filter_map(best).collect()
}

fn point(delta: &Delta, right: u64, interval: Option<(f64, f64)>) -> Option<Point> {
    Some(Point { x: log2(delta.bin?), y: figures::share(right, delta.pairs)?, interval })
}

fn curve(ink: Ink, shape: Shape, points: Vec<Point>) -> Curve {
    Curve { ink, shape, points }
}

fn log2(bin: Bin) -> f64 {
    f64::from(bin.tokens()).log2()
}

fn describe(name: &str, curve: &Curve) -> String {
    let points: Vec<String> = curve
        .points
        .iter()
        .map(|point| format!("{} {}", Bin(point.x.exp2().round() as u32), figures::percent(Some(point.y))))
        .collect();
    format!("{name}: {}", points.join(", "))
}

/// The judged cells of one arm, by bin and group; anchors are the places in the verdict.
fn cells(arm_index: usize, verdict: &ArmVerdict) -> Vec<Value> {
    let mut cells: Vec<(usize, &CellVerdict)> = verdict.cells.iter().enumerate().collect();
    cells.sort_by_key(|(_, cell)| (cell.bin, cell.group));
    cells
        .into_iter()
        .map(|(index, cell)| {
            let delta = &cell.delta;
            let mut notes = cell.reasons.clone();
            if let Some(pairs) = cell.pairs_needed {
                notes.push(format!("PASS would take about {} pairs", figures::count(pairs)));
            }
            if delta.haystacks > 0 && delta.haystacks < delta.pairs {
                notes.push(figures::counted(delta.haystacks, "haystack"));
            }
            fields! {
                anchor => format!("cell-{arm_index}-{index}"),
                bin => cell.bin.to_string(),
                group => cell.group.name(),
                pairs => figures::count(delta.pairs),
                not_scored => delta.not_scored(),
                baseline => figures::percent(figures::share(delta.baseline_right, delta.pairs)),
                candidate => figures::percent(figures::share(delta.candidate_right, delta.pairs)),
                delta => figures::points(delta.delta),
                interval => figures::interval_points(delta.interval),
                flips => format!("{} / {}", delta.regressions, delta.fixes),
                p => figures::p_value(cell.adjusted_p),
                mark => figures::mark(cell.ruling),
                notes => notes.join("; "),
            }
        })
        .collect()
}
