//! Options of `kvgauge bench` and its parts.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use kvgauge::units::parse_token_count;

use crate::args::ModelArgs;

/// Longest context measured: twice the longest bin of the built-in suites, already minutes of prefill on a small machine.
const MAX_LENGTH: u32 = 256 * 1024;
/// Most sequences decoded together: beyond what any cache of a workstation holds.
const MAX_BATCH: u32 = 1024;

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) part: Option<BenchPart>,
    #[command(flatten)]
    pub(crate) speed: SpeedArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchPart {
    /// Measure the error of attention by the number of keys: per mechanism, KV dtype and backend
    AttentionError(AttentionErrorArgs),
}

/// Which heads are attended to.
#[derive(Args, Debug)]
pub(crate) struct AttentionErrorArgs {
    /// Numbers of keys, a comma list
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "512,1K,2K,4K,8K,16K,32K,64K,128K",
        value_parser = length
    )]
    pub(crate) lengths: Vec<u32>,
    /// Synthetic heads per number
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) heads: u32,
    /// Measure on a model's own queries, keys and values too; see `--model`
    #[arg(long)]
    pub(crate) with_model: bool,
    /// Layers of the model, a comma list [default: first, middle and last]
    #[arg(long, value_name = "LAYER,...", value_delimiter = ',', requires = "with_model")]
    pub(crate) layers: Vec<usize>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) results: ResultArgs,
}

/// What is timed, and how often.
#[derive(Args, Debug)]
pub(crate) struct SpeedArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Prompt lengths in tokens, a comma list
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "512,2K,8K", value_parser = length)]
    pub(crate) lengths: Vec<u32>,
    /// KV dtypes, a comma list; see `kvgauge list dtypes`
    #[arg(
        long,
        value_name = "DTYPE,...",
        value_delimiter = ',',
        default_value = "bfloat16,fp8_e4m3,int8_per_token_head"
    )]
    pub(crate) kv_cache_dtype: Vec<String>,
    /// Tokens decoded after each prompt
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) decode_tokens: u32,
    /// Sequences decoded together, a comma list
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "1,8",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_BATCH))
    )]
    pub(crate) batch: Vec<u32>,
    /// Times everything is measured; dtypes take turns within each
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repeats: u32,
    #[command(flatten)]
    pub(crate) results: ResultArgs,
}

/// Where results go.
#[derive(Args, Debug)]
pub(crate) struct ResultArgs {
    /// Print one JSON document on standard output, everything else on standard error
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a file; the kind goes by the extension: .json .svg .md (repeatable)
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Vec<PathBuf>,
}

fn length(text: &str) -> Result<u32, String> {
    match parse_token_count(text) {
        Some(0) => Err("a prompt has at least one token".into()),
        Some(tokens) if tokens > MAX_LENGTH => Err(format!("the longest is {}K tokens", MAX_LENGTH / 1024)),
        Some(tokens) => Ok(tokens),
        None => Err("a number of tokens such as 512, 2K or 131072 is expected".into()),
    }
}
