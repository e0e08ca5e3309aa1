//! Tiers, the relative guard, exceptions of single cells, confirmation, and one cache under two names.

use super::{compared, judged, pair, policy_with, server, shares};
use crate::compare::{Comparison, compare, fixtures::sample};
use crate::gate::{GateError, Ruling, Suspect, confirmed, judge, suspects};
use crate::record::Record;
use crate::sample::{Bin, Finding, FindingKind};
use crate::suite::{CellPolicy, GatePolicy, Tier};

#[test]
fn tiers_say_what_a_ruling_does_to_the_run() {
    let tier = |tier: Tier| CellPolicy { tier: Some(tier), ..CellPolicy::default() };
    let judged = |bins: &[(u32, u32, u32)], cell: Tier| {
        let verdict = judge(&compared(bins), &policy_with("retrieval/8K", tier(cell))).unwrap();
        assert_eq!(verdict.arms[0].cells[1].tier, cell);
        verdict
    };
    let (regressed, few) = ([(2048, 60, 0), (8192, 60, 9)], [(2048, 60, 0), (8192, 30, 0)]);
    for (bins, cell, ruling) in [
        (&regressed, Tier::Critical, Ruling::Regressed),
        (&regressed, Tier::Supporting, Ruling::Inconclusive),
        (&regressed, Tier::Advisory, Ruling::Pass),
        (&few, Tier::Critical, Ruling::Inconclusive),
        (&few, Tier::Supporting, Ruling::Pass),
        (&few, Tier::Advisory, Ruling::Pass),
    ] {
        let verdict = judged(bins, cell);
        assert_eq!(verdict.ruling, ruling, "{cell:?}: {}", verdict.sentence);
    }
    let held_back = judged(&regressed, Tier::Supporting);
    let told = "inconclusive in 1 of 2 cells; 8K retrieval (−15.0 points";
    assert!(held_back.sentence.contains(told), "{}", held_back.sentence);
    // A supporting cell counts in the family, an advisory one does not.
    let p = |cell: Tier| judged(&regressed, cell).arms[0].cells[1].adjusted_p.unwrap();
    assert_eq!((p(Tier::Critical), p(Tier::Supporting)), (2.0 / 512.0, 2.0 / 512.0));
    let alone = judge(&compared(&regressed), &policy_with("retrieval/2K", tier(Tier::Advisory))).unwrap();
    assert_eq!(alone.arms[0].cells[1].adjusted_p, Some(1.0 / 512.0));
    // Nothing critical is nothing that could pass.
    let all = judge(&compared(&few), &policy_with("retrieval", tier(Tier::Supporting))).unwrap();
    assert_eq!(all.ruling, Ruling::Inconclusive, "{}", all.sentence);
}

#[test]
fn below_the_guard_a_drop_is_measured_by_what_the_baseline_has() {
    // 30 of 1000 right, then 14: 1.6 points, and more than half of all that was right.
    let (base, arm) = shares(1000, 30, 14);
    let comparison = compare(&base, None, &[arm]).unwrap();
    assert_eq!(judged(&comparison).ruling, Ruling::Inconclusive, "too small in points, and too low a baseline to pass");
    let guard = GatePolicy { max_relative_drop: Some(0.25), ..GatePolicy::default() };
    let verdict = judge(&comparison, &guard).unwrap();
    assert_eq!(verdict.ruling, Ruling::Regressed, "{}", verdict.sentence);
    assert!(verdict.arms[0].cells[0].reasons[0].contains("53.3 % of what the baseline has right"));
    let above = GatePolicy { relative_guard_below: 0.02, ..guard.clone() };
    assert_eq!(judge(&comparison, &above).unwrap().ruling, Ruling::Inconclusive, "the baseline is above the guard");
    let wide = GatePolicy { max_relative_drop: Some(0.6), ..guard.clone() };
    assert_eq!(judge(&comparison, &wide).unwrap().ruling, Ruling::Inconclusive);
    // Without a drop a low baseline passes where the floor allows it, but not beyond what the guard excludes.
    let (base, arm) = shares(1000, 30, 30);
    let comparison = compare(&base, None, &[arm]).unwrap();
    let floorless = GatePolicy { baseline_floor: 0.0, ..GatePolicy::default() };
    assert_eq!(judge(&comparison, &floorless).unwrap().ruling, Ruling::Pass);
    // The upper limit of no flip in 1000 is 0.27 points, 9 % of what is right.
    let tight = GatePolicy { max_relative_drop: Some(0.05), baseline_floor: 0.0, ..GatePolicy::default() };
    let verdict = judge(&comparison, &tight).unwrap();
    assert_eq!(verdict.ruling, Ruling::Inconclusive);
    let reason = &verdict.arms[0].cells[0].reasons[0];
    assert!(reason.starts_with("a loss of 9.0 % of what the baseline has right cannot be excluded"), "{reason}");
    assert!(verdict.arms[0].cells[0].pairs_needed.unwrap() > 1000);
    let loose = GatePolicy { max_relative_drop: Some(0.25), baseline_floor: 0.0, ..GatePolicy::default() };
    assert_eq!(judge(&comparison, &loose).unwrap().ruling, Ruling::Pass);
}

