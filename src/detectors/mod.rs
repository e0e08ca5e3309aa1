//! Pure functions that find symptoms of degradation in an output, whatever its score; one file per detector.
//!
//! An output that says what was expected has no symptom, whatever it looks like. Everything else is judged by its form and
//! against the expected answer, and, where there is one, against the baseline's output for the same prompt.
//!
//! To add one: a file with `detect`, its tests, and a line in [`DETECTORS`]. Shared: `tokens` is how detectors read text,
//! `words` what is known of a word, [`Reading`] holds what several of them need, `tongue` tells languages, `form` tells shapes
//! of text, `content` what a text is about; `period` and `restating` are parts of repetition, `non_words` and `salad` of
//! garbage; `thinking` tells thoughts from the answer.

mod content;
mod form;
mod format_drift;
mod garbage;
mod language_drift;
mod non_words;
mod off_topic;
mod period;
mod prompt_echo;
mod reading;
mod repetition;
mod restating;
mod salad;
mod scrambled;
mod thinking;
mod tokens;
mod tongue;
mod truncation;
mod words;

pub use reading::Reading;

use crate::sample::{Finding, FindingKind, FinishReason, Language};

/// What a detector looks at.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The output under suspicion.
    pub output: &'a str,
    /// Right answers, any of them, where known; the first is the canonical one.
    pub expected: &'a [&'a str],
    /// Id of the task, where known: says what form is asked for.
    pub task: Option<&'a str>,
    /// Language of the item, where known.
    pub language: Option<Language>,
    /// ISO 639-1 code of the language, where it is none of [`Language`].
    pub language_code: Option<&'a str>,
    /// What was asked, where known; its end is enough.
    pub prompt: Option<&'a str>,
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
            expected: &[],
            task: None,
            language: None,
            language_code: None,
            prompt: None,
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

    /// The texts to measure against: the expected answers, else the baseline's output.
    fn measures(&self) -> impl Iterator<Item = &'a str> {
        let baseline = self.baseline.filter(|_| self.expected.is_empty());
        self.expected.iter().copied().chain(baseline)
    }

    /// Whether there is anything to measure against.
    fn has_measure(&self) -> bool {
        !self.expected.is_empty() || self.baseline.is_some()
    }

    /// Everything known that may ask for what the output does: the expected answers and the baseline's output.
    fn references(&self) -> impl Iterator<Item = &'a str> {
        self.expected.iter().copied().chain(self.baseline)
    }

    /// An output that says what was expected, or without that what the baseline said, is no degradation.
    fn is_as_expected(&self) -> bool {
        self.measures().any(|reference| self.output.trim() == reference.trim())
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
    pub detect: fn(&Reading<'_>) -> Option<Finding>,
}

/// All detectors, in order of precedence.
pub static DETECTORS: &[Detector] = &[
    Detector {
        kind: FindingKind::Repetition,
        version: 4,
        summary: "loops (exact, with counters past the expected end, restated), doubled words, runs of one character",
        detect: repetition::detect,
    },
    Detector {
        kind: FindingKind::Garbage,
        version: 2,
        summary: "broken characters, leaked tokens, mojibake, script soup, words that are none or in no order",
        detect: garbage::detect,
    },
    Detector {
        kind: FindingKind::Truncation,
        version: 4,
        summary: "ends with something open, in mid-sentence, or far before the end of what was expected",
        detect: truncation::detect,
    },
    Detector {
        kind: FindingKind::Scrambled,
        version: 1,
        summary: "the expected items, sentences or words in another order; numbering out of order",
        detect: scrambled::detect,
    },
    Detector {
        kind: FindingKind::LanguageDrift,
        version: 2,
        summary: "sentences or words of another language, names and quotations left aside",
        detect: language_drift::detect,
    },
    Detector {
        kind: FindingKind::FormatDrift,
        version: 2,
        summary: "another form than the expected one, or one that breaks on the way; fences, text around data",
        detect: format_drift::detect,
    },
    Detector {
        kind: FindingKind::OffTopic,
        version: 2,
        summary: "prose that shares no words or values with what was expected or asked",
        detect: off_topic::detect,
    },
    Detector {
        kind: FindingKind::PromptEcho,
        version: 3,
        summary: "the prompt or its instructions again instead of an answer",
        detect: prompt_echo::detect,
    },
];

/// All symptoms of an output, the leading one first.
pub fn detect_all(context: &Context<'_>) -> Vec<Finding> {
    if context.is_as_expected() {
        return Vec::new();
    }
    let mut findings = thinking::detect(context).unwrap_or_else(|| judge(context));
    findings.sort_by_key(|finding| finding.kind);
    findings
}

/// What all detectors say of an output without thinking in it.
fn judge(context: &Context<'_>) -> Vec<Finding> {
    if context.is_as_expected() {
        return Vec::new();
    }
    let reading = Reading::of(context);
    DETECTORS.iter().filter_map(|detector| (detector.detect)(&reading)).collect()
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
        assert!(detect_all(&Context { expected: &[open.trim()], ..Context::of(&open) }).is_empty());
        assert!(detect_all(&Context { baseline: Some(&open), ..Context::of(&open) }).is_empty());
        assert!(detect_all(&Context { expected: &[""], ..Context::of(" ") }).is_empty());
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
            let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
            let context = Context { expected: &expected, ..Context::of(&output) };
            for finding in detect_all(&context) {
                prop_assert!(output.get(finding.start..finding.end).is_some(), "{:?}", finding);
                prop_assert!((0.0..=1.0).contains(&finding.severity), "{:?}", finding);
                prop_assert!(!finding.evidence.is_empty());
            }
        }

        #[test]
        fn the_expected_output_is_never_suspected(output in text(), baseline in prop::option::of(text())) {
            let context = Context { expected: &[&output], baseline: baseline.as_deref(), ..Context::of(&output) };
            for detector in DETECTORS {
                prop_assert_eq!((detector.detect)(&Reading::of(&context)), None);
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
        let broken = "\u{fffd}".repeat(3_300_000);
        let quoted = "say `<|im_end|>` or ".repeat(500_000);
        let struck = "<s>a</s> ".repeat(1_100_000);
        let latin = "Ã© ".repeat(2_000_000);
        let started = std::time::Instant::now();
        assert_eq!(kinds(&Context::of(&words)), []);
        assert_eq!(kinds(&Context::of(&loops))[0], FindingKind::Repetition);
        assert_eq!(kinds(&Context::of(&open))[0], FindingKind::Repetition);
        assert_eq!(kinds(&Context::of(&blank))[0], FindingKind::Repetition);
        assert_eq!(kinds(&Context::of(&one))[0], FindingKind::Repetition);
        let cut = Context { finish_reason: FinishReason::Length, ..Context::of(&broken) };
        assert_eq!(kinds(&cut)[0], FindingKind::Repetition);
        for text in [&quoted, &struck, &latin] {
            let context = Context { expected: &["short"], prompt: Some(text), ..Context::of(text) };
            assert!(!kinds(&context).is_empty());
        }
        // Some eighty megabytes; quadratic work would take hours, a loaded machine some seconds.
        assert!(started.elapsed().as_secs() < 60);
    }
}
