//! Picture of a figure: misses, walks and modelled time by size, over the draws.
//!
//! Programs differ by far more than arms do, so on a common axis the arms of most programs would be one dot. Then a panel shows the change of each arm
//! against the first one, in percent, and below each program the value of the first arm.

use superhue_plot::svg::{Anchor, Ink, Svg, fit, text_width};

use crate::arm::Arm;
use crate::document::{ArmResult, Figure, Point, Spread};
use crate::number::number;

const WIDTH: i32 = 900;
const LEFT: i32 = 78;
const RIGHT: i32 = WIDTH - 24;
const HEIGHT: i32 = 190;
const GAP: i32 = 62;

/// Radius of the dot of a median.
const DOT: i32 = 3;
/// Height of the line with the values of the base.
const BASE_LINE: i32 = 15;
/// Values of the base that differ by no more than this factor need no line: a figure of ratios has 1 everywhere.
const ALIKE: f64 = 1.01;
/// Least number of arms that hide each other: two dots beside each other are still two.
const CROWD: usize = 3;

/// Quantity that a panel shows.
struct Quantity {
    title: String,
    of: fn(&ArmResult) -> Spread,
    higher_is_better: bool,
    /// True if the papers' numbers are of this quantity.
    paper: bool,
}

struct Panel<'a> {
    quantity: Quantity,
    figure: &'a Figure,
    /// Arm against which the panel shows the others; `None` if it shows the values themselves.
    base: Option<&'a str>,
    top: i32,
    axis: Axis,
}

/// Vertical axis, from a multiple of the step to another one. It has 0 as a grid line.
struct Axis {
    low: f64,
    high: f64,
    /// Distance of the grid lines.
    step: f64,
}

