//! Text that is none: broken characters, tokens of the template, bytes read in the wrong encoding, pieces of many scripts,
//! words that no language has.
//!
//! High entropy is no garbage: hex, codes and numbers may be what was asked for, so only words are judged as words. What a
//! reference or the prompt contains is nobody's damage, and markup quoted as code is about tokens, not a token.

use std::sync::LazyLock;

use crate::detectors::content::{content_of, content_of_reference, share_in};
use crate::detectors::language_drift::named_tongues;
use crate::detectors::non_words::non_words;
use crate::detectors::reading::{Reading, set_of};
use crate::detectors::salad::salad;
use crate::detectors::tokens::{Kind, Token};
use crate::detectors::tongue::{Tongue, function_word};
use crate::sample::{Finding, FindingKind};

pub(super) fn detect(reading: &Reading<'_>) -> Option<Finding> {
    if reading.context.is_as_expected() {
        return None;
    }
    let found = broken_characters(reading)
        .or_else(|| leaked_tokens(reading))
        .or_else(|| mojibake(reading))
        .or_else(|| script_soup(reading))
        .or_else(|| mark_soup(reading))
        .or_else(|| stray_brackets(reading))
        .or_else(|| non_words(reading))
        .or_else(|| without_grammar(reading))?;
    Some(Finding {
        kind: FindingKind::Garbage,
        severity: found.severity.clamp(0.0, 1.0),
        start: reading.from + found.start,
        end: reading.from + found.end,
        evidence: found.evidence,
    })
}

/// Bytes of a character that can be there without its last one.
const MAX_CUT: usize = 3;

/// Places that are looked at closely before no more are expected: each look may cost the length of the text.
const MAX_CANDIDATES: usize = 64;

/// A place in the text read.
pub(super) struct Seen {
    pub(super) severity: f64,
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) evidence: String,
}

/// Whether a reference or the prompt has this very text.
pub(super) fn is_known(reading: &Reading<'_>, piece: &str) -> bool {
    reading.references().iter().chain(reading.prompt()).any(|known| known.text.contains(piece))
}

/// Replacement and control characters, private use, invisible characters, piles of accents.
fn broken_characters(reading: &Reading<'_>) -> Option<Seen> {
    let (text, bytes) = (reading.text, reading.text.as_bytes());
    if !reading.bytes().has_any(&BREAKING) {
        return None;
    }
    // Generation may stop inside a character, whose bytes become a replacement character each.
    let whole = text.trim_end_matches('\u{fffd}').len();
    let is_cut = reading.context.hit_limit() && text.len() - whole <= MAX_CUT * '\u{fffd}'.len_utf8();
    let (mut count, mut first, mut last, mut piled) = (0, None, 0, 0);
    let mut named = '\0';
    let mut at = 0;
    while at < bytes.len() {
        // Bytes inside a character count for nothing, like those that begin no such one.
        if !BREAKS[usize::from(bytes[at])] {
            piled = if bytes[at] & 0xc0 == 0x80 { piled } else { 0 };
            at += 1;
            continue;
        }
        let Some(c) = text[at..].chars().next() else { break };
        piled = if matches!(c, '\u{300}'..='\u{36f}' | '\u{489}') { piled + 1 } else { 0 };
        if (piled >= 3 || is_broken(c)) && !(is_cut && at >= whole) {
            count += 1;
            last = at + c.len_utf8();
            first.get_or_insert(at);
            named = c;
        }
        at += c.len_utf8();
    }
    let start = first?;
    // A zero-width space by itself is typography.
    if (named == '\u{200b}' && count < 3)
        || is_known(reading, &text[start..start + text[start..].chars().next()?.len_utf8()])
    {
        return None;
    }
    let evidence = format!("{count} broken characters, such as U+{:04X}", u32::from(named));
    Some(Seen { severity: (last - start) as f64 / text.len() as f64, start, end: last, evidence })
}

