//! A moment as text, in UTC: `2026-11-30T20:01:22Z`. The clock itself is the command line's.

/// Days from 1 March of the year 0 to 1 January 1970.
const DAYS_TO_EPOCH: u64 = 719_468;

/// 31 December 9999: beyond it a year has five digits.
const MAX_SECONDS: u64 = 253_402_300_799;

/// Seconds since 1970 as `2026-11-30T20:01:22Z`; later than the year 9999 is its last second.
pub fn utc(unix_s: u64) -> String {
    let unix_s = unix_s.min(MAX_SECONDS);
    let (hour, minute, second) = (unix_s / 3600 % 24, unix_s / 60 % 60, unix_s % 60);
    // Eras of 400 years that start on 1 March, so that the leap day is the last of its year.
    let days = unix_s / 86_400 + DAYS_TO_EPOCH;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// The seconds since 1970 that [`utc`] writes as `text`; `None` for every other text.
pub fn seconds_of_utc(text: &str) -> Option<u64> {
    let number = |range: std::ops::Range<usize>| text.get(range)?.parse::<u64>().ok();
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    if year < 1970 || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let (shifted_year, shifted_month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, year_of_era) = (shifted_year / 400, shifted_year % 400);
    let day_of_year = (153 * shifted_month + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    let days = (era * 146_097 + day_of_era).checked_sub(DAYS_TO_EPOCH)?;
    let seconds = days * 86_400 + hour * 3600 + minute * 60 + second;
    // Also refuses a 31 June, an hour 24 and every other spelling.
    (utc(seconds) == text).then_some(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_day_of_four_centuries_and_its_seconds_come_back() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_796_068_882, "2026-11-30T20:01:22Z"),
            (MAX_SECONDS, "9999-12-31T23:59:59Z"),
        ] {
            assert_eq!((utc(seconds).as_str(), seconds_of_utc(text)), (text, Some(seconds)));
        }
        for day in 0..146_097 {
            let seconds = day * 86_400 + day * 7 % 86_400;
            assert_eq!(seconds_of_utc(&utc(seconds)), Some(seconds));
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
            assert_eq!(seconds_of_utc(text), None, "{text}");
        }
    }
}
