//! What a pair is, what is counted, what is refused.

use proptest::prelude::*;

use crate::compare::fixtures::{arm, base, manifest, sample};
use crate::compare::table::{task_bin_table, write_parquet};
use crate::compare::{ArmComparison, CompareError, Comparison, Delta, FlipDirection, PairedTest, compare};
use crate::record::{Record, samples::SampleRecord};
use crate::sample::{Bin, Finding, FindingKind, FinishReason, Outcome};
use crate::setup::{Arm, Evidence};

fn one(base: &Record, arm: &Record) -> ArmComparison {
    compare(base, None, std::slice::from_ref(arm)).unwrap().candidates.remove(0)
}

fn only_cell(compared: &ArmComparison) -> &Delta {
    assert_eq!(compared.groups.len(), 1);
    &compared.groups[0].delta
}

#[test]
fn counts_of_a_simple_cell() {
    let compared = one(&base(&[true, true, true, false, false]), &arm(&[true, false, false, true, false]));
    let cell = only_cell(&compared);
    assert_eq!((cell.pairs, cell.baseline_right, cell.candidate_right), (5, 3, 2));
    assert_eq!((cell.regressions, cell.fixes, cell.wrong_but_different), (2, 1, 0));
    assert!((cell.delta.unwrap() + 0.2).abs() < 1e-12);
    assert_eq!(cell.test, PairedTest::ExactMcnemar);
    assert_eq!(cell.p_worse, Some(0.5));
    let (low, high) = cell.interval.unwrap();
    assert!(low < -0.2 && -0.2 < high && cell.drop_upper.unwrap() < -low);
    assert_eq!(cell.output_ratio, Some((1.0 + 2.0 + 2.0 + 0.5 + 1.0) / 5.0));
    assert_eq!(cell.first_divergence, Some(0), "`right` and `wrong` differ at once");
    let nll = cell.nll.as_ref().unwrap();
    assert!((nll.delta - 0.075).abs() < 1e-12 && nll.pairs == 5);
    assert!(nll.interval.is_some_and(|(low, high)| low < 0.075 && 0.075 < high));
    let directions: Vec<FlipDirection> = compared.flips.iter().map(|flip| flip.direction).collect();
    assert_eq!(directions, [FlipDirection::Regression, FlipDirection::Regression, FlipDirection::Fix]);
    assert_eq!(
        (compared.flips[0].cause.as_str(), compared.flips[0].notes.as_slice()),
        ("near miss", &["one digit".into()][..])
    );
    assert_eq!(compared.pooled.as_ref().map(|pooled| pooled.pairs), Some(5));
    assert_eq!(compared.slope, None, "one length has no slope");
    assert_eq!(compared.same_sign.as_ref().map(|sign| (sign.negative, sign.positive)), Some((1, 0)));
    assert!(compared.summary.complete);
    assert_eq!(compared.summary.depth_cells.iter().map(|cell| cell.n).sum::<u64>(), 5);
}

#[test]
fn broken_sides_do_not_count_but_are_counted() {
    let baseline = base(&[true; 6]);
    let mut candidate = arm(&[true; 6]);
    candidate.samples[1].outcome = Outcome::Error;
    candidate.samples[1].completion = None;
    candidate.samples[1].score = None;
    candidate.samples[2].outcome = Outcome::Invalid;
    let compared = one(&baseline, &candidate);
    let cell = only_cell(&compared);
    assert_eq!((cell.items, cell.pairs, cell.censored, cell.broken), (6, 4, 0, 2));
    assert_eq!((cell.baseline_answered.items, cell.candidate_answered.items), (6, 4));
    assert_eq!(compared.summary.cells[0].not_valid, 2);
    assert!(compared.summary.outcomes.contains(&(Outcome::Error, 1)));
    assert!(compared.summary.outcomes.contains(&(Outcome::Invalid, 1)));
}

fn cut(sample: &mut SampleRecord) {
    sample.completion.as_mut().unwrap().finish_reason = FinishReason::Length;
}

