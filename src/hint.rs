//! What to do about an error, kept apart from what happened.
//!
//! Error messages state facts; remedies change with the command line and are printed as `hint:` lines below them.

/// Remedies for an error, most useful first.
pub trait Hint {
    /// One line each, lower case, without a full stop.
    fn hints(&self) -> Vec<String>;
}

/// The candidate nearest to `word` by edit distance, if it is near enough to be a typing error.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(word, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= 1 + candidate.chars().count() / 3)
        .min()
        .map(|(_, candidate)| candidate)
}

/// `did you mean …?` for a near miss, else the list of what exists.
pub fn did_you_mean(word: &str, candidates: &[&str]) -> String {
    match nearest(word, candidates.iter().copied()) {
        Some(candidate) => format!("did you mean `{candidate}`?"),
        None => format!("known: {}", candidates.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typing_error_finds_its_word_and_nonsense_does_not() {
        let known = ["needle", "lookalike", "fp8_e4m3", "fp8_e5m2"];
        assert_eq!(nearest("needel", known), Some("needle"));
        assert_eq!(nearest("fp8_e4m2", known), Some("fp8_e4m3"));
        assert_eq!(nearest("xylophone", known), None);
        assert!(did_you_mean("xylophone", &known).starts_with("known: needle"));
    }
}
