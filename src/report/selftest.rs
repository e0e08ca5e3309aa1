//! The selftest as one HTML file: what it proves, the sensitivity per bin, and how right answers fall along each ladder.
//! Same page machinery as the report: no script, nothing loaded, the same bytes for the same input.

use minijinja::value::{Serde, Value};

use crate::report::csp::content_security_policy;
use crate::report::ink;
use crate::report::page::{STYLE, environment, render};
use crate::report::plot::{self, Curve, Point, Shape};
use crate::report::{ReportError, fields, figures};
use crate::sample::Bin;
use crate::selftest::{Detection, Proof, RungCell, RungResult, SelfTest};

/// What the page is made of.
#[derive(Clone, Copy, Debug)]
pub struct SelfTestPage<'a> {
    /// The result.
    pub result: &'a SelfTest,
    /// The command that makes it again, without the program's name.
    pub reproduce: &'a str,
}

/// Renders the page.
///
/// # Errors
/// [`ReportError::Template`] and [`ReportError::Plot`], neither of which a result of [`SelfTest::new`] causes.
pub fn render_selftest(page: &SelfTestPage) -> Result<String, ReportError> {
    let result = page.result;
    let environment = environment()?;
    let embed = |view: Value| render(&environment, "plot", view).map(Value::from_safe_string);
    let mut kinds = Vec::new();
    for sensitivity in &result.sensitivity {
        let rungs: Vec<&RungResult> = result.rungs.iter().filter(|found| found.rung.kind == sensitivity.kind).collect();
        let smallest: Vec<&str> =
            sensitivity.smallest.iter().map(|(_, strength)| strength.as_deref().unwrap_or(figures::UNKNOWN)).collect();
        kinds.push(fields! {
            name => sensitivity.kind,
            smallest => smallest,
            must_be_found => rungs.iter().any(|found| found.rung.must_be_found),
            plot => embed(ladder_plot(result, &sensitivity.kind, &rungs)?)?,
            rows => rungs.iter().map(|found| row(found)).collect::<Vec<Value>>(),
        });
    }
    let clean = &result.clean;
    let legend: Vec<Value> = result
        .bins
        .iter()
        .enumerate()
        .map(|(index, bin)| {
            fields! { name => bin.to_string(), shape => shape(index).name(), ink => ink::candidate(index).themed() }
        })
        .collect();
    let view = fields! {
        title => format!("{} · {}", result.model, result.suite),
        skip => fields! { id => "proof", what => "result" },
        subtitle => "Selftest of the instrument",
        policy => content_security_policy(STYLE),
        style => Value::from_safe_string(STYLE.to_owned()),
        tool_version => result.tool_version,
        mark => proof_mark(result.proof),
        sentence => result.headline(),
        reasons => result.reasons,
        bins => result.bins.iter().map(Bin::to_string).collect::<Vec<_>>(),
        legend => legend,
        clean => fields! {
            arm => clean.arm, pairs => figures::count(clean.pairs), different => figures::count(clean.different),
            cells => clean.cells.iter().map(cell).collect::<Vec<Value>>(),
        },
        kinds => kinds,
        reproduce => format!("kvgauge {}", page.reproduce),
    };
    render(&environment, "selftest", view)
}

fn proof_mark(proof: Proof) -> figures::Mark {
    let (symbol, class) = match proof {
        Proof::Passed => ("✓", "pass"),
        Proof::Failed => ("✗", "regressed"),
        Proof::NotMeasured => ("?", "inconclusive"),
    };
    figures::Mark { symbol, word: proof.words(), class }
}

fn row(found: &RungResult) -> Value {
    fields! {
        strength => found.rung.strength,
        arm => found.rung.arm,
        invalid => found.invalid.join("; "),
        cells => found.cells.iter().map(cell).collect::<Vec<Value>>(),
    }
}

fn cell(found: &RungCell) -> Value {
    let symptoms: Vec<&str> = found.symptoms.iter().map(|kind| kind.name()).collect();
    fields! {
        words => found.detection.words(),
        symbol => found.detection.symbol(),
        class => class_of(found.detection),
        delta => figures::points(found.delta),
        right => figures::percent(found.right),
        p => figures::p_value(found.adjusted_p),
        symptoms => symptoms.join(", "),
        kld => found.kld_mean.map(figures::nats),
    }
}

/// Found damage has the colour of a regression: that is what the gate says of it.
fn class_of(detection: Detection) -> &'static str {
    match detection {
        Detection::Found | Detection::FoundAsSymptom => "regressed",
        Detection::NotFound | Detection::NoPower => "inconclusive",
        Detection::Invalid => "invalid",
    }
}

