//! The largest report that a nightly makes: eight candidates, fifteen bins, twenty tasks, thousands of changed answers, in Chinese.

use kvgauge::compare::{ArmComparison, ArmSummary, Delta};
use kvgauge::report::{HTML_WARN_BYTES, MARKDOWN_MAX_CHARS, render_html, render_junit, render_markdown};
use kvgauge::sample::Bin;

use super::fixture::{BINS, Fixture, TASKS, fixture};

const ARMS: usize = 8;
const BIN_COUNT: u32 = 15;
const TASK_COUNT: usize = 20;
const FLIPS_PER_ARM: usize = 1500;

/// Repeats the cells of one arm by itself.
fn spread_summary(summary: &mut ArmSummary, tasks: &[String], bins: &[Bin]) {
    let (cells, depths) = (summary.cells.clone(), summary.depth_cells.clone());
    let place =
        |index: usize, bin: Bin| index * BINS.len() % TASKS.len() + BINS.iter().position(|it| *it >= bin).unwrap_or(4);
    summary.cells.clear();
    summary.depth_cells.clear();
    for (index, task) in tasks.iter().enumerate() {
        for bin in bins {
            let mut cell = cells[place(index, *bin)].clone();
            (cell.task, cell.bin) = (task.clone(), *bin);
            summary.cells.push(cell);
            for depth in
                depths.iter().filter(|it| it.task == TASKS[index % TASKS.len()] && it.bin == BINS[index % BINS.len()])
            {
                let mut depth = depth.clone();
                (depth.task, depth.bin) = (task.clone(), *bin);
                summary.depth_cells.push(depth);
            }
        }
    }
}

/// Repeats what the fixture has until every bin and task is there.
fn spread(fixture: &mut Fixture) {
    let bins: Vec<Bin> =
        (0..BIN_COUNT).map(|step| Bin(512 << (step / 2) | if step % 2 == 1 { 256 << (step / 2) } else { 0 })).collect();
    let tasks: Vec<String> = (0..TASK_COUNT)
        .map(|index| match TASKS.get(index) {
            Some(task) => (*task).to_owned(),
            None => format!("custom_任务_{index}"),
        })
        .collect();
    fixture.comparison.bins.clone_from(&bins);
    fixture.comparison.tasks.clone_from(&tasks);
    spread_summary(&mut fixture.comparison.baseline, &tasks, &bins);
    for (arm, judged) in fixture.comparison.candidates.iter_mut().zip(&mut fixture.verdict.arms) {
        spread_summary(&mut arm.summary, &tasks, &bins);
        let (deltas, groups, cells, symptoms) =
            (arm.tasks.clone(), arm.groups.clone(), judged.cells.clone(), judged.symptoms.clone());
        arm.tasks = tasks
            .iter()
            .enumerate()
            .flat_map(|(t, task)| bins.iter().enumerate().map(move |(b, bin)| (t, task, b, *bin)))
            .map(|(t, task, b, bin)| Delta {
                label: task.clone(),
                bin: Some(bin),
                ..deltas[(t * 3 + b) % deltas.len()].clone()
            })
            .collect();
        arm.groups.clear();
        judged.cells.clear();
        judged.symptoms.clear();
        arm.symptoms.clear();
        for (b, bin) in bins.iter().enumerate() {
            for (group, cell) in groups
                .iter()
                .zip(&cells)
                .filter(|(group, _)| group.delta.bin == Some(BINS[b * BINS.len() / bins.len()]))
            {
                let (mut group, mut cell) = (group.clone(), cell.clone());
                (group.delta.bin, cell.bin, cell.delta.bin) = (Some(*bin), *bin, Some(*bin));
                arm.groups.push(group);
                judged.cells.push(cell);
            }
            for symptom in symptoms.iter().filter(|it| it.symptom.bin == BINS[b * BINS.len() / bins.len()]) {
                let mut symptom = symptom.clone();
                symptom.symptom.bin = *bin;
                arm.symptoms.push(symptom.symptom.clone());
                judged.symptoms.push(symptom);
            }
        }
        spread_flips(arm, &bins);
    }
}

/// Many changed answers, in Chinese.
fn spread_flips(arm: &mut ArmComparison, bins: &[Bin]) {
    let flips = arm.flips.clone();
    arm.flips = flips.iter().cycle().take(if flips.is_empty() { 0 } else { FLIPS_PER_ARM }).cloned().collect();
    for (index, flip) in arm.flips.iter_mut().enumerate() {
        flip.bin = bins[index % bins.len()];
        flip.candidate_text = format!("编号是{index}。{}", "价格为十二元，库存为零；北门的密码写在账本里。".repeat(12));
        flip.excerpt = format!(
            "{}北门的密码是{}。{}",
            "港务局星期五中午关门。".repeat(60),
            flip.expected,
            "驳船等待晚潮和领航员。".repeat(60)
        );
    }
}

/// The fixture with eight candidates, spread over all bins and tasks.
fn large() -> Fixture {
    let mut fixture = fixture(1.0);
    let names = ["fp8", "fp8_e4m3@TRITON_ATTN", "fp8_ds_mla", "int4_per_token_head", "fp8_e4m3+concurrency=16"];
    for (index, name) in names.into_iter().enumerate() {
        let from = [1, 0, 2][index % 3];
        let (mut arm, mut judged) = (fixture.comparison.candidates[from].clone(), fixture.verdict.arms[from].clone());
        arm.summary.arm.name = name.into();
        arm.summary.arm.kv_cache_dtype = name.into();
        judged.arm = name.into();
        judged.sentence = judged.sentence.replace("fp8_e5m2", name);
        fixture.comparison.candidates.push(arm);
        fixture.verdict.arms.push(judged);
    }
    spread(&mut fixture);
    fixture
}

/// Its page.
pub(super) fn page() -> String {
    render_html(&large().input()).unwrap()
}

#[test]
fn eight_candidates_in_fifteen_bins_and_twenty_tasks_stay_below_two_megabytes() {
    let fixture = large();
    assert_eq!((fixture.comparison.candidates.len(), fixture.comparison.bins.len()), (ARMS, BIN_COUNT as usize));
    let page = render_html(&fixture.input()).unwrap();
    assert!(page.len() < HTML_WARN_BYTES, "{} bytes", page.len());
    assert!(!page.contains("larger than 2 MB"));
    for bin in &fixture.comparison.bins {
        assert!(page.contains(&format!("id=\"bin-{}\"", bin.tokens())), "{bin}");
    }
    assert!(page.contains("北门的密码是") && page.contains("custom_任务_19"));
    let summary = render_markdown(&fixture.input()).unwrap();
    assert!(summary.chars().count() <= MARKDOWN_MAX_CHARS && summary.contains("fp8_ds_mla"));
    assert!(render_junit(&fixture.input()).unwrap().len() < HTML_WARN_BYTES);
}
