//! Items per second and the time of one long item, exact token counts included.
//!
//! Goals: 1,000 items of 2K a second on two cores, an item of 128K in 0.3 s.

#[path = "../tests/it/smollm2.rs"]
mod smollm2;

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kvgauge::sample::{Bin, Language};
use kvgauge::suite::Suite;
use kvgauge::tasks;

/// A suite of one task and one bin, one question to a text.
fn suite(task: &str, language: Language, bin: Bin, samples: u32) -> Suite {
    let text = format!(
        "schema_version = 1\nname = \"bench\"\ndescription = \"\"\nlanguage = \"{}\"\n\
         [[bins]]\ncontext = {}\nsamples = {samples}\n[[tasks]]\nkind = \"{task}\"\n",
        language.tag(),
        bin.tokens()
    );
    Suite::parse(&text, "bench").expect("a valid suite")
}

fn generate(criterion: &mut Criterion) {
    let tokenizer = smollm2::tokenizer(None);
    for (bin, samples) in [(Bin(2048), 256), (Bin(131_072), 8)] {
        for language in [Language::En, Language::Zh] {
            let mut group = criterion.benchmark_group(format!("generate {bin} {}", language.tag()));
            group.sample_size(10).throughput(Throughput::Elements(1));
            // A user's prompts are read, not made.
            for task in tasks::ids().into_iter().filter(|task| *task != "custom") {
                let suite = suite(task, language, bin, samples);
                let groups = suite.plan().groups;
                let mut next = groups.iter().cycle();
                group.bench_function(BenchmarkId::from_parameter(task), |bencher| {
                    bencher.iter(|| {
                        let group = next.next().expect("a cycle has no end");
                        black_box(suite.generate(group, &tokenizer).expect("fits its bin"))
                    });
                });
            }
            group.finish();
        }
    }
}

criterion_group!(benches, generate);
criterion_main!(benches);
