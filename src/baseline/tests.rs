//! Accepting, finding, and that no byte can change unseen.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::*;
use crate::hint::Hint as _;
use crate::record::manifest::tests::manifest;
use crate::record::manifest::{Manifest, RunStatus, plan_hash};
use crate::record::samples::tests::sample;
use crate::record::{MANIFEST_FILE, Record, RecordWriter, SAMPLES_FILE};
use crate::sample::Outcome;
use crate::setup::{Arm, Check, CheckStatus, Evidence, KV_CACHE_DTYPE};
use crate::units::format_utc;

const THEN: &str = "2026-11-30T20:01:22Z";

fn baseline_manifest(items: u32) -> Manifest {
    let mut manifest = manifest(u64::from(items));
    manifest.arm = Arm::baseline("bfloat16");
    manifest.resolved.kv_cache_dtype = Evidence::known("bfloat16".into(), "embedded engine");
    manifest.plan.insert("scorer.exact_value".into(), "2".into());
    manifest.plan_hash = plan_hash(&manifest.plan, &manifest.arm);
    manifest
}

/// The record of one arm, as a run leaves it.
fn measured(dir: &Path, manifest: &Manifest, answers: &[&str]) {
    let mut writer = RecordWriter::open(dir, manifest).unwrap().writer;
    for (index, answer) in (0..).zip(answers) {
        writer.append(&sample(index, answer)).unwrap();
    }
    writer.finish(RunStatus::Complete).unwrap();
}

struct Desk {
    folder: tempfile::TempDir,
}

impl Desk {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn store(&self) -> Store {
        Store::new(&self.folder.path().join("baselines"))
    }

    fn run(&self, name: &str, answers: &[&str]) -> PathBuf {
        let run = self.folder.path().join(name);
        measured(&run, &baseline_manifest(answers.len() as u32), answers);
        run
    }

