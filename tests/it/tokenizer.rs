//! The tokenizer against the real vocabulary of SmolLM2-135M-Instruct and against ids from other software.

#![expect(clippy::unwrap_used, reason = "helpers of tests, too, may fail loudly")]

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use kvgauge::hint::Hint;
use kvgauge::tokenizer::{GgufVocab, TokenCounter, Tokenizer, TokenizerError, UNCOUNTABLE_TOKENS};
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::json;

#[derive(Deserialize)]
struct Reference {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    text: String,
    token_ids: Vec<u32>,
    greedy_token_ids: Vec<u32>,
    greedy_text: String,
}

/// The vocabulary without what follows from the rest: token `leading_tokens.len() + i` is the result of merge `i`.
#[derive(Deserialize)]
struct CompactVocab {
    model: String,
    pre: String,
    bos_id: u32,
    eos_id: u32,
    add_bos: bool,
    chat_template: String,
    control_tokens: usize,
    leading_tokens: Vec<String>,
    merges: Vec<String>,
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/smollm2_135m_instruct").join(name)
}

fn read_fixture<T: for<'de> Deserialize<'de>>(name: &str) -> T {
    serde_json::from_slice(&std::fs::read(fixture(name)).unwrap()).unwrap()
}

fn smollm2_vocab() -> GgufVocab {
    let compact: CompactVocab = read_fixture("vocab.json");
    let mut tokens = compact.leading_tokens;
    tokens.extend(compact.merges.iter().map(|merge| merge.replace(' ', "")));
    let token_types = (0..tokens.len()).map(|id| if id < compact.control_tokens { 3 } else { 1 }).collect();
    GgufVocab {
        model: compact.model,
        pre: compact.pre,
        tokens,
        token_types,
        merges: compact.merges,
        scores: None,
        bos_id: Some(compact.bos_id),
        eos_id: Some(compact.eos_id),
        add_bos: Some(compact.add_bos),
        chat_template: Some(compact.chat_template),
    }
}

/// A model and its oracle: the same vocabulary with one more special token, which no test text contains and whose space
/// voids the proof, so that the oracle encodes every text as a whole.
struct Pair {
    name: &'static str,
    proven: Tokenizer,
    oracle: Tokenizer,
}

impl Pair {
    fn new(name: &'static str) -> Self {
        let vocab = GgufVocab { pre: name.into(), ..smollm2_vocab() };
        let mut with_space = vocab.clone();
        with_space.tokens.push("\u{e000} \u{e001}".into());
        with_space.token_types.push(3);
        let pair = Self {
            name,
            proven: Tokenizer::from_gguf_vocab(vocab).unwrap(),
            oracle: Tokenizer::from_gguf_vocab(with_space).unwrap(),
        };
        assert!(pair.proven.is_additive_at("a", " b") && !pair.oracle.is_additive_at("a", " b"));
        pair
    }
}

static SMOLLM2: LazyLock<Tokenizer> = LazyLock::new(|| Tokenizer::from_gguf_vocab(smollm2_vocab()).unwrap());

static SMOLLM2_PAIR: LazyLock<Pair> = LazyLock::new(|| Pair::new("smollm"));

/// The same vocabulary under other ways to cut text.
static OTHER_PAIRS: LazyLock<Vec<Pair>> =
    LazyLock::new(|| ["gpt-2", "default", "llama-bpe", "qwen2"].map(Pair::new).into());

/// The pieces in which SmolLM2's folder on the hub differs from the GGUF file: tokenizer.json and two configurations.
fn write_hf_dir(dir: &Path) {
    let vocab = smollm2_vocab();
    let ids: serde_json::Map<String, serde_json::Value> =
        vocab.tokens.iter().enumerate().map(|(id, token)| (token.clone(), id.into())).collect();
    let added: Vec<_> = (vocab.tokens.iter().take(17).enumerate())
        .map(|(id, token)| {
            json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true})
        })
        .collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let tokenizer = json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0},
        "padding": null,
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": true}, byte_level]},
        "post_processor": null,
        "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": "<|endoftext|>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": ids, "merges": vocab.merges},
    });
    let config = json!({
        "bos_token": {"content": "<|im_start|>", "lstrip": false},
        "eos_token": "<|im_end|>",
        "chat_template": [{"name": "tool_use", "template": "wrong"}, {"name": "default", "template": vocab.chat_template}],
    });
    std::fs::write(dir.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    std::fs::write(dir.join("tokenizer_config.json"), config.to_string()).unwrap();
    std::fs::write(dir.join("generation_config.json"), json!({"eos_token_id": [2, 0]}).to_string()).unwrap();
    std::fs::write(dir.join("config.json"), json!({"eos_token_id": 2}).to_string()).unwrap();
}

