//! Text written by a model or a server is hostile until shown: what cannot be seen is spelled out, what is long is cut.

/// Whether a character changes what is displayed without being seen: control, bidirectional override, invisible.
fn is_hidden(character: char) -> bool {
    matches!(character,
        '\u{0}'..='\u{8}' | '\u{b}'..='\u{1f}' | '\u{7f}'..='\u{9f}'
        | '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
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
