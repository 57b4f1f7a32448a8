//! The result as a picture: an SVG image made from the document alone.
//!
//! There is a panel for each metric, and in it a row for each arm. The row shows every single run, so that outliers, modes and drift stay
//! visible:
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
//! In a scan of parameters a panel has a row for each arm at each value. The rows then show ratios to the median of the reference at the same
//! value, because the values themselves may differ in size by any factor. All rows share one axis, on which 1 means "same as the reference".
//!
//! Rows, not colours, distinguish the arms. The colours are those of Okabe & Ito, which people with any form of colour blindness can
//! distinguish. An axis need not start at 0, since these are positions, not bars; one without 0 is broken at its end, and labelled.

pub mod axis;
mod panel;

use superhue_plot::svg::{Anchor, Ink, Svg, fit, text_width, wrap};

use self::panel::{Panel, estimate};
use crate::ComparisonView;
use superhue_measure::design::{Arm, arms_per_value};
use superhue_measure::human::{clean, command_line, numbered};

/// Space around everything, in pixels (as are all lengths here).
const MARGIN: i32 = 28;
/// Space between two columns, and between two rows of panels.
const GAP: i32 = 36;
/// Width of a panel; a single panel is wider, so that the explanation of the marks fits above it.
const PANEL_WIDTHS: [i32; 2] = [760, 560];
const TITLE_SIZE: i32 = 20;
/// Letters and lines of the verdicts.
const VERDICT_SIZE: i32 = 16;
const VERDICT_LINE: i32 = 24;
/// Most lines of verdicts; the panels have the others.
const MOST_VERDICTS: usize = 8;
/// Space before them, for the dot of the arm.
const VERDICT_INDENT: i32 = 18;
const TEXT_SIZE: i32 = 13;
const TEXT_LINE: i32 = 20;

