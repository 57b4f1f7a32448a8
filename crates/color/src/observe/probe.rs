//! The one experiment on which everything measured rests: load, push, and time.

use crate::Page;

/// Which cache lines of each page an experiment uses.
///
/// A page's color decides its sets line by line, so any subset of the lines shows it; different subsets are
/// independent evidence of the same thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lines {
    /// Offsets in bytes into a page, in the order of access.
    pub offsets: [u16; Self::COUNT],
}

impl Lines {
    /// Lines in one experiment: their latencies add up, which makes the difference of one access, lost in the grain of
    /// many clocks (10 ns here and there), a plain one.
    pub const COUNT: usize = 8;
}

/// Why there is nothing to time with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// The clock stands still, jumps, or is too coarse.
    #[error("the processor's clock cannot be used for timing: {0}")]
    Clock(String),
    /// Written for other processors.
    #[error("timing of caches is not written for this processor architecture")]
    Architecture,
}

/// Times accesses; the real thing is [`HardwareProbe`], tests have a modelled cache.
pub trait Probe {
    /// Loads `lines` of every target, then those of all evictors several times over, then times each target: `times[i]`
    /// is what the lines of `targets[i]` took together, one after the other, in ticks of a steady clock.
    ///
    /// Returns false if the experiment was disturbed (the thread lost its CPU meanwhile): the times then mean nothing.
    fn trial(
        &mut self,
        lines: &Lines,
        targets: &[Page],
        evictors: &[Page],
        times: &mut [u32],
    ) -> bool;

    /// Ticks per load of a random cycle through all lines of `pages`, each load waiting for the one before, after a
    /// pass to warm up; `loads` of them. Writes the pages if `None` is not returned.
    fn chase(&mut self, pages: &[Page], loads: u64) -> Option<f64>;
}

/// Timing by the processor's own clock, on the CPU the calling thread is on.
#[derive(Debug)]
pub struct HardwareProbe {
    _private: (),
}

impl HardwareProbe {
    /// Tries the clock.
    ///
    /// # Errors
    /// See [`ProbeError`].
    pub fn new() -> Result<Self, ProbeError> {
        Err(ProbeError::Architecture)
    }
}

impl Probe for HardwareProbe {
    fn trial(&mut self, _: &Lines, _: &[Page], _: &[Page], _: &mut [u32]) -> bool {
        false
    }

    fn chase(&mut self, _: &[Page], _: u64) -> Option<f64> {
        None
    }
}
