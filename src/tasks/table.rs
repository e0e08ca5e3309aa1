//! `table`: the rows of a table in the text as JSON objects, one a line. A long regular copy with another form.
//!
//! A row has about 26 tokens as JSON and 12 as it stands in the text (digits count one each), so there are fewer rows than
//! other tasks have lines: those that a bin's output reserve holds.

use serde::Deserialize;
use serde_json::Value;

use super::params::{ParamError, PerBin, parse};
use super::planting::{Planted, Planting, Wordings};
use super::{Depth, Ground, Task, TaskError, TaskGroup};
use crate::sample::{Expected, Gold, Language};

/// The registry's entry.
pub(super) const TASK: Task = Task {
    id: "table",
    summary: "the rows of a table as JSON objects, one a line",
    group: TaskGroup::Structure,
    scorer: "table_rows",
    generator_version: 1,
    ground: Ground::Prose,
    depth: Depth::AtSlot,
    check,
    plant,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    /// Number of rows.
    rows: Option<PerBin<u32>>,
}

/// Rows by length of the bin. Tokenizers made for English take two tokens and more for a Chinese character.
const ROWS: [u32; 5] = [3, 8, 16, 32, 64];
const CHINESE_ROWS: [u32; 5] = [2, 5, 10, 20, 40];

/// What a column holds.
#[derive(Clone, Copy)]
enum Column {
    /// A word out of a class of the lexicon.
    Word(&'static str),
    /// A number that stands nowhere else.
    Code,
    /// `true` or `false`.
    Flag,
}

/// Names and contents of the columns; every table has a number by which its rows can be told apart.
const LAYOUTS: &[[(&str, Column); 3]] = &[
    [("name", Column::Word("name")), ("town", Column::Word("town")), ("number", Column::Code)],
    [("item", Column::Word("noun")), ("weight", Column::Code), ("owner", Column::Word("name"))],
    [("room", Column::Code), ("guest", Column::Word("name")), ("paid", Column::Flag)],
    [("town", Column::Word("town")), ("people", Column::Code), ("market", Column::Flag)],
];

/// The table in the text; `{0}` is its name, `{1}` its lines.
const BLOCKS: Wordings = Wordings {
    en: &["Here begins the {0} table:\n{1}\nHere ends the {0} table."],
    zh: &["{0}表格从这里开始：\n{1}\n{0}表格到这里结束。"],
};

/// Questions; `{0}` is the table's name.
const QUESTIONS: Wordings = Wordings {
    en: &[
        "Write the rows of the {0} table as JSON objects, one on each line and in the same order, with the column names as keys. Numbers, true and false stand without quotes. Write nothing else.",
        "Turn the {0} table into JSON Lines: for each row, in order, one line with a JSON object that has the column names as keys; numbers, true and false without quotes. Answer with these lines only.",
    ],
    zh: &[
        "请把{0}表格的每一行写成一个JSON对象，每行一个，顺序不变，以列名为键。数字以及true和false不加引号。不要写别的内容。",
        "请把{0}表格转换成JSON Lines：按顺序为每一行写一个以列名为键的JSON对象，每个对象占一行；数字、true和false不带引号。只回答这些行。",
    ],
};

fn check(params: &toml::Table) -> Result<(), ParamError> {
    let params: Params = parse(params)?;
    // Four-digit codes: a thousand of nine thousand still leaves free ones to draw for other questions of a document.
    PerBin::check(params.rows.as_ref(), "rows", 1..=1000)
}

fn plant(planting: &mut Planting<'_>) -> Result<Planted, TaskError> {
    let params: Params = planting.params()?;
    let defaults = if planting.language == Language::Zh { CHINESE_ROWS } else { ROWS };
    let count = PerBin::resolve(params.rows.as_ref(), planting.bin, defaults);
    let layout = *planting.rng.choose(LAYOUTS);
    let label = planting.fresh_label()?;
    let mut rows = Vec::with_capacity(count);
    for _ in 0..count {
        let row: Result<Vec<Value>, TaskError> = layout.iter().map(|(_, column)| cell(planting, *column)).collect();
        rows.push(row?);
    }
    let columns: Vec<String> = layout.iter().map(|(name, _)| (*name).to_owned()).collect();
    let lines: Vec<String> = [columns.join(",")].into_iter().chain(rows.iter().map(|row| csv_line(row))).collect();
    let block = planting.say(&BLOCKS, &[&label, &lines.join("\n")]);
    let plants = vec![planting.plant(0, planting.slot, &block, None)];
    let question = planting.ask(&QUESTIONS, &[&label]);
    let answer: Vec<String> = rows.iter().map(|row| object(&columns, row)).collect();
    Ok(Planted::new(plants, question, Expected { answer: answer.join("\n"), gold: Gold::Table { columns, rows } }))
}

fn cell(planting: &mut Planting<'_>, column: Column) -> Result<Value, TaskError> {
    Ok(match column {
        Column::Word(class) => Value::from(planting.rng.choose(planting.lexicon.class(class)).as_str()),
        Column::Code => Value::from(planting.fresh_code()?.parse::<u32>().expect("a code is four digits")),
        Column::Flag => Value::from(planting.rng.below(2) == 1),
    })
}

/// Values of a lexicon hold no comma and no quote, so nothing is quoted.
fn csv_line(row: &[Value]) -> String {
    let cells: Vec<String> =
        row.iter().map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned)).collect();
    cells.join(",")
}

/// One row, spaced as people write JSON.
fn object(columns: &[String], row: &[Value]) -> String {
    let members: Vec<String> = columns.iter().zip(row).map(|(name, value)| format!("\"{name}\": {value}")).collect();
    format!("{{{}}}", members.join(", "))
}
