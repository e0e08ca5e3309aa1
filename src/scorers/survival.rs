//! A chain of steps, one a line, each following from the one before.
//!
//! `value = steps before the first wrong one / (steps asked + extra lines + repeated lines)`: what comes after a wrong step
//! has lost its ground, even where it happens to be right. Lines may carry their number (`7: 1234`, `7. 1234`); without
//! numbers they count in order. A number may stand in a sentence of its unit, and behind a calculation (`300 + 45 = 345`).

use std::collections::BTreeMap;

use crate::sample::{Completion, Fault, FaultKind, Gold, Item, Score};
use crate::scorers::answer_text::{bare, content_lines, is_announcement, normalised};
use crate::scorers::{empty, fault, right, seen, wrong};

/// Most digits of a step's number: longer ones are values.
const MAX_NUMBER_DIGITS: usize = 4;

/// Words that a value may have more than the longest right one; beyond that a line is prose.
const MAX_MORE_WORDS: usize = 2;

pub(super) fn score(item: &Item, completion: &Completion) -> Score {
    let text = completion.text.trim();
    let gold: Vec<String> = match &item.expected.gold {
        Gold::Steps { steps } => steps.iter().map(|step| value_of(step)).collect(),
        _ => content_lines(&item.expected.answer).map(value_of).collect(),
    };
    if text == item.expected.answer.trim() {
        return right(text);
    }
    if text.is_empty() {
        return empty();
    }
    let walk = Walk::read(text, &gold);
    let faults = walk.faults(&gold);
    if faults.is_empty() {
        return right(text);
    }
    let judged = gold.len() + walk.extra.len() + walk.repeated.len();
    wrong(walk.survived(&gold) as f64 / judged.max(1) as f64, text, faults)
}

/// What a line says, without its number.
fn value_of(line: &str) -> String {
    normalised(bare(numbered(line).map_or(line, |(_, value)| value)))
}

/// A line's number and the rest: `7: x`, `7. x`, `7) x`, `7 - x`, `Step 7: x`, `第7笔：x`.
fn numbered(line: &str) -> Option<(usize, &str)> {
    let line = line.trim().trim_start_matches(['-', '*', '•', '#', '`', '第']).trim_start();
    let word = line.find(|c: char| !c.is_alphabetic()).unwrap_or(line.len());
    let behind_word = line[word..].trim_start();
    let line = if line[..word].chars().count() <= 12 && word < line.len() { behind_word } else { line };
    let digits = line.bytes().take_while(u8::is_ascii_digit).count();
    if digits == 0 || digits > MAX_NUMBER_DIGITS {
        return None;
    }
    let rest = line[digits..].trim_start().trim_start_matches(['笔', '步', '号']).trim_start();
    let value = match rest.strip_prefix([':', '：', ')', '）', '、', '=']) {
        Some(value) => value,
        // A full stop or a dash is one of the number only with a space behind it: 3.5 is a value.
        None => rest.strip_prefix(['.', '-', '–']).filter(|value| value.starts_with(char::is_whitespace))?,
    };
    let value = value.trim();
    (!value.is_empty()).then(|| Some((line[..digits].parse().ok()?, value)))?
}

/// Whether a line says `gold`.
fn says(value: &str, gold: &str) -> bool {
    if value == gold {
        return true;
    }
    if !is_number(gold) {
        return value.to_lowercase() == gold.to_lowercase();
    }
    number_in(value).as_deref() == Some(gold)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The number that a line gives: the one behind the last `=`, with commas between thousands or without.
fn number_in(value: &str) -> Option<String> {
    let value = value.rsplit('=').next()?;
    let start = value.find(|c: char| c.is_ascii_digit())?;
    // A minus belongs to it.
    if value[..start].ends_with(['-', '−']) {
        return None;
    }
    let rest = &value[start..];
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != ',' && c != '.').unwrap_or(rest.len());
    let number: String = rest[..end].trim_end_matches([',', '.']).chars().filter(|c| *c != ',').collect();
    let other_numbers = rest[end..].bytes().any(|byte| byte.is_ascii_digit());
    (!other_numbers).then_some(number)
}

/// The lines of an answer by step.
#[derive(Default)]
struct Walk {
    /// First value given for a step, counted from 1.
    given: BTreeMap<usize, String>,
    /// Steps in order of appearance.
    order: Vec<usize>,
    repeated: Vec<String>,
    extra: Vec<String>,
    around: Vec<String>,
}

