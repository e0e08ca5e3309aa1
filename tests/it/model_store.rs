//! The model store from outside: names and paths, and downloads from a hub that runs inside the test.

#![expect(clippy::unwrap_used, reason = "helpers of tests, too, may fail loudly")]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use kvgauge::hint::Hint;
use kvgauge::model_store::{DEFAULT_MODEL, ModelKind, StoreError, StoreEvent, StoreOptions, resolve};
use tempfile::TempDir;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const TOKEN: &str = "hf_verysecret";
/// SHA-256 of `weights`.
const WEIGHTS_SHA256: &str = "9a129038d9a00aed0cf6a7ea059ca50a813449061ab87848cf1a13eafdf33b2c";

/// What a request gets.
#[derive(Clone)]
struct Answer {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    /// Announce more than is sent.
    cut: bool,
}

impl Answer {
    fn ok(body: &str) -> Self {
        let headers = vec![("X-Repo-Commit", COMMIT.to_owned())];
        Self { status: 200, headers, body: body.into(), cut: false }
    }

    fn status(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: b"no".to_vec(), cut: false }
    }

    fn redirect(to: String) -> Self {
        Self { status: 302, headers: vec![("Location", to)], body: Vec::new(), cut: false }
    }
}

/// A request as the hub saw it: path, and whether the token came along.
type Seen = Arc<Mutex<Vec<(String, bool)>>>;

/// A hub on this machine. Its thread ends with the process.
struct Hub {
    address: SocketAddr,
    seen: Seen,
}

impl Hub {
    fn start(answers: impl IntoIterator<Item = (String, Answer)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let answers: BTreeMap<String, Answer> = answers.into_iter().collect();
        let seen = Seen::default();
        let log = Arc::clone(&seen);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (answers, log) = (answers.clone(), Arc::clone(&log));
                thread::spawn(move || serve(stream, &answers, &log));
            }
        });
        Self { address, seen }
    }

    fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    fn paths(&self) -> Vec<String> {
        self.seen.lock().unwrap().iter().map(|(path, _)| path.clone()).collect()
    }
}

fn serve(mut stream: TcpStream, answers: &BTreeMap<String, Answer>, log: &Mutex<Vec<(String, bool)>>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 || line.trim().is_empty() {
            break;
        }
        lines.push(line);
    }
    let Some(path) = lines.first().and_then(|line| line.split(' ').nth(1)) else { return };
    let with_token = lines.iter().any(|line| line.contains(TOKEN));
    log.lock().unwrap().push((path.to_owned(), with_token));
    let answer = answers.get(path).cloned().unwrap_or_else(|| Answer::status(404));
    let length = answer.body.len() + if answer.cut { 10 } else { 0 };
    let mut head = format!("HTTP/1.1 {} X\r\nContent-Length: {length}\r\nConnection: close\r\n", answer.status);
    for (name, value) in &answer.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    let _ = stream.write_all(format!("{head}\r\n").as_bytes());
    let _ = stream.write_all(&answer.body);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let _ = stream.read(&mut [0; 16]);
}

fn on_main(file: &str) -> String {
    format!("/org/name/resolve/main/{file}")
}

fn on_commit(file: &str) -> String {
    format!("/org/name/resolve/{COMMIT}/{file}")
}

/// A repository with one file of weights.
fn small_repo() -> Vec<(String, Answer)> {
    vec![
        (on_main("config.json"), Answer::ok("{\"a\": 1}")),
        (on_commit("tokenizer.json"), Answer::ok("{}")),
        (on_commit("chat_template.jinja"), Answer::ok("{{ x }}")),
        (on_commit("model.safetensors"), Answer::ok("weights")),
    ]
}

fn options(dir: &TempDir, hub: &Hub) -> StoreOptions {
    StoreOptions {
        cache_dir: Some(dir.path().join("cache")),
        hf_token: Some(TOKEN.into()),
        hf_endpoint: Some(hub.endpoint()),
        ..StoreOptions::default()
    }
}

fn fetch_error(answers: Vec<(String, Answer)>) -> StoreError {
    let dir = tempfile::tempdir().unwrap();
    let hub = Hub::start(answers);
    let error = resolve("org/name", &options(&dir, &hub), &|_| ()).unwrap_err();
    assert!(!error.hints().is_empty());
    let told = format!("{error} {error:?} {:?}", error.hints());
    assert!(!told.contains(TOKEN) && !told.contains("127.0.0.1"), "{told}");
    let left_over: Vec<_> = fs::read_dir(dir.path().join("cache/models")).unwrap().flatten().collect();
    assert_eq!(left_over.len(), 1, "only the lock is left: {left_over:?}");
    error
}

