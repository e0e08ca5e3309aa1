//! `kvgauge merge`: the shards of a run put together. Judging is left to `gate` and `report`.

use kvgauge::record::merge::{Merged, MergedArm, merge};
use serde_json::json;

use crate::args::MergeArgs;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::output::{self, note};

pub(crate) fn execute(args: &MergeArgs) -> Result<Exit, Failure> {
    let merged = merge(&args.out, &args.shards, args.partial)?;
    for line in &merged.notes {
        note(&format!("warning: {line}"));
    }
    let out = args.out.display();
    let is_open = |arm: &&MergedArm| arm.planned != Some(arm.done);
    for arm in merged.arms.iter().filter(is_open) {
        note(&format!("warning: arm `{}` is not finished: `kvgauge check --run-dir {out}` goes on with it", arm.name));
    }
    if args.json {
        output::print_json(&document(args, &merged))?;
    } else {
        output::print(&text(args, &merged))?;
    }
    Ok(Exit::Success)
}

fn text(args: &MergeArgs, merged: &Merged) -> String {
    let out = args.out.display();
    let of = merged.shards.first().map_or(0, |shard| shard.of());
    let mut text = format!("{out}: {} of {of} shards of suite `{}`\n", merged.shards.len(), merged.suite);
    for arm in &merged.arms {
        text += &match arm.planned {
            Some(planned) => format!("{}: {} of {planned} items\n", arm.name, arm.done),
            None => format!("{}: no record\n", arm.name),
        };
    }
    text + &format!("judge it with `kvgauge gate {out}` or `kvgauge report {out}`\n")
}

fn document(args: &MergeArgs, merged: &Merged) -> serde_json::Value {
    let arms: Vec<_> =
        merged.arms.iter().map(|arm| json!({ "arm": arm.name, "planned": arm.planned, "done": arm.done })).collect();
    json!({ "run_dir": args.out, "suite": merged.suite, "shards": merged.shards, "arms": arms })
}
