//! The scripts of the GitHub Action, in a shell as a runner starts them.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::Desk;

/// A `gh` that writes down how it was called, with the body it was given, and answers with `answer`.
const GH: &str = r#"#!/usr/bin/env bash
printf '%s\n' "$*" >>"$GH_CALLS"
while [ $# -gt 0 ]; do
    if [ "$1" = --input ]; then cp "$2" "$GH_BODY"; fi
    if [ "$1" = --dir ]; then cp "$GH_FILES"/* "$2"/; fi
    shift
done
cat "$GH_ANSWER"
"#;

struct Runner {
    desk: Desk,
}

impl Runner {
    fn new() -> Self {
        let desk = Desk::new();
        fs::create_dir(desk.path("bin")).unwrap();
        desk.write("bin/gh", GH);
        fs::set_permissions(desk.path("bin/gh"), fs::Permissions::from_mode(0o755)).unwrap();
        std::os::unix::fs::symlink(assert_cmd::cargo::cargo_bin!("kvgauge"), desk.path("bin/kvgauge")).unwrap();
        for name in ["gh.calls", "gh.answer", "output", "path"] {
            desk.write(name, "");
        }
        Self { desk }
    }

    fn script(&self, name: &str, args: &[&str], variables: &[(&str, &str)]) -> Output {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(".github/action").join(name);
        // The desk's command has an environment without the machine's own settings.
        let clean = self.desk.command(&[]);
        let mut command = Command::new(script);
        for (name, value) in clean.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let mut path = vec![self.desk.path("bin")];
        path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap()));
        command.current_dir(self.desk.path("")).args(args);
        command.env("PATH", std::env::join_paths(path).unwrap());
        for (variable, file) in [
            ("GH_CALLS", "gh.calls"),
            ("GH_BODY", "gh.body"),
            ("GH_ANSWER", "gh.answer"),
            ("GH_FILES", "files"),
            ("GITHUB_OUTPUT", "output"),
            ("GITHUB_PATH", "path"),
            ("RUNNER_TEMP", ""),
            ("RUNNER_TOOL_CACHE", "tools"),
        ] {
            command.env(variable, self.desk.path(file));
        }
        command.env("GITHUB_REPOSITORY", "owner/project").envs(variables.iter().copied());
        command.output().unwrap()
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.desk.path(name)).unwrap()
    }

    /// Text of the comment that was sent.
    fn body(&self) -> String {
        let sent: serde_json::Value = serde_json::from_str(&self.read("gh.body")).unwrap();
        sent["body"].as_str().unwrap().to_owned()
    }

    fn comment(&self, summary: &str) -> Output {
        self.desk.write("summary.md", summary);
        let summary = self.desk.path("summary.md");
        self.script(
            "comment.sh",
            &[],
            &[
                ("KVGAUGE_SUMMARY", summary.to_str().unwrap()),
                ("KVGAUGE_PULL_REQUEST", "7"),
                ("KVGAUGE_REPORT_URL", "https://example.invalid/report"),
            ],
        )
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_check_says_its_verdict_and_its_files_and_leaves_the_failing_to_a_later_step() {
    for (damage, code, verdict) in [("", "0", "INCONCLUSIVE"), ("early_stop@512", "100", "REGRESSED")] {
        let runner = Runner::new();
        let mut args = "--dry-run --suite quick --bins 512 --samples 24 --kv-cache-dtype fp8_e4m3".to_owned();
        if !damage.is_empty() {
            args += &format!(" --damage {damage}");
        }
        let said = runner.script("check.sh", &[], &[("KVGAUGE_CHECK_ARGS", &args), ("KVGAUGE_RUN_DIR", "run")]);
        assert!(said.status.success(), "{}", stderr(&said));
        let expected = format!("exit-code={code}\nverdict={verdict}\nreport=run/report.html\nsummary=run/summary.md\n");
        assert_eq!(runner.read("output"), expected, "{}", stderr(&said));
    }
}

#[test]
fn a_check_that_could_not_start_is_no_verdict() {
    let runner = Runner::new();
    let said = runner.script("check.sh", &[], &[("KVGAUGE_CHECK_ARGS", "--nonsense"), ("KVGAUGE_RUN_DIR", "run")]);
    assert!(said.status.success());
    assert_eq!(runner.read("output"), "exit-code=2\nverdict=\n");
}

#[test]
fn a_folder_with_old_answers_is_refused() {
    let runner = Runner::new();
    let args = "--dry-run --suite smoke --bins 512";
    let check = || runner.script("check.sh", &[], &[("KVGAUGE_CHECK_ARGS", args), ("KVGAUGE_RUN_DIR", "run")]);
    assert!(check().status.success());
    runner.desk.write("output", "");
    assert_eq!(check().status.code(), Some(2));
    assert_eq!(runner.read("output"), "", "an old verdict is none of this build");
}

#[test]
fn one_comment_is_kept_up_to_date_within_its_limit() {
    let runner = Runner::new();
    let said = runner.comment("<!-- kvgauge-report -->\n\nPASS `$(touch hacked)`\n");
    assert!(said.status.success(), "{}", stderr(&said));
    assert_eq!(
        runner.body(),
        "<!-- kvgauge-report -->\n[Full report](https://example.invalid/report)\n\nPASS `$(touch hacked)`\n"
    );
    let calls = runner.read("gh.calls");
    assert!(calls.contains("api --method POST repos/owner/project/issues/7/comments --input "), "{calls}");
    assert!(!runner.desk.path("hacked").exists());

    // The next one finds its predecessor, and is cut where it would be refused.
    runner.desk.write("gh.answer", "4711\n");
    let said = runner.comment(&"字".repeat(70_000));
    assert!(said.status.success(), "{}", stderr(&said));
    assert!(runner.read("gh.calls").contains("--method PATCH repos/owner/project/issues/comments/4711"));
    let body = runner.body();
    assert_eq!(body.chars().count(), 60_000);
    assert!(body.starts_with("<!-- kvgauge-report -->\n") && body.ends_with("_Shortened; the report has all._\n"));
}

#[test]
fn what_names_a_pull_request_is_checked() {
    let runner = Runner::new();
    let said = runner.script(
        "comment.sh",
        &[],
        &[("KVGAUGE_SUMMARY", "none"), ("KVGAUGE_PULL_REQUEST", "7/../../../issues/8")],
    );
    assert_eq!(said.status.code(), Some(2));
    let said = runner.script("pull_request_of.sh", &["main\") | .number, (\""], &[]);
    assert_eq!(said.status.code(), Some(2));
    assert_eq!(runner.read("gh.calls"), "");

    runner.desk.write("gh.answer", "12\n13\n");
    let said = runner.script("pull_request_of.sh", &["0123456789abcdef"], &[]);
    assert_eq!(String::from_utf8_lossy(&said.stdout), "12\n", "{}", stderr(&said));
}

/// Packs what stands in for a binary as a release does; `None` where the machine has no `xz`.
fn packed(runner: &Runner) -> Option<PathBuf> {
    let has_xz = Command::new("xz").arg("--version").output().is_ok_and(|said| said.status.success());
    has_xz.then(|| {
        runner.desk.write("built", "#!/bin/sh\necho \"built: $*\"\n");
        fs::set_permissions(runner.desk.path("built"), fs::Permissions::from_mode(0o755)).unwrap();
        let said = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/package.sh"))
            .arg(runner.desk.path("built"))
            .arg(format!("{}-unknown-linux-gnu", std::env::consts::ARCH))
            .arg(runner.desk.path("files"))
            .output()
            .unwrap();
        assert!(said.status.success(), "{}", stderr(&said));
        runner.desk.path("files").join(format!("kvgauge-{}-unknown-linux-gnu.tar.xz", std::env::consts::ARCH))
    })
}

#[test]
#[cfg(target_os = "linux")]
fn a_release_is_installed_only_with_its_hash() {
    let runner = Runner::new();
    let Some(archive) = packed(&runner) else {
        eprintln!("skipped: no xz on this machine");
        return;
    };
    let install =
        || runner.script("install.sh", &[], &[("KVGAUGE_RELEASE", "v0.1.0"), ("KVGAUGE_REPOSITORY", "owner/kvgauge")]);
    let said = install();
    assert!(said.status.success(), "{}", stderr(&said));
    assert!(String::from_utf8_lossy(&said.stdout).contains("built: --version"), "{}", stderr(&said));
    assert!(runner.read("gh.calls").starts_with("release download v0.1.0 --repo owner/kvgauge --dir "));
    let folder = PathBuf::from(runner.read("path").trim_end());
    assert!(folder.join("completions/kvgauge.bash").is_file() && folder.join("kvgauge.1").is_file());

    let mut bytes = fs::read(&archive).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&archive, bytes).unwrap();
    fs::remove_dir_all(runner.desk.path("tools")).unwrap();
    runner.desk.write("path", "");
    let said = install();
    assert!(!said.status.success());
    assert_eq!(runner.read("path"), "");
}