#[test]
fn the_output_limit_is_a_fault_of_the_arm_that_ran_into_it_alone() {
    let mut baseline = base(&[true, true, false, true, true]);
    let mut candidate = arm(&[true, false, false, false, true]);
    // 0: the arm never finished thinking, the baseline was right.
    candidate.samples[0].outcome = Outcome::Censored;
    candidate.samples[0].score = None;
    cut(&mut candidate.samples[0]);
    // 1: both cut, but the baseline is right all the same: counts.
    cut(&mut baseline.samples[1]);
    cut(&mut candidate.samples[1]);
    // 2: both cut and both wrong: censored.
    cut(&mut baseline.samples[2]);
    cut(&mut candidate.samples[2]);
    // 3: neither came to an end.
    for record in [&mut baseline, &mut candidate] {
        record.samples[3].outcome = Outcome::Censored;
    }
    let compared = one(&baseline, &candidate);
    let cell = only_cell(&compared);
    assert_eq!((cell.pairs, cell.regressions, cell.fixes), (3, 2, 0));
    assert_eq!((cell.items, cell.censored, cell.broken), (5, 2, 0));
    // Item 3 never came to an end in the baseline and is not right there, item 2 was wrong.
    assert_eq!((cell.baseline_answered.items, cell.baseline_answered.right), (5, 3));
    let summary = &compared.summary.cells[0];
    assert_eq!((summary.n, summary.right, summary.not_valid), (5, 1, 0), "unfinished is an answer that is not right");
    // The other way round the same pairs count, mirrored.
    baseline.manifest.arm = Arm::candidate("fp8_e4m3");
    candidate.manifest.arm = Arm::baseline("bfloat16");
    let mirrored = one(&candidate, &baseline);
    assert_eq!((only_cell(&mirrored).pairs, only_cell(&mirrored).fixes), (3, 2));
}

#[test]
fn a_later_attempt_supersedes_and_a_contradiction_is_damage() {
    let baseline = base(&[true, true]);
    let mut candidate = arm(&[true, false]);
    let mut again = sample("needle", 2048, 1, true);
    again.attempt = 2;
    candidate.samples.insert(0, again);
    assert_eq!(only_cell(&one(&baseline, &candidate)).regressions, 0);
    candidate.samples[0].attempt = 1;
    assert!(matches!(compare(&baseline, None, &[candidate]), Err(CompareError::Duplicate { attempt: 1, .. })));
}

#[test]
fn another_measurement_is_refused_with_its_fields() {
    let mut baseline = base(&[true]);
    baseline.manifest.plan.insert("weights".into(), "w".into());
    let mut candidate = arm(&[true]);
    candidate.manifest.plan.insert("seed".into(), "2".into());
    candidate.manifest.plan.insert("suite".into(), "another fingerprint".into());
    candidate.manifest.plan.insert("weights".into(), "other".into());
    candidate.manifest.model.weights = "other".into();
    candidate.manifest.resolved.kernel = Evidence::known("reference".into(), "test");
    let Err(CompareError::Mismatch { fields, .. }) = compare(&baseline, None, std::slice::from_ref(&candidate)) else {
        panic!("must be refused");
    };
    let names: Vec<&str> = fields.iter().map(|field| field.field.as_str()).collect();
    assert_eq!(names, ["seed", "suite", "weights", "resolved kernel"]);
    let baseline = base(&[true]);
    let mut other_prompt = arm(&[true]);
    other_prompt.samples[0].prompt_hash = "other".into();
    assert!(matches!(compare(&baseline, None, &[other_prompt]), Err(CompareError::Prompts { count: 1, .. })));
    let mut no_number = arm(&[true]);
    no_number.samples[0].score.as_mut().unwrap().value = f64::NAN;
    assert!(matches!(compare(&baseline, None, &[no_number]), Err(CompareError::BadNumber { .. })));
    let same_name = base(&[true]);
    assert!(matches!(compare(&baseline, None, &[same_name]), Err(CompareError::SameName { .. })));
    let empty = base(&[]);
    assert!(matches!(compare(&empty, None, &[arm(&[])]), Err(CompareError::NothingMeasured { .. })));
}

#[test]
fn other_backends_are_confounded_and_other_engines_a_mismatch() {
    let baseline = base(&[true]);
    let mut candidate = arm(&[true]);
    candidate.manifest.resolved.attention_backend = Evidence::known("TRITON_ATTN".into(), "log line 4");
    candidate.manifest.resolved.engine = Evidence::known("other 0.1.0".into(), "test");
    let compared = one(&baseline, &candidate);
    let confounded = compared.confounded.as_ref().unwrap();
    assert!(confounded.contains("TRITON_ATTN (log line 4)") && confounded.contains("PAGED"), "{confounded}");
    assert_eq!(compared.mismatches.iter().map(|it| it.field.as_str()).collect::<Vec<_>>(), ["engine"]);
    candidate.manifest.resolved.engine = Evidence::known("kvgauge embedded 0.2.0".into(), "test");
    candidate.manifest.resolved.attention_backend = Evidence::unknown("test");
    let compared = one(&baseline, &candidate);
    assert_eq!((compared.confounded, compared.mismatches), (None, vec![]));
}

