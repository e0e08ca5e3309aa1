//! A JSON array of flat objects.
//!
//! The array is the whole answer, or stands inside one code fence or between prose (graded, with the fault `ExtraText`).
//! Judged in this order: syntax, schema (exactly the field names, each once, and their JSON types), fields, order of the
//! records, missing and extra ones. The order of fields within an object is free.
//!
//! `value = right fields / all fields × records / (records + extra) × longest run in order / matched`, times 0.9 with text
//! around it; 0 without a JSON array. 1 only when everything is exact.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::{Map, Value};

use crate::sample::{Completion, Fault, FaultKind, Gold, Item, Score};
use crate::scorers::answer_text::longest_increasing;
use crate::scorers::{empty, fault, right, seen, wrong};

/// Text around the array costs this much.
const EXTRA_TEXT_FACTOR: f64 = 0.9;

/// Answer records that are matched: four times those asked for and some; a loop's further copies are only counted.
const MATCHED_TIMES: usize = 4;
const MATCHED_MORE: usize = 64;

type Record = Map<String, Value>;

pub(super) fn score(item: &Item, completion: &Completion) -> Score {
    let text = completion.text.trim();
    if text == item.expected.answer.trim() {
        return right(text);
    }
    if text.is_empty() {
        return empty();
    }
    let (gold, fields) = match &item.expected.gold {
        Gold::Records { records, fields } => (records.clone(), fields.clone()),
        _ => inferred(&item.expected.answer),
    };
    let mut faults = Vec::new();
    let (json, around) = extracted(text);
    faults.extend(around.then(|| fault(FaultKind::ExtraText, format!("around the JSON: {}", seen(text)))));
    let array = match serde_json::from_str::<Value>(json) {
        Ok(Value::Array(array)) => array,
        Ok(other) => {
            let note = format!("{} instead of an array", type_name(&other));
            return wrong(0.0, json, vec![fault(FaultKind::SchemaViolation, note)]);
        }
        Err(error) => return wrong(0.0, json, vec![fault(FaultKind::InvalidJson, error.to_string())]),
    };
    let repeated_field = serde_json::from_str::<Vec<FieldNames>>(json)
        .ok()
        .and_then(|rows| rows.into_iter().enumerate().find_map(|(row, names)| Some((row, names.repeated()?))));
    let schema = repeated_field
        .map(|(row, name)| format!("record {}: field `{}` twice", row + 1, seen(&name)))
        .or_else(|| first_violation(&array, &fields));
    faults.extend(schema.map(|note| fault(FaultKind::SchemaViolation, note)));
    let answer: Vec<&Record> = array.iter().filter_map(Value::as_object).collect();
    let matching = Matching::of(&gold, &answer);
    faults.extend(matching.faults(&gold, &answer, &fields));
    if faults.is_empty() {
        return right(json);
    }
    faults.sort_by_key(|fault| fault.kind == FaultKind::ExtraText);
    let factor = if around { EXTRA_TEXT_FACTOR } else { 1.0 };
    wrong(matching.value(&gold, &answer, &fields, array.len()) * factor, json, faults)
}

/// Records and field types of an expected answer without typed gold; empty when it is no JSON array.
fn inferred(answer: &str) -> (Vec<Record>, Vec<(String, String)>) {
    let records: Vec<Record> = serde_json::from_str(extracted(answer.trim()).0).unwrap_or_default();
    let first = records.first().cloned().unwrap_or_default();
    let fields = first.iter().map(|(name, value)| (name.clone(), type_name(value).to_string())).collect();
    (records, fields)
}

/// The JSON of an answer, and whether there is something around it.
fn extracted(text: &str) -> (&str, bool) {
    if text.starts_with('[') && text.ends_with(']') {
        return (text, false);
    }
    if let Some(inner) = fenced(text) {
        return (inner.trim(), true);
    }
    match (text.find('['), text.rfind(']')) {
        (Some(start), Some(end)) if start < end => (&text[start..=end], true),
        _ => (text, false),
    }
}

/// What stands in the only code fence of a text.
fn fenced(text: &str) -> Option<&str> {
    let mut parts = text.split("```");
    let (_before, inside, _after) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    let language = inside.bytes().take_while(u8::is_ascii_alphanumeric).count();
    Some(if inside.as_bytes().get(language) == Some(&b'\n') { &inside[language..] } else { inside })
}

fn type_name(value: &Value) -> &'static str {
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

fn has_type(value: &Value, wanted: &str) -> bool {
    type_name(value) == wanted || (wanted == "number" && value.is_number())
}

