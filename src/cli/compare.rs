//! `kvgauge compare`: what differs, without a judgement.

use kvgauge::compare::compare;

use crate::args::CompareArgs;
use crate::assessment::{self, Assessment};
use crate::config::ConfigFile;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::records::Records;
use crate::{output, policy, table};

pub(crate) fn execute(args: &CompareArgs, config: &ConfigFile) -> Result<Exit, Failure> {
    let args = &args.records;
    assessment::check_outputs(&args.output)?;
    let records = Records::load(&args.records)?;
    let comparison = compare(&records.baseline, records.control.as_ref(), &records.candidates)?;
    if args.json {
        output::print_json(&comparison)?;
    } else {
        output::print(&table::deltas(&comparison))?;
    }
    if !args.output.is_empty() {
        let policy = policy::of_records(&records, args.suite.as_deref(), config)?;
        Assessment::new(records, policy)?.write_outputs(&args.output)?;
    }
    Ok(Exit::Success)
}
