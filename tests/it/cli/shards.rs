//! Shards: each asks its part, none is judged alone, and merged they are the run that one machine would have made.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{Desk, Said, contents};

const FAULTS: &[&str] = &["--damage", "wrong@2K=0.4,loop@2K=0.4"];

impl Desk {
    fn shard(&self, shard: &str, more: &[&str]) -> Said {
        let dir = dir_of(shard);
        let args = ["check", "--dry-run", "--suite", "smoke", "--run-dir", &dir, "--shard", shard];
        self.run(&[&args[..], more].concat())
    }

    /// All shards, and their folders.
    fn shards(&self, of: usize, more: &[&str]) -> Vec<String> {
        let shard = |number| {
            let shard = format!("{number}/{of}");
            let said = self.shard(&shard, more);
            assert_eq!(said.code, Some(0), "{}", said.stderr);
            let told = format!("shard {number} of {of} recorded; merge all of them with `kvgauge merge`\n");
            assert!(said.stdout.ends_with(&told), "{}", said.stdout);
            dir_of(&shard)
        };
        (1..=of).map(shard).collect()
    }

    fn merge(&self, out: &str, dirs: &[String], more: &[&str]) -> Said {
        let mut args = vec!["merge", out];
        args.extend(dirs.iter().map(String::as_str));
        self.run(&[&args[..], more].concat())
    }

    fn edit(&self, file: &str, change: impl FnOnce(String) -> String) {
        let path = self.path(file);
        fs::write(&path, change(fs::read_to_string(&path).unwrap())).unwrap();
    }
}

fn dir_of(shard: &str) -> String {
    format!("shard-{}", shard.replace('/', "-of-"))
}

/// As a kill leaves an arm: some answers, a torn line, and a status that says so.
fn unfinish(arm: &Path, answers: usize) {
    let [manifest, samples] = ["manifest.json", "samples.jsonl"].map(|file| arm.join(file));
    let text = fs::read_to_string(&manifest).unwrap();
    fs::write(&manifest, text.replace("\"complete\"", "\"started\"")).unwrap();
    let journal = fs::read_to_string(&samples).unwrap();
    let mut kept: String = journal.split_inclusive('\n').take(answers).collect();
    kept += &journal.lines().nth(answers).unwrap()[..40];
    fs::write(&samples, kept).unwrap();
}

/// Every file of a run folder by its path in it.
fn files(desk: &Desk, dir: &str) -> BTreeMap<PathBuf, Vec<u8>> {
    let root = desk.path(dir);
    contents(&root).into_iter().map(|(path, bytes)| (path.strip_prefix(&root).unwrap().to_path_buf(), bytes)).collect()
}

/// The same files with the same bytes, but for the logs, which have the times of the starts.
fn expect_same(found: &BTreeMap<PathBuf, Vec<u8>>, expected: &BTreeMap<PathBuf, Vec<u8>>) {
    assert!(found.keys().eq(expected.keys()), "{:?}\n{:?}", found.keys(), expected.keys());
    for (path, bytes) in found {
        assert!(path.ends_with("events.jsonl") || *bytes == expected[path], "{}", path.display());
    }
}

/// An item in the journal of an arm.
fn item_of(desk: &Desk, journal: &str, line: usize) -> String {
    let text = fs::read_to_string(desk.path(journal)).unwrap();
    let json = text.lines().nth(line).unwrap().rsplit_once('\t').unwrap().0;
    serde_json::from_str::<Value>(json).unwrap()["item_id"].as_str().unwrap().to_owned()
}

