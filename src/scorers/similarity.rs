//! Edit similarity with the nearest expected text, after whitespace normalisation: 1 where they are the same.

use crate::sample::{Completion, Gold, Item, Score};
use crate::scorers::answer_text::normalised;
use crate::scorers::span::{departure, similarity};
use crate::scorers::{HIGHEST_WRONG, empty, right, wrong};

pub(super) fn score(item: &Item, completion: &Completion) -> Score {
    let answer = normalised(&completion.text);
    let alternatives = match &item.expected.gold {
        Gold::Set { members, .. } => members.as_slice(),
        _ => &[],
    };
    let texts: Vec<String> =
        std::iter::once(&item.expected.answer).chain(alternatives).map(|it| normalised(it)).collect();
    if texts.contains(&answer) {
        return right(&answer);
    }
    if answer.is_empty() {
        return empty();
    }
    let nearest = texts.iter().map(|text| (similarity(text, &answer), text)).max_by(|(a, _), (b, _)| a.total_cmp(b));
    let (value, text) = nearest.expect("an item has an expected answer");
    wrong(value.min(HIGHEST_WRONG), &answer, vec![departure(text, &answer)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::FaultKind;
    use crate::scorers::tests::{check_table, completion, item};

    #[test]
    fn the_nearest_of_several_texts_counts() {
        use FaultKind::{Diverged, Empty, Missing};
        let members = vec!["kitten".to_owned(), "a long sentence about boats".to_owned()];
        let two = item("similarity", "kitten", Gold::Set { members, decoys: vec![] });
        check_table(
            &two,
            &[
                ("kitten", &[]),
                (" a long\nsentence about boats ", &[]),
                ("sitting", &[Diverged]),
                ("kit", &[Missing]),
                ("", &[Empty]),
            ],
        );
        assert!((score(&two, &completion("sitting")).value - (1.0 - 3.0 / 7.0)).abs() < 1e-12);
        assert!((score(&two, &completion("a long sentence about goats")).value - 26.0 / 27.0).abs() < 1e-12);
    }
}
