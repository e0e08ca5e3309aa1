//! One tool call as a JSON object with `name` and `arguments`.
//!
//! The usual wrappings are no fault: `<tool_call>` tags, one code fence, `parameters` for `arguments`, arguments as a JSON
//! string, a `function` object around both. Judged are the name, then the arguments' names, JSON types and values; text
//! around the call and further calls are faults of their own. The arguments of another tool are not judged.
//!
//! `value = (right name + right arguments) / (1 + arguments asked for + arguments too much + further calls)`, times 0.9
//! with text around it; 0 without a call. 1 only when everything is exact.

use serde_json::{Map, Value};

use crate::sample::{Completion, Fault, FaultKind, Gold, Item, Score, ToolSpec};
use crate::scorers::answer_json::{fenced, has_type, repeated_name, type_name};
use crate::scorers::{empty, fault, right, seen, wrong};

/// Text around the call costs this much.
const EXTRA_TEXT_FACTOR: f64 = 0.9;

/// Further calls that are counted; a loop makes any number of them.
const MAX_CALLS: usize = 64;

/// Tags that models put around a call.
const TAGS: [&str; 2] = ["<tool_call>", "</tool_call>"];

pub(super) fn score(item: &Item, completion: &Completion) -> Score {
    let text = completion.text.trim();
    if text == item.expected.answer.trim() {
        return right(text);
    }
    if text.is_empty() {
        return empty();
    }
    let Some(gold) = Asked::of(item) else {
        return wrong(0.0, text, vec![fault(FaultKind::WrongValue, "differs from an expected answer that is no call")]);
    };
    let found = match Found::read(text) {
        Ok(found) => found,
        Err(error) => return wrong(0.0, text, vec![fault(FaultKind::InvalidJson, error)]),
    };
    let mut judged = Judged::of(&gold, &found.call);
    if found.further > 0 {
        judged.faults.push(fault(FaultKind::Extra, format!("{} further calls", found.further)));
    }
    if let Some(around) = &found.around {
        judged.faults.push(fault(FaultKind::ExtraText, format!("around the call: {}", seen(around))));
    }
    if judged.faults.is_empty() {
        return right(text);
    }
    let all = 1 + gold.arguments.len() + judged.extra + found.further;
    let factor = if found.around.is_some() { EXTRA_TEXT_FACTOR } else { 1.0 };
    wrong(judged.right as f64 / all as f64 * factor, text, judged.faults)
}

/// The call asked for.
struct Asked {
    name: String,
    arguments: Map<String, Value>,
    tools: Vec<ToolSpec>,
}

impl Asked {
    /// Without typed gold the call is read from the expected answer; `None` when that is no call.
    fn of(item: &Item) -> Option<Self> {
        if let Gold::ToolCall { name, arguments, tools } = &item.expected.gold {
            return Some(Self { name: name.clone(), arguments: arguments.clone(), tools: tools.clone() });
        }
        let call = Found::read(item.expected.answer.trim()).ok()?.call;
        let (name, arguments) = (call.name?, call.arguments.ok()?);
        Some(Self { name, arguments, tools: Vec::new() })
    }

    /// JSON type of an argument: as declared, else that of the value asked for.
    fn type_of<'a>(&'a self, argument: &str, value: &Value) -> &'a str {
        let declared = self.tools.iter().find(|tool| tool.name == self.name);
        let declared = declared.and_then(|tool| tool.arguments.iter().find(|(name, _)| name == argument));
        declared.map_or_else(|| type_name(value), |(_, kind)| kind.as_str())
    }
}

/// The first call of an answer.
struct Found {
    call: Call,
    /// Calls behind it.
    further: usize,
    /// Text that belongs to no call.
    around: Option<String>,
}

/// A call as it was written.
struct Call {
    name: Option<String>,
    /// The arguments, or what stands in their place.
    arguments: Result<Map<String, Value>, String>,
    /// A name that stands twice in one object.
    repeated: Option<String>,
    /// Members of the object beside name and arguments.
    unknown: Option<String>,
}

impl Found {
    fn read(text: &str) -> Result<Self, String> {
        let inner = match fenced(text) {
            Some(inside) if text.starts_with("```") && text.ends_with("```") => inside.trim(),
            _ => text,
        };
        let opened = inner.matches(TAGS[0]).count();
        // A tag without its partner is text around the call.
        let untagged = if opened == inner.matches(TAGS[1]).count() {
            inner.replace(TAGS[0], "\n").replace(TAGS[1], "\n")
        } else {
            inner.to_owned()
        };
        let start = untagged.find('{').ok_or("no JSON object")?;
        let (before, mut rest) = untagged.split_at(start);
        let mut around = before.trim().to_owned();
        let mut call = None;
        let mut further = 0;
        while let Some(start) = rest.find('{').filter(|_| further < MAX_CALLS) {
            let mut values = serde_json::Deserializer::from_str(&rest[start..]).into_iter::<Value>();
            let value = match values.next() {
                Some(Ok(value)) => value,
                Some(Err(error)) if call.is_none() => return Err(error.to_string()),
                _ => break,
            };
            let end = start + values.byte_offset();
            around.push_str(rest[..start].trim());
            match call {
                None => call = Some(Call::of(value, &rest[start..end])),
                Some(_) => further += 1,
            }
            rest = &rest[end..];
        }
        around.push_str(rest.trim());
        let call = call.ok_or("no JSON object")?;
        Ok(Self { call, further, around: (!around.is_empty()).then_some(around) })
    }
}

