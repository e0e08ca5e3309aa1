//! Sentences of another language, and words of one scattered over sentences of another.
//!
//! The language asked for is that of the expected answers and the baseline, else the item's, else the prompt's. Without any of
//! these it is the output's own most of the time, and then more is asked of what differs. Judged per sentence: a share of
//! letters over a whole text cannot tell a summary full of foreign names (2 % of its letters) from one that drifts (7 %).
//! Quotations, parentheses, names, code in fences, comments and whatever the prompt or a reference says are left aside. A prompt
//! that asks for a translation, or that names a language, may get any language or that one; lines that alternate between two
//! languages are a translation too.

use std::cell::LazyCell;
use std::ops::Range;

use crate::detectors::reading::{Bytes, Reading};
use crate::detectors::tokens::{Kind, Token};
use crate::detectors::tongue::{Counts, Tongue, bit, function_word, tongue_of};
use crate::sample::{Finding, FindingKind, Language};

/// A quotation has no more tokens.
const MAX_QUOTED: usize = 40;
/// Words (half as many pairs of ideographs) of foreign sentences, where only the output itself says what is foreign …
const MIN_OWN_WORDS: usize = 5;
/// … and their share of the whole.
const MIN_OWN_SHARE: f64 = 0.08;
/// Scattered words: this many, where the language is known …
const MIN_SCATTERED: usize = 2;
/// … and where it is not.
const MIN_OWN_SCATTERED: usize = 3;
/// Function words of another language in a text, and their share of all function words.
const MIN_FOREIGN_HITS: usize = 4;
/// … and how many different ones: `No` in a column and `os` in code are not Spanish and Portuguese.
const MIN_FOREIGN_KINDS: usize = 3;
/// Changes between the languages from line to line that a translation beside its original has.
const MIN_BILINGUAL_CHANGES: usize = 4;
/// Words beside their translation that make a glossary.
const MIN_GLOSSES: usize = 3;
/// Bytes at both ends of a prompt in which it says what language to answer in.
const MAX_REQUEST_BYTES: usize = 1024;
const MIN_FOREIGN_SHARE: f64 = 0.3;

pub(super) fn detect(reading: &Reading<'_>) -> Option<Finding> {
    if reading.context.is_as_expected() || reading.text.trim().is_empty() {
        return None;
    }
    if reading.prompt().is_some_and(|prompt| wants_translation(prompt.text)) {
        return None;
    }
    let (asked, known) = Asked::of(reading);
    let judged = judge_sentences(reading, &asked, &known)?;
    judged.finding(reading)
}

/// The languages that are no drift.
struct Asked {
    tongues: Vec<Tongue>,
    /// Whether anything but the output says so.
    is_known: bool,
}

impl Asked {
    /// With the output's sentences, where those were asked for.
    fn of(reading: &Reading<'_>) -> (Self, Vec<Whole>) {
        let context = reading.context;
        let mut tongues: Vec<Tongue> = Vec::new();
        for reference in reading.references() {
            tongues.extend(tongue_of(reference.text, &reference.tokens));
        }
        if tongues.is_empty() {
            tongues.extend(match context.language {
                Some(Language::En) => Tongue::of_code("en"),
                Some(Language::Zh) => Some(Tongue::Chinese),
                None => context.language_code.and_then(Tongue::of_code),
            });
        }
        if tongues.is_empty() {
            tongues.extend(reading.prompt().and_then(|prompt| tongue_of(prompt.text, &prompt.tokens)));
        }
        let is_known = !tongues.is_empty();
        if let Some(prompt) = reading.prompt() {
            tongues.extend(named_tongues(prompt.text));
        }
        let mut of_sentences = Vec::new();
        if !is_known {
            let (own, found) = own_tongue(reading);
            tongues.extend(own);
            of_sentences = found;
        }
        (Self { tongues, is_known }, of_sentences)
    }

    fn has(&self, tongue: Tongue) -> bool {
        self.tongues.contains(&tongue)
    }

    /// Function words of the languages asked for.
    fn bits(&self) -> u8 {
        self.tongues.iter().fold(0, |bits, tongue| bits | bit(*tongue))
    }

