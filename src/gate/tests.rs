//! Rulings, their reasons and their words.

mod rules;

use crate::compare::{
    ArmComparison, Comparison, compare,
    fixtures::{manifest, record, sample},
};
use crate::gate::{ArmVerdict, GateError, Ruling, judge, overview};
use crate::hint::Hint as _;
use crate::record::{Record, samples::SampleRecord};
use crate::sample::{Bin, Finding, FindingKind, FinishReason, Outcome};
use crate::setup::{Arm, Check, CheckStatus, Evidence, KV_CACHE_DTYPE, Observation, SAME_SERVER};
use crate::suite::{CellPolicy, GatePolicy, Tier};

/// A baseline that is right everywhere against an arm of which `wrong` of `n` items per bin are wrong. Every log-probability
/// of the arm differs a little, as it does with a quantized cache.
fn pair(bins: &[(u32, u32, u32)], dtype: &str) -> (Record, Record) {
    let samples = |is_arm: bool| -> Vec<SampleRecord> {
        bins.iter()
            .flat_map(|&(bin, n, wrong)| (0..n).map(move |i| sample("needle", bin, i, !is_arm || i >= wrong)))
            .collect()
    };
    let (ours, mut theirs) = (samples(false), samples(true));
    for sample in &mut theirs {
        let nll = &mut sample.completion.as_mut().unwrap().answer_nll;
        *nll = nll.map(|nll| nll + 0.001);
    }
    let planned = ours.len() as u64;
    (
        Record { manifest: manifest(Arm::baseline("bfloat16"), planned), samples: ours },
        Record { manifest: manifest(Arm::candidate(dtype), planned), samples: theirs },
    )
}

fn compared(bins: &[(u32, u32, u32)]) -> Comparison {
    let (base, arm) = pair(bins, "fp8_e5m2");
    compare(&base, None, &[arm]).unwrap()
}

fn judged(comparison: &Comparison) -> ArmVerdict {
    judge(comparison, &GatePolicy::default()).unwrap().arms.remove(0)
}

fn server(record: &mut Record) {
    record.manifest.resolved.engine = Evidence::known("vLLM 0.11.0".into(), "/version");
    record.manifest.resolved.kernel = Evidence::unknown("not said");
    for sample in &mut record.samples {
        if let Some(completion) = &mut sample.completion {
            completion.answer_nll = None;
        }
    }
}

#[test]
fn a_big_drop_in_one_bin_regresses_and_is_told_with_its_numbers() {
    let comparison = compared(&[(2048, 60, 0), (8192, 24, 8)]);
    let verdict = judge(&comparison, &GatePolicy::default()).unwrap();
    assert_eq!(verdict.ruling, Ruling::Regressed);
    let arm = &verdict.arms[0];
    assert_eq!(arm.cells.iter().map(|cell| cell.ruling).collect::<Vec<_>>(), [Ruling::Pass, Ruling::Regressed]);
    // One-sided 2⁻⁸, times two cells.
    assert_eq!(arm.cells[1].adjusted_p, Some(2.0 / 256.0));
    let told = "fp8_e5m2: 8K retrieval fell from 100.0 % to 66.7 % (−33.3 points, 95 % CI −53.";
    assert!(verdict.sentence.contains(told), "{}", verdict.sentence);
    assert!(verdict.sentence.starts_with("1 of 1 arm regressed") && verdict.sentence.contains("adjusted p 0.008"));
    let table = overview(&comparison, &verdict);
    assert_eq!(table.rows.len(), 2);
    let lines = table.rows_of_text();
    assert_eq!(lines[0], ["bin", "bfloat16 (baseline)", "fp8_e5m2"]);
    assert_eq!(lines[1], ["2K", "100.0 % (n 60)", "100.0 % (0.0) ✓"]);
    assert_eq!(lines[2], ["8K", "100.0 % (n 24)", "66.7 % (−33.3) ✗"]);
    assert_eq!(lines[3], ["verdict", "", "✗ REGRESSED"]);
}

#[test]
fn pass_takes_52_clean_pairs_in_every_cell() {
    assert_eq!(judged(&compared(&[(2048, 52, 0), (8192, 60, 0)])).ruling, Ruling::Pass);
    let short = judged(&compared(&[(2048, 51, 0), (8192, 60, 0)]));
    assert_eq!(short.ruling, Ruling::Inconclusive);
    assert_eq!(short.cells[0].pairs_needed, Some(52));
    assert!(short.sentence.contains("inconclusive in 1 of 2 cells; 2K retrieval"), "{}", short.sentence);
    let verdict = judge(&compared(&[(2048, 24, 0)]), &GatePolicy::default()).unwrap();
    assert!(verdict.sentence.contains("about 52 pairs per cell (at most 24"), "{}", verdict.sentence);
    let passed = judged(&compared(&[(2048, 52, 0)]));
    assert!(passed.sentence.contains("a drop of at most 4.9 points"), "{}", passed.sentence);
}

