//! Pure functions that find symptoms of degradation in an output, whatever its score; one file per detector.
//!
//! An output that says what was expected has no symptom, whatever it looks like. Everything else is judged by its form and
//! against the expected answer, and, where there is one, against the baseline's output for the same prompt.
//!
//! To add one: a file with `detect`, its tests, and a line in [`DETECTORS`]. `tokens` is how detectors read text.

mod repetition;
mod tokens;
mod truncation;

use crate::sample::{Finding, FindingKind, FinishReason};

/// What a detector looks at.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The output under suspicion.
    pub output: &'a str,
    /// A right answer, where one is known.
    pub expected: Option<&'a str>,
    /// Why generation ended; never evidence by itself.
    pub finish_reason: FinishReason,
    /// Tokens generated, where known.
    pub output_tokens: Option<u32>,
    /// Limit of the answer in tokens, where known.
    pub max_output_tokens: Option<u32>,
    /// The baseline's output for the same prompt, where known.
    pub baseline: Option<&'a str>,
}

impl<'a> Context<'a> {
    /// An output of which nothing else is known.
    pub fn of(output: &'a str) -> Self {
        Self {
            output,
            expected: None,
            finish_reason: FinishReason::Unknown,
            output_tokens: None,
            max_output_tokens: None,
            baseline: None,
        }
    }

    /// Whether generation was stopped by the limit of tokens.
    pub fn hit_limit(&self) -> bool {
        let full = matches!((self.output_tokens, self.max_output_tokens), (Some(got), Some(limit)) if got >= limit);
        self.finish_reason == FinishReason::Length || full
    }

    /// The text to measure against: the expected answer, else the baseline's output.
    fn reference(&self) -> Option<&'a str> {
        self.expected.or(self.baseline)
    }

    /// Everything known that may ask for what the output does: the expected answer and the baseline's output.
    fn references(&self) -> impl Iterator<Item = &'a str> {
        self.expected.into_iter().chain(self.baseline)
    }

    /// An output that equals what was expected, or without that what the baseline said, is no degradation.
    fn is_as_expected(&self) -> bool {
        self.reference().is_some_and(|reference| self.output.trim() == reference.trim())
    }
}

/// One detector.
pub struct Detector {
    /// The symptom it looks for.
    pub kind: FindingKind,
    /// Raised when any output may be judged differently; part of a run's identity.
    pub version: u32,
    /// One line for people.
    pub summary: &'static str,
    /// Looks for it; spans are bytes of the output at character borders.
    pub detect: fn(&Context<'_>) -> Option<Finding>,
}

/// All detectors, in order of precedence.
pub static DETECTORS: &[Detector] = &[
    Detector {
        kind: FindingKind::Repetition,
        version: 1,
        summary: "loops at the end (exact, or with counters past the expected end), doubled words, runs of one character",
        detect: repetition::detect,
    },
    Detector {
        kind: FindingKind::Truncation,
        version: 1,
        summary: "ends with something open, in mid-sentence, or far before the end of what was expected",
        detect: truncation::detect,
    },
];

/// All symptoms of an output, the leading one first.
pub fn detect_all(context: &Context<'_>) -> Vec<Finding> {
    if context.is_as_expected() {
        return Vec::new();
    }
    let mut findings: Vec<Finding> = DETECTORS.iter().filter_map(|detector| (detector.detect)(context)).collect();
    findings.sort_by_key(|finding| finding.kind);
    findings
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(super) fn kinds(context: &Context<'_>) -> Vec<FindingKind> {
        detect_all(context).iter().map(|finding| finding.kind).collect()
    }

    #[test]
    fn detectors_stand_in_order_of_precedence() {
        assert!(DETECTORS.is_sorted_by(|a, b| a.kind < b.kind));
    }

    #[test]
    fn an_output_equal_to_the_expected_one_has_no_symptom() {
        let loops = "no no no no\n".repeat(40);
        let open = format!("[{loops}");
        assert!(!detect_all(&Context::of(&open)).is_empty());
        assert!(detect_all(&Context { expected: Some(open.trim()), ..Context::of(&open) }).is_empty());
        assert!(detect_all(&Context { baseline: Some(&open), ..Context::of(&open) }).is_empty());
        assert!(detect_all(&Context { expected: Some(""), ..Context::of(" ") }).is_empty());
    }

    fn text() -> impl Strategy<Value = String> {
        prop_oneof![
            "\\PC{0,120}",
            "[a-c上下 \\n\"(){}\\[\\]`]{0,120}",
            ("[a-c上下 .\\n]{0,40}", "[a-z0-9上下 ,]{1,8}", 2..80_usize, "[a-c\"(`]{0,3}")
                .prop_map(|(start, unit, times, end)| start + &unit.repeat(times) + &end),
        ]
    }

    proptest! {
        #[test]
        fn spans_and_severities_are_valid(output in text(), expected in prop::option::of(text())) {
            let context = Context { expected: expected.as_deref(), ..Context::of(&output) };
            for finding in detect_all(&context) {
                prop_assert!(output.get(finding.start..finding.end).is_some(), "{:?}", finding);
                prop_assert!((0.0..=1.0).contains(&finding.severity), "{:?}", finding);
                prop_assert!(!finding.evidence.is_empty());
            }
        }

        #[test]
        fn the_expected_output_is_never_suspected(output in text(), baseline in prop::option::of(text())) {
            let context = Context { expected: Some(&output), baseline: baseline.as_deref(), ..Context::of(&output) };
            for detector in DETECTORS {
                prop_assert_eq!((detector.detect)(&context), None);
            }
        }
    }

    #[test]
    fn ten_megabytes_are_bounded() {
        let words: String =
            (0..1_500_000_u64).map(|n| format!("{:x} ", n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 36)).collect();
        let loops = "and so on ".repeat(1_000_000);
        let open = "[(\"".repeat(3_500_000);
        let blank = " ".repeat(10_000_000);
        let one = "a".repeat(10_000_000);
        let started = std::time::Instant::now();
        assert_eq!(kinds(&Context::of(&words)), []);
        assert_eq!(kinds(&Context::of(&loops))[0], FindingKind::Repetition);
        assert_eq!(kinds(&Context::of(&open))[0], FindingKind::Repetition);
        assert_eq!(kinds(&Context::of(&blank))[0], FindingKind::Repetition);
        assert_eq!(kinds(&Context::of(&one))[0], FindingKind::Repetition);
        // Fifty megabytes; quadratic work would take hours, a loaded machine some seconds.
        assert!(started.elapsed().as_secs() < 60);
    }
}