    fn accept(&self, run: &Path, name: &str) -> Result<(Pointer, Change), BaselineError> {
        let (run, accepted_at) = (run.to_path_buf(), THEN.to_owned());
        self.store().accept(&Acceptance { run, name: Some(name), accepted_at, ..Acceptance::default() })
    }
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

#[test]
fn the_same_answers_are_the_same_content_whatever_they_took() {
    let desk = Desk::new();
    let (pointer, change) = desk.accept(&desk.run("one", &["a", "b"]), "nightly").unwrap();
    assert_eq!((change, pointer.items.as_slice()), (Change::New, &[BinItems { bin: 512, items: 2 }][..]));
    assert_eq!(pointer.scorers, BTreeMap::from([("exact_value".to_owned(), "2".to_owned())]));
    let before: Vec<_> = files(desk.store().dir()).into_iter().map(|path| (fs::read(&path).unwrap(), path)).collect();
    // Another machine, other times, an item that was asked twice.
    let again = desk.folder.path().join("two");
    let mut manifest = baseline_manifest(2);
    manifest.environment.insert("cpu".into(), "another".into());
    let mut writer = RecordWriter::open(&again, &manifest).unwrap().writer;
    for (index, answer) in [(1, "b"), (0, "a")] {
        let mut slower = sample(index, answer);
        slower.completion.as_mut().unwrap().timing.latency_ms = 9e9;
        slower.attempt = 2;
        writer.append(&slower).unwrap();
    }
    writer.finish(RunStatus::Complete).unwrap();
    drop(writer);
    let (same, change) = desk.accept(&again, "nightly").unwrap();
    assert_eq!((same, change), (pointer.clone(), Change::Same));
    let after: Vec<_> = files(desk.store().dir()).into_iter().map(|path| (fs::read(&path).unwrap(), path)).collect();
    assert_eq!(after, before, "accepting the same again changed a file");
    let renew =
        Acceptance { run: again, name: Some("nightly"), note: Some("again"), renew: true, ..Acceptance::default() };
    let (renewed, change) = desk.store().accept(&Acceptance { accepted_at: format_utc(1), ..renew }).unwrap();
    assert_eq!((change, renewed.hash, renewed.history.len()), (Change::Renewed, pointer.hash, 0));
    assert_eq!((renewed.accepted_at, renewed.note.as_deref()), (format_utc(1), Some("again")));
}

#[test]
fn other_content_moves_the_name_and_the_former_is_kept() {
    let desk = Desk::new();
    let (first, _) = desk.accept(&desk.run("one", &["a"]), "nightly").unwrap();
    let (second, change) = desk.accept(&desk.run("two", &["b"]), "nightly").unwrap();
    assert_eq!(change, Change::Moved { from: first.hash.clone() });
    let (third, _) = desk.accept(&desk.run("three", &["c"]), "nightly").unwrap();
    let before: Vec<&str> = third.history.iter().map(|past| past.hash.as_str()).collect();
    assert_eq!(before, [second.hash.as_str(), first.hash.as_str()]);
    assert_eq!(desk.accept(&desk.run("other", &["a"]), "other").unwrap().1, Change::New);
    assert_eq!(desk.store().names().unwrap(), ["nightly", "other"]);
    assert_eq!(desk.store().load("other").unwrap().pointer.hash, first.hash, "two names may share one content");
    let found = desk.store().verify(&[]).unwrap();
    let seen: Vec<_> = found.iter().map(|it| (it.name.as_deref(), it.damages.len())).collect();
    assert_eq!(
        seen,
        [(Some("nightly"), 0), (Some("other"), 0), (None, 0)],
        "the content that no name stands for is checked"
    );
    // A folder of another store, by its path.
    let path = desk.store().dir().join("nightly");
    assert_eq!(Store::new(Path::new("absent")).load(path.to_str().unwrap()).unwrap().pointer, third);
}

#[test]
fn every_changed_byte_and_every_cut_is_found() {
    let desk = Desk::new();
    let run = desk.folder.path().join("run");
    measured(&run, &baseline_manifest(1), &["a"]);
    let (pointer, _) = desk.accept(&run, "n").unwrap();
    let store = desk.store();
    let is_whole = || store.verify(&[]).unwrap().iter().all(|it| it.damages.is_empty());
    let may_be_used = || store.load("n").is_ok();
    assert!(is_whole() && may_be_used());
    let all = files(store.dir());
    assert_eq!(all.len(), 4, "{all:?}");
    for path in all {
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[at] ^= 1 << (at % 8);
            fs::write(&path, &flipped).unwrap();
            assert!(!may_be_used(), "{}: byte {at} was changed unseen", path.display());
            // All lengths of a small file, some of a large one.
            if at % 7 == 0 {
                assert!(!is_whole(), "{}: byte {at} was changed unseen", path.display());
                fs::write(&path, &whole[..at]).unwrap();
                assert!(!may_be_used(), "{}: cut at {at} unseen", path.display());
            }
        }
        fs::write(&path, [whole.as_slice(), b"\n"].concat()).unwrap();
        assert!(!is_whole(), "{}: a byte more", path.display());
        fs::remove_file(&path).unwrap();
        assert!(!may_be_used(), "{} was removed", path.display());
        fs::write(&path, &whole).unwrap();
    }
    assert!(is_whole());
    let content = store.dir().join(pointer.short_hash());
    fs::rename(&content, store.dir().join("0123456789abcdef")).unwrap();
    assert!(!is_whole() && matches!(store.load("n"), Err(BaselineError::Damaged { .. })));
}

#[test]
fn the_control_is_kept_and_checked_too() {
    let desk = Desk::new();
    let run = desk.folder.path().join("run");
    let mut control = baseline_manifest(2);
    control.arm = Arm::control("bfloat16");
    control.plan_hash = plan_hash(&control.plan, &control.arm);
    measured(&run.join("bfloat16"), &baseline_manifest(2), &["a", "b"]);
    measured(&run.join("bfloat16.aa"), &control, &["a", "c"]);
    let suite = crate::suite::Suite::builtin("smoke").unwrap();
    let mut plan = crate::record::RunFile::new(&suite, &[Arm::baseline("bfloat16"), Arm::control("bfloat16")]);
    plan.suite_fingerprint = "f".into();
    crate::record::RunFile::plan(&run, &plan, crate::record::run::GateChoice::Asked).unwrap();
    let error = desk.accept(&run, "n").unwrap_err();
    assert!(matches!(&error, BaselineError::NotOfPlan { arm, .. } if arm == "bfloat16.aa"), "{error}");
    for arm in ["bfloat16", "bfloat16.aa"] {
        let mut manifest = Manifest::read(&run.join(arm)).unwrap();
        manifest.plan.insert("suite".into(), "f".into());
        manifest.plan_hash = plan_hash(&manifest.plan, &manifest.arm);
        fs::write(run.join(arm).join(MANIFEST_FILE), manifest.to_json()).unwrap();
    }
    let (pointer, _) = desk.accept(&run, "n").unwrap();
    assert!(pointer.has_control);
    let loaded = desk.store().load("n").unwrap();
    assert_eq!(loaded.control.unwrap().samples[1].completion.as_ref().unwrap().text, "c");
    let journal = desk.store().dir().join(pointer.short_hash()).join("control").join(SAMPLES_FILE);
    let text = fs::read_to_string(&journal).unwrap().replacen("4829173", "4829174", 1);
    fs::write(&journal, text).unwrap();
    let found = desk.store().verify(&["n".into()]).unwrap();
    let what: Vec<String> = found[0].damages.iter().map(ToString::to_string).collect();
    assert!(what.len() == 2 && what[1].ends_with("line 1: wrong checksum"), "{what:?}");
    let arm = Acceptance { run: run.clone(), arm: Some("fp8"), ..Acceptance::default() };
    assert!(matches!(desk.store().accept(&arm), Err(BaselineError::NoArm { known, .. }) if known.len() == 2));
}

