//! A realistic comparison: five bins, six tasks, a baseline, its A/A arm and three candidates, with answers that try to break out of
//! the page. Numbers come from a small deterministic generator.

use std::collections::BTreeMap;

use kvgauge::compare::{
    Answered, ArmComparison, ArmSummary, CellSummary, Comparison, Delta, DepthCell, Divergence, Flip, FlipDirection,
    GroupDelta, LengthCurve, LengthPoint, NllDelta, PairedTest, Repeat, SameSign, Slope, SymptomDelta, Treatment,
    WorstCell,
};
use kvgauge::gate::{ArmVerdict, CellVerdict, Confirmation, Ruling, SymptomConfirmation, SymptomVerdict, Verdict};
use kvgauge::record::Record;
use kvgauge::record::manifest::{FORMAT, Manifest, RunStatus};
use kvgauge::record::samples::SampleRecord;
use kvgauge::report::{ReportInput, Timings};
use kvgauge::sample::{
    Bin, Completion, FaultKind, Finding, FindingKind, FinishReason, Language, Outcome, Score, Timing,
};
use kvgauge::setup::{Arm, Evidence, ModelIdentity, Resolved};
use kvgauge::suite::{GatePolicy, TaskGroup, Tier};

pub(super) const BINS: [Bin; 5] = [Bin(512), Bin(2048), Bin(8192), Bin(32_768), Bin(131_072)];
pub(super) const TASKS: [&str; 6] = ["needle", "lookalike", "multiquery", "json_extract", "enumerate", "verbatim"];
const SLOTS: [u8; 5] = [5, 25, 50, 75, 95];
const PER_SLOT: u64 = 8;

/// Answers that would do harm if any of them reached the page, a comment or a terminal as it is.
pub(super) const NASTY: [&str; 9] = [
    "<script>alert(1)</script> the code is 4171",
    "\"><img src=x onerror=alert(1)>",
    "</pre></details></style><style>*{display:none}</style>",
    "safe \u{202e}txt.exe\u{202c} and \u{1b}]52;c;aGk=\u{7} and \0 NUL",
    "```\n````\n<!-- kvgauge-report -->\n@everyone see #1 ![b](https://beacon.example/x.png)",
    "{{ 7 * 7 }} {% raw %} &lt;b&gt; &#x3c;",
    "the code is four seven one one four seven one one four seven one one four seven one one",
    "编号是四一七一。价格为十二元，库存为零。",
    "[{\"order\": 4171, \"city\": \"Graz\"}, {\"order\": 4711, \"city\": \"Linz\"}",
];

pub(super) struct Fixture {
    pub(super) comparison: Comparison,
    pub(super) verdict: Verdict,
    pub(super) policy: GatePolicy,
    pub(super) timings: Timings,
}

impl Fixture {
    pub(super) fn input(&self) -> ReportInput<'_> {
        ReportInput {
            title: "SmolLM2-135M-Instruct · quick",
            comparison: &self.comparison,
            verdict: &self.verdict,
            policy: &self.policy,
            timings: &self.timings,
            reproduce: "kvgauge check --suite quick --kv-cache-dtype bfloat16,fp8_e4m3,fp8_e5m2,int8_per_token_head --seed 7",
            history: None,
        }
    }
}

