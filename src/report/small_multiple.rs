//! A small plot of one bin over the runs of a history; a page has up to a hundred, so each is a handful of paths.

use std::fmt::Write as _;

use serde::Serialize;

use crate::gate::Ruling;
use crate::report::figures;

/// One run in a panel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Night {
    /// Its place among the runs shown.
    pub(crate) place: usize,
    /// Candidate − baseline.
    pub(crate) delta: f64,
    /// 95 % interval of it.
    pub(crate) interval: Option<(f64, f64)>,
    /// What was said of it.
    pub(crate) ruling: Ruling,
}

/// What the template draws. Lengths are pixels of the view box.
#[derive(Serialize)]
pub(crate) struct SmallMultiple {
    pub(crate) id: String,
    pub(crate) title: String,
    pub(crate) description: String,
    width: u32,
    height: u32,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    label_y: f64,
    ticks: Vec<Tick>,
    zero_y: f64,
    margin_y: Option<f64>,
    changes: Vec<f64>,
    intervals: String,
    line: String,
    marks: Vec<Marks>,
    first: String,
    last: String,
}

#[derive(Serialize)]
struct Tick {
    y: f64,
    label: String,
}

/// All points of one ruling in one path.
#[derive(Serialize)]
struct Marks {
    class: &'static str,
    /// A ring or a cross has no inside.
    is_filled: bool,
    path: String,
}

const WIDTH: u32 = 240;
const HEIGHT: u32 = 132;
const LEFT: f64 = 42.0;
const RIGHT: f64 = 230.0;
const TOP: f64 = 8.0;
const BOTTOM: f64 = 106.0;
const LABEL_Y: f64 = 124.0;
/// Two labels closer than this run into each other.
const LABEL_HEIGHT: f64 = 13.0;
/// Half the size of a point.
const RADIUS: f64 = 3.5;

/// The frame that panels share, so that they can be compared with each other.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    /// Runs on the x axis.
    pub(crate) runs: usize,
    /// Ends of the y axis, as shares.
    pub(crate) range: (f64, f64),
    /// The drop that a PASS excludes, as a share above zero.
    pub(crate) margin: f64,
    /// What stands below the first and the last run.
    pub(crate) ends: (String, String),
}

impl Frame {
    fn x(&self, place: usize) -> f64 {
        match self.runs {
            0 | 1 => f64::midpoint(LEFT, RIGHT),
            // A margin of two radii keeps the first and the last point off the frame.
            runs => LEFT + 2.0 * RADIUS + (RIGHT - LEFT - 4.0 * RADIUS) * place as f64 / (runs - 1) as f64,
        }
    }

    fn y(&self, share: f64) -> f64 {
        let (low, high) = self.range;
        BOTTOM - (share.clamp(low, high) - low) / (high - low) * (BOTTOM - TOP)
    }
}

