//! How numbers with a unit are read and printed: one way each. A moment is seconds since 1970 in UTC; clocks are the command line's.

use chrono::{DateTime, NaiveDateTime};

/// Reads a token count: `512`, `2k`, `8K`, `131072`, `2Ki` (1K = 1,024 tokens).
pub fn parse_token_count(text: &str) -> Option<u32> {
    let lower = text.trim().to_ascii_lowercase();
    let (digits, factor) = match lower.strip_suffix("ki").or_else(|| lower.strip_suffix('k')) {
        Some(digits) => (digits, 1024),
        None => (lower.as_str(), 1),
    };
    digits.parse::<u32>().ok()?.checked_mul(factor)
}

/// Prints a token count as people say it: `512`, `2K`, `128K`, `1000`.
pub fn format_token_count(tokens: u32) -> String {
    if tokens >= 1024 && tokens.is_multiple_of(1024) { format!("{}K", tokens / 1024) } else { tokens.to_string() }
}

/// Reads a size: `4GiB`, `512 MiB`, `1.5g`, `1048576` (binary units; a bare number is bytes).
pub fn parse_bytes(text: &str) -> Option<u64> {
    let lower = text.trim().to_ascii_lowercase();
    let digits = lower.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(lower.len());
    let (number, unit) = lower.split_at(digits);
    let shift = match unit.trim() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return None,
    };
    let bytes = number.parse::<f64>().ok()?
        * f64::from(1_u32 << (shift % 30))
        * if shift >= 30 { 1_073_741_824.0 } else { 1.0 };
    // Far beyond any machine, and where f64 still counts single bytes.
    (1.0..=9e15).contains(&bytes).then_some(bytes as u64)
}

/// Prints bytes with a binary unit: `1.50 GiB`.
pub fn format_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.2} {}", UNITS[unit]) }
}

/// Prints a share in 0..=1 as a percentage with one decimal: `91.7 %`.
pub fn format_percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Prints a difference of shares in points with its sign: `−78.0`, `+1.5`, `0.0`.
pub fn format_points(delta: f64) -> String {
    let points = (delta * 1000.0).round() / 10.0;
    if points == 0.0 {
        "0.0".into()
    } else if points < 0.0 {
        format!("−{:.1}", -points)
    } else {
        format!("+{points:.1}")
    }
}

/// Prints a duration in seconds: `0.4 s`, `12 s`, `3 min 05 s`, `2 h 07 min`.
pub fn format_seconds(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        0..10 => format!("{seconds:.1} s"),
        10..60 => format!("{whole} s"),
        60..3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
    }
}

/// 31 December 9999: beyond it a year has five digits.
const MAX_UNIX_S: u64 = 253_402_300_799;

const UTC_PATTERN: &str = "%Y-%m-%dT%H:%M:%SZ";

/// Prints a moment: `2026-11-30T20:01:22Z`; later than the year 9999 is its last second.
pub fn format_utc(unix_s: u64) -> String {
    let seconds = i64::try_from(unix_s.min(MAX_UNIX_S)).expect("a date before the year 10000");
    DateTime::from_timestamp(seconds, 0).expect("a date before the year 10000").format(UTC_PATTERN).to_string()
}

/// Reads what [`format_utc`] prints; `None` for every other text.
pub fn parse_utc(text: &str) -> Option<u64> {
    let seconds = NaiveDateTime::parse_from_str(text, UTC_PATTERN).ok()?.and_utc().timestamp().try_into().ok()?;
    (format_utc(seconds) == text).then_some(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_counts_are_read_in_every_spelling() {
        for (text, tokens) in [("512", 512), ("2k", 2048), ("8K", 8192), ("131072", 131_072), ("2Ki", 2048)] {
            assert_eq!(parse_token_count(text), Some(tokens), "{text}");
        }
        for text in ["", "k", "-1", "2.5k", "4294967295k", "8 K tokens"] {
            assert_eq!(parse_token_count(text), None, "{text}");
        }
        assert_eq!(format_token_count(131_072), "128K");
        assert_eq!(format_token_count(1000), "1000");
    }

    #[test]
    fn numbers_are_printed_with_their_unit() {
        assert_eq!(format_bytes(1_610_612_736), "1.50 GiB");
        assert_eq!(format_bytes(12), "12 B");
        assert_eq!(format_points(-0.78), "−78.0");
        assert_eq!(format_points(-0.0001), "0.0");
        assert_eq!(format_seconds(0.44), "0.4 s");
        assert_eq!(format_seconds(185.0), "3 min 05 s");
    }

    #[test]
    fn every_day_of_four_centuries_and_its_seconds_come_back() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_796_068_882, "2026-11-30T20:01:22Z"),
            (MAX_UNIX_S, "9999-12-31T23:59:59Z"),
        ] {
            assert_eq!((format_utc(seconds).as_str(), parse_utc(text)), (text, Some(seconds)));
        }
        for day in 0..146_097 {
            let seconds = day * 86_400 + day * 7 % 86_400;
            assert_eq!(parse_utc(&format_utc(seconds)), Some(seconds));
        }
    }

    #[test]
    fn other_spellings_are_no_moments() {
        for text in [
            "",
            "2026-11-30",
            "2026-11-31T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-11-30T24:00:00Z",
            "2026-11-30T20:01:22z",
            "2026-11-30T20:01:22+00:00",
            "1969-12-31T23:59:59Z",
            "+026-11-30T20:01:22Z",
            "２０２６-11-30T20:01:22Z",
        ] {
            assert_eq!(parse_utc(text), None, "{text}");
        }
    }
}
