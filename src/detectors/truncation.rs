//! Outputs that stop before their end.
//!
//! The limit of tokens is no evidence: servers report it after complete answers, and report `stop` after broken ones.
//! Evidence is the text: nothing at all, the expected answer broken off, fewer items than asked, far shorter than expected,
//! something left open, prose that ends in mid-sentence. A short right answer is right.

use crate::detectors::Context;
use crate::detectors::content::{content_of, share_in};
use crate::detectors::form::is_json;
use crate::detectors::reading::{Reading, Reference};
use crate::detectors::tokens::{Kind, Token, tokens};
use crate::detectors::tongue::function_word;
use crate::sample::{Finding, FindingKind};

/// From this many tokens on an expected answer can be broken off …
const MIN_BROKEN_TOKENS: usize = 4;
/// … and from this many on an output of less than half of it is far shorter.
const MIN_LONG_TOKENS: usize = 8;
/// Without an expected answer the baseline's output stands for it, which is weaker: other words may be as good.
const MIN_LONG_BASELINE_TOKENS: usize = 20;
/// From this many items on a missing end counts.
const MIN_ITEMS: usize = 3;
/// At most this share of the items may be there.
const MAX_ITEM_SHARE: f64 = 0.8;
/// Words (ideographs) that the last line needs to be prose.
const MIN_PROSE_WORDS: usize = 8;
/// Fewer are enough where the last one asks for another.
const MIN_JOINT_WORDS: usize = 5;
const MIN_PROSE_IDEOGRAPHS: usize = 16;
/// Brackets open at once; more are a loop of openers, and the count says nothing new.
const MAX_OPEN: usize = 1024;
/// Only this much of the end is read for its form: 128K tokens of any language take less than 2 MiB.
const MAX_READ_BYTES: usize = 4 << 20;

pub(super) fn detect(reading: &Reading<'_>) -> Option<Finding> {
    let context = reading.context;
    if context.is_as_expected() {
        return None;
    }
    let text = context.output.trim_end();
    if text.is_empty() {
        return Some(finding(1.0, 0, context.output.len(), "nothing was answered".into()));
    }
    if context.expected.iter().any(|expected| starts_with_answer(text, expected)) {
        return None;
    }
    let mut held = reading.measures().iter().map(|measure| against_reference(reading, text, measure));
    let by_reference = held.next().flatten().filter(|_| held.all(|found| found.is_some()));
    by_reference.or_else(|| left_open(reading, text)).or_else(|| in_mid_sentence(context, text))
}

fn finding(severity: f64, start: usize, end: usize, evidence: String) -> Finding {
    Finding { kind: FindingKind::Truncation, severity, start, end, evidence }
}

/// The expected answer stands at the start, whole: what comes after it is not its end.
fn starts_with_answer(text: &str, expected: &str) -> bool {
    let expected = expected.trim();
    let rest = text.trim_start().strip_prefix(expected).filter(|_| !expected.is_empty());
    rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric()))
}

fn against_reference(reading: &Reading<'_>, text: &str, measure: &Reference<'_>) -> Option<Finding> {
    let reference = measure.text.trim();
    if text.len() > reference.len().saturating_mul(2) {
        return None;
    }
    let (given, wanted) = (tokens(text), tokens(reference));
    let last = given.last().map_or(0, |token| token.start);
    let missing = 1.0 - given.len() as f64 / wanted.len().max(1) as f64;
    let says = |severity: f64, evidence| Some(finding(severity.clamp(0.0, 1.0), last, text.len(), evidence));
    if is_broken_off(text, &given, reference, &wanted) {
        return says(missing, format!("breaks off after {} of {} tokens", given.len(), wanted.len()));
    }
    if is_cut_value(text.trim_start(), reference) {
        return says(1.0 - text.len() as f64 / reference.len() as f64, "breaks off inside a value".into());
    }
    if let Some((there, asked)) = items_missing_at_end(text, reference) {
        let share = there as f64 / asked as f64;
        return says(1.0 - share, format!("ends after {there} of {asked} items"));
    }
    let has_expected = !reading.context.expected.is_empty();
    let long = if has_expected { MIN_LONG_TOKENS } else { MIN_LONG_BASELINE_TOKENS };
    if wanted.len() >= long && given.len() * 2 < wanted.len() && is_about(text, &given, reference, &wanted) {
        let whose = if has_expected { "expected" } else { "the baseline's" };
        return says(missing, format!("{} tokens, {whose} are {}", given.len(), wanted.len()));
    }
    None
}

