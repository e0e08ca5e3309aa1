//! Periods: what stands several times in a row at the end of a sequence.

use crate::detectors::tokens::Token;

/// Copies that a period has at least.
const MIN_COPIES: usize = 4;

/// Tokens at the end in which a period is looked for, so that units have up to 16,384; a loop found reaches back further.
const MAX_LOOP_SEARCHED: usize = 65_536;

/// A suffix with a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Period {
    /// In elements.
    pub(super) unit: usize,
    /// Elements covered.
    pub(super) covered: usize,
    /// Elements after it.
    pub(super) tail: usize,
}

impl Period {
    pub(super) fn copies(self) -> usize {
        self.covered / self.unit
    }
}

/// The period of a suffix of so many items with enough copies that covers the most; of nearly equal ones the shortest.
/// `item` counts from the end.
///
/// The Z function of the reversed sequence tells for every period how far it reaches back: O(n).
pub(super) fn suffix_period<T: PartialEq + Copy>(
    items: usize,
    item: impl Fn(usize) -> T,
    max_tail: usize,
    is_enough: impl Fn(&Period) -> bool,
) -> Option<Period> {
    let mut reversed: Vec<T> = Vec::new();
    for tail in 0..=max_tail.min(items) {
        let searched = MAX_LOOP_SEARCHED.min(items - tail);
        if !may_have_period(searched, |at| item(tail + at)) {
            continue;
        }
        if reversed.is_empty() {
            reversed.extend((0..items).map(&item));
        }
        let reach = z_function(&reversed[tail..tail + searched]);
        let mut best: Option<Period> = None;
        for (unit, reach) in reach.iter().enumerate().take(reach.len() / MIN_COPIES + 1).skip(1) {
            let found = Period { unit, covered: unit + reach, tail };
            // Multiples of a period reach up to one of their own lengths further: that is no better loop.
            let better = best.is_none_or(|best| found.covered > best.covered + unit.max(best.covered / 2));
            if better && found.copies() >= MIN_COPIES && is_enough(&found) {
                best = Some(found);
            }
        }
        if let Some(mut best) = best {
            let repeats = |at: &usize| reversed[*at] == reversed[*at - best.unit];
            best.covered += (tail + best.covered..reversed.len()).take_while(repeats).count();
            return Some(best);
        }
    }
    None
}

/// Whether [`suffix_period`] has anything to look at.
pub(super) fn may_have_suffix_period<T: PartialEq>(items: usize, item: impl Fn(usize) -> T, max_tail: usize) -> bool {
    let may_have = |tail| may_have_period(MAX_LOOP_SEARCHED.min(items - tail), |at| item(tail + at));
    (0..=max_tail.min(items)).any(may_have)
}

/// What `of` says of tokens, counted from the end.
pub(super) fn from_end(tokens: &[Token], of: impl Fn(&Token) -> u64) -> impl Fn(usize) -> u64 {
    move |at| of(&tokens[tokens.len() - 1 - at])
}

/// Whether a unit may stand [`MIN_COPIES`] times at the start: most of them differ in the first item, or soon after it.
fn may_have_period<T: PartialEq>(items: usize, item: impl Fn(usize) -> T) -> bool {
    // More is left to the Z function, which is not quadratic.
    const MAX_LOOKED_AT: usize = 32;
    if items < MIN_COPIES {
        return false;
    }
    let (first, second) = (item(0), item(1));
    (1..=items / MIN_COPIES).any(|unit| {
        item(unit) == first
            && item(unit + 1) == second
            && (2..MIN_COPIES).all(|copy| item(copy * unit) == first)
            && (2..(MIN_COPIES - 1) * unit).take(MAX_LOOKED_AT).all(|at| item(at) == item(at + unit))
    })
}

/// `z[i]`: length of the longest common prefix of `items` and `items[i..]`.
pub(super) fn z_function<T: PartialEq>(items: &[T]) -> Vec<usize> {
    let n = items.len();
    let mut z = vec![0; n];
    let (mut left, mut right) = (0, 0);
    for i in 1..n {
        let mut reach = if i < right { z[i - left].min(right - i) } else { 0 };
        while i + reach < n && items[reach] == items[i + reach] {
            reach += 1;
        }
        if i + reach > right {
            (left, right) = (i, i + reach);
        }
        z[i] = reach;
    }
    z
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_period_is_the_shortest_of_the_longest_loop() {
        let items = |text: &str| text.bytes().collect::<Vec<u8>>();
        let period = |text: &str| {
            let items = items(text);
            let item = |at: usize| items[items.len() - 1 - at];
            suffix_period(items.len(), item, 0, |p| p.covered >= 8).map(|p| (p.unit, p.covered))
        };
        assert_eq!(period("xyabababab"), Some((2, 8)));
        assert_eq!(period("aaaaaaaa"), Some((1, 8)));
        assert_eq!(period("abcabcab"), None, "three copies are not four");
        assert_eq!(period("abcdaabcdaabcdaabcdaabcda"), Some((5, 25)));
        assert_eq!(z_function(b"aabaab"), [0, 1, 0, 3, 1, 0]);
    }
}