/// Bytes with which the characters of [`is_broken`] and accents begin.
const BREAKING: [u8; 39] = {
    let mut breaking = [0xc2; 39];
    let wide = [0x7f, 0xc2, 0xcc, 0xcd, 0xd2, 0xe2, 0xee, 0xef, 0xf3, 0xf4];
    let mut at = 0;
    let mut byte = 0;
    while byte < 0x20 {
        if !matches!(byte, b'\n' | b'\t' | b'\r') {
            breaking[at] = byte;
            at += 1;
        }
        byte += 1;
    }
    let mut number = 0;
    while number < wide.len() {
        breaking[at] = wide[number];
        (at, number) = (at + 1, number + 1);
    }
    breaking
};

static BREAKS: [bool; 256] = set_of(&BREAKING);

fn is_broken(c: char) -> bool {
    matches!(c,
        '\u{fffd}' | '\0'..='\u{8}' | '\u{b}' | '\u{c}' | '\u{e}'..='\u{1f}' | '\u{7f}'..='\u{9f}'
            | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..='\u{fffb}' | '\u{fffe}'..='\u{ffff}' | '\u{200b}'
            | '\u{2060}'..='\u{206f}' | '\u{f0000}'..='\u{10ffff}')
}

/// Tokens of chat templates and vocabularies that are not part of any text.
const LEAKED: &[&str] = &[
    "</s>",
    "<s>",
    "[INST]",
    "[/INST]",
    "<<SYS>>",
    "<</SYS>>",
    "<unk>",
    "<pad>",
    "<bos>",
    "<eos>",
    "<mask>",
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "[BOS]",
    "[EOS]",
    "<start_of_turn>",
    "<end_of_turn>",
    "<start_of_image>",
    "<unused",
    "<extra_id_",
    "<reserved_",
    "[control_",
    "<0x",
    "<｜",
    "｜>",
    "[gMASK]",
    "<eop>",
    "<eod>",
    "<sop>",
    "<|",
    "|>",
    "[TOOL_CALLS]",
    "<end_of_utterance>",
    "<image>",
    "<EOT>",
    "<EOS>",
    "<BOS>",
    "<PAD>",
    "锟斤拷",
    "烫烫烫",
    "屯屯屯",
];

/// First bytes of [`LEAKED`].
const LEAKED_LEADS: [u8; 7] =
    [b'<', b'[', b'|', "｜".as_bytes()[0], "锟".as_bytes()[0], "烫".as_bytes()[0], "屯".as_bytes()[0]];

static IS_LEAD: [bool; 256] = set_of(&LEAKED_LEADS);

/// [`LEAKED`] by the first byte.
static LEADS: LazyLock<Vec<(u8, Vec<&str>)>> = LazyLock::new(|| {
    let mut leads: Vec<(u8, Vec<&str>)> = Vec::new();
    for leaked in LEAKED {
        let lead = leaked.as_bytes()[0];
        match leads.iter_mut().find(|(known, _)| *known == lead) {
            Some((_, all)) => all.push(leaked),
            None => leads.push((lead, vec![leaked])),
        }
    }
    leads
});

fn leaked_tokens(reading: &Reading<'_>) -> Option<Seen> {
    let text = reading.text;
    let seen = |start: usize, piece: &str, end: usize| {
        let shown: String = text[start..].chars().take(24).collect();
        (!is_known(reading, piece)).then(|| Seen {
            severity: 0.5,
            start,
            end,
            evidence: format!("leaked token `{}`", shown.split_whitespace().next().unwrap_or(piece)),
        })
    };
    if !reading.bytes().has_any(&LEAKED_LEADS) {
        return word_piece_marks(reading);
    }
    let leads = &*LEADS;
    let leaked_at = |at: usize| {
        let begins = |leaked: &&&str| text.as_bytes()[at..].starts_with(leaked.as_bytes());
        let (_, leaked) = leads.iter().find(|(lead, _)| *lead == text.as_bytes()[at])?;
        leaked.iter().find(begins).map(|leaked| (at, *leaked))
    };
    // They begin with marks and ideographs.
    let begins = |token: &&Token| IS_LEAD[usize::from(text.as_bytes()[token.start])];
    let candidates = reading.tokens().iter().filter(begins).filter_map(|token| leaked_at(token.start));
    for (at, leaked) in candidates.take(MAX_CANDIDATES) {
        if is_quoted_code(text, at) || !is_token(text, at, leaked) {
            continue;
        }
        if let Some(seen) = seen(at, leaked, at + leaked.len()) {
            return Some(seen);
        }
    }
    word_piece_marks(reading)
}

