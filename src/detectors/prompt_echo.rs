//! The prompt again: a long stretch of it that the expected answer does not have, or, where the prompt is not known, the
//! instructions and questions that prompts consist of and answers do not.

use std::collections::HashSet;
use std::collections::hash_map::Entry;
use std::sync::LazyLock;

use crate::detectors::reading::Reading;
use crate::detectors::tokens::{Kind, Token};
use crate::detectors::tongue::HashKeyed;
use crate::sample::{Finding, FindingKind};

/// Tokens in a row that stand in the prompt; an answer quotes a name or a value, not a sentence and a half.
const MIN_COPIED: usize = 20;
/// A shorter stretch that is most of the output, of at least so many tokens.
const MIN_SHORT_COPIED: usize = 10;
const MIN_SHORT_SHARE: f64 = 0.7;
/// Tokens of a stretch by which it is looked up.
const GRAM: usize = 8;
/// Only this much of an output is searched for instructions: an echo begins early.
const MAX_SEARCHED: usize = 16 << 10;
/// Of a prompt whose own request is read.
const MAX_REQUEST_BYTES: usize = 1024;
/// A role and its colon stand within so much of a line.
const MAX_ROLE_BYTES: usize = 40;
/// Weight of the signs that make an echo, with an expected answer and without.
const MIN_SIGNS: usize = 3;
const MIN_OWN_SIGNS: usize = 4;

pub(super) fn detect(reading: &Reading<'_>) -> Option<Finding> {
    if reading.context.is_as_expected() || reading.tokens().is_empty() {
        return None;
    }
    copied(reading).or_else(|| instructed(reading))
}

fn finding(reading: &Reading<'_>, start: usize, end: usize, evidence: String) -> Finding {
    Finding {
        kind: FindingKind::PromptEcho,
        severity: ((end - start) as f64 / reading.text.trim().len().max(1) as f64).clamp(0.0, 1.0),
        start: reading.from + start,
        end: reading.from + end,
        evidence,
    }
}

/// The longest stretch in common with the prompt, outside what the references say.
fn copied(reading: &Reading<'_>) -> Option<Finding> {
    let prompt = reading.prompt()?;
    let tokens = reading.tokens();
    let asked: Vec<HashKeyed<usize>> = reading.references().iter().map(|reference| grams(&reference.tokens)).collect();
    let places = grams(&prompt.tokens);
    let (mut best, mut at) = ((0, 0), 0);
    while at + GRAM <= tokens.len() {
        let gram = gram(&tokens[at..at + GRAM]);
        let Some(&place) = places.get(&gram) else {
            at += 1;
            continue;
        };
        if asked.iter().any(|asked| asked.contains_key(&gram)) {
            at += 1;
            continue;
        }
        let same = |(a, b): &(&Token, &Token)| a.hash == b.hash;
        let length = tokens[at..].iter().zip(&prompt.tokens[place..]).take_while(same).count();
        if length > best.1 {
            best = (at, length);
        }
        at += length.max(1);
    }
    let (at, length) = best;
    let is_most = length >= MIN_SHORT_COPIED && length as f64 >= tokens.len() as f64 * MIN_SHORT_SHARE;
    // "The code of the amber lantern in the mill is 7" takes up its question and answers it: that says something new.
    let says_nothing_new = || {
        let known: HashSet<u64> = prompt.tokens.iter().map(|token| token.hash).collect();
        tokens.iter().all(|token| known.contains(&token.hash))
    };
    (length >= MIN_COPIED || is_most && says_nothing_new()).then(|| {
        let evidence = format!("{length} of {} tokens stand in the prompt in a row", tokens.len());
        finding(reading, tokens[at].start, tokens[at + length - 1].end, evidence)
    })
}

fn gram(tokens: &[Token]) -> u64 {
    tokens.iter().fold(0, |hash, token| (hash ^ token.hash).wrapping_mul(0x0100_0000_01b3).rotate_left(23))
}

/// First place of every stretch of [`GRAM`] tokens.
fn grams(tokens: &[Token]) -> HashKeyed<usize> {
    let mut places = HashKeyed::default();
    for (at, window) in tokens.windows(GRAM).enumerate() {
        if let Entry::Vacant(place) = places.entry(gram(window)) {
            place.insert(at);
        }
    }
    places
}

/// Lines begin so in prompts; in answers they do not.
const ROLES: &[&str] = &[
    "user:",
    "human:",
    "system:",
    "### instruction",
    "### input",
    "### question",
    "instruction:",
    "instructions:",
    "question:",
    "prompt:",
    "task:",
    "context:",
    "用户：",
    "用户:",
    "系统：",
    "指令：",
    "问题：",
    "问题:",
    "任务：",
    "提问：",
];

