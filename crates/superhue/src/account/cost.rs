//! Resources that a watch uses itself.

use serde::{Deserialize, Serialize};

/// CPU time and looks of a watch; in the report of a run, those of the whole command `superhue`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct OwnCost {
    /// Seconds of CPU.
    pub cpu_seconds: f64,
    /// Of these, seconds of collapses, splits, and moves of pages to frames of other colors.
    #[serde(default)]
    pub acting_seconds: f64,
    /// Of these, all other seconds: start, looks, samples, decisions. `max_overhead` bounds them.
    #[serde(default)]
    pub watching_seconds: f64,
    /// Part of `watching_seconds` that tracking of accesses took.
    pub tracking_seconds: f64,
    /// Seconds of wall time for which the watch saved CPU time, because watching had taken what `max_overhead` allows.
    #[serde(default)]
    pub saving_seconds: f64,
    /// Seconds of wall time spent looking.
    pub looking_seconds: f64,
    /// Looks, of any kind.
    pub looks: u64,
    /// Looks at the page tables of a process.
    pub full_looks: u64,
    /// The present bound on the CPU time of watching (`--max-overhead`), as a share of one CPU.
    pub max_overhead: f64,
}

impl OwnCost {
    /// Adds the cost of another watch. Bounds add up, as each watch has its own.
    pub(super) fn add(&mut self, other: &Self) {
        let Self {
            cpu_seconds,
            acting_seconds,
            watching_seconds,
            tracking_seconds,
            saving_seconds,
            looking_seconds,
            looks,
            full_looks,
            max_overhead,
        } = *other;
        self.cpu_seconds += cpu_seconds;
        self.acting_seconds += acting_seconds;
        self.watching_seconds += watching_seconds;
        self.tracking_seconds += tracking_seconds;
        self.saving_seconds += saving_seconds;
        self.looking_seconds += looking_seconds;
        self.looks += looks;
        self.full_looks += full_looks;
        self.max_overhead += max_overhead;
    }
}
