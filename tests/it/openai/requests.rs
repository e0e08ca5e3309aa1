//! What is sent, what becomes of good replies, and what stops a run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvgauge::hint::Hint;
use kvgauge::record::Record;
use kvgauge::runner::event::RunEvent;
use kvgauge::runner::{ArmRun, RunError, identity as run_identity, run_arm};
use kvgauge::sample::{Bin, FinishReason};
use kvgauge::setup::{Arm, Check, CheckStatus};
use kvgauge::suite::Suite;
use kvgauge::targets::openai::{Dialect, EndpointError, EndpointSettings, PrefixCache};
use kvgauge::targets::{CancelFlag, Target, TargetError, Watch};
use serde_json::{Value, json};

use super::played::{Played, Step, events, finished, good, json_reply, models, reply, said, usage};
use super::{ask, complete, connect, connect_with, endpoint_error, follow_up, item, runtime, settings};

#[test]
fn an_answer_is_whole_and_timed_and_its_request_says_everything() {
    let played = Played::vllm(|_| {
        let mut steps = good("The number is 47");
        steps.insert(2, Step::Pause(Duration::from_millis(60)));
        steps.insert(4, Step::Pause(Duration::from_millis(60)));
        steps
    });
    let answers = ask(settings(&played.url), vec![item("a"), item("b")]);
    let answer = answers[0].as_ref().unwrap();
    assert_eq!((answer.text.as_str(), answer.finish_reason), ("The number is 47", FinishReason::Stop));
    assert_eq!((answer.prompt_tokens, answer.output_tokens), (20, 3));
    // The role is no token, so the first one comes after the first pause.
    assert!(answer.timing.ttft_ms >= 60.0, "{:?}", answer.timing);
    assert!(answer.timing.latency_ms - answer.timing.ttft_ms >= 55.0, "{:?}", answer.timing);
    let bodies = played.bodies();
    assert_eq!(
        (&bodies[0]["model"], &bodies[0]["temperature"], &bodies[0]["seed"]),
        (&json!("m"), &json!(0.0), &json!(0))
    );
    assert_eq!(bodies[0]["stream_options"], json!({"include_usage": true}));
    assert_ne!(bodies[0]["cache_salt"], bodies[1]["cache_salt"], "no item reads what another left in the cache");
}

#[test]
fn engines_are_recognised_by_what_they_say() {
    let cases: [(&str, Value, &str, Value, Dialect); 8] = [
        ("vllm", models("vllm", 4096), "/version", json!({"version": "1"}), Dialect::Vllm),
        ("sglang", models("sglang", 4096), "/server_info", json!({"version": "1"}), Dialect::Sglang),
        ("tensorrt_llm", models("tensorrt_llm", 4096), "/version", json!({"version": "1"}), Dialect::TensorrtLlm),
        ("llama.cpp", models("llamacpp", 4096), "/props", json!({"build_info": "b1"}), Dialect::LlamaCpp),
        ("lmdeploy", models("lmdeploy", 4096), "/none", json!({}), Dialect::Lmdeploy),
        ("ollama", models("library", 4096), "/api/version", json!({"version": "1"}), Dialect::Ollama),
        ("tgi", models("m", 4096), "/info", json!({"version": "1", "max_total_tokens": 4096}), Dialect::Tgi),
        ("another", models("me", 4096), "/none", json!({}), Dialect::Openai),
    ];
    for (name, models, path, facts, dialect) in cases {
        let line = format!("GET {path}");
        let played = Played::new(move |asked| match asked.line.as_str() {
            "GET /v1/models" => json_reply(200, &models),
            found if found == line => json_reply(200, &facts),
            "POST /v1/chat/completions" => good("47"),
            _ => json_reply(404, &json!({"detail": "Not Found"})),
        });
        runtime().block_on(async {
            let endpoint = connect(settings(&played.url)).await.unwrap();
            assert_eq!(endpoint.dialect(), dialect, "{name}");
            assert_eq!(complete(&endpoint, vec![item("a")]).await[0].as_ref().unwrap().text, "47", "{name}");
            assert_eq!(endpoint.version().is_some(), path != "/none", "{name}");
        });
    }
}

