//! `tool_call`: a request in the middle of the text has to be carried out with one of the tools defined before it.
//!
//! Tools are a verb with an object, so that many of them share half of their name and arguments; from 2K on a second request
//! for another tool stands far from the one that is asked for. The tools of a document are the same for all its questions.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::params::{ParamError, PerBin, parse};
use super::planting::{Planted, Planting, Wordings, filled};
use super::{Depth, Ground, Task, TaskError, TaskGroup};
use crate::rng::Rng;
use crate::sample::{Expected, Gold, Language, ToolSpec};

/// The registry's entry.
pub(super) const TASK: Task = Task {
    id: "tool_call",
    summary: "one call of the right tool, with arguments out of the text",
    group: TaskGroup::Structure,
    scorer: "tool_call",
    generator_version: 1,
    ground: Ground::Prose,
    depth: Depth::AtSlot,
    check,
    plant,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    /// Number of tools on offer.
    tools: Option<PerBin<u32>>,
}

/// Tools by length of the bin. Tokenizers made for English take two tokens and more for a Chinese character.
const TOOLS: [u32; 5] = [4, 8, 12, 16, 24];
const CHINESE_TOOLS: [u32; 5] = [3, 8, 12, 16, 24];

/// Tokens of a bin from which on there is room for a second request.
const ROOM_FOR_ANOTHER: u32 = 2048;

/// What an argument holds.
#[derive(Clone, Copy)]
enum Holds {
    /// A word out of a class of the lexicon.
    Word(&'static str),
    /// A small number, as the filler has them.
    Count,
    /// A number that stands nowhere else.
    Code,
    /// Yes or no.
    Flag,
}

impl Holds {
    /// Its JSON type.
    fn kind(self) -> &'static str {
        match self {
            Self::Word(_) => "string",
            Self::Count | Self::Code => "integer",
            Self::Flag => "boolean",
        }
    }
}

