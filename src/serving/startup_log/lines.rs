//! From bytes to the few lines that a dialect can read something from.
//!
//! Logs come as files, from containers (JSON lines, CRI lines cut into parts) and from terminals (colours). All of it is taken off
//! here, so that dialects see the message as the server wrote it, with whatever prefix stands before it.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::io::{self, BufRead, Read as _};

use regex::bytes::Regex;

use crate::hint::Hint;

/// A log of a week of serving is smaller; more is not a start-up log.
pub const MAX_LOG_BYTES: u64 = 256 << 20;
/// The longest lines are dumps of configurations, some tens of KiB.
const MAX_LINE_BYTES: usize = 256 << 10;
/// Oldest and newest lines kept for one phrase, each: the first start is at the beginning and the last start counts, and a server
/// that restarts in a loop prints each phrase a few times per start.
const MAX_LINES_PER_PHRASE: usize = 1024;
/// Lines kept only because they tell whose log it is.
const MAX_MARKED_LINES: usize = 256;
/// All kept lines together.
const MAX_KEPT_BYTES: usize = 64 << 20;
/// Parts of one message that a container runtime cut up.
const MAX_PARTS: usize = 64;
/// JSON inside JSON inside JSON is nobody's log.
const MAX_JSON_DEPTH: usize = 4;
/// Enough to see that a file is no text.
const SNIFFED_BYTES: usize = 4096;

/// Why a log was not read.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The file or stream failed.
    #[error("the log cannot be read: {0}")]
    Io(#[from] io::Error),
    /// The first bytes are those of a compressed file.
    #[error("the log is compressed ({format})")]
    Compressed {
        /// Name of the format.
        format: &'static str,
    },
    /// Zero bytes: not a text of any encoding that servers write.
    #[error("the log is no text: byte {offset} is zero")]
    Binary {
        /// Where the first one is.
        offset: usize,
    },
    /// Longer than [`MAX_LOG_BYTES`].
    #[error("the log is longer than {} MiB", MAX_LOG_BYTES >> 20)]
    TooLong,
}

impl Hint for LogError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::Io(_) => Vec::new(),
            Self::Compressed { format } => vec![format!("unpack it first; it is {format}")],
            Self::Binary { .. } => vec!["give the text that the server prints when it starts".into()],
            Self::TooLong => vec!["the lines of the start are enough: cut the log after the first requests".into()],
        }
    }
}

/// A line of the log that holds a phrase of some dialect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// Counted from 1, in the file as it is.
    pub number: u64,
    /// Without colours and without the wrapping of containers.
    pub text: String,
}

/// Finds any of many phrases in linear time.
pub(super) struct Phrases {
    any: Regex,
    marks: Regex,
    index: HashMap<&'static str, usize>,
}

impl Phrases {
    /// `read` are phrases of lines that say something, `marks` those of lines that only tell whose they are.
    pub(super) fn new(
        read: impl IntoIterator<Item = &'static str>,
        marks: impl IntoIterator<Item = &'static str>,
    ) -> Self {
        let mut all: Vec<&'static str> = read.into_iter().collect();
        all.sort_unstable();
        all.dedup();
        let any = any_of(&all);
        let marks = any_of(&marks.into_iter().collect::<Vec<_>>());
        Self { any, marks, index: all.into_iter().enumerate().map(|(index, phrase)| (phrase, index)).collect() }
    }

    /// Number of the first phrase in `bytes`.
    fn find(&self, bytes: &[u8]) -> Option<usize> {
        let found = self.any.find(bytes)?;
        std::str::from_utf8(found.as_bytes()).ok().and_then(|phrase| self.index.get(phrase)).copied()
    }
}

fn any_of(phrases: &[&str]) -> Regex {
    let pattern: Vec<String> = phrases.iter().map(|phrase| regex::escape(phrase)).collect();
    Regex::new(&pattern.join("|")).expect("escaped phrases are a valid pattern")
}

