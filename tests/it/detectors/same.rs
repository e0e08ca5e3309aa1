//! What the detectors say does not change unnoticed: every finding on a corpus of damaged, cut and joined outputs, as one hash.

use kvgauge::detectors::{Context, detect_all};
use kvgauge::rng::Rng;
use kvgauge::sample::{FinishReason, Language};
use serde_json::Value;

use super::damage::{FAULTS, STRENGTHS, Whole};

/// BLAKE3 of all findings. A change of it is a change of what outputs are told of: it needs a reason, a raised `version` of each
/// detector that judges differently, and a line in the changelog.
const FINDINGS: &str = "c3c358e65ed274e89a4071564ef9cf3b70604dcf6b081cbcb32c69a6925d333b";

/// Outputs joined to a long one, at most.
const MAX_JOINED: usize = 24;

/// Texts made of every output.
const VARIANTS: usize = 4;

struct Output {
    whole: Whole,
    expected: Option<String>,
    prompt: Option<String>,
}

fn outputs() -> Vec<Output> {
    let of = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        let text = |name: &str| line[name].as_str().map(str::to_owned);
        let output = text("output").unwrap();
        let is_zh = output.chars().any(|c| ('\u{4e00}'..='\u{9fff}').contains(&c));
        let whole = Whole {
            text: output,
            question: text("prompt").unwrap_or_default(),
            task: text("task").unwrap_or_default(),
            language: if is_zh { Language::Zh } else { Language::En },
            is_in_it: text("lang").is_some(),
        };
        Output { whole, expected: text("expected"), prompt: text("prompt") }
    };
    super::OUTPUTS.lines().map(of).collect()
}

/// A part of a text, cut between characters.
fn cut<'a>(text: &'a str, rng: &mut Rng) -> &'a str {
    let at = |rng: &mut Rng| text.floor_char_boundary(rng.below(text.len() + 1));
    let (one, other) = (at(rng), at(rng));
    &text[one.min(other)..one.max(other)]
}

fn variant(outputs: &[Output], number: usize, variant: usize, rng: &mut Rng) -> String {
    let whole = &outputs[number].whole;
    let other = |rng: &mut Rng| outputs[rng.below(outputs.len())].whole.text.as_str();
    match variant {
        0 => whole.text.clone(),
        1 => {
            let fault = rng.choose(FAULTS);
            (fault.damage)(whole, rng.below(STRENGTHS.len()), rng).unwrap_or_else(|| cut(&whole.text, rng).into())
        }
        2 => {
            let joint = *rng.choose(&["\n\n", "\n", " ", ""]);
            let parts: Vec<&str> = (0..2 + rng.below(MAX_JOINED)).map(|_| other(rng)).collect();
            parts.join(joint)
        }
        _ => {
            let at = whole.text.floor_char_boundary(rng.below(whole.text.len() + 1));
            let inserted = cut(other(rng), rng).repeat(1 + rng.below(12));
            format!("{}{inserted}{}", &whole.text[..at], &whole.text[at..])
        }
    }
}

/// Of all findings of the corpus, one JSON array a line.
fn findings() -> blake3::Hash {
    let outputs = outputs();
    let mut hasher = blake3::Hasher::new();
    for (number, Output { whole, expected, prompt }) in outputs.iter().enumerate() {
        for made in 0..VARIANTS {
            let mut rng = Rng::from_name(&["same findings", &number.to_string(), &made.to_string()]);
            let text = variant(&outputs, number, made, &mut rng);
            let expected: Vec<&str> = expected.as_deref().into_iter().filter(|_| rng.below(4) > 0).collect();
            let baseline = (rng.below(6) == 0).then_some(whole.text.as_str());
            let context = Context {
                expected: &expected,
                task: (!whole.task.is_empty()).then_some(whole.task.as_str()),
                language: whole.is_in_it.then_some(whole.language),
                prompt: prompt.as_deref().or((rng.below(4) == 0).then_some(whole.text.as_str())),
                finish_reason: *rng.choose(&[FinishReason::Unknown, FinishReason::Stop, FinishReason::Length]),
                baseline,
                ..Context::of(&text)
            };
            hasher.update(serde_json::to_string(&detect_all(&context)).unwrap().as_bytes());
            hasher.update(b"\n");
        }
    }
    hasher.finalize()
}

#[test]
fn findings_are_the_same_as_ever() {
    assert_eq!(findings().to_hex().as_str(), FINDINGS);
}
