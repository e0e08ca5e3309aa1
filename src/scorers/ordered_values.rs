//! Values in a known order.
//!
//! `value = F1 × share of pairs in order`, with `F1 = 2 × right values / (values asked + values given)` and, among the right
//! values, the share of pairs that stand in the order asked: 1 in order, 0 reversed; Kendall's τ is twice that share less
//! one. Right means exactly the sequence asked; prose around the values is not looked at.

use std::collections::HashMap;

use crate::sample::{Completion, Fault, FaultKind, Gold, Item, Score};
use crate::scorers::answer_text::content_lines;
use crate::scorers::answer_values::{Said, take_near_misses, values_in};
use crate::scorers::{empty, fault, right, seen, wrong};

pub(super) fn score(item: &Item, completion: &Completion) -> Score {
    let text = completion.text.trim();
    let (values, others): (Vec<&str>, Vec<&str>) = match &item.expected.gold {
        Gold::Ordered { values, others } => {
            (values.iter().map(String::as_str).collect(), others.iter().map(String::as_str).collect())
        }
        _ => (content_lines(&item.expected.answer).collect(), Vec::new()),
    };
    if text == item.expected.answer.trim() {
        return right(text);
    }
    if text.is_empty() {
        return empty();
    }
    let found = Found::read(text, &values, &others);
    let faults = found.faults(&values);
    if faults.is_empty() {
        return right(text);
    }
    let right_values = found.positions.len();
    let given = right_values + found.repeated.len() + found.others.len() + found.unknown.len();
    let f1 = 2.0 * right_values as f64 / (values.len() + given).max(1) as f64;
    wrong(f1 * found.share_in_order(), text, faults)
}

struct Found<'a> {
    /// Places of the right values in order of appearance, each once.
    positions: Vec<usize>,
    repeated: Vec<&'a str>,
    /// Values of other keys.
    others: Vec<&'a str>,
    unknown: Vec<String>,
}

impl<'a> Found<'a> {
    fn read(text: &str, values: &[&'a str], others: &[&'a str]) -> Self {
        let known: Vec<&'a str> = values.iter().chain(others).copied().collect();
        // A value may be asked for more than once: its places, the next free one last.
        let mut places: HashMap<&str, Vec<usize>> = HashMap::new();
        for (place, value) in values.iter().enumerate().rev() {
            places.entry(value).or_default().push(place);
        }
        let mut found = Self { positions: Vec::new(), repeated: Vec::new(), others: Vec::new(), unknown: Vec::new() };
        for said in values_in(text, &known) {
            match said {
                Said::Known(place) => match places.get_mut(known[place]).map(Vec::pop) {
                    Some(Some(position)) => found.positions.push(position),
                    Some(None) => found.repeated.push(known[place]),
                    None => found.others.push(known[place]),
                },
                Said::Other(value) => found.unknown.push(value),
            }
        }
        found
    }

    /// Pairs of right values that stand in the order asked, as a share of all pairs; 1 where there is no pair.
    fn share_in_order(&self) -> f64 {
        let ranks = &self.positions;
        let pairs = ranks.len() * ranks.len().saturating_sub(1) / 2;
        let in_order: usize = ranks
            .iter()
            .enumerate()
            .map(|(at, position)| ranks[at + 1..].iter().filter(|later| *later > position).count())
            .sum();
        if pairs == 0 { 1.0 } else { in_order as f64 / pairs as f64 }
    }

