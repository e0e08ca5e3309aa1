//! Words that no language written in Latin letters has: a part of garbage.

use crate::detectors::garbage::{Seen, is_known};
use crate::detectors::reading::Reading;
use crate::detectors::tokens::{Kind, Token};
use crate::detectors::tongue::function_word;

/// Pairs of letters that begin, end or fill no word of the languages written in Latin letters here, but for names.
const ODD_PAIRS: &str = "bq bx bz cj cv cx cz dx fq fv fx fz gq gv gx hx hz jb jc jd jf jg jh jk jl jm jn jp jq jr js jt jv jw jx \
    jy jz kq kx kz lq lx mq mx mz pq pv px pz qa qb qc qd qe qf qg qh qi qj qk ql qm qn qo qp qq qr qs qt qv qw qx qy qz sx tq \
    vb vc vd vf vg vh vj vk vm vn vp vq vt vv vw vx vz wq wv wx wz xb xd xg xj xk xm xn xq xr xv xw xx xz yq yx zb zc zd zf zg \
    zj zk zm zn zp zq zr zs zt zv zx";

/// Words that are none, as a share of those long enough to tell.
pub(super) fn non_words(reading: &Reading<'_>) -> Option<Seen> {
    const MIN_ODD: usize = 4;
    const MIN_ODD_SHARE: f64 = 0.3;
    const MAX_WORDS: usize = 200_000;
    // Half of a long text may be whole: then its end is judged.
    const TAIL: usize = 40;
    if let Some(seen) = endless_identifier(reading) {
        return Some(seen);
    }
    let (text, tokens) = (reading.text, reading.tokens());
    let words =
        || tokens.iter().enumerate().filter(|(at, token)| token.kind == Kind::Word && is_free(text, tokens, *at));
    let judge = |words: &[&Token]| {
        let judged = words.iter().filter(|token| token.end - token.start >= 3 && function_word(token) == 0).count();
        let odd: Vec<&&Token> = words.iter().filter(|token| is_odd(text, token)).collect();
        let is_many = odd.len() >= MIN_ODD && odd.len() as f64 >= judged as f64 * MIN_ODD_SHARE;
        let first = odd.iter().find(|token| !is_known(reading, token.text(text)));
        (is_many && first.is_some()).then(|| Seen {
            severity: odd.len() as f64 / judged.max(1) as f64,
            start: odd[0].start,
            end: odd[odd.len() - 1].end,
            evidence: format!("{} of {judged} words are none, such as `{}`", odd.len(), odd[0].text(text)),
        })
    };
    let found: Vec<&Token> = words().map(|(_, token)| token).take(MAX_WORDS).collect();
    judge(&found).or_else(|| (found.len() > TAIL).then(|| judge(&found[found.len() - TAIL..])).flatten())
}

/// Not a part of a code, an identifier, a path or an address.
fn is_free(text: &str, tokens: &[Token], at: usize) -> bool {
    let (start, end) = (tokens[at].start, tokens[at].end);
    let bytes = text.as_bytes();
    let joins = |byte: u8| byte.is_ascii_digit() || b"_-/\\@#&=+%.".contains(&byte);
    let after = bytes.get(end).copied().unwrap_or(b' ');
    if start > 0 && joins(bytes[start - 1]) {
        return false;
    }
    !joins(after) || (after == b'.' && !text[end + 1..].starts_with(char::is_alphanumeric))
}

/// What a letter is for [`is_odd`].
const VOWEL: u8 = 1;
const CAPITAL: u8 = 2;
const SMALL: u8 = 4;

static LETTERS: [u8; 256] = {
    let mut letters = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        letters[byte] = match byte as u8 {
            b'a' | b'e' | b'i' | b'o' | b'u' | b'y' => SMALL | VOWEL,
            b'A' | b'E' | b'I' | b'O' | b'U' | b'Y' => CAPITAL | VOWEL,
            b'a'..=b'z' => SMALL,
            b'A'..=b'Z' => CAPITAL,
            _ => 0,
        };
        byte += 1;
    }
    letters
};

