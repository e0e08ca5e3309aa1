//! The architecture rules as data and a check of them: a rule that only stands in a document is broken within a month.
//!
//! Every rule is a function of one file's path and text, so that each is also tried on a bad file (at the end).

#![expect(clippy::unwrap_used, reason = "a tree that cannot be read has failed the check")]

mod registries;
mod source;

use std::fs;
use std::path::{Path, PathBuf};

use source::{code_only, leading_identifier, without_tests, words};

/// Module → library modules it may import, lowest layer first. `cli` is a crate of its own and sees only what is `pub`.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("units", &[]),
    ("hint", &[]),
    ("rng", &[]),
    ("stats", &[]),
    ("engine", &[]),
    ("tokenizer", &["hint"]),
    ("transport", &[]),
    ("model_store", &["hint", "transport"]),
    ("sample", &["units"]),
    ("setup", &["units", "hint"]),
    ("tasks", &["units", "hint", "rng", "tokenizer", "sample"]),
    ("scorers", &["hint", "sample"]),
    ("detectors", &["sample"]),
    ("suite", &["units", "hint", "rng", "tokenizer", "sample", "tasks", "scorers", "detectors"]),
    ("capacity", &["units", "hint", "setup", "engine"]),
    ("serving", &["units", "hint", "transport", "setup", "capacity", "engine"]),
    ("targets", &["units", "hint", "transport", "sample", "setup", "tokenizer", "engine", "serving"]),
    ("record", &["units", "hint", "sample", "setup", "suite"]),
    (
        "runner",
        &[
            "units",
            "hint",
            "rng",
            "transport",
            "engine",
            "tokenizer",
            "model_store",
            "sample",
            "setup",
            "tasks",
            "scorers",
            "detectors",
            "suite",
            "serving",
            "targets",
            "record",
        ],
    ),
    ("baseline", &["units", "hint", "sample", "setup", "suite", "record"]),
    ("compare", &["units", "hint", "stats", "sample", "setup", "suite", "record"]),
    ("gate", &["units", "hint", "stats", "sample", "setup", "suite", "compare"]),
    ("selftest", &["sample", "suite", "compare", "gate"]),
    (
        "report",
        &["units", "hint", "sample", "setup", "suite", "record", "baseline", "compare", "gate", "capacity", "selftest"],
    ),
];

/// Crates that may be named only in these files or folders of `src/`.
const CRATE_HOMES: &[(&str, &[&str])] = &[
    ("tokio", &["runner", "targets", "serving", "cli"]),
    ("reqwest", &["transport.rs", "model_store", "serving", "targets/openai"]),
    ("polars", &["compare/table.rs"]),
    ("chrono", &["units.rs"]),
    ("plotters", &["report/plot.rs"]),
    ("clap", &["cli"]),
    ("clap_complete", &["cli"]),
    ("clap_mangen", &["cli"]),
    ("indicatif", &["cli"]),
    ("comfy_table", &["cli"]),
    ("memmap2", &["engine/weights.rs"]),
    ("rustix", &["serving/launch.rs"]),
    ("zip", &["model_store"]),
    ("object_store", &["cli/baseline/remote.rs"]),
];

/// Where `unsafe` may stand.
const UNSAFE_HOMES: &[&str] = &["engine/kernels", "engine/weights.rs"];

/// A longer file has two subjects.
const MAX_FILE_LINES: usize = 800;

/// Leftovers of unfinished work; spelled in two parts so that this file does not name them.
const UNFINISHED: &[&str] = &[concat!("to", "do"), concat!("unimpl", "emented"), concat!("db", "g")];
const UNFINISHED_NOTES: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];

const PRINTING: &[&str] = &["println", "print", "eprintln", "eprint"];

#[test]
fn the_source_tree_keeps_the_rules() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut violations = Vec::new();
    for file in rust_files(root, &["src", "tests", "benches", "examples"]) {
        let text = fs::read_to_string(root.join(&file)).unwrap();
        violations.extend(check_file(&file.to_string_lossy().replace('\\', "/"), &text));
    }
    assert!(violations.is_empty(), "\n{}", violations.join("\n"));
}

fn rust_files(root: &Path, folders: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open: Vec<PathBuf> = folders.iter().map(|folder| root.join(folder)).collect();
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path.strip_prefix(root).unwrap().to_path_buf());
            }
        }
    }
    found.sort();
    assert!(!found.is_empty(), "no source under {}", root.display());
    found
}

/// All violations of one file, as `path:line: what`.
fn check_file(path: &str, text: &str) -> Vec<String> {
    let all_code = code_only(text);
    let mut violations = check_length_and_leftovers(path, text, &all_code);
    if let Some(in_src) = path.strip_prefix("src/") {
        violations.extend(check_homes(path, in_src, &all_code));
        if !in_src.starts_with("cli/") {
            let is_test_file = in_src.ends_with("/tests.rs") || in_src.contains("/tests/");
            let code = if is_test_file { String::new() } else { without_tests(&all_code) };
            violations.extend(check_imports(path, in_src, &code));
            violations.extend(check_silence(path, &code));
        }
    }
    violations
}

