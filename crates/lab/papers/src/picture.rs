//! Picture of a figure: misses, walks and modelled time by size, over the draws.

use superhue_plot::svg::{Anchor, Ink, Svg, fit, text_width};

use crate::arm::Arm;
use crate::document::{ArmResult, Figure, Spread};
use crate::table::number;

const WIDTH: i32 = 900;
const LEFT: i32 = 78;
const RIGHT: i32 = WIDTH - 24;
const HEIGHT: i32 = 190;
const GAP: i32 = 62;

struct Panel<'a> {
    title: String,
    of: fn(&ArmResult) -> Spread,
    higher_is_better: bool,
    paper: bool,
    figure: &'a Figure,
    top: i32,
    most: f64,
    step: f64,
}

/// Draws a figure as SVG.
#[must_use]
pub fn draw(figure: &Figure) -> String {
    let mut panels = vec![(
        format!(
            "Misses of {}, to 1,000 references (less is better)",
            figure.misses()
        ),
        (|arm| arm.misses) as fn(&ArmResult) -> Spread,
        false,
        false,
    )];
    let walks = figure
        .points
        .iter()
        .flat_map(|point| &point.arms)
        .any(|arm| arm.walks.most >= 1.0);
    if walks {
        panels.push((
            "TLB misses that walk the page table, to 1,000 references (less is better)".to_owned(),
            |arm| arm.walks,
            false,
            false,
        ));
    }
    let better = if figure.higher_is_better {
        "more"
    } else {
        "less"
    };
    panels.push((
        format!("{} ({better} is better)", capital(&figure.value)),
        |arm| arm.value,
        figure.higher_is_better,
        true,
    ));
    let foot: Vec<String> = figure.verdict.iter().flat_map(|said| lines(said)).collect();
    let count = panels.len() as i32;
    let entries = entries(figure);
    let begin = entries.last().map_or(0, |entry| entry.1) + 28;
    let end = begin + count * (HEIGHT + GAP);
    let height = end + 18 * foot.len() as i32 + 20;
    let mut svg = Svg::new(WIDTH, height, &figure.title);
    svg.bold_below(24, 18, 17, Ink::Text, &fit(&figure.title, 17, WIDTH - 48));
    svg.text_below(
        24,
        42,
        12,
        Anchor::Left,
        Ink::Faint,
        &fit(
            &if figure.paper.is_empty() {
                format!("{}, modelled.", figure.machine)
            } else {
                format!("{}, modelled. Beside {}.", figure.machine, figure.paper)
            },
            12,
            WIDTH - 48,
        ),
    );
    legend(&mut svg, &entries);
    for (index, (title, of, higher_is_better, paper)) in panels.into_iter().enumerate() {
        let results = figure.points.iter().flat_map(|point| &point.arms);
        let most = results.map(|arm| {
            let spread = of(arm);
            let paper = if paper { arm.paper.unwrap_or(0.0) } else { 0.0 };
            let worst = if higher_is_better {
                spread.p95
            } else {
                spread.most
            };
            worst.max(paper)
        });
        let (most, step) = scale(most.fold(0.0, f64::max));
        let top = begin + index as i32 * (HEIGHT + GAP) + 22;
        Panel {
            title,
            of,
            higher_is_better,
            paper,
            figure,
            top,
            most,
            step,
        }
        .draw(&mut svg);
    }
    for (index, line) in foot.iter().enumerate() {
        svg.text_below(
            24,
            end + 18 * index as i32,
            12,
            Anchor::Left,
            Ink::Text,
            line,
        );
    }
    svg.finish()
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| {
        first.to_uppercase().chain(letters).collect()
    })
}

/// Breaks a sentence into lines that fit.
fn lines(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.len() - 1;
        let longer = if lines[last].is_empty() {
            word.to_owned()
        } else {
            format!("{} {word}", lines[last])
        };
        if text_width(&longer, 12) > WIDTH - 48 && !lines[last].is_empty() {
            lines.push(format!("  {word}"));
        } else {
            lines[last] = longer;
        }
    }
    lines
}

/// A round end of an axis, and the distance of its grid lines.
fn scale(most: f64) -> (f64, f64) {
    let most = if most > 0.0 { most * 1.04 } else { 1.0 };
    let power = 10f64.powf((most / 4.0).log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0]
        .into_iter()
        .map(|by| by * power)
        .find(|step| most / step <= 5.0);
    let step = step.unwrap_or(power * 10.0);
    ((most / step).ceil() * step, step)
}

fn arm_of(name: &str) -> Option<Arm> {
    [
        Arm::Fresh,
        Arm::Kernel,
        Arm::Random,
        Arm::Colored,
        Arm::Superpages,
        Arm::Both,
        Arm::Halves,
        Arm::NoRule,
    ]
    .into_iter()
    .find(|arm| arm.name() == name)
}

fn ink(name: &str) -> Ink {
    Ink::Arm(arm_of(name).map_or(0, Arm::ink))
}

