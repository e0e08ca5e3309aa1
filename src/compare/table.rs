//! Records as tables, by polars: one row per sample × arm, and task × bin counts out of them.
//!
//! For people and notebooks. Nothing that is judged goes through here: the gate reads [`crate::compare::Comparison`], which
//! is counted from the records themselves, and never a Parquet file.

use std::path::{Path, PathBuf};

use polars::prelude::{
    Column, DataFrame, DataFrameJoinOps as _, JoinArgs, JoinType, NamedFrom as _, ParquetCompression, ParquetWriter,
    PolarsError, Series, SortMultipleOptions,
};

use crate::hint::Hint;
use crate::record::{Record, samples::SampleRecord};
use crate::sample::{Bin, Completion, FinishReason, Outcome};

/// Why a table could not be made or written.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// polars refused.
    #[error("cannot build the table of samples: {0}")]
    Table(#[from] PolarsError),
    /// The file could not be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl Hint for TableError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::Table(_) => vec![],
            Self::Write { .. } => vec!["check that the folder exists, is writable and has space left".into()],
        }
    }
}

/// One arm in one task × bin, beside the first arm.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskBinRow {
    /// Arm name.
    pub arm: String,
    /// Task id.
    pub task: String,
    /// Bin.
    pub bin: Bin,
    /// Valid items: neither error nor invalid; an unfinished answer is one that is not right.
    pub n: u64,
    /// Right items.
    pub right: u64,
    /// Mean output tokens of the valid items.
    pub output_tokens: Option<f64>,
    /// Share of right items less the first arm's, over each arm's own valid items.
    pub difference: Option<f64>,
}

/// Writes every sample of `records` to a Parquet file: arm, item_id, variant_of, perturbation (both null for an item of its
/// own), task, language, bin, slot, depth, index, haystack_id,
/// prompt_tokens, outcome, score, faults, findings (both comma-separated), output_tokens, finish_reason, answer_nll,
/// text_bytes, ttft_ms, latency_ms. The file appears whole or not at all.
///
/// # Errors
/// When the table cannot be built or the file not be written.
pub fn write_parquet(records: &[&Record], path: &Path) -> Result<(), TableError> {
    let mut frame = samples_frame(records)?;
    let failed = |source: std::io::Error| TableError::Write { path: path.into(), source };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
    // Codecs are features that the build does without; the columns are small beside the reports.
    ParquetWriter::new(file.as_file_mut())
        .with_compression(ParquetCompression::Uncompressed)
        .finish(&mut frame)
        .map_err(|error| match error {
            PolarsError::IO { error, .. } => failed(std::io::Error::new(error.kind(), error.to_string())),
            other => TableError::Table(other),
        })?;
    file.as_file().sync_all().map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    Ok(())
}

/// Task × bin of every arm without variants, the first record being what the others are compared with. Sorted by arm (in the order given),
/// task and bin.
///
/// # Errors
/// When polars refuses.
pub fn task_bin_table(records: &[&Record]) -> Result<Vec<TaskBinRow>, TableError> {
    let frame = samples_frame(records)?;
    let counts = counts(&frame.filter(&frame.column("variant_of")?.is_null())?)?;
    let Some(first) = records.first() else { return Ok(Vec::new()) };
    let first = first.manifest.arm.name.as_str();
    let is_first: polars::prelude::BooleanChunked =
        counts.column("arm")?.str()?.iter().map(|arm| Some(arm == Some(first))).collect();
    let baseline = counts.filter(&is_first)?.select(["task", "bin", "n", "right"])?;
    let joined = counts
        .join(&baseline, ["task", "bin"], ["task", "bin"], JoinArgs::new(JoinType::Left), None)?
        .sort(["task", "bin"], SortMultipleOptions::default())?;
    let mut rows = Vec::with_capacity(joined.height());
    let (arm, task) = (joined.column("arm")?.str()?, joined.column("task")?.str()?);
    let (bin, n, right) = (joined.column("bin")?.u32()?, whole(&joined, "n")?, whole(&joined, "right")?);
    let (base_n, base_right) = (whole(&joined, "n_right")?, whole(&joined, "right_right")?);
    let tokens = joined.column("output_tokens_mean")?.f64()?;
    for i in 0..joined.height() {
        let n_valid = n[i].unwrap_or(0);
        let share = |right: Option<u64>, n: Option<u64>| Some(right? as f64 / n.filter(|n| *n > 0)? as f64);
        rows.push(TaskBinRow {
            arm: arm.get(i).unwrap_or_default().into(),
            task: task.get(i).unwrap_or_default().into(),
            bin: Bin(bin.get(i).unwrap_or_default()),
            n: n_valid,
            right: right[i].unwrap_or(0),
            output_tokens: tokens.get(i),
            difference: share(right[i], n[i]).zip(share(base_right[i], base_n[i])).map(|(arm, base)| arm - base),
        });
    }
    let place = |row: &TaskBinRow| records.iter().position(|record| record.manifest.arm.name == row.arm);
    rows.sort_by(|left, right| (place(left), &left.task, left.bin).cmp(&(place(right), &right.task, right.bin)));
    Ok(rows)
}

/// arm, task, bin, n, right, output_tokens_mean.
#[expect(deprecated, reason = "the successor is polars' lazy engine, which doubles the build")]
fn counts(samples: &DataFrame) -> Result<DataFrame, TableError> {
    let keys = ["arm", "task", "bin"];
    let groups = || samples.group_by_stable(keys);
    let mut counted = groups()?.select(["valid", "right"]).sum()?;
    counted.rename("valid_sum", "n".into())?;
    counted.rename("right_sum", "right".into())?;
    let mut tokens = groups()?.select(["output_tokens_valid"]).mean()?;
    tokens.rename("output_tokens_valid_mean", "output_tokens_mean".into())?;
    Ok(counted.join(&tokens, keys, keys, JoinArgs::new(JoinType::Left), None)?)
}

