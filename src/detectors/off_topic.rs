//! Fluent prose about something else: it shares no content words and no values with what was expected or asked.
//!
//! A wrong value is a wrong answer, not another topic, and so is "I cannot find it": prose is asked for, and words of answering
//! count as the topic.

use crate::detectors::content::{Content, add_content, content_of, content_of_reference, share_in};
use crate::detectors::reading::Reading;
use crate::detectors::tokens::{Kind, tokens};
use crate::sample::{Finding, FindingKind};

/// Content words that prose needs for a topic.
const MIN_WORDS: usize = 5;
/// Ideograph pairs: a word has two characters, and every second pair is none.
const MIN_PAIRS: usize = 10;
/// Words of one topic turn up in any other by chance: this share of them is none.
const MAX_SHARED: f64 = 0.12;

/// What answers about a text speak of, whatever the text says.
const OF_ANSWERING: &str = "answer question text passage document context find mention mentioned information provided sorry \
    cannot unable none stated \
    答案 问题 文本 文中 找到 信息 编号 密码 抱歉 无法 提到 文章 上文 号码";

/// What they speak of as well as others do: two of these.
const OF_ANSWERS: &str = "value number code key entry record list provide nothing contain given know known found result word line \
    item digits secret special ticket serial 没有 数字 代码 记录 提供 列表";

pub(super) fn detect(reading: &Reading<'_>) -> Option<Finding> {
    let context = reading.context;
    if context.is_as_expected() || !context.has_measure() {
        return None;
    }
    let content = content_of(reading.text, reading.tokens());
    let ideographs = reading.tokens().iter().filter(|token| token.kind == Kind::Ideograph).count();
    let least = if ideographs * 2 > reading.tokens().len() { MIN_PAIRS } else { MIN_WORDS };
    if content.len() < least || !is_prose(reading) {
        return None;
    }
    let mut known = Content::default();
    for reference in reading.references().iter().chain(reading.prompt()) {
        known.extend(content_of_reference(reference));
    }
    let shared = share_in(&content, &known);
    if shared > MAX_SHARED || covers_the_answer(reading, &content) || speaks_of_answering(&content) {
        return None;
    }
    Some(Finding {
        kind: FindingKind::OffTopic,
        severity: 1.0 - shared,
        start: reading.from,
        end: reading.from + reading.text.trim_end().len(),
        evidence: format!("{:.0} % of {} content words stand in what was expected", shared * 100.0, content.len()),
    })
}

/// A short answer inside long prose is there all the same.
fn covers_the_answer(reading: &Reading<'_>, content: &Content) -> bool {
    reading.measures().iter().any(|measure| {
        let asked = content_of_reference(measure);
        let short = measure.text.trim();
        (!short.is_empty() && short.len() <= 64 && reading.text.contains(short))
            || (!asked.is_empty() && share_in(&asked, content) >= 0.3)
    })
}

fn speaks_of_answering(content: &Content) -> bool {
    let said = |list: &str| {
        let mut words = Content::default();
        for word in list.split_whitespace() {
            add_content(&mut words, word, &tokens(word));
        }
        content.iter().filter(|word| words.contains(word)).count()
    };
    said(OF_ANSWERING) >= 1 || said(OF_ANSWERS) >= 2
}

/// Words in sentences, not codes and rows.
fn is_prose(reading: &Reading<'_>) -> bool {
    let tokens = reading.tokens();
    let words = tokens.iter().filter(|token| token.is_wordlike()).count();
    !reading.is_data() && words * 10 >= tokens.len() * 6
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detectors::Context;

    fn is_off(output: &str, expected: &str) -> bool {
        detect(&Reading::of(&Context { expected: &[expected], ..Context::of(output) })).is_some()
    }

    #[test]
    fn another_topic_is_found_and_another_answer_is_none() {
        let gardens = "Tomatoes need plenty of sun and a deep soil; water them early in the morning.";
        let ledger = "The harbour office closed early that week, and the ledger was kept by two clerks in turn.";
        assert!(is_off(gardens, ledger));
        assert!(is_off(gardens, "4829173"));
        assert!(is_off("番茄需要充足的阳光和深厚的土壤，最好在清晨浇水。", "港口办公室那一周很早就关门了"));
        assert!(!is_off("The office at the harbour was shut while two clerks wrote the ledger.", ledger));
        assert!(!is_off("5510284", "4829173"));
        assert!(!is_off("I could not find such a number anywhere in the long passage above.", "4829173"));
        assert!(!is_off("Looking at the shipping papers closely, crates bear stamp 4829173 twice.", "4829173"));
    }
}
