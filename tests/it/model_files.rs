//! Model files: the same model in both formats, and damaged, hostile or unsupported ones.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up its input has failed")]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvgauge::engine::{Engine, EngineError, EngineOptions, Model, RopeScaling};
use safetensors::SafeTensors;

fn tiny(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny_models").join(family)
}

fn tiny_llama() -> PathBuf {
    tiny("llama")
}

fn engine(model: Model) -> Engine {
    let (kernel, kv_cache_dtype) = (Some("portable".into()), "float32".into());
    let options = EngineOptions { kernel, kv_cache_dtype, threads: 1, ..EngineOptions::default() };
    Engine::new(Arc::new(model), &options).unwrap()
}

fn logits(model: Model) -> Vec<u32> {
    let mut engine = engine(model);
    let sequence = engine.start(RopeScaling::Default).unwrap();
    let ids: Vec<u32> = (0..90).map(|i| i * 37 % 256).collect();
    let logits = engine.prefill(sequence, &ids, &mut |_| ControlFlow::Continue(())).unwrap();
    logits.iter().map(|logit| logit.to_bits()).collect()
}

/// A tensor on its way into a GGUF file.
#[derive(Clone)]
struct Tensor {
    name: String,
    /// Outermost first.
    shape: Vec<usize>,
    /// 0 for F32, 30 for BF16.
    type_id: u32,
    bytes: Vec<u8>,
}

#[derive(Clone)]
enum Value {
    Text(String),
    Number(u32),
    Float(f32),
    Flags(Vec<bool>),
}

#[derive(Clone)]
struct GgufFile {
    metadata: Vec<(String, Value)>,
    tensors: Vec<Tensor>,
}

impl GgufFile {
    /// A tensor to damage.
    fn tensor(&mut self, name: &str) -> &mut Tensor {
        self.tensors.iter_mut().find(|tensor| tensor.name == name).unwrap()
    }

    fn bytes(&self) -> Vec<u8> {
        let string = |file: &mut Vec<u8>, text: &str| {
            file.extend((text.len() as u64).to_le_bytes());
            file.extend(text.as_bytes());
        };
        let mut file = b"GGUF\x03\0\0\0".to_vec();
        file.extend((self.tensors.len() as u64).to_le_bytes());
        file.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            string(&mut file, key);
            let kind: u32 = match value {
                Value::Number(_) => 4,
                Value::Float(_) => 6,
                Value::Text(_) => 8,
                Value::Flags(_) => 9,
            };
            file.extend(kind.to_le_bytes());
            match value {
                Value::Number(number) => file.extend(number.to_le_bytes()),
                Value::Float(number) => file.extend(number.to_le_bytes()),
                Value::Text(text) => string(&mut file, text),
                Value::Flags(flags) => {
                    file.extend(7_u32.to_le_bytes());
                    file.extend((flags.len() as u64).to_le_bytes());
                    file.extend(flags.iter().map(|flag| u8::from(*flag)));
                }
            }
        }
        let mut data: Vec<u8> = Vec::new();
        for tensor in &self.tensors {
            string(&mut file, &tensor.name);
            file.extend((tensor.shape.len() as u32).to_le_bytes());
            tensor.shape.iter().rev().for_each(|dim| file.extend((*dim as u64).to_le_bytes()));
            file.extend(tensor.type_id.to_le_bytes());
            file.extend((data.len() as u64).to_le_bytes());
            data.extend(&tensor.bytes);
            data.resize(data.len().next_multiple_of(32), 0);
        }
        file.resize(file.len().next_multiple_of(32), 0);
        file.extend(data);
        file
    }
}

fn config_of(folder: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap()
}

