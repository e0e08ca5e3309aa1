//! The `[gate]` table of suite files and configurations, and what policy it makes. Shares are percentages there, differences are
//! points.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use super::file::Checker;
use super::{BinPlan, CellPolicy, GatePolicy, Suite, SuiteError, TaskGroup, TaskPlan, Tier};

/// How results are judged. Shares are percentages, differences are points.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GateFile {
    /// Error rate over all cells of a run. Default 0.05.
    alpha: Option<f64>,
    /// A smaller net drop never fails, in points. Default 2.
    min_effect: Option<f64>,
    /// A pass needs the upper limit of the drop below this, in points. Default 5.
    margin: Option<f64>,
    /// Largest drop in percent of what the baseline has right, where the baseline is below `relative_guard_below`: a proven drop of
    /// this size fails although it is small in points, and a pass has to exclude it. Default none.
    max_relative_drop: Option<f64>,
    /// Accuracy of the baseline below which `max_relative_drop` holds, in percent. Default 20.
    relative_guard_below: Option<f64>,
    /// Pairs below which a cell is not judged. Default 20.
    min_pairs: Option<u32>,
    /// Texts below which a cell with shared texts is not judged. Default 10.
    min_haystacks: Option<u32>,
    /// Accuracy of the baseline below which a cell has no power, in percent. Default 60.
    baseline_floor: Option<f64>,
    /// Least share of valid items per arm and cell, in percent. Default 98.
    min_valid_share: Option<f64>,
    /// The rate of a symptom has to rise by so many points. Default 2.
    symptom_min_rise: Option<f64>,
    /// And by so many items. Default 3.
    symptom_min_items: Option<u32>,
    /// Whether what would fail a run is asked again on fresh seeds, baseline and candidate, and fails only when it does so again.
    /// Needs a baseline that can be run. Default false.
    confirm: Option<bool>,
    /// Exceptions, by `group` or `group/bin`, for example `retrieval/32K`; the particular one wins, key by key.
    #[serde(default)]
    cells: BTreeMap<String, CellFile>,
}

/// An exception for the cells of a task group, in all bins or in one.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CellFile {
    /// `critical`: a regression fails the run, and a pass of the run needs a pass of the cell. `supporting`: a regression keeps the
    /// run from passing and does not fail it, and that nothing can be said of the cell is not held against the run. `advisory`: shown
    /// only. Default `critical`, or `advisory` where `required` is false.
    tier: Option<Tier>,
    /// A pass needs the upper limit of the drop below this, in points; replaces `margin`.
    max_drop: Option<f64>,
    /// Replaces `max_relative_drop`, in percent of what the baseline has right.
    max_relative_drop: Option<f64>,
    /// Replaces `relative_guard_below`, in percent.
    relative_guard_below: Option<f64>,
    /// A smaller net drop never fails, in points; replaces `min_effect`.
    min_effect: Option<f64>,
    /// Replaces `min_pairs`.
    min_pairs: Option<u32>,
    /// Replaces `min_haystacks`.
    min_haystacks: Option<u32>,
    /// Replaces `baseline_floor`, in percent.
    baseline_floor: Option<f64>,
    /// Replaces `min_valid_share` for the items of the cell, in percent.
    min_valid_share: Option<f64>,
    /// Whether the cell has to have data: a run without is INVALID, never a pass. Default true; nothing is
    /// required of an `advisory` cell.
    required: Option<bool>,
}

/// The policy that a `[gate]` table, in the spelling of suite files, makes of the suite's own.
pub(super) fn gate(table: &toml::Table, origin: &str, suite: &Suite) -> Result<GatePolicy, SuiteError> {
    let file: GateFile = table.clone().try_into().map_err(|error: toml::de::Error| SuiteError::Syntax {
        origin: format!("{origin}, [gate]"),
        line: 1,
        message: error.message().to_owned(),
    })?;
    Checker { origin, folder: None }.gate(file, &suite.bins, &suite.tasks, &suite.gate)
}

