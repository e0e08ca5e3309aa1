//! A part of a suite: some bins, some tasks, another number of items or another seed.

use super::file::{MAX_SAMPLES, check_items};
use super::{Suite, SuiteError, TaskGroup};
use crate::sample::Bin;

impl Suite {
    /// The suite cut down to `bins` and `tasks`, with `samples` items per task and bin and another `seed`, where given.
    ///
    /// The items of what is left are those of the whole suite as long as `samples` and the sharing of haystacks are the
    /// same; gate exceptions for bins and groups that are gone are dropped.
    ///
    /// # Errors
    /// When a bin or a task is not in the suite, or nothing is left.
    pub fn select(
        &self,
        bins: Option<&[Bin]>,
        tasks: Option<&[String]>,
        samples: Option<u32>,
        seed: Option<u64>,
    ) -> Result<Self, SuiteError> {
        let mut selected = self.clone();
        if let Some(bins) = bins {
            let known: Vec<Bin> = self.bins.iter().map(|plan| plan.bin).collect();
            if let Some(bin) = bins.iter().find(|bin| !known.contains(bin)) {
                return Err(SuiteError::UnknownBin { origin: self.origin(), bin: bin.to_string(), known });
            }
            selected.bins.retain(|plan| bins.contains(&plan.bin));
            for task in &mut selected.tasks {
                task.bins.retain(|bin| bins.contains(bin));
            }
        }
        if let Some(tasks) = tasks {
            let known: Vec<String> = self.tasks.iter().map(|plan| plan.task.clone()).collect();
            if let Some(task) = tasks.iter().find(|task| !known.contains(task)) {
                return Err(SuiteError::UnknownTask { origin: self.origin(), task: task.clone(), known });
            }
            selected.tasks.retain(|plan| tasks.contains(&plan.task));
        }
        if let Some(samples) = samples {
            if samples == 0 {
                return Err(SuiteError::NothingSelected { origin: self.origin() });
            }
            if samples > MAX_SAMPLES {
                let (found, limit) = (samples.into(), MAX_SAMPLES.into());
                return Err(SuiteError::Limit { origin: self.origin(), what: "samples".into(), found, limit });
            }
            selected.bins.iter_mut().for_each(|plan| plan.samples = samples);
            for plan in &mut selected.tasks {
                plan.samples.clear();
                if plan.custom.is_some() {
                    // A file is asked whole unless it is said how much of it.
                    plan.samples.extend(plan.bins.iter().map(|bin| (*bin, samples)));
                }
            }
        }
        selected.seed = seed.unwrap_or(self.seed);
        selected.tasks.retain(|plan| !plan.bins.is_empty());
        let is_asked = |bin: &Bin| selected.tasks.iter().any(|plan| plan.bins.contains(bin));
        selected.bins.retain(|plan| is_asked(&plan.bin));
        if selected.bins.is_empty() {
            return Err(SuiteError::NothingSelected { origin: self.origin() });
        }
        let tasks = &selected.tasks;
        selected.gate.cells.retain(|cell, _| {
            let (group, bin) = cell.split_once('/').map_or((cell.as_str(), None), |(group, bin)| (group, Some(bin)));
            let mut of_group = tasks.iter().filter(|plan| TaskGroup::of_task(&plan.task).name() == group);
            of_group.any(|plan| bin.is_none_or(|bin| plan.bins.iter().any(|known| known.to_string() == bin)))
        });
        check_items(&selected, &self.origin())?;
        Ok(selected)
    }

    fn origin(&self) -> String {
        format!("suite {}", self.name)
    }
}
