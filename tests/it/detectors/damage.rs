//! Whole texts, and every fault done to them at random places and in three strengths.

use std::fmt::Write as _;

use kvgauge::rng::Rng;
use kvgauge::sample::Language;

/// A whole answer, with what is known of it.
pub(super) struct Whole {
    pub(super) text: String,
    pub(super) question: String,
    pub(super) task: String,
    pub(super) language: Language,
    /// Whether the text is in that language; a value is in none.
    pub(super) is_in_it: bool,
}

/// How much is damaged, from hard to see to plain.
pub(super) const STRENGTHS: [&str; 3] = ["light", "middle", "heavy"];

/// A fault: the kind that it is, what is done, and whether it shows without the expected answer.
pub(super) struct Fault {
    pub(super) kind: &'static str,
    pub(super) name: &'static str,
    pub(super) shows_alone: bool,
    /// `None` where a text cannot have it.
    pub(super) damage: fn(&Whole, usize, &mut Rng) -> Option<String>,
}

pub(super) const FAULTS: &[Fault] = &[
    Fault { kind: "repetition", name: "phrase loop", shows_alone: true, damage: phrase_loop },
    Fault { kind: "repetition", name: "token loop", shows_alone: true, damage: token_loop },
    Fault { kind: "repetition", name: "line loop", shows_alone: false, damage: line_loop },
    Fault { kind: "repetition", name: "doubling", shows_alone: true, damage: doubling },
    Fault { kind: "repetition", name: "one character", shows_alone: true, damage: character_run },
    Fault { kind: "repetition", name: "counter loop", shows_alone: false, damage: counter_loop },
    Fault { kind: "garbage", name: "broken characters", shows_alone: true, damage: broken_characters },
    Fault { kind: "garbage", name: "leaked token", shows_alone: true, damage: leaked_token },
    Fault { kind: "garbage", name: "mojibake", shows_alone: true, damage: mojibake },
    Fault { kind: "garbage", name: "random letters", shows_alone: true, damage: random_letters },
    Fault { kind: "garbage", name: "many scripts", shows_alone: true, damage: many_scripts },
    Fault { kind: "truncation", name: "cut", shows_alone: false, damage: cut },
    Fault { kind: "truncation", name: "empty", shows_alone: true, damage: empty },
    Fault { kind: "scrambled", name: "order of lines", shows_alone: false, damage: order_of_lines },
    Fault { kind: "scrambled", name: "order of words", shows_alone: false, damage: order_of_words },
    Fault { kind: "language_drift", name: "sentences at the end", shows_alone: true, damage: language_switch },
    Fault { kind: "format_drift", name: "fence or talk", shows_alone: false, damage: wrapped },
    Fault { kind: "format_drift", name: "marks of lines", shows_alone: false, damage: marks_of_lines },
    Fault { kind: "off_topic", name: "another topic", shows_alone: false, damage: another_topic },
    Fault { kind: "prompt_echo", name: "the question", shows_alone: false, damage: question_again },
];

fn is_prose(whole: &Whole) -> bool {
    let words = whole.text.split_whitespace().count();
    let ideographs = whole.text.chars().filter(|c| ('\u{4e00}'..='\u{9fff}').contains(c)).count();
    let is_data = whole.text.starts_with(['{', '[', '|', '<', '`']) || whole.text.contains("  ");
    !is_data && (words >= 14 || ideographs >= 24) && whole.text.ends_with(['.', '。'])
}

/// A start of the text, cut between characters; strong damage begins early.
fn kept(text: &str, strength: usize, rng: &mut Rng) -> String {
    let share = [0.9, 0.6, 0.3][strength] + rng.unit() * 0.1;
    let chars = text.chars().count();
    text.chars().take((chars as f64 * share) as usize).collect()
}

fn phrase_loop(whole: &Whole, strength: usize, rng: &mut Rng) -> Option<String> {
    let phrases = match whole.language {
        Language::En => {
            [" and the gate was shut again,", " the clerk said that", " I will check the list.", " so it is"]
        }
        Language::Zh => ["大门又关上了，", "职员说，", "我再看一下名单。", "所以是这样的，"],
    };
    let phrase = *rng.choose(&phrases);
    Some(kept(&whole.text, strength, rng) + &phrase.repeat([8, 16, 60][strength] + rng.below(5)))
}

fn token_loop(whole: &Whole, strength: usize, rng: &mut Rng) -> Option<String> {
    let token = *rng.choose(&[" the", " I", "的", " null", " of", " 是"]);
    Some(kept(&whole.text, strength, rng) + &token.repeat([30, 60, 200][strength]))
}

fn line_loop(whole: &Whole, strength: usize, rng: &mut Rng) -> Option<String> {
    let lines: Vec<&str> = whole.text.lines().collect();
    if lines.len() < 3 || lines.iter().any(|line| line.chars().count() < 6) {
        return None;
    }
    let last = 1 + rng.below(lines.len() - 1);
    let line = lines[last];
    // Lines that the text has more than once may come again.
    (lines.iter().filter(|other| **other == line).count() == 1)
        .then(|| lines[..=last].join("\n") + &format!("\n{line}").repeat([8, 16, 60][strength]))
}

