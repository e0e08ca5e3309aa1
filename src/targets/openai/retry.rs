//! When to ask again: what a server says, or a delay that grows and is never the same for two clients.

use std::hash::{BuildHasher, RandomState};
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use reqwest::header::{HeaderMap, RETRY_AFTER};
use tokio::time::Instant;

/// Before the first retry, at most; doubles with each.
const BASE_DELAY: Duration = Duration::from_millis(500);
const MAX_DELAY: Duration = Duration::from_secs(30);

/// Whether a status may go away by itself: overload, a gateway without a server, a conflict or time limit on the way.
pub(super) fn is_temporary(status: u16) -> bool {
    matches!(status, 408 | 409 | 425 | 429) || (status >= 500 && !matches!(status, 501 | 505))
}

/// Back-off before the `retry`-th retry (from 1): half of it is fixed and half random, so that clients that failed together
/// do not return together.
pub(super) fn back_off(retry: u32) -> Duration {
    let ceiling = BASE_DELAY.saturating_mul(1 << (retry - 1).min(10)).min(MAX_DELAY);
    // Every `RandomState` has keys of its own.
    let random = RandomState::new().hash_one(retry) as f64 / u64::MAX as f64;
    ceiling.mul_f64(0.5 + 0.5 * random)
}

/// What the server asks for: seconds, or a date.
pub(super) fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = value.parse::<u64>() {
        return Some(Duration::from_secs(seconds));
    }
    let at = UNIX_EPOCH + Duration::from_secs(seconds_of_http_date(value)?);
    Some(at.duration_since(now).unwrap_or(Duration::ZERO))
}

/// Seconds since 1970 of `Sun, 06 Nov 1994 08:49:37 GMT`, the only form that servers may write (RFC 9110, 5.6.7).
fn seconds_of_http_date(text: &str) -> Option<u64> {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (_, date) = text.split_once(", ")?;
    let parts: Vec<&str> = date.split(' ').collect();
    let [day, month, year, time, "GMT"] = parts[..] else { return None };
    let month = MONTHS.iter().position(|name| *name == month)? as u64 + 1;
    let (day, year) = (day.parse::<u64>().ok()?, year.parse::<u64>().ok()?);
    let clock: Vec<u64> = time.split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let [hour, minute, second] = clock[..] else { return None };
    let is_possible =
        (1970..=9999).contains(&year) && (1..=31).contains(&day) && hour < 24 && minute < 60 && second < 61;
    // Years are counted from March, so that the leap day is the last day of one.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day;
    const DAYS_TO_1970: u64 = 719_469;
    is_possible.then(|| ((days.saturating_sub(DAYS_TO_1970)) * 24 + hour) * 3600 + minute * 60 + second)
}

/// Spaces requests evenly, so that a limit per minute holds in every minute.
#[derive(Debug)]
pub(super) struct Pace {
    interval: Duration,
    next: Mutex<Instant>,
}

impl Pace {
    pub(super) fn new(max_requests_per_minute: u32) -> Self {
        let interval = Duration::from_secs(60) / max_requests_per_minute;
        Self { interval, next: Mutex::new(Instant::now()) }
    }

    /// Waits for the next free place.
    pub(super) async fn wait(&self) {
        let place = {
            let mut next = self.next.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let place = (*next).max(Instant::now());
            *next = place + self.interval;
            place
        };
        tokio::time::sleep_until(place).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_seconds() {
        assert_eq!(seconds_of_http_date("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(seconds_of_http_date("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
        assert_eq!(seconds_of_http_date("Tue, 29 Feb 2000 12:00:00 GMT"), Some(951_825_600));
        for bad in
            ["", "soon", "Sun, 06 Nov 1994 08:49:37", "Sun, 6 Foo 1994 08:49:37 GMT", "Sun, 06 Nov 1 08:49:37 GMT"]
        {
            assert_eq!(seconds_of_http_date(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_server_is_heard_in_both_forms() {
        let after = |value: &str| {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, value.parse().unwrap())]);
            retry_after(&headers, UNIX_EPOCH + Duration::from_secs(784_111_770))
        };
        assert_eq!(after("3"), Some(Duration::from_secs(3)));
        assert_eq!(after("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::from_secs(7)));
        assert_eq!(after("Sun, 06 Nov 1994 08:00:00 GMT"), Some(Duration::ZERO));
        assert_eq!(after("-1"), None);
    }

    #[test]
    fn delays_grow_to_a_limit_and_differ() {
        for retry in 1..40 {
            let delay = back_off(retry);
            assert!(delay >= BASE_DELAY / 2 && delay <= MAX_DELAY, "{delay:?}");
        }
        assert!(back_off(9) > back_off(1));
        assert!((0..20).any(|_| back_off(5) != back_off(5)));
    }
}
