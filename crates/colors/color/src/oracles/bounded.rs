//! A probe that gives up after some CPU time, so that a search that finds nothing ends.
//!
//! On a machine where every measurement differs (an emulator, a clock that the hypervisor emulates) a search may
//! restart for minutes. The limit is CPU time, not wall time: a search on a busy machine is slow, and yet succeeds.

use std::time::Duration;

use superhue_sys::process::thread_cpu_time;

use super::{Lines, Probe};
use crate::Page;

/// Passes experiments on until the calling thread has used its CPU time; after that each counts as disturbed, which
/// soon ends every search.
#[derive(Debug)]
pub(super) struct CpuLimitedProbe<'a, P> {
    probe: &'a mut P,
    end: Duration,
    is_late: bool,
}

impl<'a, P> CpuLimitedProbe<'a, P> {
    pub(super) fn new(probe: &'a mut P, patience: Duration) -> Self {
        Self {
            probe,
            end: thread_cpu_time().saturating_add(patience),
            is_late: false,
        }
    }

    /// Returns true if an experiment was refused because the time had expired.
    pub(super) const fn is_late(&self) -> bool {
        self.is_late
    }

    fn goes_on(&mut self) -> bool {
        self.is_late = self.is_late || thread_cpu_time() >= self.end;
        !self.is_late
    }
}

impl<P: Probe> Probe for CpuLimitedProbe<'_, P> {
    fn trial(
        &mut self,
        lines: &Lines,
        targets: &[Page],
        evictors: &[Page],
        times: &mut [u32],
    ) -> bool {
        self.goes_on() && self.probe.trial(lines, targets, evictors, times)
    }

    fn chase(&mut self, pages: &[Page], loads: u64) -> Option<f64> {
        if self.goes_on() {
            self.probe.chase(pages, loads)
        } else {
            None
        }
    }
}