/// What only somebody who wants an answer says.
const REQUESTS: &[&str] = &[
    "answer with",
    "answer only",
    "answer the question",
    "answer the following",
    "answer in one",
    "reply with",
    "reply only",
    "respond with",
    "respond only",
    "return only",
    "print only",
    "output only",
    "write only",
    "give only",
    "only the number",
    "only the value",
    "based on the text",
    "based on the passage",
    "based on the following",
    "according to the text above",
    "from the text above",
    "in the text above",
    "the text above",
    "the passage above",
    "the document above",
    "read the following",
    "read the text",
    "read the passage",
    "the following text",
    "the following passage",
    "below is a",
    "here is a long text",
    "you are a helpful",
    "you are an assistant",
    "you are given",
    "you will be given",
    "do not explain",
    "do not add",
    "without explanation",
    "no explanation",
    "one per line",
    "in order of appearance",
    "in the order they",
    "use the format",
    "in the following format",
    "your answer should",
    "your task is",
    "please provide",
    "please answer",
    "list all",
    "copy the",
    "repeat the",
    "what is the",
    "which of the following",
    "根据上文",
    "根据上面",
    "根据以下",
    "阅读下面",
    "阅读以下",
    "请阅读",
    "请回答",
    "请根据",
    "只回答",
    "只输出",
    "只写",
    "回答问题",
    "不要解释",
    "不要添加",
    "每行一个",
    "按出现顺序",
    "以下是一段",
    "上文中",
    "请列出",
    "请直接",
    "你是一个",
    "是什么？",
    "是多少？",
];

/// A bit for each pair of bytes with which one of [`REQUESTS`] begins, in whatever letters.
static OPENINGS: LazyLock<Box<[u64; 1 << 10]>> = LazyLock::new(|| {
    let mut openings = Box::new([0; 1 << 10]);
    for request in REQUESTS {
        let forms = |at: usize| {
            let byte = request.as_bytes()[at];
            [byte.to_ascii_lowercase(), byte.to_ascii_uppercase()]
        };
        for (first, second) in forms(0).into_iter().flat_map(|first| forms(1).map(|second| (first, second))) {
            openings[opening(first, second).0] |= opening(first, second).1;
        }
    }
    openings
});

/// [`REQUESTS`] by the first byte.
static BY_FIRST: LazyLock<Vec<Vec<&str>>> = LazyLock::new(|| {
    let mut by_first = vec![Vec::new(); 256];
    for request in REQUESTS {
        by_first[usize::from(request.as_bytes()[0])].push(*request);
    }
    by_first
});

/// Word and bit of a pair in [`OPENINGS`].
fn opening(first: u8, second: u8) -> (usize, u64) {
    (usize::from(first) << 2 | usize::from(second >> 6), 1 << (second & 63))
}

/// The first place of each request in the first `end` bytes, in one pass; they begin where words do, in whatever letters.
fn requests_in(text: &str, tokens: &[Token], end: usize) -> Vec<(usize, &'static str)> {
    let openings = &**OPENINGS;
    let bytes = &text.as_bytes()[..end];
    let mut found: Vec<(usize, &'static str)> = Vec::new();
    let mut look_at = |at: usize| {
        let Some(&[first, second]) = bytes[at..].first_chunk::<2>() else { return };
        let (word, bit) = opening(first, second);
        if openings[word] & bit == 0 || (at > 0 && first.is_ascii() && bytes[at - 1].is_ascii_alphanumeric()) {
            return;
        }
        let is_said = |request: &&&'static str| {
            let said = bytes.get(at..at + request.len());
            said.is_some_and(|said| said.eq_ignore_ascii_case(request.as_bytes()))
        };
        for request in BY_FIRST[usize::from(first.to_ascii_lowercase())].iter().filter(is_said) {
            if found.iter().all(|(_, known)| known != request) {
                found.push((at, request));
            }
        }
    };
    for token in tokens.iter().take_while(|token| token.start < end).filter(|token| token.is_wordlike()) {
        look_at(token.start);
        // Letters behind one beyond ASCII begin a word as well.
        let stop = token.end.min(end);
        if token.kind == Kind::Word && !bytes[token.start..stop].is_ascii() {
            (token.start + 1..stop).filter(|at| !bytes[at - 1].is_ascii()).for_each(&mut look_at);
        }
    }
    found
}

