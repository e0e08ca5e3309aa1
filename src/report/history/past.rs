//! One run of the history, out of its folder or out of the comparison in memory.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _};
use std::path::Path;

use serde::Deserialize;

use crate::compare::{COMPARISON_FORMAT, Comparison};
use crate::gate::{Ruling, Verdict};
use crate::record::EVENTS_FILE;
use crate::record::run::MAX_ARMS;
use crate::report::history::{PastArm, PastBin, PastRun, folder_name};
use crate::report::text::clip;
use crate::sample::Bin;
use crate::setup::Resolved;

/// Name of the document in a run folder.
const COMPARISON_FILE: &str = "comparison.json";
/// Largest document read: changed answers are in it, some 6 KB each; what is not shown is passed over without being kept.
const MAX_DOCUMENT_BYTES: u64 = 512 << 20;
/// Longest first line of an event log: the writer keeps texts below 8 KiB, and escapes may double them.
const MAX_EVENT_BYTES: u64 = 32 << 10;
/// Most judged cells of one arm: seven groups in 64 bins leave room.
const MAX_CELLS: usize = 1024;
/// Longest name or version kept.
const MAX_NAME_CHARS: usize = 120;
/// The last millisecond of the year 9999: a later start is damage.
const MAX_UNIX_MS: u64 = 253_402_300_799_999;

/// The part of `comparison.json` that the history shows. Other fields may be there or not.
#[derive(Deserialize)]
struct Document {
    comparison: ComparisonPart,
    verdict: VerdictPart,
}

#[derive(Deserialize)]
struct ComparisonPart {
    format_version: u32,
    tool_version: String,
    suite: String,
    plan: BTreeMap<String, String>,
    model: ModelPart,
    baseline: SummaryPart,
    candidates: Vec<CandidatePart>,
}

#[derive(Deserialize)]
struct ModelPart {
    name: String,
    weights: String,
    tokenizer: String,
}

#[derive(Deserialize)]
struct SummaryPart {
    resolved: ResolvedPart,
}

#[derive(Deserialize)]
struct ResolvedPart {
    engine: Fact,
    kernel: Fact,
    attention_backend: Fact,
}

/// Engine, kernel and attention backend in effect, where known.
type EngineFacts = [Option<String>; 3];

impl ResolvedPart {
    fn facts(&self) -> EngineFacts {
        [&self.engine, &self.kernel, &self.attention_backend].map(|fact| fact.value.clone())
    }
}

#[derive(Deserialize)]
struct Fact {
    value: Option<String>,
}

#[derive(Deserialize)]
struct CandidatePart {
    summary: NamedSummary,
}

