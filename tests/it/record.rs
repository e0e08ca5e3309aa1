//! The run record against interruption, damage, a second writer and hostile paths.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use kvgauge::hint::Hint;
use kvgauge::record::manifest::{FORMAT, Manifest, RunStatus, plan_hash};
use kvgauge::record::samples::{MAX_TEXT_BYTES, SampleRecord, text_hash};
use kvgauge::record::{
    LOCK_FILE, MANIFEST_FILE, PLAN_FILE, RUN_FILE, Record, RecordError, RecordWriter, RunFile, SAMPLES_FILE, read_plan,
    write_plan,
};
use kvgauge::sample::{Bin, Completion, FinishReason, Language, LikelyTokens, Outcome, Score, Timing};
use kvgauge::setup::{Arm, ArmRole, CheckStatus, Evidence, ModelIdentity, Resolved};
use kvgauge::suite::Tier;

fn manifest(planned_items: u64) -> Manifest {
    let plan = BTreeMap::from([("seed".to_string(), "7".to_string())]);
    let arm = Arm::candidate("fp8_e5m2");
    let text = |value: &str| Evidence::known(value.to_string(), "embedded engine");
    Manifest {
        format: FORMAT,
        tool_version: "0.1.0".into(),
        suite: "quick".into(),
        plan_hash: plan_hash(&plan, &arm),
        plan,
        arm,
        model: ModelIdentity {
            name: "tiny".into(),
            weights: "w".into(),
            tokenizer: "t".into(),
            chat_template: "c".into(),
            rope: "default".into(),
            trained_context: 8192,
        },
        resolved: Resolved {
            engine: text("kvgauge embedded 0.1.0"),
            kv_cache_dtype: text("fp8_e5m2"),
            attention_backend: text("EMBEDDED"),
            kernel: text("portable"),
            kv_bytes_per_token: Evidence::known(960.0, "embedded engine"),
            kv_cache_tokens: Evidence::unknown("not said"),
            kv_scales: text("none (1.0)"),
            max_model_len: Evidence::known(8192, "model file"),
            ..Resolved::unknown("not said")
        },
        checks: Vec::new(),
        environment: BTreeMap::new(),
        planned_items,
        status: RunStatus::Started,
        accepted: None,
    }
}

fn sample(index: u32, text: &str) -> SampleRecord {
    SampleRecord {
        item_id: format!("item-{index:04}"),
        task: "needle".into(),
        language: Language::Zh,
        bin: Bin(2048),
        slot_percent: 25,
        index,
        haystack_id: "h1".into(),
        depth_percent: None,
        prompt_tokens: 2000,
        prompt_hash: "p".into(),
        expected_answer: "4829173".into(),
        excerpt: String::new(),
        outcome: Outcome::ValidWrong,
        score: Some(Score { value: 0.1 + 0.2, extracted: "\t\u{1}".into(), faults: vec![], turn_scores: vec![] }),
        findings: vec![],
        completion: Some(Completion {
            text: text.into(),
            prompt_tokens: 2000,
            output_tokens: 9,
            finish_reason: FinishReason::Length,
            timing: Timing { ttft_ms: 1.5, latency_ms: 2.5 },
            answer_nll: None,
            reasoning: None,
            later_answers: Vec::new(),
            answer_tokens: Vec::new(),
        }),
        text_hash: text_hash(text),
        truncated: false,
        error: None,
        attempt: 1,
        variant_of: None,
    }
}

/// Writes five samples and returns the journal's bytes.
fn five(dir: &Path, status: RunStatus) -> Vec<u8> {
    let mut writer = RecordWriter::open(dir, &manifest(5)).expect("an empty folder opens").writer;
    for index in 0..5 {
        writer.append(&sample(index, &format!("{index}\t答案\n"))).expect("a good sample is written");
    }
    writer.finish(status).expect("a whole record is finished");
    fs::read(dir.join(SAMPLES_FILE)).expect("the journal was just written")
}

fn whole_lines(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| **byte == b'\n').count()
}

fn open_error(dir: &Path, manifest: &Manifest) -> RecordError {
    match RecordWriter::open(dir, manifest) {
        Ok(_) => panic!("the record must not open"),
        Err(error) => error,
    }
}

