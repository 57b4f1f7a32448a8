//! Marks and text on an SVG, in pixels: the only file that knows the drawing library.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::PlotError;
use crate::human::shorten;

/// What something is drawn in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ink {
    /// Names and numbers.
    Text,
    /// What may be overlooked.
    Faint,
    /// Grid lines.
    Grid,
    /// Behind every second row.
    Band,
    /// The marks of an arm.
    Arm(usize),
}

/// The palette of Okabe & Ito ("Color Universal Design", 2008) without black, which marks
/// medians, and without yellow, which is hard to see on white. The reference is mostly the first
/// arm.
const ARMS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

impl Ink {
    fn color(self) -> RGBColor {
        match self {
            Self::Text => RGBColor(26, 26, 26),
            Self::Faint => RGBColor(98, 98, 98),
            Self::Grid => RGBColor(218, 218, 218),
            Self::Band => RGBColor(246, 246, 246),
            Self::Arm(index) => ARMS[index % ARMS.len()],
        }
    }
}

/// Which end of a text its position names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    /// Its left end.
    Left,
    /// Its middle.
    Middle,
    /// Its right end.
    Right,
}

/// A white SVG document.
pub struct Canvas<'a> {
    area: DrawingArea<SVGBackend<'a>, Shift>,
}

type Drawn = Result<(), PlotError>;

fn failed<E: std::error::Error + Send + Sync>(error: DrawingAreaErrorKind<E>) -> PlotError {
    PlotError(error.to_string())
}

impl<'a> Canvas<'a> {
    /// Begins a document of so many pixels, which is complete in `svg` once [`finish`](Self::finish) was called.
    ///
    /// # Errors
    /// If the drawing library fails; so for all that follows.
    pub fn new(svg: &'a mut String, width: i32, height: i32) -> Result<Self, PlotError> {
        let size = (width.unsigned_abs(), height.unsigned_abs());
        let area = SVGBackend::with_string(svg, size).into_drawing_area();
        area.fill(&WHITE).map_err(failed)?;
        Ok(Self { area })
    }

    /// Ends the document.
    ///
    /// # Errors
    /// See [`new`](Self::new).
    pub fn finish(&self) -> Drawn {
        self.area.present().map_err(failed)
    }

    /// Text whose top is at `y`.
    ///
    /// # Errors
    /// See [`new`](Self::new).
    pub fn text(&self, x: i32, y: i32, size: i32, anchor: Anchor, ink: Ink, text: &str) -> Drawn {
        self.styled(x, y, size, anchor, ink, FontStyle::Normal, text)
    }

    /// Bold text whose top left corner is at `x`, `y`.
    ///
    /// # Errors
    /// See [`new`](Self::new).
    pub fn bold(&self, x: i32, y: i32, size: i32, ink: Ink, text: &str) -> Drawn {
        self.styled(x, y, size, Anchor::Left, ink, FontStyle::Bold, text)
    }

    #[allow(
        clippy::too_many_arguments,
        reason = "private; its callers name what they fix"
    )]
    fn styled(
        &self,
        x: i32,
        y: i32,
        size: i32,
        anchor: Anchor,
        ink: Ink,
        style: FontStyle,
        text: &str,
    ) -> Drawn {
        let horizontal = match anchor {
            Anchor::Left => HPos::Left,
            Anchor::Middle => HPos::Center,
            Anchor::Right => HPos::Right,
        };
        // The backend divides sizes by 1.24 (the line height it assumes).
        let font = FontDesc::new(FontFamily::SansSerif, f64::from(size) * 1.24, style);
        let color = ink.color();
        let style = TextStyle::from(font)
            .color(&color)
            .pos(Pos::new(horizontal, VPos::Top));
        self.area.draw_text(text, &style, (x, y)).map_err(failed)
    }

    /// A filled circle, as opaque as `alpha` (0 to 1) says.
    ///
    /// # Errors
    /// See [`new`](Self::new).
    pub fn dot(&self, x: i32, y: i32, radius: i32, ink: Ink, alpha: f64) -> Drawn {
        let style = ink.color().mix(alpha).filled();
        (self.area)
            .draw(&Circle::new((x, y), radius, style))
            .map_err(failed)
    }

    /// A filled rectangle: left and right, top and bottom.
    ///
    /// # Errors
    /// See [`new`](Self::new).
    pub fn rectangle(&self, x: [i32; 2], y: [i32; 2], ink: Ink) -> Drawn {
        let style = ink.color().filled();
        (self.area)
            .draw(&Rectangle::new([(x[0], y[0]), (x[1], y[1])], style))
            .map_err(failed)
    }

    /// A line of so many pixels' width.
    ///
    /// # Errors
    /// See [`new`](Self::new).
    pub fn line(&self, from: (i32, i32), to: (i32, i32), ink: Ink, width: u32) -> Drawn {
        let style = ink.color().stroke_width(width);
        (self.area)
            .draw(&PathElement::new([from, to], style))
            .map_err(failed)
    }

    /// A vertical dashed line.
    ///
    /// # Errors
    /// See [`new`](Self::new).
    pub fn dashed(&self, x: i32, top: i32, bottom: i32) -> Drawn {
        for y in (top..bottom).step_by(7) {
            self.line((x, y), (x, (y + 4).min(bottom)), Ink::Faint, 1)?;
        }
        Ok(())
    }

    /// A median with its interval, if it has one: `|----|-----|`.
    ///
    /// # Errors
    /// See [`new`](Self::new).
    pub fn estimate(&self, ends: Option<[i32; 2]>, median: i32, y: i32) -> Drawn {
        if let Some([low, high]) = ends {
            self.line((low, y), (high, y), Ink::Text, 2)?;
            for end in [low, high] {
                self.line((end, y - 3), (end, y + 3), Ink::Text, 1)?;
            }
        }
        self.line((median, y - 5), (median, y + 5), Ink::Text, 3)
    }
}

/// The width in pixels a text will at most have. The font is the viewer's, so this is a careful guess:
/// Helvetica averages half an em per letter, DejaVu Sans 0.6.
#[must_use]
pub fn text_width(text: &str, size: i32) -> i32 {
    let ems: f64 = text.chars().map(ems).sum();
    (ems * f64::from(size)).ceil() as i32
}

fn ems(c: char) -> f64 {
    match c {
        // Chinese, Japanese, Korean, emoji.
        '\u{1100}'.. => 1.0,
        _ => 0.62,
    }
}

/// The text, shortened in the middle if it would be wider than `room`.
#[must_use]
pub fn fit(text: &str, size: i32, room: i32) -> String {
    let mut letters = text.chars().count();
    let mut short = text.to_owned();
    while text_width(&short, size) > room && letters > 1 {
        letters -= 1;
        short = shorten(text, letters);
    }
    short
}
