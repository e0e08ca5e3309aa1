//! The JSON of an answer: where it stands, what it is made of, and whether it keeps a schema.

use std::collections::HashSet;
use std::fmt;

use jsonschema::{Draft, PatternOptions, Validator};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

/// Memory that one compiled pattern of a schema may take, program and lazy automaton alike: a pattern that people write
/// takes some kilobytes, and `(\w{1000}){1000}` would take gigabytes.
const MAX_PATTERN_BYTES: usize = 1 << 20;

/// The JSON of an answer, and whether there is something around it. `brackets` are the pairs it may stand in.
pub(super) fn json_in<'a>(text: &'a str, brackets: &[(char, char)]) -> (&'a str, bool) {
    if brackets.iter().any(|(open, close)| text.starts_with(*open) && text.ends_with(*close)) {
        return (text, false);
    }
    if let Some(inner) = fenced(text) {
        return (inner.trim(), true);
    }
    // The bracket that opens first decides: what stands in a broken object is not the answer.
    let first = brackets.iter().filter_map(|(open, close)| Some((text.find(*open)?, *close))).min();
    match first.and_then(|(start, close)| Some((start, text.rfind(close)?))) {
        Some((start, end)) if start < end => (&text[start..=end], true),
        _ => (text, false),
    }
}

/// What stands in the only code fence of a text.
pub(super) fn fenced(text: &str) -> Option<&str> {
    let mut parts = text.split("```");
    let (_before, inside, _after) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    let language = inside.bytes().take_while(u8::is_ascii_alphanumeric).count();
    Some(if inside.as_bytes().get(language) == Some(&b'\n') { &inside[language..] } else { inside })
}

/// The type's name in a schema; a number with a fraction part, be it `.0`, is no integer.
pub(super) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Whether a value is of the type of that name.
pub(super) fn has_type(value: &Value, wanted: &str) -> bool {
    type_name(value) == wanted || (wanted == "number" && value.is_number())
}

/// Equal as JSON values: numbers by value, so that 5 and 5.0 are one.
pub(super) fn is_same_value(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(a), Value::Number(b)) => a == b || (a.is_f64() != b.is_f64() && a.as_f64() == b.as_f64()),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same_value(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| is_same_value(a, b)))
        }
        _ => left == right,
    }
}

/// Compiles a schema: draft 2020-12 unless it names another, no file and no URL is read, patterns in linear time.
///
/// # Errors
/// What is wrong with it, in words.
pub(super) fn compiled(schema: &Value) -> Result<Validator, String> {
    let patterns = PatternOptions::regex().size_limit(MAX_PATTERN_BYTES).dfa_size_limit(MAX_PATTERN_BYTES);
    let options = jsonschema::options().with_draft(Draft::Draft202012).with_pattern_options(patterns).offline();
    options.build(schema).map_err(|error| match error.instance_path().as_str() {
        "" => error.to_string(),
        path => format!("{path}: {error}"),
    })
}

/// The schema of a flat object with exactly these fields, in the form `(name, JSON type)`.
pub(super) fn flat_object_schema(fields: &[(String, String)]) -> Value {
    let properties: serde_json::Map<String, Value> =
        fields.iter().map(|(name, kind)| (name.clone(), serde_json::json!({ "type": kind }))).collect();
    let required: Vec<&String> = fields.iter().map(|(name, _)| name).collect();
    serde_json::json!({
        "type": "object", "properties": properties, "required": required, "additionalProperties": false
    })
}

/// The first violation of a schema, as `path: what`, and the number of all.
pub(super) fn violations(validator: &Validator, value: &Value) -> Option<(String, usize)> {
    let mut errors = validator.iter_errors(value);
    let first = errors.next()?;
    let path = first.instance_path().to_string();
    let place = if path.is_empty() { "the whole" } else { path.as_str() };
    Some((format!("{place}: {}", first.masked()), 1 + errors.count()))
}

/// The first name that stands twice in one object of a JSON text: a map would silently keep the last of the two.
pub(super) fn repeated_name(json: &str) -> Option<String> {
    serde_json::from_str::<Names>(json).ok().and_then(|names| names.repeated)
}