#[test]
fn what_is_written_is_read_back_in_canonical_order() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = RecordWriter::open(dir.path(), &manifest(3)).unwrap().writer;
    let mut short = sample(9, "short bin");
    short.bin = Bin(512);
    for sample in [sample(2, "b"), sample(1, "a"), short.clone()] {
        writer.append(&sample).unwrap();
    }
    writer.event("note", "a line\nin two");
    writer.finish(RunStatus::Complete).unwrap();
    let record = Record::read(dir.path()).unwrap();
    assert_eq!(record.samples, [short, sample(1, "a"), sample(2, "b")]);
    assert_eq!(record.manifest.status, RunStatus::Complete);
    let events = fs::read_to_string(dir.path().join("events.jsonl")).unwrap();
    assert_eq!(events.lines().count(), 1);
}

#[test]
fn a_journal_cut_at_any_byte_resumes_with_exactly_its_whole_lines() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = five(dir.path(), RunStatus::Interrupted);
    for cut in 0..=bytes.len() {
        fs::write(dir.path().join(SAMPLES_FILE), &bytes[..cut]).unwrap();
        let whole = whole_lines(&bytes[..cut]);
        let torn = cut > 0 && bytes[cut - 1] != b'\n';
        let (record, notes) = Record::read_noting(dir.path()).unwrap();
        assert_eq!((record.samples.len(), notes.len()), (whole, usize::from(torn)), "cut at {cut}");
        // Opening waits for the disk several times: every place around a line's end and checksum, every seventh elsewhere.
        let near_end = bytes[cut.saturating_sub(12)..bytes.len().min(cut + 12)].contains(&b'\n');
        if !near_end && !cut.is_multiple_of(7) {
            continue;
        }

        let opened = RecordWriter::open(dir.path(), &manifest(5)).unwrap();
        assert_eq!(opened.done.len(), whole, "cut at {cut}");
        assert_eq!(opened.warnings.len(), usize::from(torn), "cut at {cut}");
        let mut writer = opened.writer;
        for index in whole as u32..5 {
            writer.append(&sample(index, &format!("{index}\t答案\n"))).unwrap();
        }
        writer.sync().unwrap();
        assert_eq!(fs::read(dir.path().join(SAMPLES_FILE)).unwrap(), bytes, "cut at {cut}");
    }
}

#[test]
fn a_complete_run_with_a_shortened_journal_is_no_record() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = five(dir.path(), RunStatus::Complete);
    for cut in 0..bytes.len() {
        fs::write(dir.path().join(SAMPLES_FILE), &bytes[..cut]).unwrap();
        let error = Record::read(dir.path()).unwrap_err();
        assert!(matches!(error, RecordError::Incomplete { .. } | RecordError::Damaged { .. }), "cut at {cut}: {error}");
    }
    let opened = RecordWriter::open(dir.path(), &manifest(5)).unwrap();
    assert_eq!(opened.writer.manifest().status, RunStatus::Started);
    drop(opened);
    assert_eq!(Record::read(dir.path()).unwrap().manifest.status, RunStatus::Started);
}

#[test]
fn a_flipped_byte_anywhere_is_noticed_and_set_aside() {
    let source = tempfile::tempdir().unwrap();
    let bytes = five(source.path(), RunStatus::Interrupted);
    for position in 0..bytes.len() {
        let dir = tempfile::tempdir().unwrap();
        fs::copy(source.path().join(MANIFEST_FILE), dir.path().join(MANIFEST_FILE)).unwrap();
        let mut damaged = bytes.clone();
        damaged[position] ^= 1 << (position % 8);
        fs::write(dir.path().join(SAMPLES_FILE), &damaged).unwrap();
        let before = whole_lines(&bytes[..position]);
        let last_end = position + 1 == bytes.len();
        match Record::read(dir.path()) {
            Err(RecordError::Damaged { line, .. }) => assert_eq!(line, before as u64 + 1),
            Ok(record) => assert!(last_end && record.samples.len() == before, "byte {position} went unnoticed"),
            Err(error) => panic!("byte {position}: {error}"),
        }
        // Opening waits for the disk several times, so every eleventh place has to do.
        if !position.is_multiple_of(11) && !last_end {
            continue;
        }
        let opened = RecordWriter::open(dir.path(), &manifest(5)).unwrap();
        assert_eq!(opened.done.len(), before, "byte {position}");
        assert_eq!(opened.warnings.len(), 1, "byte {position}");
        if !last_end {
            let line_start = bytes[..position].iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            let aside = fs::read(dir.path().join("samples.jsonl.corrupt-1")).unwrap();
            assert_eq!(aside, damaged[line_start..], "byte {position}");
        }
    }
}

