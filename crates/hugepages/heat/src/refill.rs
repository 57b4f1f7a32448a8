//! Cost for a program of clearing its accessed bits.
//!
//! For each page that the program then touches, the processor walks the page tables once more, and writes the bit into the entry. That write is
//! locked and in program order, so the program's other waits (data, other walks) do not overlap with it; under a hypervisor it may cost even more.
//! On the development machine (a virtual one), in nanoseconds for each entry, above the cost of the same pass with the bits set:
//!
//! | memory | one word of each page | whole pages | after a flush of the TLB alone |
//! |---|---|---|---|
//! | 2 MiB | 30 to 50 | 90 to 150 | 2 |
//! | 64 MiB | 150 to 240 | 790 to 1,030 | 0 |
//! | 256 MiB | 370 | 820 | 0 to 8 |
//! | 512 MiB | 320 to 350 | 680 to 700 | 0 to 15 |
//!
//! So the bits cost time, not the flush. Memory that fits into the nearest caches shows too little, and a program that reads whole pages pays over
//! twice as much as one that reads a word. So the measurement reads whole pages, of 16 MiB: this is the most expensive way, so the result
//! overestimates the cost of sampling rather than underestimates it.

use std::time::{Duration, Instant};

use superhue_model::{BASE_PAGE_SIZE, HUGE_PAGE_SIZE};
use superhue_sys::scratch::Scratch;

/// Bytes of memory for the measurement.
const LENGTH: u64 = 8 * HUGE_PAGE_SIZE;

/// Rounds of the measurement.
const ROUNDS: usize = 3;

/// Nanoseconds assumed where the measurement fails: rather too many than too few.
const FALLBACK: u32 = 700;

/// Least and largest plausible cost of a walk, in nanoseconds.
const BOUNDS: (u32, u32) = (20, 10_000);

/// Time that the target spends on a page-table entry with a cleared accessed bit, when it touches the page again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefillCost {
    /// Nanoseconds for each entry.
    pub nanos: u32,
    /// True if it was measured here, false if it is a guess.
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
    /// Measures it on 16 MiB of own memory, in less than 0.1 s; returns the default where that fails.
    ///
    /// The cost is the time to read all of it right after the bits were cleared, less the time to read it once more; of each the median of 3
    /// rounds, so that interrupts do not matter. Other programs' use of the shared caches does matter, as it does for the target.
    #[must_use]
    pub fn measure() -> Self {
        measured().map_or_else(Self::default, |nanos| Self {
            nanos,
            measured: true,
        })
    }

    /// Returns the cost of touching `entries` entries again; see [`Change::entries`](super::Change::entries).
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

/// Returns the difference for one page, in nanoseconds; `None` if there is none, because then the bits were not cleared.
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
