//! The expected items in another order.
//!
//! Items are the lines, the elements of a JSON array, the parts of a comma list, the sentences or the words of the expected
//! answer. One exchange in fourteen items leaves Kendall's τ at 0.98, so any inversion counts where the order is known; τ is
//! the severity only. Items that are missing or added are other faults.
//!
//! Without a known order, lines that number themselves tell it.

use std::collections::{HashMap, HashSet, VecDeque};

use serde_json::Value;

use crate::detectors::form::lines;
use crate::detectors::reading::{Reading, Reference};
use crate::detectors::tokens::{Kind, Token};
use crate::detectors::tongue::{function_word, sentences};
use crate::sample::{Finding, FindingKind};

/// Items that have an order worth the name.
const MIN_ITEMS: usize = 3;
/// Items that must be there: an order of few of them says little.
const MIN_PRESENT: f64 = 0.6;
/// Words in a row are rearranged by any rewording: more of them, and far more out of order.
const MIN_WORDS: usize = 8;
const MAX_WORDS_IN_ORDER: f64 = 0.7;
const MAX_PAIRS_KEPT: f64 = 0.35;
/// Items compared; more of them have shown it.
const MAX_ITEMS: usize = 8192;

/// Tasks whose answers are sets or objects: any order is right.
const WITHOUT_ORDER: &[&str] = &["chain", "tool_call"];

pub(super) fn detect(reading: &Reading<'_>) -> Option<Finding> {
    let context = reading.context;
    if context.is_as_expected() || context.task.is_some_and(|task| WITHOUT_ORDER.contains(&task)) {
        return None;
    }
    let mut orders = reading.measures().iter().map(|measure| against(reading, measure));
    // In order by any measure is in order.
    let by_measure = orders.next().flatten().filter(|_| orders.all(|found| found.is_some()));
    let found = by_measure.or_else(|| numbering(reading))?;
    Some(Finding {
        kind: FindingKind::Scrambled,
        severity: found.severity.clamp(0.01, 1.0),
        start: reading.from + found.start,
        end: reading.from + found.end,
        evidence: found.evidence,
    })
}

struct Disorder {
    severity: f64,
    start: usize,
    end: usize,
    evidence: String,
}

fn against(reading: &Reading<'_>, measure: &Reference<'_>) -> Option<Disorder> {
    let (given, wanted) = (reading.text, measure.text);
    let by_element = array_items(wanted);
    if by_element.len() >= MIN_ITEMS {
        return disorder(&array_items(given), &by_element, "elements");
    }
    let by_line = line_items(wanted);
    if by_line.len() >= MIN_ITEMS {
        return disorder(&line_items(given), &by_line, "lines").or_else(|| mentioned(given, &by_line));
    }
    let by_comma = comma_items(wanted);
    if by_comma.len() >= MIN_ITEMS {
        return disorder(&comma_items(given), &by_comma, "items").or_else(|| mentioned(given, &by_comma));
    }
    if is_word_list(measure) {
        return disorder(&blank_items(given), &blank_items(wanted), "words");
    }
    disorder(&sentence_items(given, reading.tokens()), &sentence_items(wanted, &measure.tokens), "sentences")
        .or_else(|| words(reading, measure))
}

/// An item: what it says, and where.
#[derive(Debug)]
struct Placed {
    item: String,
    start: usize,
    end: usize,
}

/// Elements of an array, or of the only array in an object.
fn array_items(text: &str) -> Vec<Placed> {
    let body = text.trim();
    let body = body.strip_prefix("```json").unwrap_or(body).trim_matches(['`', '\n', ' ']);
    if !body.starts_with(['[', '{']) {
        return Vec::new();
    }
    let values = match serde_json::from_str(body) {
        Ok(Value::Array(values)) => values,
        Ok(Value::Object(fields)) => {
            let array =
                fields.into_iter().find_map(|(_, value)| if let Value::Array(it) = value { Some(it) } else { None });
            array.unwrap_or_default()
        }
        _ => Vec::new(),
    };
    let whole = |value: Value| Placed { item: value.to_string(), start: 0, end: text.len() };
    values.into_iter().take(MAX_ITEMS).map(whole).collect()
}

fn line_items(text: &str) -> Vec<Placed> {
    let placed = |(start, line): (usize, &str)| Placed { item: bare(line), start, end: start + line.len() };
    lines(text).filter(|(_, line)| !line.starts_with("```")).map(placed).filter(|it| !it.item.is_empty()).collect()
}

