//! The page in a real browser: silent console, no request, hostile text inert, both colour schemes, print, 400 % zoom.
//!
//! Skipped with a note where there is no Chromium, unless `KVGAUGE_REQUIRE_CHROMIUM` is set.

#![expect(clippy::print_stderr, reason = "a skipped test says so")]

use std::io::Read as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use kvgauge::report::{ReportInput, render_html};
use tempfile::TempDir;

use super::fixture::fixture;
use super::hostile::HOSTILE;
use super::{ELEMENTS, history, html, many, tags};

/// Set where a machine without Chromium must not pass: in continuous integration.
const REQUIRED: &str = "KVGAUGE_REQUIRE_CHROMIUM";

/// A page takes a second or two; a browser that hangs shall not hang the tests.
const TIME_LIMIT: Duration = Duration::from_secs(120);

struct Browser {
    program: PathBuf,
    folder: TempDir,
}

/// What a page did.
struct Opened {
    /// The document after everything was loaded.
    dom: String,
    /// Lines of the console.
    console: Vec<String>,
}

impl Browser {
    fn find() -> Option<Self> {
        let folders = std::env::var_os("PATH").unwrap_or_default();
        let names = ["chromium", "chromium-browser", "google-chrome"];
        let mut places = std::env::split_paths(&folders).flat_map(|folder| names.map(|name| folder.join(name)));
        let Some(program) = places.find(|path| path.is_file()) else {
            assert!(std::env::var_os(REQUIRED).is_none(), "{REQUIRED} is set and there is no Chromium");
            eprintln!("no Chromium: the page was not opened");
            return None;
        };
        Some(Self { program, folder: tempfile::tempdir().unwrap() })
    }

    fn write(&self, name: &str, page: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, page).unwrap();
        path
    }

    fn run(&self, page: &Path, args: &[&str]) -> std::process::Output {
        let profile = tempfile::tempdir_in(self.folder.path()).unwrap();
        let mut command = Command::new(&self.program);
        command
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
            .args(["--hide-scrollbars", "--enable-logging=stderr", "--v=0"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .args(args)
            .arg(format!("file://{}", page.display()));
        let output = assert_cmd::Command::from_std(command).timeout(TIME_LIMIT).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output
    }

    fn open(&self, page: &str, args: &[&str]) -> Opened {
        let path = self.write("page.html", page);
        let output = self.run(&path, &[args, &["--dump-dom"]].concat());
        let log = String::from_utf8_lossy(&output.stderr);
        let console = log.lines().filter(|line| line.contains("CONSOLE") || line.contains("Content Security Policy"));
        Opened {
            console: console.map(str::to_owned).collect(),
            dom: String::from_utf8_lossy(&output.stdout).into_owned(),
        }
    }

    /// The value of a script's expression on the page. The policy forbids scripts, so the page is opened without it: the layout is
    /// the same.
    fn measure(&self, page: &str, expression: &str, args: &[&str]) -> String {
        let start = page.find("<meta http-equiv=").expect("the page has a policy");
        let end = start + page[start..].find('>').expect("tags are closed") + 1;
        let script = format!(
            "<script>addEventListener('load', () => {{ document.title = 'MEASURED ' + ({expression}) }})</script>"
        );
        let opened = self.open(&format!("{}{script}{}", &page[..start], &page[end..]), args);
        let (_, rest) =
            opened.dom.split_once("<title>MEASURED ").unwrap_or_else(|| panic!("not measured: {:?}", opened.console));
        rest.split_once("</title>").unwrap().0.to_owned()
    }
}

/// A server on the loopback that counts who comes.
struct Marker {
    port: u16,
    visits: Arc<Mutex<Vec<String>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Marker {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        listener.set_nonblocking(true).unwrap();
        let (visits, stop) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (counted, stopped) = (Arc::clone(&visits), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((mut stream, _)) => {
                        stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
                        let mut request = [0; 512];
                        let read = stream.read(&mut request).unwrap_or(0);
                        let line =
                            String::from_utf8_lossy(&request[..read]).lines().next().unwrap_or("nothing").to_owned();
                        counted.lock().unwrap().push(line);
                    }
                    Err(_) => std::thread::sleep(Duration::from_millis(5)),
                }
            }
        });
        Self { port, visits, stop, thread: Some(thread) }
    }

    /// First line of every request.
    fn visits(&self) -> Vec<String> {
        self.visits.lock().unwrap().clone()
    }

    /// Every way a page fetches something by itself.
    fn bait(&self) -> String {
        let at = format!("http://127.0.0.1:{}", self.port);
        format!(
            "<img src=\"{at}/img\"><link rel=stylesheet href=\"{at}/css\"><link rel=prefetch href=\"{at}/p\"><script src=\"{at}/js\"></script>\
             <iframe src=\"{at}/frame\"></iframe><object data=\"{at}/object\"></object><embed src=\"{at}/embed\">\
             <video src=\"{at}/video\" autoplay></video><style>body{{background:url({at}/bg)}}@import \"{at}/import\";</style>\
             <svg><image href=\"{at}/svg\"/><use href=\"{at}/use#x\"/></svg><meta http-equiv=refresh content=\"0;url={at}/refresh\">\
             ![x]({at}/markdown) <form action=\"{at}/form\"><input autofocus onfocus=\"fetch('{at}/fetch')\"></form>"
        )
    }
}

