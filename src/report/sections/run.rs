//! Model, environment, rules and outcomes of the run, and the command that makes it again.

use minijinja::value::Value;

use crate::compare::ArmSummary;
use crate::report::page::Page;
use crate::report::{ReportError, fields, figures};
use crate::sample::Outcome;
use crate::suite::{CellPolicy, GatePolicy};
use crate::units::format_token_count;

pub(crate) fn view(page: &Page) -> Result<Option<Value>, ReportError> {
    let comparison = page.input.comparison;
    let compared = comparison.control.iter().chain(&comparison.candidates).map(|arm| &arm.summary);
    let arms: Vec<Value> = std::iter::once(&comparison.baseline).chain(compared).map(outcomes).collect();
    let model = &comparison.model;
    let mut environment: Vec<(String, String)> =
        comparison.environment.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    environment.push(("kvgauge".into(), comparison.tool_version.clone()));
    Ok(Some(fields! {
        model => [
            ("name", model.name.clone()),
            ("weights", model.weights.clone()),
            ("tokenizer", model.tokenizer.clone()),
            ("chat template", model.chat_template.clone()),
            ("RoPE", model.rope.clone()),
            ("trained context", format_token_count(model.trained_context)),
        ],
        environment => environment,
        rules => rules(page.input.policy),
        arms => arms,
        reproduce => page.input.reproduce,
    }))
}

fn outcomes(arm: &ArmSummary) -> Value {
    let of =
        |wanted: Outcome| arm.outcomes.iter().filter(|(outcome, _)| *outcome == wanted).map(|(_, n)| *n).sum::<u64>();
    fields! {
        name => arm.arm.name,
        planned => figures::count(arm.planned_items),
        complete => arm.complete,
        right => figures::count(of(Outcome::ValidRight)),
        wrong => figures::count(of(Outcome::ValidWrong)),
        censored => figures::count(of(Outcome::Censored)),
        invalid => figures::count(of(Outcome::Invalid)),
        error => figures::count(of(Outcome::Error)),
    }
}

fn rules(policy: &GatePolicy) -> Vec<(String, String)> {
    let plain = |share: f64| format!("{:.1} points", share * 100.0);
    let mut rules = vec![
        ("α, whole run".to_owned(), policy.alpha.to_string()),
        ("margin".into(), plain(policy.margin)),
        ("least effect".into(), plain(policy.min_effect)),
        ("least pairs".into(), policy.min_pairs.to_string()),
        ("least haystacks".into(), policy.min_haystacks.to_string()),
        ("baseline floor".into(), figures::percent(Some(policy.baseline_floor))),
        ("least valid share".into(), figures::percent(Some(policy.min_valid_share))),
        ("symptom rise".into(), format!("{} and {} items", plain(policy.symptom_min_rise), policy.symptom_min_items)),
        ("confirmed on fresh seeds".into(), if policy.confirm { "yes" } else { "no" }.into()),
    ];
    rules.extend(policy.max_relative_drop.map(|limit| {
        let below = figures::percent(Some(policy.relative_guard_below));
        (format!("relative limit below {below}"), format!("{} of the baseline", figures::percent(Some(limit))))
    }));
    rules.extend(policy.cells.iter().map(|(cell, exception)| (cell.clone(), exception_text(exception))));
    rules
}

fn exception_text(exception: &CellPolicy) -> String {
    let points = |share: f64| format!("{:.1} points", share * 100.0);
    let percent = |share: f64| figures::percent(Some(share));
    let parts = [
        exception.tier.map(|tier| tier.name().to_owned()),
        exception.max_drop.map(|it| format!("margin {}", points(it))),
        exception.min_effect.map(|it| format!("least effect {}", points(it))),
        exception.max_relative_drop.map(|it| format!("relative limit {}", percent(it))),
        exception.relative_guard_below.map(|it| format!("relative limit holds below {}", percent(it))),
        exception.min_pairs.map(|it| format!("least pairs {it}")),
        exception.min_haystacks.map(|it| format!("least haystacks {it}")),
        exception.baseline_floor.map(|it| format!("baseline floor {}", percent(it))),
        exception.min_valid_share.map(|it| format!("least valid share {}", percent(it))),
        match exception.required {
            Some(false) if exception.tier.is_none() => Some("shown, never fails".into()),
            Some(false) => Some("may be missing".into()),
            Some(true) => Some("required".into()),
            None => None,
        },
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}
