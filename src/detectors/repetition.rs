//! Loops.
//!
//! - An exact period at the end: at least 4 copies and 24 tokens (digits one each), unbroken. Compression and n-gram shares are no criterion:
//!   clean JSON arrays reach any limit that catches loops.
//! - An exact period anywhere: at least 8 copies and 64 tokens, with words in it.
//! - The same as the first with numbers masked, for loops with a counter: only when they go past what the expected answer has of it.
//! - Units doubled where they stand (`the the cat cat`), which leaves n-gram shares low.
//! - Runs of whitespace or of one character.
//!
//! What the expected answer or the baseline repeats as often is asked for. Without either, valid JSON and ruled lines are
//! form, not loops.

use std::cell::OnceCell;

use crate::detectors::period::{Period, from_end, may_have_suffix_period, suffix_period, z_function};
use crate::detectors::reading::{Reading, Reference};
use crate::detectors::restating::restated;
use crate::detectors::tokens::{Kind, Token, digit_masked, masked};
use crate::detectors::tongue::function_word;
use crate::sample::{Finding, FindingKind};

const MIN_COVERED_TOKENS: usize = 24;
/// A loop of numbers alone, where nothing is known of what was asked.
const MIN_DATA_COPIES: usize = 8;
const MIN_DATA_TOKENS: usize = 64;
/// A loop with a counter is weaker evidence, and a table looks the same.
const MIN_COUNTED_COPIES: usize = 6;
/// Tokens after the last whole copy that may differ: an answer cut inside a word, a closing quote.
const MAX_TAIL_TOKENS: usize = 3;

/// A loop inside the output: twice the copies and more tokens than one at the end needs, and its longest unit, which bounds
/// the work to that many comparisons per token.
const MIN_ESCAPED_COPIES: usize = 8;
const MIN_ESCAPED_TOKENS: usize = 64;
const MAX_ESCAPED_UNIT: usize = 64;

/// Blanks in a row: indentation and table columns stay under it.
const MIN_BLANKS: usize = 200;
const MIN_LINE_FEEDS: usize = 32;
/// One letter, digit or mark in a row; marks that draw lines may be longer.
const MIN_RUN_CHARS: usize = 40;
const MIN_RULE_CHARS: usize = 200;
const RULE_CHARS: &str = "-=_*#~.+|─━═·…";

/// Doubling: squares needed, and their share of the words looked at. Clean prose stays under 2 %.
const MIN_DOUBLES: usize = 6;
const MIN_DOUBLED_SHARE: f64 = 0.4;
/// Different ones of them: a song says `la la` for long, damage doubles whatever stands there.
const MIN_DOUBLED_KINDS: usize = 4;
/// Doubled ideographs next to each other: more than reduplication has.
const MIN_IDEOGRAPHS_IN_A_ROW: usize = 4;
/// Longest doubled unit in tokens.
const MAX_DOUBLED_UNIT: usize = 4;
/// Words at the end in which doubling is looked for separately: it may start late.
const DOUBLING_TAIL: usize = 60;

pub(super) fn detect(reading: &Reading<'_>) -> Option<Finding> {
    if reading.context.is_as_expected() {
        return None;
    }
    let (read, from) = (reading.text, reading.from);
    let found = character_run(reading).or_else(|| {
        let tokens = reading.tokens();
        let weights = Weights { tokens, until: OnceCell::new() };
        // What repeats exactly repeats with its numbers masked.
        let may_repeat = may_have_suffix_period(tokens.len(), from_end(tokens, masked), MAX_TAIL_TOKENS);
        (may_repeat.then(|| exact_loop(reading, &weights)).flatten())
            .or_else(|| inner_loop(reading))
            .or_else(|| may_repeat.then(|| counted_loop(reading, &weights)).flatten())
            .or_else(|| escaped_loop(reading))
            .or_else(|| doubling(reading))
            .or_else(|| restated(reading))
    })?;
    Some(Finding {
        kind: FindingKind::Repetition,
        severity: (found.end - found.start) as f64 / read.trim_end().len().max(found.end - found.start).max(1) as f64,
        start: from + found.start,
        end: from + found.end,
        evidence: found.evidence,
    })
}