/// The lines with a phrase, in order, and whether some had to be dropped.
pub(super) fn with_phrases(mut input: impl BufRead, phrases: &Phrases) -> Result<(Vec<LogLine>, bool), LogError> {
    let text_of_utf16 = {
        let head = input.fill_buf()?;
        refuse_packed(head)?;
        match head {
            [0xff, 0xfe, ..] => Some(u16::from_le_bytes as fn([u8; 2]) -> u16),
            [0xfe, 0xff, ..] => Some(u16::from_be_bytes as fn([u8; 2]) -> u16),
            _ => {
                let head = &head[..head.len().min(SNIFFED_BYTES)];
                match head.iter().position(|byte| *byte == 0) {
                    Some(offset) => return Err(LogError::Binary { offset }),
                    None => None,
                }
            }
        }
    };
    let Some(unit) = text_of_utf16 else { return Kept::new(phrases).read(input) };
    // PowerShell writes redirected output as UTF-16.
    let mut bytes = Vec::new();
    input.take(MAX_LOG_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_LOG_BYTES {
        return Err(LogError::TooLong);
    }
    let units = bytes.chunks_exact(2).skip(1).map(|pair| unit([pair[0], pair[1]]));
    let text: String = char::decode_utf16(units).map(|it| it.unwrap_or(char::REPLACEMENT_CHARACTER)).collect();
    Kept::new(phrases).read(text.as_bytes())
}

fn refuse_packed(head: &[u8]) -> Result<(), LogError> {
    const PACKED: [(&[u8], &str); 5] = [
        (b"\x1f\x8b", "gzip"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"\xfd7zXZ\0", "xz"),
        (b"BZh", "bzip2"),
        (b"PK\x03\x04", "zip"),
    ];
    match PACKED.iter().find(|(magic, _)| head.starts_with(magic)) {
        Some((_, format)) => Err(LogError::Compressed { format }),
        None => Ok(()),
    }
}

/// The oldest and the newest lines with one phrase.
#[derive(Clone, Default)]
struct Bucket {
    oldest: Vec<LogLine>,
    newest: VecDeque<LogLine>,
}

/// Lines kept so far.
struct Kept<'a> {
    phrases: &'a Phrases,
    by_phrase: Vec<Bucket>,
    marked: Vec<LogLine>,
    bytes: usize,
    dropped: bool,
    /// Parts of a message that are still to be continued.
    parts: Option<Parts>,
}

struct Parts {
    number: u64,
    text: String,
    count: usize,
}

impl<'a> Kept<'a> {
    fn new(phrases: &'a Phrases) -> Self {
        let by_phrase = vec![Bucket::default(); phrases.index.len()];
        Self { phrases, by_phrase, marked: Vec::new(), bytes: 0, dropped: false, parts: None }
    }

    fn read(mut self, mut input: impl BufRead) -> Result<(Vec<LogLine>, bool), LogError> {
        let mut line = Vec::new();
        let (mut number, mut total) = (0_u64, 0_u64);
        loop {
            line.clear();
            let length = input.by_ref().take(MAX_LINE_BYTES as u64).read_until(b'\n', &mut line)?;
            if length == 0 {
                break;
            }
            number += 1;
            total += length as u64;
            if !line.ends_with(b"\n") && length == MAX_LINE_BYTES {
                // The rest of an endless line: nothing a server says at its start is that long.
                total += skip_line(&mut input)?;
            }
            if total > MAX_LOG_BYTES {
                return Err(LogError::TooLong);
            }
            let end = line.iter().rposition(|byte| !matches!(byte, b'\r' | b'\n')).map_or(0, |last| last + 1);
            self.take(number, &line[..end]);
        }
        if let Some(parts) = self.parts.take() {
            self.offer(parts.number, &parts.text);
        }
        let kept = self.by_phrase.into_iter().flat_map(|bucket| bucket.oldest.into_iter().chain(bucket.newest));
        let mut lines: Vec<LogLine> = kept.chain(self.marked).collect();
        lines.sort_by_key(|line| line.number);
        Ok((lines, self.dropped))
    }

