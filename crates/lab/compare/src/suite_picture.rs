//! A suite as a picture: a field for each program under each arm, drawn from the document alone.
//!
//! ```text
//!                         always    hot     jemalloc
//!   redis (database)       1.21x    1.18x    1.02x ?      the darker, the further from the reference;
//!                       2.4x memory                        blue is faster, orange slower, gray the same
//!   sort (text)            0.97x    1.01x      -
//! ```
//!
//! Color is never the only sign: each field has its number, and an undecided field has a question mark and no color.

use superhue_plot::svg::{Anchor, Ink, Svg, fit, text_width};

use superhue_measure::suite::{Decision, Row, SuiteProgram};

use crate::SuiteView;
use crate::columns::NOTHING;
use superhue_measure::human::{clean, numbered};

/// Space around everything, in pixels (as are all lengths here).
const MARGIN: i32 = 28;
const TITLE_SIZE: i32 = 20;
const TEXT: i32 = 13;
const SMALL: i32 = 11;
const LINE: i32 = 20;
/// Width of a program's name and kind.
const NAMES: i32 = 230;
/// Size of a field, with the gap to the next one.
const FIELD: (i32, i32) = (104, 38);
const GAP: i32 = 3;
/// Height above the fields, for headings of one line.
const HEADINGS: i32 = 26;
/// Least width of the picture, so that the text below fits even with few arms.
const LEAST_WIDTH: i32 = 1180;

/// Factor of speed, up or down, from which on a field gets no darker.
const DARKEST: f64 = 1.5;
/// Shades of the lightest and the darkest field, 0 to 1.
const SHADES: (f64, f64) = (0.15, 0.9);
/// Shade from which on text is white.
const WHITE_TEXT: f64 = 0.6;
/// Factor of memory, up or down, from which on a field shows it; nearer to 1, memory is about that of the reference.
const MUCH_MEMORY: f64 = 1.05;

/// Colors of Okabe & Ito for faster and slower, and a gray for the same.
const FASTER: [f64; 3] = [0.0, 114.0, 178.0];
const SLOWER: [f64; 3] = [213.0, 94.0, 0.0];
const SAME: &str = "#e6e6e6";

impl SuiteView<'_> {
    /// Draws the speed of each program under each arm into one SVG document.
    #[must_use]
    pub fn plot(&self) -> String {
        let programs: Vec<&SuiteProgram> = self.measured().collect();
        let reference = (programs.first())
            .and_then(|program| program.rows.first())
            .map_or(String::new(), |row| clean(&row.arm));
        // Arms without any run have no column.
        let is_drawn = |name: &str| {
            name != reference && programs.iter().any(|program| program.row(name).is_some())
        };
        let arms: Vec<&str> = (self.arms.iter().map(|arm| arm.name.as_str()))
            .filter(|name| is_drawn(name))
            .collect();
        let labels = arms.iter().map(|name| clean(name)).collect();
        let column = FIELD.0 - GAP;
        let too_long = |name: &String| lines(name, column).is_none();
        let labels: Vec<Vec<String>> = (numbered(labels, too_long).iter())
            .map(|label| lines(label, column).unwrap_or_else(|| vec![fit(label, TEXT, column)]))
            .collect();
        let most = labels.iter().map(Vec::len).max().unwrap_or(1) as i32;

        let remarks = [self.summary(), self.left_out()].concat();
        let left = MARGIN + NAMES;
        let width = (left + arms.len() as i32 * FIELD.0 + MARGIN).max(LEAST_WIDTH);
        let headings = HEADINGS + (most - 1) * (TEXT + 3);
        let top = MARGIN + TITLE_SIZE + 2 * LINE + 18 + headings;
        let bottom = top + programs.len() as i32 * FIELD.1;
        let height = bottom + 18 + remarks.len() as i32 * LINE + MARGIN / 2;
        let room = width - 2 * MARGIN;

        let title = clean(&self.title);
        let mut svg = Svg::new(width, height, &title);
        let shown = fit(&title, TITLE_SIZE, room);
        svg.bold_below(MARGIN, MARGIN, TITLE_SIZE, Ink::Text, &shown);
        let faint = |svg: &mut Svg, y: i32, text: &str| {
            let text = fit(text, TEXT, room);
            svg.text_below(MARGIN, y, TEXT, Anchor::Left, Ink::Faint, &text);
        };
        faint(&mut svg, MARGIN + TITLE_SIZE + 10, &self.circumstances());
        explain(&mut svg, MARGIN + TITLE_SIZE + 12 + LINE, &reference);
        for (index, label) in labels.iter().enumerate() {
            let middle = left + index as i32 * FIELD.0 + column / 2;
            for (above, line) in label.iter().rev().enumerate() {
                let y = top - HEADINGS + 4 - above as i32 * (TEXT + 3);
                svg.text_below(middle, y, TEXT, Anchor::Middle, Ink::Text, line);
            }
        }
        for (line, program) in programs.iter().enumerate() {
            let y = top + line as i32 * FIELD.1;
            let name = fit(&clean(&program.name), TEXT, NAMES - 12);
            svg.text_below(MARGIN, y + 5, TEXT, Anchor::Left, Ink::Text, &name);
            let kind = fit(&clean(&program.kind), SMALL, NAMES - 12);
            svg.text_below(MARGIN, y + 21, SMALL, Anchor::Left, Ink::Faint, &kind);
            for (column, arm) in arms.iter().enumerate() {
                let x = left + column as i32 * FIELD.0;
                Field::of(program.row(arm)).draw(&mut svg, x, y);
            }
        }
        for (index, remark) in remarks.iter().enumerate() {
            faint(&mut svg, bottom + 18 + index as i32 * LINE, remark);
        }
        svg.finish()
    }
}

