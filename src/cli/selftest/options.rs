//! Options of `kvgauge selftest`. It takes nothing from the configuration but the model: what the instrument finds must not
//! depend on what was last measured with it.

use std::path::PathBuf;

use clap::Args;
use kvgauge::sample::Bin;

use crate::args::ModelArgs;

#[derive(Args, Debug, Default)]
pub(crate) struct SelftestArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Built-in suite or a suite file whose sensitivity is wanted
    #[arg(long, value_name = "SUITE", default_value = "selftest")]
    pub(crate) suite: String,
    /// Context-length bins to keep, a comma list: 512,2K
    #[arg(long, value_name = "BIN,...", value_delimiter = ',')]
    pub(crate) bins: Option<Vec<Bin>>,
    /// Folder of the run, one subfolder per arm; the same folder again goes on with it [default: reports/selftest-MODEL-HASH]
    #[arg(long, value_name = "DIR")]
    pub(crate) run_dir: Option<PathBuf>,
    /// Answer from a script instead of a model: damage to the answers alone, in seconds
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print one JSON document on standard output, everything else on standard error
    #[arg(long)]
    pub(crate) json: bool,
}