#[test]
fn the_number_of_pairs_follows_the_flips() {
    // Two flips either way among 40: the flip rate is 10 %, so 248 pairs.
    let (mut base, mut arm) = pair(&[(2048, 40, 2)], "fp8_e4m3");
    for i in [10, 11] {
        base.samples[i] = sample("needle", 2048, i as u32, false);
        arm.samples[i].completion.as_mut().unwrap().answer_nll = Some(0.9);
    }
    let cell = &judged(&compare(&base, None, &[arm]).unwrap()).cells[0];
    assert_eq!((cell.ruling, cell.delta.regressions, cell.delta.fixes), (Ruling::Inconclusive, 2, 2));
    assert_eq!(cell.pairs_needed, Some(248));
    // A drop beyond the margin that is not significant: more pairs will not make it a PASS, and nobody is told so.
    let verdict = judge(&compared(&[(2048, 24, 3)]), &GatePolicy::default()).unwrap();
    let cell = &verdict.arms[0].cells[0];
    assert_eq!((cell.ruling, cell.pairs_needed), (Ruling::Inconclusive, None));
    assert!(cell.reasons.iter().any(|reason| reason.contains("sooner prove it than excuse it")), "{:?}", cell.reasons);
    assert!(!verdict.sentence.contains("no regression was found"), "{}", verdict.sentence);
}

#[test]
fn too_few_pairs_or_haystacks_or_a_low_baseline_cannot_be_judged() {
    let few = judged(&compared(&[(2048, 19, 19)]));
    assert_eq!((few.ruling, few.cells[0].adjusted_p), (Ruling::Inconclusive, None));
    assert!(few.cells[0].reasons[0].contains("19 pairs"));
    let share = |mut record: Record, per_haystack: u32| {
        for sample in &mut record.samples {
            sample.haystack_id = format!("hay-{}", sample.index / per_haystack);
        }
        record
    };
    let (base, arm) = pair(&[(2048, 72, 0)], "fp8_e4m3");
    let clustered = compare(&share(base.clone(), 8), None, &[share(arm.clone(), 8)]).unwrap();
    assert!(judged(&clustered).cells[0].reasons[0].contains("9 haystacks"), "{:?}", judged(&clustered).cells[0]);
    // 18 clean haystacks of four are not 72 independent pairs.
    let clustered = judged(&compare(&share(base, 4), None, &[share(arm, 4)]).unwrap());
    assert_eq!((clustered.ruling, clustered.cells[0].pairs_needed), (Ruling::Inconclusive, Some(208)));
    let right: Vec<bool> = (0..60).map(|i| i % 2 == 0).collect();
    let base = record(Arm::baseline("bfloat16"), 2048, &right);
    let mut arm = record(Arm::candidate("fp8_e4m3"), 2048, &[false; 60]);
    arm.samples[0].completion.as_mut().unwrap().answer_nll = Some(2.0);
    arm.samples[2].completion.as_mut().unwrap().answer_nll = Some(2.0);
    let proven = judged(&compare(&base, None, &[arm]).unwrap());
    assert_eq!(
        (proven.ruling, proven.cells[0].has_power),
        (Ruling::Regressed, false),
        "30 of 30 right answers are lost"
    );
}

/// A baseline with `right` of `n` right against an arm with `arm_right` of them right.
fn shares(n: u32, right: u32, arm_right: u32) -> (Record, Record) {
    let of = |arm: Arm, right: u32| record(arm, 2048, &(0..n).map(|i| i < right).collect::<Vec<_>>());
    let mut arm = of(Arm::candidate("fp8_e4m3"), arm_right);
    arm.samples[0].completion.as_mut().unwrap().answer_nll = Some(2.0);
    (of(Arm::baseline("bfloat16"), right), arm)
}

#[test]
fn a_low_baseline_forbids_a_pass_and_hides_no_collapse() {
    let judge_shares = |n, right, arm_right| {
        let (base, arm) = shares(n, right, arm_right);
        judged(&compare(&base, None, &[arm]).unwrap())
    };
    let clean = judge_shares(400, 220, 220);
    assert_eq!((clean.ruling, clean.cells[0].pairs_needed), (Ruling::Inconclusive, None));
    assert_eq!(clean.cells[0].reasons, ["baseline accuracy 55.0 % is below the 60.0 % that a PASS takes"]);
    let collapsed = judge_shares(400, 220, 0);
    assert_eq!(collapsed.ruling, Ruling::Regressed);
    assert!(collapsed.sentence.contains("2K retrieval fell from 55.0 % to 0.0 %"), "{}", collapsed.sentence);
    let nothing_to_lose = judge_shares(400, 8, 8);
    assert_eq!(nothing_to_lose.ruling, Ruling::Inconclusive);
    assert!(
        nothing_to_lose.cells[0].reasons[0].contains("2.0 % is below the 60.0 % that a PASS takes: it has too little")
    );
    // Not proven, and all the same not called nothing.
    let (base, arm) = shares(24, 8, 5);
    let verdict = judge(&compare(&base, None, &[arm]).unwrap(), &GatePolicy::default()).unwrap();
    assert_eq!(verdict.ruling, Ruling::Inconclusive);
    assert!(!verdict.sentence.contains("no regression was found"), "{}", verdict.sentence);
}

