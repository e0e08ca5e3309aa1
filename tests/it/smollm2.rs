//! The tokenizer of SmolLM2-135M-Instruct out of a compact fixture, without the model.

use std::path::Path;

use kvgauge::tokenizer::{GgufVocab, Tokenizer};
use serde::Deserialize;

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

/// Reads the fixture; `pre` replaces the way text is cut before merging.
pub(crate) fn tokenizer(pre: Option<&str>) -> Tokenizer {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/smollm2_135m_instruct/vocab.json");
    let compact: CompactVocab = serde_json::from_slice(&std::fs::read(path).expect("the fixture")).expect("JSON");
    let mut tokens = compact.leading_tokens;
    tokens.extend(compact.merges.iter().map(|merge| merge.replace(' ', "")));
    let token_types = (0..tokens.len()).map(|id| if id < compact.control_tokens { 3 } else { 1 }).collect();
    let vocab = GgufVocab {
        model: compact.model,
        pre: pre.map_or(compact.pre, str::to_owned),
        tokens,
        token_types,
        merges: compact.merges,
        scores: None,
        bos_id: Some(compact.bos_id),
        eos_id: Some(compact.eos_id),
        add_bos: Some(compact.add_bos),
        chat_template: Some(compact.chat_template),
    };
    Tokenizer::from_gguf_vocab(vocab).expect("the fixture is a whole vocabulary")
}