/// Any JSON value, of which only a repeated name is kept.
struct Names {
    repeated: Option<String>,
}

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NamesVisitor)
    }
}

struct NamesVisitor;

impl<'de> Visitor<'de> for NamesVisitor {
    type Value = Names;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Names, E> {
        Ok(Names { repeated: None })
    }

    fn visit_i64<E>(self, _: i64) -> Result<Names, E> {
        Ok(Names { repeated: None })
    }

    fn visit_u64<E>(self, _: u64) -> Result<Names, E> {
        Ok(Names { repeated: None })
    }

    fn visit_f64<E>(self, _: f64) -> Result<Names, E> {
        Ok(Names { repeated: None })
    }

    fn visit_str<E>(self, _: &str) -> Result<Names, E> {
        Ok(Names { repeated: None })
    }

    fn visit_unit<E>(self) -> Result<Names, E> {
        Ok(Names { repeated: None })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Names, A::Error> {
        let mut repeated = None;
        while let Some(names) = sequence.next_element::<Names>()? {
            repeated = repeated.or(names.repeated);
        }
        Ok(Names { repeated })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Names, A::Error> {
        let mut seen = HashSet::new();
        let mut repeated = None;
        while let Some(name) = map.next_key::<String>()? {
            let inner = map.next_value::<Names>()?.repeated;
            let again = seen.contains(&name).then(|| name.clone());
            repeated = repeated.or(again).or(inner);
            seen.insert(name);
        }
        Ok(Names { repeated })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_found_alone_in_a_fence_and_between_prose() {
        let array = [('[', ']')];
        let any = [('[', ']'), ('{', '}')];
        assert_eq!(json_in("[1]", &array), ("[1]", false));
        assert_eq!(json_in("```json\n[1]\n```", &array), ("[1]", true));
        assert_eq!(json_in("It is [1, 2] I think.", &array), ("[1, 2]", true));
        assert_eq!(json_in("It is {\"a\": [1, 2]} I think.", &any), ("{\"a\": [1, 2]}", true));
        assert_eq!(json_in("{\"a\": [1, 2]", &any), ("{\"a\": [1, 2]", false));
        assert_eq!(json_in("none", &any), ("none", false));
        assert_eq!(json_in("]1[", &any), ("]1[", false));
    }

    #[test]
    fn a_name_that_stands_twice_is_found_at_any_depth() {
        assert_eq!(repeated_name(r#"[{"a":1},{"a":2,"b":{"c":1,"c":2}}]"#).as_deref(), Some("c"));
        assert_eq!(repeated_name(r#"{"a":null,"b":[true,-1,2.5,"a"],"c":{"a":1}}"#), None);
        assert_eq!(repeated_name("{\"a\":1,\"a\":"), None);
    }

    #[test]
    fn numbers_are_the_same_by_value() {
        let same = |left, right| is_same_value(&serde_json::json!(left), &serde_json::json!(right));
        assert!(same(5.0, 5.0) && is_same_value(&serde_json::json!([{"a": 5}]), &serde_json::json!([{"a": 5.0}])));
        assert!(!same(5.0, 5.5) && !is_same_value(&serde_json::json!({"a": 5}), &serde_json::json!({"a": "5"})));
        assert!(!is_same_value(&serde_json::json!([1]), &serde_json::json!([1, 2])));
    }

    #[test]
    fn a_flat_schema_takes_exactly_its_fields() {
        let fields = [("name".to_owned(), "string".to_owned()), ("number".to_owned(), "integer".to_owned())];
        let validator = compiled(&flat_object_schema(&fields)).unwrap();
        let first = |value| violations(&validator, &value);
        assert_eq!(first(serde_json::json!({"name": "Ada", "number": 7})), None);
        assert!(first(serde_json::json!({"name": "Ada", "number": "7"})).unwrap().0.starts_with("/number: "));
        assert_eq!(first(serde_json::json!({"nam": "Ada", "number": 7.5})).unwrap().1, 3);
    }
}
