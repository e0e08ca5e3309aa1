//! Lines of `samples.jsonl`: JSON object, TAB, CRC32C of the JSON in eight lower-case hex digits, LF.
//!
//! JSON escapes TAB and LF inside strings, so neither can occur in the first part.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use serde::de::DeserializeOwned;

use crate::record::RecordError;
use crate::record::manifest::FormatVersion;
use crate::record::samples::{self, SampleRecord};

/// Longest line with its checksum and LF. A record is about 4 KiB; 1 MiB holds every text at its own limit.
pub(crate) const MAX_LINE_BYTES: usize = 1024 * 1024;

/// TAB, eight digits, LF.
const TRAILER_BYTES: usize = 10;

/// Most lines read from one journal: a hundred times the largest suite, and a bound on memory for a hostile file.
const MAX_LINES: u64 = 1_000_000;

/// Largest journal read: at the usual 4 KiB a million lines; a bound on memory and time for a hostile file.
const MAX_JOURNAL_BYTES: u64 = 4 << 30;

/// A line ready to be appended.
///
/// # Errors
/// The size of the line when it is over [`MAX_LINE_BYTES`].
pub(crate) fn encode(json: &[u8]) -> Result<Vec<u8>, usize> {
    let bytes = json.len() + TRAILER_BYTES;
    if bytes > MAX_LINE_BYTES {
        return Err(bytes);
    }
    let mut line = Vec::with_capacity(bytes);
    line.extend_from_slice(json);
    line.extend_from_slice(format!("\t{:08x}\n", crc32c::crc32c(json)).as_bytes());
    Ok(line)
}

/// The JSON of a line (without its LF) whose checksum is right.
fn checked(line: &[u8]) -> Result<&[u8], &'static str> {
    let Some(cut) = line.len().checked_sub(TRAILER_BYTES - 1) else { return Err("too short for a checksum") };
    let (json, trailer) = line.split_at(cut);
    if trailer == format!("\t{:08x}", crc32c::crc32c(json)).as_bytes() { Ok(json) } else { Err("wrong checksum") }
}

/// Where a journal stops being readable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It ends with a whole line, or is empty.
    Clean,
    /// The last line has no LF: a write was interrupted.
    Torn,
    /// Line `line` is damaged.
    Damaged { line: u64, reason: String },
}

/// What a scan found besides the records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scan {
    /// Bytes of whole, good lines from the start.
    pub(crate) good_bytes: u64,
    /// How it ends.
    pub(crate) end: End,
}

/// Reads the journal at `path` line by line; a file that is not there is an empty journal.
///
/// # Errors
/// [`RecordError::Storage`] when it cannot be read, [`RecordError::Malformed`] when it is no ordinary file or too large.
pub(crate) fn scan(
    path: &Path,
    format: FormatVersion,
    mut on_record: impl FnMut(SampleRecord),
) -> Result<Scan, RecordError> {
    scan_lines(path, |json| {
        on_record(parse_record(json, format)?);
        Ok(())
    })
}

/// [`scan`] without a look at what the lines say: `on_json` takes the JSON of each, as far as checksums are right.
pub(crate) fn scan_lines(
    path: &Path,
    mut on_json: impl FnMut(&[u8]) -> Result<(), String>,
) -> Result<Scan, RecordError> {
    let Some(file) = open_regular(path)? else { return Ok(Scan { good_bytes: 0, end: End::Clean }) };
    let mut reader = BufReader::with_capacity(256 * 1024, file);
    let mut line = Vec::new();
    let mut good_bytes = 0;
    let mut number = 0;
    loop {
        line.clear();
        number += 1;
        let read = reader
            .by_ref()
            .take(MAX_LINE_BYTES as u64)
            .read_until(b'\n', &mut line)
            .map_err(RecordError::storage(path))?;
        if read == 0 {
            return Ok(Scan { good_bytes, end: End::Clean });
        }
        if line.pop_if(|byte| *byte == b'\n').is_none() {
            let end = if read < MAX_LINE_BYTES {
                End::Torn
            } else {
                End::Damaged { line: number, reason: format!("longer than {MAX_LINE_BYTES} bytes") }
            };
            return Ok(Scan { good_bytes, end });
        }
        if number > MAX_LINES {
            return Err(RecordError::malformed(path, format!("more than {MAX_LINES} lines")));
        }
        if let Err(reason) = checked(&line).map_err(str::to_owned).and_then(&mut on_json) {
            return Ok(Scan { good_bytes, end: End::Damaged { line: number, reason } });
        }
        good_bytes += read as u64;
    }
}

