//! The result of `kvgauge bench` and its forms.

use std::collections::BTreeMap;

use kvgauge::report::{LinePanel, PlotLine, PlotScale};
use kvgauge::units::{format_bytes, format_percent, format_token_count};
use serde::Serialize;

use super::outputs::{Presented, markdown_table};
use crate::table;

/// Version of the JSON document. Changelog: 1 first version.
pub(super) const FORMAT_VERSION: u32 = 1;

/// Speed and memory of one model on one machine.
#[derive(Debug, Serialize)]
pub(super) struct Document {
    pub(super) format_version: u32,
    pub(super) kvgauge_version: &'static str,
    pub(super) machine: BTreeMap<String, String>,
    /// As Linux tells it, before and after; empty elsewhere. Speeds taken beside other work are not the machine's best.
    pub(super) load_average: [String; 2],
    pub(super) model: String,
    pub(super) weights: String,
    /// Reading, unpacking and hashing the weights.
    pub(super) load_seconds: f64,
    pub(super) kernel: String,
    pub(super) threads: usize,
    /// What the kernel's multiply-adds reach in registers on all threads.
    pub(super) peak_gflops: f64,
    pub(super) decode_tokens: u32,
    pub(super) repeats: u32,
    pub(super) cells: Vec<Cell>,
}

/// One length and dtype.
#[derive(Debug, Serialize)]
pub(super) struct Cell {
    pub(super) length: u32,
    pub(super) kv_cache_dtype: String,
    pub(super) prefill: Rate,
    pub(super) prefill_gflop: f64,
    /// Arithmetic of the best prefill per second over the peak.
    pub(super) share_of_peak: f64,
    pub(super) decode: Vec<Decode>,
    pub(super) cache_bytes_per_token: f64,
    /// Of the whole process during this cell's trials.
    pub(super) peak_rss_bytes: Option<u64>,
}

/// Decoding of `batch` sequences together.
#[derive(Debug, Serialize)]
pub(super) struct Decode {
    pub(super) batch: u32,
    /// Tokens of all sequences.
    pub(super) rate: Rate,
}

/// Tokens per second.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Rate {
    pub(super) best: f64,
    pub(super) median: f64,
    /// In the order measured.
    pub(super) all: Vec<f64>,
}

impl Rate {
    /// # Panics
    /// If nothing was measured.
    pub(super) fn of(all: Vec<f64>) -> Self {
        let mut sorted = all.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = if sorted.len().is_multiple_of(2) {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        } else {
            sorted[middle]
        };
        Self { best: sorted[sorted.len() - 1], median, all }
    }

    fn text(&self) -> String {
        format!("{} ({})", tokens_per_second(self.median), tokens_per_second(self.best))
    }
}

fn tokens_per_second(rate: f64) -> String {
    if rate < 100.0 { format!("{rate:.1}") } else { format!("{rate:.0}") }
}

impl Document {
    fn header(&self) -> Vec<String> {
        let mut header: Vec<String> = ["length", "KV dtype", "prefill tok/s", "of peak"].map(String::from).into();
        header.extend(self.batches().into_iter().map(|batch| format!("decode ×{batch} tok/s")));
        header.extend(["cache B/token", "peak memory"].map(String::from));
        header
    }

    fn batches(&self) -> Vec<u32> {
        self.cells.first().map_or_else(Vec::new, |cell| cell.decode.iter().map(|decode| decode.batch).collect())
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let row = |cell: &Cell| {
            let mut row = vec![format_token_count(cell.length), cell.kv_cache_dtype.clone()];
            row.extend([cell.prefill.text(), format_percent(cell.share_of_peak)]);
            row.extend(cell.decode.iter().map(|decode| decode.rate.text()));
            row.push(format!("{:.0}", cell.cache_bytes_per_token));
            row.push(cell.peak_rss_bytes.map_or_else(|| "–".into(), format_bytes));
            row
        };
        self.cells.iter().map(row).collect()
    }

    /// What the numbers hold for, one fact a line.
    fn conditions(&self) -> Vec<String> {
        let machine = |key: &str| self.machine.get(key).map_or("unknown", String::as_str);
        let mut lines = vec![
            format!("{}, {} cores, {}", machine("cpu"), machine("cores"), machine("os")),
            format!(
                "{} loaded in {:.2} s; kernel {} on {} threads, peak {:.0} GFLOP/s",
                self.model, self.load_seconds, self.kernel, self.threads, self.peak_gflops
            ),
            format!(
                "median (best) of {}; {} tokens decoded per sequence after each prompt",
                self.repeats, self.decode_tokens
            ),
        ];
        if !self.load_average[0].is_empty() {
            lines.push(format!("load average {} before, {} after", self.load_average[0], self.load_average[1]));
        }
        lines
    }

    fn panel(&self, title: &str, value: impl Fn(&Cell) -> Option<f64>) -> LinePanel {
        let mut lines: Vec<PlotLine> = Vec::new();
        for cell in &self.cells {
            let label = &cell.kv_cache_dtype;
            let index = lines.iter().position(|line| line.label == *label).unwrap_or_else(|| {
                lines.push(PlotLine { label: label.clone(), points: Vec::new() });
                lines.len() - 1
            });
            lines[index].points.extend(value(cell).map(|value| (cell.length, value)));
        }
        LinePanel { title: title.into(), scale: PlotScale::Linear, lines }
    }
}

impl Presented for Document {
    fn text(&self) -> String {
        let mut table = table::empty(self.header());
        table.add_rows(self.rows());
        format!("{}\n{}\n", table::finished(table), self.conditions().join("\n"))
    }

    fn markdown(&self) -> String {
        let conditions: String = self.conditions().iter().map(|line| format!("- {line}\n")).collect();
        format!("# Speed\n\n{conditions}\n{}", markdown_table(&self.header(), &self.rows()))
    }

    fn panels(&self) -> Vec<LinePanel> {
        let mut panels = vec![self.panel("prefill, tokens per second", |cell| Some(cell.prefill.median))];
        for batch in self.batches() {
            let rate = |cell: &Cell| cell.decode.iter().find(|it| it.batch == batch).map(|it| it.rate.median);
            panels.push(self.panel(&format!("decode of {batch} together, tokens per second"), rate));
        }
        panels
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_keeps_its_order_and_knows_best_and_median() {
        assert_eq!(Rate::of(vec![3.0, 1.0, 2.0]), Rate { best: 3.0, median: 2.0, all: vec![3.0, 1.0, 2.0] });
        assert_eq!(Rate::of(vec![4.0, 1.0]).median, 2.5);
        assert_eq!(Rate::of(vec![1234.6, 50.04]).text(), "642 (1235)");
    }
}
