//! What shape a text has: JSON, lines of JSON, lines of one pattern, a fenced block, or none.

use std::collections::HashMap;

use serde::de::IgnoredAny;

/// Lines looked at; a form that holds so long is one.
const MAX_LINES: usize = 4096;
/// Characters of a signature; longer lines are prose.
const MAX_SIGNATURE: usize = 48;
/// Share of the lines that follow one pattern.
const REGULAR_SHARE: f64 = 0.8;

/// The shape of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// One JSON object or array.
    Json { is_array: bool },
    /// At least two lines, each a JSON value.
    JsonLines,
    /// Begins with a code fence.
    Fenced,
    /// Begins with a tag, as in `<answer>`.
    Tagged,
    /// A Markdown table.
    Table,
    /// Lines of one pattern; all patterns that occur, the commonest first.
    Regular { signatures: Vec<String> },
    /// Anything else: a value, prose, code.
    Plain,
}

impl Form {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Json { is_array: true } => "a JSON array",
            Self::Json { is_array: false } => "a JSON object",
            Self::JsonLines => "lines of JSON",
            Self::Fenced => "a fenced block",
            Self::Tagged => "tagged text",
            Self::Table => "a table",
            Self::Regular { .. } => "lines of one pattern",
            Self::Plain => "plain text",
        }
    }

    /// Whether it is made for machines: such data has no sentences.
    pub(super) fn is_data(&self) -> bool {
        matches!(self, Self::Json { .. } | Self::JsonLines)
    }
}

/// Lines with something in them, with their byte offsets, without blanks around them.
pub(super) fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    let with_offsets = text.split_inclusive('\n').map(move |line| {
        let start = at + line.len() - line.trim_start().len();
        at += line.len();
        (start, line.trim())
    });
    with_offsets.filter(|(_, line)| !line.is_empty()).take(MAX_LINES)
}

pub(super) fn form_of(text: &str) -> Form {
    let text = text.trim();
    if text.starts_with("```") || text.starts_with("~~~") {
        return Form::Fenced;
    }
    if let Some(data) = data_of(text) {
        return data;
    }
    if is_tagged(text) {
        return Form::Tagged;
    }
    if is_table(text) {
        return Form::Table;
    }
    regular(text).unwrap_or(Form::Plain)
}

/// Whether a text is made for machines, as [`Form::is_data`] says it.
pub(super) fn is_data(text: &str) -> bool {
    data_of(text.trim()).is_some()
}

/// The form of JSON and of lines of JSON.
fn data_of(text: &str) -> Option<Form> {
    if !text.starts_with(['{', '[']) {
        return None;
    }
    if is_json(text) {
        return Some(Form::Json { is_array: text.starts_with('[') });
    }
    let mut count = 0;
    let all = lines(text).inspect(|_| count += 1).all(|(_, line)| line.starts_with(['{', '[']) && is_json(line));
    (all && count >= 2).then_some(Form::JsonLines)
}

/// Whether `text` is one JSON value.
pub(super) fn is_json(text: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(text).is_ok()
}

/// `<name …>` at the start, and its end or another tag later.
fn is_tagged(text: &str) -> bool {
    let Some(rest) = text.strip_prefix('<') else { return false };
    let name = rest.split(|c: char| !(c.is_ascii_alphanumeric() || "_-:=".contains(c))).next().unwrap_or_default();
    !name.is_empty() && name.starts_with(|c: char| c.is_ascii_alphabetic()) && rest.contains('>')
}

/// At least two rows and a ruled line under the header.
fn is_table(text: &str) -> bool {
    let mut rows = 0;
    let mut is_ruled = false;
    for (_, line) in lines(text) {
        if !line.starts_with('|') {
            break;
        }
        is_ruled |= rows == 1 && line.chars().all(|c| "|-: ".contains(c));
        rows += 1;
    }
    is_ruled && rows >= 3
}

fn regular(text: &str) -> Option<Form> {
    let mut counts: HashMap<String, usize> = HashMap::new();
    let mut all = 0;
    for (_, line) in lines(text) {
        all += 1;
        if let Some(signature) = signature(line) {
            *counts.entry(signature).or_default() += 1;
        }
        // Prose shows early.
        if all >= 16 && counts.values().max().is_none_or(|most| most * 2 < all) {
            return None;
        }
    }
    let mut found: Vec<(String, usize)> = counts.into_iter().collect();
    found.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let (first, most) = found.first()?;
    let is_regular = all >= 2 && *most as f64 >= all as f64 * REGULAR_SHARE && !is_sentence(first);
    is_regular.then(|| Form::Regular { signatures: found.into_iter().map(|(signature, _)| signature).collect() })
}

/// The pattern of prose: words, commas and an end.
fn is_sentence(signature: &str) -> bool {
    signature.len() > 1 && signature.ends_with(['.', '!', '?', '。', '！', '？', ',', '，', ';'])
        || signature.chars().all(|c| matches!(c, 'x' | ',' | '，')) && signature.len() > 1 && signature.len() < 4
}

/// A line with every stretch of words and numbers as `x`; `None` for long lines of prose.
///
/// Marks between letters belong to the word (`K7-AMBER`, `3.5`, `don't`), quoted strings are values.
pub(super) fn signature(line: &str) -> Option<String> {
    let mut signature = String::new();
    let mut chars = line.char_indices().peekable();
    let mut before = ' ';
    while let Some((at, c)) = chars.next() {
        let next = chars.peek().map_or(' ', |(_, next)| *next);
        let is_joint = before.is_alphanumeric() && next.is_alphanumeric() && "-.'’_/+:".contains(c);
        let is_joint = is_joint && (c != ':' || before.is_ascii_digit());
        before = c;
        if c.is_whitespace() {
            // Columns of tab-separated values.
            if c == '\t' {
                signature.push('\t');
            }
            continue;
        }
        let is_value = c.is_alphanumeric() || c == '_' || is_joint;
        if c == '"'
            && let Some(length) = line[at + 1..].find('"')
        {
            while chars.next_if(|(inner, _)| *inner <= at + 1 + length).is_some() {}
            if !signature.ends_with('x') {
                signature.push('x');
            }
            continue;
        }
        if !is_value {
            signature.push(c);
        } else if !signature.ends_with('x') {
            signature.push('x');
        }
        if signature.len() > MAX_SIGNATURE {
            return None;
        }
    }
    Some(signature)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_told_apart() {
        let regular = |text: &str| match form_of(text) {
            Form::Regular { signatures } => signatures[0].clone(),
            other => format!("{other:?}"),
        };
        assert_eq!(form_of("[1, 2]"), Form::Json { is_array: true });
        assert_eq!(form_of("{\"a\": 1}\n{\"a\": 2}"), Form::JsonLines);
        assert_eq!(form_of("```json\n[1]\n```"), Form::Fenced);
        assert_eq!(form_of("| a | b |\n| - | - |\n| 1 | 2 |"), Form::Table);
        assert_eq!(form_of("<answer>7</answer>"), Form::Tagged);
        assert_eq!(form_of("4829173"), Form::Plain);
        assert_eq!(form_of("The office closed early.\nTwo clerks kept the ledger."), Form::Plain);
        assert_eq!(regular("amber lantern=48\nK7-BIRCH door = 9.5"), "x=x");
        assert_eq!(regular("1. oak\n2. ash"), "x.x");
        assert_eq!(regular("oak\nash\nelm"), "x");
        assert_eq!(regular("id,name,sum\n1,\"Oak, old\",3\n2,Ash,4"), "x,x,x");
    }
}
