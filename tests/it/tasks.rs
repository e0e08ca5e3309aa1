//! Properties of every task in every bin and language, on a real and on a byte-level tokenizer.

use std::sync::LazyLock;

use kvgauge::sample::{Bin, Completion, FaultKind, FinishReason, Item, Language, Timing};
use kvgauge::scorers;
use kvgauge::suite::Suite;
use kvgauge::tasks::{self, Ground, TASKS, Task, TaskError};
use kvgauge::tokenizer::{TokenCounter, Tokenizer};

use crate::smollm2;
use crate::solvers::{Solver, solvers};

static SMOLLM2: LazyLock<Tokenizer> = LazyLock::new(|| smollm2::tokenizer(None));

/// One token per byte.
struct Bytes;

impl TokenCounter for Bytes {
    fn count(&self, text: &str) -> usize {
        text.len()
    }

    fn count_chat(&self, messages: &[(&str, &str)]) -> usize {
        messages.iter().map(|(role, content)| role.len() + content.len() + 4).sum()
    }

    fn fingerprint(&self) -> String {
        "bytes".into()
    }

    fn is_additive_at(&self, _: &str, _: &str) -> bool {
        true
    }
}

/// All tasks but those whose prompts are given.
fn generated() -> impl Iterator<Item = &'static Task> {
    TASKS.iter().filter(|task| task.ground != Ground::Given)
}

fn languages() -> impl Iterator<Item = Language> {
    [Language::En, Language::Zh].into_iter()
}

/// `samples` items of one task in one bin, each in a document of its own.
fn suite(task: &Task, bin: Bin, language: Language, samples: u32) -> Suite {
    let text = format!(
        "schema_version = 1\nname = \"properties\"\ndescription = \"\"\nlanguage = \"{}\"\n\
         [[bins]]\ncontext = {}\nsamples = {samples}\n[[tasks]]\nkind = \"{}\"\n",
        language.tag(),
        bin.tokens(),
        task.id
    );
    Suite::parse(&text, "properties").expect("a valid suite")
}

fn items(suite: &Suite, counter: &dyn TokenCounter) -> Result<Vec<Item>, TaskError> {
    let groups = suite.plan().groups;
    let generated = groups.iter().map(|group| suite.generate(group, counter)).collect::<Result<Vec<_>, _>>()?;
    Ok(generated.into_iter().flatten().collect())
}

fn check_item(item: &Item, counter: &dyn TokenCounter) {
    let messages: Vec<(&str, &str)> = item.messages.iter().map(|m| (m.role.name(), m.content.as_str())).collect();
    let reserve = tasks::default_output_reserve(item.bin);
    let budget = item.bin.tokens() - reserve;
    let place = format!("{} in {} ({})", item.task, item.bin, item.language.tag());
    let counted = counter.count_chat(&messages) + counter.count(&item.answer_prefix);
    assert_eq!(counted, item.prompt_tokens as usize, "{place}");
    assert!(item.prompt_tokens <= budget, "{place}: {} of {budget}", item.prompt_tokens);
    let least = if item.bin.tokens() < 2048 { 0.90 } else { 0.97 };
    assert!(f64::from(item.prompt_tokens) >= least * f64::from(budget), "{place}: {} of {budget}", item.prompt_tokens);
    assert!(item.max_output_tokens as usize > counter.count(&item.expected.answer), "{place}");
    assert!(item.max_output_tokens <= reserve, "{place}");
}

fn completion(answers: &[String]) -> Completion {
    Completion {
        text: answers[0].clone(),
        prompt_tokens: 0,
        output_tokens: 1,
        finish_reason: FinishReason::Stop,
        timing: Timing::default(),
        answer_nll: None,
        reasoning: None,
        later_answers: answers[1..].to_vec(),
        answer_tokens: Vec::new(),
    }
}

fn check_solved(item: &Item, solver: &Solver) {
    let place = format!("{} in {} ({})", item.task, item.bin, item.language.tag());
    let answers = (solver.solve)(item);
    let score = scorers::score(item, &completion(&answers)).expect("a known scorer");
    assert!(score.is_right(), "{place}: {answers:?} → {score:?}, expected {:?}", item.expected);
    for (kind, answers) in (solver.wrong)(item) {
        let score = scorers::score(item, &completion(&answers)).expect("a known scorer");
        let found: Vec<FaultKind> = score.faults.iter().map(|fault| fault.kind).collect();
        assert!(!score.is_right() && found == [kind], "{place}: {answers:?} is {kind:?}, found {score:?}");
    }
}

fn check_task(task: &'static Task, bins: &[u32], counter: &dyn TokenCounter) {
    let solver = solvers().find(|solver| solver.task == task.id);
    // A task without a solver has no Chinese wording yet.
    for language in languages().filter(|language| *language == Language::En || solver.is_some()) {
        for bin in bins.iter().map(|tokens| Bin(*tokens)) {
            match items(&suite(task, bin, language, 2), counter) {
                Ok(items) => {
                    for item in &items {
                        check_item(item, counter);
                        if let Some(solver) = solver {
                            check_solved(item, solver);
                        }
                    }
                }
                // A byte is far less than a token: what 512 of them hold is no document, and long answers fit no reserve.
                Err(TaskError::TooSmall { .. } | TaskError::AnswerTooLong { .. })
                    if counter.fingerprint() == "bytes" => {}
                Err(error) => panic!("{} in {bin} ({}): {error}", task.id, language.tag()),
            }
        }
    }
}

#[test]
fn every_task_fits_and_is_solved_in_every_bin_on_a_real_tokenizer() {
    for task in generated() {
        check_task(task, &[512, 2048, 8192, 32_768], &*SMOLLM2);
    }
}

#[test]
fn every_task_fits_and_is_solved_in_the_longest_bins() {
    for task in generated() {
        check_task(task, &[131_072, 262_144], &*SMOLLM2);
    }
}

#[test]
fn every_task_fits_and_is_solved_on_bytes() {
    for task in generated() {
        check_task(task, &[512, 2048, 8192, 32_768], &Bytes);
    }
}

#[test]
fn several_questions_on_one_text_do_not_disturb_each_other() {
    for language in languages() {
        let solvable: Vec<(&Task, &Solver)> =
            TASKS.iter().filter_map(|task| Some((task, solvers().find(|solver| solver.task == task.id)?))).collect();
        let head = format!(
            "schema_version = 1\nname = \"shared\"\ndescription = \"\"\nlanguage = \"{}\"\n\
             [[bins]]\ncontext = \"8K\"\nsamples = 4\nshared_prefix = 4\n\
             [[bins]]\ncontext = \"32K\"\nsamples = 2\nshared_prefix = 5\nmixed = true\n",
            language.tag()
        );
        let tasks: Vec<String> =
            solvable.iter().map(|(task, _)| format!("[[tasks]]\nkind = \"{}\"\n", task.id)).collect();
        let suite = Suite::parse(&(head + &tasks.concat()), "shared").expect("a valid suite");
        for item in items(&suite, &*SMOLLM2).expect("they fit") {
            let (_, solver) = solvable.iter().find(|(task, _)| task.id == item.task).expect("a solver");
            check_solved(&item, solver);
        }
    }
}