    fn is_latin(&self) -> bool {
        self.tongues.iter().any(|tongue| matches!(tongue, Tongue::Latin(_)))
    }
}

/// The ends of a prompt: what lies between them is the text asked about.
fn request(prompt: &str) -> String {
    let start = &prompt[..prompt.floor_char_boundary(MAX_REQUEST_BYTES)];
    let end = &prompt[prompt.ceil_char_boundary(prompt.len().saturating_sub(MAX_REQUEST_BYTES))..];
    format!("{start} {end}").to_lowercase()
}

fn wants_translation(prompt: &str) -> bool {
    const WORDS: [&str; 9] =
        ["translat", "翻译", "译成", "übersetz", "tradui", "traduc", "traduz", "bilingual", "双语"];
    let request = request(prompt);
    WORDS.iter().any(|word| request.contains(word))
}

/// Languages that a prompt speaks of.
pub(super) fn named_tongues(prompt: &str) -> Vec<Tongue> {
    const NAMES: [(&str, &str); 28] = [
        ("english", "en"),
        ("英文", "en"),
        ("英语", "en"),
        ("chinese", "zh"),
        ("mandarin", "zh"),
        ("中文", "zh"),
        ("汉语", "zh"),
        ("french", "fr"),
        ("法语", "fr"),
        ("spanish", "es"),
        ("西班牙语", "es"),
        ("german", "de"),
        ("德语", "de"),
        ("italian", "it"),
        ("意大利语", "it"),
        ("portuguese", "pt"),
        ("葡萄牙语", "pt"),
        ("dutch", "nl"),
        ("japanese", "ja"),
        ("日语", "ja"),
        ("日文", "ja"),
        ("korean", "ko"),
        ("韩语", "ko"),
        ("russian", "ru"),
        ("俄语", "ru"),
        ("arabic", "ar"),
        ("hindi", "hi"),
        ("greek", "el"),
    ];
    let request = request(prompt);
    NAMES.iter().filter(|(name, _)| request.contains(name)).filter_map(|(_, code)| Tongue::of_code(code)).collect()
}

/// A sentence with everything in it.
struct Whole {
    tongue: Option<Tongue>,
    words: usize,
}

/// The language that most sentences are in, and each of them.
fn own_tongue(reading: &Reading<'_>) -> (Option<Tongue>, Vec<Whole>) {
    let (text, tokens) = (reading.text, reading.tokens());
    let mut words: Vec<(Tongue, usize)> = Vec::new();
    let mut of_sentences = Vec::with_capacity(reading.sentences().len());
    for sentence in reading.sentences() {
        let found = &tokens[sentence.clone()];
        let counts = Counts::of(found);
        let tongue = counts.tongue(&text[found[0].start..found[found.len() - 1].end]);
        let whole = Whole { tongue, words: counts.words() };
        if let Some(tongue) = tongue {
            match words.iter_mut().find(|(known, _)| *known == tongue) {
                Some((_, sum)) => *sum += whole.words,
                None => words.push((tongue, whole.words)),
            }
        }
        of_sentences.push(whole);
    }
    // The first of equals: drift comes later.
    let own = words.iter().rev().max_by_key(|(_, sum)| *sum).map(|(tongue, _)| *tongue);
    (own, of_sentences)
}

#[derive(Default)]
struct Judged {
    is_known: bool,
    /// Words of foreign sentences, and of all.
    foreign: usize,
    all: usize,
    sentences: usize,
    /// Whether the last sentence of the text is foreign.
    ends_foreign: bool,
    /// Changes between languages from sentence to sentence.
    changes: usize,
    scattered: usize,
    start: Option<usize>,
    end: usize,
    tongue: Option<Tongue>,
    scattered_at: Option<(usize, usize)>,
    /// Function words of the asked languages, and of each known one alone.
    asked_hits: usize,
    foreign_hits: [usize; 7],
    /// Different ones of these.
    foreign_kinds: [Vec<u64>; 7],
    /// Foreign sentences that begin within a line of another language.
    inside_lines: usize,
    /// Scattered pieces that stand beside their translation.
    glosses: usize,
    pieces: usize,
}

