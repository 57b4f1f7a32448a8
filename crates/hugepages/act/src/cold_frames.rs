//! Frames that the host has not backed: Superhue touches them in its own time, not in the program's.
//!
//! In a virtual machine, free memory may have no frames of the host behind it. The host gives a frame at the first touch, and takes free frames
//! back some seconds after they were freed (free page reporting of the balloon device, `mm/page_reporting.c`). A collapse copies into 2 MiB of
//! fresh frames, and during the copy no thread can access the region or map memory. With 512 faults to the host in the middle, that takes 3 to 5 ms
//! in place of 0.3 to 0.6.
//!
//! ```text
//!   scratch region of our own: mapped, one page touched, collapsed, unmapped
//!        │  its 512 frames are backed now, and on top of this CPU's list of free huge pages
//!        v
//!   the program's collapse takes them from there
//! ```
//!
//! Superhue measures whether that helps. It touches nothing while collapses are quick.
//!
//! ```text
//!            the last ones were slow                     warmed ones are no quicker: plain for some time
//!   plain ─────────────────────────> warmed, one of 64 plain ─────────────────────────────────────────────> plain
//!                                          the plain ones are quick again: plain
//! ```
//!
//! If another process takes the frames in between, or the collapse is on another NUMA node, warmed collapses are no quicker, and warming ends.

use std::time::Duration;

use superhue_model::HUGE_PAGE_SIZE;
use superhue_sys::collapse::own_collapse;
use superhue_sys::scratch::Scratch;

/// A collapse that takes longer is slow: a copy of 2 MiB at 2 GB/s.
const SLOW: Duration = Duration::from_millis(1);

/// Number of collapses whose median counts.
const WINDOW: usize = 5;

/// Length of a cycle of warmed collapses; the last one of each is made plain, to see whether frames are still cold.
const PROBE_EVERY: u32 = 64;

/// Plain collapses after warmed ones were no quicker; the number doubles after each further failure.
const PLAIN_COLLAPSES: u32 = 128;
const MAX_PLAIN_COLLAPSES: u32 = 1 << 16;

/// Decides before which collapses to touch frames.
#[derive(Debug)]
pub(crate) struct ColdFrames {
    plain: Recent,
    warmed: Recent,
    mode: Mode,
    patience: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Touches no frames, for at least `left` collapses.
    Plain { left: u32 },
    /// Touches frames; `made` counts the collapses since.
    Warmed { made: u32 },
}

impl ColdFrames {
    pub(crate) const fn new() -> Self {
        Self {
            plain: Recent::new(),
            warmed: Recent::new(),
            mode: Mode::Plain { left: 0 },
            patience: PLAIN_COLLAPSES,
        }
    }

    /// Touches frames if that has helped so far; the caller calls it right before a collapse from outside. Returns true if frames were touched.
    pub(crate) fn prepare(&self) -> bool {
        self.is_due() && touch_frames()
    }

    /// Returns true if frames should be touched before the next collapse.
    const fn is_due(&self) -> bool {
        match self.mode {
            Mode::Plain { .. } => false,
            Mode::Warmed { made } => made % PROBE_EVERY != PROBE_EVERY - 1,
        }
    }

    /// Records the duration of a successful collapse.
    pub(crate) fn learn(&mut self, was_warmed: bool, took: Duration) {
        let of_its_kind = if was_warmed {
            &mut self.warmed
        } else {
            &mut self.plain
        };
        of_its_kind.add(took);
        self.mode = match self.mode {
            Mode::Plain { left: 0 } if self.is_slow() => {
                self.warmed = Recent::new();
                Mode::Warmed { made: 0 }
            }
            Mode::Plain { left } => Mode::Plain {
                left: left.saturating_sub(1),
            },
            Mode::Warmed { .. } if !self.is_slow() => {
                self.patience = PLAIN_COLLAPSES;
                self.back_to_plain(0)
            }
            Mode::Warmed { .. } if self.is_in_vain() => {
                let left = self.patience;
                self.patience = (self.patience * 2).min(MAX_PLAIN_COLLAPSES);
                self.back_to_plain(left)
            }
            Mode::Warmed { made } => Mode::Warmed {
                made: made.wrapping_add(1),
            },
        };
    }

    /// Forgets the plain collapses, because earlier slow ones say nothing about later ones, and returns the plain mode.
    const fn back_to_plain(&mut self, left: u32) -> Mode {
        self.plain = Recent::new();
        Mode::Plain { left }
    }

    fn is_slow(&self) -> bool {
        self.plain.median().is_some_and(|median| median > SLOW)
    }

