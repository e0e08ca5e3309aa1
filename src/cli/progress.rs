//! Progress of a run on standard error: two bars for people, a few plain lines for logs.
//!
//! Bins differ by orders of magnitude in cost, so progress counts *work* (prompt tokens, with attention's growth), not items:
//! a bar over items would stand at 90 % for the longer half of the run.

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use kvgauge::report::terminal_text;
use kvgauge::runner::event::RunEvent;
use kvgauge::sample::{Bin, Outcome};
use kvgauge::suite::Plan;
use kvgauge::units::format_seconds;

use crate::output::note;

/// Context length at which attention costs as much as the matrix products, for a small model: 0.21 GFLOP per token against
/// 69 kFLOP per token and position (averaged over the prompt: twice the quotient). Only the estimate of the time left uses it.
const ATTENTION_EQUALS_PRODUCTS: f64 = 6_000.0;

/// An answer in prompt tokens' worth of work: some 30 tokens, each bound by memory.
const ANSWER_WORK: f64 = 300.0;

/// Share of a group's work done when its prompt has been read.
const PREFILL_SHARE: f64 = 0.8;

/// Environment variables by which build services make themselves known.
const CI_VARIABLES: [&str; 6] = ["CI", "GITHUB_ACTIONS", "GITLAB_CI", "JENKINS_URL", "BUILDKITE", "TF_BUILD"];

/// A log line at least this often …
const PLAIN_INTERVAL: Duration = Duration::from_secs(30);

/// … but in long runs only every 25th part of the time passed, so that a day gives fewer than [`MAX_PLAIN_LINES`].
const PLAIN_INTERVAL_PART: u32 = 25;

/// Bins from this length on take minutes, so a line says beforehand what is to come.
const LONG_BIN: Bin = Bin(8 * 1024);

/// Build services cut long logs.
const MAX_PLAIN_LINES: u32 = 200;

/// Shows the events of the runner.
pub(crate) struct Progress {
    started: Instant,
    state: Mutex<State>,
    display: Display,
}

enum Display {
    Bars { overall: ProgressBar, group: ProgressBar, both: MultiProgress },
    Plain,
}

impl Progress {
    /// For `arms` (name, plan) that run one after the other.
    pub(crate) fn new(arms: &[(&str, &Plan)]) -> Self {
        let is_ci = CI_VARIABLES.iter().any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()));
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let display = if std::io::stderr().is_terminal() && !is_ci && !is_dumb { bars() } else { Display::Plain };
        note(&outline(arms));
        Self { started: Instant::now(), state: Mutex::new(State::new(arms)), display }
    }

    /// Takes one event; cheap enough for every prefill step.
    pub(crate) fn on_event(&self, event: &RunEvent) {
        let elapsed = self.started.elapsed();
        // A panic elsewhere must not hide the run behind a poisoned lock.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.take(event);
        if let Some(line) = state.announcement(event) {
            match &self.display {
                // Drawing is a courtesy; the run goes on without.
                Display::Bars { both, .. } => drop(both.println(terminal_text(&line))),
                Display::Plain => note(&line),
            }
        }
        match &self.display {
            Display::Bars { overall, group, both } => {
                if let RunEvent::Warning(text) = event {
                    drop(both.println(terminal_text(&format!("warning: {text}"))));
                }
                overall.set_position((state.share() * BAR_LENGTH as f64) as u64);
                overall.set_message(state.overall_text(elapsed));
                group.set_message(state.group_text());
            }
            Display::Plain => {
                if let Some(line) = state.plain_line(event, elapsed) {
                    note(&line);
                }
            }
        }
    }

    /// Takes the bars away.
    pub(crate) fn finish(&self) {
        if let Display::Bars { overall, group, .. } = &self.display {
            group.finish_and_clear();
            overall.finish_and_clear();
        }
    }
}

const BAR_LENGTH: u64 = 1_000;

