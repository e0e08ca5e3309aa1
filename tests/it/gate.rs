//! The gate's own error rates, by simulation and by exact calculation: how often it alarms without damage, how often it
//! finds planted damage, how often it passes what it must not pass.

use std::collections::BTreeMap;

use kvgauge::compare::{Answered, Comparison, Delta, GroupDelta, compare};
use kvgauge::gate::{Ruling, confirmed, judge};
use kvgauge::record::Record;
use kvgauge::record::manifest::{FORMAT, Manifest, RunStatus};
use kvgauge::record::samples::SampleRecord;
use kvgauge::rng::Rng;
use kvgauge::sample::{Bin, Completion, FinishReason, Language, Outcome, Score, Timing};
use kvgauge::setup::{Arm, Evidence, ModelIdentity, Resolved};
use kvgauge::stats::mcnemar;
use kvgauge::stats::paired::{Cluster, DropLimits, clustered_95, tango_95};
use kvgauge::suite::{GatePolicy, TaskGroup};

const NIGHTS: u32 = 2_000;

pub(crate) fn record(arm: Arm, samples: Vec<SampleRecord>) -> Record {
    let dtype = arm.kv_cache_dtype.clone();
    let bytes = if dtype == "bfloat16" { 64.0 } else { 32.0 };
    let manifest = Manifest {
        format: FORMAT,
        tool_version: "0.1.0".into(),
        suite: "simulation".into(),
        plan: BTreeMap::new(),
        plan_hash: String::new(),
        arm,
        model: ModelIdentity {
            name: "model".into(),
            weights: "w".into(),
            tokenizer: "t".into(),
            chat_template: "c".into(),
            rope: "default".into(),
            trained_context: 8192,
        },
        resolved: Resolved {
            engine: Evidence::known("kvgauge embedded 0.1.0".into(), "simulation"),
            kv_cache_dtype: Evidence::known(dtype, "simulation"),
            attention_backend: Evidence::known("PAGED".into(), "simulation"),
            kernel: Evidence::known("portable".into(), "simulation"),
            kv_bytes_per_token: Evidence::known(bytes, "simulation"),
            kv_cache_tokens: Evidence::unknown("simulation"),
            kv_scales: Evidence::unknown("simulation"),
            max_model_len: Evidence::unknown("simulation"),
            ..Resolved::unknown("simulation")
        },
        checks: Vec::new(),
        environment: BTreeMap::new(),
        planned_items: samples.len() as u64,
        status: RunStatus::Complete,
        accepted: None,
    };
    Record { manifest, samples }
}

pub(crate) fn sample(bin: Bin, index: u32, per_haystack: u32, right: bool, answer_nll: f64) -> SampleRecord {
    SampleRecord {
        item_id: format!("{bin}-{index}"),
        task: "needle".into(),
        language: Language::En,
        bin,
        slot_percent: 50,
        index,
        haystack_id: format!("{bin}-{}", index / per_haystack),
        depth_percent: None,
        prompt_tokens: bin.tokens(),
        prompt_hash: String::new(),
        expected_answer: String::new(),
        excerpt: String::new(),
        outcome: if right { Outcome::ValidRight } else { Outcome::ValidWrong },
        score: Some(Score {
            value: f64::from(u8::from(right)),
            extracted: String::new(),
            faults: vec![],
            turn_scores: vec![],
        }),
        findings: vec![],
        completion: Some(Completion {
            text: if right { "right".into() } else { "wrong".into() },
            prompt_tokens: bin.tokens(),
            output_tokens: 1,
            finish_reason: FinishReason::Stop,
            timing: Timing::default(),
            answer_nll: Some(answer_nll),
            reasoning: None,
            later_answers: Vec::new(),
            answer_tokens: Vec::new(),
        }),
        text_hash: String::new(),
        truncated: false,
        error: None,
        attempt: 1,
        variant_of: None,
    }
}

