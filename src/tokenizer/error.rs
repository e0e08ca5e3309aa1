//! What can go wrong between a vocabulary file and token ids.

use std::path::PathBuf;

use crate::hint::Hint;

/// Errors of the tokenizer stage.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// A file of the model folder could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is larger than anything a real tokenizer needs.
    #[error("{} has {got} bytes, the limit is {limit}", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        got: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// A file was read and does not hold what it should.
    #[error("{} is not a valid {what}: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What it was read as.
        what: &'static str,
        /// Where it breaks.
        reason: String,
    },
    /// A GGUF vocabulary contradicts itself.
    #[error("the vocabulary in the GGUF metadata is invalid: {reason}")]
    Vocabulary {
        /// Which rule it breaks.
        reason: String,
    },
    /// `tokenizer.ggml.model` names an algorithm that is not built in.
    #[error("GGUF tokenizer model `{model}` is not supported")]
    UnknownModel {
        /// As written in the file.
        model: String,
        /// What is supported.
        known: &'static [&'static str],
    },
    /// `tokenizer.ggml.pre` names a pre-tokenizer that is not built in.
    #[error("GGUF pre-tokenizer `{pre}` is not known, and a wrong one gives wrong token ids")]
    UnknownPreTokenizer {
        /// As written in the file.
        pre: String,
        /// The known names.
        known: Vec<&'static str>,
    },
    /// The model has no chat template.
    #[error("the model has no chat template")]
    NoChatTemplate,
    /// The chat template does not parse.
    #[error("the chat template does not parse: {reason}")]
    TemplateSyntax {
        /// Line and cause.
        reason: String,
    },
    /// The chat template is larger than anything real.
    #[error("the chat template has {got} bytes, the limit is {limit}")]
    TemplateTooLarge {
        /// Its size in bytes.
        got: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The chat template refused the messages, or hit a limit.
    #[error("the chat template failed: {reason}")]
    Render {
        /// The template's own words, or the limit it hit.
        reason: String,
    },
    /// The tokenizer failed on a text.
    #[error("cannot encode a text of {bytes} bytes: {reason}")]
    Encode {
        /// Length of the text.
        bytes: usize,
        /// What the tokenizer said.
        reason: String,
    },
}

impl Hint for TokenizerError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::Read { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
                vec!["a Hugging Face model folder needs tokenizer.json; a GGUF file carries its own vocabulary".into()]
            }
            Self::Read { .. } => Vec::new(),
            Self::TooLarge { .. } | Self::TemplateTooLarge { .. } => {
                vec!["check that the file is what its name says".into()]
            }
            Self::Malformed { .. } | Self::Vocabulary { .. } => {
                vec!["the download may be cut short: fetch the model again".into()]
            }
            Self::UnknownModel { known, .. } => vec![
                format!("supported: {}", known.join(", ")),
                "pass the Hugging Face folder of the same model instead".into(),
            ],
            Self::UnknownPreTokenizer { known, .. } => vec![
                format!("known: {}", known.join(", ")),
                "pass the Hugging Face folder of the same model instead: its tokenizer.json says how text is split"
                    .into(),
            ],
            Self::NoChatTemplate => {
                vec!["use an instruction-tuned model, or put a chat_template.jinja beside tokenizer.json".into()]
            }
            Self::TemplateSyntax { .. } => {
                vec!["put a corrected chat_template.jinja beside tokenizer.json: it takes precedence".into()]
            }
            Self::Render { .. } => {
                vec!["some templates take no system message, or want user and assistant to alternate".into()]
            }
            Self::Encode { .. } => Vec::new(),
        }
    }
}
