//! One version of a value that was set several times: 1 or 0. A version of another time is outdated, or too early, and the
//! note says by how many updates.
//!
//! Only the first line that says something is looked at, as for a single value.

use crate::sample::{Completion, Fault, FaultKind, Gold, Item, Score};
use crate::scorers::answer_text::{answer_line, nearness};
use crate::scorers::answer_values::{Said, values_in};
use crate::scorers::{empty, fault, right, seen, wrong};

pub(super) fn score(item: &Item, completion: &Completion) -> Score {
    let text = completion.text.trim();
    let answer = [item.expected.answer.clone()];
    let (versions, asked) = match &item.expected.gold {
        Gold::History { versions, asked } if *asked < versions.len() => (versions.as_slice(), *asked),
        _ => (answer.as_slice(), 0),
    };
    if text == item.expected.answer.trim() {
        return right(text);
    }
    let Some(line) = answer_line(text) else { return empty() };
    let known: Vec<&str> = versions.iter().map(|version| version.trim()).collect();
    let said = values_in(line, &known);
    let is_asked = |said: &Said| matches!(said, Said::Known(place) if known[*place] == known[asked]);
    let rival = said.iter().find(|said| !is_asked(said));
    let extracted = match said.first() {
        Some(Said::Known(place)) => known[*place],
        Some(Said::Other(value)) => value,
        None => line,
    };
    if said.iter().any(is_asked) {
        return match rival {
            None if is_denied(line, known[asked]) => {
                wrong(0.0, line, vec![fault(FaultKind::WrongValue, format!("denies the value: `{}`", seen(line)))])
            }
            None => right(known[asked]),
            Some(rival) => wrong(0.0, line, vec![fault(FaultKind::Extra, also(rival, &known, asked))]),
        };
    }
    wrong(0.0, extracted, vec![name_wrong_value(&said, &known, asked, line)])
}

/// `It is not 4829173`.
fn is_denied(line: &str, value: &str) -> bool {
    let lead_in = line.split(value).next().unwrap_or_default().trim_end().to_lowercase();
    ["not", "n't", "no longer", "不是", "不再是"].iter().any(|word| lead_in.ends_with(word))
}

fn also(rival: &Said, known: &[&str], asked: usize) -> String {
    match rival {
        Said::Known(place) => format!("also says {}, {}", seen(known[*place]), lag(*place, asked)),
        Said::Other(value) => format!("also says {}", seen(value)),
    }
}

fn lag(place: usize, asked: usize) -> String {
    let updates = place.abs_diff(asked);
    let noun = if updates == 1 { "update" } else { "updates" };
    format!("{updates} {noun} {}", if place < asked { "old" } else { "early" })
}

fn name_wrong_value(said: &[Said], known: &[&str], asked: usize, line: &str) -> Fault {
    let version = said.iter().find_map(|said| match said {
        Said::Known(place) => Some(*place),
        Said::Other(_) => None,
    });
    if let Some(place) = version {
        return fault(FaultKind::Stale, format!("{} is {}", seen(known[place]), lag(place, asked)));
    }
    let unknown = || {
        said.iter().filter_map(|said| match said {
            Said::Known(_) => None,
            Said::Other(value) => Some(value),
        })
    };
    let near = unknown().find_map(|value| Some((value, nearness(known[asked], value)?)));
    match (near, unknown().next()) {
        (Some((value, how)), _) => {
            fault(FaultKind::NearMiss, format!("{} for {}: {how}", seen(value), seen(known[asked])))
        }
        (None, Some(value)) => fault(FaultKind::WrongValue, format!("{} for {}", seen(value), seen(known[asked]))),
        (None, None) => fault(FaultKind::WrongValue, format!("no value in `{}`", seen(line))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scorers::tests::{check_table, completion, item};

    fn four(asked: usize) -> Item {
        let versions = ["4829173", "1150264", "7733915", "9021846"].map(String::from).to_vec();
        item("history", &versions[asked].clone(), Gold::History { versions, asked })
    }

    #[test]
    fn the_version_asked_for_is_right_alone() {
        use FaultKind::{Empty, Extra, NearMiss, Stale, WrongValue};
        check_table(
            &four(3),
            &[
                ("9021846", &[]),
                ("After update 4 it is **9,021,846**.", &[]),
                ("The number is:\n9021846", &[]),
                ("", &[Empty]),
                ("1150264", &[Stale]),
                ("9021864", &[NearMiss]),
                ("5559999", &[WrongValue]),
                ("It is not 9021846.", &[WrongValue]),
                ("I do not know.", &[WrongValue]),
                ("9021846 (before: 7733915)", &[Extra]),
                ("9021846 or 5559999", &[Extra]),
            ],
        );
    }

    #[test]
    fn the_note_says_how_old_or_early() {
        let note = |asked, text| score(&four(asked), &completion(text)).faults[0].note.clone();
        assert_eq!(note(3, "1150264"), "1150264 is 2 updates old");
        assert_eq!(note(1, "7733915"), "7733915 is 1 update early");
        assert_eq!(note(1, "1150264, now 9021846"), "also says 9021846, 2 updates early");
    }
}
