//! Another form than the expected one, or one that breaks on the way.
//!
//! The form is that of the expected answers and the baseline's output, else what the task asks for, else what the first lines
//! of the output set. What says something else altogether is another topic, not another form, so the output has to share
//! values with what it is held against.

use crate::detectors::content::{content_of, content_of_reference, share_in};
use crate::detectors::form::{Form, is_json, lines, signature};
use crate::detectors::reading::{Reading, Reference};
use crate::sample::{Finding, FindingKind};

/// Content shared with a reference by an output that says the same in another form.
const MIN_SHARED: f64 = 0.2;
/// Lines that set a form, where nothing else does.
const MIN_OWN_LINES: usize = 3;
/// A stretch of the prompt; a value that stands there is shorter.
const MIN_ECHO_BYTES: usize = 40;

pub(super) fn detect(reading: &Reading<'_>) -> Option<Finding> {
    if reading.context.is_as_expected() || reading.text.trim().is_empty() {
        return None;
    }
    // The prompt again is no answer in another form.
    let echoed = reading.text.trim();
    if echoed.len() >= MIN_ECHO_BYTES && reading.prompt().is_some_and(|prompt| prompt.text.contains(echoed)) {
        return None;
    }
    let drift = if reading.context.has_measure() {
        let first = reading.measures().first()?;
        if reading.references().iter().any(|reference| against(reading, reference).is_none()) {
            return None;
        }
        against(reading, first)?
    } else {
        of_task(reading).or_else(|| within(reading))?
    };
    let end = reading.text.trim_end().len();
    let start = drift.at.min(end);
    Some(Finding {
        kind: FindingKind::FormatDrift,
        severity: ((end - start) as f64 / end as f64).clamp(0.01, 1.0),
        start: reading.from + start,
        end: reading.from + end,
        evidence: drift.evidence,
    })
}

struct Drift {
    at: usize,
    evidence: String,
}

fn drift(at: usize, evidence: String) -> Option<Drift> {
    Some(Drift { at, evidence })
}

fn against(reading: &Reading<'_>, reference: &Reference<'_>) -> Option<Drift> {
    let (given, wanted) = (reading.form(), reference.form());
    let found = match wanted {
        Form::Json { .. } if given == wanted => None,
        Form::Json { .. } => from_json(reading.text, given, wanted),
        Form::JsonLines => from_json_lines(reading.text, given),
        Form::Table if *given != Form::Table => drift(0, format!("{} instead of a table", given.name())),
        Form::Regular { signatures } => from_lines(reading.text, reference.text, signatures),
        Form::Fenced if *given != Form::Fenced => drift(0, "the fence is missing".into()),
        Form::Plain => from_plain(reading.text, given, reference.text),
        _ => None,
    }?;
    shares_content(reading, reference).then_some(found)
}

/// Whether the output says any of what the reference says.
fn shares_content(reading: &Reading<'_>, reference: &Reference<'_>) -> bool {
    let wanted = content_of_reference(reference);
    let given = content_of(reading.text, reading.tokens());
    wanted.is_empty()
        || share_in(&wanted, &given) >= MIN_SHARED
        || (reference.text.trim().len() >= 3 && reading.text.contains(reference.text.trim()))
}

fn from_json(text: &str, given: &Form, wanted: &Form) -> Option<Drift> {
    let start = text.len() - text.trim_start().len();
    if let Some(at) = text.find("```") {
        return drift(at, format!("a fence around {}", wanted.name()));
    }
    if given.is_data() {
        return drift(start, format!("{} instead of {}", given.name(), wanted.name()));
    }
    if text[start..].starts_with(['{', '[']) {
        let mut values = serde_json::Deserializer::from_str(&text[start..]).into_iter::<serde::de::IgnoredAny>();
        return match values.next() {
            Some(Ok(_)) => drift(start + values.byte_offset(), format!("text after {}", wanted.name())),
            Some(Err(error)) => drift(start, format!("no JSON: {error}")),
            None => None,
        };
    }
    let bracket = if matches!(wanted, Form::Json { is_array: true }) { '[' } else { '{' };
    let what = if text.contains(bracket) { "text before" } else { "text instead of" };
    drift(start, format!("{what} {}", wanted.name()))
}