/// A place in the text read.
pub(super) struct Place {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) evidence: String,
}

impl Place {
    pub(super) fn new(read: &str, start: usize, end: usize, what: impl FnOnce(String) -> String) -> Self {
        let share = (end - start) as f64 / read.len().max(1) as f64;
        Self { start, end, evidence: what(format!("{:.0} % of the output", share * 100.0)) }
    }
}

/// The longest run of whitespace, or of one character.
fn character_run(reading: &Reading<'_>) -> Option<Place> {
    let read = reading.text;
    if !may_have_run(read.as_bytes()) {
        return None;
    }
    let mut blanks = Run::default();
    let mut same = Run::default();
    let mut worst: Option<(Run, &'static str)> = None;
    let mut line_feeds = 0;
    let mut keep = |run: Run, what: &'static str| {
        if worst.as_ref().is_none_or(|(longest, _)| run.chars > longest.chars) {
            worst = Some((run, what));
        }
    };
    for (at, c) in read.char_indices() {
        let end = at + c.len_utf8();
        if c.is_whitespace() {
            line_feeds += usize::from(c == '\n');
            blanks.extend(at, end, ' ');
            same = Run::default();
            if blanks.chars >= MIN_BLANKS || line_feeds >= MIN_LINE_FEEDS {
                keep(blanks, "whitespace");
            }
            continue;
        }
        blanks = Run::default();
        line_feeds = 0;
        if same.of != c {
            same = Run::default();
        }
        same.extend(at, end, c);
        if same.chars >= MIN_RUN_CHARS && (same.chars >= MIN_RULE_CHARS || !RULE_CHARS.contains(c)) {
            keep(same, "one character");
        }
    }
    let (run, what) = worst?;
    let material = &read[run.start..run.end];
    if reading.context.references().any(|reference| reference.contains(material)) {
        return None;
    }
    let shown = if run.of == ' ' { String::new() } else { format!(" `{}`", run.of) };
    let chars = run.chars;
    Some(Place::new(read, run.start, run.end, |share| format!("{what}{shown} {chars} times in a row, {share}")))
}

/// Whether there may be a run that is long enough: every such run has one of the places looked at, and is looked at whole.
fn may_have_run(bytes: &[u8]) -> bool {
    /// Between two places. A run of [`MIN_RUN_CHARS`] has one with [`WIDTH`] + [`ALIKE`] bytes of the run behind it, a run
    /// of [`MIN_LINE_FEEDS`] blanks one with [`ALIKE`].
    const STRIDE: usize = 16;
    /// Whatever bytes a character of UTF-8 has, 1 to 4, the same ones come again after so many.
    const WIDTH: usize = 12;
    const ALIKE: usize = 8;
    const { assert!(STRIDE + WIDTH + ALIKE <= MIN_RUN_CHARS && STRIDE + ALIKE <= MIN_LINE_FEEDS) };
    // Places around `at` of which `is` is true.
    let around = |at: usize, end: usize, is: &dyn Fn(usize) -> bool| {
        let before = (0..at).rev().take_while(|at| is(*at)).take(MIN_RUN_CHARS).count();
        before + (at..end).take_while(|at| is(*at)).take(MIN_RUN_CHARS).count()
    };
    let is_blank = |at: usize| is_of_blank(bytes[at]);
    let comes_again = |at: usize| bytes[at] == bytes[at + WIDTH];
    (0..bytes.len().saturating_sub(ALIKE - 1)).step_by(STRIDE).any(|at| {
        let here = &bytes[at..at + ALIKE];
        let again = bytes.get(at + WIDTH..at + WIDTH + ALIKE);
        again == Some(here) && around(at, bytes.len() - WIDTH, &comes_again) + WIDTH >= MIN_RUN_CHARS
            || here.iter().all(|byte| is_of_blank(*byte)) && around(at, bytes.len(), &is_blank) >= MIN_LINE_FEEDS
    })
}

