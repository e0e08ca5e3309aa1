//! `format_lock`: lines looked up in the text, to be written under rules of form that are given before the text, in its
//! middle or with the question. Shows whether a form is kept to the end of an answer, and over how much text it is
//! remembered.

use serde::Deserialize;

use super::params::{ParamError, PerBin, parse};
use super::planting::{Planted, Planting, Question, Wordings};
use super::{Depth, Ground, Task, TaskError, TaskGroup};
use crate::rng::Rng;
use crate::sample::{Expected, FormatRule, Gold, Language};

/// The registry's entry.
pub(super) const TASK: Task = Task {
    id: "format_lock",
    summary: "lines out of the text, written under rules of form",
    group: TaskGroup::Structure,
    scorer: "format_rules",
    generator_version: 1,
    ground: Ground::Prose,
    depth: Depth::Spread,
    check,
    plant,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    /// Number of lines.
    lines: Option<PerBin<u32>>,
    /// Number of rules.
    rules: Option<PerBin<u32>>,
    /// Where the rules stand; any of the places by default.
    place: Option<PerBin<Place>>,
}

/// Where the rules stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Place {
    /// Before the text.
    Start,
    /// In its middle.
    Middle,
    /// With the question.
    End,
}

const PLACES: [Place; 3] = [Place::Start, Place::Middle, Place::End];

/// Lines and rules by length of the bin. A line has about twelve tokens, in the text twice as many.
const LINES: [u32; 5] = [3, 6, 12, 24, 40];
const RULES: [u32; 5] = [3, 3, 4, 4, 5];

/// What stands in the text; `{0}` is the notice's name, `{1}` the line's number, `{2}` what it says.
const NEEDLES: Wordings =
    Wordings { en: &["Line number {1} of the {0} notice is {2}."], zh: &["{0}告示的第{1}行是{2}。"] };

/// The rules in one sentence; `{0}` is the notice's name, `{1}` the rules.
const STATEMENTS: Wordings = Wordings {
    en: &[
        "Rules for an answer about the {0} notice: {1}.",
        "An answer about the {0} notice has to keep these rules: {1}.",
    ],
    zh: &["关于{0}告示的回答要守这些规定：{1}。", "回答{0}告示的问题时必须遵守下列规定：{1}。"],
};

/// Questions; `{0}` is the notice's name, `{1}` the number of lines.
const QUESTIONS: Wordings = Wordings {
    en: &[
        "Write down what the lines of the {0} notice say, from line 1 to line {1}, one on each line. Keep the rules for an answer about this notice and write nothing else.",
        "What does the {0} notice say? Give its lines in order, from line 1 to line {1}, each on a line of its own, in the form that the rules for an answer about it ask for. Write nothing else.",
    ],
    zh: &[
        "请写出{0}告示各行的内容，从第1行到第{1}行，每行写一条。要遵守关于这份告示的回答规定，不要写别的内容。",
        "{0}告示写了什么？请按顺序从第1行写到第{1}行，每条各占一行，并符合有关它的回答规定。除此之外什么都不要写。",
    ],
};

/// What lines may begin with, end in, and what may be between a number and its line.
const PREFIXES: [&str; 4] = ["> ", "* ", "- ", "# "];
const SUFFIXES: [&str; 3] = [";", "!", "|"];
const SEPARATORS: [&str; 3] = [") ", ". ", ": "];

/// Marks that may be banned: such as answers have by habit.
const BANNED: [char; 6] = [',', ':', '.', '-', '#', '!'];

/// What stands on the last line.
const MARKER: &str = "END";

fn check(params: &toml::Table) -> Result<(), ParamError> {
    let params: Params = parse(params)?;
    PerBin::check(params.lines.as_ref(), "lines", 1..=400)?;
    PerBin::check(params.rules.as_ref(), "rules", 1..=5)?;
    PerBin::check_bins(params.place.as_ref(), "place")
}

fn plant(planting: &mut Planting<'_>) -> Result<Planted, TaskError> {
    let params: Params = planting.params()?;
    let count = PerBin::resolve(params.lines.as_ref(), planting.bin, LINES);
    let rule_count = PerBin::resolve(params.rules.as_ref(), planting.bin, RULES).min(5);
    let drawn = *planting.rng.choose(&PLACES);
    let place = params.place.and_then(|given| given.get(planting.bin)).unwrap_or(drawn);
    let label = planting.fresh_label()?;
    let mut values = Vec::with_capacity(count);
    let mut plants = Vec::with_capacity(count + 1);
    for (index, at) in planting.spread(count).into_iter().enumerate() {
        let noun = planting.rng.choose(planting.lexicon.class("noun"));
        let value = format!("{noun} {}", planting.fresh_code()?);
        let sentence = planting.say(&NEEDLES, &[&label, &(index + 1).to_string(), &value]);
        plants.push(planting.plant(index, at, &sentence, None));
        values.push(value);
    }
    let rules = draw_rules(&mut planting.rng, planting.language, rule_count, count as u32);
    let joint = if planting.language == Language::Zh { "；" } else { "; " };
    let has_marker = rules.iter().any(|rule| matches!(rule, FormatRule::EndMarker { .. }));
    let said: Vec<String> = rules.iter().map(|rule| words(rule, planting.language, has_marker)).collect();
    let statement = planting.say(&STATEMENTS, &[&label, &said.join(joint)]);
    let mut question = planting.ask(&QUESTIONS, &[&label, &count.to_string()]);
    let mut opening = None;
    match place {
        Place::Start => opening = Some(statement),
        Place::Middle => plants.push(planting.plant(count, 0.5, &statement, None)),
        Place::End => add_statement(&mut question, statement, planting.language),
    }
    let answer = canonical(&values, &rules);
    let planted = Planted::new(plants, question, Expected { answer, gold: Gold::Rules { values, rules } });
    Ok(Planted { opening, ..planted })
}

