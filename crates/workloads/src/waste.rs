//! `waste`: memory that looks dense and is not worth a superpage.
//!
//! All of the memory is filled. Then the program gives back a fifth of the pages of every cold
//! region, here and there, as an allocator does with what is freed, and never looks at these regions
//! again. From then on only the hot part is accessed:
//!
//! ```text
//!   hot      cold
//!   |========|####.####|##.#####|#.#####.|###.####|     = accessed   # resident   . given back
//! ```
//!
//! A cold region has 80 % of its pages: enough for whoever goes by what is resident, and dense enough
//! for whoever gives superpages to everything. Each superpage there brings back what the program
//! gave back, and makes nothing faster. `rss_bytes` over that of a run without superpages is the
//! waste; `expected_bytes` is what the program asked for.

use std::hint::black_box;
use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use superhue_model::{BASE_PAGE_SIZE, ByteCount, HUGE_PAGE_SIZE};

use crate::memory::Mapping;
use crate::order::{LINES_PER_PAGE, Order, pages_of};
use crate::random::{XorShift, scale};
use crate::{Report, UsageError, access, args, order, procfs};

/// Options of `waste`.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Memory to fill
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = args::size)]
    pub size: ByteCount,
    /// The part that is accessed from then on, in whole regions
    #[arg(long, value_name = "SIZE", default_value = "128M", value_parser = args::size)]
    pub hot: ByteCount,
    /// Share of each cold region that is given back
    #[arg(long, value_name = "RATIO", default_value = "0.2", value_parser = args::ratio)]
    pub free: f64,
    /// Wait before measuring
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = args::time)]
    pub settle: Duration,
    /// How long to measure
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = args::seconds)]
    pub seconds: Duration,
    /// Cache lines to read and write of each page: the more, the less do superpages matter
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=LINES_PER_PAGE as i64))]
    pub lines: u8,
}

/// Fills, gives back, keeps the hot part busy while settling, measures.
///
/// Prints `fill_seconds`, `freed_bytes`, `expected_bytes` (filled and not given back),
/// `throughput_mops` (million pages accessed per second), `rss_bytes`.
///
/// # Errors
/// When the hot part is larger than the memory, the memory cannot be had or given back, or the
/// output is closed.
pub fn run(options: &Options, report: &mut Report<impl Write>) -> Result<()> {
    let hot = u32::try_from(options.hot.0.div_ceil(HUGE_PAGE_SIZE))?;
    let regions = u32::try_from(options.size.0.div_ceil(HUGE_PAGE_SIZE))?;
    if hot > regions {
        let text = format!("--hot {} of --size {}", options.hot, options.size);
        return Err(UsageError(text).into());
    }
    let mapping = Mapping::to_fill(options.size)?;
    let start = Instant::now();
    mapping.fill();
    report.number("fill_seconds", start.elapsed().as_secs_f64())?;
    let freed = give_back(&mapping, hot..regions, options.free)?;
    report.line("freed_bytes", freed.0)?;
    report.line("expected_bytes", mapping.size().0 - freed.0)?;

    let pages = Order::new(pages_of(0..hot).collect()).shuffled(&mut XorShift::new(1));
    let lines = usize::from(options.lines);
    let settled = Instant::now() + options.settle;
    while Instant::now() < settled {
        black_box(order::access(
            mapping.words(),
            pages.part(0, pages.len()),
            lines,
        ));
        // Others are to act now; there is no need to take the CPU from them.
        thread::sleep(Duration::from_millis(1));
    }
    let words = mapping.words();
    let result = access::measure(1, options.seconds, |rng, count| {
        // From a random place of the order on, and from its start again at the end.
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let mut from = scale(rng.next_u64(), pages.len());
        let (mut done, mut sum) = (0, 0_u64);
        while done < count {
            let part = pages.part(from, count - done);
            sum = sum.wrapping_add(order::access(words, part, lines));
            done += part.len();
            from = 0;
        }
        sum
    })?;
    report.number("throughput_mops", result.mops)?;
    report.line("rss_bytes", procfs::own_rss()?.0)?;
    Ok(())
}

/// Gives back a share of the pages of these regions, spread evenly; how much that was.
fn give_back(mapping: &Mapping, regions: std::ops::Range<u32>, share: f64) -> Result<ByteCount> {
    let mut freed = 0;
    let mut due = 0.0;
    for page in pages_of(regions) {
        due += share;
        if due >= 1.0 {
            due -= 1.0;
            mapping
                .discard(page as usize)
                .context("cannot give back a page (MADV_DONTNEED)")?;
            freed += BASE_PAGE_SIZE;
        }
    }
    Ok(ByteCount(freed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn a_fifth_of_each_cold_region_is_given_back() {
        let mapping = Mapping::new(ByteCount(8 << 20)).unwrap();
        mapping.fill();
        let freed = give_back(&mapping, 1..4, 0.2).unwrap();
        assert!(freed.0.abs_diff(3 * 512 * 4096 / 5) <= 4096, "{freed}");
        let gone = |page: &[std::sync::atomic::AtomicU64]| page[0].load(Relaxed) == 0;
        let pages: Vec<_> = mapping.pages().collect();
        let per_region: Vec<usize> = pages
            .chunks(512)
            .map(|region| region.iter().filter(|page| gone(page)).count())
            .collect();
        assert_eq!(per_region[0], 0, "the hot part is left whole");
        // At least three quarters stay, so that going by residency finds the region dense.
        assert!(
            per_region[1..].iter().all(|n| (102..=103).contains(n)),
            "{per_region:?}"
        );
    }

    #[test]
    fn the_hot_part_lies_in_the_memory() {
        let options = Options {
            size: ByteCount(2 << 20),
            hot: ByteCount(4 << 20),
            free: 0.2,
            settle: Duration::ZERO,
            seconds: Duration::ZERO,
            lines: 1,
        };
        let error = run(&options, &mut Report::new(Vec::new())).unwrap_err();
        assert!(error.is::<UsageError>());
    }
}