/// The legend in rows that fit: position of each entry, its ink (`None` for the paper's numbers), its text.
fn entries(figure: &Figure) -> Vec<(i32, i32, Option<Ink>, String)> {
    let all = figure.arms().into_iter().map(|name| {
        let about = arm_of(name).map_or("", Arm::about);
        (Some(ink(name)), format!("{name}: {about}"))
    });
    let mut arms = figure.points.iter().flat_map(|point| &point.arms);
    let paper = arms.any(|arm| arm.paper.is_some());
    let paper = paper.then(|| {
        (
            None,
            "the paper's number, in the color of its arm".to_owned(),
        )
    });
    let (mut x, mut y) = (24, 68);
    all.chain(paper)
        .map(|(ink, text)| {
            let width = 17 + text_width(&text, 11) + 14;
            if x > 24 && x + width > WIDTH - 10 {
                (x, y) = (24, y + 18);
            }
            x += width;
            (x - width, y, ink, text)
        })
        .collect()
}

fn legend(svg: &mut Svg, entries: &[(i32, i32, Option<Ink>, String)]) {
    for (x, y, ink, text) in entries {
        match ink {
            Some(ink) => svg.rectangle(*x, *y, 12, 12, ink.hex()),
            None => diamond(svg, x + 6, y + 6, Ink::Text),
        }
        svg.text_below(x + 17, y + 1, 11, Anchor::Left, Ink::Text, text);
    }
}

fn diamond(svg: &mut Svg, x: i32, y: i32, ink: Ink) {
    let ink = ink.hex();
    svg.raw(format_args!(
        "<path d=\"M{x}.5 {}.5L{}.5 {y}.5L{x}.5 {}.5L{}.5 {y}.5Z\" fill=\"#ffffff\" stroke=\"{ink}\" stroke-width=\"2\"/>\n",
        y - 5, x + 5, y + 5, x - 5,
    ));
}

impl Panel<'_> {
    fn y(&self, value: f64) -> i32 {
        self.top + HEIGHT - (value / self.most * f64::from(HEIGHT)).round() as i32
    }

    fn x(&self, index: usize) -> i32 {
        let slot = f64::from(RIGHT - LEFT) / self.figure.points.len().max(1) as f64;
        LEFT + ((index as f64 + 0.5) * slot) as i32
    }

    fn draw(&self, svg: &mut Svg) {
        svg.text(
            LEFT - 54,
            self.top - 10,
            12,
            Anchor::Left,
            Ink::Text,
            &self.title,
        );
        for line in 0..=(self.most / self.step).round() as i32 {
            let value = f64::from(line) * self.step;
            let y = self.y(value);
            svg.line((LEFT, y), (RIGHT, y), Ink::Grid, 1.0);
            svg.text(LEFT - 8, y + 4, 11, Anchor::Right, Ink::Text, &short(value));
        }
        for (index, point) in self.figure.points.iter().enumerate() {
            svg.text_below(
                self.x(index),
                self.top + HEIGHT + 7,
                11,
                Anchor::Middle,
                Ink::Text,
                &point.label,
            );
        }
        svg.text_below(
            LEFT - 8,
            self.top + HEIGHT + 7,
            11,
            Anchor::Right,
            Ink::Faint,
            &self.figure.axis,
        );
        let arms = self.figure.arms();
        for (at, name) in arms.iter().enumerate() {
            self.arm(svg, name, (at as i32 * 2 + 1 - arms.len() as i32) * 3);
        }
    }

    fn arm(&self, svg: &mut Svg, name: &str, aside: i32) {
        let ink = ink(name);
        let mut last: Option<(i32, i32)> = None;
        for (index, point) in self.figure.points.iter().enumerate() {
            let Some(arm) = point.arm(name) else { continue };
            let spread = (self.of)(arm);
            let x = self.x(index) + aside;
            svg.line((x, self.y(spread.p5)), (x, self.y(spread.p95)), ink, 2.0);
            let at = (x, self.y(spread.median));
            // Partners and programs have no order, so no line joins them.
            if let Some(last) =
                last.filter(|_| !matches!(self.figure.axis.as_str(), "partner" | "program"))
            {
                svg.line(last, at, ink, 1.5);
            }
            svg.dot(x, at.1, 3, ink, 1.0);
            svg.dot(x, self.y(spread.worst(self.higher_is_better)), 2, ink, 0.6);
            last = Some(at);
        }
        for (index, point) in self.figure.points.iter().enumerate() {
            if let Some(paper) = point
                .arm(name)
                .and_then(|arm| arm.paper)
                .filter(|_| self.paper)
            {
                diamond(svg, self.x(index) + aside, self.y(paper), ink);
            }
        }
    }
}

fn short(value: f64) -> String {
    if value.fract() == 0.0 {
        format!("{value}")
    } else {
        number(value).trim_end_matches('0').to_owned()
    }
}
