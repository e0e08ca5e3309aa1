//! Start-up logs of every engine against the facts that people read out of them.
//!
//! Each `NAME.log` of the folder has a `NAME.json` beside it: every field of the record, except that `notes` lists what must be in
//! some note.

#![expect(clippy::unwrap_used, reason = "a log that cannot be read has failed the test")]

use std::fs;
use std::path::PathBuf;

use kvgauge::serving::ServerFacts;
use kvgauge::serving::startup_log::{self, DIALECTS, LogError, Reading};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/logs")
}

fn logs() -> Vec<PathBuf> {
    let mut logs: Vec<PathBuf> = fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
        .collect();
    logs.sort();
    logs
}

fn read(log: &[u8]) -> Reading {
    startup_log::read(log).unwrap_or_else(|error| panic!("{error}"))
}

/// What differs, one line a field.
fn differences(expected: &ServerFacts, found: &ServerFacts) -> Vec<String> {
    let fields = |facts: &ServerFacts| match serde_json::to_value(facts).unwrap() {
        serde_json::Value::Object(fields) => fields,
        other => panic!("no record: {other}"),
    };
    let mut lines = Vec::new();
    let mut found_fields = fields(found);
    for (name, value) in fields(expected) {
        let own = found_fields.remove(&name).unwrap();
        let is_equal = match (value.as_f64(), own.as_f64()) {
            (Some(one), Some(other)) => (one - other).abs() < 1e-9,
            _ => value == own,
        };
        if name != "notes" && !is_equal {
            lines.push(format!("  {name}: expected {value}, found {own}"));
        }
    }
    for note in &expected.notes {
        if !found.notes.iter().any(|own| own.contains(note.as_str())) {
            lines.push(format!("  no note has `{note}` in it: {:?}", found.notes));
        }
    }
    lines
}

#[test]
fn every_log_says_what_is_written_beside_it() {
    let mut wrong = Vec::new();
    for path in logs() {
        let expected = fs::read_to_string(path.with_extension("json")).unwrap();
        let expected: ServerFacts = serde_json::from_str(&expected).unwrap();
        let found = read(&fs::read(&path).unwrap());
        let lines = differences(&expected, &found.facts);
        if !lines.is_empty() {
            wrong.push(format!("{}\n{}", path.file_name().unwrap().to_string_lossy(), lines.join("\n")));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn every_engine_and_every_known_fallback_has_a_log() {
    let names: Vec<String> =
        logs().iter().map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect();
    assert!(names.len() >= 60, "{} logs", names.len());
    for number in 1..=19 {
        let prefix = format!("f{number:02}_");
        assert!(names.iter().any(|name| name.starts_with(&prefix)), "no log {prefix}*");
    }
    for dialect in DIALECTS {
        assert!(names.iter().any(|name| name.contains(dialect.engine)), "no log of {}", dialect.engine);
    }
}

#[test]
fn every_fact_has_the_line_that_it_stands_on() {
    for path in logs() {
        let bytes = fs::read(&path).unwrap();
        let found = read(&bytes);
        let facts = serde_json::to_value(&found.facts).unwrap();
        for (name, value) in facts.as_object().unwrap() {
            let is_empty = value.is_null()
                || value.as_array().is_some_and(Vec::is_empty)
                || value.as_object().is_some_and(serde_json::Map::is_empty);
            let has_line = found.lines.contains_key(name.as_str());
            if !["notes", "fallback_reasons"].contains(&name.as_str()) {
                assert_eq!(!is_empty, has_line, "{}: {name}", path.display());
            }
        }
        let lines = bytes.split(|byte| *byte == b'\n').count() as u64;
        assert!(found.lines.values().all(|line| (1..=lines).contains(line)), "{}: {:?}", path.display(), found.lines);
    }
}

#[test]
fn the_source_names_the_line() {
    let log = "x\ny\n(EngineCore pid=1) INFO [kv_cache_utils.py:1] GPU KV cache size: 1,024 tokens\n";
    let found = read(log.as_bytes());
    assert_eq!(found.facts.kv_tokens, Some(1024));
    assert_eq!(found.source("kv_tokens"), "start-up log line 3");
    assert_eq!(found.source("kv_blocks"), "start-up log");
}

/// Cut anywhere, a log gives fewer facts or other notes, never a wrong version, a quantized dtype that is not there or a panic.
#[test]
fn a_log_that_is_cut_anywhere_is_read() {
    for name in ["f10_vllm_0.33.0_debug_reasons", "f12_sglang_fa3_to_triton", "wrapped_docker_json", "tgi_json"] {
        let bytes = fs::read(folder().join(format!("{name}.log"))).unwrap();
        let whole = read(&bytes).facts;
        for end in (0..bytes.len()).step_by(7) {
            let cut = read(&bytes[..end]).facts;
            for (part, all) in [(&cut.engine, &whole.engine), (&cut.kv_cache_dtype, &whole.kv_cache_dtype)] {
                let is_part =
                    part.as_ref().is_none_or(|part| all.as_ref().is_some_and(|all| all.starts_with(part.as_str())));
                assert!(is_part, "{name} cut at {end}: {part:?} is no part of {all:?}");
            }
        }
    }
}

#[test]
fn packed_and_binary_files_are_refused() {
    assert!(matches!(startup_log::read(&b"\x1f\x8b\x08\0\0"[..]), Err(LogError::Compressed { format: "gzip" })));
    assert!(matches!(startup_log::read(&b"\x7fELF\x02\x01\0"[..]), Err(LogError::Binary { offset: 6 })));
}

/// Thousands of lines of serving after a start and between two: they change nothing and take no more than their time.
#[test]
fn a_long_log_takes_time_in_proportion() {
    let first = fs::read_to_string(folder().join("vllm_0.28.0_one_line.log")).unwrap();
    let chatter = "(APIServer pid=300) INFO 10-01 14:50:00 [loggers.py:329] Engine 000: Avg prompt throughput: 9120.4 tokens/s, Running: 4 reqs\n";
    let log = format!("{first}{}{first}", chatter.repeat(40_000));
    let started = std::time::Instant::now();
    let found = read(log.as_bytes());
    let megabytes = log.len() as f64 / 1e6;
    assert!(found.facts.notes.iter().any(|note| note.contains("2 starts")), "{:?}", found.facts.notes);
    let alone = format!("{first}{}", chatter.repeat(40_000));
    assert_eq!(read(alone.as_bytes()), read(first.as_bytes()), "what follows the start has changed what is read of it");
    // An unoptimised build takes about 1 s for this; a reader that is not linear takes minutes.
    assert!(started.elapsed().as_secs_f64() < 5.0 * megabytes, "{megabytes} MB took {:?}", started.elapsed());
}
