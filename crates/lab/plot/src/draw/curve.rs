//! The hot set: the amount of memory that receives the accesses, as a curve and in figures.

use super::{MARGIN, WIDTH, size, ticks};
use crate::document::{Heat, HotSet};
use crate::svg::{Anchor, Ink, Svg, text_width};

/// Height of the part below the bands.
pub(super) const CURVE_HEIGHT: i32 = 270;
const PLOT_WIDTH: i32 = 540;
const PLOT_HEIGHT: i32 = 180;
/// Least share of accesses to unseen memory that the figures mention.
const UNSEEN: f64 = 0.01;
/// Shares with a mark, in percent.
const MARKS: [u64; 3] = [50, 90, 99];

pub(super) fn draw_curve(svg: &mut Svg, heat: &Heat, left: i32, top: i32) {
    let hot = &heat.hot_set;
    svg.bold(left, top + 12, 15, Ink::Text, "Hot set");
    let says = "share of the sampled accesses that the hottest memory receives";
    svg.text(left + 72, top + 12, 12, Anchor::Left, Ink::Faint, says);
    draw_figures(svg, heat, left + PLOT_WIDTH + 70, top + 46);
    let plot = Plot {
        left,
        top: top + 34,
        most: most(hot),
        is_empty: hot.points.is_empty(),
    };
    plot.draw_frame(svg);
    if hot.points.is_empty() {
        let middle = left + PLOT_WIDTH / 2;
        // The text lies between two lines of the grid.
        let y = plot.y(0.625) + 5;
        svg.text(
            middle,
            y,
            13,
            Anchor::Middle,
            Ink::Faint,
            "no access was seen",
        );
        return;
    }
    plot.draw_line(svg, hot);
}

fn most(hot: &HotSet) -> u64 {
    hot.points.last().map_or(0, |point| point.bytes).max(1)
}

fn marked(hot: &HotSet, share: u64) -> Option<u64> {
    match share {
        50 => hot.bytes_50,
        90 => hot.bytes_90,
        _ => hot.bytes_99,
    }
}

struct Plot {
    left: i32,
    top: i32,
    /// Bytes at the right end.
    most: u64,
    is_empty: bool,
}

impl Plot {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "pixels of a picture"
    )]
    fn x(&self, bytes: f64) -> i32 {
        let share = (bytes / self.most as f64).clamp(0.0, 1.0);
        self.left + (share * f64::from(PLOT_WIDTH)).round() as i32
    }

    #[allow(clippy::cast_possible_truncation, reason = "pixels of a picture")]
    fn y(&self, share: f64) -> i32 {
        self.top + ((1.0 - share.clamp(0.0, 1.0)) * f64::from(PLOT_HEIGHT)).round() as i32
    }

    #[allow(clippy::cast_precision_loss, reason = "shown with three digits")]
    fn draw_frame(&self, svg: &mut Svg) {
        let (right, bottom) = (self.left + PLOT_WIDTH, self.top + PLOT_HEIGHT);
        for percent in [0, 25, 50, 75, 100] {
            let y = self.y(f64::from(percent) / 100.0);
            svg.line((self.left, y), (right, y), Ink::Grid, 1.0);
            let text = format!("{percent} %");
            svg.text(self.left - 8, y + 4, 12, Anchor::Right, Ink::Faint, &text);
        }
        let units = [(40, "TiB"), (30, "GiB"), (20, "MiB")];
        let (shift, unit) = (units.into_iter())
            .find(|(shift, _)| self.most >= 1 << shift)
            .unwrap_or((10, "KiB"));
        let scale = (1u64 << shift) as f64;
        // Without accesses the axis has only its zero.
        let most = if self.is_empty { 0.0 } else { self.most as f64 };
        let (ticks, decimals) = ticks(most / scale, 6.0);
        for tick in ticks {
            let x = self.x(tick * scale);
            svg.line((x, bottom), (x, bottom + 5), Ink::Faint, 1.0);
            let text = format!("{tick:.decimals$}");
            svg.text(x, bottom + 19, 12, Anchor::Middle, Ink::Faint, &text);
        }
        svg.line((self.left, bottom), (right, bottom), Ink::Faint, 1.0);
        let middle = self.left + PLOT_WIDTH / 2;
        if !self.is_empty {
            svg.text(middle, bottom + 38, 12, Anchor::Middle, Ink::Faint, unit);
        }
    }

    #[allow(clippy::cast_precision_loss, reason = "pixels of a picture")]
    fn draw_line(&self, svg: &mut Svg, hot: &HotSet) {
        let bottom = self.top + PLOT_HEIGHT;
        let mut line = vec![(self.left, bottom)];
        for point in &hot.points {
            let place = (self.x(point.bytes as f64), self.y(point.share));
            if line.last() != Some(&place) {
                line.push(place);
            }
        }
        svg.polyline(&line, Ink::Accent, 2.5);
        for mark in MARKS {
            let Some(bytes) = marked(hot, mark) else {
                continue;
            };
            let (x, y) = (self.x(bytes as f64), self.y(mark as f64 / 100.0));
            svg.dashed((x, y), (x, bottom));
            svg.dot(x, y, 4, Ink::Text, 1.0);
            let text = format!("{mark} %: {}", size(bytes));
            // There is room to the right of a point below the curve, and to its left above the curve.
            let fits = x + 12 + text_width(&text, 12) <= self.left + PLOT_WIDTH;
            let (at, anchor, down) = if fits {
                (x + 10, Anchor::Left, 12)
            } else {
                (x - 8, Anchor::Right, -5)
            };
            svg.over(at, y + down, 12, anchor, &text);
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "shares of byte counts")]
fn draw_figures(svg: &mut Svg, heat: &Heat, left: i32, top: i32) {
    let hot = &heat.hot_set;
    let resident = hot.resident_bytes;
    let of_resident = |bytes: u64| {
        let share = 100.0 * bytes as f64 / resident.max(1) as f64;
        format!("{share:.1} %")
    };
    let mut y = top;
    let mut row = |ink: Ink, cells: [&str; 3]| {
        svg.text(left, y, 12, Anchor::Left, ink, cells[0]);
        svg.text(left + 215, y, 12, Anchor::Right, ink, cells[1]);
        svg.text(WIDTH - MARGIN, y, 12, Anchor::Right, ink, cells[2]);
        y += 20;
    };
    row(Ink::Faint, ["accesses", "go to", "of resident"]);
    for mark in MARKS {
        let (amount, share) = marked(hot, mark).map_or(("-".to_owned(), String::new()), |bytes| {
            (size(bytes), of_resident(bytes))
        });
        row(Ink::Text, [&format!("{mark} %"), &amount, &share]);
    }
    let touched = hot.points.last().map_or(0, |point| point.bytes);
    row(Ink::Text, ["all", &size(touched), &of_resident(touched)]);
    row(Ink::Text, ["resident", &size(resident), ""]);
    let unseen = heat.watched.unseen_share.filter(|&share| share >= UNSEEN);
    if let Some(share) = unseen {
        let share = format!("about {:.0} %", share * 100.0);
        row(Ink::Text, ["accesses to memory no sample saw", "", &share]);
    }
    if let Some(cost) = &heat.cost {
        row(Ink::Faint, ["", "", ""]);
        let own = format!("{:.2} % of a CPU", cost.own_cpu_share * 100.0);
        row(Ink::Faint, ["superhue took", "", &own]);
        let slower = format!("{:.2} %", cost.target_slowdown * 100.0);
        row(Ink::Faint, ["target slowed by about", "", &slower]);
    }
}