/// A valid comparison without a cell, to be filled with simulated counts.
fn shell() -> Comparison {
    let one = |right, nll| vec![sample(Bin(512), 0, 1, right, nll)];
    let base = record(Arm::baseline("bfloat16"), one(true, 0.5));
    let arm = record(Arm::candidate("fp8_e4m3"), one(true, 0.6));
    let mut comparison = compare(&base, None, &[arm]).expect("two records of one plan");
    comparison.candidates[0].groups.clear();
    comparison
}

fn bin_of(index: u32) -> Bin {
    Bin(512 << (index / 3))
}

/// What `compare` makes of `n` unclustered pairs with these flips, on a baseline that is otherwise right.
fn cell(index: u32, n: u64, b: u64, c: u64) -> GroupDelta {
    let bin = bin_of(index);
    let group = [TaskGroup::Retrieval, TaskGroup::Tracing, TaskGroup::Structure][index as usize % 3];
    let limits = tango_95(n as f64, b as f64, c as f64).expect("b + c ≤ n");
    let delta = Delta {
        items: n,
        pairs: n,
        baseline_answered: Answered { items: n, right: n - c },
        candidate_answered: Answered { items: n, right: n - b },
        haystacks: n,
        baseline_right: n - c,
        candidate_right: n - b,
        delta: Some((c as f64 - b as f64) / n as f64),
        interval: Some((-limits.high, -limits.low)),
        drop_upper: Some(limits.upper),
        regressions: b,
        fixes: c,
        p_worse: Some(mcnemar::one_sided(b, c)),
        ..Delta::empty(group.name(), Some(bin))
    };
    GroupDelta { group, delta }
}

/// Flips of `n` pairs, each worse with probability `worse` and better with `better`.
fn flips(rng: &mut Rng, n: u64, worse: f64, better: f64) -> (u64, u64) {
    let mut counts = (0, 0);
    for _ in 0..n {
        let draw = rng.unit();
        if draw < worse {
            counts.0 += 1;
        } else if draw < worse + better {
            counts.1 += 1;
        }
    }
    counts
}

/// Share of nights with this ruling.
fn share_of_nights(ruling: Ruling, cells: u32, n: u64, worse: f64, better: f64) -> f64 {
    let mut comparison = shell();
    let policy = GatePolicy::default();
    let mut rng = Rng::from_name(&["gate simulation", &format!("{cells} {n} {worse} {better}")]);
    let mut nights = 0;
    for _ in 0..NIGHTS {
        comparison.candidates[0].groups = (0..cells)
            .map(|index| {
                let (b, c) = flips(&mut rng, n, worse, better);
                cell(index, n, b, c)
            })
            .collect();
        let verdict = judge(&comparison, &policy).expect("the default policy fits every run");
        assert_ne!(verdict.ruling, Ruling::Invalid, "{}", verdict.sentence);
        nights += u32::from(verdict.ruling == ruling);
    }
    f64::from(nights) / f64::from(NIGHTS)
}

fn standard_error(share: f64) -> f64 {
    (share * (1.0 - share) / f64::from(NIGHTS)).sqrt()
}

#[test]
fn without_damage_the_family_alarms_on_at_most_alpha_of_the_nights() {
    for flip_rate in [0.02, 0.05, 0.10, 0.20] {
        for cells in [5, 15] {
            let alarms = share_of_nights(Ruling::Regressed, cells, 200, flip_rate / 2.0, flip_rate / 2.0);
            println!("false alarms: flips {flip_rate}, {cells} cells of 200 pairs: {alarms}");
            assert!(alarms <= 0.05 + 3.0 * standard_error(0.05), "ψ {flip_rate}, {cells} cells: {alarms}");
        }
    }
}

/// Power of the one-sided exact test for a drop of 5 points: (ψ, n, power).
const POWER: [(f64, u64, f64); 9] = [
    (0.05, 100, 0.564),
    (0.05, 200, 0.974),
    (0.05, 500, 1.0),
    (0.10, 100, 0.348),
    (0.10, 200, 0.674),
    (0.10, 500, 0.970),
    (0.20, 100, 0.232),
    (0.20, 200, 0.420),
    (0.20, 500, 0.780),
];

