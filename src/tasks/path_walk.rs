//! `path_walk`: a graph in which every place has one way on, scattered over the text; the places of a walk through it. Every
//! step is a look-up by the answer of the last, so one wrong turn loses the rest.
//!
//! Other ways lead into the walk: who looks up a place where it is a destination, and not where it is a start, goes astray.

use serde::Deserialize;

use super::params::{ParamError, PerBin, parse};
use super::planting::{Planted, Planting, Wordings};
use super::{Depth, Ground, Task, TaskError, TaskGroup};
use crate::sample::{Expected, Gold, Language};

/// The registry's entry.
pub(super) const TASK: Task = Task {
    id: "path_walk",
    summary: "the places of a walk through a graph with one way on from each",
    group: TaskGroup::LongOutput,
    scorer: "survival",
    generator_version: 1,
    ground: Ground::Prose,
    depth: Depth::Spread,
    check,
    plant,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    /// Steps of the walk.
    hops: Option<PerBin<u32>>,
    /// Ways that are not part of the walk.
    decoys: Option<PerBin<u32>>,
}

/// Steps by length of the bin.
const HOPS: [u32; 5] = [4, 8, 16, 24, 40];

/// Other ways by length of the bin.
const DECOYS: [u32; 5] = [2, 4, 8, 12, 20];

/// Both in Chinese: a character costs two or three tokens in a tokenizer made for English, so that fewer ways fit the
/// shortest bin.
const CHINESE_HOPS: [u32; 5] = [2, 8, 16, 24, 40];
const CHINESE_DECOYS: [u32; 5] = [1, 4, 8, 12, 20];

/// Ways; `{0}` is the start, `{1}` the destination.
const WAYS: Wordings = Wordings {
    en: &["The path from the {0} leads to the {1}.", "From the {0}, the path leads to the {1}."],
    zh: &["从{0}出发的小路通向{1}。", "离开{0}以后，小路通向{1}。"],
};

/// Questions; `{0}` is the start, `{1}` the number of steps.
const QUESTIONS: Wordings = Wordings {
    en: &[
        "Start at the {0} and follow the path from thing to thing, {1} steps in all. Write down what each step leads to, in order, one on each line in the form number: name. Write nothing else.",
        "The walk begins at the {0} and has {1} steps; each path leads to the thing where the next one starts. List what is reached, step by step, one line for each in the form number: name, and nothing else.",
    ],
    zh: &[
        "从{0}出发，沿着小路一站一站地走，一共走{1}步。请按顺序写出每一步到达的东西，每行一个，格式为“编号: 名称”，不要写别的内容。",
        "这次行走从{0}开始，共有{1}步，每一步的终点就是下一步的起点。请逐步列出到达的东西，每步一行，格式为“编号: 名称”，除此之外什么都不要写。",
    ],
};

fn check(params: &toml::Table) -> Result<(), ParamError> {
    let params: Params = parse(params)?;
    // Names are pairs of words of which a language has tens of thousands; a few walks of one document must find free ones.
    PerBin::check(params.hops.as_ref(), "hops", 2..=500)?;
    PerBin::check(params.decoys.as_ref(), "decoys", 0..=500)
}

fn plant(planting: &mut Planting<'_>) -> Result<Planted, TaskError> {
    let params: Params = planting.params()?;
    let (default_hops, default_decoys) = match planting.language {
        Language::En => (HOPS, DECOYS),
        Language::Zh => (CHINESE_HOPS, CHINESE_DECOYS),
    };
    let hops = PerBin::resolve(params.hops.as_ref(), planting.bin, default_hops);
    let decoys = PerBin::resolve(params.decoys.as_ref(), planting.bin, default_decoys);
    let walk = (0..=hops).map(|_| planting.fresh_key()).collect::<Result<Vec<String>, TaskError>>()?;
    let mut ways: Vec<(String, String)> = walk.windows(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
    ways.extend(other_ways(planting, &walk, decoys)?);
    let mut places = planting.spread(ways.len());
    planting.rng.shuffle(&mut places);
    let mut plants = Vec::with_capacity(ways.len());
    for (number, ((from, to), place)) in ways.iter().zip(places).enumerate() {
        let sentence = planting.say(&WAYS, &[from, to]);
        plants.push(planting.plant(number, place, &sentence, None));
    }
    let steps: Vec<String> = (1..=hops).map(|step| format!("{step}: {}", walk[step])).collect();
    let question = planting.ask(&QUESTIONS, &[&walk[0], &hops.to_string()]);
    Ok(Planted::new(plants, question, Expected { answer: steps.join("\n"), gold: Gold::Steps { steps } }))
}

/// Ways from places outside the walk, in chains: half of them end in a place of the walk, and no place gets a second way on.
fn other_ways(planting: &mut Planting<'_>, walk: &[String], count: usize) -> Result<Vec<(String, String)>, TaskError> {
    let mut ways: Vec<(String, String)> = Vec::with_capacity(count);
    for _ in 0..count {
        let from = planting.fresh_key()?;
        let to = match ways.last() {
            Some((start, _)) if planting.rng.below(2) == 0 => start.clone(),
            _ => planting.rng.choose(walk).clone(),
        };
        ways.push((from, to));
    }
    Ok(ways)
}