/// Both arms ran into the output limit at the items from `first` on, and are wrong there.
fn cut_from(first: usize, records: [&mut Record; 2], outcome: Outcome) {
    for sample in records.into_iter().flat_map(|record| &mut record.samples[first..]) {
        sample.outcome = outcome;
        let completion = sample.completion.as_mut().unwrap();
        completion.finish_reason = FinishReason::Length;
        if outcome == Outcome::Censored {
            sample.score = None;
        }
    }
}

#[test]
fn pairs_that_the_output_limit_hides_forbid_a_pass() {
    for outcome in [Outcome::Censored, Outcome::ValidWrong] {
        // 40 % right; on the 40 that came to an end it is 100 %.
        let (mut base, mut arm) = shares(150, 60, 60);
        cut_from(60, [&mut base, &mut arm], outcome);
        let comparison = compare(&base, None, &[arm]).unwrap();
        let verdict = judge(&comparison, &GatePolicy::default()).unwrap();
        let cell = &verdict.arms[0].cells[0];
        assert_eq!((cell.ruling, cell.has_power, cell.pairs_needed), (Ruling::Inconclusive, false, None));
        assert_eq!((cell.delta.pairs, cell.delta.censored, cell.delta.items), (60, 90, 150));
        assert!(cell.reasons[0].starts_with("90 of 150 pairs not scored"), "{:?}", cell.reasons);
        assert!(cell.reasons[1].starts_with("baseline accuracy 40.0 % is below"), "{:?}", cell.reasons);
        let table = overview(&comparison, &verdict).rows_of_text();
        assert_eq!(table[1], ["2K", "40.0 % (n 150)", "40.0 % (0.0, 90 of 150 not scored) ?"]);
    }
    for (items, ruling) in [(66, Ruling::Pass), (67, Ruling::Inconclusive)] {
        let (mut base, mut arm) = shares(items, 60, 60);
        cut_from(60, [&mut base, &mut arm], Outcome::ValidWrong);
        let verdict = judged(&compare(&base, None, &[arm]).unwrap());
        assert_eq!(verdict.ruling, ruling, "{}", verdict.sentence);
        assert!(verdict.cells[0].reasons[0].contains("ran into the output limit"), "told in either case");
    }
}

fn break_items(samples: &mut [SampleRecord]) {
    for sample in samples {
        sample.outcome = Outcome::Error;
        sample.completion = None;
        sample.score = None;
    }
}

#[test]
fn a_cell_that_lost_its_items_cannot_pass_in_a_run_that_lost_few() {
    let (base, mut arm) = pair(&[(2048, 600, 0), (8192, 70, 0)], "fp8_e4m3");
    break_items(&mut arm.samples[600..601]);
    let passed = judged(&compare(&base, None, std::slice::from_ref(&arm)).unwrap());
    assert_eq!(passed.ruling, Ruling::Pass, "one of 70 is within the share: {}", passed.sentence);
    break_items(&mut arm.samples[601..610]);
    let lost = judged(&compare(&base, None, std::slice::from_ref(&arm)).unwrap());
    assert_eq!(lost.ruling, Ruling::Inconclusive, "{}", lost.sentence);
    assert_eq!(lost.cells.iter().map(|cell| cell.ruling).collect::<Vec<_>>(), [Ruling::Pass, Ruling::Inconclusive]);
    let reason = &lost.cells[1].reasons[0];
    assert!(reason.starts_with("85.7 % of the items are valid on both arms (10 of 70"), "{reason}");
    // A drop that is proven on what is left stays proven.
    for sample in &mut arm.samples[610..640] {
        *sample = self::sample("needle", 8192, sample.index, false);
    }
    let regressed = judged(&compare(&base, None, &[arm]).unwrap());
    assert_eq!(regressed.ruling, Ruling::Regressed);
}

#[test]
fn a_significant_drop_below_the_smallest_that_counts_does_not_fail() {
    let policy = GatePolicy { min_effect: 0.05, ..GatePolicy::default() };
    let comparison = compared(&[(2048, 400, 12)]);
    let verdict = judge(&comparison, &policy).unwrap();
    assert_eq!(verdict.ruling, Ruling::Pass, "{}", verdict.sentence);
    assert!(verdict.arms[0].cells[0].adjusted_p.unwrap() < 0.001);
    assert_eq!(judged(&comparison).ruling, Ruling::Regressed);
}

