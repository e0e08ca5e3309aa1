//! RULER's two string matches, after its own clean-up of the prediction (`string_match_all`, `string_match_part`): the
//! references that occur in the answer, letters of either case, wherever they stand.
//!
//! They see no order, no binding and nothing that is said besides; use them where numbers have to be of RULER's shape.

use crate::sample::{Completion, FaultKind, Gold, Item, Score};
use crate::scorers::{empty, fault, right, seen, wrong};

/// Missing references that a note names.
const MAX_NAMED: usize = 3;

/// Share of the references that occur.
pub(super) fn score_all(item: &Item, completion: &Completion) -> Score {
    let (answer, references) = (cleaned(&completion.text), references(item));
    let folded = answer.to_lowercase();
    judged(&answer, &references, |reference| folded.contains(&reference.to_lowercase()))
}

/// 1 where any reference occurs.
pub(super) fn score_part(item: &Item, completion: &Completion) -> Score {
    let (answer, references) = (cleaned(&completion.text), references(item));
    let folded = answer.to_lowercase();
    if references.iter().any(|reference| folded.contains(&reference.to_lowercase())) {
        return right(&answer);
    }
    if answer.is_empty() {
        return empty();
    }
    wrong(0.0, &answer, vec![fault(FaultKind::Missing, format!("none of {}", named(&references)))])
}

/// Right where every reference is `found`, else the share of those that are.
pub(super) fn judged(answer: &str, references: &[&str], found: impl Fn(&str) -> bool) -> Score {
    let missing: Vec<&str> = references.iter().copied().filter(|reference| !found(reference)).collect();
    if missing.is_empty() {
        return right(answer);
    }
    if answer.trim().is_empty() {
        return empty();
    }
    let share = 1.0 - missing.len() as f64 / references.len() as f64;
    let note = format!("{} of {} missing: {}", missing.len(), references.len(), named(&missing));
    wrong(share, answer, vec![fault(FaultKind::Missing, note)])
}

/// The texts that a right answer contains, out of whatever gold the item has. There is always one: without any, every answer
/// would be right.
pub(super) fn references(item: &Item) -> Vec<&str> {
    let mut references: Vec<&str> = match &item.expected.gold {
        Gold::Value { value, .. } => vec![value],
        Gold::Bindings { pairs } => pairs.iter().map(|pair| pair.value.as_str()).collect(),
        Gold::Ordered { values, .. } => values.iter().map(String::as_str).collect(),
        Gold::Sequence { lines } => lines.iter().map(String::as_str).collect(),
        Gold::Set { members, .. } => members.iter().map(String::as_str).collect(),
        Gold::Citations { facts, .. } => facts.iter().map(|fact| fact.value.as_str()).collect(),
        _ => Vec::new(),
    };
    references.retain(|reference| !reference.is_empty());
    if references.is_empty() {
        references.push(&item.expected.answer);
    }
    references
}

/// What RULER makes of a prediction before it looks: control characters become newlines, the ends are stripped.
fn cleaned(text: &str) -> String {
    let text: String = text.chars().map(|c| if c < ' ' { '\n' } else { c }).collect();
    text.trim().to_owned()
}

fn named(references: &[&str]) -> String {
    let mut text = references.iter().take(MAX_NAMED).map(|it| seen(it)).collect::<Vec<_>>().join(", ");
    if references.len() > MAX_NAMED {
        text += " …";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scorers::tests::{check_table, completion, item};

    fn of(references: &[&str]) -> Item {
        let members = references.iter().map(|it| (*it).to_owned()).collect();
        item("ruler_all", &references.join(", "), Gold::Set { members, decoys: vec![] })
    }

    /// References, prediction, `string_match_all` and `string_match_part` of this one sample, worked out by hand.
    const BY_HAND: &[(&[&str], &str, f64, f64)] = &[
        (&["4829173"], "The number is 4829173.", 1.0, 1.0),
        (&["4829173"], "4829174", 0.0, 0.0),
        (&["Paris", "Lyon", "Nice", "Metz"], "PARIS and nice", 0.5, 1.0),
        (&["Paris", "Lyon", "Nice"], "Lyon", 1.0 / 3.0, 1.0),
        // Wherever it stands, even inside another word, and in any order.
        (&["no"], "unknown", 1.0, 1.0),
        (&["1", "2"], "21", 1.0, 1.0),
        // What is said besides does not count.
        (&["17"], "It is not 17, it is 18, 19 or 20.", 1.0, 1.0),
        (&["alpha", "beta"], "", 0.0, 0.0),
        // Control characters become newlines, so a tab inside a reference is not found and one around it does no harm.
        (&["alpha beta"], "\u{0}\talpha beta\u{7}\n", 1.0, 1.0),
        (&["alpha\tbeta"], "alpha\tbeta", 0.0, 0.0),
        (&["alpha\nbeta"], "alpha\tbeta", 1.0, 1.0),
        (&["Ärger", "ÎLE"], "ärger auf der île", 1.0, 1.0),
        (&["a", "a"], "a", 1.0, 1.0),
    ];

    #[test]
    fn both_scores_are_those_of_the_definition() {
        for (references, prediction, all, part) in BY_HAND {
            let item = of(references);
            let found = score_all(&item, &completion(prediction));
            assert!((found.value - all).abs() < 1e-12, "{references:?} {prediction:?}: {found:?}");
            assert_eq!(found.is_right(), *all == 1.0);
            let found = score_part(&item, &completion(prediction));
            assert_eq!(found.value, *part, "{references:?} {prediction:?}: {found:?}");
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        use FaultKind::{Empty, Missing};
        let two = of(&["alpha", "beta"]);
        check_table(&two, &[("beta alpha", &[]), ("ALPHA", &[Missing]), (" \n\u{1}", &[Empty])]);
        assert_eq!(score_all(&two, &completion("alpha")).faults[0].note, "1 of 2 missing: beta");
        assert_eq!(score_part(&two, &completion("x")).faults[0].note, "none of alpha, beta");
    }
}