#[test]
fn ids_equal_those_of_other_software_in_every_case() {
    let reference: Reference = read_fixture("reference.json");
    assert_eq!(reference.cases.len(), 3);
    for case in &reference.cases {
        assert_eq!(SMOLLM2.encode(&case.text, true).unwrap(), case.token_ids, "{}", case.name);
        assert_eq!(SMOLLM2.decode(&case.token_ids, false), case.text, "{}", case.name);
        assert_eq!(SMOLLM2.decode(&case.greedy_token_ids, true), case.greedy_text, "{}", case.name);
        assert_eq!(SMOLLM2.count(&case.text), case.token_ids.len(), "{}", case.name);
    }
}

#[test]
fn the_chat_case_is_rendered_and_encoded_as_elsewhere() {
    let reference: Reference = read_fixture("reference.json");
    let case = reference.cases.iter().find(|case| case.name == "chat").unwrap();
    let messages = [("user", "List three uses of a kettle as a JSON array of strings.")];
    assert_eq!(SMOLLM2.render_chat(&messages, true).unwrap(), case.text);
    assert_eq!(SMOLLM2.encode_chat(&messages, true).unwrap(), case.token_ids);
}

#[test]
fn a_folder_and_a_gguf_file_of_one_model_agree() {
    let dir = tempfile::tempdir().unwrap();
    write_hf_dir(dir.path());
    let folder = Tokenizer::from_hf_dir(dir.path()).unwrap();
    let reference: Reference = read_fixture("reference.json");
    for case in &reference.cases {
        assert_eq!(folder.encode(&case.text, true).unwrap(), case.token_ids, "{}", case.name);
    }
    let messages = [("system", "Be brief."), ("user", "Hällo, 世界 12345?")];
    assert_eq!(folder.encode_chat(&messages, true).unwrap(), SMOLLM2.encode_chat(&messages, true).unwrap());
    assert_eq!(folder.eos_ids(), [0, 2]);
    assert_eq!(folder.eos_ids(), SMOLLM2.eos_ids());
    assert_eq!((folder.vocab_size(), folder.bos_id()), (49_152, Some(1)));
    assert_eq!(folder.template_hash(), SMOLLM2.template_hash());
    assert!(folder.is_additive_at(" One.", "\ntwo"), "the proof covers the folder's own pre-tokenizer");

    std::fs::write(dir.path().join("chat_template.jinja"), "{{ messages[0].content }}").unwrap();
    let changed = Tokenizer::from_hf_dir(dir.path()).unwrap();
    assert_eq!(changed.render_chat(&[("user", "x")], true).unwrap(), "x");
    assert_eq!(changed.vocab_hash(), folder.vocab_hash());
    assert_ne!(changed.fingerprint(), folder.fingerprint());
}

#[test]
fn the_chat_template_is_the_models_own() {
    let prompt = SMOLLM2.render_chat(&[("user", "Hi <b>&</b>")], true).unwrap();
    assert_eq!(
        prompt,
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n\
         <|im_start|>user\nHi <b>&</b><|im_end|>\n<|im_start|>assistant\n"
    );
    let ids = SMOLLM2.encode_chat(&[("user", "Hi <b>&</b>")], true).unwrap();
    assert_eq!(SMOLLM2.decode(&ids, false), prompt);
    assert_eq!(SMOLLM2.count_chat(&[("user", "Hi <b>&</b>")]), ids.len());
    let with_system = SMOLLM2.render_chat(&[("system", "S"), ("user", "U")], false).unwrap();
    assert_eq!(with_system, "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n");
}

#[test]
fn bos_stands_in_front_exactly_once() {
    for (template, written) in
        [("{{ bos_token }}{{ messages[0].content }}", true), ("{{ messages[0].content }}", false)]
    {
        for add_bos in [true, false] {
            let vocab = GgufVocab {
                bos_id: Some(0),
                add_bos: Some(add_bos),
                chat_template: Some(template.into()),
                ..smollm2_vocab()
            };
            let tokenizer = Tokenizer::from_gguf_vocab(vocab).unwrap();
            let messages = [("user", "Hello there")];
            let ids = tokenizer.encode_chat(&messages, true).unwrap();
            assert_eq!(
                ids.iter().filter(|id| **id == 0).count(),
                usize::from(written || add_bos),
                "{template} {add_bos}"
            );
            assert_eq!(ids[0] == 0, written || add_bos);
            assert_eq!(tokenizer.count_chat(&messages), ids.len());
        }
    }
}

