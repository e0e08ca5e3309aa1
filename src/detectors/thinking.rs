//! Thinking that stands in the output itself, before the answer, between `<think>` and `</think>`.
//!
//! Only loops and garbage are damage there: thoughts may change language, break off and say the prompt again. The answer after
//! it is judged by every detector; thinking that never ends leaves no answer at all.

use crate::detectors::{Context, DETECTORS, Reading, judge};
use crate::sample::{Finding, FindingKind};

const TAGS: [(&str, &str); 4] = [
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<reasoning>", "</reasoning>"),
    ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
];

/// Where thinking stands in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Thinking {
    None,
    /// The answer begins here.
    Ended(usize),
    /// It began here and never ended.
    Open(usize),
}

fn thinking_in(text: &str) -> Thinking {
    let start = text.len() - text.trim_start().len();
    let Some((opener, closer)) = TAGS.iter().find(|(opener, _)| text[start..].starts_with(opener)) else {
        return Thinking::None;
    };
    match text[start + opener.len()..].find(closer) {
        Some(at) => Thinking::Ended(start + opener.len() + at + closer.len()),
        None => Thinking::Open(start),
    }
}

/// The answer of a text, without thinking before it.
fn answer(text: &str) -> &str {
    match thinking_in(text) {
        Thinking::Ended(at) => &text[at..],
        _ => text,
    }
}

/// Symptoms of an output with thinking in it; `None` where there is none, or where thinking was what was expected.
pub(super) fn detect(context: &Context<'_>) -> Option<Vec<Finding>> {
    if context.expected.iter().any(|expected| thinking_in(expected) != Thinking::None) {
        return None;
    }
    let (thought, rest) = match thinking_in(context.output) {
        Thinking::None => return None,
        Thinking::Ended(at) => context.output.split_at(at),
        Thinking::Open(_) => (context.output, ""),
    };
    let mut findings = in_thoughts(&Context { output: thought, expected: &[], ..*context });
    if rest.is_empty() && thought.len() == context.output.len() && matches!(thinking_in(thought), Thinking::Open(_)) {
        findings.push(Finding {
            kind: FindingKind::Truncation,
            severity: 1.0,
            start: 0,
            end: thought.len(),
            evidence: "the thinking never ends".into(),
        });
        return Some(findings);
    }
    for found in judge(&Context { output: rest, baseline: context.baseline.map(answer), ..*context }) {
        if findings.iter().all(|known| known.kind != found.kind) {
            findings.push(Finding { start: found.start + thought.len(), end: found.end + thought.len(), ..found });
        }
    }
    Some(findings)
}

fn in_thoughts(context: &Context<'_>) -> Vec<Finding> {
    let reading = Reading::of(context);
    let of_thoughts = |kind: FindingKind| matches!(kind, FindingKind::Repetition | FindingKind::Garbage);
    DETECTORS.iter().filter(|detector| of_thoughts(detector.kind)).filter_map(|it| (it.detect)(&reading)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detectors::detect_all;

    fn kinds(output: &str, expected: &[&str]) -> Vec<FindingKind> {
        let context = Context { expected, language_code: Some("en"), ..Context::of(output) };
        detect_all(&context).iter().map(|finding| finding.kind).collect()
    }

    #[test]
    fn the_answer_is_judged_and_thoughts_only_for_loops_and_garbage() {
        let thought = "<think>\n用户问的是铜门的编号, so the text says 4829173\n</think>\n";
        assert_eq!(kinds(&format!("{thought}4829173"), &["4829173"]), []);
        assert_eq!(kinds(&format!("{thought}{{\"code\": \"4829173\"}}"), &["4829173"]), [FindingKind::FormatDrift]);
        assert_eq!(kinds(thought, &["4829173"]), [FindingKind::Truncation]);
        let open = "<think>\nThe user wants the code of the lantern. I see it in line seven.";
        assert_eq!(kinds(open, &["4829173"]), [FindingKind::Truncation]);
        let looped = format!("{open}{}", " But is it that one? Let me look.".repeat(12));
        assert_eq!(kinds(&looped, &["4829173"]), [FindingKind::Repetition, FindingKind::Truncation]);
        assert_eq!(kinds(&format!("{looped}</think>4829173"), &["4829173"]), [FindingKind::Repetition]);
    }
}