/// The comparison of the tests; `speed` scales every time and nothing else.
pub(super) fn fixture(speed: f64) -> Fixture {
    let candidates = vec![
        candidate("fp8_e4m3", 0.003, Ruling::Inconclusive, 1),
        candidate("fp8_e5m2", 0.09, Ruling::Regressed, 2),
        candidate("int8_per_token_head", 0.0, Ruling::Pass, 3),
    ];
    let verdict = judge(&candidates);
    let comparison = Comparison {
        format_version: kvgauge::compare::COMPARISON_FORMAT,
        tool_version: "0.1.0".into(),
        suite: "quick".into(),
        plan: map(&[
            ("suite_hash", "b3:5d6e6bf0a1"),
            ("generator", "3"),
            ("scorers", "needle.2, bindings.1"),
            ("seed", "7"),
            ("decoding", "greedy"),
            ("kernel", "x86_64-bf16-amx"),
        ]),
        model: ModelIdentity {
            name: "SmolLM2-135M-Instruct".into(),
            weights: "sha256:2f4c…b871".into(),
            tokenizer: "b3:90ab…11".into(),
            chat_template: "b3:77fe…02".into(),
            rope: "default ≤ 8K, ntk above".into(),
            trained_context: 8192,
        },
        environment: map(&[("cpu", "Intel Xeon Platinum 8488C"), ("threads", "2"), ("os", "Linux 6.1 x86_64")]),
        bins: BINS.to_vec(),
        tasks: TASKS.iter().map(|task| (*task).to_owned()).collect(),
        baseline: summary(Arm::baseline("bfloat16"), 0.0, 0, 23_040.0),
        control: Some(control()),
        repeats: vec![Repeat {
            first: "fp8_e4m3".into(),
            second: "fp8 <b>again</b>".into(),
            pairs: 1200,
            regressions: 1,
            fixes: 2,
            different_outputs: 40,
            nll_different: 0,
        }],
        candidates,
    };
    Fixture { comparison, verdict, policy: GatePolicy::default(), timings: timings(speed) }
}

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn wilson(right: u64, n: u64) -> Option<(f64, f64)> {
    let (n, z) = (n as f64, 1.959_964);
    let p = right as f64 / n;
    let middle = (p + z * z / (2.0 * n)) / (1.0 + z * z / n);
    let half = z / (1.0 + z * z / n) * (p * (1.0 - p) / n + z * z / (4.0 * n * n)).sqrt();
    Some(((middle - half).max(0.0), (middle + half).min(1.0)))
}

/// Right answers of one slot: falls with length, deeper in the middle, and with the damage.
fn right_of(task: usize, bin: usize, slot: usize, damage: f64, salt: u64) -> u64 {
    let middle = 1.0 - (slot as f64 - 2.0).abs() / 2.0;
    let share = 0.99 - 0.015 * task as f64 - 0.03 * bin as f64 - damage * (bin as f64).powi(2) * (0.5 + middle) / 2.0;
    let jitter = ((task as u64 * 31 + bin as u64 * 17 + slot as u64 * 7 + salt * 13) % 11) as f64 / 11.0;
    ((share * PER_SLOT as f64 + jitter - 0.5).round().max(0.0) as u64).min(PER_SLOT)
}

fn right_in(task: usize, bin: usize, damage: f64, salt: u64) -> u64 {
    (0..SLOTS.len()).map(|slot| right_of(task, bin, slot, damage, salt)).sum()
}

fn summary(arm: Arm, damage: f64, salt: u64, bytes: f64) -> ArmSummary {
    let dtype = arm.kv_cache_dtype.clone();
    let n = PER_SLOT * SLOTS.len() as u64;
    let mut cells = Vec::new();
    let mut depth_cells = Vec::new();
    for (t, task) in TASKS.iter().enumerate() {
        for (b, bin) in BINS.iter().enumerate() {
            let right = right_in(t, b, damage, salt);
            cells.push(CellSummary {
                task: (*task).into(),
                bin: *bin,
                n,
                right,
                mean_score: Some(right as f64 / n as f64),
                wilson: wilson(right, n),
                answer_nll: Some(0.1 + 0.02 * b as f64),
                output_tokens: Some(20.0),
                symptoms: vec![(FindingKind::Repetition, b as u64)],
                faults: vec![(FaultKind::NearMiss, n - right)],
                not_valid: u64::from(b == 4 && t == 2),
            });
            depth_cells.extend(SLOTS.iter().enumerate().map(|(s, slot)| DepthCell {
                task: (*task).into(),
                bin: *bin,
                slot_percent: *slot,
                n: PER_SLOT,
                right: right_of(t, b, s, damage, salt),
            }));
        }
    }
    let items = n * (TASKS.len() * BINS.len()) as u64;
    let right = cells.iter().map(|cell| cell.right).sum::<u64>();
    ArmSummary {
        resolved: Resolved {
            engine: Evidence::known("kvgauge embedded 0.1.0".into(), "embedded engine"),
            kv_cache_dtype: Evidence::known(dtype, "embedded engine"),
            attention_backend: Evidence::known("paged_cpu".into(), "embedded engine"),
            kernel: Evidence::known("x86_64-bf16-amx".into(), "embedded engine"),
            kv_bytes_per_token: Evidence::known(bytes, "allocated blocks"),
            kv_cache_tokens: Evidence::unknown("not limited by the embedded engine"),
            kv_scales: Evidence::known("none (1.0)".into(), "embedded engine"),
            max_model_len: Evidence::known(131_072, "model configuration"),
            ..Resolved::unknown("embedded engine")
        },
        accepted: None,
        checks: Vec::new(),
        arm,
        planned_items: items,
        complete: true,
        outcomes: vec![
            (Outcome::ValidRight, right),
            (Outcome::ValidWrong, items - right - 1),
            (Outcome::Censored, 0),
            (Outcome::Invalid, 1),
            (Outcome::Error, 0),
        ],
        cells,
        depth_cells,
        turns: Vec::new(),
    }
}