    fn take(&mut self, number: u64, line: &[u8]) {
        if let Some((rest, is_last)) = cri_part(line)
            && (self.parts.is_some() || !is_last)
        {
            self.add_part(number, &String::from_utf8_lossy(rest), is_last);
        } else if line.first() == Some(&b'{') {
            self.take_json(number, line);
        } else if self.has_any(line) || line.contains(&0x1b) {
            self.offer(number, &String::from_utf8_lossy(line));
        }
    }

    fn has_any(&self, line: &[u8]) -> bool {
        self.phrases.find(line).is_some() || (self.marked.len() < MAX_MARKED_LINES && self.phrases.marks.is_match(line))
    }

    /// A line of JSON: the message may be anywhere in it.
    fn take_json(&mut self, number: u64, line: &[u8]) {
        let Ok(value) = serde_json::from_slice::<serde_json::Value>(line) else {
            return self.offer(number, &String::from_utf8_lossy(line));
        };
        // Docker cuts messages at 16 KiB; only the last part ends with a line feed.
        if let (Some(log), Some(_)) = (value.get("log").and_then(|it| it.as_str()), value.get("stream")) {
            let is_last = log.ends_with('\n');
            if self.parts.is_some() || !is_last {
                return self.add_part(number, log.trim_end_matches(['\r', '\n']), is_last);
            }
        }
        self.offer_json(number, &value, 0);
    }

    fn offer_json(&mut self, number: u64, value: &serde_json::Value, depth: usize) {
        match value {
            serde_json::Value::String(text) => self.offer(number, text.trim_end()),
            serde_json::Value::Array(values) if depth < MAX_JSON_DEPTH => {
                values.iter().for_each(|value| self.offer_json(number, value, depth + 1));
            }
            serde_json::Value::Object(fields) if depth < MAX_JSON_DEPTH => {
                fields.values().for_each(|value| self.offer_json(number, value, depth + 1));
            }
            _ => {}
        }
    }

    fn add_part(&mut self, number: u64, text: &str, is_last: bool) {
        let parts = self.parts.get_or_insert_with(|| Parts { number, text: String::new(), count: 0 });
        parts.count += 1;
        if parts.text.len() + text.len() <= MAX_LINE_BYTES {
            parts.text.push_str(text);
        }
        if is_last || parts.count == MAX_PARTS {
            let whole = self.parts.take().expect("it was put there above");
            self.offer(whole.number, &whole.text);
        }
    }

    /// Keeps the lines of `text` that hold a phrase.
    fn offer(&mut self, number: u64, text: &str) {
        let text = without_colours(text);
        for line in text.split('\n') {
            let kept = LogLine { number, text: line.trim_end().to_string() };
            match self.phrases.find(line.as_bytes()) {
                Some(phrase) => self.keep(phrase, kept),
                None if self.has_any(line.as_bytes()) => self.marked.push(kept),
                None => {}
            }
        }
    }

    fn keep(&mut self, phrase: usize, line: LogLine) {
        let bucket = &mut self.by_phrase[phrase];
        self.bytes += line.text.len();
        if bucket.oldest.len() < MAX_LINES_PER_PHRASE && self.bytes <= MAX_KEPT_BYTES {
            return bucket.oldest.push(line);
        }
        bucket.newest.push_back(line);
        while bucket.newest.len() > MAX_LINES_PER_PHRASE || (bucket.newest.len() > 1 && self.bytes > MAX_KEPT_BYTES) {
            self.dropped = true;
            self.bytes -= bucket.newest.pop_front().map_or(0, |line| line.text.len());
        }
    }
}

fn skip_line(input: &mut impl BufRead) -> io::Result<u64> {
    let mut skipped = 0;
    loop {
        let buffer = input.fill_buf()?;
        let (used, ended) = match buffer.iter().position(|byte| *byte == b'\n') {
            Some(end) => (end + 1, true),
            None => (buffer.len(), buffer.is_empty()),
        };
        input.consume(used);
        skipped += used as u64;
        if ended || skipped > MAX_LOG_BYTES {
            return Ok(skipped);
        }
    }
}

