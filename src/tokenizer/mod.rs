//! Text ↔ token ids, the chat template, and exact token counts for context budgets.
//!
//! Token truth is the engine's: what counts is the number of ids the model receives, chat template included.

/// Counts tokens exactly as the target will.
pub trait TokenCounter: Send + Sync {
    /// Tokens of plain text, without BOS or any other special token added.
    fn count(&self, text: &str) -> usize;

    /// Tokens of the rendered chat prompt (BOS, template and generation prompt included); `messages` are `(role, content)`.
    fn count_chat(&self, messages: &[(&str, &str)]) -> usize;

    /// Hash of everything that decides the counts: vocabulary, merges, pre-tokenizer, chat template.
    fn fingerprint(&self) -> String;
}
