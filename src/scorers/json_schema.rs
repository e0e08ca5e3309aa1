//! JSON under a schema, with or without one value that is right.
//!
//! The JSON is the whole answer, or stands inside one code fence or between prose (graded, with the fault `ExtraText`). It
//! has to keep the schema (draft 2020-12 unless that names another) and, where a value is expected, to be equal to it;
//! numbers are equal by value and the order of members is free.
//!
//! `value = share of the expected leaves that are right (1 where none is expected)`, half of it with a violation and times
//! 0.9 with text around it; 0 without JSON.

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::sample::{Completion, Fault, FaultKind, Gold, Item, Score};
use crate::scorers::answer_json::{compiled, is_same_value, json_in, repeated_name, violations};
use crate::scorers::{empty, fault, right, seen, wrong};

/// Text around the JSON costs this much, a violation of the schema half.
const EXTRA_TEXT_FACTOR: f64 = 0.9;
const VIOLATION_FACTOR: f64 = 0.5;

/// The brackets that JSON in prose stands in.
const BRACKETS: &[(char, char)] = &[('[', ']'), ('{', '}')];

/// Depth of a schema: people nest ten levels, and compiling follows every one on the stack.
const MAX_DEPTH: usize = 64;

/// Values in a schema: the largest of public sets have some ten thousand, and each is compiled once per item.
const MAX_VALUES: usize = 20_000;

/// Subschemas that one value of an answer may be checked against, references followed: what is written in ten lines of
/// references to references would otherwise be checked a billion times.
const MAX_CHECKS: u64 = 20_000;

/// References that lead to references: each is followed on the stack.
const MAX_CHAIN: usize = 128;

/// Keywords that refer to another schema.
const REFERENCES: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];

/// Keywords whose schemas apply to the value itself, not to a part of it.
const IN_PLACE: [&str; 9] =
    ["allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies"];

/// Members that hold data, not schemas.
const DATA: [&str; 4] = ["const", "enum", "default", "examples"];

pub(super) fn score(item: &Item, completion: &Completion) -> Score {
    let text = completion.text.trim();
    if text.is_empty() {
        return empty();
    }
    if text == item.expected.answer.trim() {
        return right(text);
    }
    let (schema, expected) = match &item.expected.gold {
        Gold::Schema { schema, expected } => (schema.clone(), expected.clone()),
        // A text that is no JSON is only equal to itself.
        _ => match serde_json::from_str(item.expected.answer.trim()) {
            Ok(expected) => (Value::Bool(true), Some(expected)),
            Err(_) => {
                return wrong(0.0, text, vec![fault(FaultKind::WrongField, "not the expected text")]);
            }
        },
    };
    let (json, around) = json_in(text, BRACKETS);
    let value = match serde_json::from_str::<Value>(json) {
        Ok(value) => value,
        Err(error) => {
            return wrong(0.0, json, vec![fault(FaultKind::InvalidJson, error.to_string())]);
        }
    };
    let mut faults = Vec::new();
    faults.extend(schema_fault(&schema, json, &value));
    let mut share = if faults.is_empty() { 1.0 } else { VIOLATION_FACTOR };
    if let Some(expected) = &expected {
        let compared = Compared::of(expected, &value);
        share *= compared.share();
        faults.extend(compared.fault());
    }
    if around {
        share *= EXTRA_TEXT_FACTOR;
        faults.push(fault(FaultKind::ExtraText, format!("around the JSON: {}", seen(text))));
    }
    if faults.is_empty() { right(json) } else { wrong(share, json, faults) }
}

fn schema_fault(schema: &Value, json: &str, value: &Value) -> Option<Fault> {
    let note = match compiled(schema) {
        Err(error) => format!("the schema cannot be used: {}", seen(&error)),
        Ok(validator) => match (repeated_name(json), violations(&validator, value)) {
            (Some(name), _) => format!("`{}` twice in one object", seen(&name)),
            (None, Some((first, 1))) => first,
            (None, Some((first, count))) => format!("{first} and {} more", count - 1),
            (None, None) => return None,
        },
    };
    Some(fault(FaultKind::SchemaViolation, note))
}

/// Leaves of an expected value and of an answer.
#[derive(Default)]
struct Compared {
    right: usize,
    expected: usize,
    given: usize,
    /// Path and values of the first leaf that differs.
    first: Option<String>,
}