impl Checker<'_> {
    /// The gate of `file` on top of `default`; exceptions of the same cell replace each other.
    pub(super) fn gate(
        &self,
        file: GateFile,
        bins: &[BinPlan],
        tasks: &[TaskPlan],
        default: &GatePolicy,
    ) -> Result<GatePolicy, SuiteError> {
        let alpha = file.alpha.unwrap_or(default.alpha);
        if !(alpha > 0.0 && alpha < 0.5) {
            return Err(self.invalid("gate.alpha", format!("{alpha} is not between 0 and 0.5")));
        }
        let mut cells = default.cells.clone();
        for (cell, exception) in file.cells {
            self.cell_key(&cell, bins, tasks)?;
            let policy = self.cell(&cell, exception)?;
            cells.insert(cell, policy);
        }
        let share =
            |key: &str, percent: Option<f64>, default: f64| self.share(key, percent).map(|it| it.unwrap_or(default));
        let count =
            |key: &str, count: Option<u32>, default: u32| self.at_least_one(key, count).map(|it| it.unwrap_or(default));
        let relative = self.relative("max_relative_drop", file.max_relative_drop)?;
        Ok(GatePolicy {
            alpha,
            min_effect: share("min_effect", file.min_effect, default.min_effect)?,
            margin: self.margin("margin", file.margin)?.unwrap_or(default.margin),
            max_relative_drop: relative.or(default.max_relative_drop),
            relative_guard_below: share(
                "relative_guard_below",
                file.relative_guard_below,
                default.relative_guard_below,
            )?,
            min_pairs: count("min_pairs", file.min_pairs, default.min_pairs)?,
            min_haystacks: count("min_haystacks", file.min_haystacks, default.min_haystacks)?,
            baseline_floor: share("baseline_floor", file.baseline_floor, default.baseline_floor)?,
            min_valid_share: self
                .valid_share("min_valid_share", file.min_valid_share)?
                .unwrap_or(default.min_valid_share),
            symptom_min_rise: share("symptom_min_rise", file.symptom_min_rise, default.symptom_min_rise)?,
            symptom_min_items: file.symptom_min_items.unwrap_or(default.symptom_min_items),
            confirm: file.confirm.unwrap_or(default.confirm),
            cells,
        })
    }

    fn cell(&self, cell: &str, file: CellFile) -> Result<CellPolicy, SuiteError> {
        let key = |field: &str| format!("cells.\"{cell}\".{field}");
        Ok(CellPolicy {
            tier: file.tier,
            max_drop: self.margin(&key("max_drop"), file.max_drop)?,
            max_relative_drop: self.relative(&key("max_relative_drop"), file.max_relative_drop)?,
            relative_guard_below: self.share(&key("relative_guard_below"), file.relative_guard_below)?,
            min_effect: self.share(&key("min_effect"), file.min_effect)?,
            min_pairs: self.at_least_one(&key("min_pairs"), file.min_pairs)?,
            min_haystacks: self.at_least_one(&key("min_haystacks"), file.min_haystacks)?,
            baseline_floor: self.share(&key("baseline_floor"), file.baseline_floor)?,
            min_valid_share: self.valid_share(&key("min_valid_share"), file.min_valid_share)?,
            required: file.required,
        })
    }

    /// A percentage as a share.
    fn share(&self, key: &str, percent: Option<f64>) -> Result<Option<f64>, SuiteError> {
        match percent {
            Some(percent) if !(0.0..=100.0).contains(&percent) => {
                Err(self.invalid(&format!("gate.{key}"), format!("{percent} is not between 0 and 100")))
            }
            percent => Ok(percent.map(|percent| percent / 100.0)),
        }
    }

    /// A drop in points as a share. Nothing is below a margin of 0, and everything is below 100.
    fn margin(&self, key: &str, points: Option<f64>) -> Result<Option<f64>, SuiteError> {
        match points {
            Some(points) if !(points > 0.0 && points < 100.0) => {
                let message = format!("{points} is not between 0 and 100 points, without these two");
                Err(self.invalid(&format!("gate.{key}"), message))
            }
            points => self.share(key, points),
        }
    }

    /// A drop in percent of the baseline. Nothing is below 0, and at 100 everything may be lost.
    fn relative(&self, key: &str, percent: Option<f64>) -> Result<Option<f64>, SuiteError> {
        match percent {
            Some(percent) if !(percent > 0.0 && percent < 100.0) => {
                let message = format!("{percent} is not between 0 and 100 percent of the baseline, without these two");
                Err(self.invalid(&format!("gate.{key}"), message))
            }
            percent => self.share(key, percent),
        }
    }

    fn valid_share(&self, key: &str, percent: Option<f64>) -> Result<Option<f64>, SuiteError> {
        if percent == Some(0.0) {
            let message = "0 would judge a run without a valid answer; a share above 0 is needed";
            return Err(self.invalid(&format!("gate.{key}"), message));
        }
        self.share(key, percent)
    }

    fn at_least_one(&self, key: &str, count: Option<u32>) -> Result<Option<u32>, SuiteError> {
        if count == Some(0) {
            let message = "0 would judge cells without evidence; 1 is the least";
            return Err(self.invalid(&format!("gate.{key}"), message));
        }
        Ok(count)
    }

    /// `group` or `group/bin`, asked together in this suite: an exception for nothing would silently never hold.
    fn cell_key(&self, cell: &str, bins: &[BinPlan], tasks: &[TaskPlan]) -> Result<(), SuiteError> {
        let unknown = |what, part: &str, known: Vec<String>| SuiteError::UnknownCell {
            origin: self.origin.into(),
            cell: cell.into(),
            what,
            part: part.into(),
            known,
        };
        let (group, bin) = cell.split_once('/').map_or((cell, None), |(group, bin)| (group, Some(bin)));
        let mut groups: Vec<String> =
            tasks.iter().map(|plan| TaskGroup::of_task(&plan.task).name().to_owned()).collect();
        groups.sort_unstable();
        groups.dedup();
        if !groups.iter().any(|known| known == group) {
            return Err(unknown("task group", group, groups));
        }
        let Some(bin) = bin else { return Ok(()) };
        let names: Vec<String> = bins.iter().map(|plan| plan.bin.to_string()).collect();
        if !names.iter().any(|name| name == bin) {
            return Err(unknown("bin", bin, names));
        }
        let is_asked = |asked: &&BinPlan| {
            let mut of_group = tasks.iter().filter(|plan| TaskGroup::of_task(&plan.task).name() == group);
            of_group.any(|plan| plan.bins.contains(&asked.bin))
        };
        let asked: Vec<String> = bins.iter().filter(is_asked).map(|plan| plan.bin.to_string()).collect();
        if asked.iter().any(|name| name == bin) { Ok(()) } else { Err(unknown("bin with this group", bin, asked)) }
    }
}
