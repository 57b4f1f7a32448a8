//! `pattern`: the microbenchmark of the HPS paper (Shimizu and Yamada, section 6.3).
//!
//! A *pass* reads and writes each page of a range once. Sixteen passes make a *set*, which is timed; its throughput is
//! the size of the range times sixteen over that time. Three orders:
//!
//! - `sequential`, `random`: the range is all of the memory.
//! - `skewed`: the range is the *dense* third of the 2 MiB regions, at random. In each other region, some pages
//!   (`--skew-fill`, 55 of 512) are touched once at the start and never again. So 40.5 % of the memory is resident
//!   without huge pages, and 147 % more than that with a huge page for every region, as in the paper.
//!
//! ```text
//!   skewed, --scatter   |====|#...|#...|====|#...|====|#...|#...|     = accessed   # touched once
//!   skewed              |====|====|====|#...|#...|#...|#...|#...|     . never touched
//! ```
//!
//! Prints one JSON object per set, then one for the whole run.

use std::hint::black_box;
use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use superhue_model::{BASE_PAGE_SIZE, ByteCount, HUGE_PAGE_SIZE, PAGES_PER_REGION};

use crate::access::median;
use crate::memory::{Mapping, ensure_available};
use crate::order::{LINES_PER_PAGE, Order, access, pages_of};
use crate::random::XorShift;
use crate::{Report, args, procfs};

/// Passes that are timed together.
const PASSES_PER_SET: u32 = 16;

/// Fraction of the regions that `skewed` accesses: one in `SKEW`.
const SKEW: u32 = 3;

/// Order in which pages are accessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// All of them, ascending
    Sequential,
    /// All of them, at random
    Random,
    /// Those of a third of the 2 MiB regions, at random
    Skewed,
}

/// Options of `pattern`.
#[derive(Debug, Clone, clap::Args)]
pub struct PatternOptions {
    /// Memory to map
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = args::size)]
    pub size: ByteCount,
    /// Order in which pages are accessed
    #[arg(long, value_enum, default_value = "random")]
    pub order: Kind,
    /// Passes in all, sixteen to a set; passes that do not fill a set are left out
    #[arg(long, value_name = "N", default_value_t = 1280, value_parser = clap::value_parser!(u32).range(16..=1_000_000))]
    pub passes: u32,
    /// Stop after this time instead, at the end of the current set
    #[arg(long, value_name = "SECONDS", conflicts_with = "passes", value_parser = args::seconds)]
    pub seconds: Option<Duration>,
    /// Cache lines to read and write of each page: the more, the less huge pages matter
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=LINES_PER_PAGE as i64))]
    pub lines: u8,
    /// skewed: pages of each other region that are touched once
    #[arg(long, value_name = "N", default_value_t = 55, value_parser = clap::value_parser!(u16).range(0..=PAGES_PER_REGION as i64))]
    pub skew_fill: u16,
    /// skewed: spread the accessed regions over the memory instead of keeping them in one block
    #[arg(long)]
    pub scatter: bool,
    /// Seed of the random orders
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

/// Report of one set.
#[derive(Debug, Serialize)]
struct Set {
    set: u32,
    /// End of the set, from the end of the fill.
    at_seconds: f64,
    seconds: f64,
    gib_per_second: f64,
    rss_bytes: u64,
}

/// Report of all sets.
#[derive(Debug, Serialize)]
struct Summary {
    order: Kind,
    size_bytes: u64,
    range_bytes: u64,
    lines: u8,
    sets: u32,
    passes: u32,
    fill_seconds: f64,
    seconds: f64,
    /// Over the last quarter of the sets.
    median_gib_per_second: f64,
    /// Over the same sets.
    median_rss_bytes: f64,
}

/// Pages to touch, and pages to access, in order.
#[derive(Debug)]
struct Layout {
    fill: Order,
    range: Order,
}

/// Fills the memory, then goes over the range set by set.
///
/// # Errors
/// If there is not enough memory or the output is closed.
pub fn run(options: &PatternOptions, report: &mut Report<impl Write>) -> Result<()> {
    let mapping = Mapping::new(options.size)?;
    let layout = layout(options, mapping.size())?;
    ensure_available(bytes(layout.fill.len()))?;
    let start = Instant::now();
    layout.fill.fill(&mapping);
    let fill_seconds = start.elapsed().as_secs_f64();

    let range = bytes(layout.range.len());
    let lines = usize::from(options.lines);
    let filled = Instant::now();
    let mut rates = Vec::new();
    let mut resident = Vec::new();
    let mut set = 0;
    loop {
        let start = Instant::now();
        for _ in 0..PASSES_PER_SET {
            let pages = layout.range.part(0, layout.range.len());
            black_box(access(mapping.words(), pages, lines));
        }
        let seconds = start.elapsed().as_secs_f64();
        let rss = procfs::own_rss()?;
        let gib_per_second = range.mib() / 1024.0 * f64::from(PASSES_PER_SET) / seconds;
        rates.push(gib_per_second);
        resident.push(rss.mib());
        set += 1;
        report.json(&Set {
            set,
            at_seconds: filled.elapsed().as_secs_f64(),
            seconds,
            gib_per_second,
            rss_bytes: rss.0,
        })?;
        let done = options.seconds.map_or_else(
            || (set + 1) * PASSES_PER_SET > options.passes,
            |limit| filled.elapsed() >= limit,
        );
        if done {
            break;
        }
    }
    let last = rates.len() - rates.len().div_ceil(4);
    report.json(&Summary {
        order: options.order,
        size_bytes: mapping.size().0,
        range_bytes: range.0,
        lines: options.lines,
        sets: set,
        passes: set * PASSES_PER_SET,
        fill_seconds,
        seconds: filled.elapsed().as_secs_f64(),
        median_gib_per_second: median(&mut rates[last..]).context("there was no set")?,
        median_rss_bytes: median(&mut resident[last..]).context("there was no set")? * 1_048_576.0,
    })?;
    Ok(())
}

