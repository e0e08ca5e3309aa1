//! What it means when a server counts other tokens than were planned.

use std::fmt;

use crate::sample::{Bin, Message, Role};
use crate::targets::openai::connection::Subject;
use crate::targets::openai::wire::{Ask, RequestForm};
use crate::targets::openai::{EndpointError, Inner};

/// A difference of more than this between two conversations is not the template's.
const MAX_TEMPLATE_TOKENS: i64 = 4096;

/// A prompt of which less than this share is counted was cut.
const CUT_SHARE: f64 = 0.9;

/// How planned and counted prompt tokens go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenAgreement {
    /// Everywhere the same.
    Same,
    /// Everywhere one more than planned: a second BOS, written by the template and added by the tokenizer again.
    SecondBos,
    /// Everywhere one fewer than planned: the server adds no BOS, or the plan added a second one.
    MissingBos,
    /// Everywhere the same other difference: another chat template, or a system prompt of the server's.
    Template {
        /// Counted minus planned.
        difference: i64,
    },
    /// The difference grows with the text: another tokenizer.
    Tokenizer {
        /// The greatest difference, counted minus planned.
        difference: i64,
    },
    /// Of a long prompt far fewer tokens are counted than of shorter ones would follow: the server cuts it silently.
    Truncated {
        /// Planned.
        planned: u32,
        /// Counted.
        counted: u32,
    },
}

impl fmt::Display for TokenAgreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Same => f.write_str("the server counts the prompt tokens that were planned"),
            Self::SecondBos => {
                f.write_str("the server counts one token more: a second BOS in front of the template's own")
            }
            Self::MissingBos => f.write_str("the server counts one token fewer: no BOS"),
            Self::Template { difference } => {
                write!(f, "the server's chat template is another one: {difference:+} tokens in every prompt")
            }
            Self::Tokenizer { difference } => {
                write!(f, "the server's tokenizer is another one: up to {difference:+} tokens")
            }
            Self::Truncated { planned, counted } => {
                write!(f, "the server cuts prompts silently: {counted} tokens of {planned}")
            }
        }
    }
}

/// Names the difference between planned and counted prompt tokens, given as `(planned, counted)`. An empty slice agrees.
pub fn compare_counts(counts: &[(u32, u32)]) -> TokenAgreement {
    let differences: Vec<i64> =
        counts.iter().map(|(planned, counted)| i64::from(*counted) - i64::from(*planned)).collect();
    let (Some(least), Some(most)) = (differences.iter().min(), differences.iter().max()) else {
        return TokenAgreement::Same;
    };
    match (*least, *most) {
        (0, 0) => TokenAgreement::Same,
        (1, 1) => TokenAgreement::SecondBos,
        (-1, -1) => TokenAgreement::MissingBos,
        (difference, most) if difference == most && counts.len() > 1 && difference.abs() <= MAX_TEMPLATE_TOKENS => {
            TokenAgreement::Template { difference }
        }
        (least, most) => {
            let cut = counts.iter().find(|(planned, counted)| f64::from(*counted) < CUT_SHARE * f64::from(*planned));
            match cut {
                // A coarser tokenizer counts every prompt shorter; a cut leaves the short ones whole.
                Some(&(planned, counted)) if most >= 0 || counts.len() == 1 => {
                    TokenAgreement::Truncated { planned, counted }
                }
                _ => TokenAgreement::Tokenizer { difference: if least.abs() > most.abs() { least } else { most } },
            }
        }
    }
}

/// Conversations of different lengths and alphabets.
const PROBES: [&str; 3] = [
    "Say yes.",
    "The copper lantern in the old mill was lit at 17:45 by the second painter, who had walked 3,208 steps. Say yes.",
    "水车旁的铜灯笼是第二位画家点亮的,他走了三千二百零八步。 {\"steps\": [3208, 17, 45], \"lit\": true} Say yes.",
];

/// Sends [`PROBES`] and compares.
pub(super) async fn check(inner: &Inner) -> Result<TokenAgreement, EndpointError> {
    let Inner { settings, served, prefix_cache, connection, counter, nonce, .. } = inner;
    let form = RequestForm { settings, dialect: served.dialect, model: &served.model, prefix_cache: *prefix_cache };
    let mut counts = Vec::with_capacity(PROBES.len());
    for (place, probe) in PROBES.iter().enumerate() {
        let planned = counter.count_chat(&[(Role::User.name(), probe)]) as u32;
        let messages = [Message { role: Role::User, content: (*probe).to_owned() }];
        let salt = blake3::hash(format!("{nonce} probe {place}").as_bytes()).to_hex()[..32].to_owned();
        let body = form.body(&Ask { messages: &messages, answer_prefix: "", max_tokens: 1, salt: &salt })?;
        let body = serde_json::to_vec(&body).expect("a map of JSON values has a text");
        let subject = Subject { bin: Bin(planned + 1), prompt_tokens: planned };
        let answer = connection.ask(form.route(), &body, subject, &|_| ()).await?.answer;
        counts.push((planned, answer.usage.prompt_tokens.ok_or(EndpointError::NoUsage)?));
    }
    Ok(compare_counts(&counts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_difference_has_its_name() {
        for (counts, agreement) in [
            (&[(10, 10), (900, 900)][..], TokenAgreement::Same),
            (&[], TokenAgreement::Same),
            (&[(10, 11), (900, 901)], TokenAgreement::SecondBos),
            (&[(10, 9), (900, 899)], TokenAgreement::MissingBos),
            (&[(10, 35), (900, 925)], TokenAgreement::Template { difference: 25 }),
            (&[(100, 97), (900, 897)], TokenAgreement::Template { difference: -3 }),
            (&[(10, 12), (900, 1100)], TokenAgreement::Tokenizer { difference: 200 }),
            (&[(10, 8), (900, 500)], TokenAgreement::Tokenizer { difference: -400 }),
            (&[(10, 10), (9000, 4096)], TokenAgreement::Truncated { planned: 9000, counted: 4096 }),
            (&[(9000, 4096)], TokenAgreement::Truncated { planned: 9000, counted: 4096 }),
        ] {
            assert_eq!(compare_counts(counts), agreement, "{counts:?}");
            assert!(!agreement.to_string().is_empty());
        }
    }
}