#[test]
fn holm_counts_the_cells_of_all_arms() {
    let (base, arm) = pair(&[(2048, 60, 5)], "fp8_e4m3");
    let mut second = pair(&[(2048, 60, 0)], "fp8_e5m2").1;
    let alone = compare(&base, None, std::slice::from_ref(&arm)).unwrap();
    assert_eq!(judged(&alone).ruling, Ruling::Regressed, "p = 1/32");
    let both = compare(&base, None, &[arm.clone(), second.clone()]).unwrap();
    let verdict = judge(&both, &GatePolicy::default()).unwrap();
    assert_eq!(verdict.arms[0].cells[0].adjusted_p, Some(2.0 / 32.0));
    assert_eq!(verdict.ruling, Ruling::Inconclusive);
    // The other order gives every arm the same verdict.
    let turned = judge(&compare(&base, None, &[second.clone(), arm]).unwrap(), &GatePolicy::default()).unwrap();
    assert_eq!((&turned.arms[1], &turned.arms[0]), (&verdict.arms[0], &verdict.arms[1]));
    assert_eq!(turned.sentence, verdict.sentence);
    // One broken arm does not hide that the other regressed.
    second.manifest.resolved.kv_cache_dtype = Evidence::known("bfloat16".into(), "log line 9");
    let bad = pair(&[(2048, 60, 9)], "fp8_e4m3").1;
    let mixed = judge(&compare(&base, None, &[bad, second]).unwrap(), &GatePolicy::default()).unwrap();
    assert_eq!(mixed.arms.iter().map(|arm| arm.ruling).collect::<Vec<_>>(), [Ruling::Regressed, Ruling::Invalid]);
    assert_eq!(mixed.ruling, Ruling::Regressed);
}

fn policy_with(key: &str, cell: CellPolicy) -> GatePolicy {
    GatePolicy { cells: [(key.to_owned(), cell)].into(), ..GatePolicy::default() }
}

#[test]
fn exceptions_hold_for_their_cells_alone() {
    let comparison = compared(&[(2048, 60, 0), (8192, 60, 9)]);
    let optional = CellPolicy { required: Some(false), ..CellPolicy::default() };
    let verdict = judge(&comparison, &policy_with("retrieval/8k", optional.clone())).unwrap();
    assert_eq!(verdict.ruling, Ruling::Pass);
    assert_eq!(verdict.arms[0].cells[1].ruling, Ruling::Regressed, "shown all the same");
    let wide = CellPolicy { max_drop: Some(0.3), min_effect: Some(0.2), ..CellPolicy::default() };
    assert_eq!(judge(&comparison, &policy_with("retrieval", wide.clone())).unwrap().ruling, Ruling::Pass);
    let mut policy = policy_with("retrieval", wide);
    policy.cells.insert("retrieval/8K".into(), CellPolicy { min_effect: Some(0.02), ..CellPolicy::default() });
    assert_eq!(judge(&comparison, &policy).unwrap().ruling, Ruling::Regressed, "the particular one wins");
    let nothing_left = judge(&comparison, &policy_with("retrieval", optional)).unwrap();
    assert_eq!(nothing_left.ruling, Ruling::Inconclusive, "nothing to judge is not a pass");
}