#[test]
fn special_tokens_act_only_where_they_are_allowed() {
    let text = "a<|im_end|>b";
    assert_eq!(SMOLLM2.encode(text, true).unwrap().iter().filter(|id| **id == 2).count(), 1);
    let literal = SMOLLM2.encode(text, false).unwrap();
    assert!(!literal.contains(&2));
    assert_eq!(SMOLLM2.decode(&literal, true), text);
    assert_eq!(SMOLLM2.find_special(text), Some("<|im_end|>"));
    assert!(!SMOLLM2.contains_special("a <|im_en d|> b"));
    assert_eq!(SMOLLM2.decode(&SMOLLM2.encode(text, true).unwrap(), true), "ab");
}

#[test]
fn decoding_is_lossy_and_total() {
    let half_a_character = SMOLLM2.encode("世", true).unwrap();
    assert!(half_a_character.len() > 1, "the case needs a character of several tokens");
    assert_eq!(SMOLLM2.decode(&half_a_character[..1], true), "\u{fffd}");
    assert_eq!(SMOLLM2.decode(&[u32::MAX, 49_152], false), "");
}

#[test]
fn what_is_not_built_in_is_refused_by_name() {
    let vocab = GgufVocab { pre: "bloom".into(), ..smollm2_vocab() };
    let error = Tokenizer::from_gguf_vocab(vocab).unwrap_err();
    assert!(error.to_string().contains("`bloom`"));
    assert!(error.hints()[0].contains("smollm") && error.hints()[0].contains("qwen2"));
    let vocab = GgufVocab { model: "llama".into(), ..smollm2_vocab() };
    let error = Tokenizer::from_gguf_vocab(vocab).unwrap_err();
    assert!(matches!(&error, TokenizerError::UnknownModel { model, .. } if model == "llama"));
}

#[test]
fn contradictory_vocabularies_are_refused() {
    type Damage = fn(&mut GgufVocab);
    let damages: [(&str, Damage); 7] = [
        ("token types", |vocab| vocab.token_types.truncate(10)),
        ("different", |vocab| vocab.tokens[300] = vocab.tokens[301].clone()),
        ("eos_token_id", |vocab| vocab.eos_id = Some(49_152)),
        ("bos_token_id", |vocab| vocab.bos_id = Some(u32::MAX)),
        ("merge 5", |vocab| vocab.merges[5] = "nospace".into()),
        ("merge 7", |vocab| vocab.merges[7] = "zzqqx zzqqy".into()),
        ("0 tokens", |vocab| vocab.tokens.clear()),
    ];
    for (expected, damage) in damages {
        let mut vocab = smollm2_vocab();
        damage(&mut vocab);
        let error = Tokenizer::from_gguf_vocab(vocab).unwrap_err();
        assert!(matches!(error, TokenizerError::Vocabulary { .. }), "{expected}: {error}");
        assert!(error.to_string().contains(expected), "{expected}: {error}");
    }
}

#[test]
fn broken_folders_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let error = Tokenizer::from_hf_dir(dir.path()).unwrap_err();
    assert!(matches!(error, TokenizerError::Read { .. }) && !error.hints().is_empty());
    let path = dir.path().join("tokenizer.json");
    let bpe = |merge: &str| {
        json!({"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": [merge]}})
            .to_string()
    };
    for text in ["", "{}", "[1]", "{\"model\": 5}", &bpe("a b"), &bpe("a"), &bpe("a c")] {
        std::fs::write(&path, text).unwrap();
        let error = Tokenizer::from_hf_dir(dir.path()).unwrap_err();
        assert!(matches!(error, TokenizerError::Malformed { .. }), "{text}: {error}");
    }
    std::fs::File::create(&path).unwrap().set_len(65 << 20).unwrap();
    assert!(matches!(Tokenizer::from_hf_dir(dir.path()).unwrap_err(), TokenizerError::TooLarge { .. }));
}

#[test]
fn what_cannot_be_encoded_fits_no_budget() {
    let spaces = " ".repeat(100_000);
    assert!(matches!(SMOLLM2.encode(&spaces, true), Err(TokenizerError::Encode { .. })));
    assert_eq!(SMOLLM2.count(&spaces), UNCOUNTABLE_TOKENS);
    let vocab = GgufVocab { chat_template: None, ..smollm2_vocab() };
    let without_template = Tokenizer::from_gguf_vocab(vocab).unwrap();
    assert!(matches!(without_template.render_chat(&[], true), Err(TokenizerError::NoChatTemplate)));
    assert_eq!(without_template.count_chat(&[("user", "x")]), UNCOUNTABLE_TOKENS);
}