fn whole(frame: &DataFrame, column: &str) -> Result<Vec<Option<u64>>, TableError> {
    let cast = frame.column(column)?.cast(&polars::prelude::DataType::UInt64)?;
    Ok(cast.u64()?.iter().collect())
}

fn samples_frame(records: &[&Record]) -> Result<DataFrame, TableError> {
    let mut rows: Vec<(usize, &str, &SampleRecord)> = Vec::new();
    for (place, record) in records.iter().enumerate() {
        rows.extend(record.samples.iter().map(|sample| (place, record.manifest.arm.name.as_str(), sample)));
    }
    rows.sort_by_key(|(place, _, it)| {
        (*place, it.bin, it.task.clone(), it.slot_percent, it.index, it.item_id.clone(), it.attempt)
    });
    let samples: Vec<&SampleRecord> = rows.iter().map(|(_, _, sample)| *sample).collect();
    let valid = |it: &SampleRecord| !matches!(it.outcome, Outcome::Invalid | Outcome::Error);
    let output_tokens = |it: &SampleRecord| answer(it, |completion| completion.output_tokens);
    let columns = vec![
        text("arm", rows.iter().map(|(_, arm, _)| Some((*arm).to_owned())).collect()),
        text("item_id", samples.iter().map(|it| Some(it.item_id.clone())).collect()),
        text("variant_of", samples.iter().map(|it| Some(it.variant_of.as_ref()?.item_id.clone())).collect()),
        text(
            "perturbation",
            samples.iter().map(|it| Some(it.variant_of.as_ref()?.perturbation.name().into())).collect(),
        ),
        text("task", samples.iter().map(|it| Some(it.task.clone())).collect()),
        text("language", samples.iter().map(|it| Some(it.language.tag().into())).collect()),
        Series::new("bin".into(), samples.iter().map(|it| it.bin.tokens()).collect::<Vec<u32>>()).into(),
        Series::new("slot".into(), samples.iter().map(|it| u32::from(it.slot_percent)).collect::<Vec<u32>>()).into(),
        float("depth", samples.iter().map(|it| it.depth_percent).collect()),
        Series::new("index".into(), samples.iter().map(|it| it.index).collect::<Vec<u32>>()).into(),
        text("haystack_id", samples.iter().map(|it| Some(it.haystack_id.clone())).collect()),
        Series::new("prompt_tokens".into(), samples.iter().map(|it| it.prompt_tokens).collect::<Vec<u32>>()).into(),
        text("outcome", samples.iter().map(|it| Some(outcome_name(it.outcome).into())).collect()),
        float("score", samples.iter().map(|it| it.score.as_ref().map(|score| score.value)).collect()),
        text("faults", samples.iter().map(|it| Some(faults(it))).collect()),
        text("findings", samples.iter().map(|it| Some(findings(it))).collect()),
        Series::new("output_tokens".into(), samples.iter().map(|it| output_tokens(it)).collect::<Vec<Option<u32>>>())
            .into(),
        text("finish_reason", samples.iter().map(|it| answer(it, |c| finish_name(c.finish_reason).into())).collect()),
        float("answer_nll", samples.iter().map(|it| answer(it, |c| c.answer_nll).flatten()).collect()),
        Series::new(
            "text_bytes".into(),
            samples.iter().map(|it| answer(it, |c| c.text.len() as u64)).collect::<Vec<Option<u64>>>(),
        )
        .into(),
        float("ttft_ms", samples.iter().map(|it| answer(it, |c| c.timing.ttft_ms)).collect()),
        float("latency_ms", samples.iter().map(|it| answer(it, |c| c.timing.latency_ms)).collect()),
        // For grouping; a mean over nothing is null.
        Series::new("valid".into(), samples.iter().map(|it| u32::from(valid(it))).collect::<Vec<u32>>()).into(),
        Series::new(
            "right".into(),
            samples.iter().map(|it| u32::from(it.outcome == Outcome::ValidRight)).collect::<Vec<u32>>(),
        )
        .into(),
        float(
            "output_tokens_valid",
            samples.iter().map(|it| output_tokens(it).filter(|_| valid(it)).map(f64::from)).collect(),
        ),
    ];
    Ok(DataFrame::new(samples.len(), columns)?)
}

fn text(name: &str, values: Vec<Option<String>>) -> Column {
    Series::new(name.into(), values).into()
}

fn float(name: &str, values: Vec<Option<f64>>) -> Column {
    Series::new(name.into(), values).into()
}

fn answer<T>(sample: &SampleRecord, read: impl Fn(&Completion) -> T) -> Option<T> {
    sample.completion.as_ref().map(read)
}

fn faults(sample: &SampleRecord) -> String {
    let labels: Vec<&str> =
        sample.score.iter().flat_map(|score| &score.faults).map(|fault| fault.kind.label()).collect();
    labels.join(",")
}

fn findings(sample: &SampleRecord) -> String {
    let names: Vec<&str> = sample.findings.iter().map(|finding| finding.kind.name()).collect();
    names.join(",")
}

fn outcome_name(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::ValidRight => "valid_right",
        Outcome::ValidWrong => "valid_wrong",
        Outcome::Censored => "censored",
        Outcome::Invalid => "invalid",
        Outcome::Error => "error",
    }
}

fn finish_name(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::ContentFilter => "content_filter",
        FinishReason::Unknown => "unknown",
    }
}