/// `<|` opens a name and `|>` closes one; `<s>` strikes out where it is closed.
fn is_token(text: &str, at: usize, leaked: &str) -> bool {
    let rest = &text[at + leaked.len()..];
    match leaked {
        "<|" => {
            let name = rest.trim_start_matches(|c: char| c.is_alphanumeric() || "_-▁ ".contains(c));
            let length = rest.len() - name.len();
            (1..=40).contains(&length) && name.starts_with("|>") || (length > 1 && name.is_empty())
        }
        // Its opening half was looked at before; alone it is an operator of some languages.
        "|>" => false,
        "<s>" | "</s>" => text.matches("<s>").count() != text.matches("</s>").count() || !text.contains("<s>"),
        "<0x" => {
            rest.len() >= 3 && rest.as_bytes()[..2].iter().all(u8::is_ascii_hexdigit) && rest.as_bytes()[2] == b'>'
        }
        _ => true,
    }
}

/// Between backticks on its line, or in a fenced block, or between quotation marks.
fn is_quoted_code(text: &str, at: usize) -> bool {
    let line_start = text[..at].rfind('\n').map_or(0, |at| at + 1);
    let before = &text[line_start..at];
    let after = text[at..].lines().next().unwrap_or_default();
    let is_between = |mark: char| before.matches(mark).count() % 2 == 1 && after.contains(mark);
    let is_fenced = || text[..line_start].matches("```").count() % 2 == 1;
    is_between('`')
        || is_between('"')
        || (before.ends_with(['\'', '‘', '“']) && after.contains(['\'', '’', '”']))
        || is_fenced()
}

/// Marks with which vocabularies write blanks and joints: `Ġ`, `▁`, `##`.
fn word_piece_marks(reading: &Reading<'_>) -> Option<Seen> {
    let (text, bytes) = (reading.text, reading.bytes());
    let blanks = |mark: char| {
        if bytes.is_ascii() {
            return Vec::new();
        }
        let of = |(at, _): (usize, &str)| text[at + mark.len_utf8()..].starts_with(char::is_alphanumeric);
        text.match_indices(mark).filter(|found| of(*found)).take(3).map(|(at, _)| at).collect::<Vec<_>>()
    };
    let joints = || {
        if !bytes.has(b'#') {
            return Vec::new();
        }
        let is_joint = |at: usize| {
            text[at + 2..].starts_with(|c: char| c.is_ascii_lowercase()) && (at == 0 || text[..at].ends_with(' '))
        };
        text.match_indices("##").filter(|(at, _)| is_joint(*at)).take(3).map(|(at, _)| at).collect::<Vec<_>>()
    };
    let found = [(blanks('Ġ'), 2, "Ġ"), (blanks('▁'), 2, "▁"), (blanks('Ċ'), 2, "Ċ"), (joints(), 2, "##")];
    let (places, _, mark) = found.into_iter().find(|(places, least, _)| places.len() >= *least)?;
    (!is_known(reading, mark)).then(|| Seen {
        severity: 0.8,
        start: places[0],
        end: text.len(),
        evidence: format!("blanks and joints of a vocabulary, `{mark}`"),
    })
}

