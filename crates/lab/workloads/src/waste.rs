//! `waste`: memory that looks dense and is not worth a huge page.
//!
//! All of the memory is filled. Then the program gives back a fifth of the pages of every cold region (the holes of
//! [`parts`](crate::parts)) and never accesses these regions again. From then on it accesses only the hot part:
//!
//! ```text
//!   hot      cold
//!   |========|####.####|##.#####|#.#####.|###.####|     = accessed   # resident   . given back
//! ```
//!
//! A cold region has 80 % of its pages: dense enough for a policy that looks at residency, and for a policy that gives
//! huge pages to all memory. Each huge page there brings back the pages that the program gave back, and makes nothing
//! faster. `rss_bytes` over that of a run without huge pages is the waste; `expected_bytes` is the memory that the
//! program keeps.

use std::hint::black_box;
use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use superhue_model::{BASE_PAGE_SIZE, ByteCount};

use crate::memory::Mapping;
use crate::order::{Order, pages_of};
use crate::parts::{HotOptions, MemoryOptions, Walk};
use crate::random::{XorShift, scale};
use crate::{Report, access, args, order, procfs};

/// Options of `waste`.
#[derive(Debug, Clone, clap::Args)]
pub struct WasteOptions {
    /// The memory, and its hot part, which has no holes
    #[command(flatten)]
    pub parts: HotOptions,
    /// Wait before measuring
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = args::time)]
    pub settle: Duration,
    /// Time to measure
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = args::seconds)]
    pub seconds: Duration,
}

/// Fills the memory, gives back pages, keeps the hot part busy while settling, measures.
///
/// Prints `fill_seconds`, `freed_bytes`, `expected_bytes` (filled and not given back),
/// `throughput_mops` (million pages accessed per second), `rss_bytes`.
///
/// # Errors
/// If the hot part is larger than the memory, the kernel refuses the memory or its return, or the output is closed.
pub fn run(options: &WasteOptions, report: &mut Report<impl Write>) -> Result<()> {
    let memory = &options.parts.memory;
    let (hot, regions) = options.parts.regions()?;
    let mapping = Mapping::to_fill(memory.size)?;
    let start = Instant::now();
    mapping.fill();
    report.number("fill_seconds", start.elapsed().as_secs_f64())?;
    let freed = give_back(memory, &mapping, hot..regions)?;
    report.line("freed_bytes", freed.0)?;
    report.line("expected_bytes", mapping.size().0 - freed.0)?;

    let pages = Order::new(pages_of(0..hot).collect()).shuffled(&mut XorShift::new(1));
    let mut walk = Walk::new(&mapping, pages.clone(), memory.lines);
    let settled = Instant::now() + options.settle;
    while Instant::now() < settled {
        black_box(walk.step(pages.len()));
        // Leaves the CPU to the policy, which should act now.
        thread::sleep(Duration::from_millis(1));
    }
    let words = mapping.words();
    let result = access::measure(1, options.seconds, |rng, count| {
        order::access_round(
            words,
            &pages,
            scale(rng.next_u64(), pages.len()),
            usize::try_from(count).unwrap_or(usize::MAX),
            usize::from(memory.lines),
        )
    })?;
    report.number("throughput_mops", result.mops)?;
    report.line("rss_bytes", procfs::own_rss()?.0)?;
    Ok(())
}

/// Gives back the pages of these regions that become holes. Returns the bytes given back.
fn give_back(
    memory: &MemoryOptions,
    mapping: &Mapping,
    regions: std::ops::Range<u32>,
) -> Result<ByteCount> {
    let mut freed = 0;
    for page in pages_of(regions).filter(|page| memory.is_hole(*page)) {
        mapping
            .discard(page as usize)
            .context("cannot give back a page (MADV_DONTNEED)")?;
        freed += BASE_PAGE_SIZE;
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
        let memory = MemoryOptions {
            size: mapping.size(),
            free: 0.2,
            lines: 1,
        };
        let freed = give_back(&memory, &mapping, 1..4).unwrap();
        assert_eq!(freed, ByteCount(3 * 102 * 4096));
        let gone = |page: &[std::sync::atomic::AtomicU64]| page[0].load(Relaxed) == 0;
        let pages: Vec<_> = mapping.pages().collect();
        let per_region: Vec<usize> = pages
            .chunks(512)
            .map(|region| region.iter().filter(|page| gone(page)).count())
            .collect();
        assert_eq!(per_region[0], 0, "the hot part is left whole");
        // At least three quarters stay, so a policy that looks at residency finds the region dense.
        assert!(per_region[1..].iter().all(|n| *n == 102), "{per_region:?}");
    }
}
