//! Text written by a model or a server is hostile until shown: what cannot be seen is spelled out, what is long is cut, and what
//! a terminal or a build log would obey is made inert.

/// Whether a character changes what is displayed without being seen: control, bidirectional override, invisible, or none at all
/// (XML cannot hold U+FFFE and U+FFFF even as references).
fn is_hidden(character: char) -> bool {
    matches!(character,
        '\u{0}'..='\u{8}' | '\u{b}'..='\u{1f}' | '\u{7f}'..='\u{9f}'
        | '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180e}'
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}'
        | '\u{fff9}'..='\u{fffb}' | '\u{fffe}' | '\u{ffff}' | '\u{e0000}'..='\u{e0fff}')
}

/// Spells out every hidden character as `\u{202e}`; newline and tab stay.
pub(crate) fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if is_hidden(character) {
            shown.extend(character.escape_unicode());
        } else {
            shown.push(character);
        }
    }
    shown
}

/// Text of any origin for a terminal or a build log: hidden characters (escape sequences among them) are spelled out, and no line
/// can be taken for a workflow command of GitHub's runner, which obeys `::name` behind any blanks at the start of a line and
/// `##[name]` anywhere in it, on both streams.
pub fn terminal_text(text: &str) -> String {
    let shown = visible(text).replace("##[", "## [");
    let mut inert = String::with_capacity(shown.len());
    for line in shown.split_inclusive('\n') {
        let start = line.len() - line.trim_start().len();
        match line[start..].strip_prefix("::") {
            Some(rest) => inert.extend([&line[..start], ": :", rest]),
            None => inert.push_str(line),
        }
    }
    inert
}

/// A JSON document for a terminal or a build log: the same document, with what [`terminal_text`] makes inert written as escapes of
/// JSON. Lines of JSON start with a bracket, a quote or a digit, so only `##[` is left to be broken.
pub fn terminal_json(json: &str) -> String {
    let mut inert = String::with_capacity(json.len());
    // Outside of strings JSON has no hidden character but line breaks, which stay.
    for character in json.chars() {
        if is_hidden(character) {
            let mut units = [0; 2];
            inert.extend(character.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")));
        } else {
            inert.push(character);
        }
    }
    inert.replace("##[", "#\\u0023[")
}

/// At most `limit` characters, with the number of those left out.
pub(crate) fn clip(text: &str, limit: usize) -> String {
    match text.char_indices().nth(limit) {
        None => text.to_owned(),
        Some((end, _)) => {
            let more = text[end..].chars().count();
            format!("{}… [{more} more characters]", &text[..end])
        }
    }
}

/// About `limit` characters of `text` with `word` in their middle; the start where the word is not there.
pub(crate) fn clip_around(text: &str, word: &str, limit: usize) -> String {
    let total = text.chars().count();
    if total <= limit {
        return text.to_owned();
    }
    let at = text.find(word).map_or(0, |byte| text[..byte].chars().count());
    let start = at.saturating_sub(limit / 2).min(total - limit);
    let middle: String = text.chars().skip(start).take(limit).collect();
    let before = if start > 0 { "… " } else { "" };
    let after = if start + limit < total { " …" } else { "" };
    format!("{before}{middle}{after}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_characters_are_spelled_out_and_others_stay() {
        assert_eq!(visible("a\0b\u{202e}c\r\n\td\u{1b}[31m"), "a\\u{0}b\\u{202e}c\\u{d}\n\td\\u{1b}[31m");
        assert_eq!(visible("价格 — 12 € 🙂"), "价格 — 12 € 🙂");
    }

    #[test]
    fn no_line_of_a_log_is_a_command() {
        for (text, shown) in [
            ("::error::x", ": :error::x"),
            ("a\n \t::add-mask::b\n", "a\n \t: :add-mask::b\n"),
            ("x ##[error]y ###[", "x ## [error]y ### ["),
            ("\u{1b}[31m\r::stop-commands::", "\\u{1b}[31m\\u{d}::stop-commands::"),
            ("\u{feff}::set-output::", "\\u{feff}::set-output::"),
            ("a::b", "a::b"),
        ] {
            assert_eq!(terminal_text(text), shown);
        }
    }

    #[test]
    fn an_inert_document_is_the_same_document() {
        let document = serde_json::json!({ "##[error]": "a\u{202e}b\u{7f}##[x]\u{e0041}", "list": ["::x\n::y"] });
        let text = serde_json::to_string_pretty(&document).unwrap();
        let inert = terminal_json(&text);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&inert).unwrap(), document);
        assert!(!inert.contains("##[") && !inert.contains('\u{202e}') && !inert.contains('\u{e0041}'));
        assert!(inert.lines().all(|line| !line.trim_start().starts_with("::")));
    }

    #[test]
    fn clipping_counts_characters_and_says_what_is_missing() {
        assert_eq!(clip("价格价格", 4), "价格价格");
        assert_eq!(clip("价格价格", 3), "价格价… [1 more characters]");
    }

    #[test]
    fn an_excerpt_keeps_its_needle() {
        let text = format!("{}NEEDLE{}", "a".repeat(500), "b".repeat(500));
        let shown = clip_around(&text, "NEEDLE", 100);
        assert!(shown.contains("NEEDLE") && shown.starts_with("… ") && shown.ends_with(" …"));
        assert_eq!(clip_around("short", "x", 100), "short");
    }
}
