//! Line and bar plots as SVG; the only file that names plotters.
//!
//! Plotters writes colours as presentation attributes. They are rewritten to style variables afterwards, so that the plots follow the
//! reader's colour scheme and still have their colours where styles are blocked.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::*;

use crate::report::ReportError;
use crate::report::ink::{self, Ink};
use crate::units::format_token_count;

/// One point of a curve: place on the x axis, value, interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Point {
    /// log₂ of the bin's tokens.
    pub(crate) x: f64,
    /// A share.
    pub(crate) y: f64,
    /// Interval of `y`.
    pub(crate) interval: Option<(f64, f64)>,
}

/// The shape of a curve's points: colour is never the only difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Circle,
    Ring,
    Square,
    Triangle,
    Diamond,
}

impl Shape {
    /// The shape of a candidate.
    pub(crate) fn of_candidate(index: usize) -> Self {
        const CANDIDATES: [Shape; 3] = [Shape::Square, Shape::Triangle, Shape::Diamond];
        CANDIDATES[index % CANDIDATES.len()]
    }

    /// The name its style class and legend entry are known by.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Circle => "circle",
            Self::Ring => "ring",
            Self::Square => "square",
            Self::Triangle => "triangle",
            Self::Diamond => "diamond",
        }
    }
}

/// One arm's curve.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Curve {
    /// Its colour.
    pub(crate) ink: Ink,
    /// Its points' shape.
    pub(crate) shape: Shape,
    /// In ascending x.
    pub(crate) points: Vec<Point>,
}

/// One stack of a bar plot: colours and heights, bottom first.
pub(crate) type Stack = Vec<(Ink, f64)>;

/// An axis with labels at given places only.
#[derive(Clone)]
struct TickAxis {
    ticks: Vec<(f64, String)>,
    range: Range<f64>,
}