#[test]
fn local_models_are_used_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let none = StoreOptions::default();
    let file = dir.path().join("My.Model.Q4.gguf");
    fs::write(&file, "GGUF and more").unwrap();
    let model = resolve(file.to_str().unwrap(), &none, &|_| ()).unwrap();
    assert_eq!(
        (model.name.as_str(), model.kind, model.path.as_path()),
        ("My.Model.Q4", ModelKind::Gguf, file.as_path())
    );

    let folder = dir.path().join("folder");
    fs::create_dir(&folder).unwrap();
    let spec = folder.to_str().unwrap();
    assert!(matches!(resolve(spec, &none, &|_| ()), Err(StoreError::NotAModel { .. })));
    fs::write(folder.join("config.json"), "{}").unwrap();
    let model = resolve(spec, &none, &|_| ()).unwrap();
    assert_eq!((model.name.as_str(), model.kind), ("folder", ModelKind::HfFolder));

    fs::write(&file, "PK\x03\x04").unwrap();
    assert!(matches!(resolve(file.to_str().unwrap(), &none, &|_| ()), Err(StoreError::NotAModel { .. })));
}

#[test]
fn absurd_names_are_refused_before_anything_is_touched() {
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions { cache_dir: Some(dir.path().join("cache")), ..StoreOptions::default() };
    for spec in ["../x", "./no/model.gguf", "/no/such/model", "~/x", "C:\\x", "model.gguf"] {
        assert!(matches!(resolve(spec, &options, &|_| ()), Err(StoreError::NoSuchPath { .. })), "{spec}");
    }
    for spec in ["org/../name", "org/name/more", "org/", "org/na me", "org/-x", "org/name@", "org/name@../../x"] {
        let error = resolve(spec, &options, &|_| ()).unwrap_err();
        assert!(matches!(error, StoreError::BadName { .. }), "{spec}: {error}");
        assert!(!error.hints().is_empty());
    }
    let error = resolve("smollm2-153m", &options, &|_| ()).unwrap_err();
    assert!(matches!(error, StoreError::UnknownModel { .. }));
    assert!(error.hints()[0].contains("did you mean `smollm2-135m`?"));
    assert!(matches!(resolve("", &options, &|_| ()), Err(StoreError::UnknownModel { .. })));
    assert!(!dir.path().join("cache").exists());
}

#[test]
fn offline_says_which_file_goes_where() {
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions { cache_dir: Some(dir.path().into()), offline: true, ..StoreOptions::default() };
    let file = dir.path().join("models/SmolLM2-135M-Instruct.Q4_1.gguf");
    let error = resolve(DEFAULT_MODEL, &options, &|_| ()).unwrap_err();
    assert!(matches!(&error, StoreError::Offline { place, .. } if *place == file));
    assert!(error.hints().iter().any(|hint| hint.contains(file.to_str().unwrap())));
    let error = resolve("org/name", &options, &|_| ()).unwrap_err();
    assert!(matches!(&error, StoreError::Offline { place, .. } if place.ends_with("models/org--name")));

    fs::create_dir_all(dir.path().join("models")).unwrap();
    fs::write(&file, "GGUF cut short").unwrap();
    let error = resolve(DEFAULT_MODEL, &options, &|_| ()).unwrap_err();
    assert!(matches!(error, StoreError::WrongSize { expected: 98_362_432, got: 14, .. }));
    fs::File::options().write(true).open(&file).unwrap().set_len(98_362_432).unwrap();
    let error = resolve(DEFAULT_MODEL, &options, &|_| ()).unwrap_err();
    assert!(matches!(&error, StoreError::WrongHash { expected, .. } if expected.starts_with("b179c952")), "{error}");
    assert!(error.hints()[0].contains("delete"));
}

#[test]
fn a_hub_model_is_fetched_at_one_commit_and_then_read_from_the_cache() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Hub::start(small_repo());
    let mut options = options(&dir, &hub);
    let events = RefCell::new(Vec::new());
    let model = resolve("org/name", &options, &|event| events.borrow_mut().push(event)).unwrap();
    assert_eq!((model.name.as_str(), model.kind), ("org/name", ModelKind::HfFolder));
    assert_eq!(fs::read(model.path.join("model.safetensors")).unwrap(), b"weights");
    assert_eq!(fs::read(model.path.join("chat_template.jinja")).unwrap(), b"{{ x }}");
    let paths = hub.paths();
    assert!(paths[1..].iter().all(|path| path.contains(COMMIT)), "{paths:?}");
    assert!(hub.seen.lock().unwrap().iter().all(|(_, with_token)| *with_token));
    assert_eq!(events.borrow().last(), Some(&StoreEvent::Stored { path: model.path.clone() }));
    let manifest = fs::read_to_string(model.path.join("kvgauge-files.json")).unwrap();
    assert!(manifest.contains(COMMIT) && !manifest.contains(TOKEN));

    options.offline = true;
    events.borrow_mut().clear();
    assert_eq!(resolve("org/name", &options, &|event| events.borrow_mut().push(event)).unwrap(), model);
    assert_eq!(hub.paths().len(), paths.len(), "nothing is asked for again");
    assert!(events.borrow().is_empty(), "nothing is hashed again: {events:?}");

    fs::write(model.path.join("config.json"), "{\"a\": 2, \"b\": 3}").unwrap();
    assert!(matches!(resolve("org/name", &options, &|_| ()), Err(StoreError::WrongSize { .. })));
}