/// Whether a character of whitespace has this byte: of ASCII, U+0085, U+00A0, U+1680, U+2000 and those after it, U+3000.
fn is_of_blank(byte: u8) -> bool {
    matches!(byte, b'\t'..=b'\r' | b' ' | 0x80..=0x8a | 0x9a | 0x9f | 0xa0 | 0xa8 | 0xa9 | 0xaf | 0xc2 | 0xe1..=0xe3)
}

#[derive(Clone, Copy, Default)]
struct Run {
    of: char,
    start: usize,
    end: usize,
    chars: usize,
}

impl Run {
    fn extend(&mut self, start: usize, end: usize, of: char) {
        if self.chars == 0 {
            *self = Self { of, start, end, chars: 0 };
        }
        self.end = end;
        self.chars += 1;
    }
}

/// What a loop covers, in tokens of a model: those split numbers into digits.
struct Weights<'t> {
    tokens: &'t [Token],
    /// The sum before each token, worked out for the first period: most texts have none.
    until: OnceCell<Vec<usize>>,
}

impl Weights<'_> {
    fn until(&self) -> &[usize] {
        let weight = |token: &Token| if token.kind == Kind::Number { token.end - token.start } else { 1 };
        let after = || {
            self.tokens.iter().scan(0, |sum, token| {
                *sum += weight(token);
                Some(*sum)
            })
        };
        self.until.get_or_init(|| std::iter::once(0).chain(after()).collect())
    }

    fn covered(&self, period: &Period) -> usize {
        let end = self.tokens.len() - period.tail;
        self.until()[end] - self.until()[end - period.covered]
    }
}

fn exact_loop(reading: &Reading<'_>, weights: &Weights<'_>) -> Option<Place> {
    let tokens = reading.tokens();
    let has_reference = reading.context.has_measure();
    let item = from_end(tokens, |token| token.hash);
    let period = suffix_period(tokens.len(), item, MAX_TAIL_TOKENS, |period| {
        let covered = weights.covered(period);
        let is_much = covered >= MIN_DATA_TOKENS && period.copies() >= MIN_DATA_COPIES;
        // Columns of equal numbers are data as far as anybody knows.
        covered >= MIN_COVERED_TOKENS && (has_reference || is_much || has_words_or_marks(loop_tokens(tokens, *period)))
    })?;
    judged_loop(reading, loop_tokens(tokens, period), period)
}

fn has_words_or_marks(looped: &[Token]) -> bool {
    looped.iter().any(Token::is_wordlike) || looped.iter().all(|token| token.kind == Kind::Mark)
}

/// A loop that the output got out of. Asks for more than one at the end, and for words: data repeats numbers and marks.
///
/// A loop of the least length has at least 56 tokens equal to those one unit before, so looking at every 32nd token finds
/// it: O(n), as what was found is not looked at again.
fn escaped_loop(reading: &Reading<'_>) -> Option<Place> {
    let tokens = reading.tokens();
    const STRIDE: usize = 32;
    if tokens.len() < MIN_ESCAPED_TOKENS {
        return None;
    }
    let hashes = hashes_of(tokens);
    let mut longest: Option<Period> = None;
    let mut seen_until = 0;
    for anchor in (0..hashes.len()).step_by(STRIDE) {
        if anchor < seen_until {
            continue;
        }
        let units = MAX_ESCAPED_UNIT.min(anchor);
        if !hashes[anchor - units..anchor].contains(&hashes[anchor]) {
            continue;
        }
        for unit in 1..=units {
            let repeats = |at: &usize| hashes[*at] == hashes[*at - unit];
            if !repeats(&anchor) {
                continue;
            }
            let start = (unit..anchor).rev().take_while(repeats).last().unwrap_or(anchor) - unit;
            let end = (anchor..hashes.len()).take_while(repeats).last().unwrap_or(anchor) + 1;
            let found = Period { unit, covered: end - start, tail: hashes.len() - end };
            if found.covered < MIN_ESCAPED_TOKENS || found.copies() < MIN_ESCAPED_COPIES {
                continue;
            }
            seen_until = end;
            if longest.is_none_or(|longest| found.covered > longest.covered) {
                longest = Some(found);
            }
            break;
        }
    }
    let period = longest?;
    let looped = loop_tokens(tokens, period);
    if !looped[..period.unit].iter().any(Token::is_wordlike) {
        return None;
    }
    judged_loop(reading, looped, period)
}

