//! The text around the needles: as varied as natural text, not to be told from the needles by its build, or the user's own.

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use kvgauge::sample::{Bin, Item, Language};
use kvgauge::suite::Suite;
use kvgauge::tasks::{TaskError, UserText};
use kvgauge::tokenizer::{Tokenizer, WordTokenizer};

use crate::smollm2;

static SMOLLM2: LazyLock<Tokenizer> = LazyLock::new(|| smollm2::tokenizer(None));

fn suite(task: &str, bin: Bin, language: Language, samples: u32) -> Suite {
    let text = format!(
        "schema_version = 1\nname = \"haystack\"\ndescription = \"\"\nlanguage = \"{}\"\n\
         [[bins]]\ncontext = {}\nsamples = {samples}\n[[tasks]]\nkind = \"{task}\"\n",
        language.tag(),
        bin.tokens(),
    );
    Suite::parse(&text, "haystack").expect("a valid suite")
}

fn items(suite: &Suite) -> Vec<Item> {
    suite.plan().groups.iter().flat_map(|group| suite.generate(group, &WordTokenizer).expect("fits its bin")).collect()
}

fn document(item: &Item) -> &str {
    let content = &item.messages[0].content;
    content.rsplit_once("\n\nQuestion: ").or_else(|| content.rsplit_once("\n\n问题：")).expect("a question").0
}

/// Share of the `size`-grams that stood in the text before.
fn repeated<T: Eq + std::hash::Hash>(units: &[T], size: usize) -> f64 {
    let grams: Vec<&[T]> = units.windows(size).collect();
    let different: HashSet<&&[T]> = grams.iter().collect();
    1.0 - different.len() as f64 / grams.len() as f64
}

/// English prose of up to 8,000 characters repeats at most 4 % of its word 4-grams (99th percentile of our own count over
/// texts of 300 to 8,000 characters). So the text is looked at in windows of that length.
#[test]
fn english_filler_is_as_varied_as_natural_prose() {
    const WINDOW_CHARS: usize = 8000;
    for bin in [Bin(2048), Bin(8192)] {
        for item in items(&suite("verbatim", bin, Language::En, 6)) {
            let lower = document(&item).to_lowercase();
            let words: Vec<&str> =
                lower.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
            let window = words.len() * WINDOW_CHARS / lower.len().max(WINDOW_CHARS);
            for words in words.chunks(window).filter(|words| words.len() * 2 > window) {
                let share = repeated(words, 4);
                assert!(share <= 0.04, "{bin}: {share}");
            }
        }
    }
}

/// Running Chinese text has about one and a half characters to a word, so that six characters are what four words are, and
/// 1,400 words of English, about 8,000 characters, are 2,100 characters of Chinese.
#[test]
fn chinese_filler_is_as_varied_as_natural_prose() {
    const WINDOW_CHARS: usize = 2100;
    for bin in [Bin(2048), Bin(8192)] {
        for item in items(&suite("verbatim", bin, Language::Zh, 6)) {
            let characters: Vec<char> = document(&item).chars().filter(|c| c.is_alphanumeric()).collect();
            for window in characters.chunks(WINDOW_CHARS).filter(|window| window.len() * 2 > WINDOW_CHARS) {
                let share = repeated(window, 6);
                assert!(share <= 0.04, "{bin}: {share}");
            }
        }
    }
}

/// Words that carry the build of an English sentence; of all others only the place counts.
const FUNCTION_WORDS: [&str; 24] = [
    "the", "a", "of", "for", "to", "in", "is", "was", "are", "has", "and", "or", "with", "from", "at", "on", "by",
    "about", "that", "it", "but", "than", "between", "special",
];

/// `The special number for the red pan is 1234567` → `the special x for the x x is #`.
fn build(sentence: &str) -> Vec<&str> {
    let words = sentence.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    let mut build = vec!["^"];
    build.extend(words.map(|word| match FUNCTION_WORDS.iter().find(|known| word.eq_ignore_ascii_case(known)) {
        Some(known) => known,
        None if word.bytes().any(|byte| byte.is_ascii_digit()) => "#",
        None => "x",
    }));
    build.push("$");
    build
}

/// Mean surprise of the pairs of a build, in bits, with one added to every count.
fn surprise(build: &[&str], pairs: &HashMap<(String, String), f64>, firsts: &HashMap<String, f64>) -> f64 {
    let bits = build.windows(2).map(|pair| {
        let count = pairs.get(&(pair[0].to_owned(), pair[1].to_owned())).copied().unwrap_or(0.0);
        let all = firsts.get(pair[0]).copied().unwrap_or(0.0);
        -((count + 1.0) / (all + FUNCTION_WORDS.len() as f64)).log2()
    });
    bits.sum::<f64>() / (build.len() - 1) as f64
}

