//! Lines in a known order.
//!
//! `value = longest increasing run of right lines / (lines asked + extra lines + repeated lines)`. Lines are compared after
//! whitespace normalisation, with and without list marker and quotes; one announcement line at the start is tolerated.

use std::collections::HashMap;

use crate::sample::{Completion, Fault, FaultKind, Gold, Item, Score};
use crate::scorers::answer_text::{
    bare, content_lines, is_announcement, longest_increasing, nearness, normalised, without_marker,
};
use crate::scorers::{empty, fault, right, seen, wrong};

/// Unknown lines that are compared with the missing ones for near misses; the cost is the product of both numbers.
const MAX_NEAR_LINES: usize = 64;

pub(super) fn score(item: &Item, completion: &Completion) -> Score {
    let text = completion.text.trim();
    let gold: Vec<String> = match &item.expected.gold {
        Gold::Sequence { lines } => lines.iter().map(|line| normalised(line)).collect(),
        _ => content_lines(&item.expected.answer).map(normalised).collect(),
    };
    if text == item.expected.answer.trim() {
        return right(text);
    }
    if text.is_empty() {
        return empty();
    }
    let found = Found::read(text, &gold);
    let faults = found.faults(&gold);
    if faults.is_empty() {
        return right(text);
    }
    let in_order = longest_increasing(&found.positions);
    let judged = gold.len() + found.unknown_count + found.repeated;
    wrong(in_order as f64 / judged.max(1) as f64, text, faults)
}

struct Found {
    /// Gold positions of the right lines in order of appearance, each once.
    positions: Vec<usize>,
    repeated: usize,
    first_repeated: Option<usize>,
    /// The first lines that are not of the sequence, with the number of right lines before them.
    unknown: Vec<(usize, String)>,
    unknown_count: usize,
}

impl Found {
    fn read(text: &str, gold: &[String]) -> Self {
        // A line may be asked for more than once: positions per line, the next free one first.
        let mut places: HashMap<&str, Vec<usize>> = HashMap::new();
        for (position, line) in gold.iter().enumerate().rev() {
            places.entry(line).or_default().push(position);
        }
        let bare_places: HashMap<&str, &str> = gold.iter().map(|line| (stripped(line), line.as_str())).collect();
        let first_of: HashMap<&str, usize> = places.iter().map(|(line, at)| (*line, at[at.len() - 1])).collect();
        let mut found =
            Self { positions: Vec::new(), repeated: 0, first_repeated: None, unknown: Vec::new(), unknown_count: 0 };
        for (number, line) in content_lines(text).enumerate() {
            let line = normalised(line);
            let known = first_of.get_key_value(line.as_str()).map(|(line, _)| *line);
            let Some(known) = known.or_else(|| bare_places.get(stripped(&line)).copied()) else {
                if number == 0 && is_announcement(&line) {
                    continue;
                }
                found.unknown_count += 1;
                if found.unknown.len() < MAX_NEAR_LINES {
                    found.unknown.push((found.positions.len(), line));
                }
                continue;
            };
            match places.get_mut(known).and_then(Vec::pop) {
                Some(position) => found.positions.push(position),
                None => {
                    found.repeated += 1;
                    found.first_repeated.get_or_insert(first_of[known]);
                }
            }
        }
        found
    }

    fn faults(&self, gold: &[String]) -> Vec<Fault> {
        let mut present = vec![false; gold.len()];
        self.positions.iter().for_each(|&position| present[position] = true);
        let mut missing: Vec<usize> = (0..gold.len()).filter(|&position| !present[position]).collect();
        let mut near = Vec::new();
        let mut extra = Vec::new();
        let mut around = Vec::new();
        for (right_before, line) in &self.unknown {
            let candidates = missing.iter().take(MAX_NEAR_LINES).enumerate();
            let twin = candidates
                .filter_map(|(slot, &position)| Some((slot, position, nearness(&gold[position], stripped(line))?)))
                .min_by_key(|(_, position, _)| position.abs_diff(*right_before));
            if let Some((slot, position, how)) = twin {
                missing.remove(slot);
                near.push(format!("line {}: {} for {}: {how}", position + 1, seen(line), seen(&gold[position])));
            } else if is_prose(line, gold) && (*right_before == 0 || *right_before == self.positions.len()) {
                around.push(seen(line));
            } else {
                extra.push(seen(line));
            }
        }
        let uncounted = self.unknown_count - self.unknown.len();
        let in_order = longest_increasing(&self.positions);
        let moved = self.positions.len() - in_order;
        let stops_early = missing.first().is_some_and(|&first| missing.len() == gold.len() - first);
        let missing_note = missing.first().map(|&first| {
            let how = if stops_early { "ends before" } else { "first" };
            format!("{} of {}, {how} line {}: {}", missing.len(), gold.len(), first + 1, seen(&gold[first]))
        });
        let mut faults = Vec::new();
        let mut add = |kind, note: Option<String>| faults.extend(note.map(|note| fault(kind, note)));
        add(FaultKind::OutOfOrder, (moved > 0).then(|| format!("{moved} of {} lines moved", self.positions.len())));
        add(FaultKind::NearMiss, near.first().map(|first| format!("{}: {first}", near.len())));
        add(FaultKind::Missing, missing_note);
        add(
            FaultKind::Duplicated,
            self.first_repeated.map(|at| format!("{} times a line again, first {}", self.repeated, seen(&gold[at]))),
        );
        add(FaultKind::Extra, extra.first().map(|first| format!("{}: {first}", extra.len() + uncounted)));
        add(FaultKind::ExtraText, around.first().cloned());
        faults
    }
}

