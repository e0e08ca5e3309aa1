//! The same question in other words: typos, case, punctuation, a paraphrase.
//!
//! Nothing changes what is asked for. Names and values, quoted text, numbers, signs of a format and words in capitals stay
//! as they are; only ordinary words and the punctuation of sentences are touched.

use super::planting::Question;
use crate::rng::Rng;
use crate::sample::{Language, Perturbation};

/// One in this many ordinary words gets a typo, and one at least.
const WORDS_PER_TYPO: usize = 6;

/// A typo in a shorter word makes another word of it.
const LEAST_TYPO_CHARS: usize = 4;

/// The changes that make sense in a language: Chinese has no case.
pub(crate) fn perturbations(language: Language) -> impl Iterator<Item = Perturbation> {
    let has_case = language == Language::En;
    Perturbation::ALL.into_iter().filter(move |change| has_case || *change != Perturbation::Case)
}

/// The question with one change. A question that offers no place for it stays as it is.
pub(super) fn perturbed(question: &Question, change: Perturbation, language: Language, rng: &mut Rng) -> String {
    let text: Vec<char> = question.text.chars().collect();
    let is_fixed = fixed_places(&text, &question.fixed);
    let changed = match (change, language) {
        (Perturbation::Paraphrase, _) => return question.paraphrase.clone(),
        (Perturbation::Typos, Language::En) => with_typos(&text, &is_fixed, rng),
        (Perturbation::Typos, Language::Zh) => with_swapped_characters(&text, &is_fixed, rng),
        (Perturbation::Case, _) => with_other_case(&text, &is_fixed, rng),
        (Perturbation::Punctuation, _) => with_other_punctuation(&text, &is_fixed, rng),
    };
    changed.into_iter().collect()
}

/// Which characters no change may touch.
fn fixed_places(text: &[char], fixed: &[String]) -> Vec<bool> {
    let mut is_fixed: Vec<bool> = text.iter().map(char::is_ascii_digit).collect();
    for part in fixed.iter().map(|part| part.chars().collect::<Vec<char>>()).filter(|part| !part.is_empty()) {
        for start in (0..text.len()).filter(|start| text[*start..].starts_with(&part)) {
            is_fixed[start..start + part.len()].fill(true);
        }
    }
    let mut closing = None;
    for (place, &character) in text.iter().enumerate() {
        let opened = match character {
            '"' | '`' => Some(character),
            '“' => Some('”'),
            '「' => Some('」'),
            _ => None,
        };
        is_fixed[place] |= closing.is_some() || opened.is_some();
        closing = match closing {
            Some(mark) if mark == character => None,
            None => opened,
            open => open,
        };
    }
    is_fixed
}

/// First and one past the last character of every ordinary word: letters alone, not all capitals, and no part of a form such
/// as `number: code`.
fn ordinary_words(text: &[char], is_fixed: &[bool]) -> Vec<(usize, usize)> {
    let mut words = Vec::new();
    let mut start = 0;
    let mut is_behind_colon = false;
    for end in 0..=text.len() {
        if end < text.len() && !text[end].is_whitespace() {
            continue;
        }
        let mut last = end;
        while last > start && matches!(text[last - 1], '.' | ',' | ';' | '?' | '!') {
            last -= 1;
        }
        let word = &text[start..last];
        let is_plain = !word.is_empty() && word.iter().all(|c| c.is_alphabetic() || matches!(c, '\'' | '’'));
        let is_shouted = word.len() > 1 && word.iter().all(|c| c.is_uppercase());
        if is_plain && !is_shouted && !is_behind_colon && !is_fixed[start..last].contains(&true) {
            words.push((start, last));
        }
        is_behind_colon = end > start && text[end - 1] == ':';
        start = end + 1;
    }
    words
}

fn with_typos(text: &[char], is_fixed: &[bool], rng: &mut Rng) -> Vec<char> {
    let mut words = ordinary_words(text, is_fixed);
    words.retain(|(start, end)| end - start >= LEAST_TYPO_CHARS);
    let count = words.len().div_ceil(WORDS_PER_TYPO);
    let mut chosen: Vec<(usize, usize)> = rng.distinct(count, words.len()).into_iter().map(|at| words[at]).collect();
    // From the back, so that the places before stay.
    chosen.sort_unstable_by(|left, right| right.cmp(left));
    let mut changed = text.to_vec();
    for (start, end) in chosen {
        // The first letter stays, so that the word is known.
        let place = start + 1 + rng.below(end - start - 2);
        match rng.below(3) {
            0 if changed[place] != changed[place + 1] => changed.swap(place, place + 1),
            1 => changed.insert(place, changed[place]),
            _ => drop(changed.remove(place)),
        }
    }
    changed
}

