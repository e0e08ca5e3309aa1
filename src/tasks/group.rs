//! From the recipe of one document to its items.
//!
//! The prompt is `opening + document + closing + question`. Opening and closing are made so that units may be put between
//! them without changing any other count; the frame around the document is counted once, with the chat template, and the
//! counts of the units are added. Where the tokenizer does not prove that counts add up, whole prompts are counted and the
//! filler is shortened until they fit.

use super::haystack::{Document, Filler, Plant, Prose, arrange, fill};
use super::lexicon::{Lexicon, Reserved};
use super::lookalike::{PairFiller, PairLines};
use super::perturb::perturbed;
use super::planting::{Planted, Planting, Soil};
use super::user_text::{UserProse, UserText};
use super::{Depth, Ground, Task, TaskError};
use crate::rng::Rng;
use crate::sample::{Bin, Distractor, Expected, FollowUp, Gold, Item, Language, Message, Role, VariantOf};
use crate::tokenizer::{TokenCounter, UNCOUNTABLE_TOKENS};

/// The recipe of one document.
pub struct GroupRequest<'a> {
    /// Names the document; decides everything its questions share.
    pub haystack_id: &'a str,
    /// Language of text and questions.
    pub language: Language,
    /// The whole budget.
    pub bin: Bin,
    /// Tokens of the budget kept free for the answer, or for all that follows the first question of a conversation.
    pub output_reserve: u32,
    /// The user's own text as filler of prose; `None` for ours.
    pub haystack: Option<&'a UserText>,
    /// Tokens of the budget kept free for thinking before the answer.
    pub thinking_reserve: u32,
    /// The questions.
    pub questions: Vec<QuestionRequest<'a>>,
}

/// The recipe of one question.
pub struct QuestionRequest<'a> {
    /// Names the item; decides everything of its own.
    pub item_id: &'a str,
    /// The generator.
    pub task: &'static Task,
    /// Depth slot in percent.
    pub slot_percent: u8,
    /// Counts the items of one task × bin × slot.
    pub index: u32,
    /// The task's parameters.
    pub params: &'a toml::Table,
    /// The question before it that it asks in other words; it plants nothing of its own.
    pub variant_of: Option<&'a VariantOf>,
}

/// Tokens of text on each side of the needle in an item's excerpt.
const EXCERPT_REACH: usize = 200;

/// Rounds of counting whole prompts when counts of parts do not add up. Each round corrects the filler by the error of the
/// last, and the error of a part is below one token per boundary, so three rounds are the rule.
const MAX_ROUNDS: usize = 8;

/// Output allowed beyond the right answer: half as much again, and room for a sentence around a short one.
const OUTPUT_SLACK_TOKENS: usize = 24;

/// Least share of the budget that the longest prompt of a document fills. A sentence is up to 40 tokens, which is more than
/// 3 % of a short bin.
fn least_fill(bin: Bin) -> f64 {
    if bin.tokens() < 2048 { 0.90 } else { 0.97 }
}

