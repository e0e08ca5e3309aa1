//! `summary.md`: the report for a pull request comment or a job summary.

use crate::compare::{ArmComparison, Flip, FlipDirection};
use crate::gate::{ArmVerdict, CellVerdict, Ruling};
use crate::report::page::ReportInput;
use crate::report::text::{clip, visible};
use crate::report::{ReportError, figures};
use crate::sample::Bin;
use crate::suite::TaskGroup;

/// First line of the summary: a bot finds its own comment by it.
pub const MARKER: &str = "<!-- kvgauge-report -->";

/// GitHub refuses a comment of more than 65,536 characters, and the whole of it is lost then.
pub const MARKDOWN_MAX_CHARS: usize = 60_000;

/// Characters of one answer or sentence of others.
const MAX_TEXT_CHARS: usize = 300;
/// Examples shown in all.
const MAX_EXAMPLES: usize = 6;
/// Worst cells shown in all.
const MAX_WORST_CELLS: usize = 10;
/// Room kept for the note that says what was left out.
const NOTE_CHARS: usize = 200;

/// Renders the summary: at most [`MARKDOWN_MAX_CHARS`] characters, cut between sections, [`MARKER`] first, without times.
///
/// # Errors
/// [`ReportError::ArmsDiffer`] when comparison and verdict do not belong together.
pub fn render_markdown(input: &ReportInput) -> Result<String, ReportError> {
    input.check()?;
    let sections = [
        head(input),
        bins(input),
        worst(input),
        averages(input),
        symptoms(input),
        in_effect(input),
        examples(input),
        reproduce(input),
    ];
    Ok(assemble(&sections))
}

fn assemble(sections: &[String]) -> String {
    let mut text = format!("{MARKER}\n");
    let mut chars = text.chars().count();
    let mut left_out = 0;
    for section in sections.iter().filter(|section| !section.is_empty()) {
        let more = section.chars().count() + 1;
        if chars + more + NOTE_CHARS <= MARKDOWN_MAX_CHARS {
            text.push('\n');
            text.push_str(section);
            chars += more;
        } else {
            left_out += 1;
        }
    }
    if left_out > 0 {
        text.push_str(&format!(
            "\n_Shortened: {} did not fit here; the HTML report has all._\n",
            figures::counted(left_out, "section")
        ));
    }
    text
}

/// Text of others inside a line: nothing in it may format, link, mention or break a table.
fn inline(text: &str) -> String {
    let mut safe = String::new();
    for character in visible(&clip(text, MAX_TEXT_CHARS)).chars() {
        match character {
            '\n' | '\t' => safe.push(' '),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '&' => safe.push_str("&amp;"),
            // A zero-width space keeps mentions, issue numbers and addresses from becoming links.
            '@' | '#' => {
                safe.push(character);
                safe.push_str("&#8203;");
            }
            '\\' | '`' | '*' | '_' | '{' | '}' | '[' | ']' | '|' | '!' | '~' | '$' => {
                safe.push('\\');
                safe.push(character);
            }
            other => safe.push(other),
        }
    }
    safe.replace("://", ":&#8203;//").replace("www.", "www&#8203;.")
}

/// A short name as code: in it nothing is a link or a mention.
fn code(text: &str) -> String {
    let plain: String = visible(&clip(text, MAX_TEXT_CHARS))
        .chars()
        .map(|character| match character {
            '`' => '\'',
            '|' => '¦',
            '\n' | '\t' => ' ',
            other => other,
        })
        .collect();
    format!("`{}`", plain.replace("<!--", "<! --"))
}

