//! Positions of bands and columns.

use super::MARGIN;
use super::field::label;
use crate::document::{Heat, Series};
use crate::svg::text_width;

/// Right end of time; the mean and the sizes follow.
const RIGHT: i32 = 1000;
/// Least and greatest width of the names, which are left of time. A longer name loses its middle.
const NAMES: [i32; 2] = [180, 400];
/// Gap between the names and time.
pub(super) const NAME_GAP: i32 = 10;
/// Left end of time where no name is long.
pub(super) const LEAST_LEFT: i32 = MARGIN + NAMES[0] + NAME_GAP;
/// Size of the letters of names.
pub(super) const NAME_SIZE: i32 = 12;
/// Least height of a band: a line of text.
const BAND: i32 = 15;
/// Gap between bands, where memory is omitted.
const GAP: i32 = 8;

/// Least width of a pause, since hatching needs some room. The sample marks below the field also show narrower pauses.
const PAUSE: i32 = 4;

/// Positions of everything that depends on the data.
pub(super) struct Layout {
    pub(super) left: i32,
    pub(super) right: i32,
    /// Bottom of the last band.
    pub(super) bottom: i32,
    /// Top and height of each band.
    pub(super) bands: Vec<(i32, i32)>,
    /// Left and right of each column as drawn: up to the next one.
    pub(super) columns: Vec<(i32, i32)>,
    /// Left and right of the parts of columns without sampling.
    pub(super) pauses: Vec<(i32, i32)>,
    /// Left and right of the times with sampling, ascending and disjoint.
    pub(super) looks: Vec<(i32, i32)>,
    /// Time at the right end.
    pub(super) seconds: f64,
}

impl Layout {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_precision_loss,
        reason = "pixels of a picture; documents with more bands are refused"
    )]
    pub(super) fn new(heat: &Heat, top: i32) -> Self {
        let series = &heat.series;
        let count = series.bands.len() as i32;
        let total: u64 = series.bands.iter().map(|band| band.bytes).sum();
        // Each band gets one line of text; the large bands share the rest.
        let free = f64::from((600 - count * (BAND + GAP)).clamp(260, 420));
        let mut y = top;
        let mut bands = Vec::new();
        for band in &series.bands {
            let share = band.bytes as f64 / total.max(1) as f64;
            let height = BAND + (free * share.clamp(0.0, 1.0)).round() as i32;
            bands.push((y, height));
            y += height + GAP;
        }
        let bottom = if bands.is_empty() { top + 120 } else { y - GAP };
        let last = series.columns.last();
        let seconds = last.map_or(0.0, |column| {
            column.to_seconds.max(heat.watched.elapsed_seconds)
        });
        let names = series.bands.iter().map(label);
        let names = names.map(|name| text_width(&name, NAME_SIZE)).max();
        let left = MARGIN + names.unwrap_or(0).clamp(NAMES[0], NAMES[1]) + NAME_GAP;
        let sampled = columns(series, left, seconds);
        let next = |index: usize| sampled.get(index + 1).map_or(RIGHT, |next| next.0);
        let pauses = (sampled.iter().enumerate())
            .map(|(index, &(_, right))| (right, next(index)))
            .filter(|(from, to)| to - from >= PAUSE);
        let shown = (sampled.iter().enumerate())
            .map(|(index, &(left, right))| (left, right.max(next(index))));
        Self {
            left,
            right: RIGHT,
            bottom,
            bands,
            pauses: pauses.collect(),
            columns: shown.collect(),
            looks: joined(&sampled),
            seconds,
        }
    }

    /// Returns the position of a time.
    pub(super) fn x(&self, seconds: f64) -> i32 {
        place(seconds, self.left, self.seconds)
    }
}

#[allow(clippy::cast_possible_truncation, reason = "pixels of a picture")]
fn place(seconds: f64, left: i32, all: f64) -> i32 {
    let share = if all > 0.0 {
        (seconds / all).clamp(0.0, 1.0)
    } else {
        0.0
    };
    left + (share * f64::from(RIGHT - left)).round() as i32
}

/// Joins neighbours that touch.
fn joined(columns: &[(i32, i32)]) -> Vec<(i32, i32)> {
    let mut joined: Vec<(i32, i32)> = Vec::new();
    for &(left, right) in columns {
        match joined.last_mut() {
            Some(last) if last.1 >= left => last.1 = last.1.max(right),
            _ => joined.push((left, right)),
        }
    }
    joined
}

/// Returns the range in which each column was sampled.
fn columns(series: &Series, left: i32, all: f64) -> Vec<(i32, i32)> {
    let mut places: Vec<(i32, i32)> = (series.columns.iter())
        .map(|column| {
            (
                place(column.from_seconds, left, all),
                place(column.to_seconds, left, all),
            )
        })
        .collect();
    let count = places.len();
    for index in 0..count {
        // Reading and arming again takes a moment, which is not worth showing as a pause.
        let next = places.get(index + 1).map_or(RIGHT, |next| next.0);
        let (left, right) = places[index];
        let width = right - left;
        if next > right && next - right <= (width / 3).max(2) && index + 1 < count {
            places[index].1 = next;
        }
        if places[index].1 <= left {
            places[index].1 = (left + 1).min(RIGHT);
            places[index].0 = places[index].1 - 1;
        }
    }
    places
}
