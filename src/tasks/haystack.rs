//! The document: filler around planted units, at token positions, to an exact budget.
//!
//! A unit is a piece of text that starts with its separator (a space in English prose, the full stop of the sentence before
//! in Chinese, a newline in a list) and ends in something visible, so that units meet at boundaries where the tokenizer's
//! counts add up.

use super::lexicon::{Lexicon, Reserved, as_unit, trim_separator};
use crate::rng::Rng;
use crate::sample::{Binding, Language};
use crate::tokenizer::TokenCounter;

/// One piece of a document.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    /// Separator and text.
    pub(super) text: String,
    /// Tokens of `text` on its own.
    pub(super) tokens: usize,
    /// The key and value it states, where it states one that may be confused with another.
    pub(super) entry: Option<Binding>,
}

/// A unit with its place.
#[derive(Clone, Debug)]
pub(super) struct Plant {
    /// The text.
    pub(super) unit: Unit,
    /// Wanted place as a share of the document's tokens, 0 = first, 1 = last.
    pub(super) place: f64,
    /// Question it belongs to.
    pub(super) question: usize,
    /// Counts the plants of one question.
    pub(super) number: usize,
}

/// A finished document.
#[derive(Clone, Debug, Default)]
pub(super) struct Document {
    /// In reading order, with the offset in tokens of each unit's start.
    pub(super) units: Vec<PlacedUnit>,
    /// Sum over the units.
    pub(super) tokens: usize,
}

/// A unit in its document.
#[derive(Clone, Debug)]
pub(super) struct PlacedUnit {
    /// The unit.
    pub(super) unit: Unit,
    /// Tokens of the document before it.
    pub(super) offset: usize,
    /// Question and number of a plant; `None` for filler.
    pub(super) plant: Option<(usize, usize)>,
}

/// Where filler comes from.
pub(super) trait Filler {
    /// The next unit.
    fn next_unit(&mut self, counter: &dyn TokenCounter) -> Unit;

    /// Draws that may fail to fit the rest of the budget before the rest is left unused.
    fn last_fits(&self) -> usize;

    /// Brings the drawn units into their order of appearance.
    fn order(&mut self, _units: &mut [Unit]) {}
}

/// Grammar-generated prose.
pub(super) struct Prose<'a> {
    pub(super) language: Language,
    pub(super) lexicon: &'a Lexicon,
    pub(super) reserved: &'a Reserved,
    pub(super) rng: Rng,
}

/// One unit in this many is two sentences with a line break between them: paragraphs without a break between units.
const UNITS_PER_PARAGRAPH: usize = 6;

impl Filler for Prose<'_> {
    fn next_unit(&mut self, counter: &dyn TokenCounter) -> Unit {
        let first = self.lexicon.sentence(&mut self.rng, self.reserved, counter);
        let text = as_unit(self.language, first.text.trim_start());
        if self.rng.below(UNITS_PER_PARAGRAPH) > 0 {
            return Unit { text, tokens: first.tokens, entry: None };
        }
        let second = self.lexicon.sentence(&mut self.rng, self.reserved, counter);
        let text = match self.language {
            Language::En => format!("{text}\n{}", second.text.trim_start()),
            Language::Zh => format!("{text}。\n{}", second.text.trim_end_matches('。')),
        };
        // A newline may merge with the full stop before it, so this pair is counted as a whole.
        Unit { tokens: counter.count(&text), text, entry: None }
    }

    /// Sentences have 8 to 40 tokens: this leaves less than the shortest almost always.
    fn last_fits(&self) -> usize {
        24
    }
}

/// Draws filler until `budget` tokens are used as far as possible; never more.
pub(super) fn fill(filler: &mut dyn Filler, budget: usize, counter: &dyn TokenCounter) -> Vec<Unit> {
    let mut units = Vec::new();
    let mut used = 0;
    let mut misses = 0;
    while misses < filler.last_fits() && used < budget {
        let unit = filler.next_unit(counter);
        // A unit without tokens would never end the loop.
        if used + unit.tokens.max(1) <= budget {
            used += unit.tokens.max(1);
            units.push(unit);
        } else {
            misses += 1;
        }
    }
    filler.order(&mut units);
    units
}

/// Puts the plants between the filler, each as near to its place as whole units allow. Plants keep the order of their
/// places; equal places keep the order given.
pub(super) fn arrange(mut plants: Vec<Plant>, filler: Vec<Unit>) -> Document {
    let total: usize = plants.iter().map(|plant| plant.unit.tokens).chain(filler.iter().map(|unit| unit.tokens)).sum();
    plants.sort_by(|left, right| left.place.total_cmp(&right.place));
    let mut waiting = plants.into_iter().peekable();
    let mut document = Document::default();
    for unit in filler {
        let middle = (document.tokens + unit.tokens / 2) as f64;
        while let Some(plant) =
            waiting.next_if(|plant| plant.place * total.saturating_sub(plant.unit.tokens) as f64 <= middle)
        {
            document.push(plant.unit, Some((plant.question, plant.number)));
        }
        document.push(unit, None);
    }
    for plant in waiting {
        document.push(plant.unit, Some((plant.question, plant.number)));
    }
    document
}

impl Document {
    fn push(&mut self, unit: Unit, plant: Option<(usize, usize)>) {
        let tokens = unit.tokens;
        self.units.push(PlacedUnit { unit, offset: self.tokens, plant });
        self.tokens += tokens;
    }

    /// The text.
    pub(super) fn text(&self) -> String {
        self.units.iter().map(|placed| placed.unit.text.as_str()).collect()
    }

    /// Position in `units` of a question's plant.
    pub(super) fn find(&self, question: usize, number: usize) -> Option<usize> {
        self.units.iter().position(|placed| placed.plant == Some((question, number)))
    }

    /// Position in `units` of the entry with this value: no two have the same.
    pub(super) fn find_value(&self, value: &str) -> Option<usize> {
        let is_it = |placed: &PlacedUnit| placed.unit.entry.as_ref().is_some_and(|entry| entry.value == value);
        self.units.iter().position(is_it)
    }

    /// The text around the unit at `center`, up to `reach` tokens to each side.
    pub(super) fn excerpt(&self, center: usize, reach: usize) -> String {
        let offset = self.units[center].offset;
        let end = offset + self.units[center].unit.tokens;
        let near = self
            .units
            .iter()
            .filter(|placed| placed.offset + reach >= offset && placed.offset + placed.unit.tokens <= end + reach);
        let text: String = near.map(|placed| placed.unit.text.as_str()).collect();
        trim_separator(&text).to_owned()
    }

    /// Whether the sum of the units' counts is exact between `before` and `after`.
    pub(super) fn is_additive(&self, before: &str, after: &str, counter: &dyn TokenCounter) -> bool {
        let texts = self.units.iter().map(|placed| placed.unit.text.as_str());
        let mut left = before;
        for right in texts.chain([after]) {
            if !counter.is_additive_at(left, right) {
                return false;
            }
            left = right;
        }
        // Without the units `before` meets `after`: that is how the frame around them is counted.
        counter.is_additive_at(before, after)
    }
}
