//! A JSON array of flat objects.
//!
//! The array is the whole answer, or stands inside one code fence or between prose (graded, with the fault `ExtraText`).
//! Judged in this order: syntax, schema (exactly the field names, each once, and their JSON types), fields, order of the
//! records, missing and extra ones. The order of fields within an object is free.
//!
//! `value = right fields / all fields × records / (records + extra) × longest run in order / matched`, times 0.9 with text
//! around it; 0 without a JSON array. 1 only when everything is exact.

use serde_json::Value;

use crate::sample::{Completion, Fault, FaultKind, Gold, Item, Score};
use crate::scorers::answer_json::{compiled, flat_object_schema, json_in, repeated_name, type_name, violations};
use crate::scorers::record_matching::{Matching, Record};
use crate::scorers::{empty, fault, right, seen, wrong};

/// Text around the array costs this much.
const EXTRA_TEXT_FACTOR: f64 = 0.9;

/// The brackets of an array.
const ARRAY: &[(char, char)] = &[('[', ']')];

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
    let (json, around) = json_in(text, ARRAY);
    faults.extend(around.then(|| fault(FaultKind::ExtraText, format!("around the JSON: {}", seen(text)))));
    let array = match serde_json::from_str::<Value>(json) {
        Ok(Value::Array(array)) => array,
        Ok(other) => {
            let note = format!("{} instead of an array", type_name(&other));
            return wrong(0.0, json, vec![fault(FaultKind::SchemaViolation, note)]);
        }
        Err(error) => {
            return wrong(0.0, json, vec![fault(FaultKind::InvalidJson, error.to_string())]);
        }
    };
    faults.extend(schema_fault(json, &array, &fields));
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

/// A field twice in one record, or the first record that breaks the schema.
fn schema_fault(json: &str, array: &[Value], fields: &[(String, String)]) -> Option<Fault> {
    if let Some(name) = repeated_name(json) {
        return Some(fault(FaultKind::SchemaViolation, format!("field `{}` twice in one record", seen(&name))));
    }
    let validator = compiled(&flat_object_schema(fields)).expect("types and names make a schema");
    let rows = array.iter().enumerate();
    let (row, (first, count)) = rows.filter_map(|(row, value)| Some((row, violations(&validator, value)?))).next()?;
    let more = if count > 1 { format!(" and {} more", count - 1) } else { String::new() };
    Some(fault(FaultKind::SchemaViolation, format!("record {}{first}{more}", row + 1)))
}

/// Records and field types of an expected answer without typed gold; empty when it is no JSON array.
fn inferred(answer: &str) -> (Vec<Record>, Vec<(String, String)>) {
    let records: Vec<Record> = serde_json::from_str(json_in(answer.trim(), ARRAY).0).unwrap_or_default();
    let first = records.first().cloned().unwrap_or_default();
    let fields = first.iter().map(|(name, value)| (name.clone(), type_name(value).to_string())).collect();
    (records, fields)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scorers::tests::{check_table, check_that_every_character_counts, completion, item};

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
                (&ANSWER.replace("31", "31.0"), &[WrongField]),
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

    #[test]
    fn every_character_of_the_answer_counts() {
        check_that_every_character_counts(&records());
    }
}
