//! What a task works with while it plants one question: parameters, its own random stream, and the draws that must be
//! unique in the document.

use std::collections::HashSet;

use super::haystack::{Plant, Unit};
use super::lexicon::{Lexicon, Reserved, Sentence, as_unit};
use super::lookalike::PairLines;
use super::params::{ParamError, ValueKind};
use super::{Task, TaskError};
use crate::rng::Rng;
use crate::sample::{Bin, Binding, Expected, FollowUp, Language};
use crate::tokenizer::TokenCounter;

/// Draws that may hit a used value before the stock counts as exhausted. With half of the stock used, 64 failures in a row
/// have a chance of 2⁻⁶⁴.
const MAX_DRAWS: usize = 64;

/// State of a document that its questions share.
pub(super) struct Soil {
    /// Values in use: every value of a document is different.
    pub(super) values: HashSet<String>,
    /// Keys and labels in use.
    pub(super) reserved: Reserved,
    /// Everything planted so far: a later key must not stand in an earlier passage.
    pub(super) planted: String,
    /// Drawn once per document; tasks use it for what all their questions have in common.
    pub(super) variant: u64,
    /// Lines of a document of pairs.
    pub(super) pairs: PairLines,
}

/// What a task works with while it plants one question.
pub struct Planting<'a> {
    pub(super) task: &'static Task,
    pub(super) language: Language,
    pub(super) bin: Bin,
    /// The depth slot as a share.
    pub(super) slot: f64,
    pub(super) params: &'a toml::Table,
    /// The question's own stream.
    pub(super) rng: Rng,
    /// Number of the question in its document.
    pub(super) question: usize,
    pub(super) soil: &'a mut Soil,
    pub(super) lexicon: &'static Lexicon,
    pub(super) counter: &'a dyn TokenCounter,
}

/// One planted question.
#[derive(Clone)]
pub struct Planted {
    /// What has to stand in the text.
    pub(super) plants: Vec<Plant>,
    /// What has to be said before the text, if anything: the same for all questions of a task in one document.
    pub(super) opening: Option<String>,
    /// The question with its instructions.
    pub(super) question: Question,
    /// What is right.
    pub(super) expected: Expected,
    /// Questions asked after the first answer, with what is right.
    pub(super) follow_ups: Vec<FollowUp>,
    /// Text that the answer is made to begin with.
    pub(super) answer_prefix: String,
}

impl Planted {
    /// A single question, with nothing to say before the text.
    pub(super) fn new(plants: Vec<Plant>, question: Question, expected: Expected) -> Self {
        Self { plants, opening: None, question, expected, follow_ups: Vec::new(), answer_prefix: String::new() }
    }
}

/// A question in two wordings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Question {
    /// The one that is asked.
    pub(super) text: String,
    /// Another one that asks for the same.
    pub(super) paraphrase: String,
    /// Names and values in it that no change of wording may touch.
    pub(super) fixed: Vec<String>,
}

/// The wordings of one thing, in every language. `{0}`, `{1}` … stand for what is filled in.
pub(super) struct Wordings {
    /// English.
    pub(super) en: &'static [&'static str],
    /// Chinese.
    pub(super) zh: &'static [&'static str],
}

impl Wordings {
    /// Those of a language.
    pub(super) fn of(&self, language: Language) -> &'static [&'static str] {
        match language {
            Language::En => self.en,
            Language::Zh => self.zh,
        }
    }
}

/// `pattern` with `{0}`, `{1}` … replaced; what is filled in is not looked at again.
pub(super) fn filled(pattern: &str, arguments: &[&str]) -> String {
    let mut text = String::with_capacity(pattern.len() + 16 * arguments.len());
    let mut rest = pattern;
    while let Some((before, behind)) = rest.split_once('{') {
        text.push_str(before);
        let number = behind.split_once('}').and_then(|(number, behind)| Some((number.parse::<usize>().ok()?, behind)));
        match number.and_then(|(number, behind)| Some((arguments.get(number)?, behind))) {
            Some((argument, behind)) => {
                text.push_str(argument);
                rest = behind;
            }
            None => {
                text.push('{');
                rest = behind;
            }
        }
    }
    text + rest
}

