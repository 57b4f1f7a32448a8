//! `moving`: the hot part of the memory is another one every so often.
//!
//! All of the memory is filled. Then the pages of a window are read and written at random, for one
//! period; then those of the next window. Whoever gives superpages to what is hot has to follow,
//! and what he gave to the last window is of no more use.
//!
//! ```text
//!   |====|....|....|....|    0 s
//!   |....|====|....|....|   10 s         = window of --hot
//!   |....|....|====|....|   20 s
//! ```
//!
//! One JSON object per 100 ms, then one for the whole, which compares the first second after each
//! move with the last second before the next.

use std::hint::black_box;
use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;
use superhue_model::{BASE_PAGE_SIZE, ByteCount, HUGE_PAGE_SIZE};

use crate::access::median;
use crate::memory::Mapping;
use crate::order::{LINES_PER_PAGE, Order, access, pages_of};
use crate::random::XorShift;
use crate::{Report, UsageError, args, procfs};

/// One line of output.
const SLICE: Duration = Duration::from_millis(100);

/// Pages between two looks at the clock.
const BATCH: usize = 2048;

/// Options of `moving`.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Memory to fill
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = args::size)]
    pub size: ByteCount,
    /// How much of it is hot at a time, in whole regions
    #[arg(long, value_name = "SIZE", default_value = "128M", value_parser = args::size)]
    pub hot: ByteCount,
    /// How long the same part is hot
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = args::time)]
    pub period: Duration,
    /// How long in all
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = args::seconds)]
    pub seconds: Duration,
    /// Cache lines to read and write of each page: the more, the less do superpages matter
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=LINES_PER_PAGE as i64))]
    pub lines: u8,
}

/// 100 ms.
#[derive(Debug, Serialize)]
struct Slice {
    at_seconds: f64,
    /// Which window, counted from 0 and on.
    window: u32,
    gib_per_second: f64,
}

/// All of them.
#[derive(Debug, Serialize)]
struct Summary {
    windows: u32,
    fill_seconds: f64,
    median_gib_per_second: f64,
    /// Of the first second of all windows; null if there was none.
    after_move_gib_per_second: Option<f64>,
    /// Of the last second of all windows; null if none came to its end.
    before_move_gib_per_second: Option<f64>,
    rss_bytes: u64,
}

/// Fills, then accesses one window after the other.
///
/// # Errors
/// When the hot part is larger than the memory or the period is shorter than a slice, the memory
/// cannot be had, or the output is closed.
pub fn run(options: &Options, report: &mut Report<impl Write>) -> Result<()> {
    let hot = u32::try_from(options.hot.0.div_ceil(HUGE_PAGE_SIZE))?;
    let regions = u32::try_from(options.size.0.div_ceil(HUGE_PAGE_SIZE))?;
    if hot > regions {
        let text = format!("--hot {} of --size {}", options.hot, options.size);
        return Err(UsageError(text).into());
    }
    if options.period < SLICE {
        let text = format!("--period {:?}: at least {SLICE:?}", options.period);
        return Err(UsageError(text).into());
    }
    let mapping = Mapping::to_fill(options.size)?;
    let start = Instant::now();
    mapping.fill();
    let fill_seconds = start.elapsed().as_secs_f64();

    let start = Instant::now();
    let (mut all, mut first, mut last) = (Vec::new(), Vec::new(), Vec::new());
    let mut window = 0;
    loop {
        let begin = options.period * window;
        let order = Order::new(pages_of(regions_of(window, hot, regions)).collect())
            .shuffled(&mut XorShift::new(u64::from(window)));
        let mut position = 0;
        while start.elapsed() < begin + options.period && start.elapsed() < options.seconds {
            let rate = slice(&mapping, &order, &mut position, usize::from(options.lines));
            let within = start.elapsed().saturating_sub(begin);
            all.push(rate);
            if within <= Duration::from_secs(1) {
                first.push(rate);
            }
            if within + Duration::from_secs(1) >= options.period {
                last.push(rate);
            }
            report.json(&Slice {
                at_seconds: start.elapsed().as_secs_f64(),
                window,
                gib_per_second: rate,
            })?;
        }
        window += 1;
        if start.elapsed() >= options.seconds {
            break;
        }
    }
    report.json(&Summary {
        windows: window,
        fill_seconds,
        median_gib_per_second: median(&mut all).unwrap_or(0.0),
        after_move_gib_per_second: median(&mut first),
        before_move_gib_per_second: median(&mut last),
        rss_bytes: procfs::own_rss()?.0,
    })?;
    Ok(())
}

/// The regions of a window: those behind the ones before it, from the start again at the end.
fn regions_of(window: u32, hot: u32, regions: u32) -> impl Iterator<Item = u32> {
    let first = u64::from(window) * u64::from(hot);
    #[allow(clippy::cast_possible_truncation, reason = "below `regions`, a u32")]
    (first..first + u64::from(hot)).map(move |region| (region % u64::from(regions)) as u32)
}

/// Accesses pages for one [`SLICE`]; GiB of pages per second.
fn slice(mapping: &Mapping, order: &Order, position: &mut usize, lines: usize) -> f64 {
    let start = Instant::now();
    let mut pages = 0_u64;
    loop {
        let part = order.part(*position, BATCH);
        black_box(access(mapping.words(), part, lines));
        pages += part.len() as u64;
        *position += part.len();
        if *position >= order.len() {
            *position = 0;
        }
        let elapsed = start.elapsed();
        if elapsed >= SLICE {
            let size = ByteCount(pages * BASE_PAGE_SIZE);
            return size.mib() / 1024.0 / elapsed.as_secs_f64();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_follow_each_other_and_begin_again() {
        let window = |n| regions_of(n, 3, 8).collect::<Vec<_>>();
        assert_eq!(window(0), [0, 1, 2]);
        assert_eq!(window(1), [3, 4, 5]);
        assert_eq!(window(2), [6, 7, 0]);
        assert_eq!(window(u32::MAX).len(), 3);
    }

    #[test]
    fn a_slice_goes_round_and_round() {
        let mapping = Mapping::new(ByteCount(2 << 20)).unwrap();
        let order = Order::new(pages_of([0]).collect());
        let mut position = 0;
        assert!(slice(&mapping, &order, &mut position, 1) > 0.0);
        assert!(position < order.len());
        assert!(mapping.pages().all(|page| {
            page.iter()
                .any(|w| w.load(std::sync::atomic::Ordering::Relaxed) != 0)
        }));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let good = Options {
            size: ByteCount(4 << 20),
            hot: ByteCount(2 << 20),
            period: Duration::from_secs(1),
            seconds: Duration::ZERO,
            lines: 1,
        };
        for bad in [
            Options {
                hot: ByteCount(8 << 20),
                ..good.clone()
            },
            Options {
                period: Duration::from_millis(99),
                ..good.clone()
            },
        ] {
            let error = run(&bad, &mut Report::new(Vec::new())).unwrap_err();
            assert!(error.is::<UsageError>());
        }
        run(&good, &mut Report::new(Vec::new())).unwrap();
    }
}