/// A few words of anything, or a text on the same subject and, where that is data, in its form: prose about something else is
/// another answer, not a short one.
fn is_about(text: &str, given: &[Token], reference: &str, wanted: &[Token]) -> bool {
    const MIN_SHARED: f64 = 0.3;
    if given.len() <= 4 {
        return true;
    }
    let is_data = |text: &str| text.trim_start().starts_with(['{', '[']);
    let shared = share_in(&content_of(text, given), &content_of(reference, wanted));
    shared >= MIN_SHARED && is_data(text) == is_data(reference)
}

/// One value that ends before the expected one does, inside a word or number.
fn is_cut_value(text: &str, reference: &str) -> bool {
    const MIN_CHARS: usize = 2;
    let rest = reference.strip_prefix(text).unwrap_or_default();
    text.chars().count() >= MIN_CHARS
        && !reference.contains(char::is_whitespace)
        && rest.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric())
}

/// The output is a start of the reference; its last word may be cut.
fn is_broken_off(text: &str, given: &[Token], reference: &str, wanted: &[Token]) -> bool {
    let Some((last, before)) = given.split_last() else { return false };
    let least_missing = if wanted.len() < MIN_LONG_TOKENS { 1 } else { 2 };
    wanted.len() >= MIN_BROKEN_TOKENS
        && given.len() + least_missing <= wanted.len()
        && before.iter().zip(wanted).all(|(a, b)| a.hash == b.hash)
        && wanted[before.len()].text(reference).starts_with(last.text(text))
}

/// Items there and items asked, when the last ones are missing: elements of a JSON array, or lines.
fn items_missing_at_end(text: &str, reference: &str) -> Option<(usize, usize)> {
    let array = |text: &str| serde_json::from_str::<Vec<serde_json::Value>>(text.trim()).ok();
    let (there, asked, has_last) = match (array(text), array(reference)) {
        (Some(given), Some(wanted)) => {
            (given.len(), wanted.len(), wanted.last().is_some_and(|last| given.contains(last)))
        }
        (None, None) => {
            let wanted: Vec<&str> = lines(reference).collect();
            let given: Vec<&str> = lines(text).collect();
            let known = given.iter().filter(|line| wanted.contains(line)).count();
            // Other lines than those asked for: not a start of the list but another answer.
            if (known as f64) < given.len() as f64 * MAX_ITEM_SHARE {
                return None;
            }
            (known, wanted.len(), wanted.last().is_some_and(|last| given.contains(last)))
        }
        _ => return None,
    };
    (asked >= MIN_ITEMS && !has_last && there as f64 <= asked as f64 * MAX_ITEM_SHARE).then_some((there, asked))
}

fn lines(text: &str) -> impl Iterator<Item = &str> {
    // More lines than any list has; the comparison is quadratic.
    const MAX_LINES: usize = 2048;
    text.lines().map(str::trim).filter(|line| !line.is_empty()).take(MAX_LINES)
}

