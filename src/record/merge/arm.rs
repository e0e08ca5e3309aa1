//! One arm out of the records of all shards.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{MergeError, ShardFolder, agree};
use crate::record::manifest::{
    self, Difference, FORMAT, ITEMS_FIELD, MAX_MANIFEST_BYTES, Manifest, RunStatus, SHARD_FIELD,
};
use crate::record::samples::SampleRecord;
use crate::record::storage::{Disk, Storage as _, write_whole};
use crate::record::{EVENTS_FILE, MANIFEST_FILE, Record, RecordError, RecordWriter, journal};
use crate::sample::Bin;
use crate::setup::Arm;
use crate::suite::{GroupSpec, ItemSpec, Plan, Shard};

/// Largest event log read: a start adds a line, so a real one has some hundred bytes.
const MAX_EVENTS_BYTES: u64 = 1024 * 1024;

/// A merged arm, not yet written.
pub(super) struct MergedRecord {
    /// All items of the arm.
    pub(super) plan: Plan,
    manifest: Manifest,
    /// By item.
    pub(super) samples: BTreeMap<String, SampleRecord>,
    /// Lines with their times, oldest first.
    events: Vec<(u64, String)>,
}

/// What a shard has of the arm.
struct Part {
    dir: PathBuf,
    shard: Shard,
    record: Record,
    /// All items of the arm, those of the other shards included.
    whole: Plan,
}

/// Reads the records of `arm` in all shards; `None` where none has one.
pub(super) fn read(
    folders: &[ShardFolder],
    plan: &Plan,
    arm: &Arm,
    partial: bool,
    notes: &mut Vec<String>,
) -> Result<Option<MergedRecord>, MergeError> {
    let mut parts: Vec<Part> = Vec::new();
    for folder in folders {
        match Part::read(folder, plan, arm, notes) {
            Err(MergeError::Record(RecordError::NotFound { .. })) if partial => {}
            Err(MergeError::Record(source @ RecordError::NotFound { .. })) => {
                return Err(MergeError::ArmMissing { arm: arm.name.clone(), dir: folder.dir.clone(), source });
            }
            part => parts.push(part?),
        }
    }
    let Some(first) = parts.first() else { return Ok(None) };
    refuse_differences(&parts)?;
    let whole = first.whole.clone();
    let manifest = manifest_of(&parts, &whole)?;
    let (mut samples, mut events) = (BTreeMap::new(), Vec::new());
    for part in parts {
        let missing = part.refuse_foreign()?;
        if !missing.is_empty() && !partial {
            return Err(MergeError::ItemsMissing { dir: part.dir, items: missing });
        }
        events.extend(events_in(&part.dir, notes));
        samples.extend(part.record.samples.into_iter().map(|sample| (sample.item_id.clone(), sample)));
    }
    events.sort_by_key(|(unix_ms, _)| *unix_ms);
    Ok(Some(MergedRecord { plan: whole, manifest, samples, events }))
}

fn refuse_differences(parts: &[Part]) -> Result<(), MergeError> {
    let differs = |first: &Part, second: &Part, differences| {
        Err(MergeError::Differs { first: first.dir.clone(), second: second.dir.clone(), differences })
    };
    for other in &parts[1..] {
        let differences = agree::identity_differences(&parts[0].record.manifest, &other.record.manifest);
        if !differences.is_empty() {
            return differs(&parts[0], other, differences);
        }
    }
    let manifests: Vec<&Manifest> = parts.iter().map(|part| &part.record.manifest).collect();
    match agree::fact_in_conflict(&manifests) {
        Some((first, second, fact)) => differs(&parts[first], &parts[second], vec![fact]),
        None => Ok(()),
    }
}

/// The manifest that a run without shards would have.
fn manifest_of(parts: &[Part], whole: &Plan) -> Result<Manifest, MergeError> {
    let of_shards: Vec<(Shard, &Manifest)> = parts.iter().map(|part| (part.shard, &part.record.manifest)).collect();
    let mut merged = parts[0].record.manifest.clone();
    merged.format = FORMAT;
    merged.plan.remove(SHARD_FIELD);
    merged.plan_hash = manifest::plan_hash(&merged.plan, &merged.arm);
    merged.planned_items = whole.item_count() as u64;
    merged.status = RunStatus::Started;
    merged.resolved = agree::resolved(&of_shards);
    merged.checks = agree::checks(&of_shards);
    merged.environment = agree::environment(&of_shards);
    let bytes = merged.to_json().len() as u64;
    if bytes > MAX_MANIFEST_BYTES {
        let reason = format!("merged with the others it takes {bytes} bytes, at most {MAX_MANIFEST_BYTES} are read");
        return Err(RecordError::malformed(&parts[0].dir.join(MANIFEST_FILE), reason).into());
    }
    Ok(merged)
}