/// Ranks the sentences of each document by how surprising their build is: were needles odd, they would stand at the top.
#[test]
fn the_build_of_a_needle_is_that_of_its_neighbours() {
    for task in ["needle", "multiquery"] {
        let items = items(&suite(task, Bin(2048), Language::En, 40));
        let sentences = |item: &Item| -> Vec<String> {
            document(item).split(['\n', '.']).map(str::trim).filter(|it| !it.is_empty()).map(str::to_owned).collect()
        };
        let (mut pairs, mut firsts) = (HashMap::new(), HashMap::new());
        for sentence in items.iter().flat_map(sentences) {
            for pair in build(&sentence).windows(2) {
                *pairs.entry((pair[0].to_owned(), pair[1].to_owned())).or_insert(0.0) += 1.0;
                *firsts.entry(pair[0].to_owned()).or_insert(0.0) += 1.0;
            }
        }
        let is_needle =
            |sentence: &String| sentence.split(' ').any(|word| word.len() == 7 && word.parse::<u32>().is_ok());
        let (mut first, mut lengths) = (0, 0);
        for item in &items {
            let sentences = sentences(item);
            let score = |sentence: &&String| surprise(&build(sentence), &pairs, &firsts);
            let top = sentences.iter().max_by(|left, right| score(left).total_cmp(&score(right))).expect("sentences");
            first += usize::from(is_needle(top));
            let shortest = sentences.iter().filter(|it| !is_needle(it)).map(String::len).min().expect("filler");
            let longest = sentences.iter().filter(|it| !is_needle(it)).map(String::len).max().expect("filler");
            let needles: Vec<&String> = sentences.iter().filter(|it| is_needle(it)).collect();
            assert!(!needles.is_empty());
            lengths += needles.iter().filter(|needle| !(shortest..=longest).contains(&needle.len())).count();
        }
        // By chance it is one in about eighty sentences of a document.
        assert!(
            first * 10 <= items.len(),
            "{task}: the oddest sentence is a needle in {first} of {} texts",
            items.len()
        );
        assert_eq!(lengths, 0, "{task}: needles are neither the shortest nor the longest sentences");
    }
}

/// Sentences that no lexicon of ours makes.
fn diary(count: usize) -> UserText {
    let text: String = (0..count)
        .map(|day| {
            let (left, right) = (day * 7 % 31, day * 11 % 23);
            format!("On day {day} the gauge read {left} degrees. Nobody measured station {right}!\n")
        })
        .collect();
    UserText::parse(text.as_bytes(), "diary.txt").expect("text")
}

#[test]
fn the_users_own_text_fills_prose_from_another_place_each_time() {
    let plain = suite("enumerate", Bin(2048), Language::En, 4);
    let own = plain.clone().with_haystack(diary(400));
    assert_eq!(own.versions()["haystack"].len(), 64);
    assert_ne!(own.fingerprint(), plain.fingerprint());
    assert_ne!(own.fingerprint(), plain.clone().with_haystack(diary(401)).fingerprint());
    let ids = |suite: &Suite| items(suite).into_iter().map(|item| item.item_id).collect::<HashSet<_>>();
    assert!(ids(&own).is_disjoint(&ids(&plain)));
    let mut starts = HashSet::new();
    for group in own.plan().groups {
        let item = own.generate(&group, &*SMOLLM2).unwrap().remove(0);
        let text = document(&item);
        assert!(text.contains(" the gauge read ") && !text.contains(" crowns "), "{text}");
        assert!(item.prompt_tokens as f64 >= 0.97 * (2048.0 - 256.0));
        starts.insert(text.split(" degrees").next().unwrap().to_owned());
        // Numbers of four digits are codes: none of the diary's may look like one.
        for line in item.expected.answer.lines() {
            let code = line.split(": ").nth(1).unwrap();
            assert_eq!(text.matches(code).count(), 1, "{code}");
        }
    }
    assert!(starts.len() > 1, "every text starts elsewhere");
}

#[test]
fn sentences_that_hold_a_value_are_left_out_and_a_text_of_nothing_else_is_an_error() {
    // Every four-digit code stands in some sentence.
    let all: String = (1000..10_000).map(|code| format!("Parcel {code} was late.\n")).collect();
    let own = suite("enumerate", Bin(8192), Language::En, 2)
        .with_haystack(UserText::parse(all.as_bytes(), "parcels").unwrap());
    for item in items(&own) {
        for line in item.expected.answer.lines() {
            assert_eq!(document(&item).matches(line.split(": ").nth(1).unwrap()).count(), 1);
        }
    }
    let every: String =
        (0..200).map(|_| (1000..10_000).map(|it| it.to_string()).collect::<Vec<_>>().concat() + "\n").collect();
    let text = UserText::parse(every.as_bytes(), "digits").unwrap();
    let own = suite("enumerate", Bin(2048), Language::En, 1).with_haystack(text);
    let group = own.plan().groups.remove(0);
    match own.generate(&group, &WordTokenizer) {
        Ok(items) => {
            for line in items[0].expected.answer.lines() {
                assert_eq!(document(&items[0]).matches(line.split(": ").nth(1).unwrap()).count(), 1);
            }
        }
        Err(error) => assert!(matches!(error, TaskError::Unfilled { .. }), "{error}"),
    }
}

#[test]
fn a_chinese_text_of_the_users_own_is_counted_exactly() {
    let text: String =
        (0..300).map(|day| format!("第{day}天，河水涨了{}寸。没有人去看堤坝！“真的吗？”他问。\n", day % 17)).collect();
    let own =
        suite("verbatim", Bin(2048), Language::Zh, 2).with_haystack(UserText::parse(text.as_bytes(), "河").unwrap());
    use kvgauge::tokenizer::TokenCounter as _;
    for group in own.plan().groups {
        let item = own.generate(&group, &*SMOLLM2).unwrap().remove(0);
        assert!(document(&item).contains("没有人去看堤坝"));
        let counted = SMOLLM2.count_chat(&[("user", &item.messages[0].content)]);
        assert_eq!(counted, item.prompt_tokens as usize);
    }
}
