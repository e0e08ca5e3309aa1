//! Members of a set, in any order.
//!
//! `value = 2 × members given / (members asked + values given)`, the F1 of precision and recall; right means that every
//! member is there once and nothing else.

use std::collections::BTreeSet;

use crate::sample::{Completion, Fault, FaultKind, Gold, Item, Score};
use crate::scorers::answer_text::content_lines;
use crate::scorers::answer_values::{Said, take_near_misses, values_in};
use crate::scorers::{empty, fault, right, seen, wrong};

pub(super) fn score(item: &Item, completion: &Completion) -> Score {
    let text = completion.text.trim();
    let (members, decoys): (Vec<&str>, Vec<&str>) = match &item.expected.gold {
        Gold::Set { members, decoys } => {
            (members.iter().map(String::as_str).collect(), decoys.iter().map(String::as_str).collect())
        }
        _ => (content_lines(&item.expected.answer).collect(), Vec::new()),
    };
    if text == item.expected.answer.trim() {
        return right(text);
    }
    if text.is_empty() {
        return empty();
    }
    let known: Vec<&str> = members.iter().chain(&decoys).copied().collect();
    let mut given: Vec<&str> = Vec::new();
    let mut again: Vec<&str> = Vec::new();
    let mut strangers: Vec<String> = Vec::new();
    let mut seen_before: BTreeSet<String> = BTreeSet::new();
    for said in values_in(text, &known) {
        match said {
            Said::Known(place) if !seen_before.insert(known[place].to_owned()) => again.push(known[place]),
            Said::Known(place) => given.push(known[place]),
            Said::Other(value) if seen_before.insert(value.clone()) => strangers.push(value),
            Said::Other(_) => {}
        }
    }
    let all: BTreeSet<&str> = members.into_iter().collect();
    let right_members = given.iter().filter(|value| all.contains(**value)).count();
    let judged = all.len() + given.len() + again.len() + strangers.len();
    let faults = faults(&all, &given, &again, strangers);
    if faults.is_empty() {
        return right(text);
    }
    wrong(2.0 * right_members as f64 / judged.max(1) as f64, text, faults)
}

fn faults(members: &BTreeSet<&str>, given: &[&str], again: &[&str], mut strangers: Vec<String>) -> Vec<Fault> {
    let mut missing: Vec<&str> = members.iter().filter(|member| !given.contains(*member)).copied().collect();
    let near = take_near_misses(&mut strangers, &mut missing);
    let decoys = given.iter().filter(|value| !members.contains(**value));
    let decoys = decoys.map(|decoy| format!("{} is in the text and does not belong", seen(decoy)));
    let extra: Vec<String> =
        decoys.chain(strangers.iter().map(|value| format!("{} is not in the text", seen(value)))).collect();
    let counted =
        |count: usize, first: Option<String>| first.map(|first| format!("{count} of {}: {first}", members.len()));
    let named = [
        (FaultKind::Extra, counted(extra.len(), extra.first().cloned())),
        (FaultKind::NearMiss, counted(near.len(), near.first().cloned())),
        (FaultKind::Missing, counted(missing.len(), missing.first().map(|value| seen(value)))),
        (FaultKind::Duplicated, counted(again.len(), again.first().map(|value| seen(value)))),
    ];
    named.into_iter().filter_map(|(kind, note)| Some(fault(kind, note?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scorers::tests::{check_table, completion, item};

    fn variables() -> Item {
        let strings = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect::<Vec<_>>();
        let gold = Gold::Set { members: strings(&["QXVBN", "WJKLM", "TZRDF"]), decoys: strings(&["HGPCS", "BNMKL"]) };
        item("set", "QXVBN, WJKLM, TZRDF", gold)
    }

    #[test]
    fn any_order_and_layout_is_read() {
        let answers = [
            "TZRDF, QXVBN and WJKLM.",
            "- `WJKLM`\n- `TZRDF`\n- `QXVBN`",
            "The variables that hold it are: QXVBN, TZRDF, WJKLM",
            "变量QXVBN、TZRDF和WJKLM。",
        ];
        for answer in answers {
            check_table(&variables(), &[(answer, &[])]);
        }
    }

    #[test]
    fn each_wrong_answer_gets_its_name() {
        use FaultKind::{Duplicated, Empty, Extra, Missing, NearMiss};
        check_table(
            &variables(),
            &[
                ("", &[Empty]),
                ("I do not know.", &[Missing]),
                ("QXVBN, WJKLM", &[Missing]),
                ("QXVBN, WJKLM, TZRDF, HGPCS", &[Extra]),
                ("QXVBN, WJKLM, TZRDF, PLMNB", &[Extra]),
                ("QXVBN, WJKLM, TZRFD", &[NearMiss]),
                ("QXVBN, WJKLM, TZRDF, QXVBN", &[Duplicated]),
                ("QXVBN, HGPCS", &[Extra, Missing]),
            ],
        );
    }

    #[test]
    fn the_value_is_f1() {
        let value = |text: &str| score(&variables(), &completion(text)).value;
        assert!((value("QXVBN, WJKLM") - 4.0 / 5.0).abs() < 1e-12);
        assert!((value("QXVBN, WJKLM, TZRDF, HGPCS") - 6.0 / 7.0).abs() < 1e-12);
        assert_eq!(value("HGPCS, BNMKL"), 0.0);
    }
}
