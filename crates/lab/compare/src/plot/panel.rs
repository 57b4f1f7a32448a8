//! One metric: a row for each arm.

use superhue_plot::svg::{Anchor, Ink, Svg, fit, text_width};

use super::axis::Axis;
use crate::ComparisonView;
use superhue_measure::design::arms_per_value;
use superhue_measure::human::{clean, ratio};
use superhue_measure::metric::{Better, Metric, Unit};
use superhue_measure::summary::{ArmSummary, MetricSummary};

const HEADING: i32 = 15;
const HEADING_HEIGHT: i32 = 28;
const ROW_HEIGHT: i32 = 38;
const AXIS_HEIGHT: i32 = 24;
const TEXT: i32 = 13;
const SMALL: i32 = 12;
/// Widest name of an arm before it is shortened.
pub(super) const NAME_WIDTH: i32 = 130;
/// Room for `no difference shown`.
const VERDICT_WIDTH: i32 = 150;
/// Space between the texts and the points.
const AIR: i32 = 12;
const DOT: i32 = 4;
/// Offsets from the middle of the row: of the points of the first and of the last round, and of the estimate. The estimate lies below the
/// points and hides none of them.
const POINTS: [i32; 2] = [-13, 3];
const ESTIMATE: i32 = 12;

/// Returns the height of a panel with this many arms.
pub(super) fn height(arms: usize) -> i32 {
    HEADING_HEIGHT + arms as i32 * ROW_HEIGHT + AXIS_HEIGHT
}

/// Panel of one metric.
pub(super) struct Panel<'a> {
    comparison: &'a ComparisonView<'a>,
    metric: &'a Metric,
    summary: &'a MetricSummary,
    /// Round and value of every good run, for each arm.
    points: Vec<Vec<(usize, f64)>>,
    /// Divisor for the values of each arm in a scan: the median of its reference. `None` where the plot shows the values themselves: without a scan,
    /// and where a ratio has no meaning.
    divisors: Option<Vec<f64>>,
}

impl<'a> Panel<'a> {
    pub(super) fn new(
        comparison: &'a ComparisonView<'a>,
        metric: &'a Metric,
        summary: &'a MetricSummary,
    ) -> Self {
        let divisors = divisors(comparison, summary);
        let divisor = |arm: usize| divisors.as_ref().map_or(1.0, |all| all[arm]);
        let mut points = vec![Vec::new(); comparison.arms.len()];
        for record in comparison.samples.iter().filter(|record| record.counts()) {
            if let (Some(points), Some(value)) =
                (points.get_mut(record.arm), record.sample.get(&metric.name))
            {
                points.push((record.round, value / divisor(record.arm)));
            }
        }
        Self {
            comparison,
            metric,
            summary,
            points,
            divisors,
        }
    }

    fn divisor(&self, arm: usize) -> f64 {
        self.divisors.as_ref().map_or(1.0, |all| all[arm])
    }

    /// Returns the unit of the axis.
    fn unit(&self) -> Unit {
        match self.divisors {
            Some(_) => Unit::Plain(String::new()),
            None => self.metric.unit.clone(),
        }
    }

    /// Draws the panel with its top left corner at `x`, `y`.
    pub(super) fn draw(&self, svg: &mut Svg, labels: &[String], x: i32, y: i32, width: i32) {
        let names: Vec<String> = (labels.iter())
            .map(|label| fit(label, TEXT, NAME_WIDTH))
            .collect();
        let names_width = (names.iter()).map(|name| text_width(name, TEXT)).max();
        let field = Field {
            left: x + names_width.unwrap_or(0) + AIR,
            right: x + width - VERDICT_WIDTH - AIR,
            top: y + HEADING_HEIGHT,
            bottom: y + HEADING_HEIGHT + names.len() as i32 * ROW_HEIGHT,
            axis: Axis::new(&self.unit(), &self.extent(), |ticks, letters| {
                let room = width - VERDICT_WIDTH - 2 * AIR - names_width.unwrap_or(0);
                let label = letters as f64 * 0.62 * f64::from(SMALL) + 12.0;
                ticks as f64 * label <= f64::from(room)
            }),
        };
        self.draw_heading(svg, x, y, width, &field.axis.unit);
        field.draw_frame(svg, x, x + width);
        if field.axis.is_cut() {
            field.draw_cut(svg, x + width);
        }
        if let Some(reference) = self.median_of_reference() {
            let x = field.x(reference);
            svg.dashed((x, field.top), (x, field.bottom));
        }
        for (index, name) in names.iter().enumerate() {
            let middle = field.top + index as i32 * ROW_HEIGHT + ROW_HEIGHT / 2;
            svg.text_below(
                field.left - AIR,
                middle - 7,
                TEXT,
                Anchor::Right,
                Ink::Text,
                name,
            );
            self.draw_row(svg, &field, index, middle);
            self.draw_verdict(svg, index, field.right + AIR, middle);
        }
    }

    fn draw_heading(&self, svg: &mut Svg, x: i32, y: i32, width: i32, unit: &str) {
        let mut label = clean(&self.metric.label);
        if self.divisors.is_some() {
            label += ", relative to the reference";
        }
        let title = if unit.is_empty() {
            label
        } else {
            format!("{label} [{unit}]")
        };
        let direction = match self.metric.better {
            Better::Lower => "lower is better",
            Better::Higher => "higher is better",
            Better::Neither => "",
        };
        let room = width - text_width(direction, SMALL) - AIR;
        let title = fit(&title, HEADING, room);
        svg.bold_below(x, y, HEADING, Ink::Text, &title);
        svg.text_below(
            x + width,
            y + 2,
            SMALL,
            Anchor::Right,
            Ink::Faint,
            direction,
        )
    }

