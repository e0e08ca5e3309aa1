//! `kvgauge report`: the derived files again, from records on disk. The verdict is in them and not in the exit code.

use crate::args::ReportArgs;
use crate::assessment::{self, Assessment};
use crate::config::ConfigFile;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::records::Records;
use crate::{output, policy};

pub(crate) fn execute(args: &ReportArgs, config: &ConfigFile) -> Result<Exit, Failure> {
    let history = args.history.as_deref();
    let args = &args.records;
    assessment::check_outputs(&args.output)?;
    let records = Records::load(&args.records)?;
    let policy = policy::of_records(&records, args.suite.as_deref(), config)?;
    let run_dir = records.run_dir.clone();
    let assessment = Assessment::new(records, policy)?.with_history(history, run_dir.as_deref())?;
    let mut written = args.output.clone();
    match run_dir {
        Some(dir) if args.output.is_empty() => written.push(assessment.write_run_folder(&dir)?),
        None if args.output.is_empty() => return Err(Failure::NoOutput),
        _ => assessment.write_outputs(&args.output)?,
    }
    if args.json {
        output::print_document(&assessment.json())?;
    } else {
        let lines: Vec<String> = written.iter().map(|path| format!("report: {}\n", path.display())).collect();
        output::print(&lines.concat())?;
    }
    Ok(Exit::Success)
}
