//! Server-sent events, byte for byte: what a stream of chunks says, with a limit on everything.
//!
//! Lines end in LF, CR or CRLF wherever the network cuts them; comment lines keep a connection alive and say nothing. Bytes are
//! joined before they are decoded, because a character may be cut too.

/// One event holds one chunk of an answer; whole answers in one event are far below this.
const MAX_EVENT_BYTES: usize = 4 << 20;

/// A stream is an answer at some 300 bytes a token.
pub(super) const MAX_STREAM_BYTES: usize = 32 << 20;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// What the stream says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event<'a> {
    /// Data of one event, lines joined by LF.
    Data(&'a [u8]),
    /// Data of an event named `error`.
    Error(&'a [u8]),
    /// A line of JSON that is no event: some servers write a bare error object into the stream.
    Bare(&'a [u8]),
}

/// Why a stream cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overlong {
    Event,
    Stream,
}

impl Overlong {
    pub(super) fn reason(self) -> String {
        match self {
            Self::Event => format!("an event of more than {MAX_EVENT_BYTES} bytes"),
            Self::Stream => format!("more than {MAX_STREAM_BYTES} bytes"),
        }
    }
}

/// Reads a stream chunk by chunk.
#[derive(Debug, Default)]
pub(super) struct SseParser {
    /// The beginning of a line whose end has not come.
    line: Vec<u8>,
    /// Data lines of the event so far.
    data: Vec<u8>,
    has_data: bool,
    is_error: bool,
    /// The last line ended in CR, and a LF that comes next belongs to it.
    skip_line_feed: bool,
    is_past_first_line: bool,
    received: usize,
}

impl SseParser {
    /// Takes the next bytes and shows `on_event` every event that ends in them; `on_event` may stop with an error.
    pub(super) fn push<E: From<Overlong>>(
        &mut self,
        mut bytes: &[u8],
        on_event: &mut impl FnMut(Event<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.received += bytes.len();
        if self.received > MAX_STREAM_BYTES {
            return Err(Overlong::Stream.into());
        }
        while !bytes.is_empty() {
            if std::mem::take(&mut self.skip_line_feed) && bytes[0] == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let Some(end) = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r')) else {
                self.line.extend_from_slice(bytes);
                return if self.line.len() > MAX_EVENT_BYTES { Err(Overlong::Event.into()) } else { Ok(()) };
            };
            self.skip_line_feed = bytes[end] == b'\r';
            let (head, rest) = (&bytes[..end], &bytes[end + 1..]);
            if self.line.is_empty() {
                self.take_line(head, on_event)?;
            } else {
                let mut line = std::mem::take(&mut self.line);
                line.extend_from_slice(head);
                self.take_line(&line, on_event)?;
                line.clear();
                self.line = line;
            }
            bytes = rest;
        }
        Ok(())
    }

    /// The stream is over: an event whose blank line is missing still counts.
    pub(super) fn finish<E: From<Overlong>>(
        &mut self,
        on_event: &mut impl FnMut(Event<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let line = std::mem::take(&mut self.line);
        self.take_line(&line, on_event)?;
        if line.is_empty() { Ok(()) } else { self.take_line(b"", on_event) }
    }

    fn take_line<E: From<Overlong>>(
        &mut self,
        line: &[u8],
        on_event: &mut impl FnMut(Event<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let is_first = !std::mem::replace(&mut self.is_past_first_line, true);
        let line = if is_first { line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line) } else { line };
        if line.is_empty() {
            let is_error = std::mem::take(&mut self.is_error);
            if std::mem::take(&mut self.has_data) {
                on_event(if is_error { Event::Error(&self.data) } else { Event::Data(&self.data) })?;
                self.data.clear();
            }
        } else if let Some(value) = field(line, b"data") {
            if self.data.len() + value.len() > MAX_EVENT_BYTES {
                return Err(Overlong::Event.into());
            }
            if self.has_data {
                self.data.push(b'\n');
            }
            self.has_data = true;
            self.data.extend_from_slice(value);
        } else if let Some(value) = field(line, b"event") {
            self.is_error = value == b"error";
        } else if line.trim_ascii_start().starts_with(b"{") {
            on_event(Event::Bare(line))?;
        }
        Ok(())
    }
}

/// The value of a line `name: value`; one space behind the colon belongs to the form.
fn field<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let rest = line.strip_prefix(name)?;
    let value = if rest.is_empty() { rest } else { rest.strip_prefix(b":")? };
    Some(value.strip_prefix(b" ").unwrap_or(value))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(chunks: &[&[u8]]) -> Result<Vec<String>, Overlong> {
        let mut parser = SseParser::default();
        let mut events = Vec::new();
        let mut keep = |event: Event<'_>| {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            events.push(match event {
                Event::Data(data) => text(data),
                Event::Error(data) => format!("error {}", text(data)),
                Event::Bare(data) => format!("bare {}", text(data)),
            });
            Ok(())
        };
        for chunk in chunks {
            parser.push(chunk, &mut keep)?;
        }
        parser.finish(&mut keep)?;
        Ok(events)
    }

    const STREAM: &str = "\u{feff}: ping\n\ndata: one\r\n\r\n: keep-alive\r\rdata:two\rdata:  three\r\revent: error\ndata: {}\n\nid: 7\n\
                          retry: 1\ndata\n\n{\"error\":1}\ndata: 值\n\ndata: [DONE]";

    #[test]
    fn every_line_end_and_field_is_read() {
        let expected = ["one", "two\n three", "error {}", "", "bare {\"error\":1}", "值", "[DONE]"];
        assert_eq!(read(&[STREAM.as_bytes()]).unwrap(), expected);
        let single: Vec<&[u8]> = STREAM.as_bytes().chunks(1).collect();
        assert_eq!(read(&single).unwrap(), expected);
    }

    #[test]
    fn an_endless_line_and_an_endless_stream_are_cut() {
        let block = vec![b'x'; 1 << 20];
        assert_eq!(read(&[block.as_slice(); 5]), Err(Overlong::Event));
        let event = [b"data: ".as_slice(), &block, b"\n\n"].concat();
        assert_eq!(read(&[event.as_slice(); 33]), Err(Overlong::Stream));
        let lines = [b"data: ".as_slice(), &block, b"\n"].concat();
        assert_eq!(read(&[lines.as_slice(); 5]), Err(Overlong::Event));
    }

    #[test]
    fn a_million_chunks_of_one_byte_are_read_in_linear_time() {
        let text = format!("data: {}\n\n", "y".repeat(1_000_000));
        let chunks: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
        let started = std::time::Instant::now();
        assert_eq!(read(&chunks).unwrap()[0].len(), 1_000_000);
        assert!(started.elapsed().as_secs() < 10, "{:?}", started.elapsed());
    }

    proptest! {
        #[test]
        fn where_the_network_cuts_does_not_matter(cuts in proptest::collection::vec(0..STREAM.len(), 0..12)) {
            let mut cuts = cuts;
            cuts.sort_unstable();
            let mut chunks = Vec::new();
            let mut start = 0;
            for cut in cuts.into_iter().chain([STREAM.len()]) {
                chunks.push(&STREAM.as_bytes()[start..cut]);
                start = cut;
            }
            prop_assert_eq!(read(&chunks).unwrap(), read(&[STREAM.as_bytes()]).unwrap());
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = read(&[&bytes]);
        }
    }
}