/// Something opened and not closed, which the reference closes.
fn left_open(reading: &Reading<'_>, text: &str) -> Option<Finding> {
    // Most texts open nothing.
    if reading.from == 0 && !reading.bytes().has_any(&OPENERS) {
        return None;
    }
    let context = reading.context;
    let from = text.ceil_char_boundary(text.len().saturating_sub(MAX_READ_BYTES));
    // A part of a text may begin inside a string or fence: then only its end can be judged, as prose is.
    let open = if from == 0 { first_open(text)? } else { return None };
    if context.references().any(|reference| first_open(reference).is_some()) {
        return None;
    }
    let share = (text.len() - open.at) as f64 / text.len() as f64;
    let evidence = format!("`{}` at byte {} is never closed", open.what, open.at);
    Some(finding(share.clamp(0.0, 1.0), open.at, text.len(), evidence))
}

struct Open {
    what: &'static str,
    at: usize,
}

fn first_open(text: &str) -> Option<Open> {
    let start = text.len() - text.trim_start().len();
    if text[start..].starts_with(['{', '[']) {
        open_in_json(text).or_else(|| open_row(text))
    } else {
        open_fence(text).or_else(|| open_in_prose(text))
    }
}

/// Brackets and strings of a text that begins like JSON.
fn open_in_json(text: &str) -> Option<Open> {
    let mut open: Vec<Open> = Vec::new();
    let mut string = None;
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if std::mem::take(&mut escaped) => {}
            b'\\' => escaped = string.is_some(),
            b'"' => string = if string.is_some() { None } else { Some(at) },
            _ if string.is_some() => {}
            b'[' if open.len() < MAX_OPEN => open.push(Open { what: "[", at }),
            b'{' if open.len() < MAX_OPEN => open.push(Open { what: "{", at }),
            b']' | b'}' => drop(open.pop()),
            _ => {}
        }
        // The first value is whole; prose after it has its own rules.
        if open.is_empty() && matches!(byte, b']' | b'}') && string.is_none() {
            return None;
        }
    }
    open.into_iter().next().or_else(|| string.map(|at| Open { what: "\"", at }))
}

/// The last of several lines of JSON, cut.
fn open_row(text: &str) -> Option<Open> {
    const MIN_WHOLE: usize = 2;
    let at = text.rfind('\n')? + 1;
    let mut before = lines(&text[..at]);
    let is_whole = |line: &str| line.starts_with(['{', '[']) && is_json(line);
    if before.by_ref().take(MIN_WHOLE).filter(|line| is_whole(line)).count() < MIN_WHOLE || !before.all(is_whole) {
        return None;
    }
    let row = text[at..].trim();
    if !row.starts_with(['{', '[']) || is_json(row) {
        return None;
    }
    open_in_json(row).map(|open| Open { at: at + open.at, ..open })
}

fn open_fence(text: &str) -> Option<Open> {
    if !text.contains("```") {
        return None;
    }
    let mut open = None;
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if line.trim_start().starts_with("```") && !line.trim()[3..].contains("```") {
            open = match open {
                None => Some(Open { what: "```", at: at + line.len() - line.trim_start().len() }),
                Some(_) => None,
            };
        }
        at += line.len();
    }
    open
}

const PAIRS: [(char, char, &str); 11] = [
    ('(', ')', "("),
    ('[', ']', "["),
    ('{', '}', "{"),
    ('“', '”', "“"),
    ('（', '）', "（"),
    ('【', '】', "【"),
    ('「', '」', "「"),
    ('『', '』', "『"),
    ('《', '》', "《"),
    ('〈', '〉', "〈"),
    ('«', '»', "«"),
];

/// Bytes with which the marks begin that can be left open: those of [`PAIRS`], a straight quotation mark, a fence.
const OPENERS: [u8; 9] = [b'(', b'[', b'{', b'"', b'`', 0xc2, 0xe2, 0xe3, 0xef];

/// Bytes that [`open_in_prose`] has to look at: the first ones of marks.
static MARKS: [bool; 256] = {
    let mut marks = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        let lead = byte as u8;
        let is_mark = lead.is_ascii() && !lead.is_ascii_alphanumeric() && lead != b' ';
        marks[byte] = is_mark || matches!(lead, 0xc2 | 0xe2 | 0xe3 | 0xef);
        byte += 1;
    }
    marks
};

