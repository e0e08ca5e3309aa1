//! Words in an order that no grammar has, without anything that says what they should be: a part of garbage.
//!
//! English only. What follows an article or a preposition is a noun phrase, in whatever style; a shuffled or drawn text puts
//! another function word there a third of the time, whole prose less than one time in a hundred.

use crate::detectors::tokens::{Kind, Token};
use crate::detectors::tongue::function_word;
use crate::detectors::words::{ADVERB, ARTICLE, CONJUNCTION, PREPOSITION, VERB};

/// Impossible pairs, and their share of the words that ask for something after them.
const MIN_ODD: usize = 3;
const MIN_ODD_SHARE: f64 = 0.22;
/// Words at the end that are judged apart from the rest.
const TAIL: usize = 40;
/// Words that are no function words.
const MIN_CONTENT: usize = 4;
/// Words read; what is wrong with a longer text shows in its end.
const MAX_TOKENS: usize = 4096;

/// Whether the second cannot follow the first. `to have`, `in and out` and `the to-do list` are why not every pair is here.
fn is_odd(first: &Token, second: &Token) -> bool {
    let (before, after) = (first.known.class(), second.known.class());
    match before {
        ARTICLE => after & (ARTICLE | PREPOSITION | CONJUNCTION | VERB) != 0,
        PREPOSITION => after & VERB != 0 || (after & CONJUNCTION != 0) || first.hash == second.hash,
        CONJUNCTION => after & CONJUNCTION != 0,
        ADVERB => after & (ARTICLE | PREPOSITION | CONJUNCTION | VERB) != 0,
        _ => false,
    }
}

/// Impossible pairs of a text that is made of little else, and the tokens they stand in.
pub(super) struct Salad {
    pub(super) odd: usize,
    pub(super) first: usize,
    pub(super) last: usize,
}

/// Looks at the whole and at the end: the first half of a text may be sound.
pub(super) fn salad(text: &str, tokens: &[Token]) -> Option<Salad> {
    let from = tokens.len().saturating_sub(MAX_TOKENS);
    let tail = tokens.len().saturating_sub(TAIL).max(from);
    judged(text, tokens, from).or_else(|| (tail > from).then(|| judged(text, tokens, tail)).flatten())
}

fn judged(text: &str, tokens: &[Token], from: usize) -> Option<Salad> {
    let (mut odd, mut asking) = (0, 0);
    let is_content = |token: &&Token| token.kind == Kind::Word && function_word(token) == 0;
    // Lists of function words are about grammar.
    if tokens[from..].iter().filter(is_content).take(MIN_CONTENT).count() < MIN_CONTENT {
        return None;
    }
    let mut found: Option<(usize, usize)> = None;
    let is_blank = |at: usize, next: usize| at + 1 == next && text.as_bytes()[at] == b' ';
    for (at, pair) in (from..).zip(tokens[from..].windows(2)) {
        // Only a blank between them: marks quote, list and join words of any kind.
        if pair[0].known.class() == 0 || !is_blank(pair[0].end, pair[1].start) {
            continue;
        }
        asking += 1;
        if is_odd(&pair[0], &pair[1]) {
            odd += 1;
            found = Some((found.map_or(at, |(first, _)| first), at + 1));
        }
    }
    let (first, last) = found?;
    (odd >= MIN_ODD && odd as f64 >= asking as f64 * MIN_ODD_SHARE).then_some(Salad { odd, first, last })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detectors::tokens::tokens;

    fn is_salad(text: &str) -> bool {
        salad(text, &tokens(text)).is_some()
    }

    #[test]
    fn shuffled_words_are_salad_and_prose_is_none() {
        assert!(is_salad("violin of the seventeen because running blue very the of of lamp sings into pillow"));
        assert!(is_salad("gate the of was morning a and clerks to had the in river but left wall the is by stone of"));
        assert!(!is_salad(
            "The clerk was in and out of the office, and what it is made of is not known to the men who had \
             the to-do list; the if statement and the for loop are the best of the lot by the way."
        ));
        assert!(!is_salad("to be or not to be, that is the question of the day"));
        let sound =
            "The clerk kept the ledger in the office of the harbour, and the gate was shut at night. ".repeat(9);
        assert!(!is_salad(&sound));
        assert!(is_salad(&format!(
            "{sound} clerk the of gate was in and but river is to the of bell and by a was the or of stone"
        )));
        assert!(!is_salad("a an the in on at of to and or but is are was were has have had"));
    }
}
