//! The A/A arm: the baseline against itself measures the noise.

use minijinja::value::Value;

use crate::compare::Repeat;
use crate::report::page::Page;
use crate::report::{ReportError, fields, figures};

pub(crate) fn view(page: &Page) -> Result<Option<Value>, ReportError> {
    let repeats = repeats(page);
    let Some(control) = &page.input.comparison.control else {
        return Ok(Some(fields! { has_control => false, repeats => repeats }));
    };
    let rows: Vec<Value> = control
        .groups
        .iter()
        .filter(|cell| cell.delta.pairs > 0)
        .map(|cell| {
            let delta = &cell.delta;
            fields! {
                bin => figures::bin(delta.bin),
                group => cell.group.name(),
                pairs => figures::count(delta.pairs),
                flips => format!("{} / {}", delta.regressions, delta.fixes),
                rate => figures::percent(figures::share(delta.regressions + delta.fixes, delta.pairs)),
                delta => figures::points(delta.delta),
                nll => delta.nll.as_ref().map_or(figures::UNKNOWN.into(), |nll| figures::signed(nll.delta, 4)),
            }
        })
        .collect();
    let flips: u64 = control.groups.iter().map(|cell| cell.delta.regressions + cell.delta.fixes).sum();
    let pairs: u64 = control.groups.iter().map(|cell| cell.delta.pairs).sum();
    let signs = &control.treatment;
    Ok(Some(fields! {
        has_control => true,
        repeats => repeats,
        name => control.summary.arm.name,
        pairs => figures::count(pairs),
        flips => figures::count(flips),
        is_still => flips == 0,
        identical => (signs.compared_outputs > 0).then(|| {
            let (same, all) = (figures::count(signs.identical_outputs), figures::count(signs.compared_outputs));
            format!("{same} of {all} answers to long prompts are the same text")
        }),
        rows => rows,
        accepted => accepted(page),
    }))
}

/// Where the noise is from, beside a baseline of an earlier day.
fn accepted(page: &Page) -> Option<String> {
    let comparison = page.input.comparison;
    let baseline = comparison.baseline.accepted.as_ref()?;
    Some(match &comparison.control.as_ref()?.summary.accepted {
        Some(control) => {
            format!("The A/A noise was measured when the baseline was accepted, on {}, not in this run.", control.day())
        }
        None => format!(
            "The A/A arm was asked in this run: it shows whether the answers of {} are given here and now, too.",
            baseline.day()
        ),
    })
}

/// Candidates that are one another's A/A arms.
fn repeats(page: &Page) -> Vec<Value> {
    let row = |repeat: &Repeat| {
        let flips = repeat.regressions + repeat.fixes;
        fields! {
            first => repeat.first,
            second => repeat.second,
            pairs => figures::count(repeat.pairs),
            flips => figures::count(flips),
            rate => figures::percent(figures::share(flips, repeat.pairs)),
            texts => figures::count(repeat.different_outputs),
        }
    };
    page.input.comparison.repeats.iter().map(row).collect()
}
