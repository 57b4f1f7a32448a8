//! Colors of heat.
//!
//! "Inferno", the perceptually uniform map by Stéfan van der Walt and Nathaniel Smith (2015, in the
//! public domain by CC0): its lightness rises evenly, so it reads the same in grey and for the
//! color-blind. Its darkest end stands for idle memory and its palest end is left out, so that
//! neither is mistaken for text or paper; touched memory begins a visible step above idle.

use super::hatch;
use crate::cells::Cell;
use crate::svg::{Anchor, Ink, Svg, text_width};

/// Every sixteenth color of the map.
const INFERNO: [[u8; 3]; 17] = [
    [0, 0, 4],
    [11, 7, 36],
    [33, 12, 74],
    [61, 9, 101],
    [87, 16, 110],
    [113, 25, 110],
    [138, 34, 106],
    [163, 44, 97],
    [188, 55, 84],
    [210, 70, 68],
    [228, 90, 49],
    [241, 115, 29],
    [249, 142, 9],
    [252, 172, 17],
    [249, 203, 53],
    [242, 234, 105],
    [252, 255, 164],
];
/// Places of idle memory, hardly touched memory and always touched memory in the map.
const IDLE: f64 = 0.07;
const LOW: f64 = 0.24;
const HIGH: f64 = 0.93;

/// Number of steps between hardly and always touched.
const STEPS: u8 = 30;

/// Color of cells without resident memory.
const ABSENT: [u8; 3] = [230, 230, 232];

/// Color of the picture: 0 not resident, 1 idle, then from hardly to always touched.
pub(super) type Shade = u8;

/// Number of shades.
pub(super) const SHADES: Shade = STEPS + 2;

/// Returns the shade of a cell.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to the steps"
)]
pub(super) fn shade(cell: Cell) -> Shade {
    match cell {
        Cell::Absent => 0,
        Cell::Heat(heat) if heat > 0.0 => {
            let step = (f32::from(STEPS) * heat)
                .ceil()
                .clamp(1.0, f32::from(STEPS));
            1 + step as u8
        }
        Cell::Heat(_) => 1,
    }
}

/// Returns the color of a shade in the form of SVG.
pub(super) fn hex(shade: Shade) -> String {
    let [red, green, blue] = rgb(shade);
    format!("#{red:02x}{green:02x}{blue:02x}")
}

fn rgb(shade: Shade) -> [u8; 3] {
    match shade {
        0 => ABSENT,
        1 => at(IDLE),
        shade => {
            let along = f64::from(shade.min(SHADES - 1) - 2) / f64::from(STEPS - 1);
            at(LOW + (HIGH - LOW) * along)
        }
    }
}

/// Returns the color of a cell as red, green and blue; `None` if nothing is resident.
#[must_use]
pub fn color(cell: Cell) -> Option<[u8; 3]> {
    match shade(cell) {
        0 => None,
        shade => Some(rgb(shade)),
    }
}

/// Returns the map's color at `place`, 0 to 1.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "places and colors lie within their ranges"
)]
fn at(place: f64) -> [u8; 3] {
    let scaled = place.clamp(0.0, 1.0) * (INFERNO.len() - 1) as f64;
    let low = (scaled.floor() as usize).min(INFERNO.len() - 2);
    let part = scaled - low as f64;
    std::array::from_fn(|index| {
        let (a, b) = (
            f64::from(INFERNO[low][index]),
            f64::from(INFERNO[low + 1][index]),
        );
        (a + (b - a) * part).round() as u8
    })
}

/// Draws the legend of the colors, in one line around the baseline `y + 12`.
pub(super) fn draw_legend(svg: &mut Svg, left: i32, y: i32) {
    let mut x = left;
    let word = |svg: &mut Svg, x: i32, text: &str| -> i32 {
        svg.text(x, y + 12, 12, Anchor::Left, Ink::Faint, text);
        x + text_width(text, 12)
    };
    for (shade, name) in [(0, "not resident"), (1, "resident, idle")] {
        svg.rectangle(x, y + 1, 14, 14, &hex(shade));
        x = word(svg, x + 20, name) + 20;
    }
    x = word(svg, x, "touched: few") + 6;
    for shade in 2..SHADES {
        svg.rectangle(x, y + 1, 5, 14, &hex(shade));
        x += 5;
    }
    x = word(svg, x + 8, "all of its pages in every sample") + 20;
    svg.rectangle(x, y + 1, 22, 14, &hex(SHADES / 2));
    hatch::draw(svg, x, y + 1, 22, 14);
    word(
        svg,
        x + 28,
        "between samples: not measured, the last sample again",
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the approximate relative luminance.
    fn light(color: &str) -> f64 {
        let part = |at| f64::from(u8::from_str_radix(&color[at..at + 2], 16).unwrap());
        0.21 * part(1) + 0.72 * part(3) + 0.07 * part(5)
    }

    #[test]
    fn hotter_is_lighter_and_touched_is_told_from_idle() {
        let lights: Vec<f64> = (1..SHADES).map(|shade| light(&hex(shade))).collect();
        assert!(
            lights.windows(2).all(|pair| pair[0] < pair[1]),
            "{lights:?}"
        );
        assert!(lights[1] > lights[0] + 12.0, "{lights:?}");
        assert_eq!(shade(Cell::Heat(0.0)), 1);
        assert_eq!(shade(Cell::Heat(1e-6)), 2);
        assert_eq!(shade(Cell::Heat(1.0)), SHADES - 1);
        assert_eq!(shade(Cell::Absent), 0);
    }
}
