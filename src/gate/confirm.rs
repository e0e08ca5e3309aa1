//! Before a run fails, what would fail it is asked again on fresh seeds, baseline and candidate, and fails only when it rejects
//! again.
//!
//! Both have to reject, so noise that is independent between the two alarms at about α². What the second run is tested for was
//! chosen by the first, whose items it does not share; so its family is what was chosen, and Holm's procedure over that holds α.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::compare::{ArmComparison, Comparison, Delta, SymptomDelta};
use crate::gate::{
    CellVerdict, GateError, Parts, Ruling, SymptomVerdict, Verdict, cells, conclude, policy, replicas, symptoms,
    validity,
};
use crate::sample::Bin;
use crate::stats::adjust::holm;
use crate::suite::{GatePolicy, Tier};

/// Fields of the plan in which a confirmation is another one: it has other items of one bin only. Faults that a dry run plants are
/// named with their bins.
const FRESH_FIELDS: [&str; 4] = ["suite", "items", "seed", "damage"];

/// An arm that would fail the run, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspect {
    /// Arm name.
    pub arm: String,
    /// The bins to ask again.
    pub bins: BTreeSet<Bin>,
}

/// A cell on fresh seeds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Confirmation {
    /// Holm-adjusted p over all that was asked again; `None` where the cell cannot be judged.
    pub adjusted_p: Option<f64>,
    /// Whether it rejects again.
    pub rejects: bool,
    /// The numbers.
    pub delta: Delta,
}

/// A symptom on fresh seeds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SymptomConfirmation {
    /// Holm-adjusted p over all that was asked again.
    pub adjusted_p: f64,
    /// Whether it rises again.
    pub rejects: bool,
    /// The numbers; `None` where neither arm showed the symptom.
    pub symptom: Option<SymptomDelta>,
}

/// What a confirmation has to ask again before `verdict` may fail the run: every arm that is REGRESSED, with the bins of its critical
/// cells and symptoms that are.
pub fn suspects(verdict: &Verdict) -> Vec<Suspect> {
    let regressed = verdict.arms.iter().filter(|arm| arm.ruling == Ruling::Regressed);
    let of_arm = regressed.map(|arm| {
        let cells = arm.cells.iter().filter(|cell| is_suspect(cell)).map(|cell| cell.bin);
        let symptoms = arm.symptoms.iter().filter(|it| it.regressed).map(|it| it.symptom.bin);
        Suspect { arm: arm.arm.clone(), bins: cells.chain(symptoms).collect() }
    });
    of_arm.collect()
}

fn is_suspect(cell: &CellVerdict) -> bool {
    cell.tier == Tier::Critical && cell.ruling == Ruling::Regressed
}

/// The verdict after the confirmation: what does not reject again is INCONCLUSIVE. `again` holds comparisons of the same arms on
/// fresh seeds, each of some of the bins; their noise is taken from the A/A arm of `comparison`.
///
/// # Errors
/// [`GateError::Unconfirmed`] when a suspect is in none of `again`; [`GateError::OtherConfirmation`] and [`GateError::SameSeed`] when
/// what is there confirms nothing of this run.
pub fn confirmed(
    comparison: &Comparison,
    policy: &GatePolicy,
    verdict: Verdict,
    again: &[Comparison],
) -> Result<Verdict, GateError> {
    let suspects = suspects(&verdict);
    let mut places = Vec::new();
    for suspect in &suspects {
        for bin in &suspect.bins {
            places.push(Place::find(comparison, again, &suspect.arm, *bin)?);
        }
    }
    if places.is_empty() {
        return Ok(verdict);
    }
    let mut parts: Vec<Parts> = verdict
        .arms
        .into_iter()
        .map(|arm| Parts { invalid: arm.invalid, cells: arm.cells, symptoms: arm.symptoms })
        .collect();
    for (arm, parts) in parts.iter_mut().enumerate() {
        for place in places.iter().filter(|place| place.index == arm) {
            parts.invalid.extend(place.invalid(comparison, policy));
        }
    }
    let originals = replicas::originals(comparison);
    confirm_cells(policy, &mut parts, &places, &originals);
    confirm_symptoms(policy, &mut parts, &places, &originals);
    Ok(conclude(comparison, policy, parts))
}

