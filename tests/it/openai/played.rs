//! A server that says exactly the bytes a test wants, when it wants them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// One step of a reply.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// These bytes.
    Send(Vec<u8>),
    /// Nothing for a while.
    Pause(Duration),
    /// The end of the connection.
    Close,
    /// The end of the connection, by a reset.
    Reset,
    /// Nothing, for ever.
    Hang,
}

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// `POST /v1/chat/completions`.
    pub(crate) line: String,
    /// All header lines.
    pub(crate) head: String,
    /// The body; null where there is none.
    pub(crate) body: Value,
    /// Counts the requests of the same line, from 0.
    pub(crate) place: usize,
}

/// A server on the loopback; its thread ends with the test's process.
pub(crate) struct Played {
    pub(crate) url: String,
    pub(crate) asked: Arc<Mutex<Vec<Asked>>>,
}

impl Played {
    /// Answers as `script` says.
    pub(crate) fn new(script: impl Fn(&Asked) -> Vec<Step> + Send + Sync + 'static) -> Self {
        let (tell, told) = std::sync::mpsc::channel();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (log, script) = (Arc::clone(&asked), Arc::new(script));
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                tell.send(listener.local_addr().unwrap().port()).unwrap();
                while let Ok((stream, _)) = listener.accept().await {
                    let (log, script) = (Arc::clone(&log), Arc::clone(&script));
                    tokio::spawn(async move { talk(stream, &log, script.as_ref()).await });
                }
            });
        });
        Self { url: format!("http://127.0.0.1:{}", told.recv().unwrap()), asked }
    }

    /// A vLLM server that serves `m` with 4,096 tokens and answers completions as `script` says.
    pub(crate) fn vllm(script: impl Fn(&Asked) -> Vec<Step> + Send + Sync + 'static) -> Self {
        Self::new(move |asked| match asked.line.as_str() {
            "GET /v1/models" => json_reply(200, &models("vllm", 4096)),
            "GET /version" => json_reply(200, &json!({"version": "0.33.0"})),
            "GET /metrics" => json_reply(404, &json!({})),
            _ => script(asked),
        })
    }

    /// Bodies of all completions asked for.
    pub(crate) fn bodies(&self) -> Vec<Value> {
        let asked = self.asked.lock().unwrap();
        asked.iter().filter(|asked| asked.line.ends_with("completions")).map(|asked| asked.body.clone()).collect()
    }
}

async fn talk(mut stream: TcpStream, log: &Mutex<Vec<Asked>>, script: &(dyn Fn(&Asked) -> Vec<Step> + Send + Sync)) {
    stream.set_nodelay(true).unwrap();
    let mut received = Vec::new();
    while let Some(mut asked) = read_request(&mut stream, &mut received).await {
        {
            let mut log = log.lock().unwrap();
            asked.place = log.iter().filter(|earlier| earlier.line == asked.line).count();
            log.push(asked.clone());
        }
        for step in script(&asked) {
            match step {
                Step::Send(bytes) => {
                    if stream.write_all(&bytes).await.is_err() {
                        return;
                    }
                }
                Step::Pause(time) => tokio::time::sleep(time).await,
                Step::Close => return,
                Step::Reset => return stream.set_zero_linger().unwrap(),
                Step::Hang => std::future::pending().await,
            }
        }
    }
}

async fn read_request(stream: &mut TcpStream, received: &mut Vec<u8>) -> Option<Asked> {
    let end = loop {
        match received.windows(4).position(|window| window == b"\r\n\r\n") {
            Some(end) => break end + 4,
            None if stream.read_buf(received).await.ok()? == 0 => return None,
            None => {}
        }
    };
    let head = String::from_utf8(received[..end].to_vec()).unwrap();
    let length = head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let length: usize = length.unwrap_or(0);
    while received.len() < end + length {
        if stream.read_buf(received).await.ok()? == 0 {
            return None;
        }
    }
    let body = serde_json::from_slice(&received[end..end + length]).unwrap_or_default();
    received.drain(..end + length);
    let line = head.lines().next()?.trim_end_matches(" HTTP/1.1").to_owned();
    Some(Asked { line, head, body, place: 0 })
}

/// The model list of `owner`.
pub(crate) fn models(owner: &str, max_model_len: u32) -> Value {
    json!({"object": "list", "data": [{"id": "m", "object": "model", "owned_by": owner, "max_model_len": max_model_len}]})
}

/// A whole reply.
pub(crate) fn reply(status: u16, headers: &str, body: &[u8]) -> Vec<Step> {
    let head = format!("HTTP/1.1 {status} Said\r\n{headers}content-length: {}\r\n\r\n", body.len());
    vec![Step::Send([head.as_bytes(), body].concat())]
}

pub(crate) fn json_reply(status: u16, body: &Value) -> Vec<Step> {
    reply(status, "content-type: application/json\r\n", body.to_string().as_bytes())
}

/// The beginning of a stream in chunks.
pub(crate) fn stream_head() -> Step {
    Step::Send(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
            .to_vec(),
    )
}

/// Bytes as one chunk.
pub(crate) fn chunk(bytes: &[u8]) -> Step {
    Step::Send([format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat())
}

/// The end of a stream in chunks.
pub(crate) fn stream_end() -> Step {
    Step::Send(b"0\r\n\r\n".to_vec())
}

/// A whole stream of these events, each a chunk of its own.
pub(crate) fn events(data: &[&str]) -> Vec<Step> {
    let mut steps = vec![stream_head()];
    steps.extend(data.iter().map(|data| chunk(format!("data: {data}\n\n").as_bytes())));
    steps.push(stream_end());
    steps
}

/// A chunk of an answer.
pub(crate) fn said(text: &str) -> String {
    json!({"model": "m", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": null}]}).to_string()
}

/// The end of an answer.
pub(crate) fn finished(reason: &str) -> String {
    json!({"model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}).to_string()
}

/// The count at the end of a stream.
pub(crate) fn usage(prompt_tokens: u32, completion_tokens: u32) -> String {
    json!({"model": "m", "choices": [], "usage":
        {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens,
         "prompt_tokens_details": {"cached_tokens": 3}}})
    .to_string()
}

/// A good answer in two chunks to a prompt of 20 tokens.
pub(crate) fn good(text: &str) -> Vec<Step> {
    let (head, tail) = text.split_at(text.len() / 2);
    let first = json!({"model": "m", "system_fingerprint": "fp-1", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]});
    events(&[&first.to_string(), &said(head), &said(tail), &finished("stop"), &usage(20, 3), "[DONE]"])
}