fn stripped(line: &str) -> &str {
    bare(without_marker(line))
}

/// A line that does not look like the lines asked for: more words than any, or three times as long.
fn is_prose(line: &str, gold: &[String]) -> bool {
    let words = |line: &str| line.split_whitespace().count();
    let most_words = gold.iter().map(|line| words(line)).max().unwrap_or(0);
    let longest = gold.iter().map(String::len).max().unwrap_or(0);
    words(line) > most_words + 1 || line.len() > 3 * longest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scorers::tests::{check_table, completion, item};

    fn five() -> Item {
        let lines = ["K7-AMBER", "Q2-BIRCH", "Z9-CORAL", "B4-DELTA", "M1-EMBER"].map(String::from).to_vec();
        item("sequence", &lines.join("\n"), Gold::Sequence { lines })
    }

    #[test]
    fn markers_quotes_and_an_announcement_are_tolerated() {
        let answers = [
            "1. K7-AMBER\n2. Q2-BIRCH\n3. Z9-CORAL\n4. B4-DELTA\n5. M1-EMBER",
            "The codes are:\n- K7-AMBER\n- Q2-BIRCH\n- Z9-CORAL\n\n- B4-DELTA\n- `M1-EMBER`",
            "```\nK7-AMBER\nQ2-BIRCH\nZ9-CORAL\nB4-DELTA\nM1-EMBER\n```",
        ];
        for answer in answers {
            check_table(&five(), &[(answer, &[])]);
        }
    }

    #[test]
    fn each_wrong_answer_gets_its_name() {
        use FaultKind::{Duplicated, Empty, Extra, ExtraText, Missing, NearMiss, OutOfOrder};
        check_table(
            &five(),
            &[
                ("", &[Empty]),
                ("K7-AMBER\nQ2-BIRCH\nZ9-CORAL", &[Missing]),
                ("K7-AMBER\nZ9-CORAL\nB4-DELTA\nM1-EMBER", &[Missing]),
                ("K7-AMBER\nZ9-CORAL\nQ2-BIRCH\nB4-DELTA\nM1-EMBER", &[OutOfOrder]),
                ("K7-AMBER\nQ2-BIRCH\nQ2-BIRCH\nZ9-CORAL\nB4-DELTA\nM1-EMBER", &[Duplicated]),
                ("K7-AMBER\nQ2-BIRCH\nZ9-CORAL\nB4-DELTA\nM1-EMBER\nX5-FJORD", &[Extra]),
                ("K7-AMBER\nQ2-BRICH\nZ9-CORAL\nB4-DELTA\nM1-EMBER", &[NearMiss]),
                ("K7-AMBER\nQ2-BIRCH\nZ9-CORAL\nB4-DELTA\nM1-EMBER\nThat is all I could find in it.", &[ExtraText]),
            ],
        );
    }

    #[test]
    fn the_value_counts_lines_in_order() {
        let value = |text: &str| score(&five(), &completion(text)).value;
        assert!((value("K7-AMBER\nQ2-BIRCH\nZ9-CORAL") - 0.6).abs() < 1e-12);
        assert!((value("K7-AMBER\nZ9-CORAL\nQ2-BIRCH\nB4-DELTA\nM1-EMBER") - 0.8).abs() < 1e-12);
        assert!((value("K7-AMBER\nQ2-BIRCH\nZ9-CORAL\nB4-DELTA\nM1-EMBER\nX5-FJORD") - 5.0 / 6.0).abs() < 1e-12);
        let loops = value(&"K7-AMBER\n".repeat(100_000));
        assert!(loops > 0.0 && loops < 1e-4);
    }

    #[test]
    fn an_early_stop_is_told_from_a_hole() {
        let note = |text: &str| score(&five(), &completion(text)).faults[0].note.clone();
        assert_eq!(note("K7-AMBER\nQ2-BIRCH\nZ9-CORAL"), "2 of 5, ends before line 4: B4-DELTA");
        assert_eq!(note("K7-AMBER\nZ9-CORAL\nB4-DELTA\nM1-EMBER"), "1 of 5, first line 2: Q2-BIRCH");
    }
}