impl Call {
    fn of(value: Value, json: &str) -> Self {
        let repeated = repeated_name(json);
        let Value::Object(mut object) = value else {
            return Self { name: None, arguments: Err(type_name(&value).into()), repeated, unknown: None };
        };
        if let Some(Value::Object(function)) = object.get("function").cloned() {
            object = function;
        }
        let name = match object.remove("name") {
            Some(Value::String(name)) => Some(name),
            _ => None,
        };
        let arguments = object.remove("arguments").or_else(|| object.remove("parameters"));
        let arguments = match arguments {
            Some(Value::Object(arguments)) => Ok(arguments),
            Some(Value::String(text)) => {
                serde_json::from_str(&text).map_err(|error| format!("a string that is no object: {error}"))
            }
            Some(other) => Err(type_name(&other).into()),
            None => Err("nothing".into()),
        };
        // An id and the word `function` are part of the protocol's wrapping.
        object.retain(|name, _| !matches!(name.as_str(), "id" | "type"));
        Self { name, arguments, repeated, unknown: object.keys().next().cloned() }
    }
}

/// How a call compares with the one asked for.
struct Judged {
    /// Right name and right arguments, counted together.
    right: usize,
    /// Arguments not asked for.
    extra: usize,
    faults: Vec<Fault>,
}

impl Judged {
    fn of(gold: &Asked, call: &Call) -> Self {
        let given = call.arguments.as_ref().ok();
        let is_right = |(name, value): &(&String, &Value)| given.and_then(|given| given.get(*name)) == Some(*value);
        let right_arguments = gold.arguments.iter().filter(is_right).count();
        let extra = given.map_or(0, |given| given.keys().filter(|name| !gold.arguments.contains_key(*name)).count());
        if let Some(name) = call.name.as_ref().filter(|name| **name != gold.name) {
            let offered = gold.tools.is_empty() || gold.tools.iter().any(|tool| tool.name == *name);
            let what = if offered { "" } else { ", which is not on offer" };
            let note = format!("`{}` for `{}`{what}", seen(name), gold.name);
            return Self { right: right_arguments, extra, faults: vec![fault(FaultKind::WrongTool, note)] };
        }
        let right = usize::from(call.name.is_some()) + right_arguments;
        let mut faults = Vec::new();
        faults.extend(shape_fault(call).or_else(|| type_fault(gold, given?)));
        if let Some(given) = given {
            faults.extend(argument_faults(gold, given));
        }
        Self { right, extra, faults }
    }
}

/// What is wrong with the object around name and arguments.
fn shape_fault(call: &Call) -> Option<Fault> {
    let note = if let Some(name) = &call.repeated {
        format!("`{}` twice in one object", seen(name))
    } else if call.name.is_none() {
        "no `name`".into()
    } else if let Err(what) = &call.arguments {
        format!("`arguments`: {what} instead of an object")
    } else {
        format!("`{}` beside name and arguments", seen(call.unknown.as_ref()?))
    };
    Some(fault(FaultKind::SchemaViolation, note))
}

/// The first argument of another JSON type.
fn type_fault(gold: &Asked, given: &Map<String, Value>) -> Option<Fault> {
    gold.arguments.iter().find_map(|(name, value)| {
        let (wanted, given) = (gold.type_of(name, value), given.get(name)?);
        let note = || format!("`{}` is {}, not {wanted}", seen(name), type_name(given));
        (!has_type(given, wanted)).then(|| fault(FaultKind::SchemaViolation, note()))
    })
}

