//! The field of the picture: time x address.

use std::collections::HashMap;
use std::fmt::Write;

use super::color::{SHADES, Shade, hex, shade};
use super::hatch;
use super::layout::{Layout, NAME_GAP, NAME_SIZE};
use super::{MARGIN, WIDTH, size, ticks};
use crate::cells::{Cell, decode};
use crate::document::{Band, Column, Heat};
use crate::svg::{Anchor, Ink, Svg, fit, text_width};

/// Approximate limit on rectangles in a picture: each takes up to 20 bytes.
const RECTANGLES: usize = 36_000;
/// Left and right of the strip with the mean of all columns, from the right end of the columns.
const MEAN: [i32; 2] = [8, 26];
/// Largest number of marked holes in a band: more marks would hide the memory around them.
const HOLES: usize = 14;

/// Span of equal neighbours: left, right, and the shade.
type Span = (i32, i32, Shade);

/// Rectangle of one shade.
struct Block {
    x: i32,
    y: i32,
    width: i32,
    height: i32,
    shade: Shade,
}

pub(super) fn draw_field(svg: &mut Svg, heat: &Heat, layout: &Layout) {
    let series = &heat.series;
    if series.bands.is_empty() || series.columns.is_empty() {
        let middle = i32::midpoint(layout.left, layout.right);
        let text = match heat.watched.samples {
            0 => "no sample was taken",
            _ => "no resident memory was seen",
        };
        svg.text(
            middle,
            layout.bottom - 60,
            15,
            Anchor::Middle,
            Ink::Faint,
            text,
        );
        return;
    }
    let strip = (layout.right + MEAN[0], layout.right + MEAN[1]);
    draw_headings(svg, layout);

    let mut blocks = Vec::new();
    for coarse in [1, 2, 3, 4, 6, 8, 15] {
        blocks = all_blocks(heat, layout, coarse);
        if blocks.len() <= RECTANGLES {
            break;
        }
    }
    for (band, &(top, height)) in series.bands.iter().zip(&layout.bands) {
        // Before the first sample, the background of the picture shows.
        let first = layout.columns.first().map_or(layout.left, |first| first.0);
        for (left, right) in [(first, layout.right), strip] {
            svg.rectangle(left, top, right - left, height, &hex(0));
        }
        draw_names(svg, band, layout, top, height);
    }
    draw_blocks(svg, &blocks);
    for &(top, height) in &layout.bands {
        for &(left, right) in &layout.pauses {
            hatch::draw(svg, left, top, right - left, height);
        }
    }
    for (index, (band, &(top, height))) in series.bands.iter().zip(&layout.bands).enumerate() {
        draw_holes(svg, band, layout, top, height);
        if index > 0 {
            draw_break(svg, layout.left, top - 4);
            draw_break(svg, layout.right, top - 4);
        }
    }
    draw_axis(svg, layout);
}

/// Right end of the column of sizes.
const SIZES: i32 = 1096;

/// Writes the heads of the columns, just above the first band.
fn draw_headings(svg: &mut Svg, layout: &Layout) {
    let mut heading = |x, anchor, text: &str| {
        svg.text(x, layout.bands[0].0 - 8, 11, anchor, Ink::Faint, text);
    };
    heading(
        layout.left - NAME_GAP,
        Anchor::Right,
        "addresses ascend \u{2193}",
    );
    heading(layout.left, Anchor::Left, "accesses over time \u{2192}");
    let middle = layout.right + i32::midpoint(MEAN[0], MEAN[1]);
    heading(middle, Anchor::Middle, "mean");
    heading(SIZES, Anchor::Right, "resident");
    heading(SIZES + 12, Anchor::Left, "pages");
}

/// Returns the number of mappings of a band, if there are several.
fn count(band: &Band) -> String {
    match band.mappings {
        0 | 1 => String::new(),
        many => format!(" ({many})"),
    }
}

/// Returns the whole name of a band.
pub(super) fn label(band: &Band) -> String {
    format!("{}{}", band.label, count(band))
}

