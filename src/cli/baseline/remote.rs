//! Baselines in an object store: `s3://bucket/prefix`, `file:///folder`.
//!
//! Every command works on a folder of this machine. What it needs is fetched into a temporary one, and what was accepted there is sent
//! back, the content first and the pointer last, so that no name ever stands for half a content. What was fetched is checked like any
//! other baseline, byte by byte. Without the feature `remote` an address is refused, and the program holds no client for it.

use kvgauge::hint::Hint;

use crate::exit_code::Exit;

#[cfg(feature = "remote")]
pub(crate) use objects::{accept, mirror, split_name};

/// Why an object store cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RemoteError {
    /// This build has no client for object stores.
    #[cfg(not(feature = "remote"))]
    #[error("`{url}` is an object store, and this build has no client for one")]
    NotBuilt { url: String },
    /// The address is none of an object store, or says too much.
    #[cfg(feature = "remote")]
    #[error("{what}")]
    Address { what: String },
    /// The store refused or did not answer.
    #[cfg(feature = "remote")]
    #[error("object store, {path}: {source}")]
    Store { path: String, source: object_store::Error },
    /// An object is larger than any of a baseline.
    #[cfg(feature = "remote")]
    #[error("object store, {path}: {bytes} bytes, at most {limit} are read")]
    TooLarge { path: String, bytes: u64, limit: u64 },
    /// This machine failed.
    #[cfg(feature = "remote")]
    #[error("{path}: {source}")]
    Local { path: String, source: std::io::Error },
}

impl RemoteError {
    /// A wrong address is the command line's fault; a store that does not answer is not.
    pub(crate) fn exit(&self) -> Exit {
        match self {
            #[cfg(not(feature = "remote"))]
            Self::NotBuilt { .. } => Exit::Usage,
            #[cfg(feature = "remote")]
            Self::Address { .. } => Exit::Usage,
            #[cfg(feature = "remote")]
            Self::Store { .. } | Self::TooLarge { .. } | Self::Local { .. } => Exit::NotMeasured,
        }
    }
}

impl Hint for RemoteError {
    fn hints(&self) -> Vec<String> {
        let hint = match self {
            #[cfg(not(feature = "remote"))]
            Self::NotBuilt { .. } => {
                "build it with the feature: `cargo install kvgauge --features remote`, or name a folder"
            }
            #[cfg(feature = "remote")]
            Self::Address { .. } => {
                "s3://BUCKET/PREFIX or file:///FOLDER; keys come from the variables AWS_ACCESS_KEY_ID and so on"
            }
            #[cfg(feature = "remote")]
            Self::Store { .. } => {
                "bucket, region and rights: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, and AWS_ENDPOINT for other services"
            }
            #[cfg(feature = "remote")]
            Self::TooLarge { .. } => "this is no baseline of kvgauge: choose another prefix",
            #[cfg(feature = "remote")]
            Self::Local { .. } => "check the disk for temporary files",
        };
        vec![hint.into()]
    }
}

/// Whether a place is an address and not a folder.
pub(crate) fn is_address(place: &str) -> bool {
    place.contains("://")
}

#[cfg(not(feature = "remote"))]
pub(crate) use absent::{accept, mirror, split_name};

/// The same questions in a build without a client: every answer is that.
#[cfg(not(feature = "remote"))]
mod absent {
    use kvgauge::baseline::{Acceptance, Change, Pointer, Store};
    use tempfile::TempDir;

    use super::RemoteError;
    use crate::failure::Failure;

    pub(crate) fn split_name(address: &str) -> Result<(&str, &str), Failure> {
        Err(RemoteError::NotBuilt { url: address.into() }.into())
    }

    pub(crate) fn mirror(address: &str, _: &[String], _: bool) -> Result<(TempDir, Store), Failure> {
        Err(RemoteError::NotBuilt { url: address.into() }.into())
    }

    pub(crate) fn accept(address: &str, _: &Acceptance<'_>) -> Result<(Pointer, Change), Failure> {
        Err(RemoteError::NotBuilt { url: address.into() }.into())
    }
}

#[cfg(feature = "remote")]
mod objects {
    use std::fs;
    use std::path::Path as LocalPath;