#[test]
fn what_does_not_exist_is_named_and_what_is_missing_never_passes() {
    let comparison = compared(&[(2048, 60, 0)]);
    let unknown = judge(&comparison, &policy_with("retreival", CellPolicy::default())).unwrap_err();
    assert!(unknown.to_string().contains("no task group `retreival`"));
    assert_eq!(unknown.hints(), ["did you mean `retrieval`?"]);
    let unknown = judge(&comparison, &policy_with("retrieval/8K", CellPolicy::default())).unwrap_err();
    assert!(matches!(unknown, GateError::Unknown { what: "bin", .. }), "{unknown}");
    for policy in [
        GatePolicy { alpha: f64::NAN, ..GatePolicy::default() },
        GatePolicy { margin: 5.0, ..GatePolicy::default() },
        GatePolicy { min_effect: -0.1, ..GatePolicy::default() },
        GatePolicy { alpha: 0.5, ..GatePolicy::default() },
        GatePolicy { min_pairs: 0, ..GatePolicy::default() },
        GatePolicy { min_haystacks: 0, ..GatePolicy::default() },
        GatePolicy { min_valid_share: 0.0, ..GatePolicy::default() },
        policy_with("retrieval", CellPolicy { max_drop: Some(0.0), ..CellPolicy::default() }),
    ] {
        assert!(matches!(judge(&comparison, &policy), Err(GateError::OutOfRange { .. })));
    }
    let zero = judge(&comparison, &GatePolicy { margin: 0.0, ..GatePolicy::default() }).unwrap_err();
    assert_eq!(zero.to_string(), "the gate's `margin` is 0; it has to be above 0 and below 100 points");
    assert_eq!(zero.hints(), ["differences are written in points: `margin = 5`"]);
    // Two groups in two bins, but this group only in one of them: named, so it is missed.
    let (mut base, mut arm) = pair(&[(2048, 60, 0), (8192, 60, 0)], "fp8_e4m3");
    for record in [&mut base, &mut arm] {
        for sample in record.samples.iter_mut().filter(|sample| sample.bin == Bin(8192)) {
            sample.task = "chain".into();
        }
    }
    let comparison = compare(&base, None, &[arm]).unwrap();
    assert_eq!(judged(&comparison).ruling, Ruling::Pass);
    let verdict = judge(&comparison, &policy_with("tracing/2K", CellPolicy::default())).unwrap();
    assert_eq!((verdict.ruling, verdict.arms[0].cells[1].ruling), (Ruling::Invalid, Ruling::Invalid));
    assert!(verdict.sentence.contains("2K tracing is required by the policy and MISSING"), "{}", verdict.sentence);
    for (cell, ruling) in [
        (CellPolicy { required: Some(false), tier: Some(Tier::Supporting), ..CellPolicy::default() }, Ruling::Pass),
        (CellPolicy { tier: Some(Tier::Supporting), ..CellPolicy::default() }, Ruling::Invalid),
        (CellPolicy { tier: Some(Tier::Advisory), required: Some(true), ..CellPolicy::default() }, Ruling::Pass),
        (
            CellPolicy { tier: Some(Tier::Critical), required: Some(false), ..CellPolicy::default() },
            Ruling::Inconclusive,
        ),
    ] {
        let verdict = judge(&comparison, &policy_with("tracing/2K", cell.clone())).unwrap();
        assert_eq!(verdict.ruling, ruling, "{cell:?}: {}", verdict.sentence);
    }
}

#[test]
fn symptoms_fail_an_arm_whose_scores_are_clean() {
    let (base, mut arm) = pair(&[(2048, 60, 0), (8192, 60, 0)], "fp8_e5m2");
    let looped = Finding { kind: FindingKind::Repetition, severity: 0.5, start: 0, end: 4, evidence: "loop".into() };
    for sample in &mut arm.samples[60..68] {
        sample.findings = vec![looped.clone()];
    }
    let comparison = compare(&base, None, std::slice::from_ref(&arm)).unwrap();
    let verdict = judge(&comparison, &GatePolicy::default()).unwrap();
    assert_eq!(verdict.ruling, Ruling::Regressed);
    assert!(
        verdict.sentence.contains("repetition at 8K rose from 0 to 8 of 60 items (adjusted p 0.004)"),
        "{}",
        verdict.sentence
    );
    assert_eq!(verdict.arms[0].symptoms.len(), 1, "a bin without a change is no test");
    assert_eq!(overview(&comparison, &verdict).rows[1].cells[0].text(), "100.0 % (0.0) ✗ repetition");
    for sample in &mut arm.samples[62..68] {
        sample.findings.clear();
    }
    assert_eq!(judged(&compare(&base, None, &[arm]).unwrap()).ruling, Ruling::Pass, "two items are no finding");
}

#[test]
fn a_symptom_in_three_texts_of_many_questions_is_no_finding() {
    let share = |mut record: Record| {
        for sample in &mut record.samples {
            sample.haystack_id = format!("hay-{}", sample.index / 5);
        }
        record
    };
    let (base, arm) = pair(&[(8192, 60, 0)], "fp8_e5m2");
    let (base, arm) = (share(base), share(arm));
    let looped = Finding { kind: FindingKind::Repetition, severity: 0.5, start: 0, end: 4, evidence: "loop".into() };
    let in_haystacks = |haystacks: usize| {
        let mut arm = arm.clone();
        for sample in &mut arm.samples[..5 * haystacks] {
            sample.findings = vec![looped.clone()];
        }
        judged(&compare(&base, None, &[arm]).unwrap()).symptoms.remove(0)
    };
    let three = in_haystacks(3);
    assert_eq!((three.regressed, three.symptom.p_rise_by_haystack), (false, 0.125));
    assert!(three.adjusted_p < 0.001, "item by item it looks certain");
    let five = in_haystacks(5);
    assert_eq!((five.regressed, five.symptom.p_rise_by_haystack), (true, 1.0 / 32.0));
}

fn reasons(comparison: &Comparison) -> Vec<String> {
    let verdict = judged(comparison);
    assert_eq!(verdict.ruling == Ruling::Invalid, !verdict.invalid.is_empty());
    verdict.invalid
}

fn one_reason(base: &Record, control: Option<&Record>, arm: &Record, wanted: &str) {
    let reasons = reasons(&compare(base, control, std::slice::from_ref(arm)).unwrap());
    assert!(reasons.len() == 1 && reasons[0].contains(wanted), "{wanted}: {reasons:?}");
}

