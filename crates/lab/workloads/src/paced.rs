//! `paced`: accesses to memory at a given rate.
//!
//! All of the memory is filled but for the holes of each region (see [`parts`](crate::parts)). Then its pages are read
//! and written at a given rate per second:
//!
//! - `random`: everywhere at once. A thousand accesses per second are enough to touch each of a hundred huge pages ten
//!   times per second.
//! - `sweep`: region by region, and the pages of each region at random. All pages of a region are touched shortly after
//!   each other, then none until the next round, as in a scan, a garbage collector or a merge of a table. During its
//!   turn each region is as active as under `random`; most of the time it is idle:
//!
//! ```text
//!   region   |====|    |    |    |====|    |    |    |     time ->
//!            |    |====|    |    |    |====|    |    |
//! ```
//!
//! Two such programs at different rates under one budget show which of them gets the huge pages.
//!
//! Prints one JSON object per 100 ms, then one for the whole run.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;
use superhue_model::{BASE_PAGE_SIZE, ByteCount};

use crate::access::{SLICE, median};
use crate::memory::{Mapping, ensure_available};
use crate::order::Order;
use crate::parts::{MemoryOptions, Walk};
use crate::random::XorShift;
use crate::{Report, args, procfs};

/// Order in which pages are accessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// All of them, at random
    Random,
    /// Region by region, those of each at random
    Sweep,
}

/// Options of `paced`.
#[derive(Debug, Clone, clap::Args)]
pub struct PacedOptions {
    /// The memory; all of it that is no hole is accessed
    #[command(flatten)]
    pub memory: MemoryOptions,
    /// Order in which pages are accessed
    #[arg(long, value_enum, default_value = "random")]
    pub order: Kind,
    /// Pages to access per second. [default: as many as possible]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000_000))]
    pub rate: Option<u32>,
    /// Time to run
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = args::seconds)]
    pub seconds: Duration,
}

/// Report of 100 ms.
#[derive(Debug, Serialize)]
struct Slice {
    at_seconds: f64,
    pages_per_second: f64,
}

/// Report of the whole run.
#[derive(Debug, Serialize)]
struct Summary {
    order: Kind,
    /// Resident bytes without huge pages.
    kept_bytes: u64,
    /// Time in which every page is accessed once, at the requested rate.
    round_seconds: Option<f64>,
    median_pages_per_second: f64,
    rss_bytes: u64,
}

/// Fills the memory, then accesses it.
///
/// # Errors
/// If there is not enough memory or the output is closed.
pub fn run(options: &PacedOptions, report: &mut Report<impl Write>) -> Result<()> {
    let memory = &options.memory;
    let regions = memory.regions()?;
    let order = order(memory, options.order, regions);
    let kept = order.len() as u64 * BASE_PAGE_SIZE;
    ensure_available(ByteCount(kept))?;
    let mapping = Mapping::new(memory.size)?;
    order.fill(&mapping);

    #[allow(clippy::cast_precision_loss, reason = "at most 2^32 pages")]
    let round_seconds = options
        .rate
        .map(|rate| order.len() as f64 / f64::from(rate));
    let mut walk = Walk::new(&mapping, order, memory.lines);
    let start = Instant::now();
    let mut rates = Vec::new();
    loop {
        let pages_per_second = match options.rate {
            Some(rate) => walk.at_rate(f64::from(rate), SLICE),
            None => walk.at_full_speed(SLICE),
        };
        rates.push(pages_per_second);
        report.json(&Slice {
            at_seconds: start.elapsed().as_secs_f64(),
            pages_per_second,
        })?;
        if start.elapsed() >= options.seconds {
            break;
        }
    }
    report.json(&Summary {
        order: options.order,
        kept_bytes: kept,
        round_seconds,
        median_pages_per_second: median(&mut rates).context("there was no slice")?,
        rss_bytes: procfs::own_rss()?.0,
    })?;
    Ok(())
}

/// The pages to access, in the order of access.
fn order(memory: &MemoryOptions, kind: Kind, regions: u32) -> Order {
    let mut rng = XorShift::new(1);
    let mut shuffled = |regions: std::ops::Range<u32>| {
        let pages = Order::new(memory.kept(regions).collect()).shuffled(&mut rng);
        pages.part(0, pages.len()).to_vec()
    };
    Order::new(match kind {
        Kind::Random => shuffled(0..regions),
        Kind::Sweep => (0..regions)
            .flat_map(|region| shuffled(region..region + 1))
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> MemoryOptions {
        MemoryOptions {
            size: ByteCount(8 << 20),
            free: 0.2,
            lines: 1,
        }
    }

    #[test]
    fn both_orders_are_of_the_same_pages() {
        let sorted = |kind| {
            let order = order(&memory(), kind, 4);
            let mut pages = order.part(0, order.len()).to_vec();
            assert!(!pages.is_sorted());
            pages.sort_unstable();
            pages
        };
        assert_eq!(sorted(Kind::Random), sorted(Kind::Sweep));
        assert_eq!(sorted(Kind::Random).len(), 4 * 410);
    }

    #[test]
    fn a_sweep_is_done_with_a_region_before_the_next() {
        let regions = |kind| {
            let order = order(&memory(), kind, 4);
            let pages = order.part(0, order.len()).iter();
            pages.map(|page| page / 512).collect::<Vec<_>>()
        };
        assert!(regions(Kind::Sweep).is_sorted());
        assert!(!regions(Kind::Random).is_sorted());
    }
}