impl Compared {
    fn of(expected: &Value, given: &Value) -> Self {
        let (expected, given) = (leaves(expected), leaves(given));
        let in_answer: HashMap<&str, &Value> = given.iter().map(|(path, value)| (path.as_str(), *value)).collect();
        let mut compared = Self { expected: expected.len(), given: given.len(), ..Self::default() };
        for (path, wanted) in &expected {
            match in_answer.get(path.as_str()) {
                Some(value) if is_same_value(wanted, value) => compared.right += 1,
                other => {
                    let shown = other.map_or("nothing".to_owned(), |value| seen(&value.to_string()));
                    compared.first.get_or_insert(format!("{path}: {shown} for {}", seen(&wanted.to_string())));
                }
            }
        }
        if compared.first.is_none() && compared.given > compared.expected {
            let asked: HashMap<&str, &Value> = expected.iter().map(|(path, value)| (path.as_str(), *value)).collect();
            let extra = given.iter().find(|(path, _)| !asked.contains_key(path.as_str()));
            compared.first = extra.map(|(path, value)| format!("{path}: {} for nothing", seen(&value.to_string())));
        }
        compared
    }

    fn share(&self) -> f64 {
        self.right as f64 / self.expected.max(self.given).max(1) as f64
    }

    fn fault(&self) -> Option<Fault> {
        let first = self.first.as_ref()?;
        Some(fault(FaultKind::WrongField, format!("{} of {} values right: {first}", self.right, self.expected)))
    }
}

/// Every value that is no list or object, and every empty one, with its path.
fn leaves(value: &Value) -> Vec<(String, &Value)> {
    let mut found = Vec::new();
    let mut open = vec![(String::new(), value)];
    while let Some((path, value)) = open.pop() {
        match value {
            Value::Array(items) if !items.is_empty() => {
                open.extend(items.iter().enumerate().rev().map(|(at, item)| (format!("{path}/{at}"), item)));
            }
            Value::Object(members) if !members.is_empty() => {
                let members = members.iter().rev();
                open.extend(members.map(|(name, item)| (format!("{path}/{}", escaped(name)), item)));
            }
            leaf => found.push((path, leaf)),
        }
    }
    found
}

/// A name as a step of a JSON pointer.
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// Whether a schema can be used safely: only local references, none that runs in a circle, limited depth and size, patterns
/// that take linear time.
///
/// # Errors
/// What is wrong, in words.
pub fn check_schema(schema: &Value) -> Result<(), String> {
    check_size(schema)?;
    InPlace::new(schema).check_all()?;
    compiled(schema).map(|_| ())
}

/// Depth, size, and where references lead.
fn check_size(schema: &Value) -> Result<(), String> {
    let mut values = 0;
    let mut open = vec![(schema, 0)];
    while let Some((value, depth)) = open.pop() {
        values += 1;
        if depth > MAX_DEPTH {
            return Err(format!("the schema is nested deeper than {MAX_DEPTH} levels"));
        }
        if values > MAX_VALUES {
            return Err(format!("the schema has more than {MAX_VALUES} values"));
        }
        match value {
            Value::Array(items) => open.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(members) => {
                check_references(members, depth)?;
                open.extend(members.values().map(|item| (item, depth + 1)));
            }
            _ => {}
        }
    }
    Ok(())
}

/// References have to stay in the schema and be written so that they can be followed before anything is compiled.
fn check_references(members: &Map<String, Value>, depth: usize) -> Result<(), String> {
    for keyword in REFERENCES {
        if let Some(Value::String(target)) = members.get(keyword) {
            let target = target.as_str();
            if !target.starts_with('#') {
                let target = seen(target);
                return Err(format!("`{keyword}` to `{target}` leads out of the schema: put it under `$defs`"));
            }
            if target.contains('%') {
                return Err(format!("`{keyword}` to `{}`: write it without percent escapes", seen(target)));
            }
        }
    }
    match members.get("$id") {
        Some(Value::String(id)) if depth > 0 => {
            Err(format!("`$id` `{}` inside the schema: refer to it by its place, `#/$defs/…`", seen(id)))
        }
        _ => Ok(()),
    }
}

/// How many subschemas apply to one value when references are followed.
struct InPlace<'a> {
    root: &'a Value,
    /// Schemas that have an anchor.
    anchors: HashMap<&'a str, &'a Value>,
    /// By address of the schema.
    known: HashMap<*const Value, u64>,
    /// Schemas that are being counted.
    open: Vec<*const Value>,
}

impl<'a> InPlace<'a> {
    fn new(root: &'a Value) -> Self {
        let mut anchors = HashMap::new();
        for (value, members) in objects(root) {
            for keyword in ["$anchor", "$dynamicAnchor"] {
                anchors.extend(members.get(keyword).and_then(Value::as_str).map(|name| (name, value)));
            }
        }
        Self { root, anchors, known: HashMap::new(), open: Vec::new() }
    }

