//! Rows of a table as JSON objects, one on each line.
//!
//! Lines that cannot be read are counted in the place of the rows they should have been. Judged are the columns (each once,
//! with its JSON type), the values, the order of the rows, missing and extra ones; the order of columns is free.
//!
//! `value = F1 of the exact rows × longest run in order / matched`, times 0.9 with text around the rows or with all of them
//! in one array. The first note tells F1, the first bad row and the number of rows.

use serde_json::Value;

use crate::sample::{Completion, Fault, FaultKind, Gold, Item, Score};
use crate::scorers::answer_json::{compiled, flat_object_schema, repeated_name, type_name, violations};
use crate::scorers::answer_text::longest_increasing;
use crate::scorers::record_matching::{Matching, Record};
use crate::scorers::{empty, fault, right, seen, wrong};

/// Another layout than one object a line costs this much.
const LAYOUT_FACTOR: f64 = 0.9;

pub(super) fn score(item: &Item, completion: &Completion) -> Score {
    let text = completion.text.trim();
    if text == item.expected.answer.trim() {
        return right(text);
    }
    if text.is_empty() {
        return empty();
    }
    let gold = Table::of(item);
    let found = Rows::read(text);
    if found.rows.is_empty() && found.broken == 0 && !found.is_array {
        return wrong(0.0, text, vec![fault(FaultKind::InvalidJson, "no row")]);
    }
    let mut faults = found.faults(&gold.fields);
    let answer: Vec<&Record> = found.rows.iter().filter_map(Value::as_object).collect();
    let matching = Matching::of(&gold.rows, &answer);
    let mut of_rows = matching.faults(&gold.rows, &answer, &gold.fields);
    // A line that cannot be read is not missing as well.
    let absent = gold.rows.len() - matching.positions().len();
    of_rows.retain(|fault| fault.kind != FaultKind::Missing || absent > found.broken);
    faults.extend(of_rows);
    if faults.is_empty() {
        return right(text);
    }
    faults.sort_by_key(|fault| fault.kind == FaultKind::ExtraText);
    let exact = matching.exact(&gold.rows, &answer, &gold.fields);
    let given = found.rows.len() + found.broken;
    let f1 = 2.0 * exact.iter().filter(|exact| **exact).count() as f64 / (gold.rows.len() + given).max(1) as f64;
    let bad = exact.iter().position(|exact| !exact).map_or("none".to_owned(), |row| (row + 1).to_string());
    faults[0].note.push_str(&format!("; row F1 {f1:.3}, first bad row {bad}, {given} of {} rows", gold.rows.len()));
    let positions = matching.positions();
    let in_order = longest_increasing(&positions) as f64 / positions.len().max(1) as f64;
    let factor = if found.around.is_some() || found.is_array { LAYOUT_FACTOR } else { 1.0 };
    wrong(f1 * in_order * factor, text, faults)
}

/// The rows asked for.
struct Table {
    rows: Vec<Record>,
    fields: Vec<(String, String)>,
}

impl Table {
    /// Without typed gold the rows are read from the expected answer.
    fn of(item: &Item) -> Self {
        let rows: Vec<Record> = match &item.expected.gold {
            Gold::Table { columns, rows } => {
                rows.iter().map(|row| columns.iter().cloned().zip(row.iter().cloned()).collect()).collect()
            }
            _ => {
                let rows = Rows::read(item.expected.answer.trim()).rows.into_iter();
                rows.filter_map(|row| if let Value::Object(row) = row { Some(row) } else { None }).collect()
            }
        };
        let first = rows.first().cloned().unwrap_or_default();
        let fields = first.iter().map(|(name, value)| (name.clone(), type_name(value).to_owned())).collect();
        Self { rows, fields }
    }
}

/// The rows of an answer.
#[derive(Default)]
struct Rows {
    rows: Vec<Value>,
    /// All rows stand in one array.
    is_array: bool,
    /// Lines that begin like a row and are none.
    broken: usize,
    first_broken: Option<String>,
    repeated: Option<String>,
    /// The first line that is no row.
    around: Option<String>,
}

impl Rows {
    fn read(text: &str) -> Self {
        let mut found = Self::default();
        if let Ok(rows) = serde_json::from_str::<Vec<Value>>(text) {
            found.repeated = repeated_name(text);
            return Self { rows, is_array: true, ..found };
        }
        for (number, line) in text.lines().map(str::trim).enumerate().filter(|(_, line)| !line.is_empty()) {
            // A comma behind the object is of an array whose brackets stand on lines of their own, or are left out.
            let row = line.strip_suffix(',').unwrap_or(line);
            match serde_json::from_str::<Value>(row) {
                Ok(value @ Value::Object(_)) if row == line => {
                    found.repeated = found.repeated.or_else(|| repeated_name(line));
                    found.rows.push(value);
                }
                Err(error) if line.starts_with('{') => found.break_off(number, line, &error.to_string()),
                Ok(Value::Object(_)) => found.break_off(number, line, "a comma behind the object"),
                _ => {
                    found.around.get_or_insert_with(|| seen(line));
                }
            }
        }
        found
    }

