//! Two cases on record: a collapse in one bin that a mean hides, and a loss too small for any bin. Their outcomes are kept as counts
//! per bin, and made into records here.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up its input has failed")]

use std::collections::BTreeMap;

use kvgauge::compare::{Comparison, compare};
use kvgauge::gate::{Ruling, Verdict, judge};
use kvgauge::record::Record;
use kvgauge::report::{ReportInput, Timings, render_html, render_markdown};
use kvgauge::sample::Bin;
use kvgauge::setup::Arm;
use kvgauge::suite::GatePolicy;
use serde::Deserialize;

use crate::gate::{record, sample};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    #[expect(dead_code, reason = "says to readers of the file what it is")]
    what: String,
    task: String,
    candidate: String,
    bins: Vec<BinCounts>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BinCounts {
    bin: String,
    both_right: u32,
    regressions: u32,
    fixes: u32,
    both_wrong: u32,
}

impl BinCounts {
    fn items(&self) -> u32 {
        self.both_right + self.regressions + self.fixes + self.both_wrong
    }

    /// Whether the baseline and the candidate are right, item by item; outcomes are spread over the items by a stride that has no
    /// divisor in common with their number.
    fn outcomes(&self) -> Vec<(bool, bool)> {
        let counts = [
            (self.both_right, (true, true)),
            (self.regressions, (true, false)),
            (self.fixes, (false, true)),
            (self.both_wrong, (false, false)),
        ];
        let sorted: Vec<(bool, bool)> =
            counts.iter().flat_map(|(count, sides)| vec![*sides; *count as usize]).collect();
        (0..sorted.len()).map(|index| sorted[index * 7919 % sorted.len()]).collect()
    }
}

fn records(case: &Case) -> (Record, Record) {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for counts in &case.bins {
        let bin: Bin = counts.bin.parse().unwrap();
        for (index, (base_right, arm_right)) in counts.outcomes().into_iter().enumerate() {
            for (side, right, nll) in [(&mut ours, base_right, 0.5), (&mut theirs, arm_right, 0.6)] {
                let mut sample = sample(bin, index as u32, 1, right, nll);
                sample.task.clone_from(&case.task);
                sample.slot_percent = [0, 25, 50, 75, 100][index % 5];
                // Every wrong answer is one of its own, as a model's are.
                sample.completion.as_mut().unwrap().text += &format!(" {index} {nll}");
                side.push(sample);
            }
        }
    }
    (record(Arm::baseline("bfloat16"), ours), record(Arm::candidate(&case.candidate), theirs))
}

struct Judged {
    comparison: Comparison,
    verdict: Verdict,
    html: String,
    markdown: String,
}

fn judged(text: &str) -> Judged {
    let case: Case = serde_json::from_str(text).unwrap();
    let (base, arm) = records(&case);
    assert_eq!(base.samples.len() as u32, case.bins.iter().map(BinCounts::items).sum::<u32>());
    let named = [("bfloat16", &base), (case.candidate.as_str(), &arm)];
    let timings = Timings::from_records(&named);
    let comparison = compare(&base, None, std::slice::from_ref(&arm)).unwrap();
    let policy = GatePolicy::default();
    let verdict = judge(&comparison, &policy).unwrap();
    let input = ReportInput {
        title: "recorded case",
        comparison: &comparison,
        verdict: &verdict,
        policy: &policy,
        timings: &timings,
        reproduce: "kvgauge check",
        history: None,
    };
    let html = render_html(&input).unwrap().replace('\u{a0}', " ");
    let markdown = render_markdown(&input).unwrap();
    Judged { comparison, verdict, html, markdown }
}

fn rulings(judged: &Judged) -> BTreeMap<Bin, Ruling> {
    judged.verdict.arms[0].cells.iter().map(|cell| (cell.bin, cell.ruling)).collect()
}

