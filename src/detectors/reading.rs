//! What several detectors need of one output, worked out once.

use std::cell::OnceCell;
use std::ops::Range;

use crate::detectors::Context;
use crate::detectors::form::{Form, form_of, is_data};
use crate::detectors::tokens::{Kind, Token, tokens};
use crate::detectors::tongue::sentences;

/// Only this much of the end is read: 128K tokens of any language take less than 2 MiB.
const MAX_READ_BYTES: usize = 4 << 20;
/// Of a prompt the end is read: the question stands there, and a copy of more than this is found by any part of it.
const MAX_PROMPT_BYTES: usize = 1 << 20;

/// Sentences read; drift that begins later is in a text of megabytes.
const MAX_SENTENCES: usize = 20_000;

/// An output with its context, and what was worked out about it so far.
pub struct Reading<'a> {
    pub(super) context: &'a Context<'a>,
    /// The end of the output, as far as it is read.
    pub(super) text: &'a str,
    /// Where that begins in the output.
    pub(super) from: usize,
    bytes: OnceCell<Bytes>,
    tokens: OnceCell<Vec<Token>>,
    kinds: OnceCell<[usize; 4]>,
    sentences: OnceCell<Vec<Range<usize>>>,
    references: OnceCell<Vec<Reference<'a>>>,
    prompt: OnceCell<Option<Reference<'a>>>,
    is_data: OnceCell<bool>,
    form: OnceCell<Form>,
}

/// Which bytes a text has: most texts have nothing of what most checks look for, and this says so without a look at them.
pub(super) struct Bytes([bool; 256]);

impl Bytes {
    fn of(text: &str) -> Self {
        let mut has = [false; 256];
        for byte in text.bytes() {
            has[usize::from(byte)] = true;
        }
        Self(has)
    }

    pub(super) fn has(&self, byte: u8) -> bool {
        self.0[usize::from(byte)]
    }

    pub(super) fn has_any(&self, bytes: &[u8]) -> bool {
        bytes.iter().any(|byte| self.has(*byte))
    }

    /// Whether there is any of the bytes from `first` to `last`.
    pub(super) fn has_within(&self, first: u8, last: u8) -> bool {
        self.0[usize::from(first)..=usize::from(last)].contains(&true)
    }

    pub(super) fn is_ascii(&self) -> bool {
        !self.has_within(0x80, 0xff)
    }
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
            bytes: OnceCell::new(),
            tokens: OnceCell::new(),
            kinds: OnceCell::new(),
            sentences: OnceCell::new(),
            references: OnceCell::new(),
            prompt: OnceCell::new(),
            is_data: OnceCell::new(),
            form: OnceCell::new(),
        }
    }

    /// Tokens of [`Self::text`].
    pub(super) fn tokens(&self) -> &[Token] {
        self.tokens.get_or_init(|| tokens(self.text))
    }

    /// Bytes of [`Self::text`].
    pub(super) fn bytes(&self) -> &Bytes {
        self.bytes.get_or_init(|| Bytes::of(self.text))
    }

    /// How many tokens are of a kind.
    pub(super) fn count(&self, kind: Kind) -> usize {
        let count = || {
            let mut kinds = [0; 4];
            for token in self.tokens() {
                kinds[token.kind as usize] += 1;
            }
            kinds
        };
        self.kinds.get_or_init(count)[kind as usize]
    }

    /// The first [`MAX_SENTENCES`] sentences as ranges of tokens.
    pub(super) fn sentences(&self) -> &[Range<usize>] {
        self.sentences.get_or_init(|| sentences(self.text, self.tokens()).take(MAX_SENTENCES).collect())
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

    /// Whether it is made for machines: such data has no sentences.
    pub(super) fn is_data(&self) -> bool {
        *self.is_data.get_or_init(|| is_data(self.text))
    }
}

/// Those bytes, for looking them up.
pub(super) const fn set_of(bytes: &[u8]) -> [bool; 256] {
    let mut set = [false; 256];
    let mut at = 0;
    while at < bytes.len() {
        set[bytes[at] as usize] = true;
        at += 1;
    }
    set
}

fn tail(text: &str, bytes: usize) -> &str {
    &text[text.ceil_char_boundary(text.len().saturating_sub(bytes))..]
}