/// Computes the pages to touch and the pages to access in memory of this size.
fn layout(options: &PatternOptions, size: ByteCount) -> Result<Layout> {
    let mut rng = XorShift::new(options.seed);
    let Ok(regions) = u32::try_from(size.0 / HUGE_PAGE_SIZE) else {
        bail!("{size} are too many pages to number");
    };
    if options.order != Kind::Skewed {
        let all = Order::new(pages_of(0..regions).collect());
        let range = match options.order {
            Kind::Random => all.clone().shuffled(&mut rng),
            _ => all.clone(),
        };
        return Ok(Layout { fill: all, range });
    }
    // The dense regions are the first ones of a list, which `--scatter` shuffles.
    let order = Order::new((0..regions).collect());
    let order = if options.scatter {
        order.shuffled(&mut rng)
    } else {
        order
    };
    let dense = ((regions + SKEW / 2) / SKEW).max(1) as usize;
    let mut is_dense = vec![false; regions as usize];
    for &region in order.part(0, dense) {
        is_dense[region as usize] = true;
    }
    let dense_regions = (0..regions).filter(|region| is_dense[*region as usize]);
    let range = Order::new(pages_of(dense_regions).collect()).shuffled(&mut rng);
    let fill = pages_of(0..regions).filter(|page| {
        let (region, within) = (
            u64::from(*page) / PAGES_PER_REGION,
            u64::from(*page) % PAGES_PER_REGION,
        );
        usize::try_from(region).is_ok_and(|region| is_dense[region])
            || within < u64::from(options.skew_fill)
    });
    let fill = Order::new(fill.collect());
    Ok(Layout { fill, range })
}

fn bytes(pages: usize) -> ByteCount {
    ByteCount(pages as u64 * BASE_PAGE_SIZE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::collections::HashSet;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        options: PatternOptions,
    }

    fn options(line: &str) -> PatternOptions {
        let words = ["pattern"].into_iter().chain(line.split_whitespace());
        Cli::parse_from(words).options
    }

    #[test]
    fn skewed_fills_as_much_as_in_the_paper() {
        for line in ["--order skewed", "--order skewed --scatter"] {
            let layout = layout(&options(line), ByteCount(1 << 30)).unwrap();
            #[allow(clippy::cast_precision_loss, reason = "a count of pages")]
            let share = layout.fill.len() as f64 / 262_144.0;
            assert!((share - 0.405).abs() < 0.001, "{share}");
            // With a huge page for every region: 147 % more, as the paper measured.
            assert!((1.0 / share - 2.47).abs() < 0.01);
            assert_eq!(layout.range.len(), 171 * 512);
        }
    }

    #[test]
    fn each_pass_accesses_each_page_of_the_range_once() {
        for (line, regions) in [("sequential", 12), ("random", 12), ("skewed", 4)] {
            let layout = layout(&options(&format!("--order {line}")), ByteCount(24 << 20)).unwrap();
            let pages = layout.range.part(0, usize::MAX);
            let distinct: HashSet<_> = pages.iter().collect();
            assert_eq!(
                (pages.len(), distinct.len()),
                (regions * 512, regions * 512)
            );
            assert_eq!(pages.is_sorted(), line == "sequential");
            let filled: HashSet<_> = layout.fill.part(0, usize::MAX).iter().collect();
            assert!(pages.iter().all(|page| filled.contains(page)));
        }
    }

    #[test]
    fn dense_regions_are_one_block_unless_scattered() {
        let regions = |line: &str| {
            let layout = layout(&options(line), ByteCount(192 << 20)).unwrap();
            let pages = layout.range.part(0, usize::MAX).iter();
            let mut regions: Vec<u32> = pages.map(|page| page / 512).collect();
            regions.sort_unstable();
            regions.dedup();
            regions
        };
        assert_eq!(regions("--order skewed"), (0..32).collect::<Vec<_>>());
        let scattered = regions("--order skewed --scatter");
        assert_eq!(scattered.len(), 32);
        let neighbours = scattered.windows(2).filter(|w| w[0] + 1 == w[1]).count();
        assert!(neighbours < 20, "{scattered:?}");
    }
}
