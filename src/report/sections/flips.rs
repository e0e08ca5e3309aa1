//! Answers that changed, grouped by cause, each with a word diff and the text around its needle.

use std::collections::BTreeMap;

use minijinja::value::Value;

use crate::compare::{ArmComparison, Flip, FlipDirection};
use crate::report::diff::word_diff;
use crate::report::page::Page;
use crate::report::sections::verdict::worst_cell;
use crate::report::text::{clip, clip_around};
use crate::report::{ReportError, fields, figures};

/// Characters of each answer: the rest of a loop says nothing new, and the diff stays cheap.
const MAX_ANSWER_CHARS: usize = 900;
/// Characters around the needle: about ±200 tokens.
const MAX_EXCERPT_CHARS: usize = 1800;
/// Characters of the expected answer and of notes.
const MAX_NOTE_CHARS: usize = 400;
/// Notes and findings per example.
const MAX_NOTES: usize = 8;

pub(crate) fn view(page: &Page) -> Result<Option<Value>, ReportError> {
    let candidates = &page.input.comparison.candidates;
    let sizes: Vec<usize> = candidates.iter().map(|arm| arm.flips.len()).collect();
    let worst = worst_cell(page.input.verdict).map(|(arm, _)| arm);
    let arms: Vec<Value> = candidates
        .iter()
        .zip(shares(page.flip_budget, &sizes))
        .enumerate()
        .filter(|(_, (arm, _))| !arm.flips.is_empty())
        .map(|(index, (arm, budget))| arm_view(index, arm, budget, worst))
        .collect();
    Ok(Some(fields! { arms => arms, baseline => page.input.comparison.baseline.arm.name }))
}

/// `worst` names the arm whose first example is open from the start.
fn arm_view(arm_index: usize, arm: &ArmComparison, budget: usize, worst: Option<&str>) -> Value {
    let mut causes: BTreeMap<(FlipDirection, &str), Vec<&Flip>> = BTreeMap::new();
    for flip in &arm.flips {
        causes.entry((flip.direction, flip.cause.as_str())).or_default().push(flip);
    }
    let mut causes: Vec<_> = causes.into_iter().collect();
    causes.sort_by_key(|((direction, _), flips)| (*direction, std::cmp::Reverse(flips.len())));
    let shown_of_each = shares(budget, &causes.iter().map(|(_, flips)| flips.len()).collect::<Vec<_>>());
    let groups: Vec<Value> = causes
        .iter()
        .zip(shown_of_each)
        .enumerate()
        .map(|(group_index, (((direction, cause), flips), shown))| {
            let anchor = |index: usize| format!("flip-{arm_index}-{group_index}-{index}");
            let views = flips.iter().take(shown).enumerate().map(|(index, flip)| flip_view(&anchor(index), flip));
            fields! {
                direction => match direction {
                    FlipDirection::Regression => "right → wrong",
                    FlipDirection::Fix => "wrong → right",
                },
                cause => cause,
                count => figures::count(flips.len() as u64),
                more => flips.len() - shown,
                flips => views.collect::<Vec<_>>(),
            }
        })
        .collect();
    fields! {
        name => arm.summary.arm.name,
        total => figures::count(arm.flips.len() as u64),
        is_open => worst == Some(arm.summary.arm.name.as_str()),
        groups => groups,
    }
}

/// Shares `budget` out evenly: small groups whole, what they leave to the large ones.
fn shares(budget: usize, sizes: &[usize]) -> Vec<usize> {
    let mut shown = vec![0; sizes.len()];
    let mut left = budget;
    while left > 0 {
        let open: Vec<usize> = (0..sizes.len()).filter(|group| shown[*group] < sizes[*group]).collect();
        if open.is_empty() {
            break;
        }
        let each = (left / open.len()).max(1);
        for group in open {
            let more = each.min(sizes[group] - shown[group]).min(left);
            shown[group] += more;
            left -= more;
        }
    }
    shown
}

fn flip_view(anchor: &str, flip: &Flip) -> Value {
    let baseline = clip(&flip.baseline_text, MAX_ANSWER_CHARS);
    let candidate = clip(&flip.candidate_text, MAX_ANSWER_CHARS);
    let depth =
        flip.depth_percent.map_or_else(|| format!("slot {} %", flip.slot_percent), |depth| format!("{depth:.0} %"));
    let findings = flip.findings.iter().map(|finding| format!("{}: {}", finding.kind.name(), finding.evidence));
    let notes = flip.notes.iter().cloned().chain(findings).map(|note| clip(&note, MAX_NOTE_CHARS));
    let excerpt = clip_around(&flip.excerpt, &flip.expected, MAX_EXCERPT_CHARS);
    let (before, needle, after) = split_at_needle(&excerpt, &flip.expected);
    fields! {
        anchor => anchor,
        bin => flip.bin.to_string(),
        task => flip.task,
        depth => depth,
        item => flip.item_id,
        expected => clip(&flip.expected, MAX_NOTE_CHARS),
        diff => word_diff(&baseline, &candidate),
        notes => notes.take(MAX_NOTES).collect::<Vec<_>>(),
        before => before,
        needle => needle,
        after => after,
    }
}

fn split_at_needle<'a>(excerpt: &'a str, needle: &'a str) -> (&'a str, &'a str, &'a str) {
    match excerpt.split_once(needle) {
        Some((before, after)) if !needle.is_empty() => (before, needle, after),
        _ => (excerpt, "", ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_shared_out_and_never_exceeded() {
        assert_eq!(shares(10, &[100, 2, 100]), vec![4, 2, 4]);
        assert_eq!(shares(2, &[5, 5, 5]), vec![1, 1, 0]);
        assert_eq!(shares(0, &[5]), vec![0]);
        assert_eq!(shares(100, &[3, 1]), vec![3, 1]);
    }
}
