//! Solvers of the structure tasks and of citations.

use kvgauge::sample::{FaultKind, FormatRule, Gold, Item, Language};
use regex::Regex;
use serde_json::{Map, Value, json};

use super::{Solver, Wrong, text_and_question};

pub(super) static SOLVERS: &[Solver] = &[
    Solver { task: "json_extract", solve: extract_records, wrong: wrong_records },
    Solver { task: "tool_call", solve: call_tool, wrong: wrong_calls },
    Solver { task: "table", solve: convert_table, wrong: wrong_rows },
    Solver { task: "format_lock", solve: keep_form, wrong: wrong_forms },
    Solver { task: "cite", solve: cite_sources, wrong: wrong_citations },
];

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a valid pattern")
}

/// The first group of the first match.
fn find(pattern: &str, text: &str) -> String {
    let found = regex(pattern).captures(text).unwrap_or_else(|| panic!("no {pattern}"));
    found[1].to_owned()
}

/// Members in the order given, as people write JSON.
fn object(members: &[(String, Value)]) -> String {
    let members: Vec<String> = members.iter().map(|(name, value)| format!("\"{name}\": {value}")).collect();
    format!("{{{}}}", members.join(", "))
}

fn typed(text: &str, kind: &str) -> Value {
    match kind {
        "integer" => json!(text.parse::<i64>().expect("a number")),
        "boolean" => json!(["with", "含", "true"].contains(&text)),
        _ => json!(text),
    }
}

/// What is wrong in one way each, single answers.
fn single(answers: Vec<(FaultKind, String)>) -> Vec<Wrong> {
    answers.into_iter().map(|(kind, answer)| (kind, vec![answer])).collect()
}

/// Sentences of records: what a set is called, and the pattern with the set's name as `LABEL`; fields are named groups.
const RECORDS: [(&str, &str); 6] = [
    ("register", r"In the LABEL register, (?<name>[^.]+?) from (?<town>[^.]+?) has the number (?<number>\d+)\."),
    ("shipment", r"The LABEL shipment holds one (?<item>[^.]+?) from (?<town>[^.]+?) with the weight (?<weight>\d+)\."),
    ("plan", r"In the LABEL plan, (?<name>[^.]+?) has the room (?<room>\d+) (?<breakfast>with|without) breakfast\."),
    ("名册", r"LABEL名册里，来自(?<town>[^。]+?)的(?<name>[^。]+?)编号是(?<number>\d+)。"),
    ("货单", r"LABEL货单里有一件来自(?<town>[^。]+?)的(?<item>[^。]+?)，重量是(?<weight>\d+)。"),
    ("住宿表", r"LABEL住宿表里，(?<name>[^。]+?)住(?<room>\d+)号房，(?<breakfast>不含|含)早餐。"),
];

