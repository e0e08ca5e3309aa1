//! Conversations, thinking and groups in flight, on a tiny random model with a tokenizer of its own.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up its input has failed")]

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use kvgauge::engine::{Engine, EngineOptions, RopeScaling, SequenceId, argmax};
use kvgauge::runner::{ArmRun, identity, run_arm};
use kvgauge::sample::{Bin, Completion, Expected, FinishReason, FollowUp, Gold, Item, Language, Message, Role, Timing};
use kvgauge::setup::{Arm, ArmRole};
use kvgauge::suite::Suite;
use kvgauge::targets::embedded::{Embedded, LoadedModel, RopePolicy};
use kvgauge::targets::scripted::Scripted;
use kvgauge::targets::{CancelFlag, Target, TargetError, TargetEvent, Watch};
use kvgauge::tokenizer::WordTokenizer;
use serde_json::json;

const IM_END: u32 = 2;
const SPECIAL: [&str; 5] = ["<pad>", "<bos>", "<|im_end|>", "<|im_start|>", "<think>"];

/// The id of `</think>`, unless a test puts it where the model says it.
const CLOSING: u32 = 255;

const CHATML: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                      {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Opens the tag in the prompt and leaves it out of the history.
const THINKING: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                        {% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}";

/// Says how many messages there are, so that every turn changes the beginning.
const REWRITING: &str = "{{ messages|length }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n\
                         {% endfor %}<|im_start|>assistant\n";

/// A token per printable character, and words that no text makes but the model may say.
pub(crate) fn tokenizer_json(closing: u32) -> serde_json::Value {
    let mut tokens: Vec<String> = SPECIAL.iter().map(|token| (*token).to_owned()).collect();
    tokens.extend((b'!'..=b'~').map(|byte| char::from(byte).to_string()));
    tokens.extend(["Ġ".to_owned(), "Ċ".to_owned()]);
    assert!(closing as usize >= tokens.len(), "a prompt may use the token");
    tokens.extend((tokens.len()..256).map(|id| format!("w{id}")));
    tokens[closing as usize] = "</think>".into();
    let vocab: serde_json::Map<String, serde_json::Value> =
        tokens.iter().enumerate().map(|(id, token)| (token.clone(), id.into())).collect();
    let added: Vec<serde_json::Value> = (0..SPECIAL.len())
        .chain([closing as usize])
        .map(|id| {
            json!({"id": id, "content": tokens[id], "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true})
        })
        .collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": []},
    })
}

/// The tiny model with a chat template; `ends` are the tokens that end an answer.
fn chat_model(template: &str, ends: &[u32]) -> Arc<LoadedModel> {
    model_with(template, ends, CLOSING)
}

fn model_with(template: &str, ends: &[u32], closing: u32) -> Arc<LoadedModel> {
    let dir = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny_models/llama");
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(source.join(name), dir.path().join(name)).unwrap();
    }
    std::fs::write(dir.path().join("tokenizer.json"), tokenizer_json(closing).to_string()).unwrap();
    std::fs::write(dir.path().join("chat_template.jinja"), template).unwrap();
    std::fs::write(dir.path().join("generation_config.json"), json!({ "eos_token_id": ends }).to_string()).unwrap();
    Arc::new(LoadedModel::open("tiny", dir.path(), RopePolicy::None).unwrap())
}

fn options(kv_cache_memory: Option<u64>) -> EngineOptions {
    EngineOptions { kv_cache_dtype: "fp8_e4m3".into(), threads: 1, kv_cache_memory, ..EngineOptions::default() }
}

fn expected() -> Expected {
    Expected { answer: "7".into(), gold: Gold::Value { value: "7".into(), distractors: Vec::new() } }
}