/// UTF-8 read as Windows-1252, CP1251 or GBK.
fn mojibake(reading: &Reading<'_>) -> Option<Seen> {
    let (text, bytes) = (reading.text, reading.bytes());
    if bytes.is_ascii() {
        return None;
    }
    let mut found: Option<(usize, usize)> = None;
    let (mut short, mut weight, mut candidates) = (0, 0, 0);
    // Only characters of this block stand for the first byte of a longer one.
    let mut chars = if bytes.has(0xc3) { text } else { "" }.char_indices();
    while let Some((at, c)) = chars.next() {
        if !('\u{c2}'..='\u{f4}').contains(&c) {
            continue;
        }
        let Some(length) = read_as_latin(&text[at..]) else { continue };
        candidates += 1;
        if candidates > MAX_CANDIDATES {
            break;
        }
        let end = at + text[at..].chars().take(length).map(char::len_utf8).sum::<usize>();
        if is_known(reading, &text[at..end]) {
            continue;
        }
        short += usize::from(length == 2 && !matches!(c, 'Ã' | 'Â'));
        weight += if length > 2 || matches!(c, 'Ã' | 'Â') { 2 } else { 1 };
        found = Some((found.map_or(at, |(start, _)| start), end));
        for _ in 1..length {
            chars.next();
        }
    }
    let seen = |start: usize, end: usize, evidence: String| {
        Some(Seen { severity: (end - start) as f64 / text.len() as f64, start, end, evidence })
    };
    if let Some((start, end)) = found
        && weight >= 2
        && (weight > short || short >= 2)
    {
        let shown: String = text[start..].chars().take(8).collect();
        return seen(start, end, format!("UTF-8 read as another encoding: `{shown}`"));
    }
    let pairs = if bytes.has(0xd0) { cyrillic_pairs(text) } else { 0 };
    if pairs >= 4 && pairs * 4 >= text.chars().filter(|c| matches!(c, '\u{400}'..='\u{4ff}')).count() {
        return seen(0, text.len(), "UTF-8 read as a Cyrillic encoding".into());
    }
    if !bytes.has_within(0xe3, 0xe9) {
        return None;
    }
    let (marks, han) = gbk_marks(text);
    (marks >= 3 && marks * 6 >= han).then(|| seen(0, text.len(), "UTF-8 read as a Chinese encoding".into())).flatten()
}

/// Characters that make one character of UTF-8 when taken as bytes of Windows-1252, at least two.
fn read_as_latin(text: &str) -> Option<usize> {
    let mut bytes = text.chars().take(4).map_while(windows_1252);
    let first = bytes.next()?;
    let length = match first {
        0xc2..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf4 => 4,
        _ => return None,
    };
    let rest: Vec<u8> = bytes.take(length - 1).collect();
    (rest.len() == length - 1 && rest.iter().all(|byte| (0x80..0xc0).contains(byte))).then_some(length)
}

/// The byte of a character in Windows-1252, above ASCII.
fn windows_1252(c: char) -> Option<u8> {
    const UPPER: &str = "€\u{81}‚ƒ„…†‡ˆ‰Š‹Œ\u{8d}Ž\u{8f}\u{90}‘’“”•–—˜™š›œ\u{9d}žŸ";
    match c {
        '\u{80}'..='\u{ff}' => Some(c as u8),
        _ => UPPER.chars().position(|upper| upper == c).map(|at| 0x80 + at as u8),
    }
}

/// `Р` or `С` before a character that no Russian word has there.
fn cyrillic_pairs(text: &str) -> usize {
    let mut before = ' ';
    let mut pairs = 0;
    for c in text.chars() {
        let is_odd = !c.is_ascii() && !matches!(c, '\u{410}'..='\u{44f}') || matches!(c, 'Р' | 'С');
        pairs += usize::from(matches!(before, 'Р' | 'С') && (is_odd || c == '°' || c == '±'));
        before = c;
    }
    pairs
}

/// Ideographs that the bytes of common ones turn into when read as GBK, and that are rare otherwise.
const GBK_MARKS: &str = "鐨勶紝銆涓鏄浜鍦锛鍙鏈浠鎴瀛鍚鍒璇鍥鏂鎬绗鍏闂鍟馃鈥滄枃浣犲屼笘鐣澶簡鍚佸殑寰鏃鑰濂嗘岃涙瀹湪鏉闀鍒涔噷杩甯嬪璧鐢鎵\
        鐫宸笉愬嶅灏潰鐭庡鏍绉繃洜浣嗗繕樺熷偅墠鍜堢嶆褰琛嬮紑庢埌敓粡楅嬭娲夎鐜撴犺鑳缇鎯彧績皬呰棩彂婅粠硶撶瓙偣栬熸";