    use kvgauge::baseline::{Acceptance, Change, POINTER_FILE, Pointer, Store, content_files};
    use object_store::aws::AmazonS3Builder;
    use object_store::local::LocalFileSystem;
    use object_store::path::Path;
    use object_store::{ObjectStore, ObjectStoreExt as _};
    use tempfile::TempDir;

    use super::RemoteError;
    use crate::failure::Failure;

    /// Largest object fetched: the journal of a hundred thousand answers has some 400 MB.
    const MAX_OBJECT_BYTES: u64 = 1 << 30;
    /// Largest pointer fetched.
    const MAX_POINTER_BYTES: u64 = 1 << 20;
    /// Names looked at under one prefix.
    const MAX_NAMES: usize = 10_000;

    /// An object store and the place of baselines in it.
    struct Remote {
        objects: Box<dyn ObjectStore>,
        prefix: Path,
        runtime: tokio::runtime::Runtime,
    }

    /// The address of the store and the name in it: `s3://bucket/baselines/nightly`.
    pub(crate) fn split_name(address: &str) -> Result<(&str, &str), Failure> {
        let rest = address.split_once("://").map_or("", |(_, rest)| rest);
        match address.rsplit_once('/') {
            Some((store, name)) if rest.contains('/') && !name.is_empty() => Ok((store, name)),
            _ => Err(RemoteError::Address { what: format!("`{address}` names no baseline in an object store") }.into()),
        }
    }

    /// A folder with the pointers of `names` (of all where none is named), with their contents where `has_contents`.
    pub(crate) fn mirror(address: &str, names: &[String], has_contents: bool) -> Result<(TempDir, Store), Failure> {
        let folder = temporary()?;
        let store = Store::new(folder.path());
        Remote::open(address)?.fetch(&store, names, has_contents)?;
        Ok((folder, store))
    }

    /// Accepts into the object store.
    pub(crate) fn accept(address: &str, asked: &Acceptance<'_>) -> Result<(Pointer, Change), Failure> {
        Remote::open(address)?.accept(asked)
    }

    fn temporary() -> Result<TempDir, RemoteError> {
        let failed = |source| RemoteError::Local { path: std::env::temp_dir().display().to_string(), source };
        tempfile::tempdir().map_err(failed)
    }

    impl Remote {
        fn open(address: &str) -> Result<Self, RemoteError> {
            let refuse = |what: String| RemoteError::Address { what };
            let (scheme, rest) = address.split_once("://").unwrap_or_default();
            // Before the first slash stands the bucket; a key before an `@` would end up in logs.
            let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
            if bucket.contains('@') || rest.contains(['?', '#']) {
                return Err(refuse("an address of an object store holds no keys and no options".into()));
            }
            let failed = |source| RemoteError::Store { path: format!("{scheme}://{bucket}"), source };
            let objects: Box<dyn ObjectStore> = match (scheme, bucket) {
                ("s3", bucket) if !bucket.is_empty() => {
                    // Without a provider of its own the client takes the one of the process.
                    drop(rustls::crypto::ring::default_provider().install_default());
                    Box::new(AmazonS3Builder::from_env().with_bucket_name(bucket).build().map_err(failed)?)
                }
                ("file", "") => {
                    let folder = LocalPath::new("/").join(prefix);
                    let local = |source| RemoteError::Local { path: folder.display().to_string(), source };
                    fs::create_dir_all(&folder).map_err(local)?;
                    return Self::with(Box::new(LocalFileSystem::new_with_prefix(&folder).map_err(failed)?), "");
                }
                _ => return Err(refuse(format!("`{scheme}://{bucket}` is no object store that is known"))),
            };
            Self::with(objects, prefix)
        }

        fn with(objects: Box<dyn ObjectStore>, prefix: &str) -> Result<Self, RemoteError> {
            let failed = |source: object_store::path::Error| RemoteError::Address { what: source.to_string() };
            let prefix = Path::parse(prefix.trim_end_matches('/')).map_err(failed)?;
            let failed = |source| RemoteError::Local { path: "threads".into(), source };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
            Ok(Self { objects, prefix, runtime })
        }

        fn at(&self, file: &str) -> Path {
            Path::from_iter(self.prefix.parts().chain(Path::from(file).parts()))
        }