fn is_odd(text: &str, token: &Token) -> bool {
    const MAX_BYTES: usize = 40;
    const MAX_CONSONANTS: usize = 5;
    let word = token.text(text);
    let bytes = word.as_bytes();
    if !(3..=MAX_BYTES).contains(&bytes.len()) || !word.is_ascii() {
        return bytes.len() > MAX_BYTES
            && word.is_ascii()
            && !bytes.iter().all(u8::is_ascii_uppercase)
            && !is_bases(word);
    }
    let (mut has_hump, mut has_odd_pair, mut all) = (false, false, CAPITAL);
    let (mut row, mut longest) = (0, 0);
    let (mut before, mut index_before) = (0, 0);
    for (at, byte) in bytes.iter().enumerate() {
        let letter = LETTERS[usize::from(*byte)];
        let index = usize::from((byte | 0x20).wrapping_sub(b'a')) % 32;
        if at > 0 {
            has_hump |= before & SMALL != 0 && letter & CAPITAL != 0;
            has_odd_pair |= ODD[index_before] >> index & 1 == 1;
            all &= letter;
        }
        row = if letter & VOWEL == 0 { row + 1 } else { 0 };
        longest = longest.max(row);
        (before, index_before) = (letter, index);
    }
    let is_suspect = (bytes.len() >= 4 && longest == bytes.len())
        || longest > MAX_CONSONANTS
        || (!has_hump && has_odd_pair)
        || token.known.is_fragment();
    // Abbreviations are written in capitals.
    is_suspect && all == 0 && !is_bases(word)
}

/// A sequence of bases.
fn is_bases(word: &str) -> bool {
    word.len() >= 8 && word.bytes().all(|byte| b"ACGTUNacgtun".contains(&byte))
}

/// [`ODD_PAIRS`] as a bit per second letter for each first one.
static ODD: [u32; 32] = {
    let mut odd = [0; 32];
    let pairs = ODD_PAIRS.as_bytes();
    let mut at = 0;
    while at < pairs.len() {
        odd[(pairs[at] - b'a') as usize] |= 1 << (pairs[at + 1] - b'a');
        at += 3;
    }
    odd
};

/// Half-words joined by underscores that never end.
fn endless_identifier(reading: &Reading<'_>) -> Option<Seen> {
    const MIN_CHARS: usize = 60;
    const MIN_JOINTS: usize = 6;
    let text = reading.text;
    if text.len() < MIN_CHARS || !reading.bytes().has(b'_') {
        return None;
    }
    let base = text.as_ptr() as usize;
    let is_identifier = |word: &&str| {
        word.len() >= MIN_CHARS
            && word.bytes().filter(|byte| *byte == b'_').count() >= MIN_JOINTS
            && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    let word = text.split_whitespace().find(is_identifier).filter(|word| !is_known(reading, word))?;
    let start = word.as_ptr() as usize - base;
    let evidence = format!("a word of {} characters joined by underscores", word.len());
    Some(Seen { severity: word.len() as f64 / text.len() as f64, start, end: start + word.len(), evidence })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detectors::tokens::tokens;

    #[test]
    fn odd_words_are_told_from_words_and_codes() {
        let is_odd = |word: &str| is_odd(word, &tokens(word)[0]);
        for odd in ["xqvz", "brfgt", "ation", "Qxa", "ledgjk", "lengthssts", &"ab".repeat(21)] {
            assert!(is_odd(odd), "{odd}");
        }
        for whole in
            ["ledger", "strength", "NFL", "XML", "camelXcase", "ACGTTTGACC", "naïvqx", "the", "ed", &"AB".repeat(21)]
        {
            assert!(!is_odd(whole), "{whole}");
        }
    }
}