fn first_violation(array: &[Value], fields: &[(String, String)]) -> Option<String> {
    array.iter().enumerate().find_map(|(row, value)| {
        let at = |what: String| Some(format!("record {}: {what}", row + 1));
        let Some(record) = value.as_object() else {
            return at(format!("{} instead of an object", type_name(value)));
        };
        for (name, wanted) in fields {
            match record.get(name) {
                None => return at(format!("field `{}` is missing", seen(name))),
                Some(value) if !has_type(value, wanted) => {
                    return at(format!("field `{}` is {}, not {wanted}", seen(name), type_name(value)));
                }
                Some(_) => {}
            }
        }
        let unknown = record.keys().find(|name| fields.iter().all(|(field, _)| field != *name))?;
        at(format!("field `{}` was not asked for", seen(unknown)))
    })
}

/// Equal as JSON values; `number` fields compare by value, so that 5 and 5.0 are one number where the schema says so.
fn same(wanted: Option<&Value>, answer: Option<&Value>, kind: &str) -> bool {
    match (wanted, answer) {
        (Some(Value::Number(a)), Some(Value::Number(b))) if kind == "number" => a.as_f64() == b.as_f64(),
        (Some(a), Some(b)) => a == b,
        _ => false,
    }
}

/// Which answer record stands for which gold record.
struct Matching {
    /// Per gold record the position of its answer record.
    answer_of: Vec<Option<usize>>,
}

impl Matching {
    /// Equal records first, in order of position; then, greedily, those that share the most fields.
    fn of(gold: &[Record], answer: &[&Record]) -> Self {
        let answer = &answer[..answer.len().min(gold.len() * MATCHED_TIMES + MATCHED_MORE)];
        let mut answer_of = vec![None; gold.len()];
        let mut taken = vec![false; answer.len()];
        for (g, record) in gold.iter().enumerate() {
            let free = |&a: &usize| !taken[a] && answer[a] == record;
            if let Some(a) = (0..answer.len()).filter(free).min_by_key(|a| a.abs_diff(g)) {
                answer_of[g] = Some(a);
                taken[a] = true;
            }
        }
        let mut candidates: Vec<(usize, usize, usize, usize)> = Vec::new();
        for (g, record) in gold.iter().enumerate().filter(|(g, _)| answer_of[*g].is_none()) {
            for (a, given) in answer.iter().enumerate().filter(|(a, _)| !taken[*a]) {
                let shared = record.iter().filter(|(name, value)| given.get(*name) == Some(*value)).count();
                if shared > 0 {
                    candidates.push((shared, a.abs_diff(g), g, a));
                }
            }
        }
        candidates.sort_by_key(|&(shared, apart, g, a)| (std::cmp::Reverse(shared), apart, g, a));
        for (_, _, g, a) in candidates {
            if answer_of[g].is_none() && !taken[a] {
                answer_of[g] = Some(a);
                taken[a] = true;
            }
        }
        Self { answer_of }
    }

    fn positions(&self) -> Vec<usize> {
        self.answer_of.iter().flatten().copied().collect()
    }

    /// Fields of matched records that differ, as `record 3 field`.
    fn wrong_fields(&self, gold: &[Record], answer: &[&Record], fields: &[(String, String)]) -> Vec<String> {
        let mut found = Vec::new();
        for (g, a) in self.answer_of.iter().enumerate().filter_map(|(g, a)| Some((g, (*a)?))) {
            for (name, kind) in fields {
                let (wanted, given) = (gold[g].get(name), answer[a].get(name));
                if !same(wanted, given, kind) {
                    let shown =
                        |value: Option<&Value>| value.map_or("nothing".into(), |value| seen(&value.to_string()));
                    found.push(format!("record {} `{name}`: {} for {}", g + 1, shown(given), shown(wanted)));
                }
            }
        }
        found
    }

    fn faults(&self, gold: &[Record], answer: &[&Record], fields: &[(String, String)]) -> Vec<Fault> {
        let wrong = self.wrong_fields(gold, answer, fields);
        let positions = self.positions();
        let moved = positions.len() - longest_increasing(&positions);
        let missing: Vec<usize> = (0..gold.len()).filter(|&g| self.answer_of[g].is_none()).collect();
        let (mut again, mut extra) = (0, 0);
        for record in answer.iter().enumerate().filter(|(a, _)| !positions.contains(a)).map(|(_, record)| *record) {
            if gold.contains(record) { again += 1 } else { extra += 1 }
        }
        let mut faults = Vec::new();
        let mut add = |kind, note: Option<String>| faults.extend(note.map(|note| fault(kind, note)));
        add(FaultKind::WrongField, wrong.first().map(|first| format!("{}: {first}", wrong.len())));
        add(FaultKind::OutOfOrder, (moved > 0).then(|| format!("{moved} of {} records moved", positions.len())));
        add(
            FaultKind::Missing,
            missing.first().map(|first| format!("{} of {}, first record {}", missing.len(), gold.len(), first + 1)),
        );
        add(FaultKind::Duplicated, (again > 0).then(|| format!("{again} records again")));
        add(FaultKind::Extra, (extra > 0).then(|| format!("{extra} records not asked for")));
        faults
    }

