//! `kvgauge completions SHELL`.

use clap::CommandFactory as _;

use crate::args::Cli;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::output;

pub(crate) fn execute(shell: clap_complete::Shell) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "kvgauge", &mut script);
    output::print_exactly(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Success)
}
