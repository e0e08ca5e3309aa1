//! `repeat_edit`: a row of words, repeated with one of them replaced. The copy is easy; to leave it at the one place and to
//! find back into it is not.
//!
//! The words are the shortest of the haystack's nouns, so that many of them fit an answer. A few words come several times,
//! as in any text; the one that is replaced comes once, and its replacement nowhere.

use serde::Deserialize;

use super::params::{ParamError, PerBin, parse};
use super::planting::{Planted, Planting, Wordings};
use super::{Depth, Ground, Task, TaskError, TaskGroup};
use crate::sample::{Expected, Gold, Language};

/// The registry's entry.
pub(super) const TASK: Task = Task {
    id: "repeat_edit",
    summary: "a row of words repeated with one of them replaced",
    group: TaskGroup::LongOutput,
    scorer: "edit",
    generator_version: 1,
    ground: Ground::Prose,
    depth: Depth::AtSlot,
    check,
    plant,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    /// Number of words.
    words: Option<PerBin<u32>>,
}

/// Words by length of the bin.
const WORDS: [u32; 5] = [24, 40, 80, 160, 300];

/// The same in Chinese: a word of two characters costs about six tokens in a tokenizer made for English, so that fewer fit
/// an answer.
const CHINESE_WORDS: [u32; 5] = [10, 32, 64, 128, 256];

/// Longest word, in characters: of four letters or two Chinese characters, each language has about a hundred nouns.
fn longest_word(language: Language) -> usize {
    match language {
        Language::En => 4,
        Language::Zh => 2,
    }
}

/// The row in the text; `{0}` is its name, `{1}` the words.
const ROW: Wordings = Wordings {
    en: &["Here begins the {0} row of words: {1}. Here ends the {0} row of words."],
    zh: &["{0}词表从这里开始：{1}。{0}词表到这里结束。"],
};

/// Questions; `{0}` is the row's name, `{1}` the word to replace, `{2}` its replacement.
const QUESTIONS: Wordings = Wordings {
    en: &[
        "Repeat the {0} row of words, but write \"{2}\" where it has \"{1}\". Keep all other words and their order. Answer with the words only, with a space between them.",
        "Write down the {0} row of words from its first word to its last, in the same order, with one change: \"{1}\" becomes \"{2}\". Give the words with spaces between them and nothing else.",
    ],
    zh: &[
        "请重复{0}词表，但是把其中的“{1}”写成“{2}”，其余的词和顺序都保持不变。只写这些词，用空格隔开。",
        "请从第一个词到最后一个词抄写{0}词表，顺序不变，只改一处：“{1}”改为“{2}”。词与词之间用空格隔开，不要写别的内容。",
    ],
};

fn check(params: &toml::Table) -> Result<(), ParamError> {
    let params: Params = parse(params)?;
    PerBin::check(params.words.as_ref(), "words", 4..=2000)
}

fn plant(planting: &mut Planting<'_>) -> Result<Planted, TaskError> {
    let params: Params = planting.params()?;
    let defaults = if planting.language == Language::Zh { CHINESE_WORDS } else { WORDS };
    let count = PerBin::resolve(params.words.as_ref(), planting.bin, defaults);
    let label = planting.fresh_label()?;
    let longest = longest_word(planting.language);
    let stock: Vec<&String> =
        planting.lexicon.class("noun").iter().filter(|noun| noun.chars().count() <= longest).collect();
    let drawn = planting.rng.distinct(2, stock.len());
    let (replaced, replacement) = (stock[drawn[0]], stock[drawn[1]]);
    let place = planting.rng.below(count);
    let mut original: Vec<String> = Vec::with_capacity(count);
    while original.len() < count {
        let word = if original.len() == place { replaced } else { *planting.rng.choose(&stock) };
        let is_free = original.len() == place || (word != replaced && word != replacement);
        if is_free && original.last() != Some(word) {
            original.push(word.clone());
        }
    }
    let mut edited = original.clone();
    edited[place].clone_from(replacement);
    let sentence = planting.say_alike(&ROW, &[&label, &original.join(" ")]);
    let plants = vec![planting.plant(0, planting.slot, &sentence, None)];
    let question = planting.ask(&QUESTIONS, &[&label, replaced, replacement]);
    let answer = edited.join(" ");
    Ok(Planted::new(plants, question, Expected { answer, gold: Gold::Edit { original, edited, place } }))
}