/// The shape of a bin's points.
fn shape(index: usize) -> Shape {
    const SHAPES: [Shape; 5] = [Shape::Circle, Shape::Square, Shape::Triangle, Shape::Diamond, Shape::Ring];
    SHAPES[index % SHAPES.len()]
}

/// Right answers per bin from the clean arm on the left to the strongest damage on the right.
fn ladder_plot(result: &SelfTest, kind: &str, rungs: &[&RungResult]) -> Result<Value, ReportError> {
    let labels = std::iter::once("clean").chain(rungs.iter().map(|found| found.rung.strength.as_str()));
    let ticks: Vec<(f64, String)> = labels.enumerate().map(|(place, label)| (place as f64, label.to_owned())).collect();
    let (mut curves, mut lines) = (Vec::new(), Vec::new());
    for (index, bin) in result.bins.iter().enumerate() {
        let ladder = std::iter::once(&result.clean.cells).chain(rungs.iter().map(|found| &found.cells));
        let points: Vec<Point> = ladder.enumerate().filter_map(|(place, cells)| point(place, cells, *bin)).collect();
        let shares: Vec<String> = points.iter().map(|point| figures::percent(Some(point.y))).collect();
        lines.push(format!("{bin}: {}", shares.join(", ")));
        curves.push(Curve { ink: ink::candidate(index), shape: shape(index), points });
    }
    let legal = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let id: String = kind.chars().map(legal).collect();
    Ok(Value::from(Serde(fields! {
        id => format!("ladder-{id}"),
        title => format!("{kind}: share of right answers from the clean arm to the strongest damage, per bin"),
        description => lines.join("; "),
        view_box => plot::curves_view_box(),
        inside => Value::from_safe_string(plot::curves(&ticks, &curves)?),
    })))
}

fn point(place: usize, cells: &[RungCell], bin: Bin) -> Option<Point> {
    let cell = cells.iter().find(|cell| cell.bin == bin)?;
    Some(Point { x: place as f64, y: cell.right?, interval: cell.right_interval })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::Ruling;
    use crate::selftest::{Clean, Rung, SELFTEST_FORMAT, Sensitivity};

    fn result() -> SelfTest {
        let cell = |bin, right, detection| RungCell {
            bin: Bin(bin),
            detection,
            pairs: 40,
            delta: Some(right - 1.0),
            right: Some(right),
            right_interval: Some((right - 0.05, right)),
            adjusted_p: Some(0.01),
            symptoms: Vec::new(),
            kld_mean: Some(0.0123),
        };
        let rung = |strength: &str, right, detection| RungResult {
            rung: Rung {
                kind: "k_noise<b>".into(),
                strength: strength.into(),
                arm: format!("arm {strength}"),
                must_be_found: true,
            },
            ruling: Ruling::Inconclusive,
            invalid: Vec::new(),
            cells: vec![cell(512, 1.0, Detection::NotFound), cell(2048, right, detection)],
        };
        SelfTest {
            format_version: SELFTEST_FORMAT,
            tool_version: "0.1.0".into(),
            suite: "selftest".into(),
            model: "model".into(),
            bins: vec![Bin(512), Bin(2048)],
            proof: Proof::Passed,
            reasons: Vec::new(),
            clean: Clean {
                arm: "bfloat16.aa".into(),
                pairs: 80,
                different: 0,
                is_regressed: false,
                invalid: Vec::new(),
                cells: vec![cell(512, 1.0, Detection::NotFound), cell(2048, 1.0, Detection::NotFound)],
            },
            rungs: vec![rung("20 dB", 0.95, Detection::NotFound), rung("5 dB", 0.5, Detection::Found)],
            sensitivity: vec![Sensitivity {
                kind: "k_noise<b>".into(),
                smallest: vec![(Bin(512), None), (Bin(2048), Some("5 dB".into()))],
            }],
        }
    }

    #[test]
    fn the_page_shows_what_was_found_and_escapes_names() {
        let result = result();
        let html = render_selftest(&SelfTestPage { result: &result, reproduce: "selftest --suite selftest" }).unwrap();
        for part in [
            "PASSED",
            "✗ found",
            "· not found",
            "−50.0",
            "k_noise&lt;b&gt;",
            "5 dB",
            "<polyline",
            "clean",
            "KLD 0.0123",
        ] {
            assert!(html.contains(part), "no `{part}` in\n{html}");
        }
        assert!(!html.contains("<script") && !html.contains("k_noise<b>") && !html.contains("://"));
        let again = render_selftest(&SelfTestPage { result: &result, reproduce: "selftest --suite selftest" }).unwrap();
        assert_eq!(html, again);
    }
}