/// The last bracket or quotation mark left open within the last paragraph. Closing marks without an opening one are list
/// markers; an interval closes with either kind; faces are no brackets.
fn open_in_prose(text: &str) -> Option<Open> {
    let from = last_paragraph(text);
    let mut open: Vec<Open> = Vec::new();
    let mut straight_quote = None;
    let bytes = text.as_bytes();
    let mut next = from;
    while next < bytes.len() {
        let at = next;
        if !MARKS[usize::from(bytes[at])] {
            next += 1;
            continue;
        }
        let c = text[at..].chars().next().expect("marks are first bytes");
        next += c.len_utf8();
        // A byte inside a character is none of the marks and digits asked about.
        let before = if at > from { char::from(bytes[at - 1]) } else { ' ' };
        let is_face = c == '(' && matches!(before, ':' | ';' | '-');
        if let Some((_, _, what)) = PAIRS.iter().find(|(opener, _, _)| *opener == c && !is_face) {
            if open.len() < MAX_OPEN {
                open.push(Open { what, at });
            }
        } else if PAIRS.iter().any(|(_, closer, _)| *closer == c) {
            let like = |what: &str| match c {
                ')' | ']' => matches!(what, "(" | "["),
                _ => PAIRS.iter().any(|(_, closer, opener)| *closer == c && *opener == what),
            };
            if let Some(found) = open.iter().rposition(|open| like(open.what)) {
                open.truncate(found);
            }
        } else if c == '"' && !before.is_ascii_digit() {
            straight_quote = if straight_quote.is_some() { None } else { Some(at) };
        } else if c == '"' && straight_quote.is_some() {
            straight_quote = None;
        }
    }
    // A straight mark may stand for inches or be a slip; it counts only where the text does not end like a sentence.
    let quote = straight_quote.filter(|_| !ends_sentence(text)).map(|at| Open { what: "\"", at });
    open.pop().or(quote)
}

/// Where the last paragraph begins.
fn last_paragraph(text: &str) -> usize {
    let mut end = text.len();
    while let Some(at) = text[..end].rfind('\n') {
        if text[..at].ends_with('\n') {
            return at + 1;
        }
        end = at;
    }
    0
}

fn ends_sentence(text: &str) -> bool {
    const MARKS: &str = ".!?。！？…:：;；)]}）】」』》”’\"'`*»~";
    text.trim_end().ends_with(|c| MARKS.contains(c))
}

/// Prose whose last line ends in a word or a comma, where the sentences before it end as sentences do.
fn in_mid_sentence(context: &Context<'_>, text: &str) -> Option<Finding> {
    let has_expected = !context.expected.is_empty();
    let is_as_whole =
        |reference: &str| (has_expected && text.len() >= reference.trim().len()) || !ends_sentence(reference);
    // A last word that asks for another one is no end of anything, unless that was expected.
    let is_joint = stops_on_joint(text.lines().next_back().unwrap_or_default());
    let says_so = |reference: &str| stops_on_joint(reference.trim_end());
    if context.measures().any(|reference| if is_joint { says_so(reference) } else { is_as_whole(reference) }) {
        return None;
    }
    // Lists of function words are about grammar.
    let is_content = |token: &&Token| token.is_wordlike() && function_word(token) == 0;
    if is_joint && tokens(text).iter().filter(is_content).take(3).count() < 3 {
        return None;
    }
    // All of it is there: in another order, which is another fault.
    let has_all = |reference: &str| {
        text.len() * 10 >= reference.trim().len() * 9
            && share_in(&content_of(reference, &tokens(reference)), &content_of(text, &tokens(text))) >= 0.8
    };
    if is_joint && context.expected.iter().any(|expected| has_all(expected)) {
        return None;
    }
    let from = text.rfind('\n').map_or(0, |at| at + 1);
    let line = &text[text.ceil_char_boundary(from.max(text.len().saturating_sub(MAX_READ_BYTES)))..];
    if ends_sentence(line) {
        return None;
    }
    let stops_on_comma = line.ends_with([',', '，', '、', '-', '–', '—']);
    let stops_on_word = line.ends_with(char::is_alphanumeric);
    let earlier = || text.matches(['.', '!', '?', '。', '！', '？']).take(2).count();
    let is_proven = || context.hit_limit() || stops_on_joint(line) || earlier() >= 2;
    if !(stops_on_comma || (stops_on_word && is_proven())) {
        return None;
    }
    if !is_prose(line, if is_joint { MIN_JOINT_WORDS } else { MIN_PROSE_WORDS }) {
        return None;
    }
    let sentence = line.rfind(['.', '!', '?', '。', '！', '？']).map_or(0, |at| line.ceil_char_boundary(at + 1));
    let start = text.len() - line[sentence..].trim_start().len();
    let tail: String = line.chars().rev().take(24).collect::<Vec<_>>().into_iter().rev().collect();
    Some(finding(0.5, start, text.len(), format!("ends in mid-sentence: `…{tail}`")))
}