#[test]
fn a_planted_drop_of_five_points_is_found_as_often_as_the_table_says() {
    for (psi, n, power) in POWER {
        let found = share_of_nights(Ruling::Regressed, 1, n, (psi + 0.05) / 2.0, (psi - 0.05) / 2.0);
        println!("power: drop of 5 points, flips {psi}, {n} pairs: {found}, by the table {power}");
        // The table has three digits.
        let tolerance = 3.0 * standard_error(power) + 0.0005;
        assert!((found - power).abs() <= tolerance, "ψ {psi}, n {n}: {found} instead of {power}");
    }
}

#[test]
fn a_drop_of_the_margin_hardly_ever_passes() {
    // Tango's limit is asymptotic: its error is 5 % for many pairs and up to 0.95^52 = 7 % at the fewest that can pass.
    for (n, most) in [(52, 0.0695), (100, 0.065), (200, 0.065), (500, 0.06)] {
        for psi in [0.05, 0.10, 0.20] {
            let passed = share_of_nights(Ruling::Pass, 1, n, (psi + 0.05) / 2.0, (psi - 0.05) / 2.0);
            println!("wrong PASS: drop of the margin, flips {psi}, {n} pairs: {passed}");
            assert!(passed <= most + 3.0 * standard_error(most), "ψ {psi}, n {n}: {passed}");
        }
    }
    let both = share_of_nights(Ruling::Pass, 5, 200, 0.075, 0.025);
    println!("wrong PASS: drop of the margin in five cells of 200 pairs: {both}");
    assert!(both < 0.001, "five damaged cells: {both}");
}

/// Exact probability that an interval of `n` pairs holds the true drop, over all tables.
fn coverage(n: u64, worse: f64, better: f64, holds: impl Fn(DropLimits, f64) -> bool) -> f64 {
    let same = 1.0 - worse - better;
    let ln_factorial: Vec<f64> = (0..=n)
        .scan(0.0, |sum, i| {
            *sum += (i.max(1) as f64).ln();
            Some(*sum)
        })
        .collect();
    let power = |share: f64, count: u64| if count == 0 { 0.0 } else { count as f64 * share.ln() };
    let mut covered = 0.0;
    for b in 0..=n {
        for c in 0..=n - b {
            let rest = n - b - c;
            let choose =
                ln_factorial[n as usize] - [b, c, rest].iter().map(|count| ln_factorial[*count as usize]).sum::<f64>();
            let weight = (choose + power(worse, b) + power(better, c) + power(same, rest)).exp();
            if weight > 1e-9 {
                let limits = tango_95(n as f64, b as f64, c as f64).expect("b + c ≤ n");
                covered += if holds(limits, worse - better) { weight } else { 0.0 };
            }
        }
    }
    covered
}

#[test]
fn tangos_interval_holds_the_true_drop_as_often_as_it_says() {
    for n in [52, 100, 200] {
        for psi in [0.05, 0.10, 0.20] {
            for delta in [0.0, 0.03, 0.05] {
                let (worse, better) = ((psi + delta) / 2.0, (psi - delta) / 2.0);
                let two_sided = coverage(n, worse, better, |limits, drop| limits.low <= drop && drop <= limits.high);
                assert!(two_sided > 0.93, "n {n}, ψ {psi}, δ {delta}: {two_sided}");
                let upper = coverage(n, worse, better, |limits, drop| drop <= limits.upper);
                println!(
                    "coverage: {n} pairs, flips {psi}, drop {delta}: two-sided {two_sided:.4}, upper limit {upper:.4}"
                );
                assert!(upper > 0.93, "n {n}, ψ {psi}, δ {delta}: upper {upper}");
            }
        }
    }
}

