//! `kvgauge suite list|check|show|dump`.

mod dump;

use std::collections::BTreeMap;

use kvgauge::sample::{Bin, Item};
use kvgauge::suite::{BUILTIN, GroupSpec, Suite};
use kvgauge::tokenizer::{TokenCounter, WordTokenizer};
use serde_json::json;

use crate::args::{ShowArgs, SuiteCommand};
use crate::config::ConfigFile;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::{measure, model, output, settings, shown_item, table};

pub(crate) use dump::Seeds;

pub(crate) fn execute(command: &SuiteCommand, config: &ConfigFile) -> Result<Exit, Failure> {
    match command {
        SuiteCommand::List { json } => list(*json),
        SuiteCommand::Check { suites } => check(suites),
        SuiteCommand::Show(args) => show(args, config),
        SuiteCommand::Dump(args) => dump::execute(args, config),
    }
}

fn list(as_json: bool) -> Result<Exit, Failure> {
    let suites = BUILTIN.iter().map(|(name, _)| Suite::builtin(name)).collect::<Result<Vec<_>, _>>()?;
    if as_json {
        let entries: Vec<_> = suites
            .iter()
            .map(|suite| {
                json!({
                    "name": suite.name,
                    "version": suite.version,
                    "description": suite.description,
                    "bins": bins_of(suite),
                    "items": suite.plan().item_count(),
                })
            })
            .collect();
        output::print_json(&entries)?;
        return Ok(Exit::Success);
    }
    let mut rows = table::empty(["suite", "bins", "items", "what it asks"].map(String::from).to_vec());
    for suite in &suites {
        let items = suite.plan().item_count().to_string();
        rows.add_row([suite.name.clone(), bins_of(suite).join(" "), items, suite.description.clone()]);
    }
    output::print(&table::finished_left(&rows))?;
    Ok(Exit::Success)
}

fn bins_of(suite: &Suite) -> Vec<String> {
    suite.bins.iter().map(|plan| plan.bin.to_string()).collect()
}

/// Every suite is read, so that one start finds the errors of all.
fn check(names: &[String]) -> Result<Exit, Failure> {
    let mut failures = Vec::new();
    for name in names {
        match measure::suite_by_name(name) {
            Ok(suite) => {
                let (items, hash) = (suite.plan().item_count(), suite.fingerprint());
                let open: usize =
                    suite.tasks.iter().filter_map(|plan| plan.custom.as_ref()).map(|file| file.unbound()).sum();
                let open = match open {
                    0 => String::new(),
                    count => format!(" and {count} prompts whose bin the model's tokenizer decides"),
                };
                let bins = bins_of(&suite).join(" ");
                output::print(&format!("{name}: {items} items in {bins}{open}, fingerprint {}\n", &hash[..16]))?;
            }
            Err(failure) => failures.push(failure),
        }
    }
    let Some(last) = failures.pop() else { return Ok(Exit::Success) };
    for failure in &failures {
        crate::tell(failure);
    }
    Err(last)
}

fn show(args: &ShowArgs, config: &ConfigFile) -> Result<Exit, Failure> {
    let suite = measure::load_suite(&settings::suite(&args.suite, config)?)?;
    // Only what the suite has can be asked for; the items are looked up in the whole plan, so that they are those of a run.
    let tasks = args.task.as_ref().map(std::slice::from_ref);
    suite.select(args.bin.as_ref().map(std::slice::from_ref), tasks, None, None)?;
    let model = if args.dry_run {
        None
    } else {
        let _interrupt = Interrupt::watch().map_err(Failure::Runtime)?;
        Some(model::open(&settings::model(&args.model, config))?)
    };
    let tokenizer = model.as_ref().map(|model| model.tokenizer().as_ref());
    let counter: &dyn TokenCounter = tokenizer.map_or(&WordTokenizer, |tokenizer| tokenizer);
    let suite = suite.bind(counter)?;
    let plan = suite.plan();
    let wanted = args.item.as_deref().unwrap_or_default();
    let of_bin = plan.groups.iter().filter(|group| args.bin.is_none_or(|bin| bin == group.bin));
    let found = of_bin.into_iter().find_map(|group| {
        let item = group.items.iter().find(|item| {
            item.item_id.starts_with(wanted) && args.task.as_ref().is_none_or(|task| *task == item.task)
        })?;
        Some((group, item.item_id.as_str()))
    });
    let Some((group, item_id)) = found else {
        return Err(Failure::NoItem { suite: suite.name, id: wanted.into() });
    };
    let item = generate(&suite, group, item_id, counter)?;
    if args.json {
        output::print_json(&item)?;
        return Ok(Exit::Success);
    }
    if args.item.is_none() && args.task.is_none() && args.bin.is_none() {
        output::print(&contents(&suite))?;
    }
    output::print(&shown_item::rendered(&item, tokenizer, counter)?)?;
    Ok(Exit::Success)
}

/// Questions of one haystack are made together, so the whole group is generated.
fn generate(suite: &Suite, group: &GroupSpec, item_id: &str, counter: &dyn TokenCounter) -> Result<Item, Failure> {
    let items = suite.generate(group, counter)?;
    let found = items.into_iter().find(|item| item.item_id == item_id);
    found.ok_or_else(|| Failure::NoItem { suite: suite.name.clone(), id: item_id.into() })
}

/// Items per task and bin.
fn contents(suite: &Suite) -> String {
    let mut counts: BTreeMap<(&str, Bin), usize> = BTreeMap::new();
    let plan = suite.plan();
    for group in &plan.groups {
        for item in &group.items {
            *counts.entry((item.task.as_str(), group.bin)).or_default() += 1;
        }
    }
    let mut header = vec!["task".to_string()];
    header.extend(bins_of(suite));
    let mut rows = table::empty(header);
    for task in &suite.tasks {
        let count = |bin: Bin| counts.get(&(task.task.as_str(), bin)).map_or_else(|| "–".into(), usize::to_string);
        let mut row = vec![task.task.clone()];
        row.extend(suite.bins.iter().map(|plan| count(plan.bin)));
        rows.add_row(row);
    }
    format!("{}: {}\n{}\n", suite.name, suite.description, table::finished(rows))
}
