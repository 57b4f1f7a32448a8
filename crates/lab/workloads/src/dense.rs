//! `dense`: random loads over memory of which every page is in use.
//!
//! Huge pages are made for this case. The program fills its memory, waits until the kernel or a policy has put it on
//! huge pages (at most `--settle`), then measures. An arm without huge pages waits the full `--settle` and measures
//! base pages.
//!
//! ```text
//!   fill            settle                          measure
//!   |---------------|........x----------------------|=================|
//!                            95 % of the regions are huge
//! ```

use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use superhue_model::ByteCount;
use superhue_sys::thp::{ThpSwitch, set_thp_switch, thp_switch};

use crate::access::{self, dependent, independent};
use crate::coverage::CoverageMeter;
use crate::memory::Mapping;
use crate::{Report, args, procfs};

/// Coverage at which the memory counts as settled.
const SETTLED: f64 = 0.95;

/// Time between two looks at the coverage.
const POLL: Duration = Duration::from_millis(20);

/// Options of `dense`.
#[derive(Debug, Clone, clap::Args)]
pub struct DenseOptions {
    /// Memory to fill and load from
    #[arg(long, value_name = "SIZE", default_value = "2G", value_parser = args::size)]
    pub size: ByteCount,
    /// Longest wait for 95 % of the memory to be on huge pages
    #[arg(long, value_name = "TIME", default_value = "1.5s", value_parser = args::time)]
    pub settle: Duration,
    /// Time to measure
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = args::seconds)]
    pub seconds: Duration,
    /// Threads that load
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: u16,
    /// Load one word after the other, each address depending on the word before
    #[arg(long)]
    pub dependent: bool,
    /// Fill with base pages, then ask for huge pages (MADV_HUGEPAGE) and leave them to khugepaged. Give it time:
    /// --settle 300s
    #[arg(long)]
    pub khugepaged: bool,
}

/// Fills the memory, waits for huge pages, measures.
///
/// Prints `fill_seconds`, `coverage_at_95_seconds` (from the end of the fill; `nan` if never),
/// `coverage` (at the end of settling), `throughput_mops`, `latency_ns`, `coverage_end`,
/// `rss_bytes`.
///
/// # Errors
/// If there is not enough memory, its coverage cannot be read, or the output is closed.
pub fn run(options: &DenseOptions, report: &mut Report<impl Write>) -> Result<()> {
    let mapping = Mapping::to_fill(options.size)?;
    let start = Instant::now();
    if options.khugepaged {
        fill_for_khugepaged(&mapping)?;
    } else {
        mapping.fill();
    }
    let filled = Instant::now();
    report.number("fill_seconds", (filled - start).as_secs_f64())?;

    let meter = CoverageMeter::new(&mapping)?;
    let settled = settle(&meter, filled, options.settle)?;
    let seconds = settled.map_or(f64::NAN, |time| time.as_secs_f64());
    report.number("coverage_at_95_seconds", seconds)?;
    report.number("coverage", meter.share()?)?;

    let words = mapping.words();
    let threads = usize::from(options.threads);
    let result = if options.dependent {
        access::measure(threads, options.seconds, |rng, n| dependent(words, rng, n))
    } else {
        access::measure(threads, options.seconds, |rng, n| {
            independent(words, rng, n)
        })
    }?;
    report.number("throughput_mops", result.mops)?;
    report.number("latency_ns", result.latency_ns)?;
    report.number("coverage_end", meter.share()?)?;
    report.line("rss_bytes", procfs::own_rss()?.0)?;
    Ok(())
}

/// Waits until the mapping is settled, at most `limit` after `filled`. Returns the time from `filled`; `None` if the
/// mapping did not settle.
fn settle(meter: &CoverageMeter<'_>, filled: Instant, limit: Duration) -> Result<Option<Duration>> {
    loop {
        if meter.reaches(SETTLED)? {
            return Ok(Some(filled.elapsed()));
        }
        let left = limit.saturating_sub(filled.elapsed());
        if left.is_zero() {
            return Ok(None);
        }
        thread::sleep(left.min(POLL));
    }
}

/// Fills with base pages, independent of the system's setting, then leaves the rest to khugepaged.
///
/// Switches huge pages off for this process during the fill, and restores the previous setting after it: a process that
/// inherited `PR_SET_THP_DISABLE` keeps huge pages off.
fn fill_for_khugepaged(mapping: &Mapping) -> Result<()> {
    let what = "cannot switch huge pages off for this process (PR_SET_THP_DISABLE)";
    let before = thp_switch().context(what)?;
    set_thp_switch(ThpSwitch::Never).context(what)?;
    mapping.fill();
    set_thp_switch(before).context(what)?;
    mapping.advise_huge().context("MADV_HUGEPAGE was refused")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_nobody_promotes_never_settles() {
        let mapping = Mapping::new(ByteCount(4 << 20)).unwrap();
        let meter = CoverageMeter::new(&mapping).unwrap();
        let limit = Duration::from_millis(1);
        assert_eq!(settle(&meter, Instant::now(), limit).unwrap(), None);
    }
}
