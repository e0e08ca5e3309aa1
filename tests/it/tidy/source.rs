//! Rust source as the rules read it: without comments, strings or test code, line numbers kept.

/// Blanks comments and the contents of string and character literals; every line keeps its number.
pub(crate) fn code_only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let end = token_end(bytes, at);
        let is_literal_or_comment = end > at + 1;
        if is_literal_or_comment {
            code.extend(bytes[at..end].iter().map(|&byte| if byte == b'\n' { b'\n' } else { b' ' }));
        } else {
            code.push(bytes[at]);
        }
        at = end.max(at + 1);
    }
    String::from_utf8_lossy(&code).into_owned()
}

/// One past the comment or literal that starts at `at`; `at + 1` where none does.
fn token_end(bytes: &[u8], at: usize) -> usize {
    let rest = &bytes[at..];
    let follows_word = at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_');
    if rest.starts_with(b"//") {
        return at + rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
    }
    if rest.starts_with(b"/*") {
        return block_comment_end(bytes, at);
    }
    if rest[0] == b'"' {
        return string_end(bytes, at + 1);
    }
    if !follows_word && let Some(end) = raw_string_end(bytes, at) {
        return end;
    }
    if rest[0] == b'\'' {
        return character_end(bytes, at);
    }
    at + 1
}

fn block_comment_end(bytes: &[u8], start: usize) -> usize {
    let (mut depth, mut at) = (0_usize, start);
    while at < bytes.len() {
        match &bytes[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => {
                (depth, at) = (depth - 1, at + 2);
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    bytes.len()
}

fn string_end(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// `r"…"`, `r#"…"#`, `br#"…"#`.
fn raw_string_end(bytes: &[u8], start: usize) -> Option<usize> {
    let mut at = start;
    if bytes.get(at) == Some(&b'b') {
        at += 1;
    }
    if bytes.get(at) != Some(&b'r') {
        return None;
    }
    at += 1;
    let hashes = bytes[at..].iter().take_while(|&&byte| byte == b'#').count();
    at += hashes;
    if bytes.get(at) != Some(&b'"') {
        return None;
    }
    at += 1;
    let mut closing = vec![b'"'];
    closing.resize(1 + hashes, b'#');
    let length = bytes[at..].windows(closing.len()).position(|window| window == closing);
    Some(length.map_or(bytes.len(), |length| at + length + closing.len()))
}

/// `'x'`, `'\n'`, `'\u{1F600}'`; a lifetime is not a literal.
fn character_end(bytes: &[u8], at: usize) -> usize {
    if bytes.get(at + 1) == Some(&b'\\') {
        let close = bytes.iter().skip(at + 3).position(|&byte| byte == b'\'');
        return close.map_or(bytes.len(), |close| at + 3 + close + 1);
    }
    let width = match bytes.get(at + 1) {
        Some(byte) if *byte >= 0xF0 => 4,
        Some(byte) if *byte >= 0xE0 => 3,
        Some(byte) if *byte >= 0xC0 => 2,
        _ => 1,
    };
    if bytes.get(at + 1 + width) == Some(&b'\'') { at + 2 + width } else { at + 1 }
}

/// Blanks every item under `#[cfg(test)]`. Formatted source makes this a matter of indentation: the item ends with the first
/// line that closes at its own column.
pub(crate) fn without_tests(code: &str) -> String {
    let mut kept = String::with_capacity(code.len());
    let mut skip_until: Option<String> = None;
    let mut is_opening = false;
    for line in code.lines() {
        let indent = &line[..line.len() - line.trim_start().len()];
        if let Some(closing) = &skip_until {
            let one_line_item = is_opening && line.trim_end().ends_with(';');
            if !line.trim().starts_with("#[") && !line.trim().is_empty() {
                is_opening = false;
            }
            if one_line_item || line.trim_end() == *closing {
                skip_until = None;
            }
        } else if line.trim_start().starts_with("#[cfg(test)]") || line.trim_start().starts_with("#[cfg(all(test") {
            skip_until = Some(format!("{indent}}}"));
            is_opening = true;
        } else {
            kept.push_str(line);
        }
        kept.push('\n');
    }
    kept
}

/// Lines (counted from 1) in which `word` stands as a whole word, with the text behind it.
pub(crate) fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = (usize, &'a str)> + 'a {
    code.lines().enumerate().flat_map(move |(index, line)| {
        line.match_indices(word).filter_map(move |(at, _)| {
            let is_word_char = |c: char| c.is_alphanumeric() || c == '_';
            let before = line[..at].chars().next_back();
            let behind = &line[at + word.len()..];
            let whole = !before.is_some_and(is_word_char) && !behind.chars().next().is_some_and(is_word_char);
            whole.then_some((index + 1, behind))
        })
    })
}

/// The identifier that `text` starts with.
pub(crate) fn leading_identifier(text: &str) -> &str {
    let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(text.len());
    &text[..end]
}

#[test]
fn comments_and_literals_are_blanked_and_lines_keep_their_numbers() {
    let text = "let a = \"crate::gate \\\" //\"; // crate::gate\nlet b = r#\"crate::\"gate\"#;\n/* crate /* :: */ x */ 'c' 'static '\\'' '好' end";
    let code = code_only(text);
    assert!(!code.contains("crate"), "{code}");
    assert_eq!(code.lines().count(), 3);
    assert!(code.contains("'static") && code.ends_with(" end"), "{code}");
}

#[test]
fn test_code_is_blanked_and_what_follows_it_is_kept() {
    let code = "fn a() {}\n#[cfg(test)]\nmod tests {\n    use crate::gate;\n    fn b() {\n    }\n}\nfn c() {}\n#[cfg(test)]\nuse x::y;\nfn d() {}\n";
    let kept = without_tests(code);
    assert!(!kept.contains("gate") && !kept.contains("x::y"), "{kept}");
    assert!(kept.contains("fn a") && kept.contains("fn c") && kept.contains("fn d"), "{kept}");
    assert_eq!(kept.lines().count(), code.lines().count());
}
