//! Lines under rules of form: what they say, and for every rule and every line whether it is kept.
//!
//! A line is recognised by what it says, whatever its form, so that a broken rule is not a wrong value as well. A line too
//! much breaks the rule that counts lines; a missing one is only missing. Text that is no line of the answer is `ExtraText`
//! and not held against the rules.
//!
//! `value = lines that say the right thing in the right order / (lines asked for + lines too much) × mean over the rules of
//! the share of lines that keep them`, times 0.9 with text around. The note on a broken rule has the drift curve: the share
//! of lines in each quarter of the answer that keep every rule.

use crate::sample::{Completion, Fault, FaultKind, FormatRule, Gold, Item, Score};
use crate::scorers::answer_text::{content_lines, longest_increasing};
use crate::scorers::{empty, fault, right, seen, wrong};

/// Text around the lines costs this much.
const EXTRA_TEXT_FACTOR: f64 = 0.9;

/// Lines that are read: sixteen times those of the largest task; a loop's further lines are only counted.
const MAX_LINES: usize = 4096;

/// Parts of the answer in the drift curve.
const QUARTERS: usize = 4;

pub(super) fn score(item: &Item, completion: &Completion) -> Score {
    let text = completion.text.trim();
    if text == item.expected.answer.trim() {
        return right(text);
    }
    if text.is_empty() {
        return empty();
    }
    let (values, rules) = match &item.expected.gold {
        Gold::Rules { values, rules } => (values.clone(), rules.clone()),
        _ => (content_lines(&item.expected.answer).map(str::to_owned).collect(), Vec::new()),
    };
    let answer = Answer::read(text, &values, &rules);
    let verdicts: Vec<Verdict> = rules.iter().map(|rule| answer.verdict(rule, values.len())).collect();
    let faults = answer.faults(&values, &rules, &verdicts);
    if faults.is_empty() {
        return right(text);
    }
    let kept = verdicts.iter().map(|verdict| verdict.share).sum::<f64>() / verdicts.len().max(1) as f64;
    let kept = if verdicts.is_empty() { 1.0 } else { kept };
    let said = longest_increasing(&answer.positions()) as f64 / (values.len() + answer.surplus).max(1) as f64;
    let factor = if answer.around.is_some() { EXTRA_TEXT_FACTOR } else { 1.0 };
    wrong(said * kept * factor, text, faults)
}

/// A line of the answer.
struct Line<'a> {
    text: &'a str,
    /// Which value it says; `None` for a wrong one.
    position: Option<usize>,
}

/// What an answer is made of.
struct Answer<'a> {
    /// Lines in the place of one asked for.
    lines: Vec<Line<'a>>,
    /// Lines that say a value again, or too many wrong ones.
    surplus: usize,
    first_surplus: Option<&'a str>,
    /// The first text that is no line of the answer.
    around: Option<&'a str>,
    has_marker: bool,
}

/// Whether a rule is kept.
struct Verdict {
    /// Share of the lines, or 0 and 1 for a rule on the whole.
    share: f64,
    /// Per line; empty for a rule on the whole.
    kept: Vec<bool>,
    /// What breaks it first.
    note: Option<String>,
}

impl<'a> Answer<'a> {
    fn read(text: &'a str, values: &[String], rules: &[FormatRule]) -> Self {
        let marker = rules.iter().find_map(|rule| match rule {
            FormatRule::EndMarker { marker } => Some(marker.as_str()),
            _ => None,
        });
        let wanted: Vec<String> = values.iter().map(|value| core(value)).collect();
        let mut answer = Self { lines: Vec::new(), surplus: 0, first_surplus: None, around: None, has_marker: false };
        let mut all: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        if let Some(marker) = marker
            && all.last() == Some(&marker)
        {
            answer.has_marker = true;
            all.pop();
        }
        let mut said = vec![false; values.len()];
        for (number, line) in all.into_iter().enumerate() {
            if number >= MAX_LINES {
                answer.surplus += 1;
                continue;
            }
            // An end marker of another form or at another place is no line of the answer either.
            if marker.is_some_and(|marker| core(marker) == core(line)) {
                answer.has_marker = false;
                continue;
            }
            answer.take(line, values, &wanted, &mut said, rules);
        }
        // Wrong lines stand for those missing; what is beyond is too much.
        let absent = said.iter().filter(|said| !**said).count();
        let wrong_lines: Vec<usize> =
            (0..answer.lines.len()).filter(|&at| answer.lines[at].position.is_none()).collect();
        for &at in wrong_lines.iter().skip(absent).rev() {
            let line = answer.lines.remove(at);
            answer.surplus += 1;
            answer.first_surplus.get_or_insert(line.text);
        }
        answer
    }

