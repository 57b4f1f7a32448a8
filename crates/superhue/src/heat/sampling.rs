//! How processes are to be sampled.

use std::time::Duration;

use superhue_heat::Scope;

/// How processes are to be sampled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Bound on the share of time that tracking may cost: of each target's time, of that of all CPUs
    /// for the targets together, and of one CPU's for Superhue: 0 to 1.
    pub max_overhead: f64,
    /// The part of that which Superhue's own time in sampling may take, the rest being for other work
    /// it does: 0 to 1.
    pub own_part: f64,
    /// The shortest interval of a sample.
    pub shortest: Duration,
    /// The longest.
    pub longest: Duration,
    /// Which memory.
    pub scope: Scope,
    /// Whether to stop, but for a rare glance, once samples stay the same.
    pub settle: bool,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            max_overhead: 0.01,
            own_part: 1.0,
            shortest: Duration::from_millis(50),
            longest: Duration::from_secs(10),
            scope: Scope::Anonymous,
            settle: true,
        }
    }
}
