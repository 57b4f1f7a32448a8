//! Two image filters after SUSAN (Smith and Brady, "SUSAN: a new approach to low level image processing", 1997), which
//! the paper's partners ran: the brightness of neighbours decides their weight.

use std::hint::black_box;

/// Pixels in a row, one byte each. The first half of the memory is the image, the second is the output.
const WIDTH: usize = 512;
/// Rows filtered in one step.
const ROWS: usize = 8;
/// Largest distance of a neighbour from the pixel, in rows and columns.
const RADIUS: usize = 3;
/// Difference in brightness from which pixels count as different.
const THRESHOLD: i32 = 20;

/// Draws a disc on a gradient.
pub(super) fn draw(memory: &mut [u8]) {
    let (image, _) = memory.split_at_mut(memory.len() / 2);
    let rows = image.len() / WIDTH;
    for (y, row) in image.chunks_exact_mut(WIDTH).enumerate() {
        for (x, pixel) in row.iter_mut().enumerate() {
            let (dx, dy) = (x.abs_diff(WIDTH / 2), y.abs_diff(rows / 2));
            let inside = dx * dx + dy * dy < (rows / 3).pow(2);
            *pixel = if inside {
                200
            } else {
                ((x + y) / 8 % 128) as u8
            };
        }
    }
}

/// Filters the rows of one step: calls `pixel` with the rows of the neighbourhood and the column.
fn filter(memory: &mut [u8], turn: u64, pixel: impl Fn(&[&[u8]], usize) -> u8) {
    let (image, out) = memory.split_at_mut(memory.len() / 2);
    let rows: Vec<&[u8]> = image.chunks_exact(WIDTH).collect();
    if rows.len() <= 2 * RADIUS {
        return;
    }
    let usable = rows.len() - 2 * RADIUS;
    let first = (turn as usize).wrapping_mul(ROWS) % usable;
    for y in (first..first + ROWS).map(|row| row % usable) {
        let Some(out) = out.chunks_exact_mut(WIDTH).nth(y + RADIUS) else {
            break;
        };
        let around = &rows[y..=y + 2 * RADIUS];
        let inner = out.iter_mut().enumerate().take(WIDTH - RADIUS).skip(RADIUS);
        for (x, filtered) in inner {
            *filtered = pixel(around, x);
        }
        black_box(out);
    }
}

/// Computes the mean of the neighbours, each weighted by the similarity of its brightness.
pub(super) fn smooth(memory: &mut [u8], turn: u64) {
    filter(memory, turn, |rows, x| {
        let centre = i32::from(rows[RADIUS][x]);
        let (mut sum, mut weights) = (0, 0);
        for row in rows {
            for near in &row[x - RADIUS..=x + RADIUS] {
                let value = i32::from(*near);
                let weight = (3 * THRESHOLD - (value - centre).abs()).max(0);
                sum += weight * value;
                weights += weight;
            }
        }
        // The pixel itself counts, so the weights are not 0.
        (sum / weights.max(1)) as u8
    });
}

/// Computes the shortfall from three quarters of the neighbourhood of the part that is as bright as the pixel.
pub(super) fn edges(memory: &mut [u8], turn: u64) {
    let all = (2 * RADIUS + 1) * (2 * RADIUS + 1);
    filter(memory, turn, |rows, x| {
        let centre = i32::from(rows[RADIUS][x]);
        let alike = |near: &&u8| (i32::from(**near) - centre).abs() < THRESHOLD;
        let same: usize = rows
            .iter()
            .map(|row| row[x - RADIUS..=x + RADIUS].iter().filter(alike).count())
            .sum();
        (all * 3 / 4).saturating_sub(same) as u8
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filtered(by: fn(&mut [u8], u64)) -> Vec<u8> {
        let mut memory = vec![0; 2 * WIDTH * 96];
        draw(&mut memory);
        for turn in 0..12 {
            by(&mut memory, turn);
        }
        memory
    }

    #[test]
    fn edges_are_at_the_rim_of_the_disc() {
        let memory = filtered(edges);
        let out = &memory[WIDTH * 96..];
        let row = &out[48 * WIDTH..49 * WIDTH];
        assert_eq!(row[WIDTH / 2], 0, "inside");
        assert!(
            row[WIDTH / 2 - 33..WIDTH / 2 - 30]
                .iter()
                .any(|edge| *edge > 0),
            "at the rim"
        );
    }

    #[test]
    fn smoothing_keeps_the_edge() {
        let memory = filtered(smooth);
        let out = &memory[WIDTH * 96..];
        let row = &out[48 * WIDTH..49 * WIDTH];
        assert_eq!(row[WIDTH / 2], 200);
        assert!(row[WIDTH / 2 - 40] < 130);
    }
}