#[test]
fn a_conversation_grows_and_a_cut_one_is_invalid() {
    let played = Played::vllm(|asked| {
        let n_message = asked.body["messages"].as_array().unwrap().len() as u32;
        let counted = if asked.body.to_string().contains("cut me") { 12 } else { 20 * n_message };
        let tokens = if n_message == 1 { 20 } else { counted };
        events(&[&said("47"), &finished("stop"), &usage(tokens, 2), "[DONE]"])
    });
    let mut whole = item("a");
    whole.follow_ups = vec![follow_up("And of b?"), follow_up("And of c?")];
    let mut cut = item("b");
    cut.follow_ups = vec![follow_up("cut me")];
    let answers = ask(settings(&played.url), vec![whole, cut]);
    let answer = answers[0].as_ref().unwrap();
    assert_eq!((answer.later_answers.len(), answer.prompt_tokens, answer.output_tokens), (2, 20, 6));
    let bodies = played.bodies();
    let roles: Vec<&Value> = bodies[2]["messages"].as_array().unwrap().iter().map(|message| &message["role"]).collect();
    assert_eq!(roles, ["user", "assistant", "user", "assistant", "user"]);
    let error = endpoint_error(answers[1].clone());
    assert!(matches!(error, EndpointError::ConversationCut { turn: 2, before: 20, counted: 12 }), "{error}");
    assert!(error.is_invalid());
}

#[test]
fn an_answer_goes_on_with_its_prefix_where_the_engine_can() {
    let played = Played::vllm(|_| good("47"));
    let mut begun = item("a");
    begun.answer_prefix = "The number is".into();
    let mut other = settings(&played.url);
    other.dialect = Some(Dialect::Lmdeploy);
    assert_eq!(ask(settings(&played.url), vec![begun.clone()])[0].as_ref().unwrap().text, "47");
    let body = &played.bodies()[0];
    assert_eq!((&body["continue_final_message"], &body["add_generation_prompt"]), (&json!(true), &json!(false)));
    let error = endpoint_error(ask(other, vec![begun])[0].clone());
    assert!(matches!(error, EndpointError::Unsupported { dialect: Dialect::Lmdeploy, .. }), "{error}");
}

#[test]
fn the_likelihood_of_the_expected_answer_is_a_second_request() {
    let played = Played::vllm(|asked| match asked.body["prompt_logprobs"].is_null() {
        true => good("47"),
        false => {
            let mut logprobs = vec![json!(null)];
            logprobs.extend(
                (1..22).map(|at| json!({"5": {"logprob": if at < 20 { -9.0 } else { -0.25 * f64::from(at - 19) }}})),
            );
            json_reply(
                200,
                &json!({"model": "m", "prompt_logprobs": logprobs, "usage": {"prompt_tokens": 22},
                "choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": "length"}]}),
            )
        }
    });
    let mut with_nll = settings(&played.url);
    with_nll.answer_nll = true;
    let answer = ask(with_nll, vec![item("a")]).remove(0).unwrap();
    assert_eq!(answer.answer_nll, Some(0.375));
    let body = &played.bodies()[1];
    assert_eq!((&body["stream"], &body["messages"][1]["content"]), (&json!(false), &json!("47")));
    assert!(body.get("stream_options").is_none());
}

#[test]
fn a_bin_longer_than_the_server_takes_is_refused_before_anything_runs() {
    let played = Played::vllm(|_| good("47"));
    let endpoint = runtime().block_on(connect(settings(&played.url))).unwrap();
    assert_eq!(endpoint.accept_bins(&[Bin(512), Bin(4096)]), Ok(()));
    let error = endpoint.accept_bins(&[Bin(512), Bin(8192)]).unwrap_err();
    assert_eq!(error.to_string(), "bin 8K is longer than the 4096 tokens that the server takes for `m`");
    assert!(error.hints()[0].contains("4K"));
    assert_eq!(endpoint.resolved().max_model_len.value, Some(4096));
}