#[test]
fn what_is_no_baseline_is_refused() {
    let desk = Desk::new();
    type Change = fn(&mut Manifest);
    let cases: [(&str, Change); 5] = [
        ("is not known", |it| it.resolved.kv_cache_dtype = Evidence::unknown("nowhere")),
        ("its cache is fp8_e4m3", |it| it.resolved.kv_cache_dtype = Evidence::known("fp8_e4m3".into(), "log")),
        ("nothing confirms it", |it| {
            let (fact, status) = (KV_CACHE_DTYPE.into(), CheckStatus::Unknown);
            it.checks = vec![Check { fact, asked: None, observed: vec![], status }];
        }),
        ("seen was", |it| {
            let (fact, status) = (KV_CACHE_DTYPE.into(), CheckStatus::Contradicted);
            it.checks = vec![Check { fact, asked: None, observed: vec![], status }];
        }),
        ("not measured in this run", |it| {
            let text = String::from;
            it.accepted = Some(crate::record::manifest::AcceptedFrom {
                name: text("n"),
                hash: text("h"),
                accepted_at: text(THEN),
            });
        }),
    ];
    for (number, (message, change)) in cases.into_iter().enumerate() {
        let run = desk.folder.path().join(number.to_string());
        let mut manifest = baseline_manifest(1);
        change(&mut manifest);
        measured(&run, &manifest, &["a"]);
        let error = desk.accept(&run, "n").unwrap_err();
        assert!(error.to_string().contains(message) && !error.hints().is_empty(), "{error}");
    }
    let run = desk.folder.path().join("unfinished");
    let mut writer = RecordWriter::open(&run, &baseline_manifest(2)).unwrap().writer;
    writer.append(&sample(0, "a")).unwrap();
    writer.finish(RunStatus::Interrupted).unwrap();
    assert!(desk.accept(&run, "n").unwrap_err().to_string().contains("1 of 2 items"));
    let mut failed = sample(1, "b");
    (failed.outcome, failed.score, failed.completion) = (Outcome::Error, None, None);
    writer.append(&failed).unwrap();
    writer.finish(RunStatus::Complete).unwrap();
    drop(writer);
    assert!(desk.accept(&run, "n").unwrap_err().to_string().contains("1 items ended in an error"));
    let good = desk.run("good", &["a"]);
    for name in ["", ".", "..", ".hidden", "a/b", "a\\b", "a b", "0123456789abcdef", &"x".repeat(97)] {
        assert!(matches!(desk.accept(&good, name), Err(BaselineError::Name { .. })), "{name}");
    }
    assert!(!desk.store().dir().exists(), "something refused left a file");
    assert!(matches!(desk.store().load("nigthly"), Err(BaselineError::Unknown { .. })));
    desk.accept(&good, "nightly").unwrap();
    let error = desk.store().load("nigthly").unwrap_err();
    assert_eq!(error.hints(), ["did you mean `nightly`?"]);
}