fn from_json_lines(text: &str, given: &Form) -> Option<Drift> {
    if *given == Form::JsonLines {
        return None;
    }
    if let Some(at) = text.find("```") {
        return drift(at, "a fence around lines of JSON".into());
    }
    if matches!(given, Form::Json { is_array: true }) {
        return drift(0, "a JSON array instead of lines of JSON".into());
    }
    let bad = lines(text).enumerate().find(|(_, (_, line))| !line.starts_with(['{', '[']) || !is_json(line))?;
    drift(bad.1.0, format!("line {} is no JSON", bad.0 + 1))
}

/// A line that has none of the patterns of the reference's lines and is none of them itself.
fn from_lines(text: &str, reference: &str, signatures: &[String]) -> Option<Drift> {
    let is_plain = signatures[0] == "x";
    let has = |line: &str| signature(line).is_some_and(|found| signatures.contains(&found));
    let found: Vec<(usize, &str)> = lines(text).collect();
    let wanted = lines(reference).count();
    if let [(at, line)] = found[..] {
        let is_merged = wanted >= 3 && !has(line) && !reference.contains(line);
        return is_merged.then(|| Drift { at, evidence: format!("one line instead of {wanted}") });
    }
    let last = found.len().checked_sub(1)?;
    let is_off = |(number, line): (usize, &str)| {
        let is_cut = number == last && reference.contains(line);
        !has(line) && !is_cut && !reference.contains(line) && (!is_plain || is_marked(line))
    };
    let (number, (at, line)) = found.iter().copied().enumerate().find(|(number, (_, line))| is_off((*number, line)))?;
    if line.starts_with("```") {
        return drift(at, format!("a fence at line {}", number + 1));
    }
    let pattern = signature(line).unwrap_or_else(|| "prose".into());
    drift(at, format!("line {} is `{pattern}`, expected is `{}`", number + 1, signatures[0]))
}

/// What plain lines do not have: a bullet, a number, a tag, brackets, an announcement.
fn is_marked(line: &str) -> bool {
    let rest = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let is_numbered =
        rest.len() < line.len() && rest.starts_with([".", ")", "、"].map(|it| it.chars().next().unwrap_or('.')));
    let is_sentence = line.split_whitespace().count() >= 5 && line.ends_with(['.', '!', '?', '。', ':', '：']);
    is_numbered
        || is_sentence
        || line.starts_with(['-', '*', '•', '|', '#', '{', '[', '<', '>', '`'])
        || line.ends_with([':', '：'])
        || line.contains([':', '=', '|', '：'])
}

/// A value or prose needs no markup.
fn from_plain(text: &str, given: &Form, reference: &str) -> Option<Drift> {
    let is_new = |mark: &str| text.contains(mark) && !reference.contains(mark);
    match given {
        Form::Json { .. } | Form::JsonLines | Form::Tagged | Form::Table | Form::Fenced => {
            return drift(0, format!("{} instead of plain text", given.name()));
        }
        _ => {}
    }
    if let Some(at) = text.find("```").filter(|_| is_new("```")) {
        return drift(at, "a fence in plain text".into());
    }
    let is_item = |line: &str| {
        line.starts_with(['-', '*', '•', '#', '|']) && line.chars().nth(1).is_some_and(|c| " #*|".contains(c))
    };
    let items = |text: &str| lines(text).filter(|(_, line)| is_item(line)).count();
    let at = lines(text).find(|(_, line)| is_item(line)).map(|(at, _)| at)?;
    (items(text) >= 3 && items(reference) == 0).then_some(Drift { at, evidence: "a list in plain text".into() })
}

/// What a task asks for, whatever its values.
fn of_task(reading: &Reading<'_>) -> Option<Drift> {
    let text = reading.text;
    let json = |wanted: Form| (*reading.form() != wanted).then(|| from_json(text, reading.form(), &wanted)).flatten();
    match reading.context.task? {
        "json_extract" => json(Form::Json { is_array: true }),
        "tool_call" => json(Form::Json { is_array: false }),
        "table" if !text.trim_start().starts_with('{') || lines(text).nth(1).is_some() => {
            from_json_lines(text, reading.form())
        }
        "multiquery" => {
            let bad = lines(text).enumerate().find(|(_, (_, line))| signature(line).as_deref() != Some("x=x"))?;
            drift(bad.1.0, format!("line {} is no `key=value`", bad.0 + 1))
        }
        _ => None,
    }
}

