//! Every fault that an endpoint has been seen to show, with the outcome it must have. An error is never a score.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kvgauge::sample::{Completion, FinishReason};
use kvgauge::targets::TargetError;
use kvgauge::targets::openai::EndpointError;
use serde_json::json;

use super::played::{
    Asked, Played, Step, chunk, events, finished, good, json_reply, reply, said, stream_end, stream_head, usage,
};
use super::{ask, item, settings};

type Script = Box<dyn Fn(&Asked) -> Vec<Step> + Send + Sync>;

/// What must become of an item.
#[derive(Clone, Copy)]
enum Must {
    /// This text, with this end.
    Answer(&'static str, FinishReason),
    /// An error of this kind, with this in its words, after so many requests.
    Fail(&'static str, &'static str, usize),
    /// The same, and the item is INVALID.
    Invalid(&'static str, &'static str, usize),
}

use Must::{Answer, Fail, Invalid};

fn kind(error: &EndpointError) -> &'static str {
    match error {
        EndpointError::Transport { .. } => "transport",
        EndpointError::Unauthorized { .. } => "unauthorized",
        EndpointError::Status { .. } => "status",
        EndpointError::Redirected { .. } => "redirected",
        EndpointError::ContextOverflow { .. } => "context overflow",
        EndpointError::OutputClamped { .. } => "output clamped",
        EndpointError::LimitIgnored { .. } => "limit ignored",
        EndpointError::Timeout { .. } => "timeout",
        EndpointError::BrokenOff { .. } => "broken off",
        EndpointError::NotAnAnswer { .. } => "not an answer",
        EndpointError::NoUsage => "no usage",
        other => panic!("unexpected: {other}"),
    }
}

fn always(steps: Vec<Step>) -> Script {
    Box::new(move |_| steps.clone())
}

fn first(steps: Vec<Step>) -> Script {
    Box::new(move |asked| if asked.place == 0 { steps.clone() } else { good("47") })
}