#[test]
fn merged_shards_are_the_run_of_one_machine() {
    // So many items that some shards have none of an arm, and so many that the faults fail the run.
    for (samples, faults, code) in [("4", &[][..], 0), ("24", FAULTS, 100)] {
        let desk = Desk::new();
        let more = [&["--samples", samples][..], faults].concat();
        assert_eq!(desk.dry_run(&more).code, Some(code));
        let whole = files(&desk, "run");
        let judged = desk.run(&["gate", "run", "--json"]);
        for of in [1, 2, 3, 7] {
            let mut dirs = desk.shards(of, &more);
            dirs.reverse();
            let out = format!("merged-{of}");
            let said = desk.merge(&out, &dirs, &[]);
            assert_eq!(said.code, Some(0), "{}", said.stderr);
            assert!(said.stdout.contains(&format!("{out}: {of} of {of} shards")), "{}", said.stdout);
            let gate = desk.run(&["gate", &out, "--json"]);
            assert_eq!((gate.code, &gate.stdout), (judged.code, &judged.stdout), "{of} shards: {}", gate.stderr);
            assert_eq!(desk.run(&["compare", &out]).stdout, desk.run(&["compare", "run"]).stdout);
            assert_eq!(desk.run(&["report", &out]).code, Some(0));
            // Byte for byte, but for the times of the start.
            expect_same(&files(&desk, &out), &whole);
            // And it goes on like one: nothing is left to ask.
            let again = desk.run(&[&["check", "--dry-run", "--suite", "smoke", "--run-dir", &out], &more[..]].concat());
            assert_eq!(again.code, Some(code), "{}", again.stderr);
            assert!(again.stderr.contains("no prompt was run"), "{}", again.stderr);
        }
    }
}

#[test]
fn a_shard_alone_is_not_judged() {
    let desk = Desk::new();
    let dirs = desk.shards(2, &[]);
    assert!(!desk.path("shard-1-of-2/comparison.json").exists() && !desk.path("shard-1-of-2/report.html").exists());
    for command in ["compare", "gate", "report"] {
        desk.run(&[command, &dirs[0]]).expect_error(2, &["shard-1-of-2", "shard 1/2", "kvgauge merge"]);
        // Nor in parts, or in a folder without its plan.
        let [baseline, candidate] = ["bfloat16", "fp8_e4m3"].map(|arm| format!("{}/{arm}", dirs[0]));
        desk.run(&[command, &baseline, &candidate]).expect_error(2, &["bfloat16", "shard 1/2", "kvgauge merge"]);
    }
    fs::remove_file(desk.path("shard-1-of-2/run.json")).unwrap();
    desk.run(&["gate", &dirs[0]]).expect_error(2, &["shard 1/2"]);
    desk.shard("1/2", &["-o", "report.html"]);
    assert_eq!(desk.shard("1/2", &["-o", "report.html"]).code, Some(2), "there is no report to write");
    for text in ["0/2", "3/2", "1/1025", "1", "x/y"] {
        assert_eq!(desk.shard(text, &[]).code, Some(2), "{text}");
    }
    let json: Value = serde_json::from_str(&desk.shard("2/2", &["--json"]).stdout).unwrap();
    assert_eq!((&json["shard"], &json["arms"][0]["arm"]), (&Value::from("2/2"), &Value::from("bfloat16")));
}

#[test]
fn a_shard_resumes_and_its_folder_takes_no_other() {
    let desk = Desk::new();
    let dirs = desk.shards(2, &[]);
    desk.dry_run(&[]);
    let before = files(&desk, &dirs[0]);
    unfinish(&desk.path("shard-1-of-2/fp8_e5m2"), 3);
    desk.merge("merged", &dirs, &[]).expect_error(6, &["shard-1-of-2/fp8_e5m2", "lacks", "needle", "--partial"]);
    assert!(!desk.path("merged").exists());
    let resume = |shard: &str, dir: &str| {
        desk.run(&["check", "--dry-run", "--suite", "smoke", "--run-dir", dir, "--shard", shard])
    };
    resume("2/2", &dirs[0]).expect_error(2, &["shard-1-of-2", "`1/2`", "`2/2`"]);
    resume("1/3", &dirs[0]).expect_error(2, &["shard-1-of-2", "`1/2`", "`1/3`"]);
    resume("1/2", "run").expect_error(2, &["run", "shard", "nothing"]);
    let whole = desk.run(&["check", "--dry-run", "--suite", "smoke", "--run-dir", &dirs[0]]);
    whole.expect_error(2, &["shard-1-of-2", "`1/2`", "nothing"]);
    assert_eq!(resume("1/2", &dirs[0]).code, Some(0));
    expect_same(&files(&desk, &dirs[0]), &before);
    assert_eq!(desk.merge("merged", &dirs, &[]).code, Some(0));
}