/// Ideographs of the common blocks.
const FIRST_HAN: u32 = 0x3400;
const LAST_HAN: u32 = 0x9fff;

/// [`GBK_MARKS`] as a bit for each ideograph.
static GBK_SET: LazyLock<Vec<u64>> = LazyLock::new(|| {
    let mut set = vec![0; (LAST_HAN - FIRST_HAN) as usize / 64 + 1];
    for mark in GBK_MARKS.chars().map(u32::from).filter(|mark| (FIRST_HAN..=LAST_HAN).contains(mark)) {
        set[(mark - FIRST_HAN) as usize / 64] |= 1 << ((mark - FIRST_HAN) % 64);
    }
    set
});

/// How many ideographs are of [`GBK_MARKS`], and how many there are.
fn gbk_marks(text: &str) -> (usize, usize) {
    let (mut marks, mut han) = (0, 0);
    let set = &*GBK_SET;
    for c in text.chars().map(u32::from).filter(|c| (FIRST_HAN..=LAST_HAN).contains(c)) {
        han += 1;
        marks += usize::from(set[(c - FIRST_HAN) as usize / 64] >> ((c - FIRST_HAN) % 64) & 1 == 1);
    }
    (marks, han)
}

/// Three scripts or more in one sentence with nothing between them, or two inside one word.
fn script_soup(reading: &Reading<'_>) -> Option<Seen> {
    // A text of one script has no other one.
    if reading.bytes().is_ascii() {
        return None;
    }
    let (text, tokens) = (reading.text, reading.tokens());
    let known: Vec<Tongue> =
        reading.references().iter().chain(reading.prompt()).flat_map(|it| scripts(it.text)).collect();
    let (mut switches, mut seen) = (0, Vec::<Tongue>::new());
    let mut before: Option<(Tongue, usize)> = None;
    let (mut mixed, mut start) = (0, None);
    for token in tokens {
        if !token.is_wordlike() {
            let word = token.text(text);
            let is_emoji = word.starts_with(|c| matches!(c, '\u{1f000}'..='\u{1faff}'));
            if !is_emoji && !matches!(word, "." | "-" | "_" | "/" | "\u{fe0f}") {
                before = None;
            }
            continue;
        }
        let Some(script) = token.script.map(script_of) else { continue };
        mixed += usize::from(token.kind == Kind::Word && is_mixed(token.text(text)));
        let Some((last, end)) = before.replace((script, token.end)) else { continue };
        if last == script || text[end..token.start].contains('\n') {
            continue;
        }
        switches += 1;
        start.get_or_insert(end);
        for script in [last, script] {
            if !seen.contains(&script) && !known.contains(&script) {
                seen.push(script);
            }
        }
    }
    let is_soup = seen.len() + usize::from(known.len() == 1 && !seen.contains(&known[0])) >= 3 && switches >= 3;
    // A text about languages writes words of them.
    let is_soup = is_soup && named_tongues(text).len() < 2;
    (is_soup || mixed >= 2).then(|| Seen {
        severity: 0.8,
        start: start.unwrap_or(0).min(text.len()),
        end: text.len(),
        evidence: format!("{} scripts in one go, {switches} changes, {mixed} words of two scripts", seen.len()),
    })
}

fn scripts(text: &str) -> Vec<Tongue> {
    let mut found: Vec<Tongue> = Vec::new();
    for script in text.chars().take(20_000).filter_map(Tongue::of_letter).map(script_of) {
        if !found.contains(&script) {
            found.push(script);
        }
    }
    found
}

/// Japanese is written in both.
fn script_of(tongue: Tongue) -> Tongue {
    if tongue == Tongue::Japanese { Tongue::Chinese } else { tongue }
}