fn extract_records(item: &Item) -> Vec<String> {
    let (text, question) = text_and_question(item);
    let asked =
        regex(r"(?:of the |does the )(\S+) (register|shipment|plan)|^(?:请按文中的顺序把)?(.+?)(名册|货单|住宿表)");
    let asked = asked.captures(question).expect("the set's name");
    let group = |number| asked.get(number).map(|found| found.as_str());
    let (label, noun) = (group(1).or(group(3)).expect("a name"), group(2).or(group(4)).expect("a noun"));
    let (_, sentence) = RECORDS.iter().find(|(name, _)| *name == noun).expect("a known noun");
    let (schema, _) = text.split_once("\n\n").expect("an opening");
    let schema = &schema[schema
        .find(&format!("entries of a {noun},"))
        .or_else(|| schema.find(&format!("回答{noun}")))
        .expect("a schema")..];
    let fields: Vec<(String, String)> = regex(r#""(\w+)"\s?[（(](?:[^，()（]+，)?(string|integer|boolean)[)）]"#)
        .captures_iter(schema)
        .map(|field| (field[1].to_owned(), field[2].to_owned()))
        .collect();
    let records: Vec<String> = regex(&sentence.replace("LABEL", &regex::escape(label)))
        .captures_iter(text)
        .map(|found| {
            let members = fields.iter().take(3).map(|(name, kind)| (name.clone(), typed(&found[name.as_str()], kind)));
            object(&members.collect::<Vec<_>>())
        })
        .collect();
    vec![format!("[{}]", records.join(","))]
}

type Records = Vec<Map<String, Value>>;

fn wrong_records(item: &Item) -> Vec<Wrong> {
    let Gold::Records { records, fields } = &item.expected.gold else { panic!("records") };
    let write = |records: &[Map<String, Value>]| serde_json::to_string(records).expect("JSON");
    let number = &fields.iter().find(|(_, kind)| kind == "integer").expect("a number").0;
    let with = |change: &dyn Fn(&mut Records)| {
        let mut changed = records.clone();
        change(&mut changed);
        write(&changed)
    };
    let right = write(records);
    single(vec![
        (FaultKind::Empty, " ".into()),
        (FaultKind::InvalidJson, right[..right.len() - 2].to_owned()),
        (FaultKind::ExtraText, format!("```json\n{right}\n```")),
        (FaultKind::SchemaViolation, with(&|records| drop(records[0].insert("note".into(), json!(1))))),
        (FaultKind::WrongField, with(&|records| drop(records[1].insert(number.clone(), json!(1))))),
        (FaultKind::OutOfOrder, with(&|records| records.swap(0, 1))),
        (FaultKind::Missing, with(&|records| drop(records.pop()))),
        (FaultKind::Duplicated, with(&|records| records.push(records[0].clone()))),
        (
            FaultKind::Extra,
            with(&|records| {
                let mut more = records[0].clone();
                more.insert(number.clone(), json!(1));
                records.push(more);
            }),
        ),
    ])
}

/// How requests speak of what is done and of what it is done with, English and Chinese; `OBJECT` stands for the second.
const VERBS: [(&str, &str); 12] = [
    ("book", r"^book OBJECT with a deposit of (\d+) crowns$"),
    ("cancel", r"^cancel OBJECT (with|without) a refund$"),
    ("postpone", r"^postpone OBJECT by (\d+) days$"),
    ("confirm", r"^confirm OBJECT under the reference (\d+)$"),
    ("extend", r"^extend OBJECT by (\d+) days$"),
    ("check", r"^check OBJECT (with|without) a report$"),
    ("book", r"^预订OBJECT，押金(\d+)元$"),
    ("cancel", r"^取消OBJECT，(需要|不要)退款$"),
    ("postpone", r"^推迟OBJECT，推迟(\d+)天$"),
    ("confirm", r"^确认OBJECT，凭证号是(\d+)$"),
    ("extend", r"^延长OBJECT，延长(\d+)天$"),
    ("check", r"^核对OBJECT，(要写|不写)报告$"),
];
const OBJECTS: [(&str, &str); 16] = [
    ("room", "a room for (.+) in (.+)"),
    ("delivery", "a delivery of one (.+) to (.+)"),
    ("lesson", r"a lesson for (.+) in room (\d+)"),
    ("table", r"a table in the name of (.+) for (\d+) people"),
    ("trip", r"a trip to (.+) for (\d+) people"),
    ("repair", "a repair of the (.+) that belongs to (.+)"),
    ("visit", "a visit of (.+) to (.+)"),
    ("loan", r"a loan of the (.+) to member (\d+)"),
    ("room", "(.+)在(.+)的客房"),
    ("delivery", "一件(.+)到(.+)的运送"),
    ("lesson", r"(.+)在(\d+)号教室的课"),
    ("table", r"(.+)名下(\d+)个座位的餐桌"),
    ("trip", r"去(.+)的(\d+)人旅行"),
    ("repair", "一件(.+)的修理，物主是(.+)"),
    ("visit", "(.+)到(.+)的访问"),
    ("loan", r"一件(.+)的借用，会员号是(\d+)"),
];

fn call_tool(item: &Item) -> Vec<String> {
    let (text, question) = text_and_question(item);
    let label = match item.language {
        Language::En => find(r"the (\S+) request", question),
        Language::Zh => find(r"(?:能办理|请办理)(.+?)申请", question),
    };
    let label = regex::escape(&label);
    let request = match item.language {
        Language::En => find(&format!(r"The {label} request is to ([^.]+)\."), text),
        Language::Zh => find(&format!("。{label}申请的内容是([^。]+)。"), text),
    };
    let mut calls = Vec::new();
    for tool in regex(r"(?m)^- (\w+)\((.+)\)$").captures_iter(text) {
        let (verb, thing) = tool[1].split_once('_').expect("a verb with an object");
        let declared: Vec<(&str, &str)> = tool[2].split(", ").filter_map(|part| part.split_once(": ")).collect();
        for (_, verb) in VERBS.iter().filter(|(name, _)| *name == verb) {
            for (_, thing) in OBJECTS.iter().filter(|(name, _)| *name == thing) {
                let Some(found) = regex(&verb.replace("OBJECT", thing)).captures(&request) else { continue };
                let members = declared.iter().enumerate().map(|(at, (name, kind))| {
                    let value = match (*kind, &found[at + 1]) {
                        ("boolean", said) => json!(["with", "需要", "要写"].contains(&said)),
                        (kind, said) => typed(said, kind),
                    };
                    ((*name).to_owned(), value)
                });
                let arguments = object(&members.collect::<Vec<_>>());
                calls.push(format!("{{\"name\": \"{}\", \"arguments\": {arguments}}}", &tool[1]));
            }
        }
    }
    assert_eq!(calls.len(), 1, "{request}: one tool fits: {calls:?}");
    calls
}

fn wrong_calls(item: &Item) -> Vec<Wrong> {
    let Gold::ToolCall { name, arguments, tools } = &item.expected.gold else { panic!("a call") };
    let spec = tools.iter().find(|tool| tool.name == *name).expect("the tool is on offer");
    let other = &tools.iter().find(|tool| tool.name != *name).expect("a choice").name;
    let (last, _) = spec.arguments.last().expect("an argument");
    let write = |name: &str, arguments: &Map<String, Value>| json!({"name": name, "arguments": arguments}).to_string();
    let with = |argument: &str, value: Option<Value>| {
        let mut changed = arguments.clone();
        match value {
            Some(value) => changed.insert(argument.to_owned(), value),
            None => changed.remove(argument),
        };
        write(name, &changed)
    };
    let right = write(name, arguments);
    let changed = match &arguments[last] {
        Value::Bool(flag) => json!(!flag),
        number => json!(number.as_i64().expect("an integer") + 1),
    };
    single(vec![
        (FaultKind::Empty, "\n".into()),
        (FaultKind::InvalidJson, right[..right.len() - 1].to_owned()),
        (FaultKind::ExtraText, format!("I call the tool: {right}")),
        (FaultKind::WrongTool, write(other, arguments)),
        (FaultKind::SchemaViolation, with(last, Some(json!(arguments[last].to_string())))),
        (FaultKind::WrongField, with(last, Some(changed))),
        (FaultKind::Missing, with(last, None)),
        (FaultKind::Extra, with("note", Some(json!("none")))),
        (FaultKind::Extra, format!("{right}\n{}", write(other, arguments))),
    ])
}

fn convert_table(item: &Item) -> Vec<String> {
    let (text, question) = text_and_question(item);
    let label = match item.language {
        Language::En => find(r"the (\S+) table", question),
        Language::Zh => find(r"请把(.+?)表格", question),
    };
    let block = match item.language {
        Language::En => {
            find(&format!(r"(?s)Here begins the {label} table:\n(.+?)\nHere ends the {label} table\."), text)
        }
        Language::Zh => find(&format!(r"(?s){label}表格从这里开始：\n(.+?)\n{label}表格到这里结束"), text),
    };
    let mut lines = block.lines();
    let columns: Vec<&str> = lines.next().expect("a header").split(',').collect();
    let rows: Vec<String> = lines
        .map(|line| {
            let cells = columns.iter().zip(line.split(',')).map(|(column, cell)| {
                let kind = match cell {
                    "true" | "false" => "boolean",
                    cell if cell.bytes().all(|byte| byte.is_ascii_digit()) => "integer",
                    _ => "string",
                };
                ((*column).to_owned(), typed(cell, kind))
            });
            object(&cells.collect::<Vec<_>>())
        })
        .collect();
    vec![rows.join("\n")]
}

fn wrong_rows(item: &Item) -> Vec<Wrong> {
    let Gold::Table { columns, rows } = &item.expected.gold else { panic!("a table") };
    let number = rows[0].iter().position(Value::is_i64).expect("a column of numbers");
    let write = |rows: &[Vec<Value>]| {
        let line = |row: &Vec<Value>| object(&columns.iter().cloned().zip(row.iter().cloned()).collect::<Vec<_>>());
        rows.iter().map(line).collect::<Vec<_>>()
    };
    let with = |change: &dyn Fn(&mut Vec<Vec<Value>>)| {
        let mut changed = rows.clone();
        change(&mut changed);
        write(&changed).join("\n")
    };
    let right = write(rows).join("\n");
    single(vec![
        (FaultKind::Empty, String::new()),
        (FaultKind::InvalidJson, right[..right.len() - 1].to_owned()),
        (FaultKind::ExtraText, format!("```\n{right}\n```")),
        (FaultKind::SchemaViolation, format!("[{}]", write(rows).join(",\n"))),
        (FaultKind::WrongField, with(&|rows| rows[0][number] = json!(1))),
        (FaultKind::OutOfOrder, with(&|rows| rows.swap(0, 1))),
        (FaultKind::Missing, with(&|rows| drop(rows.remove(1)))),
        (FaultKind::Duplicated, with(&|rows| rows.push(rows[0].clone()))),
        (
            FaultKind::Extra,
            with(&|rows| {
                let mut more = rows[0].clone();
                more[number] = json!(1);
                rows.push(more);
            }),
        ),
    ])
}

/// Bytes behind the beginning of the rules in which all of them stand.
const RULES_REACH: usize = 700;

/// How each rule is said, English and Chinese, with what its group means.
type ReadRule = fn(&str) -> FormatRule;
const RULES: [(&str, ReadRule); 11] = [
    (r"it has exactly (\d+) lines", |group| FormatRule::LineCount { lines: group.parse().expect("a number") }),
    (r"恰好有(\d+)行", |group| FormatRule::LineCount { lines: group.parse().expect("a number") }),
    (r#"each line begins with "(.+?)" and a space"#, |group| FormatRule::LinePrefix { prefix: format!("{group} ") }),
    (r#"每行开头是"(.+?)"和一个空格"#, |group| FormatRule::LinePrefix { prefix: format!("{group} ") }),
    (r#"(?:each line begins with its number, as in|每行开头是它的编号，例如) ?"1(.+?)""#, |group| {
        FormatRule::Numbered { separator: group.into() }
    }),
    (r#"each line ends in "(.)""#, |group| FormatRule::LineSuffix { suffix: group.into() }),
    (r#"每行末尾是"(.)""#, |group| FormatRule::LineSuffix { suffix: group.into() }),
    (r#"the sign "(.)" stands nowhere"#, |group| FormatRule::Banned {
        character: group.chars().next().expect("a sign"),
    }),
    (r#"任何地方都不出现"(.)"这个符号"#, |group| FormatRule::Banned {
        character: group.chars().next().expect("a sign"),
    }),
    (r#"(?:its last line is|末行只写) ?"(.+?)""#, |group| FormatRule::EndMarker { marker: group.into() }),
    ("all its letters are (capitals)", |_| FormatRule::Capitals { upper: true }),
];

fn keep_form(item: &Item) -> Vec<String> {
    let (text, question) = text_and_question(item);
    let content = &item.messages[0].content;
    let (label, needle, rules) = match item.language {
        Language::En => {
            let label = find(r"the (\S+) notice", question);
            let needle = format!(r"Line number (\d+) of the {label} notice is ([^.]+)\.");
            (label.clone(), needle, format!(r"nswer about the {label} notice(?:: | has to keep these rules: )"))
        }
        Language::Zh => {
            let label = find(r"^(?:请写出)?(.+?)告示", question);
            let needle = format!(r"。{label}告示的第(\d+)行是([^。]+)");
            (
                label.clone(),
                needle,
                format!("(?:关于{label}告示的回答要守这些规定|回答{label}告示的问题时必须遵守下列规定)："),
            )
        }
    };
    let start = regex(&rules).find(content).unwrap_or_else(|| panic!("the rules for {label}")).end();
    let end = content.floor_char_boundary(start + RULES_REACH);
    // The rules for another notice may follow at once.
    let said = &content[start..end];
    let next = regex(r"nswer about the \S+ notice|关于[^。：]+告示的回答|回答[^。：]+告示的问题").find(said);
    let said = &said[..next.map_or(said.len(), |next| next.start())];
    let read = |(pattern, read): &(&str, ReadRule)| Some(read(&regex(pattern).captures(said)?[1]));
    let rules: Vec<FormatRule> = RULES.iter().filter_map(read).collect();
    let mut lines: Vec<(u32, String)> = regex(&needle)
        .captures_iter(text)
        .map(|found| (found[1].parse().expect("a number"), found[2].to_owned()))
        .collect();
    lines.sort();
    let values: Vec<String> = lines.into_iter().map(|(_, value)| value).collect();
    vec![in_form(&values, &rules)]
}

/// The lines with everything that the rules ask for.
fn in_form(values: &[String], rules: &[FormatRule]) -> String {
    let mut text = Vec::new();
    for (number, value) in values.iter().enumerate() {
        let mut line = value.clone();
        for rule in rules {
            line = match rule {
                FormatRule::LinePrefix { prefix } => format!("{prefix}{line}"),
                FormatRule::Numbered { separator } => format!("{}{separator}{line}", number + 1),
                FormatRule::LineSuffix { suffix } => format!("{line}{suffix}"),
                FormatRule::Capitals { .. } => line.to_uppercase(),
                _ => line,
            };
        }
        text.push(line);
    }
    text.extend(rules.iter().filter_map(|rule| match rule {
        FormatRule::EndMarker { marker } => Some(marker.clone()),
        _ => None,
    }));
    text.join("\n")
}

fn wrong_forms(item: &Item) -> Vec<Wrong> {
    let Gold::Rules { values, rules } = &item.expected.gold else { panic!("rules") };
    let with = |change: &dyn Fn(&mut Vec<String>)| {
        let mut changed = values.clone();
        change(&mut changed);
        in_form(&changed, rules)
    };
    let right = in_form(values, rules);
    let counts_lines = rules.iter().any(|rule| matches!(rule, FormatRule::LineCount { .. }));
    let surplus = if counts_lines { FaultKind::BrokenRule } else { FaultKind::Extra };
    let mut answers = vec![
        (FaultKind::Empty, String::new()),
        (FaultKind::ExtraText, format!("This is what all the lines of the notice that was asked about say:\n{right}")),
        (FaultKind::Missing, with(&|values| drop(values.pop()))),
        (FaultKind::OutOfOrder, with(&|values| values.swap(0, 1))),
        (FaultKind::WrongValue, with(&|values| values[1] = format!("{}0000", &values[1][..values[1].len() - 4]))),
        (surplus, with(&|values| values.push(values[0].clone()))),
        (surplus, with(&|values| values.push(format!("{}0000", &values[0][..values[0].len() - 4])))),
    ];
    for (number, rule) in rules.iter().enumerate() {
        let mut others = rules.clone();
        others.remove(number);
        answers.extend(match rule {
            FormatRule::LineCount { .. } => None,
            FormatRule::Banned { character } => Some((
                FaultKind::BrokenRule,
                with(&|values| values[0] = values[0].replace(' ', &format!(" {character} "))),
            )),
            _ => Some((FaultKind::BrokenRule, in_form(values, &others))),
        });
    }
    single(answers)
}

fn cite_sources(item: &Item) -> Vec<String> {
    let (text, question) = text_and_question(item);
    let letter = find(r"\[([A-Z]+)-1\]", question);
    let keys = match item.language {
        Language::En => find(r"(?s)stand(?:s in)?: ([^?.]+)[?.]", question),
        Language::Zh => {
            find(r"(?:出自哪份资料|所在资料的标记)[：。]([^？。]+)[？。]", &question.replace("标记：", "标记。"))
        }
    };
    let marks = regex(&format!(r"\[({letter}-\d+)\]"));
    let lines: Vec<String> = keys
        .split(if item.language == Language::En { ", " } else { "、" })
        .map(|key| {
            let key_pattern = regex::escape(key);
            let fact = match item.language {
                Language::En => format!(r"The special number for the {key_pattern} is (\d+)\."),
                Language::Zh => format!(r"[^的]{key_pattern}的专用号码是(\d+)。"),
            };
            let fact = regex(&fact).captures(text).unwrap_or_else(|| panic!("no fact on {key}"));
            let before = &text[..fact.get(0).expect("a match").start() + 1];
            let source = marks.captures_iter(before).last().expect("a source")[1].to_owned();
            format!("{key}: {} [{source}]", &fact[1])
        })
        .collect();
    vec![lines.join("\n")]
}

fn wrong_citations(item: &Item) -> Vec<Wrong> {
    let Gold::Citations { facts, sources } = &item.expected.gold else { panic!("citations") };
    let line = |key: &str, value: &str, source: &str| format!("{key}: {value} [{source}]");
    let right: Vec<String> = facts.iter().map(|fact| line(&fact.key, &fact.value, &fact.source)).collect();
    let with = |change: &dyn Fn(&mut Vec<String>)| {
        let mut changed = right.clone();
        change(&mut changed);
        changed.join("\n")
    };
    let (first, second) = (&facts[0], &facts[1]);
    let other = sources.iter().find(|source| **source != first.source).expect("another source");
    let far: String = first.value.bytes().map(|digit| char::from((digit - b'0' + 5) % 10 + b'0')).collect();
    single(vec![
        (FaultKind::Empty, String::new()),
        (FaultKind::WrongSource, with(&|lines| lines[0] = line(&first.key, &first.value, other))),
        (FaultKind::WrongSource, with(&|lines| lines[0] = line(&first.key, &first.value, "Z-9999"))),
        (FaultKind::NearMiss, with(&|lines| lines[0] = line(&first.key, &first.value[..6], &first.source))),
        (FaultKind::WrongValue, with(&|lines| lines[0] = line(&first.key, &far, &first.source))),
        (FaultKind::SwappedBindings, with(&|lines| lines[0] = line(&first.key, &second.value, &first.source))),
        (FaultKind::Missing, with(&|lines| drop(lines.pop()))),
        (FaultKind::Missing, with(&|lines| lines[0] = format!("{}: {}", first.key, first.value))),
        (FaultKind::Duplicated, with(&|lines| lines.push(lines[0].clone()))),
        (FaultKind::Extra, with(&|lines| lines.push(line("zinc zebra", "1", other)))),
    ])
}