impl Ranged for TickAxis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = (value - self.range.start) / (self.range.end - self.range.start);
        limit.0 + (share * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        self.ticks.iter().map(|(place, _)| *place).collect()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for TickAxis {
    fn format_ext(&self, value: &f64) -> String {
        self.ticks.iter().find(|(place, _)| place == value).map_or_else(String::new, |(_, label)| label.clone())
    }
}

/// Pixels of a curve plot.
const CURVES_SIZE: (u32, u32) = (360, 250);
/// Pixels of a bar plot.
const BARS_SIZE: (u32, u32) = (260, 180);
/// Share of the distance between two bins over which the arms are spread, so that their intervals do not hide each other.
const DODGE_SHARE: f64 = 0.5;

/// Shares over log₂ length, one curve per arm with the interval of each point.
///
/// `ticks` are places and labels of the bins.
pub(crate) fn curves(ticks: &[(f64, String)], curves: &[Curve]) -> Result<String, ReportError> {
    let mut svg = String::new();
    draw_curves(&mut svg, ticks, curves).map_err(|message| ReportError::Plot { plot: "quality curves", message })?;
    Ok(themed(&svg))
}

/// Stacked bars, one stack per tick; `top` is the upper end of the y axis as a share.
pub(crate) fn stacked_bars(labels: &[String], stacks: &[Stack], top: f64) -> Result<String, ReportError> {
    let mut svg = String::new();
    draw_bars(&mut svg, labels, stacks, top).map_err(|message| ReportError::Plot { plot: "symptom bars", message })?;
    Ok(themed(&svg))
}

/// The inside of the document, with every colour turned into a style variable.
fn themed(svg: &str) -> String {
    let inside = svg.split_once('>').map_or(svg, |(_, inside)| inside);
    let mut inside = inside.trim().trim_end_matches("</svg>").to_owned();
    for ink in ink::all() {
        inside = inside.replace(&format!("\"{}\"", ink.fixed()), &format!("\"{}\"", ink.themed()));
    }
    inside.replace("font-family=\"sans-serif\"", "font-family=\"system-ui, sans-serif\"")
}

/// The view box of a curve plot.
pub(crate) fn curves_view_box() -> String {
    format!("0 0 {} {}", CURVES_SIZE.0, CURVES_SIZE.1)
}

/// The view box of a bar plot.
pub(crate) fn bars_view_box() -> String {
    format!("0 0 {} {}", BARS_SIZE.0, BARS_SIZE.1)
}

fn color(ink: Ink) -> RGBColor {
    RGBColor(ink.rgb.0, ink.rgb.1, ink.rgb.2)
}

fn percent_axis(top: f64, steps: u32) -> TickAxis {
    let label = |step: u32| {
        let place = top * f64::from(step) / f64::from(steps);
        (place, format!("{:.0} %", place * 100.0))
    };
    TickAxis { ticks: (0..=steps).map(label).collect(), range: 0.0..top * 1.03 }
}

/// Pixels of an average character of a label, and between two labels.
const LABEL_CHARACTER_WIDTH: f64 = 8.5;
const LABEL_GAP: f64 = 5.0;

/// Leaves out the labels that would run into the next one, from the longest bin down: that one is looked at first.
fn thinned(ticks: &[(f64, String)], range: &Range<f64>, width: f64) -> Vec<(f64, String)> {
    let mut kept: Vec<(f64, String)> = Vec::new();
    let mut free = f64::INFINITY;
    for (place, label) in ticks.iter().rev() {
        let middle = (place - range.start) / (range.end - range.start) * width;
        let half = label.chars().count() as f64 * LABEL_CHARACTER_WIDTH / 2.0;
        if middle + half <= free {
            free = middle - half - LABEL_GAP;
            kept.push((*place, label.clone()));
        }
    }
    kept.reverse();
    kept
}

fn draw_curves(svg: &mut String, ticks: &[(f64, String)], curves: &[Curve]) -> Result<(), String> {
    let (Some(first), Some(last)) = (ticks.first(), ticks.last()) else {
        return Err("no bins".into());
    };
    let area = SVGBackend::with_string(svg, CURVES_SIZE).into_drawing_area();
    let range = first.0 - 0.5..last.0 + 0.5;
    let x_axis = TickAxis { ticks: thinned(ticks, &range, f64::from(CURVES_SIZE.0 - 72)), range };
    let mut chart = ChartBuilder::on(&area)
        .margin(10)
        .x_label_area_size(28)
        .y_label_area_size(52)
        .build_cartesian_2d(x_axis, percent_axis(1.0, 4))
        .map_err(|error| error.to_string())?;
    draw_mesh(&mut chart)?;
    let gap = ticks.windows(2).map(|pair| pair[1].0 - pair[0].0).fold(2.0, f64::min);
    let dodge = gap * DODGE_SHARE / curves.len().max(2) as f64;
    let middle = (curves.len().max(1) - 1) as f64 / 2.0;
    for (index, curve) in curves.iter().enumerate() {
        let shift = (index as f64 - middle) * dodge;
        draw_curve(&mut chart, curve, shift)?;
    }
    drop(chart);
    area.present().map_err(|error| error.to_string())
}

type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<TickAxis, TickAxis>>;

fn draw_mesh(chart: &mut Chart) -> Result<(), String> {
    let text = ("sans-serif", 15).into_font().color(&color(ink::TEXT));
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(color(ink::GRID))
        .axis_style(color(ink::GRID))
        .label_style(text)
        .x_labels(64)
        .y_labels(16)
        .draw()
        .map_err(|error| error.to_string())
}

fn draw_curve(chart: &mut Chart, curve: &Curve, shift: f64) -> Result<(), String> {
    let style = color(curve.ink).stroke_width(2);
    let thin = color(curve.ink).stroke_width(1);
    let line = curve.points.iter().map(|point| (point.x + shift, point.y));
    chart.draw_series(LineSeries::new(line, style)).map_err(|error| error.to_string())?;
    let bars = curve.points.iter().filter_map(|point| {
        let (low, high) = point.interval?;
        Some(ErrorBar::new_vertical(point.x + shift, low, point.y, high, thin, 7))
    });
    chart.draw_series(bars).map_err(|error| error.to_string())?;
    draw_shapes(chart, curve, shift)
}

fn draw_shapes(chart: &mut Chart, curve: &Curve, shift: f64) -> Result<(), String> {
    let filled = color(curve.ink).filled();
    let thin = color(curve.ink).stroke_width(1);
    let places = curve.points.iter().map(|point| (point.x + shift, point.y));
    let drawn = match curve.shape {
        Shape::Circle => chart.draw_series(places.map(|at| Circle::new(at, 4, filled))).map(drop),
        Shape::Ring => chart.draw_series(places.map(|at| Circle::new(at, 6, thin))).map(drop),
        Shape::Square => {
            let square = |at| EmptyElement::at(at) + Rectangle::new([(-4, -4), (4, 4)], filled);
            chart.draw_series(places.map(square)).map(drop)
        }
        Shape::Triangle => {
            let triangle = |at| EmptyElement::at(at) + Polygon::new(vec![(0, -6), (6, 5), (-6, 5)], filled);
            chart.draw_series(places.map(triangle)).map(drop)
        }
        Shape::Diamond => {
            let diamond = |at| EmptyElement::at(at) + Polygon::new(vec![(0, -6), (6, 0), (0, 6), (-6, 0)], filled);
            chart.draw_series(places.map(diamond)).map(drop)
        }
    };
    drawn.map_err(|error| error.to_string())
}

fn draw_bars(svg: &mut String, labels: &[String], stacks: &[Stack], top: f64) -> Result<(), String> {
    if labels.is_empty() || top.is_nan() || top <= 0.0 {
        return Err("no bins".into());
    }
    let area = SVGBackend::with_string(svg, BARS_SIZE).into_drawing_area();
    let ticks: Vec<(f64, String)> =
        labels.iter().enumerate().map(|(index, label)| (index as f64, label.clone())).collect();
    let range = -0.6..labels.len() as f64 - 0.4;
    let x_axis = TickAxis { ticks: thinned(&ticks, &range, f64::from(BARS_SIZE.0 - 62)), range };
    let mut chart = ChartBuilder::on(&area)
        .margin(8)
        .x_label_area_size(26)
        .y_label_area_size(46)
        .build_cartesian_2d(x_axis, percent_axis(top, 4))
        .map_err(|error| error.to_string())?;
    draw_mesh(&mut chart)?;
    for (index, stack) in stacks.iter().enumerate() {
        let mut from = 0.0;
        for (ink, height) in stack.iter().filter(|(_, height)| *height > 0.0) {
            let place = index as f64;
            let corners = [(place - 0.32, from), (place + 0.32, from + height)];
            let bar = Rectangle::new(corners, color(*ink).filled());
            chart.draw_series([bar]).map_err(|error| error.to_string())?;
            from += height;
        }
    }
    drop(chart);
    area.present().map_err(|error| error.to_string())
}

/// A plot of lines over context length, with a legend; several make one picture.
#[derive(Clone, Debug, PartialEq)]
pub struct LinePanel {
    /// What is plotted, with its unit.
    pub title: String,
    /// How values become heights.
    pub scale: PlotScale,
    /// At most as many as can be told apart: about a dozen.
    pub lines: Vec<PlotLine>,
}

/// How values become heights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlotScale {
    /// From zero on.
    Linear,
    /// Decades; values that are not above zero are left out.
    Log10,
}