/// `known` are the sentences, where they were looked at before.
fn judge_sentences(reading: &Reading<'_>, asked: &Asked, known: &[Whole]) -> Option<Judged> {
    if asked.tongues.is_empty() {
        return None;
    }
    let (text, tokens) = (reading.text, reading.tokens());
    let quotes = !reading.is_data() && may_quote(reading.bytes());
    let mut judged = Judged { is_known: asked.is_known, ..Judged::default() };
    let mut runs_checked = 0;
    let code = if reading.bytes().has_any(b"`/#") { code_places(text) } else { Vec::new() };
    let mut kept = Vec::new();
    for (number, sentence) in reading.sentences().iter().enumerate() {
        let mut open = &tokens[sentence.clone()];
        let all = open.len();
        if quotes && open.iter().any(|token| may_open(text, token)) || !code.is_empty() {
            kept.clear();
            keep_open(&mut kept, text, open, quotes);
            kept.retain(|token| !is_in(&code, token.start));
            open = &kept;
        }
        let (Some(first), Some(last)) = (open.first(), open.last()) else { continue };
        let known = known.get(number).filter(|_| open.len() == all);
        let counts = LazyCell::new(|| Counts::of(open));
        let words = known.map_or_else(|| counts.words(), |known| known.words);
        judged.all += words;
        let tongue = match known {
            Some(known) => known.tongue,
            None => counts.tongue(&text[first.start..last.end]),
        };
        let is_foreign = |tongue: &Tongue| {
            !asked.has(*tongue) && is_foreign(*tongue, &counts, asked) && !is_said(reading, first, last)
        };
        let foreign = tongue.filter(is_foreign);
        if foreign.is_some() != judged.ends_foreign {
            judged.changes += 1;
        }
        judged.ends_foreign = foreign.is_some();
        if let Some(tongue) = foreign {
            judged.foreign += words;
            judged.sentences += 1;
            judged.inside_lines += usize::from(!begins_line(text, first.start));
            judged.tongue.get_or_insert(tongue);
            judged.start.get_or_insert(first.start);
            judged.end = last.end;
        } else {
            judged.count_scattered(reading, asked, open, &mut runs_checked);
        }
    }
    Some(judged)
}

/// Fenced blocks, and comments to the end of their line: they are written in another language than the prose around them.
fn code_places(text: &str) -> Vec<Range<usize>> {
    let mut places = Vec::new();
    let (mut at, mut fence) = (0, None);
    for line in text.split_inclusive('\n') {
        let end = at + line.len();
        if line.trim_start().starts_with("```") {
            fence = match fence {
                None => Some(at),
                Some(start) => {
                    places.push(start..end);
                    None
                }
            };
        } else if fence.is_none()
            && let Some(comment) = comment(line)
        {
            places.push(at + comment..end);
        }
        at = end;
    }
    places.extend(fence.map(|start| start..text.len()));
    places
}

/// Whether one of the places, which are in order, has `at`.
fn is_in(places: &[Range<usize>], at: usize) -> bool {
    let after = places.partition_point(|place| place.end <= at);
    places.get(after).is_some_and(|place| place.contains(&at))
}

/// Where a comment begins in a line of code.
fn comment(line: &str) -> Option<usize> {
    if !line.bytes().any(|byte| matches!(byte, b'/' | b'#')) {
        return None;
    }
    let found = line.find("//").filter(|at| !line[..*at].ends_with(':')).or_else(|| line.find("/*"));
    // A mark of Markdown at the start of a line; after code it begins a comment.
    found.or_else(|| {
        line.find(" # ").filter(|at| line[..*at].trim_end().ends_with([')', ';', '}', ']', ':', '"', '\'']))
    })
}

/// Whether a piece is the second half of a line, after a mark that says so.
fn is_gloss(text: &str, start: usize, end: usize) -> bool {
    let before = text[..start].trim_end_matches(' ');
    let after = text[end..].trim_start_matches([' ', ',', ';', '.', '。', '；', '|']);
    before.ends_with(['-', '–', '—', ':', '：', '=', '→', '|']) && (after.is_empty() || after.starts_with('\n'))
}