#[test]
fn the_token_goes_to_the_hub_and_not_to_its_storage() {
    let storage = Hub::start([("/blob?signature=s3cret".to_owned(), Answer::ok("weights"))]);
    let mut repo = small_repo();
    let to_storage = Answer::redirect(format!("{}/blob?signature=s3cret", storage.endpoint()));
    let relative = Answer::redirect("/moved/config.json".into());
    repo.retain(|(path, _)| !path.ends_with("model.safetensors") && !path.ends_with("config.json"));
    repo.push((on_main("config.json"), relative));
    repo.push(("/moved/config.json".into(), Answer::ok("{}")));
    repo.push((on_commit("model.safetensors"), to_storage));
    let dir = tempfile::tempdir().unwrap();
    let hub = Hub::start(repo);
    resolve("org/name", &options(&dir, &hub), &|_| ()).unwrap();
    assert_eq!(*storage.seen.lock().unwrap(), [("/blob?signature=s3cret".to_owned(), false)]);
    assert!(hub.seen.lock().unwrap().contains(&("/moved/config.json".to_owned(), true)));
}

#[test]
fn sharded_weights_come_by_their_index() {
    let index = r#"{"weight_map": {"x": "model-00001-of-00002.safetensors", "y": "model-00002-of-00002.safetensors"}}"#;
    let mut repo = small_repo();
    repo.retain(|(path, _)| !path.ends_with("model.safetensors"));
    repo.push((on_commit("model.safetensors.index.json"), Answer::ok(index)));
    repo.push((on_commit("model-00001-of-00002.safetensors"), Answer::ok("1")));
    let mut incomplete = repo.clone();
    repo.push((on_commit("model-00002-of-00002.safetensors"), Answer::ok("2")));
    let dir = tempfile::tempdir().unwrap();
    let model = resolve("org/name", &options(&dir, &Hub::start(repo)), &|_| ()).unwrap();
    assert_eq!(fs::read(model.path.join("model-00002-of-00002.safetensors")).unwrap(), b"2");

    let error = fetch_error(incomplete.clone());
    assert!(matches!(&error, StoreError::NotOnHub { file, .. } if file == "model-00002-of-00002.safetensors"));
    let escaping = r#"{"weight_map": {"x": "../../evil.safetensors"}}"#;
    incomplete.push((on_commit("model.safetensors.index.json"), Answer::ok(escaping)));
    assert!(matches!(fetch_error(incomplete), StoreError::Malformed { .. }));
}

#[test]
fn every_failure_of_the_hub_has_its_own_error() {
    let with = |file: String, answer: Answer| {
        let mut repo = small_repo();
        repo.retain(|(path, _)| *path != file);
        repo.push((file, answer));
        fetch_error(repo)
    };
    assert!(matches!(fetch_error(Vec::new()), StoreError::NotOnHub { file, .. } if file == "config.json"));
    let denied = with(on_main("config.json"), Answer::status(401));
    assert!(matches!(denied, StoreError::Denied { status: 401, with_token: true, .. }));
    let broken = with(on_commit("tokenizer.json"), Answer::status(503));
    assert!(matches!(&broken, StoreError::HubStatus { status: 503, file, .. } if file == "tokenizer.json"));
    let cut = Answer { cut: true, ..Answer::ok("weig") };
    assert!(matches!(with(on_commit("model.safetensors"), cut), StoreError::Transfer { .. }));
    let mut wrong = Answer::ok("weights");
    wrong.headers.push(("X-Linked-Etag", format!("\"{}\"", "0".repeat(64))));
    assert!(matches!(with(on_commit("model.safetensors"), wrong), StoreError::WrongHash { .. }));
    let away = Answer::redirect("ftp://example.org/x".into());
    assert!(matches!(with(on_commit("tokenizer.json"), away), StoreError::Transfer { .. }));
    let circle = Answer::redirect(on_commit("tokenizer.json"));
    assert!(matches!(with(on_commit("tokenizer.json"), circle), StoreError::Transfer { .. }));
    let huge = Answer::ok(&"x".repeat((8 << 20) + 1));
    assert!(matches!(with(on_main("config.json"), huge), StoreError::TooLarge { .. }));
    let no_weights = small_repo().into_iter().filter(|(path, _)| !path.ends_with("model.safetensors")).collect();
    assert!(matches!(fetch_error(no_weights), StoreError::NotOnHub { file, .. } if file == "model.safetensors"));
}

