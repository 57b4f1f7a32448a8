//! Memory with a hot part, and with missing pages here and there.
//!
//! The memory of a long-lived program is seldom full: its allocator gave back freed pages. So some pages of each region
//! are *holes*, spread evenly, and the others are *kept*:
//!
//! ```text
//!   |####.####.####.####.###|####.####.####.####.###|     # kept   . hole
//!   one region                the next has its holes at the same places
//! ```
//!
//! A huge page fills the holes with zeroes, which is its price. With a fifth of the pages missing, a region is dense
//! enough for a policy that looks at residency, and a huge page adds a quarter to the region's memory.

use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use superhue_model::{ByteCount, HUGE_PAGE_SIZE, PAGES_PER_REGION};

use crate::memory::Mapping;
use crate::order::{LINES_PER_PAGE, Order, access_round, pages_of};
use crate::{UsageError, args};

/// Pages between two looks at the clock: a fraction of a millisecond.
const BATCH: usize = 2048;

/// Time between two bursts of a walk at a given rate.
const TICK: Duration = Duration::from_millis(5);

/// Memory, and the shape of accesses to it.
#[derive(Debug, Clone, clap::Args)]
pub struct MemoryOptions {
    /// Memory to map
    #[arg(long, value_name = "SIZE", default_value = "384M", value_parser = args::size)]
    pub size: ByteCount,
    /// Share of the pages of a region that are holes: given back, or never touched
    #[arg(long, value_name = "RATIO", default_value = "0.2", value_parser = args::ratio)]
    pub free: f64,
    /// Cache lines to read and write of each page: the more, the less huge pages matter
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=LINES_PER_PAGE as i64))]
    pub lines: u8,
}

impl MemoryOptions {
    /// Number of regions of the memory.
    ///
    /// # Errors
    /// If there are more regions than a `u32` can count.
    pub fn regions(&self) -> Result<u32> {
        regions(self.size)
    }

    /// Returns true if a page is a hole; holes are the same in each region.
    #[must_use]
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "0 to 512"
    )]
    pub fn is_hole(&self, page: u32) -> bool {
        // Page n is a hole if n pages and n + 1 pages make different whole numbers of holes.
        let holes = |pages: u64| (pages as f64 * self.free) as u64;
        let within = u64::from(page) % PAGES_PER_REGION;
        holes(within + 1) > holes(within)
    }

    /// The pages of some regions that are no holes, in the order of the regions.
    pub fn kept(&self, regions: impl IntoIterator<Item = u32>) -> impl Iterator<Item = u32> {
        pages_of(regions).filter(|page| !self.is_hole(*page))
    }
}

/// Memory with its hot part.
#[derive(Debug, Clone, clap::Args)]
pub struct HotOptions {
    /// The memory
    #[command(flatten)]
    pub memory: MemoryOptions,
    /// Hot part of it, in whole regions
    #[arg(long, value_name = "SIZE", default_value = "32M", value_parser = args::size)]
    pub hot: ByteCount,
}

impl HotOptions {
    /// Number of hot regions, at least one, and of all regions.
    ///
    /// # Errors
    /// [`UsageError`] if the hot part is larger than the memory.
    pub fn regions(&self) -> Result<(u32, u32)> {
        let (hot, all) = (regions(self.hot)?, self.memory.regions()?);
        if hot > all {
            let text = format!("--hot {} of --size {}", self.hot, self.memory.size);
            return Err(UsageError(text).into());
        }
        Ok((hot, all))
    }
}

fn regions(size: ByteCount) -> Result<u32> {
    Ok(u32::try_from(size.0.div_ceil(HUGE_PAGE_SIZE))?)
}

/// Endless walk over pages.
#[derive(Debug)]
pub struct Walk<'a> {
    mapping: &'a Mapping,
    order: Order,
    position: usize,
    lines: usize,
}

impl<'a> Walk<'a> {
    /// Makes a walk over pages of `mapping` in this order, which accesses `lines` cache lines of each page.
    #[must_use]
    pub fn new(mapping: &'a Mapping, order: Order, lines: u8) -> Self {
        Self {
            mapping,
            order,
            position: 0,
            lines: usize::from(lines),
        }
    }

    /// Number of pages in one round.
    #[must_use]
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Returns true if the walk has no pages.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Accesses the next `count` pages. Returns the sum of the values read.
    pub fn step(&mut self, count: usize) -> u64 {
        let (words, len) = (self.mapping.words(), self.len().max(1));
        let start = self.position % len;
        self.position = (start + count) % len;
        access_round(words, &self.order, start, count, self.lines)
    }

