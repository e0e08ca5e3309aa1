//! Models of the hub: `org/name`, out of an existing Hugging Face cache, our own, or by download.
//!
//! The first answer tells which commit the branch stands for, and everything else is fetched from that commit, so that an
//! upload in the middle cannot mix two versions. What arrived is listed with length and SHA-256 in [`MANIFEST`].

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::model_store::fetch_lock::FetchLock;
use crate::model_store::http::{HubClient, ProgressReport};
use crate::model_store::verified_file::{self, CopyError, Identity};
use crate::model_store::{OnEvent, StoreError, StoreEvent, StoreOptions};

/// The hub's own limit for each part of a name.
const MAX_NAME_BYTES: usize = 96;
/// Configurations and templates have a few kB, tokenizer_config.json up to 2 MB.
const MAX_CONFIG_BYTES: u64 = 8 << 20;
/// The same limit as the tokenizer's reader has.
const MAX_TOKENIZER_BYTES: u64 = 64 << 20;
/// An index has a line per tensor: 100,000 at most.
const MAX_INDEX_BYTES: u64 = 32 << 20;
/// A model for this engine has a few GB; shards are 5 GB by convention.
const MAX_WEIGHTS_BYTES: u64 = 64 << 30;
/// The largest models have some 200 shards.
const MAX_SHARDS: usize = 1_000;

const CONFIG: &str = "config.json";
const TOKENIZER: &str = "tokenizer.json";
const OPTIONAL: [&str; 3] = ["tokenizer_config.json", "generation_config.json", "chat_template.jinja"];
const WEIGHTS: &str = "model.safetensors";
const WEIGHTS_INDEX: &str = "model.safetensors.index.json";
const DEFAULT_REVISION: &str = "main";

/// Our list of what was fetched.
const MANIFEST: &str = "kvgauge-files.json";
/// 1: repo, revision, files with name, bytes, sha256.
const MANIFEST_VERSION: u32 = 1;

/// `org/name`, perhaps with `@revision`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HubName {
    org: String,
    name: String,
    revision: Option<String>,
}

impl HubName {
    /// Checks every part by the hub's rules, so that they are safe in addresses and file names.
    pub(crate) fn parse(spec: &str) -> Result<Self, StoreError> {
        let bad = |reason: &str| StoreError::BadName { spec: spec.to_owned(), reason: reason.to_owned() };
        let (repo, revision) = match spec.split_once('@') {
            Some((repo, revision)) => (repo, Some(revision)),
            None => (spec, None),
        };
        let [org, name] = repo.split('/').collect::<Vec<_>>()[..] else {
            return Err(bad("it must have exactly one `/`"));
        };
        for part in [Some(org), Some(name), revision].into_iter().flatten() {
            if part.is_empty() || part.len() > MAX_NAME_BYTES {
                return Err(bad(&format!("each part has 1 to {MAX_NAME_BYTES} characters")));
            }
            if !part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte)) {
                return Err(bad("only letters, digits, `.`, `_` and `-` are allowed"));
            }
            if part.starts_with(['.', '-']) || part.ends_with(['.', '-']) || part.contains("..") || part.contains("--")
            {
                return Err(bad("`.` and `-` may stand only between other characters"));
            }
        }
        Ok(Self { org: org.to_owned(), name: name.to_owned(), revision: revision.map(str::to_owned) })
    }

    pub(crate) fn repo(&self) -> String {
        format!("{}/{}", self.org, self.name)
    }

    /// Unique, because `--` and `@` are in no part.
    fn folder(&self) -> String {
        let revision = self.revision.as_deref().map(|revision| format!("@{revision}")).unwrap_or_default();
        format!("{}--{}{revision}", self.org, self.name)
    }

    fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or(DEFAULT_REVISION)
    }
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    version: u32,
    repo: String,
    /// The commit, or the branch where the hub tells no commit.
    revision: String,
    files: Vec<FetchedFile>,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct FetchedFile {
    name: String,
    bytes: u64,
    sha256: String,
}

/// The model's folder, fetched if it is not on this machine.
pub(crate) fn locate_or_fetch(
    name: &HubName,
    options: &StoreOptions,
    on_event: OnEvent<'_>,
) -> Result<PathBuf, StoreError> {
    if let Some(snapshot) = options.hf_home.as_deref().and_then(|home| find_snapshot(home, name)) {
        return Ok(snapshot);
    }
    let models_dir = options.models_dir()?;
    let place = models_dir.join(name.folder());
    if place.exists() {
        return check_place(place, on_event);
    }
    if options.offline {
        return Err(StoreError::Offline { name: name.repo(), place });
    }
    let client = HubClient::new(options)?;
    let lock = FetchLock::acquire(&models_dir, &name.folder(), on_event)?;
    if place.exists() {
        // Another process fetched it while this one waited.
        return check_place(place, on_event);
    }
    let temporary = lock.temporary_dir()?;
    let mut fetch = Fetch {
        client: &client,
        name,
        dir: temporary.path(),
        on_event,
        revision: name.revision().into(),
        files: Vec::new(),
    };
    fetch.everything()?;
    fetch.write_manifest()?;
    // The folder moves as a whole; what is left of the temporary one is nothing.
    fs::rename(temporary.path(), &place).map_err(|source| StoreError::Io {
        action: "write",
        path: place.clone(),
        source,
    })?;
    on_event(StoreEvent::Stored { path: place.clone() });
    Ok(place)
}