#[test]
fn each_damage_gets_its_own_file() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = five(dir.path(), RunStatus::Interrupted);
    for number in 1..=3 {
        let mut damaged = bytes.clone();
        damaged[bytes.len() / 2] ^= 4;
        fs::write(dir.path().join(SAMPLES_FILE), &damaged).unwrap();
        let opened = RecordWriter::open(dir.path(), &manifest(5)).unwrap();
        assert!(opened.warnings[0].contains(&format!("samples.jsonl.corrupt-{number}")), "{:?}", opened.warnings);
    }
}

#[test]
fn a_second_writer_is_refused_until_the_first_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let first = RecordWriter::open(dir.path(), &manifest(5)).unwrap();
    let error = open_error(dir.path(), &manifest(5));
    assert!(matches!(error, RecordError::Locked { .. }));
    assert!(error.hints()[0].contains("--run-dir"));
    drop(first);
    assert!(dir.path().join(LOCK_FILE).exists(), "a left-over file is no lock");
    RecordWriter::open(dir.path(), &manifest(5)).unwrap();
}

#[test]
fn another_plan_is_refused_field_by_field() {
    let dir = tempfile::tempdir().unwrap();
    five(dir.path(), RunStatus::Complete);
    let mut asked = manifest(5);
    asked.plan.insert("seed".into(), "8".into());
    asked.plan_hash = plan_hash(&asked.plan, &asked.arm);
    asked.resolved.kernel.value = Some("reference".into());
    let RecordError::PlanDiffers { differences, .. } = open_error(dir.path(), &asked) else { panic!("wrong error") };
    let fields: Vec<&str> = differences.iter().map(|difference| difference.field.as_str()).collect();
    assert_eq!(fields, ["plan.seed", "resolved.kernel"]);
    assert_eq!(Record::read(dir.path()).unwrap().samples.len(), 5, "nothing was touched");
}

#[test]
fn the_latest_attempt_counts_and_of_equal_attempts_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = RecordWriter::open(dir.path(), &manifest(2)).unwrap().writer;
    let mut failed = sample(0, "");
    failed.outcome = Outcome::Error;
    failed.score = None;
    failed.completion = None;
    failed.error = Some("engine: out of blocks".into());
    let retried = SampleRecord { attempt: 2, ..sample(0, "second try") };
    for sample in [&failed, &retried, &failed, &sample(1, "first"), &sample(1, "again")] {
        writer.append(sample).unwrap();
    }
    drop(writer);
    let (record, notes) = Record::read_noting(dir.path()).unwrap();
    assert_eq!(record.samples, [retried, sample(1, "first")]);
    assert_eq!(notes.len(), 1, "{notes:?}");
    let done = RecordWriter::open(dir.path(), &manifest(2)).unwrap().done;
    assert_eq!((done["item-0000"].attempt, done["item-0000"].outcome), (2, Outcome::ValidWrong));
}

#[test]
fn runaway_texts_are_clipped_and_marked() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = RecordWriter::open(dir.path(), &manifest(2)).unwrap().writer;
    // Control characters take six bytes each in JSON: 256 KiB of them do not fit a line of 1 MiB.
    writer.append(&sample(0, &"\u{1}".repeat(3 * MAX_TEXT_BYTES))).unwrap();
    writer.append(&sample(1, &"好".repeat(MAX_TEXT_BYTES))).unwrap();
    writer.finish(RunStatus::Complete).unwrap();
    for sample in Record::read(dir.path()).unwrap().samples {
        assert!(sample.truncated);
        let text = sample.completion.unwrap().text;
        assert!(text.len() <= MAX_TEXT_BYTES && text.len() > MAX_TEXT_BYTES / 4);
    }
    let mut endless = sample(2, "x");
    endless.expected_answer = "x".repeat(2 << 20);
    assert!(matches!(writer.append(&endless), Err(RecordError::LineTooLong { .. })));
}

