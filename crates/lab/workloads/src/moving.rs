//! `moving`: the hot part of the memory moves periodically.
//!
//! All of the memory is filled but for a fifth of the pages of each region, here and there. Then the pages of a window
//! are read and written at random, for one period; then those of the next window.
//!
//! ```text
//!   |====.|####.|####.|####.|    0 s     = accessed   # resident   . hole
//!   |####.|====.|####.|####.|   10 s
//!   |####.|####.|====.|####.|   20 s
//! ```
//!
//! A huge page fills holes, so under a budget (5 % of the resident memory, by default) at most two windows can have
//! huge pages at a time. A policy that gives them to resident memory gives them to the first windows, and most windows
//! go without; a policy that gives them to all memory wastes a quarter. To follow means to give huge pages to the new
//! window and take them back from one that has gone cold, holes and all.
//!
//! Prints one JSON object per 100 ms, then one for the whole run. The last one compares the first second after each
//! move with the last second before the next. It also counts the windows that were followed: nine tenths of their
//! regions were on huge pages before the next move; and it has the median time until then.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;
use superhue_model::{BASE_PAGE_SIZE, ByteCount};

use crate::access::{SLICE, median};
use crate::coverage::CoverageMeter;
use crate::memory::{Mapping, ensure_available};
use crate::order::Order;
use crate::parts::{HotOptions, Walk};
use crate::random::XorShift;
use crate::{Report, UsageError, args, procfs};

/// Options of `moving`.
#[derive(Debug, Clone, clap::Args)]
pub struct MovingOptions {
    /// The memory, and the size of its hot part
    #[command(flatten)]
    pub parts: HotOptions,
    /// Time for which the same part is hot
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = args::time)]
    pub period: Duration,
    /// Time in all
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = args::seconds)]
    pub seconds: Duration,
}

/// Share of a window's regions that has to be on huge pages for the window to count as followed.
const FOLLOWED: f64 = 0.9;

/// Report of 100 ms.
#[derive(Debug, Serialize)]
struct Slice {
    at_seconds: f64,
    /// Number of the window, from 0 on.
    window: u32,
    gib_per_second: f64,
    /// Share of the window's regions that are on huge pages; null before Linux 6.7.
    window_coverage: Option<f64>,
    rss_bytes: u64,
}

/// Report of the whole run.
#[derive(Debug, Serialize)]
struct Summary {
    windows: u32,
    /// Resident bytes without huge pages.
    kept_bytes: u64,
    fill_seconds: f64,
    /// Mean over all windows: unlike the median, it shows what share of the windows got huge pages.
    mean_gib_per_second: f64,
    median_gib_per_second: f64,
    /// In the first second of all windows; null if there was none.
    after_move_gib_per_second: Option<f64>,
    /// In the last second of all windows; null if no window came to its end.
    before_move_gib_per_second: Option<f64>,
    /// Share of the windows' regions that were on huge pages while their window was hot.
    window_coverage: Option<f64>,
    windows_followed: usize,
    /// Seconds from the move until the window was followed, over followed windows; null if no window was followed.
    median_follow_seconds: Option<f64>,
    median_rss_bytes: f64,
    peak_rss_bytes: u64,
}

