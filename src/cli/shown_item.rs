//! One item for people: the prompt as it is sent, and where in it the answer stands.

use std::fmt::Write as _;

use kvgauge::sample::{Expected, Gold, Item};
use kvgauge::tokenizer::{TokenCounter, Tokenizer};

use crate::failure::Failure;

/// Needles whose place is told: each needs the prompt up to it counted.
const MAX_PLACES: usize = 20;

/// A shorter text stands everywhere.
const MIN_NEEDLE_CHARS: usize = 3;

/// Widest text of a needle in a line of the list.
const SHOWN_CHARS: usize = 48;

/// The whole item. With a `tokenizer` the prompt is rendered through its chat template, else its messages are shown.
pub(crate) fn rendered(
    item: &Item,
    tokenizer: Option<&Tokenizer>,
    counter: &dyn TokenCounter,
) -> Result<String, Failure> {
    let mut text = format!("item {}\ntask {}, bin {}, slot {} %", item.item_id, item.task, item.bin, item.slot_percent);
    if let Some(depth) = item.depth_percent {
        write!(text, ", needle at {depth:.1} %").expect("writing to a String does not fail");
    }
    text += &format!("\nprompt {} tokens, answer at most {}\n", item.prompt_tokens, item.max_output_tokens);
    let messages: Vec<(&str, &str)> = item.messages.iter().map(|it| (it.role.name(), it.content.as_str())).collect();
    let prompt = match tokenizer {
        Some(tokenizer) => tokenizer.render_chat(&messages, true)? + &item.answer_prefix,
        None => messages.iter().map(|(role, content)| format!("--- {role}\n{content}\n")).collect(),
    };
    text += &places(item, &prompt, counter);
    text += &format!("\n--- prompt\n{prompt}\n");
    if tokenizer.is_none() && !item.answer_prefix.is_empty() {
        text += &format!("--- the answer begins with\n{}\n", item.answer_prefix);
    }
    text += &format!("\n--- expected ({})\n{}\n", item.scorer, item.expected.answer);
    for (turn, follow_up) in item.follow_ups.iter().enumerate() {
        text += &format!("\n--- turn {}\n{}\n", turn + 2, follow_up.question);
        text += &format!("\n--- expected\n{}\n", follow_up.expected.answer);
    }
    Ok(text)
}

/// Where the facts behind the answer stand first, in tokens of the prompt.
fn places(item: &Item, prompt: &str, counter: &dyn TokenCounter) -> String {
    let later = item.follow_ups.iter().map(|turn| &turn.expected);
    let needles: Vec<String> = std::iter::once(&item.expected).chain(later).flat_map(needles).collect();
    let mut found: Vec<(usize, &str)> =
        needles.iter().filter_map(|needle| Some((first_place(prompt, needle)?, needle.as_str()))).collect();
    found.sort_unstable();
    found.dedup();
    let mut text = String::new();
    for (start, needle) in found.iter().take(MAX_PLACES) {
        let first = counter.count(&prompt[..*start]);
        let last = counter.count(&prompt[..start + needle.len()]);
        let percent = 100.0 * first as f64 / f64::from(item.prompt_tokens.max(1));
        let mut shown: String = needle.chars().take(SHOWN_CHARS).collect();
        if shown.len() < needle.len() {
            shown.push('…');
        }
        text += &format!("tokens {first}–{last} ({percent:.1} %): {}\n", shown.replace('\n', "⏎"));
    }
    if found.len() > MAX_PLACES {
        text += &format!("and {} more\n", found.len() - MAX_PLACES);
    }
    text
}

/// Not inside another word or number.
fn first_place(prompt: &str, needle: &str) -> Option<usize> {
    let joins = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    if needle.chars().count() < MIN_NEEDLE_CHARS {
        return None;
    }
    let places = prompt.match_indices(needle).map(|(start, _)| start);
    places.into_iter().find(|start| {
        !joins(prompt[..*start].chars().next_back()) && !joins(prompt[start + needle.len()..].chars().next())
    })
}

/// The texts that a reader has to find. What is computed out of them stands nowhere and is not found.
fn needles(expected: &Expected) -> Vec<String> {
    let of_value = |value: &serde_json::Value| match value {
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match &expected.gold {
        Gold::Value { value, .. } => vec![value.clone()],
        Gold::Bindings { pairs } => pairs.iter().map(|pair| pair.value.clone()).collect(),
        Gold::Records { records, .. } => records.iter().flat_map(|record| record.values().map(of_value)).collect(),
        Gold::Sequence { lines } => lines.clone(),
        Gold::Span { text } => vec![text.clone()],
        Gold::Ordered { values, .. } | Gold::Rules { values, .. } => values.clone(),
        Gold::Set { members, .. } => members.clone(),
        Gold::History { versions, .. } => versions.clone(),
        Gold::Label { label, .. } => vec![label.clone()],
        Gold::ToolCall { arguments, .. } => arguments.values().map(of_value).collect(),
        Gold::Table { rows, .. } => rows.iter().filter_map(|row| row.first()).map(of_value).collect(),
        Gold::Citations { facts, .. } => facts.iter().map(|fact| fact.value.clone()).collect(),
        Gold::Steps { steps } => steps.clone(),
        Gold::Edit { original, .. } => vec![original.join(" ")],
        Gold::Absent { .. } | Gold::Schema { .. } => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_needle_is_not_found_inside_another_word() {
        assert_eq!(first_place("code 4077, then 407.", "407"), Some(16));
        assert_eq!(first_place("号码是407。", "407"), Some(9));
        assert_eq!(first_place("at 40", "40"), None);
    }
}
