//! `enumerate`: N numbered codes out of the text, written down in order. Long outputs show skips, repeats and early stops.

use serde::Deserialize;

use super::params::{ParamError, PerBin, parse};
use super::planting::{Planted, Planting, Wordings};
use super::{Depth, Ground, Task, TaskError, TaskGroup};
use crate::sample::{Expected, Gold, Language};

/// The registry's entry.
pub(super) const TASK: Task = Task {
    id: "enumerate",
    summary: "all numbered codes of a list, in order",
    group: TaskGroup::LongOutput,
    scorer: "sequence",
    generator_version: 1,
    ground: Ground::Prose,
    depth: Depth::Spread,
    check,
    plant,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    /// Number of codes.
    count: Option<PerBin<u32>>,
}

/// Codes by length of the bin.
const COUNT: [u32; 5] = [8, 20, 40, 80, 150];

/// The same in Chinese: a character costs two or three tokens in a tokenizer made for English, so that fewer codes fit the
/// shortest bin.
const CHINESE_COUNT: [u32; 5] = [4, 20, 40, 80, 150];

/// Questions; `{0}` is the list's name, `{1}` the number of codes.
const QUESTIONS: Wordings = Wordings {
    en: &[
        "Write down all codes of the {0} list in order, from number 1 to number {1}, one on each line in the form number: code. Write nothing else.",
        "List the codes of the {0} list from number 1 to number {1}. Give one line for each in the form number: code, in order, and nothing else.",
    ],
    zh: &[
        "请按顺序写出{0}清单的全部代码，从第1项到第{1}项，每行一个，格式为“编号: 代码”，不要写别的内容。",
        "请列出{0}清单里从第1项到第{1}项的代码，每项一行，按顺序写成“编号: 代码”，除此之外什么都不要写。",
    ],
};

/// Entries; `{0}` is their number, `{1}` the list's name, `{2}` the code. Chinese sentences begin and end in words.
const ENTRIES: Wordings =
    Wordings { en: &["Code number {0} of the {1} list is {2}."], zh: &["代码{2}记在{1}清单的第{0}项里。"] };

fn check(params: &toml::Table) -> Result<(), ParamError> {
    let params: Params = parse(params)?;
    // Four-digit codes: a thousand of nine thousand still leaves free ones to draw for several lists of a document.
    PerBin::check(params.count.as_ref(), "count", 2..=1000)
}

fn plant(planting: &mut Planting<'_>) -> Result<Planted, TaskError> {
    let params: Params = planting.params()?;
    let defaults = if planting.language == Language::Zh { CHINESE_COUNT } else { COUNT };
    let count = PerBin::resolve(params.count.as_ref(), planting.bin, defaults);
    let label = planting.fresh_label()?;
    let places = planting.spread(count);
    let mut plants = Vec::with_capacity(count);
    let mut lines = Vec::with_capacity(count);
    for (index, place) in places.into_iter().enumerate() {
        let code = planting.fresh_code()?;
        let number = index + 1;
        let sentence = planting.say_alike(&ENTRIES, &[&number.to_string(), &label, &code]);
        plants.push(planting.plant(index, place, &sentence, None));
        lines.push(format!("{number}: {code}"));
    }
    let question = planting.ask(&QUESTIONS, &[&label, &count.to_string()]);
    Ok(Planted::new(plants, question, Expected { answer: lines.join("\n"), gold: Gold::Sequence { lines } }))
}