/// Fills the memory, then accesses one window after the other.
///
/// # Errors
/// If the hot part is larger than the memory, the period is shorter than a slice, there is not enough memory, or the
/// output is closed.
pub fn run(options: &MovingOptions, report: &mut Report<impl Write>) -> Result<()> {
    let memory = &options.parts.memory;
    let (hot, regions) = options.parts.regions()?;
    if options.period < SLICE {
        let text = format!("--period {:?}: at least {SLICE:?}", options.period);
        return Err(UsageError(text).into());
    }
    let kept = Order::new(memory.kept(0..regions).collect());
    ensure_available(ByteCount(kept.len() as u64 * BASE_PAGE_SIZE))?;
    let mapping = Mapping::new(memory.size)?;
    let start = Instant::now();
    kept.fill(&mapping);
    let fill_seconds = start.elapsed().as_secs_f64();

    let start = Instant::now();
    let (mut all, mut first, mut last) = (Vec::new(), Vec::new(), Vec::new());
    let meter = CoverageMeter::new(&mapping)?;
    let (mut covered, mut followed) = (Vec::new(), Vec::new());
    let (mut rss, mut peak_rss) = (Vec::new(), ByteCount(0));
    let mut window = 0;
    loop {
        let begin = options.period * window;
        let order = Order::new(memory.kept(regions_of(window, hot, regions)).collect())
            .shuffled(&mut XorShift::new(u64::from(window)));
        let mut walk = Walk::new(&mapping, order, memory.lines);
        let mut is_followed = false;
        while start.elapsed() < begin + options.period && start.elapsed() < options.seconds {
            let rate = gib(walk.at_full_speed(SLICE));
            let within = start.elapsed().saturating_sub(begin);
            all.push(rate);
            if within <= Duration::from_secs(1) {
                first.push(rate);
            }
            if within + Duration::from_secs(1) >= options.period {
                last.push(rate);
            }
            let coverage = meter.share_of(regions_of(window, hot, regions))?;
            covered.extend(coverage);
            if !is_followed && coverage.is_some_and(|share| share >= FOLLOWED) {
                is_followed = true;
                followed.push(within.as_secs_f64());
            }
            let resident = procfs::own_rss()?;
            rss.push(resident.mib());
            peak_rss = peak_rss.max(resident);
            report.json(&Slice {
                at_seconds: start.elapsed().as_secs_f64(),
                window,
                gib_per_second: rate,
                window_coverage: coverage,
                rss_bytes: resident.0,
            })?;
        }
        window += 1;
        if start.elapsed() >= options.seconds {
            break;
        }
    }
    report.json(&Summary {
        windows: window,
        kept_bytes: kept.len() as u64 * BASE_PAGE_SIZE,
        fill_seconds,
        mean_gib_per_second: mean(&all),
        median_gib_per_second: median(&mut all).unwrap_or(0.0),
        after_move_gib_per_second: median(&mut first),
        before_move_gib_per_second: median(&mut last),
        window_coverage: (!covered.is_empty()).then(|| mean(&covered)),
        windows_followed: followed.len(),
        median_follow_seconds: median(&mut followed),
        median_rss_bytes: median(&mut rss).unwrap_or(0.0) * 1_048_576.0,
        peak_rss_bytes: peak_rss.0,
    })?;
    Ok(())
}

/// Converts pages to GiB.
fn gib(pages: f64) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "4096")]
    const BYTES: f64 = BASE_PAGE_SIZE as f64;
    pages * BYTES / f64::from(1 << 30)
}

#[allow(clippy::cast_precision_loss, reason = "ten slices per second")]
fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// The regions of a window: those behind the previous window, from the start of the memory again after its end.
fn regions_of(window: u32, hot: u32, regions: u32) -> impl Iterator<Item = u32> {
    let first = u64::from(window) * u64::from(hot);
    #[allow(clippy::cast_possible_truncation, reason = "below `regions`, a u32")]
    (first..first + u64::from(hot)).map(move |region| (region % u64::from(regions)) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parts::MemoryOptions;

    #[test]
    fn windows_follow_each_other_and_begin_again() {
        let window = |n| regions_of(n, 3, 8).collect::<Vec<_>>();
        assert_eq!(window(0), [0, 1, 2]);
        assert_eq!(window(1), [3, 4, 5]);
        assert_eq!(window(2), [6, 7, 0]);
        assert_eq!(window(u32::MAX).len(), 3);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let good = MovingOptions {
            parts: HotOptions {
                memory: MemoryOptions {
                    size: ByteCount(4 << 20),
                    free: 0.2,
                    lines: 1,
                },
                hot: ByteCount(2 << 20),
            },
            period: Duration::from_secs(1),
            seconds: Duration::ZERO,
        };
        let mut too_hot = good.clone();
        too_hot.parts.hot = ByteCount(8 << 20);
        let too_short = MovingOptions {
            period: Duration::from_millis(99),
            ..good.clone()
        };
        for bad in [too_hot, too_short] {
            let error = run(&bad, &mut Report::new(Vec::new())).unwrap_err();
            assert!(error.is::<UsageError>());
        }
        run(&good, &mut Report::new(Vec::new())).unwrap();
    }
}