/// What is done; `{0}` is the object, `{1}` the argument. Flags have a wording for each of their values.
struct Verb {
    name: &'static str,
    argument: (&'static str, Holds),
    yes: Wordings,
    no: Wordings,
}

const NOTHING: Wordings = Wordings { en: &[], zh: &[] };

const VERBS: &[Verb] = &[
    Verb {
        name: "book",
        argument: ("deposit", Holds::Count),
        yes: Wordings { en: &["book {0} with a deposit of {1} crowns"], zh: &["预订{0}，押金{1}元"] },
        no: NOTHING,
    },
    Verb {
        name: "cancel",
        argument: ("refund", Holds::Flag),
        yes: Wordings { en: &["cancel {0} with a refund"], zh: &["取消{0}，需要退款"] },
        no: Wordings { en: &["cancel {0} without a refund"], zh: &["取消{0}，不要退款"] },
    },
    Verb {
        name: "postpone",
        argument: ("days", Holds::Count),
        yes: Wordings { en: &["postpone {0} by {1} days"], zh: &["推迟{0}，推迟{1}天"] },
        no: NOTHING,
    },
    Verb {
        name: "confirm",
        argument: ("reference", Holds::Code),
        yes: Wordings { en: &["confirm {0} under the reference {1}"], zh: &["确认{0}，凭证号是{1}"] },
        no: NOTHING,
    },
    Verb {
        name: "extend",
        argument: ("days", Holds::Count),
        yes: Wordings { en: &["extend {0} by {1} days"], zh: &["延长{0}，延长{1}天"] },
        no: NOTHING,
    },
    Verb {
        name: "check",
        argument: ("report", Holds::Flag),
        yes: Wordings { en: &["check {0} with a report"], zh: &["核对{0}，要写报告"] },
        no: Wordings { en: &["check {0} without a report"], zh: &["核对{0}，不写报告"] },
    },
];

/// What it is done with; `{0}` and `{1}` are the arguments.
struct Object {
    name: &'static str,
    arguments: [(&'static str, Holds); 2],
    words: Wordings,
}

const OBJECTS: &[Object] = &[
    Object {
        name: "room",
        arguments: [("guest", Holds::Word("name")), ("town", Holds::Word("town"))],
        words: Wordings { en: &["a room for {0} in {1}"], zh: &["{0}在{1}的客房"] },
    },
    Object {
        name: "delivery",
        arguments: [("item", Holds::Word("noun")), ("town", Holds::Word("town"))],
        words: Wordings { en: &["a delivery of one {0} to {1}"], zh: &["一件{0}到{1}的运送"] },
    },
    Object {
        name: "lesson",
        arguments: [("student", Holds::Word("name")), ("room", Holds::Code)],
        words: Wordings { en: &["a lesson for {0} in room {1}"], zh: &["{0}在{1}号教室的课"] },
    },
    Object {
        name: "table",
        arguments: [("guest", Holds::Word("name")), ("seats", Holds::Count)],
        words: Wordings { en: &["a table in the name of {0} for {1} people"], zh: &["{0}名下{1}个座位的餐桌"] },
    },
    Object {
        name: "trip",
        arguments: [("town", Holds::Word("town")), ("seats", Holds::Count)],
        words: Wordings { en: &["a trip to {0} for {1} people"], zh: &["去{0}的{1}人旅行"] },
    },
    Object {
        name: "repair",
        arguments: [("item", Holds::Word("noun")), ("owner", Holds::Word("name"))],
        words: Wordings {
            en: &["a repair of the {0} that belongs to {1}"], zh: &["一件{0}的修理，物主是{1}"]
        },
    },
    Object {
        name: "visit",
        arguments: [("visitor", Holds::Word("name")), ("town", Holds::Word("town"))],
        words: Wordings { en: &["a visit of {0} to {1}"], zh: &["{0}到{1}的访问"] },
    },
    Object {
        name: "loan",
        arguments: [("item", Holds::Word("noun")), ("member", Holds::Code)],
        words: Wordings { en: &["a loan of the {0} to member {1}"], zh: &["一件{0}的借用，会员号是{1}"] },
    },
];

/// Requests; `{0}` is the request's name, `{1}` what it asks for.
const REQUESTS: Wordings = Wordings { en: &["The {0} request is to {1}."], zh: &["{0}申请的内容是{1}。"] };

/// Before the text; `{0}` is the list of tools.
const OPENINGS: Wordings = Wordings {
    en: &[
        "These tools can carry out requests:\n{0}\nA call of a tool is one JSON object with its name and all of its arguments, in the form {\"name\": \"…\", \"arguments\": {…}}.",
        "Requests are carried out with one of these tools:\n{0}\nTo call a tool, write one JSON object in the form {\"name\": \"…\", \"arguments\": {…}} with all arguments of the tool.",
    ],
    zh: &[
        "办理申请的工具：\n{0}\n调用时写JSON对象{\"name\": \"…\", \"arguments\": {…}}，参数要写全。",
        "申请用下列工具办理：\n{0}\n调用的格式是JSON对象{\"name\": \"…\", \"arguments\": {…}}，要有全部参数。",
    ],
};

/// Questions; `{0}` is the request's name.
const QUESTIONS: Wordings = Wordings {
    en: &[
        "Which tool call carries out the {0} request? Answer with the JSON object only.",
        "Carry out the {0} request: write the one tool call it needs as a JSON object and nothing else.",
        "Write the JSON object of the tool call for the {0} request. Write nothing else.",
    ],
    zh: &[
        "哪个工具调用能办理{0}申请？只回答那个JSON对象。",
        "请办理{0}申请：把所需的那一个工具调用写成JSON对象，不要写别的内容。",
    ],
};

fn check(params: &toml::Table) -> Result<(), ParamError> {
    let params: Params = parse(params)?;
    // All verbs with all objects; a choice needs two.
    PerBin::check(params.tools.as_ref(), "tools", 2..=(VERBS.len() * OBJECTS.len()) as u32)
}

fn plant(planting: &mut Planting<'_>) -> Result<Planted, TaskError> {
    let params: Params = planting.params()?;
    let defaults = if planting.language == Language::Zh { CHINESE_TOOLS } else { TOOLS };
    let count = PerBin::resolve(params.tools.as_ref(), planting.bin, defaults);
    let offered = offered(planting.soil.variant, count);
    let chosen = planting.rng.distinct(2, offered.len());
    let label = planting.fresh_label()?;
    let (asked, request) = request(planting, &offered[chosen[0]], &label)?;
    let mut plants = vec![planting.plant(0, planting.slot, &request, None)];
    if planting.bin.tokens() >= ROOM_FOR_ANOTHER {
        let other_label = planting.fresh_label()?;
        let (_, other_request) = self::request(planting, &offered[chosen[1]], &other_label)?;
        plants.push(planting.plant(1, (planting.slot + 0.5) % 1.0, &other_request, None));
    }
    let tools: Vec<ToolSpec> = offered.iter().map(Tool::spec).collect();
    let list: Vec<String> = tools.iter().map(signature).collect();
    let opening = planting.say_alike(&OPENINGS, &[&list.join("\n")]);
    let question = planting.ask(&QUESTIONS, &[&label]);
    let name = offered[chosen[0]].name();
    let members: Vec<String> = asked.iter().map(|(name, value)| format!("\"{name}\": {value}")).collect();
    let expected = Expected {
        answer: format!("{{\"name\": \"{name}\", \"arguments\": {{{}}}}}", members.join(", ")),
        gold: Gold::ToolCall {
            name,
            arguments: asked.into_iter().map(|(name, value)| (name.to_owned(), value)).collect::<Map<_, _>>(),
            tools,
        },
    };
    Ok(Planted { opening: Some(opening), ..Planted::new(plants, question, expected) })
}

/// A verb with an object.
struct Tool {
    verb: &'static Verb,
    object: &'static Object,
}

impl Tool {
    fn name(&self) -> String {
        format!("{}_{}", self.verb.name, self.object.name)
    }

    fn arguments(&self) -> impl Iterator<Item = (&'static str, Holds)> {
        self.object.arguments.into_iter().chain([self.verb.argument])
    }

    fn spec(&self) -> ToolSpec {
        let arguments = self.arguments().map(|(name, holds)| (name.to_owned(), holds.kind().to_owned()));
        ToolSpec { name: self.name(), arguments: arguments.collect() }
    }
}

/// The tools of a document: the first `count` of an order that the document decides, so that questions with other numbers
/// of tools do not contradict each other.
fn offered(variant: u64, count: usize) -> Vec<Tool> {
    let mut rng = Rng::from_name(&["tools", &variant.to_string()]);
    let all = rng.distinct(VERBS.len() * OBJECTS.len(), VERBS.len() * OBJECTS.len());
    let tool = |number: usize| Tool { verb: &VERBS[number % VERBS.len()], object: &OBJECTS[number / VERBS.len()] };
    all.into_iter().take(count).map(tool).collect()
}

/// `- book_room(guest: string, town: string, deposit: integer)`.
fn signature(tool: &ToolSpec) -> String {
    let arguments: Vec<String> = tool.arguments.iter().map(|(name, kind)| format!("{name}: {kind}")).collect();
    format!("- {}({})", tool.name, arguments.join(", "))
}

/// Names and values, in the order of the tool.
type Arguments = Vec<(&'static str, Value)>;

/// Arguments for a tool and the sentence that asks for it.
fn request(planting: &mut Planting<'_>, tool: &Tool, label: &str) -> Result<(Arguments, String), TaskError> {
    let mut arguments = Vec::new();
    for (name, holds) in tool.arguments() {
        let value = match holds {
            Holds::Word(class) => Value::from(planting.rng.choose(planting.lexicon.class(class)).as_str()),
            Holds::Count => Value::from(2 + planting.rng.below(98)),
            Holds::Code => Value::from(planting.fresh_code()?.parse::<u32>().expect("a code is four digits")),
            Holds::Flag => Value::from(planting.rng.below(2) == 1),
        };
        arguments.push((name, value));
    }
    let said: Vec<String> = arguments.iter().map(|(_, value)| spoken(value)).collect();
    let object = words(&tool.object.words, planting.language, &[&said[0], &said[1]]);
    let action = match &arguments[2].1 {
        Value::Bool(false) => words(&tool.verb.no, planting.language, &[&object]),
        _ => words(&tool.verb.yes, planting.language, &[&object, &said[2]]),
    };
    Ok((arguments, planting.say(&REQUESTS, &[label, &action])))
}

fn spoken(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The only wording there is, filled in.
fn words(wordings: &Wordings, language: Language, arguments: &[&str]) -> String {
    filled(wordings.of(language)[0], arguments)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_shorter_list_of_tools_is_the_beginning_of_a_longer_one() {
        let names = |variant, count| offered(variant, count).iter().map(Tool::name).collect::<Vec<_>>();
        assert_eq!(names(7, 4), names(7, 24)[..4]);
        assert_ne!(names(7, 24), names(8, 24));
        let all = names(7, 48);
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), 48);
    }

    #[test]
    fn every_tool_has_three_arguments_of_different_names() {
        for tool in offered(1, 48) {
            let spec = tool.spec();
            let names: HashSet<&String> = spec.arguments.iter().map(|(name, _)| name).collect();
            assert_eq!(names.len(), 3, "{spec:?}");
        }
        for verb in VERBS {
            let is_flag = matches!(verb.argument.1, Holds::Flag);
            assert_eq!(is_flag, !verb.no.en.is_empty() && !verb.no.zh.is_empty(), "{}", verb.name);
        }
    }
}
