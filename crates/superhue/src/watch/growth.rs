//! Detects a process that is filling its memory at this moment.
//!
//! A collapse holds the program up and copies data that it has just written. A program that fills its memory loses by that at once, and gains
//! only later, when it uses that memory. So this module detects such growth, and policies leave the memory alone while it lasts.

use std::time::Duration;

use superhue_model::PageCount;
use superhue_procfs::process::StatmPages;

/// Growth that counts as filling: 64 MiB a second, and 2 MiB at least. Programs that read from a disk or the network are slower, and a
/// concurrent collapse costs them nothing.
const FAST: u64 = 64 << 8;
pub(super) const MIN_FILL_PAGES: u64 = 512;

/// Shortest time over which growth is measured.
const STEP: Duration = Duration::from_millis(10);

/// Time after fast growth for which a process still counts as filling: this long, or longer for a process with many pages. A look at them costs about a
/// quarter of that time, and is wasted if the process only stalled for a moment.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_OF_A_PAGE: Duration = Duration::from_nanos(250);

/// Growth of the memory of one process, private and shared apart: a process that reads a mapped file, or maps memory that exists already, fills no
/// memory of its own.
#[derive(Debug, Clone, Copy)]
pub(super) struct MemoryGrowth {
    private: Growth,
    shared: Growth,
}

impl MemoryGrowth {
    /// Starts with a process that has `resident` at the first look: its earlier growth is not known.
    pub(super) fn new(at: Duration, resident: StatmPages) -> Self {
        Self {
            private: Growth::new(at, resident.anonymous()),
            shared: Growth::new(at, resident.shared),
        }
    }

    /// Records that it has `resident` now.
    pub(super) fn see(&mut self, at: Duration, resident: StatmPages) {
        self.private.see(at, resident.anonymous());
        self.shared.see(at, resident.shared);
    }

    /// Leaves out private pages that a collapse has added.
    pub(super) fn leave_out(&mut self, added: PageCount) {
        self.private.leave_out(added);
    }

    /// Returns the time at which the process last stopped filling its private memory, or will.
    pub(super) const fn filled_until(&self) -> Duration {
        self.private.filled_until()
    }

    /// Returns true while the process fills its private memory.
    pub(super) fn fills(&self, at: Duration) -> bool {
        self.private.fills(at)
    }

    /// Returns true while the shared memory and files that the process has in its page tables grow fast.
    pub(super) fn maps_fast(&self, at: Duration) -> bool {
        self.shared.fills(at)
    }
}

/// Growth of one kind of memory.
#[derive(Debug, Clone, Copy)]
struct Growth {
    at: Duration,
    pages: PageCount,
    fills_until: Duration,
}

impl Growth {
    /// Starts with a process that has `pages` at the first look: its earlier growth is not known.
    const fn new(at: Duration, pages: PageCount) -> Self {
        Self {
            at,
            pages,
            fills_until: Duration::ZERO,
        }
    }

    /// Records that it has `pages` now.
    fn see(&mut self, at: Duration, pages: PageCount) {
        let elapsed = at.saturating_sub(self.at);
        if elapsed < STEP {
            return;
        }
        let grown = pages.0.saturating_sub(self.pages.0);
        // Pages that fast growth adds in the elapsed time.
        let needed = u128::from(FAST) * elapsed.as_nanos() / 1_000_000_000;
        if grown >= MIN_FILL_PAGES && u128::from(grown) >= needed {
            let pages = u32::try_from(pages.0).unwrap_or(u32::MAX);
            self.fills_until = at + PAUSE.max(PAUSE_OF_A_PAGE.saturating_mul(pages));
        }
        (self.at, self.pages) = (at, pages);
    }

    /// Leaves out pages that a collapse has added.
    fn leave_out(&mut self, added: PageCount) {
        self.pages += added;
    }

    /// Returns the time at which the process last stopped filling its memory, or will.
    const fn filled_until(&self) -> Duration {
        self.fills_until
    }

    /// Returns true while the process fills its memory.
    fn fills(&self, at: Duration) -> bool {
        at < self.fills_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn fast_growth_is_filling_until_a_moment_after_its_end() {
        let mut growth = Growth::new(ms(0), PageCount(100_000));
        assert!(!growth.fills(ms(0)), "nobody knows how it came to that");
        for n in 1..=10 {
            growth.see(ms(20 * n), PageCount(100_000 + 1000 * n));
            assert!(growth.fills(ms(20 * n)), "50 MiB in 250 ms");
        }
        growth.see(ms(220), PageCount(110_000));
        assert!(growth.fills(ms(299)));
        growth.see(ms(300), PageCount(110_000));
        assert!(!growth.fills(ms(300)));
    }

    #[test]
    fn mapping_what_exists_is_not_filling() {
        let resident = |private, shared| StatmPages {
            total: PageCount(private + shared),
            shared: PageCount(shared),
        };
        let mut maps = MemoryGrowth::new(ms(0), resident(1000, 0));
        maps.see(ms(20), resident(1000, 5000));
        assert!(!maps.fills(ms(20)) && maps.maps_fast(ms(20)));
        let mut fills = MemoryGrowth::new(ms(0), resident(1000, 0));
        fills.see(ms(20), resident(6000, 0));
        assert!(fills.fills(ms(20)) && !fills.maps_fast(ms(20)));
    }

    #[test]
    fn a_large_process_fills_for_longer() {
        let mut growth = Growth::new(ms(0), PageCount(2_000_000));
        growth.see(ms(20), PageCount(2_001_000));
        assert!(growth.fills(ms(519)) && !growth.fills(ms(521)));
        let mut endless = Growth::new(ms(0), PageCount(0));
        endless.see(ms(20), PageCount(u64::MAX));
        assert!(endless.fills(ms(1_000_000)));
    }

    #[test]
    fn slow_growth_small_growth_and_our_own_are_not() {
        let mut slow = Growth::new(ms(0), PageCount(0));
        for n in 1..=10 {
            slow.see(ms(100 * n), PageCount(1000 * n));
            assert!(!slow.fills(ms(100 * n)), "39 MiB a second");
        }
        let mut small = Growth::new(ms(0), PageCount(0));
        small.see(ms(10), PageCount(511));
        assert!(!small.fills(ms(10)));
        let mut ours = Growth::new(ms(0), PageCount(1000));
        ours.leave_out(PageCount(5000));
        ours.see(ms(20), PageCount(6000));
        assert!(!ours.fills(ms(20)));
        // Looks at shorter intervals than `STEP` are no evidence.
        let mut quick = Growth::new(ms(0), PageCount(0));
        quick.see(ms(9), PageCount(5000));
        assert!(!quick.fills(ms(9)));
        quick.see(ms(12), PageCount(5000));
        assert!(quick.fills(ms(12)));
    }
}
