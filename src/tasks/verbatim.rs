//! `verbatim`: a marked passage, word for word. The first departure from the original tells how far the cache carries.

use serde::Deserialize;

use super::params::{ParamError, PerBin, parse};
use super::planting::{Planted, Planting, Wordings};
use super::{Depth, Ground, Task, TaskError, TaskGroup};
use crate::sample::{Expected, Gold};

/// The registry's entry.
pub(super) const TASK: Task = Task {
    id: "verbatim",
    summary: "a marked passage, word for word",
    group: TaskGroup::LongOutput,
    scorer: "span",
    generator_version: 1,
    ground: Ground::Prose,
    depth: Depth::AtSlot,
    check,
    plant,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    /// Length of the passage in tokens.
    span_tokens: Option<PerBin<u32>>,
}

/// Tokens of the passage by length of the bin.
const SPAN_TOKENS: [u32; 5] = [40, 60, 120, 240, 400];

/// Sentences tried while the passage is brought to its length.
const MAX_SENTENCES: usize = 400;

/// Questions; `{0}` is the passage's name.
const QUESTIONS: Wordings = Wordings {
    en: &[
        "Copy the {0} passage word for word: everything that stands between \"Here begins the {0} passage:\" and \"Here ends the {0} passage.\" Write nothing else.",
        "Repeat word for word what the text says between \"Here begins the {0} passage:\" and \"Here ends the {0} passage.\" Answer with these words only.",
    ],
    zh: &[
        "请一字不差地抄写{0}段落，也就是“{0}段落从这里开始：”和“{0}段落到这里结束。”之间的全部文字。不要写别的内容。",
        "文中“{0}段落从这里开始：”和“{0}段落到这里结束。”之间写了什么？请逐字重复，只写这些文字。",
    ],
};

/// The passage with its marks; `{0}` is its name, `{1}` the text.
const PASSAGE: Wordings = Wordings {
    en: &["Here begins the {0} passage: {1} Here ends the {0} passage."],
    zh: &["{0}段落从这里开始：{1}{0}段落到这里结束。"],
};

fn check(params: &toml::Table) -> Result<(), ParamError> {
    let params: Params = parse(params)?;
    PerBin::check(params.span_tokens.as_ref(), "span_tokens", 24..=4000)
}

fn plant(planting: &mut Planting<'_>) -> Result<Planted, TaskError> {
    let params: Params = planting.params()?;
    let wanted = PerBin::resolve(params.span_tokens.as_ref(), planting.bin, SPAN_TOKENS);
    let label = planting.fresh_label()?;
    let passage = passage(planting, wanted);
    let sentence = planting.say_alike(&PASSAGE, &[&label, &passage]);
    let plants = vec![planting.plant(0, planting.slot, &sentence, None)];
    let question = planting.ask(&QUESTIONS, &[&label]);
    Ok(Planted::new(plants, question, Expected { answer: passage.clone(), gold: Gold::Span { text: passage } }))
}

/// Whole sentences, together at most `wanted` tokens and nearly as many. At least one, however long.
fn passage(planting: &mut Planting<'_>, wanted: usize) -> String {
    let mut text = String::new();
    let mut tokens = 0;
    for _ in 0..MAX_SENTENCES {
        if tokens * 10 >= wanted * 9 {
            break;
        }
        let sentence = planting.sentence();
        if text.is_empty() || tokens + sentence.tokens <= wanted {
            tokens += sentence.tokens;
            text.push_str(&sentence.text);
        }
    }
    text.trim_start().to_owned()
}