    /// Returns true if warmed collapses take more than half as long as plain ones.
    fn is_in_vain(&self) -> bool {
        let both = self.warmed.median().zip(self.plain.median());
        both.is_some_and(|(warmed, plain)| warmed * 2 > plain)
    }
}

/// Has the host back the frames of one huge page, and frees that page. Returns true if there was one.
fn touch_frames() -> bool {
    // The collapse clears the pages that are not resident, so it writes all of them; it works in every mode of the machine.
    Scratch::in_base_pages(HUGE_PAGE_SIZE as usize)
        .is_ok_and(|scratch| own_collapse(scratch.region()).is_ok())
}

/// The last few durations.
#[derive(Debug)]
struct Recent {
    took: [Duration; WINDOW],
    seen: usize,
}

impl Recent {
    const fn new() -> Self {
        Self {
            took: [Duration::ZERO; WINDOW],
            seen: 0,
        }
    }

    const fn add(&mut self, took: Duration) {
        self.took[self.seen % WINDOW] = took;
        self.seen += 1;
    }

    /// Median of the window; `None` until the window is full.
    fn median(&self) -> Option<Duration> {
        let mut sorted = self.took;
        sorted.sort_unstable();
        (self.seen >= WINDOW).then_some(sorted[WINDOW / 2])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Duration = Duration::from_micros(500);
    const COLD: Duration = Duration::from_millis(4);

    /// Makes `count` collapses on a machine where plain and warmed ones take these times. Returns the number of warmed ones.
    fn make(frames: &mut ColdFrames, count: u32, plain: Duration, warmed: Duration) -> u32 {
        let mut touched = 0;
        for _ in 0..count {
            let is_warmed = frames.is_due();
            touched += u32::from(is_warmed);
            frames.learn(is_warmed, if is_warmed { warmed } else { plain });
        }
        touched
    }

    #[test]
    fn nothing_is_touched_where_collapses_are_quick() {
        let mut frames = ColdFrames::new();
        assert_eq!(make(&mut frames, 100_000, QUICK, QUICK), 0);
        // One collapse that waited for something now and then is no sign of cold frames.
        for _ in 0..1000 {
            assert_eq!(make(&mut frames, 4, QUICK, QUICK), 0);
            assert_eq!(make(&mut frames, 1, COLD, QUICK), 0);
        }
    }

    #[test]
    fn cold_frames_are_touched_after_a_few_slow_collapses() {
        let mut frames = ColdFrames::new();
        assert_eq!(make(&mut frames, WINDOW as u32, COLD, QUICK), 0);
        let most = make(&mut frames, 6400, COLD, QUICK);
        assert_eq!(most, 6300, "all but one of 64");
    }

    #[test]
    fn it_ends_when_plain_ones_are_quick_again_and_can_begin_anew() {
        let mut frames = ColdFrames::new();
        make(&mut frames, 100, COLD, QUICK);
        // Three quick plain collapses of five make the median.
        let touched = make(&mut frames, 3 * PROBE_EVERY, QUICK, QUICK);
        assert!(touched < 3 * PROBE_EVERY, "{touched}");
        assert_eq!(make(&mut frames, 10_000, QUICK, QUICK), 0);
        assert!(make(&mut frames, 100, COLD, QUICK) > 80);
    }

    #[test]
    fn what_is_slow_for_another_reason_is_left_alone_ever_longer() {
        let mut frames = ColdFrames::new();
        let window = WINDOW as u32;
        assert_eq!(make(&mut frames, 2 * window, COLD, COLD), window);
        assert_eq!(make(&mut frames, PLAIN_COLLAPSES, COLD, COLD), 0);
        let touched = make(&mut frames, 100_000, COLD, COLD);
        assert!(touched <= 10 * window, "{touched}");
        // Saving a third of the time is not worth it.
        let mut frames = ColdFrames::new();
        let touched = make(&mut frames, 1000, COLD, COLD * 2 / 3);
        // After 5, 138, 399 and 916 collapses.
        assert_eq!(touched, 4 * window);
    }

    #[test]
    fn frames_are_touched_and_nothing_stays_mapped() {
        let mappings = || {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            maps.lines().count()
        };
        // Other tests map and unmap in parallel; a leak in each call would add up.
        let before = mappings();
        let touched = (0..200).filter(|_| touch_frames()).count();
        assert!(mappings() < before + 100);
        if touched == 0 {
            superhue_testing::skip("collapse", "no huge page can be made of own memory");
        }
    }
}
