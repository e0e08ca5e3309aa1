//! The answer in ten seconds: ruling, sentence, four figures, one line per arm.

use minijinja::value::Value;

use crate::gate::{CellVerdict, Ruling, Verdict};
use crate::report::figures;
use crate::report::page::Page;
use crate::report::{ReportError, fields};

pub(crate) fn view(page: &Page) -> Result<Option<Value>, ReportError> {
    let verdict = page.input.verdict;
    let arms: Vec<Value> = verdict
        .arms
        .iter()
        .map(|arm| {
            fields! {
                name => arm.arm, mark => figures::mark(arm.ruling), sentence => unbroken(&arm.sentence), invalid => arm.invalid,
            }
        })
        .collect();
    Ok(Some(fields! {
        mark => figures::mark(verdict.ruling),
        sentence => unbroken(&verdict.sentence),
        figures => [worst_figure(verdict), flips_figure(page), pairs_figure(page), arms_figure(verdict)],
        arms => arms,
        accepted => page.input.comparison.baseline.accepted.as_ref().map(ToString::to_string),
    }))
}

/// A number and its percent sign stay on one line.
fn unbroken(sentence: &str) -> String {
    sentence.replace(" %", "\u{a0}%")
}

/// The cell a reader should see first: a regressed one before others, then the largest drop.
pub(crate) fn worst_cell(verdict: &Verdict) -> Option<(&str, &CellVerdict)> {
    let cells = verdict.arms.iter().flat_map(|arm| arm.cells.iter().map(|cell| (arm.arm.as_str(), cell)));
    cells.filter(|(_, cell)| cell.delta.delta.is_some()).min_by(|(_, a), (_, b)| {
        let order = |cell: &CellVerdict| cell.ruling != Ruling::Regressed;
        let drop = |cell: &CellVerdict| cell.delta.delta.unwrap_or(0.0);
        order(a).cmp(&order(b)).then(drop(a).total_cmp(&drop(b)))
    })
}

fn worst_figure(verdict: &Verdict) -> Value {
    match worst_cell(verdict) {
        None => fields! { label => "Worst bin", value => figures::UNKNOWN, detail => "nothing was judged" },
        Some((arm, cell)) => fields! {
            label => format!("Worst bin, {} in points", figures::interval_points(cell.delta.interval)),
            value => figures::points(cell.delta.delta),
            detail => format!("{} · {} · {arm}", cell.bin, cell.group.name()),
        },
    }
}

fn flips_figure(page: &Page) -> Value {
    let cells = || page.input.comparison.candidates.iter().flat_map(|arm| &arm.groups);
    let regressions: u64 = cells().map(|cell| cell.delta.regressions).sum();
    let fixes: u64 = cells().map(|cell| cell.delta.fixes).sum();
    let over = match page.input.comparison.candidates.len() as u64 {
        1 => "1 candidate".to_owned(),
        more => format!("summed over {}", figures::counted(more, "candidate")),
    };
    fields! {
        label => "Answers that changed",
        value => format!("{} / {}", figures::count(regressions), figures::count(fixes)),
        detail => format!("right → wrong / wrong → right, {over}"),
    }
}

fn pairs_figure(page: &Page) -> Value {
    let comparison = page.input.comparison;
    let per_arm = comparison.candidates.iter().map(|arm| arm.groups.iter().map(|cell| cell.delta.pairs).sum::<u64>());
    let pairs: Vec<u64> = per_arm.collect();
    let value = match (pairs.iter().min(), pairs.iter().max()) {
        (Some(least), Some(most)) if least == most => figures::count(*most),
        (Some(least), Some(most)) => format!("{}–{}", figures::count(*least), figures::count(*most)),
        _ => "0".into(),
    };
    let bins = figures::counted(comparison.bins.len() as u64, "bin");
    let tasks = figures::counted(comparison.tasks.len() as u64, "task");
    let detail = format!("per candidate, {bins} × {tasks}");
    fields! { label => "Pairs", value => value, detail => detail }
}

fn arms_figure(verdict: &Verdict) -> Value {
    let rulings = [Ruling::Regressed, Ruling::Invalid, Ruling::Inconclusive, Ruling::Pass];
    let counted: Vec<(Ruling, usize)> = rulings
        .into_iter()
        .map(|ruling| (ruling, verdict.arms.iter().filter(|arm| arm.ruling == ruling).count()))
        .filter(|(_, n)| *n > 0)
        .collect();
    let written = |write: &dyn Fn(Ruling, usize) -> String, between: &str| {
        counted.iter().map(|(ruling, n)| write(*ruling, *n)).collect::<Vec<_>>().join(between)
    };
    fields! {
        label => "Candidates",
        value => written(&|ruling, n| format!("{n}{}", figures::mark(ruling).symbol), " · "),
        detail => written(&|ruling, n| format!("{n} {}", figures::mark(ruling).word.to_lowercase()), ", "),
    }
}