fn draw_names(svg: &mut Svg, band: &Band, layout: &Layout, top: i32, height: i32) {
    let middle = top + height / 2 + 4;
    let right = layout.left - NAME_GAP;
    let count = count(band);
    let room = right - MARGIN - text_width(&count, NAME_SIZE);
    let name = format!("{}{count}", fit(&band.label, NAME_SIZE, room));
    svg.text(right, middle, NAME_SIZE, Anchor::Right, Ink::Text, &name);
    if let (true, [start, ..], [.., end]) = (height >= 44, &band.segments[..], &band.segments[..]) {
        let mut address = |y, address: u64| {
            svg.text(
                right,
                y,
                10,
                Anchor::Right,
                Ink::Faint,
                &format!("{address:x}"),
            );
        };
        address(top + 9, start[0]);
        address(top + height - 1, end[1]);
    }
    svg.text(
        SIZES,
        middle,
        12,
        Anchor::Right,
        Ink::Text,
        &size(band.bytes),
    );
    let pages = pages(band);
    let pages = fit(&pages, 12, WIDTH - MARGIN - SIZES - 12 + 10);
    svg.text(SIZES + 12, middle, 12, Anchor::Left, Ink::Faint, &pages);
}

#[allow(clippy::cast_precision_loss, reason = "a share of byte counts")]
fn pages(band: &Band) -> String {
    let share = band.huge_bytes as f64 / band.bytes.max(1) as f64;
    match band.huge_bytes {
        0 => "4 KiB".to_owned(),
        huge if huge >= band.bytes => "2 MiB".to_owned(),
        _ => format!("{:.0} % 2 MiB", (share * 100.0).clamp(1.0, 99.0)),
    }
}

/// Returns the whole picture in rectangles; `coarse` pixel rows are drawn as one.
fn all_blocks(heat: &Heat, layout: &Layout, coarse: i32) -> Vec<Block> {
    let mut blocks = Vec::new();
    let strip = (layout.right + MEAN[0], layout.right + MEAN[1]);
    for (band, &(top, height)) in heat.series.bands.iter().zip(&layout.bands) {
        let mut open: HashMap<Span, usize> = HashMap::new();
        let mean = means(band, &heat.series.columns);
        let mut y = top;
        while y < top + height {
            let tall = coarse.min(top + height - y);
            let rows = rows_of(band.rows, y - top, tall, height);
            let mut spans: Vec<Span> = Vec::new();
            for (&(left, right), cells) in layout.columns.iter().zip(&band.cells) {
                let letters = cells.as_bytes().get(rows.clone()).unwrap_or_default();
                let hottest = letters
                    .iter()
                    .filter_map(|&one| decode(one))
                    .map(shade)
                    .max();
                let shade = hottest.unwrap_or(0);
                let end = spans.last().map_or(left, |last| last.1);
                match spans.last_mut() {
                    Some(last) if last.2 == shade && end >= left => last.1 = right,
                    _ => spans.push((left.max(end), right, shade)),
                }
            }
            let hottest = mean.get(rows).unwrap_or_default().iter().copied().max();
            spans.push((strip.0, strip.1, hottest.unwrap_or(0)));
            let mut still_open = HashMap::new();
            for span in spans
                .into_iter()
                .filter(|span| span.2 > 0 && span.1 > span.0)
            {
                let index = match open.get(&span) {
                    Some(&index) => index,
                    None => {
                        blocks.push(Block {
                            x: span.0,
                            y,
                            width: span.1 - span.0,
                            height: 0,
                            shade: span.2,
                        });
                        blocks.len() - 1
                    }
                };
                blocks[index].height += tall;
                still_open.insert(span, index);
            }
            open = still_open;
            y += tall;
        }
    }
    blocks
}

/// Returns the rows of a band, drawn `height` pixels tall, that `tall` pixels from `from` on show.
fn rows_of(rows: u32, from: i32, tall: i32, height: i32) -> std::ops::Range<usize> {
    let at = |pixel: i32| {
        let pixel = u64::from(pixel.unsigned_abs());
        (pixel * u64::from(rows) / u64::from(height.unsigned_abs().max(1))) as usize
    };
    let start = at(from);
    start..at(from + tall).max(start + 1)
}