    fn draw_row(&self, svg: &mut Svg, field: &Field, arm: usize, middle: i32) {
        // The first round is at the top and the last at the bottom, so that drift appears as a slope.
        let divisor = self.divisor(arm);
        let ink = Ink::Arm(arm % arms_per_value(&self.comparison.arms));
        let last = self.comparison.settings.runs.max(2) as f64 - 1.0;
        let reach = f64::from(POINTS[1] - POINTS[0]);
        for (round, value) in self.points.get(arm).into_iter().flatten() {
            let down = (*round as f64 / last).min(1.0) * reach;
            let y = middle + POINTS[0] + down.round() as i32;
            svg.dot(field.x(*value), y, DOT, ink, 0.55);
        }
        if let Some(values) = self.arm(arm).and_then(|summary| summary.values) {
            let median = values.median;
            let ends = median.interval;
            estimate(
                svg,
                ends.map(|ends| [ends.low, ends.high].map(|end| field.x(end / divisor))),
                field.x(median.value / divisor),
                middle + ESTIMATE,
            );
        }
    }

    fn draw_verdict(&self, svg: &mut Svg, arm: usize, x: i32, middle: i32) {
        let Some(summary) = self.arm(arm) else {
            return;
        };
        let verdict = self.comparison.verdict_text(summary);
        let difference = summary.against.filter(|a| a.verdict.is_difference());
        let (ink, text) = match difference.map(|against| against.ratio) {
            Some(Some(estimate)) => (Ink::Text, format!("{}x, {verdict}", ratio(estimate.value))),
            Some(None) => (Ink::Text, verdict),
            None => (Ink::Faint, verdict),
        };
        let text = fit(&text, SMALL, VERDICT_WIDTH);
        svg.text_below(x, middle - 6, SMALL, Anchor::Left, ink, &text)
    }

    fn arm(&self, arm: usize) -> Option<&ArmSummary> {
        self.summary.arms.get(arm)
    }

    fn median_of_reference(&self) -> Option<f64> {
        if self.divisors.is_some() {
            return Some(1.0);
        }
        if self.comparison.is_scan() {
            return None;
        }
        let reference = self.arm(self.comparison.settings.reference)?;
        Some(reference.values?.median.value)
    }

    /// Returns all values that need a place on the axis.
    fn extent(&self) -> Vec<f64> {
        let runs = self.points.iter().flatten().map(|(_, value)| *value);
        let described = self.summary.arms.iter();
        let ranges = described.filter_map(|arm| Some((arm.arm, arm.values?.range)));
        let ends = ranges
            .flat_map(|(arm, range)| [range.low, range.high].map(|end| end / self.divisor(arm)));
        runs.chain(ends).filter(|value| value.is_finite()).collect()
    }
}

/// Returns, in a scan, the median of each arm's reference; `None` unless all of them can be divisors.
fn divisors(comparison: &ComparisonView<'_>, summary: &MetricSummary) -> Option<Vec<f64>> {
    if !comparison.is_scan() {
        return None;
    }
    let median = |arm: usize| Some(summary.arms.get(arm)?.values?.median.value);
    let divisors = (0..comparison.arms.len()).map(|arm| {
        let divisor = median(comparison.reference_of(arm));
        divisor.filter(|divisor| *divisor > 0.0 && divisor.recip().is_finite())
    });
    divisors.collect()
}

/// Draws a median with its interval, if it has one: `|----|-----|`.
pub(super) fn estimate(svg: &mut Svg, ends: Option<[i32; 2]>, median: i32, y: i32) {
    if let Some([low, high]) = ends {
        svg.line((low, y), (high, y), Ink::Text, 2.0);
        for end in [low, high] {
            svg.line((end, y - 3), (end, y + 3), Ink::Text, 1.0);
        }
    }
    svg.line((median, y - 5), (median, y + 5), Ink::Text, 3.0);
}

/// Area in which the points are drawn.
struct Field {
    left: i32,
    right: i32,
    top: i32,
    bottom: i32,
    axis: Axis,
}

impl Field {
    fn x(&self, value: f64) -> i32 {
        let place = self.axis.place(value);
        self.left + (place * f64::from(self.right - self.left)).round() as i32
    }

    /// Breaks the axis at its left end, and says so beside it; the text ends at `right`.
    fn draw_cut(&self, svg: &mut Svg, right: i32) {
        let y = self.bottom;
        svg.rectangle(self.left + 3, y - 2, 4, 5, Ink::Paper.hex());
        for x in [self.left + 2, self.left + 6] {
            svg.line((x - 2, y + 4), (x + 2, y - 4), Ink::Faint, 1.0);
        }
        let text = "axis cut, without 0";
        svg.text_below(right, y + 7, SMALL, Anchor::Right, Ink::Faint, text);
    }

    /// Draws bands behind every second row, grid lines, and the axis with its labels.
    fn draw_frame(&self, svg: &mut Svg, left: i32, right: i32) {
        for top in (self.top..self.bottom).step_by(2 * ROW_HEIGHT as usize) {
            let width = right - left + 12;
            svg.rectangle(left - 6, top, width, ROW_HEIGHT, Ink::Band.hex());
        }
        for (value, label) in &self.axis.ticks {
            let x = self.x(*value);
            svg.line((x, self.top), (x, self.bottom + 4), Ink::Grid, 1.0);
            svg.text_below(x, self.bottom + 7, SMALL, Anchor::Middle, Ink::Faint, label);
        }
        svg.line(
            (self.left, self.bottom),
            (self.right, self.bottom),
            Ink::Faint,
            1.0,
        )
    }
}