#[derive(Deserialize)]
struct NamedSummary {
    arm: Named,
    resolved: ResolvedPart,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

#[derive(Deserialize)]
struct VerdictPart {
    arms: Vec<ArmPart>,
}

#[derive(Deserialize)]
struct ArmPart {
    arm: String,
    ruling: Ruling,
    cells: Vec<CellPart>,
    symptoms: Vec<SymptomPart>,
}

#[derive(Deserialize)]
struct CellPart {
    bin: Bin,
    ruling: Ruling,
    delta: DeltaPart,
}

#[derive(Deserialize)]
struct DeltaPart {
    pairs: u64,
    delta: Option<f64>,
    interval: Option<(f64, f64)>,
}

#[derive(Deserialize)]
struct SymptomPart {
    symptom: PlacePart,
    regressed: bool,
}

#[derive(Deserialize)]
struct PlacePart {
    bin: Bin,
}

#[derive(Deserialize)]
struct FirstEvent {
    unix_ms: u64,
}

/// Reads a run folder, or says in a few words why it is none.
pub(super) fn read(folder: &Path) -> Result<PastRun, String> {
    let file = File::open(folder.join(COMPARISON_FILE)).map_err(|error| match error.kind() {
        ErrorKind::NotFound => format!("it has no {COMPARISON_FILE}; `kvgauge report` writes one into a run folder"),
        _ => format!("{COMPARISON_FILE}: {error}"),
    })?;
    let bytes = file.metadata().map_err(|error| format!("{COMPARISON_FILE}: {error}"))?;
    if !bytes.is_file() || bytes.len() > MAX_DOCUMENT_BYTES {
        return Err(format!("{COMPARISON_FILE} is no file of at most {} MiB", MAX_DOCUMENT_BYTES >> 20));
    }
    let reader = BufReader::with_capacity(1 << 16, file.take(MAX_DOCUMENT_BYTES));
    let document: Document =
        serde_json::from_reader(reader).map_err(|error| format!("{COMPARISON_FILE} is damaged: {error}"))?;
    let mut run = of_document(document)?;
    run.name = folder_name(folder);
    run.started_unix_ms = started(folder, &run);
    if run.started_unix_ms.is_none() {
        return Err(format!("no {EVENTS_FILE} of its arms says when it was started"));
    }
    Ok(run)
}

/// The run in memory.
pub(super) fn of_comparison(comparison: &Comparison, verdict: &Verdict, run_dir: Option<&Path>) -> PastRun {
    let engine = |resolved: &Resolved| -> EngineFacts {
        [&resolved.engine, &resolved.kernel, &resolved.attention_backend].map(|fact| fact.value.clone())
    };
    let arms = comparison.candidates.iter().zip(&verdict.arms).map(|(candidate, judged)| {
        let cells = judged.cells.iter().map(|cell| Cell {
            bin: cell.bin,
            ruling: cell.ruling,
            pairs: cell.delta.pairs,
            delta: cell.delta.delta,
            interval: cell.delta.interval,
        });
        let rising: Vec<Bin> = judged.symptoms.iter().filter(|it| it.regressed).map(|it| it.symptom.bin).collect();
        past_arm(
            judged.arm.clone(),
            judged.ruling,
            &engine(&candidate.summary.resolved),
            &cells.collect::<Vec<_>>(),
            &rising,
        )
    });
    let mut run = PastRun {
        name: run_dir.map_or_else(|| "this run".into(), folder_name),
        started_unix_ms: None,
        subject: (comparison.suite.clone(), comparison.model.name.clone()),
        facts: run_facts(
            &comparison.tool_version,
            &comparison.plan,
            [&comparison.model.weights, &comparison.model.tokenizer],
            &engine(&comparison.baseline.resolved),
        ),
        arms: arms.collect(),
    };
    run.started_unix_ms = run_dir.and_then(|folder| started(folder, &run));
    run
}

fn of_document(document: Document) -> Result<PastRun, String> {
    let Document { comparison, verdict } = document;
    if comparison.format_version > COMPARISON_FORMAT {
        return Err(format!("{COMPARISON_FILE} is of a newer version ({})", comparison.format_version));
    }
    if comparison.candidates.len() > MAX_ARMS || verdict.arms.iter().any(|arm| arm.cells.len() > MAX_CELLS) {
        return Err(format!("{COMPARISON_FILE} has more arms or cells than a run"));
    }
    let names: Vec<&str> = comparison.candidates.iter().map(|it| it.summary.arm.name.as_str()).collect();
    if names != verdict.arms.iter().map(|arm| arm.arm.as_str()).collect::<Vec<_>>() {
        return Err(format!("{COMPARISON_FILE} judges other arms than it compares"));
    }
    let facts = run_facts(
        &comparison.tool_version,
        &comparison.plan,
        [&comparison.model.weights, &comparison.model.tokenizer],
        &comparison.baseline.resolved.facts(),
    );
    let mut arms = Vec::new();
    for (candidate, judged) in comparison.candidates.iter().zip(verdict.arms) {
        let cells = judged.cells.iter().map(cell).collect::<Result<Vec<_>, _>>()?;
        let rising: Vec<Bin> = judged.symptoms.iter().filter(|it| it.regressed).map(|it| it.symptom.bin).collect();
        arms.push(past_arm(judged.arm, judged.ruling, &candidate.summary.resolved.facts(), &cells, &rising));
    }
    let subject = (comparison.suite, comparison.model.name);
    Ok(PastRun { name: String::new(), started_unix_ms: None, subject, facts, arms })
}

fn past_arm(name: String, ruling: Ruling, engine: &EngineFacts, cells: &[Cell], rising: &[Bin]) -> PastArm {
    let [engine, kernel, backend] = engine.each_ref().map(Option::as_deref);
    PastArm {
        name,
        ruling,
        facts: facts(&[("engine", engine), ("kernel", kernel), ("backend", backend)]),
        bins: bins(ruling, cells, rising),
    }
}

/// One judged cell, wherever it comes from.
struct Cell {
    bin: Bin,
    ruling: Ruling,
    pairs: u64,
    delta: Option<f64>,
    interval: Option<(f64, f64)>,
}

fn cell(part: &CellPart) -> Result<Cell, String> {
    let DeltaPart { pairs, delta, interval } = part.delta;
    let is_share = |share: f64| (-1.0..=1.0).contains(&share);
    if delta.is_some_and(|delta| !is_share(delta)) || !interval.is_none_or(|(low, high)| low <= high) {
        return Err(format!("{COMPARISON_FILE} is damaged: the difference at {} is none of shares", part.bin));
    }
    Ok(Cell { bin: part.bin, ruling: part.ruling, pairs, delta, interval })
}

/// Pairs, difference and interval of a cell.
type Known = (f64, f64, Option<(f64, f64)>);

/// Differences of whole bins. The interval of a weighted sum of independent differences is recovered from theirs (MOVER: Zou and
/// Donner, "Construction of confidence limits about effect measures", Statistics in Medicine 27, 2008); of one cell it is its own.
fn bins(arm: Ruling, cells: &[Cell], rising: &[Bin]) -> Vec<PastBin> {
    let mut by_bin: BTreeMap<Bin, Vec<&Cell>> = BTreeMap::new();
    for cell in cells {
        by_bin.entry(cell.bin).or_default().push(cell);
    }
    let whole = |(bin, cells): (Bin, Vec<&Cell>)| {
        let known: Vec<Known> =
            cells.iter().filter_map(|cell| Some((cell.pairs as f64, cell.delta?, cell.interval))).collect();
        let pairs: f64 = known.iter().map(|(pairs, ..)| pairs).sum();
        if pairs <= 0.0 {
            return None;
        }
        let delta: f64 = known.iter().map(|(n, delta, _)| n * delta).sum::<f64>() / pairs;
        let limit = |of: fn((f64, f64)) -> f64| -> Option<f64> {
            let squares =
                known.iter().map(|(n, delta, interval)| Some((n / pairs * (of((*interval)?) - delta)).powi(2)));
            Some(squares.sum::<Option<f64>>()?.sqrt())
        };
        let interval = limit(|it| it.0).zip(limit(|it| it.1)).map(|(below, above)| (delta - below, delta + above));
        let judged = cells.iter().map(|cell| cell.ruling).max().unwrap_or(Ruling::Inconclusive);
        let ruling = match arm {
            Ruling::Invalid => Ruling::Invalid,
            _ if rising.contains(&bin) => Ruling::Regressed,
            _ => judged,
        };
        Some(PastBin { bin, pairs: pairs as u64, delta, interval, ruling })
    };
    by_bin.into_iter().filter_map(whole).collect()
}

fn run_facts(
    tool_version: &str,
    plan: &BTreeMap<String, String>,
    [weights, tokenizer]: [&String; 2],
    engine: &EngineFacts,
) -> BTreeMap<&'static str, String> {
    let [engine, kernel, backend] = engine.each_ref().map(Option::as_deref);
    let known = [
        ("kvgauge", Some(tool_version)),
        ("suite", plan.get("suite").map(String::as_str)),
        ("weights", Some(weights.as_str())),
        ("tokenizer", Some(tokenizer.as_str())),
        ("baseline engine", engine),
        ("kernel", kernel),
        ("baseline backend", backend),
    ];
    facts(&known)
}