fn item(id: &str, prompt: &str, later: &[&str], max_output_tokens: u32) -> Item {
    let follow_up = |question: &&str| FollowUp { question: (*question).into(), expected: expected() };
    Item {
        item_id: id.into(),
        task: "multi_turn".into(),
        language: Language::En,
        bin: Bin(512),
        slot_percent: 0,
        index: 0,
        haystack_id: "h".into(),
        messages: vec![Message { role: Role::User, content: prompt.into() }],
        prompt_tokens: 0,
        max_output_tokens,
        depth_percent: None,
        expected: expected(),
        scorer: "turns".into(),
        excerpt: String::new(),
        follow_ups: later.iter().map(follow_up).collect(),
        answer_prefix: String::new(),
        variant_of: None,
    }
}

fn ignore(_: TargetEvent) {}

fn watch() -> Watch<'static> {
    Watch { on_event: &ignore, cancel: Arc::new(CancelFlag::default()) }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

fn complete(target: &Embedded, items: &[Item]) -> Vec<Result<Completion, TargetError>> {
    runtime().block_on(async { target.complete(items.to_vec(), &watch()).await })
}

/// The engine driven by hand.
struct Hand<'m> {
    model: &'m LoadedModel,
    engine: Engine,
    sequence: SequenceId,
}

impl<'m> Hand<'m> {
    fn new(model: &'m LoadedModel) -> Self {
        let mut engine = Engine::new(Arc::clone(model.engine()), &options(None)).unwrap();
        let sequence = engine.start(RopeScaling::Default).unwrap();
        Self { model, engine, sequence }
    }

    /// Reads `ids` and answers; what it generated is in the cache but for its last token.
    fn answer(&mut self, ids: &[u32], limit: usize) -> Vec<u32> {
        let mut logits = self.engine.prefill(self.sequence, ids, &mut |_| ControlFlow::Continue(())).unwrap();
        let mut answer = Vec::new();
        loop {
            let id = argmax(&logits).unwrap();
            answer.push(id);
            if answer.len() == limit || self.model.tokenizer().eos_ids().contains(&id) {
                return answer;
            }
            logits = self.engine.decode(&[(self.sequence, id)]).unwrap();
        }
    }

    fn text(&self, ids: &[u32]) -> String {
        self.model.tokenizer().decode(ids, true)
    }

    fn ids(&self, text: &str) -> Vec<u32> {
        self.model.tokenizer().encode(text, true).unwrap()
    }
}

const PROMPT: &str = "The special number for the old mill is 4829173. What is it?";

/// The third token of the first answer: as an end token it makes answers stop in different places.
fn common_end() -> u32 {
    let model = chat_model(CHATML, &[IM_END]);
    let mut hand = Hand::new(&model);
    let ids = hand.ids(&format!("<|im_start|>user\n{PROMPT}<|im_end|>\n<|im_start|>assistant\n"));
    hand.answer(&ids, 3)[2]
}

#[test]
fn a_conversation_goes_on_in_the_cache_it_filled() {
    for ends in [vec![IM_END], vec![IM_END, common_end()]] {
        let model = chat_model(CHATML, &ends);
        let target = Embedded::new(Arc::clone(&model), &options(None)).unwrap();
        let completion = complete(&target, &[item("a", PROMPT, &["And the dark pond?", "Once more?"], 10)]).remove(0);
        let completion = completion.unwrap();

        let mut hand = Hand::new(&model);
        let mut ids = hand.ids(&format!("<|im_start|>user\n{PROMPT}<|im_end|>\n<|im_start|>assistant\n"));
        let mut answers = Vec::new();
        for next in ["And the dark pond?", "Once more?", ""] {
            let answer = hand.answer(&ids, 10);
            let suffix = hand.ids(&format!("<|im_end|>\n<|im_start|>user\n{next}<|im_end|>\n<|im_start|>assistant\n"));
            let (last, is_end) = (answer[answer.len() - 1], ends.contains(&answer[answer.len() - 1]));
            ids = if is_end { suffix } else { std::iter::once(last).chain(suffix).collect() };
            answers.push(answer);
        }
        let texts: Vec<String> = answers.iter().map(|answer| hand.text(answer)).collect();
        assert_eq!((&completion.text, &completion.later_answers[..]), (&texts[0], &texts[1..]));
        assert_eq!(completion.output_tokens as usize, answers.iter().map(Vec::len).sum::<usize>());
        let is_cut = answers.iter().any(|answer| !ends.contains(&answer[answer.len() - 1]));
        let finish_reason = if is_cut { FinishReason::Length } else { FinishReason::Stop };
        assert_eq!((completion.finish_reason, completion.reasoning), (finish_reason, None));
    }
}