#[test]
fn a_broken_measurement_is_invalid_whatever_the_scores_say() {
    let (base, arm) = pair(&[(2048, 100, 40)], "fp8_e4m3");
    let edit = |change: &dyn Fn(&mut Record)| {
        let mut arm = arm.clone();
        change(&mut arm);
        arm
    };
    one_reason(&base, None, &edit(&|arm| drop(arm.samples.pop())), "not complete: 99 of 100");
    let (mut overfull, mut more) = (base.clone(), arm.clone());
    (overfull.manifest.planned_items, more.manifest.planned_items) = (99, 99);
    one_reason(&overfull, None, &more, "not comparable: recorded items is 100 of 99 planned");
    let errors = edit(&|arm| break_items(&mut arm.samples[..3]));
    one_reason(&base, None, &errors, "97.0 % of the items are valid");
    let fallback = edit(&|arm| arm.manifest.resolved.kv_cache_dtype = Evidence::known("fp8_e5m2".into(), "log line 3"));
    one_reason(&base, None, &fallback, "fp8_e4m3 was asked for, but fp8_e5m2 is in effect (log line 3)");
    let unknown = edit(&|arm| arm.manifest.resolved.kv_cache_dtype = Evidence::unknown("no log"));
    one_reason(&base, None, &unknown, "not known (looked at: no log)");
    let alias = edit(&|arm| arm.manifest.resolved.kv_cache_dtype = Evidence::known("fp8".into(), "log"));
    assert_eq!(judged(&compare(&base, None, &[alias]).unwrap()).ruling, Ruling::Regressed);
    let same_size = edit(&|arm| arm.manifest.resolved.kv_bytes_per_token = Evidence::known(100.0, "test"));
    one_reason(&base, None, &same_size, "takes 100 bytes per token; 50");
    let engine = edit(&|arm| arm.manifest.resolved.engine = Evidence::known("kvgauge embedded-two".into(), "test"));
    one_reason(&base, None, &engine, "not comparable: engine");
    let (mut quantized, _) = (base.clone(), ());
    quantized.manifest.resolved.kv_cache_dtype = Evidence::known("fp8".into(), "log");
    let found = reasons(&compare(&quantized, None, &[arm]).unwrap());
    assert!(found.iter().any(|reason| reason.contains("baseline `bfloat16` runs with a quantized cache")), "{found:?}");
}

#[test]
fn the_size_of_a_cache_is_expected_layer_by_layer() {
    let (base, arm) = pair(&[(2048, 100, 0)], "fp8_e4m3");
    let with = |layers: &str, bytes: f64| {
        let mut arm = arm.clone();
        arm.manifest.resolved.kv_layers = Evidence::known(layers.into(), "test");
        arm.manifest.resolved.kv_bytes_per_token = Evidence::known(bytes, "test");
        reasons(&compare(&base, None, &[arm]).unwrap())
    };
    // The baseline takes 100 bytes per token.
    assert_eq!(with("all 10: fp8_e4m3", 50.0), [""; 0]);
    assert_eq!(with("0-3: bfloat16; 4-8: fp8_e4m3; 9: bfloat16", 75.0), [""; 0]);
    assert!(with("0-3: bfloat16; 4-8: fp8_e4m3; 9: bfloat16", 50.0)[0].contains("75 (and a little"));
    assert!(with("all 10: fp8_e4m3", 75.0)[0].contains("50 (and a little"));
    let (base, mut arm) = pair(&[(2048, 100, 0)], "int4_per_token_head");
    for (bytes, is_right) in [(25.0, true), (50.0, true), (51.0, false), (24.0, false)] {
        arm.manifest.resolved.kv_bytes_per_token = Evidence::known(bytes, "test");
        assert_eq!(reasons(&compare(&base, None, std::slice::from_ref(&arm)).unwrap()).is_empty(), is_right, "{bytes}");
    }
}

#[test]
fn what_is_done_to_a_16_bit_cache_is_under_test_too() {
    let (base, mut arm) = pair(&[(2048, 60, 9)], "bfloat16");
    arm.manifest.arm.name = "bfloat16+query_fp8".into();
    arm.manifest.resolved = base.manifest.resolved.clone();
    one_reason(&base, None, &arm, "has the baseline's dtype on a deterministic engine");
    let mut mechanism = arm.clone();
    mechanism.manifest.arm.settings.insert("mechanisms".into(), "query_fp8".into());
    assert_eq!(judged(&compare(&base, None, &[mechanism.clone()]).unwrap()).ruling, Ruling::Regressed);
    let mut backend = arm;
    backend.manifest.resolved.attention_backend = Evidence::known("REFERENCE".into(), "test");
    assert_eq!(judged(&compare(&base, None, &[backend]).unwrap()).ruling, Ruling::Regressed);
    // A mechanism that changed nothing was not measured.
    mechanism.samples = base.samples.clone();
    let found = reasons(&compare(&base, None, &[mechanism]).unwrap());
    assert!(found[0].ends_with("mechanisms query_fp8 had no effect"), "{found:?}");
}