/// Generates the items of one document, in the order of the questions.
///
/// Every prompt has at most `bin − output_reserve` tokens, template included, and the longest fills at least 97 % of that
/// (90 % below 2K).
///
/// # Errors
/// When the text that is asked for, or a right answer, does not fit; when unused keys or values run out; when parameters
/// are not legal; when the questions need different kinds of documents.
pub fn generate(request: &GroupRequest<'_>, counter: &dyn TokenCounter) -> Result<Vec<Item>, TaskError> {
    let lexicon = Lexicon::of(request.language);
    let ground = common_ground(request)?;
    let mut rng = Rng::from_name(&["haystack", request.haystack_id]);
    let mut soil = Soil {
        values: Default::default(),
        reserved: Reserved::default(),
        planted: String::new(),
        variant: rng.next_u64(),
        pairs: PairLines::default(),
    };
    let planted = plant_all(request, lexicon, &mut soil, counter)?;
    let frame = Frame::new(Surroundings::of(ground, request.language), &planted, soil.variant, counter);
    if frame.longest() >= UNCOUNTABLE_TOKENS {
        return Err(TaskError::Uncountable { tasks: task_list(request), bin: request.bin });
    }
    let reserve = request.output_reserve + request.thinking_reserve;
    let budget = request.bin.tokens().saturating_sub(reserve) as usize;
    let plants: Vec<Plant> = planted.iter().flat_map(|question| question.plants.iter().cloned()).collect();
    let plant_tokens: usize = plants.iter().map(|plant| plant.unit.tokens).sum();
    let needed = frame.longest() + plant_tokens;
    if needed > budget {
        return Err(too_small(request, needed, budget));
    }
    let mut source: Box<dyn Filler> = match ground {
        Ground::Prose if let Some(text) = request.haystack => {
            Box::new(UserProse::new(request.language, text, &soil, rng))
        }
        Ground::Prose | Ground::Given => {
            Box::new(Prose { language: request.language, lexicon, reserved: &soil.reserved, rng })
        }
        Ground::Pairs => Box::new(PairFiller { soil: &mut soil, rng }),
    };
    let composed = compose(request, &frame, &plants, source.as_mut(), budget, counter)?;
    drop(source);
    planted
        .into_iter()
        .enumerate()
        .map(|(index, question)| item(request, index, question, &frame, &composed, counter))
        .collect()
}

fn common_ground(request: &GroupRequest<'_>) -> Result<Ground, TaskError> {
    let mut grounds = request.questions.iter().map(|question| question.task.ground);
    let first = grounds.next().unwrap_or(Ground::Prose);
    if grounds.all(|ground| ground == first) {
        Ok(first)
    } else {
        Err(TaskError::MixedGround { tasks: task_list(request) })
    }
}

fn plant_all(
    request: &GroupRequest<'_>,
    lexicon: &'static Lexicon,
    soil: &mut Soil,
    counter: &dyn TokenCounter,
) -> Result<Vec<Planted>, TaskError> {
    let mut planted: Vec<Planted> = Vec::with_capacity(request.questions.len());
    for (number, question) in request.questions.iter().enumerate() {
        planted.push(match question.variant_of {
            Some(variant) => reworded(request, number, variant, &planted)?,
            None => (question.task.plant)(&mut Planting {
                task: question.task,
                language: request.language,
                bin: request.bin,
                slot: f64::from(question.slot_percent.min(100)) / 100.0,
                params: question.params,
                rng: Rng::from_name(&["item", question.item_id]),
                question: number,
                soil: &mut *soil,
                lexicon,
                counter,
            })?,
        });
    }
    Ok(planted)
}

/// The original's question in other words, with the same right answer and no plants of its own.
fn reworded(
    request: &GroupRequest<'_>,
    number: usize,
    variant: &VariantOf,
    planted: &[Planted],
) -> Result<Planted, TaskError> {
    let missing = || TaskError::PartialGroup { haystack_id: request.haystack_id.to_owned() };
    let mut question = planted.get(original(request, number)).ok_or_else(missing)?.clone();
    let mut rng = Rng::from_name(&["variant", request.questions[number].item_id]);
    question.question.text = perturbed(&question.question, variant.perturbation, request.language, &mut rng);
    question.plants.clear();
    Ok(question)
}

/// The question whose plants a question asks about: its own, or its original's.
fn original(request: &GroupRequest<'_>, number: usize) -> usize {
    let variant = request.questions[number].variant_of;
    let find = |variant: &VariantOf| request.questions.iter().position(|it| it.item_id == variant.item_id);
    variant.map_or(number, |variant| find(variant).unwrap_or(request.questions.len()))
}

/// The fixed words around a document.
struct Surroundings {
    /// First sentences; drawn per document.
    openings: &'static [&'static str],
    /// Between two sentences of the opening.
    space: &'static str,
    /// Right before the first unit, which begins with its separator.
    start: &'static str,
    /// Right behind the last unit; begins as a unit does.
    closing: &'static str,
    /// Before the question.
    question: &'static str,
}

