//! Accuracy turn by turn: a cache that answers the first question well may go wrong when it is used again.

use std::collections::BTreeMap;

use crate::compare::TurnCell;
use crate::compare::pairing::{Arm, is_answered};
use crate::compare::summary::{CellKey, cell_key};
use crate::record::samples::SampleRecord;

/// Every task × bin × turn of the conversations of an arm. Who never came to an end of a conversation was right in none of
/// its turns; single questions have no turns.
pub(super) fn turns(arm: &Arm<'_>) -> Vec<TurnCell> {
    let mut cells: BTreeMap<(CellKey<'_>, u32), (u64, u64)> = BTreeMap::new();
    for sample in arm.samples.values().filter(|sample| is_answered(sample)) {
        for (turn, is_right) in (1..).zip(right_turns(sample)) {
            let (n, right) = cells.entry((cell_key(sample), turn)).or_default();
            *n += 1;
            *right += u64::from(is_right);
        }
    }
    cells
        .into_iter()
        .map(|(((_, task, bin), turn), (n, right))| TurnCell { task: task.into(), bin, turn, n, right })
        .collect()
}

fn right_turns(sample: &SampleRecord) -> Vec<bool> {
    let later = sample.completion.as_ref().map_or(0, |completion| completion.later_answers.len());
    match &sample.score {
        Some(score) => score.turn_scores.iter().map(|score| *score == 1.0).collect(),
        None if later > 0 => vec![false; later + 1],
        None => Vec::new(),
    }
}
