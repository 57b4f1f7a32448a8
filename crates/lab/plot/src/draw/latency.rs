//! Latency against the number of pages: a line for each placement, over a logarithmic axis.
//!
//! ```text
//!   ns | one color ____   a quarter ___   a half ___   all ___      beyond the cache
//!      |          /             :  /          : /         :/
//!      |_________/______________:_/___________:/__________/         in the cache
//!          8 9 pages            64           128        256
//! ```

use super::{MARGIN, WIDTH, ticks};
use crate::latency::{Arm, Latency};
use crate::svg::{Anchor, Ink, Svg, fit, text_width};

const TOP: i32 = 138;
const HEIGHT: i32 = 380;
const LEFT: i32 = MARGIN + 52;
const RIGHT: i32 = WIDTH - MARGIN - 20;
/// Ratio of the latency axis to the slowest median. Disturbed measurements beyond it are drawn on the edge.
const AIR: f64 = 1.2;

/// Draws a verification. The dots are single repetitions, and the lines go through their medians.
#[must_use]
pub fn latency_svg(latency: &Latency) -> String {
    let bottom = TOP + HEIGHT;
    let mut svg = Svg::new(WIDTH, bottom + 96, "Latency by page colors");
    draw_head(&mut svg, latency);
    let frame = Frame::of(latency);
    frame.draw(&mut svg);
    for (index, arm) in latency.arms.iter().enumerate() {
        draw_capacity(&mut svg, &frame, latency, arm, index);
    }
    // The lines come last, above all dots.
    for (index, arm) in latency.arms.iter().enumerate() {
        draw_dots(&mut svg, &frame, latency, arm, ink(index));
    }
    for (index, arm) in latency.arms.iter().enumerate() {
        draw_line(&mut svg, &frame, latency, arm, ink(index));
    }
    svg.finish()
}

fn ink(index: usize) -> Ink {
    Ink::Line(u8::try_from(index).unwrap_or(u8::MAX))
}

fn draw_head(svg: &mut Svg, latency: &Latency) {
    let room = WIDTH - 2 * MARGIN;
    let title = format!(
        "{} colors of the {}, {} ways, found by oracle {}",
        latency.colors, latency.cache, latency.ways, latency.oracle
    );
    svg.bold(MARGIN, 42, 22, Ink::Text, &fit(&title, 24, room));
    let cliff = &latency.cliff;
    let found = match cliff.found_pages {
        Some(found) if cliff.holds() => {
            format!("{found} pages of one color no longer fit: its ways, and one more")
        }
        Some(found) => format!(
            "one color leaves the cache at {found} pages, not at {}: its ways, and one more",
            cliff.expected_pages
        ),
        None => "pages of one color never leave the cache".to_owned(),
    };
    let processor = latency.processor.as_deref().unwrap_or_default();
    let line =
        format!("nanoseconds per load, each waiting for the one before; {found}. {processor}");
    svg.text(
        MARGIN,
        66,
        13,
        Anchor::Left,
        Ink::Text,
        &fit(&line, 13, room),
    );
    let mut x = MARGIN;
    for (index, arm) in latency.arms.iter().enumerate() {
        svg.line((x, 91), (x + 26, 91), ink(index), 3.0);
        svg.text(x + 34, 96, 13, Anchor::Left, Ink::Text, &arm.name);
        x += 34 + text_width(&arm.name, 13) + 24;
    }
}

/// Scale from pages and nanoseconds to pixels.
struct Frame {
    fewest: f64,
    most: f64,
    slowest: f64,
}

