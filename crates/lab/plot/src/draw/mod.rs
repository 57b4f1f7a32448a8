//! The picture, 1200 wide:
//!
//! ```text
//!   title
//!   how it was watched
//!   legend of the colors
//!   names ↓   time ->                            mean  resident  pages
//!   [heap]   |############  time x address  ########| # | 12.0 MiB  4 KiB
//!           /                                           /                     gap cut out
//!   anon     |######################################| # | 512 MiB   2 MiB
//!            0 s      1 s      2 s                  mean
//!   hot-set curve                         | figures
//! ```

mod color;
mod curve;
mod field;
mod hatch;
mod latency;
mod layout;

use crate::document::{EndReason, Heat};

use crate::svg::{Anchor, Ink, Svg, fit, text_width};
pub use color::color;
use curve::{CURVE_HEIGHT, draw_curve};
use field::draw_field;
pub use latency::latency_svg;
use layout::{LEAST_LEFT, Layout};

/// Width of every picture.
const WIDTH: i32 = 1200;
const MARGIN: i32 = 28;
/// Top of the legend.
const LEGEND_TOP: i32 = 84;
/// Top of the bands: below the legend, with room for the heads of the columns.
const FIELD_TOP: i32 = 142;
/// Length to which the kernel cuts the name of a process (`TASK_COMM_LEN` of `include/linux/sched.h`, less its end).
const COMM_LENGTH: usize = 15;
/// Height of the time axis below the bands.
const AXIS_HEIGHT: i32 = 54;

/// Draws a document from [`Heat::from_json`] or from a recorder.
///
/// A cell of the picture is the share of its resident pages that a sample found touched: the mean over pages and samples, and where a pixel holds
/// several rows, the hottest of them. Even hardly touched memory has another color than idle memory. Between samples the picture shows the last
/// sample, pale and hatched, because the accesses there are unknown.
#[must_use]
pub fn to_svg(heat: &Heat) -> String {
    let layout = Layout::new(heat, FIELD_TOP);
    let curve_top = layout.bottom + AXIS_HEIGHT + 26;
    let height = curve_top + CURVE_HEIGHT + MARGIN;
    let mut svg = Svg::new(WIDTH, height, &title(heat));
    draw_head(&mut svg, heat);
    hatch::define(&mut svg);
    color::draw_legend(&mut svg, MARGIN, LEGEND_TOP);
    draw_field(&mut svg, heat, &layout);
    draw_curve(&mut svg, heat, LEAST_LEFT, curve_top);
    svg.finish()
}

fn title(heat: &Heat) -> String {
    format!("{} (process {})", name(heat), heat.process.pid)
}

/// Returns the name of the process, in full if its command contains the rest.
fn name(heat: &Heat) -> &str {
    let name = heat.process.name.as_str();
    let program = heat.process.command.first().map_or("", String::as_str);
    let program = program.rsplit('/').next().unwrap_or_default();
    if name.len() == COMM_LENGTH && program.starts_with(name) {
        program
    } else {
        name
    }
}

/// Name of the tracker that checks one page of a range and takes the others to be like it (`mm/damon/vaddr.c`).
const RANGE_TRACKER: &str = "damon";

fn draw_head(svg: &mut Svg, heat: &Heat) {
    let title = fit(&title(heat), 22, 560);
    svg.bold(MARGIN, 42, 22, Ink::Text, &title);
    let command = heat.process.command.join(" ");
    // Bold letters are wider.
    let at = MARGIN + text_width(&title, 24) + 16;
    let room = WIDTH - MARGIN - at;
    svg.text(
        at,
        42,
        13,
        Anchor::Left,
        Ink::Faint,
        &fit(&command, 13, room),
    );
    let mut line = how(heat);
    if heat.tracker.name == RANGE_TRACKER {
        line += "; one page of each range is measured, the others have its color";
    }
    svg.text(
        MARGIN,
        66,
        13,
        Anchor::Left,
        Ink::Text,
        &fit(&line, 13, WIDTH - 2 * MARGIN),
    );
}