fn delta(label: &str, bin: Option<Bin>, pairs: u64, before: u64, after: u64, rise: f64) -> Delta {
    let net = after as f64 - before as f64;
    let fixes = u64::from(net > -3.0) + if net > 0.0 { net as u64 } else { 0 };
    let regressions = (fixes as f64 - net) as u64;
    let error = (((regressions + fixes) as f64 + 1.0).sqrt()) / pairs as f64;
    let delta = net / pairs as f64;
    let censored = if label == "multiquery" { 3 } else { 0 };
    Delta {
        label: label.into(),
        bin,
        items: pairs + censored,
        pairs,
        censored,
        broken: 0,
        baseline_answered: Answered { items: pairs + censored, right: before },
        candidate_answered: Answered { items: pairs + censored, right: after },
        haystacks: pairs,
        baseline_right: before,
        candidate_right: after,
        baseline_wilson: wilson(before, pairs),
        candidate_wilson: wilson(after, pairs),
        baseline_mean: Some(before as f64 / pairs as f64),
        candidate_mean: Some(after as f64 / pairs as f64 + if label == "verbatim" { 0.021 } else { 0.0 }),
        delta: Some(delta),
        interval: Some((delta - 1.96 * error, delta + 1.96 * error)),
        drop_upper: Some(-delta + 1.645 * error),
        regressions,
        fixes,
        wrong_but_different: 2,
        p_worse: Some(if net < -8.0 { 0.0002 } else { 0.31 }),
        test: PairedTest::ExactMcnemar,
        p_graded: Some(0.2),
        nll: Some(NllDelta { pairs, baseline: 0.142, delta: rise, interval: Some((rise - 0.0061, rise + 0.0061)) }),
        output_ratio: Some(1.02),
        first_divergence: Some(17),
    }
}

fn deltas(damage: f64, salt: u64) -> (Vec<Delta>, Vec<GroupDelta>) {
    let n = PER_SLOT * SLOTS.len() as u64;
    let mut tasks = Vec::new();
    let mut groups = Vec::new();
    for (b, bin) in BINS.iter().enumerate() {
        for group in TaskGroup::ALL {
            let members = || TASKS.iter().enumerate().filter(|(_, task)| TaskGroup::of_task(task) == group);
            let before: u64 = members().map(|(t, _)| right_in(t, b, 0.0, 0)).sum();
            let after: u64 = members().map(|(t, _)| right_in(t, b, damage, salt)).sum();
            let pairs = n * members().count() as u64;
            if pairs > 0 {
                let rise = damage * 0.4 * b as f64;
                groups.push(GroupDelta { group, delta: delta(group.name(), Some(*bin), pairs, before, after, rise) });
            }
        }
    }
    for (t, task) in TASKS.iter().enumerate() {
        for (b, bin) in BINS.iter().enumerate() {
            tasks.push(delta(task, Some(*bin), n, right_in(t, b, 0.0, 0), right_in(t, b, damage, salt), 0.01));
        }
    }
    (tasks, groups)
}

fn control() -> ArmComparison {
    let mut arm = comparison_of(Arm::control("bfloat16"), 0.0, 0, 23_040.0);
    let is_short = |delta: &Delta| delta.bin <= Some(BINS[1]);
    arm.tasks.retain(is_short);
    arm.groups.retain(|cell| is_short(&cell.delta));
    for cell in &mut arm.groups {
        cell.delta.fixes = 0;
        cell.delta.regressions = 0;
        cell.delta.nll = None;
    }
    arm.symptoms.clear();
    arm.flips.clear();
    arm.treatment.identical_outputs = arm.treatment.compared_outputs;
    arm
}