/// Breaks a heading into two lines if it does not fit into one; `None` if there is no space at which both fit.
fn lines(label: &str, room: i32) -> Option<Vec<String>> {
    let fits = |text: &str| text_width(text, TEXT) <= room;
    if fits(label) {
        return Some(vec![label.to_owned()]);
    }
    let spaces = label.match_indices(' ').map(|(at, _)| at);
    let mut halves = spaces.map(|at| [&label[..at], &label[at + 1..]]);
    let halves = halves.rfind(|halves| halves.iter().all(|half| fits(half)))?;
    Some(halves.map(str::to_owned).to_vec())
}

/// Field of one program under one arm.
struct Field {
    fill: String,
    ink: Ink,
    text: String,
    memory: Option<String>,
}

impl Field {
    fn of(row: Option<&Row>) -> Self {
        let Some((row, times)) = row.and_then(|row| Some((row, row.speed.ratio?))) else {
            let text = match row {
                Some(row) if row.failed > 0 && row.failed == row.runs => "failed",
                _ => NOTHING,
            };
            return Self {
                fill: Ink::Band.hex().to_owned(),
                ink: Ink::Faint,
                text: text.to_owned(),
                memory: None,
            };
        };
        let strength = (times.ln().abs() / DARKEST.ln()).min(1.0);
        let shade = SHADES.0 + (SHADES.1 - SHADES.0) * strength;
        let mark = if row.speed.decision == Decision::Undecided {
            " ?"
        } else {
            ""
        };
        let (fill, ink) = match row.speed.decision {
            Decision::Better => (mixed(FASTER, shade), ink_on(shade)),
            Decision::Worse => (mixed(SLOWER, shade), ink_on(shade)),
            Decision::Same => (SAME.to_owned(), Ink::Text),
            _ => (Ink::Band.hex().to_owned(), Ink::Faint),
        };
        let is_told = matches!(row.memory.decision, Decision::Better | Decision::Worse);
        let memory = row
            .memory
            .ratio
            .filter(|times| is_told && !(MUCH_MEMORY.recip()..=MUCH_MEMORY).contains(times));
        Self {
            fill,
            ink,
            text: format!("{times:.2}x{mark}"),
            memory: memory.map(|times| format!("{times:.2}x memory")),
        }
    }

    fn draw(&self, svg: &mut Svg, x: i32, y: i32) {
        let (width, height) = (FIELD.0 - GAP, FIELD.1 - GAP);
        svg.rectangle(x, y, width, height, &self.fill);
        let middle = x + width / 2;
        let top = if self.memory.is_some() { y + 5 } else { y + 12 };
        svg.text_below(middle, top, TEXT, Anchor::Middle, self.ink, &self.text);
        if let Some(memory) = &self.memory {
            let memory = fit(memory, SMALL, width);
            svg.text_below(middle, y + 20, SMALL, Anchor::Middle, self.ink, &memory);
        }
    }
}

/// Mixes a color with white: shade 0 is white, shade 1 the color itself.
fn mixed(color: [f64; 3], shade: f64) -> String {
    let [red, green, blue] = color.map(|part| (255.0 + (part - 255.0) * shade).round() as u8);
    format!("#{red:02x}{green:02x}{blue:02x}")
}

fn ink_on(shade: f64) -> Ink {
    if shade >= WHITE_TEXT {
        Ink::Paper
    } else {
        Ink::Text
    }
}

/// Draws the explanation of the fields.
fn explain(svg: &mut Svg, y: i32, reference: &str) {
    let faster = [1.05, DARKEST].map(|times: f64| times.ln() / DARKEST.ln());
    let shade = |strength: f64| SHADES.0 + (SHADES.1 - SHADES.0) * strength;
    let of = |color: [f64; 3]| faster.map(|strength| mixed(color, shade(strength)));
    let entries: [(Vec<String>, String); 4] = [
        (of(FASTER).into(), format!("faster than `{reference}`")),
        (of(SLOWER).into(), "slower".to_owned()),
        (vec![SAME.to_owned()], "the same".to_owned()),
        (vec![Ink::Band.hex().to_owned()], "? undecided".to_owned()),
    ];
    let mut x = MARGIN;
    for (fills, text) in entries {
        for fill in fills {
            svg.rectangle(x, y, 16, 16, &fill);
            x += 16;
        }
        let text = fit(&text, TEXT, 300);
        svg.text_below(x + 7, y + 2, TEXT, Anchor::Left, Ink::Faint, &text);
        x += 7 + text_width(&text, TEXT) + 22;
    }
    let text = "memory: where it differs by more than 5 %";
    svg.text_below(x, y + 2, TEXT, Anchor::Left, Ink::Faint, text);
}