fn bars() -> Display {
    let both = MultiProgress::new();
    let overall = both.add(ProgressBar::new(BAR_LENGTH));
    let group = both.add(ProgressBar::new_spinner());
    let style = |template: &str| {
        ProgressStyle::with_template(template).expect("the template is a constant").progress_chars("━╸─")
    };
    overall.set_style(style("{bar:32} {msg}"));
    group.set_style(style("{spinner} {msg}"));
    overall.enable_steady_tick(Duration::from_millis(500));
    group.enable_steady_tick(Duration::from_millis(120));
    Display::Bars { overall, group, both }
}

/// What the whole run is about to do, before anything of it is done or found.
fn outline(arms: &[(&str, &Plan)]) -> String {
    let items: Vec<usize> = arms.iter().map(|(_, plan)| plan.item_count()).collect();
    let most = items.iter().max().copied().unwrap_or(0);
    let whole = items.iter().filter(|items| **items == most).count();
    let mut text = format!("{} × {most} items", counted(whole, "arm"));
    for (name, plan) in arms.iter().filter(|(_, plan)| plan.item_count() < most) {
        text += &format!(", {name} × {} items", plan.item_count());
    }
    let groups = || arms.iter().flat_map(|(_, plan)| &plan.groups);
    let tokens = groups().map(|group| u64::from(group.bin.tokens())).sum();
    let longest = groups().map(|group| group.bin).max().map_or(String::new(), |bin| format!(", longest bin {bin}"));
    text + &format!(": {}, about {} tokens to read{longest}", counted(groups().count(), "prompt"), thousands(tokens))
}

fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// An estimate, so to two or three figures: bins are the upper limit of their prompts with the answers.
fn thousands(tokens: u64) -> String {
    match tokens {
        0..10_000 => tokens.to_string(),
        10_000..10_000_000 => format!("{} thousand", tokens / 1000),
        _ => format!("{} million", tokens / 1_000_000),
    }
}

/// Work of reading one haystack and answering its questions.
fn group_work(bin: Bin, items: usize) -> f64 {
    let tokens = f64::from(bin.tokens());
    tokens * (1.0 + tokens / ATTENTION_EQUALS_PRODUCTS) + items as f64 * ANSWER_WORK
}

/// What is known of the run, from events only.
#[derive(Debug, Default)]
struct State {
    /// Arm → work per item by bin, and the bins of its items in plan order.
    arms: Vec<(String, ArmWork)>,
    total_work: f64,
    /// Work of items with a record, found or made.
    done_work: f64,
    /// Part of `done_work` found in the journal: no measure of speed.
    found_work: f64,
    arm: usize,
    group: Group,
    errors: usize,
    /// The long bin that was announced last, with its arm.
    announced: Option<(usize, Bin)>,
    last_line: Duration,
    last_tenth: u32,
    lines: u32,
}

#[derive(Debug, Default)]
struct ArmWork {
    per_item: BTreeMap<Bin, f64>,
    /// Prompts to read per bin: items may share one.
    prompts: BTreeMap<Bin, usize>,
    items: Vec<Bin>,
}

#[derive(Debug, Default)]
struct Group {
    bin: Option<Bin>,
    items: usize,
    finished: usize,
    bin_done: usize,
    bin_planned: usize,
    prefill: Option<(usize, usize)>,
    tokens: usize,
}

impl ArmWork {
    fn of(plan: &Plan) -> Self {
        let mut sums: BTreeMap<Bin, (f64, usize)> = BTreeMap::new();
        let mut items = Vec::new();
        let mut prompts = BTreeMap::new();
        for group in &plan.groups {
            *prompts.entry(group.bin).or_default() += 1;
            let sum = sums.entry(group.bin).or_default();
            sum.0 += group_work(group.bin, group.items.len());
            sum.1 += group.items.len();
            items.extend(group.items.iter().map(|_| group.bin));
        }
        let per_item = sums.into_iter().map(|(bin, (work, items))| (bin, work / items.max(1) as f64)).collect();
        Self { per_item, prompts, items }
    }