    fn faults(&self, values: &[&str]) -> Vec<Fault> {
        let mut is_given = vec![false; values.len()];
        self.positions.iter().for_each(|&position| is_given[position] = true);
        let mut missing: Vec<&str> = (0..values.len()).filter(|&at| !is_given[at]).map(|at| values[at]).collect();
        let mut unknown = self.unknown.clone();
        let near = take_near_misses(&mut unknown, &mut missing);
        // What stands in place of a missing value is a wrong one; what comes on top of all values is too much.
        let swapped = self.others.len().min(missing.len());
        let replaced = unknown.len().min(missing.len() - swapped);
        let absent = &missing[swapped + replaced..];
        let of_others = self.others[swapped..].iter().map(|other| format!("{}, the value of another key", seen(other)));
        let extra: Vec<String> = of_others.chain(unknown[replaced..].iter().map(|value| seen(value))).collect();
        let share = self.share_in_order();
        let moved = (share < 1.0).then(|| format!("Kendall τ {:.2}", 2.0 * share - 1.0));
        let counted = |count: usize, what: Option<String>| {
            what.filter(|_| count > 0).map(|what| format!("{count} of {}: {what}", values.len()))
        };
        let named = [
            (FaultKind::OutOfOrder, moved),
            (FaultKind::OtherKey, counted(swapped, self.others.first().map(|other| seen(other)))),
            (FaultKind::NearMiss, counted(near.len(), near.first().cloned())),
            (FaultKind::WrongValue, counted(replaced, unknown.first().map(|value| seen(value)))),
            (FaultKind::Missing, counted(absent.len(), absent.first().map(|value| seen(value)))),
            (FaultKind::Duplicated, counted(self.repeated.len(), self.repeated.first().map(|value| seen(value)))),
            (FaultKind::Extra, counted(extra.len(), extra.first().cloned())),
        ];
        named.into_iter().filter_map(|(kind, note)| Some(fault(kind, note?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scorers::tests::{check_table, completion, item};

    fn four() -> Item {
        let strings = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect::<Vec<_>>();
        let values = strings(&["4829173", "1150264", "7733915", "9021846"]);
        let gold = Gold::Ordered { values: values.clone(), others: strings(&["3316507", "6407712"]) };
        item("ordered_values", &values.join("\n"), gold)
    }

    #[test]
    fn the_ways_to_write_a_list_are_read() {
        let answers = [
            "4829173, 1150264, 7733915, 9021846",
            "The 4 numbers are:\n1. 4829173\n2. 1,150,264\n3. **7733915**\n4. 9021846.",
            "```\n4829173\n1150264\n7733915\n9021846\n```",
            "依次是：4829173、1150264、7733915和9021846。",
        ];
        for answer in answers {
            check_table(&four(), &[(answer, &[])]);
        }
    }

    #[test]
    fn each_wrong_answer_gets_its_name() {
        use FaultKind::{Duplicated, Empty, Extra, Missing, NearMiss, OtherKey, OutOfOrder, WrongValue};
        check_table(
            &four(),
            &[
                ("", &[Empty]),
                ("I cannot say.", &[Missing]),
                ("4829173\n1150264\n9021846", &[Missing]),
                ("4829173\n7733915\n1150264\n9021846", &[OutOfOrder]),
                ("4829173\n1150264\n7733915\n9021846\n4829173", &[Duplicated]),
                ("4829173\n1150264\n7733951\n9021846", &[NearMiss]),
                ("4829173\n3316507\n7733915\n9021846", &[OtherKey]),
                ("4829173\n1150264\n5559999\n9021846", &[WrongValue]),
                ("4829173\n1150264\n7733915\n9021846\n5559999", &[Extra]),
                ("4829173\n1150264\n7733915\n9021846\n6407712", &[Extra]),
                ("1150264\n4829173\n3316507", &[OutOfOrder, OtherKey, Missing]),
            ],
        );
    }

    #[test]
    fn the_value_is_f1_times_the_share_of_pairs_in_order() {
        let value = |text: &str| score(&four(), &completion(text)).value;
        assert!((value("4829173\n1150264") - 2.0 * 2.0 / 6.0).abs() < 1e-12);
        assert!((value("1150264\n4829173\n7733915\n9021846") - 5.0 / 6.0).abs() < 1e-12);
        assert_eq!(value("9021846\n7733915\n1150264\n4829173"), 0.0);
        let loops = value(&"4829173\n".repeat(100_000));
        assert!(loops > 0.0 && loops < 1e-3);
        let reversed = score(&four(), &completion("9021846\n7733915\n1150264\n4829173"));
        assert_eq!(reversed.faults[0].note, "Kendall τ -1.00");
    }

    #[test]
    fn values_that_are_words_are_read_between_commas() {
        let values = ["north cellar".to_owned(), "attic".to_owned()];
        let gold = Gold::Ordered { values: values.to_vec(), others: vec!["cellar".into()] };
        let item = item("ordered_values", "north cellar\nattic", gold);
        check_table(
            &item,
            &[
                ("North cellar, attic.", &[]),
                ("attic, north cellar", &[FaultKind::OutOfOrder]),
                ("cellar, attic", &[FaultKind::OtherKey]),
            ],
        );
    }
}