fn check_length_and_leftovers(path: &str, text: &str, code: &str) -> Vec<String> {
    let mut violations = Vec::new();
    let lines = text.lines().count();
    if lines > MAX_FILE_LINES {
        violations.push(format!("{path}:{lines}: {lines} lines, the limit is {MAX_FILE_LINES}: split it by subject"));
    }
    if path.starts_with("src/") && !text.starts_with("//!") {
        violations.push(format!("{path}:1: no module documentation: say what it is and why it is so"));
    }
    for name in UNFINISHED {
        for (line, behind) in words(code, name) {
            if behind.starts_with("!(") {
                violations.push(format!("{path}:{line}: `{name}!` is unfinished work"));
            }
        }
    }
    for note in UNFINISHED_NOTES {
        for (line, _) in words(text, note) {
            violations.push(format!("{path}:{line}: `{note}` is unfinished work"));
        }
    }
    violations
}

fn is_home(in_src: &str, homes: &[&str]) -> bool {
    homes.iter().any(|home| {
        in_src.strip_prefix(home).is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || rest == ".rs")
    })
}

fn check_homes(path: &str, in_src: &str, code: &str) -> Vec<String> {
    let mut violations = Vec::new();
    for (name, homes) in CRATE_HOMES.iter().filter(|(_, homes)| !is_home(in_src, homes)) {
        for (line, behind) in words(code, name) {
            if behind.starts_with("::") || code.lines().nth(line - 1).is_some_and(|text| text.starts_with("use ")) {
                violations.push(format!("{path}:{line}: `{name}` lives in {} only", homes.join(", ")));
            }
        }
    }
    if !is_home(in_src, UNSAFE_HOMES) {
        for (line, _) in words(code, "unsafe") {
            violations.push(format!("{path}:{line}: `unsafe` lives in {} only", UNSAFE_HOMES.join(", ")));
        }
    }
    violations
}

fn check_imports(path: &str, in_src: &str, code: &str) -> Vec<String> {
    let Some(module) = in_src.split(['/', '.']).next().filter(|module| *module != "lib") else {
        return Vec::new();
    };
    let Some((_, allowed)) = MAY_IMPORT.iter().find(|(name, _)| *name == module) else {
        return vec![format!("{path}:1: module `{module}` has no layer: add it to the table of tests/it/tidy.rs")];
    };
    let mut violations = Vec::new();
    let mut used: Vec<String> = Vec::new();
    for (line, behind) in words(code, "crate") {
        let Some(target) = behind.strip_prefix("::") else { continue };
        let target = leading_identifier(target);
        if target.is_empty() {
            violations.push(format!("{path}:{line}: grouped `crate::{{…}}`: one `use crate::module::…` per module"));
        } else if target != module && !allowed.contains(&target) {
            violations.push(format!(
                "{path}:{line}: `{module}` may not import `{target}`: move the shared type down a layer, or pass it in"
            ));
        }
        let line_text = code.lines().nth(line - 1).unwrap_or_default();
        if let Some(imported) = line_text.strip_prefix("use crate::").filter(|_| target != module) {
            let module_path = imported.split(['{', ';']).next().unwrap_or_default();
            let module_path = module_path.rsplit_once("::").map_or(module_path, |(path, _)| path).to_owned();
            if used.contains(&module_path) {
                violations.push(format!("{path}:{line}: a second `use crate::{module_path}::…`: one per module"));
            }
            used.push(module_path);
        }
    }
    let is_top_level = matches!(in_src.split_once('/'), None | Some((_, "mod.rs")));
    for (line, behind) in words(code, "super") {
        if behind.starts_with("::super") {
            violations.push(format!("{path}:{line}: `super::super` hides which module is meant: use `crate::…`"));
        } else if is_top_level && behind.starts_with("::") && !code.lines().nth(line - 1).unwrap().starts_with(' ') {
            violations.push(format!("{path}:{line}: `super::` of a top-level module is the crate: use `crate::…`"));
        }
    }
    violations
}

/// The library never prints and never exits.
fn check_silence(path: &str, code: &str) -> Vec<String> {
    let mut violations = Vec::new();
    for name in PRINTING {
        for (line, _) in words(code, name).filter(|(_, behind)| behind.starts_with("!(")) {
            violations.push(format!("{path}:{line}: the library does not print: return it, or send an event"));
        }
    }
    for (line, behind) in words(code, "process") {
        if behind.starts_with("::exit") || behind.starts_with("::abort") {
            violations.push(format!("{path}:{line}: the library does not exit: return an error"));
        }
    }
    violations
}