impl ComparisonView<'_> {
    /// Draws all metrics into one SVG document.
    #[must_use]
    pub fn plot(&self) -> String {
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
        let verdicts = self.verdict_lines(width - 2 * MARGIN);
        let top = MARGIN + TITLE_SIZE + verdicts.len() as i32 * VERDICT_LINE + 3 * TEXT_LINE + 36;
        let bottom = top + grid_rows * panel_height + (grid_rows - 1) * GAP;
        let footer_top = bottom + 26;
        let height = footer_top + footer.len() as i32 * TEXT_LINE + MARGIN / 2;

        let mut svg = Svg::new(width, height, &command_line(&self.command));
        self.draw_header(&mut svg, width, &verdicts);
        for (index, panel) in panels.iter().enumerate() {
            let index = index as i32;
            let x = MARGIN + index % columns * (panel_width + GAP);
            let y = top + index / columns * (panel_height + GAP);
            panel.draw(&mut svg, &labels, x, y, panel_width);
        }
        for (index, (ink, name, text)) in footer.iter().enumerate() {
            let y = footer_top + index as i32 * TEXT_LINE;
            let mut x = MARGIN;
            if !name.is_empty() {
                svg.dot(x + 5, y + 7, 5, *ink, 1.0);
                svg.text_below(x + 18, y, TEXT_SIZE, Anchor::Left, Ink::Text, name);
                x += 18 + text_width(name, TEXT_SIZE) + 12;
            }
            svg.text_below(x, y, TEXT_SIZE, Anchor::Left, Ink::Faint, text);
        }
        svg.finish()
    }

    /// Returns the sentences about the arms, in lines of `room` pixels: the arm of each first line, and the text.
    fn verdict_lines(&self, room: i32) -> Vec<(Option<usize>, String)> {
        let mut lines = Vec::new();
        for (arm, sentence) in self.sentences_by_arm() {
            let wrapped = wrap(&sentence, VERDICT_SIZE, room - VERDICT_INDENT);
            let first = lines.len();
            lines.extend(wrapped.into_iter().map(|line| (None, line)));
            if let Some((of, _)) = lines.get_mut(first) {
                *of = Some(arm);
            }
        }
        if lines.len() > MOST_VERDICTS {
            lines.truncate(MOST_VERDICTS - 1);
            lines.push((None, "(more below)".to_owned()));
        }
        lines
    }

    /// Draws the program's name, the verdicts, command and circumstances, and the explanation of the marks.
    fn draw_header(&self, svg: &mut Svg, width: i32, verdicts: &[(Option<usize>, String)]) {
        let room = width - 2 * MARGIN;
        let title = fit(&clean(&self.short_name()), TITLE_SIZE, room);
        svg.bold_below(MARGIN, MARGIN, TITLE_SIZE, Ink::Text, &title);
        let mut y = MARGIN + TITLE_SIZE + 12;
        let each = arms_per_value(&self.arms);
        for (arm, line) in verdicts {
            if let Some(arm) = arm {
                svg.dot(MARGIN + 5, y + 9, 5, Ink::Arm(arm % each), 1.0);
            }
            let x = MARGIN + VERDICT_INDENT;
            svg.text_below(x, y, VERDICT_SIZE, Anchor::Left, Ink::Text, line);
            y += VERDICT_LINE;
        }
        y += 6;
        let command = fit(&command_line(&self.command), TEXT_SIZE, room);
        svg.text_below(MARGIN, y, TEXT_SIZE, Anchor::Left, Ink::Faint, &command);
        let y = y + TEXT_LINE;
        let settings = &self.settings;
        let runs = if self.interrupted || self.aborted.is_some() {
            format!("stopped before all {} rounds were done", settings.runs)
        } else {
            format!("{} interleaved rounds", settings.runs)
        };
        let reference = self.arms.get(settings.reference);
        let reference = reference.map_or(String::new(), |arm| clean(&arm.name));
        let text = format!("superhue compare, {runs}, ratios to `{reference}`");
        let text = fit(&text, TEXT_SIZE, room);
        svg.text_below(MARGIN, y, TEXT_SIZE, Anchor::Left, Ink::Faint, &text);

        let y = y + TEXT_LINE + 2;
        let middle = y + 7;
        let mut x = MARGIN;
        let mut explain = |svg: &mut Svg, glyph_width: i32, text: &str| {
            let start = x;
            let at = x + glyph_width + 7;
            svg.text_below(at, y, TEXT_SIZE, Anchor::Left, Ink::Faint, text);
            x = at + text_width(text, TEXT_SIZE) + 22;
            start
        };
        let at = explain(svg, 8, "one run, first round on top");
        svg.dot(at + 4, middle, 4, Ink::Faint, 0.6);
        let at = explain(svg, 28, "median and its 95 % interval");
        estimate(svg, Some([at, at + 28]), at + 14, middle);
        let at = explain(svg, 3, "median of the reference") + 1;
        svg.dashed((at, middle - 8), (at, middle + 8));
    }

    /// Returns the name of the program's file, without its folder and arguments.
    fn short_name(&self) -> String {
        // A command for the shell is one word with blanks.
        let first = self.command.first().map_or("", String::as_str);
        let program = first.split_whitespace().next().unwrap_or_default();
        let name = program.rsplit('/').next().unwrap_or_default();
        match name {
            "" => command_line(&self.command),
            name => name.to_owned(),
        }
    }

    /// Returns the names of the arms, numbered if one does not fit beside its row.
    fn arm_labels(&self) -> Vec<String> {
        let names = self.arms.iter().map(|arm| clean(&arm.title())).collect();
        numbered(names, |name| {
            text_width(name, TEXT_SIZE) > panel::NAME_WIDTH
        })
    }

    /// Returns the options of each arm, and remarks on failures.
    fn footer(&self, labels: &[String], room: i32) -> Vec<(Ink, String, String)> {
        let shortened = (labels.iter()).any(|l| text_width(l, TEXT_SIZE) > panel::NAME_WIDTH);
        let each = arms_per_value(&self.arms);
        let arms = self.arms.iter().zip(labels).enumerate();
        // The options are often the same at all values, and then one line is enough.
        let is_new = |index: usize, arm: &Arm| {
            index < each || arm.options != self.arms[index % each].options
        };
        let mut lines: Vec<(Ink, String, String)> = arms
            .filter(|(index, (arm, _))| shortened || !arm.options.is_empty() && is_new(*index, arm))
            .map(|(index, (arm, label))| {
                let options = clean(&arm.options);
                let name = clean(&arm.name);
                let label = if shortened { label } else { &name };
                let share = if options.is_empty() { 1 } else { 2 };
                let label = fit(label, TEXT_SIZE, room / share - 30);
                let left = room - 30 - text_width(&label, TEXT_SIZE);
                (
                    Ink::Arm(index % each),
                    label,
                    fit(&options, TEXT_SIZE, left),
                )
            })
            .collect();
        for remark in self.remarks() {
            let text = fit(&remark, TEXT_SIZE, room);
            lines.push((Ink::Faint, String::new(), text));
        }
        lines
    }
}
