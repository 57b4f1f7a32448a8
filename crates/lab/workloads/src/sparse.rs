//! `sparse`: a little of every region in use, the rest never touched.
//!
//! The case against huge pages: promoting such a region adds up to 2 MiB of memory for a few KiB in use. `rss_bytes` at
//! the end shows whether the kernel or a policy did so.
//!
//! ```text
//!   |#...................|#...................|#...................|     # --per-region
//!   |<----- 2 MiB ------>|
//! ```

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::Result;
use superhue_model::{BASE_PAGE_SIZE, ByteCount, HUGE_PAGE_SIZE, PAGES_PER_REGION};

use crate::memory::{Mapping, WORDS_PER_PAGE, touch};
use crate::random::scale;
use crate::{Report, UsageError, access, args, procfs};

/// 8-byte words in a region.
const WORDS_PER_REGION: usize = WORDS_PER_PAGE * PAGES_PER_REGION as usize;

/// Options of `sparse`.
#[derive(Debug, Clone, clap::Args)]
pub struct SparseOptions {
    /// Address space to spread over
    #[arg(long, value_name = "SIZE", default_value = "4G", value_parser = args::size)]
    pub size: ByteCount,
    /// Memory to use in each 2 MiB of it
    #[arg(long, value_name = "SIZE", default_value = "4K", value_parser = args::size)]
    pub per_region: ByteCount,
    /// Time to access the memory in use
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = args::seconds)]
    pub seconds: Duration,
}

/// Touches memory, then loads random words of it.
///
/// Prints `used_bytes`, `fill_seconds`, `throughput_mops`, `latency_ns` and, last, `rss_bytes`.
///
/// # Errors
/// If `--per-region` is more than a region, there is not enough memory, or the output is closed.
pub fn run(options: &SparseOptions, report: &mut Report<impl Write>) -> Result<()> {
    if options.per_region.0 > HUGE_PAGE_SIZE {
        let text = format!("--per-region {}: a region has 2 MiB", options.per_region);
        return Err(UsageError(text).into());
    }
    let mapping = Mapping::new(options.size)?;
    let used_pages = options.per_region.0.div_ceil(BASE_PAGE_SIZE);
    let start = Instant::now();
    let used = fill(&mapping, used_pages);
    report.line("used_bytes", used.0)?;
    report.number("fill_seconds", start.elapsed().as_secs_f64())?;

    let words = mapping.words();
    let used_words = usize::try_from(used.0 / 8)?;
    let words_in_use = usize::try_from(used_pages)? * WORDS_PER_PAGE;
    let result = access::measure(1, options.seconds, |rng, count| {
        (0..count).fold(0, |sum: u64, _| {
            let nth = scale(rng.next_u64(), used_words);
            let index = nth / words_in_use * WORDS_PER_REGION + nth % words_in_use;
            let word = words.get(index);
            sum.wrapping_add(word.map_or(0, |w| w.load(std::sync::atomic::Ordering::Relaxed)))
        })
    })?;
    report.number("throughput_mops", result.mops)?;
    report.number("latency_ns", result.latency_ns)?;
    report.line("rss_bytes", procfs::own_rss()?.0)?;
    Ok(())
}

/// Touches the first `used_pages` pages of every region. Returns bytes touched.
fn fill(mapping: &Mapping, used_pages: u64) -> ByteCount {
    let mut touched = 0;
    for (number, page) in (0..).zip(mapping.pages()) {
        if number % PAGES_PER_REGION < used_pages {
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
    fn only_the_head_of_each_region_is_touched() {
        let mapping = Mapping::new(ByteCount(8 << 20)).unwrap();
        assert_eq!(fill(&mapping, 3), ByteCount(4 * 3 * 4096));
        for (number, page) in mapping.pages().enumerate() {
            let touched = page[0].load(Relaxed) != 0;
            assert_eq!(touched, number % 512 < 3, "page {number}");
        }
    }

    #[test]
    fn a_region_has_two_mebibytes() {
        let options = SparseOptions {
            size: ByteCount(2 << 20),
            per_region: ByteCount(3 << 20),
            seconds: Duration::ZERO,
        };
        let error = run(&options, &mut Report::new(Vec::new())).unwrap_err();
        assert!(error.is::<UsageError>());
    }
}