#[test]
fn an_arm_that_changed_nothing_was_not_treated() {
    let (base, mut arm) = pair(&[(8192, 60, 0)], "fp8_e4m3");
    assert_eq!(judged(&compare(&base, None, std::slice::from_ref(&arm)).unwrap()).ruling, Ruling::Pass);
    for (sample, base) in arm.samples.iter_mut().zip(&base.samples) {
        sample.completion = base.completion.clone();
    }
    let found = reasons(&compare(&base, None, std::slice::from_ref(&arm)).unwrap());
    assert!(found[0].contains("all 60 answer log-probabilities") && found[1].contains("byte for byte"), "{found:?}");
    // The same dtype is a second A/A arm, and may well be equal.
    let mut replica = arm.clone();
    replica.manifest.arm = Arm { name: "bfloat16.2".into(), ..Arm::candidate("bfloat16") };
    replica.manifest.resolved = base.manifest.resolved.clone();
    assert_eq!(judged(&compare(&base, None, std::slice::from_ref(&replica)).unwrap()).ruling, Ruling::Pass);
    replica.samples[0] = sample("needle", 8192, 0, false);
    one_reason(&base, None, &replica, "has the baseline's dtype on a deterministic engine");
}

#[test]
fn servers_need_a_measured_noise_and_deterministic_engines_have_none() {
    let (mut base, mut arm) = pair(&[(2048, 60, 0), (8192, 60, 0)], "fp8_e4m3");
    let mut control = base.clone();
    control.manifest.arm = Arm::control("bfloat16");
    let clean = compare(&base, Some(&control), std::slice::from_ref(&arm)).unwrap();
    let verdict = judge(&clean, &GatePolicy::default()).unwrap();
    assert_eq!(verdict.ruling, Ruling::Pass);
    assert!(verdict.sentence.contains("A/A flip rate: 0.0 % (0 of 120 pairs)"), "{}", verdict.sentence);
    control.samples[3] = sample("needle", 2048, 3, false);
    one_reason(
        &base,
        Some(&control),
        &arm,
        "`bfloat16.aa` differs from the baseline on a deterministic engine (1 of 120",
    );
    for record in [&mut base, &mut arm, &mut control] {
        server(record);
    }
    arm.samples[70].completion.as_mut().unwrap().text.push('!');
    let measured = judge(&compare(&base, Some(&control), std::slice::from_ref(&arm)).unwrap(), &GatePolicy::default());
    let measured = measured.unwrap();
    assert_eq!(measured.ruling, Ruling::Pass, "{}", measured.sentence);
    assert!(measured.sentence.contains("A/A flip rate: 0.8 %"));
    one_reason(&base, None, &arm, "the server's own noise is not known");
    arm.samples[70].completion.as_mut().unwrap().text.pop();
    one_reason(&base, Some(&control), &arm, "all 60 outputs of 8K tokens and more equal");
}

fn dtype_check(asked: &str, value: &str, status: CheckStatus) -> Vec<Check> {
    let observed = vec![Observation { value: value.into(), source: "start-up log line 4".into() }];
    vec![Check { fact: KV_CACHE_DTYPE.into(), asked: Some(asked.into()), observed, status }]
}

#[test]
fn a_server_that_contradicts_what_was_asked_was_not_treated() {
    let (mut base, mut arm) = pair(&[(2048, 60, 0), (8192, 60, 0)], "fp8_e4m3");
    let mut control = base.clone();
    control.manifest.arm = Arm::control("bfloat16");
    for record in [&mut base, &mut arm, &mut control] {
        server(record);
    }
    arm.samples[70].completion.as_mut().unwrap().text.push('!');
    arm.manifest.checks = dtype_check("fp8_e4m3", "fp8_e5m2", CheckStatus::Contradicted);
    one_reason(&base, Some(&control), &arm, "fp8_e4m3 was asked for, but seen was fp8_e5m2 (start-up log line 4)");
    arm.manifest.checks = dtype_check("fp8_e4m3", "fp8_e4m3", CheckStatus::Confirmed);
    let clean = compare(&base, Some(&control), std::slice::from_ref(&arm)).unwrap();
    assert_eq!(judged(&clean).ruling, Ruling::Pass);
    base.manifest.checks = dtype_check("bfloat16", "fp8", CheckStatus::Contradicted);
    one_reason(&base, Some(&control), &arm, "`bfloat16`: treatment not applied");

    base.manifest.checks = Vec::new();
    let observed = vec![Observation { value: "counters began anew".into(), source: "/metrics".into() }];
    let restarted = Check { fact: SAME_SERVER.into(), asked: None, observed, status: CheckStatus::Contradicted };
    arm.manifest.checks.push(restarted);
    one_reason(&base, Some(&control), &arm, "not one server answered it all: counters began anew (/metrics)");
}

