//! How answers are read: content lines, list markers, quotes, nearness and order.

/// Longest text compared by edit distance: values and codes are far shorter, and the cost is quadratic.
const MAX_NEAR_CHARS: usize = 256;

/// Longest part of the answer line that is read: a line-less loop must not cost time.
const MAX_LINE_BYTES: usize = 64 * 1024;

/// Lines that say something: trimmed, without blank lines and code fences.
pub(super) fn content_lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !is_fence(line))
}

fn is_fence(line: &str) -> bool {
    line.strip_prefix("```").is_some_and(|rest| rest.chars().all(|c| c.is_ascii_alphanumeric()))
}

/// A first line such as `Here are the codes:` announces the answer and is not part of it.
pub(super) fn is_announcement(line: &str) -> bool {
    line.ends_with([':', '：']) && line.chars().count() <= 160
}

/// A line without its list marker: `- x`, `* x`, `• x`, `3. x`, `3) x`.
pub(super) fn without_marker(line: &str) -> &str {
    let line = line.trim();
    for bullet in ["- ", "* ", "• ", "– ", "+ "] {
        if let Some(rest) = line.strip_prefix(bullet) {
            return rest.trim_start();
        }
    }
    let digits = line.bytes().take_while(u8::is_ascii_digit).count();
    if (1..=3).contains(&digits)
        && let Some(rest) = line[digits..].strip_prefix(['.', ')'])
        && rest.starts_with(char::is_whitespace)
    {
        return rest.trim_start();
    }
    line
}

const QUOTES: [char; 13] = ['"', '\'', '`', '*', '“', '”', '‘', '’', '「', '」', '『', '』', '_'];

/// A text without quotes, emphasis and sentence punctuation around it.
pub(super) fn bare(text: &str) -> &str {
    let end =
        |c: char| c.is_whitespace() || QUOTES.contains(&c) || matches!(c, '.' | ',' | ';' | '。' | '，' | '；' | '、');
    text.trim_start_matches(|c: char| c.is_whitespace() || QUOTES.contains(&c)).trim_end_matches(end)
}

/// Whitespace runs as one space, none at the ends.
pub(super) fn normalised(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// How a wrong value is near the right one, in words; `None` when it is not.
///
/// Near is: one fifth of the characters changed (at least two; one in values of three characters, none in shorter ones), a repeat dropped or
/// added, the start or end of the value, or the value running on. Two random seven-digit numbers are that near once in
/// about 10,000 pairs.
pub(super) fn nearness(value: &str, answer: &str) -> Option<String> {
    if value.is_empty() || answer.is_empty() || value == answer {
        return None;
    }
    if value.eq_ignore_ascii_case(answer) {
        return Some("letters differ in case only".into());
    }
    let (value_chars, answer_chars) = (value.chars().count(), answer.chars().count());
    if value_chars >= 4 && answer.len() > value.len() && (answer.starts_with(value) || answer.ends_with(value)) {
        return Some(format!("runs on for {} characters", answer_chars - value_chars));
    }
    if answer_chars >= 3 && answer_chars * 2 >= value_chars && (value.starts_with(answer) || value.ends_with(answer)) {
        return Some(format!("{} of {value_chars} characters missing", value_chars - answer_chars));
    }
    if value_chars.max(answer_chars) > MAX_NEAR_CHARS {
        return None;
    }
    let distance = strsim::damerau_levenshtein(value, answer);
    let limit = match value_chars {
        0..3 => 0,
        3 => 1,
        _ => (value_chars / 5).max(2),
    };
    if distance > limit {
        return None;
    }
    Some(if without_repeats(value) == without_repeats(answer) {
        "a repeated character was dropped or added".into()
    } else if value_chars == answer_chars && strsim::levenshtein(value, answer) > distance {
        "characters transposed".into()
    } else {
        format!("{distance} of {value_chars} characters differ")
    })
}

fn without_repeats(text: &str) -> Vec<char> {
    let mut chars: Vec<char> = text.chars().collect();
    chars.dedup();
    chars
}

/// Length of the longest strictly increasing subsequence; `positions` are distinct. O(n log n).
pub(super) fn longest_increasing(positions: &[usize]) -> usize {
    let mut tails: Vec<usize> = Vec::new();
    for &position in positions {
        match tails.partition_point(|&tail| tail < position) {
            place if place == tails.len() => tails.push(position),
            place => tails[place] = position,
        }
    }
    tails.len()
}

/// The first line that says something; an announcement is passed over when another line follows.
pub(super) fn answer_line(text: &str) -> Option<&str> {
    let mut lines = content_lines(text).filter(|line| line.chars().any(char::is_alphanumeric));
    let first = lines.next()?;
    let line = if is_announcement(first) { lines.next().unwrap_or(first) } else { first };
    let line = &line[..line.floor_char_boundary(MAX_LINE_BYTES)];
    Some(without_marker(line))
}

/// Numbers, hexadecimal strings and identifiers: one word with a digit in it.
pub(super) fn is_code(value: &str) -> bool {
    value.bytes().any(|byte| byte.is_ascii_digit()) && value.chars().all(|c| is_code_char(c) || c == '.')
}

pub(super) fn is_code_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_')
}