fn add_statement(question: &mut Question, statement: String, language: Language) {
    let space = if language == Language::Zh { "" } else { " " };
    for text in [&mut question.text, &mut question.paraphrase] {
        text.push_str(space);
        text.push_str(&statement);
    }
    // A typing error in a rule would be another rule.
    question.fixed.push(statement);
}

/// Rules that can all be kept at once, in the order of their statement. Chinese has no capitals.
fn draw_rules(rng: &mut Rng, language: Language, count: usize, lines: u32) -> Vec<FormatRule> {
    let (prefix, separator, suffix) = (*rng.choose(&PREFIXES), *rng.choose(&SEPARATORS), *rng.choose(&SUFFIXES));
    let first = match rng.below(2) {
        0 => FormatRule::LinePrefix { prefix: prefix.to_owned() },
        _ => FormatRule::Numbered { separator: separator.to_owned() },
    };
    let is_free = |mark: &&char| [prefix, separator, suffix].iter().all(|other| !other.contains(**mark));
    let free: Vec<char> = BANNED.iter().filter(is_free).copied().collect();
    let mut all = vec![
        FormatRule::LineCount { lines },
        first,
        FormatRule::LineSuffix { suffix: suffix.to_owned() },
        FormatRule::Banned { character: *rng.choose(&free) },
        FormatRule::EndMarker { marker: MARKER.to_owned() },
    ];
    if language == Language::En {
        all.push(FormatRule::Capitals { upper: true });
    }
    let mut chosen = rng.distinct(count.min(all.len()), all.len());
    chosen.sort_unstable();
    chosen.into_iter().map(|index| all[index].clone()).collect()
}

fn words(rule: &FormatRule, language: Language, has_marker: bool) -> String {
    let is_english = language == Language::En;
    match rule {
        FormatRule::LineCount { lines } => match (is_english, has_marker) {
            (true, true) => format!("before the last line it has exactly {lines} lines"),
            (true, false) => format!("it has exactly {lines} lines"),
            (false, true) => format!("末行之前恰好有{lines}行"),
            (false, false) => format!("恰好有{lines}行"),
        },
        FormatRule::LinePrefix { prefix } if is_english => {
            format!("each line begins with \"{}\" and a space", prefix.trim_end())
        }
        FormatRule::LinePrefix { prefix } => format!("每行开头是\"{}\"和一个空格", prefix.trim_end()),
        FormatRule::LineSuffix { suffix } if is_english => format!("each line ends in \"{suffix}\""),
        FormatRule::LineSuffix { suffix } => format!("每行末尾是\"{suffix}\""),
        FormatRule::Numbered { separator } if is_english => {
            format!("each line begins with its number, as in \"1{separator}\"")
        }
        FormatRule::Numbered { separator } => format!("每行开头是它的编号，例如\"1{separator}\""),
        FormatRule::Banned { character } if is_english => format!("the sign \"{character}\" stands nowhere in it"),
        FormatRule::Banned { character } => format!("任何地方都不出现\"{character}\"这个符号"),
        FormatRule::EndMarker { marker } if is_english => format!("its last line is \"{marker}\" and nothing else"),
        FormatRule::EndMarker { marker } => format!("末行只写\"{marker}\""),
        FormatRule::Capitals { upper: true } => "all its letters are capitals".to_owned(),
        FormatRule::Capitals { upper: false } => "none of its letters is a capital".to_owned(),
    }
}

/// The lines in the form that the rules ask for.
fn canonical(values: &[String], rules: &[FormatRule]) -> String {
    let mut lines: Vec<String> = values.to_vec();
    let mut marker = None;
    for rule in rules {
        for (number, line) in lines.iter_mut().enumerate() {
            match rule {
                FormatRule::LinePrefix { prefix } => line.insert_str(0, prefix),
                FormatRule::LineSuffix { suffix } => line.push_str(suffix),
                FormatRule::Numbered { separator } => line.insert_str(0, &format!("{}{separator}", number + 1)),
                FormatRule::Capitals { upper: true } => *line = line.to_uppercase(),
                FormatRule::Capitals { upper: false } => *line = line.to_lowercase(),
                FormatRule::LineCount { .. } | FormatRule::Banned { .. } | FormatRule::EndMarker { .. } => {}
            }
        }
        if let FormatRule::EndMarker { marker: text } = rule {
            marker = Some(text.clone());
        }
    }
    lines.extend(marker);
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawn_rules_never_contradict_each_other() {
        let values = ["kettle 4821".to_owned(), "half-built gate 1190".replace('-', " ")];
        for seed in 0..500 {
            let mut rng = Rng::from_name(&["rules", &seed.to_string()]);
            for language in [Language::En, Language::Zh] {
                let rules = draw_rules(&mut rng, language, 5, 2);
                assert_eq!(rules.len(), 5);
                let answer = canonical(&values, &rules);
                for rule in &rules {
                    if let FormatRule::Banned { character } = rule {
                        assert!(!answer.contains(*character), "{answer} {rules:?}");
                    }
                }
                let capitals = rules.iter().any(|rule| matches!(rule, FormatRule::Capitals { .. }));
                assert!(language == Language::En || !capitals);
            }
        }
    }
}
