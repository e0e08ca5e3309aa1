//! Nothing to be found: right when the answer says the word that was asked for and gives no value. A value is invented, and
//! the note says where it comes from. Because an answer that gives a value anywhere has not said that there is none, the
//! whole answer is looked at.

use crate::sample::{Binding, Completion, FaultKind, Gold, Item, Score};
use crate::scorers::answer_text::{answer_line, bare, contains_word, is_code_char, nearness, stands_alone};
use crate::scorers::answer_values::{Said, values_in};
use crate::scorers::{empty, fault, right, seen, wrong};

/// Digits that a word needs to be a value where the text has no value to compare with: fewer are a count.
const LEAST_DIGITS: usize = 3;

pub(super) fn score(item: &Item, completion: &Completion) -> Score {
    let text = completion.text.trim();
    let (none, present) = match &item.expected.gold {
        Gold::Absent { none, present } => (none.trim(), present.as_slice()),
        _ => (item.expected.answer.trim(), &[][..]),
    };
    if text == item.expected.answer.trim() || text == none {
        return right(text);
    }
    let Some(line) = answer_line(text) else { return empty() };
    if let Some(value) = first_value(text, none, present) {
        let note = format!("{} {}", seen(&value), origin(item, present, &value));
        return wrong(0.0, &value, vec![fault(FaultKind::Invented, note)]);
    }
    if says_none(text, line, none) {
        return right(none);
    }
    wrong(0.0, line, vec![fault(FaultKind::Missing, format!("does not say {none}: `{}`", seen(line)))])
}

/// The first value of an answer: one of the text, or one that looks like them.
fn first_value(text: &str, none: &str, present: &[Binding]) -> Option<String> {
    let known: Vec<&str> = present.iter().map(|pair| pair.value.trim()).filter(|value| !value.is_empty()).collect();
    let is_coded = known.iter().all(|value| value.bytes().any(|byte| byte.is_ascii_digit()));
    let said = values_in(text, &known).into_iter().find_map(|said| match said {
        Said::Known(place) => Some(known[place].to_owned()),
        // Where values are words, any words would do.
        Said::Other(value) => is_coded.then_some(value),
    });
    let number = || {
        let words = text.split(|c: char| !is_code_char(c));
        words.filter(|word| word.bytes().filter(u8::is_ascii_digit).count() >= LEAST_DIGITS).map(str::to_owned).next()
    };
    said.or_else(number).filter(|value| value != none)
}

/// Whether the word stands in the answer as a word of its own; in another case only where nothing can be meant but it.
fn says_none(text: &str, line: &str, none: &str) -> bool {
    if bare(line).eq_ignore_ascii_case(none) {
        return true;
    }
    if none.is_ascii() {
        return contains_word(text, none) || line.to_lowercase().starts_with(&format!("{}.", none.to_lowercase()));
    }
    // A word of a script without spaces stands alone between signs, or ends a clause behind `是` or `：`.
    text.match_indices(none).any(|(start, _)| {
        let end = start + none.len();
        let before = text[..start].chars().next_back();
        let after = text[end..].chars().next();
        stands_alone(text, start, end)
            && before.is_none_or(|c| !c.is_alphabetic() || matches!(c, '是' | '为'))
            && after.is_none_or(|c| !c.is_alphabetic())
    })
}

/// Where an invented value comes from.
fn origin(item: &Item, present: &[Binding], value: &str) -> String {
    if let Some(owner) = present.iter().find(|pair| pair.value.trim() == value) {
        return format!("is the value of {}", seen(&owner.key));
    }
    if let Some((owner, how)) = present.iter().find_map(|pair| Some((pair, nearness(pair.value.trim(), value)?))) {
        return format!("is near the value of {}: {how}", seen(&owner.key));
    }
    if item.messages.iter().any(|message| contains_word(&message.content, value)) {
        return "stands elsewhere in the text".into();
    }
    "stands nowhere in the text".into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scorers::tests::{check_table, completion, item};

    fn lantern(none: &str) -> Item {
        let pairs = [("amber kettle", "4829173"), ("old lantern", "1150264")];
        let present = pairs.map(|(key, value)| Binding { key: key.into(), value: value.into() }).to_vec();
        item("absent", none, Gold::Absent { none: none.into(), present })
    }

    #[test]
    fn none_is_right_when_no_value_goes_with_it() {
        use FaultKind::{Empty, Invented, Missing};
        check_table(
            &lantern("NONE"),
            &[
                ("NONE", &[]),
                ("None.", &[]),
                ("NONE. The text does not say it.", &[]),
                ("The answer is **NONE**.", &[]),
                ("There are 2 lanterns, so NONE", &[]),
                ("", &[Empty]),
                ("The text does not say.", &[Missing]),
                ("none of the guests was there", &[Missing]),
                ("4829173", &[Invented]),
                ("9021846", &[Invented]),
                ("NONE, but the amber kettle has 4829173", &[Invented]),
                ("NONE\nThe number is 9021846.", &[Invented]),
            ],
        );
        check_table(
            &lantern("无"),
            &[
                ("无", &[]),
                ("答案：无。", &[]),
                ("答案是无。", &[]),
                ("无法确定", &[Missing]),
                ("4829173", &[Invented]),
            ],
        );
    }

    #[test]
    fn the_note_says_where_it_comes_from() {
        let note = |text| score(&lantern("NONE"), &completion(text)).faults[0].note.clone();
        assert_eq!(note("1150264"), "1150264 is the value of old lantern");
        assert_eq!(note("1150246"), "1150246 is near the value of old lantern: characters transposed");
        assert_eq!(note("9021846"), "9021846 stands nowhere in the text");
    }
}