/// Whether nothing stands before `at` on its line but a mark, a number or a label.
fn begins_line(text: &str, at: usize) -> bool {
    const MAX_LABEL: usize = 24;
    let line = text[..at].rfind('\n').map_or(0, |end| end + 1);
    let before = text[line..at].trim_end();
    !before.contains(char::is_alphabetic)
        || (before.len() <= MAX_LABEL && before.ends_with([':', '：', '|', '-', '–', '—']))
}

/// A whole sentence that is foreign, and enough of one to say so.
fn is_foreign(tongue: Tongue, counts: &Counts, asked: &Asked) -> bool {
    if asked.has(tongue) {
        return false;
    }
    match tongue {
        Tongue::Latin(_) => {
            let asked_hits =
                (0..7).filter(|at| asked.bits() >> at & 1 == 1).map(|at| counts.hits[at]).max().unwrap_or(0);
            let most = counts.hits.iter().max().copied().unwrap_or(0);
            // Names have capitals, titles of a language too; a sentence has small words that mean something.
            counts.latin >= 3 && counts.small * 2 > counts.latin && (most == 0 || most >= asked_hits + 2)
        }
        // Japanese without kana is possible in a short line only.
        Tongue::Chinese if asked.has(Tongue::Japanese) => counts.han >= 12,
        Tongue::Chinese => counts.han >= if asked.is_known { 2 } else { 6 },
        Tongue::Japanese => counts.kana + counts.han >= 4 && counts.kana >= 2,
        _ => counts.words() >= if asked.is_known { 1 } else { 3 },
    }
}

/// Whether a reference or the prompt says these words.
fn is_said(reading: &Reading<'_>, first: &Token, last: &Token) -> bool {
    let said = &reading.text[first.start..last.end];
    said.len() < 4096
        && (reading.references().iter().any(|reference| reference.text.contains(said))
            || reading.prompt().is_some_and(|prompt| prompt.text.contains(said)))
}

const QUOTES: [(&str, &str); 13] = [
    ("“", "”"),
    ("\"", "\""),
    ("«", "»"),
    ("「", "」"),
    ("『", "』"),
    ("《", "》"),
    ("‘", "’"),
    ("„", "“"),
    ("`", "`"),
    ("(", ")"),
    ("（", "）"),
    ("[", "]"),
    ("【", "】"),
];

/// Whether there is a byte with which one of [`QUOTES`] begins.
fn may_quote(bytes: &Bytes) -> bool {
    QUOTES.iter().any(|(opener, _)| bytes.has(opener.as_bytes()[0]))
}

/// Whether a mark may be an opening one of [`QUOTES`].
fn may_open(text: &str, token: &Token) -> bool {
    let byte = text.as_bytes()[token.start];
    token.kind == Kind::Mark && (!byte.is_ascii() || b"\"`([".contains(&byte))
}

/// Keeps the tokens of a sentence that stand in no quotation marks and no parentheses.
fn keep_open(open: &mut Vec<Token>, text: &str, found: &[Token], quotes: bool) {
    let mut at = 0;
    while at < found.len() {
        let token = &found[at];
        if quotes
            && may_open(text, token)
            && let Some((_, closer)) = QUOTES.iter().find(|(opener, _)| *opener == token.text(text))
            && let Some(length) = found[at + 1..].iter().take(MAX_QUOTED).position(|token| token.text(text) == *closer)
        {
            at += length + 2;
            continue;
        }
        open.push(*token);
        at += 1;
    }
}