/// Rewrites a tiny folder as other software converts it: GGUF names; Q and K rows of `llama` and `smollm3`, with
/// their biases, interleaved inside each head; vectors in F32, with 1 added to Gemma's norms; matrices in BF16.
fn converted(folder: &Path) -> GgufFile {
    let config = config_of(folder);
    let architecture = match config["model_type"].as_str().unwrap() {
        "mistral" => "llama",
        "gemma3_text" => "gemma3",
        other => other,
    };
    let head_dim = config["head_dim"].as_u64().unwrap_or(32) as usize;
    let is_gemma = architecture == "gemma3";
    let interleaved = ["llama", "smollm3"].contains(&architecture);
    let file = std::fs::read(folder.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let mut names = tensors.names();
    names.sort_unstable();
    let convert = |name: &str| {
        let view = tensors.tensor(name).unwrap();
        let mut bytes = view.data().to_vec();
        if interleaved && (name.contains("q_proj") || name.contains("k_proj")) {
            let rows: Vec<&[u8]> = view.data().chunks(view.shape()[1..].iter().product::<usize>() * 2).collect();
            let interleaved = rows
                .chunks(head_dim)
                .flat_map(|head| (0..head_dim / 2).flat_map(move |pair| [head[pair], head[pair + head_dim / 2]]));
            bytes = interleaved.collect::<Vec<_>>().concat();
        }
        let is_vector = view.shape().len() == 1;
        if is_vector {
            let added = if is_gemma && name.contains("norm") { 1.0 } else { 0.0 };
            let values = bytes.as_chunks().0.iter().map(|code| half::bf16::from_le_bytes(*code).to_f32() + added);
            bytes = values.flat_map(f32::to_le_bytes).collect();
        }
        let type_id = if is_vector { 0 } else { 30 };
        Tensor { name: gguf_name(name, is_gemma), shape: view.shape().to_vec(), type_id, bytes }
    };
    let mut tensors: Vec<Tensor> = names.into_iter().map(convert).collect();
    tensors.extend(llama3_factors(&config["rope_parameters"], head_dim));
    GgufFile { metadata: metadata(&config, architecture, head_dim), tensors }
}

fn gguf_name(name: &str, is_gemma: bool) -> String {
    let mlp_norm = if is_gemma { "pre_feedforward_layernorm" } else { "post_attention_layernorm" };
    let rename = [
        ("model.embed_tokens.", "token_embd."),
        ("model.norm.", "output_norm."),
        ("lm_head.", "output."),
        ("model.layers.", "blk."),
        (mlp_norm, "ffn_norm"),
        ("post_attention_layernorm", "post_attention_norm"),
        ("post_feedforward_layernorm", "post_ffw_norm"),
        ("input_layernorm", "attn_norm"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ];
    rename.iter().fold(name.to_owned(), |name, (from, to)| name.replace(from, to))
}

/// Llama 3's stretching travels as one divisor per frequency.
fn llama3_factors(rope: &serde_json::Value, head_dim: usize) -> Option<Tensor> {
    if rope["rope_type"] != "llama3" {
        return None;
    }
    let number = |key: &str| rope[key].as_f64().unwrap();
    let (factor, context) = (number("factor"), number("original_max_position_embeddings"));
    let (low, high) = (number("low_freq_factor"), number("high_freq_factor"));
    let divisor = |i: usize| {
        let wavelength = std::f64::consts::TAU * number("rope_theta").powf(2.0 * i as f64 / head_dim as f64);
        let smooth = (context / wavelength - low) / (high - low);
        let divisor = if wavelength < context / high {
            1.0
        } else if wavelength > context / low {
            factor
        } else {
            1.0 / ((1.0 - smooth) / factor + smooth)
        };
        divisor as f32
    };
    let bytes = (0..head_dim / 2).flat_map(|i| divisor(i).to_le_bytes()).collect();
    Some(Tensor { name: "rope_freqs.weight".into(), shape: vec![head_dim / 2], type_id: 0, bytes })
}

fn metadata(config: &serde_json::Value, architecture: &str, head_dim: usize) -> Vec<(String, Value)> {
    let mut metadata = vec![("general.architecture".to_owned(), Value::Text(architecture.into()))];
    let mut push = |suffix: &str, value: Value| metadata.push((format!("{architecture}.{suffix}"), value));
    for (suffix, key) in [
        ("block_count", "num_hidden_layers"),
        ("context_length", "max_position_embeddings"),
        ("embedding_length", "hidden_size"),
        ("feed_forward_length", "intermediate_size"),
        ("attention.head_count", "num_attention_heads"),
        ("attention.head_count_kv", "num_key_value_heads"),
    ] {
        push(suffix, Value::Number(config[key].as_u64().unwrap() as u32));
    }
    push("attention.key_length", Value::Number(head_dim as u32));
    push("attention.layer_norm_rms_epsilon", Value::Float(config["rms_norm_eps"].as_f64().unwrap() as f32));
    let rope = &config["rope_parameters"];
    let global = if rope["full_attention"].is_object() { &rope["full_attention"] } else { rope };
    push("rope.freq_base", Value::Float(global["rope_theta"].as_f64().unwrap() as f32));
    let rope_type = global["rope_type"].as_str().unwrap();
    if ["linear", "yarn"].contains(&rope_type) {
        push("rope.scaling.type", Value::Text(rope_type.into()));
        push("rope.scaling.factor", Value::Float(global["factor"].as_f64().unwrap() as f32));
    }
    if let Some(context) = global["original_max_position_embeddings"].as_u64().filter(|_| rope_type == "yarn") {
        push("rope.scaling.original_context_length", Value::Number(context as u32));
    }
    if let Some(window) = config["sliding_window"].as_u64().filter(|_| architecture != "smollm3") {
        push("attention.sliding_window", Value::Number(window as u32));
    }
    if let Some(types) = config["layer_types"].as_array().filter(|_| architecture == "gemma3") {
        let flags = types.iter().map(|kind| kind == "sliding_attention").collect();
        push("attention.sliding_window_pattern", Value::Flags(flags));
    }
    metadata
}

fn load_gguf(bytes: &[u8]) -> Result<Model, EngineError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, bytes).unwrap();
    Model::load(&path)
}