/// A folder of our cache: what we fetched must be unchanged; what somebody put there must be complete.
fn check_place(place: PathBuf, on_event: OnEvent<'_>) -> Result<PathBuf, StoreError> {
    let manifest = read_small(&place.join(MANIFEST), MAX_CONFIG_BYTES)
        .and_then(|bytes| serde_json::from_slice::<Manifest>(&bytes).ok())
        .filter(|manifest| manifest.version == MANIFEST_VERSION);
    let Some(manifest) = manifest else {
        return match is_complete(&place) {
            true => Ok(place),
            false => {
                Err(StoreError::NotAModel { path: place, reason: "config.json, tokenizer.json or weights are missing" })
            }
        };
    };
    for file in manifest.files.iter().filter(|file| is_plain_name(&file.name)) {
        let path = place.join(&file.name);
        let expected = Identity { bytes: file.bytes, sha256: &file.sha256 };
        verified_file::verify(&path, expected, &|| on_event(StoreEvent::Verifying { path: path.clone() }))?;
    }
    Ok(place)
}

/// A complete snapshot in a Hugging Face cache: the one that the revision stands for there, else (where none was asked for) any.
fn find_snapshot(hf_home: &Path, name: &HubName) -> Option<PathBuf> {
    let repo = hf_home.join("hub").join(format!("models--{}--{}", name.org, name.name));
    let snapshots = repo.join("snapshots");
    let reference = read_small(&repo.join("refs").join(name.revision()), 128);
    let commit = reference.and_then(|bytes| String::from_utf8(bytes).ok()).map(|text| text.trim().to_owned());
    let mut candidates = vec![commit.unwrap_or_else(|| name.revision().to_owned())];
    if name.revision.is_none() {
        let mut others: Vec<String> = fs::read_dir(&snapshots)
            .ok()?
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        others.sort_unstable();
        candidates.append(&mut others);
    }
    candidates.iter().filter(|name| is_plain_name(name)).map(|name| snapshots.join(name)).find(|dir| is_complete(dir))
}

fn is_complete(dir: &Path) -> bool {
    let has = |name: &str| dir.join(name).is_file();
    let has_shards = || {
        let shards = read_small(&dir.join(WEIGHTS_INDEX), MAX_INDEX_BYTES).and_then(|bytes| shards_of(&bytes).ok());
        shards.is_some_and(|shards| shards.iter().all(|shard| has(shard)))
    };
    has(CONFIG) && has(TOKENIZER) && (has(WEIGHTS) || has_shards())
}

/// The shards that an index names.
fn shards_of(index: &[u8]) -> Result<BTreeSet<String>, String> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let index: Index = serde_json::from_slice(index).map_err(|error| error.to_string())?;
    let shards: BTreeSet<String> = index.weight_map.into_values().collect();
    if shards.is_empty() || shards.len() > MAX_SHARDS {
        return Err(format!("{} shards, expected 1 to {MAX_SHARDS}", shards.len()));
    }
    match shards.iter().find(|shard| !is_plain_name(shard) || !shard.ends_with(".safetensors")) {
        Some(shard) => Err(format!("`{shard}` is not the name of a shard")),
        None => Ok(shards),
    }
}

/// A name that stays in its folder.
fn is_plain_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with('.')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

fn read_small(path: &Path, limit: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(limit + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 <= limit).then_some(bytes)
}

/// One download of one model.
struct Fetch<'a> {
    client: &'a HubClient,
    name: &'a HubName,
    dir: &'a Path,
    on_event: OnEvent<'a>,
    revision: String,
    files: Vec<FetchedFile>,
}

