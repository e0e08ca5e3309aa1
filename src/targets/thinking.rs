//! Thinking apart from the answer: models that think aloud put it between two tags in front of what they answer, and some
//! chat templates write the opening tag themselves.

use crate::tokenizer::Tokenizer;

/// Opening and closing tags in use: DeepSeek, Qwen and SmolLM; Mistral; others.
const TAGS: [(&str, &str); 3] = [("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<thinking>", "</thinking>")];

/// Tokens in which an opening tag, with what white space stands around it, is spelled at most.
const TAG_TOKENS: usize = 16;

/// An output in its two parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parted {
    /// Thinking without its tags; `None` where the model did not think aloud. It is unfinished where `answer` is empty.
    pub(super) reasoning: Option<String>,
    /// The rest.
    pub(super) answer: String,
}

/// Parts the ids of an output that was generated behind `prompt`. A tag may be a token of its own, which `decode` would leave
/// out, so tags are looked for among the ids too.
pub(super) fn part(tokenizer: &Tokenizer, prompt: &[u32], output: &[u32]) -> Parted {
    let text = tokenizer.decode(output, true);
    let prompt_end = tokenizer.decode(&prompt[prompt.len().saturating_sub(TAG_TOKENS)..], false);
    let start = tokenizer.decode(&output[..output.len().min(TAG_TOKENS)], false);
    let Some((open, close)) = TAGS.into_iter().find(|(open, _)| begins(open, &prompt_end, &start)) else {
        return Parted { reasoning: None, answer: text };
    };
    let close_id = tokenizer.token_id(close);
    match output.iter().position(|id| Some(*id) == close_id) {
        Some(at) => {
            parted(open, &tokenizer.decode(&output[..at], true), Some(&tokenizer.decode(&output[at + 1..], true)))
        }
        None => match text.split_once(close) {
            Some((thought, answer)) => parted(open, thought, Some(answer)),
            None => parted(open, &text, None),
        },
    }
}

/// Parts a text whose ids and prompt are not known: a closing tag without an opening one means that the prompt opened it.
pub(super) fn part_text(text: &str) -> Parted {
    for (open, close) in TAGS {
        let is_open = text.trim_start().starts_with(open);
        match text.split_once(close) {
            Some((thought, answer)) if is_open || !thought.contains(open) => {
                return parted(open, thought, Some(answer));
            }
            None if is_open => return parted(open, text, None),
            _ => {}
        }
    }
    Parted { reasoning: None, answer: text.to_owned() }
}

fn begins(open: &str, prompt_end: &str, start: &str) -> bool {
    prompt_end.trim_end().ends_with(open) || start.trim_start().starts_with(open)
}

fn parted(open: &str, thought: &str, answer: Option<&str>) -> Parted {
    let thought = thought.trim();
    let thought = thought.strip_prefix(open).unwrap_or(thought).trim_start();
    Parted { reasoning: Some(thought.to_owned()), answer: answer.unwrap_or_default().trim_start().to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_begins_in_the_prompt_or_in_the_output_and_nowhere_else() {
        assert!(begins("<think>", "assistant\n<think>\n", "Well"));
        assert!(begins("<think>", "assistant\n", "\n<think>Well"));
        assert!(!begins("<think>", "assistant\n<think>\n\n</think>\n\n", "Well"));
        assert!(!begins("<think>", "assistant\n", "See <think>"));
    }

    #[test]
    fn a_text_is_parted_by_its_tags_alone() {
        let parts = |text: &str| {
            let Parted { reasoning, answer } = part_text(text);
            (reasoning, answer)
        };
        assert_eq!(parts("<think>\nseven?</think>\n7"), (Some("seven?".into()), "7".into()));
        assert_eq!(parts("seven?\n</think>\n\n7"), (Some("seven?".into()), "7".into()));
        assert_eq!(parts("[THINK]seven"), (Some("seven".into()), String::new()));
        assert_eq!(parts(" 7\n"), (None, " 7\n".into()));
        assert_eq!(parts("See <think> and </think>"), (None, "See <think> and </think>".into()));
    }

    #[test]
    fn thought_and_answer_come_without_tags_and_the_space_between() {
        let parts = |thought, answer| parted("<think>", thought, answer);
        let whole = parts("<think>\nseven?\n", Some("\n\n7\n"));
        assert_eq!(whole, Parted { reasoning: Some("seven?".into()), answer: "7\n".into() });
        let unfinished = parts("seven? or", None);
        assert_eq!(unfinished, Parted { reasoning: Some("seven? or".into()), answer: String::new() });
    }
}