#[test]
fn missing_double_and_foreign_shards_are_named() {
    let desk = Desk::new();
    let dirs = desk.shards(3, &[]);
    desk.dry_run(&[]);
    desk.merge("merged", &dirs[..2], &[]).expect_error(6, &["1 of 3 shards are missing: 3/3", "--shard M/N"]);
    fs::rename(desk.path(&dirs[2]), desk.path("third")).unwrap();
    let mut four = [&dirs[..2], &["third".to_owned(), "copy".to_owned()]].concat();
    copy(&desk.path(&dirs[1]), &desk.path("copy"));
    desk.merge("merged", &four, &[]).expect_error(2, &["shard 2/3 is there twice", "shard-2-of-3", "copy"]);
    four.pop();
    desk.merge("merged", &[&four[..], &["run".to_owned()]].concat(), &[]).expect_error(2, &["`run`", "whole run"]);
    desk.merge("merged", &["absent".to_owned()], &[]).expect_error(2, &["`absent`", "run.json"]);
    type Other<'a> = (&'a [&'a str], &'a [&'a str]);
    let others: &[Other] = &[
        (&["--seed", "9"], &["plan.seed is", "suite_fingerprint", "`9` in `other`"]),
        (&["--damage", "loop@2K"], &["plan.damage is nothing in `shard-1-of-3/bfloat16`", "`loop@2K` in `other/"]),
        (&["--kv-cache-dtype", "fp8_e4m3"], &["arm fp8_e5m2", "nothing in `other`"]),
    ];
    for (options, parts) in others {
        let args = ["check", "--dry-run", "--suite", "smoke", "--run-dir", "other", "--shard", "3/3"];
        assert_eq!(desk.run(&[&args[..], options].concat()).code, Some(0));
        let dirs = [&dirs[..2], &["other".to_owned()]].concat();
        desk.merge("merged", &dirs, &[]).expect_error(2, &[parts, &["not shards of one run"][..]].concat());
        fs::remove_dir_all(desk.path("other")).unwrap();
    }
    desk.edit("third/run.json", |text| text.replace("\"margin\": 0.05", "\"margin\": 0.5"));
    desk.merge("merged", &four, &[]).expect_error(2, &["gate.margin is `0.05`", "`0.5` in `third`"]);
    desk.edit("third/run.json", |text| text.replace("\"margin\": 0.5", "\"margin\": 0.05"));
    for (field, value) in [("kv_cache_dtype", "auto"), ("engine", "another 1"), ("attention_backend", "another")] {
        let path = desk.path("third/fp8_e4m3/manifest.json");
        let kept = fs::read_to_string(&path).unwrap();
        let mut manifest: Value = serde_json::from_str(&kept).unwrap();
        manifest["resolved"][field]["value"] = value.into();
        // Whatever a dry run knows, two shards know it differently.
        for shard in ["shard-1-of-3", "shard-2-of-3"] {
            desk.edit(&format!("{shard}/fp8_e4m3/manifest.json"), |text| known(&text, field));
        }
        fs::write(&path, manifest.to_string()).unwrap();
        let parts = [&format!("resolved.{field} is `"), "shard-1-of-3/fp8_e4m3", &format!("`{value}` in `third/")];
        desk.merge("merged", &four, &[]).expect_error(2, &parts);
        fs::write(&path, kept).unwrap();
    }
    assert!(!desk.path("merged").exists(), "a refused merge left a folder");
    let left: Vec<_> = fs::read_dir(desk.path(".")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with(".kvgauge")), "{left:?}");
}

#[test]
fn damage_and_items_in_the_wrong_place_are_named() {
    let desk = Desk::new();
    let dirs = desk.shards(2, &[]);
    let journal = "shard-2-of-2/fp8_e4m3/samples.jsonl";
    let whole = fs::read_to_string(desk.path(journal)).unwrap();
    // With `--partial`, too: what is damaged is not what is missing.
    for more in [&[][..], &["--partial"]] {
        desk.edit(journal, |text| text.replacen("\"outcome\":\"valid_right\"", "\"outcome\":\"valid_wrong\"", 1));
        desk.merge("merged", &dirs, more).expect_error(6, &[journal, "damaged at line", "checksum"]);
        let other = fs::read_to_string(desk.path("shard-1-of-2/fp8_e4m3/samples.jsonl")).unwrap();
        let (foreign, id) = (other.lines().next().unwrap(), item_of(&desk, "shard-1-of-2/fp8_e4m3/samples.jsonl", 0));
        fs::write(desk.path(journal), format!("{whole}{foreign}\n")).unwrap();
        desk.merge("merged", &dirs, more).expect_error(6, &["shard-2-of-2/fp8_e4m3", &id, "one of shard 1/2"]);
        fs::write(desk.path(journal), &whole).unwrap();
        let manifest = desk.path("shard-2-of-2/fp8_e5m2/manifest.json");
        let kept = fs::read_to_string(&manifest).unwrap();
        fs::copy(desk.path("shard-1-of-2/fp8_e5m2/manifest.json"), &manifest).unwrap();
        desk.merge("merged", &dirs, more).expect_error(2, &["shard-2-of-2/fp8_e5m2", "plan.shard", "`1/2`", "`2/2`"]);
        fs::write(&manifest, kept).unwrap();
        copy(&desk.path("shard-1-of-2/fp8_e5m2"), &desk.path("shard-1-of-2/stray"));
        desk.merge("merged", &dirs, more).expect_error(2, &["shard-1-of-2", "`stray`"]);
        fs::remove_dir_all(desk.path("shard-1-of-2/stray")).unwrap();
        let plan = fs::read_to_string(desk.path("shard-2-of-2/plan.json")).unwrap();
        fs::remove_file(desk.path("shard-2-of-2/plan.json")).unwrap();
        desk.merge("merged", &dirs, more).expect_error(6, &["shard-2-of-2/plan.json"]);
        desk.write("shard-2-of-2/plan.json", &plan.replacen("\"index\":0", "\"index\":77", 1));
        desk.merge("merged", &dirs, more).expect_error(2, &["shard-2-of-2", "plan.json"]);
        desk.write("shard-2-of-2/plan.json", &plan);
    }
    fs::create_dir(desk.path("full")).unwrap();
    desk.write("full/file", "");
    desk.merge("full", &dirs, &[]).expect_error(2, &["`full`", "not an empty folder"]);
    desk.merge("full/file", &dirs, &[]).expect_error(2, &["full/file"]);
    fs::create_dir(desk.path("empty")).unwrap();
    assert_eq!(desk.merge("empty", &dirs, &[]).code, Some(0));
    assert_eq!(desk.run(&["gate", "empty"]).code, Some(0));
}

#[test]
fn what_a_partial_merge_leaves_open_never_passes_and_is_asked_on_resume() {
    let desk = Desk::new();
    let more = ["--samples", "6"];
    assert_eq!(desk.dry_run(&more).code, Some(0));
    let judged = desk.run(&["gate", "run", "--json"]);
    desk.shards(3, &more);
    let whole = |desk: &Desk, out: &str| {
        let args = ["check", "--dry-run", "--suite", "smoke", "--run-dir", out];
        desk.run(&[&args[..], &more].concat())
    };
    // A shard, an arm of a shard, and answers of an arm that are not there.
    let all = || ["1/3", "2/3", "3/3"].map(dir_of).to_vec();
    type Harm<'a> = (&'a str, &'a dyn Fn(&Desk) -> Vec<String>);
    let harms: [Harm; 4] = [
        ("no-shard", &|_| ["1/3", "3/3"].map(dir_of).to_vec()),
        ("no-arm", &|desk| {
            fs::remove_dir_all(desk.path("shard-2-of-3/fp8_e4m3")).unwrap();
            all()
        }),
        ("killed", &|desk| {
            unfinish(&desk.path("shard-3-of-3/bfloat16"), 2);
            all()
        }),
        ("no-arm-at-all", &|desk| {
            for shard in all() {
                fs::remove_dir_all(desk.path(&shard).join("fp8_e5m2")).unwrap();
            }
            all()
        }),
    ];
    for (name, harm) in harms {
        let given = harm(&desk);
        desk.merge(name, &given, &[]).expect_error(6, &["--partial"]);
        let said = desk.merge(name, &given, &["--partial", "--json"]);
        assert_eq!(said.code, Some(0), "{name}: {}", said.stderr);
        assert!(said.stderr.contains("is not finished"), "{name}: {}", said.stderr);
        let document: Value = serde_json::from_str(&said.stdout).unwrap();
        assert_eq!(document["shards"].as_array().unwrap().len(), given.len());
        let gate = desk.run(&["gate", name]);
        assert_eq!(gate.code, Some(6), "{name}: {}\n{}", gate.stdout, gate.stderr);
        assert_eq!(whole(&desk, name).code, Some(0));
        assert_eq!(desk.run(&["gate", name, "--json"]).stdout, judged.stdout, "{name}");
    }
}

#[test]
fn a_confirmation_is_asked_of_the_merged_run_or_missed_by_name() {
    let desk = Desk::new();
    let more = [&["--samples", "24", "--confirm", "--kv-cache-dtype", "fp8_e4m3"][..], FAULTS].concat();
    let dirs = desk.shards(2, &more);
    assert!(dirs.iter().all(|dir| !desk.path(dir).join("confirm").exists()));
    assert_eq!(desk.merge("merged", &dirs, &[]).code, Some(0));
    let said = desk.run(&["gate", "merged"]);
    said.expect_error(2, &["fp8_e4m3", "2K"]);
    let args = ["check", "--dry-run", "--suite", "smoke", "--run-dir", "merged"];
    let checked = desk.run(&[&args[..], &more].concat());
    assert_eq!(checked.code, Some(100), "{}", checked.stderr);
    assert!(checked.stdout.contains("confirmed on fresh seeds"), "{}", checked.stdout);
    assert_eq!(desk.run(&["gate", "merged"]).code, Some(100));
}

#[test]
fn what_servers_counted_is_kept_for_every_shard_and_one_restart_is_enough() {
    let desk = Desk::new();
    let dirs = desk.shards(2, &["--samples", "24"]);
    let count = |shard: &str, value: &str, status: &str| {
        desk.edit(&format!("{shard}/fp8_e4m3/manifest.json"), |text| {
            let mut manifest: Value = serde_json::from_str(&text).unwrap();
            let observed = json!([{ "value": value, "source": "/metrics" }]);
            manifest["checks"] =
                json!([{ "fact": "same_server", "asked": null, "observed": observed, "status": status }]);
            manifest["environment"]["cpu"] = shard.into();
            manifest.to_string()
        });
    };
    count(&dirs[0], "counters only rose", "confirmed");
    for (value, status, out, code) in
        [("counters only rose", "confirmed", "same", 0), ("began anew", "contradicted", "restarted", 6)]
    {
        count(&dirs[1], value, status);
        assert_eq!(desk.merge(out, &dirs, &[]).code, Some(0));
        let gate = desk.run(&["gate", out]);
        assert_eq!(gate.code, Some(code), "{}", gate.stdout);
        let manifest = fs::read_to_string(desk.path(out).join("fp8_e4m3/manifest.json")).unwrap();
        let manifest: Value = serde_json::from_str(&manifest).unwrap();
        assert_eq!(manifest["environment"]["cpu"], "shard-1-of-2 | shard-2-of-2");
        let seen = manifest["checks"][0]["observed"].as_array().unwrap();
        let sources: Vec<&Value> = seen.iter().map(|it| &it["source"]).collect();
        let expected: &[&str] = if code == 0 { &["/metrics"] } else { &["/metrics, shard 1/2", "/metrics, shard 2/2"] };
        assert_eq!(sources, expected);
    }
    // The log begins with the first start of all shards, by which a history orders its nights.
    let first = |dir: &str| {
        let log = fs::read_to_string(desk.path(dir).join("fp8_e4m3/events.jsonl")).unwrap();
        serde_json::from_str::<Value>(log.lines().next().unwrap()).unwrap()["unix_ms"].as_u64().unwrap()
    };
    assert_eq!(first("same"), first(&dirs[0]).min(first(&dirs[1])));
}

#[test]
fn arms_at_several_levels_of_concurrency_and_two_names_of_one_cache_are_merged() {
    let desk = Desk::new();
    let more = ["--samples", "6", "--concurrency", "1,4", "--kv-cache-dtype", "fp8,fp8_e4m3"];
    assert_eq!(desk.dry_run(&more).code, Some(0));
    let dirs = desk.shards(2, &more);
    assert_eq!(desk.merge("merged", &dirs, &[]).code, Some(0));
    let [whole, merged] = ["run", "merged"].map(|dir| desk.run(&["gate", dir, "--json"]));
    assert_eq!((whole.code, whole.stdout), (merged.code, merged.stdout));
}

/// The manifest with a fact that is known.
fn known(manifest: &str, fact: &str) -> String {
    let mut manifest: Value = serde_json::from_str(manifest).unwrap();
    let value = &mut manifest["resolved"][fact]["value"];
    if value.is_null() {
        *value = "known".into();
    }
    manifest.to_string()
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap().path();
        let target = to.join(entry.file_name().unwrap());
        if entry.is_dir() {
            copy(&entry, &target);
        } else {
            fs::copy(&entry, &target).unwrap();
        }
    }
}