    fn value(&self, gold: &[Record], answer: &[&Record], fields: &[(String, String)], given: usize) -> f64 {
        let positions = self.positions();
        let all_fields = gold.len() * fields.len();
        if all_fields == 0 || positions.is_empty() {
            return 0.0;
        }
        let right_fields = positions.len() * fields.len() - self.wrong_fields(gold, answer, fields).len();
        let extra = given - positions.len();
        let in_order = longest_increasing(&positions) as f64 / positions.len() as f64;
        right_fields as f64 / all_fields as f64 * gold.len() as f64 / (gold.len() + extra) as f64 * in_order
    }
}

/// The names of an object's fields as written: a map would silently keep the last of two equal ones.
struct FieldNames(Vec<String>);

impl FieldNames {
    fn repeated(self) -> Option<String> {
        let mut names = self.0;
        names.sort_unstable();
        names.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0].clone())
    }
}

impl<'de> Deserialize<'de> for FieldNames {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = FieldNames;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<FieldNames, A::Error> {
                let mut names = Vec::new();
                while let Some((name, _)) = map.next_entry::<String, serde::de::IgnoredAny>()? {
                    names.push(name);
                }
                Ok(FieldNames(names))
            }
        }
        deserializer.deserialize_map(Names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scorers::tests::{check_table, completion, item};

    const ANSWER: &str = r#"[{"name":"Ilva","crates":12,"paid":true},{"name":"Tomo","crates":7,"paid":false},
        {"name":"Resa","crates":31,"paid":true}]"#;

    fn records() -> Item {
        let records = serde_json::from_str(ANSWER).unwrap();
        let fields = [("name", "string"), ("crates", "integer"), ("paid", "boolean")]
            .map(|(name, kind)| (name.to_string(), kind.to_string()));
        item("json_records", ANSWER, Gold::Records { records, fields: fields.to_vec() })
    }

    #[test]
    fn layout_and_field_order_are_free() {
        let pretty = serde_json::to_string_pretty(&serde_json::from_str::<Value>(ANSWER).unwrap()).unwrap();
        let reordered = ANSWER.replace(r#""name":"Ilva","crates":12"#, r#""crates":12,"name":"Ilva""#);
        check_table(&records(), &[(&pretty, &[]), (&reordered, &[])]);
    }

    #[test]
    fn each_wrong_answer_gets_its_name() {
        use FaultKind::{
            Duplicated, Empty, Extra, ExtraText, InvalidJson, Missing, OutOfOrder, SchemaViolation, WrongField,
        };
        let swapped = r#"[{"name":"Tomo","crates":7,"paid":false},{"name":"Ilva","crates":12,"paid":true},
            {"name":"Resa","crates":31,"paid":true}]"#;
        let more = |record: &str| ANSWER.replace("}]", &format!("}},{record}]"));
        check_table(
            &records(),
            &[
                ("", &[Empty]),
                ("I found three.", &[InvalidJson]),
                (&ANSWER[..60], &[InvalidJson]),
                (r#"{"name":"Ilva"}"#, &[SchemaViolation]),
                (&format!("```json\n{ANSWER}\n```"), &[ExtraText]),
                (&format!("Here you are: {ANSWER}"), &[ExtraText]),
                (&ANSWER.replace("31", "13"), &[WrongField]),
                (&ANSWER.replace("31", "\"31\""), &[SchemaViolation, WrongField]),
                (&ANSWER.replace("31", "31.0"), &[SchemaViolation, WrongField]),
                (&ANSWER.replace(r#""crates":12,"#, r#""crates":12,"crates":12,"#), &[SchemaViolation]),
                (&ANSWER.replace("12,", "12,\"note\":1,"), &[SchemaViolation]),
                (swapped, &[OutOfOrder]),
                (&ANSWER.replace(r#"{"name":"Ilva","crates":12,"paid":true},"#, ""), &[Missing]),
                (&more(r#"{"name":"Zoe","crates":99,"paid":false}"#), &[Extra]),
                (&more(r#"{"name":"Tomo","crates":7,"paid":false}"#), &[Duplicated]),
                ("[]", &[Missing]),
            ],
        );
    }

    #[test]
    fn the_value_is_the_share_of_right_fields_with_penalties() {
        let value = |text: &str| score(&records(), &completion(text)).value;
        assert!((value(&ANSWER.replace("31", "13")) - 8.0 / 9.0).abs() < 1e-12);
        assert!((value(&format!("```\n{ANSWER}\n```")) - 0.9).abs() < 1e-12);
        assert_eq!(value("[]"), 0.0);
        let many = format!("[{}1]", r#"{"name":"Ilva","crates":12,"paid":true},"#.repeat(20_000));
        assert!(value(&many) < 0.001);
    }
}