fn doubling(whole: &Whole, strength: usize, _: &mut Rng) -> Option<String> {
    if !is_prose(whole) {
        return None;
    }
    let parts: Vec<String> = match whole.language {
        Language::En => whole.text.split_inclusive(' ').map(String::from).collect(),
        Language::Zh => whole.text.chars().map(String::from).collect(),
    };
    let sound = parts.len() * [50, 25, 0][strength] / 100;
    let twice = |part: &String| {
        let is_mark = !part.chars().any(char::is_alphanumeric);
        if is_mark { part.clone() } else { format!("{} {}", part.trim_end(), part) }
    };
    let doubled: Vec<String> = parts[sound..].iter().map(twice).collect();
    let text = parts[..sound].concat() + &doubled.concat();
    Some(if whole.language == Language::Zh { text.replace(' ', "") } else { text })
}

fn character_run(whole: &Whole, strength: usize, rng: &mut Rng) -> Option<String> {
    let (text, mark) = *rng.choose(&[("!", 60), ("0", 60), ("\n", 60), (" ", 300), ("啊", 60), ("?", 60)]);
    Some(kept(&whole.text, strength, rng) + &text.repeat(mark * [1, 2, 5][strength]) + "x")
}

fn counter_loop(whole: &Whole, strength: usize, _: &mut Rng) -> Option<String> {
    let times = [30, 60, 200][strength];
    // A text with many numbers may well be a counted one.
    if whole.text.lines().count() * 2 > times || whole.text.len() > 2000 {
        return None;
    }
    let mut text = whole.text.clone();
    for at in 1..=times {
        write!(text, "\nEntry {at}: the same as above.").ok()?;
    }
    Some(text)
}

/// Puts pieces into a text at random places, between characters.
fn sown(text: &str, pieces: &[&str], times: usize, rng: &mut Rng) -> String {
    let mut chars: Vec<String> = text.chars().map(String::from).collect();
    for _ in 0..times {
        let at = rng.below(chars.len() + 1);
        chars.insert(at, (*rng.choose(pieces)).into());
    }
    chars.concat()
}

fn broken_characters(whole: &Whole, strength: usize, rng: &mut Rng) -> Option<String> {
    let pieces = ["\u{fffd}", "\u{fffd}\u{fffd}", "\u{1}", "\u{9d}", "\u{e012}"];
    Some(sown(&whole.text, &pieces, [1, 3, 12][strength], rng))
}

fn leaked_token(whole: &Whole, strength: usize, rng: &mut Rng) -> Option<String> {
    let tokens = ["<|im_end|>", "<|endoftext|>", "</s>", "[INST]", "<end_of_turn>", "<|eot_id|>", "<unk>"];
    let token = *rng.choose(&tokens);
    Some(whole.text.clone() + &token.repeat([1, 2, 3][strength]))
}

fn mojibake(whole: &Whole, strength: usize, rng: &mut Rng) -> Option<String> {
    let pieces = ["Ã©", "â€™", "â€œ", "Ã¼", "ä¸\u{AD}", "Ã±"];
    is_prose(whole).then(|| sown(&whole.text, &pieces, [2, 4, 12][strength], rng))
}

fn random_letters(whole: &Whole, strength: usize, rng: &mut Rng) -> Option<String> {
    if whole.text.len() > 2000 {
        return None;
    }
    let mut text = kept(&whole.text, strength, rng);
    for _ in 0..[16, 30, 80][strength] {
        text.push(' ');
        for _ in 0..4 + rng.below(5) {
            text.push(char::from(b'a' + rng.below(26) as u8));
        }
    }
    Some(text)
}

fn many_scripts(whole: &Whole, strength: usize, rng: &mut Rng) -> Option<String> {
    let pieces = ["函数", " функци", " ಕನ್ನಡ", " การ", " ویر", "항구", " Kreuz", " ment", " πρό", "の"];
    let mut text = kept(&whole.text, strength, rng);
    for at in 0..[10, 20, 60][strength] {
        text += pieces[(at + rng.below(3)) % pieces.len()];
    }
    Some(text)
}

fn cut(whole: &Whole, strength: usize, rng: &mut Rng) -> Option<String> {
    let share = [0.75, 0.5, 0.25][strength] + rng.unit() * 0.1;
    let chars = whole.text.chars().count();
    let words = whole.text.split(|c: char| !c.is_ascii_alphanumeric()).count();
    (chars >= 24 && words >= 6).then(|| whole.text.chars().take((chars as f64 * share) as usize).collect())
}

fn empty(_: &Whole, strength: usize, _: &mut Rng) -> Option<String> {
    Some(" \n".repeat(strength))
}