fn candidate(dtype: &str, damage: f64, ruling: Ruling, salt: u64) -> ArmComparison {
    let mut arm = comparison_of(Arm::candidate(dtype), damage, if ruling == Ruling::Pass { 0 } else { salt }, 11_520.0);
    if dtype == "fp8_e4m3" {
        arm.confounded = Some("The baseline ran on paged_cpu, this arm on <b>another</b> backend.".into());
    }
    arm
}

fn comparison_of(arm: Arm, damage: f64, salt: u64, bytes: f64) -> ArmComparison {
    let (tasks, groups) = deltas(damage, salt);
    let pairs = tasks.iter().map(|delta| delta.pairs).sum();
    let before = tasks.iter().map(|delta| delta.baseline_right).sum();
    let after = tasks.iter().map(|delta| delta.candidate_right).sum();
    let symptoms = BINS.iter().enumerate().flat_map(|(b, bin)| symptoms_of(b, *bin, damage)).collect();
    ArmComparison {
        treatment: Treatment {
            requested_dtype: arm.kv_cache_dtype.clone(),
            resolved_dtype: Some(arm.kv_cache_dtype.clone()),
            kv_bytes_per_token: Some((23_040.0, bytes)),
            identical_outputs: 700,
            compared_outputs: pairs,
            nll_pairs: pairs,
            nll_different: if salt == 0 { 0 } else { pairs },
            different_outputs: if salt == 0 { 0 } else { pairs / 2 },
        },
        summary: summary(arm, damage, salt, bytes),
        mismatches: Vec::new(),
        confounded: None,
        pooled: Some(delta("all", None, pairs, before, after, damage)),
        symptoms,
        flips: flips(damage),
        slope: Some(Slope { per_doubling: -damage / 3.0, p_falling: if damage > 0.05 { 0.0004 } else { 0.4 } }),
        same_sign: Some(SameSign { negative: 4, positive: 1, p_pooled: 0.03 }),
        curve: Some(curve(&tasks)),
        worst_cells: worst_cells(damage),
        robustness: Vec::new(),
        divergence: BINS.iter().flat_map(|bin| divergence(*bin, damage)).collect(),
        tasks,
        groups,
    }
}

fn curve(tasks: &[Delta]) -> LengthCurve {
    let point = |bin: &Bin| {
        let cells = || tasks.iter().filter(|delta| delta.bin == Some(*bin));
        let sum = |read: fn(&Delta) -> u64| cells().map(read).sum::<u64>();
        let pairs = sum(|delta| delta.pairs);
        let share = |right: u64| right as f64 / pairs as f64;
        let (baseline, candidate) = (share(sum(|it| it.baseline_right)), share(sum(|it| it.candidate_right)));
        LengthPoint { bin: *bin, pairs, baseline, candidate, recovery: Some(candidate / baseline) }
    };
    let points: Vec<LengthPoint> = BINS.iter().map(point).collect();
    LengthCurve { points, baseline_area: 0.9, candidate_area: 0.87, recovery: Some(0.87 / 0.9) }
}

fn worst_cells(damage: f64) -> Vec<WorstCell> {
    let lost = |step: usize| (damage * 20.0 * step as f64).round() as u64;
    let cell = |(step, bin): (usize, &Bin)| WorstCell {
        task: TASKS[step % TASKS.len()].into(),
        bin: *bin,
        slot_percent: SLOTS[step % SLOTS.len()],
        pairs: 24,
        baseline_right: 22,
        candidate_right: 22 - lost(step),
    };
    BINS.iter().enumerate().rev().filter(|(step, _)| lost(*step) > 0).map(cell).collect()
}

