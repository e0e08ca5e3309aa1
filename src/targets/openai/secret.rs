//! Keys: read by the name of a variable, sent in headers, and in no text that leaves the client.

use std::fmt;

/// What stands in place of a secret.
const REDACTED: &str = "[redacted]";

/// An answer is a measurement, so only what cannot be an ordinary word is taken out of it: servers without a key are often
/// given `none` or `EMPTY`.
const MIN_BYTES_IN_ANSWERS: usize = 12;

/// Longest text of a server that is kept in an error, in bytes.
const MAX_QUOTED_BYTES: usize = 400;

/// A value that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Hides `value`.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    pub(super) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}

/// Takes the known secrets out of texts.
#[derive(Clone, Debug, Default)]
pub(super) struct Redactor {
    secrets: Vec<Secret>,
}

impl Redactor {
    pub(super) fn add(&mut self, secret: &Secret) {
        // Servers echo a key the way they print strings, which may escape it.
        let escaped = serde_json::Value::from(secret.expose()).to_string();
        for form in [secret.expose(), escaped.trim_matches('"')] {
            let form = Secret::new(form);
            if !form.expose().is_empty() && !self.secrets.contains(&form) {
                self.secrets.push(form);
            }
        }
        // A secret that contains another one must go first.
        self.secrets.sort_by_key(|secret| std::cmp::Reverse(secret.expose().len()));
    }

    /// `text` without secrets, on one line, bounded: for errors. Secrets go before the cut, which could leave a part of one.
    pub(super) fn quote(&self, text: &str) -> String {
        let mut clean = text.trim().to_owned();
        for secret in &self.secrets {
            clean = clean.replace(secret.expose(), REDACTED);
        }
        let mut clean: String = clean.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        if clean.len() > MAX_QUOTED_BYTES {
            clean.truncate(clean.floor_char_boundary(MAX_QUOTED_BYTES));
            clean.push('…');
        }
        clean
    }

    /// An answer without secrets; nearly always the answer itself.
    pub(super) fn clean_answer(&self, text: String) -> String {
        let mut text = text;
        for secret in self.secrets.iter().filter(|secret| secret.expose().len() >= MIN_BYTES_IN_ANSWERS) {
            if text.contains(secret.expose()) {
                text = text.replace(secret.expose(), REDACTED);
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_goes_before_the_text_is_cut() {
        let mut redactor = Redactor::default();
        redactor.add(&Secret::new("sk-\"quoted\"-0123456789"));
        redactor.add(&Secret::new("EMPTY"));
        let text = format!("{}sk-\"quoted\"-0123456789", "x".repeat(MAX_QUOTED_BYTES - 5));
        assert!(!redactor.quote(&text).contains("sk-"), "no part of the key is left");
        assert_eq!(redactor.quote(r#"{"key":"sk-\"quoted\"-0123456789"}"#), r#"{"key":"[redacted]"}"#);
        assert_eq!(redactor.quote("key EMPTY\nis wrong"), "key [redacted] is wrong");
        assert_eq!(redactor.clean_answer("EMPTY".into()), "EMPTY", "an answer may say an ordinary word");
        assert_eq!(redactor.clean_answer("a sk-\"quoted\"-0123456789".into()), "a [redacted]");
        assert_eq!(format!("{redactor:?} {}", Secret::new("abc")).matches("0123").count(), 0);
    }
}