/// One line of a [`LinePanel`].
#[derive(Clone, Debug, PartialEq)]
pub struct PlotLine {
    /// Name in the legend.
    pub label: String,
    /// Tokens (at least 1) and value, in ascending tokens; values that are no numbers are left out.
    pub points: Vec<(u32, f64)>,
}

/// Pixels of a panel, its legend included.
const PANEL_SIZE: (u32, u32) = (900, 460);
/// Pixels to the right of a panel's lines.
const LEGEND_WIDTH: u32 = 400;
/// Pixels between two lines of a legend.
const LEGEND_STEP: i32 = 17;

/// Panels below each other as one SVG document with fixed colours on white, for files that stand alone.
///
/// # Errors
/// A panel without any value that can be plotted, or what the plotting library says.
pub fn line_panels(panels: &[LinePanel]) -> Result<String, ReportError> {
    let mut svg = String::new();
    draw_panels(&mut svg, panels).map_err(|message| ReportError::Plot { plot: "lines over length", message })?;
    Ok(svg)
}

fn draw_panels(svg: &mut String, panels: &[LinePanel]) -> Result<(), String> {
    if panels.is_empty() {
        return Err("no panels".into());
    }
    let size = (PANEL_SIZE.0, PANEL_SIZE.1 * panels.len() as u32);
    let area = SVGBackend::with_string(svg, size).into_drawing_area();
    area.fill(&WHITE).map_err(|error| error.to_string())?;
    for (panel, area) in panels.iter().zip(area.split_evenly((panels.len(), 1))) {
        draw_panel(panel, &area)?;
    }
    area.present().map_err(|error| error.to_string())
}