#[test]
fn shared_haystacks_are_clusters() {
    let share = |mut record: Record| {
        for sample in &mut record.samples {
            sample.haystack_id = format!("hay-{}", sample.index / 4);
        }
        record
    };
    let mut right = [true; 40];
    right[..4].fill(false);
    let compared = one(&share(base(&[true; 40])), &share(arm(&right)));
    let cell = only_cell(&compared);
    assert_eq!((cell.test, cell.haystacks), (PairedTest::ClusterSignFlip, 10));
    assert_eq!(cell.p_worse, Some(0.5), "one haystack is one observation, not four");
    let apart = one(&base(&[true; 40]), &arm(&right));
    assert_eq!(only_cell(&apart).p_worse, Some(0.0625));
    assert!(cell.drop_upper > only_cell(&apart).drop_upper);
}

#[test]
fn one_haystack_has_no_interval_of_likelihood() {
    let one_haystack = |mut record: Record| {
        for sample in &mut record.samples {
            sample.haystack_id = "hay".into();
        }
        record
    };
    let compared = one(&one_haystack(base(&[true; 9])), &one_haystack(arm(&[false; 9])));
    let nll = only_cell(&compared).nll.as_ref().unwrap();
    assert_eq!((nll.pairs, nll.delta, nll.interval), (9, 0.375, None));
    let pair = one(&base(&[true]), &arm(&[false]));
    assert_eq!(only_cell(&pair).nll.as_ref().unwrap().interval, None);
}

#[test]
fn texts_that_are_not_scored_have_no_place_of_divergence() {
    let (mut baseline, mut candidate) = (base(&[true, false]), arm(&[true, false]));
    for record in [&mut baseline, &mut candidate] {
        cut(&mut record.samples[1]);
    }
    candidate.samples[1].completion.as_mut().unwrap().text = "wrung".into();
    let compared = one(&baseline, &candidate);
    assert_eq!(compared.pooled.as_ref().map(|pooled| (pooled.first_divergence, pooled.censored)), Some((None, 1)));
    assert_eq!(compared.treatment.different_outputs, 1, "but that they differ is known");
}

#[test]
fn symptoms_are_paired_and_lead_the_cause() {
    let baseline = base(&[true; 8]);
    let mut candidate = arm(&[true, true, true, true, false, false, false, false]);
    for sample in &mut candidate.samples[3..] {
        sample.findings =
            vec![
                Finding { kind: FindingKind::Repetition, severity: 1.0, start: 0, end: 5, evidence: "loop".into() };
                2
            ];
    }
    let compared = one(&baseline, &candidate);
    let symptom = &compared.symptoms[0];
    assert_eq!(compared.symptoms.len(), 1);
    assert_eq!(
        (symptom.kind, symptom.candidate, symptom.appeared, symptom.vanished),
        (FindingKind::Repetition, 5, 5, 0)
    );
    assert_eq!(symptom.p_rise, 0.03125);
    assert_eq!(compared.flips[0].cause, "repetition");
    assert_eq!(compared.summary.cells[0].symptoms, [(FindingKind::Repetition, 5)]);
}

#[test]
fn a_drop_that_grows_with_length_has_a_slope() {
    let bins = [512, 2048, 8192, 32768];
    let both = |arm: Arm, wrong_per_step: u32| {
        let samples: Vec<SampleRecord> = bins
            .iter()
            .enumerate()
            .flat_map(|(step, bin)| {
                (0..20).map(move |index| sample("needle", *bin, index, index >= wrong_per_step * step as u32))
            })
            .collect();
        Record { manifest: manifest(arm, 80), samples }
    };
    let compared = one(&both(Arm::baseline("bfloat16"), 0), &both(Arm::candidate("fp8_e5m2"), 4));
    let slope = compared.slope.unwrap();
    assert!(slope.per_doubling < -0.05 && slope.p_falling < 0.001, "{slope:?}");
    assert_eq!(compared.treatment.compared_outputs, 40, "8K and 32K are long");
    assert_eq!(compared.same_sign.map(|sign| sign.negative), Some(3));
}