    fn check_all(&mut self) -> Result<(), String> {
        for (schema, _) in objects(self.root) {
            if self.checks(schema)? > MAX_CHECKS {
                return Err(format!("one value would be checked against more than {MAX_CHECKS} subschemas"));
            }
        }
        Ok(())
    }

    fn checks(&mut self, schema: &'a Value) -> Result<u64, String> {
        let Value::Object(members) = schema else {
            return Ok(1);
        };
        let address = std::ptr::from_ref(schema);
        if let Some(known) = self.known.get(&address) {
            return Ok(*known);
        }
        if self.open.contains(&address) {
            return Err("a reference leads back to itself without going into a part of the value".into());
        }
        if self.open.len() >= MAX_CHAIN {
            return Err(format!("more than {MAX_CHAIN} references lead from one to the next"));
        }
        self.open.push(address);
        let mut total = 1_u64;
        for inner in self.applied(members) {
            total = total.saturating_add(self.checks(inner)?);
        }
        self.open.pop();
        self.known.insert(address, total);
        Ok(total)
    }

    /// The schemas that a schema applies to the same value.
    fn applied(&self, members: &'a Map<String, Value>) -> Vec<&'a Value> {
        let references = REFERENCES.iter().filter_map(|keyword| self.target(members.get(*keyword)?.as_str()?));
        let mut applied: Vec<&Value> = references.collect();
        for keyword in IN_PLACE {
            match members.get(keyword) {
                Some(Value::Array(items)) => applied.extend(items),
                Some(Value::Object(parts)) if keyword.starts_with("depend") => applied.extend(parts.values()),
                Some(schema) => applied.push(schema),
                None => {}
            }
        }
        applied
    }

    /// What a local reference leads to.
    fn target(&self, reference: &str) -> Option<&'a Value> {
        let place = reference.strip_prefix('#')?;
        self.root.pointer(place).or_else(|| self.anchors.get(place).copied())
    }
}

