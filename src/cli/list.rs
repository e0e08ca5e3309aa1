//! `kvgauge list …`: straight from the registries, so a list cannot go stale.

use kvgauge::detectors::DETECTORS;
use kvgauge::engine::kernels::KERNELS;
use kvgauge::engine::kv_cache::codec::ALIASES;
use kvgauge::engine::{BACKENDS, CODECS};
use kvgauge::scorers::SCORERS;
use kvgauge::tasks::TASKS;
use serde_json::{Map, Value};

use crate::args::{ListArgs, Listing};
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::{output, table};

/// Columns and rows of a list; JSON objects have the columns as keys.
struct Rows {
    header: &'static [&'static str],
    rows: Vec<Vec<String>>,
}

pub(crate) fn execute(args: &ListArgs) -> Result<Exit, Failure> {
    let listed = match args.what {
        Listing::Tasks => tasks(),
        Listing::Scorers => scorers(),
        Listing::Detectors => detectors(),
        Listing::Dtypes => dtypes(),
        Listing::Backends => backends(),
        Listing::Kernels => kernels(),
    };
    if args.json {
        let object = |row: &Vec<String>| -> Map<String, Value> {
            let names = listed.header.iter().map(|name| name.replace(' ', "_"));
            names.zip(row.iter().map(|value| Value::from(value.as_str()))).collect()
        };
        output::print_json(&listed.rows.iter().map(object).collect::<Vec<_>>())?;
    } else {
        let mut table = table::empty(listed.header.iter().map(|name| (*name).to_string()).collect());
        table.add_rows(listed.rows);
        output::print(&table::finished_left(&table))?;
    }
    Ok(Exit::Success)
}

fn tasks() -> Rows {
    let row = |task: &kvgauge::tasks::Task| {
        vec![
            task.id.into(),
            task.group.name().into(),
            task.scorer.into(),
            task.generator_version.to_string(),
            task.summary.into(),
        ]
    };
    Rows { header: &["task", "group", "scorer", "version", "summary"], rows: TASKS.iter().map(row).collect() }
}

fn scorers() -> Rows {
    let row =
        |scorer: &kvgauge::scorers::Scorer| vec![scorer.name.into(), scorer.version.to_string(), scorer.summary.into()];
    Rows { header: &["scorer", "version", "summary"], rows: SCORERS.iter().map(row).collect() }
}

fn detectors() -> Rows {
    let row = |detector: &kvgauge::detectors::Detector| vec![detector.kind.name().into(), detector.summary.into()];
    Rows { header: &["detector", "summary"], rows: DETECTORS.iter().map(row).collect() }
}

fn dtypes() -> Rows {
    /// Head width of most models of the supported families; inline scales weigh more on narrower heads.
    const HEAD_DIM: usize = 64;
    let row = |codec: &&dyn kvgauge::engine::KvCodec| {
        let also: Vec<&str> =
            ALIASES.iter().filter(|(_, name)| *name == codec.name()).map(|(alias, _)| *alias).collect();
        let bytes = codec.row_bytes(HEAD_DIM) as f64 / HEAD_DIM as f64;
        vec![codec.name().into(), also.join(", "), format!("{bytes:.2}"), codec.scales().into()]
    };
    Rows { header: &["dtype", "also", "bytes per value", "scales"], rows: CODECS.iter().map(row).collect() }
}

fn backends() -> Rows {
    let row = |backend: &&kvgauge::engine::attention::Backend| vec![backend.name.into(), backend.about.into()];
    Rows { header: &["backend", "summary"], rows: BACKENDS.iter().map(row).collect() }
}

/// In order of preference: `auto` takes the first that runs here.
fn kernels() -> Rows {
    let row = |entry: &kvgauge::engine::kernels::KernelEntry| {
        let here = match (entry.probe)() {
            Ok(_) => "runs here".to_string(),
            Err(reason) => format!("not here: {reason}"),
        };
        vec![entry.name.to_string(), here]
    };
    Rows { header: &["kernel", "this machine"], rows: KERNELS.iter().map(row).collect() }
}