#[test]
fn the_collapse_fails_in_one_bin_and_the_mean_hardly_shows_it() {
    let judged = judged(include_str!("../fixtures/records/collapse_128k.json"));
    assert_eq!(judged.verdict.ruling, Ruling::Regressed);
    let regressed: Vec<Bin> =
        rulings(&judged).into_iter().filter(|(_, it)| *it == Ruling::Regressed).map(|(bin, _)| bin).collect();
    assert_eq!(regressed, [Bin(131_072)]);
    assert_eq!(rulings(&judged).values().filter(|it| **it == Ruling::Pass).count(), 4);
    let told = "128K retrieval fell from 91.3 % to 13.0 % (−78.3 points";
    assert!(judged.verdict.sentence.contains(told), "{}", judged.verdict.sentence);
    assert!(judged.html.contains(told) && judged.markdown.contains(told));
    let arm = &judged.comparison.candidates[0];
    assert_eq!(arm.pooled.as_ref().unwrap().delta, Some(-18.0 / 1003.0));
    let hidden = "the mean over all lengths moves by −1.8 points, the bin 128K alone by −78.3";
    assert!(judged.html.contains(hidden), "the report does not say what the mean hides");
    // Recovery over length, as validations report it, hides most of it, too; that of the bin does not.
    let curve = arm.curve.as_ref().unwrap();
    assert!(curve.recovery.unwrap() > 0.88, "{curve:?}");
    assert!((curve.points[4].recovery.unwrap() - 3.0 / 21.0).abs() < 1e-12);
    assert!(judged.html.contains(", the bin 128K 14.3 %"));
    assert!(
        arm.worst_cells.iter().all(|cell| cell.bin == Bin(131_072) && cell.delta() < -0.39),
        "{:?}",
        arm.worst_cells
    );
    assert_eq!(arm.same_sign.as_ref().map(|sign| (sign.negative, sign.positive)), Some((1, 0)));
    assert!(judged.verdict.arms[0].findings.is_empty());
}

#[test]
fn a_loss_in_every_bin_is_found_together_and_fails_nothing_by_itself() {
    let judged = judged(include_str!("../fixtures/records/creeping.json"));
    let arm = &judged.comparison.candidates[0];
    for cell in &judged.verdict.arms[0].cells {
        let delta = cell.delta.delta.unwrap();
        assert!((-0.0201..=-0.01).contains(&delta), "{} {delta}", cell.bin);
        assert!(cell.delta.p_worse.unwrap() > 0.05, "{} is significant by itself", cell.bin);
        assert_eq!(cell.ruling, Ruling::Pass, "{}: {:?}", cell.bin, cell.reasons);
    }
    let sign = arm.same_sign.as_ref().unwrap();
    assert_eq!((sign.negative, sign.positive), (5, 0));
    assert!(sign.p_pooled < 0.001, "{sign:?}");
    // Found and said, in the verdict, on the page and in the summary; the verdict itself stays that of the cells.
    assert_eq!(judged.verdict.ruling, Ruling::Pass);
    let told = "Small but consistent: 5 bins fall and none rises, by −1.6 points over all lengths (37 right → wrong against 11 back";
    assert!(judged.verdict.sentence.contains(told), "{}", judged.verdict.sentence);
    assert!(judged.html.matches(told).count() >= 3, "in the verdict, of the arm and beside the average");
    assert!(judged.markdown.contains("Small but consistent: 5 bins fall"));
}

#[test]
fn one_bin_that_rises_or_too_few_bins_are_no_creeping_loss() {
    let text = include_str!("../fixtures/records/creeping.json");
    let risen = text.replacen("\"regressions\": 6, \"fixes\": 2", "\"regressions\": 2, \"fixes\": 3", 1);
    assert_ne!(risen, text);
    assert!(judged(&risen).verdict.arms[0].findings.is_empty());
    let case: Case = serde_json::from_str(text).unwrap();
    let few = Case { bins: case.bins.into_iter().take(2).collect(), ..serde_json::from_str(text).unwrap() };
    let (base, arm) = records(&few);
    let verdict = judge(&compare(&base, None, &[arm]).unwrap(), &GatePolicy::default()).unwrap();
    assert!(verdict.arms[0].findings.is_empty());
}
