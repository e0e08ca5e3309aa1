//! Registries are complete: a file that is in the folder but not in the slice would be dead without a word.

use std::fs;
use std::path::Path;

use super::source::{code_only, words};

/// A folder whose files are entries of a visible slice.
struct Registry {
    folder: &'static str,
    /// File with the slice.
    registry: &'static str,
    /// Name of the slice.
    slice: &'static str,
    /// Files of the folder that are shared by the entries.
    shared: &'static [&'static str],
}

const REGISTRIES: &[Registry] = &[
    Registry {
        folder: "tasks",
        registry: "tasks/mod.rs",
        slice: "TASKS",
        shared: &["error", "group", "haystack", "params", "perturb", "planting", "user_text"],
    },
    Registry {
        folder: "scorers",
        registry: "scorers/mod.rs",
        slice: "SCORERS",
        shared: &["answer_json", "answer_text", "answer_values", "record_matching"],
    },
    Registry {
        folder: "detectors",
        registry: "detectors/mod.rs",
        slice: "DETECTORS",
        shared: &[
            "content",
            "form",
            "non_words",
            "period",
            "reading",
            "restating",
            "salad",
            "thinking",
            "tokens",
            "tongue",
            "words",
        ],
    },
    Registry {
        folder: "engine/kv_cache",
        registry: "engine/kv_cache/codec.rs",
        slice: "CODECS",
        shared: &["capacity", "codec", "hashing", "kernel_tests", "paged", "plan", "row_scale", "scales"],
    },
    Registry {
        folder: "engine/kernels",
        registry: "engine/kernels/mod.rs",
        slice: "KERNELS",
        shared: &["decode", "emulated", "geometry", "packed", "peak", "prefetch", "rounding"],
    },
    Registry {
        folder: "engine/kernels/x86_64",
        registry: "engine/kernels/mod.rs",
        slice: "KERNELS",
        shared: &[
            "amx_attention",
            "avx512_attention",
            "avx512_blocks",
            "byte_tables",
            "codes",
            "emulated",
            "key_block",
            "lanes",
            "peak",
            "prefetch",
            "tiles",
        ],
    },
    Registry {
        folder: "engine/attention",
        registry: "engine/attention/mod.rs",
        slice: "BACKENDS",
        shared: &["arithmetic", "emulated", "guard", "resolved", "stored"],
    },
    Registry {
        folder: "serving/startup_log",
        registry: "serving/startup_log/mod.rs",
        slice: "DIALECTS",
        shared: &["draft", "lines"],
    },
    Registry { folder: "report/sections", registry: "report/mod.rs", slice: "SECTIONS", shared: &[] },
];

/// Names of the entries (file stems) that the slice does not mention.
fn missing_entries(stems: &[String], registry: &Registry, registry_text: &str) -> Vec<String> {
    let code = code_only(registry_text);
    let slice = words(&code, registry.slice).map(|(line, _)| line).find(|line| {
        code.lines().nth(line - 1).is_some_and(|text| text.contains("static ") || text.contains("const "))
    });
    let Some(first_line) = slice else {
        return vec![format!("no `static {}` in {}", registry.slice, registry.registry)];
    };
    let body: String = code.lines().skip(first_line - 1).map(|line| format!("{line}\n")).collect();
    // Entries are `needle::TASK` or `x86_64::AVX512`, so case does not count.
    let body = body[..body.find("];").map_or(body.len(), |end| end + 1)].to_lowercase();
    stems
        .iter()
        .filter(|stem| !registry.shared.contains(&stem.as_str()) && words(&body, stem).next().is_none())
        .map(|stem| format!("{}/{stem}.rs is not in {} of {}", registry.folder, registry.slice, registry.registry))
        .collect()
}

fn file_stems(folder: &Path) -> Vec<String> {
    let mut stems: Vec<String> = fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
        .filter(|stem| stem != "mod" && stem != "tests")
        .collect();
    stems.sort();
    stems
}

#[test]
fn every_file_of_a_registry_folder_is_in_its_slice() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut missing = Vec::new();
    for registry in REGISTRIES {
        let stems = file_stems(&src.join(registry.folder));
        for shared in registry.shared {
            if !stems.iter().any(|stem| stem == shared) {
                missing.push(format!("{}/{shared}.rs is listed as shared and does not exist", registry.folder));
            }
        }
        let text = fs::read_to_string(src.join(registry.registry)).unwrap();
        missing.extend(missing_entries(&stems, registry, &text));
    }
    assert!(missing.is_empty(), "\n{}", missing.join("\n"));
}

#[test]
fn a_forgotten_entry_is_found() {
    let registry = Registry { folder: "tasks", registry: "tasks/mod.rs", slice: "TASKS", shared: &["haystack"] };
    let text = "mod needle;\nmod forgotten;\n// forgotten::TASK\npub static TASKS: &[Task] = &[\n    needle::TASK,\n];\nforgotten::x();\n";
    let stems = ["forgotten", "haystack", "needle"].map(String::from);
    let missing = missing_entries(&stems, &registry, text);
    assert_eq!(missing, ["tasks/forgotten.rs is not in TASKS of tasks/mod.rs"]);
    assert!(missing_entries(&stems, &registry, "mod needle;")[0].contains("no `static TASKS`"));
}

#[test]
fn every_suite_is_built_in_and_parses() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("suites");
    let mut files = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let suite = kvgauge::suite::Suite::load(&path).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(path.file_stem().unwrap().to_str(), Some(suite.name.as_str()), "a suite is called like its file");
        assert!(kvgauge::suite::Suite::builtin(&suite.name).is_ok(), "{} is not built in", suite.name);
        files += 1;
    }
    assert_eq!(files, kvgauge::suite::BUILTIN.len());
}