fn status(status: u16, headers: &str) -> Vec<Step> {
    reply(status, headers, br#"{"error":{"message":"the words","code":1}}"#)
}

fn then_done(chunks: &[&[u8]]) -> Vec<Step> {
    let mut steps = vec![stream_head()];
    steps.extend(chunks.iter().map(|bytes| chunk(bytes)));
    let tail = format!("data: {}\n\ndata: {}\n\ndata: [DONE]\n\n", finished("stop"), usage(20, 3));
    steps.extend([chunk(tail.as_bytes()), stream_end()]);
    steps
}

fn play(rows: Vec<(&'static str, Script, Must)>) {
    std::thread::scope(|scope| {
        let running: Vec<_> =
            rows.into_iter().map(|(name, script, must)| scope.spawn(move || check(name, script, must))).collect();
        let failed: Vec<String> = running.into_iter().filter_map(|row| row.join().unwrap().err()).collect();
        assert!(failed.is_empty(), "\n{}", failed.join("\n"));
    });
}

#[expect(clippy::print_stdout, reason = "the table of faults and outcomes, shown with `--nocapture`")]
fn check(name: &str, script: Script, must: Must) -> Result<(), String> {
    let played = Played::vllm(script);
    let result = ask(settings(&played.url), vec![item("a")]).remove(0);
    let requests = played.bodies().len();
    println!("{name:<48} {requests} {}", shown(&result));
    let is_met = match (&result, must) {
        (Ok(answer), Answer(text, reason)) => answer.text == text && answer.finish_reason == reason,
        (Err(TargetError::Endpoint(error)), Fail(expected, words, count) | Invalid(expected, words, count)) => {
            kind(error) == expected
                && error.to_string().contains(words)
                && requests == count
                && error.is_invalid() == matches!(must, Invalid(..))
                && error.to_string().len() < 2000
        }
        _ => false,
    };
    if is_met { Ok(()) } else { Err(format!("{name}: {requests} requests, {}", shown(&result))) }
}

fn shown(result: &Result<Completion, TargetError>) -> String {
    match result {
        Ok(answer) => format!("{:?} {:?}", answer.text.chars().take(40).collect::<String>(), answer.finish_reason),
        Err(TargetError::Endpoint(error)) => format!("{}: {error}", kind(error)),
        Err(error) => error.to_string(),
    }
}

const OK: Must = Answer("47", FinishReason::Stop);

#[test]
fn connections_that_fail_are_tried_again_and_then_an_error() {
    let slow = [vec![Step::Pause(Duration::from_millis(300))], good("47")].concat();
    play(vec![
        ("reset after accept, once", first(vec![Step::Reset]), OK),
        ("reset after accept, always", always(vec![Step::Reset]), Fail("transport", "after 2 attempts", 2)),
        ("closed before the status line", always(vec![Step::Close]), Fail("transport", "", 2)),
        (
            "a status line of nonsense",
            always(vec![Step::Send(b"SSH-2.0\r\n\r\n".to_vec()), Step::Close]),
            Fail("transport", "", 2),
        ),
        ("slow to answer", always(slow), OK),
        ("silent", always(vec![Step::Hang]), Fail("timeout", "the first token did not come within 1 s", 1)),
    ]);
}

#[test]
fn temporary_statuses_are_tried_again_and_others_are_not() {
    let mut rows: Vec<(&'static str, Script, Must)> = Vec::new();
    for code in [408, 409, 429, 500, 502, 503, 504] {
        rows.push(("temporary status, once", first(status(code, "")), OK));
        rows.push(("temporary status, always", always(status(code, "")), Fail("status", "the words", 2)));
    }
    for code in [400, 404, 413, 422, 501] {
        rows.push(("lasting status", always(status(code, "")), Fail("status", "the words", 1)));
    }
    rows.push(("401", always(status(401, "")), Fail("unauthorized", "401", 1)));
    rows.push(("403", always(status(403, "")), Fail("unauthorized", "403", 1)));
    rows.push(("429 in plain words", first(reply(429, "", b"slow down")), OK));
    rows.push(("500 of an overloaded engine", first(json_reply(500, &json!({"error": "Model is overloaded"}))), OK));
    for code in [301, 302, 307, 308] {
        rows.push((
            "a redirect to another host",
            always(status(code, "location: http://127.0.0.1:1/v1/chat/completions\r\n")),
            Fail("redirected", "not followed", 1),
        ));
    }
    play(rows);
}

#[test]
fn a_server_that_says_when_is_asked_then() {
    let date = |seconds: u64| {
        // A date in the near future, written by hand for today's clock.
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() + seconds;
        let (days, rest) = (at / 86_400, at % 86_400);
        let (mut year, mut day) = (1970, days);
        let length = |year: u64| {
            365 + u64::from(year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400)))
        };
        while day >= length(year) {
            (day, year) = (day - length(year), year + 1);
        }
        let months = [31, length(year) - 337, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        let names = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
        let mut month = 0;
        while day >= months[month] {
            (day, month) = (day - months[month], month + 1);
        }
        let clock = format!("{:02}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60);
        format!("Mon, {:02} {} {year} {clock} GMT", day + 1, names[month])
    };
    for (is_date, least) in [(false, 2.0), (true, 1.9)] {
        let header = format!("retry-after: {}\r\n", if is_date { date(3) } else { "2".into() });
        let played = Played::vllm(first(status(429, &header)));
        let started = std::time::Instant::now();
        assert!(ask(settings(&played.url), vec![item("a")])[0].is_ok());
        assert!(started.elapsed().as_secs_f64() >= least, "{header}: {:?}", started.elapsed());
    }
    // Later than the run is willing to wait: an error at once.
    let played = Played::vllm(first(status(503, "retry-after: 86400\r\n")));
    let started = std::time::Instant::now();
    let answers = ask(settings(&played.url), vec![item("a")]);
    assert!(matches!(answers[0], Err(TargetError::Endpoint(EndpointError::Status { status: 503, .. }))));
    assert!(started.elapsed().as_secs() < 5);
}

#[test]
fn prompts_that_are_too_long_are_invalid() {
    let message = "This model's maximum context length is 512 tokens. However, you requested 600 tokens";
    let llama = "request (8019 tokens) exceeds the available context size (2048 tokens), try increasing it";
    let in_stream = json!({"error": {"message": message, "code": 400}}).to_string();
    play(vec![
        (
            "400 maximum context length",
            always(json_reply(400, &json!({"error": {"message": message}}))),
            Invalid("context overflow", "512", 1),
        ),
        (
            "400 flat",
            always(json_reply(400, &json!({"object": "error", "message": message}))),
            Invalid("context overflow", "", 1),
        ),
        (
            "400 of llama.cpp",
            always(json_reply(400, &json!({"error": {"message": llama, "type": "exceed_context_size_error"}}))),
            Invalid("context overflow", "bin 512", 1),
        ),
        (
            "422 of TGI",
            always(json_reply(422, &json!({"error": "`inputs` must have less than 4 tokens. Given: 9"}))),
            Invalid("context overflow", "", 1),
        ),
        ("in a stream", always(events(&[&in_stream, "[DONE]"])), Invalid("context overflow", "", 1)),
        (
            "an answer longer than allowed",
            always(events(&[&said("47"), &finished("stop"), &usage(20, 40), "[DONE]"])),
            Invalid("limit ignored", "wrote 40 tokens, though only 16", 1),
        ),
        (
            "an answer cut at a limit of the server's",
            always(events(&[&said("47"), &finished("length"), &usage(20, 3), "[DONE]"])),
            Invalid("output clamped", "stopped at 3 tokens, though 16", 1),
        ),
    ]);
}

#[test]
fn bodies_that_are_no_answer_are_errors() {
    let whole = |body: &str| always(reply(200, "content-type: application/json\r\n", body.as_bytes()));
    let bytes = |body: &[u8]| always(reply(200, "content-type: application/json\r\n", body));
    let answer = r#"{"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"47"},"finish_reason":"stop"}],"usage":{"prompt_tokens":20,"completion_tokens":3}}"#;
    let thought = answer.replace(r#""content":"47""#, r#""content":null,"reasoning_content":"4 and 7""#);
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let mut invalid = answer.as_bytes().to_vec();
    invalid[answer.find("47").unwrap()] = 0xff;
    let head = |length: usize| {
        format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n")
    };
    let cut =
        |length: usize| always(vec![Step::Send([head(length).as_bytes(), answer.as_bytes()].concat()), Step::Close]);
    let big = [head(1 << 26).into_bytes(), vec![b' '; 34 << 20]].concat();
    play(vec![
        ("a whole answer though a stream was asked for", whole(answer), OK),
        ("with a byte order mark", whole(&format!("\u{feff}{answer}")), OK),
        (
            "HTML",
            always(reply(200, "content-type: text/html\r\n", b"<html>login</html>")),
            Fail("not an answer", "<html>", 1),
        ),
        ("an error under 200", whole(r#"{"error":{"message":"the words"}}"#), Fail("broken off", "the words", 1)),
        (
            "a flat error under 200",
            whole(r#"{"object":"error","message":"the words"}"#),
            Fail("broken off", "the words", 1),
        ),
        ("empty", whole(""), Fail("not an answer", "empty", 1)),
        (
            "choices: []",
            whole(r#"{"choices":[],"usage":{"prompt_tokens":20}}"#),
            Fail("not an answer", "no choices", 1),
        ),
        ("choices: null", whole(r#"{"choices":null}"#), Fail("not an answer", "no choices", 1)),
        ("no content, but thinking", whole(&thought), Answer("", FinishReason::Stop)),
        ("shorter than its length", cut(answer.len() + 50), Fail("broken off", "", 1)),
        ("longer than its length", cut(answer.len() - 50), Fail("not an answer", "", 1)),
        ("invalid UTF-8", bytes(&invalid), Fail("not an answer", "", 1)),
        ("JSON of depth 10,000", whole(&deep), Fail("not an answer", "", 1)),
        ("JSON of depth 10,000 in a field", whole(&format!(r#"{{"error":{deep}}}"#)), Fail("not an answer", "", 1)),
        ("a key twice", whole(&answer.replacen("{", r#"{"model":"m","#, 1)), Fail("not an answer", "duplicate", 1)),
        ("NaN", whole(&answer.replace("20", "NaN")), Fail("not an answer", "", 1)),
        (
            "no usage",
            whole(r#"{"choices":[{"message":{"content":"47"},"finish_reason":"stop"}]}"#),
            Fail("no usage", "", 1),
        ),
        ("more than the limit", always(vec![Step::Send(big), Step::Hang]), Fail("not an answer", "bytes", 1)),
    ]);
}

#[test]
fn streams_are_read_however_they_are_cut() {
    let event = |text: &str| format!("data: {}\n\n", said(text));
    let lines = |end: &str| {
        let text = format!(
            ": ping\n\ndata: {}\n\ndata: {}\n\ndata: {}\n\ndata: [DONE]\n\n",
            said("47"),
            finished("stop"),
            usage(20, 3)
        );
        always(vec![stream_head(), chunk(text.replace('\n', end).as_bytes()), stream_end()])
    };
    let several = said("47").replacen(',', ",\ndata: ", 1);
    let character = event("四十七");
    let (left, right) = character.as_bytes().split_at(character.find('十').unwrap() + 1);
    let single: Vec<Vec<u8>> = event("47").bytes().map(|byte| vec![byte]).collect();
    let single: Vec<&[u8]> = single.iter().map(Vec::as_slice).collect();
    let no_done = [
        vec![
            stream_head(),
            chunk(
                format!("data: {}\n\ndata: {}\n\ndata: {}\n\n", said("47"), finished("stop"), usage(20, 3)).as_bytes(),
            ),
        ],
        vec![stream_end()],
    ]
    .concat();
    let mut open_end = no_done.clone();
    *open_end.last_mut().unwrap() = Step::Hang;
    let mut reset_end = no_done.clone();
    *reset_end.last_mut().unwrap() = Step::Reset;
    let pings: Vec<Step> =
        (0..8).flat_map(|_| [chunk(b": ping\n\n"), Step::Pause(Duration::from_millis(100))]).collect();
    let with_pings = [vec![stream_head()], pings, then_done(&[event("47").as_bytes()])[1..].to_vec()].concat();
    let null = json!({"choices": [{"index": 0, "delta": {"role": null, "content": "47", "reasoning_content": null, "tool_calls": null},
        "matched_stop": null}], "usage": null});
    play(vec![
        ("LF", lines("\n"), OK),
        ("CRLF", lines("\r\n"), OK),
        ("CR", lines("\r"), OK),
        ("comments before and between", always(with_pings), OK),
        ("data in several lines", always(then_done(&[format!("data: {several}\n\n").as_bytes()])), OK),
        ("a character in two chunks", always(then_done(&[left, right])), Answer("四十七", FinishReason::Stop)),
        ("one byte a chunk", always(then_done(&single)), OK),
        ("no [DONE], closed", always(no_done), OK),
        ("no [DONE], left open", always(open_end), OK),
        ("reset after the end", always(reset_end), OK),
        (
            "reset after the end, before the count",
            always([events(&[&said("47"), &finished("stop")])[..3].to_vec(), vec![Step::Reset]].concat()),
            Fail("no usage", "", 1),
        ),
        ("fields of null", always(then_done(&[format!("data: {null}\n\n").as_bytes()])), OK),
        (
            "text in the last chunk",
            always(events(&[&said("4"), &said("7").replace("null", "\"length\""), &usage(20, 16), "[DONE]"])),
            Answer("47", FinishReason::Length),
        ),
        (
            "no finish_reason",
            always(events(&[&said("47"), &usage(20, 3), "[DONE]"])),
            Answer("47", FinishReason::Unknown),
        ),
        (
            "content filter",
            always(events(&[&said("4"), &finished("content_filter"), &usage(20, 3), "[DONE]"])),
            Answer("4", FinishReason::ContentFilter),
        ),
    ]);
}

#[test]
fn streams_that_break_are_errors_that_keep_what_came() {
    let began = |rest: Vec<Step>| {
        always([vec![stream_head(), chunk(format!("data: {}\n\n", said("the words")).as_bytes())], rest].concat())
    };
    let data = |text: &str| chunk(format!("data: {text}\n\n").as_bytes());
    let error = r#"{"error":{"message":"the engine died","code":500}}"#;
    let endless: Vec<Step> =
        std::iter::once(stream_head()).chain((0..6).map(|_| chunk(&vec![b'x'; 1 << 20]))).collect();
    let pings: Vec<Step> =
        (0..30).flat_map(|_| [chunk(b": ping\n\n"), Step::Pause(Duration::from_millis(100))]).collect();
    let tool = r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"1"}]}}]}"#;
    play(vec![
        ("no end at all", began(vec![stream_end()]), Fail("broken off", "the words", 1)),
        ("closed in the middle of a chunk", began(vec![Step::Close]), Fail("broken off", "the words", 1)),
        ("reset in the middle", began(vec![Step::Reset]), Fail("broken off", "the words", 1)),
        (
            "an error after tokens, then [DONE]",
            began(vec![data(error), data("[DONE]"), stream_end()]),
            Fail("broken off", "the engine died", 1),
        ),
        (
            "an event named error",
            began(vec![chunk(format!("event: error\ndata: {error}\n\n").as_bytes())]),
            Fail("broken off", "the engine died", 1),
        ),
        (
            "an error without `data:`",
            began(vec![chunk(format!("{error}\n\n").as_bytes())]),
            Fail("broken off", "the engine died", 1),
        ),
        (
            "an error first, code null",
            always(events(&[r#"{"error":{"message":"m","code":null}}"#])),
            Fail("broken off", "m", 1),
        ),
        (
            "two objects in one event",
            began(vec![data(&format!("{}{error}", said("x")))]),
            Fail("broken off", "the words", 1),
        ),
        (
            "invalid UTF-8",
            began(vec![chunk(b"data: {\"choices\":[{\"text\":\"\xff\"}]}\n\n")]),
            Fail("broken off", "the words", 1),
        ),
        ("an endless line", always(endless), Fail("not an answer", "bytes", 1)),
        ("silence after tokens", began(vec![Step::Hang]), Fail("timeout", "the next token did not come within 1 s", 1)),
        ("comments and no tokens", began(pings.clone()), Fail("timeout", "the next token", 1)),
        (
            "comments and no first token",
            always([vec![stream_head()], pings].concat()),
            Fail("timeout", "the first token", 1),
        ),
        (
            "another index",
            began(vec![data(&said("x").replace("\"index\":0", "\"index\":1"))]),
            Fail("broken off", "second choice", 1),
        ),
        ("a tool call", began(vec![data(tool)]), Fail("broken off", "tool call", 1)),
        ("finish_reason abort", began(vec![data(&finished("abort"))]), Fail("broken off", "abort", 1)),
        ("nothing but [DONE]", always(events(&["[DONE]"])), Fail("not an answer", "no choices", 1)),
        (
            "zeros for usage",
            always(events(&[&said("47"), &finished("stop"), &usage(0, 0), "[DONE]"])),
            Fail("no usage", "", 1),
        ),
    ]);
}

#[test]
fn slow_thin_networks_change_nothing() {
    let whole = then_done(&[format!("data: {}\n\n", said("47")).as_bytes()]);
    let bytes: Vec<u8> = whole
        .iter()
        .flat_map(|step| match step {
            Step::Send(bytes) => bytes.clone(),
            _ => Vec::new(),
        })
        .collect();
    let sliced = |size: usize, pause: u64| {
        let steps =
            bytes.chunks(size).flat_map(|part| [Step::Send(part.to_vec()), Step::Pause(Duration::from_millis(pause))]);
        always(steps.collect())
    };
    play(vec![
        ("slices of 1 byte", sliced(1, 0), OK),
        ("slices of 7 bytes, 2 ms each", sliced(7, 2), OK),
        ("little bandwidth", sliced(100, 50), OK),
        (
            "data ends early",
            always(vec![Step::Send(bytes[..bytes.len() / 3].to_vec()), Step::Close]),
            Fail("broken off", "", 1),
        ),
    ]);
}
