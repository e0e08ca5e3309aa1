//! What several detectors need of one output, worked out once.

use std::cell::OnceCell;

use crate::detectors::Context;
use crate::detectors::form::{Form, form_of};
use crate::detectors::tokens::{Token, tokens};

/// Only this much of the end is read: 128K tokens of any language take less than 2 MiB.
const MAX_READ_BYTES: usize = 4 << 20;
/// Of a prompt the end is read: the question stands there, and a copy of more than this is found by any part of it.
const MAX_PROMPT_BYTES: usize = 1 << 20;

/// An output with its context, and what was worked out about it so far.
pub struct Reading<'a> {
    pub(super) context: &'a Context<'a>,
    /// The end of the output, as far as it is read.
    pub(super) text: &'a str,
    /// Where that begins in the output.
    pub(super) from: usize,
    tokens: OnceCell<Vec<Token>>,
    references: OnceCell<Vec<Reference<'a>>>,
    prompt: OnceCell<Option<Reference<'a>>>,
    form: OnceCell<Form>,
}

/// A text that the output is held against.
pub(super) struct Reference<'a> {
    pub(super) text: &'a str,
    pub(super) tokens: Vec<Token>,
    form: OnceCell<Form>,
}

impl<'a> Reference<'a> {
    fn of(text: &'a str) -> Self {
        Self { text, tokens: tokens(text), form: OnceCell::new() }
    }

    pub(super) fn form(&self) -> &Form {
        self.form.get_or_init(|| form_of(self.text))
    }
}

impl<'a> Reading<'a> {
    /// Begins to read; nothing is computed before it is asked for.
    pub fn of(context: &'a Context<'a>) -> Self {
        let text = tail(context.output, MAX_READ_BYTES);
        Self {
            context,
            text,
            from: context.output.len() - text.len(),
            tokens: OnceCell::new(),
            references: OnceCell::new(),
            prompt: OnceCell::new(),
            form: OnceCell::new(),
        }
    }

    /// Tokens of [`Self::text`].
    pub(super) fn tokens(&self) -> &[Token] {
        self.tokens.get_or_init(|| tokens(self.text))
    }

    /// The expected answers, then the baseline's output.
    pub(super) fn references(&self) -> &[Reference<'a>] {
        self.references
            .get_or_init(|| self.context.references().map(|text| Reference::of(tail(text, MAX_READ_BYTES))).collect())
    }

    /// The expected answers, without them the baseline's output.
    pub(super) fn measures(&self) -> &[Reference<'a>] {
        match self.context.expected.len() {
            0 => self.references(),
            expected => &self.references()[..expected],
        }
    }

    /// The end of the prompt.
    pub(super) fn prompt(&self) -> Option<&Reference<'a>> {
        let prompt = || self.context.prompt.map(|text| Reference::of(tail(text, MAX_PROMPT_BYTES)));
        self.prompt.get_or_init(prompt).as_ref()
    }

    pub(super) fn form(&self) -> &Form {
        self.form.get_or_init(|| form_of(self.text))
    }
}

fn tail(text: &str, bytes: usize) -> &str {
    &text[text.ceil_char_boundary(text.len().saturating_sub(bytes))..]
}