impl Drop for Marker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        drop(self.thread.take().map(JoinHandle::join));
    }
}

/// The page with the hostile corpus and the bait in every example.
fn hostile_page(marker: &Marker) -> String {
    let mut fixture = fixture(1.0);
    let mut texts: Vec<String> = HOSTILE.iter().map(|(_, text)| (*text).to_owned()).collect();
    texts.push(marker.bait());
    for (arm, judged) in fixture.comparison.candidates.iter_mut().zip(&mut fixture.verdict.arms) {
        for (index, flip) in arm.flips.iter_mut().enumerate() {
            let text = &texts[index % texts.len()];
            for field in
                [&mut flip.candidate_text, &mut flip.excerpt, &mut flip.expected, &mut flip.cause, &mut flip.notes[0]]
            {
                field.clone_from(text);
            }
        }
        judged.sentence = marker.bait();
    }
    fixture.verdict.sentence = marker.bait();
    let title = marker.bait();
    render_html(&ReportInput { title: &title, ..fixture.input() }).unwrap()
}

#[test]
fn the_console_stays_silent_and_the_elements_are_ours() {
    let Some(browser) = Browser::find() else { return };
    let nights = history::nights(8);
    for page in [html(), history::page_of(nights.path(), &fixture(1.0)), many::page()] {
        let opened = browser.open(&page, &[]);
        assert_eq!(opened.console, Vec::<String>::new());
        for (name, _) in tags(&opened.dom) {
            assert!(ELEMENTS.contains(&name.as_str()), "element {name} after parsing");
        }
        assert!(opened.dom.contains("REGRESSED"));
    }
}

#[test]
fn hostile_text_fetches_nothing_and_runs_nothing() {
    let Some(browser) = Browser::find() else { return };
    let marker = Marker::start();
    let page = hostile_page(&marker);
    let opened = browser.open(&page, &["--virtual-time-budget=3000"]);
    assert_eq!(opened.console, Vec::<String>::new());
    for (name, _) in tags(&opened.dom) {
        assert!(ELEMENTS.contains(&name.as_str()), "element {name} after parsing");
    }
    assert!(!opened.dom.contains("<title>owned"));
    assert_eq!(marker.visits(), Vec::<String>::new(), "the page fetched something");

    // The policy alone would hold, too: the bait as markup under the page's own policy.
    let start = page.find("<meta http-equiv=").unwrap();
    let policy = &page[start..start + page[start..].find('>').unwrap() + 1];
    let bait = marker.bait().replace("<meta http-equiv=refresh", "<meta name=none");
    let under_policy = |policy: &str| format!("<!DOCTYPE html><head>{policy}</head><body>{bait}</body>");
    let held = browser.open(&under_policy(policy), &["--virtual-time-budget=3000"]);
    assert!(!held.console.is_empty(), "the policy has to have refused something");
    // The browser may open a connection ahead of a request that the policy then forbids: what counts is that none is made.
    let asked: Vec<String> = marker.visits().into_iter().filter(|line| line != "nothing").collect();
    assert_eq!(asked, Vec::<String>::new(), "the policy let something through");
    // And without it the bait is taken, so the marker can be trusted.
    browser.open(&under_policy(""), &["--virtual-time-budget=3000"]);
    let asked = marker.visits().into_iter().filter(|line| line.starts_with("GET ")).count();
    assert!(asked >= 4, "{:?}", marker.visits());
}

