//! `kvgauge man`: the manual page in roff, all subcommands after the overview.

use clap::CommandFactory as _;

use crate::args::Cli;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::output;

pub(crate) fn execute() -> Result<Exit, Failure> {
    let mut page = Vec::new();
    let mut command = Cli::command();
    command.build();
    render(&command, &mut page)?;
    for subcommand in command.get_subcommands().filter(|subcommand| subcommand.get_name() != "help") {
        render(subcommand, &mut page)?;
    }
    output::print_exactly(&String::from_utf8_lossy(&page))?;
    Ok(Exit::Success)
}

fn render(command: &clap::Command, page: &mut Vec<u8>) -> Result<(), Failure> {
    clap_mangen::Man::new(command.clone()).render(page).map_err(Failure::Stdout)
}