    fn of_items(&self, bins: &[Bin]) -> f64 {
        bins.iter().map(|bin| self.per_item.get(bin).copied().unwrap_or_default()).sum()
    }
}

impl State {
    fn new(arms: &[(&str, &Plan)]) -> Self {
        let arms: Vec<(String, ArmWork)> =
            arms.iter().map(|(name, plan)| ((*name).to_string(), ArmWork::of(plan))).collect();
        let total_work = arms.iter().map(|(_, work)| work.of_items(&work.items)).sum();
        Self { arms, total_work, ..Self::default() }
    }

    fn item_work(&self, bin: Bin) -> f64 {
        self.arms.get(self.arm).and_then(|(_, work)| work.per_item.get(&bin)).copied().unwrap_or_default()
    }

    fn take(&mut self, event: &RunEvent) {
        match event {
            RunEvent::ArmStarted { arm, done, .. } => {
                self.arm = self.arms.iter().position(|(name, _)| name == arm).unwrap_or(self.arm);
                if let Some((_, work)) = self.arms.get(self.arm) {
                    // Runs go through the plan in order, so what was found is its beginning.
                    let found = work.of_items(&work.items[..(*done).min(work.items.len())]);
                    self.found_work += found;
                    self.done_work += found;
                }
                self.group = Group::default();
            }
            RunEvent::GroupStarted { bin, items, bin_planned, bin_done } => {
                let (bin_planned, bin_done) = (*bin_planned, *bin_done);
                self.group = Group { bin: Some(*bin), items: *items, bin_planned, bin_done, ..Group::default() };
            }
            RunEvent::Prefill { done, total } => self.group.prefill = Some((*done, *total)),
            RunEvent::Decode { tokens } => self.group.tokens = *tokens,
            RunEvent::ItemFinished { bin, outcome, .. } => {
                self.done_work += self.item_work(*bin);
                self.group.finished += 1;
                if *outcome == Outcome::Error {
                    self.errors += 1;
                }
            }
            RunEvent::Warning(_) => {}
            RunEvent::ArmFinished { .. } => self.group = Group::default(),
        }
    }

    /// Work done, with the part of the current group that is not in a record yet.
    fn work(&self) -> f64 {
        let group = &self.group;
        let (Some(bin), Some((done, total))) = (group.bin, group.prefill) else { return self.done_work };
        let read = done as f64 / total.max(1) as f64 * PREFILL_SHARE * group.items as f64;
        self.done_work + (read - group.finished as f64).max(0.0) * self.item_work(bin)
    }

    fn share(&self) -> f64 {
        if self.total_work > 0.0 { (self.work() / self.total_work).min(1.0) } else { 1.0 }
    }

    fn seconds_left(&self, elapsed: Duration) -> Option<f64> {
        let measured = self.work() - self.found_work;
        let has_basis = elapsed.as_secs() >= 2 && measured > 0.005 * self.total_work;
        has_basis.then(|| elapsed.as_secs_f64() * (self.total_work - self.work()).max(0.0) / measured)
    }

    fn overall_text(&self, elapsed: Duration) -> String {
        let name = self.arms.get(self.arm).map_or("", |(name, _)| name.as_str());
        let mut text = format!("{:>3.0} %  {name} ({}/{})", self.share() * 100.0, self.arm + 1, self.arms.len());
        if let Some(seconds) = self.seconds_left(elapsed) {
            text += &format!("  about {} left", format_seconds(seconds));
        }
        text + &format!("  errors: {}", self.errors)
    }

    fn group_text(&self) -> String {
        let group = &self.group;
        let Some(bin) = group.bin else { return String::new() };
        let mut text = format!("{bin}: {}/{} items", group.bin_done + group.finished, group.bin_planned);
        match group.prefill {
            Some((done, total)) if done < total => text += &format!(", prompt {done}/{total} tokens"),
            _ if group.tokens > 0 => text += &format!(", {} tokens answered", group.tokens),
            _ => {}
        }
        text
    }