/// A fenced block that its content cannot close; a comment's start is broken so that it cannot be taken for the marker.
fn fenced(text: &str) -> String {
    let text = visible(&clip(text, MAX_TEXT_CHARS)).replace("<!--", "<! --");
    let longest = text.split(|character| character != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    format!("{fence}text\n{text}\n{fence}\n")
}

fn ruling(ruling: Ruling) -> String {
    let mark = figures::mark(ruling);
    format!("{} {}", mark.symbol, mark.word)
}

fn head(input: &ReportInput) -> String {
    let mut text = format!(
        "## {}\n\n**{}**\n\n{}\n\n| Candidate | Verdict | |\n| --- | --- | --- |\n",
        inline(input.title),
        ruling(input.verdict.ruling),
        inline(&input.verdict.sentence)
    );
    for arm in &input.verdict.arms {
        let reasons = arm.invalid.iter().map(|reason| format!(" {}", inline(reason))).collect::<String>();
        text += &format!("| {} | {} | {}{reasons} |\n", code(&arm.arm), ruling(arm.ruling), inline(&arm.sentence));
    }
    if let Some(accepted) = &input.comparison.baseline.accepted {
        text += &format!("\nNot all of this is of this run: {}.\n", inline(&accepted.to_string()));
    }
    text
}

/// Per bin, each candidate's worst judged cell.
fn bins(input: &ReportInput) -> String {
    let worst = |arm: &ArmVerdict, bin: Bin| -> String {
        let cells = arm.cells.iter().filter(|cell| cell.bin == bin);
        let first = cells.min_by(|a, b| {
            let drop = |cell: &CellVerdict| cell.delta.delta.unwrap_or(f64::INFINITY);
            b.ruling.cmp(&a.ruling).then(drop(a).total_cmp(&drop(b)))
        });
        first.map_or_else(
            || figures::UNKNOWN.to_owned(),
            |cell| {
                let symbol = figures::mark(cell.ruling).symbol;
                format!("{symbol} {} {}", figures::points(cell.delta.delta), cell.group.name())
            },
        )
    };
    let arms = &input.verdict.arms;
    let mut text = "### Per bin: the worst task group, in points\n\n| Bin |".to_owned();
    text.extend(arms.iter().map(|arm| format!(" {} |", code(&arm.arm))));
    text.push_str(&format!("\n| --- |{}\n", " --- |".repeat(arms.len())));
    for bin in &input.comparison.bins {
        text += &format!("| {bin} |");
        text.extend(arms.iter().map(|arm| format!(" {} |", worst(arm, *bin))));
        text.push('\n');
    }
    text
}

fn worst(input: &ReportInput) -> String {
    let cells = input.verdict.arms.iter().flat_map(|arm| arm.cells.iter().map(move |cell| (arm, cell)));
    let mut drops: Vec<_> = cells
        .filter_map(|(arm, cell)| cell.delta.delta.map(|delta| (delta, arm, cell)))
        .filter(|(d, ..)| *d < 0.0)
        .collect();
    drops.sort_by(|a, b| b.2.ruling.cmp(&a.2.ruling).then(a.0.total_cmp(&b.0)));
    drops.truncate(MAX_WORST_CELLS);
    if drops.is_empty() {
        return String::new();
    }
    let mut text = "### Largest drops\n\n| Candidate | Bin | Group | Baseline | Candidate | Δ points | 95 % interval | Pairs | p | Verdict |\n\
                    | --- | --- | --- | ---: | ---: | ---: | --- | ---: | ---: | --- |\n"
        .to_owned();
    for (delta, arm, cell) in drops {
        let share = |right: u64| figures::percent(figures::share(right, cell.delta.pairs));
        text += &format!(
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
            code(&arm.arm),
            cell.bin,
            cell.group.name(),
            share(cell.delta.baseline_right),
            share(cell.delta.candidate_right),
            figures::points(Some(delta)),
            figures::interval_points(cell.delta.interval),
            pairs(cell),
            figures::p_value(cell.adjusted_p).replace('<', "&lt;"),
            ruling(cell.ruling)
        );
    }
    text
}

/// `54`, or `54 (6 not scored)`.
fn pairs(cell: &CellVerdict) -> String {
    match cell.delta.not_scored() {
        0 => cell.delta.pairs.to_string(),
        more => format!("{} ({more} not scored)", cell.delta.pairs),
    }
}

fn averages(input: &ReportInput) -> String {
    let row = |arm: &ArmComparison| {
        let pooled = arm.pooled.as_ref().and_then(|pooled| pooled.delta);
        let slope = arm.slope.as_ref().map(|slope| slope.per_doubling);
        format!("| {} | {} | {} |\n", code(&arm.summary.arm.name), figures::points(pooled), figures::points(slope))
    };
    let rows: String = input.comparison.candidates.iter().map(row).collect();
    if rows.is_empty() {
        return rows;
    }
    format!(
        "### What the average hides\n\n| Candidate | Mean over all lengths, points (never judged) | Per doubling of the length |\n\
         | --- | ---: | ---: |\n{rows}"
    )
}

fn symptoms(input: &ReportInput) -> String {
    let mut rows = String::new();
    for arm in &input.verdict.arms {
        for judged in arm.symptoms.iter().filter(|judged| judged.regressed) {
            let rate = &judged.symptom;
            rows += &format!(
                "| {} | {} | {} | {} → {} of {} |\n",
                code(&arm.arm),
                rate.bin,
                rate.kind.name(),
                rate.baseline,
                rate.candidate,
                rate.pairs
            );
        }
    }
    if rows.is_empty() {
        return rows;
    }
    format!("### Symptoms that rose\n\n| Candidate | Bin | Symptom | Answers |\n| --- | --- | --- | --- |\n{rows}")
}

fn in_effect(input: &ReportInput) -> String {
    let unknown = || "? unknown".to_owned();
    let known = |value: &Option<String>| value.as_deref().map_or_else(unknown, code);
    let comparison = input.comparison;
    let compared = comparison.control.iter().chain(&comparison.candidates).map(|arm| &arm.summary);
    let mut text =
        "### Requested against in effect\n\n| Arm | KV dtype asked | in effect | Backend asked | in effect |\n\
                    | --- | --- | --- | --- | --- |\n"
            .to_owned();
    for arm in std::iter::once(&comparison.baseline).chain(compared) {
        text += &format!(
            "| {} | {} | {} | {} | {} |\n",
            code(&arm.arm.name),
            code(&arm.arm.kv_cache_dtype),
            known(&arm.resolved.kv_cache_dtype.value),
            code(arm.arm.attention_backend.as_deref().unwrap_or("auto")),
            known(&arm.resolved.attention_backend.value)
        );
    }
    for arm in comparison.control.iter().chain(&comparison.candidates) {
        if let Some(why) = &arm.confounded {
            text += &format!("\n**! Confounded:** {}: {}\n", code(&arm.summary.arm.name), inline(why));
        }
    }
    text
}

fn examples(input: &ReportInput) -> String {
    let mut text = String::new();
    let regressions = |arm: &ArmComparison| -> Vec<Flip> {
        arm.flips.iter().filter(|flip| flip.direction == FlipDirection::Regression).cloned().collect()
    };
    let mut shown = 0;
    let mut total = 0;
    for arm in &input.comparison.candidates {
        let flips = regressions(arm);
        total += flips.len();
        for flip in flips.iter().take(2) {
            if shown < MAX_EXAMPLES {
                text += &example(&arm.summary.arm.name, flip);
                shown += 1;
            }
        }
    }
    if text.is_empty() {
        return text;
    }
    format!("### Answers that changed: {shown} of {total} from right to wrong\n\n{text}")
}

fn example(arm: &str, flip: &Flip) -> String {
    let group = TaskGroup::of_task(&flip.task).name();
    format!(
        "<details><summary>{} · {} · {} ({group}) · {}</summary>\n\nBaseline:\n\n{}\nCandidate:\n\n{}\n</details>\n\n",
        inline(arm),
        flip.bin,
        inline(&flip.task),
        inline(&flip.cause),
        fenced(&flip.baseline_text),
        fenced(&flip.candidate_text)
    )
}

fn reproduce(input: &ReportInput) -> String {
    format!("### Make it again\n\n{}", fenced(input.reproduce))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_others_cannot_mention_link_or_break_a_table() {
        let safe = inline("@team see #12 | <!-- kvgauge-report --> ![x](https://b.example) `a`\nnext");
        assert!(
            !safe.contains("@team") && !safe.contains("#12") && !safe.contains("<!--") && !safe.contains("https://")
        );
        assert!(safe.contains("\\|") && !safe.contains('\n'));
    }

    #[test]
    fn no_text_closes_its_fence_or_starts_a_comment() {
        let block = fenced("```\n````` <!-- kvgauge-report -->");
        let fence = block.split("text").next().unwrap();
        assert_eq!(fence, "``````");
        assert_eq!(block.matches(fence).count(), 2);
        assert!(!block.contains("<!--"));
    }

    #[test]
    fn sections_are_left_out_whole() {
        let small = "### A\n".to_owned();
        let text = assemble(&[small.clone(), "x".repeat(MARKDOWN_MAX_CHARS), small]);
        assert!(text.starts_with(MARKER) && text.chars().count() <= MARKDOWN_MAX_CHARS);
        assert_eq!(text.matches("### A").count(), 2);
        assert!(text.contains("1 section did not fit"));
    }
}
