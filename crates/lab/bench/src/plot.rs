//! The result as pictures (SVG), from the document alone.
//!
//! ```text
//!   ns/load                                   o every allocation, faint
//!     |                     |  :o             | 5th to 95th percentile
//!     |            |:    |--|--               - median, joined by lines
//!     |--|---|--|--|--|--|          one color per arm
//!     +--50 %--85 %--94 %--:--125 %--         : where the cache ends
//! ```

mod isolation;
mod sweep;

use superhue_plot::svg::{Anchor, Ink, Svg, fit};

use crate::document::isolation::Isolation;
use crate::document::{Document, SweepResult};

const WIDTH: i32 = 1180;
const MARGIN: i32 = 28;
const TITLE_SIZE: i32 = 20;
const TEXT_SIZE: i32 = 13;
const LABEL_SIZE: i32 = 11;
const LINE: i32 = 20;
/// Distance from the top edge to the drawing.
const HEADER: i32 = MARGIN + TITLE_SIZE + 3 * LINE + 16;

/// Draws one workload.
pub fn sweep(document: &Document, result: &SweepResult) -> String {
    sweep::draw(document, result)
}

/// Draws victims and partners.
pub fn isolation(document: &Document, result: &Isolation) -> String {
    isolation::draw(document, result)
}

/// Draws the title, the meaning of the marks, and the machine.
fn header(svg: &mut Svg, document: &Document, title: &str, marks: &str) {
    let room = WIDTH - 2 * MARGIN;
    svg.bold_below(
        MARGIN,
        MARGIN,
        TITLE_SIZE,
        Ink::Text,
        &fit(title, TITLE_SIZE, room),
    );
    let lines = [marks.to_owned(), place(document)];
    for (row, text) in (0..).zip(lines) {
        let y = MARGIN + TITLE_SIZE + 10 + row * LINE;
        svg.text_below(
            MARGIN,
            y,
            TEXT_SIZE,
            Anchor::Left,
            Ink::Faint,
            &fit(&text, TEXT_SIZE, room),
        );
    }
}

/// Draws names with their inks, side by side from `left` on, right above the drawing.
fn legend(svg: &mut Svg, left: i32, names: impl IntoIterator<Item = (Ink, &'static str)>) {
    for (x, (ink, name)) in (left..).step_by(120).zip(names) {
        svg.dot(x, HEADER - 18, 5, ink, 1.0);
        svg.text_below(
            x + 12,
            HEADER - 25,
            TEXT_SIZE,
            Anchor::Left,
            Ink::Text,
            name,
        );
    }
}

/// Describes machine and settings in a line.
fn place(document: &Document) -> String {
    let of = |name: &str| document.machine.get(name).and_then(|value| value.as_str());
    let mut parts: Vec<String> = Vec::new();
    parts.extend(of("cpu").map(str::to_owned));
    parts.extend(document.caches.0.iter().map(|cache| {
        let ways = cache
            .ways
            .map_or_else(String::new, |ways| format!(", {ways}-way"));
        format!("{} {} KiB{ways}", cache.name(), cache.bytes >> 10)
    }));
    parts.extend(
        document
            .colors
            .as_ref()
            .map(|colors| format!("{} colors ({})", colors.count, colors.oracle)),
    );
    parts.extend(of("kernel").map(|kernel| format!("Linux {kernel}")));
    parts.extend(of("commit").map(|commit| format!("commit {commit}")));
    parts.join(" · ")
}

/// Draws lines of text from `y` on.
fn footer(svg: &mut Svg, lines: &[String], y: i32) {
    for (row, text) in (0..).zip(lines) {
        let text = fit(text, TEXT_SIZE, WIDTH - 2 * MARGIN);
        svg.text_below(
            MARGIN,
            y + row * LINE,
            TEXT_SIZE,
            Anchor::Left,
            Ink::Text,
            &text,
        );
    }
}
