//! Why items cannot be generated.

use crate::hint::Hint;
use crate::sample::Bin;
use crate::units::format_token_count;

/// Why items cannot be generated. Nothing is ever shortened in silence and no search runs without an end.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TaskError {
    /// What has to stand in the prompt is longer than the bin allows.
    #[error(
        "{tasks} in bin {bin}: the text that is asked for needs {needed} tokens with its questions, {available} are free"
    )]
    TooSmall {
        /// The tasks that share the document.
        tasks: String,
        /// The bin.
        bin: Bin,
        /// Tokens of template, instructions, plants and the longest question.
        needed: usize,
        /// Bin minus output reserve.
        available: usize,
    },
    /// The target cannot say how long a prompt is, for example because the model has no chat template.
    #[error("{tasks} in bin {bin}: the prompt cannot be counted: the chat template does not take it")]
    Uncountable {
        /// The tasks that share the document.
        tasks: String,
        /// The bin.
        bin: Bin,
    },
    /// The right answer does not fit the output reserve.
    #[error(
        "{task} in bin {bin}: the right answer has {answer_tokens} tokens, {output_reserve} are reserved for output"
    )]
    AnswerTooLong {
        /// The task.
        task: String,
        /// The bin.
        bin: Bin,
        /// Tokens of the right answer and its end token.
        answer_tokens: usize,
        /// What the suite reserves.
        output_reserve: u32,
    },
    /// The filler could not be brought near enough to the budget.
    #[error("bin {bin}: {prompt_tokens} of {available} tokens filled, {wanted} are the least")]
    Unfilled {
        /// The bin.
        bin: Bin,
        /// Tokens of the fullest prompt within the budget.
        prompt_tokens: usize,
        /// Bin minus output reserve.
        available: usize,
        /// Least number of tokens.
        wanted: usize,
    },
    /// No unused value, key or name is left.
    #[error("{task}: no unused {what} is left for the document")]
    Exhausted {
        /// The task.
        task: String,
        /// What ran out.
        what: &'static str,
    },
    /// A parameter is not legal.
    #[error("{task}: {message}")]
    Params {
        /// The task.
        task: String,
        /// What is wrong.
        message: String,
    },
    /// The id is not in the registry.
    #[error("there is no task `{task}`")]
    UnknownTask {
        /// The id.
        task: String,
    },
    /// Questions of the document are missing or foreign: the text would not be the one that the id stands for.
    #[error("the questions of document {haystack_id} are not those it was planned with")]
    PartialGroup {
        /// The document.
        haystack_id: String,
    },
    /// Questions that need different kinds of documents cannot share one.
    #[error("{tasks} cannot share a document")]
    MixedGround {
        /// The tasks.
        tasks: String,
    },
}

impl Hint for TaskError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::TooSmall { bin, .. } => vec![
                "lower `shared_prefix` of the bin, or ask for less (`keys`, `records`, `count`, `span_tokens`)".into(),
                format!("or leave the task out of bin {}", format_token_count(bin.tokens())),
            ],
            Self::AnswerTooLong { .. } => {
                vec![
                    "raise `output_reserve` of the bin, or ask for less (`keys`, `records`, `count`, `span_tokens`)"
                        .into(),
                ]
            }
            Self::Uncountable { .. } => {
                vec!["the model needs a chat template: use its instruction-tuned version".into()]
            }
            Self::Unfilled { .. } => {
                vec!["the tokenizer counts whole texts and parts differently: use a longer bin".into()]
            }
            Self::Exhausted { .. } => {
                vec!["lower `shared_prefix` of the bin or the task's `count` or `records`".into()]
            }
            Self::PartialGroup { .. } => vec!["generate the whole group, then leave out what is not needed".into()],
            Self::Params { .. } => Vec::new(),
            Self::UnknownTask { task } => vec![crate::hint::did_you_mean(task, &super::ids())],
            Self::MixedGround { .. } => vec!["ask them in documents of their own".into()],
        }
    }
}