/// One arm in one bin on fresh seeds.
struct Place<'a> {
    /// Of the arm among the candidates of the run.
    index: usize,
    bin: Bin,
    again: &'a Comparison,
    arm: &'a ArmComparison,
}

impl<'a> Place<'a> {
    fn find(first: &Comparison, again: &'a [Comparison], name: &str, bin: Bin) -> Result<Self, GateError> {
        let unconfirmed = || GateError::Unconfirmed { arm: name.into(), bin };
        let index = first.candidates.iter().position(|it| it.summary.arm.name == name).ok_or_else(unconfirmed)?;
        let here = again.iter().filter(|again| again.bins.contains(&bin));
        let mut found =
            here.filter_map(|again| Some((again, again.candidates.iter().find(|it| it.summary.arm.name == name)?)));
        let (again, arm) = found.next_back().ok_or_else(unconfirmed)?;
        let place = Self { index, bin, again, arm };
        place.refuse_other_measurement(first)?;
        Ok(place)
    }

    fn refuse_other_measurement(&self, first: &Comparison) -> Result<(), GateError> {
        let (name, bin) = (self.arm.summary.arm.name.clone(), self.bin);
        if let (Some(seed), Some(fresh)) = (first.plan.get("seed"), self.again.plan.get("seed"))
            && seed == fresh
        {
            return Err(GateError::SameSeed { arm: name, bin, seed: seed.clone() });
        }
        let other = |what: &str, first: String, again: String| GateError::OtherConfirmation {
            arm: name.clone(),
            bin,
            what: what.into(),
            first,
            again,
        };
        let fields: BTreeSet<&String> = first.plan.keys().chain(self.again.plan.keys()).collect();
        for field in fields.into_iter().filter(|field| !FRESH_FIELDS.contains(&field.as_str())) {
            let value =
                |comparison: &Comparison| comparison.plan.get(field).cloned().unwrap_or_else(|| "absent".into());
            if value(first) != value(self.again) {
                return Err(other(field, value(first), value(self.again)));
            }
        }
        if first.suite != self.again.suite {
            return Err(other("the suite", first.suite.clone(), self.again.suite.clone()));
        }
        let arms = [
            (&first.baseline.arm, &self.again.baseline.arm),
            (&first.candidates[self.index].summary.arm, &self.arm.summary.arm),
        ];
        match arms.into_iter().find(|(ours, theirs)| ours != theirs) {
            Some((ours, theirs)) => Err(other("an arm", format!("{ours:?}"), format!("{theirs:?}"))),
            None => Ok(()),
        }
    }

    /// Why the second run is no measurement, in the words of the first.
    fn invalid(&self, first: &Comparison, policy: &GatePolicy) -> Vec<String> {
        let with_noise =
            Comparison { control: first.control.clone(), repeats: first.repeats.clone(), ..self.again.clone() };
        let reasons = validity::reasons(&with_noise, policy, self.arm);
        reasons.into_iter().map(|reason| format!("confirmation at {}: {reason}", self.bin)).collect()
    }
}

/// Holm over the suspects, given as arm and p. An arm that repeats another one (see [`replicas`]) has the same suspects in the same
/// order: it adds no test and gets the values of the original.
fn adjusted(tests: &[(usize, f64)], originals: &[usize]) -> Vec<f64> {
    let nth = |index: usize| tests[..index].iter().filter(|(arm, _)| *arm == tests[index].0).count();
    let of_originals: Vec<usize> =
        (0..tests.len()).filter(|index| originals[tests[*index].0] == tests[*index].0).collect();
    let p_values = holm(&of_originals.iter().map(|index| tests[*index].1).collect::<Vec<_>>());
    let known: BTreeMap<(usize, usize), f64> =
        of_originals.into_iter().map(|index| (tests[index].0, nth(index))).zip(p_values).collect();
    (0..tests.len()).map(|index| known.get(&(originals[tests[index].0], nth(index))).copied().unwrap_or(1.0)).collect()
}

