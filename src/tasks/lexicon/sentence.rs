//! Drawing one sentence of filler, with its token count.

use std::collections::HashSet;

use super::{Lexicon, NUMBERS, Part, as_unit};
use crate::rng::Rng;
use crate::sample::Language;
use crate::tokenizer::TokenCounter;

/// What questions of a document ask for; the filler keeps clear of it.
#[derive(Debug, Default)]
pub(in crate::tasks) struct Reserved {
    /// Adjective and noun in one phrase.
    pub(in crate::tasks) pairs: HashSet<String>,
    /// Adjectives that name a list or a register.
    pub(in crate::tasks) labels: HashSet<String>,
    /// Names of people.
    pub(in crate::tasks) names: HashSet<String>,
}

/// A sentence with its full stop and, where the language has spaces, a space in front.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::tasks) struct Sentence {
    pub(in crate::tasks) text: String,
    /// Tokens of the sentence as a unit of a document.
    pub(in crate::tasks) tokens: usize,
}

impl Lexicon {
    /// One sentence: ends with a full stop, never names anything `reserved`.
    pub(in crate::tasks) fn sentence(
        &self,
        rng: &mut Rng,
        reserved: &Reserved,
        counter: &dyn TokenCounter,
    ) -> Sentence {
        match self.language {
            Language::En => self.spaced_sentence(rng, reserved, counter),
            Language::Zh => self.chinese_sentence(rng, reserved, counter),
        }
    }

    fn chinese_sentence(&self, rng: &mut Rng, reserved: &Reserved, counter: &dyn TokenCounter) -> Sentence {
        let pattern = rng.choose(&self.patterns);
        let mut text = String::with_capacity(160);
        let mut adjective = "";
        for part in pattern {
            match part {
                Part::Text(fixed) => text.push_str(fixed),
                Part::Number { .. } => text.push_str(&number(rng).to_string()),
                Part::Word { class, .. } => {
                    let word = self.free_word(rng, class, adjective, reserved);
                    // The noun follows after a `的`.
                    adjective = if class == "adjective" { word } else { "" };
                    text.push_str(word);
                }
            }
        }
        let unit = as_unit(self.language, &text);
        Sentence { text, tokens: count_clauses(&unit, counter) }
    }

    fn spaced_sentence(&self, rng: &mut Rng, reserved: &Reserved, counter: &dyn TokenCounter) -> Sentence {
        let pattern = rng.choose(&self.patterns);
        let mut text = String::with_capacity(160);
        let mut cuts = Vec::with_capacity(pattern.len() + 1);
        let mut adjective = "";
        for part in pattern {
            cuts.push(text.len());
            match part {
                Part::Text(fixed) => text.push_str(fixed),
                Part::Number { suffix } => {
                    text.push_str(&format!(" {}{suffix}", number(rng)));
                }
                Part::Word { class, suffix } => {
                    let word = self.free_word(rng, class, adjective, reserved);
                    adjective = if class == "adjective" { word } else { "" };
                    text.push(' ');
                    text.push_str(word);
                    text.push_str(suffix);
                }
            }
        }
        cuts.push(text.len());
        let fragments: Vec<&str> = cuts.windows(2).map(|cut| &text[cut[0]..cut[1]]).collect();
        let tokens = counter.count_joined(&fragments);
        Sentence { text, tokens }
    }

    /// A drawn entry, or the next one in the list that is not reserved. Ends because far fewer words are reserved than exist.
    fn free_word(&self, rng: &mut Rng, class: &str, adjective: &str, reserved: &Reserved) -> &str {
        let words = self.class(class);
        let first = rng.below(words.len());
        let is_free = |word: &str| match class {
            "adjective" => !reserved.labels.contains(word),
            "noun" if !adjective.is_empty() => !reserved.pairs.contains(&self.phrase(adjective, word)),
            "name" => !reserved.names.contains(word),
            _ => true,
        };
        (0..words.len())
            .map(|step| words[(first + step) % words.len()].as_str())
            .find(|word| is_free(word))
            .unwrap_or(&words[first])
    }
}

fn number(rng: &mut Rng) -> u32 {
    let span = (NUMBERS.end() - NUMBERS.start() + 1) as usize;
    *NUMBERS.start() + rng.below(span) as u32
}

/// Chinese text is counted clause by clause, each with the mark in front of it.
fn count_clauses(text: &str, counter: &dyn TokenCounter) -> usize {
    let marks = text.match_indices(['，', '；', '：', '、']).map(|(at, _)| at).filter(|at| *at > 0);
    let mut cuts = vec![0];
    cuts.extend(marks);
    cuts.push(text.len());
    let clauses: Vec<&str> = cuts.windows(2).map(|cut| &text[cut[0]..cut[1]]).collect();
    counter.count_joined(&clauses)
}