/// A form that the output sets itself and leaves: lines of JSON, rows of a table, bindings. Other lists end in prose, or
/// begin another list.
fn within(reading: &Reading<'_>) -> Option<Drift> {
    let is_row = |line: &str| line.starts_with('{') && is_json(line);
    let rows = lines(reading.text).take_while(|(_, line)| is_row(line)).count();
    if rows >= MIN_OWN_LINES
        && let Some((at, _)) = lines(reading.text).nth(rows)
    {
        return drift(at, format!("line {} is no JSON, those before it are", rows + 1));
    }
    let (_, first) = lines(reading.text).next()?;
    // What the pattern of the line cannot have, without working it out.
    let separators = first.bytes().filter(|byte| matches!(byte, b',' | b';' | b'|' | b'\t')).count();
    if first.ends_with(['.', '!', '?', '。', ',']) || (separators < 2 && !first.contains('=')) {
        return None;
    }
    let set = signature(first)?;
    let is_structural =
        set.matches([',', ';', '|', '\t']).count() >= 2 && !set.ends_with(['.', '!', '?', '。', ',']) || set == "x=x";
    if !is_structural {
        return None;
    }
    let found: Vec<(usize, &str)> = lines(reading.text).collect();
    let alike = found.iter().take_while(|(_, line)| signature(line).as_ref() == Some(&set)).count();
    // A paragraph of its own is no row.
    let (at, line) = *found.get(alike)?;
    let is_next = !reading.text[..at].trim_end_matches(' ').ends_with("\n\n") && !line.starts_with("```");
    let strays = found[alike..].iter().filter(|(_, line)| signature(line).as_ref() != Some(&set)).count();
    let is_left = strays * 2 > found.len() - alike;
    (alike >= MIN_OWN_LINES && is_next && is_left).then(|| Drift {
        at,
        evidence: format!("line {} leaves the pattern `{set}` of the {alike} before it", alike + 1),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detectors::Context;

    fn found(output: &str, expected: &str) -> Option<String> {
        detect(&Reading::of(&Context { expected: &[expected], ..Context::of(output) })).map(|finding| finding.evidence)
    }

    const ARRAY: &str = r#"[{"name": "Olga", "age": 31}, {"name": "Petr", "age": 44}]"#;
    const ROWS: &str = "{\"id\": 1, \"tree\": \"oak\"}\n{\"id\": 2, \"tree\": \"ash\"}\n{\"id\": 3, \"tree\": \"elm\"}";
    const PAIRS: &str = "amber lantern=4829173\nbirch door=5510284\ncoral gate=6120395";

    #[test]
    fn another_form_is_found() {
        let cases = [
            (format!("```json\n{ARRAY}\n```"), ARRAY, "a fence around a JSON array"),
            (format!("Sure! Here it is: {ARRAY}"), ARRAY, "text before a JSON array"),
            (format!("{ARRAY}\nLet me know if you need more."), ARRAY, "text after a JSON array"),
            (ARRAY.replace('"', "'"), ARRAY, "no JSON"),
            ("Olga is 31 and Petr is 44.".into(), ARRAY, "text instead of a JSON array"),
            (ROWS.replace("{\"id\": 2, \"tree\": \"ash\"}", "2, ash"), ROWS, "line 2 is no JSON"),
            (PAIRS.replace("birch door=", "birch door: "), PAIRS, "line 2 is `x:x`, expected is `x=x`"),
            ("{\"answer\": \"4829173\"}".into(), "4829173", "a JSON object instead of plain text"),
            ("- oak\n- ash\n- elm".into(), "oak\nash\nelm", "line 1 is `-x`"),
            ("oak, ash, elm".into(), "oak\nash\nelm", "one line instead of 3"),
        ];
        for (output, expected, part) in cases {
            let evidence = found(&output, expected);
            assert!(evidence.as_ref().is_some_and(|it| it.contains(part)), "{output}: {evidence:?}");
        }
    }

    #[test]
    fn the_same_form_is_left_alone() {
        let cases = [
            (PAIRS.replace('=', " = "), PAIRS),
            (ARRAY.replace(' ', ""), ARRAY),
            ("The code is 4829173.".into(), "4829173"),
            ("oak\nash\nfir".into(), "oak\nash\nelm"),
            ("Tomatoes need sun.".into(), ARRAY),
        ];
        for (output, expected) in cases {
            assert_eq!(found(&output, expected), None, "{output}");
        }
        assert!(detect(&Reading::of(&Context::of(&format!("{ROWS}\nid 4 is a fir\nid 5 is a yew")))).is_some());
        assert_eq!(detect(&Reading::of(&Context::of(ROWS))), None);
    }
}