fn judged_loop(reading: &Reading<'_>, looped: &[Token], period: Period) -> Option<Place> {
    let read = reading.text;
    let unit = &looped[..period.unit];
    let copies = period.copies();
    if is_form(read, unit, period)
        || reading.references().iter().any(|reference| copies_in(reference, &hashes_of(unit), hashes_of) * 2 >= copies)
        || (!reading.context.has_measure() && is_json(read) && !is_same_object(read, unit, copies))
    {
        return None;
    }
    Some(Place::new(read, looped[0].start, looped[looped.len() - 1].end, |share| {
        format!("period of {} tokens, {copies} copies, {share}: `{}`", period.unit, shown(read, unit))
    }))
}

/// The tokens of a loop. The mark that ends the sentence before it often equals the loop's own: it is left out where as many
/// copies remain.
fn loop_tokens(tokens: &[Token], period: Period) -> &[Token] {
    let end = tokens.len() - period.tail;
    let looped = &tokens[end - period.covered..end];
    let spare = period.covered % period.unit;
    let marks = looped.iter().take(spare).take_while(|token| token.kind == Kind::Mark).count();
    &looped[marks..]
}

fn hashes_of(tokens: &[Token]) -> Vec<u64> {
    tokens.iter().map(|token| token.hash).collect()
}

/// Ruled lines, table borders, dotted leaders: marks that draw, and not for ever.
fn is_form(read: &str, unit: &[Token], period: Period) -> bool {
    unit.iter().all(|token| token.kind == Kind::Mark && RULE_CHARS.contains(token.text(read)))
        && period.covered < MIN_RULE_CHARS
}

/// Elements of a closed array that say nothing but the same again: two fields at least, one of them a text, so that rows of
/// numbers and of flags stay data. Objects that name themselves need fewer copies.
fn is_same_object(read: &str, unit: &[Token], copies: usize) -> bool {
    const MIN_NAMED: usize = 8;
    const MIN_UNNAMED: usize = 16;
    let of = |name: &str| unit.iter().any(|token| token.text(read).eq_ignore_ascii_case(name));
    let marks = |mark: &str| unit.iter().filter(|token| token.text(read) == mark).count();
    let is_named = of("id") || of("name") || of("key") || of("code");
    marks(":") >= 2 && marks("{") == 1 && marks("\"") >= 6 && copies >= if is_named { MIN_NAMED } else { MIN_UNNAMED }
}