fn symptoms_of(b: usize, bin: Bin, damage: f64) -> Vec<SymptomDelta> {
    let kinds = [(FindingKind::Repetition, 260.0), (FindingKind::Truncation, 130.0), (FindingKind::Scrambled, 60.0)];
    let rise = |weight: f64| (damage * weight * (b * b) as f64 / 10.0).round() as u64;
    kinds
        .into_iter()
        .map(|(kind, weight)| SymptomDelta {
            kind,
            bin,
            pairs: 240,
            baseline: b as u64,
            candidate: b as u64 + rise(weight),
            appeared: rise(weight),
            vanished: 0,
            p_rise: if rise(weight) > 5 { 0.0001 } else { 0.5 },
            p_rise_by_haystack: if rise(weight) > 5 { 0.0002 } else { 0.5 },
        })
        .collect()
}

fn flips(damage: f64) -> Vec<Flip> {
    let causes = ["near miss", "repetition", "value of another key", "truncation", "<i>cause</i>"];
    let count = (damage * 900.0) as usize;
    let flip = |index: usize| {
        let bin = BINS[4 - index % 4];
        let nasty = NASTY[index % NASTY.len()];
        let code = 4711 + index;
        Flip {
            item_id: format!("{index:032x}"),
            task: TASKS[index % TASKS.len()].into(),
            bin,
            slot_percent: SLOTS[index % SLOTS.len()],
            depth_percent: (!index.is_multiple_of(3)).then_some(48.2),
            direction: if index % 9 == 8 { FlipDirection::Fix } else { FlipDirection::Regression },
            cause: causes[index % causes.len()].into(),
            notes: vec!["4711 belongs to key <b>ar-29</b>, 3 entries away".into()],
            expected: code.to_string(),
            baseline_text: format!("The code for the north gate is {code}, as the ledger says."),
            candidate_text: nasty.into(),
            findings: vec![Finding {
                kind: FindingKind::Repetition,
                severity: 0.8,
                start: 0,
                end: 10,
                evidence: "period of 7 tokens, 23 copies, 81 % of the output".into(),
            }],
            excerpt: format!(
                "{}The code for the north gate is {code}. Keep it safe. {}",
                "The harbour office closes at noon on Fridays. ".repeat(6),
                "Barges wait for the evening tide and the pilot. ".repeat(6)
            ),
        }
    };
    let mut flips: Vec<Flip> = (0..count).map(flip).collect();
    flips.sort_by_key(|flip| flip.direction);
    flips
}

fn judge(candidates: &[ArmComparison]) -> Verdict {
    let arms: Vec<ArmVerdict> = candidates.iter().map(judge_arm).collect();
    Verdict {
        ruling: Ruling::Regressed,
        sentence:
            "fp8_e5m2 regresses from 8K on: at 128K retrieval falls from 85.8 % to 25.0 % (−60.8 points, 95 % interval \
                   −74.9…−46.8, adjusted p 0.003, 120 pairs)."
                .into(),
        arms,
    }
}

fn judge_arm(arm: &ArmComparison) -> ArmVerdict {
    let name = arm.summary.arm.name.clone();
    let cells: Vec<CellVerdict> = arm.groups.iter().map(|cell| judge_cell(cell, name.starts_with("int8"))).collect();
    let ruling = cells.iter().map(|cell| cell.ruling).max().unwrap_or(Ruling::Inconclusive);
    let sentence = match ruling {
        Ruling::Regressed => {
            "Retrieval, structure and long output drop from 8K on; the pooled mean shows less than half of it."
        }
        Ruling::Inconclusive => "No drop was found, but 512 structure has 40 pairs and needs 52 to be called clean.",
        _ => "Every bin and task group stays within the margin.",
    };
    let symptoms = arm.symptoms.iter().map(|symptom| SymptomVerdict {
        regressed: symptom.p_rise < 0.01,
        adjusted_p: (symptom.p_rise * 15.0).min(1.0),
        symptom: symptom.clone(),
        confirmation: (symptom.p_rise < 0.01).then(|| {
            Box::new(SymptomConfirmation { adjusted_p: 0.0004, rejects: true, symptom: Some(symptom.clone()) })
        }),
    });
    ArmVerdict {
        arm: name,
        ruling,
        sentence: sentence.into(),
        invalid: Vec::new(),
        symptoms: symptoms.collect(),
        cells,
        findings: if ruling == Ruling::Inconclusive {
            vec!["Small but consistent: 5 <b>bins</b> fall".into()]
        } else {
            Vec::new()
        },
    }
}