impl Judged {
    /// Words of other languages inside a sentence that is of none of them.
    fn count_scattered(&mut self, reading: &Reading<'_>, asked: &Asked, open: &[Token], runs_checked: &mut usize) {
        let text = reading.text;
        let asked_bits = asked.bits();
        let is_latin = asked.is_latin();
        let mut at = 0;
        while at < open.len() {
            let token = &open[at];
            let languages = function_word(token);
            if languages & asked_bits != 0 {
                self.asked_hits += 1;
            } else if languages != 0 && token.end - token.start >= 2 {
                self.count_foreign(token, languages);
            }
            // Where Latin letters are asked for, none of them is foreign: most tokens of most texts.
            if is_latin && matches!(token.script, None | Some(Tongue::Latin(_))) {
                at += 1;
                continue;
            }
            let Some(tongue) = foreign_letter(text, token, asked) else {
                at += 1;
                continue;
            };
            let length = open[at..].iter().take_while(|next| foreign_letter(text, next, asked) == Some(tongue)).count();
            let (first, last) = (&open[at], &open[at + length - 1]);
            at += length;
            let is_at_line_start =
                text[..first.start].trim_end_matches([' ', '-', '*']).ends_with('\n') || first.start == 0;
            let run = &text[first.start..last.end];
            *runs_checked += 1;
            if *runs_checked > 64 || is_named(run, tongue, length) || is_said(reading, first, last) {
                continue;
            }
            if !asked.is_known && is_at_line_start {
                continue;
            }
            if is_gloss(text, first.start, last.end) {
                self.glosses += 1;
            }
            self.scattered += if length >= 4 && asked.is_known { 2 } else { 1 };
            self.tongue.get_or_insert(tongue);
            self.pieces += 1;
            let place = self.scattered_at.get_or_insert((first.start, last.end));
            place.1 = last.end;
        }
    }

    fn count_foreign(&mut self, token: &Token, languages: u8) {
        for (language, hits) in self.foreign_hits.iter_mut().enumerate().filter(|(at, _)| languages >> at & 1 == 1) {
            *hits += 1;
            let kinds = &mut self.foreign_kinds[language];
            if kinds.len() < MIN_FOREIGN_KINDS && !kinds.contains(&token.hash) {
                kinds.push(token.hash);
            }
        }
    }

    fn finding(self, reading: &Reading<'_>) -> Option<Finding> {
        let share = self.foreign as f64 / self.all.max(1) as f64;
        let is_bilingual =
            self.changes >= MIN_BILINGUAL_CHANGES && self.inside_lines == 0 && !reading.context.has_measure();
        let is_enough = if self.is_known {
            self.sentences > 0 && !is_bilingual
        } else {
            // Glossaries and dialogues go back and forth.
            self.foreign >= MIN_OWN_WORDS && share >= MIN_OWN_SHARE && self.changes <= 3 && share < 0.95
        };
        let name = self.tongue.map_or("another language", Tongue::name);
        if is_enough && let Some(start) = self.start {
            let evidence = format!("{} of {} words are {name}", self.foreign, self.all);
            return Some(finding(reading, share, start, self.end, evidence));
        }
        let least = if self.is_known { MIN_SCATTERED } else { MIN_OWN_SCATTERED };
        let is_glossary = self.glosses >= MIN_GLOSSES && self.glosses == self.pieces;
        if let Some((start, end)) = self.scattered_at
            && self.scattered >= least
            && !is_glossary
            && !self.tongue.is_some_and(|tongue| named_tongues(reading.text).contains(&tongue))
        {
            let evidence = format!("{} scattered pieces of {name}", self.scattered);
            return Some(finding(reading, 0.3, start, end, evidence));
        }
        let kinds = |language: usize| self.foreign_kinds[language].len();
        let varied = (0..7).filter(|language| kinds(*language) >= MIN_FOREIGN_KINDS);
        let most = varied.map(|language| self.foreign_hits[language]).max().unwrap_or(0);
        let is_mixed = most >= MIN_FOREIGN_HITS
            && most as f64 >= (most + self.asked_hits) as f64 * MIN_FOREIGN_SHARE
            && !reading.is_data();
        is_mixed.then(|| {
            let evidence = format!("{most} function words of another language beside {}", self.asked_hits);
            finding(reading, 0.3, 0, reading.text.len(), evidence)
        })
    }
}

fn finding(reading: &Reading<'_>, severity: f64, start: usize, end: usize, evidence: String) -> Finding {
    Finding {
        kind: FindingKind::LanguageDrift,
        severity: severity.clamp(0.0, 1.0),
        start: reading.from + start,
        end: reading.from + end,
        evidence,
    }
}