/// Describes the observation in one line.
#[must_use]
pub fn how(heat: &Heat) -> String {
    let watched = &heat.watched;
    let samples = match watched.samples {
        1 => "1 sample".to_owned(),
        samples => format!("{samples} samples"),
    };
    let (short, long) = (
        watched.shortest_interval_seconds,
        watched.longest_interval_seconds,
    );
    let interval = if watched.samples == 0 {
        String::new()
    } else if time(short) == time(long) {
        format!(" of {}", time(short))
    } else {
        format!(" of {} to {}", time(short), time(long))
    };
    let memory = match heat.tracker.scope.as_str() {
        "anonymous" => "anonymous memory",
        _ => "all memory",
    };
    let ended = match watched.ended {
        EndReason::Duration => "",
        EndReason::Exited => ", until the process exited",
        EndReason::Interrupted => ", until interrupted",
        EndReason::Unreadable => ", until it could no longer be read",
    };
    let (seen, all) = (time(watched.seconds), time(watched.elapsed_seconds));
    // A short pause between samples is not worth mentioning.
    let seen = if watched.elapsed_seconds > watched.seconds * 1.1 {
        format!("{seen} of {all}")
    } else {
        seen
    };
    format!(
        "{memory}, tracker {}: {samples}{interval}, {seen} watched{ended}",
        heat.tracker.name,
    )
}

/// Formats a time in the usual way.
#[must_use]
pub fn time(seconds: f64) -> String {
    match seconds {
        s if s <= 0.0 => "0 s".to_owned(),
        s if s < 0.0995 => format!("{:.0} ms", (s * 1e3).max(1.0)),
        s if s < 0.9995 => format!("{:.0} ms", (s * 1e2).round() * 10.0),
        s if s < 99.95 => format!("{s:.1} s"),
        s if s < 5_970.0 => format!("{:.1} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

/// Formats an amount of memory; more than half a KiB is never shown as 0.
#[must_use]
#[allow(clippy::cast_precision_loss, reason = "shown with three digits")]
pub fn size(bytes: u64) -> String {
    let kib = bytes as f64 / 1024.0;
    match kib {
        kib if kib < 1000.0 => format!("{kib:.0} KiB"),
        kib if kib < 10.0 * 1024.0 => format!("{:.2} MiB", kib / 1024.0),
        kib if kib < 1000.0 * 1024.0 => format!("{:.1} MiB", kib / 1024.0),
        kib if kib < 1000.0 * 1024.0 * 1024.0 => format!("{:.2} GiB", kib / 1024.0 / 1024.0),
        kib => format!("{:.2} TiB", kib / 1024.0 / 1024.0 / 1024.0),
    }
}

/// Returns round numbers from 0 to `most`, about `wanted` of them, and their decimals.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a small count, clamped"
)]
fn ticks(most: f64, wanted: f64) -> (Vec<f64>, usize) {
    if !(most.is_finite() && most > 0.0) {
        return (vec![0.0], 0);
    }
    let raw = most / wanted;
    let magnitude = 10f64.powf(raw.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|f| f * magnitude >= raw);
    let step = factor.unwrap_or(10.0) * magnitude;
    let decimals = (-(step.log10() + 1e-9).floor()).clamp(0.0, 12.0) as usize;
    let count = (most / step + 1e-6).floor().clamp(0.0, 50.0) as u32;
    ((0..=count).map(|n| f64::from(n) * step).collect(), decimals)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{HotSet, Observation, Process, Series, Target};

    #[test]
    fn the_name_of_a_process_is_whole_where_its_command_has_it() {
        let named = |name: &str, command: &[&str]| {
            let heat = Heat {
                schema: String::new(),
                process: Process {
                    pid: 7,
                    name: name.to_owned(),
                    command: command.iter().map(|part| (*part).to_owned()).collect(),
                },
                tracker: Target::default(),
                watched: Observation::default(),
                hot_set: HotSet::default(),
                cost: None,
                mappings: Vec::new(),
                series: Series::default(),
            };
            title(&heat)
        };
        let cut = "superhue-worklo";
        assert_eq!(
            named(cut, &["/usr/bin/superhue-workload", "moving"]),
            "superhue-workload (process 7)"
        );
        assert_eq!(named(cut, &["sh"]), "superhue-worklo (process 7)");
        assert_eq!(named("short", &["shorter"]), "short (process 7)");
        assert_eq!(named(cut, &[]), "superhue-worklo (process 7)");
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!(time(0.0504), "50 ms");
        assert_eq!(time(0.4), "400 ms");
        assert_eq!(time(0.0001), "1 ms");
        assert_eq!(time(5.04), "5.0 s");
        assert_eq!(time(600.0), "10.0 min");
        assert_eq!(size(4096), "4 KiB");
        assert_eq!(size(3 << 20), "3.00 MiB");
        assert_eq!(size(412 << 20), "412.0 MiB");
        assert_eq!(size(16 << 30), "16.00 GiB");
        assert_eq!(ticks(5.0, 6.0), (vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0], 0));
        assert_eq!(ticks(0.0, 6.0), (vec![0.0], 0));
        assert_eq!(ticks(f64::NAN, 6.0), (vec![0.0], 0));
        assert_eq!(ticks(0.35, 6.0).1, 1);
    }
}
