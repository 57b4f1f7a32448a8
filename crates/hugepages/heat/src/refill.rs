//! What it costs a program when its accessed bits are cleared.
//!
//! Each page it then touches is walked to once more, and the processor writes the bit into the
//! page-table entry. That write is locked and comes in the program's own order, so that nothing
//! else that the program waits for (data, other walks) is waited for meanwhile; under a hypervisor
//! it may be dearer still. On the development machine (a virtual one), in nanoseconds for each
//! entry, over what the same pass costs with the bits set:
//!
//! | memory | one word of each page | whole pages | after a flush of the TLB alone |
//! |---|---|---|---|
//! | 2 MiB | 30 to 50 | 90 to 150 | 2 |
//! | 64 MiB | 150 to 240 | 790 to 1,030 | 0 |
//! | 256 MiB | 370 | 820 | 0 to 8 |
//! | 512 MiB | 320 to 350 | 680 to 700 | 0 to 15 |
//!
//! So it is the bits that cost, not the flush; memory that fits into the nearest caches tells too
//! little; and a program that reads whole pages pays over twice as much as one that reads a word.
//! Hence whole pages are read, of 16 MiB: the dearest way there is, so that what sampling costs is
//! rather over- than underestimated.

use std::time::{Duration, Instant};

use superhue_model::{BASE_PAGE_SIZE, HUGE_PAGE_SIZE};
use superhue_sys::scratch::Scratch;

/// Memory on which it is measured.
const LENGTH: u64 = 8 * HUGE_PAGE_SIZE;

/// Rounds of the measurement.
const ROUNDS: usize = 3;

/// What is taken where it cannot be measured, in nanoseconds: rather too much than too little.
const FALLBACK: u32 = 700;

/// No walk is quicker than this, in nanoseconds, and none should be slower than that.
const BOUNDS: (u32, u32) = (20, 10_000);

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
    /// A guess on the safe side: 700 ns.
    fn default() -> Self {
        Self {
            nanos: FALLBACK,
            measured: false,
        }
    }
}

impl RefillCost {
    /// Measures it on 16 MiB of own memory, in less than 0.1 s; the default where that fails.
    ///
    /// It is the time to read all of it right after the bits were cleared, less the time to read it
    /// once more; of each the median of 3 rounds, so that interrupts do not
    /// matter. What other programs do to the shared caches does: so it is with the target.
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
    let mut scratch = Scratch::in_base_pages(LENGTH as usize).ok()?;
    scratch.fill(1);
    let mut rounds = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let _ = std::hint::black_box(scratch.peek_lines());
        scratch.advise_cold().ok()?;
        let cold = time(&scratch);
        let warm = time(&scratch);
        rounds.push((cold, warm));
    }
    per_page(&rounds)
}

fn time(scratch: &Scratch) -> Duration {
    let start = Instant::now();
    let _ = std::hint::black_box(scratch.peek_lines());
    start.elapsed()
}

/// The difference for one page, in nanoseconds; `None` if clearing made none, which then was no
/// clearing.
fn per_page(rounds: &[(Duration, Duration)]) -> Option<u32> {
    let cold = median(rounds.iter().map(|(cold, _)| *cold))?;
    let warm = median(rounds.iter().map(|(_, warm)| *warm))?;
    let pages = u128::from(LENGTH / BASE_PAGE_SIZE);
    let nanos = cold.saturating_sub(warm).as_nanos() / pages;
    let (least, most) = BOUNDS;
    let nanos = u32::try_from(nanos).unwrap_or(u32::MAX);
    (nanos > 0).then(|| nanos.clamp(least, most))
}

fn median(times: impl Iterator<Item = Duration>) -> Option<Duration> {
    let mut times: Vec<_> = times.collect();
    times.sort_unstable();
    times.get(times.len() / 2).copied()
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
    fn interrupted_rounds_do_not_matter() {
        let us = Duration::from_micros;
        let rounds = [
            (us(2058), us(700)),
            (us(90_000), us(12)),
            (us(2060), us(10)),
        ];
        // 2,060 - 12 = 2,048 us for 4,096 pages.
        assert_eq!(per_page(&rounds), Some(500));
        assert_eq!(per_page(&[(us(10), us(10)); 3]), None);
        assert_eq!(per_page(&[]), None);
        assert_eq!(per_page(&[(us(1_000_000_000), us(1))]), Some(10_000));
    }
}