#[test]
fn thinking_is_apart_and_the_next_turn_does_not_see_it() {
    let model = chat_model(THINKING, &[IM_END]);
    let target = Embedded::new(Arc::clone(&model), &options(None)).unwrap();
    let completion = complete(&target, &[item("a", PROMPT, &["And the dark pond?"], 10)]).remove(0).unwrap();
    let mut hand = Hand::new(&model);
    let before = format!("<|im_start|>user\n{PROMPT}<|im_end|>\n<|im_start|>assistant\n");
    let first = hand.ids(&format!("{before}<think>\n"));
    let first = hand.answer(&first, 10);
    let mut hand = Hand::new(&model);
    let second = "<|im_end|>\n<|im_start|>user\nAnd the dark pond?<|im_end|>\n<|im_start|>assistant\n<think>\n";
    let second = hand.ids(&format!("{before}{second}"));
    let second = hand.answer(&second, 10);
    // The model says no closing tag, so all it said is an unfinished thought.
    assert!(!first.contains(&CLOSING) && !second.contains(&CLOSING));
    assert_eq!((completion.text.as_str(), &completion.later_answers[..]), ("", &[String::new()][..]));
    let thoughts = format!("{}\n\n{}", hand.text(&first).trim(), hand.text(&second).trim());
    assert_eq!(completion.reasoning, Some(thoughts));
    assert_eq!(completion.finish_reason, FinishReason::Length);
}

#[test]
fn what_follows_the_closing_tag_is_the_answer() {
    let prompt = format!("<|im_start|>user\n{PROMPT}<|im_end|>\n<|im_start|>assistant\n<think>\n");
    let said = {
        let model = chat_model(THINKING, &[IM_END]);
        let mut hand = Hand::new(&model);
        let ids = hand.ids(&prompt);
        hand.answer(&ids, 24)
    };
    // Any token will do that no text is made of: here it becomes the closing tag.
    let at = said.iter().position(|id| (110..CLOSING).contains(id)).expect("half of the tokens are none of a text");
    let model = model_with(THINKING, &[IM_END], said[at]);
    let target = Embedded::new(Arc::clone(&model), &options(None)).unwrap();
    let completion = complete(&target, &[item("a", PROMPT, &[], 24)]).remove(0).unwrap();
    let hand = Hand::new(&model);
    assert_eq!(completion.reasoning.as_deref(), Some(hand.text(&said[..at]).trim()));
    assert_eq!(completion.text, hand.text(&said[at + 1..]).trim_start());
}

#[test]
fn a_template_that_rewrites_the_beginning_is_told_and_single_questions_are_not_touched() {
    let model = chat_model(REWRITING, &[IM_END]);
    let target = Embedded::new(model, &options(None)).unwrap();
    let items = [item("a", PROMPT, &["And the dark pond?"], 10), item("b", PROMPT, &[], 10)];
    let answers = complete(&target, &items);
    assert_eq!(answers[0], Err(TargetError::HistoryRewritten));
    assert!(answers[1].is_ok());
}

#[test]
fn the_answer_goes_on_behind_its_prefix() {
    let model = chat_model(CHATML, &[IM_END]);
    let target = Embedded::new(Arc::clone(&model), &options(None)).unwrap();
    let mut asked = item("a", PROMPT, &["And the dark pond?"], 10);
    asked.answer_prefix = "The number is".into();
    let completion = complete(&target, &[asked]).remove(0).unwrap();
    let mut hand = Hand::new(&model);
    let ids = hand.ids(&format!("<|im_start|>user\n{PROMPT}<|im_end|>\n<|im_start|>assistant\nThe number is"));
    assert_eq!(completion.prompt_tokens as usize, ids.len());
    let answer = hand.answer(&ids, 10);
    assert_eq!(completion.text, hand.text(&answer));
    assert_eq!(completion.later_answers.len(), 1);
}

