//! Every expected text occurs in the answer, letter for letter and wherever it stands: the share of those that do.

use crate::sample::{Completion, Item, Score};
use crate::scorers::ruler::{judged, references};

pub(super) fn score(item: &Item, completion: &Completion) -> Score {
    let answer = completion.text.trim();
    judged(answer, &references(item), |reference| answer.contains(reference.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{FaultKind, Gold};
    use crate::scorers::tests::{check_table, completion, item};

    #[test]
    fn all_texts_are_needed_letter_for_letter() {
        use FaultKind::{Empty, Missing};
        let members = vec!["Dorset".to_owned(), "42 crowns".to_owned()];
        let two = item("contains", "Dorset paid 42 crowns.", Gold::Set { members, decoys: vec![] });
        check_table(
            &two,
            &[
                ("It was 42 crowns, from Dorset.", &[]),
                ("Dorset", &[Missing]),
                ("dorset paid 42 crowns", &[Missing]),
                ("", &[Empty]),
            ],
        );
        assert_eq!(score(&two, &completion("Dorset")).value, 0.5);
        let one = item("contains", "7", Gold::Value { value: "7".into(), distractors: vec![] });
        check_table(&one, &[("17", &[]), ("16", &[Missing])]);
    }
}
