//! The result as a picture: an SVG made from the document alone.
//!
//! A panel for each metric, in it a row for each arm with every single run, so that outliers,
//! modes and drift are seen and not summarised away:
//!
//! ```text
//!   wall time [s]                 lower is better
//!             :
//!     never   : . :. : .                reference       dots: runs, the first round on top
//!                 |-|-|                                 below them: median, 95 % interval
//!    always   . : .          :      0.787x, better
//!             |-|-|          :
//!             1.0         1.2
//! ```
//!
//! Rows, not colours, tell the arms apart, and the colours are those of Okabe & Ito, which people
//! with any form of colour blindness can distinguish. An axis need not start at 0: these are
//! positions, not bars.

pub mod axis;
pub mod canvas;
mod panel;

use self::canvas::{Anchor, Canvas, Ink, text_width};
use self::panel::Panel;
use crate::human::{clean, command_line, numbered};
use crate::result::Comparison;

/// Drawing failed. No input is known that makes it.
#[derive(Debug, thiserror::Error)]
#[error("the plot could not be drawn: {0}")]
pub struct PlotError(String);

/// Space around everything, in pixels (as are all lengths here).
const MARGIN: i32 = 28;
/// Between two columns, and between two rows of panels.
const GAP: i32 = 36;
/// Of a panel; one alone is wider, so that the explanation of the marks fits above it.
const PANEL_WIDTHS: [i32; 2] = [760, 560];
const TITLE_SIZE: i32 = 20;
const TEXT_SIZE: i32 = 13;
const TEXT_LINE: i32 = 20;

impl Comparison {
    /// Draws all metrics into one SVG document.
    ///
    /// # Errors
    /// If the drawing library fails.
    pub fn plot(&self) -> Result<String, PlotError> {
        let columns = if self.metrics.len() > 1 { 2 } else { 1 };
        let panel_width = PANEL_WIDTHS[usize::from(columns > 1)];
        let width = 2 * MARGIN + columns * panel_width + (columns - 1) * GAP;
        let panels: Vec<Panel<'_>> = (self.metrics.iter().zip(&self.summaries))
            .map(|(metric, summary)| Panel::new(self, metric, summary))
            .collect();
        let labels = self.arm_labels();
        let footer = self.footer(&labels, width - 2 * MARGIN);

        let panel_height = panel::height(self.arms.len());
        let grid_rows = (panels.len() as i32 + columns - 1) / columns;
        let top = MARGIN + TITLE_SIZE + 2 * TEXT_LINE + 26;
        let bottom = top + grid_rows * panel_height + (grid_rows - 1) * GAP;
        let footer_top = bottom + 26;
        let height = footer_top + footer.len() as i32 * TEXT_LINE + MARGIN / 2;

        let mut svg = String::new();
        {
            let canvas = Canvas::new(&mut svg, width, height)?;
            self.draw_header(&canvas, width)?;
            for (index, panel) in panels.iter().enumerate() {
                let index = index as i32;
                let x = MARGIN + index % columns * (panel_width + GAP);
                let y = top + index / columns * (panel_height + GAP);
                panel.draw(&canvas, &labels, x, y, panel_width)?;
            }
            for (index, (ink, name, text)) in footer.iter().enumerate() {
                let y = footer_top + index as i32 * TEXT_LINE;
                let mut x = MARGIN;
                if !name.is_empty() {
                    canvas.dot(x + 5, y + 7, 5, *ink, 1.0)?;
                    canvas.text(x + 18, y, TEXT_SIZE, Anchor::Left, Ink::Text, name)?;
                    x += 18 + text_width(name, TEXT_SIZE) + 12;
                }
                canvas.text(x, y, TEXT_SIZE, Anchor::Left, Ink::Faint, text)?;
            }
            canvas.finish()?;
        }
        Ok(svg)
    }

    /// Command, circumstances, and what the marks mean.
    fn draw_header(&self, canvas: &Canvas<'_>, width: i32) -> Result<(), PlotError> {
        let room = width - 2 * MARGIN;
        let command = canvas::fit(&command_line(&self.command), TITLE_SIZE, room);
        canvas.bold(MARGIN, MARGIN, TITLE_SIZE, Ink::Text, &command)?;
        let y = MARGIN + TITLE_SIZE + 10;
        let settings = &self.settings;
        let runs = if self.interrupted || self.aborted.is_some() {
            format!("stopped before all {} rounds were done", settings.runs)
        } else {
            format!("{} interleaved rounds", settings.runs)
        };
        let reference = self.arms.get(settings.reference);
        let reference = reference.map_or(String::new(), |arm| clean(&arm.name));
        let text = format!("superhue compare, {runs}, ratios to `{reference}`");
        let text = canvas::fit(&text, TEXT_SIZE, room);
        canvas.text(MARGIN, y, TEXT_SIZE, Anchor::Left, Ink::Faint, &text)?;

        let y = y + TEXT_LINE + 2;
        let middle = y + 7;
        let mut x = MARGIN;
        let mut explain = |glyph_width: i32, text: &str| {
            let start = x;
            canvas.text(
                x + glyph_width + 7,
                y,
                TEXT_SIZE,
                Anchor::Left,
                Ink::Faint,
                text,
            )?;
            x += glyph_width + 7 + text_width(text, TEXT_SIZE) + 22;
            Ok::<i32, PlotError>(start)
        };
        let at = explain(8, "one run, first round on top")?;
        canvas.dot(at + 4, middle, 4, Ink::Faint, 0.6)?;
        let at = explain(28, "median and its 95 % interval")?;
        canvas.estimate(Some([at, at + 28]), at + 14, middle)?;
        let at = explain(3, "median of the reference")?;
        canvas.dashed(at + 1, middle - 8, middle + 8)?;
        Ok(())
    }

    /// The names of the arms, numbered if one does not fit beside its row.
    fn arm_labels(&self) -> Vec<String> {
        let names = self.arms.iter().map(|arm| clean(&arm.name)).collect();
        numbered(names, |name| {
            text_width(name, TEXT_SIZE) > panel::NAME_WIDTH
        })
    }

    /// Which options stand behind a name, and what went wrong.
    fn footer(&self, labels: &[String], room: i32) -> Vec<(Ink, String, String)> {
        let shortened = (labels.iter()).any(|l| text_width(l, TEXT_SIZE) > panel::NAME_WIDTH);
        let arms = self.arms.iter().zip(labels).enumerate();
        let mut lines: Vec<(Ink, String, String)> = arms
            .filter(|(_, (arm, _))| shortened || !arm.options.is_empty())
            .map(|(index, (arm, label))| {
                let options = clean(&arm.options);
                let share = if options.is_empty() { 1 } else { 2 };
                let label = canvas::fit(label, TEXT_SIZE, room / share - 30);
                let left = room - 30 - text_width(&label, TEXT_SIZE);
                (
                    Ink::Arm(index),
                    label,
                    canvas::fit(&options, TEXT_SIZE, left),
                )
            })
            .collect();
        for remark in self.remarks() {
            let text = canvas::fit(&remark, TEXT_SIZE, room);
            lines.push((Ink::Faint, String::new(), text));
        }
        lines
    }
}