fn parse_record(json: &[u8], format: FormatVersion) -> Result<SampleRecord, String> {
    let record: SampleRecord = parse_known(json, format, samples::FIELDS).map_err(|error| error.to_string())?;
    samples::check(&record)?;
    Ok(record)
}

/// Parses strictly; a newer minor format may have added fields, which are left out.
pub(crate) fn parse_known<T: DeserializeOwned>(
    json: &[u8],
    format: FormatVersion,
    known: &[&str],
) -> Result<T, serde_json::Error> {
    if !format.is_newer_minor() {
        return serde_json::from_slice(json);
    }
    let mut fields: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(json)?;
    fields.retain(|name, _| known.contains(&name.as_str()));
    serde_json::from_value(serde_json::Value::Object(fields))
}

/// Opens an ordinary file for reading; `None` when there is nothing. Devices and pipes are refused: they may never end.
pub(crate) fn open_regular(path: &Path) -> Result<Option<File>, RecordError> {
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(RecordError::storage(path)(error)),
    };
    if !metadata.is_file() {
        return Err(RecordError::malformed(path, "not an ordinary file"));
    }
    if metadata.len() > MAX_JOURNAL_BYTES {
        return Err(RecordError::malformed(path, format!("larger than {MAX_JOURNAL_BYTES} bytes")));
    }
    File::open(path).map(Some).map_err(RecordError::storage(path))
}

/// Reads a small file whole; `None` when there is nothing.
pub(crate) fn read_small(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, RecordError> {
    let Some(file) = open_regular(path)? else { return Ok(None) };
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes).map_err(RecordError::storage(path))?;
    if bytes.len() as u64 > limit {
        return Err(RecordError::malformed(path, format!("larger than {limit} bytes")));
    }
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::manifest::FORMAT;
    use crate::record::samples::tests::sample;

    proptest! {
        #[test]
        fn any_sample_comes_back_as_it_was_written(
            text in ".{0,200}",
            error in prop::option::of("\\PC{0,40}"),
            value in 0.0..1.0_f64,
            latency in any::<f64>().prop_filter("a number", |value| value.is_finite()),
            attempt in 1..9_u32,
        ) {
            let mut written = sample(attempt, &text);
            written.outcome = crate::sample::Outcome::ValidWrong;
            written.score.as_mut().unwrap().value = value;
            written.completion.as_mut().unwrap().timing.latency_ms = latency;
            written.error = error;
            written.attempt = attempt;
            let line = encode(&serde_json::to_vec(&written).unwrap()).unwrap();
            let (end, body) = line.split_last().unwrap();
            prop_assert_eq!(*end, b'\n');
            prop_assert!(!body.contains(&b'\n'));
            prop_assert_eq!(parse_record(checked(body).unwrap(), FORMAT), Ok(written));
        }
    }

    #[test]
    fn a_line_carries_the_checksum_of_its_json() {
        // CRC32C of "123456789" is the published check value e3069283.
        assert_eq!(encode(b"123456789"), Ok(b"123456789\te3069283\n".to_vec()));
        assert_eq!(checked(b"123456789\te3069283"), Ok(&b"123456789"[..]));
        assert!(checked(b"123456789\tE3069283").is_err(), "one spelling only");
        assert!(checked(b"123456788\te3069283").is_err());
        assert!(checked(b"").is_err());
    }

    #[test]
    fn a_line_over_the_limit_is_refused_with_its_size() {
        assert!(encode(&vec![b'x'; MAX_LINE_BYTES - TRAILER_BYTES]).is_ok());
        assert_eq!(encode(&vec![b'x'; MAX_LINE_BYTES]), Err(MAX_LINE_BYTES + TRAILER_BYTES));
    }
}
