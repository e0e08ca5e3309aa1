//! `kvgauge plan`: what fits, how many pairs, and what is said where something is missing.

use serde_json::Value;

use super::Desk;

const LLAMA_31_8B: &str = r#"{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072, "tie_word_embeddings": false, "torch_dtype": "bfloat16"}"#;

fn document(desk: &Desk, args: &[&str]) -> Value {
    let said = desk.run(&[&["plan", "--json"], args].concat());
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    serde_json::from_str(&said.stdout).unwrap()
}

#[test]
fn a_config_and_its_numbers_give_the_same_answer() {
    let desk = Desk::new();
    desk.write("config.json", LLAMA_31_8B);
    let by_config = ["--model", "config.json"];
    let by_numbers = ["--layers", "32", "--kv-heads", "8", "--head-dim", "128", "--parameters", "8030261248"];
    let gpu = ["--gpu-memory", "24GiB", "--kv-cache-dtype", "bfloat16,fp8,fp8", "--lengths", "64K,32K"];
    for model in [&by_config[..], &by_numbers] {
        let plan = document(&desk, &[model, &gpu].concat());
        let dtypes = plan["memory"]["dtypes"].as_array().unwrap();
        assert_eq!(dtypes.len(), 2, "a dtype named twice is planned once");
        let fits = |dtype: &Value| -> Vec<bool> {
            dtype["lengths"].as_array().unwrap().iter().map(|length| length["fits"].as_bool().unwrap()).collect()
        };
        assert_eq!((fits(&dtypes[0]), fits(&dtypes[1])), (vec![true, false], vec![true, true]));
        assert_eq!(dtypes[0]["lengths"][0]["cache_bytes"], 4_u64 << 30);
        assert_eq!(plan["power"], Value::Null);
    }
    let said = desk.run(&["plan", "--model", "config.json", "--gpu-memory", "24GiB"]);
    for part in ["8.03 billion parameters", "14.96 GiB", "int8_per_token_head", "✓ yes", "✗ no", "16.00 GiB"] {
        assert!(said.stdout.contains(part), "no `{part}` in:\n{}", said.stdout);
    }
    let eight_bit = document(&desk, &["--model", "config.json", "--gpu-memory", "24GiB", "--weights-dtype", "fp8"]);
    let longest = |dtype: usize| eight_bit["memory"]["dtypes"][dtype]["lengths"][3]["fits"].clone();
    assert_eq!((longest(0), longest(1)), (Value::Bool(false), Value::Bool(true)));
}

#[test]
fn pairs_are_planned_from_assumptions_or_from_a_run() {
    let desk = Desk::new();
    let one = document(&desk, &["--power", "--flip-rate", "0.05", "--drop", "0.05", "--bins", "1"]);
    let needs = &one["power"]["rows"][0]["needs"];
    assert_eq!((&needs[0]["to_find_the_drop"], &needs[0]["to_pass_without_a_drop"]), (&246.into(), &124.into()));
    assert_eq!(one["memory"], Value::Null);
    let many = document(&desk, &["--power", "--flip-rate", "0.05", "--bins", "5", "--groups", "3", "--arms", "2"]);
    assert_eq!(many["power"]["cells"], 30);
    let pairs = |plan: &Value| plan["power"]["rows"][0]["needs"][0]["to_find_the_drop"].as_u64().unwrap();
    assert!(pairs(&many) > pairs(&one));

    let checked = desk.dry_run(&["--damage", "loop@2K=1", "--kv-cache-dtype", "fp8_e4m3"]);
    assert!(desk.path("run/run.json").is_file(), "{}", checked.stderr);
    let measured = document(&desk, &["--from", "run"]);
    let rows = measured["power"]["rows"].as_array().unwrap();
    assert_eq!(measured["power"]["cells"].as_u64(), Some(rows.len() as u64));
    let rate = |row: &Value| row["flip_rate"].as_f64().unwrap_or(0.0);
    let worst = rows.iter().max_by(|a, b| rate(a).total_cmp(&rate(b))).unwrap();
    assert_eq!(worst["bin"], "2K");
    assert!(rate(worst) > 0.0, "{worst}");
    assert!(rows.iter().filter(|row| row["bin"] == "512").all(|row| rate(row) == 0.0));
    let said = desk.run(&["plan", "--from", "run"]);
    assert!(said.stdout.contains("fp8_e4m3") && said.stdout.contains("80 %"), "{}", said.stdout);
}

#[test]
fn what_is_missing_or_absurd_is_named() {
    let desk = Desk::new();
    desk.write("config.json", LLAMA_31_8B);
    desk.write("broken.json", "{\"num_hidden_layers\": 32");
    let model = ["plan", "--model", "config.json"];
    let with = |args: &[&'static str]| -> Vec<&'static str> { [&model, args].concat() };
    let cases: &[(Vec<&str>, &[&str])] = &[
        (vec!["plan"], &["nothing to plan", "--gpu-memory 24GiB", "--power"]),
        (vec!["plan", "--layers", "32"], &["`--layers`", "`--kv-heads`"]),
        (vec!["plan", "--model", "absent"], &["`absent`", "--layers --kv-heads"]),
        (vec!["plan", "--model", "broken.json"], &["config.json: EOF", "--layers"]),
        (with(&["--kv-cache-dtype", "fp8_e4m2"]), &["`fp8_e4m2`", "did you mean `fp8_e4m3`?"]),
        (with(&["--weights-dtype", "bfloat61"]), &["`bfloat61`", "did you mean `bfloat16`?"]),
        (with(&["--tensor-parallel", "3"]), &["32 attention heads", "3 ranks"]),
        (with(&["--kv-cache-dtype", "fp8_ds_mla"]), &["`fp8_ds_mla`", "bfloat16"]),
        (vec!["plan", "--from", "absent"], &["absent"]),
    ];
    for (args, parts) in cases {
        let said = desk.run(args);
        let code = if args.contains(&"--from") { said.code.unwrap() } else { 2 };
        assert_ne!(code, 0);
        said.expect_error(code, parts);
    }
    for refused in [&["--gpu-memory", "24"][..], &["--layers", "3"], &["--lengths", "0"], &["--drop", "5", "--power"]] {
        assert_eq!(desk.run(&with(refused)).code, Some(2), "{refused:?}");
    }
}

#[test]
fn notes_say_what_is_not_counted_and_nothing_of_the_file_reaches_the_terminal_raw() {
    let text = LLAMA_31_8B.replace("llama", "x\\u001b[31m\\u0007");
    let desk = Desk::new();
    desk.write("config.json", &text);
    let said = desk.run(&["plan", "--model", "config.json", "--lengths", "256K"]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert!(!said.stdout.contains('\u{1b}') && !said.stdout.contains('\u{7}'));
    assert!(said.stdout.contains("made for 128K tokens"), "{}", said.stdout);
}