/// The ends of an axis that holds all values and zero, in steps of five points and at least ten points long.
pub(crate) fn axis(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values
        .filter(|value| value.is_finite())
        .fold((0.0_f64, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
    let step = 0.05;
    let low = ((low / step).floor() * step).min(-step).max(-1.0);
    let high = ((high / step).ceil() * step).max(step).min(1.0);
    (low, high)
}

/// Lays one panel out. `changes` are the places of runs before which something changed.
pub(crate) fn small_multiple(
    frame: &Frame,
    id: String,
    title: String,
    nights: &[Night],
    changes: &[usize],
) -> SmallMultiple {
    let round = |value: f64| (value * 10.0).round() / 10.0;
    // An end of the axis that is as good as zero would be written over its label.
    let mut ticks = vec![frame.range.0, 0.0, frame.range.1];
    ticks.retain(|share| *share == 0.0 || (frame.y(*share) - frame.y(0.0)).abs() >= LABEL_HEIGHT);
    let (mut intervals, mut line) = (String::new(), String::new());
    let mut last_place = None;
    for night in nights {
        let (x, y) = (round(frame.x(night.place)), round(frame.y(night.delta)));
        if let Some((low, high)) = night.interval {
            append(&mut intervals, format_args!("M{x} {}V{}", round(frame.y(low)), round(frame.y(high))));
        }
        // A night without this arm is a gap and not a line across.
        let is_next = last_place.is_some_and(|place| place + 1 == night.place);
        append(&mut line, format_args!("{}{x} {y}", if is_next { 'L' } else { 'M' }));
        last_place = Some(night.place);
    }
    SmallMultiple {
        id,
        description: describe(nights),
        title,
        width: WIDTH,
        height: HEIGHT,
        left: LEFT,
        right: RIGHT,
        top: TOP,
        bottom: BOTTOM,
        label_y: LABEL_Y,
        ticks: ticks
            .into_iter()
            .map(|share| Tick { y: round(frame.y(share)), label: format!("{:.0}", share * 100.0).replace('-', "−") })
            .collect(),
        zero_y: round(frame.y(0.0)),
        margin_y: (-frame.margin > frame.range.0).then(|| round(frame.y(-frame.margin))),
        changes: changes
            .iter()
            .filter(|place| **place > 0)
            .map(|place| round(f64::midpoint(frame.x(place - 1), frame.x(*place))))
            .collect(),
        intervals,
        line,
        marks: marks(frame, nights),
        first: frame.ends.0.clone(),
        last: frame.ends.1.clone(),
    }
}

fn describe(nights: &[Night]) -> String {
    let mut counts = String::new();
    for ruling in [Ruling::Regressed, Ruling::Invalid, Ruling::Inconclusive, Ruling::Pass] {
        let n = nights.iter().filter(|night| night.ruling == ruling).count();
        if n > 0 {
            append(&mut counts, format_args!("{n} {}, ", figures::mark(ruling).word));
        }
    }
    let last = nights.last().map_or_else(String::new, |night| {
        format!("last {} points {}", figures::points(Some(night.delta)), figures::interval_points(night.interval))
    });
    format!("{} runs: {counts}{last}", nights.len())
}

/// Dots pass, rings are inconclusive, squares invalid, crosses regressed: a shape for each, whatever the colour.
fn marks(frame: &Frame, nights: &[Night]) -> Vec<Marks> {
    let mut all = Vec::new();
    for ruling in [Ruling::Pass, Ruling::Inconclusive, Ruling::Invalid, Ruling::Regressed] {
        let mut path = String::new();
        for night in nights.iter().filter(|night| night.ruling == ruling) {
            let round = |value: f64| (value * 10.0).round() / 10.0;
            let (left, y) = (round(frame.x(night.place) - RADIUS), round(frame.y(night.delta)));
            let (r, d) = (RADIUS, 2.0 * RADIUS);
            match ruling {
                Ruling::Pass | Ruling::Inconclusive => {
                    append(&mut path, format_args!("M{left} {y}a{r} {r} 0 1 0 {d} 0a{r} {r} 0 1 0 -{d} 0"));
                }
                Ruling::Invalid => append(&mut path, format_args!("M{left} {}h{d}v{d}h-{d}z", round(y - r))),
                Ruling::Regressed => {
                    append(
                        &mut path,
                        format_args!("M{left} {0}l{d} {d}M{left} {1}l{d} -{d}", round(y - r), round(y + r)),
                    );
                }
            }
        }
        if !path.is_empty() {
            all.push(Marks { class: figures::mark(ruling).class, is_filled: ruling == Ruling::Pass, path });
        }
    }
    all
}

fn append(text: &mut String, more: std::fmt::Arguments<'_>) {
    text.write_fmt(more).expect("writing to a String does not fail");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_holds_zero_and_every_value() {
        assert_eq!(axis([].into_iter()), (-0.05, 0.05));
        let (low, high) = axis([-0.61, 0.02, f64::NAN].into_iter());
        assert!((low + 0.65).abs() < 1e-9 && (high - 0.05).abs() < 1e-9);
        assert_eq!(axis([-4.0, 9.0].into_iter()), (-1.0, 1.0));
    }

    #[test]
    fn a_night_without_the_arm_is_a_gap() {
        let night = |place| Night { place, delta: -0.01, interval: Some((-0.03, 0.01)), ruling: Ruling::Pass };
        let frame = Frame { runs: 4, range: (-0.05, 0.05), margin: 0.05, ends: (String::new(), String::new()) };
        let panel = small_multiple(&frame, "x".into(), "t".into(), &[night(0), night(1), night(3)], &[0, 3]);
        assert_eq!((panel.line.matches('M').count(), panel.line.matches('L').count()), (2, 1));
        assert_eq!(panel.intervals.matches('V').count(), 3);
        assert_eq!(panel.changes.len(), 1, "nothing changes before the first run");
    }
}
