//! `json_extract`: scattered records as a JSON array under a schema that is given before the text.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::params::{ParamError, PerBin, parse};
use super::planting::{Planted, Planting, Wordings};
use super::{Depth, Ground, Task, TaskError, TaskGroup};
use crate::sample::{Expected, Gold};

/// The registry's entry.
pub(super) const TASK: Task = Task {
    id: "json_extract",
    summary: "scattered records as a JSON array under a schema given at the start",
    group: TaskGroup::Structure,
    scorer: "json_records",
    generator_version: 1,
    ground: Ground::Prose,
    depth: Depth::Spread,
    check,
    plant,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    /// Number of records.
    records: Option<PerBin<u32>>,
}

/// Records by length of the bin.
const RECORDS: [u32; 5] = [3, 6, 12, 24, 40];

/// One kind of record. All records of a document are of one kind, because its schema stands before the text.
struct Schema {
    /// What a set of records is called.
    noun: &'static str,
    /// Name and JSON type, in order.
    fields: &'static [(&'static str, &'static str)],
    /// Record sentence; `{0}` is the set's name, `{1}` to `{3}` the fields.
    sentence: &'static str,
}

const SCHEMAS: &[Schema] = &[
    Schema {
        noun: "register",
        fields: &[("name", "string"), ("town", "string"), ("number", "integer")],
        sentence: "In the {0} register, {1} from {2} has the number {3}.",
    },
    Schema {
        noun: "shipment",
        fields: &[("item", "string"), ("town", "string"), ("weight", "integer")],
        sentence: "The {0} shipment holds one {1} from {2} with the weight {3}.",
    },
    Schema {
        noun: "plan",
        fields: &[("name", "string"), ("room", "integer"), ("breakfast", "boolean")],
        sentence: "In the {0} plan, {1} has the room {2} {3} breakfast.",
    },
];

/// Questions; `{0}` is the set's name, `{1}` its noun.
const QUESTIONS: Wordings = Wordings {
    en: &[
        "Write all entries of the {0} {1} as a JSON array of objects, in the order of the text. Output only the JSON array.",
        "Which entries does the {0} {1} have? Answer with the JSON array only, one object for each entry, in the order of the text.",
    ],
    zh: &[],
};

fn check(params: &toml::Table) -> Result<(), ParamError> {
    let params: Params = parse(params)?;
    PerBin::check(params.records.as_ref(), "records", 1..=400)
}

fn plant(planting: &mut Planting<'_>) -> Result<Planted, TaskError> {
    let params: Params = planting.params()?;
    let count = PerBin::resolve(params.records.as_ref(), planting.bin, RECORDS);
    let schema = planting.shared_choice(SCHEMAS);
    let label = planting.fresh_label()?;
    let places = planting.spread(count);
    let mut plants = Vec::with_capacity(count);
    let mut records = Vec::with_capacity(count);
    for (number, place) in places.into_iter().enumerate() {
        let record = record(planting, schema)?;
        plants.push(planting.plant(number, place, &sentence(schema, &label, &record), None));
        records.push(record);
    }
    let answer: Vec<String> = records.iter().map(|record| object(schema, record)).collect();
    let question = planting.ask(&QUESTIONS, &[&label, schema.noun]);
    let expected = Expected {
        answer: format!("[{}]", answer.join(", ")),
        gold: Gold::Records {
            records,
            fields: schema.fields.iter().map(|(name, kind)| ((*name).to_owned(), (*kind).to_owned())).collect(),
        },
    };
    Ok(Planted { opening: Some(opening(schema)), ..Planted::new(plants, question, expected) })
}

/// The schema in words, and by an object of the right shape.
fn opening(schema: &Schema) -> String {
    let fields: Vec<String> = schema.fields.iter().map(|(name, kind)| format!("\"{name}\" ({kind})")).collect();
    format!(
        "Where an answer is a JSON array of the entries of a {}, each object has exactly the fields {} in this order.",
        schema.noun,
        fields.join(", ")
    )
}

fn record(planting: &mut Planting<'_>, schema: &Schema) -> Result<Map<String, Value>, TaskError> {
    let mut record = Map::new();
    for (name, kind) in schema.fields {
        let value = match (*name, *kind) {
            (_, "integer") => Value::from(planting.fresh_code()?.parse::<u32>().expect("a code is four digits")),
            (_, "boolean") => Value::from(planting.rng.below(2) == 1),
            (class, _) => {
                let class = if class == "item" { "noun" } else { class };
                Value::from(planting.rng.choose(planting.lexicon.class(class)).as_str())
            }
        };
        record.insert((*name).to_owned(), value);
    }
    Ok(record)
}

fn sentence(schema: &Schema, label: &str, record: &Map<String, Value>) -> String {
    let mut text = schema.sentence.replace("{0}", label);
    for (number, (name, _)) in schema.fields.iter().enumerate() {
        let value = match &record[*name] {
            Value::String(value) => value.clone(),
            Value::Bool(true) => "with".to_owned(),
            Value::Bool(false) => "without".to_owned(),
            other => other.to_string(),
        };
        text = text.replace(&format!("{{{}}}", number + 1), &value);
    }
    text
}

/// One object with its fields in schema order, spaced as people write JSON.
fn object(schema: &Schema, record: &Map<String, Value>) -> String {
    let fields: Vec<String> = schema.fields.iter().map(|(name, _)| format!("\"{name}\": {}", record[*name])).collect();
    format!("{{{}}}", fields.join(", "))
}