/// Lines that begin with one of [`ROLES`].
fn roles_in(text: &str) -> Vec<(usize, &'static str)> {
    let mut found = Vec::new();
    let mut at = 0;
    let begins = |line: &str, role: &str| {
        let start = line.as_bytes().get(..role.len());
        // Most differ in the first letter.
        start.is_some_and(|start| {
            start[0] | 0x20 == role.as_bytes()[0] | 0x20 && start.eq_ignore_ascii_case(role.as_bytes())
        })
    };
    for line in text.split_inclusive('\n') {
        let begin = &line[..line.floor_char_boundary(MAX_ROLE_BYTES)];
        if begin.bytes().any(|byte| matches!(byte, b':' | b'#' | 0xef)) && begin.contains([':', '：', '#']) {
            let start = line.trim_start_matches(['*', '#', '>', ' ', '<', '[']);
            let role = ROLES.iter().find(|role| begins(line.trim_start(), role) || begins(start, role));
            found.extend(role.map(|role| (at, *role)));
        }
        at += line.len();
    }
    found
}

/// Questions are what is asked for.
fn asks_for_questions(prompt: &str) -> bool {
    const VERBS: [&str; 8] = ["write", "generate", "create", "make", "list", "suggest", "propose", "prepare"];
    let from = prompt.ceil_char_boundary(prompt.len().saturating_sub(MAX_REQUEST_BYTES));
    let request = prompt[from..].to_ascii_lowercase();
    let is_english = request.contains("questions") && VERBS.iter().any(|verb| request.contains(verb));
    is_english || request.contains("出题") || request.contains("个问题") || request.contains("prompt")
}

/// Signs that the output is a prompt.
fn instructed(reading: &Reading<'_>) -> Option<Finding> {
    let text = &reading.text[..reading.text.floor_char_boundary(MAX_SEARCHED)];
    let bytes = reading.bytes();
    let mut found = if bytes.has_any(&[b':', b'#', 0xef]) { roles_in(text) } else { Vec::new() };
    found.extend(requests_in(reading.text, reading.tokens(), text.len()));
    // A question alone is no sign of instructions.
    if found.is_empty() {
        return None;
    }
    let is_asked = |phrase: &str| reading.references().iter().any(|it| it.text.to_ascii_lowercase().contains(phrase));
    let mut first: Option<usize> = None;
    let mut weight = 0;
    let mut see = |at: usize, found: usize| {
        first = Some(first.map_or(at, |first| first.min(at)));
        weight += found;
    };
    for (at, phrase) in found {
        if !is_asked(phrase) {
            see(at, 2);
        }
    }
    if let Some(at) = text.find(['?', '？'])
        && !reading.references().iter().any(|it| it.text.contains(['?', '？']))
    {
        see(at, 1);
    }
    let first = first?;
    // Stories and letters ask and request as well; where nothing says what was expected, more of it is needed.
    let least = if reading.context.has_measure() { MIN_SIGNS } else { MIN_OWN_SIGNS };
    (weight >= least && !reading.prompt().is_some_and(|prompt| asks_for_questions(prompt.text))).then(|| {
        let end = reading.text.trim_end().len().max(first);
        finding(reading, first.min(end), end, format!("{weight} signs of instructions or questions"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detectors::Context;

    fn found(context: &Context<'_>) -> bool {
        detect(&Reading::of(context)).is_some()
    }

    const PROMPT: &str = "The harbour office closed early that week, and the ledger was kept by two clerks in turn, each of them \
        for a day. The code of the amber lantern is 4829173.\n\nWhat is the code of the amber lantern?";

    #[test]
    fn the_prompt_again_is_found_and_an_answer_from_it_is_not() {
        let echo =
            "The harbour office closed early that week, and the ledger was kept by two clerks in turn, each of them";
        let context = Context { prompt: Some(PROMPT), expected: &["4829173"], ..Context::of(echo) };
        assert!(found(&context));
        assert!(!found(&Context { output: "The code of the amber lantern is 4829173.", ..context }));
        assert!(!found(&Context { output: "4829173", ..context }));
        assert!(!found(&Context { expected: &[PROMPT], ..context }), "a copy was asked for");
    }

    #[test]
    fn instructions_are_no_answer() {
        let outputs = [
            "Question: What is the code of the amber lantern? Answer with the number only.",
            "What is the code of the amber lantern? Answer with the digits only.",
            "You are a helpful assistant. Read the following text and answer the question.",
            "问题：琥珀灯笼的编号是多少？只回答数字。",
        ];
        for output in outputs {
            assert!(found(&Context { expected: &["4829173"], ..Context::of(output) }), "{output}");
        }
        assert!(!found(&Context { expected: &["4829173"], ..Context::of("Is it 4829173?") }));
        assert!(!found(&Context::of("The text above gives 4829173.")));
    }
}
