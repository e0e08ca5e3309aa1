//! One label of a closed set: right when the answer line names it and no other label of the set.

use crate::sample::{Completion, FaultKind, Gold, Item, Score};
use crate::scorers::answer_text::answer_line;
use crate::scorers::answer_values::known_in;
use crate::scorers::{empty, fault, right, seen, wrong};

pub(super) fn score(item: &Item, completion: &Completion) -> Score {
    let text = completion.text.trim();
    let (label, others) = match &item.expected.gold {
        Gold::Label { label, others } => (label.trim(), others.as_slice()),
        _ => (item.expected.answer.trim(), &[][..]),
    };
    if text == item.expected.answer.trim() || text == label {
        return right(text);
    }
    let Some(line) = answer_line(text) else { return empty() };
    let labels: Vec<String> =
        [label].into_iter().chain(others.iter().map(|other| other.trim())).map(str::to_lowercase).collect();
    let known: Vec<&str> = labels.iter().map(String::as_str).collect();
    let folded = line.to_lowercase();
    let named = known_in(&folded, &known);
    let other = named.iter().find(|(_, place)| *place > 0).map(|(_, place)| others[place - 1].trim());
    let own = named.iter().find(|(_, place)| *place == 0);
    let found = match (own, other) {
        (Some((start, _)), None) if is_denied(&folded[..*start]) => {
            fault(FaultKind::WrongValue, format!("denies it: `{}`", seen(line)))
        }
        (Some(_), None) => return right(line),
        (Some(_), Some(other)) => fault(FaultKind::Extra, format!("also says {}", seen(other))),
        (None, Some(other)) => fault(FaultKind::WrongValue, format!("{} for {}", seen(other), seen(label))),
        (None, None) => fault(FaultKind::Missing, format!("none of {} labels in `{}`", known.len(), seen(line))),
    };
    wrong(0.0, other.unwrap_or(line), vec![found])
}

/// Whether the clause that leads to a label denies it: `It is not in`, `不在`.
fn is_denied(lead_in: &str) -> bool {
    let clause = lead_in.rsplit([',', '.', ';', '，', '。', '；']).next().unwrap_or_default();
    clause.split(|c: char| !c.is_alphabetic() && c != '\'').any(|word| matches!(word, "not" | "never" | "no"))
        || ["n't", "n’t", "不在", "不是", "没有", "并非"].iter().any(|word| clause.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scorers::tests::{check_table, item};

    fn town() -> Item {
        let others = ["Bramley", "North Ashford"].map(String::from).to_vec();
        item("label", "Ashford", Gold::Label { label: "Ashford".into(), others })
    }

    #[test]
    fn the_label_is_right_wherever_it_stands_alone() {
        for answer in ["Ashford", "The lantern is in Ashford.", "**ashford**", "Answer:\nAshford", "在Ashford。"] {
            check_table(&town(), &[(answer, &[])]);
        }
        let zh = item("label", "北仓", Gold::Label { label: "北仓".into(), others: vec!["北仓南".into()] });
        check_table(
            &zh,
            &[("在北仓。", &[]), ("北仓南", &[FaultKind::WrongValue]), ("不在北仓", &[FaultKind::WrongValue])],
        );
    }

    #[test]
    fn each_wrong_answer_gets_its_name() {
        use FaultKind::{Empty, Extra, Missing, WrongValue};
        check_table(
            &town(),
            &[
                ("", &[Empty]),
                ("Bramley", &[WrongValue]),
                ("In North Ashford.", &[WrongValue]),
                ("Ashford or Bramley", &[Extra]),
                ("It is not in Ashford.", &[WrongValue]),
                ("I do not know.", &[Missing]),
                ("Ashfordshire", &[Missing]),
            ],
        );
    }
}
