//! `baseline` and `check --against`: the accepted half gives the verdict that the measured one gives, and nothing else is taken for it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use kvgauge::baseline::{Acceptance, Store};
use kvgauge::record::manifest::plan_hash;
use kvgauge::setup::Arm;
use serde_json::Value;

use super::{Desk, Said, contents};
use crate::dialogue::tokenizer_json;

const DAMAGE: [&str; 4] = ["--samples", "24", "--damage", "wrong@2K=0.4,loop@512=0.3"];

fn check(desk: &Desk, run: &str, more: &[&str]) -> Said {
    desk.run(&[&["check", "--dry-run", "--suite", "smoke", "--run-dir", run], more].concat())
}

fn accept(desk: &Desk, run: &str, more: &[&str]) -> Said {
    let said = desk.run(&[&["baseline", "accept", run], more].concat());
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    said
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// The run without what tells where the baseline is from.
fn judged(desk: &Desk, run: &str) -> Value {
    let mut document = json(&desk.path(run).join("comparison.json"));
    let accepted = document["comparison"]["baseline"].as_object_mut().unwrap().remove("accepted");
    assert_eq!(accepted.is_some(), run == "copied", "{run}");
    document
}

/// Changes a manifest on disk as another version or model would have written it, with the hash that belongs to it.
fn rewrite(manifest: &Path, change: impl Fn(&mut Value)) {
    let mut value = json(manifest);
    change(&mut value);
    let plan: BTreeMap<String, String> = serde_json::from_value(value["plan"].clone()).unwrap();
    let arm: Arm = serde_json::from_value(value["arm"].clone()).unwrap();
    value["plan_hash"] = plan_hash(&plan, &arm).into();
    fs::write(manifest, value.to_string()).unwrap();
}

#[test]
fn an_accepted_baseline_gives_the_verdict_of_a_measured_one() {
    for damage in [&DAMAGE[..2], &DAMAGE[..]] {
        let desk = Desk::new();
        // The faults are the candidates': a clean run gives the baseline of every other.
        check(&desk, "first", &["--samples", "24", "--kv-cache-dtype", "int8_per_token_head"]);
        let said = accept(&desk, "first", &["--note", "first light"]);
        assert!(said.stdout.starts_with("smoke-scripted-bfloat16 = "), "{}", said.stdout);
        assert!(said.stdout.contains("kvgauge check --against smoke-scripted-bfloat16"), "{}", said.stdout);
        let measured = check(&desk, "measured", damage);
        let against = check(&desk, "copied", &[damage, &["--against", "smoke-scripted-bfloat16"]].concat());
        assert_eq!(against.code, measured.code, "{}\n{}", against.stdout, against.stderr);
        assert!(against.stderr.contains("baseline accepted on 20"), "{}", against.stderr);
        assert!(against.stdout.contains("not measured in this run"), "{}", against.stdout);
        assert_eq!(judged(&desk, "copied"), judged(&desk, "measured"));
        // The folder needs nothing else: not the store, not the model.
        let before = contents(&desk.path("copied"));
        fs::rename(desk.path("baselines"), desk.path("elsewhere")).unwrap();
        assert_eq!(desk.run(&["gate", "copied"]).code, measured.code);
        assert_eq!(desk.run(&["report", "copied"]).code, Some(0));
        assert!(contents(&desk.path("copied")) == before, "`report` changed a file");
        fs::rename(desk.path("elsewhere"), desk.path("baselines")).unwrap();
        let again = check(&desk, "copied", &[damage, &["--against", "baselines/smoke-scripted-bfloat16"]].concat());
        assert_eq!((again.code, &again.stdout), (against.code, &against.stdout), "{}", again.stderr);
        assert!(again.stderr.contains("no prompt was run"), "{}", again.stderr);
    }
}

#[test]
fn the_report_says_what_is_not_of_this_run() {
    let desk = Desk::new();
    check(&desk, "first", &[]);
    accept(&desk, "first", &["--name", "nightly"]);
    check(&desk, "run", &["--against", "nightly"]);
    let manifest = json(&desk.path("run/bfloat16/manifest.json"));
    assert_eq!(manifest["accepted"]["name"], "nightly");
    assert_eq!(manifest["accepted"]["hash"], json(&desk.path("baselines/nightly/baseline.json"))["hash"]);
    assert!(json(&desk.path("run/bfloat16.aa/manifest.json"))["accepted"].is_null());
    let told = |file: &str| fs::read_to_string(desk.path("run").join(file)).unwrap();
    for file in ["report.html", "summary.md", "kv_record.json", "fp8_e4m3/kv_record.json"] {
        assert!(told(file).contains("not measured in this run"), "{file}");
    }
    assert!(told("report.html").contains("arm was asked in this run: it shows"));
    assert!(told("report.html").contains("--against nightly"), "the command that makes it again");
    assert!(!fs::read_to_string(desk.path("first/report.html")).unwrap().contains("accepted"));
    // Servers answer with noise: that of the acceptance is part of the baseline.
    let config = "[[arm]]\nkv_cache_dtype = \"bfloat16\"\nurl = \"http://127.0.0.1:1\"\n\
                  [[arm]]\nkv_cache_dtype = \"fp8\"\nurl = \"http://127.0.0.1:2\"\n";
    desk.write("servers.toml", config);
    check(&desk, "servers", &["--config", "servers.toml"]);
    accept(&desk, "servers", &["--name", "served"]);
    desk.write("servers.toml", &format!("[baseline]\nagainst = \"served\"\n{config}"));
    let said = check(&desk, "served", &["--config", "servers.toml"]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    for arm in ["bfloat16", "bfloat16.aa"] {
        assert_eq!(json(&desk.path("served").join(arm).join("manifest.json"))["accepted"]["name"], "served");
    }
    let page = fs::read_to_string(desk.path("served/report.html")).unwrap();
    assert!(page.contains("noise was measured when the baseline was accepted"), "control");
    // An embedded run's shortest bins are no measure of a server's noise over all.
    fs::remove_dir_all(desk.path("served")).unwrap();
    accept(&desk, "servers/bfloat16", &["--name", "silent"]);
    check(&desk, "served", &["--config", "servers.toml", "--against", "silent"]).expect_error(3, &["no A/A arm"]);
}

#[test]
fn another_measurement_is_refused_field_by_field_before_anything_is_written() {
    let desk = Desk::new();
    check(&desk, "first", &[]);
    accept(&desk, "first", &["--name", "n"]);
    desk.write("notes.txt", &"Some words of our own, again and again. ".repeat(2000));
    let cases: [(&[&str], &[&str]); 7] = [
        (&["--suite", "smoke", "--seed", "8"], &["seed: `7` in the baseline, `8` in this run: `--seed 7`"]),
        (&["--suite", "smoke", "--samples", "3"], &["items: `24 items` in the baseline, `36 items"]),
        (&["--suite", "quick"], &["suite name: `smoke` in the baseline, `quick` in this run"]),
        (
            &["--suite", "smoke", "--baseline", "float16"],
            &["arm.kv_cache_dtype: `bfloat16` in the baseline, `float16` in this run: `--baseline bfloat16`"],
        ),
        (&["--suite", "smoke", "--haystack", "notes.txt"], &["haystack: nothing in the baseline"]),
        (&["--suite", "smoke", "--concurrency", "2"], &["arm.concurrency: nothing in the baseline, `2` in this run"]),
        (&["--suite", "smoke", "--emulate", "sm90"], &["arm.emulate"]),
    ];
    for (options, parts) in cases {
        let said = desk.run(&[&["check", "--dry-run", "--run-dir", "run", "--against", "n"], options].concat());
        assert_eq!(said.code, Some(3), "{options:?}: {}", said.stderr);
        for part in parts {
            assert!(said.stderr.contains(part), "{options:?}: {}", said.stderr);
        }
        assert!(said.stderr.contains("hint: or measure the baseline of this measurement"), "{}", said.stderr);
        assert!(!desk.path("run").exists(), "{options:?} left a folder");
    }
}

#[test]
fn what_another_version_or_model_measured_is_refused() {
    type Change = fn(&mut Value);
    let cases: [(&str, Change); 6] = [
        ("scorer.exact_value: `0` in the baseline", |it| it["plan"]["scorer.exact_value"] = "0".into()),
        ("generator.needle: `0` in the baseline", |it| it["plan"]["generator.needle"] = "0".into()),
        ("weights: `others` in the baseline", |it| it["plan"]["weights"] = "others".into()),
        ("tokenizer: `another` in the baseline", |it| it["plan"]["tokenizer"] = "another".into()),
        ("decoding: `t=1` in the baseline", |it| it["plan"]["decoding"] = "t=1".into()),
        ("resolved.engine: `older` in the baseline", |it| it["resolved"]["engine"]["value"] = "older".into()),
    ];
    let desk = Desk::new();
    for (number, (message, change)) in cases.into_iter().enumerate() {
        let run = format!("first{number}");
        check(&desk, &run, &["--bins", "512"]);
        rewrite(&desk.path(&run).join("bfloat16/manifest.json"), change);
        accept(&desk, &format!("{run}/bfloat16"), &["--name", "n"]);
        let said = check(&desk, "run", &["--bins", "512", "--against", "n"]);
        assert!(said.code == Some(3) && said.stderr.contains(message), "{message}: {}", said.stderr);
        assert!(!desk.path("run").exists());
    }
}

#[test]
fn answers_to_other_prompts_and_other_scores_are_refused() {
    let desk = Desk::new();
    check(&desk, "first", &["--bins", "512"]);
    let journal = desk.path("first/bfloat16/samples.jsonl");
    let whole = fs::read_to_string(&journal).unwrap();
    // An answer that was right becomes wrong, with good checksums: what is scored again does not agree.
    let cases: [(&str, &str, &str); 3] = [
        (
            "\"outcome\":\"valid_right\",\"score\":{\"value\":1.0",
            "\"outcome\":\"valid_wrong\",\"score\":{\"value\":0.0",
            "item.score",
        ),
        ("\"prompt_hash\":\"", "\"prompt_hash\":\"0", "item.prompt_hash"),
        ("\"expected_answer\":\"", "\"expected_answer\":\"x", "item.expected_answer"),
    ];
    for (from, to, field) in cases {
        let mut is_done = false;
        let mut changed = String::new();
        for line in whole.lines() {
            let mut json = line.split('\t').next().unwrap().to_owned();
            if !is_done && json.contains(from) {
                json = json.replacen(from, to, 1);
                is_done = true;
            }
            changed += &format!("{json}\t{:08x}\n", crc32c::crc32c(json.as_bytes()));
        }
        assert!(is_done, "{from} is in no line");
        fs::write(&journal, changed).unwrap();
        accept(&desk, "first/bfloat16", &["--name", "n"]);
        let said = check(&desk, "run", &["--bins", "512", "--against", "n"]);
        assert!(said.code == Some(3) && said.stderr.contains(field), "{field}: {}", said.stderr);
        assert!(said.stderr.contains("another in 1 of 12 items"), "{}", said.stderr);
        assert!(!desk.path("run").exists());
    }
}

#[test]
fn a_part_of_what_was_accepted_may_be_asked_and_no_more() {
    let desk = Desk::new();
    check(&desk, "whole", &["--samples", "24"]);
    accept(&desk, "whole", &["--name", "whole"]);
    let damage = ["--samples", "24", "--damage", "wrong@512=0.4"];
    for more in [&["--bins", "512"][..], &["--bins", "512", "--tasks", "needle,verbatim"]] {
        let options = [&damage[..], more].concat();
        let measured = check(&desk, "measured", &options);
        let against = check(&desk, "copied", &[&options[..], &["--against", "whole"]].concat());
        assert_eq!((against.code, measured.code), (Some(100), Some(100)), "{}", against.stderr);
        assert_eq!(judged(&desk, "copied"), judged(&desk, "measured"));
        let samples = fs::read_to_string(desk.path("copied/bfloat16/samples.jsonl")).unwrap();
        assert_eq!(samples.lines().count(), if more.len() == 2 { 144 } else { 48 }, "only the items of the plan");
        for run in ["measured", "copied"] {
            fs::remove_dir_all(desk.path(run)).unwrap();
        }
    }
    // In a bin whose texts hold several questions, fewer of them make other texts.
    let tasks = ["--samples", "24", "--bins", "2K", "--tasks", "needle", "--against", "whole"];
    let said = check(&desk, "run", &tasks);
    assert!(said.code == Some(3) && said.stderr.contains("item.prompt_hash"), "{}", said.stderr);
    check(&desk, "part", &["--samples", "24", "--bins", "512"]);
    accept(&desk, "part", &["--name", "part"]);
    let said = check(&desk, "run", &["--samples", "24", "--against", "part"]);
    assert!(said.code == Some(3) && said.stderr.contains("144 of them others"), "{}", said.stderr);
}

#[test]
fn a_copy_cut_short_goes_on_and_other_answers_are_never_mixed_in() {
    let desk = Desk::new();
    check(&desk, "first", &[]);
    accept(&desk, "first", &["--name", "n"]);
    check(&desk, "run", &["--against", "n"]);
    let before = contents(&desk.path("run"));
    let [manifest, samples] = ["manifest.json", "samples.jsonl"].map(|file| desk.path("run/bfloat16").join(file));
    let text = fs::read_to_string(&manifest).unwrap();
    fs::write(&manifest, text.replace("\"complete\"", "\"started\"")).unwrap();
    let journal = fs::read(&samples).unwrap();
    fs::write(&samples, &journal[..journal.len() / 2]).unwrap();
    fs::remove_dir_all(desk.path("run/fp8_e5m2")).unwrap();
    assert_eq!(desk.run(&["gate", "run"]).code, Some(6));
    let again = check(&desk, "run", &["--against", "n"]);
    assert_eq!(again.code, Some(0), "{}", again.stderr);
    let after = contents(&desk.path("run"));
    let without_events = |all: Vec<(PathBuf, Vec<u8>)>| -> Vec<_> {
        all.into_iter().filter(|(path, _)| !path.ends_with("events.jsonl")).collect()
    };
    assert!(without_events(after) == without_events(before), "the run is another one");
    // The other way is refused, too; without `--run-dir` the two have folders of their own.
    check(&desk, "run", &[]).expect_error(2, &["accepted baseline is", "another plan"]);
    check(&desk, "first", &["--against", "n"]).expect_error(2, &["accepted baseline is", "another plan"]);
    for more in [&[][..], &["--against", "n"]] {
        assert_eq!(desk.run(&[&["check", "--dry-run", "--suite", "smoke"], more].concat()).code, Some(0));
    }
    assert_eq!(fs::read_dir(desk.path("reports")).unwrap().count(), 2);
    // What was copied is no measurement that could be accepted with today's date.
    desk.run(&["baseline", "accept", "run"]).expect_error(3, &["was not measured in this run", "without `--against`"]);
}

#[test]
fn damage_is_found_by_verify_and_by_check() {
    let desk = Desk::new();
    check(&desk, "first", &["--bins", "512"]);
    accept(&desk, "first", &["--name", "n"]);
    let verified = desk.run(&["baseline", "verify"]);
    assert!(verified.code == Some(0) && verified.stdout.contains("✓ n = "), "{}", verified.stdout);
    let hash = json(&desk.path("baselines/n/baseline.json"))["hash"].as_str().unwrap()[..16].to_owned();
    for file in ["n/baseline.json", &format!("{hash}/control/samples.jsonl"), &format!("{hash}/content.json")] {
        let path = desk.path("baselines").join(file);
        let whole = fs::read(&path).unwrap();
        let mut flipped = whole.clone();
        flipped[whole.len() / 2] ^= 1;
        fs::write(&path, &flipped).unwrap();
        for args in [&["baseline", "verify"][..], &["baseline", "verify", "n", "--json"]] {
            let said = desk.run(args);
            assert!(said.code == Some(3) && said.stdout.contains(file), "{file}: {}", said.stdout);
        }
        let said = check(&desk, "run", &["--bins", "512", "--against", "n"]);
        assert!(said.code == Some(3) && said.stderr.contains(file), "{}", said.stderr);
        assert!(!desk.path("run").exists());
        fs::write(&path, &whole).unwrap();
    }
    assert_eq!(desk.run(&["baseline", "verify", "n"]).code, Some(0));
    desk.run(&["baseline", "verify", "m"]).expect_error(3, &["no baseline `m`", "did you mean `n`?"]);
}

#[test]
fn names_are_listed_shown_and_moved() {
    let desk = Desk::new();
    assert!(desk.run(&["baseline", "list"]).stdout.contains("no baseline in `baselines`"));
    check(&desk, "one", &["--bins", "512"]);
    check(&desk, "two", &["--bins", "512,2K"]);
    accept(&desk, "one", &["--name", "nightly", "--note", "before the update"]);
    assert!(accept(&desk, "one", &["--name", "nightly"]).stdout.contains("unchanged"));
    let moved = accept(&desk, "two", &["--name", "nightly", "--json"]);
    let moved: Value = serde_json::from_str(&moved.stdout).unwrap();
    assert_eq!(
        (&moved["change"], &moved["baseline"]["history"][0]["note"]),
        (&"moved".into(), &"before the update".into())
    );
    accept(&desk, "one", &["--name", "short", "--into", "shared/baselines"]);
    accept(&desk, "one", &["--name", "short"]);
    let listed: Value = serde_json::from_str(&desk.run(&["baseline", "list", "--json"]).stdout).unwrap();
    let names: Vec<&str> = listed.as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["nightly", "short"]);
    let list = desk.run(&["baseline", "list"]).stdout;
    assert!(list.contains("nightly") && list.contains("512, 2K"), "{list}");
    let shown = desk.run(&["baseline", "show", "nightly"]).stdout;
    assert!(shown.contains("before the update") && shown.contains("512: 12, 2K: 12"), "{shown}");
    for (against, code) in [("short", Some(0)), ("shared/baselines/short", Some(0)), ("nigthly", Some(3))] {
        let said = check(&desk, "run", &["--bins", "512", "--against", against]);
        assert_eq!(said.code, code, "{}", said.stderr);
        drop(fs::remove_dir_all(desk.path("run")));
    }
    let other_arm = desk.run(&["baseline", "accept", "one", "--arm", "fp8_e4m3"]);
    other_arm.expect_error(3, &["cannot be a baseline", "fp8_e4m3"]);
    desk.run(&["baseline", "accept", "one", "--arm", "fp9"]).expect_error(4, &["`fp9`", "fp8"]);
    desk.run(&["baseline", "accept", "absent"]).expect_error(4, &["absent", "run folder"]);
}

#[test]
fn an_old_baseline_is_told_and_refused_where_that_is_asked_for() {
    let desk = Desk::new();
    check(&desk, "first", &["--bins", "512"]);
    let store = Store::new(&desk.path("baselines"));
    let accepted_at = "2020-02-29T12:00:00Z".to_owned();
    let old = Acceptance { run: desk.path("first"), name: Some("old"), accepted_at, ..Acceptance::default() };
    store.accept(&old).unwrap();
    let said = check(&desk, "run", &["--bins", "512", "--against", "old"]);
    assert!(said.code == Some(0) && said.stderr.contains("warning: baseline `old` was accepted"), "{}", said.stderr);
    check(&desk, "run", &["--bins", "512", "--against", "old", "--max-age", "30"])
        .expect_error(3, &["days ago", "--renew"]);
    let verified = desk.run(&["baseline", "verify", "--max-age", "30"]);
    assert!(verified.code == Some(3) && verified.stdout.contains("at most 30 are allowed"), "{}", verified.stdout);
    desk.write("kvgauge.toml", "[baseline]\nagainst = \"old\"\nmax_age = 30\n");
    check(&desk, "run", &["--bins", "512"]).expect_error(3, &["at most 30"]);
    assert_eq!(desk.run(&["baseline", "verify"]).code, Some(0));
    accept(&desk, "first", &["--name", "old", "--renew"]);
    assert_eq!(check(&desk, "renewed", &["--bins", "512"]).code, Some(0));
}

#[test]
fn a_confirmation_measures_both_arms_anew() {
    let desk = Desk::new();
    check(&desk, "first", &["--samples", "24"]);
    accept(&desk, "first", &["--name", "n"]);
    let options = ["--confirm", "--kv-cache-dtype", "fp8_e4m3"];
    let measured = check(&desk, "measured", &[&DAMAGE[..], &options].concat());
    let against = check(&desk, "copied", &[&DAMAGE[..], &options, &["--against", "n"]].concat());
    assert_eq!((against.code, measured.code), (Some(100), Some(100)), "{}", against.stderr);
    assert_eq!(judged(&desk, "copied"), judged(&desk, "measured"));
    assert!(json(&desk.path("copied/confirm/2K/bfloat16/manifest.json"))["accepted"].is_null());
    assert_eq!(desk.run(&["gate", "copied"]).code, Some(100));
}

#[test]
fn a_shard_is_neither_a_baseline_nor_compared_with_one() {
    let desk = Desk::new();
    check(&desk, "first", &[]);
    accept(&desk, "first", &[]);
    let said = check(&desk, "part", &["--shard", "1/2", "--against", "smoke-scripted-bfloat16"]);
    said.expect_error(2, &["--shard", "--against"]);
    assert!(!desk.path("part").exists(), "a refused start left a folder");
    assert_eq!(check(&desk, "part", &["--shard", "1/2"]).code, Some(0));
    let said = desk.run(&["baseline", "accept", "part", "--name", "half"]);
    assert!(
        matches!(said.code, Some(2 | 3 | 6)) && !desk.path("baselines/half").exists(),
        "{:?}: {}",
        said.code,
        said.stderr
    );
    assert!(said.stderr.contains("shard") || said.stderr.contains("finished"), "{}", said.stderr);
}

#[test]
#[cfg(not(feature = "remote"))]
fn an_object_store_is_refused_by_a_build_without_a_client() {
    let desk = Desk::new();
    check(&desk, "first", &["--bins", "512"]);
    for args in [
        &["baseline", "accept", "first", "--into", "s3://bucket/x"][..],
        &["baseline", "verify", "--from", "s3://bucket/x"],
        &["check", "--dry-run", "--suite", "smoke", "--run-dir", "run", "--against", "s3://bucket/x/n"],
    ] {
        desk.run(args).expect_error(2, &["is an object store", "--features remote"]);
    }
    assert!(!desk.path("run").exists() && !desk.path("s3:").exists());
}

#[test]
#[cfg(feature = "remote")]
fn an_object_store_keeps_baselines_like_a_folder() {
    let desk = Desk::new();
    check(&desk, "first", &["--bins", "512"]);
    let address = format!("file://{}", desk.path("remote").display());
    let said = accept(&desk, "first", &["--name", "n", "--into", &address]);
    assert!(said.stdout.contains(&format!("--against {address}/n")), "{}", said.stdout);
    assert!(accept(&desk, "first", &["--name", "n", "--into", &address]).stdout.contains("unchanged"));
    let verify = || desk.run(&["baseline", "verify", "--from", &address]);
    assert!(verify().stdout.contains("✓ n = "), "{}", verify().stderr);
    assert!(desk.run(&["baseline", "list", "--from", &address]).stdout.contains("smoke"));
    let against = format!("{address}/n");
    let said = check(&desk, "run", &["--bins", "512", "--against", &against]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let hash = json(&desk.path("remote/n/baseline.json"))["hash"].as_str().unwrap()[..16].to_owned();
    let journal = desk.path("remote").join(hash).join("baseline/samples.jsonl");
    let mut bytes = fs::read(&journal).unwrap();
    bytes[99] ^= 1;
    fs::write(&journal, bytes).unwrap();
    assert_eq!(verify().code, Some(3));
    check(&desk, "again", &["--bins", "512", "--against", &against]).expect_error(3, &["damaged"]);
    check(&desk, "again", &["--bins", "512", "--against", &format!("{address}/m")])
        .expect_error(3, &["no baseline `m`"]);
}

/// A folder with the tiny model of the engine's own tests, and a tokenizer of one token per character.
fn tiny_model(desk: &Desk) {
    fs::create_dir(desk.path("tiny")).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny_models/llama");
    for name in ["config.json", "model.safetensors"] {
        fs::copy(source.join(name), desk.path("tiny").join(name)).unwrap();
    }
    desk.write("tiny/tokenizer.json", &tokenizer_json(255).to_string());
    desk.write("tiny/chat_template.jinja", "{% for m in messages %}{{ m.content }}\n{% endfor %}");
    let suite = "schema_version = 1\nname = \"tiny\"\ndescription = \"\"\n\
                 [[bins]]\ncontext = \"1K\"\nsamples = 2\n[[tasks]]\nkind = \"needle\"\n";
    desk.write("tiny.toml", suite);
}

#[test]
fn the_engine_shows_by_its_control_that_accepted_answers_are_its_own() {
    let desk = Desk::new();
    tiny_model(&desk);
    let check = |run: &str, more: &[&str]| {
        let model =
            ["check", "--suite", "tiny.toml", "--model", "./tiny", "--rope-scaling", "ntk", "--kernel", "portable"];
        desk.run(&[&model[..], &["--kv-cache-dtype", "fp8_e4m3", "--run-dir", run], more].concat())
    };
    let first = check("measured", &[]);
    assert!(desk.path("measured/report.html").is_file(), "{}", first.stderr);
    accept(&desk, "measured", &["--name", "n"]);
    let against = check("copied", &["--against", "n"]);
    assert_eq!(against.code, first.code, "{}", against.stderr);
    assert_eq!(judged(&desk, "copied"), judged(&desk, "measured"));
    // One likelihood is another, as of a machine that computes otherwise: the answers agree, and the control does not.
    let journal = desk.path("measured/bfloat16/samples.jsonl");
    let mut changed = String::new();
    for line in fs::read_to_string(&journal).unwrap().lines() {
        let mut sample: Value = serde_json::from_str(line.split('\t').next().unwrap()).unwrap();
        sample["completion"]["answer_nll"] = 9.25.into();
        let text = sample.to_string();
        changed += &format!("{text}\t{:08x}\n", crc32c::crc32c(text.as_bytes()));
    }
    fs::write(&journal, changed).unwrap();
    accept(&desk, "measured", &["--name", "drifted"]);
    let drifted = check("drifted", &["--against", "drifted"]);
    assert_eq!(drifted.code, Some(6), "{}\n{}", drifted.stdout, drifted.stderr);
    assert!(drifted.stdout.contains("the A/A arm `bfloat16.aa` differs from the baseline"), "{}", drifted.stdout);
    let kernel = check("kernel", &["--against", "n", "--threads", "1"]);
    assert_eq!(kernel.code, first.code, "threads change no answer: {}", kernel.stderr);
    let rope =
        desk.run(&["check", "--suite", "tiny.toml", "--model", "./tiny", "--rope-scaling", "linear", "--against", "n"]);
    assert!(rope.code == Some(3) && rope.stderr.contains("rope: "), "{}", rope.stderr);
}