fn confirm_cells(policy: &GatePolicy, parts: &mut [Parts], places: &[Place<'_>], originals: &[usize]) {
    let mut asked: Vec<(&mut CellVerdict, usize, Delta, bool)> = Vec::new();
    for (arm, parts) in parts.iter_mut().enumerate() {
        for cell in parts.cells.iter_mut().filter(|cell| is_suspect(cell)) {
            let Some(place) = places.iter().find(|place| place.index == arm && place.bin == cell.bin) else { continue };
            let found = place.arm.groups.iter().find(|it| it.group == cell.group && it.delta.bin == Some(cell.bin));
            let delta = found.map_or_else(|| Delta::empty(cell.group.name(), Some(cell.bin)), |it| it.delta.clone());
            let is_judged = cells::obstacles(&policy::of_cell(policy, cell.group, cell.bin), &delta).is_empty();
            asked.push((cell, arm, delta, is_judged));
        }
    }
    let tests: Vec<(usize, f64)> = asked
        .iter()
        .map(|(_, arm, delta, is_judged)| (*arm, delta.p_worse.filter(|_| *is_judged).unwrap_or(1.0)))
        .collect();
    for ((cell, _, delta, is_judged), p) in asked.into_iter().zip(adjusted(&tests, originals)) {
        let rules = policy::of_cell(policy, cell.group, cell.bin);
        let rejects = is_judged && p < policy.alpha && cells::proven_drop(&rules, &delta).is_some();
        let reason = match (rejects, is_judged) {
            (true, _) => "confirmed: the drop is significant again on fresh seeds",
            (false, true) => "not confirmed: on fresh seeds the drop is not significant again",
            (false, false) => "not confirmed: on fresh seeds there are too few pairs to judge",
        };
        if !rejects {
            cell.ruling = Ruling::Inconclusive;
        }
        cell.reasons.insert(0, reason.into());
        cell.confirmation = Some(Box::new(Confirmation { adjusted_p: is_judged.then_some(p), rejects, delta }));
    }
}

fn confirm_symptoms(policy: &GatePolicy, parts: &mut [Parts], places: &[Place<'_>], originals: &[usize]) {
    let mut asked: Vec<(&mut SymptomVerdict, usize, Option<SymptomDelta>)> = Vec::new();
    for (arm, parts) in parts.iter_mut().enumerate() {
        for verdict in parts.symptoms.iter_mut().filter(|verdict| verdict.regressed) {
            let (kind, bin) = (verdict.symptom.kind, verdict.symptom.bin);
            let Some(place) = places.iter().find(|place| place.index == arm && place.bin == bin) else { continue };
            let found = place.arm.symptoms.iter().find(|it| it.kind == kind && it.bin == bin).cloned();
            asked.push((verdict, arm, found));
        }
    }
    let is_judged = |symptom: &&SymptomDelta| symptom.pairs >= u64::from(policy.min_pairs);
    let p_rise = |found: &Option<SymptomDelta>| found.as_ref().filter(is_judged).map_or(1.0, |symptom| symptom.p_rise);
    let tests: Vec<(usize, f64)> = asked.iter().map(|(_, arm, found)| (*arm, p_rise(found))).collect();
    for ((verdict, _, symptom), adjusted_p) in asked.into_iter().zip(adjusted(&tests, originals)) {
        let rejects = symptom.as_ref().is_some_and(|symptom| symptoms::rises(policy, symptom, adjusted_p));
        verdict.regressed = rejects;
        verdict.confirmation = Some(Box::new(SymptomConfirmation { adjusted_p, rejects, symptom }));
    }
}