#[test]
fn the_import_table_is_acyclic_and_names_every_module_of_the_library() {
    for (index, (module, allowed)) in MAY_IMPORT.iter().enumerate() {
        for target in *allowed {
            let position = MAY_IMPORT.iter().position(|(name, _)| name == target);
            assert!(position.is_some_and(|at| at < index), "`{module}` imports `{target}`, which is not below it");
        }
    }
    let lib = code_only(&fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs")).unwrap());
    let modules: Vec<&str> = lib.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';')).collect();
    assert!(modules.len() > 10, "lib.rs has changed its form: {modules:?}");
    for module in modules {
        assert!(MAY_IMPORT.iter().any(|(name, _)| *name == module), "`{module}` is not in the import table");
    }
}

/// A bad file for each rule: path, text, and a part of what must be said.
const BAD_FILES: &[(&str, &str, &str)] = &[
    ("src/stats.rs", "//! Doc.\nuse crate::gate::Verdict;\n", "src/stats.rs:2: `stats` may not import `gate`"),
    ("src/compare/a.rs", "//! Doc.\nfn f() { crate::engine::run(); }\n", "a.rs:2: `compare` may not import `engine`"),
    ("src/suite/a.rs", "//! Doc.\nuse crate::{units, hint};\n", "a.rs:2: grouped"),
    ("src/suite/a.rs", "//! Doc.\nuse crate::units::a;\nuse crate::units::b;\n", "a.rs:3: a second `use crate::units"),
    (
        "src/suite/a.rs",
        "//! Doc.\nuse crate::tasks::needle::a;\nuse crate::tasks::needle::{b};\n",
        "a.rs:3: a second `use crate::tasks::needle",
    ),
    ("src/suite/a.rs", "//! Doc.\nuse super::super::units;\n", "a.rs:2: `super::super`"),
    ("src/gate.rs", "//! Doc.\nuse super::units;\n", "gate.rs:2: `super::` of a top-level module"),
    ("src/invented/a.rs", "//! Doc.\n", "`invented` has no layer"),
    ("src/gate.rs", "//! Doc.\nuse polars::prelude::*;\n", "gate.rs:2: `polars` lives in compare/table.rs"),
    ("src/compare/mod.rs", "//! Doc.\nfn f(_: polars::Frame) {}\n", "`polars` lives in compare/table.rs"),
    ("src/suite/a.rs", "//! Doc.\n#[tokio::main]\nfn f() {}\n", "a.rs:2: `tokio` lives in"),
    ("src/report/a.rs", "//! Doc.\nuse plotters as p;\n", "`plotters` lives in report/plot.rs"),
    ("src/gate.rs", "//! Doc.\nuse clap::Parser;\n", "`clap` lives in cli"),
    ("src/engine/model.rs", "//! Doc.\nfn f() { unsafe { g() } }\n", "model.rs:2: `unsafe` lives in"),
    ("src/cli/run.rs", "//! Doc.\nunsafe fn f() {}\n", "run.rs:2: `unsafe` lives in"),
    ("src/gate.rs", "//! Doc.\nfn f() { println!(\"x\"); }\n", "gate.rs:2: the library does not print"),
    ("src/gate.rs", "//! Doc.\nfn f() { std::process::exit(1) }\n", "gate.rs:2: the library does not exit"),
    ("src/cli/run.rs", concat!("//! Doc.\nfn f() { to", "do!() }\n"), "run.rs:2: `"),
    ("src/cli/run.rs", concat!("//! Doc.\n// TO", "DO later\n"), "run.rs:2: `"),
    ("src/cli/run.rs", "fn f() {}\n", "run.rs:1: no module documentation"),
];

#[test]
fn every_rule_finds_its_bad_file() {
    for (path, text, expected) in BAD_FILES {
        let violations = check_file(path, text);
        assert!(
            violations.len() == 1 && violations[0].contains(expected),
            "{path} {text:?}: expected one violation with `{expected}`, got {violations:#?}"
        );
    }
    let long = format!("//! Doc.\n{}", "\n".repeat(MAX_FILE_LINES));
    assert!(check_file("src/cli/long.rs", &long)[0].contains("801 lines"));
}

#[test]
fn a_good_file_has_no_violation() {
    let good = "//! Doc with `crate::gate` and println!.\nuse crate::compare::Delta;\nuse crate::compare::table::x;\nuse crate::units::format_bytes;\n\n/// [`crate::report`]\n\
        fn f() -> &'static str {\n    \"crate::gate unsafe println!(\"\n}\n\n#[cfg(test)]\nmod tests {\n    \
        use super::*;\n    use crate::report::x;\n}\n";
    assert_eq!(check_file("src/gate.rs", good), Vec::<String>::new());
    assert_eq!(check_file("src/engine/kernels/a.rs", "//! Doc.\nunsafe fn f() {}\n"), Vec::<String>::new());
    assert_eq!(check_file("src/compare/table.rs", "//! Doc.\nuse polars::prelude::*;\n"), Vec::<String>::new());
}
