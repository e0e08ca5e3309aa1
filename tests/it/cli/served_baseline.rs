//! `check --against` with servers: the baseline's own is never asked, and an engine of another version is refused before a question is.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

use super::Desk;
use crate::dialogue::tokenizer_json;
use crate::openai::played::{Asked, Played, events, finished, json_reply, models, reply, said, usage};

const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                        {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

const SUITE: &str = "schema_version = 1\nname = \"served\"\ndescription = \"\"\n\
                     [[bins]]\ncontext = \"2K\"\nsamples = 6\n[[tasks]]\nkind = \"needle\"\n";

/// A vLLM server with a cache of `dtype`, and how many answers it gave.
fn server(dtype: &'static str, version: &'static str) -> (Played, Arc<AtomicU32>) {
    let answers = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&answers);
    let played = Played::new(move |asked: &Asked| match asked.line.as_str() {
        "GET /v1/models" => json_reply(200, &models("vllm", 4096)),
        "GET /version" => json_reply(200, &json!({ "version": version })),
        "GET /metrics" => {
            let page = format!(
                "vllm:cache_config_info{{cache_dtype=\"{dtype}\",num_gpu_blocks=\"100\",block_size=\"16\"}} 1.0\n"
            );
            reply(200, "content-type: text/plain\r\n", page.as_bytes())
        }
        line if line.ends_with("completions") => {
            // What is asked to compare counts of tokens is shorter than any question.
            counted.fetch_add(u32::from(asked.body.to_string().len() > 1000), Ordering::Relaxed);
            events(&[&said("I do not know."), &finished("stop"), &usage(20, 3), "[DONE]"])
        }
        _ => json_reply(404, &json!({})),
    });
    (played, answers)
}

fn config(desk: &Desk, arms: &[(&str, &Played)]) {
    let mut text = format!(
        "[suite]\nname = \"served.toml\"\n[model]\nname = \"{}\"\n[server]\nignore_usage = true\nconcurrency = 2\n",
        desk.path("tiny").display()
    );
    for (dtype, played) in arms {
        text += &format!("[[arm]]\nkv_cache_dtype = \"{dtype}\"\nurl = \"{}\"\n", played.url);
    }
    desk.write("kvgauge.toml", &text);
}

#[test]
fn the_baselines_server_is_not_asked_and_another_engine_is_refused() {
    let desk = Desk::new();
    fs::create_dir(desk.path("tiny")).unwrap();
    desk.write("tiny/config.json", "{}");
    desk.write("tiny/tokenizer.json", &tokenizer_json(255).to_string());
    desk.write("tiny/chat_template.jinja", TEMPLATE);
    desk.write("served.toml", SUITE);
    let [(base, base_answers), (fp8, fp8_answers)] =
        [("bfloat16", "0.33.0"), ("fp8", "0.33.0")].map(|(dtype, version)| server(dtype, version));
    config(&desk, &[("bfloat16", &base), ("fp8", &fp8)]);
    let first = desk.run(&["check", "--run-dir", "first"]);
    assert!(desk.path("first/report.html").is_file(), "{}", first.stderr);
    assert_eq!(base_answers.load(Ordering::Relaxed), 12, "the baseline and its A/A arm");
    let accepted = desk.run(&["baseline", "accept", "first", "--name", "n"]);
    assert!(accepted.stdout.contains("with its A/A arm"), "{}\n{}", accepted.stdout, accepted.stderr);

    // The baseline's server has gone; nobody asks for it.
    let asked = base.asked.lock().unwrap().len();
    fp8_answers.store(0, Ordering::Relaxed);
    let against = desk.run(&["check", "--run-dir", "run", "--against", "n"]);
    assert_eq!(against.code, first.code, "{}", against.stderr);
    assert_eq!((base.asked.lock().unwrap().len(), fp8_answers.load(Ordering::Relaxed)), (asked, 6));
    let comparison = |run: &str| -> Value {
        let text = fs::read(desk.path(run).join("comparison.json")).unwrap();
        serde_json::from_slice(&text).unwrap()
    };
    assert_eq!(comparison("run")["verdict"], comparison("first")["verdict"]);
    for arm in ["bfloat16", "bfloat16.aa"] {
        let manifest = fs::read_to_string(desk.path("run").join(arm).join("manifest.json")).unwrap();
        assert!(manifest.contains("\"accepted\""), "{arm}");
    }
    let again = desk.run(&["check", "--run-dir", "run", "--against", "n"]);
    assert!(again.stderr.contains("no prompt was run"), "{}", again.stderr);

    let (newer, newer_answers) = server("fp8", "0.34.0");
    config(&desk, &[("bfloat16", &base), ("fp8", &newer)]);
    let refused = desk.run(&["check", "--run-dir", "newer", "--against", "n"]);
    assert_eq!(refused.code, Some(3), "{}", refused.stderr);
    assert!(
        refused.stderr.contains("resolved.engine: `vllm 0.33.0` in the baseline, `vllm 0.34.0` in this run"),
        "{}",
        refused.stderr
    );
    assert_eq!(newer_answers.load(Ordering::Relaxed), 0, "a question was asked before the refusal");
    assert!(!desk.path("newer/bfloat16/samples.jsonl").exists());
}
