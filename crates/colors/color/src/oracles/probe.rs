//! The one experiment behind all measurements: load, push, and time.

use superhue_model::BASE_PAGE_SIZE;

use crate::Page;

/// Bytes of a cache line, on every processor that we time.
pub const LINE_SIZE: u16 = 64;

/// Cache lines of a base page.
pub const LINES_OF_PAGE: u16 = (BASE_PAGE_SIZE / LINE_SIZE as u64) as u16;

/// The cache lines of each page that an experiment uses.
///
/// A page's color decides its sets line by line, so any subset of the lines shows it; different subsets are independent
/// evidence of the same color.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lines {
    /// Offsets in bytes into a page, in the order of access.
    pub offsets: [u16; Self::COUNT],
}

impl Lines {
    /// Lines in one experiment. Their latencies add up: one access alone is lost in the grain of many clocks (10 ns on
    /// some), eight are not.
    pub const COUNT: usize = 8;

    /// Groups that [`Self::group`] knows.
    pub const GROUPS: u16 = LINES_OF_PAGE / Self::COUNT as u16;

    /// The group for tests of claims: nothing else uses it.
    pub const HELD_OUT: Self = Self::group(6);

    /// One of eight disjoint groups of lines (`number` counts modulo 8).
    ///
    /// The lines of a group lie eight apart, so that adjacent-line prefetchers load none of them, and are visited with
    /// changing strides, so that stride prefetchers find no pattern.
    #[must_use]
    pub const fn group(number: u16) -> Self {
        let first = number % Self::GROUPS;
        Self {
            offsets: [
                line_of(first, 3),
                line_of(first, 0),
                line_of(first, 6),
                line_of(first, 1),
                line_of(first, 7),
                line_of(first, 4),
                line_of(first, 2),
                line_of(first, 5),
            ],
        }
    }

    /// A line as far from all of these as possible: to touch the page without touching the tested lines.
    #[must_use]
    pub fn spare(&self) -> u16 {
        let distance = |line: u16| {
            let away = |offset: &u16| offset.abs_diff(line * LINE_SIZE);
            self.offsets.iter().map(away).min().unwrap_or(0)
        };
        let best = (0..LINES_OF_PAGE).max_by_key(|&line| distance(line));
        best.unwrap_or(0) * LINE_SIZE
    }
}

/// Offset in a page, in bytes, of line `row` of the group that begins at line `first`.
const fn line_of(first: u16, row: u16) -> u16 {
    (row * Lines::GROUPS + first) * LINE_SIZE
}

/// Reason why timing is impossible.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// The clock stands still, jumps, or is too coarse.
    #[error("the processor's clock cannot be used for timing: {0}")]
    Clock(String),
    /// The timing code supports other processors only.
    #[error("timing of caches is not written for this processor architecture")]
    Architecture,
}

/// Times accesses. [`HardwareProbe`](super::HardwareProbe) does so on the processor; tests have a modelled cache.
pub trait Probe {
    /// Loads `lines` of every target, then those of all evictors there and back, then times each target: `times[i]` is
    /// the time of all lines of `targets[i]` together, one after the other, in ticks of a steady clock.
    ///
    /// Returns false if the experiment was disturbed (the thread lost its CPU meanwhile): the times then mean nothing.
    fn trial(
        &mut self,
        lines: &Lines,
        targets: &[Page],
        evictors: &[Page],
        times: &mut [u32],
    ) -> bool;

    /// Returns true if the time has expired and nothing more will be timed: all trials then look as if nothing had been pushed out.
    fn is_over(&self) -> bool {
        false
    }

    /// Ticks per load of a random cycle through all lines of `pages`, each load waiting for the one before, after a
    /// warm-up pass; at least `loads` of them. The cycle goes line by line, with the pages of each line in random
    /// order; it reads the pages, never writes them. `None` if disturbed, or without pages.
    fn chase(&mut self, pages: &[Page], loads: u64) -> Option<f64>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_groups_share_the_page_out() {
        let mut seen = [0_u32; LINES_OF_PAGE as usize];
        for group in 0..Lines::GROUPS {
            for offset in Lines::group(group).offsets {
                assert_eq!(offset % LINE_SIZE, 0);
                seen[usize::from(offset / LINE_SIZE)] += 1;
            }
        }
        assert_eq!(seen, [1; LINES_OF_PAGE as usize]);
        assert_eq!(Lines::group(8), Lines::group(0));
    }

    #[test]
    fn the_spare_line_is_no_neighbour_of_any() {
        for group in 0..Lines::GROUPS {
            let lines = Lines::group(group);
            let spare = lines.spare();
            assert!(spare < 4096 && spare.is_multiple_of(LINE_SIZE));
            for offset in lines.offsets {
                assert!(offset.abs_diff(spare) >= 4 * LINE_SIZE, "{group}");
            }
        }
    }
}