impl Surroundings {
    fn of(ground: Ground, language: Language) -> &'static Self {
        match (ground, language) {
            (Ground::Prose | Ground::Given, Language::En) => &ENGLISH_PROSE,
            (Ground::Pairs, Language::En) => &ENGLISH_PAIRS,
            (Ground::Prose | Ground::Given, Language::Zh) => &CHINESE_PROSE,
            (Ground::Pairs, Language::Zh) => &CHINESE_PAIRS,
        }
    }
}

const ENGLISH_PROSE: Surroundings = Surroundings {
    openings: &[
        "Read the following text. At the end there is a question about it.",
        "Below is a collection of notes. Read them carefully; a question about them comes at the end.",
        "The text below contains some facts to remember. You will be asked about them afterwards.",
    ],
    space: " ",
    start: "Text:",
    closing: " This is the end of the text.",
    question: "\n\nQuestion: ",
};
const ENGLISH_PAIRS: Surroundings = Surroundings {
    openings: &[
        "Each line of the following list has a key and the value that belongs to it. At the end there is a question about the list.",
        "Below is a list of keys with their values, one pair on each line. A question about it comes at the end.",
    ],
    start: "The list",
    closing: "\nThe list ends here.",
    ..ENGLISH_PROSE
};
const CHINESE_PROSE: Surroundings = Surroundings {
    openings: &[
        "请阅读下面的文字。文末有一个与它有关的问题。",
        "下面是一些笔记。请仔细阅读，最后会就其内容提一个问题。",
        "下面的文字里有一些需要记住的事实，读完之后会问到它们。",
    ],
    space: "",
    start: "正文从这里开始",
    closing: "。正文到此结束。",
    question: "\n\n问题：",
};
const CHINESE_PAIRS: Surroundings = Surroundings {
    openings: &[
        "下面的列表每行有一个键和它对应的值。最后有一个关于这个列表的问题。",
        "下面是一份键和值的列表，每行一对。列表之后会提一个与它有关的问题。",
    ],
    start: "列表如下",
    closing: "\n列表到此结束。",
    ..CHINESE_PROSE
};

/// What stands around the document, with the token count of every whole prompt without the document's units.
struct Frame {
    opening: String,
    /// Closing and question, per question.
    endings: Vec<String>,
    /// Tokens of the text that each answer is made to begin with: they stand behind the prompt and belong to it.
    prefix_tokens: Vec<usize>,
    /// Prompt tokens without the document, per question.
    tokens: Vec<usize>,
    /// Tokens before the document, template included, as near as the template lets it be known.
    before: usize,
}

impl Frame {
    fn new(words: &Surroundings, planted: &[Planted], variant: u64, counter: &dyn TokenCounter) -> Self {
        let mut opening = words.openings[(variant % words.openings.len() as u64) as usize].to_owned();
        let mut seen: Vec<&str> = Vec::new();
        for extra in planted.iter().filter_map(|question| question.opening.as_deref()) {
            if !seen.contains(&extra) {
                seen.push(extra);
                opening.push_str(words.space);
                opening.push_str(extra);
            }
        }
        opening.push_str("\n\n");
        opening.push_str(words.start);
        let ending = |asked: &Planted| [words.closing, words.question, asked.question.text.as_str()].concat();
        let endings: Vec<String> = planted.iter().map(ending).collect();
        let prefix_tokens: Vec<usize> = planted.iter().map(|question| counter.count(&question.answer_prefix)).collect();
        let count = |ending: &String| counter.count_chat(&[("user", &format!("{opening}{ending}"))]);
        let tokens: Vec<usize> =
            endings.iter().zip(&prefix_tokens).map(|(ending, prefix)| count(ending) + prefix).collect();
        let before = tokens.iter().zip(&endings).map(|(all, ending)| all.saturating_sub(counter.count(ending))).min();
        Self { before: before.unwrap_or(0), opening, endings, prefix_tokens, tokens }
    }

    fn longest(&self) -> usize {
        self.tokens.iter().copied().max().unwrap_or(0)
    }