fn judge_cell(cell: &GroupDelta, always_passes: bool) -> CellVerdict {
    let delta = cell.delta.clone();
    let ruling = if delta.p_worse < Some(0.01) {
        Ruling::Regressed
    } else if always_passes || delta.drop_upper < Some(0.05) {
        Ruling::Pass
    } else {
        Ruling::Inconclusive
    };
    CellVerdict {
        group: cell.group,
        bin: delta.bin.expect("groups of the fixture have a bin"),
        tier: Tier::Critical,
        ruling,
        adjusted_p: delta.p_worse.map(|p| (p * 15.0).min(1.0)),
        confirmation: (ruling == Ruling::Regressed)
            .then(|| Box::new(Confirmation { adjusted_p: Some(0.002), rejects: true, delta: delta.clone() })),
        delta,
        has_power: true,
        pairs_needed: (ruling == Ruling::Inconclusive).then_some(132),
        reasons: if ruling == Ruling::Regressed { vec!["net drop ≥ 2 points".into()] } else { Vec::new() },
    }
}

fn timings(speed: f64) -> Timings {
    let arms = ["bfloat16", "bfloat16.aa", "fp8_e4m3", "fp8_e5m2", "int8_per_token_head"];
    let records: Vec<Record> =
        arms.iter().enumerate().map(|(a, arm)| record(arm, speed * (1.0 - 0.08 * a as f64))).collect();
    let named: Vec<(&str, &Record)> = arms.iter().copied().zip(&records).collect();
    Timings::from_records(&named)
}

fn divergence(bin: Bin, damage: f64) -> [Divergence; 2] {
    let of = |task: Option<&str>| Divergence {
        task: task.map(str::to_owned),
        bin,
        pairs: 60,
        positions: 480,
        kld_mean: damage / 40.0,
        kld_p99: damage / 4.0,
        kld_max: damage * 7.0,
        top1_agreement: 1.0 - damage / 8.0,
        nll_delta: Some(damage / 3.0),
    };
    [of(None), of(Some("needle"))]
}

fn record(arm: &str, speed: f64) -> Record {
    let manifest = Manifest {
        format: FORMAT,
        tool_version: "0.1.0".into(),
        suite: "quick".into(),
        plan: BTreeMap::new(),
        plan_hash: String::new(),
        arm: Arm::candidate(arm),
        model: ModelIdentity {
            name: String::new(),
            weights: String::new(),
            tokenizer: String::new(),
            chat_template: String::new(),
            rope: String::new(),
            trained_context: 8192,
        },
        resolved: summary(Arm::candidate(arm), 0.0, 0, 1.0).resolved,
        checks: Vec::new(),
        environment: BTreeMap::new(),
        planned_items: 20,
        status: RunStatus::Complete,
        accepted: None,
    };
    let samples = BINS.iter().enumerate().flat_map(|(b, bin)| (0..4).map(move |index| sample(*bin, b, index, speed)));
    Record { manifest, samples: samples.collect() }
}

fn sample(bin: Bin, b: usize, index: u32, speed: f64) -> SampleRecord {
    let ttft_ms = if index == 0 { f64::from(bin.tokens()) * 0.9 } else { 41.0 } * speed;
    SampleRecord {
        item_id: format!("{b}-{index}"),
        task: "needle".into(),
        language: Language::En,
        bin,
        slot_percent: 50,
        index,
        haystack_id: "h".into(),
        depth_percent: Some(50.0),
        prompt_tokens: bin.tokens() - 64,
        prompt_hash: String::new(),
        expected_answer: String::new(),
        excerpt: String::new(),
        outcome: Outcome::ValidRight,
        score: Some(Score { value: 1.0, extracted: String::new(), faults: Vec::new(), turn_scores: Vec::new() }),
        findings: Vec::new(),
        completion: Some(Completion {
            text: String::new(),
            prompt_tokens: bin.tokens() - 64,
            output_tokens: 24,
            finish_reason: FinishReason::Stop,
            timing: Timing { ttft_ms, latency_ms: ttft_ms + 23.0 * (9.0 + 4.0 * b as f64) * speed },
            answer_nll: None,
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
