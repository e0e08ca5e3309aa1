//! What the client costs: CPU time per streamed token and per request, and memory, with 512 streams at once.
//!
//! Run alone and optimised: `cargo test --release --test it openai::load -- --ignored --nocapture`.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Instant;

use kvgauge::targets::{CancelFlag, Target, Watch};

use super::played::{Played, Step, chunk, finished, said, stream_end, stream_head, usage};
use super::{connect, item, runtime, settings};

const STREAMS: usize = 512;

/// CPU time of this thread in nanoseconds; the client runs on one thread and the server on another.
fn thread_cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

fn resident_mib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() / 1024
}

/// Asks `per_stream` items on each of [`STREAMS`] lanes; gives CPU nanoseconds and seconds.
fn run(played: &Played, per_stream: usize) -> (u64, f64) {
    runtime().block_on(async {
        let mut patient = settings(&played.url);
        (patient.first_byte_timeout_s, patient.between_tokens_timeout_s) = (300, 300);
        let endpoint = Arc::new(connect(patient).await.unwrap());
        let (cpu, started) = (thread_cpu_ns(), Instant::now());
        let mut lanes = tokio::task::JoinSet::new();
        for lane in 0..STREAMS {
            let endpoint = Arc::clone(&endpoint);
            lanes.spawn(async move {
                let watch = Watch { on_event: &|_| (), cancel: Arc::new(CancelFlag::default()) };
                for round in 0..per_stream {
                    let answers = endpoint.complete(vec![item(&format!("{lane}.{round}"))], &watch).await;
                    assert!(answers[0].is_ok(), "{answers:?}");
                }
            });
        }
        while let Some(lane) = lanes.join_next().await {
            lane.unwrap();
        }
        (thread_cpu_ns() - cpu, started.elapsed().as_secs_f64())
    })
}

#[test]
#[ignore = "a measurement: run alone and optimised"]
#[cfg(target_os = "linux")]
fn streams_cost_little() {
    const TOKENS: usize = 400;
    // As vLLM writes it: some 230 bytes and one write a token.
    let token = said(" lantern").replacen(
        '{',
        r#"{"id":"chatcmpl-0f9c27d1aa","object":"chat.completion.chunk","created":1795963717,"#,
        1,
    );
    let events: Vec<Step> = (0..TOKENS).map(|_| chunk(format!("data: {token}\n\n").as_bytes())).collect();
    let tail = format!("data: {}\n\ndata: {}\n\ndata: [DONE]\n\n", finished("stop"), usage(20, TOKENS as u32));
    let long = [vec![stream_head()], events, vec![chunk(tail.as_bytes()), stream_end()]].concat();
    let short = vec![stream_head(), chunk(format!("data: {token}\n\n{tail}").as_bytes()), stream_end()];
    let (streaming, asking) = (Played::vllm(move |_| long.clone()), Played::vllm(move |_| short.clone()));
    let before = resident_mib();
    let (cpu, seconds) = run(&streaming, 2);
    let n_token = STREAMS * 2 * TOKENS;
    let mut report = String::new();
    let per_token = cpu as f64 / n_token as f64 / 1e3;
    writeln!(report, "{n_token} tokens over {STREAMS} streams: {per_token:.2} us CPU per token, {seconds:.1} s")
        .unwrap();
    let (cpu, seconds) = run(&asking, 20);
    let n_request = STREAMS * 20;
    let per_request = cpu as f64 / n_request as f64 / 1e3;
    writeln!(report, "{n_request} requests: {per_request:.0} us CPU per request, {seconds:.1} s").unwrap();
    write!(report, "resident memory, server and client: {before} MiB before, {} MiB after", resident_mib()).unwrap();
    println!("{report}");
    assert!(per_token < 20.0 && per_request < 1000.0, "{report}");
}