#[test]
fn every_threshold_holds_for_single_cells() {
    let comparison = compared(&[(2048, 60, 0), (8192, 24, 8)]);
    let more = CellPolicy { min_pairs: Some(25), ..CellPolicy::default() };
    let verdict = judge(&comparison, &policy_with("retrieval/8K", more)).unwrap();
    assert!(verdict.arms[0].cells[1].reasons[0].contains("at least 25"), "{:?}", verdict.arms[0].cells[1].reasons);
    let (base, arm) = shares(400, 220, 220);
    let low = compare(&base, None, &[arm]).unwrap();
    let floor = CellPolicy { baseline_floor: Some(0.5), ..CellPolicy::default() };
    assert_eq!(judge(&low, &policy_with("retrieval", floor)).unwrap().ruling, Ruling::Pass);
    for cell in [
        CellPolicy { min_pairs: Some(0), ..CellPolicy::default() },
        CellPolicy { max_relative_drop: Some(1.0), ..CellPolicy::default() },
        CellPolicy { relative_guard_below: Some(1.5), ..CellPolicy::default() },
        CellPolicy { min_valid_share: Some(0.0), ..CellPolicy::default() },
        CellPolicy { baseline_floor: Some(f64::NAN), ..CellPolicy::default() },
    ] {
        let refused = judge(&comparison, &policy_with("retrieval", cell.clone()));
        assert!(matches!(refused, Err(GateError::OutOfRange { .. })), "{cell:?}");
    }
}

/// The comparison on other seeds.
fn reseeded(mut comparison: Comparison) -> Comparison {
    comparison.plan.insert("seed".into(), "2".into());
    comparison
}

#[test]
fn what_fails_fails_only_when_it_rejects_again() {
    let policy = GatePolicy { confirm: true, ..GatePolicy::default() };
    let first = compared(&[(2048, 60, 0), (8192, 60, 9)]);
    let verdict = judge(&first, &policy).unwrap();
    let suspect = Suspect { arm: "fp8_e5m2".into(), bins: [Bin(8192)].into() };
    assert_eq!(suspects(&verdict), [suspect]);
    let confirm = |again: &[Comparison]| confirmed(&first, &policy, verdict.clone(), again);
    // The family of the second run is what was asked again: five of 60 are enough, of two cells they would not be.
    let held = confirm(&[reseeded(compared(&[(8192, 60, 5)]))]).unwrap();
    assert_eq!(held.ruling, Ruling::Regressed);
    let confirmation = held.arms[0].cells[1].confirmation.as_ref().unwrap();
    assert_eq!((confirmation.adjusted_p, confirmation.rejects), (Some(1.0 / 32.0), true));
    assert!(held.sentence.contains("confirmed on fresh seeds (−8.3 points in 60 pairs)"), "{}", held.sentence);
    let lifted = confirm(&[reseeded(compared(&[(8192, 60, 4)]))]).unwrap();
    assert_eq!(lifted.ruling, Ruling::Inconclusive, "never a pass");
    assert!(lifted.sentence.contains("not confirmed: on fresh seeds"), "{}", lifted.sentence);
    assert!(!lifted.arms[0].cells[1].confirmation.as_ref().unwrap().rejects);
    let few = confirm(&[reseeded(compared(&[(8192, 19, 19)]))]).unwrap();
    assert_eq!(few.ruling, Ruling::Inconclusive);
    assert!(few.sentence.contains("too few pairs"), "{}", few.sentence);
    // What is not there, is of another measurement or is the same sample, confirms nothing.
    assert!(matches!(confirm(&[]), Err(GateError::Unconfirmed { bin: Bin(8192), .. })));
    assert!(matches!(confirm(&[reseeded(compared(&[(2048, 60, 9)]))]), Err(GateError::Unconfirmed { .. })));
    assert!(matches!(confirm(&[compared(&[(8192, 60, 9)])]), Err(GateError::SameSeed { .. })));
    let mut other = reseeded(compared(&[(8192, 60, 9)]));
    other.plan.insert("weights".into(), "others".into());
    assert!(matches!(confirm(&[other]), Err(GateError::OtherConfirmation { .. })));
    let mut other = reseeded(compared(&[(8192, 60, 9)]));
    other.candidates[0].summary.arm.settings.insert("kv_scales".into(), "random".into());
    assert!(confirm(&[other]).unwrap_err().to_string().contains("an arm"));
    // A second run that is no measurement makes none of the arm.
    let mut broken = reseeded(compared(&[(8192, 60, 9)]));
    broken.candidates[0].summary.complete = false;
    let invalid = confirm(&[broken]).unwrap();
    assert_eq!(invalid.ruling, Ruling::Invalid);
    assert!(invalid.arms[0].invalid[0].starts_with("confirmation at 8K: "), "{:?}", invalid.arms[0].invalid);
    // Nothing fails, nothing is asked.
    let clean = compared(&[(2048, 60, 0)]);
    let passed = judge(&clean, &policy).unwrap();
    assert_eq!(confirmed(&clean, &policy, passed.clone(), &[]).unwrap(), passed);
}

