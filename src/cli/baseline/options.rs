//! Options of `kvgauge baseline`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum BaselineCommand {
    /// Keep the baseline arm of a finished run, with its A/A repeat, under a name
    Accept(AcceptArgs),
    /// The accepted baselines
    List(ListArgs),
    /// What is known of one of them, and what stood under its name before
    Show(ShowArgs),
    /// Check every byte of them; exit code 3 where one is not as it was accepted
    Verify(VerifyArgs),
}

#[derive(Args, Debug)]
pub(crate) struct AcceptArgs {
    /// A run folder, or the folder of one arm
    #[arg(value_name = "RUN")]
    pub(crate) run: PathBuf,
    /// The arm [default: the baseline of the run]
    #[arg(long, value_name = "ARM")]
    pub(crate) arm: Option<String>,
    /// Where baselines are kept
    #[arg(long, value_name = "DIR", default_value = kvgauge::baseline::DEFAULT_DIR)]
    pub(crate) into: String,
    /// Its name [default: SUITE-MODEL-DTYPE]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// A sentence for those who look it up
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
    /// Give the same content, measured again, today's date and this note
    #[arg(long)]
    pub(crate) renew: bool,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    /// Where baselines are kept
    #[arg(long, value_name = "DIR", default_value = kvgauge::baseline::DEFAULT_DIR)]
    pub(crate) from: String,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    /// The baseline
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Where baselines are kept
    #[arg(long, value_name = "DIR", default_value = kvgauge::baseline::DEFAULT_DIR)]
    pub(crate) from: String,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct VerifyArgs {
    /// The baselines [default: all, and contents that no name stands for]
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Where baselines are kept
    #[arg(long, value_name = "DIR", default_value = kvgauge::baseline::DEFAULT_DIR)]
    pub(crate) from: String,
    /// Fail for a baseline that was accepted longer ago [default: a warning after 30 days]
    #[arg(long, value_name = "DAYS")]
    pub(crate) max_age: Option<u32>,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}