#[test]
fn an_unknown_dtype_has_to_show_in_more_answers_than_noise_does() {
    let (mut base, mut arm) = pair(&[(2048, 60, 0), (8192, 60, 0)], "fp8_e4m3");
    let mut control = base.clone();
    control.manifest.arm = Arm::control("bfloat16");
    for record in [&mut base, &mut arm, &mut control] {
        server(record);
    }
    arm.manifest.resolved.kv_cache_dtype = Evidence::unknown("/metrics");
    let alter = |record: &mut Record, count: usize| {
        for sample in record.samples.iter_mut().take(count) {
            sample.completion.as_mut().unwrap().text.push('!');
        }
    };
    alter(&mut control, 12);
    alter(&mut arm, 14);
    let last = arm.samples.len() - 1;
    arm.samples[last].completion.as_mut().unwrap().text.push('!');
    one_reason(&base, Some(&control), &arm, "the answers do not show it: 15 of 120 differ from the baseline's");
    alter(&mut arm, 60);
    let shown = compare(&base, Some(&control), std::slice::from_ref(&arm)).unwrap();
    assert_eq!(judged(&shown).ruling, Ruling::Pass, "{:?}", reasons(&shown));
    // A baseline that was left to the server has to be known.
    for record in [&mut base, &mut control] {
        record.manifest.arm.kv_cache_dtype = "auto".into();
        record.manifest.resolved.kv_cache_dtype = Evidence::unknown("/metrics");
    }
    one_reason(&base, Some(&control), &arm, "whether its cache has 16 bits is not known");
}

#[test]
fn rehearsals_with_scripted_answers_have_no_cache_to_check() {
    let (mut base, mut arm) = pair(&[(8192, 60, 0)], "fp8_e4m3");
    for record in [&mut base, &mut arm] {
        server(record);
        record.manifest.resolved.engine = Evidence::known("kvgauge scripted 0.1.0".into(), "built in");
        record.manifest.resolved.kv_cache_dtype = Evidence::unknown("there is no cache");
    }
    assert_eq!(judged(&compare(&base, None, &[arm]).unwrap()).ruling, Ruling::Pass);
}

#[test]
fn confounded_arms_say_so() {
    let (base, mut arm) = pair(&[(8192, 60, 20)], "fp8_e4m3");
    arm.manifest.resolved.attention_backend = Evidence::known("OTHER".into(), "log");
    let verdict = judged(&compare(&base, None, &[arm]).unwrap());
    assert_eq!(verdict.ruling, Ruling::Regressed);
    assert!(verdict.sentence.ends_with("Confounded: the attention backend changed, too."), "{}", verdict.sentence);
}

#[test]
fn nothing_and_next_to_nothing_never_pass_and_never_break() {
    for n in 0..3 {
        let (mut base, mut arm) = pair(&[(2048, 3, 0)], "fp8_e4m3");
        arm.samples.truncate(n);
        arm.manifest.planned_items = n as u64;
        base.manifest.planned_items = n as u64;
        let comparison = compare(&base, None, &[arm]).unwrap();
        let verdict = judge(&comparison, &GatePolicy::default()).unwrap();
        assert_ne!(verdict.ruling, Ruling::Pass);
        assert!(!format!("{comparison:?}{verdict:?}").contains("NaN"), "{n}");
        assert!(!verdict.sentence.is_empty());
    }
    let (base, _) = pair(&[(2048, 3, 0)], "fp8_e4m3");
    let verdict = judge(&compare(&base, None, &[]).unwrap(), &GatePolicy::default()).unwrap();
    assert_eq!((verdict.ruling, verdict.arms.len()), (Ruling::Inconclusive, 0));
}

#[test]
fn the_worst_ruling_of_a_run_is_in_the_stated_order() {
    assert!(Ruling::Pass < Ruling::Inconclusive && Ruling::Inconclusive < Ruling::Invalid);
    assert!(Ruling::Invalid < Ruling::Regressed);
    let all: Vec<&str> = [Ruling::Pass, Ruling::Inconclusive, Ruling::Invalid, Ruling::Regressed]
        .map(Ruling::symbol)
        .into_iter()
        .collect();
    assert_eq!(all, ["✓", "?", "!", "✗"]);
}

#[test]
fn a_control_is_never_judged() {
    let (base, arm) = pair(&[(2048, 60, 0)], "fp8_e4m3");
    let mut control = base.clone();
    control.manifest.arm = Arm::control("bfloat16");
    let comparison = compare(&base, Some(&control), &[arm]).unwrap();
    let verdict = judge(&comparison, &GatePolicy::default()).unwrap();
    assert_eq!(verdict.arms.len(), 1);
    let control: &ArmComparison = comparison.control.as_ref().unwrap();
    assert_eq!(control.groups.len(), 1);
}