/// Message and whether it ends here, of `2026-11-29T14:42:07.1Z stdout P message` (`F`: the last part).
fn cri_part(line: &[u8]) -> Option<(&[u8], bool)> {
    let mut words = line.splitn(4, |byte| *byte == b' ');
    let time = words.next()?;
    if !time.first().is_some_and(u8::is_ascii_digit) || !matches!(words.next()?, b"stdout" | b"stderr") {
        return None;
    }
    let is_last = match words.next()? {
        b"F" => true,
        b"P" => false,
        _ => return None,
    };
    Some((words.next().unwrap_or_default(), is_last))
}

/// Without terminal control sequences: `ESC [ parameters letter`, and without the escape character of any other.
fn without_colours(text: &str) -> Cow<'_, str> {
    if !text.contains('\u{1b}') {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\u{1b}') {
        plain.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(sequence) = rest.strip_prefix('[') {
            let end = sequence.find(|it: char| !matches!(it, '0'..='9' | ';' | ':' | '?' | ' '));
            rest = end.map_or("", |end| {
                let end = end + sequence[end..].chars().next().map_or(0, char::len_utf8);
                &sequence[end..]
            });
        }
    }
    plain.push_str(rest);
    Cow::Owned(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(log: &[u8]) -> Vec<(u64, String)> {
        let phrases = Phrases::new(["KV cache size", "quoted \"word\""], ["mark"]);
        let (lines, _) = with_phrases(log, &phrases).unwrap();
        lines.into_iter().map(|line| (line.number, line.text)).collect()
    }

    #[test]
    fn wrappings_come_off_and_numbers_stay() {
        let log = b"nothing\r\n\x1b[32mINFO\x1b[0m KV \x1b[1mcache size: 1\r\n\xff\xfe KV cache size: 2\n";
        let found = texts(log);
        assert_eq!(found[0], (2, "INFO KV cache size: 1".into()));
        assert_eq!(found[1].0, 3);
        let json = b"{\"log\":\"a KV cache \",\"stream\":\"stdout\"}\n{\"log\":\"size: 3\\n\",\"stream\":\"stdout\"}\n{\"fields\":{\"message\":\"a quoted \\\"word\\\"\"}}\n";
        assert_eq!(texts(json), [(1, "a KV cache size: 3".into()), (3, "a quoted \"word\"".into())].map(|it| it));
        let cri = b"2026-11-29T14:42:07.1Z stdout P my KV ca\n2026-11-29T14:42:07.2Z stdout F che size: 4\n";
        assert_eq!(texts(cri), [(1, "my KV cache size: 4".into())]);
    }

    #[test]
    fn a_file_that_is_no_text_is_refused_and_utf16_is_read() {
        let phrases = Phrases::new(["size"], ["mark"]);
        let refused = |bytes: &[u8]| with_phrases(bytes, &phrases).unwrap_err().to_string();
        assert!(refused(b"\x1f\x8b\x08\0").contains("gzip"));
        assert!(refused(b"abc\0def").contains("byte 3"));
        let utf16: Vec<u8> = "\u{feff}x\r\nsize 1".encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert_eq!(with_phrases(&utf16[..], &phrases).unwrap().0, [LogLine { number: 2, text: "size 1".into() }]);
    }

    #[test]
    fn the_last_lines_are_kept_and_endless_ones_are_cut() {
        let phrases = Phrases::new(["size"], ["mark"]);
        let count = 2 * MAX_LINES_PER_PHRASE;
        let many = "mark size\n".repeat(count + 3);
        let (lines, dropped) = with_phrases(many.as_bytes(), &phrases).unwrap();
        let last = lines.last().unwrap().number;
        assert_eq!((lines.len(), lines[0].number, last, dropped), (count, 1, count as u64 + 3, true));
        let (lines, dropped) = with_phrases("mark\n".repeat(5 * count).as_bytes(), &phrases).unwrap();
        assert_eq!((lines.len(), dropped), (MAX_MARKED_LINES, false));
        let endless = format!("size {}\nsize", "x".repeat(2 * MAX_LINE_BYTES));
        let (lines, _) = with_phrases(endless.as_bytes(), &phrases).unwrap();
        assert_eq!((lines[0].text.len(), lines[1].number), (MAX_LINE_BYTES, 2));
    }
}