#[test]
fn a_hash_that_the_hub_tells_is_checked() {
    let mut weights = Answer::ok("weights");
    weights.headers.push(("X-Linked-Etag", format!("\"{WEIGHTS_SHA256}\"")));
    let mut repo = small_repo();
    repo.retain(|(path, _)| !path.ends_with("model.safetensors"));
    repo.push((on_commit("model.safetensors"), weights));
    let dir = tempfile::tempdir().unwrap();
    let model = resolve("org/name", &options(&dir, &Hub::start(repo)), &|_| ()).unwrap();
    assert!(fs::read_to_string(model.path.join("kvgauge-files.json")).unwrap().contains(WEIGHTS_SHA256));
}

#[test]
fn addresses_and_tokens_that_cannot_be_used_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let with_endpoint = |endpoint: &str| StoreOptions {
        cache_dir: Some(dir.path().into()),
        hf_endpoint: Some(endpoint.into()),
        ..StoreOptions::default()
    };
    for endpoint in ["http://hub.example", "ftp://127.0.0.1", "not an address", "http://u:pw@hub.example"] {
        let error = resolve("org/name", &with_endpoint(endpoint), &|_| ()).unwrap_err();
        assert!(matches!(error, StoreError::BadEndpoint { .. }), "{endpoint}: {error}");
        assert!(!error.to_string().contains("pw"));
    }
    let bad_token = StoreOptions { hf_token: Some("a\nb".into()), ..with_endpoint("http://127.0.0.1:9") };
    assert!(matches!(resolve("org/name", &bad_token, &|_| ()), Err(StoreError::BadToken)));
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = resolve("org/name", &with_endpoint(&format!("http://{nobody}")), &|_| ()).unwrap_err();
    assert!(matches!(error, StoreError::Transfer { .. }), "{error}");
}

fn write_snapshot(dir: &Path) {
    fs::create_dir_all(dir).unwrap();
    for name in ["config.json", "tokenizer.json", "model.safetensors"] {
        fs::write(dir.join(name), "{}").unwrap();
    }
}

#[test]
fn an_existing_hugging_face_cache_is_used() {
    let dir = tempfile::tempdir().unwrap();
    let repo = dir.path().join("hf/hub/models--org--name");
    let options = StoreOptions {
        cache_dir: Some(dir.path().join("cache")),
        hf_home: Some(dir.path().join("hf")),
        offline: true,
        ..StoreOptions::default()
    };
    write_snapshot(&repo.join("snapshots/aaaa"));
    write_snapshot(&repo.join("snapshots/bbbb"));
    let find = |spec: &str| resolve(spec, &options, &|_| ());
    assert_eq!(find("org/name").unwrap().path, repo.join("snapshots/aaaa"));
    fs::create_dir_all(repo.join("refs")).unwrap();
    fs::write(repo.join("refs/main"), "bbbb").unwrap();
    assert_eq!(find("org/name").unwrap().path, repo.join("snapshots/bbbb"));
    assert_eq!(find("org/name@aaaa").unwrap().path, repo.join("snapshots/aaaa"));
    assert!(matches!(find("org/name@cccc"), Err(StoreError::Offline { .. })));
    fs::write(repo.join("refs/main"), "../../../elsewhere").unwrap();
    assert_eq!(find("org/name").unwrap().path, repo.join("snapshots/aaaa"));
    fs::remove_file(repo.join("snapshots/aaaa/model.safetensors")).unwrap();
    assert_eq!(find("org/name").unwrap().path, repo.join("snapshots/bbbb"), "an incomplete snapshot is passed over");
}

#[test]
fn a_folder_put_into_the_cache_by_hand_is_used_if_it_is_complete() {
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions { cache_dir: Some(dir.path().into()), offline: true, ..StoreOptions::default() };
    let place = dir.path().join("models/org--name");
    fs::create_dir_all(&place).unwrap();
    assert!(matches!(resolve("org/name", &options, &|_| ()), Err(StoreError::NotAModel { .. })));
    write_snapshot(&place);
    assert_eq!(resolve("org/name", &options, &|_| ()).unwrap().path, place);
}
