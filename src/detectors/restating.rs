//! Paraphrase loops: sentence after sentence that says again what was just said.

use std::ops::Range;

use crate::detectors::content::add_content;
use crate::detectors::reading::Reading;
use crate::detectors::repetition::Place;
use crate::detectors::tokens::{Kind, Token};
use crate::detectors::tongue::{HashKeyed, sentences};

/// Sentences in a row that say nothing new.
const MIN_SENTENCES: usize = 4;
/// The same in verse, where a chorus comes back.
const MIN_VERSE_LINES: usize = 10;
/// New content words that such a sentence may still have.
const MAX_NEW_SHARE: f64 = 0.34;
/// Content words (ideograph pairs) of a sentence that can say something again.
const MIN_WORDS: usize = 3;
/// Sentences back to which a sentence is held.
const WINDOW: usize = 6;
/// Share of the output that has to be restating.
const MIN_SHARE: f64 = 0.35;
/// Sentences read at the end; more would be a loop of another kind long before.
const MAX_SENTENCES: usize = 4096;

struct Run {
    first: usize,
    last: usize,
    sentences: usize,
}

/// The longest run of sentences that say nothing new, where no reference has one.
pub(super) fn restated(reading: &Reading<'_>) -> Option<Place> {
    if reading.is_data() {
        return None;
    }
    let (read, tokens) = (reading.text, reading.tokens());
    // They restate one before them.
    if reading.sentences().len() <= MIN_SENTENCES {
        return None;
    }
    let run = longest_run(read, tokens, reading.sentences().iter().cloned())?;
    let (start, end) = (tokens[run.first].start, tokens[run.last].end);
    if ((end - start) as f64) < read.trim_end().len() as f64 * MIN_SHARE {
        return None;
    }
    let is_asked_for = |text: &str, tokens: &[Token]| {
        longest_run(text, tokens, sentences(text, tokens)).is_some_and(|asked| asked.sentences * 2 >= run.sentences)
    };
    if reading.references().iter().any(|reference| is_asked_for(reference.text, &reference.tokens)) {
        return None;
    }
    Some(Place::new(read, start, end, |share| format!("{} sentences in a row say nothing new, {share}", run.sentences)))
}

fn longest_run(text: &str, tokens: &[Token], sentences: impl Iterator<Item = Range<usize>>) -> Option<Run> {
    // What was said, with the number of the sentence that said it last, of those that say anything.
    let mut said: HashKeyed<usize> = HashKeyed::default();
    let mut number = 0;
    let (mut content, mut facts) = (Vec::new(), Vec::new());
    let mut best: Option<Run> = None;
    let mut run: Option<Run> = None;
    for sentence in sentences.take(MAX_SENTENCES) {
        let found = &tokens[sentence.clone()];
        if !is_sentence(text, found) {
            run = None;
            continue;
        }
        content.clear();
        add_content(&mut content, text, found);
        keep_different(&mut content);
        if content.len() < MIN_WORDS {
            continue;
        }
        let is_new = |word: &u64| said.get(word).is_none_or(|last| last + WINDOW <= number);
        let new = content.iter().filter(|word| is_new(word)).count();
        facts.clear();
        facts.extend(facts_of(found));
        let has_new_fact = facts.iter().any(is_new);
        content.append(&mut facts);
        keep_different(&mut content);
        if new as f64 <= content.len() as f64 * MAX_NEW_SHARE && !has_new_fact && number > 0 {
            let run = run.get_or_insert(Run { first: sentence.start, last: 0, sentences: 0 });
            run.last = sentence.end - 1;
            run.sentences += 1;
            if best.as_ref().is_none_or(|best| run.sentences > best.sentences) {
                best = Some(Run { ..*run });
            }
        } else {
            run = None;
        }
        number += 1;
        said.extend(content.iter().map(|word| (*word, number)));
    }
    best.filter(|run| run.sentences >= if is_verse(text) { MIN_VERSE_LINES } else { MIN_SENTENCES })
}

fn keep_different(hashes: &mut Vec<u64>) {
    hashes.sort_unstable();
    hashes.dedup();
}

/// Numbers and names: a sentence with another one says something new, however like the one before it is.
fn facts_of(found: &[Token]) -> impl Iterator<Item = u64> {
    let names = found.iter().skip(1).filter(|token| token.is_capital);
    let numbers = found.iter().filter(|token| token.kind == Kind::Number);
    names.chain(numbers).map(|token| token.hash)
}

/// Ends as a sentence does and consists of words: rows, steps and log lines do not.
fn is_sentence(text: &str, found: &[Token]) -> bool {
    let Some(last) = found.last() else { return false };
    let ends = matches!(last.text(text), "." | "!" | "?" | "。" | "！" | "？" | "；");
    ends && found.iter().filter(|token| !token.is_wordlike()).count() * 3 <= found.len()
}

/// Short lines, one or two sentences each.
fn is_verse(text: &str) -> bool {
    const MAX_LINE: usize = 80;
    let (mut lines, mut short) = (0, 0);
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        lines += 1;
        short += usize::from(line.chars().count() <= MAX_LINE);
    }
    lines >= 4 && short * 4 >= lines * 3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detectors::Context;

    fn found(output: &str) -> Option<String> {
        restated(&Reading::of(&Context::of(output))).map(|place| place.evidence)
    }

    #[test]
    fn saying_it_again_and_again_is_found() {
        let output = "The harbour office closed early that week. The office at the harbour was closed early. \
             Early that week, the harbour's office had closed. So the office of the harbour closed early. \
             That week the harbour office was closing early. The harbour office, that week, closed early.";
        assert!(found(output).unwrap().starts_with("5 sentences in a row say nothing new"));
        let output = "港口办公室那一周很早就关门了。那一周港口办公室关门很早。港口办公室很早就在那一周关门了。\
             那一周很早，港口办公室就关门了。港口办公室那一周关门很早。";
        assert!(found(output).is_some());
    }

    #[test]
    fn prose_that_goes_on_is_left_alone() {
        let outputs = [
            "The red box stands in the hall. The blue box stands in the kitchen. The green box stands in the attic. \
             The white box stands in the cellar. The black box stands in the garden. The grey box stands in the barn.",
            "We sailed at dawn.\nThe sea was wide and grey.\nSing ho for the harbour light.\nThe mate was ill.\n\
             The sea was wide and grey.\nSing ho for the harbour light.\nThe cook was dead.\n\
             The sea was wide and grey.\nSing ho for the harbour light.",
        ];
        for output in outputs {
            assert_eq!(found(output), None, "{output}");
        }
    }
}
