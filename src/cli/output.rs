//! Standard output carries the result and nothing else; everything said along the way goes to standard error.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use kvgauge::report::{terminal_json, terminal_text};

use crate::failure::Failure;

/// Prints the result for people; nothing in it can steer a terminal or a build log.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    write(&terminal_text(text))
}

/// Prints a JSON document that ends in a line break, as inert as text and still the same document.
pub(crate) fn print_document(json: &str) -> Result<(), Failure> {
    write(&terminal_json(json))
}

/// Prints bytes of our own making as they are: a script, a manual page.
pub(crate) fn print_exactly(text: &str) -> Result<(), Failure> {
    write(text)
}

fn write(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    still_read(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush())).map(drop)
}

/// JSON documents on standard output, one a line, as inert as [`print_document`].
pub(crate) struct Lines(io::BufWriter<io::StdoutLock<'static>>);

impl Lines {
    /// Takes standard output until [`Self::finish`].
    pub(crate) fn new() -> Self {
        Self(io::BufWriter::new(io::stdout().lock()))
    }

    /// Writes one document. `false`: the reader has seen enough.
    pub(crate) fn write(&mut self, document: &impl serde::Serialize) -> Result<bool, Failure> {
        let text = serde_json::to_string(document).map_err(Failure::Json)?;
        still_read(writeln!(self.0, "{}", terminal_json(&text)))
    }

    /// Writes what is still in memory.
    pub(crate) fn finish(mut self) -> Result<(), Failure> {
        still_read(self.0.flush()).map(drop)
    }
}

/// A reader that has seen enough (`| head`) is no error.
fn still_read(written: io::Result<()>) -> Result<bool, Failure> {
    match written {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::Stdout(error)),
    }
}

/// Prints one JSON document with a final newline.
pub(crate) fn print_json(document: &impl serde::Serialize) -> Result<(), Failure> {
    let mut text = serde_json::to_string_pretty(document).map_err(Failure::Json)?;
    text.push('\n');
    print_document(&text)
}

/// A line on standard error, inert like [`print`]. Where that is closed there is nobody to tell.
pub(crate) fn note(text: &str) {
    drop(writeln!(io::stderr().lock(), "{}", terminal_text(text)));
}

/// A command for GitHub's runner, which reads both streams; standard output stays free for a document.
pub(crate) fn workflow_command(command: &str) {
    drop(writeln!(io::stderr().lock(), "{command}"));
}

/// Writes a derived file in one step: a reader sees the old bytes or the new ones. A file that already has these bytes is left
/// alone, so that a repeated command changes nothing.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let failed = |source| Failure::Write { path: path.into(), source };
    if fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    fs::create_dir_all(folder).map_err(failed)?;
    let mut file = tempfile::Builder::new().prefix(".kvgauge-").tempfile_in(folder).map_err(failed)?;
    file.write_all(bytes).map_err(failed)?;
    make_readable(file.as_file()).map_err(failed)?;
    file.as_file().sync_all().map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    Ok(())
}

/// Temporary files are private to the user; a report is made to be served and attached.
#[cfg(unix)]
fn make_readable(file: &fs::File) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    file.set_permissions(fs::Permissions::from_mode(0o644))
}

#[cfg(not(unix))]
fn make_readable(_: &fs::File) -> io::Result<()> {
    Ok(())
}