/// A line without its bullet or number and without marks around it, small. JSON is compared by value.
fn bare(line: &str) -> String {
    if line.starts_with(['{', '['])
        && let Ok(value) = serde_json::from_str::<Value>(line)
    {
        return value.to_string();
    }
    let line = line.trim_start_matches(['-', '*', '•', ' ']);
    let rest = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let digits = line.len() - rest.len();
    let numbered = rest.strip_prefix(['.', ')', '、']).filter(|rest| rest.starts_with(' ') || !rest.is_ascii());
    let line = if (1..=4).contains(&digits) { numbered.unwrap_or(line) } else { line };
    trimmed(line)
}

fn trimmed(item: &str) -> String {
    item.trim_matches(|c: char| c.is_whitespace() || "\"'`.,;*。，；、".contains(c)).to_lowercase()
}

/// Parts of a single line between commas; prose with commas has longer ones.
fn comma_items(text: &str) -> Vec<Placed> {
    const MAX_WORDS: usize = 4;
    let text = text.trim_end();
    if text.trim_start().contains(['\n', '。']) {
        return Vec::new();
    }
    let mut items = Vec::new();
    let mut start = 0;
    for part in text.split([',', '，', '、', ';', '；', '>', '→']).take(MAX_ITEMS) {
        let item = trimmed(part.trim_start().trim_start_matches("and ").trim_start_matches('-'));
        if item.split_whitespace().count() > MAX_WORDS {
            return Vec::new();
        }
        if !item.is_empty() {
            items.push(Placed { item, start, end: start + part.len() });
        }
        start =
            text[start + part.len()..].chars().next().map_or(text.len(), |mark| start + part.len() + mark.len_utf8());
    }
    items
}

/// Words and numbers in a row, without marks and grammar.
fn is_word_list(measure: &Reference<'_>) -> bool {
    let marks = measure.tokens.iter().filter(|token| token.kind == Kind::Mark).count();
    let grammar = measure.tokens.iter().filter(|token| function_word(token) != 0).count();
    measure.tokens.len() >= MIN_ITEMS && marks == 0 && grammar * 20 <= measure.tokens.len()
}

fn blank_items(text: &str) -> Vec<Placed> {
    let base = text.as_ptr() as usize;
    let placed = |word: &str| {
        let start = word.as_ptr() as usize - base;
        Placed { item: trimmed(word), start, end: start + word.len() }
    };
    text.split_whitespace().take(MAX_ITEMS).map(placed).collect()
}

fn sentence_items(text: &str, tokens: &[Token]) -> Vec<Placed> {
    let placed = |sentence: std::ops::Range<usize>| {
        let (start, end) = (tokens[sentence.start].start, tokens[sentence.end - 1].end);
        Placed { item: trimmed(&text[start..end]), start, end }
    };
    sentences(text, tokens).take(MAX_ITEMS).map(placed).collect()
}

/// The items wherever they are mentioned, each at its first place.
fn mentioned(given: &str, wanted: &[Placed]) -> Option<Disorder> {
    // Searching is items times bytes.
    const MAX_WORK: usize = 16 << 20;
    if wanted.len().saturating_mul(given.len()) > MAX_WORK || wanted.iter().any(|wanted| wanted.item.len() < 3) {
        return None;
    }
    let lower = given.to_lowercase();
    let place = |wanted: &Placed| Some((lower.find(&wanted.item)?, wanted.item.clone()));
    let mut found: Vec<(usize, String)> = wanted.iter().filter_map(place).collect();
    found.sort();
    let whole = |(_, item): (usize, String)| Placed { item, start: 0, end: given.len() };
    disorder(&found.into_iter().map(whole).collect::<Vec<_>>(), wanted, "items")
}

fn disorder(given: &[Placed], wanted: &[Placed], what: &str) -> Option<Disorder> {
    if wanted.len() < MIN_ITEMS || given.len() < MIN_ITEMS {
        return None;
    }
    let items = |placed: &[Placed]| placed.iter().map(|placed| placed.item.clone()).collect::<Vec<_>>();
    let found = positions(&items(given), &items(wanted));
    if found.len() < MIN_ITEMS || (found.len() as f64) < wanted.len() as f64 * MIN_PRESENT {
        return None;
    }
    let order: Vec<usize> = found.iter().map(|(_, wanted)| *wanted).collect();
    let kept = longest_increasing(&order);
    if kept == order.len() {
        return None;
    }
    // From the first item that comes before one it should follow.
    let first = order.windows(2).position(|pair| pair[0] > pair[1]).unwrap_or(0);
    let (start, end) = (given[found[first].0].start, given[found[order.len() - 1].0].end);
    let tau = kendall_tau(&order);
    Some(Disorder {
        severity: (1.0 - tau) / 2.0,
        start,
        end: end.max(start),
        evidence: format!("{kept} of {} {what} in order, Kendall τ {tau:.2}", order.len()),
    })
}