impl Walk {
    fn read(text: &str, gold: &[String]) -> Self {
        let lines: Vec<&str> = content_lines(text).collect();
        let has_numbers = lines.iter().any(|line| numbered(line).is_some());
        let most_words = gold.iter().map(|step| step.split(' ').count()).max().unwrap_or(1) + MAX_MORE_WORDS;
        let mut walk = Self::default();
        let mut last = String::new();
        for (at, line) in lines.into_iter().enumerate() {
            let (number, value) = match numbered(line) {
                Some((number, value)) => (number, normalised(bare(value))),
                None if at == 0 && is_announcement(line) => continue,
                None if has_numbers || line.split_whitespace().count() > most_words => {
                    walk.around.push(seen(line));
                    continue;
                }
                None => (walk.order.len() + walk.extra.len() + 1, value_of(line)),
            };
            let is_meant = gold.get(number.wrapping_sub(1)).is_some_and(|gold| says(&value, gold));
            let is_last_again = !has_numbers && last == value && !is_meant;
            if walk.given.contains_key(&number) || is_last_again {
                walk.repeated.push(seen(line));
            } else if number == 0 || number > gold.len() {
                walk.extra.push(seen(line));
            } else {
                walk.given.insert(number, value.clone());
                walk.order.push(number);
            }
            last = value;
        }
        walk
    }

    fn is_right(&self, step: usize, gold: &[String]) -> bool {
        self.given.get(&step).is_some_and(|value| says(value, &gold[step - 1]))
    }

    /// Steps before the first that is wrong, missing or out of its place.
    fn survived(&self, gold: &[String]) -> usize {
        let in_place = |step: usize| self.order.get(step - 1) == Some(&step);
        (1..=gold.len()).take_while(|step| in_place(*step) && self.is_right(*step, gold)).count()
    }

    fn faults(&self, gold: &[String]) -> Vec<Fault> {
        let missing: Vec<usize> = (1..=gold.len()).filter(|step| !self.given.contains_key(step)).collect();
        let moved = self.order.iter().zip(self.order.iter().skip(1)).filter(|(left, right)| left > right).count();
        let missing_note = missing.first().map(|first| {
            let stops_early = missing.len() == gold.len() + 1 - first;
            let how = if stops_early { "ends before" } else { "first" };
            format!("{} of {}, {how} step {first}: {}", missing.len(), gold.len(), seen(&gold[first - 1]))
        });
        let counted = |lines: &[String]| lines.first().map(|first| format!("{}: {first}", lines.len()));
        let mut faults = Vec::new();
        let mut add = |kind, note: Option<String>| faults.extend(note.map(|note| fault(kind, note)));
        add(FaultKind::WrongStep, self.wrong_note(gold));
        add(FaultKind::Missing, missing_note);
        add(FaultKind::OutOfOrder, (moved > 0).then(|| format!("{moved} of {} lines", self.order.len())));
        add(FaultKind::Duplicated, counted(&self.repeated));
        add(FaultKind::Extra, counted(&self.extra));
        add(FaultKind::ExtraText, self.around.first().cloned());
        faults
    }

    /// First wrong step, share of wrong ones, whether the later ones follow from it, and the last.
    fn wrong_note(&self, gold: &[String]) -> Option<String> {
        let wrong: Vec<usize> = self.given.keys().copied().filter(|step| !self.is_right(*step, gold)).collect();
        let first = *wrong.first()?;
        let value = |step: usize| seen(&self.given[&step]);
        let mut note = format!(
            "step {first} of {}: {} for {}; {} of {} steps wrong",
            gold.len(),
            value(first),
            seen(&gold[first - 1]),
            wrong.len(),
            self.given.len()
        );
        if first < gold.len() {
            note.push_str("; ");
            note.push_str(self.later_steps(first, gold));
        }
        if let Some(last) = self.given.get(&gold.len()) {
            note.push_str(&format!("; the last is {} for {}", seen(last), seen(&gold[gold.len() - 1])));
        }
        Some(note)
    }

