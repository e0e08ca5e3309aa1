//! One corpus of hostile text through every output: whatever a model, a server or a folder says, it stays text.

use kvgauge::compare::{Comparison, FlipDirection};
use kvgauge::gate::{Ruling, Verdict};
use kvgauge::report::{
    HTML_WARN_BYTES, MARKDOWN_MAX_CHARS, MAX_ANNOTATIONS, ReportInput, annotations, badge_json, comparison_json,
    kv_record_json, render_html, render_junit, render_markdown, terminal_json, terminal_text,
};
use kvgauge::setup::Evidence;

use super::fixture::{Fixture, fixture};
use super::{ELEMENTS, tags, text_of};

/// What each text tries.
pub(super) const HOSTILE: &[(&str, &str)] = &[
    ("script", "<script>document.title='owned'</script>"),
    ("handler", "\"'><img src=x onerror=\"document.title='owned'\"><svg onload=document.title='owned'>"),
    ("closing tags", "</title></style></pre></code></details></section></svg></main><h1>PASS</h1>"),
    (
        "comment and CDATA",
        "--><!-- ]]> <![CDATA[ <?xml version='1.0'?> <!DOCTYPE x [<!ENTITY e SYSTEM 'file:///etc/passwd'>]> &e;",
    ),
    ("entities", "&lt;script&gt; &#x3c;b&#x3e; &amp;amp;"),
    (
        "links",
        "<a href=\"javascript:document.title='owned'\">x</a> <base href=//evil.example/> <meta http-equiv=refresh content=0>",
    ),
    ("template", "{{ 7 * 7 }} {% raw %} {# x #} ${7*7} #{7*7}"),
    (
        "Markdown links",
        "[x](javascript:alert) ![beacon](https://beacon.example/x.png) <https://beacon.example> www.beacon.example",
    ),
    ("Markdown reference", "[x]: https://beacon.example\n\n[x]\n\n# heading\n\n---\n\n* list"),
    ("Markdown fences", "```\n````\n`````` ~~~~\n</details>\n<!-- kvgauge-report -->"),
    ("Markdown table", "a | b\n--- | ---\n1 | 2 \\| 3"),
    ("mentions", "@everyone @org/team #1 org/repo#2 GH-3 fixes #4"),
    ("ANSI", "\u{1b}[2J\u{1b}[31mred\u{1b}]52;c;cm0gLXJm\u{7}\u{9b}1A\u{8}\u{8}"),
    ("carriage return", "REGRESSED\rPASS     "),
    (
        "workflow command",
        "::set-output name=x::y\n  ::add-mask::a\n\t::stop-commands::t\r::error::owned\n##[error]owned x ##[add-path]/tmp",
    ),
    ("escapes of commands", "%0A::error::owned%0D%25 title=a,b:c::d"),
    ("formulas", "=cmd|'/c calc'!A0\n+1+1\n-1-1\n@SUM(A1)\n\t=1+1"),
    ("bidirectional", "safe \u{202e}cod.exe\u{202c} \u{2066}x\u{2069} \u{200f}\u{61c}"),
    ("zero width", "PA\u{200b}SS \u{feff}RE\u{200d}GRESSED \u{ad} \u{2060} \u{e0041}\u{e007f} \u{3164}"),
    ("NUL and C1", "a\0b\u{1}\u{1f}\u{7f}\u{85}\u{9f}\u{fffe}\u{ffff}\u{2028}\u{2029}"),
    ("paths", "../../etc/passwd C:\\Windows\\CON /dev/null\\..\\x"),
    ("Chinese", "编号是四七一一。价格为十二元，库存为零。"),
    ("emoji", "👩‍👩‍👧‍👦 ❤️ é e\u{301}\u{301}\u{301}"),
];

/// Puts `text` wherever text of others can come from.
fn poison(fixture: &mut Fixture, text: &str) {
    let of_summary = |summary: &mut kvgauge::compare::ArmSummary| {
        summary.resolved.attention_backend = Evidence::known(text.into(), text);
        summary.resolved.engine = Evidence::known(text.into(), text);
        summary.resolved.kv_scales = Evidence::known(text.into(), text);
    };
    let Comparison { suite, plan, model, environment, baseline, control, candidates, .. } = &mut fixture.comparison;
    *suite = text.into();
    for map in [plan, environment] {
        map.insert(text.into(), text.into());
    }
    for field in [&mut model.name, &mut model.weights, &mut model.chat_template, &mut model.rope] {
        *field = text.into();
    }
    of_summary(baseline);
    for arm in control.iter_mut().chain(candidates) {
        of_summary(&mut arm.summary);
        arm.confounded = Some(text.into());
        for flip in &mut arm.flips {
            for field in [
                &mut flip.cause,
                &mut flip.expected,
                &mut flip.baseline_text,
                &mut flip.candidate_text,
                &mut flip.excerpt,
                &mut flip.notes[0],
                &mut flip.findings[0].evidence,
            ] {
                *field = text.into();
            }
        }
    }
    poison_verdict(&mut fixture.verdict, text);
}