    /// Puts a document inside and counts: by addition where that is proven, else whole prompts.
    fn around(&self, document: Document, counter: &dyn TokenCounter) -> Composed {
        let text = document.text();
        let is_exact = self.endings.iter().all(|ending| document.is_additive(&self.opening, ending, counter));
        let prompt_tokens = if is_exact {
            self.tokens.iter().map(|tokens| tokens + document.tokens).collect()
        } else {
            let count = |question: usize| {
                counter.count_chat(&[("user", &self.content(question, &text))]) + self.prefix_tokens[question]
            };
            (0..self.endings.len()).map(count).collect()
        };
        Composed { document, text, prompt_tokens }
    }

    fn content(&self, question: usize, text: &str) -> String {
        [self.opening.as_str(), text, self.endings[question].as_str()].concat()
    }
}

/// A document with the exact length of each prompt.
struct Composed {
    document: Document,
    text: String,
    prompt_tokens: Vec<usize>,
}

impl Composed {
    fn longest(&self) -> usize {
        self.prompt_tokens.iter().copied().max().unwrap_or(0)
    }
}

/// Fills, arranges and counts. Where sums of counts are not proven exact, whole prompts are counted and the filler is
/// shortened or lengthened by what they are off, a few times at most.
fn compose(
    request: &GroupRequest<'_>,
    frame: &Frame,
    plants: &[Plant],
    source: &mut dyn Filler,
    budget: usize,
    counter: &dyn TokenCounter,
) -> Result<Composed, TaskError> {
    let wanted = (budget as f64 * least_fill(request.bin)).ceil() as usize;
    let planted: usize = plants.iter().map(|plant| plant.unit.tokens).sum();
    let mut filler = fill(source, budget - frame.longest() - planted, counter);
    let mut fullest: Option<Composed> = None;
    for _ in 0..MAX_ROUNDS {
        let composed = frame.around(arrange(plants.to_vec(), filler.clone()), counter);
        let longest = composed.longest();
        if longest <= budget {
            if fullest.as_ref().is_none_or(|best| best.longest() < longest) {
                fullest = Some(composed);
            }
            if longest >= wanted {
                break;
            }
            filler.extend(fill(source, budget - longest, counter));
        } else {
            let mut excess = longest - budget;
            while excess > 0 {
                let Some(unit) = filler.pop() else { return Err(too_small(request, longest, budget)) };
                excess = excess.saturating_sub(unit.tokens);
            }
        }
    }
    let prompt_tokens = fullest.as_ref().map_or(0, Composed::longest);
    fullest.filter(|_| prompt_tokens >= wanted).ok_or(TaskError::Unfilled {
        bin: request.bin,
        prompt_tokens,
        available: budget,
        wanted,
    })
}

fn item(
    request: &GroupRequest<'_>,
    index: usize,
    planted: Planted,
    frame: &Frame,
    composed: &Composed,
    counter: &dyn TokenCounter,
) -> Result<Item, TaskError> {
    let question = &request.questions[index];
    let document = &composed.document;
    let prompt_tokens = composed.prompt_tokens[index];
    let needle = document.find(original(request, index), 0);
    let depth = |at: usize| 100.0 * (frame.before + document.units[at].offset) as f64 / prompt_tokens as f64;
    let (mut expected, mut follow_ups) = (planted.expected, planted.follow_ups);
    if let (Gold::Value { distractors, .. }, Some(at)) = (&mut expected.gold, needle) {
        *distractors = other_entries(document, at);
    }
    for follow_up in &mut follow_ups {
        if let Gold::Value { value, distractors } = &mut follow_up.expected.gold
            && let Some(at) = document.find_value(value)
        {
            *distractors = other_entries(document, at);
        }
    }
    Ok(Item {
        item_id: question.item_id.to_owned(),
        task: question.task.id.to_owned(),
        language: request.language,
        bin: request.bin,
        slot_percent: question.slot_percent,
        index: question.index,
        haystack_id: request.haystack_id.to_owned(),
        messages: vec![Message { role: Role::User, content: frame.content(index, &composed.text) }],
        prompt_tokens: prompt_tokens as u32,
        max_output_tokens: output_limit(request, question.task, &expected, &follow_ups, counter)?,
        depth_percent: needle.filter(|_| question.task.depth == Depth::AtSlot).map(depth),
        expected,
        scorer: question.task.scorer.to_owned(),
        excerpt: needle.map(|at| document.excerpt(at, EXCERPT_REACH)).unwrap_or_default(),
        follow_ups,
        answer_prefix: planted.answer_prefix,
        variant_of: question.variant_of.cloned(),
    })
}

