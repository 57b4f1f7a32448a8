//! Plot of one workload: figures by size.

use superhue_compare::plot::axis::Axis;
use superhue_measure::Unit;
use superhue_plot::svg::{Anchor, Ink, Svg};

use super::{HEADER, LABEL_SIZE, LINE, MARGIN, TEXT_SIZE, WIDTH, footer, header, legend};
use crate::arm::Arm;
use crate::document::summary::figures;
use crate::document::{ArmResult, Document, SweepResult};
use crate::findings::of_sweep;
use crate::workload::Figure;

const HEIGHT: i32 = 420;
const LEFT: i32 = MARGIN + 62;
const RIGHT: i32 = WIDTH - MARGIN;
const BOTTOM: i32 = HEADER + HEIGHT;

pub(super) fn draw(document: &Document, result: &SweepResult) -> String {
    let said = of_sweep(result);
    let height = BOTTOM + 2 * LINE + 24 + said.len() as i32 * LINE + MARGIN / 2;
    let better = if result.figure.lower_is_better {
        "lower"
    } else {
        "higher"
    };
    let title = format!("{}: {}", result.workload, result.about);
    let marks = format!(
        "{}, {better} is better. Dots: {} fresh allocations. Bars: 5th to 95th percentile. Lines: medians. Dashed: where a cache ends.",
        result.figure.unit, document.settings.allocations,
    );
    let mut svg = Svg::new(WIDTH, height, &title);
    header(&mut svg, document, &title, &marks);
    let arms = arms(result);
    legend(
        &mut svg,
        LEFT,
        arms.iter().map(|&arm| (ink(arm), arm.name())),
    );
    let axis = scale(result);
    frame(&mut svg, &axis);
    count_beyond(&mut svg, &axis, result);
    sizes(&mut svg, result);
    for (index, arm) in arms.iter().enumerate() {
        series(&mut svg, &axis, result, *arm, (index, arms.len()));
    }
    footer(&mut svg, &said, BOTTOM + 2 * LINE + 24);
    svg.finish()
}

/// The arms that have results, in the order of tables.
fn arms(result: &SweepResult) -> Vec<Arm> {
    let has = |arm: &Arm| {
        let mut all = result.points.iter().flat_map(|point| &point.arms);
        all.any(|result| result.arm == *arm && result.summary.is_some())
    };
    Arm::ALL.into_iter().filter(has).collect()
}

/// Ink of an arm, the same in every plot.
fn ink(arm: Arm) -> Ink {
    Ink::Arm(Arm::ALL.iter().position(|other| *other == arm).unwrap_or(0))
}

/// Axis for the bars. A noisy machine makes a few bars that reach far beyond all medians; the edge cuts them off, and triangles stand for the
/// allocations beyond it.
fn scale(result: &SweepResult) -> Axis {
    const BEYOND: f64 = 1.6;
    let all = result.points.iter().flat_map(|point| &point.arms);
    let summaries: Vec<_> = all.filter_map(|arm| arm.summary.as_ref()).collect();
    let medians = summaries.iter().map(|summary| summary.median.value);
    let limit = BEYOND * medians.fold(0.0, f64::max);
    let ends = summaries
        .iter()
        .flat_map(|summary| [summary.p5, summary.p95]);
    let ends: Vec<f64> = ends.map(|end| end.min(limit)).chain([0.0]).collect();
    Axis::new(&Unit::Plain(String::new()), &ends, |ticks, _| ticks <= 7)
}

/// Names the triangle, and the number of allocations that it stands for, if there are any.
fn count_beyond(svg: &mut Svg, axis: &Axis, result: &SweepResult) {
    let all = result.points.iter().flat_map(|point| &point.arms);
    let drawn = all.filter(|arm| arm.summary.is_some());
    let drawn = drawn.flat_map(|arm| figures(&result.figure, arm));
    let beyond = drawn.filter(|figure| !axis.holds(*figure)).count();
    if beyond > 0 {
        svg.beyond((RIGHT - 130, HEADER - 22), true, Ink::Faint, 1.0);
        let text = format!("{beyond} beyond the axis");
        let y = HEADER - 25;
        svg.text_below(RIGHT, y, TEXT_SIZE, Anchor::Right, Ink::Faint, &text);
    }
}

