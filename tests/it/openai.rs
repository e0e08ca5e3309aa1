//! The client against a server that plays every engine and every fault.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up its input has failed")]

mod faults;
mod load;
pub(crate) mod played;
mod requests;
mod tokens;

use std::sync::Arc;

use kvgauge::sample::{Bin, Completion, Expected, FollowUp, Gold, Item, Language, Message, Role};
use kvgauge::setup::{Arm, ModelIdentity, Resolved};
use kvgauge::targets::openai::{Endpoint, EndpointError, EndpointSettings};
use kvgauge::targets::{CancelFlag, Target, TargetError, Watch};
use kvgauge::tokenizer::WordTokenizer;

type Answers = Vec<Result<Completion, TargetError>>;

/// Planned tokens of [`item`]'s prompt, as [`played::good`] counts them.
const PROMPT_TOKENS: u32 = 20;

fn expected() -> Expected {
    Expected { answer: "47".into(), gold: Gold::Value { value: "47".into(), distractors: Vec::new() } }
}

fn item(name: &str) -> Item {
    Item {
        item_id: name.into(),
        task: "needle".into(),
        language: Language::En,
        bin: Bin(512),
        slot_percent: 0,
        index: 0,
        haystack_id: "h".into(),
        messages: vec![Message { role: Role::User, content: format!("What is the number of {name}?") }],
        prompt_tokens: PROMPT_TOKENS,
        max_output_tokens: 16,
        depth_percent: None,
        expected: expected(),
        scorer: "exact_value".into(),
        excerpt: String::new(),
        follow_ups: Vec::new(),
        answer_prefix: String::new(),
        variant_of: None,
    }
}

fn follow_up(question: &str) -> FollowUp {
    FollowUp { question: question.into(), expected: expected() }
}

fn identity() -> ModelIdentity {
    ModelIdentity {
        name: "m".into(),
        weights: "w".into(),
        tokenizer: "t".into(),
        chat_template: "c".into(),
        rope: "none".into(),
        trained_context: 4096,
    }
}

/// Settings that fail fast.
fn settings(url: &str) -> EndpointSettings {
    let mut settings = EndpointSettings::new(url);
    (settings.max_retries, settings.first_byte_timeout_s, settings.between_tokens_timeout_s) = (1, 1, 1);
    settings
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

async fn connect(settings: EndpointSettings) -> Result<Endpoint, TargetError> {
    connect_with(settings, &|_| None).await
}

async fn connect_with(
    settings: EndpointSettings,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<Endpoint, TargetError> {
    let (arm, resolved) = (Arm::baseline("auto"), Resolved::unknown("test"));
    Endpoint::connect_with(settings, &arm, identity(), resolved, Arc::new(WordTokenizer), variable).await
}

async fn complete(endpoint: &Endpoint, items: Vec<Item>) -> Answers {
    let watch = Watch { on_event: &|_| (), cancel: Arc::new(CancelFlag::default()) };
    endpoint.complete(items, &watch).await
}

/// Connects and asks `items`.
fn ask(settings: EndpointSettings, items: Vec<Item>) -> Answers {
    runtime().block_on(async {
        let endpoint = connect(settings).await.unwrap();
        complete(&endpoint, items).await
    })
}

fn endpoint_error(result: Result<Completion, TargetError>) -> EndpointError {
    match result.unwrap_err() {
        TargetError::Endpoint(error) => error,
        other => panic!("not an error of the endpoint: {other}"),
    }
}

/// What the runner makes of the first item of a suite whose prompts the server at `url` counts wrongly.
fn judged(url: &str) -> kvgauge::sample::Outcome {
    use kvgauge::runner::event::RunEvent;
    let (dir, suite) = (tempfile::tempdir().unwrap(), kvgauge::suite::Suite::builtin("smoke").unwrap());
    let (plan, arm) = (suite.plan(), Arm::baseline("auto"));
    let outcome = std::sync::Mutex::new(None);
    let cancel = Arc::new(CancelFlag::default());
    runtime().block_on(async {
        let endpoint = connect(settings(url)).await.unwrap();
        let manifest = kvgauge::runner::identity::manifest(&suite, &plan, &arm, &endpoint, Default::default());
        let run = kvgauge::runner::ArmRun { suite: &suite, plan: &plan, manifest, dir: dir.path() };
        let watch = |event: RunEvent| {
            if let RunEvent::ItemFinished { outcome: found, .. } = event {
                outcome.lock().unwrap().get_or_insert(found);
                cancel.cancel();
            }
        };
        let _ = kvgauge::runner::run_arm(run, &endpoint, &watch, &cancel).await;
    });
    outcome.into_inner().unwrap().unwrap()
}
