//! `kvgauge suite dump`: every item of a suite with its right answer, one JSON document a line.
//!
//! What a model is trained or tried on elsewhere comes from the generators themselves, so the wording cannot drift apart.

use std::ops::RangeInclusive;
use std::path::Path;

use kvgauge::sample::{Bin, Item, Language, Message, VariantOf};
use kvgauge::suite::Suite;
use kvgauge::tasks;
use kvgauge::tokenizer::{TokenCounter, Tokenizer, WordTokenizer};
use serde::Serialize;

use crate::args::DumpArgs;
use crate::config::ConfigFile;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::{measure, model, output, settings};

/// More seeds than any training needs: each makes the whole suite anew.
const MAX_SEEDS: u64 = 1_000_000;

/// One line. The answer scores exactly 1 by the item's scorer.
#[derive(Serialize)]
struct Line<'a> {
    item_id: &'a str,
    suite: &'a str,
    seed: u64,
    task: &'a str,
    generator_version: Option<u32>,
    lexicon_version: &'a str,
    language: Language,
    bin: Bin,
    slot_percent: u8,
    index: u32,
    haystack_id: &'a str,
    prompt_tokens: u32,
    max_output_tokens: u32,
    messages: &'a [Message],
    #[serde(skip_serializing_if = "str::is_empty")]
    answer_prefix: &'a str,
    answer: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    follow_ups: Vec<Turn<'a>>,
    scorer: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    variant_of: Option<&'a VariantOf>,
}

/// A later question of the same conversation.
#[derive(Serialize)]
struct Turn<'a> {
    question: &'a str,
    answer: &'a str,
}

pub(super) fn execute(args: &DumpArgs, config: &ConfigFile) -> Result<Exit, Failure> {
    let suite = measure::load_suite(&settings::suite(&args.suite, config)?)?;
    let seeds = args.seeds.clone().map_or(suite.seed..=suite.seed, |seeds| seeds.0);
    let mut lines = output::Lines::new();
    match (&args.tokenizer, args.dry_run) {
        (Some(folder), _) => write_all(&mut lines, &suite, seeds, &Tokenizer::from_hf_dir(Path::new(folder))?),
        (None, true) => write_all(&mut lines, &suite, seeds, &WordTokenizer),
        (None, false) => {
            let _interrupt = Interrupt::watch().map_err(Failure::Runtime)?;
            let model = model::open(&settings::model(&args.model, config))?;
            write_all(&mut lines, &suite, seeds, model.tokenizer().as_ref())
        }
    }?;
    lines.finish()?;
    Ok(Exit::Success)
}

fn write_all(
    lines: &mut output::Lines,
    suite: &Suite,
    seeds: RangeInclusive<u64>,
    counter: &dyn TokenCounter,
) -> Result<(), Failure> {
    let bound = suite.bind(counter)?;
    for seed in seeds {
        let suite = bound.select(None, None, None, Some(seed))?;
        for group in &suite.plan().groups {
            for item in suite.generate(group, counter)? {
                if !lines.write(&line(&suite, &item))? {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

fn line<'a>(suite: &'a Suite, item: &'a Item) -> Line<'a> {
    Line {
        item_id: &item.item_id,
        suite: &suite.name,
        seed: suite.seed,
        task: &item.task,
        generator_version: tasks::find(&item.task).map(|task| task.generator_version),
        lexicon_version: tasks::lexicon_version(item.language),
        language: item.language,
        bin: item.bin,
        slot_percent: item.slot_percent,
        index: item.index,
        haystack_id: &item.haystack_id,
        prompt_tokens: item.prompt_tokens,
        max_output_tokens: item.max_output_tokens,
        messages: &item.messages,
        answer_prefix: &item.answer_prefix,
        answer: &item.expected.answer,
        follow_ups: item
            .follow_ups
            .iter()
            .map(|turn| Turn { question: &turn.question, answer: &turn.expected.answer })
            .collect(),
        scorer: &item.scorer,
        variant_of: item.variant_of.as_ref(),
    }
}

/// Seeds as `7` or `1..200`, both ends included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seeds(RangeInclusive<u64>);

impl std::str::FromStr for Seeds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once("..").unwrap_or((text, text));
        let number = |text: &str| text.trim().parse::<u64>().ok();
        let (Some(first), Some(last)) = (number(first), number(last.trim_start_matches('='))) else {
            return Err(format!("`{text}` is not a seed such as 7, or a range such as 1..200"));
        };
        match last.checked_sub(first) {
            None => Err(format!("`{text}` ends before it begins; both ends are included")),
            Some(more) if more >= MAX_SEEDS => Err(format!("`{text}` has more than {MAX_SEEDS} seeds")),
            Some(_) => Ok(Self(first..=last)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Seeds;

    #[test]
    fn seeds_are_a_number_or_a_range_with_both_ends() {
        assert_eq!("7".parse(), Ok(Seeds(7..=7)));
        assert_eq!("1..200".parse(), Ok(Seeds(1..=200)));
        assert_eq!("1..=200".parse(), Ok(Seeds(1..=200)));
        for wrong in ["", "a", "5..1", "1..", "..3", "-1", "0..1000000"] {
            assert!(wrong.parse::<Seeds>().is_err(), "{wrong}");
        }
    }
}
