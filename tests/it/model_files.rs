//! Model files: the same model in both formats, and damaged, hostile or unsupported ones.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up its input has failed")]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvgauge::engine::{Engine, EngineError, EngineOptions, Model, RopeScaling};
use safetensors::SafeTensors;

fn tiny_llama() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny_models/llama")
}

fn logits(model: Model) -> Vec<u32> {
    let options = EngineOptions { kernel: Some("portable".into()), threads: 1, ..EngineOptions::default() };
    let mut engine = Engine::new(Arc::new(model), &options).unwrap();
    let sequence = engine.start(RopeScaling::Default).unwrap();
    let ids: Vec<u32> = (0..90).map(|i| i * 37 % 256).collect();
    let logits = engine.prefill(sequence, &ids, &mut |_| ControlFlow::Continue(())).unwrap();
    logits.iter().map(|logit| logit.to_bits()).collect()
}

/// A tensor on its way into a GGUF file: name, dimensions outermost first, BF16 bytes.
type Tensor = (String, Vec<usize>, Vec<u8>);

/// Rewrites the tiny model as other software converts it: GGUF names, Q and K rows interleaved inside each head.
fn converted() -> Vec<Tensor> {
    let file = std::fs::read(tiny_llama().join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let mut names = tensors.names();
    names.sort_unstable();
    let rename = [
        ("model.embed_tokens.", "token_embd."),
        ("model.norm.", "output_norm."),
        ("lm_head.", "output."),
        ("model.layers.", "blk."),
        ("post_attention_layernorm", "ffn_norm"),
        ("input_layernorm", "attn_norm"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ];
    let convert = |name: &str| {
        let view = tensors.tensor(name).unwrap();
        let mut bytes = view.data().to_vec();
        if name.contains("q_proj") || name.contains("k_proj") {
            let (head_dim, row_bytes) = (32, view.shape()[1] * 2);
            let rows: Vec<&[u8]> = view.data().chunks(row_bytes).collect();
            let interleaved = rows
                .chunks(head_dim)
                .flat_map(|head| (0..head_dim / 2).flat_map(move |pair| [head[pair], head[pair + head_dim / 2]]));
            bytes = interleaved.collect::<Vec<_>>().concat();
        }
        let gguf_name = rename.iter().fold(name.to_owned(), |name, (from, to)| name.replace(from, to));
        (gguf_name, view.shape().to_vec(), bytes)
    };
    names.into_iter().map(convert).collect()
}

fn gguf_file(architecture: &str, tensors: &[Tensor]) -> Vec<u8> {
    let mut file = b"GGUF\x03\0\0\0".to_vec();
    let numbers = [
        ("block_count", 4),
        ("context_length", 512),
        ("embedding_length", 128),
        ("feed_forward_length", 192),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
    ];
    let string = |file: &mut Vec<u8>, text: &str| {
        file.extend((text.len() as u64).to_le_bytes());
        file.extend(text.as_bytes());
    };
    file.extend((tensors.len() as u64).to_le_bytes());
    file.extend((numbers.len() as u64 + 2).to_le_bytes());
    string(&mut file, "general.architecture");
    file.extend(8_u32.to_le_bytes());
    string(&mut file, architecture);
    for (key, number) in numbers {
        string(&mut file, &format!("llama.{key}"));
        file.extend(4_u32.to_le_bytes());
        file.extend((number as u32).to_le_bytes());
    }
    string(&mut file, "llama.attention.layer_norm_rms_epsilon");
    file.extend(6_u32.to_le_bytes());
    file.extend(1e-6_f32.to_le_bytes());
    let mut data: Vec<u8> = Vec::new();
    for (name, shape, bytes) in tensors {
        string(&mut file, name);
        file.extend((shape.len() as u32).to_le_bytes());
        shape.iter().rev().for_each(|dim| file.extend((*dim as u64).to_le_bytes()));
        file.extend(30_u32.to_le_bytes());
        file.extend((data.len() as u64).to_le_bytes());
        data.extend(bytes);
        data.resize(data.len().next_multiple_of(32), 0);
    }
    file.resize(file.len().next_multiple_of(32), 0);
    file.extend(data);
    file
}

fn load_gguf(bytes: &[u8]) -> Result<Model, EngineError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, bytes).unwrap();
    Model::load(&path)
}

/// A copy of the tiny folder that may be damaged.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(tiny_llama().join(name), folder.path().join(name)).unwrap();
    }
    folder
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
    let from_gguf = load_gguf(&gguf_file("llama", &converted())).unwrap();
    assert_eq!(from_folder.config(), from_gguf.config());
    assert!(from_folder.metadata().is_none());
    assert_eq!(from_gguf.metadata().unwrap().unsigned("llama.block_count"), Some(4));
    assert_eq!(logits(from_folder), logits(from_gguf));
}

#[test]
fn the_hash_is_that_of_the_files_bytes() {
    let bytes = gguf_file("llama", &converted());
    let expected = blake3::hash(&bytes).to_hex().to_string();
    assert_eq!(load_gguf(&bytes).unwrap().weights_hash(), expected);
    let file = std::fs::read(tiny_llama().join("model.safetensors")).unwrap();
    assert_eq!(Model::load(&tiny_llama()).unwrap().weights_hash(), blake3::hash(&file).to_hex().to_string());
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
    let gguf = gguf_file("llama", &converted());
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
        let tensors: Vec<Tensor> = converted().into_iter().filter(|(name, ..)| name != missing).collect();
        let message = message(load_gguf(&gguf_file("llama", &tensors)));
        assert!(message.contains(&format!("`{missing}` is missing")), "{message}");
    }
    let mut tensors = converted();
    let down = tensors.iter_mut().find(|(name, ..)| name == "blk.1.ffn_down.weight").unwrap();
    down.1.reverse();
    let message = message(load_gguf(&gguf_file("llama", &tensors)));
    assert!(message.contains("`blk.1.ffn_down.weight` has shape [192, 128]"), "{message}");
}

#[test]
fn weights_that_are_not_numbers_are_refused() {
    for (tensor, code) in [("blk.3.ffn_up.weight", 0x7FC0_u16), ("blk.0.attn_norm.weight", 0xFF80)] {
        let mut tensors = converted();
        let (_, _, bytes) = tensors.iter_mut().find(|(name, ..)| name == tensor).unwrap();
        bytes[40..42].copy_from_slice(&code.to_le_bytes());
        let message = message(load_gguf(&gguf_file("llama", &tensors)));
        assert!(message.contains(tensor) && message.contains("not finite"), "{message}");
    }
}

#[test]
fn unsupported_models_are_named_with_what_is_supported() {
    let text = message(load_gguf(&gguf_file("rwkv7", &converted())));
    assert!(text.contains("`rwkv7`") && text.ends_with("supported: llama"), "{text}");

    let folder = folder();
    let config = folder.path().join("config.json");
    let original = std::fs::read_to_string(&config).unwrap();
    for (from, to, expected) in [
        ("\"model_type\": \"llama\"", "\"model_type\": \"mamba\"", "supported: llama, mistral"),
        ("\"rope_type\": \"default\"", "\"rope_type\": \"longrope\"", "supported: default, linear, ntk"),
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
