//! `kvgauge plan`: before anything is measured. Does the model fit, at which length, in which KV dtype; how many pairs does a
//! gate need.

mod memory;
pub(crate) mod options;
mod power;

use kvgauge::capacity::CapacityError;
use kvgauge::hint::Hint;
use serde_json::{Map, Value};

use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::output;
use options::PlanArgs;

/// Version of the JSON document. Changelog: 1 first version.
const FORMAT_VERSION: u32 = 1;

/// Why there is nothing to plan.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlanError {
    #[error(transparent)]
    Capacity(#[from] CapacityError),
    #[error("nothing to plan: neither a model nor `--power` is given")]
    Nothing,
    #[error("`{given}` also needs `{needed}`")]
    Incomplete { given: &'static str, needed: &'static str },
}

impl Hint for PlanError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::Capacity(error) => error.hints(),
            Self::Nothing => vec![
                "`kvgauge plan --model FOLDER --gpu-memory 24GiB` says what fits".into(),
                "`kvgauge plan --power` says how many pairs a gate needs".into(),
            ],
            Self::Incomplete { .. } => Vec::new(),
        }
    }
}

pub(crate) fn execute(args: &PlanArgs) -> Result<Exit, Failure> {
    let memory = memory::plan(&args.model, &args.memory)?;
    let power = args.power.is_asked().then(|| power::plan(&args.power)).transpose()?;
    if memory.is_none() && power.is_none() {
        return Err(PlanError::Nothing.into());
    }
    if args.json {
        let mut document = Map::from_iter([("format_version".to_string(), Value::from(FORMAT_VERSION))]);
        let parts = [("memory", memory.map(serde_json::to_value)), ("power", power.map(serde_json::to_value))];
        for (name, part) in parts {
            document.insert(name.into(), part.transpose().map_err(Failure::Json)?.unwrap_or(Value::Null));
        }
        output::print_json(&document)?;
    } else {
        let texts = [memory.map(|plan| plan.in_words()), power.map(|plan| plan.in_words())];
        output::print(&texts.into_iter().flatten().collect::<Vec<_>>().join("\n"))?;
    }
    Ok(Exit::Success)
}
