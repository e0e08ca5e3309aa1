//! The content of a baseline: `<hash16>/` with the records of the baseline arm and of its A/A repeat, and `content.json` with their sums.

use std::fmt;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::baseline::sealed::{self, Sealed};
use crate::baseline::{BaselineError, HASH_DIGITS};
use crate::record::journal::{self, End};
use crate::record::manifest::FormatVersion;
use crate::record::{MANIFEST_FILE, Record, RecordError, SAMPLES_FILE};
use crate::suite::canonical_json;

/// Name of the file with the sums.
pub const CONTENT_FILE: &str = "content.json";

/// Version of `content.json` and of what the hash covers. Changelog: 1.0 first version.
const CONTENT_FORMAT: FormatVersion = FormatVersion { major: 1, minor: 0 };

/// Subfolders: the baseline arm, and its A/A repeat where there is one.
const PARTS: [&str; 2] = ["baseline", "control"];

/// Starts the hash, so that no other hash of the program can be taken for it.
const HASH_DOMAIN: &str = "kvgauge baseline content 1";

/// Fields of a manifest that decide no answer.
const UNHASHED: [&str; 4] = ["format", "tool_version", "environment", "status"];

/// Largest manifest of a record: as that of a run.
const MAX_MANIFEST_BYTES: u64 = 1024 * 1024;

/// `content.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Content {
    format: FormatVersion,
    /// Hash of what decides answers, 64 hex digits; the first of them name the folder.
    pub(super) hash: String,
    files: Vec<FileSum>,
    checksum: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileSum {
    path: String,
    bytes: u64,
    blake3: String,
}

impl Sealed for Content {
    const FORMAT: FormatVersion = CONTENT_FORMAT;

    fn checksum(&mut self) -> &mut String {
        &mut self.checksum
    }
}

/// A file that is not as it was accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub what: String,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.what)
    }
}

/// Records that were found whole.
pub(super) struct Records {
    pub(super) hash: String,
    pub(super) baseline: Record,
    pub(super) control: Option<Record>,
}

/// Files of a content folder, relative to it, the one with the sums last: who copies them in this order leaves no half content.
pub fn content_files(has_control: bool) -> Vec<String> {
    let parts = &PARTS[..1 + usize::from(has_control)];
    let mut files: Vec<String> =
        parts.iter().flat_map(|part| [MANIFEST_FILE, SAMPLES_FILE].map(|file| format!("{part}/{file}"))).collect();
    files.push(CONTENT_FILE.into());
    files
}

/// Name of the folder of a content.
pub(super) fn folder_name(hash: &str) -> &str {
    hash.get(..HASH_DIGITS).unwrap_or(hash)
}

/// Writes content into the empty folder `dir`: one line per item, the latest attempt, in the order of a record. Returns its hash.
pub(super) fn write(dir: &Path, baseline: &Record, control: Option<&Record>) -> Result<String, BaselineError> {
    for (part, record) in PARTS.into_iter().zip(std::iter::once(baseline).chain(control)) {
        write_record(&dir.join(part), record)?;
    }
    let parts = &PARTS[..1 + usize::from(control.is_some())];
    let hash = answers_hash(dir, parts)?;
    let records = content_files(control.is_some()).into_iter().filter(|path| path != CONTENT_FILE);
    let files = records.map(|path| {
        let (bytes, blake3) = sum(&dir.join(&path))?;
        Ok(FileSum { path, bytes, blake3 })
    });
    let files = files.collect::<Result<_, BaselineError>>()?;
    let content = Content { format: CONTENT_FORMAT, hash: hash.clone(), files, checksum: String::new() };
    sealed::replace(&dir.join(CONTENT_FILE), &sealed::seal(&content))?;
    Ok(hash)
}

fn write_record(dir: &Path, record: &Record) -> Result<(), BaselineError> {
    fs::create_dir_all(dir).map_err(BaselineError::storage(dir))?;
    sealed::replace(&dir.join(MANIFEST_FILE), &record.manifest.to_json())?;
    let path = dir.join(SAMPLES_FILE);
    let mut lines = Vec::new();
    for sample in &record.samples {
        let json = serde_json::to_vec(sample).map_err(|error| RecordError::Inconsistent {
            item_id: sample.item_id.clone(),
            reason: error.to_string(),
        })?;
        let line = journal::encode(&json).map_err(|bytes| RecordError::LineTooLong {
            item_id: sample.item_id.clone(),
            bytes,
            limit: journal::MAX_LINE_BYTES,
        })?;
        lines.extend_from_slice(&line);
    }
    let write = || {
        let mut file = File::create(&path)?;
        file.write_all(&lines)?;
        file.sync_all()
    };
    write().map_err(BaselineError::storage(&path))
}