#[test]
fn a_control_over_part_of_the_plan_is_legal() {
    let both = |arm: Arm, bins: &[u32]| {
        let samples: Vec<SampleRecord> =
            bins.iter().flat_map(|bin| (0..4).map(|index| sample("needle", *bin, index, true))).collect();
        let mut record = Record { manifest: manifest(arm, samples.len() as u64), samples };
        record.manifest.plan.insert("bins".into(), format!("{bins:?}"));
        record
    };
    let baseline = both(Arm::baseline("bfloat16"), &[512, 2048]);
    let control = both(Arm::control("bfloat16"), &[512]);
    let candidate = both(Arm::candidate("fp8_e4m3"), &[512, 2048]);
    let compared = compare(&baseline, Some(&control), &[candidate]).unwrap();
    let control = compared.control.unwrap();
    assert_eq!((control.groups.len(), control.mismatches.len()), (1, 0));
    assert_eq!(compared.bins, [Bin(512), Bin(2048)]);
    let partial = both(Arm::candidate("fp8_e5m2"), &[512]);
    assert!(matches!(compare(&baseline, None, &[partial]), Err(CompareError::Mismatch { .. })));
}

#[test]
fn polars_counts_as_the_comparison_does_and_the_file_can_be_read() {
    let baseline = base(&[true, true, true, false]);
    let candidate = arm(&[true, false, false, false]);
    let rows = task_bin_table(&[&baseline, &candidate]).unwrap();
    assert_eq!(rows.len(), 2);
    let compared = one(&baseline, &candidate);
    let cell = &compared.summary.cells[0];
    assert_eq!((rows[1].arm.as_str(), rows[1].n, rows[1].right), ("fp8_e4m3", cell.n, cell.right));
    assert_eq!(rows[1].output_tokens, cell.output_tokens);
    assert!((rows[1].difference.unwrap() - compared.tasks[0].delta.unwrap()).abs() < 1e-12);
    assert_eq!(task_bin_table(&[]).unwrap(), []);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("samples of a run.parquet");
    write_parquet(&[&baseline, &candidate], &path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1") && bytes.len() > 1000);
    let missing = folder.path().join("no such folder").join("samples.parquet");
    assert!(write_parquet(&[&baseline], &missing).unwrap_err().to_string().contains("no such folder"));
}

fn shuffled(mut record: Record, seed: u64) -> Record {
    let mut state = seed | 1;
    for last in (1..record.samples.len()).rev() {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        record.samples.swap(last, (state >> 33) as usize % (last + 1));
    }
    record
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn order_changes_nothing_and_swapping_sides_mirrors(
        outcomes in prop::collection::vec((any::<bool>(), any::<bool>()), 0..30),
        seed in any::<u64>(),
        share in 1u32..4,
    ) {
        prop_assume!(!outcomes.is_empty());
        let (ours, theirs): (Vec<bool>, Vec<bool>) = outcomes.into_iter().unzip();
        let share = |mut record: Record| {
            for sample in &mut record.samples {
                sample.haystack_id = format!("hay-{}", sample.index / share);
            }
            record
        };
        let (baseline, candidate) = (share(base(&ours)), share(arm(&theirs)));
        let compared = compare(&baseline, None, std::slice::from_ref(&candidate)).unwrap();
        let again: Comparison = compare(&shuffled(baseline, seed), None, &[shuffled(candidate, seed ^ 5)]).unwrap();
        prop_assert_eq!(&compared, &again);
        let json = serde_json::to_string(&compared).unwrap();
        prop_assert_eq!(serde_json::from_str::<Comparison>(&json).unwrap(), again, "the document holds every number");
        let mirrored = one(&share(base(&theirs)), &share(arm(&ours)));
        let (cell, mirror) = (only_cell(&compared.candidates[0]), only_cell(&mirrored));
        prop_assert_eq!((cell.regressions, cell.fixes), (mirror.fixes, mirror.regressions));
        prop_assert!((cell.delta.unwrap() + mirror.delta.unwrap()).abs() < 1e-12);
        let (interval, other) = (cell.interval.unwrap(), mirror.interval.unwrap());
        prop_assert!((interval.0 + other.1).abs() < 1e-9 && (interval.1 + other.0).abs() < 1e-9);
        for p in [cell.p_worse, cell.p_graded, mirror.p_worse] {
            prop_assert!(p.is_some_and(|p| p > 0.0 && p <= 1.0));
        }
    }

    #[test]
    fn concordant_pairs_never_change_mcnemar(b in 0usize..12, c in 0usize..12, same in 0usize..30) {
        prop_assume!(b + c > 0);
        let (mut ours, mut theirs) = (vec![true; b], vec![false; b]);
        ours.extend(vec![false; c]);
        theirs.extend(vec![true; c]);
        let before = only_cell(&one(&base(&ours), &arm(&theirs))).p_worse;
        for i in 0..same {
            ours.push(i % 2 == 0);
            theirs.push(i % 2 == 0);
        }
        prop_assert_eq!(only_cell(&one(&base(&ours), &arm(&theirs))).p_worse, before);
    }
}