/// `3.5`.
pub(super) fn is_decimal(word: &str) -> bool {
    word.split_once('.').is_some_and(|(whole, part)| {
        [whole, part].iter().all(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
    })
}

/// Full-width digits as ASCII ones.
pub(super) fn ascii_digits(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '０'..='９' => char::from(b'0' + (u32::from(c) - u32::from('０')) as u8),
            other => other,
        })
        .collect()
}

/// `4,829,173` as `4829173`: groups of three behind a first group of one to three digits.
pub(super) fn joined_thousands(text: &str) -> String {
    let bytes = text.as_bytes();
    let digits_from = |start: usize| bytes[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        let digits = digits_from(at);
        if digits == 0 {
            let next = text.ceil_char_boundary(at + 1);
            out.push_str(&text[at..next]);
            at = next;
            continue;
        }
        out.push_str(&text[at..at + digits]);
        at += digits;
        if digits <= 3 {
            while bytes.get(at) == Some(&b',') && digits_from(at + 1) == 3 {
                out.push_str(&text[at + 1..at + 4]);
                at += 4;
            }
        }
    }
    out
}

/// Whether `word` occurs between other characters than ASCII letters and digits.
pub(super) fn contains_word(text: &str, word: &str) -> bool {
    !word.is_empty() && text.match_indices(word).any(|(start, _)| stands_alone(text, start, start + word.len()))
}

/// Whether no ASCII letter or digit clings to the ends of `text[start..end]`.
pub(super) fn stands_alone(text: &str, start: usize, end: usize) -> bool {
    let joins = |a: Option<char>, b: Option<char>| [a, b].iter().all(|c| c.is_some_and(|c| c.is_ascii_alphanumeric()));
    let word = &text[start..end];
    !joins(text[..start].chars().next_back(), word.chars().next())
        && !joins(word.chars().next_back(), text[end..].chars().next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_and_quotes_come_off_and_numbers_stay() {
        for (line, rest) in
            [("- a", "a"), ("12) a b", "a b"), ("3.5 kg", "3.5 kg"), ("4829173", "4829173"), ("• x", "x")]
        {
            assert_eq!(without_marker(line), rest);
        }
        assert_eq!(bare("**\"4829173\"**."), "4829173");
        assert_eq!(bare("“北仓”。"), "北仓");
    }

    #[test]
    fn nearness_says_in_what_way() {
        let near = |value, answer| nearness(value, answer).unwrap_or_default();
        assert_eq!(near("4829173", "4829713"), "characters transposed");
        assert_eq!(near("4822173", "482173"), "a repeated character was dropped or added");
        assert_eq!(near("4829173", "4829178"), "1 of 7 characters differ");
        assert_eq!(near("4829173", "48291"), "2 of 7 characters missing");
        assert_eq!(near("4829173", "48291731"), "runs on for 1 characters");
        assert_eq!(near("4829173", "1150264"), "");
        assert_eq!(near("7", "8"), "");
        assert_eq!(near("a3f0", "A3F0"), "letters differ in case only");
    }

    #[test]
    fn the_longest_increasing_subsequence_is_found() {
        assert_eq!(longest_increasing(&[]), 0);
        assert_eq!(longest_increasing(&[0, 1, 2, 3]), 4);
        assert_eq!(longest_increasing(&[3, 2, 1, 0]), 1);
        assert_eq!(longest_increasing(&[0, 2, 1, 3, 5, 4]), 4);
    }
}