    /// What became of the steps after the first wrong one. Numbers follow from it when they change as the right ones do.
    fn later_steps(&self, first: usize, gold: &[String]) -> &'static str {
        let later = || first + 1..=gold.len();
        if later().all(|step| !self.given.contains_key(&step)) {
            return "nothing comes after it";
        }
        if later().all(|step| self.is_right(step, gold)) {
            return "all later ones are right again";
        }
        let offset = |step: usize| {
            let given: i64 = number_in(self.given.get(&step)?)?.parse().ok()?;
            Some(given - gold[step - 1].parse::<i64>().ok()?)
        };
        let wanted = offset(first);
        let mut present = later().filter(|step| self.given.contains_key(step));
        match wanted {
            Some(_) if present.all(|step| offset(step) == wanted) => "the later ones follow from it",
            _ => "the later ones do not follow from it",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scorers::tests::{check_table, completion, item};

    fn balances() -> Item {
        let steps = ["1: 345", "2: 300", "3: 312", "4: 290", "5: 388"].map(String::from).to_vec();
        item("survival", &steps.join("\n"), Gold::Steps { steps })
    }

    fn walk() -> Item {
        let steps = ["1: amber bell", "2: red kite", "3: pale drum", "4: old oar"].map(String::from).to_vec();
        item("survival", &steps.join("\n"), Gold::Steps { steps })
    }

    #[test]
    fn forms_of_a_right_answer_are_all_right() {
        let answers = [
            "345\n300\n312\n290\n388",
            "The balances are:\n1. 345\n2. 300\n3. 312\n4. 290\n5. 388",
            "1: 345 crowns\n2: 300 crowns\n3: 312 crowns\n4: 290 crowns\n5: 388 crowns.",
            "1: 300 + 45 = 345\n2: 345 - 45 = 300\n3: 312\n4: 290\n5: 388",
            "- Step 1: 345\n- Step 2: 300\n- Step 3: 312\n- Step 4: 290\n- Step 5: 388",
            "第1笔：345元\n第2笔：300元\n第3笔：312元\n第4笔：290元\n第5笔：388元。",
        ];
        for answer in answers {
            check_table(&balances(), &[(answer, &[])]);
        }
        check_table(&walk(), &[("Amber bell\nRed kite\npale drum\nold oar", &[])]);
    }

    #[test]
    fn each_wrong_answer_gets_its_name() {
        use FaultKind::{Duplicated, Empty, Extra, ExtraText, Missing, OutOfOrder, WrongStep};
        check_table(
            &balances(),
            &[
                ("", &[Empty]),
                ("1: 345\n2: 300\n3: 313\n4: 291\n5: 389", &[WrongStep]),
                ("1: 345\n2: 300\n3: 313\n4: 290\n5: 388", &[WrongStep]),
                ("345\n300\n313\n290\n388", &[WrongStep]),
                ("1: -345\n2: 300\n3: 312\n4: 290\n5: 388", &[WrongStep]),
                ("1: 345\n2: 300\n3: 312", &[Missing]),
                ("1: 345\n2: 300\n4: 290\n5: 388", &[Missing]),
                ("1: 345\n3: 312\n2: 300\n4: 290\n5: 388", &[OutOfOrder]),
                ("1: 345\n2: 300\n2: 300\n3: 312\n4: 290\n5: 388", &[Duplicated]),
                ("1: 345\n2: 300\n3: 312\n4: 290\n5: 388\n6: 400", &[Extra]),
                ("1: 345\n2: 300\n3: 312\n4: 290\n5: 388\nThat is the whole account.", &[ExtraText]),
                ("345\n300\n300\n312\n290\n388", &[Duplicated]),
            ],
        );
        check_table(&walk(), &[("1: amber bell\n2: red kite\n3: old oar\n4: pale drum", &[WrongStep])]);
    }

    #[test]
    fn the_value_is_the_share_that_survives() {
        let value = |text: &str| score(&balances(), &completion(text)).value;
        assert!((value("1: 345\n2: 300\n3: 313\n4: 291\n5: 389") - 0.4).abs() < 1e-12);
        assert!((value("1: 345\n2: 300\n3: 313\n4: 290\n5: 388") - 0.4).abs() < 1e-12);
        assert!((value("1: 345\n2: 300\n4: 290\n5: 388") - 0.4).abs() < 1e-12);
        assert!((value("1: 345\n2: 300\n3: 312\n4: 290\n5: 388\n6: 400") - 5.0 / 6.0).abs() < 1e-12);
        assert!(value(&format!("1: 345\n{}", "2: 300\n".repeat(100_000))) < 1e-4);
    }

    #[test]
    fn the_note_says_what_became_of_the_rest() {
        let note = |text: &str| score(&balances(), &completion(text)).faults[0].note.clone();
        assert_eq!(
            note("1: 345\n2: 300\n3: 313\n4: 291\n5: 389"),
            "step 3 of 5: 313 for 312; 3 of 5 steps wrong; the later ones follow from it; the last is 389 for 388"
        );
        assert!(note("1: 345\n2: 300\n3: 313\n4: 290\n5: 388").contains("all later ones are right again"));
        assert!(note("1: 345\n2: 300\n3: 313\n4: 200\n5: 100").contains("the later ones do not follow from it"));
        assert!(note("1: 345\n2: 300\n3: 313").contains("nothing comes after it"));
        assert_eq!(note("1: 345\n2: 300"), "3 of 5, ends before step 3: 312");
    }
}
