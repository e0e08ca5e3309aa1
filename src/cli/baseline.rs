//! `kvgauge baseline`: accept, list, show, verify.

pub(crate) mod options;
pub(crate) mod remote;

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use kvgauge::baseline::{Acceptance, BaselineError, Change, Past, Pointer, Store, Verified};
use kvgauge::sample::Bin;
use kvgauge::units::{format_utc, parse_utc};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::output::{self, note};
use crate::table;
use options::{AcceptArgs, BaselineCommand, ListArgs, ShowArgs, VerifyArgs};

/// A baseline that is older is worth a word: engines, drivers and models have moved since.
const WARN_AGE_DAYS: u64 = 30;

/// A store on this machine, or a copy of the part of a remote one that is looked at.
pub(crate) struct Place {
    pub(crate) store: Store,
    /// The folder of the copy, which goes with it.
    _copy: Option<TempDir>,
}

impl Place {
    pub(crate) fn open(place: &str, names: &[String], has_contents: bool) -> Result<Self, Failure> {
        if !remote::is_address(place) {
            return Ok(Self { store: Store::new(Path::new(place)), _copy: None });
        }
        let (copy, store) = remote::mirror(place, names, has_contents)?;
        Ok(Self { store, _copy: Some(copy) })
    }
}

pub(crate) fn execute(command: &BaselineCommand) -> Result<Exit, Failure> {
    match command {
        BaselineCommand::Accept(args) => accept(args),
        BaselineCommand::List(args) => list(args),
        BaselineCommand::Show(args) => show(args),
        BaselineCommand::Verify(args) => verify(args),
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Whole days since a baseline was accepted; a clock that is behind makes it none.
fn age_days(pointer: &Pointer) -> u64 {
    now().saturating_sub(parse_utc(&pointer.accepted_at).unwrap_or(0)) / 86_400
}

/// Refuses a baseline that is older than it may be, and warns of an old one.
pub(crate) fn check_age(pointer: &Pointer, max_days: Option<u32>) -> Result<(), BaselineError> {
    let age_days = age_days(pointer);
    match max_days {
        Some(max_days) if age_days > u64::from(max_days) => Err(BaselineError::TooOld {
            name: pointer.name.clone(),
            accepted_at: pointer.accepted_at.clone(),
            age_days,
            max_days,
        }),
        None if age_days > WARN_AGE_DAYS => {
            note(&format!(
                "warning: baseline `{}` was accepted {age_days} days ago; `--max-age DAYS` refuses old ones",
                pointer.name
            ));
            Ok(())
        }
        _ => Ok(()),
    }
}

fn accept(args: &AcceptArgs) -> Result<Exit, Failure> {
    let store = Store::new(Path::new(&args.into));
    let asked = Acceptance {
        run: args.run.clone(),
        arm: args.arm.as_deref(),
        name: args.name.as_deref(),
        note: args.note.as_deref(),
        accepted_at: format_utc(now()),
        renew: args.renew,
    };
    let (pointer, change) = match remote::is_address(&args.into) {
        true => remote::accept(&args.into, &asked)?,
        false => store.accept(&asked)?,
    };
    let (word, more) = match &change {
        Change::New => ("new", String::new()),
        Change::Same => ("same", format!("unchanged: it has stood for this content since {}", pointer.accepted_at)),
        Change::Renewed => ("renewed", "the same content as before, with today's date".into()),
        Change::Moved { from } => {
            ("moved", format!("it stood for {} before, which is kept", &from[..16.min(from.len())]))
        }
    };
    if args.json {
        output::print_json(&json!({ "change": word, "baseline": pointer, "dir": store.dir() }))?;
        return Ok(Exit::Success);
    }
    let mut text = format!("{} = {}: {}\n", pointer.name, pointer.short_hash(), described(&pointer));
    if !more.is_empty() {
        text += &format!("{more}\n");
    }
    text += &format!("use it: kvgauge check --against {}\n", reference(&store, &pointer.name));
    output::print(&text)?;
    Ok(Exit::Success)
}

/// How `--against` finds it from here.
fn reference(store: &Store, name: &str) -> String {
    match store.dir() == Path::new(kvgauge::baseline::DEFAULT_DIR) {
        true => name.to_owned(),
        false => format!("{}/{name}", store.dir().display()),
    }
}

/// `quick on SmolLM2-135M-Instruct, bfloat16, 96 items in 512, 2K, 8K, with A/A`.
fn described(pointer: &Pointer) -> String {
    let items: u64 = pointer.items.iter().map(|bin| bin.items).sum();
    let control = if pointer.has_control { ", with its A/A arm" } else { "" };
    format!(
        "{} on {}, {}, {items} items in {}{control}",
        pointer.suite,
        pointer.model,
        pointer.kv_cache_dtype,
        bins(pointer)
    )
}

fn bins(pointer: &Pointer) -> String {
    pointer.items.iter().map(|bin| Bin(bin.bin).to_string()).collect::<Vec<_>>().join(", ")
}

fn list(args: &ListArgs) -> Result<Exit, Failure> {
    let place = Place::open(&args.from, &[], false)?;
    let store = &place.store;
    let pointers = store.names()?.iter().map(|name| store.pointer(name)).collect::<Result<Vec<_>, _>>()?;
    if args.json {
        output::print_json(&pointers)?;
        return Ok(Exit::Success);
    }
    if pointers.is_empty() {
        output::print(&format!("no baseline in `{}`\n", args.from))?;
        return Ok(Exit::Success);
    }
    let header = ["name", "content", "accepted", "days", "suite", "model", "dtype", "bins", "A/A", "before"];
    let mut table = table::empty(header.map(String::from).to_vec());
    for pointer in &pointers {
        table.add_row(vec![
            pointer.name.clone(),
            pointer.short_hash().to_owned(),
            pointer.accepted_from().day().to_owned(),
            age_days(pointer).to_string(),
            pointer.suite.clone(),
            pointer.model.clone(),
            pointer.kv_cache_dtype.clone(),
            bins(pointer),
            if pointer.has_control { "yes" } else { "no" }.to_owned(),
            pointer.history.len().to_string(),
        ]);
    }
    output::print(&table::finished_left(&table))?;
    Ok(Exit::Success)
}

fn show(args: &ShowArgs) -> Result<Exit, Failure> {
    let place = Place::open(&args.from, std::slice::from_ref(&args.name), false)?;
    let pointer = place.store.pointer(&args.name)?;
    if args.json {
        output::print_json(&pointer)?;
        return Ok(Exit::Success);
    }
    let mut text = format!("{}: {}\n", pointer.name, described(&pointer));
    let engine = [pointer.engine.as_deref(), pointer.kernel.as_deref()].into_iter().flatten().collect::<Vec<_>>();
    let items: Vec<String> = pointer.items.iter().map(|bin| format!("{}: {}", Bin(bin.bin), bin.items)).collect();
    for (name, value) in [
        ("accepted", format!("{} ({} days ago)", pointer.accepted_at, age_days(&pointer))),
        ("note", pointer.note.clone().unwrap_or_else(|| "none".into())),
        ("content", pointer.hash.clone()),
        ("suite", pointer.suite_fingerprint.clone()),
        ("weights", pointer.weights.clone()),
        ("tokenizer", pointer.tokenizer.clone()),
        ("engine", if engine.is_empty() { "unknown".into() } else { engine.join(", ") }),
        ("items", items.join(", ")),
    ] {
        text += &format!("  {name:<10} {value}\n");
    }
    for Past { hash, accepted_at, note } in &pointer.history {
        let note = note.as_ref().map_or(String::new(), |note| format!(": {note}"));
        text += &format!("  {:<10} {} accepted {accepted_at}{note}\n", "before", &hash[..16.min(hash.len())]);
    }
    output::print(&text)?;
    Ok(Exit::Success)
}

fn verify(args: &VerifyArgs) -> Result<Exit, Failure> {
    let place = Place::open(&args.from, &args.names, true)?;
    let found = place.store.verify(&args.names)?;
    let too_old: Vec<Option<BaselineError>> =
        found.iter().map(|it| it.pointer.as_ref().and_then(|pointer| check_age(pointer, args.max_age).err())).collect();
    if args.json {
        let documents: Vec<Value> = found.iter().zip(&too_old).map(|(it, old)| document(it, old.is_some())).collect();
        output::print_json(&documents)?;
    } else {
        output::print(&found.iter().zip(&too_old).map(|(it, old)| lines(it, old.as_ref())).collect::<String>())?;
        if found.is_empty() {
            output::print(&format!("no baseline in `{}`\n", args.from))?;
        }
    }
    let is_good = found.iter().all(|it| it.damages.is_empty()) && too_old.iter().all(Option::is_none);
    Ok(if is_good { Exit::Success } else { Exit::Baseline })
}

fn document(found: &Verified, is_too_old: bool) -> Value {
    json!({
        "name": found.name,
        "content": found.content,
        "is_whole": found.damages.is_empty(),
        "damages": found.damages,
        "age_days": found.pointer.as_ref().map(age_days),
        "is_too_old": is_too_old,
    })
}

fn lines(found: &Verified, too_old: Option<&BaselineError>) -> String {
    let content = found.content.as_deref().unwrap_or("unknown content");
    let name =
        found.name.as_ref().map_or(format!("{content} (no name stands for it)"), |name| format!("{name} = {content}"));
    let mut text = match found.damages.is_empty() {
        true => format!("✓ {name}: every byte as accepted\n"),
        false => format!("✗ {name}: damaged\n"),
    };
    for damage in &found.damages {
        text += &format!("  {damage}\n");
    }
    if let Some(too_old) = too_old {
        text += &format!("  {too_old}\n");
    }
    text
}
