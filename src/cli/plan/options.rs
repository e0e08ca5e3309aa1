//! Options of `kvgauge plan`.

use std::path::PathBuf;

use clap::Args;
use kvgauge::units::{parse_bytes, parse_token_count};

/// Longest context planned for; beyond every published model.
const MAX_LENGTH: u32 = 1 << 24;
/// Smaller is no GPU but a missing unit: `24` is 24 bytes.
const MIN_GPU_BYTES: u64 = 1 << 28;
/// As many as a suite may ask in a cell by many tasks: the exact sum over more takes minutes.
const MAX_PAIRS: u64 = 1_000_000;
/// Cells of a gate; far above the bins, groups and arms of any run.
const MAX_CELLS_PER_KIND: i64 = 1000;

#[derive(Args, Debug)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(crate) model: PlannedModel,
    #[command(flatten)]
    pub(crate) memory: MemoryArgs,
    #[command(flatten)]
    pub(crate) power: PowerArgs,
    /// Print one JSON document on standard output, everything else on standard error
    #[arg(long)]
    pub(crate) json: bool,
}

/// The model: its files, or its numbers.
#[derive(Args, Debug)]
#[command(next_help_heading = "Model")]
pub(crate) struct PlannedModel {
    /// Model folder, or its config.json
    #[arg(long, value_name = "PATH", conflicts_with = "layers")]
    pub(crate) model: Option<PathBuf>,
    /// Layers, for a model given in numbers
    #[arg(long, value_name = "N")]
    pub(crate) layers: Option<u32>,
    /// Key-value heads
    #[arg(long, value_name = "N", requires = "layers")]
    pub(crate) kv_heads: Option<u32>,
    /// Width of a head
    #[arg(long, value_name = "N", requires = "layers")]
    pub(crate) head_dim: Option<u32>,
    /// Parameters: 8030261248, 8.03B, 135M
    #[arg(long, value_name = "N", requires = "layers", value_parser = parameters)]
    pub(crate) parameters: Option<u64>,
    /// Query heads: they decide which --tensor-parallel is possible
    #[arg(long, value_name = "N", requires = "layers")]
    pub(crate) heads: Option<u32>,
    /// Width of the latent of MLA, instead of KV heads
    #[arg(long, value_name = "N", requires = "rope_head_dim", requires = "layers")]
    pub(crate) kv_lora_rank: Option<u32>,
    /// Width of the rotary key of MLA
    #[arg(long, value_name = "N", requires = "kv_lora_rank")]
    pub(crate) rope_head_dim: Option<u32>,
    /// Tokens that layers with a window see
    #[arg(long, value_name = "N", requires = "sliding_layers", requires = "layers")]
    pub(crate) sliding_window: Option<u32>,
    /// How many layers have it
    #[arg(long, value_name = "N", requires = "sliding_window")]
    pub(crate) sliding_layers: Option<u32>,
}

/// The GPUs, and what is to fit on them.
#[derive(Args, Debug)]
#[command(next_help_heading = "Memory")]
pub(crate) struct MemoryArgs {
    /// Memory of each GPU: 24GiB; without it sizes only
    #[arg(long, value_name = "SIZE", value_parser = gpu_memory)]
    pub(crate) gpu_memory: Option<u64>,
    /// Share of it that the engine takes; vLLM's default is 0.92 since 0.20.0
    #[arg(long, value_name = "SHARE", default_value_t = 0.9, value_parser = share)]
    pub(crate) gpu_memory_utilization: f64,
    /// GPUs that share the model by tensor parallelism
    #[arg(
        long,
        visible_alias = "tensor-parallel-size",
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=1024)
    )]
    pub(crate) tensor_parallel: u32,
    /// KV dtypes, a comma list [default: bfloat16,fp8,int8_per_token_head; with MLA bfloat16,fp8,fp8_ds_mla]
    #[arg(long, value_name = "DTYPE,...", value_delimiter = ',')]
    pub(crate) kv_cache_dtype: Option<Vec<String>>,
    /// Context lengths in tokens, answer included, a comma list
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "8K,32K,64K,128K", value_parser = length)]
    pub(crate) lengths: Vec<u32>,
    /// How weights are stored [default: what the checkpoint says]
    #[arg(long, value_name = "FORMAT")]
    pub(crate) weights_dtype: Option<String>,
    /// Activations, graphs and libraries on each GPU
    #[arg(long, value_name = "SIZE", default_value = "1.5GiB", value_parser = size)]
    pub(crate) overhead: u64,
    /// Tokens prefilled in one step: layers with a window keep them on top of it
    #[arg(
        long,
        value_name = "N",
        default_value_t = 8192,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_LENGTH))
    )]
    pub(crate) max_num_batched_tokens: u32,
    /// Tokens per block of the cache
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) block_size: u32,
}