/// The script of a token that no asked language is written in. Latin letters are at home everywhere (units, brands, code);
/// inside another script only their function words count.
fn foreign_letter(text: &str, token: &Token, asked: &Asked) -> Option<Tongue> {
    if !token.is_wordlike() {
        return None;
    }
    let tongue = token.script?;
    match tongue {
        Tongue::Latin(_) if asked.is_latin() => None,
        Tongue::Latin(_) => {
            (token.end - token.start >= 2 && !token.is_capital && function_word(token) != 0).then_some(tongue)
        }
        // Letters of formulas.
        Tongue::Greek if token.text(text).chars().count() < 3 => None,
        Tongue::Chinese if asked.has(Tongue::Japanese) || asked.has(Tongue::Korean) => None,
        Tongue::Japanese if matches!(token.text(text), "・" | "ー") => None,
        _ => (!asked.has(tongue)).then_some(tongue),
    }
}

/// Chinese names by their first or last character, names of other scripts by their capital, single letters.
fn is_named(run: &str, tongue: Tongue, length: usize) -> bool {
    const SURNAMES: &str = "王李张刘陈杨赵黄周吴徐孙胡朱高林何郭马罗梁宋郑谢韩唐冯于董萧程曹袁邓许傅沈曾彭吕苏卢蒋蔡贾丁魏薛叶阎余潘杜戴夏钟汪田任姜范方石姚谭廖邹熊金陆郝孔白崔康毛邱秦江史顾侯邵孟龙万段雷钱汤尹黎易常武乔贺赖龚文";
    const PLACES: &str = "市省县区路街镇村山河江湖海岛港寺庙塔楼桥园馆店村店庄";
    let (first, last) = (run.chars().next(), run.chars().last());
    match tongue {
        Tongue::Chinese => {
            let is_person = length <= 3 && first.is_some_and(|first| SURNAMES.contains(first));
            let is_place = (2..=5).contains(&length) && last.is_some_and(|last| PLACES.contains(last));
            (is_person && length >= 2) || is_place
        }
        Tongue::Cyrillic | Tongue::Greek => length <= 3 && first.is_some_and(char::is_uppercase),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detectors::Context;

    fn found(context: &Context<'_>) -> Option<String> {
        detect(&Reading::of(context)).map(|finding| finding.evidence)
    }

    const ENGLISH: &str = "The harbour office closed early that week. Two clerks kept the ledger in turn. ";

    #[test]
    fn sentences_of_another_language_are_found() {
        let cases = [
            ("en", "Le code de la lanterne est dans le registre."),
            ("en", "Der Beamte hat das Buch im Amt geführt."),
            ("fr", "El empleado guardaba el libro en la oficina."),
            ("en", "答案是 4829173。"),
            ("zh", "The code of the lantern is 4829173."),
            ("zh", "港長は早く事務所を閉めました。"),
            ("en", "Контора порта закрылась рано."),
            ("en", "The ferry left the 码头 at noon and 然后 came back to the pier."),
            ("zh", "渡轮在中午 left the 码头，然后 came back 回到了 the pier。"),
        ];
        for (code, output) in cases {
            assert!(found(&Context { language_code: Some(code), ..Context::of(output) }).is_some(), "{output}");
        }
        let late = format!("{ENGLISH}{ENGLISH}第三天港务长来到办公室里想要看一看那本旧帐本。");
        assert!(found(&Context::of(&late)).is_some(), "without a reference the output itself is one");
    }

    #[test]
    fn names_quotations_and_terms_are_left_alone() {
        let cases = [
            ("en", format!("{ENGLISH}The sign said “海关”, which means customs (海关).")),
            ("en", format!("{ENGLISH}Mr. 王伟 signed for 青岛市 and left.")),
            ("zh", "我们用 Docker 部署 API 服务，日志写进 Elasticsearch。".into()),
            ("en", "Rio de la Plata".into()),
            ("en", "K7-AMBER\nQ2-BIRCH".into()),
            ("zh", "amber lantern=4829173\nbirch door=5510284".into()),
            ("en", "4829173".into()),
        ];
        for (code, output) in cases {
            assert_eq!(found(&Context { language_code: Some(code), ..Context::of(&output) }), None, "{output}");
        }
        let glossary = "harbour: 港口\nship: 船\nclerk: 职员\nledger: 帐本";
        assert_eq!(found(&Context::of(glossary)), None);
        let expected = "Answer: 港口办公室很早就关门了";
        assert_eq!(found(&Context { expected: &[expected], ..Context::of("港口办公室关门了") }), None);
    }
}
