//! From `--model` to a loaded model: found or fetched, then opened.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvgauge::model_store::{self, ModelPath, StoreEvent, StoreOptions};
use kvgauge::targets::embedded::{LoadedModel, RopePolicy};
use kvgauge::units::format_bytes;

use crate::args::RopeChoice;
use crate::failure::Failure;
use crate::output::note;
use crate::settings::ModelSettings;

/// Lines about a download come at most this often.
const DOWNLOAD_LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Finds the model's files, and fetches them if need be.
pub(crate) fn find(settings: &ModelSettings) -> Result<ModelPath, Failure> {
    let mut options = StoreOptions::from_environment(|name| std::env::var(name).ok().filter(|value| !value.is_empty()));
    options.offline |= settings.offline;
    let last_line = Cell::new(None);
    Ok(model_store::resolve(&settings.name, &options, &|event| tell(event, &last_line))?)
}

/// Finds and opens the model with its tokenizer.
pub(crate) fn open(settings: &ModelSettings) -> Result<Arc<LoadedModel>, Failure> {
    let found = find(settings)?;
    let rope = match settings.rope_scaling {
        RopeChoice::None => RopePolicy::None,
        RopeChoice::Linear => RopePolicy::Linear,
        RopeChoice::Ntk => RopePolicy::Ntk,
    };
    Ok(Arc::new(LoadedModel::open(&found.name, &found.path, rope)?))
}

fn tell(event: StoreEvent, last_line: &Cell<Option<Instant>>) {
    match event {
        StoreEvent::Waiting { name } => note(&format!("waiting for another process that fetches `{name}`")),
        StoreEvent::Fetching { what, total_bytes } => {
            let size = total_bytes.map_or(String::new(), |bytes| format!(" ({})", format_bytes(bytes)));
            note(&format!("fetching {what}{size}"));
            last_line.set(Some(Instant::now()));
        }
        StoreEvent::Progress { what, done_bytes, total_bytes } => {
            if last_line.get().is_none_or(|at| at.elapsed() >= DOWNLOAD_LINE_INTERVAL) {
                let total = total_bytes.map_or(String::new(), |bytes| format!(" of {}", format_bytes(bytes)));
                note(&format!("fetching {what}: {}{total}", format_bytes(done_bytes)));
                last_line.set(Some(Instant::now()));
            }
        }
        StoreEvent::Verifying { .. } => {}
        StoreEvent::Stored { path } => note(&format!("stored {}", path.display())),
    }
}