impl Part {
    fn read(folder: &ShardFolder, plan: &Plan, arm: &Arm, notes: &mut Vec<String>) -> Result<Self, MergeError> {
        let dir = folder.dir.join(&arm.name);
        let (record, said) = Record::read_noting(&dir)?;
        notes.extend(said.into_iter().map(|line| format!("{}: {line}", dir.display())));
        let manifest = &record.manifest;
        if manifest.format.is_newer_minor() {
            let (path, found) = (dir.join(MANIFEST_FILE), manifest.format);
            return Err(RecordError::Format { path, found, known: FORMAT, appending: true }.into());
        }
        let mut differences = Vec::new();
        let mut expect = |field: &str, recorded: Option<String>, asked: String| {
            if recorded.as_ref() != Some(&asked) {
                differences.push(Difference { field: field.into(), recorded, asked: Some(asked) });
            }
        };
        let shown = |arm: &Arm| serde_json::to_string(arm).expect("strings always serialise");
        let of_plan = |field: &str| manifest.plan.get(field).cloned();
        expect("arm", Some(shown(&manifest.arm)), shown(arm));
        expect("plan.suite", of_plan("suite"), folder.run.suite_fingerprint.clone());
        expect("plan.shard", of_plan(SHARD_FIELD), folder.shard.to_string());
        let items = of_plan(ITEMS_FIELD);
        let whole = items.as_deref().and_then(|hash| plan_with(plan, hash));
        match &whole {
            None => expect("plan.items", items, plan.items_hash()),
            Some(whole) => {
                let planned = whole.shard(folder.shard).item_count();
                expect("planned_items", Some(manifest.planned_items.to_string()), planned.to_string());
            }
        }
        match whole {
            Some(whole) if differences.is_empty() => Ok(Self { dir, shard: folder.shard, record, whole }),
            _ => Err(RecordError::PlanDiffers { path: dir, differences }.into()),
        }
    }

    /// Refuses items that are not this shard's. Returns those of its own that have no record, each with task and bin.
    fn refuse_foreign(&self) -> Result<Vec<String>, MergeError> {
        let all = self.whole.groups.iter().flat_map(|group| group.items.iter().map(move |item| (group, item)));
        let mut known: BTreeMap<&str, (&GroupSpec, &ItemSpec)> =
            all.map(|(group, item)| (item.item_id.as_str(), (group, item))).collect();
        for sample in &self.record.samples {
            let reason = match known.remove(sample.item_id.as_str()) {
                None => "which is not in the plan".to_owned(),
                Some((group, item)) => match self.contradiction(sample, group, item) {
                    Some(reason) => reason,
                    None => continue,
                },
            };
            return Err(MergeError::ForeignItem { dir: self.dir.clone(), item_id: sample.item_id.clone(), reason });
        }
        let own = self.whole.groups.iter().filter(|group| self.shard.holds(&group.haystack_id));
        let own = own.flat_map(|group| group.items.iter().map(|item| (group.bin, item)));
        let missing = own.filter(|(_, item)| known.contains_key(item.item_id.as_str()));
        Ok(missing.map(|(bin, item)| format!("{} ({}, {bin})", item.item_id, item.task)).collect())
    }

    /// What a sample contradicts of the plan.
    fn contradiction(&self, sample: &SampleRecord, group: &GroupSpec, item: &ItemSpec) -> Option<String> {
        let holder = Shard::of_haystack(&group.haystack_id, self.shard.of()).ok()?;
        if holder != self.shard {
            return Some(format!("which is one of shard {holder}"));
        }
        let planned = (group.haystack_id.as_str(), group.bin, item.task.as_str(), item.slot_percent, item.index);
        let found = (sample.haystack_id.as_str(), sample.bin, sample.task.as_str(), sample.slot_percent, sample.index);
        let is_planned = found == planned && sample.variant_of == item.variant_of;
        (!is_planned).then(|| format!("which says it is {found:?} and is planned as {planned:?}"))
    }
}

/// The part of the plan that has this hash: all of it or, of an A/A arm, its shortest bins.
fn plan_with(plan: &Plan, hash: &str) -> Option<Plan> {
    if plan.items_hash() == hash {
        return Some(plan.clone());
    }
    let mut bins: Vec<Bin> = plan.groups.iter().map(|group| group.bin).collect();
    bins.sort_unstable();
    bins.dedup();
    (1..bins.len()).map(|n_bin| plan.only_bins(&bins[..n_bin])).find(|part| part.items_hash() == hash)
}

/// The first of all events is when the run was started. Events are for people: what cannot be read is said and left out.
fn events_in(dir: &Path, notes: &mut Vec<String>) -> Vec<(u64, String)> {
    #[derive(Deserialize)]
    struct Time {
        unix_ms: u64,
    }
    let path = dir.join(EVENTS_FILE);
    let bytes = match journal::read_small(&path, MAX_EVENTS_BYTES) {
        Ok(bytes) => bytes.unwrap_or_default(),
        Err(error) => {
            notes.push(format!("{error}: left out"));
            return Vec::new();
        }
    };
    let text = String::from_utf8_lossy(&bytes);
    let timed = |line: &str| Some((serde_json::from_str::<Time>(line).ok()?.unix_ms, line.to_owned()));
    text.lines().filter_map(timed).collect()
}

impl MergedRecord {
    /// Writes the record in the order of the plan, in which one machine would have asked.
    pub(super) fn write(mut self, dir: &Path) -> Result<(), MergeError> {
        Disk.create_dir_all(dir).map_err(RecordError::storage(dir))?;
        let path = dir.join(EVENTS_FILE);
        let lines: String = self.events.iter().map(|(_, line)| format!("{line}\n")).collect();
        let write_events = || {
            let mut file = Disk.create(&path)?;
            write_whole(file.as_mut(), lines.as_bytes())?;
            file.sync()
        };
        write_events().map_err(RecordError::storage(&path))?;
        let mut writer = RecordWriter::open(dir, &self.manifest)?.writer;
        let is_complete = self.samples.len() == self.plan.item_count();
        for item in self.plan.groups.iter().flat_map(|group| &group.items) {
            if let Some(sample) = self.samples.remove(&item.item_id) {
                writer.append(&sample)?;
            }
        }
        Ok(writer.finish(if is_complete { RunStatus::Complete } else { RunStatus::Interrupted })?)
    }
}