#[test]
fn a_sample_that_contradicts_itself_is_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = RecordWriter::open(dir.path(), &manifest(1)).unwrap().writer;
    let mut broken = sample(0, "x");
    broken.score.as_mut().unwrap().value = f64::NAN;
    assert!(matches!(writer.append(&broken), Err(RecordError::Inconsistent { .. })));
    assert!(matches!(writer.finish(RunStatus::Complete), Err(RecordError::Incomplete { planned: 1, found: 0, .. })));
    writer.append(&sample(0, "x")).unwrap();
    writer.finish(RunStatus::Complete).unwrap();
}

#[test]
fn formats_of_other_versions_follow_the_rules() {
    let dir = tempfile::tempdir().unwrap();
    five(dir.path(), RunStatus::Complete);
    let path = dir.path().join(MANIFEST_FILE);
    let original = fs::read_to_string(&path).unwrap();
    let with = |from: &str, to: &str| fs::write(&path, original.replacen(from, to, 1)).unwrap();

    with("\"major\": 1", "\"major\": 2");
    assert!(matches!(Record::read(dir.path()), Err(RecordError::Format { appending: false, .. })));

    let minor = format!("\"minor\": {}\n  }},", FORMAT.minor);
    with(&minor, "\"minor\": 9\n  },\n  \"later_field\": [1],");
    assert_eq!(Record::read(dir.path()).unwrap().samples.len(), 5, "a newer minor is read");
    assert!(matches!(open_error(dir.path(), &manifest(5)), RecordError::Format { appending: true, .. }));

    with(&minor, &format!("{minor}\n  \"later_field\": [1],"));
    assert!(matches!(Record::read(dir.path()), Err(RecordError::Malformed { .. })), "own version: strict");

    with("\"seed\": \"7\"", "\"seed\": \"8\"");
    assert!(matches!(Record::read(dir.path()), Err(RecordError::Malformed { .. })), "the hash notices");
}

#[test]
fn folders_that_are_none_are_refused_with_a_hint() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(Record::read(dir.path()), Err(RecordError::NotFound { .. })));
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    let error = open_error(&file.join("run"), &manifest(1));
    assert!(matches!(error, RecordError::Storage { .. }), "{error}");
    assert!(error.hints()[0].contains("--run-dir"));

    let orphan = dir.path().join("orphan");
    fs::create_dir(&orphan).unwrap();
    fs::write(orphan.join(SAMPLES_FILE), "x").unwrap();
    assert!(matches!(open_error(&orphan, &manifest(1)), RecordError::Malformed { .. }));
    assert_eq!(fs::read(orphan.join(SAMPLES_FILE)).unwrap(), b"x", "a stranger's file stays");
}

#[cfg(unix)]
#[test]
fn a_read_only_folder_is_refused_with_a_hint() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o555)).unwrap();
    if fs::write(dir.path().join("probe"), "").is_ok() {
        return; // The superuser may write everywhere; the fault injection of the library covers this case.
    }
    let error = open_error(&dir.path().join("run"), &manifest(1));
    assert!(error.hints()[0].contains("writable"), "{error}");
}

#[test]
fn a_path_with_spaces_and_unicode_works() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("läufe 2026/上下文 🧪/fp8 e5m2");
    five(&run, RunStatus::Complete);
    assert_eq!(Record::read(&run).unwrap().samples.len(), 5);
}