/// Five haystacks of different lengths with one to three questions, some of them conversations.
fn groups() -> Vec<Vec<Item>> {
    let group = |number: usize| -> Vec<Item> {
        let text = "The lamp stands in the hall. ".repeat(1 + number % 3);
        let question = |index: usize| {
            let later: &[&str] = if (number + index).is_multiple_of(2) { &["And then?", "Once more?"] } else { &[] };
            item(&format!("{number}-{index}"), &format!("{text}What is number {index}?"), later, 6 + 5 * index as u32)
        };
        (0..1 + number % 3).map(question).collect()
    };
    (0..5).map(group).collect()
}

fn without_times(answers: Vec<Result<Completion, TargetError>>) -> Vec<Completion> {
    answers.into_iter().map(|answer| Completion { timing: Timing::default(), ..answer.unwrap() }).collect()
}

#[test]
fn answers_do_not_depend_on_what_else_is_in_flight() {
    let model = chat_model(CHATML, &[IM_END, common_end()]);
    let groups = groups();
    let target = Embedded::new(Arc::clone(&model), &options(None)).unwrap();
    let alone: Vec<Vec<Completion>> = groups.iter().map(|group| without_times(complete(&target, group))).collect();
    // Room for everything, and for little more than one group at a time.
    let bytes_per_token = target.resolved().kv_bytes_per_token.value.unwrap();
    for memory in [None, Some((700.0 * bytes_per_token) as u64)] {
        let target = Embedded::new(Arc::clone(&model), &options(memory)).unwrap();
        let together = runtime().block_on(async {
            let watch = watch();
            let [a, b, c, d, e] = [0, 1, 2, 3, 4].map(|at| target.complete(groups[at].clone(), &watch));
            let (a, b, c, d, e) = tokio::join!(a, b, c, d, e);
            [a, b, c, d, e].map(without_times)
        });
        assert_eq!(together.to_vec(), alone, "{memory:?}");
    }
}

/// Lines of the journal of a scripted run.
fn journal(suite: &Suite, concurrency: usize) -> String {
    let dir = tempfile::tempdir().unwrap();
    let arm = Arm::baseline("bfloat16").at_concurrency(concurrency);
    let target = Scripted::new(&arm, &[], Arc::new(WordTokenizer));
    let plan = suite.plan();
    let manifest = identity::manifest(suite, &plan, &arm, &target, BTreeMap::new());
    let run = ArmRun { suite, plan: &plan, manifest, dir: dir.path() };
    let cancel = Arc::new(CancelFlag::default());
    let outcome = runtime().block_on(run_arm(run, &target, &|_| (), &cancel)).unwrap();
    assert_eq!(outcome.done, plan.item_count());
    std::fs::read_to_string(dir.path().join("samples.jsonl")).unwrap()
}

#[test]
fn the_journal_is_in_plan_order_at_any_concurrency() {
    let text = "schema_version = 1\nname = \"turns\"\ndescription = \"\"\n\
                [[bins]]\ncontext = \"2K\"\nsamples = 9\n[[tasks]]\nkind = \"multi_turn\"\n[[tasks]]\nkind = \"needle\"\n";
    let suite = Suite::parse(text, "turns").unwrap();
    let one = journal(&suite, 1);
    assert!(one.lines().count() == 18 && one.contains("\"turn_scores\""));
    assert_eq!(journal(&suite, 8), one);
}

#[test]
fn an_arm_at_another_level_says_so() {
    let arm = Arm::candidate("fp8_e4m3").at_concurrency(8);
    assert_eq!((arm.name.as_str(), arm.concurrency(), arm.role), ("fp8_e4m3+concurrency=8", 8, ArmRole::Candidate));
    assert_eq!(Arm::candidate("fp8_e4m3").at_concurrency(1), Arm::candidate("fp8_e4m3"));
}