/// One and a half times the right answer and some, within the reserve: a run that goes astray stays short. In a conversation
/// it is the limit of each answer, and the later questions are paid out of the reserve too.
fn output_limit(
    request: &GroupRequest<'_>,
    task: &Task,
    expected: &Expected,
    follow_ups: &[FollowUp],
    counter: &dyn TokenCounter,
) -> Result<u32, TaskError> {
    let answers = || std::iter::once(expected).chain(follow_ups.iter().map(|turn| &turn.expected));
    let turns = 1 + follow_ups.len();
    // One more for the token that ends the answer.
    let answer_tokens = answers().map(|turn| counter.count(&turn.answer)).max().unwrap_or(0) + 1;
    let asking_tokens = follow_up_tokens(expected, follow_ups, counter);
    if asking_tokens >= UNCOUNTABLE_TOKENS {
        return Err(TaskError::Uncountable { tasks: task.id.into(), bin: request.bin });
    }
    let needed = turns * answer_tokens + asking_tokens;
    if needed > request.output_reserve as usize {
        return Err(TaskError::AnswerTooLong {
            task: task.id.into(),
            bin: request.bin,
            answer_tokens: needed,
            output_reserve: request.output_reserve,
        });
    }
    let wanted = answer_tokens + answer_tokens / 2 + OUTPUT_SLACK_TOKENS;
    let free = (request.output_reserve as usize - asking_tokens) / turns;
    Ok(wanted.min(free) as u32 + request.thinking_reserve / turns as u32)
}

/// Tokens of the later questions with the template around them and around the answers before them.
fn follow_up_tokens(expected: &Expected, follow_ups: &[FollowUp], counter: &dyn TokenCounter) -> usize {
    if follow_ups.is_empty() {
        return 0;
    }
    // The first prompt is counted elsewhere; here any text stands for it.
    let first = ("user", ".");
    let mut messages = vec![first];
    let mut answer = &expected.answer;
    let mut answer_tokens = 0;
    for turn in follow_ups {
        messages.extend([("assistant", answer.as_str()), ("user", turn.question.as_str())]);
        answer_tokens += counter.count(answer);
        answer = &turn.expected.answer;
    }
    match counter.count_chat(&messages) {
        UNCOUNTABLE_TOKENS.. => UNCOUNTABLE_TOKENS,
        all => all.saturating_sub(counter.count_chat(&[first]) + answer_tokens),
    }
}

/// The keys and values of a text other than the one at `needle`, with their distance in entries.
fn other_entries(document: &Document, needle: usize) -> Vec<Distractor> {
    let entries = || document.units.iter().enumerate().filter(|(_, placed)| placed.unit.entry.is_some());
    let rank = entries().take_while(|(at, _)| *at < needle).count() as i64;
    let others = entries().enumerate().filter(|(_, (at, _))| *at != needle);
    others
        .filter_map(|(number, (_, placed))| {
            let entry = placed.unit.entry.clone()?;
            Some(Distractor { key: entry.key, value: entry.value, distance: number as i64 - rank })
        })
        .collect()
}

fn task_list(request: &GroupRequest<'_>) -> String {
    let mut ids: Vec<&str> = request.questions.iter().map(|question| question.task.id).collect();
    ids.dedup();
    ids.join(", ")
}

fn too_small(request: &GroupRequest<'_>, needed: usize, available: usize) -> TaskError {
    TaskError::TooSmall { tasks: task_list(request), bin: request.bin, needed, available }
}