fn draw_panel(panel: &LinePanel, area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>) -> Result<(), String> {
    let curves: Vec<Curve> =
        panel.lines.iter().enumerate().map(|(index, line)| line_curve(index, line, panel.scale)).collect();
    let values: Vec<f64> = curves.iter().flat_map(|curve| curve.points.iter().map(|point| point.y)).collect();
    let (Some(low), Some(high)) = (values.iter().copied().reduce(f64::min), values.iter().copied().reduce(f64::max))
    else {
        return Err(format!("`{}` has no value to plot", panel.title));
    };
    let y_axis = match panel.scale {
        PlotScale::Linear => linear_axis(high),
        PlotScale::Log10 => decade_axis(low, high),
    };
    let caption = ("sans-serif", 17).into_font().color(&color(ink::TEXT));
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, caption)
        .margin(10)
        .margin_right(LEGEND_WIDTH)
        .x_label_area_size(28)
        .y_label_area_size(64)
        .build_cartesian_2d(length_axis(&panel.lines), y_axis)
        .map_err(|error| error.to_string())?;
    draw_mesh(&mut chart)?;
    for (index, (curve, line)) in curves.iter().zip(&panel.lines).enumerate() {
        draw_curve(&mut chart, curve, 0.0)?;
        draw_legend_entry(area, index, curve, &line.label)?;
    }
    Ok(())
}

fn line_curve(index: usize, line: &PlotLine, scale: PlotScale) -> Curve {
    const SHAPES: [Shape; 5] = [Shape::Circle, Shape::Square, Shape::Triangle, Shape::Diamond, Shape::Ring];
    let height = |value: f64| if scale == PlotScale::Log10 { value.log10() } else { value };
    let points = line.points.iter().map(|(tokens, value)| Point {
        x: f64::from(*tokens).log2(),
        y: height(*value),
        interval: None,
    });
    let points = points.filter(|point| point.x.is_finite() && point.y.is_finite()).collect();
    Curve { ink: ink::candidate(index), shape: SHAPES[index % SHAPES.len()], points }
}

fn draw_legend_entry(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    index: usize,
    curve: &Curve,
    label: &str,
) -> Result<(), String> {
    let left = (PANEL_SIZE.0 - LEGEND_WIDTH) as i32 + 14;
    let y = 52 + index as i32 * LEGEND_STEP;
    let (filled, thin) = (color(curve.ink).filled(), color(curve.ink).stroke_width(2));
    let at = (left + 12, y);
    let line = PathElement::new(vec![(left, y), (left + 24, y)], thin);
    let drawn = area.draw(&line).and_then(|()| match curve.shape {
        Shape::Circle => area.draw(&Circle::new(at, 4, filled)),
        Shape::Ring => area.draw(&Circle::new(at, 6, thin)),
        Shape::Square => area.draw(&Rectangle::new([(at.0 - 4, at.1 - 4), (at.0 + 4, at.1 + 4)], filled)),
        Shape::Triangle => {
            area.draw(&Polygon::new(vec![(at.0, at.1 - 6), (at.0 + 6, at.1 + 5), (at.0 - 6, at.1 + 5)], filled))
        }
        Shape::Diamond => area
            .draw(&Polygon::new(vec![(at.0, at.1 - 6), (at.0 + 6, at.1), (at.0, at.1 + 6), (at.0 - 6, at.1)], filled)),
    });
    let text = ("sans-serif", 12).into_font().color(&color(ink::TEXT));
    let labelled = drawn.and_then(|()| area.draw(&Text::new(label.to_owned(), (left + 32, y - 7), text)));
    labelled.map_err(|error| error.to_string())
}

/// Powers of two as people write them.
fn length_axis(lines: &[PlotLine]) -> TickAxis {
    let mut lengths: Vec<u32> = lines.iter().flat_map(|line| line.points.iter().map(|(tokens, _)| *tokens)).collect();
    lengths.sort_unstable();
    lengths.dedup();
    let place = |tokens: u32| f64::from(tokens.max(1)).log2();
    let (low, high) = (lengths.first().map_or(0.0, |it| place(*it)), lengths.last().map_or(1.0, |it| place(*it)));
    let ticks = lengths.into_iter().map(|tokens| (place(tokens), format_token_count(tokens))).collect();
    TickAxis { ticks, range: low - 0.3..high + 0.3 }
}