    /// Accesses pages for `time`, or a little longer. Returns pages per second.
    #[allow(clippy::cast_precision_loss, reason = "page counts are far below 2^52")]
    pub fn at_full_speed(&mut self, time: Duration) -> f64 {
        let start = Instant::now();
        let mut pages = 0_u64;
        loop {
            black_box(self.step(BATCH));
            pages += BATCH as u64;
            let elapsed = start.elapsed();
            if elapsed >= time {
                return pages as f64 / elapsed.as_secs_f64();
            }
        }
    }

    /// Accesses `rate` pages per second for `time`, and sleeps in between. Returns the pages per second that it
    /// reached. If the machine did not run it for a while, the walk does not make up for the missed accesses: that
    /// would be a burst at a higher rate.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a rate is at most 10^9 per second, a tick at most a few seconds"
    )]
    pub fn at_rate(&mut self, rate: f64, time: Duration) -> f64 {
        let start = Instant::now();
        let (mut pages, mut due, mut last) = (0_u64, 0.0, start);
        loop {
            thread::sleep(TICK.min(time.saturating_sub(start.elapsed())));
            let now = Instant::now();
            due += rate * (now - last).min(TICK * 4).as_secs_f64();
            last = now;
            let count = due as usize;
            black_box(self.step(count));
            due -= count as f64;
            pages += count as u64;
            let elapsed = start.elapsed();
            if elapsed >= time {
                return pages as f64 / elapsed.as_secs_f64();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    fn options(free: f64) -> MemoryOptions {
        MemoryOptions {
            size: ByteCount(8 << 20),
            free,
            lines: 1,
        }
    }

    #[test]
    fn holes_are_spread_evenly_and_alike_in_each_region() {
        for (free, holes) in [(0.0, 0), (0.2, 102), (0.25, 128), (0.5, 256), (1.0, 512)] {
            let options = options(free);
            let of = |region: u32| {
                let is_hole = |page: &u32| options.is_hole(region * 512 + page);
                (0..512).filter(is_hole).collect::<Vec<_>>()
            };
            assert_eq!(of(0).len(), holes, "{free}");
            assert_eq!(of(0), of(7));
            assert_eq!(options.kept(0..3).count(), 3 * (512 - holes));
            // Distances between holes differ by at most one page.
            let gaps: Vec<_> = of(0).windows(2).map(|pair| pair[1] - pair[0]).collect();
            let (least, most) = (gaps.iter().min(), gaps.iter().max());
            assert!(
                most.zip(least)
                    .is_none_or(|(most, least)| most - least <= 1)
            );
        }
    }

    #[test]
    fn the_hot_part_lies_in_the_memory() {
        let hot = |hot| HotOptions {
            memory: options(0.2),
            hot: ByteCount(hot),
        };
        assert_eq!(hot(1).regions().unwrap(), (1, 4));
        assert_eq!(hot(8 << 20).regions().unwrap(), (4, 4));
        let error = hot((8 << 20) + 1).regions().unwrap_err();
        assert!(error.is::<UsageError>());
    }

    #[test]
    fn a_walk_goes_round_and_leaves_other_pages_alone() {
        let mapping = Mapping::new(ByteCount(2 << 20)).unwrap();
        let mut walk = Walk::new(&mapping, Order::new(vec![3, 1, 7]), 1);
        walk.step(4);
        let word = |page: usize| {
            let first = mapping.pages().nth(page).unwrap();
            first.iter().map(|word| word.load(Relaxed)).sum::<u64>()
        };
        // Each access adds two, except for the last bit, which the first access sets.
        assert_eq!([3, 1, 7, 0].map(word), [5, 3, 3, 0]);
        walk.step(1);
        walk.step(3);
        assert_eq!([3, 1, 7, 0].map(word), [7, 7, 5, 0]);
        assert!(walk.at_full_speed(Duration::ZERO) > 0.0);
        // A walk without pages ends at once.
        assert_eq!(Walk::new(&mapping, Order::new(Vec::new()), 1).step(9), 0);
    }

    #[test]
    fn a_rate_is_not_exceeded() {
        let mapping = Mapping::new(ByteCount(2 << 20)).unwrap();
        let mut walk = Walk::new(&mapping, Order::new(vec![0]), 1);
        // A delay makes the run longer, and the rate refers to its real time.
        let rate = walk.at_rate(1000.0, Duration::from_millis(50));
        assert!(rate <= 1000.0, "{rate}");
        assert!(mapping.words()[0].load(Relaxed) > 0);
    }
}