/// The hash of what decides answers, out of the bytes on disk, so that a later version of the program finds the same.
fn answers_hash(dir: &Path, parts: &[&str]) -> Result<String, BaselineError> {
    let mut hasher = blake3::Hasher::new();
    let mut add = |text: &str| {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    };
    add(HASH_DOMAIN);
    for part in parts {
        add(part);
        let path = dir.join(part).join(MANIFEST_FILE);
        let bytes = journal::read_small(&path, MAX_MANIFEST_BYTES)?.unwrap_or_default();
        let malformed = |error: serde_json::Error| RecordError::malformed(&path, error.to_string());
        let mut manifest: Value = serde_json::from_slice(&bytes).map_err(malformed)?;
        for field in UNHASHED {
            manifest.as_object_mut().and_then(|fields| fields.remove(field));
        }
        add(&canonical_json(&manifest));
        journal::scan_lines(&dir.join(part).join(SAMPLES_FILE), |json| {
            let mut sample: Value = serde_json::from_slice(json).map_err(|error| error.to_string())?;
            if let Some(fields) = sample.as_object_mut() {
                fields.remove("attempt");
                fields.get_mut("completion").and_then(Value::as_object_mut).and_then(|it| it.remove("timing"));
            }
            add(&canonical_json(&sample));
            Ok(())
        })?;
    }
    Ok(hasher.finalize().to_hex().to_string())
}

/// Size and hash of a file.
fn sum(path: &Path) -> Result<(u64, String), BaselineError> {
    let Some(file) = journal::open_regular(path)? else {
        return Err(BaselineError::storage(path)(std::io::ErrorKind::NotFound.into()));
    };
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(file).map_err(BaselineError::storage(path))?;
    Ok((hasher.count(), hasher.finalize().to_hex().to_string()))
}

/// Reads the content in `dir`, hashing every file again; all that is wrong with it where anything is.
pub(super) fn read(dir: &Path) -> Result<Records, Vec<Damage>> {
    let mut damages = Vec::new();
    let mut damaged = |path: &Path, what: String| damages.push(Damage { path: path.into(), what });
    let sums = dir.join(CONTENT_FILE);
    let content: Content = match sealed::unseal(&sums) {
        Ok(Some(content)) => content,
        Ok(None) => {
            damaged(&sums, "is missing".into());
            return Err(damages);
        }
        Err(error) => {
            damaged(&sums, error.reason());
            return Err(damages);
        }
    };
    let has_control = content.files.len() > 2;
    let mut expected = content_files(has_control);
    expected.pop();
    if content.files.iter().map(|file| &file.path).ne(&expected) {
        damaged(&sums, "does not list the files of a baseline".into());
        return Err(damages);
    }
    if dir.file_name().is_none_or(|name| name != folder_name(&content.hash)) {
        damaged(dir, format!("has another name than its content, {}", folder_name(&content.hash)));
    }
    for file in &content.files {
        let path = dir.join(&file.path);
        match sum(&path) {
            Ok(found) if found == (file.bytes, file.blake3.clone()) => {}
            Ok((bytes, _)) if bytes != file.bytes => damaged(&path, format!("{bytes} bytes instead of {}", file.bytes)),
            Ok(_) => damaged(&path, "other bytes than were accepted".into()),
            Err(error) => damaged(&path, error.reason()),
        }
        if path.ends_with(SAMPLES_FILE)
            && let Some(what) = bad_line(&path)
        {
            damaged(&path, what);
        }
    }
    if !damages.is_empty() {
        return Err(damages);
    }
    let of_dir = |what: String| vec![Damage { path: dir.into(), what }];
    let parts = &PARTS[..1 + usize::from(has_control)];
    let hash = answers_hash(dir, parts).map_err(|error| of_dir(error.reason()))?;
    if hash != content.hash {
        return Err(of_dir(format!("its content has the hash {}", folder_name(&hash))));
    }
    let record = |part: &str| Record::read(&dir.join(part)).map_err(|error| of_dir(error.to_string()));
    let control = if has_control { Some(record(PARTS[1])?) } else { None };
    Ok(Records { hash, baseline: record(PARTS[0])?, control })
}

/// The first line of a journal whose checksum is wrong.
fn bad_line(path: &Path) -> Option<String> {
    match journal::scan_lines(path, |_| Ok(())).map(|scan| scan.end) {
        Ok(End::Clean) => None,
        Ok(End::Torn) => Some("the last line has no end".into()),
        Ok(End::Damaged { line, reason }) => Some(format!("line {line}: {reason}")),
        // The sum has told it.
        Err(_) => None,
    }
}