impl Frame {
    #[allow(clippy::cast_precision_loss, reason = "pixels of a picture")]
    fn of(latency: &Latency) -> Self {
        let points = || latency.arms.iter().flat_map(|arm| &arm.points);
        let pages = || points().map(|point| point.pages.max(1) as f64);
        let medians = points().filter_map(crate::latency::Point::median_ticks);
        let slowest = medians
            .map(|ticks| latency.nanoseconds(ticks))
            .fold(0.0, f64::max);
        let fewest = pages().fold(f64::INFINITY, f64::min);
        Self {
            fewest: if fewest.is_finite() { fewest } else { 1.0 },
            most: pages().fold(2.0, f64::max),
            slowest: if slowest > 0.0 { slowest * AIR } else { 1.0 },
        }
    }

    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "pixels of a picture"
    )]
    fn x(&self, pages: u64) -> i32 {
        let all = (self.most / self.fewest).log2().max(f64::EPSILON);
        let share = ((pages.max(1) as f64) / self.fewest).log2() / all;
        LEFT + (share.clamp(0.0, 1.0) * f64::from(RIGHT - LEFT)).round() as i32
    }

    #[allow(clippy::cast_possible_truncation, reason = "pixels of a picture")]
    fn y(&self, nanoseconds: f64) -> i32 {
        let share = (nanoseconds / self.slowest).clamp(0.0, 1.0);
        TOP + ((1.0 - share) * f64::from(HEIGHT)).round() as i32
    }

    #[allow(clippy::cast_precision_loss, reason = "pixels of a picture")]
    fn draw(&self, svg: &mut Svg) {
        let bottom = TOP + HEIGHT;
        let (marks, decimals) = ticks(self.slowest, 6.0);
        for mark in marks {
            let y = self.y(mark);
            svg.line((LEFT, y), (RIGHT, y), Ink::Grid, 1.0);
            let text = format!("{mark:.decimals$}");
            svg.text(LEFT - 8, y + 4, 12, Anchor::Right, Ink::Faint, &text);
        }
        svg.text(LEFT - 8, TOP - 14, 12, Anchor::Right, Ink::Faint, "ns");
        for power in 0..40_u32 {
            let pages = 1_u64 << power;
            if (pages as f64) < self.fewest || (pages as f64) > self.most {
                continue;
            }
            let x = self.x(pages);
            svg.line((x, bottom), (x, bottom + 5), Ink::Faint, 1.0);
            let text = pages.to_string();
            svg.text(x, bottom + 20, 12, Anchor::Middle, Ink::Faint, &text);
        }
        svg.line((LEFT, bottom), (RIGHT, bottom), Ink::Faint, 1.0);
        let middle = i32::midpoint(LEFT, RIGHT);
        let says = "pages of 4 KiB in the working set";
        svg.text(middle, bottom + 44, 13, Anchor::Middle, Ink::Faint, says);
        let says = "lines: medians; dots: single measurements, those on the upper edge beyond it; dashed: where a \
                    placement has filled its part of the cache";
        svg.text(middle, bottom + 72, 13, Anchor::Middle, Ink::Faint, says);
    }
}

/// Draws a line where the colors of an arm are full. The kernel's placement has no such point.
fn draw_capacity(svg: &mut Svg, frame: &Frame, latency: &Latency, arm: &Arm, index: usize) {
    let Some(colors) = arm.colors else { return };
    let pages = colors.saturating_mul(latency.ways);
    let x = frame.x(pages);
    svg.dashed((x, TOP), (x, TOP + HEIGHT));
    let lift = i32::try_from(index % 2).unwrap_or(0) * 15;
    svg.over(x, TOP - 4 - lift, 12, Anchor::Middle, &pages.to_string());
}

fn draw_dots(svg: &mut Svg, frame: &Frame, latency: &Latency, arm: &Arm, ink: Ink) {
    for point in &arm.points {
        let x = frame.x(point.pages);
        for &ticks in &point.ticks {
            svg.dot(x, frame.y(latency.nanoseconds(ticks)), 3, ink, 0.3);
        }
    }
}

fn draw_line(svg: &mut Svg, frame: &Frame, latency: &Latency, arm: &Arm, ink: Ink) {
    let places = arm.points.iter().filter_map(|point| {
        let nanoseconds = latency.nanoseconds(point.median_ticks()?);
        Some((frame.x(point.pages), frame.y(nanoseconds)))
    });
    let places: Vec<(i32, i32)> = places.collect();
    if !places.is_empty() {
        svg.polyline(&places, ink, 2.5);
    }
}
