//! The gate's own error rates, by simulation and by exact calculation: how often it alarms without damage, how often it
//! finds planted damage, how often it passes what it must not pass.

use std::collections::BTreeMap;

use kvgauge::compare::{Answered, Comparison, Delta, GroupDelta, compare};
use kvgauge::gate::{Ruling, judge};
use kvgauge::record::Record;
use kvgauge::record::manifest::{FORMAT, Manifest, RunStatus};
use kvgauge::record::samples::SampleRecord;
use kvgauge::rng::Rng;
use kvgauge::sample::{Bin, Completion, FinishReason, Language, Outcome, Score, Timing};
use kvgauge::setup::{Arm, Evidence, ModelIdentity, Resolved};
use kvgauge::stats::mcnemar;
use kvgauge::stats::paired::tango_95;
use kvgauge::suite::{GatePolicy, TaskGroup};

const NIGHTS: u32 = 2_000;

fn record(arm: Arm, samples: Vec<SampleRecord>) -> Record {
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
    };
    Record { manifest, samples }
}

fn sample(bin: Bin, index: u32, per_haystack: u32, right: bool, answer_nll: f64) -> SampleRecord {
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

/// What `compare` makes of `n` unclustered pairs with these flips, on a baseline that is otherwise right.
fn cell(index: u32, n: u64, b: u64, c: u64) -> GroupDelta {
    let bin = Bin(512 << (index / 3));
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
            assert!(passed <= most + 3.0 * standard_error(most), "ψ {psi}, n {n}: {passed}");
        }
    }
    let both = share_of_nights(Ruling::Pass, 5, 200, 0.075, 0.025);
    assert!(both < 0.001, "five damaged cells: {both}");
}

/// The smallest number of changes for the worse that is significant among `discordant`.
fn critical(discordant: u64, alpha: f64) -> u64 {
    (0..=discordant).find(|&b| mcnemar::one_sided(b, discordant - b) < alpha).unwrap_or(discordant + 1)
}

/// Exact probability that the one-sided test rejects.
fn exact_power(n: u64, psi: f64, delta: f64, alpha: f64) -> f64 {
    let worse = (psi + delta) / 2.0 / psi;
    let mut ln_choose_n = 0.0;
    let mut power = 0.0;
    for discordant in 0..=n {
        let weight = (ln_choose_n + discordant as f64 * psi.ln() + (n - discordant) as f64 * (1.0 - psi).ln()).exp();
        ln_choose_n += ((n - discordant) as f64 / (discordant + 1) as f64).ln();
        if weight > 1e-12 {
            power += weight * binomial_tail(discordant, worse, critical(discordant, alpha));
        }
    }
    power
}

/// P[Binomial(n, p) ≥ k].
fn binomial_tail(n: u64, p: f64, k: u64) -> f64 {
    let (mut ln_choose, mut tail) = (0.0, 0.0);
    for i in 0..=n {
        if i >= k {
            let better = if p < 1.0 {
                (n - i) as f64 * (1.0 - p).ln()
            } else if i == n {
                0.0
            } else {
                f64::NEG_INFINITY
            };
            tail += (ln_choose + i as f64 * p.ln() + better).exp();
        }
        ln_choose += ((n - i) as f64 / (i + 1) as f64).ln();
    }
    tail
}

#[test]
fn exact_power_and_size_equal_the_table() {
    for (psi, n, power) in POWER {
        let exact = exact_power(n, psi, 0.05, 0.05);
        assert!((exact - power).abs() < 0.0006, "ψ {psi}, n {n}: {exact} instead of {power}");
    }
    for (psi, at_100, at_200) in [(0.05, 0.012, 0.023), (0.10, 0.023, 0.032), (0.20, 0.033, 0.037)] {
        for (n, size) in [(100, at_100), (200, at_200)] {
            let exact = exact_power(n, psi, 0.0, 0.05);
            assert!((exact - size).abs() < 0.0006, "ψ {psi}, n {n}: {exact} instead of {size}");
        }
    }
}

#[test]
fn pairs_for_80_and_95_percent_power_equal_the_table() {
    // The first Holm step over m cells tests at 0.05 / m; numbers on a grid of 20 pairs.
    let table = [
        (1.0, [(0.05, 140, 200), (0.10, 280, 440), (0.20, 540, 900)]),
        (5.0, [(0.05, 180, 240), (0.10, 420, 640), (0.20, 840, 1300)]),
        (15.0, [(0.05, 240, 300), (0.10, 520, 760), (0.20, 1040, 1540)]),
    ];
    for (cells, rows) in table {
        for (psi, at_80, at_95) in rows {
            for (pairs, power) in [(at_80, 0.80), (at_95, 0.95)] {
                let (here, before) =
                    (exact_power(pairs, psi, 0.05, 0.05 / cells), exact_power(pairs - 20, psi, 0.05, 0.05 / cells));
                assert!(here >= power && before < power, "ψ {psi}, {cells} cells, {pairs} pairs: {here}, {before}");
            }
        }
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
