//! Facts about this machine for the record: shown, never compared.

use std::collections::BTreeMap;
use std::fs;

/// Longest CPU name kept: firmware fills the field with blanks.
const MAX_CPU_NAME_BYTES: usize = 128;

/// CPU, operating system and build, by name.
pub(crate) fn facts() -> BTreeMap<String, String> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    BTreeMap::from([
        ("cpu".to_string(), cpu_name()),
        ("cores".to_string(), cores.to_string()),
        ("os".to_string(), format!("{} {}", std::env::consts::OS, std::env::consts::ARCH)),
    ])
}

fn cpu_name() -> String {
    let described = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = described.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    match field {
        Some((_, name)) => name.trim().chars().take(MAX_CPU_NAME_BYTES).collect(),
        None => std::env::consts::ARCH.into(),
    }
}
