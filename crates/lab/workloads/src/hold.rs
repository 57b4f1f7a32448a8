//! `hold`: memory that is filled and then left alone.
//!
//! The program itself uses no CPU time while it sleeps, so all CPU time in that phase belongs to the tracker: this
//! measures the overhead of tracking.

use std::fmt;
use std::io::Write;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use superhue_model::{BASE_PAGE_SIZE, ByteCount, ParseShareError, Share};

use crate::memory::{Mapping, ensure_available, touch};
use crate::{Report, args, procfs};

/// Share of the mapping that becomes resident.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResidentShare(Share);

impl FromStr for ResidentShare {
    type Err = ParseShareError;

    /// Reads `all`, a percentage or a size.
    fn from_str(text: &str) -> Result<Self, ParseShareError> {
        if text == "all" {
            return Ok(Self(Share::BasisPoints(10_000)));
        }
        text.parse().map(Self)
    }
}

impl fmt::Display for ResidentShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Options of `hold`.
#[derive(Debug, Clone, clap::Args)]
pub struct HoldOptions {
    /// Address space to map
    #[arg(long, value_name = "SIZE", default_value = "8G", value_parser = args::size)]
    pub size: ByteCount,
    /// Part of it to fill, spread evenly over every region
    #[arg(long, value_name = "all|PERCENT|SIZE", default_value = "all")]
    pub resident: ResidentShare,
    /// Ask for huge pages at the faults: when they are free again, other programs get the same frames for theirs
    #[arg(long)]
    pub huge: bool,
    /// Time to hold it
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = args::seconds)]
    pub seconds: Duration,
}

/// Fills the memory and sleeps.
///
/// Prints `touched_bytes`, `fill_seconds` and, after sleeping, `rss_bytes`.
///
/// # Errors
/// If there is not enough memory, the options want huge pages and the kernel has none, or the output is closed.
pub fn run(options: &HoldOptions, report: &mut Report<impl Write>) -> Result<()> {
    let wanted = ByteCount(options.resident.0.of(options.size).0.min(options.size.0));
    ensure_available(wanted)?;
    let mapping = Mapping::new(options.size)?;
    if options.huge {
        mapping
            .advise_huge()
            .context("this kernel makes no huge pages")?;
    }
    let start = Instant::now();
    let touched = fill(&mapping, wanted);
    report.line("touched_bytes", touched.0)?;
    report.number("fill_seconds", start.elapsed().as_secs_f64())?;
    thread::sleep(options.seconds);
    report.line("rss_bytes", procfs::own_rss()?.0)?;
    Ok(())
}

/// Touches pages, evenly spread over the mapping, up to about `wanted` bytes. Returns bytes touched.
fn fill(mapping: &Mapping, wanted: ByteCount) -> ByteCount {
    let (all, wanted) = (
        u128::from(mapping.size().whole_pages().0),
        u128::from(wanted.whole_pages().0),
    );
    // As in Bresenham's line: page n is touched if n * wanted / all takes a step there.
    let steps = |number: u128| number * wanted / all;
    let mut touched = 0;
    for (number, page) in (0..).zip(mapping.pages()) {
        let n = u128::from(number);
        if steps(n + 1) > steps(n) {
            touch(page, number);
            touched += BASE_PAGE_SIZE;
        }
    }
    ByteCount(touched)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn the_share_is_spread_evenly() {
        let mapping = Mapping::new(ByteCount(8 << 20)).unwrap();
        assert_eq!(fill(&mapping, ByteCount(2 << 20)), ByteCount(2 << 20));
        for region in mapping.words().chunks(512 * 512) {
            let touched = region.iter().filter(|w| w.load(Relaxed) != 0).count();
            assert_eq!(touched, 128);
        }
    }

    #[test]
    fn residency_is_read_as_users_write_it() {
        let of_8g = |text: &str| {
            let resident: ResidentShare = text.parse().unwrap();
            resident.0.of(ByteCount(8 << 30))
        };
        assert_eq!(of_8g("all"), ByteCount(8 << 30));
        assert_eq!(of_8g("25%"), ByteCount(2 << 30));
        assert_eq!(of_8g("1G"), ByteCount(1 << 30));
        for text in ["", "All", "-1%", "half"] {
            assert!(text.parse::<ResidentShare>().is_err(), "{text}");
        }
    }
}