/// All objects of a schema that may be schemas, outermost first; data that looks like one is left out.
fn objects(schema: &Value) -> Vec<(&Value, &Map<String, Value>)> {
    let mut found = Vec::new();
    let mut open = vec![schema];
    while let Some(value) = open.pop() {
        match value {
            Value::Array(items) => open.extend(items),
            Value::Object(members) => {
                found.push((value, members));
                open.extend(members.iter().filter(|(name, _)| !DATA.contains(&name.as_str())).map(|(_, inner)| inner));
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::scorers::tests::{check_table, completion, item};

    fn schema() -> Value {
        json!({
            "type": "object",
            "properties": {
                "town": {"type": "string", "pattern": "^[A-Z]"},
                "rooms": {"type": "array", "items": {"$ref": "#/$defs/room"}, "minItems": 1}
            },
            "required": ["town", "rooms"],
            "additionalProperties": false,
            "$defs": {"room": {"type": "integer", "minimum": 1}}
        })
    }

    fn with(expected: Option<Value>) -> Item {
        item("json_schema", r#"{"town":"Ashford","rooms":[4,7]}"#, Gold::Schema { schema: schema(), expected })
    }

    #[test]
    fn without_an_expected_value_the_schema_decides() {
        use FaultKind::{Empty, ExtraText, InvalidJson, SchemaViolation};
        check_table(
            &with(None),
            &[
                (r#"{"rooms": [1], "town": "Oldbury"}"#, &[]),
                ("", &[Empty]),
                ("Ashford has two rooms.", &[InvalidJson]),
                (r#"{"rooms": [1], "town": "Oldbury""#, &[InvalidJson]),
                (r#"{"rooms": [], "town": "Oldbury"}"#, &[SchemaViolation]),
                (r#"{"rooms": [1], "town": "oldbury"}"#, &[SchemaViolation]),
                (r#"{"rooms": [1], "rooms": [1], "town": "Oldbury"}"#, &[SchemaViolation]),
                ("```json\n{\"rooms\": [1], \"town\": \"Oldbury\"}\n```", &[ExtraText]),
            ],
        );
        let note = &score(&with(None), &completion(r#"{"rooms": [1, 0], "town": "A"}"#)).faults[0].note;
        assert!(note.starts_with("/rooms/1: "), "{note}");
    }

    #[test]
    fn an_expected_value_has_to_be_met_as_well() {
        use FaultKind::{SchemaViolation, WrongField};
        let item = with(Some(json!({"town": "Ashford", "rooms": [4, 7]})));
        check_table(
            &item,
            &[
                (r#"{"rooms": [4.0, 7], "town": "Ashford"}"#, &[]),
                (r#"{"rooms": [4, 8], "town": "Ashford"}"#, &[WrongField]),
                (r#"{"rooms": [4, 7, 9], "town": "Ashford"}"#, &[WrongField]),
                (r#"{"rooms": [4], "town": "Ashford"}"#, &[WrongField]),
                (r#"{"rooms": [4, -7], "town": "Ashford"}"#, &[SchemaViolation, WrongField]),
            ],
        );
        let value = |text: &str| score(&item, &completion(text)).value;
        assert!((value(r#"{"rooms": [4, 8], "town": "Ashford"}"#) - 2.0 / 3.0).abs() < 1e-12);
        assert!((value(r#"{"rooms": [4, 7, 9], "town": "Ashford"}"#) - 0.75).abs() < 1e-12);
        assert!((value(r#"{"rooms": [4, -7], "town": "Ashford"}"#) - 1.0 / 3.0).abs() < 1e-12);
    }

    #[test]
    fn schemas_that_could_do_harm_are_refused() {
        let deep = (0..100).fold(json!(true), |inner, _| json!({"items": inner}));
        let many = json!({"enum": (0..30_000).collect::<Vec<u32>>()});
        let doubling: Map<String, Value> = (0..40)
            .map(|step| {
                let next = json!({"$ref": format!("#/$defs/{}", step + 1)});
                (step.to_string(), json!({"allOf": [next, next]}))
            })
            .chain([("40".to_owned(), json!({"type": "string"}))])
            .collect();
        let chain: Map<String, Value> =
            (0..2000).map(|step| (step.to_string(), json!({"$ref": format!("#/$defs/{}", step + 1)}))).collect();
        let refused = [
            (json!({"$ref": "https://example.com/schema.json"}), "leads out of the schema"),
            (json!({"properties": {"a": {"$ref": "file:///etc/passwd"}}}), "leads out of the schema"),
            (json!({"$ref": "other.json#/a"}), "leads out of the schema"),
            (json!({"$ref": "#/$defs/a%20b", "$defs": {"a b": true}}), "percent"),
            (json!({"$defs": {"a": {"$id": "b"}}}), "`$id` `b` inside"),
            (json!({"$ref": "#"}), "leads back to itself"),
            (
                json!({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"anyOf": [{"$ref": "#"}]}}}),
                "leads back to itself",
            ),
            (json!({"$anchor": "top", "not": {"$ref": "#top"}}), "leads back to itself"),
            (json!({"$ref": "#/$defs/0", "$defs": doubling}), "more than 20000 subschemas"),
            (json!({"$ref": "#/$defs/0", "$defs": chain}), "more than 128 references"),
            (deep, "deeper than 64"),
            (many, "more than 20000 values"),
            (json!({"type": "strin"}), "strin"),
            (json!({"pattern": "(a)\\1"}), "/pattern: "),
            (json!({"properties": {"x": {"pattern": "(?=a)b"}}}), "/properties/x/pattern: "),
            (json!({"pattern": "(((\\w{100}){100}){100}){100}"}), "pattern"),
            (json!({"$ref": "#/$defs/none"}), "none"),
            (json!(7), "7"),
        ];
        for (schema, part) in refused {
            let error = check_schema(&schema).expect_err(part);
            assert!(error.contains(part), "{part}: {error}");
        }
    }

    #[test]
    fn recursive_schemas_and_wide_choices_are_taken() {
        let tree = json!({"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}}});
        let choice = json!({"oneOf": (0..200).map(|number| json!({"const": number})).collect::<Vec<_>>()});
        let data = json!({"const": {"allOf": 7}, "properties": {"$id": {"type": "string"}}});
        let patterns = json!({"pattern": "^(a|aa)+$", "patternProperties": {"^x-": true}});
        for schema in [schema(), tree, choice, data, patterns, json!(true), json!({})] {
            assert_eq!(check_schema(&schema), Ok(()), "{schema}");
        }
        let slow = json!({"pattern": "^(a|aa)+$"});
        let item = item("json_schema", "", Gold::Schema { schema: slow, expected: None });
        let answer = format!("\"{}b\"", "a".repeat(50_000));
        assert_eq!(score(&item, &completion(&answer)).faults[0].kind, FaultKind::SchemaViolation);
    }
}
