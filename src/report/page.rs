//! One HTML file out of the sections: escaping, style, content security policy and size.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{AutoEscape, Environment, UndefinedBehavior, escape_formatter};
use serde::Serialize;

use crate::compare::Comparison;
use crate::gate::Verdict;
use crate::report::csp::content_security_policy;
use crate::report::history::History;
use crate::report::text::{clip, visible};
use crate::report::timings::Timings;
use crate::report::{ReportError, SECTIONS, Section, fields};
use crate::suite::GatePolicy;

/// Above this a page is slow to open as an attachment; it is written all the same, and says so itself.
pub const HTML_WARN_BYTES: usize = 2 * 1024 * 1024;

/// Above this viewers of attachments refuse; flips are left out until the page is smaller.
pub const HTML_MAX_BYTES: usize = 10 * 1024 * 1024;

/// Flips shown in all, tried in turn until the page is no larger than that. A reader looks at a few dozen; a word diff of the longest
/// answers takes about a millisecond. Examples give way before the page gets slow to open, the last few before it is refused.
const FLIP_BUDGETS: [(usize, usize); 8] = [
    (480, HTML_WARN_BYTES),
    (240, HTML_WARN_BYTES),
    (120, HTML_WARN_BYTES),
    (60, HTML_WARN_BYTES),
    (30, HTML_WARN_BYTES),
    (30, HTML_MAX_BYTES),
    (15, HTML_MAX_BYTES),
    (0, HTML_MAX_BYTES),
];

/// The section that gives way.
const EXAMPLES: &str = "flips";

/// Characters of any one value: more than the longest record of a run, and no text of others makes a page of its own.
const MAX_VALUE_CHARS: usize = 32 * 1024;

/// The one style block.
pub(super) const STYLE: &str = include_str!("templates/style.css");

/// What a report is made of.
#[derive(Clone, Copy, Debug)]
pub struct ReportInput<'a> {
    /// Heading of the page: `SmolLM2-135M-Instruct · quick`.
    pub title: &'a str,
    /// What was found.
    pub comparison: &'a Comparison,
    /// What it means; `arms` in the order of the comparison's candidates.
    pub verdict: &'a Verdict,
    /// How it was judged.
    pub policy: &'a GatePolicy,
    /// Times, shown in one section only.
    pub timings: &'a Timings,
    /// The command line that makes the run again.
    pub reproduce: &'a str,
    /// Earlier runs and this one, where they are asked for; the section that shows them has their start times.
    pub history: Option<&'a History>,
}

impl ReportInput<'_> {
    /// A verdict that belongs to another comparison must not be printed beside it.
    pub(crate) fn check(&self) -> Result<(), ReportError> {
        let compared: Vec<&str> = self.comparison.candidates.iter().map(|arm| arm.summary.arm.name.as_str()).collect();
        let judged: Vec<&str> = self.verdict.arms.iter().map(|arm| arm.arm.as_str()).collect();
        if compared == judged {
            Ok(())
        } else {
            Err(ReportError::ArmsDiffer { compared: compared.join(", "), judged: judged.join(", ") })
        }
    }
}

/// What the sections are rendered from.
pub(crate) struct Page<'a> {
    /// The data.
    pub(crate) input: &'a ReportInput<'a>,
    /// Flips shown in all.
    pub(crate) flip_budget: usize,
    environment: &'a Environment<'static>,
}

impl Page<'_> {
    /// Renders a template of the page's own (a plot) so that it can be placed inside another as it is.
    pub(crate) fn embed(&self, template: &'static str, view: impl Serialize) -> Result<Value, ReportError> {
        render(self.environment, template, Value::from(Serde(view))).map(Value::from_safe_string)
    }
}

/// Templates that sections share, by name.
const SHARED_TEMPLATES: [(&str, &str); 8] = [
    ("shell", include_str!("templates/shell.html")),
    ("page", include_str!("templates/page.html")),
    ("selftest", include_str!("templates/selftest.html")),
    ("macros", include_str!("templates/macros.html")),
    ("plot", include_str!("templates/plot.html")),
    ("forest", include_str!("templates/forest.html")),
    ("small_multiple", include_str!("templates/small_multiple.html")),
    ("heatmaps", include_str!("templates/heatmaps.html")),
];