/// Values, missing and further arguments. A value of another type that says the same is named by its type alone.
fn argument_faults(gold: &Asked, given: &Map<String, Value>) -> Vec<Fault> {
    let said = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let mut differing = Vec::new();
    let mut missing = Vec::new();
    for (name, wanted) in &gold.arguments {
        match given.get(name) {
            None => missing.push(name.as_str()),
            Some(value) if said(value) != said(wanted) => {
                differing.push(format!("`{name}`: {} for {}", seen(&value.to_string()), seen(&wanted.to_string())));
            }
            Some(_) => {}
        }
    }
    let extra: Vec<&String> = given.keys().filter(|name| !gold.arguments.contains_key(*name)).collect();
    let asked = gold.arguments.len();
    let mut faults = Vec::new();
    let mut add = |kind, note: Option<String>| faults.extend(note.map(|note| fault(kind, note)));
    add(FaultKind::WrongField, differing.first().map(|first| format!("{} of {asked}: {first}", differing.len())));
    add(FaultKind::Missing, missing.first().map(|first| format!("{} of {asked}: `{first}`", missing.len())));
    add(FaultKind::Extra, extra.first().map(|first| format!("{}: `{}`", extra.len(), seen(first))));
    faults
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scorers::tests::{check_table, check_that_every_character_counts, completion, item};

    const ANSWER: &str = r#"{"name": "book_room", "arguments": {"town": "Fairview", "nights": 3, "garage": true}}"#;

    fn call() -> Item {
        let tool = |name: &str, arguments: &[(&str, &str)]| ToolSpec {
            name: name.into(),
            arguments: arguments.iter().map(|(name, kind)| ((*name).into(), (*kind).into())).collect(),
        };
        let room = [("town", "string"), ("nights", "integer"), ("garage", "boolean")];
        let value: Value = serde_json::from_str(ANSWER).unwrap();
        item(
            "tool_call",
            ANSWER,
            Gold::ToolCall {
                name: "book_room".into(),
                arguments: value["arguments"].as_object().unwrap().clone(),
                tools: vec![tool("book_room", &room), tool("cancel_room", &room[..2])],
            },
        )
    }

    #[test]
    fn the_usual_wrappings_are_no_fault() {
        let arguments = r#"{\"town\": \"Fairview\", \"nights\": 3, \"garage\": true}"#;
        let answers = [
            ANSWER.replace(' ', "\n"),
            format!("<tool_call>\n{ANSWER}\n</tool_call>"),
            format!("```json\n{ANSWER}\n```"),
            format!("```\n<tool_call>{ANSWER}</tool_call>\n```"),
            ANSWER.replace("\"arguments\"", "\"parameters\""),
            format!(r#"{{"name": "book_room", "arguments": "{arguments}"}}"#),
            format!(r#"{{"id": "call_1", "type": "function", "function": {ANSWER}}}"#),
            r#"{"arguments": {"garage": true, "nights": 3, "town": "Fairview"}, "name": "book_room"}"#.to_owned(),
        ];
        for answer in answers {
            check_table(&call(), &[(&answer, &[])]);
        }
    }

    #[test]
    fn each_wrong_answer_gets_its_name() {
        use FaultKind::{Empty, Extra, ExtraText, InvalidJson, Missing, SchemaViolation, WrongField, WrongTool};
        check_table(
            &call(),
            &[
                ("", &[Empty]),
                ("I would book the room.", &[InvalidJson]),
                (&ANSWER[..60], &[InvalidJson]),
                (&ANSWER.replace("book_room", "cancel_room"), &[WrongTool]),
                (&ANSWER.replace("book_room", "book_rooms"), &[WrongTool]),
                (&ANSWER.replace(", \"garage\": true", ""), &[Missing]),
                (&ANSWER.replace("true}", "true, \"guest\": \"Ada\"}"), &[Extra]),
                (&ANSWER.replace('3', "4"), &[WrongField]),
                (&ANSWER.replace('3', "\"3\""), &[SchemaViolation]),
                (&ANSWER.replace('3', "\"4\""), &[SchemaViolation, WrongField]),
                (&ANSWER.replace("true", "\"yes\""), &[SchemaViolation, WrongField]),
                (&ANSWER.replace("\"nights\": 3", "\"nights\": 3, \"nights\": 3"), &[SchemaViolation]),
                (&ANSWER.replace("\"name\"", "\"tool\""), &[SchemaViolation]),
                (r#"{"name": "book_room"}"#, &[SchemaViolation]),
                (r#"{"name": "book_room", "arguments": [1]}"#, &[SchemaViolation]),
                (&format!("Sure: {ANSWER}"), &[ExtraText]),
                (&format!("<tool_call>{ANSWER}"), &[ExtraText]),
                (&format!("[{ANSWER}]"), &[ExtraText]),
                (&format!("{ANSWER}\n{ANSWER}"), &[Extra]),
                (&format!("<tool_call>{ANSWER}</tool_call><tool_call>{ANSWER}</tool_call>"), &[Extra]),
                (&format!("{ANSWER} {{"), &[ExtraText]),
            ],
        );
    }

    #[test]
    fn the_value_counts_name_and_arguments() {
        let value = |text: &str| score(&call(), &completion(text)).value;
        assert!((value(&ANSWER.replace('3', "4")) - 0.75).abs() < 1e-12);
        assert!((value(&ANSWER.replace("book_room", "cancel_room")) - 0.75).abs() < 1e-12);
        assert!((value(&format!("So: {ANSWER}")) - 0.9).abs() < 1e-12);
        assert!(value(&ANSWER.repeat(100_000)) < 0.1);
    }

    #[test]
    fn every_character_of_the_answer_counts() {
        check_that_every_character_counts(&call());
    }
}