fn facts(known: &[(&'static str, Option<&str>)]) -> BTreeMap<&'static str, String> {
    known.iter().filter_map(|(name, value)| Some((*name, clip((*value)?, MAX_NAME_CHARS)))).collect()
}

/// The first event of any candidate. Baselines are left out: one may be older than the run it is used in. Arms are looked up among
/// the subfolders, so that no name out of a document becomes a path.
fn started(folder: &Path, run: &PastRun) -> Option<u64> {
    let entries = fs::read_dir(folder).ok()?.take(MAX_ARMS * 4).flatten();
    let arms = entries.filter(|entry| {
        let name = entry.file_name();
        run.arms.iter().any(|arm| name.to_str() == Some(arm.name.as_str()))
    });
    arms.filter_map(|entry| first_event(&entry.path().join(EVENTS_FILE))).min()
}

fn first_event(path: &Path) -> Option<u64> {
    let mut line = Vec::new();
    BufReader::new(File::open(path).ok()?.take(MAX_EVENT_BYTES)).read_until(b'\n', &mut line).ok()?;
    let event: FirstEvent = serde_json::from_slice(&line).ok()?;
    (event.unix_ms > 0 && event.unix_ms <= MAX_UNIX_MS).then_some(event.unix_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(ruling: Ruling, pairs: u64, delta: f64, half: f64) -> Cell {
        Cell { bin: Bin(512), ruling, pairs, delta: Some(delta), interval: Some((delta - half, delta + half)) }
    }

    #[test]
    fn one_cell_keeps_its_interval_and_several_are_weighted() {
        let alone = bins(Ruling::Pass, &[cell(Ruling::Pass, 80, -0.02, 0.03)], &[]);
        assert!(
            (alone[0].interval.unwrap().0 + 0.05).abs() < 1e-12 && (alone[0].interval.unwrap().1 - 0.01).abs() < 1e-12
        );
        let cells = [cell(Ruling::Pass, 300, 0.0, 0.04), cell(Ruling::Inconclusive, 100, -0.4, 0.12)];
        let both = bins(Ruling::Inconclusive, &cells, &[])[0];
        assert_eq!((both.pairs, both.ruling), (400, Ruling::Inconclusive));
        assert!((both.delta + 0.1).abs() < 1e-12);
        let half = (0.03_f64.powi(2) + 0.03_f64.powi(2)).sqrt();
        assert!((both.interval.unwrap().0 - (-0.1 - half)).abs() < 1e-12);
    }

    #[test]
    fn a_rising_symptom_and_an_invalid_arm_are_the_ruling_of_a_bin() {
        let cells = [cell(Ruling::Pass, 80, 0.0, 0.03)];
        assert_eq!(bins(Ruling::Regressed, &cells, &[Bin(512)])[0].ruling, Ruling::Regressed);
        assert_eq!(bins(Ruling::Invalid, &cells, &[Bin(512)])[0].ruling, Ruling::Invalid);
        let unknown = Cell { delta: None, ..cell(Ruling::Inconclusive, 0, 0.0, 0.0) };
        assert!(bins(Ruling::Inconclusive, &[unknown], &[]).is_empty());
    }
}