    fn break_off(&mut self, number: usize, line: &str, what: &str) {
        self.broken += 1;
        self.first_broken.get_or_insert_with(|| format!("line {}: {what}: {}", number + 1, seen(line)));
    }

    fn faults(&self, fields: &[(String, String)]) -> Vec<Fault> {
        let mut faults = Vec::new();
        let mut add = |kind, note: Option<String>| faults.extend(note.map(|note| fault(kind, note)));
        let unreadable = self.first_broken.as_ref().map(|first| format!("{} lines, first {first}", self.broken));
        add(FaultKind::InvalidJson, unreadable);
        add(FaultKind::SchemaViolation, self.schema_note(fields));
        add(FaultKind::ExtraText, self.around.as_ref().map(|line| format!("around the rows: {line}")));
        faults
    }

    fn schema_note(&self, fields: &[(String, String)]) -> Option<String> {
        if self.is_array {
            return Some("one array instead of an object on each line".into());
        }
        if let Some(name) = &self.repeated {
            return Some(format!("column `{}` twice in one row", seen(name)));
        }
        let validator = compiled(&flat_object_schema(fields)).expect("types and names make a schema");
        let rows = self.rows.iter().enumerate();
        let (row, (first, _)) = rows.filter_map(|(row, value)| Some((row, violations(&validator, value)?))).next()?;
        Some(format!("row {}{first}", row + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scorers::tests::{check_table, check_that_every_character_counts, completion, item};

    const ROWS: [&str; 3] = [
        r#"{"name": "Ilva", "crates": 12, "paid": true}"#,
        r#"{"name": "Tomo", "crates": 7, "paid": false}"#,
        r#"{"name": "Resa", "crates": 31, "paid": true}"#,
    ];

    fn table() -> Item {
        let columns: Vec<String> = ["name", "crates", "paid"].map(str::to_owned).to_vec();
        let rows: Vec<Record> = ROWS.iter().map(|row| serde_json::from_str(row).unwrap()).collect();
        let rows = rows.iter().map(|row| columns.iter().map(|column| row[column].clone()).collect()).collect();
        item("table_rows", &ROWS.join("\n"), Gold::Table { columns, rows })
    }

    #[test]
    fn spacing_blank_lines_and_the_order_of_columns_are_free() {
        let tight = ROWS.join("\n\n").replace(": ", ":");
        let turned = ROWS.join("\n").replace(r#""name": "Ilva", "crates": 12"#, r#""crates": 12, "name": "Ilva""#);
        check_table(&table(), &[(&tight, &[]), (&turned, &[])]);
    }

    #[test]
    fn each_wrong_answer_gets_its_name() {
        use FaultKind::{
            Duplicated, Empty, Extra, ExtraText, InvalidJson, Missing, OutOfOrder, SchemaViolation, WrongField,
        };
        let all = ROWS.join("\n");
        check_table(
            &table(),
            &[
                ("", &[Empty]),
                ("There are three rows.", &[InvalidJson]),
                (&all.replace("31, ", "31 "), &[InvalidJson]),
                (&ROWS.join(",\n"), &[InvalidJson]),
                (&all[..all.len() - 20], &[InvalidJson]),
                (&all.replace("31", "13"), &[WrongField]),
                (&all.replace("31", "\"31\""), &[SchemaViolation, WrongField]),
                (&all.replace("\"crates\": 7, ", ""), &[SchemaViolation, WrongField]),
                (&all.replace("\"crates\": 7, ", "\"crates\": 7, \"crates\": 7, "), &[SchemaViolation]),
                (&format!("[{}]", ROWS.join(", ")), &[SchemaViolation]),
                (&ROWS[..2].join("\n"), &[Missing]),
                (&[ROWS[0], ROWS[2], ROWS[1]].join("\n"), &[OutOfOrder]),
                (&format!("{all}\n{}", ROWS[1]), &[Duplicated]),
                (&format!("{all}\n{}", ROWS[1].replace("Tomo", "Zoe").replace('7', "8")), &[Extra]),
                (&format!("```json\n{all}\n```"), &[ExtraText]),
                (&format!("The rows are:\n{all}"), &[ExtraText]),
            ],
        );
    }

    #[test]
    fn the_value_is_the_f1_of_exact_rows() {
        let scored = |text: &str| score(&table(), &completion(text));
        assert!((scored(&ROWS.join("\n").replace("31", "13")).value - 2.0 / 3.0).abs() < 1e-12);
        assert!((scored(&ROWS[..2].join("\n")).value - 0.8).abs() < 1e-12);
        let note = scored(&ROWS.join("\n").replace("7,", "70,")).faults[0].note.clone();
        assert_eq!(note, "1: record 2 `crates`: 70 for 7; row F1 0.667, first bad row 2, 3 of 3 rows");
        assert!(scored(&format!("{}\n", ROWS[0]).repeat(50_000)).value < 0.001);
    }

    #[test]
    fn every_character_of_the_answer_counts() {
        check_that_every_character_counts(&table());
    }
}