/// Renders the whole page.
///
/// The same bytes for the same input; only the section `timing` depends on times.
///
/// # Errors
/// [`ReportError::ArmsDiffer`] when comparison and verdict do not belong together, [`ReportError::TooLarge`] when the page is over
/// [`HTML_MAX_BYTES`] even without flips.
pub fn render_html(input: &ReportInput) -> Result<String, ReportError> {
    input.check()?;
    let environment = environment()?;
    let page = |flip_budget| Page { input, flip_budget, environment: &environment };
    let mut sections = SECTIONS.iter().map(|section| body(&page(0), section)).collect::<Result<Vec<_>, _>>()?;
    let mut bytes = 0;
    for (flip_budget, limit) in FLIP_BUDGETS {
        let page = page(flip_budget);
        // All else is the same whatever the room for examples, and most of the work.
        for (section, rendered) in SECTIONS.iter().zip(&mut sections).filter(|(section, _)| section.id == EXAMPLES) {
            *rendered = body(&page, section)?;
        }
        let html = assemble(&page, &sections)?;
        bytes = html.len();
        if bytes <= limit {
            return Ok(html);
        }
    }
    Err(ReportError::TooLarge { bytes, limit: HTML_MAX_BYTES })
}

/// Whether no example is left out for want of room.
fn page_shows_all(input: &ReportInput, flip_budget: usize) -> bool {
    input.comparison.candidates.iter().map(|arm| arm.flips.len()).sum::<usize>() <= flip_budget
}

/// Every value printed is made visible and escaped; only what the library itself rendered is taken as it is.
pub(super) fn environment() -> Result<Environment<'static>, ReportError> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.map_err(|source| ReportError::Template { name: "syntax", source })?);
    environment.set_formatter(|out, state, value| match value.as_str() {
        Some(text) if !value.is_safe() => {
            escape_formatter(out, state, &Value::from(visible(&clip(text, MAX_VALUE_CHARS))))
        }
        _ => escape_formatter(out, state, value),
    });
    let sections = SECTIONS.iter().map(|section| (section.id, section.template));
    for (name, source) in SHARED_TEMPLATES.into_iter().chain(sections) {
        environment.add_template(name, source).map_err(|source| ReportError::Template { name, source })?;
    }
    Ok(environment)
}

pub(super) fn render(environment: &Environment, name: &'static str, view: Value) -> Result<String, ReportError> {
    environment
        .get_template(name)
        .and_then(|template| template.render(view))
        .map_err(|source| ReportError::Template { name, source })
}

/// A section on its own; `None` where it has nothing to say.
fn body(page: &Page, section: &Section) -> Result<Option<String>, ReportError> {
    (section.view)(page)?.map(|view| render(page.environment, section.id, view)).transpose()
}

/// The page out of the bodies of [`SECTIONS`].
fn assemble(page: &Page, bodies: &[Option<String>]) -> Result<String, ReportError> {
    let bytes: usize = bodies.iter().flatten().map(String::len).sum();
    let sections: Vec<Value> = SECTIONS
        .iter()
        .zip(bodies)
        .filter_map(|(section, body)| {
            let body = Value::from_safe_string(body.clone()?);
            Some(fields! { id => section.id, title => section.title, body => body })
        })
        .collect();
    let comparison = page.input.comparison;
    let view = fields! {
        title => page.input.title,
        policy => content_security_policy(STYLE),
        style => Value::from_safe_string(STYLE.to_owned()),
        sections => sections,
        skip => fields! { id => "verdict", what => "verdict" },
        subtitle => format!("KV cache quality report · suite {}", comparison.suite),
        tool_version => comparison.tool_version,
        is_large => bytes > HTML_WARN_BYTES,
        flips_were_cut => page.flip_budget < FLIP_BUDGETS[0].0 && !page_shows_all(page.input, page.flip_budget),
    };
    render(page.environment, "page", view)
}
