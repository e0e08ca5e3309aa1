//! `chain`: variables that are set to one another over several hops; asked for are all that hold the value of one chain.
//! The other chains are built alike and wind through the same text.

use serde::Deserialize;

use super::params::{ParamError, PerBin, parse};
use super::planting::{Planted, Planting, Wordings, draw_value};
use super::{Depth, Ground, Task, TaskError, TaskGroup};
use crate::rng::Rng;
use crate::sample::{Expected, Gold};

/// The registry's entry.
pub(super) const TASK: Task = Task {
    id: "chain",
    summary: "all variables of a chain of assignments, among chains that are built alike",
    group: TaskGroup::Tracing,
    scorer: "set",
    generator_version: 1,
    ground: Ground::Prose,
    depth: Depth::Spread,
    check,
    plant,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    /// Number of chains; one of them is asked for.
    chains: Option<PerBin<u32>>,
    /// Assignments after the first of each chain: a chain has one variable more.
    hops: Option<PerBin<u32>>,
}

/// Chains and hops by length of the bin.
const CHAINS: [u32; 5] = [2, 2, 3, 4, 4];
const HOPS: [u32; 5] = [2, 4, 4, 4, 4];

/// Letters of a variable: without vowels and in capitals, so that it is no word of any text. 3.2 million variables.
const VARIABLE_LETTERS: usize = 5;
const LETTERS: &[u8] = b"BCDFGHJKLMNPQRSTVWXZ";

/// How a chain starts; `{0}` is the variable, `{1}` the value.
const STARTS: Wordings = Wordings { en: &["The variable {0} is set to {1}."], zh: &["变量{0}的值设为{1}。"] };

/// How it goes on; `{0}` is the new variable, `{1}` the one before.
const STEPS: Wordings =
    Wordings { en: &["The variable {0} is set to the value of {1}."], zh: &["变量{0}的值设为{1}的值。"] };

/// Questions; `{0}` is the value.
const QUESTIONS: Wordings = Wordings {
    en: &[
        "Which variables hold the value {0}, directly or by way of other variables? Write the names of all of them, separated by commas, and nothing else.",
        "Find all variables that have the value {0}, those included that got it from another variable. Write their names only, separated by commas.",
    ],
    zh: &[
        "哪些变量的值是{0}？包括直接得到和通过其他变量得到的。请写出所有这些变量的名字，用逗号隔开，不要写别的内容。",
        "请找出值为{0}的全部变量，从别的变量得到这个值的也算。只写变量的名字，用逗号隔开。",
    ],
};

fn check(params: &toml::Table) -> Result<(), ParamError> {
    let params: Params = parse(params)?;
    PerBin::check(params.chains.as_ref(), "chains", 1..=32)?;
    PerBin::check(params.hops.as_ref(), "hops", 1..=32)
}

fn plant(planting: &mut Planting<'_>) -> Result<Planted, TaskError> {
    let params: Params = planting.params()?;
    let chains = PerBin::resolve(params.chains.as_ref(), planting.bin, CHAINS);
    let length = 1 + PerBin::resolve(params.hops.as_ref(), planting.bin, HOPS);
    let value = planting.fresh_code()?;
    let mut values = vec![value.clone()];
    for _ in 1..chains {
        values.push(planting.fresh_code()?);
    }
    // Which chain each sentence belongs to: chains are mixed, the steps of a chain follow one another.
    let mut owners: Vec<usize> = (0..chains).flat_map(|chain| std::iter::repeat_n(chain, length)).collect();
    planting.rng.shuffle(&mut owners);
    let places = planting.spread(owners.len());
    let mut variables: Vec<Vec<String>> = vec![Vec::with_capacity(length); chains];
    let mut plants = Vec::with_capacity(owners.len());
    for (chain, place) in owners.into_iter().zip(places) {
        let variable = fresh_variable(planting)?;
        let sentence = match variables[chain].last() {
            None => planting.say_alike(&STARTS, &[&variable, &values[chain]]),
            Some(before) => planting.say_alike(&STEPS, &[&variable, before]),
        };
        let number = chain * length + variables[chain].len();
        plants.push(planting.plant(number, place, &sentence, None));
        variables[chain].push(variable);
    }
    let question = planting.ask(&QUESTIONS, &[&value]);
    let members = variables.remove(0);
    let gold = Gold::Set { members: members.clone(), decoys: variables.into_iter().flatten().collect() };
    Ok(Planted::new(plants, question, Expected { answer: members.join(", "), gold }))
}

fn fresh_variable(planting: &mut Planting<'_>) -> Result<String, TaskError> {
    draw_value(&mut planting.soil.values, || variable(&mut planting.rng))
        .ok_or(TaskError::Exhausted { task: TASK.id.into(), what: "variable" })
}

fn variable(rng: &mut Rng) -> String {
    (0..VARIABLE_LETTERS).map(|_| char::from(*rng.choose(LETTERS))).collect()
}