#[test]
fn models_and_settings_that_cannot_be_meant_are_named() {
    let played = Played::vllm(|_| good("47"));
    let error = |change: &dyn Fn(&mut EndpointSettings)| {
        let mut settings = settings(&played.url);
        change(&mut settings);
        runtime().block_on(connect(settings)).err().unwrap()
    };
    let missing = error(&|settings| settings.model = Some("n".into()));
    assert_eq!(missing.to_string(), "the server has no model `n`; it serves m");
    let unset = error(&|settings| settings.api_key_env = Some("UNSET_KEY".into()));
    assert!(unset.to_string().contains("`UNSET_KEY`"), "{unset}");
    let salt = error(&|settings| {
        (settings.dialect, settings.prefix_cache) = (Some(Dialect::Openai), Some(PrefixCache::Salt));
    });
    assert!(salt.to_string().starts_with("openai cannot keep a request from the prefix cache"), "{salt}");
    let gone = runtime().block_on(connect(settings("http://127.0.0.1:1"))).err().unwrap();
    assert!(gone.to_string().starts_with("no answer from the server after 2 attempts"), "{gone}");
    let nowhere = runtime().block_on(connect(settings("http://kvgauge.invalid:8000"))).err().unwrap();
    assert!(matches!(nowhere, TargetError::Endpoint(EndpointError::Transport { attempts: 2, .. })), "{nowhere}");
}

const CANARY: &str = "sk-canary-7f3a9b1c\"5d";

#[test]
fn no_secret_is_in_any_error_answer_or_debug_form() {
    let heads = std::sync::Mutex::new(Vec::new());
    for scenario in 0..6 {
        let echo = serde_json::to_string(CANARY).unwrap();
        let played = Played::vllm(move |asked| match scenario {
            0 => json_reply(401, &json!({"error": {"message": format!("bad key {CANARY}")}})),
            1 => super::played::reply(400, "", format!("{{\"error\":{{\"message\":{echo}}}}}").as_bytes()),
            2 => events(&[&said(CANARY), "{\"error\":{\"message\":\"dead\"}}"]),
            3 => super::played::reply(200, "content-type: text/html\r\n", asked.head.as_bytes()),
            4 => good(&format!("The number is {CANARY}")),
            _ => vec![Step::Reset],
        });
        let mut settings = settings(&played.url);
        settings.api_key_env = Some("CANARY_KEY".into());
        settings.headers = BTreeMap::from([("x-team-key".into(), "CANARY_KEY".into())]);
        let shown = runtime().block_on(async {
            let variable = |name: &str| (name == "CANARY_KEY").then(|| CANARY.to_owned());
            let endpoint = connect_with(settings.clone(), &variable).await.unwrap();
            let answers = complete(&endpoint, vec![item("a")]).await;
            let hints: Vec<String> =
                answers.iter().filter_map(|answer| answer.as_ref().err()).flat_map(Hint::hints).collect();
            let text: Vec<String> =
                answers.iter().filter_map(|answer| answer.as_ref().err()).map(ToString::to_string).collect();
            format!("{answers:?} {text:?} {hints:?} {:?} {settings:?} {:?}", endpoint.decoding(), endpoint.resolved())
        });
        assert!(!shown.contains("canary-7f3a"), "scenario {scenario}: {shown}");
        heads.lock().unwrap().extend(played.asked.lock().unwrap().iter().map(|asked| asked.head.clone()));
    }
    let heads = heads.into_inner().unwrap();
    assert!(heads.iter().all(|head| head.matches("canary-7f3a").count() == 2), "both headers carry it: {heads:?}");
}