fn poison_verdict(verdict: &mut Verdict, text: &str) {
    verdict.sentence = text.into();
    for arm in &mut verdict.arms {
        arm.sentence = text.into();
        for cell in &mut arm.cells {
            cell.reasons = vec![text.into()];
        }
    }
    // One arm of every ruling, so that no output is spared.
    verdict.arms[0].ruling = Ruling::Invalid;
    verdict.arms[0].invalid = vec![text.into(), text.into()];
    verdict.arms[2].ruling = Ruling::Inconclusive;
}

/// A text that must not be on its own anywhere: hidden, or obeyed by a terminal.
fn is_hidden(character: char) -> bool {
    (character.is_control() && character != '\n' && character != '\t')
        || matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
            | '\u{fffe}' | '\u{ffff}' | '\u{ad}' | '\u{3164}' | '\u{e0000}'..='\u{e007f}')
}

fn check_html(name: &str, input: &ReportInput) {
    let page = render_html(input).unwrap();
    for (element, attributes) in tags(&page) {
        assert!(ELEMENTS.contains(&element.as_str()), "{name}: element {element}");
        let outside_quotes: String = attributes.split('"').step_by(2).collect();
        for attribute in outside_quotes.split_whitespace() {
            let attribute = attribute.trim_end_matches('=');
            assert!(!attribute.starts_with("on") && attribute != "style" && attribute != "src", "{name}: {attributes}");
        }
        if let Some((_, target)) = attributes.split_once("href=\"") {
            assert!(target.starts_with('#'), "{name}: {attributes}");
        }
    }
    assert!(!page.chars().any(is_hidden), "{name}: a hidden character");
    assert_eq!(page.matches("<!").count(), 1, "{name}: a comment or a declaration");
    assert!(!text_of(&page).contains("{{ section"), "{name}");
}

/// Lines of the summary outside of its fences.
fn outside_fences<'a>(name: &str, text: &'a str) -> Vec<&'a str> {
    let mut fence: Option<usize> = None;
    let mut outside = Vec::new();
    for line in text.lines() {
        let ticks = line.len() - line.trim_start_matches('`').len();
        match fence {
            None if ticks >= 3 => fence = Some(ticks),
            Some(open) if ticks >= open && line.trim_matches('`').is_empty() => fence = None,
            None => outside.push(line),
            Some(_) => {}
        }
    }
    assert_eq!(fence, None, "{name}: an open fence");
    outside
}

/// What a line says in Markdown: code spans, escapes and entities are no markup.
fn markup_of(line: &str) -> String {
    let mut bare = String::new();
    let mut rest = line;
    while let Some(character) = rest.chars().next() {
        if character == '\\' {
            rest = &rest[1..];
            rest = &rest[rest.chars().next().map_or(0, char::len_utf8)..];
        } else if character == '`' {
            // A span ends at a run of as many ticks as it starts with; without one the ticks are text.
            let fence = &rest[..rest.len() - rest.trim_start_matches('`').len()];
            rest = &rest[fence.len()..];
            rest = rest.split_once(fence).map_or(rest, |(_, after)| after);
        } else {
            bare.push(character);
            rest = &rest[character.len_utf8()..];
        }
    }
    bare
}

fn check_markdown(name: &str, input: &ReportInput) {
    let text = render_markdown(input).unwrap();
    assert!(text.chars().count() <= MARKDOWN_MAX_CHARS, "{name}");
    assert_eq!(text.matches("<!--").count(), 1, "{name}: the marker is there once");
    assert!(!text.chars().any(is_hidden), "{name}: a hidden character");
    for line in outside_fences(name, &text) {
        let markup = markup_of(line);
        for part in
            ["](", "@everyone", "@org", "#1", "#4", "https://", "www.b", "<a", "<img", "<script", "<h1", "<base"]
        {
            assert!(!markup.contains(part), "{name}: `{part}` in {line}");
        }
        let own_html = ["<details>", "</details>", "<summary>", "</summary>", "<!-- kvgauge-report -->"];
        let rest = own_html.iter().fold(markup.clone(), |rest, tag| rest.replace(tag, ""));
        assert!(!rest.contains('<'), "{name}: HTML in {line}");
        assert!(!line.starts_with("# ") && !line.starts_with("---"), "{name}: {line}");
    }
    // The rows of one table have as many cells as its head.
    let mut columns = None;
    for line in outside_fences(name, &text) {
        let cells = markup_of(line).matches('|').count();
        columns = if line.starts_with('|') { Some(*columns.get_or_insert(cells)) } else { None };
        assert!(columns.is_none_or(|columns| columns == cells), "{name}: {line}");
    }
}

fn check_junit(name: &str, input: &ReportInput) {
    let xml = render_junit(input).unwrap();
    assert!(!xml.chars().any(is_hidden), "{name}: a hidden character");
    assert_eq!(xml.matches("<!").count(), 0, "{name}");
    let report = quick_junit::Report::deserialize_from_str(&xml).unwrap();
    let cases: usize = report.test_suites.iter().map(|suite| suite.test_cases.len()).sum();
    let groups: usize = input.verdict.arms.iter().map(|arm| arm.cells.len()).sum();
    assert!(cases >= groups, "{name}: {cases} cases of {groups} cells");
}