#[test]
fn light_and_dark_are_two_pictures_of_one_page() {
    let Some(browser) = Browser::find() else { return };
    let page = browser.write("report.html", &html());
    let ground = "getComputedStyle(document.body).backgroundColor";
    let mut seen = Vec::new();
    for (scheme, setting) in [("light", "preferredColorScheme=1"), ("dark", "preferredColorScheme=0")] {
        let setting = format!("--blink-settings={setting}");
        let picture = browser.folder.path().join(format!("{scheme}.png"));
        browser.run(&page, &[&setting, "--window-size=1200,2400", &format!("--screenshot={}", picture.display())]);
        let bytes = std::fs::read(picture).unwrap();
        assert!(bytes.starts_with(b"\x89PNG") && bytes.len() > 50_000, "{scheme}: {} bytes", bytes.len());
        seen.push((browser.measure(&html(), ground, &[&setting]), bytes));
    }
    assert_eq!((seen[0].0.as_str(), seen[1].0.as_str()), ("rgb(245, 246, 248)", "rgb(18, 21, 26)"));
    assert!(seen[0].1 != seen[1].1);
}

#[test]
fn nothing_but_tables_scrolls_sideways_on_a_narrow_screen_at_400_percent() {
    let Some(browser) = Browser::find() else { return };
    let nights = history::nights(8);
    // 1280 device pixels at 400 % are 320 of CSS, the width at which text has to reflow.
    let zoomed = ["--window-size=320,900", "--force-device-scale-factor=4"];
    let wide = ["--window-size=1280,900"];
    for page in [html(), history::page_of(nights.path(), &fixture(1.0)), many::page()] {
        for args in [&zoomed[..], &wide] {
            // A frame of its own width: a window may refuse to be as narrow as that.
            let width = args[0].split(['=', ',']).nth(1).unwrap();
            let expression = format!(
                "(() => {{ document.documentElement.style.width = '{width}px'; document.body.style.width = 'auto'; \
                 return Math.max(document.body.scrollWidth, document.body.getBoundingClientRect().right) + '/' + innerWidth }})()"
            );
            let measured = browser.measure(&page, &expression, args);
            let (content, window) = measured.split_once('/').unwrap();
            let content: f64 = content.parse().unwrap();
            assert!(
                content <= width.parse::<f64>().unwrap() + 0.5,
                "{content} px of content in {width} (window {window})"
            );
        }
    }
}

#[test]
fn print_shows_what_is_folded_on_the_screen() {
    let Some(browser) = Browser::find() else { return };
    let page = browser.write("report.html", &html());
    let pdf = browser.folder.path().join("report.pdf");
    browser.run(&page, &["--no-pdf-header-footer", &format!("--print-to-pdf={}", pdf.display())]);
    let bytes = std::fs::read(&pdf).unwrap();
    assert!(bytes.starts_with(b"%PDF-"));
    let pages = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        text.matches("/Type /Page\n").count() + text.matches("/Type /Page/").count()
    };
    // Without folded parts there is less to print.
    let folded = html()
        .replace("details::details-content { content-visibility: visible; display: block; block-size: auto; }", "");
    let folded_page = browser.write("folded.html", &folded.replace("<meta http-equiv=", "<meta name="));
    let folded_pdf = browser.folder.path().join("folded.pdf");
    browser.run(&folded_page, &["--no-pdf-header-footer", &format!("--print-to-pdf={}", folded_pdf.display())]);
    let (all, without) = (pages(&bytes), pages(&std::fs::read(&folded_pdf).unwrap()));
    assert!(all > without && without > 0, "{all} pages, {without} of them without what is folded");
}