#[test]
fn the_clustered_interval_holds_the_true_drop_as_often_as_it_says() {
    // (haystacks, share of haystacks that change as a whole for the worse, for the better, single changes for the worse)
    for (haystacks, worse, better, single) in [(40, 0.05, 0.05, 0.0), (60, 0.10, 0.02, 0.0), (40, 0.04, 0.04, 0.05)] {
        let mut rng = Rng::from_name(&["coverage", &format!("{haystacks} {worse} {better} {single}")]);
        let truth = worse - better + (1.0 - worse - better) * single;
        let mut covered = 0;
        for _ in 0..NIGHTS {
            let (mut clusters, mut b, mut c) = (Vec::new(), 0, 0);
            for _ in 0..haystacks {
                let draw = rng.unit();
                let changes: [i64; 4] = if draw < worse {
                    [1; 4]
                } else if draw < worse + better {
                    [-1; 4]
                } else {
                    std::array::from_fn(|_| i64::from(rng.unit() < single))
                };
                b += changes.iter().filter(|change| **change > 0).count() as u64;
                c += changes.iter().filter(|change| **change < 0).count() as u64;
                clusters.push(Cluster { sum: changes.iter().sum::<i64>() as f64, size: 4 });
            }
            let limits = clustered_95(&clusters, b, c).expect("there are observations");
            covered += u32::from(limits.low <= truth && truth <= limits.high);
        }
        let covered = f64::from(covered) / f64::from(NIGHTS);
        println!(
            "clustered coverage: {haystacks} texts of 4, worse {worse}, better {better}, single {single}: {covered}"
        );
        assert!(covered >= 0.95 - 3.0 * standard_error(0.95), "{haystacks} {worse} {better} {single}: {covered}");
    }
}

/// Share of nights that fail after what fails was asked again.
fn confirmed_share(cells: u32, n: u64, worse: f64, better: f64) -> f64 {
    let policy = GatePolicy { confirm: true, ..GatePolicy::default() };
    let mut first = shell();
    first.bins = (0..cells).map(bin_of).collect();
    let mut again = first.clone();
    let mut rng = Rng::from_name(&["confirmed nights", &format!("{cells} {n} {worse} {better}")]);
    let mut night = |comparison: &mut Comparison| {
        comparison.candidates[0].groups = (0..cells)
            .map(|index| {
                let (b, c) = flips(&mut rng, n, worse, better);
                cell(index, n, b, c)
            })
            .collect();
    };
    let mut failed = 0;
    for _ in 0..NIGHTS {
        night(&mut first);
        night(&mut again);
        let verdict = judge(&first, &policy).expect("the default policy fits every run");
        let verdict = confirmed(&first, &policy, verdict, std::slice::from_ref(&again)).expect("every bin is there");
        failed += u32::from(verdict.ruling == Ruling::Regressed);
    }
    f64::from(failed) / f64::from(NIGHTS)
}

#[test]
fn a_confirmed_alarm_is_as_rare_as_two_of_them() {
    for (flip_rate, cells) in [(0.05, 5), (0.20, 15)] {
        let alarms = confirmed_share(cells, 200, flip_rate / 2.0, flip_rate / 2.0);
        println!("false alarms, confirmed: flips {flip_rate}, {cells} cells of 200 pairs: {alarms}");
        // α², with α itself as an upper limit of what the first run lets through.
        assert!(alarms <= 0.0025 + 3.0 * standard_error(0.0025), "ψ {flip_rate}, {cells} cells: {alarms}");
    }
    // One cell, asked again as one cell: the power is the square of the table's.
    for (psi, n, power) in [(0.05, 200, 0.974), (0.10, 500, 0.970), (0.10, 200, 0.674)] {
        let found = confirmed_share(1, n, (psi + 0.05) / 2.0, (psi - 0.05) / 2.0);
        let wanted = power * power;
        println!("power, confirmed: drop of 5 points, flips {psi}, {n} pairs: {found}");
        assert!((found - wanted).abs() <= 3.0 * standard_error(wanted) + 0.001, "ψ {psi}, n {n}: {found} not {wanted}");
    }
}

