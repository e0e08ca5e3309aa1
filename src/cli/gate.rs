//! `kvgauge gate`: compare and judge records; the verdict is the exit code.

use crate::args::GateArgs;
use crate::assessment::{self, Assessment};
use crate::config::ConfigFile;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::records::Records;
use crate::{output, policy, settings};

pub(crate) fn execute(args: &GateArgs, config: &ConfigFile) -> Result<Exit, Failure> {
    let on_inconclusive = settings::on_inconclusive(&args.policy, config);
    let args = &args.records;
    assessment::check_outputs(&args.output)?;
    let records = Records::load(&args.records)?;
    let policy = policy::of_records(&records, args.suite.as_deref(), config)?;
    let assessment = Assessment::new(records, policy)?;
    let printed =
        if args.json { output::print_document(&assessment.json()) } else { output::print(&assessment.text()) };
    assessment.tell_github();
    let written = assessment.write_outputs(&args.output);
    assessment.conclude(on_inconclusive, [printed, written])
}
