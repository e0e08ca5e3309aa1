//! Expected are regular expressions, and each has to match somewhere in the answer: the share of those that do.
//!
//! The engine is linear in the answer's length and has neither look-around nor back references, so no pattern runs for ever;
//! what a pattern may grow to when compiled is limited.

use regex::{Regex, RegexBuilder};

use crate::sample::{Completion, Item, Score};
use crate::scorers::right;
use crate::scorers::ruler::{judged, references};

/// Compiled size in bytes. `\w{1000}` of all scripts is near it; what people write is a hundredth.
const MAX_COMPILED_BYTES: usize = 4 << 20;

/// A pattern longer than this is a text.
const MAX_PATTERN_BYTES: usize = 16 * 1024;

pub(super) fn score(item: &Item, completion: &Completion) -> Score {
    let answer = completion.text.trim();
    let canonical = item.expected.answer.trim();
    if !canonical.is_empty() && answer == canonical {
        return right(answer);
    }
    judged(answer, &references(item), |pattern| compiled(pattern).is_ok_and(|regex| regex.is_match(answer)))
}

/// Whether a text is a pattern that answers can be judged by; else what is wrong, on one line.
///
/// # Errors
/// Syntax, or one of the limits.
pub fn check_pattern(pattern: &str) -> Result<(), String> {
    compiled(pattern).map(|_| ())
}

fn compiled(pattern: &str) -> Result<Regex, String> {
    if pattern.len() > MAX_PATTERN_BYTES {
        return Err(format!("{} bytes, the limit is {MAX_PATTERN_BYTES}", pattern.len()));
    }
    RegexBuilder::new(pattern).size_limit(MAX_COMPILED_BYTES).build().map_err(|error| match error {
        regex::Error::CompiledTooBig(limit) => format!("compiled it is larger than {limit} bytes"),
        // The last line says what is wrong; those before it draw the pattern with an arrow.
        other => other.to_string().lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{FaultKind, Gold};
    use crate::scorers::tests::{check_table, completion, item};

    fn patterns(patterns: &[&str], answer: &str) -> Item {
        let members = patterns.iter().map(|it| (*it).to_owned()).collect();
        item("regex_match", answer, Gold::Set { members, decoys: vec![] })
    }

    #[test]
    fn every_pattern_has_to_match() {
        use FaultKind::{Empty, Missing};
        let two = patterns(&[r"(?i)^total: \d+$", r"\bcrowns\b"], "");
        check_table(&patterns(&[r"^\d{3}$"], ""), &[("407", &[]), ("4077", &[Missing]), ("", &[Empty])]);
        assert_eq!(score(&two, &completion("TOTAL: 12")).value, 0.5);
        assert!(score(&patterns(&["^x$"], "the canonical answer"), &completion("the canonical answer")).is_right());
    }

    #[test]
    fn a_pattern_that_backtracks_elsewhere_is_linear_here() {
        let item = patterns(&["^(a+)+$"], "");
        let answer = format!("{}b", "a".repeat(200_000));
        assert!(!score(&item, &completion(&answer)).is_right());
    }

    #[test]
    fn illegal_and_huge_patterns_are_told() {
        assert_eq!(check_pattern("a|b"), Ok(()));
        assert_eq!(check_pattern("(a"), Err("unclosed group".into()));
        assert!(check_pattern(r"(a)\1").unwrap_err().contains("backreferences are not supported"));
        assert!(check_pattern(r"(\w{200}){200}").unwrap_err().contains("larger than"));
        assert!(check_pattern(&"a".repeat(20_000)).unwrap_err().contains("limit"));
    }
}