#[test]
fn a_thousand_resumes_change_nothing_but_add_their_sample() {
    let dir = tempfile::tempdir().unwrap();
    for index in 0..1000 {
        let opened = RecordWriter::open(dir.path(), &manifest(1000)).unwrap();
        assert_eq!(opened.done.len(), index as usize);
        assert!(opened.warnings.is_empty());
        let mut writer = opened.writer;
        writer.append(&sample(index, "x")).unwrap();
        if index == 999 {
            writer.finish(RunStatus::Complete).unwrap();
        }
    }
    let files: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(files.len(), 4, "manifest, samples, events, lock");
    let before = fs::read(dir.path().join(MANIFEST_FILE)).unwrap();
    assert_eq!(Record::read(dir.path()).unwrap().samples.len(), 1000);
    let opened = RecordWriter::open(dir.path(), &manifest(1000)).unwrap();
    assert_eq!(opened.done.len(), 1000);
    assert_eq!(fs::read(dir.path().join(MANIFEST_FILE)).unwrap(), before);
}

#[test]
fn a_plan_of_format_1_0_reads_and_writes_as_it_was_written() {
    let text = include_str!("../fixtures/records/run-1.0.json");
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(RUN_FILE), text).unwrap();
    let run = RunFile::read(dir.path()).unwrap().unwrap();
    let arms: Vec<(&str, ArmRole)> = run.arms.iter().map(|arm| (arm.name.as_str(), arm.role)).collect();
    let expected =
        [("bfloat16", ArmRole::Baseline), ("bfloat16.aa", ArmRole::Control), ("fp8_e4m3", ArmRole::Candidate)];
    assert_eq!(arms, expected);
    assert_eq!(run.arms[2].attention_backend.as_deref(), Some("FLASHINFER"));
    assert_eq!((run.suite.as_str(), run.gate.margin), ("nightly", 0.01));
    assert_eq!(run.gate.cells["retrieval/32K"].max_drop, Some(0.1));
    // A field more or less on disk is another version: a changelog line and another fixture.
    assert_eq!(serde_json::to_string_pretty(&run).unwrap() + "\n", text);
}

#[test]
fn a_plan_of_format_1_1_holds_what_was_asked_of_an_arm() {
    let text = include_str!("../fixtures/records/run-1.1.json");
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(RUN_FILE), text).unwrap();
    let run = RunFile::read(dir.path()).unwrap().unwrap();
    assert_eq!(run.arms[2].settings["kv_scales"], "random");
    assert!(run.arms[0].settings.is_empty());
    let written = serde_json::to_value(&run).unwrap();
    assert_eq!(written, serde_json::from_str::<serde_json::Value>(text).unwrap());
}

#[test]
fn a_plan_of_format_1_2_holds_tiers_and_single_thresholds_and_an_older_one_the_usual() {
    let read = |text: &str| {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(RUN_FILE), text).unwrap();
        RunFile::read(dir.path()).unwrap().unwrap()
    };
    let older = read(include_str!("../fixtures/records/run-1.1.json")).gate;
    assert_eq!((older.confirm, older.max_relative_drop, older.relative_guard_below), (false, None, 0.2));
    assert_eq!((older.cells["retrieval/32K"].required, older.cells["retrieval/32K"].tier), (Some(false), None));
    let text = include_str!("../fixtures/records/run-1.2.json");
    let run = read(text);
    assert_eq!(run.gate.cells["retrieval/32K"].tier, Some(Tier::Supporting));
    // A field more or less on disk is another version: a changelog line and another fixture.
    assert_eq!(serde_json::to_string_pretty(&run).unwrap() + "\n", text);
}

#[test]
fn a_plan_of_format_1_3_names_its_shard_and_an_older_one_is_of_a_whole_run() {
    let read = |text: &str| {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(RUN_FILE), text).unwrap();
        RunFile::read(dir.path()).unwrap().unwrap()
    };
    assert_eq!(read(include_str!("../fixtures/records/run-1.2.json")).shard, None);
    let text = include_str!("../fixtures/records/run-1.3.json");
    let run = read(text);
    assert_eq!(run.shard.map(|shard| (shard.number(), shard.of())), Some((2, 4)));
    // A field more or less on disk is another version: a changelog line and another fixture.
    assert_eq!(serde_json::to_string_pretty(&run).unwrap() + "\n", text);
}