    fn take(&mut self, line: &'a str, values: &[String], wanted: &[String], said: &mut [bool], rules: &[FormatRule]) {
        let core_text = core(line);
        let same = |at: &usize| wanted[*at] == core_text || without_number(&core_text) == wanted[*at];
        let free = (0..wanted.len()).filter(same).find(|at| !said[*at]);
        if let Some(at) = free {
            said[at] = true;
            self.lines.push(Line { text: line, position: Some(at) });
        } else if (0..wanted.len()).any(|at| same(&at)) {
            self.surplus += 1;
            self.first_surplus.get_or_insert(line);
        } else if is_prose(line, values, rules) {
            self.around.get_or_insert(line);
        } else {
            self.lines.push(Line { text: line, position: None });
        }
    }

    /// Places of the values said, in the order of the answer.
    fn positions(&self) -> Vec<usize> {
        self.lines.iter().filter_map(|line| line.position).collect()
    }

    fn verdict(&self, rule: &FormatRule, asked: usize) -> Verdict {
        let of_whole = |is_kept: bool, note: String| Verdict {
            share: f64::from(u8::from(is_kept)),
            kept: Vec::new(),
            note: (!is_kept).then_some(note),
        };
        match rule {
            FormatRule::LineCount { lines } => {
                // Lines that are missing are named as such.
                let given = self.lines.len() + self.surplus;
                let is_kept = given <= (*lines as usize).max(asked);
                of_whole(is_kept, format!("{given} lines instead of {lines}"))
            }
            FormatRule::EndMarker { marker } => {
                of_whole(self.has_marker, format!("the last line is not `{}`", seen(marker)))
            }
            _ => self.by_line(rule),
        }
    }

    fn by_line(&self, rule: &FormatRule) -> Verdict {
        let kept: Vec<bool> = self.lines.iter().enumerate().map(|(number, line)| is_kept(rule, number, line)).collect();
        let count = kept.iter().filter(|kept| **kept).count();
        let note = kept.iter().position(|kept| !kept).map(|first| {
            format!(
                "{} of {} lines, first line {}: {}",
                kept.len() - count,
                kept.len(),
                first + 1,
                seen(self.lines[first].text)
            )
        });
        Verdict { share: if kept.is_empty() { 1.0 } else { count as f64 / kept.len() as f64 }, kept, note }
    }

    /// Share of lines that keep all rules, by quarter of the answer, in percent.
    fn drift(&self, verdicts: &[Verdict]) -> String {
        let is_clean = |line: usize| verdicts.iter().all(|verdict| verdict.kept.get(line).is_none_or(|kept| *kept));
        let lines = self.lines.len();
        let quarter = |part: usize| (part * lines / QUARTERS)..((part + 1) * lines / QUARTERS);
        let shares = (0..QUARTERS).map(quarter).filter(|range| !range.is_empty()).map(|range| {
            let clean = range.clone().filter(|line| is_clean(*line)).count();
            format!("{} %", 100 * clean / range.len())
        });
        shares.collect::<Vec<_>>().join(", ")
    }

    fn faults(&self, values: &[String], rules: &[FormatRule], verdicts: &[Verdict]) -> Vec<Fault> {
        let mut faults = Vec::new();
        let broken: Vec<String> = rules
            .iter()
            .zip(verdicts)
            .filter_map(|(rule, verdict)| Some(format!("{}: {}", name(rule), verdict.note.as_ref()?)))
            .collect();
        let counts_lines = rules.iter().any(|rule| matches!(rule, FormatRule::LineCount { .. }));
        let positions = self.positions();
        let moved = positions.len() - longest_increasing(&positions);
        let wrong_lines: Vec<&Line> = self.lines.iter().filter(|line| line.position.is_none()).collect();
        let absent: Vec<usize> = (0..values.len()).filter(|at| !positions.contains(at)).collect();
        let missing = absent.len().saturating_sub(wrong_lines.len());
        let mut add = |kind, note: Option<String>| faults.extend(note.map(|note| fault(kind, note)));
        add(
            FaultKind::BrokenRule,
            (!broken.is_empty()).then(|| {
                let curve = self.drift(verdicts);
                format!(
                    "{} of {} rules: {}; kept by {curve} of the lines",
                    broken.len(),
                    rules.len(),
                    broken.join("; ")
                )
            }),
        );
        add(
            FaultKind::WrongValue,
            wrong_lines.first().map(|line| format!("{} lines, first: {}", wrong_lines.len(), seen(line.text))),
        );
        add(
            FaultKind::Missing,
            (missing > 0).then(|| format!("{missing} of {}, first {}", values.len(), seen(&values[absent[0]]))),
        );
        add(FaultKind::OutOfOrder, (moved > 0).then(|| format!("{moved} of {} lines moved", positions.len())));
        let surplus = self.first_surplus.filter(|_| !counts_lines);
        add(FaultKind::Extra, surplus.map(|line| format!("{} lines, first: {}", self.surplus, seen(line))));
        add(FaultKind::ExtraText, self.around.map(seen));
        faults
    }
}

