//! Bytes of output text judged per second, all detectors together, nothing known of what was asked.
//!
//! Goal: 50 MB/s on one core. The text is that of the whole outputs of the labelled set: prose, code, tables, logs, numbers and
//! Chinese, one by one and joined to answers of some kilobytes.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kvgauge::detectors::{Context, DETECTORS, Reading, detect_all};

const OUTPUTS: &str = include_str!("../tests/fixtures/outputs.jsonl");
/// Outputs joined to one of some kilobytes.
const JOINED: usize = 20;

fn whole_outputs() -> Vec<String> {
    let lines = OUTPUTS.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("a line of JSON"));
    let whole = lines.filter(|line| line["label"] == "ok");
    whole.map(|line| line["output"].as_str().expect("a text").to_string()).collect()
}

fn detect(criterion: &mut Criterion) {
    let short = whole_outputs();
    let long: Vec<String> = short.chunks(JOINED).map(|chunk| chunk.join("\n\n")).collect();
    for (name, texts) in [("short", &short), ("kilobytes", &long)] {
        let bytes: usize = texts.iter().map(String::len).sum();
        let mut group = criterion.benchmark_group(format!("detect {name}"));
        group.sample_size(10).throughput(Throughput::Bytes(bytes as u64));
        group.bench_function("all", |bencher| {
            bencher.iter(|| texts.iter().map(|text| detect_all(&Context::of(black_box(text))).len()).sum::<usize>());
        });
        for detector in DETECTORS {
            group.bench_function(BenchmarkId::from_parameter(detector.kind.name()), |bencher| {
                let judge = |text: &String| (detector.detect)(&Reading::of(&Context::of(black_box(text)))).is_some();
                bencher.iter(|| texts.iter().filter(|text| judge(text)).count());
            });
        }
        group.finish();
    }
}

criterion_group!(benches, detect);
criterion_main!(benches);
