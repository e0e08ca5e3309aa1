//! Token truth: the server's counts against the plan, and the server's tokenizer as a counter.

use kvgauge::sample::Outcome;
use kvgauge::targets::openai::{Dialect, ServerTokenizer, TokenAgreement};
use kvgauge::tokenizer::{TokenCounter, UNCOUNTABLE_TOKENS, WordTokenizer};
use serde_json::{Value, json};

use super::played::{Asked, Played, events, finished, good, json_reply, models, said, usage};
use super::{ask, connect, item, runtime, settings};

/// What a server makes of a true count.
type Counting = fn(usize) -> usize;

/// A server that counts as `change` makes of the true count.
fn counting(change: Counting) -> Played {
    Played::vllm(move |asked| {
        let content = asked.body["messages"][0]["content"].as_str().unwrap();
        let counted = change(WordTokenizer.count_chat(&[("user", content)])) as u32;
        events(&[&said("y"), &finished("length"), &usage(counted, 1), "[DONE]"])
    })
}

#[test]
fn a_second_bos_another_template_and_another_tokenizer_are_named() {
    let cases: [(Counting, TokenAgreement); 4] = [
        (|count| count, TokenAgreement::Same),
        (|count| count + 1, TokenAgreement::SecondBos),
        (|count| count + 30, TokenAgreement::Template { difference: 30 }),
        (|count| count.min(40), TokenAgreement::Truncated { planned: 0, counted: 40 }),
    ];
    for (change, expected) in cases {
        let played = counting(change);
        let found =
            runtime().block_on(async { connect(settings(&played.url)).await.unwrap().check_tokens().await.unwrap() });
        match (found, expected) {
            (TokenAgreement::Truncated { planned, counted }, TokenAgreement::Truncated { .. }) => {
                assert!(planned > counted && counted == 40, "{found}");
            }
            _ => assert_eq!(found, expected),
        }
        assert_eq!(played.bodies()[0]["max_tokens"], 1);
    }
}

#[test]
fn a_silently_cut_prompt_has_no_score() {
    let played = Played::vllm(|_| events(&[&said("47"), &finished("stop"), &usage(2000, 2), "[DONE]"]));
    let mut long = item("a");
    long.prompt_tokens = 4000;
    let answer = ask(settings(&played.url), vec![long]).remove(0).unwrap();
    assert_eq!(answer.prompt_tokens, 2000, "the server's own count reaches the judge");
    assert_eq!(Outcome::Invalid, super::judged(&played.url));
}

fn tokenize(asked: &Asked) -> Value {
    let text = asked.body["prompt"].as_str().or_else(|| asked.body["content"].as_str());
    match text {
        Some(text) => {
            let tokens: Vec<usize> =
                (0..WordTokenizer.count(text) + usize::from(asked.body["add_special"] == true)).collect();
            json!({"count": tokens.len(), "tokens": tokens, "max_model_len": 4096})
        }
        None => {
            let content = asked.body["messages"][0]["content"].as_str().unwrap();
            json!({"count": WordTokenizer.count_chat(&[("user", content)])})
        }
    }
}

#[test]
fn the_servers_tokenizer_is_a_counter_that_remembers() {
    let played = Played::new(|asked| match asked.line.as_str() {
        "GET /v1/models" => json_reply(200, &models("vllm", 4096)),
        "POST /tokenize" => json_reply(200, &tokenize(asked)),
        _ => json_reply(404, &json!({})),
    });
    let counter = ServerTokenizer::connect(settings(&played.url)).unwrap();
    let requests = || played.asked.lock().unwrap().iter().filter(|asked| asked.line == "POST /tokenize").count();
    let before = requests();
    // On a runtime too, where the generator of items runs.
    runtime().block_on(async {
        for _ in 0..50 {
            assert_eq!(counter.count("The copper lantern"), WordTokenizer.count("The copper lantern"));
            assert_eq!(counter.count_chat(&[("user", "Hello")]), WordTokenizer.count_chat(&[("user", "Hello")]));
        }
    });
    assert_eq!(requests() - before, 2);
    let body =
        played.asked.lock().unwrap().iter().rfind(|asked| asked.body["prompt"].is_string()).unwrap().body.clone();
    assert_eq!(body["add_special_tokens"], false);
    assert_eq!(counter.count(""), 0);
    assert!(counter.fingerprint().starts_with("server vllm m "));
}

#[test]
fn llama_cpp_renders_before_it_counts_and_engines_without_a_tokenizer_say_so() {
    let played = Played::new(|asked| match asked.line.as_str() {
        "GET /v1/models" => json_reply(200, &models("llamacpp", 4096)),
        "POST /apply-template" => json_reply(200, &json!({"prompt": "<s>user: Hello assistant:"})),
        "POST /tokenize" => json_reply(200, &json!({"tokens": tokenize(asked)["tokens"]})),
        _ => json_reply(404, &json!({})),
    });
    let counter = ServerTokenizer::connect(settings(&played.url)).unwrap();
    assert_eq!(counter.count_chat(&[("user", "Hello")]), WordTokenizer.count("<s>user: Hello assistant:") + 1);
    let tgi = Played::vllm(|_| good("47"));
    let mut other = settings(&tgi.url);
    other.dialect = Some(Dialect::Tgi);
    let error = ServerTokenizer::connect(other).err().unwrap();
    assert_eq!(error.to_string(), "tgi cannot tokenize");
    let gone = Played::new(|asked| match (asked.line.as_str(), asked.place) {
        ("GET /v1/models", _) => json_reply(200, &models("vllm", 4096)),
        (_, 0..2) => json_reply(200, &json!({"count": 5})),
        _ => json_reply(400, &json!({})),
    });
    let counter = ServerTokenizer::connect(settings(&gone.url)).unwrap();
    assert_eq!(counter.count("text"), UNCOUNTABLE_TOKENS, "an unknown count fits no budget");
}