#[test]
fn a_refused_key_stops_the_whole_run_at_once_and_leaves_the_item_open() {
    let played = Played::vllm(|asked| match asked.place {
        0 => good("47"),
        _ => json_reply(403, &json!({"error": "no"})),
    });
    let (dir, suite) = (tempfile::tempdir().unwrap(), Suite::builtin("smoke").unwrap());
    let (plan, arm) = (suite.plan(), Arm::baseline("auto"));
    let mut settings = settings(&played.url);
    settings.ignore_usage = true;
    let (error, finished) = runtime().block_on(async {
        let endpoint = connect(settings).await.unwrap();
        let manifest = run_identity::manifest(&suite, &plan, &arm, &endpoint, BTreeMap::new());
        let run = ArmRun { suite: &suite, plan: &plan, manifest, dir: dir.path() };
        let finished = std::sync::atomic::AtomicUsize::new(0);
        let count = |event: RunEvent| {
            if matches!(event, RunEvent::ItemFinished { .. }) {
                finished.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        };
        let error = run_arm(run, &endpoint, &count, &Arc::new(CancelFlag::default())).await.unwrap_err();
        (error, finished.into_inner())
    });
    assert!(
        matches!(&error, RunError::Target(TargetError::Endpoint(EndpointError::Unauthorized { status: 403, .. }))),
        "{error}"
    );
    assert!(error.hints()[0].contains("api_key_env"));
    assert!(finished <= 1, "nothing is recorded of an item that was refused");
    assert!(played.bodies().len() < 10, "{} requests", played.bodies().len());
}

#[test]
fn what_a_server_counts_meanwhile_is_recorded_and_a_restart_is_seen() {
    let (dir, suite) = (tempfile::tempdir().unwrap(), Suite::builtin("smoke").unwrap());
    let plan = suite.plan();
    let run = |second: &'static str| {
        let played = Played::new(move |asked| match asked.line.as_str() {
            "GET /v1/models" => json_reply(200, &models("vllm", 4096)),
            "GET /version" => json_reply(200, &json!({"version": "0.33.0"})),
            "GET /metrics" => {
                let tokens = if asked.place == 0 { "1000" } else { second };
                let page = format!(
                    "vllm:generation_tokens_total{{engine=\"0\"}} {tokens}\nvllm:num_preemptions_total {}\n",
                    7 * asked.place
                );
                reply(200, "content-type: text/plain\r\n", page.as_bytes())
            }
            _ => good("47"),
        });
        let mut settings = settings(&played.url);
        settings.ignore_usage = true;
        let folder = dir.path().join(second);
        runtime().block_on(async {
            let endpoint = connect(settings).await.unwrap();
            let arm = Arm::baseline("auto");
            let manifest = run_identity::manifest(&suite, &plan, &arm, &endpoint, BTreeMap::new());
            let run = ArmRun { suite: &suite, plan: &plan, manifest, dir: &folder };
            run_arm(run, &endpoint, &|_| (), &Arc::new(CancelFlag::default())).await.unwrap();
        });
        Record::read(&folder).unwrap().manifest.checks
    };
    let seen = |checks: &[Check]| -> Vec<(String, CheckStatus, String)> {
        checks.iter().map(|it| (it.fact.clone(), it.status, it.observed_in_words())).collect()
    };
    let (rose, began_anew) = (run("1500"), run("80"));
    assert_eq!(
        seen(&rose),
        [
            ("same_server".into(), CheckStatus::Confirmed, "counters only rose (/metrics)".into()),
            ("preemptions".into(), CheckStatus::Confirmed, "7 (/metrics)".into()),
        ]
    );
    assert_eq!((began_anew.len(), began_anew[0].status), (1, CheckStatus::Contradicted));
}