/// From zero to a little above `high`, in steps of 1, 2 or 5 times a power of ten.
fn linear_axis(high: f64) -> TickAxis {
    const MOST_STEPS: f64 = 6.0;
    let high = if high > 0.0 { high } else { 1.0 };
    let decade = 10_f64.powf((high / MOST_STEPS).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * decade).into_iter().find(|step| high / step <= MOST_STEPS);
    let step = step.unwrap_or(high);
    let n_step = (high / step).ceil() as u32;
    let decimals = (-step.log10().floor()).max(0.0) as usize;
    let tick = |index: u32| (f64::from(index) * step, format!("{:.decimals$}", f64::from(index) * step));
    TickAxis { ticks: (0..=n_step).map(tick).collect(), range: 0.0..f64::from(n_step) * step * 1.02 }
}

/// Whole decades around `low..high`, both as log₁₀.
fn decade_axis(low: f64, high: f64) -> TickAxis {
    let (first, last) = (low.floor() as i32, (high.ceil() as i32).max(low.floor() as i32 + 1));
    let label = |decade: i32| (f64::from(decade), format!("1e{decade}"));
    TickAxis { ticks: (first..=last).map(label).collect(), range: f64::from(first)..f64::from(last) + 0.02 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks() -> Vec<(f64, String)> {
        vec![(9.0, "512".into()), (11.0, "2K".into())]
    }

    #[test]
    fn a_curve_plot_has_its_labels_and_no_fixed_colour_of_its_own() {
        let point = |x, y| Point { x, y, interval: Some((y - 0.1, y + 0.05)) };
        let curve =
            Curve { ink: ink::candidate(1), shape: Shape::Triangle, points: vec![point(9.0, 0.9), point(11.0, 0.5)] };
        let svg = curves(&ticks(), &[curve]).unwrap();
        assert!(svg.contains("512") && svg.contains("2K") && svg.contains("100 %"));
        assert!(svg.contains("\"var(--arm-2, #B44D08)\"") && svg.contains("<polygon"));
        assert!(!svg.contains("=\"#"), "{svg}");
        assert!(!svg.contains("style=") && !svg.contains("svg>"));
    }

    #[test]
    fn a_stack_is_drawn_from_the_bottom_up() {
        let stacks = [vec![(ink::symptom(0), 0.5), (ink::symptom(2), 0.25)], Vec::new()];
        let svg = stacked_bars(&["512".into(), "2K".into()], &stacks, 1.0).unwrap();
        assert_eq!(svg.matches("<rect").count(), 2);
        assert!(!svg.contains("=\"#"), "{svg}");
    }

    #[test]
    fn nothing_to_draw_is_an_error_and_not_a_panic() {
        assert!(curves(&[], &[]).is_err());
        assert!(stacked_bars(&[], &[], 1.0).is_err());
    }

    fn panel(scale: PlotScale, values: [f64; 3]) -> LinePanel {
        let points = [512, 2048, 131_072].into_iter().zip(values).collect();
        let line = PlotLine { label: "fp8_e4m3".into(), points };
        LinePanel {
            title: "speed".into(),
            scale,
            lines: vec![line.clone(), PlotLine { label: "other".into(), ..line }],
        }
    }

    #[test]
    fn panels_are_one_document_with_lengths_values_and_a_legend() {
        let panels =
            [panel(PlotScale::Linear, [830.0, 620.0, 100.0]), panel(PlotScale::Log10, [0.001, 0.02, f64::NAN])];
        let svg = line_panels(&panels).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        for text in ["128K", "fp8_e4m3", "800", "1e-3", "1e-1"] {
            assert!(svg.contains(&format!("\n{text}\n")), "no {text} in {svg}");
        }
    }

    #[test]
    fn axes_hold_every_value() {
        for high in [0.07, 1.0, 59.9, 60.1, 830.0, 12_345.0] {
            let axis = linear_axis(high);
            assert!(
                axis.range.end >= high && axis.ticks.len() <= 8 && axis.ticks.len() >= 3,
                "{high}: {:?}",
                axis.ticks
            );
        }
        assert_eq!(decade_axis(-3.0, -3.0).range, -3.0..-1.98);
        let nothing = panel(PlotScale::Log10, [0.0, -1.0, f64::NAN]);
        assert!(line_panels(&[nothing]).is_err() && line_panels(&[]).is_err());
    }
}