/// The last word asks for another one.
fn stops_on_joint(line: &str) -> bool {
    const JOINTS: &str = " the a an of and or to with in for by from that which is was were are his her their its at on as than \
        but because into about le la les des du et der die das und mit el los de y que ";
    const MAX_JOINT_BYTES: usize = 7;
    // Names and titles end so, a sentence does not.
    if line.trim_end().ends_with(char::is_uppercase) {
        return false;
    }
    let last = line.split_whitespace().next_back().unwrap_or_default();
    // A word of these is short.
    let is_joint = last.len() <= MAX_JOINT_BYTES && JOINTS.contains(&format!(" {last} "));
    is_joint || line.ends_with(['的', '和', '在', '是', '把', '与', '对', '为'])
}

/// Not a list item, table row, heading, quotation or line of code.
fn is_prose(line: &str, least_words: usize) -> bool {
    let trimmed = line.trim_start();
    if line.len() - trimmed.len() >= 4
        || trimmed.starts_with(['-', '*', '•', '|', '#', '>', '+', '{', '['])
        || trimmed.trim_start_matches(|c: char| c.is_ascii_digit()).starts_with(['.', ')', '|', ',', '='])
        || trimmed.contains(['|', '\t', '=', '{', '}'])
    {
        return false;
    }
    let found = tokens(trimmed);
    let count = |kind| found.iter().filter(|token| token.kind == kind).count();
    let words = count(Kind::Word);
    let others = found.len() - words - count(Kind::Ideograph);
    (words >= least_words || count(Kind::Ideograph) >= MIN_PROSE_IDEOGRAPHS) && others * 2 < found.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::FinishReason;

    fn detect(context: &Context<'_>) -> Option<Finding> {
        super::detect(&Reading::of(context))
    }

    fn found(output: &str) -> Option<Finding> {
        detect(&Context::of(output))
    }

    fn against(output: &str, expected: &str) -> Option<Finding> {
        detect(&Context { expected: &[expected], ..Context::of(output) })
    }

    const CODES: &str = "K7-AMBER\nQ2-BIRCH\nZ9-CORAL\nB4-DELTA\nM1-EMBER\nX5-FJORD";

    #[test]
    fn what_stops_before_the_expected_end_is_found() {
        let passage = "The ferry left the north pier at 06:40 with 118 crates of glass and came back empty.";
        let rows = r#"[{"n":1},{"n":2},{"n":3},{"n":4},{"n":5}]"#;
        let cases = [
            ("", "4829173", "nothing was answered"),
            ("K7-AMBER\nQ2-BIRCH\nZ9-CORAL\nB4-DELTA", CODES, "breaks off after 16 of 24 tokens"),
            ("K7-AMBER\nZ9-CORAL\nB4-DELTA", CODES, "ends after 3 of 6 items"),
            (&passage[..50], passage, "breaks off after 13 of 20 tokens"),
            ("I cannot say.", passage, "4 tokens, expected are 20"),
            (r#"[{"n":1},{"n":2},{"n":3}]"#, rows, "ends after 3 of 5 items"),
        ];
        for (output, expected, evidence) in cases {
            assert_eq!(
                against(output, expected).map(|finding| finding.evidence).as_deref(),
                Some(evidence),
                "{output}"
            );
        }
    }

    #[test]
    fn what_is_left_open_is_found() {
        let outputs = [
            r#"[{"n":1},{"n":2"#,
            r#"{"name":"Il"#,
            "Here it is:\n```json\n[1, 2]\n",
            "The harbour (built in the last century by the",
            "他说：“港口很早就关了",
            "The clerk said \"we close at",
        ];
        for output in outputs {
            let finding = found(output).unwrap_or_else(|| panic!("{output}"));
            assert!(finding.evidence.contains("never closed"), "{output}: {finding:?}");
        }
    }

    #[test]
    fn prose_that_ends_in_mid_sentence_is_found() {
        let prose = "The office closed early. Two clerks kept the ledger. On the third day the harbour master came and";
        assert!(found(prose).unwrap().evidence.ends_with("harbour master came and`"));
        assert!(found("On the third day the harbour master came and asked for the ledger,").is_some());
        let one = "On the third day the harbour master came and asked";
        assert_eq!(found(one), None, "a title may look like this");
        assert!(detect(&Context { finish_reason: FinishReason::Length, ..Context::of(one) }).is_some());
        assert!(found("港口很早就关门了。两名职员轮流记帐。第三天港务长来到办公室里想要看一看那本旧").is_some());
    }

    #[test]
    fn whole_outputs_are_left_alone() {
        let outputs = [
            "7",
            "Tomo",
            "The office closed early. Two clerks kept the ledger.",
            r#"[{"n":1,"s":"a [ \" ("}]"#,
            "```json\n[1]\n```",
            "1) first\n2) second\n3) third and last of all the things that were asked for here",
            "- one\n- two",
            "| a | b |\n| - | - |\n| 1 | 2 |",
            "The interval [0, 1) is half open. Nice :( but true.",
            "A 5\" pipe is 12.7 cm wide.",
            "Best regards,\nJohn",
            "fn main() {\n    run();\n}",
            "港口很早就关门了。两名职员轮流记帐。",
            "K7-AMBER\nQ2-BIRCH",
        ];
        for output in outputs {
            for finish_reason in [FinishReason::Stop, FinishReason::Length, FinishReason::Unknown] {
                let context = Context { finish_reason, ..Context::of(output) };
                assert_eq!(detect(&context), None, "{output}");
            }
        }
    }

    #[test]
    fn the_limit_is_no_evidence_after_a_right_answer() {
        let context = Context {
            expected: &["4829173"],
            finish_reason: FinishReason::Length,
            output_tokens: Some(32),
            max_output_tokens: Some(32),
            ..Context::of("4829173\n\nThe text goes on to say that the harbour (which was")
        };
        assert_eq!(detect(&context), None);
        assert_eq!(against("4829174", "4829173"), None, "a wrong short answer is not cut");
        assert_eq!(against("K7-AMBER\nQ2-BIRCH\nZ9-CORAL\nB4-DELTA\nX5-FJORD", CODES), None, "a hole is not the end");
    }

    #[test]
    fn the_baseline_stands_for_a_missing_expectation() {
        let baseline = "The office closed early. Two clerks kept the ledger. The harbour master came and asked for it, and got it.";
        let short = Context { baseline: Some(baseline), ..Context::of("The office did close.") };
        assert!(detect(&short).unwrap().evidence.contains("the baseline's are"));
        let other = "Two clerks kept the ledger because the office closed early; the master asked for it and got it.";
        assert_eq!(detect(&Context { baseline: Some(baseline), ..Context::of(other) }), None);
    }
}