/// A copy of a tiny folder that may be damaged.
fn copy_of(family: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(tiny(family).join(name), folder.path().join(name)).unwrap();
    }
    folder
}

fn folder() -> tempfile::TempDir {
    copy_of("llama")
}

/// Sets keys of a copy's `config.json`; null takes one away.
fn change_config(folder: &Path, change: &serde_json::Value) {
    let mut config = config_of(folder);
    for (key, value) in change.as_object().unwrap() {
        if value.is_null() {
            config.as_object_mut().unwrap().remove(key);
        } else {
            config[key] = value.clone();
        }
    }
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
}

fn message(result: Result<Model, EngineError>) -> String {
    match result {
        Ok(_) => panic!("a broken model was loaded"),
        Err(error @ EngineError::Model(_)) => error.to_string(),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn both_formats_give_the_same_bits() {
    let from_folder = Model::load(&tiny_llama()).unwrap();
    let from_gguf = load_gguf(&converted(&tiny_llama()).bytes()).unwrap();
    assert_eq!(from_folder.config(), from_gguf.config());
    assert!(from_folder.metadata().is_none());
    assert_eq!(from_gguf.metadata().unwrap().unsigned("llama.block_count"), Some(4));
    assert_eq!(logits(from_folder), logits(from_gguf));
}

#[test]
fn gguf_files_of_each_family_agree_with_the_reference_implementation() {
    for family in
        ["llama", "llama_linear", "llama_tied_llama3rope", "llama_yarn", "mistral_sliding", "qwen2", "qwen3", "gemma3"]
    {
        let text = std::fs::read(tiny(family).join("reference.json")).unwrap();
        let reference: serde_json::Value = serde_json::from_slice(&text).unwrap();
        for case in reference["cases"].as_array().unwrap() {
            let ids: Vec<u32> = serde_json::from_value(case["token_ids"].clone()).unwrap();
            let expected: Vec<f32> = serde_json::from_value(case["next_token_logprob"].clone()).unwrap();
            let mut engine = engine(load_gguf(&converted(&tiny(family)).bytes()).unwrap());
            let sequence = engine.start(RopeScaling::Default).unwrap();
            let found = engine.logprobs(sequence, &ids, 0).unwrap();
            assert_eq!(found.len(), expected.len() + 1);
            for (expected, found) in expected.iter().zip(&found[1..]) {
                let found = found.logprob.unwrap();
                assert!((expected - found).abs() < 1e-3, "{family}: {found}, expected {expected}");
            }
        }
    }
}

#[test]
fn gguf_files_of_each_family_have_the_bits_of_the_folder() {
    // Not llama3: its divisors are rounded to f32 in the file.
    for family in ["llama_linear", "llama_yarn", "mistral_sliding", "qwen2", "qwen3", "gemma3"] {
        let from_folder = Model::load(&tiny(family)).unwrap();
        let from_gguf = load_gguf(&converted(&tiny(family)).bytes()).unwrap();
        assert_eq!(from_folder.config().layers, from_gguf.config().layers, "{family}");
        assert!(logits(from_folder) == logits(from_gguf), "{family}");
    }
    // The format cannot say which layers of SmolLM3 have no RoPE: it is every fourth.
    let folder = copy_of("smollm3");
    change_config(folder.path(), &serde_json::json!({"no_rope_layers": null}));
    let from_gguf = logits(load_gguf(&converted(&tiny("smollm3")).bytes()).unwrap());
    assert!(logits(Model::load(folder.path()).unwrap()) == from_gguf);
    assert!(logits(Model::load(&tiny("smollm3")).unwrap()) != from_gguf);
}

#[test]
fn what_gemma3_leaves_implicit_in_gguf_is_known() {
    let mut file = converted(&tiny("gemma3"));
    file.metadata.retain(|(key, _)| key != "gemma3.attention.sliding_window_pattern");
    let windows = |file: &GgufFile| {
        let model = load_gguf(&file.bytes()).unwrap();
        model.config().layers.iter().map(|layer| layer.window).collect::<Vec<_>>()
    };
    assert_eq!(windows(&file), [Some(32); 4], "the sixth layer would be the first that sees everything");
    file.metadata.push(("gemma3.attention.sliding_window_pattern".into(), Value::Number(2)));
    assert_eq!(windows(&file), [Some(32), None, Some(32), None]);
    file.metadata.push(("gemma3.rope.freq_base_swa".into(), Value::Float(2e4)));
    let model = load_gguf(&file.bytes()).unwrap();
    assert_eq!(model.config().window_rope.unwrap().theta, 2e4);
    file.metadata.push(("gemma3.final_logit_softcapping".into(), Value::Float(30.0)));
    assert!(message(load_gguf(&file.bytes())).contains("gemma3.final_logit_softcapping = 30"));
}

#[test]
fn decoders_inside_models_that_see_images_are_found() {
    let expected = logits(Model::load(&tiny("gemma3")).unwrap());
    let file = std::fs::read(tiny("gemma3").join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let renamings: [fn(&str) -> String; 2] = [
        |name| format!("language_model.{name}"),
        |name| name.strip_prefix("model.").map_or(name.into(), |inner| format!("model.language_model.{inner}")),
    ];
    for renamed in renamings {
        let folder = copy_of("gemma3");
        let views: Vec<_> = tensors.names().iter().map(|name| (renamed(name), tensors.tensor(name).unwrap())).collect();
        std::fs::write(folder.path().join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
        let config = serde_json::json!({"model_type": "gemma3", "text_config": config_of(folder.path())});
        std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        assert!(logits(Model::load(folder.path()).unwrap()) == expected);
    }
}

#[test]
fn a_config_that_contradicts_its_tensors_is_refused() {
    use serde_json::json;
    for (family, change, expected) in [
        (
            "llama",
            json!({"num_key_value_heads": 4}),
            "k_proj.weight` has shape [64, 128], the configuration needs [128, 128]",
        ),
        (
            "llama",
            json!({"vocab_size": 300}),
            "`model.embed_tokens.weight` has shape [256, 128], the configuration needs [300",
        ),
        ("llama", json!({"num_hidden_layers": 5}), "`model.layers.4."),
        ("llama", json!({"num_hidden_layers": 3}), "`model.layers.3.self_attn.q_proj.weight` is there"),
        ("llama", json!({"model_type": "qwen2"}), "self_attn.q_proj.bias` is missing"),
        ("llama", json!({"attention_bias": true}), "self_attn.q_proj.bias` is missing"),
        ("llama", json!({"model_type": "qwen3"}), "self_attn.q_norm.weight` is missing"),
        ("qwen2", json!({"model_type": "llama"}), "`model.layers.0.self_attn.q_proj.bias` is there"),
        ("qwen3", json!({"model_type": "llama"}), "`model.layers.0.self_attn.q_norm.weight` is there"),
        ("gemma3", json!({"model_type": "qwen3"}), "post_feedforward_layernorm.weight` is there"),
        ("llama_tied_llama3rope", json!({"tie_word_embeddings": false}), "`lm_head.weight` is missing"),
    ] {
        let folder = copy_of(family);
        change_config(folder.path(), &change);
        let text = message(Model::load(folder.path()));
        assert!(text.contains(expected), "{change}: {text}");
    }
}

#[test]
fn biases_of_llama_follow_the_rows_they_belong_to() {
    let file = std::fs::read(tiny("qwen2").join("model.safetensors")).unwrap();
    let biases = SafeTensors::deserialize(&file).unwrap();
    let zeros = vec![0_u8; 256];
    let base = std::fs::read(tiny_llama().join("model.safetensors")).unwrap();
    let base = SafeTensors::deserialize(&base).unwrap();
    let mut views: Vec<_> = base.names().iter().map(|name| ((*name).to_owned(), base.tensor(name).unwrap())).collect();
    let is_bias = |name: &&str| name.ends_with(".bias");
    views
        .extend(biases.names().into_iter().filter(is_bias).map(|name| (name.to_owned(), biases.tensor(name).unwrap())));
    let bf16 = safetensors::Dtype::BF16;
    let no_bias = safetensors::tensor::TensorView::new(bf16, vec![128], &zeros).unwrap();
    views.extend((0..4).map(|layer| (format!("model.layers.{layer}.self_attn.o_proj.bias"), no_bias.clone())));
    let folder = folder();
    std::fs::write(folder.path().join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    change_config(folder.path(), &serde_json::json!({"attention_bias": true}));
    let expected = logits(Model::load(folder.path()).unwrap());
    assert!(expected != logits(Model::load(&tiny_llama()).unwrap()));

    let gguf = converted(folder.path());
    assert!(logits(load_gguf(&gguf.bytes()).unwrap()) == expected);
}

#[test]
fn the_hash_is_that_of_the_files_bytes_and_of_the_configuration() {
    let expected = |file: &[u8], model: &Model| {
        blake3::hash(&[file, model.config().fingerprint().as_bytes()].concat()).to_hex().to_string()
    };
    let bytes = converted(&tiny_llama()).bytes();
    let gguf = load_gguf(&bytes).unwrap();
    assert_eq!(gguf.weights_hash(), expected(&bytes, &gguf));
    let file = std::fs::read(tiny_llama().join("model.safetensors")).unwrap();
    let folder = Model::load(&tiny_llama()).unwrap();
    assert_eq!(folder.weights_hash(), expected(&file, &folder));
}

#[test]
fn shards_are_one_model() {
    let folder = folder();
    let file = std::fs::read(tiny_llama().join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let mut names = tensors.names();
    names.sort_unstable();
    let mut weight_map = serde_json::Map::new();
    for (index, names) in names.chunks(names.len().div_ceil(2)).enumerate() {
        let shard = format!("model-{:05}-of-00002.safetensors", index + 1);
        let views: Vec<_> = names.iter().map(|name| (*name, tensors.tensor(name).unwrap())).collect();
        let path = folder.path().join(&shard);
        std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
        weight_map.extend(names.iter().map(|name| ((*name).to_owned(), shard.clone().into())));
    }
    std::fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    let index = folder.path().join("model.safetensors.index.json");
    std::fs::write(&index, serde_json::json!({"metadata": {}, "weight_map": weight_map}).to_string()).unwrap();
    assert_eq!(logits(Model::load(folder.path()).unwrap()), logits(Model::load(&tiny_llama()).unwrap()));

    for name in ["../model.safetensors", "/etc/passwd", "a/b.safetensors", "..", "model.bin", ".safetensors"] {
        std::fs::write(&index, serde_json::json!({"weight_map": {"lm_head.weight": name}}).to_string()).unwrap();
        assert!(message(Model::load(folder.path())).contains("plain"), "{name}");
    }
}

#[test]
fn files_cut_short_are_errors() {
    let gguf = converted(&tiny_llama()).bytes();
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    let safetensors = std::fs::read(&path).unwrap();
    for percent in [0, 1, 2, 25, 50, 99] {
        message(load_gguf(&gguf[..gguf.len() * percent / 100]));
        std::fs::write(&path, &safetensors[..safetensors.len() * percent / 100]).unwrap();
        message(Model::load(folder.path()));
    }
    message(load_gguf(&gguf[..gguf.len() - 1]));
    std::fs::write(&path, &safetensors[..safetensors.len() - 1]).unwrap();
    message(Model::load(folder.path()));
}

#[test]
fn a_missing_or_misshapen_tensor_is_named() {
    for missing in ["token_embd.weight", "blk.2.attn_k.weight", "output_norm.weight"] {
        let mut file = converted(&tiny_llama());
        file.tensors.retain(|tensor| tensor.name != missing);
        let message = message(load_gguf(&file.bytes()));
        assert!(message.contains(&format!("`{missing}` is missing")), "{message}");
    }
    let mut file = converted(&tiny_llama());
    file.tensor("blk.1.ffn_down.weight").shape.reverse();
    let message = message(load_gguf(&file.bytes()));
    assert!(message.contains("`blk.1.ffn_down.weight` has shape [192, 128]"), "{message}");
}

#[test]
fn weights_that_are_not_numbers_are_refused() {
    for (family, tensor, not_a_number) in [
        ("llama", "blk.3.ffn_up.weight", &0x7FC0_u16.to_le_bytes()[..]),
        ("llama", "blk.0.attn_norm.weight", &f32::INFINITY.to_le_bytes()),
        ("gemma3", "blk.0.attn_q_norm.weight", &f32::NAN.to_le_bytes()),
        ("qwen2", "blk.2.attn_k.bias", &f32::NEG_INFINITY.to_le_bytes()),
    ] {
        let mut file = converted(&tiny(family));
        file.tensor(tensor).bytes[40..40 + not_a_number.len()].copy_from_slice(not_a_number);
        let message = message(load_gguf(&file.bytes()));
        assert!(message.contains(tensor) && message.contains("not finite"), "{message}");
    }
    for divisor in [0.0, -1.0, f32::NAN] {
        let mut file = converted(&tiny("llama_tied_llama3rope"));
        file.tensor("rope_freqs.weight").bytes[..4].copy_from_slice(&divisor.to_le_bytes());
        assert!(message(load_gguf(&file.bytes())).contains("rope factors"));
    }
}

#[test]
fn unsupported_models_are_named_with_what_is_supported() {
    let mut file = converted(&tiny_llama());
    file.metadata[0].1 = Value::Text("rwkv7".into());
    let text = message(load_gguf(&file.bytes()));
    assert!(text.contains("`rwkv7`") && text.ends_with("supported: llama, qwen2, qwen3, gemma3, smollm3"), "{text}");
    for (key, value, expected) in [
        (
            "llama.rope.scaling.type",
            Value::Text("longrope".into()),
            "supported: default, linear, dynamic, ntk, yarn, llama3",
        ),
        ("llama.rope.scaling.yarn_ext_factor", Value::Float(0.5), "supported: 1"),
        ("llama.expert_count", Value::Number(8), "supported: 0"),
    ] {
        let mut file = converted(&tiny_llama());
        file.metadata.push((key.into(), value));
        let text = message(load_gguf(&file.bytes()));
        assert!(text.ends_with(expected), "{text}");
    }

    let folder = folder();
    let config = folder.path().join("config.json");
    let original = std::fs::read_to_string(&config).unwrap();
    for (from, to, expected) in [
        (
            "\"model_type\": \"llama\"",
            "\"model_type\": \"mamba\"",
            "supported: llama, mistral, qwen2, qwen3, gemma3, gemma3_text, smollm3",
        ),
        (
            "\"rope_type\": \"default\"",
            "\"rope_type\": \"longrope\"",
            "supported: default, linear, dynamic, ntk, yarn, llama3",
        ),
    ] {
        assert!(original.contains(from));
        std::fs::write(&config, original.replace(from, to)).unwrap();
        let text = message(Model::load(folder.path()));
        assert!(text.ends_with(expected), "{text}");
    }
}

#[test]
fn hostile_safetensors_are_refused() {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    let with_header = |header: &str, n_data: usize| {
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.resize(file.len() + n_data, 0);
        file
    };
    let twice = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    let overlap = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    let outside = r#"{"a":{"dtype":"F32","shape":[1000],"data_offsets":[0,4000]}}"#;
    let overflow = r#"{"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}}"#;
    let integers = r#"{"a":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}}"#;
    let files = [
        ("header of 2^63 bytes", (1_u64 << 63).to_le_bytes().to_vec()),
        ("key twice", with_header(twice, 4)),
        ("overlapping", with_header(overlap, 4)),
        ("outside", with_header(outside, 4)),
        ("overflow", with_header(overflow, 0)),
        ("integers", with_header(integers, 4)),
        ("empty", Vec::new()),
    ];
    for (name, file) in files {
        std::fs::write(&path, file).unwrap();
        assert!(message(Model::load(folder.path())).contains("model.safetensors"), "{name}");
    }
}

#[test]
fn what_is_not_there_is_named() {
    let empty = tempfile::tempdir().unwrap();
    assert!(message(Model::load(empty.path())).contains("config.json"));
    assert!(message(Model::load(&empty.path().join("nothing.gguf"))).contains("nothing.gguf"));
    std::fs::copy(tiny_llama().join("config.json"), empty.path().join("config.json")).unwrap();
    assert!(message(Model::load(empty.path())).contains("neither model.safetensors nor"));
}