#[test]
fn the_verdict_does_not_depend_on_the_order_of_samples_and_mirrors_when_arms_are_swapped() {
    let mut rng = Rng::from_name(&["order and sides"]);
    let (base, arm) = clustered_night(&mut rng, 30, 0.20, 0.05);
    let judged = |base: &Record, arm: &Record| {
        let comparison = compare(base, None, std::slice::from_ref(arm)).unwrap();
        let verdict = judge(&comparison, &GatePolicy::default()).unwrap();
        (comparison, verdict)
    };
    let (comparison, verdict) = judged(&base, &arm);
    let turned = |record: &Record| {
        let mut samples = record.samples.clone();
        samples.reverse();
        samples.rotate_left(77);
        Record { manifest: record.manifest.clone(), samples }
    };
    assert_eq!(judged(&turned(&base), &turned(&arm)), (comparison.clone(), verdict));
    let swapped = compare(
        &record(Arm::baseline("bfloat16"), arm.samples.clone()),
        None,
        &[record(Arm::candidate("fp8_e4m3"), base.samples.clone())],
    );
    let swapped = swapped.unwrap();
    for (one, other) in comparison.candidates[0].groups.iter().zip(&swapped.candidates[0].groups) {
        let (one, other) = (&one.delta, &other.delta);
        assert_eq!((one.regressions, one.fixes), (other.fixes, other.regressions));
        assert!((one.delta.unwrap() + other.delta.unwrap()).abs() < 1e-12);
        let (interval, mirrored) = (one.interval.unwrap(), other.interval.unwrap());
        assert!((interval.0 + mirrored.1).abs() < 1e-9 && (interval.1 + mirrored.0).abs() < 1e-9);
    }
}

/// One night through `compare`: haystacks of four questions that get worse or better as a whole.
fn clustered_night(rng: &mut Rng, haystacks: u32, worse: f64, better: f64) -> (Record, Record) {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for bin in [Bin(2048), Bin(8192)] {
        for haystack in 0..haystacks {
            let draw = rng.unit();
            let (base_right, arm_right) = (!(worse..worse + better).contains(&draw), draw >= worse);
            for question in 0..4 {
                let index = haystack * 4 + question;
                ours.push(sample(bin, index, 4, base_right, 0.5));
                theirs.push(sample(bin, index, 4, arm_right, 0.6));
            }
        }
    }
    (record(Arm::baseline("bfloat16"), ours), record(Arm::candidate("fp8_e4m3"), theirs))
}

#[test]
fn questions_that_share_a_haystack_do_not_multiply_the_evidence() {
    let nights = 200;
    let rate = |ruling: Ruling, haystacks: u32, worse: f64, better: f64| {
        let mut rng = Rng::from_name(&["clustered nights", &format!("{haystacks} {worse} {better}")]);
        let hits = (0..nights)
            .filter(|_| {
                let (base, arm) = clustered_night(&mut rng, haystacks, worse, better);
                let comparison = compare(&base, None, &[arm]).unwrap();
                judge(&comparison, &GatePolicy::default()).unwrap().ruling == ruling
            })
            .count();
        hits as f64 / f64::from(nights)
    };
    let error = |share: f64| (share * (1.0 - share) / f64::from(nights)).sqrt();
    let alarms = rate(Ruling::Regressed, 40, 0.05, 0.05);
    assert!(alarms <= 0.05 + 3.0 * error(0.05), "alarms without damage: {alarms}");
    // 5 points lost in both bins; as 240 independent pairs each, and with Tango alone, this would pass far more often.
    let passes = rate(Ruling::Pass, 60, 0.06, 0.01);
    assert!(passes <= 0.05 + 3.0 * error(0.05), "passes with damage: {passes}");
    let found = rate(Ruling::Regressed, 40, 0.40, 0.0);
    assert!(found > 0.99, "large damage is found: {found}");
}

#[test]
fn the_historic_collapse_is_found_with_twenty_pairs() {
    // 91 % → 13 % on a needle test in the longest bin; every other cell is clean.
    let mut comparison = shell();
    comparison.candidates[0].groups =
        (0..15).map(|index| cell(index, 23, if index == 14 { 18 } else { 0 }, 0)).collect();
    let verdict = judge(&comparison, &GatePolicy::default()).unwrap();
    assert_eq!(verdict.ruling, Ruling::Regressed);
    let damaged: Vec<Ruling> =
        verdict.arms[0].cells.iter().map(|cell| cell.ruling).filter(|it| *it == Ruling::Regressed).collect();
    assert_eq!(damaged.len(), 1);
    assert!(
        verdict.sentence.contains("8K structure fell from 100.0 % to 21.7 % (−78.3 points"),
        "{}",
        verdict.sentence
    );
}