/// How sure a gate is to be.
#[derive(Args, Debug)]
#[command(next_help_heading = "Pairs")]
pub(crate) struct PowerArgs {
    /// Say how many pairs a gate needs
    #[arg(long)]
    pub(crate) power: bool,
    /// Share of items that change between two arms without any damage, both directions together
    #[arg(long, value_name = "SHARE", default_value_t = 0.02, value_parser = flip_rate)]
    pub(crate) flip_rate: f64,
    /// Drop that is to be found, as a share of all items
    #[arg(long, value_name = "SHARE", default_value_t = 0.05, value_parser = drop_share)]
    pub(crate) drop: f64,
    /// Drop that a PASS excludes: the gate's margin, as a share
    #[arg(long, value_name = "SHARE", default_value_t = 0.05, value_parser = drop_share)]
    pub(crate) margin: f64,
    /// Bins that are judged
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=MAX_CELLS_PER_KIND))]
    pub(crate) bins: u32,
    /// Task groups that are judged in each bin
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=MAX_CELLS_PER_KIND))]
    pub(crate) groups: u32,
    /// Candidates that are judged
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=MAX_CELLS_PER_KIND))]
    pub(crate) arms: u32,
    /// Say what so many pairs per cell are worth
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MAX_PAIRS))]
    pub(crate) pairs: Option<u64>,
    /// Take flip rates, cells, margins and pairs from a run instead
    #[arg(long, value_name = "RUN_DIR", conflicts_with_all = ["flip_rate", "margin", "bins", "groups", "arms", "pairs"])]
    pub(crate) from: Option<PathBuf>,
}

impl PowerArgs {
    /// Whether pairs are to be planned at all.
    pub(crate) fn is_asked(&self) -> bool {
        self.power || self.pairs.is_some() || self.from.is_some()
    }
}

fn length(text: &str) -> Result<u32, String> {
    match parse_token_count(text) {
        Some(tokens) if (1..=MAX_LENGTH).contains(&tokens) => Ok(tokens),
        Some(_) => Err(format!("between 1 and {}K tokens are expected", MAX_LENGTH / 1024)),
        None => Err("a number of tokens such as 512, 2K or 131072 is expected".into()),
    }
}

fn size(text: &str) -> Result<u64, String> {
    parse_bytes(text).ok_or_else(|| "a size such as 24GiB or 512MiB is expected".into())
}

fn gpu_memory(text: &str) -> Result<u64, String> {
    match size(text)? {
        bytes if bytes < MIN_GPU_BYTES => Err("no GPU is that small; give the unit, such as 24GiB".into()),
        bytes => Ok(bytes),
    }
}

fn number(text: &str, is_legal: fn(f64) -> bool, expected: &str) -> Result<f64, String> {
    text.parse().ok().filter(|value| is_legal(*value)).ok_or_else(|| format!("{expected} is expected"))
}

fn share(text: &str) -> Result<f64, String> {
    number(text, |value| value > 0.0 && value <= 1.0, "a share above 0 and up to 1")
}

fn flip_rate(text: &str) -> Result<f64, String> {
    number(text, |value| (0.0..1.0).contains(&value), "a share from 0 to below 1")
}

fn drop_share(text: &str) -> Result<f64, String> {
    number(text, |value| value > 0.0 && value < 1.0, "a share between 0 and 1, such as 0.05,")
}

/// A count with an optional suffix of thousands.
fn parameters(text: &str) -> Result<u64, String> {
    let upper = text.trim().to_ascii_uppercase();
    let (digits, factor) = match upper.chars().last() {
        Some('K') => (&upper[..upper.len() - 1], 1e3),
        Some('M') => (&upper[..upper.len() - 1], 1e6),
        Some('B') => (&upper[..upper.len() - 1], 1e9),
        Some('T') => (&upper[..upper.len() - 1], 1e12),
        _ => (upper.as_str(), 1.0),
    };
    let count = digits.parse::<f64>().ok().map(|number| (number * factor).round());
    match count {
        // Where a float still counts ones.
        Some(count) if (1.0..=9e15).contains(&count) => Ok(count as u64),
        _ => Err("a number such as 8030261248, 8.03B or 135M is expected".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_with_their_suffix_and_nonsense_is_not() {
        for (text, count) in [("8030261248", 8_030_261_248), ("8.03B", 8_030_000_000), ("135m", 135_000_000)] {
            assert_eq!(parameters(text), Ok(count), "{text}");
        }
        for text in ["", "B", "-1B", "nan", "1e300", "0"] {
            assert!(parameters(text).is_err(), "{text}");
        }
        assert!(gpu_memory("24").is_err());
        assert_eq!(gpu_memory("24GiB"), Ok(24 << 30));
        for text in ["nan", "1.5", "-0.1", "0"] {
            assert!(share(text).is_err() && drop_share(text).is_err(), "{text}");
        }
        assert!(flip_rate("1").is_err() && flip_rate("nan").is_err());
        assert_eq!(flip_rate("0"), Ok(0.0));
    }
}