/// The Chinese way to mistype: two characters of a clause have changed places.
fn with_swapped_characters(text: &[char], is_fixed: &[bool], rng: &mut Rng) -> Vec<char> {
    let can_swap = |place: &usize| {
        let (left, right) = (text[*place], text[*place + 1]);
        let is_free = !is_fixed[*place] && !is_fixed[*place + 1];
        is_free
            && left != right
            && left.is_alphabetic()
            && right.is_alphabetic()
            && !left.is_ascii()
            && !right.is_ascii()
    };
    let places: Vec<usize> = (0..text.len().saturating_sub(1)).filter(can_swap).collect();
    let mut changed = text.to_vec();
    let count = places.len().div_ceil(4 * WORDS_PER_TYPO);
    let mut taken: Vec<usize> = Vec::new();
    for place in rng.distinct(count, places.len()).into_iter().map(|at| places[at]) {
        // Swaps that touch would carry a character on.
        if taken.iter().all(|other| other.abs_diff(place) > 1) {
            changed.swap(place, place + 1);
            taken.push(place);
        }
    }
    changed
}

/// All capitals, a capital for every word, or none at all.
fn with_other_case(text: &[char], is_fixed: &[bool], rng: &mut Rng) -> Vec<char> {
    let words = ordinary_words(text, is_fixed);
    let mut changed = text.to_vec();
    let style = rng.below(3);
    for (start, end) in words {
        let reach = if style == 0 { end } else { start + 1 };
        for character in &mut changed[start..reach] {
            *character = if style < 2 { character.to_ascii_uppercase() } else { character.to_ascii_lowercase() };
        }
    }
    changed
}

/// Every mark of a sentence is left out or doubled, with equal chance.
fn with_other_punctuation(text: &[char], is_fixed: &[bool], rng: &mut Rng) -> Vec<char> {
    let mut changed = Vec::with_capacity(text.len() + 8);
    for (place, &character) in text.iter().enumerate() {
        let is_chinese = matches!(character, '，' | '。' | '？' | '！' | '；');
        let ends_a_word = text.get(place + 1).is_none_or(|next| next.is_whitespace());
        let is_mark = is_chinese || (matches!(character, ',' | '.' | '?' | '!' | ';') && ends_a_word);
        let copies = if is_mark && !is_fixed[place] { 2 * rng.below(2) } else { 1 };
        changed.extend(std::iter::repeat_n(character, copies));
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question() -> Question {
        Question {
            text: "What is the ticket number for the amber bell? Write \"the end\" behind it, or NONE, in the form number: code.".into(),
            paraphrase: "Which ticket number belongs to the amber bell?".into(),
            fixed: vec!["ticket number".into(), "amber bell".into()],
        }
    }

    fn drawn(question: &Question, change: Perturbation, language: Language) -> Vec<String> {
        (0..200_u32)
            .map(|draw| perturbed(question, change, language, &mut Rng::from_name(&["test", &draw.to_string()])))
            .collect()
    }

    #[test]
    fn names_quotes_and_forms_stay_and_the_rest_changes() {
        let question = question();
        for change in [Perturbation::Typos, Perturbation::Case, Perturbation::Punctuation] {
            for text in drawn(&question, change, Language::En) {
                assert_ne!(text, question.text, "{change:?}");
                for kept in ["ticket number", "amber bell", "\"the end\"", "NONE", "number: code"] {
                    assert!(text.contains(kept), "{change:?}: {text}");
                }
            }
        }
    }

    #[test]
    fn a_change_touches_only_what_it_is_named_after() {
        let question = question();
        let letters = |text: &str| text.chars().filter(|c| c.is_alphanumeric()).collect::<String>();
        for text in drawn(&question, Perturbation::Punctuation, Language::En) {
            assert_eq!(letters(&text), letters(&question.text));
        }
        for text in drawn(&question, Perturbation::Case, Language::En) {
            assert_eq!(text.to_lowercase(), question.text.to_lowercase());
        }
        for text in drawn(&question, Perturbation::Typos, Language::En) {
            assert_eq!(text.split(' ').count(), question.text.split(' ').count(), "{text}");
            assert!(strsim::levenshtein(&text, &question.text) <= 2 * 3, "{text}");
        }
        assert_eq!(drawn(&question, Perturbation::Paraphrase, Language::En)[0], question.paraphrase);
    }

    #[test]
    fn chinese_characters_change_places_and_names_stay() {
        let question = Question {
            text: "请写出金黄的灯笼清单的全部代码，每行一个，格式为“编号: 代码”，不要写别的内容。".into(),
            paraphrase: String::new(),
            fixed: vec!["金黄的灯笼".into()],
        };
        for text in drawn(&question, Perturbation::Typos, Language::Zh) {
            assert_ne!(text, question.text);
            assert!(text.contains("金黄的灯笼") && text.contains("“编号: 代码”"), "{text}");
            let sorted = |text: &str| {
                let mut characters: Vec<char> = text.chars().collect();
                characters.sort_unstable();
                characters
            };
            assert_eq!(sorted(&text), sorted(&question.text));
        }
        assert_eq!(perturbations(Language::Zh).count(), 3);
    }

    #[test]
    fn a_question_without_ordinary_words_stays() {
        let question = Question { text: "\"a\" 12".into(), paraphrase: "\"a\": 12".into(), fixed: Vec::new() };
        for change in [Perturbation::Typos, Perturbation::Case, Perturbation::Punctuation] {
            assert_eq!(drawn(&question, change, Language::En)[0], question.text);
        }
    }
}