fn y(axis: &Axis, value: f64) -> i32 {
    BOTTOM - (axis.place(value) * f64::from(HEIGHT)) as i32
}

fn frame(svg: &mut Svg, axis: &Axis) {
    for (value, label) in &axis.ticks {
        let y = y(axis, *value);
        svg.line((LEFT, y), (RIGHT, y), Ink::Grid, 1.0);
        let unit = axis.unit.as_str();
        let label = if *value == 0.0 {
            label.clone()
        } else {
            format!("{label}{unit}")
        };
        svg.text_below(
            LEFT - 8,
            y - 7,
            LABEL_SIZE,
            Anchor::Right,
            Ink::Text,
            &label,
        );
    }
}

/// Horizontal position of a size: sizes are evenly spaced, whatever their values.
fn x(result: &SweepResult, index: usize) -> i32 {
    let slot = f64::from(RIGHT - LEFT) / result.points.len().max(1) as f64;
    LEFT + ((index as f64 + 0.5) * slot) as i32
}

fn sizes(svg: &mut Svg, result: &SweepResult) {
    let mut before: Option<(u32, f64)> = None;
    for (index, point) in result.points.iter().enumerate() {
        let (x, size) = (x(result, index), &point.point);
        svg.text_below(
            x,
            BOTTOM + 6,
            LABEL_SIZE,
            Anchor::Middle,
            Ink::Text,
            &size.label,
        );
        let share = format!("{:.0} % L{}", size.share * 100.0, size.level);
        let room = if size.label.ends_with('%') {
            format!("{} KiB", size.bytes >> 10)
        } else {
            share
        };
        svg.text_below(
            x,
            BOTTOM + 6 + LINE,
            LABEL_SIZE,
            Anchor::Middle,
            Ink::Faint,
            &room,
        );
        // Marks the end of the cache between the last size that fits and the first that does not.
        let ends = before
            .is_some_and(|(level, share)| share <= 1.0 && (size.level > level || size.share > 1.0));
        if ends {
            let middle = i32::midpoint(self::x(result, index - 1), x);
            svg.dashed((middle, HEADER), (middle, BOTTOM));
        }
        before = Some((size.level, size.share));
    }
}

fn series(svg: &mut Svg, axis: &Axis, result: &SweepResult, arm: Arm, (index, of): (usize, usize)) {
    const APART: i32 = 8;
    let aside = (2 * index as i32 + 1 - of as i32) * APART / 2;
    let ink = ink(arm);
    let mut last: Option<(i32, i32)> = None;
    for (at, point) in result.points.iter().enumerate() {
        let Some(found) = point.arms.iter().find(|result| result.arm == arm) else {
            continue;
        };
        let x = x(result, at) + aside;
        let Some(median) = marks(svg, axis, (&result.figure, found), x, ink) else {
            continue;
        };
        if let Some(last) = last {
            svg.line(last, (x, median), ink, 1.0);
        }
        last = Some((x, median));
    }
}

/// Draws the allocations of one arm at one size; returns the position of their median.
fn marks(
    svg: &mut Svg,
    axis: &Axis,
    (figure, arm): (&Figure, &ArmResult),
    x: i32,
    ink: Ink,
) -> Option<i32> {
    let summary = arm.summary.as_ref()?;
    for figure in figures(figure, arm) {
        if axis.holds(figure) {
            svg.dot(x, y(axis, figure), 2, ink, 0.35);
        } else {
            svg.beyond((x, y(axis, figure)), true, ink, 0.6);
        }
    }
    svg.line(
        (x, y(axis, summary.p5)),
        (x, y(axis, summary.p95)),
        ink,
        2.0,
    );
    let median = y(axis, summary.median.value);
    svg.line((x - 4, median), (x + 4, median), ink, 3.0);
    Some(median)
}
