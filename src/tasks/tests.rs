//! Properties of generated items: budget, depth, uniqueness, shared text, and that the right answer can be derived.

use std::collections::HashSet;

use proptest::prelude::*;

use super::{Depth, GroupRequest, QuestionRequest, TASKS, Task, TaskError, default_output_reserve, find, generate};
use crate::sample::{Bin, Gold, Item, Language};
use crate::tokenizer::{TokenCounter, UNCOUNTABLE_TOKENS};

/// Cuts like a GPT-2 pre-tokenizer (a space clings to what follows) and takes four letters or one digit as a token.
struct Pieces;

impl TokenCounter for Pieces {
    fn count(&self, text: &str) -> usize {
        let mut total = 0;
        let mut letters = 0;
        for character in text.chars() {
            if character.is_alphabetic() {
                letters += 1;
                continue;
            }
            total += usize::div_ceil(letters, 4);
            letters = 0;
            total += usize::from(character != ' ');
        }
        total + usize::div_ceil(letters, 4)
    }

    fn count_chat(&self, messages: &[(&str, &str)]) -> usize {
        12 + messages.iter().map(|(_, content)| self.count(content)).sum::<usize>()
    }

    fn fingerprint(&self) -> String {
        "pieces".into()
    }

    fn is_additive_at(&self, left: &str, right: &str) -> bool {
        let starts_new = right.starts_with([' ', '\n']);
        left.is_empty() || right.is_empty() || (starts_new && !left.ends_with(char::is_whitespace))
    }
}

/// Tokens run across all boundaries, so no count of parts adds up.
struct Seamless;

impl TokenCounter for Seamless {
    fn count(&self, text: &str) -> usize {
        (text.len() * 3).div_ceil(11)
    }

    fn count_chat(&self, messages: &[(&str, &str)]) -> usize {
        self.count(&messages.iter().map(|(role, content)| format!("<{role}>{content}")).collect::<String>())
    }

    fn fingerprint(&self) -> String {
        "seamless".into()
    }
}

/// A model without a chat template.
struct Templateless;

impl TokenCounter for Templateless {
    fn count(&self, text: &str) -> usize {
        Pieces.count(text)
    }

    fn count_chat(&self, _: &[(&str, &str)]) -> usize {
        UNCOUNTABLE_TOKENS
    }

    fn fingerprint(&self) -> String {
        "templateless".into()
    }
}

/// Items of one document: one question per `(task, slot)`.
fn document(
    bin: u32,
    seed: &str,
    questions: &[(&str, u8)],
    counter: &dyn TokenCounter,
) -> Result<Vec<Item>, TaskError> {
    let params = toml::Table::new();
    let ids: Vec<String> = (0..questions.len()).map(|number| format!("{seed}/{number}")).collect();
    let requests = questions.iter().zip(&ids).map(|((task, slot), id)| QuestionRequest {
        item_id: id,
        task: find(task).unwrap(),
        slot_percent: *slot,
        index: 0,
        params: &params,
        variant_of: None,
    });
    generate(
        &GroupRequest {
            haystack_id: seed,
            language: Language::En,
            bin: Bin(bin),
            output_reserve: default_output_reserve(Bin(bin)),
            haystack: None,
            thinking_reserve: 0,
            questions: requests.collect(),
        },
        counter,
    )
}

fn content(item: &Item) -> &str {
    &item.messages[0].content
}

/// The part of the prompt that a reader may look the answer up in.
fn text_and_question(item: &Item) -> (&str, &str) {
    content(item).rsplit_once("\n\nQuestion: ").unwrap()
}

/// How often `key` stands in the text as whole words: `red pan` is not in `red panel`.
fn occurrences(text: &str, key: &str) -> usize {
    let is_edge = |neighbour: Option<char>| !neighbour.is_some_and(char::is_alphanumeric);
    text.match_indices(key)
        .filter(|(at, _)| is_edge(text[..*at].chars().next_back()) && is_edge(text[at + key.len()..].chars().next()))
        .count()
}

/// Whole numbers and codes of a text.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|character: char| !character.is_ascii_alphanumeric()).filter(|word| !word.is_empty())
}

fn check_budget(items: &[Item], counter: &dyn TokenCounter) {
    let bin = items[0].bin;
    let reserve = default_output_reserve(bin);
    let budget = bin.tokens() - reserve;
    for item in items {
        let counted = counter.count_chat(&[("user", content(item))]);
        assert_eq!(counted, item.prompt_tokens as usize, "{}", item.task);
        assert!(item.prompt_tokens <= budget, "{} of {budget}", item.prompt_tokens);
        assert!(item.max_output_tokens as usize > counter.count(&item.expected.answer));
        assert!(item.max_output_tokens <= reserve);
    }
    let longest = items.iter().map(|item| item.prompt_tokens).max().unwrap();
    let least = if bin.tokens() < 2048 { 0.90 } else { 0.97 };
    assert!(f64::from(longest) >= least * f64::from(budget), "{longest} of {budget}");
}