/// For every given item that is wanted: its index and the place where it is wanted; the n-th of equal items is the n-th.
fn positions(given: &[String], wanted: &[String]) -> Vec<(usize, usize)> {
    let mut places: HashMap<&str, VecDeque<usize>> = HashMap::new();
    for (at, item) in wanted.iter().enumerate() {
        places.entry(item).or_default().push_back(at);
    }
    let place = |(at, item): (usize, &String)| Some((at, places.get_mut(item.as_str())?.pop_front()?));
    given.iter().enumerate().filter_map(place).collect()
}

fn longest_increasing(order: &[usize]) -> usize {
    let mut ends: Vec<usize> = Vec::new();
    for &value in order {
        let at = ends.partition_point(|end| *end < value);
        match ends.get_mut(at) {
            Some(end) => *end = value,
            None => ends.push(value),
        }
    }
    ends.len()
}

/// Kendall's τ against ascending order, by insertion into a Fenwick tree.
fn kendall_tau(order: &[usize]) -> f64 {
    let size = order.iter().max().map_or(0, |max| max + 1);
    let mut tree = vec![0_usize; size + 1];
    let mut inversions = 0;
    for (seen, &value) in order.iter().enumerate() {
        let (mut at, mut not_greater) = (value + 1, 0);
        while at > 0 {
            not_greater += tree[at];
            at &= at - 1;
        }
        inversions += seen - not_greater;
        let mut at = value + 1;
        while at <= size {
            tree[at] += 1;
            at += at & at.wrapping_neg();
        }
    }
    let pairs = order.len() * order.len().saturating_sub(1) / 2;
    1.0 - 2.0 * inversions as f64 / pairs.max(1) as f64
}

/// The words of the expected prose, nearly all of them, in an order that keeps few neighbours together.
fn words(reading: &Reading<'_>, measure: &Reference<'_>) -> Option<Disorder> {
    let of = |text: &str, tokens: &[Token]| -> Vec<String> {
        let said = tokens.iter().filter(|token| token.kind != Kind::Mark).take(MAX_ITEMS);
        said.map(|token| token.text(text).to_lowercase()).collect()
    };
    let (given, wanted) = (of(reading.text, reading.tokens()), of(measure.text, &measure.tokens));
    let found = positions(&given, &wanted);
    let least = (given.len().max(wanted.len()) as f64 * 0.8) as usize;
    if found.len() < MIN_WORDS || found.len() < least {
        return None;
    }
    let order: Vec<usize> = found.iter().map(|(_, wanted)| *wanted).collect();
    let kept = longest_increasing(&order);
    let pairs: HashSet<(&str, &str)> = wanted.windows(2).map(|pair| (pair[0].as_str(), pair[1].as_str())).collect();
    let neighbours = given.windows(2).filter(|pair| pairs.contains(&(pair[0].as_str(), pair[1].as_str()))).count();
    let is_kept = neighbours as f64 > given.len() as f64 * MAX_PAIRS_KEPT;
    if is_kept || kept as f64 > order.len() as f64 * MAX_WORDS_IN_ORDER {
        return None;
    }
    Some(Disorder {
        severity: 1.0 - kept as f64 / order.len() as f64,
        start: 0,
        end: reading.text.len(),
        evidence: format!("{kept} of {} words in order, {neighbours} pairs of neighbours kept", order.len()),
    })
}

/// Lines that number themselves from one number to another, each once, neither up nor down.
fn numbering(reading: &Reading<'_>) -> Option<Disorder> {
    if !reading.bytes().has(b'\n') || !reading.bytes().has_within(b'0', b'9') {
        return None;
    }
    let order = numbers(reading.text)?;
    if reading.references().iter().any(|reference| numbers(reference.text).is_some()) {
        return None;
    }
    let kept = longest_increasing(&order);
    Some(Disorder {
        severity: (1.0 - kendall_tau(&order)) / 2.0,
        start: 0,
        end: reading.text.trim_end().len(),
        evidence: format!("{kept} of {} numbered lines in order", order.len()),
    })
}

/// The numbers of numbered lines where they are out of order.
fn numbers(text: &str) -> Option<Vec<usize>> {
    const MIN_LINES: usize = 4;
    let mut numbers = Vec::new();
    let mut all = 0;
    let mut prefix: Option<&str> = None;
    for (_, line) in lines(text) {
        all += 1;
        let Some((before, number)) = line_number(line) else { continue };
        if *prefix.get_or_insert(before) != before {
            return None;
        }
        numbers.push(number);
    }
    let (least, most) = (*numbers.iter().min()?, *numbers.iter().max()?);
    let distinct: HashSet<usize> = numbers.iter().copied().collect();
    let is_permutation = distinct.len() == numbers.len() && most - least + 1 == numbers.len();
    let is_sorted = numbers.is_sorted() || numbers.is_sorted_by(|a, b| a > b);
    let is_numbered = numbers.len() >= MIN_LINES && numbers.len() * 5 >= all * 4;
    (is_numbered && is_permutation && !is_sorted).then_some(numbers)
}