fn is_json(text: &str) -> bool {
    let text = text.trim();
    text.starts_with(['[', '{']) && serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

/// Non-overlapping occurrences of `unit` in any rotation: a loop may be cut anywhere.
fn copies_in(reference: &Reference<'_>, unit: &[u64], hashes: impl Fn(&[Token]) -> Vec<u64>) -> usize {
    let reference = hashes(&reference.tokens);
    // Occurrences of one rotation differ from those of another by one at most, so the first is as good as any.
    let mut joined: Vec<u64> = unit.to_vec();
    // Separator: cannot be a hash of a token, masked or not, but for a chance of 2^-64.
    joined.push(2);
    joined.extend(&reference);
    let z = z_function(&joined);
    let (mut at, mut copies) = (unit.len() + 1, 0);
    while at < joined.len() {
        if z[at] >= unit.len() {
            copies += 1;
            at += unit.len();
        } else {
            at += 1;
        }
    }
    if copies == 0 { 0 } else { copies + 1 }
}

fn shown(read: &str, unit: &[Token]) -> String {
    const MAX_SHOWN_CHARS: usize = 40;
    let text = &read[unit[0].start..unit[unit.len() - 1].end];
    let mut shown: String = text.chars().take(MAX_SHOWN_CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(MAX_SHOWN_CHARS).is_some() {
        shown.push('…');
    }
    shown
}

/// A loop inside one long word, as in `lalalala…` or `010101…`: invisible to tokens.
fn inner_loop(reading: &Reading<'_>) -> Option<Place> {
    const MIN_CHARS: usize = 48;
    // The longest period looked for times the copies, and more than any word or number that is one.
    const MAX_CHARS: usize = 4096;
    let (read, tokens) = (reading.text, reading.tokens());
    let token = tokens.iter().rev().take(MAX_TAIL_TOKENS + 1).find(|token| token.end - token.start >= MIN_CHARS)?;
    let text = token.text(read);
    let text = &text[text.ceil_char_boundary(text.len().saturating_sub(MAX_CHARS))..];
    let chars: Vec<(usize, char)> = text.char_indices().collect();
    let letters: Vec<char> = chars.iter().map(|(_, c)| *c).collect();
    let item = |at: usize| letters[letters.len() - 1 - at];
    let period = suffix_period(letters.len(), item, 0, |period| period.covered >= MIN_CHARS)?;
    let start = token.end - text.len() + chars[chars.len() - period.covered].0;
    if reading.context.references().any(|reference| reference.contains(&read[start..token.end])) {
        return None;
    }
    let unit: String = letters[letters.len() - period.covered..][..period.unit].iter().take(40).collect();
    Some(Place::new(read, start, token.end, |share| {
        format!("period of {} characters, {} copies, {share}: `{unit}`", period.unit, period.copies())
    }))
}

/// A sentence that comes again and again with nothing new in it but a counter, where nothing is known of what was asked. Rows,
/// steps and log lines are shorter, or say another number as well; a prompt that has the sentence asked for it.
fn counted_sentence(reading: &Reading<'_>, weights: &Weights<'_>) -> Option<Place> {
    const MIN_SENTENCES: usize = 10;
    const MIN_WORDS: usize = 4;
    let (read, tokens) = (reading.text, reading.tokens());
    let period = suffix_period(tokens.len(), from_end(tokens, masked), MAX_TAIL_TOKENS, |period| {
        period.copies() >= MIN_SENTENCES && weights.covered(period) >= MIN_DATA_TOKENS
    })?;
    let looped = loop_tokens(tokens, period);
    if looped[..period.unit]
        .iter()
        .any(|token| matches!(token.text(read), "{" | "}" | "|" | "=" | "<" | ">" | "\"" | ";"))
    {
        return None;
    }
    let (unit, copies) = (&looped[..period.unit], period.copies());
    let words = unit.iter().filter(|token| token.kind == Kind::Word).count()
        + unit.iter().filter(|token| token.kind == Kind::Ideograph).count() / 2;
    let ends = unit.iter().any(|token| matches!(token.text(read), "!" | "?" | "。" | "！" | "？" | "；"))
        || unit.iter().any(|token| function_word(token) != 0);
    let moving =
        (0..period.unit).filter(|at| (1..copies).any(|copy| looped[copy * period.unit + at].hash != looped[*at].hash));
    if words < MIN_WORDS || !ends || moving.count() != 1 || !counts_up(read, looped, period.unit, copies) {
        return None;
    }
    let longest = unit.split(|token| token.kind == Kind::Number).max_by_key(|part| part.len())?;
    let said =
        &read[longest.iter().find(|it| it.is_wordlike())?.start..longest.iter().rfind(|it| it.is_wordlike())?.end];
    if reading.prompt().is_some_and(|prompt| prompt.text.contains(said)) {
        return None;
    }
    Some(Place::new(read, looped[0].start, looped[looped.len() - 1].end, |share| {
        format!("the same sentence with a counter, {copies} copies, {share}: `{}`", shown(read, unit))
    }))
}

/// Whether the one number that changes goes up by one from copy to copy.
fn counts_up(read: &str, looped: &[Token], unit: usize, copies: usize) -> bool {
    let number = |token: &Token| token.text(read).parse::<u64>().ok();
    (0..unit).any(|at| {
        looped[at].hash != looped[unit + at].hash
            && (1..copies).all(|copy| {
                let pair = (number(&looped[(copy - 1) * unit + at]), number(&looped[copy * unit + at]));
                matches!(pair, (Some(before), Some(after)) if before.checked_add(1) == Some(after))
            })
    })
}

/// A loop with a counter that goes on past what was expected.
fn counted_loop(reading: &Reading<'_>, weights: &Weights<'_>) -> Option<Place> {
    if !reading.context.has_measure() {
        return counted_sentence(reading, weights);
    }
    let (read, tokens) = (reading.text, reading.tokens());
    let period = suffix_period(tokens.len(), from_end(tokens, masked), MAX_TAIL_TOKENS, |period| {
        period.copies() >= MIN_COUNTED_COPIES && weights.covered(period) >= MIN_COVERED_TOKENS
    })?;
    let looped = loop_tokens(tokens, period);
    let unit = &looped[..period.unit];
    let copies = period.copies();
    let has_words = unit.iter().any(|token| token.is_wordlike());
    if is_form(read, unit, period) {
        return None;
    }
    let masked_unit = digit_masked(unit);
    let expected =
        reading.references().iter().map(|reference| copies_in(reference, &masked_unit, digit_masked)).max()?;
    // Lists of bare numbers are data; they are loops only beyond the size of what was asked.
    let longest = reading.references().iter().map(|reference| reference.tokens.len()).max()?;
    let allowed = if has_words { expected + expected / 4 + 1 } else { expected.max(longest) + 1 };
    (copies > allowed).then(|| {
        Place::new(read, looped[0].start, looped[looped.len() - 1].end, |share| {
            format!(
                "period of {} tokens with a counter, {copies} copies where {expected} are expected, {share}: `{}`",
                period.unit,
                shown(read, unit)
            )
        })
    })
}

/// Units that stand twice in a row, over a large part of the words.
fn doubling(reading: &Reading<'_>) -> Option<Place> {
    let (read, tokens) = (reading.text, reading.tokens());
    let found = doubled(read, tokens).or_else(|| {
        let tail = tokens.len().saturating_sub(DOUBLING_TAIL);
        (tail > 0).then(|| doubled(read, &tokens[tail..])).flatten()
    })?;
    if reading.references().iter().any(|reference| doubled(reference.text, &reference.tokens).is_some()) {
        return None;
    }
    let share = found.share * 100.0;
    Some(Place {
        start: found.start,
        end: found.end,
        evidence: format!("{} units doubled, {share:.0} % of the words: `{}`", found.squares, found.first),
    })
}

struct Doubled {
    squares: usize,
    share: f64,
    start: usize,
    end: usize,
    first: String,
}

fn doubled(read: &str, tokens: &[Token]) -> Option<Doubled> {
    let mut squares = 0;
    let mut covered = 0;
    let mut kinds: Vec<u64> = Vec::new();
    let (mut first, mut last) = (None, 0);
    let (mut in_a_row, mut longest) = (0, 0);
    let mut at = 0;
    while at < tokens.len() {
        // No unit begins where its first word does not come again: most places.
        let near = &tokens[at + 1..tokens.len().min(at + 1 + MAX_DOUBLED_UNIT)];
        if !tokens[at].is_wordlike() || near.iter().all(|token| token.hash != tokens[at].hash) {
            at += 1;
            in_a_row = 0;
            continue;
        }
        let Some(unit) = (1..=MAX_DOUBLED_UNIT).find(|&unit| is_square(tokens, at, unit)) else {
            at += 1;
            in_a_row = 0;
            continue;
        };
        in_a_row += 1;
        longest = longest.max(in_a_row);
        squares += 1;
        if kinds.len() < MIN_DOUBLED_KINDS && !kinds.contains(&tokens[at].hash) {
            kinds.push(tokens[at].hash);
        }
        covered += 2 * unit;
        last = at + 2 * unit - 1;
        first.get_or_insert((at, unit));
        at += 2 * unit;
    }
    let (start, unit) = first?;
    let words = tokens.iter().filter(|token| token.is_wordlike()).count();
    let share = covered as f64 / words.max(1) as f64;
    // Chinese doubles two characters in a word of four, but not a whole phrase.
    if tokens[start].kind == Kind::Ideograph && longest < MIN_IDEOGRAPHS_IN_A_ROW {
        return None;
    }
    (squares >= MIN_DOUBLES && kinds.len() >= MIN_DOUBLED_KINDS && share >= MIN_DOUBLED_SHARE).then(|| Doubled {
        squares,
        share: share.min(1.0),
        start: tokens[start].start,
        end: tokens[last].end,
        first: shown(read, &tokens[start..start + 2 * unit]),
    })
}

/// Whether a unit of words stands twice from `at`, with nothing but blanks between its words: lists and columns repeat
/// values across commas and lines.
fn is_square(tokens: &[Token], at: usize, unit: usize) -> bool {
    let Some(both) = tokens.get(at..at + 2 * unit) else { return false };
    (0..unit).all(|i| both[i].hash == both[i + unit].hash && both[i].is_wordlike())
        && both[1..].iter().all(|token| !token.is_after_line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detectors::Context;
    use crate::sample::FinishReason;

    fn detect(context: &Context<'_>) -> Option<Finding> {
        super::detect(&Reading::of(context))
    }

    fn found(output: &str) -> Option<Finding> {
        detect(&Context::of(output))
    }

    fn found_against(output: &str, expected: &str) -> Option<Finding> {
        detect(&Context { expected: &[expected], ..Context::of(output) })
    }

    /// Without a period, unlike squares and products modulo a number.
    fn scattered(n: usize) -> usize {
        (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 29) ^ (n * n)
    }

    const INTRO: &str = "The harbour office closed early that week, and the ledger was kept by two clerks in turn. ";

    #[test]
    fn a_loop_at_the_end_is_found_with_period_and_start() {
        let text = format!("{INTRO}{}", "The ledger was kept. ".repeat(20));
        let finding = found(&text).unwrap();
        assert!(text[finding.start..].starts_with("The ledger was kept."), "{finding:?}");
        assert!(finding.evidence.starts_with("period of 5 tokens, 20 copies, 8"), "{}", finding.evidence);
        assert!(finding.severity > 0.8 && finding.severity <= 1.0);
    }

    #[test]
    fn loops_of_every_shape_are_found() {
        let counted: String = (1..200).map(|n| format!("Step {n}: turn the valve.\n")).collect();
        let outputs = [
            format!("{INTRO}{}the led", "the ledger of the clerk, ".repeat(8)),
            "4829173\n".repeat(10),
            "!".repeat(30) + " ok",
            format!("{INTRO}{}", "帐本由两名职员轮流保管。".repeat(5)),
            format!("{INTRO}{}", "ha".repeat(60)),
            format!("{INTRO}{}", "a".repeat(60)),
            format!("{INTRO}{}", "\n".repeat(60)),
            format!("{INTRO}{}x", " ".repeat(300)),
            format!("{}{}", INTRO.repeat(3).replace("two", "three"), INTRO.repeat(6)),
            INTRO.split(' ').map(|word| format!("{word} {word} ")).collect(),
            "两名职员轮流保管帐本".chars().map(|c| format!("{c}{c}")).collect(),
            format!("{counted}{}", "Step 200: turn the valve.\n".repeat(10)),
            format!("{INTRO}{}Then the clerk left the office for good.", "The ledger was kept. ".repeat(20)),
        ];
        for output in outputs {
            assert!(found(&output).is_some(), "{output}");
        }
    }

    #[test]
    fn a_counter_is_a_loop_only_past_the_expected_end() {
        let same: String = (1..40).map(|n| format!("{n}. The clerk closed the gate again.\n")).collect();
        assert!(found(&same).unwrap().evidence.contains("the same sentence with a counter"));
        let lines = "Write twenty times, numbered: The clerk closed the gate again.";
        assert_eq!(detect(&Context { prompt: Some(lines), ..Context::of(&same) }), None);
        let rows = |range: std::ops::Range<u32>| -> String {
            range.map(|n| format!("Step {n}: add {} crates.\n", n * 7 % 13)).collect()
        };
        assert!(found_against(&rows(1..200), &rows(1..20)).unwrap().evidence.contains("where 20 are expected"));
        assert_eq!(found_against(&rows(1..21), &rows(1..20)), None);
        assert_eq!(found_against(&rows(1..19), &rows(1..40)), None);
        assert_eq!(found(&rows(1..200)), None, "without a reference nobody knows how far it should go");
        assert!(found_against(&rows(1..40), "4829173").is_some());
    }

    #[test]
    fn repetitive_form_is_no_loop() {
        let objects: String =
            (0..60).map(|n| format!("{{\"id\": {n}, \"name\": \"n{}\", \"paid\": true}},", n * 37 % 101)).collect();
        let table: String = (0..30).map(|n| format!("| {n} | {} | yes |\n", n * 31 % 97)).collect();
        let outputs = [
            format!("[{}]", objects.trim_end_matches(',')),
            "0 0 0 0 0 0 0 0 0 0\n0 0 0 0 0 0 0 0 0 0\n0 0 0 0 0 0 0 0 0 0\n".into(),
            "[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]".into(),
            format!("| n | value | ok |\n| --- | --- | --- |\n{table}"),
            format!("# Title\n{}\n", "=".repeat(80)),
            format!("Total {} 17", ".".repeat(100)),
            (0..40).map(|n| format!("- item {}\n", ["oak", "ash", "elm", "fir", "yew"][scattered(n) % 5])).collect(),
            "yes\nyes\nno\nyes\nyes\nno\nno\nyes\nyes\nyes\nno\nyes\n".into(),
            "true, true, false, true, true, true, false, false, true".into(),
            INTRO.repeat(3),
            "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08".into(),
            "他慢慢地走，天天看书，常常想起妈妈说过的话，渐渐明白了许多道理，心里暗暗高兴。".into(),
            "4829173".into(),
            String::new(),
        ];
        for output in outputs {
            assert_eq!(found(&output), None, "{output}");
        }
    }

    #[test]
    fn repetition_that_was_asked_for_is_no_loop() {
        let asked = "ok ".repeat(30);
        assert_eq!(found_against(&"ok ".repeat(28), &asked), None);
        assert!(found_against(&"ok ".repeat(400), &asked).is_some());
        assert!(found_against(&"4829173\n".repeat(5), "4829173").is_some());
        assert_eq!(found_against("4829173\n4829173", "4829173"), None);
        let baseline = format!("{INTRO}{}", "And then. ".repeat(30));
        let candidate = format!("Well. {baseline}");
        assert_eq!(detect(&Context { baseline: Some(&baseline), ..Context::of(&candidate) }), None);
        let context = Context { finish_reason: FinishReason::Length, ..Context::of(INTRO) };
        assert_eq!(detect(&context), None, "the limit alone is no loop");
    }

    #[test]
    fn a_closed_json_array_is_a_loop_when_the_expected_one_is_not() {
        let output = format!("[{}]", ["{\"id\":1,\"name\":\"oak\"}"; 40].join(","));
        assert!(found(&output).is_some(), "an object that names itself is there once");
        let flags = format!("[{}]", ["{\"slot\":\"empty\",\"count\":0}"; 12].join(","));
        assert_eq!(found(&flags), None);
        assert!(found_against(&output, "[{\"id\":1,\"name\":\"oak\"},{\"id\":2,\"name\":\"ash\"}]").is_some());
    }
}