/// Derives the answer from the text by the task's own rule, without looking at what is expected.
fn check_solvable(item: &Item) {
    let (text, question) = text_and_question(item);
    let once =
        |value: &str| assert_eq!(words(text).filter(|word| *word == value).count(), 1, "{value} in {}", item.task);
    match &item.expected.gold {
        Gold::Value { value, distractors } => {
            once(value);
            assert!(distractors.iter().all(|other| other.value != *value && other.distance != 0));
            let statement =
                text.split(['\n', '.']).find(|statement| words(statement).any(|word| word == value)).unwrap();
            let key = match item.task.as_str() {
                "needle" => statement.split(" for the ").nth(1).unwrap().split(" is ").next().unwrap(),
                _ => statement.split(':').next().unwrap(),
            };
            assert!(question.contains(key), "{statement} / {question}");
            assert_eq!(occurrences(text, key), 1, "{key}");
        }
        Gold::Bindings { pairs } => {
            for pair in pairs {
                once(&pair.value);
                assert!(text.contains(&format!("for the {} is {}.", pair.key, pair.value)));
                assert_eq!(occurrences(text, &pair.key), 1);
                assert!(question.contains(&pair.key));
            }
        }
        Gold::Records { records, fields } => {
            let mut position = 0;
            for record in records {
                let number =
                    fields.iter().find(|(_, kind)| kind == "integer").map(|(name, _)| record[name].to_string());
                once(number.as_ref().unwrap());
                let at = text.find(number.as_ref().unwrap()).unwrap();
                assert!(at > position, "records stand in the order of the text");
                position = at;
            }
            let parsed: Vec<serde_json::Map<_, _>> = serde_json::from_str(&item.expected.answer).unwrap();
            assert_eq!(&parsed, records);
        }
        Gold::Sequence { lines } => {
            for line in lines {
                let (number, code) = line.split_once(": ").unwrap();
                once(code);
                assert!(
                    text.contains(&format!("Code number {number} of the "))
                        && text.contains(&format!(" list is {code}."))
                );
            }
        }
        Gold::Span { text: span } => {
            assert_eq!(text.matches(span.as_str()).count(), 1);
            assert!(text.contains(&format!(" passage: {span} Here ends the ")));
        }
        other => panic!("{other:?} is solved in tests/it/solvers"),
    }
}

const ALL: [&str; 6] = ["needle", "lookalike", "multiquery", "json_extract", "enumerate", "verbatim"];

#[test]
fn every_task_keeps_the_budget_and_can_be_solved_in_every_bin() {
    for task in ALL {
        for bin in [512, 2048, 8192, 32_768] {
            let items = document(bin, "alone", &[(task, 50)], &Pieces).unwrap();
            check_budget(&items, &Pieces);
            check_solvable(&items[0]);
        }
    }
}

#[test]
fn counts_that_do_not_add_up_are_made_exact_by_counting_whole_prompts() {
    for task in ALL {
        for bin in [512, 2048, 8192] {
            let items = document(bin, "seamless", &[(task, 25)], &Seamless).unwrap();
            check_budget(&items, &Seamless);
            check_solvable(&items[0]);
        }
    }
}

#[test]
fn depth_slots_are_reached_in_token_position() {
    for task in TASKS.iter().filter(|task| task.depth == Depth::AtSlot) {
        for slot in [0, 10, 25, 50, 75, 90, 100] {
            let items = document(32_768, "depth", &[(task.id, slot)], &Pieces).unwrap();
            let depth = items[0].depth_percent.unwrap();
            // The opening, the question and the needle itself take about 3 % of this bin.
            assert!((depth - f64::from(slot)).abs() < 3.5, "{} at {slot}: {depth}", task.id);
        }
    }
}

#[test]
fn the_stored_depth_is_where_the_needle_is() {
    let items = document(8192, "stored", &[("needle", 75)], &Pieces).unwrap();
    let before = content(&items[0]).split(&items[0].expected.answer).next().unwrap();
    let counted = 100.0 * Pieces.count(before) as f64 / f64::from(items[0].prompt_tokens);
    assert!((counted - items[0].depth_percent.unwrap()).abs() < 0.5);
}

#[test]
fn questions_of_one_document_share_every_byte_before_the_question() {
    let mixed = [("needle", 0), ("multiquery", 25), ("json_extract", 0), ("enumerate", 0), ("verbatim", 75)];
    let items = document(8192, "mixed", &mixed, &Pieces).unwrap();
    check_budget(&items, &Pieces);
    items.iter().for_each(check_solvable);
    let shared: HashSet<&str> = items.iter().map(|item| text_and_question(item).0).collect();
    assert_eq!(shared.len(), 1);
    let questions: HashSet<&str> = items.iter().map(|item| text_and_question(item).1).collect();
    assert_eq!(questions.len(), items.len());
    let schema = items[0].messages[0].content.find("JSON array").unwrap();
    assert!(schema < 600, "the schema stands before the text");
}