/// Returns the mean of each row over all samples.
fn means(band: &Band, columns: &[Column]) -> Vec<Shade> {
    (0..band.rows as usize)
        .map(|row| {
            let (mut sum, mut samples) = (0.0, 0.0);
            for (cells, column) in band.cells.iter().zip(columns) {
                let cell = cells.as_bytes().get(row).and_then(|&one| decode(one));
                if let Some(Cell::Heat(heat)) = cell {
                    #[allow(clippy::cast_precision_loss, reason = "a weight")]
                    let weight = column.samples.max(1) as f32;
                    sum += heat * weight;
                    samples += weight;
                }
            }
            shade(if samples > 0.0 {
                Cell::Heat(sum / samples)
            } else {
                Cell::Absent
            })
        })
        .collect()
}

/// Draws one path for each shade, which is far smaller than one element for each rectangle.
fn draw_blocks(svg: &mut Svg, blocks: &[Block]) {
    let mut paths = vec![String::new(); usize::from(SHADES)];
    for block in blocks {
        if let Some(path) = paths.get_mut(usize::from(block.shade)) {
            let Block {
                x,
                y,
                width,
                height,
                ..
            } = block;
            let _ = write!(path, "M{x} {y}h{width}v{height}h-{width}z");
        }
    }
    svg.raw(format_args!("<g shape-rendering=\"crispEdges\">\n"));
    for (shade, path) in (0..SHADES).zip(paths) {
        if !path.is_empty() {
            svg.raw(format_args!(
                "<path fill=\"{}\" d=\"{path}\"/>\n",
                hex(shade)
            ));
        }
    }
    svg.raw(format_args!("</g>\n"));
}

/// Draws thin lines where memory inside a band is omitted.
fn draw_holes(svg: &mut Svg, band: &Band, layout: &Layout, top: i32, height: i32) {
    if band.mappings > 1 || !(2..=HOLES).contains(&band.segments.len()) {
        return;
    }
    let span: u64 = band.segments.iter().map(|[start, end]| end - start).sum();
    let mut before = 0;
    for [start, end] in &band.segments[..band.segments.len() - 1] {
        before += end - start;
        let down = u128::from(before) * u128::from(height.unsigned_abs()) / u128::from(span.max(1));
        let y = top + i32::try_from(down).unwrap_or(0);
        if y > top + 2 && y < top + height - 2 {
            for x in [layout.left, layout.right] {
                svg.line((x - 4, y + 1), (x + 3, y - 2), Ink::Text, 1.0);
            }
            svg.rectangle(
                layout.left,
                y,
                layout.right - layout.left,
                1,
                Ink::Paper.hex(),
            );
        }
    }
}

/// Draws two strokes over the edge where memory between two bands is omitted.
fn draw_break(svg: &mut Svg, x: i32, y: i32) {
    for shift in [-2, 1] {
        svg.line(
            (x - 5, y + shift + 2),
            (x + 4, y + shift - 1),
            Ink::Faint,
            1.0,
        );
    }
}

fn draw_axis(svg: &mut Svg, layout: &Layout) {
    let y = layout.bottom + 10;
    svg.line((layout.left, y), (layout.right, y), Ink::Faint, 1.0);
    for &(left, right) in &layout.looks {
        svg.rectangle(left, y - 5, right - left, 5, Ink::Text.hex());
    }
    let right = layout.left - NAME_GAP;
    svg.text(right, y + 2, 10, Anchor::Right, Ink::Faint, "sampled");
    let milliseconds = layout.seconds < 1.0;
    let scale = if milliseconds { 1e3 } else { 1.0 };
    let (ticks, decimals) = ticks(layout.seconds * scale, 8.0);
    for tick in ticks {
        let x = layout.x(tick / scale);
        svg.line((x, y), (x, y + 5), Ink::Faint, 1.0);
        let text = format!("{tick:.decimals$}");
        svg.text(x, y + 19, 12, Anchor::Middle, Ink::Faint, &text);
    }
    let unit = if milliseconds {
        "milliseconds"
    } else {
        "seconds"
    };
    let middle = i32::midpoint(layout.left, layout.right);
    svg.text(middle, y + 38, 12, Anchor::Middle, Ink::Faint, unit);
}
