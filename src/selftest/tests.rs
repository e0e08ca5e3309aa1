//! What is said of ladders whose outcome is known.

use crate::compare::{
    compare,
    fixtures::{manifest, sample},
};
use crate::gate::judge;
use crate::record::Record;
use crate::sample::{Bin, Finding, FindingKind};
use crate::selftest::{Detection, JudgedRung, Proof, Rung, SelfTest};
use crate::setup::Arm;
use crate::suite::GatePolicy;

const BINS: [u32; 2] = [512, 2048];

/// `n` items per bin, of which the first `wrong[bin]` are wrong; an arm with a fault has other likelihoods.
fn record(arm: Arm, n: u32, wrong: [u32; 2]) -> Record {
    let mut samples = Vec::new();
    for (bin, wrong) in BINS.into_iter().zip(wrong) {
        samples.extend((0..n).map(|index| sample("needle", bin, index, index >= wrong)));
    }
    for sample in samples.iter_mut().filter(|_| arm.settings.contains_key("kv_fault")) {
        let nll = &mut sample.completion.as_mut().unwrap().answer_nll;
        *nll = nll.map(|nll| nll + 0.01);
    }
    Record { manifest: manifest(arm, u64::from(2 * n)), samples }
}

fn damaged(name: &str) -> Arm {
    let mut arm = Arm { name: name.into(), ..Arm::candidate("bfloat16") };
    arm.settings.insert("kv_fault".into(), name.into());
    arm
}

fn judged(rung: Rung, base: &Record, arm: Record) -> JudgedRung {
    let comparison = compare(base, None, &[arm]).unwrap();
    let verdict = judge(&comparison, &GatePolicy::default()).unwrap();
    JudgedRung { rung, comparison, verdict }
}

/// One kind with a rung for each pair of wrong answers, weak before strong; `base_wrong` are wrong in the baseline already.
fn selftest(n: u32, base_wrong: u32, ladder: &[[u32; 2]]) -> SelfTest {
    let base = record(Arm::baseline("bfloat16"), n, [base_wrong; 2]);
    let clean = judged(rung(0), &base, record(Arm::control("bfloat16"), n, [base_wrong; 2]));
    let rungs: Vec<JudgedRung> = ladder
        .iter()
        .enumerate()
        .map(|(step, wrong)| judged(rung(step), &base, record(damaged(&format!("arm-{step}")), n, *wrong)))
        .collect();
    SelfTest::new(&(clean.comparison, clean.verdict), &rungs, &GatePolicy::default())
}

fn rung(step: usize) -> Rung {
    Rung { kind: "noise".into(), strength: format!("{step}"), arm: format!("arm-{step}"), must_be_found: true }
}

fn detections(test: &SelfTest, step: usize) -> Vec<Detection> {
    test.rungs[step].cells.iter().map(|cell| cell.detection).collect()
}

#[test]
fn the_smallest_damage_is_the_one_from_which_on_everything_is_found() {
    // In 512 the second rung is found by luck and the third is not.
    let test = selftest(30, 0, &[[1, 1], [9, 2], [2, 10], [30, 30]]);
    assert_eq!(test.proof, Proof::Passed, "{:?}", test.reasons);
    assert_eq!(detections(&test, 1), [Detection::Found, Detection::NotFound]);
    let smallest = &test.sensitivity[0].smallest;
    assert_eq!(smallest[0], (Bin(512), Some("3".into())));
    assert_eq!(smallest[1], (Bin(2048), Some("2".into())));
    let worst = &test.rungs[2].cells[1];
    assert_eq!((worst.pairs, worst.right), (30, Some(2.0 / 3.0)));
    assert!(worst.adjusted_p.unwrap() < 0.05);
}

#[test]
fn the_strongest_damage_that_no_bin_shows_fails_and_one_that_one_bin_shows_does_not() {
    let asleep = selftest(30, 0, &[[0, 0], [2, 1]]);
    assert_eq!(asleep.proof, Proof::Failed);
    assert!(asleep.reasons[0].contains("noise of 1 is the strongest"), "{:?}", asleep.reasons);
    assert_eq!(selftest(30, 0, &[[0, 0], [2, 20]]).proof, Proof::Passed);
}

#[test]
fn without_right_answers_to_lose_nothing_is_proven() {
    let test = selftest(30, 28, &[[30, 30]]);
    assert_eq!(test.proof, Proof::NotMeasured);
    assert_eq!(detections(&test, 0), [Detection::NoPower; 2]);
    assert!(test.reasons[0].contains("right answers"), "{:?}", test.reasons);
    // Too few pairs to be judged at all.
    assert_eq!(detections(&selftest(19, 0, &[[19, 19]]), 0), [Detection::NoPower; 2]);
}

#[test]
fn a_clean_arm_that_differs_fails() {
    let base = record(Arm::baseline("bfloat16"), 30, [0; 2]);
    let strong = judged(rung(0), &base, record(damaged("arm-0"), 30, [30, 30]));
    for (wrong, is_regressed) in [(1, false), (15, true)] {
        let clean = judged(rung(0), &base, record(Arm::control("bfloat16"), 30, [wrong, 0]));
        let clean = (clean.comparison, clean.verdict);
        let test = SelfTest::new(&clean, std::slice::from_ref(&strong), &GatePolicy::default());
        assert_eq!((test.proof, test.clean.is_regressed), (Proof::Failed, is_regressed), "{:?}", test.reasons);
    }
}

#[test]
fn damage_that_only_a_symptom_shows_is_found_as_one_and_a_refused_arm_is_invalid() {
    let base = record(Arm::baseline("bfloat16"), 30, [0; 2]);
    let mut looping = record(damaged("arm-0"), 30, [0; 2]);
    for sample in looping.samples.iter_mut().filter(|sample| sample.bin == Bin(2048)) {
        let finding = |kind| Finding { kind, severity: 1.0, start: 0, end: 1, evidence: String::new() };
        sample.findings = vec![finding(FindingKind::Repetition)];
    }
    let mut unfinished = record(damaged("arm-1"), 30, [0; 2]);
    unfinished.samples.truncate(50);
    let clean = judged(rung(0), &base, record(Arm::control("bfloat16"), 30, [0; 2]));
    let rungs = [judged(rung(0), &base, looping), judged(rung(1), &base, unfinished)];
    let test = SelfTest::new(&(clean.comparison, clean.verdict), &rungs, &GatePolicy::default());
    assert_eq!(detections(&test, 0), [Detection::NotFound, Detection::FoundAsSymptom]);
    assert_eq!(test.rungs[0].cells[1].symptoms, [FindingKind::Repetition]);
    assert_eq!(detections(&test, 1), [Detection::Invalid; 2]);
    assert_eq!(test.proof, Proof::NotMeasured, "{:?}", test.reasons);
    let text = serde_json::to_string(&test).unwrap();
    assert_eq!(serde_json::from_str::<SelfTest>(&text).unwrap(), test);
}