    /// What is about to be done in a long bin, when its first open group starts.
    fn announcement(&mut self, event: &RunEvent) -> Option<String> {
        let &RunEvent::GroupStarted { bin, bin_planned, bin_done, .. } = event else { return None };
        let place = Some((self.arm, bin));
        if bin < LONG_BIN || self.announced == place {
            return None;
        }
        self.announced = place;
        let (name, work) = self.arms.get(self.arm)?;
        let open = bin_planned.saturating_sub(bin_done);
        let all_prompts = work.prompts.get(&bin).copied().unwrap_or_default();
        // Prompts are asked in plan order with about as many items each.
        let prompts = (all_prompts * open).div_ceil(bin_planned.max(1));
        let tokens = thousands(prompts as u64 * u64::from(bin.tokens()));
        let (items, prompts) = (counted(open, "item"), counted(prompts, "prompt"));
        Some(format!("{name}: bin {bin} with {items} in {prompts}, about {tokens} tokens to read"))
    }

    /// The log line that is due with this event.
    fn plain_line(&mut self, event: &RunEvent, elapsed: Duration) -> Option<String> {
        if self.lines >= MAX_PLAIN_LINES {
            return None;
        }
        let name = self.arms.get(self.arm).map_or("", |(name, _)| name.as_str());
        let tenth = (self.share() * 10.0) as u32;
        let line = match event {
            RunEvent::Warning(text) => Some(format!("warning: {text}")),
            RunEvent::ArmStarted { planned, done, .. } => {
                Some(format!("{name} ({}/{}): {planned} items, {done} already recorded", self.arm + 1, self.arms.len()))
            }
            RunEvent::ArmFinished { done, errors, .. } => {
                Some(format!("{name}: {done} items recorded, errors: {errors}"))
            }
            _ => {
                let interval = PLAIN_INTERVAL.max(elapsed / PLAIN_INTERVAL_PART);
                let is_due = tenth > self.last_tenth || elapsed.saturating_sub(self.last_line) >= interval;
                is_due.then(|| format!("{}  {}", self.overall_text(elapsed).trim(), self.group_text()))
            }
        };
        if line.is_some() {
            self.lines += 1;
            self.last_line = elapsed;
            self.last_tenth = tenth;
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use kvgauge::suite::{GroupSpec, ItemSpec};

    use super::*;

    fn plan(groups: &[(u32, usize)]) -> Plan {
        let group = |(index, &(tokens, items)): (usize, &(u32, usize))| GroupSpec {
            haystack_id: format!("h{index}"),
            bin: Bin(tokens),
            items: (0..items)
                .map(|item| ItemSpec {
                    item_id: format!("{index}-{item}"),
                    task: "needle".into(),
                    slot_percent: 0,
                    index: item as u32,
                    variant_of: None,
                })
                .collect(),
        };
        Plan { groups: groups.iter().enumerate().map(group).collect() }
    }

    fn finish_group(state: &mut State, tokens: u32, items: usize) {
        let bin = Bin(tokens);
        state.take(&RunEvent::GroupStarted { bin, items, bin_planned: items, bin_done: 0 });
        state.take(&RunEvent::Prefill { done: tokens as usize, total: tokens as usize });
        for _ in 0..items {
            let (task, outcome) = ("needle".to_string(), Outcome::ValidRight);
            state.take(&RunEvent::ItemFinished { bin, task, outcome });
        }
    }

    #[test]
    fn long_prompts_weigh_what_they_cost_and_the_end_is_one() {
        let plan = plan(&[(512, 2), (8192, 2)]);
        let mut state = State::new(&[("a", &plan), ("b", &plan)]);
        for arm in ["a", "b"] {
            state.take(&RunEvent::ArmStarted { arm: arm.into(), planned: 4, done: 0 });
            let before = state.share();
            finish_group(&mut state, 512, 2);
            assert!(state.share() - before < 0.05, "two short items of four are no half of the work");
            finish_group(&mut state, 8192, 2);
            state.take(&RunEvent::ArmFinished { arm: arm.into(), done: 4, errors: 0 });
        }
        assert!((state.share() - 1.0).abs() < 1e-9);
    }

    #[test]
    fn prefill_moves_the_share_and_never_back() {
        let plan = plan(&[(8192, 4)]);
        let mut state = State::new(&[("a", &plan)]);
        state.take(&RunEvent::ArmStarted { arm: "a".into(), planned: 4, done: 0 });
        let (bin, mut last) = (Bin(8192), 0.0);
        state.take(&RunEvent::GroupStarted { bin, items: 4, bin_planned: 4, bin_done: 0 });
        for done in [1024, 4096, 8192] {
            state.take(&RunEvent::Prefill { done, total: 8192 });
            assert!(state.share() > last);
            last = state.share();
        }
        for _ in 0..4 {
            state.take(&RunEvent::ItemFinished { bin, task: "needle".into(), outcome: Outcome::Error });
            assert!(state.share() >= last);
            last = state.share();
        }
        assert_eq!((state.errors, last), (4, 1.0));
    }

    #[test]
    fn what_is_to_come_is_said_once_per_long_bin_and_arm() {
        let whole = plan(&[(512, 4), (8192, 4), (8192, 4)]);
        let control = plan(&[(512, 4)]);
        let arms = [("a", &whole), ("a.aa", &control), ("b", &whole)];
        assert_eq!(
            outline(&arms),
            "2 arms × 12 items, a.aa × 4 items: 7 prompts, about 34 thousand tokens to read, longest bin 8K"
        );
        let mut state = State::new(&arms);
        let mut lines = Vec::new();
        for arm in ["a", "b"] {
            let mut events = vec![RunEvent::ArmStarted { arm: arm.into(), planned: 12, done: 0 }];
            let group = |tokens, bin_planned, bin_done| RunEvent::GroupStarted {
                bin: Bin(tokens),
                items: 4,
                bin_planned,
                bin_done,
            };
            // Arm b resumes in the middle of its long bin.
            let done = if arm == "b" { 4 } else { 0 };
            events.extend([group(512, 4, 0), group(8192, 8, done), group(8192, 8, 4)]);
            for event in events {
                state.take(&event);
                lines.extend(state.announcement(&event));
            }
        }
        assert_eq!(
            lines,
            [
                "a: bin 8K with 8 items in 2 prompts, about 16 thousand tokens to read",
                "b: bin 8K with 4 items in 1 prompt, about 8192 tokens to read"
            ]
        );
    }

    #[test]
    fn found_records_do_not_count_as_speed() {
        let plan = plan(&[(512, 2), (2048, 2)]);
        let mut state = State::new(&[("a", &plan)]);
        state.take(&RunEvent::ArmStarted { arm: "a".into(), planned: 4, done: 2 });
        assert!(state.share() > 0.1);
        assert_eq!(state.seconds_left(Duration::from_secs(10)), None);
        state.take(&RunEvent::GroupStarted { bin: Bin(2048), items: 2, bin_planned: 2, bin_done: 0 });
        state.take(&RunEvent::Prefill { done: 1024, total: 2048 });
        let left = state.seconds_left(Duration::from_secs(10)).unwrap();
        assert!((left - 15.0).abs() < 1e-6, "40 % of the new work took 10 s: {left}");
    }

    #[test]
    fn a_day_of_events_stays_under_the_line_limit_and_keeps_talking() {
        let plan = plan(&[(131_072, 1)]);
        let mut state = State::new(&[("a", &plan)]);
        let (mut lines, mut last) = (0, 0);
        state.take(&RunEvent::GroupStarted { bin: Bin(131_072), items: 1, bin_planned: 1, bin_done: 0 });
        for second in 0..86_400 {
            let event = RunEvent::Prefill { done: second, total: 86_400 };
            state.take(&event);
            if state.plain_line(&event, Duration::from_secs(second as u64)).is_some() {
                lines += 1;
                last = second;
            }
        }
        assert!((100..=200).contains(&lines) && last > 80_000, "{lines} lines, the last at {last} s");
    }
}