impl Fetch<'_> {
    fn everything(&mut self) -> Result<(), StoreError> {
        self.required(CONFIG, MAX_CONFIG_BYTES)?;
        self.required(TOKENIZER, MAX_TOKENIZER_BYTES)?;
        for file in OPTIONAL {
            self.optional(file, MAX_CONFIG_BYTES)?;
        }
        if self.optional(WEIGHTS, MAX_WEIGHTS_BYTES)? {
            return Ok(());
        }
        if !self.optional(WEIGHTS_INDEX, MAX_INDEX_BYTES)? {
            return Err(self.missing(WEIGHTS));
        }
        let path = self.dir.join(WEIGHTS_INDEX);
        let index = fs::read(&path).map_err(|source| StoreError::Io { action: "read", path, source })?;
        let shards = shards_of(&index).map_err(|reason| StoreError::Malformed {
            repo: self.name.repo(),
            file: WEIGHTS_INDEX.into(),
            reason,
        })?;
        shards.iter().try_for_each(|shard| self.required(shard, MAX_WEIGHTS_BYTES))
    }

    fn missing(&self, file: &str) -> StoreError {
        StoreError::NotOnHub { repo: self.name.repo(), file: file.to_owned() }
    }

    fn required(&mut self, file: &str, limit: u64) -> Result<(), StoreError> {
        match self.optional(file, limit)? {
            true => Ok(()),
            false => Err(self.missing(file)),
        }
    }

    /// Fetches `file` into the folder; `false` if the hub does not have it.
    fn optional(&mut self, file: &str, limit: u64) -> Result<bool, StoreError> {
        let (repo, file) = (self.name.repo(), file.to_owned());
        let transfer = |reason: String| StoreError::Transfer { repo: repo.clone(), file: file.clone(), reason };
        let reply = self.client.get(&format!("{repo}/resolve/{}/{file}", self.revision)).map_err(transfer)?;
        match reply.response.status().as_u16() {
            200 => {}
            404 => return Ok(false),
            status @ (401 | 403) => {
                return Err(StoreError::Denied { repo, status, with_token: self.client.has_token() });
            }
            status => return Err(StoreError::HubStatus { repo, file, status }),
        }
        if let Some(commit) = reply.commit {
            self.revision = commit;
        }
        let total_bytes = reply.response.content_length();
        (self.on_event)(StoreEvent::Fetching { what: file.clone(), total_bytes });
        let path = self.dir.join(&file);
        let write_error = |source: io::Error| StoreError::Io { action: "write", path: path.clone(), source };
        let mut output = File::create(&path).map_err(write_error)?;
        let report = ProgressReport::new(&file, total_bytes, self.on_event);
        let copied = verified_file::copy_hashed(reply.response, &mut output, limit, &|done| report.tell(done));
        let copied = copied.map_err(|error| match error {
            CopyError::Read(error) => transfer(format!("the connection broke: {error}")),
            CopyError::Write(source) => write_error(source),
        })?;
        output.sync_all().map_err(write_error)?;
        if copied.bytes > limit {
            return Err(StoreError::TooLarge { repo, file, limit });
        }
        let shown = PathBuf::from(format!("{repo}/{file}"));
        let bytes = total_bytes.unwrap_or(copied.bytes);
        let sha256 = reply.sha256.unwrap_or_else(|| copied.sha256.clone());
        verified_file::check_identity(&copied, Identity { bytes, sha256: &sha256 }, &shown)?;
        verified_file::vouch(&path, &sha256);
        self.files.push(FetchedFile { name: file, bytes, sha256 });
        Ok(true)
    }

    fn write_manifest(self) -> Result<(), StoreError> {
        let path = self.dir.join(MANIFEST);
        let manifest =
            Manifest { version: MANIFEST_VERSION, repo: self.name.repo(), revision: self.revision, files: self.files };
        let text = serde_json::to_string_pretty(&manifest).expect("strings and numbers always serialize");
        File::create(&path)
            .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
            .map_err(|source| StoreError::Io { action: "write", path, source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_rules_of_the_hub() {
        let name = HubName::parse("org-x/Model_1.5@v2.0").unwrap();
        assert_eq!((name.repo().as_str(), name.folder().as_str()), ("org-x/Model_1.5", "org-x--Model_1.5@v2.0"));
        assert_eq!(HubName::parse("a/b").unwrap().revision(), "main");
        let long = format!("a/{}", "x".repeat(97));
        for spec in
            ["a/../b", "a/..", "a/b/c", "/b", "a/", "a/b@", "a/b@../x", "a b/c", "a/b%2f", "a--b/c", "a/ü", &long]
        {
            assert!(matches!(HubName::parse(spec), Err(StoreError::BadName { .. })), "{spec}");
        }
    }

    #[test]
    fn an_index_cannot_name_files_elsewhere() {
        let index = |shard: &str| serde_json::json!({"weight_map": {"w": shard}}).to_string();
        assert!(shards_of(index("model-00001-of-00002.safetensors").as_bytes()).is_ok());
        for shard in ["../x.safetensors", "/x.safetensors", "a/b.safetensors", "x.bin", ".x.safetensors", ""] {
            assert!(shards_of(index(shard).as_bytes()).is_err(), "{shard}");
        }
        assert!(shards_of(br#"{"weight_map": {}}"#).is_err());
    }
}