#[test]
fn the_documented_boundaries_are_as_documented() {
    let sentence = [" The gentle bridge visited the engine with great care.", " The painter slept."];
    let entries = ["\nold-harbor: 4821", "\nnew-harbor: 17"];
    let lines = ["\nIt rained.", "\nIt stopped."];
    assert!(SMOLLM2.is_additive_at(sentence[0], sentence[1]));
    assert!(SMOLLM2.is_additive_at(entries[0], entries[1]) && SMOLLM2.is_additive_at(lines[0], lines[1]));
    assert!(!SMOLLM2.is_additive_at("line\n", "key") && !SMOLLM2.is_additive_at("pain", "ter"));
    assert!(SMOLLM2.is_additive_at("你好。", "世界"));
    for Pair { name, proven: tokenizer, .. } in OTHER_PAIRS.iter() {
        let is_gpt2_like = matches!(*name, "gpt-2" | "default");
        assert!(tokenizer.is_additive_at(sentence[0], sentence[1]), "{name}");
        assert!(tokenizer.is_additive_at(entries[0], entries[1]), "{name}");
        assert_eq!(tokenizer.is_additive_at(lines[0], lines[1]), is_gpt2_like, "{name}");
        assert_eq!(tokenizer.is_additive_at("你好。", "世界"), is_gpt2_like, "{name}");
    }
}

#[test]
fn a_special_token_that_strips_space_voids_the_proof() {
    let dir = tempfile::tempdir().unwrap();
    write_hf_dir(dir.path());
    let path = dir.path().join("tokenizer.json");
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains("\"rstrip\":false"));
    std::fs::write(&path, text.replacen("\"rstrip\":false", "\"rstrip\":true", 1)).unwrap();
    let stripping = Tokenizer::from_hf_dir(dir.path()).unwrap();
    assert!(!stripping.is_additive_at(" One.", " Two."));
    let text = "One <|endoftext|>  two three";
    assert_eq!(stripping.count(text), stripping.encode(text, true).unwrap().len());
}

/// Text as a haystack has it, and worse: words, digits, marks, CJK, every kind of white space, special tokens, emoji.
fn awkward_text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        4 => "[a-zA-Z]{1,8}",
        2 => "[0-9]{1,4}",
        3 => "[ \n\t\r\u{a0}\u{85}\u{3000}\u{2028}]{1,3}",
        3 => "[.,:;'\"!?(){}<>|=+*/#`$-]{1,3}",
        2 => "[你好世界的。，、！？ひカ한]{1,3}",
        1 => "'(s|t|re|ve|m|ll|d|S|LL)",
        1 => Just("<|im_end|>".to_string()),
        1 => Just("<|im_start|>".to_string()),
        1 => "[éüÅñ\u{301}\u{308}\u{1100}\u{1161}½²٣Ⅷ𝟘🙂👩‍🚀ſ]{1,3}",
        1 => "\\PC{1,4}",
    ];
    prop::collection::vec(piece, 0..9).prop_map(|pieces| pieces.concat())
}

/// What generators join: sentences with a leading space and lines with a leading newline.
fn fragment() -> impl Strategy<Value = String> {
    let lead = prop_oneof![Just(""), Just(" "), Just("\n"), Just("\n\n"), Just("  "), Just("\r\n")];
    (lead, awkward_text()).prop_map(|(lead, text)| format!("{lead}{text}"))
}

fn check_sums(pair: &Pair, fragments: &[String]) -> Result<(), TestCaseError> {
    let Pair { name, proven, oracle } = pair;
    let joined = fragments.concat();
    let exact = oracle.encode(&joined, true).unwrap();
    prop_assert_eq!(&proven.encode(&joined, true).unwrap(), &exact, "{}: ids of {:?}", name, &joined);
    prop_assert_eq!(proven.count(&joined), exact.len(), "{}: count of {:?}", name, &joined);
    let borrowed: Vec<&str> = fragments.iter().map(String::as_str).collect();
    prop_assert_eq!(proven.count_joined(&borrowed), exact.len(), "{}: joined {:?}", name, &borrowed);
    for window in fragments.windows(2) {
        let [left, right] = window else { continue };
        if proven.is_additive_at(left, right) {
            let whole = oracle.encode(&format!("{left}{right}"), true).unwrap().len();
            let sum = proven.count_fragment(left) + proven.count_fragment(right);
            prop_assert_eq!(whole, sum, "{}: {:?} + {:?}", name, left, right);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn counts_add_up_on_smollm2(fragments in prop::collection::vec(fragment(), 1..5)) {
        check_sums(&SMOLLM2_PAIR, &fragments)?;
    }

    #[test]
    fn counts_add_up_on_every_pre_tokenizer(fragments in prop::collection::vec(fragment(), 1..4)) {
        for pair in OTHER_PAIRS.iter() {
            check_sums(pair, &fragments)?;
        }
    }

    #[test]
    fn ascii_text_survives_the_round_trip(text in "[ -~\n\t]{0,60}") {
        prop_assert_eq!(SMOLLM2.decode(&SMOLLM2.encode(&text, false).unwrap(), false), text);
    }
}