#[test]
fn the_items_of_a_shard_s_whole_run_read_and_write_as_they_were_written() {
    let text = include_str!("../fixtures/records/plan-1.0.json");
    let [from, to] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    fs::write(from.path().join(PLAN_FILE), text).unwrap();
    let plan = read_plan(from.path()).unwrap();
    assert_eq!((plan.item_count(), plan.groups[0].bin), (2, Bin(512)));
    write_plan(to.path(), &plan).unwrap();
    assert_eq!(fs::read_to_string(to.path().join(PLAN_FILE)).unwrap(), text);
}

#[test]
fn a_manifest_of_format_1_3_holds_what_each_source_says_and_an_older_one_nothing() {
    let read = |text: &str| {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(MANIFEST_FILE), text).unwrap();
        Manifest::read(dir.path()).unwrap()
    };
    assert!(read(include_str!("../fixtures/records/manifest-1.2.json")).checks.is_empty());
    let text = include_str!("../fixtures/records/manifest-1.3.json");
    let manifest = read(text);
    assert_eq!(manifest.checks[0].observed[1].source, "/metrics, configured");
    assert_eq!(manifest.checks[2].status, CheckStatus::Unknown);
    // A field more or less on disk is another version: a changelog line and another fixture.
    assert_eq!(serde_json::to_string_pretty(&manifest).unwrap() + "\n", text);
}

#[test]
fn a_sample_of_format_1_4_holds_likely_tokens_and_an_older_one_none() {
    let text = include_str!("../fixtures/records/sample-1.4.json");
    let sample: SampleRecord = serde_json::from_str(text).unwrap();
    let lists = &sample.completion.as_ref().unwrap().answer_tokens;
    assert_eq!(lists.iter().map(LikelyTokens::likeliest).collect::<Vec<_>>(), [Some(52), Some(56)]);
    let second = lists[0].shares().nth(1).unwrap();
    assert!(second.0 == 51 && (second.1 - (-6.9_f64).exp()).abs() < 1e-12, "{second:?}");
    // A field more or less on disk is another version: a changelog line and another fixture.
    assert_eq!(serde_json::to_string_pretty(&sample).unwrap() + "\n", text);
    let mut older: serde_json::Value = serde_json::from_str(text).unwrap();
    older["completion"].as_object_mut().unwrap().remove("answer_tokens").unwrap();
    let older: SampleRecord = serde_json::from_value(older).unwrap();
    assert!(older.completion.unwrap().answer_tokens.is_empty());
}

#[test]
fn a_journal_written_twice_over_is_told_in_a_few_lines() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = RecordWriter::open(dir.path(), &manifest(40)).unwrap().writer;
    for index in 0..40 {
        writer.append(&sample(index, "x")).unwrap();
    }
    writer.finish(RunStatus::Interrupted).unwrap();
    drop(writer);
    let journal = dir.path().join(SAMPLES_FILE);
    let once = fs::read(&journal).unwrap();
    fs::write(&journal, [once.clone(), once].concat()).unwrap();
    let (record, notes) = Record::read_noting(dir.path()).unwrap();
    assert_eq!((record.samples.len(), notes.len()), (40, 6), "{notes:?}");
    assert_eq!(notes[5], "and 35 more items were recorded twice");
    assert_eq!(RecordWriter::open(dir.path(), &manifest(40)).unwrap().warnings.len(), 6);
}

#[test]
fn a_manifest_of_format_1_5_says_which_baseline_was_accepted_and_an_older_one_that_it_was_measured() {
    let dir = tempfile::tempdir().unwrap();
    let read = |text: &str| {
        fs::write(dir.path().join(MANIFEST_FILE), text).unwrap();
        Manifest::read(dir.path()).unwrap()
    };
    assert_eq!(read(include_str!("../fixtures/records/manifest-1.3.json")).accepted, None);
    let text = include_str!("../fixtures/records/manifest-1.5.json");
    let manifest = read(text);
    let accepted = "baseline accepted on 2026-11-30 (nightly, abababababababab), not measured in this run";
    assert_eq!(manifest.accepted.as_ref().unwrap().to_string(), accepted);
    // A field more or less on disk is another version: a changelog line and another fixture.
    assert_eq!(serde_json::to_string_pretty(&manifest).unwrap() + "\n", text);
}