impl Planting<'_> {
    /// The task's parameters.
    pub(super) fn params<P: serde::de::DeserializeOwned>(&self) -> Result<P, TaskError> {
        super::params::parse(self.params).map_err(|error: ParamError| self.param_error(error))
    }

    fn param_error(&self, error: ParamError) -> TaskError {
        TaskError::Params { task: self.task.id.into(), message: error.message }
    }

    fn exhausted(&self, what: &'static str) -> TaskError {
        TaskError::Exhausted { task: self.task.id.into(), what }
    }

    /// A value that no other key of the document has.
    pub(super) fn fresh_value(&mut self, kind: ValueKind) -> Result<String, TaskError> {
        match kind {
            ValueKind::Digits => self.fresh_digits(7),
            ValueKind::Hex => draw_value(&mut self.soil.values, || hex(&mut self.rng)),
        }
        .ok_or_else(|| self.exhausted("value"))
    }

    /// A number of four digits that stands nowhere else in the document.
    pub(super) fn fresh_code(&mut self) -> Result<String, TaskError> {
        self.fresh_digits(4).ok_or_else(|| self.exhausted("code"))
    }

    fn fresh_digits(&mut self, length: u32) -> Option<String> {
        draw_value(&mut self.soil.values, || digits(&mut self.rng, length))
    }

    /// An `adjective noun` (Chinese: `adjective的noun`) that stands nowhere else in the document.
    pub(super) fn fresh_key(&mut self) -> Result<String, TaskError> {
        Ok(self.fresh_pair(None, None)?.2)
    }

    /// Keys of the same kind, each of which shares its adjective or its noun, in turn, with the first.
    pub(super) fn fresh_keys_alike(&mut self, count: usize) -> Result<Vec<String>, TaskError> {
        let (adjective, noun, first) = self.fresh_pair(None, None)?;
        let mut keys = vec![first];
        while keys.len() < count {
            let shared = if keys.len() % 2 == 1 { (None, Some(noun)) } else { (Some(adjective), None) };
            keys.push(self.fresh_pair(shared.0, shared.1)?.2);
        }
        Ok(keys)
    }

    /// Adjective, noun and the key they make; what is not given is drawn.
    fn fresh_pair(
        &mut self,
        adjective: Option<&'static str>,
        noun: Option<&'static str>,
    ) -> Result<(&'static str, &'static str, String), TaskError> {
        let lexicon = self.lexicon;
        for _ in 0..MAX_DRAWS {
            let adjective = adjective.unwrap_or_else(|| self.rng.choose::<String>(lexicon.class("adjective")));
            let noun = noun.unwrap_or_else(|| self.rng.choose::<String>(lexicon.class("noun")));
            let key = lexicon.phrase(adjective, noun);
            let is_free = !self.soil.reserved.labels.contains(adjective) && !self.soil.planted.contains(&key);
            if is_free && self.soil.reserved.pairs.insert(key.clone()) {
                return Ok((adjective, noun, key));
            }
        }
        Err(self.exhausted("key"))
    }

    /// The name of a person of whom the filler says nothing.
    pub(super) fn fresh_name(&mut self) -> Result<String, TaskError> {
        for _ in 0..MAX_DRAWS {
            let name = self.rng.choose(self.lexicon.class("name"));
            if !self.soil.planted.contains(name) && self.soil.reserved.names.insert(name.clone()) {
                return Ok(name.clone());
            }
        }
        Err(self.exhausted("name"))
    }

    /// An adjective that stands nowhere else in the document: the name of a list.
    pub(super) fn fresh_label(&mut self) -> Result<String, TaskError> {
        for _ in 0..MAX_DRAWS {
            let label = self.rng.choose(self.lexicon.class("adjective"));
            let start = self.lexicon.phrase(label, "");
            let starts_a_key = self.soil.reserved.pairs.iter().any(|pair| pair.starts_with(&start));
            let is_free = !starts_a_key && !self.soil.planted.contains(label);
            if is_free && self.soil.reserved.labels.insert(label.clone()) {
                return Ok(label.clone());
            }
        }
        Err(self.exhausted("list name"))
    }

    /// Draws one of the wordings and fills it in.
    pub(super) fn say(&mut self, wordings: &Wordings, arguments: &[&str]) -> String {
        filled(self.rng.choose::<&str>(wordings.of(self.language)), arguments)
    }

    /// The wording that all questions of the document use, filled in.
    pub(super) fn say_alike(&self, wordings: &Wordings, arguments: &[&str]) -> String {
        filled(self.shared_choice::<&str>(wordings.of(self.language)), arguments)
    }

    /// Draws one of the wordings for the question and takes the next one for its paraphrase.
    pub(super) fn ask(&mut self, wordings: &Wordings, arguments: &[&str]) -> Question {
        let choices = wordings.of(self.language);
        let chosen = self.rng.below(choices.len());
        let other = (chosen + 1) % choices.len();
        Question {
            text: filled(choices[chosen], arguments),
            paraphrase: filled(choices[other], arguments),
            fixed: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
        }
    }

    /// One of the wordings of the document, the same for all its questions.
    pub(super) fn shared_choice<'c, T>(&self, choices: &'c [T]) -> &'c T {
        &choices[(self.soil.variant % choices.len() as u64) as usize]
    }

    /// One sentence of filler.
    pub(super) fn sentence(&mut self) -> Sentence {
        self.lexicon.sentence(&mut self.rng, &self.soil.reserved, self.counter)
    }

    /// A plant out of a sentence with its full stop and without a leading space.
    pub(super) fn plant(&mut self, number: usize, place: f64, sentence: &str, entry: Option<Binding>) -> Plant {
        let text = as_unit(self.language, sentence);
        self.soil.planted.push_str(&text);
        let tokens = self.counter.count(&text);
        Plant { unit: Unit { text, tokens, entry }, place, question: self.question, number }
    }

    /// Places for `count` plants over the whole text: one in each of `count` equal stretches, at random within it.
    pub(super) fn spread(&mut self, count: usize) -> Vec<f64> {
        (0..count).map(|index| (index as f64 + self.rng.unit()) / count as f64).collect()
    }
}

/// A value that is not in `used`, and is from now on.
pub(super) fn draw_value(used: &mut HashSet<String>, mut draw: impl FnMut() -> String) -> Option<String> {
    (0..MAX_DRAWS).map(|_| draw()).find(|value| used.insert(value.clone()))
}

/// `length` decimal digits, the first not zero.
pub(super) fn digits(rng: &mut Rng, length: u32) -> String {
    let least = 10_usize.pow(length - 1);
    (least + rng.below(9 * least)).to_string()
}

/// Thirty-two hexadecimal digits.
pub(super) fn hex(rng: &mut Rng) -> String {
    format!("{:016x}{:016x}", rng.next_u64(), rng.next_u64())
}

/// A value of the kind.
pub(super) fn value(rng: &mut Rng, kind: ValueKind) -> String {
    match kind {
        ValueKind::Digits => digits(rng, 7),
        ValueKind::Hex => hex(rng),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_filled_in_is_not_filled_again() {
        assert_eq!(filled("{1} of {0}: {x} {7}{", &["{1}", "b"]), "b of {1}: {x} {7}{");
        assert_eq!(filled("", &["a"]), "");
    }
}