fn is_kept(rule: &FormatRule, number: usize, line: &Line<'_>) -> bool {
    let text = line.text;
    match rule {
        FormatRule::LinePrefix { prefix } => text.starts_with(prefix.trim_end()) && starts_with_gap(text, prefix),
        FormatRule::LineSuffix { suffix } => text.ends_with(suffix.trim_end()),
        FormatRule::Numbered { separator } => {
            let digits = text.bytes().take_while(u8::is_ascii_digit).count();
            let given: Option<usize> = text[..digits].parse().ok();
            // After a line that is left out, its number may be left out too or not.
            let is_right = given == Some(number + 1) || given.is_some() && given == line.position.map(|at| at + 1);
            is_right && text[digits..].starts_with(separator.trim_end())
        }
        FormatRule::Banned { character } => !text.contains(*character),
        FormatRule::Capitals { upper: true } => !text.contains(char::is_lowercase),
        FormatRule::Capitals { upper: false } => !text.contains(char::is_uppercase),
        FormatRule::LineCount { .. } | FormatRule::EndMarker { .. } => true,
    }
}

/// A prefix that ends in a space is followed by at least one.
fn starts_with_gap(text: &str, prefix: &str) -> bool {
    let rest = text.strip_prefix(prefix.trim_end()).unwrap_or(text);
    !prefix.ends_with(' ') || rest.is_empty() || rest.starts_with(char::is_whitespace)
}

fn name(rule: &FormatRule) -> String {
    match rule {
        FormatRule::LineCount { .. } => "line count".into(),
        FormatRule::LinePrefix { prefix } => format!("prefix `{}`", prefix.trim_end()),
        FormatRule::LineSuffix { suffix } => format!("suffix `{}`", suffix.trim_end()),
        FormatRule::Numbered { .. } => "numbering".into(),
        FormatRule::Banned { character } => format!("no `{character}`"),
        FormatRule::EndMarker { .. } => "end marker".into(),
        FormatRule::Capitals { upper } => if *upper { "capitals" } else { "small letters" }.into(),
    }
}

