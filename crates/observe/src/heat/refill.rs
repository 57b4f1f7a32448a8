//! What it costs a program when its accessed bits are cleared.
//!
//! Clearing flushes the target's TLB. Each page it then touches is walked to once more, and the
//! processor writes the accessed bit into the entry: a locked write to a page table, by microcode on
//! many processors, and under a hypervisor that shadows page tables an exit. It is measured, since
//! it differs by an order of magnitude between machines.

use std::time::{Duration, Instant};

use superhue_model::{HUGE_PAGE_SIZE, PAGES_PER_REGION};
use superhue_sys::scratch::Scratch;

/// Rounds of the measurement: 0.5 ms altogether.
const ROUNDS: usize = 15;

/// What is taken where it cannot be measured: above what processors take by themselves (50 to 150
/// ns), since a cost should rather be over- than underestimated.
const FALLBACK: u32 = 250;

/// No walk is quicker than this, in nanoseconds, and none should be slower than that.
const BOUNDS: (u32, u32) = (5, 10_000);

/// The time that a page-table entry costs the target whose accessed bit was cleared and which it
/// touches again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefillCost {
    /// In nanoseconds, for each entry.
    pub nanos: u32,
    /// Whether it was measured here, or is a guess.
    pub measured: bool,
}

impl Default for RefillCost {
    /// A guess on the safe side: 250 ns.
    fn default() -> Self {
        Self {
            nanos: FALLBACK,
            measured: false,
        }
    }
}

impl RefillCost {
    /// Measures it on 2 MiB of own memory, in about a millisecond; the default where that fails.
    ///
    /// The time to read a word of each of 512 pages right after their bits were cleared, less the
    /// time to read them once more: fewer pages than the TLB of any processor that matters holds,
    /// with data that stays in the cache. The median of 15 rounds, so that interrupts do not matter.
    #[must_use]
    pub fn measure() -> Self {
        measured().map_or_else(Self::default, |nanos| Self {
            nanos,
            measured: true,
        })
    }

    /// What touching so many entries again costs; see [`Change::entries`](super::Change::entries).
    #[must_use]
    pub fn of(self, entries: u64) -> Duration {
        Duration::from_nanos(entries.saturating_mul(u64::from(self.nanos)))
    }
}

fn measured() -> Option<u32> {
    let mut scratch = Scratch::in_base_pages(HUGE_PAGE_SIZE as usize).ok()?;
    scratch.fill(1);
    let mut rounds = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let _ = std::hint::black_box(scratch.peek_pages());
        scratch.advise_cold().ok()?;
        let cold = time(&scratch);
        let warm = time(&scratch);
        rounds.push((cold, warm));
    }
    per_page(&mut rounds)
}

fn time(scratch: &Scratch) -> Duration {
    let start = Instant::now();
    let _ = std::hint::black_box(scratch.peek_pages());
    start.elapsed()
}

/// The median difference for one page, in nanoseconds; `None` if clearing made no difference, which
/// then was no clearing.
fn per_page(rounds: &mut [(Duration, Duration)]) -> Option<u32> {
    let extra = |(cold, warm): &(Duration, Duration)| cold.saturating_sub(*warm);
    rounds.sort_by_key(extra);
    let median = extra(rounds.get(rounds.len() / 2)?).as_nanos() / u128::from(PAGES_PER_REGION);
    let nanos = u32::try_from(median).unwrap_or(u32::MAX);
    let (least, most) = BOUNDS;
    (nanos > 0).then(|| nanos.clamp(least, most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_within_bounds_and_adds_up() {
        let cost = RefillCost::measure();
        println!("{cost:?}");
        assert!((BOUNDS.0..=BOUNDS.1).contains(&cost.nanos), "{cost:?}");
        assert_eq!(cost.of(1000).as_nanos(), u128::from(cost.nanos) * 1000);
        assert_eq!(cost.of(u64::MAX), Duration::from_nanos(u64::MAX));
    }

    #[test]
    fn one_interrupted_round_does_not_matter() {
        let us = Duration::from_micros;
        let mut rounds = [
            (us(60), us(10)),
            (us(9000), us(10)),
            (us(61), us(9)),
            (us(11), us(700)),
            (us(62), us(11)),
        ];
        // The median difference is 51 us for 512 pages.
        assert_eq!(per_page(&mut rounds), Some(99));
        assert_eq!(per_page(&mut [(us(10), us(10)); 3]), None);
        assert_eq!(per_page(&mut []), None);
        assert_eq!(per_page(&mut [(us(1_000_000), us(1))]), Some(10_000));
    }
}