/// Letters of Latin and of Cyrillic, Greek or another alphabet in one word, two each at least.
fn is_mixed(word: &str) -> bool {
    if word.is_ascii() {
        return false;
    }
    let count =
        |is: fn(Tongue) -> bool| word.chars().filter_map(Tongue::of_letter).filter(|tongue| is(*tongue)).count();
    let latin = count(|tongue| matches!(tongue, Tongue::Latin(_)));
    let others =
        count(|tongue| !matches!(tongue, Tongue::Latin(_) | Tongue::Chinese | Tongue::Japanese | Tongue::Korean));
    latin >= 1 && others >= 1 && latin + others >= 4
}

/// A long row of many different marks without a word between: no code, no table and no face has that.
fn mark_soup(reading: &Reading<'_>) -> Option<Seen> {
    const MIN_MARKS: usize = 14;
    const MIN_KINDS: usize = 7;
    let (text, tokens) = (reading.text, reading.tokens());
    // A run that is long enough has one of these places, so the others are not looked at.
    let mut at = MIN_MARKS - 1;
    while at < tokens.len() {
        if !is_ascii_mark(text, &tokens[at]) {
            at += MIN_MARKS;
            continue;
        }
        let first = tokens[..at].iter().rposition(|token| !is_ascii_mark(text, token)).map_or(0, |before| before + 1);
        let run = at - first + tokens[at..].iter().take_while(|token| is_ascii_mark(text, token)).count();
        if run >= MIN_MARKS {
            let mut kinds: Vec<u64> = tokens[first..first + run.min(256)].iter().map(|token| token.hash).collect();
            kinds.sort_unstable();
            kinds.dedup();
            let (start, end) = (tokens[first].start, tokens[first + run - 1].end);
            if kinds.len() >= MIN_KINDS && !is_pattern(text) && !is_known(reading, &text[start..end]) {
                let severity = (end - start) as f64 / text.len() as f64;
                let evidence = format!("{run} marks of {} kinds in a row", kinds.len());
                return Some(Seen { severity, start, end, evidence });
            }
        }
        at = first + run + MIN_MARKS;
    }
    None
}

/// A regular expression.
fn is_pattern(text: &str) -> bool {
    ["[a-z", "[A-Z", "[0-9", "[^", "(?:", "(?i", "\\d", "\\w", "\\s", "\\."].iter().any(|sign| text.contains(sign))
}

/// Prose with brackets that close nothing, among many other marks.
fn stray_brackets(reading: &Reading<'_>) -> Option<Seen> {
    const MIN_STRAY: usize = 4;
    const MIN_MARK_SHARE: f64 = 0.4;
    const MIN_WORDS: usize = 3;
    /// More brackets open at once are a loop.
    const MAX_OPEN: usize = 64;
    let (text, tokens) = (reading.text, reading.tokens());
    let marks = reading.count(Kind::Mark);
    if (marks as f64) < tokens.len() as f64 * MIN_MARK_SHARE || !reading.bytes().has_any(b")]}") {
        return None;
    }
    let (mut open, mut stray) = (Vec::new(), Vec::new());
    let mut words = 0;
    for token in tokens {
        words += usize::from(function_word(token) & 1);
        if token.kind != Kind::Mark {
            continue;
        }
        match text.as_bytes()[token.start] {
            byte @ (b'(' | b'[' | b'{') if open.len() < MAX_OPEN => open.push(byte),
            byte @ (b')' | b']' | b'}') => {
                let opener = if byte == b')' { b'(' } else { byte - 2 };
                if open.last() == Some(&opener) {
                    open.pop();
                } else if stray.len() < MAX_OPEN {
                    stray.push(token.start);
                }
            }
            _ => {}
        }
    }
    let start = *stray.first()?;
    (stray.len() >= MIN_STRAY && words >= MIN_WORDS && !is_pattern(text)).then(|| Seen {
        severity: marks as f64 / tokens.len() as f64,
        start,
        end: text.len(),
        evidence: format!("{} brackets close nothing among {marks} marks", stray.len()),
    })
}