/// What a line says, whatever its form: letters and digits, small.
fn core(line: &str) -> String {
    line.chars().filter(|character| character.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// The same without a number at its start.
fn without_number(core: &str) -> &str {
    core.trim_start_matches(|character: char| character.is_ascii_digit())
}

/// A line that does not look like those asked for: an announcement, a fence, or far more words than any of them.
fn is_prose(line: &str, values: &[String], rules: &[FormatRule]) -> bool {
    let words = |line: &str| line.split_whitespace().count();
    let most_words = values.iter().map(|line| words(line)).max().unwrap_or(0);
    let longest = values.iter().map(|line| line.chars().count()).max().unwrap_or(0);
    let ends_in_colon = line.ends_with([':', '：'])
        && !rules.iter().any(|rule| matches!(rule, FormatRule::LineSuffix { suffix } if line.ends_with(suffix)));
    line.starts_with("```")
        || ends_in_colon
        || words(line) > most_words + 3
        || line.chars().count() > 3 * longest.max(8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scorers::tests::{check_table, check_that_every_character_counts, completion, item};

    const ANSWER: &str = "> KETTLE 4821;\n> LAMP 1190;\n> ROPE 7735;\n> DRUM 3046;\nEND";

    fn values() -> Vec<String> {
        ["kettle 4821", "lamp 1190", "rope 7735", "drum 3046"].map(str::to_owned).to_vec()
    }

    fn locked() -> Item {
        let rules = vec![
            FormatRule::LineCount { lines: 4 },
            FormatRule::LinePrefix { prefix: "> ".into() },
            FormatRule::LineSuffix { suffix: ";".into() },
            FormatRule::EndMarker { marker: "END".into() },
            FormatRule::Capitals { upper: true },
            FormatRule::Banned { character: ',' },
        ];
        item("format_rules", ANSWER, Gold::Rules { values: values(), rules })
    }

    fn numbered() -> Item {
        let rules = vec![FormatRule::Numbered { separator: ") ".into() }, FormatRule::Capitals { upper: false }];
        let lines: Vec<String> =
            values().iter().enumerate().map(|(number, value)| format!("{}) {value}", number + 1)).collect();
        item("format_rules", &lines.join("\n"), Gold::Rules { values: values(), rules })
    }

    #[test]
    fn each_broken_rule_is_only_a_broken_rule() {
        use FaultKind::BrokenRule;
        let broken = [
            ANSWER.replace("> ROPE", "ROPE"),
            ANSWER.replace("> ROPE", "- ROPE"),
            ANSWER.replace("> ROPE", ">ROPE"),
            ANSWER.replace("7735;", "7735"),
            ANSWER.replace("ROPE", "rope"),
            ANSWER.replace("7735;", "7735,;"),
            ANSWER.replace("\nEND", ""),
            format!("{ANSWER}."),
            format!("END\n{ANSWER}"),
            ANSWER.replace("7735", ", 7735"),
            ANSWER.replace("> ROPE 7735;", "> ROPE 7735;\n> ROPE 7735;"),
            ANSWER.replace("\nEND", "\n> TENT 9999;\nEND"),
        ];
        for answer in &broken {
            check_table(&locked(), &[(answer, &[BrokenRule])]);
        }
        check_table(
            &numbered(),
            &[
                ("1) kettle 4821\n\n2)  lamp 1190\n3) rope 7735\n4) drum 3046", &[]),
                ("1. kettle 4821\n2. lamp 1190\n3. rope 7735\n4. drum 3046", &[BrokenRule]),
                ("1) kettle 4821\n2) lamp 1190\n4) rope 7735\n5) drum 3046", &[BrokenRule]),
                ("1) kettle 4821\n2) lamp 1190\n3) Rope 7735\n4) drum 3046", &[BrokenRule]),
            ],
        );
    }

    #[test]
    fn each_wrong_answer_gets_its_name() {
        use FaultKind::{Empty, Extra, ExtraText, Missing, OutOfOrder, WrongValue};
        check_table(
            &locked(),
            &[
                ("", &[Empty]),
                (&ANSWER.replace("> ROPE 7735;\n", ""), &[Missing]),
                (&ANSWER.replace("7735", "7753"), &[WrongValue]),
                (
                    &ANSWER.replace("LAMP 1190", "X").replace("ROPE 7735", "LAMP 1190").replace('X', "ROPE 7735"),
                    &[OutOfOrder],
                ),
                (&format!("Here they are:\n{ANSWER}"), &[ExtraText]),
                (&format!("```\n{ANSWER}\n```").replace("\nEND", ""), &[FaultKind::BrokenRule, ExtraText]),
            ],
        );
        let text = numbered().expected.answer;
        check_table(
            &numbered(),
            &[
                (&text.replace("3) rope 7735\n4)", "3)"), &[Missing]),
                (&text.replace("3) rope 7735\n", ""), &[Missing]),
                (&format!("{text}\n5) tent 9999"), &[Extra]),
            ],
        );
    }

    #[test]
    fn the_note_has_the_drift_curve_and_the_first_line() {
        let drifted = ANSWER.replace("ROPE", "rope").replace("DRUM", "drum");
        let found = score(&locked(), &completion(&drifted));
        assert_eq!(
            found.faults[0].note,
            "1 of 6 rules: capitals: 2 of 4 lines, first line 3: > rope 7735;; kept by 100 %, 100 %, 0 %, 0 % of the lines"
        );
        assert!((found.value - 11.0 / 12.0).abs() < 1e-12);
        let loops = score(&locked(), &completion(&"> KETTLE 4821;\n".repeat(50_000)));
        assert!(loops.value < 0.001);
    }

    #[test]
    fn every_character_of_the_answer_counts() {
        check_that_every_character_counts(&locked());
        check_that_every_character_counts(&numbered());
    }
}
