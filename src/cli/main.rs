//! The binary: parse, dispatch, print errors with hints, exit.

mod against;
mod args;
mod assessment;
mod baseline;
mod bench;
mod check;
mod compare;
mod completions;
mod config;
mod confirm;
mod detect;
mod engine_settings;
mod exit_code;
mod failure;
mod gate;
mod github;
mod inspect_log;
mod interrupt;
mod list;
mod logprobs;
mod machine;
mod man;
mod measure;
mod merge;
mod model;
mod output;
mod plan;
mod policy;
mod probe;
mod progress;
mod records;
mod report;
mod run;
mod selftest;
mod serve;
mod server_arms;
mod settings;
mod shown_item;
mod suite;
mod table;

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _};
use kvgauge::hint::Hint as _;

use args::{Cli, Command};
use config::ConfigFile;
use exit_code::Exit;
use failure::Failure;

fn main() -> ExitCode {
    let cli = Cli::from_arg_matches(&args::without_empty_variables(Cli::command()).get_matches());
    let exit = execute(&cli.unwrap_or_else(|error| error.exit())).unwrap_or_else(|failure| {
        tell(&failure);
        failure.exit()
    });
    exit.into()
}

/// What happened, then what to do about it.
fn tell(failure: &Failure) {
    output::note(&format!("error: {failure}"));
    for hint in failure.hints() {
        output::note(&format!("hint: {hint}"));
    }
}

fn execute(cli: &Cli) -> Result<Exit, Failure> {
    let config = || ConfigFile::load(cli.config.as_deref());
    match &cli.command {
        Command::Check(args) => check::execute(args, &config()?),
        Command::Run(args) => run::execute(args, &config()?),
        Command::Baseline(command) => baseline::execute(command),
        Command::Compare(args) => compare::execute(args, &config()?),
        Command::Gate(args) => gate::execute(args, &config()?),
        Command::Report(args) => report::execute(args, &config()?),
        Command::Merge(args) => merge::execute(args),
        Command::Suite(command) => suite::execute(command, &config()?),
        Command::List(args) => list::execute(args),
        Command::Detect(args) => detect::execute(args),
        Command::InspectLog(args) => inspect_log::execute(args),
        Command::Probe(args) => probe::execute(args),
        Command::Logprobs(args) => logprobs::execute(args, &config()?),
        Command::Bench(args) => bench::execute(args, &config()?),
        Command::Plan(args) => plan::execute(args),
        Command::Selftest(args) => selftest::execute(args, &config()?),
        Command::Completions { shell } => completions::execute(*shell),
        Command::Man => man::execute(),
    }
}