#[test]
fn every_field_that_decides_numbers_is_told_with_what_to_do() {
    let accepted = baseline_manifest(1);
    assert!(differences(&accepted, &accepted).is_empty());
    type Change = fn(&mut Manifest);
    let cases: [(&str, Change); 13] = [
        ("suite name", |it| it.suite = "other".into()),
        ("seed", |it| drop(it.plan.insert("seed".into(), "8".into()))),
        ("scorer.exact_value", |it| drop(it.plan.insert("scorer.exact_value".into(), "3".into()))),
        ("scorer.exact_value", |it| drop(it.plan.remove("scorer.exact_value"))),
        ("generator.needle", |it| drop(it.plan.insert("generator.needle".into(), "3".into()))),
        ("temperature", |it| drop(it.plan.insert("temperature".into(), "0.7".into()))),
        ("model.trained_context", |it| it.model.trained_context += 1),
        ("arm.kv_cache_dtype", |it| it.arm.kv_cache_dtype = "float16".into()),
        ("arm.attention_backend", |it| it.arm.attention_backend = Some("X".into())),
        ("arm.emulate", |it| drop(it.arm.settings.insert("emulate".into(), "sm90".into()))),
        ("resolved.engine", |it| it.resolved.engine = Evidence::known("kvgauge embedded 0.2.0".into(), "x")),
        ("resolved.kernel", |it| it.resolved.kernel = Evidence::known("x86_64-avx512".into(), "x")),
        ("resolved.kv_scales", |it| it.resolved.kv_scales = Evidence::known("static".into(), "x")),
    ];
    for (field, change) in cases {
        let mut asked = accepted.clone();
        change(&mut asked);
        let found = differences(&accepted, &asked);
        assert_eq!(found.iter().map(|it| it.field.as_str()).collect::<Vec<_>>(), [field]);
        assert!(!found[0].remedy.is_empty() && found[0].baseline != found[0].run, "{}", found[0]);
    }
    // Fewer tasks, another selection, faults for candidates and facts that are not known yet are no differences.
    let mut wider = accepted.clone();
    for (field, value) in
        [("generator.needle", "3"), ("lexicon.zh", "1"), ("suite", "f"), ("items", "i"), ("damage", "x")]
    {
        wider.plan.insert(field.into(), value.into());
    }
    let mut asked = accepted.clone();
    asked.resolved.kernel = Evidence::unknown("not started");
    assert_eq!(differences(&wider, &asked), []);
    assert!(
        differences(&accepted, &{
            wider.plan.insert("generator.needle".into(), "4".into());
            wider
        })
        .len()
            >= 2
    );
}

#[test]
fn a_copy_goes_on_where_it_stopped_and_is_never_mixed_with_other_answers() {
    let desk = Desk::new();
    let (pointer, _) = desk.accept(&desk.run("run", &["a", "b", "c"]), "n").unwrap();
    let loaded = desk.store().load("n").unwrap();
    let asked = Manifest { planned_items: 2, ..baseline_manifest(2) };
    let options = ("options", "--suite quick".to_owned());
    let manifest = adopted_manifest(&loaded.baseline.manifest, &asked, pointer.accepted_from(), options);
    let ids: Vec<String> = (0..2).map(|index| sample(index, "").item_id).collect();
    let items = ids.iter().map(String::as_str).collect();
    let dir = desk.folder.path().join("copy");
    assert_eq!(adopt(&loaded.baseline, &manifest, &items, &dir).unwrap(), 2);
    let journal = fs::read(dir.join(SAMPLES_FILE)).unwrap();
    let first_line = journal.iter().position(|byte| *byte == b'\n').unwrap();
    fs::write(dir.join(SAMPLES_FILE), &journal[..first_line + 20]).unwrap();
    assert_eq!(adopt(&loaded.baseline, &manifest, &items, &dir).unwrap(), 2);
    assert_eq!(fs::read(dir.join(SAMPLES_FILE)).unwrap(), journal);
    let copy = Record::read(&dir).unwrap();
    assert_eq!(copy.manifest.accepted.as_ref(), Some(&pointer.accepted_from()));
    assert_eq!(copy.manifest.environment["options"], "--suite quick");
    let error = RecordWriter::check_resumable(&dir, &asked).unwrap_err();
    assert!(error.to_string().contains("accepted baseline is"), "{error}");
    let measured_here = desk.run("measured", &["a", "b"]);
    assert!(adopt(&loaded.baseline, &manifest, &items, &measured_here).is_err());
    let strangers = std::collections::BTreeSet::from(["no such item", ids[0].as_str()]);
    assert!(adopt(&loaded.baseline, &manifest, &strangers, &desk.folder.path().join("short")).is_err());
}
