//! Which record of an answer stands for which record asked for, and what is wrong with the answer then.

use serde_json::{Map, Value};

use crate::sample::{Fault, FaultKind};
use crate::scorers::answer_text::longest_increasing;
use crate::scorers::{fault, seen};

/// Answer records that are matched: four times those asked for and some; a loop's further copies are only counted.
const MATCHED_TIMES: usize = 4;
const MATCHED_MORE: usize = 64;

pub(super) type Record = Map<String, Value>;

/// Equal as JSON values; `number` fields compare by value, so that 5 and 5.0 are one number where the schema says so.
fn same(wanted: Option<&Value>, answer: Option<&Value>, kind: &str) -> bool {
    match (wanted, answer) {
        (Some(Value::Number(a)), Some(Value::Number(b))) if kind == "number" => a.as_f64() == b.as_f64(),
        (Some(a), Some(b)) => a == b,
        _ => false,
    }
}

/// Which answer record stands for which gold record.
pub(super) struct Matching {
    /// Per gold record the position of its answer record.
    answer_of: Vec<Option<usize>>,
}

impl Matching {
    /// Equal records first, in order of position; then, greedily, those that share the most fields.
    pub(super) fn of(gold: &[Record], answer: &[&Record]) -> Self {
        let answer = &answer[..answer.len().min(gold.len() * MATCHED_TIMES + MATCHED_MORE)];
        let mut answer_of = vec![None; gold.len()];
        let mut taken = vec![false; answer.len()];
        for (g, record) in gold.iter().enumerate() {
            let free = |&a: &usize| !taken[a] && answer[a] == record;
            if let Some(a) = (0..answer.len()).filter(free).min_by_key(|a| a.abs_diff(g)) {
                answer_of[g] = Some(a);
                taken[a] = true;
            }
        }
        let mut candidates: Vec<(usize, usize, usize, usize)> = Vec::new();
        for (g, record) in gold.iter().enumerate().filter(|(g, _)| answer_of[*g].is_none()) {
            for (a, given) in answer.iter().enumerate().filter(|(a, _)| !taken[*a]) {
                let shared = record.iter().filter(|(name, value)| given.get(*name) == Some(*value)).count();
                if shared > 0 {
                    candidates.push((shared, a.abs_diff(g), g, a));
                }
            }
        }
        candidates.sort_by_key(|&(shared, apart, g, a)| (std::cmp::Reverse(shared), apart, g, a));
        for (_, _, g, a) in candidates {
            if answer_of[g].is_none() && !taken[a] {
                answer_of[g] = Some(a);
                taken[a] = true;
            }
        }
        Self { answer_of }
    }

    pub(super) fn positions(&self) -> Vec<usize> {
        self.answer_of.iter().flatten().copied().collect()
    }

    /// Per record asked for: whether the answer has it exactly, nothing missing and nothing added.
    pub(super) fn exact(&self, gold: &[Record], answer: &[&Record], fields: &[(String, String)]) -> Vec<bool> {
        let is_exact = |(record, at): (&Record, &Option<usize>)| {
            at.is_some_and(|a| {
                answer[a].len() == record.len()
                    && fields.iter().all(|(name, kind)| same(record.get(name), answer[a].get(name), kind))
            })
        };
        gold.iter().zip(&self.answer_of).map(is_exact).collect()
    }

    /// Fields of matched records that differ, as `record 3 field`.
    fn wrong_fields(&self, gold: &[Record], answer: &[&Record], fields: &[(String, String)]) -> Vec<String> {
        let mut found = Vec::new();
        for (g, a) in self.answer_of.iter().enumerate().filter_map(|(g, a)| Some((g, (*a)?))) {
            for (name, kind) in fields {
                let (wanted, given) = (gold[g].get(name), answer[a].get(name));
                if !same(wanted, given, kind) {
                    let shown =
                        |value: Option<&Value>| value.map_or("nothing".into(), |value| seen(&value.to_string()));
                    found.push(format!("record {} `{name}`: {} for {}", g + 1, shown(given), shown(wanted)));
                }
            }
        }
        found
    }

    pub(super) fn faults(&self, gold: &[Record], answer: &[&Record], fields: &[(String, String)]) -> Vec<Fault> {
        let wrong = self.wrong_fields(gold, answer, fields);
        let positions = self.positions();
        let moved = positions.len() - longest_increasing(&positions);
        let missing: Vec<usize> = (0..gold.len()).filter(|&g| self.answer_of[g].is_none()).collect();
        let (mut again, mut extra) = (0, 0);
        for record in answer.iter().enumerate().filter(|(a, _)| !positions.contains(a)).map(|(_, record)| *record) {
            if gold.contains(record) { again += 1 } else { extra += 1 }
        }
        let mut faults = Vec::new();
        let mut add = |kind, note: Option<String>| faults.extend(note.map(|note| fault(kind, note)));
        add(FaultKind::WrongField, wrong.first().map(|first| format!("{}: {first}", wrong.len())));
        add(FaultKind::OutOfOrder, (moved > 0).then(|| format!("{moved} of {} records moved", positions.len())));
        add(
            FaultKind::Missing,
            missing.first().map(|first| format!("{} of {}, first record {}", missing.len(), gold.len(), first + 1)),
        );
        add(FaultKind::Duplicated, (again > 0).then(|| format!("{again} records again")));
        add(FaultKind::Extra, (extra > 0).then(|| format!("{extra} records not asked for")));
        faults
    }

    pub(super) fn value(&self, gold: &[Record], answer: &[&Record], fields: &[(String, String)], given: usize) -> f64 {
        let positions = self.positions();
        let all_fields = gold.len() * fields.len();
        if all_fields == 0 || positions.is_empty() {
            return 0.0;
        }
        let right_fields = positions.len() * fields.len() - self.wrong_fields(gold, answer, fields).len();
        let extra = given - positions.len();
        let in_order = longest_increasing(&positions) as f64 / positions.len() as f64;
        right_fields as f64 / all_fields as f64 * gold.len() as f64 / (gold.len() + extra) as f64 * in_order
    }
}
