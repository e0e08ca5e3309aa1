//! A server in this process that has a fixed answer per path, to play engines that need a GPU.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// Status, content type and body.
pub(crate) type Answer = (u16, &'static str, String);

pub(crate) struct Played {
    pub(crate) url: String,
    /// `GET /path` of every request, with its `authorization` header behind it where there was one.
    pub(crate) asked: Arc<Mutex<Vec<String>>>,
}

/// Answers by path without query; everything else is 404 with `missing` as its body.
pub(crate) fn play(answers: &[(&str, Answer)], missing: Answer) -> Played {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answers: BTreeMap<String, Answer> =
        answers.iter().map(|(path, answer)| ((*path).to_owned(), answer.clone())).collect();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&asked);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (answers, missing, log) = (answers.clone(), missing.clone(), Arc::clone(&log));
            thread::spawn(move || serve(stream, &answers, &missing, &log));
        }
    });
    Played { url, asked }
}

/// As [`play`], with the short JSON 404 that engines have.
pub(crate) fn play_engine(answers: &[(&str, Answer)]) -> Played {
    play(answers, (404, "application/json", "{\"detail\":\"Not Found\"}".into()))
}

pub(crate) fn json(text: &str) -> Answer {
    (200, "application/json", text.to_owned())
}

pub(crate) fn plain(text: &str) -> Answer {
    (200, "text/plain; version=0.0.4; charset=utf-8", text.to_owned())
}

fn serve(stream: TcpStream, answers: &BTreeMap<String, Answer>, missing: &Answer, log: &Mutex<Vec<String>>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut head = Vec::new();
    let mut line = String::new();
    while reader.read_line(&mut line).is_ok_and(|count| count > 2) {
        head.push(std::mem::take(&mut line));
    }
    let Some(first) = head.first() else { return };
    let header = |name: &str| {
        head.iter().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
        })
    };
    let length: usize = header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    drop(reader.by_ref().take(length as u64).read_to_end(&mut Vec::new()));
    let mut words = first.split_whitespace();
    let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or("/"));
    let key = header("authorization").map(|key| format!(" {key}")).unwrap_or_default();
    log.lock().unwrap().push(format!("{method} {target}{key}"));
    let path = target.split('?').next().unwrap();
    let (status, content_type, body) = answers.get(path).unwrap_or(missing);
    let mut stream = stream;
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    drop(stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())));
}