#[test]
fn several_questions_of_one_task_ask_for_different_things() {
    for task in ALL {
        let questions: Vec<(&str, u8)> = [0, 25, 75, 100].iter().map(|slot| (task, *slot)).collect();
        let items = document(8192, "several", &questions, &Pieces).unwrap();
        items.iter().for_each(check_solvable);
        let answers: HashSet<&str> = items.iter().map(|item| item.expected.answer.as_str()).collect();
        assert_eq!(answers.len(), 4);
    }
}

#[test]
fn every_lookalike_has_keys_at_distance_one_or_two() {
    let items = document(2048, "near", &[("lookalike", 10), ("lookalike", 90)], &Pieces).unwrap();
    for item in &items {
        let Gold::Value { value, distractors } = &item.expected.gold else { panic!("a value") };
        let line = content(item).lines().find(|line| line.ends_with(value.as_str())).unwrap();
        let key = line.split(':').next().unwrap();
        let near = distractors.iter().filter(|other| strsim::levenshtein(&other.key, key) <= 2).count();
        assert!(near >= 3, "{key}: {near}");
        let first = distractors.iter().map(|other| other.distance).min().unwrap();
        let last = distractors.iter().map(|other| other.distance).max().unwrap();
        assert_eq!(last - first, distractors.len() as i64);
    }
}

#[test]
fn what_does_not_fit_is_an_error_that_says_how_much_is_missing() {
    let questions: Vec<(&str, u8)> = vec![("enumerate", 0); 9];
    let error = document(512, "tight", &questions, &Pieces).unwrap_err();
    assert!(matches!(error, TaskError::TooSmall { needed, available: 416, .. } if needed > 416), "{error}");
    let error = document(512, "ground", &[("needle", 0), ("lookalike", 0)], &Pieces).unwrap_err();
    assert!(matches!(error, TaskError::MixedGround { .. }), "{error}");
    let error = document(512, "template", &[("needle", 0)], &Templateless).unwrap_err();
    assert!(matches!(error, TaskError::Uncountable { .. }), "{error}");
    let params = toml::from_str("span_tokens = 200").unwrap();
    let verbatim: &'static Task = find("verbatim").unwrap();
    let question =
        QuestionRequest { item_id: "x", task: verbatim, slot_percent: 0, index: 0, params: &params, variant_of: None };
    let request = GroupRequest {
        haystack_id: "y",
        language: Language::En,
        bin: Bin(512),
        output_reserve: 96,
        haystack: None,
        thinking_reserve: 0,
        questions: vec![question],
    };
    assert!(matches!(generate(&request, &Pieces), Err(TaskError::AnswerTooLong { .. })));
}

#[test]
fn a_hexadecimal_needle_is_asked_for_as_a_code() {
    let params = toml::from_str("value_kind = \"hex\"").unwrap();
    let task = find("needle").unwrap();
    let question =
        QuestionRequest { item_id: "h", task, slot_percent: 50, index: 0, params: &params, variant_of: None };
    let request = GroupRequest {
        haystack_id: "h",
        language: Language::En,
        bin: Bin(512),
        output_reserve: 96,
        haystack: None,
        thinking_reserve: 0,
        questions: vec![question],
    };
    let item = generate(&request, &Pieces).unwrap().remove(0);
    assert_eq!(item.expected.answer.len(), 32);
    assert!(text_and_question(&item).1.contains(" code for the "));
}

#[test]
fn the_filler_holds_no_number_that_could_be_a_value() {
    let items = document(32_768, "numbers", &[("needle", 50)], &Pieces).unwrap();
    let numbers: Vec<&str> =
        words(content(&items[0])).filter(|word| word.bytes().all(|byte| byte.is_ascii_digit())).collect();
    assert!(numbers.len() > 100, "the filler has numbers of its own");
    assert_eq!(numbers.iter().filter(|number| number.len() > 2).count(), 1);
}

#[test]
fn prose_hardly_ever_repeats_a_sentence() {
    let items = document(32_768, "repeat", &[("needle", 50)], &Pieces).unwrap();
    let sentences: Vec<&str> = content(&items[0]).split(". ").collect();
    let different: HashSet<&&str> = sentences.iter().collect();
    assert!(sentences.len() > 1000 && different.len() * 1000 >= sentences.len() * 995);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn any_document_is_within_budget_solvable_and_the_same_twice(
        seed in "[a-z]{1,8}",
        bin in 700_u32..6000,
        slots in proptest::collection::vec(0_u8..=100, 1..4),
        first in 0_usize..6,
    ) {
        let questions: Vec<(&str, u8)> = slots.iter().map(|slot| (ALL[first], *slot)).collect();
        let items = document(bin, &seed, &questions, &Pieces);
        prop_assert_eq!(&items, &document(bin, &seed, &questions, &Pieces));
        match items {
            Ok(items) => {
                check_budget(&items, &Pieces);
                items.iter().for_each(check_solvable);
            }
            Err(TaskError::TooSmall { needed, available, .. }) => prop_assert!(needed > available),
            Err(TaskError::AnswerTooLong { answer_tokens, output_reserve, .. }) => {
                prop_assert!(answer_tokens > output_reserve as usize);
            }
            Err(error) => prop_assert!(false, "{}", error),
        }
    }
}
