//! This run among earlier ones: per arm and bin the difference over the nights, and what changed between them.

use minijinja::value::Value;

use crate::report::history::{History, PastArm, PastBin, PastRun, changes};
use crate::report::page::Page;
use crate::report::small_multiple::{Frame, Night, axis, small_multiple};
use crate::report::text::clip;
use crate::report::{ReportError, fields, figures};
use crate::sample::Bin;

/// Skipped folders that are named; the number of the others is given.
const MAX_SKIPPED: usize = 20;
/// Hashes are told apart by their start.
const MAX_FACT_CHARS: usize = 24;

pub(crate) fn view(page: &Page) -> Result<Option<Value>, ReportError> {
    let Some(history) = page.input.history else { return Ok(None) };
    let Some(this) = history.runs.last() else { return Ok(None) };
    let frame = frame(page, history);
    let worst = page.input.verdict.arms.iter().max_by_key(|arm| arm.ruling).map(|arm| arm.arm.as_str());
    let mut arms = Vec::new();
    for (index, arm) in this.arms.iter().enumerate() {
        arms.push(arm_view(page, history, &frame, index, arm, worst)?);
    }
    let runs: Vec<Value> = history.runs.iter().enumerate().map(|(place, run)| run_view(history, place, run)).collect();
    let skipped = history.skipped.iter().take(MAX_SKIPPED).map(|(name, why)| fields! { name => name, why => why });
    Ok(Some(fields! {
        arms => arms,
        runs => runs,
        run_count => figures::counted(history.runs.len() as u64, "run"),
        older => history.older,
        skipped => skipped.collect::<Vec<_>>(),
        skipped_more => history.skipped.len().saturating_sub(MAX_SKIPPED),
        margin => figures::points(Some(-page.input.policy.margin)),
    }))
}

fn started(run: &PastRun) -> String {
    run.started_unix_ms.map_or_else(|| "not recorded".into(), figures::utc_minute)
}

fn day(run: &PastRun) -> String {
    run.started_unix_ms.map_or_else(|| "this run".into(), |ms| figures::utc_minute(ms).chars().take(10).collect())
}

/// One frame for all panels: a drop is as deep in one as in another.
fn frame(page: &Page, history: &History) -> Frame {
    let shown = &history.runs[history.runs.len() - 1].arms;
    let is_shown = |arm: &&PastArm| shown.iter().any(|it| it.name == arm.name);
    let bins = history.runs.iter().flat_map(|run| &run.arms).filter(is_shown).flat_map(|arm| &arm.bins);
    let values = bins.flat_map(|bin| {
        let (low, high) = bin.interval.unwrap_or((bin.delta, bin.delta));
        [low, high, bin.delta]
    });
    let end = |run: Option<&PastRun>| run.map_or_else(String::new, day);
    Frame {
        runs: history.runs.len(),
        range: axis(values),
        margin: page.input.policy.margin,
        ends: (end(history.runs.first().filter(|_| history.runs.len() > 1)), end(history.runs.last())),
    }
}

fn find<'a>(run: &'a PastRun, arm: &str) -> Option<&'a PastArm> {
    run.arms.iter().find(|it| it.name == arm)
}

fn find_bin(run: &PastRun, arm: &str, bin: Bin) -> Option<PastBin> {
    find(run, arm)?.bins.iter().find(|it| it.bin == bin).copied()
}

fn arm_view(
    page: &Page,
    history: &History,
    frame: &Frame,
    index: usize,
    arm: &PastArm,
    worst: Option<&str>,
) -> Result<Value, ReportError> {
    let runs = &history.runs;
    let changed: Vec<usize> =
        (1..runs.len()).filter(|place| !changed_before(history, *place, &arm.name).is_empty()).collect();
    let mut bins: Vec<Bin> =
        runs.iter().filter_map(|run| find(run, &arm.name)).flat_map(|arm| &arm.bins).map(|it| it.bin).collect();
    bins.sort_unstable();
    bins.dedup();
    let mut panels = Vec::new();
    for bin in &bins {
        let nights: Vec<Night> = runs
            .iter()
            .enumerate()
            .filter_map(|(place, run)| {
                let found = find_bin(run, &arm.name, *bin)?;
                Some(Night { place, delta: found.delta, interval: found.interval, ruling: found.ruling })
            })
            .collect();
        let id = format!("history-{index}-{}", bin.tokens());
        let title = format!("{} at {bin}: difference in points over the runs", arm.name);
        let plot = page.embed("small_multiple", small_multiple(frame, id, title, &nights, &changed))?;
        panels.push(fields! { bin => bin.to_string(), plot => plot });
    }
    let rows: Vec<Value> = runs
        .iter()
        .filter_map(|run| {
            let past = find(run, &arm.name)?;
            let cells = bins.iter().map(|bin| match find_bin(run, &arm.name, *bin) {
                None => fields! { text => figures::UNKNOWN, interval => "", symbol => "" },
                Some(found) => fields! {
                    text => figures::points(Some(found.delta)),
                    interval => figures::interval_points(found.interval),
                    symbol => figures::mark(found.ruling).symbol,
                },
            });
            Some(fields! { started => started(run), mark => figures::mark(past.ruling), cells => cells.collect::<Vec<_>>() })
        })
        .collect();
    Ok(fields! {
        name => arm.name,
        mark => figures::mark(arm.ruling),
        is_open => worst == Some(arm.name.as_str()),
        panels => panels,
        bins => bins.iter().map(ToString::to_string).collect::<Vec<_>>(),
        rows => rows,
    })
}

/// Changes of the run and of one of its arms since the run before.
fn changed_before(history: &History, place: usize, arm: &str) -> Vec<String> {
    let (before, after) = (&history.runs[place - 1], &history.runs[place]);
    let mut all = changes(&before.facts, &after.facts);
    if let Some((before, after)) = find(before, arm).zip(find(after, arm)) {
        all.extend(changes(&before.facts, &after.facts));
    }
    all.into_iter().map(|(name, before, after)| told(name, &before, &after)).collect()
}

fn told(name: &str, before: &str, after: &str) -> String {
    format!("{name}: {} → {}", clip(before, MAX_FACT_CHARS), clip(after, MAX_FACT_CHARS))
}

fn run_view(history: &History, place: usize, run: &PastRun) -> Value {
    let mut changed: Vec<String> = Vec::new();
    if let Some(before) = place.checked_sub(1).map(|place| &history.runs[place]) {
        changed.extend(changes(&before.facts, &run.facts).iter().map(|(name, old, new)| told(name, old, new)));
        for arm in &run.arms {
            let of_arm = find(before, &arm.name).map(|old| changes(&old.facts, &arm.facts)).unwrap_or_default();
            changed.extend(of_arm.iter().map(|(name, old, new)| format!("{}: {}", arm.name, told(name, old, new))));
        }
    }
    let ruling = run.arms.iter().map(|arm| arm.ruling).max();
    fields! {
        started => started(run),
        name => run.name,
        is_this => place + 1 == history.runs.len(),
        mark => ruling.map(figures::mark),
        arms => run.arms.len(),
        tool => run.facts.get("kvgauge"),
        engine => run.facts.get("baseline engine"),
        changes => changed,
    }
}
