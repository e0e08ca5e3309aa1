//! Speed per arm × bin, the only part of a report that depends on a clock.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::record::Record;
use crate::record::samples::SampleRecord;
use crate::sample::{Bin, Completion};

/// Version of `timings.json`. Changelog: 1 first version.
const FORMAT_VERSION: u32 = 1;

/// Times of every arm, in the order given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timings {
    /// Version of this document.
    pub format_version: u32,
    /// One entry per arm.
    pub arms: Vec<ArmTimings>,
}

/// Times of one arm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArmTimings {
    /// Arm name.
    pub arm: String,
    /// Bins, ascending; a bin without an answer is absent.
    pub bins: Vec<BinTimings>,
}

/// Times of one arm in one bin. Milliseconds unless named otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BinTimings {
    /// The bin.
    pub bin: Bin,
    /// Answers measured.
    pub answers: u64,
    /// Time to first token, median. Questions that share a prefill count only their own part of it.
    pub ttft_median_ms: Option<f64>,
    /// Longest time to first token: a whole prefill.
    pub ttft_max_ms: Option<f64>,
    /// Time per output token after the first, median over answers of two tokens or more.
    pub tpot_median_ms: Option<f64>,
    /// Output tokens after the first per second of decoding, over all answers.
    pub decode_tokens_per_s: Option<f64>,
    /// Sum of the requests' times in seconds; requests that overlap in time count each.
    pub wall_s: f64,
}

impl Timings {
    /// Computes them from records, each under its arm's name; of several attempts at an item the last counts.
    pub fn from_records(records: &[(&str, &Record)]) -> Self {
        let arms = records
            .iter()
            .map(|(arm, record)| ArmTimings { arm: (*arm).to_owned(), bins: bins_of(&record.samples) })
            .collect();
        Self { format_version: FORMAT_VERSION, arms }
    }

    /// The times of one arm in one bin.
    pub fn get(&self, arm: &str, bin: Bin) -> Option<&BinTimings> {
        self.arms.iter().find(|timings| timings.arm == arm)?.bins.iter().find(|timings| timings.bin == bin)
    }
}

fn bins_of(samples: &[SampleRecord]) -> Vec<BinTimings> {
    let mut last: BTreeMap<&str, &SampleRecord> = BTreeMap::new();
    for sample in samples {
        let newest = last.entry(&sample.item_id).or_insert(sample);
        if sample.attempt >= newest.attempt {
            *newest = sample;
        }
    }
    let mut bins: BTreeMap<Bin, Vec<&Completion>> = BTreeMap::new();
    for sample in last.values() {
        if let Some(completion) = &sample.completion {
            bins.entry(sample.bin).or_default().push(completion);
        }
    }
    bins.into_iter().map(|(bin, completions)| bin_timings(bin, &completions)).collect()
}

fn bin_timings(bin: Bin, completions: &[&Completion]) -> BinTimings {
    let mut first_ms: Vec<f64> = completions.iter().map(|completion| completion.timing.ttft_ms).collect();
    let mut per_token_ms: Vec<f64> = completions
        .iter()
        .filter_map(|completion| completion.timing.tpot_ms(completion.output_tokens))
        .filter(|tpot_ms| tpot_ms.is_finite())
        .collect();
    let (decoded, decode_ms) = completions.iter().filter(|completion| completion.output_tokens > 1).fold(
        (0_u64, 0.0),
        |(tokens, ms), completion| {
            let timing = completion.timing;
            (tokens + u64::from(completion.output_tokens) - 1, ms + timing.latency_ms - timing.ttft_ms)
        },
    );
    BinTimings {
        bin,
        answers: completions.len() as u64,
        ttft_median_ms: median(&mut first_ms),
        ttft_max_ms: first_ms.last().copied(),
        tpot_median_ms: median(&mut per_token_ms),
        decode_tokens_per_s: (decode_ms > 0.0).then(|| decoded as f64 * 1000.0 / decode_ms),
        wall_s: completions.iter().map(|completion| completion.timing.latency_ms).sum::<f64>() / 1000.0,
    }
}

/// The median; sorts `values`.
fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        n if n.is_multiple_of(2) => Some(f64::midpoint(values[middle - 1], values[middle])),
        _ => Some(values[middle]),
    }
}

/// `timings.json`: times, apart from everything that has to be reproducible.
pub fn timings_json(timings: &Timings) -> String {
    let mut text = serde_json::to_string_pretty(timings).expect("string keys and plain numbers always serialize");
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{FinishReason, Language, Outcome, Timing};

    fn sample(item: &str, attempt: u32, ttft_ms: f64, latency_ms: f64, output_tokens: u32) -> SampleRecord {
        SampleRecord {
            item_id: item.into(),
            task: "needle".into(),
            language: Language::En,
            bin: Bin(2048),
            slot_percent: 50,
            index: 0,
            haystack_id: "h".into(),
            depth_percent: None,
            prompt_tokens: 2000,
            prompt_hash: String::new(),
            expected_answer: String::new(),
            excerpt: String::new(),
            outcome: Outcome::ValidRight,
            score: None,
            findings: Vec::new(),
            completion: Some(Completion {
                text: String::new(),
                prompt_tokens: 2000,
                output_tokens,
                finish_reason: FinishReason::Stop,
                timing: Timing { ttft_ms, latency_ms },
                answer_nll: None,
                reasoning: None,
                later_answers: Vec::new(),
                answer_tokens: Vec::new(),
            }),
            text_hash: String::new(),
            truncated: false,
            error: None,
            attempt,
            variant_of: None,
        }
    }

    #[test]
    fn medians_and_rates_follow_their_definitions_and_the_last_attempt_counts() {
        let samples = [
            sample("a", 1, 9000.0, 90_000.0, 2),
            sample("a", 2, 100.0, 190.0, 10),
            sample("b", 1, 300.0, 500.0, 11),
            sample("c", 1, 50.0, 50.0, 1),
        ];
        let bins = bins_of(&samples);
        assert_eq!(bins.len(), 1);
        assert_eq!(bins[0].answers, 3);
        assert_eq!(bins[0].ttft_median_ms, Some(100.0));
        assert_eq!(bins[0].ttft_max_ms, Some(300.0));
        assert_eq!(bins[0].tpot_median_ms, Some(15.0));
        assert_eq!(bins[0].decode_tokens_per_s, Some(19.0 * 1000.0 / 290.0));
        assert!((bins[0].wall_s - 0.74).abs() < 1e-12);
    }

    #[test]
    fn nothing_measured_is_unknown_and_not_zero() {
        assert!(bins_of(&[]).is_empty());
        assert_eq!(median(&mut []), None);
    }
}