fn order_of_lines(whole: &Whole, strength: usize, rng: &mut Rng) -> Option<String> {
    let mut lines: Vec<&str> = whole.text.lines().collect();
    let mut distinct = lines.clone();
    distinct.sort_unstable();
    distinct.dedup();
    if lines.len() < 3 || distinct.len() < lines.len() || whole.text.contains("```") || whole.text.contains("\n\n") {
        return None;
    }
    // An answer whose lines are a set has no order.
    if matches!(whole.task.as_str(), "chain" | "tool_call") {
        return None;
    }
    match strength {
        0 => {
            let at = rng.below(lines.len() - 1);
            lines.swap(at, at + 1);
        }
        1 => {
            let by = 1 + rng.below(lines.len() - 1);
            lines.rotate_left(by);
        }
        _ => lines.reverse(),
    }
    Some(lines.join("\n"))
}

fn order_of_words(whole: &Whole, _: usize, rng: &mut Rng) -> Option<String> {
    if !is_prose(whole) || whole.language == Language::Zh || whole.text.contains('\n') {
        return None;
    }
    let mut words: Vec<&str> = whole.text.split_whitespace().collect();
    rng.shuffle(&mut words);
    Some(words.join(" "))
}

fn language_switch(whole: &Whole, strength: usize, rng: &mut Rng) -> Option<String> {
    const IN_ENGLISH: [[&str; 2]; 6] = [
        ["港务长第二天又来到了办公室。", "他在那里看了很久的旧账本。"],
        ["Le greffier est revenu le lendemain dans le bureau.", "Il y avait un vieux registre sur la table."],
        ["El empleado volvió al día siguiente a la oficina.", "En la mesa había un libro muy viejo."],
        ["Der Beamte kam am nächsten Tag wieder in das Büro.", "Auf dem Tisch lag ein sehr altes Buch."],
        ["На следующий день писарь снова пришёл в контору.", "На столе лежала старая книга."],
        ["翌日、書記はまた事務所に来ました。", "机の上に古い帳簿がありました。"],
    ];
    const IN_CHINESE: [[&str; 2]; 2] = [
        ["The clerk came back to the office the next day.", "There was an old ledger on the table."],
        ["翌日、書記はまた事務所に来ました。", "机の上に古い帳簿がありました。"],
    ];
    if !is_prose(whole) {
        return None;
    }
    let [first, second] = match whole.language {
        Language::En => *rng.choose(&IN_ENGLISH),
        Language::Zh => *rng.choose(&IN_CHINESE),
    };
    let added = [first.to_string(), format!("{first} {second}"), format!("{first} {second} ").repeat(2)];
    Some(format!("{} {}", whole.text, added[strength].trim_end()))
}

fn wrapped(whole: &Whole, strength: usize, _: &mut Rng) -> Option<String> {
    let text = &whole.text;
    let is_json = text.starts_with(['{', '[']);
    let lines = text.lines().count();
    if !(is_json || (lines >= 3 && text.lines().all(|line| line.contains('=')))) {
        return None;
    }
    Some(match strength {
        0 => format!("{text}\nLet me know if you need anything else."),
        1 => format!("Sure, here is the list that you asked for:\n{text}"),
        _ => format!("```\n{text}\n```"),
    })
}

fn marks_of_lines(whole: &Whole, strength: usize, rng: &mut Rng) -> Option<String> {
    let lines: Vec<&str> = whole.text.lines().collect();
    if lines.len() < 4 || !lines.iter().all(|line| line.matches('=').count() == 1 && !line.contains(['{', '"'])) {
        return None;
    }
    let from = [lines.len() - 1, lines.len() / 2, 0][strength].min(1 + rng.below(lines.len()));
    let changed = |(at, line): (usize, &&str)| if at >= from { line.replace('=', ": ") } else { (*line).to_string() };
    Some(lines.iter().enumerate().map(changed).collect::<Vec<_>>().join("\n"))
}

fn another_topic(whole: &Whole, strength: usize, rng: &mut Rng) -> Option<String> {
    const ENGLISH: [&str; 4] = [
        "Tomatoes need plenty of sun and a deep soil, and they should be watered early in the morning.",
        "Volcanoes form where plates drift apart and molten rock rises toward the surface of the earth.",
        "Jazz grew out of ragtime and blues, and its players improvise over a set of chords.",
        "A good loaf of bread needs flour, yeast, salt, warm water and a hot oven.",
    ];
    const CHINESE: [&str; 3] = [
        "番茄需要充足的阳光和深厚的土壤，最好在清晨浇水，每月施肥两次。",
        "火山形成于板块分离的地方，熔岩从地球深处升到表面，冷却以后变成岩石。",
        "爵士乐起源于蓝调，演奏者常常在和弦的基础上即兴发挥，节奏十分自由。",
    ];
    let topics: &[&str] = if whole.language == Language::En { &ENGLISH } else { &CHINESE };
    let first = rng.below(topics.len());
    let text: Vec<&str> = (0..=strength).map(|at| topics[(first + at) % topics.len()]).collect();
    Some(text.join(" "))
}

fn question_again(whole: &Whole, _: usize, _: &mut Rng) -> Option<String> {
    (whole.question.len() >= 40 && !whole.question.contains(&whole.text)).then(|| whole.question.clone())
}