/// Draws a figure as SVG.
#[must_use]
pub fn draw(figure: &Figure) -> String {
    let foot: Vec<String> = figure.verdict.iter().flat_map(|said| lines(said)).collect();
    let entries = entries(figure);
    let mut end = entries.last().map_or(0, |entry| entry.1) + 28;
    let mut panels = Vec::new();
    for quantity in quantities(figure) {
        let panel = Panel::new(figure, quantity, end + 22);
        end += HEIGHT + GAP + panel.base_values().map_or(0, |_| BASE_LINE);
        panels.push(panel);
    }
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
    for panel in &panels {
        panel.draw(&mut svg);
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

/// Returns what the panels show, from top to bottom.
fn quantities(figure: &Figure) -> Vec<Quantity> {
    let mut quantities = vec![Quantity {
        title: format!("Misses of {}, to 1,000 references", figure.misses()),
        of: |arm| arm.misses,
        higher_is_better: false,
        paper: false,
    }];
    let mut arms = figure.points.iter().flat_map(|point| &point.arms);
    if arms.any(|arm| arm.walks.most >= 1.0) {
        quantities.push(Quantity {
            title: "TLB misses that walk the page table, to 1,000 references".to_owned(),
            of: |arm| arm.walks,
            higher_is_better: false,
            paper: false,
        });
    }
    quantities.push(Quantity {
        title: capital(&figure.value),
        of: |arm| arm.value,
        higher_is_better: figure.higher_is_better,
        paper: true,
    });
    quantities
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

/// Returns true if the points have no order, so that no line joins them.
fn is_unordered(figure: &Figure) -> bool {
    matches!(figure.axis.as_str(), "partner" | "program")
}

/// Returns the arm against which the others are drawn: the first, if the medians of three arms or more lie on one dot at most points of a figure without
/// an order, and all values of the first are positive. `most` is the end of the common axis.
fn base_of(figure: &Figure, of: fn(&ArmResult) -> Spread, most: f64) -> Option<&str> {
    let base = *figure.arms().first()?;
    let is_hidden = |point: &&Point| {
        let medians = point.arms.iter().map(|arm| of(arm).median);
        let least = medians.clone().fold(f64::INFINITY, f64::min);
        let span = medians.fold(0.0, f64::max) - least;
        point.arms.len() >= CROWD && span / most * f64::from(HEIGHT) < f64::from(2 * DOT)
    };
    let hidden = figure.points.iter().filter(is_hidden).count();
    let has_base = |point: &Point| point.arm(base).is_some_and(|arm| of(arm).median > 0.0);
    let is_crowded = is_unordered(figure) && 2 * hidden > figure.points.len();
    (is_crowded && figure.points.iter().all(has_base)).then_some(base)
}

impl Axis {
    /// Makes an axis from 0 for values up to `most`.
    fn from_zero(most: f64) -> Self {
        let (high, step) = scale(most);
        Self {
            low: 0.0,
            high,
            step,
        }
    }

    /// Makes an axis for changes from `least` to `most`.
    fn around_zero(least: f64, most: f64) -> Self {
        let (least, most) = (least.min(0.0), most.max(0.0));
        let (_, step) = scale(most - least);
        let (low, high) = ((least / step).floor() * step, (most / step).ceil() * step);
        Self {
            low,
            high: if high > low { high } else { low + step },
            step,
        }
    }

    /// Returns the values of the grid lines, ascending.
    fn grid(&self) -> impl Iterator<Item = f64> {
        let at = |value: f64| (value / self.step).round() as i32;
        (at(self.low)..=at(self.high)).map(move |line| f64::from(line) * self.step)
    }
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

impl<'a> Panel<'a> {
    fn new(figure: &'a Figure, quantity: Quantity, top: i32) -> Self {
        let results = figure.points.iter().flat_map(|point| &point.arms);
        let most = results.map(|arm| {
            let spread = (quantity.of)(arm);
            let paper = arm.paper.filter(|_| quantity.paper).unwrap_or(0.0);
            let worst = if quantity.higher_is_better {
                spread.p95
            } else {
                spread.most
            };
            worst.max(paper)
        });
        let axis = Axis::from_zero(most.fold(0.0, f64::max));
        let base = base_of(figure, quantity.of, axis.high);
        let mut panel = Self {
            quantity,
            figure,
            base,
            top,
            axis,
        };
        if base.is_some() {
            let (least, most) = panel.extent();
            panel.axis = Axis::around_zero(least, most);
        }
        panel
    }

    /// Returns the least and the greatest of all numbers that the panel draws.
    fn extent(&self) -> (f64, f64) {
        let points = self.figure.points.iter();
        let numbers = points.flat_map(move |point| {
            point.arms.iter().flat_map(move |arm| {
                let spread = (self.quantity.of)(arm);
                let worst = spread.worst(self.quantity.higher_is_better);
                let paper = arm.paper.filter(|_| self.quantity.paper);
                let drawn = [Some(spread.p5), Some(spread.p95), Some(worst), paper];
                drawn
                    .into_iter()
                    .flatten()
                    .map(move |value| self.shown(point, value))
            })
        });
        numbers.fold((0.0_f64, 0.0_f64), |(least, most), number| {
            (least.min(number), most.max(number))
        })
    }

    /// Returns the value that the panel shows for a value at a point: itself, or its change against the base in percent.
    fn shown(&self, point: &Point, value: f64) -> f64 {
        let base = self.base.and_then(|base| point.arm(base));
        base.map_or(value, |base| {
            (value / (self.quantity.of)(base).median - 1.0) * 100.0
        })
    }

    /// Returns the base and its median at each point; `None` without a base, and if it has the same everywhere.
    fn base_values(&self) -> Option<(&'a str, Vec<f64>)> {
        let base = self.base?;
        let arms = self.figure.points.iter().map(|point| point.arm(base));
        let medians: Vec<f64> = arms
            .map(|arm| arm.map_or(0.0, |arm| (self.quantity.of)(arm).median))
            .collect();
        let least = medians.iter().copied().fold(f64::INFINITY, f64::min);
        let most = medians.iter().copied().fold(0.0, f64::max);
        (most > least * ALIKE).then_some((base, medians))
    }

    fn y(&self, value: f64) -> i32 {
        let share = (value - self.axis.low) / (self.axis.high - self.axis.low);
        self.top + HEIGHT - (share * f64::from(HEIGHT)).round() as i32
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
            &self.title(),
        );
        for value in self.axis.grid() {
            let y = self.y(value);
            let is_base = self.base.is_some() && value == 0.0;
            let ink = if is_base { Ink::Text } else { Ink::Grid };
            svg.line((LEFT, y), (RIGHT, y), ink, 1.0);
            let label = match self.base {
                Some(_) => percent(value),
                None => short(value),
            };
            svg.text(LEFT - 8, y + 4, 11, Anchor::Right, Ink::Text, &label);
        }
        self.labels(svg);
        let arms = self.figure.arms();
        for (at, name) in arms.iter().enumerate() {
            self.arm(svg, name, (at as i32 * 2 + 1 - arms.len() as i32) * 3);
        }
    }

    fn title(&self) -> String {
        let title = &self.quantity.title;
        let better = if self.quantity.higher_is_better {
            "more"
        } else {
            "less"
        };
        match self.base {
            Some(base) => format!("{title}: change against {base} ({better} is better)"),
            None => format!("{title} ({better} is better)"),
        }
    }

    /// Writes the names of the points, and the values of the base below them.
    fn labels(&self, svg: &mut Svg) {
        let bottom = self.top + HEIGHT + 7;
        for (index, point) in self.figure.points.iter().enumerate() {
            let x = self.x(index);
            svg.text_below(x, bottom, 11, Anchor::Middle, Ink::Text, &point.label);
        }
        let axis = &self.figure.axis;
        svg.text_below(LEFT - 8, bottom, 11, Anchor::Right, Ink::Faint, axis);
        let Some((base, values)) = self.base_values() else {
            return;
        };
        let bottom = bottom + BASE_LINE;
        for (index, value) in values.into_iter().enumerate() {
            let (x, value) = (self.x(index), number(value));
            svg.text_below(x, bottom, 11, Anchor::Middle, Ink::Faint, &value);
        }
        svg.text_below(LEFT - 8, bottom, 11, Anchor::Right, Ink::Faint, base);
    }

    fn arm(&self, svg: &mut Svg, name: &str, aside: i32) {
        let ink = ink(name);
        let mut last: Option<(i32, i32)> = None;
        for (index, point) in self.figure.points.iter().enumerate() {
            let Some(arm) = point.arm(name) else { continue };
            let spread = (self.quantity.of)(arm);
            let x = self.x(index) + aside;
            let y = |value: f64| self.y(self.shown(point, value));
            svg.line((x, y(spread.p5)), (x, y(spread.p95)), ink, 2.0);
            let at = (x, y(spread.median));
            if let Some(last) = last.filter(|_| !is_unordered(self.figure)) {
                svg.line(last, at, ink, 1.5);
            }
            svg.dot(x, at.1, DOT, ink, 1.0);
            let worst = spread.worst(self.quantity.higher_is_better);
            svg.dot(x, y(worst), 2, ink, 0.6);
            last = Some(at);
        }
        for (index, point) in self.figure.points.iter().enumerate() {
            let paper = point.arm(name).and_then(|arm| arm.paper);
            if let Some(paper) = paper.filter(|_| self.quantity.paper) {
                let y = self.y(self.shown(point, paper));
                diamond(svg, self.x(index) + aside, y, ink);
            }
        }
    }
}

/// Formats a change in percent, with its sign.
fn percent(value: f64) -> String {
    let sign = if value > 0.0 { "+" } else { "" };
    format!("{sign}{} %", short(value))
}

fn short(value: f64) -> String {
    if value.fract() == 0.0 {
        format!("{value}")
    } else {
        number(value).trim_end_matches('0').to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(median: f64) -> Spread {
        Spread::of(&[median * 0.999, median, median * 1.001])
    }

    /// A figure with these medians of the misses, by program and arm.
    fn figure(axis: &str, medians: &[(&str, [f64; 4])]) -> Figure {
        let arms = ["random", "colored", "superpages", "both"];
        let result = |(arm, &median): (&str, &f64)| ArmResult {
            arm: arm.to_owned(),
            draws: 3,
            real: 0,
            references: 1000,
            misses: spread(median),
            walks: spread(0.0),
            value: spread(1.0),
            paper: None,
        };
        let points = medians.iter().map(|(label, medians)| Point {
            label: (*label).to_owned(),
            bytes: 1 << 20,
            traced: None,
            arms: arms.into_iter().zip(medians).map(result).collect(),
        });
        Figure {
            name: "p3-programs".to_owned(),
            title: "Programs".to_owned(),
            paper: String::new(),
            says: Vec::new(),
            machine: "Pentium 4".to_owned(),
            cache: None,
            workload: String::new(),
            axis: axis.to_owned(),
            value: "speed".to_owned(),
            higher_is_better: true,
            points: points.collect(),
            verdict: Vec::new(),
            losing: Vec::new(),
            not_modelled: Vec::new(),
        }
    }

    const COINCIDING: [(&str, [f64; 4]); 3] = [
        ("gzip", [0.2, 0.1, 0.2, 0.1]),
        ("perl", [4.0, 4.4, 4.2, 4.0]),
        ("swim", [68.0, 68.1, 68.0, 67.9]),
    ];

    fn misses(figure: &Figure) -> Panel<'_> {
        let quantity = quantities(figure).into_iter().next().unwrap();
        Panel::new(figure, quantity, 0)
    }

    #[test]
    fn coinciding_dots_are_drawn_as_changes_against_the_first_arm() {
        let figure = figure("program", &COINCIDING);
        let panel = misses(&figure);
        assert_eq!(panel.base, Some("random"));
        let at = |point: usize, arm: &str| {
            let point = &figure.points[point];
            panel.y(panel.shown(point, point.arm(arm).unwrap().misses.median))
        };
        // On a common axis up to 80 these two would be less than a pixel apart.
        assert!(at(0, "colored") - at(0, "random") > 50);
        assert_eq!(at(0, "random"), panel.y(0.0));
        assert_eq!(at(2, "random"), panel.y(0.0));
        let svg = draw(&figure);
        for shown in [
            "change against random (less is better)",
            ">-40 %<",
            ">0 %<",
            ">0.200<",
            ">68.00<",
        ] {
            assert!(svg.contains(shown), "{shown}: {svg}");
        }
        // The speeds are 1 everywhere, which needs no line.
        assert!(svg.contains("Speed: change against random (more is better)"));
        assert!(!svg.contains(">1.00<"), "{svg}");
    }

    #[test]
    fn values_that_are_apart_begin_at_zero() {
        let apart = [
            ("gzip", [20.0, 10.0, 20.0, 10.0]),
            ("perl", [40.0, 44.0, 42.0, 60.0]),
        ];
        let figure = figure("program", &apart);
        let panel = misses(&figure);
        assert_eq!((panel.base, panel.axis.low), (None, 0.0));
        assert_eq!(panel.y(0.0), HEIGHT);
    }

    #[test]
    fn only_a_figure_without_an_order_has_a_base_and_only_a_positive_one() {
        let sizes = figure("size", &COINCIDING);
        assert_eq!(misses(&sizes).base, None, "a line shows where values part");
        let mut none = COINCIDING;
        none[0].1[0] = 0.0;
        let none = figure("program", &none);
        assert_eq!(misses(&none).base, None, "there is no change against 0");
    }
}