/// `Step 12: …`, `12. …`, `12) …`, `第12步`: what stands before the number, and the number.
fn line_number(line: &str) -> Option<(&str, usize)> {
    let at = line.find(|c: char| c.is_ascii_digit())?;
    let (before, rest) = line.split_at(at);
    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let number = rest[..digits.min(4)].parse().ok()?;
    let after = rest[digits..].chars().next()?;
    let is_short = before.chars().count() <= 12 && before.split_whitespace().count() <= 1;
    let second = rest[digits..].chars().nth(1).unwrap_or(' ');
    let is_numbered =
        matches!(after, ')' | ':' | '、' | '：' | '步' | '条' | '项') || (after == '.' && !second.is_ascii_digit());
    (digits <= 4 && is_short && is_numbered).then_some((before, number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detectors::Context;

    fn found(output: &str, expected: &[&str]) -> Option<String> {
        detect(&Reading::of(&Context { expected, ..Context::of(output) })).map(|finding| finding.evidence)
    }

    #[test]
    fn one_exchange_in_fourteen_items_is_found() {
        let items: Vec<String> = (0..14).map(|n| format!("K{n}-CODE")).collect();
        let mut swapped = items.clone();
        swapped.swap(6, 7);
        let evidence = found(&swapped.join("\n"), &[&items.join("\n")]).unwrap();
        assert_eq!(evidence, "13 of 14 lines in order, Kendall τ 0.98");
        assert!(found(&swapped.join(", "), &[&items.join("\n")]).is_some());
        assert!(found(&swapped.join(", "), &[&items.join(", ")]).is_some());
        assert!(found(&swapped.join(" "), &[&items.join(" ")]).is_none(), "marks inside words: not a list of words");
        let array = |items: &[String]| serde_json::to_string(items).unwrap();
        assert!(found(&array(&swapped), &[&array(&items)]).is_some());
    }

    #[test]
    fn other_faults_are_no_disorder() {
        let expected = "oak\nash\nelm\nfir";
        for output in
            ["oak\nash\nfir", "oak\nash\nelm\nfir\nyew", "1. oak\n2. ash\n3. elm\n4. fir", "Oak, ash, elm and fir"]
        {
            assert_eq!(found(output, &[expected]), None, "{output}");
        }
        assert!(found("ash\noak\nelm\nfir", &[expected]).is_some());
        assert_eq!(found("ash\noak\nelm\nfir", &[expected, "ash\noak\nelm\nfir."]), None, "one of the answers");
        assert_eq!(found("{\"b\": 2, \"a\": 1, \"c\": 3}", &["{\"a\": 1, \"b\": 2, \"c\": 3}"]), None);
    }

    #[test]
    fn sentences_words_and_numbers_have_an_order() {
        let expected =
            "The office closed early. Two clerks kept the ledger in turn. The ferry left at noon with glass.";
        let sentences =
            "Two clerks kept the ledger in turn. The ferry left at noon with glass. The office closed early.";
        assert!(found(sentences, &[expected]).unwrap().contains("sentences"));
        let words = "ledger the early turn office Two glass clerks in closed. kept noon The The ferry the with left at";
        assert!(found(words, &[expected]).unwrap().contains("words"));
        let reworded = "The capital of France, on the river Seine, is Paris, as everybody knows.";
        assert_eq!(found(reworded, &["Paris, as everybody knows, is the capital of France on the river Seine."]), None);
        let steps = |order: [u32; 5]| order.map(|n| format!("Step {n}: turn valve {}", n * 7)).join("\n");
        assert!(found(&steps([1, 3, 2, 4, 5]), &[]).is_some());
        assert_eq!(found(&steps([1, 2, 3, 4, 5]), &[]), None);
        assert_eq!(found(&steps([5, 4, 3, 2, 1]), &[]), None, "a countdown");
    }

    #[test]
    fn tau_counts_inversions() {
        assert!((kendall_tau(&[0, 1, 2, 3]) - 1.0).abs() < 1e-9);
        assert!((kendall_tau(&[3, 2, 1, 0]) + 1.0).abs() < 1e-9);
        assert!((kendall_tau(&[1, 0, 2]) - 1.0 / 3.0).abs() < 1e-9);
        assert_eq!(longest_increasing(&[2, 0, 1, 3]), 3);
    }
}
