//! `kvgauge bench`: how fast this machine computes, and how large the errors of the arithmetic are that it imitates.

mod attention_error;
mod document;
mod heads;
mod memory;
mod model_heads;
pub(crate) mod options;
mod outputs;
mod speed;
mod subjects;
mod workload;

use std::path::PathBuf;

use kvgauge::hint::Hint;
use kvgauge::units::format_token_count;

use crate::config::ConfigFile;
use crate::exit_code::Exit;
use crate::failure::Failure;
use options::{BenchArgs, BenchPart};

/// Why there is nothing to measure.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    #[error("`{}` has no extension that says what to write", path.display())]
    OutputKind { path: PathBuf },
    #[error("layer {layer} does not exist: the model has {n_layer}, counted from 0")]
    NoSuchLayer { layer: usize, n_layer: usize },
    #[error("{} tokens are more than the {trained_context} that `{model}` was trained for", format_token_count(*length))]
    BeyondTrained { length: u32, trained_context: usize, model: String },
    #[error(
        "{} tokens and {batch} sequences to decode need {needed_blocks} cache blocks in {dtype}, and there is memory for {n_block}",
        format_token_count(*length)
    )]
    CacheTooSmall { length: u32, batch: u32, dtype: String, needed_blocks: usize, n_block: usize },
}

impl Hint for BenchError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::OutputKind { .. } => vec!["known: .json, .svg, .md".into()],
            Self::BeyondTrained { .. } => {
                vec!["`--rope-scaling ntk` stretches the positions of longer prompts".into()]
            }
            Self::NoSuchLayer { .. } => Vec::new(),
            Self::CacheTooSmall { .. } => vec!["leave the longest `--lengths` or the largest `--batch` out".into()],
        }
    }
}

pub(crate) fn execute(args: &BenchArgs, config: &ConfigFile) -> Result<Exit, Failure> {
    match &args.part {
        None => speed::execute(&args.speed, config),
        Some(BenchPart::AttentionError(args)) => attention_error::execute(args, config),
    }
}