fn check_annotations(name: &str, input: &ReportInput) {
    let commands = annotations(input).unwrap();
    assert!(!commands.is_empty() && commands.len() <= MAX_ANNOTATIONS, "{name}");
    for command in commands {
        let (head, message) = command.strip_prefix("::").unwrap().split_once("::").unwrap();
        let (level, title) = head.split_once(" title=").unwrap();
        assert!(level == "error" || level == "warning", "{name}: {command}");
        assert!(!title.contains([',', ':', '\n', '\r']), "{name}: {command}");
        assert!(!message.contains(['\n', '\r']) && !command.chars().any(is_hidden), "{name}: {command}");
        // Every percent sign starts one of the escapes that the runner undoes.
        for (at, _) in command.match_indices('%') {
            let code = &command[at + 1..at + 3];
            assert!(["25", "0A", "0D", "3A", "2C"].contains(&code), "{name}: {command}");
        }
    }
}

fn check_documents(name: &str, fixture: &Fixture) {
    let badge: serde_json::Value = serde_json::from_str(&badge_json(&fixture.input())).unwrap();
    assert_eq!(badge["schemaVersion"], 1, "{name}");
    for field in ["label", "message", "color"] {
        let text = badge[field].as_str().unwrap();
        assert!(!text.is_empty() && text.chars().count() < 120 && !text.contains('\n'), "{name}: {text}");
    }
    let json = comparison_json(&fixture.comparison, &fixture.verdict);
    for document in [json, kv_record_json(&fixture.input())] {
        let inert = terminal_json(&document);
        assert!(!inert.chars().any(is_hidden) && !inert.contains("##["), "{name}");
        assert!(inert.lines().all(|line| !line.trim_start().starts_with("::")), "{name}");
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(value(&inert), value(&document), "{name}: another document");
    }
}

fn check_terminal(name: &str, text: &str) {
    let shown = terminal_text(text);
    assert!(!shown.chars().any(is_hidden), "{name}: {shown}");
    for line in shown.lines() {
        assert!(!line.trim_start().starts_with("::") && !line.contains("##["), "{name}: {line}");
    }
}

#[test]
fn hostile_text_is_inert_in_every_output() {
    for (name, text) in HOSTILE {
        let mut fixture = fixture(1.0);
        poison(&mut fixture, text);
        let input = ReportInput { title: text, reproduce: text, ..fixture.input() };
        check_html(name, &input);
        check_markdown(name, &input);
        check_junit(name, &input);
        check_annotations(name, &input);
        check_documents(name, &fixture);
        check_terminal(name, text);
    }
}

#[test]
fn hostile_arm_names_are_inert_too() {
    // A name is checked where it is planned; here one got in all the same.
    for (name, text) in HOSTILE {
        let mut fixture = fixture(1.0);
        for (arm, judged) in fixture.comparison.candidates.iter_mut().zip(&mut fixture.verdict.arms) {
            arm.summary.arm.name = format!("{text}{}", judged.arm);
            judged.arm.clone_from(&arm.summary.arm.name);
        }
        check_html(name, &fixture.input());
        check_markdown(name, &fixture.input());
        check_junit(name, &fixture.input());
        check_annotations(name, &fixture.input());
        check_documents(name, &fixture);
    }
}

#[test]
fn answers_of_ten_megabytes_make_no_larger_page() {
    const TEN_MEGABYTES: usize = 10 << 20;
    for (kind, unit) in
        [("plain", "the code is 4171. "), ("hidden", "\u{202e}"), ("markup", "<&\">'"), ("one word", "x")]
    {
        let mut fixture = fixture(1.0);
        let text = unit.repeat(TEN_MEGABYTES / unit.len());
        let flips = &mut fixture.comparison.candidates[1].flips;
        flips.truncate(2);
        for flip in flips {
            flip.direction = FlipDirection::Regression;
            for field in
                [&mut flip.candidate_text, &mut flip.excerpt, &mut flip.expected, &mut flip.cause, &mut flip.notes[0]]
            {
                field.clone_from(&text);
            }
        }
        fixture.verdict.sentence.clone_from(&text);
        fixture.comparison.candidates[1].confounded = Some(text.clone());
        let page = render_html(&fixture.input()).unwrap();
        assert!(page.len() < HTML_WARN_BYTES, "{kind}: {} bytes", page.len());
        assert!(render_markdown(&fixture.input()).unwrap().chars().count() <= MARKDOWN_MAX_CHARS, "{kind}");
        assert!(render_junit(&fixture.input()).unwrap().len() < HTML_WARN_BYTES, "{kind}");
        assert!(annotations(&fixture.input()).unwrap().iter().all(|line| line.len() < 20_000), "{kind}");
    }
}
