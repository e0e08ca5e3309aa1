//! `relation`: people carry things and travel; asked for is the town where a thing is at the end. Two facts have to be
//! joined, who carries it and where that person went last, and of all journeys only the last one counts.

use serde::Deserialize;

use super::params::{ParamError, PerBin, parse};
use super::planting::{Planted, Planting, Wordings};
use super::{Depth, Ground, Task, TaskError, TaskGroup};
use crate::sample::{Expected, Gold};

/// The registry's entry.
pub(super) const TASK: Task = Task {
    id: "relation",
    summary: "where a thing is that somebody carries from town to town",
    group: TaskGroup::Tracing,
    scorer: "label",
    generator_version: 1,
    ground: Ground::Prose,
    depth: Depth::Spread,
    check,
    plant,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    /// People, each with a thing of their own.
    people: Option<PerBin<u32>>,
    /// Journeys of each.
    journeys: Option<PerBin<u32>>,
}

/// People and journeys by length of the bin.
const PEOPLE: [u32; 5] = [2, 3, 4, 6, 8];
const JOURNEYS: [u32; 5] = [2, 2, 3, 4, 4];

/// `{0}` is the person, `{1}` the thing.
const CARRIES: Wordings =
    Wordings { en: &["All the time, {0} carried the {1}."], zh: &["{0}一直随身带着{1}。"] };

/// `{0}` is the person, `{1}` the town.
const GOES: Wordings = Wordings { en: &["After that, {0} travelled to {1}."], zh: &["在那之后，{0}去了{1}。"] };

/// Questions; `{0}` is the thing.
const QUESTIONS: Wordings = Wordings {
    en: &[
        "In which town is the {0} at the end of the text? Answer with the name of the town only.",
        "Somebody carries the {0}. To which town has it come in the end? Answer with the name of the town only.",
    ],
    zh: &["到文章最后，{0}在什么地方？只回答地名。", "有人带着{0}。它最后到了什么地方？只回答地名。"],
};

fn check(params: &toml::Table) -> Result<(), ParamError> {
    let params: Params = parse(params)?;
    // Every person takes a name from the filler, of which there are about a hundred.
    PerBin::check(params.people.as_ref(), "people", 1..=24)?;
    PerBin::check(params.journeys.as_ref(), "journeys", 1..=64)
}

/// The first person is the one asked for.
fn plant(planting: &mut Planting<'_>) -> Result<Planted, TaskError> {
    let params: Params = planting.params()?;
    let count = PerBin::resolve(params.people.as_ref(), planting.bin, PEOPLE);
    let journeys = PerBin::resolve(params.journeys.as_ref(), planting.bin, JOURNEYS);
    let mut people = Vec::with_capacity(count);
    for _ in 0..count {
        people.push((planting.fresh_name()?, planting.fresh_key()?));
    }
    let towns = planting.lexicon.class("town");
    let label = planting.rng.choose(towns).clone();
    // Who travels, in the order of the text. Nobody but the first comes to the town asked for, and that only in the end.
    let mut travellers: Vec<usize> = (0..count).flat_map(|person| std::iter::repeat_n(person, journeys)).collect();
    planting.rng.shuffle(&mut travellers);
    let last = travellers.iter().rposition(|person| *person == 0).expect("everybody travels");
    let mut others: Vec<String> = Vec::new();
    let mut plants = Vec::with_capacity(count * (journeys + 1));
    let places = planting.spread(travellers.len());
    for (index, (person, place)) in travellers.into_iter().zip(places).enumerate() {
        let town = if index == last { label.clone() } else { other_town(planting, &label) };
        let sentence = planting.say_alike(&GOES, &[&people[person].0, &town]);
        // The last journey of the first person is the needle.
        let number = if index == last { 0 } else { 1 + index };
        plants.push(planting.plant(number, place, &sentence, None));
        if town != label && !others.contains(&town) {
            others.push(town);
        }
    }
    for (name, thing) in &people {
        let place = planting.rng.unit();
        let sentence = planting.say_alike(&CARRIES, &[name, thing]);
        plants.push(planting.plant(1 + plants.len(), place, &sentence, None));
    }
    let question = planting.ask(&QUESTIONS, &[&people[0].1]);
    Ok(Planted::new(plants, question, Expected { answer: label.clone(), gold: Gold::Label { label, others } }))
}

/// A town that is not `label`: the drawn one or the next in the list.
fn other_town(planting: &mut Planting<'_>, label: &str) -> String {
    let towns = planting.lexicon.class("town");
    let drawn = planting.rng.below(towns.len());
    let town = if towns[drawn] == label { &towns[(drawn + 1) % towns.len()] } else { &towns[drawn] };
    town.clone()
}
