//! `json_extract`: scattered records as a JSON array under a schema that is given before the text.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::params::{ParamError, PerBin, parse};
use super::planting::{Planted, Planting, Wordings, filled};
use super::{Depth, Ground, Task, TaskError, TaskGroup};
use crate::sample::{Expected, Gold, Language};

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

/// Records by length of the bin. Tokenizers made for English take two tokens and more for a Chinese character, and the answer
/// has to fit the output reserve with them too.
const RECORDS: [u32; 5] = [3, 6, 12, 24, 40];
const CHINESE_RECORDS: [u32; 5] = [2, 4, 8, 16, 26];

/// One kind of record. All records of a document are of one kind, because its schema stands before the text.
struct Schema {
    /// What a set of records is called.
    noun: Wordings,
    /// Name and JSON type, in order.
    fields: &'static [(&'static str, &'static str)],
    /// What the fields are called in a Chinese text.
    glosses: &'static [&'static str],
    /// Record sentence; `{0}` is the set's name, `{1}` to `{3}` the fields.
    sentence: Wordings,
}

const SCHEMAS: &[Schema] = &[
    Schema {
        noun: Wordings { en: &["register"], zh: &["名册"] },
        fields: &[("name", "string"), ("town", "string"), ("number", "integer")],
        glosses: &["姓名", "城镇", "编号"],
        sentence: Wordings {
            en: &["In the {0} register, {1} from {2} has the number {3}."],
            zh: &["{0}名册里，来自{2}的{1}编号是{3}。"],
        },
    },
    Schema {
        noun: Wordings { en: &["shipment"], zh: &["货单"] },
        fields: &[("item", "string"), ("town", "string"), ("weight", "integer")],
        glosses: &["物品", "城镇", "重量"],
        sentence: Wordings {
            en: &["The {0} shipment holds one {1} from {2} with the weight {3}."],
            zh: &["{0}货单里有一件来自{2}的{1}，重量是{3}。"],
        },
    },
    Schema {
        noun: Wordings { en: &["plan"], zh: &["住宿表"] },
        fields: &[("name", "string"), ("room", "integer"), ("breakfast", "boolean")],
        glosses: &["姓名", "房间", "早餐"],
        sentence: Wordings {
            en: &["In the {0} plan, {1} has the room {2} {3} breakfast."],
            zh: &["{0}住宿表里，{1}住{2}号房，{3}早餐。"],
        },
    },
];

/// Questions; `{0}` is the set's name, `{1}` its noun.
const QUESTIONS: Wordings = Wordings {
    en: &[
        "Write all entries of the {0} {1} as a JSON array of objects, in the order of the text. Output only the JSON array.",
        "Which entries does the {0} {1} have? Answer with the JSON array only, one object for each entry, in the order of the text.",
    ],
    zh: &[
        "请按文中的顺序把{0}{1}的所有条目写成一个由对象组成的JSON数组。只输出这个JSON数组。",
        "{0}{1}有哪些条目？只回答一个JSON数组，每个条目一个对象，按文中的顺序排列。",
    ],
};

fn check(params: &toml::Table) -> Result<(), ParamError> {
    let params: Params = parse(params)?;
    PerBin::check(params.records.as_ref(), "records", 1..=400)
}

fn plant(planting: &mut Planting<'_>) -> Result<Planted, TaskError> {
    let params: Params = planting.params()?;
    let defaults = if planting.language == Language::Zh { CHINESE_RECORDS } else { RECORDS };
    let count = PerBin::resolve(params.records.as_ref(), planting.bin, defaults);
    let schema = planting.shared_choice(SCHEMAS);
    let label = planting.fresh_label()?;
    let places = planting.spread(count);
    let mut plants = Vec::with_capacity(count);
    let mut records = Vec::with_capacity(count);
    for (number, place) in places.into_iter().enumerate() {
        let record = record(planting, schema)?;
        plants.push(planting.plant(number, place, &sentence(planting.language, schema, &label, &record), None));
        records.push(record);
    }
    let answer: Vec<String> = records.iter().map(|record| object(schema, record)).collect();
    let question = planting.ask(&QUESTIONS, &[&label, schema.noun.of(planting.language)[0]]);
    let expected = Expected {
        answer: format!("[{}]", answer.join(", ")),
        gold: Gold::Records {
            records,
            fields: schema.fields.iter().map(|(name, kind)| ((*name).to_owned(), (*kind).to_owned())).collect(),
        },
    };
    Ok(Planted { opening: Some(opening(planting.language, schema)), ..Planted::new(plants, question, expected) })
}

/// The schema in words, and by an object of the right shape.
fn opening(language: Language, schema: &Schema) -> String {
    let noun = schema.noun.of(language)[0];
    let fields = schema.fields.iter().zip(schema.glosses);
    match language {
        Language::En => {
            let fields: Vec<String> = fields.map(|((name, kind), _)| format!("\"{name}\" ({kind})")).collect();
            format!(
                "Where an answer is a JSON array of the entries of a {noun}, each object has exactly the fields {} in this order.",
                fields.join(", ")
            )
        }
        Language::Zh => {
            let fields: Vec<String> =
                fields.map(|((name, kind), gloss)| format!("\"{name}\"（{gloss}，{kind}）")).collect();
            format!("若要以JSON数组回答{noun}的条目，每个对象依次恰好有这些字段：{}。", fields.join("、"))
        }
    }
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

fn sentence(language: Language, schema: &Schema, label: &str, record: &Map<String, Value>) -> String {
    let flags = match language {
        Language::En => ["without", "with"],
        Language::Zh => ["不含", "含"],
    };
    let values = schema.fields.iter().map(|(name, _)| match &record[*name] {
        Value::String(value) => value.clone(),
        Value::Bool(flag) => flags[usize::from(*flag)].to_owned(),
        other => other.to_string(),
    });
    let said: Vec<String> = [label.to_owned()].into_iter().chain(values).collect();
    let said: Vec<&str> = said.iter().map(String::as_str).collect();
    filled(schema.sentence.of(language)[0], &said)
}

/// One object with its fields in schema order, spaced as people write JSON.
fn object(schema: &Schema, record: &Map<String, Value>) -> String {
    let fields: Vec<String> = schema.fields.iter().map(|(name, _)| format!("\"{name}\": {}", record[*name])).collect();
    format!("{{{}}}", fields.join(", "))
}