#[test]
fn symptoms_are_confirmed_like_cells() {
    let looped = |wrong: std::ops::Range<usize>| {
        let (base, mut arm) = pair(&[(2048, 60, 0), (8192, 60, 0)], "fp8_e5m2");
        let finding =
            Finding { kind: FindingKind::Repetition, severity: 0.5, start: 0, end: 4, evidence: "loop".into() };
        for sample in &mut arm.samples[wrong] {
            sample.findings = vec![finding.clone()];
        }
        compare(&base, None, &[arm]).unwrap()
    };
    let policy = GatePolicy { confirm: true, ..GatePolicy::default() };
    let first = looped(60..68);
    let verdict = judge(&first, &policy).unwrap();
    assert_eq!(suspects(&verdict)[0].bins, [Bin(8192)].into());
    let confirm = |again| confirmed(&first, &policy, verdict.clone(), &[reseeded(again)]).unwrap();
    let held = confirm(looped(60..66));
    assert_eq!(held.ruling, Ruling::Regressed);
    assert!(held.sentence.contains("repetition at 8K rose") && held.sentence.contains("confirmed on fresh seeds"));
    for other in [looped(60..62), looped(0..0), looped(0..30)] {
        let lifted = confirm(other);
        assert_ne!(lifted.ruling, Ruling::Regressed, "{}", lifted.sentence);
        assert!(!lifted.arms[0].symptoms.iter().any(|symptom| symptom.regressed));
    }
}

#[test]
fn one_cache_under_two_names_is_an_arm_against_itself() {
    let (base, first) = pair(&[(2048, 60, 0)], "fp8");
    let mut second = pair(&[(2048, 60, 0)], "fp8_e4m3").1;
    let both = |first: &Record, second: &Record| compare(&base, None, &[first.clone(), second.clone()]).unwrap();
    let comparison = both(&first, &second);
    let repeat = &comparison.repeats[0];
    assert_eq!((repeat.first.as_str(), repeat.second.as_str(), repeat.pairs), ("fp8", "fp8_e4m3", 60));
    assert_eq!(judge(&comparison, &GatePolicy::default()).unwrap().ruling, Ruling::Pass);
    second.samples[3] = sample("needle", 2048, 3, false);
    let broken = judge(&both(&first, &second), &GatePolicy::default()).unwrap();
    assert_eq!(broken.arms.iter().map(|arm| arm.ruling).collect::<Vec<_>>(), [Ruling::Invalid; 2]);
    assert!(broken.sentence.contains("one cache under two names"), "{}", broken.sentence);
    // On a server that is its noise, and measured by it no other A/A arm is needed.
    let (mut base, mut first) = (base, first);
    for record in [&mut base, &mut first, &mut second] {
        server(record);
    }
    let served = compare(&base, None, &[first.clone(), second]).unwrap();
    let verdict = judge(&served, &GatePolicy::default()).unwrap();
    assert!(verdict.arms.iter().all(|arm| arm.invalid.is_empty()), "{}", verdict.sentence);
    assert!(
        verdict.sentence.contains("A/A flip rate of fp8_e4m3 against fp8: 1.7 % (1 of 60 pairs)"),
        "{}",
        verdict.sentence
    );
    let alone = judge(&compare(&base, None, &[first]).unwrap(), &GatePolicy::default()).unwrap();
    assert_eq!(alone.ruling, Ruling::Invalid, "the noise is not known");
}