        fn accept(&self, asked: &Acceptance<'_>) -> Result<(Pointer, Change), Failure> {
            let folder = temporary()?;
            let store = Store::new(folder.path());
            // What stands under the name now becomes its history.
            let name = store.name_of(asked)?;
            self.fetch_pointer(&store, &name)?;
            let (pointer, change) = store.accept(asked)?;
            if change != Change::Same {
                self.send(&store, &pointer)?;
            }
            Ok((pointer, change))
        }

        /// The content, its sums last, then the pointer.
        fn send(&self, store: &Store, pointer: &Pointer) -> Result<(), RemoteError> {
            let contents = content_files(pointer.has_control).into_iter();
            let files = contents.map(|file| format!("{}/{file}", pointer.short_hash()));
            for file in files.chain([format!("{}/{POINTER_FILE}", pointer.name)]) {
                let path = store.dir().join(&file);
                let local = |source| RemoteError::Local { path: path.display().to_string(), source };
                let bytes = fs::read(&path).map_err(local)?;
                let failed = |source| RemoteError::Store { path: file.clone(), source };
                self.runtime.block_on(self.objects.put(&self.at(&file), bytes.into())).map_err(failed)?;
            }
            Ok(())
        }

        fn fetch(&self, store: &Store, names: &[String], has_contents: bool) -> Result<(), Failure> {
            let all = if names.is_empty() { self.names()? } else { names.to_vec() };
            for name in all {
                if self.fetch_pointer(store, &name)? && has_contents {
                    // A damaged pointer is told by whoever reads it.
                    if let Ok(pointer) = store.pointer(&name) {
                        self.fetch_content(store, &pointer)?;
                    }
                }
            }
            Ok(())
        }

        fn fetch_content(&self, store: &Store, pointer: &Pointer) -> Result<(), RemoteError> {
            for file in content_files(pointer.has_control) {
                self.get(&format!("{}/{file}", pointer.short_hash()), store, MAX_OBJECT_BYTES)?;
            }
            Ok(())
        }

        fn fetch_pointer(&self, store: &Store, name: &str) -> Result<bool, Failure> {
            // Refuses a name that would lead out of the folder.
            store.check_name(name)?;
            Ok(self.get(&format!("{name}/{POINTER_FILE}"), store, MAX_POINTER_BYTES)?)
        }

