//! The binary: parse, dispatch, print errors with hints, exit.

mod args;
mod completions;
mod config;
mod exit_code;
mod failure;
mod interrupt;
mod man;
mod output;
mod progress;
mod settings;

use std::process::ExitCode;

use clap::Parser as _;
use kvgauge::hint::Hint as _;

use args::{Cli, Command};
use exit_code::Exit;
use failure::Failure;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let exit = dispatch(&cli).unwrap_or_else(|failure| {
        output::note(&format!("error: {failure}"));
        for hint in failure.hints() {
            output::note(&format!("hint: {hint}"));
        }
        failure.exit()
    });
    exit.into()
}

fn dispatch(cli: &Cli) -> Result<Exit, Failure> {
    match &cli.command {
        Command::Completions { shell } => completions::execute(*shell),
        Command::Man => man::execute(),
        _ => Ok(Exit::Internal),
    }
}