#[test]
fn a_server_that_becomes_another_one_makes_everything_after_it_invalid() {
    let with = |model: &str, fingerprint: &str| {
        let chunk = json!({"model": model, "system_fingerprint": fingerprint,
            "choices": [{"index": 0, "delta": {"content": "47"}, "finish_reason": "stop"}]});
        events(&[&chunk.to_string(), &usage(20, 2), "[DONE]"])
    };
    let second: [(&str, &'static str, &'static str); 2] =
        [("system_fingerprint", "m", "fp-2"), ("model", "other", "fp-1")];
    for (changed, model, fingerprint) in second {
        let played = Played::vllm(move |asked| match asked.place {
            0 => with("m", "fp-1"),
            1 => with(model, fingerprint),
            _ => with("m", "fp-1"),
        });
        let answers = ask(settings(&played.url), vec![item("a"), item("b"), item("c")]);
        assert!(answers[0].is_ok());
        for answer in &answers[1..] {
            let error = endpoint_error(answer.clone());
            assert!(matches!(error, EndpointError::IdentityChanged { what, .. } if what == changed), "{error}");
            assert!(error.is_invalid() && !error.stops_run());
        }
        assert_eq!(played.bodies().len(), 2, "nothing more is asked");
    }
    // Restarted with another version while it was away.
    let played = Played::new(|asked| match (asked.line.as_str(), asked.place) {
        ("GET /v1/models", _) => json_reply(200, &models("vllm", 4096)),
        ("GET /version", 0) => json_reply(200, &json!({"version": "0.33.0"})),
        ("GET /version", _) => json_reply(200, &json!({"version": "0.34.0"})),
        (_, 0) => vec![Step::Reset],
        _ => good("47"),
    });
    let error = endpoint_error(ask(settings(&played.url), vec![item("a")]).remove(0));
    assert!(matches!(error, EndpointError::IdentityChanged { what: "version", .. }), "{error}");
    let played = Played::vllm(move |asked| with("m", if asked.place == 0 { "fp-1" } else { "fp-2" }));
    let mut allowed = settings(&played.url);
    allowed.allow_identity_change = true;
    assert!(ask(allowed, vec![item("a"), item("b")]).iter().all(Result::is_ok));
}

#[test]
fn replicas_share_the_load_and_stand_in_for_each_other() {
    let (dead, alive) = (Played::vllm(|_| vec![Step::Reset]), Played::vllm(|_| good("47")));
    let mut both = settings(&dead.url);
    both.url.push(kvgauge::targets::openai::BaseUrl::new(&alive.url));
    let answers = ask(both, (0..6).map(|place| item(&format!("i{place}"))).collect());
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert!(!dead.bodies().is_empty() && alive.bodies().len() == 6);
    let other = Played::new(|_| json_reply(200, &json!({"data": [{"id": "n", "owned_by": "vllm"}]})));
    let mut different = settings(&alive.url);
    different.url.push(kvgauge::targets::openai::BaseUrl::new(&other.url));
    let error = runtime().block_on(connect(different)).err().unwrap();
    assert!(error.to_string().contains("the replicas differ"), "{error}");
}

#[test]
fn a_stop_ends_a_hanging_request_and_keeps_what_is_answered() {
    let played = Played::vllm(|asked| if asked.place == 0 { good("47") } else { vec![Step::Hang] });
    let mut patient = settings(&played.url);
    patient.first_byte_timeout_s = 600;
    runtime().block_on(async {
        let endpoint = connect(patient).await.unwrap();
        let watch = Watch { on_event: &|_| (), cancel: Arc::new(CancelFlag::default()) };
        let cancel = Arc::clone(&watch.cancel);
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(300)).await;
            cancel.cancel();
        });
        let started = Instant::now();
        let answers = endpoint.complete(vec![item("a"), item("b"), item("c")], &watch).await;
        assert!(started.elapsed() < Duration::from_secs(5));
        assert!(answers[0].is_ok());
        assert_eq!(answers[1..], [Err(TargetError::Cancelled), Err(TargetError::Cancelled)]);
    });
}

#[test]
fn a_rate_limit_spaces_requests() {
    let played = Played::vllm(|_| good("47"));
    let mut slow = settings(&played.url);
    slow.max_requests_per_minute = Some(600);
    let started = Instant::now();
    assert!(ask(slow, (0..5).map(|place| item(&format!("i{place}"))).collect()).iter().all(Result::is_ok));
    assert!(started.elapsed() >= Duration::from_millis(400), "{:?}", started.elapsed());
}