        /// Fetches one object to its place; `false` where there is none.
        fn get(&self, file: &str, store: &Store, limit: u64) -> Result<bool, RemoteError> {
            let failed = |source| RemoteError::Store { path: file.into(), source };
            let found = match self.runtime.block_on(self.objects.get(&self.at(file))) {
                Err(object_store::Error::NotFound { .. }) => return Ok(false),
                found => found.map_err(failed)?,
            };
            let bytes = found.meta.size;
            if bytes > limit {
                return Err(RemoteError::TooLarge { path: file.into(), bytes, limit });
            }
            let bytes = self.runtime.block_on(found.bytes()).map_err(failed)?;
            let path = store.dir().join(file);
            let local = |source| RemoteError::Local { path: path.display().to_string(), source };
            path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&path, &bytes)).map_err(local)?;
            Ok(true)
        }

        /// Folders under the prefix that hold a pointer.
        fn names(&self) -> Result<Vec<String>, RemoteError> {
            let failed = |source| RemoteError::Store { path: self.prefix.to_string(), source };
            let listed = self.runtime.block_on(self.objects.list_with_delimiter(Some(&self.prefix))).map_err(failed)?;
            let folders = listed.common_prefixes.iter().filter_map(|path| path.filename().map(str::to_owned));
            let is_content = |name: &String| name.len() == 16 && name.chars().all(|c| c.is_ascii_hexdigit());
            Ok(folders.filter(|name| !is_content(name) && !name.starts_with('.')).take(MAX_NAMES).collect())
        }
    }

    #[cfg(test)]
    mod tests {
        use std::collections::BTreeMap;
        use std::sync::Arc;

        use kvgauge::baseline::BaselineError;
        use kvgauge::runner::{ArmRun, identity, run_arm};
        use kvgauge::sample::Bin;
        use kvgauge::setup::Arm;
        use kvgauge::suite::Suite;
        use kvgauge::targets::CancelFlag;
        use kvgauge::targets::scripted::Scripted;
        use kvgauge::tokenizer::WordTokenizer;
        use object_store::memory::InMemory;

        use super::*;

        fn run(dir: &LocalPath, seed: u64) {
            let suite = Suite::builtin("smoke").unwrap().select(Some(&[Bin(512)]), None, None, Some(seed)).unwrap();
            let (plan, arm) = (suite.plan(), Arm::baseline("bfloat16"));
            let target = Scripted::new(&arm, &[], Arc::new(WordTokenizer));
            let manifest = identity::manifest(&suite, &plan, &arm, &target, BTreeMap::new());
            let run = ArmRun { suite: &suite, plan: &plan, manifest, dir };
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(run_arm(run, &target, &|_| (), &Arc::new(CancelFlag::default()))).unwrap();
        }

        fn asked(run: &LocalPath, name: &'static str) -> Acceptance<'static> {
            let accepted_at = "2026-11-30T20:01:22Z".into();
            Acceptance { run: run.into(), name: Some(name), accepted_at, ..Acceptance::default() }
        }

        #[test]
        fn what_is_sent_comes_back_and_damage_on_the_way_is_found() {
            let here = tempfile::tempdir().unwrap();
            let remote = Remote::with(Box::new(InMemory::new()), "some/prefix").unwrap();
            let [first, second] = [1, 2].map(|seed| {
                let dir = here.path().join(seed.to_string());
                run(&dir, seed);
                dir
            });
            let (pointer, change) = remote.accept(&asked(&first, "nightly")).unwrap();
            assert_eq!(change, Change::New);
            assert_eq!(remote.accept(&asked(&first, "nightly")).unwrap().1, Change::Same);
            let (moved, change) = remote.accept(&asked(&second, "nightly")).unwrap();
            assert_eq!(change, Change::Moved { from: pointer.hash.clone() });
            remote.accept(&asked(&first, "other")).unwrap();
            assert_eq!(remote.names().unwrap(), ["nightly", "other"]);
            let fetch = || {
                let folder = temporary().unwrap();
                let store = Store::new(folder.path());
                remote.fetch(&store, &[], true).unwrap();
                (folder, store)
            };
            let (_folder, store) = fetch();
            assert_eq!(store.load("nightly").unwrap().pointer, moved);
            assert!(store.verify(&[]).unwrap().iter().all(|it| it.damages.is_empty()));
            let journal = remote.at(&format!("{}/baseline/samples.jsonl", moved.short_hash()));
            let mut bytes = remote
                .runtime
                .block_on(async { remote.objects.get(&journal).await.unwrap().bytes().await.unwrap() })
                .to_vec();
            bytes[100] ^= 1;
            remote.runtime.block_on(remote.objects.put(&journal, bytes.into())).unwrap();
            let (_folder, store) = fetch();
            assert!(matches!(store.load("nightly"), Err(BaselineError::Damaged { .. })));
            assert!(store.load("other").is_ok());
            // An upload that was cut off before the pointer changes no name.
            remote.runtime.block_on(remote.objects.delete(&remote.at("other/baseline.json"))).unwrap();
            let (_folder, store) = fetch();
            assert!(matches!(store.load("other"), Err(BaselineError::Unknown { .. })));
            assert!(matches!(remote.get("nightly/baseline.json", &store, 10), Err(RemoteError::TooLarge { .. })));
        }

        #[test]
        fn addresses_hold_no_keys_and_names_lead_nowhere_else() {
            for address in ["s3://key:secret@bucket/x", "s3://bucket/x?key=secret", "s3:///x", "ftp://x/y", "gopher"] {
                let Err(error) = Remote::open(address) else { panic!("{address}") };
                assert!(
                    matches!(error, RemoteError::Address { .. }) && !error.to_string().contains("secret"),
                    "{error}"
                );
            }
            // Nothing is asked yet; without a provider of TLS the client could not even be made.
            assert!(Remote::open("s3://bucket/some/prefix").is_ok());
            assert_eq!(split_name("s3://bucket/a/nightly").unwrap(), ("s3://bucket/a", "nightly"));
            assert_eq!(split_name("s3://bucket/nightly").unwrap(), ("s3://bucket", "nightly"));
            assert!(split_name("s3://bucket").is_err() && split_name("s3://bucket/a/").is_err());
            let remote = Remote::with(Box::new(InMemory::new()), "").unwrap();
            let folder = temporary().unwrap();
            for name in ["..", "../x", "a/b"] {
                assert!(remote.fetch(&Store::new(folder.path()), &[name.into()], false).is_err(), "{name}");
            }
        }
    }
}
