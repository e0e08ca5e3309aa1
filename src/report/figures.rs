//! How figures are written in a report: one way each, and an unknown one is a dash.

use serde::Serialize;

use crate::gate::Ruling;
use crate::sample::Bin;
use crate::units::{format_percent, format_points, format_utc};

/// What stands where a figure is not known.
pub(crate) const UNKNOWN: &str = "–";

/// A ruling as people see it: never by colour alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Mark {
    /// ✓ ✗ ? !
    pub(crate) symbol: &'static str,
    /// The word.
    pub(crate) word: &'static str,
    /// The style class.
    pub(crate) class: &'static str,
}

/// The mark of a ruling.
pub(crate) fn mark(ruling: Ruling) -> Mark {
    let (symbol, word, class) = match ruling {
        Ruling::Pass => ("✓", "PASS", "pass"),
        Ruling::Inconclusive => ("?", "INCONCLUSIVE", "inconclusive"),
        Ruling::Invalid => ("!", "INVALID", "invalid"),
        Ruling::Regressed => ("✗", "REGRESSED", "regressed"),
    };
    Mark { symbol, word, class }
}

/// A share as `91.7 %`.
pub(crate) fn percent(share: Option<f64>) -> String {
    share.filter(|share| share.is_finite()).map_or_else(|| UNKNOWN.into(), format_percent)
}

/// `right` of `n` as a share.
pub(crate) fn share(right: u64, n: u64) -> Option<f64> {
    (n > 0).then(|| right as f64 / n as f64)
}

/// A difference of shares in points as `−12.0`.
pub(crate) fn points(delta: Option<f64>) -> String {
    delta.filter(|delta| delta.is_finite()).map_or_else(|| UNKNOWN.into(), format_points)
}

/// An interval of differences in points as `[−18.2, −6.1]`.
pub(crate) fn interval_points(interval: Option<(f64, f64)>) -> String {
    match interval {
        Some((low, high)) if low.is_finite() && high.is_finite() => {
            format!("[{}, {}]", format_points(low), format_points(high))
        }
        _ => UNKNOWN.into(),
    }
}

/// An interval of shares as `[81.2, 95.0]`, in percent.
pub(crate) fn interval_percent(interval: Option<(f64, f64)>) -> String {
    match interval {
        Some((low, high)) if low.is_finite() && high.is_finite() => {
            format!("[{:.1}, {:.1}]", low * 100.0, high * 100.0)
        }
        _ => UNKNOWN.into(),
    }
}

/// A p value as `0.012` or `<0.001`.
pub(crate) fn p_value(p: Option<f64>) -> String {
    match p {
        Some(p) if p.is_finite() && p < 0.001 => "<0.001".into(),
        Some(p) if p.is_finite() => format!("{p:.3}"),
        _ => UNKNOWN.into(),
    }
}

/// A number with its sign: `+0.012`, `−0.310`.
pub(crate) fn signed(value: f64, decimals: usize) -> String {
    if !value.is_finite() {
        return UNKNOWN.into();
    }
    let digits = format!("{:.decimals$}", value.abs());
    if digits.bytes().all(|byte| matches!(byte, b'0' | b'.')) {
        digits
    } else if value < 0.0 {
        format!("−{digits}")
    } else {
        format!("+{digits}")
    }
}

/// A divergence in nats. They span five decades: three figures that count, and nothing below the resolution of the records.
pub(crate) fn nats(value: f64) -> String {
    match value {
        value if !value.is_finite() => UNKNOWN.into(),
        value if value < 1e-5 => "0".into(),
        value if value < 1e-3 => format!("{value:.2e}"),
        value => format!("{value:.4}"),
    }
}

/// A whole number in groups of three: `12,480`.
pub(crate) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// A whole number and what it counts: `1 bin`, `1,234 bins`.
pub(crate) fn counted(n: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(n), if n == 1 { "" } else { "s" })
}

/// Unix milliseconds as `2026-11-29 23:59`, in UTC: a report must not depend on where it is rendered.
pub(crate) fn utc_minute(unix_ms: u64) -> String {
    let text = format_utc(unix_ms / 1000);
    format!("{} {}", &text[..10], &text[11..16])
}

/// A bin, or `all` for pooled rows.
pub(crate) fn bin(bin: Option<Bin>) -> String {
    bin.map_or_else(|| "all".into(), |bin| bin.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (unix_s, shown) in [
            (0, "1970-01-01 00:00"),
            (951_782_400, "2000-02-29 00:00"),
            (1_709_251_199, "2024-02-29 23:59"),
            (1_709_251_200, "2024-03-01 00:00"),
            (1_796_083_140, "2026-11-30 23:59"),
            (4_102_444_800, "2100-01-01 00:00"),
            (4_107_542_400, "2100-03-01 00:00"),
        ] {
            assert_eq!(utc_minute(unix_s * 1000), shown);
        }
    }

    #[test]
    fn figures_have_signs_and_unknown_ones_a_dash() {
        assert_eq!(points(Some(-0.12)), "−12.0");
        assert_eq!(points(None), UNKNOWN);
        assert_eq!(percent(Some(f64::NAN)), UNKNOWN);
        assert_eq!(interval_points(Some((-0.182, -0.061))), "[−18.2, −6.1]");
        assert_eq!(p_value(Some(0.0004)), "<0.001");
        assert_eq!(p_value(Some(0.0124)), "0.012");
        assert_eq!(signed(-0.0001, 3), "0.000");
        assert_eq!(signed(-0.31, 3), "−0.310");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(count(999), "999");
        assert_eq!((counted(1, "bin").as_str(), counted(1000, "bin").as_str()), ("1 bin", "1,000 bins"));
    }

    #[test]
    fn divergences_keep_their_figures_over_all_decades() {
        let shown = [0.0, 4e-6, 2.345e-4, 0.01234, 7.5, f64::NAN].map(nats);
        assert_eq!(shown, ["0", "0", "2.35e-4", "0.0123", "7.5000", UNKNOWN]);
    }
}