/// Words in no order, where they are not those of the expected answer, which [`crate::detectors`] calls scrambled.
fn without_grammar(reading: &Reading<'_>) -> Option<Seen> {
    const MAX_SHARED: f64 = 0.3;
    let (text, tokens) = (reading.text, reading.tokens());
    let found = salad(text, tokens)?;
    let content = content_of(text, tokens);
    let is_shared = |it| share_in(&content_of_reference(it), &content) > MAX_SHARED;
    let is_asked_for = reading.references().iter().any(|it| salad(it.text, &it.tokens).is_some());
    if is_asked_for || reading.references().iter().any(is_shared) {
        return None;
    }
    let (start, end) = (tokens[found.first].start, tokens[found.last].end);
    Some(Seen {
        severity: (end - start) as f64 / text.len() as f64,
        start,
        end,
        evidence: format!("{} pairs of words that no sentence has, such as `{}`", found.odd, {
            let second = &tokens[(found.first + 1).min(tokens.len() - 1)];
            &text[start..second.end]
        }),
    })
}

fn is_ascii_mark(text: &str, token: &Token) -> bool {
    token.kind == Kind::Mark && text.as_bytes()[token.start].is_ascii()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detectors::Context;

    fn found(output: &str) -> Option<String> {
        detect(&Reading::of(&Context::of(output))).map(|finding| finding.evidence)
    }

    #[test]
    fn garbage_of_every_kind_is_found() {
        let cases = [
            ("The ledger \u{fffd}\u{fffd} was kept", "broken"),
            ("The ledger\u{7} was kept", "broken"),
            ("The code is 4829173<|im_end|>", "leaked"),
            ("4829173</s>", "leaked"),
            ("[INST] What is it? [/INST]", "leaked"),
            ("The<0x0A>ledger", "leaked"),
            ("<unused12> 4829173", "leaked"),
            ("ĠTheĠledgerĠwasĠkept", "vocabulary"),
            ("The led ##ger was ke ##pt by cle ##rks", "vocabulary"),
            ("The cafÃ© was closed", "encoding"),
            ("The clerkâ€™s ledger", "encoding"),
            ("РџСЂРёРІРµС‚ РјРёСЂ", "Cyrillic encoding"),
            ("浣犲ソ锛屼笘鐣銆", "Chinese encoding"),
            ("ledger контора 港口 항구 ferry", "scripts"),
            ("the leдgeр was kepт by clеркs", "scripts"),
            ("the ledger ;}?/~^%$#@!|\\{ <>", "marks"),
            ("xqvz the jkwq brfgt plmzx zvtq kept", "none"),
            ("Well: con_pro_ment_tion_ing_ed_er_al_ly_ness_able_ous_ive_ity_est_ize_ary", "underscores"),
        ];
        for (output, part) in cases {
            let evidence = found(output);
            assert!(evidence.as_ref().is_some_and(|it| it.contains(part)), "{output}: {evidence:?}");
        }
    }

    #[test]
    fn odd_but_whole_text_is_left_alone() {
        let outputs = [
            "9f86d081884c7d659a2feaa0c55ad015",
            "K7-QXZV\nB4-WVTQ",
            "The template ends a turn with `<|im_end|>` and begins one with `[INST]`.",
            "Hello, Привет, 你好, こんにちは, 안녕하세요",
            "Ich hätte gern ein Stück Käse – für 3 €.",
            "L'été à Genève, où «tout» coûte très cher.",
            "我们用API接口和JSON格式。",
            "for (i = 0; i < n; i++) { a[i] = b[i] ^ (c[i] << 2); }",
            "The NFL, NBC, HTML, XML and WWW are abbreviations; rhythm and nymphs are words.",
            "😀😃😄 👍🏽 👨‍👩‍👧",
            "E = mc², α = 0.05, Ω = 3",
            "a |> b |> c",
            "<s>old price</s> 12 €",
        ];
        for output in outputs {
            assert_eq!(found(output), None, "{output}");
        }
    }
}
