//! Speed and memory: the only section that depends on a clock.

use minijinja::value::Value;

use crate::report::figures;
use crate::report::kv_record::{kv_records, yaml};
use crate::report::page::Page;
use crate::report::timings::BinTimings;
use crate::report::{ReportError, fields};
use crate::sample::Bin;
use crate::units::{format_bytes, format_seconds};

pub(crate) fn view(page: &Page) -> Result<Option<Value>, ReportError> {
    let input = page.input;
    let comparison = input.comparison;
    let baseline = comparison.baseline.arm.name.as_str();
    let bins: Vec<Value> = comparison
        .bins
        .iter()
        .map(|bin| {
            let reference = input.timings.get(baseline, *bin);
            let rows = input.timings.arms.iter().filter_map(|arm| {
                let timings = input.timings.get(&arm.arm, *bin)?;
                Some(row(&arm.arm, timings, reference.filter(|_| arm.arm != baseline)))
            });
            fields! { bin => bin.to_string(), rows => rows.collect::<Vec<_>>() }
        })
        .collect();
    let records: Vec<Value> =
        kv_records(input).iter().map(|record| fields! { arm => record.arm, yaml => yaml(record, true) }).collect();
    let longest = comparison.bins.last().copied();
    let accepted = comparison.baseline.accepted.as_ref().map(|accepted| accepted.day().to_owned());
    Ok(Some(fields! {
        bins => bins, memory => memory(page, longest), longest => figures::bin(longest), records => records, accepted => accepted,
    }))
}

fn row(arm: &str, timings: &BinTimings, reference: Option<&BinTimings>) -> Value {
    let ratio = reference
        .and_then(|reference| timings.decode_tokens_per_s.zip(reference.decode_tokens_per_s))
        .filter(|(_, before)| *before > 0.0)
        .map_or_else(String::new, |(after, before)| format!("{:.2}×", after / before));
    fields! {
        arm => arm,
        answers => figures::count(timings.answers),
        ttft_median => milliseconds(timings.ttft_median_ms),
        ttft_max => milliseconds(timings.ttft_max_ms),
        tpot => milliseconds(timings.tpot_median_ms),
        rate => timings.decode_tokens_per_s.map_or(figures::UNKNOWN.into(), |rate| format!("{rate:.1}")),
        ratio => ratio,
        wall => format_seconds(timings.wall_s),
    }
}

fn milliseconds(value: Option<f64>) -> String {
    match value {
        Some(ms) if ms < 100.0 => format!("{ms:.1} ms"),
        Some(ms) if ms < 10_000.0 => format!("{ms:.0} ms"),
        Some(ms) => format_seconds(ms / 1000.0),
        None => figures::UNKNOWN.into(),
    }
}

/// Bytes of one whole context in the longest bin.
fn memory(page: &Page, longest: Option<Bin>) -> Vec<Value> {
    let comparison = page.input.comparison;
    let before = comparison.baseline.resolved.kv_bytes_per_token.value;
    let arms = std::iter::once(&comparison.baseline).chain(comparison.candidates.iter().map(|arm| &arm.summary));
    arms.map(|arm| {
        let bytes = arm.resolved.kv_bytes_per_token.value;
        let context_bytes = bytes.zip(longest).map(|(bytes, bin)| (bytes * f64::from(bin.tokens())).round() as u64);
        let gain = before.zip(bytes).filter(|(_, bytes)| *bytes > 0.0).map(|(before, bytes)| before / bytes);
        fields! {
            arm => arm.arm.name,
            bytes => bytes.map_or(figures::UNKNOWN.into(), |bytes| format!("{bytes:.0} B")),
            context => context_bytes.map_or(figures::UNKNOWN.into(), format_bytes),
            gain => gain.map_or(figures::UNKNOWN.into(), |gain| format!("{gain:.2}×")),
            tokens => arm.resolved.kv_cache_tokens.value.map_or(figures::UNKNOWN.into(), figures::count),
        }
    })
    .collect()
}
